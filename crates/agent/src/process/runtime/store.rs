//! Unpacked images, one directory for each: `rootfs` with its files, `lock` for those who have it, `size`, and `pulled` where
//! this agent fetched it.
//!
//! A shim holds the lock of its worker's image shared for as long as the worker is there, so that no agent, and no later
//! one, removes what is in use. The time of the lock says when the image was last asked for.

use super::{FoundImage, ImageConfig, ImageError, ImageFault, Runtime};
use crate::disk::tree;
use crate::offload::blocking;
use muster_types::{Container, PullRule};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// The files of an image.
pub(crate) const ROOT: &str = "rootfs";
/// What is locked.
const LOCK: &str = "lock";
/// Of how many bytes it is.
const SIZE: &str = "size";
/// It was fetched by an agent, which may remove it from the runtime's storage as well.
const PULLED: &str = "pulled";
/// What is being fetched: a reference or an id.
const FETCHING: &str = ".fetching";
/// What stands before the name of a directory that is none yet, or none any more.
const UNFINISHED: &str = ".part_";
/// What a look into the runtime's storage, or the removal of one thing from it, may take.
const TIDY_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to pull, unless a test says otherwise.
const PULL_AGAIN: Duration = Duration::from_secs(10);

/// An image that a worker can have.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The directory that it is unpacked in.
    pub(crate) directory: PathBuf,
    /// What it says of its programs.
    pub(crate) config: ImageConfig,
    /// Keeps it from being removed until its shims hold it.
    _held: File,
}

impl Prepared {
    fn of(directory: PathBuf, image: FoundImage, held: File) -> Prepared {
        // When it was last asked for.
        let _ = held.set_modified(SystemTime::now());
        Prepared { directory, config: image.config, _held: held }
    }
}

/// The images of one host.
#[derive(Debug)]
pub(crate) struct ImageStore<R> {
    runtime: R,
    directory: PathBuf,
    bytes_max: u64,
    /// For one image.
    time: Duration,
    /// Between two attempts to pull.
    pull_again: Duration,
    /// One image is pulled and unpacked at a time: a network and a disk are no faster for several, and no image is unpacked
    /// twice.
    turn: Mutex<()>,
}

impl<R: Runtime> ImageStore<R> {
    /// Those in a directory, which is made where it is missing. What was left unfinished goes.
    pub(crate) fn open(
        runtime: R,
        directory: PathBuf,
        bytes_max: u64,
        time: Duration,
    ) -> io::Result<ImageStore<R>> {
        // Programs of images may have a set-user-ID bit: nobody else on the host finds them.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        remove_unfinished(&directory)?;
        Ok(ImageStore { runtime, directory, bytes_max, time, pull_again: PULL_AGAIN, turn: Mutex::default() })
    }

    /// Has the image of a job unpacked. It can be given up at any time: what it leaves then goes before the next one.
    pub(crate) async fn prepare(&self, container: &Container) -> Result<Prepared, ImageError> {
        // What is there waits for nobody: a registry that one tenant names holds no other's workers up.
        let here = tokio::time::timeout(TIDY_MAX, self.prepare_from_here(container)).await;
        if let Ok(Ok(Some(prepared))) = here {
            return Ok(prepared);
        }
        let _turn = self.turn.lock().await;
        self.sweep().await;
        let prepared = tokio::time::timeout(self.time, self.prepare_now(container)).await;
        let prepared = prepared.unwrap_or_else(|_| {
            let said = format!("{} was not there after {} s", container.image, self.time.as_secs());
            Err(ImageError::new(ImageFault::TimedOut, said))
        });
        match &prepared {
            Ok(_) => self.trim().await,
            Err(_) => self.sweep().await,
        }
        prepared
    }

    /// An image that is unpacked already and need not be pulled.
    async fn prepare_from_here(&self, container: &Container) -> Result<Option<Prepared>, ImageError> {
        if container.pull == PullRule::Always {
            return Ok(None);
        }
        let Some(image) = self.runtime.find(&container.image).await? else { return Ok(None) };
        let directory = self.directory.join(&image.id);
        Ok(hold(&directory).ok().map(|held| Prepared::of(directory, image, held)))
    }

