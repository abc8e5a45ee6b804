//! What we say to the agent: one writer with a deadline, and the requests that wait for their answers.
//!
//! The other direction is [`super::pump`]'s, which hands each answer to the one who waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::protocol::{RpcError, answer_line, notification_line, request_line};

/// So many messages wait for the writer; then the one who has another waits.
const QUEUE: usize = 32;
/// So many bytes wait at most, so that an agent which asks for files and does not read them does not fill the memory. One
/// message that is larger goes alone.
const QUEUE_BYTES: u32 = 4 << 20;

/// What the agent says to a request.
pub(super) type Outcome = Result<Value, RpcError>;

/// The agent cannot be reached: its process or its pipe is gone, or it does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// A request without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// Nobody answered.
    Gone,
    /// The agent answered with an error.
    Refused(RpcError),
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) enum Waiter {
    /// One of us.
    Reply(oneshot::Sender<Outcome>),
    /// One of us; with the answer the conversation is open, and what the agent puts out from then on counts.
    Open {
        /// The conversation that is taken up; `None` when it is a new one.
        session_id: Option<String>,
        /// Whether the instructions are still to be given.
        instructions_pending: bool,
        /// Gets the conversation's id and the whole answer.
        reply: oneshot::Sender<Result<(String, Value), RpcError>>,
    },
    /// The turn at work: the answer is its end.
    Prompt,
}

/// The way to the agent.
#[derive(Debug)]
pub(super) struct Connection {
    queue: mpsc::Sender<Outgoing>,
    room: Arc<Semaphore>,
    ids: AtomicU64,
    // None once nothing can be answered any more.
    waiting: Mutex<Option<HashMap<u64, Waiter>>>,
}

#[derive(Debug)]
struct Outgoing {
    line: Vec<u8>,
    written: oneshot::Sender<()>,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    /// Starts the writer. It closes the pipe when `closing` is cancelled, and cancels `broken` when the pipe fails or a
    /// message is not taken within the deadline: half of it may be written then, so nothing can follow.
    pub(super) fn new(
        pipe: impl AsyncWrite + Unpin + Send + 'static,
        deadline: Duration,
        closing: CancellationToken,
        broken: CancellationToken,
    ) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            let failed = closing.run_until_cancelled(write(pipe, messages, deadline)).await;
            if failed == Some(false) {
                broken.cancel();
            }
        });
        let room = Arc::new(Semaphore::new(QUEUE_BYTES as usize));
        Self { queue, room, ids: AtomicU64::new(1), waiting: Mutex::new(Some(HashMap::new())) }
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn request(&self, method: &str, params: &impl Serialize) -> Result<Value, CallError> {
        let (reply, answer) = oneshot::channel();
        self.call(method, params, Waiter::Reply(reply)).await.map_err(|Gone| CallError::Gone)?;
        answer.await.map_err(|_| CallError::Gone)?.map_err(CallError::Refused)
    }

    /// Sends a request and returns when it is written.
    pub(super) async fn call(
        &self,
        method: &str,
        params: &impl Serialize,
        waiter: Waiter,
    ) -> Result<(), Gone> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        self.lock().as_mut().ok_or(Gone)?.insert(id, waiter);
        let sent = self.send(request_line(id, method, params)).await;
        if sent.is_err() {
            self.answered(id);
        }
        sent
    }

    /// Sends a notification and returns when it is written.
    pub(super) async fn notify(&self, method: &str, params: &Value) -> Result<(), Gone> {
        self.send(notification_line(method, params)).await
    }

    /// Answers a request of the agent and returns when the answer is written.
    pub(super) async fn answer(&self, request_id: &Value, outcome: Outcome) -> Result<(), Gone> {
        self.send(answer_line(request_id, outcome)).await
    }

    /// Answers a request of the agent and returns when the answer is on its way. That it cannot arrive any more shows
    /// elsewhere.
    pub(super) async fn post_answer(&self, request_id: &Value, outcome: Outcome) {
        // The one who has gone does not hear that it was written.
        drop(self.put(answer_line(request_id, outcome)).await);
    }

    /// Takes the one who waits for this answer; `None` when nobody does.
    pub(super) fn answered(&self, id: u64) -> Option<Waiter> {
        self.lock().as_mut()?.remove(&id)
    }

    /// Tells all who wait that no answer comes, and those who ask later too.
    pub(super) fn give_up(&self) {
        self.lock().take();
    }

    async fn send(&self, line: Vec<u8>) -> Result<(), Gone> {
        self.put(line).await?.await.map_err(|_| Gone)
    }

    // Puts a line into the queue, once there is room; what it gives back is told when the line is written.
    async fn put(&self, line: Vec<u8>) -> Result<oneshot::Receiver<()>, Gone> {
        let bytes = u32::try_from(line.len()).unwrap_or(QUEUE_BYTES).min(QUEUE_BYTES);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| Gone)?;
        let (written, done) = oneshot::channel();
        let message = Outgoing { line, written, _room: room };
        self.queue.send(message).await.map_err(|_| Gone)?;
        Ok(done)
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, Waiter>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Whether all was written until nobody had anything more to say.
async fn write(
    mut pipe: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Outgoing>,
    deadline: Duration,
) -> bool {
    while let Some(Outgoing { line, written, _room }) = messages.recv().await {
        match timeout(deadline, pipe.write_all(&line)).await {
            // Nobody waits for an answer that is only posted.
            Ok(Ok(())) => drop(written.send(())),
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn connect(
        pipe: impl AsyncWrite + Unpin + Send + 'static,
    ) -> (Connection, CancellationToken, CancellationToken) {
        let (closing, broken) = (CancellationToken::new(), CancellationToken::new());
        let connection = Connection::new(pipe, Duration::from_millis(50), closing.clone(), broken.clone());
        (connection, closing, broken)
    }

    #[tokio::test]
    async fn a_message_that_is_not_read_breaks_the_connection_at_the_deadline() {
        let (pipe, _unread) = tokio::io::duplex(16);
        let (connection, _, broken) = connect(pipe);
        assert_eq!(connection.notify("m", &Value::from("x".repeat(100))).await, Err(Gone));
        broken.cancelled().await;
        assert_eq!(connection.request("m", &Value::Null).await, Err(CallError::Gone));
    }

    #[tokio::test]
    async fn closing_closes_the_pipe_and_is_no_failure() {
        let (pipe, mut other) = tokio::io::duplex(1024);
        let (connection, closing, broken) = connect(pipe);
        connection.notify("m", &Value::Null).await.unwrap();
        closing.cancel();
        let mut text = String::new();
        other.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("}\n") && text.contains("\"method\":\"m\""), "{text}");
        assert_eq!(connection.notify("m", &Value::Null).await, Err(Gone));
        assert!(!broken.is_cancelled());
    }

    #[tokio::test]
    async fn those_who_wait_hear_when_no_answer_can_come() {
        let (pipe, _other) = tokio::io::duplex(1024);
        let (connection, _closing, _broken) = connect(pipe);
        let (answer, ()) = tokio::join!(connection.request("m", &Value::Null), async {
            tokio::task::yield_now().await;
            connection.give_up();
        });
        assert_eq!(answer, Err(CallError::Gone));
        assert_eq!(connection.request("m", &Value::Null).await, Err(CallError::Gone));
    }
}
