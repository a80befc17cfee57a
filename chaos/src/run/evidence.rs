//! Everything that was seen of one drill, as files that can be judged again.
//!
//! ```text
//! scenario.yaml   what was to be done
//! run.json        what was done, to whom, when
//! history.jsonl   what clients wrote down
//! log.jsonl       every round of the decision log
//! intervals.json  what workers wrote down
//! harness.json    what the harness saw itself: steps, processes, complaints
//! verdict.json    what follows from it
//! ```

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use muster_archive::{Archive, ArchivedRound, DirectoryStore};
use muster_client::Client;
use muster_drill::history::History;
use muster_drill::judge::{Evidence, Interval, LogRound, Verdict, judge, read_intervals, rounds_of};
use muster_drill::run::Run;
use muster_drill::scenario::Scenario;
use muster_types::{LogIndex, ReplicaId};
use muster_wire::admin;
use muster_wire::admin::archive_service_client::ArchiveServiceClient;
use serde::{Deserialize, Serialize};

use super::stage::Effect;
use crate::cluster::Ending;

/// Largest message with rounds.
const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// One part of the log.
const PART_LIMIT: Duration = Duration::from_secs(15);

/// Names of the files.
pub const HISTORY: &str = "history.jsonl";
const SCENARIO: &str = "scenario.yaml";
const RUN: &str = "run.json";
const LOG: &str = "log.jsonl";
const INTERVALS: &str = "intervals.json";
const HARNESS: &str = "harness.json";
const VERDICT: &str = "verdict.json";
/// There where a drill could not be carried out on this machine: why.
const SKIPPED: &str = "skipped";
/// There where a drill came to no evidence: why.
const BROKEN: &str = "broken";

/// A run that came to no verdict. It is counted: a report over the others alone would leave out the worst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Name of the drill.
    pub scenario: String,
    /// Whether this machine cannot carry it out; otherwise it was begun and broke off.
    pub is_skipped: bool,
    /// Why.
    pub why: String,
}

/// Makes the directory of a run and notes what is to be done, so that a run that breaks off is not forgotten.
///
/// # Errors
/// When it cannot be written.
pub fn begin(dir: &Path, scenario_text: &str) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    write(&dir.join(SCENARIO), scenario_text.as_bytes())
}

/// Notes that a run was skipped or broke off.
///
/// # Errors
/// When it cannot be written.
pub fn note_unfinished(dir: &Path, scenario_text: &str, is_skipped: bool, why: &str) -> Result<()> {
    begin(dir, scenario_text)?;
    write(&dir.join(if is_skipped { SKIPPED } else { BROKEN }), why.as_bytes())
}

/// What a directory says of a run without a verdict; none where there is evidence to judge.
///
/// # Errors
/// When the scenario cannot be read.
pub fn unfinished(dir: &Path) -> Result<Option<Unfinished>> {
    let noted = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let (is_skipped, why) = match (noted(SKIPPED), noted(BROKEN)) {
        (Some(why), _) => (true, why),
        (None, Some(why)) => (false, why),
        (None, None) if dir.join(RUN).is_file() => return Ok(None),
        (None, None) => (false, "it ended without evidence".to_owned()),
    };
    let text = read(&dir.join(SCENARIO))?;
    let scenario = Scenario::parse(&dir.join(SCENARIO).to_string_lossy(), text.as_bytes())?.name;
    Ok(Some(Unfinished { scenario, is_skipped, why }))
}

/// What the harness saw itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Harness {
    /// What became of every step.
    pub effects: Vec<Effect>,
    /// Processes that ended.
    pub endings: Vec<Ending>,
    /// Lines of logs that no process may write, with the host.
    pub complaints: Vec<(String, String)>,
    /// What went wrong with the drill itself: it proves nothing then.
    pub troubles: Vec<String>,
}

