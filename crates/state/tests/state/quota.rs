//! Quotas against a model that counts everything again from the definitions, on small random trees.

use std::collections::{BTreeMap, BTreeSet};

use muster_state::Side;
use muster_state::quota::{QuotaLimit, QuotaStatus, QuotaUsage};
use muster_types::Name;
use muster_types::policy::{Policy, PolicyDraft, Quota, TenantPolicy};
use proptest::prelude::*;

const REGIONS: [&str; 2] = ["eu", "us"];
/// The last is in no policy.
const TENANTS: [&str; 8] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "unlisted"];

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn kind() -> Name {
    name("h100")
}

/// `(tenant, region)` by index, and thousandths.
type Use = (usize, usize, u64);

#[derive(Debug)]
struct World {
    policy: Policy,
    /// By region.
    devices: [u64; 2],
}

impl World {
    fn capacity(&self, region: Option<&Name>) -> u64 {
        let of =
            |(text, devices): (&&str, &u64)| region.is_none_or(|r| r.as_str() == *text).then_some(*devices);
        REGIONS.iter().zip(&self.devices).filter_map(of).sum()
    }

    fn children(&self, parent: Option<&Name>) -> Vec<Name> {
        let below = self.policy.tenants.iter().filter(|(_, t)| t.parent.as_ref() == parent);
        let mut children: Vec<Name> = below.map(|(text, _)| text.clone()).collect();
        if parent.is_none() {
            children.push(name("unlisted"));
        }
        children
    }

    fn quota(&self, tenant: Option<&Name>, region: Option<&Name>) -> Option<&Quota> {
        let quotas = &self.policy.tenants.get(tenant?)?.quotas;
        quotas.iter().find(|quota| quota.region.as_ref() == region)
    }

    fn promised(&self, tenant: &Name, region: Option<&Name>) -> Option<u64> {
        if let Some(quota) = self.quota(Some(tenant), region) {
            return Some(quota.nominal_milli);
        }
        let below: Vec<u64> =
            self.children(Some(tenant)).iter().filter_map(|child| self.promised(child, region)).collect();
        (!below.is_empty()).then(|| below.iter().sum())
    }

    fn counts(use_: &Use, tenant: Option<&Name>, region: Option<&Name>) -> bool {
        tenant.is_none_or(|t| t.as_str() == TENANTS[use_.0])
            && region.is_none_or(|r| r.as_str() == REGIONS[use_.1])
    }

    fn used(&self, uses: &[Use], tenant: Option<&Name>, region: Option<&Name>) -> u64 {
        let own: u64 = match tenant {
            None => 0,
            Some(_) => {
                uses.iter().filter(|use_| World::counts(use_, tenant, region)).map(|use_| use_.2).sum()
            }
        };
        own + self.children(tenant).iter().map(|child| self.used(uses, Some(child), region)).sum::<u64>()
    }

    fn committed(&self, uses: &[Use], tenant: Option<&Name>, region: Option<&Name>) -> u64 {
        let own: u64 = match tenant {
            None => 0,
            Some(_) => {
                uses.iter().filter(|use_| World::counts(use_, tenant, region)).map(|use_| use_.2).sum()
            }
        };
        let below = self.children(tenant).into_iter().map(|child| {
            let reserve = self
                .quota(Some(&child), region)
                .map_or(0, |quota| quota.lending_limit_milli.map_or(0, |lent| quota.nominal_milli - lent));
            self.committed(uses, Some(&child), region).max(reserve)
        });
        own + below.sum::<u64>()
    }

    /// By the definition in the module's text.
    fn admits(&self, uses: &[Use], use_: Use) -> bool {
        let mut then = uses.to_vec();
        then.push(use_);
        let region = name(REGIONS[use_.1]);
        let user = name(TENANTS[use_.0]);
        [Some(&region), None].into_iter().all(|region| {
            let tenants_fit = self.policy.ancestry(&user).all(|tenant| {
                let (before, after) =
                    (self.committed(uses, Some(tenant), region), self.committed(&then, Some(tenant), region));
                let most = self
                    .quota(Some(tenant), region)
                    .and_then(|quota| Some(quota.nominal_milli + quota.borrowing_limit_milli?));
                after == before || most.is_none_or(|most| after <= most)
            });
            let (before, after) = (self.committed(uses, None, region), self.committed(&then, None, region));
            tenants_fit
                && (after == before || after <= self.capacity(region))
                && self.used(&then, None, region) <= self.capacity(region)
        })
    }

