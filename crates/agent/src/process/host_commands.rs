//! Commands that the operator of a host has run around its workers: the prolog before one is launched, the epilog after nothing of
//! it is left. Those of jobs run once for each placement of a gang, around its first rank on the host of that.
//!
//! They run as the agent's user and outside of everything that keeps a worker from its host. An epilog is owed from before the
//! prolog begins until it has ended. A record states that, so an agent that is restarted runs it, and may run it a second time.
//!
//! The end of a worker is reported before its epilog begins: leases, gangs and jobs do not wait for it. A later worker does that has one of
//! the same devices, on this host alone.
//!
//! **Invariant:** a worker is launched only after its prolog has ended well, unless its failure is to be passed over; an epilog begins only
//! when nothing of its worker is left; neither can take longer than it may, or keep more output than it may.

use crate::chain::chain;
use crate::disk::durable::{DurableError, read_record, write_record_of_boot};
use crate::limits;
use crate::offload::blocking;
use crate::process::priority;
use crate::process::processes;
use crate::process::task::{TaskDir, name_of};
use crate::rules::WorkerKey;
use muster_types::config_value::span_ms;
use muster_types::health::{Finding, Observation};
use muster_types::{DeviceSet, HolderId, Span, Violation};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, Semaphore};

/// The variable that marks everything that such a command started, with a value no other command has.
const MARK_VARIABLE: &str = "MUSTER_HOST_COMMAND_MARK";
/// The shortest and longest time for one command.
const TIMEOUT_MS: (u64, u64) = (100, 3_600_000);
/// The usual one.
const TIMEOUT_USUAL_MS: u64 = 60_000;
/// Words of a command, its program included.
const WORDS_MAX: usize = 64;
/// Commands of one kind that run at the same time: one for each device that a host can have.
const AT_ONCE: usize = 64;
/// Bytes that are kept of one command's output, the newest.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Characters of its last line that go into a reason.
const LINE_CHARS_MAX: usize = 120;
/// How long what a command has left may take to end.
const END_MAX: Duration = Duration::from_secs(10);
/// How long the ends of those that were found are waited for before others are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Failures one after another that speak against the host.
const FAILURES_MAX: u32 = 3;
/// How long they do, since the last of them. Then another worker may try.
const FAILING: Duration = Duration::from_secs(600);

/// What an operator says of one of the two commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostCommandConfig {
    /// Program and arguments, the program by its absolute path; empty for none.
    pub command: Vec<String>,
    /// Milliseconds that it may take; then it is ended, and has failed.
    #[serde(rename = "timeout", with = "span_ms")]
    pub timeout_ms: u64,
    /// What follows from its failure.
    pub on_failure: FailureRule,
}

/// What follows from the failure of such a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureRule {
    /// A worker whose prolog failed is not launched: its host is at fault, and its gang is placed elsewhere. Failures one after
    /// another are a finding about the host.
    #[default]
    FailClosed,
    /// It is logged.
    GoOn,
}

impl Default for HostCommandConfig {
    fn default() -> HostCommandConfig {
        HostCommandConfig {
            command: Vec::new(),
            timeout_ms: TIMEOUT_USUAL_MS,
            on_failure: FailureRule::FailClosed,
        }
    }
}

impl HostCommandConfig {
    /// The first key of this table that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self, table: &str) -> Option<(String, String)> {
        let program = self.command.first();
        if program.is_some_and(|program| !program.starts_with('/')) || self.command.len() > WORDS_MAX {
            let rule =
                format!("must begin with the absolute path of a program, and have at most {WORDS_MAX} words");
            return Some((format!("{table}.command"), rule));
        }
        let (min, max) = TIMEOUT_MS;
        if !(min..=max).contains(&self.timeout_ms) {
            let key = format!("{table}.timeout");
            let violation = Violation::span(&key, self.timeout_ms, min, max);
            return Some((key, violation.description));
        }
        None
    }

    /// Whether there is such a command.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.command.is_empty()
    }
}

/// What the commands are told of a worker; also the record that its epilog is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerRecord {
    /// Which one.
    pub(crate) key: WorkerKey,
    /// Its job's name.
    pub(crate) job_name: String,
    /// Whose job it is.
    pub(crate) tenant: String,
    /// Placements of the job so far, this one included.
    pub(crate) attempt: u32,
    /// Local device numbers.
    pub(crate) devices: DeviceSet,
    /// The user that it is, where that is not the agent's.
    pub(crate) user: Option<u32>,
    /// Its directory.
    pub(crate) directory: PathBuf,
}

