//! How the ranks of one attempt find one another, and keep everyone else out.
//!
//! Rank 0 listens on the address of the rank map; every other rank connects and introduces itself with
//! job, attempt, token, rank, world size and configuration. A process of another attempt, say one that
//! outlived its lease in a cut-off region, is told so and sent away before it can add a number to
//! anything. The listener closes once the gang is complete.

use crate::checkpoint::CONFIG_LEN_MAX;
use crate::error::Error;
use crate::frame::{self, Builder, Fields, FrameError, Kind};
use crate::process::{StopSignal, complain};
use crate::rank_map::{NAME_LEN_MAX, RankMap};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Three names, a configuration, a handful of numbers, and the lengths before them.
const HELLO_LEN_MAX: usize = 2 * NAME_LEN_MAX + CONFIG_LEN_MAX + 64;
const REASON_LEN_MAX: usize = 2 * CONFIG_LEN_MAX + 256;
/// How long one connection may keep rank 0 from the next: a real rank sends its hello at once.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// What rank 0 may need, once the last rank has joined, to read a checkpoint and send it round.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What a rank says of itself; rank 0 compares it with its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    job: String,
    attempt: u64,
    token: String,
    rank: u32,
    world_size: u32,
    config: String,
}

/// How sure a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Waiting may help: the process that listens there now may be the one that has to go.
    NotNow,
    /// Waiting cannot help.
    Never,
}

/// The open connections of a complete gang: for rank 0 one per other rank in rank order, else the one to rank 0.
pub(crate) fn join(
    map: &RankMap,
    config: &str,
    patience: Duration,
    stop: &StopSignal,
) -> Result<Vec<TcpStream>, Error> {
    let hello = Hello {
        job: map.job.clone(),
        attempt: map.attempt,
        token: map.token.clone().unwrap_or_default(),
        rank: map.rank,
        world_size: map.world_size,
        config: config.to_owned(),
    };
    let wait = Wait { deadline: Instant::now() + patience, patience, stop };
    match (map.world_size, map.rank) {
        (1, _) => Ok(Vec::new()),
        (_, 0) => gather(map, &hello, &wait),
        _ => Ok(vec![seek(map, &hello, &wait)?]),
    }
}

struct Wait<'a> {
    deadline: Instant,
    patience: Duration,
    stop: &'a StopSignal,
}

impl Wait<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Ends the wait with `overdue`'s message when the time is up, with `Preempted` on SIGTERM, else pauses shortly.
    fn pause(&self, overdue: impl FnOnce() -> String) -> Result<(), Error> {
        if self.stop.is_raised() {
            return Err(Error::Preempted);
        }
        if self.left().is_zero() {
            return Err(Error::Rendezvous(format!(
                "no rendezvous within {} s: {}",
                self.patience.as_secs(),
                overdue()
            )));
        }
        self.stop.pass_time_until(Instant::now() + PAUSE);
        Ok(())
    }
}

/// Rank 0: waits for every other rank.
fn gather(map: &RankMap, own: &Hello, wait: &Wait<'_>) -> Result<Vec<TcpStream>, Error> {
    let listener = listen(map, wait)?;
    let mut joined: Vec<Option<TcpStream>> = (1..map.world_size).map(|_| None).collect();
    while joined.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, from)) => {
                if let Err(why) = admit(stream, own, wait, &mut joined) {
                    complain(&format!("refused a connection from {from}: {why}"));
                }
                if wait.stop.is_raised() {
                    return Err(Error::Preempted);
                }
            }
            // Nobody there yet, or one that went away while it queued.
            Err(_) => wait.pause(|| format!("rank 0 misses {}", missing(&joined)))?,
        }
    }
    Ok(joined.into_iter().flatten().collect())
}

