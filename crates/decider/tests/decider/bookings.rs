//! Bookings: bounds, reach, and what they promise whatever happens.

use std::collections::BTreeMap;

use muster_decider::{
    Answer, BookingExcesses, BookingOrder, Command, QuotaOrder, Speculation, explain_briefly, handle,
    policy_warnings, schedule, tick,
};
use muster_journal::{Decision, RankUpdate, RequestKey, Round};
use muster_planner::Budget;
use muster_state::{GuardError, Phase, State};
use muster_types::policy::{PolicyDraft, Quota, QuotaGrant, TenantPolicy};
use muster_types::{
    BookingAmount, BookingClearing, BookingEnd, BookingRule, BookingShape, BookingSpec, BookingTimes,
    ExitStatus, JobId, ListedWindows, LogTime, Name, NodeId, PriorityTier, Refusal, RefusalCode, Requester,
    Submission, limits,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, commit, founded_as, group, holder, job_draft, name, node_spec, request,
    with_all_rights,
};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// `vision` with a quota of 16 devices and `video` below it, and `speech` with none.
fn policy(tenants: &[&str]) -> PolicyDraft {
    let mut draft = PolicyDraft::default();
    draft.preemption.minimum_run_ms = 0;
    for tenant in tenants {
        let parent = (*tenant == "video").then(|| name("vision"));
        let quota = Quota {
            kind: name("h100"),
            region: None,
            nominal_milli: 16_000,
            borrowing_limit_milli: None,
            lending_limit_milli: None,
        };
        let quotas = if *tenant == "vision" { vec![quota] } else { Vec::new() };
        draft.tenants.insert(name(tenant), TenantPolicy { parent, quotas, ..TenantPolicy::default() });
    }
    with_all_rights(draft)
}

fn set_policy(speculation: &mut Speculation, n: u128, tenants: &[&str]) {
    let command = Command::SetPolicy {
        request: request(n),
        by: Requester::default(),
        policy: Box::new(policy(tenants).check().expect("a policy")),
        expected_version: None,
    };
    handle(speculation, &command).expect("it is taken");
}

fn register(speculation: &mut Speculation, text: &str) {
    let spec = node_spec(text, "eu", "c1", Some(accelerators("h100", 8)));
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(speculation, &command).expect("it is taken");
}

