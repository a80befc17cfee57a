//! Which drill runs, as this replica was told, and what it refuses for it.
//!
//! Nothing here is agreed on or kept: a drill is held in memory by every replica, for as long as its driver
//! renews it. A driver has to be let in by all voters before it does anything, so two never run together.
//!
//! **Invariant:** what is refused ends when the drill is not renewed, by this replica's own monotonic clock.
//! **Invariant:** a drill that was ended cannot be renewed.

use muster_engine::{Traffic, TrafficScope};
use muster_types::{Name, Refusal, RefusalCode, ReplicaId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Drills remembered as ended, so that their drivers learn of it.
const ENDED_MAX: usize = 32;

/// What a driver says of its drill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) id: Name,
    pub(crate) name: Name,
    pub(crate) started_by: String,
    pub(crate) principal: String,
    pub(crate) hold: Duration,
    pub(crate) silent: Vec<ReplicaId>,
    pub(crate) cordoned_regions: Vec<Name>,
}

/// A drill that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) id: Name,
    pub(crate) name: Name,
    pub(crate) started_by: String,
    pub(crate) principal: String,
    /// For how long without being renewed.
    pub(crate) left: Duration,
    pub(crate) silent: Vec<ReplicaId>,
    pub(crate) cordoned_regions: Vec<Name>,
    /// What this replica refuses for it, and for how long still.
    pub(crate) refused: Option<(TrafficScope, Duration)>,
}

struct Current {
    said: Announcement,
    until: Instant,
    refusal: Option<Silence>,
}

/// What is refused, and until when however often it is renewed.
#[derive(Clone, Copy)]
struct Silence {
    scope: TrafficScope,
    ends: Instant,
}

#[derive(Default)]
struct Registry {
    current: Option<Current>,
    ended: VecDeque<Name>,
}

struct Shared {
    traffic: Traffic,
    refusal_max: Duration,
    registry: Mutex<Registry>,
}

/// The drills of this replica. Clones share them.
#[derive(Clone)]
pub(crate) struct Drills {
    shared: Arc<Shared>,
}

fn over(id: &Name) -> Refusal {
    let text = format!("drill {id} does not run here any more");
    Refusal::new(RefusalCode::DrillOver, text).with("drill_id", id)
}

impl Registry {
    /// Forgets what was not renewed.
    fn expire(&mut self, now: Instant) {
        if self.current.as_ref().is_some_and(|current| current.until <= now) {
            self.end(now);
        }
    }

    fn end(&mut self, now: Instant) -> Option<Held> {
        let ended = self.current.take()?;
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(ended.said.id.clone());
        Some(ended.held(now))
    }
}

impl Current {
    fn held(&self, now: Instant) -> Held {
        let refused = self.refusal.map(|r| (r.scope, r.ends.min(self.until).saturating_duration_since(now)));
        Held {
            id: self.said.id.clone(),
            name: self.said.name.clone(),
            started_by: self.said.started_by.clone(),
            principal: self.said.principal.clone(),
            left: self.until.saturating_duration_since(now),
            silent: self.said.silent.clone(),
            cordoned_regions: self.said.cordoned_regions.clone(),
            refused: refused.filter(|(_, left)| !left.is_zero()),
        }
    }
}

impl Drills {
    pub(crate) fn new(traffic: Traffic, refusal_max: Duration) -> Drills {
        Drills { shared: Arc::new(Shared { traffic, refusal_max, registry: Mutex::default() }) }
    }

    /// How long traffic may be refused at most.
    pub(crate) fn refusal_max(&self) -> Duration {
        self.shared.refusal_max
    }

