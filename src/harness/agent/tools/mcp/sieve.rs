//! What we hear of a server: answers, and its questions as long as it reads what we say to them. Its notifications are of things
//! that we do not follow (progress, logs, changed lists), and a flood of them would go to the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::RoleClient;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;

/// So many questions of a server may be unanswered; more are not heard.
const QUESTIONS_MAX: usize = 16;

/// A way to a server.
pub(super) struct Sieve<T> {
    way: T,
    unanswered: Arc<AtomicUsize>,
}

impl<T> Sieve<T> {
    pub(super) fn new(way: T) -> Self {
        Self { way, unanswered: Arc::default() }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Sieve<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        let unanswered = Arc::clone(&self.unanswered);
        let sent = self.way.send(message);
        async move {
            let sent = sent.await;
            if is_answer {
                unanswered.fetch_sub(1, Ordering::Relaxed);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.way.receive().await?;
            match message {
                JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => return Some(message),
                JsonRpcMessage::Request(_) if self.unanswered.load(Ordering::Relaxed) < QUESTIONS_MAX => {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                    return Some(message);
                }
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.way.close().await
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ClientJsonRpcMessage, ClientResult, RequestId, ServerJsonRpcMessage};
    use serde_json::{Value, json};

    use super::*;

    /// Says what it was given, and takes everything.
    struct Script(Vec<Value>);

    impl Transport<RoleClient> for Script {
        type Error = std::io::Error;

        fn send(
            &mut self,
            _: TxJsonRpcMessage<RoleClient>,
        ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
            std::future::ready(Ok(()))
        }

        async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
            self.0.pop().map(|message| serde_json::from_value(message).unwrap())
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn notifications_are_not_heard_and_questions_only_while_they_are_answered() {
        let ping = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        let log = json!({
            "jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}
        });
        let mut script: Vec<Value> = (0..QUESTIONS_MAX + 5).map(ping).collect();
        script.push(log.clone());
        script.insert(0, json!({"jsonrpc": "2.0", "id": 9, "result": {}}));
        script.insert(0, log);
        let mut sieve = Sieve::new(Script(script));
        for _ in 0..QUESTIONS_MAX - 1 {
            assert!(matches!(sieve.receive().await, Some(JsonRpcMessage::Request(_))));
        }
        let answer = ClientJsonRpcMessage::response(ClientResult::empty(()), RequestId::Number(3));
        sieve.send(answer).await.unwrap();
        for _ in 0..2 {
            assert!(matches!(sieve.receive().await, Some(JsonRpcMessage::Request(_))));
        }
        assert!(matches!(sieve.receive().await, Some(ServerJsonRpcMessage::Response(_))));
        assert!(sieve.receive().await.is_none());
    }
}
