//! One thread, one queue of tasks, one clock that jumps to the next timer: nothing here waits for anything
//! outside, and every choice is drawn from the seed.
//!
//! Every task belongs to a host. A host can be killed between two polls (power loss), frozen (nothing of it
//! runs, the world goes on), and its clock can run fast or slow. Which runnable task is polled next is drawn
//! as well, so the wake order of channels, which may be random, never shows, and schedules are explored.
//!
//! **Invariant:** the same seed makes the same sequence of polls, draws and events.
//! **Invariant:** a timer never fires early by its host's clock: a loop that finds itself early spins.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// A machine; 0 is the harness itself, whose clock is the true one.
pub type Host = u32;
/// Owns what belongs to no machine: the network, faults, checks.
pub const HARNESS: Host = 0;

/// True time at the begin of a run, so that nothing has to be subtracted from zero.
const BEGIN_NS: u64 = 1_000_000_000_000;
/// The time of day at the begin of a run: late enough that no retention reaches back before 1970.
const EPOCH_MS: u64 = 1_600_000_000_000;
/// Polls without time passing that count as a loop that never ends.
const POLLS_AT_ONCE_MAX: u64 = 400_000;
/// Events kept for a trace.
const TRACE_LINES_MAX: usize = 2_000_000;

struct Task {
    host: Host,
    /// Taken out while it is polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// A host's monotonic clock: it read `local` when the true time was `global`, and runs this much faster.
#[derive(Clone, Copy)]
struct Rate {
    global: u64,
    local: u64,
    ppm: i64,
}

impl Rate {
    fn local(self, global: u64) -> u64 {
        let passed = i128::from(global.saturating_sub(self.global));
        let scaled = passed * i128::from(1_000_000 + self.ppm) / 1_000_000;
        u64::try_from(i128::from(self.local) + scaled).unwrap_or(u64::MAX)
    }

    /// Rounded up: the first true time at which the clock reads at least this.
    fn global(self, local: u64) -> u64 {
        let passed = i128::from(local.saturating_sub(self.local));
        let scaled = (passed * 1_000_000) / i128::from(1_000_000 + self.ppm) + 2;
        u64::try_from(i128::from(self.global) + scaled).unwrap_or(u64::MAX)
    }
}

#[derive(Default)]
struct World {
    now: u64,
    random: u64,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    ready: BTreeSet<u64>,
    timers: BTreeMap<(u64, u64), Waker>,
    next_timer: u64,
    /// With what its clock said when it was.
    frozen: BTreeMap<Host, u64>,
    /// Runnable tasks of frozen hosts.
    held: BTreeSet<u64>,
    rates: BTreeMap<Host, Rate>,
    /// How far wall clocks are off, in milliseconds: now, and before that was changed last.
    wall_offsets: BTreeMap<Host, (i64, i64)>,
    /// What the clock of a host that stood still said when it went on.
    thawed: BTreeMap<Host, u64>,
    current: Host,
    hash: u64,
    events: u64,
    polls: u64,
    polls_at_once: u64,
    polled_at: u64,
    trace: Option<Vec<String>>,
    panics: Vec<String>,
}

thread_local! { static WORLD: RefCell<World> = RefCell::new(World::default()); }

fn with<T>(f: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| f(&mut world.borrow_mut()))
}

/// The next number of a stream.
pub fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Starts from the beginning: no task, no timer, the clock at its start.
pub fn reset(seed: u64, keep_trace: bool) {
    // Dropped outside: what is dropped may look at the world, and start tasks in it.
    loop {
        let (tasks, timers) = with(|world| {
            let tasks = std::mem::take(&mut world.tasks);
            (tasks, std::mem::take(&mut world.timers))
        });
        if tasks.is_empty() && timers.is_empty() {
            break;
        }
        drop((tasks, timers));
    }
    with(|world| {
        *world = World {
            now: BEGIN_NS,
            random: seed,
            hash: 0xcbf2_9ce4_8422_2325,
            trace: keep_trace.then(Vec::new),
            ..World::default()
        };
    });
}

