//! Who holds a session: what becomes of it when its holder is killed, frozen, cut off or started again.

use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _};
use tokio::process::Command;

use super::{
    ASKS, LONG, SHORT, assert_nothing_ran_twice, begin, create_at, effects_of, ended, holder, id, idle_at,
    listed, number, one_log, poll, queue, turn, until_ready,
};
use crate::support::api::Api;
use crate::support::fleet::Fleet;
use crate::support::postgres::shared;
use crate::support::processes::{eventually, of_agent};
use crate::support::proxy::Proxy;
use crate::support::server::Home;

/// Sessions as they stood when their holder was lost.
struct Left {
    /// At work, with a turn behind the one at work.
    busy: String,
    at_work: String,
    queued: String,
    /// An approval waits.
    waiting: Value,
    /// An approval was decided, and its harness does not know.
    decided: Value,
}

impl Left {
    /// Sessions of a replica, which is frozen then: it is the caller's to kill.
    async fn by(fleet: &mut Fleet, i: usize, decider: usize) -> Self {
        let busy = idle_at(fleet, i).await;
        let at_work = begin(&fleet.api(i), &busy, "/say working\n/hang").await;
        let queued = queue(&fleet.api(i), &busy, "/tool later {}").await;
        let waiting = create_at(fleet, i, ASKS).await;
        let decided = create_at(fleet, i, ASKS).await;
        // Frozen, it cannot hear of the decision.
        fleet.stop(i);
        let answer =
            fleet.api(decider).decide(&id(&decided["pending_approval"]), "approve").await.expect(200);
        assert_eq!(answer["idempotent"], false);
        Self { busy, at_work, queued, waiting, decided }
    }

    /// Whoever has them now goes on from where each stood.
    async fn goes_on(&self, fleet: &Fleet, replicas: &[usize]) {
        let (one, other) = (fleet.api(replicas[0]), fleet.api(replicas[1]));
        let at_work = ended(&one, &self.busy, &self.at_work).await;
        assert_eq!(at_work["status"], "interrupted");
        // It had put out words: the prompt had arrived.
        assert_eq!(one.events_of(&self.busy, "turn.interrupted").await[0]["delivery"], "delivered");
        assert_eq!(ended(&other, &self.busy, &self.queued).await["status"], "completed");
        assert_eq!(effects_of(fleet, &self.busy, &self.at_work), ["prompt"]);
        assert_eq!(effects_of(fleet, &self.busy, &self.queued), ["prompt", "tool"]);
        self.decided_one_is_delivered(fleet, &one).await;
        self.waiting_one_is_decidable(fleet, &other).await;
        for session in [&self.busy, &id(&self.waiting), &id(&self.decided)] {
            one_log(fleet, replicas, session).await;
            assert_nothing_ran_twice(fleet, session);
        }
    }

    async fn decided_one_is_delivered(&self, fleet: &Fleet, api: &Api) {
        let (session, asked) = (id(&self.decided), id(&self.decided["turn"]));
        let row = ended(api, &session, &asked).await;
        assert_eq!((row["status"].as_str(), row["text"].as_str()), (Some("completed"), Some("done")));
        assert_eq!(effects_of(fleet, &session, &asked), ["prompt", "decision", "tool", "tool"]);
        assert_eq!(api.events_of(&session, "approval.delivered").await.len(), 1);
        assert_eq!(api.events_of(&session, "session.rehydrated").await, [json!({"exact": true})]);
    }

    async fn waiting_one_is_decidable(&self, fleet: &Fleet, api: &Api) {
        let (session, asked) = (id(&self.waiting), id(&self.waiting["turn"]));
        api.follow(&session, "").await.until("activity").await;
        let row = poll("the lease to be given up", async || {
            Some(api.session(&session).await).filter(|row| row["live"] == false)
        })
        .await;
        assert_eq!(row["status"], "awaiting_approval");
        assert_eq!(row["pending_approval"], self.waiting["pending_approval"]);
        let approval = id(&self.waiting["pending_approval"]);
        assert_eq!(api.decide(&approval, "approve").await.expect(200)["idempotent"], false);
        let row = ended(api, &session, &asked).await;
        assert_eq!((row["status"].as_str(), row["text"].as_str()), (Some("completed"), Some("done")));
        assert_eq!(effects_of(fleet, &session, &asked), ["prompt", "decision", "tool", "tool"]);
        assert_eq!(api.events_of(&session, "session.rehydrated").await, [json!({"exact": true})]);
    }
}

