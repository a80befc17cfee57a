//! How long it takes to say that a job can never run, and why one cannot run now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use muster_decider::{QueueForecast, explain_job, explain_job_in, explain_spec};
use muster_planner::{Budget, Holds, Terms, Verdict, could_ever, explain, plan};
use muster_types::{JobSpec, Level};
use serde_json::{Value, json};

use super::fleet::{Ask, Dice, Fleet, HOST_DEVICES, Layout, Mix, VISITS_PER_ROUND, draft, job, name};
use super::{Bar, Figure, Times, ms};

const HOSTS: u32 = 10_000;
const REPETITIONS: usize = 50;

/// Refusals of what no state of the fleet can hold.
pub(super) fn never() -> Vec<Figure> {
    let fleet = Fleet::new(Layout::blocks_of_512(HOSTS));
    let in_block = |workers| Ask { required: Some(Level::Block), ..Ask::gang(workers, 8) };
    let in_rack = |workers| Ask { required: Some(Level::Rack), ..Ask::gang(workers, 8) };
    let mut elsewhere = draft("elsewhere", "vision", Ask::gang(1, 1));
    elsewhere.regions = vec![name("r-b")];
    let jobs = [
        ("16 devices on one host", job("wide", "vision", Ask::gang(1, 16))),
        ("more hosts than there are", job("large", "vision", Ask::gang(HOSTS + 1, 8))),
        ("513 hosts in one block", job("block", "vision", in_block(513))),
        ("17 hosts in one rack", job("rack", "vision", in_rack(17))),
        ("a region that is not there", elsewhere.check().expect("it keeps to the bounds")),
    ];
    jobs.iter()
        .map(|(what, spec)| {
            let mut times = Times::default();
            assert!(could_ever(fleet.state(), spec).is_err(), "{what}: it could run");
            for _ in 0..REPETITIONS {
                let _never = times.around(|| could_ever(fleet.state(), spec));
            }
            let what = format!("could_ever: {what}");
            let figure = Figure::new("never", what, ms(times.median()), "ms").detail(times.json());
            figure.bar(Bar::AtMost(1.0)).peer("KAI", 249.5, times.median())
        })
        .collect()
}

/// Jobs that a full fleet cannot start now.
fn waiting_jobs() -> Vec<JobSpec> {
    let within = |level, workers, devices| Ask { required: Some(level), ..Ask::gang(workers, devices) };
    vec![
        job("single", "vision", Ask::gang(1, 1)),
        job("host", "vision", Ask::gang(1, 8)),
        job("gang", "vision", Ask::gang(512, 8)),
        job("fleet", "vision", Ask::gang(HOSTS, 8)),
        job("block", "vision", within(Level::Block, 512, 8)),
        job("block-ones", "vision", within(Level::Block, 512, 1)),
        job("rack", "vision", within(Level::Rack, 16, 8)),
        job("rack-ones", "vision", within(Level::Rack, 64, 1)),
    ]
}

/// Why jobs wait on a full fleet, and on one with a device free here and there.
pub(super) fn cannot_now() -> Vec<Figure> {
    let (mut fleet, mut jobs) = Fleet::full(Layout::blocks_of_512(HOSTS));
    let mut figures = explained(&fleet, "full");
    let mut dice = Dice::new();
    for _ in 0..HOSTS * HOST_DEVICES / 20 {
        let job = jobs.swap_remove(dice.below(jobs.len()));
        fleet.end(job);
        fleet.speculation.take_round();
    }
    figures.extend(explained(&fleet, "95 % full"));
    figures
}

