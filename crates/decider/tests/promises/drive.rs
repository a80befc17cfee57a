//! Virtual time over a world: what agents, users and an operator do, and what the scheduler decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_decider::{
    Answer, BookingOrder, BootstrapConfig, Command, ControlOrder, DrainOrder, FleetHoldOrder, JobSelection,
    ModifyOrder, OverridesOrder, Pass, QuotaAnswerOrder, QuotaOrder, Speculation, ThrottleOrder, handle,
    schedule, tick,
};
use muster_drill::judge::LogBooks;
use muster_journal::{Decision, RankUpdate, RearrangeCause, StopCause};
use muster_planner::Budget;
use muster_state::{QuotaGrantStatus, State};
use muster_types::policy::{PolicyUpdate, QuotaGrant};
use muster_types::{
    ArraySpec, BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, ClusterId,
    ExitStatus, FencingToken, FleetHold, FleetPart, HoldTarget, HolderId, JobId, JobMetadata, Leadership,
    LogTime, NodeId, NodeOverridesChange, Parameters, Refusal, ReplicaId, RequestId, Requester, Submission,
};

use crate::measure::Observer;
use crate::random::Random;
use crate::world::{Act, JobOrder, JobPlan, SECOND, World, name};

/// Log time of the beginning of every world: late enough that nothing reaches back before it.
pub const EPOCH: LogTime = LogTime(1_600_000_000_000);
/// From the order to start until every worker runs, at most.
pub const LAUNCH_MS: u64 = 5 * SECOND;
/// Rounds that one look at the queue may take. It is bounded work: more is a queue that never ends.
const ROUNDS_MAX: u32 = 10_000;

const FIRST: Leadership = Leadership { term: 1, replica: ReplicaId(1) };

fn bootstrap() -> BootstrapConfig {
    BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT)
}

/// Who asks for something: the owner of jobs, or an operator.
fn requester(is_operator: bool) -> Requester {
    Requester::named("tenant/lab/ada".to_owned(), is_operator)
}

/// The only region of every world.
fn region() -> FleetPart {
    FleetPart { region: Some(name("eu")), cluster: None }
}

/// What is held: the jobs of a tenant, or the region.
fn held(tenant: Option<&str>) -> HoldTarget {
    tenant.map_or_else(|| HoldTarget::Part(region()), |tenant| HoldTarget::Tenant(name(tenant)))
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub id: Option<JobId>,
    pub refused: Option<Refusal>,
    pub placed: Vec<u64>,
    pub running: Vec<u64>,
    pub stops: Vec<(u64, StopCause)>,
    pub requeued: Vec<u64>,
    pub finished: Option<u64>,
    /// The part of its run that is done, which a checkpoint keeps.
    saved_ms: u64,
}

impl Record {
    /// From submission to the first placement.
    pub fn wait_ms(&self, plan: &JobPlan) -> Option<u64> {
        self.placed.first().map(|at| at - plan.at_ms)
    }

    /// Times that policy stopped it for another.
    pub fn preempted(&self) -> impl Iterator<Item = u64> + '_ {
        self.stops.iter().filter_map(|(at, cause)| {
            matches!(cause, StopCause::Rearranged(RearrangeCause::Preempted { .. })).then_some(*at)
        })
    }
}

enum Event {
    Submit(usize),
    Cancel(usize),
    /// What the owner of a job asks of it, by its place among all that it asks.
    Order(usize, usize),
    Running(JobId, FencingToken),
    Done(JobId, FencingToken),
    Stopped(JobId, FencingToken),
    Act(usize),
    Tick,
}

struct Host {
    node: NodeId,
    incarnation: u32,
    holder: u128,
}

pub struct Drive<'a> {
    pub world: &'a World,
    pub speculation: Speculation,
    /// Follows decision by decision, so that observers see the state right before each.
    pub replica: State,
    /// Milliseconds since the beginning.
    pub now_ms: u64,
    /// By how much log time has jumped ahead of that.
    pub jumped_ms: u64,
    leadership: Leadership,
    pub records: Vec<Record>,
    pub jobs: BTreeMap<JobId, usize>,
    /// Jobs that were admitted and are not over.
    pub open: BTreeSet<usize>,
    /// Passes over the queue that were completed.
    pub passes: u64,
    /// Orders of people that were taken: of jobs, arrays, nodes, the region, bookings and quota.
    pub orders_taken: u64,
    /// Updates of parts of the policy that were taken.
    pub updates_taken: u64,
    /// Names of decisions that were made.
    pub made: BTreeSet<&'static str>,
    /// What every record is held against: the books that drills are judged by, which ask no state.
    books: LogBooks,
    /// What these found.
    pub broken: Vec<String>,
    queue: BTreeMap<(u64, u64), Event>,
    events: u64,
    requests: u128,
    hosts: Vec<Host>,
    random: Random,
    trace: Vec<String>,
}

