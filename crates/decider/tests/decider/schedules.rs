//! Schedules: one job for each moment, whatever leaders do; rules about overlaps; and rights that are looked at each time.

use std::collections::BTreeSet;

use muster_decider::{
    Answer, Command, ScheduleAction, ScheduleControl, ScheduleOrder, Speculation, TokenOrder, handle,
};
use muster_journal::Decision;
use muster_state::{GuardError, ScheduleRow, State};
use muster_types::policy::{OwnRole, PolicyDraft, TenantPolicy, Verb};
use muster_types::{
    CertificateSerial, JobId, LogIndex, LogTime, Name, NextRun, OverlapRule, OwnerRole, Refusal, RefusalCode,
    Requester, Revocation, Schedule, ScheduleKey, ScheduleRun, ScheduleTemplate, Submission, TokenGrant,
    TokenId, TokenRole, limits,
};

use crate::random::Random;
use crate::support::{BOOTSTRAP, commit, founded_as, holder, job, leadership, name, node_spec, request};

const MINUTE_MS: u64 = 60_000;
const TENANT: &str = "research";

fn set_policy(speculation: &mut Speculation, n: u128, tenants: &[&str]) {
    let mut draft = PolicyDraft::default();
    for tenant in tenants {
        draft.tenants.insert(name(tenant), TenantPolicy::default());
    }
    let policy = Box::new(draft.check().unwrap());
    let by = Requester::default();
    let command = Command::SetPolicy { request: request(n), by, policy, expected_version: None };
    handle(speculation, &command).unwrap();
}

/// A host without devices, and a policy with the tenant.
fn cluster() -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    let spec = node_spec("n0", "eu", "c1", None);
    let register = Command::Register { spec, holder: holder(1), other_session_is_over: false };
    handle(&mut speculation, &register).unwrap();
    set_policy(&mut speculation, 1_000_000, &[TENANT]);
    commit(&mut speculation, &mut state);
    (speculation, state)
}

fn key(text: &str) -> ScheduleKey {
    ScheduleKey { tenant: name(TENANT), name: name(text) }
}

fn order(n: u128, text: &str, overlap: OverlapRule) -> ScheduleOrder {
    let template = ScheduleTemplate::of(Submission::from(job("nightly", 1, None))).unwrap();
    ScheduleOrder {
        request: request(n),
        by: Requester::named("tenant/research/ada".into(), false),
        acts_for: Some(name(TENANT)),
        role: None,
        schedule: Schedule {
            key: key(text),
            cron: "* * * * *".parse().unwrap(),
            zone: "UTC".into(),
            template,
            overlap,
            starting_deadline_ms: 2 * MINUTE_MS,
            runs_max: 3,
        },
        is_new: true,
    }
}

fn set(speculation: &mut Speculation, order: ScheduleOrder) -> Result<Answer, Refusal> {
    handle(speculation, &Command::SetSchedule(Box::new(order)))
}

fn control(speculation: &mut Speculation, n: u128, action: ScheduleAction) -> Result<Answer, Refusal> {
    let order = ScheduleControl {
        request: request(n),
        by: Requester::default(),
        acts_for: Some(name(TENANT)),
        schedule: key("nightly"),
        action,
    };
    handle(speculation, &Command::ControlSchedule(Box::new(order)))
}

/// What a leader that knows the calendar asks for now; every minute is a moment.
fn due(state: &State, now: LogTime) -> Vec<Command> {
    let next = Some(LogTime((now.0 / MINUTE_MS + 1) * MINUTE_MS));
    let of = |(key, row): (&ScheduleKey, &ScheduleRow)| {
        let (schedule, set_index) = (key.clone(), row.set_index);
        match row.next {
            _ if row.suspension.is_some() => None,
            NextRun::Unknown => Some(Command::PlanSchedule { schedule, set_index, next }),
            NextRun::At(first) if first <= now => {
                let due = LogTime(now.0 / MINUTE_MS * MINUTE_MS);
                Some(Command::FireSchedule { schedule, set_index, due, next })
            }
            NextRun::At(_) => None,
        }
    };
    state.schedules().filter_map(of).collect()
}

