//! What it takes to charge a long log: ten million records that are made while they are read.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_journal::{
    Decision, Estimate, FORMAT_MAX, Outcome, RankUpdate, RequestKey, Round, WorkerSlot, decode_round,
    encode_round,
};
use muster_ledger::{Ledger, View, Window};
use muster_state::State;
use muster_types::{
    Accelerators, ClusterId, DeviceSet, ExitStatus, FencingToken, HolderId, JobDraft, JobId, Leadership,
    LogIndex, LogTime, NodeDraft, NodeId, NodeSpec, Parameters, ReplicaId, RequestId, Requester,
};
use serde_json::json;

use super::fleet::{Ask, draft, name};
use super::{Bar, Figure};
use crate::machine::{resident_bytes, thread_time};

/// How much is in a log.
#[derive(Clone, Copy, Debug)]
struct LogShape {
    records: u64,
    /// Nodes of eight devices.
    nodes: u64,
    /// Log time from one record to the next.
    step_ms: u64,
}

/// The log that the bars on time and memory are about.
const LONG: LogShape = LogShape { records: 10_000_000, nodes: 512, step_ms: 100 };
/// Thirty days of 10,000 devices; each job runs for six hours.
const MONTH: LogShape = LogShape { records: 900_000, nodes: 1_250, step_ms: 2_880 };
const TENANTS: u64 = 40;
/// When the log begins: midnight of day 20,000.
const START_MS: u64 = 20_000 * 86_400_000;
/// Records between two looks at the memory.
const LOOK_EVERY: u64 = 100_000;

/// Jobs that start, save their work once and succeed, one after the other on each node.
struct SyntheticLog {
    shape: LogShape,
    index: u64,
    token: Vec<FencingToken>,
    job: Vec<Option<JobId>>,
    drafts: Vec<JobDraft>,
}

fn node(number: u64) -> NodeSpec {
    let draft = NodeDraft {
        name: name(&format!("n{number}")),
        region: name(["eu", "us", "asia"][(number % 3) as usize]),
        cluster: name("c1"),
        block: name("b1"),
        rack: name("r1"),
        address: format!("n{number}"),
        accelerators: Some(Accelerators { kind: name("h100"), count: 8 }),
        cpu_milli: 192_000,
        memory_bytes: 1 << 40,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().expect("nodes here keep to the bounds")
}

impl SyntheticLog {
    fn new(shape: LogShape) -> SyntheticLog {
        let drafts = (0..TENANTS).map(|n| draft("job", &format!("tenant-{n}"), Ask::gang(1, 8)));
        let nodes = shape.nodes as usize;
        let token = vec![FencingToken::default(); nodes];
        SyntheticLog { shape, index: 0, token, job: vec![None; nodes], drafts: drafts.collect() }
    }

    fn put(&mut self, decision: Decision, take: &mut impl FnMut(u64, &Decision)) -> u64 {
        self.index += 1;
        take(self.index, &decision);
        self.index
    }

    /// The end of one job on a node, and the next one there.
    fn turn(&mut self, number: u64, take: &mut impl FnMut(u64, &Decision)) {
        let at = (number % self.shape.nodes) as usize;
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
            self.put(Decision::CheckpointCommitted { job, token, step: None }, take);
            self.put(report(job, token, RankUpdate::Exited(ExitStatus::Code(0))), take);
            self.put(Decision::JobFinished { job, outcome: Outcome::Succeeded }, take);
        }
        let spec = self.drafts[(number % TENANTS) as usize].clone();
        let spec = spec.check().expect("jobs here keep to the bounds");
        let request = RequestKey { id: RequestId(u128::from(self.index) + 1), fingerprint: 0 };
        let (specs, estimates) = (vec![spec.into()], vec![Estimate::default()]);
        let by = Requester::default();
        let index = self.put(Decision::JobsSubmitted { request, by, specs, estimates }, take);
        let job = JobId::derive_in(1, LogIndex(index), 0);
        let workers = vec![WorkerSlot { node, incarnation, devices: DeviceSet(0xff) }];
        let index = self.put(Decision::GangPlaced { job, workers }, take);
        let token = FencingToken { generation: 1, log_index: LogIndex(index) };
        self.put(report(job, token, RankUpdate::Running), take);
        (self.job[at], self.token[at]) = (Some(job), token);
        if number.is_multiple_of(100) {
            let before = LogTime(self.shape.time(self.index).0 - 600_000);
            self.put(Decision::HistoryPruned { requests_before: before, jobs_before: before }, take);
        }
    }

    fn all(mut self, mut take: impl FnMut(u64, &Decision)) {
        let (cluster, generation, parameters) = (ClusterId(1), 1, Parameters::DEFAULT);
        self.put(Decision::LeaderStarted, &mut take);
        self.put(Decision::ClusterCreated { cluster, generation, parameters }, &mut take);
        for number in 0..self.shape.nodes {
            let (spec, holder) = (node(number), HolderId(u128::from(number)));
            self.put(Decision::NodeRegistered { spec, holder }, &mut take);
        }
        let mut number = 0;
        while self.index < self.shape.records {
            self.turn(number, &mut take);
            number += 1;
        }
    }
}

const LEADER: Leadership = Leadership { term: 1, replica: ReplicaId(1) };

impl LogShape {
    fn time(self, index: u64) -> LogTime {
        LogTime(START_MS + index * self.step_ms)
    }
}

/// The time that the state alone takes.
fn state_alone() -> Duration {
    let begun = thread_time();
    let mut state = State::default();
    SyntheticLog::new(LONG).all(|index, decision| {
        state.apply(LEADER, LogIndex(index), LONG.time(index), decision);
    });
    assert!((state.rejected(), state.stale()) == (0, 0), "every record counts");
    thread_time() - begun
}

