//! One watch of jobs: the present first, then every change behind it.
//!
//! **Invariant:** between its messages a watch holds no version of the state: it may last for days,
//! and a version held keeps every row alive that was replaced since.

use muster_engine::{Change, Engine, Event, Subscription, WatchPosition};
use muster_state::State;
use muster_types::{ClusterId, JobId, JobSpec, Refusal, RefusalCode, Violation};
use muster_wire::convert::job_id;
use muster_wire::status::to_status;
use muster_wire::token::{ResumeToken, filter_digest};
use muster_wire::v1;
use muster_wire::v1::watch_jobs_response::Event as Body;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tonic::Status;

use crate::read::{cluster, invalid};
use crate::render::{self, Detail};

/// Jobs one watch may name.
const WATCHED_JOBS_MAX: usize = 1_000;
/// Messages rendered for a watcher that it has not taken. Few: one can carry a gang of thousands; a
/// slow watcher waits in the hub, which is shared.
pub(crate) const EVENTS_WAITING_MAX: usize = 32;
/// How long a watcher may take nothing before it is cut.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Between two messages that only say that nothing has changed: every round of the log would make
/// one for every watcher.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(250);

type ToClient = mpsc::Sender<Result<v1::WatchJobsResponse, Status>>;

pub(crate) struct Watcher {
    engine: Engine,
    changes: Subscription,
    /// The present, until it is sent.
    present: Option<Arc<State>>,
    jobs: BTreeSet<JobId>,
    tenant: String,
    tokens: Tokens,
    _place: OwnedSemaphorePermit,
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

fn job_ids(texts: &[String]) -> Result<BTreeSet<JobId>, Status> {
    if texts.len() > WATCHED_JOBS_MAX {
        return Err(invalid(vec![Violation::limit(
            "job_ids",
            texts.len() as u64,
            0,
            WATCHED_JOBS_MAX as u64,
        )]));
    }
    let mut jobs = BTreeSet::new();
    let mut violations = Vec::new();
    for (place, text) in texts.iter().enumerate() {
        match job_id(&format!("job_ids[{place}]"), text) {
            Ok(id) => drop(jobs.insert(id)),
            Err(violation) => violations.push(violation),
        }
    }
    if violations.is_empty() { Ok(jobs) } else { Err(invalid(violations)) }
}

impl Watcher {
    pub(crate) fn open(
        engine: &Engine,
        message: &v1::WatchJobsRequest,
        place: OwnedSemaphorePermit,
    ) -> Result<Watcher, Status> {
        let jobs = job_ids(&message.job_ids)?;
        let view = engine.view();
        let cluster = cluster(&view)?;
        let generation = view.cluster().map_or(0, |c| c.generation);
        let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        let filter = filter_digest(names.iter().map(String::as_str).chain(["|", &message.tenant]));
        let tokens = Tokens { cluster, generation, filter };
        let (from, present) = match message.resume_token.as_str() {
            "" => (WatchPosition::after(view.log_index()), Some(view)),
            text => (tokens.position(text)?, None),
        };
        let changes = engine.watch(from).map_err(|refusal| to_status(&refusal))?;
        let tenant = message.tenant.clone();
        Ok(Watcher { engine: engine.clone(), changes, present, jobs, tenant, tokens, _place: place })
    }

    fn wants(&self, id: JobId, spec: &JobSpec) -> bool {
        (self.jobs.is_empty() || self.jobs.contains(&id))
            && (self.tenant.is_empty() || *spec.tenant == *self.tenant)
    }

    /// Runs until the client goes, falls too far behind, or the replica stops; says why, if it can.
    pub(crate) async fn run(mut self, to_client: ToClient) {
        let engine = self.engine.clone();
        let ended = tokio::select! {
            () = to_client.closed() => return,
            ended = self.follow(&to_client) => ended,
            () = engine.stopping() => {
                let text = "this replica stops; watch again through another";
                Some(to_status(&Refusal::new(RefusalCode::NotLeader, text)))
            }
        };
        if let Some(status) = ended {
            // The client may have gone or take nothing; then nobody is left to tell.
            let _ = to_client.try_send(Err(status));
        }
    }

    /// None when the client takes nothing any more.
    async fn follow(&mut self, to_client: &ToClient) -> Option<Status> {
        if let Some(present) = self.present.take() {
            self.send_present(&present, to_client).await?;
        }
        // The place reached that the client has not been told of, and when it is to be.
        let mut untold: Option<(WatchPosition, Instant)> = None;
        loop {
            let due = untold.map_or_else(Instant::now, |(_, due)| due);
            let next = tokio::select! {
                next = self.changes.next() => next,
                () = tokio::time::sleep_until(due), if untold.is_some() => {
                    if let Some((reached, _)) = untold.take() {
                        self.send(to_client, reached, Body::Bookmark(true)).await?;
                    }
                    continue;
                }
            };
            let (events, reached) = match next {
                Ok(batch) => batch,
                Err(refusal) => return Some(to_status(&refusal)),
            };
            let sent = self.send_events(events, to_client).await?;
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
    async fn send_events(&self, events: Vec<Event>, to_client: &ToClient) -> Option<Option<WatchPosition>> {
        let mut sent = None;
        for event in events {
            if let Some(body) = self.body(event.change) {
                self.send(to_client, event.position, body).await?;
                sent = Some(event.position);
            }
        }
        Some(sent)
    }

    async fn send_present(&self, present: &State, to_client: &ToClient) -> Option<()> {
        let at = WatchPosition::after(present.log_index());
        let body = |id: JobId| {
            let (row, spec) = (present.job(id)?, present.spec(id)?);
            self.wants(id, spec).then(|| Body::Changed(render::job(present, id, row, spec, Detail::Full)))
        };
        if self.jobs.is_empty() {
            for (id, _) in present.jobs().iter() {
                if let Some(body) = body(*id) {
                    self.send_unmarked(to_client, at, body).await?;
                }
            }
        } else {
            for id in &self.jobs {
                if let Some(body) = body(*id) {
                    self.send_unmarked(to_client, at, body).await?;
                }
            }
        }
        self.send(to_client, at, Body::SyncEnd(true)).await
    }

    fn body(&self, change: Change) -> Option<Body> {
        match change {
            // Names of nodes never change, and a view of now knows every node of the change.
            Change::Job { id, row, spec } => self
                .wants(id, &spec)
                .then(|| Body::Changed(render::job(&self.engine.view(), id, &row, &spec, Detail::Full))),
            Change::Forgotten(id) => {
                let wanted = self.jobs.is_empty() || self.jobs.contains(&id);
                wanted.then(|| Body::Forgotten(id.to_string()))
            }
            Change::Node(_) => None,
        }
    }

    async fn send(&self, to_client: &ToClient, at: WatchPosition, body: Body) -> Option<()> {
        let resume_token = self.tokens.at(at);
        let message = v1::WatchJobsResponse { resume_token, log_index: at.log_index.0, event: Some(body) };
        deliver(to_client, message).await
    }

    /// The present in parts: no part can be resumed behind, only the whole.
    async fn send_unmarked(&self, to_client: &ToClient, at: WatchPosition, body: Body) -> Option<()> {
        let resume_token = String::new();
        let message = v1::WatchJobsResponse { resume_token, log_index: at.log_index.0, event: Some(body) };
        deliver(to_client, message).await
    }
}

async fn deliver(to_client: &ToClient, message: v1::WatchJobsResponse) -> Option<()> {
    to_client.send_timeout(Ok(message), STALL_MAX).await.ok()
}
