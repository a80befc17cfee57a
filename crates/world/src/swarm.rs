//! Many seeds: those that failed once, then new ones; and rules broken on purpose, to see them caught.

use crate::asked::Asked;
use crate::checks::Counts;
use crate::settings::Settings;
use crate::simulation::{Report, simulate};
use muster_planted::Rule;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seeds that failed once, each with what was wrong.
const CORPUS: &str = include_str!("../corpus.txt");

/// One line of the corpus.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it was made of.
    pub settings: Settings,
    /// What was wrong.
    pub why: String,
}

/// Seeds that failed once: `seed replicas chaos_ms what was wrong`.
///
/// # Errors
/// The line that is not one.
pub fn corpus() -> Result<Vec<Case>, String> {
    let lines = CORPUS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(seed), Some(replicas), Some(chaos_ms)) = (number(), number(), number()) else {
                return Err(format!("not a line of the corpus: {line:?}"));
            };
            let replicas = u32::try_from(replicas).map_err(|error| error.to_string())?;
            let settings = Settings { replicas, ..Settings::of_seed(seed, chaos_ms) };
            Ok(Case { settings, why: words.next().unwrap_or_default().to_owned() })
        })
        .collect()
}

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// How long at most.
    pub limit: Duration,
    /// Simulated time of faults in each.
    pub chaos_ms: u64,
    /// Threads; a run is always on one.
    pub threads: usize,
    /// Three or five; none lets the seed choose.
    pub replicas: Option<u32>,
}

/// How deep a run went: a run in which nothing breaks, nothing is acknowledged or nobody leads shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Faults made.
    pub faults: u64,
    /// Submissions acknowledged.
    pub acknowledged: u64,
    /// Leaderships that wrote something.
    pub leaderships: u64,
}

impl Depth {
    fn of(counts: &Counts) -> Depth {
        Depth { faults: counts.faults, acknowledged: counts.acknowledged, leaderships: counts.leaderships }
    }

    /// The less of each.
    fn min(self, other: Depth) -> Depth {
        Depth {
            faults: self.faults.min(other.faults),
            acknowledged: self.acknowledged.min(other.acknowledged),
            leaderships: self.leaderships.min(other.leaderships),
        }
    }
}

/// What became of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs made.
    pub runs: u64,
    /// Simulated time of all, in milliseconds.
    pub simulated_ms: u64,
    /// Real time, summed over threads.
    pub busy: Duration,
    /// Runs that failed.
    pub failed: Vec<Report>,
    /// Submissions acknowledged, of all.
    pub acknowledged: u64,
    /// Faults made, of all.
    pub faults: u64,
    /// Leaderships that wrote something, of all.
    pub leaderships: u64,
    /// The fewest faults, acknowledged submissions and leaderships of one run.
    pub least: Option<Depth>,
    /// Of the runs with five replicas alone: simulated time in milliseconds, and real time.
    pub five: (u64, Duration),
    /// Longest from the heal to the next acknowledgement, in milliseconds.
    pub slowest_recovery_ms: u64,
    /// Runs that had a snapshot installed, a replica replaced.
    pub with_install: u64,
    /// Runs in which a replica came back after its storage was lost.
    pub with_replacement: u64,
    /// Runs in which an upload of a snapshot went on where it had broken off.
    pub with_resumption: u64,
    /// Leaders that were replaced in time, of all.
    pub replaced_leaders: u64,
    /// Leaders that stood still until another led, and went on, of all.
    pub thawed_leaders: u64,
    /// Times that every replica lost power at once, of all.
    pub power_cuts: u64,
    /// Machines that were cut off until their nodes were lost, of all.
    pub lost_machines: u64,
    /// Checkpoints acknowledged, of all.
    pub checkpoints: u64,
    /// Bounded reads answered, of all.
    pub bounded_reads: u64,
    /// What clients asked for, of all.
    pub asked: Asked,
}

