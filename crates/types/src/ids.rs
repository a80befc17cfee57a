//! Typed identifiers, one registry.
//!
//! Ids of logged things are derived from the position of the record that made them, so they are
//! unique and ordered, and need neither randomness nor separate replication. There is no
//! conversion between kinds.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Why a text form of an id was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    /// The form that was expected, for example `job-<digits and letters>`.
    pub expected: &'static str,
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl core::error::Error for ParseIdError {}

/// A position in the decision log: the number of the record that stands there, counted from 1.
///
/// This is the one index that users see: it is on every answer, resumes watches, orders fencing
/// tokens and derives ids. Raft's own index (of entries, several records each, with membership
/// changes between them) stays inside `consensus` and `engine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// Before the first record.
    pub const ZERO: LogIndex = LogIndex(0);

    /// The position after this one.
    #[must_use]
    pub fn next(self) -> LogIndex {
        LogIndex(self.0.checked_add(1).expect("2^64 records cannot be written"))
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of the scheduler servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// One replica's time as leader, the fence of everything that is decided under it: two replicas can lead in one term, one
/// after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leadership {
    /// The Raft term in which the replica was elected.
    pub term: u64,
    /// The leader.
    pub replica: ReplicaId,
}

/// The identity of one Muster cluster, chosen by the operator that initialises it and never changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClusterId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex_128(text).map(ClusterId).ok_or(ParseIdError { expected: "32 hexadecimal digits" })
    }
}

/// A client's name for one mutation. Repeating it repeats the answer, never the effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            (v >> 80) & 0xffff,
            (v >> 64) & 0xffff,
            (v >> 48) & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RequestId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain: String = text.chars().filter(|c| *c != '-').collect();
        parse_hex_128(&plain)
            .map(RequestId)
            .ok_or(ParseIdError { expected: "a UUID: 32 hexadecimal digits, with or without hyphens" })
    }
}

fn parse_hex_128(text: &str) -> Option<u128> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

/// Crockford's base 32 without the letters that are mistaken for digits.
const BASE32: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Digits of a `u64` in base 32: 13 x 5 bits cover 64.
const BASE32_DIGITS_MAX: usize = 13;

fn write_base32(prefix: &str, mut value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0u8; BASE32_DIGITS_MAX];
    let mut used = 0;
    loop {
        digits[used] = BASE32[(value % 32) as usize];
        used += 1;
        value /= 32;
        if value == 0 {
            break;
        }
    }
    let mut text = String::with_capacity(prefix.len() + used);
    text.push_str(prefix);
    for digit in digits[..used].iter().rev() {
        text.push(char::from(*digit));
    }
    f.pad(&text)
}

fn parse_base32(prefix: &str, text: &str) -> Option<u64> {
    let digits = text.strip_prefix(prefix)?;
    if digits.is_empty() || digits.len() > BASE32_DIGITS_MAX {
        return None;
    }
    // One text per id: no leading zeros except for zero itself.
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    let mut value: u64 = 0;
    for byte in digits.bytes() {
        let lower = byte.to_ascii_lowercase();
        let digit = BASE32.iter().position(|b| *b == lower)?;
        value = value.checked_mul(32)?.checked_add(digit as u64)?;
    }
    Some(value)
}

/// A job. The number is the position of the record that submitted it times
/// [`JobId::PER_RECORD`], plus its place in that record. A record that submits more jobs than that, with an array, takes
/// the numbers of several positions: from there on positions in ids run ahead of those in the log. Each generation of
/// the cluster has a separate range of positions, because after a recovery the log goes on behind records that may be
/// other ones than those that were lost.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

impl JobId {
    /// Ids of one position; the batch limit of the API stays below it.
    pub const PER_RECORD: u64 = 1024;
    /// Records that one generation of the cluster can write: at ten thousand a second, for three years.
    pub const RECORDS_PER_GENERATION: u64 = 1 << 40;
    /// Generations whose jobs have distinct ids.
    pub const GENERATIONS_MAX: u32 = 1 << 14;

    /// The id of the `ordinal`-th job of the record at `index`.
    ///
    /// # Panics
    /// When the ordinal is out of bounds: the guard has checked the batch before.
    #[must_use]
    pub fn derive(index: LogIndex, ordinal: usize) -> JobId {
        let ordinal = ordinal as u64;
        assert!(ordinal < Self::PER_RECORD, "a record submits fewer than 1024 jobs");
        let base = index.0.checked_mul(Self::PER_RECORD).expect("2^54 records cannot be written");
        JobId(base + ordinal)
    }

    /// The same in a generation of the cluster: no other one gives this id. Generations above
    /// [`JobId::GENERATIONS_MAX`] count as that one.
    ///
    /// # Panics
    /// When the ordinal is out of bounds: the guard has checked the batch before.
    #[must_use]
    pub fn derive_in(generation: u32, index: LogIndex, ordinal: usize) -> JobId {
        let before = u64::from(generation.clamp(1, Self::GENERATIONS_MAX) - 1);
        JobId::derive(LogIndex(before * Self::RECORDS_PER_GENERATION + index.0), ordinal)
    }

    /// Positions that a record takes which submits this number of jobs.
    #[must_use]
    pub fn positions_of(jobs: u32) -> u64 {
        u64::from(jobs).div_ceil(Self::PER_RECORD).max(1)
    }

    /// The position in this id, in its generation: that of the record that submitted the job while no larger array had been
    /// submitted, and a later one after that.
    #[must_use]
    pub fn submitted_at(self) -> LogIndex {
        LogIndex(self.0 / Self::PER_RECORD % Self::RECORDS_PER_GENERATION)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32("job-", self.0, f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_base32("job-", text).map(JobId).ok_or(ParseIdError { expected: "job-<base 32 digits>" })
    }
}

/// An array of jobs. Its number is that of its first job; the others follow it, one by one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ArrayId(pub u64);

impl ArrayId {
    /// The array in which a job has this ordinal.
    #[must_use]
    pub fn of_member(job: JobId, ordinal: u32) -> ArrayId {
        ArrayId(job.0.saturating_sub(u64::from(ordinal)))
    }

    /// The member with this ordinal.
    #[must_use]
    pub fn member(self, ordinal: u32) -> JobId {
        JobId(self.0.saturating_add(u64::from(ordinal)))
    }
}

impl fmt::Display for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32("array-", self.0, f)
    }
}

impl fmt::Debug for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ArrayId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_base32("array-", text).map(ArrayId).ok_or(ParseIdError { expected: "array-<base 32 digits>" })
    }
}

/// A node: a host as lease holder. Dense, in order of first registration, so that it indexes arrays.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32("node-", u64::from(self.0), f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_base32("node-", text)
            .and_then(|v| u32::try_from(v).ok())
            .map(NodeId)
            .ok_or(ParseIdError { expected: "node-<base 32 digits>" })
    }
}
