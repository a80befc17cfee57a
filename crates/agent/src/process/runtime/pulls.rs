//! Images that are being pulled: each pull has a directory for what it fetches, and ends when it fills more of the disk than all
//! images may.
//!
//! A registry says what it likes of the size of an image, and a layer of a few megabytes can have files of many terabytes. So what
//! is there is measured: what was fetched, and the layers that have come to the storage since the pull began. Layers of other pulls
//! at the same time cannot be told from its own, so each of these may bring as much.

use super::ImageError;
use crate::disk::tree;
use crate::offload::blocking;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::future::Future;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest pause between two measurements; one that takes longer is made more seldom, a tenth of the time at most.
const MEASURE: Duration = Duration::from_secs(1);
/// How the names of directories of pulls begin; each has a number.
const PULL: &str = ".pull_";

/// Does work until it is done, or what it fills is too large; none then, and the work is given up.
pub(super) async fn while_small<T>(
    work: impl Future<Output = T>,
    is_too_large: impl Fn() -> bool + Clone + Send + 'static,
) -> Option<T> {
    let grows = async move {
        let mut pause = MEASURE;
        loop {
            tokio::time::sleep(pause).await;
            let (begun, is_too_large) = (Instant::now(), is_too_large.clone());
            if blocking(is_too_large).await {
                return;
            }
            pause = MEASURE.max(begun.elapsed().saturating_mul(9));
        }
    };
    tokio::select! {
        done = work => Some(done),
        () = grows => None,
    }
}

/// Why a pull was ended.
pub(super) fn too_large(bytes_max: u64) -> ImageError {
    ImageError::unusable(format!(
        "it was ended while it was fetched, because it fills more than the {bytes_max} bytes of images.size_max of this host"
    ))
}

/// The pulls of one runtime.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulls(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    begun: u64,
    live: BTreeSet<u64>,
}

/// One of them. Its directory goes with [`Pull::end`], or with the next [`Pulls::tidy`] after it is dropped.
pub(super) struct Pull {
    number: u64,
    /// How many others ran when it began.
    others: u64,
    pub(super) directory: PathBuf,
    pulls: Pulls,
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.pulls.0.lock().live.remove(&self.number);
    }
}

impl Pulls {
    /// Makes the directory of a pull, below that of all images.
    pub(super) async fn begin(&self, owner: &Path) -> Result<Pull, ImageError> {
        let (number, others) = {
            let mut state = self.0.lock();
            let (number, others) = (state.begun, state.live.len() as u64);
            state.begun += 1;
            state.live.insert(number);
            (number, others)
        };
        let directory = owner.join(format!("{PULL}{number}"));
        let pull = Pull { number, others, directory, pulls: self.clone() };
        let path = pull.directory.clone();
        let made = blocking(move || -> io::Result<()> {
            tree::remove(&path)?;
            DirBuilder::new().recursive(true).mode(0o700).create(path)
        });
        made.await.map_err(|error| ImageError::unusable(format!("make a directory for a pull: {error}")))?;
        Ok(pull)
    }

    /// How many pulls ran at some time since this one began, itself included.
    fn since(&self, number: u64, others: u64) -> u64 {
        others.saturating_add(self.0.lock().begun.saturating_sub(number))
    }

    /// Removes what pulls have left that were given up.
    pub(super) async fn tidy(&self, owner: &Path) {
        let (pulls, owner) = (self.clone(), owner.to_owned());
        let left = blocking(move || -> io::Result<()> {
            let Ok(entries) = fs::read_dir(&owner) else { return Ok(()) };
            for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
                let number = name.strip_prefix(PULL).and_then(|number| number.parse::<u64>().ok());
                let Some(number) = number else { continue };
                if !pulls.0.lock().live.contains(&number) {
                    tree::remove(&owner.join(&name))?;
                }
            }
            Ok(())
        });
        if let Err(error) = left.await {
            tracing::warn!(%error, "what pulling an image has left stays for now");
        }
    }
}

impl Pull {
    /// Whether it fills too much: its directory, or the layers that have come since it began.
    pub(super) fn watch(
        &self,
        layers: Option<Layers>,
        bytes_max: u64,
    ) -> impl Fn() -> bool + Clone + Send + use<> {
        let (directory, pulls) = (self.directory.clone(), self.pulls.clone());
        let (number, others) = (self.number, self.others);
        move || {
            let of_all = bytes_max.saturating_mul(pulls.since(number, others));
            tree::size(&directory).bytes > bytes_max
                || layers.as_ref().is_some_and(|layers| layers.bytes_since() > of_all)
        }
    }

    /// Removes the directory that the pull worked in, with everything that it left there.
    pub(super) async fn end(self) {
        let path = self.directory.clone();
        if let Err(error) = blocking(move || tree::remove(&path)).await {
            tracing::warn!(%error, "what pulling an image has left stays for now");
        }
    }
}

/// The layers of a storage, and which of them were there before.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    directory: PathBuf,
    before: Arc<BTreeSet<OsString>>,
}

impl Layers {
    /// Those of a storage with this root and driver.
    pub(super) async fn of(root: &Path, driver: &str) -> Layers {
        let directory = root.join(driver);
        let directory = if driver == "vfs" { directory.join("dir") } else { directory };
        blocking(move || {
            let before = Arc::new(names(&directory).collect());
            Layers { directory, before }
        })
        .await
    }

    fn bytes_since(&self) -> u64 {
        let new = names(&self.directory).filter(|name| !self.before.contains(name));
        new.map(|name| tree::size(&self.directory.join(name)).bytes).fold(0, u64::saturating_add)
    }
}

fn names(directory: &Path) -> impl Iterator<Item = OsString> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: usize) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("file"), vec![7; bytes]).unwrap();
    }

    #[tokio::test]
    async fn a_pull_fills_no_more_than_all_images_may() {
        let place = tempfile::tempdir().unwrap();
        let (owner, root) = (place.path().join("images"), place.path().join("storage"));
        write(&root.join("overlay/old"), 1 << 20);
        let layers = Layers::of(&root, "overlay").await;
        let pulls = Pulls::default();
        let pull = pulls.begin(&owner).await.unwrap();
        let is_too_large = pull.watch(Some(layers), 512 << 10);
        assert!(!is_too_large(), "what was there before is not its own");
        write(&root.join("overlay/new"), 1 << 20);
        assert!(is_too_large());
        // Another pull may have brought half of it.
        let other = pulls.begin(&owner).await.unwrap();
        let third = pulls.begin(&owner).await.unwrap();
        assert!(!is_too_large());
        write(&pull.directory, 1 << 20);
        assert!(is_too_large(), "what it fetched is its own");
        drop(third);
        pulls.tidy(&owner).await;
        assert!(pull.directory.exists() && other.directory.exists());
        assert_eq!(names(&owner).count(), 2);
        let ended = while_small(std::future::pending::<()>(), is_too_large).await;
        assert_eq!(ended, None);
        pull.end().await;
        other.end().await;
        assert_eq!(names(&owner).count(), 0);
        assert_eq!(while_small(std::future::ready(7), || true).await, Some(7));
    }
}
