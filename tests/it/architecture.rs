//! The house as the architecture page describes it: imports run one way, and each kind of thing has its one place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A room of the house, and the rooms that it may know.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("clock", &[]),
    ("telemetry", &[]),
    ("fault", &[]),
    ("domain", &["ids", "clock"]),
    ("store", &["domain", "ids", "clock"]),
    ("harness", &["domain", "fault", "ids", "clock"]),
    ("service", &["store", "harness", "domain", "fault", "ids", "clock"]),
    ("http", &["service", "domain", "ids", "clock"]),
    ("cli", &[]),
    ("config", &["http", "service", "store", "harness", "domain", "telemetry"]),
    ("app", &["config", "http", "service", "store", "domain", "ids", "clock", "telemetry"]),
    ("operator", &["app", "config", "service", "store", "domain", "ids", "clock"]),
];

/// What has one place, and where that is.
const HAS_ITS_PLACE: &[(&str, &[&str])] = &[
    ("sqlx::", &["store"]),
    ("axum::", &["http"]),
    ("StatusCode", &["http", "cli"]),
    ("Utc::now", &["clock"]),
    ("now_v7", &["ids"]),
    ("cap_std::", &["harness"]),
    ("rustix::", &["harness", "store", "cli"]),
    ("tokio::process", &["harness"]),
    ("landlock::", &["harness"]),
    ("reqwest::", &["cli", "harness"]),
];

pub(super) fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn room(path: &Path) -> String {
    let first = path.strip_prefix(root()).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

pub(super) fn is_test(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "stub.rs")))
}

/// The code of a file without its comments and without the test module at its end.
pub(super) fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The rooms that a file names: `crate::room`, alone or at the head of a group.
fn rooms_named(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                named.extend(group.split('}').next().unwrap().split(',').map(|part| word(part.trim())))
            }
            None => {
                named.insert(word(rest));
            }
        }
    }
    named
}

#[test]
fn imports_run_one_way() {
    let mut backward = Vec::new();
    for path in sources(&root()).into_iter().filter(|path| !is_test(path)) {
        let here = room(&path);
        if matches!(here.as_str(), "lib" | "main") {
            continue;
        }
        let (_, known) =
            MAY_KNOW.iter().find(|(name, _)| *name == here).unwrap_or_else(|| panic!("{here} is a new room"));
        for named in rooms_named(&code(&path)) {
            let is_room = MAY_KNOW.iter().any(|(name, _)| *name == named);
            if is_room && named != here && !known.contains(&named.as_str()) {
                backward.push(format!("{} knows {named}", path.display()));
            }
        }
    }
    assert!(backward.is_empty(), "{backward:#?}");
}

#[test]
fn each_kind_of_thing_has_its_one_place() {
    let mut strays = Vec::new();
    for path in sources(&root()).into_iter().filter(|path| !is_test(path)) {
        let (here, code) = (room(&path), code(&path));
        for (thing, places) in HAS_ITS_PLACE {
            if code.contains(thing) && !places.contains(&here.as_str()) {
                strays.push(format!("{} has {thing}", path.display()));
            }
        }
    }
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn the_command_line_client_knows_nothing_else_of_the_crate() {
    for path in sources(&root().join("cli")) {
        let others: Vec<_> = rooms_named(&code(&path)).into_iter().filter(|room| room != "cli").collect();
        assert!(others.is_empty(), "{} knows {others:?}", path.display());
    }
}

#[test]
fn no_file_is_one_that_nobody_wants_to_open() {
    let lines = |path: &PathBuf| std::fs::read_to_string(path).unwrap().lines().count();
    let large: Vec<_> =
        sources(&root()).into_iter().filter(|path| !is_test(path) && lines(path) > 650).collect();
    assert!(large.is_empty(), "{large:?}");
}
