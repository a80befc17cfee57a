//! Quota for some time, and budgets of accelerator time: what holds in every world.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_decider::{
    Answer, Command, QuotaAnswerOrder, QuotaOrder, Speculation, handle, quota_impact, schedule, tick,
};
use muster_journal::{Decision, RankUpdate, RequestKey};
use muster_planner::Budget;
use muster_state::{BudgetUse, GuardError, QuotaGrantStatus, State};
use muster_types::policy::{
    AcceleratorBudget, Policy, PolicyDraft, Quota, QuotaGrant, TenantLimits, TenantPolicy, UNLISTED_TENANT,
};
use muster_types::{
    ExitStatus, JobDraft, JobId, LogIndex, LogTime, Name, Refusal, RefusalCode, Requester, Submission, limits,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, commit, founded_as, group, holder, job_draft, name, node_spec, request,
    with_all_rights,
};

const HOUR_MS: u64 = 3_600_000;
const TENANTS: [&str; 6] = ["lab", "vision", "video", "speech", "guest", "other"];

fn quota(devices: u64) -> Quota {
    Quota {
        kind: name("h100"),
        region: None,
        nominal_milli: devices * 1_000,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    }
}

/// `lab` has 16: `vision`, with `video` below it, has 4, and `speech` 2. `guest` has nothing, `other` has 4.
fn draft() -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    for (tenant, parent, devices) in [
        ("lab", None, Some(16)),
        ("vision", Some("lab"), Some(4)),
        ("video", Some("vision"), None),
        ("speech", Some("lab"), Some(2)),
        ("guest", None, None),
        ("other", None, Some(4)),
    ] {
        let quotas = devices.map(quota).into_iter().collect();
        let parent = parent.map(name);
        draft.tenants.insert(name(tenant), TenantPolicy { parent, quotas, ..TenantPolicy::default() });
    }
    draft.preemption.minimum_run_ms = 0;
    with_all_rights(draft)
}

struct World {
    speculation: Speculation,
    state: State,
    requests: u128,
}

