//! State rows as messages.

use muster_engine::StartOrder;
use muster_journal::{Outcome, RearrangeCause, StopCause, WorkerSlot};
use muster_state::usage::Capacity;
use muster_state::{
    Failure, JobRow, NodeReason, NodeRow, NodeStatus, Phase, Placement, PromiseRow, QueueRow, QuotaUse,
    RankArtifacts, RankState, RestrictionRow, State, Straggler,
};
use muster_types::job::ArrayMember;
use muster_types::metadata::ANONYMOUS;
use muster_types::{
    ArrayId, CheckpointRules, DeviceAmount, FencingToken, JobId, JobMetadata, JobSpec, Name, NodeId,
    Requester,
};
use muster_wire::closed::number;
use muster_wire::convert::{
    device_set_to_proto, exit_status_to_proto, fencing_token_to_proto, foreign_load_to_proto,
    job_spec_to_proto, node_overrides_to_proto, node_spec_to_proto, notice_to_proto, restriction_to_proto,
};
use muster_wire::node_state::node_state;
use muster_wire::shared::encoded_len;
use muster_wire::time::{duration, log_time};
use muster_wire::{agent, v1};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};

use crate::visibility::Visibility;

/// First port for rendezvous; above the range that systems give out by themselves.
const RENDEZVOUS_PORT_FIRST: u32 = 61_440;
/// Ports from there on, as JAX derives its own from a Slurm job id.
const RENDEZVOUS_PORTS: u64 = 4_096;

/// Thousandths of a device times milliseconds, in a device-second.
const MILLI_MS_IN_DEVICE_SECOND: u128 = 1_000_000;

/// Text about a job in a basic view.
const BASIC_TEXT_BYTES_MAX: usize = 80;
/// A job in a basic view with its labels: an event that carries it then has at most 1 KiB, of which 96 bytes are enough for its
/// resume token and its position.
const BASIC_JOB_BYTES_MAX: usize = (1 << 10) - 96;

const PROMISED_TEXT: &str = "it starts once the jobs that hold the capacity promised to it have stopped";
const NOT_RELEASED_TEXT: &str = "waits for the jobs that it depends on, or for the time that it names";
const _: () = {
    assert!(PROMISED_TEXT.len() <= BASIC_TEXT_BYTES_MAX, "a basic view has the whole sentence");
    assert!(NOT_RELEASED_TEXT.len() <= BASIC_TEXT_BYTES_MAX, "a basic view has the whole sentence");
};

/// How much of a job a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Everything.
    Full,
    /// Without spec, annotations, workers, nominated placement and how attempts failed; [`BASIC_TEXT_BYTES_MAX`] bounds its text.
    Basic,
}

/// A job as it is shown to a caller.
pub(crate) fn job(
    view: &State,
    id: JobId,
    row: &JobRow,
    spec: &JobSpec,
    (detail, visibility): (Detail, Visibility),
) -> v1::Job {
    let mut shown = visibility.job(view, &spec.tenant, whole(view, id, row, spec, detail));
    if detail == Detail::Basic {
        cut_labels(&mut shown);
    }
    shown
}

/// Takes labels away that a basic view has no bytes for, and says that there are more. Those that stay are the first in the
/// order of their keys, so that they are the same in each event of the job.
pub(crate) fn cut_labels(job: &mut v1::Job) {
    if encoded_len(job) <= BASIC_JOB_BYTES_MAX {
        return;
    }
    let labels: BTreeMap<String, String> = std::mem::take(&mut job.labels).into_iter().collect();
    job.labels_incomplete = !labels.is_empty();
    let mut left = BASIC_JOB_BYTES_MAX.saturating_sub(encoded_len(job));
    for (key, value) in labels {
        let alone = v1::Job { labels: HashMap::from([(key, value)]), ..Default::default() };
        let Some(after) = left.checked_sub(encoded_len(&alone)) else { break };
        left = after;
        job.labels.extend(alone.labels);
    }
}

