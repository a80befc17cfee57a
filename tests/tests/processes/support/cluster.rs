//! A cluster of real replicas.

use muster_client::{AttemptError, Client, Endpoints, Options};
use muster_transport::Security;
use muster_types::ClusterId;
use muster_wire::v1;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Child;

use super::{Scratch, eventually, muster, signal, spawn_program};

/// Short leases, so that a dead agent is noticed within a test; elections that a busy machine can hold. Lines of a test that
/// begin no section are parameters too.
const PARAMETERS: &str = "[timing]\nheartbeat_interval = \"100ms\"\nelection_timeout_min = \"250ms\"\nelection_timeout_max = \"500ms\"\n\n[parameters]\nlease_ttl = \"3s\"\nlease_margin = \"1s\"\nheartbeat_interval = \"500ms\"\ndigest_interval_records = 50\n";

/// A free port of a loopback address.
pub fn free_address(address: Ipv4Addr) -> SocketAddr {
    let [only] = free_addresses(address);
    only
}

/// Free ports of a loopback address, each another one: all of them are held until the last is known.
pub fn free_addresses<const N: usize>(address: Ipv4Addr) -> [SocketAddr; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| {
        TcpListener::bind((address, 0)).unwrap_or_else(|e| panic!("a port of {address}: {e}"))
    });
    listeners.each_ref().map(|listener| listener.local_addr().expect("a listener has an address"))
}

/// What a replica is started with.
#[derive(Clone, Debug)]
pub struct ReplicaFiles {
    pub id: u64,
    pub client: SocketAddr,
    pub peer: SocketAddr,
    /// Where its pages for monitoring systems are.
    pub http: SocketAddr,
    /// Where other processes find the two: the same, but for proxies in between.
    pub shown: (SocketAddr, SocketAddr),
    pub home: PathBuf,
}

impl ReplicaFiles {
    pub fn config(&self) -> PathBuf {
        self.home.join("server.toml")
    }

    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    pub fn region(&self) -> String {
        format!("region-{}", self.id)
    }
}

/// Replicas, their directories and processes. Dropping it ends them and everything that names its directory.
pub struct Cluster {
    pub id: ClusterId,
    /// Addresses 127.x.y.z of this test alone; z from 16 is for agents.
    pub block: [u8; 2],
    pub replicas: Vec<ReplicaFiles>,
    /// This number of the first ones form the cluster; those behind them are laid out to join it.
    pub founders: usize,
    /// More lines of each configuration.
    pub settings: String,
    children: BTreeMap<usize, Child>,
    /// Replicas that are started from another build of the program.
    programs: BTreeMap<usize, PathBuf>,
    /// What the test itself shows to the replicas.
    security: Security,
    // Last, so that it is dropped after the processes.
    pub scratch: Scratch,
}

impl Cluster {
    /// Directories and configurations; nothing runs.
    pub fn lay_out(count: usize) -> Cluster {
        Cluster::lay_out_with(count, 0, "")
    }

    /// The same with replicas that are not among the first members, and more lines of configuration.
    pub fn lay_out_with(founders: usize, spares: usize, settings: &str) -> Cluster {
        let count = founders + spares;
        let scratch = Scratch::new();
        let random = uuid::Uuid::new_v4();
        // 127.0.y.z is where everything else on a machine listens.
        let block = [random.as_bytes()[0].max(1), random.as_bytes()[1]];
        let replicas: Vec<ReplicaFiles> = (0..count)
            .map(|at| {
                let address = Ipv4Addr::new(127, block[0], block[1], at as u8 + 1);
                let home = scratch.path().join(format!("replica-{}", at + 1));
                std::fs::create_dir_all(&home).expect("a directory can be made");
                let [client, peer, http] = free_addresses(address);
                ReplicaFiles { id: at as u64 + 1, client, peer, http, shown: (client, peer), home }
            })
            .collect();
        let cluster = Cluster {
            id: ClusterId(random.as_u128()),
            block,
            replicas,
            founders,
            settings: settings.to_owned(),
            children: BTreeMap::new(),
            programs: BTreeMap::new(),
            security: Security::Plaintext,
            scratch,
        };
        for at in 0..count {
            cluster.write_config(at);
        }
        cluster
    }

