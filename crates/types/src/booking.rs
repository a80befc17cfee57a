//! Bookings: nodes that are set aside over windows of time, for the work of one tenant or for maintenance.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::booking_rule::ListedWindows;
use crate::job::JobSpec;
use crate::limits;
use crate::name::Name;
use crate::place::FleetPart;
use crate::policy::Policy;
use crate::reason::Violation;
use crate::requester::Requester;
use crate::time::{LogTime, Span};

/// Milliseconds of a day. A booking that repeats after a number of days does so after days of this length: summer time moves none
/// of its windows. One that follows a rule lists its moments.
pub const DAY_MS: u64 = 86_400_000;

/// One window of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BookingWindow {
    /// Its first moment.
    pub from: LogTime,
    /// The first moment after it.
    pub until: LogTime,
}

/// When a booking's windows are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BookingTimes {
    /// The first moment of the first window; where windows are listed, no window begins before it.
    pub start: LogTime,
    /// How long each window is, in milliseconds.
    pub length_ms: u64,
    /// Days from the start of one window to that of the next; 0 for a single window.
    pub every_days: u16,
    /// How many windows there are.
    pub windows: u16,
    /// Their moments, where they follow a rule.
    pub listed: Option<Box<ListedWindows>>,
}

impl BookingTimes {
    /// A single window.
    #[must_use]
    pub fn once(start: LogTime, length_ms: u64) -> BookingTimes {
        BookingTimes { start, length_ms, every_days: 0, windows: 1, listed: None }
    }

    /// The same window again after a number of days, this number of times in all. One alone does not repeat.
    #[must_use]
    pub fn every(self, days: u16, windows: u16) -> BookingTimes {
        BookingTimes { every_days: if windows > 1 { days } else { 0 }, windows, ..self }
    }

    /// A window by its number, from 0; none behind the last.
    #[must_use]
    pub fn window(&self, number: u16) -> Option<BookingWindow> {
        if let Some(listed) = &self.listed {
            let from = listed.start(number).filter(|_| number < self.windows)?;
            return Some(BookingWindow { from, until: from.plus_ms(self.length_ms) });
        }
        let apart_ms = u64::from(self.every_days) * DAY_MS;
        let from = self.start.plus_ms(apart_ms.saturating_mul(u64::from(number)));
        (number < self.windows).then(|| BookingWindow { from, until: from.plus_ms(self.length_ms) })
    }

    /// The number of the first window that is not over at a time; none when all are.
    #[must_use]
    pub fn next_at(&self, now: LogTime) -> Option<u16> {
        if let Some(listed) = &self.listed {
            let over = listed.over_at(now, self.length_ms);
            return u16::try_from(over).ok().filter(|number| self.window(*number).is_some());
        }
        let first = self.window(0)?;
        if now < first.until {
            return Some(0);
        }
        // Windows are the same time apart, so that those before it need not be looked at.
        let behind = now.since_ms(first.until).checked_div(u64::from(self.every_days) * DAY_MS)?;
        u16::try_from(behind.saturating_add(1)).ok().filter(|number| *number < self.windows)
    }

    /// The first moment after the last window.
    #[must_use]
    pub fn end(&self) -> LogTime {
        self.window(self.windows.saturating_sub(1)).map_or(self.start, |window| window.until)
    }

    /// The first moment at which a window of each is open.
    #[must_use]
    pub fn meets(&self, other: &BookingTimes) -> Option<LogTime> {
        (0..self.windows).filter_map(|number| self.window(number)).find_map(|own| {
            let number = other.next_at(own.from)?;
            let theirs = other.window(number)?;
            (theirs.from < own.until).then(|| own.from.max(theirs.from))
        })
    }

