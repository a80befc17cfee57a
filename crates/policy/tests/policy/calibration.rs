//! Predictions against streams whose distribution is known.

use muster_policy::{burst_turn, expected, predict};
use muster_types::policy::PolicyDraft;

use crate::support::{World, spec};

/// The n-th of a stream of run times between half and twice the middle, log-uniform, by a fixed sequence.
fn run_ms(middle_ms: u64, n: u64) -> u64 {
    // The golden-ratio sequence fills an interval evenly.
    let fraction = (n as f64 * 0.618_033_988_749).fract();
    (middle_ms as f64 * 2f64.powf(2.0 * fraction - 1.0)) as u64
}

#[test]
fn quantiles_come_true() {
    let mut world = World::new(1, PolicyDraft::default());
    let (mut below_median, mut below_high, mut seen) = (0, 0, 0);
    for n in 0..400u64 {
        let job = world.submit(vec![spec("t", "train", 1).check().unwrap()])[0];
        let estimate = world.state.job(job).unwrap().estimate;
        world.start(job);
        let run_ms = run_ms(3_600_000, n);
        world.pass(run_ms);
        world.end(job);
        // An hour apart, so that each is a submission group by itself.
        world.pass(3_600_000);
        if n >= 50 {
            seen += 1;
            below_median += u32::from(run_ms <= estimate.run_ms);
            below_high += u32::from(run_ms <= estimate.run_high_ms);
        }
    }
    let milli = |count: u32| count * 1_000 / seen;
    assert!((400..=600).contains(&milli(below_median)), "median: {}", milli(below_median));
    assert!((820..=980).contains(&milli(below_high)), "ninth decile: {}", milli(below_high));
}

#[test]
fn nothing_known_is_an_open_mind() {
    let world = World::new(1, PolicyDraft::default());
    let spec = spec("t", "train", 1).check().unwrap();
    let found = predict(&world.state, &spec, None, world.now);
    // Log-uniform from a minute to a day: the middle is 38 minutes.
    assert!((30 * 60_000..=50 * 60_000).contains(&found.quantile_ms(500)), "{}", found.quantile_ms(500));
    assert!((30 * 60_000..=50 * 60_000).contains(&found.typical_ms()), "{}", found.typical_ms());
    assert!(found.quantile_ms(100) < found.quantile_ms(500));
    assert!(found.quantile_ms(500) < found.quantile_ms(900));
}

#[test]
fn the_tenant_changes_its_habits_and_is_followed() {
    let mut world = World::new(1, PolicyDraft::default());
    let draft = || spec("t", "train", 1).check().unwrap();
    let median = |world: &World| expected(&world.state, &draft(), None, world.now).run_ms;
    for middle_ms in [60_000u64, 6_000_000] {
        for n in 0..60 {
            let job = world.submit(vec![draft()])[0];
            world.start(job);
            world.pass(run_ms(middle_ms, n));
            world.end(job);
            world.pass(100_000);
        }
        let found = median(&world);
        assert!((middle_ms / 2..=middle_ms * 2).contains(&found), "{middle_ms}: {found}");
    }
}

#[test]
fn the_first_of_a_burst_to_end_tell_of_the_rest() {
    let mut world = World::new(4, PolicyDraft::default());
    let sweep = |name: &str| (0..8).map(|n| spec("t", &format!("{name}{n}"), 1).check().unwrap()).collect();
    let jobs = world.submit(sweep("sweep"));
    let before = world.state.turn_of(jobs[0]).unwrap();
    for job in &jobs[..3] {
        world.start(*job);
    }
    world.pass(120_000);
    world.end(jobs[0]);
    world.end(jobs[1]);
    assert_eq!(world.renew(), 1);
    let after = world.state.turn_of(jobs[0]).unwrap();
    assert!(after < before, "two that took two minutes make the rest look short: {after:?} < {before:?}");
    // The third goes on and on: what is left looks longer again.
    world.pass(30 * 60_000);
    assert_eq!(world.renew(), 1);
    let much_later = world.state.turn_of(jobs[0]).unwrap();
    assert!(much_later > after, "{much_later:?} > {after:?}");
    assert_eq!(burst_turn(&world.state, jobs[0], world.now), Some(much_later));
}

#[test]
fn running_jobs_count_as_long_ones() {
    let mut world = World::new(8, PolicyDraft::default());
    let specs: Vec<_> = (0..9).map(|n| spec("t", &format!("mixed{n}"), 1).check().unwrap()).collect();
    let one = specs[0].clone();
    let jobs = world.submit(specs);
    for job in &jobs[..8] {
        world.start(*job);
    }
    world.pass(60_000);
    world.end(jobs[0]);
    world.end(jobs[1]);
    world.pass(4 * 3_600_000);
    // Of eight, two took a minute and six run for four hours: the median is beyond four hours.
    let median = expected(&world.state, &one, Some(jobs[0]), world.now).run_ms;
    assert!(median > 4 * 3_600_000, "{median}");
}
