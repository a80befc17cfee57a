//! The web pages: routes, who may see them, and how a refusal becomes a page. `muster-page` makes the HTML.
//!
//! A page is a read like a call of a client. It is answered from the state that this replica has applied, its reader
//! needs the permissions of the calls that say the same, and what those hide is hidden here by the same functions.
//!
//! **Invariant:** nothing here changes anything: every method but GET and HEAD is refused.
//! **Invariant:** a page refers to files of this server alone, and its content security policy allows nothing else.

mod cluster;
mod denied;
mod estimates;
mod events;
mod jobs;
mod nodes;
mod output;
mod plan;
mod query;
mod time_travel;
mod timeline;

use axum::Router as Routes;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use muster_decider::JobExplanation;
use muster_engine::{Engine, Reading};
use muster_metrics::ReplicaMetrics;
use muster_monitoring::{ConnectionTimeouts, Peer};
use muster_page::assets::{ASSETS, Asset};
use muster_page::{Frame, JobQuery, TimeTravel};
use muster_transport::{Principal, Security};
use muster_types::{ClusterId, JobId, Refusal, RefusalCode};
use muster_wire::status::{Refused, to_status};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

use crate::access::may_call;
use crate::drills::Drills;
use crate::facts::readiness;
use crate::forward::{Caller, Router};
use crate::objectives::ObjectiveAccount;
use crate::outputs::Outputs;
use crate::read::{Fresh, freshness, present};
use crate::recorded::CallRecorder;
use crate::shared::Shared;
use crate::shares::{Account, Pool, PoolPermit};
use crate::unwritten::{AnswerMemory, Ledger, Metered};
use crate::visibility::Visibility;

pub(crate) use denied::note_denied;

#[cfg(test)]
pub(crate) use denied::PAGES;

use estimates::Estimates;

/// Bytes of a path with its query. A selector of labels has 4,096 characters at most, which may be encoded.
const ADDRESS_BYTES_MAX: usize = 16 << 10;

/// The media type of a page.
const HTML_TYPE: &str = "text/html; charset=utf-8";
/// How far a page of the past leads at a time.
const STEP_MS: u64 = 3_600_000;

/// A reader of the pages needs the permission for all of these: each page shows some of what they say.
const CALLS: [&str; 12] = [
    "/muster.v1beta1.BookingService/ListBookings",
    "/muster.v1beta1.ClusterService/GetStatus",
    "/muster.v1beta1.FleetService/GetNode",
    "/muster.v1beta1.FleetService/ListNodes",
    "/muster.v1beta1.FleetService/WatchNodes",
    "/muster.v1beta1.HistoryService/ReadDecisions",
    "/muster.v1beta1.JobService/ExplainJob",
    "/muster.v1beta1.JobService/GetJob",
    "/muster.v1beta1.JobService/ListJobs",
    "/muster.v1beta1.JobService/PlanJob",
    "/muster.v1beta1.JobService/WatchJobs",
    "/muster.v1beta1.TenantService/ListTenants",
];

/// No page needs anything but the files of this server; nobody may show a page inside of theirs.
const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (
        HeaderName::from_static("permissions-policy"),
        HeaderValue::from_static("camera=(), geolocation=(), microphone=()"),
    ),
];

/// How long something may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The other end of a connection.
    pub(crate) connection: ConnectionTimeouts,
    /// Until a page is made, with all that it waits for.
    pub(crate) page: Duration,
}

impl Timeouts {
    /// Those of a replica.
    pub(crate) const DEFAULT: Timeouts =
        Timeouts { connection: ConnectionTimeouts::DEFAULT, page: Duration::from_secs(8) };
}

/// What all pages share. Clones share it.
#[derive(Clone)]
pub(crate) struct Web {
    router: Router,
    /// Streams of events that are open.
    streams: Pool,
    /// Outputs of workers that pages read.
    outputs: Outputs,
    /// Changes that were rendered for a stream lately.
    rendered: events::Rendered,
    /// Placements that were read from the log lately.
    folds: timeline::Folds,
    /// Estimates that were made lately.
    front_reasons: Estimates<(), cluster::FrontReasons>,
    queue_starts: Estimates<(), cluster::QueueStarts>,
    explanations: Estimates<JobId, Option<JobExplanation>>,
    /// What readers have not taken of their answers.
    unwritten: Ledger,
    timeouts: Timeouts,
    /// The drill that runs, as this replica was told.
    drills: Drills,
    /// What this replica counts of its calls.
    metrics: ReplicaMetrics,
    /// What it has spent of the error budgets.
    objectives: ObjectiveAccount,
    /// Where pages that are denied are told.
    recorder: CallRecorder,
}

