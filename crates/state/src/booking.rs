//! Bookings: which there are, what they keep from whom, and guard and fold of their records.
//!
//! Whether a window is open is in the row, set by a record: the guard of a placement looks at the row and never at a time.
//! So what a leader plans by the times of a booking is never refused for a moment in between.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{RequestKey, WorkerSlot};
use muster_types::{
    Booking, BookingAmount, BookingEnd, BookingShape, BookingSpec, BookingTimes, FleetPart, JobSpec, Name,
    NodeSpec, Requester, limits,
};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::RequestAnswer;
use crate::state::State;

type Check = Result<(), GuardError>;

/// Whether a node is of the kind and in the place that a booking asks for. What is chosen goes by this alone.
#[must_use]
pub fn suits(shape: &BookingShape, node: &NodeSpec) -> bool {
    match shape {
        BookingShape::Part(part) => part.covers(node),
        BookingShape::Nodes(nodes) => nodes.binary_search(&node.name).is_ok(),
        BookingShape::Chosen { amount, kind, region, cluster, labels } => {
            let within = |part: &Option<Name>, own: &Name| part.as_ref().is_none_or(|name| name == own);
            let own_kind = node.accelerators.as_ref().map(|has| &has.kind);
            let has_devices = matches!(amount, BookingAmount::Hosts(_)) || own_kind.is_some();
            kind.as_ref().is_none_or(|kind| own_kind == Some(kind))
                && has_devices
                && within(region, &node.region)
                && within(cluster, &node.cluster)
                && labels.iter().all(|(label, value)| node.labels.get(label) == Some(value))
        }
    }
}

/// Devices of a node.
#[must_use]
pub fn devices_of(node: &NodeSpec) -> u64 {
    node.accelerators.as_ref().map_or(0, |has| u64::from(has.count))
}

impl State {
    /// A booking.
    #[must_use]
    pub fn booking(&self, name: &Name) -> Option<&Booking> {
        self.bookings.get(name)
    }

    /// All bookings that are not over, by name.
    pub fn bookings(&self) -> impl Iterator<Item = (&Name, &Booking)> {
        self.bookings.iter()
    }

    /// How many bookings there are.
    #[must_use]
    pub fn booking_count(&self) -> usize {
        self.bookings.len()
    }

    /// How many bookings a tenant owns; without one, how many are for maintenance.
    #[must_use]
    pub fn booking_count_of(&self, tenant: Option<&Name>) -> usize {
        self.bookings().filter(|(_, booking)| booking.spec.tenant.as_ref() == tenant).count()
    }

    /// How many nodes all bookings may have together.
    #[must_use]
    pub fn booked_nodes_max(&self) -> usize {
        self.bookings().map(|(_, booking)| booking.spec.shape.nodes_max()).sum()
    }

    /// The first other booking of a tenant that has one of these nodes during one of these windows. Maintenance is over all of
    /// them, and in the way of none.
    #[must_use]
    pub fn overlapping_booking(&self, own: &Name, times: &BookingTimes, nodes: &[Name]) -> Option<&Name> {
        let there: BTreeSet<&Name> = nodes.iter().flat_map(|node| self.bookings_of_node(node)).collect();
        there
            .into_iter()
            .filter(|name| *name != own)
            .filter(|name| self.bookings.get(name).is_some_and(|booking| !booking.spec.is_maintenance()))
            .find(|name| self.bookings.get(name).is_some_and(|booking| booking.left().meets(times).is_some()))
    }

    /// The same without the index: every booking is asked for every node.
    fn overlapping_row(&self, own: &Name, times: &BookingTimes, nodes: &[Name]) -> Option<&Name> {
        let meets = |booking: &Booking| {
            !booking.spec.is_maintenance()
                && booking.left().meets(times).is_some()
                && nodes.iter().any(|node| booking.has_node(node))
        };
        self.bookings().find(|(name, booking)| *name != own && meets(booking)).map(|(name, _)| name)
    }

    /// The bookings that have a node, by name.
    #[must_use]
    pub fn bookings_of_node(&self, node: &Name) -> &[Name] {
        self.indexes.booked.get(node).map_or(&[], Vec::as_slice)
    }

