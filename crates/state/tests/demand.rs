//! What the state keeps of demand: bounded, the same on every replica, and carried over by a snapshot.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use muster_journal::{Decision, Estimate, RequestKey};
use muster_state::{DEMAND_SAMPLE, State};
use muster_types::{
    AcceleratorRequest, ClusterId, DeviceAmount, JobDraft, JobSpec, Leadership, LogTime, Name, Parameters,
    PriorityTier, QueueKey, ReplicaId, RequestId, TaskGroup, TopologyRule, WorkerRequest,
};

const LEADER: Leadership = Leadership { term: 1, replica: ReplicaId(1) };

fn job(workers: u32, amount: Option<DeviceAmount>, cpu_milli: u64) -> JobSpec {
    let accelerators = amount.map(|amount| AcceleratorRequest { choices: Vec::new(), amount });
    let group = TaskGroup {
        name: Name::literal("w"),
        workers,
        workers_min: workers,
        command: vec!["train".into()],
        environment: BTreeMap::new(),
        request: WorkerRequest {
            accelerators,
            cpu_milli,
            memory_bytes: 3 << 30,
            exclusive: false,
            scratch_bytes: 0,
        },
        slice: None,
        container: None,
    };
    let draft = JobDraft {
        name: Name::literal("job"),
        tenant: Name::literal("research"),
        tier: PriorityTier::Standard,
        groups: vec![group],
        regions: Vec::new(),
        run_time_limit_ms: None,
        stop_grace_ms: 30_000,
        failure_retries_max: 1,
        checkpoint_directory: None,
        working_directory: None,
        array: None,
        topology: TopologyRule::default(),
        node_selector: BTreeMap::new(),
        tolerations: BTreeSet::new(),
        preemptible: true,
        dependencies: Vec::new(),
        not_before: None,
        deadline: None,
        expected_run_ms: None,
        datasets: Vec::new(),
        nodes: None,
        booking: None,
        capacity: None,
        affinity: Vec::new(),
        licences: muster_types::Licences::new(),
        nice: 0,
        front: None,
        size: None,
        readiness_ms: None,
    };
    draft.check().unwrap()
}

fn new_state() -> State {
    let mut state = State::default();
    apply(&mut state, Decision::LeaderStarted);
    let (cluster, parameters) = (ClusterId(1), Parameters::DEFAULT);
    apply(&mut state, Decision::ClusterCreated { cluster, generation: 1, parameters });
    state
}

fn apply(state: &mut State, decision: Decision) {
    let applied = state.apply(LEADER, state.log_index().next(), LogTime(0), &decision);
    assert_eq!(applied.rejection, None, "{}", decision.name());
}

fn submit(state: &mut State, specs: Vec<JobSpec>) {
    let id = RequestId(u128::from(state.log_index().0));
    let estimates =
        vec![Estimate { run_ms: 1, run_high_ms: 1, turn: QueueKey::FIRST, burst: None }; specs.len()];
    let specs = specs.into_iter().map(Into::into).collect();
    apply(
        state,
        Decision::JobsSubmitted {
            request: RequestKey { id, fingerprint: 0 },
            by: muster_types::Requester::default(),
            specs,
            estimates,
        },
    );
}

/// Shares of a quarter first, then as many whole devices in fours.
fn busy_state() -> State {
    let mut state = new_state();
    for _ in 0..4 {
        submit(&mut state, vec![job(1, Some(DeviceAmount::Share(250)), 2_000); 1_000]);
    }
    for _ in 0..4 {
        submit(&mut state, vec![job(1, Some(DeviceAmount::Whole(4)), 16_000); 1_000]);
    }
    state
}

#[test]
fn the_sample_is_bounded_and_of_everything_alike() {
    let state = busy_state();
    let demand = state.demand();
    assert_eq!(demand.observed(), 8_000);
    assert_eq!(demand.sample().count(), DEMAND_SAMPLE);
    let shares = demand.sample().filter(|worker| worker.milli == 250).count();
    assert!((412..=612).contains(&shares), "{shares} of 1,024 are of the first half");
    assert!(demand.changes() > 1_024 && demand.changes() < 5_000, "{} changes", demand.changes());
    assert_eq!(demand.group_milli(4), 4_000 * 4_000);
    assert_eq!(demand.group_milli(2), 0);
    // Milli-CPUs are rounded up to six binary digits.
    let sums: Vec<_> = demand.by_cpu().map(|sum| (sum.milli, sum.cpu_milli)).collect();
    assert_eq!(sums, [(4_000 * 4_000, 4_000 * 16_128), (4_000 * 250, 4_000 * 2_016)]);
}

#[test]
fn workers_without_devices_are_not_counted_and_a_gang_counts_only_so_often() {
    let mut state = new_state();
    submit(&mut state, vec![job(5, None, 1_000)]);
    assert_eq!(state.demand().observed(), 0);
    submit(&mut state, vec![job(3, Some(DeviceAmount::Whole(8)), 1_000)]);
    assert_eq!(state.demand().observed(), 3);
    submit(&mut state, vec![job(1_000, Some(DeviceAmount::Whole(8)), 1_000)]);
    assert_eq!(state.demand().observed(), 3 + 64);
}

#[test]
fn what_is_kept_is_coarse_and_never_less_than_what_was_asked_for() {
    let mut state = new_state();
    let amounts = [(1, 1_001), (333, 7_777), (999, 63_999)];
    for (milli, cpu_milli) in amounts {
        submit(&mut state, vec![job(1, Some(DeviceAmount::Share(milli)), cpu_milli)]);
    }
    for ((milli, cpu_milli), kept) in amounts.into_iter().zip(state.demand().sample()) {
        assert!((u32::from(milli)..u32::from(milli) + 10).contains(&kept.milli) && kept.milli < 1_000);
        assert!((cpu_milli..=cpu_milli + cpu_milli / 32).contains(&kept.cpu_milli), "{kept:?}");
        assert_eq!(kept.memory_mib, 3 << 10);
    }
}

#[test]
fn it_is_replicated() {
    let state = busy_state();
    assert_eq!(state.digest(), busy_state().digest());
    let mut restored = State::restore(state.snapshot()).unwrap();
    assert_eq!(restored.digest(), state.digest());
    assert!(restored.demand().sample().eq(state.demand().sample()));
    // It goes on as the other would.
    let mut state = state;
    for state in [&mut state, &mut restored] {
        submit(state, vec![job(1, Some(DeviceAmount::Whole(1)), 1_000); 500]);
    }
    assert_eq!(restored.digest(), state.digest());
    assert!(restored.demand().sample().eq(state.demand().sample()));
    assert_eq!(restored.verify(), Ok(()));
}
