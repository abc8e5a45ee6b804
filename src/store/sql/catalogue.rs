//! Every statement of the program, in every form that its conditions and columns give it, for a test that has both databases plan
//! them. The service uses nothing of it.

use std::sync::Arc;

use serde_json::json;

use super::super::dialect::{Bound, Connection, Form, Plans, Statement};
use super::super::{
    ApprovalFilter, ApprovalWrite, Change, NewReplica, NewSession, OnceAnswer, OnceRow, PageRequest, Seal,
    SessionFilter, SessionRef, SessionSet, Takeover, TurnSet, TurnWrite, hints, migrate, writer,
};
use super::{
    ApiKey, Write, agent_files, approvals, events, keys, leases, once, replicas, sessions, tickets, turns,
};
use crate::clock::Timestamp;
use crate::domain::agent_files::{AgentFiles, FilesDigest};
use crate::domain::approval::{Approval, ApprovalStatus};
use crate::domain::event::{EventBody, NewEvent, Output};
use crate::domain::scope::{Permission, Role, Scope};
use crate::domain::session::{Session, SessionState, SessionStatus, Wish};
use crate::domain::turn::{Failure, Ordinal, Prompt, Turn, TurnStatus, Usage};
use crate::ids::{ApprovalId, KeyId, ReplicaId, SessionId, SessionKey, TurnId};
use crate::store::Result;

/// How a database would go about a statement.
#[derive(Debug)]
pub struct Planned {
    /// The function that makes it, and which of its statements it is.
    pub name: String,
    /// Its words.
    pub sql: String,
    /// The plan, in the database's own words, or why there is none.
    pub plan: sqlx::Result<String>,
}

pub(super) async fn plan_all<D: Plans>(connection: &mut Connection<D>) -> Result<Vec<Planned>> {
    let statements = statements::<D>()?;
    let mut forms: Vec<Form> =
        statements.into_iter().flat_map(|(name, statement)| D::forms(name, &statement)).collect();
    forms.push(D::events());
    if D::SHARED {
        let texts = vec![Bound::One("c".into()), Bound::Each("m".into())];
        forms.push(Form::new("hints::say", hints::NOTIFY, texts));
    }
    let mut planned = Vec::with_capacity(forms.len());
    for form in forms {
        let plan = D::plan(connection, &form).await;
        planned.push(Planned { name: form.name, sql: form.words, plan });
    }
    Ok(planned)
}

/// What a function of this directory makes.
trait Makes {
    fn statements(self) -> Result<Vec<Statement>>;
}

impl Makes for Statement {
    fn statements(self) -> Result<Vec<Statement>> {
        Ok(vec![self])
    }
}

impl<const N: usize> Makes for [Statement; N] {
    fn statements(self) -> Result<Vec<Statement>> {
        Ok(self.into())
    }
}

impl Makes for Write {
    fn statements(self) -> Result<Vec<Statement>> {
        let steps = self.steps.into_iter().flat_map(|step| [Some(step.statement), step.undo]).flatten();
        Ok(steps.chain(self.returning).collect())
    }
}

impl<T: Makes> Makes for Result<T> {
    fn statements(self) -> Result<Vec<Statement>> {
        self.and_then(T::statements)
    }
}

fn named(name: &str, made: impl Makes) -> Result<Vec<(String, Statement)>> {
    let statements = made.statements()?;
    let many = statements.len() > 1;
    let name = |i: usize| if many { format!("{name} {}", i + 1) } else { name.to_owned() };
    Ok(statements.into_iter().enumerate().map(|(i, statement)| (name(i), statement)).collect())
}

/// Calls each function, under its own name and a note on what is special about the call.
macro_rules! catalogue {
    ($($area:ident::$make:ident($($value:expr),*) $($note:literal)?;)+) => {
        [$(named(concat!(stringify!($area), "::", stringify!($make) $(, " ", $note)?), $area::$make($($value),*))?),+]
    };
}

