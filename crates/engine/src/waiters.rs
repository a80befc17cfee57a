//! Answers that wait for their record to be applied.

use muster_decider::Answer;
use muster_state::Leadership;
use muster_types::{LogIndex, Refusal, RefusalCode};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// Where an answer goes.
pub(crate) type Reply = oneshot::Sender<Result<Answer, Refusal>>;

struct Waiter {
    leadership: Leadership,
    reply: Reply,
    answer: Result<Answer, Refusal>,
}

#[derive(Default)]
struct Inner {
    applied: LogIndex,
    waiting: BTreeMap<LogIndex, Vec<Waiter>>,
}

/// Answers by the record they wait for.
///
/// **Invariant:** an answer is sent only when the record applied at its index was made by the
/// leadership that promised it. Indexes of a lost leadership are given again by the next one.
#[derive(Default)]
pub(crate) struct Waiters {
    inner: Mutex<Inner>,
}

impl Waiters {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Nothing below panics while it holds the lock; a poisoned one is still consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the answer once everything up to `at` is applied.
    pub(crate) fn add(
        &self,
        at: LogIndex,
        leadership: Leadership,
        reply: Reply,
        answer: Result<Answer, Refusal>,
    ) {
        let mut inner = self.lock();
        if at <= inner.applied {
            drop(inner);
            // The receiver may have given up; then nobody is left to tell.
            let _ = reply.send(answer);
            return;
        }
        inner.waiting.entry(at).or_default().push(Waiter { leadership, reply, answer });
    }

    /// Records up to `index` have been applied, made by `leadership`.
    pub(crate) fn applied(&self, index: LogIndex, leadership: Leadership) {
        let due = {
            let mut inner = self.lock();
            inner.applied = inner.applied.max(index);
            let later = inner.waiting.split_off(&index.next());
            std::mem::replace(&mut inner.waiting, later)
        };
        for waiter in due.into_values().flatten() {
            let answer = if waiter.leadership == leadership { waiter.answer } else { Err(unknown()) };
            let _ = waiter.reply.send(answer);
        }
    }

    /// The leadership has ended: what it promised may or may not come true.
    pub(crate) fn fail(&self, leadership: Leadership) {
        let mut failed = Vec::new();
        {
            let mut inner = self.lock();
            for waiters in inner.waiting.values_mut() {
                failed.extend(waiters.extract_if(.., |waiter| waiter.leadership == leadership));
            }
            inner.waiting.retain(|_, waiters| !waiters.is_empty());
        }
        for waiter in failed {
            let _ = waiter.reply.send(Err(unknown()));
        }
    }
}

fn unknown() -> Refusal {
    Refusal::new(
        RefusalCode::OutcomeUnknown,
        "the leader changed while the request was on its way; repeat it under the same request id",
    )
}
