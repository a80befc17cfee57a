//! `muster.v1.JobService`.

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use muster_decider::{Answer, Command};
use muster_engine::{Change, LogRequest, Subscription, WatchPosition};
use muster_state::State;
use muster_types::{FencingToken, JobId, JobSpec, LogIndex, Refusal, RefusalCode, Violation, limits};
use muster_wire::convert::{job_id, job_specs_from_proto, jobs_from_proto, request_id};
use muster_wire::status::to_status;
use muster_wire::token::{List, PageToken, ResumeToken, TokenError, filter_digest};
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::job_service_server::JobService;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::forward::{Caller, Route, Router};
use crate::read::{cluster, fresh, freshness, invalid, page_size};
use crate::render::{self, Detail};

/// Events that wait for a slow watcher before it is cut.
const EVENTS_WAITING_MAX: usize = 1_024;
/// Jobs one watch may name.
const WATCHED_JOBS_MAX: usize = 1_000;

pub(crate) struct Jobs {
    router: Router,
}

impl Jobs {
    pub(crate) fn new(router: Router) -> Jobs {
        Jobs { router }
    }

    /// Submits at the leader; ids and freshness.
    async fn submit(
        &self,
        caller: Caller,
        request: muster_types::RequestId,
        specs: Vec<JobSpec>,
        onward: impl Fn(tonic::transport::Channel) -> BoxFuture<'static, Result<Submitted, Status>>,
    ) -> Result<Submitted, Status> {
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(Command::Submit { request, specs: specs.clone() }).await?;
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
}

type Submitted = (Vec<String>, Option<v1::Freshness>);

/// What the answer to a write says about itself: complete up to its own record.
pub(crate) fn written(engine: &muster_engine::Engine, at: LogIndex) -> Option<v1::Freshness> {
    let own = freshness(engine, &engine.view());
    Some(v1::Freshness { log_index: at.0, ..own })
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
        let message = request.into_inner();
        let mut violations = Vec::new();
        let id = request_id("request_id", &message.request_id).map_err(|v| violations.push(v)).ok();
        let specs = job_specs_from_proto("spec", message.spec.clone()).map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(specs)) = (id, specs) else { return Err(invalid(violations)) };
        if message.validate_only {
            let view = self.router.engine().view();
            self.router.engine().check_submission(&view, &specs).map_err(|refusal| to_status(&refusal))?;
            let freshness = Some(freshness(self.router.engine(), &view));
            return Ok(Response::new(v1::SubmitJobResponse { job_ids: Vec::new(), freshness }));
        }
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            let call: BoxFuture<'static, Result<Submitted, Status>> = Box::pin(async move {
                let answer = JobServiceClient::new(channel).submit_job(request).await?.into_inner();
                Ok((answer.job_ids, answer.freshness))
            });
            call
        };
        let (job_ids, freshness) = self.submit(caller, id, specs, onward).await?;
        Ok(Response::new(v1::SubmitJobResponse { job_ids, freshness }))
    }

    async fn submit_jobs(
        &self,
        request: Request<v1::SubmitJobsRequest>,
    ) -> Result<Response<v1::SubmitJobsResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = Arc::new(request.into_inner());
        let count = message.specs.len();
        if count == 0 || count > limits::BATCH_JOBS_MAX {
            return Err(too_many_jobs("specs", count));
        }
        let mut violations = Vec::new();
        let id = request_id("request_id", &message.request_id).map_err(|v| violations.push(v)).ok();
        let specs = jobs_from_proto("specs", message.specs.clone()).map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(specs)) = (id, specs) else { return Err(invalid(violations)) };
        let onward = |channel| {
            let message = Arc::clone(&message);
            let call: BoxFuture<'static, Result<Submitted, Status>> = Box::pin(async move {
                let request = Router::onward(v1::SubmitJobsRequest::clone(&message), caller);
                let answer = JobServiceClient::new(channel).submit_jobs(request).await?.into_inner();
                Ok((answer.job_ids, answer.freshness))
            });
            call
        };
        let (job_ids, freshness) = self.submit(caller, id, specs, onward).await?;
        Ok(Response::new(v1::SubmitJobsResponse { job_ids, freshness }))
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
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(Command::Cancel { request: id, job }).await?;
            let message = render::job_explained(engine, &engine.view(), job);
            Ok(v1::CancelJobResponse { job: message, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(JobServiceClient::new(channel).cancel_job(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let message = request.into_inner();
        let id = job_id("job_id", &message.job_id).map_err(|v| invalid(vec![v]))?;
        let engine = self.router.engine();
        let view = fresh(engine, message.min_log_index).await?;
        let job = render::job_explained(engine, &view, id).ok_or_else(|| to_status(&no_such_job(id)))?;
        Ok(Response::new(v1::GetJobResponse { job: Some(job), freshness: Some(freshness(engine, &view)) }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let message = request.into_inner();
        let size = page_size(message.page_size)?;
        let engine = self.router.engine();
        let view = fresh(engine, message.min_log_index).await?;
        list(engine, &view, &message, size).map(Response::new)
    }

    type WatchJobsStream = BoxStream<'static, Result<v1::WatchJobsResponse, Status>>;

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        let watch = Watcher::open(&self.router, &request.into_inner())?;
        let (to_client, events) = mpsc::channel(EVENTS_WAITING_MAX);
        tokio::spawn(watch.run(to_client));
        Ok(Response::new(ReceiverStream::new(events).boxed()))
    }

    type ReadLogsStream = BoxStream<'static, Result<v1::ReadLogsResponse, Status>>;

    async fn read_logs(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadLogsStream>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let job = job_id("job_id", &message.job_id).map_err(|v| invalid(vec![v]))?;
        if !matches!(message.stream.as_str(), "" | "stdout" | "stderr") {
            return Err(invalid(vec![Violation::new("stream", "must be stdout, stderr or empty for both")]));
        }
        match self.router.route(caller).await? {
            Route::Remote(channel) => {
                // Following may take as long as the job: no deadline on the way.
                let mut onward = Router::onward(message, caller);
                onward.metadata_mut().remove("grpc-timeout");
                let stream = JobServiceClient::new(channel).read_logs(onward).await?.into_inner();
                Ok(Response::new(stream.boxed()))
            }
            Route::Local => {
                let request = LogRequest {
                    read_id: 0,
                    job,
                    token: FencingToken::default(),
                    rank: message.rank,
                    follow: message.follow,
                    stream: message.stream,
                    tail_bytes: message.tail_bytes,
                };
                let engine = self.router.engine();
                let chunks = engine.read_logs(job, message.rank, message.previous, request).await;
                let chunks = chunks.map_err(|refusal| to_status(&refusal))?;
                let stream = ReceiverStream::new(chunks)
                    .map_ok(|chunk| v1::ReadLogsResponse { stream: chunk.stream, data: chunk.data.into() })
                    .map_err(|refusal| to_status(&refusal));
                Ok(Response::new(stream.boxed()))
            }
        }
    }
}

fn no_such_job(id: JobId) -> Refusal {
    Refusal::new(RefusalCode::JobNotFound, format!("there is no job {id}"))
}

fn list(
    engine: &muster_engine::Engine,
    view: &State,
    message: &v1::ListJobsRequest,
    size: usize,
) -> Result<v1::ListJobsResponse, Status> {
    let cluster = cluster(view)?;
    let mut phases: Vec<String> = Vec::new();
    for phase in &message.phases {
        match v1::JobPhase::try_from(*phase) {
            Ok(v1::JobPhase::Unspecified) | Err(_) => {
                return Err(invalid(vec![Violation::new("phases", format!("{phase} is not a phase"))]));
            }
            Ok(known) => phases.push(known.as_str_name().to_owned()),
        }
    }
    let parts = phases.iter().map(String::as_str).chain(["|", &message.tenant, &message.name_prefix]);
    let filter = filter_digest(parts);
    let after = match message.page_token.as_str() {
        "" => None,
        text => {
            let token = PageToken::decode(text, cluster, List::Jobs, filter).map_err(bad_page)?;
            Some(token.after.parse::<JobId>().map_err(|_| bad_page(TokenError::ReadToken))?)
        }
    };
    let wanted: BTreeSet<i32> = message.phases.iter().copied().collect();
    let matches = |row: &muster_state::JobRow, spec: &JobSpec| {
        let phase: i32 = render::phase_of(&row.phase).into();
        (wanted.is_empty() || wanted.contains(&phase))
            && (message.tenant.is_empty() || *spec.tenant == *message.tenant)
            && spec.name.starts_with(&message.name_prefix)
    };
    let mut jobs = Vec::new();
    let mut last = None;
    let mut more = false;
    // Newest first; a page ends before the one it began behind.
    for (id, row) in view.jobs().range(..after.unwrap_or(JobId(u64::MAX))).rev() {
        let Some(spec) = view.spec(*id) else { continue };
        if !matches(row, spec) {
            continue;
        }
        if jobs.len() == size {
            more = true;
            break;
        }
        jobs.push(render::job(view, *id, row, spec, Detail::Basic));
        last = Some(*id);
    }
    let next = last.filter(|_| more).map(|id| {
        PageToken { after: id.to_string(), log_index: view.log_index() }.encode(cluster, List::Jobs, filter)
    });
    let freshness = Some(freshness(engine, view));
    Ok(v1::ListJobsResponse { jobs, next_page_token: next.unwrap_or_default(), freshness })
}

pub(crate) fn bad_page(error: TokenError) -> Status {
    to_status(&Refusal::new(RefusalCode::PageTokenInvalid, error.to_string()))
}

/// One watch: the present first, then every change behind it.
struct Watcher {
    view: Arc<State>,
    changes: Subscription,
    sync: bool,
    jobs: BTreeSet<JobId>,
    tenant: String,
    tokens: Tokens,
}

/// Makes the tokens of one watch.
struct Tokens {
    cluster: muster_types::ClusterId,
    generation: u32,
    filter: u64,
}

impl Tokens {
    fn at(&self, position: WatchPosition) -> String {
        let token = ResumeToken {
            generation: self.generation,
            log_index: position.log_index,
            events: position.ordinal,
        };
        token.encode(self.cluster, self.filter)
    }
}

impl Watcher {
    fn open(router: &Router, message: &v1::WatchJobsRequest) -> Result<Watcher, Status> {
        if message.job_ids.len() > WATCHED_JOBS_MAX {
            let count = message.job_ids.len() as u64;
            return Err(invalid(vec![Violation::limit("job_ids", count, 0, WATCHED_JOBS_MAX as u64)]));
        }
        let mut jobs = BTreeSet::new();
        let mut violations = Vec::new();
        for (place, text) in message.job_ids.iter().enumerate() {
            match job_id(&format!("job_ids[{place}]"), text) {
                Ok(id) => drop(jobs.insert(id)),
                Err(violation) => violations.push(violation),
            }
        }
        if !violations.is_empty() {
            return Err(invalid(violations));
        }
        let engine = router.engine();
        let view = engine.view();
        let cluster = cluster(&view)?;
        let generation = view.cluster().map_or(0, |c| c.generation);
        let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        let filter = filter_digest(names.iter().map(String::as_str).chain(["|", &message.tenant]));
        let refuse = |code, text: String| to_status(&Refusal::new(code, text));
        let from = match message.resume_token.as_str() {
            "" => WatchPosition::after(view.log_index()),
            text => {
                let token = ResumeToken::decode(text, cluster, filter)
                    .map_err(|error| refuse(RefusalCode::ResumeTokenInvalid, error.to_string()))?;
                if token.generation != generation {
                    let text =
                        "the cluster was rebuilt since the token was made; watch from the start".to_owned();
                    return Err(refuse(RefusalCode::ResumeTokenCompacted, text));
                }
                WatchPosition { log_index: token.log_index, ordinal: token.events }
            }
        };
        let changes = engine.watch(from).map_err(|refusal| to_status(&refusal))?;
        let tokens = Tokens { cluster, generation, filter };
        let sync = message.resume_token.is_empty();
        Ok(Watcher { view, changes, sync, jobs, tenant: message.tenant.clone(), tokens })
    }

    fn wants(&self, id: JobId, spec: &JobSpec) -> bool {
        (self.jobs.is_empty() || self.jobs.contains(&id))
            && (self.tenant.is_empty() || *spec.tenant == *self.tenant)
    }

    async fn run(mut self, to_client: mpsc::Sender<Result<v1::WatchJobsResponse, Status>>) {
        if self.sync && self.send_present(&to_client).await.is_none() {
            return;
        }
        loop {
            let next = tokio::select! {
                () = to_client.closed() => return,
                next = self.changes.next() => next,
            };
            let (events, reached) = match next {
                Ok(batch) => batch,
                Err(refusal) => {
                    // The client may have gone; then nobody is left to tell.
                    let _ = to_client.send(Err(to_status(&refusal))).await;
                    return;
                }
            };
            let mut sent = None;
            for event in events {
                let Some(body) = self.body(event.change) else { continue };
                if self.send(&to_client, event.position, body).await.is_none() {
                    return;
                }
                sent = Some(event.position);
            }
            if sent != Some(reached) {
                let bookmark = v1::watch_jobs_response::Event::Bookmark(true);
                if self.send(&to_client, reached, bookmark).await.is_none() {
                    return;
                }
            }
        }
    }

    async fn send_present(
        &self,
        to_client: &mpsc::Sender<Result<v1::WatchJobsResponse, Status>>,
    ) -> Option<()> {
        let at = WatchPosition::after(self.view.log_index());
        let body = |id: JobId| {
            let (row, spec) = (self.view.job(id)?, self.view.spec(id)?);
            let job = render::job(&self.view, id, row, spec, Detail::Full);
            self.wants(id, spec).then_some(v1::watch_jobs_response::Event::Changed(job))
        };
        if self.jobs.is_empty() {
            for (id, _) in self.view.jobs().iter() {
                if let Some(body) = body(*id) {
                    self.send_unmarked(to_client, at, body).await?;
                }
            }
        } else {
            for id in &self.jobs {
                if let Some(body) = body(*id) {
                    self.send_unmarked(to_client, at, body).await?;
                }
            }
        }
        self.send(to_client, at, v1::watch_jobs_response::Event::SyncEnd(true)).await
    }

    fn body(&self, change: Change) -> Option<v1::watch_jobs_response::Event> {
        match change {
            Change::Job { id, row, spec } => {
                // Names of nodes never change, so any view serves.
                let job = render::job(&self.view, id, &row, &spec, Detail::Full);
                self.wants(id, &spec).then_some(v1::watch_jobs_response::Event::Changed(job))
            }
            Change::Forgotten(id) => {
                let wanted = self.jobs.is_empty() || self.jobs.contains(&id);
                wanted.then(|| v1::watch_jobs_response::Event::Forgotten(id.to_string()))
            }
            Change::Node(_) => None,
        }
    }

    async fn send(
        &self,
        to_client: &mpsc::Sender<Result<v1::WatchJobsResponse, Status>>,
        at: WatchPosition,
        event: v1::watch_jobs_response::Event,
    ) -> Option<()> {
        let resume_token = self.tokens.at(at);
        let message = v1::WatchJobsResponse { resume_token, log_index: at.log_index.0, event: Some(event) };
        to_client.send(Ok(message)).await.ok()
    }

    /// The present in parts: no part can be resumed behind, only the whole.
    async fn send_unmarked(
        &self,
        to_client: &mpsc::Sender<Result<v1::WatchJobsResponse, Status>>,
        at: WatchPosition,
        event: v1::watch_jobs_response::Event,
    ) -> Option<()> {
        let message = v1::WatchJobsResponse {
            resume_token: String::new(),
            log_index: at.log_index.0,
            event: Some(event),
        };
        to_client.send(Ok(message)).await.ok()
    }
}
