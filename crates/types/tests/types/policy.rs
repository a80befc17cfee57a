use std::collections::{BTreeMap, BTreeSet};

use muster_types::LogTime;
use muster_types::policy::{
    AcceleratorBudget, DataMove, Dataset, JobLimits, Order, OwnedCost, Policy, PolicyDraft, PreemptionPolicy,
    Price, PurchaseKind, Quota, Rights, TENANT_DEPTH_MAX, TenantLimits, TenantPolicy, TenantRights, Transfer,
    UserLimits, Window, WindowPurpose, WindowScope,
};
use muster_types::{Accelerators, Name, NodeDraft, PriorityTier, Violation};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, MapDeserializer};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn some(text: &str) -> Option<Name> {
    (!text.is_empty()).then(|| name(text))
}

/// `h100` everywhere, or `h100@eu`.
fn quota(flavour: &str, nominal_milli: u64) -> Quota {
    let (kind, region) = flavour.split_once('@').unwrap_or((flavour, ""));
    Quota {
        kind: name(kind),
        region: some(region),
        nominal_milli,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    }
}

fn tenant(parent: &str, quotas: &[(&str, u64)]) -> TenantPolicy {
    TenantPolicy {
        parent: some(parent),
        quotas: quotas.iter().map(|&(flavour, nominal)| quota(flavour, nominal)).collect(),
        ..TenantPolicy::default()
    }
}

fn tenants(list: &[(&str, TenantPolicy)]) -> PolicyDraft {
    let tenants = list.iter().map(|(text, tenant)| (name(text), tenant.clone())).collect();
    PolicyDraft { tenants, ..PolicyDraft::default() }
}

fn window() -> Window {
    Window {
        name: name("w"),
        from: LogTime(1),
        until: LogTime(2),
        scope: WindowScope { region: some("eu"), ..WindowScope::default() },
        purpose: WindowPurpose::Maintenance,
    }
}

/// What the draft violates, as `field: description`.
fn found(draft: PolicyDraft) -> Vec<String> {
    draft.check().err().unwrap_or_default().iter().map(Violation::to_string).collect()
}

/// One change of the default, and the fields that are named for it.
#[track_caller]
fn violates(change: impl FnOnce(&mut PolicyDraft), expected: &[&str]) {
    let mut draft = PolicyDraft::default();
    change(&mut draft);
    let found = draft.check().err().unwrap_or_default();
    assert_eq!(found.iter().map(|v| v.field.as_str()).collect::<Vec<_>>(), expected);
}

#[test]
fn the_default_is_one_flat_world() {
    let policy = PolicyDraft::default().check().unwrap();
    assert_eq!(policy, Policy::default());
    assert!(policy.tenants.is_empty() && policy.prices.is_empty() && policy.windows.is_empty());
    assert_eq!((policy.order.order, policy.order.fair_share), (Order::Predicted, true));
    assert_eq!(policy.order.usage_half_life_ms, 604_800_000);
    assert_eq!((policy.backfill.reservations_max, policy.backfill.depth_max), (16, 1_000));
    let preemption = &policy.preemption;
    assert!(preemption.enabled && preemption.reclaim_borrowed && preemption.defragment);
    assert_eq!((preemption.minimum_run_ms, preemption.defragment_wait_ms), (120_000, 1_800_000));
    assert_eq!(policy.weight_milli(&name("anyone")), 1_000);
    let anyone = name("anyone");
    let up: Vec<&str> = policy.ancestry(&anyone).map(|tenant| tenant.as_str()).collect();
    assert_eq!(up, ["anyone", "unlisted"]);
    assert_eq!(policy.rights(&anyone), Rights::LEAST);
}

