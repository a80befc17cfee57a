//! `muster.v1beta1.JobService`.

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_decider::{Answer, Command, JobPath};
use muster_engine::Reading;
use muster_metrics::ReplicaMetrics;
use muster_state::State;
use muster_types::{Consistency, JobId, Refusal, RefusalCode, Submission, Violation, limits};
use muster_wire::convert::{
    UNSAID_OF_LISTS, array_id, fencing_token_from_proto, job_id, jobs_from_proto, request_id, request_id_of,
    submission_to_proto, submissions_from_proto,
};
use muster_wire::shared::encoded_len;
use muster_wire::status::to_status;
use muster_wire::token::{List, PageToken, TokenError};
use muster_wire::v1;
use muster_wire::v1::job_service_server::JobService;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

use crate::arrays;
use crate::controls;
use crate::exec::{self, Execs};
use crate::explanation;
use crate::forward::{Caller, Router, jobs_onward};
use crate::job_filter::JobFilter;
use crate::original::Onward;
use crate::outputs::Outputs;
use crate::port_forward;
use crate::read::{PAGE_BYTES_MAX, bad_page, cluster, freshness, invalid, page_size, written};
use crate::recorded::StreamRecorder;
use crate::render::{self, Detail};
use crate::shares::{Pool, PoolPermit};
use crate::spans::MadeJobs;
use crate::starting;
use crate::starts;
use crate::submit_stream::{self, naming_leader};
use crate::visibility::Visibility;
use crate::watcher::{JobTopic, Messages, Watches};

/// The methods of submissions.
const SUBMIT_JOB: &str = "/muster.v1beta1.JobService/SubmitJob";
const SUBMIT_JOBS: &str = "/muster.v1beta1.JobService/SubmitJobs";

/// What a row of a page takes, with the names in it.
pub(crate) const ROW_BYTES: usize = 2 << 10;
/// Bytes that a member takes of an array with its states while it is made.
const MEMBER_BYTES: usize = 16;
/// Bytes of a job id in an answer.
const ID_BYTES: usize = 64;
/// A page of full jobs ends when it has come to this size, and what one may take: the largest job comes behind that.
const PAGE_BYTES: usize = 1 << 20;
pub(crate) const FULL_PAGE_BYTES: usize = 4 * PAGE_BYTES;
/// What submissions that wait for a decision may take in memory, in KiB: as much as the engine has for them.
const WAITING_KIB_MAX: u64 = 64 << 10;

/// Outputs that clients read at a time.
const OUTPUTS_MAX: u64 = 8_192;
/// Of one tenant, or of one certificate that is of no tenant.
const OUTPUTS_EACH_MAX: u64 = 512;

#[derive(Clone)]
pub(crate) struct Jobs {
    router: Router,
    watches: Watches,
    metrics: ReplicaMetrics,
    /// What submissions that wait for the leader's decision, here, take in memory; [`Router::write`] counts them.
    waiting_kib: Pool,
    /// Outputs that are read through here.
    outputs: Outputs,
    execs: Execs,
}

impl Jobs {
    pub(crate) fn new(router: Router, watches: Watches, metrics: ReplicaMetrics) -> Jobs {
        let waiting_kib = Pool::new(WAITING_KIB_MAX, WAITING_KIB_MAX);
        Jobs {
            router,
            watches,
            metrics,
            waiting_kib,
            outputs: Outputs::new(OUTPUTS_MAX, OUTPUTS_EACH_MAX),
            execs: Execs::default(),
        }
    }

    /// Memory for a submission among those that wait: no tenant takes all of it.
    fn submission_permit(&self, caller: Caller, jobs: &[Submission]) -> Result<PoolPermit, Refusal> {
        let account = caller.account();
        let permit = self.waiting_kib.enter(account, muster_engine::submission_kib(jobs));
        permit.ok_or_else(|| {
            let text = format!("{account} has as many submissions waiting as its share allows; try again");
            let refusal = Refusal::new(RefusalCode::Overloaded, text);
            refusal.with("retry_after_ms", 100).with("account", account)
        })
    }

