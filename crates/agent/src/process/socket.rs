//! The agent's own socket: what workers say of themselves, as lines of JSON.
//!
//! A request names its worker, as the worker's environment does, and one thing:
//!
//! ```json
//! {"job_id":"job-7","fencing_token":"1.42","rank":0,"checkpoint_committed":{"step":1200}}
//! {"job_id":"job-7","fencing_token":"1.42","rank":0,"step":{"number":1201,"duration_ms":830}}
//! {"job_id":"job-7","fencing_token":"1.42","rank":0,"ready":{}}
//! ```
//!
//! Every line is answered with `{"ok":true}` or `{"error":"…"}`. A committed checkpoint is answered once it is in the
//! cluster's log, or can never be; a step at once.
//!
//! Who speaks is asked of the kernel (`speaker.rs`): a worker's processes speak for that worker alone.
//!
//! **Invariant:** nothing said here starts, stops or places anything; a note of a worker that does not run here, or
//! of another attempt than the one that does, is refused. Lines are bounded, and so are connections, those of one worker
//! and all together; one on which nothing is sent ends.

use crate::limits;
use crate::process::speaker::{Connections, Speaker};
use crate::rules::{WorkerEvent, WorkerKey};
use muster_types::{FencingToken, JobId};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// An event of a worker on its way to the loop, with where its answer goes.
#[derive(Debug)]
pub(crate) struct WorkerReport {
    pub(crate) key: WorkerKey,
    pub(crate) event: WorkerEvent,
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    job_id: String,
    fencing_token: String,
    rank: u32,
    checkpoint_committed: Option<Checkpoint>,
    step: Option<Step>,
    ready: Option<Ready>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Checkpoint {
    #[serde(default)]
    step: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    number: u64,
    #[serde(default)]
    duration_ms: u64,
}

pub(crate) fn parse(line: &[u8]) -> Result<(WorkerKey, WorkerEvent), String> {
    let request: Request = serde_json::from_slice(line).map_err(|e| format!("not a request: {e}"))?;
    let job: JobId = request.job_id.parse().map_err(|_| "job_id must be the id of a job".to_owned())?;
    let token: FencingToken =
        request.fencing_token.parse().map_err(|_| "fencing_token must be a token".to_owned())?;
    let note = match (request.checkpoint_committed, request.step, request.ready) {
        (Some(checkpoint), None, None) => WorkerEvent::CheckpointCommitted { step: checkpoint.step },
        (None, Some(step), None) => WorkerEvent::Step { number: step.number, duration_ms: step.duration_ms },
        (None, None, Some(Ready {})) => WorkerEvent::Ready,
        _ => return Err("say one thing: checkpoint_committed, step or ready".to_owned()),
    };
    Ok((WorkerKey { job, token, rank: request.rank }, note))
}

/// Listens at the path; what an earlier agent left there is replaced.
///
/// # Errors
/// When the path is too long for a socket, or nothing can be made there.
pub(crate) fn open(path: &Path) -> io::Result<UnixListener> {
    if !crate::process::notice::fits_socket(path) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is longer than a socket's may be"));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    UnixListener::bind(path)
}

/// Serves for ever; what workers report goes to `events`. `tasks` is the directory of workers' directories.
pub(crate) async fn serve<E: From<WorkerReport> + Send + 'static>(
    listener: UnixListener,
    events: mpsc::Sender<E>,
    tasks: PathBuf,
) {
    let mut connections = JoinSet::new();
    let mut counts = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < limits::SOCKET_CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    let speaker = Speaker::of(&stream, &tasks);
                    if !counts.begin(&speaker, limits::SOCKET_CONNECTIONS_OF_ONE_MAX) {
                        tracing::debug!(?speaker, "a worker has too many connections; one more is closed");
                        continue;
                    }
                    let (events, tasks) = (events.clone(), tasks.clone());
                    connections.spawn(async move {
                        serve_one(stream, events, &speaker, &tasks).await;
                        speaker
                    });
                }
                Err(error) => {
                    // Out of file descriptors: they come back with connections that end.
                    tracing::warn!(%error, "a worker's connection could not be taken");
                    tokio::time::sleep(limits::RECONNECT_WAIT.1).await;
                }
            },
            Some(ended) = connections.join_next() => {
                if let Ok(speaker) = ended {
                    counts.end(&speaker);
                }
            }
        }
    }
}

