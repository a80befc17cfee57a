//! Which receivers are served, and when their progress is recorded.

use muster_decider::Command;
use muster_engine::Engine;
use muster_state::State;
use muster_transport::PublicTls;
use muster_types::policy::{NotificationProgress, Receiver};
use muster_types::{LogIndex, Name};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::courier::Courier;
use crate::rules::due;
use crate::settings::NotifySettings;

/// How often the policy is looked at, and progress recorded, at most.
const TICK: Duration = Duration::from_secs(1);
/// How long the record of progress may take; the next one has what it was to say.
const RECORD_MAX: Duration = Duration::from_secs(5);

/// The task of one receiver; it ends with this.
struct Task {
    receiver: Receiver,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// Delivers while this replica leads, until it stops serving.
pub async fn run(engine: Engine, settings: NotifySettings) {
    let settings = Arc::new(settings);
    let mut leadership = engine.leadership();
    loop {
        tokio::select! {
            () = engine.stopping() => return,
            leads = async { leadership.wait_for(|seen| seen.mine.is_some()).await.is_ok() } => {
                if !leads {
                    return;
                }
            }
        }
        tokio::select! {
            () = engine.stopping() => return,
            () = lead(&engine, &settings) => {}
            knows = async { leadership.wait_for(|seen| seen.mine.is_none()).await.is_ok() } => {
                if !knows {
                    return;
                }
            }
        }
        engine.update_local_facts(|facts| facts.deliveries.clear());
    }
}

/// Serves the receivers of the policy in force. The next leader begins where the last record of progress says.
async fn lead(engine: &Engine, settings: &Arc<NotifySettings>) {
    let authorities = settings.ca_file.clone();
    let tls = tokio::task::spawn_blocking(move || {
        PublicTls::load(authorities.as_deref()).map_err(|error| error.to_string())
    });
    let tls = Arc::new(tls.await.unwrap_or_else(|_| Err("reading them failed".to_owned())));
    let archive = Arc::new(Semaphore::new(1));
    let mut tasks: BTreeMap<Name, Task> = BTreeMap::new();
    let mut version: Option<LogIndex> = None;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let view = engine.view();
        if version != Some(view.policy().version) {
            version = Some(view.policy().version);
            serve(engine, settings, (&tls, &archive), &view, &mut tasks);
        }
        record(engine, &view).await;
    }
}

/// Ends the tasks of receivers that are not in the policy as they were, and begins those of new ones.
fn serve(
    engine: &Engine,
    settings: &Arc<NotifySettings>,
    (tls, archive): (&Arc<Result<PublicTls, String>>, &Arc<Semaphore>),
    view: &State,
    tasks: &mut BTreeMap<Name, Task>,
) {
    let named = &view.policy().policy.notifications;
    tasks.retain(|_, task| named.contains(&task.receiver));
    engine.update_local_facts(|facts| {
        facts.deliveries.retain(|name, _| named.iter().any(|receiver| receiver.name == *name));
    });
    let known = engine.local_facts().deliveries;
    for receiver in named {
        if tasks.contains_key(&receiver.name) {
            continue;
        }
        let recorded = view.notification_progress(&receiver.name);
        let recorded = recorded.unwrap_or_else(|| NotificationProgress::behind(view.log_index()));
        let progress = known.get(&receiver.name).map(|delivery| delivery.progress);
        let progress = progress.filter(|progress| progress.follows(&recorded)).unwrap_or(recorded);
        let courier = Courier::new(
            engine.clone(),
            Arc::clone(settings),
            Arc::clone(tls),
            Arc::clone(archive),
            receiver.clone(),
            progress,
        );
        let task = Task { receiver: receiver.clone(), handle: tokio::spawn(courier.run()) };
        tasks.insert(receiver.name.clone(), task);
    }
}

/// Records the progress of all receivers that have gone on, in one record.
async fn record(engine: &Engine, view: &State) {
    let done = engine.local_facts().deliveries;
    let progress = due(view, done.iter().map(|(name, delivery)| (name, delivery.progress)));
    if progress.is_empty() {
        return;
    }
    // A refusal is that of a leader that is none any more, or that has too much to do: the next second says it again.
    let recorded = engine.execute(Command::NoteNotifications { progress });
    if let Ok(Err(refusal)) = tokio::time::timeout(RECORD_MAX, recorded).await {
        tracing::debug!(code = ?refusal.code, "the progress of notifications was not recorded");
    }
}