fn carry_out(speculation: &mut Speculation) {
    for command in due(speculation.state(), speculation.now()) {
        handle(speculation, &command).unwrap();
    }
}

fn row(speculation: &Speculation) -> &ScheduleRow {
    speculation.state().schedule(&key("nightly")).unwrap()
}

fn runs(speculation: &Speculation) -> Vec<ScheduleRun> {
    row(speculation).runs.iter().map(|run| run.run.clone()).collect()
}

/// The round ends, and the next one is that much later.
fn pass_minutes((speculation, state): (&mut Speculation, &mut State), minutes: u64) {
    commit(speculation, state);
    speculation.set_now(speculation.now().plus_ms(minutes * MINUTE_MS));
}

fn code(answer: Result<Answer, Refusal>) -> Option<RefusalCode> {
    answer.err().map(|refusal| refusal.code)
}

#[test]
fn a_moment_makes_a_job_of_its_owner_with_the_name_of_the_schedule() {
    let (mut speculation, mut state) = cluster();
    let made = order(1, "nightly", OverlapRule::Forbid);
    let at = set(&mut speculation, made.clone()).unwrap();
    assert_eq!(set(&mut speculation, made.clone()).unwrap(), at, "repeating it changes nothing");
    let again = ScheduleOrder { request: request(2), ..made };
    assert_eq!(code(set(&mut speculation, again)), Some(RefusalCode::ScheduleExists));
    carry_out(&mut speculation);
    assert!(matches!(row(&speculation).next, NextRun::At(_)) && runs(&speculation).is_empty());
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    let [ScheduleRun::Submitted(made)] = runs(&speculation)[..] else { panic!("{:?}", runs(&speculation)) };
    let metadata = speculation.state().carried(made).unwrap();
    assert_eq!(metadata.creator(), "tenant/research/ada");
    assert_eq!(metadata.labels.get("schedule").map(String::as_str), Some("nightly"));
    // The job waits: no other may be made next to it.
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert!(matches!(&runs(&speculation)[1], ScheduleRun::Skipped(why) if why.contains("is not over")));
    assert_eq!(code(control(&mut speculation, 3, ScheduleAction::Run)), Some(RefusalCode::ScheduleBusy));
    handle(&mut speculation, &Command::cancel(request(4), made)).unwrap();
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert!(matches!(runs(&speculation)[2], ScheduleRun::Submitted(_)));
    commit(&mut speculation, &mut state);
    assert_eq!(state.schedule(&key("nightly")), Some(row(&speculation)));
}

#[test]
fn of_several_that_were_missed_the_last_is_made_if_it_is_not_too_late() {
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 500);
    carry_out(&mut speculation);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1);
    // A leader that finds an earlier moment: three minutes ago, where two may be.
    let NextRun::At(next) = row(&speculation).next else { panic!("it has a next moment") };
    pass_minutes((&mut speculation, &mut state), 4);
    let (schedule, set_index) = (key("nightly"), row(&speculation).set_index);
    let now = speculation.now();
    let fire = Command::FireSchedule { schedule, set_index, due: next, next: Some(now.plus_ms(1)) };
    handle(&mut speculation, &fire).unwrap();
    assert!(matches!(&runs(&speculation)[1], ScheduleRun::Skipped(why) if why.contains("late")));
    let at = speculation.last_index();
    assert_eq!(handle(&mut speculation, &fire).unwrap(), Answer::Done { at }, "it waits for another moment");
}

#[test]
fn one_that_replaces_waits_for_those_that_it_ends() {
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Replace)).unwrap();
    carry_out(&mut speculation);
    for _ in 0..3 {
        pass_minutes((&mut speculation, &mut state), 1);
        carry_out(&mut speculation);
        commit(&mut speculation, &mut state);
        assert_eq!(state.unfinished_of(row(&speculation)).len(), 1, "those before were cancelled");
    }
    assert_eq!(row(&speculation).submitted, 3);
}

