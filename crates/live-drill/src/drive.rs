//! Carrying a plan out: each step when its time has come, and an end at once when something is not as it should be.
//!
//! **Invariant:** nothing is done without a look at the cluster right before it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use muster_client::{CallError, Client};
use muster_console::Console;
use muster_wire::admin;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cluster_snapshot::{self, ClusterSnapshot};
use super::means::{Hold, News};
use super::plan::{Plan, PlannedAction};
use super::probes::Probes;
use super::radius;
use super::record::Timeline;

/// Between two looks while it runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// This many looks in a row have to find something wrong: one alone may fall into an election.
const BAD_LOOKS_MAX: u32 = 3;

/// How a drill ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps were carried out and undid themselves.
    Completed,
    /// By who ran it.
    Interrupted,
    /// By somebody else.
    Stopped(String),
    /// A limit did not hold any more, or a step failed.
    Aborted(String),
}

impl End {
    /// For a person.
    pub fn describe(&self) -> String {
        match self {
            End::Completed => "every step was carried out and undone".to_owned(),
            End::Interrupted => "interrupted".to_owned(),
            End::Stopped(why) => format!("stopped from elsewhere: {why}"),
            End::Aborted(why) => format!("aborted: {why}"),
        }
    }
}

/// Ctrl-C and SIGTERM.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// From here on they end the drill instead of the process.
    ///
    /// # Errors
    /// When they cannot be listened to.
    pub fn listen() -> std::io::Result<Interrupts> {
        Ok(Interrupts {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What is done when.
enum Due {
    Begin(usize),
    Over(usize),
}

/// A drill while it runs.
pub struct Driver<'a> {
    pub client: &'a Client,
    pub console: &'a Console,
    pub plan: &'a Plan,
    pub hold: &'a Hold,
    pub news: mpsc::Receiver<News>,
    pub probes: &'a Probes,
    pub interrupts: &'a mut Interrupts,
    pub timeline: &'a mut Timeline,
    look: Option<JoinHandle<Result<ClusterSnapshot, CallError>>>,
    bad_looks: u32,
    /// Silent by their own word, in this step.
    refusing: BTreeSet<u64>,
    /// Silent before, and heard again.
    were_silent: BTreeSet<u64>,
}

/// What a driver is made of.
pub struct Parts<'a> {
    pub client: &'a Client,
    pub console: &'a Console,
    pub plan: &'a Plan,
    pub hold: &'a Hold,
    pub news: mpsc::Receiver<News>,
    pub probes: &'a Probes,
    pub interrupts: &'a mut Interrupts,
    pub timeline: &'a mut Timeline,
}

impl<'a> Driver<'a> {
    pub fn new(parts: Parts<'a>) -> Driver<'a> {
        let Parts { client, console, plan, hold, news, probes, interrupts, timeline } = parts;
        Driver {
            client,
            console,
            plan,
            hold,
            news,
            probes,
            interrupts,
            timeline,
            look: None,
            bad_looks: 0,
            refusing: BTreeSet::new(),
            were_silent: BTreeSet::new(),
        }
    }

    /// From the first quiet moment to the last: `baseline` before the first step, `settle_ms` behind the last.
    pub async fn run(&mut self, baseline: Duration) -> End {
        match self.carry_out(baseline).await {
            Ok(()) => End::Completed,
            Err(end) => end,
        }
    }

    async fn carry_out(&mut self, baseline: Duration) -> Result<(), End> {
        self.say("as usual", "probes are made, nothing is done yet");
        self.watch_until(Instant::now() + baseline).await?;
        let mut due: Vec<(u64, Due)> = Vec::new();
        for (place, step) in self.plan.steps.iter().enumerate() {
            due.push((step.at_ms, Due::Begin(place)));
            due.push((step.at_ms + step.action.for_ms(), Due::Over(place)));
        }
        // Of two at one time, what ends comes first: the next step counts on it.
        due.sort_by_key(|(at_ms, due)| (*at_ms, matches!(due, Due::Begin(_))));
        let start = Instant::now();
        self.timeline.fault_begins();
        for (at_ms, due) in due {
            self.watch_until(start + Duration::from_millis(at_ms)).await?;
            match due {
                Due::Begin(place) => self.begin(place).await?,
                Due::Over(place) => self.over(place).await?,
            }
        }
        self.timeline.fault_ends();
        self.say("undone", "every step is over; probes go on for a while");
        self.watch_until(Instant::now() + Duration::from_millis(self.plan.settle_ms)).await
    }

    fn say(&mut self, what: &str, text: &str) {
        let at = self.timeline.note(what, text);
        self.console.progress(&format!("{at:>7.1} s  {what}: {text}"));
    }

    /// A step, behind a look at the cluster.
    async fn begin(&mut self, place: usize) -> Result<(), End> {
        let plan = self.plan;
        let step = &plan.steps[place];
        let seen = cluster_snapshot::replicas(self.client).await;
        let seen = seen.map_err(|error| End::Aborted(format!("the cluster does not answer: {error}")))?;
        let mut silent = self.hold.in_force().silent;
        if let PlannedAction::Silence { replicas, .. } = &step.action {
            silent.extend(replicas);
        }
        let own = self.hold.identity.id.as_str();
        if let Some(broken) =
            radius::during(&seen, &silent, &BTreeSet::new(), own).into_iter().find(|check| !check.holds)
        {
            return Err(End::Aborted(format!("before step {}: {}", place + 1, broken.text)));
        }
        let text = step.action.describe();
        self.say("step", &text);
        self.timeline.step_begins(place, step.action.verb(), &text);
        let failed = |error: CallError| End::Aborted(format!("step {} failed: {error}", place + 1));
        match &step.action {
            PlannedAction::Silence { replicas, for_ms } => {
                self.hold.silence(replicas, *for_ms).await.map_err(End::Aborted)?;
            }
            PlannedAction::Cordon { region, nodes, .. } => {
                self.hold.cordon(self.client, region, nodes).await.map_err(failed)?;
            }
            PlannedAction::Transfer { to } => {
                let request = admin::TransferLeadershipRequest {
                    target_replica_id: to.unwrap_or(0),
                    from_replica_id: 0,
                };
                let led = self.client.transfer_leadership(request).await.map_err(failed)?;
                self.say("leader", &format!("replica {} leads", led.leader_id));
            }
        }
        Ok(())
    }

    /// The end of a step's time.
    async fn over(&mut self, place: usize) -> Result<(), End> {
        let plan = self.plan;
        match &plan.steps[place].action {
            PlannedAction::Silence { replicas, .. } => {
                self.hold.heard_again(replicas);
                self.were_silent.extend(replicas);
                self.refusing.clear();
                self.say("over", "the silent replicas take traffic again");
            }
            PlannedAction::Cordon { region, .. } => {
                let put_back = self.hold.uncordon(self.client, region).await;
                let put_back =
                    put_back.map_err(|error| End::Aborted(format!("nodes stay marked: {error}")))?;
                self.say("over", &format!("{put_back} nodes of {region} take work again"));
            }
            PlannedAction::Transfer { .. } => {}
        }
        self.timeline.step_ends(place);
        Ok(())
    }

    /// Waits, and ends at once when something is not as it should be.
    async fn watch_until(&mut self, end: Instant) -> Result<(), End> {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let silence_max = Duration::from_millis(self.plan.silence_max_ms);
        loop {
            let silence_ends = Instant::now() + silence_max.saturating_sub(self.probes.silence());
            tokio::select! {
                () = tokio::time::sleep_until(end.into()) => return Ok(()),
                () = self.interrupts.any() => return Err(End::Interrupted),
                news = self.news.recv() => if let Some(news) = news {
                    self.take_news(news)?;
                },
                () = tokio::time::sleep_until(silence_ends.into()) => {
                    if self.probes.silence() >= silence_max {
                        let text = format!("no submission was acknowledged for {} ms", silence_max.as_millis());
                        return Err(End::Aborted(text));
                    }
                }
                looked = finished(&mut self.look) => self.take_look(looked)?,
                _ = looks.tick(), if self.look.is_none() => {
                    let client = self.client.clone();
                    self.look = Some(tokio::spawn(async move { cluster_snapshot::replicas(&client).await }));
                }
            }
        }
    }

    fn take_news(&mut self, news: News) -> Result<(), End> {
        match news {
            News::Over { replica, why } => {
                Err(End::Stopped(format!("replica {replica} holds the drill no longer: {why}")))
            }
            News::Held { replica, refuses: false } => {
                if self.hold.in_force().silent.contains(&replica) && self.refusing.remove(&replica) {
                    self.say("heard", &format!("replica {replica} takes traffic before its time was over"));
                }
                Ok(())
            }
            News::Held { replica, refuses: true } => {
                self.refusing.insert(replica);
                Ok(())
            }
            News::Unanswered => Ok(()),
        }
    }

    fn take_look(&mut self, looked: Option<Result<ClusterSnapshot, CallError>>) -> Result<(), End> {
        // A look that panicked has been reported; the next one tells.
        let Some(looked) = looked else { return Ok(()) };
        let broken = match looked {
            Ok(seen) => {
                for replica in &seen.replicas {
                    if let Some((log_index, digest)) = &replica.state {
                        self.timeline.state_seen(replica.id, *log_index, digest);
                    }
                }
                for warning in &seen.warnings {
                    self.timeline.warned(&warning.code, warning.replica);
                }
                if let Some(leader) = seen.leader
                    && self.timeline.leads(leader)
                {
                    self.say("leader", &format!("replica {leader} leads"));
                }
                let (silent, own) = (self.hold.in_force().silent, self.hold.identity.id.clone());
                radius::during(&seen, &silent, &self.were_silent, &own).into_iter().find(|check| !check.holds)
            }
            Err(error) => {
                let text = format!("the cluster does not answer: {error}");
                Some(radius::Check { limit: "answers", holds: false, text })
            }
        };
        let Some(broken) = broken else {
            self.bad_looks = 0;
            return Ok(());
        };
        self.bad_looks += 1;
        if self.bad_looks >= BAD_LOOKS_MAX || broken.limit == "one-drill" {
            return Err(End::Aborted(broken.text));
        }
        Ok(())
    }
}

/// What a look found, once there is one; none where it panicked.
async fn finished(
    look: &mut Option<JoinHandle<Result<ClusterSnapshot, CallError>>>,
) -> Option<Result<ClusterSnapshot, CallError>> {
    let Some(running) = look.as_mut() else { return std::future::pending().await };
    let looked = running.await.ok();
    *look = None;
    looked
}
