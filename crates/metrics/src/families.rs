//! The table of all families.

/// How a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A number that only grows while the process runs.
    Counter,
    /// Durations in buckets.
    Histogram,
    /// A constant 1 whose labels say something.
    Info,
}

/// One family of time series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// As the text format has it, with its unit and, of a counter, without `_total`.
    pub name: &'static str,
    /// How it counts.
    pub kind: Kind,
    /// Its labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, labels, help }
}

macro_rules! families {
    ($($constant:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) const $constant: Family = family($name, Kind::$kind, &[$($label),*], $help);)*
        /// Every family of a replica, in the order in which they are exposed.
        pub const FAMILIES: &[Family] = &[$($constant),*];
    };
}

families! {
    BUILD = "muster_build" Info ["version"] "The program that runs";
    CALLS = "muster_grpc_calls" Counter ["method", "code"] "Calls of clients and agents that have ended";
    CALL_SECONDS = "muster_grpc_call_duration_seconds" Histogram ["method"] "Duration of calls that are no streams, from their first byte to their last";
    CALLS_OPEN = "muster_grpc_calls_open" Gauge [] "Calls and streams that are open";
    REFUSALS = "muster_refusals" Counter ["reason"] "Refusals by their reason";
    IS_LEADER = "muster_raft_is_leader" Gauge [] "1 on the replica that leads and that a quorum confirms, 0 elsewhere";
    HAS_LEADER = "muster_raft_has_leader" Gauge [] "1 while this replica leads or hears a leader";
    TERM = "muster_raft_term" Gauge [] "The newest term this replica knows";
    VOTERS = "muster_raft_voters" Gauge [] "Voters of the membership this replica knows";
    LEADERSHIPS = "muster_raft_leaderships_recent" Gauge [] "Leaderships that began within the last 10 minutes";
    LAST_INDEX = "muster_raft_last_index" Gauge [] "The last entry of the log of this replica";
    COMMITTED_INDEX = "muster_raft_committed_index" Gauge [] "The last entry this replica knows to be committed";
    APPLIED_INDEX = "muster_raft_applied_index" Gauge [] "The last entry this replica applied";
    SNAPSHOT_INDEX = "muster_raft_snapshot_index" Gauge [] "Where the newest snapshot of this replica ends";
    LEADER_SILENT = "muster_raft_leader_silent_seconds" Gauge [] "How long ago this replica last heard a leader; absent on the leader";
    QUORUM_SILENT = "muster_raft_quorum_silent_seconds" Gauge [] "How long ago a quorum last answered this leader; absent elsewhere";
    PEER_LAG = "muster_raft_peer_lag_entries" Gauge ["replica"] "Entries by which a replica is behind the leader; on the leader alone";
    REJOINING = "muster_raft_rejoining" Gauge [] "1 while this replica lost its storage and has not rejoined";
    LOG_INDEX = "muster_log_index" Gauge [] "The last record of the decision log that this replica applied";
    LOG_TIME = "muster_log_time_seconds" Gauge [] "Time of that record, as seconds since 1970";
    FORMAT = "muster_log_format" Gauge [] "The record format in force";
    RECORDS_REJECTED = "muster_log_records_rejected" Gauge [] "Records that every replica rejected when it applied them";
    RECORDS = "muster_log_records" Counter ["decision"] "Records of the decision log by kind, of those decided since this process started";
    SUBMITTED = "muster_jobs_submitted" Counter ["tier"] "Jobs that were submitted";
    QUEUE_SECONDS = "muster_job_queue_duration_seconds" Histogram ["tier"] "From submission, or a requeue, to placement; without jobs that other jobs or a time hold back";
    START_SECONDS = "muster_job_start_duration_seconds" Histogram ["tier"] "From the placement of a gang until every worker has started";
    STOPPED = "muster_gangs_stopped" Counter ["cause"] "Gangs that were told to stop before their end";
    FAILED = "muster_attempts_failed" Counter ["class"] "Attempts that ended before their work was done";
    FINISHED = "muster_jobs_finished" Counter ["outcome"] "Jobs that ended";
    LOST = "muster_nodes_lost" Counter ["cause"] "Nodes that were declared lost";
    JOBS = "muster_jobs" Gauge ["state"] "Jobs in the state: pending, active, finished";
    TENANT_JOBS = "muster_tenant_jobs" Gauge ["tenant", "state"] "Jobs of a tenant in the state: pending, held, active";
    TENANT_PENDING = "muster_tenant_pending_accelerators" Gauge ["tenant"] "Accelerators that pending jobs of a tenant ask for";
    TENANT_DEVICES = "muster_tenant_accelerators" Gauge ["tenant", "type"] "Accelerators that jobs of a tenant and of those below it hold";
    TENANTS_LEFT_OUT = "muster_tenants_left_out" Gauge [] "1 while there are more tenants than have separate series";
    QUOTA_NOMINAL = "muster_quota_nominal_accelerators" Gauge ["tenant", "type", "region"] "Accelerators that a quota guarantees";
    QUOTA_USED = "muster_quota_used_accelerators" Gauge ["tenant", "type", "region"] "Accelerators of a quota that are in use, by the tenant and those below it";
    QUOTA_BORROWING = "muster_quota_borrowing_limit_accelerators" Gauge ["tenant", "type", "region"] "Accelerators that may be borrowed beyond the quota; absent without a limit";
    QUOTA_LENDING = "muster_quota_lending_limit_accelerators" Gauge ["tenant", "type", "region"] "Accelerators of the quota that others may borrow; absent without a limit";
    NODES = "muster_nodes" Gauge ["state"] "Registered nodes by state: up, lost";
    NODES_RESTRICTED = "muster_nodes_restricted" Gauge [] "Nodes that an operator or a finding keeps from taking jobs, or that are being drained";
    NODES_PENDING = "muster_nodes_awaiting_admission" Gauge [] "Nodes that tried to register and are not admitted";
    DEVICES = "muster_accelerators" Gauge ["region", "cluster", "type"] "Accelerators of registered nodes, in whatever state these are";
    DEVICES_FREE = "muster_accelerators_free" Gauge ["region", "cluster", "type"] "Accelerators, and shares of them, that are free on nodes that take jobs";
    DEVICES_IDLE = "muster_accelerators_idle" Gauge ["region", "cluster", "type"] "Accelerators that are free as a whole on nodes that take jobs";
    STORAGE_FREE = "muster_storage_free_bytes" Gauge [] "Space left on the disk of the data directory";
    FLUSH = "muster_storage_flush_seconds" Gauge [] "Mean duration of a recent flush to disk";
    STALLED = "muster_storage_stalled_seconds" Gauge [] "For how long the flush under way has lasted";
    SNAPSHOT_AGE = "muster_snapshot_age_seconds" Gauge [] "Age of the newest snapshot; absent before the first";
    ARCHIVE_INDEX = "muster_archive_log_index" Gauge [] "Up to which record the archive of this replica is complete";
    ARCHIVE_FAILING = "muster_archive_failing" Gauge [] "1 while the archive cannot be opened or written";
    ARCHIVE_DAMAGED = "muster_archive_damaged_objects" Gauge [] "Objects of the archive that are damaged or gone and not yet rebuilt";
    CERTIFICATE_DAYS = "muster_certificate_days_left" Gauge [] "Days until the first certificate of this replica runs out; absent without certificates";
    RESIDENT = "process_resident_memory_bytes" Gauge [] "Memory of the process that is in memory";
    CPU = "process_cpu_seconds" Counter [] "Processor time of the process";
    DESCRIPTORS = "process_open_fds" Gauge [] "Open file descriptors of the process";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for (at, family) in FAMILIES.iter().enumerate() {
            let Family { name, kind, labels, help } = *family;
            assert!(name.starts_with("muster_") || name.starts_with("process_"), "{name}");
            assert!(is_plain(name) && labels.iter().all(|label| is_plain(label)), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the format adds it");
            assert!(!help.ends_with('.') && help.len() < 120, "{name}: {help}");
            assert!(!name.ends_with("_ms") && !name.ends_with("_us"), "{name}: base units");
            assert_eq!(kind == Kind::Histogram, name.ends_with("_duration_seconds"), "{name}");
            assert!(FAMILIES[..at].iter().all(|other| other.name != name), "{name} is there twice");
            let free = ["job", "node", "user", "principal", "address"];
            assert!(labels.iter().all(|label| !free.contains(label)), "{name}: unbounded label");
        }
    }
}