/// The port may still be held by an earlier attempt on this host that is on its way out.
fn listen(map: &RankMap, wait: &Wait<'_>) -> Result<TcpListener, Error> {
    loop {
        let listening = TcpListener::bind((map.master_addr.as_str(), map.master_port)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listening {
            Ok(listener) => return Ok(listener),
            Err(error) => wait.pause(|| {
                format!(
                    "rank 0 cannot listen on MASTER_ADDR={} MASTER_PORT={}: {error}",
                    map.master_addr, map.master_port
                )
            })?,
        }
    }
}

fn missing(joined: &[Option<TcpStream>]) -> String {
    const NAMED: usize = 8;
    let ranks: Vec<String> = joined
        .iter()
        .zip(1u32..)
        .filter(|(stream, _)| stream.is_none())
        .map(|(_, rank)| rank.to_string())
        .collect();
    let more = match ranks.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("rank {}{more}", ranks[..ranks.len().min(NAMED)].join(", "))
}

/// Takes one connection into the gang, or says why not, to both ends.
fn admit(
    mut stream: TcpStream,
    own: &Hello,
    wait: &Wait<'_>,
    joined: &mut [Option<TcpStream>],
) -> Result<(), String> {
    let hello = receive_hello(&mut stream, wait).map_err(|e| e.to_string())?;
    let place = match compare(own, &hello) {
        // `compare` has checked that the rank is in 1..world_size.
        Ok(()) => &mut joined[hello.rank as usize - 1],
        Err((verdict, why)) => {
            // The refusal is a courtesy; a process that does not read it is refused all the same.
            let body = Builder::default().u8(verdict as u8).text(&why).0;
            let _ = frame::write(&mut stream, Kind::Refused, &body);
            return Err(why);
        }
    };
    if place.is_some() {
        let why = format!("rank {} has joined already", hello.rank);
        let body = Builder::default().u8(Verdict::Never as u8).text(&why).0;
        let _ = frame::write(&mut stream, Kind::Refused, &body);
        return Err(why);
    }
    frame::write(&mut stream, Kind::Welcome, &[]).map_err(|e| e.to_string())?;
    *place = Some(stream);
    Ok(())
}

fn receive_hello(stream: &mut TcpStream, wait: &Wait<'_>) -> Result<Hello, FrameError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let patience = HELLO_PATIENCE.min(wait.left()).max(PAUSE);
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Hello::decode(&frame::expect(stream, Kind::Hello, HELLO_LEN_MAX)?)
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        Builder::default()
            .text(&self.job)
            .u64(self.attempt)
            .text(&self.token)
            .u32(self.rank)
            .u32(self.world_size)
            .text(&self.config)
            .0
    }

    fn decode(body: &[u8]) -> Result<Hello, FrameError> {
        let mut fields = Fields::new(body);
        let hello = Hello {
            job: fields.text(NAME_LEN_MAX)?,
            attempt: fields.u64()?,
            token: fields.text(NAME_LEN_MAX)?,
            rank: fields.u32()?,
            world_size: fields.u32()?,
            config: fields.text(CONFIG_LEN_MAX)?,
        };
        fields.end()?;
        Ok(hello)
    }
}

/// Whether `other` belongs to the gang of `own`, which is rank 0.
fn compare(own: &Hello, other: &Hello) -> Result<(), (Verdict, String)> {
    if other.job != own.job {
        return Err((Verdict::NotNow, format!("rank 0 here is of job {}, not {}", own.job, other.job)));
    }
    if other.attempt != own.attempt {
        let verdict = if other.attempt < own.attempt {
            Verdict::Never
        } else {
            // Then this rank 0 is the stale one, and its successor will listen here soon.
            Verdict::NotNow
        };
        return Err((verdict, format!("rank 0 here is of attempt {}, not {}", own.attempt, other.attempt)));
    }
    if other.token != own.token {
        return Err((
            Verdict::NotNow,
            format!("rank 0 here holds token {:?}, not {:?}", own.token, other.token),
        ));
    }
    if other.world_size != own.world_size {
        return Err((
            Verdict::Never,
            format!("rank 0 has WORLD_SIZE={}, not {}", own.world_size, other.world_size),
        ));
    }
    if other.rank == 0 || other.rank >= own.world_size {
        return Err((Verdict::Never, format!("rank {} is not free", other.rank)));
    }
    if other.config != own.config {
        return Err((
            Verdict::Never,
            format!("rank 0 was started with {}, rank {} with {}", own.config, other.rank, other.config),
        ));
    }
    Ok(())
}