/// Why a job is pending, with 100,000 jobs pending on a full fleet: the first of them, some in the middle, the last.
pub(super) fn why_pending() -> Vec<Figure> {
    const WAITING: u64 = 100_000;
    const JOBS_NEAR: usize = 64;
    let of_mix = |mix: Mix| {
        let (mut fleet, _) = Fleet::full(Layout::blocks_of_512(HOSTS));
        let mut waiting = Vec::new();
        fleet.submit_all((0..WAITING).map(|n| mix.job(n, 1)), |ids| waiting.extend_from_slice(ids));
        fleet.schedule();
        let (state, now) = (fleet.state(), fleet.speculation.now());
        // Another job each time, near the front, in the middle and at the end: what one of them has found is of little use for the
        // next, apart from the forecast that all have in common.
        let near = |from: usize| waiting.iter().skip(from).take(JOBS_NEAR).copied().collect::<Vec<_>>();
        let asked = [near(0), near(waiting.len() / 2), near(waiting.len() - JOBS_NEAR)];
        let kept = Arc::new(fleet.speculation.kept_reservations().clone());
        let mut first = Times::default();
        let mut forecast = QueueForecast::new(state, now, kept);
        for job in asked.iter().filter_map(|jobs| jobs.last()) {
            let answer = first.around(|| explain_job_in(state, *job, &mut forecast));
            let alone = explain_job(state, now, *job, fleet.speculation.kept_reservations());
            assert!(answer.is_some() && answer == alone, "{job} is pending, and explained as alone");
        }
        let mut slowest = Times::default();
        for jobs in asked {
            let mut jobs = jobs.iter().cycle();
            let times = repeat(|| {
                let job = jobs.next().expect("there are some");
                assert!(explain_job_in(state, *job, &mut forecast).is_some(), "{job} is pending");
            });
            if times.median() > slowest.median() {
                slowest = times;
            }
        }
        let what = |of: &str| format!("{WAITING} waiting, full {HOSTS} hosts, {}, {of}", mix.as_str());
        [
            Figure::new("why-pending", what("slowest of 3 places in the queue"), ms(slowest.median()), "ms")
                .bar(Bar::AtMost(10.0))
                .detail(slowest.json()),
            Figure::new("why-pending", what("the first three of a state"), ms(first.median()), "ms")
                .detail(first.json()),
        ]
    };
    [Mix::FewClasses, Mix::AllDifferent].into_iter().flat_map(of_mix).collect()
}

/// Times of one kind of answer: those of the job that took longest.
struct Slowest {
    times: Times,
    of: String,
}

impl Slowest {
    fn new() -> Slowest {
        Slowest { times: Times::default(), of: String::new() }
    }

    fn see(&mut self, spec: &JobSpec, times: Times) {
        if times.median() > self.times.median() {
            *self = Slowest { times, of: spec.name.to_string() };
        }
    }

    fn detail(&self, answers: &BTreeSet<String>) -> Value {
        json!({ "slowest": self.of, "times": self.times.json(), "answers": answers })
    }
}

fn explained(fleet: &Fleet, how_full: &str) -> Vec<Figure> {
    let state = fleet.state();
    let holds = Holds::new();
    let terms = Terms {
        now: fleet.speculation.now(),
        run_ms: 3_600_000,
        room_milli: &|_| u64::MAX,
        holds: &holds,
        closures: &[],
        closures_are_indexed: false,
        affinity: &[],
        openings: &[],
        image: None,
        policy: &state.policy().policy,
        elastic: false,
        lanes: &[],
        own_work: &|_, _| (0, 0),
        interruptions: &|_| muster_state::Interruptions::default(),
        valuation: None,
    };
    let (mut plans, mut reasons, mut whole) = (Slowest::new(), Slowest::new(), Slowest::new());
    let mut answers: BTreeSet<String> = BTreeSet::new();
    for spec in waiting_jobs() {
        let waits = plan(state, &spec, &terms, &mut Budget::new(VISITS_PER_ROUND)) == Verdict::Waits;
        if !waits {
            // On the fleet with devices free here and there some fit: they have nothing to explain.
            continue;
        }
        let mut times = Times::default();
        for _ in 0..REPETITIONS {
            times.around(|| plan(state, &spec, &terms, &mut Budget::new(VISITS_PER_ROUND)));
        }
        plans.see(&spec, times);
        reasons.see(&spec, repeat(|| answers.insert(explain(state, &spec, &terms, None).code().to_owned())));
        whole.see(
            &spec,
            repeat(|| {
                explain_spec(
                    state,
                    fleet.speculation.now(),
                    (&spec, None),
                    None,
                    fleet.speculation.kept_reservations(),
                )
            }),
        );
    }
    let what = |of: &str| format!("{of}, slowest of 8 jobs, {how_full} {HOSTS} hosts");
    let figure = |of: &str, found: &Slowest| {
        let figure = Figure::new("cannot-now", what(of), ms(found.times.median()), "ms");
        figure.detail(found.detail(&answers))
    };
    vec![
        figure("plan: waits", &plans).bar(Bar::AtMost(10.0)).peer("KAI", 249.5, plans.times.median()),
        figure("explain", &reasons).bar(Bar::AtMost(10.0)).peer("KAI", 249.5, reasons.times.median()),
        figure("with line, quota and start estimate", &whole),
    ]
}

/// Up to a second of repetitions, after one that warms up.
fn repeat<T>(mut act: impl FnMut() -> T) -> Times {
    act();
    let mut times = Times::default();
    let begun = Instant::now();
    while times.count() == 0 || (times.count() < REPETITIONS && begun.elapsed().as_secs() < 1) {
        times.around(&mut act);
    }
    times
}
