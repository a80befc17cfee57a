//! The network between the processes of a test, as far as it can be broken: every address that one of
//! them knows another by is a proxy's, and a proxy knows which process is at the other end.
//!
//! What is cut off loses no byte and gets no reset: it waits, as on a line that takes no packets, and goes
//! on when the line is whole again. The test itself reaches everybody at any time.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::process::marked;

/// Bytes that one direction of a connection may hold back.
const HELD_BYTES: usize = 64 << 10;

/// Who hears whom: names of processes that are in no common group do not. Empty when all do.
type Groups = Vec<BTreeSet<String>>;

/// The proxies of a test and what is cut off from what. Dropping it closes all of them.
pub struct Network {
    directory: PathBuf,
    groups: Arc<watch::Sender<Groups>>,
    proxies: JoinSet<()>,
}

impl Network {
    /// A whole one, between processes that name `directory`: each is called by the part of its path below it.
    pub fn new(directory: &Path) -> Network {
        let groups = Arc::new(watch::Sender::new(Groups::new()));
        Network { directory: directory.to_owned(), groups, proxies: JoinSet::new() }
    }

    /// A way to `target`, which belongs to the process `behind`; where others find it.
    pub async fn proxy(&mut self, behind: &str, target: SocketAddr) -> SocketAddr {
        let SocketAddr::V4(own) = target else { panic!("{target} is no IPv4 address") };
        let listener = TcpListener::bind((*own.ip(), 0)).await;
        let listener = listener.unwrap_or_else(|e| panic!("a port of {}: {e}", own.ip()));
        let address = listener.local_addr().expect("a listener has an address");
        let link = Link {
            directory: self.directory.clone(),
            groups: Arc::clone(&self.groups),
            behind: behind.to_owned(),
            target,
        };
        self.proxies.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, from)) = accepted else { continue };
                        connections.spawn(link.clone().carry(stream, from, address));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        address
    }

    /// From now on only processes of one group hear each other; one that is named nowhere hears all.
    pub fn part(&self, groups: &[&[String]]) {
        for name in groups.iter().flat_map(|group| group.iter()) {
            assert!(self.directory.join(name).is_dir(), "there is no process {name}");
        }
        self.groups.send_replace(groups.iter().map(|group| group.iter().cloned().collect()).collect());
    }

    /// Makes it whole again.
    pub fn heal(&self) {
        self.groups.send_replace(Groups::new());
    }
}

fn hear(groups: &Groups, a: &str, b: &str) -> bool {
    let of = |name: &str| groups.iter().position(|group| group.contains(name));
    match (of(a), of(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

#[derive(Clone)]
struct Link {
    directory: PathBuf,
    groups: Arc<watch::Sender<Groups>>,
    behind: String,
    target: SocketAddr,
}

impl Link {
    async fn carry(self, stream: TcpStream, from: SocketAddr, to: SocketAddr) {
        let directory = self.directory.clone();
        let owner = tokio::task::spawn_blocking(move || owner_of(&directory, from, to)).await;
        // A connection that nobody of the test owns is the test's own.
        let who = owner.ok().flatten().unwrap_or_default();
        self.until_whole(&who).await;
        let Ok(onward) = TcpStream::connect(self.target).await else { return };
        // A proxy that gathers what is small would be seen in every latency.
        let _ = (stream.set_nodelay(true), onward.set_nodelay(true));
        let (near, far) = (stream.into_split(), onward.into_split());
        // Both directions to their ends: half a connection may be closed.
        tokio::join!(self.copy(&who, near.0, far.1), self.copy(&who, far.0, near.1));
    }

    async fn until_whole(&self, who: &str) {
        let mut groups = self.groups.subscribe();
        // It fails only when the network is dropped, and this task with it.
        let _ = groups.wait_for(|groups| hear(groups, who, &self.behind)).await;
    }

    async fn copy(&self, who: &str, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut bytes = vec![0; HELD_BYTES];
        loop {
            let read = from.read(&mut bytes).await;
            // The end of a connection does not come through a broken line either.
            self.until_whole(who).await;
            match read {
                Ok(n) if n > 0 => {
                    if to.write_all(&bytes[..n]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }
}

/// The process at the other end of a connection over the loopback, by its directory's name.
fn owner_of(directory: &Path, from: SocketAddr, to: SocketAddr) -> Option<String> {
    let inode = inode_of(from, to).ok()??;
    let socket = format!("socket:[{inode}]");
    let holds = |pid: &i32| {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*socket))
    };
    let pid = marked(directory).into_iter().find(holds)?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).into_owned();
    let below = line.split_once(&format!("{}/", directory.display()))?.1;
    Some(below.split(['/', '\0']).next().unwrap_or_default().to_owned())
}

/// The number of the socket that is connected from the one address to the other.
fn inode_of(from: SocketAddr, to: SocketAddr) -> io::Result<Option<u64>> {
    let text = std::fs::read_to_string("/proc/net/tcp")?;
    Ok(text.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let matches = address(words.get(1)?)? == from && address(words.get(2)?)? == to;
        matches.then(|| words.get(9)?.parse().ok()).flatten()
    }))
}

/// `0100007F:1F90`: the bytes of the address as the machine keeps a number, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}
