//! A busy cluster day after day, through the shipping decider and state, under a virtual clock. Everything but the number of
//! jobs and nodes is as in production; see `main.rs`, and the test that runs a few days of it.

use muster_decider::{Answer, BootstrapConfig, Command, Pass, Speculation, handle, schedule, tick};
use muster_journal::{Decision, RankUpdate, encode_round};
use muster_planner::Budget;
use muster_state::State;
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ClusterId, DeviceAmount, ExitStatus, FencingToken,
    HolderId, JobDraft, JobId, Leadership, LogTime, Name, NodeDraft, NodeId, NodeSpec, Parameters, ReplicaId,
    RequestId, TaskGroup, WorkerRequest,
};
use std::collections::{BTreeMap, BTreeSet};

/// Log time of the begin: September 2020.
const EPOCH_MS: u64 = 1_600_000_000_000;
const MINUTE_MS: u64 = 60_000;
const MINUTES_A_DAY: u64 = 1_440;
/// Planning work in one round, as much as a leader does in one.
const VISITS_PER_ROUND: u64 = 200_000;
/// Jobs a day for each node: a mean job holds six devices for about 50 minutes, so two thirds of a node are busy.
const JOBS_A_NODE: u64 = 25;
/// Devices of each node.
pub const DEVICES: u16 = 8;

/// Draws numbers; the same ones every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// What is still to come.
enum Due {
    Running(JobId, FencingToken),
    Over(JobId, FencingToken, i32),
    Stopped(JobId),
    Cancel(JobId),
    Back(usize),
}

struct Host {
    spec: NodeSpec,
    node: NodeId,
    incarnation: u32,
    registrations: u64,
}

/// A cluster that is busy day after day, scaled down.
pub struct Year {
    speculation: Speculation,
    hosts: Vec<Host>,
    due: BTreeMap<u64, Vec<Due>>,
    random: Random,
    jobs_a_day: u64,
    minute: u64,
    requests: u128,
    holders: u128,
    /// Jobs that were submitted.
    pub jobs: u64,
    /// Jobs that are over.
    pub finished: u64,
    /// Jobs that were not taken.
    pub refused: u64,
    /// Nodes that ever were.
    pub nodes: u64,
    /// Rounds of the log.
    pub rounds: u64,
    /// Records in them.
    pub decisions: u64,
    /// Their bytes.
    pub log_bytes: u64,
}

/// What the state has at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Jobs that wait or run, and those that are remembered.
    pub jobs: u64,
    /// Answers that are kept for clients that repeat a request.
    pub requests: u64,
    /// Nodes, with those that are lost.
    pub nodes: u64,
    /// What was learned of run times.
    pub history: u64,
}

impl Rows {
    /// Rows that retention bounds; what is learned has a bound that is not scaled.
    pub fn retained(&self) -> u64 {
        self.jobs + self.requests + self.nodes
    }
}

/// Nodes of a cluster with this number of jobs a day.
pub fn nodes_for(jobs_a_day: u64) -> u64 {
    (jobs_a_day / JOBS_A_NODE).max(2)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("it is a name")
}

impl Year {
    /// A cluster with as many nodes as its jobs need, at the begin of its first day.
    pub fn new(jobs_a_day: u64, parameters: Parameters) -> Year {
        let founding = BootstrapConfig::new(ClusterId(1), parameters);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut year = Year {
            speculation: Speculation::begin(State::default(), leadership, LogTime(EPOCH_MS), founding),
            hosts: Vec::new(),
            due: BTreeMap::new(),
            random: Random(0x9E37_79B9_7F4A_7C15),
            jobs_a_day,
            minute: 0,
            requests: 0,
            holders: 0,
            jobs: 0,
            finished: 0,
            refused: 0,
            nodes: 0,
            rounds: 0,
            decisions: 0,
            log_bytes: 0,
        };
        year.commit();
        for place in 0..nodes_for(jobs_a_day) as usize {
            let spec = year.new_node();
            year.hosts.push(Host { spec, node: NodeId::default(), incarnation: 0, registrations: 0 });
            year.register(place);
        }
        year
    }

