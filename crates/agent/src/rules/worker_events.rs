//! Events that workers report of themselves, on their way to the cluster.
//!
//! A committed checkpoint becomes a record that a quorum flushes and the archive keeps, so a job has one under way at a
//! time, and one a second. Of those that are reported meanwhile the newest goes next and answers for all of them, since
//! it states all that the others would have stated. Steps are sent on now and then. A worker that is ready is told to the leader
//! until that has answered, and becomes a record once; what it says of that again is answered here.
//!
//! **Invariant:** no loop in a program makes more than one record a second for its job.

use super::worker::{WorkerEvent, WorkerKey};
use crate::limits;
use muster_types::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Workers that are known to be ready. One more takes the place of the oldest job's, which the leader is told of again.
const KNOWN_READY_MAX: usize = 4_096;

/// Stands for one worker that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// An answer to a worker; the reason where its event can never be taken.
pub type Answer = (Ticket, Result<(), String>);

/// An event as the leader is told; the sequence is 0 where no acknowledgement is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencedEvent {
    /// Which worker.
    pub key: WorkerKey,
    /// Repeated in the acknowledgement.
    pub sequence: u64,
    /// What it reported.
    pub event: WorkerEvent,
}

/// A checkpoint that was reported and is not sent.
#[derive(Debug)]
struct Next {
    key: WorkerKey,
    step: u64,
    tickets: Vec<Ticket>,
}

/// The checkpoint of one job that is being sent, and the newest one behind it.
#[derive(Debug, Default)]
struct Checkpoints {
    sent_at: Option<Duration>,
    /// Sent, and not answered by the cluster.
    sent: Option<(SequencedEvent, Vec<Ticket>)>,
    next: Option<Next>,
}

impl Checkpoints {
    fn waiting(&self) -> usize {
        let sent = self.sent.as_ref().map_or(0, |(_, tickets)| tickets.len());
        sent + self.next.as_ref().map_or(0, |next| next.tickets.len())
    }

    /// When the next one may be sent.
    fn due_at(&self) -> Duration {
        self.sent_at.map_or(Duration::ZERO, |at| at + limits::CHECKPOINTS_APART)
    }
}

/// The events of all workers of this agent. Times count from the start of the agent.
#[derive(Debug, Default)]
pub(crate) struct WorkerEvents {
    sequence: u64,
    jobs: BTreeMap<JobId, Checkpoints>,
    /// When a step of each worker was last passed on.
    steps: BTreeMap<WorkerKey, Duration>,
    /// Workers that are ready of which the cluster does not know yet: the sequence of what was sent, and who waits.
    ready: BTreeMap<WorkerKey, (u64, Vec<Ticket>)>,
    /// Workers that are ready of which the cluster knows: a loop in a program costs the leader nothing.
    known_ready: BTreeSet<WorkerKey>,
}

impl WorkerEvents {
    /// Takes a checkpoint, which is sent when it is due. Returns an answer where too many wait.
    pub(crate) fn save(&mut self, key: WorkerKey, step: u64, ticket: Ticket) -> Option<Answer> {
        if self.jobs.values().map(Checkpoints::waiting).sum::<usize>() >= limits::NOTES_WAITING_MAX {
            return Some((ticket, Err("too many checkpoints wait for the cluster's answer".to_owned())));
        }
        let checkpoints = self.jobs.entry(key.job).or_default();
        let next = checkpoints.next.get_or_insert_with(|| Next { key, step, tickets: Vec::new() });
        (next.key, next.step) = (key, step);
        next.tickets.push(ticket);
        None
    }

    /// Takes a worker that is ready. Returns what is to be sent, unless that was already; an answer where the cluster knows it,
    /// or too many wait.
    pub(crate) fn ready(&mut self, key: WorkerKey, ticket: Ticket) -> Result<Option<SequencedEvent>, Answer> {
        if self.known_ready.contains(&key) {
            return Err((ticket, Ok(())));
        }
        if self.ready.values().map(|(_, tickets)| tickets.len()).sum::<usize>() >= limits::NOTES_WAITING_MAX {
            return Err((ticket, Err("too many workers wait for the cluster's answer".to_owned())));
        }
        if let Some((_, tickets)) = self.ready.get_mut(&key) {
            tickets.push(ticket);
            return Ok(None);
        }
        self.sequence += 1;
        self.ready.insert(key, (self.sequence, vec![ticket]));
        Ok(Some(SequencedEvent { key, sequence: self.sequence, event: WorkerEvent::Ready }))
    }