impl<'a> Drive<'a> {
    pub fn new(world: &'a World) -> Drive<'a> {
        let mut drive = Drive {
            world,
            speculation: Speculation::begin(State::default(), FIRST, EPOCH, bootstrap()),
            replica: State::default(),
            now_ms: 0,
            jumped_ms: 0,
            leadership: FIRST,
            records: vec![Record::default(); world.jobs.len()],
            jobs: BTreeMap::new(),
            open: BTreeSet::new(),
            passes: 0,
            orders_taken: 0,
            updates_taken: 0,
            made: BTreeSet::new(),
            books: LogBooks::default(),
            broken: Vec::new(),
            queue: BTreeMap::new(),
            events: 0,
            requests: 0,
            hosts: Vec::new(),
            random: Random::new(world.seed ^ 0xd21e),
            trace: Vec::new(),
        };
        let nobody = &mut crate::measure::NullObserver;
        // A format holds from the round after the one that raises it.
        drive.take(nobody);
        drive.set_policy(&world.policy, nobody);
        for place in 0..world.hosts.len() {
            drive.hosts.push(Host { node: NodeId(0), incarnation: 0, holder: place as u128 * 1_000 });
            drive.register(place, nobody);
        }
        for (place, job) in world.jobs.iter().enumerate() {
            drive.at(job.at_ms, Event::Submit(place));
            if let Some(at) = job.cancel_at_ms {
                drive.at(at, Event::Cancel(place));
            }
            for (number, (at, _)) in job.orders.iter().enumerate() {
                drive.at(*at, Event::Order(place, number));
            }
        }
        for (place, (at, _)) in world.acts.iter().enumerate() {
            drive.at(*at, Event::Act(place));
        }
        drive.at(0, Event::Tick);
        drive
    }

    /// The whole world, to its horizon.
    pub fn run(world: &'a World, observer: &mut dyn Observer) -> Drive<'a> {
        let mut drive = Drive::new(world);
        while drive.step(observer) {}
        drive
    }

    /// Everything that happens at the next moment, and the passes it brings about; whether there is more.
    pub fn step(&mut self, observer: &mut dyn Observer) -> bool {
        let Some((&(at, _), _)) = self.queue.first_key_value() else { return false };
        if at > self.world.horizon_ms {
            return false;
        }
        self.now_ms = at;
        self.speculation.set_now(self.log_time());
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > at {
                break;
            }
            let event = entry.remove();
            self.happen(event, observer);
        }
        self.passes_due(observer);
        observer.moment(self);
        true
    }

    /// Goes on until the next event is later than this.
    pub fn run_until(&mut self, until_ms: u64, observer: &mut dyn Observer) {
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until_ms) && self.step(observer)
        {
        }
    }

    /// Log time of this moment.
    pub fn log_time(&self) -> LogTime {
        EPOCH.plus_ms(self.now_ms + self.jumped_ms)
    }

