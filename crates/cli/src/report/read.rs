//! An archive through the ledger, from one end of a span to the other, with what is missing on the way.

use std::path::Path;
#[cfg(test)]
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_archive::{Archive, ArchiveError, Gap, Observer, Replay};
use muster_console::{Console, Exit, Failure};
use muster_journal::Decision;
use muster_ledger::{Detail, JobTotals, Ledger, LedgerError, StepTimes, View, Window};
use muster_sim::idle::IdleReasons;
use muster_sim::predictions::PredictionCheck;
use muster_sim::turns::TurnCheck;
use muster_sim::waits::WaitReasons;
use muster_state::{Applied, State};
use muster_types::{LogIndex, LogTime, PastPoint};

use super::fairness::Fairness;
use super::ledger_file;
#[cfg(test)]
use crate::log::SourceArgs;
use crate::log::{LogSource, archive_failure};

/// Between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Records that are missing, and the time for which nothing is known.
pub(super) struct MissingSpan {
    pub(super) records: Gap,
    pub(super) since: LogTime,
    /// None where nothing behind it can be read.
    pub(super) until: Option<LogTime>,
}

/// What an archive says of a span.
pub(super) struct Reading {
    /// One for each part without a gap.
    pub(super) views: Vec<View>,
    /// What each job has waited for, where jobs are kept apart.
    pub(super) jobs: Vec<JobTotals>,
    pub(super) from: LogTime,
    pub(super) to: LogTime,
    pub(super) first: LogIndex,
    pub(super) last: LogIndex,
    pub(super) missing: Vec<MissingSpan>,
    pub(super) notes: Vec<String>,
}

/// The ledger as it looks at a replay.
struct Charger<'a> {
    ledger: Ledger,
    fairness: Option<&'a mut Fairness>,
    reasons: Option<&'a mut IdleReasons>,
    waits: Option<&'a mut WaitReasons>,
    turns: Option<&'a mut TurnCheck>,
    steps: Option<&'a mut StepTimes>,
    predictions: Option<&'a mut PredictionCheck>,
    /// What jobs that are over have waited for, where jobs are kept apart.
    ended: Option<Vec<JobTotals>>,
    error: Option<LedgerError>,
    /// The time of the first record.
    first: Option<LogTime>,
    told: Option<ReadProgress<'a>>,
}

/// How far the reading is, for the console, and when it was last told.
struct ReadProgress<'a> {
    console: &'a Console,
    at: Instant,
    last: LogIndex,
}

impl ReadProgress<'_> {
    fn tell(&mut self, index: LogIndex) {
        if self.at.elapsed() >= TOLD_EVERY {
            self.at = Instant::now();
            self.console.progress(&format!("record {index} of {}", self.last));
        }
    }
}

fn is_within(window: Window, time: LogTime) -> bool {
    time >= window.from && window.until.is_none_or(|until| time < until)
}

impl Observer for Charger<'_> {
    fn before(&mut self, state: &State, decision: &Decision) {
        self.ledger.before(state, decision);
        if let Some(steps) = &mut self.steps {
            steps.before(decision);
        }
        if is_within(self.ledger.window(), state.log_time())
            && let Some(turns) = &mut self.turns
        {
            turns.before(state, decision);
        }
        if let Some(predictions) = &mut self.predictions {
            predictions.before(decision);
        }
    }

    fn after(&mut self, state: &State, applied: &Applied) {
        if self.error.is_none() {
            match (self.ledger.after(state, applied), &mut self.ended) {
                (Ok(totals), Some(ended)) => {
                    ended.extend(totals.into_iter().filter(|totals| !totals.waited.is_empty()))
                }
                (Ok(_), None) => {}
                (Err(error), _) => self.error = Some(error),
            }
            self.first.get_or_insert(state.log_time());
        }
        if let Some(fairness) = &mut self.fairness {
            fairness.after(state, applied);
        }
        if let Some(steps) = &mut self.steps {
            steps.after(state, applied);
        }
        if is_within(self.ledger.window(), state.log_time())
            && let Some(turns) = &mut self.turns
        {
            turns.after(applied);
        }
        if let Some(predictions) = &mut self.predictions {
            predictions.after(state, applied);
        }
    }

    fn round_over(&mut self, state: &State) {
        if let Some(told) = &mut self.told {
            told.tell(state.log_index());
        }
        if let Some(fairness) = &mut self.fairness {
            fairness.round_over(state);
        }
        if is_within(self.ledger.window(), state.log_time()) && self.error.is_none() {
            if let Some(reasons) = &mut self.reasons {
                reasons.look(&mut self.ledger, state);
            }
            if let Some(waits) = &mut self.waits {
                waits.look(&mut self.ledger, state);
            }
        }
        // Starts behind the end count for what was predicted before it.
        if is_within(self.ledger.window(), state.log_time())
            && let Some(predictions) = &mut self.predictions
        {
            predictions.round_over(state);
        }
    }
}