#[test]
fn every_number_has_its_bounds() {
    let day_ms = 86_400_000;
    violates(|p| p.order.usage_half_life_ms = 59_999, &["order.usage_half_life"]);
    violates(|p| p.order.usage_half_life_ms = 60_000, &[]);
    violates(|p| p.order.usage_half_life_ms = 366 * day_ms, &[]);
    violates(|p| p.order.usage_half_life_ms = 366 * day_ms + 1, &["order.usage_half_life"]);
    violates(|p| p.order.ageing_milli = 1_000_001, &["order.ageing_milli"]);
    violates(|p| p.backfill.reservations_max = 0, &[]);
    violates(|p| p.backfill.reservations_max = 65, &["backfill.max_reservations"]);
    violates(|p| p.backfill.depth_max = 0, &["backfill.max_depth"]);
    violates(|p| p.backfill.depth_max = 10_001, &["backfill.max_depth"]);
    violates(|p| p.preemption.minimum_run_ms = 366 * day_ms + 1, &["preemption.minimum_run"]);
    violates(|p| p.preemption.victims_max = 4_097, &["preemption.max_victims"]);
    violates(|p| p.preemption.defragment_wait_ms = u64::MAX, &["preemption.defragment_wait"]);
    violates(|p| p.weights.packing = 1_000, &[]);
    violates(|p| p.weights.packing = 1_001, &["weights.packing"]);
    violates(|p| p.weights.spread = 1_001, &["weights.spread"]);
    violates(|p| p.spare_hosts_per_rack = [(name("gb200"), 2)].into(), &[]);
    violates(|p| p.spare_hosts_per_rack = [(name("gb200"), 1_001)].into(), &["spare_hosts_per_rack.gb200"]);
}

#[test]
fn fewer_victims_than_usual_are_a_limit_and_more_grow_with_the_job() {
    let most = |victims_max, devices| {
        PreemptionPolicy { victims_max, ..Default::default() }.victims_max_for(devices)
    };
    assert_eq!([most(0, 5_000), most(64, 5_000), most(1_023, 5_000)], [0, 64, 1_023]);
    assert_eq!([most(1_024, 0), most(1_024, 1_024), most(1_024, 2_000)], [1_024, 1_024, 2_000]);
    assert_eq!([most(3_000, 2_000), most(1_024, 5_000), most(4_096, u64::MAX)], [3_000, 4_096, 4_096]);
}

#[test]
fn a_tenant_has_a_weight_and_one_quota_for_each_flavour() {
    let draft = |change: fn(&mut TenantPolicy)| {
        let mut a = tenant("", &[("h100", 10), ("h100@eu", 10), ("v5p", 0)]);
        change(&mut a);
        found(tenants(&[("a", a)]))
    };
    assert_eq!(draft(|_| ()), Vec::<String>::new());
    assert_eq!(draft(|a| a.weight_milli = 0), Vec::<String>::new(), "it goes last");
    assert_eq!(
        draft(|a| a.weight_milli = 1_000_001),
        ["tenants.a.weight_milli: must be between 0 and 1000000, got 1000001"]
    );
    assert_eq!(
        draft(|a| a.quotas.push(quota("h100", 1))),
        ["tenants.a.quotas[3]: must be the tenant's only quota for h100 in all regions"]
    );
    assert_eq!(
        draft(|a| a.quotas.push(quota("h100@eu", 1))),
        ["tenants.a.quotas[3]: must be the tenant's only quota for h100 in eu"]
    );
    assert_eq!(
        draft(|a| a.quotas[1].lending_limit_milli = Some(11)),
        ["tenants.a.quotas[1].lending_limit_milli: must be at most the nominal quota, 10, got 11"]
    );
    assert_eq!(
        draft(|a| a.quotas[0].borrowing_limit_milli = Some(u64::MAX)),
        [format!(
            "tenants.a.quotas[0].borrowing_limit_milli: must be between 0 and 1000000000000, got {}",
            u64::MAX
        )]
    );
    assert_eq!(
        draft(|a| a.quotas = (0..257).map(|kind| quota(&format!("k{kind}"), 1)).collect()),
        ["tenants.a.quotas: must be between 0 and 256, got 257"]
    );
}

