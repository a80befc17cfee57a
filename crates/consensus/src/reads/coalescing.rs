//! Coalescing: callers share rounds, and a caller that asks while one is under way waits for the next.
//!
//! **Invariant:** a caller is answered only by a round that began after it asked: one that began before
//! could miss what was committed in between.
//!
//! One round answers everybody who has asked by then, so the cost of a read falls with the load. Where a
//! round takes long (other regions), a next one begins before the last has ended, so that nobody waits
//! for two of them; but never sooner than a pause after it, which keeps the number of rounds small where
//! they are short.

use crate::environment::Environment;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use openraft::type_config::TypeConfigExt as _;
use std::marker::PhantomData;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Callers one round may serve before the next is started for the rest.
const CALLERS_MAX: usize = 65_536;
/// Rounds under way at a time.
const IN_FLIGHT_MAX: usize = 16;

/// Where an outcome goes.
pub(crate) type Caller<T> = oneshot::Sender<T>;

/// A round that has ended.
pub(crate) struct Finished<T> {
    /// When it began.
    pub(crate) began: Instant,
    pub(crate) outcome: T,
    /// Who asked before that.
    pub(crate) callers: Vec<Caller<T>>,
}

impl<T: Clone> Finished<T> {
    /// Tells everybody.
    pub(crate) fn answer(self) {
        for caller in self.callers {
            // A caller that no longer waits needs no answer.
            let _ = caller.send(self.outcome.clone());
        }
    }
}

/// Callers, and the rounds that answer them.
pub(crate) struct Rounds<E, T> {
    asking: mpsc::Receiver<Caller<T>>,
    open: bool,
    waiting: Vec<Caller<T>>,
    in_flight: FuturesUnordered<BoxFuture<'static, Finished<T>>>,
    last_began: Option<Instant>,
    pause: Duration,
    environment: PhantomData<E>,
}