#[test]
fn a_suspended_one_makes_no_jobs_and_goes_on_from_its_next_moment() {
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
    carry_out(&mut speculation);
    let suspend = ScheduleAction::Suspend { reason: "the data set moves".into() };
    control(&mut speculation, 2, suspend).unwrap();
    for _ in 0..3 {
        pass_minutes((&mut speculation, &mut state), 1);
        carry_out(&mut speculation);
    }
    assert_eq!(row(&speculation).submitted, 0);
    // Somebody may still ask for one.
    let answer = control(&mut speculation, 3, ScheduleAction::Run).unwrap();
    assert_eq!(control(&mut speculation, 3, ScheduleAction::Run).unwrap(), answer, "once");
    assert_eq!((row(&speculation).submitted, row(&speculation).runs.len()), (1, 1));
    control(&mut speculation, 4, ScheduleAction::Resume).unwrap();
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1, "what was missed meanwhile is not made");
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 2);
    control(&mut speculation, 5, ScheduleAction::Delete).unwrap();
    assert_eq!(
        code(control(&mut speculation, 6, ScheduleAction::Delete)),
        Some(RefusalCode::ScheduleNotFound)
    );
    assert!(due(speculation.state(), speculation.now()).is_empty());
}

#[test]
fn what_an_operator_has_suspended_only_an_operator_resumes() {
    let (mut speculation, _) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
    let asked = |n: u128, is_operator: bool, action: ScheduleAction| {
        let by = Requester {
            name: if is_operator { "admin/ops" } else { "tenant/research/ada" }.into(),
            is_operator,
            address: None,
            role: None,
        };
        let (request, schedule) = (request(n), key("nightly"));
        let order = ScheduleControl { request, by, acts_for: None, schedule, action };
        Command::ControlSchedule(Box::new(order))
    };
    let suspend = |reason: &str| ScheduleAction::Suspend { reason: reason.into() };
    handle(&mut speculation, &asked(2, false, suspend("ours"))).unwrap();
    handle(&mut speculation, &asked(3, true, suspend("theirs"))).unwrap();
    handle(&mut speculation, &asked(4, false, suspend("ours"))).unwrap();
    let reason = |speculation: &Speculation| {
        row(speculation).suspension.as_ref().map(|suspension| suspension.reason.clone())
    };
    assert_eq!(reason(&speculation).as_deref(), Some("theirs"));
    let refused = handle(&mut speculation, &asked(5, false, ScheduleAction::Resume));
    assert_eq!(code(refused), Some(RefusalCode::PermissionDenied));
    // Who sets it again does not resume it.
    let changed = ScheduleOrder { is_new: false, ..order(6, "nightly", OverlapRule::Forbid) };
    set(&mut speculation, changed).unwrap();
    assert_eq!(reason(&speculation).as_deref(), Some("theirs"));
    handle(&mut speculation, &asked(7, true, ScheduleAction::Resume)).unwrap();
    assert_eq!(reason(&speculation), None);
}

/// The state is the same from wherever and with whichever role it was asked; the log has both.
#[test]
fn from_where_somebody_called_is_in_the_log_alone() {
    let of = |address: Option<[u8; 4]>| {
        let (mut speculation, mut state) = cluster();
        let by = |is_operator: bool| Requester {
            name: if is_operator { "admin/ops" } else { "tenant/research/ada" }.into(),
            is_operator,
            address: address.map(Into::into),
            role: address.map(|_| name("on-call")),
        };
        set(&mut speculation, ScheduleOrder { by: by(false), ..order(1, "nightly", OverlapRule::Allow) })
            .unwrap();
        let suspend = ScheduleControl {
            request: request(2),
            by: by(true),
            acts_for: None,
            schedule: key("nightly"),
            action: ScheduleAction::Suspend { reason: "the data moves".into() },
        };
        handle(&mut speculation, &Command::ControlSchedule(Box::new(suspend))).unwrap();
        let round = commit(&mut speculation, &mut state).unwrap();
        let asked = round.decisions.iter().filter_map(Decision::requester);
        let addresses: Vec<bool> = asked.map(|by| by.address.is_some() && by.role.is_some()).collect();
        (addresses, row(&speculation).clone(), state.rows_digest())
    };
    let (known, unknown) = (of(Some([192, 0, 2, 7])), of(None));
    assert_eq!(known.0, [true, true]);
    assert_eq!(unknown.0, [false, false]);
    assert_eq!((known.1.by.address, &known.1.by.role, &known.1), (None, &None, &unknown.1));
    assert_eq!(known.2, unknown.2);
}

