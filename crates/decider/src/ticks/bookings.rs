//! Windows of bookings that begin and end, nodes of bookings that are lost, and work that has to go from booked nodes.

use alloc::vec::Vec;
use muster_journal::{Decision, StopCause};
use muster_state::State;
use muster_types::{Booking, BookingEnd, BookingShape, JobId, LogTime, Name, NodeId};

use crate::memory::booking_looks::BookingLooks;
use crate::round::ROUND_BYTES_SOFT;
use crate::rules::bookings::{choose, must_go};
use crate::settle::job::settle;
use crate::speculation::Speculation;

/// Nodes looked at in one tick for bookings that lack some. At least one booking gets its choice in any case.
const NODES_PER_TICK: usize = 100_000;

/// Gangs stopped in one tick.
const STOPPED_PER_TICK: usize = 1_000;

/// Records what time and the fleet bring about for bookings, and stops what has to go from their nodes.
pub(super) fn advance(speculation: &mut Speculation) {
    if speculation.state().booking_count() == 0 {
        return;
    }
    let now = speculation.now();
    let names: Vec<Name> = speculation.state().bookings().map(|(name, _)| name.clone()).collect();
    let looks = speculation.booking_looks();
    let mut is_due = looks.is_due(now);
    for name in &names {
        while let Some(step) = next_step(speculation.state(), name, now) {
            if speculation.round_bytes() > ROUND_BYTES_SOFT {
                speculation.set_booking_looks(BookingLooks::cut(now, looks.next()));
                return;
            }
            is_due = true;
            speculation.push(step);
        }
    }
    if !is_due {
        return;
    }
    let next = replace(speculation, &names, looks.next(), NODES_PER_TICK);
    let is_cut = clear(speculation, &names);
    speculation.set_booking_looks(match next {
        Some(next) => BookingLooks::cut(now, next),
        None if is_cut => BookingLooks::cut(now, names.len()),
        None => BookingLooks::whole(now),
    });
}

/// Gives bookings other nodes for those that they lack, from a place among them on. A choice looks at the whole fleet: behind one
/// that brings the nodes looked at to `nodes_max` the next tick goes on, from the place that this returns.
fn replace(speculation: &mut Speculation, names: &[Name], from: usize, nodes_max: usize) -> Option<usize> {
    let mut looked_at = 0;
    for (at, name) in names.iter().enumerate().skip(from) {
        if looked_at >= nodes_max || speculation.round_bytes() > ROUND_BYTES_SOFT {
            return Some(at);
        }
        let state = speculation.state();
        if !lacks_nodes(state, name) {
            continue;
        }
        looked_at += state.nodes_by_name().count();
        if let Some(moved) = moved(state, name) {
            speculation.push(moved);
        }
    }
    None
}

/// What time has brought about for a booking and is not recorded: its window has begun or is over, or its owner is gone. Each
/// record leads to the next in finitely many steps, because windows are passed in their order.
fn next_step(state: &State, name: &Name, now: LogTime) -> Option<Decision> {
    let booking = state.booking(name)?;
    let ended = |cause| Some(Decision::BookingEnded { name: name.clone(), cause });
    let tenants = &state.policy().policy.tenants;
    if booking.spec.tenant.as_ref().is_some_and(|owner| !tenants.contains_key(owner)) {
        return ended(BookingEnd::OwnerGone);
    }
    let window = booking.current();
    if window.until <= now {
        return ended(BookingEnd::WindowOver);
    }
    let begins = !booking.is_open && window.from <= now;
    begins.then(|| Decision::BookingOpened { name: name.clone() })
}

/// Whether a booking whose nodes the leader chooses has fewer in service than it asks for.
fn lacks_nodes(state: &State, name: &Name) -> bool {
    let Some(booking) = state.booking(name) else { return false };
    let is_chosen = matches!(booking.spec.shape, BookingShape::Chosen { .. });
    is_chosen && (usable(state, booking) < booking.nodes.len() || !is_whole(state, booking))
}

/// How many nodes of a booking are in service.
fn usable(state: &State, booking: &Booking) -> usize {
    let in_service = |node: &&Name| {
        let row = state.node_named(node).and_then(|id| state.node(id));
        row.is_some_and(|row| row.is_placeable())
    };
    booking.nodes.iter().filter(in_service).count()
}

/// Other nodes for a booking that lacks some, where there are more.
fn moved(state: &State, name: &Name) -> Option<Decision> {
    let booking = state.booking(name)?;
    let choice =
        choose(state, name, &booking.spec, &booking.left(), (booking.nodes.as_slice(), booking.is_open));
    // What is out of service may come back: as long as nothing takes its place, it stays.
    let has_more = choice.is_whole || choice.nodes.len() > usable(state, booking);
    let decision = Decision::BookingMoved { name: name.clone(), nodes: choice.nodes };
    (has_more && state.check(&decision).is_ok()).then_some(decision)
}

