//! What a program that runs under Muster can say and ask of the agent on its host.
//!
//! ```no_run
//! let worker = muster_worker::Worker::from_env();
//! for step in 1..=1_000 {
//!     // … the work …
//!     if let Some(worker) = &worker {
//!         worker.step(step, std::time::Duration::from_millis(830));
//!         if worker.notice().is_some() {
//!             // … save …
//!             worker.checkpoint_committed(step)?;
//!             break;
//!         }
//!     }
//! }
//! # Ok::<(), muster_worker::NoteError>(())
//! ```
//!
//! **Invariant:** nothing here ends or delays the program beyond the times given: a step waits for nobody, a
//! checkpoint for as long as its caller lets it.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a committed checkpoint may take to be known to the cluster: longer than a change of leader.
pub const COMMIT_MAX: Duration = Duration::from_secs(30);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4_096;
/// Longest notice that is read.
const NOTICE_BYTES_MAX: u64 = 64 << 10;
/// What a step may wait for the agent.
const STEP_MAX: Duration = Duration::from_millis(50);
/// Between two attempts to reach an agent that is being restarted.
const AGAIN: Duration = Duration::from_millis(100);

/// Why the cluster does not know of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    /// This agent takes no notes.
    #[error("the agent of this host takes no notes: MUSTER_AGENT_SOCKET is not set")]
    NoSocket,
    /// The agent could not be reached, or did not answer, in time.
    #[error("the agent did not answer within {} ms", .waited.as_millis())]
    Unreachable {
        /// How long it was tried.
        waited: Duration,
        /// The last failure.
        #[source]
        source: io::Error,
    },
    /// The agent or the cluster said no; it will not change its mind.
    #[error("refused: {0}")]
    Refused(String),
}

/// Why something that looked like a worker's environment is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {rule}")]
pub struct EnvironmentError {
    /// The variable.
    pub name: &'static str,
    /// What it needs.
    pub rule: &'static str,
}

/// A request to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// From the notice to SIGKILL.
    pub grace: Duration,
    /// The same as a time of day, milliseconds since the Unix epoch.
    pub deadline_unix_ms: u64,
    /// Why: `preempted`, `drained`, `maintenance`, `node-fault`, `cancelled`, `run-time-limit`, `moved`, `resized`,
    /// `repair`, `peer-failed`, `requeued` or `suspended`; others may come. None where it is not known.
    pub reason: Option<String>,
}

/// This process, as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    job_id: String,
    fencing_token: String,
    rank: u32,
    socket: Option<PathBuf>,
    notice_file: Option<PathBuf>,
    checkpoint_directory: Option<PathBuf>,
    resumes: bool,
}

impl Worker {
    /// The worker that this process belongs to; none outside of Muster, or with an environment that is not whole.
    #[must_use]
    pub fn from_env() -> Option<Worker> {
        Worker::read(|name| std::env::var(name).ok()).ok().flatten()
    }

