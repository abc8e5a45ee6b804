//! What to do about a session whose holder is gone. Rows in, plan out.