fn statements<D: Plans>() -> Result<Vec<(String, Statement)>> {
    let org = &Scope::Org { org: "o".into() };
    let own = &Scope::Own { org: "o".into(), owner: "w".into() };
    let (key, at, at_turn) = (SessionKey(1), Timestamp(1_700_000_000_000), Ordinal(1));
    let (replica, api_key, approval_id) = (&ReplicaId::mint(), &KeyId::mint(), &ApprovalId::mint());
    let (id, run) = (&SessionRef::Id(SessionId::mint()), &SessionRef::Run("r".into()));
    let session = Session::new(key, "o".into(), "w".into(), "h".into(), at);
    let turn = || Turn::queued(at_turn, Prompt::Text("x".into()), at);
    let turn_set = || TurnSet::status(at_turn, TurnStatus::Running);
    let asked = Approval::asked(session.id.clone(), &turn().reference(), "t", json!({}), at);
    let owner = &("o".to_owned(), "w".to_owned());
    let once_row = || OnceRow {
        org: "o".into(),
        space: "s".into(),
        key: "k".into(),
        fingerprint: "f".into(),
        session: session.id.clone(),
        turn: None,
        approval: None,
        answer: None,
        at,
    };
    let set = || SessionSet { at, ..SessionSet::default() };
    let seal = &Seal::new(vec![0; 32])?;
    let files = AgentFiles { digest: FilesDigest::of(&[]), content: [1].into() };
    let created = Change {
        turns: vec![TurnWrite::Insert { turn: Box::new(turn()), urgent: false }],
        approvals: vec![ApprovalWrite::Insert(Box::new(asked.clone()))],
        once: Some(once_row()),
        ..Change::create(session.clone())
    };
    let changed = Change {
        set: SessionSet {
            resume_state: Some(Some(Arc::new(json!({})))),
            agent_files: Some(Some(files.clone())),
            ..every_column(at)
        },
        turns: vec![TurnWrite::Update(every_turn_column(at_turn, at))],
        approvals: vec![ApprovalWrite::Update(Box::new(asked.clone()))],
        once: Some(once_row()),
        ..Change::of(&session, at)
    };
    let all = &SessionFilter::default();
    let of = |status| SessionFilter { status: Some(status), ..SessionFilter::default() };
    let needs = &SessionFilter { needs_approval: Some(true), ..SessionFilter::default() };
    let thread = &SessionFilter { thread_id: Some("t".into()), alive: true, ..SessionFilter::default() };
    let by_run = &SessionFilter { run_id: Some("r".into()), ..SessionFilter::default() };
    let harness = &SessionFilter { harness: Some("h".into()), ..SessionFilter::default() };
    let owners = &SessionFilter { owner: Some("w".into()), ..SessionFilter::default() };
    let since = &SessionFilter { created_after: Some(at), ..SessionFilter::default() };
    let needs_none = &SessionFilter { needs_approval: Some(false), ..SessionFilter::default() };
    let each = &SessionFilter {
        status: Some(SessionStatus::AwaitingApproval),
        harness: Some("h".into()),
        thread_id: Some("t".into()),
        run_id: Some("r".into()),
        owner: Some("w".into()),
        needs_approval: Some(true),
        created_after: Some(at),
        alive: true,
    };
    let asked_for = |status| ApprovalFilter { status: Some(status), ..ApprovalFilter::default() };
    let pending = &asked_for(ApprovalStatus::Pending);
    let of_session = &ApprovalFilter { session_id: Some(session.id.clone()), ..ApprovalFilter::default() };
    let of_all = &ApprovalFilter {
        status: Some(ApprovalStatus::Denied),
        session_id: Some(session.id.clone()),
        owner: Some("w".into()),
    };
    let stored_key = &ApiKey {
        id: api_key.clone(),
        org: "o".into(),
        owner: None,
        role: Role::Service,
        permissions: [Permission::SessionsRead].into(),
        secret_hash: vec![1],
        created_at: at,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    let new_replica = &NewReplica { id: replica.clone(), version: "1" };
    let body = EventBody::Output(Output::TextDelta { text: "x".into() });
    let takeover = Takeover { from: replica, event: NewEvent { turn: None, at, body } };
    let answer = OnceAnswer { status: 200, body: "{}".into() };
    let catalogue = catalogue! {
        sessions::find(own, id) "own, by id";
        sessions::find(own, run) "own, by run";
        sessions::find(org, id) "org, by id";
        sessions::find(org, run) "org, by run";
        sessions::find_by_key(key);
        sessions::find_by_approval(approval_id);
        sessions::list(org, all, &first()) "org";
        sessions::list(own, all, &first()) "own";
        sessions::list(org, all, &before(SessionId::mint())) "org, on";
        sessions::list(own, all, &before(SessionId::mint())) "own, on";
        sessions::list(org, &of(SessionStatus::Idle), &first()) "org, idle";
        sessions::list(own, &of(SessionStatus::Idle), &first()) "own, idle";
        sessions::list(org, &of(SessionStatus::Running), &first()) "org, running";
        sessions::list(own, &of(SessionStatus::Running), &first()) "own, running";
        sessions::list(org, needs, &first()) "org, needing approval";
        sessions::list(own, needs, &first()) "own, needing approval";
        sessions::list(own, needs_none, &first()) "own, needing none";
        sessions::list(own, thread, &first()) "own, thread";
        sessions::list(org, by_run, &first()) "org, run";
        sessions::list(own, by_run, &first()) "own, run";
        sessions::list(org, harness, &first()) "org, harness";
        sessions::list(org, owners, &first()) "org, owner";
        sessions::list(org, since, &first()) "org, since";
        sessions::list(own, each, &before(SessionId::mint())) "own, everything";
        sessions::find_resume_state(key);
        agent_files::find_digest(key);
        agent_files::find(key);
        agent_files::put(key, &files.digest, vec![1], at);
        agent_files::erase(key);
        sessions::purge(key);
        sessions::insert(&NewSession { session: session.clone() });
        sessions::update(key, 1, None, set(), None) "nothing";
        sessions::update(key, 1, Some(1), set(), None) "nothing, held";
        sessions::update(key, 1, None, every_column(at), Some(None)) "everything";
        sessions::update(key, 1, Some(1), every_column(at), Some(Some(vec![1]))) "everything, held";
        sessions::write_of(created, seal) "new";
        sessions::write_of(changed, seal) "old";
        turns::find(key, &TurnId::mint());
        turns::find_at(key, at_turn);
        turns::list_queued(key, 9);
        turns::list(key, &first());
        turns::list(key, &before(Ordinal(9))) "on";
        turns::list_from(key, at_turn, 9);
        turns::insert(key, &turn(), false);
        turns::update(key, turn_set()) "status";
        turns::update(key, every_turn_column(at_turn, at)) "everything";
        turns::write(key, TurnWrite::Update(turn_set()));
        approvals::find(own, approval_id) "own";
        approvals::find(org, approval_id) "org";
        approvals::list(org, &ApprovalFilter::default(), &first()) "org";
        approvals::list(own, &ApprovalFilter::default(), &first()) "own";
        approvals::list(own, &ApprovalFilter::default(), &before(approval_id.clone())) "own, on";
        approvals::list(org, pending, &first()) "org, pending";
        approvals::list(own, pending, &first()) "own, pending";
        approvals::list(org, of_session, &first()) "org, session";
        approvals::list(own, of_session, &first()) "own, session";
        approvals::list(own, of_all, &before(approval_id.clone())) "own, everything";
        approvals::list_open(key);
        approvals::list_expired(at, 9);
        approvals::insert(key, None, &asked) "of an old session";
        approvals::insert(key, Some(owner), &asked) "of a new session";
        approvals::update(&asked);
        approvals::write(key, None, ApprovalWrite::Update(Box::new(asked.clone())));
        events::bounds(key);
        events::list(key, 5, 9);
        events::list_of_turn(key, at_turn, 5, 9);
        events::list_aged(key, at);
        events::purge(key, at);
        keys::any();
        keys::insert(stored_key);
        keys::insert_first(stored_key);
        keys::find(api_key);
        keys::list("o", &first());
        keys::list("o", &before(api_key.clone())) "on";
        keys::revoke("o", api_key, at);
        keys::touch(api_key, at);
        leases::claim(key, replica, None, D::NOW) "free";
        leases::claim(key, replica, Some(takeover), D::NOW) "taken over";
        leases::list_stranded(9, D::NOW);
        leases::heads(&[key, SessionKey(2)], D::AMONG);
        once::insert(&once_row());
        once::undo(&once_row());
        once::finish("o", "s", "k", answer);
        once::find("o", "s", "k");
        once::purge(Timestamp(1));
        replicas::register(new_replica, "i", 1, D::NOW);
        replicas::expire_predecessors(replica, Some("i")) "of an instance";
        replicas::expire_predecessors(replica, None) "of the database";
        replicas::renew(replica, 1, D::NOW);
        replicas::drain(replica);
        replicas::expire(replica);
        replicas::forget(replica);
        replicas::forget_old(D::NOW);
        replicas::list(D::NOW);
        replicas::agree("n", "v");
        replicas::replace("n", "v", "w");
        replicas::count_up("n");
        replicas::agreed("n");
        tickets::insert(&[1], key, api_key, at);
        tickets::take(&[1], at);
        tickets::purge(at);
        writer::last_seqs(&[key, SessionKey(2)], D::AMONG);
        writer::event_at(1, 5);
        writer::sign_of_life();
        migrate::applied();
    };
    Ok(catalogue.into_iter().flatten().collect())
}

fn first<K>() -> PageRequest<K> {
    PageRequest { limit: 50, before: None }
}

fn before<K>(key: K) -> PageRequest<K> {
    PageRequest { limit: 50, before: Some(key) }
}

fn every_column(at: Timestamp) -> SessionSet {
    SessionSet {
        state: Some(SessionState::Idle),
        wish: Some(Some(Wish::Stop)),
        turn: Some(Ordinal(1)),
        turn_count: Some(1),
        queued_turns: Some(0),
        pending: Some((None, 0)),
        resolved_approval_ids: Some(Vec::new()),
        native_id: Some("n".into()),
        started: true,
        resume_state: None,
        agent_files: None,
        usage: Some(Usage::NONE),
        title: Some("t".into()),
        metadata: Some([("k".into(), "v".into())].into()),
        release: true,
        at,
    }
}

fn every_turn_column(ordinal: Ordinal, at: Timestamp) -> TurnSet {
    TurnSet {
        ordinal,
        status: TurnStatus::Failed,
        stop_reason: Some("r".into()),
        text: Some("t".into()),
        error: Some(Failure::new("c", "m")),
        usage: Some(Usage::NONE),
        rehydrated: Some(true),
        started_at: Some(at),
        ended_at: Some(at),
    }
}
