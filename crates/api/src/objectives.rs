//! What a replica has spent of the error budgets of the objectives in `ops/slo`: an account by days, which outlives the process.
//!
//! **Invariant:** an account has at most [`DAYS_KEPT`] days and one row for each objective and day, so that its text is small.

use muster_engine::Engine;
use muster_metrics::ReplicaMetrics;
use muster_page::{ErrorBudget, ErrorBudgets};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::facts::hears_leader;
use crate::measure;

/// Days that objectives are promised over.
pub const DAYS_KEPT: u64 = 30;

/// What a text begins with.
const HEADER: &str = "muster objectives 1";
/// The objectives, as texts name them; those of calls come first, in the order of [`measure::OBJECTIVES`].
const NAMES: [&str; 3] = ["submissions-answered", "reads-answered", "leader-present"];
/// The place of the one that is about time.
const LEADER: usize = 2;
/// What that promises, and the millionths of the time that may be bad.
const LEADER_PROMISE: (&str, u64) = ("A replica leads and a quorum confirms it.", 500);

/// Calls, or milliseconds of time, and those of them that were bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    all: u64,
    bad: u64,
}

impl Spent {
    fn plus(self, other: Spent) -> Spent {
        Spent { all: self.all.saturating_add(other.all), bad: self.bad.saturating_add(other.bad) }
    }

    fn minus(self, other: Spent) -> Spent {
        Spent { all: self.all.saturating_sub(other.all), bad: self.bad.saturating_sub(other.bad) }
    }
}

#[derive(Debug, Default)]
struct Account {
    /// By days since 1970.
    days: BTreeMap<u64, [Spent; NAMES.len()]>,
    /// What the counters of calls of this process said when they were last looked at.
    seen: [Spent; LEADER],
    /// Whether what was there could not be read.
    is_restarted: bool,
}

impl Account {
    fn add(&mut self, day: u64, objective: usize, spent: Spent) {
        let of_day = self.days.entry(day).or_default();
        if let Some(found) = of_day.get_mut(objective) {
            *found = found.plus(spent);
        }
        let oldest = day.saturating_sub(DAYS_KEPT - 1);
        // A clock that was wrong for a while leaves no days of the future; one more is left, for clocks differ by moments.
        self.days.retain(|known, _| (oldest..=day.saturating_add(1)).contains(known));
    }
}

/// The account of one replica. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ObjectiveAccount(Arc<Mutex<Account>>);

impl ObjectiveAccount {
    /// An empty one in the place of one that could not be read; the first page says it.
    #[must_use]
    pub fn restarted() -> ObjectiveAccount {
        ObjectiveAccount(Arc::new(Mutex::new(Account { is_restarted: true, ..Account::default() })))
    }

    /// An account by its text; none for a text that is damaged.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<ObjectiveAccount> {
        let text = std::str::from_utf8(text).ok()?;
        let (rows, sum) = text.trim_end_matches('\n').rsplit_once('\n')?;
        let sum = u32::from_str_radix(sum, 16).ok()?;
        if crc32fast::hash(rows.as_bytes()) != sum {
            return None;
        }
        let mut lines = rows.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut account = Account::default();
        for line in lines {
            let mut words = line.split(' ');
            let day: u64 = words.next()?.parse().ok()?;
            let name = words.next()?;
            let (all, bad) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let objective = NAMES.iter().position(|known| *known == name)?;
            let of_day = account.days.entry(day).or_default();
            *of_day.get_mut(objective)? = Spent { all, bad };
            if words.next().is_some() || account.days.len() as u64 > DAYS_KEPT + 1 {
                return None;
            }
        }
        Some(ObjectiveAccount(Arc::new(Mutex::new(account))))
    }

    /// The text of the account, to be kept.
    #[must_use]
    pub fn text(&self) -> String {
        let account = self.0.lock();
        let mut text = HEADER.to_owned();
        for (day, objectives) in &account.days {
            for (name, Spent { all, bad }) in NAMES.iter().zip(objectives) {
                text.push_str(&format!("\n{day} {name} {all} {bad}"));
            }
        }
        let sum = crc32fast::hash(text.as_bytes());
        text.push_str(&format!("\n{sum:08x}\n"));
        text
    }

    /// Counts time that has passed, by whether this replica leads or hears a leader now.
    pub fn note_leader(&self, engine: &Engine, day: u64, passed: Duration) {
        let leads = engine.consensus().leadership().borrow().mine.is_some();
        let has_leader = leads || hears_leader(&engine.consensus().status());
        self.note_time(day, passed, has_leader);
    }

    fn note_time(&self, day: u64, passed: Duration, is_good: bool) {
        let all = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        self.0.lock().add(day, LEADER, Spent { all, bad: if is_good { 0 } else { all } });
    }

    /// Counts the calls that were answered since it was last asked to.
    pub fn note_calls(&self, metrics: &ReplicaMetrics, day: u64) {
        let now = calls(metrics);
        let mut account = self.0.lock();
        let seen = std::mem::replace(&mut account.seen, now);
        for (objective, (now, seen)) in now.into_iter().zip(seen).enumerate() {
            account.add(day, objective, now.minus(seen));
        }
    }

    /// What was spent in the days that are kept, with the calls of this moment.
    pub(crate) fn budgets(&self, metrics: &ReplicaMetrics) -> ErrorBudgets {
        let now = calls(metrics);
        let account = self.0.lock();
        let sum = |objective: usize| {
            let days = account.days.values().filter_map(|of_day| of_day.get(objective));
            days.fold(Spent::default(), |sum, spent| sum.plus(*spent))
        };
        let of_calls = measure::OBJECTIVES.into_iter().zip(now).zip(account.seen).enumerate();
        let mut rows: Vec<ErrorBudget> = of_calls
            .map(|(objective, (((promise, budget_millionths, _), now), seen))| {
                let Spent { all, bad } = sum(objective).plus(now.minus(seen));
                ErrorBudget { promise, budget_millionths, calls: all, failed: bad, is_time: false }
            })
            .collect();
        let Spent { all, bad } = sum(LEADER);
        let (promise, budget_millionths) = LEADER_PROMISE;
        rows.push(ErrorBudget {
            promise,
            budget_millionths,
            calls: all / 1_000,
            failed: bad / 1_000,
            is_time: true,
        });
        ErrorBudgets { rows, days: account.days.len() as u64, is_restarted: account.is_restarted }
    }
}

