//! `muster.agent.v1beta1.NodeService`: sessions of agents, here or passed on to the leader.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use muster_decider::PlannedImage;
use muster_engine::{
    Inbound, LogChunk, NodeStage, Opening, Order, Outbound, ProbeOrder, ProbeReport, Session, WorkerReport,
};
use muster_state::State;
use muster_transport::ShortName;
use muster_types::container::is_reference;
use muster_types::{
    AgentStart, Features, NodeId, Refusal, RefusalCode, StartId, StartStage, Violation, limits,
};
use muster_wire::agent;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::node_service_server::NodeService;
use muster_wire::agent::{session_request, session_response};
use muster_wire::convert::{
    device_set_to_proto, features_from_proto, features_to_proto, fencing_token_from_proto,
    fencing_token_to_proto, foreign_load_from_proto, health_report_from_proto, holder_id_from_text, job_id,
    node_spec_from_proto, probe_links_from_proto, probe_ring_from_proto, worker_report_from_proto,
};
use muster_wire::status::to_status;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::exec;
use crate::forward::{Caller, ONWARD_BYTES_MAX, Remote, Route, Router};
use crate::guard::ours;
use crate::onward_stream;
use crate::original::Onward;
use crate::read::invalid;
use crate::refusals::{self, late, stopping};
use crate::shares::{Tallies, Tally};

/// How long an agent may take to say who it is.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that wait between two streams.
const MESSAGES_WAITING_MAX: usize = 64;
/// Workers one message may name: a host has at most 64 devices, and keeps some ended ones.
const WORKERS_MAX: usize = 4_096;
/// Bytes of one piece of output.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// How long an agent may take nothing before its session is given up; its lease is over by then, or
/// will be.
const STALL_MAX: Duration = Duration::from_secs(10);

/// What a reader is told whose output does not end but stops.
const BROKEN_OFF: &str = "the output broke off: the connection to the node's agent was lost";

pub(crate) struct Nodes {
    router: Router,
    sessions: OpenSessions,
}

impl Nodes {
    pub(crate) fn new(router: Router, sessions_max: u32) -> Nodes {
        Nodes { router, sessions: OpenSessions { sessions_max, open: Tallies::default() } }
    }
}

/// Sessions that are open here, by node: an agent that speaks for many nodes has one certificate for all of them.
struct OpenSessions {
    /// Of one node.
    sessions_max: u32,
    open: Tallies<ShortName>,
}

impl OpenSessions {
    /// A place for a session of this node; none for a text that is no node's name, which registers nothing.
    fn enter(&self, node: &str) -> Result<Option<Tally<ShortName>>, Status> {
        let Some(node) = ShortName::new(node) else { return Ok(None) };
        let place = self.open.enter(node, self.sessions_max).ok_or_else(|| {
            let text =
                format!("{node} has {} sessions open, as many as it may; try again", self.sessions_max);
            let refusal = Refusal::new(RefusalCode::Overloaded, text).with("node", node);
            to_status(&refusal.with("limit", "open_sessions").with("limit_max", self.sessions_max))
        })?;
        Ok(Some(place))
    }
}

type Responses = BoxStream<'static, Result<agent::SessionResponse, Status>>;

#[tonic::async_trait]
impl NodeService for Nodes {
    type SessionStream = Responses;

    async fn session(
        &self,
        request: Request<Streaming<agent::SessionRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let caller = self.router.caller(&request);
        let mut requests = request.into_inner();
        let first = tokio::time::timeout(REGISTER_TIMEOUT, requests.message()).await;
        let Ok(first) = first else {
            return Err(late("the first message must come within 5 s, and be register"));
        };
        let Some(agent::SessionRequest { message: Some(session_request::Message::Register(register)) }) =
            first?
        else {
            return Err(invalid(vec![Violation::new("message", "the first message must be register")]));
        };
        let name = register.node.as_ref().map_or("", |node| &node.name);
        caller.speaks_for(name)?;
        let place = self.sessions.enter(name)?;
        let responses = match self.router.route(caller).await? {
            Route::Remote(leader) => pass_on(self.router.clone(), leader, caller, register, requests).await?,
            Route::Local => {
                let opening = opening(&register)?;
                let session = self.router.engine().open_session(opening).await;
                let session = session.map_err(|refusal| to_status(&refusal))?;
                serve(self.router.clone(), session, requests)
            }
        };
        // The place is taken until the session ends.
        let held = responses.inspect(move |_| {
            let _ = &place;
        });
        Ok(Response::new(held.boxed()))
    }

