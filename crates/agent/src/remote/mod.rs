//! Capacity that another scheduler gives out: what Slurm and Kubernetes have in common below Muster.
//!
//! One agent stands for all nodes of such a cluster. Each of them is a node of Muster with a session and a separate lease. This
//! node's share of a placement becomes one job of the other scheduler on that very node; the job runs a small
//! [runner](self::runner), which is handed the workers and runs each below a shim, as any agent does.
//!
//! | file | what |
//! |---|---|
//! | `scheduler.rs` | what the other scheduler has to answer, and what its nodes share |
//! | `executor.rs`, `record.rs` | the trait of executors for one node, and what is on disk of a share |
//! | `workers.rs`, `output.rs`, `lease.rs` | the workers of a share as the agent knows them, their output, what their runner may count on |
//! | `link.rs`, `server.rs`, `runner.rs`, `runner_notes.rs` | what runs inside the other scheduler's job, and how it is spoken to |
//! | `streams.rs` | connections for bytes: commands next to workers, ports of theirs |
//! | `files.rs`, `far_store.rs` | the agent's store of files, and what runners see of it |
//! | `nodes.rs` | the nodes and their sessions |
//!
//! **Invariant:** the other scheduler is never believed about what runs: a worker runs because a runner was told to launch it,
//! once, under a lease.

pub(crate) mod executor;
mod far_store;
pub(crate) mod files;
pub(crate) mod lease;
pub(crate) mod link;
pub(crate) mod nodes;
pub(crate) mod output;
pub(crate) mod record;
pub(crate) mod runner;
mod runner_notes;
pub(crate) mod scheduler;
pub(crate) mod server;
mod streams;
pub(crate) mod workers;

use crate::disk::durable::{read_record, write_record};
use crate::disk::state_dir::StateDirError;
use crate::monitoring::AgentMonitor;
use crate::process::transcript::OutputStream;
use crate::settings::LogLimits;
use muster_client::Endpoints;
use muster_types::worker_features::WorkerFeature;
use muster_types::{ExitStatus, Name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the agent of another scheduler's cluster is made of, without the cluster's own settings.
pub(crate) struct Surroundings {
    pub(crate) state_dir: PathBuf,
    pub(crate) boot_id_path: PathBuf,
    pub(crate) endpoints: Endpoints,
    pub(crate) shim_command: Vec<String>,
    pub(crate) logs: LogLimits,
    pub(crate) pass_environment: Vec<String>,
    pub(crate) given: files::SecretsAndFiles,
    pub(crate) monitor: AgentMonitor,
}

/// Whether a frame of either side is one.
pub(crate) fn takes_frame(frame: &[u8]) -> bool {
    link::decode_frame(frame).is_some() || link::decode::<link::ToRunner>(frame).is_some()
}

/// A frame as a runner sends it.
pub(crate) fn frame_sample() -> Vec<u8> {
    let stream = Some(OutputStream::Stdout);
    link::encode_piece(&link::Piece { number: 9, rank: 4, stream, lost: 3, data: b"output".to_vec() })
}

/// Labels nodes with what workers cannot have there, whatever an operator says.
pub(crate) fn label_lacking(labels: &mut BTreeMap<Name, String>, lacking: &[WorkerFeature]) {
    labels.retain(|label, _| WorkerFeature::ALL.iter().all(|feature| label.as_str() != feature.label()));
    let facts = lacking.iter().map(|feature| feature.lacking_fact());
    labels.extend(facts.map(|(label, value)| (Name::literal(label), value.to_owned())));
}

/// The other scheduler's job is lost with whatever it ran.
pub(crate) fn lost(why: &str) -> ExitStatus {
    ExitStatus::BackendLost(crate::rules::detail(why))
}

/// What tells this agent's jobs there from another's, made once.
pub(crate) fn scope(root: &Path) -> Result<String, StateDirError> {
    let path = root.join("scope");
    let failed = StateDirError::Record;
    if let Some(scope) = read_record::<String>(&path).map_err(failed)? {
        return Ok(scope);
    }
    let scope = format!("{:032x}", rand::random::<u128>());
    write_record(&path, &scope).map_err(failed)?;
    Ok(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_lacks_goes_before_what_an_operator_says() {
        let name = |text: &str| Name::new(text).unwrap();
        let said = [("worker.binding", "yes"), ("worker.shared-memory", "none"), ("zone", "a")];
        let mut labels: BTreeMap<Name, String> =
            said.map(|(label, value)| (name(label), value.to_owned())).into();
        label_lacking(&mut labels, &[WorkerFeature::Binding, WorkerFeature::Terminal]);
        let expected = [("worker.binding", "none"), ("worker.terminal", "none"), ("zone", "a")];
        assert_eq!(labels, expected.map(|(label, value)| (name(label), value.to_owned())).into());
    }
}