fn whole(view: &State, id: JobId, row: &JobRow, spec: &JobSpec, detail: Detail) -> v1::Job {
    let full = detail == Detail::Full;
    let metadata = view.carried(id);
    let texts = |of: fn(&JobMetadata) -> &BTreeMap<String, String>| {
        metadata.map(|said| of(said).clone().into_iter().collect()).unwrap_or_default()
    };
    let contract = view.agreed(id).map(|said| &**said);
    // Submitted again, a member is an array of this index alone.
    let alone =
        |member: ArrayMember| v1::JobArray { indices: member.index.to_string(), ..Default::default() };
    v1::Job {
        id: id.to_string(),
        name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        labels: texts(|said| &said.labels),
        annotations: if full { texts(|said| &said.annotations) } else { HashMap::new() },
        creator: metadata.map_or(ANONYMOUS, |said| said.creator()).to_owned(),
        array: spec.array.map(|member| v1::ArrayMember {
            array_id: ArrayId::of_member(id, member.ordinal).to_string(),
            index: member.index,
            size: member.size,
            ordinal: member.ordinal,
        }),
        etag: format!("{}-{}", view.generation(), row.changed_at),
        spec: full.then(|| v1::JobSpec { array: spec.array.map(alone), ..job_spec_to_proto(spec, contract) }),
        status: Some(status(view, id, row, spec, detail)),
        redacted: false,
        hold: false,
        labels_incomplete: false,
    }
}

fn status(view: &State, id: JobId, row: &JobRow, spec: &JobSpec, detail: Detail) -> v1::JobStatus {
    let full = detail == Detail::Full;
    let (reason, mut message) = status_of(view, id, row);
    if !full {
        message.truncate(message.floor_char_boundary(BASIC_TEXT_BYTES_MAX));
    }
    let (worker_count, device_count) = size_now(row, spec);
    let placement =
        |held| v1::Placement { spares: spares(view, id, detail), ..placement(view, held, detail) };
    v1::JobStatus {
        phase: phase_of(&row.phase).into(),
        reason,
        message,
        attempt: row.attempt,
        create_time: log_time(row.submitted_at),
        start_time: row.started_at.and_then(log_time),
        end_time: row.finished_at.and_then(log_time),
        placement: row.placement.as_deref().map(placement),
        tier: number(spec.tier),
        worker_count,
        device_count,
        failures: row.failures,
        changed_at_index: row.changed_at.0,
        estimate: Some(estimate(&row.estimate)),
        preemptions: row.preemptions,
        last_checkpoint: last_checkpoint(view, id, row),
        eligible: row.released,
        nominated_placement: row
            .promise
            .as_deref()
            .filter(|_| full)
            .map(|promise| nominated_placement(view, promise, detail)),
        history: attempt_history(view, id, detail),
        controls: if full { controls(view, id, row) } else { None },
        expected_start: None,
    }
}

/// What a job saved last, in whatever attempt.
fn last_checkpoint(view: &State, id: JobId, row: &JobRow) -> Option<v1::Checkpoint> {
    let saved = view.recovery(id).and_then(|known| known.saved).map(|saved| (saved.attempt, saved.at));
    let (attempt, at) = row.checkpointed_at.map(|at| (row.attempt, at)).or(saved)?;
    Some(v1::Checkpoint { attempt, time: log_time(at) })
}

/// Workers and devices that a gang has, or asks for while it has none: an elastic one may have fewer than it asked for.
fn size_now(row: &JobRow, spec: &JobSpec) -> (u32, u64) {
    let (workers, devices) = (spec.worker_count(), spec.device_count());
    match row.placement.as_deref().filter(|_| spec.is_elastic() && row.finished_at.is_none()) {
        Some(placement) => {
            let placed = u32::try_from(placement.slots.len()).unwrap_or(u32::MAX);
            (placed, spec.device_count_of(placed))
        }
        None => (workers, devices),
    }
}

/// What became of a job's attempts; none when nothing has.
pub(crate) fn attempt_history(view: &State, job: JobId, detail: Detail) -> Option<v1::AttemptHistory> {
    let row = view.recovery(job)?;
    let placement = view.job(job).and_then(|row| row.placement.as_deref());
    let straggler = |(rank, slow): (&u32, &Straggler)| v1::Straggler {
        rank: *rank,
        slow_milli: slow.slow_milli,
        start_time: log_time(slow.since),
        node_name: placement
            .and_then(|placement| placement.slots.get(*rank as usize))
            .map(|slot| node_name(view, slot.node))
            .unwrap_or_default(),
    };
    let count = |(class, count): (&muster_types::FailureClass, &u32)| v1::FailureCount {
        failure_class: number(*class),
        count: *count,
    };
    let avoided = |(node, until): (&NodeId, &muster_types::LogTime)| v1::AvoidedNode {
        node_name: node_name(view, *node),
        node_id: node.to_string(),
        expire_time: log_time(*until),
    };
    let full = detail == Detail::Full;
    Some(v1::AttemptHistory {
        last_failure: row.last.as_ref().filter(|_| full).map(|last| failure(view, last)),
        failures: if full { row.counts.iter().map(count).collect() } else { Vec::new() },
        consecutive_failures: row.streak,
        retry_time: row.wait_until.and_then(log_time),
        avoided: if full { row.avoided.iter().map(avoided).collect() } else { Vec::new() },
        stragglers: if full { row.stragglers.iter().map(straggler).collect() } else { Vec::new() },
        artifacts: if full { row.artifacts.iter().map(artifacts).collect() } else { Vec::new() },
    })
}

