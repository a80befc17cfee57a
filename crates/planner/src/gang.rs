//! The gang plan.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use muster_state::State;
use muster_types::{JobSpec, Name};

use crate::candidate::{Candidate, Plan, place};
use crate::fill::only_named;
use crate::score::{self, Values};
use crate::single;
use crate::sites::{self, KeyedPool, Site};
use crate::terms::Terms;
use crate::{Budget, Spent};

/// What planning came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits so.
    Fits(Plan),
    /// It does not fit now; [`crate::explain`] says why.
    Waits,
    /// The budget ran out before an answer.
    OutOfBudget,
}

/// The best plan so far, and what makes it the best.
struct Best {
    workers: u32,
    total: i64,
    order: usize,
    plan: Plan,
}

/// Plans a gang over every cluster and type that is open to it.
#[must_use]
pub fn plan(state: &State, spec: &JobSpec, terms: &Terms<'_>, budget: &mut Budget) -> Verdict {
    match try_plan(state, spec, terms, budget) {
        Ok(Some(plan)) => Verdict::Fits(plan),
        Ok(None) => Verdict::Waits,
        Err(Spent) => Verdict::OutOfBudget,
    }
}

pub(crate) fn try_plan(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    budget: &mut Budget,
) -> Result<Option<Plan>, Spent> {
    let pools = sites::pools(state, spec);
    let (mut candidates, cheapest) = candidates((state, pools.as_slice()), spec, terms, budget)?;
    // The most promising first: most need not be tried then.
    candidates.sort_by_key(|c| (u32::MAX - c.bound, -c.total_max, c.order));
    if let Some(valuation) = terms.valuation
        && single::is_single(spec)
        && terms.wishes().is_empty()
        && terms.image.is_none()
        && !terms.has_only_hosts()
    {
        return single::plan_single(state, spec, terms, &candidates, valuation, budget);
    }
    let mut best: Option<Best> = None;
    for candidate in &candidates {
        let at_most = (candidate.bound, candidate.total_max);
        if best.as_ref().is_some_and(|b| !is_better(at_most, candidate.order, b)) {
            continue;
        }
        let Some(found) = place(state, spec, terms, candidate, cheapest, budget)? else { continue };
        let rank = (found.workers.len() as u32, found.score.total);
        if best.as_ref().is_none_or(|b| is_better(rank, candidate.order, b)) {
            best = Some(Best { workers: rank.0, total: rank.1, order: candidate.order, plan: found });
        }
    }
    Ok(best.map(|best| best.plan))
}

/// The best plan at every site where the gang fits now, with the type there.
pub(crate) fn plans_by_site(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    budget: &mut Budget,
) -> Vec<(Option<Name>, Plan)> {
    let pools = sites::pools(state, spec);
    let Ok((candidates, cheapest)) = candidates((state, pools.as_slice()), spec, terms, budget) else {
        return Vec::new();
    };
    let mut plans = Vec::new();
    for candidate in &candidates {
        if let Ok(Some(plan)) = place(state, spec, terms, candidate, cheapest, budget) {
            plans.push((candidate.site.kind.cloned(), plan));
        }
    }
    plans
}

/// The sites where counters leave capacity, by region, cluster and type, and the lowest price of work at any
/// site.
fn candidates<'a>(
    (state, pools): (&State, &'a [KeyedPool<'a>]),
    spec: &JobSpec,
    terms: &Terms<'_>,
    budget: &mut Budget,
) -> Result<(Vec<Candidate<'a>>, Option<u64>), Spent> {
    let mut candidates = Vec::new();
    let mut order = 0;
    let mut cheapest: Option<u64> = None;
    let ends = pools.first().zip(pools.last());
    let several = ends.is_some_and(|((a, _), (b, _))| (&a.region, &a.cluster) != (&b.region, &b.cluster));
    let named = only_named(spec).filter(|_| several);
    let named = named.map(|names| places_of(state, names, budget)).transpose()?;
    for cluster in sites::clusters(pools) {
        budget.spend()?;
        // No node that it names is in the others, and each look there would cost as much as all of its names.
        let here = cluster.first().map(|(key, _)| (&key.region, &key.cluster));
        let may_go = named.as_ref().is_none_or(|named| here.is_some_and(|here| named.contains(&here)));
        // Nor is anything in those where other jobs are, or are not, as a whole.
        let may_go = may_go && here.is_none_or(|(region, cluster)| !terms.excludes_cluster(region, cluster));
        for site in Site::of_cluster(cluster, spec) {
            order += 1;
            if terms.policy.weights.cost > 0
                && let Some(price) = score::work_price(spec, terms, &site)
            {
                cheapest = Some(cheapest.map_or(price, |least| least.min(price)));
            }
            if may_go && let Some(bound) = site.workers_bound(spec, terms) {
                candidates.push(Candidate { site, bound, values: Values::default(), total_max: 0, order });
            }
        }
    }
    for candidate in &mut candidates {
        candidate.values = score::values(spec, terms, &candidate.site, cheapest, candidate.bound);
        candidate.total_max = candidate.values.total(&terms.policy.weights);
    }
    Ok((candidates, cheapest))
}

/// The clusters of the nodes that a job names, by region and name.
fn places_of<'s>(
    state: &'s State,
    names: &BTreeSet<Name>,
    budget: &mut Budget,
) -> Result<BTreeSet<(&'s Name, &'s Name)>, Spent> {
    let mut places = BTreeSet::new();
    for name in names {
        budget.spend()?;
        let row = state.node_named(name).and_then(|id| state.node(id));
        places.extend(row.map(|row| (&row.spec.region, &row.spec.cluster)));
    }
    Ok(places)
}

/// More workers first: only an elastic gang can have fewer than it asks for.
fn is_better((workers, total): (u32, i64), order: usize, than: &Best) -> bool {
    (workers, total) > (than.workers, than.total)
        || ((workers, total) == (than.workers, than.total) && order < than.order)
}
