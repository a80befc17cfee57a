//! The architecture: which crate may depend on which, what the pure crates may not have, and the few
//! rules of form that are checked by reading the files.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// No IO, clock, randomness or threads: what these compute is the same on every replica.
const PURE: [&str; 7] = [
    "muster-types",
    "muster-journal",
    "muster-state",
    "muster-ledger",
    "muster-policy",
    "muster-planner",
    "muster-decider",
];

/// Crates of others that only some of ours may name, so that each can be replaced in one place.
const CONFINED: &[(&str, &[&str])] = &[
    // The benches also speak the protocol of a peer.
    ("prost", &["muster-wire", "muster-bench"]),
    ("prost-types", &["muster-wire"]),
    ("tonic-prost", &["muster-wire", "muster-bench"]),
    ("tonic-prost-build", &["muster-wire", "muster-bench"]),
    ("protox", &["muster-wire", "muster-bench"]),
    (
        "tonic",
        &[
            "muster-wire",
            "muster-transport",
            "muster-consensus",
            "muster-api",
            "muster-client",
            "muster-agent",
            "muster-console",
            "muster-monitoring",
            "muster-server",
            "muster-bench",
            "muster-chaos",
        ],
    ),
    ("rustls", &["muster-transport"]),
    ("tokio-rustls", &["muster-transport"]),
    ("rcgen", &["muster-transport"]),
    ("x509-parser", &["muster-transport"]),
    ("axum", &["muster-api", "muster-monitoring"]),
    ("maud", &["muster-page"]),
    ("ratatui", &["muster-top"]),
    ("prometheus-client", &["muster-metrics"]),
    ("openraft", &["muster-store", "muster-consensus", "muster-world"]),
    ("sled", &["muster-store"]),
    ("bincode", &["muster-journal"]),
    ("hyper", &["muster-fetch"]),
    ("ring", &["muster-notify", "muster-oidc"]),
    ("async-trait", &["muster-traces", "muster-blobs"]),
    ("object_store", &["muster-blobs"]),
    ("opentelemetry", &["muster-traces"]),
    ("opentelemetry_sdk", &["muster-traces"]),
    ("opentelemetry-http", &["muster-traces"]),
    ("opentelemetry-otlp", &["muster-traces"]),
];

const FILE_LINES_MAX: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The manifests alone: nothing is resolved, so this needs no network and no lock file.
fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command.exec().unwrap()
}

/// What a crate is built from, without what only its tests use.
fn dependencies(package: &Package) -> BTreeSet<&str> {
    let built_from = package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development);
    built_from.map(|d| d.name.as_str()).collect()
}

/// By crate, in the order of names.
fn edges(metadata: &Metadata) -> BTreeMap<&str, BTreeSet<&str>> {
    let packages = metadata.packages.iter();
    packages.map(|package| (package.name.as_str(), dependencies(package))).collect()
}

fn line(text: &mut String, left: &str, mark: &str, right: impl IntoIterator<Item = impl AsRef<str>>) {
    text.push_str(left);
    text.push_str(mark);
    for word in right {
        text.push(' ');
        text.push_str(word.as_ref());
    }
    text.push('\n');
}

fn describe(edges: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let mut text = String::from(
        "# The dependency edges of the workspace, without those of tests. Compared by tests/tests/edges.rs;\n\
         # a change here is a change of the architecture and belongs into crates/ARCHITECTURE.md as well.\n\
         \n# Our own crates.\n",
    );
    for (name, dependencies) in edges {
        line(&mut text, name, " ->", dependencies.iter().filter(|d| edges.contains_key(*d)));
    }
    text.push_str("\n# What the pure crates take from others.\n");
    for name in PURE {
        let dependencies = edges.get(name).into_iter().flatten();
        line(&mut text, name, " <-", dependencies.filter(|d| !edges.contains_key(*d)));
    }
    text.push_str("\n# Crates of others that are confined, and who names them.\n");
    for (confined, _) in CONFINED {
        let users = edges.iter().filter(|(_, dependencies)| dependencies.contains(confined));
        line(&mut text, confined, ":", users.map(|(name, _)| name));
    }
    text
}

