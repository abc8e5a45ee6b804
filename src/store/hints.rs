//! Hints between processes: which sessions were changed just now. Nothing depends on them: what a hint does not say, the next look
//! at the table does. They go out in batches on a connection of their own, never in a transaction that writes: a NOTIFY makes
//! commits wait for each other.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::wakeup::Wakeups;
use crate::ids::{ReplicaId, SessionKey};

const CHANNEL: &str = "ostler_hints";
pub(super) const NOTIFY: &str = "SELECT pg_notify($1, message) FROM UNNEST($2) AS message";
/// The shortest time between two batches.
const GAP: Duration = Duration::from_millis(20);
/// How long a lost connection is left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// Most of one message, in bytes: PostgreSQL takes less than 8000.
const MESSAGE_MAX: usize = 7000;
/// Hints that wait to be looked at. Beyond it they are dropped: the table has it all.
const WAITING_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Waiting {
    keys: Mutex<HashSet<SessionKey>>,
    bell: Notify,
}

impl Waiting {
    fn take(&self) -> HashSet<SessionKey> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where a commit is noted for others to hear of. Without others, nothing is.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing(Option<Arc<Waiting>>);

impl Outgoing {
    pub(super) fn note(&self, session: SessionKey) {
        if let Some(waiting) = &self.0 {
            let first = {
                let mut keys = waiting.keys.lock().unwrap_or_else(PoisonError::into_inner);
                keys.insert(session);
                keys.len() == 1
            };
            if first {
                waiting.bell.notify_one();
            }
        }
    }
}

/// The sessions that other processes say they changed.
#[derive(Debug)]
pub(super) struct Incoming(tokio::sync::Mutex<mpsc::Receiver<SessionKey>>);

impl Incoming {
    /// Nobody says anything.
    pub(super) fn none() -> Self {
        Self(tokio::sync::Mutex::new(mpsc::channel(1).1))
    }

    /// Waits for the next one; for ever when nothing is to come.
    pub(super) async fn next(&self) -> SessionKey {
        match self.0.lock().await.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

/// Begins to exchange hints on connections of their own, until `closing`.
pub(super) fn exchange(
    options: PgConnectOptions,
    wakeups: Arc<Wakeups>,
    closing: CancellationToken,
) -> (Outgoing, Incoming) {
    let waiting = Arc::new(Waiting::default());
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    // Tells this process's own hints from those of others.
    let own = ReplicaId::mint().to_string();
    // No hint is worth a disk's time, nor a lock on the queue of hints that is held for so long.
    let speaking =
        speak(options.clone().options([("synchronous_commit", "off")]), Arc::clone(&waiting), own.clone());
    let listening = listen(options, own, wakeups, sender);
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            ((), ()) = async { tokio::join!(speaking, listening) } => {}
        }
    });
    (Outgoing(Some(waiting)), Incoming(tokio::sync::Mutex::new(receiver)))
}

async fn speak(options: PgConnectOptions, waiting: Arc<Waiting>, own: String) {
    let mut connection: Option<PgConnection> = None;
    loop {
        waiting.bell.notified().await;
        let messages = messages(&own, waiting.take());
        match say(&options, connection.take(), &messages).await {
            Ok(kept) => connection = Some(kept),
            Err(error) => {
                tracing::warn!(%error, "hints cannot be sent; others will find out by looking");
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::time::sleep(GAP).await;
    }
}

async fn say(
    options: &PgConnectOptions,
    connection: Option<PgConnection>,
    messages: &[String],
) -> sqlx::Result<PgConnection> {
    let saying = async {
        let mut connection = match connection {
            Some(connection) => connection,
            None => options.connect().await?,
        };
        sqlx::query(NOTIFY).bind(CHANNEL).bind(messages).execute(&mut connection).await?;
        Ok(connection)
    };
    let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(PAUSE * 5, saying).await.map_err(late)?
}

/// `<from> <key> <key> …`, in as many messages as it takes.
fn messages(own: &str, keys: HashSet<SessionKey>) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for key in keys {
        let word = format!(" {}", key.0);
        match messages.last_mut() {
            Some(last) if last.len() + word.len() <= MESSAGE_MAX => last.push_str(&word),
            _ => messages.push(format!("{own}{word}")),
        }
    }
    messages
}

/// The sessions that a message names; none when it is this process's own.
fn heard<'a>(message: &'a str, own: &str) -> impl Iterator<Item = SessionKey> + 'a {
    let mut words = message.split(' ');
    let foreign = words.next().is_some_and(|from| from != own);
    words.filter_map(move |word| word.parse().ok().filter(|_| foreign).map(SessionKey))
}

async fn listen(
    options: PgConnectOptions,
    own: String,
    wakeups: Arc<Wakeups>,
    sender: mpsc::Sender<SessionKey>,
) {
    loop {
        if let Err(error) = listen_once(&options, &own, &wakeups, &sender).await {
            tracing::warn!(%error, "hints are not heard; changes are found by looking");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen_once(
    options: &PgConnectOptions,
    own: &str,
    wakeups: &Wakeups,
    sender: &mpsc::Sender<SessionKey>,
) -> sqlx::Result<()> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    // `None`: the connection was lost, and with it whatever was said meanwhile.
    while let Some(notification) = listener.try_recv().await? {
        for key in heard(notification.payload(), own) {
            wakeups.wake_foreign(key, None);
            if sender.try_send(key).is_err() {
                tracing::debug!("hints come faster than they are followed; the rest is found by looking");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_by_others_and_not_by_oneself() {
        let keys: HashSet<SessionKey> = (0..2000).map(|n| SessionKey(i64::MAX - n)).collect();
        let messages = messages("me", keys.clone());
        assert!(messages.iter().all(|message| message.len() <= MESSAGE_MAX));
        let all: HashSet<SessionKey> = messages.iter().flat_map(|message| heard(message, "you")).collect();
        assert_eq!(all, keys);
        assert_eq!(messages.iter().flat_map(|message| heard(message, "me")).count(), 0);
        assert_eq!(heard("strange x 1", "me").collect::<Vec<_>>(), [SessionKey(1)]);
    }
}
