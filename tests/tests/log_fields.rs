//! Lines of the log name the same thing by the same field, so that one search finds it in every process.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose lines are those of replicas and agents.
const CRATES: [&str; 10] =
    ["agent", "api", "archive", "consensus", "engine", "muster", "notify", "server", "store", "traces"];

/// Names that a field does not have, and the one that it has instead.
const FORMER: [(&str, &str); 20] = [
    ("index", "log_index, or raft_index"),
    ("idx", "log_index"),
    ("first_index", "log_index"),
    ("record_index", "log_index"),
    ("from", "first_log_index"),
    ("through", "last_log_index"),
    ("delivered", "log_index, first_log_index or last_log_index"),
    ("floor", "first_log_index"),
    ("oldest", "first_log_index"),
    ("newest", "last_log_index"),
    ("first_record", "first_log_index"),
    ("last_record", "last_log_index"),
    ("job_id", "job"),
    ("job_name", "job"),
    ("node_id", "node"),
    ("node_name", "node"),
    ("host_name", "node"),
    ("tenant_name", "tenant"),
    ("leader_term", "term"),
    ("raft_term", "term"),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The arguments of each line of the log in a source.
fn lines(text: &str) -> Vec<&str> {
    let calls = text.split("tracing::").skip(1);
    let is_line = |call: &&str| {
        ["error!(", "warn!(", "info!(", "debug!(", "trace!("].iter().any(|name| call.starts_with(name))
    };
    calls.filter(is_line).map(|call| &call[..end_of(call)]).collect()
}

/// Where the parenthesis that opens first is closed; what is within texts does not count.
fn end_of(call: &str) -> usize {
    let (mut depth, mut is_text, mut is_escaped) = (0_i32, false, false);
    for (at, byte) in call.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'(' if !is_text => depth += 1,
            b')' if !is_text => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    call.len()
}

/// The names of the fields of a line, as far as they stand at its top.
fn fields(call: &str) -> Vec<&str> {
    let Some((_, arguments)) = call.split_once('(') else { return Vec::new() };
    let (mut depth, mut is_text, mut from, mut found) = (0_i32, false, 0, Vec::new());
    for (at, byte) in arguments.bytes().enumerate() {
        match byte {
            b'"' => is_text = !is_text,
            b'(' | b'[' | b'{' if !is_text => depth += 1,
            b')' | b']' | b'}' if !is_text => depth -= 1,
            b',' if !is_text && depth == 0 => {
                found.push(&arguments[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    // Often there is no comma behind the last one.
    found.push(&arguments[from..]);
    let name = |argument: &&str| -> Option<usize> { argument.find(" = ") };
    let named = found.into_iter().map(|argument| {
        let end = name(&argument).unwrap_or(argument.len());
        argument[..end].trim().trim_start_matches(['%', '?'])
    });
    named.filter(|name| !name.is_empty()).collect()
}

#[test]
fn fields_of_a_line_are_found() {
    let text = "tracing::warn!(%job, log_index = %answer.at(a, b), term, \"it (was, read\", );";
    assert_eq!(lines(text).len(), 1);
    assert_eq!(fields(lines(text)[0]), ["job", "log_index", "term", "\"it (was, read\""]);
    assert_eq!(fields(lines("tracing::info!(%job, node_id)")[0]), ["job", "node_id"]);
}

/// Fields that say that a line is about a worker, or about a node's share of a gang.
const OF_WORKERS: [&str; 2] = ["worker", "share"];

#[test]
fn a_line_about_a_worker_has_its_job_and_one_about_a_share_its_node_as_well() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates/agent/src"), &mut files);
    let (mut wrong, mut looked_at) = (Vec::new(), 0);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for call in lines(&text) {
            let fields = fields(call);
            if !OF_WORKERS.iter().any(|of| fields.contains(of)) {
                continue;
            }
            looked_at += 1;
            // A host's agent adds its node to every line; one for another scheduler has many nodes.
            let wanted = if fields.contains(&"share") { &["job", "node"][..] } else { &["job"] };
            if !wanted.iter().all(|field| fields.contains(field)) {
                wrong.push(format!("{}: {}", file.display(), fields.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(looked_at > 40, "lines are written in another way: {looked_at} were found");
}

#[test]
fn the_same_thing_has_the_same_field_in_every_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut wrong, mut looked_at) = (Vec::new(), 0);
    for name in CRATES {
        let mut files = Vec::new();
        sources(&root.join("crates").join(name).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let lines = lines(&text);
            looked_at += lines.len();
            for field in lines.into_iter().flat_map(fields) {
                if let Some((_, instead)) = FORMER.iter().find(|(former, _)| *former == field) {
                    wrong.push(format!("{}: `{field}` is called {instead}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(looked_at > 100, "lines are written in another way: {looked_at} were found");
}