impl Harness {
    /// Why the drill did not hold, apart from what its judge found.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let mut found = self.troubles.clone();
        let idle = self.effects.iter().filter(|effect| !effect.real);
        found.extend(idle.map(|effect| format!("`{}` had no effect: {}", effect.verb, effect.seen)));
        let ended = self.endings.iter().filter(|ending| !ending.wanted);
        found.extend(
            ended.map(|ending| format!("the process on {} ended by itself: {}", ending.host, ending.status)),
        );
        found.extend(self.complaints.iter().map(|(host, line)| format!("{host}: {line}")));
        found
    }
}

/// Everything of one drill in memory.
pub struct Collected {
    /// What was to be done, as it was written.
    pub scenario_text: String,
    /// What was to be done.
    pub scenario: Scenario,
    /// What was done.
    pub run: Run,
    /// The log.
    pub log: Vec<LogRound>,
    /// What workers wrote down.
    pub intervals: Vec<Interval>,
    /// What the harness saw.
    pub harness: Harness,
}

/// One line of `log.jsonl`.
#[derive(Serialize, Deserialize)]
struct StoredRound {
    raft_index: u64,
    term: u64,
    leader: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    until: Option<u64>,
    payload: String,
}

impl Collected {
    /// Writes everything but the history, which is there already.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn store(&self, dir: &Path) -> Result<()> {
        write(&dir.join(SCENARIO), self.scenario_text.as_bytes())?;
        write_json(&dir.join(RUN), &self.run)?;
        write_json(&dir.join(INTERVALS), &self.intervals)?;
        write_json(&dir.join(HARNESS), &self.harness)?;
        let path = dir.join(LOG);
        let writing = || format!("writing {}", path.display());
        let mut file = BufWriter::new(File::create(&path).with_context(writing)?);
        for round in &self.log {
            let stored = StoredRound {
                raft_index: round.round.raft_index,
                term: round.round.term,
                leader: round.round.leader.0,
                until: round.until.map(|until| until.0),
                payload: hexadecimal(&round.round.payload),
            };
            serde_json::to_writer(&mut file, &stored).with_context(writing)?;
            file.write_all(b"\n").with_context(writing)?;
        }
        file.flush().with_context(writing)
    }

    /// Reads it back.
    ///
    /// # Errors
    /// When a file is missing or is none of ours.
    pub fn load(dir: &Path) -> Result<Collected> {
        let path = dir.join(SCENARIO);
        let scenario_text = read(&path)?;
        let run: Run = read_json(&dir.join(RUN))?;
        let name = format!("{}.yaml", run.scenario);
        let scenario = Scenario::parse(&name, scenario_text.as_bytes())?;
        let path = dir.join(LOG);
        let file = BufReader::new(File::open(&path).with_context(|| format!("opening {}", path.display()))?);
        let mut log = Vec::new();
        for (number, line) in file.lines().enumerate() {
            let reading = || format!("{}:{}", path.display(), number + 1);
            let stored: StoredRound =
                serde_json::from_str(&line.with_context(reading)?).with_context(reading)?;
            let payload = bytes(&stored.payload).with_context(reading)?;
            let round = ArchivedRound {
                raft_index: stored.raft_index,
                term: stored.term,
                leader: ReplicaId(stored.leader),
                payload: payload.into(),
            };
            log.push(LogRound { round, until: stored.until.map(LogIndex) });
        }
        let intervals = read_json(&dir.join(INTERVALS))?;
        let harness = read_json(&dir.join(HARNESS))?;
        Ok(Collected { scenario_text, scenario, run, log, intervals, harness })
    }

    /// What it proves; written next to it.
    ///
    /// # Errors
    /// When the history cannot be read or the verdict not written.
    pub fn judge(&self, dir: &Path) -> Result<(History, Verdict)> {
        let path = dir.join(HISTORY);
        let mut history = History::default();
        let file = BufReader::new(File::open(&path).with_context(|| format!("opening {}", path.display()))?);
        history.read(HISTORY, file)?;
        let troubles = self.harness.findings();
        let verdict = judge(Evidence {
            scenario: &self.scenario,
            run: &self.run,
            history: &history,
            log: Some(&self.log),
            intervals: Some(&self.intervals),
            troubles: &troubles,
        });
        write_json(&dir.join(VERDICT), &verdict)?;
        Ok((history, verdict))
    }
}

