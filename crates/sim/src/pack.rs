//! How full a fleet can be made: jobs arrive one after another, none ever ends, each is tried once.
//!
//! This is the packing protocol of published comparisons of fragmentation. *Arrived* is what the jobs so
//! far ask for, placed or not, and *allocated* what those placed hold, both in thousandths of devices and
//! in percent of the fleet's. The score at a percentage is the last allocated percentage while arrived,
//! rounded to a whole number, equals it; where one large job passes over a percentage, it is the one before
//! that job.

use std::collections::BTreeMap;

use muster_types::policy::PolicyDraft;
use muster_types::{JobSpec, Name};
use serde::Serialize;
use thiserror::Error;

use crate::driver::{Driver, Happened, Hints, Refused, Scope};
use crate::policy::still;
use crate::stopwatch::{Clock, per_second};
use crate::summary::{percent, seconds};
use crate::trace::{JobEntry, NodeEntry, TraceError};
use crate::{FleetError, ReplayPolicy};

/// The last percentage that is scored.
pub const ARRIVED_PERCENT_MAX: usize = 130;
/// Virtual time between two arrivals: what is over is forgotten after a minute, so a minute of arrivals is
/// all the history there is.
const BETWEEN_ARRIVALS_MS: u64 = 1_000;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum PackError {
    /// The order cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A node cannot be.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// There is nothing to fill.
    #[error("no node has an accelerator: there is nothing to be allocated")]
    NoDevices,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Nodes of the fleet.
    pub nodes: u64,
    /// Thousandths of devices of the fleet.
    pub capacity_milli: u64,
    /// Thousandths of devices that the jobs asked for.
    pub arrived_milli: u64,
    /// Thousandths of devices that the jobs placed hold.
    pub allocated_milli: u64,
    /// Jobs that arrived.
    pub jobs: u64,
    /// Jobs placed.
    pub placed: u64,
    /// Jobs not placed, by why.
    pub unplaced: Unplaced,
    /// Allocated percent by arrived percent, from 0; ends where no more arrived.
    pub allocated_percent: Vec<f64>,
    /// Seconds that the scheduler took.
    pub scheduler_s: f64,
    /// The policy.
    pub policy: String,
    /// What an operator should know of the policy on this fleet.
    pub notes: Vec<String>,
    /// By tenant, by name.
    pub tenants: Vec<PackedTenant>,
    /// The score at 100 %, unless less arrived.
    pub allocated_percent_at_100: Option<f64>,
    /// The score at 130 %, unless less arrived.
    pub allocated_percent_at_130: Option<f64>,
    /// Gangs placed for each second that the scheduler took, refusals and all; 0 when not measured.
    pub placements_per_s: f64,
}

/// Jobs that were not placed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unplaced {
    /// They did not fit when they came.
    pub no_room: u64,
    /// The same, by what they would have waited for; only under a whole policy.
    pub no_room_by_reason: BTreeMap<String, u64>,
    /// No state of this fleet could hold them.
    pub never_fit: u64,
    /// The policy refused them at submission, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// What one tenant got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackedTenant {
    /// The tenant, as the policy names it.
    pub tenant: String,
    /// Its jobs that arrived.
    pub jobs: u64,
    /// Its jobs placed.
    pub placed: u64,
    /// Its jobs that the policy refused at submission.
    pub refused: u64,
    /// Thousandths of devices that its jobs asked for.
    pub arrived_milli: u64,
    /// Thousandths of devices that those placed hold.
    pub allocated_milli: u64,
    /// Of these, what is held by jobs that borrow.
    pub borrowed_milli: u64,
}

/// Fills a fleet with jobs in the given order; `order` gives places in `jobs`, and `start_ms` is the time of the first
/// arrival since the Unix epoch, for the windows of the policy.
///
/// # Errors
/// When the order ends in an error, or the fleet cannot be filled.
pub fn pack(
    nodes: &[NodeEntry],
    jobs: &[JobEntry],
    order: impl Iterator<Item = Result<usize, TraceError>>,
    policy: &ReplayPolicy,
    start_ms: u64,
    clock: Clock<'_>,
) -> Result<Report, PackError> {
    let capacity_milli = nodes.iter().map(|node| u64::from(node.accel_count) * 1_000).sum();
    if capacity_milli == 0 {
        return Err(PackError::NoDevices);
    }
    // Nothing ever ends here, for another's sake neither: a place that is kept for later is kept for nobody.
    let mut settings = PolicyDraft { preemption: still(), ..policy.settings() };
    settings.backfill.reservations_max = 0;
    let mut fill = Fill {
        driver: Driver::new(settings, nodes, Scope::Fleet, start_ms, clock)?,
        specs: vec![None; jobs.len()],
        unplaced: Unplaced::default(),
        placed: 0,
        says_why: policy.whole().is_some(),
        tenants: BTreeMap::new(),
    };
    let notes = policy.whole().map_or(Vec::new(), |policy| fill.driver.policy_warnings(policy));
    let (mut arrived_milli, mut allocated_milli, mut count) = (0, 0, 0);
    let mut curve = Curve { capacity_milli, points: vec![0.0] };
    for place in order {
        let place = place?;
        let job = &jobs[place];
        let column = curve.reach(arrived_milli + job.total_milli());
        if column > ARRIVED_PERCENT_MAX {
            break;
        }
        count += 1;
        arrived_milli += job.total_milli();
        fill.driver.set_now(count * BETWEEN_ARRIVALS_MS);
        if fill.try_once(place, job) {
            allocated_milli += job.total_milli();
        }
        curve.set(column, allocated_milli);
    }
    let points = curve.points;
    let tenants = fill.report_tenants();
    Ok(Report {
        nodes: nodes.len() as u64,
        capacity_milli,
        arrived_milli,
        allocated_milli,
        jobs: count,
        placed: fill.placed,
        unplaced: fill.unplaced,
        scheduler_s: seconds(fill.driver.time()),
        policy: policy.to_string(),
        notes,
        tenants,
        allocated_percent_at_100: points.get(100).copied(),
        allocated_percent_at_130: points.get(ARRIVED_PERCENT_MAX).copied(),
        allocated_percent: points,
        placements_per_s: per_second(fill.placed, fill.driver.time()),
    })
}

