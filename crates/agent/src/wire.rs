//! The protocol's messages as values and back: the only place where the node's loop meets them.
//!
//! **Invariant:** nothing here trusts a length, a number or a name; an order that breaks a rule
//! becomes an [`OrderError`] that names the field.

use crate::executor::KeptArtifacts;
use crate::limits;
use crate::rules::node::{Message, Order};
use crate::rules::{
    Checkpoint, DEVICE_MILLI, DeviceLoad, GroupSize, HttpNotice, Launch, Limits, OutputRequest, OutputStream,
    Placement, Plan, RankPlace, SequencedEvent, Slices, StopRequest, WHOLE_PLACEMENT, WorkerEvent, WorkerKey,
    WorkerState, detail,
};
use muster_types::job::ArrayMember;
use muster_types::limits::REPORT_RANKS_MAX;
use muster_types::tpu::SliceShape;
use muster_types::{
    FencingToken, IndexRange, JobId, LaunchForm, StopReason, TraceParent, Violation, limits as bounds,
};
use muster_wire::{agent, convert, v1};
use std::collections::BTreeSet;
use std::time::Duration;

/// A field of an order that breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("order refused: {field} {rule}")]
pub(crate) struct OrderError {
    /// The field, as in the protocol.
    pub(crate) field: &'static str,
    /// What it breaks.
    pub(crate) rule: String,
}

fn violated(field: &'static str, violation: &Violation) -> OrderError {
    broken(field, violation.to_string())
}

fn broken(field: &'static str, rule: impl Into<String>) -> OrderError {
    OrderError { field, rule: rule.into() }
}

/// The token of a message.
///
/// # Errors
/// When it is absent or of no generation of a cluster.
fn token(message: Option<v1::FencingToken>) -> Result<FencingToken, OrderError> {
    let token =
        convert::fencing_token_from_proto("token", message.as_ref()).map_err(|v| violated("token", &v))?;
    if token.generation == 0 || token.log_index.0 == 0 {
        return Err(broken("token", "must have a generation and an index from 1"));
    }
    Ok(token)
}

/// The job of a message.
///
/// # Errors
/// When it is not an id.
fn job(text: &str) -> Result<JobId, OrderError> {
    convert::job_id("job_id", text).map_err(|v| violated("job_id", &v))
}

/// Milliseconds of grace, held to the longest that a job may ask for.
#[must_use]
pub(crate) fn grace(ms: u64) -> Duration {
    Duration::from_millis(ms.min(bounds::STOP_GRACE_MS_MAX))
}