/// Four hosts of eight devices.
fn fleet() -> (Speculation, State) {
    let (mut speculation, mut replica) = founded_as(BOOTSTRAP);
    set_policy(&mut speculation, 1 << 100, &["vision", "video", "speech"]);
    for text in ["n1", "n2", "n3", "n4"] {
        register(&mut speculation, text);
    }
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

fn hosts(count: u32) -> BookingShape {
    BookingShape::Chosen {
        amount: BookingAmount::Hosts(count),
        kind: Some(name("h100")),
        region: None,
        cluster: None,
        labels: BTreeMap::new(),
    }
}

/// An hour from an hour from now on, for vision.
fn order(speculation: &Speculation, n: u128) -> BookingOrder {
    let start = speculation.now().plus_ms(HOUR_MS);
    let spec = BookingSpec {
        tenant: Some(name("vision")),
        user: None,
        jobs: Vec::new(),
        is_shared: false,
        shape: hosts(1),
        times: BookingTimes::once(start, HOUR_MS),
        notice_ms: 0,
        clearing: BookingClearing::Finish,
        reason: String::new(),
    };
    BookingOrder {
        request: request(n),
        by: Requester::default(),
        acts_for: None,
        name: name(&format!("b{n}")),
        spec,
    }
}

fn create(speculation: &mut Speculation, order: BookingOrder) -> Result<Answer, Refusal> {
    handle(speculation, &Command::CreateBooking(Box::new(order)))
}

fn code(answer: Result<Answer, Refusal>) -> Option<RefusalCode> {
    answer.err().map(|refusal| refusal.code)
}

/// A tick at a time, behind what was decided before.
fn at((speculation, replica): (&mut Speculation, &mut State), time: LogTime) {
    commit(speculation, replica);
    speculation.set_now(time);
    tick(speculation);
    commit(speculation, replica);
}

#[test]
fn a_booking_opens_ends_and_is_repeated_under_its_request() {
    let (mut speculation, mut replica) = fleet();
    let mut made = order(&speculation, 1);
    made.spec.times = made.spec.times.every(1, 2);
    let start = made.spec.times.start;
    let first = create(&mut speculation, made.clone()).expect("it fits");
    assert_eq!(create(&mut speculation, made.clone()), Ok(first), "repeating it changes nothing");
    let other = BookingOrder { name: name("other"), ..made };
    assert_eq!(code(create(&mut speculation, other)), Some(RefusalCode::RequestIdReused));
    commit(&mut speculation, &mut replica);
    let row = |state: &State| state.booking(&name("b1")).map(|row| (row.window, row.is_open));
    at((&mut speculation, &mut replica), start.minus_ms(1));
    assert_eq!(row(speculation.state()), Some((0, false)));
    at((&mut speculation, &mut replica), start);
    assert_eq!(row(speculation.state()), Some((0, true)));
    at((&mut speculation, &mut replica), start.plus_ms(HOUR_MS));
    assert_eq!(row(speculation.state()), Some((1, false)), "the window is over at its very end");
    // Nobody looked for two days: the second window has come and gone.
    at((&mut speculation, &mut replica), start.plus_ms(2 * DAY_MS));
    assert_eq!(row(speculation.state()), None);
    commit(&mut speculation, &mut replica);
}

#[test]
fn what_breaks_a_rule_is_refused_and_changes_nothing() {
    let (mut speculation, mut replica) = fleet();
    let first = order(&speculation, 1);
    create(&mut speculation, first).expect("it fits");
    commit(&mut speculation, &mut replica);
    let base = |n: u128| order(&speculation, n);
    let with = |n: u128, change: &dyn Fn(&mut BookingSpec)| {
        let mut order = base(n);
        change(&mut order.spec);
        order
    };
    let invalid = RefusalCode::InvalidField;
    let does_not_fit = RefusalCode::BookingDoesNotFit;
    let cases = [
        (with(2, &|spec| spec.tenant = Some(name("nobody"))), invalid),
        (with(3, &|spec| spec.times.length_ms = 1), invalid),
        (with(4, &|spec| (spec.times.start, spec.times.length_ms) = (LogTime(1), 60_000)), invalid),
        (with(5, &|spec| spec.times.start = spec.times.start.plus_ms(limits::BOOKING_HORIZON_MS)), invalid),
        (with(6, &|spec| spec.shape = hosts(5)), does_not_fit),
        (with(7, &|spec| spec.shape = hosts(4)), does_not_fit),
        (with(8, &|spec| spec.shape = BookingShape::Nodes(vec![name("n1")])), does_not_fit),
        (with(9, &|spec| spec.shape = BookingShape::Nodes(vec![name("n9")])), RefusalCode::NodeNotFound),
        (BookingOrder { name: name("b1"), ..base(10) }, RefusalCode::BookingExists),
    ];
    let digest = speculation.state().rows_digest();
    for (order, expected) in cases {
        let text = format!("{order:?}");
        assert_eq!(code(create(&mut speculation, order)), Some(expected), "{text}");
    }
    assert_eq!(speculation.state().rows_digest(), digest);
    // What ends where the other begins has the same node.
    let mut next = order(&speculation, 11);
    next.spec.times.start = next.spec.times.start.plus_ms(HOUR_MS);
    next.spec.shape = BookingShape::Nodes(vec![name("n1")]);
    create(&mut speculation, next).expect("they do not meet");
}

#[test]
fn a_tenant_books_within_its_quota_and_stops_nobody() {
    let (mut speculation, _) = fleet();
    let own = |n: u128, change: &dyn Fn(&mut BookingSpec)| {
        let mut order = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, n) };
        change(&mut order.spec);
        order
    };
    let denied = Some(RefusalCode::PermissionDenied);
    let cases = [
        (own(1, &|spec| spec.tenant = Some(name("speech"))), denied),
        (own(2, &|spec| spec.clearing = BookingClearing::Stop), denied),
        (own(3, &|spec| spec.clearing = BookingClearing::Fill), denied),
        (own(4, &|spec| spec.shape = hosts(3)), denied),
        (own(5, &|spec| spec.tenant = Some(name("video"))), None),
        (own(6, &|_| {}), None),
        (own(7, &|_| {}), denied),
    ];
    for (order, expected) in cases {
        let text = format!("{order:?}");
        assert_eq!(code(create(&mut speculation, order)), expected, "{text}");
    }
    let delete = |n: u128, acts_for: &str, text: &str| Command::DeleteBooking {
        request: request(n),
        by: Requester::default(),
        acts_for: Some(name(acts_for)),
        name: name(text),
    };
    let unknown = Some(RefusalCode::BookingNotFound);
    assert_eq!(code(handle(&mut speculation, &delete(20, "speech", "b6"))), unknown);
    assert_eq!(code(handle(&mut speculation, &delete(21, "video", "b6"))), unknown, "it is above");
    assert_eq!(code(handle(&mut speculation, &delete(22, "vision", "b5"))), None);
    assert_eq!(code(handle(&mut speculation, &delete(23, "vision", "b5"))), unknown);
}

