//! What tools and servers can see, and where secrets must not turn up.

use std::fs;
use std::process::Stdio;

use super::*;
use crate::support::processes::{of_agent, signal};
use crate::support::server::free_port;

/// Whether the kernel confines what tools start.
async fn is_confined(api: &Api) -> bool {
    let agent = api.get("/v1/harnesses/agent").await.expect(200);
    let confined = agent["capabilities"]["sandbox"] == true;
    if !confined {
        println!("SKIPPED: this kernel has no landlock, so that nothing can be shown of it");
    }
    confined
}

#[tokio::test]
async fn a_command_and_an_mcp_server_see_and_change_nothing_that_is_not_their_session_s() {
    let model = ChatModel::start();
    // The server reads and writes as a command does: what it may is a matter of the kernel alone.
    let server_program = "import json,sys,subprocess\n\
        for line in sys.stdin:\n    \
            m=json.loads(line)\n    \
            if 'id' not in m: continue\n    \
            k=m['method']\n    \
            r={}\n    \
            if k=='initialize': r={'protocolVersion':'2025-06-18','capabilities':{'tools':{}},'serverInfo':{'name':'s','version':'1'}}\n    \
            if k=='tools/list': r={'tools':[{'name':'run','inputSchema':{'type':'object'}}]}\n    \
            if k=='tools/call':\n        \
                p=subprocess.run(m['params']['arguments']['command'],shell=True,capture_output=True,text=True)\n        \
                r={'content':[{'type':'text','text':p.stdout+p.stderr}]}\n    \
            print(json.dumps({'jsonrpc':'2.0','id':m['id'],'result':r}),flush=True)\n";
    let table = format!("[harness.agent.mcp.sh]\ncommand = [\"python3\", \"-c\", {server_program:?}]\n");
    let home = Home::on_sqlite().with_config(&config(&model, &table));
    let server = home.start().await;
    let api = server.api();
    if !is_confined(&api).await {
        return;
    }
    let write = "/call write_file {\"path\": \"secret.txt\", \"content\": \"canary\"}\n/next\n/say done";
    let other = create(&api, write, json!({})).await["id"].as_str().unwrap().to_owned();
    let others = home.workspace(&other);
    assert_eq!(fs::read_to_string(others.join("secret.txt")).unwrap(), "canary");
    let outside = tempfile::tempdir().unwrap();
    let service = server.pid();
    let at = |path: std::path::PathBuf| path.display().to_string();
    let places = [
        at(others.join("secret.txt")),
        at(home.state_dir(&other)),
        at(home.database()),
        at(home.path().join("ostler.toml")),
        at(home.path().join("admin.key")),
        at(home.path().join("seal.key")),
        format!("/proc/{service}/environ"),
        format!("/proc/{service}/cwd/admin.key"),
        format!("/proc/{service}/root/etc/passwd"),
        format!("/proc/{service}/fd/2"),
    ];
    let mut commands: Vec<String> = places
        .iter()
        .flat_map(|place| [format!("cat {place}"), format!("ls {place}/"), format!("echo x >> {place}")])
        .collect();
    commands.push(format!("echo x > {}", at(outside.path().join("new"))));
    commands.push(format!("echo x > {}", at(others.join("new"))));
    commands.push(format!("ln -s {} link; cat link/secret.txt", at(others.clone())));
    commands.push(format!("kill -9 {service}"));
    let all: String = commands
        .iter()
        .map(|command| format!("({command}) >/dev/null 2>&1 && echo 'GOT {command}'; "))
        .collect();
    let all = all + "echo end; touch own && echo x > $HOME/own && cat /etc/passwd >/dev/null && echo fine";
    let input = json!({"command": all});
    let script = format!("/call shell {input}\n/call mcp__sh__run {input}\n/next\n/say on");
    let row = create(&api, &script, json!({})).await;
    assert_eq!(row["turn"]["text"], "on", "{row}");
    let results = api.events_of(row["id"].as_str().unwrap(), "tool.completed").await;
    assert_eq!(results.len(), 2);
    for result in results {
        let text = result["result"].as_str().unwrap();
        assert!(!text.contains("GOT") && text.contains("end\nfine"), "{text}");
    }
    // The link leads to where the file tools do not follow either.
    let session = row["id"].as_str().unwrap();
    let script = "/call read_file {\"path\": \"link/secret.txt\"}\n/call write_file {\"path\": \"link/new\", \"content\": \"x\"}\n\
                  /call list_files {\"path\": \"link\"}\n/next\n/say on";
    api.prompt(session, script).await;
    for result in &api.events_of(session, "tool.completed").await[2..] {
        assert_eq!(result["status"], "failed", "{result}");
    }
    assert!(!others.join("new").exists());
}

