//! Snapshots: whole or not at all.

use std::sync::Arc;

use muster_decider::{Command, Speculation, handle, schedule};
use muster_journal::frame::{FRAME_BYTES_MAX, FrameReader, encode_frame};
use muster_journal::{
    Estimate, FORMAT_MAX, FORMAT_MIN, Outcome, ROUND_BYTES_MAX, RankUpdate, WorkerSlot, canonical,
    from_canonical,
};
use muster_planner::Budget;
use muster_state::{Charge, JobRow, Phase, Placement, RankState, RestoreError, State};
use muster_types::{DeviceSet, ExitStatus, FencingToken, JobId, LogIndex, LogTime, NodeId, QueueKey, limits};

use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded, founded_as, holder, job, leadership, name, node_draft,
    node_spec, request,
};

/// Rows in every table.
fn small() -> State {
    let (mut speculation, mut state) = founded();
    for n in 0..3 {
        let spec = node_spec(&format!("n{n}"), "eu", "c1", Some(accelerators("h100", 8)));
        let command = Command::Register { spec, holder: holder(1), other_session_is_over: false };
        handle(&mut speculation, &command).unwrap();
    }
    for n in 0..4 {
        let specs = vec![job("train", 2, Some(accelerators("h100", 4)))];
        handle(&mut speculation, &Command::submit(request(n), muster_types::Submission::plain(specs)))
            .unwrap();
    }
    schedule(&mut speculation, &mut Budget::new(1_000));
    commit(&mut speculation, &mut state);
    state
}

fn bytes(state: &State) -> Vec<u8> {
    state.snapshot().flatten().collect()
}

#[test]
fn restores_from_pieces_of_any_size() {
    let state = small();
    let bytes = bytes(&state);
    for size in [1, 2, 7, 100, bytes.len()] {
        let restored = State::restore(bytes.chunks(size)).expect("restores");
        assert_eq!(restored.digest(), state.digest());
        check(&restored);
    }
}

#[test]
fn an_empty_state_restores() {
    let state = State::default();
    assert_eq!(State::restore(state.snapshot()).unwrap().digest(), state.digest());
}

#[test]
fn the_restored_goes_on_like_the_original() {
    let state = small();
    let run = |state: State| {
        let mut speculation = Speculation::begin(state, leadership(2, 1), LogTime(2_000_000), BOOTSTRAP);
        handle(&mut speculation, &Command::SessionOver { node: NodeId(0), incarnation: 1 }).unwrap();
        schedule(&mut speculation, &mut Budget::new(1_000));
        speculation.take_round()
    };
    let restored = State::restore(state.snapshot()).unwrap();
    assert_eq!(run(state), run(restored));
}

#[test]
fn every_flipped_byte_is_refused() {
    let bytes = bytes(&small());
    for place in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bent = bytes.clone();
            bent[place] ^= flip;
            assert!(State::restore([bent]).is_err(), "byte {place} of {}", bytes.len());
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = bytes(&small());
    for length in 0..bytes.len() {
        assert!(State::restore([&bytes[..length]]).is_err(), "{length} of {} bytes", bytes.len());
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(State::restore([&longer]).is_err());
    longer.pop();
    longer.extend_from_slice(&bytes);
    assert!(State::restore([&longer]).is_err(), "two snapshots are not one");
}

#[test]
fn frames_in_another_order_or_missing_are_refused() {
    let chunks: Vec<Vec<u8>> = small().snapshot().collect();
    assert!(chunks.len() >= 6, "head, four tables, tail");
    for missing in 0..chunks.len() {
        let mut fewer = chunks.clone();
        fewer.remove(missing);
        assert!(State::restore(&fewer).is_err(), "without frame {missing}");
    }
    let mut swapped = chunks.clone();
    swapped.swap(0, 1);
    assert_eq!(State::restore(&swapped).unwrap_err(), RestoreError::Content("order of frames"));
    let mut unknown = chunks.clone();
    unknown.insert(1, encode_frame(99, b""));
    assert_eq!(State::restore(&unknown).unwrap_err(), RestoreError::Content("kind of frame"));
}

/// A newer format is told from damage, so that the operator knows to upgrade rather than to mend.
#[test]
fn a_newer_head_is_named() {
    let chunks: Vec<Vec<u8>> = small().snapshot().collect();
    let mut reader = FrameReader::default();
    reader.push(&chunks[0]);
    let (tag, payload) = reader.next_frame().unwrap().unwrap();
    let with_format = |format: u16| {
        let mut head = canonical(&format);
        head.extend_from_slice(&payload[1..]);
        let mut bent = chunks.clone();
        bent[0] = encode_frame(tag, &head);
        State::restore(&bent).unwrap_err()
    };
    for format in [FORMAT_MAX + 1, 250, 251, 9_999] {
        assert_eq!(with_format(format), RestoreError::FormatNewer { needed: format, known: FORMAT_MAX });
    }
    assert_eq!(with_format(0), RestoreError::Content("format"));
    assert_eq!(with_format(2), RestoreError::Content("format"), "not the one in force in the state");
}

/// A snapshot is in the format in force: a replica that is not upgraded yet takes it until the format is raised.
#[test]
fn a_snapshot_is_of_the_format_in_force() {
    let (mut speculation, mut state) = founded_as(BOOTSTRAP);
    assert_eq!(state.format(), FORMAT_MIN);
    assert_eq!(State::restore_up_to(1, state.snapshot()).unwrap().digest(), state.digest());
    handle(&mut speculation, &Command::RaiseFormat { by: muster_types::Requester::default(), format: 2 })
        .unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.format(), 2);
    assert_eq!(State::restore(state.snapshot()).unwrap().digest(), state.digest());
    let error = State::restore_up_to(1, state.snapshot()).unwrap_err();
    assert_eq!(error, RestoreError::FormatNewer { needed: 2, known: 1 });
    assert!(error.to_string().ends_with("upgrade this replica"), "{error}");
}

