//! A member: every rank but the first.

use super::child::{self, Event, shell};
use super::protocol::{self, Answer, Hello, HubMessage, Lines, Role, Side, is_proof, send};
use super::{Failure, GATHER_MAX, Gang, ray, say};
use nix::sys::signal::Signal;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Of one attempt at a connection.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// First and longest wait between two attempts: the hub's worker may start later than this one.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The number of the Ray node among the children; commands have those of the hub.
const RAY_NODE: u64 = 1;

pub(super) fn run(gang: &mut Gang, command: &[String]) -> Result<i32, Failure> {
    let code = follow(gang, command);
    // There is none where nothing was run.
    let _ = std::fs::remove_dir_all(gang.identity.scratch());
    code
}

fn follow(gang: &mut Gang, command: &[String]) -> Result<i32, Failure> {
    let (hub, lines) = join(gang)?;
    let events = gang.children.events.clone();
    std::thread::spawn(move || listen(lines, &events));
    // The Ray cluster to join, and the turn to do so.
    let (mut cluster, mut turn) = (None, None);
    loop {
        let event = gang.incoming.recv().map_err(|_| "no more events".to_owned())?;
        match event {
            // The work that saves runs next to rank 0 and ends this with the hub's word; or the grace ends it.
            Event::Stop => say("asked to stop: waiting for rank 0 to finish"),
            Event::Hub(Some(HubMessage::Run { id, shell: line })) => {
                if let Err(failure) = gang.children.start(id, &mut shell(&line, &gang.identity.scratch())) {
                    say(&failure);
                    let _ = send(&hub, &Answer::Exited { id, code: 127 });
                }
            }
            Event::Hub(Some(HubMessage::Kill { id })) => gang.children.signal(id, Signal::SIGTERM),
            Event::Hub(Some(HubMessage::Ray { address })) => {
                cluster = Some(address);
                ray::await_turn(&gang.identity, gang.children.events.clone());
            }
            Event::Turn(file) => {
                if let Some(address) = &cluster {
                    turn = file;
                    ray::node(gang, RAY_NODE, address, command)?;
                }
            }
            Event::Hub(Some(HubMessage::End)) => {
                child::wind_down(&mut gang.children, &gang.incoming, 0);
                return Ok(0);
            }
            Event::Hub(Some(HubMessage::Welcome { .. } | HubMessage::Exited { .. })) => {}
            Event::Hub(None) => {
                child::wind_down(&mut gang.children, &gang.incoming, 0);
                return Err("rank 0 is gone".to_owned());
            }
            Event::Marked { id: RAY_NODE } => {
                drop(turn.take());
                let _ = send(&hub, &Answer::Ready);
            }
            Event::Ended { id: RAY_NODE, code } => {
                gang.children.ended(RAY_NODE);
                return Err(format!("the Ray node ended with code {code}"));
            }
            Event::Ended { id, code } => {
                gang.children.ended(id);
                let _ = send(&hub, &Answer::Exited { id, code });
            }
            _ => {}
        }
    }
}

fn join(gang: &Gang) -> Result<(TcpStream, Lines), Failure> {
    let identity = &gang.identity;
    let end = Instant::now() + GATHER_MAX;
    let mut wait = AGAIN.0;
    loop {
        let error = match attempt(gang) {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        if Instant::now() + wait > end {
            let (host, port) = (identity.hub(), identity.port);
            return Err(format!(
                "rank 0 was not reached at {host} port {port} within {} s: {error}",
                GATHER_MAX.as_secs()
            ));
        }
        // Nothing tells when somebody begins to listen; a stop meanwhile ends the wait.
        match gang.incoming.recv_timeout(wait) {
            Ok(Event::Stop) => return Err("stopped before rank 0 was reached".to_owned()),
            Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        wait = (wait * 2).min(AGAIN.1);
    }
}

fn attempt(gang: &Gang) -> io::Result<(TcpStream, Lines)> {
    let identity = &gang.identity;
    let address = (identity.hub(), identity.port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the address of rank 0 is unknown"))?;
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(CONNECT_MAX))?;
    stream.set_read_timeout(Some(CONNECT_MAX))?;
    let own = protocol::nonce();
    let role = Role::Member { rank: identity.rank };
    send(&stream, &Hello { token: identity.token.clone(), nonce: own.clone(), role })?;
    let mut lines = Lines::of(stream.try_clone()?);
    let Some(HubMessage::Welcome { token, nonce, proof: told }) = lines.next()? else {
        return Err(io::Error::other("it is not this gang's hub"));
    };
    let proof = |side| protocol::proof(&identity.gang_secret, side, identity.rank, [&own, &nonce]);
    // Somebody else's hub, or one that is about to go.
    if token != identity.token || !is_proof(&told, &proof(Side::Hub)) {
        return Err(io::Error::other("it is not this gang's hub"));
    }
    send(&stream, &Answer::Proof { proof: proof(Side::Member) })?;
    stream.set_read_timeout(None)?;
    Ok((stream, lines))
}

fn listen(mut lines: Lines, events: &SyncSender<Event>) {
    loop {
        let told = lines.next().unwrap_or(None);
        let gone = told.is_none();
        if events.send(Event::Hub(told)).is_err() || gone {
            return;
        }
    }
}
