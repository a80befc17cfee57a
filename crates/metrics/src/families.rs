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
    ($(#[$doc:meta])* $table:ident, with [$($shared:ident),*]:
        $($constant:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) const $constant: Family = family($name, Kind::$kind, &[$($label),*], $help);)*
        $(#[$doc])*
        pub const $table: &[Family] = &[$($shared,)* $($constant),*];
    };
}

families! {
    /// Every family of a replica.
    FAMILIES, with []:
    BUILD = "muster_build" Info ["version"] "The program that runs";
    CALLS = "muster_grpc_calls" Counter ["method", "code", "bound"] "Calls that have ended; bound=unmet: a state was asked for that was not there yet";
    CALL_SECONDS = "muster_grpc_call_duration_seconds" Histogram ["method"] "Duration of calls that are no streams, from their first byte to their last";
    CALLS_OPEN = "muster_grpc_calls_open" Gauge [] "Calls and streams that are open";
    REFUSALS = "muster_refusals" Counter ["reason", "limit"] "Refusals by their reason, and of STATE_FULL by the limit that is reached";
    IS_LEADER = "muster_raft_is_leader" Gauge [] "1 on the replica that leads and that a quorum confirms, 0 elsewhere";
    HAS_LEADER = "muster_raft_has_leader" Gauge [] "1 while this replica leads or hears a leader";
    TERM = "muster_raft_term" Gauge [] "The newest term this replica knows";
    VOTERS = "muster_raft_voters" Gauge [] "Voters of the membership this replica knows";
    IS_VOTER = "muster_raft_is_voter" Gauge [] "1 while this replica votes in the membership it knows and has what it promised";
    LEADERSHIPS = "muster_raft_leaderships_recent" Gauge [] "Leaderships that began within the last 10 minutes";
    LAST_INDEX = "muster_raft_last_index" Gauge [] "The last entry of the log of this replica";
    COMMITTED_INDEX = "muster_raft_committed_index" Gauge [] "The last entry this replica knows to be committed";
    APPLIED_INDEX = "muster_raft_applied_index" Gauge [] "The last entry this replica applied";
    SNAPSHOT_INDEX = "muster_raft_snapshot_index" Gauge [] "Where the newest snapshot of this replica ends";
    LOG_BYTES = "muster_raft_log_bytes" Gauge [] "Bytes of disk that the Raft log of this replica has, with what is reserved for the next entries";
    LOG_APPENDED = "muster_raft_log_appended_bytes" Counter [] "Bytes of entries that this replica has put into its Raft log and flushed to disk";
    LEADER_SILENT = "muster_raft_leader_silent_seconds" Gauge [] "How long ago this replica last heard a leader; absent on the leader";
    QUORUM_SILENT = "muster_raft_quorum_silent_seconds" Gauge [] "How long ago a quorum last answered this leader; absent elsewhere";
    PEER_LAG = "muster_raft_peer_lag_entries" Gauge ["replica"] "Entries by which a replica is behind the leader; on the leader alone";
    PROPOSAL_SECONDS = "muster_raft_proposal_duration_seconds" Histogram [] "From the proposal of a round until it is committed and this leader has applied it";
    REJOINING = "muster_raft_rejoining" Gauge [] "1 while this replica lost its storage and has not rejoined";
    LOG_INDEX = "muster_log_index" Gauge [] "The last record of the decision log that this replica applied";
    LOG_TIME = "muster_log_time_seconds" Gauge [] "Time of that record, as seconds since 1970";
    FORMAT = "muster_log_format" Gauge [] "The record format in force";
    RECORDS_REJECTED = "muster_log_records_rejected" Gauge [] "Records that every replica rejected when it applied them";
    DECISION_FAULTS = "muster_decision_faults" Counter [] "Broken invariants that this replica met while it decided, and undid";
    ROUND_SECONDS = "muster_rounds_duration_seconds" Histogram [] "Time that the decision loop of this leader spent on a round that it proposed";
    INBOX = "muster_inbox_commands" Gauge ["lane"] "Commands that wait for the decision loop of this replica, of clients and of nodes";
    RECORDS = "muster_log_records" Counter ["decision"] "Records of the decision log by kind, of those decided since this process started";
    SUBMITTED = "muster_jobs_submitted" Counter ["tier"] "Jobs that were submitted";
    QUEUE_SECONDS = "muster_job_queue_duration_seconds" Histogram ["tier"] "From submission, or a requeue, to placement; without jobs that other jobs or a time hold back";
    START_SECONDS = "muster_job_start_duration_seconds" Histogram ["tier"] "From the placement of a gang until every worker has started";
    STOPPED = "muster_gangs_stopped" Counter ["cause"] "Gangs that were told to stop before their end";
    STOP_SECONDS = "muster_gang_stop_duration_seconds" Histogram ["cause"] "From the order to stop a gang until all of its workers have ended";
    FAILED = "muster_attempts_failed" Counter ["class"] "Attempts that ended before their work was done";
    FINISHED = "muster_jobs_finished" Counter ["outcome"] "Jobs that ended";
    LOST = "muster_nodes_lost" Counter ["cause"] "Nodes that were declared lost";
    JOBS = "muster_jobs" Gauge ["state"] "Jobs in the state: pending, active, finished";
    JOBS_PENDING = "muster_jobs_pending" Gauge ["reason"] "Pending jobs by what holds them back; eligible ones wait for capacity, quota or their turn";
    TENANT_JOBS = "muster_tenant_jobs" Gauge ["tenant", "state"] "Jobs of a tenant in the state: pending, held, active";
    TENANT_PENDING = "muster_tenant_pending_accelerators" Gauge ["tenant"] "Accelerators that pending jobs of a tenant ask for";
    TENANT_ELIGIBLE = "muster_tenant_eligible_accelerators" Gauge ["tenant", "type"] "Accelerators that jobs of a tenant and those below it wait for; not held jobs";
    TENANT_DEVICES = "muster_tenant_accelerators" Gauge ["tenant", "type"] "Accelerators that jobs of a tenant and of those below it hold";
    TENANT_SHARE = "muster_tenant_share" Gauge ["tenant"] "What fair share goes by: decayed use of the dominant resource, as a part of the fleet, divided by the weight";
    TENANTS_LEFT_OUT = "muster_tenants_left_out" Gauge [] "1 while there are more tenants than have separate series";
    QUOTA_NOMINAL = "muster_quota_nominal_accelerators" Gauge ["tenant", "type", "region"] "Accelerators that a quota guarantees";
    QUOTA_USED = "muster_quota_used_accelerators" Gauge ["tenant", "type", "region"] "Accelerators of a quota that are in use, by the tenant and those below it";
    QUOTA_BORROWED = "muster_quota_borrowed_accelerators" Gauge ["tenant", "type", "region"] "Accelerators in use beyond what the quota guarantees";
    QUOTA_BORROWING = "muster_quota_borrowing_limit_accelerators" Gauge ["tenant", "type", "region"] "Accelerators that may be borrowed beyond the quota; absent without a limit";
    QUOTA_LENDING = "muster_quota_lending_limit_accelerators" Gauge ["tenant", "type", "region"] "Accelerators of the quota that others may borrow; absent without a limit";
    NODES = "muster_nodes" Gauge ["state"] "Registered nodes by state: up, lost";
    NODES_RESTRICTED = "muster_nodes_restricted" Gauge [] "Nodes that an operator or a finding keeps from taking jobs, or that are being drained";
    SESSIONS = "muster_sessions" Gauge [] "Sessions of nodes that are open on this leader; absent elsewhere";
    NODES_PENDING = "muster_nodes_awaiting_admission" Gauge [] "Nodes that tried to register and are not admitted";
    DEVICES = "muster_accelerators" Gauge ["region", "cluster", "type"] "Accelerators of registered nodes, in whatever state these are";
    DEVICES_USED = "muster_accelerators_used" Gauge ["type"] "Accelerators, and shares of them, that jobs hold or that are kept for jobs while others stop";
    DEVICES_STATE = "muster_accelerators_by_state" Gauge ["region", "type", "state"] "Accelerators by state; those of cordoned and lost nodes count there also while jobs hold them";
    DEVICES_STRANDED = "muster_accelerators_stranded" Gauge ["region", "type", "cause"] "Free accelerators by why no job has them: reserved, part_used, unplaced, no_demand";
    DEVICES_FREE = "muster_accelerators_free" Gauge ["region", "cluster", "type"] "Accelerators, and shares of them, that are free on nodes that take jobs";
    DEVICE_PRICE = "muster_accelerator_price_dollars" Gauge ["region", "cluster", "type"] "Price of an accelerator for an hour by which decisions compare places; absent where the policy has none";
    DEVICES_IDLE = "muster_accelerators_idle" Gauge ["region", "cluster", "type"] "Accelerators that are free as a whole on nodes that take jobs";
    RACK_IDLE = "muster_accelerators_idle_rack" Gauge ["region", "cluster", "type"] "Accelerators that are free as a whole in the rack that has most of them: what a gang within one rack can get";
    STORAGE_FREE = "muster_storage_free_bytes" Gauge [] "Space left on the disk of the data directory";
    FLUSH_SECONDS = "muster_storage_flush_duration_seconds" Histogram [] "Duration of flushes of the log to disk";
    STALLED = "muster_storage_stalled_seconds" Gauge [] "For how long the flush under way has lasted";
    SNAPSHOT_AGE = "muster_snapshot_age_seconds" Gauge [] "Age of the newest snapshot; absent before the first";
    ARCHIVE_INDEX = "muster_archive_log_index" Gauge [] "Up to which record the archive of this replica is complete";
    ARCHIVE_FAILING = "muster_archive_failing" Gauge [] "1 while the archive cannot be opened or written";
    ARCHIVE_OFFLOAD_FAILING = "muster_archive_offload_failing" Gauge [] "1 while old segments of the archive cannot be moved away";
    ARCHIVE_DAMAGED = "muster_archive_damaged_objects" Gauge [] "Objects of the archive that are damaged or gone and not yet rebuilt";
    NOTIFICATIONS = "muster_notifications" Counter ["result"] "Events for receivers of notifications by result (failed counts attempts, skipped records); on the leader alone";
    NOTIFICATION_LAG = "muster_notification_lag_records" Gauge [] "Records that the receiver of notifications furthest behind lacks; on the leader alone, absent without receivers";
    CERTIFICATE_DAYS = "muster_certificate_days_left" Gauge [] "Days until the first certificate of this process runs out; absent without certificates";
    RESIDENT = "process_resident_memory_bytes" Gauge [] "Memory of the process that is in memory";
    CPU = "process_cpu_seconds" Counter [] "Processor time of the process";
    DESCRIPTORS = "process_open_fds" Gauge [] "Open file descriptors of the process";
    SPANS_DROPPED = "muster_trace_spans_dropped" Counter [] "Spans that were dropped because the collector did not take them or the queue was full";
}

