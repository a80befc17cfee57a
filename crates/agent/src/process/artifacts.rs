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
use muster_types::{ArtifactFault, ArtifactRules, Artifacts, ExitStatus};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a worker with private temporary directories had another of, in the order of
/// [`TaskDir::own_tmp`].
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// What a worker returns, as the leader is told, that has succeeded and whose files had to be kept and were not: that of an error of
/// input or output, by the convention of `sysexits.h`.
const NOT_KEPT_EXIT: i32 = 74;

/// Where it is on record what became of the files of a worker.
pub(crate) fn record_of(task: &TaskDir) -> PathBuf {
    task.path().join("artifacts")
}

fn failed(fault: ArtifactFault) -> Artifacts {
    Artifacts { fault: Some((fault, 0)), ..Artifacts::default() }
}

/// How a worker ended, in view of what became of its files.
pub(crate) fn judged(rules: Option<&ArtifactRules>, kept: &Artifacts, status: ExitStatus) -> ExitStatus {
    let is_required = rules.is_some_and(|rules| rules.required);
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
        Ok(Some(kept)) => (Some(judged(spec.artifacts.as_ref(), &kept, status)), Some(kept)),
        Ok(None) => (None, None),
        Err(error) => {
            tracing::warn!(
                job = %spec.key.job,
                worker = %spec.key,
                %error,
                "what became of a worker's files is not known"
            );
            let kept = failed(ArtifactFault::Unreadable);
            (Some(judged(spec.artifacts.as_ref(), &kept, status)), Some(kept))
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
    let is_over = status == ExitStatus::LeaseExpired || has_lapsed(&spec).await;
    let kept = match files {
        None => failed(ArtifactFault::NoStore),
        // Others may have its devices by now; nothing may delay that this agent is back.
        Some(_) if is_over => failed(ArtifactFault::OutOfTime),
        Some(files) => {
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
        tracing::warn!(
            job = %spec.key.job,
            worker = %spec.key,
            %error,
            "what became of a worker's files is not durable"
        );
    }
    (judged(spec.artifacts.as_ref(), &kept, status), Some(kept))
}

/// Waits until the grace of a worker is over and what it kept would have been told.
async fn grace_over(stop_by: &(impl Fn() -> Option<BootTime> + Send + Sync)) {
    while stop_by().is_none_or(|by| BootTime::now() < by.after(limits::ARTIFACTS_END_MAX)) {
        tokio::time::sleep(limits::ARTIFACTS_LOOK).await;
    }
}

/// Waits until the lease has run out that a worker was launched under.
async fn lease_over(spec: &TaskSpec) {
    while !has_lapsed(spec).await {
        tokio::time::sleep(guards::LOOK).await;
    }
}

async fn has_lapsed(spec: &TaskSpec) -> bool {
    let (path, epoch) = (spec.lease_path.clone(), spec.epoch);
    blocking(move || has_run_out(&path, epoch, BootTime::now())).await
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
    files.keep(spec.key, &spec.tenant, left, (spec.artifacts_bytes_max, grace)).await
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
        None => tracing::info!(
            job = %key.job,
            worker = %key,
            files,
            bytes,
            left_out,
            "files of a worker were kept"
        ),
        Some((fault, path)) => {
            tracing::warn!(
                job = %key.job,
                worker = %key,
                files,
                bytes,
                left_out,
                %fault,
                path,
                "not all files of a worker were kept"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::lease::Lease;
    use crate::process::disk_io::GroupIo;
    use crate::process::notice;
    use crate::process::task::{GangFiles, Running};
    use crate::process::work_files::FilesConfig;
    use crate::rules::{DEVICE_MILLI, HttpNotice};
    use muster_blobs::BlobDirectory;
    use muster_types::{DeviceSet, FencingToken, HolderId, JobId, LogIndex};
    use std::collections::BTreeMap;

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

    struct Bench {
        scratch: tempfile::TempDir,
        files: WorkFiles,
    }

    impl Bench {
        /// With a store, and a lease of the first epoch that stands.
        fn new() -> Bench {
            let scratch = tempfile::tempdir().unwrap();
            for name in ["store", "tasks"] {
                std::fs::create_dir(scratch.path().join(name)).unwrap();
            }
            let store = scratch.path().join("store");
            BlobDirectory::open_or_make(store.clone()).unwrap();
            let (now, hour) = (BootTime::now(), Duration::from_secs(3_600));
            let mut lease = Lease::open(&scratch.path().join("lease"), 7, 0).unwrap();
            lease.renew(now, hour, Duration::from_secs(1), now).unwrap();
            let config = FilesConfig { store: Some(store), ..FilesConfig::default() };
            Bench { files: WorkFiles::of(&config).unwrap(), scratch }
        }

        /// A worker that was launched in an epoch, has left the file `a`, and has ended well. These files of it are kept, or it fails.
        fn worker(&self, rank: u32, epoch: u64, paths: &[&str]) -> TaskDir {
            let tasks = self.scratch.path().join("tasks");
            let token = FencingToken { generation: 1, log_index: LogIndex(9) };
            let key = WorkerKey { job: JobId(1), token, rank };
            let paths = paths.iter().map(|path| (*path).to_owned()).collect();
            let spec = TaskSpec {
                key,
                tenant: "research".to_owned(),
                is_in_job: false,
                command: vec!["true".to_owned()],
                environment: BTreeMap::new(),
                working_directory: TaskDir::of(&tasks, key).work(),
                devices: DeviceSet::EMPTY,
                device_milli: DEVICE_MILLI,
                lease_path: self.scratch.path().join("lease"),
                holder: HolderId(7),
                epoch,
                stop_grace_ms: 0,
                shim_arguments: Vec::new(),
                log_bytes_max: 0,
                log_free_min: 0,
                cgroup_parent: None,
                memory_bytes: 0,
                memory_watched: false,
                cpu_milli: 0,
                cpu_max_milli: 0,
                io: GroupIo::default(),
                temporary: None,
                disk_bytes_max: 0,
                scratch_bytes: 0,
                isolation: Isolation::default(),
                notice: Some(HttpNotice { port: 9, path: "/stop".to_owned() }),
                image: None,
                artifacts: Some(ArtifactRules { paths, required: true }),
                artifacts_bytes_max: None,
                terminal: false,
            };
            let task = TaskDir::create(&tasks, &spec, &GangFiles::default()).unwrap();
            std::fs::write(task.work().join("a"), "a").unwrap();
            let running = Running { shim_pid: 1, worker_pid: 1, cgroup: None, cgroup_absent: None };
            task.write_running(&running).unwrap();
            assert!(notice::wanted(&task).is_some(), "it runs");
            task.write_exit(ExitStatus::Code(0)).unwrap();
            assert_eq!(notice::wanted(&task), None, "its shim's number may be another process's");
            task
        }

        async fn keep(&self, task: &TaskDir) -> (ExitStatus, Artifacts) {
            let (status, kept) = keep(task, Some(&self.files), ExitStatus::Code(0), || None).await;
            (status, kept.expect("its job wants some"))
        }
    }

    #[tokio::test]
    async fn an_agent_that_is_restarted_tells_what_was_kept_before() {
        let bench = Bench::new();
        for (rank, paths, status) in [(0, &["a"][..], 0), (1, &["a", "absent"][..], NOT_KEPT_EXIT)] {
            let task = bench.worker(rank, 1, paths);
            let spec = task.spec().unwrap();
            let exit = Some(ExitStatus::Code(0));
            assert_eq!(recorded(&task, spec.as_ref(), exit.clone()), (None, None), "it has not ended yet");
            let told = bench.keep(&task).await;
            assert_eq!((&told.0, told.1.files), (&ExitStatus::Code(status), 1), "{told:?}");
            // Its files may have gone since.
            std::fs::remove_file(task.work().join("a")).unwrap();
            assert_eq!(bench.keep(&task).await, told);
            assert_eq!(recorded(&task, spec.as_ref(), exit), (Some(told.0), Some(told.1)));
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_beyond_a_lease() {
        let bench = Bench::new();
        let task = bench.worker(0, 2, &["a"]);
        let (status, kept) = bench.keep(&task).await;
        assert_eq!(status, ExitStatus::Code(NOT_KEPT_EXIT), "they were required");
        assert_eq!((kept.digest, kept.fault), (None, Some((ArtifactFault::OutOfTime, 0))));
    }
}
