//! Frames of a snapshot: `tag | length | crc32 | payload`, one after another.
//!
//! A snapshot is a sequence of frames; the transport may cut it anywhere. [`FrameReader`] takes the
//! pieces as they come.

use alloc::vec::Vec;

/// Most bytes in one frame's payload.
pub const FRAME_BYTES_MAX: usize = 32 << 20;

const HEADER_BYTES: usize = 1 + 4 + 4;

/// The bytes of one frame.
///
/// # Panics
/// When the payload is above [`FRAME_BYTES_MAX`]: writers cut sections far below it.
#[must_use]
pub fn encode_frame(tag: u8, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= FRAME_BYTES_MAX, "sections are cut below the frame's bound");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.push(tag);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(tag, payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn checksum(tag: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[tag]);
    hasher.update(&(payload.len() as u64).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// The stream is not a sequence of whole frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A length above the bound.
    Length,
    /// A damaged frame.
    Checksum,
    /// The stream ended inside a frame.
    Truncated,
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            FrameError::Length => "frame length above its bound",
            FrameError::Checksum => "frame checksum does not match",
            FrameError::Truncated => "stream ended inside a frame",
        })
    }
}

impl core::error::Error for FrameError {}

/// Puts frames together from pieces of any size.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameReader {
    /// Takes the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        if self.start > 0 && self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole frame, when one is there.
    ///
    /// # Errors
    /// When the bytes so far cannot be a frame.
    pub fn next_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, FrameError> {
        let rest = &self.buffer[self.start..];
        if rest.len() < HEADER_BYTES {
            return Ok(None);
        }
        let tag = rest[0];
        let length = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        let expected = u32::from_le_bytes([rest[5], rest[6], rest[7], rest[8]]);
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::Length);
        }
        if rest.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        let payload = rest[HEADER_BYTES..HEADER_BYTES + length].to_vec();
        if checksum(tag, &payload) != expected {
            return Err(FrameError::Checksum);
        }
        self.start += HEADER_BYTES + length;
        if self.start > FRAME_BYTES_MAX {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        Ok(Some((tag, payload)))
    }

    /// The stream has ended here.
    ///
    /// # Errors
    /// When it ended inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.start == self.buffer.len() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}
