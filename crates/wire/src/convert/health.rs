//! The health of nodes.

use std::collections::BTreeMap;

use muster_types::health::{
    Condition, Drain, Finding, HealthAction, HealthPolicy, HealthReport, NodeHealth, Observation, Quarantine,
    RecoveryAction, Repair, RepairEnd, RepairPhase,
};
use muster_types::{DeviceSet, LogTime, Violation, limits};

use super::{Found, below, device_set_from_proto, device_set_to_proto, shown, span};
use crate::closed::{given_from_proto, number, value_from_proto};
use crate::time::{Duration, duration, duration_from_proto, log_time, timestamp};
use crate::{agent, v1};

/// What keeps work away from a node.
#[must_use]
pub fn restriction_to_proto(
    drain: Option<&Drain>,
    quarantine: Option<&Quarantine>,
    repair: Option<&Repair>,
    health: &NodeHealth,
) -> v1::NodeRestriction {
    v1::NodeRestriction {
        drain: drain.map(|drain| v1::NodeDrain {
            start_time: log_time(drain.since),
            stop_time: drain.deadline.map(|at| timestamp(at.0)),
            cause: number(drain.cause),
        }),
        quarantine: quarantine
            .map(|q| v1::NodeQuarantine { start_time: log_time(q.since), reason: q.reason.clone() }),
        repair: repair.map(repair_to_proto),
        conditions: health.conditions.iter().map(condition_to_proto).collect(),
        recent: health.recent.iter().map(condition_to_proto).collect(),
        maintenance_time: health.maintenance_at.map(|at| timestamp(at.0)),
        unusable_devices: device_set_to_proto(health.unusable),
        out_of_service: health.out_of_service,
    }
}

fn repair_to_proto(repair: &Repair) -> v1::NodeRepair {
    let detail = match &repair.phase {
        RepairPhase::Failed(detail) => detail.clone(),
        RepairPhase::Draining | RepairPhase::Working => String::new(),
    };
    v1::NodeRepair {
        number: repair.number,
        action: number(repair.action),
        devices: device_set_to_proto(repair.devices),
        start_time: log_time(repair.since),
        phase: number(match repair.phase {
            RepairPhase::Draining => v1::RepairPhase::Draining,
            RepairPhase::Working => v1::RepairPhase::Working,
            RepairPhase::Failed(_) => v1::RepairPhase::Failed,
        }),
        message: detail,
    }
}

fn condition_to_proto(condition: &Condition) -> v1::NodeCondition {
    let observation = &condition.observation;
    v1::NodeCondition {
        finding: observation.finding.to_string(),
        device: observation.device.map(u32::from),
        action: number(condition.action),
        start_time: log_time(condition.since),
        message: observation.detail.clone(),
        count: observation.count,
    }
}

/// What an agent says of its host's health; devices are checked against the host later, where it is known. `at`
/// is the path of the message.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn health_report_from_proto(
    at: &str,
    message: &agent::HealthReport,
) -> Result<HealthReport, Vec<Violation>> {
    let mut found = Found::default();
    let lists = [
        ("findings", &message.findings, limits::HEALTH_CONDITIONS_MAX),
        ("events", &message.events, limits::HEALTH_EVENTS_MAX),
    ];
    let mut read = Vec::with_capacity(2);
    for (name, list, max) in lists {
        let field = below(at, name);
        if list.len() > max {
            found.push(Violation::limit(&field, list.len() as u64, 0, max as u64));
        }
        let of_list = list.iter().take(max).enumerate();
        let taken: Vec<Observation> = of_list
            .filter_map(|(place, o)| observation(&format!("{field}[{place}]"), o, &mut found))
            .collect();
        read.push(taken);
    }
    let reset = found.take(device_set_from_proto(&below(at, "reset_devices"), &message.reset_devices));
    let events = read.pop().unwrap_or_default();
    let findings = read.pop().unwrap_or_default();
    let repair = (message.repair_number != 0).then(|| match message.repair_failure.as_str() {
        "" => RepairEnd::Done,
        why => RepairEnd::Failed(why.to_owned()),
    });
    let report = HealthReport {
        boot: message.boot,
        findings,
        events,
        reset: reset.unwrap_or_default(),
        maintenance_at: message.maintenance_at_ms.map(LogTime),
        repair,
    };
    found.extend(report.violations(limits::HOST_DEVICES_MAX).into_iter().map(|v| v.under(at)).collect());
    if found.is_empty() { Ok(report) } else { Err(found.into_violations()) }
}

