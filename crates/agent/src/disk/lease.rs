//! The node's session lease: one deadline, in memory and in a file that every shim watches.
//!
//! The file has two slots that are written alternately, each with a checksum, so a reader finds a whole
//! slot at any moment without a lock. It is not synced: it means something only within one boot, and
//! within one boot every process sees what was written.
//!
//! A lease that has lapsed can never be picked up again: the next renewal starts a new **epoch**, and
//! a worker belongs to the epoch it was started in. So a shim that slept through the lapse (stopped,
//! starved) still stops its worker, though by then the file promises a later deadline.
//!
//! **Invariant:** the deadline is a *sending* time plus the time to live, never an arrival time; it
//! only moves forward within an epoch; a missing, torn or foreign file reads as no lease.

use crate::clock::BootTime;
pub use crate::rules::Renewal;
use crate::rules::{LeaseTerm, renewed};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"MSLEASE1");
const SLOT_BYTES: usize = 64;
const FILE_BYTES: usize = 2 * SLOT_BYTES;

/// What one slot of the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSlot {
    /// Rises with every write; the higher slot counts.
    pub sequence: u64,
    /// Rises when a lapse was observed.
    pub epoch: u64,
    /// When everything of this epoch is stopped.
    pub deadline: BootTime,
    /// SIGTERM to SIGKILL once the deadline has passed.
    pub grace_ms: u64,
    /// Whose lease it is.
    pub holder: u128,
}

impl LeaseSlot {
    /// What it says of the lease.
    #[must_use]
    pub fn term(&self) -> LeaseTerm {
        LeaseTerm { epoch: self.epoch, deadline: self.deadline }
    }

    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0u8; SLOT_BYTES];
        let words = [MAGIC, self.sequence, self.epoch, self.deadline.0, self.grace_ms];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..56].copy_from_slice(&self.holder.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..56]);
        bytes[56..60].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<LeaseSlot> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let sum = u32::from_le_bytes(bytes.get(56..60)?.try_into().ok()?);
        if word(0)? != MAGIC || crc32fast::hash(bytes.get(..56)?) != sum {
            return None;
        }
        Some(LeaseSlot {
            sequence: word(8)?,
            epoch: word(16)?,
            deadline: BootTime(word(24)?),
            grace_ms: word(32)?,
            holder: u128::from_le_bytes(bytes.get(40..56)?.try_into().ok()?),
        })
    }
}

/// Why there is no lease to be read.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The file cannot be opened or read.
    #[error("read the lease file")]
    Read(#[source] io::Error),
    /// Neither slot is whole.
    #[error("no slot of the lease file is whole")]
    Corrupt,
    /// The file cannot be written.
    #[error("write the lease file")]
    Write(#[source] io::Error),
}

/// The newest whole slot of an open lease file.
///
/// # Errors
/// When reading fails or no slot is whole.
pub fn read_slot(file: &File) -> Result<LeaseSlot, LeaseError> {
    let mut bytes = [0u8; FILE_BYTES];
    let mut filled = 0;
    while filled < FILE_BYTES {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(LeaseError::Read(e)),
        }
    }
    bytes[..filled]
        .chunks_exact(SLOT_BYTES)
        .filter_map(LeaseSlot::decode)
        .max_by_key(|slot| slot.sequence)
        .ok_or(LeaseError::Corrupt)
}

/// Opens and reads; see [`read_slot`].
///
/// # Errors
/// When there is no readable, whole lease file.
pub fn read_path(path: &Path) -> Result<LeaseSlot, LeaseError> {
    read_slot(&File::open(path).map_err(LeaseError::Read)?)
}

/// The agent's end of the lease: the only writer of the file.
#[derive(Debug)]
pub struct Lease {
    file: File,
    holder: u128,
    current: Option<LeaseSlot>,
    /// The next epoch is above this and above any in the file.
    epoch_floor: u64,
}

