//! Bytes of rounds: `magic | format | length | crc32 | payload`.
//!
//! The payload is bincode 2 with variable-length integers: 164 against 286 bytes per job with fixed
//! ones. The checksum covers format, length and payload.

use alloc::vec::Vec;
use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use core::fmt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::decision::{Decision, FORMAT_MAX, FORMAT_MIN, Round};

/// Most bytes of one encoded round, which is the payload of one Raft entry.
pub const ROUND_BYTES_MAX: usize = 2 << 20;

/// Most bytes of one encoded value outside of rounds (a batch of snapshot rows): a frame's. The
/// largest row, two placements of the largest gang with the longest details, has about 18 MiB.
const VALUE_BYTES_MAX: usize = crate::frame::FRAME_BYTES_MAX;

const MAGIC: [u8; 4] = *b"MRND";
const HEADER_BYTES: usize = 4 + 2 + 4 + 4;
/// Most bytes of the fields of a round before its decisions.
const ROUND_FIELDS_BYTES: usize = 6 * 9;

/// Why bytes are not a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Fewer or more bytes than the header says, or none of the header.
    Length,
    /// Not a round at all.
    Magic,
    /// Written by a newer binary: this one must stop before it, not skip it.
    FormatNewer {
        /// The format that one must know to go on.
        needed: u16,
        /// The highest that is known here.
        known: u16,
    },
    /// A decision that its round's format cannot say: no release writes that.
    DecisionNewer {
        /// Its name.
        decision: &'static str,
        /// The format that can say it.
        needed: u16,
        /// The round's.
        format: u16,
    },
    /// The bytes are damaged.
    Checksum,
    /// The checksum holds but the payload is not one of this format.
    Payload,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Length => f.write_str("wrong length"),
            DecodeError::Magic => f.write_str("no round begins here"),
            DecodeError::FormatNewer { needed, known } => write!(
                f,
                "record format {needed} is needed and {known} is the highest known here: upgrade this replica"
            ),
            DecodeError::DecisionNewer { decision, needed, format } => {
                write!(f, "a round of format {format} says {decision}, which needs format {needed}")
            }
            DecodeError::Checksum => f.write_str("checksum does not match"),
            DecodeError::Payload => f.write_str("payload is not a value of its format"),
        }
    }
}

impl core::error::Error for DecodeError {}

fn checksum(format: u16, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&format.to_le_bytes());
    hasher.update(&(payload.len() as u64).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// The decisions of a round as they are encoded, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedDecisions {
    bytes: Vec<u8>,
    /// For each decision, the offset in `bytes` behind it.
    ends: Vec<usize>,
}

impl EncodedDecisions {
    /// Appends the bytes of a decision behind those of the others.
    pub fn push(&mut self, decision: &Decision) {
        append(&mut self.bytes, decision);
        self.ends.push(self.bytes.len());
    }

    /// How many bytes they have together.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    /// The runs of decisions that rounds are made of when none is to have more than `bytes_max`, unless one decision has:
    /// how many decisions, and their bytes.
    pub fn runs(&self, bytes_max: usize) -> Vec<(usize, &[u8])> {
        let mut runs = Vec::new();
        let (mut first, mut start, mut last_end) = (0, 0, 0);
        for (place, end) in self.ends.iter().enumerate() {
            if *end - start > bytes_max && last_end > start {
                runs.push((place - first, &self.bytes[start..last_end]));
                (first, start) = (place, last_end);
            }
            last_end = *end;
        }
        if self.ends.len() > first {
            runs.push((self.ends.len() - first, &self.bytes[start..]));
        }
        runs
    }
}

/// The bytes of a round.
///
/// # Panics
/// As [`seal_round`].
#[must_use]
pub fn encode_round(round: &Round) -> Vec<u8> {
    let mut encoded = EncodedDecisions::default();
    round.decisions.iter().for_each(|decision| encoded.push(decision));
    seal_round(round, &encoded.bytes)
}

