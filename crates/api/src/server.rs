//! The server: services, health, reflection, and their limits.

use muster_engine::Engine;
use muster_metrics::ReplicaMetrics;
use muster_transport::Security;
use muster_wire::admin::archive_service_server::ArchiveServiceServer;
use muster_wire::admin::cluster_admin_service_server::ClusterAdminServiceServer;
use muster_wire::admin::drill_service_server::DrillServiceServer;
use muster_wire::admin::probe_service_server::ProbeServiceServer;
use muster_wire::agent::node_service_server::NodeServiceServer;
use muster_wire::v1::booking_service_server::BookingServiceServer;
use muster_wire::v1::cluster_service_server::ClusterServiceServer;
use muster_wire::v1::fleet_service_server::FleetServiceServer;
use muster_wire::v1::history_service_server::HistoryServiceServer;
use muster_wire::v1::job_service_server::JobServiceServer;
use muster_wire::v1::policy_service_server::PolicyServiceServer;
use muster_wire::v1::quota_service_server::QuotaServiceServer;
use muster_wire::v1::schedule_service_server::ScheduleServiceServer;
use muster_wire::v1::tenant_service_server::TenantServiceServer;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::Server;

use crate::admin_service::Admin;
use crate::booking_service::Bookings;
use crate::cluster_service::Clusters;
use crate::drill_service::DrillCalls;
use crate::facts::hears_leader;
use crate::fleet_service::{Fleet, Probes};
use crate::guard::GuardLayer;
use crate::job_service::Jobs;
use crate::log_service::{Archives, Logs};
use crate::measure::MeasureLayer;
use crate::node_service::Nodes;
use crate::policy_service::Policies;
use crate::queue_service::Queues;
use crate::quota_service::Quotas;
use crate::schedule_service::Schedules;
use crate::shared::Shared;
use crate::tokens::Tokens;
use crate::watcher::Watches;

/// Why the services ended.
#[derive(Debug)]
pub enum ServeError {
    /// The reflection service could not be built from the compiled descriptors.
    Reflection(tonic_reflection::server::Error),
    /// The listener failed.
    Transport(tonic::transport::Error),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ServeError::Reflection(_) => "building the reflection service failed",
            ServeError::Transport(_) => "serving clients failed",
        })
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServeError::Reflection(error) => Some(error),
            ServeError::Transport(error) => Some(error),
        }
    }
}

const PUBLIC_SERVICES: [&str; 15] = [
    "muster.v1beta1.JobService",
    "muster.v1beta1.FleetService",
    "muster.v1beta1.PolicyService",
    "muster.v1beta1.ScheduleService",
    "muster.v1beta1.TenantService",
    "muster.v1beta1.QuotaService",
    "muster.v1beta1.BookingService",
    "muster.v1beta1.ClusterService",
    "muster.v1beta1.HistoryService",
    "muster.admin.v1beta1.ArchiveService",
    "muster.admin.v1beta1.ClusterAdminService",
    "muster.admin.v1beta1.DrillService",
    "muster.admin.v1beta1.ProbeService",
    "muster.agent.v1beta1.NodeService",
    "grpc.health.v1.Health",
];

