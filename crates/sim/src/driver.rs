//! Where the replay meets the scheduler: entries of a trace as its commands, its decisions as events.
//!
//! **Invariant:** apart from `whatif`, which repeats the commands of a log, nothing else in this crate builds a spec or a
//! command, or looks at the scheduler's state.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{
    Answer, BootstrapConfig, Command, Pass, Speculation, explain_briefly, handle, policy_warnings, schedule,
    settle_all, tick,
};
use muster_journal::{Decision, Outcome, RankUpdate, RearrangeCause, Stop, StopCause};
use muster_planner::Budget;
use muster_state::{GangStanding, NodeStatus, NominalCover, State};
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::policy::{Policy, PolicyDraft};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Accelerators, ClusterId, DeviceAmount, ExitStatus, HolderId,
    JobDraft, JobId, JobSpec, Leadership, LogTime, Name, NodeDraft, NodeId, NodeSpec, Parameters, Refusal,
    RefusalCode, ReplicaId, RequestId, TaskGroup, Violation, WorkerRequest, limits,
};
use thiserror::Error;

use crate::names::Names;
use crate::policy::KnownNames;
use crate::stopwatch::{Clock, Stopwatch};
use crate::trace::{JobEntry, NodeEntry};

/// Log time of second 0 of a trace that states none, in milliseconds since the Unix epoch:
/// 13 September 2020, late enough that no retention reaches back before the epoch.
pub const EPOCH_MS: u64 = 1_600_000_000_000;
/// Planning work in one round, in visits: as much as a leader does in one.
const VISITS_PER_ROUND: u64 = 200_000;
/// What a new cluster gets, apart from history: nobody asks a replay again, so what is over is dropped as
/// soon as it may be, and memory is bounded by the jobs that wait and run.
const PARAMETERS: Parameters =
    Parameters { request_retention_ms: 60_000, job_retention_ms: 60_000, ..Parameters::DEFAULT };

/// A node that the scheduler would not take.
#[derive(Debug, Error)]
#[error("node {node:?}: {}", list(violations))]
pub struct FleetError {
    /// Its id in the trace.
    pub node: String,
    /// Every rule it breaks.
    pub violations: Vec<Violation>,
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Where jobs may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// On every node of the fleet.
    Fleet,
    /// In the cluster they were submitted to; anywhere where none is named. Each cluster is a separate region
    /// then: regions are what a job can be held to.
    Home,
}

/// What the scheduler is told of a job's run time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// Longest run of one attempt.
    pub(crate) limit_ms: Option<u64>,
    /// How long it will run.
    pub(crate) expected_ms: Option<u64>,
}

/// Why a gang must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopKind {
    /// Its node or its time is gone.
    Evicted,
    /// Another job goes before it.
    Preempted,
    /// It goes on elsewhere.
    Moved,
    /// A window opened where it ran.
    Window,
    /// Its deadline has passed.
    Late,
}

/// Why a job was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The stable name of the reason.
    pub(crate) code: &'static str,
    /// One sentence.
    pub(crate) sentence: String,
    /// Whether another policy would have taken it.
    pub(crate) by_policy: bool,
}

impl Refused {
    /// It breaks a rule that holds for every job.
    fn invalid(sentence: String) -> Refused {
        Refused { code: RefusalCode::InvalidField.name(), sentence, by_policy: false }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let by_policy = !matches!(refusal.code, RefusalCode::NeverFits | RefusalCode::InvalidField);
        // What is wrong with a field stands in the violation.
        let sentence = match refusal.violations.first() {
            Some(violation) => violation.description.clone(),
            None => refusal.message,
        };
        Refused { code: refusal.code.name(), sentence, by_policy }
    }
}

/// What the scheduler decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The gang has its devices.
    Placed(JobId),
    /// The gang must stop.
    MustStop {
        /// Which.
        job: JobId,
        /// For what.
        why: StopKind,
    },
    /// Nothing of the gang runs any more, and it waits again.
    Requeued(JobId),
    /// The job is over.
    Finished {
        /// Which.
        job: JobId,
        /// Whether it did what it was to do.
        is_done: bool,
    },
}

/// One node, as the scheduler knows it.
struct Host {
    spec: NodeSpec,
    node: NodeId,
    incarnation: u32,
}

