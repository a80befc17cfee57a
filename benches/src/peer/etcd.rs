//! Three members of etcd on this machine, and its API through the generator that Muster is measured with.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tonic::transport::{Channel, Endpoint};

use crate::cluster::free_addresses;
use crate::load::Caller;
use crate::peer::installed;

/// Messages and calls of etcd's v3 API.
mod api {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    tonic::include_proto!("etcdserverpb");
}
use api::kv_client::KvClient;
use api::maintenance_client::MaintenanceClient;

/// How to get it on Debian.
pub(crate) const INSTALL: &str = "apt-get install etcd-server";

/// Longest wait for a leader.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys that reads choose from.
pub(crate) const KEYS: usize = 10_000;
/// Bytes of a database, instead of the usual 2 GiB: a long run must not fill it.
const QUOTA_BYTES: u64 = 8 << 30;

struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
}

/// The members; they end with this value.
pub(crate) struct Etcd {
    _dir: tempfile::TempDir,
    members: Vec<Member>,
    /// The leader's place among them.
    pub(crate) leader: usize,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.process.as_mut()) {
            // It may have ended by itself; either way it is collected.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Etcd {
    /// Starts three members and waits for a leader; none when etcd is not installed.
    pub(crate) async fn start(directory: Option<&Path>) -> Result<Option<Etcd>> {
        let Some(program) = installed("etcd") else { return Ok(None) };
        let builder = tempfile::Builder::new().prefix("muster-bench-etcd-").to_owned();
        let dir = directory.map_or_else(|| builder.tempdir(), |directory| builder.tempdir_in(directory));
        let dir = dir.context("making a directory for the data")?;
        let pid = std::process::id();
        let mut members = Vec::new();
        for n in 1..=3u8 {
            let address = Ipv4Addr::new(127, (pid >> 8) as u8, pid as u8, 100 + n);
            let (client, peer) = free_addresses(address)?;
            members.push(Member { client, peer, process: None });
        }
        let named = |(n, member): (usize, &Member)| format!("m{n}=http://{}", member.peer);
        let all: Vec<String> = members.iter().enumerate().map(named).collect();
        let mut etcd = Etcd { _dir: dir, members, leader: 0 };
        for n in 0..etcd.members.len() {
            let data = etcd._dir.path().join(format!("m{n}"));
            let member = &mut etcd.members[n];
            let child = Command::new(&program)
                .args(["--name", &format!("m{n}"), "--initial-cluster", &all.join(",")])
                .arg("--data-dir")
                .arg(data)
                .args(["--listen-client-urls", &format!("http://{}", member.client)])
                .args(["--advertise-client-urls", &format!("http://{}", member.client)])
                .args(["--listen-peer-urls", &format!("http://{}", member.peer)])
                .args(["--initial-advertise-peer-urls", &format!("http://{}", member.peer)])
                .args(["--initial-cluster-state", "new", "--quota-backend-bytes", &QUOTA_BYTES.to_string()])
                .args(["--logger", "zap", "--log-level", "error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("starting etcd")?;
            member.process = Some(child);
        }
        etcd.leader = etcd.wait_for_leader().await?;
        Ok(Some(etcd))
    }

    async fn wait_for_leader(&self) -> Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let mut leader = None;
            for (n, member) in self.members.iter().enumerate() {
                let Ok(channel) = channel(member.client).connect().await else { continue };
                let Ok(status) = MaintenanceClient::new(channel).status(api::StatusRequest {}).await else {
                    continue;
                };
                let status = status.into_inner();
                let own = status.header.as_ref().map(|header| header.member_id);
                if status.leader != 0 && own == Some(status.leader) {
                    leader = Some(n);
                }
            }
            if let Some(leader) = leader {
                return Ok(leader);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("etcd has no leader within {} s", PATIENCE.as_secs())
    }

    /// The version that the leader says it is.
    pub(crate) async fn version(&self) -> Result<String> {
        let channel = channel(self.members[self.leader].client).connect_lazy();
        let status = MaintenanceClient::new(channel).status(api::StatusRequest {}).await;
        Ok(status.context("asking for the version")?.into_inner().version)
    }

    /// The processes, by what they do.
    pub(crate) fn processes(&self) -> Vec<(String, u32)> {
        let named = |(n, member): (usize, &Member)| {
            let name = if n == self.leader { "leader".to_owned() } else { format!("follower {}", n + 1) };
            member.process.as_ref().map(|child| (name, child.id()))
        };
        self.members.iter().enumerate().filter_map(named).collect()
    }

    /// Connections to these members, round-robin.
    pub(crate) fn connections(&self, count: usize, to: &[usize], action: Action) -> Vec<Connection> {
        let open = |n: usize| {
            let at = self.members[to[n % to.len()]].client;
            Connection { channel: channel(at).connect_lazy(), action: action.clone() }
        };
        (0..count).map(open).collect()
    }

    /// Writes the keys that reads choose from.
    pub(crate) async fn fill(&self, value: &[u8]) -> Result<()> {
        let mut client = KvClient::new(channel(self.members[self.leader].client).connect_lazy());
        let keys: Vec<usize> = (0..KEYS).collect();
        for some in keys.chunks(100) {
            let puts = some.iter().map(|n| put(key(*n), value.to_vec())).collect();
            client.txn(api::TxnRequest { success: puts }).await.context("writing keys")?;
        }
        Ok(())
    }
}

/// The key of this number.
fn key(n: usize) -> Vec<u8> {
    format!("jobs/{n:024}").into_bytes()
}

fn put(key: Vec<u8>, value: Vec<u8>) -> api::RequestOp {
    let put = api::PutRequest { key, value, lease: 0 };
    api::RequestOp { request: Some(api::request_op::Request::RequestPut(put)) }
}

fn channel(address: SocketAddr) -> Endpoint {
    let address = format!("http://{address}");
    Endpoint::from_shared(address).expect("a socket address makes a URL").tcp_nodelay(true)
}

/// What a connection does, over and over.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// One put of a new key.
    Put {
        /// Its value.
        value: Vec<u8>,
    },
    /// One transaction with several puts of new keys.
    PutMany {
        /// The value of each.
        value: Vec<u8>,
        /// How many.
        count: usize,
    },
    /// One key that there is.
    Get {
        /// From the member's own state, however old; else linearizable.
        serializable: bool,
    },
}

/// A connection to a member.
#[derive(Clone)]
pub(crate) struct Connection {
    channel: Channel,
    action: Action,
}

impl Caller for Connection {
    async fn call(&self) -> bool {
        let mut client = KvClient::new(self.channel.clone());
        let unique = || format!("jobs/{}", uuid::Uuid::new_v4()).into_bytes();
        match &self.action {
            Action::Put { value } => {
                let request = api::PutRequest { key: unique(), value: value.clone(), lease: 0 };
                client.put(request).await.is_ok()
            }
            Action::PutMany { value, count } => {
                let success = (0..*count).map(|_| put(unique(), value.clone())).collect();
                client.txn(api::TxnRequest { success }).await.is_ok()
            }
            Action::Get { serializable } => {
                let n = uuid::Uuid::new_v4().as_u128() as usize % KEYS;
                let request =
                    api::RangeRequest { key: key(n), serializable: *serializable, ..Default::default() };
                client.range(request).await.is_ok_and(|answer| answer.into_inner().kvs.len() == 1)
            }
        }
    }
}