/// Every other rank: connects to rank 0 until it is taken in.
fn seek(map: &RankMap, hello: &Hello, wait: &Wait<'_>) -> Result<TcpStream, Error> {
    loop {
        let why = match call(map, hello, wait) {
            Ok(Answer::Welcome(stream)) => {
                // The next thing to come is where to start, once the last rank has joined.
                match await_bytes(&stream, wait) {
                    Ok(true) => return Ok(stream),
                    Ok(false) if wait.stop.is_raised() => return Err(Error::Preempted),
                    Ok(false) => "the gang is not complete".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            Ok(Answer::Refused(Verdict::Never, why)) => {
                return Err(Error::Rendezvous(format!("refused by rank 0: {why}")));
            }
            Ok(Answer::Refused(Verdict::NotNow, why)) => why,
            Ok(Answer::None) => "it does not answer".to_owned(),
            Err(error) => error.to_string(),
        };
        wait.pause(|| {
            format!(
                "rank {} cannot join rank 0 at MASTER_ADDR={} MASTER_PORT={}: {why}",
                map.rank, map.master_addr, map.master_port
            )
        })?;
    }
}

enum Answer {
    Welcome(TcpStream),
    Refused(Verdict, String),
    /// SIGTERM or the deadline came first.
    None,
}

fn call(map: &RankMap, hello: &Hello, wait: &Wait<'_>) -> Result<Answer, FrameError> {
    let mut stream = connect(map, wait)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HELLO_PATIENCE))?;
    frame::write(&mut stream, Kind::Hello, &hello.encode())?;
    // Until the deadline and not less: giving up earlier would leave a dead connection in rank 0's
    // queue that takes this rank's place when its turn comes.
    if !await_bytes(&stream, wait)? {
        return Ok(Answer::None);
    }
    let (kind, body) = frame::read(&mut stream, REASON_LEN_MAX)?;
    if kind == Kind::Welcome as u8 {
        return Ok(Answer::Welcome(stream));
    }
    if kind != Kind::Refused as u8 {
        return Err(FrameError::Malformed(format!("frame {kind} where Welcome was due")));
    }
    let mut fields = Fields::new(&body);
    let verdict = if fields.u8()? == Verdict::Never as u8 { Verdict::Never } else { Verdict::NotNow };
    Ok(Answer::Refused(verdict, fields.text(REASON_LEN_MAX)?))
}

