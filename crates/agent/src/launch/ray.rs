//! The `ray` form: a Ray cluster of the gang's workers, one Ray node each, and the driver next to the head.
//!
//! The head's port is chosen by the hub and told to the members when it answers; the driver starts once every
//! member is part of the cluster, and finds it by `RAY_ADDRESS`. The cluster ends with the driver. What a
//! node offers is what its worker was promised: Ray's own look at the machine would count all of it.
//! Sessions are kept in a directory of the placement, removed at the end.

use super::child::Event;
use super::hub::Hub;
use super::identity::{self, Identity};
use super::mpi::part;
use super::protocol::HubMessage;
use super::{Failure, GATHER_MAX, Gang, say};
use crate::contract::{Family, family};
use crate::temporary;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// The numbers of the head and the driver among the children.
const HEAD: u64 = 1;
const DRIVER: u64 = 2;
/// Seconds that a node may take to start.
const NODE_MAX_S: &str = "120";
/// What the head may take to listen.
const HEAD_MAX: Duration = Duration::from_secs(120);
/// Between two looks whether it does: nothing tells.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What `ray start` prints once its node is part of the cluster.
const JOINED_TEXT: &str = "Ray runtime started";
/// Ray takes no smaller object store.
const OBJECT_STORE_BYTES_MIN: u64 = 78_643_200;

pub(super) fn head(gang: &mut Gang, command: &[String]) -> Result<i32, Failure> {
    let hub = Hub::open(&gang.identity, gang.children.events.clone())?;
    let ray = program(command.first().map_or("", String::as_str));
    let address = identity::endpoint(gang.identity.hub(), free_port(gang.identity.hub())?);
    let session = session_directory(&gang.identity.token);
    let code = cluster(gang, &hub, &ray, &address, &session, command);
    part(gang, &hub);
    // Other workers on this machine share the directory, and the last of them has the last word.
    let _ = std::fs::remove_dir_all(&session);
    code
}

fn cluster(
    gang: &mut Gang,
    hub: &Hub,
    ray: &Path,
    address: &str,
    session: &Path,
    command: &[String],
) -> Result<i32, Failure> {
    let mut start = Command::new(ray);
    let port = address.rsplit(':').next().unwrap_or_default();
    start.args(["start", "--head", "--include-dashboard=false"]).arg(format!("--port={port}"));
    start.arg(format!("--temp-dir={}", session.display())).args(offer(&gang.identity));
    gang.children.start(HEAD, patient(&mut start).stdin(Stdio::null()))?;
    if !answers(gang, address)? {
        return Ok(128 + Signal::SIGTERM as i32);
    }
    hub.greet(HubMessage::Ray { address: address.to_owned() });
    if !assembled(gang, hub)? {
        return Ok(128 + Signal::SIGTERM as i32);
    }
    let (program, rest) = command.split_first().ok_or("the command is empty")?;
    let mut driver = Command::new(program);
    driver.args(rest).env("RAY_ADDRESS", address).stdin(Stdio::null());
    gang.children.start(DRIVER, &mut driver)?;
    loop {
        match gang.incoming.recv().map_err(|_| "no more events".to_owned())? {
            Event::Stop => gang.children.signal(DRIVER, Signal::SIGTERM),
            Event::Ended { id: DRIVER, code } => {
                gang.children.ended(DRIVER);
                return Ok(code);
            }
            Event::Ended { id, code } => {
                gang.children.ended(id);
                return Err(format!("the Ray head ended with code {code}"));
            }
            // Ray goes on without a node; whether the gang does is for its worker's end to say.
            Event::Left { rank } => say(&format!("rank {rank} is gone")),
            _ => {}
        }
    }
}

/// Joins the cluster: what a member runs.
pub(super) fn node(gang: &mut Gang, id: u64, address: &str, command: &[String]) -> Result<(), Failure> {
    if gang.children.is_running(id) {
        return Ok(());
    }
    let mut start = Command::new(program(command.first().map_or("", String::as_str)));
    start.args(["start", &format!("--address={address}")]).args(offer(&gang.identity));
    let mut child =
        gang.children.spawn(id, patient(&mut start).stdin(Stdio::null()).stdout(Stdio::piped()))?;
    if let Some(out) = child.stdout.take() {
        let events = gang.children.events.clone();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(out).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                let text = String::from_utf8_lossy(&line);
                // A reader of our output that is gone is no reason to stop reading.
                let _ = writeln!(std::io::stdout().lock(), "{text}");
                if text.contains(JOINED_TEXT) {
                    let _ = events.send(Event::Marked { id });
                }
            }
        });
    }
    gang.children.wait(id, child);
    Ok(())
}