impl Web {
    pub(crate) fn new(shared: Shared, timeouts: Timeouts) -> Web {
        let Shared { router, unwritten, drills, objectives, recorder, .. } = shared;
        let (streams, outputs) = (events::places(), output::places());
        let (rendered, folds) = (events::Rendered::default(), timeline::Folds::default());
        let metrics = ReplicaMetrics::default();
        Web {
            router,
            streams,
            outputs,
            rendered,
            folds,
            front_reasons: Estimates::new(1, (1, 1)),
            queue_starts: Estimates::new(1, (1, 1)),
            explanations: Estimates::weighed(
                (jobs::EXPLANATIONS_KEPT, jobs::EXPLANATIONS_BYTES),
                jobs::EXPLANATIONS_MADE,
                jobs::explanation_bytes,
            ),
            unwritten,
            timeouts,
            drills,
            metrics,
            objectives,
            recorder,
        }
    }

    /// The same with what is counted there.
    pub(crate) fn counting(self, metrics: ReplicaMetrics) -> Web {
        Web { metrics, ..self }
    }

    pub(crate) fn security(&self) -> &Security {
        self.router.security()
    }

    pub(crate) fn recorder(&self) -> &CallRecorder {
        &self.recorder
    }

    pub(crate) fn connection_timeouts(&self) -> ConnectionTimeouts {
        self.timeouts.connection
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.router.engine()
    }

    /// Answers with a page that has no past.
    async fn answer(
        &self,
        reader: Reader,
        bytes: usize,
        make: impl FnOnce(&Scene) -> Result<String, Problem> + Send + 'static,
    ) -> Result<Response, Problem> {
        self.made(Origin { reader, travel: None, past: None }, bytes, make).await
    }

    /// Makes a page in its reader's turn, on a thread for such work and of the state of the past, or of the one that is there by
    /// then; the turn ends with the work, also where the reader has gone away. `bytes` is about what its rows take.
    async fn made(
        &self,
        origin: Origin,
        bytes: usize,
        make: impl FnOnce(&Scene) -> Result<String, Problem> + Send + 'static,
    ) -> Result<Response, Problem> {
        let Origin { reader, travel, past } = origin;
        let web = self.clone();
        let make = move || {
            let state = match &past {
                Some(past) => Reading::clone(past),
                None => present(web.engine()),
            };
            let of = AsOf::of(&state);
            let page = make(&Scene { web, state, reader, travel });
            // Its turn at the past is held until then.
            drop(past);
            Ok(page.map(|page| (page, of)))
        };
        let mut made = self.router.page(reader.account(), bytes, make).await?;
        let memory = made.extensions_mut().remove::<AnswerMemory>();
        let (page, of) = made.into_inner()?;
        let mut response = html(StatusCode::OK, page);
        response.extensions_mut().insert(of);
        if let Some(memory) = memory {
            response.extensions_mut().insert(Attachment::Memory(memory));
        }
        Ok(response)
    }

    /// The answer with a body that is counted until it is written, and keeps what goes with it until then.
    fn metered(&self, mut response: Response, peer: Option<&Peer>) -> Response {
        let kept = response.extensions_mut().remove::<Attachment>();
        let is_stream = matches!(kept, Some(Attachment::Place(_)));
        let owed = peer.filter(|_| !is_stream).map(Peer::owes);
        let principal = peer.map_or(Principal::Plaintext, |peer| peer.info.principal);
        let (ledger, account) = (self.unwritten.clone(), Account::of(&principal));
        let counted = |body: Body| Metered::new(tonic::body::Body::new(body), ledger, account, (kept, owed));
        response.map(|body: Body| Body::new(counted(body)))
    }
}

