//! Budgets in dollars, devices of a user, submissions by tier, and what becomes of work that meets a limit.

use std::sync::Arc;

use muster_decider::{Answer, Command, JobPath, Speculation, explain_job, handle, schedule, tick};
use muster_journal::RankUpdate;
use muster_planner::{Budget, WaitReason};
use muster_state::State;
use muster_types::policy::{
    JobLimits, OnLimit, PolicyDraft, Price, PurchaseKind, SpendBudget, TenantLimits, TenantPolicy, UserLimits,
};
use muster_types::{
    ExitStatus, JobContract, JobDraft, JobId, JobMetadata, LogTime, PriorityTier, Refusal, RefusalCode,
    Requester, Submission,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded_as, group, holder, job_draft, name, node_draft, request,
};

const HOUR_MS: u64 = 3_600_000;

/// Millionths of a dollar an hour times thousandths of a device times milliseconds.
const DOLLAR: u128 = 1_000_000 * 1_000 * HOUR_MS as u128;

struct World {
    speculation: Speculation,
    state: State,
    requests: u128,
}

impl World {
    /// Two hosts of eight devices, one that states nothing and one that is spot, at four dollars and at one an hour.
    fn new(limits: TenantLimits) -> World {
        let (speculation, state) = founded_as(BOOTSTRAP);
        let mut world = World { speculation, state, requests: 0 };
        for (host, purchase) in [("n0", None), ("n1", Some("spot"))] {
            let mut spec = node_draft(host, "eu", "c1", Some(accelerators("h100", 8)));
            spec.labels.extend(purchase.map(|word: &str| (name("purchase"), word.to_owned())));
            let (spec, holder) = (spec.check().unwrap(), holder(1 + u128::from(purchase.is_some())));
            world.ask(&Command::Register { spec, holder, other_session_is_over: false }).unwrap();
        }
        world.set_policy(draft(limits));
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
        let policy = Box::new(draft.check().expect("a policy"));
        self.ask(&Command::SetPolicy { request, by, policy, expected_version: None }).unwrap();
    }

    fn submit(
        &mut self,
        (tenant, user): (&str, &str),
        devices: u16,
        change: impl FnOnce(&mut JobDraft),
    ) -> Result<JobId, Refusal> {
        self.requests += 1;
        let wants = Some(accelerators("h100", devices));
        let mut draft = job_draft(&format!("j{}", self.requests), vec![group("main", 1, wants)]);
        draft.tenant = name(tenant);
        change(&mut draft);
        let metadata = JobMetadata { creator: user.to_owned(), ..JobMetadata::default() };
        let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
        submission.metadata = (!metadata.is_default()).then(|| Arc::new(metadata));
        let command = Command::Submit {
            request: request(self.requests),
            by: Requester::default(),
            jobs: Arc::new([submission]),
            path: JobPath::List,
        };
        match self.ask(&command)? {
            Answer::Submitted { jobs, .. } => Ok(jobs[0]),
            other => panic!("{other:?}"),
        }
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

    fn end(&mut self, job: JobId) {
        let Some(placement) = self.state.job(job).and_then(|row| row.placement.clone()) else { return };
        for (rank, slot) in placement.slots.iter().enumerate() {
            let updates = vec![(rank as u32, RankUpdate::Exited(ExitStatus::Code(0)))];
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            let _ = self.ask(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    fn is_placed(&self, job: JobId) -> bool {
        self.state.job(job).is_some_and(|row| row.placement.is_some())
    }

    fn why(&self, job: JobId) -> (WaitReason, String) {
        let now = self.speculation.now();
        let found = explain_job(&self.state, now, job, &Default::default()).expect("it waits");
        (found.reason, found.sentence)
    }
}

fn draft(limits: TenantLimits) -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    draft.tenants.insert(name("lab"), TenantPolicy { limits, ..TenantPolicy::default() });
    draft.tenants.insert(name("other"), TenantPolicy::default());
    let price = |dollars: u64| Price::new(name("h100"), None, dollars * 1_000_000);
    draft.prices = vec![price(4), Price { purchase: Some(PurchaseKind::Spot), ..price(1) }];
    draft
}

fn fact<'a>(refusal: &'a Refusal, key: &str) -> &'a str {
    refusal.metadata.iter().find(|(known, _)| *known == key).map_or("", |(_, value)| value.as_str())
}

fn as_is(_: &mut JobDraft) {}

/// By an independent count of what is placed, node by node.
#[test]
fn dollars_are_counted_by_what_was_bought_and_nothing_begins_once_they_are_used_up() {
    let budget = SpendBudget { dollars: 40, window_ms: 6 * HOUR_MS };
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut world = World::new(TenantLimits { spend: Some(budget), ..TenantLimits::NONE });
        let lab = name("lab");
        let (mut used, mut counted_to) = (0_u128, world.speculation.now());
        let mut jobs = Vec::new();
        let rate = |state: &State| -> u128 {
            let slots = |job: JobId| {
                let row = state.job(job)?;
                row.charge()?;
                let spec = state.spec(job)?;
                let placement = row.placement.as_ref()?;
                Some((spec.device_milli() / u64::from(spec.worker_count()), placement.slots.clone()))
            };
            let held = state.charged_of(&lab).filter_map(slots);
            let cost = |(milli, slots): (u64, Vec<muster_journal::WorkerSlot>)| {
                let price = |node| if state.node(node).unwrap().spec.name.as_str() == "n1" { 1 } else { 4 };
                slots.iter().map(|slot| u128::from(milli) * price(slot.node) * 1_000_000).sum::<u128>()
            };
            held.map(cost).sum()
        };
        for _ in 0..60 {
            match random.below(4) {
                0 => jobs.push(world.submit(("lab", "ada"), 1 + random.below(4) as u16, as_is).unwrap()),
                1 => {
                    if let Some(job) = random.pick(&jobs) {
                        world.end(job);
                    }
                }
                _ => {
                    let before = rate(&world.state);
                    world.pass_time(60_000 * (1 + random.below(29)));
                    let now = world.speculation.now();
                    let start = LogTime(now.0 - now.0 % budget.window_ms);
                    let since = if start > counted_to { start } else { counted_to };
                    used = if start > counted_to { 0 } else { used };
                    used += before * u128::from(now.since_ms(since));
                    counted_to = now;
                }
            }
            assert_eq!(world.state.spend_used(&lab, None, counted_to), used, "seed {seed}");
            let before = rate(&world.state);
            world.schedule();
            if used >= 40 * DOLLAR {
                assert!(rate(&world.state) <= before, "seed {seed}: nothing begins once it is used up");
            }
            check(&world.state);
        }
    }
}