/// Serves clients and agents until `shutdown`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    shared: Shared,
    metrics: ReplicaMetrics,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let Shared { router, unwritten, recorder, issuers, denied, drills, objectives: _ } = shared;
    let (engine, config, security) = (router.engine().clone(), router.config(), router.security().clone());
    let incoming = if config.tokens {
        security.accept_with_tokens(listener, config.accept)
    } else {
        security.accept(listener, config.accept)
    };
    let tokens = Tokens::new(engine.clone(), config.tokens, issuers);
    crate::measure::begin(&metrics);
    let watches = Watches::new();
    let revocations = tokio::spawn(follow_revocations(engine.clone(), security.clone()));
    let traffic = engine.consensus().traffic().clone();
    let leading = engine.clone();
    let leads = Arc::new(move || leading.is_leader());
    let (limit, small) = (config.message_bytes_max, config.small_message_bytes_max);
    let (health, health_service) = tonic_health::server::health_reporter();
    for service in PUBLIC_SERVICES.into_iter().filter(|service| service.starts_with("muster.")) {
        health.set_service_status(service, tonic_health::ServingStatus::Serving).await;
    }
    let reporting = tokio::spawn(report_health(engine.clone(), health));
    let served = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(4)))
        .concurrency_limit_per_connection(config.calls_per_connection_max)
        .max_concurrent_streams(config.streams_per_connection_max)
        .layer(MeasureLayer(metrics.clone()))
        .layer(GuardLayer::new(
            config.calls,
            config.message_bytes_max,
            traffic,
            leads,
            unwritten,
            (tokens, recorder),
        ))
        .add_service(health_service)
        .add_service(reflection_v1()?)
        .add_service(reflection_v1alpha()?)
        .add_service(
            JobServiceServer::new(Jobs::new(router.clone(), watches.clone(), metrics))
                .max_decoding_message_size(limit),
        )
        .add_service(
            NodeServiceServer::new(Nodes::new(router.clone(), config.calls.agent_sessions_max))
                .max_decoding_message_size(config.node_message_bytes_max),
        )
        .add_service(
            FleetServiceServer::new(Fleet::new(router.clone(), watches.clone()))
                .max_decoding_message_size(small),
        )
        .add_service(
            TenantServiceServer::new(Queues::new(router.clone(), watches)).max_decoding_message_size(small),
        )
        .add_service(
            ScheduleServiceServer::new(Schedules::new(router.clone())).max_decoding_message_size(limit),
        )
        .add_service(PolicyServiceServer::new(Policies::new(router.clone())).max_decoding_message_size(limit))
        .add_service(QuotaServiceServer::new(Quotas::new(router.clone())).max_decoding_message_size(small))
        .add_service(
            BookingServiceServer::new(Bookings::new(router.clone())).max_decoding_message_size(small),
        )
        .add_service(HistoryServiceServer::new(Logs::new(router.clone())).max_decoding_message_size(small))
        .add_service(
            ArchiveServiceServer::new(Archives::new(router.clone())).max_decoding_message_size(small),
        )
        .add_service(ProbeServiceServer::new(Probes::new(router.clone())).max_decoding_message_size(small))
        .add_service(
            ClusterAdminServiceServer::new(Admin::new(router.clone(), denied))
                .max_decoding_message_size(small),
        )
        .add_service(
            DrillServiceServer::new(DrillCalls::new(router.clone(), drills.clone()))
                .max_decoding_message_size(small),
        )
        .add_service(
            ClusterServiceServer::new(Clusters::new(router, drills)).max_decoding_message_size(small),
        )
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await;
    reporting.abort();
    revocations.abort();
    served.map_err(ServeError::Transport)
}

/// Keeps connections to what the log says of revoked certificates.
async fn follow_revocations(engine: Engine, security: Security) {
    let mut applied = engine.consensus().applied();
    let mut known = None;
    loop {
        applied.mark_unchanged();
        let view = engine.view();
        // Cheap to compare: most records say nothing of it.
        if known.replace(view.doors_digest()) != Some(view.doors_digest()) {
            security.revoke(view.revocations().map(|(serial, _)| serial).collect());
        }
        drop(view);
        if applied.changed().await.is_err() {
            return;
        }
    }
}

/// What this replica is good for, for load balancers and probes:
/// - `muster.leader`: it leads.
/// - `muster.write`: it leads and its disk has space, or it hears from a leader that it can pass calls on to.
/// - `muster.read`: it has the state of a cluster, and is not on its way back after it lost its storage.
async fn report_health(engine: Engine, health: tonic_health::server::HealthReporter) {
    let mut leadership = engine.leadership();
    let mut reports = engine.consensus().peer_reports();
    let mut applied = engine.consensus().applied();
    let mut reported = [None; 3];
    loop {
        let (leads, knows_leader) = {
            let view = leadership.borrow_and_update();
            (view.mine.is_some(), view.leader.is_some())
        };
        reports.mark_unchanged();
        let own = engine.consensus().status();
        let is_back = !own.rejoining;
        let hears_leader = knows_leader && hears_leader(&own);
        let is_founded = engine.view().cluster().is_some();
        let services = [
            ("muster.leader", leads),
            ("muster.write", if leads { !engine.lacks_space() } else { hears_leader && is_back }),
            ("muster.read", is_founded && is_back),
        ];
        for ((service, serves), before) in services.into_iter().zip(&mut reported) {
            // Those who watch are sent each status that is set.
            if before.replace(serves) == Some(serves) {
                continue;
            }
            let status = if serves {
                tonic_health::ServingStatus::Serving
            } else {
                tonic_health::ServingStatus::NotServing
            };
            health.set_service_status(service, status).await;
        }
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { return },
            changed = reports.changed() => if changed.is_err() { return },
            // Nothing else says that the state of a cluster has come.
            _ = applied.changed(), if !is_founded => {}
        }
    }
}

macro_rules! reflection {
    ($name:ident, $build:ident, $service:ident, $version:ident) => {
        fn $name() -> Result<
            tonic_reflection::server::$version::ServerReflectionServer<
                impl tonic_reflection::server::$version::ServerReflection,
            >,
            ServeError,
        > {
            let mut builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(muster_wire::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            for service in PUBLIC_SERVICES {
                builder = builder.with_service_name(service);
            }
            builder.$build().map_err(ServeError::Reflection)
        }
    };
}

reflection!(reflection_v1, build_v1, ServerReflection, v1);
reflection!(reflection_v1alpha, build_v1alpha, ServerReflection, v1alpha);
