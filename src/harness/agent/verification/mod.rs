//! What an answer is held against before it is the turn's.

mod claims;
mod evidence;
mod project;

pub(super) use self::evidence::Evidence;
pub(super) use self::project::ProjectCheck;
