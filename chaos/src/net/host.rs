//! A host: a thread in a separate network namespace, and what runs there.

use super::process::{Process, ProcessError};
use crate::unsupported::{Means, Unsupported};
use nix::sched::{CloneFlags, unshare};
use rtnetlink::LinkUnspec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tun_rs::{DeviceBuilder, SyncDevice};

/// What a host's device is called there.
const DEVICE: &str = "wan0";
/// Bytes that a packet may have, as on most wide-area networks.
const MTU: u16 = 1500;
/// Packets that wait in a device until the wire takes them.
const DEVICE_QUEUE_PACKETS: u32 = 2_000;
/// All hosts of a network are within it.
const NETWORK_PREFIX: u8 = 8;

/// How often a host is looked over for processes that were started while it was being killed.
const KILL_LOOKS_MAX: usize = 100;

/// A host to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Its name in rules: letters, digits, `-`.
    pub name: String,
    /// Its region's name.
    pub region: String,
}

impl HostSpec {
    /// A host of that name in that region.
    pub fn new(name: impl Into<String>, region: impl Into<String>) -> HostSpec {
        HostSpec { name: name.into(), region: region.into() }
    }
}

/// Address `10.R.H.1`: R and H count regions and hosts within one, in the order in which they are named.
pub(super) fn addresses(specs: &[HostSpec]) -> Result<Vec<Ipv4Addr>, String> {
    let is_name = |text: &str| {
        !text.is_empty() && text.len() <= 40 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if specs.is_empty() {
        return Err("a network has at least one".to_owned());
    }
    let mut names = BTreeSet::new();
    let mut regions: BTreeMap<&str, (u8, u8)> = BTreeMap::new();
    let mut addresses = Vec::with_capacity(specs.len());
    for HostSpec { name, region } in specs {
        if !is_name(name) || !is_name(region) {
            return Err(format!("`{name}` in `{region}`: names are letters, digits and `-`, at most 40"));
        }
        if !names.insert(name) {
            return Err(format!("`{name}` is named twice"));
        }
        let next = regions.len() + 1;
        if next > super::REGIONS_MAX && !regions.contains_key(region.as_str()) {
            return Err(format!("more than {} regions", super::REGIONS_MAX));
        }
        let number = u8::try_from(next).unwrap_or(u8::MAX);
        let (region_number, hosts) = regions.entry(region).or_insert((number, 0));
        if usize::from(*hosts) >= super::REGION_HOSTS_MAX {
            return Err(format!("more than {} hosts in region {region}", super::REGION_HOSTS_MAX));
        }
        *hosts += 1;
        addresses.push(Ipv4Addr::new(10, *region_number, *hosts, 1));
    }
    Ok(addresses)
}

/// One host. What runs on it sees its network alone; files and processes are the machine's.
pub struct Host {
    name: String,
    region: String,
    address: Ipv4Addr,
    /// Which namespace, as the system counts them.
    namespace: u64,
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Started {
    device: SyncDevice,
    namespace: u64,
    runtime: Handle,
}

impl Host {
    pub(super) fn start(spec: &HostSpec, address: Ipv4Addr) -> Result<(Host, SyncDevice), Unsupported> {
        let (started, is_started) = mpsc::sync_channel(1);
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(format!("host-{}", spec.name))
            .spawn(move || live(address, &started, ended));
        let thread = thread.map_err(|error| Unsupported::new(Means::NetworkNamespace, &error))?;
        let gone = |_| Unsupported::because(Means::NetworkNamespace, "its thread ended");
        let Started { device, namespace, runtime } = is_started.recv().map_err(gone)??;
        let host = Host {
            name: spec.name.clone(),
            region: spec.region.clone(),
            address,
            namespace,
            runtime,
            end: Some(end),
            thread: Some(thread),
        };
        Ok((host, device))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region it is in.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Its address in the network, the same for everybody.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Runs a future on the host: sockets that it opens are the host's. All of a host's futures share one thread, so
    /// none of them may block it. What it hands to other threads leaves the host.
    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(future)
    }

    /// Runs a future on the host and blocks this thread, which must be no runtime's, until it is done.
    pub fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (done, is_done) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let _ = done.send(future.await);
        });
        is_done.recv().expect("the host lasts as long as this does, and what panics on it panics here")
    }

    /// Starts a process on the host, in a separate process group. What that process starts is on the host too.
    pub async fn launch(&self, command: tokio::process::Command) -> Result<Process, ProcessError> {
        self.spawn(async move { Process::start(command) }).await.map_err(|_| ProcessError::Host)?
    }

    /// Whatever runs on the host now, orphans too: that is, processes whose network is the host's.
    pub fn processes(&self) -> Vec<nix::unistd::Pid> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_here = |pid: &i32| {
            let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net"));
            namespace.is_ok_and(|namespace| namespace.ino() == self.namespace)
        };
        numbers.filter(is_here).map(nix::unistd::Pid::from_raw).collect()
    }

    /// Kills everything on the host at once, as a power cut does to processes, and blocks until they are dead. Files
    /// stay as the system has them. Answers how many it met.
    pub fn kill_all(&self) -> usize {
        let mut killed = 0;
        // Who started another one while we looked has left it behind for the next look.
        for _ in 0..KILL_LOOKS_MAX {
            let found = self.processes();
            if found.is_empty() {
                break;
            }
            killed += found.len();
            let dying: Vec<_> = found.into_iter().filter_map(kill_now).collect();
            dying.iter().for_each(wait_for_end);
        }
        killed
    }

    pub(super) fn stop(&mut self) {
        self.kill_all();
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

fn kill_now(pid: nix::unistd::Pid) -> Option<OwnedFd> {
    let handle = pidfd_open(rustix::process::Pid::from_raw(pid.as_raw())?, PidfdFlags::empty()).ok()?;
    pidfd_send_signal(&handle, rustix::process::Signal::KILL).ok()?;
    Some(handle)
}

/// A process that hangs in a frozen file system does not die; we go on without it.
fn wait_for_end(handle: &OwnedFd) {
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit));
}

