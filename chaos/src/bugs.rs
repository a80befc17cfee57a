//! Who notices which planted bug: a rule is broken in a build made for that, and drills and seeds must find it.
//!
//! The drills are run by a `muster-chaos` of that build, as a child for each rule: the client that drills
//! submit with is in it too, and what a process breaks is decided once. The judge is the same in both. A control
//! breaks nothing and must be clean: a drill that finds something in it shows nothing by finding something.
//!
//! **Invariant:** a rule counts as caught by a drill only through a finding in a stored verdict that speaks of that
//! rule, or, where replicas stopped for good and reported why, through what they wrote; a drill that did not run has
//! caught nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use muster_drill::judge::{Rule as Held, Verdict};
use muster_drill::report::Summary;
use muster_drill::scenario::Scenario;
use muster_planted::{Rule, VARIABLE};
use serde::Serialize;

use crate::run::evidence::{Collected, stored, unfinished};

/// What a child is told that breaks nothing.
const CONTROL: &str = "none";
/// How a drill begins to say that this machine cannot carry it out.
const SKIPPED: &str = "skipped:";
/// Errors of one host that are looked at where a drill came to no verdict.
const LINES_LEFT_MAX: usize = 100;
/// Fewer runs have no median to speak of.
const RUNS_OF_A_MEDIAN: u64 = 3;

/// What must notice that a rule is broken.
struct Hunt {
    rule: Rule,
    /// In the order they are tried.
    drills: &'static [&'static str],
    /// Findings that speak of this rule.
    by: &'static [Held],
    /// What processes write themselves when they notice: parts of lines that the harness found in their logs, or of
    /// the harness's troubles.
    said: &'static [&'static str],
}

/// Who hunts what.
fn hunts() -> Vec<Hunt> {
    let hunt = |rule, drills, by| Hunt { rule, drills, by, said: said_of(rule) };
    Rule::ALL
        .into_iter()
        .map(|rule| match rule {
            Rule::HeartbeatWithoutQuorum | Rule::AgentIgnoresLease => {
                hunt(rule, &["leader-isolated-with-agents", "leader-region-lost"][..], &[Held::Overlap][..])
            }
            Rule::SkipGuard => hunt(
                rule,
                &["leadership-there-and-back"],
                &[
                    Held::Log,
                    Held::RecordRefused,
                    Held::WrongRecord,
                    Held::AcknowledgementLost,
                    Held::ReplicaDiffers,
                    Held::GangTouched,
                    Held::SubmissionFailed,
                ],
            ),
            Rule::VoteAfterLoss => hunt(
                rule,
                &["storage-lost-while-behind", "storage-lost"],
                &[Held::AcknowledgementLost, Held::WrongRecord, Held::Log, Held::ReplicaDiffers],
            ),
            Rule::AckBeforeFlush => hunt(
                rule,
                &["everything-killed", "power-cut"],
                &[Held::AcknowledgementLost, Held::WrongRecord, Held::AnswerFromNowhere],
            ),
            Rule::LeaderRestore => hunt(
                rule,
                &["leader-killed-mid-flush"],
                &[
                    Held::AcknowledgementLost,
                    Held::WrongRecord,
                    Held::ReplicaDiffers,
                    Held::Leadership,
                    Held::SubmissionsLate,
                    Held::SubmissionFailed,
                ],
            ),
            Rule::RetryUnderNewId => hunt(
                rule,
                &["leader-region-lost", "leader-killed"],
                &[Held::RequestOfNobody, Held::DoneTwice, Held::AcknowledgementLost, Held::WrongRecord],
            ),
            Rule::WallClockOnly => hunt(rule, &["clock-skew"], &[Held::LogTimeStands]),
            Rule::ReadWithoutQuorum => hunt(
                rule,
                &["leader-region-lost", "leader-killed"],
                &[Held::StaleLinearizableRead, Held::StaleBoundedRead, Held::StalenessUntrue],
            ),
            Rule::AnswerBeforeApply => hunt(
                rule,
                &["leader-isolated-with-agents", "leader-region-lost"],
                &[Held::AcknowledgementLost, Held::WrongRecord, Held::AnswerFromNowhere],
            ),
            Rule::DeafLeaderSpeaks => hunt(
                rule,
                &["leader-deaf"],
                &[Held::Leadership, Held::SubmissionsLate, Held::SubmissionFailed],
            ),
            Rule::KeepsOnBadDisk => {
                hunt(rule, &["slow-disk"], &[Held::Leadership, Held::SubmissionsSlow, Held::SubmissionFailed])
            }
            Rule::WatchSkips => hunt(rule, &["rolling-restart", "leader-region-lost"], &[Held::WatchDiffers]),
        })
        .collect()
}

