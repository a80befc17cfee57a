//! A fleet under the shipping decider, as a leader drives it: commands in, rounds out. Users and agents are
//! played by the bench; no rule of scheduling is written here.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{Answer, BootstrapConfig, Command, Speculation, handle, schedule};
use muster_journal::{Decision, RankUpdate, Round};
use muster_planner::Budget;
use muster_state::State;
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::policy::{PolicyDraft, TenantRights};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ArraySpec, ClusterId, DeviceAmount, ExitStatus,
    HolderId, JobDraft, JobId, JobSpec, Leadership, Level, LogTime, Name, NodeDraft, NodeId, Parameters,
    PriorityTier, ReplicaId, RequestId, Requester, Submission, TaskGroup, WorkerRequest, limits,
};

/// Log time at the start: late enough that no retention reaches back before the epoch.
const EPOCH_MS: u64 = 1_800_000_000_000;
/// Planning work in one round, in visits: as much as a leader does in one.
pub(super) const VISITS_PER_ROUND: u64 = 200_000;
const GIB: u64 = 1 << 30;
/// Devices of one host.
pub(super) const HOST_DEVICES: u32 = 8;

/// How hosts are arranged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) hosts: u32,
    pub(super) hosts_per_rack: u32,
    pub(super) racks_per_block: u32,
}

impl Layout {
    /// Racks of 16 hosts and 32 racks to a block: 10,000 hosts are 20 blocks.
    pub(super) fn blocks_of_512(hosts: u32) -> Layout {
        Layout { hosts, hosts_per_rack: 16, racks_per_block: 32 }
    }

    pub(super) fn hosts_per_block(self) -> u32 {
        self.hosts_per_rack * self.racks_per_block
    }
}

/// A name made of a letter and a number.
pub(super) fn name(text: &str) -> Name {
    Name::new(text).expect("names here are short and of small letters, digits and hyphens")
}

/// What a job asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) workers: u32,
    pub(super) devices: u16,
    pub(super) cpu_milli: u64,
    pub(super) memory_bytes: u64,
    pub(super) tier: PriorityTier,
    pub(super) required: Option<Level>,
}

impl Ask {
    /// `workers` workers with `devices` devices each, and what goes with one of them.
    pub(super) fn gang(workers: u32, devices: u16) -> Ask {
        Ask {
            workers,
            devices,
            cpu_milli: 4_000,
            memory_bytes: 32 * GIB,
            tier: PriorityTier::Standard,
            required: None,
        }
    }
}

/// A job of these needs, with a command like those of training jobs.
pub(super) fn job(job: &str, tenant: &str, ask: Ask) -> JobSpec {
    draft(job, tenant, ask).check().expect("jobs here keep to the bounds")
}

/// The same, to be varied.
pub(super) fn draft(job: &str, tenant: &str, ask: Ask) -> JobDraft {
    let choice = AcceleratorChoice { kind: name("h100"), throughput_milli: THROUGHPUT_MILLI };
    let accelerators = AcceleratorRequest { choices: vec![choice], amount: DeviceAmount::Whole(ask.devices) };
    let request = WorkerRequest {
        accelerators: Some(accelerators),
        cpu_milli: ask.cpu_milli,
        memory_bytes: ask.memory_bytes,
        exclusive: false,
        scratch_bytes: 0,
    };
    let command = vec!["python3".to_owned(), "train.py".to_owned(), format!("--config={job}.yaml")];
    let workers = TaskGroup::new(name("main"), ask.workers, command, request);
    let mut draft = JobDraft::new(name(job), name(tenant), vec![workers]);
    draft.tier = ask.tier;
    draft.topology.required = ask.required;
    draft.expected_run_ms = Some(3_600_000);
    draft
}

/// The jobs of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// Four kinds of jobs, one to a tenant.
    FewClasses,
    /// No two alike in name, CPUs and memory, of four tenants.
    AllDifferent,
}

