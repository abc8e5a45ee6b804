//! The mode in which the prompt is a script, one directive a line; anything else is ignored.
//!
//! | directive | what the agent does |
//! |---|---|
//! | `say TEXT`, `think TEXT`, `plan A; B` | says it; thinks it; plans it |
//! | `flood N` | says N short texts |
//! | `run CMD` | tool call, then permission; if allowed appends to `effects.jsonl` in its directory and completes the call |
//! | `look CMD` | the same, labelled as a read |
//! | `permission-first CMD` | the same, but asks before it tells of the call, with a UUID as request id |
//! | `withdraw CMD` | asks, takes the question back, and says how that was answered |
//! | `ask-twice CMD` | asks two questions at once, then waits for both |
//! | `outside` | asks after the turn has ended, and says the answer |
//! | `open CMD` | begins a tool call and leaves it so |
//! | `edit PATH TEXT` | writes a file itself and tells the difference |
//! | `write PATH TEXT`, `read PATH` | through the client; says what came of it |
//! | `remember WORD`, `recall` | keeps a word in its state directory with the session; says the last one |
//! | `late WORD` | keeps a word as well, a moment after it has told the end of the turn |
//! | `instructions` | says the blocks of this prompt but the last |
//! | `hang`, `deaf-cancel` | waits for a cancel; waits for ever |
//! | `cancel-then-ask CMD` | waits for a cancel, then asks as if it had not come yet |
//! | `die` | exits with code 3 |
//! | `fork`, `fork-bare` | starts a child in a session of its own that holds stdout open; with an empty environment |
//! | `fork-orphan`, `fork-lost` | the same as the second, but its parent goes at once; and its directory is `/` |
//! | `peek PATH`, `poke PATH`, `signal PID` | reads it; writes it; sends it a signal that does nothing; says whether it could |
//! | `env` | says its environment |
//! | `error CODE TEXT`, `refuse`, `stop REASON` | ends the turn with an error; as a refusal; for that reason |
//! | `deny-ends` | from here on a denial ends the turn as cancelled |
//! | `usage IN OUT` | tells these tokens at the end |
//! | `other-session` | says something in another conversation |
//! | `put TEXT` | writes the text as a line, `$S` in it the conversation's id and `$P` the prompt's request id |
//! | `update JSON` | tells that update |
//! | `ask ID OPTIONS CALL` | asks for permission under that request id, options as `id:kind,id:kind` or `-`; does not wait |
//! | `heard ID` | waits for the answer to that request, and says it |
//! | `await-cancel` | waits for a cancel and goes on |
//! | `end JSON`, `never` | ends the turn with that result; leaves the prompt without an answer |
//! | `drip`, `endless`, `gigabyte` | says a word byte by byte; says words for ever; writes a line of 1 GiB |
//! | `garbage N`, `stderr N` | N lines that are no messages; N times 64 KiB on stderr |
//! | `large N BYTES`, `results N BYTES` | N texts, or results of tools, of so many bytes |
//! | `opens N BYTES`, `asks N BYTES` | begins N calls, or asks N questions, with so large an input; does not wait |
//! | `reads N` | asks for `large.txt` N times and reads nothing more |
//! | `wide N`, `deep N` | an update of N values; one of N levels |
//! | `foreign N` | N updates and questions of another conversation |
//! | `hammer PATH` | writes and reads the file through the client until there is a file `done`; says what came out |
//!
//! Flags: `--resume` (the default), `--load` and `--no-restore` choose how a conversation is taken up; `--auth` wants
//! `authenticate` before a conversation; `--auth-on-restore` refuses to take one up without credentials; `--stay` makes it
//! stay when stdin is closed; `--mode` refuses prompts until `session/set_mode` has come; `--no-mode` refuses that;
//! `--unknown CODE` refuses every conversation of before with that code; `--version JSON` is the version it speaks; `--wait-for FILE`
//! says nothing until there is such a file in its directory; `--off-by-one` answers, once a turn was cancelled, each prompt with the
//! result of the one before, as claude-agent-acp 0.23.1 does.
//!
//! A prompt that begins with `[ostler]` tells what was decided about the call that a lost process had asked for: approved, the
//! script goes on from that call; denied, behind it. With `--forgetful` the agent then asks for nothing, with `--other-call` for
//! something else.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::wire::{raw, read};

/// The agent with what it knows.
pub struct Agent {
    flags: Vec<String>,
    pub session_id: String,
    authenticated: bool,
    mode_set: bool,
    next_request: u64,
    next_call: u64,
    // Answers that came while another one was waited for.
    answers: HashMap<String, Value>,
    cancelled: bool,
    // The script from the directive at work on.
    rest: String,
    // With `--off-by-one`, once a turn was cancelled: the result that the next prompt gets.
    owed: Option<Value>,
}

