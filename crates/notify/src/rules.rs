//! The rules of deliveries: values in, values out.

use muster_state::State;
use muster_types::policy::{NotificationEvent, NotificationProgress, Policy, Receiver};
use muster_types::{LogIndex, Name};
use std::time::Duration;

/// The pause after the first failed attempt. Each further one doubles it.
const PAUSE_MIN_MS: u64 = 1_000;
/// The longest pause between attempts.
const PAUSE_MAX_MS: u64 = 5 * 60 * 1_000;
/// Records without an event for a receiver after which its progress is recorded all the same. Without it a new leader would
/// look at them again; were it smaller, the records of progress would keep each other going.
const STRIDE_RECORDS: u64 = 1_024;

/// Whether a receiver is told of an event. `tenant` is that of the job or schedule that it happened to, none for a node; `named` are the
/// receivers that the job names for it. What the policy says now counts: a receiver that jobs may name no more is told of nothing by them.
pub(crate) fn wants(
    policy: &Policy,
    receiver: &Receiver,
    event: NotificationEvent,
    (tenant, named): (Option<&Name>, &[Name]),
) -> bool {
    if !is_asked_by_job(receiver, named) && !receiver.events.contains(&event) {
        return false;
    }
    match (&receiver.tenant, tenant) {
        (None, _) => true,
        (Some(wanted), Some(tenant)) => policy.ancestry(tenant).any(|above| above == wanted),
        (Some(_), None) => false,
    }
}

/// Whether a receiver is told of an event for nothing but that the job has asked for it.
pub(crate) fn is_asked_by_job_alone(receiver: &Receiver, event: NotificationEvent, named: &[Name]) -> bool {
    is_asked_by_job(receiver, named) && !receiver.events.contains(&event)
}

/// Whether the job has asked that a receiver be told of an event.
fn is_asked_by_job(receiver: &Receiver, named: &[Name]) -> bool {
    receiver.for_jobs && named.contains(&receiver.name)
}

/// The pause after this number of failed attempts in a row: at least half of what it doubles to, and the rest by chance, so that the
/// receivers that failed together do not come back together.
pub(crate) fn pause(failures: u32, random: u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = (PAUSE_MIN_MS << doublings).min(PAUSE_MAX_MS);
    let half = whole / 2;
    Duration::from_millis(half + random % (whole - half + 1))
}

/// Whether progress is to be recorded: an event was dealt with, or the receiver is far beyond what is recorded.
pub(crate) fn is_worth_a_record(recorded: &NotificationProgress, now: &NotificationProgress) -> bool {
    let counts =
        |progress: &NotificationProgress| (progress.acknowledged, progress.given_up, progress.skipped);
    let ahead = now.delivered.0.saturating_sub(recorded.delivered.0);
    now.follows(recorded) && (counts(now) != counts(recorded) || ahead >= STRIDE_RECORDS)
}

/// Progress of receivers that is worth a record, by the state and what was done since.
pub(crate) fn due<'a>(
    state: &State,
    done: impl IntoIterator<Item = (&'a Name, NotificationProgress)>,
) -> Vec<(Name, NotificationProgress)> {
    let is_due = |(name, now): &(&Name, NotificationProgress)| {
        state.notification_progress(name).is_some_and(|recorded| is_worth_a_record(&recorded, now))
    };
    done.into_iter().filter(is_due).map(|(name, now)| (name.clone(), now)).collect()
}

