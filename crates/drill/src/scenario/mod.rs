//! Scenario files: what is done to a cluster, in which order, and what must hold.
//!
//! A scenario has one list of steps for clusters of real processes, where anything may be broken, and one for live
//! clusters, where every step undoes itself. Hosts are named by their part ("the leader", "its region"), and every
//! part is given to hosts once, when the fault starts: who led then stays `leader` in all later steps, so that
//! `start leader` starts what `kill leader` killed.
//!
//! **Invariant:** pure; no bytes panic, and what is not understood is refused with its line, never skipped.

mod read;
mod selector;
mod value;

use std::fmt;

pub use selector::{Selection, Selector};

/// Largest scenario file.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// Most steps of one list.
pub const STEPS_MAX: usize = 64;
/// Longest drill, and longest part of one.
pub const DURATION_MS_MAX: u64 = 3_600_000;
/// Longest that a step on a live cluster lasts.
pub const LIVE_FOR_MS_MAX: u64 = 300_000;
/// How long a cluster is watched after the last step, unless the file sets another time.
pub const SETTLE_MS: u64 = 15_000;
/// Longest pause between answers that still is no pause (`never-stop`): each replica is asked every 200 ms.
pub const NEVER_STOP_SILENCE_MS: u64 = 1_000;

/// Everything that one file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// As the file is called: lower-case words with hyphens.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What happens, and why that is worth a drill; a paragraph for people.
    pub story: String,
    /// File in `ops/runbooks`.
    pub runbook: String,
    /// On real processes; empty where there is no such drill.
    pub processes: Vec<Step<Action>>,
    /// On a live cluster; empty where there is no such drill.
    pub live: Vec<Step<LiveAction>>,
    /// How long the cluster is watched behind the end of the last step.
    pub settle_ms: u64,
    /// Beyond what always holds.
    pub expect: Expectations,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<A> {
    /// From the start of the fault.
    pub at_ms: u64,
    /// What is done.
    pub action: A,
    /// Its line in the file.
    pub line: u64,
}

/// Hosts whose packets are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Who sends.
    pub from: Selection,
    /// Who would receive.
    pub to: Selection,
    /// Whether the way back is meant too.
    pub both: bool,
}

/// What a link does to packets. Chances are in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkShape {
    /// Added to the way that the link has anyway.
    pub delay_us: u64,
    /// Drawn evenly from 0 to this, and added.
    pub jitter_us: u64,
    /// Packets that vanish.
    pub loss_ppm: u32,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// Packets that later ones overtake.
    pub reorder_ppm: u32,
    /// Packets of which one bit is turned.
    pub corrupt_ppm: u32,
    /// Bits per second; none for as much as goes.
    pub rate_bits: Option<u64>,
}

/// A file of a replica's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFile {
    /// Middle of the newest segment of the log.
    Log,
    /// Last bytes of the log.
    LogTail,
    /// The newest snapshot.
    Snapshot,
    /// Vote and floor.
    Vote,
    /// The newest segment of the archive.
    Archive,
}

/// What is done to bytes on disk, while their process does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// One bit is turned.
    FlipBit,
    /// The last bytes are cut off.
    Truncate,
    /// The file is gone.
    Remove,
}