    fn above_nominal(&self, uses: &[Use], tenant: &Name, region: &Name) -> u64 {
        let regions = [Some(region), None];
        let above = regions.iter().filter_map(|&region| {
            let promised = self.promised(tenant, region)?;
            Some(self.committed(uses, Some(tenant), region).saturating_sub(promised))
        });
        above.max().unwrap_or_else(|| self.used(uses, Some(tenant), Some(region)))
    }

    fn usage(&self, uses: &[Use]) -> QuotaUsage {
        let mut usage = QuotaUsage::new(&self.policy);
        for &(tenant, region, milli) in uses {
            usage.add(&name(TENANTS[tenant]), &kind(), &name(REGIONS[region]), milli);
        }
        usage
    }

    fn headroom(
        &self,
        usage: &QuotaUsage,
        tenant: usize,
        region: usize,
    ) -> muster_state::quota::QuotaHeadroom {
        let capacity = |_: &Name, region: Option<&Name>| self.capacity(region);
        usage.headroom(capacity, &name(TENANTS[tenant]), &kind(), &name(REGIONS[region]))
    }
}

/// Quotas as `(flavour, nominal, borrowing, lending)`; those that break a rule are made smaller.
type RawQuota = (usize, u64, Option<u64>, Option<u64>);

fn world(flavours: std::ops::Range<usize>) -> impl Strategy<Value = World> {
    let quota = (flavours, 0u64..12, prop::option::of(0u64..8), prop::option::of(0u64..8));
    let tenant = (0usize..8, prop::collection::vec(quota, 0..3));
    (prop::collection::vec(tenant, 7), [0u64..30, 0u64..30])
        .prop_map(|(tenants, devices)| World { policy: sound(&tenants), devices })
}

/// A policy of these tenants, the parent of each one before it; nominal quotas raised to hold what is
/// below them.
fn sound(raw: &[(usize, Vec<RawQuota>)]) -> Policy {
    let mut draft = PolicyDraft::default();
    for (index, (parent, quotas)) in raw.iter().enumerate() {
        let mut seen = BTreeSet::new();
        let quotas =
            quotas.iter().filter(|quota| seen.insert(quota.0)).map(|&(flavour, nominal, borrow, lend)| {
                Quota {
                    kind: kind(),
                    region: REGIONS.get(flavour).map(|text| name(text)),
                    nominal_milli: nominal,
                    borrowing_limit_milli: borrow,
                    lending_limit_milli: lend.map(|lend| lend.min(nominal)),
                }
            });
        let tenant = TenantPolicy {
            parent: (*parent < index).then(|| name(TENANTS[*parent])),
            quotas: quotas.collect(),
            ..TenantPolicy::default()
        };
        draft.tenants.insert(name(TENANTS[index]), tenant);
    }
    // Children come after their parents, so one pass from the last to the first is enough.
    let mut below: BTreeMap<(Name, Option<Name>), u64> = BTreeMap::new();
    for index in (0..raw.len()).rev() {
        let own = name(TENANTS[index]);
        let tenant = draft.tenants.get_mut(&own).unwrap();
        for flavour in 0..=REGIONS.len() {
            let region = REGIONS.get(flavour).map(|text| name(text));
            let mut promised = below.remove(&(own.clone(), region.clone())).unwrap_or(0);
            if let Some(quota) = tenant.quotas.iter_mut().find(|quota| quota.region == region) {
                quota.nominal_milli = quota.nominal_milli.max(promised);
                promised = quota.nominal_milli;
            }
            if let Some(parent) = &tenant.parent {
                *below.entry((parent.clone(), region)).or_default() += promised;
            }
        }
    }
    // `unlisted` works as well and is not in the policy: it stands on the first level by itself.
    draft.check().unwrap()
}

