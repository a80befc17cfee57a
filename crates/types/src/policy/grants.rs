//! Grants of quota: what a tenant is guaranteed for some time in addition to what the policy states.
//!
//! The *effective* policy is the one that was set with every grant in force added to the nominal quotas. Everything that
//! asks what a tenant is guaranteed asks the effective policy. Rules about the tree hold for it as they do for the one
//! that was set: what a tenant is granted is a part of what the nearest tenant above it is guaranteed that states a quota
//! of the same type and region.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use super::{
    POLICY_DURATION_MS_MAX, Policy, PolicyDraft, QUOTA_MILLI_MAX, QUOTAS_MAX, Quota, TENANT_QUOTAS_MAX,
};
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// Quota that a tenant asks for or is granted, for some time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QuotaGrant {
    /// Whose.
    pub tenant: Name,
    /// The type of accelerator.
    pub kind: Name,
    /// The region; none counts all regions together, as in a quota.
    pub region: Option<Name>,
    /// How much is added to the nominal quota, in thousandths of a device.
    pub amount_milli: u64,
    /// The first moment at which it is over.
    pub until: LogTime,
    /// Why; one line.
    pub reason: String,
}

impl QuotaGrant {
    /// Every rule that it breaks by itself.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if !(1..=QUOTA_MILLI_MAX).contains(&self.amount_milli) {
            found.push(Violation::limit("amount_milli", self.amount_milli, 1, QUOTA_MILLI_MAX));
        }
        found.extend(reason_violation("reason", &self.reason));
        found
    }

    /// The rule that its end breaks at a moment: it ends later than that, and no more than 366 days later.
    #[must_use]
    pub fn end_violation(&self, now: LogTime) -> Option<Violation> {
        if self.until <= now {
            let text = format!("must be in the future, got {}; it is {now}", self.until);
            return Some(Violation::new("end_time", text));
        }
        let most = now.plus_ms(POLICY_DURATION_MS_MAX);
        (self.until > most).then(|| {
            Violation::new("end_time", format!("must be at most 366 days ahead, {most}, got {}", self.until))
        })
    }
}

/// The rule that a reason breaks.
#[must_use]
pub fn reason_violation(field: &str, reason: &str) -> Option<Violation> {
    let bytes = reason.len();
    if !(1..=limits::DETAIL_BYTES_MAX).contains(&bytes) {
        let text = format!("must be 1 to {} bytes, got {bytes}", limits::DETAIL_BYTES_MAX);
        return Some(Violation::new(field, text));
    }
    reason.chars().any(char::is_control).then(|| Violation::new(field, "must be one line of text"))
}

/// What a grant comes out of: the nearest tenant above that states a quota of its type and region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSource {
    /// That tenant.
    pub tenant: Name,
    /// What it is guaranteed, in thousandths of a device.
    pub nominal_milli: u64,
    /// What the tenants below it are guaranteed of that, together.
    pub given_milli: u64,
}

impl QuotaSource {
    /// What may be granted of it.
    #[must_use]
    pub fn left_milli(&self) -> u64 {
        self.nominal_milli.saturating_sub(self.given_milli)
    }
}

/// Why a grant cannot be added to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantFault {
    /// The policy does not list the tenant.
    TenantUnknown,
    /// The tenant, or one above or below it, has quotas of this type for other regions alone: a quota for these would
    /// take from it as well as give.
    OtherRegions {
        /// The first of the regions that they are for; none for all regions together.
        has: Option<Name>,
    },
    /// The tenant above has less left than that.
    AboveSource(QuotaSource),
    /// The tenant or the policy would have more quotas, or a larger one, than there may be.
    TooLarge,
}

impl fmt::Display for GrantFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantFault::TenantUnknown => f.write_str("the policy does not list the tenant"),
            GrantFault::OtherRegions { has: Some(region) } => {
                write!(f, "quotas of this type are stated for regions such as {region}; name the region")
            }
            GrantFault::OtherRegions { has: None } => {
                f.write_str("the quota of this type is for all regions together; leave the region out")
            }
            GrantFault::AboveSource(source) => {
                let QuotaSource { tenant, nominal_milli, given_milli } = source;
                write!(
                    f,
                    "tenant {tenant} is guaranteed {} devices, and those below it {} of them: {} are left",
                    Milli(*nominal_milli),
                    Milli(*given_milli),
                    Milli(source.left_milli())
                )
            }
            GrantFault::TooLarge => write!(
                f,
                "a quota is at most {} devices, and a tenant has at most {TENANT_QUOTAS_MAX} quotas",
                Milli(QUOTA_MILLI_MAX)
            ),
        }
    }
}

