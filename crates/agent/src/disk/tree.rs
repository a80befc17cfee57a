//! Directories that workers have filled: counted and removed whatever is in them, however deep and however much.
//!
//! A path has 4,096 bytes, a process a thousand descriptors and a thread a stack of 2 MiB; a worker that makes directories in
//! directories has no such limit. So nothing here recurses or names a path below the directory: every step is relative to a
//! descriptor, and no symbolic link is followed.
//!
//! **Invariant:** a fixed number of descriptors, and memory that does not grow with the depth of the tree.

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, renameat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How deep a tree is counted.
const COUNTED_DEPTH_MAX: usize = 64;
/// Entries that are counted.
const COUNTED_ENTRIES_MAX: u64 = 1_000_000;
/// What an entry takes in addition to its blocks: its inode, and its place in the directory.
const ENTRY_BYTES: u64 = 512;
/// Unit of a file's allocated blocks (`stat`(2)).
const BLOCK_BYTES: u64 = 512;

/// What a tree takes of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Allocated bytes, without what was not counted.
    pub(crate) bytes: u64,
    /// The tree is deeper, or has more entries, than is counted, or there was no time for all of it.
    pub(crate) is_partial: bool,
}

/// How far a tree is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountBounds {
    /// A tree that takes more need not be counted further.
    pub(crate) bytes: u64,
    /// How long it may take, but for the rest of one directory.
    pub(crate) time: Duration,
}