/// The scheduler of a replay.
pub(crate) struct Driver<'a> {
    speculation: Speculation,
    hosts: Vec<Host>,
    scope: Scope,
    kinds: Names,
    regions: Names,
    /// Blocks as well: one may be called what a rack is called.
    racks: Names,
    tenants: Names,
    /// Name of whatever has none in a trace.
    word: Name,
    requests: u128,
    watch: Stopwatch<'a>,
    happened: Vec<Happened>,
    decisions: u64,
    /// Log time of second 0.
    start_ms: u64,
}

impl<'a> Driver<'a> {
    /// A new cluster of schedulers with this fleet.
    pub(crate) fn new(
        settings: PolicyDraft,
        nodes: &[NodeEntry],
        scope: Scope,
        start_ms: u64,
        clock: Clock<'a>,
    ) -> Result<Driver<'a>, FleetError> {
        let known = KnownNames::of(&settings);
        let founding = BootstrapConfig::new(ClusterId(1), PARAMETERS);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let now = LogTime(start_ms);
        let mut driver = Driver {
            speculation: Speculation::begin(State::default(), leadership, now, founding),
            hosts: Vec::with_capacity(nodes.len()),
            scope,
            kinds: Names::with_known(known.kinds),
            regions: Names::with_known(known.regions),
            racks: Names::with_known(known.racks),
            tenants: Names::with_known(known.tenants),
            word: Name::literal("replayed"),
            requests: 0,
            watch: Stopwatch::new(clock),
            happened: Vec::new(),
            decisions: 0,
            start_ms,
        };
        // The format is raised once that is in the log; rights need it.
        driver.commit();
        driver.set_policy(settings);
        let mut names = Names::with_known(known.nodes);
        let mut clusters = Names::with_known(known.clusters);
        for entry in nodes {
            let refused = |violations| FleetError { node: entry.id.clone(), violations };
            let cluster = clusters.of(&entry.cluster);
            let draft = driver.node_draft(entry, names.of(&entry.id), cluster);
            let spec = draft.check().map_err(refused)?;
            driver.hosts.push(Host { spec, node: NodeId::default(), incarnation: 0 });
            driver.register(driver.hosts.len() - 1).map_err(|violation| refused(vec![violation]))?;
        }
        Ok(driver)
    }

    /// Goes on from the state of a cluster, under a new leadership. Times are those of its log from here on.
    pub(crate) fn resumed(state: State, now: LogTime, clock: Clock<'a>) -> Driver<'a> {
        let cluster = state.cluster().map_or(ClusterId(1), |meta| meta.cluster);
        let founding = BootstrapConfig {
            generation: state.generation(),
            ..BootstrapConfig::new(cluster, state.parameters())
        };
        let term = state.leadership().map_or(1, |leadership| leadership.term.saturating_add(1));
        let leadership = Leadership { term, replica: ReplicaId(1) };
        let mut driver = Driver {
            speculation: Speculation::begin(state, leadership, now, founding),
            hosts: Vec::new(),
            scope: Scope::Fleet,
            kinds: Names::default(),
            regions: Names::default(),
            racks: Names::default(),
            tenants: Names::default(),
            word: Name::literal("replayed"),
            // Apart from the requests that the state remembers.
            requests: 1 << 127,
            watch: Stopwatch::new(clock),
            happened: Vec::new(),
            decisions: 0,
            start_ms: 0,
        };
        // A leader's first act: the one before may have stopped between an input and what follows from it.
        settle_all(&mut driver.speculation);
        driver.commit();
        driver
    }

    /// The state that the scheduler decides on.
    pub(crate) fn state(&self) -> &State {
        self.speculation.state()
    }

    /// What an operator should know of the policy before a job comes: the worst first.
    pub(crate) fn policy_warnings(&self, policy: &Policy) -> Vec<String> {
        let found = policy_warnings(self.speculation.state(), policy);
        let more =
            (found.left_out > 0).then(|| format!("and {} more warnings about the policy", found.left_out));
        let listed = found.listed.iter().map(|warning| match warning.field.as_str() {
            "" => warning.to_string(),
            field => format!("{field}: {warning}"),
        });
        listed.chain(more).collect()
    }

    fn set_policy(&mut self, settings: PolicyDraft) {
        let policy = settings.check().expect("a preset keeps to the bounds of policies");
        let request = self.next_request();
        let command = Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy: Box::new(policy),
            expected_version: None,
        };
        self.handle(&command).expect("the first policy of a cluster is taken");
    }

    fn node_draft(&mut self, entry: &NodeEntry, name: Name, cluster: Name) -> NodeDraft {
        let region = match self.scope {
            Scope::Fleet => self.regions.of(&entry.region),
            Scope::Home => self.regions.of(&entry.cluster),
        };
        let accelerators = (entry.accel_count > 0)
            .then(|| Accelerators { kind: self.kinds.of(&entry.accel_type), count: entry.accel_count });
        NodeDraft {
            address: name.to_string(),
            name,
            region,
            cluster,
            block: self.racks.of(&entry.block),
            rack: self.racks.of(&entry.rack),
            accelerators,
            cpu_milli: entry.cpu_milli.unwrap_or(limits::CPU_MILLI_MAX),
            memory_bytes: entry.mem_mib.map_or(limits::MEMORY_BYTES_MAX, |mib| mib << 20),
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
            scratch_bytes: 0,
        }
    }

    /// Opens a session for a node. After a loss it is another holder: the machine was rebooted.
    fn register(&mut self, place: usize) -> Result<(), Violation> {
        let host = &self.hosts[place];
        let holder = HolderId(((place as u128) << 32) + u128::from(host.incarnation) + 1);
        let command = Command::Register { spec: host.spec.clone(), holder, other_session_is_over: true };
        match self.handle(&command) {
            Ok(Answer::Registered { node, incarnation, .. }) => {
                let host = &mut self.hosts[place];
                (host.node, host.incarnation) = (node, incarnation);
                Ok(())
            }
            Ok(_) => unreachable!("a registration is answered as one"),
            Err(refusal) => Err(refusal),
        }
    }

    fn handle(&mut self, command: &Command) -> Result<Answer, Violation> {
        self.ask(command).map_err(|refusal| Violation::new("refused", refusal.message))
    }

    /// Gives the scheduler a command. A refusal changes nothing.
    pub(crate) fn ask(&mut self, command: &Command) -> Result<Answer, Refusal> {
        let speculation = &mut self.speculation;
        let answer = self.watch.around(|| handle(speculation, command));
        self.commit();
        answer
    }

    /// The round made so far is real at once; whatever of it matters to a replay happened.
    fn commit(&mut self) {
        let speculation = &mut self.speculation;
        let Some(round) = self.watch.around(|| speculation.take_round()) else { return };
        self.decisions += round.decisions.len() as u64;
        for decision in &round.decisions {
            happened_by(self.speculation.state(), decision, &mut self.happened);
        }
    }

    /// What has happened since the last time.
    pub(crate) fn take_happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    /// Whether anything has.
    pub(crate) fn has_happened(&self) -> bool {
        !self.happened.is_empty()
    }

    /// Moves time on, in milliseconds of the trace.
    pub(crate) fn set_now(&mut self, ms: u64) {
        self.speculation.set_now(LogTime(self.start_ms + ms));
    }

    /// What only time brings about: run-time limits, the end of history.
    pub(crate) fn tick(&mut self) {
        let speculation = &mut self.speculation;
        self.watch.around(|| tick(speculation));
        self.commit();
    }

    /// Whether waiting gangs should have another turn.
    pub(crate) fn wants_schedule(&self) -> bool {
        self.speculation.wants_schedule()
    }

    /// Gives every waiting gang its turn, in as many rounds as that takes.
    pub(crate) fn schedule(&mut self) {
        loop {
            let mut budget = Budget::new(VISITS_PER_ROUND);
            let speculation = &mut self.speculation;
            let pass = self.watch.around(|| schedule(speculation, &mut budget));
            self.commit();
            if matches!(pass, Pass::Complete { .. }) {
                return;
            }
        }
    }

    /// The job as a user would submit it, or why no user could.
    pub(crate) fn spec(&mut self, entry: &JobEntry, hints: Hints) -> Result<JobSpec, Refused> {
        let request = WorkerRequest {
            accelerators: self.accelerators(entry),
            cpu_milli: entry.cpu_milli.unwrap_or(0).max(1),
            memory_bytes: (entry.mem_mib.unwrap_or(0) << 20).max(1),
            exclusive: false,
            scratch_bytes: 0,
        };
        let regions = match self.scope {
            Scope::Home if !entry.home_cluster.is_empty() => vec![self.regions.of(&entry.home_cluster)],
            Scope::Home | Scope::Fleet => Vec::new(),
        };
        let workers = TaskGroup::new(self.word.clone(), entry.replicas, vec!["replayed".to_owned()], request);
        let within = |ms: u64| ms <= limits::RUN_TIME_LIMIT_MS_MAX;
        let draft = JobDraft {
            tier: entry.tier,
            regions,
            run_time_limit_ms: hints.limit_ms.filter(|limit| within(*limit)),
            expected_run_ms: hints.expected_ms.map(|ms| ms.max(1)).filter(|ms| within(*ms)),
            // One name for all: like names say that jobs are alike, and ids of a trace say no such thing.
            preemptible: entry.preemptible,
            deadline: entry.deadline_s.map(|s| LogTime(self.start_ms + s * 1_000)),
            ..JobDraft::new(self.word.clone(), self.tenant(entry), vec![workers])
        };
        draft.check().map_err(|violations| Refused::invalid(list(&violations)))
    }

    /// Whom a job is for.
    pub(crate) fn tenant(&mut self, entry: &JobEntry) -> Name {
        self.tenants.of(if entry.tenant.is_empty() { &entry.queue } else { &entry.tenant })
    }

    fn accelerators(&mut self, entry: &JobEntry) -> Option<AcceleratorRequest> {
        let whole = |milli: u64| u16::try_from(milli / 1_000).unwrap_or(u16::MAX);
        let amount = match entry.accel_milli {
            0 => return None,
            share @ 1..1_000 => DeviceAmount::Share(u16::try_from(share).unwrap_or(999)),
            milli => DeviceAmount::Whole(whole(milli)),
        };
        let choice = |kind: &String| AcceleratorChoice {
            kind: self.kinds.of(kind),
            // What a type does in a time is in no trace: run times are the same on all of them.
            throughput_milli: THROUGHPUT_MILLI,
        };
        Some(AcceleratorRequest { choices: entry.accel_types.iter().map(choice).collect(), amount })
    }

    /// Submits a job; why it was not taken, when it was not.
    pub(crate) fn submit(&mut self, spec: &JobSpec) -> Result<JobId, Refused> {
        let request = self.next_request();
        match self.ask(&Command::submit(request, [spec.clone().into()].into())) {
            Ok(Answer::Submitted { jobs, .. }) => Ok(jobs[0]),
            Ok(_) => unreachable!("a submission is answered as one"),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Why a job waits, by its code and in a sentence.
    pub(crate) fn why_it_waits(&self, job: JobId) -> Option<(&'static str, String)> {
        let (state, kept) = (self.speculation.state(), self.speculation.kept_reservations());
        let explained = explain_briefly(state, self.speculation.now(), job, kept);
        explained.map(|(reason, sentence)| (reason.code(), sentence))
    }

    /// Thousandths of devices that each tenant's gangs hold which are not within nominal quota; nothing where the
    /// policy has no quota.
    pub(crate) fn borrowed(&self) -> BTreeMap<Name, u64> {
        let state = self.speculation.state();
        let mut borrowed: BTreeMap<Name, u64> = BTreeMap::new();
        if !state.has_quotas() {
            return borrowed;
        }
        let cover = NominalCover::of(state);
        for job in state.active().filter(|job| cover.standing(*job) == Some(GangStanding::Borrowing)) {
            let (Some(spec), Some((_, charge))) =
                (state.spec(job), state.job(job).and_then(|row| row.charge()))
            else {
                continue;
            };
            let milli: u64 = charge.devices_milli.iter().map(|(_, milli)| milli).sum();
            *borrowed.entry(spec.tenant.clone()).or_default() += milli;
        }
        borrowed
    }

    /// Cancels a job; nothing when it is over.
    pub(crate) fn cancel(&mut self, job: JobId) {
        let request = self.next_request();
        let _ = self.handle(&Command::cancel(request, job));
    }

    /// An id that no request had before.
    pub(crate) fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Every worker of the gang runs.
    pub(crate) fn report_running(&mut self, job: JobId) {
        self.report(job, &RankUpdate::Running);
    }

    /// Every worker of the gang has done what it was asked to.
    pub(crate) fn report_done(&mut self, job: JobId) {
        self.report_exit(job, 0);
    }

    /// Every worker of the gang has ended by itself with this code.
    pub(crate) fn report_exit(&mut self, job: JobId, code: i32) {
        self.report(job, &RankUpdate::Exited(ExitStatus::Code(code)));
    }

    /// What was left of the gang has stopped, as it was told to.
    pub(crate) fn report_stopped(&mut self, job: JobId) {
        self.report(job, &RankUpdate::Exited(ExitStatus::Signal(15)));
    }

    /// Each node of the gang reports its ranks.
    fn report(&mut self, job: JobId, update: &RankUpdate) {
        let placement = self.speculation.state().job(job).and_then(|row| row.placement.clone());
        let Some(placement) = placement else { return };
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if !state.is_over() {
                let updates = by_node.entry((slot.node, slot.incarnation)).or_default();
                updates.push((u32::try_from(rank).expect("a gang has fewer ranks"), update.clone()));
            }
        }
        let token = placement.token;
        for ((node, incarnation), updates) in by_node {
            for updates in updates.chunks(limits::REPORT_RANKS_MAX) {
                let updates = updates.to_vec();
                let reported = self.handle(&Command::Report { node, incarnation, job, token, updates });
                assert!(reported.is_ok(), "the report of a standing session is taken: {reported:?}");
            }
        }
    }

    /// The region that a placed gang is in.
    pub(crate) fn region_of(&self, job: JobId) -> Option<&Name> {
        self.speculation.state().job(job)?.placement.as_ref().map(|placement| &placement.region)
    }

    /// The region of a node, by its place in the trace.
    pub(crate) fn region_of_node(&self, place: usize) -> &Name {
        &self.hosts[place].spec.region
    }

    /// A node's session is over.
    pub(crate) fn lose_node(&mut self, place: usize) {
        let Host { node, incarnation, .. } = self.hosts[place];
        let lost = self.handle(&Command::SessionOver { node, incarnation });
        assert!(lost.is_ok(), "the end of a session is never refused");
    }

    /// A node is back.
    pub(crate) fn return_node(&mut self, place: usize) {
        self.register(place).expect("a node that was taken once is taken again");
    }

    /// Records decided so far.
    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Time that the scheduler has taken so far.
    pub(crate) fn time(&self) -> std::time::Duration {
        self.watch.total()
    }
}

