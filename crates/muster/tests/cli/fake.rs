//! A small cluster: it checks and remembers jobs, and plays every watched job to its end.

pub mod arrays;
mod exec;
mod jobs;
mod nodes;
mod policies;
mod port_forward;
mod queues;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use admin::probe_service_server::{ProbeService, ProbeServiceServer};
use jobs::{job, jobs_of};
use muster_types::{Refusal, RefusalCode};
use muster_wire::shared::Shared;
use muster_wire::status::to_status;
use muster_wire::time::{duration, span_ms, timestamp};
use muster_wire::{admin, convert, v1};
use nodes::node;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};
use v1::JobPhase;
use v1::cluster_service_server::{ClusterService, ClusterServiceServer};
use v1::fleet_service_server::{FleetService, FleetServiceServer};
use v1::job_service_server::{JobService, JobServiceServer};
use v1::policy_service_server::PolicyServiceServer;
use v1::tenant_service_server::TenantServiceServer;
use v1::watch_jobs_response::Event;

#[derive(Default)]
pub struct Book {
    /// What `GetArray` and `ListArrays` answer; submissions add to it.
    pub arrays: Vec<v1::Array>,
    /// What arrays were listed by.
    pub array_lists: Vec<v1::JobFilter>,
    /// Whether arrays stay as they are, however often they are looked at.
    pub array_stays: bool,
    /// Jobs and arrays that were submitted.
    pub submitted: Vec<v1::Job>,
    pub jobs: BTreeMap<String, v1::Job>,
    pub request_ids: Vec<String>,
    pub watches: usize,
    pub list_pages: usize,
    /// What jobs were listed by.
    pub lists: Vec<v1::ListJobsRequest>,
    pub cordoned: Vec<String>,
    pub restricted: Vec<String>,
    pub forgotten: Vec<String>,
    pub labelled: Vec<v1::SetNodeLabelsRequest>,
    pub logs: Vec<v1::ReadLogsRequest>,
    /// How many jobs one call cancels; none for all that are found.
    pub cancelled_at_once: Option<usize>,
    /// What was asked of jobs by a selector: the call, the selector, and whether it only looked.
    pub controls: Vec<(&'static str, v1::JobSelector, bool)>,
    pub updates: Vec<v1::UpdateJobRequest>,
    /// What `GetJob` and `ListJobs` were asked for.
    pub reads: Vec<v1::ReadOptions>,
    /// What `GetJob` says of its age.
    pub staleness_ms: Option<u64>,
    /// Version, and what was set.
    pub policy: Option<(u64, v1::Policy)>,
    /// Whether explanations are those of a replica that does not lead.
    pub follows: bool,
}

pub struct Fake {
    pub endpoint: String,
    pub book: Arc<Mutex<Book>>,
    runtime: Option<Runtime>,
}

impl Fake {
    pub fn start() -> Fake {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let book = Arc::new(Mutex::new(Book { staleness_ms: Some(12), ..Default::default() }));
        let service = Service { book: book.clone(), endpoint: endpoint.clone() };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(JobServiceServer::new(service.clone()))
                .add_service(FleetServiceServer::new(service.clone()))
                .add_service(ProbeServiceServer::new(service.clone()))
                .add_service(PolicyServiceServer::new(service.clone()))
                .add_service(TenantServiceServer::new(service.clone()))
                .add_service(ClusterServiceServer::new(service))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Fake { endpoint, book, runtime: Some(runtime) }
    }