/// Checks a start order.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn placement(order: agent::StartOrder) -> Result<Placement, OrderError> {
    let job = job(&order.job_id)?;
    let token = token(order.token)?;
    let world = order.rank_map.len();
    if world == 0 || world > bounds::GANG_WORKERS_MAX as usize {
        return Err(broken("rank_map", format!("must have 1 to {} ranks", bounds::GANG_WORKERS_MAX)));
    }
    if order.workers.is_empty() || order.workers.len() > limits::WORKERS_PER_ORDER_MAX {
        return Err(broken("workers", format!("must be 1 to {}", limits::WORKERS_PER_ORDER_MAX)));
    }
    for text in [&order.job_name, &order.tenant, &order.region, &order.cluster] {
        short("job_name, tenant, region or cluster", text, 4 * bounds::NAME_BYTES_MAX)?;
    }
    short("checkpoint_directory", &order.checkpoint_directory, 2 * bounds::TEXT_BYTES_MAX)?;
    short("working_directory", &order.working_directory, bounds::TEXT_BYTES_MAX)?;
    let rank_map = order.rank_map.into_iter().map(rank_place).collect::<Result<Vec<_>, _>>()?;
    let workers = launches(order.workers, world)?;
    let rendezvous_port = u16::try_from(order.rendezvous_port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| broken("rendezvous_port", "must be 1 to 65535"))?;
    short("gang_secret", &order.gang_secret, bounds::TEXT_BYTES_MAX)?;
    let notice = order.notice.map(http_notice).transpose()?.flatten();
    let checkpoint = checkpoint(order.checkpoint.unwrap_or_default())?;
    let workdir = order.workdir.map(|files| convert::workdir_from_proto("workdir", &files)).transpose();
    let workdir = workdir.map_err(|v| violated("workdir", &v))?;
    if workdir.is_some() && !order.working_directory.is_empty() {
        return Err(broken("workdir", "must not be given with working_directory"));
    }
    let artifacts = order.artifacts.map(convert::artifacts_from_proto);
    if let Some(rules) = &artifacts {
        kept("artifacts", |found| rules.check(found))?;
    }
    let ulimits = order.ulimits.map(convert::ulimits_from_proto).unwrap_or_default();
    kept("ulimits", |found| ulimits.check(found))?;
    let host = order.host.map(|asked| convert::host_rules_from_proto(&asked)).transpose();
    let host = host.map_err(|violation| violated("host", &violation))?.unwrap_or_default();
    // No work waits for a trace: what cannot be read is none.
    let trace_parent = TraceParent::parse(&order.trace_parent).ok();
    let place = order.array_index.zip(order.array_ordinal).zip(order.array_size);
    let array = place.map(|((index, ordinal), size)| ArrayMember { index, ordinal, size });
    let indices = order.array_indices.filter(|_| array.is_some());
    let array_indices = indices.map(|all| IndexRange { first: all.first, last: all.last, step: all.step });
    Ok(Placement {
        job,
        token,
        job_name: order.job_name,
        tenant: order.tenant,
        attempt: order.attempt,
        rank_map,
        workers,
        rendezvous_port,
        stop_grace: grace(order.stop_grace_ms),
        checkpoint_directory: order.checkpoint_directory,
        working_directory: order.working_directory,
        workdir,
        artifacts,
        artifacts_bytes_max: order.artifacts_bytes_max,
        ulimits,
        host,
        trace_parent,
        terminal: order.terminal,
        scratch_bytes: order.scratch_bytes,
        array,
        array_indices,
        region: order.region,
        cluster: order.cluster,
        preflight: order.preflight,
        form: launch_form(&order.launch)?,
        world_size_min: order.world_size_min,
        groups: group_sizes(order.groups, world)?,
        slices: order.slices.iter().map(|slices| tpu_slices(slices, world)).collect::<Result<_, _>>()?,
        notice,
        checkpoint,
        gang_secret: order.gang_secret,
    })
}

/// The workers that are to be launched here, by rank.
fn launches(messages: Vec<agent::WorkerLaunch>, world: usize) -> Result<Vec<Launch>, OrderError> {
    let mut workers = Vec::with_capacity(messages.len());
    let mut ranks = BTreeSet::new();
    let mut taken = DeviceLoad::NONE;
    for message in messages {
        let worker = launch(message)?;
        if worker.rank as usize >= world || !ranks.insert(worker.rank) {
            return Err(broken("workers.rank", "must be in the rank map, and there once"));
        }
        taken.add(worker.devices, worker.device_milli);
        if taken.overfull(&DeviceLoad::NONE).is_some() {
            return Err(broken("workers.devices", "names a device for more than there is of it"));
        }
        workers.push(worker);
    }
    workers.sort_by_key(|worker| worker.rank);
    Ok(workers)
}

/// Whether a field keeps its rules, by what collects those that are broken.
fn kept(field: &'static str, check: impl FnOnce(&mut Vec<Violation>)) -> Result<(), OrderError> {
    let mut found = Vec::new();
    check(&mut found);
    found.first().map_or(Ok(()), |violation| Err(violated(field, violation)))
}

fn group_sizes(groups: Vec<agent::GroupSize>, world: usize) -> Result<Vec<GroupSize>, OrderError> {
    if groups.len() > bounds::TASK_GROUPS_MAX {
        return Err(broken("groups", format!("must be at most {}", bounds::TASK_GROUPS_MAX)));
    }
    let workers: u64 = groups.iter().map(|group| u64::from(group.workers)).sum();
    if !groups.is_empty() && workers != world as u64 {
        return Err(broken("groups.workers", "must be as many as there are ranks"));
    }
    let mut sizes = Vec::with_capacity(groups.len());
    for group in groups {
        short("groups.name", &group.name, bounds::NAME_BYTES_MAX)?;
        sizes.push(GroupSize { name: group.name, workers: group.workers });
    }
    Ok(sizes)
}