/// Adds what a decision means for those who run jobs. The state has the decision.
pub(crate) fn happened_by(state: &State, decision: &Decision, happened: &mut Vec<Happened>) {
    happened.extend(match decision {
        Decision::GangPlaced { job, .. } => Some(Happened::Placed(*job)),
        Decision::GangStopRequested { job, cause, .. } => {
            let why = match cause {
                StopCause::Rearranged(cause) => why_rearranged(*cause),
                StopCause::Deadline => StopKind::Late,
                StopCause::Evicted { node } if is_up(state, *node) => StopKind::Window,
                _ => StopKind::Evicted,
            };
            Some(Happened::MustStop { job: *job, why })
        }
        Decision::JobRequeued { job, .. } => Some(Happened::Requeued(*job)),
        Decision::JobFinished { job, outcome } => {
            Some(Happened::Finished { job: *job, is_done: *outcome == Outcome::Succeeded })
        }
        _ => None,
    });
    if let Decision::Rearranged { stops, .. } = decision {
        let stop = |stop: &Stop| Happened::MustStop { job: stop.job, why: why_rearranged(stop.cause) };
        happened.extend(stops.iter().map(stop));
    }
}

fn is_up(state: &State, node: NodeId) -> bool {
    state.node(node).is_some_and(|row| row.status == NodeStatus::Up)
}

fn why_rearranged(cause: RearrangeCause) -> StopKind {
    match cause {
        RearrangeCause::Preempted { .. } => StopKind::Preempted,
        RearrangeCause::Moved { .. } | RearrangeCause::Resized | RearrangeCause::Drained { .. } => {
            StopKind::Moved
        }
    }
}
