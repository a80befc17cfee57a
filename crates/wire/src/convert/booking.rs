//! Bookings: what somebody asks for, and what there is.

use muster_types::booking_rule::minute_of_day;
use muster_types::fleet::checked_name;
use muster_types::{
    Booking, BookingAmount, BookingClearing, BookingRule, BookingShape, BookingSpec, BookingTimes, FleetPart,
    ListedWindows, LogTime, Name, Violation, Weekdays, limits,
};

use super::{Found, below, bound, moment, one_of, span};
use crate::closed::number;
use crate::time::{duration, log_time, timestamp};
use crate::v1;

/// Reads what is to be booked. A start that is left out is 0, which stands for now. The windows of a rule are not found here: this
/// crate knows no zones.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn booking_spec_from_proto(message: Option<v1::BookingSpec>) -> Result<BookingSpec, Vec<Violation>> {
    let mut found = Found::default();
    let Some(message) = message else {
        return Err(vec![Violation::new("spec", "must be given")]);
    };
    let tenant = match (message.maintenance, message.tenant.as_str()) {
        (true, "") => Some(None),
        (true, _) => {
            found.push(Violation::new("spec.tenant", "must be left out for maintenance"));
            None
        }
        (false, tenant) => found.take(checked_name("spec.tenant", tenant)).map(Some),
    };
    let jobs = names("spec.jobs", message.jobs, limits::BOOKING_JOBS_MAX, &mut found);
    let shape = shape(message.shape, message.maintenance, &mut found);
    let start = moment("spec", "start_time", message.start_time, &mut found);
    let length = span("spec", "length", message.length, &mut found);
    let notice_ms = span("spec", "notice", message.notice, &mut found);
    let clearing = match (message.maintenance, message.clearing) {
        (true, 0) => BookingClearing::Stop,
        (_, clearing) => one_of("spec", "clearing", clearing, &mut found),
    };
    let times = BookingTimes {
        start: start.unwrap_or(LogTime(0)),
        length_ms: length.unwrap_or(0),
        every_days: u16::try_from(message.every_days).unwrap_or(u16::MAX),
        windows: u16::try_from(message.windows.max(1)).unwrap_or(u16::MAX),
        listed: message.rule.and_then(|message| rule(message, &mut found)).map(Box::new),
    };
    if let (Some(tenant), Some(shape), true) = (tenant, shape, found.is_empty()) {
        let spec = BookingSpec {
            tenant,
            user: Some(message.user).filter(|user| !user.is_empty()),
            jobs,
            is_shared: message.shared,
            shape,
            times,
            notice_ms: notice_ms.unwrap_or(0),
            clearing,
            reason: message.reason,
        };
        let violations = spec.violations();
        if violations.is_empty() {
            return Ok(spec);
        }
        found.extend(violations.into_iter().map(|violation| violation.under("spec")).collect());
    }
    Err(found.into_violations())
}

fn rule(message: v1::BookingRule, found: &mut Found) -> Option<ListedWindows> {
    let weekdays =
        message.weekdays.parse::<Weekdays>().map_err(|text| Violation::new("spec.rule.weekdays", text));
    let minute = minute_of_day(&message.time).ok_or_else(|| {
        Violation::new("spec.rule.time", "must be a time of day from 00:00 to 23:59, such as 09:00")
    });
    let (weekdays, minute) = (found.take(weekdays), found.take(minute));
    Some(ListedWindows::new(BookingRule { weekdays: weekdays?, minute: minute?, zone: message.zone }))
}

