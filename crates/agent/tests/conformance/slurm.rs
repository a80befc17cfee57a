//! One node of a real Slurm.

use crate::lab::{Lab, Shape, start_or_skip};
use crate::process::{Keeper, launches, shell};
use crate::suite::{Behaviour, Subject, conforms};
use muster_agent::executor::ExecutorEvent;
use muster_agent::rules::WorkerKey;
use muster_agent::slurm::{SlurmCluster, SlurmConfig, SlurmExecutor};
use muster_agent::state_dir::{StateDir, StateDirError};
use muster_agent::{AgentError, LogLimits, SecretsAndFiles};
use muster_types::{Accelerators, Name, NodeDraft, NodeSpec};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

pub struct OnSlurm {
    pub lab: Lab,
    /// What is different in the next agent's configuration.
    pub change: fn(&mut SlurmConfig),
    pub keeper: Keeper,
    pub directory: tempfile::TempDir,
    port: u16,
    agent: Option<(SlurmCluster, StateDir, AbortHandle)>,
}

fn spec() -> NodeSpec {
    let name = |text: &str| Name::new(text).unwrap();
    let draft = NodeDraft {
        name: name("lab.n1"),
        region: name("r"),
        cluster: name("c"),
        block: name("b"),
        rack: name("k"),
        address: "127.0.0.1".into(),
        accelerators: Some(Accelerators { kind: name("h100"), count: 4 }),
        cpu_milli: 64_000,
        memory_bytes: 64 << 30,
        labels: Default::default(),
        taints: Default::default(),
        pod: None,
        scratch_bytes: 0,
    };
    draft.check().unwrap()
}

fn config(lab: &Lab, port: u16, directory: &std::path::Path) -> SlurmConfig {
    serde_json::from_value(serde_json::json!({
        "name": "lab", "region": "r", "cluster": "c", "listen": format!("127.0.0.1:{port}"),
        "poll_interval": "300ms", "runner_directory": directory,
        "environment": { "SLURM_CONF": lab.conf() },
    }))
    .unwrap()
}

impl Subject for OnSlurm {
    type Executor = SlurmExecutor;

    async fn open(&mut self) -> (SlurmExecutor, mpsc::Receiver<ExecutorEvent>) {
        if let Some((cluster, state, polling)) = self.agent.take() {
            polling.abort();
            drop((cluster, state));
        }
        let binary = env!("CARGO_BIN_EXE_muster-agent-process").to_owned();
        let mut config = config(&self.lab, self.port, &self.directory.path().join("runners"));
        (self.change)(&mut config);
        let root = self.directory.path().join("state");
        let shim = [binary, "shim".to_owned()];
        let cluster = loop {
            let (logs, metrics) = (LogLimits::usual(), muster_metrics::AgentMetrics::default());
            let given = SecretsAndFiles::default();
            let opened = SlurmCluster::open(&config, &shim, &root, logs, Vec::new(), metrics, given).await;
            match opened {
                Ok(cluster) => break cluster,
                // The tasks of the one before let go of the address in a moment, and so does a command that
                // was being started of the locks that it inherits.
                Err(AgentError::Listen(_) | AgentError::State(StateDirError::Locked { .. })) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let boot_id = std::path::Path::new("/proc/sys/kernel/random/boot_id");
        let state = loop {
            match StateDir::open_for_remote(&root.join("nodes/n1"), boot_id) {
                Ok(state) => break state,
                Err(StateDirError::Locked { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        let (executor, told) = cluster.executor("n1", &spec(), &state, Arc::clone(&self.keeper.lease));
        let polling = tokio::spawn(cluster.poll()).abort_handle();
        self.agent = Some((cluster, state, polling));
        (executor, told)
    }

    fn command(&self, key: WorkerKey, behaviour: Behaviour) -> Vec<String> {
        shell(self.directory.path(), key, behaviour)
    }

    fn launches(&self, key: WorkerKey) -> usize {
        launches(self.directory.path(), key)
    }

    fn epoch(&self) -> u64 {
        self.keeper.epoch()
    }

    fn break_backend(&mut self, broken: bool) -> bool {
        self.lab.pause_controller(broken);
        true
    }

    async fn lapse(&mut self) {
        self.keeper.lapse().await;
    }
}

impl OnSlurm {
    /// One node; none where Slurm cannot be run.
    pub fn start() -> Option<OnSlurm> {
        let _ = tracing_subscriber::fmt().with_env_filter("info").with_test_writer().try_init();
        let lab = start_or_skip(Shape { nodes: 1, ..Shape::default() })?;
        let directory = tempfile::tempdir().unwrap();
        for name in ["launches", "runners"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let keeper = Keeper::start(&directory.path().join("lease"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Some(OnSlurm { lab, change: |_| (), keeper, directory, port, agent: None })
    }

    /// Nothing of ours is left, in Slurm or on its nodes.
    pub fn assert_clean(&self) {
        self.lab.wait_for("Slurm to have nothing of ours", |lab| {
            lab.jobs().iter().all(|job| !job.contains("muster-"))
        });
        self.lab.wait_for("runners to remove their directories", |_| self.runners_left() == 0);
    }

    /// Directories of runners.
    pub fn runners_left(&self) -> usize {
        std::fs::read_dir(self.directory.path().join("runners")).unwrap().count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slurm_conforms() {
    let Some(mut subject) = OnSlurm::start() else { return };
    conforms(&mut subject).await;
    subject.assert_clean();
}
