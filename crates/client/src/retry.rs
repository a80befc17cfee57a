//! Repeating a call until it is answered.
//!
//! Every call is safe to repeat: reads by nature, mutations by their request id. So the only question
//! about a failure is whether another attempt could end differently, and where to send it: to the
//! leader when the refusal names it, to the same replica when it only asked for patience, else to the
//! next one.

use std::error::Error as _;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::{Fuse, FusedFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use muster_types::RefusalCode;
use muster_wire::status::Refused;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::channel::Channel;
use crate::connection::{LEADER, Link};
use crate::endpoint::ConnectError;
use crate::error::{AttemptError, CallError};
use crate::{Client, Options};

/// Ways that one attempt takes at most: the leader's, the present one, a new one.
const WAYS_MAX: usize = 3;

/// What to do about a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer stands.
    Final,
    /// Ask the same replica again.
    Stay,
    /// Ask another.
    Rotate,
    /// Ask the leader, at this address.
    Follow(String),
}

/// What may be repeated, and what is known about it.
pub(crate) struct Subject {
    pub(crate) operation: &'static str,
    pub(crate) request_id: Option<String>,
}

impl Subject {
    /// Judges a failure. `transport` tells that the status was made on this side, of a broken connection.
    pub(crate) fn judge(&self, refused: &Refused, transport: bool) -> Verdict {
        match refused.code {
            Some(RefusalCode::NotLeader) => match refused.leader_endpoint() {
                Some(hint) => Verdict::Follow(hint.to_owned()),
                None => Verdict::Rotate,
            },
            Some(
                RefusalCode::Overloaded
                | RefusalCode::OutcomeUnknown
                | RefusalCode::StorageFull
                | RefusalCode::ClusterRecovering,
            ) => Verdict::Stay,
            // What this replica cannot tell from its state, another may.
            Some(
                RefusalCode::Diverged
                | RefusalCode::TooStale
                | RefusalCode::ReadUnconfirmed
                | RefusalCode::LogIndexNotReached
                | RefusalCode::ReplicaStopping
                | RefusalCode::ClusterNotReady
                | RefusalCode::TrafficRefused
                | RefusalCode::RequestTimeout,
            ) => Verdict::Rotate,
            Some(_) => Verdict::Final,
            None if refused.reason.is_empty() => judge_by_grpc(refused.grpc, transport),
            None => judge_unknown(refused),
        }
    }
}

/// A refusal whose reason a newer server gave: what it says of repeating is all that is known.
fn judge_unknown(refused: &Refused) -> Verdict {
    if refused.retry_after.is_some() {
        return Verdict::Stay;
    }
    if refused.grpc == Code::Unavailable { Verdict::Rotate } else { Verdict::Final }
}

/// Statuses of proxies and of broken connections, which have no reason.
fn judge_by_grpc(code: Code, transport: bool) -> Verdict {
    match code {
        Code::Unavailable | Code::DeadlineExceeded => Verdict::Rotate,
        // A server that sheds load before any of our code runs.
        Code::ResourceExhausted => Verdict::Stay,
        // What a connection leaves behind that broke under the call (reset, goaway, killed server).
        Code::Unknown | Code::Internal | Code::Cancelled if transport => Verdict::Rotate,
        _ => Verdict::Final,
    }
}

/// The failure of one attempt with what to do about it.
pub(crate) struct Failure {
    pub(crate) error: AttemptError,
    pub(crate) verdict: Verdict,
    pub(crate) link: Option<Link>,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn connect(error: ConnectError) -> Failure {
        let error = AttemptError::Connect(error);
        // There is no channel to give up; the next attempt connects again.
        Failure { error, verdict: Verdict::Stay, link: None, retry_after: None }
    }

    pub(crate) fn silence(link: &Link) -> Failure {
        let error = AttemptError::Timeout { endpoint: link.address.to_string() };
        Failure { error, verdict: Verdict::Rotate, link: Some(link.clone()), retry_after: None }
    }

    pub(crate) fn answer(link: &Link, status: &Status, subject: &Subject) -> Failure {
        let refused = Refused::from_status(status);
        let verdict = subject.judge(&refused, status.source().is_some());
        let retry_after = refused.retry_after;
        let error = AttemptError::Answer { endpoint: link.address.to_string(), refused };
        Failure { error, verdict, link: Some(link.clone()), retry_after }
    }