/// Waits for the first byte of an answer, or the end of the connection, without reading it; `false` when
/// SIGTERM or the deadline came first. A plain read would not see the signal: it is restarted after it.
fn await_bytes(stream: &TcpStream, wait: &Wait<'_>) -> Result<bool, io::Error> {
    stream.set_read_timeout(Some(PAUSE))?;
    // Rank 0 may use all of its time for the last rank and some more to read a checkpoint.
    let deadline = wait.deadline + START_PATIENCE;
    let arrived = loop {
        match stream.peek(&mut [0]) {
            Ok(_) => break true,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
        if wait.stop.is_raised() || Instant::now() >= deadline {
            break false;
        }
    };
    stream.set_read_timeout(Some(START_PATIENCE))?;
    Ok(arrived)
}

fn connect(map: &RankMap, wait: &Wait<'_>) -> Result<TcpStream, io::Error> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses = (map.master_addr.as_str(), map.master_port).to_socket_addrs()?;
    for address in addresses {
        let patience = CONNECT_PATIENCE.min(wait.left()).max(PAUSE);
        match TcpStream::connect_timeout(&address, patience).and_then(not_itself) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// While nobody listens on a port of the ephemeral range, a connection to it on the same host can be
/// given that very port as its own and then meets itself; rank 0 could never bind it afterwards.
fn not_itself(stream: TcpStream) -> Result<TcpStream, io::Error> {
    let ends: (SocketAddr, SocketAddr) = (stream.local_addr()?, stream.peer_addr()?);
    if ends.0 == ends.1 {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            job: "job-1".into(),
            attempt: 5,
            token: "1-20".into(),
            rank: 1,
            world_size: 3,
            config: "seed=1".into(),
        }
    }

    fn verdict_on(change: impl FnOnce(&mut Hello)) -> Option<Verdict> {
        let own = Hello { rank: 0, ..hello() };
        let mut other = hello();
        change(&mut other);
        compare(&own, &other).err().map(|(verdict, _)| verdict)
    }

    #[test]
    fn only_the_same_attempt_joins_and_only_an_older_one_is_told_never() {
        assert_eq!(verdict_on(|_| ()), None);
        assert_eq!(verdict_on(|h| h.attempt = 4), Some(Verdict::Never));
        assert_eq!(verdict_on(|h| h.attempt = 6), Some(Verdict::NotNow));
        assert_eq!(verdict_on(|h| h.job = "x".into()), Some(Verdict::NotNow));
        assert_eq!(verdict_on(|h| h.token.clear()), Some(Verdict::NotNow));
        assert_eq!(verdict_on(|h| h.world_size = 4), Some(Verdict::Never));
        assert_eq!(verdict_on(|h| h.rank = 0), Some(Verdict::Never));
        assert_eq!(verdict_on(|h| h.rank = 3), Some(Verdict::Never));
        assert_eq!(verdict_on(|h| h.config.clear()), Some(Verdict::Never));
    }

    #[test]
    fn a_hello_comes_back_whole_at_its_longest() {
        let long = Hello {
            job: "j".repeat(NAME_LEN_MAX),
            token: "t".repeat(NAME_LEN_MAX),
            config: "c".repeat(CONFIG_LEN_MAX),
            ..hello()
        };
        let body = long.encode();
        assert!(body.len() <= HELLO_LEN_MAX);
        assert_eq!(Hello::decode(&body).unwrap(), long);
        for cut in 0..body.len() {
            assert!(Hello::decode(&body[..cut]).is_err());
        }
    }

    fn map(rank: u32, attempt: u64, port: u16) -> RankMap {
        RankMap {
            rank,
            world_size: 2,
            master_addr: "127.0.0.1".into(),
            master_port: port,
            job: "job-1".into(),
            attempt,
            token: None,
        }
    }

    #[test]
    fn strays_and_nonsense_are_sent_away_and_the_gang_still_forms() {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port();
        let patience = Duration::from_secs(60);
        let root = std::thread::spawn(move || {
            let mut links = join(&map(0, 5, port), "seed=1", patience, &StopSignal::never())?;
            let sent = frame::write(&mut links[0], Kind::Start, &[]);
            sent.map(|()| links.len()).map_err(|e| Error::Rendezvous(e.to_string()))
        });
        let older = join(&map(1, 4, port), "seed=1", patience, &StopSignal::never());
        let message = older.unwrap_err().to_string();
        assert!(message.contains("attempt 5, not 4"), "{message}");
        let mut scanner = TcpStream::connect(("127.0.0.1", port)).unwrap();
        io::Write::write_all(&mut scanner, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let peer = join(&map(1, 5, port), "seed=1", patience, &StopSignal::never());
        assert_eq!(peer.unwrap().len(), 1);
        assert_eq!(root.join().unwrap().unwrap(), 1);
    }

    #[test]
    fn a_rendezvous_that_fails_says_who_is_missing() {
        let alone = join(&map(0, 0, 1), "seed=1", Duration::ZERO, &StopSignal::never());
        assert!(matches!(alone, Err(Error::Rendezvous(_))));
        let nobody: Vec<Option<TcpStream>> = (0..20).map(|_| None).collect();
        assert_eq!(missing(&nobody), "rank 1, 2, 3, 4, 5, 6, 7, 8 and 12 more");
    }
}
