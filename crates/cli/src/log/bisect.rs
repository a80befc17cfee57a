//! `muster log bisect`: the first record behind which a condition fails, by binary search over states of the past.

use clap::Args;
use muster_archive::{Archive, Replay, content, summary};
use muster_console::{Console, Document, Exit, Failure, Global, one_line};
use muster_state::{Phase, State};
use muster_types::{JobId, LogIndex, Name, PastPoint};
use serde::Serialize;
use std::sync::Arc;

use super::archive::failure;
use super::source::SourceArgs;
use super::time;
use crate::told::told_while;

/// Digests that one check may have.
const DIGESTS_MAX: usize = 1_024;
const FORMS: &str = "expected `job-phase JOB pending|starting|running|stopping`, `free TYPE REGION >= N`, `invariants`, or \
                     `digest INDEX DIGEST`, which may have more pairs; commas may stand for the spaces";

/// Options of `muster log bisect`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster log bisect --check 'job-phase job-3f0 pending'                  the record with which a job stopped being pending
  muster log bisect --check 'free h100 eu-west >= 64' --from 4711 --archive /var/lib/muster/replica-1 --tail
  muster log bisect --check invariants --archive /backup/archive
  muster log bisect --check 'digest 1000 00c1f0a2b3d4e5f6 2000 9a01c1f0a2b3d4e5' --archive /backup/archive

The check has to hold at --from and to fail at --to. The search looks at about as many states as the number of records has
binary digits, each rebuilt from the nearest base. It takes for granted that the check fails from some record on: where it
fails, holds again and fails again, one of these records is found. `job-phase` holds in that phase and before it, and `free`
counts accelerators on nodes that take work. Of digests the first pair is found that is not that of the log.

Exit code 1 when a record is found, 0 when the check holds at the end too.")]
pub struct BisectArgs {
    /// The condition
    #[arg(long, value_name = "CHECK", value_parser = check)]
    check: Check,
    #[command(flatten)]
    source: SourceArgs,
    /// A record behind which the check holds [default: the first]
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,
    /// A record behind which it fails [default: the last]
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
}

/// A condition on a state, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    text: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// The job has come no further than this.
    Phase { job: JobId, stage: Stage },
    /// At least this many accelerators are free on nodes that take work.
    Free { kind: Name, region: Name, devices: u64 },
    /// Everything that holds of every state.
    Invariants,
    /// The state at each of these records has this digest.
    Digests(Vec<(LogIndex, u64)>),
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Pending,
    Starting,
    Running,
    Stopping,
    Over,
}

impl Stage {
    fn of(phase: &Phase) -> Stage {
        match phase {
            Phase::Pending => Stage::Pending,
            Phase::Starting => Stage::Starting,
            Phase::Running => Stage::Running,
            Phase::Stopping(_) => Stage::Stopping,
            Phase::Finished(_) => Stage::Over,
        }
    }

    fn parse(text: &str) -> Option<Stage> {
        let stages = [Stage::Pending, Stage::Starting, Stage::Running, Stage::Stopping];
        stages.into_iter().find(|stage| stage.as_str() == text)
    }

    fn as_str(self) -> &'static str {
        match self {
            Stage::Pending => "pending",
            Stage::Starting => "starting",
            Stage::Running => "running",
            Stage::Stopping => "stopping",
            Stage::Over => "over",
        }
    }
}

fn check(text: &str) -> Result<Check, String> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let forms = || FORMS.to_owned();
    let name = |word: &str| Name::new(word).ok_or_else(forms);
    let condition = match words.as_slice() {
        ["job-phase", job, phase] => {
            let job = job.parse::<JobId>().map_err(|_| forms())?;
            Condition::Phase { job, stage: Stage::parse(phase).ok_or_else(forms)? }
        }
        ["free", kind, region, ">=", devices] | ["free", kind, region, devices] => {
            let devices = devices.parse::<u64>().map_err(|_| forms())?;
            Condition::Free { kind: name(kind)?, region: name(region)?, devices }
        }
        ["invariants"] => Condition::Invariants,
        ["digest", pairs @ ..] if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            Condition::Digests(digests(pairs)?)
        }
        _ => return Err(forms()),
    };
    Ok(Check { text: words.join(" "), condition })
}

