//! rehydrate
