//! `muster.admin.v1beta1.ArchiveService`, and what replicas ask of one another's.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_archive::ArchivedRound;
use muster_engine::PeerHistory;
use muster_transport::{Expect, Security};
use muster_types::{Refusal, RefusalCode, ReplicaId};
use muster_wire::admin;
use muster_wire::admin::archive_service_client::ArchiveServiceClient;
use muster_wire::admin::archive_service_server::ArchiveService;
use muster_wire::status::to_status;
use muster_wire::time::log_time;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use crate::forward::{ONWARD_BYTES_MAX, Router};

/// Streams of rounds at a time: each holds a segment.
const ROUND_READERS_MAX: usize = 2;
/// Bytes of rounds in one message.
const ROUNDS_BYTES: usize = 1 << 20;
/// How long another replica may take for one segment.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Archives {
    router: Router,
    round_readers: Arc<Semaphore>,
}

impl Archives {
    pub(crate) fn new(router: Router) -> Archives {
        Archives { router, round_readers: Arc::new(Semaphore::new(ROUND_READERS_MAX)) }
    }
}

fn place(of: &Arc<Semaphore>, text: &str) -> Result<OwnedSemaphorePermit, Status> {
    let refusal = |_| to_status(&Refusal::new(RefusalCode::Overloaded, text));
    Arc::clone(of).try_acquire_owned().map_err(refusal)
}

#[tonic::async_trait]
impl ArchiveService for Archives {
    async fn get_archive_status(
        &self,
        _request: Request<admin::GetArchiveStatusRequest>,
    ) -> Result<Response<admin::GetArchiveStatusResponse>, Status> {
        let engine = self.router.engine();
        let status = engine.archive_status().map_err(|refusal| to_status(&refusal))?.borrow().clone();
        let (oldest, newest) = engine.log_range().map_err(|refusal| to_status(&refusal))?;
        let gap = |gap: &muster_archive::Gap| admin::LogGap { from_index: gap.from.0, to_index: gap.to.0 };
        Ok(Response::new(admin::GetArchiveStatusResponse {
            enabled: status.enabled,
            place: status.place,
            first_log_index: status.summary.first.map_or(0, |index| index.0),
            last_log_index: status.summary.last.map_or(0, |index| index.0),
            last_log_time: log_time(status.summary.last_time),
            segments: status.summary.segments,
            segment_bytes: status.summary.segment_bytes,
            bases: status.summary.bases,
            base_bytes: status.summary.base_bytes,
            gaps: status.summary.gaps.iter().map(gap).collect(),
            failure_message: status.failing.unwrap_or_default(),
            oldest_log_index: oldest.0,
            newest_log_index: newest.0,
            replica_id: engine.info().replica.0,
            offloaded_through_index: status.summary.floor.as_ref().map_or(0, |floor| floor.through.0),
            offloaded_to: status.summary.floor.map_or_else(String::new, |floor| floor.place),
            offload_failure_message: status.offload_failing.unwrap_or_default(),
        }))
    }

    type ReadRoundsStream = BoxStream<'static, Result<admin::ReadRoundsResponse, Status>>;

    async fn read_rounds(
        &self,
        request: Request<admin::ReadRoundsRequest>,
    ) -> Result<Response<Self::ReadRoundsStream>, Status> {
        let place = place(&self.round_readers, "this replica gives its archive to others already")?;
        let from = request.into_inner().from_raft_index;
        let read = self.router.engine().read_rounds(from).await;
        let (rounds, next) = read.map_err(|refusal| to_status(&refusal))?;
        let mut messages = Vec::new();
        let mut open = admin::ReadRoundsResponse { rounds: Vec::new(), next_raft_index: from };
        let mut bytes = 0;
        for round in rounds {
            bytes += round.payload.len();
            open.next_raft_index = round.raft_index + 1;
            open.rounds.push(admin::LogRound {
                raft_index: round.raft_index,
                term: round.term,
                leader_id: round.leader.0,
                payload: round.payload.to_vec(),
            });
            if bytes >= ROUNDS_BYTES {
                let empty = admin::ReadRoundsResponse { rounds: Vec::new(), next_raft_index: next };
                messages.push(Ok(std::mem::replace(&mut open, empty)));
                bytes = 0;
            }
        }
        open.next_raft_index = next;
        messages.push(Ok(open));
        // The place is kept until the last message was taken.
        let stream = futures::stream::iter(messages).inspect(move |_| {
            let _ = &place;
        });
        Ok(Response::new(stream.boxed()))
    }
}

/// Rounds of the other replicas, through `ReadRounds`.
#[derive(Debug)]
pub struct RemoteHistory {
    security: Security,
}

impl RemoteHistory {
    /// Over connections like those of the replica itself.
    #[must_use]
    pub fn new(security: Security) -> RemoteHistory {
        RemoteHistory { security }
    }
}

impl PeerHistory for RemoteHistory {
    fn rounds(
        &self,
        endpoint: String,
        raft_index: u64,
    ) -> BoxFuture<'static, Result<(Vec<ArchivedRound>, u64), String>> {
        let security = self.security.clone();
        let read = async move {
            let uri = security.address(&endpoint).map_err(|error| error.to_string())?;
            let to = Endpoint::from_shared(uri).map_err(|error| error.to_string())?;
            let connector = security.connector(Expect::AnyReplica);
            let channel = to.connect_timeout(Duration::from_secs(1)).connect_with_connector_lazy(connector);
            let mut client = ArchiveServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
            let request = admin::ReadRoundsRequest { from_raft_index: raft_index };
            let answer = client.read_rounds(request).await.map_err(|status| status.to_string())?;
            let mut messages = answer.into_inner();
            let mut rounds = Vec::new();
            let mut next = raft_index;
            while let Some(message) = messages.message().await.map_err(|status| status.to_string())? {
                next = message.next_raft_index;
                rounds.extend(message.rounds.into_iter().map(|round| ArchivedRound {
                    raft_index: round.raft_index,
                    term: round.term,
                    leader: ReplicaId(round.leader_id),
                    payload: round.payload.into(),
                }));
            }
            Ok((rounds, next))
        };
        Box::pin(async move {
            tokio::time::timeout(PEER_TIMEOUT, read)
                .await
                .unwrap_or_else(|_| Err("no answer in time".to_owned()))
        })
    }
}
