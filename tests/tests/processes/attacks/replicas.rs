//! A tenant, a host and an onlooker that mean harm, against three real replicas with certificates: everything that
//! they try to read, forge, exhaust, delete or say for others, through every replica. Each attempt has to fail, and the
//! work of the tenant that they are after has to go on as if nobody had tried.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::{Client, Endpoints, Options};
use muster_transport::{Authority, Expect, Role, Security, ShortName, Tls, TlsFiles};
use muster_types::{RefusalCode, ReplicaId};
use muster_wire::admin::archive_service_client::ArchiveServiceClient;
use muster_wire::admin::cluster_admin_service_client::ClusterAdminServiceClient;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::status::Refused;
use muster_wire::time::{duration, timestamp};
use muster_wire::v1::fleet_service_client::FleetServiceClient;
use muster_wire::v1::history_service_client::HistoryServiceClient;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::policy_service_client::PolicyServiceClient;
use muster_wire::v1::quota_service_client::QuotaServiceClient;
use muster_wire::{admin, agent, v1};
use prost::Message;
use std::path::{Path, PathBuf};
use tokio::process::Child;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::table::{Kind, Outcome, Table};
use super::tenants;
use crate::support::{
    Cluster, PATIENCE, eventually, heavy, job, node, registration, say, spawn, wait_for_job,
};

/// In the environment and the command of the victim's job, and in what it prints.
pub(super) const SECRET: &str = "hunter2";

/// In a file on the host, for jobs of the victim's tenant: not even an operator finds it in the cluster.
const FILED: &str = "correct horse battery staple";

/// It has to be refused, with one of Muster's codes.
pub(super) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> Outcome {
    match answer {
        Ok(answer) => Err(format!("it was done: {answer:?}").chars().take(300).collect()),
        Err(status) => match Refused::from_status(&status).code {
            Some(RefusalCode::PermissionDenied) => Ok("PERMISSION_DENIED".to_owned()),
            _ => Err(format!("it was not refused for who asked: {status:?}").chars().take(300).collect()),
        },
    }
}

/// It has to be answered, with the job that was asked for, and not with the secret: that was left out.
pub(super) fn silent(answer: Result<impl Message, Status>, victim: &str) -> Outcome {
    match answer {
        Ok(answer) => told_without(&answer.encode_to_vec(), victim),
        Err(status) => Err(format!("it was not answered: {status:?}").chars().take(300).collect()),
    }
}

