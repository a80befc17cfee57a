//! Commands next to workers, and connections to their ports: the stream of who asks on one side, the stream of the worker's agent
//! on the other.
//!
//! Both end at the leader, which has the agent's session; other replicas pass them on. A caller that takes nothing makes the
//! command wait, and one that goes ends it.
//!
//! **Invariant:** a few pieces are in memory of each relay, whatever the command writes and however slowly it is taken; a relay
//! on which nothing moves for long is over.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use muster_engine::{CallerSide, Engine, ExecInput, ExecOutput, ExecPurpose, ExecRequest, NodeSide};
use muster_types::terminal::TerminalSize;
use muster_types::{FencingToken, JobId, NodeId, Refusal, RefusalCode, Violation, limits};
use muster_wire::agent;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::relay_exec_request;
use muster_wire::convert::{fencing_token_from_proto, fencing_token_to_proto, job_id};
use muster_wire::status::{Refused, to_status};
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::{exec_end, exec_worker_request, exec_worker_response};
use muster_wire::v1::{forward_port_request, forward_port_response};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::broken_stream::is_broken;
use crate::controls::requester;
use crate::forward::{Caller, ONWARD_BYTES_MAX, Remote, Route, Router};
use crate::guard::ours;
use crate::onward_stream::{self, BrokenOff};
use crate::pieces::{piece_from_proto, piece_to_proto};
use crate::read::invalid;
use crate::refusals::{late, over, stopping};
use crate::shares::{Account, Pool, PoolPermit, Tallies, Tally};

/// Commands that run through one replica at a time, with those who connect to ports.
const EXECS_MAX: u64 = 512;
/// Of one tenant, or of one certificate that is of no tenant.
const EXECS_EACH_MAX: u64 = 32;
/// On one node, for one account: its agent runs a limited number at a time.
const EXECS_OF_NODE_MAX: u32 = 8;
/// Commands that one account may begin within [`OPENED_WITHIN`]: each is a record of the log.
const OPENED_MAX: u32 = 60;
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// Accounts whose commands are counted; beyond, those are forgotten whose time is over.
const ACCOUNTS_MAX: usize = 1_024;
/// Bytes of one piece of input or output.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Pieces that wait for who takes them, next to those that the engine keeps.
const PIECES_WAITING_MAX: usize = 4;
/// How long either side may take to say what it wants.
pub(crate) const START_MAX: Duration = Duration::from_secs(10);
/// How long nothing may move on a relay, either way.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// What is recorded of who attaches to a worker's terminal.
const ATTACHES: &str = "(attaches to its terminal)";
/// The highest signal that has a name.
const SIGNAL_MAX: u32 = 31;

/// What goes over the stream of who asks: a command, or connections to a port.
pub(crate) trait Kind: 'static {
    /// What the caller says.
    type Request: Send + 'static;
    /// What it is told.
    type Response: Send + 'static;
    /// Whether it goes on when the caller says no more.
    const OUTLIVES_REQUESTS: bool;

    /// What a later message than the first says.
    fn input(request: Self::Request) -> Result<ExecInput, Vec<Violation>>;

    /// What the caller is told; none for what is of another kind.
    fn answer(output: ExecOutput, token: FencingToken) -> Option<Self::Response>;
}

/// A command.
struct OfCommand;

impl Kind for OfCommand {
    type Request = v1::ExecWorkerRequest;
    type Response = v1::ExecWorkerResponse;
    const OUTLIVES_REQUESTS: bool = true;

    fn input(request: v1::ExecWorkerRequest) -> Result<ExecInput, Vec<Violation>> {
        input(request)
    }

    fn answer(output: ExecOutput, token: FencingToken) -> Option<v1::ExecWorkerResponse> {
        answer(output, token)
    }
}

/// The answers to who asks.
pub(crate) type ToCaller = BoxStream<'static, Result<v1::ExecWorkerResponse, Status>>;
type ToNode = BoxStream<'static, Result<agent::RelayExecResponse, Status>>;

/// Commands that run through this replica.
#[derive(Clone)]
pub(crate) struct Execs {
    relays: Pool,
    of_nodes: Tallies<(Account, NodeId)>,
    opened: Arc<Mutex<HashMap<Account, Opened>>>,
}

/// What an account has begun, and since when that is counted.
#[derive(Clone, Copy, Debug)]
struct Opened {
    since: Instant,
    count: u32,
}

impl Default for Execs {
    fn default() -> Execs {
        let relays = Pool::new(EXECS_MAX, EXECS_EACH_MAX);
        Execs { relays, of_nodes: Tallies::default(), opened: Arc::default() }
    }
}

/// The worker that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) job: JobId,
    /// Which placement; none for the current one.
    pub(crate) token: Option<FencingToken>,
    pub(crate) rank: u32,
}

