//! Keys of earlier configuration files, which had the unit in the key.

use muster_types::former_key::FormerKey;

/// Each with the key that replaced it, by table.
pub(crate) const FORMER_KEYS: [FormerKey; 15] = [
    FormerKey::cpu("node.cpu_milli", "cpu"),
    FormerKey::bytes("node.memory_bytes", "memory"),
    FormerKey::span("health.poll_interval_ms", "poll_interval"),
    FormerKey::span("health.hang_ms", "hang"),
    FormerKey::span("health.slowdown_window_ms", "slowdown_window"),
    FormerKey::span("slurm.poll_interval_ms", "poll_interval"),
    FormerKey::span("slurm.call_timeout_ms", "call_timeout"),
    FormerKey::span("slurm.start_wait_ms", "start_wait"),
    FormerKey::span("slurm.runner_wait_ms", "runner_wait"),
    FormerKey::bytes("logs.worker_bytes_max", "worker_size_max"),
    FormerKey::bytes("logs.free_bytes_min", "free_space_min"),
    FormerKey::bytes("logs.ended_bytes_max", "ended_size_max"),
    FormerKey::bytes("workers.disk_bytes_max", "disk_size_max"),
    FormerKey::bytes("workers.rlimits.core_bytes", "core_size"),
    FormerKey::bytes("workers.rlimits.locked_bytes", "locked_memory"),
];
