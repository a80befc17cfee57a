//! What accelerators that a job holds are charged to. Amounts are accelerator-seconds.

use muster_decider::{Command, DrainOrder, OverridesOrder};
use muster_ledger::{Activity, Detail, Ledger, LossCause, StepSums, Window};
use muster_types::health::{Finding, HealthReport, Observation};
use muster_types::policy::PurchaseKind;
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, Control, DeviceAmount, ExitStatus, JobContract, LogTime,
    NodeOverridesChange, PriorityTier, Requester,
};

use crate::scene::{START_MS, Scene, draft};
use crate::support::{accelerators, group, job_draft, name, node_draft};

/// A node of eight, and a job on all of them that runs from second 10 on.
fn running() -> (Scene, muster_types::NodeId, muster_types::JobId) {
    let mut scene = Scene::new();
    let node = scene.node("n1", 8);
    let mut asks = draft(1, 8);
    asks.failure_retries_max = 3;
    let job = scene.submit(asks);
    scene.pass();
    scene.at(10);
    scene.running(job);
    (scene, node, job)
}

#[test]
fn work_of_a_job_that_succeeds_is_kept() {
    let (mut scene, _, job) = running();
    scene.at(110);
    assert_eq!(scene.used(110), ["research provisional 800", "research starting 80"]);
    scene.exit(job, 0);
    assert_eq!(scene.used(110), ["research kept 800", "research starting 80"]);
    assert_eq!(scene.used(120), ["research kept 800", "research starting 80", "idle.no_demand 80"]);
    let totals = &scene.ended[0];
    assert_eq!((totals.job, totals.used[&Activity::Kept]), (job, 800_000_000));
}

#[test]
fn work_before_a_checkpoint_is_kept_and_work_after_it_is_lost_with_the_attempt() {
    let (mut scene, _, job) = running();
    scene.at(70);
    scene.checkpoint(job);
    assert_eq!(scene.used(70), ["research kept 480", "research starting 80"]);
    scene.at(100);
    scene.exit(job, 1);
    let used = scene.used(100);
    assert_eq!(used, ["research kept 480", "research lost.application 240", "research starting 80"]);
}

#[test]
fn workers_that_end_first_free_their_devices_and_their_work_waits_for_the_gang() {
    let mut scene = Scene::new();
    scene.node("n1", 4);
    scene.node("n2", 4);
    let job = scene.job(2, 4);
    scene.pass();
    scene.running(job);
    scene.at(10);
    let placement = scene.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap();
    let slot = placement.slots[0];
    let updates = vec![(0, muster_journal::RankUpdate::Exited(ExitStatus::Code(0)))];
    let (node, incarnation, token) = (slot.node, slot.incarnation, placement.token);
    scene.run(&Command::Report { node, incarnation, job, token, updates });
    assert_eq!(scene.used(20), ["research provisional 120", "idle.no_demand 40"]);
    scene.at(20);
    scene.exit(job, 0);
    assert_eq!(scene.used(20), ["research kept 120", "idle.no_demand 40"]);
}

#[test]
fn what_runs_on_a_node_follows_how_operators_say_that_it_was_bought() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 8);
    let job = scene.job(2, 4);
    scene.pass();
    scene.running(job);
    scene.at(10);
    let set_labels = [(name("purchase"), "spot".to_owned())].into();
    let change = NodeOverridesChange { set_labels, ..NodeOverridesChange::default() };
    let order = OverridesOrder { request: scene.request(), by: Requester::default(), node, change };
    scene.run(&Command::SetNodeOverrides(Box::new(order)));
    scene.at(20);
    let token = scene.speculation.state().job(job).and_then(|row| row.placement.clone()).unwrap().token;
    let updates = vec![(0, muster_journal::RankUpdate::Exited(ExitStatus::Code(0)))];
    scene.run(&Command::Report { node, incarnation: 1, job, token, updates });
    assert_eq!(scene.used(30), ["research provisional 200", "idle.no_demand 40"]);
    let view = scene.view(30);
    let mut used = std::collections::BTreeMap::new();
    for row in &view.usage {
        *used.entry(row.purchase).or_insert(0) += row.milli_ms;
    }
    let capacity: std::collections::BTreeMap<_, _> =
        view.capacity.iter().map(|row| (row.purchase, row.milli_ms)).collect();
    assert_eq!(used, capacity, "each purchase has as much in use as it has capacity");
    assert_eq!(used.get(&None::<PurchaseKind>), Some(&80_000_000));
    assert_eq!(used.get(&Some(PurchaseKind::Spot)), Some(&160_000_000));
}

#[test]
fn a_cancelled_job_loses_what_it_has_not_saved_and_then_stops() {
    let (mut scene, _, job) = running();
    scene.at(20);
    scene.control(Control::Cancel, job);
    scene.at(25);
    scene.exit(job, 143);
    let used = scene.used(25);
    assert_eq!(used, ["research lost.cancelled 80", "research starting 80", "research stopping 40"]);
}

