//! What accelerators that no job holds are idle for. Amounts are accelerator-seconds.

use muster_decider::{Command, DrainOrder, RepairOrder};
use muster_ledger::{UnplacedPart, UnplacedReason};
use muster_types::health::{Finding, HealthReport, Observation};
use muster_types::{DeviceSet, ForeignLoad, NodeId, PriorityTier};

use crate::scene::{Scene, draft};
use crate::support::{accelerators, group, job_draft, name, node_draft};

fn cordon(scene: &mut Scene, node: NodeId, cordoned: bool) {
    let request = scene.request();
    let by = muster_types::Requester::default();
    scene.run(&Command::SetCordon { request, by, node, cordoned, reason: None });
}

fn quarantine(scene: &mut Scene, node: NodeId, reason: Option<&str>) {
    let request = scene.request();
    scene.run(&Command::SetQuarantine {
        request,
        by: muster_types::Requester::default(),
        node,
        reason: reason.map(str::to_owned),
    });
}

fn drain(scene: &mut Scene, node: NodeId, order: DrainOrder) {
    let request = scene.request();
    let by = muster_types::Requester::default();
    scene.run(&Command::SetDrain { request, by, node, order, reason: None });
}

fn foreign(scene: &mut Scene, node: NodeId, closed: bool, devices: u64) {
    let load = ForeignLoad { closed, devices: DeviceSet(devices), ..ForeignLoad::default() };
    scene.run(&Command::ReportForeignLoad { node, incarnation: 1, load });
}

/// A device of the node has fallen off the bus.
fn fault(scene: &mut Scene, node: NodeId, device: u16) {
    let mut report = HealthReport { boot: 1, ..HealthReport::default() };
    report.events.push(Observation::of(Finding::Xid(79), Some(device)));
    scene.run(&Command::ReportHealth { node, incarnation: 1, report: Box::new(report) });
}

#[test]
fn jobs_that_accept_other_types_only_are_told_apart() {
    let mut scene = Scene::new();
    scene.node("n1", 2);
    scene.host(node_draft("n2", "eu", "c1", Some(accelerators("a100", 1))));
    let mut other = job_draft("job", vec![group("main", 1, Some(accelerators("a100", 1)))]);
    other.tenant = name("other");
    scene.submit(other);
    assert_eq!(scene.used(10), ["idle.demand_unplaced 10", "idle.demand_other_type 20"]);
}

#[test]
fn where_a_job_waits_for_the_type_the_log_alone_does_not_tell_why() {
    let mut scene = Scene::new();
    scene.node("n1", 4);
    let job = scene.job(1, 4);
    assert_eq!(scene.used(10), ["idle.demand_unplaced 40"]);
    scene.at(10);
    scene.control(muster_types::Control::Cancel, job);
    assert_eq!(scene.used(20), ["idle.demand_unplaced 40", "idle.no_demand 40"]);
}

#[test]
fn a_job_that_is_held_is_no_demand() {
    let mut scene = Scene::new();
    scene.node("n1", 4);
    let job = scene.job(1, 4);
    scene.at(10);
    scene.control(muster_types::Control::Hold, job);
    assert_eq!(scene.used(20), ["idle.demand_unplaced 40", "idle.no_demand 40"]);
}

#[test]
fn demand_that_is_bound_to_other_regions_is_told_apart() {
    let mut scene = Scene::new();
    scene.node("n1", 1);
    scene.host(node_draft("n2", "us", "c2", Some(accelerators("h100", 1))));
    let mut asks = draft(1, 1);
    asks.regions = vec![name("us")];
    scene.submit(asks);
    assert_eq!(scene.used(10), ["idle.demand_unplaced 10", "idle.demand_elsewhere 10"]);
}

