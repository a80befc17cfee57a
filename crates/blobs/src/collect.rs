//! Files that a worker has left, into the store.
//!
//! The worker's directory is the worker's: it may hold links, devices, and files of others that were linked into it. So each name is
//! opened from the directory above it, links are never followed, and only regular files of the worker's user are taken.
//!
//! **Invariant:** nothing outside of the directory is read, whatever is in it; nothing is read without a bound.

use crate::store::{BlobError, BlobStore, digest_of, digest_of_all, put};
use crate::tree::{DEPTH_MAX, Entry, PATH_BYTES_MAX, Tree, ancestors};
use muster_types::artifacts::matches_name;
use muster_types::{ArtifactFault, Artifacts};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names that are looked at for one worker.
const LOOKED_AT_MAX: usize = 1_000_000;
/// Bytes of names that wait to be looked at, with what a list of them takes.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// What is collected.
pub struct Collecting<'a> {
    /// The directory that the paths begin in.
    pub root: &'a Path,
    /// Whether a link may be in its place. Not where who has left the files could have put one there.
    pub is_root_followed: bool,
    /// Directories in whose place who has left the files saw others: nothing in them is collected.
    pub covered: &'a [PathBuf],
    /// Directories in covered ones that were seen all the same.
    pub shown: &'a [PathBuf],
    /// Paths as a job names them.
    pub paths: &'a [String],
    /// Whose files are taken; none for those of any user.
    pub owner: Option<u32>,
    /// How many files.
    pub files_max: usize,
    /// How many bytes they may have together.
    pub bytes_max: u64,
    /// Whether the caller has given up. Asked between files and between pieces of them.
    pub is_given_up: &'a dyn Fn() -> bool,
}

/// Why no more is collected.
struct Stop(ArtifactFault);

/// Puts the files at the paths into a store, and behind them their list. What can be kept is kept; the first thing that cannot is
/// named.
pub fn collect(store: &dyn BlobStore, asked: &Collecting<'_>) -> Artifacts {
    let mut collector = Collector {
        store,
        asked,
        entries: BTreeMap::new(),
        bytes: 0,
        looked_at: 0,
        names_bytes: 0,
        covered: numbers_of(asked.covered),
        left_out: 0,
        fault: None,
        path: 0,
    };
    match open_directory(asked.root, asked.is_root_followed) {
        Ok(root) if !is_covered(asked, &root) => collector.all(&root),
        Ok(_) | Err(_) => collector.fault = Some((ArtifactFault::Unreadable, 0)),
    }
    collector.finish()
}

struct Collector<'a> {
    store: &'a dyn BlobStore,
    asked: &'a Collecting<'a>,
    entries: BTreeMap<String, Entry>,
    bytes: u64,
    looked_at: usize,
    names_bytes: usize,
    /// Device and number of the directories that are covered.
    covered: Vec<(u64, u64)>,
    left_out: u32,
    fault: Option<(ArtifactFault, u32)>,
    /// The path that is looked for.
    path: u32,
}

/// What has a name.
enum Found {
    Directory(OwnedFd),
    File(File),
    /// A link, a device, a file of another user.
    Other,
    Nothing,
}

fn open_directory(path: &Path, is_followed: bool) -> nix::Result<OwnedFd> {
    let itself = if is_followed { OFlag::empty() } else { OFlag::O_NOFOLLOW };
    open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY | itself, Mode::empty())
}

fn numbers_of(directories: &[PathBuf]) -> Vec<(u64, u64)> {
    let found = directories.iter().filter_map(|path| std::fs::metadata(path).ok());
    found.map(|found| (found.dev(), found.ino())).collect()
}

/// Whether a directory is in a covered one, by the path that it has without links.
fn is_covered(asked: &Collecting<'_>, directory: &OwnedFd) -> bool {
    if asked.covered.is_empty() {
        return false;
    }
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())) else {
        return true;
    };
    // The one that is nearest decides.
    let nearest = |all: &[PathBuf]| {
        let above = all.iter().filter_map(|one| std::fs::canonicalize(one).ok());
        above.filter(|one| path.starts_with(one)).map(|one| one.components().count()).max()
    };
    nearest(asked.covered) > nearest(asked.shown)
}

