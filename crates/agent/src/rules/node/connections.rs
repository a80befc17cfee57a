//! Connections that somebody else has asked for: output of workers, and commands next to them.

use super::{Action, Node};
use crate::rules::OutputRequest;
use crate::rules::uploads::UploadAdmission;
use crate::rules::worker::WorkerKey;

impl Node {
    /// A command counts as an upload: both are connections that somebody else has asked for.
    pub(super) fn on_exec(&mut self, relay_id: u64, key: WorkerKey) {
        let refused = match self.uploads.admit_command(key.job) {
            UploadAdmission::Accepted => None,
            UploadAdmission::Refused(reason) => Some(reason),
            UploadAdmission::Dropped => {
                tracing::warn!(job = %key.job, node = %self.spec.name, worker = %key, relay_id, "too many requests for output and commands; one is dropped");
                return;
            }
        };
        let refused =
            refused.or_else(|| (!self.is_live(key)).then(|| format!("worker {key} does not run here")));
        // One that is refused runs nothing, and its connection is over once the reason is told.
        let number = match refused {
            None => self.uploads.begin_command(key.job),
            Some(_) => self.uploads.begin(key.job),
        };
        self.actions.push(Action::Exec { number, relay_id, key, refused });
    }

    pub(super) fn on_read_logs(&mut self, read_id: u64, request: OutputRequest) {
        let job = request.key.job;
        let refused = match self.uploads.admit(job) {
            UploadAdmission::Accepted => None,
            UploadAdmission::Refused(reason) => Some(reason),
            UploadAdmission::Dropped => {
                tracing::warn!(%job, node = %self.spec.name, worker = %request.key, read_id, "too many requests for output; one is dropped");
                return;
            }
        };
        let number = self.uploads.begin(job);
        self.actions.push(Action::Upload { number, read_id, request, refused });
    }
}