/// Tenants that the policy does not name use the quota of one tenant together.
#[test]
fn unlisted_tenants_share_one_quota() {
    let quota = |nominal_milli| Quota {
        kind: kind(),
        region: None,
        nominal_milli,
        borrowing_limit_milli: Some(0),
        lending_limit_milli: None,
    };
    let mut draft = PolicyDraft::default();
    for (tenant, nominal_milli) in [("lab", 12), ("unlisted", 4)] {
        let quotas = vec![quota(nominal_milli)];
        draft.tenants.insert(name(tenant), TenantPolicy { quotas, ..TenantPolicy::default() });
    }
    let mut usage = QuotaUsage::new(&draft.check().unwrap());
    let (capacity, eu) = (|_: &Name, _: Option<&Name>| 16, name("eu"));
    usage.add(&name("ann"), &kind(), &eu, 3);
    assert!(usage.admits(capacity, &name("bob"), &kind(), &eu, 1).is_ok());
    let refused = usage.admits(capacity, &name("bob"), &kind(), &eu, 2).unwrap_err();
    assert_eq!((refused.tenant, refused.used_milli, refused.limit_milli), (Some(name("unlisted")), 3, 4));
    assert!(usage.admits(capacity, &name("lab"), &kind(), &eu, 12).is_ok());
    assert_eq!(usage.used_milli(&name("unlisted"), &kind(), None), 3);
}

