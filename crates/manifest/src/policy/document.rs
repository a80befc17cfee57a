//! What a policy file holds: every field of the messages, once.

use muster_types::{PriorityTier, TokenRole, policy};
use muster_wire::v1;
use muster_wire::v1::window::Purpose;
use serde::Deserialize;

use super::form::{
    Bytes, Count, Dollars, Each, Filled, FilledNamed, FilledNames, FilledWords, Flag, Form, Group, Milli,
    Moment, Named, NamedCounts, NamedWeights, Names, NodeRules, Nominal, Optional, OptionalBytes, Plain,
    PlainMilli, SmallMilli, Span, Word, Words, group,
};
use crate::reader::Reader;
use crate::shape::Text;
use crate::show::Fields;

group! {
    Spec is Policy {
        tenants "tenants": Named<Tenant>,
        order "order": Optional<Order>,
        backfill "backfill": Optional<Backfill>,
        preemption "preemption": Optional<Preemption>,
        weights "weights": Optional<Weights>,
        prices "prices": Each<Price>,
        datasets "datasets": Named<Dataset>,
        transfers "transfers": Each<Transfer>,
        spare_hosts_per_rack "spareHostsPerRack": NamedCounts,
        windows "windows": Each<Window>,
        isolation "isolation": Optional<Isolation>,
        notifications "notifications": Filled<NotificationReceiver>,
        roles "roles": FilledNamed<OwnRole>,
        interruption_rates "interruptionRates": Filled<InterruptionRate>,
        resources "resources": Filled<CountedResource>,
    }
}

group! {
    Tenant is TenantPolicy {
        parent "parent": Plain,
        weight_milli "weight": SmallMilli,
        quotas "quotas": Filled<Quota>,
        rights "rights": Optional<Rights>,
        limits "limits": Optional<Limits>,
        queue "queue": Optional<Queue>,
        users "users": Optional<Users>,
    }
}

group! {
    Users is UserShares {
        default_weight_milli "weightDefault": SmallMilli,
        weights_milli "weights": NamedWeights,
    }
}

group! {
    Queue is QueueChoices {
        order "order": Word<policy::QueueOrder>,
        block_for "blockFor": Span,
        preemption "preemption": Word<policy::QueuePreemption>,
        nodes "nodes": NodeRules,
        isolated "isolated": Flag,
    }
}

group! {
    Rights is TenantRights {
        tier_max "tierMax": Word<PriorityTier>,
        non_preemptible "nonPreemptible": Word<policy::NonPreemptible>,
        deadlines "deadlines": Flag,
        bookings "bookings": Flag,
        purchases "purchases": FilledWords<policy::PurchaseKind>,
        negative_nice "negativeNice": Flag,
    }
}

group! {
    Limits is TenantLimits {
        pending_jobs "pendingJobs": Count,
        unfinished_jobs "unfinishedJobs": Count,
        running_jobs "runningJobs": Count,
        requests_per_minute "requestsPerMinute": Count,
        user "user": Optional<UserLimits>,
        job "job": Optional<JobLimits>,
        tiers "tiers": Each<TierLimits>,
        accelerator_hours "acceleratorHours": Optional<AcceleratorBudget>,
        cpu_milli "cpu": Milli,
        memory_bytes "memory": OptionalBytes,
        spend "spend": Optional<SpendBudget>,
        on_limit "onLimit": Word<policy::OnLimit>,
        users "users": FilledNamed<JobLimits>,
    }
}

group! {
    UserLimits is UserLimits {
        pending_jobs "pendingJobs": Count,
        unfinished_jobs "unfinishedJobs": Count,
        running_jobs "runningJobs": Count,
        accelerator_hours "acceleratorHours": Optional<AcceleratorBudget>,
        submissions_per_minute "submissionsPerMinute": Count,
        spend "spend": Optional<SpendBudget>,
        devices "devices": Count,
    }
}

group! {
    SpendBudget is SpendBudget {
        most "most": Count,
        window "window": Span,
    }
}

group! {
    AcceleratorBudget is AcceleratorBudget {
        most "most": Count,
        window "window": Span,
    }
}

group! {
    JobLimits is JobLimits {
        max_devices "maxDevices": Count,
        max_workers "maxWorkers": Count,
        max_run_time "maxRunTime": Span,
        default_run_time "defaultRunTime": Span,
        max_artifact_bytes "maxArtifacts": OptionalBytes,
    }
}

