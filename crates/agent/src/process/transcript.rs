//! A worker's output on disk: both streams in one file, in the order in which they came.
//!
//! A segment begins with a header (magic, the position of its first byte, a checksum of both) and goes on
//! with frames: one byte of kind, four of length, that many of data. Positions count the bytes of output
//! since the worker's start, lost ones included, so a reader that was cut off goes on exactly where it
//! was and knows what it missed.
//!
//! There are two segments: `output` is written until it has half of the limit, then becomes `output.1`
//! (replacing the one before) and a new one begins. So between half and all of the limit is kept, always
//! the newest; the start of a long run is given up for its end, which is what failures are read from.
//!
//! **Invariant:** a writer never leaves a part of a frame in front of a whole one; a reader takes only whole
//! frames, in memory bounded by a few of them, and never mistakes bytes that are missing for the end.

use crate::limits::LOG_CHUNK_BYTES;
pub use crate::rules::OutputStream;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"mstrout1";
const HEADER_BYTES: usize = 20;
const FRAME_HEAD_BYTES: usize = 5;
/// Data of one frame.
const FRAME_BYTES_MAX: usize = LOG_CHUNK_BYTES;
/// No number of lost bytes leads beyond this position.
const POSITION_MAX: u64 = u64::MAX / 2;
/// Read at once: at least one whole frame.
const WINDOW_BYTES: usize = 2 * (FRAME_BYTES_MAX + FRAME_HEAD_BYTES);
/// The data of a frame that stands for lost output: how many bytes.
const LOSS_BYTES: usize = 8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data(OutputStream),
    Loss,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Data(OutputStream::Stdout) => 1,
            Kind::Data(OutputStream::Stderr) => 2,
            Kind::Loss => 3,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        [Kind::Data(OutputStream::Stdout), Kind::Data(OutputStream::Stderr), Kind::Loss]
            .into_iter()
            .find(|kind| kind.byte() == byte)
    }
}

fn header(first: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0u8; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&first.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The position of the first byte of a segment; none when this is no header.
fn first_of(bytes: &[u8; HEADER_BYTES]) -> Option<u64> {
    let first = u64::from_le_bytes(*bytes[8..].first_chunk()?);
    (header(first) == *bytes).then_some(first)
}

fn half_of(bytes_max: u64) -> u64 {
    (bytes_max / 2).max((HEADER_BYTES + FRAME_HEAD_BYTES) as u64 * 2)
}

/// A segment to be gone on with, cut behind its last whole frame: the bytes in the file, and the position there.
/// None when there is no segment with a whole header.
fn end_of(path: &Path) -> io::Result<Option<(File, u64, u64)>> {
    let Some(mut segment) = Segment::open(path)? else { return Ok(None) };
    while let Some((kind, range)) = segment.frame(path)? {
        let output = match kind {
            Kind::Data(_) => range.len() as u64,
            Kind::Loss => {
                segment.window[range.clone()].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
        };
        segment.pass(range.len(), output);
    }
    let file = OpenOptions::new().append(true).open(path)?;
    file.set_len(segment.offset)?;
    Ok(Some((file, segment.offset, segment.position)))
}

/// Keeps the newest output within its limits.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    path: PathBuf,
    before: PathBuf,
    half: u64,
    /// The file system is left at least this many free bytes.
    free_min: u64,
    file: Option<File>,
    /// Whole frames and the header, in bytes of the file.
    written: u64,
    position: u64,
    /// Lost and not yet said in the file.
    lost: u64,
    /// What became of what came to this writer.
    tally: OutputTally,
    /// A frame on its way, kept for its memory.
    frame: Vec<u8>,
}

/// What became of a worker's output, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTally {
    /// Written; of a long output the older half may have given place to newer output since.
    pub kept: u64,
    /// Lost: it could not be written, or did not come here.
    pub dropped: u64,
}

