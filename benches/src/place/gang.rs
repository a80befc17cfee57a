//! Large gangs that have to stay in one block of a fleet that is half full.

use muster_decider::Command;
use muster_types::{JobId, Level, RequestId};
use serde_json::json;

use super::fleet::{Ask, Dice, Fleet, HOST_DEVICES, Layout, job};
use super::{Bar, Figure, Times, ms};

const HOSTS: u32 = 10_000;
const REPETITIONS: u64 = 200;
/// Blocks that are left empty, so that whole hosts are free.
const EMPTY_BLOCKS: u32 = 2;

/// 512 workers with one device and with eight.
pub(super) fn gangs() -> Vec<Figure> {
    let mut fleet = half_full();
    let mut figures = Vec::new();
    for devices in [1, 8] {
        let (mut times, mut submissions, mut decisions) =
            (Times::default(), Times::default(), Times::default());
        for turn in 0..REPETITIONS + 1 {
            let ask = Ask { required: Some(Level::Block), ..Ask::gang(512, devices) };
            let spec = job("pretrain", "vision", ask);
            let (mut submission, mut decision) = (Times::default(), Times::default());
            let gang = submission.around(|| fleet.submit(vec![spec])[0]);
            decision.around(|| fleet.schedule());
            // The first time warms up.
            if turn > 0 {
                times.add(submission.median() + decision.median());
                submissions.add(submission.median());
                decisions.add(decision.median());
            }
            remove(&mut fleet, gang, u128::from(devices) << 64 | u128::from(turn) << 32);
        }
        let what =
            |quantile: &str| format!("512 x {devices} in one block, half-full {HOSTS} hosts, {quantile}");
        let detail = json!({
            "both": times.json(), "submission": submissions.json(), "decision": decisions.json(),
        });
        let p50 = Figure::new("gang", what("p50"), ms(times.median()), "ms").detail(detail);
        let p50 = if devices == 1 { p50.peer("KAI", 48.7, times.median()) } else { p50 };
        figures.push(p50.bar(Bar::AtMost(10.0)));
        figures.push(Figure::new("gang", what("p99"), ms(times.quantile(990)), "ms").bar(Bar::AtMost(10.0)));
    }
    figures
}

/// Half of the devices hold jobs of one device; two blocks hold none.
fn half_full() -> Fleet {
    let layout = Layout::blocks_of_512(HOSTS);
    let (mut fleet, mut jobs) = Fleet::full(layout);
    let empty = u64::from(EMPTY_BLOCKS * layout.hosts_per_block());
    let is_in_empty = |fleet: &Fleet, job: &JobId| {
        let row = fleet.state().job(*job);
        let placement = row.and_then(|row| row.placement.as_ref());
        placement.is_some_and(|placement| u64::from(placement.slots[0].node.0) <= empty)
    };
    let (mut to_end, mut others): (Vec<JobId>, Vec<JobId>) =
        jobs.drain(..).partition(|job| is_in_empty(&fleet, job));
    let mut dice = Dice::new();
    while to_end.len() < (HOSTS * HOST_DEVICES / 2) as usize {
        to_end.push(others.swap_remove(dice.below(others.len())));
    }
    for job in to_end {
        fleet.end(job);
        fleet.speculation.take_round();
    }
    fleet.schedule();
    fleet
}

/// The gang is cancelled and gone.
fn remove(fleet: &mut Fleet, gang: JobId, request: u128) {
    let row = fleet.state().job(gang);
    assert!(row.is_some_and(|row| row.placement.is_some()), "the gang fits");
    fleet.command(&Command::cancel(RequestId(request | 1 << 100), gang));
    fleet.end(gang);
    fleet.speculation.take_round();
    fleet.schedule();
}
