//! Snapshot and restore.
//!
//! A snapshot is in the format in force where it was taken, so that a replica that is not upgraded yet takes
//! it as long as the format was not raised. It is frames: one head (format, position, digest), rows of each table in batches, one
//! tail. Restore rebuilds the indexes, recomputes the digest and checks every invariant before it
//! hands the state over, so a damaged or foreign snapshot changes nothing.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use muster_journal::frame::{FrameError, FrameReader, encode_frame};
use muster_journal::{FORMAT_MAX, FORMAT_MIN, WorkerSlot, canonical, from_canonical};
use muster_types::{JobContract, JobId, JobMetadata, JobSpec, LogTime, Name, NodeId, RequestId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::demand::{DemandSums, WorkerDemand};
use crate::index::SpecFacts;
use crate::rows::{
    BurstRow, DoorKey, DoorRow, HealthPolicyRow, HistoryKey, HistoryRow, JobRow, JobTimes, NodeFacts,
    NodeRow, PolicyRow, RecoveryRow, RequestRow, RestrictionRow,
};
use crate::state::{Meta, State};
use crate::table::{Facts, Table, TableBuilder};
use crate::usage::TenantUsage;

const HEAD: u8 = 1;
const NODES: u8 = 2;
const JOBS: u8 = 3;
const SPECS: u8 = 4;
const REQUESTS: u8 = 5;
const TAIL: u8 = 6;
const TENANTS: u8 = 7;
const HISTORY: u8 = 8;
const BURSTS: u8 = 10;
const DEMAND: u8 = 9;
const CONTRACTS: u8 = 11;
const RECOVERIES: u8 = 12;
const SPARES: u8 = 13;
const NODE_FAULTS: u8 = 14;
const RESTRICTIONS: u8 = 15;
const HEALTH_POLICY: u8 = 16;
const TIMES: u8 = 17;
const DOORS: u8 = 18;
const METADATA: u8 = 19;

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
    Nodes(Option<NodeId>),
    Jobs(Option<JobId>),
    Specs(Option<JobId>),
    Requests(Option<RequestId>),
    Tenants(Option<Name>),
    History(Option<HistoryKey>),
    Bursts(Option<JobId>),
    Demand(Option<u16>),
    Contracts(Option<JobId>),
    Recoveries(Option<JobId>),
    Spares(Option<JobId>),
    NodeFaults(Option<NodeId>),
    Restrictions(Option<NodeId>),
    HealthPolicy(Option<()>),
    Times(Option<JobId>),
    Doors(Option<DoorKey>),
    Metadata(Option<JobId>),
    Tail,
    Done,
}

