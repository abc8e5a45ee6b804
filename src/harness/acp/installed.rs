//! What is installed: the package that a program came in, its version, and the Node that runs it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::config::AcpConfig;
use super::{launch, presets};

/// No package.json is larger.
const MANIFEST_MAX_BYTES: u64 = 1 << 20;
/// No first line of a script is longer.
const FIRST_LINE_MAX_BYTES: u64 = 256;
/// How long Node may take to say which one it is.
const NODE_DEADLINE: Duration = Duration::from_secs(5);

/// A package, as its package.json names it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The package that an agent's program came in; `None` for a program that is no part of one.
pub(super) fn package(config: &AcpConfig, program: &Path) -> Option<Package> {
    let script = script(config, program).unwrap_or_else(|| program.to_owned());
    package_of(&script)
}

/// Whether the package is that of another known agent than the description is for.
pub(super) fn is_other_agent(config: &AcpConfig, package: &Package) -> bool {
    let needs = config.needs.as_ref();
    needs.is_some_and(|needs| needs.package != package.name) && presets::for_package(&package.name).is_some()
}

/// Whether the program can be the agent that the description is for.
///
/// # Errors
/// In words, when it is another known agent, or nothing here runs it.
pub(super) fn suits(config: &AcpConfig, program: &Path) -> Result<(), String> {
    let Some(needs) = &config.needs else { return Ok(()) };
    if let Some(package) = package(config, program)
        && is_other_agent(config, &package)
        && let Some(preset) = presets::for_package(&package.name)
    {
        let Package { name, version } = package;
        return Err(format!("{} is {name} {version}, which the preset {preset} is for", program.display()));
    }
    if let Some(lowest) = needs.node
        && let Some(node) = node(config, program)?
        && let Some(major) = major_version(&node)
        && major < lowest
    {
        return Err(format!("it needs Node {lowest} or later, and {} is {major}", node.display()));
    }
    Ok(())
}

// Where the program is Node, what it runs.
fn script(config: &AcpConfig, program: &Path) -> Option<PathBuf> {
    if !is_node(program) {
        return None;
    }
    let script = config.argv().skip(1).find(|word| !word.starts_with('-'))?;
    std::path::absolute(script).ok()
}

fn is_node(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == "node")
}

// The Node that runs the program, where one does: the program itself, or what its first line names.
fn node(config: &AcpConfig, program: &Path) -> Result<Option<PathBuf>, String> {
    if is_node(program) {
        return Ok(Some(program.to_owned()));
    }
    let Some(line) = first_line(program) else { return Ok(None) };
    let Some(interpreter) = line.strip_prefix("#!") else { return Ok(None) };
    let words = interpreter.split_whitespace();
    let name = words.map(Path::new).find(|word| is_node(word)).and_then(Path::to_str);
    name.map(|name| launch::find_named(config, name)).transpose()
}

fn first_line(program: &Path) -> Option<String> {
    let mut line = Vec::new();
    let file = File::open(program).ok()?.take(FIRST_LINE_MAX_BYTES);
    BufReader::new(file).read_until(b'\n', &mut line).ok()?;
    String::from_utf8(line).ok()
}

// Links lead from the search path into the package. A folder inside it may have a package.json that names nothing.
fn package_of(file: &Path) -> Option<Package> {
    let file = file.canonicalize().ok()?;
    file.ancestors().skip(1).find_map(|folder| {
        let manifest = File::open(folder.join("package.json")).ok()?;
        serde_json::from_reader(BufReader::new(manifest.take(MANIFEST_MAX_BYTES))).ok()
    })
}

// What makes a file the same file as before.
type Seen = (PathBuf, u64, SystemTime);

// Only Node itself knows. It is asked once, until the file is another one.
fn major_version(node: &Path) -> Option<u32> {
    static KNOWN: LazyLock<Mutex<HashMap<Seen, Option<u32>>>> = LazyLock::new(Mutex::default);
    let file = node.canonicalize().ok()?;
    let metadata = file.metadata().ok()?;
    let seen = (file, metadata.len(), metadata.modified().ok()?);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(seen).or_insert_with_key(|(file, ..)| ask_version(file.clone()))
}