fn artifacts((rank, known): (&u32, &RankArtifacts)) -> v1::WorkerArtifacts {
    let RankArtifacts { token, artifacts } = known;
    v1::WorkerArtifacts {
        rank: *rank,
        token: Some(fencing_token_to_proto(*token)),
        digest: artifacts.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        files: artifacts.files,
        bytes: artifacts.bytes,
        left_out: artifacts.left_out,
        fault: artifacts.fault.map(|(fault, _)| fault.word().to_owned()).unwrap_or_default(),
        fault_path: artifacts.fault.map_or(0, |(_, path)| path),
    }
}

fn failure(view: &State, failure: &Failure) -> v1::Failure {
    v1::Failure {
        failure_class: number(failure.class),
        rank: failure.rank,
        node_name: failure.node.map(|node| node_name(view, node)).unwrap_or_default(),
        node_id: failure.node.map(|node| node.to_string()).unwrap_or_default(),
        message: failure.detail.clone(),
        time: log_time(failure.at),
        attempt: failure.attempt,
        token: Some(fencing_token_to_proto(failure.token)),
    }
}

pub(crate) fn estimate(estimate: &muster_journal::Estimate) -> v1::Estimate {
    v1::Estimate {
        run_time: Some(duration(estimate.run_ms)),
        run_time_p90: Some(duration(estimate.run_high_ms)),
    }
}

pub(crate) fn phase_of(phase: &Phase) -> v1::JobPhase {
    match phase {
        Phase::Pending => v1::JobPhase::Pending,
        Phase::Starting => v1::JobPhase::Starting,
        Phase::Running => v1::JobPhase::Running,
        Phase::Stopping(_) => v1::JobPhase::Stopping,
        Phase::Finished(Outcome::Succeeded) => v1::JobPhase::Succeeded,
        Phase::Finished(Outcome::Failed { .. }) => v1::JobPhase::Failed,
        Phase::Finished(Outcome::Cancelled) => v1::JobPhase::Cancelled,
    }
}

/// How an attempt failed, in one sentence.
fn failed_so(view: &State, last: &Failure) -> String {
    let rank = last.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
    let node = last.node.map(|node| format!(" on {}", node_name(view, node))).unwrap_or_default();
    format!("attempt {} failed ({}{rank}{node}: {})", last.attempt, last.class, last.detail)
}

fn straggles((rank, slow): (&u32, &Straggler)) -> String {
    let (whole, tenths) = (slow.slow_milli / 1_000, slow.slow_milli % 1_000 / 100);
    format!("runs; rank {rank} takes {whole}.{tenths} times as long for a step as its gang")
}

/// Reason and sentence of the phase a job is in, without asking the planner.
pub(crate) fn status_of(view: &State, id: JobId, row: &JobRow) -> (String, String) {
    let recovery = view.recovery(id);
    let failed = recovery.and_then(|known| known.last.as_ref()).map(|last| failed_so(view, last));
    let slow = recovery.and_then(|known| known.stragglers.iter().next());
    if let Some(known) = controlled(view, id, row) {
        return known;
    }
    let (code, text) = match (&row.phase, failed, slow) {
        (Phase::Pending, Some(so), _) if !row.released => {
            ("RETRY_BACKOFF", format!("waits for another attempt: {so}"))
        }
        (Phase::Pending, Some(so), _) if row.promise.is_none() => {
            ("REQUEUED", format!("waits again: {so}; why: muster explain {id}"))
        }
        (Phase::Running, _, Some(slow)) => ("STRAGGLER", straggles(slow)),
        (Phase::Running, _, None) => ("RUNNING", who_is_ready(view, id, row)),
        (phase, ..) => return status_of_row(id, row, phase),
    };
    (code.to_owned(), text)
}

