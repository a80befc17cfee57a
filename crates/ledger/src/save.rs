//! The ledger as bytes, in frames like those of a snapshot. The state of the same position belongs to it.

use alloc::vec::Vec;
use core::fmt;
use muster_journal::frame::{FrameError, FrameReader, encode_frame};
use muster_journal::{canonical, from_canonical};
use muster_types::{ArrayId, JobId, LogIndex, LogTime, Name, NodeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::arrays::Array;
use crate::calendar::{Detail, Window};
use crate::catalog::Label;
use crate::charges::{ChargeKey, DemandKey, WaitKey};
use crate::demand::Queue;
use crate::jobs::Job;
use crate::ledger::{Ledger, is_eligible};
use crate::nodes::Cell;
use crate::pools::{NodeEntry, Part, PoolName, Rate};

/// The layout of the bytes.
const LAYOUT: u16 = 3;

/// Rows of one frame end at this many bytes.
const BATCH_BYTES: usize = 256 << 10;

const HEAD: u8 = 1;
const TENANTS: u8 = 2;
const LABELS: u8 = 3;
const POOLS: u8 = 4;
const NODES: u8 = 5;
const IDLE: u8 = 6;
const CAPACITY: u8 = 7;
const REASONS: u8 = 8;
const USED: u8 = 9;
const WAITED: u8 = 10;
const PROVIDED: u8 = 11;
const JOBS: u8 = 12;
const ARRAYS: u8 = 13;
const TAIL: u8 = 14;
const DEMANDED: u8 = 15;

#[derive(Serialize, Deserialize)]
struct Head {
    layout: u16,
    index: LogIndex,
    time: LogTime,
    window: Window,
    detail: Detail,
}

/// Why bytes are not a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// They are not whole frames.
    Frame(FrameError),
    /// A frame is not what it should be; says which.
    Content(&'static str),
    /// They were written by a newer release.
    Newer,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Frame(error) => write!(f, "the ledger is damaged: {error}"),
            LoadError::Content(what) => write!(f, "the ledger has a wrong {what}"),
            LoadError::Newer => f.write_str("the ledger was written by a newer release"),
        }
    }
}

impl core::error::Error for LoadError {}

/// Frames of rows, each row behind its length.
fn put<T: Serialize>(bytes: &mut Vec<u8>, tag: u8, rows: impl Iterator<Item = T>) {
    let mut batch: Vec<u8> = Vec::new();
    for row in rows {
        let row = canonical(&row);
        let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
        batch.extend_from_slice(&length.to_le_bytes());
        batch.extend_from_slice(&row);
        if batch.len() >= BATCH_BYTES {
            bytes.extend_from_slice(&encode_frame(tag, &batch));
            batch.clear();
        }
    }
    if !batch.is_empty() {
        bytes.extend_from_slice(&encode_frame(tag, &batch));
    }
}

fn rows<T: DeserializeOwned>(
    payload: &[u8],
    what: &'static str,
    mut take: impl FnMut(T),
) -> Result<(), LoadError> {
    let wrong = LoadError::Content(what);
    let mut rest = payload;
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or(wrong.clone())?;
        let (row, behind) =
            behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(wrong.clone())?;
        take(from_canonical(row).ok_or(wrong.clone())?);
        rest = behind;
    }
    Ok(())
}

