//! `muster.v1.FleetService`.

use muster_decider::Command;
use muster_state::State;
use muster_types::{Name, NodeId, Refusal, RefusalCode};
use muster_wire::convert::request_id;
use muster_wire::status::to_status;
use muster_wire::token::{List, PageToken, filter_digest};
use muster_wire::v1;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::fleet_service_server::FleetService;
use tonic::{Request, Response, Status};

use crate::forward::Router;
use crate::job_service::{bad_page, written};
use crate::read::{cluster, fresh, freshness, invalid, page_size};
use crate::render;
use crate::watcher::{Messages, NodeTopic, Watches};

pub(crate) struct Fleet {
    router: Router,
    watches: Watches,
}

impl Fleet {
    pub(crate) fn new(router: Router, watches: Watches) -> Fleet {
        Fleet { router, watches }
    }
}

/// A node by id or name.
fn find(view: &State, text: &str) -> Result<NodeId, Refusal> {
    let by_id = text.parse::<NodeId>().ok().filter(|id| view.node(*id).is_some());
    let found = by_id.or_else(|| Name::new(text).and_then(|name| view.node_named(&name)));
    found.ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        Refusal::new(RefusalCode::NodeNotFound, format!("there is no node {shown:?}"))
    })
}

#[tonic::async_trait]
impl FleetService for Fleet {
    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let deadline = self.router.read_deadline(&request);
        let message = request.into_inner();
        let size = page_size(message.page_size)?;
        let engine = self.router.engine();
        let view = fresh(engine, message.read.as_ref(), deadline).await?;
        let cluster = cluster(&view)?;
        let filter = filter_digest([message.region.as_str()]);
        let after = match message.page_token.as_str() {
            "" => None,
            text => Some(PageToken::decode(text, cluster, List::Nodes, filter).map_err(bad_page)?.after),
        };
        let behind = |name: &Name| after.as_ref().is_none_or(|after| name.as_str() > after.as_str());
        let mut nodes = Vec::new();
        let mut last: Option<&Name> = None;
        let mut next_page_token = String::new();
        for (name, id) in view.nodes_by_name().filter(|(name, _)| behind(name)) {
            let Some(row) = view.node(id) else { continue };
            if !message.region.is_empty() && *row.spec.region != *message.region {
                continue;
            }
            if nodes.len() == size {
                let after = last.map(ToString::to_string).unwrap_or_default();
                next_page_token =
                    PageToken { after, log_index: view.log_index() }.encode(cluster, List::Nodes, filter);
                break;
            }
            nodes.push(render::node(&view, id, row));
            last = Some(name);
        }
        let freshness = Some(freshness(engine, &view));
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token, freshness }))
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        let deadline = self.router.read_deadline(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let view = fresh(engine, message.read.as_ref(), deadline).await?;
        let id = find(&view, &message.node).map_err(|refusal| to_status(&refusal))?;
        let node = view.node(id).map(|row| render::node(&view, id, row));
        Ok(Response::new(v1::GetNodeResponse { node, freshness: Some(freshness(engine, &view)) }))
    }

    type WatchNodesStream = Messages<v1::WatchNodesResponse>;

    async fn watch_nodes(
        &self,
        request: Request<v1::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let message = request.into_inner();
        let topic = NodeTopic::new(message.region);
        self.watches.open(self.router.engine(), topic, &message.resume_token).map(Response::new)
    }

    async fn set_node_cordon(
        &self,
        request: Request<v1::SetNodeCordonRequest>,
    ) -> Result<Response<v1::SetNodeCordonResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let engine = self.router.engine();
        let local = || async {
            let node = find(&engine.view(), &message.node)?;
            let command = Command::SetCordon { request: id, node, cordoned: message.cordoned };
            let answer = engine.execute(command).await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::SetNodeCordonResponse { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_cordon(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn forget_node(
        &self,
        request: Request<v1::ForgetNodeRequest>,
    ) -> Result<Response<v1::ForgetNodeResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let local = || async {
            let node = find(&engine.view(), &message.node)?;
            let answer = engine.execute(Command::ForgetNode { node }).await?;
            Ok(v1::ForgetNodeResponse { node_id: node.to_string(), freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).forget_node(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
}
