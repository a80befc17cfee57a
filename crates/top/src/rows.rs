//! Rows of the model, made from the messages of the API.

use muster_types::PriorityTier;
use muster_wire::closed::word;
use muster_wire::time::{span_ms, unix_ms};
use muster_wire::v1;
use serde::Serialize;

use crate::text::kept_text;

/// Quotas of one tenant that are kept.
const QUOTAS_MAX: usize = 64;
/// Ids of jobs of one node that are kept.
const NODE_JOBS_MAX: usize = 64;
/// What a replica states of a pending job without asking the planner.
pub(crate) const UNEXPLAINED: &str = "PENDING";

/// What becomes of a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Pending,
    Starting,
    Running,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
    Unknown,
}

impl Phase {
    fn of(job: &v1::Job) -> Phase {
        match job.phase() {
            v1::JobPhase::Pending => Phase::Pending,
            v1::JobPhase::Starting => Phase::Starting,
            v1::JobPhase::Running => Phase::Running,
            v1::JobPhase::Stopping => Phase::Stopping,
            v1::JobPhase::Succeeded => Phase::Succeeded,
            v1::JobPhase::Failed => Phase::Failed,
            v1::JobPhase::Cancelled => Phase::Cancelled,
            v1::JobPhase::Unspecified => Phase::Unknown,
        }
    }

    /// As people write it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Phase::Pending => "pending",
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Stopping => "stopping",
            Phase::Succeeded => "succeeded",
            Phase::Failed => "failed",
            Phase::Cancelled => "cancelled",
            Phase::Unknown => "unknown",
        }
    }

    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed | Phase::Cancelled)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) tenant: String,
    pub(crate) state: Phase,
    pub(crate) tier: String,
    /// The code of why it waits, stops or ended.
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) workers: u32,
    pub(crate) devices: u64,
    pub(crate) attempt: u32,
    /// Region and cluster of its placement.
    pub(crate) place: String,
    #[serde(skip)]
    pub(crate) created_ms: Option<u64>,
    #[serde(skip)]
    pub(crate) changed_at_index: u64,
}

impl JobRow {
    pub(crate) fn of(job: &v1::Job) -> JobRow {
        let status = job.status();
        let place = status.placement.as_ref().map(|at| format!("{}/{}", at.region, at.cluster));
        JobRow {
            id: kept_text(&job.id),
            name: kept_text(&job.name),
            tenant: kept_text(&job.tenant),
            state: Phase::of(job),
            tier: word::<PriorityTier>(status.tier).to_owned(),
            reason: kept_text(&status.reason),
            message: kept_text(&status.message),
            workers: status.worker_count,
            devices: status.device_count,
            attempt: status.attempt,
            place: kept_text(&place.unwrap_or_default()),
            created_ms: unix_ms(status.create_time),
            changed_at_index: status.changed_at_index,
        }
    }

    /// Whether only the planner knows why it waits.
    pub(crate) fn wants_explanation(&self) -> bool {
        self.state == Phase::Pending && (self.reason.is_empty() || self.reason == UNEXPLAINED)
    }
}

/// Why a job waits, as the planner states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitReason {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Requests that go before it in the pending queue; none where it is not in the queue.
    pub(crate) requests_before: Option<u64>,
}

impl WaitReason {
    pub(crate) fn of(explanation: &v1::Explanation) -> WaitReason {
        WaitReason {
            reason: kept_text(&explanation.reason),
            message: kept_text(&explanation.message),
            requests_before: explanation.queue_position.as_ref().map(|position| position.requests_before),
        }
    }
}

/// A node and its devices. A device is busy, free or unusable: at fault, or on a node that takes no work and idle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) region: String,
    pub(crate) cluster: String,
    /// Type of accelerator; empty for a host without.
    pub(crate) kind: String,
    pub(crate) state: &'static str,
    pub(crate) devices: u64,
    pub(crate) busy: u64,
    pub(crate) free: u64,
    pub(crate) unusable: u64,
    pub(crate) job_ids: Vec<String>,
    #[serde(skip)]
    pub(crate) changed_at_index: u64,
}

