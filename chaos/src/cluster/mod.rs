//! A cluster of real replicas and agents, each on a separate host.
//!
//! **Invariant:** everything that is started here runs inside the namespace of its host and ends with it; a process that ends without having been told to is remembered and is a finding.

pub mod certificates;
pub mod config;
pub mod observe;
pub mod plan;
pub mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use muster_transport::Security;
use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::faults::{Clock, ClockScope, Disk};
use crate::net::{Host, HostSet, HostSpec, LinkChange, Network, Process, Rule};
use certificates::Certificates;
use config::ReplicaConfig;
use observe::Observer;
use plan::{HostPlan, OPERATOR, Plan, Purpose, Replicas};
use process::LogMark;

/// Time for a process to end on SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time for a new cluster to be well.
const FIRST_LIMIT: Duration = Duration::from_secs(60);
/// A command of an operator.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Size of a separate data disk: more than the free space below which a leader takes no new work. What is not used
/// takes no memory.
const DISK_BYTES: u64 = 4 << 30;

/// What the data of replicas lies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Disks {
    /// One in memory for each, which can be filled
    #[default]
    Memory,
    /// The machine's own disk for all of them, with all that others do to it
    Shared,
    /// One for each that loses what was not flushed when its power fails
    Losing,
}

/// What a cluster is made for in addition to the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// Its replicas begin with an older release, or with an older format.
    pub upgrade: bool,
    /// Data disks.
    pub disks: Disks,
    /// Clocks that can be set wrong: which.
    pub clocks: Option<ClockScope>,
}

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it is made for.
    pub fitness: Fitness,
    /// Its size.
    pub replicas: Replicas,
    /// The program.
    pub program: PathBuf,
    /// The program that the replicas begin with, where they are to be upgraded.
    pub program_before: Option<PathBuf>,
    /// The format that they begin with, where they are to be upgraded.
    pub format_before: Option<u16>,
    /// Where everything is put.
    pub dir: PathBuf,
    /// Of the network's generator.
    pub seed: u64,
}

/// Where one replica or agent runs, and its process.
#[derive(Debug)]
struct Server {
    host: String,
    home: PathBuf,
    process: Option<Process>,
    /// Its data disk, where it has a separate one.
    disk: Option<Disk>,
    /// Its clock, where that can be set wrong.
    clock: Option<Clock>,
}

/// A process that ended.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ending {
    /// Which host it was on.
    pub host: String,
    /// How it ended, for people.
    pub status: String,
    /// Whether the drill had made it end.
    pub wanted: bool,
}

/// A running cluster. Dropping it ends everything in it.
pub struct Cluster {
    options: Options,
    plan: Plan,
    network: Network,
    id: String,
    certificates: Certificates,
    replicas: BTreeMap<u64, Server>,
    agents: BTreeMap<String, Server>,
    /// Replicas that belong to the cluster; others stand by.
    members: BTreeSet<u64>,
    observer: Observer,
    endings: Vec<Ending>,
    boots: u64,
}

