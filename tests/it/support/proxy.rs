//! The network between a service and its database, in the hand of the test.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::postgres::{Cluster, Database};
use super::within;

/// A TCP proxy, on a port of its own until it is dropped. It lets everything pass until it is switched.
pub struct Proxy {
    inner: Arc<Inner>,
    /// Bound and not listening: it keeps the port while nothing listens on it.
    _reserved: TcpSocket,
    serving: tokio::task::JoinHandle<()>,
}

struct Inner {
    address: SocketAddr,
    target: String,
    mode: watch::Sender<Mode>,
    listens: watch::Sender<bool>,
    open: Mutex<Connections>,
    stranded: Mutex<Vec<Connections>>,
    accepted: AtomicUsize,
}

/// The connections that are reset together.
#[derive(Default)]
struct Connections {
    end: CancellationToken,
    /// Nothing arrives any more, whatever the mode.
    strand: CancellationToken,
    tasks: TaskTracker,
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Pass,
    /// They arrive that much later, in either direction.
    Delay(Duration),
    /// They are held, in either direction, as are the ends of streams.
    HalfOpen,
    /// What the database says is lost.
    Deaf,
    /// The answer that holds these bytes is lost, and its connection with it; then everything passes, or nothing listens.
    Lose {
        with: &'static str,
        then_cut: bool,
    },
    /// Nothing listens.
    Cut,
}

/// A direction.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    There,
    Back,
}

impl Proxy {
    /// A proxy in front of a server.
    pub fn start(cluster: &Cluster) -> Self {
        Self::to(cluster.address())
    }

    /// A proxy in front of what listens there.
    pub fn to(target: String) -> Self {
        let reserved = socket((std::net::Ipv4Addr::LOCALHOST, 0).into());
        let address = reserved.local_addr().unwrap();
        let inner = Arc::new(Inner {
            address,
            target,
            mode: watch::Sender::new(Mode::Pass),
            listens: watch::Sender::new(true),
            open: Mutex::default(),
            stranded: Mutex::default(),
            accepted: AtomicUsize::new(0),
        });
        let serving = tokio::spawn(Arc::clone(&inner).serve(listen(address)));
        Self { inner, _reserved: reserved, serving }
    }

    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The database's URL by way of this proxy.
    pub fn url(&self, database: &Database) -> String {
        let mut url = Url::parse(&database.url).unwrap();
        url.set_ip_host(self.address().ip()).unwrap();
        url.set_port(Some(self.address().port())).unwrap();
        url.into()
    }

    /// How many connections it has taken.
    pub fn accepted(&self) -> usize {
        self.inner.accepted.load(Ordering::Relaxed)
    }

    /// Everything passes; what was held is forwarded now.
    pub async fn pass(&self) {
        self.switch(Mode::Pass).await;
    }

    /// Everything arrives that much later, in either direction.
    pub async fn delay(&self, each_way: Duration) {
        self.switch(Mode::Delay(each_way)).await;
    }

    /// Connections stay open, new ones are taken, and no byte arrives anywhere: a cable that was pulled.
    pub async fn half_open(&self) {
        self.switch(Mode::HalfOpen).await;
    }

    /// The database hears everything, and nobody hears it. What it said is lost: end it by [`Proxy::cut`] or [`Proxy::reset_once`].
    pub async fn deaf(&self) {
        self.switch(Mode::Deaf).await;
    }

    /// Resets all connections and refuses new ones. When it returns none is left.
    pub async fn cut(&self) {
        self.switch(Mode::Cut).await;
        self.reset().await;
    }

    /// Resets all connections; new ones pass.
    pub async fn reset_once(&self) {
        // Who comes meanwhile waits, and loses nothing.
        self.switch(Mode::HalfOpen).await;
        self.reset().await;
        self.switch(Mode::Pass).await;
    }

    /// Nothing arrives any more on the connections that are open now, and nobody tells either side; new ones pass. What a way
    /// through the network does that was forgotten, or a server whose address another one has taken over.
    pub async fn strand(&self) {
        // Who comes meanwhile is not stranded.
        self.switch(Mode::HalfOpen).await;
        let connections = std::mem::take(&mut *self.inner.open.lock().unwrap());
        connections.strand.cancel();
        self.inner.stranded.lock().unwrap().push(connections);
        self.switch(Mode::Pass).await;
    }

    /// Waits for the database's next answer that holds these bytes and loses it, with its connection: with `COMMIT`, the next
    /// transaction is committed and its client does not learn of it. Everything else passes.
    pub async fn lose_answer(&self, with: &'static str) {
        self.lose(with, false).await;
    }

    /// As [`Proxy::lose_answer`], and from that moment on as [`Proxy::cut`]: so that nobody can ask what became of it.
    pub async fn lose_answer_and_cut(&self, with: &'static str) {
        self.lose(with, true).await;
        self.cut().await;
    }