/// How many workers of a job that asks for it are ready; empty where all are, or nobody asks.
fn who_is_ready(view: &State, id: JobId, row: &JobRow) -> String {
    let is_asked = view.spec(id).is_some_and(|spec| spec.readiness_ms.is_some());
    let placement = row.placement.as_deref().filter(|_| is_asked);
    let missing = placement.filter(|placement| placement.ready.len() < placement.slots.len());
    missing.map_or_else(String::new, |placement| {
        format!("{} of {} workers are ready", placement.ready.len(), placement.slots.len())
    })
}

/// The same of a member of an array that has no row among the jobs: the array knows who cancelled such members.
fn cancelled_with_array(view: &State, id: JobId, row: &JobRow) -> Option<(String, String)> {
    if row.phase != Phase::Finished(Outcome::Cancelled) || view.job(id).is_some() {
        return None;
    }
    let (array, _) = view.array_of(id)?;
    let row = view.array(array)?;
    let by: Vec<String> = row.cancelled_by.iter().map(Requester::to_string).collect();
    let others = if row.cancellers_left_out > 0 { " and others" } else { "" };
    let text = format!("{}{others} cancelled members of {array} that were not created", by.join(" and "));
    (!by.is_empty()).then(|| ("CANCELLED".to_owned(), text))
}

/// Reason and sentence where somebody has asked for what the job does.
fn controlled(view: &State, id: JobId, row: &JobRow) -> Option<(String, String)> {
    let Some(control) = view.control(id) else { return cancelled_with_array(view, id, row) };
    let who = |by: &Option<Requester>| by.as_ref().map_or_else(|| "a user".to_owned(), Requester::to_string);
    let (code, text) = match (&row.phase, &control.hold) {
        (Phase::Pending, Some(hold)) if row.held && !row.cancel_requested => {
            let (by, what) = (&hold.by, if hold.suspended { "suspended" } else { "held" });
            let who = if by.is_operator { format!("operator {by}") } else { by.to_string() };
            ("HELD", format!("{who} has {what} it since {}; muster job release {id}", hold.since))
        }
        (Phase::Stopping(StopCause::Requested { .. }), Some(_)) => {
            ("STOPPING_SUSPENDED", format!("{} asked to suspend it", who(&control.requeued_by)))
        }
        (Phase::Stopping(StopCause::Requested { .. }), None) => {
            ("STOPPING_REQUEUED", format!("{} asked to requeue it", who(&control.requeued_by)))
        }
        (Phase::Stopping(StopCause::Cancelled), _) => {
            ("STOPPING_CANCELLED", format!("{} cancelled it", who(&control.cancelled_by)))
        }
        (Phase::Finished(Outcome::Cancelled), _) => {
            ("CANCELLED", format!("{} cancelled it", who(&control.cancelled_by)))
        }
        _ => return None,
    };
    Some((code.to_owned(), text))
}

fn status_of_row(id: JobId, row: &JobRow, phase: &Phase) -> (String, String) {
    let (code, text) = match phase {
        Phase::Pending if row.promise.is_some() => ("PREEMPTING", PROMISED_TEXT.to_owned()),
        Phase::Pending if row.attempt == 0 && !row.released => ("NOT_RELEASED", NOT_RELEASED_TEXT.to_owned()),
        Phase::Pending if row.attempt == 0 => {
            ("PENDING", format!("not placed yet; why: muster explain {id}"))
        }
        Phase::Pending => {
            ("REQUEUED", format!("waits again after attempt {}; why: muster explain {id}", row.attempt))
        }
        Phase::Starting => ("STARTING", "its workers are being started".to_owned()),
        Phase::Running => ("RUNNING", String::new()),
        Phase::Stopping(StopCause::Cancelled) => ("STOPPING_CANCELLED", "a user cancelled it".to_owned()),
        Phase::Stopping(StopCause::WorkerFailed { rank, exit }) => {
            ("STOPPING_FAILED", format!("rank {rank}: {exit}"))
        }
        Phase::Stopping(StopCause::Evicted { node }) => {
            ("STOPPING_EVICTED", format!("{node} was lost under it, or had to be empty by now"))
        }
        Phase::Stopping(StopCause::Fault { class, node, detail }) => {
            ("STOPPING_FAULT", format!("{node}: {class}: {detail}"))
        }
        Phase::Stopping(StopCause::RunTimeLimit) => {
            ("STOPPING_TIME_LIMIT", "it reached its run-time limit".to_owned())
        }
        Phase::Stopping(StopCause::Requested { .. }) => {
            ("STOPPING_REQUEUED", "a user asked to requeue it".to_owned())
        }
        Phase::Stopping(StopCause::Deadline) => ("STOPPING_DEADLINE", "its deadline has passed".to_owned()),
        Phase::Stopping(StopCause::Rearranged(RearrangeCause::Preempted { by })) => {
            ("STOPPING_PREEMPTED", format!("it is preempted by {by}, which goes before it"))
        }
        Phase::Stopping(StopCause::Rearranged(RearrangeCause::Moved { by })) => {
            ("STOPPING_MOVED", format!("it goes on elsewhere, so that {by} can start"))
        }
        Phase::Stopping(StopCause::Rearranged(RearrangeCause::Resized)) => {
            ("STOPPING_RESIZED", "it goes on with another number of workers".to_owned())
        }
        Phase::Stopping(StopCause::Rearranged(RearrangeCause::Drained { node })) => {
            ("STOPPING_DRAINED", format!("it goes on elsewhere, because {node} is drained"))
        }
        Phase::Finished(Outcome::Succeeded) => ("SUCCEEDED", String::new()),
        Phase::Finished(Outcome::Failed { detail }) => ("FAILED", detail.clone()),
        Phase::Finished(Outcome::Cancelled) => ("CANCELLED", "a user cancelled it".to_owned()),
    };
    (code.to_owned(), text)
}

