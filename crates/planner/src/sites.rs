//! Where a gang may go: clusters, and in each the types it accepts.

use alloc::vec::Vec;
use muster_state::{Pool, PoolKey, State};
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::{DeviceAmount, JobSpec, Name, TaskGroup};

use crate::terms::Terms;

/// A pool with its key.
pub(crate) type KeyedPool<'a> = (&'a PoolKey, &'a Pool);

/// The pools of the regions a job allows, plain hosts first in each cluster.
pub(crate) fn pools<'a>(state: &'a State, spec: &JobSpec) -> Vec<KeyedPool<'a>> {
    let allowed = |key: &PoolKey| spec.regions.is_empty() || spec.regions.contains(&key.region);
    state.pools().filter(|(key, _)| allowed(key)).collect()
}

/// The clusters of these pools.
pub(crate) fn clusters<'p, 'a>(pools: &'p [KeyedPool<'a>]) -> impl Iterator<Item = &'p [KeyedPool<'a>]> {
    pools.chunk_by(|(a, _), (b, _)| a.region == b.region && a.cluster == b.cluster)
}

/// One type of accelerator in one cluster, or a cluster for a job without accelerators.
#[derive(Clone, Debug)]
pub(crate) struct Site<'a> {
    pub(crate) region: &'a Name,
    pub(crate) cluster: &'a Name,
    /// The type of the first group that needs one; none when no group does.
    pub(crate) kind: Option<&'a Name>,
    /// All pools of the cluster.
    pub(crate) pools: &'a [KeyedPool<'a>],
    /// By group: the place of its pool among the pools; none for a group without accelerators.
    pub(crate) pool_of: Vec<Option<usize>>,
    /// Work per time on the types of the site, weighted by devices.
    pub(crate) throughput_milli: u32,
    /// The slowest type, which says when the gang ends.
    pub(crate) slowest_milli: u32,
    /// The most that any type the job names would do.
    pub(crate) best_milli: u32,
    /// Idle devices of the types used.
    pub(crate) idle_devices: u64,
}

