//! Slurm's own commands: the only way in which it is spoken to.
//!
//! A stopped or overloaded controller makes them wait for many seconds and then fail with a text; every
//! error has the same exit code. So each call has a deadline, few run at once, and what went wrong is
//! told from the text.
//!
//! **Invariant:** no call outlives its deadline; what a call prints is bounded; the agent's own `SLURM_*`
//! and `SBATCH_*` variables change no call.

use super::config::SlurmConfig;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

/// Bytes of one answer: 100,000 nodes print less.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of what a failed call complains.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The controller cannot be reached, or did not answer in time.
    #[error("Slurm cannot be reached: {0}")]
    Unreachable(String),
    /// It takes no more for now.
    #[error("Slurm takes no more for now: {0}")]
    Busy(String),
    /// It understood and declined.
    #[error("Slurm refuses: {0}")]
    Refused(String),
    /// The command itself cannot be run.
    #[error("run {program}: {why}")]
    Program { program: String, why: String },
}

impl CallError {
    /// Whether what was asked for may have happened all the same.
    pub(super) fn is_uncertain(&self) -> bool {
        matches!(self, CallError::Unreachable(_))
    }
}

/// What a failed command's complaint means.
fn classify(complaint: &str) -> CallError {
    const UNREACHABLE: [&str; 11] = [
        "Unable to contact slurm controller",
        "Socket timed out",
        "Connection refused",
        "Connection timed out",
        "Communication connection failure",
        "Zero Bytes were transmitted",
        "Transport endpoint",
        "Unexpected message received",
        "standby mode",
        "authentication error",
        "Munge encode failed",
    ];
    const BUSY: [&str; 5] = [
        "temporarily unable to accept job",
        "Resource temporarily unavailable",
        "job submit limit",
        "job limit reached",
        "MaxJobCount",
    ];
    let line = complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    let text = line.trim().to_owned();
    let says = |list: &[&str]| list.iter().any(|part| complaint.contains(part));
    if says(&UNREACHABLE) {
        CallError::Unreachable(text)
    } else if says(&BUSY) {
        CallError::Busy(text)
    } else {
        CallError::Refused(text)
    }
}

/// Runs the commands.
#[derive(Debug)]
pub(super) struct Cli {
    directory: Option<PathBuf>,
    environment: BTreeMap<String, String>,
    timeout: Duration,
    permits: Semaphore,
    /// When the next submission may go, and the time between two.
    next_submission: Mutex<Instant>,
    submission_gap: Duration,
}

impl Cli {
    pub(super) fn new(config: &SlurmConfig) -> Cli {
        let inherited = std::env::vars().filter(|(name, _)| {
            let ours = ["SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SCONTROL_"];
            !ours.iter().any(|prefix| name.starts_with(prefix))
        });
        let mut environment: BTreeMap<String, String> = inherited.collect();
        environment.insert("LC_ALL".to_owned(), "C".to_owned());
        environment.extend(config.environment.clone());
        Cli {
            directory: config.bin_directory.clone(),
            environment,
            timeout: Duration::from_millis(config.call_timeout_ms),
            permits: Semaphore::new(config.calls_at_once),
            next_submission: Mutex::new(Instant::now()),
            submission_gap: Duration::from_secs(1) / config.submissions_per_second,
        }
    }

    /// What the command prints when it succeeds.
    ///
    /// # Errors
    /// When it does not, in time.
    pub(super) async fn call(&self, program: &str, arguments: &[&str]) -> Result<String, CallError> {
        self.call_with(program, arguments, "").await
    }

    /// `sbatch` with a script; held to the rate of submissions.
    ///
    /// # Errors
    /// When it fails; an uncertain failure may have submitted.
    pub(super) async fn submit(&self, arguments: &[String], script: &str) -> Result<u32, CallError> {
        let turn = {
            let mut next = self.next_submission.lock().await;
            let turn = (*next).max(Instant::now());
            *next = turn + self.submission_gap;
            turn
        };
        tokio::time::sleep_until(turn).await;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = self.call_with("sbatch", &arguments, script).await?;
        // Accepted, but as what? As after an answer that was lost.
        let unreadable =
            || CallError::Unreachable(format!("sbatch printed no job id but {:?}", short(&printed)));
        super::parse::submitted(&printed).ok_or_else(unreadable)
    }

