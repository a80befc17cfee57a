//! Sessions of agents, message by message: what an agent that is none could send.

use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::{agent, v1};
use tokio_stream::StreamExt;
use tonic::Status;

/// Opens a session with these messages; the first answer.
pub async fn session(
    endpoint: &str,
    messages: Vec<agent::SessionRequest>,
) -> Result<agent::SessionResponse, Status> {
    let mut nodes =
        NodeServiceClient::connect(endpoint.to_owned()).await.expect("a replica takes connections");
    // The stream stays open: its end would end the session.
    let messages = tokio_stream::iter(messages).chain(tokio_stream::pending());
    let mut answers = nodes.session(messages).await?.into_inner();
    answers.message().await.map(|answer| answer.unwrap_or_default())
}

/// Opens a session with these messages; how it ends.
pub async fn session_end(endpoint: &str, messages: Vec<agent::SessionRequest>) -> Status {
    let mut nodes =
        NodeServiceClient::connect(endpoint.to_owned()).await.expect("a replica takes connections");
    let messages = tokio_stream::iter(messages).chain(tokio_stream::pending());
    let mut answers = nodes.session(messages).await.expect("the session opens").into_inner();
    let ending = async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::unknown("the session ended without a word"),
                Err(status) => return status,
            }
        }
    };
    tokio::time::timeout(super::PATIENCE, ending).await.expect("the session ends")
}

/// The first message of a session.
pub fn registration(node: v1::NodeDescription, holder_id: &str) -> agent::SessionRequest {
    let register = agent::Register {
        node: Some(node),
        holder_id: holder_id.to_owned(),
        workers: Vec::new(),
        version: String::new(),
        takes: Vec::new(),
        start_id: 0,
        start_before_id: 0,
    };
    agent::SessionRequest { message: Some(agent::session_request::Message::Register(register)) }
}

/// Makes a node known, with no agent behind it.
pub async fn register(endpoint: &str, node: v1::NodeDescription) -> Result<agent::SessionResponse, Status> {
    session(endpoint, vec![registration(node, &format!("{:032x}", uuid::Uuid::new_v4().as_u128()))]).await
}

/// A host with one CPU and no accelerators.
pub fn node(name: &str) -> v1::NodeDescription {
    v1::NodeDescription {
        name: name.to_owned(),
        region: "region-1".to_owned(),
        cluster: "region-1-a".to_owned(),
        address: "127.0.0.1".to_owned(),
        cpu_milli: 1_000,
        memory_bytes: 1 << 30,
        ..Default::default()
    }
}