families! {
    /// Every family of an agent.
    AGENT_FAMILIES, with [BUILD, CERTIFICATE_DAYS, RESIDENT, CPU, DESCRIPTORS, SPANS_DROPPED]:
    AGENT_NODES = "muster_agent_nodes" Gauge [] "Nodes that this agent stands for: its host, or those of another scheduler";
    AGENT_CONNECTED = "muster_agent_sessions_connected" Gauge [] "Nodes of this agent that have an open session with the leader";
    AGENT_SESSIONS = "muster_agent_sessions_opened" Counter ["outcome"] "Attempts to open a session";
    AGENT_LEASE = "muster_agent_lease_left_seconds" Gauge [] "Time until the first lease of this agent runs out; absent without a lease";
    AGENT_WORKERS = "muster_agent_workers" Gauge ["state"] "Workers of this agent by state; ended: the leader has not acknowledged the end";
    AGENT_STARTS = "muster_agent_worker_starts" Counter ["outcome"] "Workers that were ordered and were launched, could not be, or were stopped before";
    AGENT_ENDS = "muster_agent_worker_ends" Counter ["cause"] "Workers that ended, and those that were never launched";
    AGENT_LAUNCH_SECONDS = "muster_agent_launch_duration_seconds" Histogram [] "From the arrival of a start order until the program of a worker runs";
    AGENT_STAGE_SECONDS = "muster_agent_start_stage_duration_seconds" Histogram ["stage"] "Time that workers with images waited in each stage of their start";
    AGENT_DEVICES = "muster_agent_accelerators" Gauge ["type", "health"] "Accelerators by what the agent observes; foreign ones are in use by others than Muster";
    AGENT_OUTPUT = "muster_agent_output_bytes" Counter ["fate"] "Output of workers that was kept, or dropped since it could not be written; of a host, at their end";
    AGENT_UPLOADS = "muster_agent_uploads_pending" Gauge [] "Outputs of workers that are being sent to readers";
    AGENT_NOTES_REFUSED = "muster_agent_checkpoint_notes_refused" Counter [] "Notes of committed checkpoints that workers gave and that were refused";
    AGENT_STATE_FREE = "muster_agent_state_free_bytes" Gauge [] "Space left on the disk of the state directory";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for (at, family) in FAMILIES.iter().chain(AGENT_FAMILIES).enumerate() {
            let Family { name, kind, labels, help } = *family;
            assert!(name.starts_with("muster_") || name.starts_with("process_"), "{name}");
            assert!(is_plain(name) && labels.iter().all(|label| is_plain(label)), "{name}");
            assert!(!name.ends_with("_total"), "{name}: the format adds it");
            assert!(!help.ends_with('.') && help.len() < 120, "{name}: {help}");
            assert!(!name.ends_with("_ms") && !name.ends_with("_us"), "{name}: base units");
            assert_eq!(kind == Kind::Histogram, name.ends_with("_duration_seconds"), "{name}");
            let before = FAMILIES.iter().chain(AGENT_FAMILIES).take(at).filter(|other| other.name == name);
            // Both tables have what every process has, and that is the same family.
            assert!(before.clone().all(|other| *other == *family), "{name} is two families");
            assert!(before.count() <= usize::from(at >= FAMILIES.len()), "{name} is there twice");
            let free = ["job", "worker", "node", "user", "principal", "address"];
            assert!(labels.iter().all(|label| !free.contains(label)), "{name}: unbounded label");
        }
    }
}
