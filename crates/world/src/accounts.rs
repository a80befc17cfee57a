//! The log, charged once by the ledger, as whichever replica is the first to apply it.
//!
//! **Invariant:** of each type in each region, the sum over all states is capacity × time, to the unit.

use muster_journal::Round;
use muster_ledger::Ledger;
use muster_state::State;
use muster_types::Name;
use std::collections::BTreeMap;

/// What was charged so far.
#[derive(Default)]
pub struct Accounts {
    /// A state apart: the ledger looks at it before and behind each record.
    state: State,
    ledger: Ledger,
    has_failed: bool,
}

impl Accounts {
    /// Charges a round that was applied; why the ledger does not take it, once.
    pub fn charge(&mut self, round: &Round) -> Option<String> {
        if self.has_failed {
            return None;
        }
        let error = self.ledger.fold_round(&mut self.state, round).err()?;
        self.has_failed = true;
        Some(format!("the ledger does not take a record: {error}"))
    }

    /// What is charged twice, or not at all.
    #[must_use]
    pub fn unbalanced(&self) -> Vec<String> {
        let view = self.ledger.view(self.ledger.log_time());
        let mut sums: BTreeMap<(&Name, &Name), (u128, u128)> = BTreeMap::new();
        for row in &view.usage {
            sums.entry((&row.kind, &row.region)).or_default().0 += row.milli_ms;
        }
        for row in &view.capacity {
            sums.entry((&row.kind, &row.region)).or_default().1 += row.milli_ms;
        }
        let unequal = sums.into_iter().filter(|(_, (charged, capacity))| charged != capacity);
        unequal
            .map(|((kind, region), (charged, capacity))| {
                format!("of {kind} in {region}, {charged} is charged and the capacity is {capacity}")
            })
            .collect()
    }
}
