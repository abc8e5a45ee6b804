//! The operator's own judge: a command that is given a turn on its stdin and says whether the answer stands.
//!
//! It gets one JSON object, `{"version": 1, "turn_id", "answer", "messages": [{"role", "content", …}]}`, and answers with one on its
//! stdout: `{"ok": true}`, or `{"ok": false, "issue": "what is wrong, for the model"}`. It runs with the service's rights, without a
//! shell, with an environment of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::super::config::ProjectConfig;
use crate::domain::turn::Failure;
use crate::harness::child::{find_program, inherited_env};

/// What is read of its answer at most.
const ANSWER_MAX_BYTES: u64 = 64 << 10;
/// What the model is told of an issue at most, in characters.
const ISSUE_MAX_CHARS: usize = 4000;

/// See the module.
#[derive(Debug)]
pub(in super::super) struct ProjectCheck {
    program: PathBuf,
    args: Vec<String>,
    env: BTreeMap<OsString, OsString>,
    timeout: Duration,
}

#[derive(Deserialize)]
struct Verdict {
    ok: bool,
    #[serde(default)]
    issue: String,
}

impl ProjectCheck {
    /// The operator's command.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn new(config: &ProjectConfig) -> Result<Self, String> {
        let (program, args) = config.command.split_first().ok_or_else(|| "command: is empty".to_owned())?;
        let program = find_program(program, None).map_err(|why| format!("command: {why}"))?;
        let env = inherited_env(&config.inherit_env);
        Ok(Self { program, args: args.to_vec(), env, timeout: Duration::from_secs(config.timeout_seconds) })
    }

    /// Asks it about a turn; gives what is wrong, where something is.
    ///
    /// # Errors
    /// `verification_unavailable` when it gives no answer that can be read.
    pub async fn check(&self, transcript: &Value) -> Result<Option<String>, Failure> {
        let failed = |words: String| {
            Failure::new("verification_unavailable", format!("the command that verifies {words}"))
        };
        let answered = timeout(self.timeout, self.ask(transcript)).await;
        let answered =
            answered.map_err(|_| failed(format!("did not answer within {} s", self.timeout.as_secs())))?;
        let answer = answered.map_err(|error| failed(format!("could not be asked: {error}")))?;
        let verdict: Verdict = serde_json::from_slice(&answer)
            .map_err(|error| failed(format!("gave no answer that can be read: {error}")))?;
        if verdict.ok {
            return Ok(None);
        }
        let issue = if verdict.issue.trim().is_empty() { "no reason was given" } else { &verdict.issue };
        Ok(Some(issue.chars().take(ISSUE_MAX_CHARS).collect()))
    }

    async fn ask(&self, transcript: &Value) -> std::io::Result<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(std::io::Error::other("it came without its pipes"));
        };
        let question = transcript.to_string();
        let tell = async move {
            // One that answers without reading all of it has answered all the same.
            let _ = stdin.write_all(question.as_bytes()).await;
        };
        let mut answer = Vec::new();
        let hear = async { stdout.take(ANSWER_MAX_BYTES).read_to_end(&mut answer).await };
        let ((), heard) = tokio::join!(tell, hear);
        heard?;
        let status = child.wait().await?;
        if status.success() {
            Ok(answer)
        } else {
            Err(std::io::Error::other(format!("it ended with {status}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(script: &str) -> ProjectCheck {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        ProjectCheck::new(&ProjectConfig { command, timeout_seconds: 5, inherit_env: Vec::new() }).unwrap()
    }

    #[tokio::test]
    async fn the_command_is_given_the_turn_and_its_word_counts() {
        let transcript = json!({"answer": "all done"});
        let judge = check(r#"grep -q 'all done' && echo '{"ok": true}'"#);
        assert_eq!(judge.check(&transcript).await, Ok(None));
        let judge = check(r#"echo '{"ok": false, "issue": "tests fail"}'"#);
        assert_eq!(judge.check(&transcript).await, Ok(Some("tests fail".to_owned())));
        let judge = check(r#"echo '{"ok": false}'"#);
        assert_eq!(judge.check(&transcript).await, Ok(Some("no reason was given".to_owned())));
    }

    #[tokio::test]
    async fn one_that_gives_no_answer_is_no_yes() {
        let large = json!({"answer": "x".repeat(1 << 20)});
        for script in ["exit 0", "exit 3", "echo yes", r#"echo '{"ok": true}'; exit 1"#, "kill -9 $$"] {
            let failure = check(script).check(&large).await.unwrap_err();
            assert_eq!(failure.code, "verification_unavailable", "{script}: {}", failure.message);
        }
        let slow = ProjectCheck { timeout: Duration::from_millis(50), ..check("sleep 60") };
        assert!(slow.check(&large).await.unwrap_err().message.contains("did not answer"));
    }

    #[test]
    fn a_command_that_is_not_there_is_a_mistake_of_the_configuration() {
        let config = |command: &[&str]| ProjectConfig {
            command: command.iter().map(|&word| word.to_owned()).collect(),
            timeout_seconds: 5,
            inherit_env: Vec::new(),
        };
        assert!(ProjectCheck::new(&config(&[])).unwrap_err().contains("is empty"));
        assert!(ProjectCheck::new(&config(&["no-such-program"])).unwrap_err().contains("is not on the PATH"));
    }
}
