//! `muster audit --denied`: calls that were denied, from every replica or from files that they wrote.
//!
//! **Invariant:** the output names a replica that could not be asked and lines that were left out; what is shown is in the order of time.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_client::AttemptError;
use muster_console::{Console, Document, Exit, Failure, Format, Global, moment, one_line, with_causes};
use muster_types::{DENIED_LINE_BYTES_MAX, DeniedLine, PastPoint};
use muster_wire::time::timestamp;
use muster_wire::{admin, v1};
use tokio::task::JoinSet;

use super::AuditArgs;

/// Between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Replicas are three or five; more is a broken answer.
const REPLICAS_MAX: usize = 64;

/// A line as a replica sends it.
fn sent(replica: u64, calls: admin::DeniedCalls) -> DeniedLine {
    DeniedLine {
        time: moment(calls.first_time),
        last_time: moment(calls.last_time),
        replica,
        caller: calls.caller,
        role: calls.role,
        address: calls.address,
        call: calls.call,
        code: calls.code,
        reason: calls.reason,
        count: calls.count,
    }
}

/// A time as milliseconds since the Unix epoch.
fn ms(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

fn text_of(line: &DeniedLine) -> String {
    let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let text = format!(
        "{:<24}  {:>7}  {:<32}  {:<16}  {:<15}  {:<44}  {:<18}  {:>7}  {}",
        shown(line.time.as_deref().unwrap_or_default()),
        line.replica,
        shown(&line.caller),
        shown(&line.role),
        shown(&line.address),
        shown(&line.call),
        line.code,
        line.count,
        line.reason
    );
    one_line(text.trim_end())
}

const HEADER: &str = "TIME                      REPLICA  CALLER                            ROLE              ADDRESS          CALL                                          CODE                  COUNT  REASON";

/// What became of asking one replica.
struct ReplicaAnswer {
    replica: u64,
    address: String,
    answer: Result<admin::ListDeniedCallsResponse, AttemptError>,
}

/// Asks every replica, all at the same time.
pub(super) async fn ask(global: &Global, console: &Console, args: &AuditArgs) -> Result<Exit, Failure> {
    let from = args.from.map(|from| time("--from", from)).transpose()?;
    let to = args.to.map(|to| time("--to", to)).transpose()?;
    let request = admin::ListDeniedCallsRequest {
        from_time: from.map(timestamp),
        to_time: to.map(timestamp),
        caller: args.who.clone().unwrap_or_default(),
        reason: args.reason.clone().unwrap_or_default(),
        limit: 0,
    };
    let client = global.client().await?;
    let status = client.get_status(v1::GetStatusRequest::default()).await?;
    let (mut asking, mut told_at) = (JoinSet::new(), Instant::now());
    for replica in status.replicas.into_iter().take(REPLICAS_MAX) {
        let (client, request) = (client.clone(), request.clone());
        asking.spawn(async move {
            let address = replica.client_endpoint;
            let answer = client.list_denied_calls_of(&address, request).await;
            ReplicaAnswer { replica: replica.id, address, answer }
        });
    }
    let mut all = Vec::new();
    while let Some(asked) = asking.join_next().await {
        all.extend(asked.ok());
        if told_at.elapsed() >= TOLD_EVERY && !asking.is_empty() {
            told_at = Instant::now();
            console.progress(&format!("{} replicas have answered, {} have not", all.len(), asking.len()));
        }
    }
    all.sort_by_key(|asked: &ReplicaAnswer| asked.replica);
    if matches!(console.format, Format::Table | Format::Wide) {
        console.line(HEADER)?;
    }
    let (lines, notes, is_whole) = merged(all);
    lines.into_iter().try_for_each(|line| show(console, line))?;
    for note in notes {
        console.progress(&one_line(&note));
    }
    Ok(if is_whole { Exit::Ok } else { Exit::Unavailable })
}

/// The lines of all replicas in the order of time, what has to be said of those that are not there, and whether every replica has
/// answered.
fn merged(all: Vec<ReplicaAnswer>) -> (Vec<DeniedLine>, Vec<String>, bool) {
    let (mut lines, mut notes, mut is_whole) = (Vec::new(), Vec::new(), true);
    for ReplicaAnswer { replica, address, answer } in all {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let why = with_causes(&error);
                notes.push(format!(
                    "replica {replica} at {address} could not be asked: {why}; its calls are missing"
                ));
                is_whole = false;
                continue;
            }
        };
        if answer.is_cut {
            notes.push(format!(
                "replica {replica} has more, which are older; narrow it with --since and --until"
            ));
        }
        if answer.unread_lines > 0 {
            notes.push(format!(
                "replica {replica}: {} lines cannot be read and are left out",
                answer.unread_lines
            ));
        }
        lines.extend(answer.calls.into_iter().map(|calls| {
            let first_ms = muster_wire::time::unix_ms(calls.first_time);
            (first_ms, sent(replica, calls))
        }));
    }
    // Lines of one replica stay in its order.
    lines.sort_by_key(|(first_ms, line)| (*first_ms, line.replica));
    (lines.into_iter().map(|(_, line)| line).collect(), notes, is_whole)
}

pub(super) fn run(console: &Console, files: &[PathBuf], args: &AuditArgs) -> Result<Exit, Failure> {
    let from = args.from.map(|from| time("--from", from)).transpose()?;
    let to = args.to.map(|to| time("--to", to)).transpose()?;
    if matches!(console.format, Format::Table | Format::Wide) {
        console.line(HEADER)?;
    }
    for path in files {
        let mut unread = 0_u64;
        read(path, |line| {
            let Ok(line) = serde_json::from_slice::<DeniedLine>(line) else {
                unread += 1;
                return Ok(());
            };
            let is_wanted = args.who.as_ref().is_none_or(|who| line.is_of(who))
                && args.reason.as_ref().is_none_or(|reason| line.is_because_of(reason))
                && line.is_within((from, to), ms);
            if is_wanted { show(console, line) } else { Ok(()) }
        })?;
        if unread > 0 {
            console.progress(&format!("{}: {unread} lines cannot be read and are left out", path.display()));
        }
    }
    Ok(Exit::Ok)
}