fn uses() -> impl Strategy<Value = Vec<Use>> {
    prop::collection::vec((0..TENANTS.len(), 0..REGIONS.len(), 1u64..9), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn room_is_what_the_definition_admits(world in world(0..3), uses in uses(), admitted_only: bool) {
        // Also from states that no admission led to: nodes and quotas come and go.
        let mut current: Vec<Use> = Vec::new();
        for use_ in uses {
            if !admitted_only || world.admits(&current, use_) {
                current.push(use_);
            }
        }
        let usage = world.usage(&current);
        for (tenant, own) in TENANTS.iter().enumerate() {
            for (region, place) in REGIONS.iter().enumerate() {
                let headroom = world.headroom(&usage, tenant, region);
                let total = headroom.total_milli();
                let most = (0..80).take_while(|&milli| milli == 0 || world.admits(&current, (tenant, region, milli)));
                prop_assert_eq!(total, most.last().unwrap(), "{} {:?}", own, headroom);
                let (own, place) = (name(own), name(place));
                let nominal = [Some(&place), None].into_iter().filter_map(|region| {
                    let promised = world.promised(&own, region)?;
                    Some(promised.saturating_sub(world.committed(&current, Some(&own), region)))
                });
                prop_assert_eq!(headroom.nominal_milli, nominal.min().unwrap_or(0).min(total));
                let block = headroom.blocked_by;
                let count = |tenant: Option<&Name>| {
                    let region = block.region.as_ref();
                    (world.used(&current, tenant, region), world.committed(&current, tenant, region))
                };
                let (used, committed) = count(block.tenant.as_ref());
                prop_assert_eq!((block.used_milli, block.kept_milli), (used, committed - used));
                let for_reserves = used + total < block.limit_milli;
                prop_assert_eq!(block.limit == QuotaLimit::LentReserve, for_reserves, "{:?}", block);
                let expected = match world.above_nominal(&current, &own, &place) {
                    0 => QuotaStatus::WithinNominal,
                    by_milli => QuotaStatus::Borrowing { by_milli },
                };
                prop_assert_eq!(usage.standing(&own, &kind(), &place), expected);
            }
        }
    }

    #[test]
    fn counting_step_by_step_is_counting_anew(
        first in world(0..3),
        second in world(0..3),
        uses in uses(),
        ended in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut left = uses.clone();
        let mut usage = first.usage(&uses);
        let untouched = usage.clone();
        for index in ended {
            if left.is_empty() {
                break;
            }
            let (tenant, region, milli) = left.swap_remove(index.index(left.len()));
            usage.remove(&name(TENANTS[tenant]), &kind(), &name(REGIONS[region]), milli);
        }
        prop_assert_eq!(&usage, &first.usage(&left));
        prop_assert_eq!(usage.under(&second.policy), second.usage(&left));
        prop_assert_eq!(untouched, first.usage(&uses));
        for (tenant, region) in TENANTS.iter().zip([Some("eu"), None, Some("us")].iter().cycle()) {
            let (tenant, region) = (name(tenant), region.map(name));
            let expected = first.used(&left, Some(&tenant), region.as_ref());
            prop_assert_eq!(usage.used_milli(&tenant, &kind(), region.as_ref()), expected);
        }
    }

    #[test]
    fn no_sequence_of_admitted_uses_breaks_a_limit(
        world in world(0..3),
        uses in prop::collection::vec((0..TENANTS.len(), 0..REGIONS.len(), 1u64..9, any::<bool>()), 0..60),
    ) {
        let mut usage = QuotaUsage::new(&world.policy);
        let mut current: Vec<Use> = Vec::new();
        let capacity = |_: &Name, region: Option<&Name>| world.capacity(region);
        for (tenant, region, milli, ends) in uses {
            if ends && !current.is_empty() {
                let (tenant, region, milli) = current.swap_remove(tenant % current.len());
                usage.remove(&name(TENANTS[tenant]), &kind(), &name(REGIONS[region]), milli);
            }
            let (own, place) = (name(TENANTS[tenant]), name(REGIONS[region]));
            if usage.admits(capacity, &own, &kind(), &place, milli).is_ok() {
                usage.add(&own, &kind(), &place, milli);
                current.push((tenant, region, milli));
            }
            for region in [Some(name("eu")), Some(name("us")), None] {
                let region = region.as_ref();
                prop_assert!(world.used(&current, None, region) <= world.capacity(region));
                for tenant in world.policy.tenants.keys() {
                    let most = world
                        .quota(Some(tenant), region)
                        .and_then(|quota| Some(quota.nominal_milli + quota.borrowing_limit_milli?));
                    let used = world.used(&current, Some(tenant), region);
                    prop_assert!(most.is_none_or(|most| used <= most), "{tenant} uses {used}");
                }
            }
        }
    }

    /// What "nominal quota is guaranteed" means: in one flavour, with no more promised than exists, one
    /// within its nominal quota is refused only while someone borrows, and gets its due by taking back
    /// from any of those it may reclaim from, whichever they are.
    #[test]
    fn reclaim_gives_everyone_their_nominal_quota(
        (flavour, mut world) in (0usize..2).prop_flat_map(|flavour| {
            // Flavour 2 is all regions; all the devices and the work are in the first region.
            let flavour = flavour * 2;
            (Just(flavour), world(flavour..flavour + 1))
        }),
        extra in 0u64..6,
        uses in uses(),
        who in any::<prop::sample::Index>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 24),
    ) {
        let place = name(REGIONS[0]);
        let region = (flavour == 0).then_some(&place);
        let promised = world.children(None).iter().filter_map(|root| world.promised(root, region)).sum::<u64>();
        world.devices = [promised + extra, 0];
        let mut current: Vec<Use> = Vec::new();
        for (tenant, _, milli) in uses {
            if world.admits(&current, (tenant, 0, milli)) {
                current.push((tenant, 0, milli));
            }
        }
        let unused = |claimant: usize| {
            let own = name(TENANTS[claimant]);
            let promised = world.promised(&own, region)?;
            let left = promised.saturating_sub(world.committed(&current, Some(&own), region));
            (left > 0).then_some((claimant, own, left))
        };
        let claimants: Vec<(usize, Name, u64)> = (0..TENANTS.len()).filter_map(unused).collect();
        prop_assume!(!claimants.is_empty());
        let (claimant, own, milli) = claimants[who.index(claimants.len())].clone();
        let mut usage = world.usage(&current);
        for pick in picks.iter().cycle() {
            if world.headroom(&usage, claimant, 0).total_milli() >= milli {
                break;
            }
            let may: Vec<usize> = (0..current.len())
                .filter(|&use_| {
                    may_reclaim(&usage, &own, &name(TENANTS[current[use_].0]), &place, milli)
                })
                .collect();
            prop_assert!(!may.is_empty(), "{own} is refused {milli} and may take nothing back");
            let (victim, _, ended) = current.swap_remove(may[pick.index(may.len())]);
            // A tenant above the claimant has only borrowed; of others, those above nominal.
            let theirs = below_common(&world.policy, &name(TENANTS[victim]), &own);
            let before = [current.clone(), vec![(victim, 0, ended)]].concat();
            prop_assert!(theirs.is_none_or(|theirs| world.above_nominal(&before, &theirs, &place) > 0));
            usage.remove(&name(TENANTS[victim]), &kind(), &place, ended);
        }
    }
}

