//! What the comments of the protocol promise, compared with what is obeyed; and the reference that is made of them.
//!
//! `UPDATE_EXPECT=1` writes `proto/REFERENCE.md` again.

use crate::access::rule_of;
use muster_transport::{PeerName, Principal, Role, ShortName};
use muster_types::{ClusterId, Refusal, RefusalCode, ReplicaId};
use muster_wire::status::{Refused, to_status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;
use tonic::{Code, Status};

const LABELS: [&str; 4] = ["Idempotency", "Consistency", "Permission", "Reasons"];
const SETS: [&str; 4] = ["every call", "every write", "every read", "every watch"];

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto"))
}

/// A declaration with its comment, as `buf format` lays it out: one to a line, the comment above it.
#[derive(Debug, PartialEq)]
struct Item {
    depth: usize,
    /// Lines without their marks.
    comment: Vec<String>,
    code: String,
}

/// Everything that a file declares, in its order.
fn items(text: &str) -> Vec<Item> {
    let (mut items, mut comment, mut depth) = (Vec::new(), Vec::new(), 0);
    for line in text.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("//") {
            comment.push(text.trim().to_owned());
        } else if line == "}" {
            depth -= 1;
            comment.clear();
        } else if line.is_empty() {
            comment.clear();
        } else {
            let code = line.trim_end_matches(['{', '}', ';', ' ']).to_owned();
            items.push(Item { depth, comment: std::mem::take(&mut comment), code });
            depth += usize::from(line.ends_with('{'));
        }
    }
    items
}

/// A file of one of the packages.
struct File {
    package: &'static str,
    /// From `proto` on.
    name: String,
    items: Vec<Item>,
}

/// What is served to clients, operators and agents: package after package, and their files by name.
fn protocol() -> Vec<File> {
    let mut all = Vec::new();
    for (package, path) in [
        ("muster.v1beta1", "muster/v1beta1"),
        ("muster.admin.v1beta1", "muster/admin/v1beta1"),
        ("muster.agent.v1beta1", "muster/agent/v1beta1"),
    ] {
        let mut files: Vec<_> = std::fs::read_dir(directory().join(path))
            .expect("the protocol is there")
            .map(|entry| entry.expect("it can be listed").path())
            .collect();
        files.sort();
        all.extend(files.into_iter().map(|file| {
            let name = file.file_name().expect("a file").to_string_lossy().into_owned();
            let items = items(&std::fs::read_to_string(&file).expect("it can be read"));
            File { package, name: format!("{path}/{name}"), items }
        }));
    }
    all
}

/// Only agents depend on the agents' package, and only operators' tools on theirs.
#[test]
fn the_public_packages_import_nothing_of_the_others() {
    let mut imports = 0;
    for file in protocol() {
        let allowed: &[&str] = match file.package {
            "muster.v1beta1" => &["google/protobuf/", "muster/v1beta1/"],
            "muster.admin.v1beta1" => &["google/protobuf/", "muster/v1beta1/", "muster/admin/v1beta1/"],
            _ => &["muster/v1beta1/", "muster/agent/v1beta1/"],
        };
        for import in file.items.iter().filter_map(|item| item.code.strip_prefix("import ")) {
            let path = import.trim_matches('"');
            imports += 1;
            assert!(allowed.iter().any(|allowed| path.starts_with(allowed)), "{} imports {path}", file.name);
        }
    }
    assert!(imports > 5, "imports are found: {imports}");
}

/// Only messages that agents exchange count in milliseconds and microseconds.
#[test]
fn public_fields_have_types_for_moments_and_spans() {
    const OF_AGENTS: [&str; 2] = ["round_trip_us", "duration_us"];
    let mut fields = 0;
    for file in protocol().iter().filter(|file| !file.package.contains(".agent.")) {
        for item in &file.items {
            let Some((declared, _)) = item.code.split_once(" = ") else { continue };
            let name = declared.rsplit(' ').next().unwrap_or_default();
            fields += 1;
            let counts = name.ends_with("_ms") || name.ends_with("_us");
            assert!(!counts || OF_AGENTS.contains(&name), "{}: {declared}", file.name);
        }
    }
    assert!(fields > 300, "fields are found: {fields}");
}

