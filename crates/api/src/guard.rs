//! The door: who calls (by certificate or token), whether they may, and whether they have not too much open already.
//!
//! **Invariant:** nothing of a request is read before it has passed.
//! **Invariant:** while this replica refuses traffic for a drill, the calls that end that drill still pass.
//! **Invariant:** each caller has its own allowance of each kind of call, so that a flood of one takes
//! nothing from the others; agents' sessions are counted apart from everything else. What is counted is
//! bounded by what is open: nothing is kept of a caller with nothing open.

use http_body::{Frame, SizeHint};
use muster_engine::Traffic;
use muster_traces::header::TRACE_STATE;
use muster_transport::{PeerInfo, PeerName, Principal, Role, ShortName};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::{no_such_call, to_status};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::{Code, Status};
use tower_layer::Layer;

use crate::access::{Class, Rule, rule_of};
use crate::assembly::{Assembled, HeldPermits, Terms};
use crate::features;
use crate::headers::{CLIENT_ADDRESS, FORWARDED, ON_BEHALF, REQUIRED_FEATURES};
use crate::original::Original;
use crate::recorded::CallRecorder;
use crate::refusals::failed;
use crate::shares::{Account, Pool};
use crate::spans;
use crate::tokens::Tokens;
use crate::unwritten::{AnswerMemory, Ledger, Metered};

/// What one caller may have open at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls of one client or operator that are not answered yet.
    pub calls_max: u32,
    /// Watches and reads of output of one client or operator.
    pub streams_max: u32,
    /// The first, of all callers of one tenant together: it may have any number of certificates and tokens.
    pub tenant_calls_max: u32,
    /// The second, of all callers of one tenant together.
    pub tenant_streams_max: u32,
    /// Sessions of one node: the present one, and those that its agent gave up and that have not ended yet.
    pub agent_sessions_max: u32,
    /// Outputs that one agent sends.
    pub agent_uploads_max: u32,
    /// Sessions of one agent that speaks for many nodes, of all of them together.
    pub group_sessions_max: u32,
    /// Outputs that such an agent sends.
    pub group_uploads_max: u32,
    /// Of each kind, by all together who show no certificate.
    pub plaintext_max: u32,
    /// Bytes of messages that are not whole, or whose calls are not answered: of all callers together.
    pub message_room_bytes: u64,
    /// Of one tenant, or of one certificate that is of no tenant.
    pub message_room_each_bytes: u64,
    /// How long a message that was begun may take to be whole, in milliseconds.
    pub message_timeout_ms: u64,
    /// When a caller with too much open may try again, in milliseconds.
    pub retry_after_ms: u64,
}

impl CallLimits {
    /// What a server gets that says nothing.
    pub const DEFAULT: CallLimits = CallLimits {
        calls_max: 4_096,
        streams_max: 1_024,
        tenant_calls_max: 16_384,
        tenant_streams_max: 8_192,
        agent_sessions_max: 8,
        agent_uploads_max: 128,
        group_sessions_max: 32_768,
        group_uploads_max: 4_096,
        plaintext_max: 131_072,
        message_room_bytes: 256 << 20,
        message_room_each_bytes: 64 << 20,
        message_timeout_ms: 15_000,
        retry_after_ms: 250,
    };

    fn of(&self, principal: &Principal, class: Class) -> u32 {
        match (principal, class) {
            (Principal::Plaintext, _) => self.plaintext_max,
            (Principal::Named(PeerName { role: Role::AgentGroup(_), .. }), Class::Session) => {
                self.group_sessions_max
            }
            (Principal::Named(PeerName { role: Role::AgentGroup(_), .. }), Class::Upload) => {
                self.group_uploads_max
            }
            (_, Class::Call) => self.calls_max,
            (_, Class::Stream) => self.streams_max,
            (_, Class::Session) => self.agent_sessions_max,
            (_, Class::Upload) => self.agent_uploads_max,
        }
    }

    /// What all callers of one tenant may have open together; they have no sessions and no uploads.
    fn of_tenant(&self, class: Class) -> u32 {
        match class {
            Class::Call => self.tenant_calls_max,
            Class::Stream => self.tenant_streams_max,
            Class::Session | Class::Upload => u32::MAX,
        }
    }
}

/// Who made a call that has passed; among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) principal: Principal,
    /// From where it called the replica that took the call; none where the one that passed it on did not say.
    pub(crate) address: Option<IpAddr>,
    pub(crate) class: Class,
}