/// Why a worker is not launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// It was told to stop.
    Stopped,
    /// The host is not ready for it, with a sentence.
    Failed(String),
}

/// Failures one after another.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<(Instant, String)>,
}

/// One of them.
#[derive(Debug)]
struct HostCommand {
    /// For people, and of the file that has its output.
    name: &'static str,
    /// Whether it runs for the first rank of a gang alone.
    is_per_job: bool,
    command: Vec<String>,
    timeout: Duration,
    rule: FailureRule,
    turns: Semaphore,
    failures: Mutex<Failures>,
}

/// The epilogs of this host.
#[derive(Debug, Default)]
struct Epilogs {
    /// Of workers that may be running.
    owed: BTreeMap<WorkerKey, WorkerRecord>,
    /// Of workers that have ended, with the devices that they had.
    running: BTreeMap<WorkerKey, DeviceSet>,
}

/// The commands of this host.
#[derive(Debug)]
pub struct HostCommands {
    /// In the order in which they run: that of the job before that of the worker.
    prologs: Vec<HostCommand>,
    /// That of the worker before that of the job.
    epilogs_run: Vec<HostCommand>,
    /// The directory of the records.
    records: PathBuf,
    node: String,
    environment: BTreeMap<String, String>,
    /// How all marks end.
    mark: String,
    epilogs: Mutex<Epilogs>,
    /// An epilog has ended.
    ended: Notify,
}

