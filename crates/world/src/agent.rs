//! Machines with accelerators, and the agents on them.
//!
//! An agent has two tasks, as in the product: one opens sessions, sends heartbeats and passes orders on, the other is the
//! node's loop. What that loop decides is the product's (`muster_agent::rules::node::Node`), and so is what is decided
//! about leases, tokens and the silence of a leader. Dialling and what carries the actions out are written here a second
//! time, and workers are simulated (`workers`).

use crate::cluster::Cluster;
use crate::link::{End, connect};
use crate::replica::ToAgent;
use crate::runtime::{self, HARNESS, Host, Sleep, below, event, local_ns, pick, sleep_ms, spawn_on};
use crate::site::{FIRST_AGENT, FIRST_MACHINE, lock};
use crate::workers::{News, Workers, now};
use muster_agent::limits;
use muster_agent::rules::node::{self, Action, Message, Node, Session, View};
use muster_agent::rules::{
    Beats, Checkpoint, DEVICE_MILLI, Launch, Placement, RankPlace, SequencedEvent, StopRequest, Ticket,
    WHOLE_PLACEMENT, WorkerEvent, WorkerState,
};
use muster_engine::{Inbound, Opening, Order, Outbound, ProbeReport, StartOrder, StopOrder, WorkerReport};
use muster_types::health::Finding;
use muster_types::{
    Accelerators, AgentStart, DeviceAmount, Features, FencingToken, JobId, LaunchForm, Name, NodeDraft,
    NodeId, NodeSpec, Parameters,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Devices of each machine.
pub const DEVICES: u16 = 4;
/// The one type there is.
pub const KIND: &str = "h100";
/// How long an agent waits for a session to begin.
const OPEN_PATIENCE: Duration = Duration::from_secs(3);

/// One machine.
pub struct Machine {
    /// The agent's host.
    pub agent: Host,
    /// The host of its workers.
    pub machine: Host,
    /// What the agent says of it.
    pub spec: NodeSpec,
    workers: Arc<Workers>,
}

fn spec(place: u32) -> NodeSpec {
    let draft = NodeDraft {
        name: Name::new(&format!("m{place}")).expect("it is a name"),
        region: Name::literal("eu"),
        cluster: Name::literal(if place.is_multiple_of(2) { "eu-1" } else { "eu-2" }),
        block: Name::literal("b"),
        rack: Name::literal("k"),
        address: format!("10.0.0.{}", place + 1),
        accelerators: Some(Accelerators { kind: Name::literal(KIND), count: DEVICES }),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().expect("it is a host")
}

impl Machine {
    /// Not started yet.
    pub fn new(place: u32) -> Machine {
        let machine = FIRST_MACHINE + place;
        let workers = Arc::new(Workers::new(machine, place, DEVICES));
        Machine { agent: FIRST_AGENT + place, machine, spec: spec(place), workers }
    }

    /// The agent starts, on a machine that runs.
    pub fn start_agent(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        event("agent", format_args!("{} starts", self.agent));
        let (tell, news) = mpsc::unbounded_channel();
        let adopted = self.workers.adopt(tell);
        let (events, received) = mpsc::channel(limits::ORDERS_QUEUED_MAX);
        let (machine, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let sessions = Sessions { machine: Arc::clone(&machine), cluster: Arc::clone(&cluster), events };
        spawn_on(self.agent, sessions.run());
        let node = Node::new(self.spec.clone(), true, None, adopted);
        spawn_on(self.agent, async move {
            let (started, session) = (local_ns(), None);
            let (issued, saves) = (0, BTreeMap::new());
            NodeLoop { machine, cluster, node, started, session, issued, saves }.run(received, news).await;
        });
    }

    /// The agent dies; the workers go on.
    pub fn kill_agent(&self) {
        event("agent", format_args!("{} dies", self.agent));
        runtime::kill(self.agent);
    }

    /// When the last of its workers ends by itself, by the machine's clock; none where none runs.
    pub fn busy_until(&self) -> Option<u64> {
        self.workers.busy_until()
    }

    /// The machine loses power and comes back: nothing runs, the disk is as it was, and it is another boot.
    pub fn reboot(self: &Arc<Self>, cluster: &Arc<Cluster>) {
        self.kill_agent();
        self.workers.lose_power(&cluster.site);
        self.start_agent(cluster);
    }

    /// Something is wrong with a device, until the machine is repaired or restarts.
    pub fn fall_ill(&self, finding: Finding) {
        self.workers.fall_ill(finding);
    }

    /// Nothing is wrong any more.
    pub fn recover(&self) {
        self.workers.recover();
    }

    /// Both hosts stand still, as a virtual machine that is paused.
    pub fn freeze(&self, cluster: &Cluster) {
        runtime::freeze(self.agent);
        runtime::freeze(self.machine);
        cluster.site.checks.set_suspended(self.machine, true);
    }

    /// Both go on; a moment later the guards have seen what time it is.
    pub async fn thaw(&self, cluster: &Cluster) {
        runtime::thaw(self.agent);
        runtime::thaw(self.machine);
        sleep_ms(200).await;
        cluster.site.checks.set_suspended(self.machine, false);
    }
}

/// What the loop hears of sessions.
enum Event {
    Opened(SessionHandle),
    Closed(u64),
    Order(u64, node::Order),
    LeaseRenewed,
    /// The list of workers for a registration.
    Holdings(oneshot::Sender<Vec<WorkerState>>),
}

/// A session, as the loop uses it.
struct SessionHandle {
    number: u64,
    outgoing: mpsc::Sender<Inbound>,
    stop_grace: Duration,
}

/// A worker's state, as the leader is told.
fn report_of(WorkerState { key, exit }: WorkerState) -> WorkerReport {
    let rank = (key.rank != WHOLE_PLACEMENT).then_some(key.rank);
    WorkerReport { job: key.job, token: key.token, rank, exit, artifacts: None }
}

/// A message of the node, as the engine has it.
fn inbound(message: Message) -> Inbound {
    match message {
        Message::ConfirmStart { job, token } => Inbound::ConfirmStart { job, token },
        Message::Report { sequence, workers } => {
            Inbound::Report { sequence, workers: workers.into_iter().map(report_of).collect() }
        }
        Message::WorkerEvent(SequencedEvent { key, sequence, event }) => match event {
            WorkerEvent::CheckpointCommitted { step } => {
                let step = (step > 0).then_some(step);
                Inbound::CheckpointCommitted { sequence, job: key.job, token: key.token, step }
            }
            WorkerEvent::Step { number, duration_ms } => {
                Inbound::Step { job: key.job, token: key.token, rank: key.rank, number, duration_ms }
            }
            WorkerEvent::Ready => Inbound::Ready { sequence, job: key.job, token: key.token, rank: key.rank },
        },
        Message::PreflightWaiting { job, token } => Inbound::Probe(ProbeReport::Waiting { job, token }),
        Message::ForeignLoad(load) => Inbound::ForeignLoad(load),
    }
}

/// This node's share of a placement, as an agent reads it from an order.
fn placement_of(order: &StartOrder, node: NodeId) -> Placement {
    let (spec, placement, view) = (&order.spec, &order.placement, &order.view);
    let stop_grace_ms = view.stop_grace_ms(order.job);
    let place = |slot: &muster_journal::WorkerSlot| {
        let host = view.node(slot.node).map(|row| &row.spec);
        RankPlace {
            node_name: host.map(|host| host.name.to_string()).unwrap_or_default(),
            address: host.map(|host| host.address.clone()).unwrap_or_default(),
            devices: slot.devices.count(),
        }
    };
    let mine = (0u32..).zip(&placement.slots).filter(|(_, slot)| slot.node == node);
    let workers = mine.filter_map(|(rank, slot)| {
        let (group, _) = spec.group_of(rank, placement.slots.len())?;
        let asked = group.request.accelerators.as_ref();
        Some(Launch {
            rank,
            group: group.name.to_string(),
            command: group.command.clone(),
            environment: group.environment.clone(),
            devices: slot.devices,
            accelerator_type: asked.map(|_| KIND.to_owned()).unwrap_or_default(),
            cpu_milli: group.request.cpu_milli,
            memory_bytes: group.request.memory_bytes,
            device_milli: match asked.map(|asked| asked.amount) {
                Some(DeviceAmount::Share(milli)) => milli,
                Some(DeviceAmount::Whole(_)) | None => DEVICE_MILLI,
            },
            container: group.container.clone(),
        })
    });
    Placement {
        job: order.job,
        token: placement.token,
        job_name: spec.name.to_string(),
        tenant: spec.tenant.to_string(),
        attempt: order.attempt,
        rank_map: placement.slots.iter().map(place).collect(),
        workers: workers.collect(),
        rendezvous_port: 1,
        stop_grace: Duration::from_millis(stop_grace_ms),
        checkpoint_directory: String::new(),
        working_directory: String::new(),
        workdir: None,
        artifacts: None,
        artifacts_bytes_max: None,
        ulimits: muster_types::Ulimits::default(),
        host: muster_types::HostRules::default(),
        terminal: false,
        scratch_bytes: 0,
        trace_parent: None,
        array: spec.array,
        array_indices: None,
        region: placement.region.to_string(),
        cluster: placement.cluster.to_string(),
        preflight: false,
        form: LaunchForm::Environment,
        world_size_min: spec.worker_count_min(),
        groups: Vec::new(),
        slices: Vec::new(),
        notice: None,
        checkpoint: Checkpoint::default(),
        gang_secret: String::new(),
    }
}

/// An order of the engine, as the node has it; none for what is not simulated.
fn order_of(message: Outbound, node: NodeId) -> Option<node::Order> {
    Some(match message {
        Outbound::Order(Order::Start(start)) => node::Order::Start(Box::new(placement_of(&start, node))),
        Outbound::Order(Order::Stop(StopOrder { job, token, grace_ms, reason })) => {
            let request = StopRequest { grace: Duration::from_millis(grace_ms), reason };
            node::Order::Stop { job, token, request }
        }
        Outbound::StartConfirmed { job, token, current } => {
            node::Order::StartConfirmed { job, token, current }
        }
        Outbound::ReportAck { sequence } => node::Order::ReportAck(sequence),
        Outbound::NoteAck { sequence, refused } => {
            node::Order::EventAck(sequence, refused.map(|refusal| refusal.to_string()))
        }
        Outbound::Registered { .. }
        | Outbound::HeartbeatAck { .. }
        | Outbound::HealthAck { .. }
        | Outbound::Repair(_)
        | Outbound::ReadLogs(_)
        | Outbound::Exec(_)
        | Outbound::Prefetch(_)
        | Outbound::Probe(_) => return None,
    })
}

/// Opens one session after the other.
struct Sessions {
    machine: Arc<Machine>,
    cluster: Arc<Cluster>,
    events: mpsc::Sender<Event>,
}

/// What a session that stands has.
struct Live {
    number: u64,
    link: End<Inbound, ToAgent>,
    /// What the loop sends.
    outgoing: mpsc::Receiver<Inbound>,
    node: NodeId,
    parameters: Parameters,
    beats: Beats,
    /// Of reports of health.
    sequence: u64,
    /// Which report of health is under way.
    telling: Option<(u64, u64)>,
}

impl Live {
    /// Longest silence of a leader.
    fn silence_max(&self) -> Duration {
        let ttl = Duration::from_millis(self.parameters.lease_ttl_ms);
        Beats::silence_max(ttl, Duration::from_millis(self.parameters.heartbeat_interval_ms))
    }
}

impl Sessions {
    async fn run(self) {
        let mut hint: Option<Host> = None;
        for number in 1.. {
            let replica = match hint.take() {
                Some(hint) => hint,
                None => pick(&self.cluster.site.replica_hosts()).unwrap_or(1),
            };
            hint = self.one(number, replica).await.filter(|told| *told != replica);
            if self.events.send(Event::Closed(number)).await.is_err() {
                return;
            }
            sleep_ms(50 + below(250)).await;
        }
    }

    /// One session, or an attempt; which replica leads instead, as far as this one knows.
    async fn one(&self, number: u64, replica: Host) -> Option<Host> {
        let (ask, held) = oneshot::channel();
        self.events.send(Event::Holdings(ask)).await.ok()?;
        let workers = held.await.ok()?;
        let sent = now();
        let start = self.machine.workers.agent_start();
        let mut link = self.dial(replica, start, workers);
        match runtime::timeout(OPEN_PATIENCE, link.next()).await {
            Ok(Some(ToAgent::Said(Outbound::Registered { node, parameters, .. }))) => {
                self.machine.workers.note_registered(start);
                self.renew(sent, parameters);
                let (outgoing, queued) = mpsc::channel(limits::OUTGOING_QUEUED_MAX);
                let stop_grace = Duration::from_millis(parameters.lease_stop_grace_ms());
                let handle = SessionHandle { number, outgoing, stop_grace };
                self.events.send(Event::Opened(handle)).await.ok()?;
                self.machine.workers.forget_told();
                let (beats, sequence, telling) = (Beats::default(), 0, None);
                let live =
                    Live { number, link, outgoing: queued, node, parameters, beats, sequence, telling };
                self.serve(live).await;
                None
            }
            Ok(Some(ToAgent::Refused(told))) => told,
            Ok(Some(ToAgent::Said(other))) => {
                self.cluster.site.checks.fail(format!("a session began with {other:?}"));
                None
            }
            Ok(None) | Err(_) => None,
        }
    }

    /// Connects to a replica, which serves the session if it leads.
    fn dial(&self, replica: Host, start: AgentStart, workers: Vec<WorkerState>) -> End<Inbound, ToAgent> {
        let (mine, theirs) = connect(&self.cluster.site, self.machine.agent, replica);
        let opening = Opening {
            spec: self.machine.spec.clone(),
            holder: self.machine.workers.holder(),
            start: Some(start),
            workers: workers.into_iter().map(report_of).collect(),
            takes: Features::all(),
        };
        let (cluster, agent) = (Arc::clone(&self.cluster), self.machine.agent);
        spawn_on(HARNESS, async move {
            let leg = lock(&cluster.site.network).leg(agent, replica);
            let Some(leg) = leg else {
                // Nobody says that it is lost.
                return runtime::sleep_true_ns(5_000_000_000).await;
            };
            runtime::sleep_true_ns(leg).await;
            if let Some(replica) = cluster.replica(replica) {
                event("rpc", format_args!("{agent} > {} session", replica.host));
                spawn_on(replica.host, replica.serve(opening, theirs));
            }
        });
        mine
    }

    /// The leader acknowledged what was sent at `sent`.
    fn renew(&self, sent: muster_agent::clock::BootTime, parameters: Parameters) {
        if self.machine.workers.renew(sent, parameters) {
            // A full queue will look at the lease anyway.
            let _ = self.events.try_send(Event::LeaseRenewed);
        }
    }

    async fn serve(&self, mut live: Live) {
        let interval = live.parameters.heartbeat_interval_ms * 1_000_000;
        let mut beat = local_ns() + interval;
        loop {
            if !self.tell_health(&mut live) {
                return;
            }
            tokio::select! {
                biased;
                message = live.link.next() => match message {
                    Some(ToAgent::Said(message)) => if !self.hear(&mut live, message) { return },
                    Some(ToAgent::Refused(_)) | None => return,
                },
                () = Sleep::until(beat) => {
                    if live.beats.is_silent(now(), live.silence_max()) {
                        return;
                    }
                    let sequence = live.beats.next_sequence();
                    live.beats.sent(sequence, now());
                    if !live.link.send(Inbound::Heartbeat { sequence }) {
                        return;
                    }
                    beat = local_ns() + interval;
                }
                message = live.outgoing.recv() => match message {
                    Some(message) => if !live.link.send(message) { return },
                    // The loop has had enough of this session.
                    None => return,
                },
                () = self.machine.workers.health_changed() => {}
            }
        }
    }

    /// Says how the machine is, one report at a time; whether the link takes it.
    fn tell_health(&self, live: &mut Live) -> bool {
        if live.telling.is_some() {
            return true;
        }
        let Some((change, report)) = self.machine.workers.health_to_tell() else { return true };
        live.sequence += 1;
        live.telling = Some((live.sequence, change));
        live.link.send(Inbound::Health { sequence: live.sequence, report: Box::new(report) })
    }

    /// Whether the session goes on.
    fn hear(&self, live: &mut Live, message: Outbound) -> bool {
        match message {
            Outbound::HeartbeatAck { sequence } => {
                if let Some(sent) = live.beats.acknowledged(sequence) {
                    self.renew(sent, live.parameters);
                }
                true
            }
            Outbound::HealthAck { sequence } => {
                if let Some((_, change)) = live.telling.take_if(|(asked, _)| *asked == sequence) {
                    self.machine.workers.health_told(change);
                }
                true
            }
            Outbound::Repair(repair) => {
                self.machine.workers.repair(&repair);
                true
            }
            message => match order_of(message, live.node) {
                Some(order) => self.events.try_send(Event::Order(live.number, order)).is_ok(),
                None => true,
            },
        }
    }
}

/// Brings events to the node, and carries out the actions that follow, in order and before the next event.
struct NodeLoop {
    machine: Arc<Machine>,
    cluster: Arc<Cluster>,
    node: Node,
    started: u64,
    session: Option<SessionHandle>,
    /// Tickets so far.
    issued: u64,
    /// Workers that wait for an answer.
    saves: BTreeMap<Ticket, (JobId, FencingToken)>,
}

impl NodeLoop {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, mut news: mpsc::UnboundedReceiver<News>) {
        let look = u64::try_from(limits::OVERDUE_LOOK.as_nanos()).unwrap_or(u64::MAX);
        let mut tick = self.started + look;
        loop {
            let due = self.node.events_due().map(|due| self.started + due.as_nanos() as u64);
            let event = tokio::select! {
                biased;
                event = events.recv() => match event.map(|event| self.translate(event)) {
                    Some(Some(event)) => event,
                    Some(None) => continue,
                    None => return,
                },
                Some(news) = news.recv() => self.heard(news),
                () = Sleep::until(due.unwrap_or(u64::MAX).min(tick)) => {
                    if local_ns() >= tick {
                        tick = local_ns() + look;
                        node::Event::Tick
                    } else {
                        node::Event::EventsDue
                    }
                }
            };
            let actions = self.decide(|node, view| node.handle(event, view));
            self.perform(actions).await;
            let actions = self.decide(Node::report);
            self.perform(actions).await;
        }
    }

    fn heard(&mut self, news: News) -> node::Event {
        match news {
            News::Executor(event) => node::Event::Executor(event),
            News::Saved(key) => {
                self.issued += 1;
                let ticket = Ticket(self.issued);
                self.saves.insert(ticket, (key.job, key.token));
                node::Event::Worker { key, event: WorkerEvent::CheckpointCommitted { step: 0 }, ticket }
            }
        }
    }

    /// An event as the node takes it; none where the loop has dealt with it.
    fn translate(&mut self, event: Event) -> Option<node::Event> {
        Some(match event {
            Event::Opened(session) => {
                let (number, stop_grace) = (session.number, session.stop_grace);
                self.session = Some(session);
                node::Event::Opened(Session { number, stop_grace, takes: Features::all() })
            }
            Event::Closed(number) => {
                self.session.take_if(|session| session.number == number);
                node::Event::Closed(number)
            }
            Event::Order(number, order) => node::Event::Order(number, order),
            Event::LeaseRenewed => node::Event::LeaseRenewed,
            Event::Holdings(answer) => {
                // A session that has given up waiting asks again.
                let _ = answer.send(self.node.states());
                return None;
            }
        })
    }

    /// Has the node decide something by what is known now.
    fn decide(&mut self, decide: impl FnOnce(&mut Node, &View<'_>) -> Vec<Action>) -> Vec<Action> {
        let uptime = Duration::from_nanos(local_ns().saturating_sub(self.started));
        let node = &mut self.node;
        self.machine.workers.decide(|lease, fences| decide(node, &View { now: now(), uptime, lease, fences }))
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let following = self.perform_one(action).await;
            // What follows from an action goes before the next one.
            following.into_iter().rev().for_each(|action| actions.push_front(action));
        }
    }

    async fn perform_one(&mut self, action: Action) -> Vec<Action> {
        let workers = &self.machine.workers;
        match action {
            Action::Send(message) => return self.send(message),
            Action::SendIfTaken(message) => {
                if let Some(session) = &self.session {
                    let _ = session.outgoing.try_send(inbound(message));
                }
            }
            Action::Answer((ticket, outcome)) => {
                if let (Some((job, token)), Ok(())) = (self.saves.remove(&ticket), outcome) {
                    self.cluster.site.checks.checkpointed(job, token);
                }
            }
            Action::Fence { job, token, ranks, then } => {
                workers.raise(job, token, ranks).await;
                return self.node.fenced(then, Ok(()));
            }
            Action::Stop(stops) => stops.into_iter().for_each(|stop| workers.stop(stop.key, stop.request)),
            Action::DecideStart { job, token } => {
                return self.decide(|node, view| node.decide_start(job, token, view));
            }
            // In a task: a slow launch must not delay a stop.
            Action::Start { placement, epoch } => {
                let (workers, site) = (Arc::clone(workers), Arc::clone(&self.cluster.site));
                spawn_on(self.machine.agent, workers.start(site, placement, epoch));
            }
            Action::Refuse { key, reason } => workers.refuse(key, reason),
            Action::Acknowledge(key) => workers.acknowledge(key),
            Action::Upload { number, .. } | Action::Exec { number, .. } => {
                return self.decide(|node, view| node.handle(node::Event::UploadEnded(number), view));
            }
            Action::ListenForProbe(_) | Action::RunProbe(..) => {}
        }
        Vec::new()
    }

    fn send(&mut self, message: Message) -> Vec<Action> {
        let Some(session) = &self.session else { return Vec::new() };
        if session.outgoing.try_send(inbound(message)).is_ok() {
            return Vec::new();
        }
        let number = session.number;
        self.session = None;
        self.decide(|node, view| node.handle(node::Event::Closed(number), view))
    }
}