    /// Whether the replica got as far as judging what was asked, or says that it has too much to do. One that only
    /// knows of no leader is as good as silent: it may be the one that is cut off.
    fn decides_or_is_overload(&self) -> bool {
        let overloaded = matches!(
            &self.error,
            AttemptError::Answer { refused, .. } if refused.code == Some(RefusalCode::Overloaded)
        );
        self.verdict == Verdict::Final || overloaded
    }
}

/// The time and pauses of one call.
pub(crate) struct RetryBudget {
    end: Instant,
    deadline: Duration,
    pauses: backon::ExponentialBackoff,
    pause_max: Duration,
    pub(crate) attempts: u32,
    /// The last failure that was more than silence: the deadline may cut any attempt short, and "no
    /// answer in time" would then hide what the replicas said all along.
    told: Option<AttemptError>,
}

impl RetryBudget {
    pub(crate) fn new(options: &Options) -> RetryBudget {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(options.pause_min)
            .with_max_delay(options.pause_max)
            .with_jitter()
            .without_max_times()
            .build();
        RetryBudget {
            // A deadline beyond what the clock can express is none: a year is as good.
            end: Instant::now()
                .checked_add(options.deadline)
                .unwrap_or_else(|| Instant::now() + Duration::from_secs(366 * 24 * 3_600)),
            deadline: options.deadline,
            pauses,
            pause_max: options.pause_max,
            attempts: 0,
            told: None,
        }
    }

    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Waits before the next attempt; false when there is no time for another.
    pub(crate) async fn pause(&mut self, retry_after: Option<Duration>) -> bool {
        let own = self.pauses.next().unwrap_or(self.pause_max);
        // A server may ask for more patience than ours, within reason: it may be lying or broken.
        let asked = retry_after.unwrap_or_default().min(self.pause_max.max(Duration::from_secs(5)));
        let pause = own.max(asked);
        if pause >= self.left() {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }

    fn exhausted(&mut self, subject: &Subject, last: AttemptError) -> CallError {
        let last = match (last, self.told.take()) {
            (AttemptError::Timeout { .. }, Some(told)) => told,
            (last, _) => last,
        };
        CallError::DeadlineExceeded {
            operation: subject.operation,
            attempts: self.attempts,
            waited: self.deadline,
            request_id: subject.request_id.clone(),
            last,
        }
    }
}

impl Client {
    /// Sends one call until it is answered.
    pub(crate) async fn retry<T, F, Fut>(&self, subject: Subject, send: F) -> Result<T, CallError>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.repeat_from(subject, send).await.map(|(_, answer)| answer)
    }