/// Bytes that speak of something, and do not tell the secret.
pub(super) fn told_without(bytes: &[u8], of: &str) -> Outcome {
    let speaks = if of.is_empty() { !bytes.is_empty() } else { contains(bytes, of) };
    match untold(bytes) {
        Ok(()) if speaks => Ok("answered, without what is the tenant's own".to_owned()),
        Ok(()) => Err(format!("the answer says nothing of {of}: {} bytes", bytes.len())),
        Err(why) => Err(why),
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

fn untold(bytes: &[u8]) -> Result<(), String> {
    let told = [SECRET, FILED].iter().any(|secret| contains(bytes, secret));
    if told { Err("it tells the secret".to_owned()) } else { Ok(()) }
}

/// It has to be refused with one of these codes.
pub(super) fn turned_away<T>(answer: Result<T, Status>, codes: &[tonic::Code]) -> Outcome {
    match answer {
        Ok(_) => Err("it was taken".to_owned()),
        Err(status) if codes.contains(&status.code()) => {
            Ok(format!("{:?}: {}", status.code(), status.message()))
        }
        Err(status) => Err(format!("{status:?}").chars().take(300).collect()),
    }
}

/// Somebody else is served; what held the attack back.
fn held(outcome: Result<(), String>, by: impl std::fmt::Display) -> Outcome {
    outcome.map(|()| by.to_string())
}

/// Messages of a stream until it ends or has nothing more to say.
pub(super) async fn drained<M: Message>(stream: Result<tonic::Response<Streaming<M>>, Status>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Ok(stream) = stream else { return bytes };
    let mut stream = stream.into_inner();
    let quiet = std::time::Duration::from_millis(400);
    while let Ok(Ok(Some(message))) = tokio::time::timeout(quiet, stream.message()).await {
        bytes.extend(message.encode_to_vec());
    }
    bytes
}

pub(super) fn short(name: &str) -> ShortName {
    ShortName::new(name).expect("a name")
}

pub(super) fn of_tenant(tenant: &str, user: &str) -> Role {
    Role::TenantClient { tenant: short(tenant), user: short(user) }
}

pub(super) fn request_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Three replicas with certificates, one host, two tenants.
pub(super) struct Town {
    pub(super) cluster: Cluster,
    authority: Authority,
    directory: PathBuf,
    _agent: Child,
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles { ca: directory.join("ca.crt"), cert: directory.join("tls.crt"), key: directory.join("tls.key") }
}

fn secured(config: &str, directory: &Path) -> String {
    let own = files(directory);
    let config = config.replace("http://", "https://");
    format!("{config}\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n", own.ca, own.cert, own.key)
}

impl Town {
    async fn open() -> Town {
        Town::open_with("").await
    }

    /// The same with more lines of the replicas' configuration.
    pub(super) async fn open_with(settings: &str) -> Town {
        let mut cluster = Cluster::lay_out_with(3, 0, settings);
        let directory = cluster.scratch.path().join("certificates");
        let authority = Authority::init(&directory.join("authority"), cluster.id, 30).expect("it is made");
        let issue = |role: Role| {
            let out = directory.join(role.to_string().replace('/', "-"));
            authority.issue(role, 20, &out, true).expect("it is issued");
            out
        };
        for at in 0..3 {
            let own = issue(Role::Replica(ReplicaId(at as u64 + 1)));
            let config = secured(&cluster.config_of(at), &own);
            std::fs::write(cluster.replicas[at].config(), config).unwrap();
        }
        let admin = issue(Role::Admin(short("root")));
        let agent = issue(Role::Agent(short("h1")));
        cluster.start_secured(&Security::Tls(Tls::load(files(&admin)).expect("it can be used")));
        cluster.leader().await;
        let tenants = [("vision", ""), ("speech", "")].map(|(name, parent)| {
            (name.to_owned(), v1::TenantPolicy { parent: parent.to_owned(), ..Default::default() })
        });
        let policy = v1::SetPolicyRequest {
            policy: Some(v1::Policy { tenants: tenants.into(), ..Default::default() }),
            ..Default::default()
        };
        cluster.client().set_policy(policy).await.expect("an operator may");
        let home = cluster.scratch.path().join("agent-h1");
        std::fs::create_dir_all(&home).unwrap();
        let secrets = home.join("secrets");
        std::fs::create_dir_all(secrets.join("speech")).unwrap();
        let token = secrets.join("speech/token");
        std::fs::write(&token, format!("{FILED}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, mode).unwrap();
        let endpoints: Vec<String> = cluster.replicas.iter().map(|r| r.client.to_string()).collect();
        let [x, y] = cluster.block;
        let config = format!(
            "state_dir = {:?}\nsecrets_dir = {secrets:?}\nendpoints = {endpoints:?}\n\n[node]\nname = \"h1\"\nregion = \"region-1\"\ncluster = \
             \"region-1-a\"\naddress = \"127.{x}.{y}.16\"\ncpu = 16\nmemory = \"64Gi\"\n",
            home.join("state"),
        );
        std::fs::write(home.join("agent.toml"), secured(&config, &agent)).unwrap();
        let agent = spawn(&home, &["agent", "--config", home.join("agent.toml").to_str().unwrap()]);
        Town { cluster, authority, directory, _agent: agent }
    }

    fn security(&self, role: Role) -> Security {
        let out = self.directory.join(role.to_string().replace('/', "-"));
        if !out.exists() {
            self.authority.issue(role, 20, &out, true).expect("it is issued");
        }
        Security::Tls(Tls::load(files(&out)).expect("it can be used"))
    }

    /// A connection to one replica.
    pub(super) async fn channel(&self, at: usize, role: Role) -> Channel {
        let security = self.security(role);
        let address = security.address(&self.cluster.replicas[at].client.to_string()).unwrap();
        let endpoint = Endpoint::from_shared(address).expect("an address");
        endpoint
            .connect_with_connector(security.connector(Expect::AnyReplica))
            .await
            .expect("a member connects")
    }

    pub(super) fn client(&self, role: Role) -> Client {
        let addresses: Vec<String> = self.cluster.replicas.iter().map(|r| r.client.to_string()).collect();
        let endpoints = Endpoints::parse_with(&addresses, self.security(role)).expect("addresses");
        Client::lazy(endpoints, Options { deadline: PATIENCE, ..Options::STANDARD })
    }

    pub(super) async fn index(&self) -> u64 {
        let leader = self.cluster.leader().await;
        self.cluster.status_of(leader).await.unwrap().freshness.map_or(0, |fresh| fresh.log_index)
    }
}

/// A job that runs until it is stopped.
pub(super) fn endless(name: &str, tenant: &str, script: &str) -> v1::Job {
    let mut wanted = job(name, &["/bin/sh", "-c", script]);
    wanted.tenant = tenant.to_owned();
    wanted.spec_mut().stop_grace = Some(duration(500));
    wanted
}

pub(super) async fn submitted(client: &Client, wanted: v1::Job) -> String {
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    client.submit_job(request).await.expect("it is taken").job_ids.remove(0)
}

/// Reads whatever can be read of the victim's job.
async fn read(town: &Town, attacks: &mut Table, victim: &str) {
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy"))] {
            let channel = town.channel(at, role).await;
            let mut jobs = JobServiceClient::new(channel.clone());
            let job_id = victim.to_owned();
            let any = Some(muster_client::Read::any().into());
            let get = v1::GetJobRequest { job_id: job_id.clone(), read: any };
            attacks.note(
                Kind::Read,
                "the job",
                silent(jobs.get_job(get.clone()).await.map(|r| r.into_inner()), victim),
            );
            let confirmed = v1::GetJobRequest { read: None, ..get };
            attacks.note(
                Kind::Read,
                "the job, confirmed",
                silent(jobs.get_job(confirmed).await.map(|r| r.into_inner()), victim),
            );
            let list = v1::ListJobsRequest {
                filter: Some(v1::JobFilter { tenant: "speech".to_owned(), ..Default::default() }),
                ..Default::default()
            };
            attacks.note(
                Kind::Read,
                "a list",
                silent(jobs.list_jobs(list).await.map(|r| r.into_inner()), victim),
            );
            let explain = v1::ExplainJobRequest { job_id: job_id.clone(), ..Default::default() };
            attacks.note(
                Kind::Read,
                "an explanation",
                silent(jobs.explain_job(explain).await.map(|r| r.into_inner()), ""),
            );
            let watch = v1::WatchJobsRequest {
                filter: Some(v1::JobFilter { job_ids: vec![job_id.clone()], ..Default::default() }),
                ..Default::default()
            };
            attacks.note(
                Kind::Read,
                "a watch",
                told_without(&drained(jobs.watch_jobs(watch).await).await, victim),
            );
            let mut log = HistoryServiceClient::new(channel.clone());
            for raw in [false, true] {
                let request = v1::ReadDecisionsRequest { raw, ..Default::default() };
                attacks.note(
                    Kind::Read,
                    if raw { "the log, raw" } else { "the log" },
                    told_without(&drained(log.read_decisions(request).await).await, "victim"),
                );
            }
            let mut archive = ArchiveServiceClient::new(channel.clone());
            let rounds = archive.read_rounds(admin::ReadRoundsRequest { from_raft_index: 1 }).await;
            attacks.note(Kind::Read, "rounds", refused(rounds.map(drop)));
            let output = v1::ReadLogsRequest { job_id: job_id.clone(), ..Default::default() };
            attacks.note(Kind::Read, "output", refused(jobs.read_logs(output).await.map(drop)));
            let command = vec!["cat".to_owned(), "/proc/1/environ".to_owned()];
            let start = v1::ExecStart { job_id: job_id.clone(), command, ..Default::default() };
            let exec =
                v1::ExecWorkerRequest { message: Some(v1::exec_worker_request::Message::Start(start)) };
            let answer = jobs.exec_worker(tokio_stream::once(exec)).await.map(drop);
            attacks.note(Kind::Read, "a command next to a worker", refused(answer));
            let start = v1::ForwardPortStart { job_id: job_id.clone(), port: 6_006, ..Default::default() };
            let message = Some(v1::forward_port_request::Message::Start(start));
            let forward = tokio_stream::once(v1::ForwardPortRequest { message });
            let answer = jobs.forward_port(forward).await.map(drop);
            attacks.note(Kind::Read, "a port of a worker", refused(answer));
            let mut admin = ClusterAdminServiceClient::new(channel);
            let backup = admin.create_backup(admin::CreateBackupRequest::default());
            attacks.note(Kind::Read, "a backup", refused(backup.await.map(drop)));
        }
    }
}

/// Says something in the name of the victim's tenant, or of an operator.
async fn forge(town: &Town, attacks: &mut Table, victim: &v1::Job) {
    let token = victim.status().placement.as_ref().and_then(|placement| placement.token);
    let root = format!("spiffe://{}/admin/root", town.cluster.id);
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy"))] {
            let channel = town.channel(at, role).await;
            let mut jobs = JobServiceClient::new(channel.clone());
            let commit = v1::CommitCheckpointRequest { job_id: victim.id.clone(), token };
            attacks.note(Kind::Forge, "a checkpoint", refused(jobs.commit_checkpoint(commit).await));
            for tenant in ["speech", "", "nobody"] {
                let wanted = Some(endless("forged", tenant, "true"));
                let one = v1::SubmitJobRequest {
                    request_id: request_id(),
                    job: wanted.clone(),
                    validate_only: false,
                };
                attacks.note(
                    Kind::Forge,
                    "a job of another tenant",
                    refused(jobs.submit_job(one.clone()).await),
                );
                let check = v1::SubmitJobRequest { validate_only: true, ..one.clone() };
                attacks.note(
                    Kind::Forge,
                    "a check for another tenant",
                    refused(jobs.submit_job(check).await),
                );
                let own = endless("own", "vision", "true");
                let batch = v1::SubmitJobsRequest {
                    request_id: request_id(),
                    jobs: [own].into_iter().chain(wanted).collect(),
                    ..Default::default()
                };
                attacks.note(
                    Kind::Forge,
                    "a batch with another tenant",
                    refused(jobs.submit_jobs(batch).await),
                );
                let message = v1::SubmitStreamRequest { sequence: 1, submission: Some(one) };
                let stream = jobs.submit_stream(tokio_stream::once(message)).await;
                let answer = match stream {
                    Ok(stream) => stream.into_inner().message().await.map(|m| m.and_then(|m| m.outcome)),
                    Err(status) => Err(status),
                };
                let was_taken = matches!(answer, Ok(Some(v1::submit_stream_response::Outcome::Accepted(_))));
                let outcome = match answer {
                    _ if was_taken => Err("it was taken".to_owned()),
                    Ok(Some(v1::submit_stream_response::Outcome::Refused(told))) => {
                        match tonic::Code::from(told.code) {
                            tonic::Code::PermissionDenied => Ok("PERMISSION_DENIED".to_owned()),
                            code => Err(format!("{code:?}: {}", told.message)),
                        }
                    }
                    Err(status) => refused(Err::<(), _>(status)),
                    Ok(other) => Err(format!("{other:?}")),
                };
                attacks.note(Kind::Forge, "a stream for another tenant", outcome);
            }
            // As if a replica had passed it on for an operator.
            let mut request = Request::new(v1::SetPolicyRequest {
                request_id: request_id(),
                policy: Some(v1::Policy::default()),
                ..Default::default()
            });
            request.metadata_mut().insert("muster-principal", root.parse().unwrap());
            request.metadata_mut().insert("muster-forwarded", "1".parse().unwrap());
            attacks.note(
                Kind::Forge,
                "an operator's name",
                refused(PolicyServiceClient::new(channel).set_policy(request).await),
            );
        }
    }
}

