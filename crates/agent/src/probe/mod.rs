//! A short probe of the network between some hosts: one pair after another, both ways, then a ring all-reduce
//! over all of them. Before a large gang starts, and by hand.
//!
//! The leader says who takes part and hands everybody one key; each agent listens for as long as the probe
//! lasts and takes connections that show the key alone. Pairs follow the turns of a round-robin tournament,
//! so at any time each host measures one other, and nobody has to keep them in step: who is early waits.
//!
//! **Invariant:** bounded in time and bytes whatever the others do; what could not be measured is reported, never
//! guessed; nothing of a user goes over these connections.

mod host;
mod link;
mod load;
mod ring;

pub use crate::rules::{Limits, Plan};
pub(crate) use host::Prober;

use crate::limits;
use muster_types::probe::{Link, LinkOutcome, Ring};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// First bytes of every connection of a probe.
const MAGIC: [u8; 8] = *b"MSPROBE1";
const HELLO_BYTES: usize = 8 + 16 + 4 + 1;
/// How long a connection may take to say whose it is.
const HELLO_MAX: Duration = Duration::from_secs(1);
/// Between two attempts to connect to a host that does not listen yet.
const CONNECT_AGAIN: Duration = Duration::from_millis(20);

/// What one host measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Both directions of every pair that it led.
    pub links: Vec<Link>,
    /// The ring, when it came to its end.
    pub ring: Option<Ring>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Pair = 1,
    Ring = 2,
}

/// The partner of `own` among `count` hosts in a turn of the circle method: in each turn everybody meets
/// one other, or rests where the count is odd; after `count` turns (one less when it is even) all have met.
fn partner(own: u32, turn: u32, count: u32) -> Option<u32> {
    let seats = count + count % 2;
    if seats < 2 {
        return None;
    }
    let circle = seats - 1;
    let last = circle;
    let other = if own == last {
        // The one whose double is the turn, on a circle of odd length.
        (0..circle).find(|n| (2 * n) % circle == turn % circle)?
    } else if (2 * own) % circle == turn % circle {
        last
    } else {
        (turn % circle + circle - own % circle) % circle
    };
    (other < count && other != own).then_some(other)
}

/// Turns of the tournament; with many hosts some of them, so that a probe stays short: then each is measured
/// against that many others.
fn turns(count: u32) -> u32 {
    (count + count % 2).saturating_sub(1).min(limits::PROBE_TURNS_MAX)
}

/// Connections that were taken and wait for their turn, by purpose and by who made them.
type Lobby = Arc<Mutex<BTreeMap<(Purpose, u32), mpsc::Sender<TcpStream>>>>;

/// Listens for a probe.
///
/// # Errors
/// When there is no port.
pub async fn listen(at: SocketAddr) -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind(at).await?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Takes part in a probe to its end, or to the end of its budget.
pub async fn run(plan: Plan, listener: TcpListener) -> Measured {
    let count = plan.peers.len() as u32;
    if plan.own >= count {
        return Measured::default();
    }
    let mut waiting: BTreeMap<(Purpose, u32), mpsc::Receiver<TcpStream>> = BTreeMap::new();
    let lobby = Lobby::default();
    {
        let mut seats = lobby.lock().await;
        for from in (0..count).filter(|from| *from != plan.own) {
            for purpose in [Purpose::Pair, Purpose::Ring] {
                let (seat, taken) = mpsc::channel(1);
                seats.insert((purpose, from), seat);
                waiting.insert((purpose, from), taken);
            }
        }
    }
    let deadline = Instant::now() + plan.limits.budget;
    let mut measured = Measured::default();
    let doing = take_part(&plan, &mut waiting, deadline, &mut measured);
    tokio::select! {
        // It never ends by itself.
        () = accept(listener, plan.key, count, lobby) => {}
        ended = tokio::time::timeout_at(deadline, doing) => if ended.is_err() {
            tracing::info!(links = measured.links.len(), "a probe ran out of its time");
        },
    }
    measured
}

