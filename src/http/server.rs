//! The accept loop: HTTP/1.1 with a bound on everything that a client could hold on to.
//!
//! A connection has 10 s for a request's head, which is also how long it may idle between requests; a socket that takes nothing
//! for 30 s is closed; there is a cap on connections. Errors of accepting (too many open files, say) never end the loop.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The bounds.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long a client has for the head of a request, and how long it may idle between two.
    pub head_timeout: Duration,
    /// How large the head may be, in bytes.
    pub head_max_bytes: usize,
    /// How long a socket may take nothing while there is something for it.
    pub write_timeout: Duration,
    /// Most connections at once; more wait in the listener's queue.
    pub max_connections: usize,
    /// How long requests have to finish when the server goes down.
    pub grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            head_max_bytes: 16 * 1024,
            write_timeout: Duration::from_secs(30),
            max_connections: 10_000,
            grace: Duration::from_secs(10),
        }
    }
}

/// How long the loop rests when accepting fails: what it lacks may be there again then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled, then takes no more connections, lets requests finish within the grace, and cuts the rest.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServerOptions,
    shutdown: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(options.max_connections));
    let graceful = GracefulShutdown::new();
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((socket, permit)) = accepted else { continue };
        let connection = Connection { router: router.clone(), watcher: graceful.watcher(), _permit: permit };
        connections.spawn(connection.run(socket, options.clone(), cut.clone()));
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(options.grace) => cut.cancel(),
    }
    connections.wait().await;
}

/// The next connection, when there is room for one; `None` when accepting failed.
async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((socket, _)) => Some((socket, permit)),
        Err(error) => {
            tracing::warn!(%error, "a connection was not accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

struct Connection {
    router: Router,
    watcher: Watcher,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, socket: TcpStream, options: ServerOptions, cut: CancellationToken) {
        // Small frames of a stream go out at once. A socket that refuses is about to fail anyway.
        let _ = socket.set_nodelay(true);
        let mut socket = TimeoutStream::new(socket);
        socket.set_write_timeout(Some(options.write_timeout));
        let io: Pin<Box<TimeoutStream<TcpStream>>> = Box::pin(socket);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.head_timeout)
            .max_header_size(options.head_max_bytes)
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(self.router));
        tokio::select! {
            ended = self.watcher.watch(connection) => {
                if let Err(error) = ended {
                    // Clients go away as they please.
                    tracing::debug!(%error, "a connection ended early");
                }
            }
            () = cut.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::future::pending;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    struct Running {
        address: SocketAddr,
        shutdown: CancellationToken,
        server: JoinHandle<()>,
    }

    async fn run(options: ServerOptions) -> Running {
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/never", get(async || pending::<()>().await))
            .route("/large", get(async || vec![b'x'; 64 * 1024 * 1024]));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router, options, shutdown.clone()));
        Running { address, shutdown, server }
    }

    fn quick() -> ServerOptions {
        let soon = Duration::from_millis(50);
        ServerOptions { head_timeout: soon, write_timeout: soon, grace: soon, ..ServerOptions::default() }
    }

    impl Running {
        async fn open(&self, request: &str) -> TcpStream {
            let mut socket = TcpStream::connect(self.address).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            socket
        }

        /// Everything that comes until the server closes.
        async fn answer(&self, request: &str) -> String {
            let mut socket = self.open(request).await;
            let mut bytes = Vec::new();
            let read = timeout(Duration::from_secs(10), socket.read_to_end(&mut bytes)).await;
            // A reset is a close as well.
            let _ = read.expect("the server closes in time");
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    const HELLO: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn a_request_is_answered() {
        let running = run(ServerOptions::default()).await;
        assert!(running.answer(HELLO).await.ends_with("hello"));
    }

    #[tokio::test]
    async fn sec_20_half_a_head_an_idle_connection_and_a_large_head_are_closed() {
        let running = run(quick()).await;
        assert_eq!(running.answer("GET / HT").await, "");
        assert_eq!(running.answer("").await, "");
        assert!(running.answer("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.ends_with("hello"));
        let large = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
        assert!(running.answer(&large).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn sec_21_what_could_be_read_in_two_ways_is_refused() {
        let running = run(ServerOptions::default()).await;
        for (head, body) in [
            ("content-length: +5", "hello"),
            ("content-length: 5\r\ncontent-length: 6", "hello"),
            ("content-length: 5, 6", "hello"),
            ("transfer-encoding: gzip", "hello"),
            ("x: a\r\n b", ""),
            ("transfer-encoding : chunked", "0\r\n\r\n"),
        ] {
            let answer = running.answer(&format!("POST / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n{body}")).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{head}");
        }
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_let_go() {
        let options = ServerOptions { max_connections: 1, ..quick() };
        let running = run(options).await;
        let _stuck = running.open("GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
        // The only place is free again when the stuck one has been closed.
        assert!(running.answer(HELLO).await.ends_with("hello"));
    }

    #[tokio::test]
    async fn going_down_cuts_what_does_not_finish_within_the_grace() {
        let running = run(quick()).await;
        let mut open = running.open("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(running.answer(HELLO).await.ends_with("hello"));
        running.shutdown.cancel();
        timeout(Duration::from_secs(10), running.server).await.unwrap().unwrap();
        assert_eq!(open.read(&mut [0; 16]).await.unwrap_or(0), 0);
        assert!(TcpStream::connect(running.address).await.is_err());
    }
}