/// Every interval below a directory that reaches into a time, boot-time nanoseconds.
///
/// # Errors
/// When a file is none of a worker's.
pub fn intervals(directory: &Path, from_ns: u64) -> Result<Vec<Interval>> {
    let mut found = Vec::new();
    for job in entries(directory)? {
        for path in entries(&job)? {
            let name = path.strip_prefix(directory).context("a file below its directory")?;
            let name = name.to_str().context("a name that is text")?;
            let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
            found.extend(read_intervals(name, BufReader::new(file))?);
        }
    }
    found.retain(|interval| interval.end_ns >= from_ns);
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let reading = || format!("reading {}", directory.display());
    let entries = std::fs::read_dir(directory).with_context(reading)?;
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>().with_context(reading)?;
    paths.sort();
    Ok(paths)
}

/// The whole log from one replica: its archive where the cluster had a previous generation, and what the replica
/// itself gives out.
///
/// # Errors
/// When a part cannot be had.
pub async fn rounds(client: Client, endpoint: String, archive: Option<PathBuf>) -> Result<Vec<LogRound>> {
    let mut rounds = match archive {
        None => Vec::new(),
        Some(dir) => {
            let store = DirectoryStore::open_read_only(&dir)
                .with_context(|| format!("opening the archive in {}", dir.display()))?;
            let archive = Archive::open(Arc::new(store), None).context("opening an archive")?;
            rounds_of(&Arc::new(archive)).context("reading an archive")?
        }
    };
    let mut next = rounds.last().map_or(1, |last| last.round.raft_index + 1);
    let (_, channel) = client.endpoints().connect_to(&endpoint).await.context("the replica with the log")?;
    let mut archive = ArchiveServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    loop {
        let from = next;
        let reading = async {
            let request = admin::ReadRoundsRequest { from_raft_index: from };
            let mut messages = archive.read_rounds(request).await.context("reading rounds")?.into_inner();
            while let Some(message) = messages.message().await.context("reading rounds")? {
                next = next.max(message.next_raft_index);
                rounds.extend(message.rounds.into_iter().map(|round| {
                    LogRound::whole(ArchivedRound {
                        raft_index: round.raft_index,
                        term: round.term,
                        leader: ReplicaId(round.leader_id),
                        payload: round.payload.into(),
                    })
                }));
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PART_LIMIT, reading).await.context("reading rounds")??;
        if next == from {
            return Ok(rounds);
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0xf)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    // `from_str_radix` would take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(digits && text.len().is_multiple_of(2), "not pairs of hexadecimal digits");
    let pair = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).context("not hexadecimal digits");
    (0..text.len()).step_by(2).map(pair).collect()
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{} is none of a drill's", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).context("as JSON")?;
    text.push(b'\n');
    write(path, &text)
}

/// Directories of runs in a directory, or the directory itself; those without a verdict too.
///
/// # Errors
/// When there is none.
pub fn stored(dir: &Path) -> Result<Vec<PathBuf>> {
    if dir.join(SCENARIO).is_file() {
        return Ok(vec![dir.to_path_buf()]);
    }
    let found: Vec<PathBuf> =
        entries(dir)?.into_iter().filter(|path| path.join(SCENARIO).is_file()).collect();
    if found.is_empty() {
        bail!("{} holds no evidence of a drill", dir.display());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_digits() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes(&hexadecimal(&all)).expect("digits"), all);
        for wrong in ["0", "0g", "é", "+1"] {
            bytes(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_step_without_effect_and_a_death_are_findings() {
        let effect = Effect {
            step: 0,
            verb: "cut".to_owned(),
            hosts: Vec::new(),
            at_ns: 1,
            undone_at_ns: None,
            seen: "0 packets on 2 links".to_owned(),
            real: false,
        };
        let ending = |wanted| Ending { host: "a1".to_owned(), status: "exit 1".to_owned(), wanted };
        let harness = Harness {
            effects: vec![effect],
            endings: vec![ending(true), ending(false)],
            ..Harness::default()
        };
        let found = harness.findings();
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
