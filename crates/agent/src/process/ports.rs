//! Connections to ports of workers: which ports a worker's processes listen on, and a connection to one of them.
//!
//! Workers of one host share its network. So the kernel is asked which socket listens on a port and which processes have that
//! socket open, before a connection is made and again behind it.
//!
//! **Invariant:** a connection is handed on only if, before it was made and after, the worker ran, the same socket of its processes
//! listened at the address, and no socket of others could have taken it.

use crate::limits;
use crate::process::processes;
use crate::process::shim::{ENDED, Lineage, NOT_YET, lineage};
use crate::process::task::TaskDir;
use nix::sched::{CloneFlags, setns};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Open files of a worker that are looked at. One with more is not connected to: the look is not counted as the worker's time.
pub(super) const OPEN_FILES_MAX: usize = 1 << 17;
/// Sockets of a host that are looked at.
const SOCKETS_MAX: usize = 1 << 20;
/// Control groups of a worker that are looked at.
const GROUPS_MAX: usize = 4_096;
/// Ways to one port that are tried.
const CANDIDATES_MAX: usize = 4;
/// Ports that a refusal names.
const NAMED_MAX: usize = 16;
/// What the kernel calls a socket that listens.
const LISTENS: &str = "0A";

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    address: IpAddr,
    pub(super) port: u16,
    /// The kernel's number of the socket.
    pub(super) inode: u64,
}

/// A socket of the worker, and where it is reached.
type Candidate = (Listener, SocketAddr);

/// What can be connected to.
#[derive(Debug)]
struct Found {
    lineage: Lineage,
    /// At least one.
    candidates: Vec<Candidate>,
}

/// Looks whether processes of a worker listen on a port.
///
/// # Errors
/// One sentence with the ports on which they do.
pub(crate) fn look(task: &TaskDir, port: u16) -> Result<(), String> {
    find(task, port).map(drop)
}

/// Connects to a port on which processes of a worker listen.
///
/// # Errors
/// As [`look`], or why no connection was made.
pub(crate) fn connect(task: &TaskDir, port: u16) -> Result<TcpStream, String> {
    let found = find(task, port)?;
    let mut failure = ENDED.to_owned();
    for candidate in &found.candidates {
        let stream = match connect_in(found.lineage.worker, candidate.1) {
            Ok(stream) => stream,
            Err(error) => {
                failure = error;
                continue;
            }
        };
        // The one that was looked at: another process may have taken its port, or the worker's number, meanwhile.
        let again = find(task, port)?;
        if again.lineage == found.lineage && again.candidates.contains(candidate) {
            // What people type must not wait for more of it.
            let _ = stream.set_nodelay(true);
            return Ok(stream);
        }
        return Err("the port was just taken over; try again".to_owned());
    }
    Err(failure)
}

/// Whether nothing of the worker runs any more.
pub(crate) fn has_ended(task: &TaskDir) -> bool {
    !task.path().is_dir() || matches!(task.exit(), Ok(Some(_)))
}

fn find(task: &TaskDir, port: u16) -> Result<Found, String> {
    if has_ended(task) {
        return Err(ENDED.to_owned());
    }
    let running = task.running().map_err(|e| e.to_string())?.ok_or(NOT_YET)?;
    let lineage = lineage(task, &running)?;
    let sockets = sockets_of(&members(&lineage, running.cgroup.as_deref()), OPEN_FILES_MAX)?;
    let listeners = listeners(lineage.worker)?;
    let candidates = choose(&listeners, &sockets, port)?;
    Ok(Found { lineage, candidates })
}

