//! What every store does, whatever database it is on: each story is told once and tested on both.

use std::sync::Arc;

use ostler::clock::Timestamp;
use ostler::domain::agent_files::{AgentFiles, FilesDigest};
use ostler::domain::event::{EventBody, NewEvent, Output};
use ostler::domain::lease::Lease;
use ostler::domain::scope::{Role, Scope, permissions_of};
use ostler::domain::session::{Session, SessionState, StopCause, Transition};
use ostler::domain::turn::{Failure, Ordinal, Prompt, Turn, TurnStatus};
use ostler::ids::{KeyId, ReplicaId, SessionKey};
use ostler::store::{
    ApiKey, Change, Commit, NewReplica, OnceAnswer, OnceRow, OpenError, PageRequest, Seal, SessionFilter,
    SessionRef, SharedStore, Store, StoreError, StoreOptions, Takeover, TurnSet, TurnWrite,
};
use serde_json::json;
use sqlx::Connection as _;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::DEADLINE;
use crate::support::postgres::{Database, shared};

const AT: Timestamp = Timestamp(1_700_000_000_000);

/// Which database a story is told on.
#[derive(Clone, Copy)]
enum On {
    Sqlite,
    Postgres,
}

/// Where a store is: its database.
enum Place {
    Sqlite(TempDir),
    Postgres(Database),
}

struct Fixture {
    store: SharedStore,
    place: Place,
}

fn seal() -> Seal {
    Seal::new(vec![7; 32]).unwrap()
}

async fn fixture(on: On) -> Fixture {
    let place = match on {
        On::Sqlite => Place::Sqlite(tempfile::tempdir().unwrap()),
        On::Postgres => Place::Postgres(shared().await.database().await),
    };
    Fixture { store: place.open().await.unwrap(), place }
}

impl Place {
    fn url(&self) -> String {
        match self {
            Self::Sqlite(directory) => format!("sqlite:{}", directory.path().join("ostler.db").display()),
            Self::Postgres(database) => database.url.clone(),
        }
    }

    async fn open(&self) -> Result<SharedStore, OpenError> {
        let options = StoreOptions::from_url(&self.url()).unwrap();
        // No heart beats here: the replicas of a story outlive the slowest machine.
        let options = StoreOptions { replica_ttl: DEADLINE * 10, ..options };
        ostler::store::open(&options, seal()).await
    }

    /// Runs SQL beside the store: what a foreign hand would do.
    async fn tamper(&self, sql: &'static str) {
        match self {
            Self::Sqlite(_) => {
                let mut connection = sqlx::SqliteConnection::connect(&self.url()).await.unwrap();
                sqlx::query(sql).execute(&mut connection).await.unwrap();
            }
            Self::Postgres(database) => database.execute(sql).await,
        }
    }

    /// What somebody finds who has the database and not the key.
    async fn resume_states(&self) -> Vec<u8> {
        self.sealed("SELECT string_agg(resume_state, '') FROM agent_harness_sessions").await
    }

    async fn agent_files(&self) -> Vec<u8> {
        self.sealed("SELECT string_agg(content, '') FROM agent_files").await
    }

    async fn sealed(&self, all: &'static str) -> Vec<u8> {
        match self {
            Self::Sqlite(directory) => std::fs::read(directory.path().join("ostler.db-wal")).unwrap(),
            Self::Postgres(database) => {
                sqlx::query_scalar(all).fetch_one(&mut database.connect().await).await.unwrap()
            }
        }
    }
}

fn session(org: &str, owner: &str) -> Session {
    Session::new(SessionKey::mint().unwrap(), org.into(), owner.into(), "demo".into(), AT)
}

fn turn(ordinal: i64) -> Turn {
    Turn::queued(Ordinal(ordinal), Prompt::Text("x".into()), AT)
}

fn text(words: &str) -> NewEvent {
    NewEvent { turn: None, at: AT, body: EventBody::Output(Output::TextDelta { text: words.into() }) }
}

fn org(org: &str) -> Scope {
    Scope::Org { org: org.into() }
}

fn own(org: &str, owner: &str) -> Scope {
    Scope::Own { org: org.into(), owner: owner.into() }
}

async fn create(store: &dyn Store, session: &Session) {
    assert_eq!(store.commit(Change::create(session.clone())).await.unwrap(), Commit::Done);
}

/// A replica that lives.
async fn replica(store: &dyn Store) -> ReplicaId {
    let id = ReplicaId::mint();
    store.register_replica(&NewReplica { id: id.clone(), version: "1" }).await.unwrap();
    id
}

/// The session in the hands of a new replica.
async fn held(store: &dyn Store, session: &Session) -> Lease {
    let replica = replica(store).await;
    store.claim(session.key, &replica, None).await.unwrap().unwrap()
}

async fn reread(store: &dyn Store, session: &Session) -> Session {
    store.find_session_by_key(session.key).await.unwrap().unwrap()
}

async fn seqs(store: &dyn Store, session: &Session) -> Vec<i64> {
    store.list_events(session.key, 0, 100_000).await.unwrap().events.iter().map(|event| event.seq).collect()
}

