//! Every statement of the program is one that both databases know how to go about, and none reads more than it has to.

use std::collections::BTreeSet;

use ostler::store::{Planned, Seal, StoreOptions, plan_every_statement};

use super::architecture::{code, is_test, root, sources};
use crate::support::postgres::{Database, shared};

/// Questions that are asked often, and what leads to their answers: on SQLite, and on PostgreSQL.
const FOUND_BY: &[(&str, &str, &str)] = &[
    ("sessions::find own, by id", "sessions_of_org", "sessions_of_owner|sessions_of_org|sessions_id_unique"),
    ("sessions::find own, by run", "sessions_run", "sessions_run"),
    ("sessions::find_by_key", "INTEGER PRIMARY KEY", "agent_harness_sessions_pkey"),
    ("sessions::find_by_approval", "sqlite_autoindex_approvals_1", "approvals_pkey"),
    ("sessions::list org", "sessions_of_org", "sessions_of_org"),
    ("sessions::list org, on", "sessions_of_org", "sessions_of_org"),
    ("sessions::list org, idle", "sessions_of_status", "sessions_of_status|sessions_of_org"),
    ("sessions::list own", "sessions_of_owner", "sessions_of_owner"),
    ("sessions::list own, on", "sessions_of_owner", "sessions_of_owner"),
    ("sessions::list org, running", "sessions_of_status", "sessions_of_status"),
    ("sessions::list own, running", "sessions_of_status", "sessions_of_status"),
    ("sessions::list org, needing approval", "sessions_of_status", "sessions_of_status"),
    ("sessions::list own, needing approval", "sessions_of_status", "sessions_of_status"),
    ("sessions::list own, thread", "sessions_of_thread", "sessions_of_thread"),
    ("sessions::list org, run", "sessions_run", "sessions_run"),
    ("sessions::update everything, held", "INTEGER PRIMARY KEY", "agent_harness_sessions_pkey"),
    ("turns::find_at", "sqlite_autoindex_turns_2", "turns_pkey"),
    ("turns::list_queued", "turns_queued", "turns_queued"),
    ("turns::list on", "sqlite_autoindex_turns_2", "turns_pkey"),
    ("turns::update everything", "sqlite_autoindex_turns_2", "turns_pkey"),
    (
        "approvals::find own",
        "sqlite_autoindex_approvals_1",
        "approvals_of_owner|approvals_of_org|approvals_pkey",
    ),
    ("approvals::list org, pending", "approvals_pending", "approvals_pending"),
    ("approvals::list own, pending", "approvals_pending", "approvals_pending"),
    ("approvals::list org", "approvals_of_org", "approvals_of_org"),
    ("approvals::list own", "approvals_of_owner", "approvals_of_owner"),
    ("approvals::list org, session", "approvals_of_session", "approvals_of_session"),
    ("approvals::list own, session", "approvals_of_session", "approvals_of_session"),
    ("approvals::list own, everything", "approvals_of_session", "approvals_of_session"),
    ("approvals::list_open", "approvals_open", "approvals_open"),
    ("approvals::list_expired", "approvals_expiring", "approvals_expiring"),
    ("events::bounds", "sqlite_autoindex_events_1", "events_pkey"),
    ("events::list", "sqlite_autoindex_events_1", "events_pkey"),
    ("events::list_aged", "INTEGER PRIMARY KEY", "agent_harness_sessions_pkey"),
    ("events::purge", "sqlite_autoindex_events_1", "events_pkey"),
    ("events::insert", "INTEGER PRIMARY KEY", "agent_harness_sessions_pkey"),
    ("leases::list_stranded", "sessions_held", "sessions_held"),
    ("leases::list_stranded", "sessions_stranded", "sessions_stranded"),
    ("leases::heads", "INTEGER PRIMARY KEY", "agent_harness_sessions_pkey"),
    ("once::find", "sqlite_autoindex_idempotency_keys_1", "idempotency_keys_pkey"),
    ("once::purge", "idempotency_keys_age", "idempotency_keys_age"),
    ("keys::list", "api_keys_of_org", "api_keys_of_org"),
    ("keys::list on", "api_keys_of_org", "api_keys_of_org"),
    ("keys::find", "sqlite_autoindex_api_keys_1", "api_keys_pkey"),
    ("tickets::take 1", "sqlite_autoindex_event_tickets_1", "event_tickets_pkey"),
    ("agent_files::find_digest", "INTEGER PRIMARY KEY", "agent_files_pkey"),
    ("agent_files::find", "INTEGER PRIMARY KEY", "agent_files_pkey"),
    ("agent_files::erase", "INTEGER PRIMARY KEY", "agent_files_pkey"),
    ("writer::last_seqs", "sqlite_autoindex_events_1", "events_pkey"),
];
/// The same for what PostgreSQL does to many at once.
const FOUND_BY_MANY: &[(&str, &str)] = &[
    ("sessions::update nothing, held, many", "agent_harness_sessions_pkey"),
    ("sessions::update everything, held, many", "agent_harness_sessions_pkey"),
    ("turns::update everything, many", "turns_pkey"),
    ("leases::claim free 1, many", "agent_harness_sessions_pkey"),
    ("once::finish, many", "idempotency_keys_pkey"),
    ("keys::touch, many", "api_keys_pkey"),
];
/// What may read a table whole: it looks for any row at all.
const READ_ALL: &[&str] = &["keys::any"];
/// Tables that are small however much is stored, by name or by what a statement calls them; and the rows of an array.
const SMALL: &[&str] =
    &["replicas", "r", "o", "cluster", "_sqlx_migrations", "event_tickets", "json_each", "CONSTANT"];

