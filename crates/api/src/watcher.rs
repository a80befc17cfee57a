//! Watches: the present first, then every change behind it. One [`Watcher`] serves them all; what a watch
//! is of, and how that is expressed, is its [`Topic`].
//!
//! **Invariant:** between its messages a watch holds no version of the state: it may last for days,
//! and a version held keeps every row alive that was replaced since.

use futures::StreamExt;
use futures::stream::BoxStream;
use muster_engine::{Change, Engine, Event, Subscription, WatchPosition};
use muster_state::{NodeRow, State};
use muster_types::{ClusterId, LogIndex, Name, NodeSpec, Refusal, RefusalCode, Violation};
use muster_wire::shared::{Part, Shared, encoded_len};
use muster_wire::status::{METADATA_RESUME_TOKEN, to_status};
use muster_wire::token::{ResumeToken, filter_digest};
use muster_wire::v1;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::arrays;
use crate::forward::Router;
use crate::job_filter::{Candidate, JobFilter};
use crate::read::{cluster, invalid};
use crate::render::{self, Detail};
use crate::rendered::Rendered;
use crate::shares::{Account, Pool, PoolPermit};
use crate::turns::QueuePermit;
use crate::visibility::Visibility;

/// Watches at once.
const WATCHES_MAX: u64 = 8_192;
/// Of one tenant, or of one certificate that is of no tenant.
const WATCHES_EACH_MAX: u64 = 1_024;
/// The present is sent within this time, and `SYNC_ROW_MAX` for every row: while it is, the version of the state that it
/// is of is held.
const SYNC_MAX: Duration = Duration::from_secs(60);
const SYNC_ROW_MAX: Duration = Duration::from_millis(2);
/// Queues one watch may name.
const WATCHED_QUEUES_MAX: usize = 1_000;
/// Messages rendered for a watcher that it has not taken. Few: one can carry a gang of thousands; a
/// slow watcher waits in the hub, which is shared.
const EVENTS_WAITING_MAX: usize = 32;
/// Messages above this take memory of their account; the number of smaller ones is bounded for each watcher.
const SMALL_BYTES: usize = 1 << 10;
/// Rows of the present that are looked at in one turn, and about what is rendered in it.
const ROWS_AT_ONCE: usize = 256;
const RENDERED_AT_ONCE: usize = 16 << 10;
/// How long a watcher may take nothing before it is cut.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Between two messages that only say that nothing has changed: every round of the log would make
/// one for every watcher.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(250);

/// A message with the memory that it takes until the client takes it; without for a small one.
type Item<T> = (Result<Shared<<T as Topic>::Message>, Status>, Option<QueuePermit>);
type ToClient<T> = mpsc::Sender<Item<T>>;
/// What a client gets.
pub(crate) type Messages<M> = BoxStream<'static, Result<Shared<M>, Status>>;

/// What one message of a watch says.
pub(crate) enum Body<R> {
    /// Added or changed.
    Changed(R),
    /// The present is complete.
    SyncEnd,
    /// Nothing changed up to here.
    Bookmark,
    /// Dropped from the state: an id.
    Forgotten(String),
}

/// How much of a change a watch wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Nothing,
    /// All of it, as every other watch of the kind that wants it: it is rendered once for all of them.
    Whole,
    /// What its own filter leaves of it.
    Part,
}

/// What a watch is of.
pub(crate) trait Topic: Send + Sync + 'static {
    /// What is watched, as clients see it.
    type Row: Send;
    /// As it goes to the client.
    type Message: Part;

    /// Of all that narrows the watch down; no two kinds of watch have one in common.
    fn filter(&self) -> u64;

    /// What is there: each row, or none for one that is not wanted, so that looking at many of those can be interrupted.
    fn present<'a>(&'a self, present: &'a State) -> Box<dyn Iterator<Item = Option<Self::Row>> + Send + 'a>;

    /// By the state as it is now: names of nodes never change, and tenants are where the policy in force has them.
    fn wants(&self, engine: &Engine, change: &Change) -> Want;

    /// What is to be said of a change that is wanted: the same for everybody who wants it whole.
    fn body(&self, engine: &Engine, change: &Change) -> Option<Body<Self::Row>>;

    /// A message; without a body the part of it that is the client's own.
    fn message(resume_token: String, log_index: u64, body: Option<Body<Self::Row>>) -> Self::Message;

    /// What was rendered of such a change for watches like this one.
    fn rendered<'a>(&self, watches: &'a Watches, view: &State, change: &Change) -> &'a Rendered;
}

