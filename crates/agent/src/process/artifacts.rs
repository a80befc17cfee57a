//! Files that workers leave, into the store that clients share with this host: once a worker has ended, and before its end is told.
//!
//! **Invariant:** an end is told in any case, and no later than the agent's time for it; of a worker that was stopped, no later than
//! its grace; of one whose lease runs out, at once.

use crate::clock::BootTime;
use crate::disk::durable::{read_record, write_record};
use crate::disk::lease::read_path;
use crate::limits;
use crate::offload::blocking;
use crate::process::guards;
use crate::process::isolation::Isolation;
use crate::process::task::{TaskDir, TaskSpec};
use crate::process::work_files::{ArtifactSource, WorkFiles};
use crate::rules::WorkerKey;
use muster_types::{ArtifactFault, Artifacts, ExitStatus};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a worker with private temporary directories had another of, in the order of
/// [`TaskDir::own_tmp`].
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// What a worker returns, as the leader is told, that has succeeded and whose files had to be kept and were not: that of an error of
/// input or output, by the convention of `sysexits.h`.
const NOT_KEPT_EXIT: i32 = 74;

fn record_of(task: &TaskDir) -> PathBuf {
    task.path().join("artifacts")
}

fn failed(fault: ArtifactFault) -> Artifacts {
    Artifacts { fault: Some((fault, 0)), ..Artifacts::default() }
}

/// How a worker ended, in view of what became of its files.
fn judged(spec: &TaskSpec, kept: &Artifacts, status: ExitStatus) -> ExitStatus {
    let is_required = spec.artifacts.as_ref().is_some_and(|rules| rules.required);
    if is_required && kept.fault.is_some() && status.is_success() {
        ExitStatus::Code(NOT_KEPT_EXIT)
    } else {
        status
    }
}

/// What is on record of a worker that an earlier agent left. One whose files were not kept yet has not ended.
pub(crate) fn recorded(
    task: &TaskDir,
    spec: Option<&TaskSpec>,
    exit: Option<ExitStatus>,
) -> (Option<ExitStatus>, Option<Artifacts>) {
    let Some((spec, status)) = spec.filter(|spec| spec.artifacts.is_some()).zip(exit.clone()) else {
        return (exit, None);
    };
    // It was never launched, so there are none.
    if !matches!(task.running(), Ok(Some(_))) {
        return (exit, None);
    }
    match read_record::<Artifacts>(&record_of(task)) {
        Ok(Some(kept)) => (Some(judged(spec, &kept, status)), Some(kept)),
        Ok(None) => (None, None),
        Err(error) => {
            tracing::warn!(worker = %spec.key, %error, "what became of a worker's files is not known");
            let kept = failed(ArtifactFault::Unreadable);
            (Some(judged(spec, &kept, status)), Some(kept))
        }
    }
}

/// Keeps the files of a worker that has ended. `stop_by` says when its grace is over, where it was told to stop, also meanwhile. How
/// it ended in view of that, and what was kept; none where its job wants none.
pub(crate) async fn keep(
    task: &TaskDir,
    files: Option<&WorkFiles>,
    status: ExitStatus,
    stop_by: impl Fn() -> Option<BootTime> + Send + Sync,
) -> (ExitStatus, Option<Artifacts>) {
    let looked = task.clone();
    let exit = Some(status.clone());
    let (spec, (told, kept)) = blocking(move || {
        let spec = looked.spec().ok().flatten();
        let known = recorded(&looked, spec.as_ref(), exit);
        (spec, known)
    })
    .await;
    let spec = match (spec, told) {
        (Some(spec), None) => spec,
        // Nothing is wanted, or an agent before this one has kept it.
        (_, told) => return (told.unwrap_or(status), kept),
    };
    let kept = match (files, &status) {
        (None, _) => failed(ArtifactFault::NoStore),
        // Others may have its devices by now; nothing may delay that this agent is back.
        (Some(_), ExitStatus::LeaseExpired) => failed(ArtifactFault::OutOfTime),
        (Some(files), _) => {
            let grace = stop_by().map_or(Duration::MAX, |by| BootTime::now().until(by));
            tokio::select! {
                kept = collect(task, &spec, files, grace) => kept,
                () = grace_over(&stop_by) => failed(ArtifactFault::OutOfTime),
                // Its job may be placed elsewhere by now, and change what is read here.
                () = lease_over(&spec) => failed(ArtifactFault::OutOfTime),
            }
        }
    };
    tell(spec.key, &kept);
    let (written, record) = (record_of(task), kept);
    if let Err(error) = blocking(move || write_record(&written, &record)).await {
        tracing::warn!(worker = %spec.key, %error, "what became of a worker's files is not durable");
    }
    (judged(&spec, &kept, status), Some(kept))
}

