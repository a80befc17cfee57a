//! Checking an archive from front to end.

use muster_state::Sequence;
use muster_types::{LogIndex, PastPoint};

use crate::archive::Archive;
use crate::catalog::{BaseName, Gap, SegmentName, Stretch};
use crate::error::ArchiveError;
use crate::floor::Floor;
use crate::record::RaftPosition;
use crate::replay::Replay;
use crate::segment::{Segment, Start};

/// What was found of one segment.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    /// Which.
    pub name: SegmentName,
    /// Records that were read from it.
    pub records: u64,
    /// What is wrong with it; none when nothing is.
    pub problem: Option<String>,
}

/// What was found of an archive.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Segment by segment.
    pub segments: Vec<SegmentReport>,
    /// Records that are missing.
    pub gaps: Vec<Gap>,
    /// Up to where records were given to another store, which was not read.
    pub floor: Option<Floor>,
    /// Records whose checksums and places hold.
    pub records: u64,
    /// Digests of the leader that a replay came to as well.
    pub digests_compared: u64,
    /// Bases that are intact and what the replay came to.
    pub bases_good: u64,
    /// What is wrong, in addition to the reports of the segments.
    pub problems: Vec<String>,
    /// The last record that a replay from an intact beginning reached, and the state's digest there.
    pub replayed: Option<(LogIndex, u64)>,
}

impl Report {
    /// Whether nothing is wrong and nothing is missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.gaps.is_empty() && self.problems.is_empty() && self.segments.iter().all(|s| s.problem.is_none())
    }
}

/// Where a verification is.
struct Walk<'a> {
    archive: &'a Archive,
    report: Report,
    /// What the next segment has to be chained to.
    previous: Option<(RaftPosition, u32)>,
    /// None while the state is not known.
    replay: Option<Replay>,
    bases: std::iter::Peekable<std::vec::IntoIter<BaseName>>,
}

/// With its causes.
fn text(error: &ArchiveError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Archive {
    /// Reads everything, holds every checksum and every chain, and replays the whole log against the
    /// digests in it. Tells of each segment as it is done; goes on as long as that says true.
    pub fn verify(&self, mut done: impl FnMut(&SegmentReport) -> bool) -> Report {
        let summary = self.summary();
        // What was given away may be read along.
        let is_below =
            |floor: &Floor| summary.first.is_none_or(|first| first > LogIndex(1).max(floor.through));
        let floor = summary.floor.clone().filter(is_below);
        let report = Report { gaps: summary.gaps, floor, ..Report::default() };
        let bases = self.bases().into_iter().peekable();
        let mut walk =
            Walk { archive: self, report, previous: None, replay: Some(Replay::founding()), bases };
        for stretch in self.stretches() {
            let mut records = 0;
            let problem = walk.segment(&stretch, &mut records).err();
            let failed = problem.is_some();
            let of_segment = SegmentReport { name: stretch.name, records, problem };
            let go_on = done(&of_segment);
            walk.report.records += records;
            walk.report.segments.push(of_segment);
            if failed {
                (walk.replay, walk.previous) = (None, None);
            }
            if !go_on {
                walk.report.problems.push("the verification was broken off".to_owned());
                break;
            }
        }
        if let Some(replay) = &walk.replay {
            walk.report.digests_compared += replay.digests_compared();
            walk.report.replayed = Some((replay.state().log_index(), replay.state().digest()));
        }
        walk.report
    }
}

impl Walk<'_> {
    fn segment(&mut self, stretch: &Stretch, records: &mut u64) -> Result<(), String> {
        let segment = self.archive.segment(&stretch.name).map_err(|error| text(&error))?;
        self.check_chain(&segment)?;
        self.find_state(&segment);
        let mut place = segment.header.from;
        for round in &segment.rounds {
            place.step(round).map_err(|error| text(&error))?;
            self.replay_round(round, stretch)?;
        }
        *records = segment.records;
        place.next_raft = segment.end.place.next_raft;
        if place != segment.end.place {
            return Err("its rounds do not lead to the place at its end".to_owned());
        }
        self.previous = Some((segment.end.place, segment.end.checksum));
        Ok(())
    }

    fn check_chain(&mut self, segment: &Segment) -> Result<(), String> {
        let header = &segment.header;
        match (header.start, self.previous.take()) {
            (Start::Founding, _) if header.from.sequence == Sequence::default() => Ok(()),
            (Start::Founding, _) => {
                Err("it claims to be the first, but does not begin at record 1".to_owned())
            }
            (Start::Follows, Some((end, checksum))) => {
                let fits = end.sequence == header.from.sequence && end.next_raft <= header.from.next_raft;
                if checksum == header.previous && fits {
                    Ok(())
                } else {
                    Err("it does not follow the segment before it; one of the two was exchanged".to_owned())
                }
            }
            // The one before is missing or damaged, and was said.
            (Start::Follows, None) | (Start::Gap, _) => {
                self.give_up_replay();
                Ok(())
            }
        }
    }

    fn give_up_replay(&mut self) {
        if let Some(replay) = self.replay.take() {
            self.report.digests_compared += replay.digests_compared();
        }
    }

    /// Begins with the first base at the front of a segment or within it, when the state is not known.
    fn find_state(&mut self, segment: &Segment) {
        let at = segment.header.from.sequence.log_index;
        let end = segment.end.place.sequence.log_index;
        if self.replay.as_ref().is_some_and(|replay| replay.state().log_index() == at) {
            return;
        }
        self.give_up_replay();
        while self.bases.next_if(|base| base.log_index < at).is_some() {}
        if let Some(base) = self.bases.next_if(|base| base.log_index <= end) {
            match self.archive.restore(&base) {
                Ok(replay) => {
                    self.report.bases_good += 1;
                    self.replay = Some(replay);
                }
                Err(error) => self.report.problems.push(text(&error)),
            }
        }
    }

    fn replay_round(
        &mut self,
        round: &crate::record::ArchivedRound,
        stretch: &Stretch,
    ) -> Result<(), String> {
        let Some(replay) = &mut self.replay else { return Ok(()) };
        loop {
            let base = self.bases.peek().filter(|base| base.log_index <= stretch.to).copied();
            let until = base.map(|base| PastPoint::Index(base.log_index));
            let reached = replay.apply(round, until).map_err(|error| text(&error))?;
            if !reached {
                return Ok(());
            }
            self.bases.next();
            let Some(base) = base else { return Ok(()) };
            match self.archive.check_base(&base) {
                Ok(digest) if digest == replay.state().digest() => self.report.bases_good += 1,
                Ok(digest) => self.report.problems.push(format!(
                    "{:?} has digest {digest:016x}, a replay of the log comes to {:016x}",
                    base.object(),
                    replay.state().digest()
                )),
                Err(error) => self.report.problems.push(text(&error)),
            }
        }
    }
}
