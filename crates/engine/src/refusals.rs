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