// On a thread of its own, which is given up on when nothing comes.
fn ask_version(node: PathBuf) -> Option<u32> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut command = Command::new(node);
        command.arg("--version").env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        // Nobody may be there to hear it any more.
        drop(tell.send(command.output()));
    });
    let output = told.recv_timeout(NODE_DEADLINE).ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A prefix as npm makes one, with a program that a Node of that version runs.
    struct Prefix(tempfile::TempDir);

    impl Prefix {
        fn with(package: &str, node: &str) -> Self {
            let prefix = Self(tempfile::tempdir().unwrap());
            let manifest = format!(r#"{{"name":"{package}","version":"1.2.3"}}"#);
            prefix.write(&format!("lib/node_modules/{package}/package.json"), &manifest);
            prefix.write(&format!("lib/node_modules/{package}/dist/package.json"), r#"{"type":"module"}"#);
            prefix.write(&format!("lib/node_modules/{package}/dist/agent.js"), "#!/usr/bin/env node\n");
            prefix.write("bin/node", &format!("#!/bin/sh\necho v{node}\n"));
            let target = format!("../lib/node_modules/{package}/dist/agent.js");
            symlink(target, prefix.path("bin/agent")).unwrap();
            prefix
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn config(&self, lines: &str) -> AcpConfig {
            let bin = self.path("bin");
            toml::from_str(&format!("env = {{ PATH = \"{}\" }}\n{lines}", bin.display())).unwrap()
        }
    }

    const NEEDS_20: &str = "needs = { package = \"@zed-industries/codex-acp\", version = \"1\", node = 20 }";

    fn looked_at(config: &AcpConfig) -> (Option<Package>, Result<(), String>) {
        let program = launch::find_program(config).unwrap();
        (package(config, &program), suits(config, &program))
    }

    #[test]
    fn a_package_is_known_by_the_nearest_manifest_that_names_one_whether_node_is_named_or_not() {
        let prefix = Prefix::with("@zed-industries/codex-acp", "20.1.0");
        let script = prefix.path("lib/node_modules/@zed-industries/codex-acp/dist/agent.js");
        let expected = Package { name: "@zed-industries/codex-acp".to_owned(), version: "1.2.3".to_owned() };
        for command in [
            "command = [\"agent\"]".to_owned(),
            format!("command = [\"node\", \"--no-warnings\", {script:?}]"),
            format!("command = [\"{}\"]", prefix.path("bin/agent").display()),
        ] {
            let (package, suits) = looked_at(&prefix.config(&format!("{command}\n{NEEDS_20}")));
            assert_eq!(package.as_ref(), Some(&expected), "{command}");
            assert_eq!(suits, Ok(()), "{command}");
        }
        assert_eq!(looked_at(&prefix.config("command = [\"/bin/sh\"]")).0, None);
    }

    #[test]
    fn a_program_of_the_same_name_that_is_another_known_agent_does_not_suit() {
        let prefix = Prefix::with("@agentclientprotocol/codex-acp", "22.0.0");
        let (_, suits) = looked_at(&prefix.config(&format!("command = [\"agent\"]\n{NEEDS_20}")));
        let complaint = suits.unwrap_err();
        assert!(complaint.contains("@agentclientprotocol/codex-acp 1.2.3"), "{complaint}");
        assert!(complaint.contains("preset codex2"), "{complaint}");
        // What nobody has heard of may be the operator's own build.
        let prefix = Prefix::with("our-codex", "22.0.0");
        assert_eq!(looked_at(&prefix.config(&format!("command = [\"agent\"]\n{NEEDS_20}"))).1, Ok(()));
    }

    #[test]
    fn a_node_that_is_too_old_does_not_suit_and_one_that_says_nothing_does() {
        for (version, suits) in [("18.20.4", false), ("20.0.0", true), ("22.1.0", true), ("mystery", true)] {
            let prefix = Prefix::with("@zed-industries/codex-acp", version);
            let (_, found) = looked_at(&prefix.config(&format!("command = [\"agent\"]\n{NEEDS_20}")));
            assert_eq!(found.is_ok(), suits, "{version}: {found:?}");
            if let Err(complaint) = found {
                assert!(complaint.contains("needs Node 20 or later"), "{complaint}");
            }
        }
        let prefix = Prefix::with("@zed-industries/codex-acp", "20.0.0");
        std::fs::remove_file(prefix.path("bin/node")).unwrap();
        let complaint =
            looked_at(&prefix.config(&format!("command = [\"agent\"]\n{NEEDS_20}"))).1.unwrap_err();
        assert!(complaint.contains("node is not on the PATH"), "{complaint}");
    }
}