/// The log time of a point, and a note where the log does not reach it.
pub(crate) fn time_of(archive: &Archive, point: PastPoint) -> Result<LogTime, Failure> {
    match point {
        PastPoint::Time(time) => Ok(time),
        PastPoint::Index(index) => {
            let (replay, reached) = archive.replay(point, None).map_err(|error| archive_failure(&error))?;
            if !reached {
                let last = replay.state().log_index();
                let text = format!("the archive ends at log index {last}, before {index}");
                return Err(Failure::new(Exit::NotFound, text));
            }
            Ok(replay.state().log_time())
        }
    }
}

/// The archive in these directories, with nothing kept apart.
#[cfg(test)]
pub(super) fn read(
    dirs: &[PathBuf],
    from: Option<PastPoint>,
    to: Option<PastPoint>,
) -> Result<Reading, Failure> {
    let source = open(dirs)?;
    read_in(&source, from, to, &Detail::default(), Watchers::default())
}

/// The archive in these directories.
#[cfg(test)]
pub(crate) fn open(dirs: &[PathBuf]) -> Result<LogSource, Failure> {
    SourceArgs { archive: dirs.to_vec(), tail: false }.open_at_hand()
}

/// Who looks at the state on its way, next to the ledger.
#[derive(Default)]
pub(super) struct Watchers<'a> {
    pub(super) fairness: Option<&'a mut Fairness>,
    pub(super) reasons: Option<&'a mut IdleReasons>,
    pub(super) waits: Option<&'a mut WaitReasons>,
    pub(super) turns: Option<&'a mut TurnCheck>,
    pub(super) steps: Option<&'a mut StepTimes>,
    pub(super) predictions: Option<&'a mut PredictionCheck>,
    /// Where the ledger is kept until the next report; not together with those above, who have to see the whole span.
    pub(super) kept: Option<&'a Path>,
    /// Who is told how far it is.
    pub(super) console: Option<&'a Console>,
}

impl<'a> Watchers<'a> {
    /// Nobody but who is told how far it is.
    pub(super) fn told(console: &'a Console) -> Watchers<'a> {
        Watchers { console: Some(console), ..Watchers::default() }
    }
}

/// What a log says of a span, with more kept apart.
pub(super) fn read_in(
    source: &LogSource,
    from: Option<PastPoint>,
    to: Option<PastPoint>,
    detail: &Detail,
    watchers: Watchers<'_>,
) -> Result<Reading, Failure> {
    let archive = &source.archive;
    let summary = archive.summary();
    let from = from.map(|point| time_of(archive, point)).transpose()?;
    let to = to.map(|point| time_of(archive, point)).transpose()?;
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Failure::usage("--from has to be before --to"));
    }
    let mut reading = Reading {
        views: Vec::new(),
        jobs: Vec::new(),
        from: LogTime(0),
        to: summary.last_time,
        first: summary.first.unwrap_or_default(),
        last: summary.last.unwrap_or_default(),
        missing: Vec::new(),
        notes: source.notes.clone(),
    };
    let begun = reading.charge(archive, (from, to), detail, watchers)?;
    reading.bound(begun, from, to);
    Ok(reading)
}