    /// Puts a job into the book.
    pub fn add(&self, id: &str, name: &str, phase: JobPhase) {
        let mut job = job(id, name, phase);
        job.status_mut().reason = "WAITING_FOR_CAPACITY".into();
        self.book.lock().jobs.insert(id.to_owned(), job);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct Service {
    book: Arc<Mutex<Book>>,
    endpoint: String,
}

fn freshness() -> Option<v1::Freshness> {
    Some(v1::Freshness {
        log_index: 41,
        replica_id: 1,
        leader_id: 1,
        staleness: Some(duration(12)),
        log_time: Some(timestamp(1_700_000_000_000)),
        generation: 1,
    })
}

fn refuse(code: RefusalCode, message: &str) -> Status {
    to_status(&Refusal::new(code, message))
}

type Boxed<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// The jobs that a selector finds, by what tests select by.
    fn control(&self, call: &'static str, selector: v1::JobSelector, validate_only: bool) -> Vec<String> {
        let mut book = self.book.lock();
        let filter = selector.filter.clone().unwrap_or_default();
        let (label, value) = filter.label_selector.split_once('=').unwrap_or_default();
        let is_found = |job: &&v1::Job| {
            (filter.job_ids.is_empty() || filter.job_ids.contains(&job.id))
                && (label.is_empty() || job.labels.get(label).is_some_and(|own| own == value))
                && job.name.starts_with(&filter.name_prefix)
        };
        let found = book.jobs.values().filter(is_found).map(|job| job.id.clone()).collect();
        book.controls.push((call, selector, validate_only));
        found
    }

    fn accept(&self, name: &str, count: usize) -> Result<Vec<String>, Status> {
        match name {
            "too-big" => return Err(refuse(RefusalCode::NeverFits, "64 workers of h100:8 fit nowhere")),
            "denied" => return Err(Status::permission_denied("not yours")),
            _ => {}
        }
        let mut book = self.book.lock();
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = muster_types::JobId(book.jobs.len() as u64 + 1).to_string();
            book.jobs.insert(id.clone(), job(&id, name, JobPhase::Pending));
            ids.push(id);
        }
        Ok(ids)
    }

    fn find(&self, id: &str) -> Result<v1::Job, Status> {
        let found = self.book.lock().jobs.get(id).cloned();
        found.ok_or_else(|| refuse(RefusalCode::JobNotFound, &format!("there is no job {id}")))
    }
}

#[tonic::async_trait]
impl JobService for Service {
    type SubmitStreamStream = futures::stream::Empty<Result<v1::SubmitStreamResponse, Status>>;

    async fn submit_stream(
        &self,
        _: Request<tonic::Streaming<v1::SubmitStreamRequest>>,
    ) -> Result<Response<Self::SubmitStreamStream>, Status> {
        Err(Status::unimplemented("no command submits so"))
    }

    type WatchJobsStream = Boxed<Shared<v1::WatchJobsResponse>>;
    type ReadLogsStream = Boxed<v1::ReadLogsResponse>;

    async fn submit_job(
        &self,
        request: Request<v1::SubmitJobRequest>,
    ) -> Result<Response<v1::SubmitJobResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().request_ids.push(request.request_id);
        self.book.lock().submitted.extend(request.job.clone());
        let specs = convert::submissions_from_proto("job", request.job)
            .map_err(|found| to_status(&Refusal::fields(found)))?;
        if specs[0].name.as_str() == "forbidden-group" {
            let violation =
                muster_types::Violation::new("job.spec.groups[0].resources.cpu_milli", "must be odd today");
            return Err(to_status(&Refusal::fields(vec![violation])));
        }
        let job_ids =
            if request.validate_only { Vec::new() } else { self.accept(&specs[0].name, jobs_of(&specs))? };
        let shown = convert::submission_to_proto(&specs[0]);
        for id in &job_ids {
            if let Some(job) = self.book.lock().jobs.get_mut(id) {
                job.labels.clone_from(&shown.labels);
                job.annotations.clone_from(&shown.annotations);
                job.tenant.clone_from(&shown.tenant);
                job.creator = "tenant/vision/ada".to_owned();
                job.spec.clone_from(&shown.spec);
            }
        }
        Ok(Response::new(v1::SubmitJobResponse { job_ids, freshness: freshness() }))
    }

