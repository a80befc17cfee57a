//! Logs that are made here, record by record, and what a replay of them comes to.

use std::sync::Arc;

use muster_decider::{
    Answer, BookingOrder, BootstrapConfig, Command, FleetHoldOrder, Pass, QuotaOrder, Speculation, handle,
    schedule, tick,
};
use muster_journal::{Decision, RankUpdate};
use muster_planner::Budget;
use muster_types::policy::{Policy, PolicyDraft, PurchaseKind, Quota, QuotaGrant, TenantPolicy};
use muster_types::{
    AcceleratorRequest, Accelerators, BookingAmount, BookingClearing, BookingShape, BookingSpec,
    BookingTimes, CapacityFallback, CapacityRules, ClusterId, ExitStatus, FleetHold, FleetPart, HoldTarget,
    HolderId, JobContract, JobDraft, JobId, Leadership, LogIndex, Name, NodeDraft, NodeId, Parameters,
    ReplicaId, RequestId, Requester, Submission, TaskGroup, WorkerRequest,
};
use proptest::prelude::*;

use super::*;
use muster_state::State;

mod month;

/// When the range begins.
const BEGIN: u64 = 1_700_000_000_000;

/// A job of a test: when it is submitted, for whom, on how many accelerators of which type, for how long, and on the nodes of
/// which booking. In seconds.
#[derive(Clone, Copy, Debug)]
struct Job {
    submit_s: u64,
    tenant: &'static str,
    kind: &'static str,
    devices: u16,
    run_s: u64,
    booking: Option<&'static str>,
}

fn job(submit_s: u64, tenant: &'static str, devices: u16, run_s: u64) -> Job {
    Job { submit_s, tenant, kind: "h100", devices, run_s, booking: None }
}

/// A host of eight accelerators.
fn host(place: usize, kind: &'static str) -> NodeDraft {
    NodeDraft {
        name: Name::new(&format!("n{place}")).unwrap(),
        region: Name::literal("eu"),
        cluster: Name::literal("train"),
        block: Name::literal("b1"),
        rack: Name::literal("r1"),
        address: format!("n{place}"),
        accelerators: Some(Accelerators { kind: Name::literal(kind), count: 8 }),
        cpu_milli: 64_000,
        memory_bytes: 1 << 40,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    }
}

/// A cluster that writes a log: the scheduler, a replica that applies its rounds, and who looks at that.
struct World {
    speculation: Speculation,
    applied: State,
    recorder: Option<Recorder>,
    /// Commits between two looks at what was recorded so far; zero for none.
    look_every: usize,
    commits: usize,
    /// The second in which the range begins; what is there by then is no input of it.
    begin_s: u64,
    /// Placed gangs that nobody has heard of yet.
    placed: Vec<JobId>,
    requests: u128,
}

