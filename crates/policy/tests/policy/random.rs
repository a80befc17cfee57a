//! Whatever happens, the indexes are what a rebuild makes them, and a snapshot is the state.

use muster_state::{Phase, State};
use muster_types::policy::PolicyDraft;
use muster_types::{JobId, LogTime, QueueKey};
use proptest::prelude::*;

use crate::support::{World, spec};

#[derive(Clone, Debug)]
enum Step {
    Submit { name: usize, devices: u16, count: usize },
    Pass { ms: u64 },
    Start,
    End(usize),
    Requeue(usize),
    Cancel(usize),
    Renew,
    Move { nth: usize, turn: QueueKey },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3usize, 1..3u16, 1..5usize)
            .prop_map(|(name, devices, count)| Step::Submit { name, devices, count }),
        3 => prop_oneof![1..70_000u64, 1..100_000_000u64].prop_map(|ms| Step::Pass { ms }),
        5 => Just(Step::Start),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Requeue),
        1 => any::<usize>().prop_map(Step::Cancel),
        2 => Just(Step::Renew),
        1 => (any::<usize>(), any::<u64>(), any::<bool>()).prop_map(|(nth, n, urgent)| {
            let turn = if urgent { QueueKey::urgent(LogTime(n)) } else { QueueKey::ordinary(n) };
            Step::Move { nth, turn }
        }),
    ];
    prop::collection::vec(step, 1..60)
}

fn nth<T: Copy>(of: &[T], n: usize) -> Option<T> {
    (!of.is_empty()).then(|| of[n % of.len()])
}

fn take(world: &mut World, step: &Step) {
    match step {
        Step::Submit { name, devices, count } => {
            let specs = (0..*count).map(|n| {
                let draft = spec("t", &format!("{}{n}", ["a", "b", "a-long"][*name]), *devices);
                draft.check().unwrap()
            });
            let specs = specs.collect();
            world.submit(specs);
        }
        Step::Pass { ms } => world.pass(*ms),
        Step::Start => {
            if let Some(job) = world.order().first().filter(|_| world.has_room()) {
                world.start(*job);
            }
        }
        Step::End(n) => {
            if let Some(job) = nth(&world.running(), *n) {
                world.end(job);
            }
        }
        Step::Requeue(n) => {
            let running = world.running();
            let uncancelled: Vec<JobId> =
                running.into_iter().filter(|job| !world.state.job(*job).unwrap().cancel_requested).collect();
            if let Some(job) = nth(&uncancelled, *n) {
                world.requeue(job);
            }
        }
        Step::Cancel(n) => {
            let jobs = world.state.jobs().iter();
            let open: Vec<JobId> =
                jobs.filter(|(_, row)| !matches!(row.phase, Phase::Finished(_))).map(|(id, _)| *id).collect();
            if let Some(job) = nth(&open, *n) {
                world.cancel(job);
            }
        }
        Step::Renew => {
            world.renew();
        }
        Step::Move { nth: n, turn } => {
            let groups: Vec<JobId> = world.state.bursts_from(JobId(0)).collect();
            if let Some(group) = nth(&groups, *n) {
                world.push(muster_journal::Decision::TurnsChanged { bursts: vec![(group, *turn)] });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn indexes_are_a_rebuild(steps in steps()) {
        let mut world = World::new(6, PolicyDraft::default());
        for step in &steps {
            take(&mut world, step);
            prop_assert_eq!(world.state.verify(), Ok(()), "{:?}", step);
        }
        let restored = State::restore(world.state.snapshot()).unwrap();
        prop_assert_eq!(restored.digest(), world.state.digest());
        prop_assert_eq!(restored.verify(), Ok(()));
        // Every pending job has one turn, and inside a group they go in the order of their ids.
        let order = world.order();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let waiting: Vec<JobId> =
            world.state.jobs().iter().filter(|(_, row)| row.is_in_line()).map(|(id, _)| *id).collect();
        prop_assert_eq!(sorted, waiting);
        for group in world.state.bursts_from(JobId(0)) {
            let members = order.iter().filter(|job| world.state.burst_of(**job) == Some(group));
            prop_assert!(members.is_sorted(), "{:?}", group);
        }
    }

    /// A leader that begins on a state comes to the same turns as one that was told of everything.
    #[test]
    fn a_new_leader_finds_what_is_due(steps in steps()) {
        let mut world = World::new(6, PolicyDraft::default());
        for step in &steps {
            take(&mut world, step);
        }
        // With time enough both have looked at everything.
        let later = LogTime(world.now.0 + 400_000_000);
        let mut fresh = muster_policy::Refresh::of(&world.state, world.now);
        for _ in 0..40 {
            let _ = world.refresh.due(&world.state, later);
            let _ = fresh.due(&world.state, later);
        }
        prop_assert_eq!(world.refresh.due(&world.state, later), fresh.due(&world.state, later));
    }
}