/// A grant is over before long, and a booking may be for any day of a year.
#[test]
fn a_tenant_books_nothing_on_what_it_is_granted_for_some_time() {
    let (mut speculation, _) = fleet();
    let grant = QuotaGrant {
        tenant: name("vision"),
        kind: name("h100"),
        region: None,
        amount_milli: 16_000,
        until: speculation.now().plus_ms(HOUR_MS),
        reason: "a deadline".to_owned(),
    };
    let granted = QuotaOrder { request: request(50), by: Requester::default(), acts_for: None, grant };
    handle(&mut speculation, &Command::GrantQuota(Box::new(granted))).expect("it is granted");
    let mut three = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 1) };
    three.spec.shape = hosts(3);
    let refusal = create(&mut speculation, three).expect_err("it has two");
    assert_eq!(refusal.code, RefusalCode::PermissionDenied);
    assert!(refusal.to_string().contains("a nominal quota of 16 without what is granted"), "{refusal}");
    let mut two = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 2) };
    two.spec.shape = hosts(2);
    create(&mut speculation, two).expect("it is its own");
}

/// A policy of these tenants, each with its parent and its quota of devices in all regions.
fn set_quotas(speculation: &mut Speculation, tenants: &[(&str, Option<&str>, u64)]) {
    let mut draft = PolicyDraft::default();
    for (tenant, parent, devices) in tenants {
        let quota = Quota {
            kind: name("h100"),
            region: None,
            nominal_milli: devices * 1_000,
            borrowing_limit_milli: None,
            lending_limit_milli: None,
        };
        let parent = parent.map(name);
        draft
            .tenants
            .insert(name(tenant), TenantPolicy { parent, quotas: vec![quota], ..TenantPolicy::default() });
    }
    let command = Command::SetPolicy {
        request: request(1 << 102),
        by: Requester::default(),
        policy: Box::new(with_all_rights(draft).check().expect("a policy")),
        expected_version: None,
    };
    handle(speculation, &command).expect("it is taken");
}

#[test]
fn a_booking_above_a_quota_that_shrank_stays_is_shown_and_grows_by_nothing() {
    let (mut speculation, _) = fleet();
    let mut two = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 1) };
    two.spec.shape = hosts(2);
    create(&mut speculation, two).expect("its quota is 16 devices");
    let excess = |speculation: &Speculation| {
        let state = speculation.state();
        let excesses = BookingExcesses::of(state);
        let booking = state.booking(&name("b1")).expect("it stays");
        excesses.with(state, booking).map(ToString::to_string)
    };
    assert_eq!(excess(&speculation), None);
    set_quotas(&mut speculation, &[("vision", None, 8), ("video", Some("vision"), 0)]);
    let text = excess(&speculation).expect("16 devices are more than 8");
    assert!(
        text.contains("tenant vision") && text.contains("16 devices") && text.ends_with("is 8"),
        "{text}"
    );
    let mut one = BookingOrder { acts_for: Some(name("video")), ..order(&speculation, 2) };
    one.spec.tenant = Some(name("video"));
    one.spec.shape = hosts(1);
    assert_eq!(code(create(&mut speculation, one)), Some(RefusalCode::PermissionDenied));
}

#[test]
fn a_policy_that_takes_away_what_is_booked_is_warned_of() {
    let (mut speculation, _) = fleet();
    let mut two = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 1) };
    two.spec.shape = hosts(2);
    create(&mut speculation, two).expect("its quota is 16 devices");
    let warned = |devices: u64| {
        let mut draft = policy(&["vision", "video", "speech"]);
        draft.tenants.get_mut(&name("vision")).expect("it is listed").quotas[0].nominal_milli =
            devices * 1_000;
        let warnings = policy_warnings(speculation.state(), &draft.check().expect("a policy"));
        warnings.listed.iter().any(|warning| warning.code.as_str() == "BOOKINGS_ABOVE_QUOTA")
    };
    assert!(warned(8) && warned(0) && !warned(16) && !warned(24));
}

#[test]
fn a_quota_for_all_regions_is_for_all_of_them_together() {
    let (mut speculation, _) = fleet();
    for text in ["m1", "m2"] {
        let spec = node_spec(text, "us", "c2", Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
        handle(&mut speculation, &command).expect("it is taken");
    }
    let own = |n: u128, region: &str, count: u32| {
        let mut order = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, n) };
        order.spec.shape = match hosts(count) {
            BookingShape::Chosen { amount, kind, cluster, labels, .. } => {
                BookingShape::Chosen { amount, kind, region: Some(name(region)), cluster, labels }
            }
            nodes => nodes,
        };
        order
    };
    let orders = [own(1, "eu", 2), own(2, "us", 1)];
    let [first, second] = orders;
    create(&mut speculation, first).expect("its quota is 16 devices");
    assert_eq!(code(create(&mut speculation, second)), Some(RefusalCode::PermissionDenied));
}