#[test]
fn the_tree_has_known_parents_no_cycles_and_few_levels() {
    let plain = |parent: &str| tenant(parent, &[]);
    assert_eq!(
        found(tenants(&[("a", plain("b"))])),
        ["tenants.a.parent: must be a tenant that the policy lists, got b: list b as well"]
    );
    // c leads into a cycle, and is not a member; each cycle is told once, from its smallest name on.
    assert_eq!(
        found(tenants(&[
            ("c", plain("z")),
            ("d", plain("z")),
            ("e", plain("d")),
            ("z", plain("e")),
            ("self", plain("self")),
        ])),
        [
            "tenants.d.parent: must not lead back to itself: d -> z -> e -> d",
            "tenants.self.parent: must not lead back to itself: self -> self",
        ]
    );
    let chain = |levels: usize| {
        let parent = |level: usize| if level == 0 { String::new() } else { format!("t{:05}", level - 1) };
        let list: Vec<(String, TenantPolicy)> =
            (0..levels).map(|level| (format!("t{level:05}"), plain(&parent(level)))).collect();
        let list: Vec<(&str, TenantPolicy)> = list.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        tenants(&list)
    };
    assert_eq!(found(chain(TENANT_DEPTH_MAX)), Vec::<String>::new());
    let too_deep = ["tenants.t00008.parent: must leave the tree at most 8 levels deep"];
    assert_eq!(found(chain(TENANT_DEPTH_MAX + 1)), too_deep);
    assert_eq!(found(chain(10_000)), too_deep);
    assert_eq!(found(chain(10_001)), ["tenants: must be between 0 and 10000, got 10001"]);
    // Everyone in one cycle: told once, and briefly.
    let mut ring = chain(10_000);
    ring.tenants.get_mut(&name("t00000")).unwrap().parent = some("t09999");
    let told = found(ring);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("tenants.t00000.parent: must not lead back to itself: t00000 -> t09999"));
    assert!(told[0].ends_with(" -> ... -> t00000") && told[0].len() < 300, "{}", told[0]);
}

#[test]
fn promises_are_part_of_the_promise_above() {
    let tree = |a: &[(&str, u64)], b: &[(&str, u64)], c: &[(&str, u64)]| {
        // b and c below m, which states nothing, below a.
        found(tenants(&[
            ("a", tenant("", a)),
            ("m", tenant("a", &[])),
            ("b", tenant("m", b)),
            ("c", tenant("m", c)),
        ]))
    };
    let fits: Vec<String> = Vec::new();
    assert_eq!(tree(&[("h100", 10)], &[("h100", 6)], &[("h100", 4)]), fits);
    assert_eq!(
        tree(&[("h100", 10)], &[("h100", 6)], &[("h100", 5)]),
        ["tenants.a.quotas[0].nominal_milli: must be at least what the tenants below it have together, \
          11, got 10"]
    );
    assert_eq!(
        tree(&[("v5p", 1), ("h100", 10)], &[("h100", 11)], &[]),
        [
            "tenants.b.quotas[0].nominal_milli: must be at most that of a, 10, got 11",
            "tenants.a.quotas[1].nominal_milli: must be at least what the tenants below it have \
             together, 11, got 10",
        ]
    );
    // Flavours are separate, and a tenant that states nothing above restricts nothing below.
    assert_eq!(tree(&[("h100", 10)], &[("h100@eu", 11)], &[("v5p", 11)]), fits);
    assert_eq!(tree(&[], &[("h100", 6)], &[("h100", 5)]), fits);
}

