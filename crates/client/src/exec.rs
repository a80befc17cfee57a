//! A command next to a worker, as its caller has it.
//!
//! **Invariant:** a command that may have begun is never sent again: only refusals that say that nothing was done are retried.
//! **Invariant:** input that is cut short does not look as if it were complete.

use muster_types::RefusalCode;
use muster_wire::v1;
use muster_wire::v1::exec_worker_request::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{CancellationHandle, Request, Status, Streaming};

use crate::Client;
use crate::calls::jobs;
use crate::connection::Link;
use crate::error::{AttemptError, CallError};
use crate::retry::{Failure, RetryBudget, Subject};

const SUBJECT: Subject = Subject { operation: "run a command next to a worker", request_id: None };
/// Pieces of input on their way.
const PIECES_WAITING_MAX: usize = 4;

/// A command that runs next to a worker. Dropping it ends the command, and is no end of its input.
pub struct Exec {
    link: Link,
    to_command: Option<mpsc::Sender<v1::ExecWorkerRequest>>,
    answers: Streaming<v1::ExecWorkerResponse>,
    bytes: u64,
    reset: Option<CancellationHandle>,
}

impl Drop for Exec {
    fn drop(&mut self) {
        // Before the way to the command goes, whose end says that there is no more input.
        if let Some(reset) = self.reset.take() {
            reset.cancel();
        }
    }
}

/// What can be said to a command while its output is read.
#[derive(Clone, Debug)]
pub struct ExecInput(mpsc::Sender<v1::ExecWorkerRequest>);

impl ExecInput {
    /// Sends a piece of input, at most 64 KiB; false when the command takes no more.
    pub async fn send(&self, piece: Vec<u8>) -> bool {
        self.say(Message::Input(piece)).await
    }

    /// Says that no more input follows.
    pub async fn end(&self) -> bool {
        self.say(Message::InputEnd(v1::ExecInputEnd {})).await
    }

    /// Sends a signal, by its number on Linux.
    pub async fn signal(&self, number: u32) -> bool {
        self.say(Message::Signal(number)).await
    }

    /// Says how large the caller's terminal is from now on.
    pub async fn resize(&self, terminal: v1::ExecTerminal) -> bool {
        self.say(Message::Resize(terminal)).await
    }

    async fn say(&self, message: Message) -> bool {
        self.0.send(v1::ExecWorkerRequest { message: Some(message) }).await.is_ok()
    }
}

impl Client {
    /// Runs a command next to a worker that runs.
    ///
    /// # Errors
    /// Refusals at once. Where nobody can say whether it has begun, it is not sent again.
    pub async fn exec_worker(&self, start: v1::ExecStart) -> Result<Exec, CallError> {
        let mut budget = RetryBudget::new(&self.options);
        loop {
            budget.attempts += 1;
            let failure = match self.connection.current_within(budget.left()).await {
                Err(error) => Failure::connect(error),
                Ok(link) => match self.open_exec(&link, start.clone()).await {
                    Ok(exec) => return Ok(exec),
                    Err(status) => {
                        let failure = Failure::answer(&link, &status, &SUBJECT);
                        if !says_that_nothing_was_done(&failure.error) {
                            return Err(ended(failure.error, 0));
                        }
                        failure
                    }
                },
            };
            self.after_failure(&SUBJECT, &mut budget, failure).await?;
        }
    }

    async fn open_exec(&self, link: &Link, start: v1::ExecStart) -> Result<Exec, Status> {
        let (to_command, requests) = mpsc::channel(PIECES_WAITING_MAX);
        let first = v1::ExecWorkerRequest { message: Some(Message::Start(start)) };
        // The queue is empty.
        let _ = to_command.send(first).await;
        let mut request = Request::new(ReceiverStream::new(requests));
        let reset = Some(request.cancellation_handle());
        let answers = jobs(link.channel.clone()).exec_worker(request).await?.into_inner();
        Ok(Exec { link: link.clone(), to_command: Some(to_command), answers, bytes: 0, reset })
    }
}

impl Exec {
    /// The input of the command. None if it was taken before. When all of it is dropped while this value is kept, the input ends.
    pub fn take_input(&mut self) -> Option<ExecInput> {
        self.to_command.take().map(ExecInput)
    }

    /// What happens next; none behind the command's end.
    ///
    /// # Errors
    /// When the command could not be run, or how it ended is not known.
    pub async fn next(&mut self) -> Result<Option<v1::exec_worker_response::Message>, CallError> {
        match self.answers.message().await {
            Ok(Some(answer)) => {
                use v1::exec_worker_response::Message as Answer;
                if let Some(Answer::Stdout(piece) | Answer::Stderr(piece)) = &answer.message {
                    self.bytes += piece.len() as u64;
                }
                Ok(answer.message)
            }
            Ok(None) => Ok(None),
            Err(status) => Err(ended(Failure::answer(&self.link, &status, &SUBJECT).error, self.bytes)),
        }
    }
}

/// Whether the replica refused before it recorded anything.
pub(crate) fn says_that_nothing_was_done(error: &AttemptError) -> bool {
    let AttemptError::Answer { refused, .. } = error else { return false };
    matches!(
        refused.code,
        Some(
            RefusalCode::NotLeader
                | RefusalCode::ReplicaStopping
                | RefusalCode::ClusterNotReady
                | RefusalCode::ClusterRecovering
                | RefusalCode::TrafficRefused
                | RefusalCode::RequestTimeout
        )
    )
}

fn ended(error: AttemptError, bytes: u64) -> CallError {
    match error {
        AttemptError::Answer { endpoint, refused } if refused.code.is_some() => {
            CallError::Refused { operation: SUBJECT.operation, endpoint, refused }
        }
        last => CallError::StreamBroken { operation: SUBJECT.operation, bytes, last },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Refusal;
    use muster_wire::status::{Refused, to_status};

    #[test]
    fn a_command_that_may_have_begun_is_not_sent_again() {
        let says = |code| {
            let refused = Refused::from_status(&to_status(&Refusal::new(code, "why")));
            says_that_nothing_was_done(&AttemptError::Answer { endpoint: String::new(), refused })
        };
        assert!(says(RefusalCode::RequestTimeout), "its first message did not come in time");
        assert!(says(RefusalCode::ReplicaStopping), "nothing is begun at a replica that stops");
        for code in [RefusalCode::ExecUnavailable, RefusalCode::OutcomeUnknown, RefusalCode::Fenced] {
            assert!(!says(code), "{code}");
        }
    }
}