#[test]
fn the_planner_may_say_why_as_long_as_nothing_changes() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 4);
    scene.at(10);
    let job = scene.job(1, 4);
    scene.commit();
    let owner = Some((name("research"), PriorityTier::Standard));
    let part = |reason, milli| UnplacedPart { reason, owner: owner.clone(), milli };
    let parts = [part(UnplacedReason::Quota, 1_000), part(UnplacedReason::Fragmentation, 2_000)];
    scene.ledger.explain_idle(&name("h100"), &name("eu"), &parts);
    let pools = scene.ledger.unplaced();
    assert_eq!(pools.len(), 1);
    assert!(pools[0].milli == 4_000 && pools[0].is_explained, "{pools:?}");
    scene.ledger.explain_wait(job, Some(UnplacedReason::Fragmentation));
    scene.at(20);
    // The idle part of the pool is another one from here on, and the planner has not spoken of that.
    cordon(&mut scene, node, true);
    scene.at(30);
    cordon(&mut scene, node, false);
    let used = scene.used(40);
    assert_eq!(
        used,
        [
            "idle.cordon 40",
            "idle.demand_unplaced 50",
            "research idle.quota 10",
            "research idle.fragmentation 20",
            "idle.no_demand 40",
        ]
    );
    assert_eq!(scene.waited(40), ["waiting.fragmentation 30"]);
}

#[test]
fn what_is_kept_for_a_gang_has_its_tenant_as_the_owner() {
    let mut scene = Scene::new();
    scene.node("n1", 4);
    scene.node("n2", 4);
    let low = scene.job(1, 4);
    scene.pass();
    scene.running(low);
    scene.at(10);
    let mut urgent = draft(2, 4);
    (urgent.tenant, urgent.tier) = (name("urgent"), PriorityTier::Critical);
    let high = scene.submit(urgent);
    scene.pass();
    // One node is idle and kept for the gang, on the other one the job is being stopped.
    scene.at(15);
    scene.exit(low, 143);
    scene.pass();
    scene.running(high);
    let used = scene.used(15);
    assert_eq!(
        used,
        [
            "research lost.preempted 40",
            "research stopping 20",
            "urgent idle.reserved 20",
            "idle.no_demand 40",
        ]
    );
}

#[test]
fn causes_go_before_one_another_in_a_fixed_order() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 4);
    // Each step puts a cause on top of those before it.
    foreign(&mut scene, node, false, 0b0011);
    scene.at(10);
    assert_eq!(scene.used(10), ["idle.foreign 20", "idle.no_demand 20"]);
    cordon(&mut scene, node, true);
    scene.at(20);
    drain(&mut scene, node, DrainOrder::Begin { deadline_ms: None });
    scene.at(30);
    quarantine(&mut scene, node, Some("looked at"));
    scene.at(40);
    let request = scene.request();
    let order = RepairOrder::Begin {
        action: Some(muster_types::health::HealthAction::RebootNode),
        devices: DeviceSet::EMPTY,
        deadline_ms: None,
    };
    scene.run(&Command::SetRepair { request, by: muster_types::Requester::default(), node, order });
    scene.at(50);
    scene.lose(node);
    let used = scene.used(60);
    assert_eq!(
        used,
        [
            "idle.node_lost 40",
            "idle.repair 40",
            "idle.quarantine 40",
            "idle.drain 40",
            "idle.cordon 40",
            "idle.foreign 20",
            "idle.no_demand 20",
        ]
    );
}

#[test]
fn an_unhealthy_device_is_a_fault_and_the_rest_of_its_node_is_not() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 4);
    let before = scene.used(10);
    assert_eq!(before, ["idle.no_demand 40"]);
    scene.at(10);
    fault(&mut scene, node, 2);
    scene.commit();
    let health = scene.state.restriction(node).map(|row| row.health.clone()).unwrap();
    let faulty = if health.out_of_service { 4 } else { u64::from(health.unusable.count()) };
    assert!(faulty > 0, "{health:?}");
    let view = scene.view(20);
    let faults = view.usage.iter().filter(|row| row.activity.to_string() == "idle.fault");
    assert_eq!(faults.map(|row| row.milli_ms).sum::<u128>(), u128::from(faulty) * 10_000_000);
}

#[test]
fn a_node_that_another_scheduler_has_closed_is_foreign() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 4);
    foreign(&mut scene, node, true, 0);
    assert_eq!(scene.used(10), ["idle.foreign 40"]);
}
