//! What a node is good for, in one word: the same word in the command line and on the web pages.

use crate::v1;

/// Every word of [`node_state`], the gravest first.
pub const NODE_STATES: [&str; 12] = [
    "lost",
    "repair-failed",
    "in-repair",
    "drained",
    "draining",
    "quarantined",
    "unhealthy",
    "closed",
    "degraded",
    "cordoned",
    "unknown",
    "up",
];

/// The word for a node: what says most comes first. That a lost node is cordoned too changes nothing.
#[must_use]
pub fn node_state(node: &v1::Node) -> &'static str {
    let is_closed = node.foreign_load.as_ref().is_some_and(|load| load.closed);
    match node.status() {
        v1::NodeStatus::Lost => "lost",
        v1::NodeStatus::Unspecified => "unknown",
        v1::NodeStatus::Up => match restricted(node.restriction.as_ref(), node.job_ids.is_empty()) {
            Some(state) if state != "degraded" => state,
            _ if is_closed => "closed",
            Some(state) => state,
            None if node.cordoned => "cordoned",
            None => "up",
        },
    }
}

fn restricted(known: Option<&v1::NodeRestriction>, is_empty: bool) -> Option<&'static str> {
    let known = known?;
    Some(match (&known.repair, &known.drain) {
        (Some(repair), _) if repair.phase() == v1::RepairPhase::Failed => "repair-failed",
        (Some(_), _) => "in-repair",
        (None, Some(_)) if is_empty => "drained",
        (None, Some(_)) => "draining",
        (None, None) if known.quarantine.is_some() => "quarantined",
        (None, None) if known.out_of_service => "unhealthy",
        (None, None) if !known.unusable_devices.is_empty() => "degraded",
        (None, None) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(restriction: v1::NodeRestriction) -> v1::Node {
        v1::Node {
            status: v1::NodeStatus::Up.into(),
            restriction: Some(restriction),
            cordoned: true,
            ..Default::default()
        }
    }

    #[test]
    fn the_gravest_state_is_the_one_that_is_shown() {
        let repair =
            |phase: v1::RepairPhase| Some(v1::NodeRepair { phase: phase.into(), ..Default::default() });
        let drain = Some(v1::NodeDrain::default());
        let restricted = [
            (
                v1::NodeRestriction { repair: repair(v1::RepairPhase::Failed), drain, ..Default::default() },
                "repair-failed",
            ),
            (
                v1::NodeRestriction { repair: repair(v1::RepairPhase::Working), drain, ..Default::default() },
                "in-repair",
            ),
            (v1::NodeRestriction { drain, ..Default::default() }, "drained"),
            (
                v1::NodeRestriction { quarantine: Some(v1::NodeQuarantine::default()), ..Default::default() },
                "quarantined",
            ),
            (v1::NodeRestriction { out_of_service: true, ..Default::default() }, "unhealthy"),
            (v1::NodeRestriction { unusable_devices: vec![1], ..Default::default() }, "degraded"),
            (v1::NodeRestriction::default(), "cordoned"),
        ];
        for (restriction, state) in restricted {
            let mut node = up(restriction);
            assert_eq!(node_state(&node), state);
            node.status = v1::NodeStatus::Lost.into();
            assert_eq!(node_state(&node), "lost");
        }
        let mut draining = up(v1::NodeRestriction { drain, ..Default::default() });
        draining.job_ids.push("job-1".to_owned());
        assert_eq!(node_state(&draining), "draining");
    }

    #[test]
    fn a_node_that_another_scheduler_closes_is_not_up() {
        let mut node = v1::Node { status: v1::NodeStatus::Up.into(), ..Default::default() };
        assert_eq!(node_state(&node), "up");
        node.foreign_load = Some(v1::ForeignLoad { closed: true, ..Default::default() });
        assert_eq!(node_state(&node), "closed");
        node.status = v1::NodeStatus::Unspecified.into();
        assert_eq!(node_state(&node), "unknown");
    }
}
