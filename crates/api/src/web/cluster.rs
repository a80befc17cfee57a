//! The first page and the queues.

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use muster_decider::{Blocker, ExpectedStarts, FrontRequest, queue_front};
use muster_engine::{Engine, Reading, in_background};
use muster_page::{
    ErrorBudgets, EstimateOf, ExpectedStart, NextJob, Overview, Pager, PoolUse, QueueShown, Queues,
    RunningDrill, StartsShown, TierQueue,
};
use muster_planner::WaitReason;
use muster_state::{PoolKey, State as Applied};
use muster_types::{DeviceSet, JobId, PriorityTier};
use muster_wire::closed::{ClosedSet, number};
use muster_wire::time::{log_time, unix_ms};
use muster_wire::v1;
use std::collections::BTreeMap;

use super::estimates::{Estimates, Found, Unmade, as_of};
use super::query::parameters;
use super::time_travel::PageRequest;
use super::timeline::unix_ms_now;
use super::{Problem, Reader, Scene, Web, events};
use crate::booking_service;
use crate::cluster_service;
use crate::fleet_service::holds as fleet_holds;
use crate::queue_service;
use crate::read::present;
use crate::render::{self, Detail};
use crate::schedule_service;

/// Rows of the first page.
const NEXT_SHOWN: usize = 8;
const ACTIVE_SHOWN: usize = 10;
const EVENTS_SHOWN: usize = 12;
const POOLS_SHOWN_MAX: usize = 200;
/// About what its rows take.
const OVERVIEW_BYTES: usize = 256 << 10;
/// About what the page of the replicas takes.
const CLUSTER_BYTES: usize = 64 << 10;
/// Requests of the front of the queue for which it is explained why they wait: each explanation looks at the whole fleet.
const EXPLAINED: usize = 3;
/// Requests that are stepped over for the front of the queue: of a tenant without nominal quota each may be another one.
const STEPS_MAX: u64 = 10_000;
/// Tenants whose gated jobs are counted for the first page.
const TENANTS_COUNTED_MAX: usize = 10_000;
/// Rows of the queues' page.
const TENANTS_SHOWN: usize = 500;
const FRONT_SHOWN: usize = 20;
const SCHEDULES_SHOWN: usize = 100;
const RESERVATIONS_SHOWN: usize = 50;
const STARTS_SHOWN: usize = 200;
const STARTS_BYTES: usize = STARTS_SHOWN * 512;

/// Why the first requests of the pending queue wait.
pub(super) type FrontReasons = BTreeMap<JobId, (WaitReason, String)>;

/// When jobs of the pending queue are expected to start.
#[derive(Debug, Default)]
pub(super) struct QueueStarts {
    /// Those that are given their capacity first.
    forecast: ExpectedStarts,
    /// Jobs before the last one of the front that have reservations.
    reserved: Vec<Blocker>,
    /// Jobs that wait.
    waiting: u64,
}

fn front_reasons(engine: &Engine, view: &Reading) -> FrontReasons {
    let front = queue_front(view, view.log_time(), EXPLAINED, STEPS_MAX);
    let reason = |request: FrontRequest| Some((request.job, engine.explain_briefly_here(view, request.job)?));
    front.requests.into_iter().filter_map(reason).collect()
}

/// The last job of the front of the queue that is shown.
fn last_of_front(view: &Applied) -> Option<JobId> {
    let front = queue_front(view, view.log_time(), FRONT_SHOWN, STEPS_MAX);
    front.requests.last().map(|request| request.job)
}

fn queue_starts(engine: &Engine, view: &Reading) -> QueueStarts {
    let explained = last_of_front(view).and_then(|last| engine.explain_job_here(view, last));
    let reserved = explained.map(|explained| explained.blockers).unwrap_or_default();
    let waiting = view.pending_count() as u64;
    QueueStarts { forecast: engine.first_starts_here(view, STARTS_SHOWN), reserved, waiting }
}

