//! How good a place is: a node among those that fit, and a plan among those that are possible.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use muster_state::{CapacityKey, FreeKey};
use muster_types::policy::PlacementWeights;
use muster_types::{CapacityRules, DeviceAmount, JobSpec, Name, NodeSpec, PurchaseSet, WorkerRequest};

use crate::sites::Site;
use crate::terms::Terms;

/// Different states of nodes that are compared for one choice. Beyond it the fullest-first order decides.
pub(crate) const KEYS_MAX: usize = 512;

/// A part that nothing is known about counts half.
const NEUTRAL: u32 = 500;

/// What a job with checkpoints loses of its work by an interruption: half of an hour.
const CHECKPOINT_LOST_MS: u64 = 30 * 60 * 1_000;
/// From an interruption until a gang works again: ten minutes.
const RESTART_MS: u64 = 10 * 60 * 1_000;
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// The most a part can be.
const FULL: u32 = 1_000;

/// How much worse the holes of a node become by this many more workers; the least is the best. Asked only for
/// nodes on which they fit.
///
/// Whole devices: the fullest node that holds them, so what is left idle. Shares of a device: the device
/// with the least left over; an idle one is opened last, on the fullest node.
pub(crate) fn fragmentation(key: &FreeKey, request: &WorkerRequest, workers: u32) -> u32 {
    match request.accelerators.as_ref().map(|a| a.amount) {
        None => u32::from(key.idle),
        Some(DeviceAmount::Whole(count)) => {
            u32::from(key.idle).saturating_sub(u32::from(count).saturating_mul(workers))
        }
        Some(DeviceAmount::Share(milli)) => {
            let left = key.shares.iter().filter_map(|share| share.checked_sub(milli)).min();
            left.map_or(FULL + u32::from(key.idle), u32::from)
        }
    }
}

/// Whether [`fragmentation`] never falls in the order fullest first, so that the first node that fits is
/// the best.
pub(crate) fn first_is_best(request: &WorkerRequest) -> bool {
    !matches!(request.accelerators.as_ref().map(|a| a.amount), Some(DeviceAmount::Share(_)))
}

/// One term of a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScorePart {
    /// `packing`, `throughput`, `cost`, `data`, `topology`, `spread`, `affinity` or `image`.
    pub name: &'static str,
    /// Its weight in the policy; that of `affinity` is the sum of the weights of the job's wishes, and that of `image` is fixed.
    pub weight: u16,
    /// 0 to 1,000; more is better.
    pub value_milli: u32,
}

/// How good a plan is, by the weights of the policy.
///
/// - `packing`: 1,000 · g / (g + f), with the gang's devices g and those of its types that stay idle in the
///   cluster, f: full clusters are filled first, and holes for large gangs stay. For a job without devices
///   the share of its workers that are on hosts without devices.
/// - `throughput`: of the type, relative to the best that the job names; less for an elastic gang below its
///   full size.
/// - `cost`: the lowest price of a unit of work among the places open to the job, relative to the price
///   here. 500 where no price is known.
/// - `data`: 1,000 · r / (r + m) with the run time r and the time m to bring the data here, or the same of
///   money, whichever is less.
/// - `topology`: 500 / blocks + 500 / racks that the gang is spread over; 1,000 on one node.
/// - `spread`: 1,000 · (1 - w / W) with the work w that the gang's owner has in the cluster, and W everywhere: what
///   one cluster takes down is little of it.
/// - `affinity`: for a job with wishes about where other jobs are, the sum of each one's weight times the share of the
///   workers that meet it, relative to the sum of the weights.
/// - `image`: for a job with images that some hosts hold already, the share of the workers that are on such hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Score {
    /// Sum of weight times value.
    pub total: i64,
    /// The terms, in a fixed order.
    pub parts: Vec<ScorePart>,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} =", self.total)?;
        for (place, part) in self.parts.iter().enumerate() {
            let joint = if place == 0 { "" } else { " +" };
            write!(f, "{joint} {} {}x{}", part.name, part.weight, part.value_milli)?;
        }
        Ok(())
    }
}

/// The values of the terms, 0 to 1,000 each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) packing: u32,
    pub(crate) throughput: u32,
    pub(crate) cost: u32,
    pub(crate) data: u32,
    pub(crate) topology: u32,
    pub(crate) spread: u32,
    pub(crate) affinity: u32,
    /// Of all wishes about where other jobs are; zero for a job without.
    pub(crate) affinity_weight: u16,
    pub(crate) image: u32,
    /// Zero for a job without images, and where no host is known to hold them.
    pub(crate) image_weight: u16,
}

