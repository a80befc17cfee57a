//! `muster.v1beta1.ClusterService`.

use muster_engine::{Engine, LocalFacts, PeerReport, Reading, Role, Space};
use muster_state::NodeStatus;
use muster_types::{Consistency, ReplicaId};
use muster_wire::time::{duration, duration_us};
use muster_wire::v1;
use muster_wire::v1::cluster_service_server::ClusterService;
use tonic::{Request, Response, Status};

use crate::drills::{Drills, Held};
use crate::features::FEATURES;
use crate::forward::Router;
use crate::identity;
use crate::read::freshness;
use crate::warnings::{ClusterSnapshot, warnings};

pub(crate) struct Clusters {
    router: Router,
    drills: Drills,
}

impl Clusters {
    pub(crate) fn new(router: Router, drills: Drills) -> Clusters {
        Clusters { router, drills }
    }
}

#[tonic::async_trait]
impl ClusterService for Clusters {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let engine = self.router.engine();
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let view =
            self.router.fresh(account, (request.get_ref().read.as_ref(), Consistency::Any), deadline).await?;
        let drill = self.drills.current();
        Ok(Response::new(status(engine, &view, drill.as_ref())))
    }

    async fn get_server_info(
        &self,
        request: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let engine = self.router.engine();
        Ok(Response::new(v1::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api_versions: ["muster.v1beta1", "muster.admin.v1beta1", "muster.agent.v1beta1"]
                .map(str::to_owned)
                .to_vec(),
            max_record_format: engine.format_max().into(),
            replica_id: engine.info().replica.0,
            region: engine.info().region.to_string(),
            cluster_id: engine.view().cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
            features: FEATURES.map(str::to_owned).to_vec(),
            generation: engine.view().generation(),
            record_format: engine.view().format().into(),
            caller: Some(identity::caller(&engine.view(), &self.router.caller(&request).principal())),
        }))
    }
}

/// How this replica stands, and the state that it has applied.
pub(crate) fn status(engine: &Engine, view: &Reading, drill: Option<&Held>) -> v1::GetStatusResponse {
    let raft = engine.consensus().status();
    let reports = engine.consensus().peer_reports().borrow().clone();
    let facts = engine.local_facts();
    let own = engine.info().replica;
    let health = |id: ReplicaId| {
        let facts = if id == own { facts.clone() } else { LocalFacts::default() };
        reports.get(&id).map(|report| health(report, &facts, id == own))
    };
    let snapshot = ClusterSnapshot {
        drill,
        status: &raft,
        reports: &reports,
        facts: &facts,
        format: view.format().into(),
        generation: view.generation(),
        records_rejected: view.rejected(),
        slow_beyond: slow_beyond(view),
    };
    let warnings = warnings(&snapshot);
    let acts = engine.consensus().leadership().borrow().mine.is_some();
    let change = engine.consensus().change_progress().borrow().as_ref().map(|c| c.operation.clone());
    let replicas = raft.members.iter().map(|member| v1::Replica {
        id: member.replica.0,
        region: member.node.region.clone(),
        client_endpoint: member.node.client_endpoint.clone(),
        peer_endpoint: member.node.peer_endpoint.clone(),
        voter: member.votes,
        leader: raft.leader == Some(member.replica),
        matched_index: member.matched_index.unwrap_or(0),
        lag_entries: member.lag_entries,
        silence: member.silent_ms.filter(|_| member.replica != own).map(duration),
        health: health(member.replica),
    });
    let nodes_up = view.nodes_up();
    debug_assert_eq!(
        nodes_up as usize,
        view.nodes().iter().filter(|(_, row)| row.status == NodeStatus::Up).count()
    );
    v1::GetStatusResponse {
        cluster_id: view.cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
        cluster_generation: view.cluster().map_or(0, |c| c.generation),
        freshness: Some(freshness(engine, view)),
        state_digest: format!("{:016x}", view.digest()),
        term: raft.term,
        role: match raft.role {
            // By its own account alone: it takes nothing and confirms nothing.
            Role::Leader if !acts => v1::ReplicaRole::Unconfirmed,
            Role::Leader => v1::ReplicaRole::Leader,
            Role::Follower => v1::ReplicaRole::Follower,
            Role::Candidate => v1::ReplicaRole::Candidate,
            Role::Learner => v1::ReplicaRole::Learner,
            Role::Stopped => v1::ReplicaRole::Stopped,
        }
        .into(),
        raft_last_index: raft.last_log_index.unwrap_or(0),
        raft_committed_index: raft.committed_index.unwrap_or(0),
        raft_applied_index: raft.applied_index.unwrap_or(0),
        raft_snapshot_index: raft.snapshot_index.unwrap_or(0),
        replicas: replicas.collect(),
        jobs_pending: view.pending_count() as u64,
        jobs_active: view.active_count() as u64,
        jobs_finished: view.finished_count() as u64,
        nodes_up,
        nodes_lost: view.nodes().len() as u64 - nodes_up,
        records_rejected: view.rejected(),
        record_format: view.format().into(),
        health: health(own),
        warnings,
        change_running: change.unwrap_or_default(),
    }
}

/// What a replica said of itself; `facts` are known of this one alone.
fn health(report: &PeerReport, facts: &LocalFacts, is_own: bool) -> v1::ReplicaHealth {
    let space = match report.storage.space {
        Space::Enough => v1::StorageSpace::Enough,
        Space::Low => v1::StorageSpace::Low,
        Space::Full => v1::StorageSpace::Full,
    };
    v1::ReplicaHealth {
        version: report.version.clone(),
        max_record_format: report.format_max,
        space: space.into(),
        free_bytes: report.storage.free_bytes,
        flush_stall: report.storage.stalled_ms.map(duration),
        flush_time: Some(duration_us(report.storage.flush_mean_us)),
        rejoining: report.rejoining,
        cluster_generation: report.generation,
        snapshot_age: facts.snapshot_age_ms.map(duration),
        archive_log_index: facts.archive_log_index,
        certificate_days_left: facts.certificate_days_left,
        age: (!is_own).then(|| duration(u64::try_from(report.age().as_millis()).unwrap_or(u64::MAX))),
    }
}

/// Names of the nodes that [`muster_decider::suspects_beyond_the_bound`] finds, at most some of them.
fn slow_beyond(view: &muster_state::State) -> Vec<String> {
    let nodes = muster_decider::suspects_beyond_the_bound(view).into_iter().take(8);
    nodes.filter_map(|node| view.node(node).map(|row| row.spec.name.to_string())).collect()
}
