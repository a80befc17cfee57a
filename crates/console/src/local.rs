//! How commands in other terminals find the running `muster dev`, and what they pass on to its jobs.
//!
//! `muster dev` writes its endpoints into one file of the user and holds a lock on it for as long as it runs. A file
//! whose lock is free was left by a process that is gone, and counts for nothing.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use muster_wire::v1;
use serde::{Deserialize, Serialize};

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 16;
/// Variables of the command's environment that its jobs get: what finds a program, and the Python of an active
/// virtual environment.
const VARIABLES: [&str; 2] = ["PATH", "VIRTUAL_ENV"];

#[derive(Serialize, Deserialize)]
struct Announcement {
    endpoints: Vec<String>,
    /// Where its web pages are; an older one has none.
    #[serde(default)]
    web: Vec<String>,
    /// Where the store of files of jobs is; an older one has none.
    #[serde(default)]
    store: Option<PathBuf>,
}

/// `$XDG_STATE_HOME/muster/dev.json`, or below `~/.local/state`.
fn path() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(base.join("muster").join("dev.json"))
}

/// Held while the cluster runs; dropped, nothing is announced any more.
pub struct Announced {
    // Its lock is what counts.
    file: File,
    path: PathBuf,
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Emptied first: a reader that has opened it already finds nothing. Both are tidiness; the lock ends anyway.
        let _ = self.file.set_len(0);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Tells commands of this user where the cluster is. None where that cannot be told, or another `muster dev` is
/// announced already; that one stays.
pub fn announce(endpoints: &[String], web: &[String], store: &Path) -> Option<Announced> {
    announce_at(&path()?, endpoints, web, store)
}

fn announce_at(path: &Path, endpoints: &[String], web: &[String], store: &Path) -> Option<Announced> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    let mut options = File::options();
    let mut file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path).ok()?;
    file.try_lock().ok()?;
    let (endpoints, web, store) = (endpoints.to_vec(), web.to_vec(), Some(store.to_owned()));
    let text = serde_json::to_vec(&Announcement { endpoints, web, store }).ok()?;
    file.set_len(0).ok()?;
    file.rewind().ok()?;
    file.write_all(&text).ok()?;
    Some(Announced { file, path: path.to_path_buf() })
}

/// The endpoints of the running `muster dev` of this user.
pub fn running() -> Option<Vec<String>> {
    running_at(&path()?).map(|announced| announced.endpoints)
}

/// Where its web pages are; empty without one.
pub fn running_web() -> Vec<String> {
    path().and_then(|path| running_at(&path)).map_or_else(Vec::new, |announced| announced.web)
}

/// Where its store of files of jobs is; none without one.
pub fn running_store() -> Option<PathBuf> {
    path().and_then(|path| running_at(&path)).and_then(|announced| announced.store)
}

fn running_at(path: &Path) -> Option<Announcement> {
    let file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    let announced: Announcement = serde_json::from_slice(&text).ok()?;
    (!announced.endpoints.is_empty()).then_some(announced)
}

/// Has a job start where the command was given, with the command's PATH; what the job states itself stays. Only for a
/// cluster whose hosts are this machine.
pub fn localize(job: &mut v1::Job) {
    let spec = job.spec_mut();
    if spec.working_directory.is_empty()
        && spec.workdir.is_none()
        && let Some(here) =
            std::env::current_dir().ok().and_then(|here| here.into_os_string().into_string().ok())
    {
        spec.working_directory = here;
    }
    for name in VARIABLES {
        if let Ok(value) = std::env::var(name) {
            for group in &mut spec.groups {
                if group.environment.iter().all(|known| known.name != name) {
                    group.set_variable(name, &value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints_at(path: &Path) -> Option<Vec<String>> {
        running_at(path).map(|announced| announced.endpoints)
    }

    #[test]
    fn a_cluster_is_found_while_it_is_announced_and_not_after() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/muster/dev.json");
        assert_eq!(endpoints_at(&path), None);
        let endpoints = vec!["http://127.0.0.1:1".to_owned()];
        let store = Path::new("/dev-cluster/files");
        let announced = announce_at(&path, &endpoints, &[], store).unwrap();
        assert_eq!(endpoints_at(&path).as_ref(), Some(&endpoints));
        assert_eq!(running_at(&path).and_then(|running| running.store).as_deref(), Some(store));
        // A second one does not take its place.
        assert!(announce_at(&path, &["http://127.0.0.1:2".to_owned()], &[], store).is_none());
        assert_eq!(endpoints_at(&path).as_ref(), Some(&endpoints));
        drop(announced);
        assert_eq!(endpoints_at(&path), None);
        // Left by a process that was killed: the lock went with it.
        std::fs::write(&path, "{\"endpoints\": [\"http://127.0.0.1:3\"]}").unwrap();
        assert_eq!(endpoints_at(&path), None);
    }

    #[test]
    fn a_damaged_announcement_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dev.json");
        for text in ["", "{}", "[", "{\"endpoints\": []}", "{\"endpoints\": 1}", "\u{0}"] {
            std::fs::write(&path, text).unwrap();
            let held = File::open(&path).unwrap();
            held.lock().unwrap();
            assert_eq!(endpoints_at(&path), None, "{text:?}");
        }
    }

    #[test]
    fn a_job_starts_here_unless_it_states_where() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let mut job = v1::Job::default();
        job.spec_mut().groups.push(v1::TaskGroup::default());
        localize(&mut job);
        assert_eq!(job.spec().working_directory, here);
        assert_eq!(job.spec().groups[0].variable("PATH"), std::env::var("PATH").ok().as_deref());
        let mut own = job.clone();
        own.spec_mut().working_directory = "/work".to_owned();
        own.spec_mut().groups[0].set_variable("PATH", "/bin");
        localize(&mut own);
        assert_eq!(own.spec().working_directory, "/work");
        assert_eq!(own.spec().groups[0].variable("PATH"), Some("/bin"));
        let mut with_files = v1::Job::default();
        with_files.spec_mut().workdir = Some(v1::Workdir::default());
        localize(&mut with_files);
        assert_eq!(with_files.spec().working_directory, "", "it starts where its files are");
    }
}
