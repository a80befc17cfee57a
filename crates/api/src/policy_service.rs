//! `muster.v1beta1.PolicyService`.

use muster_decider::{Command, PolicyWarning, PolicyWarnings, check_policy, policy_warnings, updated_policy};
use muster_engine::Reading;
use muster_types::policy::{Policy, PolicyUpdate};
use muster_types::{Consistency, LogIndex, Refusal, RefusalCode, RequestId, Violation};
use muster_wire::convert::{policy_from_proto, policy_to_proto, policy_update_from_proto, request_id_of};
use muster_wire::time::log_time;
use muster_wire::v1;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::policy_service_server::PolicyService;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::controls::requester;
use crate::forward::{Caller, ONWARD_BYTES_MAX, Router};
use crate::original::Onward;
use crate::read::{freshness, invalid, written};
use crate::shares::Account;

/// How long the answer to a change that was made waits for what is to be said of it: it stands, and was looked at before as a rule.
const WARNINGS_WAIT_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Policies {
    router: Router,
}

impl Policies {
    pub(crate) fn new(router: Router) -> Policies {
        Policies { router }
    }
}

#[tonic::async_trait]
impl PolicyService for Policies {
    async fn get_policy(
        &self,
        request: Request<v1::GetPolicyRequest>,
    ) -> Result<Response<v1::GetPolicyResponse>, Status> {
        let engine = self.router.engine();
        let (deadline, account) =
            (self.router.read_deadline(&request), self.router.caller(&request).account());
        let view = self
            .router
            .fresh(account, (request.get_ref().read.as_ref(), Consistency::Linearizable), deadline)
            .await?;
        let row = view.policy();
        Ok(Response::new(v1::GetPolicyResponse {
            policy: Some(policy_to_proto(&row.policy)),
            version: row.version.0,
            set_time: log_time(row.set_at),
            freshness: Some(freshness(engine, &view)),
        }))
    }

    async fn set_policy(
        &self,
        request: Request<v1::SetPolicyRequest>,
    ) -> Result<Response<v1::SetPolicyResponse>, Status> {
        let caller = self.router.caller(&request);
        // Passed on as it is, perhaps more than once: never copied but for the wire.
        let message = Arc::new(request.into_inner());
        let policy = policy_from_proto("policy", message.policy.clone());
        let change = policy.map(|policy| Change::Whole(Arc::new(policy)));
        let (id, validate_only) = (&message.request_id, message.validate_only);
        let order = Order::check(id, change, message.expected_version, validate_only)?;
        let local = || order.carry_out(&self.router, caller);
        let onward = |channel| {
            let message = Arc::clone(&message);
            async move {
                let request = Router::onward(v1::SetPolicyRequest::clone(&message), caller);
                Ok(onward_client(channel).set_policy(request).await?.into_inner())
            }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }

    async fn update_policy(
        &self,
        request: Request<v1::UpdatePolicyRequest>,
    ) -> Result<Response<v1::UpdatePolicyResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = Arc::new(request.into_inner());
        let update = policy_update_from_proto(message.policy.clone(), message.update_mask.clone());
        let change = update.map(|update| Change::Parts(Box::new(update)));
        let (id, validate_only) = (&message.request_id, message.validate_only);
        let order = Order::check(id, change, message.expected_version, validate_only)?;
        let local = || async { order.carry_out(&self.router, caller).await.map(updated) };
        let onward = |channel| {
            let message = Arc::clone(&message);
            async move {
                let request = Router::onward(v1::UpdatePolicyRequest::clone(&message), caller);
                Ok(onward_client(channel).update_policy(request).await?.into_inner())
            }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
}

fn onward_client(channel: Onward) -> PolicyServiceClient<Onward> {
    PolicyServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX)
}

/// What is to be in force.
enum Change {
    /// This policy.
    Whole(Arc<Policy>),
    /// The one that is in force, with these parts.
    Parts(Box<PolicyUpdate>),
}

/// A request to change the policy, with fields that are right by themselves.
struct Order {
    id: RequestId,
    change: Change,
    expected_version: Option<LogIndex>,
    validate_only: bool,
}

impl Order {
    fn check(
        id: &str,
        change: Result<Change, Vec<Violation>>,
        expected_version: Option<u64>,
        validate_only: bool,
    ) -> Result<Order, Status> {
        let mut violations = Vec::new();
        let id = request_id_of("request_id", id, validate_only).map_err(|v| violations.push(v)).ok();
        let change = change.map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(change)) = (id, change) else { return Err(invalid(violations)) };
        Ok(Order { id, change, expected_version: expected_version.map(LogIndex), validate_only })
    }

