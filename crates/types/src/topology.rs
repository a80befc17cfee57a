//! How close together or how far apart the workers of a gang have to be.

use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::reason::Violation;

/// A level of the fleet's tree below the cluster, from the outside in. A gang never leaves its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Spine block.
    Block,
    /// Rack or NVLink domain.
    Rack,
    /// One host.
    Host,
}

impl Level {
    /// Every level, outermost first.
    pub const ALL: [Level; 3] = [Level::Block, Level::Rack, Level::Host];

    /// As users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Block => "block",
            Level::Rack => "rack",
            Level::Host => "host",
        }
    }

    /// The level a user named.
    #[must_use]
    pub fn parse(text: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// At most this many workers in one domain of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// Which domains.
    pub level: Level,
    /// From 1.
    pub workers_max: u32,
}

/// Where the workers of a gang have to be with respect to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopologyRule {
    /// All of them in one domain of this level, or the gang does not start.
    pub required: Option<Level>,
    /// All of them in one domain of this level if that can be had now; else where they are closest.
    pub preferred: Option<Level>,
    /// Spread evenly over as few racks as can hold them: the counts of any two racks differ by at most
    /// one segment. For all-to-all traffic inside an NVLink domain.
    pub balanced: bool,
    /// Workers that stay in one rack together: ranks `0..n`, `n..2n` and so on. 0 for none.
    pub segment_workers: u32,
    /// For serving: no domain has more of them than this.
    pub spread: Option<Spread>,
}

impl TopologyRule {
    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_free(&self) -> bool {
        *self == TopologyRule::default()
    }

    /// Adds every rule that is broken by a gang of this many workers.
    pub fn check(&self, workers: u32, found: &mut Vec<Violation>) {
        if let (Some(required), Some(preferred)) = (self.required, self.preferred)
            && preferred <= required
        {
            found.push(Violation::new("topology.preferred", "must be a level inside the required one"));
        }
        if let Some(spread) = self.spread {
            let max = limits::GANG_WORKERS_MAX;
            if spread.workers_max == 0 || spread.workers_max > max {
                let field = "topology.spread.workers_max";
                found.push(Violation::limit(field, spread.workers_max.into(), 1, max.into()));
            }
            if self.required.is_some_and(|level| level >= spread.level) && spread.workers_max < workers {
                found.push(Violation::new(
                    "topology.spread",
                    "asks for several domains, and topology.required for one of the same level or inside it",
                ));
            }
            if self.balanced || self.segment_workers > 0 {
                found.push(Violation::new(
                    "topology.spread",
                    "spreads workers apart, and topology.balanced and segment_workers hold them together: use one",
                ));
            }
        }
        if self.segment_workers > 0 && !workers.is_multiple_of(self.segment_workers) {
            found.push(Violation::new(
                "topology.segment_workers",
                alloc::format!("must divide the gang's {workers} workers, got {}", self.segment_workers),
            ));
        }
    }
}