/// The next number.
pub fn random() -> u64 {
    with(|world| step(&mut world.random))
}

/// A number below `bound`; 0 where there is none.
pub fn below(bound: u64) -> u64 {
    random() % bound.max(1)
}

/// True with a probability of `permille` in a thousand.
pub fn chance(permille: u64) -> bool {
    below(1_000) < permille
}

/// One of them.
pub fn pick<T: Clone>(all: &[T]) -> Option<T> {
    if all.is_empty() { None } else { all.get(below(all.len() as u64) as usize).cloned() }
}

/// True time, in nanoseconds.
pub fn now_ns() -> u64 {
    with(|world| world.now)
}

/// Milliseconds since the begin of the run.
pub fn elapsed_ms() -> u64 {
    (now_ns() - BEGIN_NS) / 1_000_000
}

/// The time of the present host's monotonic clock, in nanoseconds.
pub fn local_ns() -> u64 {
    with(|world| local(world, world.current, world.now))
}

/// The time of a host's monotonic clock, in nanoseconds.
pub fn local_ns_of(host: Host) -> u64 {
    with(|world| local(world, host, world.now))
}

fn local(world: &World, host: Host, global: u64) -> u64 {
    world.rates.get(&host).map_or(global, |rate| rate.local(global))
}

/// Whose task is running.
pub fn current_host() -> Host {
    with(|world| world.current)
}

/// Lets a host's monotonic clock run faster by this many parts of a million, or slower.
pub fn set_rate(host: Host, ppm: i64) {
    with(|world| {
        let rate = Rate { global: world.now, local: local(world, host, world.now), ppm };
        world.rates.insert(host, rate);
    });
}

/// Sets a host's wall clock off.
pub fn set_wall_offset(host: Host, ms: i64) {
    with(|world| {
        let (before, _) = world.wall_offsets.get(&host).copied().unwrap_or_default();
        world.wall_offsets.insert(host, (ms, before))
    });
}

/// What the present host's wall clock says, in milliseconds since 1970.
pub fn wall_ms() -> u64 {
    wall_ms_of(current_host()).0
}

/// What a host's wall clock says, and what it would say had it not been set the last time.
pub fn wall_ms_of(host: Host) -> (u64, u64) {
    with(|world| {
        let (offset, before) = world.wall_offsets.get(&host).copied().unwrap_or_default();
        let right = EPOCH_MS + (world.now - BEGIN_NS) / 1_000_000;
        (right.saturating_add_signed(offset), right.saturating_add_signed(before))
    })
}

/// What a host's monotonic clock said when it last went on after it had stood still; none where it never did.
pub fn thawed_at(host: Host) -> Option<u64> {
    with(|world| world.thawed.get(&host).copied())
}

/// Adds to the trace. The text is part of the run's digest.
pub fn event(kind: &str, text: fmt::Arguments<'_>) {
    with(|world| {
        let line = format!("{:>12.6} {kind} {text}", (world.now - BEGIN_NS) as f64 / 1e9);
        for byte in line.bytes() {
            world.hash = (world.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        world.events += 1;
        if let Some(lines) = &mut world.trace
            && lines.len() < TRACE_LINES_MAX
        {
            lines.push(line);
        }
    });
}

/// What identifies a run: two of the same seed must agree in all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunDigest {
    /// Of every event, every poll count and the state of the generator.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
}

/// Of the run so far.
pub fn digest() -> RunDigest {
    with(|world| {
        let mut hash = world.hash ^ world.random.rotate_left(17);
        hash = step(&mut hash) ^ world.polls;
        RunDigest {
            hash,
            events: world.events,
            polls: world.polls,
            simulated_ms: (world.now - BEGIN_NS) / 1_000_000,
        }
    })
}

/// The trace so far.
pub fn take_trace() -> Vec<String> {
    with(|world| world.trace.take()).unwrap_or_default()
}

/// Panics of tasks so far.
pub fn take_panics() -> Vec<String> {
    with(|world| std::mem::take(&mut world.panics))
}

struct TaskWaker(u64);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        // Tasks that are dropped, with their thread or with the world, wake others that go with them.
        let _ = WORLD.try_with(|world| {
            let Ok(mut world) = world.try_borrow_mut() else { return };
            if world.tasks.contains_key(&self.0) && !world.held.contains(&self.0) {
                world.ready.insert(self.0);
            }
        });
    }
}