impl Writer {
    /// Opens the first segment, so that it is there before the first output.
    pub(crate) fn new(path: PathBuf, before: PathBuf, bytes_max: u64, free_min: u64) -> Writer {
        let mut writer = Writer { path, before, half: half_of(bytes_max), free_min, ..Writer::default() };
        // A failure shows again, and is told, with the first output.
        let _ = writer.begin_segment();
        writer
    }

    /// Goes on behind what an earlier process wrote, without the part of a frame that it may have left.
    ///
    /// # Errors
    /// When what is there cannot be read or is damaged.
    pub(crate) fn resume(
        path: PathBuf,
        before: PathBuf,
        bytes_max: u64,
        free_min: u64,
    ) -> io::Result<Writer> {
        if let Some((file, written, position)) = end_of(&path)? {
            let half = half_of(bytes_max);
            let file = Some(file);
            return Ok(Writer { path, before, half, free_min, file, written, position, ..Writer::default() });
        }
        // It was interrupted between two segments, if there was anything at all.
        let position = end_of(&before)?.map_or(0, |(_, _, position)| position);
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        let mut writer =
            Writer { path, before, half: half_of(bytes_max), free_min, position, ..Writer::default() };
        // A failure shows again, and is told, with the next output.
        let _ = writer.begin_segment();
        Ok(writer)
    }

    /// Counts bytes that were lost before they came here.
    pub(crate) fn skip(&mut self, bytes: u64) {
        // The number is somebody else's: what is written behind it has positions too.
        let bytes = bytes.min(POSITION_MAX.saturating_sub(self.position));
        self.lost = self.lost.saturating_add(bytes);
        self.tally.dropped = self.tally.dropped.saturating_add(bytes);
        self.position = self.position.saturating_add(bytes);
    }

    /// Keeps `bytes`, or counts them as lost.
    ///
    /// # Errors
    /// Why something was lost; all is well with the writer, and the next bytes may be kept again.
    pub(crate) fn write(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        let mut outcome = Ok(());
        let overhead = (HEADER_BYTES + 2 * FRAME_HEAD_BYTES + LOSS_BYTES) as u64;
        let part_max = usize::try_from(self.half.saturating_sub(overhead)).unwrap_or(usize::MAX);
        for part in bytes.chunks(part_max.clamp(1, FRAME_BYTES_MAX)) {
            let kept = self.keep(stream, part);
            let bytes = part.len() as u64;
            self.position += bytes;
            match kept {
                Ok(()) => self.tally.kept += bytes,
                Err(error) => {
                    self.lost += bytes;
                    self.tally.dropped += bytes;
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// What became of what came here so far.
    pub(crate) fn tally(&self) -> OutputTally {
        self.tally
    }

    /// Says in the file what was lost at the end.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if self.lost == 0 { Ok(()) } else { self.say_lost() }
    }

    fn keep(&mut self, stream: OutputStream, part: &[u8]) -> io::Result<()> {
        let needed = (FRAME_HEAD_BYTES * 2 + LOSS_BYTES + part.len()) as u64;
        self.check_space(needed)?;
        let fresh = self.written <= HEADER_BYTES as u64;
        if self.file.is_none() || (self.written + needed > self.half && !fresh) {
            self.begin_segment()?;
        }
        if self.lost > 0 {
            self.say_lost()?;
        }
        self.append(Kind::Data(stream), part)
    }

    fn check_space(&self, needed: u64) -> io::Result<()> {
        if self.free_min == 0 {
            return Ok(());
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let disk = nix::sys::statvfs::statvfs(directory)?;
        let free = disk.blocks_available().saturating_mul(disk.fragment_size());
        if free.saturating_sub(needed) >= self.free_min {
            return Ok(());
        }
        let text = format!("{free} bytes are free on the disk, of which {} must stay so", self.free_min);
        Err(io::Error::new(io::ErrorKind::StorageFull, text))
    }

    /// Sets the present segment aside and begins another at the present position.
    fn begin_segment(&mut self) -> io::Result<()> {
        if self.file.take().is_some() || self.path.exists() {
            std::fs::rename(&self.path, &self.before)?;
        }
        self.written = 0;
        // What is lost and not yet said comes first in it.
        let first = self.position - self.lost;
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&self.path)?;
        if let Err(error) = file.write_all(&header(first)) {
            // Left there, it would take the place of the older segment at the next attempt.
            let _ = std::fs::remove_file(&self.path);
            return Err(error);
        }
        self.written = HEADER_BYTES as u64;
        self.file = Some(file);
        Ok(())
    }

    fn say_lost(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.begin_segment()?;
        }
        self.append(Kind::Loss, &self.lost.to_le_bytes())?;
        self.lost = 0;
        Ok(())
    }

    fn append(&mut self, kind: Kind, data: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::Error::other("there is no segment")) };
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        self.frame.clear();
        self.frame.push(kind.byte());
        self.frame.extend_from_slice(&length.to_le_bytes());
        self.frame.extend_from_slice(data);
        if let Err(error) = file.write_all(&self.frame) {
            // A part of a frame would hide all that comes behind it: without it or in another file.
            if file.set_len(self.written).is_err() {
                self.file = None;
            }
            return Err(error);
        }
        self.written += self.frame.len() as u64;
        Ok(())
    }
}

