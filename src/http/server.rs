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