fn placement(view: &State, placement: &Placement, detail: Detail) -> v1::Placement {
    let workers = placement.slots.iter().zip(&placement.ranks).enumerate().map(|(rank, (slot, state))| {
        let (state, exit) = match state {
            RankState::Assigned => (v1::WorkerState::Assigned, None),
            RankState::Running => (v1::WorkerState::Running, None),
            RankState::Exited(exit) => (v1::WorkerState::Exited, Some(exit_status_to_proto(exit))),
            RankState::Lost => (v1::WorkerState::Lost, None),
        };
        v1::WorkerPlacement {
            rank: rank as u32,
            node_name: node_name(view, slot.node),
            node_id: slot.node.to_string(),
            devices: device_set_to_proto(slot.devices),
            state: number(state),
            exit,
        }
    });
    v1::Placement {
        token: Some(fencing_token_to_proto(placement.token)),
        region: placement.region.to_string(),
        cluster: placement.cluster.to_string(),
        create_time: log_time(placement.placed_at),
        workers: if detail == Detail::Full { workers.collect() } else { Vec::new() },
        spares: Vec::new(),
    }
}

fn spares(view: &State, job: JobId, detail: Detail) -> Vec<v1::WorkerSlot> {
    let spares = if detail == Detail::Full { view.spares(job) } else { &[] };
    spares.iter().enumerate().map(|place| place_of(view, place)).collect()
}

fn place_of(view: &State, (index, slot): (usize, &WorkerSlot)) -> v1::WorkerSlot {
    v1::WorkerSlot {
        index: index as u32,
        node_name: node_name(view, slot.node),
        node_id: slot.node.to_string(),
        devices: device_set_to_proto(slot.devices),
    }
}

fn nominated_placement(view: &State, promise: &PromiseRow, detail: Detail) -> v1::NominatedPlacement {
    let first = promise.slots.first().and_then(|slot| view.node(slot.node));
    let workers = promise.slots.iter().enumerate().map(|place| place_of(view, place));
    v1::NominatedPlacement {
        nominated_at_index: promise.since.0,
        region: promise.region.to_string(),
        cluster: first.map(|row| row.spec.cluster.to_string()).unwrap_or_default(),
        workers: if detail == Detail::Full { workers.collect() } else { Vec::new() },
    }
}

pub(crate) fn node_name(view: &State, node: NodeId) -> String {
    view.node(node).map_or_else(|| node.to_string(), |row| row.spec.name.to_string())
}

pub(crate) fn node(view: &State, id: NodeId, row: &NodeRow) -> v1::Node {
    node_with(id, row, view.restriction(id), view.gangs_on(id))
}

/// The word for a node's state, without all else that a message says of it.
pub(crate) fn state_of_node(view: &State, id: NodeId, row: &NodeRow) -> &'static str {
    let restriction = view.restriction(id);
    node_state(&v1::Node {
        status: node_status(row).into(),
        cordoned: row.cordoned,
        job_ids: view.gangs_on(id).take(1).map(|job| job.to_string()).collect(),
        restriction: restriction.map(restriction_message),
        foreign_load: foreign_load(restriction),
        ..Default::default()
    })
}

