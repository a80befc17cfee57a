//! Accelerator time by the log. Every accelerator is in exactly one state at each moment, so that what is charged of each type in each
//! region is its capacity × time, to the unit.

use std::collections::BTreeMap;

use muster_journal::Decision;
use muster_ledger::{Ledger, View};
use muster_state::{Applied, State};
use muster_types::Name;

use super::{Checked, Findings, Rule};

/// What the log charges so far.
#[derive(Default)]
pub(super) struct Accounts {
    ledger: Ledger,
    has_failed: bool,
}

impl Accounts {
    /// Looks at a decision before it is applied.
    pub(super) fn before(&mut self, state: &State, decision: &Decision) {
        if !self.has_failed {
            self.ledger.before(state, decision);
        }
    }

    /// Charges what it has changed.
    pub(super) fn after(
        &mut self,
        state: &State,
        applied: &Applied,
        checked: &mut Checked,
        findings: &mut Findings,
    ) {
        if self.has_failed {
            return;
        }
        match self.ledger.after(state, applied) {
            Ok(_) => checked.charged += u64::from(applied.log_index.is_some()),
            Err(error) => {
                self.has_failed = true;
                findings.say(Rule::NotConserved, || format!("the ledger does not take a record: {error}"));
            }
        }
    }

    /// Compares the sums at the end of the log.
    pub(super) fn end(self, findings: &mut Findings) {
        if self.has_failed {
            return;
        }
        for text in unequal(&self.ledger.view(self.ledger.log_time())) {
            findings.say(Rule::NotConserved, || text);
        }
    }
}

/// Types in regions of which something is charged twice, or not at all.
fn unequal(view: &View) -> Vec<String> {
    let mut sums: BTreeMap<(&Name, &Name), (u128, u128)> = BTreeMap::new();
    for row in &view.usage {
        sums.entry((&row.kind, &row.region)).or_default().0 += row.milli_ms;
    }
    for row in &view.capacity {
        sums.entry((&row.kind, &row.region)).or_default().1 += row.milli_ms;
    }
    let differ = sums.into_iter().filter(|(_, (charged, capacity))| charged != capacity);
    differ
        .map(|((kind, region), (charged, capacity))| {
            format!("of {kind} in {region}, {charged} milli-ms are charged and the capacity is {capacity}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_ledger::CapacityRow;

    #[test]
    fn capacity_that_is_charged_to_nobody_is_found() {
        let name = |text: &str| Name::new(text).expect("a name");
        let row = |milli_ms| CapacityRow {
            day: 0,
            kind: name("h100"),
            region: name("eu"),
            purchase: None,
            milli_ms,
        };
        assert_eq!(unequal(&View::default()), Vec::<String>::new());
        let found = unequal(&View { capacity: vec![row(7), row(5)], ..View::default() });
        let expected = "of h100 in eu, 0 milli-ms are charged and the capacity is 12";
        assert_eq!(found, [expected]);
    }
}
