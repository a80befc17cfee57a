//! Parts of the scenario that people ask for: bookings, tokens, schedules and quota.

use super::*;

/// A booking whose nodes the leader chose, and chose again, with its first window over; and one of a node, which is deleted.
pub(super) fn book(run: &mut Run) {
    let mut policy = (*run.speculation.state().policy().policy).clone().into_draft();
    policy.tenants.insert(name("lab"), TenantPolicy::default());
    run.set_policy(policy);
    for (text, holder) in [("book-a", 60), ("book-b", 61)] {
        run.register(node_spec(text, "eu", "booked", Some(accelerators("b200", 8))), holder);
    }
    let chosen = BookingShape::Chosen {
        amount: BookingAmount::Devices(8),
        kind: Some(name("b200")),
        region: Some(name("eu")),
        cluster: None,
        labels: Default::default(),
    };
    let start = run.speculation.now().plus_ms(60_000);
    let once = BookingTimes::once(start, 60_000);
    let nightly = once.clone().every(1, 2);
    let by = Requester::named("admin/ops".into(), true);
    for (text, shape, times) in
        [("nightly", chosen, nightly), ("named", BookingShape::Nodes(vec![name("book-b")]), once)]
    {
        let spec = BookingSpec {
            tenant: Some(name("lab")),
            user: (text == "nightly").then(|| "tenant/lab/ada".to_owned()),
            jobs: vec![name("evaluate")],
            is_shared: false,
            shape,
            times,
            notice_ms: 30_000,
            clearing: if text == "nightly" { BookingClearing::Stop } else { BookingClearing::Finish },
            reason: "evaluation".to_owned(),
        };
        let request = run.next_request();
        let order = BookingOrder { request, by: by.clone(), acts_for: None, name: name(text), spec };
        handle(&mut run.speculation, &Command::CreateBooking(Box::new(order))).unwrap();
    }
    let request = run.next_request();
    let delete = Command::DeleteBooking { request, by, acts_for: None, name: name("named") };
    handle(&mut run.speculation, &delete).unwrap();
    run.end_round(60_000);
    run.speculation.push(Decision::BookingOpened { name: name("nightly") });
    run.speculation.push(Decision::BookingMoved { name: name("nightly"), nodes: vec![name("book-b")] });
    run.end_round(60_000);
    let cause = BookingEnd::WindowOver;
    run.speculation.push(Decision::BookingEnded { name: name("nightly"), cause });
    run.end_round(10);
    hold(run);
}

/// A cluster that is held until further notice, and a region whose hold is over.
fn hold(run: &mut Run) {
    let by = Requester::named("admin/ops".into(), true);
    let nowhere = HoldTarget::Part(FleetPart { region: Some(name("nowhere")), cluster: None });
    for (target, until) in [
        (HoldTarget::Part(FleetPart { region: None, cluster: Some(name("nowhere")) }), None),
        (nowhere.clone(), Some(run.speculation.now().plus_ms(60_000))),
    ] {
        let hold = Some(FleetHold { reason: "an audit".to_owned(), until, stops_work: false });
        let order = FleetHoldOrder { request: run.next_request(), by: by.clone(), target, hold };
        handle(&mut run.speculation, &Command::SetFleetHold(Box::new(order))).unwrap();
    }
    run.end_round(60_000);
    run.speculation.push(Decision::FleetHoldEnded { target: nowhere });
    run.end_round(10);
}

/// A job whose fallback opens while it waits, on a fleet with a node that was bought so.
pub(super) fn fall_back(run: &mut Run) {
    let mut bought = node_draft("bought", "eu", "c8", Some(accelerators("gb200", 4)));
    bought.labels.insert(name("purchase"), "on_demand".into());
    let bought = bought.check().unwrap();
    run.register(bought.clone(), 62);
    let start = AgentStart { id: StartId(7), before: None };
    let started = Command::RegisterStart { spec: bought, holder: holder(62), start };
    handle(&mut run.speculation, &started).unwrap();
    let mut draft = job_draft("falls-back", vec![group("main", 1, Some(accelerators("gb200", 4)))]);
    draft.capacity = Some(Box::new(CapacityRules {
        purchases: [PurchaseKind::Spot].into_iter().collect(),
        fallback: Some(CapacityFallback {
            purchases: [PurchaseKind::OnDemand].into_iter().collect(),
            after_ms: 60_000,
            is_open: false,
        }),
        interruptions_milli_max: Some(500),
    }));
    let job = run.submit(draft.check().unwrap());
    run.end_round(60_000);
    run.speculation.push(Decision::FallbackOpened { job });
    run.end_round(10);
    let request = run.next_request();
    handle(&mut run.speculation, &Command::cancel(request, job)).unwrap();
    run.end_round(10);
}