impl Mix {
    /// The `n`-th job of a queue of jobs of one worker with `devices` devices. Eight with one device each fit a
    /// host, whichever.
    pub(super) fn job(self, n: u64, devices: u16) -> JobSpec {
        let mut ask = Ask::gang(1, devices);
        let tenant = ["vision", "speech", "ranking", "agents"][(n % 4) as usize];
        match self {
            Mix::FewClasses => {
                ask.cpu_milli = 4_000 + n % 4 * 1_000;
                ask.memory_bytes = (32 + n % 4 * 8) * GIB;
                job("train", tenant, ask)
            }
            Mix::AllDifferent => {
                ask.cpu_milli = 4_000 + n % 1_000 * 4;
                ask.memory_bytes = 16 * GIB + n * (64 << 10);
                job(&format!("j{n}-train"), tenant, ask)
            }
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Mix::FewClasses => "4 classes",
            Mix::AllDifferent => "all different",
        }
    }
}

/// A small generator: the same numbers in every run.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new() -> Dice {
        Dice(0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `sides`; Vigna's xorshift64*.
    pub(super) fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }
}

/// What a cluster did between two quiet moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) placed: u64,
    pub(super) stopped: u64,
}

/// A fleet and its scheduler.
pub(super) struct Fleet {
    pub(super) speculation: Speculation,
    requests: u128,
    now_ms: u64,
}

impl Fleet {
    /// An empty fleet of hosts with eight devices.
    pub(super) fn new(layout: Layout) -> Fleet {
        let forget = |_| Ok::<(), std::convert::Infallible>(());
        Fleet::recorded(layout, forget).unwrap_or_else(|never| match never {})
    }

    /// The same, with every round that makes it passed to `record`.
    pub(super) fn recorded<E>(
        layout: Layout,
        mut record: impl FnMut(Round) -> Result<(), E>,
    ) -> Result<Fleet, E> {
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let speculation = Speculation::begin(State::default(), leadership, LogTime(EPOCH_MS), founding);
        let mut fleet = Fleet { speculation, requests: 0, now_ms: EPOCH_MS };
        for host in 0..layout.hosts {
            fleet.register(layout, host);
            fleet.speculation.take_round().map_or(Ok(()), &mut record)?;
        }
        Ok(fleet)
    }

    /// A fleet that jobs with one device each have filled to the last device; the jobs, in no order.
    pub(super) fn full(layout: Layout) -> (Fleet, Vec<JobId>) {
        let mut fleet = Fleet::new(layout);
        let mut jobs = Vec::new();
        let count = u64::from(layout.hosts * HOST_DEVICES);
        fleet.submit_all((0..count).map(|n| Mix::FewClasses.job(n, 1)), |ids| jobs.extend_from_slice(ids));
        fleet.schedule();
        for job in &jobs {
            fleet.report(*job, &RankUpdate::Running);
        }
        (fleet, jobs)
    }

    fn register(&mut self, layout: Layout, host: u32) {
        let rack = host / layout.hosts_per_rack;
        let block = rack / layout.racks_per_block;
        let draft = NodeDraft {
            name: name(&format!("n{host:06}")),
            region: name("r-a"),
            cluster: name("c01"),
            block: name(&format!("b{block:03}")),
            rack: name(&format!("k{rack:05}")),
            address: format!("n{host:06}"),
            accelerators: Some(Accelerators { kind: name("h100"), count: HOST_DEVICES as u16 }),
            cpu_milli: 96_000,
            memory_bytes: 1_024 * GIB,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        };
        let spec = draft.check().expect("hosts here keep to the bounds");
        let holder = HolderId(u128::from(host) + 1);
        self.command(&Command::Register { spec, holder, other_session_is_over: true });
    }

    /// Carries out a command; the round stays open.
    pub(super) fn command(&mut self, command: &Command) -> Answer {
        match handle(&mut self.speculation, command) {
            Ok(answer) => answer,
            Err(refusal) => panic!("the bench asked for what is refused: {}", refusal.message),
        }
    }

    fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Gives a tenant every right; the round stays open.
    pub(super) fn allow(&mut self, tenant: &str) {
        let mut policy = PolicyDraft::default();
        policy.tenants.entry(name(tenant)).or_default().rights = TenantRights::ALL;
        let policy = Box::new(policy.check().expect("rights break no rule of a policy"));
        let request = self.next_request();
        self.command(&Command::SetPolicy {
            request,
            by: Requester::default(),
            policy,
            expected_version: None,
        });
    }

