//! Unpacked images, one directory for each: `rootfs` with its files, `lock` for those who have it, `size`, `references` with the
//! names by which jobs asked for it, and `pulled` where this agent fetched it.
//!
//! A shim holds the lock of its worker's image shared for as long as the worker is there, so that no agent, and no later
//! one, removes what is in use. The time of the lock says when the image was last asked for.

use super::credentials::Credentials;
use super::{FoundImage, ImageConfig, ImageError, ImageFault, Runtime};
use crate::disk::{disposal, tree};
use crate::offload::blocking;
use crate::turns::Turns;
use muster_types::{Container, PullRule, StartStage, limits};
use parking_lot::Mutex as Locked;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, Notify};

/// The files of an image.
pub(crate) const ROOT: &str = "rootfs";
/// What is locked.
const LOCK: &str = "lock";
/// Of how many bytes it is.
const SIZE: &str = "size";
/// By what names jobs asked for it, one a line.
const REFERENCES: &str = "references";
/// Names of one image that are kept, the last ones.
const REFERENCES_MAX: usize = 16;
/// It was fetched by an agent, which may remove it from the runtime's storage as well.
const PULLED: &str = "pulled";
/// How names of notes begin about what is being fetched: a reference or an id. Each fetch has a number.
const FETCHING: &str = ".fetching";
/// Images that are pulled at the same time, in rotation over tenants; one tenant has at most half.
const PULLS_AT_ONCE: usize = 4;
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
    fn of(directory: PathBuf, reference: &str, image: FoundImage, held: File) -> Prepared {
        // When it was last asked for.
        let _ = held.set_modified(SystemTime::now());
        // Only for what the node says that it holds.
        if let Err(error) = note_reference(&directory, reference) {
            tracing::debug!(%error, directory = %directory.display(), "the name of an image is not kept");
        }
        Prepared { directory, config: image.config, _held: held }
    }
}

/// What is being fetched now, by the number of its fetch.
type Live = Arc<Locked<BTreeMap<u64, String>>>;

/// One fetch of this agent. What it has noted goes from the runtime's storage when it is dropped before its image is unpacked.
struct Fetch {
    number: u64,
    live: Live,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.live.lock().remove(&self.number);
    }
}

/// Images that are prepared now, each with who waits for it: by tenant and reference.
type Preparing = Locked<BTreeMap<(String, String), Arc<Mutex<()>>>>;

/// Tells what is done for an image.
type Reached<'a> = &'a (dyn Fn(StartStage) + Sync);

/// Workers that wait for their images.
#[derive(Debug, Default)]
struct Awaited {
    /// How many for each image.
    images: Locked<BTreeMap<String, usize>>,
    changed: Notify,
}

/// One of them.
struct Waiter<'a> {
    awaited: &'a Awaited,
    image: &'a str,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut images = self.awaited.images.lock();
        if let Some(count) = images.get_mut(self.image) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                images.remove(self.image);
            }
        }
        drop(images);
        self.awaited.changed.notify_waiters();
    }
}

impl Awaited {
    fn begin<'a>(&'a self, image: &'a str) -> Waiter<'a> {
        *self.images.lock().entry(image.to_owned()).or_default() += 1;
        self.changed.notify_waiters();
        Waiter { awaited: self, image }
    }

    fn is_none(&self) -> bool {
        self.images.lock().is_empty()
    }

    /// Whether workers wait, and none of them for this image.
    fn is_of_others(&self, image: &str) -> bool {
        let images = self.images.lock();
        !images.is_empty() && !images.contains_key(image)
    }

    /// Ends when no worker waits.
    async fn none(&self) {
        loop {
            // Listens before it looks.
            let changed = self.changed.notified();
            if self.is_none() {
                return;
            }
            changed.await;
        }
    }

    /// Ends when workers wait for other images while this one is unpacked.
    async fn behind(&self, image: &str, is_unpacked: &AtomicBool) {
        loop {
            let changed = self.changed.notified();
            if is_unpacked.load(Ordering::Relaxed) && self.is_of_others(image) {
                return;
            }
            changed.await;
        }
    }
}

