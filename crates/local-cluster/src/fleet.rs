//! A whole cluster as processes on this machine, for `muster quickstart` and `muster dev`: one replica per region, and
//! hosts with declared accelerators.
//!
//! **Invariant:** every process started here, and every worker below it, names its region's directory
//! in its command line or environment; that is how a whole region is killed at once and how nothing
//! is left behind.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use muster_client::Client;
use muster_wire::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// In the environment of a process that is to end when the one that started it does.
pub const DIE_WITH_PARENT: &str = "MUSTER_DIE_WITH_PARENT";
/// The regions of a cluster with three replicas.
pub const REGIONS: [&str; 3] = ["asia-south", "eu-west", "us-east"];
/// Addresses of a region for its hosts: 16 of the last byte, after those of the replicas.
pub const REGION_HOSTS_MAX: u8 = 16;

/// What a fleet consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The regions, with one replica each.
    pub regions: Vec<Region>,
    /// Type of the accelerators that every host declares.
    pub accelerator: String,
    /// How many of them each host has.
    pub devices_per_host: u16,
}

/// One region of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// How many hosts it has; at most [`REGION_HOSTS_MAX`].
    pub hosts: u8,
}

impl Shape {
    /// The number of hosts of all regions.
    pub fn hosts(&self) -> usize {
        self.regions.iter().map(|region| usize::from(region.hosts)).sum()
    }
}

/// A shape, and where its replicas listen.
#[derive(Clone, Serialize, Deserialize)]
struct Layout {
    cluster_id: String,
    /// The second and third byte of this fleet's loopback addresses; they keep two fleets on one machine apart.
    block: [u8; 2],
    shape: Shape,
    replicas: Vec<Replica>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Replica {
    id: u64,
    region: String,
    client: SocketAddr,
    peer: SocketAddr,
    /// Of its web pages; a fleet of an earlier release has none.
    #[serde(default)]
    http: Option<SocketAddr>,
}

/// The processes and where they live.
pub struct Fleet {
    dir: PathBuf,
    program: PathBuf,
    layout: Layout,
    children: BTreeMap<String, Child>,
}

/// A process of a fleet that has ended without being told to.
pub struct Ended {
    /// `replica 1`, or the name of a host.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its log.
    pub log: PathBuf,
}

/// Three different ports of a loopback address that nothing else on the machine uses.
fn free_addresses(address: Ipv4Addr) -> Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind((address, 0)).with_context(|| format!("no free port on {address}"));
    // All are held until all are known: a port that was given back may be given again at once.
    let (first, second, third) = (bind()?, bind()?, bind()?);
    let port = |listener: TcpListener| listener.local_addr().context("reading a port");
    Ok([port(first)?, port(second)?, port(third)?])
}

/// Its name in a fleet's directory.
const LAYOUT: &str = "layout.json";

impl Layout {
    fn draw(shape: Shape) -> Result<Layout> {
        let own = std::process::id();
        let block = [(own >> 8) as u8, own as u8];
        let mut replicas = Vec::new();
        for (place, region) in shape.regions.iter().enumerate() {
            anyhow::ensure!(
                region.hosts <= REGION_HOSTS_MAX,
                "a region has at most {REGION_HOSTS_MAX} hosts"
            );
            let address = Ipv4Addr::new(127, block[0], block[1], 1 + place as u8);
            let [client, peer, http] = free_addresses(address)?;
            replicas.push(Replica {
                id: place as u64 + 1,
                region: region.name.clone(),
                client,
                peer,
                http: Some(http),
            });
        }
        Ok(Layout { cluster_id: format!("{own:032x}"), block, shape, replicas })
    }
}

