//! How far receivers of notifications have come, as the leader knows it.

use muster_engine::{Delivered, Delivery, DeliveryResult, Engine};
use muster_types::policy::{NotificationProgress, Receiver};
use muster_types::{Refusal, Violation};
use muster_wire::admin;
use muster_wire::closed::number;
use muster_wire::time::timestamp;

use crate::read::freshness;

/// Every receiver of the policy in force, or the one that a request names, with its last deliveries. What was done since the last
/// record of progress is in the leader's memory.
pub(crate) fn list(
    engine: &Engine,
    request: &admin::ListNotificationsRequest,
) -> Result<admin::ListNotificationsResponse, Refusal> {
    let view = engine.reading();
    let deliveries = engine.local_facts().deliveries;
    let end = view.log_index().0;
    let row = |receiver: &Receiver| {
        let delivery = deliveries.get(&receiver.name).cloned().unwrap_or_default();
        let recorded = view.notification_progress(&receiver.name).unwrap_or_default();
        progress(receiver, &delivery, recorded, end)
    };
    let named = &view.policy().policy.notifications;
    let receivers = match request.receiver.as_str() {
        "" => named.iter().map(row).collect(),
        asked => {
            let found = named.iter().find(|receiver| receiver.name.as_str() == asked);
            let Some(receiver) = found else {
                let text = "must be a receiver of the policy; `muster notification list` lists them";
                return Err(Refusal::fields(vec![Violation::new("receiver", text)]));
            };
            let recent = deliveries.get(&receiver.name).map(|delivery| delivery.recent.clone());
            let deliveries = recent.iter().flat_map(|recent| recent.iter()).map(delivered).collect();
            vec![admin::NotificationProgress { deliveries, ..row(receiver) }]
        }
    };
    Ok(admin::ListNotificationsResponse { receivers, freshness: Some(freshness(engine, &view)) })
}

fn progress(
    receiver: &Receiver,
    delivery: &Delivery,
    recorded: NotificationProgress,
    end: u64,
) -> admin::NotificationProgress {
    let progress = if delivery.progress.follows(&recorded) { delivery.progress } else { recorded };
    admin::NotificationProgress {
        name: receiver.name.to_string(),
        host: receiver.host().to_owned(),
        delivered_log_index: progress.delivered.0,
        lag_records: end.saturating_sub(progress.delivered.0),
        acknowledged_events: progress.acknowledged,
        given_up_events: progress.given_up,
        skipped_records: progress.skipped,
        failed_attempts: delivery.failed_attempts,
        last_error: delivery.last_error.clone().unwrap_or_default(),
        deliveries: Vec::new(),
    }
}

fn delivered(of: &Delivered) -> admin::NotificationDelivery {
    let result = match of.result {
        DeliveryResult::Retrying => admin::NotificationResult::Retrying,
        DeliveryResult::Taken => admin::NotificationResult::Taken,
        DeliveryResult::GivenUp => admin::NotificationResult::GivenUp,
    };
    admin::NotificationDelivery {
        id: of.id.clone(),
        event: number(of.event),
        subject: of.subject.clone(),
        result: result.into(),
        attempts: of.attempts,
        last_attempt_time: Some(timestamp(of.at_ms)),
        last_error: of.error.clone().unwrap_or_default(),
    }
}