#[tokio::test]
async fn f38_when_a_replica_is_killed_another_takes_over_what_it_held_each_session_as_it_stood() {
    let mut fleet = Fleet::of(3).with(SHORT).start().await;
    let left = Left::by(&mut fleet, 0, 1).await;
    fleet.kill(0).await;
    left.goes_on(&fleet, &[1, 2]).await;
    assert_ne!(holder(&fleet, &left.busy).await.as_deref(), Some("r0"));
}

#[tokio::test]
async fn f39_a_replica_that_is_started_again_at_its_place_takes_up_what_it_left_at_once() {
    let mut fleet = Fleet::of(2).with(LONG).start().await;
    let left = Left::by(&mut fleet, 0, 1).await;
    fleet.kill(0).await;
    // Its lease lives on: for the other one it may be alive as well.
    assert_eq!(holder(&fleet, &left.busy).await.as_deref(), Some("r0"));
    assert_eq!(turn(&fleet.api(1), &left.busy, &left.at_work).await["status"], "running");
    fleet.restart(0).await;
    left.goes_on(&fleet, &[0, 1]).await;
}

#[tokio::test]
async fn f05_a_turn_whose_replica_died_before_it_took_it_up_runs_elsewhere_without_waiting() {
    let mut fleet = Fleet::of(2).with(LONG).start().await;
    fleet.restart_with_fault(0, "create.committed").await;
    let body = json!({"harness": "demo", "prompt": "/tool once {}", "run_id": "job"});
    let request = fleet.api(0).request(reqwest::Method::POST, "/v1/sessions").json(&body);
    assert!(request.send().await.is_err());
    fleet.wait_dead(0).await;
    let session = fleet.api(1).get("/v1/runs/job").await.expect(200);
    assert_eq!(ended(&fleet.api(1), &id(&session), &id(&session["turn"])).await["status"], "completed");
    assert_eq!(effects_of(&fleet, &id(&session), &id(&session["turn"])), ["prompt", "tool"]);
}

