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

/// Workers with consecutive ranks that are in one domain of a level together: `0..n`, `n..2n` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Which domains.
    pub level: Level,
    /// From 1; divides the number of workers of what it lies in.
    pub workers: u32,
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
    /// Workers that stay in one rack together: ranks `0..n`, `n..2n` and so on. 0 for none. Short for one segment of the
    /// level rack.
    pub segment_workers: u32,
    /// Segments within segments, from the outside in. Empty for none, or where the short form says it.
    pub segments: Vec<Segment>,
    /// For serving: no domain has more of them than this.
    pub spread: Option<Spread>,
}

impl TopologyRule {
    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_free(&self) -> bool {
        *self == TopologyRule::default()
    }

    /// The segments of both forms, from the outside in.
    pub fn all_segments(&self) -> impl Iterator<Item = Segment> {
        let short = Segment { level: Level::Rack, workers: self.segment_workers };
        (short.workers > 0).then_some(short).into_iter().chain(self.segments.iter().copied())
    }

    /// Whether workers stay together in segments.
    #[must_use]
    pub fn has_segments(&self) -> bool {
        self.segment_workers > 0 || !self.segments.is_empty()
    }

    /// The number whose multiples are the numbers of workers that a domain of this level may have: the size of the
    /// outermost of the segments that a domain of the level holds whole. 1 where there is none.
    #[must_use]
    pub fn unit_in(&self, level: Level) -> u32 {
        let inside = self.all_segments().filter(|segment| segment.level >= level);
        inside.map(|segment| segment.workers).max().unwrap_or(1).max(1)
    }

    /// The number whose multiples are the numbers of workers that the gang may have: the size of its outermost segment. 1
    /// where it has none.
    #[must_use]
    pub fn segment_unit(&self) -> u32 {
        self.unit_in(Level::Block)
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
            } else if !self.segments.is_empty() {
                found.push(Violation::new(
                    "topology.spread",
                    "spreads workers apart, and topology.segments hold them together: use one",
                ));
            }
        }
        if self.segment_workers > 0 && !workers.is_multiple_of(self.segment_workers) {
            found.push(Violation::new(
                "topology.segment_workers",
                alloc::format!("must divide the gang's {workers} workers, got {}", self.segment_workers),
            ));
        }
        self.check_segments(workers, found);
    }

    /// Rules of segments within segments.
    fn check_segments(&self, workers: u32, found: &mut Vec<Violation>) {
        let count = self.segments.len();
        if count > limits::SEGMENTS_MAX {
            let max = limits::SEGMENTS_MAX as u64;
            found.push(Violation::limit("topology.segments", count as u64, 0, max));
            return;
        }
        if count > 0 && self.segment_workers > 0 {
            found.push(Violation::new(
                "topology.segments",
                "says in full what topology.segment_workers says in short: use one",
            ));
        }
        if self.balanced && self.segments.iter().any(|segment| segment.level < Level::Rack) {
            found.push(Violation::new(
                "topology.segments",
                "must lie inside racks where topology.balanced spreads the workers evenly over racks",
            ));
        }
        let mut outer: Option<Segment> = None;
        for (place, segment) in self.segments.iter().enumerate() {
            let field = |name: &str| alloc::format!("topology.segments[{place}].{name}");
            if outer.is_some_and(|outer| segment.level <= outer.level) {
                found.push(Violation::new(
                    field("level"),
                    "must be a level inside that of the segment before: block, rack, host",
                ));
            }
            let whole = outer.map_or(workers, |outer| outer.workers);
            if segment.workers == 0 || segment.workers > limits::GANG_WORKERS_MAX {
                let max = limits::GANG_WORKERS_MAX.into();
                found.push(Violation::limit(&field("workers"), segment.workers.into(), 1, max));
            } else if !whole.is_multiple_of(segment.workers) {
                let of = if outer.is_some() { "the segment before it has" } else { "the gang has" };
                found.push(Violation::new(
                    field("workers"),
                    alloc::format!("must divide the {whole} workers that {of}, got {}", segment.workers),
                ));
            }
            outer = Some(*segment);
        }
    }
}
