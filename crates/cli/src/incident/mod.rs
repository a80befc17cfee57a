//! `muster incident …`: what happened around a moment, in one file that can be passed on and replayed.
//!
//! **Invariant:** a file is used only if every checksum in it holds and its records replay to the digests that it states.

mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use muster_archive::Archive;
use muster_archive::capsule::{
    Capsule, CapsuleError, CapsuleRecord, CapsuleSpan, capture, read_capsule, write_capsule,
};
use muster_console::{Console, Exit, Failure, Global};
use muster_decider::{KeptReservations, explain_job};
use muster_manifest::quantity;
use muster_state::{Applied, State};
use muster_types::{JobId, LogIndex, LogTime, PastPoint};

use crate::Program;
use crate::job_files::now_ms;
use crate::log::{SourceArgs, archive_failure, point_of_log};
use crate::report::time_of;
use crate::told::told_while;

/// Commands about incidents.
#[derive(Subcommand)]
pub enum IncidentCommand {
    /// Write the state before a moment and the records around it into one file, without anything private
    Capture(CaptureArgs),
    /// Check such a file, replay it, and show what happened; needs no cluster
    #[command(after_help = "\
Examples:
  muster incident replay incident.capsule
  muster incident replay incident.capsule --job job-3f0
  muster incident replay incident.capsule --records 1000 -o json

Every checksum is verified first. The records are replayed through the same guard and fold as in a replica, and the digests
that come out are compared with those in the file. A file that is damaged, newer or something else is refused.")]
    Replay {
        /// The file
        file: PathBuf,
        /// Only records that name this job
        #[arg(long, value_name = "JOB")]
        job: Option<JobId>,
        /// How many records to show, those around the moment
        #[arg(long, value_name = "N", default_value_t = 50)]
        records: usize,
    },
    /// Say why a job waits behind a record of such a file; needs no cluster
    #[command(after_help = "\
Examples:
  muster incident explain incident.capsule --job job-3f0 --at 4711
  muster incident explain incident.capsule --job job-3f0 --at 4711 --expect QUOTA    exit code 1 with any other reason

It is the answer of `muster explain`, of this program's own scheduler. What the leader kept in memory for others is not in a
log: reservations are made again from the state. With the cluster at hand, `muster explain JOB --at INDEX` answers too.")]
    Explain {
        /// The file
        file: PathBuf,
        /// Which job
        #[arg(long, value_name = "JOB")]
        job: JobId,
        /// Behind which record [default: the one that the file is around]
        #[arg(long, value_name = "INDEX")]
        at: Option<u64>,
        /// Fail unless this is the reason, such as QUOTA: so a file becomes a regression test
        #[arg(long, value_name = "REASON")]
        expect: Option<String>,
    },
}

/// Options of `muster incident capture`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster incident capture --around 4711 --out incident.capsule
  muster incident capture --around 2026-11-22T08:30:00Z --margin 30m --out incident.capsule --archive /var/lib/muster/replica-1 --tail

Left out always: commands, environments, directories, images, files, labels, annotations and messages of jobs; addresses of
nodes and of receivers of notifications; names of people, certificates and tokens. Of an environment the numbers in PARALLEL_SIZES stay, which the scheduler
reads. Names of jobs, tenants and nodes, labels and taints of nodes, what jobs ask for, and the policy stay: without them
nothing would replay. The file is written whole or not at all, a file that exists is not touched, and only its owner may read it.")]
pub struct CaptureArgs {
    /// The moment: an RFC 3339 time or a log index
    #[arg(long, value_name = "INDEX|TIME", value_parser = point_of_log)]
    around: PastPoint,
    /// How much before and behind it is in the file, by log time
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = margin)]
    margin: u64,
    /// The file; it must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
}

fn margin(text: &str) -> Result<u64, String> {
    quantity::duration_ms(text).map_err(|error| error.to_string())
}

/// A capsule that was not made or not taken, with what to do.
fn refused(error: CapsuleError) -> Failure {
    let (exit, next) = match &error {
        CapsuleError::File { .. } => (Exit::Failed, "see that the file can be read or written"),
        CapsuleError::Foreign { .. } => {
            (Exit::Usage, "give a file that `muster incident capture` wrote; `muster backup` has other files")
        }
        CapsuleError::Newer { .. } => (Exit::Failed, "use the release that wrote it"),
        CapsuleError::Damaged { .. } => (Exit::Failed, "copy the file again, or capture the incident again"),
        CapsuleError::TooLarge { .. } => (Exit::Usage, "name a smaller --margin"),
        CapsuleError::Archive(error) => return archive_failure(error),
        CapsuleError::Redaction(_) => (Exit::Failed, "name another moment with --around"),
        CapsuleError::Differs { .. } | CapsuleError::Diverged { .. } => {
            (Exit::Failed, "replay it with the release that made it; the file states which")
        }
    };
    Failure::of_error(exit, &error).with_next(next)
}

