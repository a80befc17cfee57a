//! What a drill is judged by: what was kept of it on this machine, and the cluster's decision log.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use muster_archive::ArchivedRound;
use muster_client::{CallError, Client};
use muster_console::{Console, Exit, Failure};
use muster_drill::history::History;
use muster_drill::judge::{Evidence, LogRound, Verdict, judge};
use muster_drill::report::Page;
use muster_drill::run::{Host, Run, Runs, StateSeen, StepDone, WarningSeen};
use muster_drill::scenario::Scenario;
use muster_journal::Decision;
use muster_types::{LogIndex, Parameters, ReplicaId};

use super::record::Record;

/// Bytes of a log that are read for one report; with a longer log a drill is judged without it, and this is reported.
const LOG_BYTES_MAX: u64 = 2 << 30;
/// Name of the host that probes come from.
const OPERATOR: &str = "operator";

/// All that is known of one drill.
pub struct Judged {
    pub scenario: Scenario,
    pub run: Run,
    pub history: History,
    pub verdict: Verdict,
}

impl Judged {
    /// As a page.
    pub fn page(&self) -> Page<'_> {
        Page::new(&self.scenario, &self.run, &self.history, &self.verdict)
    }
}

/// The log from its beginning up to a record, and why it cannot be had.
async fn log(client: &Client, console: &Console, to: u64) -> Result<Vec<LogRound>, String> {
    let mut rounds = Vec::new();
    let (mut from, mut bytes) = (0, 0u64);
    loop {
        let read = client.read_rounds(from).await;
        let (some, next) = read.map_err(|error: CallError| match error.refused() {
            Some(refused) => refused.to_string(),
            None => error.to_string(),
        })?;
        for round in some {
            bytes += round.payload.len() as u64;
            rounds.push(ArchivedRound {
                raft_index: round.raft_index,
                term: round.term,
                leader: ReplicaId(round.leader_id),
                payload: round.payload.into(),
            });
        }
        if bytes > LOG_BYTES_MAX {
            return Err(format!("the log has more than {} GiB", LOG_BYTES_MAX >> 30));
        }
        if next <= from {
            break;
        }
        from = next;
    }
    let reached = rounds.last().and_then(|round| round.decode().ok()).map(|round| last_index(&round));
    if reached.unwrap_or_default() < LogIndex(to) {
        console.progress(&format!("the log read ends before record {to}, where the drill ended"));
    }
    Ok(rounds.into_iter().map(LogRound::whole).collect())
}

fn last_index(round: &muster_journal::Round) -> LogIndex {
    LogIndex((round.first_index.0 + round.decisions.len() as u64).saturating_sub(1))
}

/// What the cluster was founded with; the usual where the log does not say.
fn parameters(log: Option<&[LogRound]>) -> Parameters {
    let rounds = log.unwrap_or_default().iter().filter_map(|round| round.round.decode().ok());
    let mut decisions = rounds.flat_map(|round| round.decisions);
    let founded = decisions.find_map(|decision| match decision {
        Decision::ClusterCreated { parameters, .. } => Some(parameters),
        _ => None,
    });
    founded.unwrap_or(Parameters::DEFAULT)
}

fn hosts(record: &Record) -> Vec<Host> {
    let replicas = record.members.iter().map(|member| Host {
        name: format!("replica-{}", member.id),
        region: member.region.clone(),
        runs: Runs::Replica(member.id),
        touched: record.silent.contains(&member.id),
        gone: false,
    });
    let operator = Host {
        name: OPERATOR.to_owned(),
        region: OPERATOR.to_owned(),
        runs: Runs::Clients,
        touched: false,
        gone: false,
    };
    replicas.chain([operator]).collect()
}

fn run(record: &Record, scenario: &Scenario, parameters: &Parameters) -> Run {
    let us = |at_ms: u64| record.clock_us.saturating_add(at_ms.saturating_mul(1_000));
    let undoes = scenario.live.iter().any(|step| step.action.for_ms().is_some());
    let healed = record.healed_at_ms.unwrap_or(record.ended_at_ms);
    let step = |step: &super::record::StepDone| StepDone {
        at_us: us(step.at_ms),
        until_us: step.until_ms.map(us),
        verb: step.verb.clone(),
        text: step.text.clone(),
    };
    let warning = |seen: &super::record::WarningSeen| WarningSeen {
        at_us: us(seen.at_ms),
        code: seen.code.clone(),
        replica: Some(seen.replica).filter(|id| *id > 0),
    };
    let state = |seen: &super::record::StateSeen| {
        let digest = u64::from_str_radix(&seen.digest, 16).ok()?;
        Some(StateSeen { at_us: us(seen.at_ms), replica: seen.replica, log_index: seen.log_index, digest })
    };
    Run {
        scenario: record.name.clone(),
        number: 1,
        seed: 0,
        place: format!("a live cluster of {} replicas, by {}", record.members.len(), record.started_by),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start_us: record.clock_us,
        fault_us: us(record.fault_at_ms.unwrap_or(record.ended_at_ms)),
        heal_us: undoes.then(|| us(healed)),
        end_us: us(record.ended_at_ms),
        fault_unix_ms: record.fault_unix_ms,
        hosts: hosts(record),
        steps: record.steps.iter().map(step).collect(),
        lease_ttl_ms: parameters.lease_ttl_ms,
        lease_margin_ms: parameters.lease_margin_ms,
        clock_drift_milli: 0,
        only_ours: false,
        recovered_us: None,
        warnings: record.warnings.iter().map(warning).collect(),
        states: record.states.iter().filter_map(state).collect(),
        skipped: Vec::new(),
    }
}

fn history(directory: &Path) -> Result<History, Failure> {
    let path = directory.join("probes.jsonl");
    let shown = path.display().to_string();
    let file = File::open(&path)
        .map_err(|error| Failure::new(Exit::NotFound, format!("{shown} cannot be read: {error}")))?;
    let mut history = History::default();
    history.read(&shown, BufReader::new(file)).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        Failure::new(Exit::Failed, error.to_string()).with_details(source)
    })?;
    Ok(history)
}

/// Judges a drill that was kept in `directory`.
pub async fn judged(
    client: &Client,
    console: &Console,
    directory: &Path,
    record: &Record,
    scenario: Scenario,
) -> Result<Judged, Failure> {
    let history = history(directory)?;
    let log = match log(client, console, record.last_log_index).await {
        Ok(log) => Some(log),
        Err(why) => {
            console.progress(&format!("judged without the decision log: {why}"));
            None
        }
    };
    let run = run(record, &scenario, &parameters(log.as_deref()));
    let evidence = Evidence {
        scenario: &scenario,
        run: &run,
        history: &history,
        log: log.as_deref(),
        intervals: None,
        troubles: &[],
    };
    let verdict = judge(evidence);
    Ok(Judged { scenario, run, history, verdict })
}
