//! What a run is made of.

use muster_consensus::Timing;
use muster_planted::Rule;
use muster_types::Parameters;

/// Rules that the simulator breaks itself, since what it simulates keeps them in the product: the opening of a directory, and
/// clients. The others are broken in the product, by a build with the feature `planted-bugs`.
pub const OWN: [Rule; 2] = [Rule::VoteAfterLoss, Rule::RetryUnderNewId];

/// Rules that this build can break.
#[must_use]
pub fn breakable() -> Vec<Rule> {
    Rule::ALL.into_iter().filter(|rule| muster_planted::IS_ON || OWN.contains(rule)).collect()
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
    pub bug: Option<Rule>,
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
            // The least that may be set: a clock that is wrong by an hour is wrong by more than that.
            request_retention_ms: 60_000,
            job_retention_ms: 60_000,
            ..Parameters::DEFAULT
        }
    }
}