#[test]
fn prices_transfers_data_and_windows_are_checked_one_by_one() {
    let price = |region: &str, micro: u64| Price::new(name("h100"), some(region), micro);
    violates(|p| p.prices = vec![price("", 1), price("eu", 1)], &[]);
    violates(|p| p.prices = vec![price("eu", 1), price("eu", 2)], &["prices[1]"]);
    violates(
        |p| p.prices = vec![price("eu", 1_000_000_000_001)],
        &["prices[0].micro_dollars_per_device_hour"],
    );
    let rule = |bytes_per_second| Transfer {
        from: some("eu"),
        to: None,
        micro_dollars_per_gib: 0,
        bytes_per_second,
    };
    violates(|p| p.transfers = vec![rule(1), rule(2)], &["transfers[1]"]);
    violates(|p| p.transfers = vec![rule(0)], &["transfers[0].bytes_per_second"]);
    let nowhere = Dataset { bytes: 1, regions: BTreeSet::new() };
    violates(|p| p.datasets = [(name("corpus"), nowhere)].into(), &["datasets.corpus.regions"]);
    violates(|p| p.windows = vec![window()], &[]);
    violates(|p| p.windows = vec![window(), window()], &["windows[1].name"]);
    violates(|p| p.windows = vec![Window { until: LogTime(1), ..window() }], &["windows[0].end_time"]);
    violates(
        |p| p.windows = vec![Window { scope: WindowScope::default(), ..window() }],
        &["windows[0].scope"],
    );
    let many = |count: u64| (0..count).map(|n| Window { name: name(&format!("w{n}")), ..window() }).collect();
    violates(|p| p.windows = many(256), &[]);
    violates(|p| p.windows = many(257), &["windows"]);
}

#[test]
fn the_most_specific_price_and_transfer_count() {
    let price = |region: &str, micro: u64| Price::new(name("h100"), some(region), micro);
    let rule = |from: &str, to: &str, micro_dollars_per_gib: u64| Transfer {
        from: some(from),
        to: some(to),
        micro_dollars_per_gib,
        bytes_per_second: 1,
    };
    let policy = PolicyDraft {
        prices: vec![price("", 3), price("eu", 2)],
        transfers: vec![rule("", "", 1), rule("", "us", 2), rule("eu", "", 3), rule("eu", "us", 4)],
        ..PolicyDraft::default()
    }
    .check()
    .unwrap();
    assert_eq!(policy.price(&name("h100"), &name("eu"), LogTime(1)), Some(2));
    assert_eq!(policy.price(&name("h100"), &name("us"), LogTime(1)), Some(3));
    assert_eq!(policy.price(&name("v5p"), &name("eu"), LogTime(1)), None);
    let per_gib =
        |from: &str, to: &str| policy.transfer(&name(from), &name(to)).unwrap().micro_dollars_per_gib;
    assert_eq!(
        [per_gib("eu", "us"), per_gib("eu", "ap"), per_gib("ap", "us"), per_gib("ap", "sa")],
        [4, 3, 2, 1]
    );
    assert_eq!(Policy::default().transfer(&name("eu"), &name("us")), None);
}

fn dated(micro: u64, purchase: Option<PurchaseKind>, from: u64, until: u64) -> Price {
    let until = (until > 0).then_some(LogTime(until));
    Price {
        purchase,
        from: (from > 0).then_some(LogTime(from)),
        until,
        ..Price::new(name("h100"), None, micro)
    }
}

const OWNED: OwnedCost = OwnedCost {
    micro_dollars_per_device: 30_000_000_000,
    depreciation_months: 48,
    watts: 1_200,
    pue_milli: 1_250,
    micro_dollars_per_kwh: 100_000,
};

fn owned(owned: OwnedCost) -> Price {
    Price { owned: Some(owned), ..dated(0, Some(PurchaseKind::Owned), 0, 0) }
}

