//! openraft on the simulated runtime.

use crate::runtime::{self, Elapsed, JoinError, JoinHandle, Sleep, Timeout};
use muster_store::{Payload, ReplicaNode};
use openraft::impls::TokioRuntime;
use openraft::{AsyncRuntime, Instant, OptionalSend};
use rand::SeedableRng;
use std::future::Future;
use std::io;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

/// The runtime as openraft sees it. Channels are tokio's, which know no runtime.
#[derive(Debug)]
pub struct SimRuntime;

/// A time of a host's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalTime(pub u64);

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for LocalTime {
    type Output = LocalTime;
    fn add(self, duration: Duration) -> LocalTime {
        LocalTime(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for LocalTime {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for LocalTime {
    type Output = LocalTime;
    fn sub(self, duration: Duration) -> LocalTime {
        LocalTime(self.0.saturating_sub(nanos(duration)))
    }
}

impl SubAssign<Duration> for LocalTime {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub<LocalTime> for LocalTime {
    type Output = Duration;
    fn sub(self, other: LocalTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(other.0))
    }
}

impl Instant for LocalTime {
    fn now() -> LocalTime {
        LocalTime(runtime::local_ns())
    }
}

impl AsyncRuntime for SimRuntime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = LocalTime;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = rand::rngs::StdRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        runtime::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        runtime::sleep(duration)
    }

    fn sleep_until(deadline: LocalTime) -> Sleep {
        Sleep::until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout::new(future, runtime::sleep(duration))
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: LocalTime, future: F) -> Timeout<F> {
        Timeout::new(future, Sleep::until(deadline.0))
    }

    fn is_panic(_: &JoinError) -> bool {
        false
    }

    fn thread_rng() -> rand::rngs::StdRng {
        rand::rngs::StdRng::seed_from_u64(runtime::random())
    }

    fn new(_threads: usize) -> SimRuntime {
        SimRuntime
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        futures::executor::block_on(future)
    }

    async fn spawn_blocking<F, T>(work: F) -> Result<T, io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Ok(work())
    }
}

openraft::declare_raft_types!(
    /// As in production but for the runtime: entries, votes and memberships are the very same types.
    pub SimConfig:
        D = Payload,
        R = (),
        NodeId = u64,
        Node = ReplicaNode,
        AsyncRuntime = SimRuntime,
);