/// How a turn goes on after a directive.
pub enum Next {
    GoOn,
    Stop(&'static str),
    End(Value),
}

impl Agent {
    pub fn new(flags: &[String]) -> Self {
        Self {
            flags: flags.to_vec(),
            session_id: String::new(),
            authenticated: false,
            mode_set: false,
            next_request: 0,
            next_call: 0,
            answers: HashMap::new(),
            cancelled: false,
            rest: String::new(),
            owed: None,
        }
    }

    pub fn run(mut self) {
        if let Some(file) = self.value("--wait-for") {
            while !Path::new(file).exists() {
                sleep(Duration::from_millis(2));
            }
        }
        while let Some(message) = read() {
            self.take(&message);
        }
        while self.has("--stay") {
            sleep(Duration::from_secs(60));
        }
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    // What follows a flag.
    fn value(&self, flag: &str) -> Option<&str> {
        let place = self.flags.iter().position(|given| given == flag)?;
        self.flags.get(place + 1).map(String::as_str)
    }

    fn take(&mut self, message: &Value) {
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            Some("initialize") => answer(id, self.capabilities()),
            Some("authenticate") => {
                self.authenticated = true;
                answer(id, json!({}));
            }
            Some("session/new") if self.has("--auth") && !self.authenticated => {
                refuse(id, -32000, "Authentication required");
            }
            Some("session/new") => {
                self.session_id = format!("s-{}", std::process::id());
                self.store(&json!({"words": []}));
                let modes = json!({"currentModeId": "auto", "availableModes": [{"id": "auto"}, {"id": "ask", "name": "Ask"}]});
                answer(id, json!({"sessionId": self.session_id, "modes": modes}));
                let update = json!({"sessionUpdate": "available_commands_update", "availableCommands": []});
                self.update(update);
            }
            Some("session/load" | "session/resume") => self.restore(message),
            Some("session/set_mode") if self.has("--no-mode") => refuse(id, -32602, "no such mode"),
            Some("session/set_mode") => {
                self.mode_set = params["sessionId"] == self.session_id.as_str();
                answer(id, json!({}));
            }
            Some("session/prompt") => self.prompt(id, &params["prompt"]),
            Some("session/cancel") => {
                self.cancelled = true;
                if self.has("--off-by-one") {
                    self.owed = Some(json!({"stopReason": "end_turn"}));
                }
            }
            Some(_) if !id.is_null() => refuse(id, -32601, "no"),
            Some(_) => {}
            None => {
                self.answers.insert(id.to_string(), message.clone());
            }
        }
    }

    fn capabilities(&self) -> Value {
        let mut capabilities = json!({"loadSession": self.has("--load"), "sessionCapabilities": {}});
        if !self.has("--load") && !self.has("--no-restore") {
            capabilities["sessionCapabilities"] = json!({"resume": {}});
        }
        let methods = json!([{"id": "key", "name": "Key"}]);
        let info = json!({"name": "fake-acp-agent", "version": "7"});
        let version: Value = serde_json::from_str(self.value("--version").unwrap_or("1")).unwrap();
        json!({"protocolVersion": version, "agentCapabilities": capabilities, "authMethods": methods, "agentInfo": info})
    }

    fn restore(&mut self, message: &Value) {
        let id = &message["id"];
        if self.has("--auth-on-restore") {
            return refuse(id, -32000, "Authentication required");
        }
        if let Some(code) = self.value("--unknown") {
            return refuse(id, code.parse().unwrap(), "no such conversation");
        }
        self.session_id = message["params"]["sessionId"].as_str().unwrap().to_owned();
        if !self.file().exists() {
            return refuse(id, -32002, "Session not found");
        }
        if message["method"] == "session/load" {
            for kind in ["user_message_chunk", "agent_message_chunk"] {
                self.chunk(kind, "replayed");
            }
            self.update(json!({"sessionUpdate": "tool_call", "toolCallId": "old", "title": "replayed"}));
        }
        answer(id, json!({}));
        self.update(json!({"sessionUpdate": "available_commands_update", "availableCommands": []}));
    }

