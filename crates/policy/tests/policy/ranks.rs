//! What tenants say of the order of their jobs: it holds among these, and moves no job of another tenant back.

use std::collections::BTreeMap;

use muster_types::policy::{Order, PolicyDraft, TenantPolicy};
use muster_types::{JobId, LogIndex, Name, QueueRank};
use proptest::prelude::*;

use crate::support::{World, spec};

/// The policy names the first two. The first and the third say something of the order of their jobs.
const TENANTS: [&str; 4] = ["listed", "listed-too", "unlisted-a", "unlisted-b"];

#[derive(Clone, Debug)]
struct Asked {
    tenant: usize,
    nice: i8,
    front: Option<u64>,
    devices: u16,
}

impl Asked {
    fn rank(&self) -> QueueRank {
        if self.tenant.is_multiple_of(2) {
            QueueRank::new(self.nice, self.front.map(LogIndex))
        } else {
            QueueRank::default()
        }
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let nice = prop_oneof![Just(0i8), -100..=100i8];
    (0..TENANTS.len(), nice, prop::option::of(1..1_000u64), 1..3u16)
        .prop_map(|(tenant, nice, front, devices)| Asked { tenant, nice, front, devices })
}

/// The jobs in the order of their turns, with what the tenants say of it or without.
fn order_of(asked: &[Asked], is_ranked: bool) -> Vec<usize> {
    let mut policy = PolicyDraft::default();
    policy.order.order = Order::Submission;
    for tenant in &TENANTS[..2] {
        policy.tenants.insert(Name::new(tenant).unwrap(), TenantPolicy::default());
    }
    let mut world = World::new(1, policy);
    let mut places: BTreeMap<JobId, usize> = BTreeMap::new();
    for (place, job) in asked.iter().enumerate() {
        let mut draft = spec(TENANTS[job.tenant], &format!("j{place}x"), job.devices);
        if is_ranked && job.tenant % 2 == 0 {
            (draft.nice, draft.front) = (job.nice, job.front.map(LogIndex));
        }
        let jobs = world.submit(vec![draft.check().unwrap()]);
        places.insert(jobs[0], place);
    }
    world.order().iter().map(|job| places[job]).collect()
}

proptest! {
    #[test]
    fn ranks_order_the_jobs_of_a_tenant_and_move_no_other_back(
        asked in prop::collection::vec(asked(), 1..25),
    ) {
        let (plain, ranked) = (order_of(&asked, false), order_of(&asked, true));
        prop_assert_eq!(ranked.len(), asked.len());
        for tenant in 0..TENANTS.len() {
            let turns: Vec<usize> = ranked.iter().copied().filter(|job| asked[*job].tenant == tenant).collect();
            let mut expected = turns.clone();
            expected.sort_by_key(|job| (asked[*job].rank(), *job));
            prop_assert_eq!(turns, expected);
        }
        for job in (0..asked.len()).filter(|job| asked[*job].tenant % 2 == 1) {
            let place = |order: &[usize]| order.iter().position(|other| *other == job);
            prop_assert!(place(&ranked) <= place(&plain), "job {job} of {}", TENANTS[asked[job].tenant]);
        }
    }
}
