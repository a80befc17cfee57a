//! What the ranks say to one another: bounded, checksummed frames.
//!
//! `magic u32 · kind u8 · length u32 · body · crc32 u32`, little endian; the checksum covers kind,
//! length and body. Anything else on the connection, a port scanner or another program, fails at the
//! magic number, and no length is believed before it is compared with the most that the reader expects.

use std::fmt;
use std::io::{self, Read, Write};

const MAGIC: u32 = u32::from_le_bytes(*b"MEX1");
const HEADER_LEN: usize = 9;

/// The frames, in the order of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A rank introduces itself to rank 0.
    Hello = 1,
    /// Rank 0 takes it in.
    Welcome = 2,
    /// Rank 0 sends it away, with the reason.
    Refused = 3,
    /// The step and weights that all ranks start from.
    Start = 4,
    /// One rank's gradient of a step.
    Gather = 5,
    /// The sum over all ranks, and whether to stop.
    Verdict = 6,
    /// Everything is saved; part.
    Parting = 7,
}

/// Why a frame could not be read.
#[derive(Debug)]
pub enum FrameError {
    /// The connection failed.
    Io(io::Error),
    /// The bytes are not ours, or damaged.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Io(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof => f.write_str("the other end closed the connection"),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    f.write_str("no answer within the time allowed")
                }
                _ => write!(f, "{error}"),
            },
            FrameError::Malformed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FrameError {}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> FrameError {
        FrameError::Io(error)
    }
}

/// Sends one frame.
pub(crate) fn write(to: &mut impl Write, kind: Kind, body: &[u8]) -> Result<(), FrameError> {
    let length =
        u32::try_from(body.len()).map_err(|_| FrameError::Malformed("a frame of 4 GiB or more".into()))?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len() + 4);
    bytes.extend(MAGIC.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    let checksum = crc32fast::hash(&bytes[4..]);
    bytes.extend(checksum.to_le_bytes());
    to.write_all(&bytes)?;
    to.flush()?;
    Ok(())
}

/// Receives one frame of any kind whose body has at most `len_max` bytes; the kind is still a number.
pub(crate) fn read(from: &mut impl Read, len_max: usize) -> Result<(u8, Vec<u8>), FrameError> {
    let mut header = [0; HEADER_LEN];
    from.read_exact(&mut header)?;
    let mut fields = Fields::new(&header);
    if fields.u32()? != MAGIC {
        return Err(FrameError::Malformed("the other end does not speak this protocol".into()));
    }
    let kind = fields.u8()?;
    let length = fields.u32()? as usize;
    if length > len_max {
        return Err(FrameError::Malformed(format!("a frame of {length} bytes where {len_max} are the most")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let mut checksum = [0; 4];
    from.read_exact(&mut checksum)?;
    let mut expected = crc32fast::Hasher::new();
    expected.update(&header[4..]);
    expected.update(&body);
    if expected.finalize() != u32::from_le_bytes(checksum) {
        return Err(FrameError::Malformed("a frame with a wrong checksum".into()));
    }
    Ok((kind, body))
}

/// Receives one frame of one kind.
pub(crate) fn expect(from: &mut impl Read, kind: Kind, len_max: usize) -> Result<Vec<u8>, FrameError> {
    match read(from, len_max)? {
        (got, body) if got == kind as u8 => Ok(body),
        (got, _) => Err(FrameError::Malformed(format!("frame {got} where {kind:?} was due"))),
    }
}

/// Builds a body, or a checkpoint.
#[derive(Default)]
pub(crate) struct Builder(pub(crate) Vec<u8>);

impl Builder {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }

    /// With its length before it.
    pub(crate) fn text(self, value: &str) -> Self {
        // Every text sent here is bounded by hundreds of bytes.
        let mut built = self.u32(value.len() as u32);
        built.0.extend(value.as_bytes());
        built
    }

    /// Without a length: the reader knows it.
    pub(crate) fn f64s(mut self, values: &[f64]) -> Self {
        self.0.extend(values.iter().flat_map(|v| v.to_bits().to_le_bytes()));
        self
    }
}

/// Takes a body, or a checkpoint, apart.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (head, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| FrameError::Malformed("the data ends too early".into()))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn f64(&mut self) -> Result<f64, FrameError> {
        Ok(f64::from_bits(self.u64()?))
    }

    pub(crate) fn text(&mut self, len_max: usize) -> Result<String, FrameError> {
        let length = self.u32()? as usize;
        if length > len_max {
            return Err(FrameError::Malformed(format!(
                "a text of {length} bytes where {len_max} are the most"
            )));
        }
        String::from_utf8(self.bytes(length)?.to_vec())
            .map_err(|_| FrameError::Malformed("a text that is not UTF-8".into()))
    }

    pub(crate) fn f64s(&mut self, count: usize) -> Result<Vec<f64>, FrameError> {
        let length =
            count.checked_mul(8).ok_or_else(|| FrameError::Malformed("the data ends too early".into()))?;
        let (chunks, _) = self.bytes(length)?.as_chunks::<8>();
        Ok(chunks.iter().map(|chunk| f64::from_bits(u64::from_le_bytes(*chunk))).collect())
    }

    /// Nothing may be left over.
    pub(crate) fn end(self) -> Result<(), FrameError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Malformed(format!("{} bytes too many", self.0.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_whole_and_no_damaged_one_does() {
        let body = Builder::default().u8(1).u64(77).text("name").f64s(&[0.5, -1e300]).0;
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Gather, &body).unwrap();
        assert_eq!(expect(&mut &bytes[..], Kind::Gather, 100).unwrap(), body);
        assert!(expect(&mut &bytes[..], Kind::Start, 100).is_err());
        assert!(read(&mut &bytes[..], body.len() - 1).is_err());
        for cut in 0..bytes.len() {
            assert!(read(&mut &bytes[..cut], 100).is_err(), "cut at {cut}");
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[cut] ^= 1 << bit;
                assert!(read(&mut &damaged[..], 100).is_err(), "{cut}.{bit}");
            }
        }
    }

    #[test]
    fn fields_refuse_what_is_not_there() {
        let body = Builder::default().u32(9).text("ab").f64(2.5).0;
        let mut fields = Fields::new(&body);
        assert_eq!(fields.u32().unwrap(), 9);
        assert_eq!(fields.text(2).unwrap(), "ab");
        assert_eq!(fields.f64s(1).unwrap(), [2.5]);
        assert!(fields.u8().is_err());
        assert!(fields.f64s(usize::MAX).is_err());
        fields.end().unwrap();
        assert!(Fields::new(&body).end().is_err());
        assert!(Fields::new(&u32::MAX.to_le_bytes()).text(1000).is_err());
        assert!(Fields::new(&[1, 0, 0, 0, 0xff]).text(1000).is_err());
    }
}