    /// Whether the moments of every window are known: always, but where they follow a rule.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let is_found = |listed: &ListedWindows| listed.start_minutes.len() == usize::from(self.windows);
        self.listed.as_deref().is_none_or(is_found)
    }

    /// The windows from one of them on.
    #[must_use]
    pub fn behind(&self, number: u16) -> BookingTimes {
        let start = self.window(number).map_or_else(|| self.end(), |window| window.from);
        let listed = self.listed.as_ref().map(|listed| {
            let later = listed.start_minutes.get(usize::from(number)..).unwrap_or_default();
            Box::new(ListedWindows { rule: listed.rule.clone(), start_minutes: later.to_vec() })
        });
        let windows = self.windows.saturating_sub(number);
        BookingTimes { start, length_ms: self.length_ms, every_days: self.every_days, windows, listed }
    }

    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let (min, max) = (limits::BOOKING_LENGTH_MS_MIN, limits::BOOKING_LENGTH_MS_MAX);
        if !(min..=max).contains(&self.length_ms) {
            found.push(Violation::span("length", self.length_ms, min, max));
        }
        let max = limits::BOOKING_WINDOWS_MAX;
        if self.windows == 0 || self.windows > max {
            found.push(Violation::limit("windows", u64::from(self.windows), 1, u64::from(max)));
        }
        let max = limits::BOOKING_EVERY_DAYS_MAX;
        if self.every_days > max {
            found.push(Violation::limit("every_days", u64::from(self.every_days), 0, u64::from(max)));
        }
        if let Some(listed) = &self.listed {
            if self.every_days > 0 {
                found.push(Violation::new("every_days", "must be left out where a rule is given"));
            }
            found.extend(listed.violations(self.windows, self.length_ms));
            return found;
        }
        if (self.every_days == 0) != (self.windows == 1) {
            let text = "must be stated together with more than one window, and be 0 for a single one";
            found.push(Violation::new("every_days", text));
        } else if self.every_days > 0 && self.length_ms > u64::from(self.every_days) * DAY_MS {
            let text = format!("must be at most the {} days from one window to the next", self.every_days);
            found.push(Violation::new("length", text));
        }
        found
    }
}

/// How many hosts a booking keeps, all of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BookingAmount {
    /// This number of hosts.
    Hosts(u32),
    /// Hosts with this number of devices together, and not one more.
    Devices(u32),
}

/// Which nodes a booking keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BookingShape {
    /// These, whatever becomes of them.
    Nodes(Vec<Name>),
    /// Some that the leader chooses, and chooses again when one is lost.
    Chosen {
        /// How many.
        amount: BookingAmount,
        /// Their type of accelerator; none for any, and for hosts without any.
        kind: Option<Name>,
        /// Their region; none for any.
        region: Option<Name>,
        /// Their cluster; none for any. All are in one cluster in each case.
        cluster: Option<Name>,
        /// Labels that each has.
        labels: BTreeMap<Name, String>,
    },
    /// Every node of a part of the fleet, also one that joins it later: for maintenance alone. A booking of this shape lists no
    /// nodes.
    Part(FleetPart),
}

impl BookingShape {
    /// The largest number of nodes that it can come to; at most [`limits::BOOKING_NODES_MAX`].
    #[must_use]
    pub fn nodes_max(&self) -> usize {
        let most = match self {
            BookingShape::Part(_) => 0,
            BookingShape::Nodes(nodes) => nodes.len(),
            BookingShape::Chosen {
                amount: BookingAmount::Hosts(count) | BookingAmount::Devices(count),
                ..
            } => *count as usize,
        };
        most.min(limits::BOOKING_NODES_MAX)
    }

    fn violations(&self) -> Vec<Violation> {
        let max = limits::BOOKING_NODES_MAX as u64;
        let mut found = Vec::new();
        match self {
            BookingShape::Part(part) => {
                if part.is_whole_fleet() {
                    found.push(Violation::new("shape", "must name a region or a cluster"));
                }
            }
            BookingShape::Nodes(nodes) => {
                if nodes.is_empty() || nodes.len() as u64 > max {
                    found.push(Violation::limit("shape.nodes", nodes.len() as u64, 1, max));
                }
                if !nodes.is_sorted_by(|a, b| a < b) {
                    found.push(Violation::new("shape.nodes", "must name each node once"));
                }
            }
            BookingShape::Chosen { amount, kind, labels, .. } => {
                let (field, count, max) = match amount {
                    BookingAmount::Hosts(count) => ("shape.hosts", u64::from(*count), max),
                    BookingAmount::Devices(count) => {
                        ("shape.devices", u64::from(*count), max * u64::from(limits::HOST_DEVICES_MAX))
                    }
                };
                if count == 0 || count > max {
                    found.push(Violation::limit(field, count, 1, max));
                }
                if matches!(amount, BookingAmount::Devices(_)) && kind.is_none() {
                    found
                        .push(Violation::new("shape.accelerator", "must be named where devices are counted"));
                }
                let max = limits::BOOKING_LABELS_MAX;
                if labels.len() > max {
                    found.push(Violation::limit("shape.labels", labels.len() as u64, 0, max as u64));
                }
                if labels.values().any(|value| value.len() > limits::LABEL_BYTES_MAX) {
                    let text = format!("each value must be at most {} bytes", limits::LABEL_BYTES_MAX);
                    found.push(Violation::new("shape.labels", text));
                }
            }
        }
        found
    }
}

