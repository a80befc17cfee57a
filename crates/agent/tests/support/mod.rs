//! A leader in this process and an agent in another, for tests that drive the real protocol.
// Each test binary uses a part of it, and a panic is a test's report.
#![allow(dead_code, clippy::unwrap_used, clippy::large_enum_variant)]

use muster_agent::lease::LeaseSlot;
use muster_types::{Feature, Features};
use muster_wire::agent::node_service_server::{NodeService, NodeServiceServer};
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::convert;
use muster_wire::{agent, v1};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

/// Nothing in these tests takes this long; a machine under load may.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const CLUSTER: &str = "0000000000000000000000000000abcd";

/// What the leader hears.
#[derive(Clone, Debug)]
pub enum AgentMessage {
    Register(agent::Register),
    Heartbeat(u64),
    Report(agent::Report),
    Confirm(agent::ConfirmStart),
    Note(agent::WorkerNote),
    Health(agent::HealthReport),
    Preflight(agent::PreflightReport),
    Images(agent::HeldImages),
    StartStage(agent::StartStageReport),
    Upload(agent::UploadLogsRequest),
    UploadEnded,
    /// Something that a leader of its release cannot read; the session is over.
    Unknown,
    SessionEnded,
}

/// How the leader behaves.
#[derive(Clone, Debug)]
pub struct Manner {
    pub ack_heartbeats: bool,
    /// Answers every heartbeat with this sequence instead of the right one.
    pub ack_always: Option<u64>,
    pub ack_reports: bool,
    /// The answer to confirmations; none to answer by hand.
    pub confirm: Option<bool>,
    pub refuse: Option<Status>,
    pub ttl_ms: u64,
    pub heartbeat_ms: u64,
    pub stop_grace_ms: u64,
    pub cluster_id: String,
    /// What it names of what it takes. It ends a session that brings anything else.
    pub takes: Features,
}

impl Manner {
    pub fn patient() -> Manner {
        Manner {
            ack_heartbeats: true,
            ack_always: None,
            ack_reports: true,
            confirm: Some(true),
            refuse: None,
            ttl_ms: 60_000,
            heartbeat_ms: 200,
            stop_grace_ms: 500,
            cluster_id: CLUSTER.to_owned(),
            takes: Features::all(),
        }
    }

    /// Of a release that knows nothing but workers.
    pub fn first_release() -> Manner {
        Manner { takes: Features::NONE, ..Manner::patient() }
    }

    fn registered(&self) -> agent::Registered {
        agent::Registered {
            node_id: "node-0".into(),
            incarnation: 1,
            cluster_generation: 1,
            lease_ttl_ms: self.ttl_ms,
            heartbeat_interval_ms: self.heartbeat_ms,
            lease_stop_grace_ms: self.stop_grace_ms,
            cluster_id: self.cluster_id.clone(),
            takes: convert::features_to_proto(self.takes),
        }
    }

    /// Whether a leader of that release could read it.
    fn knows(&self, message: &Request) -> bool {
        let takes = self.takes;
        match message {
            Request::Register(_) | Request::Heartbeat(_) | Request::Report(_) | Request::ConfirmStart(_) => {
                true
            }
            Request::Health(_) => takes.has(Feature::Health),
            Request::Note(_) => takes.has(Feature::Notes),
            Request::PreflightReport(_) => takes.has(Feature::Preflight),
            Request::ForeignLoad(_) => takes.has(Feature::ForeignLoad),
            Request::Images(_) | Request::StartStage(_) => takes.has(Feature::Images),
        }
    }

    /// Leases short enough to watch them run out, long enough for a loaded machine to keep them.
    pub fn short_leases() -> Manner {
        Manner { ttl_ms: 3_000, heartbeat_ms: 100, stop_grace_ms: 400, ..Manner::patient() }
    }
}

type Outgoing = mpsc::UnboundedSender<Result<agent::SessionResponse, Status>>;

struct Shared {
    manner: Mutex<Manner>,
    heard: mpsc::UnboundedSender<AgentMessage>,
    session: Mutex<Option<Outgoing>>,
}

pub struct Leader {
    shared: Arc<Shared>,
    heard: mpsc::UnboundedReceiver<AgentMessage>,
    pub address: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl NodeService for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<agent::SessionResponse, Status>> + Send>>;
    type RelayExecStream = Pin<Box<dyn Stream<Item = Result<agent::RelayExecResponse, Status>> + Send>>;

    async fn relay_exec(
        &self,
        _request: tonic::Request<Streaming<agent::RelayExecRequest>>,
    ) -> Result<tonic::Response<Self::RelayExecStream>, Status> {
        Err(Status::unimplemented("no command is run here"))
    }

