//! Results that are kept: each with the commit, the machine, the date and the command that gave it; and the page
//! that shows them.

mod sizes;
mod tables;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::machine;
pub(crate) use sizes::{SizesArgs, run as sizes};
use tables::{TABLES, Table};

/// Longest output of a recorded command that is read, in bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Lines of an output that are kept by what is in them.
const LINES_MAX: usize = 100;

/// Files that a scenario writes its results to, in addition to the terminal.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Output {
    /// Write everything as one JSON object below benches/results, named by date and scenario
    #[arg(long)]
    pub(crate) save: bool,
    /// Write it to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) save_to: Option<PathBuf>,
    /// One JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Output {
    /// Writes a report where it was asked for.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, scenario: &str, report: &Value) -> Result<()> {
        let mut paths: Vec<PathBuf> = self.save_to.clone().into_iter().collect();
        if self.save {
            paths.push(directory().join(format!("{}-{scenario}.json", machine::today())));
        }
        let stamped = stamp(report);
        for path in paths {
            write(&path, &stamped)?;
        }
        if self.json {
            println!("{report}");
        }
        Ok(())
    }
}

/// Field of a result without a commit: the one that it came into the repository with.
const KEPT_WITH: &str = "kept_with";

/// Where results are kept.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// Adds to a report what makes its figures worth keeping: the commit and the command.
pub(crate) fn stamp(report: &Value) -> Value {
    let mut kept = report.clone();
    if let Some(fields) = kept.as_object_mut() {
        fields.insert("commit".to_owned(), json!(commit()));
        fields.entry("command").or_insert_with(|| json!(own_command()));
    }
    kept
}

/// Writes a report as JSON.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, report: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    eprintln!("written to {}", path.display());
    Ok(())
}

/// The commit of the checkout that this program was built in, with `-dirty` where files differ from it.
fn commit() -> String {
    git(&["describe", "--always", "--abbrev=10", "--dirty", "--exclude=*"])
        .unwrap_or_else(|| "unknown".to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let found = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output().ok()?;
    found.status.success().then(|| String::from_utf8_lossy(&found.stdout).trim().to_owned())
}

/// This command, as a reader would type it.
fn own_command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--save").collect();
    format!("muster-bench {}", arguments.join(" "))
}

/// Runs a command and keeps the JSON object in the last line of its output.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES:\n  muster-bench record quickstart -- target/release/muster quickstart --json\n  \
        muster-bench record browser --containing 'first paint' --containing frames/s -- .ci/browser"
)]
pub(crate) struct RecordArgs {
    /// Name of the result
    name: String,
    /// Times to run it; each run is kept
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Keep the last lines of its output as they are, instead of a JSON object
    #[arg(long, value_name = "LINES", conflicts_with = "repeat", value_parser = clap::value_parser!(u16).range(1..=50))]
    lines: Option<u16>,
    /// Keep the lines of its output that have one of these texts in them; what the command skipped is not kept
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["repeat", "lines"])]
    containing: Vec<String>,
    /// The command, which prints one JSON object as its last line
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the command as often as asked; a run that fails ends everything, and nothing is kept.
///
/// # Errors
/// When the command cannot be started, fails, or prints no JSON object at its end.
pub(crate) fn record(args: &RecordArgs) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(!args.name.is_empty() && args.name.chars().all(is_plain), "a name has letters, digits and `-`");
    let machine = machine::describe();
    let mut report = json!({ "scenario": args.name, "command": args.command.join(" "), "machine": machine });
    match args.lines {
        Some(count) => {
            let text = output_of(&args.command)?;
            let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
            report["lines"] = json!(lines.split_off(lines.len().saturating_sub(usize::from(count))));
        }
        None if !args.containing.is_empty() => {
            let text = output_of(&args.command)?;
            let lines = lines_containing(&text, &args.containing)?;
            if lines.is_empty() {
                eprintln!("nothing was measured, and nothing is kept");
                return Ok(());
            }
            report["lines"] = json!(lines);
        }
        None => {
            let runs: Result<Vec<Value>> = (0..args.repeat).map(|_| run_once(&args.command)).collect();
            report["runs"] = json!(runs?);
        }
    }
    report["load_average_after"] = json!(machine::load_average());
    let path = directory().join(format!("{}-{}.json", machine::today(), args.name));
    write(&path, &stamp(&report))
}