impl NodeRow {
    pub(crate) fn of(node: &v1::Node) -> NodeRow {
        let described = node.description.clone().unwrap_or_default();
        let (kind, devices) = described
            .accelerators
            .as_ref()
            .map_or(("", 0), |all| (all.r#type.as_str(), u64::from(all.count)));
        let state = node_state(node);
        let at_fault = node.restriction.as_ref().map_or(0, |known| known.unusable_devices.len() as u64);
        let idle = u64::from(node.free_devices).min(devices);
        let at_fault = at_fault.min(devices - idle);
        let (busy, free, unusable) = match state {
            "up" => (devices - idle - at_fault, idle, at_fault),
            "lost" => (0, 0, devices),
            _ => (devices - idle - at_fault, 0, idle + at_fault),
        };
        NodeRow {
            id: kept_text(&node.id),
            name: kept_text(&described.name),
            region: kept_text(&described.region),
            cluster: kept_text(&described.cluster),
            kind: kept_text(kind),
            state,
            devices,
            busy,
            free,
            unusable,
            job_ids: node.job_ids.iter().take(NODE_JOBS_MAX).map(|id| kept_text(id)).collect(),
            changed_at_index: node.changed_at_index,
        }
    }
}

/// The gravest thing that keeps work away from a node, or `up`.
fn node_state(node: &v1::Node) -> &'static str {
    let restriction = node.restriction.as_ref();
    if node.status() == v1::NodeStatus::Lost {
        "lost"
    } else if restriction.is_some_and(|known| known.repair.is_some()) {
        "repair"
    } else if restriction.is_some_and(|known| known.drain.is_some()) {
        "draining"
    } else if restriction.is_some_and(|known| known.quarantine.is_some()) {
        "quarantined"
    } else if restriction.is_some_and(|known| known.out_of_service) {
        "out-of-service"
    } else if node.cordoned {
        "cordoned"
    } else {
        "up"
    }
}

/// What a tenant uses of one quota, in thousandths of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QuotaRow {
    pub(crate) kind: String,
    /// Empty for all regions.
    pub(crate) region: String,
    pub(crate) used_milli: u64,
    /// None where the tenant uses devices that no quota names.
    pub(crate) nominal_milli: Option<u64>,
}

impl QuotaRow {
    pub(crate) fn borrowed_milli(&self) -> u64 {
        self.nominal_milli.map_or(0, |nominal| self.used_milli.saturating_sub(nominal))
    }
}

/// The queue of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueRow {
    pub(crate) tenant: String,
    pub(crate) parent: String,
    pub(crate) pending_jobs: u64,
    pub(crate) gated_jobs: u64,
    pub(crate) active_jobs: u64,
    pub(crate) active_devices_milli: u64,
    pub(crate) share_billionths: u64,
    pub(crate) quotas: Vec<QuotaRow>,
}

