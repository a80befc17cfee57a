//! `muster.v1beta1.FleetService`.

use muster_decider::{
    Command, DrainOrder, OverridesOrder, RepairOrder, check_health_policy, check_overrides,
};
use muster_engine::{Engine, Reading};
use muster_state::{NodeRow, NodeStatus, RequestAnswer, State};
use muster_types::{Consistency, LogIndex, Name, NodeId, Refusal, RefusalCode, RequestId, Violation};
use muster_wire::convert::{
    UNSAID_OF_LISTS, health_policy_from_proto, health_policy_to_proto, node_overrides_change_from_proto,
    repair_from_proto, request_id, stop_after_from_proto,
};
use muster_wire::shared::encoded_len;
use muster_wire::status::to_status;
use muster_wire::time::log_time;
use muster_wire::token::{List, PageToken, TokenError, filter_digest};
use muster_wire::v1;
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::fleet_service_server::FleetService;
use tonic::{Request, Response, Status};

use crate::admission;
use crate::controls::requester;
use crate::forward::Router;
use crate::read::{PAGE_BYTES_MAX, bad_page, cluster, freshness, invalid, page_size, written};
use crate::render;
use crate::visibility::Visibility;
use crate::watcher::{Messages, NodeTopic, Watches};

mod capacity;
pub(crate) mod holds;
mod probe;

pub(crate) use probe::Probes;

/// What a row of a page takes, with its labels and devices.
pub(crate) const ROW_BYTES: usize = 4 << 10;

pub(crate) struct Fleet {
    router: Router,
    watches: Watches,
}

impl Fleet {
    pub(crate) fn new(router: Router, watches: Watches) -> Fleet {
        Fleet { router, watches }
    }
}

/// What a list of nodes is narrowed to beyond what its request says; empty for all. Only pages ask for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Narrowed {
    pub(crate) cluster: String,
    pub(crate) block: String,
    /// A word for a node's state, or [`NOT_LOST`].
    pub(crate) state: String,
}

/// Every state but one.
pub(crate) const NOT_LOST: &str = "not-lost";

impl Narrowed {
    fn digest(&self, region: &str) -> u64 {
        let own = [self.cluster.as_str(), self.block.as_str(), self.state.as_str()];
        match own.iter().all(|part| part.is_empty()) {
            true => filter_digest([region]),
            false => filter_digest([region].into_iter().chain(own)),
        }
    }

    fn includes_place(&self, row: &NodeRow) -> bool {
        (self.cluster.is_empty() || *row.spec.cluster == *self.cluster)
            && (self.block.is_empty() || *row.spec.block == *self.block)
    }

    fn includes_state(&self, view: &State, id: NodeId, row: &NodeRow) -> bool {
        match self.state.as_str() {
            "" => true,
            NOT_LOST => row.status != NodeStatus::Lost,
            state => render::state_of_node(view, id, row) == state,
        }
    }
}

pub(crate) fn list(
    engine: &Engine,
    view: &Reading,
    message: &v1::ListNodesRequest,
    narrowed: &Narrowed,
    (size, visibility): (usize, Visibility),
) -> Result<v1::ListNodesResponse, Status> {
    let cluster = cluster(view)?;
    let filter = narrowed.digest(&message.region);
    let after = match message.page_token.as_str() {
        "" => None,
        text => {
            let token = PageToken::decode(text, cluster, List::Nodes, filter).map_err(bad_page)?;
            Some(Name::new(&token.after).ok_or_else(|| bad_page(TokenError::ReadToken))?)
        }
    };
    let mut nodes = Vec::new();
    let mut bytes = 0;
    let mut last: Option<&Name> = None;
    let mut next_page_token = String::new();
    for (name, id) in view.nodes_by_name_behind(after.as_ref()) {
        let Some(row) = view.node(id) else { continue };
        if !message.region.is_empty() && *row.spec.region != *message.region {
            continue;
        }
        if !narrowed.includes_place(row) || !narrowed.includes_state(view, id, row) {
            continue;
        }
        if nodes.len() == size || bytes > PAGE_BYTES_MAX {
            let after = last.map(ToString::to_string).unwrap_or_default();
            next_page_token =
                PageToken { after, log_index: view.log_index() }.encode(cluster, List::Nodes, filter);
            break;
        }
        let node = visibility.node(render::node(view, id, row));
        bytes += encoded_len(&node);
        nodes.push(node);
        last = Some(name);
    }
    Ok(v1::ListNodesResponse { nodes, next_page_token, freshness: Some(freshness(engine, view)) })
}