impl Lease {
    /// Takes up the lease file of this holder, where an earlier agent of the same boot left one:
    /// its deadline still holds for the workers that run. `epoch_floor` is the highest epoch that any
    /// worker found on disk belongs to, should the file be gone.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn open(path: &Path, holder: u128, epoch_floor: u64) -> Result<Lease, LeaseError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(LeaseError::Write)?;
        let current = read_slot(&file).ok().filter(|slot| slot.holder == holder);
        if current.is_none() {
            // A foreign slot with a high sequence would hide ours.
            file.set_len(0).map_err(LeaseError::Write)?;
        }
        Ok(Lease { file, holder, current, epoch_floor })
    }

    /// The leader acknowledged what was sent at `sent`.
    ///
    /// # Errors
    /// When the file cannot be written: the lease then stands where it stood.
    pub fn renew(
        &mut self,
        sent: BootTime,
        ttl: Duration,
        grace: Duration,
        now: BootTime,
    ) -> Result<Renewal, LeaseError> {
        let term = self.current.map(|slot| slot.term());
        let (renewal, Some(term)) = renewed(term, self.epoch_floor, sent, ttl, now) else {
            return Ok(Renewal::Stale);
        };
        let next = LeaseSlot {
            sequence: self.current.map_or(0, |slot| slot.sequence).saturating_add(1),
            epoch: term.epoch,
            deadline: term.deadline,
            grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            holder: self.holder,
        };
        let at = (next.sequence % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&next.encode(), at).map_err(LeaseError::Write)?;
        self.current = Some(next);
        Ok(renewal)
    }

    /// The lease, while it stands.
    #[must_use]
    pub fn standing(&self, now: BootTime) -> Option<LeaseSlot> {
        self.current.filter(|slot| slot.term().stands(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const GRACE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> BootTime {
        BootTime(seconds * 1_000_000_000)
    }

    #[test]
    fn the_deadline_counts_from_sending_and_never_moves_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        let mut lease = Lease::open(&path, 7, 0).unwrap();
        assert_eq!(lease.renew(at(100), TTL, GRACE, at(103)).unwrap(), Renewal::Restarted);
        assert_eq!(read_path(&path).unwrap().deadline, at(110));
        // A late answer to an earlier heartbeat changes nothing.
        assert_eq!(lease.renew(at(99), TTL, GRACE, at(104)).unwrap(), Renewal::Stale);
        assert_eq!(lease.renew(at(104), TTL, GRACE, at(105)).unwrap(), Renewal::Extended);
        assert_eq!(read_path(&path).unwrap().deadline, at(114));
        assert_eq!(lease.standing(at(113)).unwrap().epoch, 1);
        assert!(lease.standing(at(114)).is_none());
    }

    #[test]
    fn a_lapsed_lease_starts_a_new_epoch_even_when_the_answer_was_to_an_old_heartbeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        let mut lease = Lease::open(&path, 7, 4).unwrap();
        lease.renew(at(100), TTL, GRACE, at(100)).unwrap();
        assert_eq!(lease.standing(at(100)).unwrap().epoch, 5);
        assert_eq!(lease.renew(at(109), TTL, GRACE, at(111)).unwrap(), Renewal::Restarted);
        assert_eq!(lease.standing(at(111)).unwrap().epoch, 6);
        assert_eq!(lease.renew(at(100), TTL, GRACE, at(130)).unwrap(), Renewal::Stale);
        assert!(lease.standing(at(130)).is_none());
    }

    #[test]
    fn a_restarted_agent_continues_and_a_new_holder_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        Lease::open(&path, 7, 0).unwrap().renew(at(100), TTL, GRACE, at(100)).unwrap();
        let mut again = Lease::open(&path, 7, 1).unwrap();
        assert_eq!(again.renew(at(105), TTL, GRACE, at(105)).unwrap(), Renewal::Extended);
        assert!(Lease::open(&path, 8, 0).unwrap().standing(at(101)).is_none());
    }

    #[test]
    fn any_damage_to_one_slot_leaves_the_other_and_to_both_leaves_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        let mut lease = Lease::open(&path, 7, 0).unwrap();
        lease.renew(at(100), TTL, GRACE, at(100)).unwrap();
        lease.renew(at(101), TTL, GRACE, at(101)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for byte in 0..60 {
            let mut bytes = whole.clone();
            bytes[byte] ^= 0xff;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read_path(&path).unwrap().sequence, 1, "byte {byte} of the newer slot");
        }
        std::fs::write(&path, vec![0u8; 128]).unwrap();
        assert!(matches!(read_path(&path), Err(LeaseError::Corrupt)));
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(read_path(&path), Err(LeaseError::Corrupt)));
    }
}