/// The same of one that was not made: there is no file yet, and no release that made it.
fn not_made(error: CapsuleError) -> Failure {
    let CapsuleError::Differs { log_index } = error else { return refused(error) };
    let next = "name a --margin that leaves that record out; that redaction changes what it does is an error of Muster";
    refused(CapsuleError::Differs { log_index }).with_next(next)
}

/// `muster incident`.
pub async fn run(
    program: &Program,
    global: &Global,
    console: &Console,
    command: IncidentCommand,
) -> Result<Exit, Failure> {
    match command {
        IncidentCommand::Capture(args) => {
            if args.out.symlink_metadata().is_ok() {
                let text = format!("{} exists, and a file that exists is not touched", args.out.display());
                return Err(Failure::new(Exit::Conflict, text).with_next("name another one with --out"));
            }
            let source = args.source.open(global, console).await?;
            let capsule = told_while(console, "capturing", || {
                captured(&source.archive, args.around, args.margin, program.version)
            })?;
            let bytes = write_capsule(&args.out, &capsule).map_err(refused)?;
            show::written(console, &args.out, bytes, &capsule.header, &source.notes)
        }
        IncidentCommand::Replay { file, job, records } => {
            let capsule = read(&file)?;
            let replay = || capsule.replay(None, |_, _, _| {}).map(drop).map_err(refused);
            told_while(console, "replaying", replay)?;
            show::replayed(console, &file, &capsule, (job, records))
        }
        IncidentCommand::Explain { file, job, at, expect } => {
            let capsule = read(&file)?;
            let at = LogIndex(at.unwrap_or(capsule.header.around_log_index));
            explain(console, &capsule, (job, at), expect.as_deref())
        }
    }
}

fn read(file: &Path) -> Result<Capsule, Failure> {
    read_capsule(file).map_err(refused)
}

/// The last record that is not behind a time.
fn last_at(archive: &Archive, time: LogTime) -> Result<LogIndex, Failure> {
    let (replay, _) = archive.replay(PastPoint::Time(time), None).map_err(|error| archive_failure(&error))?;
    Ok(replay.state().log_index())
}

fn captured(
    archive: &Arc<Archive>,
    around: PastPoint,
    margin_ms: u64,
    version: &str,
) -> Result<Capsule, Failure> {
    let time = time_of(archive, around)?;
    let around = match around {
        PastPoint::Index(index) => index,
        PastPoint::Time(time) => last_at(archive, time)?,
    };
    let before = LogTime(time.0.saturating_sub(margin_ms));
    let first = last_at(archive, before)?.next();
    let last = last_at(archive, LogTime(time.0.saturating_add(margin_ms)))?;
    if last < first {
        let text = format!("the log has no record from {before} to {}", time.plus_ms(margin_ms));
        return Err(
            Failure::new(Exit::NotFound, text).with_next("name another --around or a larger --margin")
        );
    }
    let span = CapsuleSpan { first, last, around: around.max(first).min(last) };
    let salt = uuid::Uuid::new_v4().as_u128();
    capture(archive, span, salt, (version, now_ms())).map_err(not_made)
}

