//! Whether a runtime may still act. A process that was stopped or starved may come to itself when another one has long taken its
//! sessions over: what it was about to do must not be done any more.

use std::fmt;
use std::io;
use std::sync::Arc;

/// See the module. Asked right before each effect.
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> bool + Send + Sync>);

impl Fence {
    /// One that asks.
    pub fn new(is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_open))
    }

    /// One that nobody closes.
    pub fn open() -> Self {
        Self::new(|| true)
    }

    /// Lets an effect pass, or says why not.
    ///
    /// # Errors
    /// When the session may be another's by now.
    pub fn pass(&self) -> io::Result<()> {
        if (self.0)() { Ok(()) } else { Err(io::Error::other("the session may be held elsewhere by now")) }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence(open: {})", (self.0)())
    }
}
