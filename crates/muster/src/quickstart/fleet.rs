//! The processes of a quickstart: three replicas and twelve agents, in three regions, on this
//! machine.
//!
//! **Invariant:** every process started here, and every worker below it, names its region's folder
//! in its command line or environment; that is how a whole region is killed at once and how nothing
//! is left behind.

use crate::process::DIE_WITH_PARENT;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The regions; each has one replica and four hosts.
pub const REGIONS: [&str; 3] = ["asia-south", "eu-west", "us-east"];
/// Hosts of a region.
pub const HOSTS_PER_REGION: u8 = 4;
/// Declared accelerators of a host.
pub const DEVICES_PER_HOST: u16 = 8;

struct Replica {
    id: u64,
    region: &'static str,
    client: SocketAddr,
    peer: SocketAddr,
}

/// The processes and where they live.
pub struct Fleet {
    dir: PathBuf,
    program: PathBuf,
    replicas: Vec<Replica>,
    children: BTreeMap<String, Child>,
}

/// Two different ports of a loopback address that nothing else on the machine uses.
fn free_addresses(address: Ipv4Addr) -> Result<(SocketAddr, SocketAddr)> {
    let bind = || TcpListener::bind((address, 0)).with_context(|| format!("no free port on {address}"));
    // Both are held until both are known: a port that was given back may be given again at once.
    let (first, second) = (bind()?, bind()?);
    let port = |listener: TcpListener| listener.local_addr().context("reading a port");
    Ok((port(first)?, port(second)?))
}

impl Fleet {
    /// Lays out the folders and configurations of a run.
    pub fn create(dir: &Path) -> Result<Fleet> {
        let program = std::env::current_exe().context("finding this program")?;
        // An own block of loopback addresses keeps two runs on one machine apart.
        let own = std::process::id();
        let block = [(own >> 8) as u8, own as u8];
        let mut replicas = Vec::new();
        for (place, region) in REGIONS.into_iter().enumerate() {
            let address = Ipv4Addr::new(127, block[0], block[1], 1 + place as u8);
            let (client, peer) = free_addresses(address)?;
            replicas.push(Replica { id: place as u64 + 1, region, client, peer });
        }
        let fleet = Fleet { dir: dir.to_path_buf(), program, replicas, children: BTreeMap::new() };
        std::fs::create_dir_all(fleet.dir.join("bin")).context("creating the run's folder")?;
        let link = fleet.dir.join("bin/muster");
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(&fleet.program, &link).context("linking the program for workers")?;
        }
        for folder in [fleet.intervals(), fleet.checkpoints()] {
            std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        fleet.write_configs(block)?;
        Ok(fleet)
    }

    /// Where workers write when they ran.
    pub fn intervals(&self) -> PathBuf {
        self.dir.join("intervals")
    }

    /// Where jobs keep checkpoints; stands for storage that every region reaches.
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// Where clients connect.
    pub fn endpoints(&self) -> Vec<String> {
        self.replicas.iter().map(|r| format!("http://{}", r.client)).collect()
    }

    /// The replica of a region.
    pub fn replica_in(&self, region: &str) -> Option<u64> {
        self.replicas.iter().find(|r| r.region == region).map(|r| r.id)
    }

    /// The region of a replica.
    pub fn region_of(&self, replica: u64) -> Option<&'static str> {
        self.replicas.iter().find(|r| r.id == replica).map(|r| r.region)
    }

    /// Where one replica's clients connect.
    pub fn endpoint_of(&self, replica: u64) -> Option<String> {
        self.replicas.iter().find(|r| r.id == replica).map(|r| format!("http://{}", r.client))
    }

    fn region_dir(&self, region: &str) -> PathBuf {
        // The slash at the end of the mark keeps `eu-west` and `eu-west-2` apart.
        self.dir.join("regions").join(region)
    }

    fn write_configs(&self, block: [u8; 2]) -> Result<()> {
        let members: String = self.replicas.iter().map(member).collect();
        for replica in &self.replicas {
            let home = self.region_dir(replica.region).join("replica");
            std::fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
            let text = format!(
                "cluster_id = \"{:032x}\"\nreplica_id = {}\ndata_dir = {:?}\nclient_listen = \"{}\"\npeer_listen = \"{}\"\n\n{PARAMETERS}\n{members}",
                std::process::id(),
                replica.id,
                home.join("data"),
                replica.client,
                replica.peer,
            );
            write(&home.join("server.toml"), &text)?;
        }
        for (place, region) in REGIONS.into_iter().enumerate() {
            for host in 0..HOSTS_PER_REGION {
                let name = host_name(region, host);
                let home = self.region_dir(region).join(&name);
                std::fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
                let address = Ipv4Addr::new(127, block[0], block[1], 16 + 16 * place as u8 + host);
                let endpoints: Vec<String> = self.endpoints();
                let text = format!(
                    "state_dir = {:?}\nendpoints = {endpoints:?}\n\n[node]\nname = {name:?}\nregion = {region:?}\ncluster = {:?}\nrack = {:?}\naddress = \"{address}\"\ncpu_milli = 64000\nmemory_bytes = {}\naccelerators = {{ type = \"h100\", count = {DEVICES_PER_HOST} }}\n",
                    home.join("state"),
                    format!("{region}-1"),
                    format!("rack-{}", host / 2),
                    256u64 << 30,
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
        let Some(region) = self.region_of(id) else { bail!("there is no replica {id}") };
        let home = self.region_dir(region).join("replica");
        let config = home.join("server.toml");
        let config = config.to_str().context("the run's folder is not text")?.to_owned();
        let mut args = vec!["server", "--config", &config];
        if bootstrap {
            args.push("--bootstrap");
        }
        self.spawn(format!("replica {id}"), &home, &args)
    }

    /// Starts the agents of a region.
    pub fn start_agents(&mut self, region: &str) -> Result<()> {
        for host in 0..HOSTS_PER_REGION {
            let name = host_name(region, host);
            let home = self.region_dir(region).join(&name);
            let config = home.join("agent.toml");
            let config = config.to_str().context("the run's folder is not text")?.to_owned();
            self.spawn(name, &home, &["agent", "--config", &config])?;
        }
        Ok(())
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

fn host_name(region: &str, host: u8) -> String {
    format!("{region}-h{host}")
}

fn member(replica: &Replica) -> String {
    format!(
        "[[members]]\nid = {}\nregion = {:?}\npeer_endpoint = \"http://{}\"\nclient_endpoint = \"http://{}\"\n\n",
        replica.id, replica.region, replica.peer, replica.client
    )
}

/// Short leases, so that a lost region is noticed while somebody watches.
const PARAMETERS: &str = "[parameters]\nlease_ttl_ms = 2000\nlease_margin_ms = 1000\nheartbeat_interval_ms = 400\ndigest_interval_records = 50\n\n[timing]\nheartbeat_interval_ms = 100\nelection_timeout_min_ms = 200\nelection_timeout_max_ms = 400\n";

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