#[test]
fn what_a_tenant_books_stays_of_one_type_in_one_region() {
    let (mut speculation, mut replica) = fleet();
    for text in ["m1", "m2"] {
        let spec = node_spec(text, "us", "c2", Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
        handle(&mut speculation, &command).expect("it is taken");
    }
    let mut any = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 1) };
    let amount = BookingAmount::Hosts(1);
    let labels = BTreeMap::new();
    any.spec.shape = BookingShape::Chosen { amount, kind: None, region: None, cluster: None, labels };
    assert_eq!(code(create(&mut speculation, any)), Some(RefusalCode::InvalidField), "quota is for a type");
    let typed = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, 2) };
    create(&mut speculation, typed).expect("it is within its quota");
    let nodes = |state: &State| state.booking(&name("b2")).map(|booking| booking.nodes.clone());
    assert_eq!(nodes(speculation.state()), Some(vec![name("n1")]));
    for text in ["n1", "n2", "n3", "n4"] {
        let node = speculation.state().node_named(&name(text)).expect("it is there");
        handle(&mut speculation, &Command::SessionOver { node, incarnation: 1 }).expect("never refused");
    }
    let later = speculation.now().plus_ms(10_000);
    at((&mut speculation, &mut replica), later);
    assert_eq!(nodes(speculation.state()), Some(vec![name("n1")]), "the other region is under another quota");
}

#[test]
fn a_count_of_devices_is_met_by_large_hosts_where_small_ones_leave_a_rest() {
    let (mut speculation, _) = fleet();
    let spec = node_spec("m1", "eu", "c1", Some(accelerators("h100", 4)));
    let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
    handle(&mut speculation, &command).expect("it is taken");
    let with = |n: u128, devices: u32| {
        let mut order = order(&speculation, n);
        order.spec.shape = match hosts(1) {
            BookingShape::Chosen { kind, region, cluster, labels, .. } => {
                let amount = BookingAmount::Devices(devices);
                BookingShape::Chosen { amount, kind, region, cluster, labels }
            }
            nodes => nodes,
        };
        order
    };
    let orders = [with(1, 16), with(2, 12), with(3, 6)];
    let [first, second, third] = orders;
    create(&mut speculation, first).expect("two large hosts");
    create(&mut speculation, second).expect("a large and the small one");
    assert_eq!(code(create(&mut speculation, third)), Some(RefusalCode::BookingDoesNotFit));
    let nodes = |text: &str| speculation.state().booking(&name(text)).map(|booking| booking.nodes.clone());
    assert_eq!(nodes("b1"), Some(vec![name("n1"), name("n2")]));
    assert_eq!(nodes("b2"), Some(vec![name("m1"), name("n3")]));
}

#[test]
fn windows_of_a_rule_open_at_their_moments_and_a_repetition_may_be_found_others() {
    let (mut speculation, mut replica) = fleet();
    let rule = BookingRule {
        weekdays: "mon-fri".parse().expect("days"),
        minute: 9 * 60,
        zone: "Europe/Berlin".to_owned(),
    };
    let minute = u32::try_from(speculation.now().0 / 60_000).expect("near the epoch") + 60;
    let listed = |start_minutes: Vec<u32>| {
        let listed = Some(Box::new(ListedWindows { rule: rule.clone(), start_minutes }));
        BookingTimes { windows: 2, listed, ..BookingTimes::once(LogTime(0), HOUR_MS) }
    };
    let mut made = order(&speculation, 1);
    for wrong in [vec![], vec![minute], vec![minute, minute + 30]] {
        made.spec.times = listed(wrong);
        assert_eq!(code(create(&mut speculation, made.clone())), Some(RefusalCode::InvalidField));
    }
    // As from one day to the next when clocks are set forward: 23 hours.
    made.spec.times = listed(vec![minute, minute + 23 * 60]);
    let first = create(&mut speculation, made.clone()).expect("it fits");
    made.spec.times = listed(vec![minute + 1, minute + 24 * 60]);
    assert_eq!(create(&mut speculation, made), Ok(first), "what was asked is the same");
    for (number, minute) in [(0, minute), (1, minute + 23 * 60)] {
        let from = LogTime(u64::from(minute) * 60_000);
        at((&mut speculation, &mut replica), from.minus_ms(1));
        let booking = replica.booking(&name("b1")).expect("it is there");
        assert_eq!((booking.window, booking.is_open, booking.current().from), (number, false, from));
        at((&mut speculation, &mut replica), from);
        assert!(replica.booking(&name("b1")).expect("it is there").is_open);
        at((&mut speculation, &mut replica), from.plus_ms(HOUR_MS));
    }
    assert_eq!(replica.booking(&name("b1")), None, "the last window is over");
}

