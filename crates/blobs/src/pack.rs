//! Sends the files of a directory that a store does not have, and then their list.
//!
//! What was sent stays, so sending that was interrupted goes on where it was when it is repeated.

use crate::ignore::{self, Patterns};
use crate::store::{BlobError, BlobStore, digest_of, digest_of_all, put};
use crate::tree::{BYTES_MAX, DEPTH_MAX, Entry, FILES_MAX, Tree, TreeError, check_link, check_path};
use muster_types::BlobDigest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Entries that are looked at: enough to say what is large in a directory that has too much.
const LOOKED_AT_MAX: usize = 10 * FILES_MAX;
/// Directories that are named where there is too much.
const NAMED: usize = 5;
/// What is never sent: a repository is no part of the work, and large.
const REPOSITORY: &str = ".git";

/// Why a directory is not sent.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Something in it cannot be read.
    #[error("read {path}")]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something in it cannot be sent.
    #[error("{path} {rule}")]
    Unfit {
        /// What.
        path: PathBuf,
        /// What it needs.
        rule: String,
    },
    /// There is too much in it.
    #[error("{0}")]
    TooMuch(String),
    /// Its list breaks a rule.
    #[error("the list of its files: {0}")]
    Tree(#[from] TreeError),
    /// A file could not be put.
    #[error("send {path}: {error}")]
    Send {
        /// Which.
        path: PathBuf,
        /// Why.
        error: BlobError,
    },
}

/// How far the sending has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files of the directory.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that are in the store by now, or were before.
    pub bytes_done: u64,
    /// Files that were sent because the store did not have their content.
    pub files_sent: usize,
    /// Bytes of those.
    pub bytes_sent: u64,
}

/// A directory whose files are known.
#[derive(Debug)]
pub struct Packed {
    root: PathBuf,
    tree: Tree,
    list: Vec<u8>,
    digest: BlobDigest,
}

/// Lists the files of a directory.
///
/// # Errors
/// When something cannot be read or sent, or there is too much.
pub fn pack(root: &Path) -> Result<Packed, PackError> {
    let mut scan = Scan { root: root.to_owned(), ..Scan::default() };
    scan.directory(root, "", &mut Vec::new())?;
    scan.check_size()?;
    let mut entries = Vec::with_capacity(scan.found.len());
    for found in scan.found {
        entries.push(match found {
            Found::File { path, executable } => {
                let at = root.join(&path);
                let read = File::open(&at).and_then(|mut file| digest_of_all(&mut file));
                let (digest, size) = read.map_err(|source| PackError::Read { path: at, source })?;
                Entry::File { path, size, digest, executable }
            }
            Found::Other(entry) => entry,
        });
    }
    let tree = Tree::new(entries, BYTES_MAX)?;
    let list = tree.encode()?;
    let digest = digest_of(&list);
    Ok(Packed { root: root.to_owned(), tree, list, digest })
}

impl Packed {
    /// What stands for the directory.
    #[must_use]
    pub fn digest(&self) -> BlobDigest {
        self.digest
    }

    /// How much is to be sent at most.
    #[must_use]
    pub fn size(&self) -> Progress {
        let is_file = |entry: &&Entry| matches!(entry, Entry::File { .. });
        let files = self.tree.entries().iter().filter(is_file).count();
        Progress { files, bytes: self.tree.bytes(), ..Progress::default() }
    }