#[test]
fn a_new_price_counts_from_the_record_that_sets_it() {
    let user = UserLimits {
        spend: Some(SpendBudget { dollars: 10, window_ms: 24 * HOUR_MS }),
        ..UserLimits::default()
    };
    let limits = TenantLimits { user, ..TenantLimits::NONE };
    let mut world = World::new(limits);
    let on_plain = |draft: &mut JobDraft| draft.run_time_limit_ms = Some(100 * HOUR_MS);
    let first = world.submit(("lab", "ada"), 8, on_plain).unwrap();
    world.schedule();
    assert!(world.is_placed(first));
    world.pass_time(HOUR_MS / 10);
    let (lab, now) = (name("lab"), world.speculation.now());
    let before = world.state.spend_used(&lab, Some("ada"), now);
    assert!(before == 8 * 4 * DOLLAR / 10 || before == 8 * DOLLAR / 10, "by the price of its node: {before}");
    let mut dearer = draft(limits);
    dearer.prices = vec![Price::new(name("h100"), None, 20_000_000)];
    world.set_policy(dearer);
    assert_eq!(world.state.spend_used(&lab, Some("ada"), now), before);
    world.pass_time(HOUR_MS / 10);
    let now = world.speculation.now();
    assert_eq!(world.state.spend_used(&lab, Some("ada"), now), before + 8 * 20 * DOLLAR / 10);
    // It is used up for this user, and for nobody else.
    let waits = world.submit(("lab", "ada"), 1, as_is).unwrap();
    let goes = world.submit(("lab", "eve"), 1, as_is).unwrap();
    world.schedule();
    assert!(!world.is_placed(waits) && world.is_placed(goes));
    let (reason, sentence) = world.why(waits);
    assert_eq!(reason, WaitReason::TenantLimit);
    assert!(sentence.contains("may spend $10 in 1d (`limits.user.spend` in the policy)"), "{sentence}");
    check(&world.state);
}

#[test]
fn a_user_holds_no_more_devices_than_the_tenant_lets_each() {
    let user = UserLimits { devices: Some(4), ..UserLimits::default() };
    let mut world = World::new(TenantLimits { user, ..TenantLimits::NONE });
    let mut random = Random::new(7);
    let mut jobs = Vec::new();
    for _ in 0..40 {
        let user = ["ada", "eve", ""][random.below(3) as usize];
        match random.below(3) {
            0 => {
                if let Some(job) = random.pick(&jobs) {
                    world.end(job);
                }
            }
            _ => jobs.push(world.submit(("lab", user), 1 + random.below(3) as u16, as_is).unwrap()),
        }
        world.schedule();
        for user in ["ada", "eve", ""] {
            let load = world.state.user_load(&name("lab"), user);
            assert!(load.active_milli <= 4_000, "{user} holds {}", load.active_milli);
        }
        check(&world.state);
    }
    let wide = world.submit(("lab", "wide"), 5, as_is).unwrap();
    let next = world.submit(("lab", "wide"), 1, as_is).unwrap();
    world.schedule();
    assert!(!world.is_placed(wide), "it asks for more than its user may ever hold");
    assert!(world.is_placed(next) || world.state.user_load(&name("lab"), "wide").active_jobs == 0);
    let (reason, sentence) = world.why(wide);
    assert_eq!(reason, WaitReason::TenantLimit);
    assert!(sentence.contains("`limits.user.devices`") && sentence.ends_with("when the policy allows more"));
}