/// The images of one host.
#[derive(Debug)]
pub(crate) struct ImageStore<R> {
    runtime: R,
    credentials: Credentials,
    directory: PathBuf,
    bytes_max: u64,
    /// For one pull, and for one image to be unpacked.
    time: Duration,
    /// Between two attempts to pull.
    pull_again: Duration,
    /// One image is unpacked at a time: a disk is no faster for several, and no image is unpacked twice. Nobody waits for a
    /// registry with it.
    turn: Mutex<()>,
    /// Of those who wait for a registry: one that one tenant names holds no other's images up.
    pulls: Turns,
    /// No tenant pulls one image twice at the same time.
    preparing: Preparing,
    fetches: AtomicU64,
    fetching: Live,
    awaited: Awaited,
    /// Of images that are fetched ahead: two at a time and one of each tenant, in rotation over tenants.
    ahead: Turns,
}

impl<R: Runtime> ImageStore<R> {
    /// Those in a directory, which is made where it is missing. What was left unfinished goes.
    pub(crate) fn open(
        runtime: R,
        credentials: Credentials,
        directory: PathBuf,
        bytes_max: u64,
        time: Duration,
    ) -> io::Result<ImageStore<R>> {
        // Programs of images may have a set-user-ID bit: nobody else on the host finds them.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        discard_unfinished(&directory)?;
        credentials.remove_left()?;
        Ok(ImageStore {
            runtime,
            credentials,
            directory,
            bytes_max,
            time,
            pull_again: PULL_AGAIN,
            turn: Mutex::default(),
            pulls: Turns::halved(PULLS_AT_ONCE),
            preparing: Locked::default(),
            fetches: AtomicU64::new(0),
            fetching: Live::default(),
            awaited: Awaited::default(),
            ahead: Turns::new(2),
        })
    }

    /// Has the image of a job unpacked. It can be given up at any time: what it leaves then goes before the next one.
    pub(crate) async fn prepare(
        &self,
        tenant: &str,
        container: &Container,
        reached: Reached<'_>,
    ) -> Result<Prepared, ImageError> {
        if let Some(prepared) = self.at_once(container).await {
            return Ok(prepared);
        }
        let _waits = self.awaited.begin(&container.image);
        self.fetch(tenant, container, reached).await
    }

    /// Has an image unpacked for workers that are expected later. It begins while no worker waits for an image, after those of
    /// other tenants in rotation, and can be given up like any other. Images are unpacked one by one, so it is given up while it is
    /// unpacked and a worker waits for another one.
    pub(crate) async fn prepare_ahead(&self, tenant: &str, container: &Container) -> Result<(), ImageError> {
        let _turn = self.ahead.take(tenant).await;
        if self.at_once(container).await.is_some() {
            return Ok(());
        }
        self.awaited.none().await;
        let is_unpacked = AtomicBool::new(false);
        let reached = |stage: StartStage| {
            if stage == StartStage::Unpacking {
                is_unpacked.store(true, Ordering::Relaxed);
                self.awaited.changed.notify_waiters();
            }
        };
        tokio::select! {
            prepared = self.fetch(tenant, container, &reached) => prepared.map(drop),
            () = self.awaited.behind(&container.image, &is_unpacked) => {
                Err(ImageError::unusable("it is given up, because a worker waits for another image"))
            }
        }
    }

    /// References of the images that are unpacked, those that were asked for last first.
    pub(crate) async fn held(&self) -> Vec<String> {
        let directory = self.directory.clone();
        blocking(move || held_references(&directory)).await
    }

    /// An image that is there already. It waits for nobody: a registry that one tenant names holds no other's workers up.
    async fn at_once(&self, container: &Container) -> Option<Prepared> {
        let here = tokio::time::timeout(TIDY_MAX, self.prepare_from_here(container)).await;
        here.ok()?.ok()?
    }

    async fn fetch(
        &self,
        tenant: &str,
        container: &Container,
        reached: Reached<'_>,
    ) -> Result<Prepared, ImageError> {
        let own = self.own(tenant, &container.image);
        let _alone = own.lock().await;
        let prepared = self.prepare_now(tenant, container, reached).await;
        let _turn = self.turn.lock().await;
        match &prepared {
            Ok(_) => self.trim().await,
            Err(_) => self.sweep().await,
        }
        prepared
    }

    /// What those share who wait for one image of a tenant.
    fn own(&self, tenant: &str, image: &str) -> Arc<Mutex<()>> {
        let mut preparing = self.preparing.lock();
        preparing.retain(|_, waiting| Arc::strong_count(waiting) > 1);
        Arc::clone(preparing.entry((tenant.to_owned(), image.to_owned())).or_default())
    }

