//! What workers say of themselves, on its way to the cluster.
//!
//! A committed checkpoint becomes a record that a quorum flushes and the archive keeps for ever, so a job has one under way
//! at a time, and one a second: of those that are said meanwhile the newest goes next and answers for all of them, since
//! it says all that the others would have said. Steps are sent on now and then.
//!
//! **Invariant:** no loop in a program makes more than one record a second for its job.

use crate::limits;
use crate::order::WorkerKey;
use muster_types::JobId;
use muster_wire::convert::fencing_token_to_proto;
use muster_wire::v1;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::oneshot;

/// Where an answer goes.
pub(crate) type Answer = oneshot::Sender<Result<(), String>>;

/// A checkpoint that was said and is not sent.
#[derive(Debug)]
struct Next {
    key: WorkerKey,
    step: u64,
    answers: Vec<Answer>,
}

/// The note of one job that is being sent, and the newest one behind it.
#[derive(Debug)]
struct Saving {
    sent_at: Instant,
    /// Sent, and not answered by the cluster.
    sent: Option<(v1::WorkerNote, Vec<Answer>)>,
    next: Option<Next>,
}

/// The notes of all workers of this agent.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    sequence: u64,
    jobs: BTreeMap<JobId, Saving>,
    /// When a step of each worker was last passed on.
    steps: BTreeMap<WorkerKey, Instant>,
}

/// A note as it is sent.
pub(crate) fn message(key: WorkerKey, sequence: u64, note: v1::worker_note::Note) -> v1::WorkerNote {
    v1::WorkerNote {
        job_id: key.job.to_string(),
        token: Some(fencing_token_to_proto(key.token)),
        rank: key.rank,
        sequence,
        note: Some(note),
    }
}

impl Notes {
    /// Takes a checkpoint; it is sent when it is due.
    pub(crate) fn save(&mut self, key: WorkerKey, step: u64, answer: Answer) {
        let waiting = |saving: &Saving| {
            let sent = saving.sent.as_ref().map_or(0, |(_, answers)| answers.len());
            sent + saving.next.as_ref().map_or(0, |next| next.answers.len())
        };
        let total: usize = self.jobs.values().map(waiting).sum();
        if total >= limits::NOTES_WAITING_MAX {
            // Those whose asker gave up make room first.
            for saving in self.jobs.values_mut() {
                if let Some((_, answers)) = &mut saving.sent {
                    answers.retain(|answer| !answer.is_closed());
                }
                if let Some(next) = &mut saving.next {
                    next.answers.retain(|answer| !answer.is_closed());
                }
            }
            if self.jobs.values().map(waiting).sum::<usize>() >= limits::NOTES_WAITING_MAX {
                let _ = answer.send(Err("too many checkpoints wait for the cluster's answer".to_owned()));
                return;
            }
        }
        let long_ago = || Instant::now().checked_sub(limits::CHECKPOINTS_APART).unwrap_or_else(Instant::now);
        let saving = self.jobs.entry(key.job).or_insert_with(|| Saving {
            sent_at: long_ago(),
            sent: None,
            next: None,
        });
        let next = saving.next.get_or_insert_with(|| Next { key, step, answers: Vec::new() });
        (next.key, next.step) = (key, step);
        next.answers.push(answer);
    }