    /// The leader does not ask which workers are ready: to those who wait it has been said.
    pub(crate) fn drop_ready(&mut self) -> Vec<Answer> {
        let waiting = std::mem::take(&mut self.ready).into_values();
        waiting.flat_map(|(_, tickets)| answers(tickets, None)).collect()
    }

    /// Nobody waits for these answers any more.
    pub(crate) fn abandon(&mut self, tickets: &BTreeSet<Ticket>) {
        for (_, waiting) in self.ready.values_mut() {
            waiting.retain(|ticket| !tickets.contains(ticket));
        }
        for checkpoints in self.jobs.values_mut() {
            if let Some((_, waiting)) = &mut checkpoints.sent {
                waiting.retain(|ticket| !tickets.contains(ticket));
            }
            if let Some(next) = &mut checkpoints.next {
                next.tickets.retain(|ticket| !tickets.contains(ticket));
            }
        }
    }

    /// When the next one is due; none where nothing waits for its time.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let waits = self.jobs.values().filter(|job| job.sent.is_none() && job.next.is_some());
        waits.map(Checkpoints::due_at).min()
    }

    /// Those that are due now, as they are to be sent.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<SequencedEvent> {
        let mut found = Vec::new();
        for checkpoints in self.jobs.values_mut() {
            if checkpoints.sent.is_some() || checkpoints.due_at() > now {
                continue;
            }
            let Some(Next { key, step, tickets }) = checkpoints.next.take() else { continue };
            self.sequence += 1;
            let event = WorkerEvent::CheckpointCommitted { step };
            let event = SequencedEvent { key, sequence: self.sequence, event };
            found.push(event);
            (checkpoints.sent, checkpoints.sent_at) = (Some((event, tickets)), Some(now));
        }
        // A job that reports nothing for a while is forgotten.
        self.jobs.retain(|_, job| job.sent.is_some() || job.next.is_some() || job.due_at() > now);
        found
    }

    /// What was sent and is not answered: for a new session.
    pub(crate) fn unanswered(&self) -> Vec<SequencedEvent> {
        let saved = self.jobs.values().filter_map(|job| job.sent.as_ref().map(|(event, _)| *event));
        let of_ready = |(key, (sequence, _)): (&WorkerKey, &(u64, Vec<Ticket>))| SequencedEvent {
            key: *key,
            sequence: *sequence,
            event: WorkerEvent::Ready,
        };
        saved.chain(self.ready.iter().map(of_ready)).collect()
    }

    /// The cluster's answer to one; the reason where it can never be taken.
    pub(crate) fn answered(&mut self, sequence: u64, refused: Option<&str>) -> Vec<Answer> {
        let key = self.ready.iter().find(|(_, (sent, _))| *sent == sequence).map(|(key, _)| *key);
        if let Some((key, (_, tickets))) = key.and_then(|key| self.ready.remove_entry(&key)) {
            if refused.is_none() {
                // One of a worker that has ended by now is forgotten here.
                while self.known_ready.len() >= KNOWN_READY_MAX {
                    self.known_ready.pop_first();
                }
                self.known_ready.insert(key);
            }
            return answers(tickets, refused);
        }
        let sent = self.jobs.values_mut().filter_map(|job| job.sent.take_if(|(e, _)| e.sequence == sequence));
        sent.flat_map(|(_, tickets)| answers(tickets, refused)).collect()
    }

    /// No leader takes any.
    pub(crate) fn refuse_all(&mut self, why: &str) -> Vec<Answer> {
        let mut all = Vec::new();
        for job in std::mem::take(&mut self.jobs).into_values() {
            all.extend(job.sent.into_iter().flat_map(|(_, tickets)| answers(tickets, Some(why))));
            all.extend(job.next.into_iter().flat_map(|next| answers(next.tickets, Some(why))));
        }
        let ready = std::mem::take(&mut self.ready).into_values();
        all.extend(ready.flat_map(|(_, tickets)| answers(tickets, Some(why))));
        all
    }

    /// Whether a step of a worker is passed on.
    pub(crate) fn passes_step(&mut self, key: WorkerKey, now: Duration) -> bool {
        let last = self.steps.get(&key);
        let due = last.is_none_or(|last| now.saturating_sub(*last) >= limits::STEP_NOTES_APART);
        if due {
            self.steps.insert(key, now);
        }
        due
    }

    /// The worker has ended.
    pub(crate) fn forget(&mut self, key: WorkerKey) {
        self.steps.remove(&key);
        self.known_ready.remove(&key);
    }
}

