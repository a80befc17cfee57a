//! The policy as a file: what `muster policy show -o yaml` prints, `muster policy set` reads.

use std::collections::BTreeMap;

use muster_console::{Grid, moment, span};
use muster_manifest::quantity::{show_bytes, show_scaled};
use muster_types::PriorityTier;
use muster_types::policy::Order as JobOrder;
use muster_types::policy::{Guarantee, NonPreemptible};
use muster_wire::closed::word;
use muster_wire::v1;
use muster_wire::v1::window::Purpose;
use serde::Serialize;

use crate::view::Decimal;

/// The document `Policy`; the same shape as a policy file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_time: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    tenants: BTreeMap<String, Tenant>,
    order: Order,
    backfill: Backfill,
    preemption: Preemption,
    weights: BTreeMap<&'static str, u32>,
    prices: Vec<Price>,
    datasets: BTreeMap<String, Dataset>,
    transfers: Vec<Transfer>,
    spare_hosts_per_rack: BTreeMap<String, u32>,
    windows: Vec<Window>,
    isolation: Isolation,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Isolation {
    require: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tenant {
    #[serde(skip_serializing_if = "String::is_empty")]
    parent: String,
    weight: Decimal,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quotas: Vec<Quota>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rights: Option<Rights>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rights {
    #[serde(skip_serializing_if = "String::is_empty")]
    tier_max: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    non_preemptible: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadlines: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Quota {
    r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    nominal: Decimal,
    #[serde(skip_serializing_if = "Option::is_none")]
    borrowing_limit: Option<Decimal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lending_limit: Option<Decimal>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    by: String,
    fair_share: bool,
    usage_half_life: String,
    ageing: Decimal,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Backfill {
    reservations: u32,
    depth: u32,
    reserve_after: String,
    reserve_after_runs: Decimal,
    end_overrunners: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preemption {
    enabled: bool,
    reclaim_borrowed: bool,
    minimum_run: String,
    victims: u32,
    defragment: bool,
    defragment_wait: String,
    backoff: String,
    stopping_timeout: String,
    starting_timeout: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Price {
    r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    per_device_hour: Decimal,
}

#[derive(Serialize)]
struct Dataset {
    size: String,
    regions: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Transfer {
    #[serde(skip_serializing_if = "String::is_empty")]
    from: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    to: String,
    per_gib: Decimal,
    bytes_per_second: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Window {
    name: String,
    start_time: String,
    end_time: String,
    scope: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maintenance: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_for: Option<String>,
}

/// What a policy file says. Every answer of a server has its defaults filled in.
pub fn document(answer: &v1::GetPolicyResponse) -> Document {
    let policy = answer.policy.clone().unwrap_or_default();
    let order = policy.order.unwrap_or_default();
    let backfill = policy.backfill.unwrap_or_default();
    let preemption = policy.preemption.unwrap_or_default();
    let weights = policy.weights.unwrap_or_default();
    Document {
        api_version: "muster.dev/v1",
        kind: "Policy",
        metadata: Metadata { version: answer.version, set_time: moment(answer.set_time) },
        spec: Spec {
            tenants: policy.tenants.into_iter().map(|(name, t)| (name, tenant(t))).collect(),
            order: Order {
                by: word::<JobOrder>(order.order).to_owned(),
                fair_share: order.fair_share.unwrap_or_default(),
                usage_half_life: span(order.usage_half_life).unwrap_or_default(),
                ageing: Decimal::milli(order.ageing_milli.unwrap_or_default().into()),
            },
            backfill: Backfill {
                reservations: backfill.max_reservations.unwrap_or_default(),
                depth: backfill.max_depth.unwrap_or_default(),
                reserve_after: span(backfill.reserve_after).unwrap_or_default(),
                reserve_after_runs: Decimal::milli(
                    backfill.reserve_after_runs_milli.unwrap_or_default().into(),
                ),
                end_overrunners: backfill.end_overrunners.unwrap_or_default(),
            },
            preemption: Preemption {
                enabled: preemption.enabled.unwrap_or_default(),
                reclaim_borrowed: preemption.reclaim_borrowed.unwrap_or_default(),
                minimum_run: span(preemption.minimum_run).unwrap_or_default(),
                victims: preemption.max_victims.unwrap_or_default(),
                defragment: preemption.defragment.unwrap_or_default(),
                defragment_wait: span(preemption.defragment_wait).unwrap_or_default(),
                backoff: span(preemption.backoff).unwrap_or_default(),
                stopping_timeout: span(preemption.stopping_timeout).unwrap_or_default(),
                starting_timeout: span(preemption.starting_timeout).unwrap_or_default(),
            },
            weights: named_weights(&weights).into_iter().collect(),
            prices: policy.prices.into_iter().map(price).collect(),
            datasets: policy.datasets.into_iter().map(|(name, d)| (name, dataset(d))).collect(),
            transfers: policy.transfers.into_iter().map(transfer).collect(),
            spare_hosts_per_rack: policy.spare_hosts_per_rack.into_iter().collect(),
            windows: policy.windows.into_iter().map(window).collect(),
            isolation: Isolation { require: isolation(policy.isolation) },
        },
    }
}

/// The words of what is required.
fn isolation(policy: Option<v1::IsolationPolicy>) -> Vec<String> {
    let required = policy.unwrap_or_default().require;
    required.into_iter().map(|number| word::<Guarantee>(number).to_owned()).collect()
}

fn named_weights(weights: &v1::PlacementWeights) -> [(&'static str, u32); 6] {
    [
        ("packing", weights.packing),
        ("throughput", weights.throughput),
        ("cost", weights.cost),
        ("data", weights.data),
        ("topology", weights.topology),
        ("spread", weights.spread),
    ]
    .map(|(name, weight)| (name, weight.unwrap_or_default()))
}

fn tenant(tenant: v1::TenantPolicy) -> Tenant {
    let quota = |quota: v1::Quota| Quota {
        r#type: quota.r#type,
        region: quota.region,
        nominal: Decimal::milli(quota.nominal_milli),
        borrowing_limit: quota.borrowing_limit_milli.map(Decimal::milli),
        lending_limit: quota.lending_limit_milli.map(Decimal::milli),
    };
    Tenant {
        parent: tenant.parent,
        weight: Decimal::milli(tenant.weight_milli.into()),
        quotas: tenant.quotas.into_iter().map(quota).collect(),
        rights: tenant.rights.map(|rights| Rights {
            tier_max: word::<PriorityTier>(rights.tier_max).to_owned(),
            non_preemptible: word::<NonPreemptible>(rights.non_preemptible).to_owned(),
            deadlines: rights.deadlines,
        }),
        limits: tenant.limits.map(|limits| Limits {
            pending_jobs: limits.pending_jobs,
            unfinished_jobs: limits.unfinished_jobs,
            running_jobs: limits.running_jobs,
            requests_per_minute: limits.requests_per_minute,
        }),
    }
}

fn price(price: v1::Price) -> Price {
    let per_device_hour = Decimal::micro(price.micro_dollars_per_device_hour);
    Price { r#type: price.r#type, region: price.region, per_device_hour }
}

fn dataset(dataset: v1::Dataset) -> Dataset {
    Dataset { size: show_bytes(dataset.bytes), regions: dataset.regions }
}

fn transfer(transfer: v1::Transfer) -> Transfer {
    Transfer {
        from: transfer.from,
        to: transfer.to,
        per_gib: Decimal::micro(transfer.micro_dollars_per_gib),
        bytes_per_second: show_bytes(transfer.bytes_per_second),
    }
}

fn scope(scope: v1::WindowScope) -> BTreeMap<&'static str, String> {
    let parts = [
        ("region", scope.region),
        ("cluster", scope.cluster),
        ("block", scope.block),
        ("rack", scope.rack),
        ("node", scope.node),
    ];
    parts.into_iter().filter(|(_, name)| !name.is_empty()).collect()
}

fn window(window: v1::Window) -> Window {
    let (maintenance, reserved_for) = match window.purpose {
        Some(Purpose::Maintenance(_)) => (Some(true), None),
        Some(Purpose::ReservedForTenant(tenant)) => (None, Some(tenant)),
        None => (None, None),
    };
    Window {
        name: window.name,
        start_time: moment(window.start_time).unwrap_or_default(),
        end_time: moment(window.end_time).unwrap_or_default(),
        scope: scope(window.scope.unwrap_or_default()),
        maintenance,
        reserved_for,
    }
}

/// Settings in lines for people.
pub fn settings(answer: &v1::GetPolicyResponse) -> Vec<(&'static str, String)> {
    let policy = answer.policy.clone().unwrap_or_default();
    let order = policy.order.unwrap_or_default();
    let backfill = policy.backfill.unwrap_or_default();
    let preemption = policy.preemption.unwrap_or_default();
    let duration = |given| span(given).unwrap_or_default();
    let on = |flag: Option<bool>| if flag.unwrap_or_default() { "on" } else { "off" };
    let weights = named_weights(&policy.weights.unwrap_or_default());
    let weights: Vec<String> = weights.iter().map(|(name, weight)| format!("{name} {weight}")).collect();
    vec![
        (
            "version",
            match moment(answer.set_time) {
                Some(at) => format!("{}, set {at}", answer.version),
                None => format!("{}, as every cluster begins", answer.version),
            },
        ),
        (
            "order",
            format!(
                "{}, fair share {}, half-life of usage {}, ageing {}",
                word::<JobOrder>(order.order),
                on(order.fair_share),
                duration(order.usage_half_life),
                show_scaled(order.ageing_milli.unwrap_or_default().into(), 3)
            ),
        ),
        (
            "backfill",
            format!(
                "{} reservations, {} jobs deep, reserved after {} and {} runs",
                backfill.max_reservations.unwrap_or_default(),
                backfill.max_depth.unwrap_or_default(),
                duration(backfill.reserve_after),
                show_scaled(backfill.reserve_after_runs_milli.unwrap_or_default().into(), 3)
            ),
        ),
        (
            "preemption",
            format!(
                "{}, reclaim {}, after {}, at most {} victims, not again for {}",
                on(preemption.enabled),
                on(preemption.reclaim_borrowed),
                duration(preemption.minimum_run),
                preemption.max_victims.unwrap_or_default(),
                duration(preemption.backoff)
            ),
        ),
        (
            "overdue",
            format!(
                "starts after {}, stops after {}, owners of reservations end overrunners: {}",
                duration(preemption.starting_timeout),
                duration(preemption.stopping_timeout),
                on(backfill.end_overrunners)
            ),
        ),
        (
            "defragment",
            format!("{}, after {}", on(preemption.defragment), duration(preemption.defragment_wait)),
        ),
        ("weights", weights.join(", ")),
        (
            "isolation",
            match isolation(policy.isolation) {
                required if required.is_empty() => "not required".to_owned(),
                required => format!("nodes must isolate workers by {}", required.join(", ")),
            },
        ),
    ]
}

/// Everything that is a list, as tables with their names; empty ones are left out.
pub fn tables(policy: &v1::Policy) -> Vec<Grid> {
    let mut tables = Vec::new();
    let mut add = |header: Vec<&'static str>, rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        let mut grid = Grid::new(header);
        rows.into_iter().for_each(|row| grid.row(row));
        tables.push(grid);
    };
    let header = vec!["TENANT", "WEIGHT", "TYPE", "REGION", "NOMINAL", "BORROWS", "LENDS"];
    add(header, tenant_rows(policy));
    add(vec!["TENANT", "TIERS UP TO", "NON-PREEMPTIBLE", "DEADLINES"], rights_rows(policy));
    let header = vec![
        "TENANT",
        "PENDING JOBS UP TO",
        "UNFINISHED JOBS UP TO",
        "RUNNING JOBS UP TO",
        "REQUESTS A MINUTE",
    ];
    add(header, limits_rows(policy));
    let everywhere = |name: &str| if name.is_empty() { "all".to_owned() } else { name.to_owned() };
    let price = |price: &v1::Price| {
        let dollars = show_scaled(price.micro_dollars_per_device_hour, 6);
        vec![price.r#type.clone(), everywhere(&price.region), format!("${dollars}")]
    };
    add(vec!["TYPE", "REGION", "DEVICE-HOUR"], policy.prices.iter().map(price).collect());
    let datasets: BTreeMap<&String, &v1::Dataset> = policy.datasets.iter().collect();
    let dataset = |(name, dataset): (&&String, &&v1::Dataset)| {
        vec![(*name).clone(), show_bytes(dataset.bytes), dataset.regions.join(",")]
    };
    add(vec!["DATA SET", "SIZE", "REGIONS"], datasets.iter().map(dataset).collect());
    let transfer = |transfer: &v1::Transfer| {
        vec![
            everywhere(&transfer.from),
            everywhere(&transfer.to),
            format!("${}", show_scaled(transfer.micro_dollars_per_gib, 6)),
            format!("{}/s", show_bytes(transfer.bytes_per_second)),
        ]
    };
    add(vec!["FROM", "TO", "GIB", "SPEED"], policy.transfers.iter().map(transfer).collect());
    let spares: BTreeMap<&String, &u32> = policy.spare_hosts_per_rack.iter().collect();
    let spare = |(kind, hosts): (&&String, &&u32)| vec![(*kind).clone(), hosts.to_string()];
    add(vec!["TYPE", "SPARE HOSTS PER RACK"], spares.iter().map(spare).collect());
    add(vec!["WINDOW", "FROM", "UNTIL", "PURPOSE", "SCOPE"], policy.windows.iter().map(window_row).collect());
    tables
}

/// Tenants that the policy states rights of; what it leaves out is inherited.
fn rights_rows(policy: &v1::Policy) -> Vec<Vec<String>> {
    let tenants: BTreeMap<&String, &v1::TenantPolicy> = policy.tenants.iter().collect();
    let stated = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let row = |(name, tenant): (&&String, &&v1::TenantPolicy)| {
        let rights = tenant.rights.as_ref()?;
        let deadlines = rights.deadlines.map_or("-", |may| if may { "yes" } else { "no" });
        Some(vec![
            (*name).clone(),
            stated(word::<PriorityTier>(rights.tier_max)),
            stated(word::<NonPreemptible>(rights.non_preemptible)),
            deadlines.to_owned(),
        ])
    };
    tenants.iter().filter_map(row).collect()
}

/// Tenants that the policy states limits of, in the same way.
fn limits_rows(policy: &v1::Policy) -> Vec<Vec<String>> {
    let tenants: BTreeMap<&String, &v1::TenantPolicy> = policy.tenants.iter().collect();
    let stated = |limit: Option<u32>| limit.map_or("-".to_owned(), |limit| limit.to_string());
    let row = |(name, tenant): (&&String, &&v1::TenantPolicy)| {
        let limits = tenant.limits.as_ref()?;
        Some(vec![
            (*name).clone(),
            stated(limits.pending_jobs),
            stated(limits.unfinished_jobs),
            stated(limits.running_jobs),
            stated(limits.requests_per_minute),
        ])
    };
    tenants.iter().filter_map(row).collect()
}

fn window_row(message: &v1::Window) -> Vec<String> {
    let view = window(message.clone());
    let purpose = view.reserved_for.map_or("maintenance".to_owned(), |tenant| format!("for {tenant}"));
    let scope: Vec<String> = view.scope.iter().map(|(level, name)| format!("{level} {name}")).collect();
    vec![view.name, view.start_time, view.end_time, purpose, scope.join(", ")]
}

/// The tree, tenants below their parents; a row for each quota.
fn tenant_rows(policy: &v1::Policy) -> Vec<Vec<String>> {
    let mut below: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for (name, tenant) in &policy.tenants {
        below.entry(tenant.parent.as_str()).or_default().push(name);
    }
    below.values_mut().for_each(|names| names.sort());
    let mut rows = Vec::new();
    // Last in, first out: pushed in reverse, so that siblings come by name.
    let push = |stack: &mut Vec<(usize, String)>, depth: usize, parent: &str| {
        let names = below.get(parent).into_iter().flatten().rev();
        stack.extend(names.map(|name| (depth, (*name).clone())));
    };
    let mut stack = Vec::new();
    push(&mut stack, 0, "");
    while let Some((depth, name)) = stack.pop() {
        let Some(tenant) = policy.tenants.get(&name) else { continue };
        let shown = format!("{}{name}", "  ".repeat(depth));
        let weight = show_scaled(tenant.weight_milli.into(), 3);
        if tenant.quotas.is_empty() {
            let none = String::new;
            rows.push(vec![shown.clone(), weight.clone(), none(), none(), none(), none(), none()]);
        }
        for quota in &tenant.quotas {
            let limit = |milli: Option<u64>| milli.map_or("all".to_owned(), |milli| show_scaled(milli, 3));
            rows.push(vec![
                shown.clone(),
                weight.clone(),
                quota.r#type.clone(),
                if quota.region.is_empty() { "all".to_owned() } else { quota.region.clone() },
                show_scaled(quota.nominal_milli, 3),
                quota.borrowing_limit_milli.map_or("any".to_owned(), |milli| show_scaled(milli, 3)),
                limit(quota.lending_limit_milli),
            ]);
        }
        // A policy that a server accepted has no cycles; of another, every tenant is shown once at most.
        if rows.len() <= policy.tenants.len() + policy.tenants.values().map(|t| t.quotas.len()).sum::<usize>()
        {
            push(&mut stack, depth + 1, &name);
        }
    }
    rows
}