impl HostCommands {
    /// As an operator says, of each worker and of each job, with records below `records`; none where there is no command, and none is
    /// owed.
    ///
    /// # Errors
    /// When the directory of the records cannot be used.
    pub fn open(
        (prolog, job_prolog): (&HostCommandConfig, &HostCommandConfig),
        (epilog, job_epilog): (&HostCommandConfig, &HostCommandConfig),
        records: PathBuf,
        node: String,
        environment: BTreeMap<String, String>,
        holder: HolderId,
    ) -> io::Result<Option<HostCommands>> {
        let is_there = records.is_dir();
        let is_wanted = [prolog, job_prolog, epilog, job_epilog].iter().any(|command| command.is_set());
        if !is_wanted && !is_there {
            return Ok(None);
        }
        if !is_there {
            std::fs::DirBuilder::new().mode(0o700).create(&records)?;
        }
        muster_files::remove_waiting(&records)?;
        let hash = Sha256::new()
            .chain_update(b"muster host command\0")
            .chain_update(holder.0.to_le_bytes())
            .finalize();
        let mark = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Some(HostCommands {
            prologs: [("job-prolog", job_prolog, true), ("prolog", prolog, false)]
                .into_iter()
                .filter_map(HostCommand::of)
                .collect(),
            epilogs_run: [("epilog", epilog, false), ("job-epilog", job_epilog, true)]
                .into_iter()
                .filter_map(HostCommand::of)
                .collect(),
            records,
            node,
            environment,
            mark,
            epilogs: Mutex::default(),
            ended: Notify::new(),
        }))
    }

    /// What speaks against this host.
    #[must_use]
    pub fn finding(&self) -> Option<Observation> {
        self.prologs.iter().chain(&self.epilogs_run).find_map(HostCommand::finding)
    }

    /// Ends what is left of an earlier agent's commands, and reads which epilogs it owed; the workers that these are of. It may
    /// block.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub(crate) fn take_over(&self) -> io::Result<Vec<WorkerKey>> {
        end_marked(|mark| mark.ends_with(&self.mark));
        let mut owed = BTreeMap::new();
        for entry in std::fs::read_dir(&self.records)?.take(limits::TASK_DIRECTORIES_MAX) {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(key) = name.and_then(TaskDir::key_of_name) else { continue };
            match read_record::<WorkerRecord>(&path) {
                Ok(Some(worker)) if worker.key == key && self.owes(key) => {
                    owed.insert(key, worker);
                }
                // The operator wants none any more.
                Ok(_) => remove_record(&path),
                Err(error) => {
                    let is_damaged = matches!(error, DurableError::Corrupt { .. });
                    let error = chain(&error);
                    tracing::error!(
                        job = %key.job,
                        worker = %key,
                        error,
                        "an epilog is owed, but the record of it cannot be read"
                    );
                    // What could not be read now may be by the next agent.
                    if is_damaged {
                        remove_record(&path);
                    }
                }
            }
        }
        let keys = owed.keys().copied().collect();
        self.epilogs.lock().owed = owed;
        Ok(keys)
    }

    /// Makes this host ready for a worker: waits until the epilogs of earlier workers on its devices have ended, records that its
    /// own epilog is owed, and runs the prolog. `stopped` resolves when the worker was told to stop.
    ///
    /// # Errors
    /// When it is not to be launched.
    pub(crate) async fn before(
        &self,
        worker: &WorkerRecord,
        stopped: impl Future<Output = ()> + Send,
    ) -> Result<(), NotReady> {
        let mut stopped = std::pin::pin!(stopped);
        tokio::select! {
            () = self.until_free(worker.devices) => {}
            () = stopped.as_mut() => return Err(NotReady::Stopped),
        }
        if self.owes(worker.key) {
            let recorded = self.owe(worker.clone()).await;
            recorded.map_err(|error| {
                NotReady::Failed(format!(
                    "it could not be recorded that an epilog is owed: {}",
                    chain(&error)
                ))
            })?;
        }
        for prolog in self.prologs.iter().filter(|prolog| prolog.is_for(worker.key)) {
            match self.run(prolog, worker, stopped.as_mut()).await {
                Ok(()) => prolog.succeeded(),
                Err(NotReady::Failed(why)) => {
                    let name = prolog.name;
                    tracing::warn!(job = %worker.key.job, worker = %worker.key, why, "a {name} failed");
                    prolog.failed(&why);
                    if prolog.rule == FailureRule::FailClosed {
                        return Err(NotReady::Failed(format!("the {name} of its host failed: {why}")));
                    }
                }
                Err(NotReady::Stopped) => return Err(NotReady::Stopped),
            }
        }
        Ok(())
    }

    /// Whether an epilog runs after a worker.
    fn owes(&self, key: WorkerKey) -> bool {
        self.epilogs_run.iter().any(|epilog| epilog.is_for(key))
    }

    /// Nothing of a worker is left: its epilog begins, where one is owed. From here on later workers on its devices wait.
    pub(crate) fn worker_ended(self: &Arc<Self>, key: WorkerKey) {
        let worker = {
            let mut epilogs = self.epilogs.lock();
            let Some(worker) = epilogs.owed.remove(&key) else { return };
            epilogs.running.insert(key, worker.devices);
            worker
        };
        let commands = Arc::clone(self);
        tokio::spawn(async move { commands.run_epilog(&worker).await });
    }

    async fn run_epilog(&self, worker: &WorkerRecord) {
        for epilog in self.epilogs_run.iter().filter(|epilog| epilog.is_for(worker.key)) {
            let never = std::pin::pin!(std::future::pending::<()>());
            match self.run(epilog, worker, never).await {
                Ok(()) => epilog.succeeded(),
                Err(NotReady::Failed(why)) => {
                    let name = epilog.name;
                    tracing::warn!(job = %worker.key.job, worker = %worker.key, why, "an {name} failed");
                    epilog.failed(&why);
                }
                Err(NotReady::Stopped) => {}
            }
        }
        let path = self.record_of(worker.key);
        blocking(move || remove_record(&path)).await;
        self.epilogs.lock().running.remove(&worker.key);
        self.ended.notify_waiters();
    }

    /// Waits until no epilog of a worker with one of these devices runs.
    async fn until_free(&self, devices: DeviceSet) {
        loop {
            // Listens before it looks: no end is missed between the two.
            let ended = self.ended.notified();
            if self.epilogs.lock().running.values().all(|held| held.is_disjoint(devices)) {
                return;
            }
            ended.await;
        }
    }

    async fn owe(&self, worker: WorkerRecord) -> Result<(), DurableError> {
        let (path, record) = (self.record_of(worker.key), worker.clone());
        blocking(move || write_record_of_boot(&path, &record)).await?;
        self.epilogs.lock().owed.insert(worker.key, worker);
        Ok(())
    }

    fn record_of(&self, key: WorkerKey) -> PathBuf {
        self.records.join(name_of(key))
    }

    /// Runs one of them to its end. Nothing of it is left then, but for what the kernel holds.
    async fn run(
        &self,
        command: &HostCommand,
        worker: &WorkerRecord,
        mut stopped: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Result<(), NotReady> {
        let _turn = tokio::select! {
            turn = command.turns.acquire() => turn,
            () = stopped.as_mut() => return Err(NotReady::Stopped),
        };
        let mark = format!("{}_{}_{}", name_of(worker.key), command.name, self.mark);
        let failed = |why: String| Err(NotReady::Failed(why));
        let (mut child, output) = match self.start(command, worker, &mark) {
            Ok(started) => started,
            Err(error) => return failed(format!("its program could not be run: {error}")),
        };
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut keeping = tokio::spawn(keep(output, Arc::clone(&kept)));
        let ended = tokio::select! {
            status = child.wait() => match status {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => failed(status.to_string()),
                Err(error) => failed(format!("its end is not known: {error}")),
            },
            () = tokio::time::sleep(command.timeout) => {
                let ms = u64::try_from(command.timeout.as_millis()).unwrap_or(u64::MAX);
                failed(format!("it took longer than {}", Span(ms)))
            }
            () = stopped.as_mut() => Err(NotReady::Stopped),
        };
        // One that has ended by itself may have left others.
        let _ = child.start_kill();
        blocking(move || end_marked(|other| other == mark)).await;
        let _ = tokio::time::timeout(END_MAX, child.wait()).await;
        if tokio::time::timeout(LOOK_AGAIN, &mut keeping).await.is_err() {
            // Somebody else has got its output.
            keeping.abort();
        }
        let text = newest(&mut kept.lock());
        let line = last_line(&text);
        self.keep_output(command, worker, text).await;
        match ended {
            Err(NotReady::Failed(why)) if !line.is_empty() => failed(format!("{why}: {line}")),
            ended => ended,
        }
    }

    fn start(
        &self,
        command: &HostCommand,
        worker: &WorkerRecord,
        mark: &str,
    ) -> io::Result<(Child, pipe::Receiver)> {
        let (program, rest) =
            command.command.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
        let (output, written) = io::pipe()?;
        let mut process = Command::new(program);
        process
            .args(rest)
            .env_clear()
            .envs(&self.environment)
            .envs(self.variables(worker))
            .env(MARK_VARIABLE, mark)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(written.try_clone()?)
            .stderr(written)
            .kill_on_drop(true);
        let child = process.spawn()?;
        // With it go this process's own ends of the pipe.
        drop(process);
        if let Some(pid) = child.id() {
            priority::step_back_for(pid.cast_signed());
        }
        let output = pipe::Receiver::from_file(File::from(OwnedFd::from(output)))?;
        Ok((child, output))
    }

    /// What a command is told of the worker, under the names that the worker knows it by.
    fn variables(&self, worker: &WorkerRecord) -> Vec<(&'static str, String)> {
        let devices: Vec<String> = worker.devices.iter().map(|device| device.to_string()).collect();
        let mut variables = vec![
            ("MUSTER_JOB_ID", worker.key.job.to_string()),
            ("MUSTER_JOB_NAME", worker.job_name.clone()),
            ("MUSTER_TENANT", worker.tenant.clone()),
            ("MUSTER_ATTEMPT", worker.attempt.to_string()),
            ("MUSTER_FENCING_TOKEN", worker.key.token.to_string()),
            ("MUSTER_RANK", worker.key.rank.to_string()),
            ("MUSTER_NODE", self.node.clone()),
            ("MUSTER_DEVICES", devices.join(",")),
            ("MUSTER_WORKER_DIRECTORY", worker.directory.display().to_string()),
        ];
        variables.extend(worker.user.map(|user| ("MUSTER_WORKER_UID", user.to_string())));
        variables
    }

    /// Writes the output next to the worker's, for the agent's user alone. A directory that is gone keeps nothing. A worker without a
    /// user may have put a link or a pipe there: the file is a new one.
    async fn keep_output(&self, command: &HostCommand, worker: &WorkerRecord, text: Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let path = worker.directory.join(format!("{}.log", command.name));
        let written = blocking(move || {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
            file.write_all(&text)
        });
        if let Err(error) = written.await {
            tracing::debug!(
                job = %worker.key.job,
                worker = %worker.key,
                %error,
                "the output of a command of this host is not kept"
            );
        }
    }
}