/// A server over HTTP that shows whoever asks what it was asked with, and takes nothing.
async fn mirror() -> (String, tokio::task::JoinHandle<()>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                let Ok(count) = socket.read(&mut bytes).await else { return };
                let shown = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let head =
                    "HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\nconnection: close\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{shown}", shown.len());
                // Whoever asked may be gone.
                drop(socket.write_all(answer.as_bytes()).await);
            });
        }
    });
    (format!("http://{address}"), serving)
}

#[tokio::test]
async fn no_secret_of_the_service_reaches_a_tool_or_a_server_or_anything_that_is_shown_stored_or_logged() {
    let secrets: Vec<String> = (0..8).map(|number| format!("{number:02}ca9a41e5ec4e7")).collect();
    let model = ChatModel::start();
    let (mirror, _serving) = mirror().await;
    let base_url = model.base_url();
    let text = format!(
        "[harness.agent.models.main]\nbase_url = \"{base_url}\"\nmodel = \"scripted\"\ncontext_window = 100000\napi_key_env = \"MODEL_KEY\"\n\
         [harness.agent.models.mirror]\nbase_url = \"{mirror}/v1?key={}\"\nmodel = \"mirror\"\ncontext_window = 100000\napi_key_env = \"MODEL_KEY\"\n\
         attempts = 1\n\
         [harness.agent.tools]\nshell = \"allow\"\n\
         [harness.agent.mcp.fx]\ncommand = [\"python3\", {FAKE_MCP:?}]\nenv = {{ GIVEN = {:?} }}\n\
         [harness.web]\nkind = \"agent\"\n[harness.web.models.main]\nbase_url = \"{base_url}\"\nmodel = \"scripted\"\ncontext_window = 1000\n\
         [harness.web.mcp.web]\nurl = \"{mirror}/mcp?key={}\"\ntoken_env = \"MCP_TOKEN\"\n",
        secrets[5], secrets[6], secrets[7]
    );
    let home = Home::on_postgres();
    fs::write(home.path().join("ostler.toml"), format!("[harness.agent]\ndefault_model = \"main\"\n{text}"))
        .unwrap();
    let database = home.postgres().unwrap().url.replace("ostler@", &format!("ostler:{}@", secrets[0]));
    assert!(database.contains(&secrets[0]), "{database}");
    let address = format!("127.0.0.1:{}", free_port());
    let log = home.path().join("log");
    let mut command =
        home.command(&["serve", "--listen", &address, "--log", "trace", "--log-format", "json"]);
    command
        .env("OSTLER_SEAL_KEY", format!("{}{}", secrets[1], "5".repeat(64 - secrets[1].len())))
        .env("OSTLER_DATABASE_URL", &database)
        .env("MODEL_KEY", &secrets[2])
        .env("MCP_TOKEN", &secrets[3])
        .env("AWS_SECRET_ACCESS_KEY", &secrets[4])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let mut service = command.spawn().unwrap();
    let url = format!("http://{address}");
    within("the service to listen", async {
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let key = fs::read_to_string(home.path().join("admin.key")).unwrap().trim().to_owned();
    let api = Api::new(&url, &key);
    let mut shown = Vec::new();
    let command = "env; cat /proc/self/environ /proc/$PPID/environ; ps e 2>/dev/null";
    let script =
        format!("/call shell {}\n/call mcp__fx__env {{}}\n/next\n/say on", json!({ "command": command }));
    let row = create(&api, &script, json!({})).await;
    let session = row["id"].as_str().unwrap().to_owned();
    assert_eq!(row["turn"]["text"], "on", "{row}");
    assert_eq!(model.authorizations()[0], Some(format!("Bearer {}", secrets[2])));
    // What the operator gives to the server it has, and says when it is asked.
    let results = api.events_of(&session, "tool.completed").await;
    assert!(results[1]["result"].as_str().unwrap().contains(&secrets[6]), "{}", results[1]);
    assert!(!results[0].to_string().contains(&secrets[6]));
    let given = secrets[6].clone();
    for pid in of_agent(&session) {
        shown.push(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/environ")).unwrap()).into_owned());
        shown.push(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap()).into_owned());
    }
    assert!(shown.len() >= 2);
    shown.extend([row.to_string(), results[0].to_string(), results[1].to_string()]);
    for page in ["", "/events", "/transcript", "/turns"] {
        shown.push(api.get(&format!("/v1/sessions/{session}{page}")).await.text);
    }
    for body in [
        json!({"harness": "agent", "prompt": "x", "run_id": "m", "settings": settings(json!({"model": "mirror"}))}),
        json!({"harness": "web", "prompt": "/say x", "run_id": "w", "settings": settings(json!({}))}),
    ] {
        let run = body["run_id"].as_str().unwrap().to_owned();
        shown.push(api.post_and_wait("/v1/sessions", body).await.text);
        let row = api.get(&format!("/v1/runs/{run}")).await.expect(200);
        let error = row["turn"]["error"]["message"].as_str().unwrap().to_owned();
        println!("{run}: {error}");
        assert_eq!(row["turn"]["status"], "failed", "{row}");
        shown.push(row.to_string());
        shown.push(api.get(&format!("/v1/sessions/{}/events", row["id"].as_str().unwrap())).await.text);
    }
    shown.push(api.get("/v1/harnesses").await.text);
    signal(service.id().unwrap(), rustix::process::Signal::TERM);
    within("the service to end", service.wait()).await.unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("shutting down"), "{log}");
    shown.push(log);
    for (number, secret) in secrets.iter().enumerate().filter(|(_, secret)| **secret != given) {
        for text in &shown {
            let at = text.find(secret.as_str());
            let context = at.map(|at| {
                let from = text.floor_char_boundary(at.saturating_sub(300));
                text[from..].chars().take(500).collect::<String>()
            });
            assert_eq!(context, None, "secret {number}");
        }
    }
    let log = shown.last().unwrap();
    assert!(!log.contains(&given), "what a server is given is not logged");
}

#[tokio::test]
async fn what_a_session_remembers_is_sealed_where_it_is_stored() {
    let model = ChatModel::start();
    let home = Home::on_sqlite().with_config(&config(&model, ""));
    let server = home.start().await;
    let api = server.api();
    let script = "/call shell {\"command\": \"echo result-$((40+2))-canary\"}\n/next\n/say done";
    create(&api, script, json!({})).await;
    assert!(server.terminate().await.success());
    use sqlx::{Connection as _, Row as _};
    let path = home.database();
    let mut connection = sqlx::SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
    let rows = sqlx::query("SELECT resume_state FROM agent_harness_sessions")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let state: Vec<u8> = rows[0].get(0);
    assert!(state.len() > 100);
    for words in ["result-42-canary", "canary", "messages", "version"] {
        assert!(!state.windows(words.len()).any(|window| window == words.as_bytes()), "{words}");
    }
}
