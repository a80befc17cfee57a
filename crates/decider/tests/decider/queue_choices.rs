//! What a tenant's queue is chosen to be: its order, whom it has stopped, and the nodes that it runs on.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{Answer, Command, Speculation, explain_job, handle, schedule, tick};
use muster_journal::RankUpdate;
use muster_planner::{Budget, WaitReason};
use muster_state::{NominalCover, Phase, PreemptionReason, State};
use muster_types::policy::{Order, PolicyDraft, QueueChoices, QueueOrder, QueuePreemption, TenantPolicy};
use muster_types::{
    ExitStatus, JobDraft, JobId, LogTime, NodeExpression, NodeRequirements, PriorityTier, Refusal,
    RefusalCode, Requester, Submission,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded_as, group, holder, job_draft, name, node_draft, request,
    with_all_rights,
};

const HOUR_MS: u64 = 3_600_000;

struct World {
    speculation: Speculation,
    state: State,
    requests: u128,
}

impl World {
    /// Hosts of eight devices, of these pools.
    fn new(draft: PolicyDraft, pools: &[&str]) -> World {
        let (speculation, state) = founded_as(BOOTSTRAP);
        let mut world = World { speculation, state, requests: 0 };
        for (host, pool) in pools.iter().enumerate() {
            let mut spec = node_draft(&format!("n{host}"), "eu", "c1", Some(accelerators("h100", 8)));
            spec.labels.insert(name("pool"), (*pool).to_owned());
            let (spec, holder) = (spec.check().unwrap(), holder(host as u128 + 1));
            world.ask(&Command::Register { spec, holder, other_session_is_over: false }).unwrap();
        }
        world.set_policy(draft);
        world
    }

    fn ask(&mut self, command: &Command) -> Result<Answer, Refusal> {
        let answer = handle(&mut self.speculation, command);
        commit(&mut self.speculation, &mut self.state);
        answer
    }

    fn set_policy(&mut self, draft: PolicyDraft) {
        self.requests += 1;
        let (request, by) = (request(self.requests), Requester::default());
        let policy = Box::new(with_all_rights(draft).check().expect("a policy"));
        self.ask(&Command::SetPolicy { request, by, policy, expected_version: None }).unwrap();
    }

    fn submit_as(
        &mut self,
        tenant: &str,
        devices: u16,
        change: impl FnOnce(&mut JobDraft),
    ) -> Result<JobId, Refusal> {
        self.requests += 1;
        let wants = Some(accelerators("h100", devices));
        let mut draft = job_draft(&format!("j{}", self.requests), vec![group("main", 1, wants)]);
        draft.tenant = name(tenant);
        change(&mut draft);
        let jobs = Submission::plain([draft.check().unwrap()]);
        match self.ask(&Command::submit(request(self.requests), jobs))? {
            Answer::Submitted { jobs, .. } => Ok(jobs[0]),
            other => panic!("{other:?}"),
        }
    }

    fn submit(&mut self, tenant: &str, devices: u16) -> JobId {
        self.submit_as(tenant, devices, |_| {}).unwrap()
    }

    fn pass_time(&mut self, ms: u64) {
        let now = self.speculation.now().plus_ms(ms);
        self.speculation.set_now(now);
        tick(&mut self.speculation);
        commit(&mut self.speculation, &mut self.state);
    }

    fn schedule(&mut self) {
        schedule(&mut self.speculation, &mut Budget::new(u64::MAX));
        commit(&mut self.speculation, &mut self.state);
    }

