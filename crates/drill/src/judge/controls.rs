//! What people ask of jobs, nodes and quotas, followed from the records alone.
//!
//! As with leases, the guard is not taken at its word: who holds a job, which nodes are booked, how long a grant of quota
//! counts, which moments of a schedule have come and whose token has ended is worked out again here.
//!
//! **Invariant:** nothing here asks a [`State`](muster_state::State).

use std::collections::{BTreeMap, BTreeSet};

use muster_journal::{Decision, WorkerSlot};
use muster_types::policy::{Policy, QuotaGrant};
use muster_types::token::token_of;
use muster_types::{
    ArrayId, BookingEnd, BookingSpec, Control, HoldTarget, JobId, JobSpec, LogTime, Name, NodeSpec,
    Requester, ScheduleKey, ScheduleRun, TokenId,
};

use super::Rule;

/// How long a leader may take to record that the time of a grant or a token is over: it wakes for the next end.
const TIMER_MS: u64 = 5_000;

/// Who holds a job: its owner, an operator, or both.
#[derive(Clone, Copy, Default)]
struct Hold {
    owner: bool,
    operator: bool,
}

struct Booked {
    spec: BookingSpec,
    nodes: Vec<Name>,
    window: u16,
    is_open: bool,
}

struct ScheduleTimes {
    by: Requester,
    last: Option<LogTime>,
    is_suspended: bool,
}

/// The books about what was asked.
#[derive(Default)]
pub(super) struct Controls {
    holds: BTreeMap<JobId, Hold>,
    /// Of arrays, for the members that are not created.
    array_holds: BTreeMap<ArrayId, Hold>,
    cancelled: BTreeSet<JobId>,
    bookings: BTreeMap<Name, Booked>,
    fleet_holds: BTreeSet<HoldTarget>,
    schedules: BTreeMap<ScheduleKey, ScheduleTimes>,
    /// Tokens that were not revoked, with when they expire; and those that were.
    tokens: BTreeMap<TokenId, LogTime>,
    revoked: BTreeSet<TokenId>,
    /// Grants whose end is known to the records alone: no policy with a tree was set while they were in force.
    certain: BTreeSet<u64>,
    /// Grants in force behind their ends, with when the present leader first recorded anything behind that.
    overdue: BTreeMap<u64, LogTime>,
}

/// A gang that is about to be placed.
pub(super) struct Start<'a> {
    pub(super) job: JobId,
    /// None where the books do not know the job.
    pub(super) spec: Option<&'a JobSpec>,
    pub(super) workers: &'a [WorkerSlot],
    /// The nodes of these workers.
    pub(super) nodes: Vec<&'a NodeSpec>,
}

/// Whether these books follow a decision.
pub(super) fn concerns(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::LeaderStarted
            | Decision::JobCancelRequested { .. }
            | Decision::JobHoldSet { .. }
            | Decision::JobRequeueRequested { .. }
            | Decision::ArraysControlled { .. }
            | Decision::ArrayMembersCreated { .. }
            | Decision::BookingCreated { .. }
            | Decision::BookingDeleted { .. }
            | Decision::BookingOpened { .. }
            | Decision::BookingEnded { .. }
            | Decision::BookingMoved { .. }
            | Decision::FleetHoldSet { .. }
            | Decision::FleetHoldEnded { .. }
            | Decision::ScheduleSet { .. }
            | Decision::ScheduleDeleted { .. }
            | Decision::ScheduleSuspensionSet { .. }
            | Decision::ScheduleRan { .. }
            | Decision::TokenCreated { .. }
            | Decision::TokenRevoked { .. }
    )
}

fn hold<K: Copy + Ord>(holds: &mut BTreeMap<K, Hold>, held: &[K], by: &Requester) {
    for one in held {
        let hold = holds.entry(*one).or_default();
        hold.operator |= by.is_operator;
        hold.owner |= !by.is_operator;
    }
}

/// An operator's hold lies above the owner's.
fn release<K: Ord>(holds: &mut BTreeMap<K, Hold>, released: &[K]) {
    for one in released {
        let Some(hold) = holds.get_mut(one) else { continue };
        if hold.operator && hold.owner {
            hold.operator = false;
        } else {
            holds.remove(one);
        }
    }
}

