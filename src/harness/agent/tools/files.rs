//! The file tools: `read_file`, `write_file`, `list_files`.

use serde_json::{Value, json};

use super::cap::capped;
use super::input::Fields;
use super::{Called, ToolSpec};
use crate::domain::event::{FileOperation, Output};
use crate::harness::workspace::{FILE_MAX_BYTES, Refusal, Workspace};

pub(super) const READ: &str = "read_file";
pub(super) const WRITE: &str = "write_file";
pub(super) const LIST: &str = "list_files";
/// Their names.
pub(super) const NAMES: [&str; 3] = [READ, WRITE, LIST];

/// What the model is told of them.
pub(super) fn specs() -> Vec<ToolSpec> {
    let path = |words: &str| json!({"type": "string", "description": words});
    let spec = |name: &str, kind: &str, description: String, properties: Value, required: &[&str]| ToolSpec {
        name: name.to_owned(),
        description,
        kind: kind.to_owned(),
        input_schema: json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false
        }),
        asks: false,
    };
    let mib = FILE_MAX_BYTES >> 20;
    vec![
        spec(
            READ,
            "read",
            format!("Reads a text file of the workspace, of at most {mib} MiB."),
            json!({
                "path": path("Relative to the workspace."),
                "offset": {"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1."},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines to read."}
            }),
            &["path"],
        ),
        spec(
            WRITE,
            "edit",
            format!(
                "Writes a text file of the workspace, whole, with the directories above it. At most {mib} MiB."
            ),
            json!({
                "path": path("Relative to the workspace."),
                "content": {"type": "string", "description": "The whole new content."}
            }),
            &["path", "content"],
        ),
        spec(
            LIST,
            "read",
            "Lists a directory of the workspace. Directories end with /, symbolic links with @.".to_owned(),
            json!({
                "path": path("Relative to the workspace; the workspace itself where it is left out."),
                "recursive": {"type": "boolean", "description": "Whether to list the directories below it too."}
            }),
            &[],
        ),
    ]
}

/// Does what the model wants. What has begun runs to its end, even when nobody waits for it any more.
pub(super) async fn call(workspace: &Workspace, max: usize, name: &str, input: &Value) -> Called {
    let job = match read_job(name, input) {
        Ok(job) => job,
        Err(complaint) => return Called::failed(complaint),
    };
    let workspace = workspace.clone();
    let done = tokio::task::spawn_blocking(move || job.run(&workspace, max)).await;
    match done {
        Ok(Ok(called)) => called,
        Ok(Err(refusal)) => Called::failed(capped(refusal.to_string(), max)),
        // This fails only at the end of the runtime.
        Err(error) => Called::uncertain(format!("{name} did not come to its end: {error}")),
    }
}

enum Job {
    Read { path: String, offset: Option<usize>, limit: Option<usize> },
    Write { path: String, content: String },
    List { path: String, recursive: bool },
}

fn read_job(name: &str, input: &Value) -> Result<Job, String> {
    let mut fields = Fields::of(name, input)?;
    let job = match name {
        READ => Job::Read {
            path: fields.text("path")?,
            offset: fields.count("offset")?,
            limit: fields.count("limit")?,
        },
        WRITE => Job::Write { path: fields.text("path")?, content: fields.text("content")? },
        _ => Job::List {
            path: fields.optional_text("path")?.unwrap_or_else(|| ".".to_owned()),
            recursive: fields.switch("recursive")?,
        },
    };
    fields.end().map(|()| job)
}