#[test]
fn a_gang_that_saves_its_work_while_it_is_stopped_has_spent_that_time_on_the_checkpoint() {
    let (mut scene, _, job) = running();
    scene.at(20);
    scene.control(Control::Requeue, job);
    scene.at(25);
    assert_eq!(scene.used(25), ["research provisional 80", "research starting 80", "research stopping 40"]);
    scene.checkpoint(job);
    scene.at(27);
    scene.exit(job, 143);
    assert_eq!(
        scene.used(27),
        ["research kept 80", "research starting 80", "research checkpointing 40", "research stopping 16"]
    );
}

#[test]
fn work_that_somebody_had_requeued_is_lost_for_that() {
    let (mut scene, _, job) = running();
    scene.at(20);
    scene.control(Control::Requeue, job);
    scene.exit(job, 143);
    assert_eq!(scene.used(20), ["research lost.requeued 80", "research starting 80"]);
}

#[test]
fn a_preempted_gang_loses_its_work_to_preemption() {
    let (mut scene, _, low) = running();
    scene.at(20);
    let mut urgent = draft(1, 8);
    (urgent.tenant, urgent.tier) = (name("urgent"), PriorityTier::Critical);
    let high = scene.submit(urgent);
    scene.pass();
    scene.at(30);
    assert_eq!(scene.used(30), ["research provisional 80", "research starting 80", "research stopping 80"]);
    scene.exit(low, 143);
    scene.pass();
    scene.running(high);
    let used = scene.used(40);
    assert_eq!(
        used,
        [
            "research lost.preempted 80",
            "urgent provisional 80",
            "research starting 80",
            "research stopping 80"
        ]
    );
}

#[test]
fn a_lost_node_loses_the_work_and_is_idle_for_that() {
    let (mut scene, node, _) = running();
    scene.at(20);
    scene.lose(node);
    let used = scene.used(30);
    assert_eq!(used, ["research lost.node_lost 80", "research starting 80", "idle.node_lost 80"]);
}

#[test]
fn faults_of_the_host_and_of_the_network_are_told_apart_from_the_application() {
    for (exit, cause) in [
        (ExitStatus::NodeFault("xid 79".into()), LossCause::NodeFault),
        (ExitStatus::BackendLost("gone".into()), LossCause::Backend),
        (ExitStatus::OutOfMemory, LossCause::Application),
        (ExitStatus::Vanished, LossCause::NodeLost),
        (ExitStatus::PreflightFailed("slow".into()), LossCause::Network),
    ] {
        let (mut scene, _, job) = running();
        scene.at(20);
        scene.report(job, &muster_journal::RankUpdate::Exited(exit));
        let view = scene.view(20);
        let lost: Vec<_> = view.usage.iter().filter(|row| row.activity.is_work()).collect();
        assert_eq!(lost.len(), 1);
        assert_eq!((lost[0].activity, lost[0].milli_ms), (Activity::Lost(cause), 80_000_000));
    }
}

#[test]
fn a_job_over_its_limit_loses_its_work_to_that() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let mut asks = draft(1, 8);
    asks.run_time_limit_ms = Some(30_000);
    let job = scene.submit(asks);
    scene.pass();
    scene.running(job);
    scene.at(30);
    scene.tick();
    scene.at(31);
    scene.exit(job, 143);
    assert_eq!(scene.used(31), ["research lost.time_limit 240", "research stopping 8"]);
}

#[test]
fn a_drain_stops_a_gang_at_its_deadline() {
    let (mut scene, node, job) = running();
    scene.at(20);
    let request = scene.request();
    let order = DrainOrder::Begin { deadline_ms: Some(10_000) };
    let by = muster_types::Requester::default();
    scene.run(&Command::SetDrain { request, by, node, order, reason: None });
    scene.at(30);
    scene.tick();
    scene.at(32);
    scene.exit(job, 143);
    let used = scene.used(40);
    assert_eq!(
        used,
        ["research lost.drained 160", "research starting 80", "research stopping 16", "idle.drain 64"]
    );
}

#[test]
fn a_device_that_fails_is_the_jobs_until_it_gives_it_up() {
    let (mut scene, node, job) = running();
    scene.at(20);
    let mut report = HealthReport { boot: 1, ..HealthReport::default() };
    report.events.push(Observation::of(Finding::Xid(79), Some(3)));
    scene.run(&Command::ReportHealth { node, incarnation: 1, report: Box::new(report) });
    scene.at(30);
    scene.exit(job, 143);
    let used = scene.used(40);
    assert!(used.contains(&"research starting 80".to_owned()), "{used:?}");
    assert!(used.iter().any(|line| line.starts_with("idle.fault")), "{used:?}");
}

#[test]
fn spares_are_their_own_state_of_the_same_owner() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    scene.node("n2", 8);
    let contract = JobContract { spares: 1, ..JobContract::default() };
    let job = scene.submit_all(draft(1, 8), contract, None);
    scene.pass();
    scene.running(job);
    assert_eq!(scene.used(10), ["research provisional 80", "research spare 80"]);
}