    async fn session(
        &self,
        request: tonic::Request<Streaming<agent::SessionRequest>>,
    ) -> Result<tonic::Response<Self::SessionStream>, Status> {
        if let Some(status) = self.0.manner.lock().refuse.clone() {
            return Err(status);
        }
        let mut incoming = request.into_inner();
        let (out, stream) = mpsc::unbounded_channel();
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                shared.answer(message.message.unwrap(), &out);
            }
            let _ = shared.heard.send(AgentMessage::SessionEnded);
        });
        Ok(tonic::Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }

    async fn upload_logs(
        &self,
        request: tonic::Request<Streaming<agent::UploadLogsRequest>>,
    ) -> Result<tonic::Response<agent::UploadLogsResponse>, Status> {
        let mut incoming = request.into_inner();
        let mut opened = false;
        while let Some(message) = incoming.next().await {
            let message = message?;
            // The first message only says that the order has arrived, unless it says that nothing will come.
            if !std::mem::replace(&mut opened, true) && message.data.is_empty() && message.error.is_empty() {
                continue;
            }
            let last = message.data.is_empty();
            let _ = self.0.heard.send(AgentMessage::Upload(message));
            if last {
                break;
            }
        }
        let _ = self.0.heard.send(AgentMessage::UploadEnded);
        Ok(tonic::Response::new(agent::UploadLogsResponse {}))
    }
}

fn response(message: Response) -> Result<agent::SessionResponse, Status> {
    Ok(agent::SessionResponse { message: Some(message) })
}

impl Shared {
    fn answer(&self, message: Request, out: &Outgoing) {
        let manner = self.manner.lock().clone();
        let reply = |message| drop(out.send(response(message)));
        if !manner.knows(&message) {
            let _ = out.send(Err(Status::invalid_argument("message: must be one that this release knows")));
            let _ = self.heard.send(AgentMessage::Unknown);
            return;
        }
        let heard = match message {
            Request::Register(register) => {
                *self.session.lock() = Some(out.clone());
                reply(Response::Registered(manner.registered()));
                AgentMessage::Register(register)
            }
            Request::Heartbeat(beat) => {
                if manner.ack_heartbeats {
                    let sequence = manner.ack_always.unwrap_or(beat.sequence);
                    reply(Response::HeartbeatAck(agent::HeartbeatAck { sequence }));
                }
                AgentMessage::Heartbeat(beat.sequence)
            }
            Request::Report(report) => {
                if manner.ack_reports {
                    reply(Response::ReportAck(agent::ReportAck { sequence: report.sequence }));
                }
                AgentMessage::Report(report)
            }
            Request::Health(report) => {
                reply(Response::HealthAck(agent::HealthAck { sequence: report.sequence }));
                AgentMessage::Health(report)
            }
            Request::ConfirmStart(confirm) => {
                if let Some(current) = manner.confirm {
                    reply(confirmed(&confirm, current));
                }
                AgentMessage::Confirm(confirm)
            }
            Request::Note(note) => AgentMessage::Note(note),
            Request::PreflightReport(report) => AgentMessage::Preflight(report),
            // Only a cluster agent tells of it, and its own tests listen.
            Request::ForeignLoad(_) => return,
            Request::Images(held) => AgentMessage::Images(held),
            Request::StartStage(report) => AgentMessage::StartStage(report),
        };
        let _ = self.heard.send(heard);
    }
}

pub fn confirmed(confirm: &agent::ConfirmStart, current: bool) -> Response {
    Response::StartConfirmed(agent::StartConfirmed {
        job_id: confirm.job_id.clone(),
        token: confirm.token,
        current,
    })
}