    /// The same with the reason why an environment is not usable.
    ///
    /// # Errors
    /// When `MUSTER_JOB_ID` is set and what belongs to it is not.
    pub fn from_env_or_reason() -> Result<Option<Worker>, EnvironmentError> {
        Worker::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Worker>, EnvironmentError> {
        let Some(job_id) = variable("MUSTER_JOB_ID") else { return Ok(None) };
        let token = variable("MUSTER_FENCING_TOKEN");
        let rule = "is not set, although MUSTER_JOB_ID is";
        let fencing_token = token.ok_or(EnvironmentError { name: "MUSTER_FENCING_TOKEN", rule })?;
        let rank = variable("MUSTER_RANK").ok_or(EnvironmentError { name: "MUSTER_RANK", rule })?;
        let rule = "must be a whole number";
        let rank = rank.parse().map_err(|_| EnvironmentError { name: "MUSTER_RANK", rule })?;
        let path = |name: &str| variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        Ok(Some(Worker {
            job_id,
            fencing_token,
            rank,
            socket: path("MUSTER_AGENT_SOCKET"),
            notice_file: path("MUSTER_NOTICE_FILE"),
            checkpoint_directory: path("MUSTER_CHECKPOINT_DIR"),
            resumes: variable("MUSTER_RESUME").as_deref() == Some("1"),
        }))
    }

    /// Whether an earlier attempt of the job saved its work.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// Where the job keeps its checkpoints; the same for every attempt.
    #[must_use]
    pub fn checkpoint_directory(&self) -> Option<&std::path::Path> {
        self.checkpoint_directory.as_deref()
    }

    /// Whether this process has to stop, and how long it may take.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        let file = std::fs::File::open(self.notice_file.as_ref()?).ok()?;
        let mut text = String::new();
        file.take(NOTICE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let notice: Value = serde_json::from_str(&text).ok()?;
        Some(Notice {
            grace: Duration::from_millis(notice["grace_ms"].as_u64()?),
            deadline_unix_ms: notice["deadline_unix_ms"].as_u64()?,
            reason: notice["reason"].as_str().map(str::to_owned),
        })
    }

    /// Says that the work up to a step is saved, and waits until the cluster knows: at most [`COMMIT_MAX`].
    ///
    /// # Errors
    /// When it is refused (this attempt is not the current one any more), or nobody answered in time; it may then
    /// still become known.
    pub fn checkpoint_committed(&self, step: u64) -> Result<(), NoteError> {
        self.checkpoint_committed_within(step, COMMIT_MAX)
    }

    /// The same with another patience.
    ///
    /// # Errors
    /// As [`Worker::checkpoint_committed`].
    pub fn checkpoint_committed_within(&self, step: u64, patience: Duration) -> Result<(), NoteError> {
        self.ask_until_answered(&self.request("checkpoint_committed", json!({"step": step})), patience)
    }

    /// Says something until the agent has answered, or there is no patience left.
    fn ask_until_answered(&self, request: &str, patience: Duration) -> Result<(), NoteError> {
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            match self.ask(request, left.max(AGAIN)) {
                Ok(answer) => return verdict(&answer),
                Err(NoteError::Unreachable { source, .. }) => {
                    if left <= AGAIN {
                        return Err(NoteError::Unreachable { waited: begun.elapsed(), source });
                    }
                    std::thread::sleep(AGAIN);
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Says that this worker does what it was started for, and waits until the cluster knows: at most [`COMMIT_MAX`]. A job that has
    /// `readiness` in its file fails to start unless every worker reports that in time; to others it makes no difference.
    ///
    /// # Errors
    /// As [`Worker::checkpoint_committed`].
    pub fn ready(&self) -> Result<(), NoteError> {
        self.ask_until_answered(&self.request("ready", json!({})), COMMIT_MAX)
    }

    /// Says that a step is done. Waits for nobody; whether it was heard does not matter to the work.
    pub fn step(&self, number: u64, duration: Duration) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let request = self.request("step", json!({"number": number, "duration_ms": duration_ms}));
        // A heartbeat that is not heard is followed by another.
        let _ = self.ask(&request, STEP_MAX);
    }

    fn request(&self, what: &str, said: Value) -> String {
        let mut request =
            json!({"job_id": self.job_id, "fencing_token": self.fencing_token, "rank": self.rank});
        request[what] = said;
        format!("{request}\n")
    }

    fn ask(&self, request: &str, patience: Duration) -> Result<Value, NoteError> {
        let socket = self.socket.as_ref().ok_or(NoteError::NoSocket)?;
        let exchange = || -> io::Result<Value> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            stream.write_all(request.as_bytes())?;
            let mut line = String::new();
            BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line)?;
            Ok(serde_json::from_str(&line)?)
        };
        exchange().map_err(|source| NoteError::Unreachable { waited: patience, source })
    }
}

fn verdict(answer: &Value) -> Result<(), NoteError> {
    if answer["ok"] == json!(true) {
        return Ok(());
    }
    let error = answer["error"].as_str().unwrap_or("the agent's answer is not understood");
    Err(NoteError::Refused(error.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn worker(directory: &std::path::Path) -> Worker {
        let (socket, notice) = (directory.join("sock"), directory.join("notice.json"));
        let read = Worker::read(|name| {
            Some(match name {
                "MUSTER_JOB_ID" => "job-7".to_owned(),
                "MUSTER_FENCING_TOKEN" => "1.42".to_owned(),
                "MUSTER_RANK" => "3".to_owned(),
                "MUSTER_AGENT_SOCKET" => socket.display().to_string(),
                "MUSTER_NOTICE_FILE" => notice.display().to_string(),
                "MUSTER_RESUME" => "1".to_owned(),
                _ => return None,
            })
        });
        read.unwrap().unwrap()
    }

    /// Answers one connection with a line; what was asked.
    fn answered(listener: UnixListener, answer: &'static str) -> std::thread::JoinHandle<Value> {
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            serde_json::from_str(&line).unwrap()
        })
    }

    #[test]
    fn a_worker_says_that_it_is_ready() {
        let directory = tempfile::tempdir().unwrap();
        let worker = worker(directory.path());
        let serving = answered(UnixListener::bind(directory.path().join("sock")).unwrap(), "{\"ok\":true}\n");
        worker.ready().unwrap();
        assert_eq!(serving.join().unwrap()["ready"], json!({}));
    }

    #[test]
    fn a_checkpoint_is_said_and_its_answer_taken() {
        let directory = tempfile::tempdir().unwrap();
        let worker = worker(directory.path());
        let serving = answered(UnixListener::bind(directory.path().join("sock")).unwrap(), "{\"ok\":true}\n");
        worker.checkpoint_committed(12).unwrap();
        let asked = serving.join().unwrap();
        let wanted = json!({"job_id": "job-7", "fencing_token": "1.42", "rank": 3, "checkpoint_committed": {"step": 12}});
        assert_eq!(asked, wanted);

        std::fs::remove_file(directory.path().join("sock")).unwrap();
        let refused =
            answered(UnixListener::bind(directory.path().join("sock")).unwrap(), "{\"error\":\"old\"}\n");
        let error = worker.checkpoint_committed(13).unwrap_err();
        assert!(matches!(&error, NoteError::Refused(why) if why == "old"), "{error}");
        refused.join().unwrap();
    }

    #[test]
    fn an_agent_that_is_away_is_waited_for_and_no_longer_than_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let worker = worker(directory.path());
        let error = worker.checkpoint_committed_within(1, Duration::from_millis(150)).unwrap_err();
        assert!(matches!(error, NoteError::Unreachable { .. }), "{error}");
        // A step never fails.
        worker.step(1, Duration::from_millis(5));
        let without = Worker { socket: None, ..worker };
        assert!(matches!(without.checkpoint_committed(1), Err(NoteError::NoSocket)));
    }