#[test]
fn rights_are_looked_at_when_a_moment_comes() {
    let (mut speculation, mut state) = cluster();
    let create = TokenOrder {
        request: request(50),
        by: Requester::default(),
        acts_for: None,
        token: TokenId(7),
        grant: TokenGrant {
            name: name("ci"),
            user: name("ada"),
            role: TokenRole::Submitter,
            tenant: Some(name(TENANT)),
            secret_sha256: [7; 32],
            own_role: None,
        },
        lifetime_ms: 24 * 3_600_000,
    };
    handle(&mut speculation, &Command::CreateToken(Box::new(create))).unwrap();
    let mut by_token = order(1, "nightly", OverlapRule::Allow);
    by_token.by.name = format!("tenant/research/ada+token/{}", TokenId(7));
    set(&mut speculation, by_token).unwrap();
    set(&mut speculation, order(2, "hourly", OverlapRule::Allow)).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1);
    let revoke = Command::RevokeToken {
        request: request(51),
        by: Requester::default(),
        acts_for: None,
        token: TokenId(7),
    };
    handle(&mut speculation, &revoke).unwrap();
    // At once, and not only when its next moment comes.
    assert!(row(&speculation).suspension.is_some());
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1);
    let reason = |speculation: &Speculation, text: &str| {
        let row = speculation.state().schedule(&key(text)).unwrap();
        row.suspension.as_ref().map(|suspension| suspension.reason.clone()).unwrap_or_default()
    };
    assert!(reason(&speculation, "nightly").contains("revoked"));
    assert_eq!(reason(&speculation, "hourly"), "");
    set_policy(&mut speculation, 52, &["speech"]);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert!(reason(&speculation, "hourly").contains("does not list tenant research"));
}

#[test]
fn a_role_of_the_policy_that_submits_no_more_suspends_what_a_person_with_it_has_set() {
    let (mut speculation, mut state) = cluster();
    set_role(&mut speculation, 60, &[Verb::Read, Verb::Submit]);
    let mut signed_in = order(1, "nightly", OverlapRule::Allow);
    signed_in.by.name = "tenant/research/ada+oidc/corp".into();
    signed_in.role = Some(OwnerRole { name: name("ci"), part_of: TokenRole::Submitter });
    set(&mut speculation, signed_in).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1);
    // With the verb gone, and with the whole role.
    for (n, take_away) in [(61, true), (63, false)] {
        if take_away {
            set_role(&mut speculation, n, &[Verb::Read]);
        } else {
            set_policy(&mut speculation, n, &[TENANT]);
        }
        pass_minutes((&mut speculation, &mut state), 1);
        carry_out(&mut speculation);
        let suspension = row(&speculation).suspension.as_ref().expect("it is suspended");
        assert!(suspension.reason.contains("role ci of its owner lacks the verb submit"), "{suspension:?}");
        assert_eq!(row(&speculation).submitted, 1);
        control(&mut speculation, n + 1, ScheduleAction::Resume).unwrap();
        carry_out(&mut speculation);
    }
}

