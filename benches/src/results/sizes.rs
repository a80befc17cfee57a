//! The table of sizes in the production guide, from the newest results that are kept: it cannot show other figures than were measured.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use super::{directory, filled, newest, shown};

/// Lines between which the table stands in the guide.
const BEGIN: &str = "<!-- Written by `muster-bench sizes --write ops/guide/production.md`. -->";
const END: &str = "<!-- The end of what is written. -->";

/// A row: what it is, the result that it is from, and a template over that. Next to pointers, `{=FIGURE}` is the value of the figure of
/// that name in a list of figures, and `{LINE last}` the last word behind a pointer.
type SizeRow = (&'static str, &'static str, &'static str);

const ROWS: [SizeRow; 14] = [
    (
        "durable submissions, 256 clients over streams",
        "submit-etcd",
        "{/muster/closed_over_streams/2/things_per_s}/s, p50 {/muster/closed_over_streams/2/latency/p50_ms} ms",
    ),
    ("the same in batches of 100, 16 clients", "submit-etcd", "{/muster/batches/things_per_s} jobs/s"),
    (
        "processor time of a submission: leader, follower",
        "submit-etcd",
        "{/muster/closed_over_streams/2/processor_us_per_operation/leader} us, {/muster/closed_over_streams/2/processor_us_per_operation/follower 2} us",
    ),
    ("linearizable reads on a follower, 64 clients", "read-etcd", "{/muster/5/things_per_s}/s"),
    (
        "watchers on a follower, acknowledged to seen",
        "watch",
        "{/watchers} watchers, p99 {/acknowledged_to_seen/p99_ms} ms",
    ),
    (
        "resident memory for a waiting job: leader, follower",
        "restart",
        "{/resident_bytes_per_job/leader} bytes, {/resident_bytes_per_job/follower 2} bytes",
    ),
    (
        "from the kill of a replica until it has caught up",
        "restart",
        "{/jobs} jobs, {/restarts/0/caught_up_s} s",
    ),
    (
        "longest submission while a snapshot is made",
        "restart",
        "{/snapshot/longest_submission_ms_while_made} ms",
    ),
    ("resident memory for a finished job", "memory", "{/lines/1 last} bytes"),
    (
        "log for a job: one at a time, in batches of 100",
        "disk",
        "{/rows/0/log_bytes_per_job} bytes, {/rows/1/log_bytes_per_job} bytes",
    ),
    (
        "heartbeats of agents: processor of the leader, p99 of an acknowledgement",
        "agents",
        "{/agents} agents each {/interval_ms} ms: {/cores/leader} of a core, {/acknowledgement/p99_ms} ms",
    ),
    ("memory of an agent", "launch", "{/memory/resident_mib_max} MiB"),
    (
        "placements on 10,000 hosts: few kinds of jobs, all different",
        "place",
        "{=80000 one-device jobs, 10000 hosts, 4 classes}/s, {=80000 one-device jobs, 10000 hosts, all different}/s",
    ),
    (
        "a decision with 10,000 hosts, with 100,000 hosts, 95 % full, 1,000 waiting",
        "place",
        "{=10000 hosts, 95 % full, 1,000 waiting, 4 classes} us, {=100000 hosts, 95 % full, 1,000 waiting, 4 classes} us",
    ),
];

/// Writes the table of sizes.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench sizes --write ops/guide/production.md\n  muster-bench sizes"
)]
pub(crate) struct SizesArgs {
    /// The guide whose table is written again; the terminal when not given
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Writes the table into the guide, in the place of the one that is there, or shows it.
///
/// # Errors
/// When a result or the guide cannot be read, or the guide has no place for the table.
pub(crate) fn run(args: &SizesArgs) -> Result<()> {
    let table = table(&newest(&directory())?);
    let Some(path) = &args.write else {
        print!("{table}");
        return Ok(());
    };
    let read = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let written = with_table(&read, &table)
        .with_context(|| format!("{}: no lines {BEGIN:?} and {END:?}", path.display()))?;
    std::fs::write(path, written).with_context(|| format!("writing {}", path.display()))
}

/// The guide with the table between its lines; none where these are not there.
fn with_table(guide: &str, table: &str) -> Option<String> {
    let (before, rest) = guide.split_once(BEGIN)?;
    let (_, behind) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{behind}"))
}

fn table(results: &Map<String, Value>) -> String {
    let mut text = String::from("| what | measured | machine, date, commit |\n|---|---|---|\n");
    for (what, scenario, template) in ROWS {
        let (figure, of) = match results.get(scenario) {
            Some(result) => (filled(&resolved(template, result), result), origin(result)),
            None => ("not measured".to_owned(), String::new()),
        };
        let _ = writeln!(text, "| {what} | {figure} | {of} |");
    }
    text
}

/// Machine, date and commit of a result; without the commit where it was not written down.
fn origin(result: &Value) -> String {
    let text = |pointer: &str| result.pointer(pointer).and_then(Value::as_str);
    let parts = [text("/machine/model"), text("/machine/date"), text("/commit")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A template with the values of figures and of last words in their places.
fn resolved(template: &str, result: &Value) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let Some((token, after)) = behind.split_once('}') else { break };
        match (token.strip_prefix('='), token.strip_suffix(" last")) {
            (Some(name), _) => text.push_str(&figure(name, result)),
            (None, Some(pointer)) => {
                let line = result.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                text.push_str(line.split_whitespace().last().unwrap_or("not measured"));
            }
            (None, None) => {
                let _ = write!(text, "{{{token}}}");
            }
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// The value of a figure by its name: its place in the list may change.
fn figure(name: &str, result: &Value) -> String {
    let figures = result.pointer("/figures").and_then(Value::as_array);
    let is_named = |figure: &&Value| figure.get("figure").and_then(Value::as_str) == Some(name);
    let found = figures.into_iter().flatten().find(is_named);
    found.and_then(|figure| figure.get("value")).map_or_else(|| "not measured".to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn the_guide_has_the_figures_of_the_newest_results() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/guide/production.md");
        let guide = std::fs::read_to_string(&path).expect("the guide can be read");
        let table = table(&newest(&directory()).expect("kept results can be read"));
        let wanted = with_table(&guide, &table).expect("the guide has a place for the table");
        assert_eq!(guide, wanted, "write it with `muster-bench sizes --write ops/guide/production.md`");
        assert!(!table.contains("not measured"), "{table}");
    }

    #[test]
    fn figures_are_found_by_their_names() {
        let result =
            json!({ "figures": [{ "figure": "a, b", "value": 1_234.4 }], "lines": ["x  17"], "c": 2 });
        let show = |template: &str| filled(&resolved(template, &result), &result);
        assert_eq!(show("{=a, b}/s of {/c}, {/lines/0 last} bytes"), "1,234/s of 2, 17 bytes");
        assert_eq!(show("{=b} {/lines/7 last}"), "not measured not measured");
    }
}