async fn row_1_a_session_reads_back_as_it_was_written(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let written = Session {
        thread_id: Some("t1".into()),
        metadata: [("k".to_owned(), "v".to_owned())].into(),
        instructions: Some("be brief".into()),
        settings: json!({"token_delay_ms": 0}),
        ..session("o1", "alice")
    };
    create(store.as_ref(), &written).await;
    assert_eq!(reread(store.as_ref(), &written).await, written);
}

async fn rows_2_and_3_a_change_sets_what_it_names_and_leaves_the_rest(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.set.resume_state = Some(Some(Arc::new(json!({"t": 1}))));
    store.commit(change).await.unwrap();
    let mut change = Change::of(&reread(store.as_ref(), &new).await, AT);
    change.set.title = Some("other".into());
    store.commit(change).await.unwrap();
    assert_eq!(store.find_resume_state(new.key).await.unwrap(), Some(json!({"t": 1})));
    let mut change = Change::of(&reread(store.as_ref(), &new).await, AT);
    change.set.resume_state = Some(None);
    store.commit(change).await.unwrap();
    let after = reread(store.as_ref(), &new).await;
    assert_eq!(store.find_resume_state(new.key).await.unwrap(), None);
    assert_eq!((after.title.as_str(), after.has_resume_state), ("other", false));
}

async fn row_4_a_change_of_a_session_that_is_not_there_makes_none(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let absent = session("o1", "alice");
    assert_eq!(store.commit(Change::of(&absent, AT)).await.unwrap(), Commit::Stale);
    assert!(store.find_session_by_key(absent.key).await.unwrap().is_none());
}

async fn rows_5_and_6_a_failed_session_has_its_time_and_a_follow_up_forgets_it(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let failed = SessionState::Errored { failure: Failure::new("harness_failed", "no"), at: AT };
    let mut change = Change::of(&new, AT);
    change.set.state = Some(failed.clone());
    store.commit(change).await.unwrap();
    let errored = reread(store.as_ref(), &new).await;
    assert_eq!(errored.state, failed);
    let mut change = Change::of(&errored, AT);
    change.turns.push(TurnWrite::Insert { turn: Box::new(turn(1)), urgent: false });
    change.set.state = Some(failed.apply(Transition::Queue { turn: Ordinal(1) }).unwrap());
    store.commit(change).await.unwrap();
    assert_eq!(reread(store.as_ref(), &new).await.state, SessionState::Running { turn: Ordinal(1) });
}

async fn rows_7_and_8_a_list_is_scoped_before_it_is_cut_and_goes_on_page_by_page(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let mine: Vec<Session> = (0..3).map(|_| session("o1", "alice")).collect();
    for session in &mine {
        create(store.as_ref(), session).await;
    }
    for _ in 0..60 {
        create(store.as_ref(), &session("o2", "alice")).await;
    }
    let filter = SessionFilter::default();
    let page = |before| PageRequest { limit: 2, before };
    let first = store.list_sessions(&own("o1", "alice"), &filter, page(None)).await.unwrap();
    let ids: Vec<_> = first.rows.iter().map(|session| session.id.clone()).collect();
    assert_eq!((ids, first.more), (vec![mine[2].id.clone(), mine[1].id.clone()], true));
    let rest =
        store.list_sessions(&own("o1", "alice"), &filter, page(Some(mine[1].id.clone()))).await.unwrap();
    assert_eq!((rest.rows[0].id.clone(), rest.rows.len(), rest.more), (mine[0].id.clone(), 1, false));
}

async fn sec_08_each_principal_sees_just_its_own_page_by_page(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let mut expected = std::collections::BTreeMap::<(String, String), usize>::new();
    for (o, w, s) in (0..5).flat_map(|o| (0..4).flat_map(move |w| (0..3).map(move |s| (o, w, s)))) {
        let (o, w) = (format!("o{o}"), format!("w{w}"));
        let _ = s;
        create(store.as_ref(), &session(&o, &w)).await;
        *expected.entry((o, w)).or_default() += 1;
    }
    for ((o, w), count) in expected {
        let (mut seen, mut before) = (0, None);
        loop {
            let page = PageRequest { limit: 2, before };
            let page = store.list_sessions(&own(&o, &w), &SessionFilter::default(), page).await.unwrap();
            assert!(page.rows.iter().all(|session| session.org_id == o && session.owner_id == w));
            seen += page.rows.len();
            before = page.rows.last().map(|session| session.id.clone());
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, count);
    }
}

async fn row_10_the_latest_of_a_thread_is_not_a_destroyed_one(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let in_thread = || Session { thread_id: Some("t".into()), ..session("o1", "alice") };
    let (older, newer) = (in_thread(), in_thread());
    create(store.as_ref(), &older).await;
    create(store.as_ref(), &newer).await;
    let mut change = Change::of(&newer, AT);
    change.set.state = Some(SessionState::Destroyed { at: AT });
    store.commit(change).await.unwrap();
    let filter = SessionFilter { thread_id: Some("t".into()), alive: true, ..SessionFilter::default() };
    let page =
        store.list_sessions(&org("o1"), &filter, PageRequest { limit: 1, before: None }).await.unwrap();
    assert_eq!(page.rows[0].id, older.id);
}

