//! The API server of Kubernetes: the only way in which it is spoken to.
//!
//! **Invariant:** no call outlives its deadline, and few run at once; what is deleted is the very pod that was meant, by its uid.

use super::decoded::{Decoded, Watched};
use super::objects::{NodeObject, PodObject};
use super::observe::WatchEvent;
use super::pod::is_same;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Calls to the server that may be open at the same time.
const CALLS_MAX: usize = 16;
/// Objects of one page of a list: of nodes with many images it is some megabytes, which are held twice while they are decoded.
const PAGE_OBJECTS: u32 = 200;
/// First and longest wait before a watch that broke goes on. Load balancers cut watches as a matter of course.
const WATCH_WAIT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(10));
/// The longest wait that a server may ask for.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(60);

/// Why a call has no answer that helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server cannot be reached, or did not answer in time: what was asked for may have happened.
    #[error("Kubernetes cannot be reached: {0}")]
    Unreachable(String),
    /// It is overloaded, or a quota is used up: the same call may succeed later.
    #[error("Kubernetes is busy: {why}")]
    Busy {
        /// The message of the server.
        why: String,
        /// How long to wait before the next call, as the server asks.
        wait: Duration,
    },
    /// It understood and declined.
    #[error("Kubernetes refuses: {0}")]
    Refused(String),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The file cannot be read or used.
    #[error("use {path}")]
    Kubeconfig {
        /// The path of the kubeconfig file.
        path: String,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// This is no pod with a service account.
    #[error("find the service account of this pod; outside of a cluster kubernetes.kubeconfig is needed")]
    ServiceAccount(#[source] Box<kube::config::InClusterError>),
    /// What was found cannot be used.
    #[error("make a client")]
    Client(#[source] Box<kube::Error>),
}

/// What an error of the client means.
fn classify(error: &kube::Error) -> CallError {
    let kube::Error::Api(status) = error else {
        return CallError::Unreachable(crate::chain::chain(error));
    };
    let why = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    let wait = Duration::from_secs(u64::from(asked)).min(ASKED_WAIT_MAX);
    match status.code {
        // A quota may have something left later.
        403 if why.contains("exceeded quota") => CallError::Busy { why, wait },
        // A conflict is about something else, such as the quota's object: one about the name was looked at before.
        408 | 409 | 425 | 429 | 500..=599 => CallError::Busy { why, wait },
        _ => CallError::Refused(why),
    }
}

/// Whether an object of that name is there.
fn is_there_already(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// A client of one API server, for pods in one namespace.
pub(super) struct Server {
    client: Client,
    namespace: String,
    timeout: Duration,
    permits: Semaphore,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Server {
    /// A client; the server itself is asked nothing.
    ///
    /// # Errors
    /// When it cannot be told where the server is, or who calls.
    pub(super) async fn open(
        kubeconfig: Option<&Path>,
        namespace: &str,
        timeout: Duration,
    ) -> Result<Server, ClientError> {
        let mut config = match kubeconfig {
            Some(path) => {
                let failed = |source| ClientError::Kubeconfig {
                    path: path.display().to_string(),
                    source: Box::new(source),
                };
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
            }
            None => Config::incluster().map_err(|error| ClientError::ServiceAccount(Box::new(error)))?,
        };
        config.connect_timeout = Some(timeout);
        let client = Client::try_from(config).map_err(|error| ClientError::Client(Box::new(error)))?;
        let (namespace, permits) = (namespace.to_owned(), Semaphore::new(CALLS_MAX));
        Ok(Server { client, namespace, timeout, permits })
    }

    fn pods_here(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn call<T>(
        &self,
        work: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, kube::Error>, CallError> {
        let down = |_| CallError::Unreachable("the agent is shutting down".to_owned());
        let _permit = self.permits.acquire().await.map_err(down)?;
        let seconds = self.timeout.as_secs();
        let late = |_| CallError::Unreachable(format!("it gave no answer within {seconds} s"));
        tokio::time::timeout(self.timeout, work).await.map_err(late)
    }

    /// Makes a pod, or finds the one that was made before: its uid.
    ///
    /// # Errors
    /// When the server does not take it, or another one has its name.
    pub(super) async fn create(&self, pod: &Pod) -> Result<String, CallError> {
        let pods = self.pods_here();
        let name = pod.metadata.name.clone().unwrap_or_default();
        let made = match self.call(pods.create(&PostParams::default(), pod)).await? {
            Ok(made) => made,
            Err(error) if is_there_already(&error) => {
                let found = self.call(pods.get_opt(&name)).await?.map_err(|error| classify(&error))?;
                let gone = || CallError::Busy { why: format!("pod {name} is going"), wait: Duration::ZERO };
                let found = found.ok_or_else(gone)?;
                if !is_same(pod, &found) {
                    return Err(CallError::Refused(format!("a pod of somebody else has the name {name}")));
                }
                found
            }
            Err(error) => return Err(classify(&error)),
        };
        let unnamed = || CallError::Unreachable("the answer has no uid".to_owned());
        made.metadata.uid.filter(|uid| !uid.is_empty()).ok_or_else(unnamed)
    }

    /// Makes a secret; one that is there was made before.
    ///
    /// # Errors
    /// When the server does not take it.
    pub(super) async fn create_secret(&self, secret: &Secret) -> Result<(), CallError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        match self.call(secrets.create(&PostParams::default(), secret)).await? {
            Ok(_) => Ok(()),
            Err(error) if is_there_already(&error) => Ok(()),
            Err(error) => Err(classify(&error)),
        }
    }

    /// Looks a pod up.
    ///
    /// # Errors
    /// When the server does not say.
    pub(super) async fn find(&self, name: &str) -> Result<Option<PodObject>, CallError> {
        let pods: Api<Watched<PodObject>> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = self.call(pods.get_opt(name)).await?.map_err(|error| classify(&error))?;
        Ok(found.and_then(|found| found.seen))
    }

    /// Deletes a pod; one that is gone, or another one of that name, is none to delete.
    ///
    /// # Errors
    /// When the server does not take it.
    pub(super) async fn delete(&self, name: &str, uid: &str, grace: Duration) -> Result<(), CallError> {
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let asked = DeleteParams {
            grace_period_seconds: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::background()
        };
        match self.call(self.pods_here().delete(name, &asked)).await? {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(classify(&error)),
        }
    }

    /// Whether the server answers.
    pub(super) async fn answers(&self) -> bool {
        matches!(self.call(self.client.apiserver_version()).await, Ok(Ok(_)))
    }

    /// The nodes that a selector chooses, with their labels of these keys, then each change to one of them. The stream never ends.
    pub(super) fn nodes(
        &self,
        selector: &str,
        labels: BTreeSet<String>,
    ) -> impl Stream<Item = Result<WatchEvent<NodeObject>, String>> + Send + use<> {
        let mut config = watcher::Config::default().page_size(PAGE_OBJECTS);
        if !selector.is_empty() {
            config = config.labels(selector);
        }
        watch(Api::<Watched<NodeObject>>::all(self.client.clone()), config, labels)
    }

    /// All pods of the cluster, then each change to one of them. The stream never ends.
    pub(super) fn pods(&self) -> impl Stream<Item = Result<WatchEvent<PodObject>, String>> + Send + use<> {
        let config = watcher::Config::default().page_size(PAGE_OBJECTS);
        watch(Api::<Watched<PodObject>>::all(self.client.clone()), config, BTreeSet::new())
    }
}

/// Waits of a watch, each twice as long as the one before it, until something arrives.
#[derive(Debug)]
struct WatchBackoff {
    next: Duration,
}

impl Default for WatchBackoff {
    fn default() -> WatchBackoff {
        WatchBackoff { next: WATCH_WAIT.0 }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let doubled = (self.next * 2).min(WATCH_WAIT.1);
        Some(std::mem::replace(&mut self.next, doubled))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        *self = WatchBackoff::default();
    }
}

/// A list and what changes after it. The client asks for bookmarks, lists again where the server has forgotten the place
/// of a watch, and waits longer from one failure to the next.
fn watch<T: Decoded>(
    api: Api<Watched<T>>,
    config: watcher::Config,
    labels: BTreeSet<String>,
) -> impl Stream<Item = Result<WatchEvent<T>, String>> + Send {
    watcher(api, config).backoff(WatchBackoff::default()).filter_map(move |event| {
        let seen = |object: Watched<T>| {
            let mut found = object.seen?;
            found.keep_labels(&labels);
            Some(found)
        };
        let told = match event {
            Ok(Event::Init) => Some(Ok(WatchEvent::ListBegins)),
            Ok(Event::InitApply(object)) => seen(object).map(|found| Ok(WatchEvent::Listed(found))),
            Ok(Event::InitDone) => Some(Ok(WatchEvent::ListEnds)),
            Ok(Event::Apply(object)) => seen(object).map(|found| Ok(WatchEvent::Changed(found))),
            Ok(Event::Delete(object)) => seen(object).map(|found| Ok(WatchEvent::Gone(found))),
            Err(error) => Some(Err(crate::chain::chain(&error))),
        };
        std::future::ready(told)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn api(code: u16, reason: &str, message: &str, seconds: u32) -> kube::Error {
        let status = json!({"status": "Failure", "code": code, "reason": reason, "message": message,
            "details": {"retryAfterSeconds": seconds}});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn a_watch_waits_longer_up_to_a_bound_and_begins_again_when_something_arrives() {
        let mut backoff = WatchBackoff::default();
        let waits: Vec<u128> = backoff.by_ref().take(8).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [300, 600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000]);
        backoff.reset();
        assert_eq!(backoff.next(), Some(WATCH_WAIT.0));
    }

    #[test]
    fn answers_are_told_apart() {
        let busy =
            |why: &str, seconds| CallError::Busy { why: why.into(), wait: Duration::from_secs(seconds) };
        assert_eq!(classify(&api(429, "TooManyRequests", "later", 7)), busy("later", 7));
        assert_eq!(classify(&api(503, "ServiceUnavailable", "", 99_999)), busy("ServiceUnavailable", 60));
        let conflict = "Operation cannot be fulfilled on resourcequotas \"workers\"";
        assert_eq!(classify(&api(409, "Conflict", conflict, 0)), busy(conflict, 0));
        let quota = "pods \"x\" is forbidden: exceeded quota: workers";
        assert_eq!(classify(&api(403, "Forbidden", quota, 0)), busy(quota, 0));
        let refused = |why: &str| CallError::Refused(why.into());
        assert_eq!(classify(&api(403, "Forbidden", "no rights", 0)), refused("no rights"));
        assert_eq!(classify(&api(422, "Invalid", "bad image", 0)), refused("bad image"));
        assert!(is_there_already(&api(409, "AlreadyExists", "", 0)));
        assert!(!is_there_already(&api(409, "Conflict", "", 0)));
        let broken = kube::Error::Service("broken pipe".into());
        assert!(matches!(classify(&broken), CallError::Unreachable(_)));
    }
}