/// The worker's sockets at a port, and where they are reached; at least one.
fn choose(listeners: &[Listener], sockets: &BTreeSet<u64>, port: u16) -> Result<Vec<Candidate>, String> {
    let is_own = |listener: &Listener| sockets.contains(&listener.inode);
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut taken = false;
    for listener in listeners.iter().filter(|listener| listener.port == port && is_own(listener)) {
        for target in reached_at(listener.address) {
            let takes = |other: &Listener| {
                other.port == port && (other.address == target || other.address.is_unspecified())
            };
            if listeners.iter().any(|other| takes(other) && !is_own(other)) {
                taken = true;
            } else if candidates.len() < CANDIDATES_MAX {
                candidates.push((*listener, SocketAddr::new(target, port)));
            }
        }
    }
    if !candidates.is_empty() {
        return Ok(candidates);
    }
    if taken {
        return Err(format!("a process that is not the worker's listens on port {port} as well"));
    }
    let ports: BTreeSet<u16> = listeners.iter().filter(|one| is_own(one)).map(|one| one.port).collect();
    let named: Vec<String> = ports.iter().take(NAMED_MAX).map(u16::to_string).collect();
    let which = match (named.is_empty(), ports.len() > NAMED_MAX) {
        (true, _) => "on none".to_owned(),
        (false, false) => format!("on {}", named.join(", ")),
        (false, true) => format!("on {} and {} more", named.join(", "), ports.len() - NAMED_MAX),
    };
    Err(format!("no process of the worker listens on port {port}; they listen {which}"))
}

/// Where a socket that listens at an address is reached from its host.
fn reached_at(address: IpAddr) -> Vec<IpAddr> {
    let (four, six) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    match address {
        IpAddr::V4(address) if address.is_unspecified() => vec![four],
        // It takes the other kind as well, unless its program has refused that. A host may have no address of the one kind.
        IpAddr::V6(address) if address.is_unspecified() => vec![six, four],
        other => vec![other],
    }
}

/// The worker's processes, by their numbers on the host.
fn members(lineage: &Lineage, group: Option<&Path>) -> BTreeSet<i32> {
    let mut members = processes::family(lineage.init);
    members.insert(lineage.init);
    let mut groups: Vec<PathBuf> = group.into_iter().map(Path::to_owned).collect();
    let mut looked_at = 0;
    while let Some(group) = groups.pop() {
        looked_at += 1;
        if looked_at > GROUPS_MAX {
            break;
        }
        let listed = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        // One of another namespace is 0.
        members
            .extend(listed.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid: &i32| *pid > 0));
        let Ok(below) = std::fs::read_dir(&group) else { continue };
        let directories = below.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(directories.map(|entry| entry.path()));
    }
    members
}

/// The sockets that these processes have open, where they have no more open files together than that. One that cannot be looked at
/// has none.
pub(super) fn sockets_of(members: &BTreeSet<i32>, open_files_max: usize) -> Result<BTreeSet<u64>, String> {
    let mut sockets = BTreeSet::new();
    let mut looked_at = 0;
    for pid in members {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for file in files.flatten() {
            looked_at += 1;
            if looked_at > open_files_max {
                return Err("the worker has too many open files to look for its ports".to_owned());
            }
            let Ok(target) = std::fs::read_link(file.path()) else { continue };
            sockets.extend(target.to_str().and_then(socket_in));
        }
    }
    Ok(sockets)
}

/// The number in `socket:[123]`.
fn socket_in(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The sockets that listen in the network of a process.
pub(super) fn listeners(pid: i32) -> Result<Vec<Listener>, String> {
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let path = format!("/proc/{pid}/net/{table}");
        let file = match File::open(&path) {
            Ok(file) => file,
            // A host without IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && table == "tcp6" => continue,
            Err(error) => return Err(format!("read {path}: {error}")),
        };
        read_table(file, &mut found).map_err(|error| format!("read {path}: {error}"))?;
    }
    // Several sockets of a worker may share a port; the choice among them must not depend on the kernel's order.
    found.sort_by_key(|one| one.inode);
    Ok(found)
}

fn read_table(file: impl Read, found: &mut Vec<Listener>) -> std::io::Result<()> {
    for (at, line) in BufReader::new(file).lines().enumerate() {
        if at > SOCKETS_MAX {
            return Err(std::io::Error::other("it has too many sockets"));
        }
        found.extend(listener_in(&line?));
    }
    Ok(())
}

/// A line of the kernel's table: number, own address, the other's, state, queues, timer, retransmissions, user, timeout, socket.
fn listener_in(line: &str) -> Option<Listener> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTENS {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Listener { address: address_in(address)?, port, inode })
}

/// An address as the kernel prints it: words of four bytes, each as a number of this machine.
fn address_in(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (part, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                part.copy_from_slice(&word(at)?);
            }
            let address = Ipv6Addr::from(bytes);
            Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
        }
        _ => None,
    }
}