/// How others' work on a booking's nodes is treated. In every case nothing of others is placed there during a window, and
/// ahead of one, for as long as the notice says, nothing whose run-time limit passes its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BookingClearing {
    /// What still runs there when a window begins runs to its end. During the notice, jobs without a limit are not placed there.
    #[default]
    Finish,
    /// What still runs there when a window begins is stopped with its grace. During the notice, jobs without a limit are not
    /// placed there.
    Stop,
    /// The same, and jobs without a limit are placed there until a window begins.
    Fill,
}

impl BookingClearing {
    /// Every value.
    pub const ALL: [BookingClearing; 3] =
        [BookingClearing::Finish, BookingClearing::Stop, BookingClearing::Fill];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BookingClearing::Finish => "finish",
            BookingClearing::Stop => "stop",
            BookingClearing::Fill => "fill",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn from_name(text: &str) -> Option<BookingClearing> {
        BookingClearing::ALL.into_iter().find(|value| value.name() == text)
    }

    /// Whether others' work is stopped when a window begins.
    #[must_use]
    pub fn stops_others(self) -> bool {
        self != BookingClearing::Finish
    }
}

/// What somebody books.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BookingSpec {
    /// The owner: jobs of this tenant and of those below it may use the nodes. None for maintenance: nothing at all runs there
    /// during a window.
    pub tenant: Option<Name>,
    /// The user whose jobs alone may name it, as the creator of jobs says, without a token; none for every user of the tenant.
    /// Looked at when a job is submitted.
    pub user: Option<String>,
    /// Names of the jobs that alone may name it; empty for every job of the owner.
    pub jobs: Vec<Name>,
    /// Whether every job of the owner may use the nodes during a window, also one that does not name the booking.
    pub is_shared: bool,
    /// Which nodes.
    pub shape: BookingShape,
    /// When.
    pub times: BookingTimes,
    /// How long ahead of each window the nodes are cleared, in milliseconds.
    pub notice_ms: u64,
    /// What becomes of others' work.
    pub clearing: BookingClearing,
    /// Why, for people.
    pub reason: String,
}

impl BookingSpec {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = self.shape.violations();
        found.extend(self.times.violations());
        found.extend(self.violations_of_purpose());
        let max = limits::BOOKING_NOTICE_MS_MAX;
        if self.notice_ms > max {
            found.push(Violation::span("notice", self.notice_ms, 0, max));
        }
        let max = limits::BOOKING_JOBS_MAX;
        if self.jobs.len() > max {
            found.push(Violation::limit("jobs", self.jobs.len() as u64, 0, max as u64));
        }
        if self.is_shared && (self.user.is_some() || !self.jobs.is_empty()) {
            let text =
                "must be left out where a user or jobs are named: every job of the owner may use it then";
            found.push(Violation::new("shared", text));
        }
        let is_user = |user: &String| {
            !user.is_empty()
                && user.len() <= limits::CREATOR_BYTES_MAX
                && user.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !self.user.as_ref().is_none_or(is_user) {
            let text = format!("must be 1 to {} bytes of printable ASCII", limits::CREATOR_BYTES_MAX);
            found.push(Violation::new("user", text));
        }
        if self.reason.len() > limits::DETAIL_BYTES_MAX || self.reason.chars().any(char::is_control) {
            let text =
                format!("must be at most {} bytes without control characters", limits::DETAIL_BYTES_MAX);
            found.push(Violation::new("reason", text));
        }
        found
    }