    fn report(&mut self, job: JobId, update: &RankUpdate) {
        let Some(placement) = self.state.job(job).and_then(|row| row.placement.clone()) else { return };
        for (rank, slot) in placement.slots.iter().enumerate() {
            let updates = vec![(rank as u32, update.clone())];
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            let _ = self.ask(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    /// What is placed runs, and what was told to stop has stopped.
    fn agents_report(&mut self) {
        let all = self.state.jobs().iter().map(|(job, row)| (*job, row.phase.clone()));
        for (job, phase) in all.collect::<Vec<_>>() {
            match phase {
                Phase::Starting => self.report(job, &RankUpdate::Running),
                Phase::Stopping(_) => self.report(job, &RankUpdate::Exited(ExitStatus::Signal(15))),
                Phase::Pending | Phase::Running | Phase::Finished(_) => {}
            }
        }
    }

    fn is_placed(&self, job: JobId) -> bool {
        self.state.job(job).is_some_and(|row| row.placement.is_some())
    }

    fn placed(&self) -> BTreeSet<JobId> {
        let all = self.state.jobs().iter().filter(|(_, row)| row.placement.is_some());
        all.map(|(job, _)| *job).collect()
    }

    /// Devices that each tenant holds.
    fn held(&self) -> BTreeMap<String, u64> {
        let mut held = BTreeMap::new();
        for (job, row) in self.state.jobs().iter() {
            let Some((_, charge)) = row.charge() else { continue };
            let milli: u64 = charge.devices_milli.iter().map(|(_, milli)| *milli).sum();
            *held.entry(self.state.spec(*job).unwrap().tenant.to_string()).or_insert(0) += milli / 1_000;
        }
        held
    }

    fn preemptions(&self) -> u32 {
        self.state.jobs().iter().map(|(_, row)| row.preemptions).sum()
    }
}

/// Without reservations, so that what does not fit keeps nothing for itself.
fn draft(tenants: &[(&str, QueueChoices)]) -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    draft.order.order = Order::Submission;
    draft.backfill.reservations_max = 0;
    draft.preemption.minimum_run_ms = 0;
    draft.preemption.starting_deadline_ms = 300 * HOUR_MS;
    for (tenant, queue) in tenants {
        let queue = queue.clone();
        draft.tenants.insert(name(tenant), TenantPolicy { queue, ..TenantPolicy::default() });
    }
    draft
}

fn strict() -> QueueChoices {
    QueueChoices {
        order: Some(QueueOrder::Strict),
        block_for_ms: Some(2 * HOUR_MS),
        preemption: Some(QueuePreemption::None),
        ..QueueChoices::default()
    }
}

#[test]
fn in_strict_order_nobody_of_the_tenant_goes_past_the_first_for_some_time() {
    let mut world = World::new(draft(&[("lab", strict()), ("other", QueueChoices::default())]), &["a"]);
    let holds = world.submit("other", 4);
    world.schedule();
    assert!(world.is_placed(holds));
    let first = world.submit("lab", 8);
    let second = world.submit("lab", 1);
    let elsewhere = world.submit("other", 1);
    world.schedule();
    assert!(!world.is_placed(first) && !world.is_placed(second));
    assert!(world.is_placed(elsewhere), "other tenants do not wait for it");
    let now = world.speculation.now();
    let why = explain_job(&world.state, now, second, &Default::default()).unwrap();
    assert_eq!(why.reason, WaitReason::InLine);
    assert!(why.sentence.starts_with(&format!("{first} has its turn before it")), "{}", why.sentence);
    world.pass_time(2 * HOUR_MS);
    world.schedule();
    assert!(!world.is_placed(first) && world.is_placed(second), "it has blocked for as long as it may");
    check(&world.state);
}

#[test]
fn a_job_that_may_not_start_whatever_is_free_blocks_nobody() {
    let mut policy = draft(&[("lab", strict())]);
    policy.tenants.get_mut(&name("lab")).unwrap().limits.user.devices = Some(4);
    let mut world = World::new(policy, &["a"]);
    let wide = world.submit("lab", 5);
    let behind = world.submit("lab", 1);
    world.schedule();
    assert!(!world.is_placed(wide) && world.is_placed(behind));
}

/// Whatever comes and goes: as long as the first of a strict tenant waits and blocks, none of its jobs is placed.
#[test]
fn strict_order_holds_in_every_world() {
    let mut blocked = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let queues =
            [("lab", strict()), ("below", QueueChoices::default()), ("other", QueueChoices::default())];
        let mut policy = draft(&queues);
        policy.tenants.get_mut(&name("below")).unwrap().parent = Some(name("lab"));
        policy.order.fair_share = random.once_in(2);
        let mut world = World::new(policy, &["a", "a"]);
        let mut jobs = Vec::new();
        for _ in 0..60 {
            match random.below(5) {
                0 | 1 => {
                    let tenant = ["lab", "below", "other"][random.below(3) as usize];
                    jobs.push(world.submit(tenant, 1 + random.below(8) as u16));
                }
                2 | 3 => {
                    if let Some(job) = random.pick(&jobs) {
                        world.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
                    }
                }
                _ => world.pass_time(60_000 * (1 + random.below(40))),
            }
            let heads = ["lab", "below"].map(|tenant| {
                let head = world.state.head_behind(PriorityTier::Standard, &name(tenant), None);
                (tenant, head.map(|(turn, _)| turn.job))
            });
            let before = world.placed();
            world.schedule();
            let after = world.placed();
            let now = world.speculation.now();
            for (tenant, head) in heads {
                let Some(row) = head.and_then(|head| world.state.job(head)) else { continue };
                let until = LogTime(row.submitted_at.0 + 2 * HOUR_MS);
                if row.placement.is_some() || now >= until {
                    continue;
                }
                blocked += 1;
                let new = after.difference(&before);
                let mut of_tenant = new
                    .filter(|job| world.state.spec(**job).is_some_and(|spec| spec.tenant.as_str() == tenant));
                assert_eq!(of_tenant.next(), None, "seed {seed}: {head:?} of {tenant} waits");
            }
            world.agents_report();
            check(&world.state);
        }
    }
    assert!(blocked > 100, "{blocked}");
}

/// A job that is never placed blocks those behind it for its time, and no longer.
#[test]
fn nobody_starves_behind_a_job_that_is_never_placed() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut world =
            World::new(draft(&[("lab", strict()), ("other", QueueChoices::default())]), &["a", "a"]);
        // A whole host is never free.
        let holders = [world.submit("other", 5), world.submit("other", 5)];
        world.schedule();
        assert!(holders.iter().all(|job| world.is_placed(*job)));
        world.agents_report();
        let mut small = Vec::new();
        for _ in 0..60 {
            if random.once_in(4) {
                world.submit("lab", 8);
            } else {
                small.push(world.submit("lab", 1 + random.below(3) as u16));
            }
            world.pass_time(10 * 60_000);
            world.schedule();
            for job in &small {
                world.report(*job, &RankUpdate::Exited(ExitStatus::Code(0)));
            }
            let now = world.speculation.now();
            for job in &small {
                let row = world.state.job(*job).unwrap();
                let waits_ms = now.since_ms(row.submitted_at);
                let is_pending = row.phase == Phase::Pending;
                assert!(!is_pending || waits_ms <= 4 * HOUR_MS, "seed {seed}: {job} waits for {waits_ms} ms");
            }
        }
    }
}

