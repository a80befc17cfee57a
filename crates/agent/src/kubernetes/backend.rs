//! What all nodes of one Kubernetes cluster share: the server, and what is known of the cluster.
//!
//! Two watches tell of nodes and of pods; nothing else looks anything up but a share that misses its own pod.
//!
//! **Invariant:** a view is published only when both lists were whole; a server that is silent for a moment changes nothing, and
//! one that is silent for longer closes its nodes.

use super::client::{CallError, Server};
use super::config::Settings;
use super::describe;
use super::kept_back::KeptBack;
use super::objects::{Amount, PodObject};
use super::observe::{Observation, Picture};
use crate::executor::Foreign;
use crate::remote::scheduler::Common;
use futures::StreamExt as _;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// From a change to the view that shows it: many changes make one view.
const PUBLISH_WAIT: Duration = Duration::from_millis(100);
/// Between two calls that only see whether the server answers.
const PROBE_GAP: Duration = Duration::from_secs(10);
/// Without an answer for this long, nothing new is to be placed on its nodes.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// What is swept away on one view.
const STRAYS_AT_ONCE: usize = 16;
/// What pods that nobody waits for have to end.
const STRAY_GRACE: Duration = Duration::from_secs(30);

/// What was known at one time.
#[derive(Clone, Debug)]
pub struct View {
    /// Rises by one; 0 before the first.
    pub(super) number: u64,
    pub(super) picture: Picture,
    /// What is no capacity of its nodes, by node.
    pub(super) kept_back: BTreeMap<String, Amount>,
    /// The server does not answer.
    pub(super) is_silent: bool,
}

/// A call that has ended.
#[derive(Debug)]
pub enum Call {
    /// The pod was to be made, and its secret: its uid.
    Created(Result<String, CallError>),
    /// The pod was looked up.
    Found(Result<Option<String>, CallError>),
    /// The pod was to be deleted.
    Deleted(Result<(), CallError>),
}

/// What a share holds of its node: the pod says it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held;

/// One Kubernetes cluster.
#[derive(Debug)]
pub struct Backend {
    pub(super) settings: Settings,
    pub(super) server: Server,
    /// What its nodes share.
    pub(super) common: Common<Backend>,
    view: watch::Sender<Arc<View>>,
    /// When the server last answered.
    heard: Mutex<Instant>,
}

impl Backend {
    pub(super) fn new(settings: Settings, server: Server, common: Common<Backend>) -> Backend {
        let (picture, kept_back) = (Picture::default(), BTreeMap::new());
        let none = View { number: 0, picture, kept_back, is_silent: false };
        let (view, heard) = (watch::Sender::new(Arc::new(none)), Mutex::new(Instant::now()));
        Backend { settings, server, common, view, heard }
    }

    pub(super) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Watches nodes and pods, and asks whether the server answers. Never ends.
    pub(super) async fn poll_for_ever(self: Arc<Self>) {
        tokio::join!(self.probe(), self.watch());
    }

    async fn probe(&self) {
        loop {
            if self.server.answers().await {
                *self.heard.lock() = Instant::now();
            }
            tokio::time::sleep(PROBE_GAP).await;
        }
    }

    async fn watch(self: &Arc<Self>) {
        let labels = describe::labels_used(&self.settings);
        let mut nodes = std::pin::pin!(self.server.nodes(&self.settings.written.node_selector, labels));
        let mut pods = std::pin::pin!(self.server.pods());
        let mut observed = Observation::new(self.common.scope.clone());
        let mut kept_back = KeptBack::default();
        let mut said = String::new();
        let mut publish_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let is_silent = self.heard.lock().elapsed() > SILENCE_MAX;
            let is_due = kept_back.due_at().is_some_and(|at| at <= now);
            if is_due || is_silent != self.view.borrow().is_silent {
                publish_at.get_or_insert(now);
            }
            if publish_at.is_some_and(|at| at <= now) {
                publish_at = None;
                self.publish(&observed, &mut kept_back, is_silent);
            }
            let until = publish_at.unwrap_or(now + Duration::from_secs(1));
            let told = tokio::select! {
                Some(told) = nodes.next() => told.map(|told| observed.node(told)),
                Some(told) = pods.next() => told.map(|told| observed.pod(told)),
                () = tokio::time::sleep_until(until) => Ok(false),
            };
            match told {
                Ok(true) => {
                    publish_at.get_or_insert(Instant::now() + PUBLISH_WAIT);
                    said.clear();
                }
                Ok(false) => {}
                Err(why) if why == said => {}
                Err(why) => {
                    tracing::warn!(
                        why,
                        "a watch of Kubernetes is broken, and begins again; what runs goes on"
                    );
                    said = why;
                }
            }
        }
    }

    fn publish(self: &Arc<Self>, observed: &Observation, kept_back: &mut KeptBack, is_silent: bool) {
        let Some(picture) = observed.picture() else { return };
        let before = self.view();
        if is_silent != before.is_silent {
            tracing::info!(is_silent, "whether Kubernetes is silent has changed");
        }
        self.sweep(&picture);
        let kept_back = kept_back.update(Instant::now(), &picture.standing);
        let view = View { number: before.number + 1, picture, kept_back, is_silent };
        self.view.send_replace(Arc::new(view));
    }

    /// Deletes pods of ours that no share stands behind: their runners would be turned away.
    fn sweep(self: &Arc<Self>, picture: &Picture) {
        let is_here = |pod: &&Arc<PodObject>| pod.namespace == self.settings.written.namespace;
        let own = picture.own.values().filter(is_here);
        let unknown = own.filter(|pod| !pod.is_deleting && !self.common.is_known(&pod.name));
        let strays: Vec<Arc<PodObject>> = unknown.take(STRAYS_AT_ONCE).cloned().collect();
        for pod in strays {
            tracing::warn!(pod = pod.name, "a pod of ours that nobody waits for is deleted");
            let backend = Arc::clone(self);
            self.common.spawn(async move {
                if let Err(error) = backend.server.delete(&pod.name, &pod.uid, STRAY_GRACE).await {
                    tracing::warn!(pod = pod.name, %error, "it could not be deleted; trying again");
                }
            });
        }
    }

    /// What others hold of a node now.
    fn foreign(&self, place: &str) -> Option<Foreign> {
        let view = self.view();
        if view.number == 0 || view.is_silent {
            return None;
        }
        let (node, taken) = (view.picture.nodes.get(place), view.picture.foreign.get(place));
        Some(describe::foreign(&self.settings, node.map(|node| &**node), taken))
    }

    /// How many accelerators of a node cannot be had now.
    fn unhealthy(&self, place: &str) -> u64 {
        let view = self.view();
        view.picture.nodes.get(place).map_or(0, |node| describe::unhealthy(&self.settings, node))
    }

    /// Keeps the report of a node up to date. Never ends.
    pub(super) async fn follow_node(self: Arc<Self>, place: String, said: watch::Sender<Foreign>) {
        let mut views = self.views();
        let mut unhealthy = 0;
        loop {
            views.borrow_and_update();
            let found = self.unhealthy(&place);
            if found != unhealthy {
                unhealthy = found;
                tracing::warn!(
                    node = place,
                    unhealthy,
                    "the number of devices has changed that their plugin does not offer, and that get no work"
                );
            }
            let now = self.foreign(&place);
            said.send_if_modified(|before| {
                let now = now.unwrap_or(Foreign { closed: true, ..*before });
                std::mem::replace(before, now) != now
            });
            if views.changed().await.is_err() {
                return;
            }
        }
    }
}