    /// Rules about what maintenance may say, and what a tenant's booking may not.
    fn violations_of_purpose(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if !self.is_maintenance() {
            if matches!(self.shape, BookingShape::Part(_)) {
                let text =
                    "must have hosts, devices or nodes: all nodes of a place are for maintenance alone";
                found.push(Violation::new("shape", text));
            }
            return found;
        }
        if matches!(self.shape, BookingShape::Chosen { .. }) {
            let text = "must name nodes, a region or a cluster: for maintenance no nodes are chosen";
            found.push(Violation::new("shape", text));
        }
        if self.is_shared || self.user.is_some() || !self.jobs.is_empty() {
            let text = "must be left out with `shared` and `jobs`: during maintenance nothing runs there";
            found.push(Violation::new("user", text));
        }
        if !self.clearing.stops_others() {
            let text = "must be stop or fill: during maintenance nothing runs there";
            found.push(Violation::new("clearing", text));
        }
        found
    }

    /// Whether nothing at all runs on its nodes during a window, because it has no owner.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.tenant.is_none()
    }

    /// The part of the fleet that it keeps as a whole, where it names no nodes.
    #[must_use]
    pub fn part(&self) -> Option<&FleetPart> {
        match &self.shape {
            BookingShape::Part(part) => Some(part),
            BookingShape::Nodes(_) | BookingShape::Chosen { .. } => None,
        }
    }

    /// Whether a job may name it, as far as the job itself says: whose it is, and what it is called.
    #[must_use]
    pub fn may_be_named_by(&self, policy: &Policy, spec: &JobSpec) -> bool {
        let is_owned = policy.ancestry(&spec.tenant).any(|above| self.tenant.as_ref() == Some(above));
        is_owned && (self.jobs.is_empty() || self.jobs.contains(&spec.name))
    }

    /// Whether a job may use the nodes during a window.
    #[must_use]
    pub fn admits(&self, policy: &Policy, name: &Name, spec: &JobSpec) -> bool {
        let is_asked = self.is_shared || spec.booking.as_ref() == Some(name);
        is_asked && self.may_be_named_by(policy, spec)
    }

    /// From when on nothing of a job that it does not admit is placed on its nodes ahead of a window.
    #[must_use]
    pub fn closed_from(&self, window: BookingWindow, run_time_limit_ms: Option<u64>) -> LogTime {
        let ahead_ms = match run_time_limit_ms {
            // It is over in time where it begins this long before.
            Some(limit_ms) => limit_ms.min(self.notice_ms),
            None if self.clearing == BookingClearing::Fill => 0,
            None => self.notice_ms,
        };
        window.from.minus_ms(ahead_ms)
    }
}

/// A booking as the state has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booking {
    /// What was booked.
    pub spec: BookingSpec,
    /// Names of its nodes, in ascending order. Fewer than were asked for where some are lost and no others are free.
    pub nodes: Vec<Name>,
    /// The window that is open, or the next one, by its number from 0.
    pub window: u16,
    /// Whether that window is open.
    pub is_open: bool,
    /// Who made it.
    pub by: Requester,
    /// When, by log time.
    pub created: LogTime,
}

impl Booking {
    /// The window that is open, or the next one.
    #[must_use]
    pub fn current(&self) -> BookingWindow {
        let known = self.spec.times.window(self.window);
        known.unwrap_or(BookingWindow { from: self.spec.times.end(), until: self.spec.times.end() })
    }

    /// Whether a node is among its nodes.
    #[must_use]
    pub fn has_node(&self, node: &Name) -> bool {
        self.nodes.binary_search(node).is_ok()
    }

    /// From the window that is open, or the next one, until when a job finds the nodes closed without a break, by when it finds each
    /// window closed to it.
    #[must_use]
    pub fn closed_until(&self, closed_from: impl Fn(BookingWindow) -> LogTime) -> LogTime {
        let (times, mut until) = (&self.spec.times, self.current().until);
        let mut next = self.window.saturating_add(1);
        while let Some(window) = times.window(next).filter(|window| closed_from(*window) <= until) {
            if times.listed.is_none() {
                // Windows are the same time apart: where it is too late for one, so it is for all behind it.
                return times.end();
            }
            until = window.until;
            next = next.saturating_add(1);
        }
        until
    }

    /// Its windows that are not over: the present one, and those behind it.
    #[must_use]
    pub fn left(&self) -> BookingTimes {
        self.spec.times.behind(self.window)
    }
}

