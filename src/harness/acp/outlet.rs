//! The way out of the pump: the channel of events, bounded in bytes as well as in their number. The driver that falls behind makes
//! the agent wait whether it says much at once or little very often.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::harness::HarnessEvent;

/// More does not wait for the driver. One event that is larger goes out alone.
const WAITING_MAX_BYTES: usize = 1 << 20;

/// Nobody listens to the events any more.
#[derive(Debug)]
pub(super) struct Unheard;

/// See the module.
#[derive(Debug)]
pub(super) struct Outlet {
    events: mpsc::Sender<HarnessEvent>,
    // Of those that may still wait in the channel, in their order.
    weights: VecDeque<usize>,
    bytes: usize,
}

impl Outlet {
    pub(super) fn new(events: mpsc::Sender<HarnessEvent>) -> Self {
        Self { events, weights: VecDeque::new(), bytes: 0 }
    }

    /// Puts an event out, once there is room for it.
    pub(super) async fn put(&mut self, event: HarnessEvent) -> Result<(), Unheard> {
        let weight = event.weight();
        loop {
            let free = self.events.capacity();
            self.forget_taken(free);
            if self.bytes == 0 || self.bytes + weight <= WAITING_MAX_BYTES {
                break;
            }
            // There is one more place when the driver has taken one: nobody else puts anything in.
            let taken = self.events.reserve_many(free + 1).await;
            drop(taken.map_err(|_| Unheard)?);
        }
        self.events.send(event).await.map_err(|_| Unheard)?;
        self.weights.push_back(weight);
        self.bytes += weight;
        Ok(())
    }

    fn forget_taken(&mut self, free: usize) {
        let waiting = self.events.max_capacity() - free;
        while self.weights.len() > waiting {
            self.bytes -= self.weights.pop_front().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;
    use crate::domain::event::Output;

    fn text(bytes: usize) -> HarnessEvent {
        HarnessEvent::Output(Output::TextDelta { text: "x".repeat(bytes) })
    }

    #[tokio::test]
    async fn large_events_wait_for_the_driver_one_by_one_and_none_is_lost() {
        let (events, mut driver) = mpsc::channel(16);
        let mut outlet = Outlet::new(events);
        let putting = tokio::spawn(async move {
            for _ in 0..40 {
                outlet.put(text(WAITING_MAX_BYTES / 4)).await.unwrap();
            }
            outlet.put(text(3 * WAITING_MAX_BYTES)).await.unwrap();
        });
        for taken in 0..41 {
            for _ in 0..100 {
                yield_now().await;
            }
            assert!(driver.len() <= 4, "{taken}: {} wait", driver.len());
            driver.recv().await.unwrap();
        }
        putting.await.unwrap();
        assert!(driver.recv().await.is_none());
    }

    #[tokio::test]
    async fn small_events_fill_the_channel_and_nobody_waits_for_one_who_is_gone() {
        let (events, driver) = mpsc::channel(16);
        let mut outlet = Outlet::new(events);
        for _ in 0..16 {
            outlet.put(text(1)).await.unwrap();
        }
        assert_eq!(driver.len(), 16);
        drop(driver);
        assert!(outlet.put(text(1)).await.is_err());
        let (events, driver) = mpsc::channel(16);
        let mut outlet = Outlet::new(events);
        outlet.put(text(WAITING_MAX_BYTES)).await.unwrap();
        let (put, ()) = tokio::join!(outlet.put(text(1)), async {
            yield_now().await;
            drop(driver);
        });
        assert!(put.is_err());
    }
}
