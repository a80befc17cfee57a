//! Holds of regions, clusters and tenants, and maintenance of places: bounds, and what they promise whatever happens.

use std::collections::BTreeMap;

use muster_decider::{
    BookingOrder, Command, DrainOrder, FleetHoldOrder, Speculation, handle, plan_booking, schedule, tick,
};
use muster_journal::{Decision, RankUpdate, Round};
use muster_planner::Budget;
use muster_state::{GuardError, Phase, State};
use muster_types::policy::{PolicyDraft, TenantPolicy};
use muster_types::{
    BookingClearing, BookingShape, BookingSpec, BookingTimes, ExitStatus, FleetHold, FleetPart, HoldTarget,
    JobId, LogTime, Name, NodeId, Refusal, RefusalCode, Requester, Submission, limits,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, commit, founded_as, group, holder, job_draft, name, node_spec, request,
    with_all_rights,
};

const HOUR_MS: u64 = 3_600_000;
const TENANTS: [&str; 3] = ["vision", "video", "speech"];

/// `vision` with `video` below it, and `speech`.
fn policy() -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    draft.preemption.minimum_run_ms = 0;
    for tenant in TENANTS {
        let parent = (tenant == "video").then(|| name("vision"));
        draft.tenants.insert(name(tenant), TenantPolicy { parent, ..TenantPolicy::default() });
    }
    with_all_rights(draft)
}