impl QueueRow {
    pub(crate) fn of(usage: &v1::TenantUsage) -> QueueRow {
        let quota = |quota: &v1::QuotaUse| QuotaRow {
            kind: kept_text(&quota.r#type),
            region: kept_text(&quota.region),
            used_milli: quota.used_milli,
            nominal_milli: Some(quota.nominal_milli),
        };
        let mut quotas: Vec<QuotaRow> = usage.quotas.iter().take(QUOTAS_MAX).map(quota).collect();
        let named = |kind: &str| usage.quotas.iter().any(|quota| quota.r#type == kind);
        let others = usage.uses.iter().filter(|used| used.used_milli > 0 && !named(&used.r#type));
        quotas.extend(others.take(QUOTAS_MAX).map(|used| QuotaRow {
            kind: kept_text(&used.r#type),
            region: String::new(),
            used_milli: used.used_milli,
            nominal_milli: None,
        }));
        QueueRow {
            tenant: kept_text(&usage.tenant),
            parent: kept_text(&usage.parent),
            pending_jobs: usage.pending_jobs,
            gated_jobs: usage.gated_jobs,
            active_jobs: usage.active_jobs,
            active_devices_milli: usage.active_devices_milli,
            share_billionths: usage.share_billionths,
            quotas,
        }
    }
}

/// A replica, as it described itself and as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaRow {
    pub(crate) id: u64,
    pub(crate) region: String,
    pub(crate) endpoint: String,
    pub(crate) voter: bool,
    pub(crate) role: String,
    pub(crate) term: Option<u64>,
    pub(crate) last_index: Option<u64>,
    pub(crate) applied_index: Option<u64>,
    /// Entries it lacks, as the leader sees it.
    pub(crate) lag_entries: Option<u64>,
    /// How long ago it last answered the leader.
    pub(crate) silence_ms: Option<u64>,
    pub(crate) version: String,
    /// Why it was not reached; empty for one that answered.
    pub(crate) error: String,
}

impl ReplicaRow {
    /// One that the answer of another one names.
    pub(crate) fn named(known: &v1::Replica) -> ReplicaRow {
        ReplicaRow {
            id: known.id,
            region: kept_text(&known.region),
            endpoint: kept_text(&known.client_endpoint),
            voter: known.voter,
            role: "unreachable".to_owned(),
            lag_entries: known.lag_entries,
            silence_ms: span_ms(known.silence),
            ..Default::default()
        }
    }

    /// What it says of itself.
    pub(crate) fn answered(&mut self, status: &v1::GetStatusResponse) {
        self.role = word::<v1::ReplicaRole>(status.role).to_owned();
        self.term = Some(status.term);
        self.last_index = Some(status.raft_last_index);
        self.applied_index = Some(status.raft_applied_index);
        self.version = status.health.as_ref().map_or(String::new(), |health| kept_text(&health.version));
        self.error.clear();
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.term.is_some()
    }
}

/// What the replicas say of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterRow {
    pub(crate) cluster_id: String,
    pub(crate) log_index: u64,
    /// How old the state may be that it was answered from; none when no leader confirms it.
    pub(crate) staleness_ms: Option<u64>,
    pub(crate) replicas: Vec<ReplicaRow>,
    pub(crate) warnings: Vec<String>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    Job,
    Node,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRow {
    pub(crate) log_index: u64,
    pub(crate) subject: Subject,
    pub(crate) id: String,
    pub(crate) name: String,
    /// Tenant or region.
    pub(crate) owner: String,
    pub(crate) state: String,
    pub(crate) text: String,
    /// Whom it is about: the tenant of the job, or those whose jobs hold a part of the node.
    #[serde(skip)]
    pub(crate) tenants: Vec<String>,
}

impl EventRow {
    pub(crate) fn of_job(log_index: u64, job: &JobRow) -> EventRow {
        let text = if job.message.is_empty() { &job.reason } else { &job.message };
        EventRow {
            log_index,
            subject: Subject::Job,
            id: job.id.clone(),
            name: job.name.clone(),
            owner: job.tenant.clone(),
            state: job.state.word().to_owned(),
            text: text.clone(),
            tenants: vec![job.tenant.clone()],
        }
    }

    pub(crate) fn of_node(log_index: u64, node: &NodeRow, tenants: Vec<String>) -> EventRow {
        EventRow {
            log_index,
            subject: Subject::Node,
            id: node.name.clone(),
            name: String::new(),
            owner: node.region.clone(),
            state: node.state.to_owned(),
            text: format!("{} of {} devices free", node.free, node.devices),
            tenants,
        }
    }

    pub(crate) fn forgotten(
        log_index: u64,
        subject: Subject,
        id: &str,
        owner: &str,
        tenants: Vec<String>,
    ) -> EventRow {
        EventRow {
            log_index,
            subject,
            id: kept_text(id),
            name: String::new(),
            owner: owner.to_owned(),
            state: "forgotten".to_owned(),
            text: "not kept any more".to_owned(),
            tenants,
        }
    }
}
