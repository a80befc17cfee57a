//! What a probe of the network between some hosts measures, and what follows from it.
//!
//! A gang is as fast as its slowest link, and a link that is slow rather than broken is seen by nobody but
//! the gang. So before a large gang starts, its hosts measure every pair of one another, and whoever falls
//! far behind the others is named.
//!
//! **Invariant:** nobody is blamed for what all share: a link is slow against the median of its own probe, or
//! below a floor that no network for training is below.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A link is slow below this part of the median rate: its reciprocal. A collective over a ring runs at the
/// rate of the slowest link, so such a link costs the whole gang more than three quarters of its network.
pub const SLOW_BELOW_MEDIAN_OVER: u64 = 4;
/// A link below this rate is slow whatever the others are: 10 MB/s is less than a network of 100 Mbit/s gives.
pub const RATE_FLOOR_BYTES_PER_S: u64 = 10_000_000;

/// One direction between two hosts, by their places in the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who sent.
    pub from: u32,
    /// Who received, and measured.
    pub to: u32,
    /// What came of it.
    pub outcome: LinkOutcome,
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
    /// Who says so.
    pub host: u32,
    /// Bytes that were reduced.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// Whether every sum was right.
    pub correct: bool,
}

/// What is wrong, and with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The host to do without, by its place.
    pub host: u32,
    /// The link, where it is one; none where it is all or most of the links of a host.
    pub link: Option<(u32, u32)>,
    /// What was seen, with numbers.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The better of two probes of the same hosts, link by link: what was slow only once was somebody else's doing.
#[must_use]
pub fn better_of(first: Vec<Link>, second: Vec<Link>) -> Vec<Link> {
    let mut best: BTreeMap<(u32, u32), LinkOutcome> = BTreeMap::new();
    for link in first.into_iter().chain(second) {
        let rate = |outcome: &LinkOutcome| match outcome {
            LinkOutcome::Measured { rate, .. } => *rate,
            LinkOutcome::Failed(_) => 0,
        };
        match best.get(&(link.from, link.to)) {
            Some(known) if rate(known) >= rate(&link.outcome) => {}
            _ => drop(best.insert((link.from, link.to), link.outcome)),
        }
    }
    best.into_iter().map(|((from, to), outcome)| Link { from, to, outcome }).collect()
}

/// The median rate of the links that carry anything; the lower one of the two in the middle.
#[must_use]
pub fn median_rate(links: &[Link]) -> Option<u64> {
    let mut rates: Vec<u64> = links
        .iter()
        .filter_map(|link| match link.outcome {
            LinkOutcome::Measured { rate, .. } => Some(rate),
            LinkOutcome::Failed(_) => None,
        })
        .collect();
    rates.sort_unstable();
    rates.get(rates.len().checked_sub(1)? / 2).copied()
}

/// Who is to be done without, for the probe of hosts with these names: worst first, each host once. Empty when
/// the network is as it should be.
///
/// A host most of whose links are slow is blamed for all of them; then the ends of what is left that have
/// more slow links than others, and of two that are equal the one that comes later.
#[must_use]
pub fn findings(names: &[String], links: &[Link], rings: &[Ring]) -> Vec<Finding> {
    let name = |host: u32| names.get(host as usize).map_or("an unknown host", String::as_str);
    let median = median_rate(links).unwrap_or(0);
    let mut slow = slow_links(links, median);
    let mut found = Vec::new();
    // One host less in every turn.
    while !slow.is_empty() {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for link in &slow {
            *counts.entry(link.from).or_default() += 1;
            *counts.entry(link.to).or_default() += 1;
        }
        let Some((host, count)) = counts.into_iter().max_by_key(|(host, count)| (*count, *host)) else {
            break;
        };
        let own = |link: &&&Link| link.from == host || link.to == host;
        let all = links.iter().filter(|link| own(&link)).count();
        let worst = slow.iter().filter(own).min_by_key(|link| rate_of(link)).copied();
        let worst = worst.map(|link| {
            let what = match &link.outcome {
                LinkOutcome::Measured { rate, .. } => {
                    format!("{} MB/s where the median is {} MB/s", rate / 1_000_000, median / 1_000_000)
                }
                LinkOutcome::Failed(why) => why.clone(),
            };
            (link, format!("from {} to {}: {what}", name(link.from), name(link.to)))
        });
        let Some((link, text)) = worst else { break };
        let finding = if 2 * count > all && all > 2 {
            let text = format!("{}: {count} of {all} links are slow, the worst {text}", name(host));
            Finding { host, link: None, text }
        } else {
            Finding { host, link: Some((link.from, link.to)), text: format!("slow link {text}") }
        };
        found.push(finding);
        slow.retain(|link| link.from != host && link.to != host);
    }
    for ring in rings.iter().filter(|ring| !ring.correct) {
        if !found.iter().any(|finding| finding.host == ring.host) {
            let text = format!("{}: sums of the ring all-reduce were wrong", name(ring.host));
            found.push(Finding { host: ring.host, link: None, text });
        }
    }
    found
}