/// Progress beyond records that cannot be read any more: up to `floor` none can.
pub(crate) fn skip(progress: &mut NotificationProgress, floor: LogIndex) {
    progress.skipped = progress.skipped.saturating_add(floor.0.saturating_sub(progress.delivered.0));
    progress.delivered = progress.delivered.max(floor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::policy::{NotificationBody, PolicyDraft, TenantPolicy};
    use std::collections::{BTreeMap, BTreeSet};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn receiver(tenant: Option<&str>, events: &[NotificationEvent]) -> Receiver {
        Receiver {
            name: name("r"),
            url: "https://r.example".to_owned(),
            tenant: tenant.map(name),
            events: events.iter().copied().collect(),
            body: NotificationBody::Generic,
            for_jobs: false,
        }
    }

    #[test]
    fn a_receiver_of_a_tenant_is_told_of_jobs_below_it_and_of_no_others() {
        let below =
            |parent: Option<&str>| TenantPolicy { parent: parent.map(name), ..TenantPolicy::default() };
        let tenants = BTreeMap::from([
            (name("lab"), below(None)),
            (name("vision"), below(Some("lab"))),
            (name("other"), below(None)),
        ]);
        let policy = PolicyDraft { tenants, ..PolicyDraft::default() }.check().expect("a policy");
        let failed = NotificationEvent::JobFailed;
        let lab = receiver(Some("lab"), &[failed]);
        let told = |tenant: &str| wants(&policy, &lab, failed, (Some(&name(tenant)), &[]));
        assert_eq!(["lab", "vision", "other", "unknown"].map(told), [true, true, false, false]);
        let started = NotificationEvent::JobStarted;
        assert!(!wants(&policy, &lab, started, (Some(&name("lab")), &[])), "it did not ask");
        assert!(!wants(&policy, &lab, failed, (None, &[])));
        let everything: BTreeSet<NotificationEvent> = NotificationEvent::ALL.into_iter().collect();
        let all = Receiver { events: everything, ..receiver(None, &[]) };
        assert!(wants(&policy, &all, NotificationEvent::NodeDown, (None, &[])));
        assert!(wants(&policy, &all, failed, (Some(&name("unknown")), &[])));
    }

    #[test]
    fn a_receiver_that_a_job_names_is_told_only_where_the_policy_lets_jobs_name_it() {
        let below =
            |parent: Option<&str>| TenantPolicy { parent: parent.map(name), ..TenantPolicy::default() };
        let tenants = BTreeMap::from([(name("lab"), below(None)), (name("other"), below(None))]);
        let policy = PolicyDraft { tenants, ..PolicyDraft::default() }.check().expect("a policy");
        let failed = NotificationEvent::JobFailed;
        let open = Receiver { for_jobs: true, ..receiver(Some("lab"), &[]) };
        let closed = receiver(Some("lab"), &[]);
        let told = |receiver: &Receiver, tenant: &str, named: &[Name]| {
            wants(&policy, receiver, failed, (Some(&name(tenant)), named))
        };
        assert!(told(&open, "lab", &[name("else"), name("r")]));
        assert!(!told(&open, "lab", &[name("else")]), "the job names another one");
        assert!(!told(&open, "other", &[name("r")]), "it is for another tenant");
        assert!(!told(&closed, "lab", &[name("r")]), "it is not for jobs any more");
        let alone = |receiver: &Receiver| is_asked_by_job_alone(receiver, failed, &[name("r")]);
        let both = Receiver { for_jobs: true, ..receiver(Some("lab"), &[failed]) };
        assert!(alone(&open) && !alone(&closed) && !alone(&both), "it asks for that itself");
    }

    #[test]
    fn one_event_is_one_entry_and_the_oldest_are_forgotten() {
        use muster_engine::{DELIVERIES_KEPT, Delivered, Delivery, DeliveryResult};
        let delivered = |number: usize, result| Delivered {
            id: format!("{number}-1-r"),
            event: NotificationEvent::JobFailed,
            subject: "job-1".to_owned(),
            result,
            attempts: 1,
            at_ms: 0,
            error: None,
        };
        let mut delivery = Delivery::default();
        for number in 0..DELIVERIES_KEPT + 3 {
            delivery.note(delivered(number, DeliveryResult::Retrying));
            delivery.note(delivered(number, DeliveryResult::Taken));
        }
        let numbers: Vec<&str> = delivery.recent.iter().map(|delivered| delivered.id.as_str()).collect();
        assert_eq!((numbers.len(), numbers[0]), (DELIVERIES_KEPT, "3-1-r"));
        assert!(delivery.recent.iter().all(|delivered| delivered.result == DeliveryResult::Taken));
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_differ() {
        let bounds = |failures| (pause(failures, 0).as_millis(), pause(failures, u64::MAX).as_millis());
        for (failures, whole) in
            [(0, 1_000), (1, 1_000), (2, 2_000), (5, 16_000), (9, 256_000), (10, 300_000)]
        {
            assert_eq!(bounds(failures).0, whole / 2, "{failures}");
            assert!((whole / 2..=whole).contains(&bounds(failures).1), "{failures}");
        }
        assert_eq!(pause(u32::MAX, 0).as_millis(), 150_000);
    }

    #[test]
    fn progress_is_recorded_for_events_and_for_long_ways_only() {
        let recorded =
            NotificationProgress { delivered: LogIndex(10), acknowledged: 1, given_up: 0, skipped: 0 };
        let at = |delivered| NotificationProgress { delivered: LogIndex(delivered), ..recorded };
        assert!(!is_worth_a_record(&recorded, &recorded));
        assert!(!is_worth_a_record(&recorded, &at(11)), "its own record would make the next");
        assert!(is_worth_a_record(&recorded, &at(10 + STRIDE_RECORDS)));
        assert!(is_worth_a_record(&recorded, &NotificationProgress { acknowledged: 2, ..at(11) }));
        assert!(
            !is_worth_a_record(&recorded, &NotificationProgress { given_up: 1, ..at(9) }),
            "it goes back"
        );
    }

    #[test]
    fn what_cannot_be_read_is_counted() {
        let mut progress = NotificationProgress::behind(LogIndex(10));
        skip(&mut progress, LogIndex(25));
        assert_eq!((progress.delivered, progress.skipped), (LogIndex(25), 15));
        skip(&mut progress, LogIndex(5));
        assert_eq!((progress.delivered, progress.skipped), (LogIndex(25), 15));
    }
}