fn whole(is_wanted: bool) -> Want {
    if is_wanted { Want::Whole } else { Want::Nothing }
}

/// Of some jobs.
pub(crate) struct JobTopic {
    filter: JobFilter,
    /// Whether the present is left out.
    skips_present: bool,
    /// Whose jobs it shows whole.
    visibility: Visibility,
    detail: Detail,
}

impl JobTopic {
    pub(crate) fn new(
        filter: JobFilter,
        skips_present: bool,
        (detail, visibility): (Detail, Visibility),
    ) -> JobTopic {
        JobTopic { filter, skips_present, visibility, detail }
    }

    /// A token of a watch with this filter that goes on behind `at`.
    pub(crate) fn resume_behind(&self, view: &State, at: LogIndex) -> Result<String, Status> {
        let generation = view.cluster().map_or(0, |c| c.generation);
        Ok(ResumeToken::behind(generation, at).encode(cluster(view)?, self.filter()))
    }
}

impl Topic for JobTopic {
    type Row = v1::Job;
    type Message = v1::WatchJobsResponse;

    fn filter(&self) -> u64 {
        self.filter.digest()
    }

    fn present<'a>(&'a self, present: &'a State) -> Box<dyn Iterator<Item = Option<v1::Job>> + Send + 'a> {
        if self.skips_present {
            return Box::new(std::iter::empty());
        }
        let shown = (self.detail, self.visibility);
        let job = move |job: Candidate<'_>| render::job(present, job.id, job.row, job.spec, shown);
        let jobs = self.filter.present(present).map(move |candidate| candidate.map(job));
        let members = self.filter.named().filter_map(move |id| {
            self.filter.shown_member(present, id)?;
            Some(arrays::member(present, id, shown))
        });
        Box::new(jobs.chain(members))
    }

    fn wants(&self, engine: &Engine, change: &Change) -> Want {
        match change {
            // Also one whose labels, tier or tenant match no more: a watch that selects by them has to show it.
            Change::Job { id, row, spec, metadata, before } => {
                let (tier, tenant) = (spec.tier, &spec.tenant);
                let job = Candidate { id: *id, row, spec, tier, tenant, metadata: metadata.as_ref() };
                let was = before.as_ref().map(|before| Candidate {
                    tier: before.tier,
                    tenant: &before.tenant,
                    metadata: before.metadata.as_ref(),
                    ..job
                });
                let follows = |job| self.filter.follows(|| engine.view(), job);
                whole(follows(job) || was.is_some_and(follows))
            }
            Change::JobForgotten(id) => whole(self.filter.may_have_shown(*id)),
            Change::Node { .. }
            | Change::NodeForgotten { .. }
            | Change::ScheduleSuspended { .. }
            | Change::Queues(_) => Want::Nothing,
        }
    }

    fn body(&self, engine: &Engine, change: &Change) -> Option<Body<v1::Job>> {
        match change {
            // Names of nodes never change, and a view of now knows every node of the change.
            Change::Job { id, row, spec, metadata, .. } => {
                let shown = (self.detail, self.visibility);
                let mut job = render::job(&engine.view(), *id, row, spec, shown);
                // What it carried then: by now it may carry something else.
                job.labels = metadata
                    .as_ref()
                    .map(|carried| carried.labels.clone().into_iter().collect())
                    .unwrap_or_default();
                Some(Body::Changed(job))
            }
            Change::JobForgotten(id) => Some(Body::Forgotten(id.to_string())),
            Change::Node { .. }
            | Change::NodeForgotten { .. }
            | Change::ScheduleSuspended { .. }
            | Change::Queues(_) => None,
        }
    }

    fn message(resume_token: String, log_index: u64, body: Option<Body<v1::Job>>) -> v1::WatchJobsResponse {
        use v1::watch_jobs_response::Event;
        let event = body.map(|body| match body {
            Body::Changed(job) => Event::Changed(job),
            Body::SyncEnd => Event::SyncEnd(v1::SyncEnd {}),
            Body::Bookmark => Event::Bookmark(v1::Bookmark {}),
            Body::Forgotten(id) => Event::Forgotten(id),
        });
        v1::WatchJobsResponse { resume_token, log_index, event }
    }

