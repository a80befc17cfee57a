//! Placements that were read from the log for a range, kept for those who ask for more or less the same: a page that is loaded
//! again reads what came since.
//!
//! **Invariant:** a range that is read on from what is kept has the placements that it has if all of it is read again.
//! **Invariant:** what is kept is bounded, in ranges and in placements; the account that has the most of it has its oldest replaced.

use muster_engine::{LogPosition, RecordVisitor};
use muster_journal::Decision;
use muster_state::State as Applied;
use muster_types::{LogIndex, LogTime};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::time::Instant;

use crate::shares::Account;

use super::placements::{Held, Placements};

/// Ranges that are kept, and parts of placements of all of them: some 15 MiB.
const FOLDS_MAX: usize = 8;
const PARTS_MAX: usize = 100_000;

/// Where the records of a range begin. A later generation of the cluster may have others behind the same position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) generation: u32,
    pub(super) next: LogIndex,
}

/// Placements from a beginning on, as far as records were read.
pub(super) struct Fold {
    /// Who asked for it first: those who read on in it do not let go of it for another one of theirs.
    account: Account,
    begin: Beginning,
    placements: Placements,
    records: usize,
    records_max: usize,
    /// When the last record was decided that was read.
    reached: Option<LogTime>,
    /// Where to read on.
    position: Option<LogPosition>,
}

impl Fold {
    /// What there was at the beginning, with space for this number of parts of placements and of records.
    pub(super) fn new(
        (account, begin): (Account, Beginning),
        first: Option<&Applied>,
        (parts_max, records_max): (usize, usize),
    ) -> Fold {
        let mut placements = Placements::new(parts_max);
        if let Some(state) = first {
            placements.begin(state);
        }
        Fold { account, begin, placements, records: 0, records_max, reached: None, position: None }
    }

    /// The next record, and where to read on if that is known.
    pub(super) fn next(&self) -> (LogIndex, Option<&LogPosition>) {
        let position = self.position.as_ref();
        (position.map_or(self.begin.next, LogPosition::log_index), position)
    }

    pub(super) fn set_position(&mut self, position: LogPosition) {
        self.position = Some(position);
    }

    pub(super) fn reached(&self) -> Option<LogTime> {
        self.reached
    }

    /// Whether there are as many placements as may be kept.
    pub(super) fn is_full(&self) -> bool {
        self.placements.is_full()
    }

    /// The placements up to a time.
    pub(super) fn held(&self, end: LogTime) -> Vec<Held> {
        self.placements.up_to(end)
    }
}

/// Reads the records of a range.
pub(super) struct RangeReader {
    pub(super) fold: Fold,
    pub(super) to: LogTime,
    /// When it leaves the rest to those who read on. Each reads one record at least.
    pub(super) deadline: Instant,
    /// Records that it has read.
    pub(super) records: usize,
    /// Whether the range has more than is read for a page.
    pub(super) is_cut: bool,
    /// Whether its time was over before the range was.
    pub(super) is_late: bool,
}

impl RangeReader {
    /// Reads on to the end of a range, or until its time is over.
    pub(super) fn new(fold: Fold, to: LogTime, deadline: Instant) -> RangeReader {
        RangeReader { fold, to, deadline, records: 0, is_cut: false, is_late: false }
    }
}

impl RecordVisitor for RangeReader {
    fn visit(&mut self, _: LogIndex, log_time: LogTime, decision: &Decision) -> ControlFlow<()> {
        let fold = &mut self.fold;
        if log_time > self.to {
            return ControlFlow::Break(());
        }
        // What is placed behind the last one is left out.
        if fold.is_full() || fold.records >= fold.records_max {
            self.is_cut = true;
            return ControlFlow::Break(());
        }
        if self.records > 0 && Instant::now() >= self.deadline {
            self.is_late = true;
            return ControlFlow::Break(());
        }
        self.records += 1;
        fold.placements.apply(log_time, decision);
        fold.records += 1;
        fold.reached = Some(log_time);
        ControlFlow::Continue(())
    }
}

/// What is kept. Clones share it.
#[derive(Clone, Default)]
pub(in crate::web) struct Folds(Arc<Mutex<VecDeque<Fold>>>);

