//! A site that a gang may go to, and the plan that it comes to there.

use alloc::vec::Vec;
use muster_journal::WorkerSlot;
use muster_state::State;
use muster_types::{JobSpec, Name};

use crate::fill::Attempt;
use crate::score::{self, Score, Values};
use crate::sites::Site;
use crate::terms::{AffinityTerm, Terms};
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

/// A site where the counters leave capacity, and how good it is apart from nearness.
pub(crate) struct Candidate<'a> {
    pub(crate) site: Site<'a>,
    /// The most workers that counters and quota allow.
    pub(crate) bound: u32,
    pub(crate) values: Values,
    /// The highest score that any placement there could have.
    pub(crate) total_max: i64,
    /// Its place by region, cluster and type.
    pub(crate) order: usize,
}

/// The part of the budget that may go into finding out which wishes can be met: the rest stays for a place without them.
const WISHES_PART: u64 = 4;

/// The gang at one site, with as many workers as fit. Of its wishes about where other jobs are as many are met as can be,
/// the lightest given up first; a gang that may be smaller is not smaller for a wish, and none waits for one.
pub(crate) fn place(
    state: &State,
    spec: &JobSpec,
    terms: &Terms<'_>,
    candidate: &Candidate<'_>,
    cheapest: Option<u64>,
    budget: &mut Budget,
) -> Result<Option<Plan>, Spent> {
    // Without wishes first: it says how many workers fit, which may be fewer than counters allow, and a gang that has
    // no place at all is not tried with each of them.
    let Some(plain) = place_with(state, (spec, terms, &[]), candidate, cheapest, budget)? else {
        return Ok(None);
    };
    let wishes = terms.wishes();
    let mut for_wishes = Budget::new(budget.left() / WISHES_PART);
    let before = for_wishes.left();
    let mut best = None;
    let mut met: &[&AffinityTerm<'_>] = &[];
    for kept in (1..=wishes.len()).rev() {
        met = wishes.get(..kept).unwrap_or_default();
        let found = place_with(state, (spec, terms, met), candidate, cheapest, &mut for_wishes);
        // What is too much work to find is given up like what is not there.
        let Ok(found) = found else {
            met = &[];
            break;
        };
        best = found.filter(|plan| plan.workers.len() >= plain.workers.len());
        if best.is_some() {
            break;
        }
        met = &[];
    }
    let mut found = best.unwrap_or(plain);
    if let Some(image) = terms.image {
        let wished: Vec<&AffinityTerm<'_>> = met.iter().copied().chain([image]).collect();
        let there = place_with(state, (spec, terms, &wished), candidate, cheapest, &mut for_wishes);
        // A little better, and no more: a place that is nearer together, say, goes before it.
        if let Ok(Some(there)) = there
            && there.workers.len() >= found.workers.len()
            && there.score.total > found.score.total
        {
            found = there;
        }
    }
    budget.take(before - for_wishes.left());
    Ok(Some(found))
}

/// The same with these wishes met.
fn place_with(
    state: &State,
    (spec, terms, wishes): (&JobSpec, &Terms<'_>, &[&AffinityTerm<'_>]),
    candidate: &Candidate<'_>,
    cheapest: Option<u64>,
    budget: &mut Budget,
) -> Result<Option<Plan>, Spent> {
    let site = &candidate.site;
    let mut attempt = Attempt::new(state, spec, terms, site, budget);
    attempt.require(wishes);
    let workers = if terms.elastic && spec.is_elastic() && spec.groups.len() > 1 {
        largest_step(&mut attempt, candidate.bound)?
    } else if terms.elastic && spec.is_elastic() {
        match most_workers(&mut attempt, candidate.bound)? {
            Some(fitting) => listed_workers(&mut attempt, fitting)?,
            None => None,
        }
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
    values.affinity = score::met_by(attempt.terms, slots.iter().map(|slot| &attempt.row(slot.node).spec));
    values.image = score::held_by(attempt.terms, slots.iter().map(|slot| &attempt.row(slot.node).spec));
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
    let unit = attempt.spec.topology.segment_unit();
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

/// Of as many workers of an elastic gang as fit and are placed, keeps the largest number that its group lists; returns
/// how many. None if only numbers fit that it does not list.
fn listed_workers(attempt: &mut Attempt<'_, '_>, fitting: u32) -> Result<Option<u32>, Spent> {
    let Some(group) = attempt.spec.groups.first() else { return Ok(Some(fitting)) };
    let mut size = group.size_at_most(fitting);
    if size == fitting {
        return Ok(Some(fitting));
    }
    loop {
        if try_workers(attempt, size)?.0 {
            return Ok(Some(size));
        }
        // An even split may fail for fewer though it works for more.
        let Some(below) = size.checked_sub(1) else { return Ok(None) };
        size = group.size_at_most(below);
        if size == below {
            return Ok(None);
        }
    }
}

/// Places an elastic gang of several groups at the largest step that fits, with at most `bound` workers in whole segments;
/// returns how many. The largest is tried first, the others by bisection: where a larger step fits although a smaller
/// one does not, it may stay below.
fn largest_step(attempt: &mut Attempt<'_, '_>, bound: u32) -> Result<Option<u32>, Spent> {
    let spec = attempt.spec;
    let unit = spec.topology.segment_unit();
    let is_open = |step: &u32| {
        let workers = spec.workers_at(*step);
        workers <= bound && workers.is_multiple_of(unit)
    };
    let steps: Vec<u32> = (0..=spec.size_steps()).filter(is_open).collect();
    let sizes = |at: usize| steps.get(at).map_or_else(Vec::new, |step| spec.sizes_at(*step).collect());
    let (mut low, mut fails) = (0, steps.len());
    let (mut works, mut last) = (None, None);
    let mut next = steps.len().saturating_sub(1);
    while low < fails {
        last = Some(next);
        if try_sizes(attempt, sizes(next))?.0 {
            works = Some(next);
            low = next + 1;
        } else {
            fails = next;
        }
        next = low.midpoint(fails.saturating_sub(1));
    }
    let Some(at) = works else { return Ok(None) };
    if last != works {
        try_sizes(attempt, sizes(at))?;
    }
    Ok(steps.get(at).map(|step| spec.workers_at(*step)))
}

/// Whether this many workers of the one group fit, and how many did.
fn try_workers(attempt: &mut Attempt<'_, '_>, workers: u32) -> Result<(bool, u32), Spent> {
    try_sizes(attempt, alloc::vec![workers])
}

/// Whether this many workers of each group fit, and how many did.
fn try_sizes(attempt: &mut Attempt<'_, '_>, wanted: Vec<u32>) -> Result<(bool, u32), Spent> {
    attempt.reset();
    attempt.most_placed = 0;
    attempt.wanted = wanted;
    let placed = attempt.arrange()?;
    if !placed {
        attempt.reset();
    }
    Ok((placed, attempt.most_placed))
}
