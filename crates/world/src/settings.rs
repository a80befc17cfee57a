//! What a run is made of.

use muster_consensus::Timing;
use muster_types::Parameters;
use std::fmt;
use std::str::FromStr;

/// A rule that the simulator breaks on purpose, in its own adapters, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlantedBug {
    /// A leader renews leases without asking a quorum.
    HeartbeatWithoutQuorum,
    /// Proposals are bound to no leadership, and records of a lost one are applied as if they were current.
    SkipGuard,
    /// A replica that lost its log starts empty under its old name and votes.
    VoteAfterLoss,
    /// Entries are acknowledged, and so applied, before they are flushed.
    AckBeforeFlush,
    /// A leader that restarts goes on without an election.
    LeaderRestore,
    /// An agent starts a gang without asking whether the order still stands, and outlives its lease.
    AgentIgnoresLease,
    /// A client repeats a submission under another request id.
    RetryUnderNewId,
    /// Log time stands still while a leader's wall clock is behind it.
    WallClockOnly,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [PlantedBug; 8] = [
        PlantedBug::HeartbeatWithoutQuorum,
        PlantedBug::SkipGuard,
        PlantedBug::VoteAfterLoss,
        PlantedBug::AckBeforeFlush,
        PlantedBug::LeaderRestore,
        PlantedBug::AgentIgnoresLease,
        PlantedBug::RetryUnderNewId,
        PlantedBug::WallClockOnly,
    ];

    /// As it is named on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PlantedBug::HeartbeatWithoutQuorum => "heartbeat-without-quorum",
            PlantedBug::SkipGuard => "skip-guard",
            PlantedBug::VoteAfterLoss => "vote-after-loss",
            PlantedBug::AckBeforeFlush => "ack-before-flush",
            PlantedBug::LeaderRestore => "leader-restore",
            PlantedBug::AgentIgnoresLease => "agent-ignores-lease",
            PlantedBug::RetryUnderNewId => "retry-under-new-id",
            PlantedBug::WallClockOnly => "wall-clock-only",
        }
    }
}

impl fmt::Display for PlantedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PlantedBug {
    type Err = String;

    fn from_str(text: &str) -> Result<PlantedBug, String> {
        let names: Vec<&str> = PlantedBug::ALL.iter().map(|bug| bug.name()).collect();
        let found = PlantedBug::ALL.into_iter().find(|bug| bug.name() == text);
        found.ok_or_else(|| format!("no planted bug {text}; there are {}", names.join(", ")))
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Everything random is drawn from it.
    pub seed: u64,
    /// Three or five.
    pub replicas: u32,
    /// Hosts with accelerators.
    pub agents: u32,
    /// How long faults come, in milliseconds of simulated time.
    pub chaos_ms: u64,
    /// Whether faults come at all.
    pub faults: bool,
    /// A rule that is broken on purpose.
    pub bug: Option<PlantedBug>,
}

impl Settings {
    /// What a seed stands for: three replicas or five, by the seed.
    #[must_use]
    pub fn of_seed(seed: u64, chaos_ms: u64) -> Settings {
        let replicas = if seed % 5 < 2 { 5 } else { 3 };
        Settings { seed, replicas, agents: 6, chaos_ms, faults: true, bug: None }
    }

    /// Heartbeats and elections: those of replicas in several regions.
    #[must_use]
    pub fn timing(&self) -> Timing {
        Timing::WIDE
    }

    /// Leases short enough to run out within a fault. Time to live and margin keep the proportion of the
    /// defaults, so that the same drift of clocks is allowed.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        Parameters {
            lease_ttl_ms: 3_000,
            lease_margin_ms: 900,
            heartbeat_interval_ms: 800,
            digest_interval_records: 40,
            ..Parameters::DEFAULT
        }
    }
}
