//! The logs of released formats, in `tests/golden/`: this binary replays each to the recorded
//! digests and restores its snapshot.
//!
//! `MUSTER_GOLDEN_WRITE=1` writes the files of the formats that are not released; the run then fails on
//! purpose, so that it can never pass by writing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_decider::{
    BookingOrder, BootstrapConfig, Command, ControlOrder, DrainOrder, FleetHoldOrder, JobSelection,
    ModifyOrder, OverridesOrder, QuotaAnswerOrder, QuotaOrder, RepairOrder, ScheduleAction, ScheduleControl,
    ScheduleOrder, Speculation, ThrottleOrder, TokenOrder, handle, schedule, settle_all, tick,
};
use muster_journal::{Decision, FORMAT_MIN, RankUpdate, Round, StopCause, decode_round, encode_round};
use muster_planner::Budget;
use muster_state::{Phase, RestoreError, State};
use muster_types::health::{Finding, HealthReport, Observation};
use muster_types::policy::{
    NotificationBody, NotificationEvent, NotificationProgress, Order, PolicyDraft, PurchaseKind, Quota,
    QuotaGrant, Receiver, TenantLimits, TenantPolicy,
};
use muster_types::{
    AdmissionMode, AdmissionRule, AgentStart, Approval, ArrayId, ArraySpec, BookingAmount, BookingClearing,
    BookingEnd, BookingShape, BookingSpec, BookingTimes, CapacityFallback, CapacityRules, CertificateSerial,
    CheckpointRules, Control, Dependency, DependencyRule, DependencyScope, DeviceSet, ExitStatus,
    FailureClass, FieldChange, FleetHold, FleetPart, GroupSize, HoldTarget, JobContract, JobId, JobMetadata,
    LabelTest, LaunchForm, LogIndex, LogTime, NodeAdmission, NodeBounds, NodeExpression, NodeId,
    NodeOverridesChange, NodeRequirements, NodeSpec, NoticeRules, OverlapRule, Preflight, PriorityTier,
    Requester, RetryRules, Revocation, Schedule, ScheduleKey, ScheduleTemplate, StartId, Submission,
    TokenGrant, TokenId, TokenRole,
};

use crate::support::{
    BOOTSTRAP, accelerators, check, group, holder, job, job_draft, leadership, name, node_draft, node_spec,
    request, with_all_rights,
};

mod asked;

use asked::{book, fall_back, grant_quota, grant_tokens};

/// The highest format that is in people's logs: its files and those below are never written again. None is released.
const RELEASED: u16 = 0;

/// The highest format of the product. Builds for tests know one more, which is in nobody's logs.
pub const NEWEST: u16 = FORMAT_MIN;

pub fn directory(format: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(format!("v{format}"))
}

/// Every digest in one line: the position after the round, the whole state's, the rows' own.
fn line(state: &State) -> String {
    format!("{} {:016x} {:016x}\n", state.log_index(), state.digest(), state.rows_digest())
}

pub fn split(log: &[u8]) -> Vec<&[u8]> {
    let mut rest = log;
    let mut rounds = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (round, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        rounds.push(round);
        rest = behind;
    }
    assert!(rest.is_empty(), "a log ends with a whole round");
    rounds
}

#[test]
fn every_released_format_replays_to_its_digests() {
    if std::env::var_os("MUSTER_GOLDEN_WRITE").is_some() {
        write();
        panic!("golden files were written; run again without MUSTER_GOLDEN_WRITE");
    }
    for format in FORMAT_MIN..=NEWEST {
        let read = |file: &str| {
            let path = directory(format).join(file);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let digests = String::from_utf8(read("digests.txt")).unwrap();
        let log = read("rounds.log");
        let rounds = split(&log);
        let mut state = State::default();
        let mut lines = digests.lines();
        let mut variants = BTreeSet::new();
        for bytes in rounds {
            let round = decode_round(bytes, format).expect("a golden round decodes");
            variants.extend(round.decisions.iter().map(Decision::name));
            state.apply_round(&round);
            check(&state);
            assert_eq!(lines.next().map(|l| format!("{l}\n")), Some(line(&state)), "format {format}");
            // As long as formats differ in their variants alone, every one of them can be written.
            assert_eq!(encode_round(&round), bytes, "the encoding of a released format has changed");
        }
        assert_eq!(lines.next(), None);
        assert_eq!(state.rejected(), 1, "the log holds one refused record");
        assert_eq!(state.stale(), 2, "the log holds two records of an ended leadership");
        // The one that raises the format has its bytes below: what follows it is of another format.
        assert_eq!(variants.len(), 70, "{variants:?}");
        assert_eq!((state.format(), state.generation()), (format, 2));
        let phases: BTreeSet<&str> = state.jobs().iter().map(|(_, row)| phase(&row.phase)).collect();
        assert_eq!(phases.len(), 5, "the snapshot holds a job in every phase: {phases:?}");
        let snapshot = read("snapshot.bin");
        let restored = State::restore([&snapshot]).expect("a golden snapshot restores");
        assert_eq!(restored.digest(), state.digest());
        let now: Vec<u8> = state.snapshot().flatten().collect();
        assert!(now == snapshot, "the layout of a released snapshot has changed");
        let older = State::restore_up_to(format - 1, [&snapshot]);
        assert_eq!(older.unwrap_err(), RestoreError::FormatNewer { needed: format, known: format - 1 });
    }
}

/// The record that raises the format is the last that a binary of the format before it reads.
#[test]
fn the_record_that_raises_the_format_keeps_its_bytes() {
    let round = Round {
        format: FORMAT_MIN,
        term: 7,
        replica: muster_types::ReplicaId(2),
        first_index: LogIndex(300),
        basis_index: LogIndex(299),
        log_time: LogTime(1_800_000_000_000),
        decisions: vec![Decision::FormatRaised { by: muster_types::Requester::default(), format: 2 }],
    };
    let hex: String = encode_round(&round).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "4d524e44010016000000b31d46090702fb2c01fb2b01fd00505c18a30100000114000002");
}

fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Pending => "pending",
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping(_) => "stopping",
        Phase::Finished(_) => "finished",
    }
}

/// Writes the files of the formats that are not released again. The decider may change in any release and then makes
/// other records of the same scenario, which is why the files are kept and not the scenario alone.
fn write() {
    for format in RELEASED + 1..=NEWEST {
        write_format(format);
    }
}

fn write_format(format: u16) {
    let mut log = Vec::new();
    let mut digests = String::new();
    let mut state = State::default();
    for round in scenario() {
        let bytes = encode_round(&round);
        log.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        log.extend_from_slice(&bytes);
        state.apply_round(&round);
        digests.push_str(&line(&state));
    }
    let snapshot: Vec<u8> = state.snapshot().flatten().collect();
    let directory = directory(format);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("rounds.log"), log).unwrap();
    std::fs::write(directory.join("digests.txt"), digests).unwrap();
    std::fs::write(directory.join("snapshot.bin"), snapshot).unwrap();
}

/// Every variant but the one that raises the format, every cause, every exit, every phase at the end, a refused and two late records.
fn receiver() -> Receiver {
    Receiver {
        name: name("ops"),
        url: "https://hooks.example/ops".into(),
        tenant: None,
        events: BTreeSet::from([NotificationEvent::JobFailed, NotificationEvent::NodeDown]),
        body: NotificationBody::Slack,
        for_jobs: true,
    }
}

