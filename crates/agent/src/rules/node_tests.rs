//! What the node promises, in generated worlds: orders, sessions, leases, workers and disks that do anything.

use super::boot_time::BootTime;
use super::fences::{Fence, FenceTable};
use super::node::{Action, AfterFence, Event, Message, Node, Order, Session, View};
use super::placement::{Checkpoint, Launch, Placement, RankPlace};
use super::term::LeaseTerm;
use super::worker::{DEVICE_MILLI, ExecutorEvent, StopRequest, WorkerKey};
use muster_types::{
    Accelerators, DeviceSet, ExitStatus, Features, FencingToken, JobId, LaunchForm, LogIndex, Name,
    NodeDraft, NodeSpec,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const STOP_GRACE: Duration = Duration::from_secs(2);
const DEVICES: u16 = 4;

fn spec() -> NodeSpec {
    let draft = NodeDraft {
        name: Name::literal("n"),
        region: Name::literal("eu"),
        cluster: Name::literal("eu-1"),
        block: Name::literal("b"),
        rack: Name::literal("k"),
        address: "10.0.0.1".to_owned(),
        accelerators: Some(Accelerators { kind: Name::literal("h100"), count: DEVICES }),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().unwrap()
}

fn token(index: u64) -> FencingToken {
    FencingToken { generation: 1, log_index: LogIndex(index) }
}

fn placement(job: JobId, token: FencingToken, devices: &[DeviceSet], preflight: bool) -> Placement {
    let worker = |(rank, devices): (usize, &DeviceSet)| Launch {
        rank: rank as u32,
        group: "main".to_owned(),
        command: vec!["true".to_owned()],
        environment: BTreeMap::new(),
        devices: *devices,
        accelerator_type: "h100".to_owned(),
        cpu_milli: 1_000,
        memory_bytes: 1 << 20,
        device_milli: DEVICE_MILLI,
        container: None,
    };
    let place = RankPlace { node_name: "n".to_owned(), address: "10.0.0.1".to_owned(), devices: 1 };
    Placement {
        job,
        token,
        job_name: "job".to_owned(),
        tenant: "tenant".to_owned(),
        attempt: 1,
        rank_map: vec![place; devices.len()],
        workers: devices.iter().enumerate().map(worker).collect(),
        rendezvous_port: 60_000,
        stop_grace: STOP_GRACE,
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
        array: None,
        array_indices: None,
        region: "eu".to_owned(),
        cluster: "eu-1".to_owned(),
        preflight,
        form: LaunchForm::Environment,
        world_size_min: 0,
        groups: Vec::new(),
        slices: Vec::new(),
        notice: None,
        checkpoint: Checkpoint::default(),
        gang_secret: String::new(),
    }
}

/// Everything around a node, and what was seen of it.
struct World {
    seed: u64,
    node: Node,
    now: Duration,
    lease: Option<LeaseTerm>,
    fences: FenceTable,
    session: Option<u64>,
    sessions: u64,
    last_token: u64,
    /// Every placement of which a start was ordered.
    ordered: Vec<Placement>,
    /// Workers that may be running: started, and not reported as ended.
    running: BTreeMap<WorkerKey, DeviceSet>,
    started: BTreeSet<WorkerKey>,
    unacknowledged: Vec<u64>,
    refused: BTreeSet<WorkerKey>,
    /// Those of which the end is not reported.
    refusals: Vec<WorkerKey>,
    starts: usize,
    faults: usize,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            seed: seed.wrapping_mul(2).wrapping_add(1),
            node: Node::new(spec(), true, None, Vec::new()),
            now: Duration::from_secs(100),
            lease: None,
            fences: FenceTable::new(8),
            session: None,
            sessions: 0,
            last_token: 0,
            ordered: Vec::new(),
            running: BTreeMap::new(),
            started: BTreeSet::new(),
            unacknowledged: Vec::new(),
            refused: BTreeSet::new(),
            refusals: Vec::new(),
            starts: 0,
            faults: 0,
        }
    }

    fn random(&mut self) -> u64 {
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random() % bound
    }

    fn boot_time(&self) -> BootTime {
        BootTime(self.now.as_nanos() as u64)
    }

    fn decide<T>(&mut self, decide: impl FnOnce(&mut Node, &View<'_>) -> T) -> T {
        let now = self.boot_time();
        let lease = self.lease.filter(|lease| lease.stands(now));
        let view = View { now, uptime: self.now, lease, fences: &self.fences };
        decide(&mut self.node, &view)
    }

    /// Has the node take an event, carries its actions out, and checks each of them.
    fn handle(&mut self, event: Event) {
        let confirmed = match &event {
            Event::Order(number, Order::StartConfirmed { job, token, current: true })
                if self.session == Some(*number) =>
            {
                Some((*job, *token))
            }
            _ => None,
        };
        let actions = self.decide(|node, view| node.handle(event, view));
        self.perform(actions, confirmed);
        let actions = self.decide(Node::report);
        self.perform(actions, confirmed);
    }

    fn perform(&mut self, actions: Vec<Action>, confirmed: Option<(JobId, FencingToken)>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let following = self.perform_one(action, confirmed);
            following.into_iter().rev().for_each(|action| actions.push_front(action));
        }
    }

    fn perform_one(&mut self, action: Action, confirmed: Option<(JobId, FencingToken)>) -> Vec<Action> {
        match action {
            Action::Fence { job, token, ranks, then } => {
                if matches!(then, AfterFence::Fault { .. }) {
                    self.faults += 1;
                }
                // A disk that fails now and then.
                let outcome = if self.below(20) == 0 {
                    Err("the disk is full".to_owned())
                } else {
                    self.fences.raise(job, Fence { token, ranks });
                    self.fences.fold(job);
                    Ok(())
                };
                return self.node.fenced(then, outcome);
            }
            Action::DecideStart { job, token } => {
                // Stops take a while, in which the lease may run out.
                let ms = self.below(1_500);
                self.now += Duration::from_millis(ms);
                return self.decide(|node, view| node.decide_start(job, token, view));
            }
            Action::Start { placement, epoch } => self.check_start(&placement, epoch, confirmed),
            Action::Refuse { key, .. } => {
                assert!(!self.started.contains(&key), "{key} is refused after it was started");
                // An executor launches none that it was told to refuse, as its directory exists.
                self.refused.insert(key);
                self.refusals.push(key);
            }
            Action::Stop(stops) => {
                for stop in stops {
                    let known = self.running.contains_key(&stop.key) || self.refusals.contains(&stop.key);
                    assert!(known, "{} is stopped and does not run", stop.key);
                }
            }
            Action::Acknowledge(key) => {
                assert!(!self.running.contains_key(&key), "{key} is acknowledged and runs");
            }
            Action::Send(Message::Report { sequence, workers }) => {
                assert!(self.session.is_some(), "a report without a session");
                for state in workers.iter().filter(|state| state.exit.is_some()) {
                    assert!(!self.running.contains_key(&state.key), "{} runs and is reported", state.key);
                }
                self.unacknowledged.push(sequence);
            }
            // Without a session it is lost.
            Action::Send(_) => {}
            other => panic!("nothing asked for it: {other:?}"),
        }
        Vec::new()
    }

    fn check_start(&mut self, placement: &Placement, epoch: u64, confirmed: Option<(JobId, FencingToken)>) {
        let (job, token) = (placement.job, placement.token);
        assert_eq!(confirmed, Some((job, token)), "started without a confirmation on this session");
        assert_eq!(self.fences.of(job).map(|fence| fence.token), Some(token), "its token is not durable");
        let lease = self.lease.expect("there is a lease");
        assert_eq!(lease.epoch, epoch);
        assert!(self.boot_time().until(lease.deadline) > STOP_GRACE, "less lease is left than a stop takes");
        let launched = |worker: &&Launch| !self.refused.contains(&placement.key(worker.rank));
        let launched: Vec<&Launch> = placement.workers.iter().filter(launched).collect();
        for worker in &launched {
            let key = placement.key(worker.rank);
            assert!(self.started.insert(key), "{key} is started twice");
            let holder = self.running.iter().find(|(_, devices)| !devices.is_disjoint(worker.devices));
            assert_eq!(holder, None, "devices of {key} are held");
        }
        for worker in launched {
            self.running.insert(placement.key(worker.rank), worker.devices);
        }
        self.starts += 1;
    }

    fn order(&mut self, order: Order) {
        // Now and then from a session that is over.
        let number = if self.below(10) == 0 { self.sessions.saturating_sub(1) } else { self.sessions };
        self.handle(Event::Order(number, order));
    }

    fn order_start(&mut self) {
        let repeated = self.below(4) == 0;
        if let Some(earlier) = self.ordered.last().filter(|_| repeated).cloned() {
            return self.order(Order::Start(Box::new(earlier)));
        }
        let skipped = self.below(3);
        self.last_token += 1 + skipped;
        // Now and then an old one.
        let index = if self.below(8) == 0 { self.last_token / 2 + 1 } else { self.last_token };
        let job = JobId(1 + self.below(4));
        let first = self.below(u64::from(DEVICES)) as u16;
        let devices: Vec<DeviceSet> = (first..DEVICES.min(first + 2)).map(|d| DeviceSet(1 << d)).collect();
        let preflight = self.below(4) == 0;
        if self.ordered.iter().any(|other| (other.job, other.token) == (job, token(index))) {
            return;
        }
        let placement = placement(job, token(index), &devices, preflight);
        self.ordered.push(placement.clone());
        self.order(Order::Start(Box::new(placement)));
    }

    fn any_ordered(&mut self) -> Option<(JobId, FencingToken)> {
        let latest = self.ordered.len().min(6) as u64;
        if latest == 0 {
            return None;
        }
        let back = self.below(latest) as usize;
        let placement = &self.ordered[self.ordered.len() - 1 - back];
        Some((placement.job, placement.token))
    }

    fn step(&mut self) {
        let ms = self.below(400);
        self.now += Duration::from_millis(ms);
        match self.below(14) {
            0 if self.below(4) == 0 => {
                self.sessions += 1;
                self.session = Some(self.sessions);
                let (number, takes) = (self.sessions, Features::all());
                self.handle(Event::Opened(Session { number, stop_grace: STOP_GRACE, takes }));
            }
            1 if self.below(8) == 0 => {
                self.session = None;
                self.handle(Event::Closed(self.sessions));
            }
            2 | 3 => {
                let now = self.boot_time();
                let (_, lease) = super::term::renewed(self.lease, 0, now, Duration::from_secs(6), now);
                self.lease = lease.or(self.lease);
                self.handle(Event::LeaseRenewed);
            }
            4 | 5 => self.order_start(),
            6..=8 => {
                let Some((job, token)) = self.any_ordered() else { return };
                let current = self.below(8) > 0;
                self.order(Order::StartConfirmed { job, token, current });
            }
            9 => {
                let Some((job, token)) = self.any_ordered() else { return };
                self.order(Order::Stop { job, token, request: StopRequest::from(STOP_GRACE) });
            }
            10 => {
                let Some((job, token)) = self.any_ordered() else { return };
                let fault = (self.below(3) == 0).then(|| "a link is slow".to_owned());
                self.order(Order::Verdict { job, token, fault });
            }
            11 => self.end_a_worker(),
            12 => {
                if let Some(sequence) = self.unacknowledged.pop() {
                    self.order(Order::ReportAck(sequence));
                }
            }
            _ => self.handle(Event::Tick),
        }
    }

    fn end_a_worker(&mut self) {
        if let Some(key) = self.refusals.pop() {
            let status = ExitStatus::LaunchFailed("refused".to_owned());
            return self.handle(Event::Executor(ExecutorEvent::Ended(key, status)));
        }
        let count = self.running.len() as u64;
        if count == 0 {
            return;
        }
        let nth = self.below(count) as usize;
        let key = *self.running.keys().nth(nth).unwrap();
        if self.below(2) == 0 {
            return self.handle(Event::Executor(ExecutorEvent::Running(key)));
        }
        self.running.remove(&key);
        self.handle(Event::Executor(ExecutorEvent::Ended(key, ExitStatus::Code(0))));
    }
}

