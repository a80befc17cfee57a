//! What jobs spend time on before they run. Amounts are job-seconds.

use muster_ledger::WaitReason;
use muster_types::{ArraySpec, Control, Dependency, DependencyRule, JobContract, LogTime, PriorityTier};

use crate::scene::{START_MS, Scene, draft};
use crate::support::name;

#[test]
fn a_job_waits_for_capacity_and_then_for_its_start() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let job = scene.job(1, 8);
    scene.at(10);
    scene.pass();
    scene.at(15);
    scene.running(job);
    assert_eq!(scene.waited(100), ["waiting 10", "starting 5"]);
    scene.at(20);
    scene.exit(job, 0);
    scene.commit();
    let totals = &scene.ended[0];
    assert_eq!(totals.waited, [(WaitReason::Waiting(None), 10_000), (WaitReason::Starting, 5_000)]);
}

#[test]
fn what_a_job_asks_for_counts_while_it_could_start() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let job = scene.job(2, 4);
    scene.at(10);
    scene.control(Control::Hold, job);
    scene.at(30);
    scene.control(Control::Release, job);
    scene.at(35);
    scene.pass();
    let view = scene.view(60);
    // Ten seconds before the hold and five behind it.
    let demand: Vec<u128> = view.demand.iter().map(|row| row.milli_ms / 1_000_000).collect();
    assert_eq!(demand, [15 * 8]);
    assert_eq!(view.demand[0].kind.as_str(), "h100");
}

#[test]
fn time_under_a_hold_is_held() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let job = scene.job(1, 8);
    scene.at(10);
    scene.control(Control::Hold, job);
    scene.at(30);
    scene.control(Control::Release, job);
    assert_eq!(scene.waited(35), ["held 20", "waiting 15"]);
}

#[test]
fn times_before_which_a_job_may_not_start_pass_without_a_record() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let mut asks = draft(1, 8);
    asks.not_before = Some(LogTime(START_MS + 60_000));
    let job = scene.submit(asks);
    assert_eq!(scene.waited(50), ["not_before 50"]);
    scene.at(61);
    scene.tick();
    scene.commit();
    assert!(scene.state.job(job).unwrap().released);
    // The second until the record that releases it counts as well.
    assert_eq!(scene.waited(70), ["not_before 61", "waiting 9"]);
}

#[test]
fn dependencies_are_charged_behind_the_time_before_which_it_may_not_start() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let first = scene.job(1, 8);
    let mut asks = draft(1, 8);
    asks.dependencies = vec![Dependency::new(first, DependencyRule::Finished)];
    asks.not_before = Some(LogTime(START_MS + 20_000));
    scene.submit(asks);
    assert_eq!(scene.waited(30), ["not_before 20", "dependencies 10", "waiting 30"]);
    scene.at(40);
    scene.control(Control::Cancel, first);
    assert_eq!(scene.waited(50), ["not_before 20", "dependencies 20", "waiting 50"]);
}

#[test]
fn a_job_that_failed_waits_for_the_end_of_its_back_off() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let mut contract = JobContract::default();
    contract.retry.backoff_ms = Some(30_000);
    let mut asks = draft(1, 8);
    asks.failure_retries_max = 3;
    let job = scene.submit_all(asks, contract, None);
    scene.pass();
    scene.running(job);
    scene.at(10);
    scene.exit(job, 1);
    scene.commit();
    let until = scene.state.recovery(job).and_then(|row| row.wait_until).unwrap();
    let seconds = (until.0 - START_MS) / 1_000;
    scene.at(seconds);
    scene.tick();
    let waited = scene.waited(seconds + 5);
    assert_eq!(waited, [format!("backoff {}", seconds - 10), "waiting 5".to_owned()]);
}

#[test]
fn members_that_the_throttle_of_their_array_keeps_back_are_throttled() {
    let mut scene = Scene::new();
    scene.node("n1", 1);
    let mut array = ArraySpec::of_size(10);
    array.throttle = Some(1);
    scene.submit_all(draft(1, 1), JobContract::default(), Some(array));
    scene.pass();
    scene.commit();
    assert_eq!(scene.state.jobs().len(), 1, "one member is created");
    assert_eq!(scene.waited(10), ["throttled 90", "starting 10"]);
    // No other member could start: nothing is idle for want of them.
    let job = *scene.state.jobs().iter().next().unwrap().0;
    scene.at(10);
    scene.running(job);
    scene.at(20);
    scene.exit(job, 0);
    scene.tick();
    scene.pass();
    scene.commit();
    // The member that is created now has waited since the array was submitted.
    let (second, _) = scene.state.jobs().iter().nth(1).unwrap();
    let totals = scene.ledger.totals(*second).unwrap();
    assert_eq!(totals.waited, [(WaitReason::Throttled, 20_000)]);
}

#[test]
fn a_gang_whose_capacity_is_kept_is_being_assembled() {
    let mut scene = Scene::new();
    scene.node("n1", 8);
    let low = scene.job(1, 8);
    scene.pass();
    scene.running(low);
    scene.at(10);
    let mut urgent = draft(1, 8);
    (urgent.tenant, urgent.tier) = (name("urgent"), PriorityTier::Critical);
    let high = scene.submit(urgent);
    scene.pass();
    scene.at(15);
    scene.exit(low, 143);
    scene.pass();
    scene.at(16);
    scene.running(high);
    let view = scene.view(16);
    let of_urgent: Vec<_> = view.waits.iter().filter(|row| row.tenant == name("urgent")).collect();
    let shown: Vec<String> = of_urgent.iter().map(|row| format!("{} {}", row.reason, row.job_ms)).collect();
    assert_eq!(shown, ["assembling 5000", "starting 1000"]);
}
