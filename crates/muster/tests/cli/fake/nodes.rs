//! Nodes of the fake cluster.

use muster_types::RefusalCode;
use muster_wire::v1;
use tonic::Status;

use super::{freshness, refuse};

pub fn node(name: &str, cordoned: bool) -> v1::Node {
    v1::Node {
        id: "node-1".into(),
        description: Some(v1::NodeDescription {
            name: name.into(),
            region: "eu-north".into(),
            cluster: "a".into(),
            accelerators: Some(v1::Accelerators { r#type: "h100".into(), count: 8 }),
            cpu_milli: 64_000,
            memory_bytes: 512 << 30,
            labels: [("pool".to_owned(), if cordoned { "eval" } else { "train" }.to_owned())].into(),
            ..Default::default()
        }),
        status: v1::NodeStatus::Up.into(),
        cordoned,
        restriction: None,
        free_devices: 6,
        job_ids: vec!["job-1".into()],
        ..Default::default()
    }
}

/// A node of which the agent says one label, after a request; `host-7` is not there.
pub fn labelled(request: v1::SetNodeLabelsRequest) -> Result<v1::SetNodeLabelsResponse, Status> {
    if request.node == "host-7" {
        return Err(refuse(RefusalCode::NodeNotFound, "no such node"));
    }
    let mut node = node(&request.node, false);
    let overrides = v1::NodeOverrides {
        labels: request.set_labels,
        taints: request.set_taints,
        changed_by: "admin/ada".into(),
        change_time: None,
    };
    if let Some(described) = &mut node.description {
        described.labels.extend(overrides.labels.clone());
        described.taints.extend(overrides.taints.clone());
    }
    node.overrides = Some(overrides);
    Ok(v1::SetNodeLabelsResponse { node: Some(node), freshness: freshness() })
}