/// Why a booking's window, or the whole booking, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BookingEnd {
    /// The window is over. Behind the last one the booking is over as well.
    WindowOver,
    /// The policy lists its owner no more.
    OwnerGone,
}

impl fmt::Display for BookingEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BookingEnd::WindowOver => "its window is over",
            BookingEnd::OwnerGone => "the policy lists its owner no more",
        })
    }
}

impl fmt::Display for BookingTimes {
    /// As in `2026-11-28T09:00:00Z for 2h, 5 times every 1 days`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.start, Span(self.length_ms))?;
        if let Some(listed) = &self.listed {
            return write!(f, ", {} times {}", self.windows, listed.rule);
        }
        if self.windows > 1 {
            write!(f, ", {} times every {} days", self.windows, self.every_days)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::booking_rule::BookingRule;
    use alloc::string::ToString;
    use alloc::vec;

    const HOUR_MS: u64 = 3_600_000;

    fn once(start: u64, length_ms: u64) -> BookingTimes {
        BookingTimes::once(LogTime(start), length_ms)
    }

    /// At these hours.
    fn listed(hours: &[u32], length_ms: u64) -> BookingTimes {
        let rule =
            BookingRule { weekdays: "daily".parse().expect("days"), minute: 540, zone: "UTC".to_string() };
        let start_minutes = hours.iter().map(|hour| hour * 60).collect();
        let windows = u16::try_from(hours.len()).expect("few");
        let listed = Some(Box::new(ListedWindows { rule, start_minutes }));
        BookingTimes { windows, listed, ..once(0, length_ms) }
    }

    fn daily(start: u64, length_ms: u64, windows: u16) -> BookingTimes {
        BookingTimes { every_days: 1, windows, ..once(start, length_ms) }
    }

    #[test]
    fn windows_repeat_after_whole_days_and_end_with_the_last() {
        let times = daily(1_000, HOUR_MS, 3);
        assert_eq!(times.window(2).map(|window| window.from), Some(LogTime(1_000 + 2 * DAY_MS)));
        assert_eq!(times.window(3), None);
        assert_eq!(times.end(), LogTime(1_000 + 2 * DAY_MS + HOUR_MS));
        assert_eq!(times.next_at(LogTime(0)), Some(0));
        assert_eq!(
            times.next_at(LogTime(1_000 + HOUR_MS)),
            Some(1),
            "the first moment after a window is not in it"
        );
        assert_eq!(times.next_at(times.end()), None);
        for now in [0, 1_000, DAY_MS, DAY_MS + HOUR_MS, DAY_MS + HOUR_MS + 1_000, 2 * DAY_MS, u64::MAX] {
            let one_by_one =
                (0..3).find(|number| times.window(*number).is_some_and(|window| LogTime(now) < window.until));
            assert_eq!(times.next_at(LogTime(now)), one_by_one, "{now}");
        }
        assert_eq!(once(5, 10).next_at(LogTime(15)), None);
        assert_eq!(times.to_string(), "1970-01-01T00:00:01Z for 1h, 3 times every 1 days");
    }

    #[test]
    fn two_meet_where_a_window_of_each_is_open() {
        let nightly = daily(22 * HOUR_MS, 2 * HOUR_MS, 10);
        assert_eq!(nightly.meets(&once(0, 22 * HOUR_MS)), None, "one ends where the other begins");
        assert_eq!(nightly.meets(&once(0, 22 * HOUR_MS + 1)), Some(LogTime(22 * HOUR_MS)));
        let late = once(9 * DAY_MS + 23 * HOUR_MS, HOUR_MS);
        assert_eq!(nightly.meets(&late), Some(late.start));
        assert_eq!(late.meets(&nightly), Some(late.start), "both ways");
        assert_eq!(nightly.meets(&once(10 * DAY_MS, DAY_MS)), None, "there is no eleventh");
        let weekly = BookingTimes { every_days: 7, windows: 2, ..once(6 * HOUR_MS, HOUR_MS) };
        assert_eq!(nightly.meets(&weekly), None);
    }

    #[test]
    fn windows_of_every_form_meet_as_when_they_are_compared_one_by_one() {
        let mut all = vec![];
        for start in [0, 5, 22, 47, 100] {
            for length_ms in [HOUR_MS, 2 * HOUR_MS, DAY_MS] {
                let first = once(start * HOUR_MS, length_ms);
                all.push(first.clone().every(2, 3));
                all.push(daily(start * HOUR_MS, length_ms, 4));
                all.push(first);
            }
        }
        // One and the same local time, where a day has 23 hours and one has 25.
        for length_ms in [HOUR_MS, 20 * HOUR_MS] {
            all.push(listed(&[9, 33, 56, 80], length_ms));
            all.push(listed(&[9, 33, 58, 82], length_ms));
        }
        let windows = |times: &BookingTimes| -> Vec<BookingWindow> {
            (0..times.windows).filter_map(|number| times.window(number)).collect()
        };
        let mut met = 0;
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
            let mut moments = vec![];
            for own in windows(one) {
                let meets = |theirs: &BookingWindow| own.from < theirs.until && theirs.from < own.until;
                let open = windows(other).into_iter().filter(meets);
                moments.extend(open.map(|theirs| own.from.max(theirs.from)));
            }
            let first = moments.into_iter().min();
            assert_eq!(one.meets(other), first, "{one} and {other}");
            met += usize::from(first.is_some());
        }
        assert!(met > 0 && met < all.len() * all.len(), "{met}");
    }