impl Controls {
    /// Which rules a start breaks; `in_force` are the grants that the books of quotas count.
    pub(super) fn broken_by_start<'a>(
        &self,
        start: &Start<'_>,
        policy: &Policy,
        in_force: impl Iterator<Item = (u64, &'a QuotaGrant)>,
        now: LogTime,
    ) -> Vec<(Rule, String)> {
        let mut found = Vec::new();
        let Start { job, spec, workers, nodes } = start;
        if let Some(Hold { operator, .. }) = self.holds.get(job) {
            let whose = if *operator { "an operator" } else { "its owner" };
            found.push((Rule::StartedHeld, format!("{whose} holds it")));
        }
        if self.cancelled.contains(job) {
            found.push((Rule::StartedCancelled, "its end was asked for".to_owned()));
        }
        if let Some(spec) = spec {
            found.extend(self.against_bookings(spec, nodes, policy).map(|text| (Rule::BookingBroken, text)));
            found.extend(self.against_fleet_holds(spec, nodes, policy).map(|text| (Rule::StartedHeld, text)));
        }
        let takes_devices = workers.iter().any(|slot| slot.devices.count() > 0);
        for (id, grant) in in_force.filter(|_| takes_devices) {
            let tenant_is_it = spec.is_some_and(|spec| spec.tenant == grant.tenant);
            let since = self.overdue.get(&id).filter(|_| tenant_is_it && self.certain.contains(&id));
            if since.is_some_and(|since| now.since_ms(*since) >= TIMER_MS) {
                let text =
                    format!("grant {id} of tenant {} counts, and was over at {}", grant.tenant, grant.until);
                found.push((Rule::GrantOutlived, text));
            }
        }
        found
    }

    /// The first hold of a place or of a tenant that the job starts against.
    fn against_fleet_holds(&self, spec: &JobSpec, nodes: &[&NodeSpec], policy: &Policy) -> Option<String> {
        let is_against = |target: &&HoldTarget| match target {
            HoldTarget::Part(part) => nodes.iter().any(|node| part.covers(node)),
            HoldTarget::Tenant(held) => policy.ancestry(&spec.tenant).any(|above| above == held),
        };
        let target = self.fleet_holds.iter().find(is_against)?;
        Some(format!("{target} is held"))
    }

    /// The first booking that these nodes are not open to the job for.
    fn against_bookings(&self, spec: &JobSpec, nodes: &[&NodeSpec], policy: &Policy) -> Option<String> {
        let is_owned = |booked: &Booked| {
            let mut above = policy.ancestry(&spec.tenant);
            let is_named = booked.spec.jobs.is_empty() || booked.spec.jobs.contains(&spec.name);
            is_named && above.any(|tenant| booked.spec.tenant.as_ref() == Some(tenant))
        };
        for (name, booked) in self.bookings.iter().filter(|(_, booked)| booked.is_open) {
            let is_asked = booked.spec.is_shared || spec.booking.as_ref() == Some(name);
            if is_asked && is_owned(booked) {
                continue;
            }
            let has = |node: &&&NodeSpec| {
                let part = booked.spec.part();
                booked.nodes.contains(&node.name) || part.is_some_and(|part| part.covers(node))
            };
            if let Some(node) = nodes.iter().find(has) {
                let node = &node.name;
                let whose = booked.spec.tenant.as_ref().map_or("nobody", Name::as_str);
                return Some(format!("{node} is booked by {name} for {whose}"));
            }
        }
        let name = spec.booking.as_ref()?;
        match self.bookings.get(name).filter(|booked| booked.is_open && is_owned(booked)) {
            None => Some(format!("it names booking {name}, which is not open to it")),
            Some(booked) => {
                let outside = &nodes.iter().find(|node| !booked.nodes.contains(&node.name))?.name;
                Some(format!("it names booking {name}, and {outside} is not of that"))
            }
        }
    }