fn rank_place(place: agent::RankPlace) -> Result<RankPlace, OrderError> {
    short("rank_map.node_name", &place.node_name, bounds::NAME_BYTES_MAX)?;
    short("rank_map.address", &place.address, 253)?;
    let form = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'_');
    if place.address.is_empty() || !place.address.bytes().all(form) {
        return Err(broken("rank_map.address", "must be an address or host name"));
    }
    let devices = u16::try_from(place.devices)
        .ok()
        .filter(|count| *count <= bounds::HOST_DEVICES_MAX)
        .ok_or_else(|| broken("rank_map.devices", format!("must be at most {}", bounds::HOST_DEVICES_MAX)))?;
    Ok(RankPlace { node_name: place.node_name, address: place.address, devices })
}

fn launch_form(text: &str) -> Result<LaunchForm, OrderError> {
    if text.is_empty() {
        return Ok(LaunchForm::Environment);
    }
    // A form of a later version: its command must not be started as if it were none.
    LaunchForm::parse(text).ok_or_else(|| broken("launch", format!("{text:?} is no form this agent knows")))
}

/// None where there is no such call.
fn http_notice(rules: v1::NoticeRules) -> Result<Option<HttpNotice>, OrderError> {
    if rules.http_port == 0 {
        return Ok(None);
    }
    let port =
        u16::try_from(rules.http_port).map_err(|_| broken("notice.http_port", "must be 1 to 65535"))?;
    let path = if rules.http_path.is_empty() { "/".to_owned() } else { rules.http_path };
    let form = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
    if !form || path.len() > bounds::NOTICE_PATH_BYTES_MAX {
        return Err(broken("notice.http_path", "must begin with '/' and have no blanks"));
    }
    Ok(Some(HttpNotice { port, path }))
}

fn checkpoint(state: agent::CheckpointState) -> Result<Checkpoint, OrderError> {
    short("checkpoint.place", &state.place, bounds::NAME_BYTES_MAX)?;
    Ok(Checkpoint {
        place: state.place,
        interval_ms: state.interval_ms,
        saved_at_ms: state.saved_at_ms,
        saved_attempt: state.saved_attempt,
    })
}

fn tpu_slices(slices: &agent::TpuSlices, world: usize) -> Result<Slices, OrderError> {
    let shape = SliceShape::parse(&slices.shape)
        .ok_or_else(|| broken("slices.shape", format!("must be {}", muster_types::tpu::SHAPE_RULE)))?;
    let ranks = u64::from(slices.hosts) * u64::from(slices.count);
    if ranks == 0 || u64::from(slices.first_rank) + ranks > world as u64 {
        return Err(broken("slices", "must be ranks of the gang, one at least"));
    }
    Ok(Slices { first_rank: slices.first_rank, hosts: slices.hosts, count: slices.count, shape })
}

fn launch(worker: agent::WorkerLaunch) -> Result<Launch, OrderError> {
    let container = worker.container.map(|message| convert::launched_container("workers.container", message));
    let container = container.transpose().map_err(|v| violated("workers.container", &v))?;
    let has_none = worker.command.is_empty() && container.is_none();
    if has_none || worker.command.len() > bounds::COMMAND_WORDS_MAX {
        return Err(broken("workers.command", format!("must have 1 to {} words", bounds::COMMAND_WORDS_MAX)));
    }
    for word in &worker.command {
        short("workers.command", word, bounds::TEXT_BYTES_MAX)?;
    }
    if worker.environment.len() > bounds::ENVIRONMENT_MAX {
        return Err(broken("workers.environment", format!("must have at most {}", bounds::ENVIRONMENT_MAX)));
    }
    for (key, value) in &worker.environment {
        short("workers.environment", key, bounds::TEXT_BYTES_MAX)?;
        short("workers.environment", value, bounds::TEXT_BYTES_MAX)?;
        if key.is_empty() || key.contains('=') {
            return Err(broken("workers.environment", "has a key that is empty or holds '='"));
        }
    }
    short("workers.group", &worker.group, bounds::NAME_BYTES_MAX)?;
    short("workers.accelerator_type", &worker.accelerator_type, bounds::NAME_BYTES_MAX)?;
    let field = "workers.devices";
    let devices = convert::device_set_from_proto(field, &worker.devices).map_err(|v| violated(field, &v))?;
    let share = u16::try_from(worker.device_share_milli).ok().filter(|milli| *milli < DEVICE_MILLI);
    let share = share.filter(|milli| *milli == 0 || devices.count() == 1).ok_or_else(|| {
        broken("workers.device_share_milli", format!("must be below {DEVICE_MILLI}, and of one device"))
    })?;
    Ok(Launch {
        device_milli: if share == 0 { DEVICE_MILLI } else { share },
        rank: worker.rank,
        group: worker.group,
        command: worker.command,
        environment: worker.environment.into_iter().collect(),
        devices,
        accelerator_type: worker.accelerator_type,
        cpu_milli: worker.cpu_milli,
        memory_bytes: worker.memory_bytes,
        container,
    })
}