    #[test]
    fn a_notice_is_there_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let worker = worker(directory.path());
        assert!(worker.resumes());
        assert_eq!(worker.notice(), None);
        let file = directory.path().join("notice.json");
        std::fs::write(&file, "half").unwrap();
        assert_eq!(worker.notice(), None);
        std::fs::write(&file, r#"{"kind":"stop","grace_ms":5000,"deadline_unix_ms":7}"#).unwrap();
        let notice = Notice { grace: Duration::from_secs(5), deadline_unix_ms: 7, reason: None };
        assert_eq!(worker.notice(), Some(notice.clone()), "an agent older than reasons");
        let text = r#"{"kind":"stop","reason":"preempted","grace_ms":5000,"deadline_unix_ms":7}"#;
        std::fs::write(&file, text).unwrap();
        assert_eq!(worker.notice(), Some(Notice { reason: Some("preempted".to_owned()), ..notice }));
    }

    #[test]
    fn an_environment_is_whole_or_named() {
        assert_eq!(Worker::read(|_| None), Ok(None));
        let half = Worker::read(|name| (name == "MUSTER_JOB_ID").then(|| "job-7".to_owned()));
        assert_eq!(half.unwrap_err().name, "MUSTER_FENCING_TOKEN");
        let bad = Worker::read(|name| Some(if name == "MUSTER_RANK" { "x" } else { "1" }.to_owned()));
        assert_eq!(bad.unwrap_err().to_string(), "MUSTER_RANK must be a whole number");
    }
}
