//! Host files: `host slots=N` lines, as Open MPI (`orte_hosts`(7)) and DeepSpeed read them.
//!
//! A slot is a process: one for each device of a worker, one for a worker without. There are two files. By
//! *addresses*, one line for each host, for a program that starts something by such a list on their own. By
//! *ranks*, one line for each worker under the name `rank-N`: for launchers that reach the gang through
//! its own workers (`crate::launch`), where two workers of one host are two hosts, and for DeepSpeed, which
//! neither takes a host twice nor dials one.

use super::Layout;
use crate::rules::{Placement, RankPlace};
use std::fmt::Write as _;

impl RankPlace {
    /// Processes that the worker has devices for.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.devices).max(1)
    }
}

/// What the worker of a rank is called as a host.
#[must_use]
pub fn rank_name(rank: usize) -> String {
    format!("rank-{rank}")
}

/// One line for each host, in order of their first ranks.
#[must_use]
pub fn by_address(placement: &Placement) -> String {
    let layout = Layout::of(&placement.rank_map);
    layout.by_rank.iter().fold(String::new(), |mut text, host| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} slots={}", host.address, host.slots);
        text
    })
}

/// One line for each worker, in rank order.
#[must_use]
pub fn by_rank(placement: &Placement) -> String {
    placement.rank_map.iter().enumerate().fold(String::new(), |mut text, (rank, place)| {
        let _ = writeln!(text, "{} slots={}", rank_name(rank), place.slots());
        text
    })
}
