//! What a finished job takes in memory: on a follower, on a leader that folds every record a second time for its
//! decisions, and on a leader that goes on from the applied state whenever nothing is in flight.
//!
//!     cargo run --release -p muster-sim --example leader_memory -- 200000
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a measurement, run by hand")]

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{Answer, BootstrapConfig, Command, Speculation, handle};
use muster_state::State;
use muster_types::{
    ClusterId, HolderId, JobDraft, Leadership, LogTime, Name, NodeDraft, Parameters, ReplicaId, RequestId,
    Submission, TaskGroup, WorkerRequest,
};

/// Jobs of one submission, and of one round.
const BATCH: u64 = 500;

/// Bytes of this process in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux says it");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * 4_096
}

fn begun() -> (Speculation, State) {
    let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
    let leadership = Leadership { term: 1, replica: ReplicaId(1) };
    let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1_000_000), founding);
    let spec = NodeDraft {
        name: Name::literal("host"),
        region: Name::literal("eu"),
        cluster: Name::literal("a"),
        address: "10.0.0.1".to_owned(),
        accelerators: None,
        cpu_milli: 8_000,
        memory_bytes: 64 << 30,
        labels: BTreeMap::new(),
        block: Name::literal("block"),
        rack: Name::literal("rack"),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    let spec = spec.check().expect("a node");
    let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
    handle(&mut speculation, &register).expect("it is taken");
    (speculation, State::default())
}

/// Jobs that were submitted and cancelled. The state of a follower is made of the records.
fn run(jobs: u64, speculation: &mut Speculation, applied: &mut State, shares: bool) {
    for batch in 0..jobs / BATCH {
        let one = |n: u64| {
            let group = TaskGroup {
                name: Name::literal("workers"),
                workers: 1,
                workers_min: 1,
                command: vec!["true".to_owned()],
                environment: BTreeMap::new(),
                request: WorkerRequest {
                    accelerators: None,
                    cpu_milli: 1_000,
                    memory_bytes: 1 << 30,
                    exclusive: false,
                    scratch_bytes: 0,
                },
                slice: None,
                container: None,
            };
            let name = Name::new(&format!("job-{n}")).expect("a name");
            JobDraft::new(name, Name::literal("default"), vec![group]).check().expect("a job")
        };
        let specs: Vec<_> = (0..BATCH).map(|n| one(batch * BATCH + n)).collect();
        let request = |n: u64| RequestId(u128::from(n) + 1);
        let first = batch * (BATCH + 1);
        let submit = Command::submit(request(first), Submission::plain(specs));
        let Ok(Answer::Submitted { jobs, .. }) = handle(speculation, &submit) else {
            panic!("there is capacity")
        };
        for (n, job) in (1..).zip(jobs) {
            handle(speculation, &Command::cancel(request(first + n), job)).expect("it waits");
        }
        for encoded in speculation.take_encoded() {
            applied.apply_round(&encoded.round);
        }
        if shares {
            assert!(speculation.adopt(applied), "nothing is between them");
        }
    }
}

fn main() {
    let jobs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let each = |bytes: u64| bytes / jobs;
    let before = resident();
    let (mut speculation, mut applied) = begun();
    run(jobs, &mut speculation, &mut applied, true);
    let shared = resident() - before;
    drop(speculation);
    let follower = resident().saturating_sub(before);
    println!("{jobs} finished jobs, bytes each");
    println!("leader that goes on from the applied state   {:>6}", each(shared));
    println!("the applied state alone                      {:>6}", each(follower));
    drop(applied);
    let before = resident();
    let (mut speculation, mut applied) = begun();
    run(jobs, &mut speculation, &mut applied, false);
    println!("leader that folds every record twice, beyond {:>6}", each(resident().saturating_sub(before)));
}
