//! The policy.
//!
//! A policy is large and written by hand: every violation names the field of the message, and a list is
//! cut to its bound before it is looked into. Defaults are those of the types; a field that has another
//! default than zero is `optional` in the message.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_types::policy::{
    self, AcceleratorBudget, BackfillPolicy, Dataset, Guarantee, JobLimits, NotificationBody, OrderPolicy,
    OwnRole, OwnedCost, POLICY_PARTS_MAX, PlacementWeights, Policy, PolicyDraft, PolicyPart, PolicyUpdate,
    PreemptionPolicy, Price, PurchaseKind, QueueChoices, Quota, Receiver, SpendBudget, TenantLimits,
    TenantPolicy, TenantRights, Transfer, UserLimits, Verb, Window, WindowPurpose, WindowScope,
};
use muster_types::{Name, PriorityTier, TokenRole, Violation, fleet::checked_name, limits};

use super::capacity::{interruption_rate_to_proto, interruption_rates, purchase_set, purchases_to_proto};
use super::contract::notification_events;
use super::licence::{resource_to_proto, resources};
use super::user_shares::{user_shares, user_shares_to_proto};
use super::{Found, below, bound, moment, span};
use crate::closed::{given_from_proto, number, number_or_zero, value_from_proto};
use crate::time::{duration, timestamp};
use crate::{FieldMask, v1};
use v1::window::Purpose;

/// The policy an operator sets. `at` is the path of the message, for example `policy`.
///
/// # Errors
/// Lists every field that breaks a rule, up to [`VIOLATIONS_MAX`](super::VIOLATIONS_MAX).
pub fn policy_from_proto(at: &str, message: Option<v1::Policy>) -> Result<Policy, Vec<Violation>> {
    let Some(message) = message else {
        return Err(vec![Violation::new(at, "must be given")]);
    };
    let mut found = Found::default();
    let draft = draft(at, message, &mut found);
    match draft.check() {
        Ok(policy) if found.is_empty() => Ok(policy),
        Ok(_) => Err(found.into_violations()),
        Err(violations) => {
            found.extend(violations.into_iter().map(|v| v.under(at)).collect());
            Err(found.into_violations())
        }
    }
}

/// An update of parts of the policy: those that the mask names, as `policy` has them.
///
/// # Errors
/// Lists every field that is wrong by itself, by its path in the request. Rules between the parts are
/// checked with the policy in force.
pub fn policy_update_from_proto(
    policy: Option<v1::Policy>,
    mask: Option<FieldMask>,
) -> Result<PolicyUpdate, Vec<Violation>> {
    let paths = mask.map(|mask| mask.paths).unwrap_or_default();
    let mut found = Found::default();
    let mut parts = Vec::with_capacity(paths.len().min(POLICY_PARTS_MAX));
    // One more than there may be shows that there are too many.
    for path in paths.iter().take(POLICY_PARTS_MAX + 1) {
        parts.extend(found.take(PolicyPart::at(path).map_err(|text| Violation::new("update_mask", text))));
    }
    if !found.is_empty() {
        return Err(found.into_violations());
    }
    let message = only(policy.unwrap_or_default(), &parts);
    let given = draft("policy", message, &mut found);
    match PolicyUpdate::new(&given, parts) {
        Ok(update) if found.is_empty() => Ok(update),
        Ok(_) => Err(found.into_violations()),
        Err(violation) => {
            found.push(violation);
            Err(found.into_violations())
        }
    }
}

/// These parts alone: others are not read, and need not be right.
fn only(policy: v1::Policy, parts: &[PolicyPart]) -> v1::Policy {
    let whole: BTreeSet<&str> =
        parts.iter().filter(|part| part.entry().is_none()).map(PolicyPart::field).collect();
    let entries: BTreeSet<(&str, &str)> =
        parts.iter().filter_map(|part| Some((part.field(), part.entry()?.as_str()))).collect();
    let has = |field: &str| whole.contains(field);
    let has_entry = |field: &str, name: &str| has(field) || entries.contains(&(field, name));
    let mut kept = v1::Policy {
        tenants: policy.tenants,
        order: policy.order.filter(|_| has("order")),
        backfill: policy.backfill.filter(|_| has("backfill")),
        preemption: policy.preemption.filter(|_| has("preemption")),
        weights: policy.weights.filter(|_| has("weights")),
        prices: if has("prices") { policy.prices } else { Vec::new() },
        datasets: policy.datasets,
        transfers: if has("transfers") { policy.transfers } else { Vec::new() },
        spare_hosts_per_rack: policy.spare_hosts_per_rack,
        windows: if has("windows") { policy.windows } else { Vec::new() },
        isolation: policy.isolation.filter(|_| has("isolation")),
        notifications: if has("notifications") { policy.notifications } else { Vec::new() },
        roles: policy.roles,
        interruption_rates: if has("interruption_rates") { policy.interruption_rates } else { Vec::new() },
        resources: if has("resources") { policy.resources } else { Vec::new() },
    };
    kept.tenants.retain(|name, _| has_entry("tenants", name));
    kept.datasets.retain(|name, _| has_entry("datasets", name));
    kept.spare_hosts_per_rack.retain(|name, _| has_entry("spare_hosts_per_rack", name));
    kept.roles.retain(|name, _| has_entry("roles", name));
    kept
}

