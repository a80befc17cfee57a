//! Commands next to workers and connections to their ports, between who asks for one and the executor: a separate connection,
//! which this agent opens.
//!
//! **Invariant:** what a command reads and writes never shares a stream or a queue with heartbeats; the end of the connection is
//! the end of the command.

use crate::executor::{ExecInput, ExecOutput, ExecRequest, Executor};
use crate::limits;
use crate::rules::{WorkerKey, detail};
use muster_client::Endpoints;
use muster_client::forward::{Arrival, Connection, Connections};
use muster_types::terminal::TerminalSize;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::relay_exec_request;
use muster_wire::v1::{ExecEnd, ExecStarted, exec_end, exec_worker_request, exec_worker_response};
use muster_wire::v1::{forward_port_request, forward_port_response};
use muster_wire::{agent, v1};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// One order to run a command.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The replica that the order came through.
    pub(crate) endpoint: String,
    pub(crate) endpoints: Endpoints,
    pub(crate) node_name: String,
    pub(crate) relay_id: u64,
    pub(crate) key: WorkerKey,
    /// Set when it will not be done; who asks is told.
    pub(crate) refused: Option<String>,
}

/// Runs the command until it ends, or nobody waits for it any more.
pub(crate) async fn run<E: Executor>(relay: Relay, executor: Arc<E>) {
    let (relay_id, key, node) = (relay.relay_id, relay.key, relay.node_name.clone());
    let connected = relay.endpoints.connect_to(&relay.endpoint).await;
    let channel = match connected.map_err(|error| error.to_string()) {
        Ok((_, channel)) => channel,
        Err(error) => {
            tracing::warn!(job = %key.job, node, worker = %key, relay_id, error, "no connection for a command");
            return;
        }
    };
    let (messages, stream) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let base = agent::RelayExecRequest { relay_id, node_name: relay.node_name, message: None };
    // The queue is empty, so there is a place for it.
    if messages.send(base.clone()).await.is_err() {
        return;
    }
    let mut client = NodeServiceClient::new(channel);
    let mut requests = match client.relay_exec(ReceiverStream::new(stream)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            tracing::info!(job = %key.job, node, worker = %key, relay_id, %status, "a command is not wanted any more");
            return;
        }
    };
    let ended = match relay.refused {
        Some(reason) => Err(reason),
        None => serve(relay.key, &mut requests, &base, &messages, executor).await,
    };
    if let Err(reason) = ended {
        let message = Some(relay_exec_request::Message::Refused(detail(&reason)));
        let _ = messages.send(agent::RelayExecRequest { message, ..base }).await;
    }
    drop(messages);
    // The connection ends when the last word has arrived, and not before.
    let over = async { while let Ok(Some(_)) = requests.message().await {} };
    let _ = tokio::time::timeout(limits::EXEC_REQUEST_MAX, over).await;
}

/// From the command's request to its end; the reason, where it could not be run or its end is not known.
async fn serve<E: Executor>(
    key: WorkerKey,
    requests: &mut Streaming<agent::RelayExecResponse>,
    base: &agent::RelayExecRequest,
    messages: &mpsc::Sender<agent::RelayExecRequest>,
    executor: Arc<E>,
) -> Result<(), String> {
    let first = tokio::time::timeout(limits::EXEC_REQUEST_MAX, requests.message()).await;
    let first = first.map_err(|_| "no command came")?.map_err(|status| status.to_string())?;
    let forward = first.as_ref().and_then(|first| first.forward.as_ref()?.message.as_ref());
    if let Some(forward_port_request::Message::Start(start)) = forward {
        let port = u16::try_from(start.port).map_err(|_| "a port that is none")?;
        return connect_all((key, port), requests, base, messages, executor).await;
    }
    let Some(exec_worker_request::Message::Start(start)) = first.and_then(message_of) else {
        return Err("the first message is no command".to_owned());
    };
    let environment = start.environment.into_iter().collect();
    let terminal = start.terminal.and_then(size_of);
    let attached = match (start.attach, terminal) {
        (true, None) => return Err("who attaches has no terminal".to_owned()),
        (is_attached, size) => size.filter(|_| is_attached),
    };
    let request = ExecRequest { key, command: start.command, environment, terminal };
    let (to_command, inputs) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let (outputs, mut from_command) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let feed = async {
        let mut to_command = Some(to_command);
        loop {
            let input = match requests.message().await {
                Ok(Some(request)) => message_of(request).and_then(input),
                // Nobody waits for the command any more: with this it ends.
                Ok(None) | Err(_) => return,
            };
            let Some(input) = input else { continue };
            let is_taken = match &to_command {
                Some(to) => to.send(input).await.is_ok(),
                None => true,
            };
            if !is_taken {
                // It takes no more and is about to say how it ended.
                to_command = None;
            }
        }
    };
    let forward = async {
        while let Some(output) = from_command.recv().await {
            let output = Some(relay_exec_request::Message::Output(response(output)));
            if messages.send(agent::RelayExecRequest { message: output, ..base.clone() }).await.is_err() {
                return;
            }
        }
    };
    let run = async {
        match attached {
            Some(size) => executor.attach(key, size, inputs, outputs).await,
            None => executor.exec(request, inputs, outputs).await,
        }
    };
    let work = async { tokio::join!(run, forward).0 };
    tokio::select! {
        ended = work => ended,
        () = feed => Ok(()),
        // As its end, where the command takes no input and what was sent waits.
        () = messages.closed() => Ok(()),
    }
}