    async fn call_with(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, CallError> {
        let _permit = self.permits.acquire().await.map_err(|_| CallError::Program {
            program: program.to_owned(),
            why: "the agent is shutting down".to_owned(),
        })?;
        let seconds = self.timeout.as_secs();
        let late = || CallError::Unreachable(format!("{program} gave no answer within {seconds} s"));
        tokio::time::timeout(self.timeout, self.run(program, arguments, input)).await.map_err(|_| late())?
    }

    async fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, CallError> {
        let failed = |error: std::io::Error| CallError::Program {
            program: program.to_owned(),
            why: error.to_string(),
        };
        let path = self
            .directory
            .as_ref()
            .map_or_else(|| PathBuf::from(program), |directory| directory.join(program));
        let mut child = Command::new(path)
            .args(arguments)
            .env_clear()
            .envs(&self.environment)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let (out, complaint) = (child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command that does not read its input has its reasons; its exit code tells.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let ((), printed, complaint) =
            tokio::join!(feed, bounded(out, OUTPUT_BYTES_MAX), bounded(complaint, COMPLAINT_BYTES_MAX));
        let status = child.wait().await.map_err(failed)?;
        if status.success() {
            return printed.map_err(failed);
        }
        Err(classify(&complaint.unwrap_or_default()))
    }
}

/// What is printed, up to the limit; the rest is read and dropped, so that nobody blocks on it.
async fn bounded(from: Option<impl AsyncRead + Unpin>, limit: u64) -> std::io::Result<String> {
    let Some(mut from) = from else { return Ok(String::new()) };
    let mut bytes = Vec::new();
    (&mut from).take(limit).read_to_end(&mut bytes).await?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn complaints_are_told_apart() {
        let socket = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation";
        assert!(classify(socket).is_uncertain());
        assert!(
            classify("squeue: error: slurm_load_jobs: Unable to contact slurm controller (connect failure)")
                .is_uncertain()
        );
        let busy = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying";
        assert!(matches!(classify(busy), CallError::Busy(_)));
        let refused = "sbatch: error: invalid partition specified: nope\n\
            sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n";
        let CallError::Refused(text) = classify(refused) else { panic!("a refusal") };
        assert!(text.contains("Invalid account"), "{text}");
        assert_eq!(classify(""), CallError::Refused("no reason given".to_owned()));
    }

    /// A directory with a command that is this script.
    fn cli(name: &str, script: &str, timeout_ms: u64) -> (tempfile::TempDir, Cli) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = SlurmConfig {
            bin_directory: Some(directory.path().to_owned()),
            call_timeout_ms: timeout_ms,
            ..super::super::config::tests::good()
        };
        (directory, Cli::new(&config))
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_given_up_and_ended() {
        let (directory, cli) = cli("squeue", "echo $$ > \"$0.pid\"; exec sleep 600", 1_000);
        let error = cli.call("squeue", &[]).await.unwrap_err();
        assert!(error.is_uncertain(), "{error}");
        let pid = std::fs::read_to_string(directory.path().join("squeue.pid")).unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        let started = Instant::now();
        while !gone() {
            assert!(started.elapsed() < Duration::from_secs(60), "the command is still there");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_printed_is_bounded_and_what_is_missing_is_said() {
        let (_directory, cli) = cli("sbatch", "cat > /dev/null; yes | head -c 100000 >&2; exit 1", 30_000);
        let error = cli.submit(&[], &"x".repeat(1 << 20)).await.unwrap_err();
        let CallError::Refused(text) = error else { panic!("{error}") };
        assert_eq!(text, "y");
        let missing = cli.call("scontrol", &[]).await.unwrap_err();
        assert!(matches!(missing, CallError::Program { .. }), "{missing}");
    }

    #[tokio::test]
    async fn an_answer_without_an_id_is_an_answer_lost() {
        let (_directory, cli) = cli("sbatch", "echo what", 30_000);
        assert!(cli.submit(&[], "").await.unwrap_err().is_uncertain());
    }
}