fn nodes(pool: &str, isolated: bool) -> QueueChoices {
    let expressions = NodeExpression::parse_all(&format!("pool={pool}")).unwrap();
    let nodes = NodeRequirements { expressions, ..NodeRequirements::default() };
    QueueChoices { nodes: Some(nodes), isolated: Some(isolated), ..QueueChoices::default() }
}

#[test]
fn tenants_run_on_their_nodes_and_keep_others_from_them() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let queues =
            [("lab", nodes("a", true)), ("shared", nodes("b", false)), ("other", QueueChoices::default())];
        let mut world = World::new(draft(&queues), &["a", "b", "c"]);
        let mut jobs = Vec::new();
        for _ in 0..50 {
            match random.below(3) {
                0 | 1 => {
                    let tenant = ["lab", "shared", "other"][random.below(3) as usize];
                    jobs.push(world.submit(tenant, 1 + random.below(6) as u16));
                }
                _ => {
                    if let Some(job) = random.pick(&jobs) {
                        world.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
                    }
                }
            }
            world.schedule();
            for (job, row) in world.state.jobs().iter() {
                let Some(placement) = row.placement.as_ref() else { continue };
                let tenant = world.state.spec(*job).unwrap().tenant.to_string();
                for slot in &placement.slots {
                    let pool = &world.state.node(slot.node).unwrap().spec.labels[&name("pool")];
                    let may = match pool.as_str() {
                        "a" => tenant == "lab",
                        "b" => tenant != "lab",
                        _ => tenant == "other",
                    };
                    assert!(may, "seed {seed}: a job of {tenant} is on {pool}");
                }
            }
            check(&world.state);
        }
    }
}

#[test]
fn a_job_without_a_node_of_its_tenant_is_refused_and_one_that_waits_names_them() {
    let queues =
        [("lab", nodes("a", true)), ("none", nodes("nowhere", false)), ("other", QueueChoices::default())];
    let mut world = World::new(draft(&queues), &["a", "b"]);
    let refused = world.submit_as("none", 1, |_| {}).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NeverFits, "{refused}");
    let full = world.submit("lab", 8);
    let waits = world.submit("lab", 1);
    world.schedule();
    assert!(world.is_placed(full) && !world.is_placed(waits), "the other host is not its tenant's");
    let now = world.speculation.now();
    let why = explain_job(&world.state, now, waits, &Default::default()).unwrap();
    assert!(
        why.sentence.contains("jobs of tenant lab run on nodes of lab only (pool in (a)"),
        "{}",
        why.sentence
    );
    // Without the choice it goes anywhere, and what runs stays.
    world.set_policy(draft(&[("lab", nodes("b", true)), ("other", QueueChoices::default())]));
    world.schedule();
    assert!(world.is_placed(full) && world.is_placed(waits));
    check(&world.state);
}