/// Takes something away that is not theirs.
async fn delete(town: &Town, attacks: &mut Table, victim: &str) {
    for at in 0..3 {
        for role in [of_tenant("vision", "eve"), Role::Client(short("spy")), Role::Agent(short("h2"))] {
            let channel = town.channel(at, role).await;
            let mut note = |name: &str, outcome: Outcome| attacks.note(Kind::Delete, name, outcome);
            let node = || "h1".to_owned();
            let mut jobs = JobServiceClient::new(channel.clone());
            let mut fleet = FleetServiceClient::new(channel.clone());
            let mut admin = ClusterAdminServiceClient::new(channel.clone());
            let cancel = v1::CancelJobRequest { request_id: request_id(), job_id: victim.to_owned() };
            note("the job", refused(jobs.cancel_job(cancel).await));
            let forget = v1::ForgetNodeRequest { request_id: request_id(), node: node() };
            note("the node", refused(fleet.forget_node(forget).await));
            let cordon =
                v1::CordonNodeRequest { request_id: request_id(), node: node(), ..Default::default() };
            note("its place in the fleet", refused(fleet.cordon_node(cordon).await));
            let drain = v1::DrainNodeRequest { request_id: request_id(), node: node(), ..Default::default() };
            note("its work", refused(fleet.drain_node(drain).await));
            let quarantine = v1::QuarantineNodeRequest {
                request_id: request_id(),
                node: node(),
                reason: "an attack".to_owned(),
            };
            note("its trust", refused(fleet.quarantine_node(quarantine).await));
            let labels = v1::SetNodeLabelsRequest {
                request_id: request_id(),
                node: node(),
                set_taints: vec!["stolen".to_owned()],
                ..Default::default()
            };
            note("its labels", refused(fleet.set_node_labels(labels).await));
            let rejected = Some(v1::set_node_approval_request::Approval::Reject(v1::RejectNode {}));
            let reject =
                v1::SetNodeApprovalRequest { request_id: request_id(), name: node(), approval: rejected };
            note("its admission", refused(fleet.set_node_approval(reject).await));
            let admission = v1::SetNodeAdmissionRequest {
                request_id: request_id(),
                mode: v1::AdmissionMode::Open.into(),
                rules: Vec::new(),
                expected_version: None,
            };
            note("the rules of admission", refused(fleet.set_node_admission(admission).await));
            let remove = admin::RemoveReplicaRequest { replica_id: 1, ..Default::default() };
            note("a replica", refused(admin.remove_replica(remove).await));
            let voters = admin::ChangeVotersRequest { voter_ids: vec![1], ..Default::default() };
            note("the voters", refused(admin.change_voters(voters).await));
            let certificate =
                Some(admin::RevokedCertificate { serial: "01".to_owned(), ..Default::default() });
            let revoke = admin::RevokeCertificateRequest { request_id: request_id(), certificate };
            note("a certificate", refused(admin.revoke_certificate(revoke).await));
            let receivers = admin.list_notifications(admin::ListNotificationsRequest::default());
            note("the receivers of notifications", refused(receivers.await));
            let denied = admin.list_denied_calls(admin::ListDeniedCallsRequest::default());
            note("calls that were denied", refused(denied.await));
            let token = admin::CreateTokenRequest { request_id: request_id(), ..Default::default() };
            note("a token", refused(admin.create_token(token).await));
            let token = admin::RevokeTokenRequest { request_id: request_id(), id: "0".repeat(16) };
            note("another's token", refused(admin.revoke_token(token).await));
            let mut quotas = QuotaServiceClient::new(channel.clone());
            let grant = v1::GrantQuotaRequest { request_id: request_id(), ..Default::default() };
            note("others' quota", refused(quotas.grant_quota(grant).await));
            let answer = v1::AnswerQuotaRequest { request_id: request_id(), id: 1, ..Default::default() };
            note("an answer about quota", refused(quotas.answer_quota(answer).await));
            let policy = v1::SetPolicyRequest {
                request_id: request_id(),
                policy: Some(v1::Policy::default()),
                ..Default::default()
            };
            note("the policy", refused(PolicyServiceClient::new(channel).set_policy(policy).await));
        }
    }
}

