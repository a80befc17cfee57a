//! Files that workers leave and that come back: what a job says of them, and what became of those of one worker.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::blob::BlobDigest;
use crate::limits;
use crate::reason::Violation;

/// Which files of its workers a job wants back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRules {
    /// Files and directories relative to where the workers start; at most [`limits::ARTIFACT_PATHS_MAX`]. In a name, `*`
    /// stands for any characters and `?` for one.
    pub paths: Vec<String>,
    /// Whether a worker fails that succeeded and whose files could not be kept.
    pub required: bool,
}

impl ArtifactRules {
    /// Adds every rule that it breaks, by fields of the contract.
    pub fn check(&self, found: &mut Vec<Violation>) {
        let count = self.paths.len();
        if count == 0 || count > limits::ARTIFACT_PATHS_MAX {
            let most = limits::ARTIFACT_PATHS_MAX as u64;
            found.push(Violation::limit("artifacts.paths", count as u64, 1, most));
        }
        for (index, path) in self.paths.iter().enumerate().take(limits::ARTIFACT_PATHS_MAX) {
            if let Err(rule) = check_path(path) {
                found.push(Violation::new(format!("artifacts.paths[{index}]"), rule));
            }
        }
    }
}

/// The rule that a path of artifacts breaks.
///
/// # Errors
/// In words.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    const RULE: &str = "must be a relative path of at most 256 bytes and 16 names, without empty names, `.`, `..`, `**` and control \
                        characters";
    let names = path.split('/');
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains("**");
    let is_short = path.len() <= limits::ARTIFACT_PATH_BYTES_MAX
        && names.clone().count() <= limits::ARTIFACT_PATH_NAMES_MAX;
    if is_short && !path.chars().any(char::is_control) && names.clone().all(is_name) {
        Ok(())
    } else {
        Err(RULE)
    }
}

/// Whether a name is one that a name of a path stands for.
#[must_use]
pub fn matches_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where the last `*` stands, and how much of the name it stands for.
    let mut star: Option<(usize, usize)> = None;
    while let Some(wanted) = name.get(of) {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(one) if *one == '?' || one == wanted => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                at = place + 1;
                of = taken + 1;
            }
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|one| *one == '*'))
}

/// Why not all files of a worker were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ArtifactFault {
    /// The node has no store of files.
    NoStore,
    /// Nothing is at a path.
    NotFound,
    /// A file or directory cannot be read by the agent, or changed while it was.
    Unreadable,
    /// More files or bytes than the node's agent keeps of a worker.
    TooLarge,
    /// The store did not take them.
    StoreUnreachable,
    /// The time for it was over: that of the agent, the grace of a worker that was stopped, or its lease.
    OutOfTime,
}

impl ArtifactFault {
    /// Every one.
    pub const ALL: [ArtifactFault; 6] = [
        ArtifactFault::NoStore,
        ArtifactFault::NotFound,
        ArtifactFault::Unreadable,
        ArtifactFault::TooLarge,
        ArtifactFault::StoreUnreachable,
        ArtifactFault::OutOfTime,
    ];

    /// A stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ArtifactFault::NoStore => "NO_STORE",
            ArtifactFault::NotFound => "NOT_FOUND",
            ArtifactFault::Unreadable => "UNREADABLE",
            ArtifactFault::TooLarge => "TOO_LARGE",
            ArtifactFault::StoreUnreachable => "STORE_UNREACHABLE",
            ArtifactFault::OutOfTime => "OUT_OF_TIME",
        }
    }

    /// The fault of a word; none for a word of another release.
    #[must_use]
    pub fn of_word(word: &str) -> Option<ArtifactFault> {
        ArtifactFault::ALL.into_iter().find(|fault| fault.word() == word)
    }
}

impl fmt::Display for ArtifactFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What became of the artifacts of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Artifacts {
    /// The list of the files that were kept; none where nothing was.
    pub digest: Option<BlobDigest>,
    /// How many files.
    pub files: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Links, devices and files of other users below the paths, which are not kept.
    pub left_out: u32,
    /// Why not all of them were kept, and by which path that was seen, from 0.
    pub fault: Option<(ArtifactFault, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_where_it_begins() {
        for good in ["a", "out/*.csv", "a b/c", "run-??/model.pt", "..a/b..", "*"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let (long, deep) = ("n".repeat(257), ["d"; 17].join("/"));
        for bad in
            ["", "/", "/etc/passwd", "..", "a/../b", "./a", "a//b", "a/", "**/a", "a\nb", &*long, &*deep]
        {
            assert!(check_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters_of_one_name() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "a"),
            ("*.csv", ".csv"),
            ("a*b*c", "axxbyyc"),
            ("a*b", "abab"),
            ("??", "éa"),
            ("a", "a"),
        ] {
            assert!(matches_name(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("a", ""), ("?", ""), ("*.csv", "csv"), ("a*b", "ac"), ("a?", "abc")]
        {
            assert!(!matches_name(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_fault_is_known_by_its_word() {
        for fault in ArtifactFault::ALL {
            assert_eq!(ArtifactFault::of_word(fault.word()), Some(fault));
        }
        assert_eq!(ArtifactFault::of_word("LOST"), None);
    }
}