impl Summary {
    /// Simulated seconds in one second of one core.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.simulated_ms as f64 / 1_000.0 / self.busy.as_secs_f64().max(1e-9)
    }

    /// The same for five replicas alone; none when no run had five.
    #[must_use]
    pub fn speed_of_five(&self) -> Option<f64> {
        let (simulated_ms, busy) = self.five;
        (simulated_ms > 0).then(|| simulated_ms as f64 / 1_000.0 / busy.as_secs_f64().max(1e-9))
    }

    /// How deep the runs went, on average and at least.
    #[must_use]
    pub fn depth(&self) -> String {
        let mean = |sum: u64| sum as f64 / self.runs.max(1) as f64;
        let Some(Depth { faults, acknowledged, leaderships }) = self.least else {
            return "no run was made".to_owned();
        };
        format!(
            "a run has on average {:.1} faults (at least {faults}), {:.1} acknowledged submissions (at least \
             {acknowledged}) and {:.1} leaderships (at least {leaderships})",
            mean(self.faults),
            mean(self.acknowledged),
            mean(self.leaderships)
        )
    }

    /// Adds a run.
    pub fn add(&mut self, report: Report, took: Duration) {
        self.runs += 1;
        self.simulated_ms += report.digest.simulated_ms;
        self.busy += took;
        if report.settings.replicas == 5 {
            self.five.0 += report.digest.simulated_ms;
            self.five.1 += took;
        }
        self.acknowledged += report.counts.acknowledged;
        self.faults += report.counts.faults;
        self.leaderships += report.counts.leaderships;
        let own = Depth::of(&report.counts);
        self.least = Some(self.least.map_or(own, |least| least.min(own)));
        self.slowest_recovery_ms = self.slowest_recovery_ms.max(report.recovered_ms.unwrap_or(0));
        self.with_install += u64::from(report.counts.installed > 0);
        self.with_replacement += u64::from(report.counts.replaced > 0);
        self.with_resumption += u64::from(report.counts.resumed > 0);
        self.replaced_leaders += report.counts.replaced_leaders;
        self.thawed_leaders += report.counts.thawed_leaders;
        self.power_cuts += report.counts.power_cuts;
        self.lost_machines += report.counts.lost_machines;
        self.checkpoints += report.counts.checkpoints;
        self.bounded_reads += report.counts.bounded_reads;
        self.asked.add(&report.asked);
        if !report.violations.is_empty() {
            self.failed.push(report);
        }
    }
}

/// Runs them; `told` hears of every run that failed as it comes.
pub fn swarm(extent: Extent, told: impl Fn(&Report) + Sync) -> Summary {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..extent.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= extent.seeds || begun.elapsed() >= extent.limit {
                        return;
                    }
                    let mut settings = Settings::of_seed(extent.from + place, extent.chaos_ms);
                    settings.replicas = extent.replicas.unwrap_or(settings.replicas);
                    let started = Instant::now();
                    let report = simulate(settings, false);
                    if !report.violations.is_empty() {
                        told(&report);
                    }
                    summary.lock().add(report, started.elapsed());
                }
            });
        }
    });
    summary.into_inner()
}

/// Breaks a rule, and runs seeds until the judge notices: until one of its findings has one of these words in it, any
/// finding where none are given. The same seed without the broken rule has to be clean, or the finding shows nothing.
///
/// # Errors
/// The report of a seed that is not clean without the broken rule.
pub fn catch(
    bug: Rule,
    seeds: impl IntoIterator<Item = u64>,
    chaos_ms: u64,
    words: &[&str],
) -> Result<Option<Report>, Box<Report>> {
    for seed in seeds {
        let settings = Settings::of_seed(seed, chaos_ms);
        let report = simulate(Settings { bug: Some(bug), ..settings }, false);
        let speaks = |found: &String| words.is_empty() || words.iter().any(|word| found.contains(word));
        if !report.violations.iter().any(speaks) {
            continue;
        }
        let control = simulate(settings, false);
        if !control.violations.is_empty() {
            return Err(Box::new(control));
        }
        return Ok(Some(report));
    }
    Ok(None)
}

/// Kinds of violations among reports, for a summary.
#[must_use]
pub fn kinds(reports: &[Report]) -> BTreeSet<String> {
    let plain = |text: &String| text.chars().filter(|c| !c.is_ascii_digit()).take(70).collect::<String>();
    reports.iter().flat_map(|report| report.violations.first().map(plain)).collect()
}
