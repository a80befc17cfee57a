//! Opening the data directory: as it is, as a new replica's, or as one that is rebuilt.
//!
//! A rebuild is one command that may be interrupted anywhere: what is damaged is moved aside with its
//! identity last, so a half-moved directory is damaged still; an emptied one with evidence in it is created
//! again with the mark of a lost storage; and with that mark the replica neither votes nor acknowledges
//! before it has rejoined the cluster.
//!
//! **Invariant:** a directory that is intact is never emptied, whatever the command line says.
//! **Invariant:** a diverged replica starts only to be rebuilt.

use muster_planted::{Rule, breaks};
use muster_store::{
    FIRST_GENERATION, FoundingId, Identity, OpenMode, Rejoin, ReplicaStore, StoreError, StoreOptions,
};
use std::path::Path;

use super::config::{Rebuild, ServerConfig};
use super::evidence::{mark_in, move_mark, newest_evidence};
use super::{ServerError, Start};

/// Opens the directory of a configuration.
///
/// # Errors
/// Says what is wrong with the directory and what to do about it.
pub async fn open_store(config: &ServerConfig, start: Start) -> Result<ReplicaStore, ServerError> {
    let config = config.clone();
    let opened = tokio::task::spawn_blocking(move || open(&config, start));
    opened.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// What a rebuild does with a directory that is not as it was.
const REBUILT: &str = "what is there would be moved into a directory damaged-… in it, and the replica would be filled \
                       by the others, without a vote until it has caught up";

/// What a rebuild would do with the directory of a configuration, as a sentence.
///
/// # Errors
/// Says why the directory cannot be looked at: a replica that runs has it, for one.
pub async fn would_rebuild(config: &ServerConfig) -> Result<String, ServerError> {
    let config = config.clone();
    let looked = tokio::task::spawn_blocking(move || look(&config)).await;
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn look(config: &ServerConfig) -> Result<String, ServerError> {
    let dir = &config.data_dir;
    let shown = dir.display();
    let mark = mark_in(dir).map_err(|source| ServerError::Evidence { dir: dir.clone(), source })?;
    if let Some(mark) = mark {
        return Ok(format!("{shown} has diverged at log index {}: {REBUILT}", mark.log_index));
    }
    match try_open(config, OpenMode::Existing) {
        Ok(store) => {
            let rejoin = *store.rejoin().borrow();
            Ok(format!("{shown} {}", of_readable(store.founding(), rejoin)))
        }
        Err(StoreError::NotFound { .. }) => Ok(format!(
            "{shown} holds no replica: it would be made, and the replica filled by the others, without a vote until it \
             has caught up"
        )),
        Err(StoreError::Damaged { damage, .. }) => Ok(format!("{shown} is damaged ({damage}): {REBUILT}")),
        Err(source) => Err(refusal(dir, Start::Rebuild, source)),
    }
}

/// What a start with --rebuild does with a directory in which nothing is damaged.
fn of_readable(founding: FoundingId, rejoin: Option<Rejoin>) -> &'static str {
    match (founding, rejoin) {
        (FoundingId::Awaited, _) => {
            "was made for a new cluster that is not founded: nothing would be moved, and the replica would wait to be \
             taken into a cluster that runs"
        }
        (_, Some(Rejoin::Unknown | Rejoin::From { .. })) => {
            "is being rebuilt already: nothing would be moved, and that would go on, without a vote until the replica \
             has caught up"
        }
        // Nothing is missing any more but the vote, which the others give back.
        (_, Some(Rejoin::AwaitingVote) | None) => {
            "is intact: it would be used as it is, and nothing moved or rebuilt"
        }
    }
}

/// Whether a directory is on a file system that is lost with the machine's memory.
pub fn is_in_memory(dir: &Path) -> bool {
    let found = nix::sys::statfs::statfs(dir);
    found.is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC)
}

/// The identity a directory is expected to have: the generation is whatever the directory says, for no
/// configuration knows it.
///
/// # Errors
/// When the directory's identity cannot be read.
pub fn expected(config: &ServerConfig) -> Result<Identity, StoreError> {
    let found = ReplicaStore::identity_of(&config.data_dir)?;
    Ok(Identity {
        cluster_id: config.cluster_id,
        replica_id: config.replica_id,
        generation: found.map_or(FIRST_GENERATION, |identity| identity.generation),
    })
}

fn try_open(config: &ServerConfig, mode: OpenMode) -> Result<ReplicaStore, StoreError> {
    ReplicaStore::open(&config.data_dir, expected(config)?, mode, StoreOptions::production())
}

