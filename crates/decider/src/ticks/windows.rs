//! Windows that are open: what may not be there any more is stopped.
//!
//! Nothing is placed where it is not expected (p90) to be over before a window begins; so what is left to be stopped ran
//! longer, or was there when the window was set. The hosts of open windows are looked at one after the other, rack by
//! rack: when a window opens, when the policy has changed, and now and then; one tick looks at a limited number, and the
//! next tick goes on from there. What opens meanwhile is looked at once that has come to its end.

use alloc::vec::Vec;
use core::ops::Bound;
use muster_journal::{Decision, StopCause};
use muster_state::{PoolKey, RackKey, State};
use muster_types::policy::{Window, WindowPurpose, WindowScope};
use muster_types::{FleetPart, JobId, LogTime, Name, NodeId};

use crate::memory::sweep::HostPosition;
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::windows::{is_open, may_stay};
use crate::settle::job::{settle, settle_many};
use crate::speculation::Speculation;

/// What one tick may do.
const PER_TICK: Bounds = Bounds { looked_at: 8_192, gangs: 16_384, stopped: 1_000 };

/// Bounds of the work in one tick.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Racks and hosts looked at.
    looked_at: usize,
    /// Gangs on them that are looked at, each with every open window.
    gangs: usize,
    /// Gangs stopped.
    stopped: usize,
}

/// Stops what may not run any more where a window is open: everything for maintenance, also for that of bookings of a part of the
/// fleet, and where an operator holds a part of it and drains it; for a reservation the
/// preemptible work of others than its owner.
pub(super) fn clear(speculation: &mut Speculation) {
    clear_some(speculation, PER_TICK);
}

/// The same within these bounds; how many gangs were looked at, for each open window.
fn clear_some(speculation: &mut Speculation, bounds: Bounds) -> usize {
    let now = speculation.now();
    let state = speculation.state();
    let policy = state.policy().policy.clone();
    let cleared = cleared_parts(state);
    let open = policy.windows.iter().filter(|window| is_open(window, now)).chain(&cleared);
    let open: Vec<&Window> = open.collect();
    let sweep = speculation.sweep().clone();
    let Some(sweep) = sweep.due(state.policy().version, &open, now) else { return 0 };
    let (hosts, next) = hosts_behind(state, &open, sweep.next(), bounds.looked_at);
    let (mut stopped, mut looked_at) = (0, 0);
    for (at, place) in hosts.into_iter().enumerate() {
        let (_, _, node) = &place;
        let gangs: Vec<JobId> = speculation.state().gangs_on(*node).collect();
        let looks = gangs.len() * open.len();
        // At least one host at a time, however many gangs it has.
        if at > 0 && looked_at + looks > bounds.gangs {
            speculation.set_sweep(sweep.with_next(Some(place)));
            return looked_at;
        }
        looked_at += looks;
        if !cleared.is_empty() {
            // Nothing is kept there for anybody who waits.
            let promised: Vec<JobId> = speculation.state().promised_on(*node).collect();
            settle_many(speculation, promised);
        }
        for job in gangs {
            if stopped == bounds.stopped || speculation.round_bytes() > ROUND_BYTES_SOFT {
                speculation.set_sweep(sweep.with_next(Some(place)));
                return looked_at;
            }
            if may_stay(speculation.state(), &policy, &open, job, *node) {
                continue;
            }
            let row = speculation.state().job(job).expect("an indexed job has a row");
            let token = row.placement.as_ref().expect("a running job has a placement").token;
            let cause = StopCause::Evicted { node: *node };
            speculation.push(Decision::GangStopRequested { job, token, cause });
            settle(speculation, job);
            stopped += 1;
        }
    }
    speculation.set_sweep(sweep.with_next(next));
    looked_at
}

