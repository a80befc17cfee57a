//! Passing writes on to the leader.

use muster_engine::Engine;
use muster_state::State;
use muster_traces::header::TRACE_PARENT;
use muster_transport::{Expect, Principal, Security};
use muster_types::{Consistency, JobId, LogIndex, Refusal, RefusalCode, ReplicaId};
use muster_wire::status::to_status;
use muster_wire::v1::job_service_client::JobServiceClient;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::access::Class;
use crate::broken_stream::is_broken;
pub(crate) use crate::caller::Caller;
use crate::config::ApiConfig;
use crate::guard::Admitted;
use crate::headers::{CLIENT_ADDRESS, FORWARDED, ON_BEHALF};
use crate::original::{self, Onward};
use crate::read::{self, Fresh};
use crate::refusals::failed;
use crate::shares::{Account, Pool, PoolPermit};
use crate::spans::Traced;
use crate::turns::{QueuePermit, Turns};
use crate::unwritten::AnswerMemory;

/// How long a replica that knows no leader waits before it looks again, when nothing wakes it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two attempts at the same leader: the first, and the longest it grows to. All callers of a
/// replica that has lost its leader wait like this, so they must not all hammer at a dead address.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(200);
/// Bytes of one message from the leader that is passed on: a rank map of the largest gang, or a job
/// with all its workers, has some MiB.
pub(crate) const ONWARD_BYTES_MAX: usize = 16 << 20;

/// Calls about jobs at another replica.
pub(crate) fn jobs_onward(channel: Onward) -> JobServiceClient<Onward> {
    JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX)
}

/// Replicas whose channels are kept: more than a cluster ever has.
const CHANNELS_MAX: usize = 64;

/// Writes that wait for the decision of the leader here: as many as its lane has places.
const WRITES_WAITING_MAX: u64 = 8_192;
/// Answers that take a processor for long, made at a time: explanations, plans, pages of lists, pieces of the log. One
/// account has only one of them, so that another's first is begun at once.
const COSTLY_MAX: usize = 2;
/// The same of one account.
const COSTLY_EACH_MAX: usize = 1;
/// Reads of the past at a time, and of one account: each may hold a separate state until it is answered.
const PAST_MAX: usize = 4;
const PAST_EACH_MAX: usize = 2;
/// Watches that go on in the archive at a time, as many as the engine serves, and of one account: each has a state.
const FOLLOWERS_MAX: usize = 2;
const FOLLOWERS_EACH_MAX: usize = 1;
/// Callers of one account that wait for their turn at one of these; more are refused.
const WAITING_MAX: usize = 256;
/// What answers that were made and not taken may have in memory, in KiB, and those of one account.
const ANSWERS_KIB_MAX: usize = 64 << 10;
const ANSWERS_EACH_KIB_MAX: usize = 16 << 10;
/// More streams may wait: their number is bounded, and they wait for every piece.
const STREAMS_WAITING_MAX: usize = 8_192;

/// How long a read whose caller sets no deadline may wait for a leader: an election takes a few seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// And how long a node's stream may: about as long as an election takes. A replica that is cut off from the others
/// would keep it for as long as it is, while the lease that it is to renew runs out; its agent has others to ask.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);
/// The part of a caller's time that is reserved for sending it a refusal.
const ANSWER_RESERVE_MAX: Duration = Duration::from_millis(100);
/// How long a read waits for what the leader alone knows.
const LEADER_ASKED_MAX: Duration = Duration::from_secs(2);

/// Where a write is carried out.
pub(crate) enum Route {
    /// Here.
    Local,
    /// At the leader.
    Remote(Remote),
}

/// The leader, when it is another replica.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) channel: Onward,
    /// Who it is; for [`Router::superseded`].
    pub(crate) leader: ReplicaId,
}

struct Inner {
    engine: Engine,
    config: ApiConfig,
    security: Security,
    channels: Mutex<Channels>,
    /// Places of writes that wait for a decision here.
    writes: Pool,
    /// Turns at answers that take a processor for long.
    costly: Turns,
    /// Turns at reads of the past.
    past: Turns,
    /// Turns at following changes of the past.
    followers: Turns,
    /// Turns at memory for answers that were made and not taken.
    answers: Turns,
}

