//! Policies: what goes in comes out, and what is wrong is named.

use std::collections::BTreeSet;

use super::generators::name;
use super::*;

fn milli() -> impl Strategy<Value = u64> {
    0..=1_000_000u64
}

fn quota() -> impl Strategy<Value = Quota> {
    (name(), option::of(name()), milli(), option::of(milli()), any::<bool>()).prop_map(
        |(kind, region, nominal_milli, borrowing_limit_milli, lends)| Quota {
            kind,
            region,
            nominal_milli,
            borrowing_limit_milli,
            lending_limit_milli: lends.then_some(nominal_milli / 2),
        },
    )
}

/// Tenants whose parents come before them, so that there is no cycle; promises only on the leaves.
fn tenants() -> impl Strategy<Value = BTreeMap<Name, TenantPolicy>> {
    btree_map(name(), (1..=1_000_000u32, option::of(quota()), any::<bool>()), 0..8).prop_map(|tenants| {
        let first = tenants.keys().next().cloned();
        let tenant = |(name, (weight_milli, quota, below)): (Name, (u32, Option<Quota>, bool))| {
            let parent = first.clone().filter(|first| below && *first != name);
            let quotas = quota.filter(|_| Some(&name) != first.as_ref()).into_iter().collect();
            let rights = TenantRights {
                tier_max: (weight_milli % 3 == 0).then_some(PriorityTier::Production),
                non_preemptible: (weight_milli % 5 == 0).then_some(NonPreemptible::WithinNominal),
                deadlines: (weight_milli % 2 == 0).then_some(weight_milli % 4 == 0),
                bookings: (weight_milli % 13 == 0).then_some(weight_milli % 4 == 0),
                purchases: if weight_milli % 3 == 0 { PurchaseSet::ALL } else { PurchaseSet::EMPTY },
                negative_nice: (weight_milli % 5 == 0).then_some(weight_milli % 2 == 0),
            };
            let limits = TenantLimits {
                pending_jobs: (weight_milli % 7 == 0).then_some(weight_milli),
                unfinished_jobs: (weight_milli % 11 == 0).then_some(0),
                running_jobs: (weight_milli % 13 == 0).then_some(weight_milli),
                requests_per_minute: (weight_milli % 3 == 0).then_some(1),
                user: UserLimits {
                    pending_jobs: (weight_milli % 17 == 0).then_some(0),
                    unfinished_jobs: (weight_milli % 5 == 0).then_some(weight_milli),
                    running_jobs: (weight_milli % 6 == 0).then_some(weight_milli),
                    accelerator_hours: (weight_milli % 10 == 0)
                        .then_some(AcceleratorBudget { hours: weight_milli, window_ms: 86_400_000 }),
                    submissions_per_minute: (weight_milli % 14 == 0).then_some(weight_milli),
                    spend: (weight_milli % 15 == 0)
                        .then_some(SpendBudget { dollars: weight_milli, window_ms: 86_400_000 }),
                    devices: (weight_milli % 16 == 0).then_some(weight_milli),
                },
                job: JobLimits {
                    devices_max: (weight_milli % 4 == 0).then_some(weight_milli),
                    workers_max: (weight_milli % 7 == 0).then_some(weight_milli),
                    run_time_max_ms: (weight_milli % 6 == 0).then_some(u64::from(weight_milli)),
                    run_time_default_ms: (weight_milli % 9 == 0).then_some(1),
                    artifacts_bytes_max: (weight_milli % 10 == 0).then_some(u64::from(weight_milli)),
                },
                accelerator_hours: (weight_milli % 12 == 0)
                    .then_some(AcceleratorBudget { hours: 1, window_ms: 60_000 }),
                cpu_milli: (weight_milli % 3 == 0).then_some(weight_milli.into()),
                memory_bytes: (weight_milli % 4 == 0).then_some(weight_milli.into()),
                spend: (weight_milli % 18 == 0).then_some(SpendBudget { dollars: 1, window_ms: 60_000 }),
                on_limit: match weight_milli % 5 {
                    0 => Some(OnLimit::Hold),
                    1 => Some(OnLimit::Refuse),
                    _ => None,
                },
            };
            let of_tier = JobLimits { devices_max: Some(weight_milli), ..JobLimits::default() };
            let tier_limits = match weight_milli % 8 {
                0 => [(PriorityTier::Free, of_tier), (PriorityTier::Critical, JobLimits::default())].into(),
                _ => BTreeMap::new(),
            };
            let nodes = (weight_milli % 6 == 0).then(|| NodeRequirements {
                expressions: Vec::new(),
                only: [Name::literal("n1")].into(),
                exclude: BTreeSet::new(),
            });
            let queue = QueueChoices {
                order: (weight_milli % 3 == 0).then_some(QueueOrder::Strict),
                block_for_ms: (weight_milli % 4 == 0).then_some(60_000),
                preemption: (weight_milli % 5 == 0).then_some(QueuePreemption::FairShare),
                isolated: nodes.as_ref().map(|_| weight_milli % 12 == 0),
                nodes,
            };
            // Of a tier with limits and of one without.
            let tier_submissions = match weight_milli % 4 {
                0 => [(PriorityTier::Free, weight_milli), (PriorityTier::Batch, 0)].into(),
                _ => BTreeMap::new(),
            };
            let user_limits = match weight_milli % 5 {
                0 => {
                    [("ada".to_owned(), of_tier), ("tenant/lab/eve".to_owned(), JobLimits::default())].into()
                }
                _ => BTreeMap::new(),
            };
            let tenant = TenantPolicy {
                parent,
                weight_milli,
                users: None,
                quotas,
                rights,
                limits,
                tier_limits,
                tier_submissions,
                user_limits,
                queue,
            };
            (name, tenant)
        };
        tenants.into_iter().map(tenant).collect()
    })
}