    /// The same, with the address of the replica that answered.
    pub(crate) async fn repeat_from<T, F, Fut>(
        &self,
        subject: Subject,
        send: F,
    ) -> Result<(String, T), CallError>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut budget = RetryBudget::new(&self.options);
        loop {
            budget.attempts += 1;
            let failure = match self.attempt(&subject, &budget, &send).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            self.after_failure(&subject, &mut budget, failure).await?;
        }
    }

    async fn attempt<T, F, Fut>(
        &self,
        subject: &Subject,
        budget: &RetryBudget,
        send: &F,
    ) -> Result<(String, T), Failure>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mutates = subject.request_id.is_some();
        let link = match self.connection.to_leader().filter(|_| mutates) {
            Some(link) => link,
            None => self.connection.current_within(budget.left()).await.map_err(Failure::connect)?,
        };
        if !mutates {
            // A read may take long by its nature, and nothing repeats it under the same name.
            return self.ask(link, subject, budget, send).await.map(|(_, answer)| answer);
        }
        self.by_any_way(link, subject, budget, send).await
    }

    /// One mutation, over other connections too while those it was sent over are silent. The first answer
    /// that decides counts; the others say the same, by the request id.
    async fn by_any_way<T, F, Fut>(
        &self,
        link: Link,
        subject: &Subject,
        budget: &RetryBudget,
        send: &F,
    ) -> Result<(String, T), Failure>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut asked = FuturesUnordered::from_iter([self.ask(link.clone(), subject, budget, send)]);
        let mut ways = vec![link.clone()];
        let (mut newest, mut asked_at) = (link, Instant::now());
        let mut doubled = None;
        let mut opening = Fuse::terminated();
        loop {
            tokio::select! {
                // Never none: it is left when the last answer is in.
                Some(answer) = asked.next() => match answer {
                    Ok((link, answer)) => {
                        self.connection.prefer(&link, &ways);
                        return Ok(answer);
                    }
                    Err(failure) if failure.verdict == Verdict::Final || asked.is_empty() => {
                        return Err(failure);
                    }
                    // The newest way was taken because the others say nothing. They are left with it: the next
                    // attempt goes to somebody else, and under the same request id.
                    Err(failure) if failure.link.as_ref().is_some_and(|link| link.is(&newest)) => {
                        // It may be in the line for what `give_up` asks for, and nobody moves it on any more.
                        drop(opening);
                        for silent in ways.iter().filter(|way| !way.is(&newest)) {
                            self.connection.give_up(silent).await;
                        }
                        return Err(failure);
                    }
                    Err(failure) => tracing::debug!(error = %failure.error, "one way of several failed"),
                },
                () = newest.silence_or_patience(asked_at), if opening.is_terminated() && ways.len() < WAYS_MAX => {
                    doubled = doubled.or_else(|| self.connection.doubled.try_acquire().ok());
                    if doubled.is_some() {
                        let another = self.connection.other_than(ways.clone(), budget.left());
                        opening = another.boxed().fuse();
                    } else {
                        // After another silence there may be a place.
                        asked_at = Instant::now();
                    }
                }
                opened = &mut opening, if !opening.is_terminated() => {
                    // What cannot be reached now may be after another silence.
                    let Ok(another) = opened else {
                        asked_at = Instant::now();
                        continue;
                    };
                    tracing::debug!(silent = %newest.address, to = %another.address, "asked by another way too");
                    ways.push(another.clone());
                    (newest, asked_at) = (another.clone(), Instant::now());
                    asked.push(self.ask(another, subject, budget, send));
                }
            }
        }
    }

    /// One request over one connection; with the connection, the replica's address and its answer.
    async fn ask<T, F, Fut>(
        &self,
        link: Link,
        subject: &Subject,
        budget: &RetryBudget,
        send: &F,
    ) -> Result<(Link, (String, T)), Failure>
    where
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let limit = budget.left().min(self.options.attempt_timeout);
        match tokio::time::timeout(limit, send(link.channel.clone())).await {
            Ok(Ok(response)) => {
                let mutates = subject.request_id.is_some();
                // A replica that is cut off from the others still answers reads, and says nothing by that of writes.
                if mutates {
                    link.heard_now();
                }
                let leader = response.metadata().get(LEADER).filter(|_| mutates);
                if let Some(leader) = leader.and_then(|leader| leader.to_str().ok()) {
                    // Its place may be taken by now: what is known of it is no longer true.
                    self.connection.forget_leader(&link);
                    self.connection.learn_leader(leader);
                }
                let address = link.address.to_string();
                Ok((link, (address, response.into_inner())))
            }
            Ok(Err(status)) => {
                let failure = Failure::answer(&link, &status, subject);
                if failure.decides_or_is_overload() && subject.request_id.is_some() {
                    link.heard_now();
                }
                Err(failure)
            }
            Err(_) => Err(Failure::silence(&link)),
        }
    }

    /// Moves to the right replica and pauses, or ends the call.
    pub(crate) async fn after_failure(
        &self,
        subject: &Subject,
        budget: &mut RetryBudget,
        failure: Failure,
    ) -> Result<(), CallError> {
        let Failure { error, verdict, link, retry_after } = failure;
        tracing::debug!(operation = subject.operation, ?verdict, %error, "attempt failed");
        if verdict == Verdict::Final
            && let AttemptError::Answer { endpoint, refused } = error
        {
            return Err(CallError::Refused { operation: subject.operation, endpoint, refused });
        }
        if let Some(link) = link {
            match &verdict {
                Verdict::Rotate => self.connection.give_up(&link).await,
                Verdict::Follow(hint) => self.connection.follow(&link, hint).await,
                Verdict::Stay | Verdict::Final => {}
            }
            if verdict != Verdict::Final {
                self.connection.forget_leader(&link);
            }
        }
        if !budget.pause(retry_after).await {
            return Err(budget.exhausted(subject, error));
        }
        if !matches!(error, AttemptError::Timeout { .. }) {
            budget.told = Some(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Refusal;
    use muster_wire::status::{ERROR_DOMAIN, METADATA_LEADER_ENDPOINT, to_status};
    use std::collections::HashMap;
    use tonic_types::{ErrorDetails, StatusExt};

    fn judge(code: RefusalCode) -> Verdict {
        let subject = Subject { operation: "test", request_id: None };
        subject.judge(&Refused::from_status(&to_status(&Refusal::new(code, "why"))), false)
    }

    #[test]
    fn only_what_may_end_differently_is_repeated() {
        let repeated: Vec<_> =
            RefusalCode::ALL.iter().copied().filter(|code| judge(*code) != Verdict::Final).collect();
        assert_eq!(
            repeated,
            [
                RefusalCode::NotLeader,
                RefusalCode::Overloaded,
                RefusalCode::OutcomeUnknown,
                RefusalCode::LogIndexNotReached,
                RefusalCode::ReplicaStopping,
                RefusalCode::ClusterNotReady,
                RefusalCode::Diverged,
                RefusalCode::ClusterRecovering,
                RefusalCode::TooStale,
                RefusalCode::ReadUnconfirmed,
                RefusalCode::StorageFull,
                RefusalCode::TrafficRefused,
                RefusalCode::RequestTimeout
            ]
        );
    }

    /// A line of the table: what the client does about a status.
    fn line(named: &str, status: &Status) -> String {
        let refused = Refused::from_status(status);
        let carries: Vec<&str> =
            [(refused.retry_after.is_some(), "retry_info"), (refused.leader_endpoint().is_some(), "leader")]
                .into_iter()
                .filter_map(|(does, name)| does.then_some(name))
                .collect();
        let with = if carries.is_empty() { "-".to_owned() } else { carries.join("+") };
        let subject = Subject { operation: "test", request_id: None };
        let verdict = match subject.judge(&refused, false) {
            Verdict::Final => "final",
            Verdict::Stay => "stay",
            Verdict::Rotate => "rotate",
            Verdict::Follow(_) => "follow",
        };
        format!("{named} {} {with} {verdict}\n", grpc_name(status.code()))
    }

    fn grpc_name(code: Code) -> String {
        let words = format!("{code:?}");
        let mut name = String::new();
        for (at, letter) in words.char_indices() {
            if at > 0 && letter.is_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }

    /// A refusal with a reason that this release does not have.
    fn unknown(code: Code, retry: Option<Duration>) -> Status {
        let mut details = ErrorDetails::new();
        details.set_error_info("OF_A_NEWER_SERVER", ERROR_DOMAIN, HashMap::new());
        if retry.is_some() {
            details.set_retry_info(retry);
        }
        Status::with_error_details(code, "why", details)
    }

    #[test]
    fn the_table_of_both_sdks_says_what_this_one_does() {
        let mut table = String::new();
        for code in RefusalCode::ALL {
            table += &line(code.name(), &to_status(&Refusal::new(*code, "why")));
        }
        let leader = Refusal::new(RefusalCode::NotLeader, "why").with(METADATA_LEADER_ENDPOINT, "http://c:3");
        table += &line("NOT_LEADER", &to_status(&leader));
        let codes = [
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::DeadlineExceeded,
            Code::FailedPrecondition,
            Code::Internal,
            Code::Unimplemented,
        ];
        for code in codes {
            table += &line("?", &unknown(code, None));
            table += &line("?", &unknown(code, Some(Duration::from_secs(1))));
            // A client cannot tell an INTERNAL of a proxy from a broken connection.
            if code != Code::Internal {
                table += &line("-", &Status::new(code, "why"));
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/retries.txt");
        let kept = std::fs::read_to_string(path).expect("the table is there");
        let head: String = kept.split_inclusive('\n').filter(|line| line.starts_with('#')).collect();
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, format!("{head}{table}")).expect("the table can be written");
        } else {
            assert_eq!(kept, format!("{head}{table}"));
        }
    }

    #[test]
    fn a_broken_connection_is_told_from_a_servers_words() {
        assert_eq!(judge_by_grpc(Code::Unknown, true), Verdict::Rotate);
        assert_eq!(judge_by_grpc(Code::Unknown, false), Verdict::Final);
        assert_eq!(judge_by_grpc(Code::Unavailable, false), Verdict::Rotate);
        assert_eq!(judge_by_grpc(Code::Unimplemented, false), Verdict::Final);
    }
}