    /// Writes the configuration of a replica, for the first time or as it is by now.
    pub fn write_config(&self, at: usize) {
        std::fs::write(self.replicas[at].config(), self.config_of(at)).expect("writing a config");
    }

    /// Starts the founders for the first time and waits for their leader.
    pub async fn start_with(founders: usize, spares: usize, settings: &str) -> Cluster {
        let mut cluster = Cluster::lay_out_with(founders, spares, settings);
        cluster.found().await;
        cluster
    }

    /// Starts the founders, waits for their leader, and makes a host known, so that jobs could fit: no agent
    /// is behind it, so none of them ever runs.
    pub async fn found(&mut self) {
        let leader = self.found_without_hosts().await;
        let registered = super::register(&self.replicas[leader].endpoint(), super::node("no-agent")).await;
        registered.expect("a host can be registered");
    }

    /// Starts the founders and waits for their leader.
    pub async fn found_without_hosts(&mut self) -> usize {
        for at in 0..self.founders {
            self.start_replica_with(at, &["--bootstrap"]);
        }
        self.leader().await
    }

    /// Starts `count` replicas for the first time and waits for their leader.
    pub async fn start(count: usize) -> Cluster {
        let mut cluster = Cluster::lay_out(count);
        for at in 0..count {
            cluster.start_replica_with(at, &["--bootstrap"]);
        }
        cluster.leader().await;
        cluster
    }

    /// Puts a proxy before every address of every replica, before any of them is started.
    pub async fn put_behind(&mut self, network: &mut super::Network) {
        for files in &mut self.replicas {
            let name = format!("replica-{}", files.id);
            files.shown = (network.proxy(&name, files.client).await, network.proxy(&name, files.peer).await);
        }
        for at in 0..self.replicas.len() {
            self.write_config(at);
        }
    }