fn explain(
    console: &Console,
    capsule: &Capsule,
    (job, at): (JobId, LogIndex),
    expect: Option<&str>,
) -> Result<Exit, Failure> {
    // To the end, since the digest that the file states is that of its last record.
    let replay = || -> Result<Option<State>, Failure> {
        let mut reached = None;
        let look = |state: &State, record: &CapsuleRecord, _: &Applied| {
            if record.log_index == at {
                reached = Some(state.clone());
            }
        };
        capsule.replay(None, look).map_err(refused)?;
        Ok(reached)
    };
    let Some(state) = told_while(console, "replaying", replay)? else {
        let (first, last) = (capsule.header.first_log_index, capsule.header.last_log_index);
        let text = format!("the capsule has records {first} to {last}, and {at} is none of them");
        return Err(Failure::new(Exit::NotFound, text).with_next("name one of them with --at"));
    };
    let Some(row) = state.job(job) else {
        let text = format!("there is no job {job} behind record {at}");
        return Err(Failure::new(Exit::NotFound, text)
            .with_next("`muster incident replay FILE --job JOB` shows the records that name it"));
    };
    let explained = explain_job(&state, state.log_time(), job, &KeptReservations::default());
    let reason = explained.as_ref().map(|explained| explained.reason.code());
    show::explained(console, (job, at), row, explained.as_ref())?;
    match expect {
        Some(expected) if reason != Some(expected) => {
            let reason = reason.unwrap_or("none, since the job does not wait");
            let text = format!("the reason of {job} behind record {at} is {reason}; {expected} was expected");
            Err(Failure::new(Exit::Failed, text))
        }
        _ => Ok(Exit::Ok),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::open_archive;
    use crate::report::archives::{START, archive};

    fn sample() -> (tempfile::TempDir, Arc<Archive>) {
        let dir = tempfile::tempdir().unwrap();
        archive(dir.path());
        let archive = open_archive(&[dir.path().to_owned()]).unwrap();
        (dir, archive)
    }

    #[test]
    fn a_margin_is_log_time_on_both_sides() {
        let (_dir, archive) = sample();
        let span = |around, margin_ms| {
            let header = captured(&archive, around, margin_ms, "1.0.0").unwrap().header;
            (header.first_log_index, header.last_log_index, header.around_log_index)
        };
        // Records 1 to 3 are of second 0, 4 of 10, 5 of 20, 6 of 25, 7 and 8 of 100, 9 of 200.
        assert_eq!(span(PastPoint::Index(LogIndex(5)), 11_000), (4, 6, 5));
        assert_eq!(span(PastPoint::Time(LogTime(START + 60_000)), 40_000), (6, 8, 6));
        assert_eq!(span(PastPoint::Index(LogIndex(1)), u64::MAX), (1, 9, 1));
        let none = captured(&archive, PastPoint::Time(LogTime(START + 60_000)), 1_000, "1.0.0");
        assert!(none.unwrap_err().headline().starts_with("the log has no record from"));
    }

    #[test]
    fn what_to_do_without_a_capsule_is_not_what_to_do_with_one() {
        let differs = || CapsuleError::Differs { log_index: LogIndex(7) };
        assert!(refused(differs()).next().unwrap().contains("release that made it"));
        assert!(not_made(differs()).next().unwrap().contains("leaves that record out"));
        assert!(not_made(differs()).headline().contains("record 7"));
        let large = || CapsuleError::TooLarge { what: "records", found: 2, max: 1 };
        assert_eq!(not_made(large()).next(), refused(large()).next());
    }

    #[test]
    fn a_capsule_says_why_a_job_waited() {
        let (dir, archive) = sample();
        let capsule = captured(&archive, PastPoint::Index(LogIndex(4)), 60_000, "1.0.0").unwrap();
        let file = dir.path().join("incident.capsule");
        write_capsule(&file, &capsule).unwrap();
        let capsule = read(&file).unwrap();
        let job = JobId::derive_in(1, LogIndex(4), 0);
        let state = capsule.replay(Some(LogIndex(4)), |_, _, _| {}).unwrap();
        let why = explain_job(&state, state.log_time(), job, &KeptReservations::default()).unwrap();
        assert_eq!(why.reason.code(), "QUEUED");
        let console = Console::new(muster_console::Format::Table, true, true);
        let at = |index| (job, LogIndex(index));
        assert!(explain(&console, &capsule, (JobId(1), LogIndex(4)), None).is_err());
        assert!(explain(&console, &capsule, at(99), None).is_err());
        assert!(explain(&console, &capsule, at(4), Some("QUEUED")).is_ok());
        let other_reason = explain(&console, &capsule, at(4), Some("QUOTA")).unwrap_err();
        assert!(
            other_reason.headline().ends_with("is QUEUED; QUOTA was expected"),
            "{}",
            other_reason.headline()
        );
        let placed = explain(&console, &capsule, at(5), Some("QUEUED")).unwrap_err();
        assert!(placed.headline().contains("does not wait"), "{}", placed.headline());
        let mut other = capsule.clone();
        other.header.digest_after ^= 1;
        assert!(explain(&console, &other, at(4), None).is_err(), "it is not what the file states");
        std::fs::write(&file, b"MSIC").unwrap();
        assert!(read(&file).is_err());
    }
}
