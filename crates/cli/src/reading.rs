//! How fresh an answer has to be, and how fresh it was.

use std::time::Duration;

use clap::{Args, ValueEnum};
use muster_client::{Client, Read};
use muster_console::{Console, Failure, Format, Global};
use muster_manifest::quantity;
use muster_manifest::quantity::show_about;
use muster_wire::time::span_ms;
use muster_wire::v1;

const HEADING: &str = "Freshness";
/// An answer that is older is reported as such, below a table.
const STALE_MS: u64 = 1_000;

/// How current an answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Consistency {
    /// What the replica has, at once
    Any,
    /// At most --max-staleness old
    Bounded,
    /// Everything that was committed before
    Linearizable,
}

/// Options of commands that read.
#[derive(Args, Clone, Debug, Default)]
pub struct ReadArgs {
    /// How current the answer has to be [default: any, or bounded with --max-staleness]
    #[arg(long, help_heading = HEADING, value_enum, value_name = "HOW")]
    consistency: Option<Consistency>,
    /// Refuse an answer that may be older
    #[arg(long, help_heading = HEADING, value_name = "DURATION", value_parser = max_staleness)]
    max_staleness: Option<Duration>,
    /// The state as it was: behind a log index, or at an RFC 3339 time
    #[arg(long, help_heading = HEADING, value_name = "INDEX|TIME", value_parser = moment, conflicts_with_all = ["consistency", "max_staleness"])]
    at: Option<Read>,
}

fn max_staleness(text: &str) -> Result<Duration, String> {
    match quantity::duration_ms(text).map_err(|e| e.to_string())? {
        0 => Err("must be above zero; --consistency linearizable allows none".to_owned()),
        ms if ms > muster_types::read::MAX_STALENESS_MS_MAX => {
            Err("must be at most a day; --consistency any allows more".to_owned())
        }
        ms => Ok(Duration::from_millis(ms)),
    }
}

/// The state behind a log index or at a time, as an option names it.
pub fn moment(text: &str) -> Result<Read, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let index = text.parse().ok().filter(|index| *index > 0);
        return index.map(Read::at_log_index).ok_or_else(|| "log indexes begin with 1".to_owned());
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "expected a log index or a time like 2026-11-22T08:30:00Z".to_owned())?;
    let ms = u64::try_from(time.as_millisecond()).ok().filter(|ms| *ms > 0);
    ms.map(Read::at_time_ms).ok_or_else(|| "nothing is known of the time before 1970".to_owned())
}

impl ReadArgs {
    fn read(&self) -> Result<Read, Failure> {
        if let Some(at) = self.at {
            return Ok(at);
        }
        match (self.consistency, self.max_staleness) {
            (None, None) => Ok(Read::default()),
            (None | Some(Consistency::Bounded), Some(bound)) => Ok(Read::bounded(bound)),
            (Some(Consistency::Any), None) => Ok(Read::any()),
            (Some(Consistency::Linearizable), None) => Ok(Read::linearizable()),
            (Some(Consistency::Bounded), None) => {
                Err(Failure::usage("--consistency bounded needs --max-staleness")
                    .with_next("say how old the answer may be, for example: --max-staleness 2s"))
            }
            (Some(Consistency::Any | Consistency::Linearizable), Some(_)) => {
                Err(Failure::usage("--max-staleness goes with --consistency bounded only"))
            }
        }
    }

    /// Whether a state of the past is asked for.
    pub fn is_past(&self) -> bool {
        self.at.is_some()
    }

    /// A connected client whose reads are answered as the options say.
    pub async fn client(&self, global: &Global) -> Result<Client, Failure> {
        let read = self.read()?;
        Ok(global.client().await?.reading(read))
    }

    /// Says on stderr how old what was shown to people is, when they would not expect it.
    pub fn tell_age(&self, console: &Console, freshness: Option<&v1::Freshness>) {
        let Some(freshness) = freshness else { return };
        if matches!(console.format, Format::Table | Format::Wide)
            && let Some(line) = age(freshness, self.at.is_some())
        {
            console.progress(&line);
        }
    }
}

fn age(freshness: &v1::Freshness, is_past: bool) -> Option<String> {
    let index = freshness.log_index;
    let at = muster_console::moment(freshness.log_time).map(|time| format!(" ({time})")).unwrap_or_default();
    if is_past {
        return Some(format!("as it was at log index {index}{at}"));
    }
    let replica = freshness.replica_id;
    match span_ms(freshness.staleness) {
        Some(..=STALE_MS) => None,
        Some(ms) => {
            Some(format!("as of log index {index}{at}: replica {replica} may be {} behind", show_about(ms)))
        }
        None => Some(format!(
            "as of log index {index}{at}: how far replica {replica} is behind is not known; it hears of no leader"
        )),
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::time::{duration, timestamp};

    use super::*;

    #[test]
    fn moments_are_indexes_or_times() {
        assert_eq!(moment("4711"), Ok(Read::at_log_index(4_711)));
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(Read::at_time_ms(1_500)));
        assert_eq!(moment("1970-01-01T02:00:01+02:00"), Ok(Read::at_time_ms(1_000)));
        for text in ["", "0", "-1", "yesterday", "2026-11-22", "1969-12-31T23:59:59Z", "99999999999999999999"]
        {
            assert!(moment(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_what_is_unexpectedly_old_is_told() {
        let freshness = |staleness_ms: Option<u64>| v1::Freshness {
            log_index: 41,
            replica_id: 2,
            log_time: Some(timestamp(1_000)),
            staleness: staleness_ms.map(duration),
            ..Default::default()
        };
        assert_eq!(age(&freshness(Some(1_000)), false), None);
        let old = age(&freshness(Some(72_345)), false);
        let told = "as of log index 41 (1970-01-01T00:00:01Z): replica 2 may be 1m12s behind";
        assert_eq!(old.as_deref(), Some(told));
        assert!(age(&freshness(None), false).is_some_and(|line| line.contains("is not known")));
        let past = age(&freshness(None), true);
        assert_eq!(past.as_deref(), Some("as it was at log index 41 (1970-01-01T00:00:01Z)"));
    }
}