async fn row_11_a_run_id_is_unique_in_its_org_and_free_in_others(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let named = |org: &str, owner: &str| Session { run_id: "job-1".into(), ..session(org, owner) };
    let first = named("o1", "alice");
    create(store.as_ref(), &first).await;
    let again = store.commit(Change::create(named("o1", "bob"))).await.unwrap();
    assert_eq!(again, Commit::RunExists);
    create(store.as_ref(), &named("o2", "bob")).await;
    let found = store.find_session(&org("o1"), &SessionRef::Run("job-1".into())).await.unwrap().unwrap();
    assert_eq!((found.id, found.owner_id.as_str()), (first.id, "alice"));
}

async fn row_12_a_session_is_found_in_its_scope_and_in_no_other(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let hers = session("o1", "alice");
    create(store.as_ref(), &hers).await;
    let by_id = SessionRef::Id(hers.id.clone());
    let by_run = SessionRef::Run(hers.run_id.clone());
    for reference in [by_id, by_run] {
        for (scope, found) in [
            (own("o1", "alice"), true),
            (org("o1"), true),
            (own("o1", "bob"), false),
            (own("o2", "alice"), false),
            (org("o2"), false),
        ] {
            let row = store.find_session(&scope, &reference).await.unwrap();
            assert_eq!(row.is_some(), found, "{scope:?}");
        }
    }
}

async fn row_13_an_unknown_status_and_broken_json_are_errors_that_name_the_place_and_others_are_read_on(
    on: On,
) {
    let fixture = fixture(on).await;
    let store = fixture.store.as_ref();
    let (bad, good) = (session("o1", "alice"), session("o1", "alice"));
    create(store, &bad).await;
    fixture.place.tamper("UPDATE agent_harness_sessions SET metadata = '{broken'").await;
    create(store, &good).await;
    let error = store.find_session_by_key(bad.key).await.unwrap_err();
    let StoreError::Corrupt { table, column, row, .. } = &error else { panic!("{error}") };
    assert_eq!(
        (*table, column.as_str(), row.as_str()),
        ("agent_harness_sessions", "metadata", bad.id.as_str())
    );
    assert_eq!(reread(store, &good).await.id, good.id);
}

async fn a_stale_change_and_one_without_the_lease_change_nothing(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let one = replica(store.as_ref()).await;
    assert!(store.claim(new.key, &ReplicaId::mint(), None).await.unwrap().is_none(), "nobody knows that one");
    let lease = store.claim(new.key, &one, None).await.unwrap().unwrap();
    let two = replica(store.as_ref()).await;
    assert!(store.claim(new.key, &two, None).await.unwrap().is_none(), "it is held");
    assert_eq!(
        store.commit(Change::of(&new, AT)).await.unwrap(),
        Commit::Stale,
        "the claim changed the version"
    );
    let held = reread(store.as_ref(), &new).await;
    let takeover = Takeover { from: &one, event: text("taken over") };
    let taken_over = store.claim(new.key, &two, Some(takeover)).await.unwrap().unwrap();
    assert_eq!(taken_over.epoch(), lease.epoch() + 1);
    let now = reread(store.as_ref(), &new).await;
    let zombie = Session { version: now.version, ..held };
    let mut change = Change::held(&zombie, &lease, AT);
    change.events.push(text("from the grave"));
    assert_eq!(store.commit(change).await.unwrap(), Commit::Stale, "row 71: the epoch fences it");
    let late = store.append(lease.reference(), vec![text("late words")]).await;
    assert!(matches!(late, Err(StoreError::LeaseLost)), "{late:?}");
    assert_eq!(seqs(store.as_ref(), &new).await, [1], "of all this, the takeover alone is in the log");
    let mut change = Change::held(&now, &taken_over, AT);
    change.set.release = true;
    assert_eq!(store.commit(change).await.unwrap(), Commit::Done);
    assert_eq!(reread(store.as_ref(), &new).await.holder, None);
}

async fn of_many_claimers_one_gets_the_session(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let replica = replica(store.as_ref()).await;
    let claims = (0..32).map(|_| {
        let (store, key, replica) = (Arc::clone(&store), new.key, replica.clone());
        tokio::spawn(async move { store.claim(key, &replica, None).await.unwrap().is_some() })
    });
    let mut won = 0;
    for claim in claims.collect::<Vec<_>>() {
        won += usize::from(claim.await.unwrap());
    }
    assert_eq!(won, 1);
}

