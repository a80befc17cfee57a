//! The list of the files of a directory, and its rules.
//!
//! A list comes from a client through a store, and says where a node writes. So it is checked whole before any of it is used,
//! by the client that makes it and again by every node.
//!
//! **Invariant:** no path or link of a checked list leads out of its directory.

use muster_types::BlobDigest;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Files, links and empty directories of one list.
pub const FILES_MAX: usize = 100_000;
/// Directories that the paths of one list are in. A list of long paths would make many more directories than it has entries.
const DIRECTORIES_MAX: usize = 100_000;
/// Bytes of all files together.
pub const BYTES_MAX: u64 = 2 << 30;
/// Bytes of a list itself.
pub const LIST_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a path or of the target of a link.
pub(crate) const PATH_BYTES_MAX: usize = 1_024;
/// Bytes of one name in a path.
const NAME_BYTES_MAX: usize = 255;
/// Names in a path.
pub(crate) const DEPTH_MAX: usize = 64;
/// The form of lists.
const VERSION: u32 = 1;

/// A rule that a list breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// It is not a list of this form.
    #[error("it is not a list of files of version 1: {0}")]
    Form(String),
    /// Too many entries.
    #[error("it has {0} entries, of at most {FILES_MAX}", FILES_MAX = FILES_MAX)]
    Files(usize),
    /// Too many directories that follow from its paths.
    #[error("its paths are in more than {DIRECTORIES_MAX} directories", DIRECTORIES_MAX = DIRECTORIES_MAX)]
    Directories,
    /// Files that are too large together.
    #[error("its files have {bytes} bytes, of at most {max}")]
    Bytes {
        /// How many they have.
        bytes: u64,
        /// How many they may have.
        max: u64,
    },
    /// A path that is none.
    #[error("{path:?} {rule}")]
    Path {
        /// As the list has it.
        path: String,
        /// Which rule.
        rule: &'static str,
    },
}

/// One file, link or empty directory. Directories with something in them follow from the paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A regular file.
    File {
        /// Relative, names separated by `/`.
        path: String,
        /// Bytes of its content.
        size: u64,
        /// Of its content.
        digest: BlobDigest,
        /// Whether it can be executed.
        executable: bool,
    },
    /// A symbolic link.
    Link {
        /// As for a file.
        path: String,
        /// Relative to the link's own directory.
        target: String,
    },
    /// An empty directory.
    Directory {
        /// As for a file.
        path: String,
    },
}

impl Entry {
    /// Where it is in its directory.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Entry::File { path, .. } | Entry::Link { path, .. } | Entry::Directory { path } => path,
        }
    }
}

/// An entry as it is read. It has the fields of all kinds: an enum with a tag would be kept as a generic value before its kind is
/// known, and such a value takes many times the memory of its text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    kind: Kind,
    path: String,
    size: Option<u64>,
    digest: Option<BlobDigest>,
    executable: Option<bool>,
    target: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    File,
    Link,
    Directory,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entry, D::Error> {
        let WrittenEntry { kind, path, size, digest, executable, target } = WrittenEntry::deserialize(from)?;
        match (kind, size, digest, executable, target) {
            (Kind::File, Some(size), Some(digest), Some(executable), None) => {
                Ok(Entry::File { path, size, digest, executable })
            }
            (Kind::Link, None, None, None, Some(target)) => Ok(Entry::Link { path, target }),
            (Kind::Directory, None, None, None, None) => Ok(Entry::Directory { path }),
            _ => Err(D::Error::custom("an entry has other fields than those of its kind")),
        }
    }
}

/// A list as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    #[serde(deserialize_with = "bounded")]
    entries: Vec<Entry>,
}

/// Reads entries, and no more of them than a list may have: its text may have many times as many.
fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Entry>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<Entry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {FILES_MAX} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Entry>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = seq.next_element()? {
                if entries.len() >= FILES_MAX {
                    return Err(A::Error::invalid_length(entries.len() + 1, &self));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    from.deserialize_seq(Entries)
}

/// A checked list, in the order of its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    entries: Vec<Entry>,
    bytes: u64,
}

impl Tree {
    /// A list of these entries, in any order. Their files have at most `bytes_max` bytes together.
    ///
    /// # Errors
    /// The first rule that they break.
    pub fn new(mut entries: Vec<Entry>, bytes_max: u64) -> Result<Tree, TreeError> {
        entries.sort_by(|one, other| one.path().cmp(other.path()));
        Tree::check(entries, bytes_max)
    }

    /// Reads a list.
    ///
    /// # Errors
    /// When it is none, or the first rule that it breaks.
    pub fn decode(bytes: &[u8], bytes_max: u64) -> Result<Tree, TreeError> {
        let written: Written =
            serde_json::from_slice(bytes).map_err(|error| TreeError::Form(error.to_string()))?;
        if written.version != VERSION {
            return Err(TreeError::Form(format!("it is of version {}", written.version)));
        }
        Tree::check(written.entries, bytes_max)
    }

