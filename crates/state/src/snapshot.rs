//! Snapshot and restore.
//!
//! A snapshot is in the format in force where it was taken, so that a replica that is not upgraded yet takes
//! it as long as the format was not raised. It is frames: one head (format, position, digest), rows of each table in batches, one
//! tail. Restore rebuilds the indexes, recomputes the digest and checks every invariant before it
//! hands the state over, so a damaged or foreign snapshot changes nothing.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use muster_journal::frame::{FrameError, FrameReader, encode_frame};
use muster_journal::{FORMAT_MAX, FORMAT_MIN, WorkerSlot, canonical, from_canonical};
use muster_types::policy::NotificationProgress;
use muster_types::{
    ArrayId, Booking, HoldTarget, JobContract, JobId, JobMetadata, JobSpec, LogTime, MetadataBits, Name,
    NodeId, RequestId, ScheduleKey, Token, TokenId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::demand::{DemandSums, WorkerDemand};
use crate::index::UserKey;
use crate::rows::{
    ArrayFacts, ArrayRow, BurstRow, CapacityKey, CapacityRow, ControlRow, DoorKey, DoorRow, FleetHoldRow,
    HealthPolicyRow, HistoryKey, HistoryRow, JobRow, JobTimes, MemberEnds, NodeFacts, NodeRow, PolicyRow,
    QuotaKey, QuotaRow, RecoveryRow, RequestRow, RestrictionRow, ScheduleRow, SpecFacts,
};
use crate::state::{Meta, State};
use crate::table::{Derived, Table, TableBuilder};
use crate::tables::tables;
use crate::usage::TenantUsage;

/// Numbers of frames; those of tables are in the list of tables.
const HEAD: u8 = 1;
const TAIL: u8 = 6;
const DEMAND: u8 = 9;

/// Rows of one frame end at this many bytes.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u16,
    meta: Meta,
    policy: PolicyRow,
    demand: DemandSums,
    digest: u64,
}

/// Why a snapshot was not taken over; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The bytes are not whole frames.
    Frame(FrameError),
    /// A frame is not what it should be; says which.
    Content(&'static str),
    /// Written by a newer binary.
    FormatNewer {
        /// The format that one must know to take it.
        needed: u16,
        /// The highest that is known here.
        known: u16,
    },
    /// The rows do not have the digest the snapshot claims.
    Digest,
    /// The rows break an invariant.
    Invariant(String),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Frame(error) => write!(f, "snapshot is damaged: {error}"),
            RestoreError::Content(what) => write!(f, "snapshot has a wrong {what}"),
            RestoreError::FormatNewer { needed, known } => write!(
                f,
                "snapshot format {needed} is needed and {known} is the highest known here: upgrade this replica"
            ),
            RestoreError::Digest => f.write_str("snapshot rows do not match its digest"),
            RestoreError::Invariant(text) => write!(f, "snapshot breaks an invariant: {text}"),
        }
    }
}

impl core::error::Error for RestoreError {}

/// The chunks of a snapshot, made one at a time from a state that no longer changes.
pub struct SnapshotChunks {
    state: State,
    step: Step,
}

enum Step {
    Head,
    /// The table with this place in the list, behind this key in its canonical bytes.
    Rows(usize, Option<Vec<u8>>),
    Tail,
    Done,
}

/// The next frame of a table, and the last key in it; none at the end of the table.
type NextBatch = fn(&State, Option<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)>;

/// One frame of rows, each behind its length, from behind `after`, and the last key in it; none at the end of the table.
fn batch<K, V, F>(tag: u8, table: &Table<K, V, F>, after: Option<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)>
where
    K: Ord + Clone + Serialize + DeserializeOwned,
    V: Clone + Serialize,
{
    use core::ops::Bound;
    let key = |bytes| from_canonical::<K>(bytes).expect("a key that was encoded here decodes");
    let start = after.map_or(Bound::Unbounded, |bytes| Bound::Excluded(key(bytes)));
    let mut payload: Vec<u8> = Vec::new();
    let mut last = None;
    for (key, value) in table.range((start, Bound::Unbounded)) {
        let row = canonical(&(key, value));
        let length = u32::try_from(row.len()).expect("a row is far below a frame");
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(&row);
        last = Some(key);
        if payload.len() >= BATCH_BYTES {
            break;
        }
    }
    Some((encode_frame(tag, &payload), canonical(last?)))
}