/// Runs `ostler serve` on the fleet's database to its end, which must be a refusal, and gives its words.
async fn refused(home: &Home, arguments: &[&str]) -> String {
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
    let output = crate::support::within("a refusal", command.args(arguments).output()).await.unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn a_second_process_at_a_place_is_refused_and_told_what_to_do() {
    let fleet = Fleet::of(2).with(LONG).start().await;
    let session = idle_at(&fleet, 0).await;
    let words = refused(fleet.home(), &["--instance", "r0"]).await;
    assert!(words.contains("r0 is in use") && words.contains("--instance"), "{words}");
    assert_eq!(holder(&fleet, &session).await.as_deref(), Some("r0"));
    assert_eq!(fleet.api(1).prompt(&session, "/recall").await["text"], "blue");
}

#[tokio::test]
async fn two_data_directories_with_a_place_of_the_same_name_do_not_disturb_each_other() {
    let fleet = Fleet::of(1).with(LONG).start().await;
    let session = idle_at(&fleet, 0).await;
    let at_work = begin(&fleet.api(0), &session, "/say working\n/hang").await;
    let url = fleet.home().postgres().unwrap().url.clone();
    let elsewhere = Home::on_sqlite().with_variable("OSTLER_DATABASE_URL", &url).with(LONG);
    for secret in ["admin.key", "seal.key"] {
        std::fs::copy(fleet.home().path().join(secret), elsewhere.path().join(secret)).unwrap();
    }
    for _ in 0..2 {
        // The second time it has a predecessor, which is not the other's.
        let at_r0 = |command: &mut Command| {
            command.args(["--instance", "r0"]);
        };
        let other = elsewhere.start_as(0, at_r0).await;
        assert_eq!(other.api().create("/say x").await["status"], "idle");
        assert_eq!(turn(&other.api(), &session, &at_work).await["status"], "running");
        other.kill().await;
    }
    assert_eq!(holder(&fleet, &session).await.as_deref(), Some("r0"));
    fleet.api(0).post(&format!("/v1/sessions/{session}/cancel"), json!({})).await.expect(200);
    assert_eq!(turn(&fleet.api(0), &session, &at_work).await["status"], "cancelled");
}

#[tokio::test]
async fn f34_a_replica_that_was_frozen_past_its_time_does_nothing_more_for_what_others_took_over() {
    let mut fleet = Fleet::of(2).with(SHORT).start().await;
    let (sleeper, talker) = (idle_at(&fleet, 0).await, idle_at(&fleet, 0).await);
    // By the time it wakes, the sleep is over and many words are due: it would act on them at once.
    let talking = begin(&fleet.api(0), &talker, "/tokens 1000000 200").await;
    let asleep =
        begin(&fleet.api(0), &sleeper, "/say on\n/sleep 3000\n/tool late {}\n/write late.txt x\n/say off")
            .await;
    fleet.stop(0);
    let witness = fleet.api(1);
    for (session, turn) in [(&sleeper, &asleep), (&talker, &talking)] {
        assert_eq!(ended(&witness, session, turn).await["status"], "interrupted");
    }
    let frozen = replica(&fleet, 0).await;
    // Its own row is held fast, so that it can neither go on nor join anew before it was asked how it is.
    let mut hand = fleet.home().postgres().unwrap().connect().await;
    let mut held = hand.begin().await.unwrap();
    let hold = "SELECT id FROM replicas WHERE split_part(instance, ' ', 1) = 'r0' FOR UPDATE";
    sqlx::query(hold).fetch_all(&mut *held).await.unwrap();
    fleet.cont(0);
    let refused = fleet.api(0).anonymous().get("/readyz").await;
    let problem = refused.problem(503, "storage_unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("sign of life"), "{problem}");
    held.rollback().await.unwrap();
    until_ready(&fleet.api(0)).await;
    assert_ne!(replica(&fleet, 0).await, frozen, "it joined under a new id");
    // It joins only when none of its harnesses is left: whatever it would have done, it has done by now.
    for (session, turn) in [(&sleeper, &asleep), (&talker, &talking)] {
        let log = one_log(&fleet, &[0, 1], session).await;
        assert_eq!(log.last().unwrap()["type"], "turn.interrupted");
        assert_eq!(effects_of(&fleet, session, turn), ["prompt"]);
    }
    assert!(!fleet.home().workspace(&sleeper).join("late.txt").exists());
    // Each can have either again.
    assert_eq!(fleet.api(0).prompt(&sleeper, "/recall").await["text"], "blue");
    assert_eq!(fleet.api(1).prompt(&talker, "/recall").await["text"], "blue");
    create_at(&fleet, 0, "/say x").await;
}

/// The id under which a replica is known now.
async fn replica(fleet: &Fleet, i: usize) -> String {
    let sql =
        "SELECT id FROM replicas WHERE split_part(instance, ' ', 1) = $1 ORDER BY started_at DESC LIMIT 1";
    let mut connection = fleet.home().postgres().unwrap().connect().await;
    sqlx::query_scalar(sql).bind(format!("r{i}")).fetch_one(&mut connection).await.unwrap()
}

/// Cuts a replica off from the database: it lets go of what it had, another takes over, and it comes back when it can.
async fn cut_off(cut: impl AsyncFn(&Proxy)) {
    let plan = Fleet::of(2).with(SHORT);
    let proxy = Proxy::start(shared().await);
    let url = proxy.url(plan.database());
    let fleet = plan.with_url_of(1, &url).start().await;
    let busy = idle_at(&fleet, 1).await;
    let waiting = create_at(&fleet, 1, ASKS).await;
    let before = replica(&fleet, 1).await;
    // Due when the lease is another's.
    let at_work = begin(&fleet.api(1), &busy, "/say working\n/sleep 8000\n/tool late {}").await;
    cut(&proxy).await;
    assert_eq!(ended(&fleet.api(0), &busy, &at_work).await["status"], "interrupted");
    fleet.api(1).anonymous().get("/readyz").await.problem(503, "storage_unavailable");
    fleet.api(0).decide(&id(&waiting["pending_approval"]), "approve").await.expect(200);
    assert_eq!(ended(&fleet.api(0), &id(&waiting), &id(&waiting["turn"])).await["status"], "completed");
    proxy.pass().await;
    until_ready(&fleet.api(1)).await;
    assert_ne!(replica(&fleet, 1).await, before, "it joined under a new id");
    // It joins only when none of its harnesses is left.
    assert_eq!(effects_of(&fleet, &busy, &at_work), ["prompt"]);
    for session in [&busy, &id(&waiting)] {
        one_log(&fleet, &[0, 1], session).await;
        assert_nothing_ran_twice(&fleet, session);
    }
    create_at(&fleet, 1, "/say x").await;
}

#[tokio::test]
async fn f35_a_replica_that_hears_nothing_from_its_database_lets_go_and_comes_back() {
    cut_off(async |proxy| proxy.half_open().await).await;
}

#[tokio::test]
async fn f35_a_replica_whose_connections_are_cut_lets_go_and_comes_back() {
    cut_off(async |proxy| proxy.cut().await).await;
}

#[tokio::test]
async fn f35_a_replica_that_is_cut_off_ends_its_agents_though_nobody_takes_over() {
    let command = [env!("CARGO_BIN_EXE_fake-acp-agent"), "script"];
    let config = format!("[harness.fake]\nkind = \"acp\"\ncommand = {command:?}\n");
    let plan = Fleet::on_home(Home::on_postgres().with_config(&config), 1).with(SHORT);
    let proxy = Proxy::start(shared().await);
    let url = proxy.url(plan.database());
    let fleet = plan.with_url_of(0, &url).start().await;
    let body = json!({"harness": "fake", "prompt": "say on\nhang"});
    let session = id(&fleet.api(0).post("/v1/sessions", body).await.expect(201));
    fleet.api(0).follow(&session, "").await.until("text.delta").await;
    assert_eq!(of_agent(&session).len(), 1);
    proxy.half_open().await;
    eventually("its agent to end", || of_agent(&session).is_empty()).await;
    assert_eq!(holder(&fleet, &session).await.as_deref(), Some("r0"), "nobody else was there");
    proxy.reset_once().await;
    until_ready(&fleet.api(0)).await;
    fleet.api(0).follow(&session, "").await.until("turn.interrupted").await;
    assert_eq!(fleet.api(0).prompt(&session, "say again").await["status"], "completed");
}

fn row(instance: &str, state: &str, sessions: i64) -> (String, String, i64) {
    (instance.to_owned(), state.to_owned(), sessions)
}

#[tokio::test]
async fn the_list_of_replicas_says_where_each_is_how_it_is_and_how_much_it_holds() {
    // Nobody takes over what is given up, so that it can be seen: the others have a long time, and it was up for a short one.
    let mut fleet = Fleet::of(3).with(LONG).with(&["--shutdown-grace-seconds", "600"]).start().await;
    for i in [0, 0, 1, 2] {
        let session = idle_at(&fleet, i).await;
        begin(&fleet.api(i), &session, "/say working\n/hang").await;
    }
    assert_eq!(listed(&fleet).await, [row("r0", "alive", 2), row("r1", "alive", 1), row("r2", "alive", 1)]);
    fleet.begin_end(1);
    poll("the word of going down", async || {
        (listed(&fleet).await[1] == row("r1", "draining", 1)).then_some(())
    })
    .await;
    let plain = fleet.home().command(&["replicas"]).output().await.unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.starts_with("ID ") && plain.lines().count() == 4, "{plain}");
    for (instance, state) in [("r0", "alive"), ("r1", "draining"), ("r2", "alive")] {
        let line = plain.lines().find(|line| line.contains(&format!(" {instance} "))).unwrap();
        assert!(line.ends_with(state), "{line}");
    }
    for i in [1, 2] {
        fleet.kill(i).await;
    }
    // As their times would have it, and all at once, so that the first takes nothing over meanwhile.
    fleet.stop(0);
    fleet.home().tamper("UPDATE replicas SET expires_at = 1 WHERE instance !~ '^r0 '").await;
    assert_eq!(listed(&fleet).await, [row("r0", "alive", 2), row("r1", "left", 1), row("r2", "gone", 1)]);
    fleet.cont(0);
    poll("what they held to be taken over", async || {
        let held: Vec<i64> = listed(&fleet).await.into_iter().map(|(.., held)| held).collect();
        (held == [2, 0, 0]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn idle_sessions_cost_nothing_and_a_sign_of_life_is_one_row_however_many_there_are() {
    let count = number("OSTLER_IDLE_SESSIONS", 100);
    let fleet = Fleet::of(3).with(&["--replica-ttl-seconds", "6"]).start().await;
    let apis: Vec<Api> = (0..3).map(|i| fleet.api(i)).collect();
    let clients = (0..8).map(|client| {
        let apis = apis.clone();
        async move {
            for n in (client..count).step_by(8) {
                assert_eq!(apis[n % 3].create("/say x").await["status"], "idle");
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let database = fleet.home().postgres().unwrap();
    // Each change of a row leaves a line here.
    for sql in [
        "CREATE TABLE traffic (of TEXT NOT NULL, id TEXT NOT NULL)",
        "CREATE FUNCTION note_traffic() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO traffic VALUES (TG_TABLE_NAME, NEW.id); RETURN NULL; END $$",
        "CREATE TRIGGER traffic AFTER UPDATE ON replicas FOR EACH ROW EXECUTE FUNCTION note_traffic()",
        "CREATE TRIGGER traffic AFTER UPDATE ON agent_harness_sessions FOR EACH ROW EXECUTE FUNCTION note_traffic()",
    ] {
        database.execute(sql).await;
    }
    let mut connection = database.connect().await;
    let live = "SELECT COUNT(*) FROM agent_harness_sessions WHERE lease_holder IS NOT NULL";
    let live: i64 = sqlx::query_scalar(live).fetch_one(&mut connection).await.unwrap();
    assert_eq!(live, i64::try_from(count).unwrap(), "all are live");
    let since: i64 = now(&mut connection).await;
    let signs = "SELECT id, COUNT(*) FROM traffic WHERE of = 'replicas' GROUP BY id";
    let signs = poll("three signs of life of each", async || {
        let rows = sqlx::query(signs).fetch_all(&mut connection).await.unwrap();
        let signs: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
        (signs.len() == 3 && signs.iter().all(|signs| *signs >= 3)).then_some(signs)
    })
    .await;
    let took = now(&mut connection).await - since;
    println!("{count} idle sessions: {signs:?} signs of life in {took} ms");
    assert!(
        signs.iter().all(|signs| *signs <= took / 2000 + 2),
        "each third of the time: {signs:?} in {took} ms"
    );
    let changed = "SELECT COUNT(*) FROM traffic WHERE of <> 'replicas'";
    let changed: i64 = sqlx::query_scalar(changed).fetch_one(&mut connection).await.unwrap();
    assert_eq!(changed, 0, "no session's row was touched");
}

/// The database's clock, in milliseconds.
async fn now(connection: &mut sqlx::PgConnection) -> i64 {
    let sql = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_replica_with_another_sealing_key_is_refused_and_told_what_to_do() {
    let fleet = Fleet::of(1).with(LONG).start().await;
    let words = refused(fleet.home(), &["--instance", "other", "--seal-key", &"ab".repeat(32)]).await;
    assert!(words.contains("sealed with another key") && words.contains("--seal-key"), "{words}");
    let key = std::fs::read_to_string(fleet.home().path().join("seal.key")).unwrap();
    let same = |command: &mut Command| {
        command.args(["--instance", "other", "--seal-key", key.trim()]);
    };
    let other = fleet.home().start_as(0, same).await;
    let session = idle_at(&fleet, 0).await;
    fleet.api(0).post(&format!("/v1/sessions/{session}/stop"), json!({})).await.expect(200);
    assert_eq!(other.api().prompt(&session, "/recall").await["text"], "blue");
}