impl Collector<'_> {
    fn all(&mut self, root: &OwnedFd) {
        let paths = self.asked.paths;
        for (index, path) in paths.iter().enumerate() {
            self.path = u32::try_from(index).unwrap_or(u32::MAX);
            let names: Vec<&str> = path.split('/').collect();
            match self.walk(root, "", &names) {
                Ok(0) => self.note(ArtifactFault::NotFound),
                Ok(_) => {}
                Err(Stop(fault)) => {
                    self.note(fault);
                    return;
                }
            }
        }
    }

    /// The first fault is that which is told.
    fn note(&mut self, fault: ArtifactFault) {
        self.fault.get_or_insert((fault, self.path));
    }

    /// Takes what is at these names below a directory. How many files and directories that were.
    fn walk(&mut self, directory: &OwnedFd, above: &str, names: &[&str]) -> Result<usize, Stop> {
        let Some((name, rest)) = names.split_first() else { return Ok(0) };
        if !name.contains(['*', '?']) {
            return self.step(directory, above, name, rest);
        }
        let (mut found, names_bytes) = (0, self.names_bytes);
        for entry in self.names_of(directory, &|entry: &str| matches_name(name, entry))? {
            found += self.step(directory, above, &entry, rest)?;
        }
        self.names_bytes = names_bytes;
        Ok(found)
    }

    fn step(&mut self, directory: &OwnedFd, above: &str, name: &str, rest: &[&str]) -> Result<usize, Stop> {
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        match self.open(directory, name)? {
            Found::Nothing => Ok(0),
            Found::Directory(below) if rest.is_empty() => {
                self.below(&below, &path)?;
                Ok(1)
            }
            Found::Directory(below) => self.walk(&below, &path, rest),
            Found::File(file) if rest.is_empty() => {
                self.take(file, path)?;
                Ok(1)
            }
            // A path that goes on leads through it nowhere.
            Found::File(_) => Ok(0),
            Found::Other => {
                self.left_out = self.left_out.saturating_add(1);
                Ok(usize::from(rest.is_empty()))
            }
        }
    }

    /// Takes everything below a directory.
    fn below(&mut self, directory: &OwnedFd, path: &str) -> Result<(), Stop> {
        if path.split('/').count() >= DEPTH_MAX {
            self.note(ArtifactFault::TooLarge);
            return Ok(());
        }
        let names_bytes = self.names_bytes;
        for name in self.names_of(directory, &|_: &str| true)? {
            let path = format!("{path}/{name}");
            match self.open(directory, &name)? {
                Found::Directory(below) => self.below(&below, &path)?,
                Found::File(file) => self.take(file, path)?,
                Found::Other => self.left_out = self.left_out.saturating_add(1),
                Found::Nothing => {}
            }
        }
        self.names_bytes = names_bytes;
        Ok(())
    }

    /// The names in a directory that are wanted, ascending; those that are no text are left out.
    fn names_of(
        &mut self,
        directory: &OwnedFd,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<String>, Stop> {
        // By its number: by a path, another directory could be in its place by now.
        let Ok(listed) = std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd())) else {
            self.note(ArtifactFault::Unreadable);
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in listed {
            if (self.asked.is_given_up)() {
                return Err(Stop(ArtifactFault::OutOfTime));
            }
            let Ok(entry) = entry else {
                self.note(ArtifactFault::Unreadable);
                break;
            };
            self.looked_at += 1;
            if self.looked_at > LOOKED_AT_MAX {
                return Err(Stop(ArtifactFault::TooLarge));
            }
            match entry.file_name().into_string() {
                Ok(name) if is_wanted(&name) => {
                    self.names_bytes += name.len() + size_of::<String>();
                    if self.names_bytes > NAMES_BYTES_MAX {
                        return Err(Stop(ArtifactFault::TooLarge));
                    }
                    names.push(name);
                }
                Ok(_) => {}
                Err(_) => self.left_out = self.left_out.saturating_add(1),
            }
        }
        names.sort();
        Ok(names)
    }

    fn open(&mut self, directory: &OwnedFd, name: &str) -> Result<Found, Stop> {
        if (self.asked.is_given_up)() {
            return Err(Stop(ArtifactFault::OutOfTime));
        }
        self.looked_at += 1;
        if self.looked_at > LOOKED_AT_MAX {
            return Err(Stop(ArtifactFault::TooLarge));
        }
        // Only its name is held first: opening a device could do something.
        let held = match openat(
            directory,
            name,
            OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW,
            Mode::empty(),
        ) {
            Ok(held) => File::from(held),
            Err(Errno::ENOENT) => return Ok(Found::Nothing),
            Err(_) => return Ok(self.unreadable()),
        };
        let Ok(seen) = held.metadata() else { return Ok(self.unreadable()) };
        let is_own = self.asked.owner.is_none_or(|owner| seen.uid() == owner);
        let more = match (seen.is_dir(), seen.is_file()) {
            (true, _) if self.covered.contains(&(seen.dev(), seen.ino())) => return Ok(Found::Other),
            (true, _) => OFlag::O_DIRECTORY,
            (false, true) if is_own => OFlag::O_NONBLOCK,
            _ => return Ok(Found::Other),
        };
        let itself = format!("/proc/self/fd/{}", held.as_raw_fd());
        match open(itself.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC | more, Mode::empty()) {
            Ok(opened) if seen.is_dir() => Ok(Found::Directory(opened)),
            Ok(opened) => Ok(Found::File(File::from(opened))),
            Err(_) => Ok(self.unreadable()),
        }
    }

    fn unreadable(&mut self) -> Found {
        self.note(ArtifactFault::Unreadable);
        Found::Other
    }

    /// Puts one file into the store.
    fn take(&mut self, mut file: File, path: String) -> Result<(), Stop> {
        if self.entries.contains_key(&path) {
            return Ok(());
        }
        // A list with such a path would be none.
        if path.len() > PATH_BYTES_MAX {
            self.note(ArtifactFault::TooLarge);
            return Ok(());
        }
        // Where others write meanwhile, a name may be that of a file and of a directory, one after the other.
        let is_both = ancestors(&path).any(|above| self.entries.contains_key(above)) || self.has_below(&path);
        let seen = match file.metadata() {
            Ok(seen) if !is_both => seen,
            _ => {
                self.note(ArtifactFault::Unreadable);
                return Ok(());
            }
        };
        let (size, executable) = (seen.len(), seen.mode() & 0o111 != 0);
        let free = self.asked.bytes_max.saturating_sub(self.bytes);
        if size > free || self.entries.len() >= self.asked.files_max {
            return Err(Stop(ArtifactFault::TooLarge));
        }
        let given_up = self.asked.is_given_up;
        // It may grow while it is read, where others write to it over a network.
        let mut read = Patient { from: (&mut file).take(size.saturating_add(1)), given_up };
        let digest = match digest_of_all(&mut read) {
            Ok((digest, bytes)) if bytes == size => digest,
            _ if given_up() => return Err(Stop(ArtifactFault::OutOfTime)),
            _ => {
                self.note(ArtifactFault::Unreadable);
                return Ok(());
            }
        };
        match self.store.has(&digest) {
            Ok(true) => {}
            Ok(false) => {
                if file.rewind().is_err() {
                    self.note(ArtifactFault::Unreadable);
                    return Ok(());
                }
                let mut read = Patient { from: (&mut file).take(size), given_up };
                match put(self.store, &digest, &mut read) {
                    Ok(()) => {}
                    Err(_) if given_up() => return Err(Stop(ArtifactFault::OutOfTime)),
                    Err(BlobError::Changed | BlobError::Local(_)) => {
                        self.note(ArtifactFault::Unreadable);
                        return Ok(());
                    }
                    Err(_) => return Err(Stop(ArtifactFault::StoreUnreachable)),
                }
            }
            Err(_) => return Err(Stop(ArtifactFault::StoreUnreachable)),
        }
        self.bytes += size;
        self.entries.insert(path.clone(), Entry::File { path, size, digest, executable });
        Ok(())
    }

    /// Whether something below a path is among what is kept.
    fn has_below(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.entries.range(below.clone()..).next().is_some_and(|(first, _)| first.starts_with(&below))
    }

    /// Puts the list of what was kept.
    fn finish(mut self) -> Artifacts {
        let (mut digest, mut files, mut bytes) = (None, 0, 0);
        if !self.entries.is_empty() {
            let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            let entries = std::mem::take(&mut self.entries).into_values().collect();
            let list = Tree::new(entries, self.asked.bytes_max).and_then(|tree| tree.encode());
            match list {
                Ok(list) => {
                    let of_list = digest_of(&list);
                    if put(self.store, &of_list, &mut list.as_slice()).is_ok() {
                        (digest, files, bytes) = (Some(of_list), count, self.bytes);
                    } else {
                        self.note(ArtifactFault::StoreUnreachable);
                    }
                }
                // Of too many files in too many directories, or with such names.
                Err(_) => self.note(ArtifactFault::TooLarge),
            }
        }
        Artifacts { digest, files, bytes, left_out: self.left_out, fault: self.fault }
    }
}

