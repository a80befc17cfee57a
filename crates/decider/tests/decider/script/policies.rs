//! Policies, in words.

use muster_decider::Command;
use muster_types::policy::{
    AcceleratorBudget, CountedResource, Dataset, Guarantee, NonPreemptible, NotificationBody,
    NotificationEvent, OnLimit, Order, PolicyDraft, Price, QueueOrder, QueuePreemption, Quota, Receiver,
    SpendBudget, TenantPolicy, UserShares, Window, WindowPurpose, WindowScope,
};
use muster_types::{NodeRequirements, PriorityTier};

use super::{World, duration_ms};
use crate::support::{self, name};

impl World {
    /// `policy` and any of: `preemption=off`, `order=submission|predicted`, `fair-share=off`,
    /// `reservations=N`, `reserve-after=D`, `minimum-run=D`, `defragment-after=D`, `victims-max=N`, `price=KIND,N[,REGION]`,
    /// `tenant=NAME,parent=P,weight=N,KIND=NOMINAL/BORROWING/LENDING,tier-max=T,non-preemptible=R,deadlines=on|off,bookings=on|off,pending-jobs=N,budget=HOURS:WINDOW,spend=DOLLARS:WINDOW,user-devices=N,job-devices=N,cpus=N,on-limit=hold|refuse,queue-order=fair|strict,block-for=D,queue-preemption=none|reclaim|fair_share,users=on|off,user-weight=USER:N,nodes=N+N,isolated=on|off`
    /// (a tenant of the first level that states no right has all of them), `backoff=D`, `stopping-deadline=D`,
    /// `starting-deadline=D`, `end-overrunners=on|off`, `isolation=devices,pid,tmp,user`, `receiver=NAME,[TENANT],EVENT…`,
    /// `resource=NAME,COUNT[,REGION]`, `maintenance=NODE,+FROM,+UNTIL`, `reserved=NODE,TENANT,+FROM,+UNTIL`. Settings that are left out take their defaults.
    pub(super) fn policy(&mut self, words: &[&str]) -> String {
        let mut draft = PolicyDraft::default();
        for word in words.iter().filter(|word| !word.starts_with("request=")) {
            let (key, value) = word.split_once('=').expect("key=value");
            let times = |from: &str, until: &str| {
                let time = |text: &str| self.now.plus_ms(duration_ms(text.strip_prefix('+').unwrap()));
                (time(from), time(until))
            };
            let window = |node: &str, from: &str, until: &str, purpose| {
                let (from, until) = times(from, until);
                let scope = WindowScope { node: Some(name(node)), ..WindowScope::default() };
                Window { name: name(&format!("w-{node}")), from, until, scope, purpose }
            };
            let parts: Vec<&str> = value.split(',').collect();
            match key {
                "spread" => draft.weights.spread = value.parse().unwrap(),
                "preemption" => draft.preemption.enabled = value == "on",
                "order" => {
                    draft.order.order =
                        if value == "predicted" { Order::Predicted } else { Order::Submission }
                }
                "fair-share" => draft.order.fair_share = value == "on",
                "reservations" => draft.backfill.reservations_max = value.parse().unwrap(),
                "reserve-after" => {
                    draft.backfill.reserve_after_ms = duration_ms(value);
                    draft.backfill.reserve_after_runs_milli = 0;
                }
                "minimum-run" => draft.preemption.minimum_run_ms = duration_ms(value),
                "backoff" => draft.preemption.backoff_ms = duration_ms(value),
                "stopping-deadline" => draft.preemption.stopping_deadline_ms = duration_ms(value),
                "starting-deadline" => draft.preemption.starting_deadline_ms = duration_ms(value),
                "end-overrunners" => draft.backfill.end_overrunners = value == "on",
                "victims-max" => draft.preemption.victims_max = value.parse().unwrap(),
                "isolation" => {
                    let guarantee = |part: &&str| Guarantee::parse(part).expect("a guarantee");
                    draft.required_isolation = parts.iter().map(guarantee).collect();
                }
                "price" => draft.prices.push(Price::new(
                    name(parts[0]),
                    parts.get(2).map(|region| name(region)),
                    parts[1].parse().unwrap(),
                )),
                "defragment-after" => draft.preemption.defragment_wait_ms = duration_ms(value),
                "maintenance" => {
                    let purpose = WindowPurpose::Maintenance;
                    draft.windows.push(window(parts[0], parts[1], parts[2], purpose));
                }
                "reserved" => {
                    let purpose = WindowPurpose::ReservedFor { tenant: name(parts[1]) };
                    draft.windows.push(window(parts[0], parts[2], parts[3], purpose));
                }
                // The name, a tenant or nothing, and events; `jobs` for one that jobs may name.
                "receiver" => draft.notifications.push(Receiver {
                    name: name(parts[0]),
                    url: format!("https://{}.example/hook", parts[0]),
                    tenant: Some(parts[1]).filter(|tenant| !tenant.is_empty()).map(name),
                    events: NotificationEvent::ALL
                        .into_iter()
                        .filter(|event| parts[2..].contains(&event.as_str()))
                        .collect(),
                    body: NotificationBody::Generic,
                    for_jobs: parts[2..].contains(&"jobs"),
                }),
                // The name, the count and perhaps a region.
                "resource" => draft.resources.push(CountedResource {
                    name: name(parts[0]),
                    count: parts[1].parse().unwrap(),
                    region: parts.get(2).map(|region| name(region)),
                }),
                "dataset" => {
                    let regions = parts[1..].iter().map(|region| name(region)).collect();
                    draft.datasets.insert(name(parts[0]), Dataset { bytes: 1 << 30, regions });
                }
                "tenant" => {
                    let mut tenant = TenantPolicy::default();
                    for part in &parts[1..] {
                        let (what, value) = part.split_once('=').expect("what=value");
                        match what {
                            "parent" => tenant.parent = Some(name(value)),
                            "weight" => tenant.weight_milli = value.parse::<u32>().unwrap() * 1_000,
                            "tier-max" => tenant.rights.tier_max = PriorityTier::parse(value),
                            "non-preemptible" => tenant.rights.non_preemptible = NonPreemptible::parse(value),
                            "pending-jobs" => tenant.limits.pending_jobs = value.parse().ok(),
                            "running-jobs" => tenant.limits.running_jobs = value.parse().ok(),
                            "user-running-jobs" => tenant.limits.user.running_jobs = value.parse().ok(),
                            "budget" => tenant.limits.accelerator_hours = Some(budget(value)),
                            "user-budget" => tenant.limits.user.accelerator_hours = Some(budget(value)),
                            "spend" => tenant.limits.spend = Some(spend(value)),
                            "user-spend" => tenant.limits.user.spend = Some(spend(value)),
                            "user-devices" => tenant.limits.user.devices = value.parse().ok(),
                            "cpus" => {
                                tenant.limits.cpu_milli = value.parse::<u64>().ok().map(|cpus| cpus * 1_000);
                            }
                            "job-devices" => tenant.limits.job.devices_max = value.parse().ok(),
                            "on-limit" => tenant.limits.on_limit = OnLimit::parse(value),
                            "queue-order" => tenant.queue.order = QueueOrder::parse(value),
                            "block-for" => tenant.queue.block_for_ms = Some(duration_ms(value)),
                            "queue-preemption" => tenant.queue.preemption = QueuePreemption::parse(value),
                            "users" => tenant.users = (value == "on").then(UserShares::default),
                            "user-weight" => {
                                let (user, weight) = value.split_once(':').expect("user:weight");
                                let users = tenant.users.get_or_insert_default();
                                let weight_milli = weight.parse::<u32>().unwrap() * 1_000;
                                users.weights_milli.insert(user.to_owned(), weight_milli);
                            }
                            "nodes" => tenant.queue.nodes = Some(nodes(value)),
                            "isolated" => tenant.queue.isolated = Some(value == "on"),
                            "deadlines" => tenant.rights.deadlines = Some(value == "on"),
                            "bookings" => tenant.rights.bookings = Some(value == "on"),
                            "negative-nice" => tenant.rights.negative_nice = Some(value == "on"),
                            kind => tenant.quotas.push(quota(kind, value)),
                        }
                    }
                    draft.tenants.insert(name(parts[0]), tenant);
                }
                other => panic!("no policy {other}"),
            }
        }
        let request = self.request(words);
        match support::with_all_rights(draft).check() {
            Ok(policy) => self.carry_out(&Command::SetPolicy {
                request,
                by: muster_types::Requester::default(),
                policy: Box::new(policy),
                expected_version: None,
            }),
            Err(violations) => violations.iter().map(|violation| format!("refused: {violation}\n")).collect(),
        }
    }
}