impl<'a> Site<'a> {
    /// The sites of a cluster, by type.
    pub(crate) fn of_cluster(pools: &'a [KeyedPool<'a>], spec: &JobSpec) -> Vec<Site<'a>> {
        let Some((first, _)) = pools.first() else { return Vec::new() };
        let place = (&first.region, &first.cluster);
        let Some(primary) = spec.groups.iter().find(|g| g.request.accelerators.is_some()) else {
            let pool_of = alloc::vec![None; spec.groups.len()];
            return Vec::from_iter(Some(Site::new(place, None, pools, pool_of, spec)));
        };
        let mut sites = Vec::new();
        for (key, _) in pools {
            let Some(kind) = key.kind.as_ref().filter(|kind| accepts(primary, kind)) else { continue };
            let pool_of: Option<Vec<Option<usize>>> =
                spec.groups.iter().map(|group| pool_for(group, kind, pools)).collect();
            if let Some(pool_of) = pool_of {
                sites.push(Site::new(place, Some(kind), pools, pool_of, spec));
            }
        }
        sites
    }

    fn new(
        (region, cluster): (&'a Name, &'a Name),
        kind: Option<&'a Name>,
        pools: &'a [KeyedPool<'a>],
        pool_of: Vec<Option<usize>>,
        spec: &JobSpec,
    ) -> Site<'a> {
        let (mut done, mut best, mut devices) = (0u128, 0u128, 0u128);
        let mut slowest_milli = THROUGHPUT_MILLI;
        let mut is_first = true;
        for (group, pool) in spec.groups.iter().zip(&pool_of) {
            let (Some(request), Some(pool)) = (&group.request.accelerators, pool) else { continue };
            let milli = u128::from(group.workers) * u128::from(group.request.device_milli());
            let kind = pools[*pool].0.kind.as_ref();
            let here = kind.and_then(|kind| request.throughput_milli(kind)).unwrap_or(THROUGHPUT_MILLI);
            let most = request.choices.iter().map(|c| c.throughput_milli).max().unwrap_or(THROUGHPUT_MILLI);
            done += milli * u128::from(here);
            best += milli * u128::from(most);
            devices += milli;
            slowest_milli = if is_first { here } else { slowest_milli.min(here) };
            is_first = false;
        }
        let per_device =
            |sum: u128| u32::try_from(sum.checked_div(devices).unwrap_or(1_000)).unwrap_or(u32::MAX);
        let mut site = Site {
            region,
            cluster,
            kind,
            pools,
            pool_of,
            throughput_milli: per_device(done),
            slowest_milli,
            best_milli: per_device(best),
            idle_devices: 0,
        };
        site.idle_devices = site.used_pools().map(|(_, pool)| pool.idle_devices).sum();
        site
    }

    /// The pools whose devices the gang uses, each once.
    pub(crate) fn used_pools(&self) -> impl Iterator<Item = KeyedPool<'a>> {
        let is_used = |place: &usize| self.pool_of.contains(&Some(*place));
        (0..self.pools.len()).filter(is_used).map(|place| self.pools[place])
    }

    /// The pools that workers of a group may be in.
    pub(crate) fn pools_of_group(&self, group: usize) -> &'a [KeyedPool<'a>] {
        match self.pool_of[group] {
            Some(place) => &self.pools[place..=place],
            None => self.pools,
        }
    }

    /// The most workers that counters and quota leave capacity for, without a look at a node; none when that
    /// is fewer than the gang may start with.
    pub(crate) fn workers_bound(&self, spec: &JobSpec, terms: &Terms<'_>) -> Option<u32> {
        if terms.elastic && spec.is_elastic() && spec.groups.len() > 1 {
            return self.step_bound(spec, terms);
        }
        let full = spec.worker_count();
        let least = if terms.elastic { spec.worker_count_min() } else { full };
        let mut most = full;
        for (place, (key, pool)) in self.pools.iter().enumerate() {
            if !self.pool_of.contains(&Some(place)) {
                continue;
            }
            let (mut whole, mut milli) = (0u64, 0u64);
            for (group, _) in spec.groups.iter().zip(&self.pool_of).filter(|(_, of)| **of == Some(place)) {
                milli += u64::from(group.workers) * group.request.device_milli();
                if let Some(DeviceAmount::Whole(count)) =
                    group.request.accelerators.as_ref().map(|a| a.amount)
                {
                    whole += u64::from(group.workers) * u64::from(count);
                }
            }
            let enough = |have: u64, need: u64| -> u32 {
                if need == 0 || have >= need {
                    return full;
                }
                // Fewer than all is of use to an elastic gang alone, and of one group all workers are alike.
                u32::try_from(have / (need / u64::from(full.max(1))).max(1)).unwrap_or(full).min(full)
            };
            most = most.min(enough(pool.idle_devices, whole)).min(enough(pool.free_milli, milli));
            if most < least {
                return None;
            }
            let capacity = terms.room_until(key, terms.end(spec, self.slowest_milli));
            most = most.min(enough(capacity, milli));
        }
        (most >= least && most > 0).then_some(most)
    }

    /// The same for an elastic gang of several groups: the workers of its largest step.
    fn step_bound(&self, spec: &JobSpec, terms: &Terms<'_>) -> Option<u32> {
        let end = terms.end(spec, self.slowest_milli);
        let mut pools: Vec<(usize, u64, u64)> = Vec::new();
        for (place, (key, pool)) in self.pools.iter().enumerate() {
            if self.pool_of.contains(&Some(place)) {
                pools.push((place, pool.idle_devices, pool.free_milli.min(terms.room_until(key, end))));
            }
        }
        let fits = |step: &u32| {
            pools.iter().all(|(place, idle, free_milli)| {
                let (mut whole, mut milli) = (0u64, 0u64);
                let groups = spec.groups.iter().zip(&self.pool_of).zip(spec.sizes_at(*step));
                for ((group, _), workers) in groups.filter(|((_, of), _)| **of == Some(*place)) {
                    milli += u64::from(workers) * group.request.device_milli();
                    if let Some(DeviceAmount::Whole(count)) =
                        group.request.accelerators.as_ref().map(|a| a.amount)
                    {
                        whole += u64::from(workers) * u64::from(count);
                    }
                }
                *idle >= whole && *free_milli >= milli
            })
        };
        (0..=spec.size_steps()).rev().find(fits).map(|step| spec.workers_at(step))
    }

    /// 1,000 when there are hosts without devices to place something on, else 0.
    pub(crate) fn plain_milli(&self) -> u32 {
        let is_plain = |(key, pool): &KeyedPool<'_>| key.kind.is_none() && !pool.by_free.is_empty();
        if self.pools.iter().any(is_plain) { 1_000 } else { 0 }
    }
}

pub(crate) fn accepts(group: &TaskGroup, kind: &Name) -> bool {
    group.request.accelerators.as_ref().is_some_and(|a| a.accepts(kind))
}

/// The pool for a group at a site of this type: the same type when the group can use it, else the fastest
/// that has enough idle devices, else the fastest. The outer option is none when there is no pool for it.
fn pool_for(group: &TaskGroup, kind: &Name, pools: &[KeyedPool<'_>]) -> Option<Option<usize>> {
    let Some(request) = &group.request.accelerators else { return Some(None) };
    let mut best: Option<((bool, bool, u32), usize)> = None;
    for (place, (key, pool)) in pools.iter().enumerate() {
        let Some(has) = &key.kind else { continue };
        let Some(throughput) = request.throughput_milli(has) else { continue };
        let need = u64::from(group.workers) * group.request.device_milli();
        let rank = (has == kind, pool.free_milli >= need, throughput);
        if best.is_none_or(|(most, _)| rank > most) {
            best = Some((rank, place));
        }
    }
    best.map(|(_, place)| Some(place))
}