/// A piece of output as it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// None when it only says what is lost.
    pub(crate) stream: Option<OutputStream>,
    pub(crate) data: Vec<u8>,
    /// Bytes right before `data` that were not kept.
    pub(crate) lost: u64,
    /// Behind this piece.
    pub(crate) position: u64,
}

/// One open segment.
#[derive(Debug)]
struct Segment {
    file: File,
    /// A rename does not change what is open.
    number: u64,
    first: u64,
    /// Of the next frame in the file.
    offset: u64,
    /// Of output, at `offset`.
    position: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl Segment {
    /// None when there is no such file, or its header is not whole yet.
    fn open(path: &Path) -> io::Result<Option<Segment>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = [0u8; HEADER_BYTES];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let first = first_of(&bytes).ok_or_else(|| damaged(path, 0))?;
        let number = file.metadata()?.ino();
        let offset = HEADER_BYTES as u64;
        Ok(Some(Segment { file, number, first, offset, position: first, window: Vec::new(), window_at: 0 }))
    }

    /// The next whole frame: its kind and where its data is in the window. None at the end for now.
    fn frame(&mut self, path: &Path) -> io::Result<Option<(Kind, std::ops::Range<usize>)>> {
        for refilled in [false, true] {
            let at = usize::try_from(self.offset.wrapping_sub(self.window_at)).unwrap_or(usize::MAX);
            if let Some([kind, length @ ..]) =
                self.window.get(at..).and_then(|w| w.first_chunk::<FRAME_HEAD_BYTES>())
            {
                let length = u32::from_le_bytes(*length) as usize;
                let kind = Kind::of(*kind).filter(|kind| match kind {
                    Kind::Data(_) => length <= FRAME_BYTES_MAX,
                    Kind::Loss => length == LOSS_BYTES,
                });
                let kind = kind.ok_or_else(|| damaged(path, self.offset))?;
                let data = at + FRAME_HEAD_BYTES..at + FRAME_HEAD_BYTES + length;
                if data.end <= self.window.len() {
                    return Ok(Some((kind, data)));
                }
            }
            if refilled {
                return Ok(None);
            }
            self.refill()?;
        }
        Ok(None)
    }

    fn refill(&mut self) -> io::Result<()> {
        self.window.resize(WINDOW_BYTES, 0);
        self.window_at = self.offset;
        let mut filled = 0;
        while filled < self.window.len() {
            match self.file.read_at(&mut self.window[filled..], self.window_at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.window.clear();
                    return Err(error);
                }
            }
        }
        self.window.truncate(filled);
        Ok(())
    }

    fn pass(&mut self, frame_bytes: usize, output_bytes: u64) {
        self.offset += (FRAME_HEAD_BYTES + frame_bytes) as u64;
        self.position = self.position.saturating_add(output_bytes);
    }
}