/// A node by its name, or by its id where no node has that name. Fleets do name hosts `node-3`, and operators mean the host:
/// the id of a node whose name reads as an id as well is not taken, so that a host that is not there is never confused with
/// another one.
pub(crate) fn find(view: &State, text: &str) -> Result<NodeId, Refusal> {
    if let Some(id) = Name::new(text).and_then(|name| view.node_named(&name)) {
        return Ok(id);
    }
    let shown: String = text.chars().take(80).collect();
    let by_id = text.parse::<NodeId>().ok().and_then(|id| view.node(id).map(|row| (id, &row.spec.name)));
    let message = match by_id {
        Some((id, name)) if name.parse::<NodeId>().is_err() => return Ok(id),
        Some((_, name)) => {
            format!("no node has the name {shown:?}; name the node with that id by its name, {name}")
        }
        None => format!("there is no node {shown:?}"),
    };
    Err(Refusal::new(RefusalCode::NodeNotFound, message).with("node", shown))
}

/// The node that a request wants forgotten. One that is gone already is named by the request that dropped it, or by its
/// id, which is never given again.
fn find_to_forget(view: &State, text: &str, request: Option<RequestId>) -> Result<NodeId, Refusal> {
    if let Some(row) = request.and_then(|id| view.request(id))
        && let RequestAnswer::NodeForgotten { node } = row.answer
    {
        return Ok(node);
    }
    let is_gone = |id: &NodeId| id.0 < view.nodes_registered() && view.node(*id).is_none();
    let gone = || text.parse::<NodeId>().ok().filter(is_gone);
    find(view, text).or_else(|refusal| gone().ok_or(refusal))
}

/// How a repair ended, as a request says it.
fn repair_outcome(message: &v1::FinishNodeRepairRequest) -> Result<RepairOrder, Status> {
    match message.outcome() {
        v1::RepairOutcome::Done if message.message.is_empty() => Ok(RepairOrder::Done),
        v1::RepairOutcome::Done => {
            Err(invalid(vec![Violation::new("message", "must be left out of a repair that is done")]))
        }
        v1::RepairOutcome::Failed => Ok(RepairOrder::Failed { detail: message.message.clone() }),
        v1::RepairOutcome::Unspecified => {
            let text = "must be REPAIR_OUTCOME_DONE or REPAIR_OUTCOME_FAILED";
            Err(invalid(vec![Violation::new("outcome", text)]))
        }
    }
}

/// Changes one node at an operator's request, here or at the leader. The answer has the node as it is then.
macro_rules! change_node {
    ($fleet:expr, $request:expr, $call:ident -> $answer:ident, $command:expr) => {{
        let caller = $fleet.router.caller(&$request);
        let message = $request.into_inner();
        let id = request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?;
        let command = $command(&message)?;
        let by = requester(&caller);
        let engine = $fleet.router.engine();
        let local = || async {
            let view = engine.view();
            let node = find(&view, &message.node)?;
            caller.check_node(&view, node)?;
            drop(view);
            let answer = engine.execute(command(id, by.clone(), node)).await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::$answer { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).$call(request).await?.into_inner()) }
        };
        $fleet.router.write(caller, local, onward).await.map(Response::new)
    }};
}

