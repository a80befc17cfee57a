//! What a probe of the network between some hosts measures, and what follows from it.
//!
//! A gang is as fast as its slowest link, and a link that is slow rather than broken is seen by nobody but
//! the gang. So before a large gang starts, its hosts measure every pair of one another, and a host that
//! falls far behind the others is named.
//!
//! **Invariant:** no host is blamed for what all hosts share, for one pair alone, or for the load of its processors:
//! a link is slow against the median of its probe and the load of its ends, a host is blamed when most of its
//! pairs are slow and at least [`WITNESSES_MIN`] hosts that are sound among themselves report it, and never
//! more hosts than [`blamed_max`] allows.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A link is slow below this part of the median rate: its reciprocal. A collective over a ring runs at the
/// rate of the slowest link, so such a link costs the whole gang more than three quarters of its network.
pub const SLOW_BELOW_MEDIAN_OVER: u64 = 4;
/// A link below this rate is worth a second look whatever the others are: 10 MB/s is less than a network of 100 Mbit/s
/// gives. No host is blamed for it.
pub const RATE_FLOOR_BYTES_PER_S: u64 = 10_000_000;
/// The least part of a rate, in thousandths, that is still expected of a link between hosts whose processors are
/// loaded, however high their load is.
pub const LOADED_RATE_MILLI_MIN: u64 = 125;
/// How many sound hosts have to find a host slow before it is blamed.
pub const WITNESSES_MIN: usize = 2;
/// Findings about pairs that one probe tells.
pub const PAIR_FINDINGS_MAX: usize = 8;

/// The most hosts of one probe that are blamed: one of eight, and at least one. Where more seem to be slow, the network
/// is at fault and not the hosts.
#[must_use]
pub fn blamed_max(hosts: usize) -> usize {
    (hosts / 8).max(1)
}

/// One direction between two hosts, by their places in the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who sent.
    pub from: u32,
    /// Who received, and measured.
    pub to: u32,
    /// What came of it.
    pub outcome: LinkOutcome,
    /// The part of the time, in thousandths, in which work waited for a processor on the more loaded of the two hosts
    /// while this was measured. Zero where neither host can say.
    pub load_milli: u16,
}

/// What came of measuring a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkOutcome {
    /// It carries this.
    Measured {
        /// Bytes per second.
        rate: u64,
        /// Shortest round trip of a small message, in microseconds.
        round_trip_us: u64,
    },
    /// It could not be used, for this reason.
    Failed(String),
}

/// A ring all-reduce over all hosts at once, as one of them saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Which host reports it.
    pub host: u32,
    /// Bytes that were reduced.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// Whether every sum was right.
    pub correct: bool,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The host that it is about, by its place; of a pair, the end that sent over the slower direction.
    pub host: u32,
    /// The other end, where it is one pair: nothing tells which of the two it is.
    pub other: Option<u32>,
    /// Whether the host is at fault, as other hosts confirm. Otherwise it is a suspicion.
    pub is_blamed: bool,
    /// What was seen, with numbers.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The better of two probes of the same hosts, link by link: what was slow only once is not slow.
#[must_use]
pub fn better_of(first: Vec<Link>, second: Vec<Link>) -> Vec<Link> {
    let mut best: BTreeMap<(u32, u32), (LinkOutcome, u16)> = BTreeMap::new();
    for link in first.into_iter().chain(second) {
        let rate = |outcome: &LinkOutcome| match outcome {
            LinkOutcome::Measured { rate, .. } => *rate,
            LinkOutcome::Failed(_) => 0,
        };
        match best.get(&(link.from, link.to)) {
            Some((known, _)) if rate(known) >= rate(&link.outcome) => {}
            _ => drop(best.insert((link.from, link.to), (link.outcome, link.load_milli))),
        }
    }
    let link = |((from, to), (outcome, load_milli))| Link { from, to, outcome, load_milli };
    best.into_iter().map(link).collect()
}