    /// When the next one is due; none where nothing waits for its time.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let waits = self.jobs.values().filter(|saving| saving.sent.is_none() && saving.next.is_some());
        waits.map(|saving| saving.sent_at + limits::CHECKPOINTS_APART).min()
    }

    /// Those that are due now, as they are to be sent.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<v1::WorkerNote> {
        let mut found = Vec::new();
        for saving in self.jobs.values_mut() {
            if saving.sent.is_some() || saving.sent_at + limits::CHECKPOINTS_APART > now {
                continue;
            }
            let Some(Next { key, step, answers }) = saving.next.take() else { continue };
            self.sequence += 1;
            let note = v1::worker_note::Note::CheckpointCommitted(v1::CheckpointNote { step });
            let message = message(key, self.sequence, note);
            found.push(message.clone());
            (saving.sent, saving.sent_at) = (Some((message, answers)), now);
        }
        // A job that says nothing for a while is forgotten.
        self.jobs.retain(|_, saving| {
            saving.sent.is_some() || saving.next.is_some() || saving.sent_at + limits::CHECKPOINTS_APART > now
        });
        found
    }

    /// What was sent and is not answered: for a new session.
    pub(crate) fn unanswered(&self) -> Vec<v1::WorkerNote> {
        self.jobs
            .values()
            .filter_map(|saving| saving.sent.as_ref().map(|(message, _)| message.clone()))
            .collect()
    }

    /// The cluster's answer to one; the reason where it can never be taken.
    pub(crate) fn answered(&mut self, sequence: u64, refused: Option<&str>) {
        for saving in self.jobs.values_mut() {
            if let Some((_, answers)) = saving.sent.take_if(|(message, _)| message.sequence == sequence) {
                tell(answers, refused);
            }
        }
    }

    /// No leader takes any.
    pub(crate) fn refuse_all(&mut self, why: &str) {
        for saving in std::mem::take(&mut self.jobs).into_values() {
            tell(saving.sent.map(|(_, answers)| answers).unwrap_or_default(), Some(why));
            tell(saving.next.map(|next| next.answers).unwrap_or_default(), Some(why));
        }
    }

    /// Whether a step of a worker is passed on.
    pub(crate) fn passes_step(&mut self, key: WorkerKey, now: Instant) -> bool {
        let due = self.steps.get(&key).is_none_or(|last| now - *last >= limits::STEP_NOTES_APART);
        if due {
            self.steps.insert(key, now);
        }
        due
    }

    /// The worker has ended.
    pub(crate) fn forget(&mut self, key: WorkerKey) {
        self.steps.remove(&key);
    }
}

fn tell(answers: Vec<Answer>, refused: Option<&str>) {
    for answer in answers {
        // The caller may have gone; then nobody is told.
        let _ = answer.send(refused.map_or(Ok(()), |why| Err(why.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{FencingToken, LogIndex};
    use std::time::Duration;

    fn key(job: u64) -> WorkerKey {
        let token = FencingToken { generation: 1, log_index: LogIndex(7) };
        WorkerKey { job: JobId(job), token, rank: 0 }
    }

    fn step_of(note: &v1::WorkerNote) -> u64 {
        match note.note {
            Some(v1::worker_note::Note::CheckpointCommitted(v1::CheckpointNote { step })) => step,
            _ => panic!("no checkpoint: {note:?}"),
        }
    }

    #[test]
    fn a_loop_of_checkpoints_makes_one_record_a_second_and_the_newest_answers_for_all() {
        let mut notes = Notes::default();
        // After whatever this test says.
        let now = Instant::now() + Duration::from_secs(60);
        let mut answers = Vec::new();
        let mut save = |notes: &mut Notes, job, step| {
            let (answer, answered) = oneshot::channel();
            notes.save(key(job), step, answer);
            answers.push(answered);
        };
        save(&mut notes, 1, 1);
        let first = notes.due(now);
        assert_eq!(first.iter().map(step_of).collect::<Vec<_>>(), [1]);
        for step in 2..100 {
            save(&mut notes, 1, step);
        }
        // Another job has its own.
        save(&mut notes, 2, 5);
        assert_eq!(notes.due(now).iter().map(step_of).collect::<Vec<_>>(), [5]);
        let later = now + limits::CHECKPOINTS_APART;
        assert!(notes.due(later).is_empty(), "one under way");
        notes.answered(first[0].sequence, None);
        assert_eq!(notes.next_due(), Some(later));
        assert!(notes.due(now).is_empty(), "one a second");
        let second = notes.due(later);
        assert_eq!(second.iter().map(step_of).collect::<Vec<_>>(), [99]);
        notes.answered(second[0].sequence, Some("no"));
        let told: Vec<_> = answers.iter_mut().map(|answer| answer.try_recv()).collect();
        assert_eq!(told[0], Ok(Ok(())));
        assert!(told[1..99].iter().all(|told| *told == Ok(Err("no".to_owned()))));
        assert!(told[99].is_err(), "the other job's is not answered");
        assert_eq!(notes.unanswered().len(), 1);
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let mut notes = Notes::default();
        let mut kept = Vec::new();
        for _ in 0..limits::NOTES_WAITING_MAX {
            let (answer, answered) = oneshot::channel();
            notes.save(key(1), 1, answer);
            kept.push(answered);
        }
        let (answer, mut answered) = oneshot::channel();
        notes.save(key(1), 2, answer);
        assert!(answered.try_recv().unwrap().is_err());
        kept.pop();
        let (answer, mut answered) = oneshot::channel();
        notes.save(key(1), 3, answer);
        assert!(answered.try_recv().is_err(), "it waits");
        notes.refuse_all("over");
        assert_eq!(answered.try_recv(), Ok(Err("over".to_owned())));
    }
}