    fn prompt(&mut self, id: &Value, prompt: &Value) {
        self.cancelled = false;
        let is_behind = self.owed.is_some();
        if let Some(owed) = self.owed.take() {
            answer(id, owed);
        }
        if self.has("--mode") && !self.mode_set {
            return refuse(id, -32603, "the mode is not set");
        }
        let blocks: Vec<&str> =
            prompt.as_array().unwrap().iter().map(|b| b["text"].as_str().unwrap()).collect();
        let (script, before) = blocks.split_last().unwrap();
        let (mut end, mut usage, mut deny_ends, mut outside, mut late) =
            (json!({"stopReason": "end_turn"}), Value::Null, false, false, None);
        let script = if script.starts_with("[ostler]") { self.told(script) } else { (*script).to_owned() };
        let lines: Vec<&str> = script.lines().collect();
        for (place, line) in lines.iter().enumerate() {
            self.rest = lines[place..].join("\n");
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let next = match word {
                "instructions" => self.say(&before.join("|")),
                "usage" => {
                    let tokens: Vec<u64> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
                    usage = json!({"totalTokens": 9, "inputTokens": tokens[0], "outputTokens": tokens[1]});
                    Next::GoOn
                }
                "deny-ends" => {
                    deny_ends = true;
                    Next::GoOn
                }
                "outside" => {
                    outside = true;
                    Next::GoOn
                }
                "late" => {
                    late = Some(rest);
                    Next::GoOn
                }
                "run" | "permission-first" if deny_ends => match self.directive(word, rest, id) {
                    Next::Stop("denied") => Next::Stop("cancelled"),
                    next => next,
                },
                _ => self.directive(word, rest, id),
            };
            match next {
                Next::GoOn | Next::Stop("denied") => {}
                Next::Stop(reason) => {
                    end = json!({"stopReason": reason});
                    break;
                }
                Next::End(Value::Null) => return,
                Next::End(result) => {
                    end = result;
                    break;
                }
            }
        }
        if !usage.is_null() {
            end["usage"] = usage;
        }
        if is_behind {
            self.owed = Some(end);
            return;
        }
        answer(id, end);
        if let Some(word) = late {
            sleep(Duration::from_millis(200));
            self.remember(word);
        }
        if outside {
            let request =
                self.ask(&json!({"toolCallId": "outside", "title": "outside", "kind": "execute"}), false);
            let outcome = self.wait(&request);
            self.say(&format!("outside {}", outcome["result"]["outcome"]["optionId"]));
        }
    }

    // What is left to do after a decision about the call that a lost process of this conversation had asked for.
    fn told(&self, words: &str) -> String {
        if self.has("--forgetful") {
            return "say forgotten".to_owned();
        }
        if self.has("--other-call") {
            return "run other".to_owned();
        }
        let asked = self.stored()["asked"].as_str().unwrap_or_default().to_owned();
        if words.contains("It was approved") {
            return asked;
        }
        asked.split_once('\n').map_or(String::new(), |(_, behind)| behind.to_owned())
    }