fn observation(at: &str, message: &agent::HealthObservation, found: &mut Found) -> Option<Observation> {
    let finding = message.finding.parse::<Finding>().map_err(|error| {
        let text = format!("must be a finding, got {}: {error}", shown(&message.finding));
        Violation::new(below(at, "finding"), text)
    });
    let device = match message.device {
        None => Ok(None),
        Some(device) => u16::try_from(device).map(Some).map_err(|_| {
            let max = u64::from(limits::HOST_DEVICES_MAX) - 1;
            Violation::limit(&below(at, "device"), device.into(), 0, max)
        }),
    };
    let group = found.take(device_set_from_proto(&below(at, "group"), &message.group));
    let (finding, device) = (found.take(finding), found.take(device));
    Some(Observation {
        finding: finding?,
        device: device?,
        group: group?,
        // A number that is not known is none: a later driver may say more.
        recovery: message.recovery.and_then(RecoveryAction::of_number),
        count: message.count.max(1),
        detail: message.detail.clone(),
    })
}

/// What an agent has seen, as a message. A repair's number is the agent's to add.
#[must_use]
pub fn health_report_to_proto(report: &HealthReport) -> agent::HealthReport {
    let said = |list: &[Observation]| list.iter().map(observation_to_proto).collect();
    agent::HealthReport {
        sequence: 0,
        boot: report.boot,
        findings: said(&report.findings),
        events: said(&report.events),
        reset_devices: device_set_to_proto(report.reset),
        maintenance_at_ms: report.maintenance_at.map(|at| at.0),
        repair_number: 0,
        repair_failure: String::new(),
    }
}

fn observation_to_proto(observation: &Observation) -> agent::HealthObservation {
    agent::HealthObservation {
        finding: observation.finding.to_string(),
        device: observation.device.map(u32::from),
        group: device_set_to_proto(observation.group),
        recovery: observation.recovery.map(RecoveryAction::number),
        count: observation.count,
        detail: observation.detail.clone(),
    }
}

/// The health policy an operator sets. `at` is the path of the message.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn health_policy_from_proto(
    at: &str,
    message: Option<&v1::HealthPolicy>,
) -> Result<HealthPolicy, Vec<Violation>> {
    let Some(message) = message else { return Err(vec![Violation::new(at, "must be given")]) };
    let mut found = Found::default();
    let max = limits::HEALTH_XIDS_MAX;
    for (name, count) in [("xids", message.xids.len()), ("findings", message.findings.len())] {
        if count > max {
            found.push(Violation::limit(&below(at, name), count as u64, 0, max as u64));
        }
    }
    let mut xids = BTreeMap::new();
    for (code, rule) in message.xids.iter().take(max) {
        let field = format!("{}[{code}]", below(at, "xids"));
        let number = u16::try_from(*code)
            .map_err(|_| Violation::limit(&field, (*code).into(), 0, u64::from(u16::MAX)));
        if let (Some(number), Some(rule)) = (found.take(number), found.take(given_from_proto(&field, *rule)))
        {
            xids.insert(number, rule);
        }
    }
    let mut findings = BTreeMap::new();
    for (finding, action) in message.findings.iter().take(max) {
        let field = format!("{}[{}]", below(at, "findings"), shown(finding));
        let parsed = finding.parse::<Finding>();
        let parsed = parsed.map_err(|error| Violation::new(&field, error.to_string()));
        let action = given_from_proto(&field, *action);
        if let (Some(finding), Some(action)) = (found.take(parsed), found.take(action)) {
            findings.insert(finding, action);
        }
    }
    let usual = HealthPolicy::default();
    let unlisted = value_from_proto(&below(at, "xid_unlisted"), message.xid_unlisted);
    let reboots_max = message.max_reboots.unwrap_or(usual.reboots_max.into());
    let policy = HealthPolicy {
        xids,
        xid_unlisted: found.take(unlisted).flatten().unwrap_or(usual.xid_unlisted),
        trust_driver: message.trust_driver.unwrap_or(usual.trust_driver),
        findings,
        reboots_max: u16::try_from(reboots_max).unwrap_or(u16::MAX),
        reset_takes_group: message.reset_takes_group.unwrap_or(usual.reset_takes_group),
        maintenance_lead_ms: span(at, "maintenance_lead", message.maintenance_lead, &mut found)
            .unwrap_or(usual.maintenance_lead_ms),
    };
    found.extend(policy.violations().into_iter().map(|v| v.under(at)).collect());
    if found.is_empty() { Ok(policy) } else { Err(found.into_violations()) }
}