impl<E: Environment, T: Send + 'static> Rounds<E, T> {
    /// Rounds that begin at least `pause` apart while another is under way.
    pub(crate) fn new(asking: mpsc::Receiver<Caller<T>>, pause: Duration) -> Self {
        Rounds {
            asking,
            open: true,
            waiting: Vec::new(),
            in_flight: FuturesUnordered::new(),
            last_began: None,
            pause,
            environment: PhantomData,
        }
    }

    /// How long ago the last round began.
    pub(crate) fn last_began(&self) -> Option<Instant> {
        self.last_began
    }

    fn is_due(&self, now: Instant) -> bool {
        let paused = self.last_began.is_none_or(|last| now.saturating_duration_since(last) >= self.pause);
        self.in_flight.len() < IN_FLIGHT_MAX && (self.in_flight.is_empty() || paused)
    }

    /// Begins a round for everybody who has asked so far, also for nobody, unless enough are under way.
    pub(crate) fn begin(&mut self, round: &impl Fn() -> BoxFuture<'static, T>) {
        // Taken before the round begins; a later caller is in the channel and not in this round.
        while self.waiting.len() < CALLERS_MAX
            && let Ok(caller) = self.asking.try_recv()
        {
            self.waiting.push(caller);
        }
        let began = E::instant();
        if !self.is_due(began) {
            return;
        }
        let mut callers = std::mem::take(&mut self.waiting);
        callers.retain(|caller| !caller.is_closed());
        self.last_began = Some(began);
        let round = round();
        self.in_flight.push(Box::pin(async move { Finished { began, outcome: round.await, callers } }));
    }

    /// The next round that has ended; begins rounds as callers ask. None once nobody can ask any more.
    /// Nothing is lost when it is dropped.
    pub(crate) async fn next(&mut self, round: &impl Fn() -> BoxFuture<'static, T>) -> Option<Finished<T>> {
        loop {
            if !self.waiting.is_empty() {
                self.begin(round);
            }
            let free = CALLERS_MAX - self.waiting.len();
            let now = E::instant();
            let rest = (self.last_began.unwrap_or(now) + self.pause).saturating_duration_since(now);
            let waits_for_pause = !self.waiting.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX;
            tokio::select! {
                biased;
                Some(finished) = self.in_flight.next(), if !self.in_flight.is_empty() => return Some(finished),
                count = self.asking.recv_many(&mut self.waiting, free), if self.open && free > 0 => {
                    self.open = count > 0;
                }
                () = E::sleep(rest), if waits_for_pause => {}
                else => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

    use super::*;
    use crate::environment::TokioEnv;
    use futures::FutureExt;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Rounds that end when the test ends them; the outcome of each is its number.
    #[derive(Clone, Default)]
    struct Script {
        begun: Arc<Mutex<Vec<oneshot::Sender<()>>>>,
    }

    impl Script {
        fn round(&self) -> BoxFuture<'static, usize> {
            let (end, ended) = oneshot::channel();
            let mut begun = self.begun.lock();
            begun.push(end);
            let number = begun.len();
            async move {
                let _ = ended.await;
                number
            }
            .boxed()
        }

        fn count(&self) -> usize {
            self.begun.lock().len()
        }

        /// Ends the round with this number.
        fn end(&self, number: usize) {
            let (replacement, _) = oneshot::channel();
            let end = std::mem::replace(&mut self.begun.lock()[number - 1], replacement);
            end.send(()).unwrap();
        }

        /// Waits until `count` rounds have begun.
        async fn until_begun(&self, count: usize) {
            tokio::time::timeout(Duration::from_secs(30), async {
                while self.count() < count {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .unwrap();
        }
    }

    struct Driven {
        asking: mpsc::Sender<Caller<usize>>,
        script: Script,
        driver: tokio::task::JoinHandle<()>,
    }

    impl Driven {
        fn start(pause: Duration) -> Driven {
            let (asking, callers) = mpsc::channel(1_024);
            let script = Script::default();
            let round = script.clone();
            let driver = tokio::spawn(async move {
                let mut rounds = Rounds::<TokioEnv, _>::new(callers, pause);
                while let Some(finished) = rounds.next(&|| round.round()).await {
                    finished.answer();
                }
            });
            Driven { asking, script, driver }
        }

        async fn ask(&self) -> oneshot::Receiver<usize> {
            let (caller, answer) = oneshot::channel();
            self.asking.send(caller).await.unwrap();
            answer
        }
    }

    const NEVER: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn callers_share_a_round_and_whoever_comes_later_waits_for_the_next() {
        let driven = Driven::start(NEVER);
        let first = driven.ask().await;
        driven.script.until_begun(1).await;
        let mut during = Vec::new();
        for _ in 0..100 {
            during.push(driven.ask().await);
        }
        driven.script.end(1);
        assert_eq!(first.await.unwrap(), 1);
        driven.script.until_begun(2).await;
        for answer in &mut during {
            assert!(answer.try_recv().is_err(), "not by a round that began before it asked");
        }
        driven.script.end(2);
        for answer in during {
            assert_eq!(answer.await.unwrap(), 2);
        }
        assert_eq!(driven.script.count(), 2, "a hundred callers, one round");
        drop(driven.asking);
        driven.driver.await.unwrap();
    }

    #[tokio::test]
    async fn a_long_round_does_not_hold_up_the_next_for_longer_than_the_pause() {
        let driven = Driven::start(Duration::ZERO);
        let first = driven.ask().await;
        driven.script.until_begun(1).await;
        let second = driven.ask().await;
        driven.script.until_begun(2).await;
        driven.script.end(2);
        assert_eq!(second.await.unwrap(), 2);
        driven.script.end(1);
        assert_eq!(first.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn rounds_under_way_are_bounded() {
        let driven = Driven::start(Duration::ZERO);
        let mut answers = Vec::new();
        for number in 1..=IN_FLIGHT_MAX {
            answers.push(driven.ask().await);
            driven.script.until_begun(number).await;
        }
        let late = driven.ask().await;
        driven.script.end(3);
        assert_eq!(answers.remove(2).await.unwrap(), 3);
        driven.script.until_begun(IN_FLIGHT_MAX + 1).await;
        driven.script.end(IN_FLIGHT_MAX + 1);
        assert_eq!(late.await.unwrap(), IN_FLIGHT_MAX + 1);
    }

    #[tokio::test]
    async fn nobody_is_asked_for_who_has_gone() {
        let driven = Driven::start(NEVER);
        let first = driven.ask().await;
        driven.script.until_begun(1).await;
        drop(driven.ask().await);
        driven.script.end(1);
        first.await.unwrap();
        drop(driven.asking);
        driven.script.until_begun(2).await;
        driven.script.end(2);
        driven.driver.await.unwrap();
    }
}