/// Waits until the head listens; false when the worker is to stop before.
fn answers(gang: &mut Gang, address: &str) -> Result<bool, Failure> {
    let at = address
        .to_socket_addrs()
        .map_err(|e| format!("{address}: {e}"))?
        .next()
        .ok_or("the address of rank 0 is unknown")?;
    let end = Instant::now() + HEAD_MAX;
    while TcpStream::connect_timeout(&at, LOOK_AGAIN).is_err() {
        if Instant::now() > end {
            return Err(format!("the Ray head did not listen on {address} within {} s", HEAD_MAX.as_secs()));
        }
        match gang.incoming.recv_timeout(LOOK_AGAIN) {
            Ok(Event::Stop) => return Ok(false),
            Ok(Event::Ended { id: HEAD, code }) => {
                gang.children.ended(HEAD);
                return Err(format!("the Ray head ended with code {code}"));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(true)
}

/// Waits until every member is part of the cluster; false when the worker is to stop before.
fn assembled(gang: &mut Gang, hub: &Hub) -> Result<bool, Failure> {
    let end = Instant::now() + GATHER_MAX;
    let mut ready = BTreeSet::new();
    while ready.len() + 1 < gang.identity.world() {
        match gang.incoming.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Ready { rank }) => {
                ready.insert(rank);
            }
            Ok(Event::Left { rank }) => return Err(format!("rank {rank} left before the cluster stood")),
            Ok(Event::Stop) => return Ok(false),
            Ok(Event::Ended { id: HEAD, code }) => {
                gang.children.ended(HEAD);
                return Err(format!("the Ray head ended with code {code}"));
            }
            Ok(_) => {}
            Err(_) => {
                return Err(format!(
                    "{} of {} ranks are part of the Ray cluster after {} s; not connected: {:?}",
                    ready.len() + 1,
                    gang.identity.world(),
                    GATHER_MAX.as_secs(),
                    hub.missing()
                ));
            }
        }
    }
    Ok(true)
}

/// Waits for this machine's turn to start a Ray node, and tells it as an event: Ray numbers the sockets of nodes that
/// share a machine by looking which are there, so two that start at once take the same.
pub(super) fn await_turn(identity: &Identity, events: SyncSender<Event>) {
    // Only nodes of one cluster share a session's directory, and so their sockets' names.
    let path = identity.unguessable("ray");
    std::thread::spawn(move || {
        let turn = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        // Without the lock the start is as good as anybody's.
        let turn = turn.and_then(|file| file.lock().map(|()| file)).ok();
        let _ = events.send(Event::Turn(turn));
    });
}

/// Ray gives up on a node that is not there within 30 s; a busy host takes longer.
fn patient(start: &mut Command) -> &mut Command {
    const VARIABLE: &str = "RAY_raylet_start_wait_time_s";
    if std::env::var_os(VARIABLE).is_none() {
        start.env(VARIABLE, NODE_MAX_S);
    }
    start
}

/// What a node is started with, in addition to the address of the cluster.
fn offer(identity: &Identity) -> Vec<String> {
    let cpus = (identity.cpu_milli / 1_000).max(1);
    let store = identity.memory_bytes * 3 / 10;
    let mut options = vec![
        "--block".to_owned(),
        "--disable-usage-stats".to_owned(),
        format!("--node-ip-address={}", identity.own()),
        format!("--num-cpus={cpus}"),
    ];
    if store >= OBJECT_STORE_BYTES_MIN {
        options.push(format!("--object-store-memory={store}"));
        options.push(format!("--memory={}", identity.memory_bytes - store));
    }
    match family(&identity.accelerator) {
        Family::Nvidia | Family::Amd => options.push(format!("--num-gpus={}", identity.devices)),
        Family::Tpu => options.push(format!("--resources={{\"TPU\": {}}}", identity.devices)),
        Family::Other => options.push("--num-gpus=0".to_owned()),
    }
    options
}

/// `ray` next to the Python that the command begins with, or the one on the PATH.
fn program(first: &str) -> PathBuf {
    let sibling = Path::new(first).parent().map(|directory| directory.join("ray"));
    sibling.filter(|path| path.is_absolute() && path.exists()).unwrap_or_else(|| PathBuf::from("ray"))
}

/// A port of rank 0's address that is free now; Ray itself takes a number only.
fn free_port(host: &str) -> Result<u16, Failure> {
    let listener = TcpListener::bind((host, 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)));
    let port = listener.and_then(|listener| listener.local_addr()).map(|at| at.port());
    port.map_err(|e| format!("find a free port of {host}: {e}"))
}

/// Holds sockets, whose paths may have 107 bytes, of which Ray takes some 65 for itself.
fn session_directory(token: &str) -> PathBuf {
    temporary::short_base().join(format!("muster-ray-{token}-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn identity(accelerator: &str, devices: usize, memory_bytes: u64) -> Identity {
        Identity {
            rank: 0,
            token: "1.7".into(),
            gang_secret: "1.7".into(),
            port: 61_447,
            ranks: vec![super::super::identity::Rank { address: "10.0.0.1".into() }],
            cpu_milli: 8_500,
            memory_bytes,
            devices,
            accelerator: accelerator.into(),
            stop_grace_ms: 30_000,
            directory: PathBuf::from("/t"),
        }
    }

    #[test]
    fn a_node_offers_what_its_worker_was_promised() {
        let gpu = offer(&identity("h100", 8, 10 << 30)).join(" ");
        assert!(
            gpu.ends_with("--num-cpus=8 --object-store-memory=3221225472 --memory=7516192768 --num-gpus=8"),
            "{gpu}"
        );
        let tpu = offer(&identity("v5e", 4, 10 << 30)).join(" ");
        assert!(tpu.ends_with("--resources={\"TPU\": 4}"), "{tpu}");
        let small = offer(&identity("", 0, 64 << 20)).join(" ");
        assert!(!small.contains("memory") && small.ends_with("--num-gpus=0"), "{small}");
    }

    #[test]
    fn ray_comes_from_where_the_driver_does() {
        assert_eq!(program("python3"), PathBuf::from("ray"));
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ray"), "").unwrap();
        let python = directory.path().join("python3");
        assert_eq!(program(python.to_str().unwrap()), directory.path().join("ray"));
    }
}