impl HostCommand {
    fn of((name, config, is_per_job): (&'static str, &HostCommandConfig, bool)) -> Option<HostCommand> {
        config.is_set().then(|| HostCommand {
            name,
            is_per_job,
            command: config.command.clone(),
            timeout: Duration::from_millis(config.timeout_ms),
            rule: config.on_failure,
            turns: Semaphore::new(AT_ONCE),
            failures: Mutex::default(),
        })
    }

    /// Whether it runs for a worker.
    fn is_for(&self, key: WorkerKey) -> bool {
        !self.is_per_job || key.rank == 0
    }

    fn succeeded(&self) {
        *self.failures.lock() = Failures::default();
    }

    fn failed(&self, why: &str) {
        let mut failures = self.failures.lock();
        failures.count = failures.count.saturating_add(1);
        failures.last = Some((Instant::now(), why.to_owned()));
    }

    /// What its failures say of the host, where they count.
    fn finding(&self) -> Option<Observation> {
        let failures = self.failures.lock();
        let (at, why) = failures.last.as_ref()?;
        let counts = self.rule == FailureRule::FailClosed && failures.count >= FAILURES_MAX;
        if !counts || at.elapsed() > FAILING {
            return None;
        }
        let mut found = Observation::of(Finding::HostCommand, None);
        found.detail = format!("{} failures of the {}, the last: {why}", failures.count, self.name);
        let mut end = found.detail.len().min(muster_types::limits::HEALTH_DETAIL_BYTES_MAX);
        while !found.detail.is_char_boundary(end) {
            end -= 1;
        }
        found.detail.truncate(end);
        Some(found)
    }
}

fn remove_record(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the record of an epilog that has ended stays: it runs again");
        }
        _ => {}
    }
}