/// Makes the connections to a port that the caller opens, until it has gone or the worker has ended.
async fn connect_all<E: Executor>(
    (key, port): (WorkerKey, u16),
    requests: &mut Streaming<agent::RelayExecResponse>,
    base: &agent::RelayExecRequest,
    messages: &mpsc::Sender<agent::RelayExecRequest>,
    executor: Arc<E>,
) -> Result<(), String> {
    executor.listens(key, port).await?;
    let told = |message| {
        let forwarded = v1::ForwardPortResponse { message: Some(message) };
        agent::RelayExecRequest {
            message: Some(relay_exec_request::Message::Forwarded(forwarded)),
            ..base.clone()
        }
    };
    let started = forward_port_response::Message::Started(v1::ForwardPortStarted { token: None });
    if messages.send(told(started)).await.is_err() {
        return Ok(());
    }
    let (to_caller, mut pieces) = mpsc::channel(limits::EXEC_PIECES_QUEUED_MAX);
    let connections = Connections::of_agent(to_caller);
    let connecting = Arc::new(Semaphore::new(limits::PORT_CONNECTS_MAX));
    // They end with this function.
    let mut tasks = JoinSet::new();
    let take = async {
        loop {
            let piece = match requests.message().await {
                Ok(Some(response)) => match response.forward.and_then(|forward| forward.message) {
                    Some(forward_port_request::Message::Piece(piece)) => piece,
                    Some(forward_port_request::Message::Start(_)) | None => return Ok(()),
                },
                // The caller has gone.
                Ok(None) | Err(_) => return Ok(()),
            };
            match connections.take(piece) {
                Arrival::Done => {}
                Arrival::Opened(connection) => {
                    while tasks.try_join_next().is_some() {}
                    let (executor, connecting) = (Arc::clone(&executor), Arc::clone(&connecting));
                    tasks.spawn(connect(connection, (key, port), executor, connecting));
                }
                // A worker that is slow to read keeps places that its caller has forgotten: the stream is not to blame.
                Arrival::Full(connection) => connections.refuse(connection).await,
                Arrival::Refused(why) => return Err(why),
            }
        }
    };
    let hand_on = async {
        while let Some(piece) = pieces.recv().await {
            if messages.send(told(forward_port_response::Message::Piece(piece))).await.is_err() {
                return;
            }
        }
    };
    let over = async {
        executor.ended(key).await;
        // The kernel has closed its side; what it wrote before that may still be on its way.
        tokio::time::sleep(limits::OUTPUT_DRAIN_MAX).await;
    };
    tokio::select! {
        ended = take => ended,
        () = hand_on => Ok(()),
        () = over => Err("the worker has ended, and the connections with it".to_owned()),
        () = messages.closed() => Ok(()),
    }
}

/// Makes one connection, and carries what goes over it.
async fn connect<E: Executor>(
    connection: Connection,
    (key, port): (WorkerKey, u16),
    executor: Arc<E>,
    connecting: Arc<Semaphore>,
) {
    let permit = connecting.acquire().await;
    let made = executor.connect(key, port).await;
    drop(permit);
    match made {
        Ok(stream) => {
            // The caller is told by the connection why it ended.
            let _ = connection.carry_bytes(stream).await;
        }
        Err(reason) => connection.close(&detail(&reason)).await,
    }
}

fn message_of(response: agent::RelayExecResponse) -> Option<exec_worker_request::Message> {
    response.request?.message
}

fn input(message: exec_worker_request::Message) -> Option<ExecInput> {
    use exec_worker_request::Message;
    match message {
        Message::Input(bytes) if bytes.len() > limits::EXEC_FRAME_BYTES_MAX => None,
        Message::Input(bytes) => Some(ExecInput::Data(bytes)),
        Message::InputEnd(_) => Some(ExecInput::End),
        Message::Signal(number) => i32::try_from(number).ok().map(ExecInput::Signal),
        Message::Resize(size) => size_of(size).map(ExecInput::Resize),
        Message::Start(_) => None,
    }
}

fn size_of(size: v1::ExecTerminal) -> Option<TerminalSize> {
    TerminalSize::new(size.rows, size.columns)
}

fn response(output: ExecOutput) -> v1::ExecWorkerResponse {
    use exec_worker_response::Message;
    let end = |end| Message::End(ExecEnd { end: Some(end) });
    let message = match output {
        ExecOutput::Started => Message::Started(ExecStarted { token: None }),
        ExecOutput::Stdout(bytes) => Message::Stdout(bytes),
        ExecOutput::Stderr(bytes) => Message::Stderr(bytes),
        ExecOutput::Exited(code) => end(exec_end::End::ExitCode(code)),
        ExecOutput::Signaled(number) => end(exec_end::End::Signal(number)),
    };
    v1::ExecWorkerResponse { message: Some(message) }
}