/// To whom, where, and whether for agents: their sessions and what clients send share no connection, so
/// that a flood of the one does not hold up the other.
type Destination = (ReplicaId, String, bool);

/// Channels made with the certificates of one epoch.
#[derive(Default)]
struct Channels {
    epoch: u64,
    open: BTreeMap<Destination, Channel>,
}

/// Finds the leader. Clones share the channels.
#[derive(Clone)]
pub(crate) struct Router {
    inner: Arc<Inner>,
}

fn too_many_wait(account: Account) -> Refusal {
    let text = format!("{account} has as many costly calls waiting as it may; try again");
    Refusal::new(RefusalCode::Overloaded, text).with("retry_after_ms", 1_000).with("account", account)
}

impl Router {
    pub(crate) fn new(engine: Engine, config: ApiConfig, security: Security) -> Router {
        let writes = Pool::new(WRITES_WAITING_MAX, WRITES_WAITING_MAX);
        let costly = Turns::new(COSTLY_MAX, COSTLY_EACH_MAX);
        let past = Turns::new(PAST_MAX, PAST_EACH_MAX);
        let followers = Turns::new(FOLLOWERS_MAX, FOLLOWERS_EACH_MAX);
        let answers = Turns::new(ANSWERS_KIB_MAX, ANSWERS_EACH_KIB_MAX);
        let channels = Mutex::default();
        Router {
            inner: Arc::new(Inner {
                engine,
                config,
                security,
                channels,
                writes,
                costly,
                past,
                followers,
                answers,
            }),
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub(crate) fn config(&self) -> ApiConfig {
        self.inner.config
    }

    pub(crate) fn security(&self) -> &Security {
        &self.inner.security
    }

    /// Waits for a turn at an answer that takes a processor for long: tenants take turns, however much one of them asks.
    ///
    /// # Errors
    /// When the caller's account has as many waiting as it may.
    pub(crate) async fn costly(&self, account: Account) -> Result<QueuePermit, Refusal> {
        self.inner.costly.enter(account, 1, WAITING_MAX).await.ok_or_else(|| too_many_wait(account))
    }

    /// Carries out what is costly in a turn of the account. The turn ends with the work, and not with the caller's patience: else
    /// a caller that leaves at once could have any number of them.
    ///
    /// # Errors
    /// As [`Router::costly`], and as `work`.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        account: Account,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.costly(account).await?;
        let made = tokio::spawn(async move {
            let made = work.await;
            drop(turn);
            made
        });
        let failed = |_| Err(Refusal::new(RefusalCode::Internal, "the answer could not be made"));
        made.await.unwrap_or_else(failed)
    }

    /// The present state of this replica, which leads: where it lacks the job, one that a quorum confirms.
    ///
    /// # Errors
    /// `NOT_LEADER` when none does before the caller's deadline: another replica may lead by now, and have the job.
    pub(crate) async fn view_with_job(&self, caller: Caller, job: JobId) -> Result<Arc<State>, Refusal> {
        let view = self.engine().view_with_job(job, caller.deadline).await;
        view.map_err(|refusal| match refusal.code {
            RefusalCode::ReadUnconfirmed => not_leader(None),
            _ => refusal,
        })
    }

    /// Checks that the caller may report on a job's workers. Before a job is refused because this replica lacks it, this waits
    /// until everything is applied that is committed by now: a newly elected leader may not have applied all of it.
    ///
    /// # Errors
    /// When it may not, when there is no such job, and when no quorum confirms what was committed before the caller's deadline.
    pub(crate) async fn check_worker_of(&self, caller: Caller, job: JobId) -> Result<(), Refusal> {
        let engine = self.engine();
        let view = engine.view();
        if view.job(job).is_some() {
            return caller.check_worker_of(&view, job);
        }
        drop(view);
        let reading = engine.read_present(Consistency::Linearizable, LogIndex::ZERO, caller.deadline).await?;
        caller.check_worker_of(&reading, job)
    }

    /// The same for a piece of a stream.
    ///
    /// # Errors
    /// As [`Router::costly`].
    pub(crate) async fn costly_piece(&self, account: Account) -> Result<QueuePermit, Refusal> {
        let turn = self.inner.costly.enter(account, 1, STREAMS_WAITING_MAX).await;
        turn.ok_or_else(|| too_many_wait(account))
    }

    /// The same for a state of the past.
    ///
    /// # Errors
    /// As [`Router::costly`].
    pub(crate) async fn past(&self, account: Account) -> Result<QueuePermit, Refusal> {
        self.inner.past.enter(account, 1, WAITING_MAX).await.ok_or_else(|| too_many_wait(account))
    }

    /// The state that a read asks for, before its caller's time is over.
    ///
    /// # Errors
    /// As [`read::fresh`].
    pub(crate) async fn fresh(
        &self,
        account: Account,
        asked: (Option<&muster_wire::v1::ReadOptions>, Consistency),
        deadline: Instant,
    ) -> Result<Fresh, Status> {
        read::fresh(self.engine(), (account, self.past(account)), asked, deadline).await
    }

    /// The same for a watch that goes on in the archive, for as long as it does.
    ///
    /// # Errors
    /// As [`Router::costly`].
    pub(crate) async fn following_past(&self, account: Account) -> Result<QueuePermit, Refusal> {
        self.inner.followers.enter(account, 1, WAITING_MAX).await.ok_or_else(|| too_many_wait(account))
    }

    /// The same for this number of bytes of memory, for an answer that is made before it is taken.
    ///
    /// # Errors
    /// As [`Router::costly`].
    pub(crate) async fn memory(&self, account: Account, bytes: usize) -> Result<QueuePermit, Refusal> {
        let kib = (bytes >> 10) + 1;
        self.inner
            .answers
            .enter(account, kib, STREAMS_WAITING_MAX)
            .await
            .ok_or_else(|| too_many_wait(account))
    }

    /// Makes a page of a list, in its caller's turn and on a thread for such work: who serves is not held up by it.
    /// The memory of its rows is held until it is sent: a page that nobody takes keeps it.
    ///
    /// # Errors
    /// As [`Router::costly`], and as `make`.
    pub(crate) async fn page<T: Send + 'static>(
        &self,
        account: Account,
        bytes: usize,
        make: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let memory = self.memory(account, bytes).await.map_err(|refusal| to_status(&refusal))?;
        let turn = self.costly(account).await.map_err(|refusal| to_status(&refusal))?;
        let made = muster_engine::in_background(move || {
            let answer = make();
            drop(turn);
            answer
        });
        let answer = made.await.map_err(|_| failed("the page could not be made"))??;
        let mut response = Response::new(answer);
        response.extensions_mut().insert(AnswerMemory::of(memory));
        Ok(response)
    }

