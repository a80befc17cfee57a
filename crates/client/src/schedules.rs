//! Schedules: made, changed, looked at and controlled.

use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use muster_wire::{features, v1};
use tonic::Request;

use crate::Client;
use crate::calls::{ANSWER_BYTES_MAX, changes, ensure_request_id, repeatable, requiring, within};
use crate::channel::Channel;
use crate::error::CallError;
use crate::retry::Subject;

fn schedules(channel: Channel) -> ScheduleServiceClient<Channel> {
    ScheduleServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// The features that the jobs of a schedule need, between commas.
fn required_by(schedule: Option<&v1::Schedule>) -> String {
    features::required_by(schedule.and_then(|schedule| schedule.job.as_ref())).join(",")
}

impl Client {
    changes! {
        schedules:
        /// Deletes a schedule; its jobs stay.
        "delete schedule", delete_schedule: DeleteScheduleRequest -> DeleteScheduleResponse;
        /// Has a schedule make no jobs until it is resumed.
        "suspend schedule", suspend_schedule: SuspendScheduleRequest -> SuspendScheduleResponse;
        /// Has a suspended schedule make jobs again.
        "resume schedule", resume_schedule: ResumeScheduleRequest -> ResumeScheduleResponse;
        /// Makes one job of a schedule now.
        "run schedule", run_schedule: RunScheduleRequest -> RunScheduleResponse;
    }

    /// Makes a schedule.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn create_schedule(
        &self,
        mut request: v1::CreateScheduleRequest,
    ) -> Result<v1::CreateScheduleResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "create schedule", request_id };
        let required = required_by(request.schedule.as_ref());
        let send = |channel| {
            let request = requiring(Request::new(request.clone()), &required);
            async move { schedules(channel).create_schedule(request).await }
        };
        let answer: v1::CreateScheduleResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Changes a schedule, all of it.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn update_schedule(
        &self,
        mut request: v1::UpdateScheduleRequest,
    ) -> Result<v1::UpdateScheduleResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "update schedule", request_id };
        let required = required_by(request.schedule.as_ref());
        let send = |channel| {
            let request = requiring(Request::new(request.clone()), &required);
            async move { schedules(channel).update_schedule(request).await }
        };
        let answer: v1::UpdateScheduleResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
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
