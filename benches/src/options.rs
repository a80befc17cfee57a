//! Options that scenarios share.

use std::path::PathBuf;
use std::time::Duration;

/// What every scenario takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Length of each part
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: u64,
    /// Directory whose disk is measured; the system's temporary directory when not given
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: crate::results::Output,
}

impl Common {
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// Replicas that the clients of a scenario connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum To {
    /// All replicas, round-robin
    All,
    /// The leader
    Leader,
}

impl To {
    /// The replicas, given the leader.
    pub(crate) fn replicas(self, leader: usize) -> Vec<usize> {
        match self {
            To::All => vec![0, 1, 2],
            To::Leader => vec![leader],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            To::All => "all replicas",
            To::Leader => "the leader",
        }
    }
}