/// Parts of the fleet that are to be empty, as windows of maintenance: those of bookings that are open, and those that are held and
/// drained. Which they are the records say, and not the clock.
fn cleared_parts(state: &State) -> Vec<Window> {
    let window = |from: LogTime, part: &FleetPart| Window {
        name: Name::literal("part"),
        from,
        until: LogTime(u64::MAX),
        scope: WindowScope {
            region: part.region.clone(),
            cluster: part.cluster.clone(),
            ..WindowScope::default()
        },
        purpose: WindowPurpose::Maintenance,
    };
    let booked = state.open_parts().map(|(_, booking, part)| window(booking.current().from, part));
    let drained = state.fleet_holds().filter(|(_, row)| row.hold.stops_work);
    booked.chain(drained.map(|(target, row)| window(row.since, target.part()))).collect()
}

/// Hosts of open windows from a position on, and the one to go on with when that takes more than
/// `looks_max` looks at racks and hosts.
fn hosts_behind(
    state: &State,
    open: &[&Window],
    from: Option<&HostPosition>,
    looks_max: usize,
) -> (Vec<HostPosition>, Option<HostPosition>) {
    let mut found = Vec::new();
    let mut looked_at = 0;
    for (key, pool) in state.pools() {
        let in_pool: Vec<&WindowScope> =
            open.iter().map(|window| &window.scope).filter(|scope| reaches_pool(scope, key)).collect();
        let from = from.filter(|(at, _, _)| at >= key);
        if in_pool.is_empty() || from.is_some_and(|(at, _, _)| at > key) {
            continue;
        }
        let first = from.map_or(Bound::Unbounded, |(_, rack, _)| Bound::Included(rack.clone()));
        for (rack_key, rack) in pool.racks.range((first, Bound::Unbounded)) {
            looked_at += 1;
            if !in_pool.iter().any(|scope| reaches_rack(scope, rack_key)) {
                continue;
            }
            let from = from.filter(|(_, at, _)| at == rack_key).map_or(NodeId(0), |(_, _, node)| *node);
            for node in rack.members.range(from..) {
                let place = (key.clone(), rack_key.clone(), *node);
                // At least one at a time, however many racks come before it.
                if looked_at >= looks_max && !found.is_empty() {
                    return (found, Some(place));
                }
                looked_at += 1;
                found.push(place);
            }
        }
    }
    (found, None)
}

fn reaches_pool(scope: &WindowScope, key: &PoolKey) -> bool {
    let within = |part: &Option<Name>, own: &Name| part.as_ref().is_none_or(|name| name == own);
    within(&scope.region, &key.region) && within(&scope.cluster, &key.cluster)
}