/// The lines with one of the texts in them, in their order; none where the command skipped what it would have measured.
///
/// # Errors
/// When there is no such line and nothing was skipped, or there are too many.
fn lines_containing<'a>(text: &'a str, wanted: &[String]) -> Result<Vec<&'a str>> {
    let has_one = |line: &&str| wanted.iter().any(|part| line.contains(part.as_str()));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(has_one).collect();
    ensure!(lines.len() <= LINES_MAX, "{} lines have these texts, and {LINES_MAX} can be kept", lines.len());
    let is_skipped = text.lines().any(|line| line.starts_with("skipped"));
    ensure!(!lines.is_empty() || is_skipped, "no line of the output has one of {wanted:?}");
    Ok(lines)
}

fn output_of(command: &[String]) -> Result<String> {
    let (program, arguments) = command.split_first().context("a command is needed")?;
    let found = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {program}"))?;
    ensure!(found.status.success(), "{program} ended with {}", found.status);
    ensure!(found.stdout.len() <= OUTPUT_BYTES_MAX, "the output is larger than {OUTPUT_BYTES_MAX} bytes");
    Ok(String::from_utf8_lossy(&found.stdout).into_owned())
}

fn run_once(command: &[String]) -> Result<Value> {
    let text = output_of(command)?;
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let value: Value = serde_json::from_str(last)
        .or_else(|_| serde_json::from_str(&text))
        .context("the command printed no JSON object at its end")?;
    ensure!(value.is_object(), "the command printed JSON that is no object");
    Ok(value)
}