fn draft(at: &str, message: v1::Policy, found: &mut Found) -> PolicyDraft {
    PolicyDraft {
        tenants: tenants(&below(at, "tenants"), message.tenants, found),
        order: order(&below(at, "order"), message.order.unwrap_or_default(), found),
        backfill: backfill(&below(at, "backfill"), message.backfill.unwrap_or_default(), found),
        preemption: preemption(&below(at, "preemption"), message.preemption.unwrap_or_default(), found),
        weights: weights(&below(at, "weights"), message.weights.unwrap_or_default(), found),
        prices: prices(&below(at, "prices"), message.prices, found),
        datasets: datasets(&below(at, "datasets"), message.datasets, found),
        transfers: transfers(&below(at, "transfers"), message.transfers, found),
        spare_hosts_per_rack: spares(&below(at, "spare_hosts_per_rack"), message.spare_hosts_per_rack, found),
        windows: windows(&below(at, "windows"), message.windows, found),
        required_isolation: isolation(
            &below(at, "isolation.require"),
            message.isolation.unwrap_or_default(),
            found,
        ),
        notifications: receivers(&below(at, "notifications"), message.notifications, found),
        roles: roles(&below(at, "roles"), message.roles, found),
        interruption_rates: interruption_rates(
            &below(at, "interruption_rates"),
            message.interruption_rates,
            found,
        ),
        resources: resources(&below(at, "resources"), message.resources, found),
    }
}

fn roles(at: &str, messages: HashMap<String, v1::OwnRole>, found: &mut Found) -> BTreeMap<Name, OwnRole> {
    let mut roles = BTreeMap::new();
    for (name, message) in named(at, messages, policy::OWN_ROLES_MAX, found) {
        let Some(name) = found.take(checked_name(at, &name)) else { continue };
        let at = format!("{at}.{name}");
        let part_of = found.take(given_from_proto::<TokenRole>(&below(&at, "part_of"), message.part_of));
        let field = below(&at, "verbs");
        let mut numbers = message.verbs;
        bound(&field, &mut numbers, Verb::ALL.len(), found);
        let mut verbs = BTreeSet::new();
        for (index, number) in numbers.iter().enumerate() {
            verbs.extend(found.take(given_from_proto::<Verb>(&format!("{field}[{index}]"), *number)));
        }
        let field = below(&at, "regions");
        let mut texts = message.regions;
        bound(&field, &mut texts, policy::ROLE_REGIONS_MAX, found);
        let regions: BTreeSet<Name> = names(&field, &texts, found).into_iter().collect();
        let is_read = verbs.len() == numbers.len() && regions.len() == texts.len();
        // What was wrong has been said; what is left of such a role would say something else.
        let Some(part_of) = part_of.filter(|_| is_read || found.is_empty()) else { continue };
        roles.insert(name, OwnRole { part_of, verbs, regions });
    }
    roles
}

fn isolation(at: &str, message: v1::IsolationPolicy, found: &mut Found) -> BTreeSet<Guarantee> {
    let mut numbers = message.require;
    bound(at, &mut numbers, Guarantee::ALL.len(), found);
    let mut required = BTreeSet::new();
    for (index, number) in numbers.iter().enumerate() {
        required.extend(found.take(given_from_proto::<Guarantee>(&format!("{at}[{index}]"), *number)));
    }
    required
}

fn receivers(at: &str, mut messages: Vec<v1::NotificationReceiver>, found: &mut Found) -> Vec<Receiver> {
    bound(at, &mut messages, policy::RECEIVERS_MAX, found);
    let mut receivers = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let name = found.take(checked_name(&below(&at, "name"), &message.name));
        let name = name.or_else(|| Name::new(&format!("invalid-{index}")));
        let tenant = optional_name(&below(&at, "tenant"), &message.tenant, found);
        let events = notification_events(&below(&at, "events"), message.events, found);
        let for_jobs = message.for_jobs.unwrap_or_default();
        let body = found.take(value_from_proto::<NotificationBody>(&below(&at, "body"), message.body));
        let body = body.flatten().unwrap_or_default();
        receivers.extend(name.map(|name| Receiver {
            name,
            url: message.url,
            tenant,
            events,
            body,
            for_jobs,
        }));
    }
    receivers
}