#[cfg(test)]
impl Web {
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.unwritten.bytes()
    }

    pub(crate) fn open_streams(&self) -> u64 {
        self.streams.held()
    }

    /// Every turn that there is, until it is dropped.
    pub(crate) async fn all_turns(&self) -> Vec<crate::turns::QueuePermit> {
        let mut turns = Vec::new();
        while let Ok(turn) = tokio::time::timeout(
            Timeouts::DEFAULT.connection.first_byte / 50,
            self.router.costly(Account::of(&Principal::Plaintext)),
        )
        .await
        {
            turns.extend(turn.ok());
        }
        turns
    }
}

/// Which state an answer was made of; among the extensions of a response.
#[derive(Clone, Copy, Debug)]
struct AsOf {
    cluster: Option<ClusterId>,
    generation: u32,
    log_index: u64,
}

impl AsOf {
    fn of(state: &Reading) -> AsOf {
        AsOf {
            cluster: state.cluster().map(|known| known.cluster),
            generation: state.generation(),
            log_index: state.log_index().0,
        }
    }

    /// The tag of an answer that this release makes of this state and of nothing else. None before there is a cluster: states of
    /// two clusters would have the same one then.
    fn tag(self) -> Option<String> {
        let AsOf { cluster, generation, log_index } = self;
        let release = env!("CARGO_PKG_VERSION");
        cluster.map(|cluster| format!("\"{cluster}-{generation}-{log_index}-{release}\""))
    }
}

/// What is kept until an answer is written; among the extensions of a response.
#[derive(Clone, Debug)]
enum Attachment {
    /// The memory of a page.
    Memory(#[expect(dead_code, reason = "it is held")] AnswerMemory),
    /// The place of a stream.
    Place(#[expect(dead_code, reason = "it is held")] Arc<PoolPermit>),
}

/// Where a page comes from.
struct Origin {
    reader: Reader,
    /// How it leads to other moments; none where it has no past.
    travel: Option<TimeTravel>,
    /// The state of the past with its turn; none for the present.
    past: Option<Fresh>,
}

/// What a page is made of: the state, and for whom.
struct Scene {
    web: Web,
    state: Reading,
    reader: Reader,
    travel: Option<TimeTravel>,
}

impl Scene {
    fn engine(&self) -> &Engine {
        self.web.engine()
    }

    fn visibility(&self) -> Visibility {
        self.reader.visibility()
    }

    fn frame(&self) -> Frame {
        let (is_ready, what) = readiness(self.engine());
        let later = self.state.log_time().plus_ms(STEP_MS);
        let has_later = later <= self.engine().log_time();
        let travel = self.travel.clone().map(|travel| TimeTravel { has_later, ..travel });
        // Whether the replica is ready says nothing of what is in its archive.
        let is_past = self.state.is_past();
        Frame {
            freshness: freshness(self.engine(), &self.state),
            region: self.engine().info().region.to_string(),
            reader: self.reader.0.to_string(),
            not_ready: (!is_ready && !is_past).then_some(what),
            travel,
        }
    }
}

fn waits_too_long(reader: Reader) -> Refusal {
    let account = reader.account();
    let text = format!("{account} has other costly reads before this one, and its time was over; try again");
    Refusal::new(RefusalCode::Overloaded, text).with("retry_after_ms", 1_000).with("account", account)
}

/// Who reads; among the extensions of every request that has passed.
#[derive(Clone, Copy, Debug)]
struct Reader(Principal);

impl Reader {
    fn account(self) -> Account {
        Account::of(&self.0)
    }

    fn visibility(self) -> Visibility {
        Visibility::of(&self.0)
    }

    fn caller(self) -> Caller {
        Caller::reading(self.0, Instant::now() + Timeouts::DEFAULT.page)
    }
}

/// Why there is no page.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    title: &'static str,
    sentence: String,
    /// Parameters of the address that are wrong.
    fields: Vec<(String, String)>,
    /// The form that was filled in so.
    form: Option<Box<JobQuery>>,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, sentence: impl Into<String>) -> Problem {
        Problem { status, title, sentence: sentence.into(), fields: Vec::new(), form: None }
    }

    fn field(field: &str, text: impl Into<String>) -> Problem {
        Problem::fields(vec![(field.to_owned(), text.into())])
    }