/// `HOURS:WINDOW`.
fn budget(text: &str) -> AcceleratorBudget {
    let (hours, window) = text.split_once(':').expect("HOURS:WINDOW");
    AcceleratorBudget { hours: hours.parse().unwrap(), window_ms: duration_ms(window) }
}

/// The only nodes, by name, with `+` between them.
fn nodes(text: &str) -> NodeRequirements {
    NodeRequirements { only: text.split('+').map(name).collect(), ..NodeRequirements::default() }
}

/// `DOLLARS:WINDOW`.
fn spend(text: &str) -> SpendBudget {
    let (dollars, window) = text.split_once(':').expect("DOLLARS:WINDOW");
    SpendBudget { dollars: dollars.parse().unwrap(), window_ms: duration_ms(window) }
}

/// `NOMINAL/BORROWING/LENDING` in devices; `-` or nothing for no limit.
fn quota(kind: &str, text: &str) -> Quota {
    let mut parts = text.split('/').map(|part| part.parse::<u64>().ok().map(|devices| devices * 1_000));
    Quota {
        kind: name(kind),
        region: None,
        nominal_milli: parts.next().flatten().expect("a nominal quota"),
        borrowing_limit_milli: parts.next().flatten(),
        lending_limit_milli: parts.next().flatten(),
    }
}
