//! What the agent says of images, and images that it fetches before a worker asks for them.
//!
//! The leader is told which images the host holds, and what workers wait for. It tells which ones are expected here soon;
//! what it says last counts. Nobody waits for any of this, and nothing of it starts a worker.
//!
//! **Invariant:** what is fetched ahead holds up no worker that waits for an image now, and one tenant's no other's.

use super::Images;
use crate::health::Line;
use crate::rules::Placement;
use muster_types::container::is_reference;
use muster_types::{Container, FencingToken, JobId, Name, StartStage, limits};
use muster_wire::agent::session_request::Message as Request;
use muster_wire::{agent, convert};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// How often the images of the host are looked at, where nothing says that they may be others.
const LOOK: Duration = Duration::from_secs(10);
/// Notes on stages that wait to be told. What is beyond is not told.
const NOTES_MAX: usize = 256;
/// Placements whose stages are told again on a new session.
const PLACEMENTS_MAX: usize = 256;

/// Which placement waits for what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StageNote {
    job: JobId,
    token: FencingToken,
    /// None once nothing of it waits any more.
    stage: Option<StartStage>,
    image: String,
}

/// Where stages are told.
#[derive(Clone, Debug)]
pub(crate) struct Stages(mpsc::Sender<StageNote>);

/// Where they are heard.
#[derive(Debug)]
pub(crate) struct ImageReports(mpsc::Receiver<StageNote>);

impl Stages {
    pub(crate) fn new() -> (Stages, ImageReports) {
        let (tell, told) = mpsc::channel(NOTES_MAX);
        (Stages(tell), ImageReports(told))
    }

    /// The workers of a placement here wait for this.
    pub(crate) fn reached(&self, placement: &Placement, stage: StartStage, image: &str) {
        self.tell(placement, Some(stage), image);
    }

    /// They wait for nothing any more.
    pub(crate) fn over(&self, placement: &Placement) {
        self.tell(placement, None, "");
    }

    fn tell(&self, placement: &Placement, stage: Option<StartStage>, image: &str) {
        let (job, token) = (placement.job, placement.token);
        // No start waits for it.
        let _ = self.0.try_send(StageNote { job, token, stage, image: image.to_owned() });
    }
}

/// An image that is expected here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    tenant: String,
    image: String,
    credentials: Option<Name>,
}

/// What sessions pass on.
pub(crate) struct ImageLink {
    line: watch::Sender<Option<Line>>,
    wanted: watch::Sender<BTreeSet<Wanted>>,
}

/// The other end of it.
pub(crate) struct ImageLines {
    lines: watch::Receiver<Option<Line>>,
    wanted: watch::Receiver<BTreeSet<Wanted>>,
}

impl ImageLink {
    pub(crate) fn new() -> (ImageLink, ImageLines) {
        let ((line, lines), (want, wanted)) = (watch::channel(None), watch::channel(BTreeSet::new()));
        (ImageLink { line, wanted: want }, ImageLines { lines, wanted })
    }

    /// A session is open whose leader takes words about images.
    pub(crate) fn opened(&self, line: Line) {
        // The leader says again what it wants.
        self.wanted.send_replace(BTreeSet::new());
        self.line.send_replace(Some(line));
    }

    /// It is over. What is being fetched goes on.
    pub(crate) fn closed(&self) {
        self.line.send_replace(None);
    }

    /// What the leader wants to be fetched. What is no image is left out.
    pub(crate) fn order(&self, order: agent::PrefetchOrder) {
        let wanted = order.images.into_iter().take(limits::IMAGES_AHEAD_MAX).filter_map(|image| {
            let agent::PrefetchImage { tenant, image, credentials } = image;
            let is_good = Name::new(&tenant).is_some() && is_reference(&image);
            let credentials = match credentials.as_str() {
                "" => None,
                name => Some(Name::new(name)?),
            };
            is_good.then_some(Wanted { tenant, image, credentials })
        });
        self.wanted.send_replace(wanted.collect());
    }
}

/// Work that is given up when this goes.
struct Fetching(JoinHandle<()>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The images of a host, and who tells the leader of them.
struct Speaker {
    images: Arc<Images>,
    line: Option<Line>,
    /// What the leader of this session was told last.
    held: Option<Vec<String>>,
    stages: BTreeMap<(JobId, FencingToken), agent::StartStageReport>,
    /// What is fetched, and what was fetched for as long as it is wanted.
    fetching: BTreeMap<Wanted, Fetching>,
    /// The host may hold another image now.
    changed: Arc<Notify>,
}

/// Speaks of images, and fetches what is wanted, for ever. Without images it does nothing.
pub(crate) async fn serve(images: Option<(Arc<Images>, ImageReports)>, lines: ImageLines) {
    let Some((images, ImageReports(mut notes))) = images else { return std::future::pending().await };
    let ImageLines { mut lines, mut wanted } = lines;
    let (held, stages, fetching) = (None, BTreeMap::new(), BTreeMap::new());
    let changed = Arc::new(Notify::new());
    let mut speaker = Speaker { images, line: None, held, stages, fetching, changed: Arc::clone(&changed) };
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = lines.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let line = lines.borrow_and_update().clone();
                speaker.begin(line).await;
            }
            changed = wanted.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let now = wanted.borrow_and_update().clone();
                speaker.fetch(now);
            }
            Some(note) = notes.recv() => speaker.note(note),
            () = changed.notified() => speaker.tell_held().await,
            _ = look.tick() => speaker.tell_held().await,
        }
    }
}