fn digests(words: &[&str]) -> Result<Vec<(LogIndex, u64)>, String> {
    let mut pairs = Vec::new();
    for pair in words.chunks_exact(2) {
        let [index, digest] = pair else { continue };
        let index = index.parse::<u64>().ok().filter(|index| *index > 0).ok_or_else(|| FORMS.to_owned())?;
        let digest = u64::from_str_radix(digest, 16).map_err(|_| FORMS.to_owned())?;
        pairs.push((LogIndex(index), digest));
    }
    if pairs.len() > DIGESTS_MAX {
        return Err(format!("at most {DIGESTS_MAX} digests at a time"));
    }
    pairs.sort_unstable();
    pairs.dedup();
    // Of two digests of one record, one would never be compared.
    let next = pairs.iter().skip(1);
    let twice = pairs.iter().zip(next).find(|(one, other)| one.0 == other.0).map(|(one, _)| one.0);
    match twice {
        Some(at) => Err(format!("record {at} has two digests that differ; name one of them")),
        None => Ok(pairs),
    }
}

impl Condition {
    /// Why it fails of the state behind a record; none where it holds.
    fn fails(&self, state: &State) -> Option<String> {
        match self {
            Condition::Phase { job, stage } => {
                // One that is not there yet is before every phase.
                let found = Stage::of(&state.job(*job)?.phase);
                (found > *stage).then(|| format!("job {job} is {}", found.as_str()))
            }
            Condition::Free { kind, region, devices } => {
                let of =
                    state.pools().filter(|(key, _)| key.kind.as_ref() == Some(kind) && key.region == *region);
                let milli: u64 = of.map(|(_, pool)| pool.free_milli).sum();
                (milli < devices.saturating_mul(1_000))
                    .then(|| format!("{}.{:03} {kind} are free in {region}", milli / 1_000, milli % 1_000))
            }
            Condition::Invariants => state.verify().err().map(|broken| broken.0),
            Condition::Digests(pairs) => {
                let index = state.log_index();
                let (_, digest) = pairs.iter().find(|(at, _)| *at == index)?;
                let found = state.digest();
                (found != *digest).then(|| format!("the digest at record {index} is {found:016x}"))
            }
        }
    }

    /// A record that it names and that is not between two others.
    fn outside(&self, first: LogIndex, last: LogIndex) -> Option<LogIndex> {
        let Condition::Digests(pairs) = self else { return None };
        pairs.iter().map(|(at, _)| *at).find(|at| *at < first || last < *at)
    }

    /// The records behind which it is looked at: all between two, or those that it names.
    fn positions(&self, first: LogIndex, last: LogIndex) -> Positions {
        match self {
            Condition::Digests(pairs) => {
                let within = pairs.iter().map(|(at, _)| *at).filter(|at| first <= *at && *at <= last);
                let mut listed: Vec<LogIndex> = within.collect();
                listed.dedup();
                Positions::Listed(listed)
            }
            _ => Positions::Span(first, last),
        }
    }
}

/// Records in their order.
enum Positions {
    Span(LogIndex, LogIndex),
    Listed(Vec<LogIndex>),
}

impl Positions {
    fn count(&self) -> u64 {
        match self {
            Positions::Span(first, last) => (last.0 + 1).saturating_sub(first.0),
            Positions::Listed(listed) => listed.len() as u64,
        }
    }

    fn at(&self, place: u64) -> LogIndex {
        match self {
            Positions::Span(first, _) => LogIndex(first.0.saturating_add(place)),
            Positions::Listed(listed) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                listed.get(place).copied().unwrap_or_default()
            }
        }
    }
}

/// What a search has found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Finding {
    /// The last record that was looked at behind which the check holds; none where it fails at the first.
    holds: Option<LogIndex>,
    /// The first one behind which it fails, and why; none where it holds at the end.
    fails: Option<(LogIndex, String)>,
    /// How many states were looked at.
    states: u64,
}

/// Looks at states, and goes on from the last one where the check held.
struct Search<'a> {
    archive: &'a Archive,
    condition: &'a Condition,
    good: Option<Replay>,
    states: u64,
}

impl Search<'_> {
    fn fails(&mut self, at: LogIndex) -> Result<Option<String>, Failure> {
        let replayed = self.archive.replay(PastPoint::Index(at), self.good.clone());
        let (replay, reached) = replayed.map_err(|error| failure(&error))?;
        if !reached {
            let last = replay.state().log_index();
            return Err(Failure::new(Exit::NotFound, format!("the log ends at record {last}, before {at}")));
        }
        self.states += 1;
        let fails = self.condition.fails(replay.state());
        if fails.is_none() {
            self.good = Some(replay);
        }
        Ok(fails)
    }
}

