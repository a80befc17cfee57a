//! A server that answers from a script and keeps what it was asked.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use muster_client::{Endpoints, Options};
use muster_wire::shared::Shared;
use muster_wire::v1;
use tokio::runtime::Runtime;
use tonic::{Code, Request, Response, Status};
use v1::job_service_server::{JobService, JobServiceServer};
use v1::submit_stream_response::Outcome;

/// What happens on one call.
pub enum Step {
    /// Answers it.
    Answer,
    /// Refuses it.
    Refuse(Status),
    /// Carries the call out, this much later.
    AnswerAfter(std::time::Duration),
    /// Never answers.
    Hang,
    /// A watch sends these, then ends with the status, or well when there is none, or stays open.
    Stream(Vec<Result<v1::WatchJobsResponse, Status>>, bool),
}

#[derive(Default)]
pub struct Script {
    pub steps: VecDeque<Step>,
    pub submits: Vec<v1::SubmitJobRequest>,
    /// The features that each of these required, between commas.
    pub required: Vec<String>,
    pub streamed: Vec<v1::SubmitJobRequest>,
    /// Named as the leader in answers to submissions.
    pub leader: Option<String>,
    pub gets: Vec<v1::GetJobRequest>,
    /// Answers to reads of a job, in order; behind them an empty one.
    pub jobs: VecDeque<v1::Job>,
    pub lists: Vec<v1::ListJobsRequest>,
    /// Answers to lists, in order.
    pub pages: VecDeque<v1::ListJobsResponse>,
    pub watches: Vec<v1::WatchJobsRequest>,
    pub logs: Vec<v1::ReadLogsRequest>,
    /// Whether pieces of output say where they end.
    pub names_positions: bool,
}

/// What a worker has written.
pub const OUTPUT: &[u8] = b"step 1\nstep 2\nthe end\n";

/// One fake replica; dies with this handle.
pub struct Fake {
    pub address: SocketAddr,
    pub script: Arc<Mutex<Script>>,
    /// A separate one, so that dropping it ends connections too, as the death of a process does.
    runtime: Option<Runtime>,
}