    /// Sends what the store does not have; the list comes last, so a list that is there has all of its files.
    ///
    /// # Errors
    /// When a file has changed or cannot be read, and when the store does not take it.
    pub fn send(
        &self,
        store: &dyn BlobStore,
        told: &mut dyn FnMut(&Progress),
    ) -> Result<Progress, PackError> {
        let mut progress = self.size();
        let mut known: BTreeSet<BlobDigest> = BTreeSet::new();
        for entry in self.tree.entries() {
            let Entry::File { path, size, digest, .. } = entry else { continue };
            let at = self.root.join(path);
            let failed = |error: BlobError| PackError::Send { path: at.clone(), error };
            if known.insert(*digest) && !store.has(digest).map_err(failed)? {
                let mut file = File::open(&at).map_err(|error| failed(BlobError::Local(error)))?;
                put(store, digest, &mut file).map_err(failed)?;
                progress.files_sent += 1;
                progress.bytes_sent = progress.bytes_sent.saturating_add(*size);
            }
            progress.bytes_done = progress.bytes_done.saturating_add(*size);
            told(&progress);
        }
        let failed = |error: BlobError| PackError::Send { path: self.root.clone(), error };
        if !store.has(&self.digest).map_err(failed)? {
            put(store, &self.digest, &mut self.list.as_slice()).map_err(failed)?;
        }
        Ok(progress)
    }
}

/// What was found, before any file was read.
#[derive(Debug)]
enum Found {
    File { path: String, executable: bool },
    Other(Entry),
}

/// A look at a whole directory.
#[derive(Debug, Default)]
struct Scan {
    root: PathBuf,
    found: Vec<Found>,
    entries: usize,
    bytes: u64,
    looked_at: usize,
    /// Entries and bytes of the upper directories.
    large: BTreeMap<String, (usize, u64)>,
}

impl Scan {
    /// `above` has the patterns of the higher directories, each with the length of the path of its directory. Whether there is
    /// something in it.
    fn directory(
        &mut self,
        at: &Path,
        path: &str,
        above: &mut Vec<(usize, Patterns)>,
    ) -> Result<bool, PackError> {
        above.push((path.len(), patterns(at)?));
        let unread = |source| PackError::Read { path: at.to_owned(), source };
        let mut has_any = false;
        for entry in fs::read_dir(at).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            self.looked_at += 1;
            if self.looked_at > LOOKED_AT_MAX {
                break;
            }
            has_any |= self.entry(&entry, path, above)?;
        }
        above.pop();
        Ok(has_any)
    }

    /// Whether the entry is sent.
    fn entry(
        &mut self,
        entry: &fs::DirEntry,
        directory: &str,
        above: &mut Vec<(usize, Patterns)>,
    ) -> Result<bool, PackError> {
        let at = entry.path();
        let unfit = |rule: &str| PackError::Unfit { path: at.clone(), rule: rule.to_owned() };
        let unread = |source| PackError::Read { path: at.clone(), source };
        let name = entry.file_name();
        if name == REPOSITORY {
            return Ok(false);
        }
        let Some(name) = name.to_str() else { return Err(unfit("must have a name in UTF-8")) };
        let path = if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        let kind = entry.file_type().map_err(unread)?;
        if is_left_out(&path, kind.is_dir(), above) {
            return Ok(false);
        }
        check_path(&path).map_err(unfit)?;
        if kind.is_dir() {
            if path.split('/').count() >= DEPTH_MAX {
                return Err(unfit("is too deep"));
            }
            if !self.directory(&at, &path, above)? {
                self.add(&path, 0, Found::Other(Entry::Directory { path: path.clone() }));
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&at).map_err(unread)?;
            let target = target.to_str().ok_or_else(|| unfit("must have a target in UTF-8"))?.to_owned();
            check_link(&path, &target).map_err(unfit)?;
            self.add(&path, 0, Found::Other(Entry::Link { path: path.clone(), target }));
        } else if kind.is_file() {
            let found = entry.metadata().map_err(unread)?;
            let executable = found.permissions().mode() & 0o111 != 0;
            self.add(&path, found.len(), Found::File { path: path.clone(), executable });
        } else {
            return Err(unfit(
                "must be a file, a directory or a link; remove it, or leave it out with a line in .musterignore",
            ));
        }
        Ok(true)
    }

    fn add(&mut self, path: &str, bytes: u64, found: Found) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        // The highest two.
        for above in crate::tree::ancestors(path).take(2) {
            let large = self.large.entry(above.to_owned()).or_default();
            large.0 += 1;
            large.1 = large.1.saturating_add(bytes);
        }
        if self.entries <= FILES_MAX {
            self.found.push(found);
        }
    }

    /// Refuses too much, and names what is large.
    fn check_size(&self) -> Result<(), PackError> {
        let is_cut = self.looked_at > LOOKED_AT_MAX;
        if self.entries <= FILES_MAX && self.bytes <= BYTES_MAX && !is_cut {
            return Ok(());
        }
        let mut large: Vec<(&String, &(usize, u64))> = self.large.iter().collect();
        if self.bytes > BYTES_MAX {
            large.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
        } else {
            large.sort_by_key(|(_, (entries, _))| std::cmp::Reverse(*entries));
        }
        let line = |(path, (entries, bytes)): &(&String, &(usize, u64))| {
            format!("{path}: {entries} files, {} MiB", bytes >> 20)
        };
        let named: Vec<String> = large.iter().take(NAMED).map(line).collect();
        let largest =
            if named.is_empty() { String::new() } else { format!(" Largest: {}.", named.join("; ")) };
        Err(PackError::TooMuch(format!(
            "{} has {}{} files and {} MiB, of at most {FILES_MAX} files and {} MiB.{largest} Leave out what the job does not \
             need with lines in {}, and put data where nodes can read it",
            self.root.display(),
            if is_cut { "more than " } else { "" },
            self.entries,
            self.bytes >> 20,
            BYTES_MAX >> 20,
            self.root.join(".musterignore").display(),
        )))
    }
}

