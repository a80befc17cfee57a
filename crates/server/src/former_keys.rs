//! Keys of earlier configuration files, which had the unit in the key.

use muster_types::former_key::FormerKey;

/// Each with the key that replaced it, by table.
pub(crate) const FORMER_KEYS: [FormerKey; 23] = [
    FormerKey::span("timing.heartbeat_interval_ms", "heartbeat_interval"),
    FormerKey::span("timing.election_timeout_min_ms", "election_timeout_min"),
    FormerKey::span("timing.election_timeout_max_ms", "election_timeout_max"),
    FormerKey::span("parameters.lease_ttl_ms", "lease_ttl"),
    FormerKey::span("parameters.lease_margin_ms", "lease_margin"),
    FormerKey::span("parameters.heartbeat_interval_ms", "heartbeat_interval"),
    FormerKey::span("parameters.request_retention_ms", "request_retention"),
    FormerKey::span("parameters.job_retention_ms", "job_retention"),
    FormerKey::span("parameters.node_retention_ms", "node_retention"),
    FormerKey::span("snapshots.every_ms", "every_time"),
    FormerKey::bytes("snapshots.every_bytes", "every_size"),
    FormerKey::bytes("snapshots.kept_bytes", "kept_size"),
    FormerKey::rate("snapshots.send_bytes_per_s", "send_rate"),
    FormerKey::span("leader.settle_ms", "settle"),
    FormerKey::span("archive.segment_age_ms", "segment_age"),
    FormerKey::span("archive.local_age_ms_max", "local_age_max"),
    FormerKey::bytes("archive.local_bytes_max", "local_size_max"),
    FormerKey::span("limits.message_timeout_ms", "message_timeout"),
    FormerKey::span("limits.drill_refusal_max_ms", "drill_refusal_max"),
    FormerKey::span("limits.handshake_timeout_ms", "handshake_timeout"),
    FormerKey::bytes("limits.message_bytes_max", "message_size_max"),
    FormerKey::bytes("limits.message_room_bytes", "message_memory_max"),
    FormerKey::bytes("limits.message_room_each_bytes", "message_memory_per_tenant_max"),
];
