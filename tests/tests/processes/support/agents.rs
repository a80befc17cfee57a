//! Real agents, each on a separate host as far as the cluster knows.

use muster_client::Client;
use muster_wire::v1;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tokio::process::Child;

use super::{Cluster, eventually, marked, muster, signal, spawn_program};

/// Accelerators of a host, and as many CPUs twice over.
const DEVICES: u32 = 4;

struct Agent {
    home: PathBuf,
    region: String,
    child: Option<Child>,
}

/// Agents by the names of their nodes. Their workers end with the cluster's directory at the latest.
pub struct Agents {
    client: Client,
    agents: BTreeMap<String, Agent>,
    /// Started from now on from this build of the program, and not from that of the test.
    program: Option<PathBuf>,
}

impl Agents {
    /// Starts agents with these names, four `h100` each, and waits until their nodes are up.
    pub async fn start(cluster: &Cluster, names: &[&str]) -> Agents {
        let endpoints = cluster.shown_endpoints();
        Agents::start_with(cluster, names, |_| endpoints.clone(), |_, _| String::new()).await
    }

    /// The same, each with its own endpoints and more lines at the head of its configuration, which may
    /// depend on its address. Jobs find it by its label `host`. Its boot id is in the file `boot_id`
    /// of its directory.
    pub async fn start_with(
        cluster: &Cluster,
        names: &[&str],
        endpoints: impl Fn(&str) -> Vec<String>,
        settings: impl Fn(&str, Ipv4Addr) -> String,
    ) -> Agents {
        let hosts: Vec<(&str, &str)> = names.iter().map(|name| (*name, "region-1")).collect();
        Agents::start_hosts(cluster, &hosts, None, endpoints, settings).await
    }

    /// The same from another build of the program.
    pub async fn start_of(program: &Path, cluster: &Cluster, names: &[&str]) -> Agents {
        let (endpoints, program) = (cluster.shown_endpoints(), Some(program.to_owned()));
        let hosts: Vec<(&str, &str)> = names.iter().map(|name| (*name, "region-1")).collect();
        Agents::start_hosts(cluster, &hosts, program, |_| endpoints.clone(), |_, _| String::new()).await
    }

    /// From now on agents are started from this build of the program; without one, from that of the test.
    pub fn set_program(&mut self, program: Option<&Path>) {
        self.program = program.map(Path::to_owned);
    }

    /// Starts agents on these hosts, each in its region.
    pub async fn start_in(cluster: &Cluster, hosts: &[(&str, &str)]) -> Agents {
        let endpoints = cluster.shown_endpoints();
        Agents::start_hosts(cluster, hosts, None, |_| endpoints.clone(), |_, _| String::new()).await
    }

    async fn start_hosts(
        cluster: &Cluster,
        hosts: &[(&str, &str)],
        program: Option<PathBuf>,
        endpoints: impl Fn(&str) -> Vec<String>,
        settings: impl Fn(&str, Ipv4Addr) -> String,
    ) -> Agents {
        let mut agents = Agents { client: cluster.client(), agents: BTreeMap::new(), program };
        for (place, (name, region)) in hosts.iter().enumerate() {
            let home = cluster.scratch.path().join(format!("agent-{name}"));
            std::fs::create_dir_all(&home).expect("a directory can be made");
            let address = Ipv4Addr::new(127, cluster.block[0], cluster.block[1], 16 + place as u8);
            std::fs::write(home.join("boot_id"), "first").expect("writing a boot id");
            let text = format!(
                "{}state_dir = {:?}\nboot_id_path = {:?}\nendpoints = {:?}\n\n[node]\nlabels = {{ host = {name:?} }}\nname = {name:?}\nregion = {region:?}\ncluster = \"{region}-a\"\naddress = \"{address}\"\ncpu = 16\nmemory = \"64Gi\"\naccelerators = {{ type = \"h100\", count = {DEVICES} }}\n",
                settings(name, address),
                home.join("state"),
                home.join("boot_id"),
                endpoints(name),
            );
            std::fs::write(home.join("agent.toml"), text).expect("writing a config");
            agents
                .agents
                .insert((*name).to_owned(), Agent { home, region: (*region).to_owned(), child: None });
            agents.start_agent(name);
        }
        for (name, _) in hosts {
            agents.wait_status(name, v1::NodeStatus::Up).await;
        }
        agents
    }