    fn rendered<'a>(&self, watches: &'a Watches, view: &State, change: &Change) -> &'a Rendered {
        match change {
            Change::Job { spec, .. } if !self.visibility.sees(view, &spec.tenant) => match self.detail {
                Detail::Full => &watches.redacted_jobs,
                Detail::Basic => &watches.redacted_basic_jobs,
            },
            _ => match self.detail {
                Detail::Full => &watches.jobs,
                Detail::Basic => &watches.basic_jobs,
            },
        }
    }
}

/// Of the nodes of a region.
pub(crate) struct NodeTopic {
    /// Empty for all.
    region: String,
    /// Whether it names operators.
    visibility: Visibility,
}

impl NodeTopic {
    pub(crate) fn new(region: String, visibility: Visibility) -> NodeTopic {
        NodeTopic { region, visibility }
    }

    fn covers(&self, spec: &NodeSpec) -> bool {
        self.region.is_empty() || *spec.region == *self.region
    }
}

impl Topic for NodeTopic {
    type Row = v1::Node;
    type Message = v1::WatchNodesResponse;

    fn filter(&self) -> u64 {
        filter_digest(["nodes", &self.region])
    }

    fn present<'a>(&'a self, present: &'a State) -> Box<dyn Iterator<Item = Option<v1::Node>> + Send + 'a> {
        let node = |(id, row): (&_, &NodeRow)| {
            self.covers(&row.spec).then(|| self.visibility.node(render::node(present, *id, row)))
        };
        Box::new(present.nodes().iter().map(node))
    }

    fn wants(&self, _: &Engine, change: &Change) -> Want {
        match change {
            // Also one that leaves the region: who watches only that has to hear of it.
            Change::Node { row, before, .. } => {
                let left = before.as_ref().is_some_and(|spec| self.covers(spec));
                whole(left || self.covers(&row.spec))
            }
            Change::NodeForgotten { spec, .. } => whole(self.covers(spec)),
            Change::Job { .. }
            | Change::JobForgotten(_)
            | Change::ScheduleSuspended { .. }
            | Change::Queues(_) => Want::Nothing,
        }
    }

    fn body(&self, _engine: &Engine, change: &Change) -> Option<Body<v1::Node>> {
        match change {
            Change::Node { id, row, restriction, gangs, .. } => {
                let gangs = gangs.iter().copied();
                let node = render::node_with(*id, row, restriction.as_deref(), gangs);
                Some(Body::Changed(self.visibility.node(node)))
            }
            Change::NodeForgotten { id, .. } => Some(Body::Forgotten(id.to_string())),
            Change::Job { .. }
            | Change::JobForgotten(_)
            | Change::ScheduleSuspended { .. }
            | Change::Queues(_) => None,
        }
    }

    fn message(resume_token: String, log_index: u64, body: Option<Body<v1::Node>>) -> v1::WatchNodesResponse {
        use v1::watch_nodes_response::Event;
        let event = body.map(|body| match body {
            Body::Changed(node) => Event::Changed(node),
            Body::SyncEnd => Event::SyncEnd(v1::SyncEnd {}),
            Body::Bookmark => Event::Bookmark(v1::Bookmark {}),
            Body::Forgotten(id) => Event::Forgotten(id),
        });
        v1::WatchNodesResponse { resume_token, log_index, event }
    }

    fn rendered<'a>(&self, watches: &'a Watches, _: &State, _: &Change) -> &'a Rendered {
        match self.visibility {
            Visibility::All => &watches.nodes,
            // The same for every tenant.
            Visibility::Below(_) | Visibility::Nobodys => &watches.redacted_nodes,
        }
    }
}

/// Of the queues of some tenants.
pub(crate) struct QueueTopic {
    /// Empty for all.
    tenants: BTreeSet<Name>,
}