impl Ledger {
    /// The ledger between two records, as bytes. The same ledger has the same bytes.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let (window, detail) = (self.charges.window, self.charges.detail.clone());
        let head = Head { layout: LAYOUT, index: self.index, time: self.time, window, detail };
        let mut bytes = encode_frame(HEAD, &canonical(&head));
        put(&mut bytes, TENANTS, self.tenants.iter());
        put(&mut bytes, LABELS, self.labels.iter());
        put(&mut bytes, POOLS, self.pools.names.iter());
        put(&mut bytes, NODES, self.pools.nodes.iter());
        put(&mut bytes, IDLE, self.pools.idle.iter());
        put(&mut bytes, CAPACITY, self.pools.capacity.iter());
        put(&mut bytes, REASONS, self.pools.reasons.iter());
        put(&mut bytes, USED, self.charges.used.iter());
        put(&mut bytes, WAITED, self.charges.waited.iter());
        put(&mut bytes, DEMANDED, self.charges.demanded.iter());
        put(&mut bytes, PROVIDED, self.charges.capacity.iter());
        put(&mut bytes, JOBS, self.jobs.iter());
        put(&mut bytes, ARRAYS, self.arrays.iter());
        bytes.extend_from_slice(&encode_frame(TAIL, &[]));
        bytes
    }

    /// The ledger in such bytes.
    ///
    /// # Errors
    /// When they are damaged, cut short or newer.
    pub fn load(bytes: &[u8]) -> Result<Ledger, LoadError> {
        let mut reader = FrameReader::default();
        reader.push(bytes);
        let mut ledger = Ledger::default();
        let (mut begun, mut ended) = (false, false);
        while let Some((tag, payload)) = reader.next_frame().map_err(LoadError::Frame)? {
            if ended || (tag == HEAD) == begun {
                return Err(LoadError::Content("order of frames"));
            }
            match tag {
                HEAD => ledger.load_head(&payload)?,
                TAIL => ended = true,
                _ => ledger.load_rows(tag, &payload)?,
            }
            begun = true;
        }
        reader.finish().map_err(LoadError::Frame)?;
        if !ended {
            return Err(LoadError::Content("end: it is not complete"));
        }
        ledger.queue_again();
        Ok(ledger)
    }

    fn load_head(&mut self, payload: &[u8]) -> Result<(), LoadError> {
        let head: Head = from_canonical(payload).ok_or(LoadError::Content("head"))?;
        match head.layout {
            LAYOUT => {}
            layout if layout > LAYOUT => return Err(LoadError::Newer),
            _ => return Err(LoadError::Content("layout: save it again with this release")),
        }
        (self.index, self.time) = (head.index, head.time);
        (self.charges.window, self.charges.detail) = (head.window, head.detail.sorted());
        Ok(())
    }

    fn load_rows(&mut self, tag: u8, bytes: &[u8]) -> Result<(), LoadError> {
        let none = Queue::default();
        match tag {
            TENANTS => rows(bytes, "tenant", |name: Name| _ = self.tenants.number(&name)),
            LABELS => rows(bytes, "label", |label: Label| _ = self.labels.number(&label)),
            POOLS => rows(bytes, "pool", |name: PoolName| _ = self.pools.number(&name, &none)),
            NODES => rows(bytes, "node", |(id, row): (NodeId, NodeEntry)| {
                self.pools.nodes.insert(id, row);
            }),
            IDLE => rows(bytes, "idle cell", |(key, rate): ((u32, Cell), Rate)| {
                self.pools.idle.insert(key, rate);
            }),
            CAPACITY => rows(bytes, "capacity", |(pool, rate): (u32, Rate)| {
                self.pools.capacity.insert(pool, rate);
            }),
            REASONS => rows(bytes, "reason", |(pool, row): (u32, Vec<Part>)| {
                self.pools.reasons.insert(pool, row);
            }),
            USED => rows(bytes, "charge", |(key, sum): (ChargeKey, u128)| {
                self.charges.used.insert(key, sum);
            }),
            WAITED => rows(bytes, "wait", |(key, sum): (WaitKey, u128)| {
                self.charges.waited.insert(key, sum);
            }),
            DEMANDED => rows(bytes, "demand", |(key, sum): (DemandKey, u128)| {
                self.charges.demanded.insert(key, sum);
            }),
            PROVIDED => rows(bytes, "capacity of a day", |(key, sum): ((u32, u32), u128)| {
                self.charges.capacity.insert(key, sum);
            }),
            JOBS => rows(bytes, "job", |(id, row): (JobId, Job)| _ = self.jobs.insert(id, row)),
            ARRAYS => rows(bytes, "array", |(id, row): (ArrayId, Array)| _ = self.arrays.insert(id, row)),
            _ => Err(LoadError::Content("kind of frame")),
        }
    }

    /// What waits follows from jobs and arrays.
    fn queue_again(&mut self) {
        let queue = &mut self.queue;
        for job in self.jobs.values_mut() {
            job.shape = queue.enter((*job.shape).clone());
            if is_eligible(job.mode) {
                queue.set_eligible(&job.shape, true);
            }
        }
        for array in self.arrays.values_mut() {
            array.shape = queue.enter((*array.shape).clone());
            if array.waits.is_eligible() {
                queue.set_eligible(&array.shape, true);
            }
        }
        self.pools.recount(queue);
    }
}