fn scenario() -> Vec<Round> {
    let mut run = Run {
        speculation: Speculation::begin(
            State::default(),
            leadership(1, 1),
            LogTime(1_800_000_000_000),
            BOOTSTRAP,
        ),
        rounds: Vec::new(),
        requests: 0,
    };
    run.end_round(10);
    let mut draft = PolicyDraft::default();
    let limits = TenantLimits { pending_jobs: Some(100), ..TenantLimits::default() };
    draft.tenants.insert(name("limited"), TenantPolicy { limits, ..TenantPolicy::default() });
    draft.notifications.push(receiver());
    run.set_policy(draft);
    let at = run.speculation.last_index();
    let progress = NotificationProgress { delivered: at, acknowledged: 3, given_up: 1, skipped: 2 };
    let told = Command::NoteNotifications { progress: vec![(name("ops"), progress)] };
    handle(&mut run.speculation, &told).unwrap();
    let mut first = node_draft("gpu-a", "eu", "c1", Some(accelerators("h100", 8)));
    first.labels.insert(name("zone"), "a".into());
    run.register(first.check().unwrap(), 1);
    run.register(node_spec("gpu-b", "eu", "c1", Some(accelerators("h100", 8))), 2);
    run.register(plain_node(), 3);
    run.end_round(1_000);

    let full = full_spec();
    let stays = run.submit(full);
    let done = run.submit(job("done", 1, None));
    let fails = run.submit(job_retries("fails", 1, 1));
    let over = run.submit(limited("over"));
    let cancelled = run.submit(job("cancelled", 1, Some(accelerators("h100", 1))));
    run.schedule();
    run.end_round(500);

    run.report(done, RankUpdate::Running);
    run.report(done, RankUpdate::Exited(ExitStatus::Code(0)));
    run.report(over, RankUpdate::Running);
    run.report(stays, RankUpdate::Running);
    run.report(fails, RankUpdate::Exited(ExitStatus::LaunchFailed("no such file".into())));
    run.end_round(2_000);
    tick(&mut run.speculation);
    run.schedule();
    run.report(fails, RankUpdate::Running);
    run.report(fails, RankUpdate::Exited(ExitStatus::Code(-3)));
    run.report(cancelled, RankUpdate::Running);
    run.cancel(cancelled);
    run.report(cancelled, RankUpdate::Exited(ExitStatus::Signal(15)));
    run.end_round(120_000);
    tick(&mut run.speculation);
    run.report(over, RankUpdate::Exited(ExitStatus::NotStarted));
    run.cordon(NodeId(2), true);
    run.end_round(10);

    // A leader that does not know it has been deposed: two records that come too late.
    let mut deposed = run.speculation.clone();
    handle(
        &mut deposed,
        &Command::SetCordon {
            request: request(900),
            by: muster_types::Requester::default(),
            node: NodeId(2),
            cordoned: false,
            reason: None,
        },
    )
    .unwrap();
    handle(&mut deposed, &Command::cancel(request(901), stays)).unwrap();
    let mut late = deposed.take_round().unwrap();
    late.decisions.truncate(2);
    let state = run.speculation.state().clone();
    run.speculation = Speculation::begin(state, leadership(4, 3), LogTime(1_800_000_200_000), BOOTSTRAP);
    settle_all(&mut run.speculation);
    run.end_round(10);
    run.rounds.push(late);

    // A refused record takes its index, so the leader that made it is over as well.
    let refused = Round {
        format: run.speculation.state().format(),
        term: 4,
        replica: muster_types::ReplicaId(3),
        first_index: run.speculation.last_index().next(),
        basis_index: run.speculation.last_index(),
        log_time: run.speculation.now(),
        decisions: vec![Decision::GangStopRequested {
            job: done,
            token: Default::default(),
            cause: StopCause::RunTimeLimit,
        }],
    };
    run.rounds.push(refused);
    let mut state = State::default();
    for round in &run.rounds {
        state.apply_round(round);
    }
    run.speculation = Speculation::begin(state, leadership(5, 2), LogTime(1_800_000_300_000), BOOTSTRAP);
    run.end_round(10);

    handle(&mut run.speculation, &Command::SessionOver { node: NodeId(0), incarnation: 1 }).unwrap();
    run.end_round(10);
    run.report(stays, RankUpdate::Exited(ExitStatus::Vanished));
    let replaced = node_spec("gpu-b", "eu", "c1", Some(accelerators("h100", 4)));
    let command = Command::Register { spec: replaced, holder: holder(9), other_session_is_over: true };
    handle(&mut run.speculation, &command).unwrap();
    run.register(node_spec("gpu-a", "eu", "c1", Some(accelerators("h100", 8))), 1);
    run.cordon(NodeId(2), false);
    run.schedule();
    run.end_round(8 * 24 * 3_600_000);
    tick(&mut run.speculation);
    recover(&mut run);
    make_room(&mut run);
    for request in [None, Some(run.next_request())] {
        run.register(node_spec("gone", "eu", "c2", Some(accelerators("h100", 8))), 7);
        let node = run.speculation.state().node_named(&name("gone")).unwrap();
        handle(&mut run.speculation, &Command::SessionOver { node, incarnation: 1 }).unwrap();
        handle(
            &mut run.speculation,
            &Command::ForgetNode { request, by: muster_types::Requester::default(), node },
        )
        .unwrap();
        run.end_round(10);
    }
    attempts(&mut run);
    restrict(&mut run);
    slow_network(&mut run);
    override_labels(&mut run);
    admit(&mut run);
    resume(&mut run);
    label(&mut run);
    control(&mut run);
    arrays(&mut run);
    // A job in each phase is left.
    run.submit(job("starting", 1, None));
    let running = run.submit(job("running", 1, None));
    let stopping = run.submit(job("stopping", 2, Some(accelerators("h100", 1))));
    let lost = run.submit(job("lost", 1, Some(accelerators("h100", 1))));
    let ended = run.submit(job("ended", 1, None));
    run.schedule();
    run.report(lost, RankUpdate::Exited(ExitStatus::LeaseExpired));
    run.report(running, RankUpdate::Running);
    run.report(stopping, RankUpdate::Running);
    run.cancel(stopping);
    run.cancel(ended);
    run.report(ended, RankUpdate::Exited(ExitStatus::Code(0)));
    run.submit(job("waits", 1, Some(accelerators("h100", 8))));
    run.end_round(1);
    run.rounds
}

/// Rules about nodes, one that is rejected and one that is approved, certificates that are not good any more, and tokens.
fn admit(run: &mut Run) {
    let bounds = NodeBounds {
        region: Some(name("eu")),
        cluster: None,
        devices: Some(vec![accelerators("a100", 4), accelerators("h100", 8)]),
    };
    let rule = AdmissionRule { pattern: "eu-*".into(), bounds: bounds.clone() };
    let admission = NodeAdmission { mode: AdmissionMode::Pinned, rules: vec![rule] };
    let request = run.next_request();
    let command = Command::SetNodeAdmission {
        request,
        by: muster_types::Requester::default(),
        admission: Box::new(admission),
        expected_version: None,
    };
    handle(&mut run.speculation, &command).unwrap();
    for (text, approval) in [
        ("gpu-x", Some(Approval::Rejected)),
        ("gpu-y", Some(Approval::Approved(bounds))),
        ("gpu-z", Some(Approval::Rejected)),
        ("gpu-z", None),
    ] {
        let request = run.next_request();
        let command = Command::SetNodeApproval {
            request,
            by: muster_types::Requester::default(),
            name: name(text),
            approval,
        };
        handle(&mut run.speculation, &command).unwrap();
    }
    for (serial, until) in [([7; 20], 1_000), ([8; 20], u64::MAX), ([9; 20], u64::MAX)] {
        let request = run.next_request();
        let serial = CertificateSerial::from_bytes(&serial).unwrap();
        let revocation = Revocation { holder: "agent/gpu-x".into(), until: LogTime(until) };
        handle(
            &mut run.speculation,
            &Command::RevokeCertificate {
                request,
                by: muster_types::Requester::default(),
                serial,
                revocation,
            },
        )
        .unwrap();
    }
    run.end_round(10);
    grant_tokens(run);
    grant_quota(run);
    book(run);
    fall_back(run);
}

