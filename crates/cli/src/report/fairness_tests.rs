use muster_types::policy::{PolicyDraft, Quota, TenantPolicy};

use super::*;

fn name(text: &'static str) -> Name {
    Name::literal(text)
}

fn tenant(parent: Option<&'static str>, quotas: &[(Option<&'static str>, u64)]) -> TenantPolicy {
    let quota = |(region, nominal_milli): &(Option<&'static str>, u64)| Quota {
        kind: name("h100"),
        region: region.map(Name::literal),
        nominal_milli: *nominal_milli,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    };
    let quotas = quotas.iter().map(quota).collect();
    TenantPolicy { parent: parent.map(Name::literal), quotas, ..TenantPolicy::default() }
}

#[test]
fn a_tenant_without_quotas_is_guaranteed_what_those_below_it_are() {
    let tenants = [
        (name("lab"), tenant(None, &[])),
        (name("vision"), tenant(Some("lab"), &[(None, 8_000)])),
        (name("speech"), tenant(Some("lab"), &[(Some("eu"), 3_000), (Some("us"), 1_000)])),
        (name("other"), tenant(None, &[(None, 5_000), (Some("eu"), 4_000)])),
    ];
    let policy = PolicyDraft { tenants: tenants.into(), ..PolicyDraft::default() }.check().unwrap();
    let sums = nominal(&policy);
    let of = |tenant| sums.get(&(name(tenant), "h100".to_owned())).copied();
    assert_eq!(
        [of("lab"), of("vision"), of("speech"), of("other")].map(Option::unwrap),
        [12_000, 8_000, 4_000, 5_000]
    );
}

#[test]
fn what_is_borrowed_is_lent_by_those_who_leave_it_unused() {
    let balance = |nominal, used, asked| Balance { nominal, used, asked };
    let members = [
        (name("a"), balance(8_000, 2_000, 3_000)),
        (name("b"), balance(4_000, 9_000, 0)),
        (name("c"), balance(0, 1_000, 9_000)),
        (name("d"), balance(2_000, 2_000, 1_000)),
    ];
    let groups = BTreeMap::from([((None, "h100".to_owned()), BTreeMap::from(members))]);
    let window = Window { from: LogTime(100), until: Some(LogTime(200)) };
    let mut fairness = Fairness { window, since: LogTime(50), groups, ..Fairness::default() };
    // Only what is in the window counts, however it is cut.
    for now in [60, 130, 131, 199, 400] {
        fairness.pass(LogTime(now));
    }
    let sums = fairness.sums().map(|(tenant, _, fair)| (tenant.unwrap().to_string(), *fair));
    let sums: Vec<(String, FairnessSum)> = sums.collect();
    let of = |tenant: &str| sums.iter().find(|(name, _)| name == tenant).unwrap().1;
    let (a, b, c, d) = (of("a"), of("b"), of("c"), of("d"));
    assert_eq!((a.nominal, a.received, a.asked, a.borrowed), (800_000, 200_000, 300_000, 0));
    assert_eq!((a.lent, a.entitled, a.entitled_ms), (600_000, 300_000, 100));
    assert_eq!((b.borrowed, c.borrowed, b.lent + c.lent + d.lent), (500_000, 100_000, 0));
    assert_eq!((c.entitled, d.entitled, d.entitled_ms), (0, 0, 0));
    let lent: u128 = sums.iter().map(|(_, fair)| fair.lent).sum();
    assert_eq!(lent, b.borrowed + c.borrowed);
}

/// What there is of two types and of a tenant below another one, divided in this way, behind 100 ms.
fn divided(by_tenant: bool, by_type: bool) -> Fairness {
    let balance = |nominal, used, asked| Balance { nominal, used, asked };
    let first = |a, b| BTreeMap::from([(name("a"), a), (name("b"), b)]);
    let below = BTreeMap::from([(name("c"), balance(1_000, 0, 1_000))]);
    let groups = BTreeMap::from([
        ((None, "a100".to_owned()), first(balance(4_000, 1_000, 1_000), balance(0, 2_000, 0))),
        ((None, "h100".to_owned()), first(balance(8_000, 6_000, 5_000), balance(1_000, 0, 1_000))),
        ((Some(name("a")), "h100".to_owned()), below),
    ]);
    let window = Window { from: LogTime(100), until: None };
    let division = Division { by_tenant, by_type };
    let mut fairness = Fairness { window, since: LogTime(100), groups, ..Fairness::divided(division) };
    fairness.pass(LogTime(150));
    fairness.pass(LogTime(200));
    fairness
}

/// Each sum: its tenant and type, nominal, received, borrowed, lent, entitled, in thousandths, and for how long.
fn shown(fairness: &Fairness) -> Vec<String> {
    let sums = fairness.sums().map(|(tenant, kind, fair)| {
        let tenant = tenant.map_or("*", Name::as_str);
        let of = [fair.nominal, fair.received, fair.borrowed, fair.lent, fair.entitled].map(|sum| sum / 100);
        format!("{tenant} {} {of:?} {}", kind.unwrap_or("*"), fair.entitled_ms)
    });
    sums.collect()
}

#[test]
fn sums_are_divided_by_tenant_by_type_or_by_both() {
    assert_eq!(
        shown(&divided(true, true)),
        [
            "a a100 [4000, 1000, 0, 2000, 1000] 100",
            "a h100 [8000, 6000, 0, 0, 2000] 100",
            "b a100 [0, 2000, 2000, 0, 0] 0",
            "b h100 [1000, 0, 0, 0, 1000] 100",
            "c h100 [1000, 0, 0, 0, 1000] 100",
        ]
    );
    // A moment at which two types are waited for is one moment.
    assert_eq!(
        shown(&divided(true, false)),
        [
            "a * [12000, 7000, 0, 2000, 3000] 100",
            "b * [1000, 2000, 2000, 0, 1000] 100",
            "c * [1000, 0, 0, 0, 1000] 100",
        ]
    );
    // The tenant below another one is in that one already.
    assert_eq!(
        shown(&divided(false, true)),
        ["* a100 [4000, 3000, 2000, 2000, 1000] 100", "* h100 [9000, 6000, 0, 0, 3000] 100"]
    );
}
