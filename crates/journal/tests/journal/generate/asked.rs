//! What people ask for: bookings, roles, tokens, quota and schedules.

use super::*;

/// What concerns bookings; each strategy here is one variant.
pub(super) fn bookings() -> impl Strategy<Value = Decision> {
    let asked = requester;
    let names = || vec(name(), 0..4);
    let amount = prop_oneof![
        any::<u32>().prop_map(BookingAmount::Hosts),
        any::<u32>().prop_map(BookingAmount::Devices)
    ];
    let labels = btree_map(name(), "[ -~é]{0,8}", 0..3);
    let place = (option::of(name()), option::of(name()), option::of(name()));
    let chosen = (amount, place, labels).prop_map(|(amount, (kind, region, cluster), labels)| {
        BookingShape::Chosen { amount, kind, region, cluster, labels }
    });
    let part = (option::of(name()), option::of(name()))
        .prop_map(|(region, cluster)| BookingShape::Part(FleetPart { region, cluster }));
    let shape = prop_oneof![names().prop_map(BookingShape::Nodes), chosen, part];
    let rule = (prop::sample::select(vec!["daily", "mon-fri", "sat,sun"]), any::<u16>(), "[A-Za-z/]{1,20}");
    let rule = rule.prop_map(|(days, minute, zone)| BookingRule {
        weekdays: days.parse().expect("days of the week"),
        minute,
        zone,
    });
    let listed = (rule, prop::collection::vec(any::<u32>(), 0..4))
        .prop_map(|(rule, start_minutes)| Box::new(ListedWindows { rule, start_minutes }));
    let times = (any::<u64>(), any::<u64>(), any::<u16>(), any::<u16>(), option::of(listed)).prop_map(
        |(start, length_ms, every_days, windows, listed)| BookingTimes {
            start: LogTime(start),
            length_ms,
            every_days,
            windows,
            listed,
        },
    );
    let whose = (option::of(name()), option::of("[a-z/]{1,9}"), names(), any::<bool>());
    let clearing = prop::sample::select(BookingClearing::ALL.to_vec());
    let spec = (whose, shape, times, any::<u64>(), clearing, "[ -~]{0,20}").prop_map(
        |((tenant, user, jobs, is_shared), shape, times, notice_ms, clearing, reason)| BookingSpec {
            tenant,
            user,
            jobs,
            is_shared,
            shape,
            times,
            notice_ms,
            clearing,
            reason,
        },
    );
    let place = || (option::of(name()), option::of(name()));
    let part = || place().prop_map(|(region, cluster)| FleetPart { region, cluster });
    let target = || prop_oneof![part().prop_map(HoldTarget::Part), name().prop_map(HoldTarget::Tenant)];
    let until = option::of(any::<u64>().prop_map(LogTime));
    let hold = ("[ -~]{0,20}", until, any::<bool>())
        .prop_map(|(reason, until, stops_work)| Box::new(FleetHold { reason, until, stops_work }));
    let cause = prop::sample::select(vec![BookingEnd::WindowOver, BookingEnd::OwnerGone]);
    prop_oneof![
        (request(), asked(), name(), spec, names()).prop_map(|(request, by, name, spec, nodes)| {
            Decision::BookingCreated { request, by, name, spec: Box::new(spec), nodes }
        }),
        (request(), asked(), target(), option::of(hold))
            .prop_map(|(request, by, target, hold)| { Decision::FleetHoldSet { request, by, target, hold } }),
        target().prop_map(|target| Decision::FleetHoldEnded { target }),
        (request(), asked(), name()).prop_map(|(request, by, name)| Decision::BookingDeleted {
            request,
            by,
            name
        }),
        name().prop_map(|name| Decision::BookingOpened { name }),
        any::<u64>().prop_map(|job| Decision::FallbackOpened { job: JobId(job) }),
        (name(), cause).prop_map(|(name, cause)| Decision::BookingEnded { name, cause }),
        (name(), names()).prop_map(|(name, nodes)| Decision::BookingMoved { name, nodes }),
    ]
}

/// Parts of the operator's role, which has all but the verbs of drills.
pub(super) fn own_roles() -> impl Strategy<Value = BTreeMap<Name, OwnRole>> {
    let verb = prop::sample::select(Verb::ALL.to_vec()).prop_map(|verb| {
        let part_of = if verb.is_of(TokenRole::Operator) { TokenRole::Operator } else { TokenRole::Drill };
        (part_of, verb)
    });
    let role = (verb, prop::collection::btree_set(name(), 0..3))
        .prop_map(|((part_of, verb), regions)| OwnRole { part_of, verbs: [verb].into(), regions });
    let name = "own-[a-z]{1,6}".prop_map(|text| Name::new(&text).expect("a name"));
    btree_map(name, role, 0..3)
}

