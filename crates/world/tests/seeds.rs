//! Seeds. First of all that a seed is a run; then those that failed once; then many. That rules broken on purpose are
//! noticed is in `planted.rs`.

use muster_journal::REQUESTED_DECISIONS;
use muster_world::asked::Asked;
use muster_world::follower::{SIZE_CHANGED, STOPPED_FOR_SIZE};
use muster_world::settings::Settings;
use muster_world::simulation::simulate;
use muster_world::swarm::{Extent, corpus, swarm};
use std::time::Duration;

/// Simulated time of faults in a short seed.
const SHORT_MS: u64 = 6_000;
/// In the seeds of a normal run: long enough for faults to meet what earlier ones have left.
const CHAOS_MS: u64 = 15_000;
/// Seeds of a normal run; `MUSTER_SIM_SEEDS` asks for more or fewer.
const SEEDS: u64 = 64;
/// What no client brings about: there is no record format newer than the first, so that the request is refused.
const NEVER_ACCEPTED: [&str; 1] = ["format_raised"];
/// The fields of jobs that clients change: all that a call can name. The size of a job that runs is a change of its groups.
const CHANGED_FIELDS: [&str; 14] = [
    "annotations",
    "deadline",
    "expected_run",
    "groups",
    "labels",
    "nice",
    "node_selector",
    "nodes",
    "not_before",
    "place in the queue",
    "regions",
    "run_time_limit",
    "tenant",
    "tier",
];
/// A run is on one thread; this many run at a time.
const THREADS: usize = 2;

fn seeds() -> u64 {
    let asked = std::env::var("MUSTER_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(SEEDS)
}

/// Before any seed is believed.
#[test]
fn the_same_seed_twice_is_the_same_run_to_the_last_event() {
    for seed in [3, 5, 7, 8] {
        let settings = Settings::of_seed(seed, SHORT_MS);
        let (first, second) = (simulate(settings, true), simulate(settings, true));
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert!(first.trace.len() > 500 && first.trace == second.trace, "seed {seed}");
        let unseen = simulate(settings, false);
        assert_eq!(first.digest, unseen.digest, "a trace changes nothing");
    }
    let other = simulate(Settings::of_seed(4, SHORT_MS), false);
    assert_ne!(other.digest, simulate(Settings::of_seed(9, SHORT_MS), false).digest);
}

#[test]
fn many_seeds_and_those_that_failed_once_break_no_rule() {
    let mut failed = Vec::new();
    for case in corpus().expect("the corpus can be read") {
        let report = simulate(case.settings, false);
        if !report.violations.is_empty() {
            failed.push(format!(
                "{} ({})\n  {}",
                report.replay_line(),
                case.why,
                report.violations.join("\n  ")
            ));
        }
    }
    let extent = Extent {
        from: 1,
        seeds: seeds(),
        limit: Duration::from_secs(3_600),
        chaos_ms: CHAOS_MS,
        threads: THREADS,
        replicas: None,
    };
    let summary = swarm(extent, |report| println!("{}", report.replay_line()));
    for report in &summary.failed {
        failed.push(format!("{}\n  {}", report.replay_line(), report.violations.join("\n  ")));
    }
    println!(
        "{} seeds, {} simulated s, {:.0} simulated seconds a second; {} submissions acknowledged; {} runs installed \
         snapshots, {} in parts that broke off, {} had a replica come back without its storage; slowest recovery {} ms; \
         five replicas alone: {:.0} simulated seconds a second",
        summary.runs,
        summary.simulated_ms / 1_000,
        summary.speed(),
        summary.acknowledged,
        summary.with_install,
        summary.with_resumption,
        summary.with_replacement,
        summary.slowest_recovery_ms,
        summary.speed_of_five().unwrap_or(0.0)
    );
    println!("{}", summary.depth());
    println!(
        "{} bounded reads; asked for:\n{}{}",
        summary.bounded_reads,
        summary.asked.table(&REQUESTED_DECISIONS),
        summary.asked.table(&[SIZE_CHANGED, STOPPED_FOR_SIZE])
    );
    assert!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(summary.runs, seeds());
    assert!(summary.acknowledged > summary.runs, "clients got through");
    let deep = summary.faults > 4 * summary.runs && summary.leaderships > 2 * summary.runs;
    assert!(deep, "runs are shallow: {}", summary.depth());
    if summary.runs >= SEEDS {
        assert!(summary.with_install > 0 && summary.with_replacement > 0, "the rare paths were walked");
        assert!(summary.thawed_leaders > 0 && summary.power_cuts > 0, "the rare faults came");
        assert!(summary.lost_machines > 0, "machines were lost with workers that outlast a lease");
        assert!(summary.bounded_reads > summary.runs, "replicas answered bounded reads");
        everything_was_asked_for(&summary.asked);
        for name in [SIZE_CHANGED, STOPPED_FOR_SIZE] {
            assert!(summary.asked.accepted.contains_key(name), "no seed has a {name}");
        }
    }
}

/// Whatever somebody may ask for is sent by some client, and becomes a record.
fn everything_was_asked_for(asked: &Asked) {
    let is_in = |of: &std::collections::BTreeMap<&'static str, u64>, name: &str| of.contains_key(name);
    let unsent: Vec<&str> =
        REQUESTED_DECISIONS.into_iter().filter(|name| !is_in(&asked.sent, name)).collect();
    assert!(
        unsent.is_empty(),
        "no client of the simulation asks for {unsent:?}: add it to `clients` or `admin_client`"
    );
    let unchanged: Vec<&str> = CHANGED_FIELDS.into_iter().filter(|name| !is_in(&asked.sent, name)).collect();
    assert!(unchanged.is_empty(), "no client of the simulation changes {unchanged:?} of a job");
    let refused: Vec<&str> =
        REQUESTED_DECISIONS.into_iter().filter(|name| !is_in(&asked.accepted, name)).collect();
    assert_eq!(refused, NEVER_ACCEPTED, "asked for and never taken");
}
