//! Every write, flush and change of a name of a running replica is recorded. Then the power is cut
//! after each of them: what was not flushed is forgotten, torn or there, and what was acknowledged
//! has to be there all the same.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use muster_store::{
    Entry, EntryPayload, FileLayer, LeaderId, LogId, ReplicaStore, StoreOptions, SystemFiles, Vote,
};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::*;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    /// Zeros at the end, or a cut.
    Resize(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Create(PathBuf),
    Change(PathBuf, Change),
    /// Flushed, with all of its content where it is not written through the layer.
    Flush(PathBuf, Option<Vec<u8>>),
    FlushDirectory(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// The operation with this number was acknowledged.
    Acknowledged(usize),
}

/// Passes everything on to the system and writes it down.
#[derive(Default)]
struct Recorder {
    root: PathBuf,
    steps: Mutex<Vec<Step>>,
}

impl Recorder {
    fn note(&self, step: Step) {
        self.steps.lock().push(step);
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap_or(path).to_path_buf()
    }
}

impl FileLayer for Recorder {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.note(Step::Create(self.relative(path)));
        SystemFiles.create(path)
    }

    fn allocate(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        self.note(Step::Change(self.relative(path), Change::Resize(len)));
        SystemFiles.allocate(file, path, len)
    }

    fn set_len(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        self.note(Step::Change(self.relative(path), Change::Resize(len)));
        SystemFiles.set_len(file, path, len)
    }

    fn write_at(&self, file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.note(Step::Change(self.relative(path), Change::Write(offset, bytes.to_vec())));
        SystemFiles.write_at(file, path, bytes, offset)
    }

    fn sync_data(&self, file: &File, path: &Path) -> io::Result<()> {
        // The database writes its own files; what it had written counts from its flush on.
        let content = self.relative(path).starts_with("meta").then(|| std::fs::read(path).unwrap());
        SystemFiles.sync_data(file, path)?;
        self.note(Step::Flush(self.relative(path), content));
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        SystemFiles.sync_directory(path)?;
        self.note(Step::FlushDirectory(self.relative(path)));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(Step::Rename(self.relative(from), self.relative(to)));
        SystemFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note(Step::Remove(self.relative(path)));
        SystemFiles.remove(path)
    }
}

#[derive(Clone, Debug, Default)]
struct Inode {
    flushed: Vec<u8>,
    pending: Vec<Change>,
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Resize(len) => content.resize(*len as usize, 0),
        Change::Write(offset, bytes) => {
            let end = *offset as usize + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*offset as usize..end].copy_from_slice(bytes);
        }
    }
}

/// What became of everything that was not flushed.
#[derive(Clone, Copy, Debug)]
enum Unflushed {
    Lost,
    There,
    /// Each sector by itself, and the changes of names up to a point, as the seed has it.
    Torn(u64),
}

/// The disk as the recorded steps leave it.
#[derive(Clone, Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    flushed_names: BTreeMap<PathBuf, usize>,
}