fn register(speculation: &mut Speculation, text: &str, region: &str) {
    let spec = node_spec(text, region, "c1", Some(accelerators("h100", 8)));
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

/// Two hosts of eight devices in each of two regions.
fn fleet() -> (Speculation, State) {
    let (mut speculation, mut replica) = founded_as(BOOTSTRAP);
    let set = Command::SetPolicy {
        request: request(1 << 100),
        by: Requester::default(),
        policy: Box::new(policy().check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &set).expect("it is taken");
    for (text, region) in [("n1", "eu"), ("n2", "eu"), ("n3", "us"), ("n4", "us")] {
        register(&mut speculation, text, region);
    }
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

/// What is kept of why a node is out of placement says who it was, and not from where.
#[test]
fn the_reasons_of_a_node_have_no_address() {
    let (mut speculation, mut replica) = fleet();
    let node = speculation.state().node_named(&name("n1")).expect("a host");
    let address = Some([192, 0, 2, 7].into());
    let by = Requester { address, ..Requester::named("admin/ops".to_owned(), true) };
    let reason = Some("a fan".to_owned());
    let (cordoned, order) = (true, DrainOrder::Begin { deadline_ms: None });
    let cordon =
        Command::SetCordon { request: request(1), by: by.clone(), node, cordoned, reason: reason.clone() };
    let drain = Command::SetDrain { request: request(2), by: by.clone(), node, order, reason };
    for command in [cordon, drain] {
        handle(&mut speculation, &command).expect("it is taken");
    }
    commit(&mut speculation, &mut replica);
    let reasons = replica.node(node).and_then(|row| row.reasons.clone()).expect("two reasons");
    let kept = [&reasons.cordon, &reasons.drain].map(|said| said.as_ref().map(|said| said.by.clone()));
    assert_eq!(kept, [Some(by.kept()), Some(by.kept())]);
}

fn region(text: &str) -> FleetPart {
    FleetPart { region: Some(name(text)), cluster: None }
}

fn hold(reason: &str, until: Option<LogTime>, stops_work: bool) -> FleetHold {
    FleetHold { reason: reason.to_owned(), until, stops_work }
}

fn set(
    speculation: &mut Speculation,
    n: u128,
    target: HoldTarget,
    hold: Option<FleetHold>,
) -> Result<(), Refusal> {
    let by = Requester::named("admin/ops".to_owned(), true);
    let order = FleetHoldOrder { request: request(n), by, target, hold };
    handle(speculation, &Command::SetFleetHold(Box::new(order))).map(|_| ())
}

/// Maintenance of a region from a time on, for an hour.
fn upgrade(n: u128, part: FleetPart, start: LogTime) -> BookingOrder {
    let spec = BookingSpec {
        tenant: None,
        user: None,
        jobs: Vec::new(),
        is_shared: false,
        shape: BookingShape::Part(part),
        times: BookingTimes::once(start, HOUR_MS).every(7, 2),
        notice_ms: 0,
        clearing: BookingClearing::Stop,
        reason: String::new(),
    };
    let by = Requester::named("admin/ops".to_owned(), true);
    BookingOrder { request: request(n), by, acts_for: None, name: name(&format!("m{n}")), spec }
}

#[test]
fn what_breaks_a_rule_is_refused_and_changes_nothing() {
    let (mut speculation, mut replica) = fleet();
    let now = speculation.now();
    let nowhere = HoldTarget::Part(FleetPart { region: None, cluster: None });
    let (eu, lab) = (HoldTarget::Part(region("eu")), HoldTarget::Tenant(name("vision")));
    let nobody = HoldTarget::Tenant(name("nobody"));
    let cases = [
        (nowhere, Some(hold("a", None, false)), "target"),
        (eu.clone(), Some(hold("", None, false)), "reason"),
        (eu.clone(), Some(hold("a", Some(now), false)), "end_time"),
        (eu.clone(), None, "target"),
        (lab, Some(hold("a", None, true)), "drain"),
        (nobody, Some(hold("a", None, false)), "target.tenant"),
    ];
    for (number, (target, hold, field)) in cases.into_iter().enumerate() {
        let refused = set(&mut speculation, number as u128, target.clone(), hold).expect_err("it is wrong");
        assert_eq!(refused.code, RefusalCode::InvalidField, "{target}");
        assert_eq!(refused.violations[0].field, field, "{target}");
    }
    for number in 0..limits::FLEET_HOLDS_MAX {
        let target = HoldTarget::Part(region(&format!("r{number}")));
        set(&mut speculation, 100 + number as u128, target, Some(hold("a", None, false))).expect("it fits");
    }
    let refused =
        set(&mut speculation, 99, eu, Some(hold("a", None, false))).expect_err("there are too many");
    assert_eq!(refused.code, RefusalCode::StateFull);
    commit(&mut speculation, &mut replica);
    // One that lasts until it is released ends in no other way.
    let ended = Decision::FleetHoldEnded { target: HoldTarget::Part(region("r1")) };
    assert_eq!(replica.check(&ended), Err(GuardError::NothingToDo));
    assert!(replica.fleet_hold(&HoldTarget::Part(region("eu"))).is_none());
}

#[test]
fn maintenance_is_over_bookings_of_tenants_and_each_names_the_other() {
    let (mut speculation, mut replica) = fleet();
    let start = speculation.now().plus_ms(HOUR_MS);
    let of_tenant = BookingSpec {
        tenant: Some(name("vision")),
        shape: BookingShape::Nodes(vec![name("n1")]),
        ..upgrade(1, region("eu"), start).spec
    };
    let order =
        BookingOrder { name: name("demo"), spec: of_tenant.clone(), ..upgrade(1, region("eu"), start) };
    handle(&mut speculation, &Command::CreateBooking(Box::new(order))).expect("it fits");
    let met = |speculation: &Speculation, text: &str, spec: &BookingSpec| {
        let (state, kept) = (speculation.state(), speculation.kept_reservations());
        let plan = plan_booking(state, speculation.now(), (None, &name(text)), spec, kept).expect("it fits");
        (plan.met.iter().map(Name::to_string).collect::<Vec<_>>(), plan.nodes.len(), plan.node_count)
    };
    let whole = upgrade(2, region("eu"), start);
    assert_eq!(met(&speculation, "m2", &whole.spec), (vec!["demo".to_owned()], 0, 2));
    handle(&mut speculation, &Command::CreateBooking(Box::new(whole))).expect("it is over that");
    let other = BookingSpec { shape: BookingShape::Nodes(vec![name("n2")]), ..of_tenant };
    assert_eq!(met(&speculation, "again", &other), (vec!["m2".to_owned()], 1, 1));
    let mut bound = upgrade(3, region("us"), start);
    bound.acts_for = Some(name("vision"));
    let refused = handle(&mut speculation, &Command::CreateBooking(Box::new(bound)));
    assert_eq!(refused.expect_err("it is for operators").code, RefusalCode::PermissionDenied);
    commit(&mut speculation, &mut replica);
}

/// One random world: jobs of three tenants, nodes that join, holds and maintenance that come and go.
struct World {
    random: Random,
    speculation: Speculation,
    replica: State,
    requests: u128,
    now: LogTime,
    /// How often each kind of decision was made.
    made: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let (speculation, replica) = fleet();
        let now = speculation.now();
        World { random: Random::new(seed), speculation, replica, requests: 0, now, made: BTreeMap::new() }
    }

    fn next_request(&mut self) -> u128 {
        self.requests += 1;
        self.requests
    }

    fn step(&mut self) {
        match self.random.below(18) {
            0..4 => self.submit(),
            4..6 => self.hold(),
            6 => self.maintain(),
            7 => self.join(),
            8..11 => self.report(),
            11..15 => _ = schedule(&mut self.speculation, &mut Budget::new(100_000)),
            _ => {
                self.take();
                self.now = self.now.plus_ms(10_000 + self.random.below(HOUR_MS));
                self.speculation.set_now(self.now);
                tick(&mut self.speculation);
                self.take();
                self.check_cleared();
            }
        }
        self.take();
    }

    /// Applies what was decided, record by record, and looks at each placement with the eyes of the state before it.
    fn take(&mut self) {
        let mut before = self.replica.clone();
        let Some(round) = commit(&mut self.speculation, &mut self.replica) else { return };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let placed: Vec<(JobId, Vec<NodeId>)> = match decision {
                Decision::GangPlaced { job, workers } => {
                    vec![(*job, workers.iter().map(|slot| slot.node).collect())]
                }
                Decision::Rearranged { promises, .. } => promises
                    .iter()
                    .map(|hold| (hold.job, hold.workers.iter().map(|slot| slot.node).collect()))
                    .collect(),
                _ => Vec::new(),
            };
            *self.made.entry(decision.name()).or_default() += 1;
            placed.iter().for_each(|(job, nodes)| check_place(&before, *job, nodes));
            let first_index = muster_types::LogIndex(round.first_index.0 + ordinal as u64);
            let one = Round { first_index, decisions: vec![decision.clone()], ..round.clone() };
            before.apply_round(&one);
        }
        assert_eq!(before.rows_digest(), self.replica.rows_digest(), "one by one is the same");
    }

    /// Behind a tick nothing runs where a hold drains or maintenance is open, and no hold is there whose time is over.
    fn check_cleared(&self) {
        let state = &self.replica;
        let drained = state.fleet_holds().filter(|(_, row)| row.hold.stops_work);
        let empty: Vec<&FleetPart> = drained
            .map(|(target, _)| target.part())
            .chain(state.open_parts().map(|(.., part)| part))
            .collect();
        for (node, row) in state.nodes().iter() {
            for job in state.gangs_on(*node).filter(|_| empty.iter().any(|part| part.covers(&row.spec))) {
                let phase = &state.job(job).expect("it is known").phase;
                assert!(matches!(phase, Phase::Stopping(_)), "{job} runs on {}", row.spec.name);
            }
        }
        for (target, row) in state.fleet_holds() {
            assert!(row.hold.until.is_none_or(|until| until > self.now), "{target} is held beyond its time");
        }
    }

    fn submit(&mut self) {
        let tenant = TENANTS[self.random.below(3) as usize];
        let mut draft = job_draft("work", vec![group("main", 1, Some(accelerators("h100", 4)))]);
        draft.tenant = name(tenant);
        draft.expected_run_ms = Some(60_000 + self.random.below(4 * HOUR_MS));
        let job = draft.check().expect("a job");
        let request = request(self.next_request());
        let submit = Command::submit(request, Submission::plain([job]));
        handle(&mut self.speculation, &submit).expect("it fits");
    }

    fn hold(&mut self) {
        let target = match self.random.below(4) {
            0 => HoldTarget::Tenant(name(TENANTS[self.random.below(3) as usize])),
            1 => HoldTarget::Part(FleetPart { region: None, cluster: Some(name("c1")) }),
            2 => HoldTarget::Part(region("eu")),
            _ => HoldTarget::Part(region("us")),
        };
        let until = self.random.once_in(2).then(|| self.now.plus_ms(1 + self.random.below(2 * HOUR_MS)));
        let stops_work = self.random.once_in(2) && matches!(target, HoldTarget::Part(_));
        let hold = (!self.random.once_in(2)).then(|| hold("a flood", until, stops_work));
        let n = self.next_request();
        // There may be nothing to release.
        let _ = set(&mut self.speculation, n, target, hold);
    }

    fn maintain(&mut self) {
        let n = self.next_request();
        let part = region(["eu", "us"][self.random.below(2) as usize]);
        let start = self.now.plus_ms(self.random.below(2 * HOUR_MS));
        let order = upgrade(n, part, start);
        // There may be as many as there can be.
        let _ = handle(&mut self.speculation, &Command::CreateBooking(Box::new(order)));
    }

    /// A node that joins is as closed as those that were there.
    fn join(&mut self) {
        let (number, place) = (5 + self.random.below(4), self.random.below(2) as usize);
        let text = format!("n{number}-{place}");
        if self.speculation.state().node_named(&name(&text)).is_none() {
            register(&mut self.speculation, &text, ["eu", "us"][place]);
        }
    }

    /// Gangs start, end, or have stopped.
    fn report(&mut self) {
        let active: Vec<JobId> = self.speculation.state().active().collect();
        let Some(job) = self.random.pick(&active) else { return };
        let row = self.speculation.state().job(job).expect("it is known").clone();
        let Some(placement) = row.placement.clone() else { return };
        let update = match row.phase {
            Phase::Starting => RankUpdate::Running,
            Phase::Running if self.random.once_in(3) => RankUpdate::Exited(ExitStatus::Code(0)),
            Phase::Stopping(_) => RankUpdate::Exited(ExitStatus::Signal(15)),
            _ => return,
        };
        for (rank, slot) in placement.slots.iter().enumerate() {
            let updates = vec![(rank as u32, update.clone())];
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            let report = Command::Report { node, incarnation, job, token, updates };
            let _ = handle(&mut self.speculation, &report);
        }
    }
}

/// Nothing is placed, and nothing promised, where somebody holds the place or the tenant, or maintenance is open.
fn check_place(state: &State, job: JobId, nodes: &[NodeId]) {
    let spec = state.spec(job).expect("it is known");
    for node in nodes {
        let node = &state.node(*node).expect("it is known").spec;
        for (target, _) in state.fleet_holds() {
            let is_held = match target {
                HoldTarget::Part(part) => part.covers(node),
                HoldTarget::Tenant(held) => {
                    *held == spec.tenant || (held.as_str() == "vision" && spec.tenant.as_str() == "video")
                }
            };
            assert!(!is_held, "{job} is placed on {} though {target} is held", node.name);
        }
        for (booking, _, part) in state.open_parts() {
            assert!(!part.covers(node), "{job} is placed on {} during {booking}", node.name);
        }
    }
}

#[test]
fn nothing_starts_where_it_is_held_in_any_world() {
    let mut made: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..40 {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..200 {
                world.step();
            }
            world.made
        });
        match result {
            Ok(of_seed) => {
                of_seed.into_iter().for_each(|(name, count)| *made.entry(name).or_default() += count)
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    for kind in ["fleet_hold_set", "fleet_hold_ended", "booking_opened", "gang_placed", "gang_stop_requested"]
    {
        assert!(made.contains_key(kind), "{kind} never came about: {made:?}");
    }
}