fn node_status(row: &NodeRow) -> v1::NodeStatus {
    match row.status {
        NodeStatus::Up => v1::NodeStatus::Up,
        NodeStatus::Lost => v1::NodeStatus::Lost,
    }
}

fn foreign_load(restriction: Option<&RestrictionRow>) -> Option<v1::ForeignLoad> {
    restriction.map(|row| row.foreign).filter(|load| !load.is_none()).map(foreign_load_to_proto)
}

fn restriction_message(row: &RestrictionRow) -> v1::NodeRestriction {
    let (drain, quarantine) = (row.drain.as_ref(), row.quarantine.as_ref());
    restriction_to_proto(drain, quarantine, row.repair.as_ref(), &row.health)
}

/// A node with what restricts it and these gangs on it.
pub(crate) fn node_with(
    id: NodeId,
    row: &NodeRow,
    restriction: Option<&RestrictionRow>,
    gangs: impl Iterator<Item = JobId>,
) -> v1::Node {
    // Nothing of a lost node can be had, whatever is not leased there.
    let up = row.status == NodeStatus::Up;
    let usable = row.usable();
    v1::Node {
        id: id.to_string(),
        description: Some(node_spec_to_proto(&row.spec)),
        status: node_status(row).into(),
        cordoned: row.cordoned,
        incarnation: row.incarnation,
        free_devices: if up { usable.devices.count().into() } else { 0 },
        free_cpu_milli: if up { usable.cpu_milli } else { 0 },
        free_memory_bytes: if up { usable.memory_bytes } else { 0 },
        change_time: log_time(row.changed_at),
        changed_at_index: row.changed_index.0,
        job_ids: gangs.map(|job| job.to_string()).collect(),
        restriction: restriction.map(restriction_message),
        foreign_load: foreign_load(restriction),
        overrides: row
            .overrides
            .as_ref()
            .map(|set| node_overrides_to_proto(&set.overrides, &set.by, set.set_at)),
        cordon_reason: row.reasons.as_ref().and_then(|reasons| reasons.cordon.as_ref()).map(node_reason),
        drain_reason: row.reasons.as_ref().and_then(|reasons| reasons.drain.as_ref()).map(node_reason),
    }
}

fn node_reason(said: &NodeReason) -> v1::NodeReason {
    v1::NodeReason {
        reason: said.reason.clone(),
        creator: said.by.name.clone(),
        create_time: log_time(said.set_at),
    }
}

/// A queue, with its share of what there is.
pub(crate) fn queue(tenant: &Name, row: &QueueRow, capacity: &Capacity) -> v1::TenantUsage {
    let device_use = |(kind, used_milli): (&Name, u64)| {
        let decayed = row.usage.as_ref().map_or(0, |usage| usage.decayed_milli_ms(kind, row.at));
        let seconds = decayed / MILLI_MS_IN_DEVICE_SECOND;
        v1::DeviceUse {
            r#type: kind.to_string(),
            used_milli,
            decayed_device_seconds: u64::try_from(seconds).unwrap_or(u64::MAX),
        }
    };
    let quota_use = |QuotaUse { quota, used_milli }: &QuotaUse| v1::QuotaUse {
        r#type: quota.kind.to_string(),
        region: quota.region.as_ref().map(ToString::to_string).unwrap_or_default(),
        nominal_milli: quota.nominal_milli,
        borrowing_limit_milli: quota.borrowing_limit_milli,
        lending_limit_milli: quota.lending_limit_milli,
        used_milli: *used_milli,
    };
    v1::TenantUsage {
        tenant: tenant.to_string(),
        parent: row.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
        weight_milli: row.weight_milli,
        pending_jobs: row.load.pending_jobs,
        gated_jobs: row.load.held_jobs,
        pending_devices_milli: row.load.pending_milli,
        active_jobs: row.load.active_jobs,
        active_devices_milli: row.load.active_milli,
        uses: row.usage.iter().flat_map(|usage| usage.running()).map(device_use).collect(),
        share_billionths: row
            .usage
            .as_ref()
            .map_or(0, |usage| usage.share(row.at, capacity, row.weight_milli)),
        quotas: row.quotas.iter().map(quota_use).collect(),
        user_turns: Vec::new(),
    }
}