/// The tenant directly below the lowest common ancestor on the side of `of`; none when that is `of`.
fn below_common(policy: &Policy, of: &Name, other: &Name) -> Option<Name> {
    let others: BTreeSet<&Name> = policy.ancestry(other).collect();
    policy.ancestry(of).take_while(|tenant| !others.contains(tenant)).last().cloned()
}

/// `lab` 12 of 20 devices, lends 5; below it `vision` 8, may borrow 2, and `text` 4, keeps 3. `ops` 6,
/// never borrows. In thousandths, which here stand for devices.
fn lab() -> World {
    let tenant = |parent: &str, nominal, borrowing_limit_milli, lending_limit_milli| TenantPolicy {
        parent: Name::new(parent),
        quotas: vec![Quota {
            kind: kind(),
            region: None,
            nominal_milli: nominal,
            borrowing_limit_milli,
            lending_limit_milli,
        }],
        ..TenantPolicy::default()
    };
    let tenants = [
        (name("lab"), tenant("", 12, None, Some(5))),
        (name("vision"), tenant("lab", 8, Some(2), None)),
        (name("text"), tenant("lab", 4, None, Some(1))),
        (name("ops"), tenant("", 6, Some(0), None)),
    ];
    let policy = PolicyDraft { tenants: tenants.into(), ..PolicyDraft::default() }.check().unwrap();
    World { policy, devices: [20, 0] }
}

/// Uses as `vision 8`, then one line: who has which headroom, and what refuses more.
#[track_caller]
fn says(uses: &str, who: &str, expected: &str) {
    let world = lab();
    let mut usage = QuotaUsage::new(&world.policy);
    for line in uses.split(',').filter(|line| !line.is_empty()) {
        let (tenant, milli) = line.trim().split_once(' ').unwrap();
        usage.add(&name(tenant), &kind(), &name("eu"), milli.parse().unwrap());
    }
    let headroom = usage.headroom(|_, region| world.capacity(region), &name(who), &kind(), &name("eu"));
    let block = headroom.blocked_by;
    let whose = block.tenant.map_or("fleet".to_owned(), |tenant| tenant.to_string());
    let told = format!(
        "{} + {}, then {:?} of {whose}: {} + {} of {}",
        headroom.nominal_milli,
        headroom.borrowable_milli,
        block.limit,
        block.used_milli,
        block.kept_milli,
        block.limit_milli
    );
    assert_eq!(told, expected, "{who} after {uses}");
}

#[test]
fn the_numbers_of_one_small_fleet() {
    says("", "vision", "8 + 2, then Borrowing of vision: 0 + 0 of 10");
    says("vision 8", "vision", "0 + 2, then Borrowing of vision: 8 + 0 of 10");
    says("", "ops", "6 + 0, then Nominal of ops: 0 + 0 of 6");
    // lab keeps 7 of its 12 from those outside.
    says("", "guest", "0 + 13, then LentReserve of fleet: 0 + 7 of 20");
    says("guest 13", "guest", "0 + 0, then LentReserve of fleet: 13 + 7 of 20");
    // Inside, text keeps 3 of its 4: of lab's reserve of 7 the others of lab can have 4.
    says("guest 13", "vision", "4 + 0, then LentReserve of fleet: 13 + 7 of 20");
    says("guest 13, vision 4", "text", "3 + 0, then ParentCapacity of fleet: 17 + 0 of 20");
    says("guest 13, vision 4, text 3", "text", "0 + 0, then ParentCapacity of fleet: 20 + 0 of 20");
    // What text keeps counts on top of what the rest of lab uses, or lab itself.
    says("vision 10, guest 2", "ops", "5 + 0, then LentReserve of fleet: 12 + 3 of 20");
    says("lab 12", "ops", "5 + 0, then LentReserve of fleet: 12 + 3 of 20");
}