/// Jobs with labels, annotations and a creator, and a job that has a creator alone.
fn label(run: &mut Run) {
    let all = JobMetadata {
        labels: [("team".into(), "vision".into()), ("muster.example/stage".into(), String::new())].into(),
        annotations: [("note".into(), "two\nlines".into())].into(),
        creator: "tenant/vision/ada".into(),
    };
    let (all, by) = (Arc::new(all), JobMetadata { creator: "admin/ops".into(), ..JobMetadata::default() });
    let mut draft = job_draft("labelled", vec![group("main", 1, None)]);
    draft.name = name("labelled");
    let labelled = Submission { metadata: Some(all.clone()), ..draft.check().unwrap().into() };
    let array = vec![labelled; 2];
    let single = Submission { metadata: Some(Arc::new(by)), ..job("made", 1, None).into() };
    let request = run.next_request();
    let jobs = array.into_iter().chain([single]).collect();
    handle(&mut run.speculation, &Command::submit(request, jobs)).unwrap();
    run.end_round(10);
}

/// Arrays that are submitted with a job, wait, have members created, held and released, are cancelled in part, fail
/// together, and end.
fn arrays(run: &mut Run) {
    let by = || Requester::named("tenant/vision/ada".into(), false);
    let carried = JobMetadata { creator: "tenant/vision/ada".into(), ..JobMetadata::default() };
    let array = |spec: muster_types::JobSpec, indices: &str| Submission {
        metadata: Some(Arc::new(carried.clone())),
        array: Some(ArraySpec::parse(indices).unwrap()),
        ..Submission::from(spec)
    };
    let submit = |run: &mut Run, jobs: Vec<Submission>| {
        let request = run.next_request();
        match handle(&mut run.speculation, &Command::submit(request, jobs.into())).unwrap() {
            muster_decider::Answer::Submitted { jobs, .. } => jobs,
            other => panic!("{other:?}"),
        }
    };
    let control = |run: &mut Run, control, arrays: Vec<JobId>, jobs: Vec<JobId>| {
        let arrays = arrays.into_iter().map(|first| ArrayId(first.0)).collect();
        let selection = JobSelection { arrays, ..JobSelection::named(jobs) };
        let order =
            ControlOrder { acts_for: None, request: run.next_request(), by: by(), control, selection };
        handle(&mut run.speculation, &Command::Control(Box::new(order))).unwrap();
    };
    let first = submit(run, vec![array(job("sweep", 1, None), "0-6:2,9%2"), job("single", 1, None).into()]);
    run.end_round(10);
    run.schedule();
    run.end_round(10);
    control(run, Control::Hold, vec![], vec![first[4]]);
    control(run, Control::Hold, vec![first[0]], vec![]);
    control(run, Control::Cancel, vec![], vec![first[3]]);
    control(run, Control::Release, vec![first[0]], vec![first[4]]);
    run.end_round(10);
    let request = run.next_request();
    let order =
        ThrottleOrder { request, by: by(), acts_for: None, array: ArrayId(first[0].0), throttle: Some(4) };
    handle(&mut run.speculation, &Command::SetThrottle(Box::new(order))).unwrap();
    run.end_round(10);
    run.report(first[0], RankUpdate::Exited(ExitStatus::Code(0)));
    run.end_round(10);
    let mut draft = job_draft("after", vec![group("main", 1, None)]);
    draft.dependencies =
        vec![Dependency { job: first[0], rule: DependencyRule::Succeeded, scope: DependencyScope::Array }];
    let waits = submit(run, vec![array(draft.clone().check().unwrap(), "1500")]);
    draft.dependencies[0].rule = DependencyRule::Finished;
    draft.dependencies[0].scope = DependencyScope::Member;
    submit(run, vec![array(draft.clone().check().unwrap(), "0-6:2,9")]);
    draft.dependencies[0].scope = DependencyScope::Array;
    submit(run, vec![array(draft.check().unwrap(), "2")]);
    run.end_round(10);
    control(run, Control::Cancel, vec![first[0]], vec![first[1], first[2], first[4]]);
    run.end_round(10);
    run.report(first[1], RankUpdate::Exited(ExitStatus::Signal(15)));
    run.report(first[2], RankUpdate::Exited(ExitStatus::Signal(15)));
    run.report(first[4], RankUpdate::Exited(ExitStatus::Signal(15)));
    run.end_round(10);
    assert!(run.speculation.state().array(ArrayId(waits[0].0)).unwrap().finished_at.is_some());
    let stays = submit(run, vec![array(job("stays", 1, None), "3000%5")]);
    run.end_round(10);
    control(run, Control::Hold, vec![stays[0]], vec![]);
    run.end_round(10);
}