/// A replica that notices by itself stops, and says why.
fn said_of(rule: Rule) -> &'static [&'static str] {
    match rule {
        Rule::SkipGuard | Rule::VoteAfterLoss | Rule::AckBeforeFlush | Rule::LeaderRestore => {
            &["the guard refused", "has diverged", "panicked", "cannot be applied"]
        }
        _ => &[],
    }
}

/// Which planted bugs drills and seeds notice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A build that breaks rules is made with
  cargo build --release --target-dir target/planted -p muster -p muster-chaos -p muster-world \
    --features muster/planted-bugs,muster-chaos/planted-bugs,muster-world/planted-bugs
and then
  muster-chaos bugs --planted target/planted/release")]
pub struct BugsArgs {
    /// Directory with `muster`, `muster-chaos` and `muster-world` of a build that breaks rules
    #[arg(long, value_name = "DIR")]
    planted: PathBuf,
    /// Where evidence and the table go
    #[arg(long, value_name = "DIR", default_value = "target/bugs")]
    out: PathBuf,
    /// Only these rules
    #[arg(long, value_name = "RULE")]
    only: Vec<Rule>,
    /// How often each drill may try
    #[arg(long, default_value_t = 3)]
    tries: u32,
    /// Replicas of the clusters that are drilled
    #[arg(long, default_value_t = 3)]
    replicas: u32,
    /// Seeds that the simulation may take for each rule; 0 leaves it out
    #[arg(long, default_value_t = 400)]
    seeds: u64,
    /// Leave out the control, which breaks nothing
    #[arg(long)]
    no_control: bool,
}

/// How a rule was noticed.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    /// The rule that was broken.
    pub rule: &'static str,
    /// The seed that noticed, and what it said.
    pub by_seed: Option<(u64, String)>,
    /// Whether the simulation was asked.
    pub has_seeds: bool,
    /// The drill that noticed, and its finding.
    pub by_drill: Option<(String, String)>,
    /// Drills that could not run here, or ran and found nothing.
    pub missed_by: Vec<String>,
}

/// The table, and whether everything was noticed and the control was clean.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// One line a rule.
    pub caught: Vec<Caught>,
    /// What the control found, by drill; must be empty.
    pub control: BTreeMap<String, String>,
    /// Whether the control ran.
    pub has_control: bool,
}

impl Table {
    /// Whether every rule was noticed by a drill, and by a seed where the simulation was asked, and the control is clean.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.control.is_empty()
            && self
                .caught
                .iter()
                .all(|line| line.by_drill.is_some() && (!line.has_seeds || line.by_seed.is_some()))
    }

    /// For people.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| rule broken | noticed by seed | noticed by drill |\n|---|---|---|\n");
        for line in &self.caught {
            let seed = match &line.by_seed {
                Some((seed, said)) => format!("{seed}: {}", cell(said)),
                None if line.has_seeds => "**missed**".to_owned(),
                None => "not asked".to_owned(),
            };
            let drill = match &line.by_drill {
                Some((drill, finding)) => format!("{drill}: {}", cell(finding)),
                None => format!("**missed** by {}", line.missed_by.join(", ")),
            };
            let _ = writeln!(text, "| {} | {seed} | {drill} |", line.rule);
        }
        let control = match (self.has_control, self.control.is_empty()) {
            (false, _) => "The control was left out.".to_owned(),
            (true, true) => "The same drills with the same build and no rule broken are clean.".to_owned(),
            (true, false) => format!("**The control is not clean:** {:?}", self.control),
        };
        let _ = writeln!(text, "\n{control}");
        text
    }
}

