//! Real agents, each with a host of its own as far as the cluster knows.

use muster_client::Client;
use muster_wire::v1;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tokio::process::Child;

use super::{Cluster, eventually, signal, spawn};

/// Accelerators of a host, and as many CPUs twice over.
const DEVICES: u32 = 4;

struct Agent {
    home: PathBuf,
    child: Option<Child>,
}

/// Agents by the names of their nodes. Their workers end with the cluster's folder at the latest.
pub struct Agents {
    client: Client,
    agents: BTreeMap<String, Agent>,
}

impl Agents {
    /// Starts agents with these names, four `h100` each, and waits until their nodes are up.
    pub async fn start(cluster: &Cluster, names: &[&str]) -> Agents {
        Agents::start_each(cluster, names, |_| String::new()).await
    }

    /// The same with more lines at the head of each configuration. Jobs find a node by its label `host`.
    pub async fn start_each(cluster: &Cluster, names: &[&str], settings: impl Fn(&str) -> String) -> Agents {
        let mut agents = Agents { client: cluster.client(), agents: BTreeMap::new() };
        for (place, name) in names.iter().enumerate() {
            let home = cluster.scratch.path().join(format!("agent-{name}"));
            std::fs::create_dir_all(&home).expect("a folder can be made");
            let address = Ipv4Addr::new(127, cluster.block[0], cluster.block[1], 16 + place as u8);
            let text = format!(
                "state_dir = {:?}\nendpoints = {:?}\n{}\n[node]\nlabels = {{ host = {name:?} }}\nname = {name:?}\nregion = \"region-1\"\ncluster = \"region-1-a\"\naddress = \"{address}\"\ncpu_milli = 16000\nmemory_bytes = {}\naccelerators = {{ type = \"h100\", count = {DEVICES} }}\n",
                home.join("state"),
                cluster.endpoints(),
                settings(name),
                64u64 << 30,
            );
            std::fs::write(home.join("agent.toml"), text).expect("writing a config");
            agents.agents.insert((*name).to_owned(), Agent { home, child: None });
            agents.start_agent(name);
        }
        for name in names {
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
        let agent = self.agent(name);
        assert!(agent.child.is_none(), "agent {name} runs already");
        let config = agent.home.join("agent.toml");
        let config = config.to_str().expect("the test's folder is text");
        agent.child = Some(spawn(&agent.home, &["agent", "--config", config]));
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

    /// Waits until the cluster says so of a node.
    pub async fn wait_status(&self, name: &str, wanted: v1::NodeStatus) {
        eventually(&format!("node {name} did not become {wanted:?}"), || async {
            let request = v1::GetNodeRequest { node: name.to_owned(), read: None };
            let node = self.client.get_node(request).await.ok()?.node?;
            (node.status() == wanted).then_some(())
        })
        .await;
    }
}
