//! Refusals that several services give.

use muster_types::{Refusal, RefusalCode};

pub(crate) fn overloaded() -> Refusal {
    let text = "too many requests wait for the leader; try again";
    Refusal::new(RefusalCode::Overloaded, text).with("retry_after_ms", 100)
}

pub(crate) fn storage_full() -> Refusal {
    let text = "the data disk of the leader has almost no free space: it takes no new work until it has";
    Refusal::new(RefusalCode::StorageFull, text)
}

pub(crate) fn stopping() -> Refusal {
    Refusal::new(RefusalCode::OutcomeUnknown, "this replica stops; repeat the request at another")
}

/// Of a read, which changes nothing, so that no outcome is unknown: clients turn to another replica.
pub(crate) fn stopping_reads() -> Refusal {
    Refusal::new(RefusalCode::ReplicaStopping, "this replica stops; read through another")
}
