//! How often a key may be used: so many requests a second, and as many at once.

use std::num::NonZeroU32;

use governor::clock::MonotonicClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use super::{ServiceError, ServiceResult};
use crate::ids::KeyId;

type Limiter =
    RateLimiter<KeyId, HashMapStateStore<KeyId>, MonotonicClock, NoOpMiddleware<std::time::Instant>>;

/// Keys whose use is remembered; beyond it those that have been quiet are forgotten.
const REMEMBERED: usize = 10_000;

/// See the module. Only valid keys are counted, so that nobody can fill it with made-up ones.
pub(super) struct RateLimit(Option<Limiter>);

impl RateLimit {
    /// A limit of so many requests a second; none without a number.
    pub(super) fn new(per_second: Option<NonZeroU32>) -> Self {
        Self(per_second.map(|rate| {
            RateLimiter::new(Quota::per_second(rate), HashMapStateStore::default(), MonotonicClock)
        }))
    }

    /// Counts one use of a key.
    ///
    /// # Errors
    /// `RateLimited` when it is one too many.
    pub(super) fn count(&self, key: &KeyId) -> ServiceResult<()> {
        let Some(limiter) = &self.0 else { return Ok(()) };
        if limiter.len() > REMEMBERED {
            limiter.retain_recent();
        }
        limiter.check_key(key).map_err(|_| ServiceError::RateLimited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_rate_and_does_not_use_up_that_of_another() {
        let limit = RateLimit::new(NonZeroU32::new(3));
        let (one, two) = (KeyId::mint(), KeyId::mint());
        let allowed = (0..10).filter(|_| limit.count(&one).is_ok()).count();
        assert!((3..10).contains(&allowed), "{allowed}");
        assert!(limit.count(&two).is_ok());
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let limit = RateLimit::new(None);
        let key = KeyId::mint();
        assert!((0..1000).all(|_| limit.count(&key).is_ok()));
    }
}
