//! Cost of the scheduler itself: the shipping decider, guard and fold on one thread, without consensus,
//! network or disk, on fleets and queues of the sizes it is meant for.
//!
//! Every figure has the bar it is held to, and where another scheduler publishes one for the same shape of
//! work, that figure too. Nothing fails for being slow: the table says what was met.
//!
//! Times are processor time of the one thread that does everything: it waits for nothing, so on an idle
//! machine they are what a clock on the wall shows, and on a busy one they leave out the turns of others.

mod arrays;
mod fleet;
mod gang;
mod growth;
mod ledger;
mod memory;
mod peers;
mod pending_queue;
pub(crate) mod replay;
mod verdict;

use std::time::{Duration, Instant};

use crate::machine;
use serde_json::{Value, json};

/// What published figures of schedulers on Kubernetes have in them that these have not.
const WITH_API: &str = "theirs includes the Kubernetes API server and its store";

/// The bar of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Bar::AtMost(most) => value <= most,
            Bar::AtLeast(least) => value >= least,
        }
    }

    fn limit(self) -> f64 {
        match self {
            Bar::AtMost(limit) | Bar::AtLeast(limit) => limit,
        }
    }
}

/// The figure that another scheduler publishes, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) who: &'static str,
    pub(crate) seconds: f64,
    /// Seconds of ours for the same work.
    pub(crate) ours_s: f64,
}

/// One measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    bench: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    bar: Option<Bar>,
    peer: Option<Peer>,
    /// The scheduler did not do what was to be measured: the value is the time it took to find that out.
    undone: bool,
    detail: Value,
}

impl Figure {
    pub(crate) fn new(
        bench: &'static str,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Figure {
        Figure {
            bench,
            what: what.into(),
            value,
            unit,
            bar: None,
            peer: None,
            undone: false,
            detail: Value::Null,
        }
    }

    pub(crate) fn bar(self, bar: Bar) -> Figure {
        Figure { bar: Some(bar), ..self }
    }

    pub(crate) fn peer(self, who: &'static str, seconds: f64, ours: Duration) -> Figure {
        Figure { peer: Some(Peer { who, seconds, ours_s: ours.as_secs_f64() }), ..self }
    }

    pub(crate) fn undone(self) -> Figure {
        Figure { undone: true, peer: None, ..self }
    }

    pub(crate) fn detail(self, detail: Value) -> Figure {
        Figure { detail, ..self }
    }

    /// Whether its bar is met; none when it has no bar.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.bar.map(|bar| !self.undone && bar.is_met(self.value))
    }

    fn verdict(&self) -> &'static str {
        match self.is_met() {
            _ if self.undone => "UNDONE",
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        }
    }

    fn json(&self) -> Value {
        let peer = self.peer.map(|peer| {
            json!({
                "who": peer.who,
                "seconds": peer.seconds,
                "times_faster": rounded(peer.seconds / peer.ours_s),
                "condition": WITH_API,
            })
        });
        json!({
            "bench": self.bench,
            "figure": self.what,
            "value": rounded(self.value),
            "unit": self.unit,
            "bar": self.bar.map(Bar::limit),
            "met": self.is_met(),
            "undone": self.undone,
            "peer": peer,
            "detail": self.detail,
        })
    }

    pub(crate) fn line(&self) -> String {
        let bar = self.bar.map_or_else(String::new, |bar| match bar {
            Bar::AtMost(most) => format!("<= {}", shown(most)),
            Bar::AtLeast(least) => format!(">= {}", shown(least)),
        });
        let peer = self.peer.map_or_else(String::new, |peer| {
            format!("{} {} s ({} times)", peer.who, shown(peer.seconds), shown(peer.seconds / peer.ours_s))
        });
        let value = format!("{} {}", shown(self.value), self.unit);
        let (bench, what, verdict) = (self.bench, &self.what, self.verdict());
        let line = format!("{bench:<14} {what:<52} {value:>18} {bar:>12} {verdict:<7} {peer}");
        line.trim_end().to_owned()
    }
}