impl Web {
    /// What is estimated of the present queue; none for a page of the past, and where it takes too long.
    async fn estimated<T: Send + Sync + 'static>(
        &self,
        kept: &Estimates<(), T>,
        asked: &PageRequest,
        estimate: fn(&Engine, &Reading) -> T,
    ) -> Found<T> {
        if asked.at.is_some() {
            return Err(Unmade::default());
        }
        let (engine, state) = (self.engine().clone(), present(self.engine()));
        let make = {
            let state = state.clone();
            async move { in_background(move || estimate(&engine, &state)).await.ok() }
        };
        kept.get((asked.account(), ()), &state, make).await
    }
}

/// The front of the pending queue, with the reasons why its first requests wait.
fn front(scene: &Scene, count: usize, reasons: &Found<FrontReasons>) -> QueueShown {
    let view = &scene.state;
    let past = view.is_past().then(|| front_reasons(scene.engine(), view));
    let known = past.as_ref().or(reasons.as_ref().ok().map(|reasons| &*reasons.value));
    let of = if view.is_past() { EstimateOf::Page } else { as_of(reasons, view.log_index()) };
    let front = queue_front(view, view.log_time(), count, STEPS_MAX);
    let shown = front.requests.into_iter().filter_map(|request| {
        let why = known.and_then(|known| known.get(&request.job)).map(|(reason, message)| v1::Explanation {
            reason: reason.code().to_owned(),
            message: message.clone(),
            ..Default::default()
        });
        let why = why.map(|why| scene.visibility().explanation(view, request.job, why)).unwrap_or_default();
        next_job(view, request, why)
    });
    QueueShown { jobs: shown.collect(), is_cut: front.is_cut, of }
}

fn next_job(view: &Applied, request: FrontRequest, why: v1::Explanation) -> Option<NextJob> {
    let spec = view.spec(request.job)?;
    Some(NextJob {
        id: request.job.to_string(),
        name: spec.name.to_string(),
        tenant: request.tenant.to_string(),
        tier: request.tier.word().to_owned(),
        devices: spec.device_count(),
        within_nominal: request.within_nominal,
        reason: why.reason,
        message: why.message,
        start: None,
    })
}

pub(super) async fn overview(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, []) = PageRequest::of(reader, &request, [])?;
    let reasons = web.estimated(&web.front_reasons, &asked, front_reasons).await;
    let make = move |scene: &Scene| Ok(muster_page::overview(&scene.frame(), &made_of(scene, &reasons)));
    web.read(asked, OVERVIEW_BYTES, make).await
}

/// The replicas and the drill that runs: of the present alone.
pub(super) async fn page(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    parameters::<0>(request.uri(), [])?;
    let make = |scene: &Scene| {
        let drill = scene.web.drills.current();
        let status = cluster_service::status(scene.engine(), &scene.state, drill.as_ref());
        let drill = drill.map(|held| RunningDrill {
            id: held.id.to_string(),
            name: held.name.to_string(),
            started_by: held.started_by,
            left_ms: u64::try_from(held.left.as_millis()).unwrap_or(u64::MAX),
            silent: held.silent.iter().map(|replica| replica.0).collect(),
            cordoned_regions: held.cordoned_regions.iter().map(ToString::to_string).collect(),
        });
        Ok(muster_page::cluster(&scene.frame(), &status, drill.as_ref()))
    };
    web.answer(reader, CLUSTER_BYTES, make).await
}