/// Ends every process with such a mark; waits a while for their ends.
fn end_marked(is_meant: impl Fn(&str) -> bool) {
    let until = Instant::now() + END_MAX;
    while Instant::now() < until {
        let found = processes::marked_by(&[MARK_VARIABLE], |mark| is_meant(mark).then_some(()));
        if found.is_empty() {
            return;
        }
        processes::end_all(&found.into_keys().collect(), LOOK_AGAIN);
    }
    tracing::error!("processes of a command of this host do not end");
}

/// Reads to the end; the newest of it stays.
async fn keep(mut output: pipe::Receiver, kept: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0u8; 8 << 10];
    loop {
        match output.read(&mut buffer).await {
            Ok(0) => return,
            Ok(read) => {
                let mut kept = kept.lock();
                kept.extend_from_slice(&buffer[..read]);
                if kept.len() > 2 * OUTPUT_BYTES_MAX {
                    let surplus = kept.len() - OUTPUT_BYTES_MAX;
                    kept.drain(..surplus);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The newest of what was kept, within the bound.
fn newest(kept: &mut Vec<u8>) -> Vec<u8> {
    let surplus = kept.len().saturating_sub(OUTPUT_BYTES_MAX);
    kept.split_off(surplus)
}

/// The last line with text, without characters that are none, within its bound.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.trim().lines().next_back().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> HostCommandConfig {
        HostCommandConfig {
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            ..HostCommandConfig::default()
        }
    }

    fn worker(directory: &Path, rank: u32, devices: u64) -> WorkerRecord {
        WorkerRecord {
            key: WorkerKey { job: muster_types::JobId(7), token: Default::default(), rank },
            job_name: "train".into(),
            tenant: "research".into(),
            attempt: 2,
            devices: DeviceSet(devices),
            user: None,
            directory: directory.to_owned(),
        }
    }

    fn open(
        directory: &Path,
        prolog: &HostCommandConfig,
        epilog: &HostCommandConfig,
        holder: u128,
    ) -> Arc<HostCommands> {
        let environment = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
        let records = directory.join("epilogs");
        let none = HostCommandConfig::default();
        let opened = HostCommands::open(
            (prolog, &none),
            (epilog, &none),
            records,
            "host-a".into(),
            environment,
            HolderId(holder),
        );
        Arc::new(opened.unwrap().expect("there is a command"))
    }

    #[test]
    fn keys_are_checked() {
        let key = |config: HostCommandConfig| config.violation("prolog").map(|(key, _)| key);
        assert_eq!(key(HostCommandConfig::default()), None);
        assert_eq!(key(shell("true")), None);
        let relative = HostCommandConfig { command: vec!["prolog".into()], ..shell("true") };
        assert_eq!(key(relative).as_deref(), Some("prolog.command"));
        let long = HostCommandConfig { command: vec!["/bin/true".into(); WORDS_MAX + 1], ..shell("true") };
        assert_eq!(key(long).as_deref(), Some("prolog.command"));
        for timeout_ms in [0, TIMEOUT_MS.1 + 1] {
            let config = HostCommandConfig { timeout_ms, ..shell("true") };
            assert_eq!(key(config).as_deref(), Some("prolog.timeout"));
        }
        let text = r#"{"command": ["/bin/true"], "timeout": "30s", "on_failure": "go-on"}"#;
        let read: HostCommandConfig = serde_json::from_str(text).unwrap();
        assert_eq!((read.timeout_ms, read.on_failure), (30_000, FailureRule::GoOn));
        assert!(serde_json::from_str::<HostCommandConfig>(r#"{"on_failure": "ignore"}"#).is_err());
    }

    #[test]
    fn output_is_kept_within_bounds_and_its_last_line_is_text() {
        let mut kept = vec![b'x'; OUTPUT_BYTES_MAX];
        kept.extend_from_slice(b"\nlast \x1b[31mline\n\n");
        let text = newest(&mut kept);
        assert_eq!(text.len(), OUTPUT_BYTES_MAX);
        assert_eq!(last_line(&text), "last [31mline");
        assert_eq!(last_line(b""), "");
        assert_eq!(last_line(&vec![b'y'; 4_096]).len(), LINE_CHARS_MAX);
    }

    #[test]
    fn only_failures_one_after_another_speak_against_the_host() {
        let command = HostCommand::of(("prolog", &shell("true"), false)).unwrap();
        for _ in 1..FAILURES_MAX {
            command.failed("exit status: 1");
            assert_eq!(command.finding(), None);
        }
        command.succeeded();
        for _ in 0..FAILURES_MAX {
            assert_eq!(command.finding(), None);
            command.failed(&"é".repeat(400));
        }
        let found = command.finding().unwrap();
        assert_eq!((found.finding, found.device), (Finding::HostCommand, None));
        assert!(found.detail.len() <= muster_types::limits::HEALTH_DETAIL_BYTES_MAX);
        assert!(found.detail.starts_with("3 failures of the prolog, the last: é"));
        let lenient = HostCommandConfig { on_failure: FailureRule::GoOn, ..shell("true") };
        let command = HostCommand::of(("prolog", &lenient, false)).unwrap();
        for _ in 0..2 * FAILURES_MAX {
            command.failed("exit status: 1");
        }
        assert_eq!(command.finding(), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_prolog_is_told_of_its_worker_and_its_failure_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            "echo $MUSTER_JOB_NAME $MUSTER_TENANT $MUSTER_ATTEMPT $MUSTER_RANK $MUSTER_DEVICES; exit 3";
        let commands = open(dir.path(), &shell(script), &HostCommandConfig::default(), 0xabc1);
        let worker = worker(dir.path(), 4, 0b101);
        let refused = commands.before(&worker, std::future::pending()).await;
        let line = "train research 2 4 0,2";
        let why = format!("the prolog of its host failed: exit status: 3: {line}");
        assert_eq!(refused, Err(NotReady::Failed(why)));
        let output = std::fs::read_to_string(dir.path().join("prolog.log")).unwrap();
        assert_eq!(output, format!("{line}\n"));
        let lenient = HostCommandConfig { on_failure: FailureRule::GoOn, ..shell("exit 1") };
        let commands = open(dir.path(), &lenient, &HostCommandConfig::default(), 0xabc1);
        assert_eq!(commands.before(&worker, std::future::pending()).await, Ok(()));
        let slow = HostCommandConfig { timeout_ms: 100, ..shell("sleep 600 & wait") };
        let commands = open(dir.path(), &slow, &HostCommandConfig::default(), 0xabc1);
        let refused = commands.before(&worker, std::future::pending()).await;
        let why = "the prolog of its host failed: it took longer than 100ms".to_owned();
        assert_eq!(refused, Err(NotReady::Failed(why)));
        let commands = open(dir.path(), &shell("sleep 600"), &HostCommandConfig::default(), 0xabc1);
        assert_eq!(commands.before(&worker, std::future::ready(())).await, Err(NotReady::Stopped));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_owed_is_known_after_a_restart_and_not_after_it_was_done() {
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let epilog = shell(&format!("echo $MUSTER_RANK >> {}", ran.display()));
        let none = HostCommandConfig::default();
        let commands = open(dir.path(), &none, &epilog, 0xabc2);
        let (first, second) = (worker(dir.path(), 0, 1), worker(dir.path(), 1, 2));
        for worker in [&first, &second] {
            assert_eq!(commands.before(worker, std::future::pending()).await, Ok(()));
        }
        commands.worker_ended(first.key);
        commands.until_free(first.devices).await;
        assert_eq!(std::fs::read_to_string(&ran).unwrap(), "0\n");
        // Once, however often the end is told.
        commands.worker_ended(first.key);
        commands.until_free(first.devices).await;
        drop(commands);
        let commands = open(dir.path(), &none, &epilog, 0xabc2);
        assert_eq!(commands.take_over().unwrap(), [second.key]);
        commands.worker_ended(second.key);
        commands.until_free(second.devices).await;
        assert_eq!(std::fs::read_to_string(&ran).unwrap(), "0\n1\n");
        assert!(open(dir.path(), &none, &epilog, 0xabc2).take_over().unwrap().is_empty());
        // Who takes the epilog out of the configuration owes nothing any more.
        assert_eq!(commands.before(&first, std::future::pending()).await, Ok(()));
        assert!(open(dir.path(), &none, &none, 0xabc2).take_over().unwrap().is_empty());
        assert!(open(dir.path(), &none, &epilog, 0xabc2).take_over().unwrap().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn output_goes_into_no_file_that_a_worker_has_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let (other, prolog_log, epilog_log) =
            (dir.path().join("other"), dir.path().join("prolog.log"), dir.path().join("epilog.log"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &prolog_log).unwrap();
        // Opening it to write waits for a reader.
        nix::unistd::mkfifo(&epilog_log, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let commands = open(dir.path(), &shell("echo before"), &shell("echo after"), 0xabc4);
        let worker = worker(dir.path(), 0, 1);
        assert_eq!(commands.before(&worker, std::future::pending()).await, Ok(()));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        assert_eq!(std::fs::read_to_string(&prolog_log).unwrap(), "before\n");
        commands.worker_ended(worker.key);
        commands.until_free(worker.devices).await;
        assert_eq!(std::fs::read_to_string(&epilog_log).unwrap(), "after\n");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_waits_for_the_epilog_on_its_devices_alone() {
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let epilog = shell(&format!("cat {} > /dev/null", go.display()));
        let commands = open(dir.path(), &HostCommandConfig::default(), &epilog, 0xabc3);
        let first = worker(dir.path(), 0, 0b011);
        assert_eq!(commands.before(&first, std::future::pending()).await, Ok(()));
        commands.worker_ended(first.key);
        for other in [worker(dir.path(), 1, 0b100), worker(dir.path(), 2, 0)] {
            assert_eq!(commands.before(&other, std::future::pending()).await, Ok(()));
        }
        let same = worker(dir.path(), 3, 0b010);
        assert_eq!(commands.before(&same, std::future::ready(())).await, Err(NotReady::Stopped));
        let waiting = tokio::spawn({
            let commands = Arc::clone(&commands);
            async move { commands.before(&same, std::future::pending()).await }
        });
        blocking(move || std::fs::write(go, "")).await.unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn commands_of_jobs_run_for_the_first_rank_alone() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let say = |text: &str| shell(&format!("echo {text} $MUSTER_RANK >> {}", said.display()));
        let (prolog, job_prolog) = (say("prolog"), say("job-prolog"));
        let (epilog, job_epilog) = (say("epilog"), say("job-epilog"));
        let opened = HostCommands::open(
            (&prolog, &job_prolog),
            (&epilog, &job_epilog),
            dir.path().join("epilogs"),
            "host-a".into(),
            [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            HolderId(0xabc5),
        );
        let commands = Arc::new(opened.unwrap().expect("there are some"));
        for rank in [1, 0] {
            let worker = worker(dir.path(), rank, 1 << rank);
            commands.before(&worker, std::future::pending()).await.expect("it is ready");
            commands.worker_ended(worker.key);
            commands.until_free(worker.devices).await;
        }
        let text = std::fs::read_to_string(&said).unwrap();
        assert_eq!(text, "prolog 1\nepilog 1\njob-prolog 0\nprolog 0\nepilog 0\njob-epilog 0\n");
    }
}