/// Begins a session as a host; why it was refused, or that it was not.
async fn session(channel: Channel, described: v1::NodeDescription) -> Result<(), Status> {
    use tokio_stream::StreamExt as _;
    let holder = format!("{:032x}", uuid::Uuid::new_v4().as_u128());
    let messages = tokio_stream::iter([registration(described, &holder)]).chain(tokio_stream::pending());
    let mut answers = NodeServiceClient::new(channel).session(messages).await?.into_inner();
    answers.message().await.map(drop)
}

fn is_refused_as(answer: Result<(), Status>, codes: &[RefusalCode]) -> Outcome {
    match answer {
        Ok(()) => Err("it was admitted".to_owned()),
        Err(status) => match Refused::from_status(&status).code.filter(|code| codes.contains(code)) {
            Some(code) => Ok(code.name().to_owned()),
            None => Err(format!("{status:?}").chars().take(300).collect()),
        },
    }
}

/// Says to be hosts that they are not.
async fn speak_for_others(town: &Town, attacks: &mut Table, victim: &v1::Job) {
    let token = victim.status().placement.as_ref().and_then(|placement| placement.token);
    let denied = [RefusalCode::PermissionDenied];
    let evil = |name: &str| v1::NodeDescription {
        region: "us-east".to_owned(),
        cluster: "us-east-9".to_owned(),
        accelerators: Some(v1::Accelerators { r#type: "b200".to_owned(), count: 64 }),
        memory_bytes: 32 << 40,
        ..node(name)
    };
    for at in 0..3 {
        for (role, names) in [
            (Role::Agent(short("h2")), &["h1", "h2.evil", "h2.h1", "h", "h20"][..]),
            (Role::Agent(short("h1")), &["h1.evil", "h1.n1", "h2"][..]),
            (Role::AgentGroup(short("slurm")), &["h1", "slurm", "slurmy.n1", "h1.slurm.n1"][..]),
            (of_tenant("vision", "eve"), &["h1", "eve"][..]),
            (Role::Client(short("spy")), &["h1"][..]),
            (Role::Admin(short("root")), &["h1"][..]),
        ] {
            for name in names {
                let answer = session(town.channel(at, role).await, evil(name)).await;
                attacks.note(
                    Kind::Forge,
                    &format!("node {name} by {}", role.to_string().split('/').next().unwrap_or_default()),
                    is_refused_as(answer, &denied),
                );
            }
            let mut nodes = NodeServiceClient::new(town.channel(at, role).await);
            let upload =
                agent::UploadLogsRequest { read_id: 1, node_name: "h3".to_owned(), ..Default::default() };
            let answer = nodes.upload_logs(tokio_stream::once(upload)).await;
            let codes = [tonic::Code::PermissionDenied, tonic::Code::NotFound];
            attacks.note(Kind::Forge, "output of another node", turned_away(answer, &codes));
            let relay = agent::RelayExecRequest { relay_id: 1, node_name: "h3".to_owned(), message: None };
            let answer = nodes.relay_exec(tokio_stream::once(relay)).await;
            attacks.note(Kind::Forge, "a command of another node", turned_away(answer, &codes));
        }
        // With the key of the host itself: it stays what it is.
        let own = session(town.channel(at, Role::Agent(short("h1"))).await, evil("h1")).await;
        let codes = [RefusalCode::NodeNotAdmitted, RefusalCode::NodeHeldByAnother];
        attacks.note(Kind::Forge, "another host of h1's own name", is_refused_as(own, &codes));
        let mut jobs = JobServiceClient::new(town.channel(at, Role::Agent(short("h2"))).await);
        let commit = v1::CommitCheckpointRequest { job_id: victim.id.clone(), token };
        attacks.note(
            Kind::Forge,
            "a checkpoint by another host",
            refused(jobs.commit_checkpoint(commit).await),
        );
    }
}

/// Uses up what there is only so much of; somebody else has to be served all the same.
async fn exhaust(town: &Town, attacks: &mut Table, own: &v1::Job) {
    let leader = town.cluster.leader().await;
    let bob = || async {
        let mut jobs = JobServiceClient::new(town.channel(leader, of_tenant("speech", "bob")).await);
        let watch = jobs.watch_jobs(v1::WatchJobsRequest::default()).await.map(drop);
        let list = jobs.list_jobs(v1::ListJobsRequest::default()).await.map(drop);
        let submit = v1::SubmitJobRequest {
            request_id: request_id(),
            job: Some(endless("served", "speech", "true")),
            validate_only: true,
        };
        let submit = jobs.submit_job(submit).await.map(drop);
        watch.and(list).and(submit).map_err(|status| format!("another tenant is not served: {status:?}"))
    };
    // Watches, with several certificates of one tenant.
    let mut held = Vec::new();
    let mut full = 0;
    for user in ["eve", "eve2"] {
        let channel = town.channel(leader, of_tenant("vision", user)).await;
        for _ in 0..1_100 {
            match JobServiceClient::new(channel.clone()).watch_jobs(v1::WatchJobsRequest::default()).await {
                Ok(watch) => held.push(watch),
                Err(_) => full += 1,
            }
            if full > 20 {
                break;
            }
        }
    }
    let outcome = match held.len() {
        watches if watches <= 1_024 && full > 0 => self::held(bob().await, format!("no more than {watches}")),
        watches => Err(format!("{watches} watches")),
    };
    attacks.note(Kind::Exhaust, "the places of watches", outcome);
    drop(held);
    attacks.note(
        Kind::Exhaust,
        "the memory for messages",
        unfinished_messages(town, leader, bob().await).await,
    );
    // Checkpoints of the attacker's job, as fast as it can report them.
    let before = town.index().await;
    let token = own.status().placement.as_ref().and_then(|placement| placement.token);
    let channel = town.channel(leader, of_tenant("vision", "eve")).await;
    let commits: Vec<_> = (0..400)
        .map(|_| {
            let mut jobs = JobServiceClient::new(channel.clone());
            let commit = v1::CommitCheckpointRequest { job_id: own.id.clone(), token };
            tokio::spawn(async move { jobs.commit_checkpoint(commit).await.map(drop) })
        })
        .collect();
    for commit in commits {
        let _ = commit.await;
    }
    let records = town.index().await - before;
    let outcome =
        if records < 40 { Ok(format!("{records} records")) } else { Err(format!("{records} records")) };
    attacks.note(Kind::Exhaust, "the log, by checkpoints", outcome);
    // Messages that no call takes.
    let mut jobs = JobServiceClient::new(channel.clone());
    let huge = v1::ListJobsRequest {
        filter: Some(v1::JobFilter { name_prefix: "n".repeat(5 << 20), ..Default::default() }),
        ..Default::default()
    };
    let codes = [tonic::Code::OutOfRange, tonic::Code::ResourceExhausted, tonic::Code::InvalidArgument];
    let outcome = turned_away(jobs.list_jobs(huge).await, &codes);
    attacks.note(Kind::Exhaust, "a message that is too large", outcome);
    let ids: Vec<String> = (0..2_000).map(|id| format!("job-{id}")).collect();
    let many = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: ids, ..Default::default() }),
        ..Default::default()
    };
    let outcome = turned_away(jobs.watch_jobs(many).await, &codes);
    attacks.note(Kind::Exhaust, "a watch of too many jobs", outcome);
    // Nodes that nobody knows.
    let before = town.index().await;
    for at in 0..60 {
        let name = format!("h2{}", "x".repeat(at % 7));
        let _ = session(town.channel(leader, Role::Agent(short("h2"))).await, node(&format!("{name}.{at}")))
            .await;
    }
    let records = town.index().await - before;
    let outcome =
        if records < 40 { Ok(format!("{records} records")) } else { Err(format!("{records} records")) };
    attacks.note(Kind::Exhaust, "the log, by registrations", outcome);
}