impl Leader {
    pub async fn start(manner: Manner) -> Leader {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tell, heard) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { manner: Mutex::new(manner), heard: tell, session: Mutex::new(None) });
        let service = NodeServiceServer::new(Service(Arc::clone(&shared)));
        let server = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let _ =
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Leader { shared, heard, address, server }
    }

    pub fn change(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.shared.manner.lock());
    }

    pub fn send(&self, message: Response) {
        let session = self.shared.session.lock();
        session.as_ref().expect("a session stands").send(response(message)).expect("the session stands");
    }

    /// Ends the session from the leader's side.
    pub fn drop_session(&self) {
        let session = self.shared.session.lock().take();
        session.unwrap().send(Err(Status::unavailable("leadership moved"))).unwrap();
    }

    /// The next thing heard that `wanted` makes something of.
    pub async fn hear<T>(&mut self, what: &str, mut wanted: impl FnMut(AgentMessage) -> Option<T>) -> T {
        let search = async {
            loop {
                let heard = self.heard.recv().await.expect("the leader runs");
                if let Some(found) = wanted(heard) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("never heard {what}"))
    }

    pub async fn registered(&mut self) -> agent::Register {
        self.hear("a registration", |h| match h {
            AgentMessage::Register(register) => Some(register),
            _ => None,
        })
        .await
    }

    /// The reported end of a worker.
    pub async fn exit_of(&mut self, token: u64, rank: u32) -> v1::exit_status::Kind {
        self.hear(&format!("the end of {token}/{rank}"), |h| state_in(&h, token, rank)?.exit?.kind).await
    }

    /// The reported ends of several workers, by rank; they may come in any order, and in one report.
    pub async fn exits_of(&mut self, token: u64, ranks: &[u32]) -> Vec<v1::exit_status::Kind> {
        let mut ends = std::collections::BTreeMap::new();
        self.hear(&format!("the ends of {token}/{ranks:?}"), |h| {
            for rank in ranks {
                ends.extend(state_in(&h, token, *rank).and_then(|state| Some((*rank, state.exit?.kind?))));
            }
            (ends.len() == ranks.len()).then_some(())
        })
        .await;
        ends.into_values().collect()
    }

    pub async fn running(&mut self, token: u64, rank: u32) {
        self.hear(&format!("that {token}/{rank} runs"), |h| {
            state_in(&h, token, rank)?.exit.is_none().then_some(())
        })
        .await;
    }

    pub async fn note(&mut self) -> agent::WorkerNote {
        self.hear("a note", |h| match h {
            AgentMessage::Note(note) => Some(note),
            _ => None,
        })
        .await
    }

    pub async fn confirm_asked(&mut self) -> agent::ConfirmStart {
        self.hear("a confirmation", |h| match h {
            AgentMessage::Confirm(confirm) => Some(confirm),
            _ => None,
        })
        .await
    }

    /// Lets this many heartbeats pass; nothing else may have happened that `forbidden` names.
    pub async fn quiet_for(&mut self, beats: usize, forbidden: impl Fn(&AgentMessage) -> bool) {
        for _ in 0..beats {
            self.hear("a heartbeat", |h| {
                assert!(!forbidden(&h), "must not happen: {h:?}");
                matches!(h, AgentMessage::Heartbeat(_)).then_some(())
            })
            .await;
        }
    }
}

/// The rank of a report; the node's own number where it is about the whole placement.
pub fn rank_of(state: &agent::WorkerState) -> u32 {
    match state.subject.expect("a report has a subject") {
        agent::worker_state::Subject::Rank(rank) => rank,
        agent::worker_state::Subject::WholePlacement(_) => muster_agent::WHOLE_PLACEMENT,
    }
}

pub fn state_in(heard: &AgentMessage, token: u64, rank: u32) -> Option<agent::WorkerState> {
    let AgentMessage::Report(report) = heard else { return None };
    let mut states = report.workers.iter();
    states.find(|w| w.token.is_some_and(|t| t.log_index == token) && rank_of(w) == rank).cloned()
}

pub fn token(log_index: u64) -> Option<v1::FencingToken> {
    Some(v1::FencingToken { generation: 1, log_index })
}

/// A start order with one worker per script, each a shell.
pub fn start(job: &str, log_index: u64, scripts: &[&str], devices: &[&[u32]]) -> agent::StartOrder {
    let workers = scripts.iter().enumerate().map(|(rank, script)| agent::WorkerLaunch {
        rank: rank as u32,
        group: "main".into(),
        command: vec!["sh".into(), "-c".into(), (*script).to_owned()],
        environment: BTreeMap::new().into_iter().collect(),
        devices: devices.get(rank).map(|d| d.to_vec()).unwrap_or_default(),
        accelerator_type: if devices.is_empty() { String::new() } else { "h100".into() },
        cpu_milli: 100,
        memory_bytes: 1 << 28,
        device_share_milli: 0,
        container: None,
    });
    agent::StartOrder {
        job_id: job.to_owned(),
        token: token(log_index),
        job_name: "test".into(),
        tenant: "default".into(),
        attempt: 1,
        rank_map: vec![
            agent::RankPlace {
                node_name: "host-a".into(),
                address: "127.0.0.1".into(),
                devices: 0
            };
            scripts.len()
        ],
        workers: workers.collect(),
        rendezvous_port: (61_440 + log_index % 4_096) as u32,
        stop_grace_ms: 30_000,
        region: "r".into(),
        cluster: "c".into(),
        ..Default::default()
    }
}

pub fn stop(job: &str, log_index: u64, grace_ms: u64) -> Response {
    Response::Stop(agent::StopOrder {
        job_id: job.to_owned(),
        token: token(log_index),
        grace_ms,
        reason: "preempted".to_owned(),
    })
}