fn window() -> impl Strategy<Value = Window> {
    (name(), 0..MOMENT_MS_MAX / 2, 1..MOMENT_MS_MAX / 2, name(), option::of(name()), option::of(name()))
        .prop_map(|(name, from, length, cluster, rack, tenant)| Window {
            name,
            from: LogTime(from),
            until: LogTime(from + length),
            scope: WindowScope { cluster: Some(cluster), rack, ..WindowScope::default() },
            purpose: tenant
                .map_or(WindowPurpose::Maintenance, |tenant| WindowPurpose::ReservedFor { tenant }),
        })
}

prop_compose! {
    fn scheduling()(
        by_submission: bool,
        flags in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        half_life in 60_000..1_000_000u64,
        numbers in (0u32..1_000, 0u32..=64, 1u32..10_000, 0u32..=256),
        times in (0u64..1_000_000, 0u64..1_000_000),
        weights in (0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000, 0u16..=1_000),
    ) -> PolicyDraft {
        let (packing, throughput, cost, data, topology, spread) = weights;
        PolicyDraft {
            order: OrderPolicy {
                order: if by_submission { Order::Submission } else { Order::Predicted },
                fair_share: flags.0, usage_half_life_ms: half_life, ageing_milli: numbers.0,
            },
            backfill: BackfillPolicy {
                reservations_max: numbers.1, depth_max: numbers.2,
                reserve_after_ms: times.1, reserve_after_runs_milli: numbers.0,
                end_overrunners: flags.0,
            },
            preemption: PreemptionPolicy {
                enabled: flags.1, reclaim_borrowed: flags.2, minimum_run_ms: times.0,
                victims_max: numbers.3, defragment: flags.3, defragment_wait_ms: times.1,
                backoff_ms: times.0, stopping_deadline_ms: 60_000 + times.0, starting_deadline_ms: 60_000 + times.1,
            },
            weights: PlacementWeights { packing, throughput, cost, data, topology, spread },
            ..PolicyDraft::default()
        }
    }
}

/// Prices of every form; which one follows from the amount.
fn priced(kind: Name, region: Option<Name>, micro_dollars: u64) -> Price {
    let purchase = [None, Some(PurchaseKind::Spot), Some(PurchaseKind::Reserved)][micro_dollars as usize % 3];
    let from = (micro_dollars.is_multiple_of(2)).then_some(LogTime(micro_dollars));
    let until = (micro_dollars.is_multiple_of(5)).then_some(LogTime(micro_dollars + 1));
    if !micro_dollars.is_multiple_of(7) {
        return Price { purchase, from, until, ..Price::new(kind, region, micro_dollars) };
    }
    let owned = OwnedCost {
        micro_dollars_per_device: micro_dollars,
        depreciation_months: 48,
        watts: 700,
        pue_milli: 1_300,
        micro_dollars_per_kwh: 110_000,
    };
    let purchase = Some(PurchaseKind::Owned);
    Price { purchase, from, until, owned: Some(owned), ..Price::new(kind, region, 0) }
}

