//! `muster.v1.ClusterService`.

use muster_journal::FORMAT_MAX;
use muster_state::NodeStatus;
use muster_wire::v1;
use muster_wire::v1::cluster_service_server::ClusterService;
use tonic::{Request, Response, Status};

use crate::forward::Router;
use crate::read::{fresh, freshness};

pub(crate) struct Clusters {
    router: Router,
}

impl Clusters {
    pub(crate) fn new(router: Router) -> Clusters {
        Clusters { router }
    }
}

#[tonic::async_trait]
impl ClusterService for Clusters {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let engine = self.router.engine();
        let deadline = self.router.read_deadline(&request);
        let view = fresh(engine, request.get_ref().read.as_ref(), deadline).await?;
        let raft = engine.consensus().status();
        let replicas = raft.members.iter().map(|member| v1::Replica {
            id: member.replica.0,
            region: member.node.region.clone(),
            client_endpoint: member.node.client_endpoint.clone(),
            peer_endpoint: member.node.peer_endpoint.clone(),
            voter: member.votes,
            leader: raft.leader == Some(member.replica),
            matched_index: member.matched_index.unwrap_or(0),
        });
        let nodes_up = view.nodes_up();
        debug_assert_eq!(
            nodes_up as usize,
            view.nodes().iter().filter(|(_, row)| row.status == NodeStatus::Up).count()
        );
        Ok(Response::new(v1::GetStatusResponse {
            cluster_id: view.cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
            cluster_generation: view.cluster().map_or(0, |c| c.generation),
            freshness: Some(freshness(engine, &view)),
            state_digest: format!("{:016x}", view.digest()),
            term: raft.term,
            role: format!("{:?}", raft.role).to_lowercase(),
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
            format: view.format().into(),
            certificate_days_left: self.router.security().days_left(),
        }))
    }

    async fn get_server_info(
        &self,
        _request: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        let engine = self.router.engine();
        Ok(Response::new(v1::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api_versions: vec!["muster.v1".to_owned()],
            format_max: FORMAT_MAX.into(),
            replica_id: engine.info().replica.0,
            region: engine.info().region.to_string(),
            cluster_id: engine.view().cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
        }))
    }
}