fn search(archive: &Archive, condition: &Condition, positions: &Positions) -> Result<Finding, Failure> {
    let Some(end) = positions.count().checked_sub(1) else {
        return Err(Failure::usage("there is no record between --from and --to that the check is about"));
    };
    let mut search = Search { archive, condition, good: None, states: 0 };
    if let Some(reason) = search.fails(positions.at(0))? {
        return Ok(Finding { holds: None, fails: Some((positions.at(0), reason)), states: search.states });
    }
    let first = search.good.clone();
    let Some(mut reason) = search.fails(positions.at(end))? else {
        job_is_there(condition, search.good.as_ref())?;
        return Ok(Finding { holds: Some(positions.at(end)), fails: None, states: search.states });
    };
    search.good = first;
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match search.fails(positions.at(middle))? {
            None => low = middle,
            Some(found) => (high, reason) = (middle, found),
        }
    }
    let (holds, fails) = (positions.at(low), positions.at(high));
    Ok(Finding { holds: Some(holds), fails: Some((fails, reason)), states: search.states })
}

/// A job that is not there at the end says nothing: it may have been forgotten.
fn job_is_there(condition: &Condition, end: Option<&Replay>) -> Result<(), Failure> {
    let (Condition::Phase { job, .. }, Some(end)) = (condition, end) else { return Ok(()) };
    if end.state().job(*job).is_some() {
        return Ok(());
    }
    let text = format!("job {job} is not in the state behind record {}", end.state().log_index());
    Err(Failure::new(Exit::NotFound, text)
        .with_next("name a --to at which it is there: jobs are forgotten some time after their end"))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BisectionView {
    check: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    holds_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fails_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_time: Option<String>,
    states: u64,
    notes: Vec<String>,
}

/// `muster log bisect`.
pub async fn run(global: &Global, console: &Console, args: &BisectArgs) -> Result<Exit, Failure> {
    let source = args.source.open(global, console).await?;
    let summary = source.archive.summary();
    let first = args.from.map(LogIndex).or(summary.first).unwrap_or_default();
    let last = args.to.map(LogIndex).or(summary.last).unwrap_or_default();
    if first > last {
        return Err(Failure::usage("--from has to be before --to"));
    }
    let Check { text, condition } = &args.check;
    if let Some(at) = condition.outside(first, last) {
        let text =
            format!("the check has a digest of record {at}, and the span has records {first} to {last}");
        return Err(Failure::new(Exit::NotFound, text)
            .with_next("leave that digest out, or name a --from and a --to that it is between"));
    }
    let positions = condition.positions(first, last);
    let found =
        told_while(console, "looking for the record", || search(&source.archive, condition, &positions))?;
    if let Finding { holds: None, fails: Some((at, reason)), .. } = &found {
        let text = format!("the check fails behind record {at} already: {reason}");
        return Err(Failure::new(Exit::Failed, text).with_next("name a --from behind which it holds"));
    }
    let mut view = BisectionView {
        check: text.clone(),
        holds_at: found.holds.map(|index| index.0),
        fails_at: found.fails.as_ref().map(|(index, _)| index.0),
        reason: found.fails.as_ref().map(|(_, reason)| reason.clone()),
        decision: None,
        summary: None,
        log_time: None,
        states: found.states,
        notes: source.notes.clone(),
    };
    if let Some((index, _)) = &found.fails {
        describe(&source.archive, *index, &mut view)?;
    }
    show(console, &view)?;
    Ok(if view.fails_at.is_some() { Exit::Failed } else { Exit::Ok })
}

/// What the record is that was found.
fn describe(archive: &Arc<Archive>, index: LogIndex, view: &mut BisectionView) -> Result<(), Failure> {
    let Some(record) = archive.records(index, index).next() else { return Ok(()) };
    let record = record.map_err(|error| failure(&error))?;
    view.decision = Some(record.decision.name().to_owned());
    view.summary = Some(summary(&content(&record.decision)));
    view.log_time = time(record.log_time.0);
    Ok(())
}

fn show(console: &Console, view: &BisectionView) -> Result<(), Failure> {
    if console.is_structured() {
        return console.object(&Document::new("Bisection", view.fails_at, view));
    }
    let holds = view.holds_at.unwrap_or_default();
    match (view.fails_at, &view.reason) {
        (Some(fails), Some(reason)) => {
            console
                .line(&format!("record {fails} is the first behind which it fails: {}", one_line(reason)))?;
            let (decision, text) =
                (view.decision.as_deref().unwrap_or("-"), view.summary.as_deref().unwrap_or(""));
            console.line(&format!("decision  {} {}", one_line(decision), one_line(text)))?;
            console.line(&format!("decided   {}", view.log_time.as_deref().unwrap_or("-")))?;
            console
                .line(&format!("it holds behind record {holds}; {} states were looked at", view.states))?;
        }
        _ => console.line(&format!("it holds behind record {holds}; no record was looked for"))?,
    }
    console.line("taken for granted: once it fails, it fails from there on")?;
    view.notes.iter().try_for_each(|note| console.line(note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::open_archive;
    use crate::report::archives;

    fn found(text: &str) -> Finding {
        let dir = tempfile::tempdir().unwrap();
        archives::archive(dir.path());
        let archive = open_archive(&[dir.path().to_owned()]).unwrap();
        let (first, last) = (LogIndex(1), archive.summary().last.unwrap());
        let condition = check(text).unwrap().condition;
        search(&archive, &condition, &condition.positions(first, last)).unwrap()
    }

    #[test]
    fn the_record_is_found_with_which_a_job_goes_on() {
        // Submitted by record 4, placed by 5, running by 6, over by 8.
        let job = JobId::derive_in(1, LogIndex(4), 0);
        for (phase, at, reason) in
            [("pending", 5, "starting"), ("starting", 6, "running"), ("running", 8, "over")]
        {
            let found = found(&format!("job-phase {job} {phase}"));
            assert_eq!(found.holds, Some(LogIndex(at - 1)), "{phase}");
            assert_eq!(found.fails, Some((LogIndex(at), format!("job {job} is {reason}"))), "{phase}");
        }
    }

    #[test]
    fn free_accelerators_and_digests_are_looked_at() {
        let of_free = found("free h100 eu >= 1");
        // Before the node is there none is free.
        assert_eq!((of_free.holds, of_free.fails.unwrap().0), (None, LogIndex(1)));
        assert_eq!(found("invariants").fails, None);
        let wrong = found("digest 3 0000000000000001 9 0000000000000002");
        assert_eq!((wrong.holds, wrong.fails.map(|(at, _)| at)), (None, Some(LogIndex(3))));
    }

    #[test]
    fn a_job_that_is_not_there_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        archives::archive(dir.path());
        let archive = open_archive(&[dir.path().to_owned()]).unwrap();
        let condition = Condition::Phase { job: JobId(77), stage: Stage::Pending };
        let positions = condition.positions(LogIndex(1), LogIndex(9));
        assert!(search(&archive, &condition, &positions).is_err());
        assert!(search(&archive, &condition, &Positions::Listed(Vec::new())).is_err());
    }

    #[test]
    fn what_is_no_check_is_refused() {
        for text in
            ["", "free", "free h100 eu > 1", "free h100 eu >= x", "job-phase job-1", "digest 1", "digest 0 a"]
        {
            assert!(check(text).is_err(), "{text}");
        }
        assert!(check("job-phase job-1 over").is_err());
        assert_eq!(check("free,h100,eu,8").unwrap().condition, check("free h100 eu >= 8").unwrap().condition);
        assert_eq!(
            check("digest 2 b 1 a").unwrap().condition,
            Condition::Digests(vec![(LogIndex(1), 10), (LogIndex(2), 11),])
        );
    }

    #[test]
    fn no_digest_is_passed_over() {
        assert!(check("digest 2 b 1 a 2 c").unwrap_err().starts_with("record 2 has two digests"));
        assert!(check("digest 2 b 1 a 2 b").is_ok(), "one digest twice is one");
        let condition = check("digest 2 b 9 a").unwrap().condition;
        assert_eq!(condition.outside(LogIndex(1), LogIndex(8)), Some(LogIndex(9)), "the log ends before it");
        assert_eq!(condition.outside(LogIndex(3), LogIndex(9)), Some(LogIndex(2)));
        assert_eq!(condition.outside(LogIndex(2), LogIndex(9)), None);
        assert_eq!(Condition::Invariants.outside(LogIndex(2), LogIndex(9)), None);
    }
}