/// Thousandths as people write them: `64`, `0.5`.
struct Milli(u64);

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// Of each tenant, what those below it are guaranteed together of one type, by region: of each branch what the topmost tenant
/// states that states a quota of the region. A region is there once somebody below states a quota of it.
type BelowSums = BTreeMap<Name, BTreeMap<Option<Name>, u64>>;

/// A policy to which grants are added one after the other: those of tenants above before those of tenants below, for what is granted
/// above can be granted below. Whether all of them can be added depends on no other order.
pub struct GrantedPolicy<'a> {
    policy: &'a Policy,
    draft: PolicyDraft,
    quotas: usize,
    /// By type that was asked about, counted once and then kept: a policy can have ten thousand tenants below one, and a
    /// thousand grants.
    below: BTreeMap<Name, BelowSums>,
}

impl<'a> GrantedPolicy<'a> {
    /// The policy without a grant.
    #[must_use]
    pub fn of(policy: &'a Policy) -> GrantedPolicy<'a> {
        let quotas = policy.tenants.values().map(|tenant| tenant.quotas.len()).sum();
        GrantedPolicy { policy, draft: policy.draft.clone(), quotas, below: BTreeMap::new() }
    }

    /// Adds a grant; where it cannot be added, nothing changes.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn add(&mut self, grant: &QuotaGrant) -> Result<(), GrantFault> {
        let (kind, region) = (&grant.kind, grant.region.as_ref());
        if !self.draft.tenants.contains_key(&grant.tenant) {
            return Err(GrantFault::TenantUnknown);
        }
        if let Some(has) = self.other_regions(&grant.tenant, kind, region) {
            return Err(GrantFault::OtherRegions { has });
        }
        if let Some(source) = self.source(&grant.tenant, kind, region)
            && grant.amount_milli > source.left_milli()
        {
            return Err(GrantFault::AboveSource(source));
        }
        let stated = self.nominal(&grant.tenant, kind, region);
        let before = match stated {
            Some(milli) => milli,
            None => self.promised_below(&grant.tenant, kind, region),
        };
        let nominal_milli = before.saturating_add(grant.amount_milli);
        let is_known = |quota: &Quota| quota.kind == *kind && quota.region.as_ref() == region;
        let Some(tenant) = self.draft.tenants.get_mut(&grant.tenant) else {
            return Err(GrantFault::TenantUnknown);
        };
        let is_full =
            stated.is_none() && (tenant.quotas.len() >= TENANT_QUOTAS_MAX || self.quotas >= QUOTAS_MAX);
        if nominal_milli > QUOTA_MILLI_MAX || is_full {
            return Err(GrantFault::TooLarge);
        }
        match tenant.quotas.iter_mut().find(|quota| is_known(quota)) {
            Some(quota) => quota.nominal_milli = nominal_milli,
            None => {
                self.quotas += 1;
                tenant.quotas.push(Quota {
                    kind: kind.clone(),
                    region: region.cloned(),
                    nominal_milli,
                    borrowing_limit_milli: None,
                    lending_limit_milli: None,
                });
            }
        }
        let mut below = self.below.remove(kind).unwrap_or_default();
        self.count_above(&mut below, &grant.tenant, (kind, region), grant.amount_milli);
        self.below.insert(kind.clone(), below);
        Ok(())
    }

    /// What a grant to a tenant comes out of; none where no tenant above it states a quota of this type and region.
    #[must_use]
    pub fn source(&mut self, tenant: &Name, kind: &Name, region: Option<&Name>) -> Option<QuotaSource> {
        let stated = |name: &Name| self.nominal(name, kind, region).map(|nominal| (name.clone(), nominal));
        let (tenant, nominal_milli) = self.policy.ancestry(tenant).skip(1).find_map(stated)?;
        let given_milli = self.promised_below(&tenant, kind, region);
        Some(QuotaSource { tenant, nominal_milli, given_milli })
    }