    /// Does something for an image, for as long as it may take.
    async fn in_time<T>(
        &self,
        container: &Container,
        work: impl Future<Output = Result<T, ImageError>>,
    ) -> Result<T, ImageError> {
        tokio::time::timeout(self.time, work).await.unwrap_or_else(|_| {
            let said = format!("{} was not there after {} s", container.image, self.time.as_secs());
            Err(ImageError::new(ImageFault::TimedOut, said))
        })
    }

    /// An image that is unpacked already and need not be pulled.
    async fn prepare_from_here(&self, container: &Container) -> Result<Option<Prepared>, ImageError> {
        if container.pull == PullRule::Always {
            return Ok(None);
        }
        let Some(image) = self.runtime.find(&container.image).await? else { return Ok(None) };
        let directory = self.directory.join(&image.id);
        Ok(hold(&directory).ok().map(|held| Prepared::of(directory, &container.image, image, held)))
    }

    /// Removes what was begun and given up. With the turn.
    async fn sweep(&self) {
        let directory = self.directory.clone();
        if let Err(error) = blocking(move || remove_unfinished(&directory)).await {
            tracing::warn!(%error, "an image that was not unpacked whole stays for now");
        }
        let (directory, live) = (self.directory.clone(), Arc::clone(&self.fetching));
        let fetched = blocking(move || given_up(&directory, &live)).await;
        let tidy = async {
            self.runtime.tidy(&self.directory).await;
            for what in fetched {
                self.runtime.remove(&what).await;
            }
        };
        if tokio::time::timeout(TIDY_MAX, tidy).await.is_err() {
            tracing::warn!(
                "what images were exported from stays for now: the container runtime does not answer"
            );
        }
    }

    async fn prepare_now(
        &self,
        tenant: &str,
        container: &Container,
        reached: Reached<'_>,
    ) -> Result<Prepared, ImageError> {
        let reference = container.image.as_str();
        let known = {
            let _turn = self.turn.lock().await;
            self.sweep().await;
            let known = self.in_time(container, self.runtime.find(reference)).await?;
            match (known, container.pull) {
                (Some(image), PullRule::Missing | PullRule::Never) => {
                    reached(StartStage::Unpacking);
                    return self.in_time(container, self.unpacked(reference, image, None)).await;
                }
                (None, PullRule::Never) => {
                    let said = format!("{reference} is not on this host, and the job says never to pull it");
                    return Err(ImageError::new(ImageFault::NotHere, said));
                }
                (known, _) => known,
            }
        };
        let number = self.fetches.fetch_add(1, Ordering::Relaxed);
        let fetch = Fetch { number, live: Arc::clone(&self.fetching) };
        if known.is_none() {
            self.note_fetch(&fetch, reference).await?;
        }
        reached(StartStage::Pulling);
        {
            let _pull = self.pulls.take(tenant).await;
            let file = self.credentials.file_of(tenant, container).await?;
            let file = file.as_ref().map(|file| file.path());
            self.in_time(container, self.pull(reference, file)).await?;
        }
        reached(StartStage::Unpacking);
        let _turn = self.turn.lock().await;
        let unpacked = async {
            let found = self.runtime.find(reference).await?;
            let image = found
                .ok_or_else(|| ImageError::unusable(format!("{reference} was pulled and is not there")))?;
            // What was there before is not the agent's to remove.
            if known.is_some_and(|known| known.id == image.id) {
                return self.unpacked(reference, image, None).await;
            }
            self.note_fetch(&fetch, &image.id).await?;
            self.unpacked(reference, image, Some(&fetch)).await
        };
        self.in_time(container, unpacked).await
    }

    /// Has an image in its directory that the runtime has. With the turn.
    async fn unpacked(
        &self,
        reference: &str,
        image: FoundImage,
        fetch: Option<&Fetch>,
    ) -> Result<Prepared, ImageError> {
        let directory = self.directory.join(&image.id);
        if !directory.is_dir() {
            self.unpack(&image, &directory, fetch.is_some()).await?;
        }
        if let Some(fetch) = fetch {
            let noted = note_of(&self.directory, fetch.number);
            let done = blocking(move || fs::remove_file(noted)).await;
            done.map_err(|error| of_disk(&self.directory, &error))?;
        }
        let held = hold(&directory).map_err(|error| of_disk(&directory, &error))?;
        Ok(Prepared::of(directory, reference, image, held))
    }

