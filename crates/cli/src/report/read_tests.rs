use std::path::Path;
use std::sync::Arc;

use muster_archive::{ArchivedRound, DirectoryStore};
use muster_journal::{
    Estimate, FORMAT_MIN, Outcome, RankUpdate, RequestKey, Round, WorkerSlot, encode_round,
};
use muster_ledger::DAY_MS;
use muster_types::policy::{PolicyDraft, Price};
use muster_types::{
    AcceleratorRequest, Accelerators, ClusterId, DeviceSet, ExitStatus, FencingToken, HolderId, JobDraft,
    JobId, Leadership, Name, NodeDraft, NodeId, Parameters, ReplicaId, RequestId, TaskGroup, WorkerRequest,
};

use super::*;
use crate::report::cost::{self, CostDimension, Prices};
use crate::report::fairness::Division;
use crate::report::{Dimension, rows};

const CLUSTER: ClusterId = ClusterId(0xa1);
pub(crate) const START: u64 = 20_000 * DAY_MS;

fn has() -> Accelerators {
    Accelerators { kind: Name::literal("h100"), count: 8 }
}

fn node() -> Decision {
    let draft = NodeDraft {
        name: Name::literal("n1"),
        region: Name::literal("eu"),
        cluster: Name::literal("c1"),
        block: Name::literal("b1"),
        rack: Name::literal("r1"),
        address: "n1".to_owned(),
        accelerators: Some(has()),
        cpu_milli: 64_000,
        memory_bytes: 1 << 40,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    };
    Decision::NodeRegistered { spec: draft.check().unwrap(), holder: HolderId(1) }
}

fn submitted() -> Decision {
    let accelerators = Some(AcceleratorRequest::from(has()));
    let request = WorkerRequest {
        accelerators,
        cpu_milli: 1_000,
        memory_bytes: 1 << 30,
        exclusive: false,
        scratch_bytes: 0,
    };
    let group = TaskGroup::new(Name::literal("main"), 1, vec!["train".to_owned()], request);
    let draft = JobDraft::new(Name::literal("job"), Name::literal("lab"), vec![group]);
    let request = RequestKey { id: RequestId(1), fingerprint: 1 };
    let specs = vec![Arc::new(draft.check().unwrap())];
    Decision::JobsSubmitted {
        request,
        by: muster_types::Requester::default(),
        specs,
        estimates: vec![Estimate::default()],
    }
}

/// One job on one node of eight: submitted at second 10, placed at 20, running from 25 to 100, the last record at 200.
fn rounds() -> Vec<ArchivedRound> {
    let (node_id, incarnation) = (NodeId(0), 1);
    let job = JobId::derive_in(1, LogIndex(4), 0);
    let token = FencingToken { generation: 1, log_index: LogIndex(5) };
    let report = |update| Decision::WorkersReported {
        node: node_id,
        incarnation,
        job,
        token,
        updates: vec![(0, update)],
    };
    let created =
        Decision::ClusterCreated { cluster: CLUSTER, generation: 1, parameters: Parameters::DEFAULT };
    let workers = vec![WorkerSlot { node: node_id, incarnation, devices: DeviceSet(0xff) }];
    let request = RequestKey { id: RequestId(2), fingerprint: 2 };
    let contents = [
        (0, vec![Decision::LeaderStarted, created, node()]),
        (10, vec![submitted()]),
        (20, vec![Decision::GangPlaced { job, workers }]),
        (25, vec![report(RankUpdate::Running)]),
        (
            100,
            vec![
                report(RankUpdate::Exited(ExitStatus::Code(0))),
                Decision::JobFinished { job, outcome: Outcome::Succeeded },
            ],
        ),
        (
            200,
            vec![Decision::NodeCordonSet {
                request,
                by: muster_types::Requester::default(),
                node: node_id,
                cordoned: true,
                reason: None,
            }],
        ),
    ];
    let mut first = 1;
    let rounds = contents.into_iter().enumerate().map(|(at, (seconds, decisions))| {
        let round = Round {
            format: FORMAT_MIN,
            term: 1,
            replica: ReplicaId(1),
            first_index: LogIndex(first),
            basis_index: LogIndex(first - 1),
            log_time: LogTime(START + seconds * 1_000),
            decisions,
        };
        first += round.decisions.len() as u64;
        let (raft_index, payload) = (1 + at as u64, encode_round(&round).into());
        ArchivedRound { raft_index, term: 1, leader: ReplicaId(1), payload }
    });
    rounds.collect()
}