/// The entries of a map by name. Too many are not looked at one by one: which of them would be, a hash
/// map cannot say.
fn named<T>(field: &str, entries: HashMap<String, T>, max: usize, found: &mut Found) -> BTreeMap<String, T> {
    if entries.len() > max {
        found.push(Violation::limit(field, entries.len() as u64, 0, max as u64));
        return BTreeMap::new();
    }
    entries.into_iter().collect()
}

/// A name, or none for an empty text.
fn optional_name(field: &str, text: &str, found: &mut Found) -> Option<Name> {
    if text.is_empty() { None } else { found.take(checked_name(field, text)) }
}

fn tenants(
    at: &str,
    messages: HashMap<String, v1::TenantPolicy>,
    found: &mut Found,
) -> BTreeMap<Name, TenantPolicy> {
    let mut tenants = BTreeMap::new();
    let mut quotas_left = policy::QUOTAS_MAX;
    for (name, message) in named(at, messages, policy::TENANTS_MAX, found) {
        if found.is_full() {
            break;
        }
        let Some(name) = found.take(checked_name(at, &name)) else { continue };
        let at = format!("{at}.{name}");
        let mut messages = message.quotas;
        bound(&below(&at, "quotas"), &mut messages, policy::TENANT_QUOTAS_MAX, found);
        let Some(left) = quotas_left.checked_sub(messages.len()) else {
            let max = policy::QUOTAS_MAX;
            found.push(Violation::new(
                below(&at, "quotas"),
                format!("all tenants have at most {max} together"),
            ));
            break;
        };
        quotas_left = left;
        let mut quotas = Vec::with_capacity(messages.len());
        for (index, quota) in messages.into_iter().enumerate() {
            // A separate stand-in: the places of the others in the list stay what they are.
            let stand_in = Name::new(&format!("invalid-{index}"));
            quotas.extend(self::quota(&format!("{at}.quotas[{index}]"), &quota, stand_in, found));
        }
        let tenant =
            TenantPolicy {
                parent: optional_name(&below(&at, "parent"), &message.parent, found),
                weight_milli: message.weight_milli.unwrap_or(TenantPolicy::default().weight_milli),
                quotas,
                rights: rights(&below(&at, "rights"), &message.rights.unwrap_or_default(), found),
                tier_limits: message.limits.as_ref().map_or_else(BTreeMap::new, |limits| {
                    tier_limits(&below(&at, "limits.tiers"), limits, found)
                }),
                // What is wrong with a tier was found just now.
                tier_submissions: message.limits.as_ref().map_or_else(BTreeMap::new, tier_submissions),
                user_limits: message.limits.as_ref().map_or_else(BTreeMap::new, |limits| {
                    user_limits(&below(&at, "limits.users"), limits, found)
                }),
                queue: message.queue.map_or_else(QueueChoices::default, |queue| {
                    super::queue_choices::queue_choices(&below(&at, "queue"), queue, found)
                }),
                users: message.users.map(|users| user_shares(&below(&at, "users"), users, found)),
                limits: tenant_limits(&below(&at, "limits"), message.limits, found),
            };
        tenants.insert(name, tenant);
    }
    tenants
}

fn tenant_limits(at: &str, message: Option<v1::TenantLimits>, found: &mut Found) -> TenantLimits {
    let Some(limits) = message else { return TenantLimits::default() };
    TenantLimits {
        pending_jobs: limits.pending_jobs,
        unfinished_jobs: limits.unfinished_jobs,
        running_jobs: limits.running_jobs,
        requests_per_minute: limits.requests_per_minute,
        user: limits.user.map_or_else(UserLimits::default, |user| UserLimits {
            pending_jobs: user.pending_jobs,
            unfinished_jobs: user.unfinished_jobs,
            running_jobs: user.running_jobs,
            accelerator_hours: budget(&below(at, "user.accelerator_hours"), user.accelerator_hours, found),
            submissions_per_minute: user.submissions_per_minute,
            spend: spend(&below(at, "user.spend"), user.spend, found),
            devices: user.devices,
        }),
        job: job_limits(&below(at, "job"), limits.job, found),
        accelerator_hours: budget(&below(at, "accelerator_hours"), limits.accelerator_hours, found),
        cpu_milli: limits.cpu_milli,
        memory_bytes: limits.memory_bytes,
        spend: spend(&below(at, "spend"), limits.spend, found),
        on_limit: found.take(value_from_proto(&below(at, "on_limit"), limits.on_limit)).flatten(),
    }
}