#[test]
fn nobody_waits_for_a_window_to_end_behind_which_it_is_too_late_for_the_next() {
    for (notice_hours, limit_hours, windows) in [(23, None, 3), (22, None, 1), (23, Some(3), 1)] {
        let (mut speculation, mut replica) = fleet();
        set_policy(&mut speculation, 1 << 101, &["audio", "speech"]);
        let mut booked = order(&speculation, 1);
        booked.spec.times = booked.spec.times.every(1, 3);
        (booked.spec.tenant, booked.spec.shape) = (Some(name("audio")), hosts(4));
        booked.spec.notice_ms = notice_hours * HOUR_MS;
        let start = booked.spec.times.start;
        create(&mut speculation, booked).expect("it fits");
        at((&mut speculation, &mut replica), start);
        let mut draft = job_draft("other", vec![group("main", 1, Some(accelerators("h100", 8)))]);
        (draft.tenant, draft.run_time_limit_ms) =
            (name("speech"), limit_hours.map(|hours: u64| hours * HOUR_MS));
        let job = draft.check().expect("a job");
        let submit = Command::submit(request(1 << 103), Submission::plain([job]));
        let answer = handle(&mut speculation, &submit).expect("it waits");
        let Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
        let (state, kept) = (speculation.state(), speculation.kept_reservations());
        let why = explain_briefly(state, start, jobs[0], kept).expect("it waits").1;
        let until = start.plus_ms((windows - 1) * DAY_MS + HOUR_MS);
        assert!(why.contains(&format!("from it until {until}, ")), "{why}");
    }
}

