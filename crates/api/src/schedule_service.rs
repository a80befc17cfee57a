//! `muster.v1beta1.ScheduleService`.
//!
//! Schedules have commands and environments in them: they are shown to those who act for their tenant, and to nobody else.

use muster_decider::{Answer, Command, ScheduleAction, ScheduleControl, ScheduleOrder};
use muster_engine::Engine;
use muster_engine::calendar::is_zone;
use muster_state::{ScheduleRow, State, schedule_bytes};
use muster_types::{
    Name, NextRun, Refusal, RefusalCode, RequestId, ScheduleKey, ScheduleRun, Violation, limits,
};
use muster_wire::convert::{
    UNSAID_OF_LISTS, request_id, schedule_from_proto, schedule_key_from_proto, schedule_to_proto,
};
use muster_wire::status::to_status;
use muster_wire::time::log_time;
use muster_wire::v1;
use muster_wire::v1::schedule_service_client::ScheduleServiceClient;
use muster_wire::v1::schedule_service_server::ScheduleService;
use tonic::{Request, Response, Status};

use crate::controls::requester;
use crate::forward::{Caller, Router};
use crate::job_service::check_features;
use crate::read::{freshness, invalid, written};

/// About what a schedule takes in a list, without its job and its runs.
pub(crate) const ROW_BYTES: usize = 1 << 10;

pub(crate) struct Schedules {
    router: Router,
}

impl Schedules {
    pub(crate) fn new(router: Router) -> Schedules {
        Schedules { router }
    }

    /// Carries out something that is asked of a schedule, at this replica if it leads.
    async fn control(&self, order: &ScheduleControl) -> Result<Answer, Refusal> {
        self.router.engine().execute(Command::ControlSchedule(Box::new(order.clone()))).await
    }
}

/// Carries a call out at the leader: `$local` here, or the same method there.
macro_rules! at_leader {
    ($self:ident, $caller:ident, $message:ident, $method:ident, $local:expr) => {{
        let onward = |channel| {
            let request = Router::onward($message.clone(), $caller);
            async move { Ok(ScheduleServiceClient::new(channel).$method(request).await?.into_inner()) }
        };
        $self.router.write($caller, $local, onward).await.map(Response::new)
    }};
}

fn set_order(
    caller: &Caller,
    request: &str,
    schedule: Option<&v1::Schedule>,
    is_new: bool,
) -> Result<ScheduleOrder, Status> {
    check_features("schedule.job", schedule.and_then(|schedule| schedule.job.as_ref()))?;
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let mut violations = Vec::new();
    let request = request_id("request_id", request).map_err(|violation| violations.push(violation)).ok();
    let schedule =
        schedule_from_proto("schedule", schedule.cloned()).map_err(|found| violations.extend(found)).ok();
    let schedule = schedule.and_then(|mut schedule| {
        let required = schedule.template.require_features("schedule.job");
        required.map_err(|found| violations.extend(found)).ok().map(|()| schedule)
    });
    if let Some(schedule) = schedule.as_ref().filter(|schedule| !is_zone(&schedule.zone)) {
        let text = format!("there is no time zone {:?}; name one like Europe/Berlin or UTC", schedule.zone);
        violations.push(Violation::new("schedule.time_zone", text));
    }
    // Before it waits for the leader's decision.
    let bytes = schedule.as_ref().map_or(0, schedule_bytes);
    if bytes > limits::SCHEDULE_BYTES_MAX {
        let text = format!("must be at most {} bytes, got {bytes}", limits::SCHEDULE_BYTES_MAX);
        violations.push(Violation::new("schedule", text));
    }
    match (request, schedule) {
        (Some(request), Some(schedule)) if violations.is_empty() => {
            let (by, role) = (requester(caller), caller.owner_role());
            Ok(ScheduleOrder { request, by, acts_for, role, schedule, is_new })
        }
        _ => Err(invalid(violations)),
    }
}

fn control_order(
    caller: &Caller,
    (request, tenant, name): (&str, &str, &str),
    action: ScheduleAction,
) -> Result<ScheduleControl, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let mut violations = Vec::new();
    let request: Option<RequestId> =
        request_id("request_id", request).map_err(|violation| violations.push(violation)).ok();
    let key = schedule_key_from_proto("", tenant, name).map_err(|found| violations.extend(found)).ok();
    match (request, key) {
        (Some(request), Some(schedule)) => {
            Ok(ScheduleControl { request, by: requester(caller), acts_for, schedule, action })
        }
        _ => Err(invalid(violations)),
    }
}

/// A schedule with all that is known of it; none where there is none by now.
fn shown(view: &State, key: &ScheduleKey) -> Option<v1::Schedule> {
    view.schedule(key).map(|row| whole(view, row))
}

fn whole(view: &State, row: &ScheduleRow) -> v1::Schedule {
    let runs = row.runs.iter().rev().map(|run| {
        let (job_id, skipped) = match &run.run {
            ScheduleRun::Submitted(job) => (job.to_string(), String::new()),
            ScheduleRun::Skipped(why) => (String::new(), why.clone()),
        };
        v1::ScheduleRun { due_at: run.due.and_then(log_time), decided_at: log_time(run.at), job_id, skipped }
    });
    v1::Schedule { job: schedule_to_proto(&row.schedule).job, runs: runs.collect(), ..summary(view, row) }
}

fn summary(view: &State, row: &ScheduleRow) -> v1::Schedule {
    let suspension = row.suspension.as_ref().map(|suspension| v1::ScheduleSuspension {
        by: suspension.by.name.clone(),
        reason: suspension.reason.clone(),
        since: log_time(suspension.since),
    });
    let next_run_at = match row.next {
        NextRun::At(time) if row.suspension.is_none() => log_time(time),
        _ => None,
    };
    v1::Schedule {
        job: None,
        owner: row.by.to_string(),
        set_at: log_time(row.set_at),
        next_run_at,
        suspension,
        unfinished_job_ids: view.unfinished_of(row).iter().map(ToString::to_string).collect(),
        submitted_count: row.submitted,
        skipped_count: row.skipped,
        ..schedule_to_proto(&row.schedule)
    }
}

