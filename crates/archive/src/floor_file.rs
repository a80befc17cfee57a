//! The file of the floor.
//!
//! ```text
//! retention/floor   "MFLR" version u16, 0 u16, cluster u128, through u64, log time u64, length u16, place, crc u32
//! ```

use muster_types::{ClusterId, LogIndex, LogTime};
use std::io::ErrorKind;

use crate::codec::{Reader, seal, unseal};
use crate::error::ArchiveError;
use crate::floor::Floor;
use crate::object::ObjectStore;

pub(crate) const FLOOR: &str = "retention/floor";
const MAGIC: [u8; 4] = *b"MFLR";
const VERSION: u16 = 1;
/// Bytes of the text that says where objects went.
const PLACE_BYTES_MAX: usize = 4_096;
const FLOOR_BYTES_MAX: usize = 64 + PLACE_BYTES_MAX;

impl Floor {
    pub(crate) fn encode(&self, cluster: ClusterId) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&0u16.to_le_bytes());
        bytes.extend_from_slice(&cluster.0.to_le_bytes());
        bytes.extend_from_slice(&self.through.0.to_le_bytes());
        bytes.extend_from_slice(&self.log_time.0.to_le_bytes());
        let mut place = self.place.as_str();
        while place.len() > PLACE_BYTES_MAX {
            place = &place[..place.floor_char_boundary(PLACE_BYTES_MAX)];
        }
        bytes.extend_from_slice(&(place.len() as u16).to_le_bytes());
        bytes.extend_from_slice(place.as_bytes());
        seal(&mut bytes, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<(ClusterId, Floor), ArchiveError> {
        let damaged = |what: &str| ArchiveError::damaged(FLOOR, what);
        let (body, _) = unseal(bytes).ok_or_else(|| damaged("its checksum does not hold"))?;
        let mut reader = Reader(body);
        let parse = |reader: &mut Reader<'_>| {
            let is_floor = reader.take(4)? == MAGIC;
            let (version, _) = (reader.u16()?, reader.u16()?);
            let cluster = ClusterId(reader.u128()?);
            let (through, log_time) = (LogIndex(reader.u64()?), LogTime(reader.u64()?));
            let length = usize::from(reader.u16()?);
            let place = String::from_utf8(reader.take(length)?.to_vec()).ok()?;
            let whole = is_floor && reader.0.is_empty() && through.0 < u64::MAX;
            whole.then_some((version, cluster, Floor { through, log_time, place }))
        };
        match parse(&mut reader).ok_or_else(|| damaged("it is none"))? {
            (VERSION, cluster, floor) => Ok((cluster, floor)),
            (found, ..) => Err(ArchiveError::Newer { object: FLOOR.to_owned(), found, known: VERSION }),
        }
    }

    /// The floor of an archive. `None` when it never moved anything away.
    pub(crate) fn read(store: &dyn ObjectStore) -> Result<Option<(ClusterId, Floor)>, ArchiveError> {
        match store.get(FLOOR, 0, FLOOR_BYTES_MAX) {
            Ok(bytes) => Floor::parse(&bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ArchiveError::store("reading", FLOOR, source)),
        }
    }
}