/// The median over the hosts of the best rate that each has with another one; the lower of the two in the middle. Over
/// hosts and not over links, for of four hosts one that is slow is an end of half of all links.
#[must_use]
pub fn median_rate(links: &[Link]) -> Option<u64> {
    let mut best: BTreeMap<u32, u64> = BTreeMap::new();
    for link in links {
        let LinkOutcome::Measured { rate, .. } = link.outcome else { continue };
        for host in [link.from, link.to] {
            let known = best.entry(host).or_default();
            *known = rate.max(*known);
        }
    }
    let mut rates: Vec<u64> = best.into_values().collect();
    rates.sort_unstable();
    rates.get(rates.len().checked_sub(1)? / 2).copied()
}

/// What is wrong, for the probe of hosts with these names: hosts that are to blame first, then pairs. Empty when the
/// network is as it should be.
///
/// Nobody can tell which end of one slow pair is at fault, so a host is blamed only when more than half of its pairs
/// are slow and [`WITNESSES_MIN`] hosts that measured it so have a sound link to one another host. Hosts are
/// taken out one after another, slowest first, so that what a slow host does to its peers does not count against them.
#[must_use]
pub fn findings(names: &[String], links: &[Link], rings: &[Ring]) -> Vec<Finding> {
    let median = median_rate(links).unwrap_or(0);
    let told = FindingText { names, links, median };
    let blamed = blamed(names.len(), links, median);
    let mut found: Vec<Finding> = blamed.iter().filter_map(|host| told.host(*host, &blamed)).collect();
    let is_explained = |pair: &(u32, u32)| blamed.contains(&pair.0) || blamed.contains(&pair.1);
    let pairs = slow_pairs(links);
    found.extend(
        pairs.iter().filter(|p| !is_explained(p)).take(PAIR_FINDINGS_MAX).filter_map(|p| told.pair(*p)),
    );
    let wrong: Vec<u32> = rings.iter().filter(|ring| !ring.correct).map(|ring| ring.host).collect();
    for host in &wrong {
        if !found.iter().any(|finding| finding.host == *host && finding.is_blamed) {
            let text = format!("{}: sums of the ring all-reduce were wrong", told.name(*host));
            // A wrong sum is passed on: only where all others are right is it known who made it.
            let is_blamed = wrong.len() == 1 && rings.len() > WITNESSES_MIN && found.is_empty();
            found.push(Finding { host: *host, other: None, is_blamed, text });
        }
    }
    found
}

/// Words findings.
struct FindingText<'a> {
    names: &'a [String],
    links: &'a [Link],
    median: u64,
}

impl FindingText<'_> {
    fn name(&self, host: u32) -> &str {
        self.names.get(host as usize).map_or("an unknown host", String::as_str)
    }

    /// The slowest of some links, in words.
    fn worst(&self, of: impl Fn(&Link) -> bool) -> Option<(&Link, String)> {
        let link = self.links.iter().filter(|link| of(link)).min_by_key(|link| rate_of(link))?;
        let what = match &link.outcome {
            LinkOutcome::Measured { rate, .. } => {
                let load = match link.load_milli / 10 {
                    0 => String::new(),
                    percent => format!(", processors loaded {percent} %"),
                };
                let (rate, median) = (rate / 1_000_000, self.median / 1_000_000);
                format!("{rate} MB/s where the median is {median} MB/s{load}")
            }
            LinkOutcome::Failed(why) => why.clone(),
        };
        Some((link, format!("from {} to {}: {what}", self.name(link.from), self.name(link.to))))
    }

    fn host(&self, host: u32, blamed: &[u32]) -> Option<Finding> {
        let pairs: BTreeSet<u32> = self.links.iter().filter_map(|link| other_end(link, host)).collect();
        let counts = |other: &&u32| !blamed.contains(other);
        let slow = slow_among(self.links, self.median, 0);
        let is_slow = |other: &&u32| slow.contains(&pair_of(host, **other));
        let (all, slow) =
            (pairs.iter().filter(counts).count(), pairs.iter().filter(counts).filter(is_slow).count());
        let (_, text) = self.worst(|link| other_end(link, host).is_some_and(|o| !blamed.contains(&o)))?;
        let text = format!("{}: slow to {slow} of {all} hosts, the worst {text}", self.name(host));
        Some(Finding { host, other: None, is_blamed: true, text })
    }

    fn pair(&self, pair: (u32, u32)) -> Option<Finding> {
        let (link, text) = self.worst(|link| pair_of(link.from, link.to) == pair)?;
        let text = format!("slow link {text}");
        Some(Finding { host: link.from, other: Some(link.to), is_blamed: false, text })
    }
}