prop_compose! {
    fn policy()(
        draft in scheduling(),
        tenants in tenants(),
        prices in btree_map((name(), option::of(name())), 0..1_000_000u64, 0..4),
        datasets in btree_map(name(), (0..1u64 << 60, btree_set(name(), 1..4)), 0..4),
        transfers in btree_map((option::of(name()), option::of(name())), (0..9u64, 1..9u64), 0..4),
        spare_hosts_per_rack in btree_map(name(), 0u16..=1_000, 0..4),
        windows in vec(window(), 0..4),
        required_isolation in btree_set(proptest::sample::select(Guarantee::ALL.to_vec()), 0..4),
        receivers in btree_map(name(), (option::of(name()), 0..7usize, any::<bool>()), 0..4),
        roles in btree_map("own-[a-z]{1,8}", (0..18usize, btree_set(name(), 0..4)), 0..4),
    ) -> Policy {
        let price = |((kind, region), micro_dollars_per_device_hour)| {
            priced(kind, region, micro_dollars_per_device_hour)
        };
        let transfer = |((from, to), (micro_dollars_per_gib, bytes_per_second))| {
            Transfer { from, to, micro_dollars_per_gib, bytes_per_second }
        };
        let receiver = |(name, (tenant, event, is_slack)): (Name, (Option<Name>, usize, bool))| Receiver {
            url: if is_slack { String::new() } else { format!("https://{name}.example/hook") },
            name,
            tenant,
            // The first are events of jobs.
            events: [NotificationEvent::ALL[event]].into(),
            for_jobs: is_slack,
            body: if is_slack { NotificationBody::Slack } else { NotificationBody::Generic },
        };
        // Of the two built-in roles that have every verb together, the one that has this.
        let role = |(name, (verb, regions)): (String, (usize, BTreeSet<Name>))| {
            let verb = Verb::ALL[verb];
            let wholes = [TokenRole::Operator, TokenRole::Drill];
            let part_of = wholes.into_iter().find(|part_of| verb.is_of(*part_of)).unwrap();
            (Name::new(&name).unwrap(), OwnRole { part_of, verbs: [verb].into(), regions })
        };
        let mut windows = windows;
        for (index, window) in windows.iter_mut().enumerate() {
            window.name = Name::new(&format!("w{index}")).unwrap();
        }
        PolicyDraft {
            tenants, spare_hosts_per_rack, windows, required_isolation,
            notifications: receivers.into_iter().map(receiver).collect(),
            roles: roles.into_iter().map(role).collect(),
            interruption_rates: vec![InterruptionRate {
                purchase: PurchaseKind::Spot, region: None, per_day_milli: 500,
            }],
            resources: vec![CountedResource { name: Name::literal("matlab"), count: 40, region: Name::new("eu") }],
            prices: prices.into_iter().map(price).collect(),
            datasets: datasets.into_iter()
                .map(|(name, (bytes, regions))| (name, Dataset { bytes, regions })).collect(),
            transfers: transfers.into_iter().map(transfer).collect(),
            ..draft
        }.check().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn policies_return(policy in policy()) {
        let message = policy_to_proto(&policy);
        prop_assert_eq!(policy_from_proto("policy", Some(message)), Ok(policy));
    }
}

#[test]
fn an_empty_policy_is_the_default_one() {
    assert_eq!(policy_from_proto("policy", Some(v1::Policy::default())), Ok(Policy::default()));
    assert_eq!(fields(&policy_from_proto("policy", None).unwrap_err()), ["policy"]);
    // A zero that means zero is not an absent one.
    let none = v1::BackfillPolicy { max_reservations: Some(0), ..Default::default() };
    let policy = v1::Policy { backfill: Some(none), ..Default::default() };
    assert_eq!(policy_from_proto("policy", Some(policy)).unwrap().backfill.reservations_max, 0);
    let weighed = |weight_milli| {
        let tenant = v1::TenantPolicy { weight_milli, ..Default::default() };
        let policy = v1::Policy { tenants: [("a".to_owned(), tenant)].into(), ..Default::default() };
        policy_from_proto("policy", Some(policy)).unwrap().tenants[&Name::literal("a")].weight_milli
    };
    assert_eq!((weighed(None), weighed(Some(0))), (1_000, 0));
}

#[test]
fn every_mistake_in_a_policy_is_named_by_its_path() {
    let quota = |kind: &str| v1::Quota { r#type: kind.into(), ..Default::default() };
    let tenant = v1::TenantPolicy {
        parent: "No".into(),
        weight_milli: Some(u32::MAX),
        quotas: vec![quota("h100"), quota("H100"), quota("h100")],
        rights: Some(v1::TenantRights {
            tier_max: 17,
            non_preemptible: 17,
            deadlines: None,
            bookings: None,
            purchases: Vec::new(),
            negative_nice: None,
        }),
        limits: None,
        queue: None,
        users: None,
    };
    let window = v1::Window {
        name: "w".into(),
        start_time: Some(timestamp(5)),
        end_time: Some(timestamp(5)),
        scope: None,
        purpose: None,
    };
    let wrong = v1::Policy {
        tenants: HashMap::from([("a".to_owned(), tenant)]),
        order: Some(v1::OrderPolicy { order: 17, usage_half_life: Some(duration(0)), ..Default::default() }),
        backfill: Some(v1::BackfillPolicy {
            max_reservations: Some(65),
            max_depth: Some(0),
            ..Default::default()
        }),
        weights: Some(v1::PlacementWeights { cost: Some(1_001), data: Some(70_000), ..Default::default() }),
        prices: vec![v1::Price { r#type: "?".into(), ..Default::default() }],
        datasets: HashMap::from([("d".to_owned(), v1::Dataset { bytes: u64::MAX, regions: vec![] })]),
        transfers: vec![v1::Transfer { from: "EU".into(), ..Default::default() }],
        spare_hosts_per_rack: HashMap::from([("gb200".to_owned(), 70_000)]),
        windows: vec![window.clone(), v1::Window { name: "W".into(), purpose: None, ..window }],
        isolation: Some(v1::IsolationPolicy { require: vec![v1::Isolation::Pid.into(), 17] }),
        ..Default::default()
    };
    let found = policy_from_proto("policy", Some(wrong)).unwrap_err();
    let mut found = fields(&found);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "policy.backfill.max_depth",
            "policy.backfill.max_reservations",
            "policy.datasets.d.bytes",
            "policy.datasets.d.regions",
            "policy.isolation.require[1]",
            "policy.order.order",
            "policy.order.usage_half_life",
            "policy.prices[0].type",
            "policy.spare_hosts_per_rack.gb200",
            "policy.tenants.a.parent",
            "policy.tenants.a.quotas[1].type",
            "policy.tenants.a.quotas[2]",
            "policy.tenants.a.rights.non_preemptible",
            "policy.tenants.a.rights.tier_max",
            "policy.tenants.a.weight_milli",
            "policy.transfers[0].bytes_per_second",
            "policy.transfers[0].from",
            "policy.weights.cost",
            "policy.weights.data",
            "policy.windows[0].end_time",
            "policy.windows[0].purpose",
            "policy.windows[0].scope",
            "policy.windows[1].end_time",
            "policy.windows[1].name",
            "policy.windows[1].purpose",
            "policy.windows[1].scope",
        ]
    );
}

#[test]
fn a_policy_of_nothing_but_mistakes_stays_small() {
    let tenants = (0..20_000).map(|n| (format!("?{n}"), v1::TenantPolicy::default())).collect();
    let worst = v1::Policy {
        tenants,
        prices: vec![v1::Price::default(); 10_000],
        windows: vec![v1::Window::default(); 10_000],
        ..Default::default()
    };
    assert_eq!(policy_from_proto("policy", Some(worst)).unwrap_err().len(), VIOLATIONS_MAX);
}

#[test]
fn receivers_that_are_wrong_are_refused_by_their_fields() {
    let receiver = |name: &str, url: &str, events: Vec<i32>| v1::NotificationReceiver {
        name: name.to_owned(),
        url: url.to_owned(),
        events,
        ..Default::default()
    };
    let fields = |notifications: Vec<v1::NotificationReceiver>| -> Vec<String> {
        let message = v1::Policy { notifications, ..Default::default() };
        let found = policy_from_proto("policy", Some(message)).err().unwrap_or_default();
        found.into_iter().map(|violation| violation.field).collect()
    };
    let (failed, down) = (v1::NotificationEvent::JobFailed.into(), v1::NotificationEvent::NodeDown.into());
    let url = "https://hooks.example/a";
    assert!(fields(vec![receiver("ops", url, vec![failed, down])]).is_empty());
    let at = |field: &str| format!("policy.notifications[0].{field}");
    assert_eq!(fields(vec![receiver("Ops!", url, vec![failed])]), [at("name")]);
    assert_eq!(fields(vec![receiver("ops", "hooks.example", vec![failed])]), [at("url")]);
    assert_eq!(fields(vec![receiver("ops", url, vec![])]), [at("events")]);
    assert_eq!(fields(vec![receiver("ops", url, vec![failed, 0])]), [at("events[1]")]);
    assert_eq!(fields(vec![receiver("ops", url, vec![failed, 99])]), [at("events[1]")]);
    let of_tenant = v1::NotificationReceiver { tenant: "lab".to_owned(), ..receiver("ops", url, vec![down]) };
    assert_eq!(fields(vec![of_tenant]), [at("events")]);
    let other_body = v1::NotificationReceiver { body: 99, ..receiver("ops", url, vec![failed]) };
    assert_eq!(fields(vec![other_body]), [at("body")]);
    let twice = vec![receiver("ops", url, vec![failed]), receiver("ops", url, vec![failed])];
    assert_eq!(fields(twice), ["policy.notifications[1].name"]);
    let many = (0..=64).map(|n| receiver(&format!("r{n}"), url, vec![failed])).collect();
    assert_eq!(fields(many), ["policy.notifications"]);
}
