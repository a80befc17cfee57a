//! What becomes of a packet: the rules of every ordered pair of hosts, and one seeded generator for each.
//!
//! Pure: it is told the time and the size of a packet. The same seed and the same packets at the same times
//! meet the same fate. A generator for each pair keeps one link's decisions free of what others carry.

use super::rules::{HostSet, Link, PacketRatio, Rule, RuleError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// A host, as rules speak of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The host's name.
    pub name: String,
    /// The region it is in.
    pub region: String,
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets that came in.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that were sent on; together with what was dropped, and less `duplicated`, these are `packets`.
    pub forwarded: u64,
    /// Dropped because the link was cut, or flapped and was down.
    pub cut: u64,
    /// Dropped by chance.
    pub lost: u64,
    /// Dropped because too much waited already.
    pub overflowed: u64,
    /// Packets that were sent on twice.
    pub duplicated: u64,
    /// Packets that may overtake others.
    pub reordered: u64,
    /// Packets with a turned bit.
    pub corrupted: u64,
}

/// One copy of a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Duration,
    /// The bit to turn, counted from the first of the packet.
    pub turned_bit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Passage {
    Open,
    Cut,
    Flapping { since: Duration, up: Duration, down: Duration },
}

impl Passage {
    fn is_open(&self, now: Duration) -> bool {
        match self {
            Passage::Open => true,
            Passage::Cut => false,
            Passage::Flapping { since, up, down } => {
                let period = up.saturating_add(*down).as_nanos().max(1);
                now.saturating_sub(*since).as_nanos() % period < up.as_nanos()
            }
        }
    }
}

struct Pair {
    link: Link,
    /// What `Heal` goes back to.
    built_with: Link,
    passage: Passage,
    random: StdRng,
    /// When the last packet that keeps its order arrives.
    last_at: Duration,
    /// When everything that waits for the rate has been sent.
    free_at: Duration,
    stats: LinkStats,
}

/// The rules of all pairs.
pub struct Engine {
    sites: Vec<Site>,
    /// By sender, then receiver; the pairs of a host with itself are there and never used.
    pairs: Vec<Pair>,
}

impl Engine {
    /// Links that carry everything at once, between these hosts.
    pub fn new(sites: Vec<Site>, seed: u64) -> Engine {
        let pairs = (0..sites.len() * sites.len()).map(|at| Pair {
            link: Link::default(),
            built_with: Link::default(),
            passage: Passage::Open,
            random: StdRng::seed_from_u64(mixed(seed, at as u64)),
            last_at: Duration::ZERO,
            free_at: Duration::ZERO,
            stats: LinkStats::default(),
        });
        let pairs = pairs.collect();
        Engine { sites, pairs }
    }

    /// The hosts, in the order of their numbers.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Applies all of these, or none of them if one names hosts that are not there. Answers how many ordered
    /// pairs they touched. What is under way already arrives as it would have.
    pub fn apply(&mut self, now: Duration, rules: &[Rule]) -> Result<usize, RuleError> {
        let meant: Vec<Vec<usize>> = rules.iter().map(|rule| self.meant(rule)).collect::<Result<_, _>>()?;
        for (rule, pairs) in rules.iter().zip(&meant) {
            for at in pairs {
                self.pairs[*at].change(now, rule);
            }
        }
        Ok(meant.iter().map(Vec::len).sum())
    }

    /// What the links are now is what `Heal` goes back to.
    pub fn keep_as_built(&mut self) {
        self.pairs.iter_mut().for_each(|pair| pair.built_with = pair.link);
    }

    fn meant(&self, rule: &Rule) -> Result<Vec<usize>, RuleError> {
        let (from, to) = match rule {
            Rule::Heal => (&HostSet::Everyone, &HostSet::Everyone),
            Rule::Cut { from, to }
            | Rule::Mend { from, to }
            | Rule::Flap { from, to, .. }
            | Rule::Link { from, to, .. } => (from, to),
        };
        let (senders, receivers) = (self.hosts_in(from), self.hosts_in(to));
        let pairs: Vec<usize> = senders
            .iter()
            .flat_map(|a| receivers.iter().map(move |b| (*a, *b)))
            .filter(|(a, b)| a != b)
            .map(|(a, b)| a * self.sites.len() + b)
            .collect();
        // A place with one host has no pair with itself, which is no mistake; a place without hosts is one.
        if senders.is_empty() || receivers.is_empty() {
            return Err(RuleError::NoPair { from: from.clone(), to: to.clone() });
        }
        Ok(pairs)
    }