fn open(config: &ServerConfig, start: Start) -> Result<ReplicaStore, ServerError> {
    let dir = &config.data_dir;
    let refuse = |source: StoreError| refusal(dir, start, source);
    let looked = |source| ServerError::Evidence { dir: dir.clone(), source };
    let mark = mark_in(dir).map_err(looked)?;
    if let Some(mark) = mark {
        if start != Start::Rebuild {
            return Err(ServerError::Diverged { dir: dir.clone(), mark: Box::new(mark) });
        }
        set_aside(config)?;
    }
    let renewed =
        if breaks(Rule::VoteAfterLoss) { OpenMode::CreateIfMissing } else { OpenMode::RebuildIfMissing };
    let founded =
        if breaks(Rule::VoteAfterLoss) { OpenMode::CreateIfMissing } else { OpenMode::FoundIfMissing };
    let mode = match start {
        Start::Bootstrap => founded,
        Start::Join => OpenMode::RebuildIfMissing,
        Start::Rebuild => renewed,
        // A rebuild that was interrupted goes on.
        Start::Again if rebuilds(config) && is_emptied(dir) => renewed,
        Start::Again => OpenMode::Existing,
    };
    match try_open(config, mode) {
        Ok(store) => {
            if matches!(start, Start::Rebuild | Start::Join) && store.founding() == FoundingId::Awaited {
                // It was started as one of a new cluster, and that was refused.
                store.join_instead().map_err(refuse)?;
            }
            if start == Start::Rebuild && store.rejoin().borrow().is_none() {
                tracing::warn!(
                    "the data directory is intact: there is nothing to rebuild, it is used as it is"
                );
            }
            Ok(store)
        }
        Err(StoreError::Damaged { dir, damage }) if start == Start::Rebuild || rebuilds(config) => {
            tracing::error!(%damage, dir = %dir.display(), "the data directory is damaged; this replica is rebuilt from its peers");
            set_aside(config)?;
            try_open(config, renewed).map_err(refuse)
        }
        Err(source) => Err(refuse(source)),
    }
}

/// Whether damage is repaired without being told to. A replica alone has nobody to be rebuilt from.
fn rebuilds(config: &ServerConfig) -> bool {
    config.recovery.rebuild == Rebuild::Auto && config.members.len() > 1
}

/// Whether a rebuild has moved everything aside and made nothing new yet.
fn is_emptied(dir: &Path) -> bool {
    newest_evidence(dir).is_some() && matches!(ReplicaStore::identity_of(dir), Ok(None))
}

/// Moves what is there to the evidence.
fn set_aside(config: &ServerConfig) -> Result<(), ServerError> {
    let dir = &config.data_dir;
    let evidence = match ReplicaStore::set_aside(dir) {
        Ok(evidence) => Some(evidence),
        // Done before an interruption.
        Err(StoreError::NotFound { .. }) => newest_evidence(dir),
        Err(source) => return Err(refusal(dir, Start::Rebuild, source)),
    };
    let Some(evidence) = evidence else { return Ok(()) };
    tracing::warn!(evidence = %evidence.display(), "what was in the data directory is kept as evidence; remove it once it is understood");
    move_mark(dir, &evidence).map_err(|source| ServerError::Evidence { dir: dir.clone(), source })
}

fn refusal(dir: &Path, start: Start, source: StoreError) -> ServerError {
    let hint = match (&source, start) {
        (StoreError::NotFound { .. }, _) => Some(
            "start a replica of a new cluster for the first time with --bootstrap, a new one of a cluster that \
             runs with --join, and one that lost its disk with --rebuild",
        ),
        (StoreError::Damaged { .. }, Start::Rebuild) => None,
        (StoreError::Damaged { .. }, _) => Some(
            "start it once with --rebuild: what is there is kept as evidence, and the replica is rebuilt from its \
             peers as a learner",
        ),
        _ => None,
    };
    let advice = source.advice().into_iter().chain(hint.map(ToOwned::to_owned));
    let advice = advice.map(|text| format!("; {text}")).collect();
    ServerError::Store { dir: dir.to_path_buf(), advice, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_tells_a_rebuild_that_goes_on_from_an_intact_directory() {
        for rejoin in [None, Some(Rejoin::AwaitingVote)] {
            assert!(of_readable(FoundingId::Of(7), rejoin).starts_with("is intact"), "{rejoin:?}");
        }
        for rejoin in [Rejoin::Unknown, Rejoin::From { index: 9, voted: true }] {
            assert!(
                of_readable(FoundingId::Unknown, Some(rejoin)).contains("that would go on"),
                "{rejoin:?}"
            );
        }
        assert!(of_readable(FoundingId::Awaited, None).contains("wait to be taken into"));
    }
}