async fn plans(url: &str) -> Vec<Planned> {
    plan_every_statement(&StoreOptions::from_url(url).unwrap().location).await.unwrap()
}

/// Makes the schema of a new database.
async fn migrate(url: &str) {
    let options = StoreOptions { exclusive: false, ..StoreOptions::from_url(url).unwrap() };
    ostler::store::open(&options, Seal::new(vec![7; 32]).unwrap()).await.unwrap().close().await;
}

async fn plans_of_sqlite() -> Vec<Planned> {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("ostler.db").display());
    migrate(&url).await;
    plans(&url).await
}

async fn postgres() -> Database {
    let database = shared().await.database().await;
    migrate(&database.url).await;
    database
}

fn assert_all_planned(planned: &[Planned]) {
    let refused: Vec<_> = planned.iter().filter(|planned| planned.plan.is_err()).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(planned.len() > 100, "only {}", planned.len());
}

fn plan_of<'a>(planned: &'a [Planned], name: &str) -> &'a str {
    let found = planned.iter().find(|planned| planned.name == name);
    found.unwrap_or_else(|| panic!("no statement is called {name}")).plan.as_deref().unwrap()
}

/// Whether this line of a plan reads a table from end to end that may be large.
fn reads_whole(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '-', '>']);
    let table = line.strip_prefix("Seq Scan on ").or_else(|| line.strip_prefix("SCAN "));
    // These indexes have only such rows as are hardly ever there.
    let rare = ["INDEX sessions_stranded", "INDEX approvals_owed"].iter().any(|index| line.ends_with(index));
    let large = |table: &str| !SMALL.contains(&table.split(' ').next().unwrap());
    table.is_some_and(large) && !rare
}

fn assert_frugal(planned: &[Planned]) {
    for Planned { name, sql, plan } in planned {
        let plan = plan.as_deref().unwrap();
        let greedy = plan.lines().any(reads_whole) && !READ_ALL.contains(&name.as_str());
        assert!(!greedy, "{name} reads a table whole:\n{sql}\n{plan}");
    }
}

#[tokio::test]
async fn sqlite_plans_every_statement_and_finds_what_is_asked_often_by_an_index() {
    let planned = plans_of_sqlite().await;
    assert_all_planned(&planned);
    assert_frugal(&planned);
    for (name, index, _) in FOUND_BY {
        let plan = plan_of(&planned, name);
        assert!(plan.contains(index), "{name}: {index} is not used:\n{plan}");
        // What is sorted anew was read whole first.
        assert!(!plan.contains("FOR ORDER BY"), "{name}:\n{plan}");
    }
}

#[tokio::test]
async fn postgres_plans_every_statement() {
    let database = postgres().await;
    assert_all_planned(&plans(&database.url).await);
}

/// With statistics, and nothing forbidden. A prepared statement is planned for its values at first, and later for any.
#[tokio::test]
async fn postgres_finds_what_is_asked_often_by_an_index() {
    let database = postgres().await;
    sqlx::raw_sql(include_str!("filled.sql")).execute(&mut database.connect().await).await.unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let url = format!("{}?options[plan_cache_mode]={mode}", database.url);
        let planned = plans(&url).await;
        assert_frugal(&planned);
        assert_eq!(plan_of(&planned, "once::find").contains("= $1"), mode == "force_generic_plan");
        let alone = FOUND_BY.iter().map(|(name, _, indexes)| (name, indexes));
        for (name, indexes) in alone.chain(FOUND_BY_MANY.iter().map(|(name, index)| (name, index))) {
            let plan = plan_of(&planned, name);
            let used = indexes.split('|').any(|index| {
                plan.lines().any(|line| {
                    let line = line.split("  (cost").next().unwrap();
                    line.contains("Scan") && line.split(' ').any(|word| word == index)
                })
            });
            assert!(used, "{name}, {mode}: {indexes} is not used:\n{plan}");
        }
    }
}