    /// A place among the writes that wait for a decision: no tenant takes all of them.
    fn place(&self, account: Account) -> Result<PoolPermit, Refusal> {
        self.inner.writes.enter(account, 1).ok_or_else(|| {
            let text = format!("{account} has as many writes waiting as its share allows; try again");
            let refusal = Refusal::new(RefusalCode::Overloaded, text);
            refusal.with("retry_after_ms", 100).with("account", account)
        })
    }

    /// Deadline and origin of a request.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Caller {
        let own = self.inner.config.write_timeout;
        let asked = asked_timeout(request);
        let forwarded = request.metadata().contains_key(FORWARDED);
        let admitted = request.extensions().get::<Admitted>();
        Caller {
            forwarded,
            deadline: Instant::now() + asked.unwrap_or(own).min(own),
            principal: admitted.map_or(Principal::Plaintext, |admitted| admitted.principal),
            address: admitted.and_then(|admitted| admitted.address),
            nodes: admitted.is_some_and(|a| matches!(a.class, Class::Session | Class::Upload)),
            trace: request.extensions().get::<Traced>().map(|traced| traced.0),
        }
    }

    /// The same caller with a write that begins now, on a stream that may have been opened long ago.
    pub(crate) fn once_more(&self, caller: Caller) -> Caller {
        Caller { deadline: Instant::now() + self.inner.config.write_timeout, ..caller }
    }

    /// Until when a read may wait for what it asks for. A little before its caller gives up, so that the
    /// refusal with its reason arrives instead of silence.
    pub(crate) fn read_deadline<T>(&self, request: &Request<T>) -> Instant {
        let asked = asked_timeout(request).unwrap_or(READ_TIMEOUT).min(self.inner.config.write_timeout);
        Instant::now() + (asked - (asked / 10).min(ANSWER_RESERVE_MAX))
    }

    /// A request to be passed on. Of a call with one message, that message goes as it came.
    pub(crate) fn onward<T>(message: T, caller: Caller) -> Request<T> {
        let mut request = Router::request_of(message, caller);
        original::attach(&mut request);
        request
    }

    /// The same for a request of one method. A message is made only where the one that this call was asked with cannot go as it came.
    pub(crate) fn onward_or<T: Default>(
        path: &'static str,
        make: impl FnOnce() -> T,
        caller: Caller,
    ) -> Request<T> {
        match original::of_method(path) {
            Some(whole) => {
                let mut request = Router::request_of(T::default(), caller);
                request.extensions_mut().insert(whole);
                request
            }
            None => Router::request_of(make(), caller),
        }
    }

    fn request_of<T>(message: T, caller: Caller) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(FORWARDED, tonic::metadata::MetadataValue::from_static("1"));
        if let Some(name) = caller.principal.passed_on()
            && let Ok(name) = name.parse()
        {
            request.metadata_mut().insert(ON_BEHALF, name);
        }
        if let Some(address) = caller.address.and_then(|address| address.to_string().parse().ok()) {
            request.metadata_mut().insert(CLIENT_ADDRESS, address);
        }
        if let Some(parent) = caller.trace.and_then(|parent| parent.to_string().parse().ok()) {
            request.metadata_mut().insert(TRACE_PARENT, parent);
        }
        request.set_timeout(caller.deadline.saturating_duration_since(Instant::now()));
        request
    }

    /// Where to carry out a write, waiting for a leader while the caller does.
    pub(crate) async fn route(&self, caller: Caller) -> Result<Route, Status> {
        // Nearly always so where it matters how long this takes.
        if self.engine().is_leader() {
            return Ok(Route::Local);
        }
        let mut leadership = self.inner.engine.leadership();
        let until = match caller.nodes {
            true => caller.deadline.min(Instant::now() + STREAM_TIMEOUT),
            false => caller.deadline,
        };
        loop {
            let view = leadership.borrow_and_update().clone();
            if view.mine.is_some() {
                return Ok(Route::Local);
            }
            let leader = view.leader.and_then(|leader| Some((leader.replica, leader.client_endpoint?)));
            let endpoint = leader.as_ref().map(|(_, endpoint)| endpoint.clone());
            if caller.forwarded {
                // The replica that passed it on knows more, or will soon; a second hop could go in circles.
                return Err(to_status(&not_leader(endpoint)));
            }
            let is_cut_off = self.engine().consensus().traffic().peers_out_refused().is_some();
            if let Some((replica, endpoint)) = leader.filter(|_| !is_cut_off)
                && let Some(channel) = self.channel((replica, endpoint, caller.nodes))
            {
                return Ok(Route::Remote(Remote { channel: Onward(channel), leader: replica }));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.engine().is_stopping() {
                return Err(to_status(&not_leader(None)));
            }
            tokio::select! {
                () = self.engine().stopping() => {}
                changed = leadership.changed() => if changed.is_err() {
                    return Err(to_status(&not_leader(None)));
                },
                () = tokio::time::sleep(left.min(LOOK_AGAIN)) => {}
            }
        }
    }

    /// Returns once this replica knows that another than `leader` leads. A leader that fell silent without a
    /// word closes no connection: a call to it would wait until its connection is given up, long after somebody
    /// else could answer. While nobody is known to lead, the old one may still be heard.
    pub(crate) async fn superseded(&self, leader: ReplicaId) {
        let mut leadership = self.inner.engine.leadership();
        let another = leadership.wait_for(|view| {
            view.mine.is_some() || view.leader.as_ref().is_some_and(|known| known.replica != leader)
        });
        if another.await.is_err() {
            // The replica stops; everyone who waits is told so elsewhere.
            std::future::pending::<()>().await;
        }
    }

    fn channel(&self, to: Destination) -> Option<Channel> {
        let security = &self.inner.security;
        let mut channels = self.inner.channels.lock();
        // What was opened with other certificates ends with the calls on it.
        if channels.epoch != security.epoch() {
            *channels = Channels { epoch: security.epoch(), open: BTreeMap::new() };
        }
        if let Some(channel) = channels.open.get(&to) {
            return Some(channel.clone());
        }
        let (replica, endpoint, _) = &to;
        let uri = security.address(endpoint).map_err(|error| error.to_string());
        let channel = match uri.and_then(|uri| Endpoint::from_shared(uri).map_err(|e| e.to_string())) {
            Ok(to) => to
                .connect_timeout(Duration::from_millis(1_000))
                .http2_keep_alive_interval(Duration::from_millis(500))
                .keep_alive_timeout(Duration::from_millis(1_000))
                .keep_alive_while_idle(true)
                .tcp_nodelay(true)
                .connect_with_connector_lazy(security.connector(Expect::Replica(*replica))),
            Err(error) => {
                tracing::warn!(endpoint, error, "the leader's client endpoint cannot be used");
                return None;
            }
        };
        if channels.open.len() >= CHANNELS_MAX {
            channels.open.clear();
        }
        channels.open.insert(to, channel.clone());
        Some(channel)
    }

    async fn local<T, L: Future<Output = Result<T, Refusal>>>(
        &self,
        caller: Caller,
        local: &mut impl FnMut() -> L,
    ) -> Result<Result<T, Refusal>, tokio::time::error::Elapsed> {
        let _place = match self.place(caller.account()) {
            Ok(place) => place,
            Err(refusal) => return Ok(Err(refusal)),
        };
        tokio::time::timeout_at(caller.deadline, local()).await
    }

    /// Asks the leader what it alone knows, where it is another replica. None where this replica leads, or where no answer comes
    /// soon: what is known here has to do then.
    pub(crate) async fn ask_leader<T, R>(&self, caller: Caller, ask: impl FnOnce(Onward) -> R) -> Option<T>
    where
        R: Future<Output = Result<T, Status>>,
    {
        if caller.forwarded || self.engine().is_leader() {
            return None;
        }
        let asked = async {
            match self.route(caller).await {
                Ok(Route::Remote(Remote { channel, .. })) => ask(channel).await.ok(),
                Ok(Route::Local) | Err(_) => None,
            }
        };
        let until = caller.deadline.min(Instant::now() + LEADER_ASKED_MAX);
        tokio::time::timeout_at(until, asked).await.ok().flatten()
    }

    /// Carries out a write that is safe to repeat: here or at the leader, again when the leader
    /// changes on the way, until the caller's deadline.
    pub(crate) async fn write<T, L, R>(
        &self,
        caller: Caller,
        mut local: impl FnMut() -> L,
        mut remote: impl FnMut(Onward) -> R,
    ) -> Result<T, Status>
    where
        L: Future<Output = Result<T, Refusal>>,
        R: Future<Output = Result<T, Status>>,
    {
        let mut pause = PAUSE_FIRST;
        loop {
            let failed = match self.route(caller).await? {
                Route::Local => match self.local(caller, &mut local).await {
                    Ok(Ok(done)) => return Ok(done),
                    Ok(Err(refusal)) if caller.forwarded || !is_transient(refusal.code) => {
                        return Err(to_status(&refusal));
                    }
                    Ok(Err(refusal)) => to_status(&refusal),
                    Err(_) => return Err(to_status(&unanswered())),
                },
                Route::Remote(Remote { channel, leader }) => {
                    let answer = tokio::time::timeout_at(caller.deadline, remote(channel));
                    let answer = tokio::select! {
                        answer = answer => answer,
                        // Whatever the old leader still says, the new one will say the same.
                        () = self.superseded(leader) => continue,
                    };
                    match answer {
                        Ok(Ok(done)) => return Ok(done),
                        Ok(Err(status)) if !is_transient_status(&status) => return Err(status),
                        Ok(Err(status)) => status,
                        Err(_) => return Err(to_status(&unanswered())),
                    }
                }
            };
            if self.engine().is_stopping() || caller.deadline <= Instant::now() + pause {
                return Err(if is_refusal(&failed) { failed } else { to_status(&unanswered()) });
            }
            let mut leadership = self.inner.engine.leadership();
            leadership.mark_unchanged();
            tokio::select! {
                () = self.engine().stopping() => {}
                _ = tokio::time::timeout(pause, leadership.changed()) => {}
            }
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }
}

/// The caller's time is over before an answer came.
fn unanswered() -> Refusal {
    let text = "no answer came within the deadline; repeat the request under the same request id";
    Refusal::new(RefusalCode::OutcomeUnknown, text)
}

/// Whether the status is from a server, rather than from the connection to it.
fn is_refusal(status: &Status) -> bool {
    !status.details().is_empty()
}

/// Whether the same request may succeed at once elsewhere or a moment later.
fn is_transient(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::NotLeader
            | RefusalCode::ReplicaStopping
            | RefusalCode::ClusterNotReady
            | RefusalCode::OutcomeUnknown
            | RefusalCode::ClusterRecovering
            | RefusalCode::TrafficRefused
    )
}