/// Path and comment of every call.
fn calls() -> Vec<(String, Vec<String>)> {
    let mut calls = Vec::new();
    for File { package, items, .. } in protocol() {
        let mut service = String::new();
        for item in items {
            if let Some(name) = item.code.strip_prefix("service ") {
                service = name.to_owned();
            } else if let Some(call) = item.code.strip_prefix("rpc ") {
                let name = call.split('(').next().unwrap_or_default();
                calls.push((format!("/{package}.{service}/{name}"), item.comment));
            }
        }
    }
    calls
}

/// What a comment states under its labels, in their order.
fn stated(comment: &[String]) -> Result<Vec<String>, String> {
    let mut found: Vec<String> = Vec::new();
    for line in comment {
        let label = LABELS.iter().position(|label| line.starts_with(&format!("{label}: ")));
        match label {
            Some(at) if at == found.len() => found.push(line[LABELS[at].len() + 2..].to_owned()),
            Some(at) => return Err(format!("{} is not where it belongs", LABELS[at])),
            None => {
                if let Some(last) = found.last_mut() {
                    last.push(' ');
                    last.push_str(line);
                }
            }
        }
    }
    if found.len() < LABELS.len() {
        return Err(format!("{} is not stated", LABELS[found.len()]));
    }
    Ok(found.into_iter().map(|text| text.trim().trim_end_matches('.').to_owned()).collect())
}

/// Names in capitals: reasons.
fn reasons(text: &str) -> BTreeSet<&str> {
    let is_name = |word: &&str| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(is_name).collect()
}