/// What is asked for, checked.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    job: JobId,
    rank: u32,
    token: Option<FencingToken>,
    start: ExecInput,
    /// What the command begins with.
    text: String,
}

impl Asked {
    fn of(start: v1::ExecStart) -> Result<Asked, Vec<Violation>> {
        let v1::ExecStart { job_id: job, rank, token, command, environment, terminal, attach } = start;
        let mut violations = Vec::new();
        let job = job_id("start.job_id", &job).map_err(|v| violations.push(v)).ok();
        let token = token
            .as_ref()
            .map(|token| fencing_token_from_proto("start.token", Some(token)))
            .transpose()
            .map_err(|v| violations.push(v))
            .ok();
        if attach {
            attaches_to_no_more(&command, environment.is_empty(), terminal.is_some(), &mut violations);
        } else if command.first().is_none_or(String::is_empty) {
            violations.push(Violation::new("start.command", "must name a program"));
        }
        if command.len() > limits::COMMAND_WORDS_MAX {
            let (words, most) = (command.len() as u64, limits::COMMAND_WORDS_MAX as u64);
            violations.push(Violation::limit("start.command", words, 1, most));
        }
        if environment.len() > limits::EXEC_VARIABLES_MAX {
            let (count, most) = (environment.len() as u64, limits::EXEC_VARIABLES_MAX as u64);
            violations.push(Violation::limit("start.environment", count, 0, most));
        }
        let of_variables: usize = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
        let bytes = of_variables + command.iter().map(String::len).sum::<usize>();
        if bytes > limits::EXEC_BYTES_MAX {
            let text =
                format!("has {bytes} bytes with start.environment, of {} at most", limits::EXEC_BYTES_MAX);
            violations.push(Violation::new("start.command", text));
        }
        if command.iter().any(|word| word.contains('\0')) {
            violations.push(Violation::new("start.command", "must have no NUL"));
        }
        let names = |(name, value): (&String, &String)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
        };
        if !environment.iter().all(names) {
            let text = "must have names without = and no NUL";
            violations.push(Violation::new("start.environment", text));
        }
        let terminal = terminal
            .map(|size| size_of("start.terminal", size))
            .transpose()
            .map_err(|v| violations.push(v))
            .ok();
        match (job, token, terminal) {
            (Some(job), Some(token), Some(terminal)) if violations.is_empty() => {
                let text = if attach { ATTACHES.to_owned() } else { beginning(&command) };
                let environment = environment.into_iter().collect();
                Ok(Asked {
                    job,
                    rank,
                    token,
                    start: ExecInput::Start { command, environment, terminal, attach },
                    text,
                })
            }
            _ => Err(violations),
        }
    }
}

/// Who attaches to a worker's terminal runs nothing, and has a terminal.
fn attaches_to_no_more(
    command: &[String],
    has_no_variables: bool,
    has_terminal: bool,
    violations: &mut Vec<Violation>,
) {
    if !command.is_empty() {
        violations.push(Violation::new("start.command", "must be empty with start.attach"));
    }
    if !has_no_variables {
        violations.push(Violation::new("start.environment", "must be empty with start.attach"));
    }
    if !has_terminal {
        violations.push(Violation::new("start.terminal", "must be given with start.attach"));
    }
}

fn size_of(field: &str, size: v1::ExecTerminal) -> Result<TerminalSize, Violation> {
    TerminalSize::new(size.rows, size.columns)
        .ok_or_else(|| Violation::new(field, "must have 1 to 65535 rows and columns"))
}

/// What a command begins with, for people who read the log.
fn beginning(command: &[String]) -> String {
    let mut text = String::new();
    for c in command.join(" ").chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if text.len() + c.len_utf8() > limits::EXEC_TEXT_BYTES_MAX {
            break;
        }
        text.push(c);
    }
    text
}

impl Execs {
    /// Opens a relay for a caller.
    pub(crate) async fn open(
        &self,
        router: &Router,
        request: Request<Streaming<v1::ExecWorkerRequest>>,
    ) -> Result<ToCaller, Status> {
        let caller = router.caller(&request);
        let account = caller.account();
        let mut requests = request.into_inner();
        let Ok(first) = tokio::time::timeout(START_MAX, requests.message()).await else {
            return Err(late("the first message must come within 10 s, and be start"));
        };
        let Some(v1::ExecWorkerRequest { message: Some(exec_worker_request::Message::Start(start)) }) =
            first?
        else {
            return Err(invalid(vec![Violation::new("message", "the first message must be start")]));
        };
        let place = self.place(account)?;
        let answers = match router.route(caller).await? {
            Route::Remote(leader) => pass_on(router.clone(), leader, caller, start, requests).await?,
            Route::Local => self.begin(router, caller, start, requests).await?,
        };
        // The place is taken until the command ends.
        let held = answers.inspect(move |_| {
            let _ = &place;
        });
        Ok(held.boxed())
    }