    /// Which rules another decision breaks.
    pub(super) fn broken_by(&self, decision: &Decision, now: LogTime) -> Vec<(Rule, String)> {
        match decision {
            Decision::BookingOpened { name } => {
                let window = self.bookings.get(name).and_then(|booked| {
                    let times = &booked.spec.times;
                    times.next_at(now).and_then(|number| times.window(number))
                });
                let has_come = window.is_some_and(|window| window.from <= now);
                let text = format!("opens booking {name} at {now}, outside of its windows");
                if has_come { Vec::new() } else { vec![(Rule::BookingBroken, text)] }
            }
            Decision::BookingEnded { name, cause: BookingEnd::WindowOver } => {
                let window =
                    self.bookings.get(name).and_then(|booked| booked.spec.times.window(booked.window));
                let is_early = window.is_none_or(|window| now < window.until);
                let text = format!("ends a window of booking {name} at {now}, before it is over");
                if is_early { vec![(Rule::BookingBroken, text)] } else { Vec::new() }
            }
            Decision::ScheduleRan { schedule, due, run, .. } => {
                self.against_schedule(schedule, *due, run, now)
            }
            Decision::ArrayMembersCreated { array, .. } if self.array_holds.contains_key(array) => {
                vec![(Rule::StartedHeld, format!("creates members of {array}, which is held"))]
            }
            _ => Vec::new(),
        }
    }

    fn against_schedule(
        &self,
        key: &ScheduleKey,
        due: Option<LogTime>,
        run: &ScheduleRun,
        now: LogTime,
    ) -> Vec<(Rule, String)> {
        let mut found = Vec::new();
        let mut breaks = |rule, text: String| found.push((rule, text));
        let Some(moments) = self.schedules.get(key) else {
            breaks(Rule::ScheduleMoment, format!("carries out schedule {key}, which there is not"));
            return found;
        };
        // A run that somebody asked for is no moment of the calendar.
        let Some(due) = due else { return found };
        if due > now {
            breaks(Rule::ScheduleMoment, format!("carries out the moment {due} of {key} at {now}"));
        }
        if let Some(last) = moments.last.filter(|last| due <= *last) {
            breaks(
                Rule::ScheduleMoment,
                format!("carries out the moment {due} of {key} behind that of {last}"),
            );
        }
        if moments.is_suspended {
            breaks(Rule::ScheduleMoment, format!("carries out schedule {key}, which is suspended"));
        }
        let token = token_of(&moments.by.name).filter(|_| matches!(run, ScheduleRun::Submitted(_)));
        if let Some(token) = token {
            let expired = |end: &LogTime| now.since_ms(*end) > TIMER_MS;
            if self.revoked.contains(&token) || self.tokens.get(&token).is_some_and(expired) {
                breaks(
                    Rule::TokenOutlived,
                    format!("carries out schedule {key} by token {token}, which is over"),
                );
            }
        }
        found
    }

    /// Behind every record that the books look at: which grants in force are behind their ends.
    pub(super) fn note_overdue<'a>(
        &mut self,
        in_force: impl Iterator<Item = (u64, &'a QuotaGrant)>,
        now: LogTime,
    ) {
        let mut overdue = BTreeMap::new();
        for (id, _) in in_force.filter(|(_, grant)| grant.until < now) {
            overdue.insert(id, self.overdue.get(&id).copied().unwrap_or(now));
        }
        self.overdue = overdue;
    }