#[test]
fn a_certificate_that_is_revoked_suspends_what_its_holder_has_set() {
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
    let mut of_bob = order(2, "hourly", OverlapRule::Allow);
    of_bob.by.name = "tenant/research/bob".into();
    set(&mut speculation, of_bob).unwrap();
    let mut by_token = order(3, "by-token", OverlapRule::Allow);
    by_token.by.name = "tenant/research/ada+oidc/corp".into();
    set(&mut speculation, by_token).unwrap();
    carry_out(&mut speculation);
    let revoke = |n, serial: u8, holder: &str| Command::RevokeCertificate {
        request: request(n),
        by: Requester::named("admin/root".into(), true),
        serial: CertificateSerial::from_bytes(&[serial; 20]).unwrap(),
        revocation: Revocation { holder: holder.into(), until: LogTime(u64::MAX) },
    };
    let suspended = |speculation: &Speculation| -> Vec<String> {
        let rows = speculation.state().schedules().filter(|(_, row)| row.suspension.is_some());
        rows.map(|(key, _)| key.name.to_string()).collect()
    };
    // Nobody is named by the serial alone.
    handle(&mut speculation, &revoke(50, 6, "")).unwrap();
    assert!(suspended(&speculation).is_empty());
    handle(&mut speculation, &revoke(51, 7, "tenant/research/ada")).unwrap();
    assert_eq!(suspended(&speculation), ["nightly"]);
    let reason = row(&speculation).suspension.as_ref().unwrap().reason.clone();
    assert!(reason.contains("of tenant/research/ada, its owner, was revoked"), "{reason}");
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 0);
    // An operator takes it over; what was revoked earlier was another's.
    let mut taken = ScheduleOrder { is_new: false, ..order(60, "nightly", OverlapRule::Allow) };
    taken.by = Requester::named("admin/root".into(), true);
    taken.acts_for = None;
    set(&mut speculation, taken).unwrap();
    control(&mut speculation, 61, ScheduleAction::Resume).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!((row(&speculation).submitted, row(&speculation).by.name.as_str()), (1, "admin/root"));
}

/// A policy with the tenant, and a role `ci` with these verbs.
fn set_role(speculation: &mut Speculation, n: u128, verbs: &[Verb]) {
    let mut draft = PolicyDraft::clone(&speculation.state().policy().policy);
    let (part_of, verbs) = (TokenRole::Submitter, verbs.iter().copied().collect());
    draft.roles.insert(name("ci"), OwnRole { part_of, verbs, regions: BTreeSet::new() });
    let policy = Box::new(draft.check().unwrap());
    let by = Requester::default();
    let command = Command::SetPolicy { request: request(n), by, policy, expected_version: None };
    handle(speculation, &command).unwrap();
}

#[test]
fn a_role_of_the_policy_that_submits_no_more_suspends_what_its_token_has_set() {
    let (mut speculation, mut state) = cluster();
    set_role(&mut speculation, 60, &[Verb::Read, Verb::Submit]);
    let create = TokenOrder {
        request: request(61),
        by: Requester::default(),
        acts_for: None,
        token: TokenId(7),
        grant: TokenGrant {
            name: name("ci"),
            user: name("ada"),
            role: TokenRole::Submitter,
            tenant: Some(name(TENANT)),
            secret_sha256: [7; 32],
            own_role: Some(name("ci")),
        },
        lifetime_ms: 24 * 3_600_000,
    };
    handle(&mut speculation, &Command::CreateToken(Box::new(create))).unwrap();
    let mut by_token = order(1, "nightly", OverlapRule::Allow);
    by_token.by.name = format!("tenant/research/ada+token/{}", TokenId(7));
    set(&mut speculation, by_token).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    assert_eq!(row(&speculation).submitted, 1);
    set_role(&mut speculation, 62, &[Verb::Read, Verb::Cancel]);
    pass_minutes((&mut speculation, &mut state), 1);
    carry_out(&mut speculation);
    let suspension = row(&speculation).suspension.as_ref().expect("it is suspended");
    assert_eq!(suspension.reason, "role ci of its owner lacks the verb submit");
    assert_eq!(row(&speculation).submitted, 1);
}

