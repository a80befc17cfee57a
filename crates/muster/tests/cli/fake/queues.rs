//! What the fake replica says of queues.

use muster_wire::v1::tenant_service_server::TenantService;

use super::*;

fn queue(tenant: &str, pending_jobs: u64) -> v1::TenantUsage {
    v1::TenantUsage {
        tenant: tenant.into(),
        weight_milli: 1_500,
        pending_jobs,
        pending_devices_milli: pending_jobs * 500,
        active_jobs: 1,
        active_devices_milli: 8_000,
        uses: vec![v1::DeviceUse { r#type: "h100".into(), used_milli: 8_000, decayed_device_seconds: 60 }],
        share_billionths: 125_000_000,
        quotas: vec![v1::QuotaUse {
            r#type: "h100".into(),
            region: "eu".into(),
            nominal_milli: 16_000,
            used_milli: 8_000,
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[tonic::async_trait]
impl TenantService for Service {
    /// Two pages.
    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsResponse>, Status> {
        let (queues, next_page_token) = match request.into_inner().page_token.as_str() {
            "" => (vec![queue("speech", 0)], "more".to_owned()),
            _ => (vec![queue("vision", 3)], String::new()),
        };
        Ok(Response::new(v1::ListTenantsResponse {
            tenants: queues,
            next_page_token,
            freshness: freshness(),
        }))
    }

    async fn list_licences(
        &self,
        _: Request<v1::ListLicencesRequest>,
    ) -> Result<Response<v1::ListLicencesResponse>, Status> {
        Ok(Response::new(v1::ListLicencesResponse::default()))
    }

    type WatchTenantsStream = Boxed<Shared<v1::WatchTenantsResponse>>;

    async fn watch_tenants(
        &self,
        _: Request<v1::WatchTenantsRequest>,
    ) -> Result<Response<Self::WatchTenantsStream>, Status> {
        use v1::watch_tenants_response::Event;
        let changes = |changed, forgotten| Event::Changed(v1::TenantChanges { changed, forgotten });
        let events = [
            (41, changes(vec![queue("vision", 3)], Vec::new())),
            (41, Event::SyncEnd(v1::SyncEnd {})),
            (47, changes(vec![queue("vision", 1)], vec!["speech".to_owned()])),
        ];
        let messages = events.map(|(log_index, event)| {
            let resume_token = log_index.to_string();
            Ok(v1::WatchTenantsResponse { resume_token, log_index, event: Some(event) }.into())
        });
        use futures::StreamExt as _;
        Ok(Response::new(Box::pin(futures::stream::iter(messages).chain(futures::stream::pending()))))
    }
}
