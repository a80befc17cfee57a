//! Three replicas as processes on this machine, and one host that exists only so that jobs could fit.

use anyhow::{Context, Result, ensure};
use muster_client::{Client, Endpoints, Options};
use muster_wire::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine;

/// Longest wait for a cluster to come up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two looks at what replicas use of the processors, and in how many in a row they use less than a quarter of one.
const REST_LOOK: Duration = Duration::from_millis(500);
const REST_LOOKS: u32 = 4;

/// What differs between the clusters that scenarios need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Entries of the log between two snapshots, and entries kept behind one; what a server does by
    /// itself when not said.
    pub(crate) snapshots: Option<(u64, u64)>,
    /// Whether replicas serve web pages and `/metrics`.
    pub(crate) has_pages: bool,
    /// How long a host may be silent, and how often it is heard; what a cluster does by itself when not said.
    pub(crate) leases: Option<Leases>,
}

/// How long a host keeps its lease without a heartbeat, and the time between two of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leases {
    pub(crate) ttl: Duration,
    pub(crate) heartbeat_interval: Duration,
}

/// The processes; they end with this value.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    program: PathBuf,
    settings: Settings,
    replicas: Vec<(SocketAddr, SocketAddr)>,
    pages: Vec<SocketAddr>,
    children: Vec<Option<Child>>,
    agents: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.agents.len() {
            self.crash_host(n);
        }
        for child in self.children.iter_mut().flatten() {
            // It may have ended by itself; either way it is collected.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody listens on.
pub(crate) fn free_address(address: Ipv4Addr) -> Result<SocketAddr> {
    hold_port(address)?.local_addr().context("reading a port")
}

/// Two different ports that nobody listens on: both are held until both are known.
pub(crate) fn free_addresses(address: Ipv4Addr) -> Result<(SocketAddr, SocketAddr)> {
    let (first, second) = (hold_port(address)?, hold_port(address)?);
    Ok((first.local_addr().context("reading a port")?, second.local_addr().context("reading a port")?))
}

fn hold_port(address: Ipv4Addr) -> Result<TcpListener> {
    TcpListener::bind((address, 0)).with_context(|| format!("no free port on {address}"))
}

impl Cluster {
    /// Starts replicas from the program next to this one, and waits for a leader.
    pub(crate) async fn start(directory: Option<&Path>, settings: Settings) -> Result<Cluster> {
        let own = std::env::current_exe().context("finding this program")?;
        let program = own.with_file_name("muster");
        ensure!(
            program.exists(),
            "{} is missing; build it with `cargo build --release -p muster`",
            program.display()
        );
        let builder = tempfile::Builder::new().prefix("muster-bench-").to_owned();
        let dir = match directory {
            Some(directory) => builder.tempdir_in(directory),
            None => builder.tempdir(),
        };
        let dir = dir.context("making a directory for the data")?;
        let pid = std::process::id();
        let (mut replicas, mut pages) = (Vec::new(), Vec::new());
        for n in 1..=3u8 {
            let address = |n| Ipv4Addr::new(127, (pid >> 8) as u8, pid as u8, n);
            replicas.push(free_addresses(address(200 + n))?);
            pages.push(free_address(address(210 + n))?);
        }
        let children = vec![None, None, None];
        let mut cluster = Cluster { dir, program, settings, replicas, pages, children, agents: Vec::new() };
        for replica in 0..3 {
            cluster.configure(replica)?;
            cluster.run(replica, true)?;
        }
        cluster.wait_for_leader().await?;
        cluster.register_host().await?;
        Ok(cluster)
    }

    /// Waits until the replicas have done what came before: they place, apply and make snapshots for a while behind the last
    /// acknowledgement, and take the processors of this machine from what is measured next.
    pub(crate) async fn rest(&self) {
        let begun = Instant::now();
        let mut quiet = 0;
        let mut before = self.processor_time();
        while quiet < REST_LOOKS && begun.elapsed() < PATIENCE {
            tokio::time::sleep(REST_LOOK).await;
            let now = self.processor_time();
            quiet = if now.saturating_sub(before) < REST_LOOK / 4 { quiet + 1 } else { 0 };
            before = now;
        }
        if quiet < REST_LOOKS {
            println!("the replicas have not come to rest within {} s", PATIENCE.as_secs());
        }
    }

    fn processor_time(&self) -> Duration {
        self.children.iter().flatten().map(|child| machine::process_time(child.id())).sum()
    }

    /// Where the data is.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Where a replica serves its pages, if it does.
    pub(crate) fn pages_of(&self, replica: usize) -> SocketAddr {
        self.pages[replica]
    }

    /// Where clients connect.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(|(client, _)| format!("http://{client}")).collect()
    }

    /// The processes that run, by what they do: `leader`, and `follower` with its number.
    pub(crate) fn processes(&self, leader: usize) -> Vec<(String, u32)> {
        let named = |(n, child): (usize, &Option<Child>)| {
            let name = if n == leader { "leader".to_owned() } else { format!("follower {}", n + 1) };
            child.as_ref().map(|child| (name, child.id()))
        };
        self.children.iter().enumerate().filter_map(named).collect()
    }

    /// The process of a replica.
    pub(crate) fn process(&self, replica: usize) -> Result<u32> {
        self.children[replica].as_ref().map(Child::id).context("the replica does not run")
    }

    /// What a replica has written.
    pub(crate) fn data(&self, replica: usize) -> PathBuf {
        self.home(replica).join("data")
    }

    fn home(&self, replica: usize) -> PathBuf {
        self.dir.path().join(format!("r{}", replica + 1))
    }

    fn configure(&self, replica: usize) -> Result<()> {
        let home = self.home(replica);
        std::fs::create_dir_all(&home).context("making a replica's directory")?;
        let (client, peer) = self.replicas[replica];
        let members: String = self.replicas.iter().enumerate().map(|(n, (client, peer))| {
            format!("[[members]]\nid = {}\nregion = \"region-{}\"\npeer_endpoint = \"http://{peer}\"\nclient_endpoint = \"http://{client}\"\n", n + 1, n + 1)
        }).collect();
        let snapshots = self.settings.snapshots.map_or_else(String::new, |(every, kept)| {
            format!("[snapshots]\nevery_entries = {every}\nkept_entries = {kept}\n")
        });
        let http = if self.settings.has_pages {
            format!("http_listen = \"{}\"\n", self.pages[replica])
        } else {
            String::new()
        };
        let parameters = self.settings.leases.map_or_else(String::new, |leases| {
            let (ttl, interval) = (leases.ttl.as_millis(), leases.heartbeat_interval.as_millis());
            format!("[parameters]\nlease_ttl = \"{ttl}ms\"\nheartbeat_interval = \"{interval}ms\"\n")
        });
        let text = format!(
            "cluster_id = \"{:032x}\"\nreplica_id = {}\ndata_dir = {:?}\nclient_listen = \"{client}\"\npeer_listen = \"{peer}\"\n{http}{members}{snapshots}{parameters}",
            std::process::id(),
            replica + 1,
            home.join("data"),
        );
        std::fs::write(home.join("server.toml"), text).context("writing a configuration")
    }

    /// Starts a replica.
    pub(crate) fn run(&mut self, replica: usize, bootstrap: bool) -> Result<()> {
        let home = self.home(replica);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(home.join("log"))
            .context("opening a log")?;
        let mut command = Command::new(&self.program);
        command.arg("server").arg("--config").arg(home.join("server.toml"));
        if bootstrap {
            command.arg("--bootstrap");
        }
        command.env("MUSTER_DIE_WITH_PARENT", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children[replica] = Some(command.spawn().context("starting a replica")?);
        Ok(())
    }

    /// SIGKILL for a replica.
    pub(crate) fn kill(&mut self, replica: usize) -> Result<()> {
        let child = self.children[replica].as_mut().context("the replica was never started")?;
        child.kill().context("killing a replica")?;
        child.wait().context("waiting for a killed replica")?;
        Ok(())
    }

    fn host(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("host-{n}"))
    }

    /// What the cluster calls a host.
    pub(crate) fn host_name(n: usize) -> String {
        format!("bench-{n}")
    }

    /// Starts real agents until there are `count`, each a host with four accelerators, and waits until their
    /// nodes are up.
    pub(crate) async fn start_agents(&mut self, count: usize) -> Result<()> {
        for n in self.agents.len()..count {
            let home = self.host(n);
            std::fs::create_dir_all(&home).context("making a host's directory")?;
            let text = format!(
                "state_dir = {:?}\nendpoints = {:?}\n[node]\nname = {:?}\nregion = \"region-1\"\ncluster = \"c1\"\naddress = \"127.0.0.1\"\ncpu = 64\nmemory = \"64Gi\"\naccelerators = {{ type = \"h100\", count = 4 }}\n",
                home.join("state"),
                self.endpoints(),
                Cluster::host_name(n),
            );
            let config = home.join("agent.toml");
            std::fs::write(&config, text).context("writing a configuration")?;
            let log = std::fs::File::create(home.join("log")).context("opening a log")?;
            let mut command = Command::new(&self.program);
            command.arg("agent").arg("--config").arg(&config).env("MUSTER_DIE_WITH_PARENT", "1");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.agents.push(command.spawn().context("starting an agent")?);
        }
        let client = self.client(0, PATIENCE)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let request = v1::ListNodesRequest { page_size: 1_000, ..Default::default() };
            let nodes = client.list_nodes(request).await.context("listing nodes")?.nodes;
            let is_ours = |node: &&v1::Node| {
                node.status() == v1::NodeStatus::Up
                    && node.description.as_ref().is_some_and(|d| d.name.starts_with("bench-"))
            };
            if nodes.iter().filter(is_ours).count() >= count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("{count} agents did not register within {} s", PATIENCE.as_secs())
    }

    /// The processes of the agents.
    pub(crate) fn agents(&self) -> Vec<u32> {
        self.agents.iter().map(Child::id).collect()
    }

    /// A power cut: SIGKILL for an agent and everything below it.
    pub(crate) fn crash_host(&mut self, n: usize) {
        let _ = self.agents[n].kill();
        // Shims and workers name the directory of their host; each pass kills all that it sees.
        for _ in 0..100 {
            let found = processes_naming(&self.host(n).join(""));
            if found.is_empty() {
                break;
            }
            for pid in found {
                // It may have ended with its shim.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = self.agents[n].wait();
    }

    /// A client with a separate connection, beginning at one of the replicas.
    pub(crate) fn client(&self, first: usize, deadline: Duration) -> Result<Client> {
        let mut endpoints = self.endpoints();
        let count = endpoints.len();
        endpoints.rotate_left(first % count);
        let options = Options { deadline, attempt_timeout: Duration::from_secs(5), ..Options::STANDARD };
        Ok(Client::lazy(Endpoints::parse(&endpoints)?, options))
    }

    /// A client that asks one replica only, and reads what that replica has.
    pub(crate) fn client_of(&self, replica: usize) -> Result<Client> {
        let endpoints = Endpoints::parse(&self.endpoints()[replica..=replica])?;
        let options = Options { read_your_writes: false, ..Options::STANDARD };
        Ok(Client::lazy(endpoints, options))
    }

    /// Waits until a replica has applied the log up to an index, and serves it.
    pub(crate) async fn wait_for(&self, replica: usize, log_index: u64, limit: Duration) -> Result<Duration> {
        let client = self.client_of(replica)?;
        let address = self.endpoints()[replica].clone();
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Ok(status) = client.get_status_of(&address).await
                && status.freshness.is_some_and(|f| f.log_index >= log_index)
            {
                return Ok(begun.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!(
            "replica {} did not reach log index {log_index} within {} s",
            replica + 1,
            limit.as_secs()
        )
    }

    /// The leader's place among the replicas.
    pub(crate) async fn wait_for_leader(&self) -> Result<usize> {
        let client = self.client(0, PATIENCE)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(status) = client.get_status(v1::GetStatusRequest::default()).await
                && let Some(leader) = status.freshness.map(|f| f.leader_id).filter(|id| *id > 0)
                && !status.cluster_id.is_empty()
            {
                return Ok(leader as usize - 1);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("no leader within {} s", PATIENCE.as_secs())
    }

    /// Jobs that no host could ever hold are refused, so one registers and goes away again.
    async fn register_host(&self) -> Result<()> {
        let home = self.dir.path().join("host");
        std::fs::create_dir_all(&home).context("making a host's directory")?;
        let text = format!(
            "state_dir = {:?}\nendpoints = {:?}\n[node]\nname = \"host-1\"\nregion = \"region-1\"\ncluster = \"c1\"\naddress = \"127.0.0.1\"\ncpu = \"1m\"\nmemory = \"1Mi\"\n",
            home.join("state"),
            self.endpoints(),
        );
        let config = home.join("agent.toml");
        std::fs::write(&config, text).context("writing a configuration")?;
        let mut agent = Command::new(&self.program)
            .arg("agent")
            .arg("--config")
            .arg(&config)
            .env("MUSTER_DIE_WITH_PARENT", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting an agent")?;
        let client = self.client(0, PATIENCE)?;
        let begun = Instant::now();
        let mut registered = false;
        while !registered && begun.elapsed() < PATIENCE {
            registered = client
                .list_nodes(v1::ListNodesRequest::default())
                .await
                .is_ok_and(|list| !list.nodes.is_empty());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        agent.kill().context("stopping the agent")?;
        agent.wait().context("waiting for the agent")?;
        ensure!(registered, "the host did not register");
        Ok(())
    }
}

/// Living processes whose command line or environment names a directory.
fn processes_naming(directory: &Path) -> Vec<i32> {
    let mark = directory.as_os_str().as_encoded_bytes();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    let holds = |pid: i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    pids.filter(|pid| holds(*pid, "cmdline") || holds(*pid, "environ")).collect()
}
