//! One refusal of the guard after another, by hand: a refused record is counted, takes its index,
//! and changes nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_decider::{Command, Speculation, handle, schedule};
use muster_journal::{
    Decision, Estimate, NodeLostCause, Outcome, RankUpdate, RequestKey, Round, StopCause, SubmittedPart,
    TEST_FORMAT_REASON, WorkerSlot,
};
use muster_planner::Budget;
use muster_state::fit::GangFault;
use muster_state::{Effect, GuardError, State};
use muster_types::health::{
    Condition, Drain, DrainCause, Finding, HealthAction, HealthPolicy, NodeHealth, Observation, RepairStep,
};
use muster_types::job::ArrayMember;
use muster_types::policy::{Guarantee, NotificationProgress, PolicyDraft};
use muster_types::{
    ArrayId, ArraySpec, ClusterId, Control, DeviceSet, ExitStatus, FencingToken, FieldChange, JobId,
    JobMetadata, LogIndex, LogTime, NodeId, NodeOverrides, Parameters, PriorityTier, Requester, limits,
};

use crate::support::{
    BOOTSTRAP, accelerators, commit, founded, founded_as, group, holder, job, job_draft, leadership, name,
    node_draft, node_spec, request, rows, submitted,
};

struct Scene {
    speculation: Speculation,
    state: State,
    pending: JobId,
    starting: JobId,
    token: FencingToken,
    finished: JobId,
}