    async fn upload_logs(
        &self,
        request: Request<Streaming<agent::UploadLogsRequest>>,
    ) -> Result<Response<agent::UploadLogsResponse>, Status> {
        let caller = self.router.caller(&request);
        let uploads = request.into_inner();
        match self.router.route(caller).await? {
            Route::Local => {
                let router = self.router.clone();
                // A stream that is reset ends this call, and the reader has to hear of it nevertheless.
                let taken = tokio::spawn(async move { take_upload(&router, caller, uploads).await });
                taken.await.map_err(|_| refusals::failed("the output could not be passed on"))??;
            }
            Route::Remote(leader) => {
                let (onward, broken_off) = onward_stream::request(None, uploads, caller);
                let sent = onward_client(leader.channel).upload_logs(onward).await;
                sent.map_err(|status| broken_off.rather_than(status))?;
            }
        }
        Ok(Response::new(agent::UploadLogsResponse {}))
    }

    type RelayExecStream = BoxStream<'static, Result<agent::RelayExecResponse, Status>>;

    async fn relay_exec(
        &self,
        request: Request<Streaming<agent::RelayExecRequest>>,
    ) -> Result<Response<Self::RelayExecStream>, Status> {
        exec::relay(&self.router, request).await
    }
}

fn onward_client(channel: Onward) -> NodeServiceClient<Onward> {
    NodeServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX)
}

/// Connects the agent's stream with one to the leader, until another leads: an agent whose leader fell silent
/// has its lease renewed as soon as there is a leader that can.
async fn pass_on(
    router: Router,
    Remote { channel, leader }: Remote,
    caller: Caller,
    mut register: agent::Register,
    requests: Streaming<agent::SessionRequest>,
) -> Result<Responses, Status> {
    // A kind of message that this replica does not know would be empty behind it: each side is to hear of what it
    // can pass on, and no more.
    register.takes = features_to_proto(features_from_proto(&register.takes));
    let first = agent::SessionRequest { message: Some(session_request::Message::Register(register)) };
    let (onward, broken_off) = onward_stream::request(Some(first), requests, caller);
    let mut to_leader = onward_client(channel);
    let responses = tokio::select! {
        opened = to_leader.session(onward) => {
            opened.map_err(|status| broken_off.rather_than(status))?.into_inner()
        }
        () = router.superseded(leader) => {
            let text = "another replica leads by now; open another session";
            return Err(to_status(&Refusal::new(RefusalCode::NotLeader, text)));
        }
    };
    let superseded = async move { router.superseded(leader).await };
    let responses = responses.map_err(move |status| broken_off.rather_than(status));
    Ok(responses.take_until(Box::pin(superseded)).map_ok(passable).boxed())
}

/// The leader's word, as far as this replica can pass on what follows from it.
fn passable(mut response: agent::SessionResponse) -> agent::SessionResponse {
    if let Some(session_response::Message::Registered(registered)) = &mut response.message {
        registered.takes = features_to_proto(features_from_proto(&registered.takes));
    }
    response
}

fn opening(register: &agent::Register) -> Result<Opening, Status> {
    let mut violations = Vec::new();
    let node = register.node.clone();
    let spec = node_spec_from_proto("node", node.as_ref()).map_err(|v| violations.extend(v)).ok();
    let holder = holder_id_from_text("holder_id", &register.holder_id).map_err(|v| violations.push(v)).ok();
    let workers = worker_reports("workers", &register.workers).map_err(|v| violations.extend(v)).ok();
    match (spec, holder, workers) {
        (Some(spec), Some(holder), Some(workers)) => {
            let takes = features_from_proto(&register.takes);
            Ok(Opening { spec, holder, start: agent_start_of(register), workers, takes })
        }
        _ => Err(invalid(violations)),
    }
}

/// Which start of the agent it is, where it says that.
fn agent_start_of(register: &agent::Register) -> Option<AgentStart> {
    let start = |id: u64| (id > 0).then_some(StartId(id));
    Some(AgentStart { id: start(register.start_id)?, before: start(register.start_before_id) })
}

