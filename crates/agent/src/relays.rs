//! Commands next to workers, between who asks for one and the executor: a separate connection, which this agent opens.
//!
//! **Invariant:** what a command reads and writes never shares a stream or a queue with heartbeats; the end of the connection is
//! the end of the command.

use crate::executor::{ExecInput, ExecOutput, ExecRequest, Executor};
use crate::limits;
use crate::rules::{WorkerKey, detail};
use muster_client::Endpoints;
use muster_types::terminal::TerminalSize;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::relay_exec_request;
use muster_wire::v1::{ExecEnd, ExecStarted, exec_end, exec_worker_request, exec_worker_response};
use muster_wire::{agent, v1};
use std::sync::Arc;
use tokio::sync::mpsc;
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
    let relay_id = relay.relay_id;
    let connected = relay.endpoints.connect_to(&relay.endpoint).await;
    let channel = match connected.map_err(|error| error.to_string()) {
        Ok((_, channel)) => channel,
        Err(error) => {
            tracing::warn!(relay_id, error, "no connection for a command");
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
            tracing::info!(relay_id, %status, "a command is not wanted any more");
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
    let Some(exec_worker_request::Message::Start(start)) = first.and_then(message_of) else {
        return Err("the first message is no command".to_owned());
    };
    let environment = start.environment.into_iter().collect();
    let terminal = start.terminal.and_then(size_of);
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
    let work = async { tokio::join!(executor.exec(request, inputs, outputs), forward).0 };
    tokio::select! {
        ended = work => ended,
        () = feed => Ok(()),
        // As its end, where the command takes no input and what was sent waits.
        () = messages.closed() => Ok(()),
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