/// Connects in the network of a process, which is the host's unless the worker has another.
fn connect_in(pid: i32, target: SocketAddr) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("connect to {target}: {error}");
    let number =
        |path: String| std::fs::metadata(&path).map(|found| found.ino()).map_err(|_| ENDED.to_owned());
    if number(format!("/proc/{pid}/ns/net"))? == number("/proc/self/ns/net".to_owned())? {
        return TcpStream::connect_timeout(&target, limits::PORT_CONNECT_MAX).map_err(failed);
    }
    let network = File::open(format!("/proc/{pid}/ns/net")).map_err(|_| ENDED)?;
    // A thread that ends keeps no other task in that network; a socket stays in the one that it was made in.
    let thread = std::thread::spawn(move || {
        setns(&network, CloneFlags::CLONE_NEWNET)
            .map_err(|error| format!("join the worker's network: {error}"))?;
        TcpStream::connect_timeout(&target, limits::PORT_CONNECT_MAX)
            .map_err(|error| format!("connect to {target}: {error}"))
    });
    thread.join().unwrap_or_else(|_| Err(format!("connect to {target}: it was given up")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn listener(address: &str, port: u16, inode: u64) -> Listener {
        Listener { address: address.parse().unwrap(), port, inode }
    }

    #[test]
    fn a_line_of_the_kernel_is_a_socket_that_listens_or_nothing() {
        let four = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100";
        if cfg!(target_endian = "little") {
            assert_eq!(listener_in(four), Some(listener("127.0.0.1", 8_080, 4_711)));
        }
        let any = "   1: 00000000000000000000000000000000:1776 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 12 1 0";
        assert_eq!(listener_in(any), Some(listener("::", 6_006, 12)));
        for other in [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
            &*four.replace(" 0A ", " 01 "),
            "   0: 0100007F 00000000:0000 0A 0:0 0:0 0 0 0 12",
            "   0: 0100:1F90 00000000:0000 0A 0:0 0:0 0 0 0 12",
            "",
        ] {
            assert_eq!(listener_in(other), None, "{other}");
        }
        assert_eq!(
            (socket_in("socket:[17]"), socket_in("pipe:[17]"), socket_in("/etc")),
            (Some(17), None, None)
        );
    }

    #[test]
    fn only_the_workers_own_sockets_are_connected_to() {
        let (own, others): (BTreeSet<u64>, _) = ([1, 2, 3].into(), 9);
        let listeners = [
            listener("0.0.0.0", 6_006, 1),
            listener("::", 8_888, 2),
            listener("10.0.0.7", 8_265, 3),
            listener("127.0.0.1", 8_265, others),
            listener("127.0.0.1", 22, others),
        ];
        let chosen = |port| {
            let candidates = choose(&listeners, &own, port)?;
            Ok::<_, String>(
                candidates.iter().map(|(_, target)| target.to_string()).collect::<Vec<_>>().join(" "),
            )
        };
        assert_eq!(chosen(6_006), Ok("127.0.0.1:6006".to_owned()));
        assert_eq!(chosen(8_888), Ok("[::1]:8888 127.0.0.1:8888".to_owned()));
        assert_eq!(chosen(8_265), Ok("10.0.0.7:8265".to_owned()), "the address of the worker's socket");
        let refused = chosen(22).unwrap_err();
        assert!(refused.contains("port 22; they listen on 6006, 8265, 8888"), "{refused}");
        // Two sockets that share a port: the kernel would choose.
        let shared = [listener("0.0.0.0", 6_006, 1), listener("127.0.0.1", 6_006, others)];
        assert!(choose(&shared, &own, 6_006).unwrap_err().contains("not the worker's"));
        assert!(choose(&[], &own, 6_006).unwrap_err().ends_with("they listen on none"));
    }

    #[test]
    fn the_kernel_tells_which_process_listens() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = std::process::id().cast_signed();
        let sockets = sockets_of(&[own].into(), OPEN_FILES_MAX).unwrap();
        let all = listeners(own).unwrap();
        let candidates = choose(&all, &sockets, port).unwrap();
        let (_, target) = candidates[0];
        assert_eq!(target, socket.local_addr().unwrap());
        assert!(connect_in(own, target).is_ok());
        assert!(choose(&all, &BTreeSet::new(), port).is_err(), "nobody's");
    }
}
