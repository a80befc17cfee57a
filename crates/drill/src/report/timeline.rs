//! What happened when, in as many pieces as a picture can show.

use serde::{Deserialize, Serialize};

use crate::history::{History, Operation, Outcome};
use crate::judge::{Kind, Verdict};
use crate::run::Run;

/// Pieces of a timeline.
const BINS: u64 = 240;
/// How much of the time before the fault is shown, at most.
const BEFORE_US: u64 = 10_000_000;
/// Shortest piece.
const BIN_US_MIN: u64 = 50_000;

/// A piece of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// When it begins, from the fault; negative before it.
    pub from_ms: i64,
    /// Submissions acknowledged in it.
    pub acknowledged: u32,
    /// Submissions that were given up, or refused, in it.
    pub failed: u32,
    /// Linearizable reads answered in it.
    pub linearizable: u32,
    /// Reads of any age, or with a bound, answered in it.
    pub other_reads: u32,
}

/// A leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// When it began, from the fault, by the leader's clock.
    pub from_ms: i64,
    /// Its number.
    pub term: u64,
    /// Who led.
    pub replica: u64,
}

/// What happened when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Length of a piece.
    pub bin_ms: u64,
    /// One behind the other.
    pub bins: Vec<Bin>,
    /// Leaderships, from the one before the fault.
    pub terms: Vec<Term>,
    /// The longest silence of submissions: begin and end, from the fault.
    pub silence: Option<(i64, i64)>,
}

impl Timeline {
    /// Of a run.
    #[must_use]
    pub fn of(run: &Run, history: &History, verdict: &Verdict) -> Timeline {
        let from_us = run.start_us.max(run.fault_us.saturating_sub(BEFORE_US));
        let length_us = run.end_us.saturating_sub(from_us).max(1);
        let bin_us = length_us.div_ceil(BINS).max(BIN_US_MIN);
        let count = length_us.div_ceil(bin_us);
        let begin = |bin: u64| Bin { from_ms: run.since_fault_ms(from_us + bin * bin_us), ..Bin::default() };
        let mut bins: Vec<Bin> = (0..count).map(begin).collect();
        for operation in &history.operations {
            let at_us = operation.completed_us.checked_sub(from_us);
            let place = at_us.and_then(|at_us| usize::try_from(at_us / bin_us).ok());
            if let Some(bin) = place.and_then(|place| bins.get_mut(place)) {
                note(bin, operation);
            }
        }
        let submissions = verdict.figures.kinds.get(&Kind::Submission);
        let silence = submissions.and_then(|figures| {
            let from_ms = run.since_fault_ms(figures.silence_from_us);
            Some((from_ms, from_ms.saturating_add_unsigned(figures.silence_ms?)))
        });
        let terms = verdict.figures.leaders.iter().map(|leader| Term {
            from_ms: 0i64
                .saturating_add_unsigned(leader.log_time_ms)
                .saturating_sub_unsigned(run.fault_unix_ms),
            term: leader.term,
            replica: leader.replica,
        });
        Timeline { bin_ms: bin_us / 1_000, bins, terms: terms.collect(), silence }
    }
}

fn note(bin: &mut Bin, operation: &Operation) {
    let is_answered = matches!(operation.outcome, Outcome::Acknowledged { .. } | Outcome::Answered { .. });
    match (Kind::of(operation), is_answered) {
        (Kind::Submission, true) => bin.acknowledged += 1,
        (Kind::Submission, false) => bin.failed += 1,
        (Kind::LinearizableRead, true) => bin.linearizable += 1,
        (Kind::AnyRead | Kind::BoundedRead, true) => bin.other_reads += 1,
        _ => {}
    }
}