/// A function of the store's files: its place and name, what it takes and gives, and what it does.
struct Function {
    name: String,
    head: String,
    body: String,
}

/// All functions of the files with statements. A file's name is its functions' place, but for the writer's.
fn functions() -> Vec<Function> {
    let store = root().join("store");
    let mut files = sources(&store.join("sql"));
    files.extend(sources(&store.join("writer")));
    files.push(store.join("migrate.rs"));
    let mut found = Vec::new();
    for path in files.into_iter().filter(|path| !is_test(path) && !path.ends_with("catalogue.rs")) {
        let place = if path.starts_with(store.join("writer")) {
            "writer"
        } else {
            path.file_stem().unwrap().to_str().unwrap()
        };
        for function in code(&path).split("fn ").skip(1) {
            let name = function.split(['(', '<']).next().unwrap();
            let (head, body) = function.split_once('{').unwrap_or((function, ""));
            found.push(Function { name: format!("{place}::{name}"), head: head.into(), body: body.into() });
        }
    }
    found
}

/// The function that a planned statement is of.
fn maker(planned: &Planned) -> &str {
    planned.name.split([' ', ',']).next().unwrap()
}

#[tokio::test]
async fn no_statement_is_forgotten() {
    // They put together what others have begun.
    let helpers = ["sessions::page"];
    let planned = plans_of_sqlite().await;
    let known: BTreeSet<&str> = planned.iter().map(maker).collect();
    let makes_statements = |function: &Function| {
        let gives = function.head.split_once("->").is_some_and(|(_, gives)| {
            gives.split(|c: char| !c.is_alphanumeric()).any(|word| matches!(word, "Statement" | "Write"))
        });
        let body =
            function.body.replace("Statement::new(D::BEGIN)", "").replace("Statement::new(\"COMMIT\")", "");
        let body = body.replace("Statement::new(\"ROLLBACK\")", "");
        gives || body.contains("Statement::new(") || body.contains("Statement::assembled(")
    };
    let all = functions();
    let makers: Vec<_> = all.iter().filter(|function| makes_statements(function)).collect();
    assert!(makers.len() > 50, "only {}", makers.len());
    let forgotten: Vec<_> = makers
        .iter()
        .map(|function| function.name.as_str())
        .filter(|name| !known.contains(name) && !helpers.contains(name))
        .collect();
    assert!(forgotten.is_empty(), "not in src/store/sql/catalogue.rs: {forgotten:#?}");
}

#[test]
fn nothing_is_asked_past_the_statements() {
    let may = ["store/dialect/", "store/hints.rs", "store/sql/open/"];
    for path in sources(&root()).into_iter().filter(|path| !is_test(path)) {
        let place = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let asks = ["sqlx::query", "raw_sql", "query_as", "query_scalar", "QueryBuilder"];
        let stray = asks.iter().find(|word| code(&path).contains(*word));
        assert!(
            stray.is_none() || may.iter().any(|place_of| place.starts_with(place_of)),
            "{place} has {stray:?}"
        );
    }
}

#[tokio::test]
async fn what_is_asked_for_a_caller_names_the_org_and_where_it_is_one_owners_the_owner() {
    let planned = plans_of_sqlite().await;
    let (mut of_org, mut of_owner) = (0, 0);
    for function in functions() {
        let scoped = function.head.contains("scope: &Scope");
        if !scoped && !function.head.contains("org: &str") {
            continue;
        }
        for Planned { name, sql, .. } in planned.iter().filter(|planned| maker(planned) == function.name) {
            let names = |forms: &[&str]| forms.iter().any(|form| sql.contains(form));
            assert!(
                names(&["org_id = $", "org_id IN ($", "org_id || '' = $"]),
                "{name} is for any org:\n{sql}"
            );
            of_org += 1;
            if scoped && name.contains(" own") {
                let forms = ["owner_id = $", "owner_id = COALESCE($", "owner_id || '' = $"];
                assert!(names(&forms), "{name} is for any owner:\n{sql}");
                of_owner += 1;
            }
        }
    }
    assert!(of_org >= 30 && of_owner >= 15, "{of_org} {of_owner}");
}