/// Another leader, at which a node's session goes on.
fn resume(run: &mut Run) {
    let state = run.speculation.state().clone();
    let bootstrap = BootstrapConfig { generation: 2, ..BOOTSTRAP };
    run.speculation = Speculation::begin(state, leadership(7, 2), run.speculation.now(), bootstrap);
    run.register(plain_node(), 3);
    run.end_round(10);
}

/// Jobs that are held, released, requeued, suspended, changed and cancelled, some by an operator and some together.
fn control(run: &mut Run) {
    let asked = |run: &mut Run, control, name: &str, jobs: Vec<JobId>| {
        let by = Requester::named(name.to_owned(), name.starts_with("admin/"));
        let (request, selection) = (run.next_request(), JobSelection::named(jobs));
        let order = ControlOrder { acts_for: None, request, by, control, selection };
        handle(&mut run.speculation, &Command::Control(Box::new(order))).unwrap();
    };
    let jobs: Vec<JobId> = (0..4).map(|n| run.submit(job(&format!("asked-{n}"), 1, None))).collect();
    asked(run, Control::Hold, "tenant/vision/ada", vec![jobs[0], jobs[1]]);
    asked(run, Control::Hold, "admin/ops", vec![jobs[1]]);
    asked(run, Control::Release, "tenant/vision/ada", vec![jobs[0]]);
    run.schedule();
    run.report(jobs[2], RankUpdate::Running);
    asked(run, Control::Requeue, "tenant/vision/ada", vec![jobs[0], jobs[2]]);
    asked(run, Control::Suspend, "", vec![jobs[3]]);
    run.end_round(10);
    run.report(jobs[0], RankUpdate::Exited(ExitStatus::NotStarted));
    run.report(jobs[2], RankUpdate::Exited(ExitStatus::Signal(15)));
    run.report(jobs[3], RankUpdate::Exited(ExitStatus::NotStarted));
    let now = run.speculation.now();
    let changes = vec![
        FieldChange::Tier(PriorityTier::Batch),
        FieldChange::RunTimeLimit(Some(3_600_000)),
        FieldChange::Deadline(Some(now.plus_ms(86_400_000))),
        FieldChange::NotBefore(Some(now.plus_ms(60_000))),
        FieldChange::Regions(vec![name("us")]),
        FieldChange::NodeSelector(Default::default()),
        FieldChange::ExpectedRun(None),
        FieldChange::Labels([("team".into(), "vision".into())].into()),
        FieldChange::Annotations([("note".into(), "x".into())].into()),
        FieldChange::Nodes(Some(Box::new(asked_nodes()))),
        FieldChange::Nice(7),
        FieldChange::Front(None),
        FieldChange::Groups(vec![GroupSize { group: None, workers: 1, workers_min: Some(1) }]),
        FieldChange::Tenant(name("research")),
    ];
    for (job, changes) in [(jobs[1], changes), (jobs[2], vec![FieldChange::Tier(PriorityTier::Free)])] {
        let by = Requester::named("tenant/vision/ada".into(), false);
        let order =
            ModifyOrder { acts_for: None, request: run.next_request(), by, job, expected: None, changes };
        handle(&mut run.speculation, &Command::Modify(Box::new(order))).unwrap();
    }
    run.end_round(10);
    asked(run, Control::Cancel, "admin/ops", vec![jobs[0], jobs[2]]);
    run.end_round(10);
}

/// A replica whose data directory is of the next generation goes on from here, and the nodes come back.
fn recover(run: &mut Run) {
    run.end_round(10);
    let state = run.speculation.state().clone();
    let bootstrap = BootstrapConfig { generation: 2, ..BOOTSTRAP };
    run.speculation = Speculation::begin(state, leadership(6, 1), run.speculation.now(), bootstrap);
    run.end_round(13_000);
    handle(&mut run.speculation, &Command::Recover { generation: 2 }).unwrap();
    run.end_round(10);
    run.register(node_spec("gpu-a", "eu", "c1", Some(accelerators("h100", 8))), 1);
    run.register(node_spec("gpu-b", "eu", "c1", Some(accelerators("h100", 4))), 9);
    run.register(plain_node(), 3);
    // Waits of what failed before are over.
    run.end_round(300_000);
    tick(&mut run.speculation);
    run.schedule();
    run.end_round(10);
}