impl QueueTopic {
    pub(crate) fn new(tenants: &[String]) -> Result<QueueTopic, Status> {
        if tenants.len() > WATCHED_QUEUES_MAX {
            let (count, most) = (tenants.len() as u64, WATCHED_QUEUES_MAX as u64);
            return Err(invalid(vec![Violation::limit("tenants", count, 0, most)]));
        }
        let mut names = BTreeSet::new();
        let mut violations = Vec::new();
        for (place, text) in tenants.iter().enumerate() {
            match Name::new(text) {
                Some(name) => _ = names.insert(name),
                None => {
                    let text = format!("must be {}", muster_types::NAME_RULE);
                    violations.push(Violation::new(format!("tenants[{place}]"), text));
                }
            }
        }
        if violations.is_empty() { Ok(QueueTopic { tenants: names }) } else { Err(invalid(violations)) }
    }

    fn covers(&self, tenant: &Name) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }
}

impl Topic for QueueTopic {
    type Row = v1::TenantChanges;
    type Message = v1::WatchTenantsResponse;

    fn filter(&self) -> u64 {
        filter_digest(["queues"].into_iter().chain(self.tenants.iter().map(Name::as_str)))
    }

    fn present<'a>(
        &'a self,
        present: &'a State,
    ) -> Box<dyn Iterator<Item = Option<v1::TenantChanges>> + Send + 'a> {
        let names = present.queues_behind(None, usize::MAX).into_iter().filter(move |name| self.covers(name));
        let capacity = present.capacity();
        Box::new(names.map(move |name| {
            let changed = vec![render::queue(&name, &present.queue(&name)?, &capacity)];
            Some(v1::TenantChanges { changed, forgotten: Vec::new() })
        }))
    }

    fn wants(&self, _: &Engine, change: &Change) -> Want {
        match change {
            Change::Queues(_) if self.tenants.is_empty() => Want::Whole,
            Change::Queues(queues) if queues.iter().any(|(name, _)| self.tenants.contains(name)) => {
                Want::Part
            }
            _ => Want::Nothing,
        }
    }

    fn body(&self, engine: &Engine, change: &Change) -> Option<Body<v1::TenantChanges>> {
        let Change::Queues(queues) = change else { return None };
        // Shares are parts of the fleet as it is now.
        let capacity = engine.view().capacity();
        let mut changes = v1::TenantChanges::default();
        for (name, row) in queues.iter().filter(|(name, _)| self.covers(name)) {
            match row {
                Some(row) => changes.changed.push(render::queue(name, row, &capacity)),
                None => changes.forgotten.push(name.to_string()),
            }
        }
        Some(Body::Changed(changes))
    }

    fn message(
        resume_token: String,
        log_index: u64,
        body: Option<Body<v1::TenantChanges>>,
    ) -> v1::WatchTenantsResponse {
        use v1::watch_tenants_response::Event;
        let event = body.map(|body| match body {
            Body::Changed(changes) => Event::Changed(changes),
            Body::SyncEnd => Event::SyncEnd(v1::SyncEnd {}),
            Body::Bookmark => Event::Bookmark(v1::Bookmark {}),
            Body::Forgotten(tenant) => {
                Event::Changed(v1::TenantChanges { changed: Vec::new(), forgotten: vec![tenant] })
            }
        });
        v1::WatchTenantsResponse { resume_token, log_index, event }
    }

    fn rendered<'a>(&self, watches: &'a Watches, _: &State, _: &Change) -> &'a Rendered {
        &watches.queues
    }
}

/// The watches that this replica serves.
#[derive(Clone)]
pub(crate) struct Watches {
    places: Pool,
    jobs: Arc<Rendered>,
    /// As those see them who are not of the job's tenant.
    redacted_jobs: Arc<Rendered>,
    /// The same in the basic view.
    basic_jobs: Arc<Rendered>,
    redacted_basic_jobs: Arc<Rendered>,
    nodes: Arc<Rendered>,
    /// Without the names of operators.
    redacted_nodes: Arc<Rendered>,
    queues: Arc<Rendered>,
    /// By which the present is sent in time.
    clock: fn() -> Instant,
}

impl Watches {
    pub(crate) fn new() -> Watches {
        let places = Pool::new(WATCHES_MAX, WATCHES_EACH_MAX);
        Watches {
            places,
            jobs: Arc::default(),
            redacted_jobs: Arc::default(),
            basic_jobs: Arc::default(),
            redacted_basic_jobs: Arc::default(),
            nodes: Arc::default(),
            redacted_nodes: Arc::default(),
            queues: Arc::default(),
            clock: Instant::now,
        }
    }