    /// A place among the relays of this replica.
    pub(crate) fn place(&self, account: Account) -> Result<PoolPermit, Status> {
        self.relays.enter(account, 1).ok_or_else(|| {
            let text = format!(
                "{account} runs as many commands, or connects to as many ports, at once as its share allows; end some"
            );
            to_status(&Refusal::new(RefusalCode::Overloaded, text).with("account", account))
        })
    }

    async fn begin(
        &self,
        router: &Router,
        caller: Caller,
        start: v1::ExecStart,
        requests: Streaming<v1::ExecWorkerRequest>,
    ) -> Result<ToCaller, Status> {
        let Asked { job, rank, token, start, text } = Asked::of(start).map_err(invalid)?;
        let worker = Worker { job, token, rank };
        self.begin_here::<OfCommand>(router, caller, worker, (ExecPurpose::Command(text), start), requests)
            .await
    }

    /// Opens a relay on this replica, which leads. `purpose` is what is recorded, and what the agent is told first.
    pub(crate) async fn begin_here<K: Kind>(
        &self,
        router: &Router,
        caller: Caller,
        worker: Worker,
        (purpose, start): (ExecPurpose, ExecInput),
        requests: Streaming<K::Request>,
    ) -> Result<BoxStream<'static, Result<K::Response, Status>>, Status> {
        let Worker { job, token, rank } = worker;
        let (engine, account) = (router.engine(), caller.account());
        let view = router.view_with_job(caller, job).await.map_err(|refusal| to_status(&refusal))?;
        caller.check_job_there(&view, job).map_err(|refusal| to_status(&refusal))?;
        drop(view);
        let of_node = self.place_at_node(engine, account, (job, rank)).map_err(|r| to_status(&r))?;
        self.count(account, Instant::now()).map_err(|refusal| to_status(&refusal))?;
        let by = requester(&caller);
        let side = engine.exec(ExecRequest { by, job, token, rank, purpose }).await;
        let side = side.map_err(|refusal| {
            tracing::info!(%job, rank, %account, %refusal, "a command or connection next to a worker is refused");
            to_status(&refusal)
        })?;
        tracing::info!(%job, token = %side.token, rank, %account, "a command or connection next to a worker begins");
        // The first of all, so there is capacity.
        if side.to_node.try_send(start).is_err() {
            return Err(to_status(&broken("the node's agent did not answer")));
        }
        let (to_caller, answers) = mpsc::channel(PIECES_WAITING_MAX);
        tokio::spawn(serve_caller::<K>(engine.clone(), side, requests, to_caller));
        let held = ReceiverStream::new(answers).inspect(move |_| {
            let _ = &of_node;
        });
        Ok(held.boxed())
    }

    fn place_at_node(
        &self,
        engine: &Engine,
        account: Account,
        (job, rank): (JobId, u32),
    ) -> Result<Option<Tally<(Account, NodeId)>>, Refusal> {
        let view = engine.view();
        let placement = view.job(job).and_then(|row| row.placement.as_ref());
        let slot = placement.and_then(|placement| placement.slots.get(rank as usize));
        // What cannot be run is refused behind this.
        let Some(node) = slot.map(|slot| slot.node).filter(|_| !account.is_unbounded()) else {
            return Ok(None);
        };
        let place = self.of_nodes.enter((account, node), EXECS_OF_NODE_MAX).ok_or_else(|| {
            let text = format!(
                "{account} runs {EXECS_OF_NODE_MAX} commands on one node, or connects to ports there, as many at once as it may"
            );
            Refusal::new(RefusalCode::Overloaded, text).with("account", account)
        })?;
        Ok(Some(place))
    }

    /// Counts one more command of an account, or refuses it.
    fn count(&self, account: Account, now: Instant) -> Result<(), Refusal> {
        if account.is_unbounded() {
            return Ok(());
        }
        let mut opened = self.opened.lock();
        let is_over = |one: &Opened| now.saturating_duration_since(one.since) >= OPENED_WITHIN;
        if opened.len() >= ACCOUNTS_MAX {
            opened.retain(|_, one| !is_over(one));
        }
        if opened.len() >= ACCOUNTS_MAX && !opened.contains_key(&account) {
            let text = "commands of too many accounts are counted here; try again in a minute";
            return Err(Refusal::new(RefusalCode::Overloaded, text));
        }
        let own = opened.entry(account).or_insert(Opened { since: now, count: 0 });
        if is_over(own) {
            *own = Opened { since: now, count: 0 };
        }
        if own.count >= OPENED_MAX {
            let text = format!(
                "{account} has begun {OPENED_MAX} commands, or connections to ports, within a minute, as many as it may"
            );
            return Err(Refusal::new(RefusalCode::Overloaded, text).with("account", account));
        }
        own.count += 1;
        Ok(())
    }
}