impl Values {
    fn parts(&self, weights: &PlacementWeights) -> [ScorePart; 8] {
        let part = |name, weight, value_milli| ScorePart { name, weight, value_milli };
        [
            part("packing", weights.packing, self.packing),
            part("throughput", weights.throughput, self.throughput),
            part("cost", weights.cost, self.cost),
            part("data", weights.data, self.data),
            part("topology", weights.topology, self.topology),
            part("spread", weights.spread, self.spread),
            part("affinity", self.affinity_weight, self.affinity),
            part("image", self.image_weight, self.image),
        ]
    }

    pub(crate) fn total(&self, weights: &PlacementWeights) -> i64 {
        self.parts(weights).iter().map(|part| i64::from(part.weight) * i64::from(part.value_milli)).sum()
    }

    pub(crate) fn score(&self, weights: &PlacementWeights) -> Score {
        let mut parts = self.parts(weights).to_vec();
        // A job that wishes nothing has no such term.
        parts.retain(|part| match part.name {
            "affinity" => self.affinity_weight > 0,
            "image" => self.image_weight > 0,
            _ => true,
        });
        Score { total: self.total(weights), parts }
    }
}

/// Price of a unit of work at a site, in millionths of a dollar for one device-hour of the reference type;
/// none when it is not known.
pub(crate) fn work_price(spec: &JobSpec, terms: &Terms<'_>, site: &Site<'_>) -> Option<u64> {
    let kind = site.kind?;
    let price = expected_price(spec, terms, site, kind)?;
    let per_work = price.saturating_mul(1_000) / u128::from(site.throughput_milli.max(1));
    Some(u64::try_from(per_work).unwrap_or(u64::MAX))
}

/// The lowest price of a device-hour among the purchases that the job allows and that the region has nodes of, each with what
/// interruptions cost. Where the policy has a price for no purchase, a job that names none goes by that.
fn expected_price(spec: &JobSpec, terms: &Terms<'_>, site: &Site<'_>, kind: &Name) -> Option<u128> {
    let table = terms.policy.price_table();
    let allowed = spec.capacity.as_deref().and_then(CapacityRules::allowed);
    if allowed.is_none()
        && let Some(plain) = table.get(kind, site.region, None, terms.now)
    {
        return Some(plain.into());
    }
    let (mut there, mut anywhere): (Option<u128>, Option<u128>) = (None, None);
    for purchase in allowed.unwrap_or(PurchaseSet::ALL).iter() {
        let Some(price) = table.get(kind, site.region, Some(purchase), terms.now) else { continue };
        let key = CapacityKey { region: site.region.clone(), kind: Some(kind.clone()), purchase };
        let known = (terms.interruptions)(&key);
        let rate_milli = known.per_day_milli.unwrap_or(0);
        let price = with_losses(price, rate_milli, spec.worker_count(), lost_ms(spec, terms, site));
        let least = |so_far: Option<u128>| Some(so_far.map_or(price, |least| least.min(price)));
        anywhere = least(anywhere);
        if known.nodes_up > 0 {
            there = least(there);
        }
    }
    // Nodes need not state their purchase.
    there.or(anywhere)
}

/// What one interruption loses of the gang's time, as far as the job itself says it: the start, and half of what it does between
/// two checkpoints, which counts as an hour; without checkpoints half of its run.
fn lost_ms(spec: &JobSpec, terms: &Terms<'_>, site: &Site<'_>) -> u64 {
    let run_ms = terms.run_on(spec, site.throughput_milli);
    let lost_ms = if spec.is_checkpointed() { CHECKPOINT_LOST_MS.min(run_ms) } else { run_ms / 2 };
    lost_ms.saturating_add(RESTART_MS)
}

/// The price of work with the work that is done twice: each worker's node is taken away at this rate, and takes the whole gang down.
fn with_losses(price: u64, rate_milli: u32, workers: u32, lost_ms: u64) -> u128 {
    let price = u128::from(price);
    let times_milli = u128::from(rate_milli) * u128::from(workers);
    let lost =
        price.saturating_mul(times_milli).saturating_mul(lost_ms.into()) / (1_000 * u128::from(DAY_MS));
    price.saturating_add(lost)
}