impl World {
    /// Hosts of eight accelerators each, named by their type.
    fn new(kinds: &[&'static str], policy: PolicyDraft) -> World {
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let now = LogTime(BEGIN - 1_000);
        let mut world = World {
            speculation: Speculation::begin(State::default(), leadership, now, founding),
            applied: State::default(),
            recorder: None,
            look_every: 0,
            commits: 0,
            begin_s: 0,
            placed: Vec::new(),
            requests: 0,
        };
        world.commit();
        let (request, policy) = (world.request(), Box::new(policy.check().unwrap()));
        let by = Requester::default();
        world.ask(&Command::SetPolicy { request, by, policy, expected_version: None });
        for (place, kind) in kinds.iter().copied().enumerate() {
            world.register(place, host(place, kind));
        }
        world
    }

    fn register(&mut self, place: usize, draft: NodeDraft) {
        let (spec, holder) = (draft.check().unwrap(), HolderId(place as u128 + 1));
        self.ask(&Command::Register { spec, holder, other_session_is_over: true });
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn ask(&mut self, command: &Command) -> Answer {
        let answer = handle(&mut self.speculation, command).unwrap();
        self.commit();
        answer
    }

    fn commit(&mut self) {
        let leadership = self.speculation.leadership();
        let Some(round) = self.speculation.take_round() else { return };
        for (place, decision) in round.decisions.iter().enumerate() {
            if let Some(recorder) = &mut self.recorder {
                recorder.before(&self.applied, decision);
            }
            let index = LogIndex(round.first_index.0 + place as u64);
            let applied = self.applied.apply(leadership, index, round.log_time, decision);
            assert_eq!(applied.rejection, None, "{decision:?}");
            if let Some(recorder) = &mut self.recorder {
                recorder.after(&self.applied, &applied);
            }
            self.placed.extend(match decision {
                Decision::GangPlaced { job, .. } => Some(*job),
                _ => None,
            });
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.round_over(&self.applied);
        }
        self.commits += 1;
        self.look();
    }

    /// Looks at what was recorded so far, now and then: it must not change what is recorded.
    fn look(&self) {
        let Some(recorder) = self.recorder.as_ref().filter(|_| self.look_every > 0) else { return };
        if self.commits.is_multiple_of(self.look_every) {
            let recording = recorder.so_far(&self.applied, self.applied.log_time()).unwrap();
            let side = unchanged(&recording);
            let at_begin = recording.running_at_begin + recording.waiting_at_begin;
            assert!(side.submitted + at_begin >= recording.record.finished, "{side:?}");
        }
    }

    fn submit(&mut self, job: &Job) -> JobId {
        self.submit_with(job, None)
    }

    fn submit_with(&mut self, job: &Job, capacity: Option<Box<CapacityRules>>) -> JobId {
        let accelerators = Accelerators { kind: Name::literal(job.kind), count: job.devices };
        let request = WorkerRequest {
            accelerators: Some(AcceleratorRequest::from(accelerators)),
            cpu_milli: 1_000,
            memory_bytes: 1 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(Name::literal("main"), 1, vec!["train".to_owned()], request);
        let draft = JobDraft {
            expected_run_ms: Some(job.run_s * 1_000),
            booking: job.booking.map(Name::literal),
            capacity,
            ..JobDraft::new(Name::literal("job"), Name::literal(job.tenant), vec![group])
        };
        let submission = Submission::new(draft.check().unwrap(), JobContract::default());
        let (request, jobs) = (self.request(), Arc::from([submission]));
        match self.ask(&Command::submit(request, jobs)) {
            Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    fn report(&mut self, job: JobId, update: &RankUpdate) {
        let placement = self.applied.job(job).unwrap().placement.clone().unwrap();
        let (slot, token) = (placement.slots[0], placement.token);
        let (node, incarnation): (NodeId, u32) = (slot.node, slot.incarnation);
        let updates = vec![(0, update.clone())];
        self.ask(&Command::Report { node, incarnation, job, token, updates });
    }

    /// Lets these jobs, in the order of their submission, come and end, until a second of the range.
    fn live(mut self, jobs: &[Job], end_s: u64) -> Recording {
        let at = |second: u64| LogTime(BEGIN + second * 1_000);
        let range = Range { from: at(self.begin_s), to: at(end_s) };
        let mut run_s = std::collections::BTreeMap::new();
        let mut ends: Vec<(u64, JobId)> = Vec::new();
        let mut next = jobs.iter().peekable();
        loop {
            let end = ends.iter().map(|(at, _)| *at).min();
            let submission = next.peek().map(|job| job.submit_s);
            let Some(now_s) = end.into_iter().chain(submission).min().filter(|at| *at <= end_s) else {
                break;
            };
            if now_s >= self.begin_s && self.recorder.is_none() {
                self.recorder = Some(Recorder::begin(&self.applied, range));
            }
            self.speculation.set_now(at(now_s));
            let over: Vec<JobId> = ends.iter().filter(|(at, _)| *at <= now_s).map(|(_, job)| *job).collect();
            ends.retain(|(at, _)| *at > now_s);
            for job in over {
                self.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
            }
            tick(&mut self.speculation);
            self.commit();
            while let Some(job) = next.next_if(|job| job.submit_s <= now_s) {
                let id = self.submit(job);
                run_s.insert(id, job.run_s);
            }
            while self.speculation.wants_schedule() {
                let pass = schedule(&mut self.speculation, &mut Budget::new(100_000));
                self.commit();
                assert!(matches!(pass, Pass::Complete { .. }));
                for job in std::mem::take(&mut self.placed) {
                    ends.push((now_s + run_s[&job], job));
                    self.report(job, &RankUpdate::Running);
                }
            }
        }
        let begin = || Recorder::begin(&self.applied, range);
        let mut recorder = self.recorder.take().unwrap_or_else(begin);
        if self.look_every > 0 {
            return recorder.so_far(&self.applied, range.to).unwrap();
        }
        recorder.end_range(&self.applied);
        recorder.finish(&self.applied).unwrap()
    }
}

/// Nobody waits for a share, and nobody is preempted.
fn plain() -> PolicyDraft {
    PolicyDraft { preemption: crate::policy::still(), ..PolicyDraft::default() }
}

/// Two tenants, each with a quota of four accelerators of its type that cannot be exceeded.
fn two_tenants() -> PolicyDraft {
    let tenant = |kind: &'static str| TenantPolicy {
        quotas: vec![Quota {
            kind: Name::literal(kind),
            region: None,
            nominal_milli: 4_000,
            borrowing_limit_milli: Some(0),
            lending_limit_milli: Some(0),
        }],
        ..TenantPolicy::default()
    };
    let below = TenantPolicy { parent: Some(Name::literal("a")), ..TenantPolicy::default() };
    let tenants = [
        (Name::literal("a"), tenant("h100")),
        (Name::literal("a-below"), below),
        (Name::literal("b"), tenant("a100")),
    ];
    PolicyDraft { tenants: tenants.into(), ..plain() }
}

fn replay(recording: &Recording, change: &Change) -> Side {
    recording.replay(change, &mut |_| {}).unwrap()
}

fn unchanged(recording: &Recording) -> Side {
    replay(recording, &Change::default())
}

fn more(text: &str) -> Change {
    Change { added: vec![text.parse().unwrap()], ..Change::default() }
}

fn quota(text: &str) -> Change {
    Change { quotas: vec![text.parse().unwrap()], ..Change::default() }
}

#[test]
fn an_unchanged_replay_is_the_record() {
    // One host: the second waits for 90 s, the third is cut by the end of the range.
    let jobs = [job(0, "a", 8, 100), job(10, "a", 8, 50), job(20, "a", 8, 1_000)];
    let recording = World::new(&["h100"], plain()).live(&jobs, 600);
    let record = &recording.record;
    assert_eq!((record.submitted, record.started, record.finished, record.running), (3, 3, 2, 1));
    assert_eq!((record.waits.p50_ms, record.waits.p99_ms), (90_000, 130_000));
    assert_eq!(record.types.len(), 1);
    assert_eq!((record.types[0].capacity_seconds, record.types[0].held_seconds), (4_800, 4_800));
    let side = unchanged(&recording);
    let difference = Difference::between(record, &side);
    assert!(difference.is_none(), "{difference:?}");
    assert_eq!((side.estimated_runs, side.refused, side.inputs_without_effect), (1, 0, 0));
}

#[test]
fn a_grant_of_quota_is_in_force_in_a_replay_for_as_long_as_it_was() {
    let mut world = World::new(&["h100"], two_tenants());
    let grant = QuotaGrant {
        tenant: Name::literal("a"),
        kind: Name::literal("h100"),
        region: None,
        amount_milli: 4_000,
        until: LogTime(BEGIN + 300_000),
        reason: "a deadline".to_owned(),
    };
    let (request, by) = (world.request(), Requester::default());
    let order = QuotaOrder { request, by, acts_for: None, grant };
    world.ask(&Command::GrantQuota(Box::new(order)));
    // With its quota alone the tenant has four of the eight.
    let recording = world.live(&[job(0, "a", 8, 100), job(400, "a", 8, 100)], 600);
    let record = &recording.record;
    assert_eq!((record.submitted, record.started, record.finished), (2, 1, 1));
    let side = unchanged(&recording);
    assert_eq!((side.submitted, side.started, side.finished), (2, 1, 1));
    assert_eq!((side.refused, side.inputs_without_effect), (0, 0));
}

#[test]
fn a_job_that_is_cancelled_before_it_starts_counts_with_its_wait() {
    let mut world = World::new(&["h100"], plain());
    let range = Range { from: LogTime(BEGIN), to: LogTime(BEGIN + 100_000) };
    world.recorder = Some(Recorder::begin(&world.applied, range));
    world.speculation.set_now(LogTime(BEGIN));
    let id = world.submit(&job(0, "a", 8, 50));
    world.speculation.set_now(LogTime(BEGIN + 40_000));
    let request = world.request();
    world.ask(&Command::cancel(request, id));
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    let recording = recorder.finish(&world.applied).unwrap();
    let record = &recording.record;
    assert_eq!((record.cancelled, record.waits.jobs, record.waits.p50_ms), (1, 1, 40_000));
    let side = unchanged(&recording);
    assert_eq!((side.started, side.waits.jobs, side.waits.p50_ms), (1, 1, 0), "the replay starts it at once");
}

#[test]
fn a_fallback_opens_in_a_replay_when_it_is_due() {
    let mut world = World::new(&[], plain());
    let mut draft = host(0, "h100");
    draft.labels.insert(Name::literal("purchase"), PurchaseKind::OnDemand.as_str().to_owned());
    world.register(0, draft);
    let rules = |after_s: u64| CapacityRules {
        purchases: [PurchaseKind::Spot].into_iter().collect(),
        fallback: Some(CapacityFallback {
            purchases: [PurchaseKind::OnDemand].into_iter().collect(),
            after_ms: after_s * 1_000,
            is_open: false,
        }),
        interruptions_milli_max: None,
    };
    // One waits where the range begins, and one is submitted in it. Nothing else happens.
    world.speculation.set_now(LogTime(BEGIN));
    world.submit_with(&job(0, "a", 4, 10_000), Some(Box::new(rules(1_000))));
    let range = Range { from: LogTime(BEGIN), to: LogTime(BEGIN + 3_000_000) };
    world.recorder = Some(Recorder::begin(&world.applied, range));
    world.submit_with(&job(0, "b", 4, 10_000), Some(Box::new(rules(700))));
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    let side = unchanged(&recorder.finish(&world.applied).unwrap());
    let waits: Vec<u64> = side.by_tenant.iter().map(|row| row.waits.p50_ms).collect();
    assert_eq!(waits, [1_000_000, 700_000]);
}

/// Two tenants that the policy lists, without quotas.
fn listed_tenants() -> PolicyDraft {
    let tenants = ["a", "b"].map(|name| (Name::literal(name), TenantPolicy::default()));
    PolicyDraft { tenants: tenants.into(), ..plain() }
}

/// A world whose range begins, for as many seconds, with these hosts.
fn begun(kinds: &[&'static str], seconds: u64) -> World {
    let mut world = World::new(kinds, listed_tenants());
    world.speculation.set_now(LogTime(BEGIN));
    let range = Range { from: LogTime(BEGIN), to: LogTime(BEGIN + seconds * 1_000) };
    world.recorder = Some(Recorder::begin(&world.applied, range));
    world
}

/// Holds something, or releases it.
fn hold(world: &mut World, target: HoldTarget, hold: Option<FleetHold>) {
    let (request, by) = (world.request(), Requester::default());
    world.ask(&Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold })));
}

fn eu() -> HoldTarget {
    HoldTarget::Part(FleetPart { region: Some(Name::literal("eu")), cluster: None })
}

/// Books the only host for tenant a, from second 100 to second 400 of the range.
fn book_the_host(world: &mut World) {
    let spec = BookingSpec {
        tenant: Some(Name::literal("a")),
        user: None,
        jobs: Vec::new(),
        is_shared: false,
        shape: BookingShape::Chosen {
            amount: BookingAmount::Hosts(1),
            kind: Some(Name::literal("h100")),
            region: None,
            cluster: None,
            labels: Default::default(),
        },
        times: BookingTimes::once(LogTime(BEGIN + 100_000), 300_000),
        notice_ms: 0,
        clearing: BookingClearing::Finish,
        reason: String::new(),
    };
    let (request, by, name) = (world.request(), Requester::default(), Name::literal("week"));
    let order = BookingOrder { request, by, acts_for: None, name, spec };
    world.ask(&Command::CreateBooking(Box::new(order)));
}

#[test]
fn a_job_that_a_change_keeps_from_its_booking_runs_without_it() {
    let mut world = begun(&["h100"], 600);
    let below = TenantPolicy { parent: Some(Name::literal("a")), ..TenantPolicy::default() };
    let mut policy = listed_tenants();
    policy.tenants.insert(Name::literal("a-below"), below);
    let (request, by) = (world.request(), Requester::default());
    let policy = Box::new(policy.check().unwrap());
    world.ask(&Command::SetPolicy { request, by, policy, expected_version: None });
    book_the_host(&mut world);
    let recording = world.live(&[Job { booking: Some("week"), ..job(150, "a-below", 8, 50) }], 600);
    let side = unchanged(&recording);
    assert_eq!((side.refused, side.without_booking, side.waits.p99_ms), (0, 0, 0));
    // The booking is still there, and its owner is no longer above the job's tenant.
    let mut policy = listed_tenants();
    policy.tenants.insert(Name::literal("a-below"), TenantPolicy::default());
    let policy = Some(Box::new(policy.check().unwrap()));
    let side = replay(&recording, &Change { policy, ..Change::default() });
    assert_eq!((side.refused, side.inputs_without_effect, side.without_booking), (0, 0, 1));
    assert_eq!((side.finished, side.waits.p99_ms), (1, 250_000));
}

#[test]
fn a_booking_of_the_range_keeps_its_nodes_in_a_replay_too() {
    let mut world = begun(&["h100"], 600);
    book_the_host(&mut world);
    let jobs = [
        // It waits until the window is over, and the job of the owner does not.
        job(120, "b", 8, 50),
        Job { booking: Some("week"), ..job(150, "a", 8, 100) },
        job(400, "c", 8, 10),
    ];
    let recording = world.live(&jobs, 600);
    let record = &recording.record;
    assert_eq!((record.submitted, record.started, record.finished), (3, 3, 3));
    assert!(record.waits.p99_ms >= 280_000, "{record:?}");
    assert!(recording.not_replayed.is_empty(), "{:?}", recording.not_replayed);
    let side = unchanged(&recording);
    let difference = Difference::between(record, &side);
    assert!(difference.is_none(), "{difference:?}");
    assert_eq!((side.refused, side.inputs_without_effect, side.without_booking), (0, 0, 0));
    // A policy that does not list the owner leaves no booking, and its job runs without one.
    let policy = Some(Box::new(plain().check().unwrap()));
    let side = replay(&recording, &Change { policy, ..Change::default() });
    assert_eq!((side.refused, side.inputs_without_effect, side.without_booking), (0, 1, 1));
    assert_eq!(side.finished, 3);
    assert!(side.waits.p99_ms < 280_000, "{side:?}");
}

#[test]
fn a_booking_that_is_deleted_is_over_in_a_replay_too() {
    let mut world = begun(&["h100"], 600);
    let spec = BookingSpec {
        tenant: None,
        user: None,
        jobs: Vec::new(),
        is_shared: false,
        shape: BookingShape::Nodes(vec![Name::literal("n0")]),
        times: BookingTimes::once(LogTime(BEGIN), 500_000),
        notice_ms: 0,
        clearing: BookingClearing::Stop,
        reason: "a new switch".to_owned(),
    };
    let (request, by, name) = (world.request(), Requester::default(), Name::literal("switch"));
    let order = BookingOrder { request, by, acts_for: None, name: name.clone(), spec };
    world.ask(&Command::CreateBooking(Box::new(order)));
    world.submit(&job(0, "a", 8, 10_000));
    world.speculation.set_now(LogTime(BEGIN + 200_000));
    let (request, by) = (world.request(), Requester::default());
    world.ask(&Command::DeleteBooking { request, by, acts_for: None, name });
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    let side = unchanged(&recorder.finish(&world.applied).unwrap());
    assert_eq!((side.started, side.waits.p50_ms, side.inputs_without_effect), (1, 200_000, 0));
}

#[test]
fn holds_of_the_fleet_and_of_tenants_last_as_long_in_a_replay() {
    let mut world = begun(&["h100", "h100"], 1_000);
    let audit = FleetHold { reason: "an audit".to_owned(), until: None, stops_work: false };
    let until = Some(LogTime(BEGIN + 200_000));
    hold(&mut world, eu(), Some(audit.clone()));
    hold(&mut world, HoldTarget::Tenant(Name::literal("b")), Some(FleetHold { until, ..audit }));
    world.submit(&job(0, "a", 8, 10_000));
    world.submit(&job(0, "b", 8, 10_000));
    world.speculation.set_now(LogTime(BEGIN + 100_000));
    hold(&mut world, eu(), None);
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    let recording = recorder.finish(&world.applied).unwrap();
    assert!(recording.not_replayed.is_empty(), "{:?}", recording.not_replayed);
    let side = unchanged(&recording);
    assert_eq!((side.refused, side.inputs_without_effect), (0, 0));
    // The hold of the region was released, and that of the tenant ended by itself.
    let waits: Vec<u64> = side.by_tenant.iter().map(|row| row.waits.p50_ms).collect();
    assert_eq!(waits, [100_000, 200_000]);
}

#[test]
fn a_hold_that_drains_stops_what_runs_in_a_replay() {
    let mut world = begun(&["h100"], 100);
    world.submit(&job(0, "a", 8, 10_000));
    world.speculation.set_now(LogTime(BEGIN + 50_000));
    let smoke = FleetHold { reason: "smoke".to_owned(), until: None, stops_work: true };
    hold(&mut world, eu(), Some(smoke));
    world.speculation.set_now(LogTime(BEGIN + 80_000));
    hold(&mut world, eu(), None);
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    let side = unchanged(&recorder.finish(&world.applied).unwrap());
    assert_eq!((side.started, side.running), (1, 1));
    assert_eq!((side.types[0].capacity_seconds, side.types[0].held_seconds), (8 * 100, 8 * 70));
}

#[test]
fn a_host_more_ends_the_waiting() {
    let jobs = [job(0, "a", 8, 100), job(10, "a", 8, 50), job(20, "b", 8, 60)];
    let recording = World::new(&["h100"], plain()).live(&jobs, 110);
    let side = replay(&recording, &more("8xh100@eu/train"));
    assert_eq!((recording.record.finished, recording.record.waiting), (1, 1));
    assert_eq!((side.finished, side.waiting, side.types[0].capacity_seconds), (2, 0, 2 * 880));
}

#[test]
fn a_node_that_is_not_there_holds_nothing() {
    let jobs = [job(0, "a", 8, 100), job(0, "a", 8, 100)];
    let recording = World::new(&["h100", "h100"], plain()).live(&jobs, 300);
    let side = replay(&recording, &Change { removed: vec![Name::literal("n1")], ..Change::default() });
    assert_eq!((recording.record.waits.p99_ms, side.waits.p99_ms), (0, 100_000));
    assert_eq!((side.finished, side.types[0].capacity_seconds), (2, 2_400));
}

#[test]
fn a_change_that_names_what_is_not_there_is_refused() {
    let recording = World::new(&["h100", "a100"], two_tenants()).live(&[job(0, "a", 1, 10)], 60);
    let cases = [
        (more("8xb200@eu/train"), "the fleet has no accelerator of type b200; it has a100, h100"),
        (more("8xh100@us/train"), "the fleet has no cluster us/train; it has eu/train"),
        (more("9xh100@eu/train"), "9 h100 cannot be added as whole hosts"),
        (quota("c=+1"), "the policy names no tenant c; it names a, a-below, b"),
        (quota("a/a100=+1"), "the change of the quota of tenant a fits 0 of its quotas: it has a/h100"),
        (quota("a=-5"), "the quota of tenant a is 4: it cannot be changed by as much"),
        (quota("a=99999999999"), "the policy with the changed quotas breaks a rule of policies"),
        (
            Change { removed: vec![Name::literal("n7")], ..Change::default() },
            "there is no node n7 in the range; there are n0, n1",
        ),
    ];
    for (change, expected) in cases {
        let error = recording.check(&change).unwrap_err();
        assert_eq!(error.sentence, expected);
        assert!(!error.next.is_empty(), "{expected}");
    }
}

#[test]
fn a_quota_moves_its_tenant_and_those_below_it_alone() {
    let mut jobs = Vec::new();
    for turn in 0..6 {
        jobs.push(job(turn, "a", 2, 100));
        jobs.push(job(turn, "a-below", 2, 100));
        jobs.push(Job { kind: "a100", ..job(turn, "b", 2, 100) });
    }
    let recording = World::new(&["h100", "a100"], two_tenants()).live(&jobs, 1_000);
    let (before, after) = (unchanged(&recording), replay(&recording, &quota("a=+4")));
    let difference = Difference::between(&before, &after);
    let moved = |tenant: &str| {
        let row = difference.by_tenant.iter().find(|row| row.tenant == tenant).unwrap();
        row.waits != WaitDifference::default()
    };
    assert!(moved("a") || moved("a-below"), "{difference:?}");
    assert!(!moved("b"), "{difference:?}");
    assert!(difference.waits.p99_ms < 0, "{difference:?}");
}

#[test]
fn a_shadow_ends_its_range_when_the_cluster_is_recovered() {
    let mut world = World::new(&["h100"], plain());
    let mut shadow = Shadow::begin(&world.applied);
    assert!(!shadow.is_full());
    assert_eq!(shadow.first(), world.applied.log_index().next());
    let decision = Decision::ClusterRecovered { generation: 2 };
    shadow.before(&world.applied, &decision);
    let (index, leadership) = (world.applied.log_index().next(), world.speculation.leadership());
    let applied = world.applied.apply(leadership, index, LogTime(BEGIN), &decision);
    shadow.after(&world.applied, &applied);
    shadow.round_over(&world.applied);
    assert!(shadow.is_full());
    let error = shadow.so_far(&world.applied).unwrap_err();
    assert!(error.sentence.starts_with("the cluster was recovered at"), "{error}");
}

#[test]
fn a_change_that_starves_a_tenant_is_noticed() {
    let jobs = [job(0, "a", 8, 100), job(100, "b", 8, 100)];
    let recording = World::new(&["h100", "h100"], plain()).live(&jobs, 300);
    let (before, after) = (unchanged(&recording), unchanged(&recording));
    assert!(starved(&before, &after, 300_000).is_empty());
    let mut after = after;
    for row in after.by_tenant.iter_mut().filter(|row| row.tenant == "b") {
        row.waits.p50_ms = 200_000;
    }
    assert_eq!(starved(&before, &after, 300_000), [("b".to_owned(), "standard")]);
    // It did not start before either.
    assert!(starved(&after, &after, 300_000).is_empty());
    assert!(starved(&before, &after, 0).is_empty());
}

#[test]
fn what_runs_and_waits_where_a_range_begins_is_followed_as_well() {
    let jobs = [job(0, "a", 8, 100), job(10, "a", 8, 50), job(20, "b", 8, 30)];
    let of = |look_every| {
        let mut world = World::new(&["h100"], plain());
        (world.begin_s, world.look_every) = (15, look_every);
        world.live(&jobs, 400)
    };
    let (whole, followed) = (of(0), of(1));
    assert_eq!((whole.running_at_begin, whole.waiting_at_begin), (1, 1));
    assert_eq!((whole.record.submitted, whole.record.finished), (1, 3));
    assert_eq!((followed.running_at_begin, followed.waiting_at_begin), (1, 1));
    assert_eq!(followed.record, whole.record);
    assert_eq!(unchanged(&followed), unchanged(&whole));
}

/// Jobs of one size and run time, so that their order makes no difference.
fn like_jobs() -> impl Strategy<Value = Vec<Job>> {
    let submissions = proptest::collection::vec((0u64..2_000, any::<bool>()), 1..40);
    submissions.prop_map(|mut submissions| {
        submissions.sort_unstable();
        let like = |(at, is_a)| job(at, if is_a { "a" } else { "b" }, 4, 120);
        submissions.into_iter().map(like).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn more_capacity_never_finishes_less(jobs in like_jobs(), end_s in 100u64..3_000) {
        let recording = World::new(&["h100"], plain()).live(&jobs, end_s);
        let (before, after) = (unchanged(&recording), replay(&recording, &more("8xh100@eu/train")));
        prop_assert!(after.finished >= before.finished, "{before:?} {after:?}");
    }

    #[test]
    fn a_log_that_is_followed_in_pieces_comes_to_what_it_comes_to_as_a_whole(
        jobs in like_jobs(),
        (begin_s, long_s) in (prop_oneof![Just(0u64), 1u64..1_500], 100u64..2_500),
        look_every in 1usize..40,
    ) {
        let of = |look_every| {
            let mut world = World::new(&["h100"], plain());
            (world.begin_s, world.look_every) = (begin_s, look_every);
            world.live(&jobs, begin_s + long_s)
        };
        let (whole, followed) = (of(0), of(look_every));
        prop_assert_eq!(&followed.record, &whole.record);
        for change in [Change::default(), more("8xh100@eu/train")] {
            prop_assert_eq!(replay(&followed, &change), replay(&whole, &change));
        }
        prop_assert_eq!(followed.running_at_begin, whole.running_at_begin);
        prop_assert_eq!(followed.waiting_at_begin, whole.waiting_at_begin);
        if begin_s > 0 {
            return Ok(());
        }
        // Where nothing waits at the beginning, the policy that is in force differs in nothing.
        let policy: &Policy = &followed.base.policy().policy;
        let same = Change { policy: Some(Box::new(policy.clone())), ..Change::default() };
        let difference = Difference::between(&unchanged(&followed), &replay(&followed, &same));
        prop_assert!(difference.is_none(), "{difference:?}");
    }

    #[test]
    fn the_same_recording_and_change_give_the_same_figures(jobs in like_jobs()) {
        let recording = World::new(&["h100"], plain()).live(&jobs, 2_500);
        let change = more("16xh100@eu/train");
        prop_assert_eq!(replay(&recording, &change), replay(&recording, &change));
        // Like jobs on like devices: who goes first makes no difference to how many start and end.
        let (record, side) = (&recording.record, unchanged(&recording));
        prop_assert_eq!((record.started, record.finished), (side.started, side.finished));
    }
}