impl Disk {
    fn inode(&mut self, path: &Path) -> &mut Inode {
        if !self.names.contains_key(path) {
            // A file of the database: it appears with its first flush.
            self.inodes.push(Inode::default());
            self.names.insert(path.to_path_buf(), self.inodes.len() - 1);
        }
        let number = self.names[path];
        &mut self.inodes[number]
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Create(path) => drop(self.inode(path)),
            Step::Change(path, change) => self.inode(path).pending.push(change.clone()),
            Step::Flush(path, content) => {
                let inode = self.inode(path);
                for change in std::mem::take(&mut inode.pending) {
                    apply(&mut inode.flushed, &change);
                }
                if let Some(content) = content {
                    inode.flushed.clone_from(content);
                }
            }
            Step::FlushDirectory(directory) => {
                self.flushed_names.retain(|path, _| path.parent() != Some(directory));
                let now = self.names.iter().filter(|(path, _)| path.parent() == Some(directory));
                self.flushed_names.extend(now.map(|(path, inode)| (path.clone(), *inode)));
            }
            Step::Rename(from, to) => {
                let inode = self.names.remove(from).unwrap();
                self.names.insert(to.clone(), inode);
            }
            Step::Remove(path) => drop(self.names.remove(path)),
            Step::Acknowledged(_) => {}
        }
    }

    fn restore(&self, unflushed: Unflushed, target: &Path) {
        let mut random = match unflushed {
            Unflushed::Torn(seed) => seed | 1,
            _ => 1,
        };
        let mut chance = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % 2 == 0
        };
        let names = match unflushed {
            Unflushed::Lost => &self.flushed_names,
            Unflushed::There => &self.names,
            Unflushed::Torn(_) if chance() => &self.names,
            Unflushed::Torn(_) => &self.flushed_names,
        };
        for directory in ["log", "meta", "snapshots"] {
            std::fs::create_dir_all(target.join(directory)).unwrap();
        }
        for (path, inode) in names {
            let inode = &self.inodes[*inode];
            let mut content = inode.flushed.clone();
            for change in &inode.pending {
                match (unflushed, change) {
                    (Unflushed::Lost, _) => {}
                    (Unflushed::Torn(_), Change::Write(offset, bytes)) => {
                        for (sector, piece) in bytes.chunks(512).enumerate() {
                            if chance() {
                                let at = offset + sector as u64 * 512;
                                apply(&mut content, &Change::Write(at, piece.to_vec()));
                            }
                        }
                    }
                    _ => apply(&mut content, change),
                }
            }
            std::fs::write(target.join(path), content).unwrap();
        }
    }
}

/// What is promised between two operations.
#[derive(Clone, Debug, Default)]
struct Guarantee {
    vote: Option<Vote>,
    floor: Option<u64>,
    log: Vec<Entry>,
}

struct Run {
    store: ReplicaStore,
    recorder: Arc<Recorder>,
    promises: Vec<Guarantee>,
}

impl Run {
    fn acknowledged(&mut self, change: impl FnOnce(&mut Guarantee)) {
        let mut promise = self.promises.last().unwrap().clone();
        change(&mut promise);
        self.recorder.note(Step::Acknowledged(self.promises.len()));
        self.promises.push(promise);
    }

    async fn vote(&mut self, term: u64) {
        let vote = Vote::new_committed(term, 1);
        self.store.log.clone().save_vote(&vote).await.unwrap();
        self.acknowledged(|promise| promise.vote = Some(vote));
    }

    async fn append(&mut self, term: u64, count: usize, bytes: usize) {
        let next = self.promises.last().unwrap().log.len() as u64;
        let entries: Vec<Entry> = (next..next + count as u64)
            .map(|index| {
                let log_id = LogId::new(LeaderId::new(term, 1), index);
                Entry { log_id, ..entry(index, bytes) }
            })
            .collect();
        append(&mut self.store.log.clone(), entries.clone()).await.unwrap();
        self.acknowledged(|promise| promise.log.extend(entries));
    }

    async fn truncate(&mut self, keep: u64) {
        let log_id = self.promises.last().unwrap().log[keep as usize].log_id;
        self.store.log.clone().truncate_after(Some(log_id)).await.unwrap();
        self.acknowledged(|promise| promise.log.truncate(keep as usize + 1));
    }

    /// The purge counts with the operation that follows it.
    async fn purge(&mut self, index: u64) {
        publish(&self.store, index, b"state");
        let log_id = self.promises.last().unwrap().log[index as usize].log_id;
        self.store.log.clone().purge(log_id).await.unwrap();
        self.store.log.clone().save_vote(&self.promises.last().unwrap().vote.unwrap()).await.unwrap();
        self.acknowledged(|promise| promise.floor = Some(index));
    }
}

fn kept_options(files: Arc<dyn FileLayer>) -> StoreOptions {
    StoreOptions { segment_entries: 6, segment_bytes: 20 << 10, files, ..options() }
}