async fn serve_one<E: From<WorkerReport> + Send + 'static>(
    stream: UnixStream,
    events: mpsc::Sender<E>,
    speaker: &Speaker,
    tasks: &Path,
) {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let most = limits::SOCKET_LINE_BYTES_MAX as u64;
        let mut bounded = (&mut reading).take(most);
        let read = bounded.read_until(b'\n', &mut line);
        match tokio::time::timeout(limits::SOCKET_IDLE_MAX, read).await {
            Ok(Ok(0) | Err(_)) | Err(_) => return,
            Ok(Ok(_)) => {}
        }
        let whole = line.last() == Some(&b'\n');
        let outcome = if whole {
            answer(&line, &events, speaker, tasks).await
        } else {
            Err(format!("a line must end, within {most} bytes"))
        };
        let text = match outcome {
            Ok(()) => serde_json::json!({"ok": true}),
            Err(error) => serde_json::json!({"error": error}),
        };
        // Behind a line that is too long nothing can be told apart.
        if writing.write_all(format!("{text}\n").as_bytes()).await.is_err() || !whole {
            return;
        }
    }
}

async fn answer<E: From<WorkerReport>>(
    line: &[u8],
    events: &mpsc::Sender<E>,
    speaker: &Speaker,
    tasks: &Path,
) -> Result<(), String> {
    let (key, event) = parse(line)?;
    if !speaker.speaks_for(key, tasks) {
        return Err(format!(
            "this process is not one of worker {key}, which does not run on this node or is another"
        ));
    }
    let gone = || "the agent is shutting down".to_owned();
    let (answer, answered) = oneshot::channel();
    events.send(E::from(WorkerReport { key, event, answer })).await.map_err(|_| gone())?;
    answered.await.map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_apart_and_bad_ones_said() {
        let who = r#""job_id":"job-1","fencing_token":"1.7","rank":2"#;
        let (key, note) = parse(format!("{{{who},\"step\":{{\"number\":9}}}}\n").as_bytes()).unwrap();
        assert_eq!(key.to_string(), "job-1@1.7/2");
        assert_eq!(note, WorkerEvent::Step { number: 9, duration_ms: 0 });
        let (_, note) = parse(format!("{{{who},\"checkpoint_committed\":{{}}}}").as_bytes()).unwrap();
        assert_eq!(note, WorkerEvent::CheckpointCommitted { step: 0 });
        let (_, note) = parse(format!("{{{who},\"ready\":{{}}}}").as_bytes()).unwrap();
        assert_eq!(note, WorkerEvent::Ready);
        for (bad, said) in [
            (String::new(), "not a request"),
            ("{}".to_owned(), "missing field"),
            (format!("{{{who}}}"), "say one thing"),
            (format!("{{{who},\"step\":{{\"number\":1}},\"checkpoint_committed\":{{}}}}"), "say one thing"),
            (format!("{{{who},\"step\":{{\"number\":-1}}}}"), "not a request"),
            (format!("{{{who},\"place\":1}}"), "unknown field"),
            (r#"{"job_id":"7","fencing_token":"1.7","rank":2,"step":{"number":1}}"#.to_owned(), "job_id"),
            (
                r#"{"job_id":"job-1","fencing_token":"x","rank":2,"step":{"number":1}}"#.to_owned(),
                "fencing_token",
            ),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    /// One connection, answered by a loop that takes everything.
    async fn talk(bytes: Vec<u8>) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (events, mut incoming) = mpsc::channel::<WorkerReport>(4);
        tokio::spawn(async move {
            while let Some(said) = incoming.recv().await {
                let _ = said.answer.send(Ok(()));
            }
        });
        let serving = tokio::spawn(async move {
            serve_one(theirs, events, &Speaker::Operator, Path::new("/nowhere")).await;
        });
        let (mut reading, mut writing) = ours.into_split();
        writing.write_all(&bytes).await.unwrap();
        drop(writing);
        let mut told = String::new();
        reading.read_to_string(&mut told).await.unwrap();
        serving.await.unwrap();
        told
    }

    #[tokio::test]
    async fn every_line_is_answered_and_an_endless_one_ends_the_connection() {
        let good = r#"{"job_id":"job-1","fencing_token":"1.7","rank":2,"step":{"number":1}}"#;
        let told = talk(format!("{good}\n[]\n{good}\n").into_bytes()).await;
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[2]), (3, r#"{"ok":true}"#, r#"{"ok":true}"#), "{told}");
        assert!(lines[1].starts_with(r#"{"error":"#), "{told}");
        let endless = vec![b' '; 2 * limits::SOCKET_LINE_BYTES_MAX];
        assert!(talk(endless).await.contains("a line must end"));
    }
}
