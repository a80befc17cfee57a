//! What the program that carried a drill out knows of it: hosts, steps, times. Written next to the history, as JSON.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::text;

/// One run of one drill. Times are of the clock of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the scenario.
    pub scenario: String,
    /// Which run of it, from 1.
    pub number: u32,
    /// What everything random was drawn from.
    pub seed: u64,
    /// Where it ran: the machine and its size, for people.
    pub place: String,
    /// The release that was drilled.
    pub version: String,
    /// The first operation may have been made.
    pub start_us: u64,
    /// The first step began.
    pub fault_us: u64,
    /// The last step that undoes something was over; none where nothing was undone.
    pub heal_us: Option<u64>,
    /// The last operation was over.
    pub end_us: u64,
    /// What the Unix clock of the harness showed at `fault_us`, in milliseconds.
    pub fault_unix_ms: u64,
    /// Everything that takes part.
    pub hosts: Vec<Host>,
    /// What was done.
    pub steps: Vec<StepDone>,
    /// Lease of a node: how long it lasts without a renewal.
    pub lease_ttl_ms: u64,
    /// What the leader waits beyond that.
    pub lease_margin_ms: u64,
    /// How much faster or slower than it should a clock ran that staleness was measured on, in thousandths. 0 where
    /// no step set a clock.
    #[serde(default)]
    pub clock_drift_milli: u32,
    /// Whether every request between the first and the last that clients of the history were acknowledged was made by
    /// them: then a request there that nobody made is a finding.
    pub only_ours: bool,
    /// When the cluster went on from survivors; none where it did not.
    #[serde(default)]
    pub recovered_us: Option<u64>,
    /// Warnings that replicas gave while the drill ran.
    #[serde(default)]
    pub warnings: Vec<WarningSeen>,
    /// What replicas said of their states once all was quiet, and before.
    #[serde(default)]
    pub states: Vec<StateSeen>,
    /// What could not be done here, and why.
    #[serde(default)]
    pub skipped: Vec<String>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its region.
    pub region: String,
    /// What runs on it.
    pub runs: Runs,
    /// Whether a step touched it: survivors are those that none did. A cut touches the side that is cut off: `from`
    /// where `to` is `rest` or `peers`, and the other way round.
    pub touched: bool,
    /// Whether it was still not there when the drill was over: a replica that was replaced or given up, and clients that were
    /// cut off to the end.
    #[serde(default)]
    pub gone: bool,
}

/// What runs on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runs {
    /// A replica, by its id.
    Replica(u64),
    /// An agent, by the name of its node.
    Agent(String),
    /// Clients.
    Clients,
}

/// A step that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepDone {
    /// When it began.
    pub at_us: u64,
    /// When it was over; for a step that lasts, when it was undone.
    pub until_us: Option<u64>,
    /// Its verb.
    pub verb: String,
    /// What it did to which hosts, one line for people.
    pub text: String,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarningSeen {
    /// When it was there.
    pub at_us: u64,
    /// Its code.
    pub code: String,
    /// Whom it is about, where it is about one.
    #[serde(default)]
    pub replica: Option<u64>,
}

/// What a replica said of its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSeen {
    /// When it was asked.
    pub at_us: u64,
    /// Which replica.
    pub replica: u64,
    /// How far it has applied the log.
    pub log_index: u64,
    /// The digest of its state there.
    #[serde(with = "text::hexadecimal")]
    pub digest: u64,
}

impl Run {
    /// Replicas that no step touched.
    #[must_use]
    pub fn surviving_replicas(&self) -> BTreeSet<u64> {
        let surviving = self.hosts.iter().filter(|host| !host.touched);
        surviving.filter_map(|host| if let Runs::Replica(id) = host.runs { Some(id) } else { None }).collect()
    }

    /// Regions in which a step touched clients: what they ask need not be answered. None where that is every region
    /// with clients: somebody has to say how long it took until all was well.
    #[must_use]
    pub fn regions_cut_off(&self) -> BTreeSet<&str> {
        let clients = || self.hosts.iter().filter(|host| host.runs == Runs::Clients);
        if clients().all(|host| host.touched) {
            return BTreeSet::new();
        }
        clients().filter(|host| host.touched).map(|host| host.region.as_str()).collect()
    }

    /// Regions whose clients were cut off to the end: nothing that came later can have reached them.
    #[must_use]
    pub fn regions_given_up(&self) -> BTreeSet<&str> {
        let given_up = self.hosts.iter().filter(|host| host.runs == Runs::Clients && host.gone);
        given_up.map(|host| host.region.as_str()).collect()
    }

    /// When the fault ended: with the last step that undoes something, or with the last step.
    #[must_use]
    pub fn fault_end_us(&self) -> u64 {
        let last_step = self.steps.iter().map(|step| step.until_us.unwrap_or(step.at_us)).max();
        self.heal_us.or(last_step).unwrap_or(self.fault_us)
    }

    /// Milliseconds from the fault to a time; negative before it.
    #[must_use]
    pub fn since_fault_ms(&self, at_us: u64) -> i64 {
        // Both are far below half of what an i64 holds.
        let ms = |us: u64| (us / 1_000) as i64;
        ms(at_us) - ms(self.fault_us)
    }

    /// A time of the harness as Unix milliseconds, as far as its clock goes.
    #[must_use]
    pub fn unix_ms(&self, at_us: u64) -> u64 {
        self.fault_unix_ms.saturating_add_signed(self.since_fault_ms(at_us))
    }
}
