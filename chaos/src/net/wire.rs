//! The wire: one thread that carries packets from device to device as the engine decides.

use super::Applied;
use super::engine::{Delivery, Engine, LinkStats};
use super::rules::{Rule, RuleError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::setpriority_process;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tun_rs::SyncDevice;

/// Bytes of one link that may be under way; what comes above is dropped, as by a router.
const UNDER_WAY_BYTES_MAX: u64 = 32 << 20;
/// Packets taken from one device before the others have their turn.
const TURN_PACKETS: usize = 32;
/// Requests that wait for the wire.
const REQUESTS_MAX: usize = 64;
const PACKET_BYTES_MAX: usize = 1 << 16;
/// Timers of this thread may be late by so much, in nanoseconds; the system's own slack is fifty times that.
const TIMER_SLACK_NS: u64 = 1_000;

/// The network comes before what uses it. Of this thread alone.
const NICENESS: i32 = -15;

/// Where the wire ends at a host.
pub(super) struct End {
    pub(super) address: Ipv4Addr,
    pub(super) device: SyncDevice,
}

/// Why the wire did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A rule is none; nothing has changed.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The wire has ended.
    #[error("the wire has ended")]
    Ended,
    /// The system refused.
    #[error("{operation}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What the wire did since it was started.
#[derive(Clone, Debug, Default)]
pub struct WireStats {
    /// By sender and receiver; links that carried nothing are left out.
    pub links: BTreeMap<(String, String), LinkStats>,
    /// Packets for nobody here: other protocols, other addresses.
    pub strays: u64,
    /// Copies that the receiving device did not take.
    pub refused: u64,
    /// Copies that are under way now.
    pub under_way: usize,
    /// The longest that a copy was delivered after its time.
    pub latest: Duration,
    /// What the wire used of a processor.
    pub busy: Duration,
}

enum Request {
    Apply(Vec<Rule>, SyncSender<Result<Applied, RuleError>>),
    Stats(SyncSender<WireStats>),
    Stop,
}

pub(super) struct Wire {
    requests: SyncSender<Request>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    pub(super) fn start(ends: Vec<End>, engine: Engine) -> Result<Wire, WireError> {
        let failed = |operation| move |source| WireError::System { operation, source };
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| failed("making the wire's bell")(error.into()))?);
        let (requests, asked) = sync_channel(REQUESTS_MAX);
        let carrier = Carrier::new(ends, engine, asked, Arc::clone(&bell));
        let thread = std::thread::Builder::new().name("wire".to_owned()).spawn(move || carrier.run());
        let thread = Some(thread.map_err(failed("starting the wire's thread"))?);
        Ok(Wire { requests, bell, thread })
    }

    fn ask(&self, request: Request) -> Result<(), WireError> {
        self.requests.send(request).map_err(|_| WireError::Ended)?;
        let rung = self.bell.write(1);
        rung.map(drop)
            .map_err(|error| WireError::System { operation: "ringing the wire's bell", source: error.into() })
    }

    pub(super) fn apply(&self, rules: Vec<Rule>) -> Result<Applied, WireError> {
        let (answer, answered) = sync_channel(1);
        self.ask(Request::Apply(rules, answer))?;
        Ok(answered.recv().map_err(|_| WireError::Ended)??)
    }

    pub(super) fn stats(&self) -> Result<WireStats, WireError> {
        let (answer, answered) = sync_channel(1);
        self.ask(Request::Stats(answer))?;
        answered.recv().map_err(|_| WireError::Ended)
    }

    pub(super) fn stop(&mut self) {
        // An error says that it has stopped.
        let _ = self.ask(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Copy {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

struct Carrier {
    ends: Vec<End>,
    by_address: BTreeMap<Ipv4Addr, usize>,
    engine: Engine,
    asked: Receiver<Request>,
    bell: Arc<EventFd>,
    began: Instant,
    /// By time, then in the order of arrival: time, order, place in `copies`.
    due: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    copies: Vec<Option<Copy>>,
    /// Places in `copies` that are free.
    free: Vec<usize>,
    order: u64,
    /// Bytes under way, by sender and receiver.
    under_way: Vec<u64>,
    stats: WireStats,
}

impl Carrier {
    fn new(ends: Vec<End>, engine: Engine, asked: Receiver<Request>, bell: Arc<EventFd>) -> Carrier {
        let by_address = ends.iter().enumerate().map(|(at, end)| (end.address, at)).collect();
        let under_way = vec![0; ends.len() * ends.len()];
        Carrier {
            ends,
            by_address,
            engine,
            asked,
            bell,
            began: Instant::now(),
            due: BinaryHeap::new(),
            copies: Vec::new(),
            free: Vec::new(),
            order: 0,
            under_way,
            stats: WireStats::default(),
        }
    }

    fn run(mut self) {
        // Without the first, copies are up to 50 microseconds late; without the second, which only root may ask for, as
        // late as other threads make us on a busy machine. They arrive all the same.
        let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS);
        let _ = setpriority_process(None, NICENESS);
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            self.hand_over();
            let Some(ready) = self.wait() else { return };
            if ready.rung && !self.answer() {
                return;
            }
            for at in ready.devices {
                self.take(at, &mut buffer);
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until a packet has come, one is due, or somebody asks. `None` if waiting itself fails.
    fn wait(&self) -> Option<Ready> {
        let next = self.due.peek().map(|Reverse((at, ..))| at.saturating_sub(self.now()));
        let limit = next.map(|next| Timespec {
            tv_sec: i64::try_from(next.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(next.subsec_nanos()),
        });
        let mut watched = Vec::with_capacity(self.ends.len() + 1);
        watched.push(PollFd::new(&*self.bell, PollFlags::IN));
        watched
            .extend(self.ends.iter().map(|end| PollFd::from_borrowed_fd(end.device.as_fd(), PollFlags::IN)));
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => {
                tracing::error!(%error, "the wire cannot wait for packets and ends");
                return None;
            }
        }
        let is_ready = |poll: &PollFd<'_>| poll.revents().contains(PollFlags::IN);
        let devices = (0..self.ends.len()).filter(|at| is_ready(&watched[at + 1])).collect();
        Some(Ready { rung: is_ready(&watched[0]), devices })
    }

    /// Whether the wire goes on.
    fn answer(&mut self) -> bool {
        let _ = self.bell.read();
        while let Ok(request) = self.asked.try_recv() {
            match request {
                Request::Apply(rules, answer) => {
                    let now = self.now();
                    let pairs = self.engine.apply(now, &rules);
                    let applied = pairs.map(|pairs| Applied { at: self.began + now, pairs });
                    let _ = answer.send(applied);
                }
                Request::Stats(answer) => {
                    let _ = answer.send(self.report());
                }
                Request::Stop => return false,
            }
        }
        true
    }

    fn report(&self) -> WireStats {
        let sites = self.engine.sites();
        let pairs = (0..sites.len()).flat_map(|from| (0..sites.len()).map(move |to| (from, to)));
        let links = pairs.filter_map(|(from, to)| {
            let stats = self.engine.stats(from, to);
            (stats.packets > 0).then(|| ((sites[from].name.clone(), sites[to].name.clone()), stats))
        });
        WireStats { links: links.collect(), under_way: self.due.len(), busy: busy(), ..self.stats.clone() }
    }

    /// Takes what a host has sent.
    fn take(&mut self, from: usize, buffer: &mut [u8]) {
        for _ in 0..TURN_PACKETS {
            let bytes = match self.ends[from].device.recv(buffer) {
                Ok(bytes) => &buffer[..bytes],
                // Nothing more, or the device is down, which is its host's affair.
                Err(_) => return,
            };
            let Some(to) = receiver(bytes).and_then(|address| self.by_address.get(&address)).copied() else {
                self.stats.strays += 1;
                continue;
            };
            if to == from {
                self.stats.strays += 1;
                continue;
            }
            let now = self.now();
            for delivery in self.engine.decide(now, from, to, bytes.len()).into_iter().flatten() {
                self.send(from, to, bytes, delivery);
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: &[u8], delivery: Delivery) {
        let under_way = &mut self.under_way[from * self.ends.len() + to];
        if *under_way + bytes.len() as u64 > UNDER_WAY_BYTES_MAX {
            self.engine.overflowed(from, to);
            return;
        }
        *under_way += bytes.len() as u64;
        let mut bytes = bytes.to_vec();
        if let Some(bit) = delivery.turned_bit {
            let at = usize::try_from(bit / 8).expect("a packet's length is one of memory");
            bytes[at] ^= 1 << (bit % 8);
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[place] = Some(Copy { from, to, bytes });
        self.order += 1;
        self.due.push(Reverse((delivery.at, self.order, place)));
    }

    /// Gives hosts what is due.
    fn hand_over(&mut self) {
        while let Some(Reverse((at, _, place))) = self.due.peek().copied() {
            let now = self.now();
            if at > now {
                return;
            }
            self.due.pop();
            let copy = self.copies[place].take().expect("what is due has not been delivered");
            self.free.push(place);
            self.under_way[copy.from * self.ends.len() + copy.to] -= copy.bytes.len() as u64;
            self.stats.latest = self.stats.latest.max(now - at);
            // A device that is full or down loses it, as a host's own would.
            if self.ends[copy.to].device.send(&copy.bytes).is_err() {
                self.stats.refused += 1;
            }
        }
    }
}

struct Ready {
    rung: bool,
    devices: Vec<usize>,
}

/// Processor time of the thread that calls.
fn busy() -> Duration {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    used.expect("every thread has such a clock")
}

/// Whom an IPv4 packet is for.
fn receiver(packet: &[u8]) -> Option<Ipv4Addr> {
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    (packet[0] >> 4 == 4).then(|| Ipv4Addr::from(address))
}
