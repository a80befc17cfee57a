//! Checks of the network of gangs that say anything of any node: how many nodes are kept away for it.

use std::collections::BTreeMap;

use muster_decider::{Command, Speculation, handle, schedule, suspects_beyond_the_bound};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_state::{PoolKey, State};
use muster_types::health::Finding;
use muster_types::{ExitStatus, JobId, NodeId, Submission, limits};

use crate::random::Random;
use crate::support::{accelerators, founded, holder, job, node_spec, request};

/// Region, cluster, type and nodes.
const POOLS: [(&str, &str, &str, u32); 5] = [
    ("eu", "c1", "h100", 8),
    ("eu", "c1", "a100", 5),
    ("eu", "c2", "b200", 3),
    ("us", "c3", "h200", 45),
    ("us", "c4", "l40", 4),
];

struct Fleet {
    speculation: Speculation,
    requests: u128,
}

impl Fleet {
    fn new() -> Fleet {
        let (mut speculation, _) = founded();
        for (at, (region, cluster, kind, nodes)) in (1..).zip(POOLS) {
            for n in 0..nodes {
                let text = format!("{cluster}-{kind}-{n}");
                let spec = node_spec(&text, region, cluster, Some(accelerators(kind, 8)));
                let holder = holder(at * 1_000 + u128::from(n));
                let command = Command::Register { spec, holder, other_session_is_over: false };
                handle(&mut speculation, &command).unwrap();
            }
        }
        Fleet { speculation, requests: 5_000 }
    }

    fn state(&self) -> &State {
        self.speculation.state()
    }

    fn request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    /// A gang on `nodes` nodes, whose check finds at fault the nodes that `is_slow` selects; it is cancelled afterwards.
    fn check(&mut self, kind: &str, nodes: u32, mut is_slow: impl FnMut(NodeId) -> bool) {
        let spec = job("checked", nodes, Some(accelerators(kind, 8)));
        let request = self.request();
        let jobs = Submission::plain([spec]);
        let answer = handle(&mut self.speculation, &Command::submit(request, jobs)).unwrap();
        let muster_decider::Answer::Submitted { jobs, .. } = answer else { panic!("{answer:?}") };
        let job: JobId = jobs[0];
        schedule(&mut self.speculation, &mut Budget::new(100_000));
        let placement = self.state().job(job).and_then(|row| row.placement.clone());
        for (rank, slot) in placement.iter().flat_map(|placement| placement.slots.iter().enumerate()) {
            let exit = if is_slow(slot.node) {
                ExitStatus::PreflightFailed(format!("{}: slow to all hosts", slot.node))
            } else {
                ExitStatus::NotStarted
            };
            let (node, incarnation) = (slot.node, slot.incarnation);
            let token = placement.as_ref().map(|placement| placement.token).unwrap();
            let updates = vec![(rank as u32, RankUpdate::Exited(exit))];
            let _ =
                handle(&mut self.speculation, &Command::Report { node, incarnation, job, token, updates });
        }
        let request = self.request();
        let _ = handle(&mut self.speculation, &Command::cancel(request, job));
    }

    fn pass(&mut self, ms: u64) {
        self.speculation.take_round();
        let now = self.speculation.now().plus_ms(ms);
        self.speculation.set_now(now);
    }

    fn blamed(&self) -> Vec<NodeId> {
        let of_network = |(_, row): &(NodeId, &muster_state::RestrictionRow)| {
            row.health.conditions.iter().any(|c| c.observation.finding == Finding::Network)
        };
        self.state().restrictions().filter(of_network).map(|(node, _)| node).collect()
    }

    /// No pool, no cluster and no fleet loses more than its share.
    fn assert_bounded(&self) {
        let max = |nodes: u64| (nodes / limits::NETWORK_BLAMED_ONE_OF).max(1);
        let (mut pools, mut clusters) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
        let blamed = self.blamed();
        for node in &blamed {
            let key = PoolKey::of(&self.state().node(*node).unwrap().spec);
            *clusters.entry(key.cluster.clone()).or_default() += 1;
            *pools.entry(key).or_default() += 1;
        }
        for (_, cluster, kind, nodes) in POOLS {
            let of_pool = |key: &&PoolKey| {
                key.cluster.as_str() == cluster && key.kind.as_ref().is_some_and(|k| k.as_str() == kind)
            };
            let lost = pools.keys().find(of_pool).map_or(0, |key| pools[key]);
            let most = if u64::from(nodes) < limits::NETWORK_BLAMED_POOL_MIN { 0 } else { max(nodes.into()) };
            assert!(lost <= most, "{cluster}/{kind} loses {lost} of {nodes} nodes");
        }
        for (cluster, lost) in clusters {
            let nodes: u32 = POOLS.iter().filter(|pool| pool.1 == cluster.as_str()).map(|pool| pool.3).sum();
            assert!(lost <= max(nodes.into()), "{cluster} loses {lost} of {nodes} nodes");
        }
        let all: u32 = POOLS.iter().map(|pool| pool.3).sum();
        assert!(blamed.len() as u64 <= max(all.into()), "the fleet loses {} of {all} nodes", blamed.len());
    }
}

#[test]
fn whatever_checks_say_no_more_than_the_bound_are_kept_away() {
    for seed in 1..=30 {
        let (mut fleet, mut random) = (Fleet::new(), Random::new(seed));
        let mut most = 0;
        for _ in 0..60 {
            let (_, _, kind, nodes) = POOLS[random.below(POOLS.len() as u64) as usize];
            let wanted = 1 + random.below(nodes.into()) as u32;
            let in_ten = random.below(11);
            fleet.check(kind, wanted, |_| random.below(10) < in_ten);
            fleet.assert_bounded();
            most = most.max(fleet.blamed().len());
            if random.below(20) == 0 {
                let nodes = fleet.blamed();
                handle(&mut fleet.speculation, &Command::NoteSoundNetwork { nodes }).unwrap();
            }
            fleet.pass(random.below(60_000));
        }
        assert!(most > 0, "seed {seed} blames nobody");
    }
}

#[test]
fn a_slow_node_is_kept_away_after_two_checks_and_a_moment_of_noise_keeps_nobody_away() {
    let mut fleet = Fleet::new();
    let node = |fleet: &Fleet, text: &str| fleet.state().node_named(&crate::support::name(text)).unwrap();
    let (slow, noisy) = (node(&fleet, "c1-h100-3"), node(&fleet, "c1-h100-5"));
    for round in 0..3 {
        fleet.check("h100", 7, |node| node == slow || (round == 0 && node == noisy));
        let blamed = fleet.blamed();
        assert_eq!(blamed, if round == 0 { vec![] } else { vec![slow] }, "round {round}");
        fleet.pass(limits::NETWORK_CONFIRMED_AFTER_MS);
    }
    assert_eq!(suspects_beyond_the_bound(fleet.state()), []);
    // A second node is found twice as well: it stays, and that is reported.
    for _ in 0..2 {
        fleet.pass(limits::NETWORK_CONFIRMED_AFTER_MS);
        fleet.check("h100", 7, |node| node == noisy);
    }
    assert_eq!((fleet.blamed(), suspects_beyond_the_bound(fleet.state())), (vec![slow], vec![noisy]));
    // What is older than a day confirms nothing.
    let late = node(&fleet, "c4-l40-1");
    for _ in 0..2 {
        fleet.check("l40", 4, |node| node == late);
        fleet.pass(limits::NETWORK_CONFIRMED_WITHIN_MS + 1);
    }
    assert_eq!(fleet.blamed(), [slow]);
}