fn damaged(path: &Path, offset: u64) -> io::Error {
    let text = format!("{} is damaged at byte {offset}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads output while it grows and rotates.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    before: PathBuf,
    streams: Vec<OutputStream>,
    segment: Option<Segment>,
    /// What is wanted next.
    position: u64,
    /// Of the wanted streams, still to be passed over.
    skip: u64,
}

impl Reader {
    /// From `position` on; with `tail_bytes` above 0 only that many last bytes of `streams` that there
    /// are now.
    ///
    /// # Errors
    /// When what is there cannot be read.
    pub(crate) fn open(
        path: PathBuf,
        before: PathBuf,
        streams: Vec<OutputStream>,
        position: u64,
        tail_bytes: u64,
    ) -> io::Result<Reader> {
        let mut reader = Reader { path, before, streams, segment: None, position, skip: 0 };
        if tail_bytes > 0 {
            let mut bytes = 0u64;
            while let Some(piece) = reader.next()? {
                bytes += piece.data.len() as u64;
            }
            let skip = bytes.saturating_sub(tail_bytes);
            reader = Reader { segment: None, position, skip, ..reader };
        }
        Ok(reader)
    }

    /// The next piece; none when there is nothing more for now.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub(crate) fn next(&mut self) -> io::Result<Option<Piece>> {
        let mut piece = Piece { position: self.position, ..Piece::default() };
        // The segment that was read to its end and is not written any more.
        let mut finished = None;
        loop {
            if self.segment.is_none() {
                self.segment = self.segment_for(finished)?;
                let Some(segment) = &self.segment else { break };
                let missing = segment.first.saturating_sub(self.position);
                if missing > 0 && !piece.data.is_empty() {
                    // Lost behind what was read: that is the next piece's to say.
                    self.segment = None;
                    break;
                }
                self.lose(&mut piece, missing);
            }
            let Some(segment) = &mut self.segment else { break };
            let Some((kind, range)) = segment.frame(&self.path)? else {
                if self.is_written()? {
                    break;
                }
                // Rotated: what was written after the last look and before the rename comes first.
                let Some(segment) = &mut self.segment else { break };
                if segment.frame(&self.path)?.is_none() {
                    finished = Some(segment.number);
                    self.segment = None;
                }
                continue;
            };
            let data = &segment.window[range.clone()];
            match kind {
                Kind::Loss => {
                    if !piece.data.is_empty() {
                        break;
                    }
                    let lost = data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    let end = segment.position.saturating_add(lost);
                    segment.pass(range.len(), lost);
                    let missed = end.saturating_sub(self.position);
                    self.lose(&mut piece, missed);
                }
                Kind::Data(stream) => {
                    if !self.take(&mut piece, stream, range) {
                        break;
                    }
                }
            }
        }
        piece.position = self.position;
        Ok((!piece.data.is_empty() || piece.lost > 0).then_some(piece))
    }

    fn lose(&mut self, piece: &mut Piece, bytes: u64) {
        self.position = self.position.saturating_add(bytes);
        if self.skip == 0 {
            piece.lost = piece.lost.saturating_add(bytes);
        }
    }

    /// Takes one frame into the piece; false when it belongs into the next one.
    fn take(&mut self, piece: &mut Piece, stream: OutputStream, range: std::ops::Range<usize>) -> bool {
        let Some(segment) = &mut self.segment else { return false };
        let length = range.len() as u64;
        let end = segment.position.saturating_add(length);
        let wanted = self.streams.contains(&stream) && end > self.position;
        if wanted {
            let other = piece.stream.is_some_and(|before| before != stream);
            if other || piece.data.len() + range.len() > LOG_CHUNK_BYTES {
                return false;
            }
            let seen = self.position.saturating_sub(segment.position);
            let skipped = self.skip.min(length - seen);
            self.skip -= skipped;
            let from = range.start + usize::try_from(seen + skipped).unwrap_or(range.len());
            if from < range.end {
                piece.data.extend_from_slice(&segment.window[from..range.end]);
                piece.stream = Some(stream);
            }
        }
        self.position = self.position.max(end);
        segment.pass(range.len(), length);
        true
    }

    /// Whether the open segment is the one that is written.
    fn is_written(&self) -> io::Result<bool> {
        let Some(segment) = &self.segment else { return Ok(false) };
        match std::fs::metadata(&self.path) {
            Ok(meta) => Ok(meta.ino() == segment.number),
            // The moment between rename and creation, or the directory is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The segment that holds the position, or the first one behind it.
    fn segment_for(&self, finished: Option<u64>) -> io::Result<Option<Segment>> {
        // In this order: what is renamed in between is seen twice rather than never.
        let written = Segment::open(&self.path)?;
        let before = Segment::open(&self.before)?;
        let mut found: Vec<Segment> = [written, before]
            .into_iter()
            .flatten()
            .filter(|segment| Some(segment.number) != finished)
            .collect();
        found.sort_by_key(|segment| segment.first);
        let holds = found.iter().rposition(|segment| segment.first <= self.position).unwrap_or(0);
        let segment = found.into_iter().nth(holds);
        // The one before the finished one has nothing that is new.
        Ok(segment.filter(|s| finished.is_none() || s.first >= self.position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    struct TestDirectory(tempfile::TempDir);

    impl TestDirectory {
        fn new() -> TestDirectory {
            TestDirectory(tempfile::tempdir().unwrap())
        }

        fn paths(&self) -> (PathBuf, PathBuf) {
            (self.0.path().join("output"), self.0.path().join("output.1"))
        }

        fn writer(&self, bytes_max: u64) -> Writer {
            let (path, before) = self.paths();
            Writer::new(path, before, bytes_max, 0)
        }

        fn reader(&self, streams: &[OutputStream], position: u64, tail: u64) -> Reader {
            let (path, before) = self.paths();
            Reader::open(path, before, streams.to_vec(), position, tail).unwrap()
        }
    }

    fn rest(reader: &mut Reader) -> (Vec<u8>, u64) {
        let (mut data, mut lost) = (Vec::new(), 0);
        while let Some(piece) = reader.next().unwrap() {
            lost += piece.lost;
            data.extend(piece.data);
        }
        (data, lost)
    }

    #[test]
    fn no_number_of_lost_bytes_is_too_large_for_what_comes_behind_it() {
        let place = TestDirectory::new();
        let mut writer = place.writer(4_096);
        for _ in 0..2 {
            writer.skip(u64::MAX);
            writer.write(Stdout, b"more").unwrap();
        }
        assert_eq!(writer.tally(), OutputTally { kept: 8, dropped: POSITION_MAX });
        assert_eq!(rest(&mut place.reader(&[Stdout], 0, 0)), (b"moremore".to_vec(), POSITION_MAX));
    }

    #[test]
    fn both_streams_come_back_in_order_and_each_by_itself() {
        let place = TestDirectory::new();
        let mut writer = place.writer(4_096);
        for (stream, text) in [(Stdout, "one "), (Stdout, "two "), (Stderr, "oh "), (Stdout, "three")] {
            writer.write(stream, text.as_bytes()).unwrap();
        }
        let mut reader = place.reader(&[Stdout, Stderr], 0, 0);
        let mut pieces = Vec::new();
        while let Some(piece) = reader.next().unwrap() {
            pieces.push((piece.stream.unwrap(), String::from_utf8(piece.data).unwrap(), piece.position));
        }
        assert_eq!(
            pieces,
            [(Stdout, "one two ".into(), 8), (Stderr, "oh ".into(), 11), (Stdout, "three".into(), 16)]
        );
        assert_eq!(rest(&mut place.reader(&[Stdout], 0, 0)).0, b"one two three");
        assert_eq!(rest(&mut place.reader(&[Stderr], 0, 0)).0, b"oh ");
        for (position, expected) in [(4, &b"two oh three"[..]), (9, b"h three"), (16, b""), (99, b"")] {
            assert_eq!(rest(&mut place.reader(&[Stdout, Stderr], position, 0)), (expected.to_vec(), 0));
        }
        for (tail, expected) in [(5, &b"three"[..]), (7, b"o three"), (99, b"one two three")] {
            assert_eq!(rest(&mut place.reader(&[Stdout], 0, tail)).0, expected, "tail {tail}");
        }
    }

    #[test]
    fn the_newest_is_kept_within_the_limit_and_the_rest_is_counted() {
        let place = TestDirectory::new();
        let mut writer = place.writer(1_000);
        let all: Vec<u8> = (0..=255u8).cycle().take(12_345).collect();
        for (count, chunk) in all.chunks(7).enumerate() {
            writer.write(if count % 3 == 0 { Stderr } else { Stdout }, chunk).unwrap();
        }
        let (path, before) = place.paths();
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) <= 500 && size(&before) <= 500);
        let (kept, lost) = rest(&mut place.reader(&[Stdout, Stderr], 0, 0));
        assert!(kept.len() >= 150, "{}", kept.len());
        assert!(all.ends_with(&kept));
        assert_eq!(lost as usize + kept.len(), all.len());
        // A reader that had read to somewhere in between misses only what lies behind that.
        let (again, missed) = rest(&mut place.reader(&[Stdout, Stderr], 10_000, 0));
        assert_eq!((again, missed as usize), (kept.clone(), all.len() - kept.len() - 10_000));
        // A large piece rotates as often as needed.
        writer.write(Stdout, &all).unwrap();
        assert!(all.ends_with(&rest(&mut place.reader(&[Stdout], 0, 0)).0));
    }

    #[test]
    fn a_follower_misses_nothing_over_rotations_that_it_keeps_up_with() {
        let place = TestDirectory::new();
        let mut writer = place.writer(600);
        let mut reader = place.reader(&[Stdout], 0, 0);
        let mut seen = Vec::new();
        for round in 0..200u32 {
            writer.write(Stdout, format!("line {round}\n").as_bytes()).unwrap();
            if round % 7 == 0 {
                let (data, lost) = rest(&mut reader);
                assert_eq!(lost, 0, "round {round}");
                seen.extend(data);
            }
        }
        seen.extend(rest(&mut reader).0);
        let expected: String = (0..200).map(|round| format!("line {round}\n")).collect();
        assert_eq!(String::from_utf8(seen).unwrap(), expected);
    }

    #[test]
    fn a_disk_without_room_costs_output_and_says_how_much() {
        let place = TestDirectory::new();
        let (path, before) = place.paths();
        let mut writer = Writer::new(path, before, 4_096, 0);
        writer.write(Stdout, b"kept ").unwrap();
        writer.free_min = u64::MAX;
        let full = writer.write(Stdout, b"lost").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        writer.write(Stderr, b"lost too").unwrap_err();
        writer.free_min = 0;
        writer.write(Stdout, b"again").unwrap();
        let mut reader = place.reader(&[Stdout], 0, 0);
        let first = reader.next().unwrap().unwrap();
        assert_eq!((first.data.as_slice(), first.lost, first.position), (&b"kept "[..], 0, 5));
        let second = reader.next().unwrap().unwrap();
        assert_eq!((second.data.as_slice(), second.lost, second.position), (&b"again"[..], 12, 22));
        writer.free_min = u64::MAX;
        writer.write(Stdout, b"the end").unwrap_err();
        writer.finish().unwrap();
        let last = reader.next().unwrap().unwrap();
        assert_eq!((last.stream, last.lost, last.position), (None, 7, 29));
    }

    #[test]
    fn a_writer_goes_on_behind_an_earlier_one() {
        let place = TestDirectory::new();
        let (path, before) = place.paths();
        let resume = || Writer::resume(place.paths().0, place.paths().1, 400, 0);
        let mut expected = Vec::new();
        for round in 0..40u32 {
            let text = format!("line {round}\n");
            resume().unwrap().write(if round % 3 == 0 { Stderr } else { Stdout }, text.as_bytes()).unwrap();
            expected.extend(text.into_bytes());
            // What a writer that was killed may leave: a part of a frame.
            OpenOptions::new().append(true).open(&path).unwrap().write_all(&[1, 9, 0, 0]).unwrap();
        }
        let (kept, lost) = rest(&mut place.reader(&[Stdout, Stderr], 0, 0));
        assert!(kept.len() >= 100 && expected.ends_with(&kept), "{}", String::from_utf8_lossy(&kept));
        assert_eq!(lost as usize + kept.len(), expected.len());
        // Killed between two segments, and with a part of a header: the position is that of the older one.
        for torn in [false, true] {
            std::fs::rename(&path, &before).unwrap();
            if torn {
                std::fs::write(&path, b"mstr").unwrap();
            }
            let mut writer = resume().unwrap();
            writer.skip(5);
            writer.write(Stdout, b"on").unwrap();
            expected.extend_from_slice(b"?????on");
            let (kept, lost) = rest(&mut place.reader(&[Stdout, Stderr], 0, 0));
            assert!(kept.ends_with(b"on"));
            assert_eq!(lost as usize + kept.len(), expected.len());
        }
        std::fs::write(&path, header(3).map(|byte| !byte)).unwrap();
        assert_eq!(resume().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn parts_of_frames_are_waited_for_and_damage_is_an_error() {
        let place = TestDirectory::new();
        let (path, _) = place.paths();
        let mut writer = place.writer(4_096);
        writer.write(Stdout, b"whole").unwrap();
        let mut reader = place.reader(&[Stdout], 0, 0);
        assert_eq!(reader.next().unwrap().unwrap().data, b"whole");
        let mut raw = OpenOptions::new().append(true).open(&path).unwrap();
        raw.write_all(&[1, 4, 0, 0, 0, b'h', b'a']).unwrap();
        assert_eq!(reader.next().unwrap(), None);
        raw.write_all(b"lf").unwrap();
        assert_eq!(reader.next().unwrap().unwrap().data, b"half");
        raw.write_all(&[77, 4, 0, 0, 0, 0]).unwrap();
        assert_eq!(reader.next().unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Every byte of a good file changed in several ways: an error or an end, never a panic or a flood.
        let mut good = header(7).to_vec();
        for (kind, data) in [(1u8, &b"out"[..]), (3, &9u64.to_le_bytes()), (2, b"err")] {
            good.push(kind);
            good.extend((data.len() as u32).to_le_bytes());
            good.extend(data);
        }
        for (at, bit) in (0..good.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, bytes).unwrap();
            let mut reader = Reader::open(path.clone(), place.paths().1, vec![Stdout, Stderr], 0, 0).unwrap();
            let mut read = 0;
            while let Ok(Some(piece)) = reader.next() {
                read += piece.data.len();
            }
            assert!(read <= good.len(), "byte {at}, bit {bit}");
        }
        // Any bytes at all.
        for seed in 0..200u8 {
            let noise: Vec<u8> = (0..300u32).map(|at| (at as u8).wrapping_mul(seed) ^ seed).collect();
            for with_header in [true, false] {
                let mut bytes = if with_header { header(7).to_vec() } else { Vec::new() };
                bytes.extend(&noise);
                std::fs::write(&path, bytes).unwrap();
                let mut reader = place.reader(&[Stdout, Stderr], 0, 0);
                while let Ok(Some(_)) = reader.next() {}
            }
        }
    }
}