    /// Takes a decision over that was taken.
    pub(super) fn take(&mut self, index: u64, now: LogTime, decision: &Decision) {
        match decision {
            Decision::LeaderStarted => self.overdue.clear(),
            Decision::JobCancelRequested { jobs, .. }
            | Decision::ArraysControlled { control: Control::Cancel, jobs, .. } => {
                self.cancelled.extend(jobs)
            }
            Decision::JobHoldSet { by, jobs, held: true, .. }
            | Decision::JobRequeueRequested { by, jobs, suspended: true, .. } => {
                hold(&mut self.holds, jobs, by);
            }
            Decision::ArraysControlled { by, control: Control::Hold, arrays, jobs, .. } => {
                hold(&mut self.holds, jobs, by);
                hold(&mut self.array_holds, arrays, by);
            }
            Decision::JobHoldSet { jobs, held: false, .. } => release(&mut self.holds, jobs),
            Decision::ArraysControlled { control: Control::Release, arrays, jobs, .. } => {
                release(&mut self.holds, jobs);
                release(&mut self.array_holds, arrays);
            }
            Decision::JobFinished { job, .. } => _ = self.holds.remove(job),
            // What a tree makes of the grants that were in force is the policy's to say.
            Decision::PolicySet { policy, .. } => {
                if policy.tenants.values().any(|tenant| tenant.parent.is_some()) {
                    self.certain.clear();
                }
            }
            Decision::QuotaGranted { .. } => _ = self.certain.insert(index),
            Decision::QuotaAnswered { id, approved: true, .. } => _ = self.certain.insert(id.0),
            Decision::QuotaAnswered { id, approved: false, .. } => _ = self.certain.remove(&id.0),
            Decision::QuotaGrantsEnded { ids } => ids.iter().for_each(|id| _ = self.certain.remove(&id.0)),
            Decision::TokenCreated { token, lifetime_ms, .. } => {
                self.tokens.insert(*token, now.plus_ms(*lifetime_ms));
                self.revoked.remove(token);
            }
            Decision::TokenRevoked { token, .. } => {
                self.tokens.remove(token);
                self.revoked.insert(*token);
            }
            _ => self.take_planned(now, decision),
        }
    }

    /// The same for what has a time: bookings and schedules.
    fn take_planned(&mut self, now: LogTime, decision: &Decision) {
        match decision {
            Decision::BookingCreated { name, spec, nodes, .. } => {
                let (spec, nodes) = (BookingSpec::clone(spec), nodes.clone());
                self.bookings.insert(name.clone(), Booked { spec, nodes, window: 0, is_open: false });
            }
            Decision::BookingDeleted { name, .. } => _ = self.bookings.remove(name),
            Decision::BookingOpened { name } => {
                if let Some(booked) = self.bookings.get_mut(name) {
                    booked.is_open = true;
                }
            }
            Decision::BookingMoved { name, nodes } => {
                if let Some(booked) = self.bookings.get_mut(name) {
                    booked.nodes.clone_from(nodes);
                }
            }
            Decision::BookingEnded { name, cause } => self.end_window(name, *cause, now),
            Decision::FleetHoldSet { target, hold: Some(_), .. } => {
                _ = self.fleet_holds.insert(target.clone())
            }
            Decision::FleetHoldSet { target, hold: None, .. } | Decision::FleetHoldEnded { target } => {
                self.fleet_holds.remove(target);
            }
            Decision::ScheduleSet { by, schedule, is_new, .. } => {
                let before = self.schedules.remove(&schedule.key).filter(|_| !is_new);
                let (last, is_suspended) =
                    before.map_or((None, false), |before| (before.last, before.is_suspended));
                let times = ScheduleTimes { by: by.clone(), last, is_suspended };
                self.schedules.insert(schedule.key.clone(), times);
            }
            Decision::ScheduleDeleted { schedule, .. } => _ = self.schedules.remove(schedule),
            Decision::ScheduleSuspensionSet { schedule, reason, .. } => {
                if let Some(moments) = self.schedules.get_mut(schedule) {
                    moments.is_suspended = reason.is_some();
                }
            }
            Decision::ScheduleRan { schedule, due: Some(due), .. } => {
                if let Some(moments) = self.schedules.get_mut(schedule) {
                    moments.last = Some(*due);
                }
            }
            _ => {}
        }
    }

    /// Behind its last window, or without its owner, a booking is over.
    fn end_window(&mut self, name: &Name, cause: BookingEnd, now: LogTime) {
        let Some(booked) = self.bookings.get_mut(name) else { return };
        let behind = booked.window.saturating_add(1);
        let next = booked.spec.times.next_at(now).map(|next| next.max(behind));
        let next = next.filter(|next| booked.spec.times.window(*next).is_some());
        match next {
            Some(next) if cause == BookingEnd::WindowOver => (booked.window, booked.is_open) = (next, false),
            _ => _ = self.bookings.remove(name),
        }
    }
}