impl Iterator for SnapshotChunks {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match &mut self.step {
                Step::Head => {
                    let head = Head {
                        format: self.state.meta.format,
                        meta: self.state.meta.clone(),
                        policy: self.state.policy.clone(),
                        demand: self.state.demand.sums().clone(),
                        digest: self.state.digest(),
                    };
                    self.step = Step::Rows(0, None);
                    return Some(encode_frame(HEAD, &canonical(&head)));
                }
                Step::Rows(place, after) => match BATCHES.get(*place) {
                    Some(next) => match next(&self.state, after.as_deref()) {
                        Some((frame, last)) => {
                            *after = Some(last);
                            return Some(frame);
                        }
                        None => self.step = Step::Rows(*place + 1, None),
                    },
                    None => self.step = Step::Tail,
                },
                Step::Tail => {
                    self.step = Step::Done;
                    return Some(encode_frame(TAIL, &[]));
                }
                Step::Done => return None,
            }
        }
    }
}

/// Rows stand in key order, so that tables are built and never searched.
fn load<K, V, F>(
    payload: &[u8],
    table: &mut TableBuilder<K, V, F>,
    what: &'static str,
) -> Result<(), RestoreError>
where
    K: Ord + Clone + DeserializeOwned,
    V: Clone + DeserializeOwned,
    F: Derived<K, V>,
{
    let wrong = RestoreError::Content(what);
    let mut rest = payload;
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or(wrong.clone())?;
        let length = u32::from_le_bytes(*length) as usize;
        let (row, behind) = behind.split_at_checked(length).ok_or(wrong.clone())?;
        let (key, value): (K, V) = from_canonical(row).ok_or(wrong.clone())?;
        if !table.push(key, value) {
            return Err(wrong);
        }
        rest = behind;
    }
    Ok(())
}