/// One cell of a table: short, and without what ends a cell.
fn cell(text: &str) -> String {
    let line: String = text.chars().map(|c| if c == '|' || c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= 140 { line } else { line.chars().take(139).chain(['…']).collect() }
}

/// What a child came to.
struct DrillAttempt {
    /// Each run, as this process judges it, and what the harness and the processes said.
    runs: Vec<(Scenario, Verdict, Vec<String>)>,
    /// Why there is none.
    nothing: Option<String>,
    /// What processes of a drill that was not carried out wrote: a cluster that stops itself for good carries
    /// nothing out, and says why.
    left: Vec<String>,
}

/// Runs the hunts; whether everything was noticed.
///
/// # Errors
/// When the builds are not there, or a child cannot be run.
pub fn run(args: &BugsArgs) -> Result<bool> {
    let hunts: Vec<Hunt> =
        hunts().into_iter().filter(|hunt| args.only.is_empty() || args.only.contains(&hunt.rule)).collect();
    prepare(args)?;
    let seeds = if args.seeds > 0 { by_seed(args)? } else { BTreeMap::new() };
    let mut control = BTreeMap::new();
    if !args.no_control {
        let drills: BTreeSet<&str> = hunts.iter().flat_map(|hunt| hunt.drills.iter().copied()).collect();
        for drill in drills {
            let tried = drill_once(args, CONTROL, drill, 1)?;
            for (_, verdict, troubles) in &tried.runs {
                let found = first_finding(verdict, |_| true).or_else(|| troubles.first().cloned());
                control.extend(found.map(|found| (drill.to_owned(), found)));
            }
            // What cannot be carried out here finds nothing in the others either, and is missed there.
            let broke = tried.nothing.filter(|why| !why.starts_with(SKIPPED));
            control.extend(broke.map(|why| (drill.to_owned(), why)));
            println!("control  {drill}: {}", control.get(drill).map_or("clean", String::as_str));
        }
    }
    let mut caught = Vec::new();
    for hunt in &hunts {
        let has_seeds = args.seeds > 0;
        let (by_drill, missed_by) = by_drill(args, hunt)?;
        let by_seed = seeds.get(&hunt.rule).cloned();
        let line = Caught { rule: hunt.rule.name(), by_seed, has_seeds, by_drill, missed_by };
        println!(
            "{:<26} {}",
            line.rule,
            line.by_drill
                .as_ref()
                .map_or("MISSED".to_owned(), |(drill, said)| format!("{drill}: {}", cell(said)))
        );
        caught.push(line);
    }
    let table = Table { caught, control, has_control: !args.no_control };
    let write = |name: &str, text: String| {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    write("bugs.md", table.markdown())?;
    write("bugs.json", serde_json::to_string_pretty(&table)?)?;
    print!("\n{}", table.markdown());
    Ok(table.holds())
}

/// The builds are there, and are of the kind they have to be.
fn prepare(args: &BugsArgs) -> Result<()> {
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    for name in ["muster", "muster-chaos", "muster-world"] {
        let program = args.planted.join(name);
        ensure!(program.is_file(), "{} is not there; see `muster-chaos bugs --help`", program.display());
    }
    let said = Command::new(args.planted.join("muster")).arg("--version").env(VARIABLE, CONTROL).output();
    let said = said.context("asking the build for its version")?;
    let version = String::from_utf8_lossy(&said.stdout).into_owned();
    ensure!(version.contains("BREAKS-RULES"), "{} breaks no rules: {version}", args.planted.display());
    Ok(())
}

/// Seeds that notice, by the simulation of the same build; by rule, with what the seed found.
fn by_seed(args: &BugsArgs) -> Result<BTreeMap<Rule, (u64, String)>> {
    let mut simulation = Command::new(args.planted.join("muster-world"));
    simulation.args(["bugs", "--seeds", &args.seeds.to_string()]).stderr(std::process::Stdio::inherit());
    // Its code says that a rule was missed, which the table says too.
    let said = simulation.output().context("running the simulation")?;
    let lines = String::from_utf8_lossy(&said.stdout);
    let found: BTreeMap<Rule, (u64, String)> = lines.lines().filter_map(seed_line).collect();
    ensure!(!found.is_empty(), "the simulation noticed nothing: {lines}");
    Ok(found)
}

/// A line of `muster-world bugs`: the rule, `seed`, its number, what it found.
fn seed_line(line: &str) -> Option<(Rule, (u64, String))> {
    let (rule, rest) = line.split_once(" seed ")?;
    let (seed, found) = rest.trim_start().split_once(' ')?;
    Some((rule.trim().parse().ok()?, (seed.parse().ok()?, found.trim().to_owned())))
}

type DrillFound = (Option<(String, String)>, Vec<String>);

/// The first drill that notices, and those before it that did not.
fn by_drill(args: &BugsArgs, hunt: &Hunt) -> Result<DrillFound> {
    let mut missed = Vec::new();
    for drill in hunt.drills {
        let mut why = None;
        let mut all = Vec::new();
        for attempt in 1..=args.tries {
            let tried = drill_once(args, hunt.rule.name(), drill, attempt)?;
            why = tried.nothing;
            let noticed = tried.runs.iter().find_map(|(_, verdict, troubles)| {
                let speaks = |text: &&String| hunt.said.iter().any(|part| text.contains(part));
                let said = || troubles.iter().find(speaks).cloned();
                first_finding(verdict, |rule| hunt.by.contains(rule)).or_else(said)
            });
            let speaks = |line: &&String| hunt.said.iter().any(|part| line.contains(part));
            let noticed = noticed.or_else(|| tried.left.iter().find(speaks).cloned());
            if let Some(finding) = noticed {
                return Ok((Some(((*drill).to_owned(), finding)), missed));
            }
            if why.as_ref().is_some_and(|why| why.starts_with(SKIPPED)) {
                break;
            }
            all.extend(tried.runs);
        }
        if hunt.by.contains(&Held::SubmissionsLate)
            && let Some(late) = late_in_the_median(&all)
        {
            return Ok((Some(((*drill).to_owned(), late)), missed));
        }
        missed.push(why.map_or_else(|| (*drill).to_owned(), |why| format!("{drill} ({})", cell(&why))));
    }
    Ok((None, missed))
}

/// Some bars are for the median of many runs: each of them may be within what one run may take.
fn late_in_the_median(runs: &[(Scenario, Verdict, Vec<String>)]) -> Option<String> {
    let summary = Summary::of(runs.iter().map(|(scenario, verdict, _)| (scenario, verdict)));
    let bar = &summary.rows.first()?.submissions;
    let (median_ms, bar_ms) = (bar.median_ms?, bar.median_bar_ms?);
    let is_late = bar.measured >= RUNS_OF_A_MEDIAN && median_ms > bar_ms;
    is_late.then(|| {
        let code = Held::SubmissionsLate;
        format!("{code} the median of {} runs is {median_ms} ms; the bar is {bar_ms} ms", bar.measured)
    })
}

/// The first finding of a rule that counts, with the rule's code.
fn first_finding(verdict: &Verdict, counts: impl Fn(&Held) -> bool) -> Option<String> {
    let (rule, breaches) = verdict.findings.0.iter().find(|(rule, _)| counts(rule))?;
    let first = breaches.first.first().map_or("", |finding| finding.text.as_str());
    Some(format!("{rule} ×{} {first}", breaches.count))
}

/// One drill with one rule broken, by a child of the build that breaks rules.
fn drill_once(args: &BugsArgs, rule: &str, drill: &str, attempt: u32) -> Result<DrillAttempt> {
    let out = args.out.join(rule).join(format!("{drill}-{attempt}"));
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("emptying {}", out.display()))?;
    }
    std::fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let evidence = out.join("evidence");
    let ran = Command::new(args.planted.join("muster-chaos"))
        .arg("run")
        .arg(drill)
        .args(["--seed", &attempt.to_string(), "--replicas", &args.replicas.to_string()])
        .arg("--muster")
        .arg(args.planted.join("muster"))
        .arg("--out")
        .arg(&evidence)
        .env(VARIABLE, rule)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {drill}"))?;
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    std::fs::write(out.join("output"), &said).with_context(|| format!("writing into {}", out.display()))?;
    let mut runs = Vec::new();
    // A drill that was not carried out has left none.
    for directory in stored(&evidence).unwrap_or_default() {
        if unfinished(&directory)?.is_some() {
            continue;
        }
        let collected = Collected::load(&directory)?;
        let (_, verdict) = collected.judge(&directory)?;
        let troubles = collected.harness.findings();
        runs.push((collected.scenario, verdict, troubles));
    }
    let nothing = runs.is_empty().then(|| {
        let skipped = said.lines().find(|line| line.starts_with(SKIPPED));
        let last = || said.lines().rev().find(|line| !line.trim().is_empty());
        skipped.or_else(last).map_or_else(|| format!("it said nothing ({})", ran.status), ToOwned::to_owned)
    });
    let left = if runs.is_empty() { lines_left(&evidence)? } else { Vec::new() };
    Ok(DrillAttempt { runs, nothing, left })
}

