//! Nodes that bookings close to a gang for some time.

use crate::support::*;
use muster_journal::{Decision, RequestKey};
use muster_planner::{
    Budget, CapacityTimeline, Closure, ClosureCause, Holds, Plan, Terms, Verdict, WaitReason, explain, plan,
};
use muster_types::{
    BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, FleetPart, HoldTarget, JobSpec,
    LogTime, Name, NodeId, RequestId, Requester,
};
use std::collections::BTreeMap;

const HOUR_MS: u64 = 3_600_000;
const NEVER: LogTime = LogTime(u64::MAX);

/// Three hosts, and a gang of one worker.
fn fleet() -> (Fleet, Vec<NodeId>, JobSpec) {
    let mut fleet = Fleet::new();
    let nodes = ["n1", "n2", "n3"].map(|node| fleet.add_node(node_draft(node)));
    (fleet, nodes.to_vec(), job_draft(vec![group("main", 1, None)]).check().unwrap())
}

fn planned(fleet: &Fleet, spec: &JobSpec, closures: &[Closure<'_>]) -> Option<Plan> {
    let holds = Holds::new();
    let terms = Terms { closures, ..fleet.terms(&holds, spec) };
    match plan(&fleet.state, spec, &terms, &mut Budget::new(1_000_000)) {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits | Verdict::OutOfBudget => None,
    }
}

fn starts(fleet: &Fleet, spec: &JobSpec, closures: &[Closure<'_>]) -> Option<LogTime> {
    let holds = Holds::new();
    let terms = Terms { closures, ..fleet.terms(&holds, spec) };
    let timeline = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), []);
    timeline.earliest(spec, &terms, &mut Budget::new(1_000_000)).map(|start| start.at)
}

#[test]
fn a_gang_goes_where_nothing_is_closed_to_it_when_it_begins() {
    let (fleet, nodes, spec) = fleet();
    let (booking, all) = (name("demo"), ["n1", "n2", "n3"].map(name));
    let cause = ClosureCause::Booking(&booking);
    let closed = |nodes, from, until| Closure { cause, from, until, nodes, part: None, is_outside: false };
    let now = fleet.time;
    let on = |closures: &[Closure<'_>]| {
        planned(&fleet, &spec, closures)
            .map(|plan| plan.workers.iter().map(|worker| worker.node).collect::<Vec<_>>())
    };
    assert_eq!(on(&[closed(&all[..2], now, now.plus_ms(1))]), Some(vec![nodes[2]]));
    assert_eq!(on(&[closed(&all, now, now.plus_ms(1))]), None);
    assert!(on(&[closed(&all, now.plus_ms(1), NEVER)]).is_some(), "it is not closed yet");
    let outside = Closure { is_outside: true, ..closed(&all[1..2], now, NEVER) };
    assert_eq!(on(&[outside]), Some(vec![nodes[1]]), "all others are closed");
    assert_eq!(on(&[outside, closed(&all[1..2], now, NEVER)]), None);
}

#[test]
fn the_first_start_is_when_nodes_are_open_to_a_gang() {
    let (fleet, _, spec) = fleet();
    let (booking, all) = (name("demo"), ["n1", "n2", "n3"].map(name));
    let cause = ClosureCause::Booking(&booking);
    let closed = |from, until| Closure { cause, from, until, nodes: &all, part: None, is_outside: false };
    let hour = |hours: u64| fleet.time.plus_ms(hours * HOUR_MS);
    assert_eq!(starts(&fleet, &spec, &[]), Some(hour(0)));
    assert_eq!(starts(&fleet, &spec, &[closed(hour(0), hour(3))]), Some(hour(3)));
    assert_eq!(starts(&fleet, &spec, &[closed(hour(1), hour(3))]), Some(hour(0)));
    assert_eq!(starts(&fleet, &spec, &[closed(hour(0), NEVER)]), None);
    // Several that have a node at different times, and others that have other nodes.
    let part = |nodes, from, until| Closure { cause, from, until, nodes, part: None, is_outside: false };
    let first = [part(&all[..2], hour(0), hour(2)), part(&all[1..], hour(0), hour(3))];
    assert_eq!(starts(&fleet, &spec, &first), Some(hour(2)), "the first node is open then");
    let again = [first[0], first[1], part(&all[..2], hour(2), hour(4))];
    assert_eq!(starts(&fleet, &spec, &again), Some(hour(3)), "the third");
    // The window of the booking that it names: not before, and not behind.
    let window = [closed(hour(0), hour(2)), closed(hour(4), NEVER)];
    assert_eq!(starts(&fleet, &spec, &window), Some(hour(2)));
}

