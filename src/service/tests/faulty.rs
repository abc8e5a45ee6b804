//! A harness that does one thing wrong, on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::domain::turn::Failure;
use crate::harness::{
    Answer, ApprovalRecovery, ApprovalRequest, Availability, Capabilities, Continuity, Harness, HarnessError,
    HarnessEvent, HarnessSession, StartError, StartOptions, Started, TurnInput, TurnOutcome,
};

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    StartFails,
    PromptFails,
    AnswerFails,
    DetachFails,
    DetachHangs,
}

/// A harness whose turns ask once when the prompt says `ask`, and end.
#[derive(Clone)]
pub(super) struct Faulty {
    pub(super) fault: Fault,
    pub(super) stops: Arc<AtomicUsize>,
}

impl Faulty {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, stops: Arc::default() }
    }
}

fn failure() -> Failure {
    Failure::new("broken", "it is broken")
}

#[async_trait]
impl Harness for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }
    fn label(&self) -> &str {
        "Faulty"
    }
    fn description(&self) -> &str {
        "Does one thing wrong."
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sandbox: false,
            resumable: true,
            approvals: true,
            host_tools: false,
            file_events: false,
            edited_input: false,
            instructions: false,
            approval_recovery: ApprovalRecovery::None,
            recovery: crate::harness::TurnRecovery::Interrupt,
        }
    }
    fn availability(&self) -> Availability {
        Availability::Available
    }
    fn validate(&self, settings: &Value) -> Result<Value, Vec<String>> {
        Ok(settings.clone())
    }
    async fn start(&self, _options: StartOptions) -> Result<Started, StartError> {
        if self.fault == Fault::StartFails {
            return Err(StartError::Failed(failure()));
        }
        let (events, receiver) = mpsc::channel(8);
        let session = Box::new(Live { faulty: self.clone(), events });
        Ok(Started {
            session,
            events: receiver,
            continuity: Continuity::New,
            native_id: None,
            waits_for: Vec::new(),
        })
    }
}

struct Live {
    faulty: Faulty,
    events: mpsc::Sender<HarnessEvent>,
}

impl Live {
    fn unless(&self, fault: Fault) -> Result<(), HarnessError> {
        if self.faulty.fault == fault { Err(HarnessError(failure())) } else { Ok(()) }
    }

    async fn end(&self) {
        let outcome = TurnOutcome::Completed { stop_reason: "end_turn".to_owned() };
        self.events.send(HarnessEvent::TurnEnded(outcome)).await.unwrap();
    }
}

#[async_trait]
impl HarnessSession for Live {
    async fn prompt(&self, turn: TurnInput) -> Result<(), HarnessError> {
        self.unless(Fault::PromptFails)?;
        if turn.prompt.text() == "ask" {
            let request = ApprovalRequest {
                native_id: "n1".into(),
                tool: "t".into(),
                title: "t".into(),
                kind: "other".into(),
                input: json!({}),
                options: vec![],
            };
            self.events.send(HarnessEvent::ApprovalRequested(request)).await.unwrap();
        } else {
            self.end().await;
        }
        Ok(())
    }
    async fn answer(&self, _answer: Answer) -> Result<(), HarnessError> {
        self.unless(Fault::AnswerFails)?;
        self.end().await;
        Ok(())
    }
    async fn cancel(&self) -> Result<(), HarnessError> {
        Ok(())
    }
    async fn detach(&self) -> Result<Option<Value>, HarnessError> {
        self.unless(Fault::DetachFails)?;
        if self.faulty.fault == Fault::DetachHangs {
            std::future::pending::<()>().await;
        }
        Ok(Some(json!({"version": 1})))
    }
    async fn stop(&self) {
        self.faulty.stops.fetch_add(1, Ordering::SeqCst);
    }
}
