//! The books of the judge by themselves: for a simulator, which has the log record by record and no history.

use muster_journal::Decision;
use muster_types::{LogIndex, LogTime};

use super::leases::Leases;
use super::{Checked, Findings};

/// Who holds which devices, what tenants use of their quotas, and what people have asked, counted from the records alone.
#[derive(Default)]
pub struct LogBooks {
    leases: Leases,
    checked: Checked,
}

impl LogBooks {
    /// Takes the next record of the log over; what it breaks, a sentence each. One that the guard refused is held against the
    /// books as well, and changes nothing in them.
    pub fn record(
        &mut self,
        index: LogIndex,
        log_time: LogTime,
        decision: &Decision,
        was_taken: bool,
    ) -> Vec<String> {
        let mut findings = Findings::default();
        self.leases.before(decision);
        self.leases.after((index.0, log_time), was_taken, &mut self.checked, &mut findings);
        let said = |(rule, breaches): (super::Rule, super::Breaches)| {
            breaches.first.into_iter().map(move |finding| format!("{rule}: {}", finding.text))
        };
        findings.0.into_iter().flat_map(said).collect()
    }

    /// Places of workers that were counted.
    #[must_use]
    pub fn leases(&self) -> u64 {
        self.checked.leases
    }
}