/// Errors in the logs of a drill that came to no verdict, each with its host.
fn lines_left(evidence: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let reading = || format!("reading {}", evidence.display());
    let directories = match std::fs::read_dir(evidence) {
        Ok(directories) => directories,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(lines),
        Err(error) => return Err(error).with_context(reading),
    };
    let mut directories: Vec<PathBuf> = directories.flatten().map(|entry| entry.path()).collect();
    directories.sort();
    for directory in directories {
        let logs = std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut logs: Vec<PathBuf> =
            logs.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
        logs.sort();
        for log in logs {
            let host = log.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let text = std::fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
            let text = String::from_utf8_lossy(&text);
            let errors = text.lines().filter(|line| line.contains(" ERROR "));
            lines.extend(errors.take(LINES_LEFT_MAX).map(|line| format!("{host}: {line}")));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_hunted_by_drills_that_there_are() {
        let drills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/drills");
        for hunt in hunts() {
            assert!(!hunt.drills.is_empty() && !hunt.by.is_empty(), "{}", hunt.rule);
            for drill in hunt.drills {
                assert!(drills.join(format!("{drill}.yaml")).is_file(), "{}: no drill {drill}", hunt.rule);
            }
        }
    }

    #[test]
    fn lines_of_the_simulation_are_read() {
        let line = "skip-guard                 seed 12    two leaders | of one term";
        assert_eq!(seed_line(line), Some((Rule::SkipGuard, (12, "two leaders | of one term".to_owned()))));
        for other in ["", "no-rule seed 1 x", "skip-guard seed x y", "the others are broken in the product"] {
            assert_eq!(seed_line(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_rule_that_nobody_noticed_and_a_control_that_is_not_clean_fail_the_table() {
        let line = |by_drill: Option<(String, String)>| Caught {
            rule: "skip-guard",
            by_seed: None,
            has_seeds: false,
            by_drill,
            missed_by: vec!["clock-skew (skipped)".to_owned()],
        };
        let found = Some(("a".to_owned(), "OVERLAP ×1 a | b".to_owned()));
        let table = |by_drill, control| Table { caught: vec![line(by_drill)], control, has_control: true };
        assert!(table(found.clone(), BTreeMap::new()).holds());
        assert!(!table(None, BTreeMap::new()).holds());
        let unclean = BTreeMap::from([("a".to_owned(), "LOG".to_owned())]);
        assert!(!table(found.clone(), unclean).holds());
        assert!(table(None, BTreeMap::new()).markdown().contains("**missed** by clock-skew (skipped)"));
        assert!(table(found, BTreeMap::new()).markdown().contains("OVERLAP ×1 a   b"));
    }
}
