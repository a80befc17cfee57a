//! Sending a worker's output where a `read_logs` order wants it: a connection of its own.
//!
//! **Invariant:** output never shares a stream or a queue with heartbeats; at most a few chunks are in
//! memory, whatever the worker writes and however slowly it is taken.

use crate::executor::{Executor, OutputChunk, OutputRequest};
use crate::limits;
use crate::order::{self, OrderError, WorkerKey, detail};
use crate::transcript::OutputStream;
use muster_client::Endpoints;
use muster_types::JobId;
use muster_wire::v1;
use muster_wire::v1::node_service_client::NodeServiceClient;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::Id;
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

/// The outputs that are being sent, and whose they are. One job has a part of the places, so that its readers leave some to
/// those of other jobs.
#[derive(Debug, Default)]
pub(crate) struct Sending(BTreeMap<Id, JobId>);

impl Sending {
    /// Whether another output of a job is sent: nothing, or the reason to tell its reader. None where not even that is
    /// sent, because too many are refused already.
    pub(crate) fn admit(&self, job: JobId) -> Option<Option<String>> {
        let (all, of_job) = (self.0.len(), self.0.values().filter(|other| **other == job).count());
        if all >= 2 * limits::LOG_UPLOADS_MAX {
            return None;
        }
        Some(if all >= limits::LOG_UPLOADS_MAX {
            Some(format!("this node already sends {} outputs", limits::LOG_UPLOADS_MAX))
        } else if of_job >= limits::LOG_UPLOADS_OF_ONE_MAX {
            Some(format!("this node already sends {} outputs of this job", limits::LOG_UPLOADS_OF_ONE_MAX))
        } else {
            None
        })
    }

    /// A task sends an output of this job.
    pub(crate) fn begin(&mut self, task: Id, job: JobId) {
        self.0.insert(task, job);
    }

    /// That task has ended, in whatever way.
    pub(crate) fn end(&mut self, task: Id) {
        self.0.remove(&task);
    }
}

/// What is asked for.
pub(crate) fn request(read: v1::ReadLogsOrder) -> Result<OutputRequest, OrderError> {
    let streams = match read.stream.as_str() {
        "" | "both" => vec![OutputStream::Stdout, OutputStream::Stderr],
        "stdout" => vec![OutputStream::Stdout],
        "stderr" => vec![OutputStream::Stderr],
        _ => {
            let rule = "must be stdout, stderr or empty".to_owned();
            return Err(OrderError { field: "stream", rule });
        }
    };
    let (job, token) = (order::job(&read.job_id)?, order::token(read.token)?);
    let key = WorkerKey { job, token, rank: read.rank };
    let v1::ReadLogsOrder { follow, tail_bytes, from_position, .. } = read;
    Ok(OutputRequest { key, streams, follow, tail_bytes, from_position })
}

/// Sends until the output ends or nobody takes it.
pub(crate) async fn run<E: Executor>(upload: Upload, executor: Arc<E>) {
    let read_id = upload.read_id;
    let connected = upload.endpoints.connect_to(&upload.endpoint).await;
    let channel = match connected.map_err(|error| error.to_string()) {
        Ok((_, channel)) => channel,
        Err(error) => {
            tracing::warn!(read_id, error, "no connection for output");
            return;
        }
    };
    let (messages, stream) = mpsc::channel(limits::LOG_CHUNKS_QUEUED_MAX);
    let mut client = NodeServiceClient::new(channel);
    tokio::select! {
        // The call ends first when nobody reads any more: then reading the files stops with it.
        result = client.upload_logs(ReceiverStream::new(stream)) => {
            if let Err(status) = result {
                tracing::info!(read_id, %status, "output is not wanted any more");
            }
        }
        () = feed(upload, executor, messages) => {}
    }
}

async fn feed<E: Executor>(upload: Upload, executor: Arc<E>, messages: mpsc::Sender<v1::UploadLogsRequest>) {
    let base =
        v1::UploadLogsRequest { read_id: upload.read_id, node_name: upload.node_name, ..Default::default() };
    let error = match upload.refused {
        Some(reason) => Some(reason),
        None => {
            // An opening without output: the reader learns that the order has arrived, however long the worker is silent.
            if messages.send(base.clone()).await.is_err() {
                return;
            }
            let (sink, mut chunks) = mpsc::channel::<OutputChunk>(1);
            let forward = async {
                while let Some(chunk) = chunks.recv().await {
                    let message = v1::UploadLogsRequest {
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
                let source = std::error::Error::source(&error).map(|s| format!(": {s}"));
                format!("{error}{}", source.unwrap_or_default())
            })
        }
    };
    // Always a last message, so that an empty output is told from a lost order.
    let last = v1::UploadLogsRequest { error: error.map(|e| detail(&e)).unwrap_or_default(), ..base };
    if messages.send(last).await.is_ok() {
        drop(messages);
        // The call's answer ends the select above.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_of_one_job_leave_places_for_others() {
        let (mine, others) = (JobId(1_024), JobId(2_048));
        let mut sending = Sending::default();
        // As the agent does: what is admitted, refused or not, gets a task.
        let begin = |sending: &mut Sending, job| {
            let admitted = sending.admit(job);
            if admitted.is_some() {
                sending.begin(tokio::spawn(async {}).id(), job);
            }
            admitted
        };
        for _ in 0..limits::LOG_UPLOADS_OF_ONE_MAX {
            assert_eq!(begin(&mut sending, mine), Some(None));
        }
        assert!(begin(&mut sending, mine).unwrap().unwrap().contains("of this job"));
        assert_eq!(begin(&mut sending, others), Some(None));
        while sending.0.len() < limits::LOG_UPLOADS_MAX {
            begin(&mut sending, mine).unwrap();
        }
        assert!(begin(&mut sending, others).unwrap().unwrap().contains("already sends"));
        while begin(&mut sending, mine).is_some() {}
        assert_eq!(sending.0.len(), 2 * limits::LOG_UPLOADS_MAX);
        let tasks: Vec<Id> = sending.0.keys().copied().collect();
        tasks.into_iter().for_each(|task| sending.end(task));
        assert_eq!(begin(&mut sending, mine), Some(None), "every place is free again");
    }

    #[tokio::test]
    async fn a_task_that_panics_gives_its_place_back() {
        let mut uploads = tokio::task::JoinSet::new();
        let mut sending = Sending::default();
        sending.begin(uploads.spawn(async { panic!("on purpose") }).id(), JobId(1_024));
        let ended: Result<(Id, ()), _> = uploads.join_next_with_id().await.unwrap();
        sending.end(ended.map_or_else(|error| error.id(), |(task, ())| task));
        assert!(sending.0.is_empty());
    }
}
