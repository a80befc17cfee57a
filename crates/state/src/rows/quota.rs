//! Requests for quota, grants of it, and accelerator time and dollars that tenants and their users have used, in one table.

use alloc::string::String;
use muster_types::policy::QuotaGrant;
use muster_types::{LogIndex, LogTime, Name};
use serde::{Deserialize, Serialize};

use super::SpendRow;

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum QuotaKey {
    /// A request or a grant, by the record that made it.
    Grant(LogIndex),
    /// The accelerator time of a tenant, or of one of its users.
    Budget(Name, Option<String>),
    /// The dollars of a tenant, or of one of its users.
    Spend(Name, Option<String>),
}

/// The row for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum QuotaRow {
    Grant(QuotaGrantRow),
    Budget(BudgetRow),
    Spend(SpendRow),
}

/// A request for quota, and what became of it; or a grant that nobody had asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaGrantRow {
    /// What was asked for or granted.
    pub grant: QuotaGrant,
    /// Who asked or, without a request, granted it; empty for those that nobody knows.
    pub by: String,
    /// When.
    pub made_at: LogTime,
    /// What became of it.
    pub status: QuotaGrantStatus,
    /// Who approved or denied it, or granted it, and why; none as long as nobody has answered.
    pub answer: Option<QuotaAnswer>,
}

/// Who answered a request for quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaAnswer {
    /// Who; empty for those that nobody knows.
    pub by: String,
    /// The tenant whose administrator it was; none for the operators of the cluster.
    pub giver: Option<Name>,
    /// When.
    pub at: LogTime,
    /// Why.
    pub reason: String,
}

/// What became of a request for quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaGrantStatus {
    /// Nobody has answered.
    Requested,
    /// It adds to the tenant's quota.
    Granted,
    /// Somebody denied it before it was granted.
    Denied,
    /// It was granted, and is over.
    Ended {
        /// When.
        at: LogTime,
        /// Why.
        cause: QuotaGrantEnd,
    },
    /// Nobody answered before the time that it asked for was over, or the policy does not list the tenant any more.
    Lapsed {
        /// When.
        at: LogTime,
    },
}

impl QuotaGrantStatus {
    /// As people read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QuotaGrantStatus::Requested => "requested",
            QuotaGrantStatus::Granted => "granted",
            QuotaGrantStatus::Denied => "denied",
            QuotaGrantStatus::Ended { .. } => "ended",
            QuotaGrantStatus::Lapsed { .. } => "lapsed",
        }
    }

    /// Whether nothing can come of it any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, QuotaGrantStatus::Requested | QuotaGrantStatus::Granted)
    }
}

/// Why a grant is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaGrantEnd {
    /// Its time.
    Expired,
    /// Somebody ended it.
    Withdrawn,
    /// The policy was set, and lists the tenant elsewhere, or not at all, or leaves nothing for the grant.
    PolicySet,
    /// The grant that it came out of is over.
    SourceEnded,
}

impl QuotaGrantEnd {
    /// As people read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QuotaGrantEnd::Expired => "expired",
            QuotaGrantEnd::Withdrawn => "withdrawn",
            QuotaGrantEnd::PolicySet => "policy set",
            QuotaGrantEnd::SourceEnded => "source ended",
        }
    }
}

/// Accelerator time in one window, in thousandths of an accelerator times milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRow {
    /// The length of a window, in milliseconds; from 1.
    pub window_ms: u64,
    /// Up to when it is counted.
    pub as_of: LogTime,
    /// What was charged in the window of that moment, up to it.
    pub used_milli_ms: u128,
    /// Thousandths of accelerators that are charged now.
    pub running_milli: u64,
}

impl BudgetRow {
    /// Nothing used yet.
    #[must_use]
    pub fn new(window_ms: u64, now: LogTime) -> BudgetRow {
        BudgetRow { window_ms: window_ms.max(1), as_of: now, used_milli_ms: 0, running_milli: 0 }
    }

    /// What was used at a moment in the window of that moment; at [`BudgetRow::as_of`] for an earlier one.
    #[must_use]
    pub fn used_at(&self, now: LogTime) -> u128 {
        let now = now.max(self.as_of);
        let window_start = LogTime(now.0 - now.0 % self.window_ms.max(1));
        let (before, since) = match window_start > self.as_of {
            true => (0, window_start),
            false => (self.used_milli_ms, self.as_of),
        };
        let more = u128::from(self.running_milli) * u128::from(now.since_ms(since));
        before.saturating_add(more)
    }

    /// Counts up to a moment; nothing where that is not later.
    pub(crate) fn advance(&mut self, now: LogTime) {
        self.used_milli_ms = self.used_at(now);
        self.as_of = now.max(self.as_of);
    }

    /// When the window ends up to which it is counted and nothing of it counts any more; none while something is charged.
    #[must_use]
    pub(crate) fn over_at(&self) -> Option<LogTime> {
        let window_ms = self.window_ms.max(1);
        let window_start = LogTime(self.as_of.0 - self.as_of.0 % window_ms);
        (self.running_milli == 0).then(|| window_start.plus_ms(window_ms))
    }

    /// Whether nothing is charged, and nothing was in the window of a moment.
    #[must_use]
    pub fn is_blank(&self, now: LogTime) -> bool {
        self.running_milli == 0 && self.used_at(now) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_counted_by_window() {
        let mut row = BudgetRow::new(1_000, LogTime(10_200));
        row.running_milli = 3;
        assert_eq!(row.used_at(LogTime(10_700)), 3 * 500);
        // The window ends: what was used before counts no more.
        assert_eq!(row.used_at(LogTime(11_000)), 0);
        assert_eq!(row.used_at(LogTime(11_100)), 3 * 100);
        assert_eq!(row.used_at(LogTime(10_000)), 0, "time does not go back");
        row.advance(LogTime(10_700));
        row.running_milli = 1;
        assert_eq!(row.used_at(LogTime(10_900)), 3 * 500 + 200);
        assert_eq!(row.used_at(LogTime(25_250)), 250);
    }

    #[test]
    fn how_often_it_is_advanced_makes_no_difference() {
        let start = BudgetRow { running_milli: 7, ..BudgetRow::new(997, LogTime(5)) };
        for until in [6, 500, 996, 997, 998, 2_500, 10_000] {
            let (mut often, mut once) = (start.clone(), start.clone());
            for now in 5..=until {
                often.advance(LogTime(now));
            }
            once.advance(LogTime(until));
            assert_eq!(often, once, "{until}");
        }
    }

    #[test]
    fn what_was_used_is_over_with_its_window() {
        let mut row = BudgetRow::new(1_000, LogTime(10_200));
        row.running_milli = 3;
        assert_eq!(row.over_at(), None);
        row.advance(LogTime(10_999));
        row.running_milli = 0;
        assert_eq!(row.over_at(), Some(LogTime(11_000)));
        assert!(!row.is_blank(LogTime(10_999)) && row.is_blank(LogTime(11_000)));
    }

    #[test]
    fn nothing_overflows() {
        let mut row = BudgetRow::new(u64::MAX, LogTime(0));
        row.running_milli = u64::MAX;
        row.advance(LogTime(u64::MAX - 1));
        row.running_milli = u64::MAX;
        assert!(row.used_at(LogTime(u64::MAX)) < u128::MAX);
    }
}
