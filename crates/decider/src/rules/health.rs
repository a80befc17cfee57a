//! What a report of an agent means by the health policy. It is the same for every replica: no record is made here.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_types::health::{
    Condition, Finding, HealthAction, HealthPolicy, HealthReport, NodeHealth, Observation, RebootCount,
};
use muster_types::{DeviceSet, LogTime, limits};

/// What is known of a node's health behind a report, and what happened, with what follows from each.
pub(crate) fn conclude(
    policy: &HealthPolicy,
    before: &NodeHealth,
    report: &HealthReport,
    now: LogTime,
    all: DeviceSet,
) -> (NodeHealth, Vec<Condition>) {
    let mut health = NodeHealth {
        recent: before.recent.clone(),
        reboots: before.reboots.clone(),
        maintenance_at: report.maintenance_at,
        ..NodeHealth::default()
    };
    let was_reset = |o: &Observation| o.device.is_some_and(|d| report.reset.contains(DeviceSet(1 << d)));
    // An XID is over when the host was rebooted or the device reset, unless somebody has to look first.
    let stays = |c: &&Condition| {
        let is_xid = matches!(c.observation.finding, Finding::Xid(_));
        // No agent can see that the network is sound again.
        let is_network = c.observation.finding == Finding::Network;
        is_network
            || is_xid
                && (c.action == HealthAction::Inspect
                    || (c.boot == report.boot && !was_reset(&c.observation)))
    };
    health.conditions = before.conditions.iter().filter(stays).cloned().collect();
    for observation in &report.findings {
        let action = escalated(policy, &mut health.reboots, observation, report.boot);
        let old = before.conditions.iter().find(|c| c.observation.is_like(observation));
        let since = old.map_or(now, |old| old.since);
        // What differs in its words alone is not news.
        let observation = match old.filter(|old| old.action == action) {
            Some(old) => old.observation.clone(),
            None => observation.clone(),
        };
        if action.lasts() && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX {
            health.conditions.push(Condition { observation, action, since, boot: report.boot });
        }
    }
    let mut events = Vec::new();
    for observation in &report.events {
        let action = escalated(policy, &mut health.reboots, observation, report.boot);
        let event = Condition { observation: observation.clone(), action, since: now, boot: report.boot };
        let known = health.conditions.iter().position(|c| c.observation.is_like(observation));
        match known {
            // It is known already, and nothing graver follows from its coming back.
            Some(at) if health.conditions[at].action >= action => continue,
            Some(at) => health.conditions[at] = event.clone(),
            None if action.lasts() && health.conditions.len() < limits::HEALTH_CONDITIONS_MAX => {
                health.conditions.push(event.clone());
            }
            None => health.recent.push(event.clone()),
        }
        events.push(event);
    }
    let excess = health.recent.len().saturating_sub(limits::HEALTH_RECENT_MAX);
    health.recent.drain(..excess);
    health.conditions.sort_by(|a, b| {
        let key = |c: &Condition| (c.observation.device, c.observation.finding);
        key(a).cmp(&key(b))
    });
    weigh(policy, &mut health, all);
    (health, events)
}

/// What follows from an observation, given how often the host was rebooted for it before.
fn escalated(
    policy: &HealthPolicy,
    counts: &mut Vec<RebootCount>,
    observation: &Observation,
    boot: u64,
) -> HealthAction {
    let action = policy.action(observation);
    if action != HealthAction::RebootNode {
        return action;
    }
    let same =
        |count: &&mut RebootCount| (count.finding, count.device) == (observation.finding, observation.device);
    let reboots = match counts.iter_mut().find(same) {
        Some(count) => {
            if count.boot != boot {
                count.boot = boot;
                count.reboots = count.reboots.saturating_add(1);
            }
            count.reboots
        }
        None => {
            if counts.len() < limits::HEALTH_CONDITIONS_MAX {
                let (finding, device) = (observation.finding, observation.device);
                counts.push(RebootCount { finding, device, boot, reboots: 0 });
            }
            0
        }
    };
    if reboots >= policy.reboots_max { HealthAction::Inspect } else { action }
}

/// What the conditions come to.
pub(crate) fn weigh(policy: &HealthPolicy, health: &mut NodeHealth, all: DeviceSet) {
    let unusable = |set: DeviceSet, c: &Condition| set.union(c.unusable(policy.reset_takes_group));
    let unusable = health.conditions.iter().fold(DeviceSet::EMPTY, unusable);
    health.unusable = DeviceSet(unusable.0 & all.0);
    health.out_of_service = health.conditions.iter().any(Condition::takes_node);
}

/// Devices on which what runs has to stop, and whether all of the node has to.
pub(crate) fn faulty(health: &NodeHealth) -> (DeviceSet, bool) {
    let grave = health.conditions.iter().filter(|condition| condition.action.stops_work());
    let mut devices = DeviceSet::EMPTY;
    let mut is_all = false;
    for condition in grave {
        is_all |= condition.takes_node();
        if let Some(device) = condition.observation.device {
            devices = devices.union(DeviceSet(1 << device));
        }
    }
    (devices, is_all)
}

