//! What an answer is held against before it is the turn's.

mod evidence;

pub(super) use self::evidence::Evidence;