impl Speaker {
    async fn begin(&mut self, line: Option<Line>) {
        (self.line, self.held) = (line, None);
        for report in self.stages.values() {
            self.say(Request::StartStage(report.clone()));
        }
        self.tell_held().await;
    }

    /// Whether it is on its way. What does not fit is told with the next look, or not at all.
    fn say(&self, message: Request) -> bool {
        let request = agent::SessionRequest { message: Some(message) };
        self.line.as_ref().is_some_and(|line| line.outgoing.try_send(request).is_ok())
    }

    async fn tell_held(&mut self) {
        if self.line.is_none() {
            return;
        }
        let mut held = self.images.held().await;
        // A worker that asks for one again changes nothing.
        held.sort_unstable();
        held.dedup();
        let is_known = self.held.as_ref().map_or(held.is_empty(), |told| *told == held);
        if !is_known && self.say(Request::Images(agent::HeldImages { references: held.clone() })) {
            self.held = Some(held);
        }
    }

    fn note(&mut self, note: StageNote) {
        let StageNote { job, token, stage, image } = note;
        let Some(stage) = stage else {
            self.stages.remove(&(job, token));
            return;
        };
        let report = agent::StartStageReport {
            job_id: job.to_string(),
            token: Some(convert::fencing_token_to_proto(token)),
            stage: stage_number(stage),
            image,
        };
        if self.stages.len() < PLACEMENTS_MAX || self.stages.contains_key(&(job, token)) {
            self.stages.insert((job, token), report.clone());
        }
        if stage == StartStage::Starting {
            self.changed.notify_one();
        }
        self.say(Request::StartStage(report));
    }

    /// What is not wanted any more is given up, and what is wanted goes on, or begins.
    fn fetch(&mut self, wanted: BTreeSet<Wanted>) {
        self.fetching.retain(|known, _| wanted.contains(known));
        for wanted in wanted {
            let (images, changed) = (&self.images, &self.changed);
            self.fetching.entry(wanted.clone()).or_insert_with(|| {
                let (images, changed) = (Arc::clone(images), Arc::clone(changed));
                Fetching(tokio::spawn(async move {
                    fetch_one(&images, &wanted).await;
                    changed.notify_one();
                }))
            });
        }
    }
}

async fn fetch_one(images: &Images, wanted: &Wanted) {
    let container =
        Container { credentials: wanted.credentials.clone(), ..Container::new(wanted.image.clone()) };
    match images.prepare_ahead(&wanted.tenant, &container).await {
        Ok(()) => tracing::info!(image = wanted.image, tenant = wanted.tenant, "an image is there ahead"),
        // A worker that needs it tries again, and tells why it cannot be had.
        Err(error) => tracing::info!(image = wanted.image, %error, "an image is not there ahead"),
    }
}

fn stage_number(stage: StartStage) -> i32 {
    let stage = match stage {
        StartStage::Pulling => agent::StartStage::Pulling,
        StartStage::Unpacking => agent::StartStage::Unpacking,
        StartStage::Starting => agent::StartStage::Starting,
    };
    stage.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(tenant: &str, image: &str, credentials: &str) -> agent::PrefetchImage {
        agent::PrefetchImage {
            tenant: tenant.to_owned(),
            image: image.to_owned(),
            credentials: credentials.to_owned(),
        }
    }

    #[test]
    fn what_is_no_image_is_left_out_of_an_order_and_a_new_session_begins_without_one() {
        let (link, lines) = ImageLink::new();
        let images = vec![
            image("research", "localhost/a:1", ""),
            image("research", "localhost/a:1", "registry"),
            image("../etc", "localhost/a:1", ""),
            image("research", "--root=/:1", ""),
            image("research", "localhost/a:1", "../token"),
        ];
        link.order(agent::PrefetchOrder { images });
        let credentials: Vec<_> =
            lines.wanted.borrow().iter().map(|wanted| wanted.credentials.clone()).collect();
        assert_eq!(credentials, [None, Name::new("registry")]);
        let many = (0..100).map(|number| image("research", &format!("localhost/a:{number}"), ""));
        link.order(agent::PrefetchOrder { images: many.collect() });
        assert_eq!(lines.wanted.borrow().len(), limits::IMAGES_AHEAD_MAX);
        let (outgoing, _taken) = mpsc::channel(1);
        link.opened(Line { number: 2, outgoing });
        assert!(lines.wanted.borrow().is_empty());
    }
}
