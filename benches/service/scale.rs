//! Whether it matters how many sessions are stored: a service with 1,000 of them beside one with 100,000.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use ostler::domain::event::{EventBody, NewEvent, Output};
use ostler::domain::session::{Session, SessionState};
use ostler::domain::turn::{Ordinal, Prompt, TurnStatus};
use ostler::store::{Change, Commit, SharedStore, TurnSet, TurnWrite};
use serde_json::json;

use super::home::{Home, THEN, session};
use super::report::{Series, Target, note, row};
use super::writes::turn;
use super::{ROUNDS, load, round_time};

const FEW: usize = 1_000;
const MANY: usize = 100_000;
/// Sessions of one owner, of one thread, and that wait for a person: the same in both, so that pages have the same rows.
const OF_OWNER: usize = 200;
const OF_THREAD: usize = 60;
const AWAITING: usize = 60;
/// Sessions that take prompts: each may have 256 that wait.
const BUSY: usize = 40;
/// Sessions that are asked for.
const ASKED: usize = 500;

/// What is asked of a service.
type Requests = fn(&Stored) -> Vec<String>;

pub async fn run() {
    let begun = Instant::now();
    let (few, many) = (Stored::open(FEW).await, Stored::open(MANY).await);
    note(&format!("stored {} sessions in {:.1} s", FEW + MANY, begun.elapsed().as_secs_f64()));
    let measures: [(&str, Requests); 6] = [
        ("GET by id", |stored| stored.gets("sessions", |session| session.id.as_str())),
        ("GET by run", |stored| stored.gets("runs", |session| session.run_id.as_str())),
        ("list of an owner", |stored| stored.list("owner=owner-3")),
        ("list of a thread", |stored| stored.list("thread_id=thread-3")),
        ("list of what awaits approval", |stored| stored.list("needs_approval=true")),
        ("POST prompt, queued", Stored::prompts),
    ];
    for (name, requests) in measures {
        let (few_requests, many_requests) = (requests(&few), requests(&many));
        let (mut small, mut large) = (Series::default(), Series::default());
        for _ in 0..ROUNDS {
            small.push(load::requests(few.home.address, 1, round_time(), &few_requests).await.sample());
            large.push(load::requests(many.home.address, 1, round_time(), &many_requests).await.sample());
        }
        row(&format!("{name}, 1,000 stored"), &small, None, Target::None);
        let ratio = large.ratio(&small, |s| s.p50);
        row(&format!("{name}, 100,000 stored, p50"), &large, Some(ratio), Target::AtMost(1.3));
    }
}

struct Stored {
    home: Home,
    asked: Vec<Session>,
    busy: Vec<String>,
}

impl Stored {
    async fn open(count: usize) -> Self {
        let home = Home::open().await;
        let sessions: Vec<Session> = (0..count)
            .map(|number| {
                let mut session = session(&format!("owner-{}", number / OF_OWNER));
                session.thread_id = Some(format!("thread-{}", number / OF_THREAD));
                session.turn_count = 1;
                session
            })
            .collect();
        // Many at once, so that they are committed in groups.
        let store = &home.store;
        futures_util::stream::iter(sessions.iter().enumerate())
            .map(|(number, session)| keep(Arc::clone(store), session.clone(), number < AWAITING))
            .buffer_unordered(256)
            .collect::<Vec<()>>()
            .await;
        let step = (count / ASKED).max(1);
        let asked = sessions.into_iter().step_by(step).take(ASKED).collect();
        let busy = busy_sessions(&home).await;
        Self { home, asked, busy }
    }

    fn gets(&self, way: &str, name: fn(&Session) -> &str) -> Vec<String> {
        let path = |session| format!("/v1/{way}/{}", name(session));
        self.asked.iter().map(|session| self.home.request("GET", &path(session), None)).collect()
    }

    fn list(&self, query: &str) -> Vec<String> {
        vec![self.home.request("GET", &format!("/v1/sessions?{query}&limit=50"), None)]
    }

    fn prompts(&self) -> Vec<String> {
        let body = json!({"prompt": "and then look at the next one", "when_busy": "queue"});
        let path = |id| format!("/v1/sessions/{id}/prompts");
        self.busy.iter().map(|id| self.home.request("POST", &path(id), Some(&body))).collect()
    }
}

/// Stores a session with a turn that has ended, or that waits for a person.
async fn keep(store: SharedStore, session: Session, awaits: bool) {
    let turn = turn(1, THEN);
    let reference = turn.reference();
    let event = |body| NewEvent { turn: Some(reference.clone()), at: THEN, body };
    let mut create = Change::create(session.clone());
    create.events.push(NewEvent { turn: None, at: THEN, body: EventBody::SessionCreated {} });
    create.events.push(event(EventBody::TurnQueued {}));
    create.turns.push(TurnWrite::Insert { turn: Box::new(turn), urgent: false });
    assert_eq!(store.commit(create).await.unwrap(), Commit::Done);
    let mut change = Change::of(&session, THEN);
    let status = if awaits { TurnStatus::AwaitingApproval } else { TurnStatus::Completed };
    let ended_at = (!awaits).then_some(THEN);
    change.turns.push(TurnWrite::Update(TurnSet { ended_at, ..TurnSet::status(Ordinal(1), status) }));
    change.set.turn = Some(Ordinal(1));
    if awaits {
        change.set.state = Some(SessionState::AwaitingApproval { turn: Ordinal(1) });
        change.set.pending = Some((Some(json!({"tool": "write_file", "input": {"path": "notes.md"}})), 1));
    }
    change.events.push(event(EventBody::TurnStarted {}));
    change.events.push(event(Output::TextDelta { text: "It looks at the wrong file.".to_owned() }.into()));
    if !awaits {
        change.events.push(event(EventBody::TurnCompleted { stop_reason: "end_turn".to_owned() }));
    }
    assert_eq!(store.commit(change).await.unwrap(), Commit::Done);
}

/// Sessions with a turn at work that does not end.
async fn busy_sessions(home: &Home) -> Vec<String> {
    let principal = home.service.authenticate(&home.token).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..BUSY {
        let input = ostler::service::CreateSession {
            harness: "demo".to_owned(),
            prompt: Some(Prompt::Text("/hang".to_owned())),
            settings: json!({}),
            ..Default::default()
        };
        ids.push(home.service.create(&principal, input, None).await.unwrap().session.id.to_string());
    }
    ids
}
