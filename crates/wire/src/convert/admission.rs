//! Which nodes are admitted, and which certificates are not good any more.

use muster_types::fleet::checked_name;
use muster_types::{
    AdmissionMode, AdmissionRule, Approval, CertificateSerial, LogTime, Name, NodeAdmission, NodeBounds,
    Revocation, Violation, limits,
};

use super::value::{accelerators_from_proto, accelerators_to_proto};
use super::{Found, below};
use crate::closed::given_from_proto;
use crate::time::{log_time, timestamp_from_proto};
use crate::{admin, v1};

/// Bounds of a node. `at` is the path of the message.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn node_bounds_from_proto(at: &str, message: &v1::NodeBounds) -> Result<NodeBounds, Vec<Violation>> {
    let mut found = Found::default();
    let mut name = |field: &str, text: &str| match text {
        "" => None,
        text => found.take(checked_name(&below(at, field), text)),
    };
    let (region, cluster) = (name("region", &message.region), name("cluster", &message.cluster));
    let mut devices = Vec::new();
    if message.devices.len() > limits::ACCELERATOR_CHOICES_MAX {
        let max = limits::ACCELERATOR_CHOICES_MAX as u64;
        found.extend(vec![Violation::limit(&below(at, "devices"), message.devices.len() as u64, 0, max)]);
    } else {
        for (place, device) in message.devices.iter().enumerate() {
            match accelerators_from_proto(&below(at, &format!("devices[{place}]")), device) {
                Ok(device) => devices.push(device),
                Err(violations) => found.extend(violations),
            }
        }
    }
    devices.sort_by(|a, b| a.kind.cmp(&b.kind));
    let is_bounded = message.bounds_devices || !message.devices.is_empty();
    if !found.is_empty() {
        return Err(found.into_violations());
    }
    Ok(NodeBounds { region, cluster, devices: is_bounded.then_some(devices) })
}

/// The message of bounds.
#[must_use]
pub fn node_bounds_to_proto(bounds: &NodeBounds) -> v1::NodeBounds {
    let text = |name: &Option<Name>| name.as_ref().map(ToString::to_string).unwrap_or_default();
    v1::NodeBounds {
        region: text(&bounds.region),
        cluster: text(&bounds.cluster),
        devices: bounds.devices.iter().flatten().map(accelerators_to_proto).collect(),
        bounds_devices: bounds.devices.is_some(),
    }
}

/// Which nodes are admitted.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn node_admission_from_proto(
    mode: i32,
    rules: &[v1::NodeAdmissionRule],
) -> Result<NodeAdmission, Vec<Violation>> {
    let mode: AdmissionMode = given_from_proto("mode", mode).map_err(|violation| vec![violation])?;
    if rules.len() > limits::ADMISSION_RULES_MAX {
        let max = limits::ADMISSION_RULES_MAX as u64;
        return Err(vec![Violation::limit("rules", rules.len() as u64, 0, max)]);
    }
    let mut checked = Vec::with_capacity(rules.len());
    let mut found = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let bounds = rule.bounds.clone().unwrap_or_default();
        match node_bounds_from_proto(&format!("rules[{place}].bounds"), &bounds) {
            Ok(bounds) => checked.push(AdmissionRule { pattern: rule.pattern.clone(), bounds }),
            Err(violations) => found.extend(violations),
        }
    }
    let admission = NodeAdmission { mode, rules: checked };
    found.extend(admission.violations());
    found.truncate(super::VIOLATIONS_MAX);
    if found.is_empty() { Ok(admission) } else { Err(found) }
}

/// The message of a rule.
#[must_use]
pub fn admission_rule_to_proto(rule: &AdmissionRule) -> v1::NodeAdmissionRule {
    v1::NodeAdmissionRule { pattern: rule.pattern.clone(), bounds: Some(node_bounds_to_proto(&rule.bounds)) }
}

/// The message of what was said of a node.
#[must_use]
pub fn approval_to_proto(name: &Name, approval: &Approval) -> v1::NodeApproval {
    let approved = match approval {
        Approval::Approved(bounds) => Some(node_bounds_to_proto(bounds)),
        Approval::Rejected => None,
    };
    v1::NodeApproval { name: name.to_string(), approved }
}

/// A certificate that is to be revoked.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn revocation_from_proto(
    at: &str,
    message: &admin::RevokedCertificate,
) -> Result<(CertificateSerial, Revocation), Vec<Violation>> {
    let until = message.expire_time.map_or(Ok(0), |time| timestamp_from_proto("expire_time", time));
    let until = until.map_err(|violation| vec![violation.under(at)])?;
    let revocation = Revocation { holder: message.holder.clone(), until: LogTime(until) };
    let mut found: Vec<Violation> = revocation.violations().into_iter().map(|v| v.under(at)).collect();
    match message.serial.parse() {
        Ok(serial) if found.is_empty() => Ok((serial, revocation)),
        Ok(_) => Err(found),
        Err(violation) => {
            found.push(Violation::under(violation, at));
            Err(found)
        }
    }
}

/// The message of a revoked certificate.
#[must_use]
pub fn revocation_to_proto(serial: CertificateSerial, revocation: &Revocation) -> admin::RevokedCertificate {
    admin::RevokedCertificate {
        serial: serial.to_string(),
        holder: revocation.holder.clone(),
        expire_time: log_time(revocation.until),
    }
}