/// What can be done to real processes. Where `for_ms` is none, it lasts until a later step or the drill ends it;
/// the program that carries a drill out undoes everything at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Packets vanish without a word: no reset, as when a region is lost.
    Cut {
        /// Whose packets.
        pair: Pair,
        /// How long.
        for_ms: Option<u64>,
    },
    /// Links are as they were before the drill: those of the pair, or all.
    Heal {
        /// None for all links.
        pair: Option<Pair>,
    },
    /// A link gets worse.
    Link {
        /// Which.
        pair: Pair,
        /// How.
        shape: LinkShape,
        /// How long.
        for_ms: Option<u64>,
    },
    /// A link is cut and healed in turns, and ends healed.
    Flap {
        /// Which.
        pair: Pair,
        /// How long it is cut each time.
        down_ms: u64,
        /// How long it is whole each time.
        up_ms: u64,
        /// How long this goes on.
        for_ms: u64,
    },
    /// SIGKILL to every process of Muster on these hosts: replicas, agents, shims and workers.
    Kill {
        /// Which hosts.
        what: Selection,
    },
    /// Replicas and agents that do not run are started on what they have on disk.
    Start {
        /// Which hosts.
        what: Selection,
    },
    /// SIGSTOP to the replica or agent (not to shims and workers), and SIGCONT at the end.
    Pause {
        /// Which hosts.
        what: Selection,
        /// How long; none until `resume`.
        for_ms: Option<u64>,
    },
    /// Ends a pause.
    Resume {
        /// Which hosts.
        what: Selection,
    },
    /// Every flush of the data disk takes this much longer.
    SlowDisk {
        /// Which replicas.
        what: Selection,
        /// Added to each flush.
        flush_ms: u64,
        /// How long.
        for_ms: Option<u64>,
    },
    /// The data disk has no free space left.
    FullDisk {
        /// Which replicas.
        what: Selection,
        /// How long; none until [`Action::DiskRoom`].
        for_ms: Option<u64>,
    },
    /// The data disk has free space again.
    DiskRoom {
        /// Which replicas.
        what: Selection,
    },
    /// Bytes on disk are damaged. The process must have been killed before.
    Damage {
        /// Which replicas.
        what: Selection,
        /// Which of their files.
        file: DataFile,
        /// How.
        how: Corruption,
    },
    /// The data directory is gone. The process must have been killed before.
    LoseDisk {
        /// Which replicas.
        what: Selection,
    },
    /// The process is killed, and of its disk nothing is left but what was flushed.
    PowerCut {
        /// Which replicas.
        what: Selection,
    },
    /// The clock of a process jumps, runs at another rate, or both. At least one of both is other than usual.
    Clock {
        /// Which hosts.
        what: Selection,
        /// Added to the wall clock.
        offset_ms: i64,
        /// All clocks: 1000 is as usual, 1300 is 30 % fast.
        rate_milli: u32,
        /// How long.
        for_ms: Option<u64>,
    },
    /// A new replica takes the place of a lost one, as its runbook says.
    ReplaceReplica {
        /// Exactly one replica that does not run.
        what: Selection,
    },
    /// One after the other is stopped with SIGTERM and started, the next when the last is back and has caught up.
    RollingRestart {
        /// Which replicas.
        what: Selection,
    },
    /// The same with another binary, and then the raised format.
    RollingUpgrade {
        /// Which replicas.
        what: Selection,
    },
    /// The cluster goes on from what these survivors have, in a new generation, as the runbook says.
    Recover {
        /// Replicas that run or can be started.
        what: Selection,
    },
    /// The leader gives up leadership.
    TransferLeadership {
        /// To whom; none for whom the cluster takes.
        to: Option<Selection>,
    },
}

/// What can be done to a live cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveAction {
    /// The leader gives up leadership.
    TransferLeadership {
        /// To whom; none for whom the cluster takes.
        to: Option<Selection>,
    },
    /// Nothing new is placed in a region; what runs there goes on.
    CordonRegion {
        /// One region.
        what: Selection,
        /// How long.
        for_ms: u64,
    },
    /// Replicas refuse traffic of replicas, agents and clients.
    RefuseTraffic {
        /// Which.
        what: Selection,
        /// How long.
        for_ms: u64,
    },
}

/// What a machine must offer for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Means {
    /// Hosts whose packets go through the drill's own wire.
    Wire,
    /// System calls of a process can be delayed.
    SystemCalls,
    /// A separate data disk, of a given size.
    SmallDisk,
    /// A data disk of which the unflushed part can be lost.
    LosingDisk,
    /// A process can be given another clock.
    OtherClock,
    /// A second binary to upgrade to.
    OtherBinary,
}

/// The step that a time is measured from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeasuredFrom {
    /// The first step.
    #[default]
    Fault,
    /// The last step that undoes something.
    Heal,
}