group! {
    TierLimits is TierLimits {
        tier "tier": Word<PriorityTier>,
        job "job": Optional<JobLimits>,
        submissions_per_minute "submissionsPerMinute": Count,
    }
}

group! {
    Quota is Quota {
        r#type "type": Plain,
        region "region": Plain,
        nominal_milli "nominal": Nominal,
        borrowing_limit_milli "borrowingLimit": Milli,
        lending_limit_milli "lendingLimit": Milli,
    }
}

group! {
    Order is OrderPolicy {
        order "by": Word<policy::Order>,
        fair_share "fairShare": Flag,
        usage_half_life "usageHalfLife": Span,
        ageing_milli "ageing": SmallMilli,
    }
}

group! {
    Backfill is BackfillPolicy {
        max_reservations "reservations": Count,
        max_depth "depth": Count,
        reserve_after "reserveAfter": Span,
        reserve_after_runs_milli "reserveAfterRuns": SmallMilli,
        end_overrunners "endOverrunners": Flag,
    }
}

group! {
    Preemption is PreemptionPolicy {
        enabled "enabled": Flag,
        reclaim_borrowed "reclaimBorrowed": Flag,
        minimum_run "minimumRun": Span,
        max_victims "victims": Count,
        defragment "defragment": Flag,
        defragment_wait "defragmentWait": Span,
        backoff "backoff": Span,
        stopping_timeout "stoppingTimeout": Span,
        starting_timeout "startingTimeout": Span,
    }
}

group! {
    Weights is PlacementWeights {
        packing "packing": Count,
        throughput "throughput": Count,
        cost "cost": Count,
        data "data": Count,
        topology "topology": Count,
        spread "spread": Count,
    }
}

/// Stated for an hour, or by its parts.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Price {
    r#type: Option<Text>,
    region: Option<Text>,
    per_device_hour: Option<Text>,
    purchase: Option<Text>,
    start_time: Option<Text>,
    end_time: Option<Text>,
    owned: Option<OwnedCost>,
}

impl Group for Price {
    type Message = v1::Price;
    const FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("micro_dollars_per_device_hour", "perDeviceHour", <Dollars as Form>::UNIT),
        ("start_time", "startTime", ""),
        ("end_time", "endTime", ""),
    ];

    fn read(self, reader: &mut Reader<'_>, at: &str) -> v1::Price {
        let path = |field: &str| format!("{at}.{field}");
        let hourly = Dollars::read(reader, &path("perDeviceHour"), self.per_device_hour);
        v1::Price {
            r#type: Plain::read(reader, &path("type"), self.r#type),
            region: Plain::read(reader, &path("region"), self.region),
            micro_dollars_per_device_hour: hourly,
            purchase: Word::<policy::PurchaseKind>::read(reader, &path("purchase"), self.purchase),
            start_time: Moment::read(reader, &path("startTime"), self.start_time),
            end_time: Moment::read(reader, &path("endTime"), self.end_time),
            owned: Optional::<OwnedCost>::read(reader, &path("owned"), self.owned),
        }
    }

    fn show(sent: &v1::Price) -> Fields {
        let mut shown = Fields::default();
        let hourly = Some(&sent.micro_dollars_per_device_hour).filter(|_| sent.owned.is_none());
        shown.put("type", Plain::show(&sent.r#type));
        shown.put("region", Plain::show(&sent.region));
        shown.put("perDeviceHour", hourly.and_then(Dollars::show));
        shown.put("purchase", Word::<policy::PurchaseKind>::show(&sent.purchase));
        shown.put("startTime", Moment::show(&sent.start_time));
        shown.put("endTime", Moment::show(&sent.end_time));
        shown.put("owned", Optional::<OwnedCost>::show(&sent.owned));
        shown
    }
}

group! {
    OwnedCost is OwnedCost {
        micro_dollars_per_device "perDevice": Dollars,
        depreciation_months "months": Count,
        watts "watts": Count,
        pue_milli "pue": SmallMilli,
        micro_dollars_per_kwh "perKwh": Dollars,
    }
}

group! {
    InterruptionRate is InterruptionRate {
        purchase "purchase": Word<policy::PurchaseKind>,
        region "region": Plain,
        per_day_milli "perDay": PlainMilli,
    }
}

group! {
    CountedResource is CountedResource {
        name "name": Plain,
        count "count": Count,
        region "region": Plain,
    }
}

group! {
    Dataset is Dataset {
        bytes "size": Bytes,
        regions "regions": Names,
    }
}

group! {
    Transfer is Transfer {
        from "from": Plain,
        to "to": Plain,
        micro_dollars_per_gib "perGib": Dollars,
        bytes_per_second "bytesPerSecond": Bytes,
    }
}

group! {
    Isolation is IsolationPolicy {
        require "require": Words<policy::Guarantee>,
    }
}

group! {
    NotificationReceiver is NotificationReceiver {
        name "name": Plain,
        url "url": Plain,
        tenant "tenant": Plain,
        events "events": Words<policy::NotificationEvent>,
        body "body": Word<policy::NotificationBody>,
        for_jobs "forJobs": Flag,
    }
}

group! {
    OwnRole is OwnRole {
        part_of "partOf": Word<TokenRole>,
        verbs "verbs": Words<policy::Verb>,
        regions "regions": FilledNames,
    }
}

group! {
    Scope is WindowScope {
        region "region": Plain,
        cluster "cluster": Plain,
        block "block": Plain,
        rack "rack": Plain,
        node "node": Plain,
    }
}

/// Its purpose is one of two fields.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Window {
    name: Option<Text>,
    start_time: Option<Text>,
    end_time: Option<Text>,
    scope: Option<Scope>,
    maintenance: Option<Text>,
    reserved_for: Option<Text>,
}