    /// Its bytes; the same list has the same.
    ///
    /// # Errors
    /// When it is longer than a list may be.
    pub fn encode(&self) -> Result<Vec<u8>, TreeError> {
        let written = Written { version: VERSION, entries: self.entries.clone() };
        let bytes = serde_json::to_vec(&written).map_err(|error| TreeError::Form(error.to_string()))?;
        if bytes.len() as u64 > LIST_BYTES_MAX {
            return Err(TreeError::Form(format!(
                "it has {} bytes, of at most {LIST_BYTES_MAX}",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// What is in it, in the order of paths.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(entries: Vec<Entry>, bytes_max: u64) -> Result<Tree, TreeError> {
        if entries.len() > FILES_MAX {
            return Err(TreeError::Files(entries.len()));
        }
        let mut bytes = 0u64;
        let mut before: Option<&str> = None;
        let mut directories = 0usize;
        // What nothing can be below.
        let mut leaves: BTreeSet<&str> = BTreeSet::new();
        for entry in &entries {
            let path = entry.path();
            let broken = |rule| TreeError::Path { path: path.to_owned(), rule };
            check_path(path).map_err(broken)?;
            if before.is_some_and(|before| before >= path) {
                return Err(broken("must be behind the path before it, once"));
            }
            // Paths in one directory are next to each other, so one that the path before is not in is new.
            directories +=
                ancestors(path).filter(|above| !before.is_some_and(|before| is_in(before, above))).count();
            if directories > DIRECTORIES_MAX {
                return Err(TreeError::Directories);
            }
            before = Some(path);
            if ancestors(path).any(|above| leaves.contains(above)) {
                return Err(broken("must not be below a file or link"));
            }
            match entry {
                Entry::File { size, .. } => {
                    bytes = bytes.saturating_add(*size);
                    leaves.insert(path);
                }
                Entry::Link { target, .. } => {
                    check_link(path, target).map_err(broken)?;
                    leaves.insert(path);
                }
                Entry::Directory { .. } => {}
            }
        }
        if bytes > bytes_max {
            return Err(TreeError::Bytes { bytes, max: bytes_max });
        }
        drop(leaves);
        Ok(Tree { entries, bytes })
    }
}

/// The paths of the directories that a path is in, the highest first.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(move |(at, _)| path.get(..at))
}

/// Whether a path is below a directory.
fn is_in(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// The rule that a path of a list breaks.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return Err("must have 1 to 1,024 bytes");
    }
    if path.split('/').count() > DEPTH_MAX {
        return Err("must have at most 64 names");
    }
    path.split('/').try_for_each(check_name)
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("must be relative, without empty names"),
        "." | ".." => Err("must not have the names . and .."),
        _ if name.len() > NAME_BYTES_MAX || name.contains('\0') => {
            Err("must have names of at most 255 bytes without a zero byte")
        }
        _ => Ok(()),
    }
}

/// The rule that a link breaks. Its target may begin with `..`, as often as its directory is deep, and not have it later: below
/// a name that is a link itself, a later `..` would lead to where nobody can tell from the list.
pub(crate) fn check_link(path: &str, target: &str) -> Result<(), &'static str> {
    const RULE: &str = "must be a link to something in the directory that is sent, by a relative path whose .. all stand at the \
                        beginning; replace it by a copy, or leave it out with a line in .musterignore";
    if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains('\0') || target.starts_with('/')
    {
        return Err(RULE);
    }
    let depth = path.split('/').count().saturating_sub(1);
    let names: Vec<&str> = target.trim_end_matches('/').split('/').filter(|name| *name != ".").collect();
    let up = names.iter().take_while(|name| **name == "..").count();
    let is_inside = up <= depth && !names.iter().skip(up).any(|name| *name == ".." || name.is_empty());
    if is_inside && names.len() <= DEPTH_MAX { Ok(()) } else { Err(RULE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64) -> Entry {
        let digest = BlobDigest::new([1; 32]);
        Entry::File { path: path.to_owned(), size, digest, executable: false }
    }

    fn link(path: &str, target: &str) -> Entry {
        Entry::Link { path: path.to_owned(), target: target.to_owned() }
    }

    #[test]
    fn a_list_comes_back_and_its_order_is_that_of_its_paths() {
        let entries = vec![
            file("b/c", 3),
            file("a", 2),
            link("b/d", "../a"),
            Entry::Directory { path: "logs".to_owned() },
        ];
        let tree = Tree::new(entries.clone(), 5).unwrap();
        let bytes = tree.encode().unwrap();
        assert_eq!(Tree::decode(&bytes, 5).unwrap(), tree);
        assert_eq!(Tree::new(entries.into_iter().rev().collect(), 5).unwrap().encode().unwrap(), bytes);
        assert_eq!(tree.bytes(), 5);
        assert_eq!(Tree::decode(&bytes, 4), Err(TreeError::Bytes { bytes: 5, max: 4 }));
    }

    #[test]
    fn no_path_leads_out() {
        let long = "n".repeat(256);
        let deep = vec!["d"; 65].join("/");
        for bad in
            ["", "/", "/etc/passwd", "..", "a/../b", "a/./b", "a//b", "a/", "./a", "a\0b", &*long, &*deep]
        {
            let refused = Tree::new(vec![file(bad, 1)], 10);
            assert!(matches!(refused, Err(TreeError::Path { .. })), "{bad:?}: {refused:?}");
        }
        for (path, target) in [
            ("l", "/etc/passwd"),
            ("l", ".."),
            ("l", "../x"),
            ("a/l", "../../x"),
            ("a/l", "b/../../../x"),
            // `b` may be a link to the top.
            ("a/l", "b/../x"),
            ("l", ""),
            ("l", "a//b"),
            ("l", "a\0b"),
        ] {
            assert!(check_link(path, target).is_err(), "{path} -> {target}");
        }
        for (path, target) in
            [("l", "a"), ("a/l", "../x"), ("a/b/l", "../../c/d/"), ("a/l", ".."), ("l", "./a")]
        {
            assert_eq!(check_link(path, target), Ok(()), "{path} -> {target}");
        }
    }

    #[test]
    fn nothing_is_twice_or_below_what_is_no_directory() {
        for bad in [
            vec![file("a", 1), file("a", 1)],
            vec![file("a", 1), file("a/b", 1)],
            vec![link("a", "x"), file("a/b", 1)],
            vec![link("a", "x"), Entry::Directory { path: "a/b/c".to_owned() }],
        ] {
            assert!(matches!(Tree::new(bad.clone(), 10), Err(TreeError::Path { .. })), "{bad:?}");
        }
        // As a strange client could write it.
        let unordered =
            r#"{"version":1,"entries":[{"kind":"directory","path":"b"},{"kind":"directory","path":"a"}]}"#;
        assert!(matches!(Tree::decode(unordered.as_bytes(), 1), Err(TreeError::Path { .. })));
        for bad in [
            "",
            "[]",
            r#"{"version":2,"entries":[]}"#,
            r#"{"version":1,"entries":[{"kind":"device","path":"a"}]}"#,
            r#"{"version":1,"entries":[{"kind":"directory","path":"a","mode":4095}]}"#,
            r#"{"version":1,"entries":[{"kind":"directory","path":"a","target":"b"}]}"#,
            r#"{"version":1,"entries":[{"kind":"link","path":"a"}]}"#,
            r#"{"version":1,"entries":[{"kind":"link","path":"a","target":"b","size":1}]}"#,
            r#"{"version":1,"entries":[{"kind":"file","path":"a","size":-1,"digest":"x","executable":true}]}"#,
            r#"{"version":1,"entries":[{"kind":"file","path":"a","size":1,"digest":"x","executable":true}]}"#,
        ] {
            assert!(matches!(Tree::decode(bad.as_bytes(), 1), Err(TreeError::Form(_))), "{bad}");
        }
        let large = vec![file("a", u64::MAX), file("b", u64::MAX)];
        assert!(matches!(Tree::new(large, BYTES_MAX), Err(TreeError::Bytes { .. })));
        let many = (0..=FILES_MAX).map(|n| Entry::Directory { path: format!("d{n}") }).collect();
        assert_eq!(Tree::new(many, 1), Err(TreeError::Files(FILES_MAX + 1)));
    }

    #[test]
    fn a_list_of_more_entries_is_not_read_to_its_end() {
        let text = |count: usize| {
            let entries = vec![r#"{"kind":"directory","path":""}"#; count].join(",");
            format!(r#"{{"version":1,"entries":[{entries}]}}"#)
        };
        let refused = Tree::decode(text(FILES_MAX + 1).as_bytes(), 1);
        assert!(
            matches!(&refused, Err(TreeError::Form(why)) if why.contains("at most 100000 entries")),
            "{refused:?}"
        );
        assert!(matches!(Tree::decode(text(FILES_MAX).as_bytes(), 1), Err(TreeError::Path { .. })));
    }

    #[test]
    fn directories_that_follow_from_paths_are_bounded() {
        // Every path is in ten directories that no other path is in.
        let deep = |count: usize| {
            (0..count).map(|n| file(&format!("{n:05}/b/c/d/e/f/g/h/i/j/k"), 0)).collect::<Vec<_>>()
        };
        assert!(Tree::new(deep(DIRECTORIES_MAX / 10), 0).is_ok());
        assert_eq!(Tree::new(deep(DIRECTORIES_MAX / 10 + 1), 0), Err(TreeError::Directories));
        // Each directory counts once, also where other names stand between it and what is in it.
        let mut shared: Vec<_> = (0..50_000).map(|n| file(&format!("a/b/{n:05}"), 0)).collect();
        shared.extend([file("a-b", 0), file("a/b-c", 0), Entry::Directory { path: "a/b.d".to_owned() }]);
        assert!(Tree::new(shared, 0).is_ok());
    }
}