/// When something must work again, over all runs of the drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryTime {
    /// Median of all runs.
    pub median_ms: Option<u64>,
    /// The worst run; also the bar of a single one.
    pub worst_ms: u64,
    /// What is counted from.
    pub since: MeasuredFrom,
}

/// Submissions are as fast again, though the fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledLatency {
    /// Median delay of submissions made from then on, until the fault ends.
    pub p50_ms: u64,
    /// How long after the fault began.
    pub within_ms: u64,
}

/// What becomes of the leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another replica leads at the end of the fault.
    Moves,
    /// The same replica leads all the time, in one term.
    Stays,
}

/// What must hold in one drill. Always, and so never written: nothing acknowledged is lost (but by
/// [`lost_at_most_ms`](Expectations::lost_at_most_ms)), nothing exists twice, nothing runs twice, reads are
/// linearizable where they claim to be and fresh where they claim to be, watches are exact, and all replicas come to
/// the same state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectations {
    /// Who leads.
    pub leadership: Option<Leadership>,
    /// Time to the next acknowledged submission.
    pub submission_again: Option<RecoveryTime>,
    /// Time to the next answered linearizable read.
    pub linearizable_read_again: Option<RecoveryTime>,
    /// Every submission is acknowledged in this time, and none fails.
    pub acknowledged_within_ms: Option<u64>,
    /// Submissions are fast again while the fault lasts.
    pub submissions_settle: Option<SettledLatency>,
    /// Longest silence of reads of any staleness on any replica that no step touches.
    pub reads_on_survivors_silence_ms: Option<u64>,
    /// Gangs of lost hosts run elsewhere so long after their leases ended.
    pub gangs_elsewhere_after_lease_ms: Option<u64>,
    /// No running gang is stopped or fails.
    pub gangs_untouched: bool,
    /// Acknowledgements of so long before the fault may be lost: more than 0 only where the file recovers from survivors.
    pub lost_at_most_ms: u64,
    /// Codes of warnings that `cluster status` shows during the fault.
    pub warnings: Vec<String>,
    /// All replicas that run have the same state so long after the last step ended.
    pub replicas_equal_within_ms: Option<u64>,
}

/// One mistake in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1; 0 where the place is not known.
    pub line: u64,
    /// As in the file, for example `processes[0].from`; empty for the file as a whole.
    pub field: String,
    /// What is wrong and what would be right.
    pub description: String,
}

/// All that is wrong with a scenario file; at least one problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// The file, as it was named by the caller.
    pub file: String,
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let Problem { line, field, description } = problem;
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{line}: ", self.file)?;
            if !field.is_empty() {
                write!(f, "{field}: ")?;
            }
            f.write_str(description)?;
        }
        Ok(())
    }
}

impl Scenario {
    /// Reads a file. `file` is only for refusals; its last part without `.yaml` must be the scenario's name.
    ///
    /// # Errors
    /// All problems of the file that can be seen at once.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Scenario, ScenarioError> {
        read::scenario(file, bytes).map_err(|problems| ScenarioError { file: file.to_owned(), problems })
    }

    /// When the last step on processes has ended, as far as the file knows: steps that wait for the cluster
    /// (rolling ones, replacing, recovering) take longer.
    pub fn processes_end_ms(&self) -> u64 {
        self.processes.iter().map(|step| step.at_ms + step.action.for_ms().unwrap_or(0)).max().unwrap_or(0)
    }

    /// When the last step on a live cluster has undone itself.
    pub fn live_end_ms(&self) -> u64 {
        self.live.iter().map(|step| step.at_ms + step.action.for_ms().unwrap_or(0)).max().unwrap_or(0)
    }

    /// When something is undone for the last time, from the start of the fault; none where nothing is.
    pub fn heal_ms(&self) -> Option<u64> {
        let undone = |step: &Step<Action>| match &step.action {
            Action::Heal { .. }
            | Action::Start { .. }
            | Action::Resume { .. }
            | Action::DiskRoom { .. }
            | Action::ReplaceReplica { .. }
            | Action::Recover { .. } => Some(step.at_ms),
            other => other.for_ms().map(|for_ms| step.at_ms + for_ms),
        };
        self.processes.iter().filter_map(undone).max()
    }

    /// What a machine must offer for the steps on processes.
    pub fn means(&self) -> std::collections::BTreeSet<Means> {
        self.processes.iter().filter_map(|step| step.action.means()).collect()
    }
}