    /// The effective policy.
    ///
    /// # Errors
    /// The rules that it breaks, which none does to which every grant could be added.
    pub fn finish(self) -> Result<Policy, Vec<Violation>> {
        self.draft.check()
    }

    /// What a tenant states itself.
    fn nominal(&self, tenant: &Name, kind: &Name, region: Option<&Name>) -> Option<u64> {
        let quotas = &self.draft.tenants.get(tenant)?.quotas;
        let quota = quotas.iter().find(|quota| quota.kind == *kind && quota.region.as_ref() == region)?;
        Some(quota.nominal_milli)
    }

    /// What the tenants below one are guaranteed together: of each branch what the topmost tenant states that states one.
    fn promised_below(&mut self, tenant: &Name, kind: &Name, region: Option<&Name>) -> u64 {
        self.count_below(kind);
        let sums = self.below.get(kind).and_then(|below| below.get(tenant));
        sums.and_then(|sums| sums.get(&region.cloned()).copied()).unwrap_or(0)
    }

    /// Adds up the quotas of a type, where that was not done yet.
    fn count_below(&mut self, kind: &Name) {
        if self.below.contains_key(kind) {
            return;
        }
        let mut below = BelowSums::new();
        for (name, tenant) in &self.draft.tenants {
            for quota in tenant.quotas.iter().filter(|quota| quota.kind == *kind) {
                self.count_above(&mut below, name, (kind, quota.region.as_ref()), quota.nominal_milli);
            }
        }
        self.below.insert(kind.clone(), below);
    }

    /// Counts a part of a tenant's quota for those above it, up to the nearest that states one itself.
    fn count_above(
        &self,
        below: &mut BelowSums,
        tenant: &Name,
        (kind, region): (&Name, Option<&Name>),
        milli: u64,
    ) {
        for above in self.policy.ancestry(tenant).skip(1) {
            let sum = below.entry(above.clone()).or_default().entry(region.cloned()).or_default();
            *sum = sum.saturating_add(milli);
            if self.nominal(above, kind, region).is_some() {
                return;
            }
        }
    }

    /// A region that quotas of the type are for, where those that concern a tenant are for other regions alone.
    fn other_regions(&mut self, tenant: &Name, kind: &Name, region: Option<&Name>) -> Option<Option<Name>> {
        self.count_below(kind);
        let of = |name: &Name| -> Vec<Option<Name>> {
            let quotas = self.draft.tenants.get(name).map_or(&[][..], |tenant| &tenant.quotas[..]);
            quotas.iter().filter(|quota| quota.kind == *kind).map(|quota| quota.region.clone()).collect()
        };
        let mut stated = of(tenant);
        if stated.is_empty() {
            for above in self.policy.ancestry(tenant).skip(1) {
                stated.extend(of(above));
            }
            let below = self.below.get(kind).and_then(|below| below.get(tenant));
            stated.extend(below.into_iter().flat_map(|sums| sums.keys().cloned()));
        }
        if stated.iter().any(|has| has.as_ref() == region) {
            return None;
        }
        stated.into_iter().next()
    }
}