pub(crate) fn broken(text: &str) -> Refusal {
    Refusal::new(RefusalCode::ExecUnavailable, text)
}

/// A status of a relay that the leader serves, for the caller: where the caller's own stream broke, it is told of that.
pub(crate) fn for_caller(broken_off: &BrokenOff, status: Status) -> Status {
    match broken_off.explains(&status) {
        Some(own) => self::broken_off(own),
        None => of_leader(status),
    }
}

/// The same of any other status. Where the connection to the leader broke, nobody knows whether it has begun.
fn of_leader(status: Status) -> Status {
    if !is_broken(&status) {
        return status;
    }
    to_status(&broken(&format!("the connection to the leader was lost: {}", status.message())))
}

/// Connects the caller's stream with one to the leader.
async fn pass_on(
    router: Router,
    Remote { channel, leader }: Remote,
    caller: Caller,
    start: v1::ExecStart,
    requests: Streaming<v1::ExecWorkerRequest>,
) -> Result<ToCaller, Status> {
    let first = v1::ExecWorkerRequest { message: Some(exec_worker_request::Message::Start(start)) };
    let (onward, broken_off) = onward_stream::request(Some(first), requests, caller);
    let mut to_leader = JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
    let answers = tokio::select! {
        opened = to_leader.exec_worker(onward) => {
            opened.map_err(|status| for_caller(&broken_off, status))?.into_inner()
        }
        () = router.superseded(leader) => {
            return Err(to_status(&broken("another replica leads by now; whether the command began is not known")));
        }
    };
    let superseded = async move { router.superseded(leader).await };
    let answers = answers.map_err(move |status| for_caller(&broken_off, status));
    let cut = to_status(&broken("another replica leads by now; how the command ends is not known"));
    Ok(onward_stream::until_superseded(answers, superseded, cut))
}

/// Carries input from a caller to the node, and output and the end from the command to the caller, until either of them ends.
async fn serve_caller<K: Kind>(
    engine: Engine,
    side: CallerSide,
    mut requests: Streaming<K::Request>,
    to_caller: mpsc::Sender<Result<K::Response, Status>>,
) {
    let CallerSide { token, to_node, from_node } = side;
    let mut to_node = Some(to_node);
    // Behind the way to the node, and so dropped before it: the end of that way alone would say that the input is complete.
    let mut from_node = from_node;
    let (mut inward, mut outward): (Option<ExecInput>, Option<Result<ExecOutput, Refusal>>) = (None, None);
    let mut moved = Instant::now();
    let status = loop {
        tokio::select! {
            () = to_caller.closed() => return,
            // It has begun, so this must not read as if nothing was done.
            () = engine.stopping() => break Some(to_status(&broken("this replica stops, so it is ended"))),
            () = tokio::time::sleep_until(moved + IDLE_MAX) => {
                break Some(to_status(&broken("nothing was read or written for an hour, so it is ended")));
            }
            output = from_node.recv(), if outward.is_none() => match output {
                Some(output) => outward = Some(output),
                None => break Some(to_status(&broken("the connection to the node's agent was lost"))),
            },
            permit = to_caller.reserve(), if outward.is_some() => {
                let (Ok(permit), Some(output)) = (permit, outward.take()) else { return };
                let goes_on = goes_on(&output);
                let strange = || broken("the node's agent answered something else than was asked for");
                let answer = output.and_then(|output| K::answer(output, token).ok_or_else(strange));
                let is_last = !goes_on || answer.is_err();
                permit.send(answer.map_err(|refusal| to_status(&refusal)));
                if is_last {
                    break None;
                }
                moved = Instant::now();
            }
            message = requests.message(), if inward.is_none() && to_node.is_some() => match message.map(|m| m.map(K::input)) {
                Ok(Some(Ok(input))) => inward = Some(input),
                Ok(Some(Err(violations))) => break Some(invalid(violations)),
                // No more follows; a command may run on.
                Ok(None) if K::OUTLIVES_REQUESTS => to_node = None,
                Ok(None) => return,
                Err(status) => break Some(broken_off(status)),
            },
            sent = hand_on(&to_node, inward.clone()), if inward.is_some() => {
                inward = None;
                moved = Instant::now();
                if !sent {
                    // It has ended, and its end comes on the other way.
                    to_node = None;
                }
            }
        }
    };
    if let Some(status) = status {
        // A caller that takes nothing may have no place for it.
        let _ = to_caller.try_send(Err(status));
    }
}