impl Cluster {
    /// Makes hosts and network, issues certificates, starts everything for the first time, and waits until all is well.
    ///
    /// # Errors
    /// [`Unsupported`](crate::unsupported::Unsupported) where the machine lacks what is needed; others when something
    /// does not start.
    pub fn start(options: Options) -> Result<Cluster> {
        let plan = Plan::new(options.replicas);
        let specs: Vec<HostSpec> =
            plan.hosts.iter().map(|host| HostSpec::new(host.name.as_str(), host.region)).collect();
        let network = Network::build(&specs, &distances(&plan), options.seed)?;
        for (host, planned) in network.hosts().iter().zip(&plan.hosts) {
            ensure!(host.address() == planned.address, "{} is at {}", host.name(), host.address());
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let directory = |name: &str| options.dir.join(name);
        for name in ["intervals", "checkpoints"] {
            std::fs::create_dir_all(directory(name)).with_context(|| format!("creating {name}"))?;
        }
        let certificates = Certificates::issue(&options.program, &directory("tls"), &id, &plan)?;
        let observer = observer(&plan, &plan.founders(), &certificates)?;
        let members = plan.founders().into_iter().collect();
        let mut cluster = Cluster {
            plan,
            network,
            id,
            certificates,
            replicas: BTreeMap::new(),
            agents: BTreeMap::new(),
            members,
            observer,
            endings: Vec::new(),
            boots: 0,
            options,
        };
        cluster.lay_out()?;
        for replica in cluster.plan.founders() {
            cluster.start_replica(replica, &["--bootstrap"])?;
        }
        for agent in cluster.plan.agents() {
            cluster.start_agent(&agent)?;
        }
        cluster.well(0, FIRST_LIMIT)?;
        Ok(cluster)
    }

    fn lay_out(&mut self) -> Result<()> {
        for host in self.plan.hosts.clone() {
            let home = self.options.dir.join("hosts").join(&host.name);
            std::fs::create_dir_all(&home).with_context(|| format!("creating {}", home.display()))?;
            let fitness = self.options.fitness;
            // An agent's leases count on a clock that libfaketime cannot change alone.
            let has_clock = match host.purpose {
                Purpose::Replica { .. } => fitness.clocks.is_some(),
                _ => fitness.clocks == Some(ClockScope::Wall),
            };
            let reach = fitness.clocks.filter(|_| has_clock);
            let clock = reach.map(|reach| Clock::new(&home.join("clock"), reach)).transpose()?;
            let mut server =
                Server { host: host.name.clone(), home: home.clone(), process: None, disk: None, clock };
            match &host.purpose {
                Purpose::Replica { id, .. } => {
                    server.disk = disk(&home, fitness.disks)?;
                    self.replicas.insert(*id, server);
                    self.write_replica_config(*id, self.options.format_before)?;
                }
                Purpose::Agent(name) => {
                    let endpoints = self.endpoints_from(host.region);
                    let text = config::agent(&host, &home, &endpoints, &self.certificates.of(&host.name));
                    write(&home.join("agent.toml"), &text)?;
                    write(&home.join("boot_id"), "boot-0")?;
                    self.agents.insert(name.clone(), server);
                }
                Purpose::Clients | Purpose::Operator => {}
            }
        }
        Ok(())
    }

    /// Writes `server.toml` of a replica, held back to a format or not.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_replica_config(&self, id: u64, format_max: Option<u16>) -> Result<()> {
        let host = self.plan.replica(id).context("a replica that is planned")?;
        let mut members: BTreeSet<u64> = self.plan.founders().into_iter().collect();
        members.insert(id);
        let members: Vec<(u64, &HostPlan)> =
            members.into_iter().filter_map(|member| Some((member, self.plan.replica(member)?))).collect();
        let text = config::replica(&ReplicaConfig {
            cluster_id: &self.id,
            id,
            host,
            members: &members,
            data: &self.data_of(id)?,
            tls: &self.certificates.of(&host.name),
            format_max,
        });
        write(&self.replica(id)?.home.join("server.toml"), &text)
    }

    /// Where everybody is.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The network between the hosts.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// How it was started.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where workers write when they ran.
    #[must_use]
    pub fn intervals(&self) -> PathBuf {
        self.options.dir.join("intervals")
    }