/// Bytes of an IP address as text.
const ADDRESS_BYTES_MAX: usize = 45;

const CLASSES: usize = 4;
type Counts = [u32; CLASSES];
type Open = Mutex<OpenCalls>;

/// How much is open. Nothing is kept of those who have nothing open.
#[derive(Default)]
struct OpenCalls {
    of_callers: HashMap<Principal, Counts>,
    of_tenants: HashMap<ShortName, Counts>,
}

/// The tenant with which a caller is counted as well.
fn tenant_of(principal: &Principal) -> Option<ShortName> {
    match Account::of(principal) {
        Account::Tenant(tenant) => Some(tenant),
        Account::Holder(_) => None,
    }
}

/// One less of what is counted under a key.
fn leave<K: Eq + Hash>(counted: &mut HashMap<K, Counts>, key: &K, class: Class) {
    if let Some(counts) = counted.get_mut(key) {
        counts[slot(class)] = counts[slot(class)].saturating_sub(1);
        if *counts == [0; CLASSES] {
            counted.remove(key);
        }
    }
}

fn slot(class: Class) -> usize {
    match class {
        Class::Call => 0,
        Class::Stream => 1,
        Class::Session => 2,
        Class::Upload => 3,
    }
}

/// The address that a replica says.
fn address_of(value: &http::HeaderValue) -> Option<IpAddr> {
    let text = value.to_str().ok().filter(|text| text.len() <= ADDRESS_BYTES_MAX)?;
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Which traffic a call is part of.
struct PartOf {
    traffic: Traffic,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// About a drill: never refused for one.
    Drill,
    /// Another replica's, or passed on by it.
    Peer,
    Client,
}

impl PartOf {
    /// # Errors
    /// While a drill makes this replica silent for the caller.
    fn admit(&self) -> Result<(), Status> {
        let refused = match self.kind {
            Kind::Drill => None,
            Kind::Peer => self.traffic.peers_in_refused(),
            Kind::Client => self.traffic.clients_refused(),
        };
        refused.map_or(Ok(()), |left| Err(silent(left)))
    }

    /// Waits until it is refused.
    async fn until_refused(self) {
        match self.kind {
            Kind::Drill => std::future::pending().await,
            Kind::Peer => self.traffic.until_peers_in_refused().await,
            Kind::Client => self.traffic.until_clients_refused().await,
        }
    }
}

struct Guard {
    limits: CallLimits,
    /// Bytes of one message at most.
    message_bytes_max: u64,
    pool: Pool,
    open: Arc<Open>,
    traffic: Traffic,
    leads: Leads,
    unwritten: Ledger,
    tokens: Tokens,
    recorder: CallRecorder,
}

/// Whether this replica leads.
pub(crate) type Leads = Arc<dyn Fn() -> bool + Send + Sync>;

/// Calls about a drill, by which a replica that refuses everything else is made to take it again.
const DRILL_CALLS: &str = "/muster.admin.v1beta1.DrillService/";

/// Calls in which the caller sends one message after the other, as long as it likes.
const CLIENT_STREAMS: [&str; 8] = [
    "/muster.v1beta1.JobService/SubmitStream",
    "/muster.agent.v1beta1.NodeService/Session",
    "/muster.agent.v1beta1.NodeService/UploadLogs",
    "/muster.v1beta1.JobService/ExecWorker",
    "/muster.v1beta1.JobService/ForwardPort",
    "/muster.agent.v1beta1.NodeService/RelayExec",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// One call that is open.
struct Permit {
    open: Arc<Open>,
    principal: Principal,
    class: Class,
    path: &'static str,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        leave(&mut open.of_callers, &self.principal.as_counted(), self.class);
        if let Some(tenant) = tenant_of(&self.principal) {
            leave(&mut open.of_tenants, &tenant, self.class);
        }
    }
}

/// What a caller is told while this replica is silent on purpose.
fn silent(left: Duration) -> Status {
    let text = "this replica is silent for a while, for a drill; the others take calls";
    let refusal = Refusal::new(RefusalCode::TrafficRefused, text);
    to_status(&refusal.with("refused_ms", left.as_millis()))
}

fn denied(principal: Principal, text: String) -> Status {
    to_status(&Refusal::new(RefusalCode::PermissionDenied, text).with("principal", principal))
}

impl Guard {
    fn admit(&self, request: &mut http::Request<Body>) -> Result<(Permit, PartOf), Status> {
        let Some(rule) = rule_of(request.uri().path()) else {
            return Err(no_such_call(request.uri().path()));
        };
        let (principal, address) = self.principal(request, rule.path)?;
        let traffic = self.traffic_of(rule.path, request);
        traffic.admit()?;
        if !rule.kinds.include(&principal) {
            let hint = match principal.role() {
                Some(Role::Client(_)) => "; it may look and change nothing, see `muster ca issue --help`",
                _ => "",
            };
            let text = format!("{principal} may not call {}{hint}", rule.path.trim_start_matches('/'));
            let status = denied(principal, text);
            if let Some(peer) = request.extensions().get::<PeerInfo>() {
                self.note_denied(peer, principal, rule.path, &status);
            }
            return Err(status);
        }
        if !self.tokens.has_call(&principal, rule.path) {
            let call = rule.path.trim_start_matches('/');
            let text = format!(
                "{principal} may not call {call}: its role, which the policy defines, lacks the verb"
            );
            let status = denied(principal, text);
            if let Some(peer) = request.extensions().get::<PeerInfo>() {
                self.note_denied(peer, principal, rule.path, &status);
            }
            return Err(status);
        }
        features::check(request.headers())?;
        let permit = self.enter(principal, rule)?;
        request.extensions_mut().insert(Admitted { principal, address, class: rule.class });
        Ok((permit, traffic))
    }

    /// Who it is that calls: the holder of a token that the call shows, else of the connection's certificate or, where that
    /// is a replica's, the one it passes the call on for. What anybody else says about that is taken off. And from where: the other
    /// end of the connection, or where a replica says that it took the call from.
    fn principal(
        &self,
        request: &mut http::Request<Body>,
        path: &'static str,
    ) -> Result<(Principal, Option<IpAddr>), Status> {
        let peer = request.extensions().get::<PeerInfo>().copied();
        let peer = peer.ok_or_else(|| failed("a connection without a peer"))?;
        let headers = request.headers_mut();
        let (behalf, passed_on) = (headers.remove(ON_BEHALF), headers.remove(CLIENT_ADDRESS));
        let own_address = Some(peer.address.ip().to_canonical());
        let shown = self.tokens.judge(headers, peer).inspect_err(|status| {
            self.note_denied(&peer, peer.principal, path, status);
        })?;
        let Principal::Named(PeerName { cluster, role: Role::Replica(_) }) = peer.principal else {
            if peer.principal != Principal::Plaintext {
                headers.remove(FORWARDED);
            }
            return Ok((shown.unwrap_or(peer.principal), own_address));
        };
        let Some(behalf) = behalf else { return Ok((peer.principal, own_address)) };
        let behalf = behalf.to_str().ok().and_then(|text| Principal::parse_passed_on(text, cluster));
        let checked = behalf
            .ok_or_else(|| {
                denied(peer.principal, "the call is passed on for nobody of this cluster".to_owned())
            })
            .and_then(|behalf| self.tokens.check_passed_on(behalf));
        let checked = checked.inspect_err(|status| self.note_denied(&peer, peer.principal, path, status))?;
        Ok((checked, passed_on.as_ref().and_then(address_of)))
    }

    /// Records a call that was denied before it reached its service.
    fn note_denied(&self, peer: &PeerInfo, principal: Principal, path: &'static str, status: &Status) {
        self.tokens.note_denied(peer, principal, path, status.code());
        self.recorder.note(peer, principal, path, status);
    }

    /// Which part of this replica's traffic a call belongs to.
    fn traffic_of(&self, path: &str, request: &http::Request<Body>) -> PartOf {
        let by_replica = request
            .extensions()
            .get::<PeerInfo>()
            .is_some_and(|peer| matches!(peer.principal.role(), Some(Role::Replica(_))));
        let kind = if path.starts_with(DRILL_CALLS) {
            Kind::Drill
        } else if by_replica || request.headers().contains_key(FORWARDED) {
            Kind::Peer
        } else {
            Kind::Client
        };
        PartOf { traffic: self.traffic.clone(), kind }
    }

    /// The request with a body that is read under this caller's terms.
    fn assembled(
        &self,
        request: http::Request<Body>,
        taken: Option<HeldPermits>,
        original: Option<Original>,
    ) -> http::Request<Body> {
        let principal = request.extensions().get::<Admitted>().map(|admitted| admitted.principal);
        let terms = Terms {
            pool: self.pool.clone(),
            account: Account::of(&principal.unwrap_or(Principal::Plaintext)),
            message_bytes_max: self.message_bytes_max,
            timeout: Duration::from_millis(self.limits.message_timeout_ms),
            is_single: !CLIENT_STREAMS.contains(&request.uri().path()),
            taken,
            original,
            retry_after_ms: self.limits.retry_after_ms,
        };
        request.map(|body| Body::new(Assembled::new(body, terms)))
    }

    /// Where the message of a call is kept that this replica may have to pass on.
    fn original(&self, request: &http::Request<Body>, class: Class) -> Option<Original> {
        let may_be_passed_on =
            class == Class::Call && !request.headers().contains_key(FORWARDED) && !(self.leads)();
        let bytes_max = usize::try_from(self.message_bytes_max).unwrap_or(usize::MAX);
        may_be_passed_on.then(|| {
            let required = features::required(request.headers()).cloned();
            let state = spans::trace_state(request.headers());
            let kept = [(REQUIRED_FEATURES, required), (TRACE_STATE, state)];
            let kept = kept.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            Original::new(request.uri().path(), bytes_max, kept)
        })
    }

    fn enter(&self, principal: Principal, rule: &Rule) -> Result<Permit, Status> {
        let (class, path) = (rule.class, rule.path);
        let (counted, tenant) = (principal.as_counted(), tenant_of(&principal));
        let mut open = self.open.lock();
        let held = |counts: Option<&Counts>| counts.map_or(0, |counts| counts[slot(class)]);
        let max = self.limits.of(&principal, class);
        if held(open.of_callers.get(&counted)) >= max {
            return Err(self.too_much_open(principal, (format!("{principal} has"), "open"), class, max));
        }
        if let Some(tenant) = tenant {
            let max = self.limits.of_tenant(class);
            if held(open.of_tenants.get(&tenant)) >= max {
                let who = format!("all callers of tenant {tenant} together have");
                return Err(self.too_much_open(principal, (who, "tenant_open"), class, max));
            }
            open.of_tenants.entry(tenant).or_insert([0; CLASSES])[slot(class)] += 1;
        }
        open.of_callers.entry(counted).or_insert([0; CLASSES])[slot(class)] += 1;
        Ok(Permit { open: Arc::clone(&self.open), principal, class, path })
    }

    fn too_much_open(
        &self,
        principal: Principal,
        (who, limit): (String, &str),
        class: Class,
        max: u32,
    ) -> Status {
        let what = match class {
            Class::Call => "calls",
            Class::Stream => "streams",
            Class::Session => "sessions",
            Class::Upload => "uploads",
        };
        let text = format!("{who} {max} {what} open, as many as may be; try again");
        let refusal = Refusal::new(RefusalCode::Overloaded, text)
            .with("retry_after_ms", self.limits.retry_after_ms)
            .with("principal", principal)
            .with("limit", format!("{limit}_{what}"))
            .with("limit_max", max);
        to_status(&refusal)
    }
}

/// What the framework says of a message that is too large, in our words; any other status as it is.
pub(crate) fn ours(status: Status) -> Status {
    // The framework has no separate code for it.
    let too_large = status.code() == Code::OutOfRange
        && status.details().is_empty()
        && status.message().contains("message length too large");
    if !too_large {
        return status;
    }
    let text = status.message().trim_start_matches("Error, ").to_owned();
    to_status(&Refusal::new(RefusalCode::MessageTooLarge, text))
}

fn response_in_our_words(response: http::Response<Body>) -> http::Response<Body> {
    // An answer that is a refusal alone has its status among the headers.
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::OutOfRange => ours(status).into_http(),
        _ => response,
    }
}