/// The lines that only one of the two has, each with where it stands.
fn difference(expected: &str, actual: &str) -> String {
    let mut text = String::new();
    for (mark, here, there) in [('-', expected, actual), ('+', actual, expected)] {
        let others: BTreeSet<&str> = there.lines().collect();
        for line in here.lines().filter(|line| !others.contains(line)) {
            writeln!(text, "{mark} {line}").unwrap();
        }
    }
    text
}

#[test]
fn the_dependency_edges_are_the_ones_written_down() {
    let metadata = metadata();
    let actual = describe(&edges(&metadata));
    let path = root().join("tests/tests/edges.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "the dependency edges differ from {} (- written down, + real):\n{}\nIf the new edge is meant, run\n  \
         UPDATE_EXPECT=1 cargo test -p muster-tests --test edges\nand commit the change with its reason.",
        path.display(),
        difference(&expected, &actual)
    );
}

/// A build that breaks rules on purpose is made by those who ask for it by name, and by nobody else.
#[test]
fn rules_are_broken_only_where_somebody_asks_for_it() {
    const SWITCH: &str = "muster-planted/on";
    let metadata = metadata();
    let mut asked = BTreeSet::new();
    for package in &metadata.packages {
        for (feature, means) in &package.features {
            if means.iter().any(|word| word == SWITCH) {
                asked.insert(format!("{}/{feature}", package.name));
            }
        }
        let always = package.dependencies.iter().any(|d| {
            d.name == "muster-planted"
                && (d.features.iter().any(|f| f == "on") || d.kind == DependencyKind::Build)
        });
        assert!(!always, "{} breaks rules whenever it is built", package.name);
    }
    let expected = ["muster/planted-bugs", "muster-chaos/planted-bugs", "muster-world/planted-bugs"]
        .map(ToOwned::to_owned);
    assert_eq!(asked, BTreeSet::from(expected));
    let by_itself = metadata.packages.iter().filter_map(|package| {
        let usual = package.features.get("default")?;
        usual.iter().any(|word| word.contains("planted")).then_some(&package.name)
    });
    assert_eq!(by_itself.count(), 0, "no build breaks rules by itself");
}

/// The record format that there is only for tests is in no build but theirs and one that asks for it by name.
#[test]
fn the_test_format_is_only_in_builds_for_tests() {
    let mut asked = BTreeSet::new();
    for package in &metadata().packages {
        for (feature, means) in &package.features {
            if means.iter().any(|word| word.contains("test-format")) {
                asked.insert(format!("{}/{feature}", package.name));
            }
        }
        let built_with = package
            .dependencies
            .iter()
            .find(|d| d.kind != DependencyKind::Development && d.features.iter().any(|f| f == "test-format"));
        assert!(built_with.is_none(), "{} has the test format whenever it is built", package.name);
    }
    let expected = ["muster-server/test-format", "muster/test-format"].map(ToOwned::to_owned);
    assert_eq!(asked, BTreeSet::from(expected));
}