    fn directive(&mut self, word: &str, rest: &str, id: &Value) -> Next {
        if let Some(next) = self.wild(word, rest, id) {
            return next;
        }
        match word {
            "say" => self.say(rest),
            "think" => self.chunk("agent_thought_chunk", rest),
            "plan" => {
                let entries: Vec<Value> = rest
                    .split("; ")
                    .map(|step| json!({"content": step, "priority": "medium", "status": "pending"}))
                    .collect();
                self.update(json!({"sessionUpdate": "plan", "entries": entries}))
            }
            "flood" => {
                for i in 0..rest.parse().unwrap() {
                    self.say(&format!("{i} "));
                }
                Next::GoOn
            }
            "run" => self.run_tool(rest, "execute", false),
            "look" => self.run_tool(rest, "read", false),
            "permission-first" => self.run_tool(rest, "execute", true),
            "ask-twice" => self.ask_twice(rest),
            "withdraw" => self.withdraw(rest),
            "open" => self.update(json!({"sessionUpdate": "tool_call", "toolCallId": "open", "title": rest})),
            "edit" => self.edit(rest),
            "write" => {
                let (path, content) = rest.split_once(' ').unwrap();
                self.through_client("fs/write_text_file", json!({"path": path, "content": content}))
            }
            "read" => self.through_client("fs/read_text_file", json!({"path": rest})),
            "remember" => self.remember(rest),
            "recall" => {
                let state = self.stored();
                let word = state["words"].as_array().unwrap().last().cloned().unwrap_or("NOTHING".into());
                self.say(word.as_str().unwrap())
            }
            "hang" => self.hang(),
            "deaf-cancel" => {
                while read().is_some() {}
                Next::End(Value::Null)
            }
            "cancel-then-ask" => {
                self.hang();
                self.run_tool(rest, "execute", true);
                Next::Stop("cancelled")
            }
            "die" => {
                eprintln!("\x1b[31mdying\x1b[0m");
                std::process::exit(3)
            }
            "fork" | "fork-bare" | "fork-orphan" | "fork-lost" => fork(word),
            "peek" => {
                let read = fs::read_dir(rest).map(drop).or_else(|_| fs::read(rest).map(drop));
                self.tried(&format!("{word} {rest}"), read)
            }
            "poke" => {
                let written = fs::File::options().append(true).create(true).open(rest).map(drop);
                self.tried(&format!("{word} {rest}"), written)
            }
            "signal" => {
                let pid = rustix::process::Pid::from_raw(rest.parse().unwrap()).unwrap();
                self.tried(
                    &format!("{word} {rest}"),
                    rustix::process::test_kill_process(pid).map_err(Into::into),
                )
            }
            "env" => {
                let mut lines: Vec<String> =
                    std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
                lines.sort();
                self.say(&lines.join("\n"))
            }
            "error" => {
                let (code, text) = rest.split_once(' ').unwrap();
                refuse(id, code.parse().unwrap(), text);
                Next::End(Value::Null)
            }
            "refuse" => Next::Stop("refusal"),
            "stop" => Next::End(json!({"stopReason": rest})),
            "other-session" => {
                let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "other"}});
                notify("session/update", json!({"sessionId": "another", "update": update}));
                Next::GoOn
            }
            _ => Next::GoOn,
        }
    }

    fn run_tool(&mut self, command: &str, kind: &str, permission_first: bool) -> Next {
        let mut call = self.call(command);
        call["kind"] = kind.into();
        let begin = json!({"sessionUpdate": "tool_call", "status": "pending"});
        let whole = |mut update: Value| {
            for (key, value) in call.as_object().unwrap() {
                update[key] = value.clone();
            }
            update
        };
        if !permission_first {
            self.update(whole(begin.clone()));
        }
        let request = self.ask(&call, permission_first);
        let outcome = self.wait(&request)["result"]["outcome"].take();
        if self.cancelled {
            return Next::Stop("cancelled");
        }
        let allowed = outcome["optionId"].as_str().is_some_and(|id| id.starts_with("yes"));
        if !allowed {
            if !permission_first {
                self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": call["toolCallId"], "status": "failed"}));
            }
            return Next::Stop("denied");
        }
        if permission_first {
            self.update(whole(begin));
        }
        effect(&json!({"command": command, "option": outcome["optionId"]}));
        self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": call["toolCallId"], "status": "completed",
            "rawOutput": {"exit_code": 0}}))
    }

    fn ask_twice(&mut self, command: &str) -> Next {
        let (first, second) = (self.call(command), self.call(command));
        let (first, second) = (self.ask(&first, false), self.ask(&second, false));
        for request in [second, first] {
            let outcome = self.wait(&request)["result"]["outcome"]["optionId"].take();
            self.say(&format!("{outcome} "));
        }
        Next::GoOn
    }

    fn withdraw(&mut self, command: &str) -> Next {
        let call = self.call(command);
        let request = self.ask(&call, true);
        notify("$/cancel_request", json!({"requestId": request}));
        let answer = self.wait(&request);
        self.say(&format!("withdrawn {}", answer["error"]["code"]))
    }

    fn call(&mut self, command: &str) -> Value {
        self.next_call += 1;
        json!({"toolCallId": format!("call-{}", self.next_call), "title": format!("Run: {command}"), "kind": "execute",
            "rawInput": {"command": command}})
    }

    // The id of the request: a number from 0, as most agents have it, or a UUID.
    fn ask(&mut self, call: &Value, with_uuid: bool) -> Value {
        let options = json!([
            {"optionId": "yes-always", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
            {"optionId": "no", "name": "Reject", "kind": "reject_once"},
        ]);
        let mut state = self.stored();
        state["asked"] = self.rest.clone().into();
        self.store(&state);
        let params = json!({"sessionId": self.session_id, "toolCall": call, "options": options});
        self.request("session/request_permission", params, with_uuid)
    }

    fn through_client(&mut self, method: &str, mut params: Value) -> Next {
        params["sessionId"] = json!(self.session_id);
        let request = self.request(method, params, false);
        let answer = self.wait(&request);
        match &answer["error"] {
            Value::Null => self.say(answer["result"]["content"].as_str().unwrap_or("written")),
            error => self.say(&format!("refused {}", error["code"])),
        }
    }

    fn edit(&mut self, rest: &str) -> Next {
        let (path, text) = rest.split_once(' ').unwrap();
        let absolute = std::env::current_dir().unwrap().join(path);
        let old = fs::read_to_string(&absolute).ok();
        self.next_call += 1;
        let id = format!("call-{}", self.next_call);
        self.update(json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": format!("Edit {path}"), "kind": "edit",
            "status": "pending", "rawInput": {"path": path}}));
        fs::write(&absolute, text).unwrap();
        let diff = json!({"type": "diff", "path": absolute, "oldText": old, "newText": text});
        self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": [diff]}))
    }

    pub fn hang(&mut self) -> Next {
        while !self.cancelled {
            let Some(message) = read() else { return Next::End(Value::Null) };
            self.take(&message);
        }
        Next::Stop("cancelled")
    }

    pub fn request(&mut self, method: &str, params: Value, with_uuid: bool) -> Value {
        let id = if with_uuid {
            json!(format!("0197a0c0-c0c0-7000-a000-{:012}", self.next_request))
        } else {
            json!(self.next_request)
        };
        self.next_request += 1;
        put(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn wait(&mut self, request: &Value) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&request.to_string()) {
                return answer;
            }
            let Some(message) = read() else { std::process::exit(0) };
            self.take(&message);
        }
    }

    fn tried(&self, what: &str, result: std::io::Result<()>) -> Next {
        let outcome = result.map_or_else(|error| format!("refused: {error}"), |()| "done".to_owned());
        self.say(&format!("{what}: {outcome}\n"))
    }

    pub fn say(&self, text: &str) -> Next {
        self.chunk("agent_message_chunk", text)
    }

    fn chunk(&self, kind: &str, text: &str) -> Next {
        self.update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
    }

    pub fn update(&self, update: Value) -> Next {
        notify("session/update", json!({"sessionId": self.session_id, "update": update}));
        Next::GoOn
    }

    fn file(&self) -> PathBuf {
        let home = std::env::var_os("HOME").unwrap();
        Path::new(&home).join("fake-sessions").join(format!("{}.json", self.session_id))
    }

    fn remember(&self, word: &str) -> Next {
        let mut state = self.stored();
        state["words"].as_array_mut().unwrap().push(word.into());
        self.store(&state);
        Next::GoOn
    }

    fn stored(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.file()).unwrap()).unwrap()
    }

    fn store(&self, state: &Value) {
        fs::create_dir_all(self.file().parent().unwrap()).unwrap();
        // It may be killed at any moment, and keeps what it had then.
        let partial = self.file().with_extension("partial");
        fs::write(&partial, state.to_string()).unwrap();
        fs::rename(partial, self.file()).unwrap();
    }
}