/// At most this many bytes, and none that ends a C string.
fn short(field: &'static str, text: &str, bytes_max: usize) -> Result<(), OrderError> {
    if text.len() > bytes_max {
        return Err(broken(field, format!("must be at most {bytes_max} bytes")));
    }
    if text.contains('\0') {
        return Err(broken(field, "must not hold a zero byte"));
    }
    Ok(())
}

/// A worker's state as the protocol has it.
#[must_use]
pub(crate) fn state_message(state: WorkerState, kept: &KeptArtifacts) -> agent::WorkerState {
    use agent::worker_state::Subject;
    let WorkerState { key, exit } = state;
    let subject = match key.rank {
        WHOLE_PLACEMENT => Subject::WholePlacement(agent::WholePlacement {}),
        rank => Subject::Rank(rank),
    };
    agent::WorkerState {
        job_id: key.job.to_string(),
        token: Some(convert::fencing_token_to_proto(key.token)),
        subject: Some(subject),
        artifacts: exit.as_ref().and_then(|_| kept.of(key)).as_ref().map(convert::kept_to_proto),
        exit: exit.as_ref().map(convert::exit_status_to_proto),
    }
}

/// A message of the node as the protocol has it. `kept` says what became of the artifacts of workers that have ended.
pub(crate) fn request(message: Message, kept: &KeptArtifacts) -> agent::SessionRequest {
    use agent::session_request::Message as Request;
    let message = match message {
        Message::ConfirmStart { job, token } => {
            let token = Some(convert::fencing_token_to_proto(token));
            Request::ConfirmStart(agent::ConfirmStart { job_id: job.to_string(), token })
        }
        Message::Report { sequence, workers } => Request::Report(agent::Report {
            sequence,
            workers: workers.into_iter().map(|state| state_message(state, kept)).collect(),
        }),
        Message::WorkerEvent(event) => Request::Note(event_message(event)),
        Message::PreflightWaiting { job, token } => {
            let token = Some(convert::fencing_token_to_proto(token));
            let waiting = agent::PreflightWaiting { job_id: job.to_string(), token };
            let step = Some(agent::preflight_report::Step::Waiting(waiting));
            Request::PreflightReport(agent::PreflightReport { step })
        }
        Message::ForeignLoad(load) => Request::ForeignLoad(convert::foreign_load_to_proto(load)),
    };
    agent::SessionRequest { message: Some(message) }
}

fn event_message(event: SequencedEvent) -> agent::WorkerNote {
    use agent::worker_note::Note;
    let SequencedEvent { key, sequence, event } = event;
    let note = match event {
        WorkerEvent::CheckpointCommitted { step } => {
            Note::CheckpointCommitted(agent::CheckpointNote { step })
        }
        WorkerEvent::Step { number, duration_ms } => Note::Step(agent::StepNote { number, duration_ms }),
        WorkerEvent::Ready => Note::Ready(agent::ReadyNote {}),
    };
    agent::WorkerNote {
        job_id: key.job.to_string(),
        token: Some(convert::fencing_token_to_proto(key.token)),
        rank: key.rank,
        sequence,
        note: Some(note),
    }
}

/// An order from the wire; none for what the session itself handles.
pub(crate) fn order_of(message: agent::session_response::Message) -> Result<Option<Order>, OrderError> {
    use agent::session_response::Message;
    Ok(Some(match message {
        Message::Start(start) => {
            let (of, with) = (job(&start.job_id)?, token(start.token)?);
            let ranks = start.workers.iter().map(|w| w.rank).take(REPORT_RANKS_MAX).collect();
            match placement(start) {
                Ok(placement) => Order::Start(Box::new(placement)),
                Err(error) => Order::Malformed { job: of, token: with, ranks, reason: error.to_string() },
            }
        }
        Message::Stop(stop) => Order::Stop {
            job: job(&stop.job_id)?,
            token: token(stop.token)?,
            request: StopRequest { grace: grace(stop.grace_ms), reason: StopReason::of_name(&stop.reason) },
        },
        Message::StartConfirmed(confirmed) => Order::StartConfirmed {
            job: job(&confirmed.job_id)?,
            token: token(confirmed.token)?,
            current: confirmed.current,
        },
        Message::ReportAck(ack) => Order::ReportAck(ack.sequence),
        Message::NoteAck(ack) => {
            Order::EventAck(ack.sequence, (!ack.refused.is_empty()).then(|| detail(&ack.refused)))
        }
        Message::ReadLogs(read) => Order::ReadLogs { read_id: read.read_id, request: output_request(read)? },
        Message::Exec(exec) => {
            let key = WorkerKey { job: job(&exec.job_id)?, token: token(exec.token)?, rank: exec.rank };
            Order::Exec(exec.relay_id, key)
        }
        Message::PreflightOrder(order) => return preflight_order(order),
        Message::Registered(_)
        | Message::HeartbeatAck(_)
        | Message::HealthAck(_)
        | Message::Repair(_)
        | Message::Prefetch(_) => return Ok(None),
    }))
}

