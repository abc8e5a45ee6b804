//! The verbs together with the driver and a real store: what needs no HTTP to be shown.

mod faulty;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tempfile::TempDir;

use self::faulty::{Fault, Faulty};
use super::*;
use crate::domain::approval::{Decision, DecisionRequest};
use crate::domain::scope::{Principal, Role, Scope, permissions_of};
use crate::domain::session::SessionStatus;
use crate::domain::turn::{Prompt, TurnStatus};
use crate::ids::KeyId;
use crate::store::{self, ApprovalFilter, Location, PageRequest, Seal, SessionRef, StoreOptions};

struct Fixture {
    service: Arc<Service>,
    _directory: TempDir,
}

const DEADLINE: Duration = Duration::from_secs(20);

async fn fixture() -> Fixture {
    fixture_with(Faulty::new(Fault::Nothing)).await
}

/// A service with the demo harness and a faulty one. It sweeps often and waits briefly.
async fn fixture_with(faulty: Faulty) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions::new(Location::Sqlite(directory.path().join("ostler.db")));
    let store = store::open(&options, Seal::new(vec![7; 32]).unwrap()).await.unwrap();
    let mut harnesses =
        Registry::new(&BTreeMap::new(), &crate::harness::child::Launcher::of_this_program(Vec::new()))
            .unwrap();
    harnesses.insert(Arc::new(faulty));
    let options = ServiceOptions {
        idle_ttl: Duration::from_millis(100),
        sweep_interval: Duration::from_millis(20),
        harness_deadline: Duration::from_millis(200),
        ..ServiceOptions::new(directory.path().to_owned())
    };
    let service = Service::new(store, harnesses, Clock::System, options);
    service.run_background().await.unwrap();
    Fixture { service, _directory: directory }
}

fn alice() -> Principal {
    Principal {
        key: KeyId::mint(),
        org: "acme".into(),
        role: Role::Owner,
        owner: Some("alice".into()),
        on_behalf_of: None,
        permissions: permissions_of(Role::Owner, &[]).unwrap(),
    }
}

fn asks(prompt: &str) -> CreateSession {
    CreateSession {
        harness: "demo".into(),
        prompt: Some(Prompt::Text(prompt.into())),
        settings: serde_json::json!({"token_delay_ms": 0}),
        ..CreateSession::default()
    }
}

impl Fixture {
    async fn create(&self, prompt: &str) -> SessionView {
        self.service.create(&alice(), asks(prompt), None).await.unwrap()
    }

    /// Waits until the session's first turn has ended or waits for a person.
    async fn settled(&self, view: &SessionView) -> crate::domain::turn::Turn {
        let turn = view.session.turn.as_ref().unwrap().id.clone();
        let deadline = self.service.clock.now().plus(DEADLINE);
        self.service.wait_for_turn(&view.session, &turn, deadline).await.unwrap()
    }

    async fn pending(&self) -> crate::ids::ApprovalId {
        let page = PageRequest { limit: 10, before: None };
        let approvals =
            self.service.list_approvals(&scope(), &ApprovalFilter::default(), page).await.unwrap();
        approvals.rows[0].id.clone()
    }
}

fn scope() -> Scope {
    alice().scope()
}

fn says(decision: Decision) -> DecisionRequest {
    DecisionRequest {
        decision,
        option_id: None,
        reason: None,
        edited_input: None,
        input_digest: None,
        decided_by: "alice".into(),
    }
}

impl Fixture {
    /// Creates a session of the faulty harness.
    async fn create_faulty(&self, prompt: &str) -> SessionView {
        let input =
            CreateSession { harness: "faulty".into(), settings: serde_json::Value::Null, ..asks(prompt) };
        self.service.create(&alice(), input, None).await.unwrap()
    }