/// The same of an answer from the leader, or of none.
fn is_transient_status(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        // What a connection that broke under the call looks like, or a leader that ran out of time.
        Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => !is_refusal(status),
        _ => false,
    }
}

/// A status of a stream that the leader serves, for the caller: a connection that broke between here and there
/// is not what the caller's own connection did, and reading goes on elsewhere.
pub(crate) fn of_leader(status: Status) -> Status {
    if !is_broken(&status) {
        return status;
    }
    let text = format!("the leader that was read from is gone: {}", status.message());
    to_status(&Refusal::new(RefusalCode::NotLeader, text))
}

pub(crate) fn not_leader(leader_endpoint: Option<String>) -> Refusal {
    let refusal =
        Refusal::new(RefusalCode::NotLeader, "this replica does not lead; try the leader or wait for one");
    match leader_endpoint {
        Some(endpoint) => refusal.with("leader_endpoint", endpoint),
        None => refusal,
    }
}

fn asked_timeout<T>(request: &Request<T>) -> Option<Duration> {
    request.metadata().get("grpc-timeout").and_then(|v| v.to_str().ok()).and_then(grpc_timeout)
}

/// The `grpc-timeout` header: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // `parse` would take a sign.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn timeouts_are_read_or_left_alone() {
        assert_eq!(grpc_timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc_timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(grpc_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for text in ["", "S", "1", "-1S", "+1S", "999999999S", "1é", "é", "1 S"] {
            assert_eq!(grpc_timeout(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_what_may_end_differently_is_tried_again() {
        for code in RefusalCode::ALL {
            let here = is_transient(*code);
            let there = is_transient_status(&to_status(&Refusal::new(*code, "why")));
            // What only the leader can say, or only of a read, is not said for a write.
            let reads_only = matches!(
                code,
                RefusalCode::LogsUnavailable
                    | RefusalCode::WorkerNotStarted
                    | RefusalCode::Diverged
                    | RefusalCode::TooStale
                    | RefusalCode::LogIndexNotReached
                    | RefusalCode::ReadUnconfirmed
            );
            assert!(here == there || reads_only, "{code}");
        }
        for code in [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::DeadlineExceeded] {
            assert!(is_transient_status(&Status::new(code, "a connection broke")), "{code:?}");
        }
        assert!(!is_transient_status(&Status::invalid_argument("no")));
    }

    #[tokio::test]
    async fn a_caller_is_held_to_its_own_deadline_and_to_ours() {
        let router = Router::new(sample::engine_alone().await, ApiConfig::DEFAULT, Security::Plaintext);
        let within = |caller: Caller| caller.deadline.saturating_duration_since(Instant::now());
        let mut request = Request::new(());
        assert!(within(router.caller(&request)) > Duration::from_secs(29), "ours when it has none");
        request.set_timeout(Duration::from_secs(2));
        let caller = router.caller(&request);
        assert!(within(caller) <= Duration::from_secs(2) && !caller.forwarded);
        let address = Some([192, 0, 2, 7].into());
        let onward = Router::onward((), Caller { address, ..caller });
        let said = onward.metadata().get(CLIENT_ADDRESS).and_then(|said| said.to_str().ok());
        assert_eq!(said, Some("192.0.2.7"));
        let passed_on = router.caller(&onward);
        assert!(passed_on.forwarded);
        let slack = Duration::from_millis(100);
        assert!(passed_on.deadline <= caller.deadline + slack, "no longer than was left");
        // A read is refused while its caller still listens.
        let reading = router.read_deadline(&request).saturating_duration_since(Instant::now());
        assert!(reading <= Duration::from_millis(1_900) && reading > Duration::from_millis(1_000));
        request.set_timeout(Duration::from_secs(3_600));
        assert!(within(router.caller(&request)) <= ApiConfig::DEFAULT.write_timeout);
    }

    #[tokio::test]
    async fn what_is_checked_once_has_to_be_there() {
        let view = sample::engine_alone().await.view();
        let caller = Caller::reading(Principal::Plaintext, Instant::now());
        let nobody = JobId(7);
        assert!(caller.check_job(&view, nobody).is_ok(), "the leader checks it again");
        let refused = caller.check_job_there(&view, nobody).expect_err("nothing checks it again");
        assert_eq!(refused.code, RefusalCode::JobNotFound);
    }

    #[tokio::test]
    async fn without_a_leader_a_write_ends_at_its_deadline_and_a_forwarded_one_at_once() {
        let router = Router::new(sample::engine_alone().await, ApiConfig::DEFAULT, Security::Plaintext);
        let write = |forwarded, wait| {
            let router = router.clone();
            let deadline = Instant::now() + Duration::from_millis(wait);
            async move {
                let local = || async { Ok::<(), Refusal>(()) };
                let remote = |_| async { Ok::<(), Status>(()) };
                let principal = Principal::Plaintext;
                let (address, nodes, trace) = (None, false, None);
                let caller = Caller { forwarded, deadline, principal, address, nodes, trace };
                router.write(caller, local, remote).await
            }
        };
        let began = Instant::now();
        let refused = write(true, 30_000).await.expect_err("nobody leads");
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(began.elapsed() < Duration::from_secs(10));
        let refused = write(false, 50).await.expect_err("nobody leads");
        assert_eq!(refused.code(), Code::Unavailable);
        // A node's stream has a lease to renew, and waits as long as an election takes.
        let caller = Caller {
            forwarded: false,
            deadline: Instant::now() + Duration::from_secs(30),
            principal: Principal::Plaintext,
            address: None,
            nodes: true,
            trace: None,
        };
        assert!(router.route(caller).await.is_err(), "nobody leads");
        assert!(began.elapsed() < Duration::from_secs(15));
        router.engine().stop();
        write(false, 30_000).await.expect_err("nobody waits for a leader here any more");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[tokio::test]
    async fn a_write_that_nobody_answers_is_of_unknown_outcome() {
        let router = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        let caller = Caller {
            forwarded: false,
            deadline: Instant::now() + Duration::from_millis(50),
            principal: Principal::Plaintext,
            address: None,
            nodes: false,
            trace: None,
        };
        let local = || std::future::pending::<Result<(), Refusal>>();
        let remote = |_| std::future::pending::<Result<(), Status>>();
        let refused = router.write(caller, local, remote).await.expect_err("no answer came");
        let refused = muster_wire::status::Refused::from_status(&refused);
        assert_eq!(refused.code, Some(RefusalCode::OutcomeUnknown));
    }

    /// Makes the call while no turn is free; whether it waits for one. Its answer once there is one.
    async fn waits_for_a_turn<T: Send + 'static>(
        router: &Router,
        call: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
    ) -> (bool, T) {
        let operator = Principal::Plaintext;
        let mut turns = Vec::new();
        for _ in 0..COSTLY_MAX {
            turns.push(router.costly(Account::of(&operator)).await.expect("it is free"));
        }
        let call = tokio::spawn(call);
        let waits = || router.inner.costly.somebody_waits();
        let (limit, mut is_seen) = (Instant::now() + Duration::from_secs(60), false);
        while !is_seen && !call.is_finished() && Instant::now() < limit {
            tokio::task::yield_now().await;
            is_seen = waits();
        }
        drop(turns);
        (is_seen, call.await.expect("no panic").expect("it is answered").into_inner())
    }

    #[tokio::test]
    async fn a_turn_ends_with_the_work_and_not_with_its_caller() {
        let router = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        let account = Account::of(&Principal::Plaintext);
        let (let_go, is_over) = tokio::sync::watch::channel(false);
        for _ in 0..COSTLY_MAX {
            let (mut is_over, (began, begins)) = (is_over.clone(), tokio::sync::oneshot::channel());
            let work = async move {
                began.send(()).expect("the test waits for it");
                is_over.wait_for(|is_over| *is_over).await.expect("the test goes on");
                Ok(())
            };
            let router = router.clone();
            let call = tokio::spawn(async move { router.in_turn(account, work).await });
            begins.await.expect("it begins");
            call.abort();
            assert!(call.await.is_err(), "its caller has gone");
        }
        let next = tokio::time::timeout(Duration::ZERO, router.costly(account)).await;
        assert!(next.is_err(), "the work goes on, in all of the turns");
        let_go.send(true).expect("the work waits for it");
        router.costly(account).await.expect("turns are given back");
        let made = router.in_turn(account, async move { Err::<(), _>(too_many_wait(account)) }).await;
        assert_eq!(made.map_err(|refusal| refusal.code), Err(RefusalCode::Overloaded));
    }

    /// What a policy would mean is a walk over the jobs: none is made on a thread that serves. A change that was made is answered
    /// without it where no turn is free.
    #[tokio::test]
    async fn warnings_of_a_policy_wait_for_their_turn_and_hold_up_no_change() {
        use crate::policy_service::Policies;
        use muster_wire::v1::SetPolicyRequest;
        use muster_wire::v1::policy_service_server::PolicyService as _;
        let router = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        let policy = muster_wire::convert::policy_to_proto(&router.engine().view().policy().policy);
        let set = SetPolicyRequest { policy: Some(policy), ..Default::default() };
        let asked = SetPolicyRequest { validate_only: true, ..set.clone() };
        let policies = Policies::new(router.clone());
        let call = async move { policies.set_policy(Request::new(asked)).await };
        assert!(waits_for_a_turn(&router, call).await.0);
        let mut turns = Vec::new();
        for _ in 0..COSTLY_MAX {
            turns.push(router.costly(Account::of(&Principal::Plaintext)).await.expect("it is free"));
        }
        let request_id = "00000000-0000-4000-8000-000000000001".to_owned();
        let mut request = Request::new(SetPolicyRequest { request_id, ..set });
        request.set_timeout(Duration::from_secs(8));
        let answer = Policies::new(router.clone()).set_policy(request).await.expect("it stands");
        assert!(answer.get_ref().version > 0 && answer.get_ref().warnings.is_empty());
        assert!(turns.len() == COSTLY_MAX && router.engine().view().policy().version.0 > 0);
    }

    /// A page of a thousand rows takes long: none is made on a thread that serves.
    #[tokio::test]
    async fn pages_of_lists_wait_for_their_turn() {
        use crate::fleet_service::Fleet;
        use crate::job_service::Jobs;
        use crate::queue_service::Queues;
        use crate::watcher::Watches;
        use muster_wire::v1::fleet_service_server::FleetService as _;
        use muster_wire::v1::job_service_server::JobService as _;
        use muster_wire::v1::tenant_service_server::TenantService as _;
        use muster_wire::v1::{ListJobsRequest, ListNodesRequest, ListTenantsRequest};
        let router = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        let jobs = Jobs::new(router.clone(), Watches::new(), muster_metrics::ReplicaMetrics::default());
        let call = async move { jobs.list_jobs(Request::new(ListJobsRequest::default())).await };
        assert!(waits_for_a_turn(&router, call).await.0);
        let fleet = Fleet::new(router.clone(), Watches::new());
        let call = async move { fleet.list_nodes(Request::new(ListNodesRequest::default())).await };
        let (waits, nodes) = waits_for_a_turn(&router, call).await;
        assert!(waits && nodes.nodes.is_empty());
        let queues = Queues::new(router.clone(), Watches::new());
        let call = async move { queues.list_tenants(Request::new(ListTenantsRequest::default())).await };
        let (waits, queues) = waits_for_a_turn(&router, call).await;
        assert!(waits && queues.tenants.is_empty());
        let account = Account::of(&Principal::Plaintext);
        let thread = || Ok(std::thread::current().name().map(ToOwned::to_owned));
        let made = router.page(account, 1, thread).await.expect("it is made").into_inner();
        assert_eq!(made.as_deref(), Some("muster-background"));
        assert!(router.page(account, 1, || Err::<(), _>(Status::aborted("no"))).await.is_err());
        assert!(!router.inner.costly.somebody_waits());
    }
}