fn shape(message: Option<v1::BookingShape>, is_maintenance: bool, found: &mut Found) -> Option<BookingShape> {
    let at = |field: &str| below("spec.shape", field);
    let message = message.unwrap_or_default();
    let given = [!message.nodes.is_empty(), message.hosts > 0, message.devices > 0];
    if is_maintenance && !given.contains(&true) {
        return part(&message, found);
    }
    if given.into_iter().filter(|is_given| *is_given).count() != 1 {
        let text = "must have exactly one of `nodes`, `hosts` and `devices`";
        found.push(Violation::new("spec.shape", text));
        return None;
    }
    let mut name = |field: &str, text: &str| match text {
        "" => None,
        text => found.take(checked_name(&at(field), text)),
    };
    let kind = name("accelerator", &message.accelerator);
    let region = name("region", &message.region);
    let cluster = name("cluster", &message.cluster);
    if !message.nodes.is_empty() {
        let is_plain = kind.is_none() && region.is_none() && cluster.is_none() && message.labels.is_empty();
        if !is_plain {
            let text = "must be given alone: the other fields are about nodes that are chosen";
            found.push(Violation::new(at("nodes"), text));
        }
        let mut nodes = names(&at("nodes"), message.nodes, limits::BOOKING_NODES_MAX, found);
        nodes.sort_unstable();
        return Some(BookingShape::Nodes(nodes));
    }
    let max = limits::BOOKING_LABELS_MAX;
    if message.labels.len() > max {
        found.push(Violation::limit(&at("labels"), message.labels.len() as u64, 0, max as u64));
        return None;
    }
    let labels = message.labels.into_iter();
    let labels = labels.map(|(key, value)| checked_name(&at("labels"), &key).map(|key| (key, value)));
    let labels = labels.filter_map(|result| found.take(result)).collect();
    let amount = match message.hosts {
        0 => BookingAmount::Devices(message.devices),
        hosts => BookingAmount::Hosts(hosts),
    };
    Some(BookingShape::Chosen { amount, kind, region, cluster, labels })
}

/// All nodes of a place, for maintenance.
fn part(message: &v1::BookingShape, found: &mut Found) -> Option<BookingShape> {
    if !message.accelerator.is_empty() || !message.labels.is_empty() {
        let text = "must be left out for the maintenance of a place: it is of every node there";
        found.push(Violation::new("spec.shape.accelerator", text));
    }
    let mut name = |field: &str, text: &str| match text {
        "" => None,
        text => found.take(checked_name(&below("spec.shape", field), text)),
    };
    let region = name("region", &message.region);
    let cluster = name("cluster", &message.cluster);
    Some(BookingShape::Part(FleetPart { region, cluster }))
}

fn names(field: &str, mut texts: Vec<String>, max: usize, found: &mut Found) -> Vec<Name> {
    bound(field, &mut texts, max, found);
    let checked = texts.iter().enumerate().map(|(i, text)| checked_name(&format!("{field}[{i}]"), text));
    checked.filter_map(|result| found.take(result)).collect()
}

/// What is booked, as a message.
#[must_use]
pub fn booking_spec_to_proto(spec: &BookingSpec) -> v1::BookingSpec {
    let times = &spec.times;
    v1::BookingSpec {
        tenant: spec.tenant.as_ref().map(Name::to_string).unwrap_or_default(),
        user: spec.user.clone().unwrap_or_default(),
        jobs: spec.jobs.iter().map(Name::to_string).collect(),
        shared: spec.is_shared,
        shape: Some(shape_to_proto(&spec.shape)),
        start_time: Some(times.start).filter(|start| start.0 > 0).map(|start| timestamp(start.0)),
        length: Some(duration(times.length_ms)),
        every_days: times.every_days.into(),
        windows: times.windows.into(),
        notice: Some(spec.notice_ms).filter(|ms| *ms > 0).map(duration),
        clearing: number(spec.clearing),
        reason: spec.reason.clone(),
        rule: times.listed.as_deref().map(|listed| v1::BookingRule {
            weekdays: listed.rule.weekdays.to_string(),
            time: listed.rule.time(),
            zone: listed.rule.zone.clone(),
        }),
        maintenance: spec.is_maintenance(),
    }
}