#[test]
fn what_is_refused_changes_nothing() {
    let (mut speculation, mut state) = cluster();
    commit(&mut speculation, &mut state);
    let before = speculation.last_index();
    let good = || order(1, "nightly", OverlapRule::Allow);
    let mut bad: Vec<(ScheduleOrder, RefusalCode)> = Vec::new();
    let mut zone = good();
    zone.schedule.zone = "Europe Berlin".into();
    bad.push((zone, RefusalCode::InvalidField));
    let mut late = good();
    late.schedule.starting_deadline_ms = 0;
    bad.push((late, RefusalCode::InvalidField));
    let mut many = good();
    many.schedule.runs_max = limits::SCHEDULE_RUNS_MAX + 1;
    bad.push((many, RefusalCode::InvalidField));
    let mut other = good();
    other.acts_for = Some(name("speech"));
    bad.push((other, RefusalCode::PermissionDenied));
    bad.push((ScheduleOrder { is_new: false, ..good() }, RefusalCode::ScheduleNotFound));
    let mut never = good();
    let large = job("nightly", 1, Some(crate::support::accelerators("h100", 8)));
    never.schedule.template = ScheduleTemplate::of(Submission::from(large)).unwrap();
    bad.push((never, RefusalCode::NeverFits));
    for (order, expected) in bad {
        assert_eq!(code(set(&mut speculation, order)), Some(expected));
    }
    assert_eq!(code(control(&mut speculation, 9, ScheduleAction::Run)), Some(RefusalCode::ScheduleNotFound));
    assert_eq!(speculation.last_index(), before);
    // And what no leader would record.
    let schedule = key("nightly");
    let planned = Decision::SchedulePlanned { schedule: schedule.clone(), next: LogTime(1) };
    assert_eq!(speculation.state().check(&planned), Err(GuardError::ScheduleUnknown));
    set(&mut speculation, good()).unwrap();
    carry_out(&mut speculation);
    let NextRun::At(next) = row(&speculation).next else { panic!("it is planned") };
    let ran = |due, next| {
        let run = ScheduleRun::Skipped("why".into());
        Decision::ScheduleRan { schedule: schedule.clone(), due, next, run }
    };
    let check = |decision: &Decision| speculation.state().check(decision);
    assert_eq!(check(&planned), Err(GuardError::ScheduleNotDue));
    assert_eq!(check(&ran(Some(next.minus_ms(1)), None)), Err(GuardError::ScheduleNotDue));
    assert_eq!(check(&ran(Some(next), Some(next))), Err(GuardError::ScheduleNotDue));
    assert_eq!(check(&ran(None, Some(next))), Err(GuardError::ScheduleNotDue));
    assert_eq!(check(&ran(Some(next), Some(next.plus_ms(1)))), Ok(()));
}

#[test]
fn the_request_id_of_a_run_depends_on_the_whole_state() {
    let id_of_run = |has_other: bool| {
        let (mut speculation, mut state) = cluster();
        set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
        carry_out(&mut speculation);
        if has_other {
            let other = Submission::from(job("other", 1, None));
            handle(&mut speculation, &Command::submit(request(70), [other].into())).unwrap();
        }
        pass_minutes((&mut speculation, &mut state), 1);
        carry_out(&mut speculation);
        let round = commit(&mut speculation, &mut state).expect("there is a round");
        let submitted = round.decisions.iter().find_map(|decision| match decision {
            Decision::JobsSubmitted { request, .. } => Some(request.id),
            _ => None,
        });
        submitted.expect("the moment has a job")
    };
    assert_eq!(id_of_run(false), id_of_run(false));
    assert_ne!(id_of_run(false), id_of_run(true), "who knows schedule and moment does not know the id");
}

#[test]
fn schedules_of_a_tenant_are_bounded() {
    let (mut speculation, _) = cluster();
    for n in 0..limits::TENANT_SCHEDULES_MAX as u128 {
        let mut order = order(n + 1, &format!("s{n}"), OverlapRule::Allow);
        order.by.is_operator = true;
        set(&mut speculation, order).unwrap();
    }
    let more = order(9_999, "more", OverlapRule::Allow);
    assert_eq!(code(set(&mut speculation, more)), Some(RefusalCode::StateFull));
}