    /// Where agents connect.
    pub fn shown_endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(|files| format!("http://{}", files.shown.0)).collect()
    }

    /// Starts replicas whose configurations name certificates, for the first time; the test itself is
    /// `security` to them.
    pub fn start_secured(&mut self, security: &Security) {
        self.security = security.clone();
        for at in 0..self.replicas.len() {
            self.start_replica_with(at, &["--bootstrap"]);
        }
    }

    /// The configuration of a replica, as text.
    pub fn config_of(&self, at: usize) -> String {
        let own = &self.replicas[at];
        let members =
            self.replicas.iter().enumerate().filter(|(place, _)| *place < self.founders || *place == at);
        let members: String = members.map(|(_, files)| member(files)).collect();
        let settings = &self.settings;
        format!(
            "cluster_id = \"{}\"\nreplica_id = {}\ndata_dir = {:?}\nclient_listen = \"{}\"\npeer_listen = \"{}\"\nhttp_listen = \"{}\"\n\n{PARAMETERS}\n{settings}\n{members}",
            self.id,
            own.id,
            own.data(),
            own.client,
            own.peer,
            own.http
        )
    }

    /// Starts a replica with more arguments.
    pub fn start_replica_with(&mut self, at: usize, more: &[&str]) {
        self.start_replica_below(&[], at, more);
    }

    /// The same below another command.
    pub fn start_replica_below(&mut self, wrapper: &[&str], at: usize, more: &[&str]) {
        let files = &self.replicas[at];
        let config = files.config();
        let config = config.to_str().expect("the test's directory is text");
        let args = [&["server", "--config", config], more].concat();
        let program = self.programs.get(&at).map_or(muster(), PathBuf::as_path);
        let old = self.children.insert(at, spawn_program(program, wrapper, &files.home, &args));
        assert!(old.is_none(), "replica {at} runs already");
    }

    /// From now on a replica is started from this build of the program; without one, from that of the test.
    pub fn set_program(&mut self, at: usize, program: Option<&Path>) {
        match program {
            Some(program) => self.programs.insert(at, program.to_owned()),
            None => self.programs.remove(&at),
        };
    }

    /// Starts a replica for the first time.
    pub fn start_replica_first(&mut self, at: usize) {
        self.start_replica_with(at, &["--bootstrap"]);
    }

    /// Starts a replica again.
    pub fn start_replica(&mut self, at: usize) {
        self.start_replica_with(at, &[]);
    }

    /// SIGKILL for one replica.
    pub async fn kill(&mut self, at: usize) {
        self.end(at, Signal::SIGKILL).await;
    }

    /// SIGTERM for one replica; it has to end well.
    pub async fn stop(&mut self, at: usize) {
        let status = self.end(at, Signal::SIGTERM).await;
        assert!(status.success(), "replica {at} ended with {status} on SIGTERM");
    }

    async fn end(&mut self, at: usize, what: Signal) -> std::process::ExitStatus {
        let mut child = self.children.remove(&at).unwrap_or_else(|| panic!("replica {at} does not run"));
        signal(&child, what);
        let ended = tokio::time::timeout(super::PATIENCE, child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("replica {at} does not end on {what}"))
            .expect("a child can be waited for")
    }

    /// A signal for one replica, which goes on being a child.
    pub fn signal(&self, at: usize, what: Signal) {
        signal(self.children.get(&at).unwrap_or_else(|| panic!("replica {at} does not run")), what);
    }

    /// SIGKILL for every replica, all before any is waited for: a power cut of the processes.
    pub async fn kill_all_at_once(&mut self) {
        for child in self.children.values() {
            signal(child, Signal::SIGKILL);
        }
        for child in self.children.values_mut() {
            child.wait().await.expect("a child can be waited for");
        }
        self.children.clear();
    }

    /// Whether a replica's process was started and has not been waited for.
    pub fn runs(&self, at: usize) -> bool {
        self.children.contains_key(&at)
    }

    /// The process of a replica that runs.
    pub fn pid(&self, at: usize) -> Option<u32> {
        self.children.get(&at).and_then(Child::id)
    }

    /// Waits until a replica's process has ended by itself, or by somebody else's doing.
    pub async fn ended(&mut self, at: usize) -> std::process::ExitStatus {
        let mut child = self.children.remove(&at).unwrap_or_else(|| panic!("replica {at} does not run"));
        let ended = tokio::time::timeout(super::PATIENCE, child.wait()).await;
        ended.unwrap_or_else(|_| panic!("replica {at} does not end")).expect("a child can be waited for")
    }

    /// The end of what a replica wrote into its log.
    pub fn log_of(&self, at: usize) -> String {
        std::fs::read_to_string(self.replicas[at].home.join("log")).unwrap_or_default()
    }

    /// Starts every replica that does not run.
    pub fn start_all(&mut self) {
        for at in 0..self.replicas.len() {
            if !self.children.contains_key(&at) {
                self.start_replica(at);
            }
        }
    }

    /// The same, and waits for a leader.
    pub async fn restart_all(&mut self) {
        self.start_all();
        self.leader().await;
    }

    /// Runs a command of an operator against the whole cluster.
    pub async fn operate(&self, words: &[&str]) -> super::Ran {
        let endpoints = self.endpoints().join(",");
        super::run_to_end(&[&["--endpoint", endpoints.as_str()], words].concat(), "").await
    }

    /// The same, which has to succeed; what it printed.
    pub async fn operated(&self, words: &[&str]) -> String {
        let ran = self.operate(words).await;
        assert_eq!(ran.code, Some(0), "muster {words:?}: {ran:#?}");
        ran.out
    }

    /// `muster cluster add` and its like for a replica that is laid out: its id and its addresses.
    pub fn address_of(&self, at: usize) -> [String; 6] {
        let files = &self.replicas[at];
        let (peer, client) = (format!("http://{}", files.peer), files.endpoint());
        ["--region".into(), files.region(), "--peer".into(), peer, "--client".into(), client]
    }

    /// Where clients connect.
    pub fn endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(ReplicaFiles::endpoint).collect()
    }

    fn client_at(&self, endpoints: &[SocketAddr]) -> Client {
        let endpoints: Vec<String> = endpoints.iter().map(SocketAddr::to_string).collect();
        let endpoints = Endpoints::parse_with(&endpoints, self.security.clone());
        let endpoints = endpoints.expect("addresses are endpoints").spread();
        let options = Options {
            deadline: super::PATIENCE,
            attempt_timeout: Duration::from_secs(4),
            ..Options::STANDARD
        };
        Client::lazy(endpoints, options)
    }

    /// A client of the whole cluster; each chooses the replica that it begins with.
    pub fn client(&self) -> Client {
        self.client_at(&self.replicas.iter().map(|files| files.client).collect::<Vec<_>>())
    }

    /// A client of the whole cluster that begins with one replica.
    pub fn client_from(&self, at: usize) -> Client {
        let mut addresses: Vec<String> = self.replicas.iter().map(|files| files.client.to_string()).collect();
        addresses.rotate_left(at);
        let endpoints = Endpoints::parse_with(&addresses, self.security.clone());
        let options = Options {
            deadline: super::PATIENCE,
            attempt_timeout: Duration::from_secs(4),
            ..Options::STANDARD
        };
        Client::lazy(endpoints.expect("addresses are endpoints"), options)
    }

    /// A client that knows one replica only.
    pub fn client_of(&self, at: usize) -> Client {
        self.client_at(&[self.replicas[at].client])
    }

    /// How one replica stands.
    pub async fn status_of(&self, at: usize) -> Result<v1::GetStatusResponse, AttemptError> {
        self.client_of(at).get_status_of(&self.replicas[at].client.to_string()).await
    }

    /// Waits for a leader that a majority of the running replicas knows; its place in `replicas`.
    pub async fn leader(&self) -> usize {
        let running: Vec<usize> = self.children.keys().copied().collect();
        self.leader_among(&running).await
    }

    /// The same of a leader among some of them, which alone are asked.
    pub async fn leader_among(&self, running: &[usize]) -> usize {
        eventually("no leader was elected", || async {
            let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
            for at in running {
                if let Ok(status) = self.status_of(*at).await
                    && let Some(leader) = status.freshness.map(|f| f.leader_id).filter(|id| *id > 0)
                    && !status.cluster_id.is_empty()
                {
                    *votes.entry(leader).or_default() += 1;
                }
            }
            let (leader, known_by) = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
            let at = self.replicas.iter().position(|r| r.id == leader)?;
            (known_by * 2 > self.children.len() && self.children.contains_key(&at)).then_some(at)
        })
        .await
    }

    /// Some running replica that does not lead.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        *self.children.keys().find(|at| **at != leader).expect("a cluster has followers")
    }

    /// Waits until a replica has applied everything up to `log_index` and knows a leader.
    pub async fn caught_up(&self, at: usize, log_index: u64) {
        eventually(&format!("replica {at} did not catch up"), || async {
            let fresh = self.status_of(at).await.ok()?.freshness?;
            (fresh.log_index >= log_index && fresh.leader_id > 0).then_some(())
        })
        .await;
    }

    /// Every replica that was started still runs.
    pub fn assert_alive(&mut self) {
        for (at, child) in &mut self.children {
            let ended = child.try_wait().expect("a child can be looked at");
            assert!(ended.is_none(), "replica {at} ended by itself: {ended:?}");
        }
    }

    /// Waits until all running replicas are at one log index; then their state digests are the same,
    /// nothing was rejected, and none has panicked.
    pub async fn assert_digests_agree(&mut self) {
        let statuses = eventually("the replicas did not come to one log index", || async {
            let mut statuses = Vec::new();
            for at in self.children.keys() {
                statuses.push(self.status_of(*at).await.ok()?);
            }
            let index = |s: &v1::GetStatusResponse| s.freshness.map(|f| f.log_index);
            // At different positions the digests say nothing yet.
            let first = index(statuses.first()?)?;
            statuses.iter().all(|s| index(s) == Some(first)).then_some(statuses)
        })
        .await;
        for status in &statuses {
            assert_eq!(status.state_digest, statuses[0].state_digest, "the replicas disagree: {statuses:#?}");
            assert_eq!(status.records_rejected, 0, "a guard refused a record: {status:#?}");
        }
        self.assert_alive();
        self.scratch.assert_no_panics();
    }
}

fn member(files: &ReplicaFiles) -> String {
    format!(
        "[[members]]\nid = {}\nregion = {:?}\npeer_endpoint = \"http://{}\"\nclient_endpoint = \"http://{}\"\n\n",
        files.id,
        files.region(),
        files.shown.1,
        files.shown.0
    )
}