/// Ten million records through the ledger: processor time beyond that of the state, and memory of both.
pub(super) fn fold() -> Vec<Figure> {
    let before = resident_bytes();
    let alone = state_alone();
    let begun = thread_time();
    let mut state = State::default();
    let mut ledger = Ledger::begin(&state, Window::default());
    let (mut ended, mut peak) = (0, before);
    SyntheticLog::new(LONG).all(|index, decision| {
        let over = ledger.fold(&mut state, LEADER, LogIndex(index), LONG.time(index), decision);
        ended += over.expect("records follow one another").len();
        if index.is_multiple_of(LOOK_EVERY) {
            peak = peak.max(resident_bytes());
        }
    });
    let both = thread_time() - begun;
    let view = ledger.view(ledger.log_time());
    let detail = json!({
        "records": state.log_index().0,
        "jobs": ended,
        "rows": view.usage.len(),
        "saved_bytes": ledger.save().len(),
        "state_alone_s": alone.as_secs_f64(),
    });
    let own = both.saturating_sub(alone).as_secs_f64();
    let gib = peak.saturating_sub(before) as f64 / (1u64 << 30) as f64;
    let what = |of: &str| format!("{} records{of}", LONG.records);
    vec![
        Figure::new("ledger", what(" through the ledger, beyond the state"), own, "s")
            .bar(Bar::AtMost(20.0))
            .detail(detail),
        Figure::new("ledger", what(" through state and ledger"), both.as_secs_f64(), "s"),
        Figure::new("ledger", "memory of both, at most", gib, "GiB").bar(Bar::AtMost(1.0)),
        Figure::new("ledger", what(", conservation error"), unconserved(&view) as f64, "milli-ms")
            .bar(Bar::AtMost(0.0)),
    ]
}

/// By how much what is charged differs from capacity × time, in thousandths of accelerators times milliseconds, added up over all
/// types in all regions.
fn unconserved(view: &View) -> u128 {
    let mut pools: BTreeMap<(&str, &str), (u128, u128)> = BTreeMap::new();
    for row in &view.usage {
        pools.entry((row.kind.as_str(), row.region.as_str())).or_default().0 += row.milli_ms;
    }
    for row in &view.capacity {
        pools.entry((row.kind.as_str(), row.region.as_str())).or_default().1 += row.milli_ms;
    }
    pools.values().map(|(charged, capacity)| charged.abs_diff(*capacity)).sum()
}

/// A ledger and the state of the same record, as they are kept between two reports.
struct SavedReport {
    records: usize,
    ledger: Vec<u8>,
    snapshot: Vec<Vec<u8>>,
}

/// Sums by day and tenant.
type Sums = BTreeMap<(u32, Option<String>), u128>;

fn charge(state: &mut State, ledger: &mut Ledger, rounds: &[Vec<u8>]) {
    for bytes in rounds {
        let round = decode_round(bytes, FORMAT_MAX).expect("it was encoded here");
        ledger.fold_round(state, &round).expect("records follow one another");
    }
}

fn sums(ledger: &Ledger) -> Sums {
    let view = ledger.view(ledger.log_time());
    let mut sums = Sums::new();
    for row in &view.usage {
        let tenant = row.tenant.as_ref().map(ToString::to_string);
        *sums.entry((row.day, tenant)).or_default() += row.milli_ms;
    }
    assert!(unconserved(&view) == 0, "everything is charged once");
    sums
}

/// A report of a month by day and tenant: of a ledger that was kept a day ago, and from the first record on.
pub(super) fn month_report() -> Vec<Figure> {
    let mut encoded: Vec<Vec<u8>> = Vec::new();
    SyntheticLog::new(MONTH).all(|index, decision| {
        let round = Round {
            format: FORMAT_MAX,
            term: LEADER.term,
            replica: LEADER.replica,
            first_index: LogIndex(index),
            basis_index: LogIndex(index - 1),
            log_time: MONTH.time(index),
            decisions: vec![decision.clone()],
        };
        encoded.push(encode_round(&round));
    });
    let (before, last_day) = encoded.split_at(encoded.len() / 30 * 29);

    let begun = thread_time();
    let mut state = State::default();
    let mut ledger = Ledger::begin(&state, Window::default());
    charge(&mut state, &mut ledger, before);
    let first = thread_time() - begun;
    let snapshot = state.snapshot().collect();
    let kept = SavedReport { records: before.len(), ledger: ledger.save(), snapshot };
    let begun = thread_time();
    charge(&mut state, &mut ledger, last_day);
    let cold = sums(&ledger);
    let whole = first + (thread_time() - begun);

    let begun = thread_time();
    let mut state = State::restore(&kept.snapshot).expect("it was made here");
    let mut ledger = Ledger::load(&kept.ledger).expect("it was saved here");
    charge(&mut state, &mut ledger, last_day);
    let warm = sums(&ledger);
    let took = thread_time() - begun;
    assert!(warm == cold, "a kept ledger goes on to the same sums");
    let detail = json!({
        "records": encoded.len(),
        "records_kept": kept.records,
        "bytes": encoded.iter().map(Vec::len).sum::<usize>(),
        "ledger_bytes": kept.ledger.len(),
        "lines": warm.len(),
    });
    let what = |how: &str| format!("30 days of {} devices, by day and tenant, {how}", MONTH.nodes * 8);
    vec![
        Figure::new("report-month", what("with a ledger kept a day ago"), took.as_secs_f64(), "s")
            .bar(Bar::AtMost(2.0))
            .detail(detail),
        Figure::new("report-month", what("from the first record on"), whole.as_secs_f64(), "s"),
    ]
}
