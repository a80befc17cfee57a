//! Nodes by how they were bought: which are open to a gang, and what their price comes to.

use crate::support::*;
use muster_planner::{Budget, Holds, Plan, Terms, Verdict, WaitReason, could_ever, explain, plan};
use muster_state::{CapacityKey, Interruptions};
use muster_types::policy::{PolicyDraft, Price, PurchaseKind};
use muster_types::{Accelerators, CapacityFallback, CapacityRules, JobSpec, NodeDraft};

const HOUR_MS: u64 = 3_600_000;

fn host(text: &str, region: &str, purchase: Option<PurchaseKind>) -> NodeDraft {
    let mut draft = node_draft(text);
    draft.region = name(region);
    draft.accelerators = Some(Accelerators { kind: name("h100"), count: 8 });
    draft.labels.extend(purchase.map(|purchase| (name("purchase"), purchase.as_str().to_owned())));
    draft
}

fn asking(purchases: &[PurchaseKind], change: impl FnOnce(&mut CapacityRules)) -> JobSpec {
    let wants = Accelerators { kind: name("h100"), count: 8 };
    let mut draft = job_draft(vec![group("main", 1, Some(wants.into()))]);
    draft.expected_run_ms = Some(10 * HOUR_MS);
    let purchases = purchases.iter().copied().collect();
    let mut rules = CapacityRules { purchases, ..CapacityRules::default() };
    change(&mut rules);
    draft.capacity = Some(Box::new(rules));
    draft.check().unwrap()
}

fn planned(fleet: &Fleet, spec: &JobSpec, spot_milli: Option<u32>) -> Option<Plan> {
    let holds = Holds::new();
    let interruptions = |key: &CapacityKey| Interruptions {
        nodes_up: fleet.state.interruptions(key, fleet.time).nodes_up,
        per_day_milli: spot_milli.filter(|_| key.purchase == PurchaseKind::Spot),
        ..Interruptions::default()
    };
    let terms = Terms { interruptions: &interruptions, ..fleet.terms(&holds, spec) };
    match plan(&fleet.state, spec, &terms, &mut Budget::new(1_000_000)) {
        Verdict::Fits(plan) => Some(plan),
        Verdict::Waits | Verdict::OutOfBudget => None,
    }
}

#[test]
fn only_nodes_that_were_bought_so_are_open() {
    let mut fleet = Fleet::new();
    fleet.add_node(host("n1", "eu", None));
    let bought = fleet.add_node(host("n2", "eu", Some(PurchaseKind::OnDemand)));
    let spot = asking(&[PurchaseKind::Spot], |_| {});
    assert_eq!(planned(&fleet, &spot, None), None);
    let either = asking(&[PurchaseKind::Spot, PurchaseKind::OnDemand], |_| {});
    assert_eq!(planned(&fleet, &either, None).unwrap().workers[0].node, bought);
    let holds = Holds::new();
    let explanation = explain(&fleet.state, &spot, &fleet.terms(&holds, &spot), None);
    assert_eq!(explanation.reason, WaitReason::Purchase, "{}", explanation.sentence);
    assert_eq!(explanation.clusters[0].nodes.wrong_purchase, 2);
    assert!(explanation.sentence.contains("it asks for spot"), "{}", explanation.sentence);
    assert!(could_ever(&fleet.state, &spot).is_err());
    let later = asking(&[PurchaseKind::Spot], |rules| {
        let purchases = [PurchaseKind::OnDemand].into_iter().collect();
        rules.fallback = Some(CapacityFallback { purchases, after_ms: HOUR_MS, is_open: false });
    });
    assert_eq!(planned(&fleet, &later, None), None, "it has not waited yet");
    assert!(could_ever(&fleet.state, &later).is_ok());
    let opened = later.with_open_fallback().unwrap();
    assert_eq!(planned(&fleet, &opened, None).unwrap().workers[0].node, bought);
}

#[test]
fn what_interruptions_lose_counts_with_the_price() {
    let mut fleet = Fleet::new();
    let priced = |purchase, dollars: u64| Price {
        purchase: Some(purchase),
        ..Price::new(name("h100"), None, dollars * 1_000_000)
    };
    let prices = vec![priced(PurchaseKind::Spot, 1), priced(PurchaseKind::OnDemand, 2)];
    fleet.set_policy(PolicyDraft { prices, ..PolicyDraft::default() });
    fleet.add_node(host("n1", "eu", Some(PurchaseKind::OnDemand)));
    fleet.add_node(host("n2", "us", Some(PurchaseKind::Spot)));
    let either = asking(&[PurchaseKind::Spot, PurchaseKind::OnDemand], |_| {});
    let region = |spec: &JobSpec, milli| planned(&fleet, spec, milli).map(|plan| plan.region.to_string());
    assert_eq!(region(&either, None).as_deref(), Some("us"), "spot is cheaper");
    assert_eq!(region(&either, Some(100)).as_deref(), Some("us"), "once in ten days loses little");
    assert_eq!(
        region(&either, Some(10_000)).as_deref(),
        Some("eu"),
        "ten times a day it loses half of the run"
    );
    let steady = asking(&[PurchaseKind::Spot], |rules| rules.interruptions_milli_max = Some(100));
    assert_eq!(region(&steady, Some(100)).as_deref(), Some("us"));
    assert_eq!(region(&steady, Some(101)), None);
}