    /// Notes what is fetched now, so that it goes from the runtime's storage too if it is never unpacked: otherwise nobody would
    /// know that it is not an operator's.
    async fn note_fetch(&self, fetch: &Fetch, what: &str) -> Result<(), ImageError> {
        // Listed before it is written: a sweep passes it over.
        fetch.live.lock().insert(fetch.number, what.to_owned());
        let (noted, what) = (note_of(&self.directory, fetch.number), what.to_owned());
        let written = blocking(move || fs::write(noted, what)).await;
        written.map_err(|error| of_disk(&self.directory, &error))
    }

    /// Fetches an image, again where its registry does not answer.
    async fn pull(&self, reference: &str, credentials: Option<&Path>) -> Result<(), ImageError> {
        loop {
            match self.runtime.pull(reference, credentials, &self.directory, self.bytes_max).await {
                Ok(()) => return Ok(()),
                Err(error) if error.fault() == ImageFault::Unreachable => {
                    tracing::warn!(reference, %error, "an image cannot be pulled now; trying again");
                    tokio::time::sleep(self.pull_again).await;
                }
                Err(error) => return Err(error),
            }
        }
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

/// Keeps the name by which an image was asked for, the last ones of several.
fn note_reference(directory: &Path, reference: &str) -> io::Result<()> {
    let mut kept = references_of(directory);
    if kept.first().is_some_and(|first| first == reference) {
        return Ok(());
    }
    kept.retain(|known| known != reference);
    kept.insert(0, reference.to_owned());
    kept.truncate(REFERENCES_MAX);
    let part = directory.join(format!("{REFERENCES}.new"));
    fs::write(&part, kept.join("\n"))?;
    fs::rename(&part, directory.join(REFERENCES))
}

fn references_of(directory: &Path) -> Vec<String> {
    let bytes_max = (REFERENCES_MAX * (limits::IMAGE_BYTES_MAX + 1)) as u64;
    let bytes = crate::disk::durable::read_bounded(&directory.join(REFERENCES), bytes_max);
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    text.lines().filter(|line| !line.is_empty()).take(REFERENCES_MAX).map(str::to_owned).collect()
}

/// The names of all images, those that were asked for last first.
fn held_references(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let asked_for = |path: &Path| fs::metadata(path.join(LOCK)).and_then(|about| about.modified()).ok();
    let is_whole = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with('.'))
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_whole(path));
    let mut images: Vec<_> = paths.filter_map(|path| Some((asked_for(&path)?, path))).collect();
    images.sort_by(|one, other| (other.0, &one.1).cmp(&(one.0, &other.1)));
    let mut held = Vec::new();
    for (_, path) in images {
        held.extend(references_of(&path));
        if held.len() >= limits::IMAGES_HELD_MAX {
            break;
        }
    }
    held.truncate(limits::IMAGES_HELD_MAX);
    held
}

/// Where it is noted what a fetch is about.
fn note_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{FETCHING}_{number}"))
}

/// Takes the notes of fetches that were given up, also by an agent before this one, and returns what they are about.
fn given_up(directory: &Path, live: &Live) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found = Vec::new();
    for name in names.filter(|name| name.starts_with(FETCHING)) {
        let number = name.rsplit('_').next().and_then(|number| number.parse::<u64>().ok());
        if number.is_some_and(|number| live.lock().contains_key(&number)) {
            continue;
        }
        let noted = directory.join(name);
        found.extend(fs::read_to_string(&noted));
        // Once: what is still there then is in use, or was never fetched.
        let _ = fs::remove_file(&noted);
    }
    // Another fetch may be about the same.
    let live = live.lock();
    found.retain(|what| !live.values().any(|other| other == what));
    found
}

