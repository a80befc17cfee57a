//! How far receivers of notifications have come, as the leader knows it.

use muster_engine::Engine;
use muster_types::policy::NotificationProgress;
use muster_wire::admin;

use crate::read::freshness;

/// Every receiver of the policy in force. What was done since the last record of progress is in the leader's memory.
pub(crate) fn list(engine: &Engine) -> admin::ListNotificationsResponse {
    let view = engine.reading();
    let deliveries = engine.local_facts().deliveries;
    let end = view.log_index().0;
    let receiver = |receiver: &muster_types::policy::Receiver| {
        let delivery = deliveries.get(&receiver.name).cloned().unwrap_or_default();
        let recorded = view.notification_progress(&receiver.name).unwrap_or_default();
        let progress: NotificationProgress =
            if delivery.progress.follows(&recorded) { delivery.progress } else { recorded };
        admin::NotificationProgress {
            name: receiver.name.to_string(),
            host: receiver.host().to_owned(),
            delivered_log_index: progress.delivered.0,
            lag_records: end.saturating_sub(progress.delivered.0),
            acknowledged_events: progress.acknowledged,
            given_up_events: progress.given_up,
            skipped_records: progress.skipped,
            failed_attempts: delivery.failed_attempts,
            last_error: delivery.last_error.unwrap_or_default(),
        }
    };
    admin::ListNotificationsResponse {
        receivers: view.policy().policy.notifications.iter().map(receiver).collect(),
        freshness: Some(freshness(engine, &view)),
    }
}