#[test]
fn a_tenant_may_have_nobody_stopped() {
    for (choice, stops) in [(QueuePreemption::None, false), (QueuePreemption::Reclaim, true)] {
        let queue = QueueChoices { preemption: Some(choice), ..QueueChoices::default() };
        let mut world = World::new(draft(&[("lab", queue), ("other", QueueChoices::default())]), &["a"]);
        let low = world.submit_as("other", 8, |draft| draft.tier = PriorityTier::Free).unwrap();
        world.schedule();
        world.agents_report();
        let high = world.submit_as("lab", 8, |draft| draft.tier = PriorityTier::Production).unwrap();
        world.schedule();
        let row = world.state.job(low).unwrap();
        assert_eq!(matches!(row.phase, Phase::Stopping(_)), stops, "{choice:?}");
        assert_eq!(world.state.job(high).unwrap().promise.is_some(), stops, "{choice:?}");
    }
}

/// Shares come to the parts by weight, with no more stops than devices that are in the wrong hands, and then nothing is stopped any
/// more.
#[test]
fn shares_converge_and_nothing_goes_back_and_forth() {
    let fair = QueueChoices { preemption: Some(QueuePreemption::FairShare), ..QueueChoices::default() };
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut policy = draft(&[("a", fair.clone()), ("b", fair.clone()), ("c", fair.clone())]);
        policy.tenants.get_mut(&name("c")).unwrap().weight_milli = 2_000;
        let mut world = World::new(policy, &["a", "a"]);
        for _ in 0..20 {
            world.submit("a", 1);
        }
        world.schedule();
        world.agents_report();
        assert_eq!(world.held().get("a"), Some(&16));
        let late = if random.once_in(2) { ["b", "c"] } else { ["c", "b"] };
        for tenant in late {
            for _ in 0..20 {
                world.submit(tenant, 1);
            }
            for _ in 0..random.below(20) {
                world.pass_time(60_000);
                world.schedule();
                world.agents_report();
            }
        }
        for _ in 0..60 {
            world.pass_time(60_000);
            world.schedule();
            world.agents_report();
            check(&world.state);
        }
        let held = world.held();
        for (tenant, part) in [("a", 4), ("b", 4), ("c", 8)] {
            let has = held.get(tenant).copied().unwrap_or(0);
            assert!(
                has.abs_diff(part) <= 1,
                "seed {seed}: {tenant} holds {has} of its part of {part}: {held:?}"
            );
        }
        let stopped = world.preemptions();
        assert!(stopped <= 16, "seed {seed}: {stopped} stops");
        for _ in 0..30 {
            world.pass_time(60_000);
            world.schedule();
            world.agents_report();
        }
        assert_eq!(world.preemptions(), stopped, "seed {seed}: nothing is stopped any more");
    }
}

#[test]
fn without_the_choice_a_tenant_above_its_part_keeps_what_it_has() {
    let mut world =
        World::new(draft(&[("a", QueueChoices::default()), ("b", QueueChoices::default())]), &["a"]);
    for _ in 0..10 {
        world.submit("a", 1);
    }
    world.schedule();
    world.agents_report();
    world.submit("b", 1);
    for _ in 0..10 {
        world.pass_time(60_000);
        world.schedule();
        world.agents_report();
    }
    assert_eq!((world.held().get("a"), world.preemptions()), (Some(&8), 0));
}

#[test]
fn what_tenants_hold_is_summed_up_once_for_all_gangs_that_may_be_stopped() {
    let fair = QueueChoices { preemption: Some(QueuePreemption::FairShare), ..QueueChoices::default() };
    let tenants = ["a", "b", "c", "d", "e"];
    let choices: Vec<(&str, QueueChoices)> = tenants.iter().map(|tenant| (*tenant, fair.clone())).collect();
    let mut world = World::new(draft(&choices), &["any"]);
    let running: Vec<JobId> = (0..8).map(|_| world.submit("a", 1)).collect();
    world.schedule();
    world.agents_report();
    let claimant = world.submit("b", 1);
    let state = &world.state;
    let (cover, spec) = (NominalCover::of(state), state.spec(claimant).expect("a job"));
    let ask = |job: JobId| cover.may_stop(state.quota_usage(), spec, job, state.log_time());
    assert_eq!(ask(running[0]), Some(PreemptionReason::FairShare));
    assert!(cover.take_counted() >= tenants.len() as u64, "each of them was looked at");
    for job in running {
        assert_eq!(ask(job), Some(PreemptionReason::FairShare));
    }
    assert_eq!(cover.take_counted(), 0);
}