/// Has what was not unpacked whole removed when an agent starts, and what an earlier one was removing. An image may have millions
/// of files, and the gangs of this host go on only if the first heartbeat comes soon.
fn discard_unfinished(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if disposal::is_set_aside(&name) {
            disposal::remove(entry.path());
        } else if name.to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
            disposal::discard(directory, &entry.path())?;
        }
    }
    Ok(())
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
        let entry = entry?;
        // What is not whole, or is being removed.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
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

    /// A registry with one image of 4 KiB for each reference that it knows.
    #[derive(Clone, Debug, Default)]
    struct Registry {
        has: Arc<Locked<Vec<String>>>,
        local: Arc<Locked<Vec<String>>>,
        log: Arc<Locked<Vec<String>>>,
        unreachable: Arc<Locked<u32>>,
        /// References whose registry never answers.
        silent: Arc<Locked<Vec<String>>>,
        /// References whose images are never unpacked to the end.
        endless: Arc<Locked<Vec<String>>>,
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

        async fn pull(&self, reference: &str, _: Option<&Path>, _: &Path, _: u64) -> Result<(), ImageError> {
            self.log.lock().push(format!("pull {reference}"));
            if self.silent.lock().iter().any(|silent| silent == reference) {
                std::future::pending::<()>().await;
            }
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
            if self.endless.lock().iter().any(|endless| id_of(endless) == id) {
                std::future::pending::<()>().await;
            }
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

    /// No credentials.
    fn none(directory: &Path) -> Credentials {
        Credentials::new(None, directory.to_owned())
    }

    fn store(registry: &Registry, directory: &Path, max: u64) -> ImageStore<Registry> {
        ImageStore::open(
            registry.clone(),
            none(directory),
            directory.join("images"),
            max,
            Duration::from_secs(60),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn an_image_is_pulled_and_unpacked_once() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        *registry.unreachable.lock() = 2;
        let mut store = store(&registry, directory.path(), 1 << 30);
        store.pull_again = Duration::from_millis(1);
        let never = store
            .prepare("research", &container("localhost/a:1", PullRule::Never), &|_| ())
            .await
            .unwrap_err();
        assert_eq!(never.fault(), ImageFault::NotHere);
        let first =
            store.prepare("research", &container("localhost/a:1", PullRule::Missing), &|_| ()).await.unwrap();
        let second =
            store.prepare("research", &container("localhost/a:1", PullRule::Never), &|_| ()).await.unwrap();
        assert_eq!(first.directory, second.directory);
        assert!(first.directory.join(ROOT).is_dir());
        let pull = "pull localhost/a:1";
        assert_eq!(*registry.log.lock(), [pull, pull, pull, "unpack"]);
        store.prepare("research", &container("localhost/a:1", PullRule::Always), &|_| ()).await.unwrap();
        assert_eq!(registry.log.lock().len(), 5);
        let unknown = store
            .prepare("research", &container("localhost/b:1", PullRule::Missing), &|_| ())
            .await
            .unwrap_err();
        assert_eq!(unknown.fault(), ImageFault::NotFound);
        *registry.unreachable.lock() = u32::MAX;
        store.time = Duration::from_millis(50);
        let late = store
            .prepare("research", &container("localhost/b:1", PullRule::Missing), &|_| ())
            .await
            .unwrap_err();
        assert_eq!(late.fault(), ImageFault::TimedOut);
        assert!(late.to_string().starts_with("IMAGE_TIMED_OUT: localhost/b:1"), "{late}");
    }

    #[tokio::test]
    async fn what_is_there_waits_for_no_registry() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1 << 30);
        let here = container("localhost/a:1", PullRule::Missing);
        store.prepare("research", &here, &|_| ()).await.unwrap();
        *registry.unreachable.lock() = u32::MAX;
        let missing = container("localhost/b:1", PullRule::Missing);
        let pulling = store.prepare("research", &missing, &|_| ());
        tokio::pin!(pulling);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut pulling).await.is_err());
        store.prepare("research", &here, &|_| ()).await.unwrap();
    }

    #[tokio::test]
    async fn a_registry_of_one_tenant_holds_no_new_image_of_another_up() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        let silent = |number: usize| format!("silent.example/{number}:1");
        registry.silent.lock().extend((0..PULLS_AT_ONCE).map(silent));
        registry.has.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1 << 30);
        let images: Vec<_> =
            (0..PULLS_AT_ONCE).map(|number| container(&silent(number), PullRule::Missing)).collect();
        let pulling = images.iter().map(|image| store.prepare("many", image, &|_| ()));
        let pulling = futures::future::join_all(pulling);
        tokio::pin!(pulling);
        let missing = container("localhost/a:1", PullRule::Missing);
        let other = async {
            while registry.log.lock().len() < PULLS_AT_ONCE / 2 {
                tokio::task::yield_now().await;
            }
            store.prepare("few", &missing, &|_| ()).await.unwrap()
        };
        tokio::select! {
            _ = &mut pulling => panic!("no registry has answered"),
            prepared = other => assert!(prepared.directory.join(ROOT).is_dir()),
        }
        let pulls = registry.log.lock().iter().filter(|line| line.starts_with("pull silent")).count();
        assert_eq!(pulls, PULLS_AT_ONCE / 2, "half of the turns are for others");
    }

    #[tokio::test]
    async fn what_is_unpacked_ahead_gives_way_to_a_worker_that_waits_for_another_image() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().extend(["localhost/a:1", "localhost/b:1"].map(str::to_owned));
        registry.endless.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1 << 30);
        let large = container("localhost/a:1", PullRule::Missing);
        let needed = container("localhost/b:1", PullRule::Missing);
        let worker = async {
            while !registry.log.lock().contains(&"unpack".to_owned()) {
                tokio::task::yield_now().await;
            }
            store.prepare("few", &needed, &|_| ()).await
        };
        let both = async { tokio::join!(store.prepare_ahead("many", &large), worker) };
        let both = tokio::time::timeout(Duration::from_secs(30), both).await;
        let (ahead, worker) = both.expect("none waits for the other");
        assert!(ahead.is_err() && worker.unwrap().directory.join(ROOT).is_dir());
    }

    #[tokio::test]
    async fn what_one_fetch_gives_up_is_left_to_another_one_that_needs_it() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.silent.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1 << 30);
        let image = container("localhost/a:1", PullRule::Missing);
        let (mut one, mut two) = (
            Box::pin(store.prepare("one", &image, &|_| ())),
            Box::pin(store.prepare("two", &image, &|_| ())),
        );
        let both = async { tokio::join!(&mut one, &mut two) };
        let begun = async {
            while registry.log.lock().len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = both => panic!("no registry has answered"),
            () = begun => {}
        }
        drop(one);
        store.sweep().await;
        assert!(!registry.log.lock().contains(&"remove".to_owned()), "another tenant pulls it");
        drop(two);
        // Nobody needs it any more, but the note of the second one alone is left.
        store.sweep().await;
        assert!(registry.log.lock().contains(&"remove".to_owned()));
        assert_eq!(fs::read_dir(directory.path().join("images")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_image_that_is_not_unpacked_whole_leaves_nothing() {
        let (registry, directory) = (Registry::default(), tempfile::tempdir().unwrap());
        registry.has.lock().push("localhost/a:1".to_owned());
        let store = store(&registry, directory.path(), 1_000);
        let large = store
            .prepare("research", &container("localhost/a:1", PullRule::Missing), &|_| ())
            .await
            .unwrap_err();
        assert_eq!(large.fault(), ImageFault::Unusable);
        assert_eq!(fs::read_dir(directory.path().join("images")).unwrap().count(), 0);
        assert!(registry.local.lock().is_empty());
        // What an operator put there stays.
        registry.local.lock().push("localhost/a:1".to_owned());
        for pull in [PullRule::Missing, PullRule::Always, PullRule::Never] {
            store.prepare("research", &container("localhost/a:1", pull), &|_| ()).await.unwrap_err();
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
        let first =
            store.prepare("research", &container("localhost/a:1", PullRule::Missing), &|_| ()).await.unwrap();
        let second =
            store.prepare("research", &container("localhost/b:1", PullRule::Missing), &|_| ()).await.unwrap();
        assert!(first.directory.is_dir() && second.directory.is_dir());
        let gone = second.directory.clone();
        drop(second);
        let third =
            store.prepare("research", &container("localhost/c:1", PullRule::Missing), &|_| ()).await.unwrap();
        assert!(first.directory.is_dir() && !gone.exists() && third.directory.is_dir());
        assert_eq!(registry.local.lock().len(), 2);
        let left = directory.path().join("images").join(format!("{UNFINISHED}x"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("file"), "x").unwrap();
        // What is removed waits until this ends, and an agent that starts does not.
        let (release, released) = std::sync::mpsc::channel::<()>();
        disposal::run(move || {
            let _ = released.recv();
            Ok(())
        });
        drop(
            ImageStore::open(
                registry,
                none(directory.path()),
                directory.path().join("images"),
                0,
                Duration::from_secs(1),
            )
            .unwrap(),
        );
        assert!(!left.exists());
        let mut names = fs::read_dir(directory.path().join("images")).unwrap().flatten();
        assert!(names.any(|entry| disposal::is_set_aside(&entry.file_name())));
        drop(release);
    }
}
