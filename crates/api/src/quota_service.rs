//! `muster.v1beta1.QuotaService`.

use muster_decider::{
    Command, QuotaAnswerOrder, QuotaImpact, QuotaOrder, check_quota_grant, check_quota_request, quota_impact,
};
use muster_engine::{Engine, Reading};
use muster_state::{QuotaGrantEnd, QuotaGrantRow, QuotaGrantStatus, State};
use muster_types::policy::QuotaGrant;
use muster_types::{LogIndex, LogTime, Name, Refusal, RefusalCode, Violation};
use muster_wire::convert::{UNSAID_OF_LISTS, quota_grant_from_proto, request_id, request_id_of};
use muster_wire::status::to_status;
use muster_wire::time::{log_time, timestamp};
use muster_wire::v1;
use muster_wire::v1::quota_service_client::QuotaServiceClient;
use muster_wire::v1::quota_service_server::QuotaService;
use tonic::{Request, Response, Status};

use crate::controls::requester;
use crate::forward::{Caller, Router};
use crate::read::{freshness, invalid, written};
use crate::visibility::{REDACTED, Visibility};

/// Rows of one list.
const LISTED_MAX: usize = 1_024;

/// Requests of one list that are shown with what they would displace.
const IMPACTS_MAX: usize = 16;

/// About what a row takes in memory, with its texts.
const ROW_BYTES: usize = 2 << 10;

pub(crate) struct Quotas {
    router: Router,
}

impl Quotas {
    pub(crate) fn new(router: Router) -> Quotas {
        Quotas { router }
    }
}