#[test]
fn a_job_above_a_limit_waits_under_a_policy_that_holds() {
    let job = JobLimits { devices_max: Some(2), run_time_max_ms: Some(HOUR_MS), ..JobLimits::default() };
    let limits = TenantLimits { job, on_limit: Some(OnLimit::Hold), ..TenantLimits::NONE };
    let mut world = World::new(limits);
    let wide = world.submit(("lab", "ada"), 4, as_is).unwrap();
    let long = |draft: &mut JobDraft| draft.run_time_limit_ms = Some(2 * HOUR_MS);
    let long = world.submit(("lab", "ada"), 1, long).unwrap();
    let behind = world.submit(("lab", "ada"), 1, as_is).unwrap();
    world.schedule();
    assert!(!world.is_placed(wide) && !world.is_placed(long));
    assert!(world.is_placed(behind), "nobody waits behind them");
    for (job, limit) in [(wide, "`limits.job.maxDevices`"), (long, "`limits.job.maxRunTime`")] {
        let (reason, sentence) = world.why(job);
        assert!(reason == WaitReason::TenantLimit && sentence.contains(limit), "{sentence}");
    }
    let mut of_user = draft(limits);
    let lab = of_user.tenants.get_mut(&name("lab")).unwrap();
    lab.limits.job = JobLimits::default();
    lab.user_limits = [("ada".to_owned(), job)].into();
    world.set_policy(of_user);
    world.schedule();
    let (_, sentence) = world.why(long);
    assert!(!world.is_placed(wide) && sentence.contains("`limits.users.maxRunTime`"), "{sentence}");
    // A policy that allows it lets it go, and one that refuses such jobs refuses them as before.
    let raised = JobLimits { devices_max: Some(4), run_time_max_ms: Some(2 * HOUR_MS), ..job };
    world.set_policy(draft(TenantLimits { job: raised, ..limits }));
    world.schedule();
    assert!(world.is_placed(wide) && world.is_placed(long));
    world.set_policy(draft(TenantLimits { job, ..TenantLimits::NONE }));
    let refused = world.submit(("lab", "ada"), 4, as_is).unwrap_err();
    assert_eq!(refused.code, RefusalCode::JobAboveLimit);
    check(&world.state);
}

#[test]
fn work_at_a_limit_is_refused_under_a_policy_that_refuses() {
    let user = UserLimits { devices: Some(4), running_jobs: Some(3), ..UserLimits::default() };
    let spend = Some(SpendBudget { dollars: 1, window_ms: 24 * HOUR_MS });
    let limits = TenantLimits { user, spend, on_limit: Some(OnLimit::Refuse), ..TenantLimits::NONE };
    let mut world = World::new(limits);
    let first = world.submit(("lab", "ada"), 3, as_is).unwrap();
    world.schedule();
    assert!(world.is_placed(first));
    let wide = world.submit(("lab", "ada"), 2, as_is).unwrap_err();
    assert_eq!((wide.code, fact(&wide, "limit")), (RefusalCode::TenantLimit, "user.devices"));
    assert_eq!((fact(&wide, "user"), fact(&wide, "held")), ("ada", "3"));
    world.submit(("lab", "ada"), 1, as_is).unwrap();
    world.submit(("lab", "eve"), 4, as_is).unwrap();
    world.pass_time(HOUR_MS);
    let spent = world.submit(("lab", "bob"), 1, as_is).unwrap_err();
    assert_eq!((spent.code, fact(&spent, "limit")), (RefusalCode::TenantLimit, "spend"));
    assert_eq!((fact(&spent, "tenant"), fact(&spent, "limit_max")), ("lab", "1"));
    world.submit(("other", "bob"), 1, as_is).unwrap();
    // Where it says nothing, they wait.
    world.set_policy(draft(TenantLimits { on_limit: None, ..limits }));
    let waits = world.submit(("lab", "bob"), 1, as_is).unwrap();
    world.schedule();
    assert!(!world.is_placed(waits));
    check(&world.state);
}

#[test]
fn submissions_with_jobs_of_a_tier_have_a_rate_of_their_tenant() {
    let mut world = World::new(TenantLimits::NONE);
    let mut limited = draft(TenantLimits::NONE);
    let lab = limited.tenants.get_mut(&name("lab")).unwrap();
    lab.tier_submissions.insert(PriorityTier::Batch, 2);
    world.set_policy(limited);
    let batch = |draft: &mut JobDraft| draft.tier = PriorityTier::Batch;
    for user in ["ada", "eve"] {
        world.submit(("lab", user), 1, batch).unwrap();
    }
    let refused = world.submit(("lab", "bob"), 1, batch).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Overloaded);
    assert_eq!(
        (fact(&refused, "limit"), fact(&refused, "limit_max")),
        ("tiers.batch.submissionsPerMinute", "2")
    );
    world.submit(("lab", "bob"), 1, |draft| draft.tier = PriorityTier::Standard).unwrap();
    world.submit(("other", "bob"), 1, batch).unwrap();
    world.pass_time(30_000);
    world.submit(("lab", "bob"), 1, batch).unwrap();
}