/// The bytes of a round whose decisions are encoded already.
///
/// # Panics
/// When the round is above [`ROUND_BYTES_MAX`], its format is none of this binary's, or it says what its
/// format cannot: the code that builds rounds has to prevent all three.
#[must_use]
pub fn seal_round(round: &Round, decisions: &[u8]) -> Vec<u8> {
    let Round { format, term, replica, first_index, basis_index, log_time, .. } = round;
    assert!((FORMAT_MIN..=FORMAT_MAX).contains(format), "a round has a format that is known here");
    let newest = round.decisions.iter().map(Decision::since_format).max().unwrap_or(FORMAT_MIN);
    assert!(newest <= *format, "a round says nothing that its format cannot say");
    // The fields of `Round`, as serde encodes them.
    let count = round.decisions.len() as u64;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + ROUND_FIELDS_BYTES + decisions.len());
    bytes.extend_from_slice(&[0; HEADER_BYTES]);
    append(&mut bytes, &(term, replica, first_index, basis_index, log_time, count));
    bytes.extend_from_slice(decisions);
    assert!(bytes.len() <= ROUND_BYTES_MAX, "a round is bounded before it is encoded");
    let (header, payload) = bytes.split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&format.to_le_bytes());
    header[6..10].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[10..].copy_from_slice(&checksum(*format, payload).to_le_bytes());
    bytes
}

/// Appends the canonical bytes of a value.
fn append<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) {
    struct Appended<'a>(&'a mut Vec<u8>);

    impl Writer for Appended<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }

    bincode::serde::encode_into_writer(value, Appended(bytes), bincode::config::standard())
        .expect("values of types and state hold nothing that serde cannot encode");
}

/// The round in `bytes`, for a binary that knows formats up to `format_max`: [`FORMAT_MAX`], or less where
/// an older binary is to be stood for.
///
/// # Errors
/// Never panics: every malformed input has its [`DecodeError`].
pub fn decode_round(bytes: &[u8], format_max: u16) -> Result<Round, DecodeError> {
    if bytes.len() < HEADER_BYTES {
        return Err(DecodeError::Length);
    }
    let (header, payload) = bytes.split_at(HEADER_BYTES);
    let field = |from: usize, to: usize| {
        let mut value = [0u8; 8];
        value[..to - from].copy_from_slice(&header[from..to]);
        u64::from_le_bytes(value)
    };
    if header[..4] != MAGIC {
        return Err(DecodeError::Magic);
    }
    let format = field(4, 6) as u16;
    let length = field(6, 10) as usize;
    let expected = field(10, 14) as u32;
    if length != payload.len() {
        return Err(DecodeError::Length);
    }
    if checksum(format, payload) != expected {
        return Err(DecodeError::Checksum);
    }
    let known = format_max.min(FORMAT_MAX);
    if format < FORMAT_MIN {
        return Err(DecodeError::Payload);
    }
    if format > known {
        return Err(DecodeError::FormatNewer { needed: format, known });
    }
    // Checked behind the format: a newer one may have a larger bound.
    if bytes.len() > ROUND_BYTES_MAX {
        return Err(DecodeError::Length);
    }
    // All formats have one layout; they differ in the decisions that may occur.
    let round: Round = from_canonical(payload).ok_or(DecodeError::Payload)?;
    match round.decisions.iter().find(|decision| decision.since_format() > format) {
        Some(newer) => {
            let (decision, needed) = (newer.name(), newer.since_format());
            Err(DecodeError::DecisionNewer { decision, needed, format })
        }
        None => Ok(Round { format, ..round }),
    }
}

/// The one encoding of a value: what is hashed, and what snapshot rows are made of.
#[must_use]
pub fn canonical<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, value);
    bytes
}

/// The value whose canonical bytes these are, all of them.
#[must_use]
pub fn from_canonical<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let config = bincode::config::standard().with_limit::<VALUE_BYTES_MAX>();
    match bincode::serde::borrow_decode_from_slice(bytes, config) {
        Ok((value, used)) if used == bytes.len() => Some(value),
        _ => None,
    }
}

/// Values up to this size are hashed without an allocation.
const SMALL_VALUE_BYTES: usize = 768;

/// Hash of a value's canonical bytes.
#[must_use]
pub fn hash<T: Serialize + ?Sized>(value: &T) -> u64 {
    // Rows are hashed at every change, and nearly all of them fit here.
    let mut small = [0u8; SMALL_VALUE_BYTES];
    match bincode::serde::encode_into_slice(value, &mut small, bincode::config::standard()) {
        Ok(length) => xxhash_rust::xxh3::xxh3_64(&small[..length]),
        Err(_) => xxhash_rust::xxh3::xxh3_64(&canonical(value)),
    }
}

/// What [`hash`] says of a list of bytes, without encoding them one by one.
#[must_use]
pub fn hash_of_bytes(bytes: &[u8]) -> u64 {
    // A list is its length and what is in it; a byte is itself.
    let mut listed = Vec::with_capacity(bytes.len() + 9);
    append(&mut listed, &(bytes.len() as u64));
    listed.extend_from_slice(bytes);
    xxhash_rust::xxh3::xxh3_64(&listed)
}
