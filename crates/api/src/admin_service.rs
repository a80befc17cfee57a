//! `muster.admin.v1beta1.ClusterAdminService`.

use muster_engine::{ChangeOptions, Changed, Engine, ReplicaNode};
use muster_state::State;
use muster_types::{LogIndex, Name, Refusal, ReplicaId, Violation};
use muster_wire::admin;
use muster_wire::admin::cluster_admin_service_client::ClusterAdminServiceClient;
use muster_wire::admin::cluster_admin_service_server::ClusterAdminService;
use muster_wire::admin::create_backup_response::Part;
use muster_wire::time::log_time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::admission;
use crate::controls::requester;
use crate::denied::{self, DeniedLog};
use crate::forward::{Caller, Router};
use crate::notifications;
use crate::read::{invalid, written};
use crate::token_calls;

/// Voters one request may name.
const VOTERS_MAX: usize = 16;
/// Bytes of an endpoint.
const ENDPOINT_BYTES_MAX: usize = 512;
/// Backups that one replica makes at a time: each encodes the whole state.
const BACKUPS_MAX: usize = 2;
/// Bytes of one piece of a backup.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that wait for a slow reader; the encoder waits with them.
const PIECES_WAITING_MAX: usize = 4;
/// How long a backup waits for this replica to reach what it has to hold.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Admin {
    router: Router,
    backups: Arc<Semaphore>,
    denied: DeniedLog,
}

impl Admin {
    pub(crate) fn new(router: Router, denied: DeniedLog) -> Admin {
        Admin { router, backups: Arc::new(Semaphore::new(BACKUPS_MAX)), denied }
    }
}

/// A role for some regions moves the leadership to a replica that it names, in one of them.
fn check_transfer(caller: &Caller, engine: &Engine, to: Option<ReplicaId>) -> Result<(), Refusal> {
    let members = engine.consensus().status().members;
    let target = to.and_then(|to| members.into_iter().find(|member| member.replica == to));
    let region = target.map(|member| member.node.region).unwrap_or_default();
    caller.check_region(&engine.view(), &region)
}

fn id_of(field: &str, id: u64) -> Result<ReplicaId, Status> {
    if id == 0 {
        return Err(invalid(vec![Violation::new(field, "must be 1 or more")]));
    }
    Ok(ReplicaId(id))
}

/// An id where 0 says that none is meant.
fn optional(id: u64) -> Option<ReplicaId> {
    (id > 0).then_some(ReplicaId(id))
}

/// What every endpoint has: a host, a port, and nothing that could hide in a log line.
fn endpoint_rule(field: &str, text: &str) -> Option<Violation> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or(text);
    let port = rest.rsplit_once(':').and_then(|(host, port)| {
        let host_is_good =
            !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"/@?#".contains(c));
        port.trim_end_matches('/').parse::<u16>().ok().filter(|port| *port > 0 && host_is_good)
    });
    if text.len() <= ENDPOINT_BYTES_MAX && port.is_some() {
        return None;
    }
    let shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    Some(Violation::new(field, format!("must be host:port or a URL of it, got {shown:?}")))
}

fn address(field: &str, address: Option<&admin::ReplicaAddress>) -> Result<(ReplicaId, ReplicaNode), Status> {
    let Some(address) = address else {
        return Err(invalid(vec![Violation::new(field, "must be given")]));
    };
    let at = |name: &str| format!("{field}.{name}");
    let mut violations = Vec::new();
    if address.id == 0 {
        violations.push(Violation::new(at("id"), "must be 1 or more"));
    }
    if Name::new(&address.region).is_none() {
        violations.push(Violation::new(at("region"), format!("must be {}", muster_types::name::NAME_RULE)));
    }
    violations.extend(endpoint_rule(&at("peer_endpoint"), &address.peer_endpoint));
    violations.extend(endpoint_rule(&at("client_endpoint"), &address.client_endpoint));
    if !violations.is_empty() {
        return Err(invalid(violations));
    }
    let node = ReplicaNode {
        region: address.region.clone(),
        peer_endpoint: address.peer_endpoint.clone(),
        client_endpoint: address.client_endpoint.clone(),
    };
    Ok((ReplicaId(address.id), node))
}

