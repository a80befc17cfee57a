//! The policy of a cluster that is none.

use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use muster_wire::time::timestamp;
use muster_wire::v1::policy_service_server::PolicyService;
use muster_wire::{convert, v1};
use tonic::{Request, Response, Status};

use super::{Service, freshness, refuse};

#[tonic::async_trait]
impl PolicyService for Service {
    async fn get_policy(
        &self,
        _: Request<v1::GetPolicyRequest>,
    ) -> Result<Response<v1::GetPolicyResponse>, Status> {
        let (version, policy) = self.book.lock().policy.clone().unwrap_or_default();
        let policy = convert::policy_from_proto("policy", Some(policy)).unwrap();
        Ok(Response::new(v1::GetPolicyResponse {
            policy: Some(convert::policy_to_proto(&policy)),
            version,
            set_time: (version > 0).then(|| timestamp(1_700_000_000_000)),
            freshness: freshness(),
        }))
    }

    async fn set_policy(
        &self,
        request: Request<v1::SetPolicyRequest>,
    ) -> Result<Response<v1::SetPolicyResponse>, Status> {
        let request = request.into_inner();
        let mut book = self.book.lock();
        book.request_ids.push(request.request_id);
        let policy = convert::policy_from_proto("policy", request.policy)
            .map_err(|found| to_status(&Refusal::fields(found)))?;
        let version = book.policy.as_ref().map_or(0, |(version, _)| *version);
        if request.expected_version.is_some_and(|expected| expected != version) {
            return Err(refuse(RefusalCode::PolicyChanged, "the policy in force is another version"));
        }
        if policy.tenants.keys().any(|name| name.as_str() == "forbidden") {
            let violation = muster_types::Violation::new("policy.tenants.forbidden.weight_milli", "no");
            return Err(to_status(&Refusal::fields(vec![violation])));
        }
        if request.validate_only {
            return Ok(Response::new(v1::SetPolicyResponse {
                version,
                freshness: freshness(),
                warnings: vec![v1::PolicyWarning {
                    code: "UNKNOWN_TYPE".to_owned(),
                    field: "policy.tenants.research.quotas[1]".to_owned(),
                    message: "no node has accelerators of type v5p".to_owned(),
                }],
                warnings_left_out: 2,
            }));
        }
        book.policy = Some((version + 41, convert::policy_to_proto(&policy)));
        Ok(Response::new(v1::SetPolicyResponse {
            version: version + 41,
            freshness: freshness(),
            ..Default::default()
        }))
    }

    async fn update_policy(
        &self,
        request: Request<v1::UpdatePolicyRequest>,
    ) -> Result<Response<v1::UpdatePolicyResponse>, Status> {
        let request = request.into_inner();
        let mut book = self.book.lock();
        let refused = |found| to_status(&Refusal::fields(found));
        let update =
            convert::policy_update_from_proto(request.policy, request.update_mask).map_err(refused)?;
        let (version, in_force) = book.policy.clone().unwrap_or_default();
        let in_force = convert::policy_from_proto("policy", Some(in_force)).map_err(refused)?;
        let policy = update.apply(&in_force).map_err(refused)?;
        if request.expected_version.is_some_and(|expected| expected != version) {
            return Err(refuse(RefusalCode::PolicyChanged, "the policy in force is another version"));
        }
        let version = if request.validate_only { version } else { version + 41 };
        if !request.validate_only {
            book.policy = Some((version, convert::policy_to_proto(&policy)));
        }
        let freshness = freshness();
        Ok(Response::new(v1::UpdatePolicyResponse { version, freshness, ..Default::default() }))
    }
}
