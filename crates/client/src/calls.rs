//! One method per unary call of the API.
//!
//! Requests and answers are the messages of the API themselves. A mutation without a request id gets
//! one before it is sent for the first time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admin::probe_service_client::ProbeServiceClient;
use muster_wire::{admin, features, v1};
use tonic::Request;
use v1::cluster_service_client::ClusterServiceClient;
use v1::fleet_service_client::FleetServiceClient;
use v1::job_service_client::JobServiceClient;
use v1::policy_service_client::PolicyServiceClient;
use v1::tenant_service_client::TenantServiceClient;

use crate::channel::Channel;
use crate::error::{AttemptError, CallError};
use crate::retry::Subject;
use crate::{Client, Options, planted};

/// Largest answer that is read: a gang of 16,384 workers with its placement is about 2 MiB, the largest
/// policy about 4.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;

pub(crate) fn jobs(channel: Channel) -> JobServiceClient<Channel> {
    JobServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub(crate) fn fleet(channel: Channel) -> FleetServiceClient<Channel> {
    FleetServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn probes(channel: Channel) -> ProbeServiceClient<Channel> {
    ProbeServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn cluster(channel: Channel) -> ClusterServiceClient<Channel> {
    ClusterServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn policy(channel: Channel) -> PolicyServiceClient<Channel> {
    PolicyServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub(crate) fn queues(channel: Channel) -> TenantServiceClient<Channel> {
    TenantServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// A request id of this call's own, unless the caller brought one.
pub(crate) fn ensure_request_id(request_id: &mut String) -> Option<String> {
    if request_id.is_empty() {
        *request_id = uuid::Uuid::new_v4().to_string();
    }
    Some(request_id.clone())
}

/// Names the features that the jobs of a request need: a replica that does not know one of them refuses the request, and does not
/// leave out what it has not understood.
pub(crate) fn requiring<M>(mut request: Request<M>, required: &str) -> Request<M> {
    if !required.is_empty()
        && let Ok(names) = required.parse()
    {
        request.metadata_mut().insert(features::REQUIRED_FEATURES, names);
    }
    request
}

/// Calls of one service that change something. Each carries a request id, made here when the request has none.
macro_rules! changes {
    ($service:ident: $($(#[$doc:meta])* $operation:literal, $call:ident: $request:ident -> $answer:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// Refusals at once; everything else when the deadline has passed.
        pub async fn $call(&self, mut request: v1::$request) -> Result<v1::$answer, CallError> {
            let request_id = ensure_request_id(&mut request.request_id);
            let subject = Subject { operation: $operation, request_id };
            let send = |channel| {
                let request = request.clone();
                async move { $service(channel).$call(request).await }
            };
            let answer: v1::$answer = self.retry(subject, send).await?;
            self.observe(answer.freshness.as_ref());
            Ok(answer)
        }
    )*};
}
pub(crate) use changes;

impl Client {
    /// Submits one job, or one array of jobs.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn submit_job(
        &self,
        mut request: v1::SubmitJobRequest,
    ) -> Result<v1::SubmitJobResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "submit job", request_id };
        let required = features::required_by(&request.job).join(",");
        let repeated = AtomicBool::new(false);
        let send = |channel| {
            let mut request = request.clone();
            if planted::repeats_under_a_new_id() && repeated.swap(true, Ordering::Relaxed) {
                request.request_id.clear();
                ensure_request_id(&mut request.request_id);
            }
            let request = requiring(Request::new(request), &required);
            async move { jobs(channel).submit_job(request).await }
        };
        let answer: v1::SubmitJobResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Submits several jobs, all or none.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn submit_jobs(
        &self,
        mut request: v1::SubmitJobsRequest,
    ) -> Result<v1::SubmitJobsResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "submit jobs", request_id };
        let required = features::required_by(&request.jobs).join(",");
        let send = |channel| {
            let request = requiring(Request::new(request.clone()), &required);
            async move { jobs(channel).submit_jobs(request).await }
        };
        let answer: v1::SubmitJobsResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn cancel_job(
        &self,
        mut request: v1::CancelJobRequest,
    ) -> Result<v1::CancelJobResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "cancel job", request_id };
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).cancel_job(request).await }
        };
        let answer: v1::CancelJobResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One job.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_job(&self, mut request: v1::GetJobRequest) -> Result<v1::GetJobResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("get job");
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).get_job(within(limit, request)).await }
        };
        let answer: v1::GetJobResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One page of jobs, newest first.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_jobs(
        &self,
        mut request: v1::ListJobsRequest,
    ) -> Result<v1::ListJobsResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("list jobs");
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).list_jobs(within(limit, request)).await }
        };
        let answer: v1::ListJobsResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One array, with its members by phase.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_array(
        &self,
        mut request: v1::GetArrayRequest,
    ) -> Result<v1::GetArrayResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).get_array(within(limit, request)).await }
        };
        let answer: v1::GetArrayResponse = self.retry(repeatable("get array"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One page of arrays, newest first.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_arrays(
        &self,
        mut request: v1::ListArraysRequest,
    ) -> Result<v1::ListArraysResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).list_arrays(within(limit, request)).await }
        };
        let answer: v1::ListArraysResponse = self.retry(repeatable("list arrays"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// What would become of a job if it were submitted now. Changes nothing.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn plan_job(&self, mut request: v1::PlanJobRequest) -> Result<v1::PlanJobResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("plan job");
        let required = features::required_by(&request.job).join(",");
        let send = |channel| {
            let request = requiring(within(limit, request.clone()), &required);
            async move { jobs(channel).plan_job(request).await }
        };
        let answer: v1::PlanJobResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Why a job waits, what stands before it and when it will start.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn explain_job(
        &self,
        mut request: v1::ExplainJobRequest,
    ) -> Result<v1::ExplainJobResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("explain job");
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).explain_job(within(limit, request)).await }
        };
        let answer: v1::ExplainJobResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Says that the work of a gang is saved. The token makes repeating it harmless.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn commit_checkpoint(
        &self,
        request: v1::CommitCheckpointRequest,
    ) -> Result<v1::CommitCheckpointResponse, CallError> {
        let subject = Subject { operation: "commit checkpoint", request_id: None };
        let send = |channel| {
            let request = request.clone();
            async move { jobs(channel).commit_checkpoint(request).await }
        };
        let answer: v1::CommitCheckpointResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// The policy in force and its version.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_policy(
        &self,
        mut request: v1::GetPolicyRequest,
    ) -> Result<v1::GetPolicyResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("get policy");
        let send = |channel| async move { policy(channel).get_policy(within(limit, request)).await };
        let answer: v1::GetPolicyResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    changes! {
        policy:
        /// Sets the policy, or only checks it.
        "set policy", set_policy: SetPolicyRequest -> SetPolicyResponse;
        /// Sets parts of the policy, or only checks them.
        "update policy", update_policy: UpdatePolicyRequest -> UpdatePolicyResponse;
    }

    /// One page of nodes, by name.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_nodes(
        &self,
        mut request: v1::ListNodesRequest,
    ) -> Result<v1::ListNodesResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("list nodes");
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).list_nodes(within(limit, request)).await }
        };
        let answer: v1::ListNodesResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// What there is of each type of accelerator in each region, by how it was bought.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_capacity(
        &self,
        mut request: v1::ListCapacityRequest,
    ) -> Result<v1::ListCapacityResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| async move { fleet(channel).list_capacity(within(limit, request)).await };
        let answer: v1::ListCapacityResponse = self.retry(repeatable("list capacity"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// What operators hold: regions, clusters and tenants.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_fleet_holds(
        &self,
        mut request: v1::ListFleetHoldsRequest,
    ) -> Result<v1::ListFleetHoldsResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| async move { fleet(channel).list_fleet_holds(within(limit, request)).await };
        let answer: v1::ListFleetHoldsResponse = self.retry(repeatable("list holds"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One node.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_node(&self, mut request: v1::GetNodeRequest) -> Result<v1::GetNodeResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("get node");
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).get_node(within(limit, request)).await }
        };
        let answer: v1::GetNodeResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Counted resources of the policy, with who holds them.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_licences(
        &self,
        mut request: v1::ListLicencesRequest,
    ) -> Result<v1::ListLicencesResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let send = |channel| async move { queues(channel).list_licences(within(limit, request)).await };
        let answer: v1::ListLicencesResponse = self.retry(repeatable("list licences"), send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// One page of queues, by name.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn list_tenants(
        &self,
        mut request: v1::ListTenantsRequest,
    ) -> Result<v1::ListTenantsResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("list queues");
        let send = |channel| {
            let request = request.clone();
            async move { queues(channel).list_tenants(within(limit, request)).await }
        };
        let answer: v1::ListTenantsResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    changes! { fleet:
        /// Takes a node out of placement; what runs on it goes on.
        "cordon node", cordon_node: CordonNodeRequest -> CordonNodeResponse;
        /// Puts a cordoned node back into placement.
        "uncordon node", uncordon_node: UncordonNodeRequest -> UncordonNodeResponse;
        /// Holds a region, a cluster or a tenant, or releases it.
        "set hold", set_fleet_hold: SetFleetHoldRequest -> SetFleetHoldResponse;
        /// Sets labels and taints of a node, or takes back what operators had set.
        "set node labels", set_node_labels: SetNodeLabelsRequest -> SetNodeLabelsResponse;
        /// Empties a node.
        "drain node", drain_node: DrainNodeRequest -> DrainNodeResponse;
        /// Ends a drain.
        "cancel node drain", cancel_node_drain: CancelNodeDrainRequest -> CancelNodeDrainResponse;
        /// Keeps a node away from work.
        "quarantine node", quarantine_node: QuarantineNodeRequest -> QuarantineNodeResponse;
        /// Ends a quarantine.
        "release node", release_node: ReleaseNodeRequest -> ReleaseNodeResponse;
        /// Begins a node's repair.
        "begin node repair", begin_node_repair: BeginNodeRepairRequest -> BeginNodeRepairResponse;
        /// Ends a node's repair.
        "finish node repair", finish_node_repair: FinishNodeRepairRequest -> FinishNodeRepairResponse;
        /// Drops a lost node that will not come back.
        "forget node", forget_node: ForgetNodeRequest -> ForgetNodeResponse;
    }

    /// Sets what is made of what agents see.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn set_health_policy(
        &self,
        mut request: v1::SetHealthPolicyRequest,
    ) -> Result<v1::SetHealthPolicyResponse, CallError> {
        let request_id = ensure_request_id(&mut request.request_id);
        let subject = Subject { operation: "set health policy", request_id };
        let send = |channel| {
            let request = request.clone();
            async move { fleet(channel).set_health_policy(request).await }
        };
        let answer: v1::SetHealthPolicyResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// What is made of what agents see of their hosts' health.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_health_policy(
        &self,
        mut request: v1::GetHealthPolicyRequest,
    ) -> Result<v1::GetHealthPolicyResponse, CallError> {
        let read = self.wanted_read(request.read);
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("get health policy");
        let send = |channel| async move { fleet(channel).get_health_policy(within(limit, request)).await };
        let answer: v1::GetHealthPolicyResponse = self.retry(subject, send).await?;
        self.observe(answer.freshness.as_ref());
        Ok(answer)
    }

    /// Measures the network between some nodes; takes some seconds.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn probe_nodes(
        &self,
        request: admin::ProbeNodesRequest,
    ) -> Result<admin::ProbeNodesResponse, CallError> {
        let send = |channel| {
            let request = request.clone();
            async move { probes(channel).probe_nodes(request).await }
        };
        // Longer than any other call: one that is given up is begun again elsewhere, while the first one still runs.
        let options = Options { attempt_timeout: self.options.deadline, ..self.options.clone() };
        self.with_options(options).retry(repeatable("probe nodes"), send).await
    }

    /// How some replica stands. Does not wait for what this client has seen: how far a replica lags
    /// is part of the answer.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_status(
        &self,
        mut request: v1::GetStatusRequest,
    ) -> Result<v1::GetStatusResponse, CallError> {
        let read = request.read.unwrap_or(self.options.read.into());
        request.read = Some(read);
        let limit = self.confirmed_within(&read);
        let subject = repeatable("get status");
        let send = |channel| async move { cluster(channel).get_status(within(limit, request)).await };
        self.retry(subject, send).await
    }

    /// How the replica at one address stands; asked once, not through the rotation.
    ///
    /// # Errors
    /// When that replica cannot be reached or does not answer in time.
    pub async fn get_status_of(&self, address: &str) -> Result<v1::GetStatusResponse, AttemptError> {
        self.ask_one(address, |mut replica| async move {
            replica.get_status(v1::GetStatusRequest::default()).await
        })
        .await
    }

    /// Versions and limits of the replica at one address; as [`Client::get_status_of`].
    ///
    /// # Errors
    /// When that replica cannot be reached or does not answer in time.
    pub async fn get_server_info_of(&self, address: &str) -> Result<v1::GetServerInfoResponse, AttemptError> {
        self.ask_one(address, |mut replica| async move {
            replica.get_server_info(v1::GetServerInfoRequest {}).await
        })
        .await
    }

    /// Asks the replica at one address, once.
    async fn ask_one<T, F>(
        &self,
        address: &str,
        send: impl FnOnce(ClusterServiceClient<Channel>) -> F,
    ) -> Result<T, AttemptError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let (endpoint, channel) =
            self.endpoints().connect_to(address).await.map_err(AttemptError::Connect)?;
        let limit = self.options.attempt_timeout.min(self.options.deadline);
        match tokio::time::timeout(limit, send(cluster(channel))).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let refused = muster_wire::status::Refused::from_status(&status);
                Err(AttemptError::Answer { endpoint, refused })
            }
            Err(_) => Err(AttemptError::Timeout { endpoint }),
        }
    }

    /// Versions and limits of some replica.
    ///
    /// # Errors
    /// Refusals at once; everything else when the deadline has passed.
    pub async fn get_server_info(&self) -> Result<v1::GetServerInfoResponse, CallError> {
        let send =
            |channel| async move { cluster(channel).get_server_info(v1::GetServerInfoRequest {}).await };
        self.retry(repeatable("get server info"), send).await
    }
}

/// A request that says how long it may be held up, if that is bounded.
pub(crate) fn within<T>(limit: Option<Duration>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(limit) = limit {
        request.set_timeout(limit);
    }
    request
}

/// A call that may be repeated as it is.
pub(crate) fn repeatable(operation: &'static str) -> Subject {
    Subject { operation, request_id: None }
}
