//! Every question that is asked often finds its answer through an index, however much is stored.

use sqlx::{Connection as _, SqliteConnection};

use super::super::dialect::{Dialect, Sqlite, Statement, Value};
use super::super::migrate::migrate;
use super::super::{ApprovalFilter, PageRequest, SessionFilter, SessionRef};
use super::{approvals, events, leases, once, sessions, turns};
use crate::clock::Timestamp;
use crate::domain::approval::ApprovalStatus;
use crate::domain::scope::Scope;
use crate::domain::session::SessionStatus;
use crate::domain::turn::Ordinal;
use crate::ids::{ApprovalId, SessionId, SessionKey};

/// How SQLite goes about a question: a line a table.
async fn plan(connection: &mut SqliteConnection, statement: Statement) -> Vec<String> {
    let rows = Sqlite::fetch(connection, &statement.explained()).await.unwrap();
    let detail = |row: &super::Record| match row.get("detail") {
        Some(Value::Text(Some(text))) => text.clone(),
        other => panic!("{other:?}"),
    };
    rows.iter().map(detail).collect()
}

fn first<K>() -> PageRequest<K> {
    PageRequest { limit: 50, before: None }
}

#[tokio::test]
async fn no_frequent_question_reads_more_than_it_answers() {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    migrate::<Sqlite>(&mut connection).await.unwrap();
    let org = Scope::Org { org: "o".into() };
    let own = Scope::Own { org: "o".into(), owner: "w".into() };
    let key = SessionKey(1);
    let all = SessionFilter::default();
    let of_status = |status| SessionFilter { status: Some(status), ..SessionFilter::default() };
    let needs = SessionFilter { needs_approval: Some(true), ..SessionFilter::default() };
    let thread = SessionFilter { thread_id: Some("t".into()), alive: true, ..SessionFilter::default() };
    let run = SessionFilter { run_id: Some("r".into()), ..SessionFilter::default() };
    let pending = ApprovalFilter { status: Some(ApprovalStatus::Pending), ..ApprovalFilter::default() };
    let table = [
        (sessions::find(&own, &SessionRef::Id(SessionId::mint())), "sessions_of_org"),
        (sessions::find(&own, &SessionRef::Run("r".into())), "sessions_run"),
        (sessions::find_by_key(key), "INTEGER PRIMARY KEY"),
        (sessions::list(&org, &all, &first()), "sessions_of_org"),
        (sessions::list(&own, &all, &first()), "sessions_of_owner"),
        (sessions::list(&org, &of_status(SessionStatus::Idle), &first()), "sessions_of_status"),
        (sessions::list(&own, &of_status(SessionStatus::Running), &first()), "sessions_of_status"),
        (sessions::list(&org, &needs, &first()), "sessions_of_status"),
        (sessions::list(&own, &needs, &first()), "sessions_of_status"),
        (sessions::list(&own, &thread, &first()), "sessions_of_thread"),
        (sessions::list(&org, &run, &first()), "sessions_run"),
        (turns::find_at(key, Ordinal(1)), "sqlite_autoindex_turns_2"),
        (turns::list_queued(key, 9), "turns_queued"),
        (approvals::find(&own, &ApprovalId::mint()), "sqlite_autoindex_approvals_1"),
        (approvals::list(&org, &pending, &first()), "approvals_pending"),
        (approvals::list(&own, &pending, &first()), "approvals_pending"),
        (approvals::list(&own, &ApprovalFilter::default(), &first()), "approvals_of_owner"),
        (approvals::list_open(key), "approvals_open"),
        (approvals::list_expired(Timestamp(1), 9), "approvals_expiring"),
        (events::list(key, 5, 9), "sqlite_autoindex_events_1"),
        (leases::list_stranded(9, Sqlite::NOW), "sessions_held"),
        (once::find("o", "s", "k"), "sqlite_autoindex_idempotency_keys_1"),
    ];
    for (statement, index) in table {
        let sql = format!("{statement:?}");
        let plan = plan(&mut connection, statement).await;
        assert!(plan.iter().any(|line| line.contains(index)), "{index} is not used: {plan:#?}\n{sql}");
        let scans = |line: &&String| line.starts_with("SCAN") && !line.contains("sessions_stranded");
        assert_eq!(plan.iter().find(scans), None, "{plan:#?}\n{sql}");
        // What is sorted anew was read whole first.
        assert!(!plan.iter().any(|line| line.contains("FOR ORDER BY")), "{plan:#?}\n{sql}");
    }
}
