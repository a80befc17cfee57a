//! What a replica knows of itself at one moment.

/// The facts of one scrape. What is not known is none and has no series.
#[derive(Clone, Debug, Default)]
pub struct ReplicaFacts {
    /// Version of the program.
    pub version: String,
    /// Whether it leads, confirmed by a quorum.
    pub is_leader: bool,
    /// Whether it leads or hears a leader.
    pub has_leader: bool,
    /// Newest term.
    pub term: u64,
    /// Voters.
    pub voters: u64,
    /// Whether it is one of them, and has what it promised.
    pub is_voter: bool,
    /// Leaderships that began lately.
    pub leaderships_recent: u64,
    /// Last entry of the log.
    pub last_index: u64,
    /// Last committed entry it knows.
    pub committed_index: u64,
    /// Last applied entry.
    pub applied_index: u64,
    /// End of the newest snapshot.
    pub snapshot_index: u64,
    /// Bytes of disk that its Raft log has.
    pub log_bytes: Option<u64>,
    /// Since when it has not heard a leader, in milliseconds.
    pub leader_silent_ms: Option<u64>,
    /// Since when no quorum has answered it, in milliseconds.
    pub quorum_silent_ms: Option<u64>,
    /// By replica id, entries that it is behind; of a leader alone.
    pub peer_lag_entries: Option<Vec<(String, u64)>>,
    /// Whether it lost its storage and is not back.
    pub is_rejoining: bool,
    /// Last applied record.
    pub log_index: u64,
    /// Its time, in milliseconds since 1970.
    pub log_time_ms: u64,
    /// Record format in force.
    pub format: u64,
    /// Records that were rejected by every replica.
    pub records_rejected: u64,
    /// Broken invariants that it met while it decided, since the process started.
    pub decision_faults: u64,
    /// Commands that wait for the decision loop, by lane.
    pub inbox: Vec<(&'static str, u64)>,
    /// Jobs that wait.
    pub jobs_pending: u64,
    /// The same by what holds them back.
    pub jobs_held_back: Vec<(&'static str, u64)>,
    /// Jobs that hold capacity.
    pub jobs_active: u64,
    /// Jobs that have ended and are not forgotten.
    pub jobs_finished: u64,
    /// Nodes that are up.
    pub nodes_up: u64,
    /// Nodes that are lost.
    pub nodes_lost: u64,
    /// Nodes that take no jobs, by order or finding.
    pub nodes_restricted: u64,
    /// Nodes that want in.
    pub nodes_awaiting_admission: u64,
    /// Per tenant, in the order of their names, [`crate::TENANTS_MAX`] at most.
    pub tenants: Vec<TenantFacts>,
    /// Whether there are more of them.
    pub leaves_tenants_out: bool,
    /// Accelerators per pool.
    pub pools: Vec<PoolFacts>,
    /// Accelerators in use, by type.
    pub used: Vec<UsedFacts>,
    /// Accelerators by region, type and what they do.
    pub states: Vec<StateFacts>,
    /// Free accelerators by region, type and why no job has them.
    pub stranded: Vec<StrandedFacts>,
    /// Sessions of nodes that are open; of a leader alone.
    pub sessions: Option<u64>,
    /// Space left, in bytes.
    pub storage_free_bytes: Option<u64>,
    /// Age of a flush under way, in milliseconds.
    pub stalled_ms: Option<u64>,
    /// Age of the newest snapshot, in milliseconds.
    pub snapshot_age_ms: Option<u64>,
    /// Where the archive is complete.
    pub archive_log_index: Option<u64>,
    /// Whether the archive is out of order.
    pub archive_is_failing: bool,
    /// Whether old segments of the archive stay here because they cannot be moved away.
    pub archive_offload_is_failing: bool,
    /// Objects that are damaged.
    pub archive_damaged_objects: u64,
    /// What became of events for receivers of notifications, by result, over all receivers; of a leader alone.
    pub notifications: Vec<(&'static str, u64)>,
    /// Records by which the last of the receivers is behind; of a leader alone.
    pub notification_lag_records: Option<u64>,
    /// Days that the certificates last.
    pub certificate_days_left: Option<i64>,
    /// The process.
    pub process: ProcessFacts,
}

/// A process, as the system knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFacts {
    /// Memory.
    pub resident_bytes: Option<u64>,
    /// Processor time, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Open descriptors.
    pub open_descriptors: Option<u64>,
    /// Spans that no collector took.
    pub trace_spans_dropped: u64,
}

/// One tenant.
#[derive(Clone, Debug, Default)]
pub struct TenantFacts {
    /// Its name.
    pub tenant: String,
    /// Its jobs that wait.
    pub pending: u64,
    /// Its jobs that wait for something else than capacity.
    pub held: u64,
    /// Its jobs that hold capacity.
    pub active: u64,
    /// What its pending jobs ask for, in thousandths of accelerators.
    pub pending_milli: u64,
    /// What fair share goes by, in billionths of the fleet.
    pub share_billionths: u64,
    /// What pending jobs of it and of those below it would take at once, if it were free: type and thousandths of
    /// accelerators, of types that nodes or quotas have. A job that accepts several types counts for each.
    pub eligible_milli: Vec<(String, u64)>,
    /// What it and those below it hold: type and thousandths of accelerators.
    pub used_milli: Vec<(String, u64)>,
    /// Its quotas.
    pub quotas: Vec<QuotaFacts>,
}

/// A quota of one type, in thousandths of accelerators.
#[derive(Clone, Debug, Default)]
pub struct QuotaFacts {
    /// Accelerator type.
    pub kind: String,
    /// Region; empty for all of them.
    pub region: String,
    /// Guaranteed.
    pub nominal_milli: u64,
    /// In use.
    pub used_milli: u64,
    /// The most that is borrowed; none for no limit.
    pub borrowing_limit_milli: Option<u64>,
    /// The most that is lent; none for no limit.
    pub lending_limit_milli: Option<u64>,
}

/// Accelerators of one type in one cluster of one region.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    /// Region.
    pub region: String,
    /// Cluster of hosts.
    pub cluster: String,
    /// Type.
    pub kind: String,
    /// All of them.
    pub total: u64,
    /// Free thousandths.
    pub free_milli: u64,
    /// Wholly free.
    pub idle: u64,
    /// Those of the rack that has most of them.
    pub idle_in_one_rack: u64,
    /// Price of an accelerator for an hour, in millionths of a dollar, where the policy has one.
    pub hourly_micro_dollars: Option<u64>,
}

/// Accelerators of one type in one region that do one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFacts {
    /// Region.
    pub region: String,
    /// Type.
    pub kind: String,
    /// starting, running, stopping, idle, cordoned, unhealthy, foreign or lost.
    pub state: &'static str,
    /// Thousandths.
    pub milli: u64,
}

/// Free accelerators of one type in one region that no job has for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrandedFacts {
    /// Region.
    pub region: String,
    /// Type.
    pub kind: String,
    /// `reserved`, `part_used`, `unplaced` or `no_demand`.
    pub cause: &'static str,
    /// Thousandths.
    pub milli: u64,
}

/// Accelerators of one type that jobs hold or that are kept for them while others stop.
#[derive(Clone, Debug, Default)]
pub struct UsedFacts {
    /// Type.
    pub kind: String,
    /// Thousandths.
    pub milli: u64,
}
