//! What the ledger costs: `cargo test --release -p muster-ledger costs -- --ignored --nocapture`.

use std::fs;
use std::time::Instant;

use muster_journal::{Decision, Estimate, Outcome, RankUpdate, RequestKey, WorkerSlot};
use muster_ledger::{Ledger, Window};
use muster_state::State;
use muster_types::{
    ClusterId, DeviceSet, ExitStatus, FencingToken, JobDraft, JobId, LogIndex, LogTime, NodeId, Parameters,
    RequestId,
};

use crate::scene::START_MS;
use crate::support::{accelerators, group, holder, job_draft, leadership, name, node_spec};

const RECORDS: u64 = 10_000_000;
const NODES: u64 = 512;
/// Between two records.
const STEP_MS: u64 = 100;

/// Processor time of this thread, in hundredths of a second.
fn processor_ticks() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    number(11) + number(12)
}

/// Resident memory now and at its peak, in MiB.
fn resident() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// A log that is made while it is read: jobs that start, save their work once and succeed, one after the other on each
/// node, of forty tenants.
struct Synthetic {
    index: u64,
    token: Vec<FencingToken>,
    job: Vec<Option<JobId>>,
    drafts: Vec<JobDraft>,
}

impl Synthetic {
    fn new() -> Synthetic {
        let drafts = (0..40).map(|tenant| {
            let mut draft = job_draft("job", vec![group("main", 1, Some(accelerators("h100", 8)))]);
            draft.tenant = name(&format!("tenant-{tenant}"));
            draft
        });
        let nodes = NODES as usize;
        let token = vec![FencingToken::default(); nodes];
        Synthetic { index: 0, token, job: vec![None; nodes], drafts: drafts.collect() }
    }

    fn founding(&mut self, take: &mut impl FnMut(u64, &Decision)) {
        let (cluster, generation, parameters) = (ClusterId(1), 1, Parameters::DEFAULT);
        self.put(Decision::LeaderStarted, take);
        self.put(Decision::ClusterCreated { cluster, generation, parameters }, take);
        for node in 0..NODES {
            let region = ["eu", "us", "asia"][(node % 3) as usize];
            let spec = node_spec(&format!("n{node}"), region, "c1", Some(accelerators("h100", 8)));
            self.put(Decision::NodeRegistered { spec, holder: holder(u128::from(node)) }, take);
        }
    }

    fn put(&mut self, decision: Decision, take: &mut impl FnMut(u64, &Decision)) -> u64 {
        self.index += 1;
        take(self.index, &decision);
        self.index
    }

    /// The end of one job on a node, and the next one there.
    fn turn(&mut self, number: u64, take: &mut impl FnMut(u64, &Decision)) {
        let at = (number % NODES) as usize;
        let (node, incarnation) = (NodeId(at as u32), 1);
        let report = |job, token, update| Decision::WorkersReported {
            node,
            incarnation,
            job,
            token,
            updates: vec![(0, update)],
        };
        if let Some(job) = self.job[at] {
            let token = self.token[at];
            self.put(Decision::CheckpointCommitted { job, token }, take);
            self.put(report(job, token, RankUpdate::Exited(ExitStatus::Code(0))), take);
            self.put(Decision::JobFinished { job, outcome: Outcome::Succeeded }, take);
        }
        let spec = self.drafts[(number % 40) as usize].clone().check().unwrap();
        let request = RequestKey { id: RequestId(u128::from(self.index) + 1), fingerprint: 0 };
        let (specs, estimates) = (vec![spec.into()], vec![Estimate::default()]);
        let index = self.put(
            Decision::JobsSubmitted { request, by: muster_types::Requester::default(), specs, estimates },
            take,
        );
        let job = JobId::derive_in(1, LogIndex(index), 0);
        let workers = vec![WorkerSlot { node, incarnation, devices: DeviceSet(0xff) }];
        let index = self.put(Decision::GangPlaced { job, workers }, take);
        let token = FencingToken { generation: 1, log_index: LogIndex(index) };
        self.put(report(job, token, RankUpdate::Running), take);
        (self.job[at], self.token[at]) = (Some(job), token);
        if number.is_multiple_of(100) {
            let before = LogTime(START_MS + self.index * STEP_MS - 600_000);
            self.put(Decision::HistoryPruned { requests_before: before, jobs_before: before }, take);
        }
    }

    fn all(&mut self, mut take: impl FnMut(u64, &Decision)) {
        self.founding(&mut take);
        let mut number = 0;
        while self.index < RECORDS {
            self.turn(number, &mut take);
            number += 1;
        }
    }
}

#[test]
#[ignore = "it takes minutes; it measures"]
fn costs_of_ten_million_records() {
    let time = |index: u64| LogTime(START_MS + index * STEP_MS);
    let leader = leadership(1, 1);
    let (began, ticks) = (Instant::now(), processor_ticks());
    let mut state = State::default();
    Synthetic::new().all(|index, decision| {
        state.apply(leader, LogIndex(index), time(index), decision);
    });
    assert_eq!((state.rejected(), state.stale()), (0, 0), "every record counts");
    let (alone, alone_ticks) = (began.elapsed(), processor_ticks() - ticks);
    let records = state.log_index().0;
    drop(state);
    println!(
        "state alone: {records} records, {:.1} s, {} ms of processor",
        alone.as_secs_f64(),
        alone_ticks * 10
    );

    let (began, ticks) = (Instant::now(), processor_ticks());
    let mut state = State::default();
    let mut ledger = Ledger::begin(&state, Window::default());
    let mut ended = 0;
    Synthetic::new().all(|index, decision| {
        let over = ledger.fold(&mut state, leader, LogIndex(index), time(index), decision).unwrap();
        ended += over.len();
    });
    let (both, both_ticks) = (began.elapsed(), processor_ticks() - ticks);
    let (now, peak) = resident();
    println!(
        "with ledger: {records} records, {:.1} s, {} ms of processor",
        both.as_secs_f64(),
        both_ticks * 10
    );
    let own = both_ticks.saturating_sub(alone_ticks) * 10;
    println!("ledger alone: {own} ms of processor, {ended} jobs over; resident {now} MiB, peak {peak} MiB");
    let (began, view) = (Instant::now(), ledger.view(ledger.log_time()));
    let used: u128 = view.usage.iter().map(|row| row.milli_ms).sum();
    let capacity: u128 = view.capacity.iter().map(|row| row.milli_ms).sum();
    assert_eq!(used, capacity);
    println!(
        "view: {} rows in {} ms; saved: {} bytes",
        view.usage.len(),
        began.elapsed().as_millis(),
        ledger.save().len()
    );
}