fn calls(metrics: &ReplicaMetrics) -> [Spent; LEADER] {
    measure::spent(metrics).map(|(all, bad)| Spent { all, bad })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_metrics::CallLabels;

    fn submitted(metrics: &ReplicaMetrics, code: &'static str) {
        let labels = CallLabels { method: "muster.v1beta1.JobService/SubmitJob", code, bound: "" };
        metrics.answered(labels, None);
    }

    fn shown(account: &ObjectiveAccount, metrics: &ReplicaMetrics) -> Vec<(u64, u64)> {
        account.budgets(metrics).rows.iter().map(|row| (row.calls, row.failed)).collect()
    }

    #[test]
    fn an_account_goes_on_after_a_restart_and_counts_no_call_twice() {
        let (account, metrics) = (ObjectiveAccount::default(), ReplicaMetrics::default());
        submitted(&metrics, "OK");
        submitted(&metrics, "UNAVAILABLE");
        account.note_calls(&metrics, 100);
        account.note_calls(&metrics, 100);
        account.note_time(100, Duration::from_secs(9), true);
        account.note_time(100, Duration::from_secs(1), false);
        // Not noted yet, and shown all the same.
        submitted(&metrics, "OK");
        assert_eq!(shown(&account, &metrics), [(3, 1), (0, 0), (10, 1)]);
        let again = ObjectiveAccount::read(account.text().as_bytes()).expect("it is whole");
        let fresh = ReplicaMetrics::default();
        assert_eq!(shown(&again, &fresh), [(2, 1), (0, 0), (10, 1)]);
        submitted(&fresh, "OK");
        again.note_calls(&fresh, 101);
        assert_eq!(shown(&again, &fresh), [(3, 1), (0, 0), (10, 1)]);
        assert_eq!(again.budgets(&fresh).days, 2);
    }

    #[test]
    fn days_that_are_too_old_are_forgotten() {
        let account = ObjectiveAccount::default();
        for day in 0..100 {
            account.note_time(day, Duration::from_secs(1), true);
        }
        assert_eq!(shown(&account, &ReplicaMetrics::default())[LEADER], (DAYS_KEPT, 0));
        account.note_time(u64::MAX, Duration::from_secs(5), true);
        account.note_time(100, Duration::from_secs(1), true);
        assert_eq!(shown(&account, &ReplicaMetrics::default())[LEADER], (1, 0), "the clock was wrong");
    }

    #[test]
    fn a_damaged_account_is_none() {
        let account = ObjectiveAccount::default();
        account.note_time(100, Duration::from_secs(1), true);
        let text = account.text();
        assert!(ObjectiveAccount::read(text.as_bytes()).is_some());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 0x10;
            assert!(ObjectiveAccount::read(&bytes).is_none(), "{at}");
            assert!(ObjectiveAccount::read(&text.as_bytes()[..at]).is_none() || at + 1 == text.len(), "{at}");
        }
        assert!(ObjectiveAccount::restarted().budgets(&ReplicaMetrics::default()).is_restarted);
    }

    #[test]
    fn the_objective_about_leaders_is_that_of_its_file() {
        let file = include_str!("../../../ops/slo/leader-present.yaml");
        let (promise, budget) = LEADER_PROMISE;
        assert!(file.contains(&format!("description: {promise}\n")) && budget == 500);
        assert!(file.contains("objective: \"99.95\""), "{file}");
    }
}