/// What a run of one schedule came to: its moments with what became of each, and the digest at the end.
fn world(seed: u64, overlap: OverlapRule) -> (Vec<(LogTime, ScheduleRun)>, u64) {
    let mut random = Random::new(seed);
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", overlap)).unwrap();
    let mut records = Vec::new();
    let (mut requests, mut term) = (100u128, 1u64);
    let mut stale: Vec<Command> = Vec::new();
    for _ in 0..120 {
        match random.below(6) {
            0 => speculation.set_now(speculation.now().plus_ms(random.below(6 * MINUTE_MS))),
            1 => speculation.set_now(speculation.now().plus_ms(random.below(20_000))),
            // Another leader goes on with what was committed; what the one before decided since is lost.
            2 => {
                term += 1;
                let now = speculation.now();
                speculation = Speculation::begin(state.clone(), leadership(term, 1), now, BOOTSTRAP);
            }
            // What was decided is decided again, by a leader that has not heard of it.
            3 => {
                for command in &stale {
                    handle(&mut speculation, command).unwrap();
                }
            }
            4 => {
                let jobs = state.schedule(&key("nightly")).map(|row| row.jobs.clone()).unwrap_or_default();
                if let Some(job) = random.pick(&jobs) {
                    requests += 1;
                    // It may be over.
                    let _ = handle(&mut speculation, &Command::cancel(request(requests), job));
                }
            }
            _ => {
                stale = due(speculation.state(), speculation.now());
                carry_out(&mut speculation);
            }
        }
        if random.once_in(2)
            && let Some(round) = commit(&mut speculation, &mut state)
        {
            let ran = |decision: Decision| match decision {
                Decision::ScheduleRan { due: Some(due), run, .. } => Some((due, run, round.log_time)),
                _ => None,
            };
            let in_time = |(due, run, at): (LogTime, ScheduleRun, LogTime)| {
                let is_made = matches!(run, ScheduleRun::Submitted(_));
                assert!(!is_made || at.since_ms(due) <= 2 * MINUTE_MS, "seed {seed}: made too late");
                (due, run)
            };
            records.extend(round.decisions.clone().into_iter().filter_map(ran).map(in_time));
        }
        if let (OverlapRule::Forbid, Some(row)) = (overlap, state.schedule(&key("nightly"))) {
            assert!(state.unfinished_of(row).len() <= 1, "seed {seed}: two at a time");
        }
    }
    (records, state.rows_digest())
}

#[test]
fn each_moment_has_at_most_one_job_whatever_leaders_do_and_the_same_inputs_give_the_same() {
    for seed in 0..60 {
        for overlap in OverlapRule::ALL {
            let (records, digest) = world(seed, overlap);
            let moments: BTreeSet<LogTime> = records.iter().map(|(due, _)| *due).collect();
            assert_eq!(moments.len(), records.len(), "seed {seed}: a moment was taken twice");
            let jobs: Vec<JobId> = records
                .iter()
                .filter_map(|(_, run)| match run {
                    ScheduleRun::Submitted(job) => Some(*job),
                    ScheduleRun::Skipped(_) => None,
                })
                .collect();
            assert_eq!(jobs.iter().collect::<BTreeSet<_>>().len(), jobs.len());
            assert_eq!(world(seed, overlap), (records, digest), "seed {seed}");
        }
    }
}

#[test]
fn a_moment_of_a_schedule_that_was_set_again_is_nothing() {
    let (mut speculation, mut state) = cluster();
    set(&mut speculation, order(1, "nightly", OverlapRule::Allow)).unwrap();
    carry_out(&mut speculation);
    pass_minutes((&mut speculation, &mut state), 1);
    let before: Vec<Command> = due(speculation.state(), speculation.now());
    let index: LogIndex = row(&speculation).set_index;
    let changed = ScheduleOrder { is_new: false, ..order(2, "nightly", OverlapRule::Forbid) };
    set(&mut speculation, changed).unwrap();
    assert!(row(&speculation).set_index > index && row(&speculation).next == NextRun::Unknown);
    for command in &before {
        handle(&mut speculation, command).unwrap();
    }
    assert_eq!((row(&speculation).submitted, row(&speculation).next), (0, NextRun::Unknown));
    let other: Name = name("speech");
    let stranger =
        ScheduleOrder { acts_for: Some(other), is_new: false, ..order(3, "nightly", OverlapRule::Allow) };
    assert_eq!(code(set(&mut speculation, stranger)), Some(RefusalCode::ScheduleNotFound));
}