impl Reading {
    /// Charges every part without a gap; the time of the first state or record.
    fn charge(
        &mut self,
        archive: &Archive,
        (from, until): (Option<LogTime>, Option<LogTime>),
        detail: &Detail,
        mut watchers: Watchers<'_>,
    ) -> Result<Option<LogTime>, Failure> {
        let last = self.last;
        let start = from.map_or(PastPoint::Index(LogIndex::ZERO), PastPoint::Time);
        let window = Window { from: from.unwrap_or_default(), until };
        let resumed = match watchers.kept {
            Some(path) => ledger_file::read(path, archive, window, detail.jobs)?,
            None => None,
        };
        let (mut begun, mut known, mut since) = (None, None, LogTime(0));
        let mut next = match (resumed, start) {
            (Some(resumed), _) => {
                (begun, known) = (Some(resumed.begun), Some(resumed.ledger));
                Ok(resumed.replay)
            }
            (None, PastPoint::Time(_)) => archive.replay(start, None).map(|(replay, _)| replay),
            (None, PastPoint::Index(_)) => Ok(Replay::founding()),
        };
        let kept_at = known.as_ref().map(Ledger::log_index);
        loop {
            let mut replay = match next {
                Ok(replay) => replay,
                Err(ArchiveError::Missing { from, to }) => {
                    match self.behind(archive, Gap { from, to }, since)? {
                        Some(replay) => replay,
                        None => return Ok(begun),
                    }
                }
                Err(error) => return Err(archive_failure(&error)),
            };
            let begin = || Ledger::begin_with(replay.state(), window, detail.clone());
            let ledger = known.take().unwrap_or_else(begin);
            let mut fairness = watchers.fairness.as_deref_mut();
            if let Some(fairness) = &mut fairness {
                fairness.begin(replay.state(), window);
            }
            let mut reasons = watchers.reasons.as_deref_mut();
            if let Some(reasons) = &mut reasons {
                reasons.begin();
            }
            let mut waits = watchers.waits.as_deref_mut();
            if let Some(waits) = &mut waits {
                waits.begin();
            }
            let turns = watchers.turns.as_deref_mut();
            let mut steps = watchers.steps.as_deref_mut();
            if let Some(steps) = &mut steps {
                steps.begin(window);
            }
            let mut predictions = watchers.predictions.as_deref_mut();
            if let Some(predictions) = &mut predictions {
                predictions.begin();
            }
            let told = watchers.console.map(|console| ReadProgress { console, at: Instant::now(), last });
            let (ended, error, first) = (detail.jobs.then(Vec::new), None, None);
            let mut charger = Charger {
                ledger,
                fairness,
                reasons,
                waits,
                turns,
                steps,
                predictions,
                ended,
                error,
                first,
                told,
            };
            let is_founding = replay.state().log_index() == LogIndex::ZERO;
            let begins = replay.state().log_time();
            let followed = archive.follow(&mut replay, &mut charger);
            begun = begun.or(if is_founding { charger.first } else { Some(begins) });
            if let Some(error) = charger.error {
                return Err(Failure::new(Exit::Failed, error.to_string()));
            }
            let time = charger.ledger.log_time();
            self.views.push(charger.ledger.view(time));
            since = time;
            if let Some(ended) = charger.ended {
                let open = replay.state().jobs().iter().filter_map(|(job, _)| charger.ledger.totals(*job));
                self.jobs.extend(ended.into_iter().chain(open.filter(|totals| !totals.waited.is_empty())));
            }
            match followed {
                Ok(()) => {
                    // What begins behind a gap is not the ledger of the span; and a log that has nothing more leaves the file as
                    // it is.
                    let is_news = kept_at != Some(charger.ledger.log_index());
                    if let Some(path) = watchers.kept.filter(|_| is_news && self.missing.is_empty()) {
                        let of = (begun.unwrap_or_default(), detail.jobs);
                        ledger_file::write(path, &charger.ledger, replay.state(), of)?;
                    }
                    return Ok(begun);
                }
                Err(error) => next = Err(error),
            }
        }
    }

    /// The first state behind a gap, which is noted; none where there is no base behind it.
    fn behind(&mut self, archive: &Archive, records: Gap, since: LogTime) -> Result<Option<Replay>, Failure> {
        let Some(base) = archive.base_with(records.to.max(records.from)) else {
            self.missing.push(MissingSpan { records, since, until: None });
            return Ok(None);
        };
        let at = PastPoint::Index(base.log_index);
        let (replay, _) = archive.replay(at, None).map_err(|error| archive_failure(&error))?;
        self.missing.push(MissingSpan { records, since, until: Some(replay.state().log_time()) });
        Ok(Some(replay))
    }

    /// The span that was asked for, as far as the log reaches.
    fn bound(&mut self, begun: Option<LogTime>, from: Option<LogTime>, to: Option<LogTime>) {
        let (first, last) = (begun.unwrap_or_default(), self.to);
        self.from = from.unwrap_or(first).max(first);
        let is_behind = from.is_some_and(|from| from >= last);
        if is_behind || to.is_some_and(|to| to <= first) {
            let reach = if is_behind { format!("ends at {last}") } else { format!("begins at {first}") };
            self.notes.push(format!(
                "nothing of the span is in the log, which {reach} and has records {} to {}",
                self.first, self.last
            ));
            // The span stays as it was asked for.
            self.to = to.unwrap_or(self.from).max(self.from);
            return;
        }
        if from.is_some_and(|from| from < first) {
            self.notes.push(format!("the log begins at {first}: nothing is charged before it"));
        }
        match to {
            Some(to) if to > last => {
                self.notes.push(format!("the log ends at {last}: nothing is charged behind it"));
            }
            Some(to) => self.to = to,
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
pub(crate) mod tests;
