//! What the model is given of a conversation, within its window.

mod condense;
mod estimate;
mod fit;

pub use self::estimate::TokenEstimate;
pub(super) use self::fit::{Budget, Fit, Overflow, fit};
