//! Answers that wait for their record to be applied.

use muster_decider::Answer;
use muster_planted::{Rule, breaks};
use muster_types::{Leadership, LogIndex, Refusal, RefusalCode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Where an answer goes.
pub type Reply = oneshot::Sender<Result<Answer, Refusal>>;

struct PendingReply {
    leadership: Leadership,
    reply: Reply,
    answer: Result<Answer, Refusal>,
}

/// How far the log is applied here, and whose records are accepted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    index: LogIndex,
    leadership: Option<Leadership>,
}

#[derive(Default)]
struct Inner {
    applied: Position,
    waiting: BTreeMap<LogIndex, Vec<PendingReply>>,
}

/// Answers by the record they wait for.
///
/// **Invariant:** an answer is sent only while the state that was reached is of the leadership that
/// promised it: then its record is the one at that index. Indexes of a lost leadership are given
/// again by the next one, and may be applied here before the lost one has noticed.
#[derive(Default)]
pub struct PendingReplies {
    inner: Mutex<Inner>,
}

impl PendingReplies {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        // Nothing below panics while it holds the lock; a poisoned one is still consistent.
        self.inner.lock()
    }

    /// Sends the answer once everything up to `at` is applied.
    pub fn add(&self, at: LogIndex, leadership: Leadership, reply: Reply, answer: Result<Answer, Refusal>) {
        let mut inner = self.lock();
        let applied = inner.applied;
        if breaks(Rule::AnswerBeforeApply) {
            return tell(PendingReply { leadership, reply, answer }, Some(leadership));
        }
        if at > applied.index {
            inner.waiting.entry(at).or_default().push(PendingReply { leadership, reply, answer });
            return;
        }
        drop(inner);
        tell(PendingReply { leadership, reply, answer }, applied.leadership);
    }

    /// The log is applied up to `index`, and `leadership` is the one whose records the state takes.
    pub fn applied(&self, index: LogIndex, leadership: Option<Leadership>) {
        let due = {
            let mut inner = self.lock();
            inner.applied = Position { index: inner.applied.index.max(index), leadership };
            let later = inner.waiting.split_off(&index.next());
            std::mem::replace(&mut inner.waiting, later)
        };
        for pending in due.into_values().flatten() {
            tell(pending, leadership);
        }
    }

    /// The leadership has ended: what it promised may or may not come true.
    pub fn fail(&self, leadership: Leadership) {
        let mut failed = Vec::new();
        {
            let mut inner = self.lock();
            for pending_replies in inner.waiting.values_mut() {
                failed.extend(pending_replies.extract_if(.., |pending| pending.leadership == leadership));
            }
            inner.waiting.retain(|_, pending_replies| !pending_replies.is_empty());
        }
        for pending in failed {
            tell(pending, None);
        }
    }
}

/// The promised answer when the state is of the leadership that promised it, else that nobody knows.
fn tell(pending: PendingReply, reached: Option<Leadership>) {
    let answer = if reached == Some(pending.leadership) { pending.answer } else { Err(unknown()) };
    // The receiver may have given up; then nobody is left to tell.
    let _ = pending.reply.send(answer);
}

fn unknown() -> Refusal {
    Refusal::new(
        RefusalCode::OutcomeUnknown,
        "the leader changed while the request was on its way; repeat it under the same request id",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::ReplicaId;
    use tokio::sync::oneshot::error::TryRecvError;

    const FIRST: Leadership = Leadership { term: 3, replica: ReplicaId(1) };
    const SECOND: Leadership = Leadership { term: 4, replica: ReplicaId(2) };

    type PendingAnswer = oneshot::Receiver<Result<Answer, Refusal>>;

    fn wait(pending_replies: &PendingReplies, at: u64, leadership: Leadership) -> PendingAnswer {
        let (reply, told) = oneshot::channel();
        let at = LogIndex(at);
        pending_replies.add(at, leadership, reply, Ok(Answer::Done { at }));
        told
    }

    fn code(told: &mut PendingAnswer) -> Option<RefusalCode> {
        told.try_recv().expect("it is answered").err().map(|refusal| refusal.code)
    }

    #[test]
    fn an_answer_waits_for_its_record() {
        let pending_replies = PendingReplies::default();
        let mut told = wait(&pending_replies, 7, FIRST);
        pending_replies.applied(LogIndex(6), Some(FIRST));
        assert_eq!(told.try_recv().expect_err("not yet"), TryRecvError::Empty);
        pending_replies.applied(LogIndex(9), Some(FIRST));
        assert_eq!(code(&mut told), None);
    }

    #[test]
    fn an_index_given_again_by_the_next_leader_answers_nobody_of_the_first() {
        let pending_replies = PendingReplies::default();
        let mut told = wait(&pending_replies, 7, FIRST);
        pending_replies.applied(LogIndex(7), Some(SECOND));
        assert_eq!(code(&mut told), Some(RefusalCode::OutcomeUnknown));
    }

    #[test]
    fn a_deposed_leader_that_has_not_noticed_promises_nothing_that_others_wrote() {
        let pending_replies = PendingReplies::default();
        // The next leader's records are applied here while the old loop still decides.
        pending_replies.applied(LogIndex(9), Some(SECOND));
        let mut told = wait(&pending_replies, 8, FIRST);
        assert_eq!(code(&mut told), Some(RefusalCode::OutcomeUnknown));
        let mut told = wait(&pending_replies, 9, SECOND);
        assert_eq!(code(&mut told), None, "nothing new to wait for");
    }

    #[test]
    fn the_end_of_a_leadership_fails_its_own_pending_replies_only() {
        let pending_replies = PendingReplies::default();
        let (mut lost, mut kept) = (wait(&pending_replies, 7, FIRST), wait(&pending_replies, 7, SECOND));
        pending_replies.fail(FIRST);
        assert_eq!(code(&mut lost), Some(RefusalCode::OutcomeUnknown));
        pending_replies.applied(LogIndex(7), Some(SECOND));
        assert_eq!(code(&mut kept), None);
    }
}