#[test]
fn prices_follow_each_other_and_do_not_overlap() {
    let spot = Some(PurchaseKind::Spot);
    violates(|p| p.prices = vec![dated(2, spot, 10, 20), dated(1, spot, 0, 10), dated(3, spot, 20, 0)], &[]);
    violates(|p| p.prices = vec![dated(2, spot, 10, 20), dated(2, None, 10, 20)], &[]);
    violates(|p| p.prices = vec![dated(2, spot, 10, 20), dated(1, spot, 0, 11)], &["prices[1]"]);
    // The long one is in the way of the last, although another begins between them.
    let long =
        vec![dated(1, spot, 1, 90), dated(1, None, 0, 0), dated(1, spot, 50, 60), dated(1, spot, 70, 80)];
    violates(|p| p.prices = long, &["prices[2]", "prices[3]"]);
    violates(|p| p.prices = vec![dated(1, None, 7, 7)], &["prices[0].end_time"]);
    violates(|p| p.prices = vec![dated(1, None, 8, 7)], &["prices[0].end_time"]);
    let draft =
        PolicyDraft { prices: vec![dated(1, None, 0, 5), dated(1, None, 4, 0)], ..Default::default() };
    let text = draft.check().unwrap_err()[0].to_string();
    assert!(text.contains("prices[1]") && text.contains("prices[0]"), "{text}");
    let many = |count: usize| (0..count).map(|at| dated(1, None, at as u64 + 1, at as u64 + 2)).collect();
    violates(|p| p.prices = many(4_096), &[]);
    violates(|p| p.prices = many(4_097), &["prices"]);
}

#[test]
fn the_price_of_an_owned_device_follows_from_its_parts() {
    // 30,000 / (48 × 730.5) + 1.2 × 1.25 × 0.1 dollars.
    assert_eq!(OWNED.micro_dollars_per_device_hour(), 855_578 + 150_000);
    violates(|p| p.prices = vec![owned(OWNED)], &[]);
    let worst = OwnedCost {
        micro_dollars_per_device: u64::MAX,
        depreciation_months: 0,
        watts: u32::MAX,
        pue_milli: 999,
        micro_dollars_per_kwh: u64::MAX,
    };
    violates(
        |p| p.prices = vec![owned(worst)],
        &[
            "prices[0].owned.micro_dollars_per_device",
            "prices[0].owned.depreciation_months",
            "prices[0].owned.watts",
            "prices[0].owned.pue_milli",
            "prices[0].owned.micro_dollars_per_kwh",
        ],
    );
    let rented = Price { purchase: None, micro_dollars_per_device_hour: 1, ..owned(OWNED) };
    violates(|p| p.prices = vec![rented], &["prices[0].micro_dollars_per_device_hour", "prices[0].purchase"]);
}

#[test]
fn a_price_counts_from_its_first_moment_to_the_one_before_its_end() {
    let (spot, on_demand) = (Some(PurchaseKind::Spot), Some(PurchaseKind::OnDemand));
    let in_eu = Price { region: some("eu"), ..dated(9, None, 0, 0) };
    let prices = vec![dated(5, None, 10, 20), dated(6, None, 20, 30), dated(2, spot, 15, 25), in_eu];
    let policy = PolicyDraft { prices, ..PolicyDraft::default() }.check().unwrap();
    let table = policy.price_table();
    let at = |region: &str, purchase, ms| table.get(&name("h100"), &name(region), purchase, LogTime(ms));
    assert_eq!([at("us", None, 9), at("us", None, 10), at("us", None, 19)], [None, Some(5), Some(5)]);
    assert_eq!([at("us", None, 20), at("us", None, 29), at("us", None, 30)], [Some(6), Some(6), None]);
    assert_eq!([at("us", spot, 14), at("us", spot, 15), at("us", spot, 25)], [Some(5), Some(2), Some(6)]);
    // The purchase counts before the region.
    assert_eq!(
        [at("eu", spot, 15), at("eu", on_demand, 15), at("eu", spot, 99)],
        [Some(2), Some(9), Some(9)]
    );
    assert_eq!(table.boundaries(), [10, 15, 20, 25, 30].map(LogTime));
    // Without one for every purchase, decisions compare the lowest.
    let prices = vec![dated(4, spot, 0, 9), dated(3, on_demand, 5, 0)];
    let policy = PolicyDraft { prices, ..PolicyDraft::default() }.check().unwrap();
    let compared = |ms| policy.price(&name("h100"), &name("us"), LogTime(ms));
    assert_eq!([compared(1), compared(5), compared(9)], [Some(4), Some(3), Some(3)]);
}