fn answers(tickets: Vec<Ticket>, refused: Option<&str>) -> Vec<Answer> {
    let outcome = refused.map_or(Ok(()), |why| Err(why.to_owned()));
    tickets.into_iter().map(|ticket| (ticket, outcome.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{FencingToken, LogIndex};

    fn key(job: u64) -> WorkerKey {
        let token = FencingToken { generation: 1, log_index: LogIndex(7) };
        WorkerKey { job: JobId(job), token, rank: 0 }
    }

    fn steps(events: &[SequencedEvent]) -> Vec<u64> {
        let step = |event: &SequencedEvent| match event.event {
            WorkerEvent::CheckpointCommitted { step } => step,
            WorkerEvent::Step { .. } | WorkerEvent::Ready => panic!("no checkpoint: {event:?}"),
        };
        events.iter().map(step).collect()
    }

    #[test]
    fn a_loop_of_checkpoints_makes_one_record_a_second_and_the_newest_answers_for_all() {
        let mut events = WorkerEvents::default();
        let now = Duration::from_secs(60);
        assert_eq!(events.save(key(1), 1, Ticket(1)), None);
        let first = events.due(now);
        assert_eq!(steps(&first), [1]);
        for step in 2..100 {
            assert_eq!(events.save(key(1), step, Ticket(step)), None);
        }
        // Another job has its own.
        assert_eq!(events.save(key(2), 5, Ticket(500)), None);
        assert_eq!(steps(&events.due(now)), [5]);
        let later = now + limits::CHECKPOINTS_APART;
        assert!(events.due(later).is_empty(), "one under way");
        assert_eq!(events.answered(first[0].sequence, None), [(Ticket(1), Ok(()))]);
        assert_eq!(events.next_due(), Some(later));
        assert!(events.due(now).is_empty(), "one a second");
        let second = events.due(later);
        assert_eq!(steps(&second), [99]);
        let answers = events.answered(second[0].sequence, Some("no"));
        let expected: Vec<Answer> = (2..100).map(|step| (Ticket(step), Err("no".to_owned()))).collect();
        assert_eq!(answers, expected, "the other job's is not answered");
        assert_eq!(events.unanswered().len(), 1);
    }

    #[test]
    fn a_worker_that_is_ready_is_told_until_the_cluster_has_answered() {
        let mut events = WorkerEvents::default();
        let first = events.ready(key(1), Ticket(1)).unwrap().expect("it is to be sent");
        assert_eq!(first.event, WorkerEvent::Ready);
        assert_eq!(events.ready(key(1), Ticket(2)), Ok(None), "under way already");
        assert_eq!(events.unanswered(), [first]);
        assert_eq!(events.answered(first.sequence, None), [(Ticket(1), Ok(())), (Ticket(2), Ok(()))]);
        assert!(events.unanswered().is_empty());
        // A program that goes on saying it is answered without the leader.
        assert_eq!(events.ready(key(1), Ticket(3)), Err((Ticket(3), Ok(()))));
        assert!(events.unanswered().is_empty());
        events.forget(key(1));
        let again = events.ready(key(1), Ticket(4)).unwrap().expect("another attempt of it is told of");
        assert!(again.sequence > first.sequence);
        assert_eq!(events.drop_ready(), [(Ticket(4), Ok(()))]);
        events.ready(key(2), Ticket(3)).unwrap();
        assert_eq!(events.drop_ready(), [(Ticket(3), Ok(()))]);
        for number in 0..limits::NOTES_WAITING_MAX as u64 {
            assert!(events.ready(key(3), Ticket(number)).is_ok());
        }
        assert!(events.ready(key(4), Ticket(9)).is_err());
        assert_eq!(events.refuse_all("over").len(), limits::NOTES_WAITING_MAX);
    }

    #[test]
    fn waiting_checkpoints_are_bounded_without_those_that_were_abandoned() {
        let mut events = WorkerEvents::default();
        for number in 0..limits::NOTES_WAITING_MAX as u64 {
            assert_eq!(events.save(key(1), 1, Ticket(number)), None);
        }
        let (ticket, outcome) = events.save(key(1), 2, Ticket(10_001)).unwrap();
        assert!(ticket == Ticket(10_001) && outcome.is_err());
        events.abandon(&BTreeSet::from([Ticket(0)]));
        assert_eq!(events.save(key(1), 3, Ticket(10_002)), None);
        let refused = events.refuse_all("over");
        assert_eq!(refused.len(), limits::NOTES_WAITING_MAX);
        assert_eq!(refused.last(), Some(&(Ticket(10_002), Err("over".to_owned()))));
    }
}