    /// Checks at the leader: a follower may lack the very nodes that the job would fit on.
    async fn validate(
        &self,
        caller: Caller,
        jobs: &[Submission],
        path: JobPath,
        onward: impl Fn(Onward) -> BoxFuture<'static, Result<Option<v1::Freshness>, Status>>,
    ) -> Result<Option<v1::Freshness>, Status> {
        let engine = self.router.engine();
        let local = || async {
            let view = engine.reading();
            check_tenants(caller, &view, jobs)?;
            engine.check_submission(&view, jobs, path)?;
            Ok(Some(freshness(engine, &view)))
        };
        self.router.write(caller, local, onward).await
    }

    /// Submits at the leader; ids and freshness.
    async fn submit(
        &self,
        caller: Caller,
        request: muster_types::RequestId,
        jobs: &Arc<[Submission]>,
        path: JobPath,
        onward: impl Fn(Onward) -> BoxFuture<'static, Result<Submitted, Status>>,
    ) -> Result<Submitted, Status> {
        let engine = self.router.engine();
        let local = || async {
            check_tenants(caller, &engine.view(), jobs)?;
            let _permit = self.submission_permit(caller, jobs)?;
            // Ids of many members are an answer that is larger than the request.
            let members: usize = jobs.iter().map(|job| job.job_count() as usize).sum();
            let _ids = match members > limits::BATCH_JOBS_MAX {
                true => Some(self.router.memory(caller.account(), members * ID_BYTES).await?),
                false => None,
            };
            let command =
                Command::Submit { request, by: controls::requester(&caller), jobs: Arc::clone(jobs), path };
            let answer = engine.execute(command).await?;
            let Answer::Submitted { jobs, at } = answer else {
                return Err(Refusal::new(
                    RefusalCode::RequestIdReused,
                    "the request id was used for another request",
                ));
            };
            Ok((jobs.iter().map(JobId::to_string).collect(), written(engine, at)))
        };
        self.router.write(caller, local, onward).await
    }

    /// One submission that was checked, by itself or of a stream.
    async fn submit_one(&self, caller: Caller, submission: Checked) -> Result<v1::SubmitJobResponse, Status> {
        let Checked { id, text, jobs, validate_only } = submission;
        let onward = |channel| {
            let message = || {
                let job = messages(&jobs).next();
                v1::SubmitJobRequest { request_id: text.clone(), job, validate_only }
            };
            let request = Router::onward_or(SUBMIT_JOB, message, caller);
            let call: BoxFuture<'static, Result<Submitted, Status>> = Box::pin(async move {
                let answer = jobs_onward(channel).submit_job(request).await?.into_inner();
                Ok((answer.job_ids, answer.freshness))
            });
            call
        };
        if validate_only {
            let freshness = Box::pin(self.validate(caller, &jobs, JobPath::Single, verdict(onward))).await?;
            return Ok(v1::SubmitJobResponse { job_ids: Vec::new(), freshness });
        }
        let (job_ids, freshness) = self.submit(caller, id, &jobs, JobPath::Single, onward).await?;
        Ok(v1::SubmitJobResponse { job_ids, freshness })
    }
}

/// A submission whose message was checked. Much smaller than the message, which counts where thousands wait.
struct Checked {
    id: muster_types::RequestId,
    text: String,
    jobs: Arc<[Submission]>,
    validate_only: bool,
}

impl Checked {
    fn check(message: v1::SubmitJobRequest, caller: Caller) -> Result<Checked, Status> {
        let v1::SubmitJobRequest { request_id: text, job, validate_only } = message;
        check_features("job", job.as_ref())?;
        let mut violations = Vec::new();
        let id = request_id_of("request_id", &text, validate_only).map_err(|v| violations.push(v)).ok();
        let jobs = submissions_from_proto("job", job).map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(mut jobs)) = (id, jobs) else { return Err(invalid(violations)) };
        Submission::require_features(&mut jobs, |_| "job".to_owned()).map_err(invalid)?;
        Submission::set_creator(&mut jobs, &caller.creator());
        if let Some(parent) = caller.trace() {
            Submission::set_trace_parent(&mut jobs, parent);
        }
        Ok(Checked { id, text, jobs: jobs.into(), validate_only })
    }
}

