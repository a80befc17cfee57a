//! The log, followed once, decision by decision, as whichever replica is the first to apply it.
//!
//! **Invariant:** a finding names the record that breaks the rule.

use crate::asked::accepted_as;
use muster_decider::stop_request_of;
use muster_drill::judge::LogBooks;
use muster_journal::{Decision, Round};
use muster_state::State;
use muster_types::{ArrayId, FieldChange, LogIndex, RequestId, Requester, TokenId};
use std::collections::{BTreeMap, BTreeSet};

/// Who owns every schedule; perhaps by a token.
pub const SCHEDULE_OWNER: &str = "tenant/free/nightly";

/// A gang that was placed is to have another number of workers, as [`Follower::accepted`] names it.
pub const SIZE_CHANGED: &str = "size of a placed gang";
/// A gang was stopped for that, by a record with a request id that is derived from the one of the change.
pub const STOPPED_FOR_SIZE: &str = "stop for a size";

/// What was followed.
#[derive(Default)]
pub struct Follower {
    /// The books that drills are judged by, too.
    books: LogBooks,
    /// The last record that has a position.
    reached: LogIndex,
    /// How often the log has what somebody asked for, by the decision's name.
    pub accepted: BTreeMap<&'static str, u64>,
    /// Requests that leaders made for schedules.
    pub scheduled: BTreeSet<RequestId>,
    /// Ids that the stops of gangs have, or would have, whose size was changed while they were placed.
    pub size_stops: BTreeSet<RequestId>,
    /// The throttles that arrays have had.
    pub throttles: Throttles,
    /// Tokens that were revoked.
    revoked: BTreeSet<TokenId>,
}

/// The highest throttle that each array has had so far; none where it once had no limit, or nobody saw what it had before.
///
/// No member is stopped for a throttle that is lowered, so as many as were ever allowed may be under way.
#[derive(Default)]
pub struct Throttles(BTreeMap<ArrayId, Option<u32>>);

impl Throttles {
    /// What a state has. What it had before every change that follows is known then.
    fn seen(&mut self, array: ArrayId, throttle: Option<u32>) {
        let highest = self.0.entry(array).or_insert(throttle);
        *highest = highest.zip(throttle).map(|(highest, throttle)| highest.max(throttle));
    }

    /// What a record sets it to.
    fn changed(&mut self, array: ArrayId, throttle: Option<u32>) {
        match self.0.get(&array) {
            Some(_) => self.seen(array, throttle),
            // It was submitted in the same round.
            None => _ = self.0.insert(array, None),
        }
    }

    /// Whether no throttle so far has allowed this number of members under way.
    pub fn forbade(&self, array: ArrayId, running: u32) -> bool {
        self.0.get(&array).copied().flatten().is_some_and(|highest| running > highest)
    }
}

fn is_of_schedules(by: &Requester) -> bool {
    by.name.starts_with(SCHEDULE_OWNER)
}

impl Follower {
    /// A round that was applied, with the state behind it; what it breaks.
    pub fn applied(&mut self, round: &Round, state: &State) -> Vec<String> {
        let mut found = Vec::new();
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0.saturating_add(ordinal as u64));
            // What a leader wrote whose time was over has no position.
            if index <= self.reached || index > state.log_index() {
                continue;
            }
            let broken = self.books.record(index, round.log_time, decision, true);
            found.extend(broken.into_iter().map(|text| format!("record {index}: {text}")));
            self.note(decision);
        }
        self.reached = self.reached.max(state.log_index());
        for (array, row) in state.arrays().iter() {
            self.throttles.seen(*array, row.template.array.throttle);
        }
        let now = state.log_time();
        for token in self.revoked.iter().filter(|token| state.live_token(**token, now).is_some()) {
            found.push(format!("token {token} is accepted behind {}, and was revoked", state.log_index()));
        }
        found
    }

    fn note(&mut self, decision: &Decision) {
        if let Some(name) = accepted_as(decision) {
            *self.accepted.entry(name).or_default() += 1;
        }
        match decision {
            Decision::JobModified { request, changes, .. }
                if changes.iter().any(|change| matches!(change, FieldChange::Size(_))) =>
            {
                self.size_stops.insert(stop_request_of(request.id));
                *self.accepted.entry(SIZE_CHANGED).or_default() += 1;
            }
            Decision::JobRequeueRequested { request, .. } if self.size_stops.contains(&request.id) => {
                *self.accepted.entry(STOPPED_FOR_SIZE).or_default() += 1;
            }
            Decision::JobsSubmitted { request, by, .. }
            | Decision::JobCancelRequested { request, by, .. }
                if is_of_schedules(by) =>
            {
                self.scheduled.insert(request.id);
            }
            Decision::ArrayThrottleSet { array, throttle, .. } => self.throttles.changed(*array, *throttle),
            Decision::TokenRevoked { token, .. } => _ = self.revoked.insert(*token),
            Decision::TokenCreated { token, .. } => _ = self.revoked.remove(token),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_no_more_members_under_way_than_its_highest_throttle_so_far() {
        let (changed, open, unseen) = (ArrayId(1), ArrayId(2), ArrayId(3));
        let mut throttles = Throttles::default();
        throttles.seen(changed, Some(2));
        throttles.seen(open, Some(2));
        assert!(throttles.forbade(changed, 3) && !throttles.forbade(changed, 2));
        for throttle in [5, 1] {
            throttles.changed(changed, Some(throttle));
            throttles.seen(changed, Some(throttle));
        }
        assert!(throttles.forbade(changed, 6) && !throttles.forbade(changed, 5));
        throttles.changed(open, None);
        throttles.changed(open, Some(1));
        throttles.changed(unseen, Some(1));
        assert!(!throttles.forbade(open, 100) && !throttles.forbade(unseen, 100));
    }
}
