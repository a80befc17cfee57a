//! The gang plan.

use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_state::State;
use muster_types::{JobSpec, Name};

use crate::fill::Attempt;
use crate::score::{self, Score, Values};
use crate::single;
use crate::sites::{self, KeyedPool, Site};
use crate::terms::Terms;
use crate::{Budget, Spent};

/// A proposal: not yet logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub region: Name,
    /// The fleet cluster there.
    pub cluster: Name,
    /// By rank. Fewer than the job asks for only when it may have fewer.
    pub workers: Vec<WorkerSlot>,
    /// How good it is.
    pub score: Score,
}

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

/// A site where the counters leave room, and how good it is apart from nearness.
pub(crate) struct Candidate<'a> {
    pub(crate) site: Site<'a>,
    /// The most workers that counters and quota allow.
    bound: u32,
    pub(crate) values: Values,
    total_max: i64,
    /// Its place by region, cluster and type.
    order: usize,
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
    let (mut candidates, cheapest) = candidates(&pools, spec, terms, budget)?;
    // The most promising first: most need not be tried then.
    candidates.sort_by_key(|c| (u32::MAX - c.bound, -c.total_max, c.order));
    if let Some(valuation) = terms.valuation
        && single::is_single(spec)
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
    let Ok((candidates, cheapest)) = candidates(&pools, spec, terms, budget) else { return Vec::new() };
    let mut plans = Vec::new();
    for candidate in &candidates {
        if let Ok(Some(plan)) = place(state, spec, terms, candidate, cheapest, budget) {
            plans.push((candidate.site.kind.cloned(), plan));
        }
    }
    plans
}

/// The sites where counters leave room, by region, cluster and type, and the lowest price of work at any
/// site.
fn candidates<'a>(
    pools: &'a [KeyedPool<'a>],
    spec: &JobSpec,
    terms: &Terms<'_>,
    budget: &mut Budget,
) -> Result<(Vec<Candidate<'a>>, Option<u64>), Spent> {
    let mut candidates = Vec::new();
    let mut order = 0;
    let mut cheapest: Option<u64> = None;
    for cluster in sites::clusters(pools) {
        budget.spend()?;
        for site in Site::of_cluster(cluster, spec) {
            order += 1;
            if terms.policy.weights.cost > 0
                && let Some(price) = score::work_price(terms.policy, &site)
            {
                cheapest = Some(cheapest.map_or(price, |least| least.min(price)));
            }
            if let Some(bound) = site.workers_bound(spec, terms) {
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

/// More workers first: only an elastic gang can have fewer than it asks for.
fn is_better((workers, total): (u32, i64), order: usize, than: &Best) -> bool {
    (workers, total) > (than.workers, than.total)
        || ((workers, total) == (than.workers, than.total) && order < than.order)
}

/// The gang at one site, with as many workers as fit.
pub(crate) fn place(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    candidate: &Candidate<'_>,
    cheapest: Option<u64>,
    budget: &mut Budget,
) -> Result<Option<Plan>, Spent> {
    let site = &candidate.site;
    let mut attempt = Attempt::new(state, spec, terms, site, budget);
    let workers = if terms.elastic && spec.is_elastic() {
        most_workers(&mut attempt, candidate.bound)?
    } else {
        attempt.arrange()?.then_some(candidate.bound)
    };
    let Some(workers) = workers else { return Ok(None) };
    let mut values = candidate.values;
    if workers != candidate.bound {
        values = score::values(spec, terms, site, cheapest, workers);
    }
    Ok(Some(finished(attempt, values)))
}

/// What an attempt that has placed all workers came to.
pub(crate) fn finished(mut attempt: Attempt<'_, '_>, mut values: Values) -> Plan {
    let (slots, [blocks, racks, nodes]) = attempt.finish();
    values.topology = score::nearness(blocks, racks, nodes);
    if attempt.site.kind.is_none() {
        let rows = slots.iter().map(|slot| attempt.row(slot.node));
        let plain = rows.filter(|row| row.spec.accelerators.is_none()).count();
        values.packing = score::on_plain_hosts(plain, slots.len());
    }
    let score = values.score(&attempt.terms.policy.weights);
    let (region, cluster) = (attempt.site.region.clone(), attempt.site.cluster.clone());
    Plan { region, cluster, workers: slots, score }
}

/// Places as many workers of an elastic gang as fit, at most `bound`; returns how many. Found by bisection
/// from a guess: where more workers could fit although fewer do not (an even split), it may stay below.
fn most_workers(attempt: &mut Attempt<'_, '_>, bound: u32) -> Result<Option<u32>, Spent> {
    if attempt.spec.topology.is_free() {
        // Every worker that fits anywhere is placed, whether or not they are all.
        attempt.wanted = alloc::vec![bound];
        attempt.arrange()?;
        let placed = attempt.placed();
        return Ok((placed >= attempt.spec.worker_count_min()).then_some(placed));
    }
    let unit = attempt.spec.topology.segment_workers.max(1);
    let mut low = attempt.spec.worker_count_min().div_ceil(unit).max(1);
    let mut fails = bound / unit + 1;
    let mut works = None;
    let mut next = bound / unit;
    let mut last = 0;
    let mut is_guess = true;
    while low < fails {
        let (placed, seen) = try_workers(attempt, next * unit)?;
        last = next;
        if placed {
            works = Some(next);
            low = next + 1;
        } else {
            fails = next;
        }
        if low >= fails {
            break;
        }
        // What fitted of the whole gang is the first guess; if it is right, one more does not fit.
        next = match (is_guess, placed) {
            (true, false) if next == bound / unit => (seen / unit).clamp(low, fails - 1),
            (true, true) => low,
            _ => low.midpoint(fails - 1),
        };
        is_guess = last == bound / unit;
    }
    let Some(units) = works else { return Ok(None) };
    if last != units {
        try_workers(attempt, units * unit)?;
    }
    Ok(Some(units * unit))
}

/// Whether so many workers of the one group fit, and how many did.
fn try_workers(attempt: &mut Attempt<'_, '_>, workers: u32) -> Result<(bool, u32), Spent> {
    attempt.reset();
    attempt.most_placed = 0;
    attempt.wanted = alloc::vec![workers];
    let placed = attempt.arrange()?;
    if !placed {
        attempt.reset();
    }
    Ok((placed, attempt.most_placed))
}