/// Puts the door before every service.
#[derive(Clone)]
pub(crate) struct GuardLayer(Arc<Guard>);

impl GuardLayer {
    pub(crate) fn new(
        limits: CallLimits,
        message_bytes_max: usize,
        traffic: Traffic,
        leads: Leads,
        unwritten: Ledger,
        (tokens, recorder): (Tokens, CallRecorder),
    ) -> GuardLayer {
        let message_bytes_max = u64::try_from(message_bytes_max).unwrap_or(u64::MAX);
        // A few of the largest messages always fit, whatever they may have.
        let each = limits.message_room_each_bytes.max(message_bytes_max.saturating_mul(4));
        let pool = Pool::new(limits.message_room_bytes.max(each.saturating_mul(4)), each);
        let open = Arc::default();
        let guard =
            Guard { limits, message_bytes_max, pool, open, traffic, leads, unwritten, tokens, recorder };
        GuardLayer(Arc::new(guard))
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, guard: Arc::clone(&self.0) }
    }
}

/// Services behind the door.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: Arc<Guard>,
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let (permit, traffic) = match self.guard.admit(&mut request) {
            Ok(admitted) => admitted,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        let span = spans::begin(&mut request, &permit.principal, (permit.path, permit.class));
        // What a call was asked with is given back when it is answered; what a stream carries, message by message.
        let taken = (permit.class == Class::Call).then(HeldPermits::default);
        // The replica that passed it on records it, and knows from where it came.
        let peer = request.extensions().get::<PeerInfo>().copied();
        let peer = peer.filter(|peer| !matches!(peer.principal.role(), Some(Role::Replica(_))));
        let is_passed_on = peer.is_none();
        if let Some(peer) = peer.filter(|_| permit.class == Class::Stream) {
            let recorder = self.guard.recorder.of_stream(peer, permit.principal, permit.path);
            request.extensions_mut().insert(recorder);
        }
        let original = self.guard.original(&request, permit.class);
        let request = self.guard.assembled(request, taken.clone(), original.clone());
        let answered = self.inner.call(request);
        let (ledger, tokens) = (self.guard.unwritten.clone(), self.guard.tokens.clone());
        let recorder = self.guard.recorder.clone();
        Box::pin(async move {
            let _taken = taken;
            let answered = match original {
                Some(original) => original.during(answered).await,
                None => answered.await,
            };
            let mut response = response_in_our_words(answered?);
            spans::end(span, &mut response);
            if let Some(peer) = &peer {
                recorder.note_answer(peer, permit.principal, permit.path, response.headers());
            }
            let (account, memory) =
                (Account::of(&permit.principal), response.extensions_mut().remove::<AnswerMemory>());
            match permit.class {
                // The whole answer is there; one that comes out of a replica gone silent is not heard.
                Class::Call => {
                    match traffic.admit() {
                        // The call is open until its answer is written.
                        Ok(()) => Ok(response
                            .map(|inner| Body::new(Metered::new(inner, ledger, account, (permit, memory))))),
                        Err(silent) => Ok(silent.into_http()),
                    }
                }
                Class::Stream => {
                    let cut =
                        Box::pin(until_cut(traffic, tokens, (permit.principal, permit.path), is_passed_on));
                    Ok(response.map(|inner| {
                        let inner = Body::new(Metered::new(inner, ledger, account, memory));
                        Body::new(Held { inner: Some(inner), cut, _permit: permit })
                    }))
                }
                Class::Session | Class::Upload => {
                    let cut =
                        Box::pin(until_cut(traffic, tokens, (permit.principal, permit.path), is_passed_on));
                    Ok(response.map(|inner| Body::new(Held { inner: Some(inner), cut, _permit: permit })))
                }
            }
        })
    }
}

/// Waits until an answer that goes on has to end, and says why: the replica is made silent, or its caller's token is refused.
async fn until_cut(
    traffic: PartOf,
    tokens: Tokens,
    (principal, path): (Principal, &'static str),
    is_passed_on: bool,
) -> Status {
    tokio::select! {
        () = traffic.until_refused() => silent(Duration::ZERO),
        refused = tokens.until_refused(principal, path, is_passed_on) => refused,
    }
}

/// An answer that goes on; its place is taken until it ends. It ends early when the replica is made silent, or when the token
/// that it was asked for with is refused.
struct Held {
    /// None once it was cut.
    inner: Option<Body>,
    cut: Pin<Box<dyn Future<Output = Status> + Send>>,
    _permit: Permit,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let held = &mut *self;
        let Some(inner) = &mut held.inner else { return Poll::Ready(None) };
        let Poll::Ready(reason) = held.cut.as_mut().poll(context) else {
            return Pin::new(inner).poll_frame(context);
        };
        // What answers is dropped with it.
        held.inner = None;
        let mut trailers = http::HeaderMap::new();
        match reason.add_header(&mut trailers) {
            Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Err(status) => Poll::Ready(Some(Err(status))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}