/// Why no more of the caller's messages are read, for the caller. The command has begun, so this must not read as if nothing was
/// done.
fn broken_off(status: Status) -> Status {
    let status = ours(status);
    match Refused::from_status(&status).code {
        // Without a code it is a connection that broke, or a message that nobody can read.
        Some(RefusalCode::RequestTimeout | RefusalCode::Overloaded) | None => {
            let text = format!("what its caller sends broke off, so it is ended: {}", status.message());
            to_status(&broken(&text))
        }
        _ => status,
    }
}

/// Whether something can follow.
fn goes_on(output: &Result<ExecOutput, Refusal>) -> bool {
    use ExecOutput::{Piece, Started, Stderr, Stdout};
    matches!(output, Ok(Started | Stdout(_) | Stderr(_) | Piece(_)))
}

/// Hands a piece on once there is a place for it; false when nobody takes it.
async fn hand_on(to_node: &Option<mpsc::Sender<ExecInput>>, piece: Option<ExecInput>) -> bool {
    match (to_node, piece) {
        (Some(to_node), Some(piece)) => to_node.send(piece).await.is_ok(),
        _ => false,
    }
}

fn input(request: v1::ExecWorkerRequest) -> Result<ExecInput, Vec<Violation>> {
    use exec_worker_request::Message;
    match request.message {
        Some(Message::Input(bytes)) if bytes.len() > PIECE_BYTES_MAX => {
            Err(vec![Violation::limit("input", bytes.len() as u64, 0, PIECE_BYTES_MAX as u64)])
        }
        Some(Message::Input(bytes)) => Ok(ExecInput::Data(Bytes::from(bytes))),
        Some(Message::InputEnd(_)) => Ok(ExecInput::End),
        Some(Message::Signal(number)) if (1..=SIGNAL_MAX).contains(&number) => Ok(ExecInput::Signal(number)),
        Some(Message::Signal(number)) => {
            Err(vec![Violation::limit("signal", number.into(), 1, SIGNAL_MAX.into())])
        }
        Some(Message::Resize(size)) => {
            size_of("resize", size).map(ExecInput::Resize).map_err(|violation| vec![violation])
        }
        Some(Message::Start(_)) => Err(vec![Violation::new("message", "a command is started once")]),
        None => {
            Err(vec![Violation::new("message", "must be one of start, input, input_end, signal, resize")])
        }
    }
}

fn answer(output: ExecOutput, token: FencingToken) -> Option<v1::ExecWorkerResponse> {
    use exec_worker_response::Message;
    let end = |end| Message::End(v1::ExecEnd { end: Some(end) });
    let message = match output {
        ExecOutput::Started => {
            Message::Started(v1::ExecStarted { token: Some(fencing_token_to_proto(token)) })
        }
        ExecOutput::Stdout(bytes) => Message::Stdout(bytes.into()),
        ExecOutput::Stderr(bytes) => Message::Stderr(bytes.into()),
        ExecOutput::Exited(code) => end(exec_end::End::ExitCode(code)),
        ExecOutput::Signaled(number) => end(exec_end::End::Signal(number)),
        ExecOutput::Piece(_) => return None,
    };
    Some(v1::ExecWorkerResponse { message: Some(message) })
}

/// Opens the agent's side of a relay.
pub(crate) async fn relay(
    router: &Router,
    request: Request<Streaming<agent::RelayExecRequest>>,
) -> Result<Response<ToNode>, Status> {
    let caller = router.caller(&request);
    let mut requests = request.into_inner();
    let Ok(first) = tokio::time::timeout(START_MAX, requests.message()).await else {
        return Err(late("the first message must come within 10 s"));
    };
    let Some(first) = first? else {
        return Err(invalid(vec![Violation::new("relay_id", "the first message must name the relay")]));
    };
    caller.speaks_for(&first.node_name)?;
    match router.route(caller).await? {
        Route::Remote(Remote { channel, leader }) => {
            let (onward, broken_off) = onward_stream::request(Some(first), requests, caller);
            let mut to_leader = NodeServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
            let answers = to_leader.relay_exec(onward).await;
            let answers = answers.map_err(|status| broken_off.rather_than(status))?.into_inner();
            let answers = answers.map_err(move |status| broken_off.rather_than(status));
            let router = router.clone();
            let superseded = async move { router.superseded(leader).await };
            Ok(Response::new(answers.take_until(Box::pin(superseded)).boxed()))
        }
        Route::Local => {
            let engine = router.engine().clone();
            let side = engine.exec_relay(first.relay_id, &first.node_name);
            let side = side
                .ok_or_else(|| to_status(&broken("nobody waits for this command, or not from this node")))?;
            let (to_agent, answers) = mpsc::channel(PIECES_WAITING_MAX);
            let opened = (first.relay_id, first.node_name);
            tokio::spawn(async move {
                if let Some(ended) = serve_node(engine, side, opened, requests, &to_agent).await {
                    // The agent may have gone or take nothing; then nobody is left to tell.
                    let _ = to_agent.try_send(Err(ended));
                }
            });
            Ok(Response::new(ReceiverStream::new(answers).boxed()))
        }
    }
}

