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
    let sums: Vec<(String, FairnessSum)> =
        fairness.sums().map(|(tenant, _, fair)| (tenant.to_string(), *fair)).collect();
    let of = |tenant: &str| sums.iter().find(|(name, _)| name == tenant).unwrap().1;
    let (a, b, c, d) = (of("a"), of("b"), of("c"), of("d"));
    assert_eq!((a.nominal, a.received, a.asked, a.borrowed), (800_000, 200_000, 300_000, 0));
    assert_eq!((a.lent, a.entitled, a.entitled_ms), (600_000, 300_000, 100));
    assert_eq!((b.borrowed, c.borrowed, b.lent + c.lent + d.lent), (500_000, 100_000, 0));
    assert_eq!((c.entitled, d.entitled, d.entitled_ms), (0, 0, 0));
    let lent: u128 = sums.iter().map(|(_, fair)| fair.lent).sum();
    assert_eq!(lent, b.borrowed + c.borrowed);
}