    async fn carry_out(&self, router: &Router, caller: Caller) -> Result<v1::SetPolicyResponse, Refusal> {
        let (engine, account, by) = (router.engine(), caller.account(), requester(&caller));
        let Order { id: request, change, expected_version, validate_only } = self;
        let (request, expected_version) = (*request, *expected_version);
        if *validate_only {
            let view = engine.reading();
            let policy = match change {
                Change::Whole(policy) => {
                    check_policy(&view, policy, expected_version)?;
                    Arc::clone(policy)
                }
                Change::Parts(update) => Arc::new(updated_policy(&view, update, expected_version)?),
            };
            let (version, freshness) = (view.policy().version, Some(freshness(engine, &view)));
            let warnings = warnings(router, account, view, policy).await?;
            return Ok(v1::SetPolicyResponse { freshness, ..answer(version, warnings) });
        }
        let command = match change {
            Change::Whole(policy) => {
                let policy = Box::new(Policy::clone(policy));
                Command::SetPolicy { request, by, policy, expected_version }
            }
            Change::Parts(update) => {
                Command::UpdatePolicy { request, by, update: update.clone(), expected_version }
            }
        };
        // What the change does at once can be told only by the state before it.
        let before = engine.reading();
        let at = engine.execute(command).await?.at();
        let policy = match change {
            Change::Whole(policy) => Arc::clone(policy),
            Change::Parts(_) => Arc::clone(&engine.reading().policy().policy),
        };
        let left = caller.deadline.saturating_duration_since(Instant::now());
        let warnings = warnings(router, account, before, policy);
        let warnings = tokio::time::timeout(WARNINGS_WAIT_MAX.min(left / 2), warnings).await;
        let warnings = warnings.ok().and_then(Result::ok).unwrap_or_else(|| {
            tracing::warn!(%at, "a policy was set, and its answer is without warnings: working them out takes too long");
            PolicyWarnings::default()
        });
        Ok(v1::SetPolicyResponse { freshness: written(engine, at), ..answer(at, warnings) })
    }
}

/// What a policy would mean, worked out in its caller's turn and on a thread for such work: it walks over the jobs.
async fn warnings(
    router: &Router,
    account: Account,
    view: Reading,
    policy: Arc<Policy>,
) -> Result<PolicyWarnings, Refusal> {
    let work = async move {
        let made = muster_engine::in_background(move || policy_warnings(&view, &policy)).await;
        let text = "what the policy would mean could not be worked out";
        made.map_err(|_| Refusal::new(RefusalCode::Internal, text))
    };
    router.in_turn(account, work).await
}

/// The same answer, for an update.
fn updated(answer: v1::SetPolicyResponse) -> v1::UpdatePolicyResponse {
    let v1::SetPolicyResponse { version, freshness, warnings, warnings_left_out } = answer;
    v1::UpdatePolicyResponse { version, freshness, warnings, warnings_left_out }
}

fn answer(version: LogIndex, warnings: PolicyWarnings) -> v1::SetPolicyResponse {
    // Paths begin at the request, as those of violations do.
    let within = |field: String| if field.is_empty() { field } else { format!("policy.{field}") };
    let warning = |PolicyWarning { code, field, text }| v1::PolicyWarning {
        code: code.as_str().to_owned(),
        field: within(field),
        message: text,
    };
    v1::SetPolicyResponse {
        version: version.0,
        freshness: None,
        warnings: warnings.listed.into_iter().map(warning).collect(),
        warnings_left_out: u32::try_from(warnings.left_out).unwrap_or(u32::MAX),
    }
}