/// The messages that become these jobs and arrays at another replica: defaults are filled in already.
fn messages(jobs: &[Submission]) -> impl Iterator<Item = v1::Job> {
    jobs.iter().map(submission_to_proto)
}

type Submitted = (Vec<String>, Option<v1::Freshness>);

/// The same call at another replica, of which only the verdict matters.
fn verdict(
    onward: impl Fn(Onward) -> BoxFuture<'static, Result<Submitted, Status>>,
) -> impl Fn(Onward) -> BoxFuture<'static, Result<Option<v1::Freshness>, Status>> {
    move |channel| {
        let answer = onward(channel);
        Box::pin(async move { Ok(answer.await?.1) })
    }
}

/// Refuses jobs that ask for what no replica of this release can do. `at` is the path of the message or of the list.
pub(crate) fn check_features<'a>(
    at: &str,
    jobs: impl IntoIterator<Item = &'a v1::Job>,
) -> Result<(), Status> {
    let has_user =
        |group: &v1::TaskGroup| group.container().is_some_and(|container| !container.user.is_empty());
    let asks = |job: &v1::Job| job.spec().groups.iter().any(has_user);
    match jobs.into_iter().any(asks) {
        false => Ok(()),
        true => {
            let text = "no release runs a worker as a user of its image; leave `user` out: it is its tenant's user of the host";
            let refusal = Refusal::new(RefusalCode::FeatureUnknown, text);
            Err(to_status(&refusal.with("feature", "container.user").with("field", at)))
        }
    }
}

