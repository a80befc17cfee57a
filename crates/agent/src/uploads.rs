//! Sending a worker's output where a `read_logs` order wants it: a separate connection.
//!
//! **Invariant:** output never shares a stream or a queue with heartbeats; at most a few chunks are in
//! memory, whatever the worker writes and however slowly it is taken.

use crate::executor::{Executor, ExecutorError, OutputChunk, OutputRequest};
use crate::limits;
use crate::rules::{OutputStream, detail};
use muster_client::Endpoints;
use muster_wire::agent;
use muster_wire::agent::node_service_client::NodeServiceClient;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// One order to send output.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The replica that the order came through.
    pub(crate) endpoint: String,
    pub(crate) endpoints: Endpoints,
    pub(crate) node_name: String,
    pub(crate) read_id: u64,
    pub(crate) request: OutputRequest,
    /// Set when it will not be done; the reader is told.
    pub(crate) refused: Option<String>,
}

/// Sends until the output ends or nobody takes it.
pub(crate) async fn run<E: Executor>(upload: Upload, executor: Arc<E>) {
    let (read_id, key, node) = (upload.read_id, upload.request.key, upload.node_name.clone());
    let connected = upload.endpoints.connect_to(&upload.endpoint).await;
    let channel = match connected.map_err(|error| error.to_string()) {
        Ok((_, channel)) => channel,
        Err(error) => {
            tracing::warn!(job = %key.job, node, worker = %key, read_id, error, "no connection for output");
            return;
        }
    };
    let (messages, stream) = mpsc::channel(limits::LOG_CHUNKS_QUEUED_MAX);
    let mut client = NodeServiceClient::new(channel);
    tokio::select! {
        // The call ends first when nobody reads any more: then reading the files stops with it.
        result = client.upload_logs(ReceiverStream::new(stream)) => {
            if let Err(status) = result {
                tracing::info!(job = %key.job, node, worker = %key, read_id, %status, "output is not wanted any more");
            }
        }
        () = feed(upload, executor, messages) => {}
    }
}

async fn feed<E: Executor>(
    upload: Upload,
    executor: Arc<E>,
    messages: mpsc::Sender<agent::UploadLogsRequest>,
) {
    let base = agent::UploadLogsRequest {
        read_id: upload.read_id,
        node_name: upload.node_name,
        ..Default::default()
    };
    let failed = match upload.refused {
        Some(reason) => Some((agent::OutputFailure::Unreadable, reason)),
        None => {
            // An opening without output: the reader learns that the order has arrived, however long the worker is silent.
            if messages.send(base.clone()).await.is_err() {
                return;
            }
            let (sink, mut chunks) = mpsc::channel::<OutputChunk>(1);
            let forward = async {
                while let Some(chunk) = chunks.recv().await {
                    let message = agent::UploadLogsRequest {
                        stream: chunk.stream.map(OutputStream::name).unwrap_or_default().to_owned(),
                        data: chunk.data,
                        position: chunk.position,
                        dropped_bytes: chunk.dropped_bytes,
                        ..base.clone()
                    };
                    if messages.send(message).await.is_err() {
                        return;
                    }
                }
            };
            let read = async {
                let sink = sink;
                executor.read_output(upload.request, sink).await
            };
            tokio::join!(read, forward).0.err().map(|error| {
                let failure = match error {
                    ExecutorError::Unknown(_) => agent::OutputFailure::NotFound,
                    ExecutorError::List(_) | ExecutorError::Output(_) => agent::OutputFailure::Unreadable,
                };
                let source = std::error::Error::source(&error).map(|s| format!(": {s}"));
                (failure, format!("{error}{}", source.unwrap_or_default()))
            })
        }
    };
    // Always a last message, so that an empty output is told from a lost order.
    let last = failed.map_or_else(
        || base.clone(),
        |(failure, text)| agent::UploadLogsRequest {
            failure: failure.into(),
            error: detail(&text),
            ..base.clone()
        },
    );
    if messages.send(last).await.is_ok() {
        drop(messages);
        // The call's answer ends the select above.
        std::future::pending::<()>().await;
    }
}
