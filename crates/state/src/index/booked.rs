//! Which bookings have a node, and which schedule is due next.

use muster_types::{Name, NextRun, ScheduleKey};

use super::Indexes;
use crate::rows::ScheduleRow;

impl Indexes {
    /// A booking has these nodes.
    pub(crate) fn book(&mut self, booking: &Name, nodes: &[Name]) {
        for node in nodes {
            let mut bookings = self.booked.get(node).cloned().unwrap_or_default();
            if let Err(place) = bookings.binary_search(booking) {
                bookings.insert(place, booking.clone());
                self.booked.insert(node.clone(), bookings);
            }
        }
    }

    /// A booking has these nodes no more.
    pub(crate) fn unbook(&mut self, booking: &Name, nodes: &[Name]) {
        for node in nodes {
            let Some(mut bookings) = self.booked.get(node).cloned() else { continue };
            bookings.retain(|other| other != booking);
            if bookings.is_empty() {
                self.booked.remove(node);
            } else {
                self.booked.insert(node.clone(), bookings);
            }
        }
    }

    /// A schedule waits for something else than before; for nothing, where there is none of the two.
    pub(crate) fn shift_schedule(
        &mut self,
        key: &ScheduleKey,
        before: Option<NextRun>,
        after: Option<NextRun>,
    ) {
        if before == after {
            return;
        }
        before.inspect(|next| _ = self.scheduled.remove(&(*next, key.clone())));
        after.inspect(|next| self.scheduled.insert((*next, key.clone())));
    }
}

/// What a schedule waits for; nothing while it is suspended.
pub(crate) fn waits_for(row: &ScheduleRow) -> Option<NextRun> {
    row.suspension.is_none().then_some(row.next)
}