    /// Where jobs keep checkpoints; stands for storage that every region reaches.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.options.dir.join("checkpoints")
    }

    /// What the operator sees.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Replicas that belong to the cluster.
    #[must_use]
    pub fn members(&self) -> &BTreeSet<u64> {
        &self.members
    }

    /// Endpoints of the members, those of a region first, as somebody there would list them.
    #[must_use]
    pub fn endpoints_from(&self, region: &str) -> Vec<String> {
        let hosts = self.members.iter().filter_map(|id| self.plan.replica(*id));
        let (near, far): (Vec<&HostPlan>, Vec<&HostPlan>) = hosts.partition(|host| host.region == region);
        near.into_iter().chain(far).map(config::client_endpoint).collect()
    }

    /// Where the clients of one replica connect.
    ///
    /// # Errors
    /// When there is no such replica.
    pub fn endpoint_of(&self, id: u64) -> Result<String> {
        Ok(config::client_endpoint(self.plan.replica(id).context("a replica that is planned")?))
    }

    /// What the processes of a host show to others.
    ///
    /// # Errors
    /// When its certificate cannot be read.
    pub fn security(&self, host: &str) -> Result<Security> {
        self.certificates.security(host)
    }

    /// A host.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.network.host(name).with_context(|| format!("there is no host {name}"))
    }

    /// Runs something at the operator's.
    pub fn operating<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        Ok(self.host(OPERATOR)?.block_on(work))
    }

    fn replica(&self, id: u64) -> Result<&Server> {
        self.replicas.get(&id).with_context(|| format!("there is no replica {id}"))
    }

    fn server_mut(&mut self, host: &str) -> Result<&mut Server> {
        let replicas = self.replicas.values_mut().chain(self.agents.values_mut());
        replicas
            .into_iter()
            .find(|server| server.host == host)
            .with_context(|| format!("nothing runs on {host}"))
    }

    fn server(&self, host: &str) -> Result<&Server> {
        let servers = self.replicas.values().chain(self.agents.values());
        servers
            .into_iter()
            .find(|server| server.host == host)
            .with_context(|| format!("nothing runs on {host}"))
    }

    /// The data directory of a replica.
    ///
    /// # Errors
    /// When there is no such replica.
    pub fn data_of(&self, id: u64) -> Result<PathBuf> {
        let replica = self.replica(id)?;
        // On a separate disk it is one below the root, where the ballast is.
        Ok(replica.disk.as_ref().map_or(replica.home.as_path(), Disk::directory).join("data"))
    }

    /// The directory of a host.
    ///
    /// # Errors
    /// When nothing runs there.
    pub fn home_of(&self, host: &str) -> Result<&Path> {
        Ok(&self.server(host)?.home)
    }

    /// The process of a replica or an agent, if one runs.
    #[must_use]
    pub fn pid_on(&self, host: &str) -> Option<i32> {
        self.server(host).ok()?.process.as_ref().map(|process| process.pid().as_raw())
    }

    /// The data disk of a host.
    ///
    /// # Errors
    /// When it has no separate one.
    pub fn disk_of(&mut self, host: &str) -> Result<&mut Disk> {
        self.server_mut(host)?.disk.as_mut().with_context(|| format!("{host} has no separate data disk"))
    }

    /// The clock of a host's process; none where it has only the machine's.
    #[must_use]
    pub fn clock_of(&self, host: &str) -> Option<&Clock> {
        self.server(host).ok()?.clock.as_ref()
    }

    /// The program that a replica is started from.
    fn program_of(&self, id: u64) -> &Path {
        let upgraded = self.replica(id).is_ok_and(|server| server.home.join("upgraded").exists());
        match &self.options.program_before {
            Some(before) if !upgraded => before,
            _ => &self.options.program,
        }
    }

    /// From its next start on, a replica runs the newer program and reads its formats.
    ///
    /// # Errors
    /// When its configuration cannot be written.
    pub fn upgrade(&mut self, id: u64) -> Result<()> {
        self.write_replica_config(id, None)?;
        write(&self.replica(id)?.home.join("upgraded"), "")
    }

    /// Starts a replica with more arguments.
    ///
    /// # Errors
    /// When it cannot be started, or runs already.
    pub fn start_replica(&mut self, id: u64, more: &[&str]) -> Result<()> {
        let host = self.replica(id)?.host.clone();
        let config = self.replica(id)?.home.join("server.toml");
        let program = self.program_of(id).to_path_buf();
        self.start_on(&host, &program, "server", &config, more)
    }

    fn start_agent(&mut self, name: &str) -> Result<()> {
        let config = self
            .agents
            .get(name)
            .with_context(|| format!("there is no agent {name}"))?
            .home
            .join("agent.toml");
        let program = self.options.program.clone();
        self.start_on(name, &program, "agent", &config, &[])
    }

    fn start_on(
        &mut self,
        host: &str,
        program: &Path,
        what: &str,
        config: &Path,
        more: &[&str],
    ) -> Result<()> {
        let server = self.server(host)?;
        ensure!(server.process.is_none(), "{host} runs already");
        let config = config.to_str().context("the directory of a drill is text")?;
        let arguments = [&[what, "--config", config], more].concat();
        let mut command = process::command(program, &server.home.join("log"), &arguments)?;
        if let Some(clock) = &server.clock {
            clock.give(&mut command);
        }
        let launch = self.host(host)?.launch(command);
        let process = futures::executor::block_on(launch).with_context(|| format!("{what} on {host}"))?;
        self.server_mut(host)?.process = Some(process);
        Ok(())
    }

    /// Starts what does not run on a host, on what it has on disk.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_host(&mut self, host: &str) -> Result<()> {
        let Ok(server) = self.server(host) else { return Ok(()) };
        if server.process.is_some() {
            return Ok(());
        }
        let replica = self.replicas.iter().find(|(_, server)| server.host == host).map(|(id, _)| *id);
        match replica {
            // As its runbook says where the disk is gone.
            Some(id) if !self.data_of(id)?.exists() => self.start_replica(id, &["--rebuild"]),
            Some(id) => self.start_replica(id, &[]),
            None => self.start_agent(host),
        }
    }

    /// SIGKILL for every process on a host: power is gone. Whether there was any.
    ///
    /// # Errors
    /// When one of them does not end.
    pub fn kill_host(&mut self, host: &str) -> Result<bool> {
        let there = self.host(host)?.processes().len();
        self.host(host)?.kill_all();
        self.boots += 1;
        let boot = format!("boot-{}", self.boots);
        let Ok(server) = self.server_mut(host) else { return Ok(there > 0) };
        let process = server.process.take();
        if server.home.join("boot_id").exists() {
            write(&server.home.join("boot_id"), &boot)?;
        }
        if let Some(process) = process {
            let status = self.end_of(&process, STOP_LIMIT)?.to_string();
            self.endings.push(Ending { host: host.to_owned(), status, wanted: true });
        }
        Ok(there > 0)
    }

    /// A signal for the replica or agent of a host. Whether there is one that runs.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn signal_host(&mut self, host: &str, signal: Signal) -> Result<bool> {
        let Ok(server) = self.server(host) else { return Ok(false) };
        match &server.process {
            Some(process) => Ok(process.signal(signal).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// SIGTERM for the replica of a host, and its end, which has to be a good one.
    ///
    /// # Errors
    /// When it ends otherwise or not at all.
    pub fn stop_host(&mut self, host: &str) -> Result<ExitStatus> {
        let server = self.server_mut(host)?;
        let process = server.process.take().with_context(|| format!("nothing runs on {host}"))?;
        process.signal(Signal::SIGTERM)?;
        let status = self.end_of(&process, STOP_LIMIT)?;
        self.endings.push(Ending { host: host.to_owned(), status: status.to_string(), wanted: true });
        ensure!(status.success(), "{host} ended with {status} on SIGTERM");
        Ok(status)
    }

    fn end_of(&self, process: &Process, limit: Duration) -> Result<ExitStatus> {
        let (pid, process) = (process.pid(), process.clone());
        let ended = self.operating(async move { tokio::time::timeout(limit, process.ended()).await })?;
        Ok(ended.with_context(|| format!("process {pid} still runs after {} s", limit.as_secs()))??)
    }

    /// Remembers processes that ended by themselves since the last look.
    pub fn reap(&mut self) {
        for server in self.replicas.values_mut().chain(self.agents.values_mut()) {
            let Some(process) = &server.process else { continue };
            if let Some(status) = process.exit_status() {
                server.process = None;
                let status = status.to_string();
                self.endings.push(Ending { host: server.host.clone(), status, wanted: false });
            }
        }
    }

    /// What ended since it was last asked.
    pub fn take_endings(&mut self) -> Vec<Ending> {
        self.reap();
        std::mem::take(&mut self.endings)
    }

    /// Where the logs of all processes end now, by host.
    #[must_use]
    pub fn log_marks(&self) -> BTreeMap<String, LogMark> {
        let servers = self.replicas.values().chain(self.agents.values());
        servers.map(|server| (server.host.clone(), LogMark::at_end(&server.home.join("log")))).collect()
    }

    /// Runs a command of an operator against the whole cluster; what it printed.
    ///
    /// # Errors
    /// When it does not succeed.
    pub fn operate(&self, words: &[&str]) -> Result<String> {
        let endpoints = self.endpoints_from(OPERATOR).join(",");
        self.run_on(OPERATOR, &[&["--endpoint", endpoints.as_str()], words].concat())
    }

    /// Runs a command on a host, with the identity of that host; what it printed.
    ///
    /// # Errors
    /// When it does not succeed.
    pub fn run_on(&self, host: &str, words: &[&str]) -> Result<String> {
        let home = self.options.dir.join("hosts").join(host);
        let out_path = home.join("command.out");
        let out = std::fs::File::create(&out_path).context("a file for the output of a command")?;
        let both = out.try_clone().context("a file for the output of a command")?;
        let mut command = Command::new(&self.options.program);
        command
            .args(words)
            .envs(self.certificates.environment(host))
            .env("MUSTER_DIE_WITH_PARENT", "1")
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(both);
        let launch = self.host(host)?.launch(command);
        let process = futures::executor::block_on(launch).with_context(|| format!("running {words:?}"))?;
        let status = self.end_of(&process, COMMAND_LIMIT);
        let said = std::fs::read_to_string(&out_path).context("the output of a command")?;
        let status = status.with_context(|| format!("muster {words:?}: {said}"))?;
        if !status.success() {
            bail!("muster {words:?} ended with {status}: {}", said.trim());
        }
        Ok(said)
    }

    /// The cluster goes on with another set of replicas; the operator asks them from now on.
    ///
    /// # Errors
    /// When one of them is not planned.
    pub fn set_members(&mut self, members: BTreeSet<u64>) -> Result<()> {
        let list: Vec<u64> = members.iter().copied().collect();
        self.observer = observer(&self.plan, &list, &self.certificates)?;
        self.members = members;
        // As its runbook says: agents learn where the replicas are from their configurations.
        for (name, server) in &self.agents {
            let host =
                self.plan.hosts.iter().find(|host| host.name == *name).context("an agent that is planned")?;
            let endpoints = self.endpoints_from(host.region);
            let text = config::agent(host, &server.home, &endpoints, &self.certificates.of(name));
            write(&server.home.join("agent.toml"), &text)?;
        }
        Ok(())
    }

    /// Waits until all is well, with no replica lacking more than `lag_max` entries.
    ///
    /// # Errors
    /// When it does not become so, or a process ends meanwhile.
    pub fn well(&mut self, lag_max: u64, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        let nodes = self.agents.len();
        loop {
            self.reap();
            let missing = self.endings.iter().find(|ending| !ending.wanted);
            if let Some(ending) = missing {
                bail!("the process on {} ended by itself: {}", ending.host, ending.status);
            }
            let observer = self.observer.clone();
            let step = Duration::from_secs(2).min(limit);
            match self.operating(async move { observer.well(nodes, lag_max, step).await })? {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => {}
            }
        }
    }
}

fn disk(home: &Path, disks: Disks) -> Result<Option<Disk>> {
    let directory = home.join("disk");
    Ok(match disks {
        Disks::Shared => None,
        Disks::Memory => Some(Disk::memory(&directory, DISK_BYTES)?),
        Disks::Losing => Some(Disk::image(&directory, &home.join("disk.image"), DISK_BYTES)?),
    })
}

fn observer(plan: &Plan, members: &[u64], certificates: &Certificates) -> Result<Observer> {
    let endpoint = |id: &u64| Some((*id, config::client_endpoint(plan.replica(*id)?)));
    let endpoints: BTreeMap<u64, String> = members.iter().filter_map(endpoint).collect();
    Observer::new(&endpoints, &certificates.security(OPERATOR)?)
}

fn distances(plan: &Plan) -> Vec<Rule> {
    let mut rules = Vec::new();
    for from in &plan.hosts {
        for to in plan.hosts.iter().filter(|to| to.name != from.name) {
            let place = |host: &HostPlan| HostSet::Host(host.name.clone());
            let change = LinkChange::delay(Plan::delay(from, to));
            rules.push(Rule::Link { from: place(from), to: place(to), change });
        }
    }
    rules
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
