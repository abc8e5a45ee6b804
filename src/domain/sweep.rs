//! Which live sessions to put away. Live sessions in, plan out.