    /// Open maintenance of parts of the fleet.
    pub fn open_parts(&self) -> impl Iterator<Item = (&Name, &Booking, &FleetPart)> {
        let open = self.bookings().filter(|(_, booking)| booking.is_open);
        open.filter_map(|(name, booking)| Some((name, booking, booking.spec.part()?)))
    }

    /// The open booking that keeps a job from a node.
    #[must_use]
    pub fn booked_against(&self, spec: &JobSpec, node: &Name) -> Option<(&Name, &Booking)> {
        let of_part = || {
            let row = self.nodes.get(&self.node_named(node)?)?;
            let (name, booking, _) = self.open_parts().find(|(_, _, part)| part.covers(&row.spec))?;
            Some((name, booking))
        };
        self.booked_by_name(spec, node).or_else(of_part)
    }

    /// The same of bookings that list their nodes.
    fn booked_by_name(&self, spec: &JobSpec, node: &Name) -> Option<(&Name, &Booking)> {
        let policy = &self.policy.policy;
        let there = self.bookings_of_node(node).iter();
        let mut open = there
            .filter_map(|name| Some((name, self.bookings.get(name)?)))
            .filter(|(_, booking)| booking.is_open);
        open.find(|(name, booking)| !booking.spec.admits(policy, name, spec))
    }

    /// A job is on nodes that no open booking keeps from it, and if it names a booking, on the nodes of that alone.
    pub(crate) fn check_booked(&self, spec: &JobSpec, slots: &[WorkerSlot]) -> Check {
        if self.bookings.is_empty() && spec.booking.is_none() {
            return Ok(());
        }
        let policy = &self.policy.policy;
        let named = match &spec.booking {
            None => None,
            Some(name) => {
                let booking = self.bookings.get(name).ok_or(GuardError::Booked)?;
                require(booking.is_open && booking.spec.may_be_named_by(policy, spec), GuardError::Booked)?;
                Some(booking)
            }
        };
        // Once for all workers, of which a gang may have thousands.
        let closed: Vec<&FleetPart> = self.open_parts().map(|(_, _, part)| part).collect();
        for slot in slots {
            let node = &self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?.spec;
            require(!closed.iter().any(|part| part.covers(node)), GuardError::Booked)?;
            require(named.is_none_or(|booking| booking.has_node(&node.name)), GuardError::Booked)?;
            require(self.booked_by_name(spec, &node.name).is_none(), GuardError::Booked)?;
        }
        Ok(())
    }

    /// Nodes that a booking may have: each known, in order, and together no more than was asked for.
    fn check_booked_nodes(&self, spec: &BookingSpec, nodes: &[Name]) -> Check {
        require(nodes.len() <= limits::BOOKING_NODES_MAX, GuardError::Limit)?;
        require(nodes.is_sorted_by(|a, b| a < b), GuardError::Limit)?;
        let mut devices = 0;
        for name in nodes {
            let id = self.node_named(name).ok_or(GuardError::NodeUnknown)?;
            devices += devices_of(&self.nodes.get(&id).ok_or(GuardError::NodeUnknown)?.spec);
        }
        let is_within = match &spec.shape {
            BookingShape::Part(_) => nodes.is_empty(),
            BookingShape::Nodes(named) => nodes == named.as_slice(),
            BookingShape::Chosen { amount: BookingAmount::Hosts(most), .. } => nodes.len() <= *most as usize,
            BookingShape::Chosen { amount: BookingAmount::Devices(most), .. } => devices <= u64::from(*most),
        };
        require(is_within, GuardError::DoesNotFit)
    }

