//! What is asked of jobs that exist.

use muster_wire::v1;

use crate::Client;
use crate::calls::{changes, ensure_request_id, jobs};
use crate::error::CallError;
use crate::retry::Subject;

impl Client {
    changes! { jobs:
        /// Cancels the jobs that a selector finds.
        "cancel jobs", cancel_jobs: CancelJobsRequest -> CancelJobsResponse;
        /// Keeps waiting jobs from being placed.
        "hold jobs", hold_jobs: HoldJobsRequest -> HoldJobsResponse;
        /// Ends holds and suspensions.
        "release jobs", release_jobs: ReleaseJobsRequest -> ReleaseJobsResponse;
        /// Stops running jobs; they wait again.
        "requeue jobs", requeue_jobs: RequeueJobsRequest -> RequeueJobsResponse;
        /// Stops running jobs and holds them.
        "suspend jobs", suspend_jobs: SuspendJobsRequest -> SuspendJobsResponse;
        /// Changes a job.
        "update job", update_job: UpdateJobRequest -> UpdateJobResponse;
    }
}