/// Three segments, and a base behind the second.
pub(crate) fn archive(dir: &Path) {
    let archive = Archive::open(Arc::new(DirectoryStore::open(dir).unwrap()), None).unwrap();
    let mut state = State::default();
    let rounds = rounds();
    for part in [0..3, 3..4, 4..6] {
        let has_base = part.start == 3;
        let part = &rounds[part];
        archive.append(CLUSTER, part, part.last().unwrap().raft_index + 1).unwrap();
        for round in part {
            let round = round.decode().unwrap();
            let leadership = Leadership { term: round.term, replica: round.replica };
            for (ordinal, decision) in round.decisions.iter().enumerate() {
                let index = LogIndex(round.first_index.0 + ordinal as u64);
                let applied = state.apply(leadership, index, round.log_time, decision);
                assert_eq!(applied.rejection, None, "{decision:?}");
            }
        }
        if has_base {
            archive.put_base(CLUSTER, archive.end().unwrap(), &state).unwrap();
        }
    }
}

fn usage(reading: &Reading, by: &[Dimension]) -> Vec<String> {
    let rows = rows::idle(&reading.views, by).into_iter().chain(rows::usage(&reading.views, by));
    let shown = rows.map(|row| (row.state, row.amount / 1_000_000)).filter(|(state, _)| state != "idle");
    shown.map(|(state, seconds)| format!("{state} {seconds}")).collect()
}

fn seconds(at: u64) -> Option<PastPoint> {
    Some(PastPoint::Time(LogTime(START + at * 1_000)))
}

#[test]
fn a_whole_archive_is_charged_from_its_first_record_to_its_last() {
    let dir = tempfile::tempdir().unwrap();
    archive(&dir.path().join("archive"));
    // The data directory will do.
    let reading = read(&[dir.path().to_owned()], None, None).unwrap();
    assert_eq!(
        usage(&reading, &[]),
        ["idle.demand_unplaced 80", "idle.no_demand 880", "in_use 640", "kept 600", "starting 40"]
    );
    assert_eq!(rows::capacity(&reading.views), 1_600_000_000);
    assert_eq!((reading.from, reading.to), (LogTime(START), LogTime(START + 200_000)));
    assert!(reading.missing.is_empty() && reading.notes.is_empty());
}

#[test]
fn a_span_counts_only_itself_and_is_cut_where_the_log_ends() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let dirs = [dir.path().to_owned()];
    let reading = read(&dirs, seconds(50), seconds(60)).unwrap();
    // That the work was kept is known from records behind the span.
    assert_eq!(usage(&reading, &[]), ["in_use 80", "kept 80"]);
    let reading = read(&dirs, seconds(150), seconds(900)).unwrap();
    assert_eq!(usage(&reading, &[]), ["idle.no_demand 400"]);
    assert_eq!(reading.to, LogTime(START + 200_000));
    assert!(reading.notes[0].contains("the log ends at"), "{:?}", reading.notes);
    // From the record that placed the job on.
    let reading = read(&dirs, Some(PastPoint::Index(LogIndex(5))), seconds(100)).unwrap();
    assert_eq!(usage(&reading, &[]), ["in_use 640", "kept 600", "starting 40"]);
    assert!(read(&dirs, seconds(60), seconds(50)).is_err());
    assert!(read(&dirs, Some(PastPoint::Index(LogIndex(99))), None).is_err());
}

#[test]
fn a_span_that_the_log_does_not_have_is_named() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let dirs = [dir.path().to_owned()];
    let before = PastPoint::Time(LogTime(START - 60_000));
    for (from, to) in [(seconds(300), seconds(400)), (Some(before), seconds(0)), (seconds(300), None)] {
        let reading = read(&dirs, from, to).unwrap();
        assert_eq!(rows::capacity(&reading.views), 0);
        assert_eq!(reading.notes.len(), 1, "{:?}", reading.notes);
        assert!(reading.notes[0].starts_with("nothing of the span is in the log"), "{:?}", reading.notes);
        assert!(reading.from <= reading.to);
    }
}

#[test]
fn a_gap_is_reported_and_nothing_is_charged_for_it() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let segments = std::fs::read_dir(dir.path().join("segments")).unwrap();
    let generation = segments.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(generation).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 3);
    std::fs::remove_file(&names[1]).unwrap();
    let reading = read(&[dir.path().to_owned()], None, None).unwrap();
    let gap = &reading.missing[0];
    assert_eq!((gap.records.from, gap.records.to), (LogIndex(6), LogIndex(6)));
    assert_eq!((gap.since, gap.until), (LogTime(START + 20_000), Some(LogTime(START + 25_000))));
    assert_eq!(
        usage(&reading, &[]),
        ["idle.demand_unplaced 80", "idle.no_demand 880", "in_use 600", "kept 600"]
    );
    assert_eq!(rows::capacity(&reading.views), 1_560_000_000);
}