impl Fake {
    pub fn start(steps: impl IntoIterator<Item = Step>) -> Fake {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let script =
            Arc::new(Mutex::new(Script { steps: steps.into_iter().collect(), ..Default::default() }));
        let service = JobServiceServer::new(Service { script: script.clone() });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Fake { address, script, runtime: Some(runtime) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An address nobody listens on.
pub async fn dead_endpoint() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// An address where a connection is neither taken nor refused, as where a host is gone: the line of those that wait
/// to be taken is full. With what keeps it so.
pub async fn silent_endpoint() -> (String, Vec<Box<dyn std::any::Any + Send>>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut kept: Vec<Box<dyn std::any::Any + Send>> = vec![Box::new(listener)];
    let within = std::time::Duration::from_millis(300);
    while let Ok(Ok(connection)) = tokio::time::timeout(within, tokio::net::TcpStream::connect(address)).await
    {
        kept.push(Box::new(connection));
        assert!(kept.len() < 64, "the line never ends");
    }
    (address.to_string(), kept)
}

pub fn endpoints(list: &[String]) -> Endpoints {
    Endpoints::parse(list).unwrap()
}

/// Short enough for tests, long enough for a busy machine.
pub fn options() -> Options {
    Options {
        deadline: std::time::Duration::from_secs(20),
        pause_min: std::time::Duration::from_millis(1),
        pause_max: std::time::Duration::from_millis(5),
        ..Options::STANDARD
    }
}

struct Service {
    script: Arc<Mutex<Script>>,
}

impl Service {
    async fn step(&self) -> Result<(), Status> {
        let step = self.script.lock().steps.pop_front();
        match step {
            None | Some(Step::Answer) => Ok(()),
            Some(Step::AnswerAfter(pause)) => {
                tokio::time::sleep(pause).await;
                Ok(())
            }
            Some(Step::Refuse(status)) => Err(status),
            Some(Step::Hang) => std::future::pending().await,
            Some(Step::Stream(..)) => Err(Status::internal("the script has a stream where none belongs")),
        }
    }
}

fn accepted() -> v1::SubmitJobResponse {
    v1::SubmitJobResponse { job_ids: vec!["job-1".into()], freshness: freshness(41) }
}

pub fn freshness(log_index: u64) -> Option<v1::Freshness> {
    Some(v1::Freshness { log_index, replica_id: 1, leader_id: 1, ..Default::default() })
}

type Boxed<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl JobService for Service {
    type WatchJobsStream = Boxed<Shared<v1::WatchJobsResponse>>;
    type ReadLogsStream = Boxed<v1::ReadLogsResponse>;
    type SubmitStreamStream = Boxed<v1::SubmitStreamResponse>;

    /// Answers one submission after the other; a step that refuses with `ABORTED` breaks the stream.
    async fn submit_stream(
        &self,
        request: Request<tonic::Streaming<v1::SubmitStreamRequest>>,
    ) -> Result<Response<Self::SubmitStreamStream>, Status> {
        let script = self.script.clone();
        let answers = futures::stream::unfold(Some(request.into_inner()), move |inbound| {
            let service = Service { script: script.clone() };
            async move {
                let mut inbound = inbound?;
                let message = inbound.message().await.ok()??;
                service.script.lock().streamed.extend(message.submission);
                let outcome = match service.step().await {
                    Ok(()) => Outcome::Accepted(accepted()),
                    Err(status) if status.code() == Code::Aborted => return Some((Err(status), None)),
                    Err(status) => Outcome::Refused(v1::StreamedStatus {
                        code: status.code().into(),
                        message: status.message().to_owned(),
                        details: status.details().to_vec(),
                    }),
                };
                let answer = v1::SubmitStreamResponse { sequence: message.sequence, outcome: Some(outcome) };
                Some((Ok(answer), Some(inbound)))
            }
        });
        let mut response: Response<Self::SubmitStreamStream> = Response::new(Box::pin(answers));
        if let Some(leader) = &self.script.lock().leader {
            response.metadata_mut().insert("muster-leader", leader.parse().unwrap());
        }
        Ok(response)
    }

    async fn submit_job(
        &self,
        request: Request<v1::SubmitJobRequest>,
    ) -> Result<Response<v1::SubmitJobResponse>, Status> {
        let required = request.metadata().get("muster-required-features");
        let required = required.map_or("", |names| names.to_str().unwrap()).to_owned();
        {
            let mut script = self.script.lock();
            script.required.push(required);
            script.submits.push(request.into_inner());
        }
        self.step().await?;
        let mut response = Response::new(accepted());
        if let Some(leader) = &self.script.lock().leader {
            response.metadata_mut().insert("muster-leader", leader.parse().unwrap());
        }
        Ok(response)
    }

    async fn submit_jobs(
        &self,
        _: Request<v1::SubmitJobsRequest>,
    ) -> Result<Response<v1::SubmitJobsResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_array(
        &self,
        _: Request<v1::GetArrayRequest>,
    ) -> Result<Response<v1::GetArrayResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn list_arrays(
        &self,
        _: Request<v1::ListArraysRequest>,
    ) -> Result<Response<v1::ListArraysResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn plan_job(
        &self,
        _: Request<v1::PlanJobRequest>,
    ) -> Result<Response<v1::PlanJobResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn explain_job(
        &self,
        _: Request<v1::ExplainJobRequest>,
    ) -> Result<Response<v1::ExplainJobResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn commit_checkpoint(
        &self,
        _: Request<v1::CommitCheckpointRequest>,
    ) -> Result<Response<v1::CommitCheckpointResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn cancel_jobs(
        &self,
        _: Request<v1::CancelJobsRequest>,
    ) -> Result<Response<v1::CancelJobsResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn hold_jobs(
        &self,
        _: Request<v1::HoldJobsRequest>,
    ) -> Result<Response<v1::HoldJobsResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn release_jobs(
        &self,
        _: Request<v1::ReleaseJobsRequest>,
    ) -> Result<Response<v1::ReleaseJobsResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn requeue_jobs(
        &self,
        _: Request<v1::RequeueJobsRequest>,
    ) -> Result<Response<v1::RequeueJobsResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn suspend_jobs(
        &self,
        _: Request<v1::SuspendJobsRequest>,
    ) -> Result<Response<v1::SuspendJobsResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn update_job(
        &self,
        _: Request<v1::UpdateJobRequest>,
    ) -> Result<Response<v1::UpdateJobResponse>, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        self.script.lock().gets.push(request.into_inner());
        self.step().await?;
        let job = self.script.lock().jobs.pop_front();
        Ok(Response::new(v1::GetJobResponse { job, freshness: freshness(45) }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        self.script.lock().lists.push(request.into_inner());
        self.step().await?;
        let page = self.script.lock().pages.pop_front();
        page.map(Response::new).ok_or_else(|| Status::internal("the script has no more pages"))
    }

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        let step = {
            let mut script = self.script.lock();
            script.watches.push(request.into_inner());
            script.steps.pop_front()
        };
        match step {
            Some(Step::Stream(messages, stays_open)) => {
                use futures::StreamExt as _;
                let messages = futures::stream::iter(messages).map(|message| message.map(Shared::from));
                Ok(Response::new(if stays_open {
                    Box::pin(messages.chain(futures::stream::pending()))
                } else {
                    Box::pin(messages)
                }))
            }
            Some(Step::Refuse(status)) => Err(status),
            Some(Step::Hang) => std::future::pending().await,
            None | Some(Step::Answer | Step::AnswerAfter(_)) => {
                Ok(Response::new(Box::pin(futures::stream::pending())))
            }
        }
    }

    type ExecWorkerStream = Boxed<v1::ExecWorkerResponse>;

    async fn exec_worker(
        &self,
        _: Request<tonic::Streaming<v1::ExecWorkerRequest>>,
    ) -> Result<Response<Self::ExecWorkerStream>, Status> {
        Err(Status::unimplemented("no command is run here"))
    }

    type ForwardPortStream = Boxed<v1::ForwardPortResponse>;

    async fn forward_port(
        &self,
        _: Request<tonic::Streaming<v1::ForwardPortRequest>>,
    ) -> Result<Response<Self::ForwardPortStream>, Status> {
        Err(Status::unimplemented("no port is reached here"))
    }

    async fn read_logs(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadLogsStream>, Status> {
        self.step().await?;
        let request = request.into_inner();
        let from = usize::try_from(request.from_position).unwrap_or(OUTPUT.len());
        let script = &mut *self.script.lock();
        script.logs.push(request);
        // One line a stream, and a break behind each but the last.
        let rest = OUTPUT.get(from..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        let token = script.names_positions.then_some(v1::FencingToken { generation: 1, log_index: 7 });
        let piece = v1::ReadLogsResponse {
            stream: v1::OutputStream::Stdout.into(),
            data: rest[..length].to_vec(),
            position: if script.names_positions { (from + length) as u64 } else { 0 },
            dropped_bytes: 0,
            token,
        };
        let end = (from + length < OUTPUT.len()).then(|| Err(Status::unavailable("the agent went away")));
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(piece)].into_iter().chain(end)))))
    }
}
