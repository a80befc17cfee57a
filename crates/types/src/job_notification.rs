//! Receivers of the policy that a job wants to be told of what happens to it.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::name::Name;
use crate::policy::{NotificationEvent, Policy, Receiver};
use crate::reason::Violation;

/// One receiver that a job names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNotification {
    /// One that the policy allows jobs of its tenant to name.
    pub receiver: Name,
    /// What it is told of; at least one, and events of jobs only.
    pub events: BTreeSet<NotificationEvent>,
}

impl JobNotification {
    /// Every rule that the entries of one job break, by fields of its contract.
    pub(crate) fn check(entries: &[JobNotification], found: &mut Vec<Violation>) {
        let max = limits::JOB_NOTIFICATIONS_MAX;
        if entries.len() > max {
            found.push(Violation::limit("notify", entries.len() as u64, 0, max as u64));
            return;
        }
        let mut names = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            if !names.insert(&entry.receiver) {
                let text = format!("must be named once, and {} is named before", entry.receiver);
                found.push(Violation::new(format!("notify[{index}].receiver"), text));
            }
            if entry.events.is_empty() {
                found.push(Violation::new(format!("notify[{index}].events"), "must name at least one event"));
            }
            if let Some(event) = entry.events.iter().find(|event| !event.is_of_job()) {
                let text = format!("must be events of jobs, got {event}");
                found.push(Violation::new(format!("notify[{index}].events"), text));
            }
        }
    }
}

impl Policy {
    /// The receivers that jobs of a tenant may name, in the order of the policy.
    pub fn receivers_for_jobs_of<'a>(&'a self, tenant: &'a Name) -> impl Iterator<Item = &'a Receiver> {
        let reaches = move |receiver: &&Receiver| {
            let above = receiver.tenant.as_ref();
            receiver.for_jobs && above.is_none_or(|above| self.ancestry(tenant).any(|name| name == above))
        };
        self.notifications.iter().filter(reaches)
    }

    /// Why a job of a tenant may not name a receiver; none when it may.
    #[must_use]
    pub fn why_not_receiver(&self, tenant: &Name, receiver: &Name) -> Option<String> {
        /// How many names a sentence lists.
        const NAMED_MAX: usize = 8;
        let mut listed = Vec::new();
        for allowed in self.receivers_for_jobs_of(tenant) {
            if allowed.name == *receiver {
                return None;
            }
            listed.push(allowed.name.as_str());
        }
        let advice = match listed.len() {
            0 => String::from("it lets them name none (`notifications[].forJobs` in the policy)"),
            count => {
                let more = if count > NAMED_MAX { ", ..." } else { "" };
                listed.truncate(NAMED_MAX);
                format!("they may name {}{more}", listed.join(", "))
            }
        };
        Some(format!("the policy lets jobs of tenant {tenant} name no receiver {receiver}; {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{NotificationBody, PolicyDraft, TenantPolicy};
    use alloc::collections::BTreeMap;
    use alloc::vec;

    fn name(text: &str) -> Name {
        Name::new(text).expect("it is a name")
    }

    fn entry(receiver: &str, events: &[NotificationEvent]) -> JobNotification {
        JobNotification { receiver: name(receiver), events: events.iter().copied().collect() }
    }

    fn fields(entries: &[JobNotification]) -> Vec<String> {
        let mut found = Vec::new();
        JobNotification::check(entries, &mut found);
        found.into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_its_field() {
        let failed = [NotificationEvent::JobFailed];
        assert!(fields(&[entry("a", &failed), entry("b", &failed)]).is_empty());
        assert_eq!(fields(&[entry("a", &failed), entry("a", &failed)]), ["notify[1].receiver"]);
        assert_eq!(fields(&[entry("a", &[])]), ["notify[0].events"]);
        assert_eq!(fields(&[entry("a", &[NotificationEvent::NodeDown])]), ["notify[0].events"]);
        assert_eq!(fields(&[entry("a", &[NotificationEvent::ScheduleSuspended])]), ["notify[0].events"]);
        let many: Vec<JobNotification> =
            (0..=limits::JOB_NOTIFICATIONS_MAX).map(|n| entry(&format!("r{n}"), &failed)).collect();
        assert_eq!(fields(&many), ["notify"]);
    }

    #[test]
    fn a_job_names_only_what_the_policy_lets_its_tenant_name() {
        let receiver = |text: &str, tenant: Option<&str>, for_jobs| Receiver {
            name: name(text),
            url: String::new(),
            tenant: tenant.map(name),
            events: BTreeSet::from([NotificationEvent::JobFailed]),
            body: NotificationBody::Slack,
            for_jobs,
        };
        let below =
            |parent: Option<&str>| TenantPolicy { parent: parent.map(name), ..TenantPolicy::default() };
        let draft = PolicyDraft {
            tenants: BTreeMap::from([
                (name("lab"), below(None)),
                (name("vision"), below(Some("lab"))),
                (name("other"), below(None)),
            ]),
            notifications: vec![
                receiver("ops", None, false),
                receiver("all", None, true),
                receiver("chat", Some("lab"), true),
            ],
            ..PolicyDraft::default()
        };
        let policy = draft.check().expect("a policy");
        let may = |tenant: &str, text: &str| policy.why_not_receiver(&name(tenant), &name(text)).is_none();
        assert!(may("vision", "chat") && may("lab", "chat") && may("other", "all"));
        assert!(!may("other", "chat"), "it is for another tenant");
        assert!(!may("lab", "ops"), "it is not for jobs");
        let why = policy.why_not_receiver(&name("other"), &name("ops")).expect("it may not");
        assert!(why.contains("they may name all"), "{why}");
    }
}