/// A policy, a gang for which others are preempted and that loses the capacity, jobs that wait for others, a checkpoint.
fn make_room(run: &mut Run) {
    let mut policy = PolicyDraft::default();
    policy.preemption.minimum_run_ms = 0;
    policy.order.order = Order::Submission;
    let quota = Quota {
        kind: name("h100"),
        region: None,
        nominal_milli: 32_000,
        borrowing_limit_milli: Some(4_000),
        lending_limit_milli: None,
    };
    let research = TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() };
    policy.tenants.insert(name("research"), research);
    policy.notifications.push(receiver());
    run.set_policy(policy.clone());
    run.register(node_spec("gpu-c", "eu", "c1", Some(accelerators("h100", 8))), 4);
    let mut low = job_draft("low", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    low.tier = PriorityTier::Batch;
    low.checkpoint_directory = Some("/shared/checkpoints".into());
    let low = run.submit(low.check().unwrap());
    run.schedule();
    run.report(low, RankUpdate::Running);
    run.end_round(1_000);
    let token = run.speculation.state().job(low).unwrap().placement.as_ref().unwrap().token;
    handle(&mut run.speculation, &Command::CommitCheckpoint { job: low, token, step: None }).unwrap();
    let mut high = job_draft("high", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    high.tier = PriorityTier::Critical;
    let high = run.submit(high.check().unwrap());
    run.schedule();
    let (node, incarnation) = {
        let state = run.speculation.state();
        let slot = state.job(high).unwrap().promise.as_ref().expect("capacity was promised").slots[0];
        (slot.node, slot.incarnation)
    };
    handle(&mut run.speculation, &Command::SessionOver { node, incarnation }).unwrap();
    run.end_round(1_000);
    run.register(node_spec("gpu-c", "eu", "c1", Some(accelerators("h100", 8))), 4);

    let first = run.submit(job("first", 1, None));
    let mut second = job_draft("second", vec![group("main", 1, None)]);
    second.dependencies = vec![Dependency::new(first, DependencyRule::Finished)];
    let second = run.submit(second.check().unwrap());
    run.cancel(first);
    run.schedule();
    run.cancel(second);
    // Another order: what waits gets other turns.
    policy.order.order = Order::Predicted;
    run.set_policy(policy);
    run.schedule();
    for job in [low, high] {
        run.cancel(job);
        run.report(job, RankUpdate::Exited(ExitStatus::Signal(15)));
    }
    run.end_round(10);
}

/// A gang with everything that can be asked for, whose node fails, and that ends for want of retries.
fn attempts(run: &mut Run) {
    for (number, text) in ["spare-a", "spare-b", "spare-c"].into_iter().enumerate() {
        let spec = node_spec(text, "eu", "c9", Some(accelerators("b200", 8)));
        run.register(spec, 20 + number as u128);
    }
    let mut draft = job_draft("spared", vec![group("main", 2, Some(accelerators("b200", 8)))]);
    draft.checkpoint_directory = Some("/shared/checkpoints".into());
    draft.affinity = vec![muster_types::Affinity {
        target: muster_types::AffinityTarget::Labels("team=vision".into()),
        level: muster_types::AffinityLevel::Rack,
        rule: muster_types::AffinityRule::Apart,
        weight: Some(20),
    }];
    let contract = JobContract {
        launch: LaunchForm::Torchrun,
        retry: RetryRules {
            limits: [(FailureClass::OutOfMemory, 0), (FailureClass::Lost, 7)].into(),
            backoff_ms: Some(100),
            backoff_max_ms: Some(60_000),
            avoid_ms: Some(600_000),
        },
        checkpoint: CheckpointRules {
            place: None,
            step_ms: Some(2_000),
            save_ms: Some(30_000),
            interval_ms: Some(900_000),
        },
        notice: NoticeRules { http_port: Some(8_080), http_path: "/stop".into() },
        spares: 1,
        preflight: Preflight::On,
        workdir: Some(muster_types::BlobDigest::new([7; 32])),
        artifacts: Some(muster_types::ArtifactRules { paths: vec!["out/*.csv".into()], required: false }),
        ulimits: muster_types::Ulimits { open_files: Some(4_096), core_bytes: Some(0), ..Default::default() },
        host: muster_types::HostRules {
            binding: muster_types::CpuBinding::Cores,
            shell: muster_types::CommandShell::Login,
            shared_memory_bytes: 1 << 30,
        },
        trace_parent: muster_types::TraceParent::new([1; 16], [2; 8], 1),
        terminal: true,
        notify: vec![muster_types::JobNotification {
            receiver: name("ops"),
            events: BTreeSet::from([NotificationEvent::JobFailed]),
        }],
    };
    let request = run.next_request();
    let jobs = [Submission::new(draft.check().unwrap(), contract)].into();
    let job = match handle(&mut run.speculation, &Command::submit(request, jobs)).unwrap() {
        muster_decider::Answer::Submitted { jobs, .. } => jobs[0],
        other => panic!("{other:?}"),
    };
    run.schedule();
    run.report(job, RankUpdate::Running);
    run.end_round(1_000);
    let placement = run.speculation.state().job(job).unwrap().placement.clone().unwrap();
    let token = placement.token;
    let slow = Command::NoteStraggler { job, token, rank: 1, slow_milli: Some(1_700) };
    handle(&mut run.speculation, &slow).unwrap();
    handle(&mut run.speculation, &Command::CommitCheckpoint { job, token, step: None }).unwrap();
    let by = Requester::named("tenant/research/ada".into(), false);
    let open = Command::OpenExec { by, job, token, rank: 1, command: "nvidia-smi -q".into() };
    handle(&mut run.speculation, &open).unwrap();
    let by = Requester::named("tenant/research/ada".into(), false);
    let open = Command::OpenPortForward { by, job, token, rank: 0, port: 6_006 };
    handle(&mut run.speculation, &open).unwrap();
    let artifacts = muster_types::Artifacts {
        digest: Some(muster_types::BlobDigest::new([9; 32])),
        files: 2,
        bytes: 4_096,
        left_out: 1,
        fault: Some((muster_types::ArtifactFault::TooLarge, 0)),
    };
    handle(&mut run.speculation, &Command::KeepArtifacts { job, token, rank: 1, artifacts }).unwrap();
    run.end_round(1_000);
    let slot = placement.slots[1];
    let fault = RankUpdate::Exited(ExitStatus::NodeFault("XID 79: fallen off the bus".into()));
    let report = Command::Report {
        node: slot.node,
        incarnation: slot.incarnation,
        job,
        token,
        updates: vec![(1, fault)],
    };
    handle(&mut run.speculation, &report).unwrap();
    run.end_round(10);
    run.report(job, RankUpdate::Exited(ExitStatus::BackendLost("no trace of it".into())));
    run.end_round(1_000);
    run.report(job, RankUpdate::Exited(ExitStatus::OutOfMemory));
    run.end_round(1_000);
    // One that has spares, waits for another attempt and keeps away from a node is left in the snapshot.
    let again = run.submit(job_retries("again", 1, 5));
    run.schedule();
    run.report(again, RankUpdate::Exited(ExitStatus::LaunchFailed("no such file".into())));
    run.end_round(10);
}

/// A node that reports a fault, is drained and let back, is kept away from work, and is to be repaired.
fn restrict(run: &mut Run) {
    let node = run.speculation.state().node_named(&name("spare-c")).unwrap();
    let incarnation = run.speculation.state().node(node).unwrap().incarnation;
    let request = run.next_request();
    let policy = Box::default();
    handle(
        &mut run.speculation,
        &Command::SetHealthPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        },
    )
    .unwrap();
    let report = HealthReport {
        boot: 1,
        events: vec![Observation::of(Finding::Xid(79), Some(0))],
        ..HealthReport::default()
    };
    handle(&mut run.speculation, &Command::ReportHealth { node, incarnation, report: Box::new(report) })
        .unwrap();
    run.end_round(10);
    let other = run.speculation.state().node_named(&name("spare-b")).unwrap();
    for order in [DrainOrder::Begin { deadline_ms: Some(60_000) }, DrainOrder::End] {
        let request = run.next_request();
        handle(
            &mut run.speculation,
            &Command::SetDrain {
                request,
                by: muster_types::Requester::default(),
                node: other,
                order,
                reason: None,
            },
        )
        .unwrap();
    }
    let request = run.next_request();
    let reason = Some("fails more often than its peers".to_owned());
    handle(
        &mut run.speculation,
        &Command::SetQuarantine { request, by: muster_types::Requester::default(), node, reason },
    )
    .unwrap();
    let request = run.next_request();
    let order = RepairOrder::Begin { action: None, devices: DeviceSet::EMPTY, deadline_ms: Some(1_000) };
    handle(
        &mut run.speculation,
        &Command::SetRepair { request, by: muster_types::Requester::default(), node, order },
    )
    .unwrap();
    run.end_round(10);
}