    #[test]
    fn listed_windows_are_those_of_the_list() {
        let times = listed(&[9, 33, 58, 130], 2 * HOUR_MS);
        assert_eq!((times.violations(), times.is_whole()), (vec![], true));
        assert_eq!(times.window(2).map(|window| window.from), Some(LogTime(58 * HOUR_MS)));
        assert_eq!((times.window(4), times.end()), (None, LogTime(132 * HOUR_MS)));
        for hour in 0..140 {
            let now = LogTime(hour * HOUR_MS);
            let one_by_one =
                (0..4).find(|number| times.window(*number).is_some_and(|window| now < window.until));
            assert_eq!(times.next_at(now), one_by_one, "{hour}");
        }
        assert_eq!(times.meets(&once(11 * HOUR_MS, 22 * HOUR_MS)), None);
        assert_eq!(times.meets(&daily(58 * HOUR_MS, HOUR_MS, 2)), Some(LogTime(58 * HOUR_MS)));
        let later = times.behind(2);
        assert_eq!((later.windows, later.window(0)), (2, times.window(2)));
        let unknown = listed(&[], HOUR_MS);
        assert_eq!(
            (unknown.window(0), unknown.next_at(LogTime(0)), unknown.end()),
            (None, None, unknown.start)
        );
        assert!(!BookingTimes { windows: 2, ..unknown }.is_whole());
        assert!(!BookingTimes { every_days: 1, ..times }.violations().is_empty());
    }

    #[test]
    fn a_job_finds_windows_closed_until_the_first_break_between_them() {
        let booked = |times: BookingTimes| Booking {
            spec: BookingSpec { times, ..booked(BookingClearing::Stop) },
            nodes: vec![],
            window: 0,
            is_open: true,
            by: Requester::default(),
            created: LogTime(0),
        };
        let ahead = |hours: u64| move |window: BookingWindow| window.from.minus_ms(hours * HOUR_MS);
        let weekdays = booked(listed(&[9, 33, 57, 129], 2 * HOUR_MS));
        assert_eq!(weekdays.closed_until(ahead(21)), LogTime(11 * HOUR_MS));
        assert_eq!(weekdays.closed_until(ahead(22)), LogTime(59 * HOUR_MS));
        assert_eq!(weekdays.closed_until(ahead(72)), LogTime(131 * HOUR_MS));
        let nightly = booked(daily(9 * HOUR_MS, 2 * HOUR_MS, 3));
        assert_eq!(nightly.closed_until(ahead(21)), LogTime(11 * HOUR_MS));
        assert_eq!(nightly.closed_until(ahead(22)), nightly.spec.times.end());
    }

