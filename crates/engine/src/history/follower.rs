//! Readers of the records of the log.

use muster_archive::{ArchiveError, RaftPosition, Slice};
use muster_journal::Decision;
use muster_types::{LogIndex, LogTime, Refusal};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::watch;

use crate::background::in_background;
use crate::history::records::History;
use crate::refusals::stopping_reads;

/// One reader of the log's records. Between two batches it keeps nothing of the log.
pub struct LogFollower {
    history: Arc<History>,
    /// Before the round that the next record is in.
    records: muster_archive::Records,
    /// The next record that is wanted.
    next: LogIndex,
    end: watch::Receiver<LogIndex>,
}

/// What a reader gets at a time.
#[derive(Clone, Debug)]
pub struct LogBatch {
    /// In order, without a gap to those before; none when it is at the end.
    pub records: Vec<muster_archive::Record>,
    /// The first record that comes behind them.
    pub next: LogIndex,
    /// About what they have in the log, in bytes.
    pub bytes: usize,
}

/// Where a follower is, to go back to.
#[derive(Clone, Debug)]
pub struct LogPosition {
    records: muster_archive::Records,
    next: LogIndex,
}

/// Records handed out at a time, about.
const BATCH_RECORDS: usize = 256;

/// What they may have in the log, in bytes; one of them may be larger.
const BATCH_BYTES: usize = 64 << 10;

/// Rounds of at most this many bytes are decoded on the thread that serves their reader; larger ones in the background.
const SMALL_BYTES: usize = 4 << 10;

/// Who is told of records one after the other, without a copy of them.
pub trait RecordVisitor: Send + 'static {
    /// Takes the next record, or leaves it to those who read on from there.
    fn visit(&mut self, log_index: LogIndex, log_time: LogTime, decision: &Decision) -> ControlFlow<()>;
}

/// How a part of a visit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visited {
    /// There may be more.
    Part,
    /// All records that there are were told of.
    All,
    /// The visitor left one.
    Stopped,
}

/// The first round of a slice that is not before the place of a reader, who goes there.
fn first_round(slice: &Slice, records: &mut muster_archive::Records) -> usize {
    let place = records.place();
    let is_within = place.next_raft > slice.from.next_raft
        && place.sequence.log_index >= slice.from.sequence.log_index
        && place.generation >= slice.from.generation;
    if is_within {
        return slice.rounds.partition_point(|round| round.raft_index < place.next_raft);
    }
    // A segment begins before the place; the log begins right there.
    *records = muster_archive::Records::from(slice.from);
    0
}

/// Whether the rest of a slice does not count: a later generation of the cluster goes on from here, and the archive knows where.
fn is_over(slice: &Slice, records: &mut muster_archive::Records) -> bool {
    let is_cut = slice.to < slice.end.sequence.log_index;
    if !is_cut || records.place().sequence.log_index < slice.to {
        return false;
    }
    let at = muster_state::Sequence { log_index: slice.to, ..Default::default() };
    *records = muster_archive::Records::from(RaftPosition { sequence: at, ..RaftPosition::default() });
    true
}

/// One part of a visit, apart from the threads that serve.
struct Part<V> {
    slice: Arc<Slice>,
    records: muster_archive::Records,
    next: LogIndex,
    visitor: V,
    /// Whether the first record that came is not the one that is wanted.
    has_gap: bool,
    is_stopped: bool,
}

impl<V: RecordVisitor> Part<V> {
    /// Tells of the records in the rounds, until the visitor leaves one or the rounds are over.
    fn run(&mut self) -> Result<(), ArchiveError> {
        let slice = Arc::clone(&self.slice);
        let first = first_round(&slice, &mut self.records);
        let wanted = self.next;
        for round in slice.rounds.iter().skip(first) {
            let before = self.records.clone();
            let (visitor, next) = (&mut self.visitor, &mut self.next);
            let (mut has_gap, mut is_stopped) = (false, false);
            self.records.visit(round, |log_index, log_time, decision| {
                if has_gap || is_stopped || log_index < *next || log_index > slice.to {
                    return;
                }
                if *next == wanted && log_index != wanted {
                    has_gap = true;
                } else if visitor.visit(log_index, log_time, decision).is_break() {
                    is_stopped = true;
                } else {
                    *next = log_index.next();
                }
            })?;
            if has_gap || is_stopped {
                // The rest of the round is told the next time.
                (self.records, self.has_gap, self.is_stopped) = (before, has_gap, is_stopped);
                return Ok(());
            }
            if is_over(&slice, &mut self.records) {
                return Ok(());
            }
        }
        // Entries of the protocol's own may follow the last round.
        self.records.pass(slice.end.next_raft);
        Ok(())
    }
}

