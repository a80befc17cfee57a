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

/// Gangs stopped in one tick.
const STOPPED_PER_TICK: usize = 1_000;

/// Records what time and the fleet bring about for bookings, and stops what has to go from their nodes.
pub(super) fn advance(speculation: &mut Speculation) {
    if speculation.state().booking_count() == 0 {
        return;
    }
    let now = speculation.now();
    let names: Vec<Name> = speculation.state().bookings().map(|(name, _)| name.clone()).collect();
    let mut is_due = speculation.booking_looks().is_due(now);
    for name in &names {
        while let Some(step) = next_step(speculation.state(), name, now) {
            if speculation.round_bytes() > ROUND_BYTES_SOFT {
                speculation.set_booking_looks(BookingLooks::at(now, true));
                return;
            }
            is_due = true;
            speculation.push(step);
        }
    }
    if !is_due {
        return;
    }
    for name in &names {
        if speculation.round_bytes() > ROUND_BYTES_SOFT {
            speculation.set_booking_looks(BookingLooks::at(now, true));
            return;
        }
        if let Some(moved) = moved(speculation.state(), name) {
            speculation.push(moved);
        }
    }
    let is_cut = clear(speculation, &names);
    speculation.set_booking_looks(BookingLooks::at(now, is_cut));
}

/// What time has brought about for a booking and is not recorded: its window has begun or is over, or its owner is gone. Each
/// record leads to the next in finitely many steps, because windows are passed in their order.
fn next_step(state: &State, name: &Name, now: LogTime) -> Option<Decision> {
    let booking = state.booking(name)?;
    let ended = |cause| Some(Decision::BookingEnded { name: name.clone(), cause });
    if !state.policy().policy.tenants.contains_key(&booking.spec.tenant) {
        return ended(BookingEnd::OwnerGone);
    }
    let window = booking.current();
    if window.until <= now {
        return ended(BookingEnd::WindowOver);
    }
    let begins = !booking.is_open && window.from <= now;
    begins.then(|| Decision::BookingOpened { name: name.clone() })
}

/// Other nodes for a booking, where it has fewer in service than it asks for and there are more.
fn moved(state: &State, name: &Name) -> Option<Decision> {
    let booking = state.booking(name)?;
    let in_service = |node: &&Name| {
        let row = state.node_named(node).and_then(|id| state.node(id));
        row.is_some_and(|row| row.is_placeable())
    };
    let usable = booking.nodes.iter().filter(in_service).count();
    if matches!(booking.spec.shape, BookingShape::Nodes(_)) {
        return None;
    }
    if usable == booking.nodes.len() && is_whole(state, booking) {
        return None;
    }
    let choice =
        choose(state, name, &booking.spec, &booking.left(), (booking.nodes.as_slice(), booking.is_open));
    // What is out of service may come back: as long as nothing takes its place, it stays.
    let has_more = choice.is_whole || choice.nodes.len() > usable;
    let decision = Decision::BookingMoved { name: name.clone(), nodes: choice.nodes };
    (has_more && state.check(&decision).is_ok()).then_some(decision)
}

/// Whether a booking has as much as it asks for.
fn is_whole(state: &State, booking: &Booking) -> bool {
    use muster_types::BookingAmount::{Devices, Hosts};
    match &booking.spec.shape {
        BookingShape::Nodes(_) => true,
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