fn too_many_jobs(field: &str, count: usize) -> Status {
    invalid(vec![Violation::limit(field, count as u64, 1, limits::BATCH_JOBS_MAX as u64)])
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn submit_job(
        &self,
        request: Request<v1::SubmitJobRequest>,
    ) -> Result<Response<v1::SubmitJobResponse>, Status> {
        let caller = self.router.caller(&request);
        let submission = Checked::check(request.into_inner(), caller)?;
        let mut response = naming_leader(&self.router, self.submit_one(caller, submission).await?);
        let made = MadeJobs::of(caller.trace(), &response.get_ref().job_ids);
        if let Some(made) = made {
            response.extensions_mut().insert(made);
        }
        Ok(response)
    }

    type SubmitStreamStream = BoxStream<'static, Result<v1::SubmitStreamResponse, Status>>;

    async fn submit_stream(
        &self,
        request: Request<tonic::Streaming<v1::SubmitStreamRequest>>,
    ) -> Result<Response<Self::SubmitStreamStream>, Status> {
        let caller = self.router.caller(&request);
        let jobs = self.clone();
        let submit = move |message| {
            let jobs = jobs.clone();
            let caller = jobs.router.once_more(caller);
            let submission = Checked::check(message, caller);
            async move { jobs.submit_one(caller, submission?).await }
        };
        let recorder = request.extensions().get::<StreamRecorder>().cloned();
        let counted = (self.metrics.clone(), recorder);
        let answers = submit_stream::answers(self.router.clone(), counted, request.into_inner(), submit);
        Ok(naming_leader(&self.router, answers))
    }

    async fn submit_jobs(
        &self,
        request: Request<v1::SubmitJobsRequest>,
    ) -> Result<Response<v1::SubmitJobsResponse>, Status> {
        let caller = self.router.caller(&request);
        let v1::SubmitJobsRequest { request_id: text, jobs: messages, validate_only } = request.into_inner();
        let count = messages.len();
        if count == 0 || count > limits::BATCH_JOBS_MAX {
            return Err(too_many_jobs("jobs", count));
        }
        check_features("jobs", &messages)?;
        let mut violations = Vec::new();
        let id = request_id_of("request_id", &text, validate_only).map_err(|v| violations.push(v)).ok();
        let jobs = jobs_from_proto("jobs", messages).map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(mut jobs)) = (id, jobs) else { return Err(invalid(violations)) };
        Submission::require_features(&mut jobs, |place| format!("jobs[{place}]")).map_err(invalid)?;
        Submission::set_creator(&mut jobs, &caller.creator());
        if let Some(parent) = caller.trace() {
            Submission::set_trace_parent(&mut jobs, parent);
        }
        let jobs: Arc<[Submission]> = jobs.into();
        let onward = |channel| {
            let message = || {
                let (request_id, jobs) = (text.clone(), self::messages(&jobs).collect());
                v1::SubmitJobsRequest { request_id, jobs, validate_only }
            };
            let request = Router::onward_or(SUBMIT_JOBS, message, caller);
            let call: BoxFuture<'static, Result<Submitted, Status>> = Box::pin(async move {
                let answer = jobs_onward(channel).submit_jobs(request).await?.into_inner();
                Ok((answer.job_ids, answer.freshness))
            });
            call
        };
        if validate_only {
            let freshness = self.validate(caller, &jobs, JobPath::List, verdict(onward)).await?;
            return Ok(naming_leader(
                &self.router,
                v1::SubmitJobsResponse { job_ids: Vec::new(), freshness },
            ));
        }
        let (job_ids, freshness) = self.submit(caller, id, &jobs, JobPath::List, onward).await?;
        let made = MadeJobs::of(caller.trace(), &job_ids);
        let mut response = naming_leader(&self.router, v1::SubmitJobsResponse { job_ids, freshness });
        if let Some(made) = made {
            response.extensions_mut().insert(made);
        }
        Ok(response)
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let mut violations = Vec::new();
        let id = request_id("request_id", &message.request_id).map_err(|v| violations.push(v)).ok();
        let job = job_id("job_id", &message.job_id).map_err(|v| violations.push(v)).ok();
        let (Some(id), Some(job)) = (id, job) else { return Err(invalid(violations)) };
        let local = || controls::cancel_one(&self.router, caller, (id, job));
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(jobs_onward(channel).cancel_job(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let message = request.into_inner();
        let id = job_id("job_id", &message.job_id).map_err(|v| invalid(vec![v]))?;
        let engine = self.router.engine();
        let view = self
            .router
            .fresh(caller.account(), (message.read.as_ref(), Consistency::Linearizable), deadline)
            .await?;
        let job = arrays::job_explained(&self.router, &view, id, caller)
            .await
            .map_err(|refusal| to_status(&refusal))?;
        let mut job = job.ok_or_else(|| to_status(&no_such_job(id)))?;
        if starting::waits_for_images(&view, id) && caller.visibility().sees_job(&view, id) {
            let onward = |channel| async move {
                Ok(jobs_onward(channel).get_job(Router::onward(message, caller)).await?.into_inner())
            };
            if let Some(answer) = self.router.ask_leader(caller, onward).await {
                return Ok(Response::new(answer));
            }
            if let Some(sentence) = starting::sentence(engine, &view, id) {
                job.status_mut().message = sentence;
            }
        }
        Ok(Response::new(v1::GetJobResponse { job: Some(job), freshness: Some(freshness(engine, &view)) }))
    }

    async fn plan_job(
        &self,
        request: Request<v1::PlanJobRequest>,
    ) -> Result<Response<v1::PlanJobResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let account = caller.account();
        let message = request.into_inner();
        check_features("job", message.job.as_ref())?;
        let mut jobs = submissions_from_proto("job", message.job).map_err(invalid)?;
        Submission::require_features(&mut jobs, |_| "job".to_owned()).map_err(invalid)?;
        Submission::set_creator(&mut jobs, &caller.creator());
        let engine = self.router.engine();
        let view =
            self.router.fresh(account, (message.read.as_ref(), Consistency::Linearizable), deadline).await?;
        let Some(job) = jobs.into_iter().next() else {
            return Err(invalid(vec![Violation::new("spec", "must be a job")]));
        };
        let work = {
            let (engine, view) = (engine.clone(), (*view).clone());
            async move { engine.explain_spec(&view, job).await }
        };
        let explained = self.router.in_turn(account, work).await.map_err(|refusal| to_status(&refusal))?;
        let explanation = Some(explanation::waiting(&view, &explained));
        Ok(Response::new(v1::PlanJobResponse { explanation, freshness: Some(freshness(engine, &view)) }))
    }

    async fn explain_job(
        &self,
        request: Request<v1::ExplainJobRequest>,
    ) -> Result<Response<v1::ExplainJobResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let visibility = caller.visibility();
        let message = request.into_inner();
        let id = job_id("job_id", &message.job_id).map_err(|v| invalid(vec![v]))?;
        let engine = self.router.engine();
        let view = self
            .router
            .fresh(caller.account(), (message.read.as_ref(), Consistency::Linearizable), deadline)
            .await?;
        let Some(row) = view.job(id) else {
            let explained = arrays::member_explained(&view, id).ok_or_else(|| to_status(&no_such_job(id)))?;
            return Ok(Response::new(v1::ExplainJobResponse {
                explanation: Some(visibility.explanation(&view, id, explained)),
                freshness: Some(freshness(engine, &view)),
                ..Default::default()
            }));
        };
        let work = {
            let (engine, view) = (engine.clone(), (*view).clone());
            async move { engine.explain_job(&view, id).await }
        };
        let explained = self.router.in_turn(caller.account(), work).await;
        let explanation = match explained.map_err(|refusal| to_status(&refusal))? {
            Some(explained) => explanation::waiting(&view, &explained),
            None if starting::waits_for_images(&view, id) && visibility.sees_job(&view, id) => {
                let onward = |channel| async move {
                    Ok(jobs_onward(channel).explain_job(Router::onward(message, caller)).await?.into_inner())
                };
                if let Some(answer) = self.router.ask_leader(caller, onward).await {
                    return Ok(Response::new(answer));
                }
                let placed = explanation::placed(&view, id, row);
                match starting::sentence(engine, &view, id) {
                    Some(message) => v1::Explanation { message, ..placed },
                    None => placed,
                }
            }
            None => explanation::placed(&view, id, row),
        };
        Ok(Response::new(v1::ExplainJobResponse {
            explanation: Some(visibility.explanation(&view, id, explanation)),
            freshness: Some(freshness(engine, &view)),
            history: visibility.history(&view, id, render::attempt_history(&view, id, Detail::Full)),
            checkpoint_advice: explanation::checkpoint_advice(&view, id, view.log_time()),
        }))
    }

    async fn commit_checkpoint(
        &self,
        request: Request<v1::CommitCheckpointRequest>,
    ) -> Result<Response<v1::CommitCheckpointResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let mut violations = Vec::new();
        let job = job_id("job_id", &message.job_id).map_err(|v| violations.push(v)).ok();
        let token =
            fencing_token_from_proto("token", message.token.as_ref()).map_err(|v| violations.push(v)).ok();
        let (Some(job), Some(token)) = (job, token) else { return Err(invalid(violations)) };
        let engine = self.router.engine();
        let local = || async {
            self.router.check_worker_of(caller, job).await?;
            let answer = engine.commit_checkpoint(job, token).await?;
            Ok(v1::CommitCheckpointResponse { freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(jobs_onward(channel).commit_checkpoint(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let mut message = request.into_inner();
        let size = page_size(message.page_size)?;
        let detail = detail(message.view, Detail::Basic)?;
        let filter = JobFilter::new("filter", message.filter.take(), &caller)?;
        let engine = self.router.engine();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let engine = engine.clone();
        let bytes = match detail {
            Detail::Basic => size.saturating_mul(ROW_BYTES),
            Detail::Full => FULL_PAGE_BYTES,
        };
        let make = move || {
            let shown = (size, detail, visibility);
            let mut listed = list(&engine, &view, &message.page_token, filter, shown)?;
            if message.expected_starts {
                starts::add(&engine, &view, &mut listed);
            }
            Ok(listed)
        };
        self.router.page(account, bytes, make).await
    }

    async fn get_array(
        &self,
        request: Request<v1::GetArrayRequest>,
    ) -> Result<Response<v1::GetArrayResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let message = request.into_inner();
        let id = array_id("array_id", &message.array_id).map_err(|v| invalid(vec![v]))?;
        let read = (message.read.as_ref(), Consistency::Linearizable);
        let view = self.router.fresh(caller.account(), read, deadline).await?;
        let row = view.array(id).ok_or_else(|| to_status(&arrays::no_such_array(id)))?;
        // Its members are walked through, of which there may be as many as jobs on a hundred pages.
        let members = usize::try_from(row.size()).unwrap_or(usize::MAX);
        let (engine, visibility) = (self.router.engine().clone(), caller.visibility());
        let make = move || {
            let row = view.array(id).ok_or_else(|| to_status(&arrays::no_such_array(id)))?;
            let array = arrays::array(&view, id, row, (Detail::Full, visibility));
            Ok(v1::GetArrayResponse { array: Some(array), freshness: Some(freshness(&engine, &view)) })
        };
        self.router.page(caller.account(), members.saturating_mul(MEMBER_BYTES), make).await
    }

    async fn list_arrays(
        &self,
        request: Request<v1::ListArraysRequest>,
    ) -> Result<Response<v1::ListArraysResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let mut message = request.into_inner();
        let size = page_size(message.page_size)?;
        let filter = JobFilter::new("filter", message.filter.take(), &caller)?;
        arrays::check_filter(&filter)?;
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let engine = self.router.engine().clone();
        let make = move || arrays::list(&engine, &view, &message.page_token, &filter, (size, visibility));
        self.router.page(account, size.saturating_mul(ROW_BYTES), make).await
    }

    type WatchJobsStream = Messages<v1::WatchJobsResponse>;

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let detail = detail(message.view, Detail::Full)?;
        let filter = JobFilter::new("filter", message.filter, &caller)?;
        let topic = JobTopic::new(filter, message.skip_initial, (detail, caller.visibility()));
        let account = caller.account();
        self.watches.open(&self.router, topic, &message.resume_token, account).map(Response::new)
    }

    type ReadLogsStream = BoxStream<'static, Result<v1::ReadLogsResponse, Status>>;

    async fn read_logs(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadLogsStream>, Status> {
        let caller = self.router.caller(&request);
        self.outputs.open(&self.router, caller, request.into_inner()).await.map(Response::new)
    }

    type ExecWorkerStream = exec::ToCaller;

    async fn exec_worker(
        &self,
        request: Request<Streaming<v1::ExecWorkerRequest>>,
    ) -> Result<Response<Self::ExecWorkerStream>, Status> {
        self.execs.open(&self.router, request).await.map(Response::new)
    }

    type ForwardPortStream = port_forward::ToCaller;

    async fn forward_port(
        &self,
        request: Request<Streaming<v1::ForwardPortRequest>>,
    ) -> Result<Response<Self::ForwardPortStream>, Status> {
        port_forward::open(&self.execs, &self.router, request).await.map(Response::new)
    }

    async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        controls::control(&self.router, request).await
    }

    async fn hold_jobs(
        &self,
        request: Request<v1::HoldJobsRequest>,
    ) -> Result<Response<v1::HoldJobsResponse>, Status> {
        controls::control(&self.router, request).await
    }

    async fn release_jobs(
        &self,
        request: Request<v1::ReleaseJobsRequest>,
    ) -> Result<Response<v1::ReleaseJobsResponse>, Status> {
        controls::control(&self.router, request).await
    }

    async fn requeue_jobs(
        &self,
        request: Request<v1::RequeueJobsRequest>,
    ) -> Result<Response<v1::RequeueJobsResponse>, Status> {
        controls::control(&self.router, request).await
    }

    async fn suspend_jobs(
        &self,
        request: Request<v1::SuspendJobsRequest>,
    ) -> Result<Response<v1::SuspendJobsResponse>, Status> {
        controls::control(&self.router, request).await
    }

    async fn update_job(
        &self,
        request: Request<v1::UpdateJobRequest>,
    ) -> Result<Response<v1::UpdateJobResponse>, Status> {
        controls::update(&self.router, request).await
    }
}

