//! A broken invariant costs the command or the step that met it, not the leader.
//!
//! Without this a panic of the decider ended the process, and the next leader met the same state and the same command,
//! which its client repeats: the replicas went down one after the other. So a copy of the speculation is kept from where
//! the round being made began, which is cheap, since its trees are persistent. When something panics, the round is made
//! once more on that copy, without the culprit. What was decided before is decided again alike.
//!
//! **Invariant:** nothing of what panicked is in a round; the guard of the state protects the log as before.

use muster_decider::{Answer, Command, Speculation, handle};
use muster_types::{LogTime, Refusal, RefusalCode, ScheduleKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::apply::pending_replies::Reply;

/// Commands that are remembered because they panicked. Of more, the oldest fingerprints go.
const REMEMBERED_MAX: usize = 256;

/// What panicked on this replica, over all its leaderships.
#[derive(Default)]
pub(crate) struct Faults {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    commands: BTreeSet<u64>,
    last: Option<String>,
    count: u64,
}

impl Faults {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
        self.inner.lock()
    }

    /// What happened last, as a sentence.
    pub(crate) fn last(&self) -> Option<String> {
        self.lock().last.clone()
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    /// The refusal of a command that panicked here before.
    fn known(&self, command: &Command) -> Option<Refusal> {
        let inner = self.lock();
        if inner.commands.is_empty() {
            return None;
        }
        let fingerprint = fingerprint(command);
        inner.commands.contains(&fingerprint).then(|| refusal(fingerprint))
    }

    fn note_command(&self, command: &Command, why: &str) -> Refusal {
        let fingerprint = fingerprint(command);
        tracing::error!(
            fingerprint = format!("{fingerprint:016x}"),
            why,
            ?command,
            "a command met a broken invariant and was undone"
        );
        let mut inner = self.lock();
        if inner.commands.len() >= REMEMBERED_MAX {
            inner.commands.pop_first();
        }
        inner.commands.insert(fingerprint);
        inner.count += 1;
        inner.last = Some(format!("a command (fingerprint {fingerprint:016x}) was undone: {why}"));
        refusal(fingerprint)
    }

    pub(super) fn note_step(&self, step: &str, why: &str) {
        tracing::error!(step, why, "a step of the decision loop met a broken invariant and was undone");
        let mut inner = self.lock();
        inner.count += 1;
        inner.last = Some(format!("the step `{step}` was undone and is left out for a while: {why}"));
    }

    /// A schedule whose moments could not be found: it alone is left out.
    pub(super) fn note_schedule(&self, schedule: &ScheduleKey, why: &str) {
        let fingerprint = fingerprint(schedule);
        tracing::error!(
            fingerprint = format!("{fingerprint:016x}"),
            why,
            tenant = %schedule.tenant,
            schedule = %schedule.name,
            "the moments of a schedule met a broken invariant, and it is left out for a while"
        );
        let mut inner = self.lock();
        inner.count += 1;
        inner.last = Some(format!(
            "the moments of a schedule (fingerprint {fingerprint:016x}) could not be found, and it is left out for a \
             while: {why}"
        ));
    }
}

/// Names a command or a schedule in what is public, where its content may not be shown.
pub(crate) fn fingerprint(culprit: &impl std::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{culprit:?}").hash(&mut hasher);
    hasher.finish()
}

fn refusal(fingerprint: u64) -> Refusal {
    let text = format!(
        "the leader met a broken invariant while it carried this out, and undid it; report it with fingerprint \
         {fingerprint:016x}, and do not repeat it unchanged"
    );
    Refusal::new(RefusalCode::Internal, text).with("fingerprint", format!("{fingerprint:016x}"))
}

/// A command that was carried out in the round being made, and where its answer goes.
pub(super) struct Handled {
    now: LogTime,
    command: Command,
    pub(super) reply: Reply,
    pub(super) answer: Result<Answer, Refusal>,
}

/// The round being made, so that it can be made once more.
#[derive(Default)]
pub(super) struct Attempt {
    /// The speculation where the round began; none before the first step of it, or where nothing is contained.
    base: Option<Box<Speculation>>,
    handled: Vec<Handled>,
    /// Where panics end the leader as before, which tests and simulations want.
    is_open: bool,
}

impl Attempt {
    /// With `contain` panics cost what panicked; without it they are passed on.
    pub(super) fn new(contain: bool) -> Attempt {
        Attempt { is_open: !contain, ..Attempt::default() }
    }

    /// Carries out a command; its answer waits for the end of the round.
    pub(super) fn command(
        &mut self,
        speculation: &mut Speculation,
        faults: &Faults,
        command: Command,
        reply: Reply,
    ) -> &Result<Answer, Refusal> {
        let answer = match faults.known(&command) {
            Some(refusal) => Err(refusal),
            None => match self.step(speculation, |speculation| carry_out(speculation, &command)) {
                Ok(answer) => answer,
                Err(why) => Err(faults.note_command(&command, &why)),
            },
        };
        let now = speculation.now();
        let handled = Handled { now, command, reply, answer };
        self.handled.push(handled);
        match self.handled.last() {
            Some(handled) => &handled.answer,
            None => unreachable!("it was pushed just now"),
        }
    }

    /// Takes a step; why it panicked, if it did: then the round is as it was before the step, but for the steps
    /// that are no commands, which are to be taken once more.
    pub(super) fn step<T>(
        &mut self,
        speculation: &mut Speculation,
        step: impl FnOnce(&mut Speculation) -> T,
    ) -> Result<T, String> {
        if self.is_open {
            return Ok(step(speculation));
        }
        let base = self.base.get_or_insert_with(|| Box::new(speculation.clone()));
        let now = speculation.now();
        match catch_unwind(AssertUnwindSafe(|| step(speculation))) {
            Ok(value) => Ok(value),
            Err(panic) => {
                *speculation = Speculation::clone(base);
                for handled in &mut self.handled {
                    speculation.set_now(handled.now);
                    // One that was refused has changed nothing, and one that panicked must not do so again.
                    if handled.answer.is_ok() {
                        handled.answer = handle(speculation, &handled.command);
                    }
                }
                // What is taken next is of the time of this step: what came due since the round began is due all the same.
                speculation.set_now(now);
                Err(panic_text(panic.as_ref()))
            }
        }
    }

    /// The round is over: what was carried out in it.
    pub(super) fn take(&mut self) -> Vec<Handled> {
        self.base = None;
        std::mem::take(&mut self.handled)
    }
}

/// Steps that panicked, and until when they are left out.
#[derive(Default)]
pub(super) struct LeftOut(BTreeMap<&'static str, tokio::time::Instant>);

impl LeftOut {
    pub(super) fn until(&mut self, step: &'static str, until: tokio::time::Instant) {
        self.0.insert(step, until);
    }

    pub(super) fn holds(&self, step: &'static str, now: tokio::time::Instant) -> bool {
        self.0.get(step).is_some_and(|until| *until > now)
    }

    /// When the next of them is taken again.
    pub(super) fn next(&self, now: tokio::time::Instant) -> Option<tokio::time::Instant> {
        self.0.values().copied().filter(|until| *until > now).min()
    }
}

fn carry_out(speculation: &mut Speculation, command: &Command) -> Result<Answer, Refusal> {
    let answer = handle(speculation, command);
    #[cfg(test)]
    crate::tests::poison_command(command);
    answer
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_decider::BootstrapConfig;
    use muster_state::State;
    use muster_types::{ClusterId, Leadership, Parameters, ReplicaId};

    #[test]
    fn time_does_not_go_back_to_the_beginning_of_the_round_when_a_step_is_undone() {
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), founding);
        // In the round after those of the beginning nothing was decided so far.
        while speculation.take_round().is_some() {}
        let mut attempt = Attempt::new(true);
        let first: Result<(), String> = attempt.step(&mut speculation, |_| {});
        assert_eq!(first, Ok(()));
        let later = speculation.now().plus_ms(8);
        speculation.set_now(later);
        assert_eq!(speculation.now(), later);
        let undone: Result<(), String> = attempt.step(&mut speculation, |_| panic!("on purpose"));
        assert_eq!(undone, Err("on purpose".to_owned()));
        assert_eq!(speculation.now(), later);
    }
}