async fn events_of_many_writers_are_numbered_without_a_hole(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let sessions: Vec<Session> = (0..8).map(|_| session("o1", "alice")).collect();
    for session in &sessions {
        create(store.as_ref(), session).await;
    }
    let mut writers = Vec::new();
    let replica = replica(store.as_ref()).await;
    let mut leases = Vec::new();
    for session in &sessions {
        leases.push(store.claim(session.key, &replica, None).await.unwrap().unwrap().reference());
    }
    for lease in leases.iter().flat_map(|lease| std::iter::repeat_n(*lease, 4)) {
        let store = Arc::clone(&store);
        writers.push(tokio::spawn(async move {
            for n in 0..25 {
                store.append(lease, vec![text(&format!("{n}")), text("and")]).await.unwrap();
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for session in &sessions {
        assert_eq!(seqs(store.as_ref(), session).await, (1..=200).collect::<Vec<i64>>());
    }
    assert!(
        store.writer_stats().commits < 32 * 25,
        "they were committed in groups: {:?}",
        store.writer_stats()
    );
}

/// Its hint is all that a reader waits for, so one who comes in the middle of a commit must not be left out.
async fn a_reader_who_comes_while_an_event_is_stored_finds_it_or_is_woken(on: On) {
    let f = fixture(on).await;
    let row = session("o", "alice");
    create(&*f.store, &row).await;
    let lease = held(&*f.store, &row).await.reference();
    for round in 0..500_i64 {
        let store = Arc::clone(&f.store);
        let storing = tokio::spawn(async move { store.append(lease, vec![text("x")]).await.unwrap() });
        // At a different moment of the commit each time.
        let moment = std::time::Instant::now();
        while moment.elapsed().as_micros() < u128::from(round.unsigned_abs()) * 37 % 1000 {
            std::hint::spin_loop();
        }
        let mut ear = f.store.subscribe(row.key);
        let found = async {
            while f.store.list_events(row.key, round, 1).await.unwrap().events.is_empty() {
                ear.changed().await;
            }
        };
        let found = tokio::time::timeout(std::time::Duration::from_secs(10), found).await;
        assert!(found.is_ok(), "nobody tells of event {}", round + 1);
        storing.await.unwrap();
    }
}

/// Of each kind that a session's row comes to be different by: a change, events alone, a claim and its end.
async fn what_is_read_is_never_older_than_what_is_acknowledged(on: On) {
    const ROUNDS: i64 = 60;
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut lease = held(store.as_ref(), &new).await;
    let done = CancellationToken::new();
    let readers: Vec<_> = (0..4)
        .map(|reader| {
            let (store, new, done) = (Arc::clone(&store), new.clone(), done.clone());
            tokio::spawn(async move {
                let (mut seen, mut reads) = ((0, 0), 0);
                while !done.is_cancelled() {
                    let found = match reader % 2 {
                        0 => store.find_session_by_key(new.key).await,
                        _ => store.find_session(&org("o1"), &SessionRef::Id(new.id.clone())).await,
                    };
                    let found = found.unwrap().unwrap();
                    let now = (found.version, found.last_event_seq);
                    assert!(now.0 >= seen.0 && now.1 >= seen.1, "{now:?} after {seen:?}");
                    (seen, reads) = (now, reads + 1);
                    tokio::task::yield_now().await;
                }
                reads
            })
        })
        .collect();
    let mut seq = 0;
    for round in 1..=ROUNDS {
        let mut change = Change::held(&reread(store.as_ref(), &new).await, &lease, AT);
        change.set.title = Some(round.to_string());
        change.events.push(text("changed"));
        assert_eq!(store.commit(change).await.unwrap(), Commit::Done);
        let after = reread(store.as_ref(), &new).await;
        assert_eq!((after.title, after.last_event_seq), (round.to_string(), seq + 1));
        store.append(lease.reference(), vec![text("and"), text("more")]).await.unwrap();
        seq += 3;
        assert_eq!(reread(store.as_ref(), &new).await.last_event_seq, seq);
        if round % 10 == 0 {
            let mut change = Change::held(&reread(store.as_ref(), &new).await, &lease, AT);
            change.set.release = true;
            assert_eq!(store.commit(change).await.unwrap(), Commit::Done);
            assert_eq!(reread(store.as_ref(), &new).await.holder, None);
            lease = held(store.as_ref(), &new).await;
            assert_eq!(reread(store.as_ref(), &new).await.holder.as_ref(), Some(lease.holder()));
        }
    }
    done.cancel();
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    store.purge_session(new.key).await.unwrap();
    assert_eq!(store.find_session_by_key(new.key).await.unwrap(), None);
    assert_eq!(store.find_session(&org("o1"), &SessionRef::Id(new.id.clone())).await.unwrap(), None);
}

async fn a_session_that_was_read_before_is_shown_to_nobody_else(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    reread(store.as_ref(), &new).await;
    for (scope, sees) in [
        (own("o1", "alice"), true),
        (org("o1"), true),
        (own("o1", "Alice"), false),
        (own("o2", "alice"), false),
        (org("o2"), false),
        (own("o1", ""), false),
    ] {
        let found = store.find_session(&scope, &SessionRef::Id(new.id.clone())).await.unwrap();
        assert_eq!(found.is_some(), sees, "{scope:?}");
    }
}

async fn a_change_and_its_events_are_kept_together_or_not_at_all(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.set.title = Some("never".into());
    // There is no such turn: the write finds no row, which undoes all of it.
    change.turns.push(TurnWrite::Update(TurnSet::status(Ordinal(9), TurnStatus::Running)));
    change.events.push(text("never"));
    assert!(matches!(store.commit(change).await, Err(StoreError::Mismatch { table: "turns", rows: 0 })));
    assert_eq!(reread(store.as_ref(), &new).await, new);
    let lease = held(store.as_ref(), &new).await;
    store.append(lease.reference(), vec![text("first")]).await.unwrap();
    assert_eq!(seqs(store.as_ref(), &new).await, [1], "the number that was not used is used now");
}

async fn one_bad_write_does_not_take_its_batch_with_it(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let sessions: Vec<Session> = (0..40).map(|_| session("o1", "alice")).collect();
    for session in &sessions {
        create(store.as_ref(), session).await;
    }
    let writes = sessions.iter().enumerate().map(|(n, session)| {
        let mut change = Change::of(session, AT);
        change.events.push(text("x"));
        if n % 2 == 0 {
            change.turns.push(TurnWrite::Update(TurnSet::status(Ordinal(9), TurnStatus::Running)));
        }
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.commit(change).await.is_ok() })
    });
    for (n, write) in writes.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(write.await.unwrap(), n % 2 == 1, "write {n}");
    }
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(seqs(store.as_ref(), session).await.len(), n % 2);
    }
}

async fn the_schema_refuses_a_state_that_contradicts_itself(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.set.state = Some(SessionState::AwaitingApproval { turn: Ordinal(1) });
    assert!(matches!(store.commit(change).await, Err(StoreError::Rejected(_))), "nothing waits");
    let mut change = Change::of(&new, AT);
    change.set.state = Some(SessionState::Stopped { cause: StopCause::User, at: AT });
    assert_eq!(store.commit(change).await.unwrap(), Commit::Done);
}

async fn turns_line_up_in_order_and_an_urgent_one_goes_first(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    for (ordinal, urgent) in [(1, false), (2, false), (3, true), (4, true)] {
        change.turns.push(TurnWrite::Insert { turn: Box::new(turn(ordinal)), urgent });
    }
    store.commit(change).await.unwrap();
    let queued = store.list_queued_turns(new.key, 10).await.unwrap();
    assert_eq!(queued.iter().map(|turn| turn.ordinal.0).collect::<Vec<_>>(), [3, 4, 1, 2]);
}

async fn a_turn_that_is_over_stays_over(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.turns.push(TurnWrite::Insert { turn: Box::new(turn(1)), urgent: false });
    change.turns.push(TurnWrite::Update(TurnSet {
        ended_at: Some(AT),
        ..TurnSet::status(Ordinal(1), TurnStatus::Cancelled)
    }));
    store.commit(change).await.unwrap();
    let mut change = Change::of(&reread(store.as_ref(), &new).await, AT);
    change.turns.push(TurnWrite::Update(TurnSet::status(Ordinal(1), TurnStatus::Running)));
    assert!(matches!(store.commit(change).await, Err(StoreError::Mismatch { .. })));
}

fn once(key: &str, session: &Session, answer: Option<OnceAnswer>) -> OnceRow {
    OnceRow {
        org: "o1".into(),
        space: "key".into(),
        key: key.into(),
        fingerprint: "f".into(),
        session: session.id.clone(),
        turn: None,
        approval: None,
        answer,
        at: AT,
    }
}

async fn an_idempotency_key_is_kept_with_its_effect_once_and_not_without_it(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let (first, second) = (session("o1", "alice"), session("o1", "alice"));
    let change = |session: &Session| Change {
        once: Some(once("k", session, None)),
        ..Change::create(session.clone())
    };
    assert_eq!(store.commit(change(&first)).await.unwrap(), Commit::Done);
    assert_eq!(store.commit(change(&second)).await.unwrap(), Commit::Repeated);
    assert!(store.find_session_by_key(second.key).await.unwrap().is_none());
    let clash = Session { run_id: first.run_id.clone(), ..session("o1", "alice") };
    let refused = Change { once: Some(once("other", &clash, None)), ..Change::create(clash.clone()) };
    assert_eq!(store.commit(refused).await.unwrap(), Commit::RunExists);
    assert_eq!(store.find_once("o1", "key", "other").await.unwrap(), None, "no effect, no key");
    let answer = OnceAnswer { status: 201, body: "{}".into() };
    store.finish_once("o1", "key", "k", answer.clone()).await.unwrap();
    let late = OnceAnswer { status: 500, body: "late".into() };
    store.finish_once("o1", "key", "k", late).await.unwrap();
    let seen = store.find_once("o1", "key", "k").await.unwrap().unwrap();
    assert_eq!(
        (seen.session.as_str(), seen.answer),
        (first.id.as_str(), Some(answer)),
        "the first answer stays"
    );
    assert_eq!(store.find_once("o2", "key", "k").await.unwrap(), None);
    assert_eq!(store.purge_once(Timestamp(AT.0 + 1)).await.unwrap(), 1);
}

async fn f31_a_resume_state_that_was_changed_or_moved_is_an_error_and_others_are_read_on(on: On) {
    let fixture = fixture(on).await;
    let store = fixture.store.as_ref();
    let (one, two) = (session("o1", "alice"), session("o2", "bob"));
    for (session, state) in [(&one, json!({"of": "one"})), (&two, json!({"of": "two"}))] {
        create(store, session).await;
        let mut change = Change::of(session, AT);
        change.set.resume_state = Some(Some(Arc::new(state)));
        store.commit(change).await.unwrap();
    }
    fixture
        .place
        .tamper(
            "UPDATE agent_harness_sessions SET resume_state =
                (SELECT resume_state FROM agent_harness_sessions WHERE org_id = 'o1') WHERE org_id = 'o2'",
        )
        .await;
    assert!(matches!(store.find_resume_state(two.key).await, Err(StoreError::Seal(_))));
    assert_eq!(store.find_resume_state(one.key).await.unwrap(), Some(json!({"of": "one"})));
    let bytes = fixture.place.resume_states().await;
    assert!(!bytes.is_empty());
    assert!(!bytes.windows(5).any(|window| window == b"\"one\""), "it is sealed");
}

async fn a_resume_state_that_is_too_large_is_refused_and_the_old_one_stays(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.set.resume_state = Some(Some(Arc::new(json!("x".repeat(17 << 20)))));
    assert!(matches!(store.commit(change).await, Err(StoreError::Seal(_))));
}

fn files(words: &str) -> AgentFiles {
    AgentFiles { digest: FilesDigest::of(words.as_bytes()), content: words.as_bytes().into() }
}

/// Stores an agent's files, or erases them, as the holder where there is a lease.
async fn put_files(
    store: &dyn Store,
    session: &Session,
    lease: Option<&Lease>,
    put: Option<AgentFiles>,
) -> Commit {
    let now = reread(store, session).await;
    let mut change = match lease {
        Some(lease) => Change::held(&now, lease, AT),
        None => Change::of(&now, AT),
    };
    change.set.agent_files = Some(put);
    store.commit(change).await.unwrap()
}

async fn an_agents_files_read_back_as_they_were_stored_last_until_they_are_erased(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let (store, new, other) = (store.as_ref(), session("o1", "alice"), session("o1", "alice"));
    create(store, &new).await;
    create(store, &other).await;
    assert_eq!(store.find_agent_files_digest(new.key).await.unwrap(), None);
    assert_eq!(store.find_agent_files(new.key).await.unwrap(), None);
    for stored in [files("one"), files("two"), files(&"x".repeat(3 << 20))] {
        assert_eq!(put_files(store, &new, None, Some(stored.clone())).await, Commit::Done);
        let digest = store.find_agent_files_digest(new.key).await.unwrap();
        assert_eq!(digest, Some((stored.digest.clone(), AT)));
        assert_eq!(store.find_agent_files(new.key).await.unwrap(), Some(stored));
    }
    put_files(store, &other, None, Some(files("other"))).await;
    let mut change = Change::of(&reread(store, &new).await, AT);
    change.set.title = Some("another".into());
    store.commit(change).await.unwrap();
    assert!(store.find_agent_files(new.key).await.unwrap().is_some(), "what a change does not name stays");
    put_files(store, &new, None, None).await;
    assert_eq!(put_files(store, &new, None, None).await, Commit::Done, "none are erased as well");
    assert_eq!(store.find_agent_files(new.key).await.unwrap(), None);
    assert_eq!(store.find_agent_files(other.key).await.unwrap(), Some(files("other")));
    store.purge_session(other.key).await.unwrap();
    assert_eq!(store.find_agent_files_digest(other.key).await.unwrap(), None);
}

async fn an_agents_files_are_stored_by_the_sessions_holder_alone_and_with_all_of_the_change_or_not(on: On) {
    let Fixture { store, place } = fixture(on).await;
    let (store, new) = (store.as_ref(), session("o1", "alice"));
    create(store, &new).await;
    let lost = held(store, &new).await;
    let mut release = Change::held(&reread(store, &new).await, &lost, AT);
    release.set.release = true;
    store.commit(release).await.unwrap();
    let lease = held(store, &new).await;
    assert_eq!(put_files(store, &new, Some(&lease), Some(files("mine"))).await, Commit::Done);
    assert_eq!(put_files(store, &new, Some(&lost), Some(files("late"))).await, Commit::Stale);
    let mut undone = Change::held(&reread(store, &new).await, &lease, AT);
    undone.set.agent_files = Some(Some(files("undone")));
    // There is no such turn.
    undone.turns.push(TurnWrite::Update(TurnSet::status(Ordinal(9), TurnStatus::Running)));
    assert!(matches!(store.commit(undone).await, Err(StoreError::Mismatch { .. })));
    assert_eq!(store.find_agent_files(new.key).await.unwrap(), Some(files("mine")));
    drop(place);
}

async fn f31_an_agents_files_that_were_changed_or_moved_are_an_error_and_others_are_read_on(on: On) {
    let fixture = fixture(on).await;
    let store = fixture.store.as_ref();
    let (one, two) = (session("o1", "alice"), session("o2", "bob"));
    for session in [&one, &two] {
        create(store, session).await;
        put_files(store, session, None, Some(files("words of one kind"))).await;
    }
    fixture
        .place
        .tamper(
            "UPDATE agent_files SET content = (SELECT f.content FROM agent_files f
                JOIN agent_harness_sessions s ON s.session_key = f.session_key WHERE s.org_id = 'o1')
             WHERE session_key = (SELECT session_key FROM agent_harness_sessions WHERE org_id = 'o2')",
        )
        .await;
    assert!(matches!(store.find_agent_files(two.key).await, Err(StoreError::Seal(_))));
    assert_eq!(store.find_agent_files(one.key).await.unwrap(), Some(files("words of one kind")));
    // What is sealed as the one is not opened as the other.
    let mut change = Change::of(&reread(store, &one).await, AT);
    change.set.resume_state = Some(Some(Arc::new(json!({}))));
    store.commit(change).await.unwrap();
    fixture
        .place
        .tamper(
            "UPDATE agent_harness_sessions SET resume_state = (SELECT f.content FROM agent_files f
                WHERE f.session_key = agent_harness_sessions.session_key) WHERE org_id = 'o1'",
        )
        .await;
    assert!(matches!(store.find_resume_state(one.key).await, Err(StoreError::Seal(_))));
    let sealed = fixture.place.agent_files().await;
    assert!(sealed.len() > 17 && !sealed.windows(5).any(|window| window == b"words"), "it is sealed");
}