/// What a host's thread does from start to end: its namespace, its device, its runtime.
fn live(
    address: Ipv4Addr,
    started: &mpsc::SyncSender<Result<Started, Unsupported>>,
    ended: oneshot::Receiver<()>,
) {
    let (runtime, begun) = match begin(address) {
        Ok((runtime, begun)) => (runtime, Ok(begun)),
        Err(unsupported) => {
            let _ = started.send(Err(unsupported));
            return;
        }
    };
    if started.send(begun).is_ok() {
        let _ = runtime.block_on(ended);
    }
}

fn begin(address: Ipv4Addr) -> Result<(Runtime, Started), Unsupported> {
    let namespace_failed =
        |error: &(dyn std::error::Error + 'static)| Unsupported::new(Means::NetworkNamespace, error);
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| namespace_failed(&error))?;
    let namespace =
        std::fs::metadata("/proc/thread-self/ns/net").map_err(|error| namespace_failed(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| namespace_failed(&error))?;
    let device = DeviceBuilder::new()
        .name(DEVICE)
        .mtu(MTU)
        .ipv4(address, NETWORK_PREFIX, None)
        .build_sync()
        .and_then(|device| device.set_nonblocking(true).map(|()| device))
        .map_err(|error| Unsupported::new(Means::Tun, &error))?;
    runtime.block_on(set_links()).map_err(|error| namespace_failed(&error))?;
    let handle = runtime.handle().clone();
    Ok((runtime, Started { device, namespace: namespace.ino(), runtime: handle }))
}

/// Brings the loopback device up, by which a process reaches its own host under whichever address, and gives the
/// other a longer queue. Over netlink, since the older way to do the latter needs rights over the whole machine.
async fn set_links() -> Result<(), rtnetlink::Error> {
    let refused = |error| rtnetlink::Error::InvalidNla(format!("a netlink connection: {error}"));
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(refused)?;
    let connection = tokio::spawn(connection);
    let up = LinkUnspec::new_with_name("lo").up().build();
    let longer = LinkUnspec::new_with_name(DEVICE).txqueuelen(DEVICE_QUEUE_PACKETS).build();
    for change in [up, longer] {
        netlink.link().set(change).execute().await?;
    }
    connection.abort();
    Ok(())
}