#[test]
fn a_tenants_bookings_that_are_refused_are_counted_as_well() {
    let (mut speculation, _) = fleet();
    let mut draft = policy(&["vision"]);
    let tenant = draft.tenants.get_mut(&name("vision")).expect("it is listed");
    tenant.limits.requests_per_minute = Some(2);
    let set = Command::SetPolicy {
        request: request(1 << 102),
        by: Requester::default(),
        policy: Box::new(draft.check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &set).expect("it is taken");
    let too_many = |n: u128| {
        let mut order = BookingOrder { acts_for: Some(name("vision")), ..order(&speculation, n) };
        order.spec.shape = hosts(5);
        order
    };
    let orders = [too_many(1), too_many(2), too_many(3)];
    let refused = orders.map(|order| code(create(&mut speculation, order)));
    let does_not_fit = Some(RefusalCode::BookingDoesNotFit);
    assert_eq!(refused, [does_not_fit, does_not_fit, Some(RefusalCode::Overloaded)]);
}

#[test]
fn tenants_below_one_share_what_it_may_book() {
    let (mut speculation, _) = fleet();
    set_quotas(
        &mut speculation,
        &[("vision", None, 16), ("video", Some("vision"), 16), ("speech", None, 16)],
    );
    let own = |n: u128, acts_for: &str, tenant: &str| {
        let mut order = BookingOrder { acts_for: Some(name(acts_for)), ..order(&speculation, n) };
        order.spec.tenant = Some(name(tenant));
        order
    };
    // An operator booked for the tenant above; what those below it book is part of the same quota.
    let mut first = own(1, "vision", "vision");
    first.acts_for = None;
    first.spec.shape = hosts(2);
    let (second, third) = (own(2, "video", "video"), own(3, "speech", "speech"));
    create(&mut speculation, first).expect("operators book for everybody");
    assert_eq!(code(create(&mut speculation, second)), Some(RefusalCode::PermissionDenied));
    create(&mut speculation, third).expect("another tenant's quota is another");
}

/// The fleet with a policy, a booking of one host for audio from an hour from now on, and a job that names it, ahead of all.
fn fleet_with_a_job_of_a_booking(backfill: impl Fn(&mut PolicyDraft)) -> (Speculation, State) {
    let (mut speculation, mut replica) = fleet();
    let mut draft = policy(&["audio", "speech"]);
    backfill(&mut draft);
    let set = Command::SetPolicy {
        request: request(1 << 102),
        by: Requester::default(),
        policy: Box::new(draft.check().expect("a policy")),
        expected_version: None,
    };
    handle(&mut speculation, &set).expect("it is taken");
    let mut booked = order(&speculation, 1);
    booked.spec.tenant = Some(name("audio"));
    create(&mut speculation, booked).expect("it fits");
    let mut draft = job_draft("named", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    (draft.tenant, draft.tier) = (name("audio"), PriorityTier::Critical);
    (draft.booking, draft.expected_run_ms) = (Some(name("b1")), Some(HOUR_MS));
    let job = draft.check().expect("a job");
    handle(&mut speculation, &Command::submit(request(1 << 103), Submission::plain([job])))
        .expect("it waits");
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    commit(&mut speculation, &mut replica);
    (speculation, replica)
}

/// How many of four long jobs of another tenant find a host.
fn placed_now(speculation: &mut Speculation) -> usize {
    let mut draft = job_draft("long", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    (draft.tenant, draft.expected_run_ms) = (name("speech"), Some(9 * HOUR_MS));
    let jobs = vec![draft.check().expect("a job"); 4];
    handle(speculation, &Command::submit(request(1 << 104), Submission::plain(jobs))).expect("they wait");
    schedule(speculation, &mut Budget::new(1_000_000));
    speculation.state().active_count()
}

#[test]
fn nothing_is_kept_for_a_job_whose_booking_is_not_open() {
    // Its tier would have a reservation at once, for the start of the window; the booking has no notice.
    let (mut speculation, mut replica) = fleet_with_a_job_of_a_booking(|_| ());
    assert_eq!(placed_now(&mut speculation), 4);
    commit(&mut speculation, &mut replica);
}

#[test]
fn nobody_waits_behind_a_job_whose_booking_is_not_open() {
    let strict = |draft: &mut PolicyDraft| draft.backfill.depth_max = 1;
    let (mut speculation, mut replica) = fleet_with_a_job_of_a_booking(strict);
    assert_eq!(placed_now(&mut speculation), 4);
    commit(&mut speculation, &mut replica);
    // Nor when it is over, and the job waits for good.
    let (mut speculation, mut replica) = fleet_with_a_job_of_a_booking(strict);
    let delete = Command::DeleteBooking {
        request: request(1 << 105),
        by: Requester::default(),
        acts_for: None,
        name: name("b1"),
    };
    handle(&mut speculation, &delete).expect("it is there");
    assert_eq!(placed_now(&mut speculation), 4);
    commit(&mut speculation, &mut replica);
}

#[test]
fn who_waits_for_the_end_of_a_window_keeps_nothing_from_its_jobs() {
    let (mut speculation, mut replica) = fleet();
    set_policy(&mut speculation, 1 << 101, &["audio", "speech"]);
    let mut booked = order(&speculation, 1);
    (booked.spec.tenant, booked.spec.shape) = (Some(name("audio")), hosts(2));
    let start = booked.spec.times.start;
    create(&mut speculation, booked).expect("it fits");
    at((&mut speculation, &mut replica), start);
    let mut gang = job_draft("gang", vec![group("main", 4, Some(accelerators("h100", 8)))]);
    (gang.tenant, gang.tier, gang.expected_run_ms) = (name("speech"), PriorityTier::Critical, Some(HOUR_MS));
    let gang = gang.check().expect("a job");
    handle(&mut speculation, &Command::submit(request(1 << 103), Submission::plain([gang])))
        .expect("it waits");
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    assert_eq!(speculation.state().active_count(), 0, "two of its hosts are booked");
    // It would still run when the gang could begin.
    let mut own = job_draft("own", vec![group("main", 1, Some(accelerators("h100", 8)))]);
    (own.tenant, own.booking, own.expected_run_ms) = (name("audio"), Some(name("b1")), Some(9 * HOUR_MS));
    let own = own.check().expect("a job");
    handle(&mut speculation, &Command::submit(request(1 << 104), Submission::plain([own])))
        .expect("it waits");
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    assert_eq!(speculation.state().active_count(), 1);
    commit(&mut speculation, &mut replica);
}

#[test]
fn there_are_so_many_and_no_more() {
    let (mut speculation, _) = fleet();
    for n in 0..limits::TENANT_BOOKINGS_MAX as u128 {
        let mut order = order(&speculation, n);
        order.spec.times.start = order.spec.times.start.plus_ms(n as u64 * HOUR_MS);
        create(&mut speculation, order).expect("there may be more");
    }
    let mut one = order(&speculation, 900);
    one.spec.times.start = one.spec.times.start.plus_ms(100 * DAY_MS);
    assert_eq!(code(create(&mut speculation, one.clone())), Some(RefusalCode::StateFull));
    one.spec.tenant = Some(name("speech"));
    one.request = request(901);
    create(&mut speculation, one).expect("another tenant's are counted apart");
}

#[test]
fn the_guard_refuses_what_no_honest_leader_records() {
    let (mut speculation, _) = fleet();
    let first = order(&speculation, 1);
    create(&mut speculation, first).expect("it fits");
    let state = speculation.state();
    let (key, by) = (RequestKey { id: request(50), fingerprint: 1 }, Requester::default());
    let spec = order(&speculation, 2).spec;
    let created = |text: &str, spec: &BookingSpec, nodes: &[&str]| Decision::BookingCreated {
        request: key,
        by: by.clone(),
        name: name(text),
        spec: Box::new(spec.clone()),
        nodes: nodes.iter().map(|node| name(node)).collect(),
    };
    let b1 = || name("b1");
    let bad = BookingSpec { times: BookingTimes { windows: 0, ..spec.times.clone() }, ..spec.clone() };
    let cases = [
        (created("b1", &spec, &["n2"]), GuardError::BookingExists),
        (created("b2", &spec, &["n1"]), GuardError::BookingOverlaps),
        (created("b2", &spec, &["n2", "n3"]), GuardError::DoesNotFit),
        (created("b2", &spec, &[]), GuardError::DoesNotFit),
        (created("b2", &spec, &["n9"]), GuardError::NodeUnknown),
        (created("b2", &bad, &["n2"]), GuardError::Limit),
        (
            Decision::BookingDeleted { request: key, by: by.clone(), name: name("b9") },
            GuardError::NothingToDo,
        ),
        (Decision::BookingOpened { name: name("b9") }, GuardError::NothingToDo),
        (Decision::BookingEnded { name: b1(), cause: BookingEnd::OwnerGone }, GuardError::NothingToDo),
        (Decision::BookingMoved { name: b1(), nodes: vec![name("n1")] }, GuardError::NothingToDo),
        (Decision::BookingMoved { name: b1(), nodes: vec![name("n2"), name("n3")] }, GuardError::DoesNotFit),
    ];
    for (decision, expected) in cases {
        assert_eq!(state.check(&decision), Err(expected), "{decision:?}");
    }
}

/// One random world: jobs of three tenants, some of which name bookings; nodes that are lost and come back; bookings of every kind.
struct World {
    random: Random,
    speculation: Speculation,
    replica: State,
    requests: u128,
    now: LogTime,
    /// How often each kind of decision was made, and `named`: placements of jobs that name a booking.
    made: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let (speculation, replica) = fleet();
        let now = speculation.now();
        World { random: Random::new(seed), speculation, replica, requests: 0, now, made: BTreeMap::new() }
    }

    fn request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..5 => self.submit(),
            5..8 => self.book(),
            8 => self.lose(),
            9 => self.come_back(),
            10..13 => self.report(),
            13..17 => {
                schedule(&mut self.speculation, &mut Budget::new(100_000));
            }
            17 => {
                let request = 1 << 90 | u128::from(self.random.next());
                let all = ["vision", "video", "speech"];
                let listed = if self.random.once_in(4) { &all[..1] } else { &all[..] };
                set_policy(&mut self.speculation, request, listed);
            }
            _ => {
                let ahead = 10_000 + self.random.below(HOUR_MS);
                self.now = self.now.plus_ms(ahead);
                self.take();
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
            let promised: Vec<(JobId, Vec<NodeId>)> = match decision {
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
            for (job, nodes) in promised {
                check_place(&before, job, &nodes);
                if before.spec(job).is_some_and(|spec| spec.booking.is_some()) {
                    *self.made.entry("named").or_default() += 1;
                }
            }
            let one = Round { decisions: vec![decision.clone()], ..alone(&round, ordinal) };
            before.apply_round(&one);
            check_kept(&before);
        }
        assert_eq!(before.rows_digest(), self.replica.rows_digest(), "one by one is the same");
    }

    /// Behind a tick nothing runs that had to go.
    fn check_cleared(&self) {
        let state = &self.replica;
        for (name, booking) in state.bookings().filter(|(_, booking)| booking.is_open) {
            assert!(booking.current().until > self.now, "{name} is over, and open");
            if !booking.spec.clearing.stops_others() {
                continue;
            }
            for node in booking.nodes.iter().filter_map(|node| state.node_named(node)) {
                for job in state.gangs_on(node) {
                    let (row, spec) = (state.job(job).unwrap(), state.spec(job).unwrap());
                    let is_own = booking.spec.admits(&state.policy().policy, name, spec);
                    let stops = matches!(row.phase, Phase::Stopping(_));
                    assert!(is_own || stops, "{job} runs on {node} during {name}");
                }
            }
        }
        for (name, booking) in state.bookings() {
            let owner = booking.spec.tenant.as_ref().expect("it is of a tenant");
            assert!(state.policy().policy.tenants.contains_key(owner), "{name} has no owner");
        }
    }

    fn submit(&mut self) {
        let tenant = ["vision", "video", "speech"][self.random.below(3) as usize];
        let workers = 1 + self.random.below(2) as u32;
        let mut draft = job_draft("work", vec![group("main", workers, Some(accelerators("h100", 8)))]);
        draft.tenant = name(tenant);
        draft.expected_run_ms = Some(60_000 + self.random.below(4 * HOUR_MS));
        draft.run_time_limit_ms = self.random.once_in(2).then(|| 60_000 + self.random.below(4 * HOUR_MS));
        draft.booking = self.random.once_in(3).then(|| self.some_name());
        let job = draft.check().expect("a job");
        let request = self.request();
        // It may name a booking that is not there, or is not for it.
        let _ = handle(&mut self.speculation, &Command::submit(request, Submission::plain([job])));
    }

    fn some_name(&mut self) -> Name {
        name(["b1", "b2", "b3"][self.random.below(3) as usize])
    }

    fn book(&mut self) {
        let (request, name) = (self.request(), self.some_name());
        let by = Requester::default();
        if self.speculation.state().booking(&name).is_some() {
            if self.random.once_in(6) {
                let delete = Command::DeleteBooking { request, by, acts_for: None, name };
                handle(&mut self.speculation, &delete).expect("it is there");
            }
            return;
        }
        let mut order = order(&self.speculation, self.requests);
        let windows = 1 + self.random.below(3) as u16;
        let start = self.now.plus_ms(self.random.below(3 * HOUR_MS));
        let length_ms = 60_000 + self.random.below(6 * HOUR_MS);
        order.spec.times = BookingTimes::once(start, length_ms).every(1, windows);
        let tenant = ["vision", "video", "speech"][self.random.below(3) as usize];
        order.spec.tenant = Some(Name::literal(tenant));
        order.spec.is_shared = self.random.once_in(2);
        order.spec.notice_ms = self.random.below(2 * HOUR_MS);
        order.spec.clearing = BookingClearing::ALL[self.random.below(3) as usize];
        order.spec.shape = match self.random.below(3) {
            0 => BookingShape::Nodes(vec![Name::literal("n1"), Name::literal("n3")]),
            _ => hosts(1 + self.random.below(3) as u32),
        };
        order.request = request;
        order.name = name;
        // Others may have the nodes then, or its tenant may not be listed.
        let _ = create(&mut self.speculation, order);
    }

    fn lose(&mut self) {
        let node = NodeId(self.random.below(4) as u32);
        let incarnation = self.speculation.state().node(node).map_or(0, |row| row.incarnation);
        let lost = Command::SessionOver { node, incarnation };
        handle(&mut self.speculation, &lost).expect("never refused");
    }

    fn come_back(&mut self) {
        let text = ["n1", "n2", "n3", "n4"][self.random.below(4) as usize];
        let spec = node_spec(text, "eu", "c1", Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: true };
        let _ = handle(&mut self.speculation, &command);
    }

    /// Gangs start, end, or have stopped.
    fn report(&mut self) {
        let active: Vec<JobId> = self.speculation.state().active().collect();
        let Some(job) = self.random.pick(&active) else { return };
        let row = self.speculation.state().job(job).unwrap().clone();
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

/// A round with the place of one of its records.
fn alone(round: &Round, ordinal: usize) -> Round {
    let first_index = muster_types::LogIndex(round.first_index.0 + ordinal as u64);
    Round { first_index, decisions: Vec::new(), ..round.clone() }
}

/// No open booking keeps the job from a node that it gets, and one that it names has them all.
fn check_place(state: &State, job: JobId, nodes: &[NodeId]) {
    let spec = state.spec(job).expect("it is known");
    for node in nodes {
        let node = &state.node(*node).expect("it is known").spec.name;
        if let Some((booking, _)) = state.booked_against(spec, node) {
            panic!("{job} is placed on {node} during {booking}");
        }
        if let Some(named) = &spec.booking {
            let booking = state.booking(named).expect("it is there");
            assert!(booking.is_open && booking.has_node(node), "{job} is on {node}, which {named} has not");
        }
    }
}

/// No two bookings have a node at the same time, and none has more than was asked for.
fn check_kept(state: &State) {
    for (name, booking) in state.bookings() {
        let other = state.overlapping_booking(name, &booking.left(), &booking.nodes);
        assert_eq!(other, None, "{name} overlaps");
        assert!(booking.nodes.len() <= booking.spec.shape.nodes_max(), "{name} has more than was asked for");
    }
}

#[test]
fn bookings_keep_what_they_promise_in_every_world() {
    let mut made: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..250 {
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
    let kinds =
        ["booking_created", "booking_deleted", "booking_opened", "booking_ended", "booking_moved", "named"];
    for kind in kinds {
        assert!(made.contains_key(kind), "{kind} never came about: {made:?}");
    }
}

#[test]
fn a_lost_node_is_replaced_and_a_deleted_owner_frees_the_nodes() {
    let (mut speculation, mut replica) = fleet();
    let mut made = order(&speculation, 1);
    made.spec.shape = hosts(2);
    create(&mut speculation, made).expect("it fits");
    let nodes = |state: &State| state.booking(&name("b1")).map(|booking| booking.nodes.clone());
    assert_eq!(nodes(speculation.state()), Some(vec![name("n1"), name("n2")]));
    let lost = speculation.state().node_named(&name("n1")).expect("it is there");
    handle(&mut speculation, &Command::SessionOver { node: lost, incarnation: 1 }).expect("never refused");
    let later = speculation.now().plus_ms(10_000);
    at((&mut speculation, &mut replica), later);
    assert_eq!(nodes(speculation.state()), Some(vec![name("n2"), name("n3")]));
    set_policy(&mut speculation, 1 << 101, &["speech"]);
    at((&mut speculation, &mut replica), later);
    assert_eq!(nodes(speculation.state()), None);
    commit(&mut speculation, &mut replica);
}
