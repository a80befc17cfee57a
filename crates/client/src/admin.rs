//! One method per call for the operators of a cluster. All are safe to repeat.

use admin::cluster_admin_service_client::ClusterAdminServiceClient;
use muster_wire::admin;
use muster_wire::admin::create_backup_response::Part;
use muster_wire::status::Refused;

use crate::Client;
use crate::calls::repeatable;
use crate::channel::Channel;
use crate::error::{AttemptError, CallError};

/// Largest answer that is read: one piece of a backup has at most 1 MiB.
const ANSWER_BYTES_MAX: usize = 8 << 20;

pub(crate) fn admin(channel: Channel) -> ClusterAdminServiceClient<Channel> {
    ClusterAdminServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

macro_rules! calls {
    ($($(#[$doc:meta])* $method:ident($request:ty) -> $answer:ty, $operation:literal $(, $part:ident)?;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// Refusals at once; everything else when the deadline has passed.
                pub async fn $method(&self, request: $request) -> Result<$answer, CallError> {
                    let send = |channel| {
                        let request = request.clone();
                        async move { admin(channel).$method(request).await }
                    };
                    let answer = self.retry(repeatable($operation), send).await?;
                    Ok(answer$(.$part.unwrap_or_default())?)
                }
            )*
        }
    };
}

calls! {
    /// Adds a replica that follows without a vote.
    add_replica(admin::AddReplicaRequest) -> admin::Membership, "add replica", membership;
    /// Gives a replica a vote.
    promote_replica(admin::PromoteReplicaRequest) -> admin::Membership, "promote replica", membership;
    /// Removes a voter or a learner.
    remove_replica(admin::RemoveReplicaRequest) -> admin::Membership, "remove replica", membership;
    /// Goes on with putting one replica in the place of another.
    replace_replica(admin::ReplaceReplicaRequest) -> admin::Membership, "replace replica", membership;
    /// Makes exactly these replicas vote.
    change_voters(admin::ChangeVotersRequest) -> admin::Membership, "change voters", membership;
    /// Hands the leadership over.
    transfer_leadership(admin::TransferLeadershipRequest) -> admin::TransferLeadershipResponse, "transfer leadership";
    /// How far each receiver of notifications has come.
    list_notifications(admin::ListNotificationsRequest) -> admin::ListNotificationsResponse, "list notifications";
    /// Raises the record format.
    raise_format(admin::RaiseFormatRequest) -> admin::RaiseFormatResponse, "raise format";
}

impl Client {
    /// Calls that the replica at one address has denied; asked once, not through the rotation.
    ///
    /// # Errors
    /// When that replica cannot be reached, refuses, or does not answer in time.
    pub async fn list_denied_calls_of(
        &self,
        address: &str,
        request: admin::ListDeniedCallsRequest,
    ) -> Result<admin::ListDeniedCallsResponse, AttemptError> {
        let (endpoint, channel) =
            self.endpoints().connect_to(address).await.map_err(AttemptError::Connect)?;
        let limit = self.options.attempt_timeout.min(self.options.deadline);
        let mut replica = admin(channel);
        match tokio::time::timeout(limit, replica.list_denied_calls(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let refused = Refused::from_status(&status);
                Err(AttemptError::Answer { endpoint, refused })
            }
            Err(_) => Err(AttemptError::Timeout { endpoint }),
        }
    }
}

/// A backup on its way. What comes is checked piece by piece; only after [`BackupStream::next`] has
/// given `None` was all of it as it was sent.
#[derive(Debug)]
pub struct BackupStream {
    endpoint: String,
    stream: tonic::Streaming<admin::CreateBackupResponse>,
    header: admin::BackupHeader,
    pieces: u64,
    bytes: u64,
    checksums: crc32fast::Hasher,
    over: bool,
}

impl BackupStream {
    /// What the backup holds.
    #[must_use]
    pub fn header(&self) -> &admin::BackupHeader {
        &self.header
    }

    fn broken(&self, last: AttemptError) -> CallError {
        CallError::StreamBroken { operation: "create backup", bytes: self.bytes, last }
    }

    /// One that is not what was sent is an answer of nobody.
    fn damaged(&self, what: &str) -> CallError {
        let status = tonic::Status::data_loss(format!("the backup arrived damaged: {what}"));
        let refused = Refused::from_status(&status);
        self.broken(AttemptError::Answer { endpoint: self.endpoint.clone(), refused })
    }

    /// The next bytes of the state; `None` when all were received and are whole.
    ///
    /// # Errors
    /// When the stream breaks or its checksums do not match.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        if self.over {
            return Ok(None);
        }
        let message = self.stream.message().await.map_err(|status| {
            let refused = Refused::from_status(&status);
            self.broken(AttemptError::Answer { endpoint: self.endpoint.clone(), refused })
        })?;
        match message.and_then(|message| message.part) {
            Some(Part::Piece(piece)) => {
                if piece.number != self.pieces || crc32fast::hash(&piece.content) != piece.checksum {
                    return Err(self.damaged("a piece"));
                }
                self.checksums.update(&piece.checksum.to_le_bytes());
                self.pieces += 1;
                self.bytes += piece.content.len() as u64;
                Ok(Some(piece.content))
            }
            Some(Part::End(end)) => {
                let checksum = self.checksums.clone().finalize();
                if (end.pieces, end.bytes, end.checksum) != (self.pieces, self.bytes, checksum) {
                    return Err(self.damaged("its end counts otherwise"));
                }
                self.over = true;
                Ok(None)
            }
            Some(Part::Header(_)) => Err(self.damaged("a second beginning")),
            None => Err(self.damaged("it ends before its end")),
        }
    }
}

impl Client {
    /// Begins a backup at some replica: the first that answers.
    ///
    /// # Errors
    /// When none can be reached or the one that answers refuses.
    pub async fn create_backup(
        &self,
        request: admin::CreateBackupRequest,
    ) -> Result<BackupStream, CallError> {
        let failed = |last| CallError::StreamBroken { operation: "create backup", bytes: 0, last };
        let link = self.endpoints().connect_next().await;
        let (endpoint, channel) = link.map_err(|error| failed(AttemptError::Connect(error)))?;
        let answer = |status: &tonic::Status| {
            let refused = Refused::from_status(status);
            let endpoint = endpoint.clone();
            match refused.code {
                Some(_) => CallError::Refused { operation: "create backup", endpoint, refused },
                None => failed(AttemptError::Answer { endpoint, refused }),
            }
        };
        let mut stream =
            admin(channel).create_backup(request).await.map_err(|status| answer(&status))?.into_inner();
        let first = stream.message().await.map_err(|status| answer(&status))?;
        let Some(Part::Header(header)) = first.and_then(|message| message.part) else {
            return Err(answer(&tonic::Status::data_loss("the backup does not begin with its header")));
        };
        let checksums = crc32fast::Hasher::new();
        Ok(BackupStream { endpoint, stream, header, pieces: 0, bytes: 0, checksums, over: false })
    }
}
