//! What gangs hold in a cluster, and what comes back of it when.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_state::{NodeRow, State};
use muster_types::{DeviceAmount, JobId, JobSpec, LogTime};

use super::{Amount, CapacityTimeline, Release};

/// What a worker or a spare gives back when its gang ends.
#[derive(Clone, Copy, Debug)]
struct Held {
    node: u32,
    amount: Amount,
    share: Option<HeldShare>,
}

/// A share of a device, which comes back to others as a whole one.
#[derive(Clone, Copy, Debug)]
struct HeldShare {
    device: u16,
    milli: u16,
    /// What nobody holds of the device now.
    free_milli: u16,
}

/// What the gangs of a cluster hold: the same whenever they are expected to end.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldByGangs {
    /// By job, the places in `all` where what it holds begins and ends.
    jobs: Vec<(JobId, usize, usize)>,
    all: Vec<Held>,
}

/// What is known while releases are added in the order of their times.
struct Returning {
    /// Thousandths of partly held devices, as they come back.
    partly: BTreeMap<(u32, u16), u16>,
    /// By node, the place of its last release.
    last: Vec<usize>,
}

impl CapacityTimeline {
    /// The same future if these gangs end at other times, and without what is reserved: no gang is looked up again. It is for a future
    /// in which nothing was placed since it was made.
    #[must_use]
    pub fn retimed(&self, releases: impl IntoIterator<Item = (LogTime, JobId)>) -> CapacityTimeline {
        let held = Arc::clone(&self.held);
        let mut other = CapacityTimeline {
            releases: Arc::default(),
            release_count: 0,
            reserved: Vec::new(),
            ..self.clone()
        };
        let mut returning = other.returning();
        for (at, job) in self.in_time(releases) {
            let found = held.jobs.binary_search_by_key(&job, |(of, ..)| *of).ok();
            let Some((_, from, until)) = found.and_then(|place| held.jobs.get(place)) else { continue };
            other.give_back_all(at, held.all.get(*from..*until).unwrap_or_default(), &mut returning);
        }
        other
    }

    pub(super) fn add_releases(
        &mut self,
        state: &State,
        rows: &[&NodeRow],
        releases: impl IntoIterator<Item = (LogTime, JobId)>,
    ) {
        let mut held = HeldByGangs::default();
        let mut returning = self.returning();
        for (at, job) in self.in_time(releases) {
            let from = held.all.len();
            self.note_held(state, rows, job, &mut held.all);
            held.jobs.push((job, from, held.all.len()));
            self.give_back_all(at, held.all.get(from..).unwrap_or_default(), &mut returning);
        }
        held.jobs.sort_unstable();
        self.held = Arc::new(held);
    }

    /// Ends in the order of time; one that is past counts as now.
    fn in_time(&self, releases: impl IntoIterator<Item = (LogTime, JobId)>) -> Vec<(LogTime, JobId)> {
        let ends = releases.into_iter().map(|(at, job)| (at.max(self.now), job));
        let mut ends: Vec<(LogTime, JobId)> = ends.collect();
        ends.sort_unstable();
        ends
    }

    fn returning(&self) -> Returning {
        Returning { partly: BTreeMap::new(), last: alloc::vec![usize::MAX; self.nodes.len()] }
    }

    /// Looks up what a gang holds here. `rows` are those of the nodes, by place.
    fn note_held(&self, state: &State, rows: &[&NodeRow], job: JobId, all: &mut Vec<Held>) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return };
        let Some(placement) = &row.placement else { return };
        for (rank, (slot, rank_state)) in placement.slots.iter().zip(&placement.ranks).enumerate() {
            if rank_state.is_over() {
                continue;
            }
            let Some((place, row)) = self.place(slot.node).and_then(|place| Some((place, rows.get(place)?)))
            else {
                continue;
            };
            let node = place as u32;
            let Some((group, _)) = spec.group_of(rank as u32, placement.slots.len()) else {
                continue;
            };
            let mut amount = Amount::of_workers_on(&row.spec, &group.request, 1);
            // Devices that are promised to others come back to them.
            let mut devices = slot.devices.difference(row.promised.devices);
            for share in &row.promised.shares {
                devices.0 &= !(1 << share.device);
            }
            amount.devices = i64::from(devices.count());
            let mut share = None;
            if let Some(DeviceAmount::Share(milli)) = group.request.accelerators.as_ref().map(|a| a.amount)
                && let Some(device) = devices.iter().next()
            {
                let free = row.free.shares.iter().find(|share| share.device == device);
                share = Some(HeldShare { device, milli, free_milli: free.map_or(0, |share| share.milli) });
            }
            all.push(Held { node, amount, share });
        }
        all.extend(state.spares(job).iter().filter_map(|slot| self.held_by_spare(rows, spec, slot)));
    }

    /// A spare of a gang comes back with the gang: it holds what a worker of the first group does.
    fn held_by_spare(&self, rows: &[&NodeRow], spec: &JobSpec, slot: &WorkerSlot) -> Option<Held> {
        let (node, group) = (self.place(slot.node)?, spec.groups.first()?);
        let row = rows.get(node)?;
        let mut amount = Amount::of_workers_on(&row.spec, &group.request, 1);
        amount.devices = i64::from(slot.devices.difference(row.promised.devices).count());
        Some(Held { node: node as u32, amount, share: None })
    }

    /// A gang ends, not before any other that was added.
    fn give_back_all(&mut self, at: LogTime, held: &[Held], returning: &mut Returning) {
        for Held { node, mut amount, share } in held.iter().copied() {
            if let Some(HeldShare { device, milli, free_milli }) = share {
                let free = returning.partly.entry((node, device)).or_insert(free_milli);
                *free += milli;
                amount.devices = i64::from(*free >= 1_000);
            }
            self.add_release(Release { at, node, amount }, &mut returning.last);
        }
    }

    /// Something comes back, not before anything else that was added. Many gangs that began together are expected to end together:
    /// what comes back to one node then is added up, so that every question looks at it once.
    fn add_release(&mut self, release: Release, last: &mut [usize]) {
        self.release_count += 1;
        let releases = Arc::make_mut(&mut self.releases);
        let of_node = &mut last[release.node as usize];
        match releases.get_mut(*of_node).filter(|known| known.at == release.at) {
            Some(known) => known.amount = known.amount.plus(release.amount),
            None => {
                *of_node = releases.len();
                releases.push(release);
            }
        }
    }
}
