//! Who is told of what happens to jobs and nodes: receivers of webhooks, and how far each has come.
//!
//! What a receiver's deliveries are signed with is not here, because the policy is in the log: replicas read it from a
//! directory that their configuration names.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use super::{PolicyDraft, check_count};
use crate::ids::LogIndex;
use crate::name::Name;
use crate::reason::Violation;

/// Receivers of one policy.
pub const RECEIVERS_MAX: usize = 64;
/// Bytes of a receiver's address.
pub const RECEIVER_URL_BYTES_MAX: usize = 2_048;

/// What a receiver can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NotificationEvent {
    /// Every worker of a job's attempt has started.
    JobStarted,
    /// A job has ended well.
    JobSucceeded,
    /// A job has failed for good.
    JobFailed,
    /// A job was cancelled and is over.
    JobCancelled,
    /// An attempt failed by the application's fault, and the job waits for its next one.
    JobRetried,
    /// Policy preempts a job for another one.
    JobPreempted,
    /// A job has to leave a node that was lost or is not fit for it.
    JobEvicted,
    /// A node has registered: a new one, or one that was lost.
    NodeUp,
    /// A node's session is over.
    NodeDown,
    /// A finding on a node's health keeps work away from it or from some of its devices.
    NodeUnhealthy,
    /// A node was quarantined.
    NodeQuarantined,
    /// A node's quarantine has ended.
    NodeReleased,
    /// Everything is to go from a node.
    NodeDraining,
    /// A schedule makes no jobs any more: somebody suspended it, or the replicas did because its owner's right has ended.
    ScheduleSuspended,
}

impl NotificationEvent {
    /// Every event.
    pub const ALL: [NotificationEvent; 14] = [
        NotificationEvent::JobStarted,
        NotificationEvent::JobSucceeded,
        NotificationEvent::JobFailed,
        NotificationEvent::JobCancelled,
        NotificationEvent::JobRetried,
        NotificationEvent::JobPreempted,
        NotificationEvent::JobEvicted,
        NotificationEvent::NodeUp,
        NotificationEvent::NodeDown,
        NotificationEvent::NodeUnhealthy,
        NotificationEvent::NodeQuarantined,
        NotificationEvent::NodeReleased,
        NotificationEvent::NodeDraining,
        NotificationEvent::ScheduleSuspended,
    ];

    /// As people write it and as a delivery names it; it never changes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NotificationEvent::JobStarted => "job_started",
            NotificationEvent::JobSucceeded => "job_succeeded",
            NotificationEvent::JobFailed => "job_failed",
            NotificationEvent::JobCancelled => "job_cancelled",
            NotificationEvent::JobRetried => "job_retried",
            NotificationEvent::JobPreempted => "job_preempted",
            NotificationEvent::JobEvicted => "job_evicted",
            NotificationEvent::NodeUp => "node_up",
            NotificationEvent::NodeDown => "node_down",
            NotificationEvent::NodeUnhealthy => "node_unhealthy",
            NotificationEvent::NodeQuarantined => "node_quarantined",
            NotificationEvent::NodeReleased => "node_released",
            NotificationEvent::NodeDraining => "node_draining",
            NotificationEvent::ScheduleSuspended => "schedule_suspended",
        }
    }

    /// Whether it happens to what has a tenant, and not to a node.
    #[must_use]
    pub fn has_tenant(self) -> bool {
        self.is_of_job() || self == NotificationEvent::ScheduleSuspended
    }

    /// Whether it happens to a job.
    #[must_use]
    pub fn is_of_job(self) -> bool {
        matches!(
            self,
            NotificationEvent::JobStarted
                | NotificationEvent::JobSucceeded
                | NotificationEvent::JobFailed
                | NotificationEvent::JobCancelled
                | NotificationEvent::JobRetried
                | NotificationEvent::JobPreempted
                | NotificationEvent::JobEvicted
        )
    }
}

impl fmt::Display for NotificationEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the body of a delivery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NotificationBody {
    /// An object with the event and its job or node. It is always signed.
    #[default]
    Generic,
    /// An object with one text, as Slack and what imitates it take it. It is signed where there is a key.
    Slack,
}

impl NotificationBody {
    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NotificationBody::Generic => "generic",
            NotificationBody::Slack => "slack",
        }
    }
}

impl fmt::Display for NotificationBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Somebody that is told of events by requests to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receiver {
    /// Unique in the policy. Replicas find its key by it.
    pub name: Name,
    /// Where deliveries go: `https://host[:port]/path`; `http` where a replica's configuration allows it. Empty where the
    /// address is itself a secret: then replicas read it from their directory of secrets.
    pub url: String,
    /// Only events of jobs and schedules of this tenant and of those below it; none for all of them and for nodes.
    pub tenant: Option<Name>,
    /// What it is told of, whatever jobs say; at least one, unless jobs may name it.
    pub events: BTreeSet<NotificationEvent>,
    /// What it is sent.
    pub body: NotificationBody,
    /// Whether jobs of its tenant, and of those below it, may name it to be told of what happens to them.
    pub for_jobs: bool,
}

impl Receiver {
    /// The host of its address; empty where replicas read the address from a file.
    #[must_use]
    pub fn host(&self) -> &str {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        rest.split(['/', '?', '#']).next().unwrap_or("")
    }

    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        if !self.url.is_empty()
            && let Some(rule) = url_fault(&self.url)
        {
            found.push(Violation::new(format!("{at}.url"), rule));
        }
        if self.events.is_empty() && !self.for_jobs {
            found.push(Violation::new(format!("{at}.events"), "must name at least one event"));
        }
        let of_node = self.events.iter().find(|event| !event.has_tenant());
        if let (Some(tenant), Some(event)) = (&self.tenant, of_node) {
            let text = format!(
                "must be events of jobs or schedules for a receiver of tenant {tenant}: nodes have no tenant, got {event}"
            );
            found.push(Violation::new(format!("{at}.events"), text));
        }
    }
}