    async fn lose(&self, with: &'static str, then_cut: bool) {
        let losing = Mode::Lose { with, then_cut };
        self.switch(losing).await;
        let mut mode = self.inner.mode.subscribe();
        within("the answer that is to be lost", mode.wait_for(|mode| *mode != losing)).await.unwrap();
    }

    /// Returns when a connection that comes now finds what the mode says.
    async fn switch(&self, mode: Mode) {
        self.inner.mode.send_replace(mode);
        let mut listens = self.inner.listens.subscribe();
        within("the proxy", listens.wait_for(|listens| *listens == (mode != Mode::Cut))).await.unwrap();
    }

    async fn reset(&self) {
        let connections = std::mem::take(&mut *self.inner.open.lock().unwrap());
        connections.end.cancel();
        connections.tasks.close();
        within("the connections to end", connections.tasks.wait()).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
        self.inner.open.lock().unwrap().end.cancel();
        self.inner.stranded.lock().unwrap().iter().for_each(|connections| connections.end.cancel());
    }
}

fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

fn listen(address: SocketAddr) -> TcpListener {
    socket(address).listen(1024).unwrap()
}

impl Inner {
    async fn serve(self: Arc<Self>, first: TcpListener) {
        let (mut listener, mut mode) = (first, self.mode.subscribe());
        loop {
            tokio::select! {
                biased;
                () = async { drop(mode.wait_for(|mode| *mode == Mode::Cut).await) } => {
                    // The kernel refuses from now on, and resets what waited to be taken.
                    drop(listener);
                    self.listens.send_replace(false);
                    drop(mode.wait_for(|mode| *mode != Mode::Cut).await);
                    listener = listen(self.address);
                    self.listens.send_replace(true);
                }
                accepted = listener.accept() => {
                    let (client, _) = accepted.unwrap();
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                    let open = self.open.lock().unwrap();
                    let (end, strand) = (open.end.clone(), open.strand.clone());
                    open.tasks.spawn(Arc::clone(&self).connection(client, end, strand));
                }
            }
        }
    }

    /// Ends in a reset on both sides, unless both had said that they are done.
    async fn connection(
        self: Arc<Self>,
        mut client: TcpStream,
        end: CancellationToken,
        strand: CancellationToken,
    ) {
        let Ok(mut server) = TcpStream::connect(&self.target).await else {
            return drop(client.set_zero_linger());
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let done = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let both = async {
                tokio::try_join!(
                    self.pump(Way::There, from_client, to_server, &strand),
                    self.pump(Way::Back, from_server, to_client, &strand)
                )
            };
            tokio::select! {
                biased;
                () = end.cancelled() => false,
                done = both => done.is_ok(),
            }
        };
        if !done {
            for stream in [client, server] {
                drop(stream.set_zero_linger());
            }
        }
    }

    /// Carries bytes one way. They are read as they come, so that each is late by the delay and not by those before it.
    async fn pump(
        &self,
        way: Way,
        mut from: ReadHalf<'_>,
        to: WriteHalf<'_>,
        strand: &CancellationToken,
    ) -> io::Result<()> {
        let (taken, arriving) = mpsc::channel(64);
        let take = async {
            let taken = taken;
            loop {
                let mut bytes = vec![0; 64 << 10];
                let count = from.read(&mut bytes).await;
                bytes.truncate(*count.as_ref().unwrap_or(&0));
                let over = bytes.is_empty();
                let late = taken.send((Instant::now(), count.map(|_| bytes))).await;
                if over || late.is_err() {
                    return Ok(());
                }
            }
        };
        tokio::try_join!(take, self.give(way, arriving, to, strand)).map(|_| ())
    }

    async fn give(
        &self,
        way: Way,
        mut arriving: mpsc::Receiver<(Instant, io::Result<Vec<u8>>)>,
        mut to: WriteHalf<'_>,
        strand: &CancellationToken,
    ) -> io::Result<()> {
        let mut mode = self.mode.subscribe();
        while let Some((at, bytes)) = arriving.recv().await {
            let now = *mode.borrow();
            if let Mode::Delay(late) = now {
                tokio::time::sleep_until(at + late).await;
            }
            // A connection that is to be cut is held meanwhile.
            let moves = |mode: &Mode| !matches!(mode, Mode::HalfOpen | Mode::Cut);
            let now = *mode.wait_for(moves).await.map_err(io::Error::other)?;
            if strand.is_cancelled() {
                return std::future::pending().await;
            }
            let bytes = bytes?;
            match now {
                Mode::Deaf if way == Way::Back => continue,
                Mode::Lose { with, then_cut } if way == Way::Back && holds(&bytes, with) => {
                    // One answer is lost, and no more.
                    let is_first = self.mode.send_if_modified(|mode| {
                        let unchanged = *mode == now;
                        if unchanged {
                            *mode = if then_cut { Mode::Cut } else { Mode::Pass };
                        }
                        unchanged
                    });
                    if is_first {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                }
                _ => {}
            }
            if bytes.is_empty() {
                to.shutdown().await?;
            } else {
                to.write_all(&bytes).await?;
            }
        }
        Ok(())
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
