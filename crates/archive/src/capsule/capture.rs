//! Making a capsule out of a log.

use std::mem::discriminant;
use std::sync::Arc;

use muster_journal::Decision;
use muster_state::{Redaction, State};
use muster_types::{Leadership, LogIndex, PastPoint};

use super::{CAPSULE_RECORDS_MAX, Capsule, CapsuleError, CapsuleHeader, CapsuleRecord, LeftOutRecord};
use crate::archive::Archive;
use crate::error::ArchiveError;

/// Which records a capsule is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleSpan {
    /// The first one.
    pub first: LogIndex,
    /// The last one.
    pub last: LogIndex,
    /// The one that somebody asks about.
    pub around: LogIndex,
}

/// The state behind a record.
fn state_at(archive: &Archive, index: LogIndex) -> Result<State, CapsuleError> {
    if index == LogIndex::ZERO {
        return Ok(State::default());
    }
    let (replay, reached) = archive.replay(PastPoint::Index(index), None)?;
    if !reached {
        return Err(ArchiveError::NotReached { newest: replay.state().log_index() }.into());
    }
    Ok(replay.state().clone())
}

/// Makes a capsule of a span, redacted with a number that nobody else is to know. `version` is the release of the program, and
/// the time is that of its host's clock, in milliseconds since the Unix epoch.
///
/// # Errors
/// When the span is too large, the log cannot be read, or redaction changes what records do.
pub fn capture(
    archive: &Arc<Archive>,
    span: CapsuleSpan,
    salt: u128,
    (version, created_at_ms): (&str, u64),
) -> Result<Capsule, CapsuleError> {
    let CapsuleSpan { first, last, around } = span;
    let found = (last.0 + 1).saturating_sub(first.0);
    if found > CAPSULE_RECORDS_MAX {
        return Err(CapsuleError::TooLarge { what: "records", found, max: CAPSULE_RECORDS_MAX });
    }
    let redaction = Redaction::new(salt);
    let mut whole = state_at(archive, LogIndex(first.0.saturating_sub(1)))?;
    let before = redaction.state(&whole)?;
    let mut state = before.clone();
    let mut header = CapsuleHeader {
        cluster_id: archive.cluster().map(|cluster| cluster.to_string()).unwrap_or_default(),
        cluster_generation: before.generation(),
        first_log_index: first.0,
        last_log_index: last.0,
        around_log_index: around.0,
        begin_time_ms: before.log_time().0,
        version: version.to_owned(),
        created_at_ms,
        original_digest_before: whole.digest(),
        original_digest_after: state_at(archive, last)?.digest(),
        digest_before: before.digest(),
        ..CapsuleHeader::default()
    };
    let mut records = Vec::new();
    for record in archive.records(first, last) {
        let record = record?;
        let log_index = record.log_index;
        let leadership = Leadership { term: record.term, replica: record.leader };
        let is_digest = matches!(record.decision, Decision::DigestRecorded { .. });
        let redacted = if is_digest { None } else { redaction.decision(&record.decision)? };
        let is_kept = is_digest || redacted.is_some();
        if !is_kept {
            let decision = record.decision.name().to_owned();
            header.left_out.push(LeftOutRecord { log_index: log_index.0, decision });
        }
        // The digest is that of the redacted state, also in the place of a record that is left out.
        let decision = redacted.unwrap_or_else(|| Decision::DigestRecorded { digest: state.rows_digest() });
        let expected = whole.apply(leadership, log_index, record.log_time, &record.decision);
        let applied = state.apply(leadership, log_index, record.log_time, &decision);
        let is_same = expected.rejection.is_some() == applied.rejection.is_some();
        if applied.log_index.is_none() || is_kept && !is_same {
            return Err(CapsuleError::Differs { log_index });
        }
        let (log_time, raft_index) = (record.log_time, record.raft_index);
        records.push(CapsuleRecord { log_index, log_time, leadership, raft_index, decision });
    }
    if state.log_index() != last || !is_alike(&whole, &state) {
        return Err(CapsuleError::Differs { log_index: last });
    }
    (header.end_time_ms, header.digest_after) = (state.log_time().0, state.digest());
    Ok(Capsule { header, state: before, records })
}

/// Whether jobs and nodes are where they are in the other state.
fn is_alike(whole: &State, redacted: &State) -> bool {
    let jobs = whole.jobs().iter().zip(redacted.jobs().iter()).all(|((id, a), (other, b))| {
        let token = |row: &muster_state::JobRow| row.placement.as_ref().map(|placement| placement.token);
        id == other
            && discriminant(&a.phase) == discriminant(&b.phase)
            && (a.attempt, a.held, a.released, token(a)) == (b.attempt, b.held, b.released, token(b))
    });
    let nodes = whole.nodes().iter().zip(redacted.nodes().iter()).all(|((id, a), (other, b))| {
        id == other
            && (a.status, a.cordoned, a.incarnation) == (b.status, b.cordoned, b.incarnation)
            && a.free == b.free
    });
    let counts = |state: &State| (state.jobs().len(), state.nodes().len(), state.pending_count());
    jobs && nodes && counts(whole) == counts(redacted)
}