macro_rules! define_frames {
    ($($(#[$doc:meta])* $name:ident: $key:ty => $row:ty, $facts:ty; $tag:literal, $what:literal;)*) => {
        /// By the table's place in the list. The sample of demand is behind them.
        const BATCHES: &[NextBatch] = &[
            $(|state, after| batch($tag, &state.$name, after),)*
            |state, after| batch(DEMAND, state.demand.sample_table(), after),
        ];

        /// The tables of a snapshot while they are read.
        #[derive(Default)]
        struct Tables {
            $($name: TableBuilder<$key, $row, $facts>,)*
            demand: TableBuilder<u16, WorkerDemand, ()>,
        }

        impl Tables {
            /// Takes the rows of a frame.
            fn load(&mut self, tag: u8, payload: &[u8]) -> Result<(), RestoreError> {
                match tag {
                    $($tag => load(payload, &mut self.$name, $what),)*
                    DEMAND => load(payload, &mut self.demand, "row of demand"),
                    _ => Err(RestoreError::Content("kind of frame")),
                }
            }

            /// A state of these rows and nothing else yet.
            fn finish(self) -> State {
                let mut state = State { $($name: self.$name.finish(),)* ..State::default() };
                state.demand.set_sample(self.demand.finish());
                state.set_restricted();
                state.share_node_names();
                state
            }
        }
    };
}

tables!(define_frames);

impl State {
    /// This state's snapshot, chunk by chunk. The state itself goes on changing meanwhile.
    #[must_use]
    pub fn snapshot(&self) -> SnapshotChunks {
        SnapshotChunks { state: self.clone(), step: Step::Head }
    }

    /// The state in a snapshot.
    ///
    /// # Errors
    /// When the bytes are damaged, foreign, newer, or not a consistent state.
    pub fn restore<C: AsRef<[u8]>>(chunks: impl IntoIterator<Item = C>) -> Result<State, RestoreError> {
        Self::restore_up_to(FORMAT_MAX, chunks)
    }

    /// The state in a snapshot, for a binary that knows formats up to `format_max`, as for rounds.
    ///
    /// # Errors
    /// Like [`State::restore`].
    pub fn restore_up_to<C: AsRef<[u8]>>(
        format_max: u16,
        chunks: impl IntoIterator<Item = C>,
    ) -> Result<State, RestoreError> {
        let mut reader = FrameReader::default();
        let mut head: Option<Head> = None;
        let mut tables = Tables::default();
        let mut ended = false;
        for chunk in chunks {
            reader.push(chunk.as_ref());
            while let Some((tag, payload)) = reader.next_frame().map_err(RestoreError::Frame)? {
                if ended || (tag == HEAD) != head.is_none() {
                    return Err(RestoreError::Content("order of frames"));
                }
                match tag {
                    HEAD => head = Some(load_head(&payload, format_max.min(FORMAT_MAX))?),
                    TAIL => ended = true,
                    table => tables.load(table, &payload)?,
                }
            }
        }
        reader.finish().map_err(RestoreError::Frame)?;
        let Some(head) = head.filter(|_| ended) else {
            return Err(RestoreError::Content("end: it is not complete"));
        };
        let mut state = tables.finish();
        state.meta = head.meta;
        state.policy = head.policy;
        state.note_policy();
        state.demand.set_sums(head.demand);
        if state.digest() != head.digest {
            return Err(RestoreError::Digest);
        }
        state.check_rows()?;
        state.indexes = state.rebuilt_indexes();
        // The indexes were made from the rows just now.
        state.verify_rows().map_err(|broken| RestoreError::Invariant(broken.0))?;
        Ok(state)
    }

    /// Nodes learn from the rows of restrictions what those come to. A row of a node that is not there is found
    /// by the check of the invariants.
    fn set_restricted(&mut self) {
        for (id, row) in self.restrictions.iter() {
            let restricted = row.restricted();
            self.nodes.change(id, |node, _| node.restricted = restricted);
        }
    }

    /// Nodes of one place have its names in memory once: see `NodeSpec::share_names`.
    fn share_node_names(&mut self) {
        let mut known: BTreeSet<Name> = BTreeSet::new();
        let mut same = |name: &Name| {
            let same = known.get(name).cloned();
            if same.is_none() {
                known.insert(name.clone());
            }
            same
        };
        let nodes: Vec<NodeId> = self.nodes.iter().map(|(id, _)| *id).collect();
        for id in nodes {
            self.nodes.change(&id, |node, _| Arc::make_mut(&mut node.spec).share_names(&mut same));
        }
    }

    /// What the rebuild of the indexes takes for granted.
    fn check_rows(&self) -> Result<(), RestoreError> {
        let sizes = |p: &crate::rows::Placement| p.slots.len() == p.ranks.len();
        for (_, row) in self.jobs.iter() {
            let placements = [&row.placement, &row.previous];
            if !placements.into_iter().flatten().all(|p| sizes(p)) {
                return Err(RestoreError::Content("placement"));
            }
        }
        let names: BTreeSet<_> = self.nodes.iter().map(|(_, row)| &row.spec.name).collect();
        if names.len() != self.nodes.len() {
            return Err(RestoreError::Content("node name"));
        }
        self.check_doors().map_err(RestoreError::Invariant)?;
        self.check_array_rows().map_err(RestoreError::Invariant)?;
        self.check_token_rows().map_err(RestoreError::Invariant)?;
        self.check_quota_rows().map_err(RestoreError::Invariant)?;
        self.check_booking_rows().map_err(RestoreError::Invariant)?;
        self.check_fleet_hold_rows().map_err(RestoreError::Invariant)?;
        self.check_schedule_rows().map_err(RestoreError::Invariant)?;
        Ok(())
    }
}

fn load_head(payload: &[u8], known: u16) -> Result<Head, RestoreError> {
    // The format stands first, so that a newer head is told from a damaged one.
    let format: u16 = canonical_prefix(payload).ok_or(RestoreError::Content("head"))?;
    if format > known {
        return Err(RestoreError::FormatNewer { needed: format, known });
    }
    if format < FORMAT_MIN {
        return Err(RestoreError::Content("format"));
    }
    let head: Head = from_canonical(payload).ok_or(RestoreError::Content("head"))?;
    if head.meta.format != format {
        return Err(RestoreError::Content("format"));
    }
    Ok(head)
}

/// The format number that a head begins with: a variable-length integer.
fn canonical_prefix(payload: &[u8]) -> Option<u16> {
    match payload.first()? {
        small @ 0..=250 => Some(u16::from(*small)),
        251 => Some(u16::from_le_bytes([*payload.get(1)?, *payload.get(2)?])),
        _ => None,
    }
}