#[test]
fn every_call_states_what_a_client_has_to_know() {
    let kinds = {
        let short = |text| ShortName::new(text).expect("a name");
        [
            Role::Replica(ReplicaId(1)),
            Role::Agent(short("h1")),
            Role::AgentGroup(short("h1")),
            Role::Client(short("h1")),
            Role::TenantClient { tenant: short("h1"), user: short("h1") },
            Role::AllTenants(short("h1")),
            Role::Admin(short("h1")),
        ]
    };
    let known: BTreeSet<&str> = RefusalCode::ALL.iter().map(|code| code.name()).collect();
    let mut wrong = Vec::new();
    let calls = calls();
    for (path, comment) in &calls {
        let stated = match stated(comment) {
            Ok(stated) => stated,
            Err(why) => {
                wrong.push(format!("{path}: {why}"));
                continue;
            }
        };
        let rule = rule_of(path).expect("every call has its line");
        let may = |role: &Role| {
            rule.kinds.include(&Principal::Named(PeerName { cluster: ClusterId(1), role: *role }))
        };
        let allowed: Vec<&str> = kinds.iter().filter(|role| may(role)).map(Role::kind).collect();
        if stated[2] != allowed.join(", ") {
            wrong.push(format!("{path}: Permission is {}", allowed.join(", ")));
        }
        if !SETS.iter().any(|set| stated[3].starts_with(set)) {
            wrong.push(format!("{path}: Reasons begin with none of {SETS:?}"));
        }
        let unknown: Vec<&str> = reasons(&stated[3]).difference(&known).copied().collect();
        if !unknown.is_empty() {
            wrong.push(format!("{path}: no such reason: {unknown:?}"));
        }
    }
    assert!(calls.len() > 50, "the calls are found: {}", calls.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The fields of every message, by its package and name.
fn fields() -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut fields: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for File { package, items, .. } in protocol() {
        let mut message = String::new();
        for Item { depth, code, .. } in items {
            if depth == 0 {
                message = code.strip_prefix("message ").unwrap_or_default().to_owned();
            }
            let of_message = fields.entry((package.to_owned(), message.clone())).or_default();
            if let Some((declared, _)) = code.split_once(" = ").filter(|_| depth > 0) {
                of_message.insert(declared.rsplit(' ').next().unwrap_or_default().to_owned());
            }
        }
    }
    fields
}

/// A call that is repeated under a request id takes one, is decided by the leader and can be refused as every write can; one that
/// is answered as `read` asks takes that.
#[test]
fn what_a_call_states_of_repetitions_and_reads_is_what_its_request_has() {
    let fields = fields();
    let (mut wrong, mut repeated, mut read) = (Vec::new(), 0, 0);
    for (path, comment) in calls() {
        let (service, call) = path.trim_start_matches('/').split_once('/').expect("a service and a call");
        let (package, _) = service.rsplit_once('.').expect("a package and a service");
        let request = fields.get(&(package.to_owned(), format!("{call}Request")));
        let request = request.unwrap_or_else(|| panic!("{path} has no {call}Request"));
        let Ok(stated) = stated(&comment) else { continue };
        let [idempotency, consistency, _, reasons] = stated.as_slice() else { continue };
        let (has_id, has_read) = (request.contains("request_id"), request.contains("read"));
        (repeated, read) = (repeated + usize::from(has_id), read + usize::from(has_read));
        if has_id != idempotency.contains("`request_id`") {
            wrong.push(format!("{path}: has a request id: {has_id}; Idempotency: {idempotency}"));
        }
        if has_read != consistency.starts_with("as `read` asks") {
            wrong.push(format!("{path}: has `read`: {has_read}; Consistency: {consistency}"));
        }
        let is_write = reasons.starts_with("every write");
        if has_id && !(is_write && consistency.contains("decided by the leader")) {
            wrong.push(format!("{path}: has a request id; Consistency: {consistency}; Reasons: {reasons}"));
        }
        if is_write && idempotency.starts_with("changes nothing") {
            wrong.push(format!("{path}: changes nothing, and its reasons are those of a write"));
        }
    }
    assert!(repeated > 30 && read > 15, "requests are found: {repeated} with an id, {read} with `read`");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_reason_is_one_of_some_call() {
    let page = std::fs::read_to_string(directory().join("README.md")).expect("it is there");
    let sets = page.split("## What a comment of a call states").nth(1).expect("the sets are listed");
    for set in SETS {
        assert!(sets.contains(&format!("*{set}*: ")), "{set} is listed");
    }
    let comments: Vec<String> = calls().into_iter().map(|(_, comment)| comment.join(" ")).collect();
    let stated: BTreeSet<&str> =
        comments.iter().map(String::as_str).chain([sets]).flat_map(reasons).collect();
    let missing: Vec<&str> =
        RefusalCode::ALL.iter().map(|code| code.name()).filter(|name| !stated.contains(name)).collect();
    assert!(missing.is_empty(), "reasons that no call states: {missing:?}");
}

/// The reasons of each set that has a name.
fn reasons_of_sets() -> BTreeMap<&'static str, BTreeSet<String>> {
    let page = std::fs::read_to_string(directory().join("README.md")).expect("it is there");
    let of = |set: &str| -> BTreeSet<String> {
        let begins = format!("- *{set}*: ");
        let line = page.lines().find(|line| line.trim_start().starts_with(&begins)).expect("it is listed");
        reasons(line).into_iter().map(str::to_owned).collect()
    };
    // The others have those of every call.
    SETS.into_iter().map(|set| (set, &of(set) | &of(SETS[0]))).collect()
}

/// Of the calls that are made in tests with stored requests: what they were refused for is among what they state.
#[test]
fn what_stored_requests_are_refused_for_is_stated() {
    let sets = reasons_of_sets();
    let comments: BTreeMap<String, Vec<String>> = calls().into_iter().collect();
    let index = directory().join("../tests/golden/requests/v1beta1/index.txt");
    let index = std::fs::read_to_string(index).expect("the index is there");
    let mut refusals = 0;
    for line in index.lines() {
        let mut words = line.split(' ').skip(1);
        let (call, outcome) = (words.next().expect("a call"), words.next().expect("an outcome"));
        if outcome == "OK" {
            continue;
        }
        refusals += 1;
        let comment = &comments[&format!("/muster.v1beta1.{call}")];
        let stated = stated(comment).expect("it states its reasons");
        let of_set = SETS.into_iter().find(|set| stated[3].starts_with(set)).expect("it names a set");
        let is_stated = reasons(&stated[3]).contains(outcome) || sets[of_set].contains(outcome);
        assert!(is_stated, "{call} was refused with {outcome}, which its comment does not state: {line}");
    }
    assert!(refusals > 20, "refusals are found: {refusals}");
}

/// The reasons that each call states, by its path, with those of the set that it names.
static STATED: LazyLock<BTreeMap<String, BTreeSet<String>>> = LazyLock::new(|| {
    let sets = reasons_of_sets();
    let mut all = BTreeMap::new();
    for (path, comment) in calls() {
        // One that states nothing fails another test.
        let Ok(stated) = stated(&comment) else { continue };
        let Some(set) = SETS.into_iter().find(|set| stated[3].starts_with(set)) else { continue };
        let own: BTreeSet<String> = reasons(&stated[3]).into_iter().map(str::to_owned).collect();
        all.insert(path, &sets[set] | &own);
    }
    all
});

/// What calls were refused with in this process that their comments do not state, by call and reason.
static UNSTATED: Mutex<BTreeMap<(String, String), String>> = Mutex::new(BTreeMap::new());

/// The reason of a refusal that the comment of its call does not state.
fn unstated(path: &str, status: &Status) -> Option<String> {
    let stated = STATED.get(path)?;
    let reason = Refused::from_status(status).reason;
    // What gRPC says of a message that cannot be read, and of a call that broke off, has none.
    let is_of_grpc =
        reason.is_empty() && matches!(status.code(), Code::Internal | Code::Unknown | Code::Cancelled);
    (status.code() != Code::Ok && !is_of_grpc && !stated.contains(&reason)).then_some(reason)
}

/// Takes note of an answer of a server of these tests: [`StatedReasons`] looks at it.
pub(crate) fn note(path: &str, status: &Status) {
    if let Some(reason) = unstated(path, status) {
        let text =
            format!("{path} was refused with {reason:?}, which its comment does not state: {status:?}");
        UNSTATED.lock().insert((path.to_owned(), reason), text);
    }
}

/// Fails the test that it is dropped in, if a call was refused for something that its comment does not state. Each test server has
/// one. Tests that share a process share the notes: the message names the call.
pub(crate) struct StatedReasons;

impl Drop for StatedReasons {
    fn drop(&mut self) {
        let unstated = std::mem::take(&mut *UNSTATED.lock());
        let texts: Vec<String> = unstated.into_values().collect();
        if std::thread::panicking() {
            // Another panic would hide the first one.
            texts.iter().for_each(|text| eprintln!("{text}"));
        } else {
            assert!(texts.is_empty(), "{}", texts.join("\n"));
        }
    }
}

#[test]
fn a_reason_that_a_call_does_not_state_is_noticed() {
    let refused = |code| to_status(&Refusal::new(code, "no"));
    let get = "/muster.v1beta1.JobService/GetJob";
    assert_eq!(unstated(get, &refused(RefusalCode::JobNotFound)), None, "its own");
    assert_eq!(unstated(get, &refused(RefusalCode::TooStale)), None, "that of every read");
    assert_eq!(unstated(get, &refused(RefusalCode::Overloaded)), None, "that of every call");
    assert_eq!(unstated(get, &refused(RefusalCode::DrillOver)).as_deref(), Some("DRILL_OVER"));
    assert_eq!(unstated(get, &Status::not_found("no")).as_deref(), Some(""), "every refusal has a reason");
    assert_eq!(unstated(get, &Status::internal("it cannot be read")), None);
    assert_eq!(unstated("/grpc.health.v1.Health/Check", &Status::not_found("no")), None, "it is not ours");
}

#[test]
fn a_comment_that_lacks_something_is_noticed() {
    let comment = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    let whole = comment(&[
        "What it does.",
        "",
        "Idempotency: a",
        "Consistency: b",
        "c.",
        "Permission: d",
        "Reasons: e.",
    ]);
    assert_eq!(stated(&whole).expect("it is whole"), ["a", "b c", "d", "e"]);
    for at in [2, 3, 5, 6] {
        let mut lacking = whole.clone();
        lacking.remove(at);
        assert!(stated(&lacking).is_err(), "without {}", whole[at]);
    }
    assert_eq!(reasons("every write, NEVER_FITS; as `a_b`"), BTreeSet::from(["NEVER_FITS"]));
    let read = items(
        "// A.\nmessage M {\n  // F.\n  string f = 1;\n\n  oneof o {\n    // G.\n    bool g = 2;\n  }\n}\nmessage N {}\n",
    );
    let shown: Vec<_> =
        read.iter().map(|item| (item.depth, item.comment.join(" "), item.code.as_str())).collect();
    assert_eq!(
        shown,
        [
            (0, "A.".to_owned(), "message M"),
            (1, "F.".to_owned(), "string f = 1"),
            (1, String::new(), "oneof o"),
            (2, "G.".to_owned(), "bool g = 2"),
            (0, String::new(), "message N"),
        ]
    );
}

fn cell(comment: &[String]) -> String {
    let lines: Vec<&str> = comment.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
    lines.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

/// One service: its calls with what each states.
fn calls_section(page: &mut String, item: &Item) {
    let call = item.code.strip_prefix("rpc ").unwrap_or_default();
    let (name, rest) = call.split_once('(').unwrap_or((call, ""));
    let (request, response) = rest.split_once(") returns (").unwrap_or((rest, ""));
    let response = response.trim_end_matches(')');
    let split = item.comment.iter().position(|line| line.starts_with("Idempotency: "));
    let (described, _) = item.comment.split_at(split.unwrap_or(item.comment.len()));
    let _ = writeln!(page, "### {name}\n\n`{request}` → `{response}`\n\n{}\n", cell(described));
    for (label, text) in LABELS.iter().zip(stated(&item.comment).unwrap_or_default()) {
        let _ = writeln!(page, "- {label}: {text}");
    }
    page.push('\n');
}

/// A file's messages and enums, each with a table of what it holds.
fn types_section(page: &mut String, items: &[Item]) {
    let mut is_service = false;
    for item in items {
        let (kind, name) = item.code.split_once(' ').unwrap_or((&item.code, ""));
        match (item.depth, kind) {
            (0, "service") => is_service = true,
            (0, "message" | "enum") => {
                is_service = false;
                let _ = writeln!(page, "### `{name}`\n\n{}\n", cell(&item.comment));
            }
            (0, _) => {}
            _ if is_service => {}
            (_, "oneof") => {
                let _ = writeln!(page, "- one of `{name}`: {}", cell(&item.comment));
            }
            (depth, _) => {
                let code = item.code.split(" = ").next().unwrap_or(&item.code);
                let indent = "  ".repeat(depth - 1);
                let _ = writeln!(page, "{indent}- `{code}`: {}", cell(&item.comment));
            }
        }
    }
    page.push('\n');
}

#[test]
fn the_reference_is_made_of_the_comments() {
    let mut page =
        "# Reference of the protocol\n\n<!-- Made of the comments in `muster` by a test of muster-api; \
                    UPDATE_EXPECT=1 writes it again. -->\n\n"
            .to_owned();
    let files = protocol();
    for File { package, items, .. } in &files {
        for item in items {
            if let Some(name) = item.code.strip_prefix("service ") {
                let _ = writeln!(page, "## {name}\n\nOf `{package}`. {}\n", cell(&item.comment));
            } else if item.code.starts_with("rpc ") {
                calls_section(&mut page, item);
            }
        }
    }
    for File { name, items, .. } in &files {
        let _ = writeln!(page, "## Messages of `{name}`\n");
        types_section(&mut page, items);
    }
    let page = format!("{}\n", page.trim_end()).replace("\n\n\n", "\n\n");
    let path = directory().join("REFERENCE.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &page).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "proto/REFERENCE.md is not what the comments state; UPDATE_EXPECT=1 writes it again"
    );
}
