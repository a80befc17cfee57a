//! What is reported of a policy before it is set: each warning on a fleet where it is due, and not on one where it is not.

use std::sync::Arc;

use muster_decider::{
    Command, POLICY_WARNINGS_MAX, PolicyWarning, Speculation, handle, policy_warnings, schedule,
};
use muster_planner::Budget;
use muster_types::policy::{
    BackfillPolicy, CountedResource, Guarantee, JobLimits, NonPreemptible, OnLimit, PolicyDraft, Price,
    QueueChoices, Quota, SpendBudget, TenantPolicy, TenantRights, Window, WindowPurpose, WindowScope,
};
use muster_types::{JobDraft, JobMetadata, LogTime, NodeRequirements, PriorityTier, Submission};

use crate::support::{accelerators, founded, group, holder, job_draft, name, node_spec, request};

/// Two hosts of eight devices in eu, one in us, and whatever jobs are given.
fn cluster(jobs: Vec<JobDraft>) -> Speculation {
    let (mut speculation, mut replica) = founded();
    for (n, (node, region)) in [("e1", "eu"), ("e2", "eu"), ("u1", "us")].into_iter().enumerate() {
        let spec = node_spec(node, region, "c1", Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(n as u128 + 1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    if !jobs.is_empty() {
        let jobs = jobs.into_iter().map(|job| job.check().unwrap().into()).collect();
        handle(&mut speculation, &Command::submit(request(7), jobs)).unwrap();
    }
    crate::support::commit(&mut speculation, &mut replica);
    speculation
}

fn quota(
    kind: &str,
    region: Option<&str>,
    nominal: u64,
    borrowing: Option<u64>,
    lending: Option<u64>,
) -> Quota {
    Quota {
        kind: name(kind),
        region: region.map(name),
        nominal_milli: nominal * 1_000,
        borrowing_limit_milli: borrowing.map(|devices| devices * 1_000),
        lending_limit_milli: lending.map(|devices| devices * 1_000),
    }
}

fn tenants(tenants: Vec<(&str, TenantPolicy)>) -> PolicyDraft {
    PolicyDraft {
        tenants: tenants.into_iter().map(|(tenant, policy)| (name(tenant), policy)).collect(),
        ..PolicyDraft::default()
    }
}

fn with(quotas: Vec<Quota>) -> TenantPolicy {
    TenantPolicy { quotas, ..TenantPolicy::default() }
}

fn warned(speculation: &Speculation, draft: PolicyDraft) -> Vec<PolicyWarning> {
    policy_warnings(speculation.state(), &draft.check().unwrap()).listed
}

/// Code, field and a part of the text of each warning, in order.
fn assert_warned(speculation: &Speculation, draft: PolicyDraft, expected: &[(&str, &str, &str)]) {
    let found = warned(speculation, draft);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (warning, (code, field, part)) in found.iter().zip(expected) {
        assert_eq!((warning.code.as_str(), warning.field.as_str()), (*code, *field), "{found:#?}");
        assert!(warning.text.contains(part), "{part:?} in {:?}", warning.text);
    }
}

#[test]
fn a_policy_that_suits_the_fleet_is_not_warned_of() {
    let speculation = cluster(vec![]);
    assert_warned(&speculation, PolicyDraft::default(), &[]);
    let half = || with(vec![quota("h100", None, 12, None, None)]);
    assert_warned(&speculation, tenants(vec![("research", half()), ("serving", half())]), &[]);
}

#[test]
fn types_and_regions_that_nobody_has_are_named() {
    let quotas = vec![quota("a100", None, 4, None, None), quota("h100", Some("ap"), 4, None, None)];
    let mut draft = tenants(vec![("research", with(quotas))]);
    draft.prices = vec![Price::new(name("l4"), None, 1)];
    draft.spare_hosts_per_rack.insert(name("b200"), 1);
    let licence = |text, region| CountedResource { name: name(text), count: 1, region: Some(name(region)) };
    draft.resources = vec![licence("matlab", "eu"), licence("ansys", "ap")];
    let expected = [
        ("UNKNOWN_TYPE", "prices[0]", "type l4; the fleet has h100"),
        ("UNKNOWN_TYPE", "spare_hosts_per_rack.b200", "type b200"),
        ("UNKNOWN_TYPE", "tenants.research.quotas[0]", "type a100"),
        ("UNKNOWN_REGION", "resources[1]", "region ap; the fleet is in eu, us"),
        ("UNKNOWN_REGION", "tenants.research.quotas[1]", "region ap; the fleet is in eu, us"),
    ];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn more_than_the_fleet_has_cannot_be_guaranteed() {
    let here = |devices| with(vec![quota("h100", Some("us"), devices, None, None)]);
    let draft = tenants(vec![("research", here(5)), ("serving", here(6))]);
    let text = "11 devices of type h100 in region us are guaranteed to research, serving, and there are 8";
    let field = "tenants.research.quotas[0].nominal_milli";
    assert_warned(&cluster(vec![]), draft, &[("NOMINAL_ABOVE_FLEET", field, text)]);
    // What a tenant below another has is part of what that one has.
    let mut child = here(6);
    child.parent = Some(name("serving"));
    assert_warned(&cluster(vec![]), tenants(vec![("serving", here(8)), ("team", child)]), &[]);
}

#[test]
fn tenants_that_can_use_nothing_are_named() {
    // Nobody lends, and all of it is promised.
    let closed = with(vec![quota("h100", None, 24, None, Some(0))]);
    let draft = tenants(vec![("owner", closed), ("guest", TenantPolicy::default())]);
    let expected = [
        ("TENANT_WITHOUT_DEVICES", "", "does not list"),
        ("TENANT_WITHOUT_DEVICES", "tenants.guest", "tenant guest can use no device"),
    ];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn tenants_that_may_only_borrow_what_others_are_promised_are_named() {
    let owner = with(vec![quota("h100", None, 24, None, None)]);
    let team = TenantPolicy { parent: Some(name("owner")), ..TenantPolicy::default() };
    let draft = tenants(vec![("owner", owner.clone()), ("team", team), ("guest", TenantPolicy::default())]);
    let expected = [("NOTHING_GUARANTEED", "tenants.guest", "may never run")];
    assert_warned(&cluster(vec![]), draft, &expected);
    // What nobody is promised can be had by everybody.
    let part = with(vec![quota("h100", None, 23, None, None)]);
    assert_warned(&cluster(vec![]), tenants(vec![("owner", part), ("guest", TenantPolicy::default())]), &[]);
    // By region as well, where every region is given away.
    let here = |region, devices| quota("h100", Some(region), devices, None, None);
    let regions = with(vec![here("eu", 16), here("us", 8)]);
    assert_warned(
        &cluster(vec![]),
        tenants(vec![("owner", regions), ("guest", TenantPolicy::default())]),
        &expected,
    );
}

#[test]
fn rights_that_surprise_are_named() {
    let rights = |tier_max, non_preemptible| TenantRights {
        tier_max,
        non_preemptible,
        deadlines: None,
        bookings: None,
        purchases: muster_types::PurchaseSet::EMPTY,
        negative_nice: None,
    };
    let mut low = with(vec![quota("h100", None, 4, Some(0), None)]);
    low.rights = rights(Some(PriorityTier::Batch), None);
    let holds =
        TenantPolicy { rights: rights(None, Some(NonPreemptible::Always)), ..TenantPolicy::default() };
    let mut draft = tenants(vec![("low", low), ("holds", holds)]);
    draft.preemption.reclaim_borrowed = false;
    let expected = [
        ("ORDINARY_JOBS_REFUSED", "tenants.low.rights.tier_max", "up to batch"),
        ("BORROWS_FOR_GOOD", "tenants.holds.rights.non_preemptible", "within_nominal"),
        ("NOTHING_TAKEN_BACK", "preemption.reclaim_borrowed", "come back only"),
    ];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn nodes_that_nobody_has_and_budgets_without_prices_are_named() {
    let only = |node: &str, isolated| {
        let nodes = NodeRequirements { only: [name(node)].into(), ..NodeRequirements::default() };
        let queue = QueueChoices { nodes: Some(nodes), isolated: Some(isolated), ..QueueChoices::default() };
        TenantPolicy { queue, ..TenantPolicy::default() }
    };
    let mut spends = TenantPolicy::default();
    spends.limits.user.spend = Some(SpendBudget { dollars: 1, window_ms: 60_000 });
    let draft = tenants(vec![("lab", only("nowhere", false)), ("spends", spends)]);
    let expected = [
        ("TENANT_WITHOUT_NODES", "tenants.lab.queue.nodes", "no node is one that jobs of tenant lab run on"),
        ("SPEND_WITHOUT_PRICES", "tenants.spends.limits.user.spend", "never used up"),
    ];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn a_minute_weight_is_no_share() {
    let weigh = |weight_milli| TenantPolicy { weight_milli, ..TenantPolicy::default() };
    let draft = tenants(vec![("large", weigh(1_000)), ("small", weigh(10)), ("fair", weigh(11))]);
    let expected = [("MINUTE_WEIGHT", "tenants.small.weight_milli", "1 device for 100 of large")];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn what_waits_now_is_looked_at() {
    let wants =
        |job: &str, workers| job_draft(job, vec![group("main", workers, Some(accelerators("h100", 8)))]);
    let jobs = vec![
        JobDraft { tier: PriorityTier::Production, ..wants("urgent", 1) },
        JobDraft { preemptible: false, ..wants("fixed", 1) },
        wants("large", 2),
    ];
    let speculation = cluster(jobs);
    let draft = tenants(vec![("research", with(vec![quota("h100", None, 4, Some(4), None)]))]);
    let expected = [
        ("GANG_ABOVE_QUOTA", "tenants.research", "1 waiting jobs of tenant research, such as large"),
        ("WAITING_WITHOUT_RIGHT", "tenants.research", "such as fixed, need the right nonPreemptible"),
        ("WAITING_WITHOUT_RIGHT", "tenants.research", "such as urgent, need the right tierMax"),
    ];
    assert_warned(&speculation, draft, &expected);
    let other = tenants(vec![("serving", with(vec![quota("h100", None, 8, None, None)]))]);
    let found = warned(&speculation, other);
    assert!(
        found.iter().any(|w| w.code.as_str() == "UNLISTED_TENANTS" && w.text.ends_with(": research")),
        "{found:?}"
    );
}

/// A policy that lists one tenant, with what is changed of it.
fn limited(limit: fn(&mut TenantPolicy)) -> PolicyDraft {
    let mut research = TenantPolicy::default();
    limit(&mut research);
    tenants(vec![("research", research)])
}

#[test]
fn limits_and_weights_that_let_nothing_start_are_named() {
    let wants =
        |job: &str, workers| job_draft(job, vec![group("main", workers, Some(accelerators("h100", 8)))]);
    let batch = JobDraft { tier: PriorityTier::Batch, ..wants("large", 2) };
    let speculation = cluster(vec![wants("first", 1), wants("second", 1), batch]);
    let field = "tenants.research.limits.running_jobs";
    let stops = "none of its jobs would start; 3 of its jobs and of those below it wait now";
    let draft = limited(|of| of.limits.running_jobs = Some(0));
    assert_warned(&speculation, draft, &[("TENANT_STARVED", field, stops)]);
    let draft = limited(|of| of.limits.job.workers_max = Some(0));
    let field = "tenants.research.limits.job.max_workers";
    assert_warned(&speculation, draft, &[("TENANT_STARVED", field, "none of its new jobs would start")]);
    // It is warned of a tenant without jobs as well: everyone who submits one is held.
    let mut guest = TenantPolicy::default();
    guest.limits.user.pending_jobs = Some(0);
    let draft = tenants(vec![("research", TenantPolicy::default()), ("guest", guest)]);
    let field = "tenants.guest.limits.user.pending_jobs";
    assert_warned(&speculation, draft, &[("TENANT_STARVED", field, "none of its jobs would be taken")]);
    let draft = limited(|of| _ = of.tier_submissions.insert(PriorityTier::Batch, 0));
    let said = "0 submissions with batch jobs in a minute: none would be taken; 1 of its jobs";
    assert_warned(&speculation, draft, &[("TIER_STARVED", "tenants.research.limits.tiers", said)]);
    // What a tenant states holds for those below it.
    let mut below = tenants(vec![("lab", TenantPolicy::default()), ("research", TenantPolicy::default())]);
    below.tenants.get_mut(&name("research")).unwrap().parent = Some(name("lab"));
    let lab = below.tenants.get_mut(&name("lab")).unwrap();
    lab.tier_submissions.insert(PriorityTier::Batch, 0);
    let found = warned(&speculation, below);
    let of_lab = found.iter().find(|warning| warning.field == "tenants.lab.limits.tiers");
    assert!(of_lab.is_some_and(|warning| warning.text.contains("; 1 of its jobs")), "{found:#?}");
    // A tier of which the tenant may name no job is not allowed in any case.
    let draft = limited(|of| _ = of.tier_submissions.insert(PriorityTier::Critical, 0));
    assert_warned(&speculation, draft, &[]);
    // What a job asks for can be above a limit for as long as there is one.
    let draft = limited(|of| of.limits.user.devices = Some(8));
    let said =
        "1 waiting batch jobs of tenant research, such as large, ask for more than limits.user.devices";
    assert_warned(&speculation, draft, &[("TIER_STARVED", "tenants.research.limits", said)]);
    let above = |of: &mut TenantPolicy| of.limits.job.devices_max = Some(8);
    assert_warned(&speculation, limited(above), &[]);
    let mut draft = limited(above);
    draft.tenants.values_mut().for_each(|of| of.limits.on_limit = Some(OnLimit::Hold));
    let said = "such as large, ask for more than limits.job";
    assert_warned(&speculation, draft, &[("TIER_STARVED", "tenants.research.limits", said)]);
    // Weights are of account where a sibling has one, and nothing is guaranteed.
    let weigh = |weight_milli, quotas| TenantPolicy { weight_milli, ..with(quotas) };
    let other = || ("serving", weigh(1_000, vec![]));
    let said = "its 3 waiting jobs go behind all those of its siblings";
    let expected = [("TENANT_STARVED", "tenants.research.weight_milli", said)];
    assert_warned(&speculation, tenants(vec![("research", weigh(0, vec![])), other()]), &expected);
    assert_warned(&speculation, tenants(vec![("research", weigh(0, vec![]))]), &[]);
    let own = vec![quota("h100", None, 16, None, None)];
    assert_warned(&speculation, tenants(vec![("research", weigh(0, own)), other()]), &[]);
}

#[test]
fn jobs_that_ask_for_more_than_their_user_may_are_named() {
    let mut speculation = cluster(vec![]);
    let large = job_draft("large", vec![group("main", 2, Some(accelerators("h100", 8)))]);
    let mut large = Submission::from(large.check().unwrap());
    large.metadata = Some(Arc::new(JobMetadata { creator: "ada".to_owned(), ..JobMetadata::default() }));
    handle(&mut speculation, &Command::submit(request(8), [large].into())).unwrap();
    let limit = |user: &str| {
        let mut research = TenantPolicy::default();
        research.limits.on_limit = Some(OnLimit::Hold);
        let one_worker = JobLimits { workers_max: Some(1), ..JobLimits::default() };
        research.user_limits.insert(user.to_owned(), one_worker);
        tenants(vec![("research", research)])
    };
    let said = "such as large, ask for more than limits.users";
    assert_warned(&speculation, limit("ada"), &[("TIER_STARVED", "tenants.research.limits", said)]);
    assert_warned(&speculation, limit("eve"), &[]);
}

#[test]
fn windows_that_change_nothing_are_named() {
    let window = |window: &str, until: u64, node: &str, purpose| Window {
        name: name(window),
        from: LogTime(1),
        until: LogTime(until),
        scope: WindowScope { node: Some(name(node)), ..WindowScope::default() },
        purpose,
    };
    let far = 10_000_000;
    let draft = PolicyDraft {
        windows: vec![
            window("past", 2, "e1", WindowPurpose::Maintenance),
            window("nowhere", far, "x9", WindowPurpose::Maintenance),
            window("whose", far, "e1", WindowPurpose::ReservedFor { tenant: name("nobody") }),
            window("fine", far, "e1", WindowPurpose::Maintenance),
        ],
        ..PolicyDraft::default()
    };
    let expected = [
        ("WINDOW_WITHOUT_NODES", "windows[1].scope", "window nowhere"),
        ("WINDOW_FOR_UNKNOWN_TENANT", "windows[2]", "tenant nobody"),
        ("WINDOW_OVER", "windows[0]", "window past"),
    ];
    assert_warned(&cluster(vec![]), draft, &expected);
}

#[test]
fn warnings_are_bounded() {
    let many = (0..100).map(|n| {
        let text: &'static str = Box::leak(format!("t{n:03}").into_boxed_str());
        (text, with(vec![quota("a100", None, 1, None, None)]))
    });
    let policy = tenants(many.collect()).check().unwrap();
    let warnings = policy_warnings(cluster(vec![]).state(), &policy);
    assert_eq!((warnings.listed.len(), warnings.left_out), (POLICY_WARNINGS_MAX, 100 - POLICY_WARNINGS_MAX));
}

#[test]
fn what_changes_for_those_that_run_is_said() {
    let mut fixed = job_draft("fixed", vec![group("g", 1, Some(accelerators("h100", 8)))]);
    fixed.tenant = name("research");
    fixed.preemptible = false;
    let mut speculation = cluster(vec![]);
    let rights = |right| TenantRights { non_preemptible: Some(right), ..TenantRights::default() };
    let research = |nominal, right| {
        let quotas = vec![quota("h100", None, nominal, None, None)];
        tenants(vec![("research", TenantPolicy { rights: rights(right), ..with(quotas) })])
    };
    let set = |draft: PolicyDraft| Command::SetPolicy {
        request: request(8),
        by: muster_types::Requester::default(),
        policy: Box::new(draft.check().unwrap()),
        expected_version: None,
    };
    let before = || research(8, NonPreemptible::WithinNominal);
    handle(&mut speculation, &set(before())).unwrap();
    let jobs = [Submission::from(fixed.check().unwrap())].into();
    handle(&mut speculation, &Command::submit(request(9), jobs)).unwrap();
    schedule(&mut speculation, &mut Budget::new(10_000));
    assert_warned(&speculation, before(), &[]);
    assert_warned(
        &speculation,
        research(4, NonPreemptible::Never),
        &[
            (
                "GUARANTEE_BELOW_USE",
                "tenants.research",
                "uses 8 devices of type h100 in all regions and would be guaranteed 4, and no longer 8",
            ),
            ("RUNNING_WITHOUT_RIGHT", "tenants.research", "1 running jobs of tenant research, such as fixed"),
        ],
    );
    let mut draft = before();
    let now = speculation.now();
    draft.windows = vec![Window {
        name: name("repairs"),
        from: LogTime(0),
        until: now.plus_ms(60_000),
        scope: WindowScope { cluster: Some(name("c1")), ..WindowScope::default() },
        purpose: WindowPurpose::Maintenance,
    }];
    let said = "window repairs is open already: 1 job that runs there would be stopped at once";
    assert_warned(&speculation, draft, &[("WINDOW_STOPS_JOBS", "windows[0]", said)]);
    // A tenant that is left out is guaranteed nothing, and its jobs have the rights of everybody.
    let found = warned(&speculation, tenants(vec![("serving", TenantPolicy::default())]));
    let codes: Vec<&str> = found.iter().map(|warning| warning.code.as_str()).collect();
    assert_eq!(codes, ["GUARANTEE_BELOW_USE", "RUNNING_WITHOUT_RIGHT", "UNLISTED_TENANTS"], "{found:#?}");
}

#[test]
fn isolation_that_leaves_a_tenant_no_node_is_warned_of() {
    let (mut speculation, _replica) = founded();
    let mut register = |n: u128, node: &str, region: &str, kind: &str, devices: Option<&str>| {
        let mut draft =
            muster_types::NodeDraft::clone(&node_spec(node, region, "c1", Some(accelerators(kind, 8))));
        draft.labels.extend(devices.map(|value| (name("isolation.devices"), value.to_owned())));
        let spec = draft.check().unwrap();
        let command = Command::Register { spec, holder: holder(n), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    };
    register(1, "e1", "eu", "h100", Some("filtered"));
    register(2, "e2", "eu", "h100", Some("none"));
    register(3, "u1", "us", "b200", None);
    let requires = |guarantees: &[Guarantee], tenant: TenantPolicy| PolicyDraft {
        required_isolation: guarantees.iter().copied().collect(),
        ..tenants(vec![("research", tenant)])
    };
    let on = |kind| with(vec![quota(kind, None, 8, None, None)]);
    let some = (
        "NODES_NOT_ISOLATED",
        "isolation.require",
        "2 of 3 nodes lack some of the isolation that is required (devices), and get no more work: e2, u1",
    );
    assert_warned(&speculation, requires(&[Guarantee::Devices], on("h100")), &[some]);
    let none = (
        "NO_ISOLATED_NODE",
        "tenants.research",
        "tenant research is guaranteed devices on nodes alone that lack",
    );
    assert_warned(&speculation, requires(&[Guarantee::Devices], on("b200")), &[none, some]);
    let all = ("NO_ISOLATED_NODE", "isolation.require", "no job of any tenant is placed");
    assert_warned(&speculation, requires(&Guarantee::ALL, on("h100")), &[all]);
    assert_warned(&speculation, requires(&[], on("b200")), &[]);
}

#[test]
fn a_policy_that_keeps_nothing_for_gangs_is_named() {
    let backfill = |reservations_max, depth_max| PolicyDraft {
        backfill: BackfillPolicy { reservations_max, depth_max, ..BackfillPolicy::default() },
        ..PolicyDraft::default()
    };
    let expected = [("NOTHING_RESERVED", "backfill.max_reservations", "may never run")];
    assert_warned(&cluster(vec![]), backfill(0, 2), &expected);
    // Nobody passes the first that waits.
    assert_warned(&cluster(vec![]), backfill(0, 1), &[]);
    assert_warned(&cluster(vec![]), backfill(1, 2), &[]);
}