/// Two nodes of eight devices in one cluster, one in another region; a job of each kind.
fn scene() -> Scene {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    let places = [("n0", "eu", "c1"), ("n1", "eu", "c1"), ("n2", "us", "c1")];
    for (node, region, cluster) in places {
        let spec = node_spec(node, region, cluster, Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    let submit = |speculation: &mut Speculation, n: u128, spec| {
        let command = Command::submit(request(n), muster_types::Submission::plain([spec]));
        match handle(speculation, &command).unwrap() {
            muster_decider::Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    };
    let finished = submit(&mut speculation, 1, job("done", 1, None));
    handle(&mut speculation, &Command::cancel(request(2), finished)).unwrap();
    let mut draft = job_draft("starting", vec![group("main", 2, Some(accelerators("h100", 2)))]);
    draft.regions = vec![name("eu")];
    let starting = submit(&mut speculation, 3, draft.check().unwrap());
    schedule(&mut speculation, &mut Budget::new(1_000));
    let mut draft = job_draft("pending", vec![group("main", 2, Some(accelerators("h100", 4)))]);
    draft.regions = vec![name("eu")];
    let pending = submit(&mut speculation, 4, draft.check().unwrap());
    commit(&mut speculation, &mut state);
    let token = state.job(starting).unwrap().placement.as_ref().unwrap().token;
    Scene { speculation, state, pending, starting, token, finished }
}

fn key(n: u128) -> RequestKey {
    RequestKey { id: request(n), fingerprint: 1 }
}

/// Somebody sets labels with these keys on a node.
fn overridden(n: u128, node: u32, by: &str, keys: &[&str]) -> Decision {
    let labels = keys.iter().map(|key| (name(key), "x".to_owned())).collect();
    let overrides = Box::new(NodeOverrides { labels, ..NodeOverrides::default() });
    let by = Requester::named(by.to_owned(), true);
    Decision::NodeOverridesSet { request: key(n), by, node: NodeId(node), overrides }
}

/// Somebody cordons a node, or puts it back, for this reason.
fn cordoned_for(cordoned: bool, reason: &str) -> Decision {
    let (by, reason) = (Requester::default(), Some(reason.to_owned()));
    Decision::NodeCordonSet { request: key(99), by, node: NodeId(0), cordoned, reason }
}

fn slot(node: u32, devices: u64) -> WorkerSlot {
    WorkerSlot { node: NodeId(node), incarnation: 1, devices: DeviceSet(devices) }
}

/// Every refusal that does not concern the header, with the record that earns it.
fn refusals(scene: &Scene) -> Vec<(GuardError, Decision)> {
    use GuardError as E;
    let (pending, starting, finished, token) = (scene.pending, scene.starting, scene.finished, scene.token);
    let unknown = JobId(1);
    let place = |workers: Vec<WorkerSlot>| Decision::GangPlaced { job: pending, workers };
    let wrong_token = FencingToken { log_index: LogIndex(1), ..token };
    let on = scene.state.job(starting).unwrap().placement.as_ref().unwrap().slots[0];
    let report = |token, updates| Decision::WorkersReported {
        node: on.node,
        incarnation: 1,
        job: starting,
        token,
        updates,
    };
    let stop = |cause| Decision::GangStopRequested { job: starting, token, cause };
    let by = Requester::default;
    let held = |n, jobs, held| Decision::JobHoldSet { request: key(n), by: by(), jobs, held };
    let requeued =
        |n, jobs| Decision::JobRequeueRequested { request: key(n), by: by(), jobs, suspended: false };
    let modified = |n, job, changes| {
        let estimate = muster_journal::Estimate::default();
        Decision::JobModified { request: key(n), by: by(), job, changes, estimate }
    };
    let host = |node: &str| node_draft(node, "eu", "c1", Some(accelerators("h100", 8)));
    let mut smaller = host("n0");
    smaller.cpu_milli = 32_000;
    let mut busy = host(&scene.state.node(on.node).unwrap().spec.name);
    busy.cpu_milli = 32_000;
    let spec = job("more", 1, None);
    let long = "x".repeat(limits::DETAIL_BYTES_MAX + 1);
    let running = |rank| (rank, RankUpdate::Running);
    let member = spec.as_member(ArrayMember { index: 0, ordinal: 0, size: 2 });
    let part = |array: Option<ArraySpec>, group: Option<JobId>| SubmittedPart {
        spec: spec.clone().into(),
        contract: None,
        metadata: None,
        array,
        estimate: Estimate { burst: group, ..Estimate::default() },
    };
    let arrays = |n, parts| Decision::ArraysSubmitted {
        request: key(n),
        by: muster_types::Requester::default(),
        parts,
    };
    let told = |receivers: &[(&str, u64)]| {
        let one = |(receiver, delivered): &(&str, u64)| {
            (name(receiver), NotificationProgress::behind(LogIndex(*delivered)))
        };
        Decision::NotificationsDelivered { progress: receivers.iter().map(one).collect() }
    };
    let sized = |size| Some(ArraySpec::of_size(size));
    let asked = |control, arrays| Decision::ArraysControlled {
        request: key(99),
        by: by(),
        control,
        arrays,
        jobs: vec![],
    };
    let throttled =
        |n, array, throttle| Decision::ArrayThrottleSet { request: key(n), by: by(), array, throttle };
    let opened = |job, token, rank, command: &str| Decision::ExecOpened {
        by: by(),
        job,
        token,
        rank,
        command: command.to_owned(),
    };
    let artifacts = muster_types::Artifacts::default();
    let kept = |job, token, rank| Decision::ArtifactsKept { job, token, rank, artifacts };
    let forwarded = |job, token, rank, port| Decision::PortForwardOpened { by: by(), job, token, rank, port };
    let long_command = "x".repeat(limits::EXEC_TEXT_BYTES_MAX + 1);
    let unknown_array = ArrayId(1);
    let of_arrays = vec![
        (E::Limit, submitted(key(99), vec![member])),
        (E::RequestRepeated, arrays(1, vec![part(sized(2), None)])),
        (E::NothingToDo, arrays(99, vec![part(None, None)])),
        (E::Limit, arrays(99, vec![])),
        (E::Limit, arrays(99, vec![part(sized(0), None)])),
        (E::Limit, arrays(99, vec![part(sized(60_000), None); 2])),
        (
            E::Limit,
            arrays(99, vec![part(Some(ArraySpec { throttle: Some(0), ..ArraySpec::of_size(2) }), None)]),
        ),
        (E::BurstNotCurrent, arrays(99, vec![part(sized(2), Some(JobId(u64::MAX)))])),
        (E::BurstNotCurrent, arrays(99, vec![part(sized(2), Some(finished))])),
        (E::JobUnknown, Decision::ArrayMembersCreated { array: unknown_array, first: None, count: 1 }),
        (E::JobUnknown, Decision::ArrayReleased { array: unknown_array }),
        (E::JobUnknown, Decision::ArrayMembersFailed { array: unknown_array, detail: String::new() }),
        (E::JobUnknown, throttled(99, unknown_array, None)),
        (E::RequestRepeated, throttled(1, unknown_array, Some(1))),
        (E::JobUnknown, asked(Control::Cancel, vec![unknown_array])),
        (E::JobPhase, asked(Control::Requeue, vec![unknown_array])),
        (E::Limit, asked(Control::Cancel, vec![])),
        (E::Limit, asked(Control::Hold, vec![ArrayId(2), ArrayId(1)])),
    ];
    let others = vec![
        (
            E::ClusterExistence,
            Decision::ClusterCreated {
                cluster: ClusterId(2),
                generation: 1,
                parameters: Parameters::DEFAULT,
            },
        ),
        (E::RequestRepeated, submitted(key(1), vec![spec.clone()])),
        (E::Limit, submitted(key(99), vec![])),
        (E::Limit, submitted(key(99), vec![spec.clone(); limits::BATCH_JOBS_MAX + 1])),
        (
            E::Limit,
            Decision::JobsSubmitted {
                request: key(99),
                by: muster_types::Requester::default(),
                specs: vec![spec.clone().into()],
                estimates: vec![],
            },
        ),
        (
            E::RequestRepeated,
            Decision::JobCancelRequested { request: key(1), by: Requester::default(), jobs: vec![pending] },
        ),
        (
            E::JobUnknown,
            Decision::JobCancelRequested { request: key(99), by: Requester::default(), jobs: vec![unknown] },
        ),
        (
            E::JobPhase,
            Decision::JobCancelRequested { request: key(99), by: Requester::default(), jobs: vec![finished] },
        ),
        (E::RequestRepeated, held(1, vec![pending], true)),
        (E::JobUnknown, held(99, vec![unknown], true)),
        (E::JobPhase, held(99, vec![starting], true)),
        (E::JobPhase, held(99, vec![finished], true)),
        (E::NothingToDo, held(99, vec![pending], false)),
        (E::Limit, held(99, vec![pending, starting], true)),
        (E::Limit, held(99, vec![pending, pending], true)),
        (E::Limit, held(99, vec![pending; limits::CONTROLLED_JOBS_MAX + 1], true)),
        (
            E::Limit,
            Decision::JobHoldSet {
                request: key(99),
                by: Requester::named("é".to_owned(), false),
                jobs: vec![pending],
                held: true,
            },
        ),
        (E::RequestRepeated, requeued(1, vec![starting])),
        (E::JobUnknown, requeued(99, vec![unknown])),
        (E::JobPhase, requeued(99, vec![pending])),
        (E::JobPhase, requeued(99, vec![finished])),
        (E::RequestRepeated, modified(1, pending, vec![FieldChange::RunTimeLimit(None)])),
        (E::JobUnknown, modified(99, unknown, vec![FieldChange::RunTimeLimit(None)])),
        (E::JobPhase, modified(99, finished, vec![FieldChange::RunTimeLimit(None)])),
        (E::JobPhase, modified(99, starting, vec![FieldChange::Tier(PriorityTier::Free)])),
        (E::NothingToDo, modified(99, pending, vec![])),
        (E::Limit, modified(99, pending, vec![FieldChange::RunTimeLimit(Some(0))])),
        (E::Limit, modified(99, pending, vec![FieldChange::Nice(101)])),
        (E::Limit, modified(99, pending, vec![FieldChange::Front(None)])),
        (E::Limit, modified(99, pending, vec![FieldChange::Front(Some(LogIndex(1)))])),
        (E::Limit, modified(99, pending, vec![FieldChange::Groups(Vec::new())])),
        (E::Limit, modified(99, pending, vec![FieldChange::Size(Some(u32::MAX))])),
        (E::JobPhase, modified(99, starting, vec![FieldChange::Nice(1)])),
        (E::JobPhase, modified(99, starting, vec![FieldChange::Tenant(name("other"))])),
        (E::Limit, modified(99, pending, vec![FieldChange::Deadline(None), FieldChange::Deadline(None)])),
        (
            E::Limit,
            modified(99, pending, vec![FieldChange::Labels([("-".to_owned(), String::new())].into())]),
        ),
        (E::JobPhase, stop(StopCause::Requested { suspended: false })),
        (
            E::NodeNotCurrent,
            Decision::NodeRegistered { spec: host("n0").check().unwrap(), holder: holder(2) },
        ),
        (E::NothingToDo, Decision::NodeRegistered { spec: host("n0").check().unwrap(), holder: holder(1) }),
        (E::NodeNotCurrent, Decision::NodeRegistered { spec: busy.check().unwrap(), holder: holder(1) }),
        (
            E::RequestRepeated,
            Decision::NodeCordonSet {
                request: key(1),
                by: muster_types::Requester::default(),
                node: NodeId(0),
                cordoned: true,
                reason: None,
            },
        ),
        (
            E::NodeUnknown,
            Decision::NodeCordonSet {
                request: key(99),
                by: muster_types::Requester::default(),
                node: NodeId(9),
                cordoned: true,
                reason: None,
            },
        ),
        (E::Limit, {
            let name = "x".repeat(limits::CREATOR_BYTES_MAX + 1);
            let by = Requester::named(name, true);
            Decision::NodeCordonSet { request: key(99), by, node: NodeId(0), cordoned: true, reason: None }
        }),
        (E::Limit, cordoned_for(true, "a\nb")),
        (E::Limit, cordoned_for(true, "")),
        (E::Limit, cordoned_for(true, &"x".repeat(limits::DETAIL_BYTES_MAX + 1))),
        (E::Limit, cordoned_for(false, "it is put back")),
        (E::Limit, {
            let by = Requester::named("admin/o ps".to_owned(), true);
            Decision::NodeForgotten { request: None, by, node: NodeId(2) }
        }),
        (E::RequestRepeated, overridden(1, 0, "", &["pool"])),
        (E::NodeUnknown, overridden(99, 9, "", &["pool"])),
        (E::Limit, overridden(99, 0, "", &["isolation.user"])),
        (E::Limit, overridden(99, 0, &"x".repeat(limits::CREATOR_BYTES_MAX + 1), &["pool"])),
        (E::Limit, {
            let keys: Vec<String> = (0..=limits::NODE_OVERRIDE_LABELS_MAX).map(|n| format!("k{n}")).collect();
            overridden(99, 0, "", &keys.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        (
            E::NodeUnknown,
            Decision::NodeLost { node: NodeId(9), incarnation: 1, cause: NodeLostCause::LeaseExpired },
        ),
        (
            E::NodeNotCurrent,
            Decision::NodeLost { node: NodeId(0), incarnation: 2, cause: NodeLostCause::LeaseExpired },
        ),
        (E::JobUnknown, opened(unknown, token, 0, "env")),
        (E::JobPhase, opened(pending, token, 0, "env")),
        (E::TokenNotCurrent, opened(starting, wrong_token, 0, "env")),
        (E::RankNotCurrent, opened(starting, token, 0, "env")),
        (E::RankNotCurrent, opened(starting, token, 9, "env")),
        (E::Limit, opened(starting, token, 0, &long_command)),
        (E::JobUnknown, forwarded(unknown, token, 0, 6_006)),
        (E::JobPhase, forwarded(pending, token, 0, 6_006)),
        (E::TokenNotCurrent, forwarded(starting, wrong_token, 0, 6_006)),
        (E::RankNotCurrent, forwarded(starting, token, 9, 6_006)),
        (E::Limit, forwarded(starting, token, 0, 0)),
        (E::JobUnknown, kept(unknown, token, 0)),
        (E::JobPhase, kept(pending, token, 0)),
        (E::TokenNotCurrent, kept(starting, wrong_token, 0)),
        (E::RankNotCurrent, kept(starting, token, 9)),
        (E::NothingToDo, kept(starting, token, 0)),
        (E::TokenNotCurrent, report(wrong_token, vec![running(0)])),
        (E::Limit, report(token, vec![])),
        (E::RankNotCurrent, report(token, vec![running(2)])),
        (E::RankNotCurrent, report(token, vec![running(0), running(0)])),
        (E::RankNotCurrent, report(token, vec![running(1), running(0)])),
        (E::Limit, report(token, vec![(0, RankUpdate::Exited(ExitStatus::LaunchFailed(long)))])),
        (
            E::NodeUnknown,
            Decision::WorkersReported {
                node: NodeId(9),
                incarnation: 1,
                job: starting,
                token,
                updates: vec![running(0)],
            },
        ),
        (
            E::NodeNotCurrent,
            Decision::WorkersReported {
                node: on.node,
                incarnation: 2,
                job: starting,
                token,
                updates: vec![running(0)],
            },
        ),
        (
            E::RankNotCurrent,
            Decision::WorkersReported {
                node: NodeId(2),
                incarnation: 1,
                job: starting,
                token,
                updates: vec![running(0)],
            },
        ),
        (
            E::JobPhase,
            Decision::WorkersReported {
                node: NodeId(0),
                incarnation: 1,
                job: pending,
                token,
                updates: vec![running(0)],
            },
        ),
        (E::JobUnknown, Decision::GangPlaced { job: unknown, workers: vec![slot(2, 1)] }),
        (E::JobPhase, Decision::GangPlaced { job: starting, workers: vec![slot(2, 3), slot(2, 12)] }),
        (E::JobPhase, Decision::GangPlaced { job: finished, workers: vec![slot(2, 0)] }),
        (E::Limit, place(vec![])),
        (E::Limit, place(vec![slot(1, 0xf0)])),
        (E::NodeUnknown, place(vec![slot(9, 0xf0), slot(9, 0xf)])),
        (
            E::NodeNotCurrent,
            place(vec![
                WorkerSlot { incarnation: 2, ..slot(1, 0xf0) },
                WorkerSlot { incarnation: 2, ..slot(1, 0xf) },
            ]),
        ),
        (E::NotTheGang(GangFault::Node), place(vec![slot(2, 0xf), slot(2, 0xf0)])),
        // One device twice, too few, too many, and ones the host does not have.
        (E::DoesNotFit, place(vec![slot(1, 0xf0), slot(1, 0xf0)])),
        (E::DoesNotFit, place(vec![slot(1, 0xf0), slot(1, 0x7)])),
        (E::DoesNotFit, place(vec![slot(1, 0xf0), slot(1, 0x1f)])),
        (E::DoesNotFit, place(vec![slot(1, 0xf0), slot(1, 0xf00)])),
        // Devices the starting gang holds.
        (
            E::DoesNotFit,
            Decision::GangPlaced {
                job: pending,
                workers: vec![slot(1, 0xf0), WorkerSlot { devices: DeviceSet(0xf), ..on }],
            },
        ),
        (
            E::TokenNotCurrent,
            Decision::GangStopRequested { job: starting, token: wrong_token, cause: StopCause::RunTimeLimit },
        ),
        (E::JobPhase, Decision::GangStopRequested { job: pending, token, cause: StopCause::RunTimeLimit }),
        (E::JobPhase, stop(StopCause::Cancelled)),
        (E::JobPhase, stop(StopCause::RunTimeLimit)),
        (E::RankNotCurrent, stop(StopCause::WorkerFailed { rank: 0, exit: ExitStatus::Code(1) })),
        (E::RankNotCurrent, stop(StopCause::WorkerFailed { rank: 7, exit: ExitStatus::Code(1) })),
        (E::RankNotCurrent, stop(StopCause::Evicted { node: NodeId(2) })),
        (E::JobPhase, Decision::JobRequeued { job: starting, failed: false }),
        (E::JobPhase, Decision::JobRequeued { job: pending, failed: false }),
        (E::JobUnknown, Decision::JobFinished { job: unknown, outcome: Outcome::Cancelled }),
        (E::JobPhase, Decision::JobFinished { job: finished, outcome: Outcome::Cancelled }),
        (E::JobPhase, Decision::JobFinished { job: pending, outcome: Outcome::Cancelled }),
        (E::JobPhase, Decision::JobFinished { job: pending, outcome: Outcome::Succeeded }),
        (
            E::Limit,
            Decision::JobFinished {
                job: pending,
                outcome: Outcome::Failed { detail: "x".repeat(limits::OUTCOME_BYTES_MAX + 1) },
            },
        ),
        (E::WorkersRemain, Decision::JobFinished { job: starting, outcome: Outcome::Succeeded }),
        (
            E::NodeNotCurrent,
            Decision::NodeForgotten {
                request: None,
                by: muster_types::Requester::default(),
                node: NodeId(2),
            },
        ),
        (
            E::NodeNotCurrent,
            Decision::NodeForgotten {
                request: Some(key(9)),
                by: muster_types::Requester::default(),
                node: NodeId(2),
            },
        ),
        (E::Format, needs_format_2()),
        (E::Format, Decision::FormatRaised { by: muster_types::Requester::default(), format: 1 }),
        (E::Format, Decision::FormatRaised { by: muster_types::Requester::default(), format: 0 }),
        (E::NothingToDo, Decision::ClusterRecovered { generation: 1 }),
        // No policy names a receiver here.
        (E::NothingToDo, told(&[("ops", 1)])),
        (E::Limit, told(&[])),
        (E::Limit, told(&[("ops", 1), ("ops", 1)])),
        (E::Limit, told(&[("vision", 1), ("ops", 1)])),
        (E::Limit, told(&[("ops", u64::MAX)])),
    ];
    of_arrays.into_iter().chain(others).collect()
}

/// What the format in force does not support.
fn needs_format_2() -> Decision {
    let reason = Some(TEST_FORMAT_REASON.to_owned());
    Decision::NodeQuarantineSet {
        request: None,
        by: muster_types::Requester::default(),
        node: NodeId(0),
        reason,
    }
}

fn round(scene: &Scene, decisions: Vec<Decision>) -> Round {
    let leadership = scene.speculation.leadership();
    Round {
        format: scene.state.format(),
        term: leadership.term,
        replica: leadership.replica,
        first_index: scene.state.log_index().next(),
        basis_index: scene.state.log_index(),
        log_time: scene.state.log_time(),
        decisions,
    }
}

#[test]
fn refused_records_change_nothing() {
    let scene = scene();
    for (expected, decision) in refusals(&scene) {
        let mut state = scene.state.clone();
        let applied = state.apply_round(&round(&scene, vec![decision.clone()])).remove(0);
        assert_eq!(applied.rejection, Some(expected), "{decision:?}");
        assert_eq!(applied.log_index, Some(scene.state.log_index().next()));
        assert!(applied.effects.is_empty());
        assert_eq!(state.rejected(), 1);
        assert_eq!(state.stale(), scene.state.stale());
        assert_eq!(state.log_index(), scene.state.log_index().next());
        assert_eq!(rows(&state), rows(&scene.state), "{decision:?}");
        state.verify().unwrap();
    }
}

#[test]
fn a_refused_record_does_not_stop_its_round() {
    let scene = scene();
    let good = |n| submitted(key(n), vec![job("more", 1, None)]);
    let bad = Decision::NodeCordonSet {
        request: key(1),
        by: muster_types::Requester::default(),
        node: NodeId(0),
        cordoned: true,
        reason: None,
    };
    let mut state = scene.state.clone();
    let applied = state.apply_round(&round(&scene, vec![good(50), bad, good(51)]));
    let refused: Vec<bool> = applied.iter().map(|a| a.rejection.is_some()).collect();
    assert_eq!(refused, [false, true, false]);
    assert_eq!(state.log_index().0, scene.state.log_index().0 + 3);
}

#[test]
fn before_the_cluster_exists_nothing_else_does() {
    let mut state = State::default();
    let leads = leadership(1, 1);
    let apply = |state: &mut State, decision: Decision| {
        let index = state.log_index().next();
        state.apply(leads, index, LogTime(5), &decision).rejection
    };
    let digest = Decision::DigestRecorded { digest: 0 };
    assert_eq!(apply(&mut state, digest.clone()), Some(GuardError::StaleLeadership));
    assert_eq!(state.log_index(), LogIndex::ZERO);
    assert_eq!(apply(&mut state, Decision::LeaderStarted), None);
    assert_eq!(apply(&mut state, digest), Some(GuardError::ClusterExistence));
    let mut parameters = Parameters::DEFAULT;
    let create =
        |generation, parameters| Decision::ClusterCreated { cluster: ClusterId(1), generation, parameters };
    assert_eq!(apply(&mut state, create(0, parameters)), Some(GuardError::Limit));
    parameters.lease_ttl_ms = 1;
    assert_eq!(apply(&mut state, create(1, parameters)), Some(GuardError::Limit));
    assert_eq!(apply(&mut state, create(1, Parameters::DEFAULT)), None);
    assert_eq!(state.rejected(), 3);
}

/// Other term, other replica, older or later sequence, earlier time: no position is taken, and
/// nothing but the counter of late records moves.
#[test]
fn records_of_ended_leaderships_change_nothing() {
    let mut scene = scene();
    let next = Speculation::begin(scene.state.clone(), leadership(2, 2), LogTime(2_000_000), BOOTSTRAP)
        .take_round()
        .unwrap();
    scene.state.apply_round(&next);
    let good = Decision::NodeCordonSet {
        request: key(80),
        by: muster_types::Requester::default(),
        node: NodeId(0),
        cordoned: true,
        reason: None,
    };
    let current = Round { term: 2, replica: muster_types::ReplicaId(2), ..round(&scene, vec![good]) };
    let bent = [
        Round { term: 1, ..current.clone() },
        Round { term: 3, ..current.clone() },
        Round { replica: muster_types::ReplicaId(1), ..current.clone() },
        Round { replica: muster_types::ReplicaId(3), ..current.clone() },
        Round { first_index: scene.state.log_index(), ..current.clone() },
        Round { first_index: LogIndex::ZERO, ..current.clone() },
        Round { first_index: LogIndex(u64::MAX), ..current.clone() },
        Round { first_index: scene.state.log_index().next().next(), ..current.clone() },
        Round { log_time: LogTime(1), ..current.clone() },
        // A beginning that is not newer: the same, an older term, the lesser replica of the term.
        Round { decisions: vec![Decision::LeaderStarted], ..current.clone() },
        Round { term: 1, decisions: vec![Decision::LeaderStarted], ..current.clone() },
        Round {
            replica: muster_types::ReplicaId(1),
            decisions: vec![Decision::LeaderStarted],
            ..current.clone()
        },
    ];
    for round in bent {
        let mut state = scene.state.clone();
        let applied = state.apply_round(&round).remove(0);
        assert!(applied.rejection.is_some(), "{round:?}");
        assert_eq!(applied.log_index, None);
        assert_eq!(state.stale(), scene.state.stale() + 1);
        assert_eq!(state.rejected(), 0);
        assert_eq!(state.log_index(), scene.state.log_index());
        assert_eq!(state.log_time(), scene.state.log_time());
        assert_eq!(state.leadership(), scene.state.leadership());
        assert_eq!(rows(&state), rows(&scene.state));
        assert_eq!(state.rows_digest(), scene.state.rows_digest());
    }
    let mut state = scene.state.clone();
    assert_eq!(state.apply_round(&current)[0].rejection, None);
}

/// Both replicas of a term may have believed in their leadership: the greater wins from its
/// beginning on, wherever the lesser's rounds stand in the log.
#[test]
fn two_leaders_in_one_term() {
    let (mut lesser, mut state) = founded();
    let mut greater = Speculation::begin(state.clone(), leadership(1, 2), LogTime(1_500_000), BOOTSTRAP);
    let begins = greater.take_round().unwrap();
    let submit = |speculation: &mut Speculation, n| {
        let spec = node_spec(&format!("n{n}"), "eu", "c1", None);
        handle(speculation, &Command::Register { spec, holder: holder(n), other_session_is_over: false })
            .unwrap();
        speculation.take_round().unwrap()
    };
    let (first, second) = (submit(&mut lesser, 1), submit(&mut lesser, 2));
    // The lesser's first round comes before: then the greater did not know of it, and its own
    // beginning is out of sequence. It is the barrier that keeps this from happening.
    let mut other = state.clone();
    other.apply_round(&first);
    assert!(other.apply_round(&begins).iter().all(|a| a.log_index.is_none()));
    // The greater's beginning comes first: nothing of the lesser counts any more.
    state.apply_round(&begins);
    for round in [&first, &second] {
        let applied = state.apply_round(round);
        assert_eq!(applied[0].rejection, Some(GuardError::StaleLeadership));
    }
    assert_eq!(state.nodes().len(), 0);
    assert_eq!(state.apply_round(&submit(&mut greater, 3))[0].rejection, None);
    assert_eq!(state.nodes().len(), 1);
}

/// A leader that restarts without an election leads on, and does not begin a second time.
#[test]
fn the_same_leadership_goes_on() {
    let (speculation, mut state) = founded();
    let again = speculation.leadership();
    let mut speculation = Speculation::begin(state.clone(), again, LogTime(1), BOOTSTRAP);
    let round = commit(&mut speculation, &mut state).expect("a digest at least");
    assert!(!round.decisions.contains(&Decision::LeaderStarted));
}

#[test]
fn a_digest_that_is_not_ours_is_an_effect() {
    let scene = scene();
    let mut state = scene.state.clone();
    let actual = state.rows_digest();
    let applied = state.apply_round(&round(&scene, vec![Decision::DigestRecorded { digest: actual ^ 1 }]));
    assert_eq!(applied[0].effects, [Effect::Diverged { expected: actual ^ 1, actual }]);
    let mut state = scene.state.clone();
    let applied = state.apply_round(&round(&scene, vec![Decision::DigestRecorded { digest: actual }]));
    assert_eq!(applied[0].effects, []);
}

/// A node goes from the state only when nothing counts on it.
#[test]
fn what_restricts_a_node_is_checked() {
    let mut scene = scene();
    let drain = Drain { since: LogTime(0), deadline: None, cause: DrainCause::Operator };
    let drained = |node, request| Decision::NodeDrainSet {
        request,
        by: muster_types::Requester::default(),
        node: NodeId(node),
        drain: Some(drain),
        reason: None,
    };
    assert_eq!(scene.state.check(&needs_format_2()), Err(GuardError::Format));
    handle(
        &mut scene.speculation,
        &Command::RaiseFormat { by: muster_types::Requester::default(), format: 2 },
    )
    .unwrap();
    commit(&mut scene.speculation, &mut scene.state);
    assert_eq!(scene.state.check(&needs_format_2()), Ok(()));
    let quarantine = |reason: &str| {
        let reason = Some(reason.to_owned());
        Decision::NodeQuarantineSet {
            request: None,
            by: muster_types::Requester::default(),
            node: NodeId(0),
            reason,
        }
    };
    let health = |health: NodeHealth, events: Vec<Condition>| {
        let (node, policy) = (NodeId(0), muster_types::LogIndex::ZERO);
        Decision::NodeHealthChanged { node, policy, health: Box::new(health), events }
    };
    let repair = |step| Decision::NodeRepairSet {
        request: None,
        by: muster_types::Requester::default(),
        node: NodeId(0),
        step,
    };
    let mut observation = Observation::of(Finding::Xid(13), Some(0));
    let event = |observation: &Observation| Condition {
        observation: observation.clone(),
        action: HealthAction::RestartApp,
        since: LogTime(0),
        boot: 1,
    };
    let small = event(&observation);
    observation.detail = "x".repeat(limits::HEALTH_DETAIL_BYTES_MAX + 1);
    let long = event(&observation);
    let many = vec![small.clone(); limits::HEALTH_CONDITIONS_MAX + 1];
    let begin = |action| RepairStep::Begin { action, devices: DeviceSet::EMPTY };
    let bad_policy = HealthPolicy { reboots_max: u16::MAX, ..HealthPolicy::default() };
    use GuardError as E;
    let refused = [
        (E::NodeUnknown, drained(9, None)),
        (E::RequestRepeated, drained(0, Some(key(1)))),
        (E::Limit, quarantine(&"x".repeat(limits::DETAIL_BYTES_MAX + 1))),
        (E::NothingToDo, health(NodeHealth::default(), vec![])),
        (E::Limit, health(NodeHealth { unusable: DeviceSet(1 << 63), ..NodeHealth::default() }, vec![])),
        (E::Limit, health(NodeHealth { conditions: many, ..NodeHealth::default() }, vec![])),
        (E::Limit, health(NodeHealth { conditions: vec![long.clone()], ..NodeHealth::default() }, vec![])),
        (E::Limit, health(NodeHealth::default(), vec![long])),
        (E::Limit, health(NodeHealth::default(), vec![small; limits::HEALTH_EVENTS_MAX + 1])),
        (E::NothingToDo, repair(RepairStep::Work)),
        (E::NothingToDo, repair(RepairStep::End)),
        (E::NothingToDo, repair(RepairStep::Fail(String::new()))),
        (E::NothingToDo, repair(begin(HealthAction::Cordon))),
        (
            E::Limit,
            Decision::HealthPolicySet {
                request: key(99),
                by: muster_types::Requester::default(),
                policy: Box::new(bad_policy),
            },
        ),
        (
            E::RequestRepeated,
            Decision::HealthPolicySet {
                request: key(1),
                by: muster_types::Requester::default(),
                policy: Box::default(),
            },
        ),
    ];
    for (error, decision) in refused {
        assert_eq!(scene.state.check(&decision), Err(error), "{decision:?}");
    }
    let before = scene.state.rows_digest();
    let good = vec![repair(begin(HealthAction::Inspect)), drained(0, None), quarantine("why")];
    for applied in scene.state.apply_round(&round(&scene, good)) {
        assert_eq!((applied.rejection, applied.effects.len()), (None, 2));
    }
    assert_eq!(scene.state.check(&repair(begin(HealthAction::Inspect))), Err(E::NothingToDo));
    assert_ne!(scene.state.rows_digest(), before);
    assert!(!scene.state.node(NodeId(0)).unwrap().is_placeable());
    scene.state.verify().unwrap();
}

#[test]
fn a_node_that_is_counted_with_is_not_forgotten() {
    let mut scene = scene();
    let forget = |node| Decision::NodeForgotten {
        request: None,
        by: muster_types::Requester::default(),
        node: NodeId(node),
    };
    assert_eq!(scene.state.check(&forget(9)), Err(GuardError::NodeUnknown));
    assert_eq!(scene.state.check(&forget(2)), Err(GuardError::NodeNotCurrent), "it is up");
    handle(&mut scene.speculation, &Command::SessionOver { node: NodeId(2), incarnation: 1 }).unwrap();
    commit(&mut scene.speculation, &mut scene.state);
    assert_eq!(scene.state.check(&forget(2)), Ok(()));
    let before = scene.state.pools().count();
    let applied = scene.state.apply_round(&round(&scene, vec![forget(2)])).remove(0);
    assert_eq!(applied.effects, [Effect::NodeForgotten(NodeId(2))]);
    assert_eq!((scene.state.nodes().len(), scene.state.pools().count()), (2, before - 1));
    assert_eq!(scene.state.node_named(&name("n2")), None);
    scene.state.verify().unwrap();
}

/// The guard of every replica keeps work off a node that lacks what policy requires, in the record of any leader.
#[test]
fn a_gang_on_a_node_that_lacks_required_isolation_is_refused() {
    let (mut speculation, mut state) = founded();
    for (n, isolates) in [(0, false), (1, true)] {
        let mut draft = node_draft(&format!("n{n}"), "eu", "c1", Some(accelerators("h100", 8)));
        if isolates {
            draft.labels.insert(name(Guarantee::Devices.label()), "filtered".to_owned());
        }
        let spec = draft.check().unwrap();
        let command = Command::Register { spec, holder: holder(n + 1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    let spec = job("j", 1, Some(accelerators("h100", 1)));
    let jobs = vec![spec.into()].into();
    let Ok(muster_decider::Answer::Submitted { jobs, .. }) =
        handle(&mut speculation, &Command::submit(request(1), jobs))
    else {
        panic!("it is taken")
    };
    commit(&mut speculation, &mut state);
    let on = |node| Decision::GangPlaced {
        job: jobs[0],
        workers: vec![WorkerSlot { node: NodeId(node), incarnation: 1, devices: DeviceSet(1) }],
    };
    assert_eq!((state.check(&on(0)), state.check(&on(1))), (Ok(()), Ok(())));
    let policy = PolicyDraft { required_isolation: [Guarantee::Devices].into(), ..PolicyDraft::default() };
    let policy = Box::new(policy.check().unwrap());
    let command = Command::SetPolicy {
        request: request(2),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    commit(&mut speculation, &mut state);
    let refused = Err(GuardError::NotTheGang(GangFault::Node));
    assert_eq!((state.check(&on(0)), state.check(&on(1))), (refused, Ok(())));
}

/// What an operator holds nobody else releases; what is held is not placed; and what was changed to a rule that it breaks
/// is not changed.
#[test]
fn holds_and_changes_are_checked() {
    let scene = scene();
    let (pending, mut state) = (scene.pending, scene.state.clone());
    let apply = |state: &mut State, decision: Decision| {
        let first_index = state.log_index().next();
        let round = Round { first_index, basis_index: state.log_index(), ..round(&scene, vec![decision]) };
        assert_eq!(state.apply_round(&round).remove(0).rejection, None);
        state.verify().unwrap();
    };
    let operator = Requester::named("admin/ops".to_owned(), true);
    let user = Requester::named("tenant/vision/ada".to_owned(), false);
    let hold = |n, by: &Requester, held| Decision::JobHoldSet {
        request: key(n),
        by: by.clone(),
        jobs: vec![pending],
        held,
    };
    let workers = vec![slot(1, 0xf0), slot(1, 0xf)];
    let place = Decision::GangPlaced { job: pending, workers };
    assert_eq!(state.check(&place), Ok(()), "it fits there");
    apply(&mut state, hold(50, &user, true));
    assert_eq!(state.check(&hold(51, &user, true)), Err(GuardError::NothingToDo));
    assert_eq!(state.check(&place), Err(GuardError::JobPhase));
    apply(&mut state, hold(52, &operator, true));
    assert_eq!(state.check(&hold(53, &user, false)), Err(GuardError::HeldByOperator));
    apply(&mut state, hold(54, &operator, false));
    assert_eq!(state.check(&place), Err(GuardError::JobPhase), "its owner holds it, as before");
    apply(&mut state, hold(55, &user, false));
    assert_eq!(state.check(&place), Ok(()));
}

/// What jobs carry is recorded once for each, before anything becomes of it, and within the bounds.
#[test]
fn what_jobs_carry_is_checked() {
    let (mut speculation, mut state) = founded();
    let spec = node_spec("n0", "eu", "c1", None);
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &command).unwrap();
    let submit = |speculation: &mut Speculation, n: u128, count: usize| {
        let jobs = muster_types::Submission::plain((0..count).map(|_| job("plain", 1, None)));
        match handle(speculation, &Command::submit(request(n), jobs)).unwrap() {
            muster_decider::Answer::Submitted { jobs, .. } => jobs,
            other => panic!("{other:?}"),
        }
    };
    let jobs = submit(&mut speculation, 1, 3);
    let over = submit(&mut speculation, 2, 1)[0];
    handle(&mut speculation, &Command::cancel(request(3), over)).unwrap();
    commit(&mut speculation, &mut state);
    let says = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Arc::new(JobMetadata { labels, ..JobMetadata::default() })
    };
    let good = says(&[("team", "a")]);
    let runs = |runs: Vec<(JobId, u32, Arc<JobMetadata>)>| Decision::JobMetadataSet { runs };
    let many: BTreeMap<String, String> = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
    let many = Arc::new(JobMetadata { labels: many, ..JobMetadata::default() });
    let large = [("note".to_string(), "x".repeat(limits::ANNOTATIONS_BYTES_MAX))].into();
    let large = Arc::new(JobMetadata { annotations: large, ..JobMetadata::default() });
    let unprintable = Arc::new(JobMetadata { creator: "a\u{1b}".into(), ..JobMetadata::default() });
    let cases = [
        (GuardError::Limit, runs(vec![])),
        (GuardError::Limit, runs(vec![(jobs[0], 0, good.clone())])),
        (GuardError::Limit, runs(vec![(jobs[0], limits::BATCH_JOBS_MAX as u32 + 1, good.clone())])),
        (GuardError::Limit, runs(vec![(jobs[1], 1, good.clone()), (jobs[0], 1, good.clone())])),
        (GuardError::Limit, runs(vec![(jobs[0], 2, good.clone()), (jobs[1], 1, good.clone())])),
        (GuardError::Limit, runs(vec![(JobId(u64::MAX), 2, good.clone())])),
        (GuardError::Limit, runs(vec![(jobs[0], 1, many)])),
        (GuardError::Limit, runs(vec![(jobs[0], 1, large)])),
        (GuardError::Limit, runs(vec![(jobs[0], 1, unprintable)])),
        (GuardError::Limit, runs(vec![(jobs[0], 1, says(&[("", "x")]))])),
        (GuardError::Limit, runs(vec![(jobs[0], 1, says(&[("team", "a b")]))])),
        (GuardError::NothingToDo, runs(vec![(jobs[0], 1, Arc::default())])),
        (GuardError::JobUnknown, runs(vec![(JobId(1), 1, good.clone())])),
        (GuardError::JobUnknown, runs(vec![(jobs[0], 9, good.clone())])),
        (GuardError::JobPhase, runs(vec![(over, 1, good.clone())])),
    ];
    let leads = speculation.leadership();
    for (expected, decision) in cases {
        let mut other = state.clone();
        let index = other.log_index().next();
        let applied = other.apply(leads, index, state.log_time(), &decision);
        assert_eq!(applied.rejection, Some(expected), "{decision:?}");
        assert_eq!(rows(&other), rows(&state), "{decision:?}");
    }
    let index = state.log_index().next();
    let said = runs(vec![(jobs[0], 1, good.clone()), (jobs[1], 2, says(&[("team", "b")]))]);
    assert_eq!(state.apply(leads, index, state.log_time(), &said).rejection, None);
    assert_eq!(state.metadata(jobs[2]).unwrap().labels["team"], "b");
    let again = state.apply(leads, index.next(), state.log_time(), &runs(vec![(jobs[2], 1, good)]));
    assert_eq!(again.rejection, Some(GuardError::NothingToDo));
    state.verify().unwrap();
}