impl World {
    fn new(draft: PolicyDraft, hosts: u64) -> World {
        let (speculation, state) = founded_as(BOOTSTRAP);
        let mut world = World { speculation, state, requests: 0 };
        for host in 0..hosts {
            let spec = node_spec(&format!("n{host}"), "eu", "c1", Some(accelerators("h100", 8)));
            let holder = holder(u128::from(host) + 1);
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

    fn next_request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    fn set_policy(&mut self, draft: PolicyDraft) {
        let (request, by) = (self.next_request(), Requester::default());
        let policy = Box::new(draft.check().expect("a policy"));
        self.ask(&Command::SetPolicy { request, by, policy, expected_version: None }).unwrap();
    }

    fn grant_of(&self, tenant: &str, devices: u64, ms: u64) -> QuotaGrant {
        QuotaGrant {
            tenant: name(tenant),
            kind: name("h100"),
            region: None,
            amount_milli: devices * 1_000,
            until: self.speculation.now().plus_ms(ms),
            reason: "a deadline".to_owned(),
        }
    }

    fn order(&mut self, grant: QuotaGrant, acts_for: Option<&str>) -> Box<QuotaOrder> {
        let is_operator = acts_for.is_none();
        let by = Requester::named("tenant/lab/ada".to_owned(), is_operator);
        Box::new(QuotaOrder { request: self.next_request(), by, acts_for: acts_for.map(name), grant })
    }

    fn grant(&mut self, tenant: &str, devices: u64, ms: u64) -> Result<LogIndex, Refusal> {
        let grant = self.grant_of(tenant, devices, ms);
        let order = self.order(grant, None);
        self.ask(&Command::GrantQuota(order)).map(|answer| answer.at())
    }

    fn request_for(&mut self, tenant: &str, devices: u64, ms: u64) -> Result<LogIndex, Refusal> {
        let grant = self.grant_of(tenant, devices, ms);
        let order = self.order(grant, None);
        self.ask(&Command::RequestQuota(order)).map(|answer| answer.at())
    }

    fn answer(&mut self, id: LogIndex, approved: bool, acts_for: Option<&str>) -> Result<Answer, Refusal> {
        let (request, by) = (self.next_request(), Requester::default());
        let (acts_for, reason) = (acts_for.map(name), "as agreed".to_owned());
        let order = QuotaAnswerOrder { request, by, acts_for, id, approved, reason };
        self.ask(&Command::AnswerQuota(Box::new(order)))
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

    fn submit(&mut self, tenant: &str, devices: u16, preemptible: bool) -> JobId {
        let number = self.requests;
        let wants = Some(accelerators("h100", devices));
        let mut draft: JobDraft = job_draft(&format!("j{number}"), vec![group("main", 1, wants)]);
        (draft.tenant, draft.preemptible) = (name(tenant), preemptible);
        let request = self.next_request();
        let jobs = Submission::plain([draft.check().unwrap()]);
        match self.ask(&Command::submit(request, jobs)).unwrap() {
            Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    /// Every worker of a job says the same.
    fn report(&mut self, job: JobId, update: &RankUpdate) {
        let Some(placement) = self.state.job(job).and_then(|row| row.placement.clone()) else { return };
        for (rank, slot) in placement.slots.iter().enumerate() {
            let updates = vec![(rank as u32, update.clone())];
            let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
            // One that is over by now is not reported on.
            let _ = self.ask(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    /// What a tenant is guaranteed of the only type.
    fn guaranteed(&self, tenant: &str) -> Option<u64> {
        let quotas = &self.state.effective_policy().tenants.get(&name(tenant))?.quotas;
        quotas.first().map(|quota| quota.nominal_milli / 1_000)
    }
}

fn code(answer: Result<impl std::fmt::Debug, Refusal>) -> Option<RefusalCode> {
    answer.err().map(|refusal| refusal.code)
}

/// What the tenants below each are guaranteed is a part of what it is, counted without the function that adds grants.
fn check_guarantees(policy: &Policy) {
    let stated = |tenant: &Name| policy.tenants[tenant].quotas.first().map(|quota| quota.nominal_milli);
    fn promised(policy: &Policy, tenant: &Name) -> u64 {
        let below = policy.tenants.iter().filter(|(_, row)| row.parent.as_ref() == Some(tenant));
        let below: u64 = below.map(|(below, _)| promised(policy, below)).sum();
        let stated = policy.tenants[tenant].quotas.first().map(|quota| quota.nominal_milli);
        if let Some(stated) = stated {
            assert!(below <= stated, "{tenant} is guaranteed {stated}, and those below it {below}");
        }
        stated.unwrap_or(below)
    }
    for tenant in policy.tenants.keys() {
        let promised = promised(policy, tenant);
        assert!(stated(tenant).is_none_or(|stated| stated == promised));
    }
}

#[test]
fn guarantees_fit_and_grants_end_on_time_whatever_comes_and_goes() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut world = World::new(draft(), 3);
        let mut known: Vec<LogIndex> = Vec::new();
        for _ in 0..60 {
            let tenant = TENANTS[random.below(6) as usize];
            let (devices, ms) = (1 + random.below(6), HOUR_MS * (1 + random.below(8)));
            match random.below(10) {
                0..3 => known.extend(world.grant(tenant, devices, ms).ok()),
                3..5 => known.extend(world.request_for(tenant, devices, ms).ok()),
                5..7 => {
                    if let Some(id) = random.pick(&known) {
                        let giver = random.pick(&[None, Some("lab"), Some("vision"), Some("other")]);
                        let _ = world.answer(id, random.once_in(2), giver.flatten());
                    }
                }
                7 => {
                    let mut draft = draft();
                    match random.below(4) {
                        0 => _ = draft.tenants.remove(&name("guest")),
                        1 => draft.tenants.get_mut(&name("speech")).unwrap().parent = None,
                        2 => draft.tenants.get_mut(&name("lab")).unwrap().quotas[0].nominal_milli = 6_000,
                        _ => draft.tenants.get_mut(&name("lab")).unwrap().quotas.clear(),
                    }
                    world.set_policy(draft);
                }
                _ => world.pass_time(HOUR_MS / 2 * random.below(6)),
            }
            // `commit` has verified the state, and restored it from its snapshot.
            check_guarantees(world.state.effective_policy());
            let now = world.speculation.now();
            tick(&mut world.speculation);
            commit(&mut world.speculation, &mut world.state);
            let late = world.state.grants_in_force().find(|(_, row)| row.grant.until <= now);
            assert_eq!(late.map(|(id, _)| id), None, "seed {seed}: it is over");
            let live = world.state.quota_grants().filter(|(_, row)| !row.status.is_over()).count();
            assert!(live <= limits::QUOTA_ROWS_MAX);
        }
    }
}

/// What became of each job, and where it is.
fn outcome(state: &State) -> BTreeMap<JobId, String> {
    let shown = |row: &muster_state::JobRow| {
        let slots = row.placement.as_ref().map(|placement| placement.slots.clone());
        format!("{:?} {:?} {:?}", row.phase, row.promise.as_ref().map(|promise| &promise.slots), slots)
    };
    state.jobs().iter().map(|(job, row)| (*job, shown(row))).collect()
}

#[test]
fn a_granted_tenant_is_served_as_one_with_that_quota_in_the_policy() {
    for seed in 0..30 {
        let mut stated = draft();
        for (tenant, devices) in [("vision", 3), ("guest", 4)] {
            let quotas = &mut stated.tenants.get_mut(&name(tenant)).unwrap().quotas;
            match quotas.first_mut() {
                Some(quota) => quota.nominal_milli += devices * 1_000,
                None => quotas.push(quota(devices)),
            }
        }
        let mut granted = World::new(draft(), 3);
        granted.grant("vision", 3, 1_000 * HOUR_MS).unwrap();
        granted.grant("guest", 4, 1_000 * HOUR_MS).unwrap();
        let mut in_file = World::new(stated, 3);
        // As many records, so that ids of jobs are the same.
        in_file.request_for("vision", 3, 1_000 * HOUR_MS).unwrap();
        in_file.request_for("guest", 4, 1_000 * HOUR_MS).unwrap();
        for world in [&mut granted, &mut in_file] {
            let mut random = Random::new(seed);
            let mut jobs = Vec::new();
            for _ in 0..30 {
                match random.below(4) {
                    0..2 => {
                        let tenant = TENANTS[random.below(6) as usize];
                        let devices = 1 + random.below(4) as u16;
                        jobs.push(world.submit(tenant, devices, !random.once_in(4)));
                    }
                    2 => {
                        if let Some(job) = random.pick(&jobs) {
                            let exit = ExitStatus::Code(i32::from(random.once_in(3)));
                            world.report(job, &RankUpdate::Exited(exit));
                        }
                    }
                    _ => world.pass_time(60_000 * (1 + random.below(9))),
                }
                world.schedule();
            }
        }
        assert_eq!(outcome(&granted.state), outcome(&in_file.state), "seed {seed}");
    }
}

#[test]
fn a_budget_is_exceeded_by_nothing_but_what_ran_when_it_was_used_up() {
    let budget = AcceleratorBudget { hours: 4, window_ms: 6 * HOUR_MS };
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut with_budget = draft();
        let limits = TenantLimits { accelerator_hours: Some(budget), ..TenantLimits::NONE };
        with_budget.tenants.get_mut(&name("guest")).unwrap().limits = limits;
        let mut world = World::new(with_budget, 2);
        let (mut jobs, guest) = (Vec::new(), name("guest"));
        // By an independent count: what was charged in the window, in thousandths of an accelerator times milliseconds.
        let (mut used, mut counted_to) = (0u128, world.speculation.now());
        for _ in 0..80 {
            let running = |state: &State| -> u128 {
                let own = state.charged_of(&guest).filter_map(|job| state.job(job)?.charge());
                own.map(|(_, charge)| {
                    charge.devices_milli.iter().map(|(_, milli)| u128::from(*milli)).sum::<u128>()
                })
                .sum()
            };
            match random.below(4) {
                0 => jobs.push(world.submit("guest", 1 + random.below(4) as u16, true)),
                1 => {
                    if let Some(job) = random.pick(&jobs) {
                        world.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
                    }
                }
                _ => {
                    let rate = running(&world.state);
                    world.pass_time(60_000 * (1 + random.below(50)));
                    let now = world.speculation.now();
                    let start = budget.window_start(now);
                    let since = if start > counted_to { start } else { counted_to };
                    used = if start > counted_to { 0 } else { used };
                    used += rate * u128::from(now.since_ms(since));
                    counted_to = now;
                }
            }
            assert_eq!(world.state.budget_used(&guest, None, counted_to), used, "seed {seed}");
            let before = running(&world.state);
            let is_spent = used >= budget.milli_ms();
            world.schedule();
            if is_spent {
                assert!(running(&world.state) <= before, "seed {seed}: nothing begins once it is used up");
            }
        }
    }
}

/// Users of a window that is over are not among those that are counted, of whom there may be 4,096.
#[test]
fn what_was_used_is_forgotten_once_its_window_is_over() {
    let budget = AcceleratorBudget { hours: 4, window_ms: 6 * HOUR_MS };
    let mut with_budget = draft();
    let limits = TenantLimits { accelerator_hours: Some(budget), ..TenantLimits::NONE };
    with_budget.tenants.get_mut(&name("guest")).unwrap().limits = limits;
    let (mut world, guest) = (World::new(with_budget, 1), name("guest"));
    let job = world.submit("guest", 1, true);
    world.schedule();
    world.pass_time(60_000);
    world.report(job, &RankUpdate::Exited(ExitStatus::Code(0)));
    let now = world.speculation.now();
    assert_eq!(world.state.budget_used(&guest, None, now), 60_000 * 1_000);
    let over = budget.renews_at(now);
    assert!(!world.state.has_budgets_over(LogTime(over.0 - 1)) && world.state.has_budgets_over(over));
    world.pass_time(6 * HOUR_MS);
    assert!(!world.state.has_budgets_over(world.speculation.now()), "the leader's tick forgets it");
}

/// Who acts for all tenants has no budget for each name that it makes up.
#[test]
fn tenants_that_the_policy_does_not_name_have_one_budget_together() {
    let budget = AcceleratorBudget { hours: 1, window_ms: 24 * HOUR_MS };
    let mut with_budget = draft();
    let limits = TenantLimits { accelerator_hours: Some(budget), ..TenantLimits::NONE };
    let unlisted = with_budget.tenants.entry(Name::literal(UNLISTED_TENANT)).or_default();
    unlisted.limits = limits;
    let mut world = World::new(with_budget, 1);
    let first = world.submit("made-up-1", 4, true);
    world.schedule();
    assert!(world.state.job(first).unwrap().placement.is_some());
    world.pass_time(HOUR_MS / 4);
    let now = world.speculation.now();
    let spent = world.state.spent_budget(&name("made-up-2"), now).expect("it is used up");
    let used = BudgetUse::Hours { budget, used_milli_ms: budget.milli_ms() };
    assert_eq!((spent.tenant.as_str(), spent.of), (UNLISTED_TENANT, used));
    let second = world.submit("made-up-2", 1, true);
    let listed = world.submit("other", 1, true);
    world.schedule();
    assert!(world.state.job(second).unwrap().placement.is_none());
    assert!(world.state.job(listed).unwrap().placement.is_some());
    // A policy that names the first leaves what was used with all others, and counts what runs from now on for it.
    let mut named = draft();
    for tenant in ["made-up-1", UNLISTED_TENANT] {
        named.tenants.entry(name(tenant)).or_default().limits = limits;
    }
    world.set_policy(named);
    let now = world.speculation.now();
    assert_eq!(world.state.budget_used(&name("made-up-2"), None, now), budget.milli_ms());
    assert_eq!(world.state.budget_used(&name("made-up-1"), None, now), 0);
}

/// Anybody may ask for a moment and ask again: only grants have what is guaranteed worked out, and the pending queue begun again.
#[test]
fn requests_that_lapse_or_are_denied_change_no_guarantee() {
    let mut world = World::new(draft(), 1);
    world.grant("speech", 1, 100 * HOUR_MS).unwrap();
    let before = Arc::clone(world.state.effective_policy());
    let denied = world.request_for("vision", 1, HOUR_MS).unwrap();
    let lapsed = world.request_for("vision", 1, HOUR_MS).unwrap();
    world.answer(denied, false, None).unwrap();
    assert_eq!(world.state.live_quota_rows(), 2);
    world.schedule();
    assert!(!world.speculation.wants_schedule());
    world.pass_time(2 * HOUR_MS);
    assert!(matches!(world.state.quota_grant(lapsed).unwrap().status, QuotaGrantStatus::Lapsed { .. }));
    assert!(!world.speculation.wants_schedule());
    assert_eq!(world.state.live_quota_rows(), 1);
    assert!(Arc::ptr_eq(&before, world.state.effective_policy()));
    world.pass_time(100 * HOUR_MS);
    assert!(!Arc::ptr_eq(&before, world.state.effective_policy()));
    assert_eq!(world.guaranteed("speech"), Some(2));
}

#[test]
fn requests_are_bounded_for_each_tenant() {
    let mut world = World::new(draft(), 1);
    for _ in 0..limits::TENANT_QUOTA_REQUESTS_MAX {
        world.request_for("guest", 1, HOUR_MS).unwrap();
    }
    assert_eq!(code(world.request_for("guest", 1, HOUR_MS)), Some(RefusalCode::StateFull));
    let other = world.request_for("other", 1, HOUR_MS).unwrap();
    for _ in 0..limits::TENANT_QUOTA_GRANTS_MAX {
        world.grant("other", 1, HOUR_MS).unwrap();
    }
    assert_eq!(code(world.grant("other", 1, HOUR_MS)), Some(RefusalCode::StateFull));
    assert_eq!(code(world.answer(other, true, None)), Some(RefusalCode::StateFull));
    // Of those that are over a number is remembered.
    world.pass_time(2 * HOUR_MS);
    assert_eq!(world.state.quota_grants().filter(|(_, row)| !row.status.is_over()).count(), 0);
    let of_other = world.state.quota_grants().filter(|(_, row)| row.grant.tenant == name("other")).count();
    assert_eq!(of_other, limits::TENANT_QUOTA_HISTORY_MAX);
    assert_eq!(world.guaranteed("other"), Some(4));
}

/// Who may ask for many tenants leaves places for the requests of others.
#[test]
fn one_user_does_not_take_the_rows_of_all_requests() {
    let mut with_teams = draft();
    for team in 0..10 {
        let row = TenantPolicy { parent: Some(name("lab")), ..TenantPolicy::default() };
        with_teams.tenants.insert(name(&format!("team{team}")), row);
    }
    let mut world = World::new(with_teams, 1);
    for number in 0..limits::USER_QUOTA_REQUESTS_MAX {
        world.request_for(&format!("team{}", number % 10), 1, HOUR_MS).unwrap();
    }
    let refusal = world.request_for("guest", 1, HOUR_MS).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::StateFull);
    assert!(refusal.to_string().contains("64"), "{refusal}");
    // Another token of the same user is the same user.
    for (by, expected) in
        [("tenant/lab/ada+token/0000000000000007", Some(RefusalCode::StateFull)), ("tenant/guest/eve", None)]
    {
        let grant = world.grant_of("guest", 1, HOUR_MS);
        let mut order = world.order(grant, None);
        order.by.name = by.to_owned();
        assert_eq!(code(world.ask(&Command::RequestQuota(order))), expected, "{by}");
    }
}

#[test]
fn a_request_names_what_there_is() {
    let mut world = World::new(draft(), 1);
    let before = world.state.digest();
    let good = world.grant_of("vision", 1, HOUR_MS);
    let (now, far) = (world.speculation.now(), world.speculation.now().plus_ms(367 * 24 * HOUR_MS));
    for (change, field) in [
        (QuotaGrant { until: now, ..good.clone() }, "end_time"),
        (QuotaGrant { until: LogTime(0), ..good.clone() }, "end_time"),
        (QuotaGrant { until: far, ..good.clone() }, "end_time"),
        (QuotaGrant { amount_milli: 0, ..good.clone() }, "amount_milli"),
        (QuotaGrant { amount_milli: u64::MAX, ..good.clone() }, "amount_milli"),
        (QuotaGrant { kind: name("b200"), ..good.clone() }, "type"),
        (QuotaGrant { tenant: name("nobody"), ..good.clone() }, "tenant"),
        (QuotaGrant { reason: String::new(), ..good.clone() }, "reason"),
        (QuotaGrant { reason: "a\nb".to_owned(), ..good.clone() }, "reason"),
    ] {
        for command in [Command::RequestQuota, Command::GrantQuota] {
            let order = world.order(change.clone(), None);
            let refusal = world.ask(&command(order)).unwrap_err();
            let fields: Vec<&str> = refusal.violations.iter().map(|v| v.field.as_str()).collect();
            assert_eq!(fields, [format!("grant.{field}")], "{refusal}");
        }
    }
    let foreign = world.order(good.clone(), Some("speech"));
    assert_eq!(code(world.ask(&Command::RequestQuota(foreign))), Some(RefusalCode::PermissionDenied));
    assert_eq!(world.state.digest(), before, "bad input changes nothing");
    let own = world.order(good, Some("vision"));
    let at = world.ask(&Command::RequestQuota(own.clone())).unwrap();
    assert_eq!(world.ask(&Command::RequestQuota(own)).unwrap(), at, "repeating it changes nothing");
    let id = at.at();
    assert_eq!(code(world.answer(id, true, Some("speech"))), Some(RefusalCode::QuotaRequestNotFound));
    assert_eq!(code(world.answer(LogIndex(1), true, None)), Some(RefusalCode::QuotaRequestNotFound));
    assert_eq!(code(world.answer(id, true, Some("vision"))), Some(RefusalCode::PermissionDenied));
    world.answer(id, true, Some("lab")).unwrap();
    assert_eq!(code(world.answer(id, true, None)), Some(RefusalCode::QuotaRequestAnswered));
    world.answer(id, false, None).unwrap();
    assert!(matches!(world.state.quota_grant(id).unwrap().status, QuotaGrantStatus::Ended { .. }));
}

#[test]
fn the_guard_refuses_what_no_leader_decides() {
    let mut world = World::new(draft(), 1);
    let id = world.request_for("vision", 1, HOUR_MS).unwrap();
    let key = RequestKey { id: request(1_000_000), fingerprint: 1 };
    let by = Requester::default();
    let grant = |tenant: &str, devices| Box::new(world.grant_of(tenant, devices, HOUR_MS));
    let granted = |tenant: &str, devices, giver: Option<&str>| Decision::QuotaGranted {
        request: key,
        by: by.clone(),
        giver: giver.map(name),
        grant: grant(tenant, devices),
    };
    let answered = |id, approved, reason: &str| Decision::QuotaAnswered {
        request: key,
        by: by.clone(),
        id,
        giver: None,
        approved,
        reason: reason.to_owned(),
    };
    let past = QuotaGrant { until: LogTime(1), ..world.grant_of("vision", 1, HOUR_MS) };
    for (decision, error) in [
        (granted("vision", 11, None), GuardError::QuotaUnavailable),
        (granted("nobody", 1, None), GuardError::TenantUnlisted),
        (granted("vision", 1, Some("vision")), GuardError::RightMissing),
        (granted("guest", 1, Some("lab")), GuardError::RightMissing),
        (Decision::QuotaRequested { request: key, by: by.clone(), grant: Box::new(past) }, GuardError::Limit),
        (answered(LogIndex(1), true, "so"), GuardError::QuotaGrantUnknown),
        (answered(id, true, ""), GuardError::Limit),
        (Decision::QuotaGrantsEnded { ids: vec![] }, GuardError::Limit),
        (Decision::QuotaGrantsEnded { ids: vec![id, id] }, GuardError::Limit),
        (Decision::QuotaGrantsEnded { ids: vec![LogIndex(1)] }, GuardError::QuotaGrantUnknown),
    ] {
        assert_eq!(world.state.check(&decision), Err(error), "{decision:?}");
    }
    assert_eq!(world.state.check(&answered(id, true, "so")), Ok(()));
}

#[test]
fn what_a_grant_displaces_is_what_could_be_stopped_then() {
    let mut world = World::new(draft(), 2);
    let guest = world.submit("guest", 8, true);
    let fixed = world.submit("guest", 4, false);
    world.schedule();
    for job in [guest, fixed] {
        world.report(job, &RankUpdate::Running);
    }
    let before = world.state.digest();
    let grant = world.grant_of("other", 8, HOUR_MS);
    let impact = quota_impact(&world.state, &grant);
    assert_eq!(world.state.digest(), before, "it is only looked at");
    assert_eq!((impact.capacity_milli, impact.free_milli), (16_000, 4_000));
    assert_eq!((impact.jobs_count, impact.jobs.as_slice()), (1, [guest].as_slice()), "{impact:?}");
    assert_eq!(impact.borrowers[0].tenant, name("guest"));
    assert_eq!(impact.displaced_milli, 4_000);
}

#[test]
fn a_decision_that_was_checked_goes_unlooked_at_only_where_it_was_checked() {
    let world = World::new(draft(), 1);
    let before = world.speculation.state().clone();
    let grant = Decision::QuotaGranted {
        request: RequestKey { id: request(1 << 90), fingerprint: 0 },
        by: Requester::default(),
        giver: None,
        grant: Box::new(world.grant_of("video", 1, HOUR_MS)),
    };
    let checked = before.check_next(grant.clone()).expect("it can be made");
    let header = |state: &State| (state.sequence().leadership.expect("a leader"), state.log_index().next());
    let (leadership, index) = header(&before);
    let (mut with, mut without) = (before.clone(), before.clone());
    assert_eq!(with.apply_checked(leadership, index, world.speculation.now(), &checked).rejection, None);
    assert_eq!(without.apply(leadership, index, world.speculation.now(), &grant).rejection, None);
    assert_eq!(with.digest(), without.digest());
    // One position later it is a repetition, and the guard finds that.
    let (leadership, index) = header(&with);
    let again = with.apply_checked(leadership, index, world.speculation.now(), &checked);
    assert_eq!(again.rejection, Some(GuardError::RequestRepeated));
}