impl Fleet {
    /// Lays out the directories and configurations of a new fleet. `parameters` go into each server's configuration.
    pub fn create(dir: &Path, shape: Shape, parameters: &str) -> Result<Fleet> {
        let fleet = Fleet::at(dir, Layout::draw(shape)?)?;
        for directory in [fleet.intervals(), fleet.checkpoints()] {
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("creating {}", directory.display()))?;
        }
        fleet.write_configs(parameters)?;
        // Last: a directory that has it has everything else.
        let layout = serde_json::to_vec_pretty(&fleet.layout).context("describing the fleet")?;
        std::fs::write(dir.join(LAYOUT), layout).context("writing the layout of the fleet")?;
        Ok(fleet)
    }

    /// The fleet that an earlier process left in this directory; none where there is none.
    pub fn open(dir: &Path) -> Result<Option<Fleet>> {
        let path = dir.join(LAYOUT);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let layout =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))?;
        Fleet::at(dir, layout).map(Some)
    }

    fn at(dir: &Path, layout: Layout) -> Result<Fleet> {
        let program = std::env::current_exe().context("finding this program")?;
        let fleet = Fleet { dir: dir.to_path_buf(), program, layout, children: BTreeMap::new() };
        std::fs::create_dir_all(fleet.dir.join("bin")).context("creating the run's directory")?;
        // Of an earlier process it may lead to a program that is gone.
        let link = fleet.dir.join("bin/muster");
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).with_context(|| format!("removing {}", link.display()))?;
        }
        std::os::unix::fs::symlink(&fleet.program, &link).context("linking the program for workers")?;
        Ok(fleet)
    }

    /// What the fleet consists of.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// Where workers write when they ran.
    pub fn intervals(&self) -> PathBuf {
        self.dir.join("intervals")
    }

    /// Where jobs keep checkpoints; stands for storage that every region reaches.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// The store of files of jobs, which every host has.
    pub fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// Where clients connect.
    pub fn endpoints(&self) -> Vec<String> {
        self.layout.replicas.iter().map(|r| format!("http://{}", r.client)).collect()
    }

    /// Where the web pages of the replicas are.
    pub fn web(&self) -> Vec<String> {
        self.layout.replicas.iter().filter_map(|r| Some(format!("http://{}", r.http?))).collect()
    }

    /// The ids of all replicas.
    pub fn replica_ids(&self) -> Vec<u64> {
        self.layout.replicas.iter().map(|r| r.id).collect()
    }

    /// The replica of a region.
    pub fn replica_in(&self, region: &str) -> Option<u64> {
        self.layout.replicas.iter().find(|r| r.region == region).map(|r| r.id)
    }

    /// The region of a replica.
    pub fn region_of(&self, replica: u64) -> Option<&str> {
        self.layout.replicas.iter().find(|r| r.id == replica).map(|r| r.region.as_str())
    }

    /// Where one replica's clients connect.
    pub fn endpoint_of(&self, replica: u64) -> Option<String> {
        self.layout.replicas.iter().find(|r| r.id == replica).map(|r| format!("http://{}", r.client))
    }

    fn region_dir(&self, region: &str) -> PathBuf {
        // The slash at the end of the mark keeps `eu-west` and `eu-west-2` apart.
        self.dir.join("regions").join(region)
    }

    fn replica_home(&self, id: u64) -> Result<PathBuf> {
        let region = self.region_of(id).with_context(|| format!("there is no replica {id}"))?;
        Ok(self.region_dir(region).join("replica"))
    }

    /// Whether a replica was started before: then its data is there, and it belongs to a cluster.
    pub fn has_data(&self, id: u64) -> bool {
        self.replica_home(id).is_ok_and(|home| home.join("data").exists())
    }

    fn write_configs(&self, parameters: &str) -> Result<()> {
        let members: String = self.layout.replicas.iter().map(member).collect();
        for replica in &self.layout.replicas {
            let home = self.replica_home(replica.id)?;
            std::fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
            let http = replica.http.map(|http| format!("http_listen = \"{http}\"\n")).unwrap_or_default();
            let text = format!(
                "cluster_id = \"{}\"\nreplica_id = {}\ndata_dir = {:?}\nclient_listen = \"{}\"\npeer_listen = \"{}\"\n{http}\n{parameters}\n{members}",
                self.layout.cluster_id,
                replica.id,
                home.join("data"),
                replica.client,
                replica.peer,
            );
            write(&home.join("server.toml"), &text)?;
        }
        let files = self.files();
        std::fs::create_dir_all(&files).with_context(|| format!("creating {}", files.display()))?;
        let [second, third] = self.layout.block;
        let shape = &self.layout.shape;
        for (place, region) in shape.regions.iter().enumerate() {
            for host in 0..region.hosts {
                let name = host_name(&region.name, host);
                let home = self.region_dir(&region.name).join(&name);
                std::fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
                let address = Ipv4Addr::new(127, second, third, 16 + 16 * place as u8 + host);
                let endpoints: Vec<String> = self.endpoints();
                let text = format!(
                    "state_dir = {:?}\nendpoints = {endpoints:?}\nfiles = {{ store = {files:?} }}\n\n[node]\nname = {name:?}\nregion = {:?}\ncluster = {:?}\nrack = {:?}\naddress = \"{address}\"\ncpu = 64\nmemory = \"256Gi\"\naccelerators = {{ type = {:?}, count = {} }}\n",
                    home.join("state"),
                    region.name,
                    format!("{}-1", region.name),
                    format!("rack-{}", host / 2),
                    shape.accelerator,
                    shape.devices_per_host,
                );
                write(&home.join("agent.toml"), &text)?;
            }
        }
        Ok(())
    }

    fn spawn(&mut self, key: String, home: &Path, args: &[&str]) -> Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(home.join("log"));
        let log = log.with_context(|| format!("opening the log in {}", home.display()))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths(std::iter::once(self.dir.join("bin")).chain(std::env::split_paths(&path)))
                .context("building PATH")?;
        let child = Command::new(&self.program)
            .args(args)
            .env("PATH", path)
            .env(DIE_WITH_PARENT, "1")
            .env_remove("MUSTER_ENDPOINTS")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {key}"))?;
        if let Some(mut old) = self.children.insert(key, child) {
            // Killed before; this only collects it.
            let _ = old.wait();
        }
        Ok(())
    }

    /// Starts a replica.
    pub fn start_replica(&mut self, id: u64, bootstrap: bool) -> Result<()> {
        let home = self.replica_home(id)?;
        let config = home.join("server.toml");
        let config = config.to_str().context("the run's directory is not text")?.to_owned();
        let mut args = vec!["server", "--config", &config];
        if bootstrap {
            args.push("--bootstrap");
        }
        self.spawn(format!("replica {id}"), &home, &args)
    }

    /// Starts the agents of a region.
    pub fn start_agents(&mut self, region: &str) -> Result<()> {
        let found = self.layout.shape.regions.iter().find(|found| found.name == region);
        let hosts = found.with_context(|| format!("there is no region {region}"))?.hosts;
        for host in 0..hosts {
            let name = host_name(region, host);
            let home = self.region_dir(region).join(&name);
            let config = home.join("agent.toml");
            let config = config.to_str().context("the run's directory is not text")?.to_owned();
            self.spawn(name, &home, &["agent", "--config", &config])?;
        }
        Ok(())
    }

    /// The processes that have ended without being told to; each is returned once.
    pub fn ended(&mut self) -> Vec<Ended> {
        let mut found = Vec::new();
        for (name, child) in &mut self.children {
            if let Ok(Some(status)) = child.try_wait() {
                found.push((name.clone(), status));
            }
        }
        let ended = found.into_iter().map(|(name, status)| {
            self.children.remove(&name);
            let log = self.home_of(&name).join("log");
            Ended { name, status, log }
        });
        ended.collect()
    }

    /// Whether a replica runs that was not seen to end.
    pub fn has_replica(&self) -> bool {
        self.children.keys().any(|name| name.starts_with("replica "))
    }

    /// The directory of a replica (`replica 1`) or host.
    fn home_of(&self, name: &str) -> PathBuf {
        let replica = name.strip_prefix("replica ").and_then(|id| id.parse().ok());
        if let Some(home) = replica.and_then(|id| self.replica_home(id).ok()) {
            return home;
        }
        let region = name.rsplit_once("-h").map_or(name, |(region, _)| region);
        self.region_dir(region).join(name)
    }

    /// SIGKILL for one replica.
    pub fn kill_replica(&mut self, id: u64) -> Result<()> {
        let child =
            self.children.get_mut(&format!("replica {id}")).context("the replica was never started")?;
        child.kill().context("killing a replica")?;
        child.wait().context("waiting for a killed replica")?;
        Ok(())
    }

    /// SIGKILL for everything in a region: replica, agents, and whatever runs below them.
    pub fn kill_region(&mut self, region: &str) -> usize {
        let mut mark = self.region_dir(region).into_os_string().into_encoded_bytes();
        mark.push(b'/');
        let killed = kill_marked(&mark);
        let prefix = self.replica_in(region).map(|id| format!("replica {id}"));
        for (key, child) in &mut self.children {
            if key.starts_with(region) || Some(key) == prefix.as_ref() {
                // It is dead by now, and this only collects it; where it is not, waiting would hang.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        killed
    }

    /// Ends everything of this run.
    pub fn stop(&mut self) {
        for child in self.children.values_mut() {
            // Servers and agents first, so that nothing is started any more.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
        let mut mark = self.dir.join("regions").into_os_string().into_encoded_bytes();
        mark.push(b'/');
        kill_marked(&mark);
        while let Ok(status) = nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
            if status == nix::sys::wait::WaitStatus::StillAlive {
                break;
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Between two looks at something that no watch covers.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks until there is something, for at most `limit`.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    mut look: impl FnMut() -> F,
) -> Option<T> {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(limit, looking).await.ok()
}

/// Waits until a replica leads a cluster that exists, and returns its id.
pub async fn wait_for_leader(client: &Client, limit: Duration) -> Result<u64> {
    let leader = wait_for(limit, || async {
        let status = client.get_status(v1::GetStatusRequest::default()).await.ok()?;
        let leader = status.freshness?.leader_id;
        (leader > 0 && !status.cluster_id.is_empty()).then_some(leader)
    });
    leader.await.context("no leader was elected")
}

/// Waits until this number of hosts have opened a session.
pub async fn wait_for_hosts(client: &Client, hosts: usize, limit: Duration) -> Result<()> {
    let all = wait_for(limit, || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        (nodes.iter().filter(|n| n.status() == v1::NodeStatus::Up).count() == hosts).then_some(())
    });
    all.await.context("not every agent opened its session")
}

fn host_name(region: &str, host: u8) -> String {
    format!("{region}-h{host}")
}

fn member(replica: &Replica) -> String {
    format!(
        "[[members]]\nid = {}\nregion = {:?}\npeer_endpoint = \"http://{}\"\nclient_endpoint = \"http://{}\"\n\n",
        replica.id, replica.region, replica.peer, replica.client
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// SIGKILL for every process that bears the mark, again until there is none: one of them may have
/// started another meanwhile.
fn kill_marked(mark: &[u8]) -> usize {
    let mut killed = std::collections::BTreeSet::new();
    // Each pass kills all it sees, so what is left can only have been started during the pass.
    for _ in 0..100 {
        let found = marked(mark);
        if found.is_empty() {
            break;
        }
        for pid in found {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            killed.insert(pid);
        }
    }
    killed.len()
}

/// The parents of all processes.
fn parents() -> BTreeMap<i32, i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    let parent = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // `pid (name) state parent …`, and a name can hold anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Whether a process descends from another.
fn descends(pid: i32, from: i32, parents: &BTreeMap<i32, i32>) -> bool {
    let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
    // Read one by one, the table may hold a circle of reused numbers.
    line.take(parents.len() + 1).skip(1).any(|ancestor| ancestor == from)
}

/// Living processes below this one whose command line or environment holds the mark. Orphans are
/// below this one too; somebody who only looks at a log of the run is not.
fn marked(mark: &[u8]) -> Vec<i32> {
    let own = std::process::id() as i32;
    let parents = parents();
    let holds = |pid: i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    let ours = parents.keys().copied().filter(|pid| descends(*pid, own, &parents));
    ours.filter(|pid| holds(*pid, "cmdline") || holds(*pid, "environ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_this_run_are_killed() {
        let mark = format!("/marked-{}/regions/", std::process::id());
        let mut ours = Command::new("sleep").arg("60").env("MARK", &mark).spawn().expect("sleep starts");
        let pid = ours.id() as i32;
        while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.starts_with(b"sleep")) {
            std::thread::yield_now();
        }
        assert_eq!(marked(mark.as_bytes()), [pid]);
        assert!(marked(b"/another-run/regions/").is_empty());
        ours.kill().expect("it runs");
        ours.wait().expect("it ends");
        assert!(marked(mark.as_bytes()).is_empty());
    }

    #[test]
    fn a_descendant_is_told_from_a_neighbour() {
        let parents = BTreeMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        assert!(descends(11, 10, &parents) && descends(12, 10, &parents));
        assert!(!descends(20, 10, &parents) && !descends(10, 10, &parents) && !descends(1, 10, &parents));
        assert!(!descends(30, 10, &parents), "a circle ends");
    }
}
