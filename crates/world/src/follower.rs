//! The log, followed once, decision by decision, as whichever replica is the first to apply it.
//!
//! **Invariant:** a finding names the record that breaks the rule.

use crate::asked::accepted_as;
use muster_drill::judge::LogBooks;
use muster_journal::{Decision, Round};
use muster_state::State;
use muster_types::{ArrayId, LogIndex, RequestId, Requester, TokenId};
use std::collections::{BTreeMap, BTreeSet};

/// Who owns every schedule; perhaps by a token.
pub const SCHEDULE_OWNER: &str = "tenant/free/nightly";

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
    /// Arrays whose throttle was changed: members that ran under another are still there.
    pub throttled: BTreeSet<ArrayId>,
    /// Tokens that were revoked.
    revoked: BTreeSet<TokenId>,
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
            Decision::JobsSubmitted { request, by, .. }
            | Decision::JobCancelRequested { request, by, .. }
                if is_of_schedules(by) =>
            {
                self.scheduled.insert(request.id);
            }
            Decision::ArrayThrottleSet { array, .. } => _ = self.throttled.insert(*array),
            Decision::TokenRevoked { token, .. } => _ = self.revoked.insert(*token),
            Decision::TokenCreated { token, .. } => _ = self.revoked.remove(token),
            _ => {}
        }
    }
}