/// What concerns tokens; each strategy here is one variant.
pub(super) fn tokens() -> impl Strategy<Value = Decision> {
    let asked = requester;
    let id = || any::<u64>().prop_map(TokenId);
    let role = prop::sample::select(TokenRole::ALL.to_vec());
    let grant = ("[a-z]{1,9}", role, any::<bool>(), any::<[u8; 32]>()).prop_map(
        |(text, role, has_tenant, secret_sha256)| {
            let name = Name::new(&text).expect("a name");
            let tenant = has_tenant.then(|| name.clone());
            let own_role = secret_sha256[0].is_multiple_of(2).then(|| name.clone());
            TokenGrant { user: name.clone(), name, role, tenant, secret_sha256, own_role }
        },
    );
    prop_oneof![
        (request(), asked(), id(), grant, any::<u64>()).prop_map(
            |(request, by, token, grant, lifetime_ms)| Decision::TokenCreated {
                request,
                by,
                token,
                grant: Box::new(grant),
                lifetime_ms,
            }
        ),
        (request(), asked(), id()).prop_map(|(request, by, token)| Decision::TokenRevoked {
            request,
            by,
            token
        }),
        (asked(), any::<u64>(), token(), any::<u32>(), ".{0,60}").prop_map(
            |(by, job, token, rank, command)| {
                Decision::ExecOpened { by, job: JobId(job), token, rank, command }
            }
        ),
        (asked(), any::<u64>(), token(), any::<u32>(), any::<u16>()).prop_map(
            |(by, job, token, rank, port)| {
                Decision::PortForwardOpened { by, job: JobId(job), token, rank, port }
            }
        ),
        (any::<u64>(), token(), any::<u32>(), artifacts()).prop_map(|(job, token, rank, artifacts)| {
            Decision::ArtifactsKept { job: JobId(job), token, rank, artifacts }
        }),
    ]
}

/// What concerns quota for some time; each strategy here is one variant.
pub(super) fn quotas() -> impl Strategy<Value = Decision> {
    let id = || any::<u64>().prop_map(LogIndex);
    let grant = || {
        (name(), name(), prop::option::of(name()), any::<u64>(), any::<u64>(), ".{0,20}").prop_map(
            |(tenant, kind, region, amount_milli, until, reason)| {
                let until = LogTime(until);
                Box::new(QuotaGrant { tenant, kind, region, amount_milli, until, reason })
            },
        )
    };
    prop_oneof![
        (request(), requester(), grant()).prop_map(|(request, by, grant)| Decision::QuotaRequested {
            request,
            by,
            grant
        }),
        (request(), requester(), id(), prop::option::of(name()), any::<bool>(), ".{0,20}").prop_map(
            |(request, by, id, giver, approved, reason)| Decision::QuotaAnswered {
                request,
                by,
                id,
                giver,
                approved,
                reason
            }
        ),
        (request(), requester(), prop::option::of(name()), grant())
            .prop_map(|(request, by, giver, grant)| Decision::QuotaGranted { request, by, giver, grant }),
        vec(id(), 0..4).prop_map(|ids| Decision::QuotaGrantsEnded { ids }),
    ]
}

/// What concerns schedules; each strategy here is one variant.
pub(super) fn schedules() -> impl Strategy<Value = Decision> {
    let key = || (name(), name()).prop_map(|(tenant, name)| ScheduleKey { tenant, name });
    let time = || any::<u64>().prop_map(LogTime);
    let run = prop_oneof![
        any::<u64>().prop_map(|job| ScheduleRun::Submitted(JobId(job))),
        "[ -~é]{0,20}".prop_map(ScheduleRun::Skipped),
    ];
    let cron = prop::sample::select(vec!["* * * * *", "0 6 * * 1-5", "*/15 0 29 feb *"]);
    let overlap = prop::sample::select(OverlapRule::ALL.to_vec());
    let schedule = (key(), cron, spec(), overlap, any::<u64>(), any::<u16>()).prop_map(
        |(key, cron, spec, overlap, starting_deadline_ms, runs_max)| Schedule {
            key,
            cron: cron.parse().expect("an expression"),
            zone: "Europe/Berlin".to_owned(),
            template: ScheduleTemplate {
                spec: spec.into(),
                contract: JobContract::default().into(),
                metadata: JobMetadata { creator: "ada".to_owned(), ..JobMetadata::default() },
            },
            overlap,
            starting_deadline_ms,
            runs_max,
        },
    );
    let part_of = prop::sample::select(muster_types::TokenRole::ALL.to_vec());
    let role =
        option::of((name(), part_of).prop_map(|(name, part_of)| muster_types::OwnerRole { name, part_of }));
    prop_oneof![
        (request(), requester(), option::of(name()), role, schedule, any::<bool>()).prop_map(
            |(request, by, acts_for, role, schedule, is_new)| Decision::ScheduleSet {
                request,
                by,
                acts_for,
                role,
                schedule: Box::new(schedule),
                is_new,
            }
        ),
        (request(), requester(), key()).prop_map(|(request, by, schedule)| Decision::ScheduleDeleted {
            request,
            by,
            schedule
        }),
        (option::of(request()), requester(), key(), option::of("[ -~]{0,20}")).prop_map(
            |(request, by, schedule, reason)| Decision::ScheduleSuspensionSet {
                request,
                by,
                schedule,
                reason
            }
        ),
        (key(), time()).prop_map(|(schedule, next)| Decision::SchedulePlanned { schedule, next }),
        (key(), option::of(time()), option::of(time()), run)
            .prop_map(|(schedule, due, next, run)| Decision::ScheduleRan { schedule, due, next, run }),
    ]
}