/// A text that may be left out.
fn said(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[tonic::async_trait]
impl FleetService for Fleet {
    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let message = request.into_inner();
        let size = page_size(message.page_size)?;
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let make = move || list(&engine, &view, &message, &Narrowed::default(), (size, visibility));
        self.router.page(account, size.saturating_mul(ROW_BYTES), make).await
    }

    async fn list_capacity(
        &self,
        request: Request<v1::ListCapacityRequest>,
    ) -> Result<Response<v1::ListCapacityResponse>, Status> {
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let message = request.into_inner();
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let bytes = view.nodes().len().min(capacity::LISTED_MAX).saturating_mul(capacity::ROW_BYTES);
        let make = move || {
            let capacity = capacity::list(&view);
            Ok(v1::ListCapacityResponse { capacity, freshness: Some(freshness(&engine, &view)) })
        };
        self.router.page(account, bytes, make).await
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let message = request.into_inner();
        let engine = self.router.engine();
        let view =
            self.router.fresh(account, (message.read.as_ref(), Consistency::Linearizable), deadline).await?;
        let id = find(&view, &message.node).map_err(|refusal| to_status(&refusal))?;
        let node = view.node(id).map(|row| visibility.node(render::node(&view, id, row)));
        Ok(Response::new(v1::GetNodeResponse { node, freshness: Some(freshness(engine, &view)) }))
    }

    type WatchNodesStream = Messages<v1::WatchNodesResponse>;

    async fn watch_nodes(
        &self,
        request: Request<v1::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let caller = self.router.caller(&request);
        let account = caller.account();
        let message = request.into_inner();
        let topic = NodeTopic::new(message.region, caller.visibility());
        self.watches.open(&self.router, topic, &message.resume_token, account).map(Response::new)
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
        let command = admission::admission_command(&message, requester(&caller))?;
        let engine = self.router.engine();
        let local = || async {
            let at = engine.execute(command.clone()).await?.at();
            Ok(v1::SetNodeAdmissionResponse { freshness: written(engine, at), version: at.0 })
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
        let by = requester(&caller);
        let local = || admission::approve(engine, (id, &by), &name, &wanted);
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_approval(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn set_node_labels(
        &self,
        request: Request<v1::SetNodeLabelsRequest>,
    ) -> Result<Response<v1::SetNodeLabelsResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let change = node_overrides_change_from_proto(&message).map_err(invalid)?;
        let id = match message.validate_only {
            true => None,
            false => Some(request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?),
        };
        let by = requester(&caller);
        let engine = self.router.engine();
        let local = || async {
            let Some(request) = id else {
                let view = engine.reading();
                let node = find(&view, &message.node)?;
                caller.check_node(&view, node)?;
                let overrides = check_overrides(&view, node, &change)?;
                let would_be = |row: &NodeRow| row.overridden(&overrides, &by, view.log_time());
                let node = view.node(node).map(|row| render::node(&view, node, &would_be(row)));
                return Ok(v1::SetNodeLabelsResponse { node, freshness: Some(freshness(engine, &view)) });
            };
            let node = {
                let view = engine.view();
                let node = find(&view, &message.node)?;
                caller.check_node(&view, node)?;
                node
            };
            let order = OverridesOrder { request, by: by.clone(), node, change: change.clone() };
            let answer = engine.execute(Command::SetNodeOverrides(Box::new(order))).await?;
            let view = engine.view();
            let node = view.node(node).map(|row| render::node(&view, node, row));
            Ok(v1::SetNodeLabelsResponse { node, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_node_labels(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn cordon_node(
        &self,
        request: Request<v1::CordonNodeRequest>,
    ) -> Result<Response<v1::CordonNodeResponse>, Status> {
        let order = |message: &v1::CordonNodeRequest| {
            let reason = said(&message.reason);
            Ok::<_, Status>(move |request, by, node| Command::SetCordon {
                request,
                by,
                node,
                cordoned: true,
                reason: reason.clone(),
            })
        };
        change_node!(self, request, cordon_node -> CordonNodeResponse, order)
    }

    async fn uncordon_node(
        &self,
        request: Request<v1::UncordonNodeRequest>,
    ) -> Result<Response<v1::UncordonNodeResponse>, Status> {
        let order = |_: &v1::UncordonNodeRequest| {
            Ok::<_, Status>(move |request, by, node| Command::SetCordon {
                request,
                by,
                node,
                cordoned: false,
                reason: None,
            })
        };
        change_node!(self, request, uncordon_node -> UncordonNodeResponse, order)
    }

    async fn set_fleet_hold(
        &self,
        request: Request<v1::SetFleetHoldRequest>,
    ) -> Result<Response<v1::SetFleetHoldResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let (command, target) = holds::command(&caller, &message)?;
        let visibility = caller.visibility();
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            let view = engine.view();
            let hold = view.fleet_hold(&target).map(|row| holds::shown(visibility, &target, row));
            Ok(v1::SetFleetHoldResponse { hold, freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).set_fleet_hold(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn list_fleet_holds(
        &self,
        request: Request<v1::ListFleetHoldsRequest>,
    ) -> Result<Response<v1::ListFleetHoldsResponse>, Status> {
        let (deadline, caller) = (self.router.read_deadline(&request), self.router.caller(&request));
        let (account, visibility) = (caller.account(), caller.visibility());
        let message = request.into_inner();
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let bytes = view.fleet_holds().count().saturating_mul(holds::ROW_BYTES);
        let make = move || {
            let holds = holds::list(&view, visibility);
            Ok(v1::ListFleetHoldsResponse { holds, freshness: Some(freshness(&engine, &view)) })
        };
        self.router.page(account, bytes, make).await
    }

    async fn forget_node(
        &self,
        request: Request<v1::ForgetNodeRequest>,
    ) -> Result<Response<v1::ForgetNodeResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = match message.request_id.as_str() {
            "" => None,
            text => Some(request_id("request_id", text).map_err(|v| invalid(vec![v]))?),
        };
        let engine = self.router.engine();
        let local = || async {
            let node = {
                let view = engine.view();
                let node = find_to_forget(&view, &message.node, id)?;
                caller.check_node(&view, node)?;
                node
            };
            let answer =
                engine.execute(Command::ForgetNode { request: id, by: requester(&caller), node }).await?;
            Ok(v1::ForgetNodeResponse { node_id: node.to_string(), freshness: written(engine, answer.at()) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(FleetServiceClient::new(channel).forget_node(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::DrainNodeResponse>, Status> {
        let order = |message: &v1::DrainNodeRequest| {
            let deadline_ms = stop_after_from_proto(message.stop_after).map_err(invalid)?;
            let reason = said(&message.reason);
            Ok::<_, Status>(move |request, by, node| Command::SetDrain {
                request,
                by,
                node,
                order: DrainOrder::Begin { deadline_ms },
                reason: reason.clone(),
            })
        };
        change_node!(self, request, drain_node -> DrainNodeResponse, order)
    }

    async fn cancel_node_drain(
        &self,
        request: Request<v1::CancelNodeDrainRequest>,
    ) -> Result<Response<v1::CancelNodeDrainResponse>, Status> {
        let order = |_: &v1::CancelNodeDrainRequest| {
            Ok::<_, Status>(move |request, by, node| Command::SetDrain {
                request,
                by,
                node,
                order: DrainOrder::End,
                reason: None,
            })
        };
        change_node!(self, request, cancel_node_drain -> CancelNodeDrainResponse, order)
    }

    async fn quarantine_node(
        &self,
        request: Request<v1::QuarantineNodeRequest>,
    ) -> Result<Response<v1::QuarantineNodeResponse>, Status> {
        let order = |message: &v1::QuarantineNodeRequest| {
            let reason = message.reason.clone();
            Ok::<_, Status>(move |request, by, node| Command::SetQuarantine {
                request,
                by,
                node,
                reason: Some(reason.clone()),
            })
        };
        change_node!(self, request, quarantine_node -> QuarantineNodeResponse, order)
    }

    async fn release_node(
        &self,
        request: Request<v1::ReleaseNodeRequest>,
    ) -> Result<Response<v1::ReleaseNodeResponse>, Status> {
        let order = |_: &v1::ReleaseNodeRequest| {
            Ok::<_, Status>(move |request, by, node| Command::SetQuarantine {
                request,
                by,
                node,
                reason: None,
            })
        };
        change_node!(self, request, release_node -> ReleaseNodeResponse, order)
    }

    async fn begin_node_repair(
        &self,
        request: Request<v1::BeginNodeRepairRequest>,
    ) -> Result<Response<v1::BeginNodeRepairResponse>, Status> {
        let order = |message: &v1::BeginNodeRepairRequest| {
            let (action, devices, deadline_ms) = repair_from_proto(message).map_err(invalid)?;
            let order = RepairOrder::Begin { action, devices, deadline_ms };
            Ok::<_, Status>(move |request, by, node| Command::SetRepair {
                request,
                by,
                node,
                order: order.clone(),
            })
        };
        change_node!(self, request, begin_node_repair -> BeginNodeRepairResponse, order)
    }

    async fn finish_node_repair(
        &self,
        request: Request<v1::FinishNodeRepairRequest>,
    ) -> Result<Response<v1::FinishNodeRepairResponse>, Status> {
        let order = |message: &v1::FinishNodeRepairRequest| {
            let order = repair_outcome(message)?;
            Ok::<_, Status>(move |request, by, node| Command::SetRepair {
                request,
                by,
                node,
                order: order.clone(),
            })
        };
        change_node!(self, request, finish_node_repair -> FinishNodeRepairResponse, order)
    }

    async fn get_health_policy(
        &self,
        request: Request<v1::GetHealthPolicyRequest>,
    ) -> Result<Response<v1::GetHealthPolicyResponse>, Status> {
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let message = request.into_inner();
        let engine = self.router.engine();
        let view =
            self.router.fresh(account, (message.read.as_ref(), Consistency::Linearizable), deadline).await?;
        let row = view.health_policy();
        Ok(Response::new(v1::GetHealthPolicyResponse {
            policy: Some(health_policy_to_proto(&row.policy)),
            version: row.version.0,
            set_time: log_time(row.set_at),
            freshness: Some(freshness(engine, &view)),
        }))
    }

    async fn set_health_policy(
        &self,
        request: Request<v1::SetHealthPolicyRequest>,
    ) -> Result<Response<v1::SetHealthPolicyResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let policy = health_policy_from_proto("policy", message.policy.as_ref()).map_err(invalid)?;
        let expected_version = message.expected_version.map(LogIndex);
        let id = match message.validate_only {
            true => None,
            false => Some(request_id("request_id", &message.request_id).map_err(|v| invalid(vec![v]))?),
        };
        let engine = self.router.engine();
        let local = || async {
            let Some(id) = id else {
                let view = engine.reading();
                let version = check_health_policy(&view, &policy, expected_version)?;
                return Ok(v1::SetHealthPolicyResponse {
                    version: version.0,
                    freshness: Some(freshness(engine, &view)),
                });
            };
            let policy = Box::new(policy.clone());
            let command =
                Command::SetHealthPolicy { request: id, by: requester(&caller), policy, expected_version };
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
