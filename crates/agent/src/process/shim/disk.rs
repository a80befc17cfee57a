//! Holds a worker to what its files may take of the disk, where the host's operator says how much that is.
//!
//! Quotas differ between file systems, and few hosts have any. So a separate thread counts the worker's directories, in a
//! small part of the time. Between two counts a worker may have more, and what is too much to count in that time is not seen.

use crate::disk::tree::{self, CountBounds};
use crate::process::task::{TaskDir, TaskSpec};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Between two looks, at least.
const LOOK: Duration = Duration::from_secs(2);
/// The thread counts for at most one part in this number of the time.
const PART: u32 = 20;
/// One count takes no longer, however many files there are: so there is one every few minutes.
const COUNT_TIME_MAX: Duration = Duration::from_secs(10);

/// A worker's files, counted again and again.
pub(super) struct DiskWatch {
    /// Which files are counted, in a word or two.
    what: &'static str,
    max: u64,
    counted: Receiver<u64>,
}

impl DiskWatch {
    /// Counts the directories of `task` that the worker may write, and `others`. None without a bound.
    pub(super) fn start(
        task: &TaskDir,
        others: impl IntoIterator<Item = PathBuf>,
        max: u64,
    ) -> Option<DiskWatch> {
        let [tmp, var_tmp] = task.own_tmp();
        let own = [task.work(), tmp, var_tmp, task.image()];
        DiskWatch::over("files", own.into_iter().chain(others).collect(), max)
    }

    /// Counts the worker's scratch directory. None without one.
    pub(super) fn of_scratch(spec: &TaskSpec) -> Option<DiskWatch> {
        let directory = spec.temporary.clone()?;
        DiskWatch::over("files in its scratch directory", vec![directory], spec.scratch_bytes)
    }

    fn over(what: &'static str, directories: Vec<PathBuf>, max: u64) -> Option<DiskWatch> {
        if max == 0 {
            return None;
        }
        let (tell, counted) = sync_channel(1);
        std::thread::spawn(move || {
            crate::process::priority::step_back();
            let mut pause = LOOK;
            loop {
                std::thread::sleep(pause);
                let began = Instant::now();
                let bytes = bytes_of(&directories, max);
                pause = LOOK.max(began.elapsed() * PART);
                if bytes > max && tell.send(bytes).is_err() {
                    return;
                }
            }
        });
        Some(DiskWatch { what, max, counted })
    }

    /// What is to be said of a worker whose files take more than they may.
    pub(super) fn complaint(&self) -> Option<String> {
        let bytes = self.counted.try_recv().ok()?;
        Some(format!(
            "the worker's {} take {bytes} bytes of the disk, of {} that they may; it is killed",
            self.what, self.max
        ))
    }
}

/// What directories take together, as far as that is counted: not beyond `max`, and not for long.
fn bytes_of(directories: &[PathBuf], max: u64) -> u64 {
    let began = Instant::now();
    let mut sum = 0_u64;
    for directory in directories {
        let time = COUNT_TIME_MAX.saturating_sub(began.elapsed());
        let bounds = CountBounds { bytes: max.saturating_sub(sum), time };
        sum = sum.saturating_add(tree::size_within(directory, bounds).bytes);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_over_all_directories_until_there_are_too_many() {
        let place = tempfile::tempdir().unwrap();
        let directories = ["work", "tmp", "none"].map(|name| place.path().join(name));
        for directory in &directories[..2] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("file"), vec![7; 1 << 20]).unwrap();
        }
        assert!(bytes_of(&directories, u64::MAX) > 2 << 20);
        assert!(bytes_of(&directories, 1 << 19) > 1 << 19, "it is too much already");
    }
}
