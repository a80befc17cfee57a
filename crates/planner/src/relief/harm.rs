//! What it costs to preempt gangs, as a sum.

use muster_types::JobId;

/// Ranks of harm. Any harm of a lower rank is worse than all harm of the ranks above it; the lowest is of gangs
/// that are stopped only where nobody else would do.
pub const HARM_RANKS: usize = 16;

/// What it costs to preempt a set of gangs. The less, the better; the same whatever the order of adding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreemptionCost {
    /// By rank, worst first; in whatever unit the caller counts in.
    amounts: [u128; HARM_RANKS],
    /// How many gangs.
    gangs: u32,
}

impl PreemptionCost {
    /// Of one gang. A rank beyond the last counts as the last.
    #[must_use]
    pub fn new(rank: usize, amount: u128) -> PreemptionCost {
        let mut harm = PreemptionCost { gangs: 1, ..PreemptionCost::default() };
        harm.amounts[rank.min(HARM_RANKS - 1)] = amount;
        harm
    }

    /// How many gangs it is of.
    #[must_use]
    pub fn gangs(&self) -> u32 {
        self.gangs
    }

    /// Whether any of it is of the lowest rank.
    #[must_use]
    pub fn is_last_resort(&self) -> bool {
        self.amounts[0] > 0
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &PreemptionCost) -> PreemptionCost {
        let mut sum = *self;
        for (amount, more) in sum.amounts.iter_mut().zip(other.amounts) {
            *amount = amount.saturating_add(more);
        }
        sum.gangs = sum.gangs.saturating_add(other.gangs);
        sum
    }

    /// `factor` times as much.
    fn times(&self, factor: u32) -> PreemptionCost {
        let mut product = *self;
        for amount in &mut product.amounts {
            *amount = amount.saturating_mul(u128::from(factor));
        }
        product.gangs = product.gangs.saturating_mul(factor);
        product
    }
}

/// Harm for this many workers: compared by what each of them costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerWorker {
    pub(super) harm: PreemptionCost,
    pub(super) workers: u32,
}

impl PerWorker {
    /// Less for each worker first; of equals the one with more workers.
    pub(super) fn compare(&self, other: &PerWorker) -> core::cmp::Ordering {
        let (own, theirs) = (self.harm.times(other.workers), other.harm.times(self.workers));
        own.cmp(&theirs).then(other.workers.cmp(&self.workers))
    }
}

/// The order in which gangs are asked: least harm first, of equals the one that was submitted last.
pub(super) fn order(a: (&PreemptionCost, JobId), b: (&PreemptionCost, JobId)) -> core::cmp::Ordering {
    a.0.cmp(b.0).then(b.1.cmp(&a.1))
}