impl Group for Window {
    type Message = v1::Window;
    const FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("start_time", "startTime", ""),
        ("end_time", "endTime", ""),
        ("reserved_for_tenant", "reservedFor", ""),
    ];

    fn read(self, reader: &mut Reader<'_>, at: &str) -> v1::Window {
        let path = |field: &str| format!("{at}.{field}");
        let scope = self.scope.unwrap_or_default().read(reader, &path("scope"));
        let name = Plain::read(reader, &path("name"), self.name);
        let place = self.maintenance.as_ref().or(self.reserved_for.as_ref()).map(|text| text.referenced);
        let maintenance = Flag::read(reader, &path("maintenance"), self.maintenance);
        let purpose = match (maintenance, self.reserved_for) {
            (Some(true), None) => Some(Purpose::Maintenance(v1::Maintenance {})),
            (None, Some(tenant)) => {
                Some(Purpose::ReservedForTenant(Plain::read(reader, &path("reservedFor"), Some(tenant))))
            }
            _ => {
                let advice = "must say what it is for: either `maintenance: true` or `reservedFor: TENANT`";
                reader.problem(place, at, advice);
                None
            }
        };
        v1::Window {
            name,
            start_time: Moment::read(reader, &path("startTime"), self.start_time),
            end_time: Moment::read(reader, &path("endTime"), self.end_time),
            scope: Some(scope),
            purpose,
        }
    }

    fn show(sent: &v1::Window) -> Fields {
        let mut shown = Fields::default();
        shown.put("name", Plain::show(&sent.name));
        shown.put("startTime", Moment::show(&sent.start_time));
        shown.put("endTime", Moment::show(&sent.end_time));
        shown.put("scope", Optional::<Scope>::show(&sent.scope));
        match &sent.purpose {
            Some(Purpose::Maintenance(_)) => shown.put("maintenance", Flag::show(&Some(true))),
            Some(Purpose::ReservedForTenant(tenant)) => shown.put("reservedFor", Plain::show(tenant)),
            None => {}
        }
        shown
    }
}

/// The name in a file of a field with this name in a message, and its unit.
pub(super) fn name_in_file(field: &str) -> Option<(&'static str, &'static str)> {
    const GROUPS: [&[(&str, &str, &str)]; 24] = [
        Tenant::FIELDS,
        Users::FIELDS,
        SpendBudget::FIELDS,
        Rights::FIELDS,
        Limits::FIELDS,
        UserLimits::FIELDS,
        AcceleratorBudget::FIELDS,
        JobLimits::FIELDS,
        TierLimits::FIELDS,
        Quota::FIELDS,
        Order::FIELDS,
        Backfill::FIELDS,
        Preemption::FIELDS,
        Weights::FIELDS,
        Price::FIELDS,
        InterruptionRate::FIELDS,
        CountedResource::FIELDS,
        OwnedCost::FIELDS,
        Dataset::FIELDS,
        Transfer::FIELDS,
        OwnRole::FIELDS,
        Scope::FIELDS,
        Window::FIELDS,
        // Behind the order of the policy: `order` in that is `by` in a file.
        Queue::FIELDS,
    ];
    let mut fields = GROUPS.into_iter().flatten();
    fields.find(|(name, _, _)| *name == field).map(|(_, name, unit)| (*name, *unit))
}