/// Workers as the engine takes them.
fn worker_reports(at: &str, messages: &[agent::WorkerState]) -> Result<Vec<WorkerReport>, Vec<Violation>> {
    if messages.len() > WORKERS_MAX {
        return Err(vec![Violation::limit(at, messages.len() as u64, 0, WORKERS_MAX as u64)]);
    }
    let mut found = Vec::new();
    let mut reports = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate() {
        match worker_report_from_proto(&format!("{at}[{place}]"), message) {
            Ok(r) => reports.push(WorkerReport {
                job: r.job,
                token: r.token,
                rank: r.rank,
                exit: r.exit,
                artifacts: r.artifacts,
            }),
            Err(violations) => found.extend(violations),
        }
        if found.len() >= limits::BATCH_JOBS_MAX {
            break;
        }
    }
    if found.is_empty() { Ok(reports) } else { Err(found) }
}

/// Runs a session: the agent's messages in, the engine's out. Ends when either side does.
fn serve(router: Router, session: Session, requests: Streaming<agent::SessionRequest>) -> Responses {
    let (to_agent, responses) = mpsc::channel(MESSAGES_WAITING_MAX);
    tokio::spawn(async move {
        let ended = carry(&router, session, requests, &to_agent).await;
        // The agent may have gone or take nothing; then nobody is left to tell.
        let _ = to_agent.try_send(Err(ended));
    });
    ReceiverStream::new(responses).boxed()
}

/// Carries messages both ways until one side ends; neither way ever waits for the other, or two full
/// queues would hold each other for ever.
async fn carry(
    router: &Router,
    mut session: Session,
    mut requests: Streaming<agent::SessionRequest>,
    to_agent: &mpsc::Sender<Result<agent::SessionResponse, Status>>,
) -> Status {
    let over = || refusals::over("the session ended; open another");
    let node = session.node;
    let inbound = session.inbound();
    let ended = session.ended();
    tokio::pin!(ended);
    let mut out: Option<(agent::SessionResponse, Instant)> = None;
    let mut inward: Option<Inbound> = None;
    loop {
        let stalled = out.as_ref().map_or_else(Instant::now, |(_, since)| *since + STALL_MAX);
        tokio::select! {
            () = &mut ended => return over(),
            () = tokio::time::sleep_until(stalled), if out.is_some() => {
                tracing::warn!(%node, "the agent takes no messages; its session ends");
                return over();
            }
            permit = to_agent.reserve(), if out.is_some() => match (permit, out.take()) {
                (Ok(permit), Some((response, _))) => permit.send(Ok(response)),
                _ => return over(),
            },
            permit = inbound.reserve(), if inward.is_some() => match (permit, inward.take()) {
                (Ok(permit), Some(message)) => permit.send(message),
                _ => return over(),
            },
            message = session.next(), if out.is_none() => match message {
                Some(message) => {
                    out = Some((response(&router.engine().view(), node, message), Instant::now()));
                }
                None => return over(),
            },
            request = requests.message(), if inward.is_none() => match request.map(|r| r.map(inbound_of)) {
                Ok(Some(Ok(message))) => inward = Some(message),
                Ok(Some(Err(violations))) => return invalid(violations),
                Ok(None) => return over(),
                Err(status) => return ours(status),
            },
        }
    }
}

fn inbound_of(request: agent::SessionRequest) -> Result<Inbound, Vec<Violation>> {
    let refuse = |field: &str, text: &str| Err(vec![Violation::new(field, text)]);
    match request.message {
        Some(session_request::Message::Heartbeat(heartbeat)) => {
            Ok(Inbound::Heartbeat { sequence: heartbeat.sequence })
        }
        Some(session_request::Message::Report(report)) => {
            let workers = worker_reports("report.workers", &report.workers)?;
            Ok(Inbound::Report { sequence: report.sequence, workers })
        }
        Some(session_request::Message::ConfirmStart(confirm)) => {
            let job = job_id("confirm_start.job_id", &confirm.job_id).map_err(|v| vec![v])?;
            let token = fencing_token_from_proto("confirm_start.token", confirm.token.as_ref())
                .map_err(|v| vec![v])?;
            Ok(Inbound::ConfirmStart { job, token })
        }
        Some(session_request::Message::PreflightReport(report)) => probe_report(report).map(Inbound::Probe),
        Some(session_request::Message::Health(health)) => {
            let report = health_report_from_proto("health", &health)?;
            Ok(Inbound::Health { sequence: health.sequence, report: Box::new(report) })
        }
        Some(session_request::Message::ForeignLoad(load)) => {
            foreign_load_from_proto("foreign_load", &load).map(Inbound::ForeignLoad).map_err(|v| vec![v])
        }
        Some(session_request::Message::Images(held)) => Ok(Inbound::Images(held_images(held))),
        Some(session_request::Message::StartStage(report)) => start_stage(report),
        Some(session_request::Message::Note(note)) => inbound_note(note),
        Some(session_request::Message::Register(_)) => refuse("message", "a session registers once"),
        None => refuse(
            "message",
            "must be one of register, heartbeat, report, confirm_start, health, note, preflight_report, foreign_load, \
             images, start_stage",
        ),
    }
}