/// Why a text is no address of a receiver; none when it is one.
#[must_use]
pub fn url_fault(url: &str) -> Option<String> {
    if url.len() > RECEIVER_URL_BYTES_MAX {
        return Some(format!("must have at most {RECEIVER_URL_BYTES_MAX} bytes, got {}", url.len()));
    }
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return Some("must begin with https:// or http://".into()) };
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("must consist of visible ASCII characters; encode others with %".into());
    }
    if url.contains('#') {
        return Some("must have no fragment (#)".into());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or("");
    if authority.contains('@') {
        return Some("must name no user; deliveries are signed instead".into());
    }
    // An IPv6 address stands in brackets.
    let (host, port) = match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("none"))),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Some("must name a host".into());
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_some_and(|port| !is_port(port)) {
        return Some("must have a port between 1 and 65535, or none".into());
    }
    None
}

/// How far one receiver has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NotificationProgress {
    /// Everything up to this record was delivered, given up or skipped.
    pub delivered: LogIndex,
    /// Events that it has acknowledged.
    pub acknowledged: u64,
    /// Events that it did not take in the time that they were tried for, or that too many of the same tenant stood before.
    pub given_up: u64,
    /// Records that nobody could read any more when they were to be looked at for it.
    pub skipped: u64,
}

impl NotificationProgress {
    /// That of a receiver that is told of everything behind a record.
    #[must_use]
    pub fn behind(delivered: LogIndex) -> NotificationProgress {
        NotificationProgress { delivered, ..NotificationProgress::default() }
    }

    /// Whether it can follow another: nothing of it goes back, and something goes on.
    #[must_use]
    pub fn follows(&self, before: &NotificationProgress) -> bool {
        *self != *before
            && self.delivered >= before.delivered
            && self.acknowledged >= before.acknowledged
            && self.given_up >= before.given_up
            && self.skipped >= before.skipped
    }
}

impl PolicyDraft {
    pub(super) fn check_notifications(&self, found: &mut Vec<Violation>) {
        check_count("notifications", self.notifications.len(), RECEIVERS_MAX, found);
        let mut names = BTreeSet::new();
        for (index, receiver) in self.notifications.iter().enumerate().take(RECEIVERS_MAX) {
            let at = format!("notifications[{index}]");
            if !names.insert(&receiver.name) {
                found.push(Violation::new(format!("{at}.name"), "must be unique in the policy"));
            }
            receiver.check(&at, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    fn receiver(name: &str) -> Receiver {
        Receiver {
            name: Name::new(name).expect("it is a name"),
            url: "https://example.org/hook?a=b".to_string(),
            tenant: None,
            events: BTreeSet::from([NotificationEvent::JobFailed]),
            body: NotificationBody::Generic,
            for_jobs: false,
        }
    }

    fn fields(notifications: Vec<Receiver>) -> Vec<String> {
        let draft = PolicyDraft { notifications, ..PolicyDraft::default() };
        draft.check().err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn addresses_are_checked() {
        for good in
            ["https://a.example", "http://10.0.0.1:80/x", "https://[::1]:8443/", "https://[2001:db8::1]"]
        {
            assert_eq!(url_fault(good), None, "{good}");
        }
        for bad in [
            "",
            "ftp://a",
            "https://",
            "https:///path",
            "https://user:word@a.example/",
            "https://a.example/#part",
            "https://a.example:0/",
            "https://a.example:70000/",
            "https://a b/",
            "https://a.example/\u{e9}",
            "https://[::1]x/",
            "https://a.example/\r\nHost: b",
        ] {
            assert!(url_fault(bad).is_some(), "{bad:?}");
        }
        assert!(url_fault(&format!("https://a/{}", "x".repeat(RECEIVER_URL_BYTES_MAX))).is_some());
    }

    #[test]
    fn a_receiver_that_breaks_a_rule_is_refused_by_its_field() {
        assert!(fields(vec![receiver("a"), receiver("b")]).is_empty());
        assert_eq!(fields(vec![receiver("a"), receiver("a")]), ["notifications[1].name"]);
        let silent = Receiver { events: BTreeSet::new(), ..receiver("a") };
        assert_eq!(fields(vec![silent.clone()]), ["notifications[0].events"]);
        assert!(
            fields(vec![Receiver { for_jobs: true, ..silent }]).is_empty(),
            "jobs name what it is told of"
        );
        let of_nodes = Receiver {
            tenant: Some(Name::literal("t")),
            events: BTreeSet::from([NotificationEvent::JobFailed, NotificationEvent::NodeDown]),
            ..receiver("a")
        };
        assert_eq!(fields(vec![of_nodes]), ["notifications[0].events"]);
        let many: Vec<Receiver> = (0..=RECEIVERS_MAX).map(|n| receiver(&format!("r{n}"))).collect();
        assert_eq!(fields(many), ["notifications"]);
        assert!(fields(vec![Receiver { url: String::new(), ..receiver("a") }]).is_empty(), "it is in a file");
    }

    #[test]
    fn progress_never_goes_back() {
        let before =
            NotificationProgress { delivered: LogIndex(5), acknowledged: 2, given_up: 1, skipped: 0 };
        assert!(!before.follows(&before));
        assert!(NotificationProgress { delivered: LogIndex(6), ..before }.follows(&before));
        assert!(!NotificationProgress { delivered: LogIndex(9), acknowledged: 1, ..before }.follows(&before));
        assert!(!NotificationProgress { delivered: LogIndex(4), acknowledged: 9, ..before }.follows(&before));
    }
}