/// Writes the page of results.
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES:\n  muster-bench report --write benches/RESULTS.md\n  muster-bench report")]
pub(crate) struct ReportArgs {
    /// The file to write; the terminal when not given
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The newest result of each scenario, as one page.
///
/// # Errors
/// When a result cannot be read, or the page cannot be written.
pub(crate) fn report(args: &ReportArgs) -> Result<()> {
    let newest = newest(&directory())?;
    let page = page(&newest, commits_since);
    match &args.write {
        Some(path) => {
            std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
        }
        None => print!("{page}"),
    }
    Ok(())
}

/// The newest file of each scenario: names begin with the date.
fn newest(directory: &Path) -> Result<Map<String, Value>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let mut newest = Map::new();
    for path in files {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let Some(scenario) = name.get(11..) else { bail!("{}: no date and scenario", path.display()) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut value: Value =
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        if value.get("commit").is_none()
            && let Some(fields) = value.as_object_mut()
        {
            fields.extend(first_kept(&path).map(|commit| (KEPT_WITH.to_owned(), json!(commit))));
        }
        newest.insert(scenario.to_owned(), value);
    }
    Ok(newest)
}

/// The commit that a file came into the repository with. What it was measured on is that one's parent or older.
fn first_kept(path: &Path) -> Option<String> {
    let path = path.to_str()?;
    git(&["log", "--diff-filter=A", "--max-count=1", "--format=%h", "--abbrev=10", "--", path])
        .filter(|commit| !commit.is_empty())
}

/// Of which code a result is, and how old that is.
fn age(result: &Value, commits_since: &impl Fn(&str) -> Option<u64>) -> String {
    let text = |field: &str| result.get(field).and_then(Value::as_str);
    let (commit, which, least) = match (text("commit"), text(KEPT_WITH)) {
        (Some(commit), _) => (commit, format!("Commit {commit}"), ""),
        (None, Some(kept)) => (kept, format!("Commit not written down, before {kept}"), "at least "),
        (None, None) => return "Commit unknown (how much has changed since is not known)".to_owned(),
    };
    match commits_since(commit) {
        Some(0) if least.is_empty() => format!("{which} (the product's code has not changed since)"),
        Some(commits) => format!("{which} ({least}{commits} commits to the product's code since)"),
        None => format!("{which} (how much has changed since is not known)"),
    }
}

/// How many commits changed the product's code after this one. `None` when git does not know the commit.
fn commits_since(commit: &str) -> Option<u64> {
    let commit = commit.trim_end_matches("-dirty");
    let range = format!("{commit}..HEAD");
    git(&["rev-list", "--count", &range, "--", ":/crates", ":/proto", ":/Cargo.lock"])?.parse().ok()
}

fn page(results: &Map<String, Value>, commits_since: impl Fn(&str) -> Option<u64>) -> String {
    let mut page = String::from(
        "# Results\n\nWritten by `muster-bench report --write benches/RESULTS.md` from `benches/results/`; `benches/run-all` \
         measures\neverything again. Absolute figures are of one machine. Ratios within one run say more.\n\
         `benches/README.md` says what each scenario does.\n",
    );
    for table in TABLES {
        let _ = write!(page, "\n## {}\n\n", table.title);
        match results.get(table.scenario) {
            Some(result) => write_table(&mut page, table, result, &commits_since),
            None => page.push_str("Not measured.\n"),
        }
    }
    page
}

fn write_table(
    page: &mut String,
    table: &Table,
    result: &Value,
    commits_since: &impl Fn(&str) -> Option<u64>,
) {
    let text =
        |pointer: &str| result.pointer(pointer).and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let command = match result.get("command").and_then(Value::as_str) {
        Some(command) => command.to_owned(),
        None => format!("muster-bench, scenario {}; its options were not written down", table.scenario),
    };
    let age = age(result, commits_since);
    let _ = writeln!(
        page,
        "`{command}`\n\n{age}, {}, {} x {}, {} GiB, load average {} before and {} after.\n",
        text("/machine/date"),
        result.pointer("/machine/cpus").unwrap_or(&Value::Null),
        text("/machine/model"),
        result.pointer("/machine/memory_gib").unwrap_or(&Value::Null),
        text("/machine/load_average"),
        text("/load_average_after"),
    );
    if let Some(lines) = result.pointer("/lines").and_then(Value::as_array) {
        let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
        let _ = writeln!(page, "```\n{}\n```", lines.join("\n"));
        write_note(page, table);
        return;
    }
    page.push_str("| what | figure | aim |\n|---|---|---|\n");
    for row in table.rows {
        let (what, figure) = (filled(row.what, result), filled(row.figure, result));
        let _ = writeln!(page, "| {what} | {figure} | {} |", row.aim);
    }
    for figure in result.pointer("/figures").and_then(Value::as_array).into_iter().flatten() {
        write_figure(page, figure);
    }
    write_note(page, table);
}

fn write_note(page: &mut String, table: &Table) {
    if !table.note.is_empty() {
        let _ = write!(page, "\n{}\n", table.note);
    }
}

/// A row of a result that has its own list of figures, each with its aim.
fn write_figure(page: &mut String, figure: &Value) {
    let text = |field: &str| figure[field].as_str().unwrap_or_default();
    let aim = match (&figure["bar"], &figure["met"]) {
        (Value::Null, _) => String::new(),
        (bar, Value::Bool(true)) => shown(bar),
        (bar, _) => format!("{}: not reached", shown(bar)),
    };
    let value = shown(&figure["value"]);
    // The scheduler refused or left undone what was to be measured: the value is only the time that took.
    if figure["undone"] == true {
        let _ = writeln!(page, "| {}: {} | was not done | {aim} |", text("bench"), text("figure"));
        return;
    }
    let _ = writeln!(page, "| {}: {} | {value} {} | {aim} |", text("bench"), text("figure"), text("unit"));
}

/// A template with every `{pointer}` replaced by the value there; a list gives its least, middle and largest.
fn filled(template: &str, result: &Value) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let Some((pointer, after)) = behind.split_once('}') else { break };
        text.push_str(&value_at(pointer, result));
        rest = after;
    }
    text.push_str(rest);
    text
}

/// The value behind a pointer. `*` stands for every element of a list.
fn value_at(pointer: &str, result: &Value) -> String {
    let Some((list, below)) = pointer.split_once("/*") else {
        return result.pointer(pointer).map_or_else(|| "not measured".to_owned(), shown);
    };
    let elements = result.pointer(list).and_then(Value::as_array);
    let mut numbers: Vec<f64> = elements
        .into_iter()
        .flatten()
        .filter_map(|element| element.pointer(below).and_then(Value::as_f64))
        .collect();
    numbers.sort_unstable_by(f64::total_cmp);
    match (numbers.first(), numbers.last()) {
        (Some(least), Some(most)) if least == most => shown(&json!(least)),
        (Some(least), Some(most)) => {
            let median = crate::figures::median(&numbers);
            format!("{} to {}, median {}", shown(&json!(least)), shown(&json!(most)), shown(&json!(median)))
        }
        _ => "not measured".to_owned(),
    }
}