/// The end of a task that was killed or panicked.
#[derive(Debug)]
pub struct JoinError;

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task is gone")
    }
}

/// What a task will return.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|result| result.map_err(|_| JoinError))
    }
}

/// Starts a task on a host.
pub fn spawn_on<F>(host: Host, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (sender, receiver) = oneshot::channel();
    let future = Box::pin(async move {
        // Nobody may wait for it any more.
        let _ = sender.send(future.await);
    });
    with(|world| {
        world.next_task += 1;
        let id = world.next_task;
        world.tasks.insert(id, Task { host, future: Some(future) });
        world.ready.insert(id);
    });
    JoinHandle(receiver)
}

/// Starts a task on the present host.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_on(current_host(), future)
}

/// Power loss: every task of the host is gone before its next poll.
pub fn kill(host: Host) {
    let dead = with(|world| {
        let ids: Vec<u64> = world.tasks.iter().filter(|(_, t)| t.host == host).map(|(id, _)| *id).collect();
        for id in &ids {
            world.held.remove(id);
            world.ready.remove(id);
        }
        world.frozen.remove(&host);
        ids.into_iter().filter_map(|id| world.tasks.remove(&id)).collect::<Vec<Task>>()
    });
    drop(dead);
}

/// Stops everything on a host until [`thaw`]; the clocks go on.
pub fn freeze(host: Host) {
    with(|world| {
        let since = local(world, host, world.now);
        world.frozen.entry(host).or_insert(since);
    });
}

/// Lets a host go on.
pub fn thaw(host: Host) {
    with(|world| {
        if world.frozen.remove(&host).is_some() {
            let now = local(world, host, world.now);
            world.thawed.insert(host, now);
        }
        let (tasks, held) = (&world.tasks, &mut world.held);
        let free: Vec<u64> =
            held.iter().copied().filter(|id| tasks.get(id).is_none_or(|t| t.host == host)).collect();
        for id in free {
            held.remove(&id);
            if tasks.contains_key(&id) {
                world.ready.insert(id);
            }
        }
    });
}

/// Lets a frozen host go on as if no time had passed since it was frozen: a virtual machine whose hypervisor paused it and
/// does not tell. A clock never goes back: a host that was let go on meanwhile keeps its time.
pub fn thaw_without_time(host: Host) {
    with(|world| {
        let Some(local) = world.frozen.get(&host).copied() else { return };
        let ppm = world.rates.get(&host).map_or(0, |rate| rate.ppm);
        world.rates.insert(host, Rate { global: world.now, local, ppm });
    });
    thaw(host);
}

/// Whether a host stands still.
pub fn is_frozen(host: Host) -> bool {
    with(|world| world.frozen.contains_key(&host))
}