/// The agent's directories and configuration.
pub struct Host {
    pub dir: tempfile::TempDir,
    pub endpoint: String,
    pub control_groups: &'static str,
    /// Off: scripts of tests write down who they are, as this process sees them.
    pub workers: serde_json::Value,
    /// Who the agent runs as, where not as the test.
    pub user: Option<u32>,
    /// How its health is watched, and what it has.
    pub health: serde_json::Value,
    pub accelerators: serde_json::Value,
    /// Where its devices are.
    pub host_root: PathBuf,
    /// What it runs before and after each worker.
    pub prolog: serde_json::Value,
    pub epilog: serde_json::Value,
    /// How it has images.
    pub images: serde_json::Value,
    /// How much scratch it gives, in its directory `scratch`.
    pub scratch: Option<&'static str>,
}

impl Host {
    pub fn new(leader: &Leader) -> Host {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("boot_id"), "boot-one").unwrap();
        Host {
            dir,
            endpoint: leader.address.clone(),
            control_groups: "off",
            workers: serde_json::json!({"isolation": "off"}),
            user: None,
            health: serde_json::json!({"nvml": "off", "kernel_log": "off"}),
            accelerators: serde_json::json!({"type": "h100", "count": 4}),
            host_root: PathBuf::from("/"),
            prolog: serde_json::json!({}),
            epilog: serde_json::json!({}),
            images: serde_json::json!({}),
            scratch: None,
        }
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn task(&self, job: &str, log_index: u64, rank: u32) -> PathBuf {
        self.state().join("tasks").join(format!("{job}_1.{log_index}_{rank}"))
    }

    pub fn lease(&self) -> LeaseSlot {
        muster_agent::lease::read_path(&self.state().join("lease")).unwrap()
    }

    pub fn agent(&self) -> Agent {
        let binary = env!("CARGO_BIN_EXE_muster-agent-process");
        let mut config = serde_json::json!({
            "state_dir": self.state(),
            "endpoints": [self.endpoint],
            "shim_command": [binary, "shim"],
            "boot_id_path": self.file("boot_id"),
            "control_groups": self.control_groups,
            "runtime_dir": self.file("run"),
            "workers": self.workers,
            "host_root": self.host_root,
            "health": self.health,
            "prolog": self.prolog,
            "epilog": self.epilog,
            "images": self.images,
            "node": {
                "name": "host-a", "region": "r", "cluster": "c", "address": "127.0.0.1",
                "accelerators": self.accelerators, "cpu": 4, "memory": "4Gi",
            },
        });
        if let Some(size) = self.scratch {
            std::fs::create_dir_all(self.file("scratch")).unwrap();
            config["scratch_dir"] = serde_json::json!(self.file("scratch"));
            config["node"]["scratch"] = size.into();
        }
        let path = self.file("agent.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(binary);
        command.arg("agent").arg(path).stdin(Stdio::piped());
        if let Some(user) = self.user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
            std::os::unix::process::CommandExt::gid(&mut command, user);
        }
        let child = command.spawn().unwrap();
        Agent { child }
    }

    /// Waits until no shim has this worker any more.
    pub async fn shim_gone(&self, task: &Path) {
        let lock = std::fs::File::options().write(true).open(task.join("lock")).unwrap();
        within_patience("the end of the shim", move || lock.lock().unwrap()).await;
    }

    /// Numbers written to a file by workers, one per line.
    pub fn pids(&self, name: &str) -> Vec<i32> {
        let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    pub fn assert_gone(&self, name: &str, count: usize) {
        let pids = self.pids(name);
        assert_eq!(pids.len(), count, "processes that wrote to {name}");
        for pid in pids {
            assert!(!alive(pid), "process {pid} of {name} is still there");
        }
    }
}

/// Waits for something that blocks, on a thread that a failed test leaves behind rather than waits for.
pub async fn within_patience<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || drop(tell.send(wait())));
    let told = tokio::time::timeout(PATIENCE, told).await;
    told.unwrap_or_else(|_| panic!("waited in vain for {what}")).unwrap()
}

/// Reads a FIFO to its end: a worker's word that it has come so far.
pub async fn read_fifo(path: PathBuf) {
    within_patience("a worker to write", move || std::fs::read(path).unwrap()).await;
}

/// Opens a FIFO for a worker that waits at its other end.
pub async fn write_fifo(path: PathBuf) {
    within_patience("a worker to read", move || std::fs::write(path, "").unwrap()).await;
}

pub fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim();
    !state.is_empty() && !state.starts_with('Z')
}

/// An agent's process, killed when dropped.
pub struct Agent {
    pub child: Child,
}

impl Agent {
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