/// The nodes that an overdue gang would keep in addition to those of its start.
fn kept_as_well(fleet: &Fleet, spec: &JobSpec, closures: &[Closure<'_>]) -> Vec<NodeId> {
    let holds = Holds::new();
    let terms = Terms { closures, ..fleet.terms(&holds, spec) };
    let timeline = CapacityTimeline::new(&fleet.state, &name("eu"), &name("c1"), []);
    let start = timeline.earliest(spec, &terms, &mut Budget::new(1_000_000)).expect("it fits");
    timeline.others_like(&start, spec, &terms, 8).into_iter().map(|(node, _)| node).collect()
}

#[test]
fn nodes_that_others_have_booked_are_not_kept_as_well_those_of_a_start() {
    let (fleet, nodes, spec) = fleet();
    let (booking, all) = (name("demo"), ["n1", "n2", "n3"].map(name));
    let cause = ClosureCause::Booking(&booking);
    let closed = |nodes, from, until| Closure { cause, from, until, nodes, part: None, is_outside: false };
    let (now, soon) = (fleet.time, fleet.time.plus_ms(HOUR_MS));
    assert_eq!(kept_as_well(&fleet, &spec, &[]).len(), 2);
    let more = kept_as_well(&fleet, &spec, &[closed(&all[..1], now, soon)]);
    assert_eq!((more.len(), more.contains(&nodes[0])), (1, false));
    assert_eq!(kept_as_well(&fleet, &spec, &[closed(&all[..2], now, soon)]), vec![]);
    assert_eq!(
        kept_as_well(&fleet, &spec, &[closed(&all[..2], soon, NEVER)]).len(),
        2,
        "it begins before that"
    );
    let outside = Closure { is_outside: true, ..closed(&all[..1], now, NEVER) };
    assert_eq!(kept_as_well(&fleet, &spec, &[outside]), vec![], "the gang has to be on booked nodes itself");
}

#[test]
fn an_explanation_names_the_booking_with_its_end() {
    let (fleet, _, spec) = fleet();
    let (booking, all) = (name("demo"), ["n1", "n2", "n3"].map(name));
    let until = fleet.time.plus_ms(HOUR_MS);
    let sentence = |nodes: &[Name], is_outside: bool| {
        let cause = ClosureCause::Booking(&booking);
        let closures = [Closure { cause, from: LogTime(0), until, nodes, part: None, is_outside }];
        let holds = Holds::new();
        let terms = Terms { closures: &closures, ..fleet.terms(&holds, &spec) };
        let explanation = explain(&fleet.state, &spec, &terms, None);
        assert_eq!(explanation.reason, WaitReason::Booked, "{}", explanation.sentence);
        explanation.sentence
    };
    let others = sentence(&all, false);
    assert!(others.contains(&format!("booking demo keeps nodes there from it until {until}")), "{others}");
    let own = sentence(&[], true);
    assert!(own.contains("it names booking demo"), "{own}");
}

#[test]
fn a_part_of_the_fleet_is_closed_with_every_node_of_it() {
    let (fleet, _, spec) = fleet();
    let (booking, target) = (name("upgrade"), HoldTarget::Part(part_of("eu")));
    let (here, elsewhere) = (part_of("eu"), part_of("us"));
    let hour = |hours: u64| fleet.time.plus_ms(hours * HOUR_MS);
    let closed = |part, cause| {
        [Closure { cause, from: hour(0), until: hour(2), nodes: &[], part: Some(part), is_outside: false }]
    };
    let upgrade = ClosureCause::Maintenance(&booking);
    assert!(planned(&fleet, &spec, &closed(&elsewhere, upgrade)).is_some());
    assert!(planned(&fleet, &spec, &closed(&here, upgrade)).is_none());
    assert_eq!(starts(&fleet, &spec, &closed(&elsewhere, upgrade)), Some(hour(0)));
    assert_eq!(starts(&fleet, &spec, &closed(&here, upgrade)), Some(hour(2)));
    for (cause, reason, text) in [
        (upgrade, WaitReason::Window, "window upgrade is open there until"),
        (ClosureCause::Hold(&target, "a flood"), WaitReason::Held, "region eu is held (a flood)"),
    ] {
        let (holds, closures) = (Holds::new(), closed(&here, cause));
        let terms = Terms { closures: &closures, ..fleet.terms(&holds, &spec) };
        let explanation = explain(&fleet.state, &spec, &terms, None);
        assert_eq!(explanation.reason, reason, "{}", explanation.sentence);
        assert!(explanation.sentence.contains(text), "{}", explanation.sentence);
    }
}

fn part_of(region: &str) -> FleetPart {
    FleetPart { region: Some(name(region)), cluster: None }
}

/// Books some of six hosts under many names, at times that do not meet.
fn book_many(fleet: &mut Fleet) {
    for number in 0..24u64 {
        let nodes: Vec<Name> = (0..6u64)
            .filter(|host| (number * 7 + host * host).is_multiple_of(3))
            .map(|host| name(&format!("n{host}")))
            .collect();
        if nodes.is_empty() {
            continue;
        }
        let spec = BookingSpec {
            tenant: Some(name("vision")),
            user: None,
            jobs: vec![],
            is_shared: false,
            shape: BookingShape::Chosen {
                amount: BookingAmount::Hosts(6),
                kind: None,
                region: None,
                cluster: None,
                labels: BTreeMap::new(),
            },
            times: BookingTimes::once(LogTime(number * HOUR_MS), HOUR_MS),
            notice_ms: 0,
            clearing: BookingClearing::Finish,
            reason: String::new(),
        };
        let request = RequestKey { id: RequestId(1 << 64 | u128::from(number)), fingerprint: 0 };
        let (by, text) = (Requester::default(), format!("b{number}"));
        fleet.apply(Decision::BookingCreated { request, by, name: name(&text), spec: Box::new(spec), nodes });
    }
}

#[test]
fn the_index_of_nodes_closes_what_a_look_at_every_closure_closes() {
    let mut fleet = Fleet::new();
    for host in 0..6 {
        fleet.add_node(node_draft(&format!("n{host}")));
    }
    book_many(&mut fleet);
    let (holds, own) = (Holds::new(), name("b3"));
    for workers in 1..=6 {
        let spec = job_draft(vec![group("main", workers, None)]).check().unwrap();
        for subset in 0..64u64 {
            // Some closures last now, others do not, and one may be of all other nodes.
            let closed =
                fleet.state.bookings().enumerate().filter(|(number, _)| (subset >> (number % 6)) & 1 == 1);
            let mut closures: Vec<Closure<'_>> = closed
                .map(|(number, (booking, row))| Closure {
                    cause: ClosureCause::Booking(booking),
                    from: fleet.time.plus_ms(u64::from(number % 4 == 3)),
                    until: NEVER,
                    nodes: &row.nodes,
                    part: None,
                    is_outside: false,
                })
                .collect();
            if let Some(row) = fleet.state.booking(&own).filter(|_| subset % 5 == 0) {
                let (from, until) = (fleet.time, NEVER);
                let (cause, nodes) = (ClosureCause::Booking(&own), row.nodes.as_slice());
                closures.push(Closure { cause, from, until, nodes, part: None, is_outside: true });
            }
            let verdict = |closures_are_indexed| {
                let terms = Terms { closures: &closures, closures_are_indexed, ..fleet.terms(&holds, &spec) };
                plan(&fleet.state, &spec, &terms, &mut Budget::new(1_000_000))
            };
            assert_eq!(verdict(true), verdict(false), "{workers} workers, {subset:b}");
        }
    }
}