#[test]
fn nothing_starts_without_a_durable_token_a_confirmation_free_devices_and_a_lease() {
    let (mut starts, mut faults) = (0, 0);
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        starts += world.starts;
        faults += world.faults;
    }
    // The worlds would show little if little happened in them.
    assert!(starts > 1_000, "{starts} starts");
    assert!(faults > 20, "{faults} faults of the node");
}

#[test]
fn a_start_that_waited_is_confirmed_again_before_it_starts() {
    let mut world = World::new(1);
    world.session = Some(1);
    world.sessions = 1;
    let takes = Features::all();
    world.handle(Event::Opened(Session { number: 1, stop_grace: STOP_GRACE, takes }));
    let (job, token) = (JobId(1), token(7));
    let start = placement(job, token, &[DeviceSet(1)], false);
    let confirm = |world: &mut World| {
        let order = Order::StartConfirmed { job, token, current: true };
        let actions = world.decide(|node, view| node.handle(Event::Order(1, order), view));
        assert!(matches!(actions.as_slice(), [Action::DecideStart { .. }]), "{actions:?}");
        world.decide(|node, view| node.decide_start(job, token, view))
    };
    let ask = |actions: &[Action]| {
        matches!(actions, [Action::Send(Message::ConfirmStart { job: asked, token: with })]
            if (*asked, *with) == (job, token))
    };
    let actions =
        world.decide(|node, view| node.handle(Event::Order(1, Order::Start(Box::new(start))), view));
    assert!(ask(&actions), "{actions:?}");
    // Without a lease it waits for one.
    let actions = confirm(&mut world);
    assert!(actions.is_empty(), "{actions:?}");
    world.lease = Some(LeaseTerm { epoch: 3, deadline: world.boot_time().after(STOP_GRACE * 2) });
    let actions = world.decide(|node, view| node.handle(Event::LeaseRenewed, view));
    assert!(ask(&actions), "the answer from before the wait does not count: {actions:?}");
    let actions = confirm(&mut world);
    let [Action::Fence { then, .. }] = <[Action; 1]>::try_from(actions).unwrap() else { panic!("no fence") };
    assert!(matches!(then, AfterFence::Launch { epoch: 3, .. }), "{then:?}");
    let actions = world.node.fenced(then, Err("the disk is full".to_owned()));
    assert!(
        matches!(actions.as_slice(), [Action::Fence { then: AfterFence::Refuse { .. }, .. }]),
        "without a durable token nothing starts: {actions:?}"
    );
}