    /// Submits jobs in one batch; the round stays open.
    pub(super) fn submit(&mut self, specs: Vec<JobSpec>) -> Vec<JobId> {
        let request = self.next_request();
        match self.command(&Command::submit(request, muster_types::Submission::plain(specs))) {
            Answer::Submitted { jobs, .. } => jobs,
            other => unreachable!("a submission is answered as one, not {other:?}"),
        }
    }

    /// Submits an array of like jobs; the round stays open.
    pub(super) fn submit_array(&mut self, spec: JobSpec, size: u32) {
        let request = self.next_request();
        let array = Some(ArraySpec::of_size(size));
        let jobs = vec![Submission { array, ..Submission::from(spec) }];
        self.command(&Command::submit(request, jobs.into()));
    }

    /// Submits any number of jobs, in batches and as many rounds.
    pub(super) fn submit_all(
        &mut self,
        specs: impl Iterator<Item = JobSpec>,
        mut submitted: impl FnMut(&[JobId]),
    ) {
        let mut specs = specs.peekable();
        while specs.peek().is_some() {
            let batch: Vec<JobSpec> = specs.by_ref().take(limits::BATCH_JOBS_MAX).collect();
            submitted(&self.submit(batch));
            self.speculation.take_round();
        }
    }

    /// What a leader does once it has taken the commands of a round.
    pub(super) fn decide(&mut self) -> Option<Round> {
        if self.speculation.wants_schedule() {
            schedule(&mut self.speculation, &mut Budget::new(VISITS_PER_ROUND));
        }
        self.speculation.push_digest_if_due();
        self.speculation.take_round()
    }

    /// Rounds until nobody is to be looked at again; gangs placed.
    pub(super) fn schedule(&mut self) -> u64 {
        let mut placed = 0;
        while self.speculation.wants_schedule() {
            placed += self.decide().map_or(0, |round| placements(&round));
        }
        placed
    }

    /// Rounds until nothing follows any more: gangs that were placed run at once, those told to stop do so
    /// at once.
    pub(super) fn settle(&mut self) -> Happened {
        let mut happened = Happened::default();
        while self.speculation.wants_schedule() {
            let Some(round) = self.decide() else { continue };
            for decision in &round.decisions {
                match decision {
                    Decision::GangPlaced { job, .. } => {
                        happened.placed += 1;
                        self.report(*job, &RankUpdate::Running);
                    }
                    Decision::GangStopRequested { job, .. } => {
                        happened.stopped += 1;
                        self.report(*job, &RankUpdate::Exited(ExitStatus::Signal(15)));
                    }
                    Decision::Rearranged { stops, .. } => {
                        for stop in stops {
                            happened.stopped += 1;
                            self.report(stop.job, &RankUpdate::Exited(ExitStatus::Signal(15)));
                        }
                    }
                    _ => {}
                }
            }
        }
        happened
    }

    /// Each node of a gang reports its ranks; the round stays open.
    pub(super) fn report(&mut self, job: JobId, update: &RankUpdate) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone());
        let Some(placement) = placement else { return };
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, slot) in (0..).zip(&placement.slots) {
            by_node.entry((slot.node, slot.incarnation)).or_default().push((rank, update.clone()));
        }
        let token = placement.token;
        for ((node, incarnation), updates) in by_node {
            self.command(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    /// The gang has done what it was asked to; the round stays open.
    pub(super) fn end(&mut self, job: JobId) {
        self.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
    }

    /// Moves time on. A round that is open ends before that.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.speculation.take_round();
        self.now_ms += ms;
        self.speculation.set_now(LogTime(self.now_ms));
    }

    pub(super) fn state(&self) -> &State {
        self.speculation.state()
    }
}

/// Gangs that a round places.
pub(super) fn placements(round: &Round) -> u64 {
    round.decisions.iter().filter(|decision| matches!(decision, Decision::GangPlaced { .. })).count() as u64
}