    fn registry(&self, now: Instant) -> MutexGuard<'_, Registry> {
        let mut registry = self.shared.registry.lock();
        registry.expire(now);
        registry
    }

    /// The drill that runs.
    pub(crate) fn current(&self) -> Option<Held> {
        let now = Instant::now();
        self.registry(now).current.as_ref().map(|current| current.held(now))
    }

    /// A drill begins, or goes on.
    ///
    /// # Errors
    /// While another runs, and when this one was ended.
    pub(crate) fn announce(&self, said: Announcement) -> Result<Held, Refusal> {
        let now = Instant::now();
        let mut registry = self.registry(now);
        if registry.ended.contains(&said.id) {
            return Err(over(&said.id));
        }
        let until = now + said.hold;
        match &mut registry.current {
            Some(current) if current.said.id != said.id => {
                let other = &current.said;
                let text =
                    format!("drill {} ({}), started by {}, runs", other.name, other.id, other.started_by);
                let refusal = Refusal::new(RefusalCode::DrillRunning, text).with("drill_id", &other.id);
                return Err(refusal.with("name", &other.name).with("started_by", &other.started_by));
            }
            Some(current) => {
                current.until = until;
                current.said = said;
                if let Some(refusal) = current.refusal.filter(|refusal| refusal.ends > now) {
                    self.shared.traffic.refuse(refusal.scope, refusal.ends.min(until));
                }
            }
            None => {
                tracing::warn!(drill = %said.id, name = %said.name, started_by = said.started_by, principal = said.principal, "a drill begins");
                registry.current = Some(Current { said, until, refusal: None });
            }
        }
        let current = registry.current.as_ref().expect("it was just put there");
        Ok(current.held(now))
    }

    /// Begins to refuse traffic, for as long as asked and as the drill is renewed.
    ///
    /// # Errors
    /// When that drill does not run.
    pub(crate) fn refuse(&self, id: &Name, scope: TrafficScope, duration: Duration) -> Result<Held, Refusal> {
        let now = Instant::now();
        let mut registry = self.registry(now);
        let current = registry.current.as_mut().filter(|current| current.said.id == *id);
        let current = current.ok_or_else(|| over(id))?;
        let ends = now + duration.min(self.shared.refusal_max);
        current.refusal = Some(Silence { scope, ends });
        self.shared.traffic.refuse(scope, ends.min(current.until));
        tracing::warn!(drill = %id, %scope, at_most_ms = duration.as_millis(), principal = current.said.principal, "this replica refuses traffic for a drill");
        let held = current.held(now);
        drop(registry);
        tokio::spawn(self.clone().say_when_over(id.clone(), ends));
        Ok(held)
    }

    /// Writes down when a refusal is over, however that came about.
    async fn say_when_over(self, id: Name, ends: Instant) {
        loop {
            let left = {
                let now = Instant::now();
                let registry = self.registry(now);
                let current = registry.current.as_ref().filter(|current| current.said.id == id);
                let refusal = current.and_then(|current| Some((current.refusal?, current.until)));
                match refusal {
                    // A later refusal has its own watcher.
                    Some((refusal, _)) if refusal.ends != ends => return,
                    Some((refusal, until)) => refusal.ends.min(until).saturating_duration_since(now),
                    None => Duration::ZERO,
                }
            };
            if left.is_zero() {
                tracing::warn!(drill = %id, "this replica takes all traffic again");
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Ends a drill, or whichever runs.
    pub(crate) fn end(&self, id: Option<&Name>, principal: &str) -> Option<Held> {
        let now = Instant::now();
        let mut registry = self.registry(now);
        let ended = match id {
            Some(id) if registry.current.as_ref().is_none_or(|current| current.said.id != *id) => {
                // One that is announced here later was ended all the same.
                if !registry.ended.contains(id) {
                    if registry.ended.len() >= ENDED_MAX {
                        registry.ended.pop_front();
                    }
                    registry.ended.push_back(id.clone());
                }
                None
            }
            _ => registry.end(now),
        };
        if let Some(ended) = &ended {
            self.shared.traffic.allow();
            tracing::warn!(drill = %ended.id, name = %ended.name, principal, "a drill ends");
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drills() -> Drills {
        Drills::new(Traffic::default(), Duration::from_secs(60))
    }

    fn of(id: &'static str, hold_ms: u64) -> Announcement {
        Announcement {
            id: Name::literal(id),
            name: Name::literal("replica-silent"),
            started_by: "ada@desk".to_owned(),
            principal: String::new(),
            hold: Duration::from_millis(hold_ms),
            silent: Vec::new(),
            cordoned_regions: Vec::new(),
        }
    }

    #[tokio::test]
    async fn one_runs_at_a_time_and_the_second_is_told_of_the_first() {
        let drills = drills();
        drills.announce(of("one", 60_000)).expect("nothing runs");
        drills.announce(of("one", 60_000)).expect("it goes on");
        let refused = drills.announce(of("two", 60_000)).expect_err("one runs");
        assert_eq!(refused.code, RefusalCode::DrillRunning);
        assert!(refused.metadata.contains(&("drill_id", "one".to_owned())), "{refused:?}");
        assert!(refused.metadata.contains(&("started_by", "ada@desk".to_owned())), "{refused:?}");
        assert_eq!(drills.end(None, "").map(|held| held.id), Some(Name::literal("one")));
        drills.announce(of("two", 60_000)).expect("the first is over");
        let refused = drills.announce(of("one", 60_000)).expect_err("it was ended");
        assert_eq!(refused.code, RefusalCode::DrillOver);
    }

    #[tokio::test]
    async fn what_is_not_renewed_is_over_and_everything_is_taken_again() {
        let drills = drills();
        drills.announce(of("one", 60_000)).expect("nothing runs");
        let held = drills.refuse(&Name::literal("one"), TrafficScope::ALL, Duration::from_secs(600));
        let (scope, left) = held.expect("it runs").refused.expect("it refuses");
        assert!(scope == TrafficScope::ALL && left <= Duration::from_secs(60), "no longer than the limit");
        assert!(drills.shared.traffic.refused().is_some());
        // The last renewal holds for no time at all.
        drills.announce(of("one", 0)).expect("it goes on");
        assert!(drills.shared.traffic.refused().is_none(), "by the clock alone");
        assert_eq!(drills.current(), None);
        let late = drills.announce(of("one", 60_000)).expect_err("its driver came too late");
        assert_eq!(late.code, RefusalCode::DrillOver);
    }

    #[tokio::test]
    async fn renewals_do_not_prolong_a_refusal_beyond_what_was_asked() {
        let drills = drills();
        let one = Name::literal("one");
        assert_eq!(
            drills.refuse(&one, TrafficScope::ALL, Duration::from_secs(1)).expect_err("not announced").code,
            RefusalCode::DrillOver
        );
        drills.announce(of("one", 60_000)).expect("nothing runs");
        drills.refuse(&one, TrafficScope::ALL, Duration::ZERO).expect("it runs");
        let held = drills.announce(of("one", 60_000)).expect("it goes on");
        assert!(held.refused.is_none() && drills.shared.traffic.refused().is_none());
    }

    #[tokio::test]
    async fn a_drill_that_is_ended_before_it_came_here_does_not_begin() {
        let drills = drills();
        assert_eq!(drills.end(Some(&Name::literal("one")), ""), None);
        assert_eq!(drills.announce(of("one", 60_000)).expect_err("ended").code, RefusalCode::DrillOver);
        for number in 0..100 {
            drills.end(Name::new(&format!("d{number}")).as_ref(), "");
        }
        assert!(drills.shared.registry.lock().ended.len() <= ENDED_MAX);
    }
}