    fn fields(fields: Vec<(String, String)>) -> Problem {
        let sentence = "The address asks for something that cannot be read.";
        Problem { fields, ..Problem::new(StatusCode::BAD_REQUEST, "This address is wrong", sentence) }
    }
}

impl Problem {
    /// The same with the form in which something was wrong.
    fn with_form(self, query: &JobQuery) -> Problem {
        let is_of_form = self.status == StatusCode::BAD_REQUEST;
        Problem { form: is_of_form.then(|| Box::new(query.clone())), ..self }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        to_status(&refusal).into()
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Problem {
        let refused = Refused::from_status(&status);
        let sentence = refused.message.clone();
        match refused.code {
            Some(RefusalCode::InvalidField) => Problem::fields(
                refused.violations.into_iter().map(|v| (parameter(&v.field), v.description)).collect(),
            ),
            Some(RefusalCode::PageTokenInvalid) => Problem::field("page", sentence),
            Some(RefusalCode::JobNotFound | RefusalCode::NodeNotFound) => {
                Problem::new(StatusCode::NOT_FOUND, "Not found", sentence)
            }
            Some(RefusalCode::PermissionDenied) => {
                Problem::new(StatusCode::FORBIDDEN, "Not allowed", sentence)
            }
            Some(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Not now", sentence),
            None => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "This page failed", sentence),
        }
    }
}

/// The parameter of an address that stands for a field of a filter.
fn parameter(field: &str) -> String {
    let field = field.strip_prefix("filter.").unwrap_or(field);
    match field.split_once('[').map_or(field, |(field, _)| field) {
        past if past.starts_with("read.past") => "at".to_owned(),
        "name_prefix" => "name".to_owned(),
        "label_selector" => "labels".to_owned(),
        "phases" => "phase".to_owned(),
        "tiers" => "tier".to_owned(),
        "page_token" => "page".to_owned(),
        "array_id" => "array".to_owned(),
        field => field.to_owned(),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let page = muster_page::problem(self.title, &self.sentence, &self.fields, self.form.as_deref());
        let mut response = html(self.status, page);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::FORBIDDEN {
            response.extensions_mut().insert(denied::Reason(self.sentence));
        }
        response
    }
}

fn html(status: StatusCode, page: String) -> Response {
    let mut response = (status, page).into_response();
    let kind = HeaderValue::from_static(HTML_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The routes of all pages. They answer every address that nothing else does.
pub(crate) fn routes(web: Web) -> Routes {
    let mut routes = Routes::new()
        .route("/", get(cluster::overview))
        .route("/jobs", get(jobs::list))
        .route("/jobs/{id}", get(jobs::one))
        .route("/jobs/{id}/output", get(output::stream))
        .route("/cluster", get(cluster::page))
        .route("/queues", get(cluster::queues))
        .route("/nodes", get(nodes::list))
        .route("/nodes/{name}", get(nodes::one))
        .route("/fleet", get(nodes::fleet))
        .route("/fleet/map", get(nodes::map))
        .route("/timeline", get(timeline::page))
        .route("/plan", get(plan::page))
        .route("/events", get(events::page))
        .route("/events/stream", get(events::stream));
    for asset in ASSETS {
        routes =
            routes.route(asset.path, get(move |headers: HeaderMap| async move { file(&asset, &headers) }));
    }
    routes.fallback(missing).layer(from_fn_with_state(web.clone(), admit)).with_state(web)
}

async fn missing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "Not found", "There is no such page.")
}

/// A file; a browser that has it already is told so.
fn file(asset: &Asset, headers: &HeaderMap) -> Response {
    let tag = format!("\"{:08x}\"", crc32fast::hash(asset.content.as_bytes()));
    tagged(headers, &tag, asset.media_type).unwrap_or_else(|| {
        let mut response = asset.content.into_response();
        tag_with(&mut response, &tag, asset.media_type);
        response
    })
}

/// The answer to a browser that has what is asked for already, by its tag.
fn tagged(headers: &HeaderMap, tag: &str, media_type: &'static str) -> Option<Response> {
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    is_known.then(|| {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        tag_with(&mut response, tag, media_type);
        response
    })
}

fn tag_with(response: &mut Response, tag: &str, media_type: &'static str) {
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        own.insert(header::ETAG, tag);
    }
}