#[test]
fn shares_of_a_device_are_exact_to_the_thousandth() {
    let mut scene = Scene::new();
    scene.node("n1", 1);
    let mut asks = draft(1, 1);
    asks.groups[0].request.accelerators = Some(AcceleratorRequest {
        choices: vec![AcceleratorChoice { kind: name("h100"), throughput_milli: 1_000 }],
        amount: DeviceAmount::Share(333),
    });
    let job = scene.submit(asks);
    scene.pass();
    scene.running(job);
    assert_eq!(scene.used(1), ["research provisional 0.333", "idle.no_demand 0.667"]);
}

#[test]
fn a_node_that_is_forgotten_is_no_capacity_any_more() {
    let mut scene = Scene::new();
    let node = scene.node("n1", 2);
    scene.at(10);
    scene.lose(node);
    scene.at(20);
    scene.run(&Command::ForgetNode { request: None, by: muster_types::Requester::default(), node });
    assert_eq!(scene.used(100), ["idle.node_lost 20", "idle.no_demand 20"]);
}

#[test]
fn purchases_periods_and_jobs_are_kept_apart() {
    let mut scene = Scene::new();
    let cuts = vec![LogTime(START_MS + 30_000), LogTime(START_MS + 10_000), LogTime(START_MS + 10_000)];
    scene.ledger = Ledger::begin_with(&scene.state, Window::default(), Detail { cuts, jobs: true });
    let words = ["owned", "on_demand", "spot", "reserved", "a-gift"];
    for (at, word) in words.into_iter().enumerate() {
        let mut host = node_draft(&format!("n{at}"), "eu", "c1", Some(accelerators("h100", 1)));
        host.labels.insert(name("purchase"), word.to_owned());
        scene.host(host);
    }
    let job = scene.job(5, 1);
    scene.pass();
    scene.running(job);
    scene.at(40);
    scene.exit(job, 0);
    let view = scene.view(40);
    let rows: Vec<String> = view
        .usage
        .iter()
        .map(|row| {
            assert_eq!(row.job, Some(job));
            let purchase = row.purchase.map_or("-", |purchase| purchase.as_str());
            format!("{purchase} {} {}", row.period, row.milli_ms / 1_000_000)
        })
        .collect();
    let mut expected = Vec::new();
    for purchase in ["-", "owned", "on_demand", "spot", "reserved"] {
        expected.extend(["0 10", "1 20", "2 10"].map(|rest| format!("{purchase} {rest}")));
    }
    assert_eq!(rows, expected);
    let capacity: Vec<u128> = view.capacity.iter().map(|row| row.milli_ms / 1_000_000).collect();
    assert_eq!(capacity, [40; 5]);
}

#[test]
fn days_types_regions_and_tiers_are_kept_apart() {
    let mut scene = Scene::new();
    scene.host(node_draft("a", "us", "c9", Some(accelerators("a100", 1))));
    scene.node("n1", 1);
    let mut asks = job_draft("job", vec![group("main", 1, Some(accelerators("a100", 1)))]);
    asks.tier = PriorityTier::Production;
    let job = scene.submit(asks);
    scene.pass();
    scene.running(job);
    scene.at(90_000);
    scene.exit(job, 0);
    let view = scene.view(90_000);
    let rows: Vec<String> = view
        .usage
        .iter()
        .map(|row| {
            let owner = row.tenant.as_ref().map_or("-", |tenant| tenant.as_str());
            let tier = row.tier.map_or("-", |tier| tier.as_str());
            let seconds = row.milli_ms / 1_000_000;
            format!("{} {owner} {tier} {} {} {} {seconds}", row.day, row.kind, row.region, row.activity)
        })
        .collect();
    assert_eq!(
        rows,
        [
            "20000 - - h100 eu idle.no_demand 86400",
            "20000 research production a100 us kept 86400",
            "20001 - - h100 eu idle.no_demand 3600",
            "20001 research production a100 us kept 3600",
        ]
    );
}

#[test]
fn checkpoints_that_state_their_step_say_how_fast_a_job_is() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let job = scene.job(1, 8);
    scene.at(10);
    scene.pass();
    scene.at(15);
    scene.running(job);
    // Ten steps take 10 s, and once 20 s. A checkpoint without a step says nothing of them.
    for (second, step) in
        [(20, Some(10)), (30, Some(20)), (40, Some(30)), (50, None), (60, Some(40)), (70, Some(50))]
    {
        scene.at(second);
        scene.checkpoint_of(job, step);
    }
    scene.commit();
    let expected = StepSums { steps: 40, actual_ms: 50_000, ideal_ms: 40_000 };
    assert_eq!(scene.steps.sums().get(&job), Some(&expected));
    // It stays known when the job is over.
    scene.at(80);
    scene.exit(job, 0);
    scene.commit();
    assert_eq!(scene.steps.sums().get(&job), Some(&expected));
}