async fn keys_are_kept_by_hash_found_listed_and_revoked_within_their_org(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    assert!(!store.has_keys().await.unwrap());
    let key = ApiKey {
        id: KeyId::mint(),
        org: "o1".into(),
        owner: Some("alice".into()),
        role: Role::Owner,
        permissions: permissions_of(Role::Owner, &[]).unwrap(),
        secret_hash: vec![1; 32],
        created_at: AT,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    store.insert_key(&key).await.unwrap();
    assert!(store.has_keys().await.unwrap());
    assert_eq!(store.find_key(&key.id).await.unwrap(), Some(key.clone()));
    let page = store.list_keys("o1", PageRequest { limit: 9, before: None }).await.unwrap();
    assert_eq!(page.rows, std::slice::from_ref(&key));
    assert!(!store.revoke_key("o2", &key.id, AT).await.unwrap());
    assert!(store.revoke_key("o1", &key.id, AT).await.unwrap());
    assert!(store.revoke_key("o1", &key.id, Timestamp(AT.0 + 9)).await.unwrap());
    assert_eq!(store.find_key(&key.id).await.unwrap().unwrap().revoked_at, Some(AT), "the first end counts");
}

async fn sec_15_a_ticket_is_taken_once_and_in_time(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let key = KeyId::mint();
    store.insert_ticket(b"one", new.key, &key, Timestamp(AT.0 + 60_000)).await.unwrap();
    store.insert_ticket(b"late", new.key, &key, AT).await.unwrap();
    assert_eq!(store.take_ticket(b"one", AT).await.unwrap(), Some((new.key, key)));
    assert_eq!(store.take_ticket(b"one", AT).await.unwrap(), None);
    assert_eq!(store.take_ticket(b"late", AT).await.unwrap(), None);
    assert_eq!(store.take_ticket(b"none", AT).await.unwrap(), None);
}

async fn old_events_go_but_each_sessions_last_stays_so_that_its_numbers_go_on(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let lease = held(store.as_ref(), &new).await.reference();
    store.append(lease, vec![text("1"), text("2"), text("3")]).await.unwrap();
    assert_eq!(store.purge_events(Timestamp(AT.0 + 1)).await.unwrap(), 2);
    let page = store.list_events(new.key, 0, 10).await.unwrap();
    assert_eq!((page.first_seq, page.last_seq, page.events.len()), (3, 3, 1));
    store.append(lease, vec![text("4")]).await.unwrap();
    assert_eq!(seqs(store.as_ref(), &new).await, [3, 4]);
    // The clock went back in between: what is old goes from the front, and never leaves a hole.
    let at = |moment: i64, words: &str| NewEvent { at: Timestamp(AT.0 + moment), ..text(words) };
    let mixed = session("o1", "bob");
    create(store.as_ref(), &mixed).await;
    let lease = held(store.as_ref(), &mixed).await.reference();
    let events = vec![at(10, "1"), at(100, "2"), at(20, "3"), at(30, "4")];
    store.append(lease, events).await.unwrap();
    // One of each session.
    assert_eq!(store.purge_events(Timestamp(AT.0 + 50)).await.unwrap(), 2);
    assert_eq!(seqs(store.as_ref(), &mixed).await, [2, 3, 4]);
    assert_eq!(store.purge_events(Timestamp(AT.0 + 50)).await.unwrap(), 0);
}

async fn a_purged_session_leaves_nothing(on: On) {
    let Fixture { store, place: _place } = fixture(on).await;
    let new = session("o1", "alice");
    create(store.as_ref(), &new).await;
    let mut change = Change::of(&new, AT);
    change.turns.push(TurnWrite::Insert { turn: Box::new(turn(1)), urgent: false });
    change.events.push(text("x"));
    store.commit(change).await.unwrap();
    store.purge_session(new.key).await.unwrap();
    assert!(store.find_session_by_key(new.key).await.unwrap().is_none());
    assert!(store.find_turn_at(new.key, Ordinal(1)).await.unwrap().is_none());
    assert!(seqs(store.as_ref(), &new).await.is_empty());
}

#[tokio::test]
async fn a_second_process_on_the_same_file_is_refused_and_the_first_goes_on() {
    let Fixture { store, place } = fixture(On::Sqlite).await;
    assert!(matches!(place.open().await, Err(OpenError::InUse { .. })));
    create(store.as_ref(), &session("o1", "alice")).await;
    store.close().await;
    drop(store);
    place.open().await.unwrap();
}

async fn a_closed_store_has_kept_what_it_took_and_takes_no_more(on: On) {
    let Fixture { store, place } = fixture(on).await;
    let sessions: Vec<Session> = (0..50).map(|_| session("o1", "alice")).collect();
    let writes: Vec<_> = sessions
        .iter()
        .map(|session| {
            let (store, change) = (Arc::clone(&store), Change::create(session.clone()));
            tokio::spawn(async move { store.commit(change).await })
        })
        .collect();
    tokio::task::yield_now().await;
    store.close().await;
    let mut kept = Vec::new();
    for (write, session) in writes.into_iter().zip(&sessions) {
        match write.await.unwrap() {
            Ok(Commit::Done) => kept.push(session.key),
            Err(StoreError::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
    let late = store.commit(Change::create(session("o1", "alice"))).await;
    assert!(matches!(late, Err(StoreError::Closed)), "{late:?}");
    drop(store);
    let store = place.open().await.unwrap();
    for key in kept {
        assert!(store.find_session_by_key(key).await.unwrap().is_some());
    }
}

/// A test of each story on either database.
macro_rules! on_both {
    ($($(#[$how:meta])+ $story:ident;)+) => {
        mod on_sqlite {
            $($(#[$how])+ async fn $story() { super::$story(super::On::Sqlite).await; })+
        }
        mod on_postgres {
            $($(#[$how])+ async fn $story() { super::$story(super::On::Postgres).await; })+
        }
    };
}

on_both! {
    #[tokio::test] row_1_a_session_reads_back_as_it_was_written;
    #[tokio::test] rows_2_and_3_a_change_sets_what_it_names_and_leaves_the_rest;
    #[tokio::test] row_4_a_change_of_a_session_that_is_not_there_makes_none;
    #[tokio::test] rows_5_and_6_a_failed_session_has_its_time_and_a_follow_up_forgets_it;
    #[tokio::test] rows_7_and_8_a_list_is_scoped_before_it_is_cut_and_goes_on_page_by_page;
    #[tokio::test] sec_08_each_principal_sees_just_its_own_page_by_page;
    #[tokio::test] row_10_the_latest_of_a_thread_is_not_a_destroyed_one;
    #[tokio::test] row_11_a_run_id_is_unique_in_its_org_and_free_in_others;
    #[tokio::test] row_12_a_session_is_found_in_its_scope_and_in_no_other;
    #[tokio::test] row_13_an_unknown_status_and_broken_json_are_errors_that_name_the_place_and_others_are_read_on;
    #[tokio::test] a_stale_change_and_one_without_the_lease_change_nothing;
    #[tokio::test] of_many_claimers_one_gets_the_session;
    #[tokio::test(flavor = "multi_thread")] events_of_many_writers_are_numbered_without_a_hole;
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_reader_who_comes_while_an_event_is_stored_finds_it_or_is_woken;
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] what_is_read_is_never_older_than_what_is_acknowledged;
    #[tokio::test] a_session_that_was_read_before_is_shown_to_nobody_else;
    #[tokio::test] a_change_and_its_events_are_kept_together_or_not_at_all;
    #[tokio::test] one_bad_write_does_not_take_its_batch_with_it;
    #[tokio::test] the_schema_refuses_a_state_that_contradicts_itself;
    #[tokio::test] turns_line_up_in_order_and_an_urgent_one_goes_first;
    #[tokio::test] a_turn_that_is_over_stays_over;
    #[tokio::test] an_idempotency_key_is_kept_with_its_effect_once_and_not_without_it;
    #[tokio::test] f31_a_resume_state_that_was_changed_or_moved_is_an_error_and_others_are_read_on;
    #[tokio::test] a_resume_state_that_is_too_large_is_refused_and_the_old_one_stays;
    #[tokio::test] an_agents_files_read_back_as_they_were_stored_last_until_they_are_erased;
    #[tokio::test] an_agents_files_are_stored_by_the_sessions_holder_alone_and_with_all_of_the_change_or_not;
    #[tokio::test] f31_an_agents_files_that_were_changed_or_moved_are_an_error_and_others_are_read_on;
    #[tokio::test] keys_are_kept_by_hash_found_listed_and_revoked_within_their_org;
    #[tokio::test] sec_15_a_ticket_is_taken_once_and_in_time;
    #[tokio::test] old_events_go_but_each_sessions_last_stays_so_that_its_numbers_go_on;
    #[tokio::test] a_purged_session_leaves_nothing;
    #[tokio::test] a_closed_store_has_kept_what_it_took_and_takes_no_more;
}