/// Six digits after the point: more than any clock here can tell apart.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Three digits that say something.
fn shown(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

/// A bench by the name that `--only` takes.
type Bench = (&'static str, fn() -> Vec<Figure>);

/// In this order: what measures memory must find the process as it was started.
const BENCHES: &[Bench] = &[
    ("memory", memory::waiting),
    ("few-classes", pending_queue::few_classes),
    ("all-different", pending_queue::all_different),
    ("gang", gang::gangs),
    ("never", verdict::never),
    ("cannot-now", verdict::cannot_now),
    ("why-pending", verdict::why_pending),
    ("growth-nodes", growth::by_nodes),
    ("growth-waiting", growth::by_waiting),
    ("kueue-baseline", peers::kueue_baseline),
    ("kueue-large", peers::kueue_large),
    ("kai-scale", peers::kai_scale),
    ("ledger", ledger::fold),
    ("report-month", ledger::month_report),
];

/// The names that `--only` takes.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BENCHES.iter().map(|(name, _)| *name)
}

/// Runs the benches of these names, or all when there is none; prints each figure as it is known, and gives
/// everything as one JSON object.
///
/// # Errors
/// A name that is no bench.
pub(crate) fn run(only: &[String]) -> Result<Value, String> {
    let is_unknown = |name: &&String| !names().any(|known| known == name.as_str());
    if let Some(unknown) = only.iter().find(is_unknown) {
        return Err(format!(
            "there is no bench {unknown:?}; known: {}",
            names().collect::<Vec<_>>().join(", ")
        ));
    }
    let machine = machine::describe();
    println!("{}", machine::sentence(&machine));
    println!("processor time of one thread: decider, guard and fold of the shipping scheduler; {WITH_API}\n");
    let mut figures: Vec<Figure> = Vec::new();
    for (name, bench) in BENCHES {
        if !only.is_empty() && !only.iter().any(|wanted| wanted == name) {
            continue;
        }
        let load = machine::load_average();
        let begun = Instant::now();
        let found = bench();
        for figure in &found {
            println!("{}", figure.line());
        }
        eprintln!("{name}: {:.1} s, load average before {load}", begun.elapsed().as_secs_f64());
        figures.extend(found);
    }
    Ok(report(machine, &figures))
}

/// Measures what a replica does at its start, with `jobs` jobs; prints each figure, and gives everything as one
/// JSON object.
///
/// # Errors
/// What went wrong, in words.
pub(crate) fn run_replay(jobs: u64, directory: &std::path::Path) -> Result<Value, String> {
    let machine = machine::describe();
    println!("{}", machine::sentence(&machine));
    println!("processor time of one thread: decoding, guard and fold, without disk and consensus\n");
    let figures = replay::run(jobs, directory)?;
    for figure in &figures {
        println!("{}", figure.line());
    }
    Ok(report(machine, &figures))
}

/// What an array that waits costs the scheduler.
pub(crate) fn waiting_array() -> Vec<Figure> {
    arrays::waiting()
}

/// Everything as one JSON object; says how many bars are met.
pub(crate) fn report(machine: Value, figures: &[Figure]) -> Value {
    let verdicts: Vec<bool> = figures.iter().filter_map(Figure::is_met).collect();
    println!("\n{} of {} bars met", verdicts.iter().filter(|met| **met).count(), verdicts.len());
    let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
    json!({ "machine": machine, "load_average_after": machine::load_average(), "figures": figures })
}

/// Durations of one thing done many times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Does something and keeps the time that it takes.
    pub(crate) fn around<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let begun = machine::thread_time();
        let result = act();
        self.add(machine::thread_time() - begun);
        result
    }

    /// The duration that `milli` thousandths of them do not exceed.
    pub(crate) fn quantile(&self, milli: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * milli).div_ceil(1_000).max(1) - 1;
        sorted.get(rank).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.quantile(500)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The quantiles that a detail shows, in milliseconds.
    pub(crate) fn json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50_ms": rounded(ms(self.median())),
            "p99_ms": rounded(ms(self.quantile(990))),
            "max_ms": rounded(ms(self.quantile(1_000))),
        })
    }
}

/// A duration in milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