/// The terms that need no plan; `cheapest` is the lowest price of work among the sites, `best_milli` the
/// highest throughput that the job names.
pub(crate) fn values(
    spec: &JobSpec,
    terms: &Terms<'_>,
    site: &Site<'_>,
    cheapest: Option<u64>,
    workers: u32,
) -> Values {
    let weights = &terms.policy.weights;
    let wanted = spec.worker_count().max(1);
    let used = spec.device_milli_of(workers);
    let left = site.idle_devices.saturating_mul(1_000).saturating_sub(used);
    let cost = || match (work_price(spec, terms, site), cheapest) {
        (Some(price), Some(cheapest)) => ratio(cheapest, price),
        _ => NEUTRAL,
    };
    Values {
        packing: if used == 0 { site.plain_milli() } else { ratio(used, used.saturating_add(left)) },
        throughput: ratio(
            u64::from(site.throughput_milli) * u64::from(workers),
            u64::from(site.best_milli) * u64::from(wanted),
        ),
        cost: if weights.cost == 0 { NEUTRAL } else { cost() },
        data: if weights.data == 0 || spec.datasets.is_empty() {
            FULL
        } else {
            data(spec, terms, site, used)
        },
        topology: FULL,
        spread: if weights.spread == 0 { FULL } else { spread(terms, site) },
        // The most that there could be: what it is a plan says.
        affinity: FULL,
        affinity_weight: u16::try_from(weights_of(terms)).unwrap_or(u16::MAX),
        image: FULL,
        image_weight: terms.image.and_then(|term| term.weight).map_or(0, u16::from),
    }
}

/// The sum of the weights of what a gang wishes of where other jobs are.
fn weights_of(terms: &Terms<'_>) -> u32 {
    terms.affinity.iter().filter_map(|term| term.weight).map(u32::from).sum()
}

/// How much of what a gang wishes of where other jobs are is met by workers on these nodes.
pub(crate) fn met_by<'n>(terms: &Terms<'_>, nodes: impl Iterator<Item = &'n Arc<NodeSpec>>) -> u32 {
    let whole = weights_of(terms);
    if whole == 0 {
        return FULL;
    }
    let (mut met, mut workers) = (0_u64, 0_u64);
    for node in nodes {
        workers += 1;
        for term in terms.affinity.iter().filter(|term| !term.excludes(node)) {
            met += u64::from(term.weight.unwrap_or(0));
        }
    }
    ratio(met, workers.saturating_mul(u64::from(whole)))
}

/// The share of the workers on these nodes that find their images there.
pub(crate) fn held_by<'n>(terms: &Terms<'_>, nodes: impl Iterator<Item = &'n Arc<NodeSpec>>) -> u32 {
    let Some(term) = terms.image else { return FULL };
    let (mut there, mut workers) = (0_u64, 0_u64);
    for node in nodes {
        workers += 1;
        there += u64::from(!term.excludes(node));
    }
    ratio(there, workers)
}

/// How little of the owner's work is in the cluster.
fn spread(terms: &Terms<'_>, site: &Site<'_>) -> u32 {
    let (here, everywhere) = (terms.own_work)(site.region, site.cluster);
    if everywhere == 0 { FULL } else { FULL - ratio(here, everywhere) }
}

/// Data to move, against the run it is moved for.
fn data(spec: &JobSpec, terms: &Terms<'_>, site: &Site<'_>, used_milli: u64) -> u32 {
    let moved = terms.policy.data_move(&spec.datasets, site.region);
    if moved.bytes == 0 {
        return FULL;
    }
    let run_ms = terms.run_on(spec, site.throughput_milli);
    let time = ratio(run_ms, run_ms.saturating_add(moved.ms));
    let run_price =
        site.kind.and_then(|kind| terms.policy.price(kind, site.region, terms.now)).map(|price| {
            let device_ms = u128::from(used_milli) * u128::from(run_ms) / 1_000;
            u64::try_from(u128::from(price).saturating_mul(device_ms) / 3_600_000).unwrap_or(u64::MAX)
        });
    // Without a price of the run, a transfer for a dollar counts half.
    let run_price = run_price.unwrap_or(1_000_000);
    let money = ratio(run_price, run_price.saturating_add(moved.micro_dollars));
    // Where the data is comes before where it could be at no cost.
    time.min(money).min(FULL - 1)
}

/// The term for packing of a job without devices.
pub(crate) fn on_plain_hosts(plain: usize, workers: usize) -> u32 {
    ratio(plain as u64, workers as u64)
}

/// Part of the whole in thousandths, at most 1,000; all of nothing.
fn ratio(part: u64, whole: u64) -> u32 {
    if whole == 0 {
        return FULL;
    }
    let milli = u128::from(part) * u128::from(FULL) / u128::from(whole);
    u32::try_from(milli).unwrap_or(FULL).min(FULL)
}

/// The term for nearness.
pub(crate) fn nearness(blocks: usize, racks: usize, nodes: usize) -> u32 {
    if nodes <= 1 {
        return FULL;
    }
    let half = |domains: usize| 500 / u32::try_from(domains.max(1)).unwrap_or(u32::MAX);
    half(blocks) + half(racks)
}