/// What the child of `fork` does: leaves the session, writes its process id, and sleeps.
pub fn sleep_in_own_session(pid_file: &str) {
    rustix::process::setsid().unwrap();
    // Renamed into place, so that it is never read half written.
    let partial = format!("{pid_file}.partial");
    fs::write(&partial, std::process::id().to_string()).unwrap();
    fs::rename(partial, pid_file).unwrap();
    sleep(Duration::from_secs(600));
}

/// What the child of `fork-orphan` does: starts a child, and goes.
pub fn leave_a_sleeper(pid_file: &str) {
    sleeper("sleeper", Path::new(pid_file)).spawn().unwrap();
}

// Not in a group of its own: that would make it a group leader, which cannot open a session.
fn sleeper(role: &str, pid_file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role).arg(pid_file).arg0("sleeper").stdin(Stdio::null());
    command
}

fn fork(kind: &str) -> Next {
    let file = std::env::current_dir().unwrap().join("grandchild.pid");
    let is_orphan = matches!(kind, "fork-orphan" | "fork-lost");
    let mut command = sleeper(if is_orphan { "orphaner" } else { "sleeper" }, &file);
    if kind != "fork" {
        command.env_clear();
    }
    if kind == "fork-lost" {
        command.current_dir("/");
    }
    let mut child = command.spawn().unwrap();
    if is_orphan {
        child.wait().unwrap();
    }
    while !file.exists() {
        sleep(Duration::from_millis(2));
    }
    Next::GoOn
}

fn effect(effect: &Value) {
    let mut file = fs::File::options().create(true).append(true).open("effects.jsonl").unwrap();
    file.write_all(format!("{effect}\n").as_bytes()).unwrap();
}

fn answer(id: &Value, result: Value) {
    put(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn refuse(id: &Value, code: i64, message: &str) {
    put(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
}

pub fn notify(method: &str, params: Value) {
    put(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

pub fn put(message: &Value) {
    raw(&format!("{message}\n"));
}