/// Lets a request pass, or answers it with the reason why not. A request has one time for everything that it waits for.
async fn admit(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned();
    let mut response = match reader(&web, &request) {
        Ok(reader) => {
            request.extensions_mut().insert(reader);
            let answered = tokio::time::timeout(web.timeouts.page, next.run(request)).await;
            answered.unwrap_or_else(|_| Problem::from(waits_too_long(reader)).into_response())
        }
        Err(problem) => problem.into_response(),
    };
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    web.metered(response, peer.as_ref())
}

/// Every answer of the listener has the headers of a page.
pub(crate) async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}

/// Who reads, where that is allowed.
fn reader(web: &Web, request: &Request) -> Result<Reader, Problem> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = "Pages are only read: GET and HEAD. Changes are made with the API and with `muster`.";
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Not allowed", text));
    }
    let length = request.uri().path_and_query().map_or(0, |address| address.as_str().len());
    if length > ADDRESS_BYTES_MAX {
        let text = format!("The address has {length} bytes; {ADDRESS_BYTES_MAX} are read.");
        return Err(Problem::new(StatusCode::URI_TOO_LONG, "This address is too long", text));
    }
    let peer = request.extensions().get::<Peer>().map(|peer| peer.info.principal);
    let Some(principal) = peer else {
        return Err(Problem::new(StatusCode::FORBIDDEN, "Not allowed", "The connection has no peer."));
    };
    if principal == Principal::Plaintext && !is_asked_for_by_address(request) {
        let text = "Without certificates the pages are asked for by an IP address or as localhost: a name could be \
                    another site's, whose scripts would read them.";
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "Not under this name", text));
    }
    if is_of_another_site(request.headers()) {
        let text = "Another site asks for this. Its links open pages; it may not have parts of them.";
        return Err(Problem::new(StatusCode::FORBIDDEN, "Not allowed", text));
    }
    if CALLS.iter().any(|call| may_call(call, &principal) != Some(true)) {
        let text =
            format!("{principal} may not read what the pages show; a certificate of a user is needed.");
        return Err(Problem::new(StatusCode::FORBIDDEN, "Not allowed", text));
    }
    if let Some(left) = web.engine().consensus().traffic().clients_refused() {
        let text =
            format!("This replica is silent for a drill, for {} s; the others answer.", left.as_secs());
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Not now", text));
    }
    Ok(Reader(principal))
}

/// Whether a browser asks on behalf of another site, and not because its reader follows a link: that would use the reader's turns
/// and streams.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let said = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    said("sec-fetch-site").is_some_and(|site| site != b"same-origin" && site != b"none")
        && said("sec-fetch-mode") != Some(b"navigate")
}

/// Whether the host that a request names is an address or this machine: a site whose name was made to point here cannot
/// name it so.
fn is_asked_for_by_address(request: &Request) -> bool {
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let Some(host): Option<Authority> = request.uri().authority().cloned().or(named) else { return false };
    let host = host.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiConfig;
    use crate::sample;
    use futures::FutureExt as _;
    use muster_transport::{PeerName, Role, ShortName};
    use muster_types::ClusterId;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reader_who_goes_away_gets_its_turn_back_when_the_work_is_over() {
        let shared = Shared::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        let web = Web::new(shared, Timeouts::DEFAULT);
        let short = |text: &str| ShortName::new(text).expect("a name");
        let role = Role::TenantClient { tenant: short("vision"), user: short("ada") };
        let reader = Reader(Principal::Named(PeerName { cluster: ClusterId(1), role }));
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let make = move |_: &Scene| {
            let _ = begun.send(());
            let _ = goes_on.recv();
            Ok(String::new())
        };
        let own = web.clone();
        let asked = tokio::spawn(async move { own.answer(reader, 1, make).await.map(drop).is_ok() });
        begins.await.expect("it is made");
        asked.abort();
        assert!(asked.await.is_err(), "the reader has gone");
        let mut next = Box::pin(web.router.costly(reader.account()));
        assert!(next.as_mut().now_or_never().is_none(), "the work goes on in its turn");
        go_on.send(()).expect("it waits");
        assert!(next.await.is_ok());
    }
}
