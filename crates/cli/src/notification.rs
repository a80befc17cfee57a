//! `muster notification …`.

use clap::Subcommand;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment};
use muster_types::policy::NotificationEvent;
use muster_wire::admin;
use muster_wire::closed::word;
use serde::Serialize;

/// Commands about notifications.
#[derive(Subcommand)]
pub enum NotificationCommand {
    /// List the receivers of the policy: how far each has come, and why it comes no further
    #[command(after_help = "\
Examples:
  muster notification list
  muster notification list -o json | jq '.items[] | select(.lagRecords > 1000)'

Receivers are in the policy (`muster policy show`), their keys in a directory of each replica. LAG counts records of the log
that were not looked at for a receiver yet. GIVEN UP are events that it did not take in time, SKIPPED records that could
not be read any more.")]
    List,
    /// Show what became of the last events of one receiver: taken, given up or tried again, and why
    #[command(after_help = "\
Examples:
  muster notification log vision-chat
  muster notification log vision-chat -o json | jq '.items[] | select(.result == \"given_up\")'

The leader remembers the last 64 events of each receiver, and a new leader begins with none. What a receiver has taken in all,
and how far it has come, is in `muster notification list` and survives every leader.")]
    Log {
        /// A receiver of the policy
        receiver: String,
    },
}

/// One receiver.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receiver {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    delivered_log_index: u64,
    lag_records: u64,
    acknowledged_events: u64,
    given_up_events: u64,
    skipped_records: u64,
    failed_attempts: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    last_error: String,
}

impl From<admin::NotificationProgress> for Receiver {
    fn from(sent: admin::NotificationProgress) -> Receiver {
        Receiver {
            name: sent.name,
            host: sent.host,
            delivered_log_index: sent.delivered_log_index,
            lag_records: sent.lag_records,
            acknowledged_events: sent.acknowledged_events,
            given_up_events: sent.given_up_events,
            skipped_records: sent.skipped_records,
            failed_attempts: sent.failed_attempts,
            last_error: sent.last_error,
        }
    }
}

pub async fn run(global: &Global, console: &Console, command: NotificationCommand) -> Result<Exit, Failure> {
    match command {
        NotificationCommand::List => list(global, console).await,
        NotificationCommand::Log { receiver } => log(global, console, receiver).await,
    }
}

async fn list(global: &Global, console: &Console) -> Result<Exit, Failure> {
    let answer =
        global.client().await?.list_notifications(admin::ListNotificationsRequest::default()).await?;
    let receivers: Vec<Receiver> = answer.receivers.into_iter().map(Receiver::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            let items = Items { items: receivers };
            console.object(&Document::new("NotificationList", answer.freshness, items))?;
        }
        Format::Name => {
            let lines: String = receivers.iter().map(|receiver| format!("{}\n", receiver.name)).collect();
            console.bytes(lines.as_bytes())?;
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => console.table(&table(receivers))?,
    }
    Ok(Exit::Ok)
}

/// One delivery.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    id: String,
    event: &'static str,
    subject: String,
    result: &'static str,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    last_error: String,
}

impl From<admin::NotificationDelivery> for Delivery {
    fn from(sent: admin::NotificationDelivery) -> Delivery {
        let result = match sent.result() {
            admin::NotificationResult::Retrying => "retrying",
            admin::NotificationResult::Taken => "taken",
            admin::NotificationResult::GivenUp => "given_up",
            admin::NotificationResult::Unspecified => "unknown",
        };
        Delivery {
            id: sent.id,
            event: word::<NotificationEvent>(sent.event),
            subject: sent.subject,
            result,
            attempts: sent.attempts,
            last_attempt_time: moment(sent.last_attempt_time),
            last_error: sent.last_error,
        }
    }
}

async fn log(global: &Global, console: &Console, receiver: String) -> Result<Exit, Failure> {
    let request = admin::ListNotificationsRequest { receiver };
    let answer = global.client().await?.list_notifications(request).await?;
    let sent = answer.receivers.into_iter().flat_map(|receiver| receiver.deliveries);
    let deliveries: Vec<Delivery> = sent.map(Delivery::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            let items = Items { items: deliveries };
            console.object(&Document::new("NotificationDeliveryList", answer.freshness, items))?;
        }
        Format::Name => {
            let lines: String = deliveries.iter().map(|delivery| format!("{}\n", delivery.id)).collect();
            console.bytes(lines.as_bytes())?;
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.list(&deliveries_table(deliveries), "the present leader has sent it nothing yet")?;
        }
    }
    Ok(Exit::Ok)
}

fn deliveries_table(deliveries: Vec<Delivery>) -> Grid {
    let mut grid = Grid::new(vec!["DELIVERY", "EVENT", "OF", "RESULT", "ATTEMPTS", "LAST ATTEMPT", "ERROR"]);
    for delivery in deliveries {
        grid.row(vec![
            delivery.id,
            delivery.event.to_owned(),
            delivery.subject,
            delivery.result.to_owned(),
            delivery.attempts.to_string(),
            delivery.last_attempt_time.unwrap_or_default(),
            delivery.last_error,
        ]);
    }
    grid
}

fn table(receivers: Vec<Receiver>) -> Grid {
    let header = vec!["RECEIVER", "HOST", "DELIVERED", "LAG", "TAKEN", "GIVEN UP", "SKIPPED", "LAST ERROR"];
    let mut grid = Grid::new(header);
    for receiver in receivers {
        grid.row(vec![
            receiver.name,
            receiver.host,
            receiver.delivered_log_index.to_string(),
            receiver.lag_records.to_string(),
            receiver.acknowledged_events.to_string(),
            receiver.given_up_events.to_string(),
            receiver.skipped_records.to_string(),
            receiver.last_error,
        ]);
    }
    grid
}