    /// Begins one, with the present or behind a token.
    pub(crate) fn open<T: Topic>(
        &self,
        router: &Router,
        topic: T,
        resume_token: &str,
        account: Account,
    ) -> Result<Messages<T::Message>, Status> {
        let place = self.places.enter(account, 1).ok_or_else(|| {
            let text = format!(
                "{account} has as many watches open at this replica as its share allows; try another replica"
            );
            to_status(&Refusal::new(RefusalCode::Overloaded, text).with("account", account))
        })?;
        let watcher = Watcher::open(self, router, topic, resume_token, (account, place))?;
        // One more than events may take: the place of the last word.
        let (to_client, events) = mpsc::channel(EVENTS_WAITING_MAX + 1);
        tokio::spawn(watcher.run(to_client));
        // What it took of its account's memory is free again once the message is encoded.
        Ok(ReceiverStream::new(events).map(|(message, _)| message).boxed())
    }
}

struct Watcher<T> {
    watches: Watches,
    router: Router,
    account: Account,
    engine: Engine,
    changes: Subscription,
    /// The present, until it is sent.
    present: Option<Arc<State>>,
    topic: T,
    tokens: Tokens,
    /// Everything wanted up to here has been delivered; none before the present is complete.
    reached: Option<WatchPosition>,
    _place: PoolPermit,
}

/// Makes the tokens of one watch.
struct Tokens {
    cluster: ClusterId,
    generation: u32,
    filter: u64,
}

impl Tokens {
    fn at(&self, position: WatchPosition) -> String {
        let token = ResumeToken {
            generation: self.generation,
            log_index: position.log_index,
            events: position.ordinal,
        };
        token.encode(self.cluster, self.filter)
    }

    /// The place a token names; another cluster's or another watch's is the caller's mistake, and
    /// stays one at every replica.
    fn position(&self, text: &str) -> Result<WatchPosition, Status> {
        let token = ResumeToken::decode(text, self.cluster, self.filter)
            .map_err(|error| invalid(vec![Violation::new("resume_token", error.to_string())]))?;
        if token.generation != self.generation {
            let text = "the cluster was rebuilt since the token was made; watch from the start";
            return Err(to_status(&Refusal::new(RefusalCode::ResumeTokenCompacted, text)));
        }
        Ok(WatchPosition { log_index: token.log_index, ordinal: token.events })
    }
}

/// Why a watch does not go on.
enum End {
    /// The client went: nobody is left to tell.
    Gone,
    Cut(Refusal),
}

impl<T: Topic> Watcher<T> {
    fn open(
        watches: &Watches,
        router: &Router,
        topic: T,
        resume_token: &str,
        (account, place): (Account, PoolPermit),
    ) -> Result<Watcher<T>, Status> {
        let engine = router.engine();
        let view = engine.view();
        let cluster = cluster(&view)?;
        let generation = view.cluster().map_or(0, |c| c.generation);
        let tokens = Tokens { cluster, generation, filter: topic.filter() };
        let (from, present, reached) = match resume_token {
            "" => (WatchPosition::after(view.log_index()), Some(view), None),
            text => {
                let from = tokens.position(text)?;
                (from, None, Some(from))
            }
        };
        let changes = engine.watch(from).map_err(|refusal| to_status(&refusal))?;
        let (watches, router, engine) = (watches.clone(), router.clone(), engine.clone());
        Ok(Watcher {
            watches,
            router,
            account,
            engine,
            changes,
            present,
            topic,
            tokens,
            reached,
            _place: place,
        })
    }

    /// Runs until the client goes, falls too far behind, or the replica stops; says why, and where to go on.
    async fn run(mut self, to_client: ToClient<T>) {
        let engine = self.engine.clone();
        // Taken before any event can be: the last message has its place even if the client takes nothing.
        let Ok(last_word) = to_client.clone().try_reserve_owned() else { return };
        let end = tokio::select! {
            () = to_client.closed() => End::Gone,
            end = self.follow(&to_client) => end,
            () = engine.stopping() => {
                let text = "this replica stops; watch again through another";
                End::Cut(Refusal::new(RefusalCode::ReplicaStopping, text))
            }
        };
        let End::Cut(mut refusal) = end else { return };
        if let Some(reached) = self.reached {
            refusal = refusal.with(METADATA_RESUME_TOKEN, self.tokens.at(reached));
        }
        last_word.send((Err(to_status(&refusal)), None));
    }