fn budget(at: &str, message: Option<v1::AcceleratorBudget>, found: &mut Found) -> Option<AcceleratorBudget> {
    let message = message?;
    let window_ms = span(at, "window", message.window, found);
    if message.most.is_none() {
        found.push(Violation::new(
            below(at, "most"),
            "must be given: the hours of one accelerator in each window",
        ));
    }
    if message.window.is_none() {
        found.push(Violation::new(below(at, "window"), "must be given: the length of a window"));
    }
    Some(AcceleratorBudget { hours: message.most?, window_ms: window_ms? })
}

fn spend(at: &str, message: Option<v1::SpendBudget>, found: &mut Found) -> Option<SpendBudget> {
    let message = message?;
    let window_ms = span(at, "window", message.window, found);
    if message.most.is_none() {
        found.push(Violation::new(below(at, "most"), "must be given: the dollars of each window"));
    }
    if message.window.is_none() {
        found.push(Violation::new(below(at, "window"), "must be given: the length of a window"));
    }
    Some(SpendBudget { dollars: message.most?, window_ms: window_ms? })
}

fn spend_to_proto(budget: SpendBudget) -> v1::SpendBudget {
    v1::SpendBudget { most: Some(budget.dollars), window: Some(duration(budget.window_ms)) }
}

fn budget_to_proto(budget: AcceleratorBudget) -> v1::AcceleratorBudget {
    v1::AcceleratorBudget { most: Some(budget.hours), window: Some(duration(budget.window_ms)) }
}

fn job_limits(at: &str, message: Option<v1::JobLimits>, found: &mut Found) -> JobLimits {
    let message = message.unwrap_or_default();
    JobLimits {
        devices_max: message.max_devices,
        workers_max: message.max_workers,
        run_time_max_ms: span(at, "max_run_time", message.max_run_time, found),
        run_time_default_ms: span(at, "default_run_time", message.default_run_time, found),
        artifacts_bytes_max: message.max_artifact_bytes,
    }
}

fn tier_limits(at: &str, message: &v1::TenantLimits, found: &mut Found) -> BTreeMap<PriorityTier, JobLimits> {
    let (mut limits, mut named) = (BTreeMap::new(), BTreeSet::new());
    let mut messages = message.tiers.clone();
    bound(at, &mut messages, PriorityTier::ALL.len(), found);
    for (place, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{place}]");
        let is_stated = message.job.is_some() || message.submissions_per_minute.is_none();
        let of_tier = job_limits(&below(&at, "job"), message.job, found);
        let tier = found.take(given_from_proto::<PriorityTier>(&below(&at, "tier"), message.tier));
        let Some(tier) = tier else { continue };
        if !named.insert(tier) {
            found.push(Violation::new(below(&at, "tier"), "must be named once"));
        }
        if is_stated {
            limits.insert(tier, of_tier);
        }
    }
    limits
}

fn user_limits(at: &str, message: &v1::TenantLimits, found: &mut Found) -> BTreeMap<String, JobLimits> {
    if message.users.len() > policy::USER_WEIGHTS_MAX {
        found.push(Violation::limit(at, message.users.len() as u64, 0, policy::USER_WEIGHTS_MAX as u64));
        return BTreeMap::new();
    }
    let users = message.users.iter();
    users.map(|(user, limits)| (user.clone(), job_limits(at, Some(*limits), found))).collect()
}

fn tier_submissions(message: &v1::TenantLimits) -> BTreeMap<PriorityTier, u32> {
    let of_tier = |message: &v1::TierLimits| {
        let tier = given_from_proto::<PriorityTier>("tier", message.tier).ok()?;
        Some((tier, message.submissions_per_minute?))
    };
    message.tiers.iter().take(PriorityTier::ALL.len()).filter_map(of_tier).collect()
}

fn rights(at: &str, message: &v1::TenantRights, found: &mut Found) -> TenantRights {
    let tier_max = value_from_proto(&below(at, "tier_max"), message.tier_max);
    let non_preemptible = value_from_proto(&below(at, "non_preemptible"), message.non_preemptible);
    TenantRights {
        tier_max: found.take(tier_max).flatten(),
        non_preemptible: found.take(non_preemptible).flatten(),
        deadlines: message.deadlines,
        bookings: message.bookings,
        purchases: purchase_set(&below(at, "purchases"), message.purchases.clone(), found),
        negative_nice: message.negative_nice,
    }
}

fn rights_to_proto(rights: &TenantRights) -> Option<v1::TenantRights> {
    (*rights != TenantRights::default()).then(|| v1::TenantRights {
        tier_max: number_or_zero(rights.tier_max),
        non_preemptible: number_or_zero(rights.non_preemptible),
        deadlines: rights.deadlines,
        bookings: rights.bookings,
        purchases: purchases_to_proto(rights.purchases),
        negative_nice: rights.negative_nice,
    })
}