fn preflight_order(order: agent::PreflightOrder) -> Result<Option<Order>, OrderError> {
    use agent::preflight_order::Step;
    Ok(Some(match order.step {
        Some(Step::Listen(listen)) => Order::ProbeListen(listen.probe_id),
        Some(Step::Run(run)) => {
            let (probe, broken) = (run.probe_id, |rule| OrderError { field: "preflight_order.run", rule });
            Order::ProbeRun(probe, probe_plan(run).map_err(broken)?)
        }
        Some(Step::Verdict(verdict)) => Order::Verdict {
            job: job(&verdict.job_id)?,
            token: token(verdict.token)?,
            fault: (!verdict.fault.is_empty()).then_some(verdict.fault),
        },
        // A step that this version does not know.
        None => return Ok(None),
    }))
}

fn output_request(read: agent::ReadLogsOrder) -> Result<OutputRequest, OrderError> {
    let streams = match read.stream.as_str() {
        "" | "both" => vec![OutputStream::Stdout, OutputStream::Stderr],
        "stdout" => vec![OutputStream::Stdout],
        "stderr" => vec![OutputStream::Stderr],
        _ => {
            let rule = "must be stdout, stderr or empty".to_owned();
            return Err(OrderError { field: "stream", rule });
        }
    };
    let key = WorkerKey { job: job(&read.job_id)?, token: token(read.token)?, rank: read.rank };
    let agent::ReadLogsOrder { follow, tail_bytes, from_position, .. } = read;
    Ok(OutputRequest { key, streams, follow, tail_bytes, from_position })
}

