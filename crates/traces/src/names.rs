//! Names of spans and of their attributes. They are a part of what dashboards rely on.

/// A call that a replica answers.
pub const CALL: &str = "muster.call";
/// The decision of the leader on the jobs of a submission.
pub const DECIDE: &str = "muster.decide";
/// Their round on its way to the disks of a quorum.
pub const REPLICATE: &str = "muster.replicate";
/// Their round as it becomes a part of the leader's state.
pub const APPLY: &str = "muster.apply";
/// An order to start workers, as it is sent to a node.
pub const ORDER: &str = "muster.order";
/// A worker, from the arrival of its order until its program runs.
pub const LAUNCH: &str = "muster.launch";

/// Every one.
pub const ALL: [&str; 6] = [CALL, DECIDE, REPLICATE, APPLY, ORDER, LAUNCH];

/// Log index of the record.
pub const LOG_INDEX: &str = "muster.log_index";
/// Term of the leader.
pub const TERM: &str = "muster.term";
/// The job, the first of several.
pub const JOB: &str = "muster.job";
/// How many jobs.
pub const JOBS: &str = "muster.jobs";
/// Name of the node.
pub const NODE: &str = "muster.node";
/// Name of the tenant.
pub const TENANT: &str = "muster.tenant";
/// Placements of the job so far, from 1.
pub const ATTEMPT: &str = "muster.attempt";
/// The worker's rank.
pub const RANK: &str = "muster.rank";
/// Why a call was refused.
pub const REASON: &str = "muster.reason";
/// What kind of caller: of its certificate or token, and not who.
pub const PRINCIPAL_KIND: &str = "muster.principal_kind";
/// Whether another replica passed the call on.
pub const FORWARDED: &str = "muster.forwarded";
/// The method of a call, as OpenTelemetry's conventions have it.
pub const RPC_METHOD: &str = "rpc.method";
/// The service of a call.
pub const RPC_SERVICE: &str = "rpc.service";
/// The code of its answer.
pub const RPC_CODE: &str = "rpc.grpc.status_code";