impl Job {
    fn run(self, workspace: &Workspace, max: usize) -> Result<Called, Refusal> {
        match self {
            Self::Read { path, offset, limit } => {
                let text = workspace.read(&path, offset, limit)?;
                let empty = if offset.is_some() { "[no such lines]" } else { "[an empty file]" };
                Ok(Called::succeeded(if text.is_empty() { empty.to_owned() } else { capped(text, max) }))
            }
            Self::Write { path, content } => {
                let operation = workspace.write(&path, &content)?;
                let path = workspace.roots().shown(&path);
                let verb = if operation == FileOperation::Create { "Created" } else { "Changed" };
                let summary = format!("{verb} {path}: {} bytes", content.len());
                let called = Called::succeeded(capped(summary.clone(), max));
                Ok(Called { changed: Some(Output::FileChanged { path, operation, summary }), ..called })
            }
            Self::List { path, recursive } => {
                let listing = workspace.list(&path, recursive)?;
                let mut text = listing.entries.join("\n");
                if listing.is_cut {
                    text.insert_str(0, "[there is more than can be listed: list a directory below]\n");
                } else if text.is_empty() {
                    text.push_str("[an empty directory]");
                }
                Ok(Called::succeeded(capped(text, max)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::harness::Fence;
    use crate::harness::agent::message::Outcome;

    struct Case {
        root: tempfile::TempDir,
        workspace: Workspace,
    }

    impl Case {
        fn new(fence: Fence) -> Self {
            let root = tempfile::tempdir().unwrap();
            let workspace = Workspace::open(root.path(), fence).unwrap();
            Self { root, workspace }
        }

        async fn call(&self, name: &str, input: Value) -> Called {
            call(&self.workspace, 1000, name, &input).await
        }
    }

    fn said(called: &Called) -> (Outcome, &str) {
        (called.outcome, called.content.as_str())
    }

    #[tokio::test]
    async fn a_file_is_written_read_in_parts_and_listed() {
        let case = Case::new(Fence::open());
        let written = case.call(WRITE, json!({"path": "a/b.txt", "content": "one\ntwo\nthree\n"})).await;
        assert_eq!(said(&written), (Outcome::Succeeded, "Created a/b.txt: 14 bytes"));
        let changed = |operation, summary: &str| {
            let (path, summary) = ("a/b.txt".to_owned(), summary.to_owned());
            Some(Output::FileChanged { path, operation, summary })
        };
        assert_eq!(written.changed, changed(FileOperation::Create, "Created a/b.txt: 14 bytes"));
        let path = case.root.path().join("a/b.txt");
        let again =
            case.call(WRITE, json!({"path": path.to_str().unwrap(), "content": "one\ntwo\nthree"})).await;
        assert_eq!(again.changed, changed(FileOperation::Update, "Changed a/b.txt: 13 bytes"));
        let part = case.call(READ, json!({"path": "a/b.txt", "offset": 2, "limit": 1})).await;
        assert_eq!(said(&part), (Outcome::Succeeded, "two\n"));
        assert_eq!(part.changed, None);
        let beyond = case.call(READ, json!({"path": "a/b.txt", "offset": 9})).await;
        assert_eq!(said(&beyond), (Outcome::Succeeded, "[no such lines]"));
        assert_eq!(said(&case.call(LIST, json!({})).await), (Outcome::Succeeded, "a/"));
        let all = case.call(LIST, json!({"path": ".", "recursive": true})).await;
        assert_eq!(said(&all), (Outcome::Succeeded, "a/\na/b.txt"));
    }

    #[tokio::test]
    async fn what_lies_outside_is_a_failed_call_and_not_touched() {
        let case = Case::new(Fence::open());
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "canary").unwrap();
        std::os::unix::fs::symlink(outside.path(), case.root.path().join("out")).unwrap();
        let absolute = outside.path().join("secret").display().to_string();
        for path in ["../x", "out/secret", &absolute, ""] {
            for (name, input) in
                [(READ, json!({"path": path})), (WRITE, json!({"path": path, "content": "changed"}))]
            {
                let called = case.call(name, input).await;
                assert_eq!((called.outcome, called.changed), (Outcome::Failed, None), "{name} {path}");
                assert!(!called.content.contains("canary"));
            }
        }
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "canary");
    }

    #[tokio::test]
    async fn a_wrong_input_is_a_failed_call_that_names_the_field() {
        let case = Case::new(Fence::open());
        for (name, input, field) in [
            (READ, json!({"path": 1}), "path"),
            (READ, json!({"path": "a", "offset": 0}), "offset"),
            (WRITE, json!({"path": "a"}), "content"),
            (WRITE, json!({"path": "a", "content": "", "mode": 7}), "mode"),
            (LIST, json!({"recursive": "yes"}), "recursive"),
        ] {
            let called = case.call(name, input).await;
            assert_eq!(called.outcome, Outcome::Failed);
            assert!(called.content.contains(&format!("\"{field}\"")), "{}", called.content);
        }
        assert_eq!(fs::read_dir(case.root.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_long_file_is_cut_for_the_model_and_says_so() {
        let case = Case::new(Fence::open());
        fs::write(case.root.path().join("long"), "ñ".repeat(10_000)).unwrap();
        let called = case.call(READ, json!({"path": "long"})).await;
        assert!(called.content.len() <= 1000 && called.content.contains("bytes left out"));
    }

    #[tokio::test]
    async fn nothing_is_written_once_the_session_may_be_another_s() {
        let case = Case::new(Fence::new(|| false));
        let called = case.call(WRITE, json!({"path": "a", "content": "x"})).await;
        assert_eq!(called.outcome, Outcome::Failed);
        assert!(called.content.contains("held elsewhere"), "{}", called.content);
        assert_eq!(fs::read_dir(case.root.path()).unwrap().count(), 0);
    }
}
