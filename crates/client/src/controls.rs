//! What is asked of jobs that exist.

use muster_wire::v1;

use crate::Client;
use crate::calls::{ensure_request_id, jobs};
use crate::error::CallError;
use crate::repeat::Subject;

/// Calls that change jobs. Each carries a request id, made here when the request has none.
macro_rules! changes_of_jobs {
    ($($(#[$doc:meta])* $operation:literal, $call:ident: $request:ident -> $answer:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// Refusals at once; everything else when the deadline has passed.
        pub async fn $call(&self, mut request: v1::$request) -> Result<v1::$answer, CallError> {
            let request_id = ensure_request_id(&mut request.request_id);
            let subject = Subject { operation: $operation, request_id };
            let send = |channel| {
                let request = request.clone();
                async move { jobs(channel).$call(request).await }
            };
            let answer: v1::$answer = self.repeat(subject, send).await?;
            self.observe(answer.freshness.as_ref());
            Ok(answer)
        }
    )*};
}

impl Client {
    changes_of_jobs! {
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