/// A plan from the wire; the rule that it breaks.
fn probe_plan(order: agent::ProbeRun) -> Result<Plan, String> {
    let key: [u8; 16] = order.key.try_into().map_err(|_| "key must be 16 bytes".to_owned())?;
    let count = order.peers.len();
    if !(2..=crate::limits::PROBE_PEERS_MAX).contains(&count) || order.own as usize >= count {
        return Err(format!(
            "peers must be 2 to {}, and this node among them",
            crate::limits::PROBE_PEERS_MAX
        ));
    }
    let mut peers = Vec::with_capacity(count);
    for peer in order.peers {
        let port = u16::try_from(peer.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| "peers.port must be 1 to 65535".to_owned())?;
        if peer.address.is_empty() || peer.address.len() > 253 {
            return Err("peers.address must be an address or host name".to_owned());
        }
        peers.push((peer.address, port));
    }
    let limits = Limits {
        pair_bytes: order.pair_bytes.clamp(1, crate::limits::PROBE_BYTES_MAX),
        pair: Duration::from_millis(u64::from(order.pair_ms).clamp(1, 10_000)),
        ring_bytes: order.ring_bytes.min(crate::limits::PROBE_BYTES_MAX),
        budget: Duration::from_millis(u64::from(order.budget_ms).clamp(1, 60_000)),
    };
    Ok(Plan { key: u128::from_be_bytes(key), own: order.own, peers, limits })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use muster_types::DeviceSet;
    use std::collections::BTreeMap;

    pub(crate) fn order() -> agent::StartOrder {
        agent::StartOrder {
            job_id: "job-1".into(),
            token: Some(v1::FencingToken { generation: 1, log_index: 7 }),
            rank_map: vec![
                agent::RankPlace { node_name: "n".into(), address: "10.0.0.1".into(), devices: 2 };
                2
            ],
            workers: vec![agent::WorkerLaunch {
                rank: 1,
                command: vec!["true".into()],
                devices: vec![0, 3],
                ..Default::default()
            }],
            rendezvous_port: 61_447,
            ..Default::default()
        }
    }

    fn refused(change: impl FnOnce(&mut agent::StartOrder)) -> &'static str {
        let mut order = order();
        change(&mut order);
        placement(order).expect_err("must be refused").field
    }

    #[test]
    fn a_good_order_passes() {
        let placement = placement(order()).unwrap();
        assert_eq!(placement.workers[0].devices, DeviceSet(0b1001));
        assert_eq!(placement.key(1).to_string(), "job-1@1.7/1");
    }

    #[test]
    fn a_member_of_an_array_has_the_bounds_of_the_array() {
        let mut member = order();
        (member.array_index, member.array_size, member.array_ordinal) = (Some(7), Some(3), Some(1));
        member.array_indices = Some(agent::ArrayIndices { first: 4, last: 10, step: 3 });
        let got = placement(member.clone()).unwrap();
        assert_eq!(got.array, Some(ArrayMember { index: 7, ordinal: 1, size: 3 }));
        assert_eq!(got.array_indices, Some(IndexRange { first: 4, last: 10, step: 3 }));
        // An older replica sends none.
        let older = agent::StartOrder { array_indices: None, ..member.clone() };
        assert_eq!(placement(older).unwrap().array_indices, None);
        let outside = agent::StartOrder { array_index: None, ..member };
        assert_eq!(placement(outside).unwrap().array_indices, None);
    }

    #[test]
    fn groups_have_as_many_workers_as_there_are_ranks() {
        let size = |workers| agent::GroupSize { name: "g".into(), workers };
        let mut good = order();
        good.groups = vec![size(1), size(1)];
        assert_eq!(placement(good).unwrap().groups.len(), 2);
        assert_eq!(refused(|order| order.groups = vec![size(1), size(2)]), "groups.workers");
        assert_eq!(refused(|order| order.groups = vec![size(1); 17]), "groups");
    }

    #[test]
    fn shares_of_one_device_fill_it_and_no_more() {
        let mut order = order();
        order.workers[0].devices = vec![3];
        order.workers[0].device_share_milli = 600;
        let other = agent::WorkerLaunch { rank: 0, device_share_milli: 400, ..order.workers[0].clone() };
        order.workers.push(other);
        let placement = placement(order).unwrap();
        assert_eq!(placement.workers.iter().map(|w| w.device_milli).collect::<Vec<_>>(), [400, 600]);
        let mut load = DeviceLoad::NONE;
        load.add(DeviceSet(0b1000), 600);
        let mut other = DeviceLoad::NONE;
        other.add(DeviceSet(0b1001), 401);
        assert_eq!(load.overfull(&other), Some(3));
        assert_eq!(load.overfull(&DeviceLoad::NONE), None);
    }

    #[test]
    fn every_broken_field_is_named() {
        assert_eq!(refused(|o| o.token = None), "token");
        assert_eq!(refused(|o| o.token = Some(v1::FencingToken::default())), "token");
        assert_eq!(refused(|o| o.job_id = "../../etc".into()), "job_id");
        assert_eq!(refused(|o| o.rank_map.clear()), "rank_map");
        assert_eq!(refused(|o| o.rank_map[0].address = "a b".into()), "rank_map.address");
        assert_eq!(refused(|o| o.rank_map[0].devices = 65), "rank_map.devices");
        let slices = |first_rank, hosts, shape: &str| agent::TpuSlices {
            first_rank,
            hosts,
            count: 1,
            shape: shape.into(),
        };
        assert_eq!(refused(|o| o.slices = vec![slices(0, 1, "2x")]), "slices.shape");
        assert_eq!(refused(|o| o.slices = vec![slices(0, 0, "2x4")]), "slices");
        assert_eq!(refused(|o| o.slices = vec![slices(1, 2, "2x4")]), "slices");
        assert_eq!(refused(|o| o.slices = vec![slices(u32::MAX, u32::MAX, "2x4")]), "slices");
        assert_eq!(refused(|o| o.launch = "kubernetes".into()), "launch");
        let notice = |http_port, path: &str| Some(v1::NoticeRules { http_port, http_path: path.into() });
        assert_eq!(refused(|o| o.notice = notice(65_536, "/")), "notice.http_port");
        assert_eq!(refused(|o| o.notice = notice(80, "/a\r\nb")), "notice.http_path");
        assert_eq!(refused(|o| o.workers.clear()), "workers");
        assert_eq!(refused(|o| o.workers[0].rank = 2), "workers.rank");
        assert_eq!(refused(|o| o.workers.push(o.workers[0].clone())), "workers.rank");
        assert_eq!(refused(|o| o.workers[0].devices = vec![64]), "workers.devices");
        assert_eq!(refused(|o| o.workers[0].devices = vec![1, 1]), "workers.devices");
        let second = |o: &mut agent::StartOrder, share: u32| {
            let devices = vec![3];
            let other =
                agent::WorkerLaunch { rank: 0, devices, device_share_milli: share, ..o.workers[0].clone() };
            o.workers[0].devices = vec![3];
            o.workers[0].device_share_milli = 600;
            o.workers.push(other);
        };
        assert_eq!(refused(|o| second(o, 0)), "workers.devices");
        assert_eq!(refused(|o| second(o, 401)), "workers.devices");
        assert_eq!(refused(|o| o.workers[0].device_share_milli = 500), "workers.device_share_milli");
        assert_eq!(refused(|o| second(o, 1_000)), "workers.device_share_milli");
        assert_eq!(refused(|o| o.workers[0].command.clear()), "workers.command");
        assert_eq!(refused(|o| o.workers[0].command[0] = "a\0b".into()), "workers.command");
        let image = |image: &str| v1::ContainerRuntime { image: image.into(), ..Default::default() };
        assert_eq!(refused(|o| o.workers[0].container = Some(image("--root=/:1"))), "workers.container");
        let user = v1::ContainerRuntime { user: "0".into(), ..image("localhost/train:1") };
        assert_eq!(refused(|o| o.workers[0].container = Some(user.clone())), "workers.container");
        let files = |digest: &str| Some(v1::Workdir { digest: digest.into() });
        for bad in ["", "../../etc", "sha256:00", &format!("sha256:{}", "A".repeat(64))] {
            assert_eq!(refused(|o| o.workdir = files(bad)), "workdir");
        }
        let twice = |o: &mut agent::StartOrder| {
            o.workdir = files(&format!("sha256:{}", "a".repeat(64)));
            o.working_directory = "/work".into();
        };
        assert_eq!(refused(twice), "workdir");
        let few = v1::Ulimits { open_files: Some(3), ..Default::default() };
        assert_eq!(refused(|o| o.ulimits = Some(few)), "ulimits");
        let unknown = v1::HostRules { binding: 99, ..Default::default() };
        assert_eq!(refused(|o| o.host = Some(unknown)), "host");
        assert_eq!(refused(|o| o.rendezvous_port = 0), "rendezvous_port");
        let bad = |k: &str| BTreeMap::from([(k.to_owned(), String::new())]).into_iter().collect();
        assert_eq!(refused(|o| o.workers[0].environment = bad("A=B")), "workers.environment");
        assert_eq!(refused(|o| o.job_name = "x".repeat(5_000)), "job_name, tenant, region or cluster");
    }

    fn probe_order() -> agent::ProbeRun {
        let peer = agent::ProbePeer { address: "10.0.0.1".into(), port: 9 };
        agent::ProbeRun {
            probe_id: 1,
            key: vec![1; 16],
            own: 1,
            peers: vec![peer.clone(), peer],
            pair_bytes: u64::MAX,
            pair_ms: 100,
            ring_bytes: 1 << 20,
            budget_ms: u32::MAX,
        }
    }

    #[test]
    fn a_plan_is_checked_and_held_to_its_bounds() {
        let plan = probe_plan(probe_order()).unwrap();
        assert_eq!((plan.own, plan.peers.len()), (1, 2));
        assert_eq!(plan.limits.pair_bytes, crate::limits::PROBE_BYTES_MAX);
        assert_eq!(plan.limits.budget, Duration::from_secs(60));
        let broken = |change: fn(&mut agent::ProbeRun)| {
            let mut order = probe_order();
            change(&mut order);
            probe_plan(order).unwrap_err()
        };
        assert!(broken(|o| o.key.truncate(15)).starts_with("key"));
        assert!(broken(|o| o.own = 2).starts_with("peers must be"));
        assert!(broken(|o| o.peers.truncate(1)).starts_with("peers must be"));
        assert!(broken(|o| o.peers[0].port = 65_536).starts_with("peers.port"));
        assert!(broken(|o| o.peers[0].address.clear()).starts_with("peers.address"));
    }
}