#[test]
fn data_comes_from_the_cheapest_then_fastest_then_first_copy() {
    const GIB: u64 = 1 << 30;
    let rule = |from: &str, micro_dollars_per_gib: u64, bytes_per_second: u64| Transfer {
        from: some(from),
        to: None,
        micro_dollars_per_gib,
        bytes_per_second,
    };
    let data = |bytes: u64, regions: &[&str]| Dataset {
        bytes,
        regions: regions.iter().map(|region| name(region)).collect(),
    };
    let datasets: BTreeMap<Name, Dataset> = [
        (name("small"), data(1, &["eu"])),
        (name("wide"), data(10 * GIB, &["ap", "eu", "sa"])),
        (name("huge"), data(1 << 60, &["eu"])),
    ]
    .into();
    let transfers = vec![rule("ap", 5, GIB), rule("eu", 7, 2 * GIB), rule("sa", 5, 4 * GIB)];
    let policy = PolicyDraft { datasets, transfers, ..PolicyDraft::default() }.check().unwrap();
    let moved = |wanted: &[&str], to: &str| {
        let wanted: Vec<Name> = wanted.iter().map(|text| name(text)).collect();
        let DataMove { bytes, micro_dollars, ms } = policy.data_move(&wanted, &name(to));
        (bytes, micro_dollars, ms)
    };
    assert_eq!(moved(&[], "us"), (0, 0, 0));
    assert_eq!(moved(&["unknown"], "us"), (0, 0, 0));
    assert_eq!(moved(&["wide"], "eu"), (0, 0, 0));
    // ap and sa cost the same, sa is faster.
    assert_eq!(moved(&["wide"], "us"), (10 * GIB, 50, 2_500));
    // Rounded up, and added up.
    assert_eq!(moved(&["small"], "us"), (1, 1, 1));
    assert_eq!(moved(&["small", "wide"], "us"), (10 * GIB + 1, 51, 2_501));
    assert_eq!(moved(&["huge"], "us"), (1 << 60, 7 << 30, (1 << 29) * 1_000));
    // Without a rule it is free.
    let free = PolicyDraft { transfers: Vec::new(), ..policy.clone().into_draft() }.check().unwrap();
    let wanted = [name("wide")];
    assert_eq!(free.data_move(&wanted, &name("us")), DataMove { bytes: 10 * GIB, micro_dollars: 0, ms: 0 });
}

#[test]
fn a_window_covers_what_lies_in_all_of_its_domains() {
    let node = NodeDraft {
        name: name("n1"),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name("r1"),
        address: "n1".into(),
        accelerators: Some(Accelerators { kind: name("h100"), count: 8 }),
        cpu_milli: 1,
        memory_bytes: 1,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
        scratch_bytes: 0,
    };
    let covers = |parts: [&str; 5]| {
        let [region, cluster, block, rack, node_name] = parts.map(some);
        WindowScope { region, cluster, block, rack, node: node_name }.covers(&node)
    };
    assert!(covers(["eu", "", "", "", ""]) && covers(["eu", "c1", "b1", "r1", "n1"]));
    assert!(covers(["", "", "", "r1", ""]) && covers(["", "", "", "", "n1"]));
    for other in [["us", "c1", "", "", ""], ["eu", "c2", "", "", ""], ["eu", "c1", "b2", "", ""]] {
        assert!(!covers(other), "{other:?}");
    }
    assert!(!covers(["eu", "", "", "r2", ""]) && !covers(["eu", "", "", "r1", "n2"]));
    let open = Window { from: LogTime(10), until: LogTime(20), ..window() };
    assert!(open.overlaps(LogTime(0), LogTime(11)) && open.overlaps(LogTime(19), LogTime(30)));
    assert!(!open.overlaps(LogTime(0), LogTime(10)) && !open.overlaps(LogTime(20), LogTime(30)));
}