/// Bearer tokens of two roles, one of them revoked.
pub(super) fn grant_tokens(run: &mut Run) {
    let by = Requester::named("admin/ops".into(), true);
    for (id, role) in [(7, TokenRole::Viewer), (u64::MAX, TokenRole::Admin)] {
        let request = run.next_request();
        let text = role.name();
        let grant = TokenGrant {
            name: name(text),
            user: name("ada"),
            role,
            tenant: None,
            secret_sha256: std::array::from_fn(|at| at as u8),
            own_role: None,
        };
        let order = TokenOrder {
            request,
            by: by.clone(),
            acts_for: None,
            token: TokenId(id),
            grant,
            lifetime_ms: 366 * 24 * 3_600_000,
        };
        handle(&mut run.speculation, &Command::CreateToken(Box::new(order))).unwrap();
    }
    let request = run.next_request();
    let revoke = Command::RevokeToken { request, by, acts_for: None, token: TokenId(7) };
    handle(&mut run.speculation, &revoke).unwrap();
    run.end_round(10);
    keep_schedules(run);
}

/// Schedules: one that makes a job and is suspended, and one that is deleted.
fn keep_schedules(run: &mut Run) {
    let by = Requester::named("admin/ops".into(), true);
    let key = |text: &str| ScheduleKey { tenant: name("research"), name: name(text) };
    for text in ["nightly", "weekly"] {
        let schedule = Schedule {
            key: key(text),
            cron: "0 6 * * 1-5".parse().unwrap(),
            zone: "Europe/Berlin".into(),
            template: ScheduleTemplate::of(job(text, 1, None).into()).unwrap(),
            overlap: OverlapRule::Forbid,
            starting_deadline_ms: 600_000,
            runs_max: 10,
        };
        let request = run.next_request();
        // No policy here has it, and the other one makes a job.
        let role = muster_types::OwnerRole { name: name("ci"), part_of: TokenRole::Submitter };
        let (acts_for, role) = (None, (text == "weekly").then_some(role));
        let order = ScheduleOrder { request, by: by.clone(), acts_for, role, schedule, is_new: true };
        handle(&mut run.speculation, &Command::SetSchedule(Box::new(order))).unwrap();
    }
    let set_index = run.speculation.state().schedule(&key("nightly")).unwrap().set_index;
    let (schedule, due) = (key("nightly"), run.speculation.now());
    let plan = Command::PlanSchedule { schedule: schedule.clone(), set_index, next: Some(due) };
    let fire = Command::FireSchedule { schedule, set_index, due, next: Some(due.plus_ms(1_000_000_000)) };
    for command in [plan, fire] {
        handle(&mut run.speculation, &command).unwrap();
    }
    let suspend = ScheduleAction::Suspend { reason: "until the data set is whole".into() };
    for (text, action) in [("nightly", suspend), ("weekly", ScheduleAction::Delete)] {
        let (request, schedule) = (run.next_request(), key(text));
        let order = ScheduleControl { request, by: by.clone(), acts_for: None, schedule, action };
        handle(&mut run.speculation, &Command::ControlSchedule(Box::new(order))).unwrap();
    }
    run.end_round(10);
}

/// Requests for quota that are approved, denied and left, and a grant that ends.
pub(super) fn grant_quota(run: &mut Run) {
    let by = Requester::named("admin/ops".into(), true);
    let now = run.speculation.now();
    let grant = |milli, ms| QuotaGrant {
        tenant: name("research"),
        kind: name("h100"),
        region: None,
        amount_milli: milli,
        until: now.plus_ms(ms),
        reason: "a deadline".into(),
    };
    let mut asked = Vec::new();
    for milli in [1_000, 2_000, 500] {
        let order = QuotaOrder {
            request: run.next_request(),
            by: by.clone(),
            acts_for: None,
            grant: grant(milli, 86_400_000),
        };
        let command = Command::RequestQuota(Box::new(order));
        asked.push(handle(&mut run.speculation, &command).unwrap().at());
    }
    for (id, approved) in [(asked[0], true), (asked[1], false)] {
        let (request, reason) = (run.next_request(), "as agreed".into());
        let order = QuotaAnswerOrder { request, by: by.clone(), acts_for: None, id, approved, reason };
        handle(&mut run.speculation, &Command::AnswerQuota(Box::new(order))).unwrap();
    }
    let request = run.next_request();
    let order = QuotaOrder { request, by, acts_for: None, grant: grant(4_000, 5) };
    handle(&mut run.speculation, &Command::GrantQuota(Box::new(order))).unwrap();
    run.end_round(10);
    tick(&mut run.speculation);
    run.end_round(10);
}