/// What was seen, in words.
pub(crate) fn evidence(condition: &Condition) -> String {
    let observation = &condition.observation;
    let place = observation.device.map_or_else(|| "the host".into(), |d| format!("device {d}"));
    let mut text = format!("{} on {place}: {}", observation.finding, condition.action);
    if !observation.detail.is_empty() {
        text = format!("{text} ({})", observation.detail);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(code: u16, device: u16) -> Observation {
        Observation::of(Finding::Xid(code), Some(device))
    }

    fn after(before: &NodeHealth, report: &HealthReport) -> (NodeHealth, Vec<Condition>) {
        conclude(&HealthPolicy::default(), before, report, LogTime(1_000), DeviceSet::first(8))
    }

    #[test]
    fn a_reset_takes_the_group_and_ends_with_it() {
        let group = DeviceSet::first(4);
        let observation = Observation { group, ..xid(95, 1) };
        let report = HealthReport { boot: 1, events: alloc::vec![observation], ..HealthReport::default() };
        let (health, events) = after(&NodeHealth::default(), &report);
        assert_eq!((health.unusable, health.out_of_service, events.len()), (group, false, 1));
        assert_eq!(faulty(&health), (DeviceSet(2), false), "what runs on the others may end");
        // The same again is not news; a reset of another device changes nothing, a reset of this device ends it.
        let (again, events) = after(&health, &report);
        assert_eq!((&again, events.len()), (&health, 0));
        let reset =
            |device: u16| HealthReport { boot: 1, reset: DeviceSet(1 << device), ..HealthReport::default() };
        assert_eq!(after(&health, &reset(0)).0, health);
        assert!(after(&health, &reset(1)).0.is_blank());
    }

    #[test]
    fn what_comes_back_behind_two_reboots_is_for_a_person() {
        let seen = |boot| HealthReport { boot, events: alloc::vec![xid(79, 0)], ..HealthReport::default() };
        let quiet = |boot| HealthReport { boot, ..HealthReport::default() };
        let mut health = NodeHealth::default();
        let mut actions = Vec::new();
        for boot in 1..=4 {
            health = after(&health, &quiet(boot)).0;
            health = after(&health, &seen(boot)).0;
            assert!(health.out_of_service || health.unusable == DeviceSet(1));
            actions.push(health.conditions[0].action);
        }
        use HealthAction::{Inspect, RebootNode};
        assert_eq!(actions, [RebootNode, RebootNode, Inspect, Inspect]);
        assert_eq!(after(&health, &quiet(5)).0.conditions.len(), 1, "no reboot ends it");
    }

    #[test]
    fn the_driver_goes_before_the_catalogue() {
        use muster_types::health::RecoveryAction;
        let policy = HealthPolicy::default();
        let said = |code, recovery| policy.action(&Observation { recovery, ..xid(code, 0) });
        assert_eq!(said(95, None), HealthAction::ResetGpu);
        assert_eq!(said(95, Some(RecoveryAction::NodeReboot)), HealthAction::RebootNode);
        assert_eq!(said(95, Some(RecoveryAction::None)), HealthAction::RestartApp);
        assert_eq!(said(13, Some(RecoveryAction::NodeReboot)), HealthAction::RestartApp);
        assert_eq!(said(74, Some(RecoveryAction::GpuReset)), HealthAction::ResetGpu);
        assert_eq!(said(74, None), HealthAction::Ignore);
        assert_eq!(said(9_999, None), HealthAction::Ignore);
        assert_eq!(said(54, Some(RecoveryAction::None)), HealthAction::Inspect);
    }

    #[test]
    fn a_storm_is_remembered_in_eight_lines() {
        let mut health = NodeHealth::default();
        for _ in 0..100 {
            let events = alloc::vec![xid(13, 0), xid(43, 1)];
            let report = HealthReport { boot: 1, events, ..HealthReport::default() };
            health = after(&health, &report).0;
        }
        assert_eq!(health.recent.len(), limits::HEALTH_RECENT_MAX);
        assert!(health.is_bounded() && health.unusable.is_empty() && !health.out_of_service);
    }

    #[test]
    fn lasting_findings_are_there_as_long_as_they_are_seen() {
        let slow = Observation::of(Finding::Slowdown, Some(2));
        let worse = Observation { detail: "91 C".into(), ..slow.clone() };
        let report = |findings| HealthReport { boot: 1, findings, ..HealthReport::default() };
        let (health, _) = after(&NodeHealth::default(), &report(alloc::vec![slow]));
        assert_eq!((health.unusable, faulty(&health).0), (DeviceSet(4), DeviceSet::EMPTY));
        assert_eq!(after(&health, &report(alloc::vec![worse])).0, health, "other words are not news");
        assert!(after(&health, &report(Vec::new())).0.is_blank());
        let hung = report(alloc::vec![Observation::of(Finding::MonitorHung, None)]);
        let (health, _) = after(&health, &hung);
        assert!(health.out_of_service && health.unusable.is_empty());
    }
}
