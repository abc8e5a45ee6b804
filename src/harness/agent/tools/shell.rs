//! `shell`: one command in the workspace, as a child process that ends with all it has started.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::time::timeout;

use super::cap::{HeadAndTail, capped};
use super::input::Fields;
use super::place::Place;
use super::{Called, ToolSpec};
use crate::harness::agent::message::Outcome;
use crate::harness::child::{Exit, Pipes, Process, find_program};

pub(super) const NAME: &str = "shell";

/// No command is longer; the kernel takes 128 KiB in one word.
const COMMAND_MAX_BYTES: usize = 64 << 10;
/// What the shell does before it is the command's: both outputs are one, and nobody answers its questions.
const PRELUDE: &str = "exec \"$1\" -c \"$2\" 2>&1 </dev/null";
/// How long the pipe may stay open when nothing of the command runs any more.
const PIPE_GRACE: Duration = Duration::from_secs(1);

/// What the model is told of it.
pub(super) fn spec(asks: bool, limit: Duration) -> ToolSpec {
    let seconds = limit.as_secs();
    ToolSpec {
        name: NAME.to_owned(),
        description: format!(
            "Runs a command with sh -c in the workspace and gives its output, stdout and stderr together. \
             It has no stdin. After {seconds} s it is killed. What it leaves running in the background ends with it."
        ),
        kind: "execute".to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
            "additionalProperties": false
        }),
        asks,
    }
}

/// Runs a command. Dropping the future kills it.
pub(super) async fn call(place: &Place, limit: Duration, max: usize, input: &Value) -> Called {
    let command = match read_command(input) {
        Ok(command) => command,
        Err(complaint) => return Called::failed(complaint),
    };
    let (process, pipes) = match start(place, command).await {
        Ok(started) => started,
        Err(complaint) => {
            return Called::failed(capped(format!("it could not be started: {complaint}"), max));
        }
    };
    let mut output = HeadAndTail::new(max);
    let ended = timeout(limit, follow(&process, pipes, &mut output)).await;
    let Ok(exit) = ended else {
        process.kill().await;
        let seconds = limit.as_secs();
        let words = format!("The command was killed after {seconds} s; it may have done a part of its work.");
        return Called::uncertain(report(&words, output, max));
    };
    if let Some(complaint) = process.launch_complaint().await {
        return Called::failed(capped(format!("it could not be started: {complaint}"), max));
    }
    let content = report(&format!("The command {}.", exit.words()), output, max);
    let outcome = if exit.is_success() { Outcome::Succeeded } else { Outcome::Failed };
    Called { outcome, content, changed: None }
}

fn read_command(input: &Value) -> Result<String, String> {
    let mut fields = Fields::of(NAME, input)?;
    let command = fields.text("command")?;
    fields.end()?;
    if command.trim().is_empty() {
        return Err(format!("{NAME}: \"command\" is empty"));
    }
    if command.len() > COMMAND_MAX_BYTES {
        return Err(format!("{NAME}: \"command\" is longer than {COMMAND_MAX_BYTES} bytes"));
    }
    if command.contains('\0') {
        return Err(format!("{NAME}: \"command\" holds a NUL character"));
    }
    Ok(command)
}

async fn start(place: &Place, command: String) -> Result<(Process, Pipes), String> {
    let sh = find_program("sh", None)?.into_os_string();
    let argv = vec![sh.clone(), "-c".into(), PRELUDE.into(), "sh".into(), sh, command.into()];
    let launch = place.launch(argv, &[], &BTreeMap::new(), "shell.log").map_err(|error| error.to_string())?;
    place.fence.pass().map_err(|error| error.to_string())?;
    Process::spawn(launch).await.map_err(|error| error.to_string())
}

// Its exit is told when nothing that it started runs any more, and what is still in the pipe then is soon read.
async fn follow(process: &Process, pipes: Pipes, output: &mut HeadAndTail) -> Exit {
    let Pipes { stdin, stdout } = pipes;
    drop(stdin);
    let mut read = std::pin::pin!(read_all(stdout, output));
    tokio::select! {
        exit = process.exited() => {
            // Where the pipe stays open, somebody holds it whom nobody knows.
            let _ = timeout(PIPE_GRACE, read).await;
            exit
        }
        () = &mut read => process.exited().await,
    }
}

async fn read_all(mut pipe: ChildStdout, output: &mut HeadAndTail) {
    let mut bytes = [0; 8192];
    while let Ok(count @ 1..) = pipe.read(&mut bytes).await {
        output.push(&bytes[..count]);
    }
}

fn report(words: &str, output: HeadAndTail, max: usize) -> String {
    let output = output.into_text();
    let content =
        if output.is_empty() { format!("{words} It said nothing.") } else { format!("{words}\n{output}") };
    capped(content, max)
}