/// A value for people: thousands apart, three digits that say something.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.fract() == 0.0 || number.abs() >= 100.0 => {
                thousands(number.round() as i64)
            }
            Some(number) if number.abs() >= 10.0 => format!("{number:.1}"),
            Some(number) if number.abs() >= 0.1 => format!("{number:.2}"),
            Some(number) => format!("{number:.4}"),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

fn thousands(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_values_lists_and_say_what_is_missing() {
        let result = json!({ "a": { "b": 1_234_567 }, "c": [{ "d": 2.5 }, { "d": 0.5 }, { "d": 9 }] });
        assert_eq!(filled("{/a/b} jobs", &result), "1,234,567 jobs");
        assert_eq!(filled("{/c/*/d} s", &result), "0.50 to 9, median 2.50 s");
        assert_eq!(filled("{/e}", &result), "not measured");
        assert_eq!(filled("{/e/*/f}", &result), "not measured");
    }

    #[test]
    fn a_page_says_how_old_each_result_is() {
        let mut results = Map::new();
        let machine = json!({ "date": "2026-01-31", "cpus": 2, "model": "m", "load_average": "1" });
        let stamped = json!({ "commit": "abc", "command": "c", "machine": machine });
        results.insert("failover".to_owned(), stamped);
        let page = page(&results, |commit| (commit == "abc").then_some(3));
        assert!(page.contains("Commit abc (3 commits to the product's code since), 2026-01-31"), "{page}");
        assert!(page.contains("Not measured."), "{page}");
        results.insert(
            "failover".to_owned(),
            json!({ (KEPT_WITH): "abc", "machine": machine, "load_average_after": "1" }),
        );
        let page = super::page(&results, |commit| (commit == "abc").then_some(3));
        let says = "Commit not written down, before abc (at least 3 commits to the product's code since), 2026-01-31";
        assert!(page.contains(says), "{page}");
        assert!(!page.contains("unknown"), "{page}");
    }

    /// Those of the first day were kept without commit and command; the page says that of each until it is measured again.
    #[test]
    fn every_kept_result_names_its_commit_command_machine_and_date() {
        for entry in std::fs::read_dir(directory()).expect("kept results can be listed") {
            let path = entry.expect("kept results can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("2026-11-22-") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a kept result can be read");
            let result: Value = serde_json::from_str(&text).expect("a kept result is JSON");
            for pointer in ["/commit", "/command", "/machine/model", "/machine/date"] {
                let text = result.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                assert!(!text.is_empty(), "{name} lacks {pointer}");
            }
        }
    }

    #[test]
    fn lines_are_kept_by_what_is_in_them() {
        let wanted = ["first paint".to_owned(), "frames/s".to_owned()];
        let found = |text: &str| lines_containing(text, &wanted).map(|lines| lines.len());
        let text =
            "running 1 test\n/: first paint 80 ms, at most 200\n  /fleet: 41.0 frames/s, at least 30\nok\n";
        let lines = lines_containing(text, &wanted).expect("there are two");
        assert_eq!(lines, ["/: first paint 80 ms, at most 200", "/fleet: 41.0 frames/s, at least 30"]);
        let skipped = found("skipped: the web pages in a browser (there is no Chromium)\n");
        assert_eq!(skipped.expect("what is skipped is no failure"), 0);
        assert!(found("running 0 tests\n").is_err(), "a command that prints no figure is one");
        assert!(found(&"frames/s\n".repeat(LINES_MAX + 1)).is_err());
    }

    #[test]
    fn every_kept_result_has_a_table() {
        for scenario in newest(&directory()).expect("kept results can be read").keys() {
            assert!(TABLES.iter().any(|table| table.scenario == scenario), "{scenario} has no table");
        }
    }
}
