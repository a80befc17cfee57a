//! What of the fleet is kept for later: reservations of gangs that wait, and windows.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use muster_planner::{Holds, Outlook, Start};
use muster_policy::{expected_end, urgent_at};
use muster_state::{JobRow, State};
use muster_types::policy::WindowPurpose;
use muster_types::{JobId, JobSpec, LogTime, Name};

use crate::schedule::with_terms;

type Place = (Name, Name);

/// Capacity promised to a future start.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    /// For whom.
    pub(crate) job: JobId,
    /// Where.
    pub(crate) place: Place,
    /// When, on what.
    pub(crate) start: Start,
    /// When it is expected to end; none keeps the room for good.
    until: Option<LogTime>,
}

/// How what runs is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// With one chance in ten so early.
    Early,
    /// As likely earlier as later.
    Expected,
    /// With nine chances in ten by then.
    Late,
}

/// What is kept for later during one pass. Made anew by every pass from the state alone: a new leader comes
/// to the same.
#[derive(Clone, Debug)]
pub(crate) struct Future {
    now: LogTime,
    pace: Pace,
    reservations: Vec<Reservation>,
    /// Gangs that room was looked for.
    tried: usize,
    /// What reservations keep. Windows are the planner's own to look at.
    holds: Holds,
    /// Made when first asked for; gone when something was placed there.
    outlooks: BTreeMap<Place, Outlook>,
}

impl Future {
    /// Nothing reserved yet.
    pub(crate) fn of(now: LogTime) -> Future {
        Future::at_pace(now, Pace::Expected)
    }

    /// The same, if what runs ends at this pace.
    pub(crate) fn at_pace(now: LogTime, pace: Pace) -> Future {
        let (reservations, outlooks) = (Vec::new(), BTreeMap::new());
        Future { now, pace, reservations, tried: 0, holds: Holds::new(), outlooks }
    }

    /// What is kept from a tenant: everything reserved, and the windows that are not its own.
    pub(crate) fn holds_for(&self, state: &State, tenant: &Name) -> Holds {
        let policy = &state.policy().policy;
        let own = policy.windows.iter().filter(|window| match &window.purpose {
            WindowPurpose::Maintenance => false,
            WindowPurpose::ReservedFor { tenant: owner } => {
                policy.ancestry(tenant).any(|above| above == owner)
            }
        });
        let mut own = own.map(|window| window.name.clone()).peekable();
        if own.peek().is_none() { self.holds.clone() } else { self.holds.with_open_windows(own) }
    }

    /// Something was placed or will be: what was expected of the cluster is out of date.
    pub(crate) fn changed(&mut self, region: &Name, cluster: &Name) {
        self.outlooks.remove(&(region.clone(), cluster.clone()));
    }

    /// Who has reserved what.
    pub(crate) fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// Keeps room for a gang that waits, where it can start first, once it has waited long enough to have
    /// that right; whether it could be kept.
    pub(crate) fn reserve(&mut self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) -> bool {
        let rules = &state.policy().policy.backfill;
        let due = urgent_at(state, spec, row.submitted_at, row.estimate.run_ms);
        let most = rules.reservations_max as usize;
        // Looking is not for nothing only if it ends in a reservation now and then.
        if self.reservations.len() >= most || self.tried >= 2 * most || self.now < due {
            return false;
        }
        self.tried += 1;
        self.keep(state, job, spec, row, None)
    }

    /// Gives a gang the room where it can start first, until it is expected to end, for estimates of who
    /// starts when; whether there is such a place.
    pub(crate) fn expect_start(&mut self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow) -> bool {
        self.keep(state, job, spec, row, Some(row.estimate.run_ms))
    }

    fn keep(&mut self, state: &State, job: JobId, spec: &JobSpec, row: &JobRow, run_ms: Option<u64>) -> bool {
        let Some((place, start)) = self.earliest(state, spec, row) else { return false };
        let until = run_ms.map(|run_ms| start.at.plus_ms(run_ms));
        let outlook = self.outlooks.get_mut(&place).expect("it has just said when");
        outlook.reserve(&start, until);
        outlook.hold(&start, &mut self.holds);
        self.reservations.push(Reservation { job, place, start, until });
        true
    }

    /// Where and when a gang can start first if what runs ends as expected.
    pub(crate) fn earliest(&mut self, state: &State, spec: &JobSpec, row: &JobRow) -> Option<(Place, Start)> {
        let now = self.now;
        // Reservations are in the outlook itself; of windows the tenant's own are open.
        let own = Future::of(now).holds_for(state, &spec.tenant);
        let mut best: Option<(Place, Start)> = None;
        for place in places(state, spec) {
            let outlook = self.outlook(state, &place);
            let found = with_terms(state, now, spec, row, &own, |terms| outlook.earliest(state, spec, terms));
            let Some(start) = found else { continue };
            if best.as_ref().is_none_or(|(_, first)| start.at < first.at) {
                best = Some((place, start));
            }
        }
        best
    }

    fn outlook(&mut self, state: &State, place: &Place) -> &Outlook {
        let (now, pace, reservations) = (self.now, self.pace, &self.reservations);
        self.outlooks.entry(place.clone()).or_insert_with(|| {
            let mut outlook = Outlook::new(state, &place.0, &place.1, releases(state, place, now, pace));
            for reservation in reservations.iter().filter(|r| r.place == *place) {
                outlook.reserve(&reservation.start, reservation.until);
            }
            outlook
        })
    }
}

/// Gangs in a cluster with the times they are expected to end.
fn releases(state: &State, place: &Place, now: LogTime, pace: Pace) -> Vec<(LogTime, JobId)> {
    let mut found = Vec::new();
    for (_, job) in state.ends(&place.0, &place.1) {
        let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { continue };
        if let Some(end) = expected_end(row, spec, now) {
            found.push((at_pace(row, end, now, pace), job));
        }
    }
    found.sort_unstable();
    found
}

/// The end of a gang at a pace: the time that is left to run is scaled by what the estimate says of the
/// spread of run times, which is about the same on both sides of the median in proportion.
fn at_pace(row: &JobRow, expected: LogTime, now: LogTime, pace: Pace) -> LogTime {
    let left = u128::from(expected.since_ms(now));
    let (median, high) =
        (u128::from(row.estimate.run_ms.max(1)), u128::from(row.estimate.run_high_ms.max(1)));
    let left = match pace {
        Pace::Expected => left,
        Pace::Early => left * median / high.max(median),
        Pace::Late => left * high.max(median) / median,
    };
    now.plus_ms(u64::try_from(left).unwrap_or(u64::MAX))
}

/// Clusters that a job may use.
fn places(state: &State, spec: &JobSpec) -> Vec<Place> {
    let mut found: Vec<Place> = Vec::new();
    for (key, _) in state.pools() {
        let allowed = spec.regions.is_empty() || spec.regions.contains(&key.region);
        let wanted = spec.groups.iter().any(|group| match (&group.request.accelerators, &key.kind) {
            (Some(request), Some(kind)) => request.accepts(kind),
            (Some(_), None) => false,
            (None, _) => true,
        });
        let is_new = found.last().is_none_or(|last| last.0 != key.region || last.1 != key.cluster);
        if allowed && wanted && is_new {
            found.push((key.region.clone(), key.cluster.clone()));
        }
    }
    found
}
