//! `muster.admin.v1beta1.ProbeService`.

use muster_engine::PROBE_NODES_MAX;
use muster_types::{NodeId, Refusal, Violation};
use muster_wire::admin;
use muster_wire::admin::probe_service_client::ProbeServiceClient;
use muster_wire::admin::probe_service_server::ProbeService;
use muster_wire::convert::{probe_finding_to_proto, probe_link_to_proto, probe_ring_to_proto};
use std::collections::BTreeSet;
use tonic::{Request, Response, Status};

use super::find;
use crate::forward::Router;
use crate::read::invalid;

pub(crate) struct Probes {
    router: Router,
}

impl Probes {
    pub(crate) fn new(router: Router) -> Probes {
        Probes { router }
    }
}

#[tonic::async_trait]
impl ProbeService for Probes {
    async fn probe_nodes(
        &self,
        request: Request<admin::ProbeNodesRequest>,
    ) -> Result<Response<admin::ProbeNodesResponse>, Status> {
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
            nodes.iter().try_for_each(|node| caller.check_node(&view, *node))?;
            if nodes.iter().collect::<BTreeSet<_>>().len() < count {
                return Err(Refusal::fields(vec![Violation::new("nodes", "names a node twice")]));
            }
            let result = engine.probe(&nodes).await?;
            let name = |node: &NodeId| view.node(*node).map(|row| row.spec.name.to_string());
            let node_names: Vec<String> = nodes.iter().map(|node| name(node).unwrap_or_default()).collect();
            let finding = |finding| probe_finding_to_proto(finding, &node_names);
            Ok(admin::ProbeNodesResponse {
                links: result.links.iter().map(probe_link_to_proto).collect(),
                rings: result.rings.iter().map(probe_ring_to_proto).collect(),
                findings: result.findings.iter().map(finding).collect(),
                node_names,
            })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(ProbeServiceClient::new(channel).probe_nodes(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
}
