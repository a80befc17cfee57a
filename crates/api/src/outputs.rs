//! Outputs of workers, read through this replica: at the node of the worker where this replica leads, else through the leader.
//!
//! **Invariant:** the number of outputs that are read at a time is bounded, in all, for each account, and for each account at one node.

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use muster_engine::{Attempt, Engine, LogRequest};
use muster_state::{Phase, RankState};
use muster_types::{FencingToken, JobId, NodeId, Refusal, RefusalCode, Violation};
use muster_wire::closed::{number_or_zero, of_word, value_from_proto, word};
use muster_wire::convert::{fencing_token_from_proto, fencing_token_to_proto, job_id};
use muster_wire::status::to_status;
use muster_wire::v1;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::forward::{Caller, Route, Router, jobs_onward, of_leader};
use crate::read::invalid;
use crate::render;
use crate::shares::{Account, Pool, Tallies, Tally};

/// Of one node, for one account: half of what its agent sends at a time.
const OUTPUTS_OF_NODE_MAX: u32 = 16;

/// An output, piece by piece.
pub(crate) type Output = BoxStream<'static, Result<v1::ReadLogsResponse, Status>>;

/// Places for outputs that are read. Clones share them.
#[derive(Clone)]
pub(crate) struct Outputs {
    places: Pool,
    /// Of one node, by account: its agent sends only a limited number at a time.
    of_nodes: Tallies<(Account, NodeId)>,
}

impl Outputs {
    /// At most this many in all, and at most that many for each account.
    pub(crate) fn new(total: u64, each_max: u64) -> Outputs {
        Outputs { places: Pool::new(total, each_max), of_nodes: Tallies::default() }
    }

    /// Begins to read an output. Its place is taken until the output ends.
    ///
    /// # Errors
    /// When the request is wrong, the caller may not read it, or too many are read.
    pub(crate) async fn open(
        &self,
        router: &Router,
        caller: Caller,
        message: v1::ReadLogsRequest,
    ) -> Result<Output, Status> {
        let job = job_id("job_id", &message.job_id).map_err(|v| invalid(vec![v]))?;
        value_from_proto::<v1::OutputStream>("stream", message.stream).map_err(|v| invalid(vec![v]))?;
        let attempt = attempt(&message).map_err(|v| invalid(vec![v]))?;
        let message_rank = message.rank;
        let account = caller.account();
        let place = self.places.enter(account, 1).ok_or_else(|| {
            let text = format!("{account} reads as many outputs at once as its share allows; try again");
            to_status(&Refusal::new(RefusalCode::Overloaded, text).with("account", account))
        })?;
        let stream = match router.route(caller).await? {
            Route::Remote(leader) => {
                // Following may take as long as the job: no deadline on the way.
                let mut onward = Router::onward(message, caller);
                onward.metadata_mut().remove("grpc-timeout");
                let opened = jobs_onward(leader.channel).read_logs(onward).await;
                let stream = opened.map_err(of_leader)?.into_inner();
                stream.map_err(of_leader).boxed()
            }
            Route::Local => {
                let request = LogRequest {
                    read_id: 0,
                    job,
                    token: FencingToken::default(),
                    rank: message.rank,
                    follow: message.follow,
                    stream: word::<v1::OutputStream>(message.stream).to_owned(),
                    tail_bytes: message.tail_bytes,
                    from_position: message.from_position,
                };
                let engine = router.engine();
                let view = router.view_with_job(caller, job).await.map_err(|refusal| to_status(&refusal))?;
                caller.check_job_there(&view, job).map_err(|refusal| to_status(&refusal))?;
                drop(view);
                let of_node = self.place_at_node(router, account, job, (message_rank, attempt))?;
                let reading = engine.read_logs(job, message.rank, attempt, request).await;
                let (token, chunks) = reading.map_err(|refusal| to_status(&refusal))?;
                let placed = engine.clone();
                let stream = ReceiverStream::new(chunks)
                    .map_ok(move |chunk| v1::ReadLogsResponse {
                        stream: number_or_zero(of_word::<v1::OutputStream>(&chunk.stream)),
                        data: chunk.data.into(),
                        position: chunk.position,
                        dropped_bytes: chunk.dropped_bytes,
                        token: Some(fencing_token_to_proto(token)),
                    })
                    .map_err(move |refusal| {
                        to_status(&of_unlaunched(&placed, job, token, message_rank, refusal))
                    });
                // The place is taken until the output ends.
                let held = stream.inspect(move |_| {
                    let _ = &of_node;
                });
                held.boxed()
            }
        };
        // The place is taken until the output ends.
        let held = stream.inspect(move |_| {
            let _ = &place;
        });
        Ok(held.boxed())
    }

    /// A place among the outputs that are read from the node of a worker.
    fn place_at_node(
        &self,
        router: &Router,
        account: Account,
        job: JobId,
        (rank, attempt): (u32, Attempt),
    ) -> Result<Option<Tally<(Account, NodeId)>>, Status> {
        let view = router.engine().view();
        let placement = view.job(job).and_then(|row| attempt.of(row));
        let slot = placement.and_then(|placement| placement.slots.get(rank as usize));
        // What cannot be read is refused behind this.
        let Some(node) = slot.map(|slot| slot.node).filter(|_| !account.is_unbounded()) else {
            return Ok(None);
        };
        let place = self.of_nodes.enter((account, node), OUTPUTS_OF_NODE_MAX).ok_or_else(|| {
            let node = render::node_name(&view, node);
            let text =
                format!("{account} reads {OUTPUTS_OF_NODE_MAX} outputs of {node}, as many at once as it may");
            to_status(
                &Refusal::new(RefusalCode::Overloaded, text).with("account", account).with("node", node),
            )
        })?;
        Ok(Some(place))
    }
}

/// A node that knows nothing of a worker that was never reported has not launched it yet.
fn of_unlaunched(engine: &Engine, job: JobId, token: FencingToken, rank: u32, refusal: Refusal) -> Refusal {
    let view = engine.view();
    let placement = view.job(job).filter(|row| !matches!(row.phase, Phase::Finished(_)));
    let placement =
        placement.and_then(|row| row.placement.as_ref()).filter(|placement| placement.token == token);
    let state = placement.and_then(|placement| placement.ranks.get(rank as usize));
    if refusal.code != RefusalCode::OutputNotFound || state != Some(&RankState::Assigned) {
        return refusal;
    }
    let text = format!("rank {rank} of {job} is placed and has not started");
    Refusal::new(RefusalCode::WorkerNotStarted, text).with("job_id", job).with("rank", rank)
}

/// Which placement's output is meant.
fn attempt(message: &v1::ReadLogsRequest) -> Result<Attempt, Violation> {
    match &message.token {
        Some(_) if message.previous => Err(Violation::new(
            "previous",
            "cannot be asked for together with a token, which names the attempt",
        )),
        Some(token) => fencing_token_from_proto("token", Some(token)).map(Attempt::Token),
        None if message.from_position > 0 => {
            Err(Violation::new("from_position", "needs the token of the attempt that it is a position of"))
        }
        None if message.previous => Ok(Attempt::Previous),
        None => Ok(Attempt::Current),
    }
}