/// Carries input from the caller to the agent, and output and the end to the caller. An end of one way is no end of the
/// other: the caller may have no more input, and the agent ends its stream behind the last word. Says what the agent is told; none
/// behind the last word.
async fn serve_node(
    engine: Engine,
    side: NodeSide,
    opened: (u64, String),
    mut requests: Streaming<agent::RelayExecRequest>,
    to_agent: &mpsc::Sender<Result<agent::RelayExecResponse, Status>>,
) -> Option<Status> {
    let NodeSide { mut from_caller, to_caller } = side;
    let inputs = feed(&mut from_caller, &to_caller, to_agent);
    let outputs = async {
        loop {
            let output = match requests.message().await {
                Ok(Some(request)) => output_of(request, &opened),
                Ok(None) => Some(Err(broken("the node's agent has ended the connection"))),
                Err(status) => Some(Err(broken(&format!(
                    "the connection to the node's agent was lost: {}",
                    status.message()
                )))),
            };
            let Some(output) = output else { continue };
            let is_last = !goes_on(&output);
            if to_caller.send(output).await.is_err() || is_last {
                return;
            }
        }
    };
    tokio::pin!(inputs, outputs);
    let mut fed = false;
    loop {
        tokio::select! {
            () = engine.stopping() => return Some(stopping()),
            () = to_caller.closed() => return Some(over("nobody waits for this command any more")),
            // How it ended is known to both sides.
            () = &mut outputs => return None,
            () = &mut inputs, if !fed => fed = true,
        }
    }
}

/// Carries input to the agent, up to its end. Where the caller has gone, what came of its input is no end: a command that reads until
/// there is no more must not take it for whole.
async fn feed(
    from_caller: &mut mpsc::Receiver<ExecInput>,
    to_caller: &mpsc::Sender<Result<ExecOutput, Refusal>>,
    to_agent: &mpsc::Sender<Result<agent::RelayExecResponse, Status>>,
) {
    while let Some(input) = from_caller.recv().await {
        if to_agent.send(Ok(response_of(input))).await.is_err() {
            return;
        }
    }
    if !to_caller.is_closed() {
        let _ = to_agent.send(Ok(response_of(ExecInput::End))).await;
    }
}

fn terminal_of(size: TerminalSize) -> v1::ExecTerminal {
    v1::ExecTerminal { rows: size.rows.into(), columns: size.columns.into() }
}

fn response_of(input: ExecInput) -> agent::RelayExecResponse {
    use exec_worker_request::Message;
    let forward = |message| {
        let forward = Some(v1::ForwardPortRequest { message: Some(message) });
        agent::RelayExecResponse { request: None, forward }
    };
    let message = match input {
        ExecInput::Port(port) => {
            let start = v1::ForwardPortStart { port: port.into(), ..Default::default() };
            return forward(forward_port_request::Message::Start(start));
        }
        ExecInput::Piece(piece) => {
            return forward(forward_port_request::Message::Piece(piece_to_proto(piece)));
        }
        ExecInput::Start { command, environment, terminal, attach } => {
            let (environment, terminal) = (environment.into_iter().collect(), terminal.map(terminal_of));
            Message::Start(v1::ExecStart { command, environment, terminal, attach, ..Default::default() })
        }
        ExecInput::Resize(size) => Message::Resize(terminal_of(size)),
        ExecInput::Data(bytes) => Message::Input(bytes.into()),
        ExecInput::End => Message::InputEnd(v1::ExecInputEnd {}),
        ExecInput::Signal(number) => Message::Signal(number),
    };
    let request = Some(v1::ExecWorkerRequest { message: Some(message) });
    agent::RelayExecResponse { request, forward: None }
}