impl Folds {
    /// Takes out the one that has come furthest from a beginning on, and not behind the end of a range. Those who ask meanwhile
    /// begin again.
    pub(super) fn take(&self, begin: Beginning, to: LogTime) -> Option<Fold> {
        let mut kept = self.0.lock();
        let serves = |fold: &Fold| fold.begin == begin && fold.reached.is_none_or(|reached| reached <= to);
        let serving = kept.iter().enumerate().filter(|(_, fold)| serves(fold));
        let (at, _) = serving.max_by_key(|(_, fold)| fold.records)?;
        kept.remove(at)
    }

    /// Keeps one for those who ask next.
    pub(super) fn put(&self, fold: Fold) {
        let mut kept = self.0.lock();
        kept.retain(|other| (other.begin, other.records) != (fold.begin, fold.records));
        kept.push_back(fold);
        while kept.len() > FOLDS_MAX {
            let_go(&mut kept, |_| 1);
        }
        let parts = |fold: &Fold| fold.placements.count();
        while kept.len() > 1 && kept.iter().map(parts).sum::<usize>() > PARTS_MAX {
            let_go(&mut kept, parts);
        }
    }
}

/// Lets go of the oldest one of the account whose have the most weight together, but not of the newest.
fn let_go(kept: &mut VecDeque<Fold>, weight: impl Fn(&Fold) -> usize) {
    let mut weights: HashMap<Account, usize> = HashMap::new();
    for fold in kept.iter() {
        *weights.entry(fold.account).or_default() += weight(fold);
    }
    let others = kept.iter().enumerate().take(kept.len().saturating_sub(1));
    let heaviest = others.max_by_key(|(place, fold)| (weights.get(&fold.account).copied(), Reverse(*place)));
    if let Some(place) = heaviest.map(|(place, _)| place) {
        kept.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_journal::{Outcome, WorkerSlot};
    use muster_transport::ShortName;
    use muster_types::{DeviceSet, JobId, NodeId};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(600);
    const BEGIN: Beginning = Beginning { generation: 1, next: LogIndex(1) };

    fn account(name: &str) -> Account {
        Account::Tenant(ShortName::new(name).expect("a name"))
    }

    fn begun(begin: Beginning, bounds: (usize, usize)) -> Fold {
        Fold::new((account("lab"), begin), None, bounds)
    }

    /// A log in which jobs are placed and end, some records at the same time.
    fn log() -> Vec<(LogTime, Decision)> {
        let slot = |node| WorkerSlot { node: NodeId(node), incarnation: 1, devices: DeviceSet(3) };
        let record = |number: u64| {
            let decision = match number % 3 {
                0 => Decision::JobFinished { job: JobId(number - 2), outcome: Outcome::Succeeded },
                2 if number.is_multiple_of(2) => {
                    Decision::JobRequeued { job: JobId(number - 1), failed: true }
                }
                2 => Decision::GangPlaced { job: JobId(number - 1), workers: [slot(3)].into() },
                _ => Decision::GangPlaced { job: JobId(number), workers: [slot(1), slot(2)].into() },
            };
            (LogTime(number / 2 * 10), decision)
        };
        (1..=60).map(record).collect()
    }

    /// Reads on to the end of a range, as far as that goes; the placements up to then and whether there are more.
    fn read(fold: Fold, log: &[(LogTime, Decision)], to: LogTime) -> (Fold, Vec<Held>, bool) {
        let from = fold.records;
        let mut reader = RangeReader::new(fold, to, Instant::now() + LONG);
        for (place, (at, decision)) in log.iter().enumerate().skip(from) {
            if reader.visit(LogIndex(place as u64 + 1), *at, decision).is_break() {
                break;
            }
        }
        let RangeReader { fold, is_cut, .. } = reader;
        let cut = is_cut || fold.is_full();
        let held = fold.held(if cut { fold.reached().unwrap_or(to) } else { to });
        (fold, held, cut)
    }

    #[test]
    fn a_range_that_is_read_on_is_as_one_that_is_read_again() {
        let log = log();
        for bounds in [(1_000, 1_000), (1_000, 25), (17, 1_000)] {
            let fresh = |to| {
                let (_, held, cut) = read(begun(BEGIN, bounds), &log, to);
                (held, cut)
            };
            for step in [1, 3, 7, 100] {
                let mut fold = begun(BEGIN, bounds);
                for to in (0..400).step_by(step * 5).map(LogTime) {
                    let (read, held, cut) = read(fold, &log, to);
                    assert_eq!((held, cut), fresh(to), "up to {to} in steps of {step} within {bounds:?}");
                    fold = read;
                }
            }
        }
    }

    #[test]
    fn a_reader_whose_time_is_over_reads_a_record_and_leaves_the_rest_to_the_next() {
        let (log, bounds, to) = (log(), (1_000, 1_000), LogTime(1_000));
        let (_, whole, _) = read(begun(BEGIN, bounds), &log, to);
        let mut fold = begun(BEGIN, bounds);
        for (place, (at, decision)) in log.iter().enumerate() {
            let mut reader = RangeReader::new(fold, to, Instant::now());
            assert!(reader.visit(LogIndex(place as u64 + 1), *at, decision).is_continue());
            if let Some((at, next)) = log.get(place + 1) {
                assert!(reader.visit(LogIndex(place as u64 + 2), *at, next).is_break());
                assert!(reader.is_late && !reader.is_cut);
            }
            assert_eq!((reader.records, reader.fold.records), (1, place + 1));
            fold = reader.fold;
        }
        assert_eq!(fold.held(to), whole);
    }

    #[test]
    fn what_is_kept_serves_ranges_that_end_behind_it() {
        let (log, folds, bounds) = (log(), Folds::default(), (1_000, 1_000));
        let upto = |to| read(begun(BEGIN, bounds), &log, LogTime(to)).0;
        let near = upto(50).records;
        assert!(near < upto(150).records);
        folds.put(upto(150));
        folds.put(upto(50));
        assert!(folds.take(Beginning { generation: 2, ..BEGIN }, LogTime(500)).is_none());
        assert!(folds.take(Beginning { next: LogIndex(2), ..BEGIN }, LogTime(500)).is_none());
        assert!(folds.take(BEGIN, LogTime(40)).is_none(), "it would have ends from behind the range");
        let taken = folds.take(BEGIN, LogTime(149)).expect("the nearer one");
        assert_eq!(taken.records, near);
        folds.put(taken);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (log, folds) = (log(), Folds::default());
        for number in 1..=100 {
            let begin = Beginning { next: LogIndex(number), ..BEGIN };
            folds.put(read(begun(begin, (1_000, 1_000)), &log, LogTime(1_000)).0);
        }
        let kept = folds.0.lock();
        assert_eq!(kept.len(), FOLDS_MAX);
        assert!(kept.iter().map(|fold| fold.placements.count()).sum::<usize>() <= PARTS_MAX);
    }

    #[test]
    fn an_account_that_asks_for_many_ranges_lets_go_of_its_own() {
        let (log, folds) = (log(), Folds::default());
        let asks = |name: &str, number: u64, to: u64| {
            let begin = Beginning { next: LogIndex(number), ..BEGIN };
            let known = folds.take(begin, LogTime(to));
            let fold = known.unwrap_or_else(|| Fold::new((account(name), begin), None, (1_000, 1_000)));
            folds.put(read(fold, &log, LogTime(to)).0);
        };
        let kept = || {
            let mut kept: Vec<u64> = folds.0.lock().iter().map(|fold| fold.begin.next.0).collect();
            kept.sort_unstable();
            kept
        };
        asks("quiet", 1, 100);
        asks("quiet", 2, 100);
        // Those that others began are read on, and stay theirs.
        asks("loud", 1, 200);
        for number in 3..=50 {
            asks("loud", number, 100);
        }
        assert_eq!(kept(), [1, 2, 45, 46, 47, 48, 49, 50]);
        asks("other", 60, 100);
        assert_eq!(kept(), [1, 2, 46, 47, 48, 49, 50, 60], "who comes next has a place");
    }
}