/// The hosts to blame, slowest first; none where more seem to be slow than [`blamed_max`].
fn blamed(count: usize, links: &[Link], median: u64) -> Vec<u32> {
    let slow = slow_among(links, median, 0);
    let measured: BTreeSet<(u32, u32)> = links.iter().map(|link| pair_of(link.from, link.to)).collect();
    let mut blamed: Vec<u32> = Vec::new();
    loop {
        let is_left = |pair: &&(u32, u32)| !blamed.contains(&pair.0) && !blamed.contains(&pair.1);
        let mut of_host: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for pair in measured.iter().filter(is_left) {
            for host in [pair.0, pair.1] {
                let (all, bad) = of_host.entry(host).or_default();
                *all += 1;
                *bad += usize::from(slow.contains(pair));
            }
        }
        // Of two that are equal, the one with more slow pairs; places decide nothing but the order.
        let worst = of_host.iter().filter(|(_, (all, bad))| 2 * bad > *all);
        let worst = worst.max_by_key(|(host, (all, bad))| (bad * 1_000 / all, *bad, **host));
        let Some((host, _)) = worst else { break };
        blamed.push(*host);
        if blamed.len() > blamed_max(count) {
            return Vec::new();
        }
    }
    let is_credible = |host: u32| {
        let sound = |pair: &&(u32, u32)| {
            (pair.0 == host || pair.1 == host)
                && !blamed.contains(&pair.0)
                && !blamed.contains(&pair.1)
                && !slow.contains(*pair)
        };
        !blamed.contains(&host) && measured.iter().any(|pair| sound(&pair))
    };
    let confirmed = |host: &u32| {
        let other = |pair: &(u32, u32)| match *pair {
            (a, b) if a == *host => Some(b),
            (a, b) if b == *host => Some(a),
            _ => None,
        };
        slow.iter().filter_map(other).filter(|other| is_credible(*other)).count() >= WITNESSES_MIN
    };
    blamed.iter().copied().filter(confirmed).collect()
}

/// The pairs of hosts between which a link is slow, each once and the lower place first: what is to be measured
/// again without the others, for many pairs at a time share more than a network.
#[must_use]
pub fn slow_pairs(links: &[Link]) -> BTreeSet<(u32, u32)> {
    slow_among(links, median_rate(links).unwrap_or(0), RATE_FLOOR_BYTES_PER_S)
}

/// Pairs with a direction below what the median and the load of the ends let expect, or below `floor`.
fn slow_among(links: &[Link], median: u64, floor: u64) -> BTreeSet<(u32, u32)> {
    let is_slow = |link: &&Link| match link.outcome {
        LinkOutcome::Measured { rate, .. } => rate < bar(median, link.load_milli).max(floor),
        LinkOutcome::Failed(_) => true,
    };
    links.iter().filter(is_slow).map(|link| pair_of(link.from, link.to)).collect()
}

/// The rate, in bytes per second, below which a link is slow compared with a median, for this load of its
/// ends.
#[must_use]
pub fn bar(median: u64, load_milli: u16) -> u64 {
    let left = 1_000u64.saturating_sub(load_milli.into()).max(LOADED_RATE_MILLI_MIN);
    let bar = u128::from(median / SLOW_BELOW_MEDIAN_OVER) * u128::from(left) / 1_000;
    u64::try_from(bar).unwrap_or(u64::MAX)
}