    async fn follow(&mut self, to_client: &ToClient<T>) -> End {
        match self.try_follow(to_client).await {
            Err(end) => end,
            Ok(never) => match never {},
        }
    }

    async fn try_follow(&mut self, to_client: &ToClient<T>) -> Result<std::convert::Infallible, End> {
        if let Some(present) = self.present.take() {
            self.send_present(&present, to_client).await?;
        }
        // The place reached that the client has not been told of, and when it is to be.
        let mut untold: Option<(WatchPosition, Instant)> = None;
        let mut past = match self.changes.is_past() {
            true => Some(self.router.following_past(self.account).await.map_err(End::Cut)?),
            false => None,
        };
        loop {
            past = past.filter(|_| self.changes.is_past());
            let due = untold.map_or_else(Instant::now, |(_, due)| due);
            let next = tokio::select! {
                next = self.changes.next() => next,
                () = tokio::time::sleep_until(due), if untold.is_some() => {
                    if let Some((reached, _)) = untold.take() {
                        self.send(to_client, reached, Body::Bookmark).await?;
                    }
                    continue;
                }
            };
            let (events, reached) = next.map_err(End::Cut)?;
            let sent = self.send_events(events, to_client).await?;
            self.reached = Some(reached);
            if sent.is_some() {
                untold = None;
            }
            if sent != Some(reached) {
                let due = untold.map_or_else(|| Instant::now() + BOOKMARK_INTERVAL, |(_, due)| due);
                untold = Some((reached, due));
            }
        }
    }

    /// The place of the last event that was wanted.
    async fn send_events(
        &mut self,
        events: Vec<Event>,
        to_client: &ToClient<T>,
    ) -> Result<Option<WatchPosition>, End> {
        let mut sent = None;
        for event in events {
            let (want, at) = (self.topic.wants(&self.engine, &event.change), event.position);
            let render = || {
                let body = self.topic.body(&self.engine, &event.change)?;
                Some(T::message(String::new(), at.log_index.0, Some(body)).to_shared())
            };
            let rest = match want {
                Want::Nothing => None,
                Want::Whole => {
                    let rendered = self.topic.rendered(&self.watches, &self.engine.view(), &event.change);
                    rendered.get_or_render(at, render)
                }
                Want::Part => render(),
            };
            if let Some(rest) = rest {
                let own = T::message(self.tokens.at(at), 0, None);
                self.deliver(to_client, Shared::new(own, rest)).await?;
                (self.reached, sent) = (Some(at), Some(at));
            }
        }
        Ok(sent)
    }

    /// The present in parts: no part can be resumed behind, only the whole.
    async fn send_present(&mut self, present: &State, to_client: &ToClient<T>) -> Result<(), End> {
        let at = WatchPosition::after(present.log_index());
        let clock = self.watches.clock;
        let began = clock();
        let mut sent = 0;
        let mut rows = self.topic.present(present);
        loop {
            let (messages, is_over) = {
                let turn = self.router.costly_piece(self.account).await;
                let _turn = turn.map_err(End::Cut)?;
                some_of::<T>(&mut *rows, at.log_index.0)
            };
            for message in messages {
                self.deliver(to_client, message).await?;
                sent += 1;
                let passed = clock() - began;
                if passed > sync_max(sent) {
                    let text = format!("the present was taken too slowly: {sent} of its rows in {passed:?}");
                    return Err(End::Cut(Refusal::new(RefusalCode::Overloaded, text)));
                }
            }
            if is_over {
                break;
            }
        }
        drop(rows);
        self.send(to_client, at, Body::SyncEnd).await
    }