/// Operators set labels and taints of a node and take some back; what is left stays when its agent registers again.
fn override_labels(run: &mut Run) {
    let spec = node_spec("labelled", "eu", "c8", None);
    run.register(spec.clone(), 50);
    let node = run.speculation.state().node_named(&name("labelled")).unwrap();
    let by = Requester::named("admin/ada".into(), true);
    let set = NodeOverridesChange {
        set_labels: [(name("pool"), "research".to_owned()), (name("stage"), "new".to_owned())].into(),
        set_taints: [name("bring-up")].into(),
        ..NodeOverridesChange::default()
    };
    let removed =
        NodeOverridesChange { remove_labels: [name("stage")].into(), ..NodeOverridesChange::default() };
    for change in [set, removed] {
        let request = run.next_request();
        let order = OverridesOrder { request, by: by.clone(), node, change };
        handle(&mut run.speculation, &Command::SetNodeOverrides(Box::new(order))).unwrap();
    }
    run.end_round(10);
    handle(&mut run.speculation, &Command::SessionOver { node, incarnation: 1 }).unwrap();
    run.register(spec, 50);
    let row = run.speculation.state().node(node).unwrap();
    assert_eq!((row.spec.labels.len(), row.spec.taints.len()), (1, 1), "they stay");
    run.end_round(10);
}

/// A check before a start finds a node at fault, then another one, which a probe finds sound again.
fn slow_network(run: &mut Run) {
    for (text, holder) in [("slow-a", 40), ("slow-b", 41), ("slow-c", 42), ("slow-d", 43)] {
        run.register(node_spec(text, "eu", "slow", Some(accelerators("a100", 8))), holder);
    }
    for (is_blamed, is_sound) in [(true, false), (false, true)] {
        let mut nodes = Vec::new();
        for check in 0..if is_blamed { 2 } else { 1 } {
            let job = run.submit(job("checked", 1, Some(accelerators("a100", 8))));
            run.schedule();
            let placed = run.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap();
            nodes.push(placed.slots[0].node);
            run.report(job, RankUpdate::Exited(ExitStatus::PreflightFailed("slow link from a to b".into())));
            let health = run.speculation.state().restriction(nodes[0]).map(|row| &row.health);
            assert_eq!(health.is_some_and(|health| health.out_of_service), check == 1, "by the second check");
            run.cancel(job);
            run.end_round(60_000);
        }
        assert!(nodes.iter().all(|node| *node == nodes[0]), "the same node is chosen again: {nodes:?}");
        if is_sound {
            handle(&mut run.speculation, &Command::NoteSoundNetwork { nodes }).unwrap();
            run.end_round(10);
        }
    }
}