impl Action {
    /// How long it lasts by itself.
    pub fn for_ms(&self) -> Option<u64> {
        match self {
            Action::Cut { for_ms, .. }
            | Action::Link { for_ms, .. }
            | Action::Pause { for_ms, .. }
            | Action::SlowDisk { for_ms, .. }
            | Action::FullDisk { for_ms, .. }
            | Action::Clock { for_ms, .. } => *for_ms,
            Action::Flap { for_ms, .. } => Some(*for_ms),
            _ => None,
        }
    }

    /// What a machine must offer for it.
    pub fn means(&self) -> Option<Means> {
        match self {
            Action::Cut { .. } | Action::Heal { .. } | Action::Link { .. } | Action::Flap { .. } => {
                Some(Means::Wire)
            }
            Action::SlowDisk { .. } => Some(Means::SystemCalls),
            Action::FullDisk { .. } | Action::DiskRoom { .. } => Some(Means::SmallDisk),
            Action::PowerCut { .. } => Some(Means::LosingDisk),
            Action::Clock { .. } => Some(Means::OtherClock),
            Action::RollingUpgrade { .. } => Some(Means::OtherBinary),
            _ => None,
        }
    }

    /// As in a file.
    pub fn verb(&self) -> &'static str {
        match self {
            Action::Cut { .. } => "cut",
            Action::Heal { .. } => "heal",
            Action::Link { .. } => "link",
            Action::Flap { .. } => "flap",
            Action::Kill { .. } => "kill",
            Action::Start { .. } => "start",
            Action::Pause { .. } => "pause",
            Action::Resume { .. } => "resume",
            Action::SlowDisk { .. } => "slow-disk",
            Action::FullDisk { .. } => "full-disk",
            Action::DiskRoom { .. } => "disk-room",
            Action::Damage { .. } => "damage",
            Action::LoseDisk { .. } => "lose-disk",
            Action::PowerCut { .. } => "power-cut",
            Action::Clock { .. } => "clock",
            Action::ReplaceReplica { .. } => "replace-replica",
            Action::RollingRestart { .. } => "rolling-restart",
            Action::RollingUpgrade { .. } => "rolling-upgrade",
            Action::Recover { .. } => "recover",
            Action::TransferLeadership { .. } => "transfer-leadership",
        }
    }
}

impl LiveAction {
    /// How long it lasts by itself.
    pub fn for_ms(&self) -> Option<u64> {
        match self {
            LiveAction::TransferLeadership { .. } => None,
            LiveAction::CordonRegion { for_ms, .. } | LiveAction::RefuseTraffic { for_ms, .. } => {
                Some(*for_ms)
            }
        }
    }

    /// As in a file.
    pub fn verb(&self) -> &'static str {
        match self {
            LiveAction::TransferLeadership { .. } => "transfer-leadership",
            LiveAction::CordonRegion { .. } => "cordon-region",
            LiveAction::RefuseTraffic { .. } => "refuse-traffic",
        }
    }
}

/// Every verb of steps on processes.
pub const VERBS: [&str; 20] = [
    "cut",
    "heal",
    "link",
    "flap",
    "kill",
    "start",
    "pause",
    "resume",
    "slow-disk",
    "full-disk",
    "disk-room",
    "damage",
    "lose-disk",
    "power-cut",
    "clock",
    "replace-replica",
    "rolling-restart",
    "rolling-upgrade",
    "recover",
    "transfer-leadership",
];

/// Every verb of steps on a live cluster.
pub const LIVE_VERBS: [&str; 3] = ["transfer-leadership", "cordon-region", "refuse-traffic"];