/// A reader that ends with an error once its caller has given up.
struct Patient<'a, R> {
    from: R,
    given_up: &'a dyn Fn() -> bool,
}

impl<R: Read> Read for Patient<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if (self.given_up)() {
            return Err(std::io::Error::other("it was given up"));
        }
        self.from.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlobDirectory, Unpacking, unpack};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Bench {
        scratch: tempfile::TempDir,
        store: BlobDirectory,
    }

    impl Bench {
        fn new() -> Bench {
            let scratch = tempfile::tempdir().unwrap();
            for name in ["store", "work"] {
                fs::create_dir(scratch.path().join(name)).unwrap();
            }
            let store = BlobDirectory::open_or_make(scratch.path().join("store")).unwrap();
            Bench { scratch, store }
        }

        fn write(&self, path: &str, text: &str) {
            let at = self.scratch.path().join("work").join(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text).unwrap();
        }

        fn collected(&self, paths: &[&str], (files_max, bytes_max): (usize, u64)) -> Artifacts {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            let root = self.scratch.path().join("work");
            let owner = Some(fs::metadata(&root).unwrap().uid());
            let asked = Collecting {
                root: &root,
                is_root_followed: false,
                covered: &[],
                shown: &[],
                paths: &paths,
                owner,
                files_max,
                bytes_max,
                is_given_up: &|| false,
            };
            collect(&self.store, &asked)
        }

        /// What comes back, by path.
        fn back(&self, artifacts: &Artifacts) -> BTreeMap<String, String> {
            let into = tempfile::tempdir_in(self.scratch.path()).unwrap().path().join("back");
            fs::create_dir_all(into.parent().unwrap()).unwrap();
            let asked = Unpacking {
                digest: artifacts.digest.unwrap(),
                into: &into,
                bytes_max: 1 << 20,
                owner: None,
                is_given_up: &|| false,
            };
            unpack(&self.store, &asked).unwrap();
            let mut all = BTreeMap::new();
            let mut directories = vec![into.clone()];
            while let Some(directory) = directories.pop() {
                for entry in fs::read_dir(directory).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        directories.push(path);
                    } else {
                        let name = path.strip_prefix(&into).unwrap().to_str().unwrap().to_owned();
                        all.insert(name, fs::read_to_string(path).unwrap());
                    }
                }
            }
            all
        }
    }

    const ROOMY: (usize, u64) = (100, 1 << 20);

    #[test]
    fn what_the_paths_name_comes_back_and_nothing_else() {
        let bench = Bench::new();
        for path in
            ["out/a.csv", "out/b.csv", "out/c.txt", "logs/deep/er/x", "model.pt", "run-1/m", "run-22/m"]
        {
            bench.write(path, path);
        }
        let at = bench.scratch.path().join("work/model.pt");
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
        let kept = bench.collected(&["out/*.csv", "logs", "model.pt", "run-?/m", "out/a.csv"], ROOMY);
        assert_eq!((kept.files, kept.left_out, kept.fault), (5, 0, None));
        let back = bench.back(&kept);
        let names: Vec<&str> = back.keys().map(String::as_str).collect();
        assert_eq!(names, ["logs/deep/er/x", "model.pt", "out/a.csv", "out/b.csv", "run-1/m"]);
        assert!(back.iter().all(|(path, text)| path == text));
        assert_eq!(bench.collected(&["out"], ROOMY).digest, bench.collected(&["out/*"], ROOMY).digest);
    }

    #[test]
    fn links_and_pipes_are_left_out_and_lead_nowhere() {
        let bench = Bench::new();
        let outside = bench.scratch.path().join("secret");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("key"), "key").unwrap();
        bench.write("out/own", "own");
        let work = bench.scratch.path().join("work");
        symlink(&outside, work.join("out/directory")).unwrap();
        symlink(outside.join("key"), work.join("out/file")).unwrap();
        symlink(&outside, work.join("top")).unwrap();
        nix::unistd::mkfifo(&work.join("out/pipe"), Mode::from_bits_truncate(0o600)).unwrap();
        let kept = bench.collected(&["out", "top/key", "out/directory/key"], ROOMY);
        assert_eq!((kept.files, kept.fault), (1, Some((ArtifactFault::NotFound, 1))));
        assert!(kept.left_out >= 3, "{kept:?}");
        assert_eq!(bench.back(&kept).into_keys().collect::<Vec<_>>(), ["out/own"]);
    }

    #[test]
    fn what_fits_is_kept_and_the_first_fault_is_named() {
        let bench = Bench::new();
        bench.write("a", "12345");
        bench.write("b", "12345");
        let kept = bench.collected(&["absent", "a", "b"], (100, 8));
        assert_eq!((kept.files, kept.bytes, kept.fault), (1, 5, Some((ArtifactFault::NotFound, 0))));
        let kept = bench.collected(&["a", "b"], (100, 8));
        assert_eq!((kept.files, kept.fault), (1, Some((ArtifactFault::TooLarge, 1))));
        let kept = bench.collected(&["*"], (1, 100));
        assert_eq!((kept.files, kept.fault), (1, Some((ArtifactFault::TooLarge, 0))));
        let nothing = bench.collected(&["absent"], ROOMY);
        assert_eq!((nothing.digest, nothing.files), (None, 0));
    }

    #[test]
    fn files_of_others_and_a_caller_that_gives_up() {
        let bench = Bench::new();
        bench.write("a", "a");
        let root = bench.scratch.path().join("work");
        let paths = ["a".to_owned()];
        let other = fs::metadata(&root).unwrap().uid() + 1;
        let asked = Collecting {
            root: &root,
            is_root_followed: false,
            covered: &[],
            shown: &[],
            paths: &paths,
            owner: Some(other),
            files_max: 9,
            bytes_max: 9,
            is_given_up: &|| false,
        };
        let kept = collect(&bench.store, &asked);
        assert_eq!((kept.files, kept.left_out, kept.fault), (0, 1, None));
        let asked = Collecting { owner: None, is_given_up: &|| true, ..asked };
        assert_eq!(collect(&bench.store, &asked).fault, Some((ArtifactFault::OutOfTime, 0)));
        let absent = Collecting { root: &root.join("absent"), is_given_up: &|| false, ..asked };
        assert_eq!(collect(&bench.store, &absent).fault, Some((ArtifactFault::Unreadable, 0)));
    }
    #[test]
    fn a_link_in_the_place_of_the_directory_leads_nowhere_unless_it_is_followed() {
        let bench = Bench::new();
        bench.write("a", "a");
        let (work, link) = (bench.scratch.path().join("work"), bench.scratch.path().join("link"));
        symlink(&work, &link).unwrap();
        let paths = ["a".to_owned()];
        let asked = Collecting {
            root: &link,
            is_root_followed: false,
            covered: &[],
            shown: &[],
            paths: &paths,
            owner: None,
            files_max: 9,
            bytes_max: 9,
            is_given_up: &|| false,
        };
        assert_eq!(collect(&bench.store, &asked).fault, Some((ArtifactFault::Unreadable, 0)));
        let asked = Collecting { is_root_followed: true, ..asked };
        assert_eq!(collect(&bench.store, &asked).files, 1);
    }

    #[test]
    fn what_the_worker_saw_others_in_the_place_of_is_not_collected() {
        let bench = Bench::new();
        bench.write("tmp/of-others", "x");
        bench.write("tmp/state/own", "own");
        bench.write("own", "own");
        let work = bench.scratch.path().join("work");
        let (covered, shown) = ([work.join("tmp")], [work.join("tmp/state")]);
        let paths = ["*".to_owned()];
        let asked = Collecting {
            root: &work,
            is_root_followed: true,
            covered: &covered,
            shown: &shown,
            paths: &paths,
            owner: None,
            files_max: 9,
            bytes_max: 99,
            is_given_up: &|| false,
        };
        let kept = collect(&bench.store, &asked);
        assert_eq!((kept.files, kept.left_out, kept.fault), (1, 1, None));
        // Also by another name of it.
        let link = bench.scratch.path().join("link");
        symlink(&covered[0], &link).unwrap();
        let kept = collect(&bench.store, &Collecting { root: &link, ..asked });
        assert_eq!((kept.files, kept.fault), (0, Some((ArtifactFault::Unreadable, 0))));
        let kept = collect(&bench.store, &Collecting { root: &shown[0], ..asked });
        assert_eq!((kept.files, kept.fault), (1, None));
    }

    #[test]
    fn names_are_not_listed_for_a_caller_that_has_given_up() {
        let bench = Bench::new();
        bench.write("other", "x");
        let (root, paths) = (bench.scratch.path().join("work"), ["no*".to_owned()]);
        let asked = Collecting {
            root: &root,
            is_root_followed: false,
            covered: &[],
            shown: &[],
            paths: &paths,
            owner: None,
            files_max: 9,
            bytes_max: 9,
            is_given_up: &|| true,
        };
        // No name matches, so none is opened.
        assert_eq!(collect(&bench.store, &asked).fault, Some((ArtifactFault::OutOfTime, 0)));
    }

    /// A store whose first object makes its user see a directory in the place of the file `a`.
    struct Swapping<'a>(&'a BlobDirectory, PathBuf);

    impl BlobStore for Swapping<'_> {
        fn has(&self, digest: &muster_types::BlobDigest) -> Result<bool, BlobError> {
            if self.1.is_file() {
                fs::remove_file(&self.1).unwrap();
                fs::create_dir(&self.1).unwrap();
                fs::write(self.1.join("below"), "below").unwrap();
            }
            self.0.has(digest)
        }

        fn put(
            &self,
            digest: &muster_types::BlobDigest,
            write: &mut dyn FnMut(&mut dyn std::io::Write) -> Result<(), BlobError>,
        ) -> Result<(), BlobError> {
            self.0.put(digest, write)
        }

        fn open(&self, digest: &muster_types::BlobDigest) -> Result<Box<dyn Read>, BlobError> {
            self.0.open(digest)
        }
    }

    #[test]
    fn a_name_that_changes_its_kind_meanwhile_costs_no_other_file() {
        let bench = Bench::new();
        bench.write("a", "a");
        bench.write("b", "b");
        let root = bench.scratch.path().join("work");
        let paths = ["a".to_owned(), "*".to_owned()];
        let asked = Collecting {
            root: &root,
            is_root_followed: false,
            covered: &[],
            shown: &[],
            paths: &paths,
            owner: None,
            files_max: 9,
            bytes_max: 99,
            is_given_up: &|| false,
        };
        let kept = collect(&Swapping(&bench.store, root.join("a")), &asked);
        assert_eq!((kept.files, kept.fault), (2, Some((ArtifactFault::Unreadable, 1))));
        assert_eq!(bench.back(&kept).into_keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
