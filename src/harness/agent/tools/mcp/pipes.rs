//! A server's two pipes: a message is a line, none longer than a limit, none in memory beyond it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::harness::child::{LINE_MAX_BYTES, Line, Lines, is_too_wide};

/// How long a server may take to read a message.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Pipes<R, W> {
    lines: Lines<R>,
    // None once nothing can be written any more.
    stdin: Arc<Mutex<Option<W>>>,
    said_too_much: Arc<AtomicBool>,
}

impl<R: AsyncRead + Unpin, W> Pipes<R, W> {
    pub(super) fn new(stdout: R, stdin: W) -> Self {
        let stdin = Arc::new(Mutex::new(Some(stdin)));
        Self { lines: Lines::new(stdout, LINE_MAX_BYTES), stdin, said_too_much: Arc::default() }
    }

    /// Tells, when nothing comes any more, whether that is because a message was beyond a limit.
    pub(super) fn said_too_much(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.said_too_much)
    }
}

impl<R, W> Transport<RoleClient> for Pipes<R, W>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let stdin = Arc::clone(&self.stdin);
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut stdin = stdin.lock().await;
            let pipe = stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            let written = timeout(WRITE_DEADLINE, pipe.write_all(&line)).await;
            let written = written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            if written.is_err() {
                // A part of it may be written, so nothing can follow.
                *stdin = None;
            }
            written
        }
    }

    // Nothing is lost when the future is dropped: there is one place to wait, and no line before that.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            match self.lines.next().await {
                Ok(Line::Whole(line)) if !is_too_wide(&line) => match serde_json::from_slice(&line) {
                    Ok(message) => return Some(message),
                    // Some servers greet on stdout.
                    Err(_) => continue,
                },
                Ok(Line::Whole(_) | Line::TooLong) => {
                    self.said_too_much.store(true, Ordering::Relaxed);
                    return None;
                }
                Ok(Line::End) | Err(_) => return None,
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.stdin.lock().await.take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::JsonRpcMessage;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const ANSWER: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";

    #[tokio::test]
    async fn what_is_no_message_is_passed_over() {
        let text = format!("Welcome\n\n[1]\n{{\n{ANSWER}half");
        let mut pipes = Pipes::new(text.as_bytes(), tokio::io::sink());
        assert!(matches!(pipes.receive().await, Some(JsonRpcMessage::Response(_))));
        assert!(pipes.receive().await.is_none() && !pipes.said_too_much().load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_or_holds_too_much_is_the_end() {
        let mut pipes = Pipes::new(tokio::io::repeat(b'x'), tokio::io::sink());
        assert!(pipes.receive().await.is_none() && pipes.said_too_much().load(Ordering::Relaxed));
        let wide = format!("{{\"id\":1,\"result\":[{}0]}}\n{ANSWER}", "0,".repeat(200_000));
        let mut pipes = Pipes::new(wide.as_bytes(), tokio::io::sink());
        assert!(pipes.receive().await.is_none() && pipes.said_too_much().load(Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_read_is_given_up_at_the_deadline() {
        let (pipe, mut other) = tokio::io::duplex(16);
        let mut pipes = Pipes::new(tokio::io::empty(), pipe);
        let ping = || {
            let text = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
            serde_json::from_str::<TxJsonRpcMessage<RoleClient>>(text).unwrap()
        };
        assert_eq!(pipes.send(ping()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(pipes.send(ping()).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut text = String::new();
        other.read_to_string(&mut text).await.unwrap();
        assert_eq!(text.len(), 16);
    }
}