    /// Nodes that are new to a booking are what it asks for.
    fn check_suited<'a>(&self, spec: &BookingSpec, nodes: impl Iterator<Item = &'a Name>) -> Check {
        for name in nodes {
            let id = self.node_named(name).ok_or(GuardError::NodeUnknown)?;
            let row = self.nodes.get(&id).ok_or(GuardError::NodeUnknown)?;
            require(suits(&spec.shape, &row.spec), GuardError::DoesNotFit)?;
        }
        Ok(())
    }

    pub(crate) fn check_booking_created(
        &self,
        (request, by): (RequestKey, &Requester),
        name: &Name,
        spec: &BookingSpec,
        nodes: &[Name],
    ) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        let is_sound = spec.violations().is_empty() && spec.times.is_whole();
        require(by.is_valid() && is_sound, GuardError::Limit)?;
        require(!self.bookings.contains(name), GuardError::BookingExists)?;
        require(self.bookings.len() < limits::BOOKINGS_MAX, GuardError::Limit)?;
        require(
            self.booking_count_of(spec.tenant.as_ref()) < limits::TENANT_BOOKINGS_MAX,
            GuardError::Limit,
        )?;
        let booked = self.booked_nodes_max() + spec.shape.nodes_max();
        require(booked <= limits::BOOKED_NODES_MAX, GuardError::Limit)?;
        require(!nodes.is_empty() || spec.part().is_some(), GuardError::DoesNotFit)?;
        self.check_booked_nodes(spec, nodes)?;
        self.check_suited(spec, nodes.iter())?;
        let is_alone = spec.is_maintenance() || self.overlapping_booking(name, &spec.times, nodes).is_none();
        require(is_alone, GuardError::BookingOverlaps)
    }

    pub(crate) fn check_booking_deleted(&self, request: RequestKey, by: &Requester, name: &Name) -> Check {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid(), GuardError::Limit)?;
        require(self.bookings.contains(name), GuardError::NothingToDo)
    }

    /// When a window is over is the leader's to say; that the owner is gone the policy has to bear out.
    pub(crate) fn check_booking_ended(&self, name: &Name, cause: BookingEnd) -> Check {
        let booking = self.bookings.get(name).ok_or(GuardError::NothingToDo)?;
        let tenants = &self.policy.policy.tenants;
        let is_listed = booking.spec.tenant.as_ref().is_none_or(|owner| tenants.contains_key(owner));
        require(cause != BookingEnd::OwnerGone || !is_listed, GuardError::NothingToDo)
    }

    pub(crate) fn check_booking_moved(&self, name: &Name, nodes: &[Name]) -> Check {
        let booking = self.bookings.get(name).ok_or(GuardError::NothingToDo)?;
        require(booking.nodes != nodes, GuardError::NothingToDo)?;
        require(matches!(booking.spec.shape, BookingShape::Chosen { .. }), GuardError::NothingToDo)?;
        self.check_booked_nodes(&booking.spec, nodes)?;
        self.check_suited(&booking.spec, nodes.iter().filter(|node| !booking.has_node(node)))?;
        require(self.overlapping_booking(name, &booking.left(), nodes).is_none(), GuardError::BookingOverlaps)
    }

    pub(crate) fn fold_booking_created(
        &mut self,
        request: RequestKey,
        by: &Requester,
        name: &Name,
        spec: &BookingSpec,
        nodes: &[Name],
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        let booking = Booking {
            spec: spec.clone(),
            nodes: nodes.to_vec(),
            window: 0,
            is_open: false,
            by: by.kept(),
            created: self.meta.log_time,
        };
        self.indexes.book(name, nodes);
        self.bookings.insert(name.clone(), booking);
        Vec::new()
    }

    pub(crate) fn fold_booking_deleted(&mut self, request: RequestKey, name: &Name) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        self.remove_booking(name);
        Vec::new()
    }

    pub(crate) fn fold_booking_opened(&mut self, name: &Name) -> Vec<Effect> {
        self.bookings.change(name, |booking, _| booking.is_open = true);
        Vec::new()
    }

    /// The window that comes next by the time of the record is the present one then; where there is none, or no owner, the
    /// booking goes.
    pub(crate) fn fold_booking_ended(&mut self, name: &Name, cause: BookingEnd) -> Vec<Effect> {
        let now = self.meta.log_time;
        let next = self.bookings.get(name).and_then(|booking| {
            // A window that its leader ended before its time is over all the same.
            let behind = booking.window.saturating_add(1);
            let next = booking.spec.times.next_at(now)?.max(behind);
            booking.spec.times.window(next).map(|_| next)
        });
        match next {
            Some(next) if cause == BookingEnd::WindowOver => {
                self.bookings.change(name, |booking, _| {
                    booking.window = next;
                    booking.is_open = false;
                });
            }
            _ => self.remove_booking(name),
        }
        Vec::new()
    }

    pub(crate) fn fold_booking_moved(&mut self, name: &Name, nodes: &[Name]) -> Vec<Effect> {
        let before =
            self.bookings.change(name, |booking, _| core::mem::replace(&mut booking.nodes, nodes.to_vec()));
        if let Some(before) = before {
            self.indexes.unbook(name, &before);
            self.indexes.book(name, nodes);
        }
        Vec::new()
    }

    fn remove_booking(&mut self, name: &Name) {
        if let Some(booking) = self.bookings.get(name) {
            self.indexes.unbook(name, &booking.nodes);
        }
        self.bookings.remove(name);
    }

    /// Whether every row keeps its rules, and no two have a node at the same time.
    pub(crate) fn check_booking_rows(&self) -> Result<(), String> {
        for (name, booking) in self.bookings() {
            let is_sound = booking.spec.violations().is_empty()
                && booking.spec.times.is_whole()
                && booking.window < booking.spec.times.windows
                && booking.nodes.len() <= booking.spec.shape.nodes_max()
                && booking.nodes.is_sorted_by(|a, b| a < b);
            if !is_sound {
                return Err(format!("booking {name} has a row that it may not have"));
            }
            // The indexes are not there yet when rows of a snapshot are checked.
            if !booking.spec.is_maintenance()
                && let Some(other) = self.overlapping_row(name, &booking.left(), &booking.nodes)
            {
                return Err(format!("bookings {name} and {other} have a node at the same time"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use muster_types::{BookingClearing, LogTime};

    const HOUR_MS: u64 = 3_600_000;

    /// Numbers that look random and are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }
    }

    fn node(number: u64) -> Name {
        Name::new(&format!("n{number}")).expect("a name")
    }

    fn some_nodes(numbers: &mut Numbers) -> Vec<Name> {
        (0..6).filter(|_| numbers.below(3) == 0).map(node).collect()
    }

    fn some_times(numbers: &mut Numbers) -> BookingTimes {
        let start = LogTime(numbers.below(40) * HOUR_MS);
        BookingTimes::once(start, (1 + numbers.below(4)) * HOUR_MS)
    }

    fn booking(nodes: Vec<Name>, times: BookingTimes, is_open: bool) -> Booking {
        let spec = BookingSpec {
            tenant: Some(Name::literal("vision")),
            user: None,
            jobs: Vec::new(),
            is_shared: false,
            shape: BookingShape::Chosen {
                amount: BookingAmount::Hosts(6),
                kind: None,
                region: None,
                cluster: None,
                labels: BTreeMap::new(),
            },
            times,
            notice_ms: 0,
            clearing: BookingClearing::Finish,
            reason: String::new(),
        };
        let (by, created) = (Requester::default(), LogTime(0));
        Booking { spec, nodes, window: 0, is_open, by, created }
    }

    #[test]
    fn the_index_of_nodes_finds_what_a_look_at_every_booking_finds() {
        let mut numbers = Numbers(7);
        let mut state = State::default();
        for step in 0..2_000 {
            let name = Name::new(&format!("b{}", numbers.below(12))).expect("a name");
            let is_there = state.bookings.contains(&name);
            match (is_there, numbers.below(3)) {
                (false, _) => {
                    let nodes = some_nodes(&mut numbers);
                    state.indexes.book(&name, &nodes);
                    let is_open = numbers.below(2) == 0;
                    let times = some_times(&mut numbers);
                    state.bookings.insert(name.clone(), booking(nodes, times, is_open));
                }
                (true, 0) => state.remove_booking(&name),
                (true, _) => _ = state.fold_booking_moved(&name, &some_nodes(&mut numbers)),
            }
            let (times, nodes) = (some_times(&mut numbers), some_nodes(&mut numbers));
            let found = state.overlapping_booking(&name, &times, &nodes);
            assert_eq!(found, state.overlapping_row(&name, &times, &nodes), "step {step}");
            for number in 0..6 {
                let node = node(number);
                let own = state.bookings_of_node(&node);
                let all = state.bookings().filter(|(_, booking)| booking.has_node(&node));
                assert!(all.map(|(name, _)| name).eq(own), "step {step}: {node}");
            }
        }
        assert_eq!(state.rebuilt_indexes().booked, state.indexes.booked);
    }
}