/// The pairs of hosts between which a link is slow, each once and the lower place first: what is to be measured
/// again without the others, for many pairs at a time share more than a network.
#[must_use]
pub fn slow_pairs(links: &[Link]) -> BTreeSet<(u32, u32)> {
    let median = median_rate(links).unwrap_or(0);
    let pair = |link: &Link| (link.from.min(link.to), link.from.max(link.to));
    slow_links(links, median).into_iter().map(pair).collect()
}

fn slow_links(links: &[Link], median: u64) -> Vec<&Link> {
    let bar = (median / SLOW_BELOW_MEDIAN_OVER).max(RATE_FLOOR_BYTES_PER_S);
    let is_slow = |link: &&Link| match link.outcome {
        LinkOutcome::Measured { rate, .. } => rate < bar,
        LinkOutcome::Failed(_) => true,
    };
    links.iter().filter(is_slow).collect()
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
                Link { from, to, outcome }
            })
            .collect()
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
    }

    #[test]
    fn a_slow_link_is_named_and_costs_one_of_its_ends() {
        let links = mesh(5, |a, b| if (a, b) == (1, 3) { FAST / 10 } else { FAST });
        let found = findings(&names(5), &links, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].host, found[0].link), (3, Some((1, 3))));
        assert_eq!(found[0].to_string(), "slow link from h1 to h3: 100 MB/s where the median is 1000 MB/s");
    }

    #[test]
    fn a_host_behind_a_slow_cable_is_blamed_as_a_whole() {
        let links = mesh(5, |a, b| if a == 2 || b == 2 { FAST / 20 } else { FAST });
        let found = findings(&names(5), &links, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].host, found[0].link), (2, None));
        assert!(found[0].text.starts_with("h2: 8 of 8 links are slow"), "{}", found[0].text);
    }

    #[test]
    fn two_hosts_have_nobody_to_be_compared_with_but_the_floor() {
        assert_eq!(findings(&names(2), &mesh(2, |a, _| if a == 0 { FAST } else { FAST / 3 }), &[]), []);
        let found = findings(&names(2), &mesh(2, |_, _| 1_000_000), &[]);
        assert_eq!((found.len(), found[0].host), (1, 1), "{found:?}");
    }

    #[test]
    fn a_link_that_fails_counts_as_the_slowest() {
        let mut links = mesh(4, |_, _| FAST);
        links[0].outcome = LinkOutcome::Failed("connection refused".into());
        let found = findings(&names(4), &links, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "slow link from h0 to h1: connection refused");
        let all: Vec<Link> = links
            .iter()
            .map(|link| Link { outcome: LinkOutcome::Failed("no route".into()), ..link.clone() })
            .collect();
        assert_eq!(findings(&names(4), &all, &[]).len(), 3, "each turn does without one host");
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
        let rings = vec![
            Ring { host: 0, bytes: 1, duration_us: 1, correct: true },
            Ring { host: 1, bytes: 1, duration_us: 1, correct: false },
        ];
        let found = findings(&names(2), &mesh(2, |_, _| FAST), &rings);
        assert_eq!((found.len(), found[0].host), (1, 1));
    }
}