    #[test]
    fn times_have_bounds() {
        let good = daily(0, HOUR_MS, 5);
        assert_eq!(good.violations(), vec![]);
        assert_eq!(once(0, HOUR_MS).violations(), vec![]);
        for bad in [
            once(0, 0),
            once(0, limits::BOOKING_LENGTH_MS_MAX + 1),
            daily(0, HOUR_MS, 0),
            daily(0, HOUR_MS, 1),
            daily(0, HOUR_MS, limits::BOOKING_WINDOWS_MAX + 1),
            daily(0, DAY_MS + 1, 2),
            BookingTimes { windows: 2, ..once(0, HOUR_MS) },
            BookingTimes { every_days: limits::BOOKING_EVERY_DAYS_MAX + 1, ..good.clone() },
        ] {
            assert!(!bad.violations().is_empty(), "{bad:?}");
        }
    }

    fn booked(clearing: BookingClearing) -> BookingSpec {
        let name = |text: &str| Name::new(text).expect("a name");
        BookingSpec {
            tenant: Some(name("vision")),
            user: None,
            jobs: vec![],
            is_shared: false,
            shape: BookingShape::Nodes(vec![name("n1")]),
            times: once(10 * HOUR_MS, HOUR_MS),
            notice_ms: 2 * HOUR_MS,
            clearing,
            reason: "a demonstration".to_string(),
        }
    }

    #[test]
    fn the_notice_keeps_out_what_would_not_be_over_in_time() {
        let window = BookingWindow { from: LogTime(10 * HOUR_MS), until: LogTime(11 * HOUR_MS) };
        for (clearing, limit, hours) in [
            (BookingClearing::Stop, None, 8),
            (BookingClearing::Finish, None, 8),
            (BookingClearing::Fill, None, 10),
            (BookingClearing::Fill, Some(HOUR_MS), 9),
            (BookingClearing::Stop, Some(HOUR_MS), 9),
            (BookingClearing::Stop, Some(5 * HOUR_MS), 8),
        ] {
            let from = booked(clearing).closed_from(window, limit);
            assert_eq!(from, LogTime(hours * HOUR_MS), "{clearing:?} {limit:?}");
        }
    }

    #[test]
    fn what_is_booked_has_bounds() {
        let name = |text: &str| Name::new(text).expect("a name");
        let good = booked(BookingClearing::Stop);
        assert_eq!(good.violations(), vec![]);
        let chosen = |amount, kind| BookingShape::Chosen {
            amount,
            kind,
            region: None,
            cluster: None,
            labels: BTreeMap::new(),
        };
        let shape = |shape| BookingSpec { shape, ..good.clone() };
        for bad in [
            shape(BookingShape::Nodes(vec![])),
            shape(BookingShape::Nodes(vec![name("b"), name("a")])),
            shape(BookingShape::Nodes(vec![name("a"), name("a")])),
            shape(chosen(BookingAmount::Hosts(0), None)),
            shape(chosen(BookingAmount::Devices(8), None)),
            shape(chosen(BookingAmount::Hosts(limits::BOOKING_NODES_MAX as u32 + 1), None)),
            BookingSpec { notice_ms: limits::BOOKING_NOTICE_MS_MAX + 1, ..good.clone() },
            BookingSpec { is_shared: true, jobs: vec![name("a")], ..good.clone() },
            BookingSpec { user: Some("".to_string()), ..good.clone() },
            BookingSpec { reason: "a\nb".to_string(), ..good.clone() },
        ] {
            assert!(!bad.violations().is_empty(), "{bad:?}");
        }
        assert_eq!(shape(chosen(BookingAmount::Devices(8), Some(name("h100")))).violations(), vec![]);
        let part =
            |region: Option<&str>| BookingShape::Part(FleetPart { region: region.map(name), cluster: None });
        let maintenance = BookingSpec { tenant: None, ..good.clone() };
        assert_eq!(maintenance.violations(), vec![]);
        assert_eq!(BookingSpec { shape: part(Some("eu")), ..maintenance.clone() }.violations(), vec![]);
        for bad in [
            shape(part(Some("eu"))),
            BookingSpec { shape: part(None), ..maintenance.clone() },
            BookingSpec { shape: chosen(BookingAmount::Hosts(1), None), ..maintenance.clone() },
            BookingSpec { clearing: BookingClearing::Finish, ..maintenance.clone() },
            BookingSpec { is_shared: true, ..maintenance.clone() },
        ] {
            assert!(!bad.violations().is_empty(), "{bad:?}");
        }
        for clearing in BookingClearing::ALL {
            assert_eq!(BookingClearing::from_name(clearing.name()), Some(clearing));
        }
    }
}
