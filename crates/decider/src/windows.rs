//! Windows that are open: what may not be there any more is stopped.
//!
//! Nothing is placed where it is not expected to be over before a window begins, nine chances in ten; so what is left
//! to be stopped ran longer, or was there when the window was set. The hosts of open windows are looked at one after the
//! other, rack by rack: when a window opens, when the policy has changed, and now and then; so many in one tick, and the
//! next tick goes on from there.

use alloc::vec::Vec;
use core::ops::Bound;
use muster_journal::{Decision, StopCause};
use muster_state::{Phase, PoolKey, RackKey, State};
use muster_types::policy::{Policy, Window, WindowPurpose, WindowScope};
use muster_types::{JobId, LogIndex, LogTime, Name, NodeId, NodeSpec};

use crate::job::settle;
use crate::schedule::ROUND_BYTES_SOFT;
use crate::speculation::Speculation;

/// Racks and hosts looked at in one tick.
const LOOKED_AT_PER_TICK: usize = 8_192;

/// Gangs on them that are looked at in one tick, each with every open window.
const GANGS_PER_TICK: usize = 16_384;

/// Gangs stopped in one tick.
const STOPPED_PER_TICK: usize = 1_000;

/// Time from one look at all hosts of open windows to the next, when nothing happens.
const AGAIN_MS: u64 = 10_000;

/// How far the hosts of open windows have been looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    /// Under which policy.
    policy: LogIndex,
    /// When it began; none before the first.
    began: Option<LogTime>,
    /// The host to go on with; none when all have been looked at.
    next: Option<Place>,
}

/// A host among all of them, in the order in which they are looked at.
type Place = (PoolKey, RackKey, NodeId);

/// Stops what may not run any more where a window is open: everything for maintenance; for a reservation the
/// preemptible work of others than its owner.
pub(crate) fn clear(speculation: &mut Speculation) {
    let now = speculation.now();
    let state = speculation.state();
    let policy = state.policy().policy.clone();
    let open: Vec<&Window> = policy.windows.iter().filter(|window| is_open(window, now)).collect();
    let sweep = speculation.sweep().clone();
    let Some(sweep) = due(sweep, state.policy().version, &open, now) else { return };
    let (hosts, next) = hosts_behind(state, &open, sweep.next.as_ref(), LOOKED_AT_PER_TICK);
    let (mut stopped, mut looks_left) = (0, GANGS_PER_TICK);
    for (at, place) in hosts.into_iter().enumerate() {
        let (_, _, node) = &place;
        let gangs: Vec<JobId> = speculation.state().gangs_on(*node).collect();
        let looks = gangs.len() * open.len();
        // At least one host at a time, however many gangs it has.
        if at > 0 && looks > looks_left {
            speculation.set_sweep(Sweep { next: Some(place), ..sweep });
            return;
        }
        looks_left = looks_left.saturating_sub(looks);
        for job in gangs {
            if stopped == STOPPED_PER_TICK || speculation.round_bytes() > ROUND_BYTES_SOFT {
                speculation.set_sweep(Sweep { next: Some(place), ..sweep });
                return;
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
    speculation.set_sweep(Sweep { next, ..sweep });
}

pub(crate) fn is_open(window: &Window, now: LogTime) -> bool {
    window.from <= now && now < window.until
}

/// The sweep to go on with, or a new one when it is time; none when there is nothing to be done.
fn due(sweep: Sweep, policy: LogIndex, open: &[&Window], now: LogTime) -> Option<Sweep> {
    if open.is_empty() {
        return None;
    }
    let Some(began) = sweep.began.filter(|_| sweep.policy == policy) else {
        return Some(Sweep { policy, began: Some(now), next: None });
    };
    let has_opened = open.iter().any(|window| window.from > began);
    let is_over = sweep.next.is_none();
    if has_opened || (is_over && now.since_ms(began) >= AGAIN_MS) {
        return Some(Sweep { policy, began: Some(now), next: None });
    }
    (!is_over).then_some(sweep)
}

/// Hosts of open windows from a place on, and the one to go on with when that takes more than so many looks at racks
/// and hosts.
fn hosts_behind(
    state: &State,
    open: &[&Window],
    from: Option<&Place>,
    looks_max: usize,
) -> (Vec<Place>, Option<Place>) {
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

/// Whether a gang may go on running on a host, as far as open windows are concerned.
pub(crate) fn may_stay(state: &State, policy: &Policy, open: &[&Window], job: JobId, node: NodeId) -> bool {
    let (Some(row), Some(spec), Some(host)) = (state.job(job), state.spec(job), state.node(node)) else {
        return true;
    };
    if !matches!(row.phase, Phase::Starting | Phase::Running) {
        return true;
    }
    open.iter().filter(|window| window.scope.covers(&host.spec)).all(|window| match window.purpose {
        WindowPurpose::Maintenance => false,
        WindowPurpose::ReservedFor { .. } => is_owner(policy, window, &spec.tenant) || !spec.preemptible,
    })
}

/// Whether a window is set aside for a tenant, or for one above it.
pub(crate) fn is_owner(policy: &Policy, window: &Window, tenant: &Name) -> bool {
    match &window.purpose {
        WindowPurpose::Maintenance => false,
        WindowPurpose::ReservedFor { tenant: owner } => policy.ancestry(tenant).any(|above| above == owner),
    }
}

/// Whether a window that is open now keeps a tenant's work from a host.
pub(crate) fn is_closed(policy: &Policy, tenant: &Name, host: &NodeSpec, now: LogTime) -> bool {
    let mut open = policy.windows.iter().filter(|window| is_open(window, now) && window.scope.covers(host));
    open.any(|window| !is_owner(policy, window, tenant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::format;
    use alloc::string::ToString;
    use muster_types::{ClusterId, HolderId, NodeDraft, Parameters, ReplicaId};

    use crate::{Command, Founding, handle};
    use muster_state::Leadership;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Two clusters of three racks with five hosts each.
    fn fleet() -> Speculation {
        let founding = Founding::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), founding);
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
            };
            let spec = spec.check().expect("a host");
            let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
            handle(&mut speculation, &register).expect("it is new");
        }
        speculation
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