/// Whether a booking has as much as it asks for.
fn is_whole(state: &State, booking: &Booking) -> bool {
    use muster_types::BookingAmount::{Devices, Hosts};
    match &booking.spec.shape {
        BookingShape::Nodes(_) | BookingShape::Part(_) => true,
        BookingShape::Chosen { amount: Hosts(hosts), .. } => booking.nodes.len() == *hosts as usize,
        BookingShape::Chosen { amount: Devices(devices), .. } => {
            let rows = booking.nodes.iter().filter_map(|node| state.node(state.node_named(node)?));
            rows.map(|row| muster_state::booking::devices_of(&row.spec)).sum::<u64>() == u64::from(*devices)
        }
    }
}

/// Stops others' work on nodes of open bookings that let none finish there, and gives up what is promised there; whether some
/// is left for the next tick.
fn clear(speculation: &mut Speculation, names: &[Name]) -> bool {
    let mut stopped = 0;
    for name in names {
        let state = speculation.state();
        let Some(booking) = state.booking(name).filter(|booking| booking.is_open) else { continue };
        let nodes: Vec<NodeId> = booking.nodes.iter().filter_map(|node| state.node_named(node)).collect();
        for node in nodes {
            let state = speculation.state();
            let Some(booking) = state.booking(name) else { break };
            let promised: Vec<JobId> = state.promised_on(node).collect();
            let gangs: Vec<JobId> =
                state.gangs_on(node).filter(|job| must_go(state, name, booking, *job)).collect();
            for job in promised {
                settle(speculation, job);
            }
            for job in gangs {
                if stopped == STOPPED_PER_TICK || speculation.round_bytes() > ROUND_BYTES_SOFT {
                    return true;
                }
                stopped += usize::from(stop(speculation, job, node));
            }
        }
    }
    false
}

/// Asks a gang to go from a node; whether it was still to be asked.
fn stop(speculation: &mut Speculation, job: JobId, node: NodeId) -> bool {
    let placement = speculation.state().job(job).and_then(|row| row.placement.as_ref());
    let Some(token) = placement.map(|placement| placement.token) else { return false };
    let decision = Decision::GangStopRequested { job, token, cause: StopCause::Evicted { node } };
    let is_asked = speculation.state().check(&decision).is_ok();
    if is_asked {
        speculation.push(decision);
        settle(speculation, job);
    }
    is_asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::format;
    use alloc::string::String;
    use muster_types::policy::{PolicyDraft, TenantPolicy};
    use muster_types::{
        BookingAmount, BookingClearing, BookingSpec, BookingTimes, ClusterId, HolderId, Leadership,
        NodeDraft, Parameters, ReplicaId, RequestId, Requester,
    };

    use crate::{BookingOrder, BootstrapConfig, Command, handle};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    /// Hosts n0 to n5, and bookings a, b and c that have one of the first three each.
    fn fleet() -> Speculation {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), bootstrap);
        for number in 0..6 {
            let host = format!("n{number}");
            let spec = NodeDraft {
                name: name(&host),
                region: name("eu"),
                cluster: name("c1"),
                block: name("b"),
                rack: name("r"),
                address: host,
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
        let mut policy = PolicyDraft::default();
        policy.tenants.insert(name("team"), TenantPolicy::default());
        let set = Command::SetPolicy {
            request: RequestId(1),
            by: Requester::default(),
            policy: Box::new(policy.check().expect("a policy")),
            expected_version: None,
        };
        handle(&mut speculation, &set).expect("it is taken");
        for (number, text) in ["a", "b", "c"].into_iter().enumerate() {
            let order = BookingOrder {
                request: RequestId(2 + number as u128),
                by: Requester::default(),
                acts_for: None,
                name: name(text),
                spec: one_host(),
            };
            handle(&mut speculation, &Command::CreateBooking(Box::new(order))).expect("it fits");
        }
        speculation.take_round();
        speculation
    }

    fn one_host() -> BookingSpec {
        BookingSpec {
            tenant: Some(name("team")),
            user: None,
            jobs: Vec::new(),
            is_shared: false,
            shape: BookingShape::Chosen {
                amount: BookingAmount::Hosts(1),
                kind: None,
                region: None,
                cluster: None,
                labels: BTreeMap::new(),
            },
            times: BookingTimes::once(LogTime(60_000), 60_000),
            notice_ms: 0,
            clearing: BookingClearing::Finish,
            reason: String::new(),
        }
    }

    #[test]
    fn one_tick_chooses_for_few_bookings_and_the_next_goes_on() {
        let mut speculation = fleet();
        let names: Vec<Name> = ["a", "b", "c"].map(name).to_vec();
        for node in 0..3 {
            let lost = Command::SessionOver { node: NodeId(node), incarnation: 1 };
            handle(&mut speculation, &lost).expect("never refused");
        }
        let lacking = |speculation: &Speculation| {
            names.iter().filter(|name| lacks_nodes(speculation.state(), name)).count()
        };
        assert_eq!(lacking(&speculation), 3);
        let mut from = 0;
        for left in [2, 1] {
            from = replace(&mut speculation, &names, from, 1).expect("there is more to do");
            assert_eq!(lacking(&speculation), left);
        }
        assert_eq!(replace(&mut speculation, &names, from, 1), None);
        assert_eq!(lacking(&speculation), 0);
        assert_eq!(replace(&mut speculation, &names, 0, 1), None, "nothing is missing any more");
    }
}