    /// Hands a message over, once there is memory for it.
    async fn deliver(&self, to_client: &ToClient<T>, message: Shared<T::Message>) -> Result<(), End> {
        let bytes = encoded_len(&message);
        let sending = async {
            let memory = match bytes > SMALL_BYTES {
                true => Some(self.router.memory(self.account, bytes).await.map_err(End::Cut)?),
                false => None,
            };
            to_client.send((Ok(message), memory)).await.map_err(|_| End::Gone)
        };
        tokio::time::timeout(STALL_MAX, sending).await.unwrap_or_else(|_| {
            let text = format!("nothing of the watch was taken for {} s", STALL_MAX.as_secs());
            Err(End::Cut(Refusal::new(RefusalCode::Overloaded, text)))
        })
    }

    async fn send(
        &mut self,
        to_client: &ToClient<T>,
        at: WatchPosition,
        body: Body<T::Row>,
    ) -> Result<(), End> {
        let message = T::message(self.tokens.at(at), at.log_index.0, Some(body));
        self.deliver(to_client, message.into()).await?;
        self.reached = Some(at);
        Ok(())
    }
}

/// How long it may take to send this number of rows of the present.
fn sync_max(rows: usize) -> Duration {
    SYNC_MAX + SYNC_ROW_MAX.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX))
}

/// The next rows of the present as messages, and whether there are no more behind them.
fn some_of<T: Topic>(
    rows: &mut (dyn Iterator<Item = Option<T::Row>> + Send),
    log_index: u64,
) -> (Vec<Shared<T::Message>>, bool) {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for _ in 0..ROWS_AT_ONCE {
        let Some(row) = rows.next() else { return (messages, true) };
        let Some(row) = row else { continue };
        let message: Shared<T::Message> =
            T::message(String::new(), log_index, Some(Body::Changed(row))).into();
        bytes += encoded_len(&message);
        messages.push(message);
        if bytes >= RENDERED_AT_ONCE {
            break;
        }
    }
    (messages, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_tests::{guarded, host};
    use crate::{ApiConfig, sample};
    use muster_decider::Command;
    use muster_transport::{Principal, Security};
    use muster_types::HolderId;
    use muster_wire::status::Refused;
    use std::cell::Cell;

    /// More rows than wait for a client that takes none, three times over.
    const HOSTS: u128 = 100;

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    fn clock() -> Instant {
        NOW.get().expect("the test has set it")
    }

    /// Takes a watch's rows and the end of the present, this long for each; how many came before it was cut, and why.
    async fn take(router: &Router, each: Duration) -> (u128, Option<Refused>) {
        NOW.set(Some(Instant::now()));
        let watches = Watches { clock, ..Watches::new() };
        let topic = NodeTopic::new(String::new(), Visibility::All);
        let account = Account::of(&Principal::Plaintext);
        let mut messages = watches.open(router, topic, "", account).expect("it opens");
        for taken in 0..=HOSTS {
            let message =
                guarded("a message", messages.next()).await.expect("it does not end without a word");
            if let Err(status) = message {
                return (taken, Some(Refused::from_status(&status)));
            }
            NOW.set(Some(clock() + each));
        }
        (HOSTS + 1, None)
    }

    #[tokio::test]
    async fn a_client_that_takes_the_present_too_slowly_is_cut_with_a_reason() {
        let router = Router::new(sample::leader().await, ApiConfig::DEFAULT, Security::Plaintext);
        for number in 0..HOSTS {
            let spec = host(&format!("h{number}"));
            let register =
                Command::Register { spec, holder: HolderId(number + 1), other_session_is_over: false };
            router.engine().execute(register).await.expect("a host comes");
        }
        // It takes some rows after the others, and is never silent for long.
        let (taken, refused) = take(&router, Duration::from_secs(5)).await;
        let refused = refused.expect("a version of the state would be held for as long as the client likes");
        assert!(taken < HOSTS, "{taken} messages");
        assert_eq!(refused.code, Some(RefusalCode::Overloaded), "{refused:?}");
        assert!(refused.message.contains("too slowly"), "{refused:?}");
        // All of it within the time for that number of rows.
        let (taken, refused) = take(&router, Duration::from_millis(500)).await;
        assert_eq!((taken, refused.map(|refused| refused.message)), (HOSTS + 1, None));
    }

    #[test]
    fn more_rows_may_take_longer() {
        assert_eq!(sync_max(0), SYNC_MAX);
        assert_eq!(sync_max(500_000), SYNC_MAX + Duration::from_secs(1_000));
    }
}
