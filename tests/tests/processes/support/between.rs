//! Something between one agent and the cluster: it passes a session on, remembers what was ordered, and can
//! say to the agent what a replica that is behind could say.

use muster_wire::agent;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::node_service_server::{NodeService, NodeServiceServer};
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

type ToAgent = mpsc::Sender<Result<agent::SessionResponse, Status>>;

#[derive(Default)]
struct Transcript {
    /// Of the session that stands.
    to_agent: Option<ToAgent>,
    starts: Vec<agent::StartOrder>,
    /// Answers of the leader to `ConfirmStart`.
    confirmed: Vec<agent::StartConfirmed>,
    reported: Vec<agent::WorkerState>,
}

struct Shared {
    onward: String,
    heard: Mutex<Transcript>,
}

impl Shared {
    fn heard(&self) -> parking_lot::MutexGuard<'_, Transcript> {
        self.heard.lock()
    }
}

/// One such thing; its server ends with it.
pub struct Between {
    shared: Arc<Shared>,
    endpoint: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Between {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Between {
    /// Before a replica.
    pub async fn start(onward: &str) -> Between {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let endpoint = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let shared = Arc::new(Shared { onward: onward.to_owned(), heard: Mutex::default() });
        let service = NodeServiceServer::new(Service(Arc::clone(&shared)));
        let server = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            // It ends with the test.
            let _ =
                tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Between { shared, endpoint, server }
    }

    /// Where the agent connects.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The start orders that the leader has sent so far.
    pub fn starts(&self) -> Vec<agent::StartOrder> {
        self.shared.heard().starts.clone()
    }

    /// Says something to the agent that the leader has not said, and forgets what was reported before.
    pub fn inject(&self, message: Response) {
        let mut heard = self.shared.heard();
        heard.reported.clear();
        let to_agent = heard.to_agent.as_ref().expect("a session stands");
        to_agent.try_send(Ok(agent::SessionResponse { message: Some(message) })).expect("the agent listens");
    }

    /// What came of an order: the leader's answers when the agent asked, none of them when it said by itself
    /// what it knows of it; nothing while neither has happened.
    pub fn verdict_on(&self, order: &agent::StartOrder) -> Option<Vec<bool>> {
        let heard = self.shared.heard();
        let asked = heard.confirmed.iter().filter(|c| c.job_id == order.job_id && c.token == order.token);
        let asked: Vec<bool> = asked.map(|confirmed| confirmed.current).collect();
        let said = heard.reported.iter().any(|w| w.job_id == order.job_id && w.token == order.token);
        let own = heard.starts.contains(order);
        match (own, said) {
            // Its first run was confirmed, of course.
            (true, true) => Some(Vec::new()),
            (false, true) => Some(asked),
            (false, false) if !asked.is_empty() => Some(asked),
            _ => None,
        }
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl NodeService for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<agent::SessionResponse, Status>> + Send>>;

    async fn session(
        &self,
        request: tonic::Request<Streaming<agent::SessionRequest>>,
    ) -> Result<tonic::Response<Self::SessionStream>, Status> {
        let shared = Arc::clone(&self.0);
        let from_agent = request.into_inner().take_while(Result::is_ok).filter_map(Result::ok).map({
            let shared = Arc::clone(&shared);
            move |message: agent::SessionRequest| {
                if let Some(Request::Report(report)) = &message.message {
                    shared.heard().reported.extend(report.workers.iter().cloned());
                }
                message
            }
        });
        let mut nodes = NodeServiceClient::connect(shared.onward.clone())
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let mut answers = nodes.session(from_agent).await?.into_inner();
        let (to_agent, stream) = mpsc::channel(256);
        shared.heard().to_agent = Some(to_agent.clone());
        tokio::spawn(async move {
            while let Some(answer) = answers.next().await {
                if let Ok(agent::SessionResponse { message: Some(message) }) = &answer {
                    match message {
                        Response::Start(start) => shared.heard().starts.push(start.clone()),
                        Response::StartConfirmed(word) => shared.heard().confirmed.push(word.clone()),
                        _ => {}
                    }
                }
                if to_agent.send(answer).await.is_err() {
                    return;
                }
            }
        });
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type RelayExecStream = ReceiverStream<Result<agent::RelayExecResponse, Status>>;

    async fn relay_exec(
        &self,
        _request: tonic::Request<Streaming<agent::RelayExecRequest>>,
    ) -> Result<tonic::Response<Self::RelayExecStream>, Status> {
        Err(Status::unimplemented("no command is run here"))
    }

    async fn upload_logs(
        &self,
        _request: tonic::Request<Streaming<agent::UploadLogsRequest>>,
    ) -> Result<tonic::Response<agent::UploadLogsResponse>, Status> {
        Err(Status::unimplemented("no output is read here"))
    }
}