/// Whether the schedules of a tenant are shown to who is bound to another; none is bound to none.
fn is_shown(view: &State, own: Option<&Name>, tenant: &Name) -> bool {
    let policy = &view.policy().policy;
    own.is_none_or(|own| policy.ancestry(tenant).any(|above| above == own))
}

/// The first schedules, by tenant and name, of those that are shown to a caller: without their jobs and runs.
pub(crate) fn of_caller(view: &State, caller: &Caller, count: usize) -> Vec<v1::Schedule> {
    let Ok(own) = caller.acts_for() else { return Vec::new() };
    let shown = view.schedules().filter(|(key, _)| is_shown(view, own.as_ref(), &key.tenant));
    shown.take(count).map(|(_, row)| summary(view, row)).collect()
}

fn list(
    engine: &Engine,
    view: &muster_engine::Reading,
    own: Option<&Name>,
    tenant: &str,
) -> v1::ListSchedulesResponse {
    let asked = |key: &ScheduleKey| {
        (tenant.is_empty() || key.tenant.as_str() == tenant) && is_shown(view, own, &key.tenant)
    };
    let schedules = view.schedules().filter(|(key, _)| asked(key)).map(|(_, row)| summary(view, row));
    v1::ListSchedulesResponse { schedules: schedules.collect(), freshness: Some(freshness(engine, view)) }
}

#[tonic::async_trait]
impl ScheduleService for Schedules {
    async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let order = set_order(&caller, &message.request_id, message.schedule.as_ref(), true)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(Command::SetSchedule(Box::new(order.clone()))).await?;
            let schedule = shown(&engine.view(), &order.schedule.key);
            Ok(v1::CreateScheduleResponse { schedule, freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, create_schedule, local)
    }

    async fn update_schedule(
        &self,
        request: Request<v1::UpdateScheduleRequest>,
    ) -> Result<Response<v1::UpdateScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let order = set_order(&caller, &message.request_id, message.schedule.as_ref(), false)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(Command::SetSchedule(Box::new(order.clone()))).await?;
            let schedule = shown(&engine.view(), &order.schedule.key);
            Ok(v1::UpdateScheduleResponse { schedule, freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, update_schedule, local)
    }

    async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let which = (message.request_id.as_str(), message.tenant.as_str(), message.name.as_str());
        let order = control_order(&caller, which, ScheduleAction::Delete)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = self.control(&order).await?;
            Ok(v1::DeleteScheduleResponse { freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, delete_schedule, local)
    }

    async fn suspend_schedule(
        &self,
        request: Request<v1::SuspendScheduleRequest>,
    ) -> Result<Response<v1::SuspendScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let which = (message.request_id.as_str(), message.tenant.as_str(), message.name.as_str());
        let order =
            control_order(&caller, which, ScheduleAction::Suspend { reason: message.reason.clone() })?;
        let engine = self.router.engine();
        let local = || async {
            let answer = self.control(&order).await?;
            Ok(v1::SuspendScheduleResponse { freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, suspend_schedule, local)
    }

    async fn resume_schedule(
        &self,
        request: Request<v1::ResumeScheduleRequest>,
    ) -> Result<Response<v1::ResumeScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let which = (message.request_id.as_str(), message.tenant.as_str(), message.name.as_str());
        let order = control_order(&caller, which, ScheduleAction::Resume)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = self.control(&order).await?;
            Ok(v1::ResumeScheduleResponse { freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, resume_schedule, local)
    }

    async fn run_schedule(
        &self,
        request: Request<v1::RunScheduleRequest>,
    ) -> Result<Response<v1::RunScheduleResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let which = (message.request_id.as_str(), message.tenant.as_str(), message.name.as_str());
        let order = control_order(&caller, which, ScheduleAction::Run)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = self.control(&order).await?;
            let job = match &answer {
                Answer::Submitted { jobs, .. } => jobs.first().map(ToString::to_string),
                _ => None,
            };
            let text = "the request id was used for another request";
            let job_id = job.ok_or_else(|| Refusal::new(RefusalCode::RequestIdReused, text))?;
            Ok(v1::RunScheduleResponse { job_id, freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, run_schedule, local)
    }

    async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let message = request.into_inner();
        let key = schedule_key_from_proto("", &message.tenant, &message.name).map_err(invalid)?;
        let own = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
        let read = (message.read.as_ref(), muster_types::Consistency::Linearizable);
        let view = self.router.fresh(caller.account(), read, deadline).await?;
        let found = view.schedule(&key).filter(|_| is_shown(&view, own.as_ref(), &key.tenant));
        let Some(row) = found else {
            let text = format!("there is no schedule {} of tenant {}", key.name, key.tenant);
            let refusal = Refusal::new(RefusalCode::ScheduleNotFound, text);
            return Err(to_status(&refusal.with("schedule", &key)));
        };
        let schedule = Some(whole(&view, row));
        let freshness = Some(freshness(self.router.engine(), &view));
        Ok(Response::new(v1::GetScheduleResponse { schedule, freshness }))
    }

    async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let message = request.into_inner();
        let own = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
        let engine = self.router.engine().clone();
        let account = caller.account();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let make = move || Ok(list(&engine, &view, own.as_ref(), &message.tenant));
        self.router.page(account, limits::SCHEDULES_MAX * ROW_BYTES, make).await
    }
}