fn pair_of(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

/// The other end of a link of this host.
fn other_end(link: &Link, host: u32) -> Option<u32> {
    match (link.from == host, link.to == host) {
        (true, _) => Some(link.to),
        (_, true) => Some(link.from),
        _ => None,
    }
}

fn rate_of(link: &Link) -> u64 {
    match link.outcome {
        LinkOutcome::Measured { rate, .. } => rate,
        LinkOutcome::Failed(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;
    use proptest::prelude::*;

    const FAST: u64 = 1_000_000_000;

    fn names(count: u32) -> Vec<String> {
        (0..count).map(|n| format!("h{n}")).collect()
    }

    /// Every pair of `count` hosts, with the rates that `of` gives.
    fn mesh(count: u32, of: impl Fn(u32, u32) -> u64) -> Vec<Link> {
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b);
        pairs
            .map(|(from, to)| {
                let outcome = LinkOutcome::Measured { rate: of(from, to), round_trip_us: 50 };
                Link { from, to, outcome, load_milli: 0 }
            })
            .collect()
    }

    fn blamed_of(count: u32, links: &[Link]) -> Vec<u32> {
        let found = findings(&names(count), links, &[]);
        found.into_iter().filter(|finding| finding.is_blamed).map(|finding| finding.host).collect()
    }

    #[test]
    fn slow_pairs_are_named_once() {
        let rate =
            |a: u32, b: u32| if a.min(b) == 1 && a.max(b) == 3 || (a, b) == (2, 0) { FAST / 5 } else { FAST };
        let pairs: Vec<_> = slow_pairs(&mesh(5, rate)).into_iter().collect();
        assert_eq!(pairs, [(0, 2), (1, 3)]);
        assert!(slow_pairs(&mesh(5, |_, _| FAST)).is_empty() && slow_pairs(&[]).is_empty());
    }

    #[test]
    fn a_sound_network_has_no_findings_and_neither_has_one_that_is_slow_for_all() {
        assert_eq!(findings(&names(4), &mesh(4, |a, b| FAST + u64::from(a * b)), &[]), []);
        assert_eq!(findings(&names(4), &mesh(4, |_, _| RATE_FLOOR_BYTES_PER_S), &[]), []);
        assert_eq!(findings(&[], &[], &[]), []);
        assert_eq!(blamed_of(4, &mesh(4, |_, _| 1_000)), [0; 0], "below the floor as well");
    }

    #[test]
    fn both_ends_of_a_slow_pair_are_suspects_and_neither_is_blamed() {
        let links = mesh(5, |a, b| if (a, b) == (1, 3) { FAST / 10 } else { FAST });
        let found = findings(&names(5), &links, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].host, found[0].other, found[0].is_blamed), (1, Some(3), false));
        assert_eq!(found[0].to_string(), "slow link from h1 to h3: 100 MB/s where the median is 1000 MB/s");
    }

    #[test]
    fn a_host_behind_a_slow_cable_is_blamed_as_a_whole() {
        let links = mesh(5, |a, b| if a == 2 || b == 2 { FAST / 20 } else { FAST });
        let found = findings(&names(5), &links, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].host, found[0].other, found[0].is_blamed), (2, None, true));
        assert!(found[0].text.starts_with("h2: slow to 4 of 4 hosts, the worst from"), "{}", found[0].text);
    }

    #[test]
    fn of_two_hosts_a_third_one_tells_which_is_slow() {
        let slow = |host: u32| move |a: u32, b: u32| if a == host || b == host { 1_000_000 } else { FAST };
        let found = findings(&names(2), &mesh(2, |_, _| 1_000_000), &[]);
        assert_eq!((found.len(), found[0].is_blamed), (1, false), "{found:?}");
        assert_eq!(blamed_of(3, &mesh(3, slow(0))), [0]);
        assert_eq!(blamed_of(3, &mesh(3, slow(1))), [1]);
        assert_eq!(blamed_of(3, &mesh(3, |_, _| 1_000_000)), [0; 0], "no witness is sound itself");
    }

    #[test]
    fn a_slow_link_between_two_halves_is_not_the_fault_of_hosts() {
        for (count, half) in [(4, 2), (6, 3), (8, 4), (9, 4), (16, 6)] {
            let links = mesh(count, |a, b| if (a < half) == (b < half) { FAST } else { FAST / 100 });
            assert_eq!(blamed_of(count, &links), [0; 0], "{count} hosts");
        }
    }

    #[test]
    fn a_loaded_host_is_given_the_time_that_it_lacks() {
        let mut links = mesh(4, |a, b| if a == 2 || b == 2 { FAST / 10 } else { FAST });
        assert_eq!(blamed_of(4, &links), [2]);
        for link in links.iter_mut().filter(|link| link.from == 2 || link.to == 2) {
            link.load_milli = 700;
        }
        assert_eq!(blamed_of(4, &links), [0; 0]);
        assert!(slow_pairs(&links).is_empty());
        for link in links.iter_mut().filter(|link| link.from == 2 || link.to == 2) {
            link.outcome = LinkOutcome::Measured { rate: FAST / 100, round_trip_us: 50 };
            link.load_milli = 1_000;
        }
        let found = findings(&names(4), &links, &[]);
        assert!(found[0].is_blamed && found[0].text.ends_with("processors loaded 100 %"), "{found:?}");
    }

    #[test]
    fn a_link_that_fails_counts_as_the_slowest() {
        let mut links = mesh(4, |_, _| FAST);
        links[0].outcome = LinkOutcome::Failed("connection refused".into());
        let found = findings(&names(4), &links, &[]);
        assert_eq!((found.len(), found[0].is_blamed), (1, false));
        assert_eq!(found[0].text, "slow link from h0 to h1: connection refused");
        let all: Vec<Link> = links
            .iter()
            .map(|link| Link { outcome: LinkOutcome::Failed("no route".into()), ..link.clone() })
            .collect();
        assert_eq!(blamed_of(4, &all), [0; 0], "where nothing works nobody can tell");
    }

    #[test]
    fn what_was_slow_once_is_not_slow() {
        let slow = mesh(3, |a, b| if (a, b) == (0, 1) { 1 } else { FAST });
        let other = mesh(3, |a, b| if (a, b) == (2, 1) { 1 } else { FAST });
        assert_eq!(findings(&names(3), &better_of(slow.clone(), other), &[]), []);
        assert_eq!(findings(&names(3), &better_of(slow.clone(), slow), &[]).len(), 1);
    }

    #[test]
    fn wrong_sums_are_a_finding_of_their_own() {
        let ring = |host, correct| Ring { host, bytes: 1, duration_us: 1, correct };
        let of = |rings: Vec<Ring>| findings(&names(3), &mesh(3, |_, _| FAST), &rings);
        let found = of(vec![ring(0, true), ring(1, false), ring(2, true)]);
        assert_eq!((found.len(), found[0].host, found[0].is_blamed), (1, 1, true));
        let found = of(vec![ring(0, true), ring(1, false), ring(2, false)]);
        assert_eq!(found.iter().map(|f| (f.host, f.is_blamed)).collect::<Vec<_>>(), [(1, false), (2, false)]);
    }

    /// Rates of every directed link of `count` hosts, each a multiple of `base` between one and two.
    fn jittered(count: u32, base: u64, seed: u64) -> Vec<Link> {
        mesh(count, |a, b| {
            let mixed = (seed ^ u64::from(a) << 32 ^ u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            base + base * (mixed % 1_000) / 1_000
        })
    }

    proptest! {
        #[test]
        fn equally_slow_hosts_are_not_blamed(
            count in 2u32..40, base in 1_000u64..20_000_000_000, seed: u64, load in 0u16..=1_000,
        ) {
            let mut links = jittered(count, base, seed);
            links.iter_mut().for_each(|link| link.load_milli = load);
            prop_assert_eq!(blamed_of(count, &links), Vec::<u32>::new());
        }

        #[test]
        fn one_slow_host_is_blamed_and_no_healthy_one(
            count in 3u32..40, base in 1_000u64..20_000_000_000, seed: u64, which: u32, over in 10u64..1_000,
        ) {
            let slow = which % count;
            let mut links = jittered(count, base, seed);
            for link in links.iter_mut().filter(|link| link.from == slow || link.to == slow) {
                let LinkOutcome::Measured { rate, .. } = &mut link.outcome else { continue };
                *rate /= over;
            }
            prop_assert_eq!(blamed_of(count, &links), vec![slow]);
        }

        #[test]
        fn whatever_is_measured_no_more_than_the_bound_are_blamed(
            count in 1u32..24,
            rates in proptest::collection::vec((0u64..2_000_000_000, 0u16..2_000, proptest::bool::weighted(0.1)), 600),
        ) {
            let mut links = mesh(count, |_, _| 0);
            for (link, (rate, load, fails)) in links.iter_mut().zip(rates) {
                link.load_milli = load;
                link.outcome = if fails {
                    LinkOutcome::Failed("no".into())
                } else {
                    LinkOutcome::Measured { rate, round_trip_us: 1 }
                };
            }
            let blamed = blamed_of(count, &links);
            prop_assert!(blamed.len() <= blamed_max(count as usize));
            prop_assert!(count >= 3 || blamed.is_empty());
        }
    }
}
