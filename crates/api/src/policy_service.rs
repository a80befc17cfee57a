//! `muster.v1beta1.PolicyService`.

use muster_decider::{Command, PolicyWarning, PolicyWarnings, check_policy, policy_warnings, updated_policy};
use muster_types::{Consistency, LogIndex};
use muster_wire::convert::{policy_from_proto, policy_to_proto, policy_update_from_proto, request_id_of};
use muster_wire::time::log_time;
use muster_wire::v1;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::policy_service_server::PolicyService;
use std::sync::Arc;
use tonic::{Request, Response, Status};

use crate::forward::{ONWARD_BYTES_MAX, Router};
use crate::read::{freshness, invalid, written};

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
        let mut violations = Vec::new();
        let id = request_id_of("request_id", &message.request_id, message.validate_only)
            .map_err(|v| violations.push(v))
            .ok();
        let policy =
            policy_from_proto("policy", message.policy.clone()).map_err(|v| violations.extend(v)).ok();
        let (Some(id), Some(policy)) = (id, policy) else { return Err(invalid(violations)) };
        let policy = Box::new(policy);
        let expected_version = message.expected_version.map(LogIndex);
        let engine = self.router.engine();
        let local = || async {
            if message.validate_only {
                let view = engine.reading();
                let version = view.policy().version;
                check_policy(&view, &policy, expected_version)?;
                let warnings = policy_warnings(&view, &policy);
                let freshness = Some(freshness(engine, &view));
                return Ok(v1::SetPolicyResponse { freshness, ..answer(version, warnings) });
            }
            let command = Command::SetPolicy { request: id, policy: policy.clone(), expected_version };
            let at = engine.execute(command).await?.at();
            let warnings = policy_warnings(&engine.reading(), &policy);
            Ok(v1::SetPolicyResponse { freshness: written(engine, at), ..answer(at, warnings) })
        };
        let onward = |channel| {
            let message = Arc::clone(&message);
            async move {
                let request = Router::onward(v1::SetPolicyRequest::clone(&message), caller);
                let mut client =
                    PolicyServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
                Ok(client.set_policy(request).await?.into_inner())
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
        let mut violations = Vec::new();
        let id = request_id_of("request_id", &message.request_id, message.validate_only)
            .map_err(|v| violations.push(v))
            .ok();
        let update = policy_update_from_proto(message.policy.clone(), message.update_mask.clone())
            .map_err(|v| violations.extend(v))
            .ok();
        let (Some(id), Some(update)) = (id, update) else { return Err(invalid(violations)) };
        let update = Box::new(update);
        let expected_version = message.expected_version.map(LogIndex);
        let engine = self.router.engine();
        let local = || async {
            if message.validate_only {
                let view = engine.reading();
                let policy = updated_policy(&view, &update, expected_version)?;
                let warnings = policy_warnings(&view, &policy);
                let freshness = Some(freshness(engine, &view));
                return Ok(updated(v1::SetPolicyResponse {
                    freshness,
                    ..answer(view.policy().version, warnings)
                }));
            }
            let command = Command::UpdatePolicy { request: id, update: update.clone(), expected_version };
            let at = engine.execute(command).await?.at();
            let view = engine.reading();
            let warnings = policy_warnings(&view, &view.policy().policy);
            Ok(updated(v1::SetPolicyResponse { freshness: written(engine, at), ..answer(at, warnings) }))
        };
        let onward = |channel| {
            let message = Arc::clone(&message);
            async move {
                let request = Router::onward(v1::UpdatePolicyRequest::clone(&message), caller);
                let mut client =
                    PolicyServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
                Ok(client.update_policy(request).await?.into_inner())
            }
        };
        self.router.write(caller, local, onward).await.map(Response::new)
    }
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