fn rendezvous_port(token: FencingToken) -> u32 {
    RENDEZVOUS_PORT_FIRST + (token.log_index.0 % RENDEZVOUS_PORTS) as u32
}

fn checkpoint_state(view: &State, job: JobId, rules: &CheckpointRules) -> agent::CheckpointState {
    let saved = view.recovery(job).and_then(|row| row.saved);
    agent::CheckpointState {
        place: rules.place.as_ref().map(ToString::to_string).unwrap_or_default(),
        step_ms: rules.step_ms.unwrap_or(0),
        save_ms: rules.save_ms.unwrap_or(0),
        interval_ms: rules.interval_ms.unwrap_or(0),
        saved_at_ms: saved.map_or(0, |saved| saved.at.0),
        saved_attempt: saved.map_or(0, |saved| saved.attempt),
    }
}

/// A start order for one node: the whole rank map, and the workers that are to run there.
pub(crate) fn start_order(order: &StartOrder, node: NodeId) -> agent::StartOrder {
    let (spec, placement, view) = (&order.spec, &order.placement, &order.view);
    let contract = view.contract(order.job).map(|contract| (**contract).clone()).unwrap_or_default();
    let mut nodes: Vec<NodeId> = placement.slots.iter().map(|slot| slot.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let rank_place = |slot: &WorkerSlot| agent::RankPlace {
        node_name: node_name(view, slot.node),
        address: view.node(slot.node).map(|row| row.spec.address.clone()).unwrap_or_default(),
        devices: slot.devices.count().into(),
    };
    let rank_map = placement.slots.iter().map(rank_place);
    let mine = placement.slots.iter().enumerate().filter(|(_, slot)| slot.node == node);
    let workers = mine.filter_map(|(rank, slot)| {
        let (group, _) = spec.group_of(rank as u32, placement.slots.len())?;
        // A worker that has its host to itself has all of it, whatever it asked for at least.
        let whole = view.node(node).filter(|_| group.request.exclusive);
        Some(agent::WorkerLaunch {
            rank: rank as u32,
            group: group.name.to_string(),
            command: group.command.clone(),
            environment: group.environment.clone().into_iter().collect(),
            devices: device_set_to_proto(slot.devices),
            // Of several types that it can use, the one that its node has.
            accelerator_type: group
                .request
                .accelerators
                .as_ref()
                .and_then(|_| view.node(node)?.spec.accelerators.as_ref().map(|a| a.kind.to_string()))
                .unwrap_or_default(),
            cpu_milli: whole.map_or(group.request.cpu_milli, |host| host.spec.cpu_milli),
            memory_bytes: whole.map_or(group.request.memory_bytes, |host| host.spec.memory_bytes),
            device_share_milli: match group.request.accelerators.as_ref().map(|asked| asked.amount) {
                Some(DeviceAmount::Share(milli)) => milli.into(),
                Some(DeviceAmount::Whole(_)) | None => 0,
            },
            container: group.container.as_ref().map(muster_wire::convert::container_to_proto),
        })
    });
    let checkpoint = spec.checkpoint_directory.as_ref();
    agent::StartOrder {
        job_id: order.job.to_string(),
        token: Some(fencing_token_to_proto(placement.token)),
        job_name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        attempt: order.attempt,
        rank_map: rank_map.collect(),
        workers: workers.collect(),
        rendezvous_port: rendezvous_port(placement.token),
        stop_grace_ms: contract.stop_grace_ms(spec),
        checkpoint_directory: checkpoint.map(|at| format!("{at}/{}", order.job)).unwrap_or_default(),
        working_directory: spec.working_directory.clone().unwrap_or_default(),
        array_index: spec.array.map(|a| a.index),
        array_size: spec.array.map(|a| a.size),
        array_ordinal: spec.array.map(|a| a.ordinal),
        array_indices: spec.array.and_then(|_| array_indices(view, order.job)),
        region: placement.region.to_string(),
        cluster: placement.cluster.to_string(),
        launch: contract.launch.to_string(),
        notice: notice_to_proto(&contract.notice),
        checkpoint: Some(checkpoint_state(view, order.job, &contract.checkpoint)),
        preflight: contract.preflight.applies_to(nodes.len()),
        spares: view.spares(order.job).iter().map(rank_place).collect(),
        slices: tpu_slices(spec, placement.slots.len()),
        world_size_min: spec.worker_count_min(),
        groups: group_sizes(spec, placement.slots.len()),
        gang_secret: gang_secret(order),
        workdir: contract.workdir.map(muster_wire::convert::workdir_to_proto),
        artifacts: contract.artifacts.as_ref().map(muster_wire::convert::artifacts_to_proto),
        artifacts_bytes_max: artifacts_bytes_max(view, order.job, spec),
        ulimits: muster_wire::convert::ulimits_to_proto(&contract.ulimits),
        host: muster_wire::convert::host_rules_to_proto(&contract.host),
        trace_parent: contract.trace_parent.map(|parent| parent.to_string()).unwrap_or_default(),
        terminal: contract.terminal,
        scratch_bytes: spec.scratch_bytes(),
    }
}

/// Most bytes of the files that are kept of one worker of a job, by the policy; none for as many as its agent keeps.
fn artifacts_bytes_max(view: &State, job: JobId, spec: &JobSpec) -> Option<u64> {
    let policy = &view.policy().policy;
    policy.job_limits_of_user(&spec.tenant, spec.tier, view.creator(job)).artifacts_bytes_max
}

/// The indices of the array that a job is a member of.
fn array_indices(view: &State, job: JobId) -> Option<agent::ArrayIndices> {
    let (array, _) = view.array_of(job)?;
    let span = view.array(array)?.template.array.span()?;
    Some(agent::ArrayIndices { first: span.first, last: span.last, step: span.step })
}

/// What the workers of a placement know each other by. It follows from the holder of rank 0's node, a random number that
/// its agent made and that replicas show to nobody, so it is the same whichever replica gives the order; another agent on
/// that node would run no worker of this placement.
fn gang_secret(order: &StartOrder) -> String {
    let first = order.placement.slots.first().and_then(|slot| order.view.node(slot.node));
    let Some(row) = first else { return String::new() };
    let token = order.placement.token;
    let hash = Sha256::new()
        .chain_update(b"muster gang secret\0")
        .chain_update(row.holder.0.to_le_bytes())
        .chain_update(order.job.0.to_le_bytes())
        .chain_update(token.generation.to_le_bytes())
        .chain_update(token.log_index.0.to_le_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The groups of a gang that has several, with the workers that each has; empty for one group.
fn group_sizes(spec: &JobSpec, workers: usize) -> Vec<agent::GroupSize> {
    let workers = u32::try_from(workers).ok().filter(|_| spec.groups.len() > 1);
    let sizes = workers.and_then(|workers| spec.sizes_of(workers)).unwrap_or_default();
    let groups = spec.groups.iter().zip(sizes);
    groups.map(|(group, workers)| agent::GroupSize { name: group.name.to_string(), workers }).collect()
}

/// The slices of a gang's groups, by rank.
fn tpu_slices(spec: &JobSpec, world: usize) -> Vec<agent::TpuSlices> {
    let mut first_rank = 0;
    let mut found = Vec::new();
    for group in &spec.groups {
        if let Some(slice) = group.slice {
            let count = u32::from(slice.count);
            // The workers of a group with slices are as many as their hosts; a gang is never placed without
            // some of them.
            let hosts = group.workers / count.max(1);
            if hosts > 0 && (first_rank + hosts * count) as usize <= world {
                found.push(agent::TpuSlices { first_rank, hosts, count, shape: slice.shape.to_string() });
            }
        }
        first_rank += group.workers;
    }
    found
}

/// What people have asked of a job, as it is shown.
fn controls(view: &State, id: JobId, job: &JobRow) -> Option<v1::JobControls> {
    let row = view.control(id)?;
    let text = |by: &Option<Requester>| by.as_ref().map(Requester::to_string).unwrap_or_default();
    let modified = row.modified.as_ref();
    let spec = view.spec(id);
    Some(v1::JobControls {
        hold: row.hold.as_ref().filter(|_| job.held).map(|hold| v1::JobHold {
            principal: hold.by.to_string(),
            by_operator: hold.by.is_operator,
            start_time: log_time(hold.since),
            suspended: hold.suspended,
        }),
        cancelled_by: text(&row.cancelled_by),
        requeue_count: row.requeues,
        requeued_by: text(&row.requeued_by),
        modified_by: modified.map(|change| change.by.to_string()).unwrap_or_default(),
        modify_time: modified.and_then(|change| log_time(change.at)),
        modified_at_index: modified.map_or(0, |change| change.index.0),
        moved_to_front_at_index: spec.and_then(|spec| spec.front).map_or(0, |index| index.0),
        size: spec.and_then(|spec| spec.size).unwrap_or(0),
    })
}