/// The deepest directory with a pattern that matches decides.
fn is_left_out(path: &str, is_directory: bool, above: &[(usize, Patterns)]) -> bool {
    let decided = above.iter().rev().find_map(|(length, patterns)| {
        let below = path.get(*length..).unwrap_or(path);
        patterns.leaves_out(below.strip_prefix('/').unwrap_or(below), is_directory)
    });
    decided.unwrap_or(false)
}

/// What the files of a directory say is left out.
fn patterns(directory: &Path) -> Result<Patterns, PackError> {
    let mut patterns = Patterns::default();
    for name in ignore::FILES {
        let path = directory.join(name);
        let unread = |source| PackError::Read { path: path.clone(), source };
        let file = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => File::open(&path).map_err(unread)?,
            _ => continue,
        };
        let mut text = Vec::new();
        file.take(ignore::BYTES_MAX + 1).read_to_end(&mut text).map_err(unread)?;
        if text.len() as u64 > ignore::BYTES_MAX {
            let rule = format!("must have at most {} bytes", ignore::BYTES_MAX);
            return Err(PackError::Unfit { path, rule });
        }
        patterns.add(&String::from_utf8_lossy(&text));
    }
    Ok(patterns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::BlobDirectory;
    use std::os::unix::fs::symlink;

    fn write(root: &Path, path: &str, text: &str) {
        let at = root.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    }

    fn paths(root: &Path) -> Vec<String> {
        pack(root).unwrap().tree.entries().iter().map(|entry| entry.path().to_owned()).collect()
    }

    #[test]
    fn what_is_ignored_is_not_sent() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        for path in
            ["train.py", "a.log", "data/huge", "data/keep/x", ".git/HEAD", "sub/a.log", "sub/own", "sub/b"]
        {
            write(at, path, path);
        }
        write(at, ".gitignore", "*.log\ndata/*\n");
        write(at, ".musterignore", "!data/keep\n");
        write(at, "sub/.musterignore", "/own\n!a.log\n");
        let expected = [
            ".gitignore",
            ".musterignore",
            "data/keep/x",
            "sub/.musterignore",
            "sub/a.log",
            "sub/b",
            "train.py",
        ];
        assert_eq!(paths(at), expected);
    }

    #[test]
    fn only_what_the_store_lacks_is_sent_and_sending_goes_on() {
        let (root, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = root.path();
        write(at, "a", "one");
        write(at, "b", "one");
        write(at, "c", "another");
        let store = BlobDirectory::open_or_make(store.path().to_owned()).unwrap();
        let first = pack(at).unwrap();
        // As if it had been interrupted behind the first file.
        put(&store, &digest_of(b"one"), &mut &b"one"[..]).unwrap();
        let mut steps = 0;
        let sent = first.send(&store, &mut |_| steps += 1).unwrap();
        assert_eq!((sent.files, sent.files_sent, sent.bytes_sent, sent.bytes_done), (3, 1, 7, 13));
        assert_eq!(steps, 3);
        let again = pack(at).unwrap();
        assert_eq!(again.digest(), first.digest());
        assert_eq!(again.send(&store, &mut |_| ()).unwrap().files_sent, 0);
        write(at, "c", "changed");
        let changed = pack(at).unwrap();
        assert_ne!(changed.digest(), first.digest());
        write(at, "c", "changed again");
        assert!(matches!(changed.send(&store, &mut |_| ()), Err(PackError::Send { .. })));
        assert!(!store.has(&changed.digest()).unwrap(), "a list without its files");
    }

    #[test]
    fn links_stay_links_inside_and_are_refused_outside() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, "dir/file", "x");
        symlink("../dir/file", at.join("dir/link")).unwrap();
        symlink("dir", at.join("to-dir")).unwrap();
        assert_eq!(paths(at), ["dir/file", "dir/link", "to-dir"]);
        for target in ["/etc/passwd", "../outside", "dir/../../outside"] {
            symlink(target, at.join("bad")).unwrap();
            assert!(matches!(pack(at), Err(PackError::Unfit { .. })), "{target}");
            fs::remove_file(at.join("bad")).unwrap();
        }
        let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
        assert!(matches!(pack(at), Err(PackError::Unfit { .. })));
        write(at, ".musterignore", "socket\n");
        assert!(pack(at).is_ok());
    }

    #[test]
    fn too_much_is_refused_with_what_is_large() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, "small/file", "x");
        fs::create_dir_all(at.join("data/images")).unwrap();
        // Without a byte on the disk.
        File::create(at.join("data/images/all")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let PackError::TooMuch(text) = pack(at).unwrap_err() else { panic!("it is too much") };
        assert!(
            text.contains("Largest: data: 1 files, 2048 MiB; data/images: 1 files")
                && text.contains(".musterignore")
        );
        write(at, ".musterignore", "data/\n");
        assert_eq!(paths(at), [".musterignore", "small/file"]);
        let absent = pack(&at.join("absent"));
        assert!(matches!(absent, Err(PackError::Read { .. })), "{absent:?}");
    }

    #[test]
    fn too_many_files_are_refused_with_where_they_are() {
        let mut scan = Scan { root: PathBuf::from("/project"), ..Scan::default() };
        let add = |scan: &mut Scan, path: String| {
            scan.looked_at += 1;
            scan.add(&path, 1, Found::File { path: path.clone(), executable: false });
        };
        for number in 0..FILES_MAX {
            add(&mut scan, format!("cache/{number}"));
        }
        assert!(scan.check_size().is_ok());
        for number in FILES_MAX..LOOKED_AT_MAX {
            add(&mut scan, format!("cache/{number}"));
        }
        assert_eq!(scan.found.len(), FILES_MAX, "what is beyond is counted and not kept");
        let Err(PackError::TooMuch(text)) = scan.check_size() else { panic!("it is too much") };
        let text_of = format!("/project has {LOOKED_AT_MAX} files");
        assert!(text.starts_with(&text_of) && text.contains("Largest: cache: 1000000 files"), "{text}");
        assert!(text.contains("/project/.musterignore"), "{text}");
        // A look that was broken off knows the least number only.
        scan.looked_at += 1;
        let Err(PackError::TooMuch(text)) = scan.check_size() else { panic!("it is too much") };
        assert!(text.starts_with("/project has more than 1000000 files"), "{text}");
    }

    #[test]
    fn an_empty_directory_is_kept() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("logs/all")).unwrap();
        assert_eq!(paths(root.path()), ["logs/all"]);
        assert_eq!(paths(&root.path().join("logs/all")), Vec::<String>::new());
    }
}