/// One frame of rows, each behind its length, from behind `after`, and the last key in it; none at the end of the table.
fn batch<K, V, F>(tag: u8, table: &Table<K, V, F>, after: Option<&K>) -> Option<(Vec<u8>, K)>
where
    K: Ord + Clone + Serialize,
    V: Clone + Serialize,
{
    use core::ops::Bound;
    let start = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut payload: Vec<u8> = Vec::new();
    let mut last = None;
    for (key, value) in table.range((start.cloned(), Bound::Unbounded)) {
        let row = canonical(&(key, value));
        let length = u32::try_from(row.len()).expect("a row is far below a frame");
        payload.extend_from_slice(&length.to_le_bytes());
        payload.extend_from_slice(&row);
        last = Some(key.clone());
        if payload.len() >= BATCH_BYTES {
            break;
        }
    }
    let last = last?;
    Some((encode_frame(tag, &payload), last))
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
                    self.step = Step::Nodes(None);
                    return Some(encode_frame(HEAD, &canonical(&head)));
                }
                Step::Nodes(after) => match batch(NODES, &self.state.nodes, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Jobs(None),
                },
                Step::Jobs(after) => match batch(JOBS, &self.state.jobs, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Specs(None),
                },
                Step::Specs(after) => match batch(SPECS, &self.state.specs, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Requests(None),
                },
                Step::Requests(after) => match batch(REQUESTS, &self.state.requests, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Tenants(None),
                },
                Step::Tenants(after) => match batch(TENANTS, &self.state.tenants, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::History(None),
                },
                Step::History(after) => match batch(HISTORY, &self.state.history, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Bursts(None),
                },
                Step::Bursts(after) => match batch(BURSTS, &self.state.bursts, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Demand(None),
                },
                Step::Demand(after) => {
                    match batch(DEMAND, self.state.demand.sample_table(), after.as_ref()) {
                        Some((frame, last)) => {
                            *after = Some(last);
                            return Some(frame);
                        }
                        None => self.step = Step::Contracts(None),
                    }
                }
                Step::Contracts(after) => match batch(CONTRACTS, &self.state.contracts, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Recoveries(None),
                },
                Step::Recoveries(after) => match batch(RECOVERIES, &self.state.recoveries, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Spares(None),
                },
                Step::Spares(after) => match batch(SPARES, &self.state.spares, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::NodeFaults(None),
                },
                Step::NodeFaults(after) => {
                    match batch(NODE_FAULTS, &self.state.node_faults, after.as_ref()) {
                        Some((frame, last)) => {
                            *after = Some(last);
                            return Some(frame);
                        }
                        None => self.step = Step::Restrictions(None),
                    }
                }
                Step::Restrictions(after) => {
                    match batch(RESTRICTIONS, &self.state.restrictions, after.as_ref()) {
                        Some((frame, last)) => {
                            *after = Some(last);
                            return Some(frame);
                        }
                        None => self.step = Step::HealthPolicy(None),
                    }
                }
                Step::HealthPolicy(after) => {
                    match batch(HEALTH_POLICY, &self.state.health_policy, after.as_ref()) {
                        Some((frame, last)) => {
                            *after = Some(last);
                            return Some(frame);
                        }
                        None => self.step = Step::Times(None),
                    }
                }
                Step::Times(after) => match batch(TIMES, &self.state.times, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Doors(None),
                },
                Step::Doors(after) => match batch(DOORS, &self.state.doors, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
                    None => self.step = Step::Metadata(None),
                },
                Step::Metadata(after) => match batch(METADATA, &self.state.metadata, after.as_ref()) {
                    Some((frame, last)) => {
                        *after = Some(last);
                        return Some(frame);
                    }
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
    F: Facts<K, V>,
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

/// The tables of a snapshot while they are read.
#[derive(Default)]
struct Tables {
    nodes: TableBuilder<NodeId, NodeRow, NodeFacts>,
    jobs: TableBuilder<JobId, JobRow, ()>,
    specs: TableBuilder<JobId, Arc<JobSpec>, SpecFacts>,
    requests: TableBuilder<RequestId, RequestRow, ()>,
    tenants: TableBuilder<Name, TenantUsage, ()>,
    history: TableBuilder<HistoryKey, HistoryRow, ()>,
    bursts: TableBuilder<JobId, BurstRow, ()>,
    demand: TableBuilder<u16, WorkerDemand, ()>,
    contracts: TableBuilder<JobId, Arc<JobContract>, ()>,
    recoveries: TableBuilder<JobId, RecoveryRow, ()>,
    spares: TableBuilder<JobId, Vec<WorkerSlot>, ()>,
    node_faults: TableBuilder<NodeId, Vec<LogTime>, ()>,
    restrictions: TableBuilder<NodeId, RestrictionRow, ()>,
    health_policy: TableBuilder<(), HealthPolicyRow, ()>,
    times: TableBuilder<JobId, JobTimes, ()>,
    doors: TableBuilder<DoorKey, DoorRow, ()>,
    metadata: TableBuilder<JobId, Arc<JobMetadata>, ()>,
}

impl Tables {
    /// A state of these rows and nothing else yet.
    fn finish(self) -> State {
        let mut state = State {
            nodes: self.nodes.finish(),
            jobs: self.jobs.finish(),
            specs: self.specs.finish(),
            requests: self.requests.finish(),
            tenants: self.tenants.finish(),
            history: self.history.finish(),
            bursts: self.bursts.finish(),
            contracts: self.contracts.finish(),
            recoveries: self.recoveries.finish(),
            spares: self.spares.finish(),
            node_faults: self.node_faults.finish(),
            restrictions: self.restrictions.finish(),
            health_policy: self.health_policy.finish(),
            times: self.times.finish(),
            doors: self.doors.finish(),
            metadata: self.metadata.finish(),
            ..State::default()
        };
        state.demand.set_sample(self.demand.finish());
        state.set_restricted();
        state
    }
}

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
                    NODES => load(&payload, &mut tables.nodes, "node row")?,
                    JOBS => load(&payload, &mut tables.jobs, "job row")?,
                    SPECS => load(&payload, &mut tables.specs, "job spec")?,
                    REQUESTS => load(&payload, &mut tables.requests, "request row")?,
                    TENANTS => load(&payload, &mut tables.tenants, "tenant row")?,
                    HISTORY => load(&payload, &mut tables.history, "history row")?,
                    BURSTS => load(&payload, &mut tables.bursts, "burst row")?,
                    DEMAND => load(&payload, &mut tables.demand, "row of demand")?,
                    CONTRACTS => load(&payload, &mut tables.contracts, "job contract")?,
                    RECOVERIES => load(&payload, &mut tables.recoveries, "row of recoveries")?,
                    SPARES => load(&payload, &mut tables.spares, "spare")?,
                    NODE_FAULTS => load(&payload, &mut tables.node_faults, "fault of a node")?,
                    RESTRICTIONS => load(&payload, &mut tables.restrictions, "row of restrictions")?,
                    HEALTH_POLICY => load(&payload, &mut tables.health_policy, "health policy")?,
                    TIMES => load(&payload, &mut tables.times, "times of a job")?,
                    DOORS => load(&payload, &mut tables.doors, "row of admission")?,
                    METADATA => load(&payload, &mut tables.metadata, "metadata of a job")?,
                    TAIL => ended = true,
                    _ => return Err(RestoreError::Content("kind of frame")),
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

    /// What the rebuild of the indexes takes for granted.
    fn check_rows(&self) -> Result<(), RestoreError> {
        let sizes = |p: &crate::rows::Placement| p.slots.len() == p.ranks.len();
        for (_, row) in self.jobs.iter() {
            let placements = [&row.placement, &row.previous];
            if !placements.into_iter().flatten().all(|p| sizes(p)) {
                return Err(RestoreError::Content("placement"));
            }
        }
        let names: alloc::collections::BTreeSet<_> =
            self.nodes.iter().map(|(_, row)| &row.spec.name).collect();
        if names.len() != self.nodes.len() {
            return Err(RestoreError::Content("node name"));
        }
        self.check_doors().map_err(RestoreError::Invariant)?;
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