fn members(changed: Changed) -> Option<admin::Membership> {
    let ids = |set: BTreeSet<ReplicaId>| set.into_iter().map(|id| id.0).collect();
    Some(admin::Membership {
        raft_index: changed.raft_index,
        voter_ids: ids(changed.voters),
        learner_ids: ids(changed.learners),
        warnings: changed.warnings,
    })
}

/// Carries a call out at the leader: `$local` here, or the same method there.
macro_rules! at_leader {
    ($self:ident, $caller:ident, $message:ident, $method:ident, $local:expr) => {{
        let onward = |channel| {
            let request = Router::onward($message.clone(), $caller);
            async move { Ok(ClusterAdminServiceClient::new(channel).$method(request).await?.into_inner()) }
        };
        $self.router.write($caller, $local, onward).await.map(Response::new)
    }};
}

#[tonic::async_trait]
impl ClusterAdminService for Admin {
    async fn revoke_certificate(
        &self,
        request: Request<admin::RevokeCertificateRequest>,
    ) -> Result<Response<admin::RevokeCertificateResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let command = admission::revoke_command(&message, requester(&caller))?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            Ok(admin::RevokeCertificateResponse { freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, revoke_certificate, local)
    }

    async fn list_revoked_certificates(
        &self,
        _request: Request<admin::ListRevokedCertificatesRequest>,
    ) -> Result<Response<admin::ListRevokedCertificatesResponse>, Status> {
        Ok(Response::new(admission::revoked(self.router.engine())))
    }

