//! The node for one worker: where the potential rises least.

use alloc::vec::Vec;
use core::cell::RefCell;
use muster_state::{FreeKey, State};
use muster_types::JobSpec;
use muster_types::policy::PlacementWeights;

use crate::candidate::{Candidate, Plan, finished, place};
use crate::fill::{Attempt, only_named};
use crate::score::Values;
use crate::sites::KeyedPool;
use crate::terms::Terms;
use crate::valuation::{Rank, Valuation};
use crate::{Budget, Spent};

/// How bad a place is; the least is the best. Hosts without devices go before all others for a worker that
/// needs none; then what the potential rises by and what stays free, region, cluster and type, and the
/// fuller host.
type Badness<K> = (bool, Rank, usize, K);

/// Whether a job is one worker that may go anywhere. One that names its only nodes is looked for on these.
pub(crate) fn is_single(spec: &JobSpec) -> bool {
    spec.worker_count() == 1
        && spec.topology.is_free()
        && only_named(spec).is_none()
        && spec.groups.iter().all(|group| group.slice.is_none())
}

/// A plan for one worker. The score says in which cluster and, when types differ in more than how full they
/// are, on which; among types that do not, and among hosts, the potential decides. Candidates come best
/// score first.
pub(crate) fn plan_single(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    candidates: &[Candidate<'_>],
    valuation: &RefCell<Valuation>,
    budget: &mut Budget,
) -> Result<Option<Plan>, Spent> {
    let weights = &terms.policy.weights;
    let mut valuation = valuation.borrow_mut();
    if let [only] = candidates {
        return Choice::new(state, spec, terms, alloc::vec![only]).make(&mut valuation, budget);
    }
    let mut is_done = alloc::vec![false; candidates.len()];
    for first in 0..candidates.len() {
        if is_done[first] {
            continue;
        }
        let mut alike: Vec<&Candidate<'_>> = Vec::new();
        for (candidate, is_done) in candidates.iter().zip(&mut is_done).skip(first) {
            if !*is_done && are_alike(candidate, &candidates[first], weights) {
                *is_done = true;
                alike.push(candidate);
            }
        }
        let found = Choice::new(state, spec, terms, alike).make(&mut valuation, budget)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Whether two sites are in one cluster and equally good but for how full they are.
fn are_alike(a: &Candidate<'_>, b: &Candidate<'_>, weights: &PlacementWeights) -> bool {
    let apart_from_packing = |values: Values| {
        let weighted = |weight: u16, value: u32| u64::from(weight) * u64::from(value);
        weighted(weights.throughput, values.throughput)
            + weighted(weights.cost, values.cost)
            + weighted(weights.data, values.data)
    };
    (a.site.region, a.site.cluster) == (b.site.region, b.site.cluster)
        && apart_from_packing(a.values) == apart_from_packing(b.values)
}

/// One worker and the sites among which the potential decides.
struct Choice<'c> {
    state: &'c State,
    spec: &'c JobSpec,
    terms: &'c Terms<'c>,
    /// Best score first.
    alike: Vec<&'c Candidate<'c>>,
    /// The pools that the worker may use, by region, cluster and type, with the place of their site.
    pools: Vec<(usize, KeyedPool<'c>)>,
}

impl<'c> Choice<'c> {
    fn new(
        state: &'c State,
        spec: &'c JobSpec,
        terms: &'c Terms<'c>,
        alike: Vec<&'c Candidate<'c>>,
    ) -> Choice<'c> {
        let mut pools: Vec<(usize, KeyedPool<'c>)> = Vec::new();
        for (place, candidate) in alike.iter().enumerate() {
            pools.extend(candidate.site.pools_of_group(0).iter().map(|keyed| (place, *keyed)));
        }
        pools.sort_by_key(|(_, (key, _))| *key);
        Choice { state, spec, terms, alike, pools }
    }

    fn make(&self, valuation: &mut Valuation, budget: &mut Budget) -> Result<Option<Plan>, Spent> {
        let request = &self.spec.groups[0].request;
        let is_plain = |(key, pool): &KeyedPool<'_>| {
            key.kind.as_ref().is_none_or(|kind| valuation.is_plain(kind, pool, request))
        };
        if self.pools.iter().all(|(_, keyed)| is_plain(keyed)) {
            return self.best_fit(budget);
        }
        let mut best: Option<Badness<FreeKey>> = None;
        let is_cut = self.compare(valuation, budget, |(plain, rank, pool, key)| {
            let is_better = |(p, r, o, k): &Badness<FreeKey>| (plain, rank, pool, key) < (*p, *r, *o, k);
            if best.as_ref().is_none_or(is_better) {
                best = Some((plain, rank, pool, key.clone()));
            }
        })?;
        let Some((.., pool, key)) = best else { return Ok(None) };
        if let Some(plan) = self.try_place(pool, &key, budget)? {
            return Ok(Some(plan));
        }
        // What is best is not open to this job: the others, best first.
        let mut places: Vec<Badness<FreeKey>> = Vec::new();
        self.compare(valuation, budget, |(plain, rank, pool, key)| {
            places.push((plain, rank, pool, key.clone()));
        })?;
        places.sort_unstable();
        for (.., pool, key) in places.iter().skip(1) {
            if let Some(plan) = self.try_place(*pool, key, budget)? {
                return Ok(Some(plan));
            }
        }
        // The emptier hosts that were not compared.
        if is_cut { self.best_fit(budget) } else { Ok(None) }
    }

    /// Says how bad every place is; whether there are more than were compared.
    fn compare(
        &self,
        valuation: &mut Valuation,
        budget: &mut Budget,
        mut see: impl FnMut(Badness<&FreeKey>),
    ) -> Result<bool, Spent> {
        let request = &self.spec.groups[0].request;
        let mut is_cut = false;
        for (place, (_, keyed)) in self.pools.iter().enumerate() {
            let wastes_devices = request.accelerators.is_none() && keyed.0.kind.is_some();
            let see = |rank, key: &FreeKey| see((wastes_devices, rank, place, key));
            is_cut |= valuation.rank_pool(self.state, *keyed, request, budget, see)?;
        }
        Ok(is_cut)
    }

    /// The worker on the first node with this key that is open to it.
    fn try_place(&self, pool: usize, key: &FreeKey, budget: &mut Budget) -> Result<Option<Plan>, Spent> {
        let (candidate, (_, pool)) = self.pools[pool];
        let candidate = self.alike[candidate];
        let mut attempt = Attempt::new(self.state, self.spec, self.terms, &candidate.site, budget);
        let Some(node) = attempt.first_open(0, 1, pool, key)? else { return Ok(None) };
        if attempt.take(0, node, 1) == 0 {
            return Ok(None);
        }
        Ok(Some(finished(attempt, candidate.values)))
    }

    /// Best fit at the site with the best score.
    fn best_fit(&self, budget: &mut Budget) -> Result<Option<Plan>, Spent> {
        for candidate in &self.alike {
            let found = place(self.state, self.spec, self.terms, candidate, None, budget)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}