impl Policy {
    /// Grants in the order in which they are added to this policy: those of the highest tenants first, and as they come otherwise.
    #[must_use]
    pub fn in_order<'g, T>(
        &self,
        grants: impl IntoIterator<Item = T>,
        of: impl Fn(&T) -> &'g QuotaGrant,
    ) -> Vec<T> {
        let mut grants: Vec<T> = grants.into_iter().collect();
        grants.sort_by_cached_key(|grant| self.ancestry(&of(grant).tenant).count());
        grants
    }

    /// The effective policy: this one with these grants added.
    ///
    /// # Errors
    /// Why one of them cannot be added, in words.
    pub fn with_grants<'g>(
        &self,
        grants: impl IntoIterator<Item = &'g QuotaGrant>,
    ) -> Result<Policy, String> {
        let grants = self.in_order(grants, |grant| *grant);
        if grants.is_empty() {
            return Ok(self.clone());
        }
        let mut granted = GrantedPolicy::of(self);
        for grant in grants {
            granted.add(grant).map_err(|fault| fault.to_string())?;
        }
        granted.finish().map_err(|found| found.first().map(ToString::to_string).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::TenantPolicy;
    use alloc::vec;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn quota(kind: &str, region: Option<&str>, devices: u64) -> Quota {
        Quota {
            kind: name(kind),
            region: region.map(name),
            nominal_milli: devices * 1_000,
            borrowing_limit_milli: None,
            lending_limit_milli: None,
        }
    }

    fn tenant(parent: Option<&str>, quotas: Vec<Quota>) -> TenantPolicy {
        TenantPolicy { parent: parent.map(name), quotas, ..TenantPolicy::default() }
    }

    /// `lab` has 10, of which `a` has 6; `b` and `group` state nothing, and `c` below `group` has 2.
    fn policy() -> Policy {
        let mut draft = PolicyDraft::default();
        for (text, tenant) in [
            ("lab", tenant(None, vec![quota("h100", None, 10)])),
            ("a", tenant(Some("lab"), vec![quota("h100", None, 6)])),
            ("b", tenant(Some("lab"), vec![])),
            ("group", tenant(Some("lab"), vec![])),
            ("c", tenant(Some("group"), vec![quota("h100", None, 2)])),
            ("alone", tenant(None, vec![])),
        ] {
            draft.tenants.insert(name(text), tenant);
        }
        draft.check().expect("a policy")
    }

    fn grant(tenant: &str, devices: u64) -> QuotaGrant {
        QuotaGrant {
            tenant: name(tenant),
            kind: name("h100"),
            region: None,
            amount_milli: devices * 1_000,
            until: LogTime(1),
            reason: "a deadline".to_string(),
        }
    }

    fn nominal(policy: &Policy, tenant: &str) -> Option<u64> {
        policy.tenants[&name(tenant)].quotas.first().map(|quota| quota.nominal_milli / 1_000)
    }

    #[test]
    fn a_grant_comes_out_of_the_tenant_above() {
        let policy = policy();
        let with = policy.with_grants([&grant("a", 2)]).expect("it fits");
        assert_eq!((nominal(&with, "a"), nominal(&with, "lab")), (Some(8), Some(10)));
        let mut granted = GrantedPolicy::of(&policy);
        let left = QuotaSource { tenant: name("lab"), nominal_milli: 10_000, given_milli: 8_000 };
        assert_eq!(granted.source(&name("a"), &name("h100"), None), Some(left.clone()));
        assert_eq!(granted.add(&grant("b", 3)), Err(GrantFault::AboveSource(left)));
        assert_eq!(granted.add(&grant("b", 2)), Ok(()));
        let full = QuotaSource { tenant: name("lab"), nominal_milli: 10_000, given_milli: 10_000 };
        assert_eq!(granted.add(&grant("group", 1)), Err(GrantFault::AboveSource(full)));
        assert_eq!(nominal(&granted.finish().expect("it breaks no rule"), "b"), Some(2));
    }

    #[test]
    fn one_that_groups_others_keeps_what_they_have() {
        let with = policy().with_grants([&grant("group", 1)]).expect("it fits");
        assert_eq!((nominal(&with, "group"), nominal(&with, "c")), (Some(3), Some(2)));
        let with = policy().with_grants([&grant("group", 1), &grant("c", 1)]).expect("it fits");
        assert_eq!((nominal(&with, "group"), nominal(&with, "c")), (Some(3), Some(3)));
        // The tenant above goes first, however they come.
        let with = policy().with_grants([&grant("c", 1), &grant("group", 1)]).expect("it fits");
        assert_eq!((nominal(&with, "group"), nominal(&with, "c")), (Some(3), Some(3)));
        assert!(policy().with_grants([&grant("group", 1), &grant("c", 2)]).is_err());
    }

    #[test]
    fn without_a_tenant_above_only_the_bounds_hold() {
        let with = policy().with_grants([&grant("alone", 1_000)]).expect("it fits");
        assert_eq!(nominal(&with, "alone"), Some(1_000));
        let large = QuotaGrant { amount_milli: QUOTA_MILLI_MAX, ..grant("alone", 1) };
        let policy = policy();
        let mut granted = GrantedPolicy::of(&policy);
        assert_eq!(granted.add(&large), Ok(()));
        assert_eq!(granted.add(&grant("alone", 1)), Err(GrantFault::TooLarge));
        assert_eq!(granted.add(&grant("nobody", 1)), Err(GrantFault::TenantUnknown));
    }

    /// Sums are kept up to date: none is counted again for each of many grants below one tenant of many.
    #[test]
    fn many_grants_below_one_tenant_of_many_come_out_of_it() {
        let mut draft = PolicyDraft::default();
        draft.tenants.insert(name("lab"), tenant(None, vec![quota("h100", None, 3_000)]));
        draft.tenants.insert(name("group"), tenant(Some("lab"), vec![]));
        for number in 0..5_000 {
            let (parent, devices) = if number % 2 == 0 { ("lab", 0) } else { ("group", 1) };
            let quotas = if devices == 0 { vec![] } else { vec![quota("h100", None, devices)] };
            draft.tenants.insert(name(&format!("t{number}")), tenant(Some(parent), quotas));
        }
        let policy = draft.check().expect("a policy");
        let mut granted = GrantedPolicy::of(&policy);
        let left = |granted: &mut GrantedPolicy<'_>, of: &str| {
            granted.source(&name(of), &name("h100"), None).map(|source| source.left_milli() / 1_000)
        };
        assert_eq!(left(&mut granted, "t0"), Some(500));
        for number in 0..400 {
            assert_eq!(granted.add(&grant(&format!("t{number}"), 1)), Ok(()), "{number}");
        }
        assert_eq!(left(&mut granted, "t0"), Some(100));
        assert_eq!(granted.add(&grant("group", 100)), Ok(()));
        assert_eq!((left(&mut granted, "t0"), left(&mut granted, "t1")), (Some(0), Some(100)));
        assert_eq!(granted.add(&grant("t1", 100)), Ok(()));
        assert_eq!(left(&mut granted, "t1"), Some(0));
        let with = granted.finish().expect("it breaks no rule");
        assert_eq!((nominal(&with, "group"), nominal(&with, "t1")), (Some(2_800), Some(102)));
    }

    #[test]
    fn a_grant_is_for_the_regions_that_the_quotas_are_for() {
        let in_eu = |tenant| QuotaGrant { region: Some(name("eu")), ..grant(tenant, 1) };
        let policy = policy();
        let mut granted = GrantedPolicy::of(&policy);
        for of in ["lab", "a", "b", "group", "c"] {
            assert_eq!(granted.add(&in_eu(of)), Err(GrantFault::OtherRegions { has: None }), "{of}");
        }
        assert_eq!(granted.add(&in_eu("alone")), Ok(()));
        assert_eq!(granted.add(&grant("alone", 1)), Err(GrantFault::OtherRegions { has: Some(name("eu")) }));
    }

    #[test]
    fn amounts_ends_and_reasons_have_bounds() {
        let fields = |grant: &QuotaGrant| -> Vec<String> {
            grant.violations().into_iter().map(|violation| violation.field).collect()
        };
        assert!(fields(&grant("a", 1)).is_empty());
        for amount_milli in [0, QUOTA_MILLI_MAX + 1, u64::MAX] {
            assert_eq!(fields(&QuotaGrant { amount_milli, ..grant("a", 1) }), ["amount_milli"]);
        }
        let long = "x".repeat(limits::DETAIL_BYTES_MAX + 1);
        for reason in ["", "two\nlines", &long] {
            assert_eq!(fields(&QuotaGrant { reason: reason.to_string(), ..grant("a", 1) }), ["reason"]);
        }
        let ends = |until: u64, now: u64| {
            QuotaGrant { until: LogTime(until), ..grant("a", 1) }.end_violation(LogTime(now)).is_some()
        };
        assert!(ends(5, 5) && ends(4, 5) && !ends(6, 5));
        assert!(!ends(5 + POLICY_DURATION_MS_MAX, 5) && ends(6 + POLICY_DURATION_MS_MAX, 5));
        assert!(ends(u64::MAX, 5));
    }
}