/// Whether a claimant may have a victim's use ended for the claimant's own use: where they meet in the tree,
/// the victim's side borrows, and the claimant's side has nominal quota for its use. What a tenant with
/// others below it uses itself is borrowed from those. After each victim's use is removed, ask again.
fn may_reclaim(usage: &QuotaUsage, claimant: &Name, victim: &Name, region: &Name, milli: u64) -> bool {
    let Some((our @ Side::Subtree(_), their)) = usage.sides(claimant, victim) else { return false };
    let borrows = match &their {
        Side::Subtree(their) => usage.standing(their, &kind(), region) != QuotaStatus::WithinNominal,
        Side::Own(_) => true,
    };
    borrows && usage.keeps_within(&our, claimant, &kind(), region, milli)
}

#[test]
fn what_is_borrowed_may_be_taken_back_by_whom_it_was_promised_to() {
    let world = lab();
    let usage = |uses: &[(&str, u64)]| {
        let mut usage = QuotaUsage::new(&world.policy);
        for &(tenant, milli) in uses {
            usage.add(&name(tenant), &kind(), &name("eu"), milli);
        }
        usage
    };
    let may = |usage: &QuotaUsage, claimant: &str, victim: &str, milli: u64| {
        may_reclaim(usage, &name(claimant), &name(victim), &name("eu"), milli)
    };
    let full = usage(&[("guest", 10), ("vision", 10)]);
    // guest has no quota, so all of it is borrowed; lab and ops have.
    assert!(may(&full, "ops", "guest", 6) && !may(&full, "ops", "guest", 7));
    assert!(!may(&full, "vision", "guest", 1) && !may(&full, "guest", "ops", 1));
    // vision uses 10 of its 8, but lab as a whole, with 3 kept for text, 13 of its 12.
    assert!(may(&full, "ops", "vision", 1));
    assert!(may(&full, "text", "vision", 4) && !may(&full, "text", "vision", 5));
    assert!(!may(&full, "vision", "text", 1) && !may(&full, "vision", "vision", 1));
    // 8 and 4 are lab's 12: within nominal for those outside, no matter who inside has them.
    let even = usage(&[("vision", 9), ("text", 3)]);
    assert!(!may(&even, "ops", "vision", 1) && may(&even, "text", "vision", 1));
    // What lab itself runs is borrowed from those below it, and not from its siblings.
    let own = usage(&[("lab", 9)]);
    assert!(may(&own, "vision", "lab", 8) && !may(&own, "ops", "lab", 1) && !may(&own, "lab", "vision", 1));
    assert!(!may(&usage(&[]), "ops", "guest", 1), "nothing is borrowed");
}

#[test]
#[should_panic(expected = "gives back only what it uses")]
fn what_was_not_taken_cannot_be_given_back() {
    let mut usage = QuotaUsage::new(&Policy::default());
    usage.add(&name("a"), &kind(), &name("eu"), 2);
    usage.remove(&name("a"), &kind(), &name("us"), 1);
}

#[test]
fn use_is_listed_by_who_has_it() {
    let mut usage = QuotaUsage::new(&Policy::default());
    let before = usage.clone();
    usage.add(&name("b"), &kind(), &name("eu"), 2);
    usage.add(&name("a"), &kind(), &name("us"), 1);
    usage.add(&name("b"), &kind(), &name("eu"), 3);
    usage.add(&name("c"), &kind(), &name("eu"), 0);
    let listed: Vec<String> = usage
        .own()
        .map(|((tenant, kind, region), milli)| format!("{tenant} {kind} {region} {milli}"))
        .collect();
    assert_eq!(listed, ["a h100 us 1", "b h100 eu 5"]);
    usage.remove(&name("b"), &kind(), &name("eu"), 5);
    usage.remove(&name("a"), &kind(), &name("us"), 1);
    assert_eq!(usage, before);
}