async fn take_part(
    plan: &Plan,
    waiting: &mut BTreeMap<(Purpose, u32), mpsc::Receiver<TcpStream>>,
    deadline: Instant,
    measured: &mut Measured,
) {
    let count = plan.peers.len() as u32;
    // A part of the time is the ring's, however slow the pairs are.
    let pairs_end = deadline - plan.limits.budget / 4;
    let begun = deadline - plan.limits.budget;
    // Each turn has its end, counted from the beginning: a host that waited in vain in one turn is there for
    // the next, and time that a turn did not need is left for those behind it.
    let share = (pairs_end - begun) / turns(count).max(1);
    let share = share.max(3 * plan.limits.pair);
    for turn in 0..turns(count) {
        let Some(other) = partner(plan.own, turn, count) else { continue };
        let until = (begun + share * (turn + 1)).min(pairs_end);
        if plan.own < other {
            let led = async {
                let stream = connect(plan, other, Purpose::Pair).await?;
                link::lead(stream, &plan.limits).await
            };
            let both = match tokio::time::timeout_at(until, led).await {
                Ok(Ok((there, back))) => [there, back],
                Ok(Err(error)) => {
                    [LinkOutcome::Failed(error.to_string()), LinkOutcome::Failed(error.to_string())]
                }
                Err(_) => {
                    let text = || LinkOutcome::Failed("no answer in time".to_owned());
                    [text(), text()]
                }
            };
            let [there, back] = both;
            measured.links.push(Link { from: plan.own, to: other, outcome: there, load_milli: 0 });
            measured.links.push(Link { from: other, to: plan.own, outcome: back, load_milli: 0 });
        } else if let Some(seat) = waiting.get_mut(&(Purpose::Pair, other)) {
            let followed = async {
                let Some(stream) = seat.recv().await else { return Ok(()) };
                link::follow(stream, &plan.limits).await
            };
            // What went wrong is seen, and said, by the other end.
            let _ = tokio::time::timeout_at(until, followed).await;
        }
    }
    if count >= 2 {
        let before = (plan.own + count - 1) % count;
        let reduced = async {
            let next = connect(plan, (plan.own + 1) % count, Purpose::Ring).await?;
            let seat = waiting.get_mut(&(Purpose::Ring, before));
            let previous = match seat {
                Some(seat) => seat.recv().await,
                None => None,
            };
            let previous = previous.ok_or(io::ErrorKind::NotConnected)?;
            ring::all_reduce(plan.own, count, plan.limits.ring_bytes, next, previous).await
        };
        measured.ring = reduced.await.inspect_err(|error| tracing::info!(%error, "a ring was broken")).ok();
    }
}

/// Connects to a host, waiting until it listens.
async fn connect(plan: &Plan, to: u32, purpose: Purpose) -> io::Result<TcpStream> {
    let (host, port) = &plan.peers[to as usize];
    let mut stream = loop {
        match TcpStream::connect((host.as_str(), *port)).await {
            Ok(stream) => break stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tokio::time::sleep(CONNECT_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nodelay(true)?;
    let mut hello = Vec::with_capacity(HELLO_BYTES);
    hello.extend_from_slice(&MAGIC);
    hello.extend_from_slice(&plan.key.to_le_bytes());
    hello.extend_from_slice(&plan.own.to_le_bytes());
    hello.push(purpose as u8);
    stream.write_all(&hello).await?;
    Ok(stream)
}

/// Takes connections, a bounded number at a time, and seats those that show the key.
async fn accept(listener: TcpListener, key: u128, count: u32, lobby: Lobby) {
    let mut greeting = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if greeting.len() < 2 * count as usize => {
                if let Ok((stream, _)) = accepted {
                    greeting.spawn(seat(stream, key, Arc::clone(&lobby)));
                }
            }
            Some(_) = greeting.join_next() => {}
        }
    }
}

async fn seat(mut stream: TcpStream, key: u128, lobby: Lobby) {
    let mut hello = [0u8; HELLO_BYTES];
    let said = tokio::time::timeout(HELLO_MAX, stream.read_exact(&mut hello)).await;
    if !matches!(said, Ok(Ok(_))) || stream.set_nodelay(true).is_err() {
        return;
    }
    let (magic, rest) = hello.split_at(8);
    let (shown, rest) = rest.split_at(16);
    let (from, purpose) = rest.split_at(4);
    let purpose = match purpose {
        [1] => Purpose::Pair,
        [2] => Purpose::Ring,
        _ => return,
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u128, |all, byte| (all << 8) | u128::from(*byte));
    if magic != MAGIC || number(shown) != key {
        tracing::warn!("a connection that shows no key of a probe is dropped");
        return;
    }
    let from = number(from) as u32;
    if let Some(seat) = lobby.lock().await.get(&(purpose, from)) {
        // One connection for each purpose: a second one is dropped.
        let _ = seat.try_send(stream);
    }
}

#[cfg(test)]
mod tests;
