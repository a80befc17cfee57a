//! What people have asked of a job since it was submitted.

use alloc::boxed::Box;
use muster_types::{LogIndex, LogTime, Requester};
use serde::{Deserialize, Serialize};

/// Somebody keeps a job from being placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRow {
    /// Who.
    pub by: Requester,
    /// Since when.
    pub since: LogTime,
    /// Whether it was stopped for that.
    pub suspended: bool,
    /// The hold of the job's owner that an operator's was put over. It holds again when the operator releases the job.
    pub beneath: Option<Box<HoldRow>>,
}

impl HoldRow {
    /// A hold of somebody from now on, put over the one that there is.
    pub(crate) fn over(before: Option<HoldRow>, by: &Requester, since: LogTime, suspended: bool) -> HoldRow {
        let suspended = suspended || before.as_ref().is_some_and(|before| before.suspended);
        let beneath = before.filter(|before| by.is_operator && !before.by.is_operator).map(Box::new);
        HoldRow { by: by.kept(), since, suspended, beneath }
    }
}

/// Who changed a job last, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModificationRow {
    /// Who.
    pub by: Requester,
    /// When.
    pub at: LogTime,
    /// The record.
    pub index: LogIndex,
}

/// What people have asked of a job. A job of which nothing was asked has no row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRow {
    /// Who holds it; the job's own row says whether somebody does.
    pub hold: Option<HoldRow>,
    /// Who asked to cancel it first; none when nobody did, or nobody knows who.
    pub cancelled_by: Option<Requester>,
    /// Who asked last that it is stopped and waits again.
    pub requeued_by: Option<Requester>,
    /// Attempts that ended because somebody asked for that. They are no failures.
    pub requeues: u32,
    /// Who changed it last.
    pub modified: Option<ModificationRow>,
}

impl ControlRow {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == ControlRow::default()
    }
}