#[test]
fn the_ancestry_goes_up_and_ends() {
    let policy = tenants(&[
        ("a", tenant("", &[])),
        ("b", TenantPolicy { weight_milli: 2_500, ..tenant("a", &[]) }),
        ("c", tenant("b", &[])),
    ])
    .check()
    .unwrap();
    let c = name("c");
    let up: Vec<&str> = policy.ancestry(&c).map(|tenant| tenant.as_str()).collect();
    assert_eq!(up, ["c", "b", "a"]);
    assert_eq!(
        (policy.parent(&name("b")), policy.parent(&name("x"))),
        (some("a").as_ref(), some("unlisted").as_ref())
    );
    assert_eq!(policy.parent(&name("unlisted")), None);
    assert_eq!(policy.weight_milli(&name("b")), 2_500);
}

#[test]
fn what_is_read_is_checked_and_what_is_left_out_is_the_default() {
    let read = |field: &'static str, value: u64| {
        let order = BTreeMap::from([(field, value)]);
        let whole: MapDeserializer<'_, _, Error> = BTreeMap::from([("order", order)]).into_deserializer();
        Policy::deserialize(whole).map_err(|error| error.to_string())
    };
    let mut expected = PolicyDraft::default();
    expected.order.usage_half_life_ms = 60_000;
    assert_eq!(read("usage_half_life_ms", 60_000).map(Policy::into_draft), Ok(expected));
    assert!(read("usage_half_life_ms", 0).unwrap_err().starts_with("order.usage_half_life: must be between"));
    assert!(read("half_life", 1).unwrap_err().contains("unknown field `half_life`"));
}

#[test]
fn one_limit_is_that_of_all_limits() {
    let user = |pending_jobs, submissions_per_minute| UserLimits {
        pending_jobs,
        submissions_per_minute,
        ..UserLimits::default()
    };
    let above = TenantLimits {
        pending_jobs: Some(9),
        running_jobs: Some(5),
        requests_per_minute: Some(60),
        user: user(Some(3), None),
        ..TenantLimits::default()
    };
    let below = TenantLimits {
        pending_jobs: Some(4),
        unfinished_jobs: Some(8),
        user: user(None, Some(7)),
        ..TenantLimits::default()
    };
    let draft = tenants(&[
        ("a", TenantPolicy { limits: above, ..tenant("", &[]) }),
        ("b", TenantPolicy { limits: below, ..tenant("a", &[]) }),
        ("c", tenant("b", &[])),
        ("unlisted", TenantPolicy { limits: below, ..TenantPolicy::default() }),
    ]);
    let policy = draft.check().unwrap();
    let limits: [fn(&TenantLimits) -> Option<u32>; 7] = [
        |limits| limits.pending_jobs,
        |limits| limits.unfinished_jobs,
        |limits| limits.running_jobs,
        |limits| limits.requests_per_minute,
        |limits| limits.user.pending_jobs,
        |limits| limits.user.unfinished_jobs,
        |limits| limits.user.submissions_per_minute,
    ];
    for text in ["a", "b", "c", "anyone"] {
        let all = policy.limits(&name(text));
        for (place, of) in limits.iter().enumerate() {
            assert_eq!(policy.limit(&name(text), of), of(&all), "limit {place} of {text}");
        }
    }
    assert_eq!(policy.limit(&name("c"), |limits| limits.user.pending_jobs), Some(3));
}

