//! The simulated network: who reaches whom, how long a message takes, and which are lost or come twice.
//!
//! A message is under way whatever becomes of its sender. Cuts are per ordered pair, so partitions can be
//! symmetric, partial or one-way; a message into a cut vanishes without a word.

use crate::runtime::{Host, below, chance};
use std::collections::{BTreeMap, BTreeSet};

/// Round trips between the three regions: 30, 80 and 140 ms; 0.6 ms inside one.
const ONE_WAY_NS: [[u64; 3]; 3] =
    [[300_000, 15_000_000, 40_000_000], [15_000_000, 300_000, 70_000_000], [40_000_000, 70_000_000, 300_000]];
/// How many messages in a thousand are late without a fault.
const STRAGGLERS_PERMILLE: u64 = 3;
const STRAGGLER_NS_MAX: u64 = 120_000_000;

/// The state of the network.
#[derive(Default)]
pub struct Network {
    /// Ordered pairs between which nothing passes.
    cuts: BTreeSet<(Host, Host)>,
    regions: BTreeMap<Host, usize>,
    /// Messages lost, of a thousand.
    pub loss_permille: u64,
    /// Messages that come twice, of a thousand.
    pub twice_permille: u64,
    /// Up to this is added to every message, which puts them out of order.
    pub jitter_ns: u64,
}

impl Network {
    /// Puts a host into a region.
    pub fn place(&mut self, host: Host, region: usize) {
        self.regions.insert(host, region % ONE_WAY_NS.len());
    }

    /// Lets nothing pass from one host to another.
    pub fn cut(&mut self, from: Host, to: Host) {
        self.cuts.insert((from, to));
    }

    /// Nothing is cut, lost, late or doubled by a fault any more.
    pub fn heal(&mut self) {
        self.cuts.clear();
        (self.loss_permille, self.twice_permille, self.jitter_ns) = (0, 0, 0);
    }

    /// How long a message takes; none when it is lost.
    pub fn leg(&self, from: Host, to: Host) -> Option<u64> {
        if self.cuts.contains(&(from, to)) || chance(self.loss_permille) {
            return None;
        }
        let region = |host| self.regions.get(&host).copied().unwrap_or(0);
        let base = ONE_WAY_NS[region(from)][region(to)];
        let late = if chance(STRAGGLERS_PERMILLE) { below(STRAGGLER_NS_MAX) } else { 0 };
        Some(base + below(base / 5 + 1) + below(self.jitter_ns + 1) + late)
    }

    /// Whether this message comes twice.
    pub fn comes_twice(&self) -> bool {
        chance(self.twice_permille)
    }
}