/// Allocated percent by arrived percent.
struct Curve {
    capacity_milli: u64,
    points: Vec<f64>,
}

impl Curve {
    /// The column of so much arrived. Columns passed over keep what was before.
    fn reach(&mut self, arrived_milli: u64) -> usize {
        // Rounded half up, in integers.
        let column = (200 * u128::from(arrived_milli) + u128::from(self.capacity_milli))
            / (2 * u128::from(self.capacity_milli));
        let column = usize::try_from(column).unwrap_or(usize::MAX);
        let last = self.points.last().copied().unwrap_or_default();
        let len = column.min(ARRIVED_PERCENT_MAX) + 1;
        self.points.resize(len.max(self.points.len()), last);
        column
    }

    fn set(&mut self, column: usize, allocated_milli: u64) {
        self.points[column] = percent(u128::from(allocated_milli), u128::from(self.capacity_milli));
    }
}

/// The fleet and what has become of jobs.
struct Fill<'a> {
    driver: Driver<'a>,
    /// By place of the job: built when it first arrives; the reason when it can never run.
    specs: Vec<Option<Result<JobSpec, Refused>>>,
    unplaced: Unplaced,
    placed: u64,
    /// Whether the report says what those would wait for that did not fit.
    says_why: bool,
    tenants: BTreeMap<Name, PackedTenant>,
}

impl Fill<'_> {
    /// Whether the job was placed at once; it is gone otherwise.
    fn try_once(&mut self, place: usize, job: &JobEntry) -> bool {
        let driver = &mut self.driver;
        let tenant = driver.tenant(job);
        let count = self.tenants.entry(tenant).or_insert_with_key(PackedTenant::new);
        count.jobs += 1;
        count.arrived_milli += job.total_milli();
        driver.tick();
        let spec = self.specs[place].get_or_insert_with(|| driver.spec(job, Hints::default()));
        let submitted = spec.as_ref().map_err(Clone::clone).and_then(|spec| driver.submit(spec));
        let id = match submitted {
            Ok(id) => id,
            Err(Refused { code, by_policy: true, .. }) => {
                count.refused += 1;
                *self.unplaced.refused.entry(code.to_owned()).or_default() += 1;
                return false;
            }
            Err(_) => {
                self.unplaced.never_fit += 1;
                return false;
            }
        };
        driver.schedule();
        let is_placed = driver.take_happened().contains(&Happened::Placed(id));
        if is_placed {
            // A gang that never started would be stopped for that in the end.
            driver.report_running(id);
            self.placed += 1;
            count.placed += 1;
            count.allocated_milli += job.total_milli();
        } else {
            if self.says_why
                && let Some((code, _)) = driver.why_it_waits(id)
            {
                *self.unplaced.no_room_by_reason.entry(code.to_owned()).or_default() += 1;
            }
            driver.cancel(id);
            driver.take_happened();
            self.unplaced.no_room += 1;
        }
        is_placed
    }

    fn report_tenants(&mut self) -> Vec<PackedTenant> {
        let borrowed = self.driver.borrowed();
        let tenants = std::mem::take(&mut self.tenants).into_iter();
        let report = |(name, tenant): (Name, PackedTenant)| PackedTenant {
            borrowed_milli: borrowed.get(&name).copied().unwrap_or_default(),
            ..tenant
        };
        tenants.map(report).collect()
    }
}

impl PackedTenant {
    fn new(tenant: &Name) -> PackedTenant {
        PackedTenant {
            tenant: tenant.to_string(),
            jobs: 0,
            placed: 0,
            refused: 0,
            arrived_milli: 0,
            allocated_milli: 0,
            borrowed_milli: 0,
        }
    }
}
