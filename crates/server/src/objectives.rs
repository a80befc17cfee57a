//! The account of error budgets in the data directory: one small file, which may be lost without harm.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_api::ObjectiveAccount;
use muster_engine::Engine;
use muster_files::{Existing, Lasting, Manner};
use muster_metrics::ReplicaMetrics;
use tokio::time::{Instant, MissedTickBehavior};

/// The name of the file.
const FILE: &str = "objectives";
/// Bytes of it that are read: more than 31 days take.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// How often it is looked whether there is a leader.
const TICK: Duration = Duration::from_secs(1);
/// How often calls are counted and the file is written, in ticks.
const WRITE_EVERY: u32 = 60;
/// A loss of power may cost a minute of it, or all: it is not worth a flush.
const MANNER: Manner = Manner { mode: 0o600, lasting: Lasting::Processes, existing: Existing::Replaced };

/// The account of a data directory; an empty one where there is none, or where it cannot be read.
pub(crate) fn open(directory: &Path) -> ObjectiveAccount {
    let path = directory.join(FILE);
    let why = match muster_files::read_bounded(&path, FILE_BYTES_MAX) {
        Ok(bytes) => match ObjectiveAccount::read(&bytes) {
            Some(account) => return account,
            None => "it is damaged".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ObjectiveAccount::default(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), %why, "the account of error budgets begins again from nothing");
    ObjectiveAccount::restarted()
}

/// Counts and writes the account as long as the replica runs.
pub(crate) async fn keep(
    account: ObjectiveAccount,
    engine: Engine,
    metrics: ReplicaMetrics,
    directory: PathBuf,
) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut unwritten) = (Instant::now(), 0);
    loop {
        let is_stopping = tokio::select! {
            _ = ticks.tick() => false,
            () = engine.stopping() => true,
        };
        let (now, day) = (Instant::now(), today());
        account.note_leader(&engine, day, now.duration_since(last));
        last = now;
        unwritten += 1;
        if !is_stopping && unwritten < WRITE_EVERY {
            continue;
        }
        unwritten = 0;
        account.note_calls(&metrics, day);
        let (path, text) = (directory.join(FILE), account.text());
        let write = move || muster_files::write_whole(&path, text.as_bytes(), MANNER);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::warn!(%error, "the account of error budgets was not written; the next minute tries again");
        }
        if is_stopping {
            return;
        }
    }
}

/// Days since 1970.
fn today() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() / 86_400
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_begins_anew_and_a_missing_one_is_empty() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = open(directory.path());
        std::fs::write(directory.path().join(FILE), first.text()).expect("it is written");
        assert_eq!(open(directory.path()).text(), first.text());
        std::fs::write(directory.path().join(FILE), "muster objectives 1\nnothing\n").expect("it is written");
        assert_eq!(open(directory.path()).text(), ObjectiveAccount::restarted().text());
        std::fs::write(directory.path().join(FILE), vec![b'x'; 100_000]).expect("it is written");
        assert_eq!(open(directory.path()).text(), ObjectiveAccount::restarted().text());
    }
}
