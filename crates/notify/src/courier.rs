//! One receiver: its events one at a time, those of each tenant in the order of the log.
//!
//! The log is read ahead as far as it is in memory, and tenants take turns. Progress is what was dealt with of the log without a gap, so
//! what was sent ahead of an older event is sent again by the next leader, with the same id.

use muster_engine::{Delivered, Delivery, DeliveryResult, Engine, Event, Subscription, WatchPosition};
use muster_transport::PublicTls;
use muster_types::policy::{NotificationBody, NotificationEvent, NotificationProgress, Receiver};
use muster_types::{LogIndex, Name, Refusal, RefusalCode};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::DeliveryError;
use crate::exchange::Sender;
use crate::message::{Message, about, message, tenant};
use crate::rules::{is_asked_by_job_alone, pause, skip, wants};
use crate::settings::NotifySettings;
use crate::signature::sign;
use crate::turns::{Queued, Turns};

/// Names of headers; part of what receivers rely on.
const DELIVERY_HEADER: &str = "muster-delivery";
const TIMESTAMP_HEADER: &str = "muster-timestamp";
const SIGNATURE_HEADER: &str = "muster-signature";

/// The pause before the log is asked again, when it cannot be followed at present.
const SOURCE_PAUSE: Duration = Duration::from_secs(2);
/// How often records that are neither in memory nor readable in the archive are asked for before they are skipped.
const SOURCE_ATTEMPTS_MAX: u32 = 15;
/// How long one receiver reads from the archive before the next may: one that takes its events slowly would keep all others from
/// it.
const ARCHIVE_TURN: Duration = Duration::from_secs(300);
/// How often the log is read before something that waits is sent.
const READS_MAX: u32 = 64;

/// Where events come from. What is read from the archive takes a whole state and one of few places there, so that one receiver
/// at a time does it.
struct Source {
    subscription: Subscription,
    permit: Option<OwnedSemaphorePermit>,
    opened: Instant,
}

impl Source {
    fn has_had_its_turn(&self) -> bool {
        self.subscription.is_past() && self.opened.elapsed() >= ARCHIVE_TURN
    }
}

/// Delivers to one receiver as long as it runs.
pub(crate) struct Courier {
    engine: Engine,
    settings: Arc<NotifySettings>,
    /// Held by the receiver that reads from the archive.
    archive: Arc<Semaphore>,
    receiver: Receiver,
    sender: Sender,
    delivery: Delivery,
    /// What was read of the log and waits to be sent, and how far the log was read.
    waiting: Turns<(Event, NotificationEvent)>,
    read: WatchPosition,
    /// Since when every attempt has failed.
    failing_since: Option<Instant>,
}

impl Courier {
    pub(crate) fn new(
        engine: Engine,
        settings: Arc<NotifySettings>,
        tls: Arc<Result<PublicTls, String>>,
        archive: Arc<Semaphore>,
        receiver: Receiver,
        progress: NotificationProgress,
    ) -> Courier {
        let sender = Sender::new(&settings, tls);
        let read = WatchPosition::after(progress.delivered);
        let delivery = Delivery { progress, ..Delivery::default() };
        let waiting = Turns::default();
        Courier { engine, settings, archive, receiver, sender, delivery, waiting, read, failing_since: None }
    }

    /// Follows the log from where the receiver has come to. It ends only with its task.
    pub(crate) async fn run(mut self) {
        self.publish();
        let mut misses = 0;
        loop {
            let refusal = match self.engine.watch(self.read) {
                Ok(subscription) => {
                    let permit = match subscription.is_past() {
                        true => Arc::clone(&self.archive).acquire_owned().await.ok(),
                        false => None,
                    };
                    self.follow(Source { subscription, permit, opened: Instant::now() }, &mut misses).await
                }
                Err(refusal) => Some(refusal),
            };
            // The log is read on, or anything of it skipped, when nothing waits: the archive is not kept open for it meanwhile, and
            // progress is as far as the log was read.
            while self.deliver_next(&mut None).await {}
            let Some(refusal) = refusal else { continue };
            misses += 1;
            self.miss(&refusal, misses);
            self.read = self.read.max(WatchPosition::after(self.delivery.progress.delivered));
            tokio::time::sleep(SOURCE_PAUSE).await;
        }
    }