fn reaches_rack(scope: &WindowScope, key: &RackKey) -> bool {
    let within = |part: &Option<Name>, own: &Name| part.as_ref().is_none_or(|name| name == own);
    within(&scope.block, &key.block) && within(&scope.rack, &key.rack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::format;
    use alloc::string::ToString;
    use muster_planner::Budget;
    use muster_state::Phase;
    use muster_types::policy::PolicyDraft;
    use muster_types::{
        ClusterId, HolderId, JobDraft, Leadership, NodeDraft, Parameters, ReplicaId, RequestId, Submission,
        TaskGroup, WorkerRequest,
    };

    use crate::{BootstrapConfig, Command, Pass, handle, schedule};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Two clusters of three racks with five hosts each.
    fn fleet() -> Speculation {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), bootstrap);
        for number in 0..30 {
            let host = format!("n{number}");
            let spec = NodeDraft {
                name: name(&host),
                region: name("eu"),
                cluster: name(&format!("c{}", number % 2)),
                block: name("b"),
                rack: name(&format!("r{}", number % 3)),
                address: host.to_string(),
                accelerators: None,
                cpu_milli: 1_000,
                memory_bytes: 1 << 30,
                labels: BTreeMap::new(),
                taints: BTreeSet::new(),
                pod: None,
                scratch_bytes: 0,
            };
            let spec = spec.check().expect("a host");
            let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
            handle(&mut speculation, &register).expect("it is new");
        }
        speculation
    }

    /// One-worker jobs that take no device, as many on every host, and an open window of maintenance over all.
    fn full_fleet_under_maintenance(per_host: u64) -> Speculation {
        let mut speculation = fleet();
        let request = WorkerRequest {
            accelerators: None,
            cpu_milli: 1_000 / per_host,
            memory_bytes: 1,
            exclusive: false,
            scratch_bytes: 0,
        };
        let group = TaskGroup::new(name("main"), 1, alloc::vec!["run".to_string()], request);
        let job = JobDraft::new(name("job"), name("team"), alloc::vec![group]).check().expect("a job");
        let jobs = Submission::plain(alloc::vec![job; 30 * per_host as usize]);
        handle(&mut speculation, &Command::submit(RequestId(1), jobs)).expect("it is taken");
        while let Pass::Interrupted { .. } = schedule(&mut speculation, &mut Budget::new(100_000)) {
            speculation.take_round();
        }
        assert_eq!(speculation.state().active_count(), 30 * per_host as usize);
        let mut policy = PolicyDraft::default();
        policy.windows.push(Window {
            name: name("w"),
            from: LogTime(0),
            until: LogTime(1_000),
            scope: WindowScope { region: Some(name("eu")), ..WindowScope::default() },
            purpose: WindowPurpose::Maintenance,
        });
        let policy = Box::new(policy.check().expect("a policy"));
        let set = Command::SetPolicy {
            request: RequestId(2),
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        };
        handle(&mut speculation, &set).expect("it is taken");
        speculation.take_round();
        speculation
    }

    #[test]
    fn a_tick_looks_at_no_more_gangs_than_its_bounds_say_and_the_next_goes_on() {
        for (bounds, ticks_min) in [
            (Bounds { looked_at: 7, gangs: 100, stopped: 100 }, 30 / 7),
            (Bounds { looked_at: 100, gangs: 8, stopped: 100 }, 30 / 2),
            (Bounds { looked_at: 100, gangs: 100, stopped: 5 }, 120 / 5),
        ] {
            let mut speculation = full_fleet_under_maintenance(4);
            let runs = |speculation: &Speculation| {
                let state = speculation.state();
                state.jobs().iter().filter(|(_, row)| !matches!(row.phase, Phase::Stopping(_))).count()
            };
            let mut ticks = 0;
            while runs(&speculation) > 0 {
                let before = runs(&speculation);
                let looked_at = clear_some(&mut speculation, bounds);
                speculation.take_round();
                ticks += 1;
                assert!(looked_at <= bounds.gangs, "{looked_at} looks, {bounds:?}");
                let stopped = before - runs(&speculation);
                assert!((1..=bounds.stopped).contains(&stopped), "{stopped} stopped, {bounds:?}");
            }
            assert!(ticks >= ticks_min, "{ticks} ticks, {bounds:?}");
        }
    }

    #[test]
    fn every_host_of_a_window_is_looked_at_once_however_little_a_tick_may_do() {
        let speculation = fleet();
        let scopes = [
            (WindowScope { region: Some(name("eu")), ..WindowScope::default() }, 30),
            (WindowScope { cluster: Some(name("c1")), ..WindowScope::default() }, 15),
            (WindowScope { rack: Some(name("r2")), ..WindowScope::default() }, 10),
            (WindowScope { rack: Some(name("r9")), ..WindowScope::default() }, 0),
        ];
        for (scope, hosts) in scopes {
            let window = Window {
                name: name("w"),
                from: LogTime(0),
                until: LogTime(9),
                scope,
                purpose: WindowPurpose::Maintenance,
            };
            for looks_max in [1, 2, 7, 100] {
                let (mut seen, mut next, mut ticks) = (Vec::new(), None, 0);
                loop {
                    let (found, behind) =
                        hosts_behind(speculation.state(), &[&window], next.as_ref(), looks_max);
                    assert!(found.len() <= looks_max);
                    seen.extend(found.into_iter().map(|(_, _, node)| node));
                    ticks += 1;
                    next = behind;
                    if next.is_none() {
                        break;
                    }
                }
                let different: BTreeSet<NodeId> = seen.iter().copied().collect();
                assert_eq!((seen.len(), different.len()), (hosts, hosts), "{:?}", window.scope);
                assert!(ticks <= 1 + hosts, "{ticks} ticks for {hosts} hosts");
            }
        }
    }
}
