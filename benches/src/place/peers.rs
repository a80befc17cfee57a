//! The published performance tests of other schedulers, at their size, with their figures.

use std::time::{Duration, Instant};

use muster_decider::explain_job;
use muster_sim::Preset;
use muster_sim::generate::{Options, Shape, generate};
use muster_sim::queue::{self, Report, queue};
use muster_types::{Level, PriorityTier};
use serde_json::json;

use super::fleet::{Ask, Fleet, HOST_DEVICES, Happened, Layout, job};
use super::{Bar, Figure, Times};
use crate::machine::thread_time;

/// Share of the peer's time that the scheduler may take for the same work.
const SHARE_MAX: f64 = 0.01;
/// A replay that is over before that is repeated.
const SHORT: Duration = Duration::from_secs(20);

/// 15,000 workloads in 30 queues of 5 cohorts.
pub(super) fn kueue_baseline() -> Vec<Figure> {
    replayed("kueue-baseline", Shape::KueueBaseline, "15,000 workloads, scheduler's seconds", 351.1)
}

/// 50,000 workloads in 1,000 queues.
pub(super) fn kueue_large() -> Vec<Figure> {
    replayed("kueue-large", Shape::KueueLarge, "50,000 workloads, scheduler's seconds", 1_179.0)
}

fn replay(shape: Shape) -> Report {
    let trace = match generate(&Options::new(shape, 1)) {
        Ok(trace) => trace,
        Err(error) => unreachable!("a shape as it comes can be made: {error}"),
    };
    let options = queue::Options { home_only: true, ..queue::Options::under(Preset::Default) };
    let jobs = trace.jobs.into_iter().map(Ok);
    match queue(&trace.nodes, jobs, &[], options, &thread_time, &mut |_| {}) {
        Ok(report) => report,
        Err(error) => unreachable!("a trace that was made can be replayed: {error}"),
    }
}

fn replayed(bench: &'static str, shape: Shape, what: &str, peer_s: f64) -> Vec<Figure> {
    let begun = Instant::now();
    let mut reports = vec![replay(shape)];
    if begun.elapsed() < SHORT {
        // The first warmed up.
        reports = (0..3).map(|_| replay(shape)).collect();
    }
    reports.sort_by(|a, b| a.scheduler_s.total_cmp(&b.scheduler_s));
    let report = &reports[reports.len() / 2];
    let ours = Duration::from_secs_f64(report.scheduler_s);
    let detail = json!({
        "jobs": report.jobs,
        "finished": report.finished,
        "placements": report.placements,
        "preemptions": report.preemptions,
        "decisions": report.decisions,
        "replay_s": report.wall_s,
        "repetitions": reports.len(),
    });
    let figure = Figure::new(bench, what, report.scheduler_s, "s").bar(Bar::AtMost(peer_s * SHARE_MAX));
    vec![figure.peer("Kueue", peer_s, ours).detail(detail)]
}

/// One part of KAI's scale test.
struct Part {
    what: &'static str,
    peer_s: f64,
    run: fn() -> Run,
}

/// One run of a part.
struct Run {
    time: Duration,
    /// Whether it led to what is measured.
    is_done: bool,
}

/// KAI's scale test, part by part, from the submission to the last record that it leads to.
pub(super) fn kai_scale() -> Vec<Figure> {
    let parts = [
        Part { what: "4,000 one-device jobs fill 500 hosts", peer_s: 398.0, run: fill },
        Part { what: "verdict that 10 whole hosts cannot start", peer_s: 249.5, run: no_room },
        Part { what: "gang of 512 in one block", peer_s: 48.7, run: gang },
        Part { what: "one device reclaimed", peer_s: 13.9, run: reclaim_one },
        Part { what: "2,000 devices reclaimed for one gang", peer_s: 102.0, run: reclaim_many },
    ];
    let measured = |part: &Part| {
        (part.run)();
        let mut times = Times::default();
        let mut is_done = true;
        for _ in 0..3 {
            let run = (part.run)();
            times.add(run.time);
            is_done &= run.is_done;
        }
        let time = times.median();
        let figure = Figure::new("kai-scale", part.what, time.as_secs_f64(), "s").detail(times.json());
        let figure = figure.bar(Bar::AtMost(part.peer_s * SHARE_MAX)).peer("KAI", part.peer_s, time);
        if is_done { figure } else { figure.undone() }
    };
    let mut figures: Vec<Figure> = parts.iter().map(measured).collect();
    let report = replay(Shape::KaiScale);
    let whole = Figure::new("kai-scale", "the whole trace, scheduler's seconds", report.scheduler_s, "s");
    let detail =
        json!({ "jobs": report.jobs, "decisions": report.decisions, "preemptions": report.preemptions });
    figures.push(whole.detail(detail));
    figures
}