    /// Delivers what a source brings, until it ends; why it did, unless it was given back.
    async fn follow(&mut self, source: Source, misses: &mut u32) -> Option<Refusal> {
        let (mut source, mut reads) = (Some(source), 0);
        while let Some(open) = &mut source {
            let is_past = open.subscription.is_past();
            let next = if self.waiting.is_empty() {
                Some(open.subscription.next().await)
            } else if !is_past && reads < READS_MAX && self.waiting.has_room() {
                // What is in memory is there at once; to give up waiting for more loses nothing.
                tokio::time::timeout(Duration::ZERO, open.subscription.next()).await.ok()
            } else {
                None
            };
            if let Some(next) = next {
                let (events, reached) = match next {
                    Ok(next) => next,
                    Err(refusal) => return Some(refusal),
                };
                *misses = 0;
                if !open.subscription.is_past() {
                    open.permit = None;
                }
                self.queue(events);
                self.read = self.read.max(reached);
                self.settle();
                if !is_past {
                    reads += 1;
                    continue;
                }
            }
            reads = 0;
            self.deliver_next(&mut source).await;
            if source.as_ref().is_some_and(Source::has_had_its_turn) {
                source = None;
            }
        }
        None
    }

    /// Has the events wait that the receiver is to be told of.
    fn queue(&mut self, events: Vec<Event>) {
        let view = self.engine.view();
        for event in events {
            let Some(occurrence) = event.occurrence else { continue };
            let of = tenant(&event).cloned();
            if !wants(&view.policy().policy, &self.receiver, occurrence, (of.as_ref(), &event.named)) {
                continue;
            }
            let is_asked = is_asked_by_job_alone(&self.receiver, occurrence, &event.named);
            let log_index = event.position.log_index;
            let Queued::Dropped { is_first } =
                self.waiting.push(of.clone(), log_index, (event, occurrence), is_asked)
            else {
                continue;
            };
            self.delivery.progress.given_up += 1;
            if is_first {
                let of = of.as_ref().map_or("", Name::as_str);
                let text = format!(
                    "too many events of tenant {of} wait: those behind {log_index} are not sent until these are"
                );
                tracing::warn!(receiver = %self.receiver.name, tenant = of, %log_index, "{text}");
                self.delivery.last_error = Some(text);
            }
        }
    }

    /// Sends the next event; whether there was one.
    async fn deliver_next(&mut self, source: &mut Option<Source>) -> bool {
        let Some((event, occurrence)) = self.waiting.take() else { return false };
        self.deliver(&event, occurrence, source).await;
        self.settle();
        true
    }

    /// What is to be done about a log that cannot be followed from here: nothing for a while, and then without what is missing.
    fn miss(&mut self, refusal: &Refusal, misses: u32) {
        if refusal.code != RefusalCode::ResumeTokenCompacted {
            return;
        }
        let oldest = refusal.metadata.iter().find(|(name, _)| *name == "oldest_log_index");
        let oldest = oldest.and_then(|(_, index)| index.parse().ok()).map(LogIndex);
        let delivered = self.delivery.progress.delivered;
        // What has left memory meanwhile is in the archive, if there is one: the next attempt tells.
        let floor = match oldest.filter(|oldest| *oldest > delivered) {
            _ if misses < 2 => return,
            Some(oldest) => oldest,
            None if misses < SOURCE_ATTEMPTS_MAX => return,
            None => self.engine.view().log_index(),
        };
        skip(&mut self.delivery.progress, floor);
        let skipped = self.delivery.progress.skipped;
        tracing::warn!(receiver = %self.receiver.name, first_log_index = %delivered.next(), last_log_index = %floor, skipped, "records behind which a receiver stood are not kept any more");
        self.publish();
    }