enum Next {
    Poll(u64, Pin<Box<dyn Future<Output = ()>>>),
    Again,
    Timer(Waker),
    Stuck(&'static str),
}

fn next() -> Next {
    with(|world| {
        if world.ready.is_empty() {
            let Some(((at, _), waker)) = world.timers.pop_first() else {
                return Next::Stuck("no task can run and no timer is set");
            };
            world.now = world.now.max(at);
            return Next::Timer(waker);
        }
        let place = step(&mut world.random) % world.ready.len() as u64;
        let Some(id) = world.ready.iter().nth(place as usize).copied() else { return Next::Again };
        world.ready.remove(&id);
        let Some(task) = world.tasks.get_mut(&id) else { return Next::Again };
        if world.frozen.contains_key(&task.host) {
            world.held.insert(id);
            return Next::Again;
        }
        let Some(future) = task.future.take() else { return Next::Again };
        world.current = task.host;
        world.polls += 1;
        if world.polled_at == world.now {
            world.polls_at_once += 1;
            if world.polls_at_once > POLLS_AT_ONCE_MAX {
                return Next::Stuck("tasks wake one another without end");
            }
        } else {
            (world.polled_at, world.polls_at_once) = (world.now, 0);
        }
        Next::Poll(id, future)
    })
}

fn poll(id: u64, mut future: Pin<Box<dyn Future<Output = ()>>>) {
    let waker = Waker::from(Arc::new(TaskWaker(id)));
    let mut cx = Context::from_waker(&waker);
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
    let pending = match result {
        Ok(poll) => poll.is_pending(),
        Err(panic) => {
            let detail = muster_consensus::Halt::detail_of(panic.as_ref());
            with(|world| world.panics.push(format!("host {}: {detail}", world.current)));
            false
        }
    };
    let over = with(|world| {
        world.current = HARNESS;
        match world.tasks.get_mut(&id) {
            Some(task) if pending => {
                task.future = Some(future);
                None
            }
            Some(_) => {
                world.tasks.remove(&id);
                Some(future)
            }
            None => Some(future),
        }
    });
    drop(over);
}

/// Runs the world until the future is done.
///
/// # Errors
/// When nothing can go on, or tasks wake one another without end.
pub fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> Result<T, &'static str> {
    let mut handle = spawn_on(HARNESS, future);
    loop {
        match next() {
            Next::Poll(id, future) => poll(id, future),
            Next::Timer(waker) => waker.wake(),
            Next::Again => {}
            Next::Stuck(why) => return Err(why),
        }
        match handle.0.try_recv() {
            Ok(value) => return Ok(value),
            Err(oneshot::error::TryRecvError::Empty) => {}
            Err(oneshot::error::TryRecvError::Closed) => return Err("the run itself panicked"),
        }
    }
}

/// Until a host's clock reads a time.
pub struct Sleep {
    host: Host,
    deadline: u64,
    key: Option<(u64, u64)>,
}

impl Sleep {
    /// By the present host's clock.
    pub fn until(deadline: u64) -> Sleep {
        Sleep { host: current_host(), deadline, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (host, deadline, old) = (self.host, self.deadline, self.key);
        let key = with(|world| {
            let due = local(world, host, world.now) >= deadline;
            let stale = old.and_then(|key| world.timers.remove(&key));
            if due {
                return (None, stale);
            }
            let at = world.rates.get(&host).map_or(deadline, |rate| rate.global(deadline));
            world.next_timer += 1;
            let key = (at.max(world.now + 1), world.next_timer);
            world.timers.insert(key, cx.waker().clone());
            (Some(key), stale)
        });
        self.key = key.0;
        if self.key.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // At the end of a run everything goes at once.
            let _waker = WORLD.try_with(|world| {
                world.try_borrow_mut().ok().and_then(|mut world| world.timers.remove(&key))
            });
        }
    }
}

/// By the present host's clock.
pub fn sleep(duration: Duration) -> Sleep {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Sleep::until(local_ns().saturating_add(nanos))
}

/// By the present host's clock.
pub fn sleep_ms(ms: u64) -> Sleep {
    sleep(Duration::from_millis(ms))
}

/// By the true clock.
pub fn sleep_true_ns(ns: u64) -> Sleep {
    Sleep { host: HARNESS, deadline: now_ns().saturating_add(ns), key: None }
}

/// The deadline passed first.
#[derive(Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

/// A future with a deadline.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F> Timeout<F> {
    /// With the deadline of this sleep.
    pub fn new(future: F, sleep: Sleep) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

/// By the present host's clock.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout::new(future, sleep(duration))
}