    async fn list_notifications(
        &self,
        request: Request<admin::ListNotificationsRequest>,
    ) -> Result<Response<admin::ListNotificationsResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let engine = self.router.engine();
        let local = || async { notifications::list(engine, &message) };
        at_leader!(self, caller, message, list_notifications, local)
    }

    /// This replica's alone: it has no other's.
    async fn list_denied_calls(
        &self,
        request: Request<admin::ListDeniedCallsRequest>,
    ) -> Result<Response<admin::ListDeniedCallsResponse>, Status> {
        let account = self.router.caller(&request).account();
        let query = denied::query(&request.into_inner())?;
        let (log, replica) = (self.denied.clone(), self.router.engine().info().replica);
        let make = move || denied::list(&log, replica, &query);
        self.router.page(account, denied::ANSWER_BYTES_MAX, make).await
    }

    async fn create_token(
        &self,
        request: Request<admin::CreateTokenRequest>,
    ) -> Result<Response<admin::CreateTokenResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let command = token_calls::create_command(&caller, &message)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            let token = token_calls::created(engine, &message);
            Ok(admin::CreateTokenResponse { token, freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, create_token, local)
    }

    async fn list_tokens(
        &self,
        request: Request<admin::ListTokensRequest>,
    ) -> Result<Response<admin::ListTokensResponse>, Status> {
        let caller = self.router.caller(&request);
        let engine = self.router.engine().clone();
        let make = move || token_calls::listed(&engine, &caller);
        self.router.page(caller.account(), token_calls::LIST_BYTES_MAX, make).await
    }

    async fn revoke_token(
        &self,
        request: Request<admin::RevokeTokenRequest>,
    ) -> Result<Response<admin::RevokeTokenResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let command = token_calls::revoke_command(&caller, &message)?;
        let engine = self.router.engine();
        let local = || async {
            let answer = engine.execute(command.clone()).await?;
            Ok(admin::RevokeTokenResponse { freshness: written(engine, answer.at()) })
        };
        at_leader!(self, caller, message, revoke_token, local)
    }

    async fn add_replica(
        &self,
        request: Request<admin::AddReplicaRequest>,
    ) -> Result<Response<admin::AddReplicaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let (id, node) = address("replica", message.replica.as_ref())?;
        let engine = self.router.engine();
        let local = || async {
            engine
                .add_replica(id, node.clone())
                .await
                .map(|changed| admin::AddReplicaResponse { membership: members(changed) })
        };
        at_leader!(self, caller, message, add_replica, local)
    }

    async fn promote_replica(
        &self,
        request: Request<admin::PromoteReplicaRequest>,
    ) -> Result<Response<admin::PromoteReplicaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = id_of("replica_id", message.replica_id)?;
        let engine = self.router.engine();
        let local = || async {
            engine
                .promote_replica(id)
                .await
                .map(|changed| admin::PromoteReplicaResponse { membership: members(changed) })
        };
        at_leader!(self, caller, message, promote_replica, local)
    }

    async fn remove_replica(
        &self,
        request: Request<admin::RemoveReplicaRequest>,
    ) -> Result<Response<admin::RemoveReplicaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let id = id_of("replica_id", message.replica_id)?;
        let options = ChangeOptions { force: message.force, keep_as_learners: message.keep_as_learner };
        let engine = self.router.engine();
        let local = || async {
            engine
                .remove_replica(id, options)
                .await
                .map(|changed| admin::RemoveReplicaResponse { membership: members(changed) })
        };
        at_leader!(self, caller, message, remove_replica, local)
    }

    async fn replace_replica(
        &self,
        request: Request<admin::ReplaceReplicaRequest>,
    ) -> Result<Response<admin::ReplaceReplicaResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let gone = id_of("replaced_replica_id", message.replaced_replica_id)?;
        let (id, node) = address("replacement", message.replacement.as_ref())?;
        let options = ChangeOptions { force: message.force, keep_as_learners: false };
        let engine = self.router.engine();
        let local = || async {
            engine
                .replace_replica(gone, id, node.clone(), options)
                .await
                .map(|changed| admin::ReplaceReplicaResponse { membership: members(changed) })
        };
        at_leader!(self, caller, message, replace_replica, local)
    }

    async fn change_voters(
        &self,
        request: Request<admin::ChangeVotersRequest>,
    ) -> Result<Response<admin::ChangeVotersResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let count = message.voter_ids.len();
        if count == 0 || count > VOTERS_MAX {
            let violation = Violation::limit("voter_ids", count as u64, 1, VOTERS_MAX as u64);
            return Err(invalid(vec![violation]));
        }
        let voters = message.voter_ids.iter().map(|id| id_of("voter_ids", *id));
        let voters = voters.collect::<Result<BTreeSet<ReplicaId>, Status>>()?;
        let options = ChangeOptions { force: message.force, keep_as_learners: message.keep_as_learners };
        let engine = self.router.engine();
        let local = || async {
            engine
                .change_voters(voters.clone(), options)
                .await
                .map(|changed| admin::ChangeVotersResponse { membership: members(changed) })
        };
        at_leader!(self, caller, message, change_voters, local)
    }

    async fn transfer_leadership(
        &self,
        request: Request<admin::TransferLeadershipRequest>,
    ) -> Result<Response<admin::TransferLeadershipResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let (to, away_from) = (optional(message.target_replica_id), optional(message.from_replica_id));
        let engine = self.router.engine();
        let local = || async {
            check_transfer(&caller, engine, to)?;
            let leader = engine.transfer_leadership(to, away_from).await?;
            Ok(admin::TransferLeadershipResponse { leader_id: leader.0 })
        };
        at_leader!(self, caller, message, transfer_leadership, local)
    }

    async fn raise_format(
        &self,
        request: Request<admin::RaiseFormatRequest>,
    ) -> Result<Response<admin::RaiseFormatResponse>, Status> {
        let caller = self.router.caller(&request);
        let message = request.into_inner();
        let wanted = u16::try_from(message.record_format).map_err(|_| {
            let max = u64::from(u16::MAX);
            invalid(vec![Violation::limit("record_format", message.record_format.into(), 0, max)])
        })?;
        let engine = self.router.engine();
        let local = || async {
            let (format, at) =
                engine.raise_format((wanted > 0).then_some(wanted), requester(&caller)).await?;
            Ok(admin::RaiseFormatResponse { record_format: format.into(), freshness: written(engine, at) })
        };
        at_leader!(self, caller, message, raise_format, local)
    }

    type CreateBackupStream = ReceiverStream<Result<admin::CreateBackupResponse, Status>>;

    async fn create_backup(
        &self,
        request: Request<admin::CreateBackupRequest>,
    ) -> Result<Response<Self::CreateBackupStream>, Status> {
        let engine = self.router.engine();
        let place = Arc::clone(&self.backups).try_acquire_owned().map_err(|_| {
            let text = format!("this replica makes {BACKUPS_MAX} backups already");
            muster_wire::status::to_status(&Refusal::new(muster_types::RefusalCode::Overloaded, text))
        })?;
        let wanted = LogIndex(request.into_inner().min_log_index);
        let view = engine.wait_applied(wanted, CATCH_UP_MAX).await;
        let view = view.map_err(|refusal| muster_wire::status::to_status(&refusal))?;
        // A state without its cluster cannot be restored into one.
        crate::read::cluster(&view)?;
        let header = header(engine, &view);
        let (pieces, stream) = mpsc::channel(PIECES_WAITING_MAX);
        tokio::task::spawn_blocking(move || {
            let _place = place;
            // The reader has gone away: then nobody is left to tell.
            let _ = send_backup(&view, header, &pieces);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn header(engine: &Engine, view: &State) -> admin::BackupHeader {
    admin::BackupHeader {
        cluster_id: view.cluster().map(|c| c.cluster.to_string()).unwrap_or_default(),
        cluster_generation: view.generation(),
        log_index: view.log_index().0,
        log_time: log_time(view.log_time()),
        state_digest: format!("{:016x}", view.digest()),
        record_format: view.format().into(),
        replica_id: engine.info().replica.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

type Pieces = mpsc::Sender<Result<admin::CreateBackupResponse, Status>>;

/// The state never changes, so a reader may take as long as it likes; what it holds back is one copy of
/// the rows that change meanwhile.
fn send_backup(view: &State, header: admin::BackupHeader, to: &Pieces) -> Result<(), ()> {
    let send = |part| to.blocking_send(Ok(admin::CreateBackupResponse { part: Some(part) })).map_err(|_| ());
    send(Part::Header(header))?;
    let mut checksums = crc32fast::Hasher::new();
    let (mut number, mut bytes) = (0u64, 0u64);
    for chunk in view.snapshot() {
        for content in chunk.chunks(PIECE_BYTES) {
            let checksum = crc32fast::hash(content);
            checksums.update(&checksum.to_le_bytes());
            send(Part::Piece(admin::BackupPiece { number, content: content.to_vec(), checksum }))?;
            number += 1;
            bytes += content.len() as u64;
        }
    }
    send(Part::End(admin::BackupEnd { pieces: number, bytes, checksum: checksums.finalize() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_whole() {
        let good = admin::ReplicaAddress {
            id: 4,
            region: "eu-west".to_owned(),
            peer_endpoint: "http://r4:7500".to_owned(),
            client_endpoint: "r4:7400".to_owned(),
        };
        assert!(address("replica", Some(&good)).is_ok());
        assert!(address("replica", None).is_err());
        let bad = admin::ReplicaAddress { id: 0, region: "EU".into(), peer_endpoint: "r4".into(), ..good };
        let refused = address("replica", Some(&bad)).expect_err("three rules are broken");
        let refused = muster_wire::status::Refused::from_status(&refused);
        let fields: Vec<&str> = refused.violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["replica.id", "replica.region", "replica.peer_endpoint"]);
    }

    #[test]
    fn an_endpoint_names_host_and_port() {
        for good in ["a:1", "http://a:1", "https://a.b:65535/", "http://[::1]:7"] {
            assert!(endpoint_rule("x", good).is_none(), "{good}");
        }
        for bad in ["", "a", "a:0", "a:99999", ":1", "http://a@b:1", "a b:1", "a/b:1", "a:1\n"] {
            assert!(endpoint_rule("x", bad).is_some(), "{bad}");
        }
        assert!(endpoint_rule("x", &format!("{}:1", "a".repeat(600))).is_some());
    }
}
