//! Schedules: made, changed, looked at and controlled.

use muster_wire::v1;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;

use crate::Client;
use crate::calls::{ANSWER_BYTES_MAX, changes, ensure_request_id, repeatable, within};
use crate::channel::Channel;
use crate::error::CallError;
use crate::retry::Subject;

fn schedules(channel: Channel) -> ScheduleServiceClient<Channel> {
    ScheduleServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

impl Client {
    changes! {
        schedules:
        /// Makes a schedule.
        "create schedule", create_schedule: CreateScheduleRequest -> CreateScheduleResponse;
        /// Changes a schedule, all of it.
        "update schedule", update_schedule: UpdateScheduleRequest -> UpdateScheduleResponse;
        /// Deletes a schedule; its jobs stay.
        "delete schedule", delete_schedule: DeleteScheduleRequest -> DeleteScheduleResponse;
        /// Has a schedule make no jobs until it is resumed.
        "suspend schedule", suspend_schedule: SuspendScheduleRequest -> SuspendScheduleResponse;
        /// Has a suspended schedule make jobs again.
        "resume schedule", resume_schedule: ResumeScheduleRequest -> ResumeScheduleResponse;
        /// Makes one job of a schedule now.
        "run schedule", run_schedule: RunScheduleRequest -> RunScheduleResponse;
    }

    /// One schedule, with its newest runs.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_schedule(
        &self,
        mut request: v1::GetScheduleRequest,
    ) -> Result<v1::GetScheduleResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { schedules(channel).get_schedule(within(limit, request)).await }
        };
        let answer: v1::GetScheduleResponse = self.retry(repeatable("get schedule"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// The schedules of the tenants that the caller acts for, without their jobs and runs.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_schedules(
        &self,
        mut request: v1::ListSchedulesRequest,
    ) -> Result<v1::ListSchedulesResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { schedules(channel).list_schedules(within(limit, request)).await }
        };
        let answer: v1::ListSchedulesResponse = self.retry(repeatable("list schedules"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }
}
