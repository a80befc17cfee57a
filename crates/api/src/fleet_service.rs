//! `muster.v1.FleetService`.

use muster_decider::{Command, DrainOrder, RepairOrder};
use muster_engine::PROBE_NODES_MAX;
use muster_state::State;
use muster_types::{LogIndex, Name, NodeId, Refusal, RefusalCode, Violation};
use muster_wire::convert::{
    health_policy_from_proto, health_policy_to_proto, probe_finding_to_proto, probe_link_to_proto,
    probe_ring_to_proto, repair_from_proto, request_id,
};
use muster_wire::status::to_status;
use muster_wire::token::{List, PageToken, filter_digest};
use muster_wire::v1;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::fleet_service_server::FleetService;
use std::collections::BTreeSet;
use tonic::{Request, Response, Status};

use crate::admission;
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

/// What is wanted of a repair.
fn repair_order(step: Option<&v1::set_node_repair_request::Step>) -> Result<RepairOrder, Status> {
    use v1::set_node_repair_request::Step;
    match step {
        Some(Step::Begin(begin)) => {
            let (action, devices, deadline_ms) = repair_from_proto("begin", begin).map_err(invalid)?;
            Ok(RepairOrder::Begin { action, devices, deadline_ms })
        }
        Some(Step::Done(true)) => Ok(RepairOrder::Done),
        Some(Step::Failed(detail)) => Ok(RepairOrder::Failed { detail: detail.clone() }),
        Some(Step::Done(false)) | None => {
            Err(invalid(vec![Violation::new("step", "must be one of begin, done, failed")]))
        }
    }
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
        let account = self.router.caller(&request).account();
        let message = request.into_inner();
        let topic = NodeTopic::new(message.region);
        self.watches.open(self.router.engine(), topic, &message.resume_token, account).map(Response::new)
    }

    async fn list_pending_nodes(
        &self,
        request: Request<v1::ListPendingNodesRequest>,
    ) -> Result<Response<v1::ListPendingNodesResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let local = || async { Ok(admission::pending(engine)) };
        let onward = |channel| {
            let request = Router::onward(message, caller);
            async move {
                let mut leader = FleetServiceClient::new(channel)
                    .max_decoding_message_size(crate::forward::ONWARD_BYTES_MAX);
                Ok(leader.list_pending_nodes(request).await?.into_inner())
            }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn get_node_admission(
        &self,
        request: Request<v1::GetNodeAdmissionRequest>,
    ) -> Result<Response<v1::GetNodeAdmissionResponse>, Status> {
        let message = request.into_inner();
        admission::admission(self.router.engine(), &message).map(Response::new)
    }

    async fn set_node_admission(
        &self,
        request: Request<v1::SetNodeAdmissionRequest>,
    ) -> Result<Response<v1::SetNodeAdmissionResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let command = admission::admission_command(&message)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            Ok(v1::SetNodeAdmissionResponse { freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_admission(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn set_node_approval(
        &self,
        request: Request<v1::SetNodeApprovalRequest>,
    ) -> Result<Response<v1::SetNodeApprovalResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let (id, name, wanted) = admission::wanted(&message)?;
        let engine = self.router.engine();
        let local = || admission::approve(engine, id, &name, &wanted);
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_approval(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
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

    async fn probe_nodes(
        &self,
        request: Request<v1::ProbeNodesRequest>,
    ) -> Result<Response<v1::ProbeNodesResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let count = message.nodes.len();
        if !(2..=PROBE_NODES_MAX).contains(&count) {
            return Err(invalid(vec![Violation::limit("nodes", count as u64, 2, PROBE_NODES_MAX as u64)]));
        }
        let engine = self.router.engine();
        let local = || async {
            let view = engine.view();
            let nodes = message.nodes.iter().map(|text| find(&view, text)).collect::<Result<Vec<_>, _>>()?;
            if nodes.iter().collect::<BTreeSet<_>>().len() < count {
                return Err(Refusal::fields(vec![Violation::new("nodes", "names a node twice")]));
            }
            let result = engine.probe(&nodes).await?;
            let name = |node: &NodeId| view.node(*node).map(|row| row.spec.name.to_string());
            let node_names: Vec<String> = nodes.iter().map(|node| name(node).unwrap_or_default()).collect();
            let finding = |finding| probe_finding_to_proto(finding, &node_names);
            Ok(v1::ProbeNodesResponse {
                links: result.links.iter().map(probe_link_to_proto).collect(),
                rings: result.rings.iter().map(probe_ring_to_proto).collect(),
                findings: result.findings.iter().map(finding).collect(),
                node_names,
            })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).probe_nodes(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn set_node_drain(
        &self,
        request: Request<v1::SetNodeDrainRequest>,
    ) -> Result<Response<v1::SetNodeDrainResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let deadline_ms = message.deadline_ms;
        let order = if message.drained { DrainOrder::Begin { deadline_ms } } else { DrainOrder::End };
        let engine = self.router.engine();
        let local = || async {
            let node = find(&engine.view(), &message.node)?;
            let answer = engine.execute(Command::SetDrain { request: id, node, order }).await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::SetNodeDrainResponse { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_drain(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn set_node_quarantine(
        &self,
        request: Request<v1::SetNodeQuarantineRequest>,
    ) -> Result<Response<v1::SetNodeQuarantineResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let engine = self.router.engine();
        let local = || async {
            let node = find(&engine.view(), &message.node)?;
            let answer = engine
                .execute(Command::SetQuarantine { request: id, node, reason: message.reason.clone() })
                .await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::SetNodeQuarantineResponse { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_quarantine(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn set_node_repair(
        &self,
        request: Request<v1::SetNodeRepairRequest>,
    ) -> Result<Response<v1::SetNodeRepairResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let order = repair_order(message.step.as_ref())?;
        let engine = self.router.engine();
        let local = || async {
            let node = find(&engine.view(), &message.node)?;
            let answer =
                engine.execute(Command::SetRepair { request: id, node, order: order.clone() }).await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::SetNodeRepairResponse { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_repair(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn get_health_policy(
        &self,
        request: Request<v1::GetHealthPolicyRequest>,
    ) -> Result<Response<v1::GetHealthPolicyResponse>, Status> {
        let deadline = self.router.read_deadline(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let view = fresh(engine, message.read.as_ref(), deadline).await?;
        let row = view.health_policy();
        Ok(Response::new(v1::GetHealthPolicyResponse {
            policy: Some(health_policy_to_proto(&row.policy)),
            version: row.version.0,
            set_at_ms: row.set_at.0,
            freshness: Some(freshness(engine, &view)),
        }))
    }

    async fn set_health_policy(
        &self,
        request: Request<v1::SetHealthPolicyRequest>,
    ) -> Result<Response<v1::SetHealthPolicyResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let policy = health_policy_from_proto("policy", message.policy.as_ref()).map_err(invalid)?;
        let expected_version = message.expected_version.map(LogIndex);
        let engine = self.router.engine();
        let local = || async {
            let policy = Box::new(policy.clone());
            let command = Command::SetHealthPolicy { request: id, policy, expected_version };
            let at = engine.execute(command).await?.at();
            Ok(v1::SetHealthPolicyResponse { version: at.0, freshness: written(engine, at) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_health_policy(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
}