    /// Removes what was begun and given up.
    async fn sweep(&self) {
        let directory = self.directory.clone();
        if let Err(error) = blocking(move || remove_unfinished(&directory)).await {
            tracing::warn!(%error, "an image that was not unpacked whole stays for now");
        }
        let noted = self.directory.join(FETCHING);
        let fetched = blocking(move || {
            let fetched = fs::read_to_string(&noted).ok();
            // Once: what is still there then is in use, or was never fetched.
            let _ = fs::remove_file(&noted);
            fetched
        });
        let fetched = fetched.await;
        let tidy = async {
            self.runtime.tidy(&self.directory).await;
            if let Some(what) = fetched {
                self.runtime.remove(&what).await;
            }
        };
        if tokio::time::timeout(TIDY_MAX, tidy).await.is_err() {
            tracing::warn!(
                "what images were exported from stays for now: the container runtime does not answer"
            );
        }
    }

    async fn prepare_now(&self, container: &Container) -> Result<Prepared, ImageError> {
        let reference = container.image.as_str();
        let (image, is_pulled) = match (self.runtime.find(reference).await?, container.pull) {
            (Some(image), PullRule::Missing | PullRule::Never) => (image, false),
            (None, PullRule::Never) => {
                let said = format!("{reference} is not on this host, and the job says never to pull it");
                return Err(ImageError::new(ImageFault::NotHere, said));
            }
            (known, _) => {
                if known.is_none() {
                    self.note_fetch(reference).await?;
                }
                let image = self.pulled(reference).await?;
                // What was there before is not the agent's to remove.
                let is_new = known.is_none_or(|known| known.id != image.id);
                if is_new {
                    self.note_fetch(&image.id).await?;
                }
                (image, is_new)
            }
        };
        let directory = self.directory.join(&image.id);
        if !directory.is_dir() {
            self.unpack(&image, &directory, is_pulled).await?;
        }
        if is_pulled {
            let noted = self.directory.join(FETCHING);
            let done = blocking(move || fs::remove_file(noted)).await;
            done.map_err(|error| of_disk(&self.directory, &error))?;
        }
        let held = hold(&directory).map_err(|error| of_disk(&directory, &error))?;
        Ok(Prepared::of(directory, image, held))
    }

    /// Notes what is fetched now, so that it goes from the runtime's storage too if it is never unpacked: otherwise nobody would
    /// know that it is not an operator's.
    async fn note_fetch(&self, what: &str) -> Result<(), ImageError> {
        let (noted, what) = (self.directory.join(FETCHING), what.to_owned());
        let written = blocking(move || fs::write(noted, what)).await;
        written.map_err(|error| of_disk(&self.directory, &error))
    }

    /// Fetches an image, again where its registry does not answer.
    async fn pulled(&self, reference: &str) -> Result<FoundImage, ImageError> {
        loop {
            match self.runtime.pull(reference).await {
                Ok(()) => break,
                Err(error) if error.fault() == ImageFault::Unreachable => {
                    tracing::warn!(reference, %error, "an image cannot be pulled now; trying again");
                    tokio::time::sleep(self.pull_again).await;
                }
                Err(error) => return Err(error),
            }
        }
        let found = self.runtime.find(reference).await?;
        found.ok_or_else(|| ImageError::unusable(format!("{reference} was pulled and is not there")))
    }

    async fn unpack(&self, image: &FoundImage, directory: &Path, is_pulled: bool) -> Result<(), ImageError> {
        let part = self.directory.join(format!("{UNFINISHED}{}", image.id));
        let begun = part.clone();
        let made = blocking(move || -> io::Result<()> {
            tree::remove(&begun)?;
            fs::DirBuilder::new().mode(0o700).create(&begun)?;
            fs::DirBuilder::new().mode(0o755).create(begun.join(ROOT))?;
            File::create(begun.join(LOCK)).map(drop)
        });
        made.await.map_err(|error| of_disk(&part, &error))?;
        self.runtime.unpack(&image.id, &part.join(ROOT), &self.directory, self.bytes_max).await?;
        let (done, to, max) = (part.clone(), directory.to_owned(), self.bytes_max);
        let finished = blocking(move || -> io::Result<()> {
            let size = tree::size(&done.join(ROOT));
            // One with too many files to count may be as large as any.
            let bytes = if size.is_partial { max.max(size.bytes) } else { size.bytes };
            fs::write(done.join(SIZE), bytes.to_string())?;
            if is_pulled {
                File::create(done.join(PULLED))?;
            }
            fs::rename(&done, &to)
        });
        finished.await.map_err(|error| of_disk(&part, &error))
    }