fn quota(at: &str, message: &v1::Quota, stand_in: Option<Name>, found: &mut Found) -> Option<Quota> {
    let kind = found.take(checked_name(&below(at, "type"), &message.r#type)).or(stand_in);
    let region = optional_name(&below(at, "region"), &message.region, found);
    Some(Quota {
        kind: kind?,
        region,
        nominal_milli: message.nominal_milli,
        borrowing_limit_milli: message.borrowing_limit_milli,
        lending_limit_milli: message.lending_limit_milli,
    })
}

fn order(at: &str, message: v1::OrderPolicy, found: &mut Found) -> OrderPolicy {
    let usual = OrderPolicy::default();
    let order = found.take(value_from_proto(&below(at, "order"), message.order)).flatten();
    let order = order.unwrap_or(usual.order);
    OrderPolicy {
        order,
        fair_share: message.fair_share.unwrap_or(usual.fair_share),
        usage_half_life_ms: span(at, "usage_half_life", message.usage_half_life, found)
            .unwrap_or(usual.usage_half_life_ms),
        ageing_milli: message.ageing_milli.unwrap_or(usual.ageing_milli),
    }
}

fn backfill(at: &str, message: v1::BackfillPolicy, found: &mut Found) -> BackfillPolicy {
    let usual = BackfillPolicy::default();
    BackfillPolicy {
        reservations_max: message.max_reservations.unwrap_or(usual.reservations_max),
        depth_max: message.max_depth.unwrap_or(usual.depth_max),
        reserve_after_ms: span(at, "reserve_after", message.reserve_after, found)
            .unwrap_or(usual.reserve_after_ms),
        reserve_after_runs_milli: message.reserve_after_runs_milli.unwrap_or(usual.reserve_after_runs_milli),
        end_overrunners: message.end_overrunners.unwrap_or(usual.end_overrunners),
    }
}

fn preemption(at: &str, message: v1::PreemptionPolicy, found: &mut Found) -> PreemptionPolicy {
    let usual = PreemptionPolicy::default();
    let mut span =
        |field: &str, given, usual_ms: u64| super::span(at, field, given, found).unwrap_or(usual_ms);
    PreemptionPolicy {
        enabled: message.enabled.unwrap_or(usual.enabled),
        reclaim_borrowed: message.reclaim_borrowed.unwrap_or(usual.reclaim_borrowed),
        minimum_run_ms: span("minimum_run", message.minimum_run, usual.minimum_run_ms),
        victims_max: message.max_victims.unwrap_or(usual.victims_max),
        defragment: message.defragment.unwrap_or(usual.defragment),
        defragment_wait_ms: span("defragment_wait", message.defragment_wait, usual.defragment_wait_ms),
        backoff_ms: span("backoff", message.backoff, usual.backoff_ms),
        stopping_deadline_ms: span("stopping_timeout", message.stopping_timeout, usual.stopping_deadline_ms),
        starting_deadline_ms: span("starting_timeout", message.starting_timeout, usual.starting_deadline_ms),
    }
}

fn weights(at: &str, message: v1::PlacementWeights, found: &mut Found) -> PlacementWeights {
    let usual = PlacementWeights::default();
    let mut weight = |field: &str, value: Option<u32>, usual: u16| {
        let Some(value) = value else { return usual };
        u16::try_from(value).ok().unwrap_or_else(|| {
            let max = policy::PLACEMENT_WEIGHT_MAX;
            found.push(Violation::limit(&below(at, field), value.into(), 0, max.into()));
            usual
        })
    };
    PlacementWeights {
        packing: weight("packing", message.packing, usual.packing),
        throughput: weight("throughput", message.throughput, usual.throughput),
        cost: weight("cost", message.cost, usual.cost),
        data: weight("data", message.data, usual.data),
        topology: weight("topology", message.topology, usual.topology),
        spread: weight("spread", message.spread, usual.spread),
    }
}

fn prices(at: &str, mut messages: Vec<v1::Price>, found: &mut Found) -> Vec<Price> {
    bound(at, &mut messages, policy::PRICES_MAX, found);
    let mut prices = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let kind = found.take(checked_name(&below(&at, "type"), &message.r#type));
        let region = optional_name(&below(&at, "region"), &message.region, found);
        // A separate stand-in: the places of the others in the list stay what they are.
        let kind = kind.or_else(|| Name::new(&format!("invalid-{index}")));
        let purchase = value_from_proto::<PurchaseKind>(&below(&at, "purchase"), message.purchase);
        let purchase = found.take(purchase).flatten();
        let from = moment(&at, "start_time", message.start_time, found);
        let until = moment(&at, "end_time", message.end_time, found);
        let owned = message.owned.map(owned_cost);
        let hourly = message.micro_dollars_per_device_hour;
        let price = |kind| Price { purchase, from, until, owned, ..Price::new(kind, region, hourly) };
        prices.extend(kind.map(price));
    }
    prices
}

fn owned_cost(message: v1::OwnedCost) -> OwnedCost {
    OwnedCost {
        micro_dollars_per_device: message.micro_dollars_per_device,
        // A time that was left out is none of those that may be.
        depreciation_months: message.depreciation_months.unwrap_or(0),
        watts: message.watts.unwrap_or(0),
        pue_milli: message.pue_milli.unwrap_or(policy::PUE_MILLI_MIN),
        micro_dollars_per_kwh: message.micro_dollars_per_kwh,
    }
}

fn datasets(at: &str, messages: HashMap<String, v1::Dataset>, found: &mut Found) -> BTreeMap<Name, Dataset> {
    let mut datasets = BTreeMap::new();
    for (name, message) in named(at, messages, policy::DATASETS_MAX, found) {
        if found.is_full() {
            break;
        }
        let Some(name) = found.take(checked_name(at, &name)) else { continue };
        let field = format!("{at}.{name}.regions");
        let mut texts = message.regions;
        bound(&field, &mut texts, limits::JOB_REGIONS_MAX, found);
        let regions = names(&field, &texts, found);
        if regions.is_empty() && !texts.is_empty() {
            // What was wrong has been said; that nothing is left is not another mistake.
            continue;
        }
        datasets.insert(name, Dataset { bytes: message.bytes, regions: regions.into_iter().collect() });
    }
    datasets
}

fn transfers(at: &str, mut messages: Vec<v1::Transfer>, found: &mut Found) -> Vec<Transfer> {
    bound(at, &mut messages, policy::TRANSFERS_MAX, found);
    let mut transfers = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let at = format!("{at}[{index}]");
        transfers.push(Transfer {
            from: optional_name(&below(&at, "from"), &message.from, found),
            to: optional_name(&below(&at, "to"), &message.to, found),
            micro_dollars_per_gib: message.micro_dollars_per_gib,
            bytes_per_second: message.bytes_per_second,
        });
    }
    transfers
}

fn spares(at: &str, messages: HashMap<String, u32>, found: &mut Found) -> BTreeMap<Name, u16> {
    let mut spares = BTreeMap::new();
    for (kind, hosts) in named(at, messages, policy::SPARE_KINDS_MAX, found) {
        let Some(kind) = found.take(checked_name(at, &kind)) else { continue };
        let max = policy::SPARE_HOSTS_MAX;
        match u16::try_from(hosts) {
            Ok(hosts) => _ = spares.insert(kind, hosts),
            Err(_) => {
                found.push(Violation::limit(&format!("{at}.{kind}"), hosts.into(), 0, max.into()));
            }
        }
    }
    spares
}

fn windows(at: &str, mut messages: Vec<v1::Window>, found: &mut Found) -> Vec<Window> {
    bound(at, &mut messages, policy::WINDOWS_MAX, found);
    let mut windows = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let name = found.take(checked_name(&below(&at, "name"), &message.name));
        let name = name.or_else(|| Name::new(&format!("invalid-{index}")));
        let mut part =
            |field: &str, text: &str| optional_name(&below(&at, &format!("scope.{field}")), text, found);
        let asked = message.scope.unwrap_or_default();
        let scope = WindowScope {
            region: part("region", &asked.region),
            cluster: part("cluster", &asked.cluster),
            block: part("block", &asked.block),
            rack: part("rack", &asked.rack),
            node: part("node", &asked.node),
        };
        let purpose = purpose(&at, message.purpose, found).unwrap_or(WindowPurpose::Maintenance);
        let from = moment(&at, "start_time", message.start_time, found).unwrap_or_default();
        let until = moment(&at, "end_time", message.end_time, found).unwrap_or_default();
        windows.extend(name.map(|name| Window { name, from, until, scope, purpose }));
    }
    windows
}

fn purpose(at: &str, message: Option<Purpose>, found: &mut Found) -> Option<WindowPurpose> {
    match message {
        Some(Purpose::Maintenance(v1::Maintenance {})) => Some(WindowPurpose::Maintenance),
        Some(Purpose::ReservedForTenant(tenant)) => {
            let tenant = found.take(checked_name(&below(at, "reserved_for_tenant"), &tenant))?;
            Some(WindowPurpose::ReservedFor { tenant })
        }
        None => {
            let rule = "must say what it is for: maintenance or reserved_for_tenant";
            found.push(Violation::new(below(at, "purpose"), rule));
            None
        }
    }
}

fn names(field: &str, texts: &[String], found: &mut Found) -> Vec<Name> {
    let checked = texts.iter().enumerate().map(|(i, text)| checked_name(&format!("{field}[{i}]"), text));
    checked.filter_map(|result| found.take(result)).collect()
}

fn text(name: &Option<Name>) -> String {
    name.as_ref().map(Name::to_string).unwrap_or_default()
}

/// As a message; nothing of it is left to a default.
#[must_use]
pub fn policy_to_proto(policy: &PolicyDraft) -> v1::Policy {
    let PolicyDraft { order, backfill, preemption, weights, .. } = policy;
    v1::Policy {
        tenants: policy.tenants.iter().map(|(name, t)| (name.to_string(), tenant_to_proto(t))).collect(),
        order: Some(v1::OrderPolicy {
            order: number(order.order),
            fair_share: Some(order.fair_share),
            usage_half_life: Some(duration(order.usage_half_life_ms)),
            ageing_milli: Some(order.ageing_milli),
        }),
        backfill: Some(v1::BackfillPolicy {
            max_reservations: Some(backfill.reservations_max),
            max_depth: Some(backfill.depth_max),
            reserve_after: Some(duration(backfill.reserve_after_ms)),
            reserve_after_runs_milli: Some(backfill.reserve_after_runs_milli),
            end_overrunners: Some(backfill.end_overrunners),
        }),
        preemption: Some(v1::PreemptionPolicy {
            enabled: Some(preemption.enabled),
            reclaim_borrowed: Some(preemption.reclaim_borrowed),
            minimum_run: Some(duration(preemption.minimum_run_ms)),
            max_victims: Some(preemption.victims_max),
            defragment: Some(preemption.defragment),
            defragment_wait: Some(duration(preemption.defragment_wait_ms)),
            backoff: Some(duration(preemption.backoff_ms)),
            stopping_timeout: Some(duration(preemption.stopping_deadline_ms)),
            starting_timeout: Some(duration(preemption.starting_deadline_ms)),
        }),
        weights: Some(v1::PlacementWeights {
            packing: Some(weights.packing.into()),
            throughput: Some(weights.throughput.into()),
            cost: Some(weights.cost.into()),
            data: Some(weights.data.into()),
            topology: Some(weights.topology.into()),
            spread: Some(weights.spread.into()),
        }),
        prices: policy.prices.iter().map(price_to_proto).collect(),
        datasets: policy.datasets.iter().map(|(name, d)| (name.to_string(), dataset_to_proto(d))).collect(),
        transfers: policy.transfers.iter().map(transfer_to_proto).collect(),
        spare_hosts_per_rack: policy
            .spare_hosts_per_rack
            .iter()
            .map(|(kind, hosts)| (kind.to_string(), (*hosts).into()))
            .collect(),
        windows: policy.windows.iter().map(window_to_proto).collect(),
        isolation: Some(v1::IsolationPolicy {
            require: policy.required_isolation.iter().map(|guarantee| number(*guarantee)).collect(),
        }),
        notifications: policy.notifications.iter().map(receiver_to_proto).collect(),
        roles: policy.roles.iter().map(|(name, role)| (name.to_string(), role_to_proto(role))).collect(),
        interruption_rates: policy.interruption_rates.iter().map(interruption_rate_to_proto).collect(),
        resources: policy.resources.iter().map(resource_to_proto).collect(),
    }
}

fn role_to_proto(role: &OwnRole) -> v1::OwnRole {
    v1::OwnRole {
        part_of: number(role.part_of),
        verbs: role.verbs.iter().map(|verb| number(*verb)).collect(),
        regions: role.regions.iter().map(Name::to_string).collect(),
    }
}

fn receiver_to_proto(receiver: &Receiver) -> v1::NotificationReceiver {
    v1::NotificationReceiver {
        name: receiver.name.to_string(),
        url: receiver.url.clone(),
        tenant: text(&receiver.tenant),
        events: receiver.events.iter().map(|event| number(*event)).collect(),
        body: number(receiver.body),
        for_jobs: receiver.for_jobs.then_some(true),
    }
}

fn tenant_to_proto(tenant: &TenantPolicy) -> v1::TenantPolicy {
    let quotas = tenant.quotas.iter().map(|quota| v1::Quota {
        r#type: quota.kind.to_string(),
        region: text(&quota.region),
        nominal_milli: quota.nominal_milli,
        borrowing_limit_milli: quota.borrowing_limit_milli,
        lending_limit_milli: quota.lending_limit_milli,
    });
    v1::TenantPolicy {
        parent: text(&tenant.parent),
        weight_milli: Some(tenant.weight_milli),
        quotas: quotas.collect(),
        rights: rights_to_proto(&tenant.rights),
        limits: limits_to_proto(tenant),
        queue: super::queue_choices::queue_choices_to_proto(&tenant.queue),
        users: tenant.users.as_ref().map(user_shares_to_proto),
    }
}

fn limits_to_proto(tenant: &TenantPolicy) -> Option<v1::TenantLimits> {
    let limits = &tenant.limits;
    let has_tiers = !tenant.tier_limits.is_empty() || !tenant.tier_submissions.is_empty();
    if *limits == TenantLimits::default() && !has_tiers && tenant.user_limits.is_empty() {
        return None;
    }
    let job = |job: &JobLimits| v1::JobLimits {
        max_devices: job.devices_max,
        max_workers: job.workers_max,
        max_run_time: job.run_time_max_ms.map(duration),
        default_run_time: job.run_time_default_ms.map(duration),
        max_artifact_bytes: job.artifacts_bytes_max,
    };
    let tiers = PriorityTier::ALL.into_iter().filter_map(|tier| {
        let (limits, rate) = (tenant.tier_limits.get(&tier), tenant.tier_submissions.get(&tier).copied());
        (limits.is_some() || rate.is_some()).then(|| v1::TierLimits {
            tier: number(tier),
            job: limits.map(job),
            submissions_per_minute: rate,
        })
    });
    Some(v1::TenantLimits {
        pending_jobs: limits.pending_jobs,
        unfinished_jobs: limits.unfinished_jobs,
        running_jobs: limits.running_jobs,
        requests_per_minute: limits.requests_per_minute,
        user: (limits.user != UserLimits::default()).then_some(v1::UserLimits {
            pending_jobs: limits.user.pending_jobs,
            unfinished_jobs: limits.user.unfinished_jobs,
            running_jobs: limits.user.running_jobs,
            accelerator_hours: limits.user.accelerator_hours.map(budget_to_proto),
            submissions_per_minute: limits.user.submissions_per_minute,
            spend: limits.user.spend.map(spend_to_proto),
            devices: limits.user.devices,
        }),
        job: (limits.job != JobLimits::default()).then(|| job(&limits.job)),
        tiers: tiers.collect(),
        accelerator_hours: limits.accelerator_hours.map(budget_to_proto),
        cpu_milli: limits.cpu_milli,
        memory_bytes: limits.memory_bytes,
        spend: limits.spend.map(spend_to_proto),
        on_limit: number_or_zero(limits.on_limit),
        users: tenant.user_limits.iter().map(|(user, limits)| (user.clone(), job(limits))).collect(),
    })
}

fn price_to_proto(price: &Price) -> v1::Price {
    v1::Price {
        r#type: price.kind.to_string(),
        region: text(&price.region),
        micro_dollars_per_device_hour: price.micro_dollars_per_device_hour,
        purchase: number_or_zero(price.purchase),
        start_time: price.from.map(|from| timestamp(from.0)),
        end_time: price.until.map(|until| timestamp(until.0)),
        owned: price.owned.map(|owned| v1::OwnedCost {
            micro_dollars_per_device: owned.micro_dollars_per_device,
            depreciation_months: Some(owned.depreciation_months),
            watts: Some(owned.watts),
            pue_milli: Some(owned.pue_milli),
            micro_dollars_per_kwh: owned.micro_dollars_per_kwh,
        }),
    }
}

fn dataset_to_proto(dataset: &Dataset) -> v1::Dataset {
    v1::Dataset { bytes: dataset.bytes, regions: dataset.regions.iter().map(Name::to_string).collect() }
}

fn transfer_to_proto(transfer: &Transfer) -> v1::Transfer {
    v1::Transfer {
        from: text(&transfer.from),
        to: text(&transfer.to),
        micro_dollars_per_gib: transfer.micro_dollars_per_gib,
        bytes_per_second: transfer.bytes_per_second,
    }
}

fn window_to_proto(window: &Window) -> v1::Window {
    let WindowScope { region, cluster, block, rack, node } = &window.scope;
    let purpose = match &window.purpose {
        WindowPurpose::Maintenance => Purpose::Maintenance(v1::Maintenance {}),
        WindowPurpose::ReservedFor { tenant } => Purpose::ReservedForTenant(tenant.to_string()),
    };
    v1::Window {
        name: window.name.to_string(),
        start_time: Some(timestamp(window.from.0)),
        end_time: Some(timestamp(window.until.0)),
        scope: Some(v1::WindowScope {
            region: text(region),
            cluster: text(cluster),
            block: text(block),
            rack: text(rack),
            node: text(node),
        }),
        purpose: Some(purpose),
    }
}