    /// Sends an event until it is taken or given up. A receiver that fails gives back what it holds of the archive.
    async fn deliver(&mut self, event: &Event, occurrence: NotificationEvent, source: &mut Option<Source>) {
        let view = self.engine.view();
        if !wants(&view.policy().policy, &self.receiver, occurrence, (tenant(event), &event.named)) {
            return;
        }
        let Some(message) = message(&view, &self.receiver, event, occurrence) else { return };
        // A state that is held for as long as a receiver is silent would be a second one in memory.
        drop(view);
        let (job, node) = about(event);
        let (job, node) = (job.map(tracing::field::display), node.map(tracing::field::display));
        let mut failures = 0_u32;
        let (result, attempts) = loop {
            let Err(error) = self.attempt(&message).await else {
                break (DeliveryResult::Taken, failures.saturating_add(1));
            };
            failures = failures.saturating_add(1);
            tracing::debug!(receiver = %self.receiver.name, delivery = %message.id, job, node, %error, failures, "a notification is sent again later");
            if self.has_failed(&error) {
                self.delivery.progress.given_up += 1;
                tracing::warn!(receiver = %self.receiver.name, delivery = %message.id, job, node, %error, "a notification was given up");
                break (DeliveryResult::GivenUp, failures);
            }
            self.note(&message, occurrence, DeliveryResult::Retrying, failures);
            self.publish();
            if source.as_ref().is_some_and(|source| source.subscription.is_past()) {
                *source = None;
            }
            tokio::time::sleep(pause(failures, rand::random())).await;
        };
        self.note(&message, occurrence, result, attempts);
        self.publish();
    }

    /// Remembers what became of an event, for people who look for it.
    fn note(&mut self, message: &Message, event: NotificationEvent, result: DeliveryResult, attempts: u32) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let error = if result == DeliveryResult::Taken { None } else { self.delivery.last_error.clone() };
        self.delivery.note(Delivered {
            id: message.id.clone(),
            event,
            subject: message.subject.clone(),
            result,
            attempts,
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            error,
        });
    }

    async fn attempt(&mut self, message: &Message) -> Result<(), DeliveryError> {
        let url = self.settings.url(&self.receiver).await?;
        let key = self.settings.key(&self.receiver.name).await?;
        if key.is_none() && self.receiver.body == NotificationBody::Generic {
            let text =
                format!("it has no key: secrets_dir of this replica has no {}.key", self.receiver.name);
            return Err(DeliveryError::Secret(text));
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = vec![(DELIVERY_HEADER, message.id.clone()), (TIMESTAMP_HEADER, now_s.to_string())];
        headers.extend(key.map(|key| (SIGNATURE_HEADER, sign(&key, now_s, &message.body))));
        self.sender.post(&url, &headers, message.body.clone()).await?;
        self.failing_since = None;
        self.delivery.last_error = None;
        self.delivery.progress.acknowledged += 1;
        Ok(())
    }

    /// Notes a failed attempt. Whether the receiver has failed for so long that nothing is tried twice any more.
    fn has_failed(&mut self, error: &DeliveryError) -> bool {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        self.delivery.failed_attempts += 1;
        self.delivery.last_error = Some(error.to_string());
        since.elapsed() >= self.settings.give_up_after
    }

    /// Everything before the oldest event that waits was dealt with; where none waits, everything that was read.
    fn settle(&mut self) {
        let read = self.read;
        let is_whole = read == WatchPosition::after(read.log_index);
        let before = |log_index: LogIndex| LogIndex(log_index.0.saturating_sub(1));
        let whole = match self.waiting.oldest() {
            Some(oldest) => before(oldest),
            None if is_whole => read.log_index,
            None => before(read.log_index),
        };
        if whole > self.delivery.progress.delivered {
            self.delivery.progress.delivered = whole;
            self.publish();
        }
    }

    fn publish(&self) {
        let (name, delivery) = (self.receiver.name.clone(), self.delivery.clone());
        self.engine.update_local_facts(|facts| _ = facts.deliveries.insert(name, delivery));
    }
}
