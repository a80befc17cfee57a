//! What every replica serves in addition to the API: reflection and health.

use std::collections::BTreeSet;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::{Cluster, PATIENCE};

async fn channel(cluster: &Cluster, at: usize) -> Channel {
    let endpoint = Channel::from_shared(cluster.replicas[at].endpoint()).expect("an address");
    endpoint.connect().await.expect("a replica takes connections")
}

async fn reflect(channel: Channel, request: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .expect("reflection is served")
        .into_inner();
    let answer = answers.message().await.expect("reflection answers").expect("one answer to one request");
    answer.message_response.expect("an answer has content")
}

async fn health(channel: &Channel, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

/// Follows the health of a service until it is `wanted`.
async fn health_becomes(channel: &Channel, service: &str, wanted: ServingStatus) {
    let request = HealthCheckRequest { service: service.to_owned() };
    let mut changes =
        HealthClient::new(channel.clone()).watch(request).await.expect("health is served").into_inner();
    let reached = async {
        while let Some(Ok(HealthCheckResponse { status })) = changes.next().await {
            if status == wanted as i32 {
                return true;
            }
        }
        false
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    assert!(matches!(reached, Ok(true)), "{service} does not become {wanted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_and_health() {
    let mut cluster = Cluster::start(3).await;
    let expected: BTreeSet<&str> = [
        "grpc.health.v1.Health",
        "muster.admin.v1beta1.ArchiveService",
        "muster.admin.v1beta1.ClusterAdminService",
        "muster.admin.v1beta1.DrillService",
        "muster.admin.v1beta1.ProbeService",
        "muster.agent.v1beta1.NodeService",
        "muster.v1beta1.BookingService",
        "muster.v1beta1.ClusterService",
        "muster.v1beta1.FleetService",
        "muster.v1beta1.JobService",
        "muster.v1beta1.HistoryService",
        "muster.v1beta1.PolicyService",
        "muster.v1beta1.ScheduleService",
        "muster.v1beta1.TenantService",
        "muster.v1beta1.QuotaService",
    ]
    .into();
    for at in 0..3 {
        let channel = channel(&cluster, at).await;
        let list = reflect(channel.clone(), MessageRequest::ListServices(String::new())).await;
        let MessageResponse::ListServicesResponse(list) = list else { panic!("{list:?}") };
        let named: BTreeSet<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(
            named.difference(&expected).filter(|n| !n.starts_with("grpc.reflection.")).count(),
            0,
            "{named:?}"
        );
        assert!(named.is_superset(&expected), "{named:?}");
        // Every listed service of ours can be looked into.
        for service in &expected {
            let found =
                reflect(channel.clone(), MessageRequest::FileContainingSymbol((*service).to_owned())).await;
            assert!(matches!(found, MessageResponse::FileDescriptorResponse(_)), "{service}: {found:?}");
            assert_eq!(health(&channel, service).await.is_ok(), service.starts_with("muster."), "{service}");
        }
        assert_eq!(health(&channel, "").await, Ok(ServingStatus::Serving));
        assert_eq!(health(&channel, "muster.nonsense").await, Err(Code::NotFound));
    }

    // A load balancer that asks for the leader finds it, and the next one after it died.
    let leader = cluster.leader().await;
    for at in 0..3 {
        let wanted = if at == leader { ServingStatus::Serving } else { ServingStatus::NotServing };
        let channel = channel(&cluster, at).await;
        health_becomes(&channel, "muster.leader", wanted).await;
        // A follower passes writes on.
        health_becomes(&channel, "muster.write", ServingStatus::Serving).await;
        health_becomes(&channel, "muster.read", ServingStatus::Serving).await;
    }
    cluster.kill(leader).await;
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    health_becomes(&channel(&cluster, next).await, "muster.leader", ServingStatus::Serving).await;
    // One of three answers reads from its state, and can have nothing written.
    cluster.kill(next).await;
    let last = (0..3).find(|at| ![leader, next].contains(at)).expect("one of three is left");
    let channel = channel(&cluster, last).await;
    health_becomes(&channel, "muster.write", ServingStatus::NotServing).await;
    health_becomes(&channel, "muster.read", ServingStatus::Serving).await;
    cluster.restart_all().await;
    cluster.assert_digests_agree().await;
}