/// The health policy, nothing left out.
#[must_use]
pub fn health_policy_to_proto(policy: &HealthPolicy) -> v1::HealthPolicy {
    let findings = policy.findings.iter();
    v1::HealthPolicy {
        xids: policy.xids.iter().map(|(code, rule)| ((*code).into(), number(*rule))).collect(),
        xid_unlisted: number(policy.xid_unlisted),
        trust_driver: Some(policy.trust_driver),
        findings: findings.map(|(finding, action)| (finding.to_string(), number(*action))).collect(),
        max_reboots: Some(policy.reboots_max.into()),
        reset_takes_group: Some(policy.reset_takes_group),
        maintenance_lead: Some(duration(policy.maintenance_lead_ms)),
    }
}

/// How long work has before it is stopped, in milliseconds; none for as long as it takes.
///
/// # Errors
/// When it is no whole number of milliseconds, or out of range.
pub fn stop_after_from_proto(stop_after: Option<Duration>) -> Result<Option<u64>, Vec<Violation>> {
    let read = stop_after.map(|stop_after| duration_from_proto("stop_after", stop_after));
    read.transpose().map_err(|violation| vec![violation])
}

/// The action of a repair, its devices, and how long work has before it is stopped, in milliseconds; an action that is not specified is none.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn repair_from_proto(
    message: &v1::BeginNodeRepairRequest,
) -> Result<(Option<HealthAction>, DeviceSet, Option<u64>), Vec<Violation>> {
    let mut found = Found::default();
    let action = found.take(value_from_proto("action", message.action)).flatten();
    let devices = found.take(device_set_from_proto("devices", &message.devices));
    let stop_after_ms = span("", "stop_after", message.stop_after, &mut found);
    if found.is_empty() {
        Ok((action, devices.unwrap_or_default(), stop_after_ms))
    } else {
        Err(found.into_violations())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_goes_through_its_message() {
        let policy = HealthPolicy::default();
        let message = health_policy_to_proto(&policy);
        assert_eq!(health_policy_from_proto("policy", Some(&message)), Ok(policy));
    }

    #[test]
    fn a_bad_policy_names_its_fields() {
        let mut message = health_policy_to_proto(&HealthPolicy::default());
        message.xids.insert(70_000, v1::XidAction::Ignore.into());
        message.xids.insert(13, 99);
        message.findings.insert("xid-13".into(), v1::HealthAction::Ignore.into());
        message.findings.insert("heat".into(), v1::HealthAction::Ignore.into());
        message.max_reboots = Some(70_000);
        message.xid_unlisted = -1;
        let found = health_policy_from_proto("policy", Some(&message)).unwrap_err();
        let mut fields: Vec<&str> = found.iter().map(|v| v.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "policy.findings.xid-13",
                "policy.findings[\"heat\"]",
                "policy.max_reboots",
                "policy.xid_unlisted",
                "policy.xids[13]",
                "policy.xids[70000]",
            ]
        );
        assert!(health_policy_from_proto("policy", None).is_err());
    }

    #[test]
    fn a_report_goes_through_its_message() {
        let mut event = Observation::of(Finding::Xid(79), Some(3));
        event.recovery = Some(RecoveryAction::NodeReboot);
        event.group = DeviceSet::first(8);
        event.detail = "GPU has fallen off the bus".into();
        let report = HealthReport {
            boot: 7,
            findings: vec![Observation::of(Finding::MonitorHung, None)],
            events: vec![event],
            reset: DeviceSet(4),
            maintenance_at: Some(LogTime(9)),
            repair: None,
        };
        let message = health_report_to_proto(&report);
        assert_eq!(health_report_from_proto("health", &message), Ok(report));
        let ended = agent::HealthReport { repair_number: 4, ..message };
        let read = health_report_from_proto("health", &ended).unwrap();
        assert_eq!(read.repair, Some(RepairEnd::Done));
    }

    #[test]
    fn a_bad_report_names_its_fields() {
        let bad = agent::HealthObservation { finding: "xid-079".into(), ..Default::default() };
        let far =
            agent::HealthObservation { finding: "slowdown".into(), device: Some(64), ..Default::default() };
        let swapped = agent::HealthObservation { finding: "xid-1".into(), ..Default::default() };
        let long = agent::HealthObservation {
            finding: "xid-1".into(),
            detail: "x".repeat(161),
            ..Default::default()
        };
        let report = agent::HealthReport {
            findings: vec![bad, far, swapped],
            events: vec![long],
            reset_devices: vec![64],
            ..Default::default()
        };
        let found = health_report_from_proto("health", &report).unwrap_err();
        let fields: Vec<&str> = found.iter().map(|v| v.field.as_str()).collect();
        assert!(fields.contains(&"health.findings[0].finding"), "{fields:?}");
        assert!(fields.iter().any(|field| field.starts_with("health.reset_devices")), "{fields:?}");
        let many = agent::HealthReport { events: vec![Default::default(); 65], ..Default::default() };
        assert!(health_report_from_proto("health", &many).is_err());
    }
}
