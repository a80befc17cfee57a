//! `muster.v1beta1.TenantService`.

use muster_decider::{UserPlace, users_of_queue};
use muster_engine::{Engine, Reading};
use muster_state::State;
use muster_types::{Name, PriorityTier};
use muster_wire::closed::number;
use muster_wire::convert::UNSAID_OF_LISTS;
use muster_wire::token::{List, PageToken, TokenError, filter_digest};
use muster_wire::v1;
use muster_wire::v1::tenant_service_server::TenantService;
use tonic::{Request, Response, Status};

use crate::forward::Router;
use crate::licences;
use crate::read::{bad_page, cluster, freshness, page_size};
use crate::render;
use crate::visibility::Visibility;
use crate::watcher::{Messages, QueueTopic, Watches};

/// What a row of a page takes, with the quotas and users in it.
pub(crate) const ROW_BYTES: usize = 4 << 10;
/// Users of a tenant that are shown with it.
const USERS_SHOWN: usize = 8;

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
        let caller = self.router.caller(&request);
        let (deadline, account) = (self.router.read_deadline(&request), caller.account());
        let visibility = caller.visibility();
        let message = request.into_inner();
        let size = page_size(message.page_size)?;
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let make = move || list(&engine, &view, visibility, (&message, size));
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
    visibility: Visibility,
    (message, size): (&v1::ListTenantsRequest, usize),
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
    let row = |name: &Name| {
        let mut queue = render::queue(name, &view.queue(name)?, &capacity);
        if visibility.sees(view, name) {
            queue.user_turns = user_turns(view, name);
        }
        Some(queue)
    };
    let tenants = names.iter().filter_map(row).collect();
    let next = names.last().filter(|_| more).map(|last| {
        let token = PageToken { after: last.to_string(), log_index: view.log_index() };
        token.encode(cluster, List::Queues, filter)
    });
    let freshness = Some(freshness(engine, view));
    Ok(v1::ListTenantsResponse { tenants, next_page_token: next.unwrap_or_default(), freshness })
}

/// Whose turn it is among the users of a tenant, where they share what it gets.
fn user_turns(view: &State, tenant: &Name) -> Vec<v1::UserTurn> {
    let policy = &view.policy().policy;
    let Some(shares) = policy.user_shares(tenant) else { return Vec::new() };
    let users = users_of_queue(view, tenant, view.log_time(), USERS_SHOWN);
    let turn = |(tier, place): (PriorityTier, UserPlace)| v1::UserTurn {
        weight_milli: shares.weight_milli(tenant, &place.user),
        user: place.user,
        tier: number(tier),
        share_billionths: place.share,
    };
    users.into_iter().map(turn).collect()
}