    fn hosts_in(&self, place: &HostSet) -> Vec<usize> {
        let hosts = self.sites.iter().enumerate();
        let is_meant = |site: &Site| match place {
            HostSet::Everyone => true,
            HostSet::Region(name) => site.region == *name,
            HostSet::Host(name) => site.name == *name,
        };
        hosts.filter(|(_, site)| is_meant(site)).map(|(at, _)| at).collect()
    }

    /// What becomes of a packet that comes in now: no delivery, one, or two.
    pub fn decide(&mut self, now: Duration, from: usize, to: usize, bytes: usize) -> [Option<Delivery>; 2] {
        assert!(
            from != to && from < self.sites.len() && to < self.sites.len(),
            "no link from {from} to {to}"
        );
        let at = from * self.sites.len() + to;
        self.pairs[at].decide(now, bytes as u64)
    }

    /// Counts a copy that was dropped after all, because the queue was full.
    pub fn overflowed(&mut self, from: usize, to: usize) {
        let stats = &mut self.pairs[from * self.sites.len() + to].stats;
        stats.forwarded -= 1;
        stats.overflowed += 1;
    }

    /// What the link from one host to another did so far.
    pub fn stats(&self, from: usize, to: usize) -> LinkStats {
        self.pairs[from * self.sites.len() + to].stats
    }

    /// What the link from one host to another is now.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.pairs[from * self.sites.len() + to].link
    }
}

impl Pair {
    fn change(&mut self, now: Duration, rule: &Rule) {
        match rule {
            Rule::Cut { .. } => self.passage = Passage::Cut,
            Rule::Mend { .. } => self.passage = Passage::Open,
            Rule::Flap { up, down, .. } => {
                self.passage = Passage::Flapping { since: now, up: *up, down: *down };
            }
            Rule::Link { change, .. } => {
                change.apply(&mut self.link);
                // A link that became faster does not wait for what is still under way on the slow one.
                self.last_at = Duration::ZERO;
            }
            Rule::Heal => {
                self.passage = Passage::Open;
                self.link = self.built_with;
                self.last_at = Duration::ZERO;
            }
        }
        if self.link.rate.is_none() {
            self.free_at = now;
        }
    }

    fn decide(&mut self, now: Duration, bytes: u64) -> [Option<Delivery>; 2] {
        self.stats.packets += 1;
        self.stats.bytes += bytes;
        if !self.passage.is_open(now) {
            self.stats.cut += 1;
            return [None, None];
        }
        if self.hits(self.link.loss) {
            self.stats.lost += 1;
            return [None, None];
        }
        let Some(sent_at) = self.send(now, bytes) else {
            self.stats.overflowed += 1;
            return [None, None];
        };
        let first = self.deliver(sent_at, bytes);
        if !self.hits(self.link.duplicate) {
            return [Some(first), None];
        }
        self.stats.duplicated += 1;
        [Some(first), Some(self.deliver(sent_at, bytes))]
    }

    /// When the last bit is on the wire; `None` if the queue before it is full.
    fn send(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let Some(rate) = self.link.rate else { return Some(now) };
        let nanos = |bytes: u64| u128::from(bytes) * 8_000_000_000 / u128::from(rate);
        let start = self.free_at.max(now);
        if (start - now).as_nanos() > nanos(self.link.queue_bytes) {
            return None;
        }
        let takes = u64::try_from(nanos(bytes)).unwrap_or(u64::MAX);
        self.free_at = start + Duration::from_nanos(takes);
        Some(self.free_at)
    }

    fn deliver(&mut self, sent_at: Duration, bytes: u64) -> Delivery {
        self.stats.forwarded += 1;
        let at = if self.hits(self.link.reorder) {
            self.stats.reordered += 1;
            sent_at + self.link.delay / 2
        } else {
            let at = self.with_jitter(sent_at + self.link.delay).max(sent_at).max(self.last_at);
            self.last_at = at;
            at
        };
        let turned_bit = if self.hits(self.link.corrupt) && bytes > 0 {
            self.stats.corrupted += 1;
            Some(self.random.random_range(0..bytes * 8))
        } else {
            None
        };
        Delivery { at, turned_bit }
    }

    fn with_jitter(&mut self, at: Duration) -> Duration {
        let jitter = u64::try_from(self.link.jitter.as_nanos()).unwrap_or(u64::MAX);
        if jitter == 0 {
            return at;
        }
        let added = Duration::from_nanos(self.random.random_range(0..=jitter.saturating_mul(2)));
        (at + added).saturating_sub(self.link.jitter)
    }

    fn hits(&mut self, share: PacketRatio) -> bool {
        share != PacketRatio::NONE
            && self.random.random_range(0..PacketRatio::ALL.as_millionths()) < share.as_millionths()
    }
}

/// A seed for each pair; neighbours share nothing.
fn mixed(seed: u64, number: u64) -> u64 {
    let mut value = seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