    async fn submit_jobs(
        &self,
        request: Request<v1::SubmitJobsRequest>,
    ) -> Result<Response<v1::SubmitJobsResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().request_ids.push(request.request_id);
        self.book.lock().submitted.extend(request.jobs.iter().cloned());
        let specs = convert::jobs_from_proto("jobs", request.jobs)
            .map_err(|found| to_status(&Refusal::fields(found)))?;
        if specs.len() > 1 && specs[1].name.as_str() == "forbidden-group" {
            let violation =
                muster_types::Violation::new("jobs[1].spec.groups[0].resources.memory_bytes", "must be even");
            return Err(to_status(&Refusal::fields(vec![violation])));
        }
        let mut job_ids = Vec::new();
        for spec in &specs {
            let one = std::slice::from_ref(spec);
            job_ids.extend(self.accept(&spec.name, jobs_of(one))?);
        }
        if request.validate_only {
            job_ids.clear();
        }
        Ok(Response::new(v1::SubmitJobsResponse { job_ids, freshness: freshness() }))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let mut job = self.find(&request.into_inner().job_id)?;
        if job.phase() == JobPhase::Succeeded {
            return Err(refuse(RefusalCode::JobFinished, "the job has already finished"));
        }
        job.status_mut().phase = JobPhase::Cancelled.into();
        Ok(Response::new(v1::CancelJobResponse { job: Some(job), freshness: freshness() }))
    }

    async fn cancel_jobs(
        &self,
        request: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        let v1::CancelJobsRequest { selector, validate_only, .. } = request.into_inner();
        let selector = selector.unwrap_or_default();
        let after = selector.after_job_id.clone();
        let mut job_ids = self.control("cancel", selector, validate_only);
        job_ids.retain(|id| *id > after);
        let at_once = self.book.lock().cancelled_at_once.filter(|_| !validate_only).unwrap_or(usize::MAX);
        let rest = job_ids.split_off(job_ids.len().min(at_once));
        Ok(Response::new(v1::CancelJobsResponse {
            job_count: job_ids.len() as u32,
            remaining_count: rest.len() as u64,
            last_job_id: job_ids.last().cloned().unwrap_or_default(),
            job_ids,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    async fn hold_jobs(
        &self,
        request: Request<v1::HoldJobsRequest>,
    ) -> Result<Response<v1::HoldJobsResponse>, Status> {
        let v1::HoldJobsRequest { selector, validate_only, .. } = request.into_inner();
        let job_ids = self.control("hold", selector.unwrap_or_default(), validate_only);
        Ok(Response::new(v1::HoldJobsResponse {
            job_count: job_ids.len() as u32,
            job_ids,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    async fn release_jobs(
        &self,
        request: Request<v1::ReleaseJobsRequest>,
    ) -> Result<Response<v1::ReleaseJobsResponse>, Status> {
        let v1::ReleaseJobsRequest { selector, validate_only, .. } = request.into_inner();
        let job_ids = self.control("release", selector.unwrap_or_default(), validate_only);
        Ok(Response::new(v1::ReleaseJobsResponse {
            job_count: job_ids.len() as u32,
            job_ids,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    async fn requeue_jobs(
        &self,
        request: Request<v1::RequeueJobsRequest>,
    ) -> Result<Response<v1::RequeueJobsResponse>, Status> {
        let v1::RequeueJobsRequest { selector, validate_only, .. } = request.into_inner();
        let job_ids = self.control("requeue", selector.unwrap_or_default(), validate_only);
        Ok(Response::new(v1::RequeueJobsResponse {
            job_count: job_ids.len() as u32,
            job_ids,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    async fn suspend_jobs(
        &self,
        request: Request<v1::SuspendJobsRequest>,
    ) -> Result<Response<v1::SuspendJobsResponse>, Status> {
        let v1::SuspendJobsRequest { selector, validate_only, .. } = request.into_inner();
        let job_ids = self.control("suspend", selector.unwrap_or_default(), validate_only);
        Ok(Response::new(v1::SuspendJobsResponse {
            job_count: job_ids.len() as u32,
            job_ids,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    /// One that was made from an etag that is not the job's is late.
    async fn update_job(
        &self,
        request: Request<v1::UpdateJobRequest>,
    ) -> Result<Response<v1::UpdateJobResponse>, Status> {
        let request = request.into_inner();
        let job = self.find(&request.job_id.replacen("array-", "job-", 1))?;
        self.book.lock().updates.push(request.clone());
        if !request.etag.is_empty() && request.etag != job.etag {
            return Err(refuse(RefusalCode::JobChanged, "the job has changed since"));
        }
        Ok(Response::new(v1::UpdateJobResponse { job: Some(job), freshness: freshness(), array: None }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let request = request.into_inner();
        let job = self.find(&request.job_id)?;
        let mut book = self.book.lock();
        book.reads.extend(request.read);
        let freshness =
            freshness().map(|f| v1::Freshness { staleness: book.staleness_ms.map(duration), ..f });
        Ok(Response::new(v1::GetJobResponse { job: Some(job), freshness }))
    }

    async fn get_array(
        &self,
        request: Request<v1::GetArrayRequest>,
    ) -> Result<Response<v1::GetArrayResponse>, Status> {
        let array = self.book.lock().array(&request.into_inner().array_id)?;
        Ok(Response::new(v1::GetArrayResponse { array: Some(array), freshness: freshness() }))
    }

    async fn list_arrays(
        &self,
        request: Request<v1::ListArraysRequest>,
    ) -> Result<Response<v1::ListArraysResponse>, Status> {
        let arrays = self.book.lock().list_arrays(&request.into_inner().filter.unwrap_or_default());
        let next_page_token = String::new();
        Ok(Response::new(v1::ListArraysResponse { arrays, next_page_token, freshness: freshness() }))
    }

    /// Two to a page, whatever was asked for: a server may always give less.
    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let request = request.into_inner();
        let mut book = self.book.lock();
        book.list_pages += 1;
        book.lists.push(request.clone());
        book.reads.extend(request.read);
        let start: usize =
            if request.page_token.is_empty() { 0 } else { request.page_token.parse().unwrap() };
        let filter = request.filter.unwrap_or_default();
        let wanted = |job: &&v1::Job| {
            (filter.phases.is_empty() || filter.phases.contains(&job.status().phase))
                && job.name.starts_with(&filter.name_prefix)
                && Book::is_listed(&filter, job)
        };
        let all: Vec<v1::Job> = book.jobs.values().filter(wanted).cloned().collect();
        let end = (start + 2).min(all.len());
        let next_page_token = if end < all.len() { end.to_string() } else { String::new() };
        let jobs = all[start..end].to_vec();
        Ok(Response::new(v1::ListJobsResponse {
            jobs,
            next_page_token,
            freshness: freshness(),
            resume_token: String::new(),
            forecast: None,
        }))
    }

    /// Jobs named `fails` fail, all others succeed.
    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        let wanted = request.into_inner().filter.unwrap_or_default();
        let mut book = self.book.lock();
        book.watches += 1;
        let jobs: Vec<v1::Job> =
            book.jobs.values().filter(|job| wanted.job_ids.contains(&job.id)).cloned().collect();
        let mut events: Vec<(u64, Event)> =
            jobs.iter().map(|job| (41, Event::Changed(job.clone()))).collect();
        events.push((41, Event::SyncEnd(v1::SyncEnd {})));
        let mut index = 41;
        for phase in [JobPhase::Running, JobPhase::Succeeded] {
            for job in jobs.iter().filter(|job| job.name != "stuck") {
                index += 1;
                let fails = phase == JobPhase::Succeeded && job.name == "fails";
                let phase = if fails { JobPhase::Failed } else { phase };
                let mut job = job.clone();
                let status = job.status_mut();
                (status.phase, status.changed_at_index) = (phase.into(), index);
                status.reason = if fails { "APPLICATION_FAILED".to_owned() } else { String::new() };
                events.push((index, Event::Changed(job)));
            }
        }
        let messages = events.into_iter().map(|(log_index, event)| {
            let resume_token = log_index.to_string();
            Ok(v1::WatchJobsResponse { resume_token, log_index, event: Some(event) }.into())
        });
        use futures::StreamExt as _;
        let stream = futures::stream::iter(messages).chain(futures::stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn plan_job(
        &self,
        request: Request<v1::PlanJobRequest>,
    ) -> Result<Response<v1::PlanJobResponse>, Status> {
        let specs = convert::submissions_from_proto("job", request.into_inner().job)
            .map_err(|found| to_status(&Refusal::fields(found)))?;
        let explanation = Some(explanation(specs[0].worker_count()));
        Ok(Response::new(v1::PlanJobResponse { explanation, freshness: freshness() }))
    }

    async fn explain_job(
        &self,
        request: Request<v1::ExplainJobRequest>,
    ) -> Result<Response<v1::ExplainJobResponse>, Status> {
        let job = self.find(&request.into_inner().job_id)?;
        let follows = self.book.lock().follows;
        let explanation =
            v1::Explanation { knows_reservations: !follows, ..explanation(job.status().worker_count) };
        let replica_id = if follows { 2 } else { 1 };
        Ok(Response::new(v1::ExplainJobResponse {
            explanation: Some(explanation),
            freshness: freshness().map(|freshness| v1::Freshness { replica_id, ..freshness }),
            ..Default::default()
        }))
    }

    async fn commit_checkpoint(
        &self,
        request: Request<v1::CommitCheckpointRequest>,
    ) -> Result<Response<v1::CommitCheckpointResponse>, Status> {
        self.find(&request.into_inner().job_id)?;
        Ok(Response::new(v1::CommitCheckpointResponse { freshness: freshness() }))
    }

    type ExecWorkerStream = Boxed<v1::ExecWorkerResponse>;
    async fn exec_worker(
        &self,
        request: Request<tonic::Streaming<v1::ExecWorkerRequest>>,
    ) -> Result<Response<Self::ExecWorkerStream>, Status> {
        exec::play(|id| self.find(id), request.into_inner()).await
    }

    type ForwardPortStream = Boxed<v1::ForwardPortResponse>;
    async fn forward_port(
        &self,
        request: Request<tonic::Streaming<v1::ForwardPortRequest>>,
    ) -> Result<Response<Self::ForwardPortStream>, Status> {
        port_forward::play(|id| self.find(id), request.into_inner()).await
    }

    async fn read_logs(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadLogsStream>, Status> {
        let request = request.into_inner();
        let is_stuck = self.find(&request.job_id)?.name == "stuck";
        let goes_on = request.follow && is_stuck;
        self.book.lock().logs.push(request);
        let piece = |stream: v1::OutputStream, data: &[u8]| {
            Ok(v1::ReadLogsResponse { stream: stream.into(), data: data.to_vec(), ..Default::default() })
        };
        let pieces = [
            piece(v1::OutputStream::Stdout, b"step 1\n"),
            piece(v1::OutputStream::Stderr, b"\xff\x00warn\n"),
        ];
        use futures::StreamExt as _;
        let pieces = futures::stream::iter(pieces);
        let stream: Self::ReadLogsStream = match goes_on {
            true => Box::pin(pieces.chain(futures::stream::pending())),
            false => Box::pin(pieces),
        };
        Ok(Response::new(stream))
    }
}

/// Everything an explanation can say.
fn explanation(workers: u32) -> v1::Explanation {
    let part = |name: &str, weight, value_milli| v1::ScorePart {
        name: name.into(),
        weight,
        value_milli,
        points: i64::from(weight * value_milli),
    };
    let score = vec![part("topology", 500, 900), part("packing", 400, 250)];
    let cluster = |region: &str, fit, full| v1::ClusterFit {
        region: region.into(),
        cluster: format!("{region}-1"),
        accelerator_type: "h100".into(),
        nodes: Some(v1::NodeCounts {
            registered: 12,
            fit,
            full,
            cordoned: 12 - fit - full,
            ..Default::default()
        }),
        free_devices: u64::from(fit) * 8,
        total_devices: 96,
        workers_that_fit: fit,
        could_hold: true,
        could_hold_placeable: fit > 0,
        reserved_devices: 16,
        largest_domain_workers: fit,
        quota_room_milli: None,
        score: if fit > 0 { score.clone() } else { Vec::new() },
        ..Default::default()
    };
    v1::Explanation {
        reason: "WAITING_FOR_CAPACITY".into(),
        message: format!(
            "{workers} workers with h100:8 have to be in one rack; the most that fit are 3 workers in rack \
             r2 of eu-north-1"
        ),
        borrowers: Vec::new(),
        standing: 0,
        knows_reservations: true,
        policy_version: 812,
        placement: Some(v1::PlannedPlacement {
            region: "eu-north".into(),
            cluster: "eu-north-1".into(),
            accelerator_type: "h100".into(),
            nodes: (0..20)
                .map(|n| v1::NodeWorkers {
                    node_name: format!("host-{n}"),
                    node_id: format!("node-{n}"),
                    workers: 1,
                    devices: 8,
                })
                .collect(),
            score: score.clone(),
        }),
        queue_position: Some(v1::QueuePosition { requests_before: 2, or_more: false }),
        clusters: vec![cluster("eu-north", 3, 7), cluster("us-east", 0, 12)],
        quotas: vec![v1::QuotaReport {
            r#type: "h100".into(),
            region: "eu-north".into(),
            wanted_milli: 4_500,
            room_milli: 4_000,
            short_milli: 500,
            tenant: "research".into(),
            limit: v1::QuotaLimit::Borrowing.into(),
            limit_region: String::new(),
            used_milli: 92_000,
            kept_milli: 0,
            limit_milli: 96_000,
        }],
        blocking_jobs: vec![v1::BlockingJob {
            job_id: "job-3e1".into(),
            name: "big".into(),
            workers: 64,
            start_time: Some(timestamp(4_102_444_800_000)),
            has_slipped: true,
        }],
        start: Some(v1::StartEstimate {
            p10: Some(timestamp(4_102_444_800_000)),
            p50: Some(timestamp(4_102_448_400_000)),
            p90: None,
            basis: "when 5 running gangs are expected to end".into(),
        }),
        remedies: vec![v1::Remedy {
            message: "topology.required: block instead of rack: it would start now".into(),
        }],
        estimate: Some(v1::Estimate {
            run_time: Some(duration(7_200_000)),
            run_time_p90: Some(duration(10_800_000)),
        }),
    }
}

#[tonic::async_trait]
impl FleetService for Service {
    async fn list_capacity(
        &self,
        _: Request<v1::ListCapacityRequest>,
    ) -> Result<Response<v1::ListCapacityResponse>, Status> {
        Ok(Response::new(v1::ListCapacityResponse::default()))
    }

    async fn set_fleet_hold(
        &self,
        request: Request<v1::SetFleetHoldRequest>,
    ) -> Result<Response<v1::SetFleetHoldResponse>, Status> {
        let v1::SetFleetHoldRequest { target, held, reason, .. } = request.into_inner();
        let held = held.ok_or_else(|| Status::invalid_argument("held must be given"))?;
        let hold = held.then(|| v1::FleetHold { target, reason, ..Default::default() });
        Ok(Response::new(v1::SetFleetHoldResponse { hold, freshness: freshness() }))
    }

    async fn list_fleet_holds(
        &self,
        _: Request<v1::ListFleetHoldsRequest>,
    ) -> Result<Response<v1::ListFleetHoldsResponse>, Status> {
        Ok(Response::new(v1::ListFleetHoldsResponse::default()))
    }

    async fn list_pending_nodes(
        &self,
        _: Request<v1::ListPendingNodesRequest>,
    ) -> Result<Response<v1::ListPendingNodesResponse>, Status> {
        let description = node("host-9", false).description;
        let reason = "nobody has approved node host-9".to_owned();
        let waits = v1::PendingNode { description, reason, ..Default::default() };
        Ok(Response::new(v1::ListPendingNodesResponse { nodes: vec![waits] }))
    }

    async fn get_node_admission(
        &self,
        _: Request<v1::GetNodeAdmissionRequest>,
    ) -> Result<Response<v1::GetNodeAdmissionResponse>, Status> {
        let rule = v1::NodeAdmissionRule { pattern: "eu-*".into(), bounds: None };
        let rejected = v1::NodeApproval { name: "host-8".into(), approved: None };
        Ok(Response::new(v1::GetNodeAdmissionResponse {
            mode: v1::AdmissionMode::Approve.into(),
            is_set: true,
            rules: vec![rule],
            approvals: vec![rejected],
            has_more: false,
            freshness: freshness(),
            version: 41,
            set_time: None,
        }))
    }

    async fn set_node_admission(
        &self,
        _: Request<v1::SetNodeAdmissionRequest>,
    ) -> Result<Response<v1::SetNodeAdmissionResponse>, Status> {
        Ok(Response::new(v1::SetNodeAdmissionResponse { freshness: freshness(), version: 41 }))
    }

    async fn set_node_approval(
        &self,
        request: Request<v1::SetNodeApprovalRequest>,
    ) -> Result<Response<v1::SetNodeApprovalResponse>, Status> {
        use v1::set_node_approval_request::Approval;
        let v1::SetNodeApprovalRequest { name, approval, .. } = request.into_inner();
        let approved = match approval {
            Some(Approval::Approve(bounds)) => Some(bounds),
            Some(Approval::ApproveAsIs(_)) => {
                Some(v1::NodeBounds { region: "eu".into(), ..Default::default() })
            }
            _ => None,
        };
        let approval = Some(v1::NodeApproval { name, approved });
        Ok(Response::new(v1::SetNodeApprovalResponse { approval, freshness: freshness() }))
    }

    async fn forget_node(
        &self,
        request: Request<v1::ForgetNodeRequest>,
    ) -> Result<Response<v1::ForgetNodeResponse>, Status> {
        let node = request.into_inner().node;
        if node == "host-0" {
            return Err(refuse(RefusalCode::NodeInUse, "the session of host-0 stands"));
        }
        let node_id = format!("node-of-{node}");
        self.book.lock().forgotten.push(node);
        Ok(Response::new(v1::ForgetNodeResponse { node_id, freshness: freshness() }))
    }

    async fn list_nodes(
        &self,
        _: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let nodes = vec![node("host-0", false), node("host-1", true)];
        let freshness = freshness();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token: String::new(), freshness }))
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        match request.into_inner().node.as_str() {
            "host-0" => Ok(Response::new(v1::GetNodeResponse {
                node: Some(node("host-0", false)),
                freshness: freshness(),
            })),
            "host-5" => {
                let lost = v1::Node { status: v1::NodeStatus::Lost.into(), ..node("host-5", false) };
                Ok(Response::new(v1::GetNodeResponse { node: Some(lost), freshness: freshness() }))
            }
            _ => Err(refuse(RefusalCode::NodeNotFound, "no such node")),
        }
    }

    type WatchNodesStream = Boxed<Shared<v1::WatchNodesResponse>>;

    async fn watch_nodes(
        &self,
        request: Request<v1::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        use v1::watch_nodes_response::Event;
        // `muster node watch` asks for one region, and its test expects that one's changes; `muster top` asks for all.
        let events = match request.into_inner().region.as_str() {
            "eu" => vec![
                (41, Event::Changed(node("host-0", false))),
                (41, Event::SyncEnd(v1::SyncEnd {})),
                (43, Event::Changed(node("host-0", true))),
                (44, Event::Forgotten("node-7".to_owned())),
            ],
            region => {
                assert_eq!(region, "");
                vec![(41, Event::Changed(node("host-0", false))), (41, Event::SyncEnd(v1::SyncEnd {}))]
            }
        };
        let messages = events.into_iter().map(|(log_index, event)| {
            let resume_token = log_index.to_string();
            Ok(v1::WatchNodesResponse { resume_token, log_index, event: Some(event) }.into())
        });
        use futures::StreamExt as _;
        Ok(Response::new(Box::pin(futures::stream::iter(messages).chain(futures::stream::pending()))))
    }

    async fn set_node_labels(
        &self,
        request: Request<v1::SetNodeLabelsRequest>,
    ) -> Result<Response<v1::SetNodeLabelsResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().labelled.push(request.clone());
        nodes::labelled(request).map(Response::new)
    }

    async fn cordon_node(
        &self,
        request: Request<v1::CordonNodeRequest>,
    ) -> Result<Response<v1::CordonNodeResponse>, Status> {
        let request = request.into_inner();
        let why = if request.reason.is_empty() { String::new() } else { format!(" {:?}", request.reason) };
        self.book.lock().cordoned.push(format!("{}=true{why}", request.node));
        let said = v1::NodeReason { reason: request.reason, creator: "admin/ada".into(), create_time: None };
        let node = Some(v1::Node { cordon_reason: Some(said), ..node(&request.node, true) });
        Ok(Response::new(v1::CordonNodeResponse { node, freshness: freshness() }))
    }

    async fn uncordon_node(
        &self,
        request: Request<v1::UncordonNodeRequest>,
    ) -> Result<Response<v1::UncordonNodeResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().cordoned.push(format!("{}=false", request.node));
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::UncordonNodeResponse { node, freshness: freshness() }))
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        let request = request.into_inner();
        let word = format!("{} drained {:?}", request.node, span_ms(request.stop_after));
        self.book.lock().restricted.push(word);
        let drain = v1::NodeDrain { cause: v1::DrainCause::Operator.into(), ..Default::default() };
        let restriction = Some(v1::NodeRestriction { drain: Some(drain), ..Default::default() });
        let node = Some(v1::Node { restriction, ..node(&request.node, false) });
        Ok(Response::new(v1::DrainNodeResponse { node, freshness: freshness() }))
    }

    async fn cancel_node_drain(
        &self,
        request: Request<v1::CancelNodeDrainRequest>,
    ) -> Result<Response<v1::CancelNodeDrainResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().restricted.push(format!("{} drain ended", request.node));
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::CancelNodeDrainResponse { node, freshness: freshness() }))
    }

    async fn quarantine_node(
        &self,
        request: Request<v1::QuarantineNodeRequest>,
    ) -> Result<Response<v1::QuarantineNodeResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().restricted.push(format!("{} quarantined {:?}", request.node, request.reason));
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::QuarantineNodeResponse { node, freshness: freshness() }))
    }

    async fn release_node(
        &self,
        request: Request<v1::ReleaseNodeRequest>,
    ) -> Result<Response<v1::ReleaseNodeResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().restricted.push(format!("{} released", request.node));
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::ReleaseNodeResponse { node, freshness: freshness() }))
    }

    async fn begin_node_repair(
        &self,
        request: Request<v1::BeginNodeRepairRequest>,
    ) -> Result<Response<v1::BeginNodeRepairResponse>, Status> {
        let request = request.into_inner();
        let word = format!(
            "{} repair {:?} {:?} {:?}",
            request.node,
            request.action(),
            request.devices,
            span_ms(request.stop_after)
        );
        self.book.lock().restricted.push(word);
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::BeginNodeRepairResponse { node, freshness: freshness() }))
    }

    async fn finish_node_repair(
        &self,
        request: Request<v1::FinishNodeRepairRequest>,
    ) -> Result<Response<v1::FinishNodeRepairResponse>, Status> {
        let request = request.into_inner();
        self.book.lock().restricted.push(format!(
            "{} repair {:?} {:?}",
            request.node,
            request.outcome(),
            request.message
        ));
        let node = Some(node(&request.node, false));
        Ok(Response::new(v1::FinishNodeRepairResponse { node, freshness: freshness() }))
    }

    async fn get_health_policy(
        &self,
        _: Request<v1::GetHealthPolicyRequest>,
    ) -> Result<Response<v1::GetHealthPolicyResponse>, Status> {
        let policy = Some(convert::health_policy_to_proto(&Default::default()));
        let freshness = freshness();
        Ok(Response::new(v1::GetHealthPolicyResponse { policy, version: 7, set_time: None, freshness }))
    }

    async fn set_health_policy(
        &self,
        request: Request<v1::SetHealthPolicyRequest>,
    ) -> Result<Response<v1::SetHealthPolicyResponse>, Status> {
        let request = request.into_inner();
        let read = convert::health_policy_from_proto("policy", request.policy.as_ref());
        let policy = read.map_err(|violations| to_status(&Refusal::fields(violations)))?;
        let rule = policy.xids.get(&79).map_or("none", |rule| rule.name());
        let word = format!("xid-79={rule} at {:?}", request.expected_version);
        self.book.lock().restricted.push(word);
        Ok(Response::new(v1::SetHealthPolicyResponse { version: 48, freshness: freshness() }))
    }
}

#[tonic::async_trait]
impl ProbeService for Service {
    async fn probe_nodes(
        &self,
        request: Request<admin::ProbeNodesRequest>,
    ) -> Result<Response<admin::ProbeNodesResponse>, Status> {
        let node_names = request.into_inner().nodes;
        let link = |from, to| v1::ProbeLink {
            from,
            to,
            bytes_per_s: if (from, to) == (0, 1) { 2_000_000 } else { 1_000_000_000 },
            round_trip_us: 80,
            ..Default::default()
        };
        let finding = admin::ProbeFinding {
            node_name: node_names[1].clone(),
            other_node_name: node_names[0].clone(),
            message: "slow link".into(),
            ..Default::default()
        };
        Ok(Response::new(admin::ProbeNodesResponse {
            node_names,
            links: vec![link(0, 1), link(1, 0)],
            rings: vec![v1::ProbeRing { host: 0, bytes: 1 << 20, duration_us: 500, correct: true }],
            findings: vec![finding],
        }))
    }
}

#[tonic::async_trait]
impl ClusterService for Service {
    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let replica = |id, region: &str, client_endpoint: &str, leader| v1::Replica {
            id,
            region: region.into(),
            client_endpoint: client_endpoint.into(),
            voter: true,
            leader,
            ..Default::default()
        };
        // Nobody listens on port 1.
        let replicas = vec![
            replica(1, "eu-north", &self.endpoint, true),
            replica(2, "us-east", "http://127.0.0.1:1", false),
        ];
        Ok(Response::new(v1::GetStatusResponse {
            cluster_id: "c".repeat(32),
            cluster_generation: 1,
            freshness: freshness(),
            state_digest: "00000000000000aa".into(),
            term: 3,
            role: v1::ReplicaRole::Leader.into(),
            replicas,
            jobs_pending: 2,
            nodes_up: 12,
            ..Default::default()
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        Ok(Response::new(v1::GetServerInfoResponse {
            version: "9.9.9".into(),
            replica_id: 1,
            region: "eu-north".into(),
            ..Default::default()
        }))
    }
}
