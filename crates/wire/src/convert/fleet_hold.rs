//! Holds of parts of the fleet and of tenants.

use muster_types::fleet::checked_name;
use muster_types::{FleetHold, FleetPart, HoldTarget, Violation};

use super::{Found, moment};
use crate::v1;

/// Reads what is held.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn hold_target_from_proto(message: Option<v1::HoldTarget>) -> Result<HoldTarget, Vec<Violation>> {
    let mut found = Found::default();
    let Some(message) = message else { return Err(vec![Violation::new("target", "must be given")]) };
    let mut name = |field: &str, text: &str| match text {
        "" => None,
        text => found.take(checked_name(&format!("target.{field}"), text)),
    };
    let region = name("region", &message.region);
    let cluster = name("cluster", &message.cluster);
    let tenant = name("tenant", &message.tenant);
    let target = match tenant {
        Some(tenant) => {
            if region.is_some() || cluster.is_some() {
                let text = "must be left out where a region or a cluster is named";
                found.push(Violation::new("target.tenant", text));
            }
            HoldTarget::Tenant(tenant)
        }
        None => HoldTarget::Part(FleetPart { region, cluster }),
    };
    if found.is_empty() {
        found.extend(target.violations());
    }
    if found.is_empty() { Ok(target) } else { Err(found.into_violations()) }
}

/// Reads how it is held; none where it is released.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn fleet_hold_from_proto(message: &v1::SetFleetHoldRequest) -> Result<Option<FleetHold>, Vec<Violation>> {
    let mut found = Found::default();
    let until = moment("", "end_time", message.end_time, &mut found);
    let Some(held) = message.held else {
        found.push(Violation::new("held", "must be given: true holds it, and false releases it"));
        return Err(found.into_violations());
    };
    if !held {
        if !message.reason.is_empty() || message.end_time.is_some() || message.drain {
            found.push(Violation::new("held", "must be set where a reason, an end or a drain is given"));
        }
        return if found.is_empty() { Ok(None) } else { Err(found.into_violations()) };
    }
    let hold = FleetHold { reason: message.reason.clone(), until, stops_work: message.drain };
    found.extend(hold.violations());
    if found.is_empty() { Ok(Some(hold)) } else { Err(found.into_violations()) }
}

/// What is held, as a message.
#[must_use]
pub fn hold_target_to_proto(target: &HoldTarget) -> v1::HoldTarget {
    match target {
        HoldTarget::Part(part) => v1::HoldTarget {
            region: part.region.as_ref().map(ToString::to_string).unwrap_or_default(),
            cluster: part.cluster.as_ref().map(ToString::to_string).unwrap_or_default(),
            tenant: String::new(),
        },
        HoldTarget::Tenant(tenant) => v1::HoldTarget { tenant: tenant.to_string(), ..Default::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(region: &str, cluster: &str, tenant: &str) -> v1::HoldTarget {
        let [region, cluster, tenant] = [region, cluster, tenant].map(str::to_owned);
        v1::HoldTarget { region, cluster, tenant }
    }

    #[test]
    fn what_is_held_goes_there_and_back() {
        for message in
            [target("eu", "", ""), target("", "c1", ""), target("eu", "c1", ""), target("", "", "lab")]
        {
            let read = hold_target_from_proto(Some(message.clone())).expect("it is whole");
            assert_eq!(hold_target_to_proto(&read), message);
        }
        for wrong in
            [None, Some(target("", "", "")), Some(target("eu", "", "lab")), Some(target("E U", "", ""))]
        {
            assert!(hold_target_from_proto(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_hold_says_why_and_a_release_says_nothing_more() {
        let hold =
            v1::SetFleetHoldRequest { held: Some(true), reason: "a flood".to_owned(), ..Default::default() };
        assert!(fleet_hold_from_proto(&hold).is_ok_and(|hold| hold.is_some()));
        let release = v1::SetFleetHoldRequest { held: Some(false), ..Default::default() };
        assert_eq!(fleet_hold_from_proto(&release), Ok(None));
        for wrong in [
            v1::SetFleetHoldRequest { reason: String::new(), ..hold.clone() },
            v1::SetFleetHoldRequest { held: Some(false), ..hold },
            v1::SetFleetHoldRequest { drain: true, ..release },
            // What was forgotten releases nothing.
            v1::SetFleetHoldRequest::default(),
        ] {
            assert!(fleet_hold_from_proto(&wrong).is_err(), "{wrong:?}");
        }
    }
}