    fn at(&mut self, at_ms: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at_ms, self.events), event);
    }

    fn happen(&mut self, event: Event, observer: &mut dyn Observer) {
        match event {
            Event::Submit(place) => self.submit(place, observer),
            Event::Cancel(place) => {
                if let Some(job) = self.records[place].id {
                    let request = self.request();
                    let _ = self.handle(&Command::cancel(request, job), observer);
                }
            }
            Event::Order(job, number) => {
                let world = self.world;
                let act = match world.jobs[job].orders[number].1.clone() {
                    JobOrder::Control(control) => Act::Control { job, control, is_operator: false },
                    JobOrder::Change(change) => Act::Modify { job, change },
                };
                let request = self.request();
                self.order(request, &act, observer);
            }
            Event::Running(job, token) => {
                if self.report(job, token, &RankUpdate::Running, observer) {
                    let place = self.jobs[&job];
                    let left = self.world.jobs[place].run_ms.saturating_sub(self.records[place].saved_ms);
                    self.records[place].running.push(self.now_ms);
                    self.at(self.now_ms + left.max(1), Event::Done(job, token));
                }
            }
            Event::Done(job, token) => {
                self.report(job, token, &RankUpdate::Exited(ExitStatus::Code(0)), observer);
            }
            Event::Stopped(job, token) => {
                self.report(job, token, &RankUpdate::Exited(ExitStatus::Signal(15)), observer);
            }
            Event::Act(place) => {
                let act = self.world.acts[place].1.clone();
                self.act(&act, observer);
            }
            Event::Tick => {
                tick(&mut self.speculation);
                self.take(observer);
                self.at(self.now_ms + self.world.tick_ms, Event::Tick);
            }
        }
    }

    fn submit(&mut self, place: usize, observer: &mut dyn Observer) {
        let plan = &self.world.jobs[place];
        if plan.members == 0 {
            return;
        }
        let mut submission: Submission = plan.spec(EPOCH).into();
        if plan.members > 1 {
            let members = ArraySpec::of_size(plan.members);
            submission.array = Some(ArraySpec { throttle: plan.throttle, ..members });
        }
        let metadata = JobMetadata { creator: plan.user.to_owned(), ..JobMetadata::default() };
        submission.metadata = (!metadata.is_default()).then(|| Arc::new(metadata));
        let request = self.request();
        // The id has to be known before what follows from the submission is looked at.
        let answer = handle(&mut self.speculation, &Command::submit(request, [submission].into()));
        match answer {
            Ok(Answer::Submitted { jobs, .. }) => {
                for (place, job) in (place..).zip(jobs) {
                    self.records[place].id = Some(job);
                    self.jobs.insert(job, place);
                    self.open.insert(place);
                }
            }
            Ok(_) => unreachable!("a submission is answered as one"),
            Err(refusal) => self.records[place].refused = Some(refusal),
        }
        self.take(observer);
    }

    fn act(&mut self, act: &Act, observer: &mut dyn Observer) {
        let request = self.request();
        match act {
            Act::Drain { node, deadline_ms } => {
                let order = DrainOrder::Begin { deadline_ms: *deadline_ms };
                let node = self.hosts[*node].node;
                let _ = self.handle(
                    &Command::SetDrain {
                        request,
                        by: muster_types::Requester::default(),
                        node,
                        order,
                        reason: None,
                    },
                    observer,
                );
            }
            Act::EndDrain { node } => {
                let node = self.hosts[*node].node;
                let order = DrainOrder::End;
                let _ = self.handle(
                    &Command::SetDrain {
                        request,
                        by: muster_types::Requester::default(),
                        node,
                        order,
                        reason: None,
                    },
                    observer,
                );
            }
            Act::Lose { node } => {
                let Host { node, incarnation, .. } = self.hosts[*node];
                let _ = self.handle(&Command::SessionOver { node, incarnation }, observer);
            }
            Act::Return { node } => self.register(*node, observer),
            Act::Control { .. }
            | Act::Modify { .. }
            | Act::Book { .. }
            | Act::Unbook { .. }
            | Act::Grant { .. }
            | Act::AskQuota { .. }
            | Act::AnswerQuota { .. }
            | Act::Cordon { .. }
            | Act::Taint { .. }
            | Act::HoldFleet { .. }
            | Act::ReleaseFleet { .. }
            | Act::Maintain { .. }
            | Act::Throttle { .. } => self.order(request, act, observer),
            Act::SetPolicy { policy } => {
                self.note("another policy".into());
                self.set_policy(policy, observer);
            }
            Act::UpdatePolicy { given, part } => {
                self.note(format!("another {part:?}"));
                let update = PolicyUpdate::new(given, vec![part.clone()]).expect("it names one part");
                let (by, update) = (requester(true), Box::new(update));
                let command = Command::UpdatePolicy { request, by, update, expected_version: None };
                // A tenant may be gone that the update names as the one above.
                self.updates_taken += u64::from(self.handle(&command, observer).is_ok());
            }
            Act::ChangeLeader => {
                self.note("another leader".into());
                self.leadership.term += 1;
                let state = self.replica.clone();
                self.speculation = Speculation::begin(state, self.leadership, self.log_time(), bootstrap());
                self.take(observer);
            }
            Act::Jump { ms } => {
                self.note(format!("log time jumps by {} min", ms / 60_000));
                self.jumped_ms += ms;
                self.speculation.set_now(self.log_time());
            }
        }
    }

    /// What people ask for, which may be refused.
    fn order(&mut self, request: RequestId, act: &Act, observer: &mut dyn Observer) {
        let Some(command) = self.command_of(request, act) else { return };
        let answer = self.handle(&command, observer);
        self.note(format!("{act:?}: {}", if answer.is_ok() { "taken" } else { "refused" }));
        self.orders_taken += u64::from(answer.is_ok());
    }

    fn command_of(&self, request: RequestId, act: &Act) -> Option<Command> {
        let by = requester;
        Some(match act {
            Act::Control { job, control, is_operator } => {
                let selection = JobSelection::named(vec![self.records[*job].id?]);
                let (by, control) = (by(*is_operator), *control);
                Command::Control(Box::new(ControlOrder { request, by, acts_for: None, control, selection }))
            }
            Act::Modify { job, change } => Command::Modify(Box::new(ModifyOrder {
                request,
                by: by(false),
                acts_for: None,
                job: self.records[*job].id?,
                expected: None,
                changes: vec![change.clone()],
            })),
            Act::Book { booking, tenant, hosts, length_ms, clearing } => {
                let shape = BookingShape::Chosen {
                    amount: BookingAmount::Hosts(*hosts),
                    kind: Some(name("h100")),
                    region: None,
                    cluster: None,
                    labels: BTreeMap::new(),
                };
                let times = BookingTimes::once(LogTime(0), *length_ms);
                let spec = BookingSpec {
                    tenant: Some(name(tenant)),
                    user: None,
                    jobs: Vec::new(),
                    is_shared: true,
                    shape,
                    times,
                    notice_ms: 0,
                    clearing: *clearing,
                    reason: String::new(),
                };
                let (by, name) = (by(true), name(booking));
                Command::CreateBooking(Box::new(BookingOrder { request, by, acts_for: None, name, spec }))
            }
            Act::Unbook { booking } => {
                Command::DeleteBooking { request, by: by(true), acts_for: None, name: name(booking) }
            }
            Act::Grant { .. }
            | Act::AskQuota { .. }
            | Act::AnswerQuota { .. }
            | Act::Cordon { .. }
            | Act::Taint { .. }
            | Act::HoldFleet { .. }
            | Act::ReleaseFleet { .. }
            | Act::Maintain { .. }
            | Act::Throttle { .. } => return self.command_of_operators(request, act),
            Act::Drain { .. }
            | Act::EndDrain { .. }
            | Act::Lose { .. }
            | Act::Return { .. }
            | Act::SetPolicy { .. }
            | Act::UpdatePolicy { .. }
            | Act::ChangeLeader
            | Act::Jump { .. } => return None,
        })
    }

    /// The same of what is asked of quota, hosts, the region and arrays.
    fn command_of_operators(&self, request: RequestId, act: &Act) -> Option<Command> {
        let by = requester(!matches!(act, Act::AskQuota { .. }));
        let grant = |tenant: &str, devices: u64, length_ms: u64| QuotaGrant {
            tenant: name(tenant),
            kind: name("h100"),
            region: None,
            amount_milli: devices * 1_000,
            until: self.log_time().plus_ms(length_ms),
            reason: "a deadline".to_owned(),
        };
        Some(match act {
            Act::Grant { tenant, devices, length_ms } => {
                let grant = grant(tenant, *devices, *length_ms);
                Command::GrantQuota(Box::new(QuotaOrder { request, by, acts_for: None, grant }))
            }
            Act::AskQuota { tenant, devices, length_ms } => {
                let (acts_for, grant) = (Some(name(tenant)), grant(tenant, *devices, *length_ms));
                Command::RequestQuota(Box::new(QuotaOrder { request, by, acts_for, grant }))
            }
            Act::AnswerQuota { approved } => {
                let is_open = |status: QuotaGrantStatus| status == QuotaGrantStatus::Requested;
                let (id, _) = self.replica.quota_grants().find(|(_, row)| is_open(row.status))?;
                let (approved, reason) = (*approved, "as agreed".to_owned());
                let order = QuotaAnswerOrder { request, by, acts_for: None, id, approved, reason };
                Command::AnswerQuota(Box::new(order))
            }
            Act::Cordon { node, cordoned } => {
                let (node, cordoned) = (self.hosts[*node].node, *cordoned);
                Command::SetCordon { request, by, node, cordoned, reason: None }
            }
            Act::Taint { node, is_set } => {
                let (node, taints) = (self.hosts[*node].node, BTreeSet::from([name("set-aside")]));
                let change = match is_set {
                    true => NodeOverridesChange { set_taints: taints, ..NodeOverridesChange::default() },
                    false => NodeOverridesChange { remove_taints: taints, ..NodeOverridesChange::default() },
                };
                Command::SetNodeOverrides(Box::new(OverridesOrder { request, by, node, change }))
            }
            Act::HoldFleet { tenant, length_ms, stops_work } => {
                let until = length_ms.map(|ms| self.log_time().plus_ms(ms));
                let hold = FleetHold { reason: "a new switch".to_owned(), until, stops_work: *stops_work };
                let (target, hold) = (held(*tenant), Some(hold));
                Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold }))
            }
            Act::ReleaseFleet { tenant } => {
                let target = held(*tenant);
                Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold: None }))
            }
            Act::Maintain { booking, node, length_ms } => {
                let (name, spec) = (name(booking), self.maintenance(*node, *length_ms));
                Command::CreateBooking(Box::new(BookingOrder { request, by, acts_for: None, name, spec }))
            }
            Act::Throttle { throttle } => {
                let (array, _) = self.replica.arrays().iter().find(|(_, row)| row.uncreated > 0)?;
                let (array, throttle) = (*array, Some(*throttle));
                Command::SetThrottle(Box::new(ThrottleOrder { request, by, acts_for: None, array, throttle }))
            }
            _ => return None,
        })
    }

    /// Maintenance of a host or of the region, from now on and again a day later.
    fn maintenance(&self, node: Option<usize>, length_ms: u64) -> BookingSpec {
        let of_node = |node: usize| BookingShape::Nodes(vec![self.world.hosts[node].name.clone()]);
        BookingSpec {
            tenant: None,
            user: None,
            jobs: Vec::new(),
            is_shared: false,
            shape: node.map_or_else(|| BookingShape::Part(region()), of_node),
            times: BookingTimes::once(LogTime(0), length_ms).every(1, 2),
            notice_ms: 0,
            clearing: BookingClearing::Stop,
            reason: "a new switch".to_owned(),
        }
    }

    fn set_policy(&mut self, draft: &muster_types::policy::PolicyDraft, observer: &mut dyn Observer) {
        let policy = Box::new(draft.clone().check().expect("a generated policy keeps to the rules"));
        let request = self.request();
        self.handle(
            &Command::SetPolicy {
                request,
                by: muster_types::Requester::default(),
                policy,
                expected_version: None,
            },
            observer,
        )
        .expect("a policy is taken");
    }

    fn register(&mut self, place: usize, observer: &mut dyn Observer) {
        self.hosts[place].holder += 1;
        let command = Command::Register {
            spec: self.world.hosts[place].clone(),
            holder: HolderId(self.hosts[place].holder),
            other_session_is_over: true,
        };
        match self.handle(&command, observer) {
            Ok(Answer::Registered { node, incarnation, .. }) => {
                (self.hosts[place].node, self.hosts[place].incarnation) = (node, incarnation);
            }
            other => panic!("a node registers: {other:?}"),
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn handle(&mut self, command: &Command, observer: &mut dyn Observer) -> Result<Answer, Refusal> {
        let answer = handle(&mut self.speculation, command);
        self.take(observer);
        answer
    }

    /// All ranks of a placement that still stands say the same; whether there were any.
    fn report(
        &mut self,
        job: JobId,
        token: FencingToken,
        update: &RankUpdate,
        observer: &mut dyn Observer,
    ) -> bool {
        let row = self.speculation.state().job(job);
        let Some(placement) = row.and_then(|row| row.placement.clone()).filter(|p| p.token == token) else {
            return false;
        };
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, (slot, state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if !state.is_over() {
                let updates = by_node.entry((slot.node, slot.incarnation)).or_default();
                updates.push((rank as u32, update.clone()));
            }
        }
        let any = !by_node.is_empty();
        for ((node, incarnation), updates) in by_node {
            let _ = self.handle(&Command::Report { node, incarnation, job, token, updates }, observer);
        }
        any
    }

    fn passes_due(&mut self, observer: &mut dyn Observer) {
        let mut rounds = 0;
        while self.speculation.wants_schedule() {
            let pass = schedule(&mut self.speculation, &mut Budget::new(self.world.visits));
            self.take(observer);
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "a pass over the queue does not end: {}", self.tail());
            if matches!(pass, Pass::Complete { .. }) {
                self.passes += 1;
                observer.passed(self);
            }
        }
    }

    /// The round made so far is real at once.
    fn take(&mut self, observer: &mut dyn Observer) {
        let Some(round) = self.speculation.take_round() else { return };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = muster_types::LogIndex(round.first_index.0 + ordinal as u64);
            observer.before(self, decision);
            self.made.insert(decision.name());
            let broken = self.books.record(index, round.log_time, decision, true);
            self.broken.extend(broken.into_iter().map(|text| format!("{text} (record {index})")));
            let applied = self.replica.apply(self.leadership, index, round.log_time, decision);
            assert_eq!(applied.rejection, None, "an honest leader's record was refused");
            self.follow(decision);
        }
    }

    fn note(&mut self, text: String) {
        if self.trace.len() > 4_000 {
            self.trace.drain(..2_000);
        }
        let (minutes, seconds) = (self.now_ms / 60_000, self.now_ms / 1_000 % 60);
        self.trace.push(format!("{minutes:>6}:{seconds:02} {text}"));
    }

    /// The last things that happened, for a failure's message.
    pub fn tail(&self) -> String {
        let from = self.trace.len().saturating_sub(40);
        format!("world {}:\n{}", self.world.seed, self.trace[from..].join("\n"))
    }

    pub fn label(&self, job: JobId) -> String {
        self.jobs.get(&job).map_or_else(|| job.to_string(), |place| self.world.jobs[*place].name.clone())
    }

    pub fn plan(&self, job: JobId) -> &'a JobPlan {
        &self.world.jobs[self.jobs[&job]]
    }

    fn token(&self, job: JobId) -> FencingToken {
        self.replica.job(job).and_then(|row| row.placement.as_ref()).expect("a placed job").token
    }

    /// What a decision means for the agents and for the record of a job.
    fn follow(&mut self, decision: &Decision) {
        match decision {
            Decision::GangPlaced { job, .. } => {
                let place = self.jobs[job];
                self.records[place].placed.push(self.now_ms);
                self.note(format!("placed {}", self.label(*job)));
                let launch = 1 + self.random.below(LAUNCH_MS);
                let token = self.token(*job);
                self.at(self.now_ms + launch, Event::Running(*job, token));
            }
            Decision::GangStopRequested { job, cause, .. } => self.stop(*job, cause.clone()),
            Decision::Rearranged { stops, .. } => {
                for stop in stops {
                    self.stop(stop.job, StopCause::Rearranged(stop.cause));
                }
            }
            Decision::JobRequeueRequested { jobs, suspended, .. } => {
                for job in jobs {
                    self.stop(*job, StopCause::Requested { suspended: *suspended });
                }
            }
            Decision::JobRequeued { job, .. } => {
                let place = self.jobs[job];
                self.records[place].requeued.push(self.now_ms);
                self.note(format!("requeued {}", self.label(*job)));
            }
            Decision::JobFinished { job, .. } => {
                let place = self.jobs[job];
                self.records[place].finished = Some(self.now_ms);
                self.open.remove(&place);
                self.note(format!("finished {}", self.label(*job)));
            }
            _ => {}
        }
    }

    /// An agent stops a gang within its grace.
    fn stop(&mut self, job: JobId, cause: StopCause) {
        let place = self.jobs[&job];
        let plan = &self.world.jobs[place];
        self.note(format!("stop {} for {cause:?}", self.label(job)));
        let record = &mut self.records[place];
        record.stops.push((self.now_ms, cause));
        if plan.checkpointed
            && let Some(since) = record.running.last()
        {
            record.saved_ms = (record.saved_ms + self.now_ms - since).min(plan.run_ms);
        }
        let takes = 1 + self.random.below(plan.grace_ms.max(1));
        let token = self.token(job);
        self.at(self.now_ms + takes, Event::Stopped(job, token));
    }

    /// Whether a job waits and may be offered capacity.
    pub fn waits(&self, place: usize) -> bool {
        let id = self.records[place].id;
        id.and_then(|id| self.replica.job(id)).is_some_and(|row| row.is_in_line())
    }
}