/// Once her certificate is revoked she is not heard by any replica, and nobody else notices.
async fn revoked(town: &Town, attacks: &mut Table) {
    let directory = town.directory.join(of_tenant("vision", "eve").to_string().replace('/', "-"));
    let report = muster_transport::describe(&directory.join("tls.crt")).expect("it was issued");
    let certificate = admin::RevokedCertificate {
        serial: report.serial,
        holder: report.name,
        expire_time: Some(timestamp(u64::try_from(report.not_after_s).unwrap() * 1_000)),
    };
    let open = JobServiceClient::new(town.channel(1, of_tenant("vision", "eve")).await)
        .watch_jobs(v1::WatchJobsRequest::default())
        .await;
    let request = admin::RevokeCertificateRequest { certificate: Some(certificate), ..Default::default() };
    town.cluster.client().revoke_certificate(request).await.expect("an operator may");
    let mut watch = open.expect("until now she may look").into_inner();
    let ended = async { while let Ok(Some(_)) = watch.message().await {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("an open watch ends");
    for at in 0..3 {
        eventually("a revoked certificate is still good", || async {
            let security = town.security(of_tenant("vision", "eve"));
            let address = security.address(&town.cluster.replicas[at].client.to_string()).unwrap();
            let channel = Endpoint::from_shared(address)
                .expect("an address")
                .connect_with_connector(security.connector(Expect::AnyReplica))
                .await;
            let Ok(channel) = channel else { return Some(()) };
            let answer = JobServiceClient::new(channel).list_jobs(v1::ListJobsRequest::default()).await;
            answer.is_err().then_some(())
        })
        .await;
        let mut jobs = JobServiceClient::new(town.channel(at, of_tenant("vision", "eve2")).await);
        jobs.list_jobs(v1::ListJobsRequest::default())
            .await
            .expect("another certificate is as good as before");
        attacks.note(Kind::Outlive, "its certificate's revocation", Ok("no replica answers it".to_owned()));
    }
    attacks.note(
        Kind::Outlive,
        "its certificate's revocation, by a watch that is open",
        Ok("it ended".to_owned()),
    );
}

/// Asks for the secrets of another tenant by name; and nobody finds a value in the log.
async fn secrets(town: &Town, attacks: &mut Table, eve: &Client) {
    for name in ["token", "../speech/token", "speech/token", "/etc/hostname"] {
        let mut wanted = endless("thief", "vision", "echo \"$STOLEN\"");
        wanted.spec_mut().groups[0].environment = vec![v1::EnvVar::secret("STOLEN", name)];
        let id = submitted(eve, wanted).await;
        let ended = wait_for_job(eve, &id, crate::support::is_finished).await;
        let outcome = match ended.phase() {
            v1::JobPhase::Failed => untold(&ended.encode_to_vec())
                .map(|()| format!("it did not start: {}", ended.status().message)),
            other => Err(format!("it ran: {other:?}")),
        };
        attacks.note(Kind::Read, &format!("the secret {name:?}"), outcome);
    }
    let mut log = HistoryServiceClient::new(town.channel(0, Role::Admin(short("root"))).await);
    let request = v1::ReadDecisionsRequest { raw: true, ..Default::default() };
    let bytes = drained(log.read_decisions(request).await).await;
    assert!(
        bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()),
        "an operator sees what was submitted"
    );
    let told = bytes.windows(FILED.len()).any(|part| part == FILED.as_bytes());
    attacks.note(
        Kind::Read,
        "a filed secret in the log",
        if told {
            Err("it is there".to_owned())
        } else {
            Ok("what was submitted is there, the value is not".to_owned())
        },
    );
}

/// Memory that a process has in use, in MiB.
pub(super) fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Nearly all of a message of four MiB, again and again, and never its end; with several certificates of one tenant.
async fn unfinished_messages(town: &Town, leader: usize, before: Result<(), String>) -> Outcome {
    before?;
    let pid = town.cluster.pid(leader).expect("it runs");
    let usual = resident_mib(pid);
    let mut tasks = Vec::new();
    for user in ["eve", "eve2", "eve3", "eve4"] {
        let channel = town.channel(leader, of_tenant("vision", user)).await;
        for _ in 0..32 {
            let mut channel = channel.clone();
            let uri = format!(
                "https://{}/muster.v1beta1.JobService/SubmitJob",
                town.cluster.replicas[leader].client
            );
            let request = tonic::codegen::http::Request::post(uri).header("content-type", "application/grpc");
            let request = request.body(tonic::body::Body::new(unfinished())).unwrap();
            tasks.push(tokio::spawn(async move {
                use tonic::codegen::Service as _;
                std::future::poll_fn(|context| channel.poll_ready(context)).await.ok()?;
                let answer = channel.call(request).await.ok()?;
                Status::from_header_map(answer.headers()).map(|status| status.code())
            }));
        }
    }
    let mut most = 0;
    let began = std::time::Instant::now();
    // As long as the first of them are waited for, and a little more.
    while began.elapsed() < std::time::Duration::from_secs(4) {
        most = most.max(resident_mib(pid));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let mut jobs = JobServiceClient::new(town.channel(leader, of_tenant("speech", "bob")).await);
    let served = jobs.list_jobs(v1::ListJobsRequest::default()).await.map(drop);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    served.map_err(|status| format!("another tenant is not served: {status:?}"))?;
    say(&format!("128 unfinished messages of 4 MiB: the replica had {usual} MiB before and {most} at most"));
    if most < usual + 200 {
        Ok(format!("{usual} MiB became {most}"))
    } else {
        Err(format!("{usual} MiB became {most}"))
    }
}

/// A body of nearly four MiB that never ends.
fn unfinished() -> impl http_body::Body<Data = tonic::codegen::Bytes, Error = Status> {
    use tokio_stream::StreamExt as _;
    use tonic::codegen::Bytes;
    let head = [&[0][..], &4_000_000_u32.to_be_bytes()].concat();
    let piece = Bytes::from(vec![8; 64 << 10]);
    let pieces = std::iter::once(Bytes::from(head)).chain(std::iter::repeat_n(piece, 60));
    let frames = tokio_stream::iter(pieces.map(|bytes| Ok::<_, Status>(http_body::Frame::data(bytes))));
    http_body_util::StreamBody::new(frames.chain(tokio_stream::pending()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_they_try_fails_and_the_victims_work_goes_on() {
    let _heavy = heavy().await;
    let mut town = Town::open().await;
    let bob = town.client(of_tenant("speech", "bob"));
    let eve = town.client(of_tenant("vision", "eve"));
    eventually("the node does not come up", || async {
        let request = v1::GetNodeRequest { node: "h1".to_owned(), ..Default::default() };
        let node = bob.get_node(request).await.ok()?.node?;
        (node.status() == v1::NodeStatus::Up).then_some(())
    })
    .await;
    let mut wanted = endless(
        "victim",
        "speech",
        &format!("test ${{#FILED}} -eq {} && echo {SECRET} && exec sleep 600", FILED.len()),
    );
    wanted.spec_mut().groups[0].environment =
        vec![v1::EnvVar::new("HF_TOKEN", SECRET), v1::EnvVar::secret("FILED", "token")];
    wanted.spec_mut().checkpoint_mut().directory = format!("/tmp/{SECRET}");
    let runs = |job: &v1::Job| job.phase() == v1::JobPhase::Running;
    let victim = submitted(&bob, wanted).await;
    let victim = wait_for_job(&bob, &victim, runs).await;
    let own = submitted(&eve, endless("own", "vision", "exec sleep 600")).await;
    let own = wait_for_job(&eve, &own, runs).await;
    let told =
        bob.get_job(v1::GetJobRequest { job_id: victim.id.clone(), ..Default::default() }).await.unwrap();
    untold(&told.encode_to_vec()).expect_err("its own tenant sees it");

    let mut attacks = Table::default();
    read(&town, &mut attacks, &victim.id).await;
    forge(&town, &mut attacks, &victim).await;
    delete(&town, &mut attacks, &victim.id).await;
    speak_for_others(&town, &mut attacks, &victim).await;
    exhaust(&town, &mut attacks, &own).await;
    tenants::read_all(&town, &mut attacks, &bob, &victim).await;
    tenants::replay(&town, &mut attacks, &bob, &victim).await;
    tenants::reach_schedules(&town, &mut attacks).await;
    tenants::oversize(&town, &mut attacks).await;
    secrets(&town, &mut attacks, &eve).await;
    // It has noticed nothing of all that.
    let request = v1::GetJobRequest { job_id: victim.id.clone(), ..Default::default() };
    let now = bob.get_job(request).await.unwrap().job.unwrap();
    assert!(
        runs(&now)
            && now.status().attempt == victim.status().attempt
            && now.status().last_checkpoint.is_none(),
        "{now:#?}"
    );
    let jobs = bob.list_jobs(v1::ListJobsRequest::default()).await.unwrap().jobs;
    let of_speech = jobs.iter().filter(|job| job.tenant == "speech").count();
    // Its own three: the victim, one that failed, and one that was cancelled.
    assert_eq!(of_speech, 3, "nobody submitted anything for others: {jobs:#?}");
    let nodes = bob.list_nodes(v1::ListNodesRequest::default()).await.unwrap().nodes;
    assert_eq!(nodes.len(), 1, "nobody registered anything: {nodes:#?}");
    for (client, id) in [(&bob, &victim.id), (&eve, &own.id)] {
        let cancel = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
        client.cancel_job(cancel).await.expect("it is theirs");
    }
    revoked(&town, &mut attacks).await;
    let made = attacks.made();
    attacks.conclude("attacks on replicas");
    assert!(made >= 90, "{made}");
    town.cluster.assert_digests_agree().await;
}
