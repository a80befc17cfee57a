//! What people have asked of jobs.

use muster_console::moment;
use muster_wire::v1;
use serde::Serialize;

/// Content of `ControlledJobs`: what became of a command about several jobs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlledJobs {
    /// cancel, hold, release, requeue or suspend.
    pub control: &'static str,
    pub jobs: u64,
    /// Jobs that match beyond those.
    pub remaining: u64,
    /// Jobs that match and of which it cannot be asked.
    pub passed_over: u64,
}

/// What people have asked of a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Controls {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cancelled_by: String,
    pub requeues: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requeued_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub modified_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modify_time: Option<String>,
    pub modified_at_index: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub moved_to_front_at_index: u64,
    /// The most workers that it is placed with, where somebody has changed that while it ran.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Who holds a job.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    pub principal: String,
    pub by_operator: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    pub suspended: bool,
}

impl From<v1::JobControls> for Controls {
    fn from(controls: v1::JobControls) -> Controls {
        Controls {
            hold: controls.hold.map(|hold| Hold {
                principal: hold.principal,
                by_operator: hold.by_operator,
                start_time: moment(hold.start_time),
                suspended: hold.suspended,
            }),
            cancelled_by: controls.cancelled_by,
            requeues: controls.requeue_count,
            requeued_by: controls.requeued_by,
            modified_by: controls.modified_by,
            modify_time: moment(controls.modify_time),
            modified_at_index: controls.modified_at_index,
            moved_to_front_at_index: controls.moved_to_front_at_index,
            size: controls.size.into(),
        }
    }
}
