//! `muster.v1beta1.TenantService`.

use muster_engine::{Engine, Reading};
use muster_types::Name;
use muster_wire::convert::UNSAID_OF_LISTS;
use muster_wire::token::{List, PageToken, TokenError, filter_digest};
use muster_wire::v1;
use muster_wire::v1::tenant_service_server::TenantService;
use tonic::{Request, Response, Status};

use crate::forward::Router;
use crate::licences;
use crate::read::{bad_page, cluster, freshness, page_size};
use crate::render;
use crate::watcher::{Messages, QueueTopic, Watches};

/// What a row of a page takes, with the quotas in it.
pub(crate) const ROW_BYTES: usize = 2 << 10;

pub(crate) struct Queues {
    router: Router,
    watches: Watches,
}

impl Queues {
    pub(crate) fn new(router: Router, watches: Watches) -> Queues {
        Queues { router, watches }
    }
}

#[tonic::async_trait]
impl TenantService for Queues {
    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsResponse>, Status> {
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let message = request.into_inner();
        let size = page_size(message.page_size)?;
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let make = move || list(&engine, &view, &message, size);
        self.router.page(account, size.saturating_mul(ROW_BYTES), make).await
    }

    async fn list_licences(
        &self,
        request: Request<v1::ListLicencesRequest>,
    ) -> Result<Response<v1::ListLicencesResponse>, Status> {
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let message = request.into_inner();
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let bytes = licences::LISTED_MAX.saturating_mul(licences::ROW_BYTES);
        let make = move || {
            let licences = licences::list(&engine, &view);
            Ok(v1::ListLicencesResponse { licences, freshness: Some(freshness(&engine, &view)) })
        };
        self.router.page(account, bytes, make).await
    }

    type WatchTenantsStream = Messages<v1::WatchTenantsResponse>;

    async fn watch_tenants(
        &self,
        request: Request<v1::WatchTenantsRequest>,
    ) -> Result<Response<Self::WatchTenantsStream>, Status> {
        let account = self.router.caller(&request).account();
        let message = request.into_inner();
        let topic = QueueTopic::new(&message.tenants)?;
        self.watches.open(&self.router, topic, &message.resume_token, account).map(Response::new)
    }
}

pub(crate) fn list(
    engine: &Engine,
    view: &Reading,
    message: &v1::ListTenantsRequest,
    size: usize,
) -> Result<v1::ListTenantsResponse, Status> {
    let cluster = cluster(view)?;
    let filter = filter_digest(["queues"]);
    let after = match message.page_token.as_str() {
        "" => None,
        text => {
            let token = PageToken::decode(text, cluster, List::Queues, filter).map_err(bad_page)?;
            Some(Name::new(&token.after).ok_or_else(|| bad_page(TokenError::ReadToken))?)
        }
    };
    let mut names = view.queues_behind(after.as_ref(), size + 1);
    let more = names.len() > size;
    names.truncate(size);
    let capacity = view.capacity();
    let row = |name: &Name| Some(render::queue(name, &view.queue(name)?, &capacity));
    let tenants = names.iter().filter_map(row).collect();
    let next = names.last().filter(|_| more).map(|last| {
        let token = PageToken { after: last.to_string(), log_index: view.log_index() };
        token.encode(cluster, List::Queues, filter)
    });
    let freshness = Some(freshness(engine, view));
    Ok(v1::ListTenantsResponse { tenants, next_page_token: next.unwrap_or_default(), freshness })
}