    /// Waits until the session has come to that status, and gives it as it is then.
    async fn until(&self, view: &SessionView, status: SessionStatus) -> SessionView {
        let reference = SessionRef::Id(view.session.id.clone());
        let mut ear = self.service.store.subscribe(view.session.key);
        let reached = async {
            loop {
                let view = self.service.lookup(&scope(), &reference).await.unwrap();
                if view.session.state.status() == status {
                    return view;
                }
                ear.changed().await;
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_23_a_harness_that_does_not_start_leaves_an_errored_session_with_its_reason() {
    let fixture = fixture_with(Faulty::new(Fault::StartFails)).await;
    let view = fixture.create_faulty("x").await;
    let view = fixture.until(&view, SessionStatus::Errored).await;
    let turn = view.session.turn.unwrap();
    assert_eq!((turn.status, turn.error.unwrap().code.as_str()), (TurnStatus::Failed, "broken"));
    assert_eq!(turn.started_at, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harness_that_refuses_a_prompt_fails_the_turn_and_is_stopped() {
    let faulty = Faulty::new(Fault::PromptFails);
    let fixture = fixture_with(faulty.clone()).await;
    let view = fixture.create_faulty("x").await;
    let view = fixture.until(&view, SessionStatus::Errored).await;
    assert_eq!(view.session.turn.unwrap().error.unwrap().code, "broken");
    assert_eq!(faulty.stops.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_38_a_decision_that_the_harness_does_not_take_is_kept_and_its_turn_says_that_it_may_have_arrived()
{
    let fixture = fixture_with(Faulty::new(Fault::AnswerFails)).await;
    let view = fixture.create_faulty("ask").await;
    fixture.until(&view, SessionStatus::AwaitingApproval).await;
    let id = fixture.pending().await;
    fixture.service.decide(&scope(), &id, says(Decision::Approve), None).await.unwrap();
    let view = fixture.until(&view, SessionStatus::Idle).await;
    assert_eq!(view.session.turn.unwrap().status, TurnStatus::Interrupted);
    let approval = fixture.service.lookup_approval(&scope(), &id).await.unwrap();
    assert_eq!((approval.decision, approval.delivered_at), (Some(Decision::Approve), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_42_and_68_a_harness_that_gives_no_state_is_put_away_all_the_same_and_the_sweep_goes_on() {
    for fault in [Fault::DetachFails, Fault::DetachHangs] {
        let faulty = Faulty::new(fault);
        let fixture = fixture_with(faulty.clone()).await;
        let (bad, good) = (fixture.create_faulty("x").await, fixture.create("/say x").await);
        let bad = fixture.until(&bad, SessionStatus::Stopped).await;
        fixture.until(&good, SessionStatus::Stopped).await;
        assert_eq!(faulty.stops.load(Ordering::SeqCst), 1, "{fault:?}");
        assert!(!bad.session.has_resume_state);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_runs_waits_for_a_person_and_ends() {
    let fixture = fixture().await;
    let view = fixture.create("/say hello\n/ask shell {\"command\":\"ls\"}\n/say done").await;
    let turn = fixture.settled(&view).await;
    assert_eq!(turn.status, TurnStatus::AwaitingApproval);
    let decided = fixture
        .service
        .decide(&scope(), &fixture.pending().await, says(Decision::Approve), None)
        .await
        .unwrap();
    assert!(!decided.idempotent);
    let mut tail = fixture
        .service
        .follow(&scope(), &SessionRef::Id(view.session.id.clone()), 0, Until::Idle)
        .await
        .unwrap()
        .unwrap();
    let mut kinds = Vec::new();
    while let Some(events) = tokio::time::timeout(DEADLINE, tail.next()).await.unwrap().unwrap() {
        kinds.extend(events.iter().map(|published| published.event.kind.clone()));
    }
    assert_eq!(
        kinds,
        [
            "session.created",
            "turn.queued",
            "turn.started",
            "text.delta",
            "tool.started",
            "approval.requested",
            "approval.resolved",
            "approval.delivered",
            "tool.completed",
            "text.delta",
            "turn.completed",
        ]
    );
    let session = fixture.service.lookup(&scope(), &SessionRef::Id(view.session.id)).await.unwrap();
    assert_eq!(session.session.state.status(), SessionStatus::Idle);
    assert_eq!(session.session.turn.unwrap().text.as_deref(), Some("hellodone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_puts_idle_sessions_away_and_leaves_a_question_decidable() {
    let fixture = fixture().await;
    let idle = fixture.create("/remember blue").await;
    let waiting = fixture.create("/ask shell {}").await;
    fixture.settled(&idle).await;
    fixture.settled(&waiting).await;
    tokio::time::timeout(DEADLINE, fixture.service.shut_down()).await.unwrap();
    assert_eq!(fixture.service.live_count(), 0);
}