/// Waits until the grace of a worker is over and what it kept would have been told.
async fn grace_over(stop_by: &(impl Fn() -> Option<BootTime> + Send + Sync)) {
    while stop_by().is_none_or(|by| BootTime::now() < by.after(limits::ARTIFACTS_END_MAX)) {
        tokio::time::sleep(limits::ARTIFACTS_LOOK).await;
    }
}

/// Waits until the lease has run out that a worker was launched under.
async fn lease_over(spec: &TaskSpec) {
    loop {
        let (path, epoch) = (spec.lease_path.clone(), spec.epoch);
        if blocking(move || has_run_out(&path, epoch, BootTime::now())).await {
            return;
        }
        tokio::time::sleep(guards::LOOK).await;
    }
}

/// Whether the lease of this epoch has run out. A file that cannot be read does not say that.
fn has_run_out(lease: &Path, epoch: u64, now: BootTime) -> bool {
    read_path(lease).is_ok_and(|slot| slot.epoch != epoch || now >= slot.deadline)
}

async fn collect(task: &TaskDir, spec: &TaskSpec, files: &WorkFiles, grace: Duration) -> Artifacts {
    let paths = spec.artifacts.as_ref().map(|rules| rules.paths.clone()).unwrap_or_default();
    let owner = spec.isolation.user.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    // In an image only its own directory is on this host; without one it starts where the job says.
    let started_in = if spec.image.is_some() { task.work() } else { spec.working_directory.clone() };
    let root = on_host(task, &spec.isolation, started_in);
    let covered: &[&str] = if spec.isolation.private_tmp { &["/tmp", "/var/tmp", "/dev/shm"] } else { &[] };
    let left = ArtifactSource {
        // In its own directory the worker may have put a link to anything that the agent can read.
        is_root_followed: !root.starts_with(task.path()),
        root,
        covered: covered.iter().map(PathBuf::from).collect(),
        shown: spec.isolation.shown.clone(),
        paths,
        owner,
    };
    files.keep(spec.key, left, (spec.artifacts_bytes_max, grace)).await
}

/// The directory of the host that a worker saw as this one.
fn on_host(task: &TaskDir, isolation: &Isolation, directory: PathBuf) -> PathBuf {
    let own = TEMPORARY.into_iter().zip(task.own_tmp()).find(|(path, _)| directory == Path::new(path));
    match own {
        Some((_, own)) if isolation.private_tmp => own,
        _ => directory,
    }
}

fn tell(key: WorkerKey, kept: &Artifacts) {
    let (files, bytes, left_out) = (kept.files, kept.bytes, kept.left_out);
    match kept.fault {
        None => tracing::info!(worker = %key, files, bytes, left_out, "files of a worker were kept"),
        Some((fault, path)) => {
            tracing::warn!(worker = %key, files, bytes, left_out, %fault, path, "not all files of a worker were kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::lease::Lease;

    #[test]
    fn a_worker_with_private_directories_has_left_its_files_in_those() {
        let task = TaskDir::at(PathBuf::from("/var/lib/muster/tasks/one"));
        let private = Isolation { private_tmp: true, ..Isolation::default() };
        let found = |isolation: &Isolation, path: &str| on_host(&task, isolation, PathBuf::from(path));
        let [tmp, var_tmp] = task.own_tmp();
        assert_eq!((found(&private, "/tmp"), found(&private, "/var/tmp/")), (tmp, var_tmp));
        assert_eq!(found(&private, "/home/ada"), PathBuf::from("/home/ada"));
        assert_eq!(found(&Isolation::default(), "/tmp"), PathBuf::from("/tmp"));
    }

    #[test]
    fn a_lease_has_run_out_at_its_deadline_or_with_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lease");
        let at = |seconds: u64| BootTime(seconds * 1_000_000_000);
        let has_run_out = |epoch, seconds| has_run_out(&path, epoch, at(seconds));
        assert!(!has_run_out(1, 100), "there is no file");
        let mut lease = Lease::open(&path, 7, 0).unwrap();
        let second = Duration::from_secs(1);
        lease.renew(at(100), 10 * second, second, at(100)).unwrap();
        assert_eq!((has_run_out(1, 109), has_run_out(1, 110), has_run_out(2, 109)), (false, true, true));
    }
}
