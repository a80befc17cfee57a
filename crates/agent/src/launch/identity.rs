//! Who a launcher is, from what the contract put into its environment.

use super::Failure;
use crate::temporary;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Bytes of a rank map that is still read: 16,384 ranks with the longest names.
const RANK_MAP_BYTES_MAX: u64 = 16 << 20;

/// One rank, as in the rank map file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Rank {
    pub(super) address: String,
}

#[derive(Debug, Deserialize)]
struct RankMap {
    fencing_token: String,
    rendezvous_port: u16,
    ranks: Vec<Rank>,
}

/// The worker and its gang.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) rank: usize,
    pub(super) token: String,
    /// What the gang's workers know each other by; the token, from a replica that gives no secret.
    pub(super) gang_secret: String,
    /// Where the hub listens, on rank 0's address.
    pub(super) port: u16,
    pub(super) ranks: Vec<Rank>,
    /// Milli-CPUs the worker was promised.
    pub(super) cpu_milli: u64,
    /// Bytes of memory it was promised.
    pub(super) memory_bytes: u64,
    pub(super) devices: usize,
    pub(super) accelerator: String,
    pub(super) stop_grace_ms: u64,
    /// The worker's directory, which holds the host files.
    pub(super) directory: PathBuf,
}

impl Identity {
    pub(super) fn from_env() -> Result<Identity, Failure> {
        let path = PathBuf::from(text("MUSTER_RANK_MAP")?);
        let directory = path.parent().ok_or("MUSTER_RANK_MAP has no directory")?.to_owned();
        let map = read(&path)?;
        let rank = number("MUSTER_RANK")?;
        let rank = usize::try_from(rank).ok().filter(|rank| *rank < map.ranks.len());
        let rank = rank.ok_or("MUSTER_RANK is not in the rank map")?;
        let devices = text("MUSTER_DEVICES")?.split(',').filter(|word| !word.is_empty()).count();
        let secret = std::env::var("MUSTER_GANG_SECRET").ok().filter(|secret| !secret.is_empty());
        Ok(Identity {
            gang_secret: secret.unwrap_or_else(|| map.fencing_token.clone()),
            rank,
            token: map.fencing_token,
            port: map.rendezvous_port,
            ranks: map.ranks,
            cpu_milli: number("MUSTER_CPU_MILLI")?,
            memory_bytes: number("MUSTER_MEMORY_BYTES")?,
            devices,
            accelerator: text("MUSTER_ACCELERATOR")?,
            stop_grace_ms: number("MUSTER_STOP_GRACE_MS")?,
            directory,
        })
    }

    pub(super) fn world(&self) -> usize {
        self.ranks.len()
    }

    /// Rank 0's address.
    pub(super) fn hub(&self) -> &str {
        self.ranks.first().map_or("", |rank| rank.address.as_str())
    }

    /// Where what this launcher starts keeps its temporary files. Tokens of two clusters on one machine may be alike.
    pub(super) fn scratch(&self) -> PathBuf {
        // What a launcher that is killed leaves goes with the worker's own temporary files.
        let own = temporary::own().map(|own| own.join("launch"));
        let name = || format!("muster-{}-{}-{}", self.token, self.rank, std::process::id());
        own.unwrap_or_else(|| temporary::short_base().join(name()))
    }

    /// Where the launcher keeps its files: the worker's user owns no other part of the worker's directory.
    pub(super) fn own_directory(&self) -> Result<PathBuf, Failure> {
        let directory = self.directory.join("work").join(".muster");
        let made = std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(&directory);
        made.map(|()| directory.clone()).map_err(|e| format!("make {}: {e}", directory.display()))
    }

    /// A name in the directory of temporary files that nobody but the gang can guess, and so nobody take.
    pub(super) fn unguessable(&self, what: &str) -> PathBuf {
        let hash =
            Sha256::new().chain_update(what.as_bytes()).chain_update(self.gang_secret.as_bytes()).finalize();
        let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        temporary::short_base().join(format!("muster-{what}-{name}"))
    }

    /// This worker's address.
    pub(super) fn own(&self) -> &str {
        self.ranks.get(self.rank).map_or("", |rank| rank.address.as_str())
    }
}

/// Host and port as one word.
pub(super) fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn text(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| format!("{name} is not set"))
}

fn number(name: &str) -> Result<u64, Failure> {
    text(name)?.parse().map_err(|_| format!("{name} is no number"))
}

fn read(path: &Path) -> Result<RankMap, Failure> {
    let bytes = crate::disk::durable::read_bounded(path, RANK_MAP_BYTES_MAX)
        .map_err(|e| format!("read {}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{} is no rank map: {e}", path.display()))
}