fn time(option: &str, point: PastPoint) -> Result<u64, Failure> {
    match point {
        PastPoint::Time(time) => Ok(time.0),
        PastPoint::Index(_) => {
            Err(Failure::usage(format!("{option} is a time with --denied: denied calls are not in the log")))
        }
    }
}

fn show(console: &Console, line: DeniedLine) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => console.event(&Document::new("DeniedCalls", None::<u64>, line)),
        Format::Name => console.line(&one_line(&line.caller)),
        Format::Table | Format::Wide | Format::Html | Format::Csv => console.line(&text_of(&line)),
    }
}

/// Every line of a file that is not empty; one that is too long comes in pieces, of which none is a line of a replica.
fn read(path: &Path, mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let failed = |error: std::io::Error, exit: Exit| {
        let text = format!("{} cannot be read: {error}", path.display());
        Failure::new(exit, text)
            .with_next("name audit.log of a replica's data directory, or one of audit.log.1 and so on")
    };
    let file = File::open(path).map_err(|error| failed(error, Exit::NotFound))?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = reader.by_ref().take(DENIED_LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if length.map_err(|error| failed(error, Exit::Failed))? == 0 {
            return Ok(());
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            each(text)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<DeniedLine> {
        serde_json::from_str(text).ok()
    }

    const EVE: &str = r#"{"time":"2026-11-27T08:00:00Z","lastTime":"2026-11-27T08:00:40Z","replica":2,
        "caller":"tenant/speech/eve+token/00c0ffee","role":"submitter","address":"192.0.2.7","call":"S/Cancel",
        "code":"PERMISSION_DENIED","reason":"not yours","count":12}"#;

    #[test]
    fn lines_are_found_by_caller_and_time() {
        let eve = line(EVE).expect("it is a line");
        assert!(eve.is_of("eve") && !eve.is_of("ada") && eve.is_because_of("PERMISSION_DENIED"));
        let at = |text: &str| Some(ms(text).expect("a time"));
        assert!(eve.is_within((at("2026-11-27T08:00:40Z"), None), ms));
        assert!(!eve.is_within((at("2026-11-27T08:00:41Z"), None), ms));
        assert!(eve.is_within((None, at("2026-11-27T08:00:00Z")), ms));
        assert!(!eve.is_within((None, at("2026-11-27T07:59:59Z")), ms));
        assert!(text_of(&eve).contains("192.0.2.7"));
        let column = HEADER.find("ROLE").expect("there is a column");
        assert_eq!(text_of(&eve).get(column..column + 9), Some("submitter"), "it stands below its title");
    }

    #[expect(clippy::result_large_err, reason = "answers of a few replicas, as the command has them")]
    #[test]
    fn what_replicas_say_is_merged_by_time_and_what_is_missing_is_named() {
        let calls = |second: u64, caller: &str| admin::DeniedCalls {
            first_time: Some(timestamp(1_700_000_000_000 + second * 1_000)),
            caller: caller.to_owned(),
            count: 1,
            ..Default::default()
        };
        let answer = |replica_id, calls, is_cut| {
            Ok(admin::ListDeniedCallsResponse { replica_id, calls, is_cut, unread_lines: 0 })
        };
        let asked =
            |replica, answer| ReplicaAnswer { replica, address: format!("muster-{replica}:7400"), answer };
        let one = asked(1, answer(1, vec![calls(1, "a"), calls(5, "b")], false));
        let two = asked(2, answer(2, vec![calls(1, "c"), calls(3, "d")], true));
        let lost = asked(3, Err(AttemptError::Timeout { endpoint: "muster-3:7400".to_owned() }));
        let (lines, notes, is_whole) = merged(vec![one, two, lost]);
        let shown: Vec<(u64, &str)> = lines.iter().map(|line| (line.replica, line.caller.as_str())).collect();
        assert_eq!(shown, [(1, "a"), (2, "c"), (2, "d"), (1, "b")]);
        assert!(!is_whole && notes.len() == 2, "{notes:?}");
        assert!(notes[0].contains("replica 2 has more") && notes[1].contains("replica 3 at muster-3:7400"));
        let (_, notes, is_whole) = merged(vec![asked(1, answer(1, Vec::new(), false))]);
        assert!(is_whole && notes.is_empty());
    }

    #[test]
    fn what_is_counted_together_has_no_caller_and_what_is_damaged_is_no_line() {
        let together = line(r#"{"time":null,"replica":1,"code":"NOT_TOLD_APART","reason":"more","count":9}"#);
        let together = together.expect("it is a line");
        assert!(together.caller.is_empty() && together.is_within((Some(1), Some(2)), ms));
        assert_eq!(line(r#"{"replica":1,"code":"X"}"#), None);
        assert_eq!(line("{"), None);
    }

    #[test]
    fn a_file_is_read_line_by_line_however_long_they_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        std::fs::write(&path, format!("a\n\n{}\nb", "x".repeat(100_000))).expect("it is written");
        let mut lengths = Vec::new();
        read(&path, |line| {
            lengths.push(line.len());
            Ok(())
        })
        .expect("it is read");
        assert_eq!(lengths, [1, 65_536, 100_000 - 65_536, 1]);
        assert!(read(&dir.path().join("none"), |_| Ok(())).is_err());
    }
}