/// A step of a follower, apart from the threads that serve.
struct Step {
    slice: Arc<Slice>,
    records: muster_archive::Records,
    next: LogIndex,
    found: Vec<muster_archive::Record>,
    bytes: usize,
}

impl Step {
    /// Takes records out of the rounds until it has a batch, or the rounds are over.
    fn take(&mut self) -> Result<(), ArchiveError> {
        let slice = Arc::clone(&self.slice);
        let first = first_round(&slice, &mut self.records);
        for round in slice.rounds.iter().skip(first) {
            let before = self.records.clone();
            let taken = self.records.take(round)?;
            let each = round.payload.len() / taken.len().max(1);
            for record in taken {
                if record.log_index < self.next || record.log_index > slice.to {
                    continue;
                }
                if self.is_full() {
                    // The rest of the round is taken the next time.
                    self.records = before;
                    return Ok(());
                }
                self.next = record.log_index.next();
                self.bytes += each;
                self.found.push(record);
            }
            if is_over(&slice, &mut self.records) || self.is_full() {
                return Ok(());
            }
        }
        // Entries of the protocol's own may follow the last round.
        self.records.pass(slice.end.next_raft);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.found.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }
}

impl LogPosition {
    /// The next record from there.
    #[must_use]
    pub fn log_index(&self) -> LogIndex {
        self.next
    }
}

impl LogFollower {
    /// The next records that there are, without waiting for new ones.
    ///
    /// # Errors
    /// When they are not kept here any more, or cannot be read.
    pub async fn next(&mut self) -> Result<LogBatch, Refusal> {
        loop {
            let place = self.records.place();
            let Some(slice) = self.history.read(place).await? else {
                return Ok(LogBatch { records: Vec::new(), next: self.next, bytes: 0 });
            };
            let is_small = slice.bytes() <= SMALL_BYTES;
            let (records, next) = (self.records.clone(), self.next);
            let mut step = Step { slice, records, next, found: Vec::new(), bytes: 0 };
            let (step, taken) = if is_small {
                let taken = step.take();
                (step, taken)
            } else {
                let stepped = in_background(move || {
                    let taken = step.take();
                    (step, taken)
                });
                stepped.await.map_err(|_| stopping_reads())?
            };
            taken.map_err(|error| self.history.refusal(&error))?;
            if let Some(first) = step.found.first()
                && first.log_index != self.next
            {
                return Err(self.history.compacted(self.next));
            }
            self.records = step.records;
            if !step.found.is_empty() {
                self.next = step.next;
                return Ok(LogBatch { records: step.found, next: self.next, bytes: step.bytes });
            }
        }
    }

    /// Tells a visitor of the next records that there are, without waiting for new ones: of a segment of the archive or about a
    /// megabyte of the log. Each round is decoded once, and nothing of it is copied.
    ///
    /// # Errors
    /// As [`LogFollower::next`]. The visitor is lost then.
    pub async fn visit<V: RecordVisitor>(&mut self, visitor: V) -> Result<(V, Visited), Refusal> {
        let Some(slice) = self.history.read(self.records.place()).await? else {
            return Ok((visitor, Visited::All));
        };
        let is_small = slice.bytes() <= SMALL_BYTES;
        let (records, next) = (self.records.clone(), self.next);
        let mut part = Part { slice, records, next, visitor, has_gap: false, is_stopped: false };
        let (part, run) = if is_small {
            let run = part.run();
            (part, run)
        } else {
            let told = in_background(move || {
                let run = part.run();
                (part, run)
            });
            told.await.map_err(|_| stopping_reads())?
        };
        run.map_err(|error| self.history.refusal(&error))?;
        if part.has_gap {
            return Err(self.history.compacted(self.next));
        }
        (self.records, self.next) = (part.records, part.next);
        Ok((part.visitor, if part.is_stopped { Visited::Stopped } else { Visited::Part }))
    }

    /// Begins with the record `next`, at a place that is not behind it.
    pub(crate) fn new(history: Arc<History>, place: RaftPosition, next: LogIndex) -> LogFollower {
        let end = history.end.subscribe();
        LogFollower { records: muster_archive::Records::from(place), history, next, end }
    }

    /// Where it is.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        LogPosition { records: self.records.clone(), next: self.next }
    }

    /// Goes back to where it was.
    pub fn go_back(&mut self, to: LogPosition) {
        (self.records, self.next) = (to.records, to.next);
    }

    /// Waits until there may be more.
    ///
    /// # Errors
    /// When the replica stops.
    pub async fn more(&mut self) -> Result<(), Refusal> {
        let next = self.next;
        let reached = self.end.wait_for(|end| *end >= next);
        tokio::select! {
            reached = reached => reached.map(|_| ()).map_err(|_| stopping_reads()),
            () = self.history.shutdown.cancelled() => Err(stopping_reads()),
        }
    }
}
