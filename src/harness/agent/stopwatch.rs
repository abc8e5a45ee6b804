//! How long a turn has worked: it stands still while a person is waited for, and while no process runs.

use std::time::Duration;

use tokio::time::Instant;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    before: Duration,
    since: Option<Instant>,
}

impl Stopwatch {
    /// One that goes on from there, running.
    pub fn from(before: Duration) -> Self {
        Self { before, since: Some(Instant::now()) }
    }

    /// What it shows.
    pub fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// It stands still.
    pub fn pause(&mut self) {
        *self = Self { before: self.elapsed(), since: None };
    }

    /// It runs.
    pub fn go_on(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_passes_while_it_stands_still_does_not_count() {
        let step = Duration::from_secs(5);
        let mut stopwatch = Stopwatch::from(step);
        tokio::time::advance(step).await;
        stopwatch.pause();
        tokio::time::advance(step).await;
        stopwatch.pause();
        assert_eq!(stopwatch.elapsed(), 2 * step);
        stopwatch.go_on();
        stopwatch.go_on();
        tokio::time::advance(step).await;
        assert_eq!(stopwatch.elapsed(), 3 * step);
    }
}