fn open(at: impl AsFd, name: &CStr) -> nix::Result<Dir> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match Dir::openat(&at, name, flags, Mode::empty()) {
        // A worker of this user has shut it. It was not a link a moment ago, and what a link leads to is the user's own.
        Err(Errno::EACCES) => {
            fchmodat(&at, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
            Dir::openat(&at, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Removes a directory and all that is in it. None that is there is fine; a file is removed too.
///
/// Directories inside are moved up into the first one before they are emptied, so that no tree is ever deeper than
/// two.
///
/// # Errors
/// When something stays, for example a file system that is mounted there; the rest has gone.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    let name = c_path(directory)?;
    let mut top = match open(AT_FDCWD, &name) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            return Ok(unlinkat(AT_FDCWD, name.as_c_str(), UnlinkatFlags::NoRemoveDir)?);
        }
        Err(error) => return Err(error.into()),
    };
    let mut moved = 0;
    loop {
        let (mut removed, mut failed) = (false, None);
        // The stream shows what was moved up meanwhile now or in the next round.
        let names: Vec<CString> = entries(&mut top, ROUND_ENTRIES_MAX)?;
        if names.is_empty() {
            return Ok(unlinkat(AT_FDCWD, name.as_c_str(), UnlinkatFlags::RemoveDir)?);
        }
        for entry in names {
            match remove_entry(&top, &entry, &mut moved) {
                Ok(()) => removed = true,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed.filter(|_| !removed) {
            return Err(error.into());
        }
    }
}

/// Names that are held at once.
const ROUND_ENTRIES_MAX: usize = 4_096;

fn entries(dir: &mut Dir, most: usize) -> nix::Result<Vec<CString>> {
    let names = dir.iter().map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    names.filter(|name| !name.as_ref().is_ok_and(|name| is_dots(name))).take(most).collect()
}

/// Removes an entry of `top`; the directories in it become entries of `top`.
fn remove_entry(top: &Dir, name: &CStr, moved: &mut u64) -> nix::Result<()> {
    match unlinkat(top, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut dir = open(top, name)?;
    loop {
        let names = entries(&mut dir, ROUND_ENTRIES_MAX)?;
        if names.is_empty() {
            return unlinkat(top, name, UnlinkatFlags::RemoveDir);
        }
        for entry in names {
            match unlinkat(&dir, entry.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                Err(Errno::EISDIR | Errno::EPERM) => move_up(&dir, &entry, top, moved)?,
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn move_up(from: &Dir, name: &CStr, top: &Dir, moved: &mut u64) -> nix::Result<()> {
    let mut is_opened = false;
    loop {
        *moved += 1;
        match renameat(from, name, top, format!(".moved_{moved}").as_str()) {
            // The name is another entry's.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            // A directory that is moved has to be writable: its parent changes.
            Err(Errno::EACCES) if !is_opened => {
                fchmodat(from, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
                is_opened = true;
            }
            outcome => return outcome,
        }
    }
}

/// What a directory takes of the disk, itself included; nothing where none is there.
pub(crate) fn size(directory: &Path) -> Size {
    size_within(directory, CountBounds { bytes: u64::MAX, time: Duration::MAX })
}

/// The same within bounds.
pub(crate) fn size_within(directory: &Path, bounds: CountBounds) -> Size {
    let (mut total, begun) = (Size::default(), Instant::now());
    let Ok(name) = c_path(directory) else { return total };
    let Ok(top) =
        Dir::openat(AT_FDCWD, name.as_c_str(), OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
    else {
        return total;
    };
    let mut entries_left = COUNTED_ENTRIES_MAX;
    let mut open_directories = vec![Counted::read(top, &mut total, &mut entries_left)];
    while let Some(directory) = open_directories.last_mut() {
        let Some(name) = directory.inside.pop() else {
            open_directories.pop();
            continue;
        };
        if entries_left == 0 || total.bytes > bounds.bytes || begun.elapsed() >= bounds.time {
            total.is_partial = true;
            return total;
        }
        // What is deeper is passed over, so that it does not hide what is next to it.
        if open_directories.len() > COUNTED_DEPTH_MAX {
            total.is_partial = true;
            continue;
        }
        let Some(directory) = open_directories.last() else { return total };
        // One that cannot be opened is removed when its time comes.
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        if let Ok(next) = Dir::openat(&directory.dir, name.as_c_str(), flags, Mode::empty()) {
            open_directories.push(Counted::read(next, &mut total, &mut entries_left));
        }
    }
    total
}

/// A directory whose files are counted.
struct Counted {
    dir: Dir,
    /// Directories in it that are not.
    inside: Vec<CString>,
}

impl Counted {
    fn read(mut dir: Dir, total: &mut Size, entries_left: &mut u64) -> Counted {
        let mut inside = Vec::new();
        let mut names = Vec::new();
        for entry in dir.iter().flatten() {
            if is_dots(entry.file_name()) {
                continue;
            }
            if *entries_left == 0 {
                total.is_partial = true;
                break;
            }
            *entries_left -= 1;
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
        for (name, kind) in names {
            let stat: Option<FileStat> = fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok();
            let blocks = stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0));
            total.bytes =
                total.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES)).saturating_add(ENTRY_BYTES);
            let is_directory = match kind {
                Some(kind) => kind == Type::Directory,
                None => stat.is_some_and(|stat| stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR),
            };
            if is_directory {
                inside.push(name);
            }
        }
        Counted { dir, inside }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nix::sys::stat::mkdirat;
    use std::os::unix::fs::PermissionsExt;

    /// Nested directories, with a file in the last.
    pub(crate) fn deep(at: &Path, levels: u32) {
        std::fs::create_dir(at).unwrap();
        let mut dir = open(AT_FDCWD, &c_path(at).unwrap()).unwrap();
        for _ in 0..levels {
            mkdirat(&dir, "d", Mode::S_IRWXU).unwrap();
            dir = open(&dir, c"d").unwrap();
        }
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_counted_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        deep(&tree, 20_000);
        assert!(size(&tree).is_partial);
        remove(&tree).unwrap();
        assert!(!tree.exists());
        remove(&tree).unwrap();
    }

    #[test]
    fn what_links_lead_to_stays_and_closed_folders_go() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
        std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/b/link")).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        std::fs::write(tree.join("a/b/c/file"), "x").unwrap();
        std::fs::write(tree.join(".moved_1"), "in the way").unwrap();
        for name in ["a/b/c", "a/b"] {
            std::fs::set_permissions(tree.join(name), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        remove(&link).unwrap();
        assert!(!link.exists() && outside.join("kept").exists());
    }

    #[test]
    fn what_is_counted_is_what_the_disk_gives() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir_all(tree.join("a")).unwrap();
        std::fs::write(tree.join("a/real"), vec![1u8; 1 << 20]).unwrap();
        // A file that has a length and next to nothing in it.
        std::fs::File::create(tree.join("a/sparse")).unwrap().set_len(1 << 40).unwrap();
        let counted = size(&tree);
        assert!(!counted.is_partial);
        assert!((1 << 20..2 << 20).contains(&counted.bytes), "{counted:?}");
        assert_eq!(size(&directory.path().join("none")), Size::default());
    }

    #[test]
    fn a_count_ends_at_its_bounds_and_is_not_hidden_by_depth() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        for name in ["a", "b"] {
            std::fs::create_dir(top.join(name)).unwrap();
            std::fs::write(top.join(name).join("file"), vec![7; 1 << 20]).unwrap();
        }
        let whole = size(top);
        assert!(!whole.is_partial && whole.bytes > 2 << 20);
        let counted = |bytes, time| size_within(top, CountBounds { bytes, time });
        let enough = counted(1 << 20, Duration::MAX);
        assert!(enough.is_partial && enough.bytes > 1 << 20);
        let in_no_time = counted(u64::MAX, Duration::ZERO);
        assert!(in_no_time.is_partial && in_no_time.bytes < whole.bytes);
        // Next to a tree that is deeper than is counted the rest is counted still.
        for name in ["a/deep", "b/deep"] {
            deep(&top.join(name), 100);
        }
        let counted = size(top);
        assert!(counted.is_partial && counted.bytes > whole.bytes);
        remove(top).unwrap();
    }
}