const KAI_DEVICES: u32 = 500 * HOST_DEVICES;

fn kai_fleet() -> Fleet {
    Fleet::new(Layout { hosts: 500, hosts_per_rack: 32, racks_per_block: 8 })
}

/// Fills the fleet with jobs of a tier.
fn filled(fleet: &mut Fleet, tier: PriorityTier) {
    let specs = (0..KAI_DEVICES).map(|_| job("fill", "everyone", Ask { tier, ..Ask::gang(1, 1) }));
    fleet.submit_all(specs, |_| {});
    let happened = fleet.settle();
    let placed = u64::from(KAI_DEVICES);
    assert!(happened == Happened { placed, stopped: 0 }, "the fleet is full, not {happened:?}");
}

fn fill() -> Run {
    let mut fleet = kai_fleet();
    let begun = thread_time();
    filled(&mut fleet, PriorityTier::Standard);
    Run { time: thread_time() - begun, is_done: true }
}

fn no_room() -> Run {
    let mut fleet = kai_fleet();
    filled(&mut fleet, PriorityTier::Standard);
    let begun = thread_time();
    let waits = fleet.submit(vec![job("no-capacity", "research", Ask::gang(10, 8))])[0];
    let happened = fleet.settle();
    let explanation =
        explain_job(fleet.state(), fleet.speculation.now(), waits, fleet.speculation.kept_reservations());
    let time = thread_time() - begun;
    Run { time, is_done: happened == Happened::default() && explanation.is_some() }
}

fn gang() -> Run {
    let mut fleet = kai_fleet();
    let spec = job("gang", "research", Ask { required: Some(Level::Block), ..Ask::gang(512, 1) });
    let begun = thread_time();
    fleet.submit(vec![spec]);
    let happened = fleet.settle();
    let time = thread_time() - begun;
    Run { time, is_done: happened == Happened { placed: 1, stopped: 0 } }
}

/// A production job where jobs of the lowest tier fill the fleet.
fn reclaim(ask: Ask, stopped_min: u64) -> Run {
    let mut fleet = kai_fleet();
    fleet.allow("research");
    filled(&mut fleet, PriorityTier::Free);
    // Longer than policy lets them run at least.
    fleet.pass_ms(600_000);
    let begun = thread_time();
    let waits =
        fleet.submit(vec![job("reclaim", "research", Ask { tier: PriorityTier::Production, ..ask })])[0];
    let happened = fleet.settle();
    let time = thread_time() - begun;
    let is_done = happened.placed >= 1 && happened.stopped >= stopped_min;
    if !is_done {
        let kept = fleet.speculation.kept_reservations();
        let why = explain_job(fleet.state(), fleet.speculation.now(), waits, kept);
        eprintln!("nothing was reclaimed: {happened:?}, {why:?}");
    }
    Run { time, is_done }
}

fn reclaim_one() -> Run {
    reclaim(Ask::gang(1, 1), 1)
}

fn reclaim_many() -> Run {
    reclaim(Ask::gang(250, 8), 2_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_against_kai_is_done() {
        assert!(reclaim_one().is_done, "a device is reclaimed");
        assert!(reclaim_many().is_done, "many are, for one gang");
    }
}