    /// Removes images that no worker has, the longest unused first, until the rest is small enough.
    async fn trim(&self) {
        let (directory, max) = (self.directory.clone(), self.bytes_max);
        let removed = blocking(move || trim(&directory, max)).await;
        match removed {
            Ok(removed) => {
                for id in removed {
                    if tokio::time::timeout(TIDY_MAX, self.runtime.remove(&id)).await.is_err() {
                        tracing::warn!(image = id, "an image stays: the container runtime does not answer");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "unpacked images take more of the disk than they may"),
        }
    }
}

fn of_disk(path: &Path, error: &io::Error) -> ImageError {
    ImageError::unusable(format!("keep the image in {}: {error}", path.display()))
}

/// Holds an image, so that it is not removed as long as the file is open.
///
/// # Errors
/// When it is not there, or is removed just now.
pub(crate) fn hold(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    file.try_lock_shared().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::Error::other("it is being removed"),
    })?;
    // Between the two it may have gone, and even have been unpacked again.
    if fs::metadata(&path)?.ino() != file.metadata()?.ino() {
        return Err(io::Error::other("it was removed just now"));
    }
    Ok(file)
}

fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
            tree::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes what is too much; the ids of those that an agent fetched.
fn trim(directory: &Path, max: u64) -> io::Result<Vec<String>> {
    let mut images = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Ok(lock) = OpenOptions::new().write(true).open(path.join(LOCK)) else { continue };
        let size =
            fs::read_to_string(path.join(SIZE)).ok().and_then(|text| text.parse().ok()).unwrap_or(0u64);
        images.push((lock.metadata()?.modified()?, path, size, lock));
    }
    images.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    let mut bytes = images.iter().map(|image| image.2).fold(0, u64::saturating_add);
    let mut fetched = Vec::new();
    for (_, path, size, lock) in images {
        if bytes <= max {
            break;
        }
        // Some worker has it.
        if lock.try_lock().is_err() {
            continue;
        }
        let Some(id) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let was_pulled = path.join(PULLED).exists();
        let aside = directory.join(format!("{UNFINISHED}{id}"));
        tree::remove(&aside)?;
        fs::rename(&path, &aside)?;
        tree::remove(&aside)?;
        bytes = bytes.saturating_sub(size);
        if was_pulled {
            fetched.push(id.to_owned());
        }
    }
    Ok(fetched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex as Locked;
    use std::sync::Arc;

    /// A registry with one image of 4 KiB for each reference that it knows.
    #[derive(Clone, Debug, Default)]
    struct Registry {
        has: Arc<Locked<Vec<String>>>,
        local: Arc<Locked<Vec<String>>>,
        log: Arc<Locked<Vec<String>>>,
        unreachable: Arc<Locked<u32>>,
    }

    fn id_of(reference: &str) -> String {
        format!("{:0>64}", reference.bytes().map(u64::from).sum::<u64>())
    }

    impl Runtime for Registry {
        async fn find(&self, reference: &str) -> Result<Option<FoundImage>, ImageError> {
            let known = self.local.lock().iter().any(|local| local == reference);
            let image = FoundImage { id: id_of(reference), config: ImageConfig::default() };
            Ok(known.then_some(image))
        }

        async fn pull(&self, reference: &str) -> Result<(), ImageError> {
            self.log.lock().push(format!("pull {reference}"));
            let left = *self.unreachable.lock();
            if left > 0 {
                *self.unreachable.lock() = left - 1;
                return Err(ImageError::new(ImageFault::Unreachable, "no route"));
            }
            if !self.has.lock().iter().any(|known| known == reference) {
                return Err(ImageError::new(ImageFault::NotFound, "unknown"));
            }
            self.local.lock().push(reference.to_owned());
            Ok(())
        }

        async fn unpack(&self, id: &str, into: &Path, _: &Path, max: u64) -> Result<(), ImageError> {
            self.log.lock().push("unpack".to_owned());
            let written = fs::write(into.join(id), [7; 4_096]);
            if max < 4_096 {
                return Err(ImageError::unusable("too large"));
            }
            written.map_err(|error| of_disk(into, &error))
        }

        async fn tidy(&self, _: &Path) {}

        async fn remove(&self, id: &str) {
            self.log.lock().push("remove".to_owned());
            self.local.lock().retain(|local| id_of(local) != id);
        }
    }

    fn container(image: &str, pull: PullRule) -> Container {
        Container { pull, ..Container::new(image.to_owned()) }
    }

    fn store(registry: &Registry, directory: &Path, max: u64) -> ImageStore<Registry> {
        ImageStore::open(registry.clone(), directory.join("images"), max, Duration::from_secs(60)).unwrap()
    }

    #[tokio::test]
    async fn an_image_is_pulled_and_unpacked_once() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        *registry.unreachable.lock() = 2;
        let mut store = store(&registry, directory.path(), 1 << 30);
        store.pull_again = Duration::from_millis(1);
        let never = store.prepare(&container("localhost/a:1", PullRule::Never)).await.unwrap_err();
        assert_eq!(never.fault(), ImageFault::NotHere);
        let first = store.prepare(&container("localhost/a:1", PullRule::Missing)).await.unwrap();
        let second = store.prepare(&container("localhost/a:1", PullRule::Never)).await.unwrap();
        assert_eq!(first.directory, second.directory);
        assert!(first.directory.join(ROOT).is_dir());
        let pull = "pull localhost/a:1";
        assert_eq!(*registry.log.lock(), [pull, pull, pull, "unpack"]);
        store.prepare(&container("localhost/a:1", PullRule::Always)).await.unwrap();
        assert_eq!(registry.log.lock().len(), 5);
        let unknown = store.prepare(&container("localhost/b:1", PullRule::Missing)).await.unwrap_err();
        assert_eq!(unknown.fault(), ImageFault::NotFound);
        *registry.unreachable.lock() = u32::MAX;
        store.time = Duration::from_millis(50);
        let late = store.prepare(&container("localhost/b:1", PullRule::Missing)).await.unwrap_err();
        assert_eq!(late.fault(), ImageFault::TimedOut);
        assert!(late.to_string().starts_with("IMAGE_TIMED_OUT: localhost/b:1"), "{late}");
    }

    #[tokio::test]
    async fn what_is_there_waits_for_no_registry() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1 << 30);
        let here = container("localhost/a:1", PullRule::Missing);
        store.prepare(&here).await.unwrap();
        *registry.unreachable.lock() = u32::MAX;
        let missing = container("localhost/b:1", PullRule::Missing);
        let pulling = store.prepare(&missing);
        tokio::pin!(pulling);
        // It waits for its registry with the turn.
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut pulling).await.is_err());
        assert!(store.turn.try_lock().is_err());
        store.prepare(&here).await.unwrap();
    }

    #[tokio::test]
    async fn an_image_that_is_not_unpacked_whole_leaves_nothing() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1_000);
        let large = store.prepare(&container("localhost/a:1", PullRule::Missing)).await.unwrap_err();
        assert_eq!(large.fault(), ImageFault::Unusable);
        assert_eq!(fs::read_dir(directory.path().join("images")).unwrap().count(), 0);
        assert!(registry.local.lock().is_empty());
        // What an operator put there stays.
        registry.local.lock().push("localhost/a:1".to_owned());
        for pull in [PullRule::Missing, PullRule::Always, PullRule::Never] {
            store.prepare(&container("localhost/a:1", pull)).await.unwrap_err();
            assert_eq!(registry.local.lock()[0], "localhost/a:1", "{pull}");
        }
    }

    #[tokio::test]
    async fn what_a_worker_has_is_not_removed() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        for image in ["localhost/a:1", "localhost/b:1", "localhost/c:1"] {
            registry.has.lock().push(image.to_owned());
        }
        // For one of them.
        let store = store(&registry, directory.path(), 6_000);
        let first = store.prepare(&container("localhost/a:1", PullRule::Missing)).await.unwrap();
        let second = store.prepare(&container("localhost/b:1", PullRule::Missing)).await.unwrap();
        assert!(first.directory.is_dir() && second.directory.is_dir());
        let gone = second.directory.clone();
        drop(second);
        let third = store.prepare(&container("localhost/c:1", PullRule::Missing)).await.unwrap();
        assert!(first.directory.is_dir() && !gone.exists() && third.directory.is_dir());
        assert_eq!(registry.local.lock().len(), 2);
        let left = directory.path().join("images").join(format!("{UNFINISHED}x"));
        fs::create_dir(&left).unwrap();
        drop(ImageStore::open(registry, directory.path().join("images"), 0, Duration::from_secs(1)).unwrap());
        assert!(!left.exists());
    }
}