/// The largest row there can be is within the bounds of a frame and of a value: two placements of the
/// largest gang, every rank with the longest text.
#[test]
fn the_largest_row_is_within_bounds() {
    let count = limits::GANG_WORKERS_MAX as usize;
    let why = ExitStatus::LaunchFailed("x".repeat(limits::DETAIL_BYTES_MAX));
    let slot = WorkerSlot { node: NodeId(u32::MAX), incarnation: u32::MAX, devices: DeviceSet(u64::MAX) };
    let placement = Arc::new(Placement {
        token: FencingToken { generation: u32::MAX, log_index: LogIndex(u64::MAX) },
        region: name("eu"),
        cluster: name("c1"),
        placed_at: LogTime(u64::MAX),
        slots: vec![slot; count],
        ranks: vec![RankState::Exited(why); count],
        live: 0,
        unstarted: 0,
        charge: Charge::default(),
        ready: (0..limits::GANG_WORKERS_MAX).collect(),
    });
    let row = JobRow {
        held: false,
        released: true,
        estimate: Estimate {
            run_ms: u64::MAX,
            run_high_ms: u64::MAX,
            turn: QueueKey::LAST,
            ..Estimate::default()
        },
        preemptions: u32::MAX,
        checkpointed_at: Some(LogTime(u64::MAX)),
        promise: None,
        phase: Phase::Finished(Outcome::Failed { detail: "x".repeat(limits::OUTCOME_BYTES_MAX) }),
        attempt: u32::MAX,
        failures: u32::MAX,
        cancel_requested: true,
        submitted_at: LogTime(u64::MAX),
        started_at: Some(LogTime(u64::MAX)),
        finished_at: Some(LogTime(u64::MAX)),
        changed_at: LogIndex(u64::MAX),
        placement: Some(placement.clone()),
        previous: Some(placement),
    };
    // A batch ends with the row that reaches its size, so this one may stand behind a full batch.
    let bytes = canonical(&(JobId(u64::MAX), &row));
    assert!(bytes.len() + (1 << 20) <= FRAME_BYTES_MAX, "{} bytes", bytes.len());
    assert_eq!(from_canonical::<(JobId, JobRow)>(&bytes), Some((JobId(u64::MAX), row)));
}

/// A report of the most ranks with the longest texts is one round within its bound.
#[test]
fn the_largest_report_is_within_bounds() {
    let (mut speculation, mut state) = founded();
    let mut draft = node_draft("big", "eu", "c1", None);
    draft.cpu_milli = limits::CPU_MILLI_MAX;
    draft.memory_bytes = limits::MEMORY_BYTES_MAX;
    let spec = draft.check().unwrap();
    handle(&mut speculation, &Command::Register { spec, holder: holder(1), other_session_is_over: false })
        .unwrap();
    let ranks = limits::REPORT_RANKS_MAX as u32;
    let specs = vec![job("wide", ranks, None)];
    handle(&mut speculation, &Command::submit(request(1), muster_types::Submission::plain(specs))).unwrap();
    schedule(&mut speculation, &mut Budget::new(1_000_000));
    commit(&mut speculation, &mut state);
    let job = state.active().next().expect("placed");
    let token = state.job(job).unwrap().placement.as_ref().unwrap().token;
    let why = ExitStatus::LaunchFailed("x".repeat(2 * limits::DETAIL_BYTES_MAX));
    let updates = (0..ranks).map(|rank| (rank, RankUpdate::Exited(why.clone()))).collect();
    let report = Command::Report { node: NodeId(0), incarnation: 1, job, token, updates };
    handle(&mut speculation, &report).unwrap();
    assert!(speculation.round_bytes() < ROUND_BYTES_MAX / 2);
    commit(&mut speculation, &mut state);
    assert_eq!(State::restore(state.snapshot()).unwrap().digest(), state.digest());
}