/// What is no reference, or too much, is left out: a hint is worth no session.
fn held_images(held: agent::HeldImages) -> Vec<String> {
    let references = held.references.into_iter().filter(|reference| is_reference(reference));
    references.take(limits::IMAGES_HELD_MAX).collect()
}

fn start_stage(report: agent::StartStageReport) -> Result<Inbound, Vec<Violation>> {
    let job = job_id("start_stage.job_id", &report.job_id).map_err(|v| vec![v])?;
    let token = fencing_token_from_proto("start_stage.token", report.token.as_ref()).map_err(|v| vec![v])?;
    let stage = match report.stage() {
        agent::StartStage::Pulling => StartStage::Pulling,
        agent::StartStage::Unpacking => StartStage::Unpacking,
        // One of a later release is behind these.
        agent::StartStage::Starting | agent::StartStage::Unspecified => StartStage::Starting,
    };
    let image = if is_reference(&report.image) { report.image } else { String::new() };
    Ok(Inbound::StartStage { job, token, stage: NodeStage { stage, image } })
}

fn prefetch_order(images: &[PlannedImage]) -> agent::PrefetchOrder {
    let image = |planned: &PlannedImage| agent::PrefetchImage {
        tenant: planned.tenant.to_string(),
        image: planned.image.clone(),
        credentials: planned.credentials.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    agent::PrefetchOrder { images: images.iter().take(limits::IMAGES_AHEAD_MAX).map(image).collect() }
}

fn inbound_note(note: agent::WorkerNote) -> Result<Inbound, Vec<Violation>> {
    let job = job_id("note.job_id", &note.job_id).map_err(|v| vec![v])?;
    let token = fencing_token_from_proto("note.token", note.token.as_ref()).map_err(|v| vec![v])?;
    match note.note {
        Some(agent::worker_note::Note::CheckpointCommitted(checkpoint)) => {
            let step = (checkpoint.step > 0).then_some(checkpoint.step);
            Ok(Inbound::CheckpointCommitted { sequence: note.sequence, job, token, step })
        }
        Some(agent::worker_note::Note::Step(step)) => {
            let agent::StepNote { number, duration_ms } = step;
            Ok(Inbound::Step { job, token, rank: note.rank, number, duration_ms })
        }
        Some(agent::worker_note::Note::Ready(agent::ReadyNote {})) => {
            Ok(Inbound::Ready { sequence: note.sequence, job, token, rank: note.rank })
        }
        None => Err(vec![Violation::new("note.note", "must be one of checkpoint_committed, step, ready")]),
    }
}

fn probe_report(report: agent::PreflightReport) -> Result<ProbeReport, Vec<Violation>> {
    use agent::preflight_report::Step;
    match report.step {
        Some(Step::Waiting(waiting)) => {
            let job = job_id("preflight_report.waiting.job_id", &waiting.job_id).map_err(|v| vec![v])?;
            let token = fencing_token_from_proto("preflight_report.waiting.token", waiting.token.as_ref());
            Ok(ProbeReport::Waiting { job, token: token.map_err(|v| vec![v])? })
        }
        Some(Step::Listening(listening)) => {
            let agent::ProbeListening { probe_id, port, failure } = listening;
            let checked = u16::try_from(port).ok().filter(|port| *port > 0);
            let port = match checked {
                Some(port) if failure.is_empty() => Ok(port),
                _ if !failure.is_empty() => Err(failure.chars().take(limits::TEXT_BYTES_MAX / 4).collect()),
                _ => {
                    let field = "preflight_report.listening.port";
                    return Err(vec![Violation::limit(field, port.into(), 1, u16::MAX.into())]);
                }
            };
            Ok(ProbeReport::Listening { probe: probe_id, port })
        }
        Some(Step::Measured(measured)) => {
            let links = probe_links_from_proto("preflight_report.measured.links", &measured.links)?;
            let ring = measured.ring.as_ref().map(probe_ring_from_proto);
            let load_milli = measured.load_milli.min(1_000) as u16;
            Ok(ProbeReport::Measured { probe: measured.probe_id, links, ring, load_milli })
        }
        None => Err(vec![Violation::new("preflight_report.step", "must be waiting, listening or measured")]),
    }
}

fn preflight_order(order: ProbeOrder) -> agent::PreflightOrder {
    use agent::preflight_order::Step;
    let step = match order {
        ProbeOrder::Listen { probe } => Step::Listen(agent::ProbeListen { probe_id: probe }),
        ProbeOrder::Run { probe, key, own, peers, pair_bytes, pair_ms, ring_bytes, budget_ms } => {
            let peer = |(address, port): &(String, u16)| agent::ProbePeer {
                address: address.clone(),
                port: u32::from(*port),
            };
            Step::Run(agent::ProbeRun {
                probe_id: probe,
                key: key.to_be_bytes().to_vec(),
                own,
                peers: peers.iter().map(peer).collect(),
                pair_bytes,
                pair_ms,
                ring_bytes,
                budget_ms,
            })
        }
        ProbeOrder::Verdict { job, token, fault } => Step::Verdict(agent::PreflightVerdict {
            job_id: job.to_string(),
            token: Some(fencing_token_to_proto(token)),
            fault: fault.unwrap_or_default(),
        }),
    };
    agent::PreflightOrder { step: Some(step) }
}

fn response(view: &State, node: NodeId, message: Outbound) -> agent::SessionResponse {
    use session_response::Message;
    let message = match message {
        Outbound::Registered { node, incarnation, generation, parameters } => {
            Message::Registered(agent::Registered {
                node_id: node.to_string(),
                incarnation,
                cluster_generation: generation,
                lease_ttl_ms: parameters.lease_ttl_ms,
                heartbeat_interval_ms: parameters.heartbeat_interval_ms,
                lease_stop_grace_ms: parameters.lease_stop_grace_ms(),
                takes: features_to_proto(Features::all()),
                cluster_id: view.cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
            })
        }
        Outbound::HeartbeatAck { sequence } => Message::HeartbeatAck(agent::HeartbeatAck { sequence }),
        Outbound::NoteAck { sequence, refused } => Message::NoteAck(agent::NoteAck {
            sequence,
            refused: refused.map(|refusal| refusal.to_string()).unwrap_or_default(),
        }),
        Outbound::HealthAck { sequence } => Message::HealthAck(agent::HealthAck { sequence }),
        Outbound::Repair(repair) => Message::Repair(agent::RepairOrder {
            number: repair.number,
            action: repair.action.name().to_owned(),
            devices: device_set_to_proto(repair.devices),
        }),
        Outbound::ReportAck { sequence } => Message::ReportAck(agent::ReportAck { sequence }),
        Outbound::StartConfirmed { job, token, current } => Message::StartConfirmed(agent::StartConfirmed {
            job_id: job.to_string(),
            token: Some(fencing_token_to_proto(token)),
            current,
        }),
        Outbound::Order(Order::Start(order)) => {
            crate::spans::ordered(&order, node);
            Message::Start(crate::render::start_order(&order, node))
        }
        Outbound::Order(Order::Stop(stop)) => Message::Stop(agent::StopOrder {
            job_id: stop.job.to_string(),
            token: Some(fencing_token_to_proto(stop.token)),
            grace_ms: stop.grace_ms,
            reason: stop.reason.map(|reason| reason.name().to_owned()).unwrap_or_default(),
        }),
        Outbound::Probe(order) => Message::PreflightOrder(preflight_order(order)),
        Outbound::Prefetch(images) => Message::Prefetch(prefetch_order(&images)),
        Outbound::ReadLogs(read) => Message::ReadLogs(agent::ReadLogsOrder {
            read_id: read.read_id,
            job_id: read.job.to_string(),
            token: Some(fencing_token_to_proto(read.token)),
            rank: read.rank,
            follow: read.follow,
            stream: read.stream,
            tail_bytes: read.tail_bytes,
            from_position: read.from_position,
        }),
        Outbound::Exec(order) => Message::Exec(agent::ExecOrder {
            relay_id: order.relay_id,
            job_id: order.job.to_string(),
            token: Some(fencing_token_to_proto(order.token)),
            rank: order.rank,
        }),
    };
    agent::SessionResponse { message: Some(message) }
}

/// Passes an upload to the one that reads it. The agent is told to stop when nobody does any more.
async fn take_upload(
    router: &Router,
    caller: Caller,
    mut uploads: Streaming<agent::UploadLogsRequest>,
) -> Result<(), Status> {
    let nobody = || refusals::over("nobody reads this output any more");
    let mut reader = None;
    let broken = loop {
        let upload = match uploads.message().await {
            Ok(Some(upload)) => upload,
            Ok(None) => return Ok(()),
            Err(status) => break ours(status),
        };
        if let Err(status) = caller.speaks_for(&upload.node_name) {
            break status;
        }
        if upload.data.len() > CHUNK_BYTES_MAX {
            let bytes = upload.data.len() as u64;
            break invalid(vec![Violation::limit("data", bytes, 0, CHUNK_BYTES_MAX as u64)]);
        }
        if reader.is_none() {
            reader = router.engine().log_reader(upload.read_id);
        }
        let Some(to_reader) = &reader else { return Err(nobody()) };
        let piece = piece_of_output(upload);
        tokio::select! {
            () = router.engine().stopping() => break stopping(),
            sent = to_reader.send(piece) => sent.map_err(|_| nobody())?,
        }
    };
    // What is cut off must not look as if it were complete.
    if let Some(to_reader) = reader {
        let _ = to_reader.send(Err(Refusal::new(RefusalCode::LogsUnavailable, BROKEN_OFF))).await;
    }
    Err(broken)
}

fn piece_of_output(upload: agent::UploadLogsRequest) -> Result<LogChunk, Refusal> {
    let code = match upload.failure() {
        agent::OutputFailure::NotFound => RefusalCode::OutputNotFound,
        agent::OutputFailure::Unspecified if upload.failure == 0 && upload.error.is_empty() => {
            let agent::UploadLogsRequest { stream, data, position, dropped_bytes, .. } = upload;
            return Ok(LogChunk { stream, data: Bytes::from(data), position, dropped_bytes });
        }
        // What a newer agent says beyond these is a failure as well, and its text says which.
        agent::OutputFailure::Unreadable | agent::OutputFailure::Unspecified => RefusalCode::LogsUnavailable,
    };
    Err(Refusal::new(code, upload.error).with("node", upload.node_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Feature;

    #[test]
    fn a_node_has_so_many_sessions_and_no_more() {
        let sessions = OpenSessions { sessions_max: 2, open: Tallies::default() };
        let first = sessions.enter("slurm-a.n0").expect("none is open");
        let _second = sessions.enter("slurm-a.n0").expect("the present one, and one that it gave up");
        let status = sessions.enter("slurm-a.n0").expect_err("it has two open");
        let told = muster_wire::status::Refused::from_status(&status);
        assert_eq!(told.code, Some(RefusalCode::Overloaded), "{status:?}");
        assert_eq!(told.metadata.get("node").map(String::as_str), Some("slurm-a.n0"));
        let _other = sessions.enter("slurm-a.n1").expect("another node");
        assert!(sessions.enter("No name").expect("it is refused elsewhere").is_none());
        drop(first);
        drop(sessions.enter("slurm-a.n0").expect("a place is free again when its session has ended"));
        assert_eq!(sessions.open.len(), 2, "nothing is kept of what has ended");
    }

    fn passed(registered: agent::Registered) -> Features {
        let message = Some(session_response::Message::Registered(registered));
        match passable(agent::SessionResponse { message }).message {
            Some(session_response::Message::Registered(registered)) => features_from_proto(&registered.takes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_replica_between_names_what_both_it_and_the_leader_know() {
        let later = 1_000;
        let named = |takes| agent::Registered { takes, ..Default::default() };
        let some: Features = [Feature::Notes].into_iter().collect();
        let mut takes = features_to_proto(some);
        takes.push(later);
        assert_eq!(passed(named(takes)), some);
        assert_eq!(passed(agent::Registered::default()), Features::NONE);
    }
}