#[test]
fn confined_crates_are_named_only_where_they_may_be() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for (name, dependencies) in edges(&metadata) {
        for (confined, allowed) in CONFINED {
            if dependencies.contains(confined) && !allowed.contains(&name) {
                wrong.push(format!("{name} names {confined}, which is only for {}", allowed.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_crates_know_only_pure_crates() {
    let metadata = metadata();
    let edges = edges(&metadata);
    for name in PURE {
        let dependencies = edges.get(name).unwrap_or_else(|| panic!("no crate {name}"));
        for dependency in dependencies.iter().filter(|d| edges.contains_key(*d)) {
            assert!(PURE.contains(dependency), "{name} is pure and may not know {dependency}");
        }
    }
}

/// Without std there is no clock, no file, no thread, no randomly seeded hash map.
#[test]
fn pure_crates_are_built_without_std() {
    let mut wrong = Vec::new();
    for name in PURE {
        let directory = root().join("crates").join(name.trim_start_matches("muster-"));
        let library = directory.join("src/lib.rs");
        let text = fs::read_to_string(&library).unwrap();
        if !text.lines().any(|line| line.trim() == "#![no_std]") {
            wrong.push(format!("{}: no #![no_std]", library.display()));
        }
        if !directory.join("clippy.toml").is_file() {
            wrong.push(format!("{}: no clippy.toml with the bans of a pure crate", directory.display()));
        }
        for path in files_below(&directory.join("src"), &["rs"]) {
            let text = fs::read_to_string(&path).unwrap();
            if takes_std(&text) {
                wrong.push(format!("{}: `extern crate std` outside of tests", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Unit tests may have std: they run on the developer's machine and nowhere else.
fn takes_std(text: &str) -> bool {
    let mut before = "";
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        if line.starts_with("extern crate std") && before != "#[cfg(test)]" {
            return true;
        }
        before = line;
    }
    false
}

/// The files with one of these endings, in the order of their paths.
fn files_below(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    directories.push(path);
                }
            } else if endings.iter().any(|ending| path.extension().is_some_and(|e| e == *ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn files_are_short_enough_to_be_read() {
    let mut wrong = Vec::new();
    for directory in ["crates", "tests", "chaos", "benches"] {
        for path in files_below(&root().join(directory), &["rs"]) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            if lines > FILE_LINES_MAX {
                wrong.push(format!("{} has {lines} lines; {FILE_LINES_MAX} are the most", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_crate_says_what_it_is_for() {
    for package in metadata().packages {
        let description = package.description.unwrap_or_default();
        assert!(description.trim().len() >= 20, "{} has no description: {description:?}", package.name);
    }
}

/// Unfinished work is an issue, not a mark in the code.
#[test]
fn nothing_is_marked_as_unfinished() {
    // Put together here, so that this file does not hold what it looks for.
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("unimple", "mented!"), concat!("to", "do!")];
    let mut wrong = Vec::new();
    for directory in ["crates", "proto", "ops", "chaos", "benches", "tests"] {
        for path in files_below(&root().join(directory), &["rs", "proto", "toml", "md", "sh", "py", "yaml"]) {
            let text = fs::read_to_string(&path).unwrap();
            for (line, number) in text.lines().zip(1..) {
                if let Some(mark) = marks.iter().find(|mark| line.contains(*mark)) {
                    wrong.push(format!("{}:{number}: {mark}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Dates order decisions without anyone having to hand out numbers.
#[test]
fn decisions_are_named_by_their_date() {
    for path in files_below(&root().join("ops/decisions"), &["md"]) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(is_dated(&name), "{} is not named YYYY-MM-DD-words.md", path.display());
    }
}

fn is_dated(name: &str) -> bool {
    let Some((date, words)) = name.split_at_checked(11) else {
        return false;
    };
    let shape: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let number = |range: std::ops::Range<usize>| date[range].parse::<u32>().unwrap_or(0);
    shape == "0000-00-00-"
        && (1..=12).contains(&number(5..7))
        && (1..=31).contains(&number(8..10))
        && !words.is_empty()
        && words.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[test]
fn the_checks_themselves_can_fail() {
    assert!(is_dated("2025-03-31-one-codec") && is_dated("2026-12-01-x"));
    for bad in
        ["README", "2025-13-01-x", "2025-01-32-x", "2025-01-01-", "2025-1-01-xx", "0001-one-codec-more"]
    {
        assert!(!is_dated(bad), "{bad}");
    }
    assert!(takes_std("#![no_std]\nextern crate std;\n"));
    assert!(!takes_std("#![no_std]\nextern crate alloc;\n#[cfg(test)]\nextern crate std;\n"));
    assert_eq!(difference("a\nb\n", "a\nc\n"), "- b\n+ c\n");
}