/// What an agent's message says; none when it says nothing. `opened` is what its first one named.
fn output_of(
    request: agent::RelayExecRequest,
    opened: &(u64, String),
) -> Option<Result<ExecOutput, Refusal>> {
    use exec_worker_response::Message;
    use relay_exec_request::Message as OfNode;
    if (request.relay_id, &request.node_name) != (opened.0, &opened.1) {
        return Some(Err(broken("the node's agent named another relay on the way")));
    }
    let output = match request.message? {
        OfNode::Refused(text) => {
            let text: String = text.chars().take(limits::TEXT_BYTES_MAX / 4).collect();
            return Some(Err(broken(&text).with("node", &request.node_name)));
        }
        OfNode::Output(output) => output.message?,
        OfNode::Forwarded(forwarded) => {
            return Some(match forwarded.message? {
                forward_port_response::Message::Started(_) => Ok(ExecOutput::Started),
                forward_port_response::Message::Piece(piece) => piece_from_proto(piece)
                    .map(ExecOutput::Piece)
                    .map_err(|_| broken("the node's agent sent a piece of a connection that is none")),
            });
        }
    };
    Some(match output {
        Message::Stdout(bytes) | Message::Stderr(bytes) if bytes.len() > PIECE_BYTES_MAX => {
            Err(broken("the node's agent sent a piece of output that is too long"))
        }
        Message::Started(_) => Ok(ExecOutput::Started),
        Message::Stdout(bytes) => Ok(ExecOutput::Stdout(Bytes::from(bytes))),
        Message::Stderr(bytes) => Ok(ExecOutput::Stderr(Bytes::from(bytes))),
        Message::End(v1::ExecEnd { end: Some(exec_end::End::ExitCode(code)) }) => {
            Ok(ExecOutput::Exited(code))
        }
        Message::End(v1::ExecEnd { end: Some(exec_end::End::Signal(number)) }) => {
            Ok(ExecOutput::Signaled(number))
        }
        Message::End(v1::ExecEnd { end: None }) => {
            Err(broken("the node's agent did not say how the command ended"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::{PeerName, Principal, Role, ShortName};
    use muster_types::ClusterId;

    fn start(command: &[&str]) -> v1::ExecStart {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        v1::ExecStart { job_id: "job-1".to_owned(), command, ..Default::default() }
    }

    fn fields(start: v1::ExecStart) -> Vec<String> {
        Asked::of(start).expect_err("it is refused").into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_its_field() {
        assert_eq!(fields(start(&[])), ["start.command"]);
        assert_eq!(fields(start(&["", "x"])), ["start.command"]);
        assert_eq!(fields(start(&["a\0b"])), ["start.command"]);
        assert_eq!(fields(start(&["x"; limits::COMMAND_WORDS_MAX + 1])), ["start.command"]);
        let long = "x".repeat(limits::EXEC_BYTES_MAX);
        assert_eq!(fields(start(&["sh", &long])), ["start.command"]);
        for (name, value) in [("", "x"), ("A=B", "x"), ("A", "x\0")] {
            let environment = [(name.to_owned(), value.to_owned())].into();
            assert_eq!(fields(v1::ExecStart { environment, ..start(&["sh"]) }), ["start.environment"]);
        }
        let environment =
            (0..=limits::EXEC_VARIABLES_MAX).map(|n| (format!("V{n}"), String::new())).collect();
        assert_eq!(fields(v1::ExecStart { environment, ..start(&["sh"]) }), ["start.environment"]);
        assert_eq!(fields(v1::ExecStart { job_id: "?".to_owned(), ..start(&["sh"]) }), ["start.job_id"]);
        let terminal = Some(v1::ExecTerminal { rows: 24, columns: 0 });
        assert_eq!(fields(v1::ExecStart { terminal, ..start(&["sh"]) }), ["start.terminal"]);
        assert!(Asked::of(start(&["sh", "-c", ""])).is_ok());
        let attach = |command: &[&str], terminal| v1::ExecStart { attach: true, terminal, ..start(command) };
        let size = Some(v1::ExecTerminal { rows: 24, columns: 80 });
        assert_eq!(fields(attach(&["sh"], size)), ["start.command"]);
        assert_eq!(fields(attach(&[], None)), ["start.terminal"]);
        assert_eq!(Asked::of(attach(&[], size)).expect("it attaches").text, ATTACHES);
    }

    #[test]
    fn a_record_has_the_beginning_of_a_command_in_one_line() {
        assert_eq!(beginning(&["sh".into(), "-c".into(), "a\nb".into()]), "sh -c a b");
        let long = beginning(&["\u{e9}".repeat(limits::EXEC_TEXT_BYTES_MAX)]);
        assert!(long.len() <= limits::EXEC_TEXT_BYTES_MAX && long.len() > limits::EXEC_TEXT_BYTES_MAX - 2);
    }

    #[test]
    fn an_account_begins_a_bounded_number_of_commands_a_minute() {
        let short = |text| ShortName::new(text).expect("a name");
        let of = |tenant| {
            let role = Role::TenantClient { tenant: short(tenant), user: short("ada") };
            Account::of(&Principal::Named(PeerName { cluster: ClusterId(1), role }))
        };
        let (execs, now) = (Execs::default(), Instant::now());
        for _ in 0..OPENED_MAX {
            execs.count(of("vision"), now).expect("within its share");
        }
        assert_eq!(execs.count(of("vision"), now).expect_err("one more").code, RefusalCode::Overloaded);
        execs.count(of("speech"), now).expect("another tenant");
        execs.count(of("vision"), now + OPENED_WITHIN).expect("a minute later");
    }

    #[test]
    fn a_relay_whose_leader_is_lost_may_have_begun() {
        let code = |status| Refused::from_status(&of_leader(status)).code;
        let lost = Status::from_error(Box::new(std::io::Error::other("the connection was reset")));
        assert_eq!(code(lost), Some(RefusalCode::ExecUnavailable));
        let refused = to_status(&Refusal::new(RefusalCode::JobFinished, "it is over"));
        assert_eq!(code(refused), Some(RefusalCode::JobFinished), "the leader's own words");
    }

    #[test]
    fn a_caller_that_stalls_is_not_told_that_nothing_was_done() {
        let code = |code| {
            let status = to_status(&Refusal::new(code, "a message was not whole in time"));
            Refused::from_status(&broken_off(status)).code
        };
        for of_one_message in [RefusalCode::RequestTimeout, RefusalCode::Overloaded] {
            assert_eq!(code(of_one_message), Some(RefusalCode::ExecUnavailable), "{of_one_message}");
        }
        assert_eq!(code(RefusalCode::MessageTooLarge), Some(RefusalCode::MessageTooLarge), "it fails again");
    }

    #[test]
    fn a_caller_is_told_why_its_own_stream_broke() {
        let broken = BrokenOff::default();
        let lost = || Status::from_error(Box::new(std::io::Error::other("stream error sent by user")));
        let said = |broken: &BrokenOff, status| for_caller(broken, status).message().to_owned();
        assert!(said(&broken, lost()).contains("the connection to the leader was lost"));
        broken.break_off(late("a message was not whole"));
        assert!(said(&broken, lost()).contains("a message was not whole"));
        let refused = || to_status(&Refusal::new(RefusalCode::JobFinished, "it is over"));
        assert_eq!(said(&broken, refused()), "it is over", "the leader's own words");
    }

    /// What the agent hears of a caller that sends one piece of input, and then no more.
    async fn heard(has_gone: bool) -> Vec<ExecInput> {
        let (to_node, mut from_caller) = mpsc::channel(PIECES_WAITING_MAX);
        let (to_caller, from_node) = mpsc::channel(PIECES_WAITING_MAX);
        let (to_agent, mut heard) = mpsc::channel(PIECES_WAITING_MAX);
        to_node.send(ExecInput::Data(Bytes::from_static(b"half"))).await.expect("it is taken");
        let kept = (!has_gone).then_some(from_node);
        drop(to_node);
        feed(&mut from_caller, &to_caller, &to_agent).await;
        drop((kept, to_agent));
        let mut all = Vec::new();
        while let Some(message) = heard.recv().await {
            let request = message.expect("it is input").request.expect("it is of a command");
            all.push(input(request).expect("it is right"));
        }
        all
    }

    #[tokio::test]
    async fn input_is_complete_only_where_its_caller_is_still_there() {
        let half = ExecInput::Data(Bytes::from_static(b"half"));
        assert_eq!(heard(false).await, [half.clone(), ExecInput::End]);
        assert_eq!(heard(true).await, [half], "what has gone has not ended its input");
    }

    #[test]
    fn what_a_caller_sends_is_bounded() {
        use exec_worker_request::Message;
        let said = |message| input(v1::ExecWorkerRequest { message });
        assert!(said(None).is_err());
        assert!(said(Some(Message::Input(vec![0; PIECE_BYTES_MAX + 1]))).is_err());
        for signal in [0, SIGNAL_MAX + 1, u32::MAX] {
            assert!(said(Some(Message::Signal(signal))).is_err());
        }
        let size = |rows, columns| Some(Message::Resize(v1::ExecTerminal { rows, columns }));
        assert!(said(size(0, 80)).is_err() && said(size(24, 65_536)).is_err());
        assert_eq!(said(size(24, 80)), Ok(ExecInput::Resize(TerminalSize { rows: 24, columns: 80 })));
        assert_eq!(said(Some(Message::Signal(15))), Ok(ExecInput::Signal(15)));
        assert!(said(Some(Message::Start(start(&["sh"])))).is_err(), "once is enough");
    }

    #[test]
    fn an_agent_keeps_to_the_relay_that_it_opened() {
        let opened = (7, "h1".to_owned());
        let of = |relay_id, node: &str, message| {
            output_of(agent::RelayExecRequest { relay_id, node_name: node.to_owned(), message }, &opened)
        };
        assert!(of(7, "h1", None).is_none());
        for (relay_id, node) in [(8, "h1"), (7, "h2")] {
            assert!(of(relay_id, node, None).expect("it is told").is_err());
        }
        let refused = of(7, "h1", Some(relay_exec_request::Message::Refused("no".to_owned())));
        assert_eq!(
            refused.expect("it is told").expect_err("it is refused").code,
            RefusalCode::ExecUnavailable
        );
    }
}