    fn agent(&mut self, name: &str) -> &mut Agent {
        self.agents.get_mut(name).unwrap_or_else(|| panic!("there is no agent {name}"))
    }

    fn child(&mut self, name: &str) -> &mut Child {
        self.agent(name).child.as_mut().unwrap_or_else(|| panic!("agent {name} does not run"))
    }

    /// Starts an agent, for the first time or again.
    pub fn start_agent(&mut self, name: &str) {
        self.start_agent_below(&[], name);
    }

    /// The same below another command.
    pub fn start_agent_below(&mut self, wrapper: &[&str], name: &str) {
        let program = self.program.clone();
        let agent = self.agent(name);
        assert!(agent.child.is_none(), "agent {name} runs already");
        let config = agent.home.join("agent.toml");
        let config = config.to_str().expect("the test's directory is text");
        let program = program.as_deref().unwrap_or(muster());
        let args = ["agent", "--config", config];
        agent.child = Some(spawn_program(program, wrapper, &agent.home, &args));
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.agents.keys().map(String::as_str)
    }

    /// The names of those in a region.
    pub fn in_region(&self, region: &str) -> Vec<String> {
        let here = self.agents.iter().filter(|(_, agent)| agent.region == region);
        here.map(|(name, _)| name.clone()).collect()
    }

    /// The directory of an agent; every process of its host names it.
    pub fn home(&self, name: &str) -> &Path {
        &self.agents.get(name).unwrap_or_else(|| panic!("there is no agent {name}")).home
    }

    /// The processes of a host: agent, shims and workers.
    pub fn processes(&self, name: &str) -> Vec<i32> {
        // With its separator: the name of one host may begin with that of another.
        marked(&self.home(name).join(""))
    }

    /// A power cut: SIGKILL for every process of the host, and another boot from now on.
    pub async fn crash(&mut self, name: &str, boot_id: &str) {
        loop {
            let found = self.processes(name);
            if found.is_empty() {
                break;
            }
            for pid in found {
                // It may have ended with its shim.
                let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            // A child that nobody has waited for has no command line any more.
            tokio::task::yield_now().await;
        }
        self.child(name).wait().await.expect("a child can be waited for");
        let agent = self.agent(name);
        agent.child = None;
        std::fs::write(agent.home.join("boot_id"), boot_id).expect("writing a boot id");
    }

    /// SIGKILL for an agent; its workers go on below their shims.
    pub async fn kill(&mut self, name: &str) {
        signal(self.child(name), Signal::SIGKILL);
        self.child(name).wait().await.expect("a child can be waited for");
        self.agent(name).child = None;
    }

    /// Stops an agent's time.
    pub fn freeze(&mut self, name: &str) {
        signal(self.child(name), Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&mut self, name: &str) {
        signal(self.child(name), Signal::SIGCONT);
    }

    /// Where an agent keeps what it knows of its workers.
    pub fn state_of(&self, name: &str) -> PathBuf {
        self.agents.get(name).unwrap_or_else(|| panic!("there is no agent {name}")).home.join("state")
    }

    /// Waits until the cluster reports this status of a node.
    pub async fn wait_status(&self, name: &str, wanted: v1::NodeStatus) {
        eventually(&format!("node {name} did not become {wanted:?}"), || async {
            let request = v1::GetNodeRequest { node: name.to_owned(), read: None };
            let node = self.client.get_node(request).await.ok()?.node?;
            (node.status() == wanted).then_some(())
        })
        .await;
    }
}