/// What was found is what was promised before or after the operation that was going on.
async fn check(dir: &Path, before: &Guarantee, after: &Guarantee, context: &str) {
    let opened = open_with(dir, kept_options(Arc::new(SystemFiles)));
    let store = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
    let vote = store.log.clone().read_vote().await.unwrap();
    assert!(before.vote <= vote && vote <= after.vote, "{context}: the vote is {vote:?}");
    let floor = store.log.floor().map(|floor| floor.index());
    assert!(before.floor <= floor && floor <= after.floor, "{context}: the floor is {floor:?}");
    let found = store.log.clone().try_get_log_entries(..).await.unwrap();
    let first = floor.map_or(0, |floor| floor as usize + 1);
    let common = before.log.iter().zip(&after.log).take_while(|(one, other)| one == other).count();
    assert!(first + found.len() >= common, "{context}: {} of {common} entries", first + found.len());
    let is_prefix = |log: &[Entry]| log.get(first..).is_some_and(|log| log.starts_with(&found));
    assert!(is_prefix(&before.log) || is_prefix(&after.log), "{context}: other entries than were written");
    // It goes on from there.
    let index = (first + found.len()) as u64;
    let log_id = LogId::new(LeaderId::new(9, 1), index);
    append(&mut store.log.clone(), vec![Entry { log_id, payload: EntryPayload::Blank }]).await.unwrap();
    store.log.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_power_cut_at_any_point() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder { root: dir.path().to_path_buf(), ..Recorder::default() });
    let store = open_with(dir.path(), kept_options(Arc::clone(&recorder) as Arc<dyn FileLayer>)).unwrap();
    let mut run = Run { store, recorder: Arc::clone(&recorder), promises: vec![Guarantee::default()] };
    run.recorder.note(Step::Acknowledged(0));
    run.vote(1).await;
    for _ in 0..4 {
        run.append(1, 1, 100).await;
    }
    run.append(1, 9, 700).await;
    run.append(1, 1, 30_000).await;
    run.vote(2).await;
    run.truncate(8).await;
    run.append(2, 2, 300).await;
    run.purge(6).await;
    run.append(2, 5, 900).await;
    run.truncate(11).await;
    run.append(3, 1, 10).await;
    let promises = run.promises.clone();
    run.store.log.close().await;
    drop(run);

    let steps = recorder.steps.lock().clone();
    let mut disk = Disk::default();
    let mut acknowledged = None;
    let mut cuts = 0;
    for (number, step) in steps.iter().enumerate() {
        disk.take(step);
        if let Step::Acknowledged(operation) = step {
            acknowledged = Some(*operation);
        }
        let Some(before) = acknowledged else { continue };
        let after = promises.get(before + 1).unwrap_or(&promises[before]);
        let mut kinds = vec![Unflushed::Lost, Unflushed::Torn(number as u64 * 7_919 + 12_345)];
        if number % 5 == 0 {
            kinds.push(Unflushed::There);
        }
        for unflushed in kinds {
            let target = tempfile::tempdir().unwrap();
            disk.restore(unflushed, target.path());
            let context = format!("cut after step {number}, {step:?}, the rest {unflushed:?}");
            check(target.path(), &promises[before], after, &context).await;
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// The test above would see a flush that is left out: without flushes nothing survives.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_only_pretends_to_flush_loses_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder { root: dir.path().to_path_buf(), ..Recorder::default() });
    let store = open_with(dir.path(), kept_options(Arc::clone(&recorder) as Arc<dyn FileLayer>)).unwrap();
    let created = recorder.steps.lock().len();
    append(&mut store.log.clone(), vec![entry(0, 100)]).await.unwrap();
    let steps = recorder.steps.lock().clone();
    store.log.close().await;
    let mut disk = Disk::default();
    for (number, step) in steps.iter().enumerate() {
        if number < created || !matches!(step, Step::Flush(path, _) if path.starts_with("log")) {
            disk.take(step);
        }
    }
    let target = tempfile::tempdir().unwrap();
    disk.restore(Unflushed::Lost, target.path());
    // Its header is gone as well, so even the power cut's replica says that it is damaged.
    let opened = open_with(target.path(), kept_options(Arc::new(SystemFiles)));
    assert!(opened.is_err());
}