    fn new_node(&mut self) -> NodeSpec {
        self.nodes += 1;
        let number = self.nodes;
        let draft = NodeDraft {
            name: name(&format!("node-{number}")),
            region: name("eu"),
            cluster: name("main"),
            block: name(&format!("block-{}", number % 2)),
            rack: name(&format!("rack-{}", number % 4)),
            address: format!("10.0.{}.{}", number / 250 % 250, number % 250 + 1),
            accelerators: Some(Accelerators { kind: name("h100"), count: DEVICES }),
            cpu_milli: 128_000,
            memory_bytes: 1 << 40,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        draft.check().expect("it is a node")
    }

    fn register(&mut self, place: usize) {
        self.holders += 1;
        let holder = HolderId(self.holders);
        let spec = self.hosts[place].spec.clone();
        match self.tell(&Command::Register { spec, holder, other_session_is_over: true }) {
            Some(Answer::Registered { node, incarnation, .. }) => {
                let host = &mut self.hosts[place];
                (host.node, host.incarnation) = (node, incarnation);
            }
            other => panic!("a node is refused: {other:?}"),
        }
    }

    fn tell(&mut self, command: &Command) -> Option<Answer> {
        let answer = handle(&mut self.speculation, command);
        self.commit();
        answer.ok()
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        // As clients draw them: far apart.
        RequestId(self.requests.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    fn at(&mut self, minutes: u64, due: Due) {
        self.due.entry(self.minute + minutes.max(1)).or_default().push(due);
    }

    /// The round made so far is in the log; what follows of it happens later.
    fn commit(&mut self) {
        let Some(round) = self.speculation.take_round() else { return };
        self.rounds += 1;
        self.decisions += round.decisions.len() as u64;
        self.log_bytes += encode_round(&round).len() as u64;
        for decision in &round.decisions {
            match decision {
                Decision::GangPlaced { job, .. } => self.placed(*job),
                Decision::GangStopRequested { job, .. } => self.at(1, Due::Stopped(*job)),
                Decision::Rearranged { stops, .. } => {
                    for stop in stops {
                        self.at(1, Due::Stopped(stop.job));
                    }
                }
                Decision::JobFinished { .. } => self.finished += 1,
                _ => {}
            }
        }
    }

    fn placed(&mut self, job: JobId) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.as_ref());
        let Some(token) = placement.map(|placement| placement.token) else { return };
        let code = if self.random.below(20) == 0 { 1 } else { 0 };
        let minutes = 5 + self.random.below(60) + if self.random.below(10) == 0 { 150 } else { 0 };
        self.at(1, Due::Running(job, token));
        self.at(1 + minutes, Due::Over(job, token, code));
    }

    fn report(&mut self, job: JobId, token: Option<FencingToken>, update: &RankUpdate) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone());
        let Some(placement) = placement.filter(|found| token.is_none_or(|token| found.token == token)) else {
            return;
        };
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if !state.is_over() {
                by_node.entry((slot.node, slot.incarnation)).or_default().push((rank as u32, update.clone()));
            }
        }
        for ((node, incarnation), updates) in by_node {
            self.tell(&Command::Report { node, incarnation, job, token: placement.token, updates });
        }
    }

    fn submit(&mut self, day: u64) {
        self.jobs += 1;
        let names = if self.random.below(5) == 0 {
            format!("once-{}", self.jobs)
        } else {
            format!("model-{}", self.random.below(200))
        };
        // Most work is that of 20 tenants; one tenant a day comes for the first time and is gone the next.
        let tenant = match self.random.below(50) {
            0 => format!("guest-{day}"),
            other => format!("team-{}", other % 20),
        };
        let amount = DeviceAmount::Whole([1, 2, 4, 8][self.random.below(4) as usize]);
        let request = WorkerRequest {
            accelerators: Some(AcceleratorRequest {
                choices: vec![AcceleratorChoice { kind: name("h100"), throughput_milli: THROUGHPUT_MILLI }],
                amount,
            }),
            cpu_milli: 4_000,
            memory_bytes: 8 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
        let workers = 1 + (self.random.below(4) == 0) as u32 * 2;
        let group =
            TaskGroup::new(name("main"), workers, vec!["python".to_owned(), "train.py".to_owned()], request);
        let draft = JobDraft::new(name(&names), name(&tenant), vec![group]);
        let spec = draft.check().expect("it is a job");
        let request = self.request();
        match self.tell(&Command::submit(request, [spec.into()].into())) {
            Some(Answer::Submitted { jobs, .. }) => {
                if self.random.below(50) == 0 {
                    let minutes = self.random.below(40);
                    self.at(minutes, Due::Cancel(jobs[0]));
                }
            }
            _ => self.refused += 1,
        }
    }

    fn happens(&mut self, due: Due) {
        match due {
            Due::Running(job, token) => self.report(job, Some(token), &RankUpdate::Running),
            Due::Over(job, token, code) => {
                self.report(job, Some(token), &RankUpdate::Exited(ExitStatus::Code(code)));
            }
            Due::Stopped(job) => self.report(job, None, &RankUpdate::Exited(ExitStatus::Signal(15))),
            Due::Cancel(job) => {
                let request = self.request();
                self.tell(&Command::cancel(request, job));
            }
            Due::Back(place) => self.register(place),
        }
    }

    /// A node loses its session for a while; every fifth time another machine comes in its place.
    fn lose_a_node(&mut self) {
        let place = self.random.below(self.hosts.len() as u64) as usize;
        let Host { node, incarnation, .. } = self.hosts[place];
        self.tell(&Command::SessionOver { node, incarnation });
        self.hosts[place].registrations += 1;
        if self.random.below(5) == 0 {
            self.hosts[place].spec = self.new_node();
        }
        self.at(30, Due::Back(place));
    }

    /// What an operator does with nodes that were taken out of use because jobs failed on them.
    fn trust_nodes(&mut self) {
        let restrictions = self.speculation.state().restrictions();
        let out: Vec<NodeId> =
            restrictions.filter(|(_, row)| row.quarantine.is_some()).map(|(node, _)| node).collect();
        for node in out {
            let request = self.request();
            self.tell(&Command::SetQuarantine {
                request,
                by: muster_types::Requester::default(),
                node,
                reason: None,
            });
        }
    }

    /// One day goes by.
    pub fn day(&mut self) {
        for _ in 0..MINUTES_A_DAY {
            self.minute();
        }
    }

    /// The state as it is.
    pub fn state(&self) -> &State {
        self.speculation.state()
    }

    /// How much of everything there is.
    pub fn rows(&self) -> Rows {
        let state = self.state();
        Rows {
            jobs: state.jobs().iter().count() as u64,
            requests: state.requests_count() as u64,
            nodes: state.nodes().iter().count() as u64,
            history: state.history().iter().count() as u64,
        }
    }

    fn minute(&mut self) {
        self.speculation.set_now(LogTime(EPOCH_MS + self.minute * MINUTE_MS));
        let (day, within) = (self.minute / MINUTES_A_DAY, self.minute % MINUTES_A_DAY);
        for due in self.due.remove(&self.minute).unwrap_or_default() {
            self.happens(due);
        }
        let jobs_a_day = self.jobs_a_day;
        let so_far = |minute| jobs_a_day * minute / MINUTES_A_DAY;
        for _ in so_far(within)..so_far(within + 1) {
            self.submit(day);
        }
        if within == 700 {
            self.lose_a_node();
        }
        if within % 120 == 0 {
            self.trust_nodes();
        }
        tick(&mut self.speculation);
        self.commit();
        while self.speculation.wants_schedule() {
            let mut budget = Budget::new(VISITS_PER_ROUND);
            let pass = schedule(&mut self.speculation, &mut budget);
            self.commit();
            if matches!(pass, Pass::Complete { .. }) {
                break;
            }
        }
        self.minute += 1;
    }
}
