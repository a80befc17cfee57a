//! Every bound of the agent, in one place. What a job may hold is bounded in `muster_types::limits`.

use std::time::Duration;

/// Orders received and not yet looked at. The leader sends one per placement and stop; a session
/// that overruns this is closed and opened again, which brings the outstanding orders again.
pub const ORDERS_QUEUED_MAX: usize = 4_096;
/// Messages on their way out, heartbeats apart.
pub const OUTGOING_QUEUED_MAX: usize = 2_048;
/// Words of the leader about health that wait.
pub const HEALTH_QUEUED_MAX: usize = 64;
/// Placements waiting for a confirmation, for devices or for the lease.
pub const PENDING_PLACEMENTS_MAX: usize = 1_024;
/// Workers of one start order that are launched here: a host has 64 devices at most, and some
/// workers need none.
pub const WORKERS_PER_ORDER_MAX: usize = 256;
/// Workers held at once, ended but unacknowledged ones included: all fit in one registration.
pub const WORKERS_HELD_MAX: usize = muster_types::limits::REPORT_RANKS_MAX;
/// Bytes of one message: a rank map of 16,384 ranks with the longest names and addresses is 5 MiB.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of output in one upload message.
pub const LOG_CHUNK_BYTES: usize = 64 << 10;
/// Upload messages in flight before the reader of the file waits.
pub const LOG_CHUNKS_QUEUED_MAX: usize = 4;
/// Uploads at once; more are refused with an error text.
pub const LOG_UPLOADS_MAX: usize = 32;
/// The most of these that are of one job.
pub const LOG_UPLOADS_OF_ONE_MAX: usize = 16;
/// Commands next to workers at once, of [`LOG_UPLOADS_MAX`] connections: a shell that nobody types into keeps its connection, and
/// outputs must stay readable meanwhile.
pub const EXECS_MAX: usize = LOG_UPLOADS_MAX / 2;
/// Bytes of one message between the agent and the process of a command next to a worker: a command with its environment, as
/// JSON, or a piece of input.
pub const EXEC_FRAME_BYTES_MAX: usize = 1 << 20;
/// Pieces of a command's input, and of its output, that wait.
pub const EXEC_PIECES_QUEUED_MAX: usize = 4;
/// How long a replica may take from a relay's opening to the command that it is for.
pub const EXEC_REQUEST_MAX: Duration = Duration::from_secs(15);
/// Connections to ports of workers that one caller has made at the same time: each is a look at the worker's processes.
pub const PORT_CONNECTS_MAX: usize = 4;
/// How long a worker's port may take to accept a connection.
pub const PORT_CONNECT_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether a worker has ended that somebody is connected to.
pub const PORT_WORKER_LOOK: Duration = Duration::from_secs(1);
/// How much longer than its time an attempt to keep artifacts is waited for, to hear what it kept.
pub const ARTIFACTS_END_MAX: Duration = Duration::from_secs(2);
/// Between two looks whether a worker whose artifacts are being kept was told to stop.
pub const ARTIFACTS_LOOK: Duration = Duration::from_millis(200);
/// Jobs whose newest token is kept one by one; the oldest are folded into one floor.
pub const FENCED_JOBS_MAX: usize = 16_384;
/// Task directories of former holders (before a reboot) that are kept.
pub const ARCHIVES_MAX: usize = 2;
/// Directories below `tasks/` that are looked at on start.
pub const TASK_DIRECTORIES_MAX: usize = 65_536;
/// Shims that wait for workers, at most.
pub const READY_WORKERS_MAX: usize = 64;
/// The usual most of them: each is two processes.
const READY_WORKERS_USUAL: usize = 8;

/// How many shims may wait for workers on a host with this number of devices, unless its operator sets another number: one for
/// each device.
#[must_use]
pub fn ready_workers(devices: u16) -> usize {
    usize::from(devices).clamp(1, READY_WORKERS_USUAL)
}
/// What a shim may take from its start to the launch of its worker.
pub const SHIM_START_MAX: Duration = Duration::from_secs(30);
/// What a worker that was told to stop may take beyond its grace, before starts that wait for it go elsewhere: its shim
/// kills it, then the agent the shim, so only what is stuck in the kernel takes this long.
pub const END_OVERDUE_MAX: Duration = Duration::from_secs(30);
/// Between two looks for such.
pub const OVERDUE_LOOK: Duration = Duration::from_secs(2);
/// How long the shim's deadline waits for one read of the lease file before it counts as expired:
/// half of the stop grace, within these two.
pub const LEASE_READ_MAX: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// What the shim gives its output threads to write what is in the pipes, once no process is left.
pub const OUTPUT_DRAIN_MAX: Duration = Duration::from_secs(5);
/// No worker is held to less memory than this: who asks for less says that it needs next to nothing, and
/// the first pages of an interpreter or of a program of a few MiB must not be its end.
pub const WORKER_MEMORY_MIN: u64 = 64 << 20;
/// First and longest wait between two attempts at a session.
pub const RECONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The longest where no replica could be connected to: what a lease has left is short, and a refused connection cheap.
pub const RECONNECT_WAIT_ALONE: Duration = Duration::from_millis(250);
/// Connections of workers to the agent's socket at once; more wait to be taken.
pub const SOCKET_CONNECTIONS_MAX: usize = 512;
/// The most of these that one worker may have; it may have thousands of processes.
pub const SOCKET_CONNECTIONS_OF_ONE_MAX: usize = 64;
/// A connection without a line for this long is closed.
pub const SOCKET_IDLE_MAX: Duration = Duration::from_secs(60);
/// Bytes of one line there.
pub const SOCKET_LINE_BYTES_MAX: usize = 4_096;
/// Committed checkpoints that wait for the cluster's answer; more are refused.
pub const NOTES_WAITING_MAX: usize = 512;
/// Least time between two committed checkpoints of one job that are sent to the cluster.
pub const CHECKPOINTS_APART: Duration = Duration::from_secs(1);
/// Least time between two steps of one worker that are passed on.
pub const STEP_NOTES_APART: Duration = Duration::from_secs(1);
/// From the Register to the Registered.
pub const REGISTER_MAX: Duration = Duration::from_secs(10);
/// Turns of a probe's tournament: hosts that each one is measured against, however many take part. With
/// the time of a pair at its bound they fit into the budget.
pub const PROBE_TURNS_MAX: u32 = 31;
/// Probes that one host takes part in at a time.
pub const PROBES_MAX: usize = 4;
/// How long a host listens for a probe before it begins.
pub const PROBE_BEGINS_MAX: Duration = Duration::from_secs(15);
/// Hosts of one probe.
pub const PROBE_PEERS_MAX: usize = 1_024;
/// Bytes in one direction of one pair, and of a ring.
pub const PROBE_BYTES_MAX: u64 = 64 << 20;
/// What others hold of a node is reported again after this long, though nothing has changed.
pub const FOREIGN_LOAD_AGAIN: Duration = Duration::from_secs(60);