#[test]
fn rights_are_inherited() {
    let rights = TenantRights { tier_max: Some(PriorityTier::Critical), ..TenantRights::default() };
    let less = TenantRights { tier_max: Some(PriorityTier::Batch), deadlines: Some(true), ..rights };
    let draft = tenants(&[
        ("a", TenantPolicy { rights, ..tenant("", &[]) }),
        ("b", TenantPolicy { rights: less, ..tenant("a", &[]) }),
        ("c", tenant("b", &[])),
        ("unlisted", TenantPolicy { rights: TenantRights::ALL, ..TenantPolicy::default() }),
    ]);
    let policy = draft.check().unwrap();
    let of = |text: &str| policy.rights(&name(text));
    assert_eq!((of("a").tier_max, of("a").deadlines), (PriorityTier::Critical, false));
    assert_eq!((of("c").tier_max, of("c").deadlines), (PriorityTier::Batch, true));
    assert_eq!(of("anyone"), Rights::ALL);
    violates(|p| p.preemption.stopping_deadline_ms = 59_999, &["preemption.stopping_timeout"]);
    violates(|p| p.preemption.starting_deadline_ms = 0, &["preemption.starting_timeout"]);
}

/// What is looked for only where some tenant states it is found for the tenants below that one.
#[test]
fn what_a_tenant_above_states_is_found() {
    let below = |state: &dyn Fn(&mut TenantPolicy)| -> Policy {
        let mut lab = tenant("", &[]);
        state(&mut lab);
        let tenants = BTreeMap::from([(name("lab"), lab), (name("team"), tenant("lab", &[]))]);
        PolicyDraft { tenants, ..PolicyDraft::default() }.check().unwrap()
    };
    let (team, tier) = (name("team"), PriorityTier::Standard);
    let hours = AcceleratorBudget { hours: 5, window_ms: 86_400_000 };
    let job = JobLimits { devices_max: Some(8), ..JobLimits::default() };
    let nothing = below(&|_| {});
    assert!(!nothing.has_limits() && !nothing.has_host_limits());
    assert_eq!(nothing.rights(&team), Rights::LEAST);
    assert_eq!(nothing.limits(&team), TenantLimits::default());
    assert_eq!(nothing.job_limits(&team, tier), JobLimits::default());
    assert_eq!(below(&|lab| lab.limits.accelerator_hours = Some(hours)).budget(&team), Some(hours));
    let of_user = below(&|lab| lab.limits.user.accelerator_hours = Some(hours));
    assert!(of_user.has_limits());
    assert_eq!((of_user.user_budget(&team), of_user.budget(&team)), (Some(hours), None));
    assert_eq!(below(&|lab| lab.limits.user.running_jobs = Some(3)).user_running_jobs(&team), Some(3));
    let pending = below(&|lab| lab.limits.pending_jobs = Some(7));
    assert_eq!(pending.limit(&team, |limits| limits.pending_jobs), Some(7));
    let of_tier = below(&|lab| _ = lab.tier_submissions.insert(tier, 9));
    assert_eq!((of_tier.tier_submissions(&team, tier), of_tier.has_limits()), (Some(9), false));
    assert_eq!(below(&|lab| lab.limits.job = job).job_limits(&team, tier), job);
    assert_eq!(below(&|lab| _ = lab.tier_limits.insert(tier, job)).job_limits(&team, tier), job);
    let of_user = below(&|lab| _ = lab.user_limits.insert("ada".to_owned(), job));
    assert_eq!(of_user.job_limits_of_user(&team, tier, "tenant/team/ada+token/1"), job);
    // Users of the tenant above act for the tenants below it.
    assert_eq!(of_user.job_limits_of_user(&team, tier, "tenant/lab/ada"), job);
    assert_eq!(of_user.job_limits_of_user(&team, tier, "tenant/other/ada"), JobLimits::default());
    assert_eq!(of_user.job_limits_of_user(&team, tier, "eve"), JobLimits::default());
    assert_eq!(of_user.job_limits(&team, tier), JobLimits::default());
    assert!(below(&|lab| lab.rights.deadlines = Some(true)).rights(&team).deadlines);
    assert!(below(&|lab| lab.limits.cpu_milli = Some(1_000)).has_host_limits());
    assert!(below(&|lab| lab.limits.memory_bytes = Some(1 << 30)).has_host_limits());
}