fn made_of(scene: &Scene, reasons: &Found<FrontReasons>) -> Overview {
    let view = &scene.state;
    let (pools, leaves_pools_out) = pools(view);
    let newest = view.active().rev().filter_map(|id| {
        let (row, spec) = (view.job(id)?, view.spec(id)?);
        // What is being stopped holds devices as well, and is shown as that.
        Some(render::job(view, id, row, spec, (Detail::Basic, scene.visibility())))
    });
    let queues = view.queues_behind(None, TENANTS_COUNTED_MAX);
    Overview {
        status: cluster_service::status(scene.engine(), view, scene.web.drills.current().as_ref()),
        pools,
        leaves_pools_out,
        // Counted of the present alone.
        budgets: match view.is_past() {
            true => ErrorBudgets::default(),
            false => scene.web.objectives.budgets(&scene.web.metrics),
        },
        gated: queues.iter().filter_map(|name| view.queue(name)).map(|queue| queue.load.held_jobs).sum(),
        gated_or_more: queues.len() == TENANTS_COUNTED_MAX,
        uncreated: view.uncreated_count(),
        next: front(scene, NEXT_SHOWN, reasons),
        active: newest.take(ACTIVE_SHOWN).collect(),
        events: events::newest_of_all(scene, EVENTS_SHOWN),
    }
}

/// Devices by type and place, and whether there are more pools than are shown.
fn pools(view: &Applied) -> (Vec<PoolUse>, bool) {
    let withheld = withheld(view);
    let mut shown = Vec::new();
    for (key, pool) in view.pools() {
        let Some(kind) = &key.kind else { continue };
        if shown.len() == POOLS_SHOWN_MAX {
            return (shown, true);
        }
        let placeable: u64 = pool
            .placeable_shapes
            .iter()
            .map(|(shape, nodes)| u64::from(shape.devices) * u64::from(*nodes))
            .sum();
        let (faulty, foreign) = withheld.get(key).copied().unwrap_or_default();
        shown.push(PoolUse {
            region: key.region.to_string(),
            cluster: key.cluster.to_string(),
            kind: kind.to_string(),
            total: pool.total_devices,
            free: pool.idle_devices,
            unavailable: pool.total_devices.saturating_sub(placeable) + faulty,
            foreign,
        });
    }
    (shown, false)
}

/// Devices that no worker holds and nothing new is placed on, of nodes that take work: those at fault, and those that another
/// scheduler holds.
fn withheld(view: &Applied) -> BTreeMap<PoolKey, (u64, u64)> {
    let mut counts = BTreeMap::new();
    for (id, restriction) in view.restrictions() {
        let Some(node) = view.node(id).filter(|node| node.is_placeable()) else { continue };
        let (DeviceSet(faulty), DeviceSet(foreign)) =
            (restriction.health.unusable, restriction.foreign.devices);
        let of_free = |devices: u64| u64::from((devices & node.free.devices.0).count_ones());
        let (faulty, foreign) = (of_free(faulty), of_free(foreign & !faulty));
        if faulty + foreign > 0 {
            let (all_faulty, all_foreign): &mut (u64, u64) =
                counts.entry(PoolKey::of(&node.spec)).or_default();
            *all_faulty += faulty;
            *all_foreign += foreign;
        }
    }
    counts
}