#[tonic::async_trait]
impl QuotaService for Quotas {
    async fn request_quota(
        &self,
        request: Request<v1::RequestQuotaRequest>,
    ) -> Result<Response<v1::RequestQuotaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let order = order(&caller, &message.request_id, message.grant.as_ref(), message.validate_only)?;
        let engine = self.router.engine();
        let local = || async {
            if message.validate_only {
                let (grant, freshness) = preview(&self.router, caller, &order, check_quota_request).await?;
                return Ok(v1::RequestQuotaResponse { grant: Some(grant), freshness: Some(freshness) });
            }
            let at = engine.execute(Command::RequestQuota(Box::new(order.clone()))).await?.at();
            let grant = recorded(engine, at);
            Ok(v1::RequestQuotaResponse { grant, freshness: written(engine, at) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(QuotaServiceClient::new(channel).request_quota(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn answer_quota(
        &self,
        request: Request<v1::AnswerQuotaRequest>,
    ) -> Result<Response<v1::AnswerQuotaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
        let id =
            request_id("request_id", &message.request_id).map_err(|violation| invalid(vec![violation]))?;
        let Some(approved) = message.approve else {
            let text = "must be given: true grants it, and false denies or ends it";
            return Err(invalid(vec![Violation::new("approve", text)]));
        };
        let order = QuotaAnswerOrder {
            request: id,
            by: requester(&caller),
            acts_for,
            id: LogIndex(message.id),
            approved,
            reason: message.reason.clone(),
        };
        let engine = self.router.engine();
        let local = || async {
            let at = engine.execute(Command::AnswerQuota(Box::new(order.clone()))).await?.at();
            let grant = recorded(engine, order.id);
            Ok(v1::AnswerQuotaResponse { grant, freshness: written(engine, at) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(QuotaServiceClient::new(channel).answer_quota(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn grant_quota(
        &self,
        request: Request<v1::GrantQuotaRequest>,
    ) -> Result<Response<v1::GrantQuotaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let order = order(&caller, &message.request_id, message.grant.as_ref(), message.validate_only)?;
        let engine = self.router.engine();
        let local = || async {
            if message.validate_only {
                let (grant, freshness) = preview(&self.router, caller, &order, check_quota_grant).await?;
                return Ok(v1::GrantQuotaResponse { grant: Some(grant), freshness: Some(freshness) });
            }
            let at = engine.execute(Command::GrantQuota(Box::new(order.clone()))).await?.at();
            let grant = recorded(engine, at);
            Ok(v1::GrantQuotaResponse { grant, freshness: written(engine, at) })
        };
        let onward = |channel| {
            let request = Router::onward(message.clone(), caller);
            async move { Ok(QuotaServiceClient::new(channel).grant_quota(request).await?.into_inner()) }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn list_quota_grants(
        &self,
        request: Request<v1::ListQuotaGrantsRequest>,
    ) -> Result<Response<v1::ListQuotaGrantsResponse>, Status> {
        let caller = self.router.caller(&request);
        let (deadline, account) = (self.router.read_deadline(&request), caller.account());
        let message = request.into_inner();
        let engine = self.router.engine().clone();
        let view = self.router.fresh(account, (message.read.as_ref(), UNSAID_OF_LISTS), deadline).await?;
        let bytes = view.quota_grants().count().min(LISTED_MAX).saturating_mul(ROW_BYTES);
        let make = move || Ok(list(&engine, &view, &message, caller.visibility()));
        self.router.page(account, bytes, make).await
    }
}

fn order(
    caller: &Caller,
    id: &str,
    grant: Option<&v1::QuotaGrant>,
    validate_only: bool,
) -> Result<QuotaOrder, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    match (request_id_of("request_id", id, validate_only), quota_grant_from_proto("grant", grant)) {
        (Ok(request), Ok(grant)) => Ok(QuotaOrder { request, by: requester(caller), acts_for, grant }),
        (request, grant) => {
            let mut violations: Vec<_> = request.err().into_iter().collect();
            violations.extend(grant.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

/// What keeps a request or a grant from being made.
type Check = fn(&State, LogTime, &QuotaOrder) -> Result<(), Refusal>;

/// What would be asked for or granted, in its caller's turn and on a thread for such work: it walks over jobs and works out what
/// everybody would be guaranteed, and every user may ask for it.
async fn preview(
    router: &Router,
    caller: Caller,
    order: &QuotaOrder,
    check: Check,
) -> Result<(v1::QuotaGrant, v1::Freshness), Refusal> {
    let turn = router.costly(caller.account()).await?;
    let engine = router.engine();
    let (view, order) = (engine.reading(), order.clone());
    let (now, fresh) = (engine.now(&view), freshness(engine, &view));
    let made = muster_engine::in_background(move || {
        let grant = check(&view, now, &order).map(|()| previewed(&view, &order.grant));
        // The turn ends with the work, and not with the caller's patience.
        drop(turn);
        grant
    });
    let failed = |_| Refusal::new(RefusalCode::Internal, "what it would displace could not be looked at");
    Ok((made.await.map_err(failed)??, fresh))
}

/// A request or grant as the state has it now.
fn recorded(engine: &Engine, id: LogIndex) -> Option<v1::QuotaGrant> {
    engine.view().quota_grant(id).map(|row| message(id, row))
}

/// What is asked for, with what it would displace.
fn previewed(view: &State, grant: &QuotaGrant) -> v1::QuotaGrant {
    v1::QuotaGrant { impact: Some(impact(quota_impact(view, grant))), ..asked(grant) }
}

fn list(
    engine: &Engine,
    view: &Reading,
    asked: &v1::ListQuotaGrantsRequest,
    visibility: Visibility,
) -> v1::ListQuotaGrantsResponse {
    let is_named = |tenant: &Name| asked.tenant.is_empty() || tenant.as_str() == asked.tenant;
    // Who acts for no tenant may look at everything, and is told nobody's reasons.
    let is_shown = |tenant: &Name| visibility == Visibility::Nobodys || visibility.sees(view, tenant);
    let rows = view.quota_grants().filter(|(_, row)| {
        let tenant = &row.grant.tenant;
        (asked.include_over || !row.status.is_over()) && is_named(tenant) && is_shown(tenant)
    });
    let rows: Vec<(LogIndex, &QuotaGrantRow)> = rows.collect();
    let left_out = rows.len().saturating_sub(LISTED_MAX);
    let mut impacts_left = IMPACTS_MAX;
    let shown = rows.into_iter().skip(left_out).map(|(id, row)| {
        let mut shown = message(id, row);
        if row.status == QuotaGrantStatus::Requested && impacts_left > 0 {
            impacts_left -= 1;
            shown.impact = Some(impact(quota_impact(view, &row.grant)));
        }
        if visibility == Visibility::Nobodys {
            redact(&mut shown);
        }
        shown
    });
    v1::ListQuotaGrantsResponse {
        grants: shown.collect(),
        left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
        freshness: Some(freshness(engine, view)),
    }
}

fn redact(shown: &mut v1::QuotaGrant) {
    for text in [&mut shown.reason, &mut shown.created_by, &mut shown.answered_by, &mut shown.answer_reason] {
        if !text.is_empty() {
            *text = REDACTED.to_owned();
        }
    }
}

fn asked(grant: &QuotaGrant) -> v1::QuotaGrant {
    v1::QuotaGrant {
        tenant: grant.tenant.to_string(),
        r#type: grant.kind.to_string(),
        region: grant.region.as_ref().map(ToString::to_string).unwrap_or_default(),
        amount_milli: grant.amount_milli,
        end_time: Some(timestamp(grant.until.0)),
        reason: grant.reason.clone(),
        ..Default::default()
    }
}

fn message(id: LogIndex, row: &QuotaGrantRow) -> v1::QuotaGrant {
    let (status, over) = match row.status {
        QuotaGrantStatus::Requested => (v1::QuotaGrantStatus::Requested, None),
        QuotaGrantStatus::Granted => (v1::QuotaGrantStatus::Granted, None),
        QuotaGrantStatus::Denied => (v1::QuotaGrantStatus::Denied, None),
        QuotaGrantStatus::Lapsed { at } => (v1::QuotaGrantStatus::Lapsed, Some((at, None))),
        QuotaGrantStatus::Ended { at, cause } => (v1::QuotaGrantStatus::Ended, Some((at, Some(cause)))),
    };
    let end = over.and_then(|(_, cause)| cause).map_or(v1::QuotaGrantEnd::Unspecified, |cause| match cause {
        QuotaGrantEnd::Expired => v1::QuotaGrantEnd::Expired,
        QuotaGrantEnd::Withdrawn => v1::QuotaGrantEnd::Withdrawn,
        QuotaGrantEnd::PolicySet => v1::QuotaGrantEnd::PolicySet,
        QuotaGrantEnd::SourceEnded => v1::QuotaGrantEnd::SourceEnded,
    });
    let answer = row.answer.as_ref();
    v1::QuotaGrant {
        id: id.0,
        created_by: row.by.clone(),
        create_time: log_time(row.made_at),
        status: status.into(),
        answered_by: answer.map(|answer| answer.by.clone()).unwrap_or_default(),
        answered_for_tenant: answer
            .and_then(|answer| answer.giver.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        answer_time: answer.and_then(|answer| log_time(answer.at)),
        answer_reason: answer.map(|answer| answer.reason.clone()).unwrap_or_default(),
        over_time: over.and_then(|(at, _)| log_time(at)),
        end: end.into(),
        ..asked(&row.grant)
    }
}

fn impact(impact: QuotaImpact) -> v1::QuotaImpact {
    let borrowers = impact.borrowers.into_iter().map(|borrower| v1::QuotaBorrower {
        tenant: borrower.tenant.to_string(),
        devices_milli: borrower.devices_milli,
        jobs: borrower.jobs,
    });
    v1::QuotaImpact {
        capacity_milli: impact.capacity_milli,
        free_milli: impact.free_milli,
        guaranteed_milli: impact.guaranteed_milli,
        displaced_milli: impact.displaced_milli,
        borrowers: borrowers.collect(),
        job_ids: impact.jobs.iter().map(ToString::to_string).collect(),
        jobs: impact.jobs_count,
        is_cut: impact.is_cut,
    }
}
