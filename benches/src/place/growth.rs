//! What one decision costs as the fleet and the line grow. The bar is on the ratio: a scheduler whose work
//! for one decision is bounded has one near 1.

use std::time::{Duration, Instant};

use muster_journal::{Decision, RankUpdate, Round};
use muster_types::JobId;
use serde_json::{Value, json};

use super::fleet::{Dice, Fleet, HOST_DEVICES, Layout, Mix, placements};
use super::{Bar, Figure, Times, rounded};
use crate::machine::thread_time;

const ROUNDS: usize = 300;
/// Time after which a size is measured well enough with fewer rounds.
const TIME_MAX: Duration = Duration::from_secs(4);
const ROUNDS_MIN: usize = 20;
/// Largest cost of one decision at the largest size against the smallest.
const RATIO_MAX: f64 = 3.0;

/// Fleets of 1,000 to 100,000 hosts that are 95 % full, with 1,000 jobs waiting for a whole host. Each round
/// one job ends, and one is submitted and placed.
pub(super) fn by_nodes() -> Vec<Figure> {
    let mut figures = Vec::new();
    for mix in [Mix::FewClasses, Mix::AllDifferent] {
        let mut costs: Vec<(u64, Times)> = Vec::new();
        for hosts in [1_000, 10_000, 100_000] {
            let (mut fleet, mut jobs) = Fleet::full(Layout::blocks_of_512(hosts));
            let mut dice = Dice::new();
            for _ in 0..hosts * HOST_DEVICES / 20 {
                let job = jobs.swap_remove(dice.below(jobs.len()));
                fleet.end(job);
                fleet.speculation.take_round();
            }
            fleet.submit_all((0..1_000).map(|n| mix.job(n, 8)), |_| {});
            fleet.schedule();
            let mut steady = Steady { fleet, jobs, dice, started: Vec::new() };
            let mut submitted = 0;
            let times = steady.measure(|fleet| {
                submitted += 1;
                let spec = Mix::FewClasses.job(submitted, 1);
                fleet.submit(vec![spec]);
            });
            costs.push((u64::from(hosts), times));
        }
        let what = format!("hosts, 95 % full, 1,000 waiting, {}", mix.as_str());
        figures.extend(growth("growth-nodes", &what, &costs));
    }
    figures
}

/// 10,000 full hosts with 1,000 to 1,000,000 jobs waiting. Each round one job ends, and the first that waits
/// is placed.
pub(super) fn by_waiting() -> Vec<Figure> {
    let mut figures = Vec::new();
    for mix in [Mix::FewClasses, Mix::AllDifferent] {
        let (fleet, jobs) = Fleet::full(Layout::blocks_of_512(10_000));
        let mut steady = Steady { fleet, jobs, dice: Dice::new(), started: Vec::new() };
        let mut costs: Vec<(u64, Times)> = Vec::new();
        let mut waiting = 0;
        for size in [1_000, 10_000, 100_000, 1_000_000] {
            steady.fleet.submit_all((waiting..size).map(|n| mix.job(n, 1)), |_| {});
            waiting = size;
            steady.fleet.schedule();
            costs.push((size, steady.measure(|_| {})));
        }
        let what = format!("waiting, full 10,000 hosts, {}", mix.as_str());
        figures.extend(growth("growth-waiting", &what, &costs));
    }
    figures
}

/// A full fleet on which each round one job ends and one is submitted: with nobody else waiting, and with an array of this size.
pub(super) fn with_array(size: u32) -> (Times, Times) {
    let measure = |steady: &mut Steady| {
        let mut submitted = 0;
        steady.measure(|fleet| {
            submitted += 1;
            fleet.submit(vec![Mix::FewClasses.job(submitted, 1)]);
        })
    };
    let (fleet, jobs) = Fleet::full(Layout::blocks_of_512(10_000));
    let mut steady = Steady { fleet, jobs, dice: Dice::new(), started: Vec::new() };
    let without = measure(&mut steady);
    steady.fleet.submit_array(Mix::FewClasses.job(0, 1), size);
    steady.fleet.schedule();
    (without, measure(&mut steady))
}

/// A figure for each size, and the ratio of the last to the first.
fn growth(bench: &'static str, what: &str, costs: &[(u64, Times)]) -> Vec<Figure> {
    let us = |times: &Times| times.median().as_secs_f64() * 1e6;
    let of_size = |(size, times): &(u64, Times)| {
        Figure::new(bench, format!("{size} {what}"), us(times), "us/decision").detail(times.json())
    };
    let mut figures: Vec<Figure> = costs.iter().map(of_size).collect();
    if let (Some((_, smallest)), Some((_, largest))) = (costs.first(), costs.last()) {
        let all: Vec<Value> = costs.iter().map(|(size, times)| json!([size, rounded(us(times))])).collect();
        let ratio =
            Figure::new(bench, format!("largest/smallest: {what}"), us(largest) / us(smallest), "times");
        figures.push(ratio.bar(Bar::AtMost(RATIO_MAX)).detail(json!({ "us": all })));
    }
    figures
}

/// A fleet in which as much starts as ends.
struct Steady {
    fleet: Fleet,
    /// Those that run.
    jobs: Vec<JobId>,
    dice: Dice,
    /// Placed in the round before: they report that they run in the next.
    started: Vec<JobId>,
}

impl Steady {
    /// Times of rounds in which one job ends and one is placed.
    fn measure(&mut self, mut before: impl FnMut(&mut Fleet)) -> Times {
        self.round(&mut before);
        let mut times = Times::default();
        let begun = Instant::now();
        while times.count() < ROUNDS && (times.count() < ROUNDS_MIN || begun.elapsed() < TIME_MAX) {
            times.add(self.round(&mut before));
        }
        times
    }

    /// One round; the time it took.
    fn round(&mut self, before: &mut impl FnMut(&mut Fleet)) -> Duration {
        let ends = self.jobs.swap_remove(self.dice.below(self.jobs.len()));
        self.fleet.pass_ms(1);
        let begun = thread_time();
        for job in self.started.drain(..) {
            self.fleet.report(job, &RankUpdate::Running);
        }
        self.fleet.end(ends);
        before(&mut self.fleet);
        let mut rounds: Vec<Round> = Vec::new();
        while self.fleet.speculation.wants_schedule() {
            rounds.extend(self.fleet.decide());
        }
        let time = thread_time() - begun;
        let placed: u64 = rounds.iter().map(placements).sum();
        assert!(placed == 1, "one job ended and {placed} were placed");
        for decision in rounds.iter().flat_map(|round| &round.decisions) {
            if let Decision::GangPlaced { job, .. } = decision {
                self.started.push(*job);
                self.jobs.push(*job);
            }
        }
        time
    }
}