pub(super) async fn queues(
    State(web): State<Web>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Result<Response, Problem> {
    let (asked, [page]) = PageRequest::of(reader, &request, ["page"])?;
    let (reasons, estimated) = tokio::join!(
        web.estimated(&web.front_reasons, &asked, front_reasons),
        web.estimated(&web.queue_starts, &asked, queue_starts)
    );
    let make = move |scene: &Scene| {
        let listing = v1::ListTenantsRequest { page_token: page.clone(), ..Default::default() };
        let asked = (&listing, TENANTS_SHOWN);
        let listed = queue_service::list(scene.engine(), &scene.state, scene.visibility(), asked)?;
        let reader = scene.reader.caller();
        let mut schedules = schedule_service::of_caller(&scene.state, &reader, SCHEDULES_SHOWN + 1);
        let leaves_schedules_out = schedules.len() > SCHEDULES_SHOWN;
        schedules.truncate(SCHEDULES_SHOWN);
        let mut next = front(scene, FRONT_SHOWN, &reasons);
        let past = scene.state.is_past().then(|| queue_starts(scene.engine(), &scene.state));
        let of = if past.is_some() { EstimateOf::Page } else { as_of(&estimated, scene.state.log_index()) };
        let nothing = QueueStarts::default();
        let known = past.as_ref().or(estimated.as_ref().ok().map(|made| &*made.value)).unwrap_or(&nothing);
        let all_starts = all_starts(scene, known, of);
        for job in &mut next.jobs {
            job.start = all_starts.starts.iter().find(|start| start.job_id == job.id).cloned();
        }
        let log_ms = scene.state.log_time().0;
        let shown = Queues {
            tenants: listed.tenants,
            now_ms: if scene.state.is_past() { log_ms } else { log_ms.max(unix_ms_now()) },
            starts: starts(&known.reserved, &next),
            all_starts,
            next,
            tiers: tiers(&scene.state),
            uncreated: scene.state.uncreated_count(),
            bookings: booking_service::list(&scene.state, scene.visibility()),
            holds: fleet_holds::list(&scene.state, scene.visibility()),
            pager: Pager { path: "/queues", parameters: Vec::new(), page, next: listed.next_page_token },
            schedules,
            leaves_schedules_out,
        };
        Ok(muster_page::queues(&scene.frame(), &shown))
    };
    let bytes = TENANTS_SHOWN * queue_service::ROW_BYTES
        + SCHEDULES_SHOWN * schedule_service::ROW_BYTES
        + STARTS_BYTES;
    web.read(asked, bytes, make).await
}

/// When waiting jobs are expected to start, as far as one forecast came.
fn all_starts(scene: &Scene, estimated: &QueueStarts, of: EstimateOf) -> StartsShown {
    let (view, forecast) = (&scene.state, &estimated.forecast);
    let known = forecast.starts.iter().filter_map(|found| Some((found.job, found.start?)));
    let shown = known.clone().take(STARTS_SHOWN).filter_map(|(id, start)| {
        Some(ExpectedStart {
            job_id: id.to_string(),
            name: view.spec(id)?.name.to_string(),
            earliest_ms: start.q10.0,
            latest_ms: start.q90.map(|at| at.0),
            run_ms: view.job(id).map(|row| row.estimate.run_ms),
            ..ExpectedStart::default()
        })
    });
    let computed = forecast.starts.len();
    StartsShown {
        starts: shown.collect(),
        computed: computed as u64,
        unknown: (computed - known.count()) as u64,
        waiting: view.pending_count() as u64,
        waited: estimated.waiting,
        is_cut: forecast.is_cut,
        of,
    }
}

/// What is reserved for jobs, and when the jobs of the front are expected to start.
fn starts(reserved: &[Blocker], front: &QueueShown) -> Vec<ExpectedStart> {
    let reserved = reserved.iter().take(RESERVATIONS_SHOWN).filter_map(|blocker| {
        let start_ms = unix_ms(log_time(blocker.starts_at))?;
        Some(ExpectedStart {
            job_id: blocker.job.to_string(),
            name: blocker.name.to_string(),
            is_reserved: true,
            has_slipped: blocker.has_slipped,
            earliest_ms: start_ms,
            latest_ms: Some(start_ms),
            run_ms: None,
        })
    });
    let mut starts: Vec<ExpectedStart> = reserved.collect();
    let is_drawn = |id: &str| starts.iter().any(|start| start.job_id == id);
    let expected =
        front.jobs.iter().filter_map(|job| job.start.clone()).filter(|start| !is_drawn(&start.job_id));
    let expected: Vec<ExpectedStart> = expected.collect();
    starts.extend(expected);
    starts
}

/// Tenants with jobs in the pending queue, by tier, the highest first.
fn tiers(view: &Applied) -> Vec<TierQueue> {
    let mut tiers: Vec<PriorityTier> = PriorityTier::ALL.to_vec();
    tiers.sort_by_key(|tier| std::cmp::Reverse(number(*tier)));
    let queue = |tier: PriorityTier| TierQueue {
        tier: tier.word().to_owned(),
        tenants: view.tenants_in_line(tier).count() as u64,
    };
    tiers.into_iter().map(queue).filter(|tier| tier.tenants > 0).collect()
}