fn shape_to_proto(shape: &BookingShape) -> v1::BookingShape {
    let text = |name: &Option<Name>| name.as_ref().map(Name::to_string).unwrap_or_default();
    match shape {
        BookingShape::Part(part) => v1::BookingShape {
            region: text(&part.region),
            cluster: text(&part.cluster),
            ..v1::BookingShape::default()
        },
        BookingShape::Nodes(nodes) => v1::BookingShape {
            nodes: nodes.iter().map(Name::to_string).collect(),
            ..v1::BookingShape::default()
        },
        BookingShape::Chosen { amount, kind, region, cluster, labels } => {
            let (hosts, devices) = match amount {
                BookingAmount::Hosts(hosts) => (*hosts, 0),
                BookingAmount::Devices(devices) => (0, *devices),
            };
            v1::BookingShape {
                nodes: Vec::new(),
                hosts,
                devices,
                accelerator: text(kind),
                region: text(region),
                cluster: text(cluster),
                labels: labels.iter().map(|(key, value)| (key.to_string(), value.clone())).collect(),
            }
        }
    }
}

/// A booking, as a message.
#[must_use]
pub fn booking_to_proto(name: &Name, booking: &Booking) -> v1::Booking {
    let window = booking.current();
    v1::Booking {
        name: name.to_string(),
        spec: Some(booking_spec_to_proto(&booking.spec)),
        nodes: booking.nodes.iter().map(Name::to_string).collect(),
        open: booking.is_open,
        window_start_time: log_time(window.from),
        window_end_time: log_time(window.until),
        windows_left: booking.left().windows.into(),
        creator: booking.by.name.clone(),
        create_time: log_time(booking.created),
        // What it is compared with is in the state.
        above_quota: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> v1::BookingSpec {
        v1::BookingSpec {
            tenant: "vision".to_owned(),
            user: "tenant/vision/ada".to_owned(),
            jobs: vec!["train".to_owned()],
            shared: false,
            shape: Some(v1::BookingShape {
                devices: 16,
                accelerator: "h100".to_owned(),
                region: "eu".to_owned(),
                labels: [("pool".to_owned(), "a".to_owned())].into(),
                ..v1::BookingShape::default()
            }),
            start_time: Some(timestamp(86_400_000)),
            length: Some(duration(7_200_000)),
            every_days: 7,
            windows: 4,
            notice: Some(duration(3_600_000)),
            clearing: v1::BookingClearing::Stop.into(),
            reason: "weekly evaluation".to_owned(),
            rule: None,
            maintenance: false,
        }
    }

    /// The same on working days.
    fn by_rule() -> v1::BookingSpec {
        let rule = v1::BookingRule {
            weekdays: "mon-fri".to_owned(),
            time: "09:00".to_owned(),
            zone: "Europe/Berlin".to_owned(),
        };
        v1::BookingSpec { every_days: 0, rule: Some(rule), ..asked() }
    }

    #[test]
    fn a_rule_goes_there_and_back_and_its_wrong_fields_are_named() {
        let read = booking_spec_from_proto(Some(by_rule())).expect("it is whole");
        assert!(!read.times.is_whole(), "its windows are not found yet");
        assert_eq!(booking_spec_to_proto(&read), by_rule());
        type Change = fn(&mut v1::BookingRule);
        let cases: [(&str, Change); 5] = [
            ("spec.rule.weekdays", |rule| rule.weekdays.clear()),
            ("spec.rule.weekdays", |rule| rule.weekdays = "monday".to_owned()),
            ("spec.rule.time", |rule| rule.time = "9".to_owned()),
            ("spec.rule.zone", |rule| rule.zone.clear()),
            ("spec.rule.zone", |rule| rule.zone = "../etc".to_owned()),
        ];
        for (field, change) in cases {
            let mut message = by_rule();
            change(message.rule.as_mut().expect("one"));
            let violations = booking_spec_from_proto(Some(message)).expect_err(field);
            let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
            assert_eq!(fields, [field]);
        }
        let both = v1::BookingSpec { every_days: 7, ..by_rule() };
        assert!(booking_spec_from_proto(Some(both)).is_err());
    }

    #[test]
    fn what_is_booked_goes_there_and_back() {
        let nodes =
            v1::BookingShape { nodes: vec!["a".to_owned(), "b".to_owned()], ..v1::BookingShape::default() };
        let hosts = v1::BookingShape { hosts: 2, ..v1::BookingShape::default() };
        for shape in [asked().shape, Some(nodes), Some(hosts)] {
            let message = v1::BookingSpec { shape, ..asked() };
            let read = booking_spec_from_proto(Some(message.clone())).expect("it is whole");
            assert_eq!(booking_spec_to_proto(&read), message);
        }
        let read = booking_spec_from_proto(Some(asked())).expect("it is whole");
        assert_eq!((read.clearing, read.times.windows), (BookingClearing::Stop, 4));
    }

    #[test]
    fn maintenance_has_no_owner_and_is_of_nodes_or_of_a_place() {
        let of_place = v1::BookingShape { region: "eu".to_owned(), ..v1::BookingShape::default() };
        let nodes = v1::BookingShape { nodes: vec!["a".to_owned()], ..v1::BookingShape::default() };
        let upgrade = |shape| v1::BookingSpec {
            tenant: String::new(),
            user: String::new(),
            jobs: Vec::new(),
            shape: Some(shape),
            maintenance: true,
            ..asked()
        };
        for message in [upgrade(of_place.clone()), upgrade(nodes)] {
            let read = booking_spec_from_proto(Some(message.clone())).expect("it is whole");
            assert_eq!(booking_spec_to_proto(&read), message);
        }
        let unsaid = v1::BookingSpec { clearing: 0, ..upgrade(of_place.clone()) };
        let read = booking_spec_from_proto(Some(unsaid)).expect("it is whole");
        assert_eq!(read.clearing, BookingClearing::Stop);
        for wrong in [
            v1::BookingSpec { tenant: "vision".to_owned(), ..upgrade(of_place.clone()) },
            v1::BookingSpec { clearing: v1::BookingClearing::Finish.into(), ..upgrade(of_place.clone()) },
            v1::BookingSpec { maintenance: false, tenant: "vision".to_owned(), ..upgrade(of_place) },
            upgrade(v1::BookingShape { hosts: 1, ..v1::BookingShape::default() }),
            upgrade(v1::BookingShape::default()),
        ] {
            assert!(booking_spec_from_proto(Some(wrong.clone())).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_wrong_field_is_named() {
        type Change = fn(&mut v1::BookingSpec);
        let cases: [(&str, Change); 12] = [
            ("spec.tenant", |spec| spec.tenant.clear()),
            ("spec.jobs[0]", |spec| spec.jobs = vec!["No".to_owned()]),
            ("spec.shared", |spec| spec.shared = true),
            ("spec.shape", |spec| spec.shape = None),
            ("spec.shape.accelerator", |spec| {
                spec.shape.as_mut().expect("one").accelerator = "A B".to_owned()
            }),
            ("spec.shape.devices", |spec| spec.shape.as_mut().expect("one").devices = u32::MAX),
            ("spec.length", |spec| spec.length = None),
            ("spec.length", |spec| spec.length = Some(duration(1))),
            ("spec.windows", |spec| spec.windows = 70_000),
            ("spec.every_days", |spec| spec.every_days = 0),
            ("spec.clearing", |spec| spec.clearing = 99),
            ("spec.reason", |spec| spec.reason = "x".repeat(513)),
        ];
        for (field, change) in cases {
            let mut message = asked();
            change(&mut message);
            let violations = booking_spec_from_proto(Some(message)).expect_err(field);
            let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
            assert_eq!(fields, [field]);
        }
        assert!(booking_spec_from_proto(None).is_err());
    }
}