/// Whether the caller may submit these; neighbours are nearly always of one tenant.
fn check_tenants(caller: Caller, view: &State, jobs: &[Submission]) -> Result<(), Refusal> {
    jobs.chunk_by(|a, b| a.spec.tenant == b.spec.tenant).try_for_each(|of_one| {
        of_one.first().map_or(Ok(()), |job| caller.check_tenant(view, &job.spec.tenant))
    })
}

/// How much of each job a list or a watch carries.
fn detail(view: i32, unsaid: Detail) -> Result<Detail, Status> {
    match v1::JobView::try_from(view) {
        Ok(v1::JobView::Unspecified) => Ok(unsaid),
        Ok(v1::JobView::Basic) => Ok(Detail::Basic),
        Ok(v1::JobView::Full) => Ok(Detail::Full),
        Err(_) => {
            let text = format!("must be JOB_VIEW_BASIC or JOB_VIEW_FULL, got the number {view}");
            Err(invalid(vec![Violation::new("view", text)]))
        }
    }
}

pub(crate) fn no_such_job(id: JobId) -> Refusal {
    Refusal::new(RefusalCode::JobNotFound, format!("there is no job {id}")).with("job_id", id)
}

pub(crate) fn list(
    engine: &muster_engine::Engine,
    view: &Reading,
    page_token: &str,
    filter: JobFilter,
    (size, detail, visibility): (usize, Detail, Visibility),
) -> Result<v1::ListJobsResponse, Status> {
    let (cluster, digest) = (cluster(view)?, filter.digest());
    // The oldest state that one of the pages shows.
    let mut oldest = view.log_index();
    let after = match page_token {
        "" => None,
        text => {
            let token = PageToken::decode(text, cluster, List::Jobs, digest).map_err(bad_page)?;
            oldest = oldest.min(token.log_index);
            Some(token.after.parse::<JobId>().map_err(|_| bad_page(TokenError::ReadToken))?)
        }
    };
    let mut jobs = Vec::new();
    let mut bytes = 0;
    let bytes_max = if detail == Detail::Full { PAGE_BYTES } else { PAGE_BYTES_MAX };
    let mut last = None;
    let mut more = false;
    // Newest first; a page ends before the one it began behind.
    let (candidates, looked_at_max) = filter.candidates(view, after);
    for (looked_at, (id, candidate)) in candidates.enumerate() {
        if jobs.len() == size || looked_at == looked_at_max || bytes > bytes_max {
            more = true;
            break;
        }
        last = Some(id);
        let Some(candidate) = candidate else {
            let member = filter.shown_member(view, id);
            let member = member.and_then(|()| arrays::member(view, id, (detail, visibility)));
            bytes += member.as_ref().map_or(0, encoded_len);
            jobs.extend(member);
            continue;
        };
        if filter.is_past(candidate) {
            break;
        }
        if filter.shows(view, candidate) {
            let job = render::job(view, id, candidate.row, candidate.spec, (detail, visibility));
            bytes += encoded_len(&job);
            jobs.push(job);
        }
    }
    let next = last
        .filter(|_| more)
        .map(|id| PageToken { after: id.to_string(), log_index: oldest }.encode(cluster, List::Jobs, digest));
    let resume_token = match &next {
        Some(_) => String::new(),
        None => JobTopic::new(filter, false, (detail, visibility)).resume_behind(view, oldest)?,
    };
    let freshness = Some(freshness(engine, view));
    let next_page_token = next.unwrap_or_default();
    Ok(v1::ListJobsResponse { jobs, next_page_token, freshness, resume_token, forecast: None })
}