fn full_spec() -> muster_types::JobSpec {
    let mut draft = job_draft("stays", vec![group("main", 2, Some(accelerators("h100", 3)))]);
    draft.groups.push(group("data", 1, None));
    draft.groups[0].environment.insert("SEED".into(), "1".into());
    draft.groups[0].command.push("--größe".into());
    draft.tier = PriorityTier::Production;
    draft.regions = vec![name("eu"), name("us")];
    draft.run_time_limit_ms = Some(3_600_000_000);
    draft.checkpoint_directory = Some("/shared/checkpoints".into());
    draft.working_directory = Some("/work".into());
    draft.check().unwrap()
}

fn job_retries(text: &str, workers: u32, retries: u32) -> muster_types::JobSpec {
    let mut draft = job_draft(text, vec![group("main", workers, Some(accelerators("h100", 1)))]);
    draft.failure_retries_max = retries;
    draft.check().unwrap()
}

fn limited(text: &str) -> muster_types::JobSpec {
    let mut draft = job_draft(text, vec![group("main", 1, None)]);
    draft.run_time_limit_ms = Some(60_000);
    draft.check().unwrap()
}

struct Run {
    speculation: Speculation,
    rounds: Vec<Round>,
    requests: u128,
}

impl Run {
    fn end_round(&mut self, ahead_ms: u64) {
        self.rounds.extend(self.speculation.take_round());
        let now = self.speculation.now().plus_ms(ahead_ms);
        self.speculation.set_now(now);
    }

    fn next_request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    fn register(&mut self, spec: muster_types::NodeSpec, who: u128) {
        let command = Command::Register { spec, holder: holder(who), other_session_is_over: false };
        handle(&mut self.speculation, &command).unwrap();
    }

    fn submit(&mut self, spec: muster_types::JobSpec) -> JobId {
        let request = self.next_request();
        match handle(&mut self.speculation, &Command::submit(request, Submission::plain([spec]))).unwrap() {
            muster_decider::Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    fn set_policy(&mut self, policy: PolicyDraft) {
        let request = self.next_request();
        let policy = Box::new(with_all_rights(policy).check().expect("a policy"));
        let command = Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        };
        handle(&mut self.speculation, &command).unwrap();
    }

    fn cancel(&mut self, job: JobId) {
        let request = self.next_request();
        handle(&mut self.speculation, &Command::cancel(request, job)).unwrap();
    }

    fn cordon(&mut self, node: NodeId, cordoned: bool) {
        let request = self.next_request();
        handle(
            &mut self.speculation,
            &Command::SetCordon {
                request,
                by: muster_types::Requester::default(),
                node,
                cordoned,
                reason: None,
            },
        )
        .unwrap();
    }

    fn schedule(&mut self) {
        schedule(&mut self.speculation, &mut Budget::new(100_000));
    }

    /// Every node of the gang says the same of every rank it has; nothing when the job waits, or is not created.
    fn report(&mut self, job: JobId, update: RankUpdate) {
        let Some(row) = self.speculation.state().job(job).cloned() else { return };
        let Some(placement) = row.placement else { return };
        let nodes: BTreeSet<NodeId> = placement.slots.iter().map(|slot| slot.node).collect();
        for node in nodes {
            let own = placement.slots.iter().enumerate().filter(|(_, slot)| slot.node == node);
            let updates = own.map(|(rank, _)| (rank as u32, update.clone())).collect();
            let incarnation = self.speculation.state().node(node).expect("a node").incarnation;
            let token = placement.token;
            // One that is fenced by now is refused: that is its answer.
            let _ =
                handle(&mut self.speculation, &Command::Report { node, incarnation, job, token, updates });
        }
    }
}

/// A host without accelerators, with labels that jobs ask for.
fn plain_node() -> NodeSpec {
    let mut draft = node_draft("plain", "us", "c2", None);
    for (label, value) in [("zone", "a"), ("fast", ""), ("gib", "1024"), ("age", "-7")] {
        draft.labels.insert(name(label), value.to_owned());
    }
    draft.check().expect("a node")
}

/// One of each test of a label, all of which [`plain_node`] passes, and names.
fn asked_nodes() -> NodeRequirements {
    let test = |label: &str, test| NodeExpression { label: name(label), test };
    let expressions = vec![
        test("zone", LabelTest::In(["a".to_owned(), "b".to_owned()].into())),
        test("zone", LabelTest::NotIn(["c".to_owned()].into())),
        test("fast", LabelTest::Exists),
        test("slow", LabelTest::DoesNotExist),
        test("gib", LabelTest::Greater(512)),
        test("age", LabelTest::Less(-3)),
    ];
    let (only, exclude) = ([name("plain")].into(), [name("gpu-a"), name("gpu-b")].into());
    NodeRequirements { expressions, only, exclude }
}
