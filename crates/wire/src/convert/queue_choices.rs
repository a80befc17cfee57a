//! Choices of a tenant's queue.

use muster_types::policy::QueueChoices;

use super::node_requirements::{node_requirements, node_requirements_to_proto};
use super::{Found, below, span};
use crate::closed::{number_or_zero, value_from_proto};
use crate::time::duration;
use crate::v1;

/// What a tenant states. `at` is the path of the message.
pub(super) fn queue_choices(at: &str, message: v1::QueueChoices, found: &mut Found) -> QueueChoices {
    let order = value_from_proto(&below(at, "order"), message.order);
    let preemption = value_from_proto(&below(at, "preemption"), message.preemption);
    QueueChoices {
        order: found.take(order).flatten(),
        block_for_ms: span(at, "block_for", message.block_for, found),
        preemption: found.take(preemption).flatten(),
        nodes: node_requirements(at, message.nodes, found).map(|nodes| *nodes),
        isolated: message.isolated,
    }
}

/// None where a tenant states nothing.
pub(super) fn queue_choices_to_proto(queue: &QueueChoices) -> Option<v1::QueueChoices> {
    (*queue != QueueChoices::default()).then(|| v1::QueueChoices {
        order: number_or_zero(queue.order),
        block_for: queue.block_for_ms.map(duration),
        preemption: number_or_zero(queue.preemption),
        nodes: queue.nodes.as_ref().map(node_requirements_to_proto),
        isolated: queue.isolated,
    })
}