fn priced(prices: Vec<Price>) -> Prices {
    let policy = PolicyDraft { prices, ..PolicyDraft::default() }.check().unwrap();
    Prices::new(policy.price_table().clone())
}

/// The exact sum of a span, in millionths of a dollar for an hour times thousandths and milliseconds.
fn exact(dir: &Path, prices: &Prices, from: Option<PastPoint>, to: Option<PastPoint>) -> u128 {
    let archive = open(&[dir.to_owned()]).unwrap();
    let detail = Detail { cuts: prices.boundaries().to_vec(), jobs: true };
    let reading = read_in(&archive, from, to, &detail, Watchers::default()).unwrap();
    let rows = cost::rows(&reading.views, prices, &[CostDimension::Job]);
    cost::total(rows.iter().map(|row| &row.amount)).exact
}

#[test]
fn prices_change_at_their_moment_and_any_split_has_the_same_sum() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let change = LogTime(START + 60_001);
    let price = |micro_dollars| Price::new(Name::literal("h100"), None, micro_dollars);
    let before = Price { until: Some(change), ..price(7) };
    let prices = priced(vec![before, Price { from: Some(change), ..price(1_000_003) }]);
    let whole = exact(dir.path(), &prices, None, None);
    assert_eq!(whole, 8_000 * (60_001 * 7 + (200_000 - 60_001) * 1_000_003));
    for at in [1, 20_000, 60_000, 60_001, 60_002, 100_000, 199_999] {
        let at = Some(PastPoint::Time(LogTime(START + at)));
        let parts = exact(dir.path(), &prices, None, at) + exact(dir.path(), &prices, at, None);
        assert_eq!(parts, whole, "{at:?}");
    }
}

#[test]
fn tenants_are_told_what_they_got_and_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let archive = open(&[dir.path().to_owned()]).unwrap();
    let mut fairness = Fairness::default();
    let watchers = Watchers { fairness: Some(&mut fairness), ..Watchers::default() };
    read_in(&archive, None, None, &Detail::default(), watchers).unwrap();
    let sums = fairness
        .sums()
        .map(|(tenant, kind, fair)| (tenant.unwrap().to_string(), kind.unwrap().to_owned(), *fair));
    let sums: Vec<_> = sums.collect();
    // A tenant that no policy names is below one that stands for all of them.
    assert_eq!(sums.iter().map(|(tenant, _, _)| tenant.as_str()).collect::<Vec<_>>(), ["lab", "unlisted"]);
    for (_, kind, fair) in &sums {
        assert_eq!(kind, "h100");
        assert_eq!((fair.received, fair.borrowed, fair.asked), (640_000_000, 640_000_000, 80_000_000));
        assert_eq!((fair.nominal, fair.lent, fair.entitled), (0, 0, 0));
    }
    // By type alone the first level is added up, which has the other tenant in it.
    let mut fairness = Fairness::divided(Division { by_tenant: false, by_type: true });
    let watchers = Watchers { fairness: Some(&mut fairness), ..Watchers::default() };
    read_in(&archive, None, None, &Detail::default(), watchers).unwrap();
    let received = fairness.sums().map(|(tenant, kind, fair)| (tenant.is_none(), kind, fair.received));
    assert_eq!(received.collect::<Vec<_>>(), [(true, Some("h100"), 640_000_000)]);
}

#[test]
fn a_file_is_no_history() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(read(&[file.path().to_owned()], None, None).is_err());
}

#[test]
fn the_wait_of_each_job_is_divided_and_the_sum_stays() {
    let dir = tempfile::tempdir().unwrap();
    archive(dir.path());
    let source = open(&[dir.path().to_owned()]).unwrap();
    // The job waits from 10 to 20 and starts until 25; until 15 it has not been placed.
    let cases =
        [(None, &[("waiting", 10_000u128), ("starting", 5_000)][..]), (Some(15), &[("waiting", 5_000)][..])];
    for (to, expected) in cases {
        let to = to.map(|second: u64| PastPoint::Time(LogTime(START + second * 1_000)));
        let detail = Detail { jobs: true, ..Detail::default() };
        let reading = read_in(&source, None, to, &detail, Watchers::default()).unwrap();
        let rows = rows::waits_by_job(&reading.views, &reading.jobs, &[Dimension::Job]);
        let shown: Vec<_> = rows.iter().map(|row| (row.state.as_str(), row.amount)).collect();
        assert_eq!(shown, expected);
        let job = JobId::derive_in(1, LogIndex(4), 0).to_string();
        assert!(rows.iter().all(|row| row.keys[0].1 == job), "{rows:?}");
        let total: u128 = rows::waits(&reading.views, &[]).iter().map(|row| row.amount).sum();
        assert_eq!(rows.iter().map(|row| row.amount).sum::<u128>(), total);
    }
}
