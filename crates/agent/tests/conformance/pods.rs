//! One node of a real Kubernetes: `.ci/kubernetes` starts it and runs this part of the suite.

use crate::process::{Keeper, launches, shell};
use crate::suite::{Behaviour, Subject, conforms};
use muster_agent::executor::ExecutorEvent;
use muster_agent::kubernetes::{KubernetesCluster, KubernetesConfig, KubernetesExecutor};
use muster_agent::rules::WorkerKey;
use muster_agent::state_dir::{StateDir, StateDirError};
use muster_agent::{AgentError, LogLimits, SecretsAndFiles};
use muster_types::container::Mount;
use muster_types::{Container, Name, NodeDraft, NodeSpec};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Nothing of Kubernetes takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

struct OnPods {
    kubeconfig: PathBuf,
    image: String,
    namespace: String,
    node: String,
    keeper: Keeper,
    directory: tempfile::TempDir,
    port: u16,
    agent: Option<(KubernetesCluster, StateDir, AbortHandle)>,
}

fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(kubeconfig).arg("--request-timeout=20s").args(arguments);
    command.output().expect("there is a kubectl")
}

/// What a command prints, once it succeeds and prints something.
fn printed(kubeconfig: &Path, arguments: &[&str]) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let ran = kubectl(kubeconfig, arguments);
        let text = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
        if ran.status.success() && !text.is_empty() {
            return text;
        }
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(Instant::now() < end, "kubectl {arguments:?}: {text:?} {said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

impl Subject for OnPods {
    type Executor = KubernetesExecutor;

    async fn open(&mut self) -> (KubernetesExecutor, mpsc::Receiver<ExecutorEvent>) {
        if let Some((cluster, state, polling)) = self.agent.take() {
            polling.abort();
            drop((cluster, state));
        }
        let config: KubernetesConfig = serde_json::from_value(serde_json::json!({
            "name": "lab", "region": "r", "cluster": "c", "namespace": self.namespace,
            "kubeconfig": self.kubeconfig, "listen": format!("127.0.0.1:{}", self.port),
            "shim_image": self.image, "default_image": self.image,
            "host_paths": { (self.directory.path().join("launches").display().to_string()): [] },
        }))
        .unwrap();
        let root = self.directory.path().join("state");
        let cluster = loop {
            let (logs, metrics) = (LogLimits::usual(), muster_metrics::AgentMetrics::default());
            let given = SecretsAndFiles::default();
            let opened = KubernetesCluster::open(&config, &root, logs, Vec::new(), metrics, given).await;
            match opened {
                Ok(cluster) => break cluster,
                // The tasks of the one before let go of the address in a moment.
                Err(AgentError::Listen(_) | AgentError::State(StateDirError::Locked { .. })) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        let state = loop {
            match StateDir::open_for_remote(&root.join("nodes").join(&self.node), boot_id) {
                Ok(state) => break state,
                Err(StateDirError::Locked { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        let (executor, told) =
            cluster.executor(&self.node, &self.spec(), &state, Arc::clone(&self.keeper.lease));
        let polling = tokio::spawn(cluster.poll()).abort_handle();
        self.agent = Some((cluster, state, polling));
        (executor, told)
    }

    fn command(&self, key: WorkerKey, behaviour: Behaviour) -> Vec<String> {
        let mut command = shell(self.directory.path(), key, behaviour);
        // Its image has no variable that says where programs are.
        if let Some(first) = command.first_mut().filter(|first| first.as_str() == "sh") {
            "/bin/sh".clone_into(first);
        }
        command
    }

    fn container(&self) -> Option<Container> {
        let place = self.directory.path().join("launches").display().to_string();
        let mounts = vec![Mount { source: place.clone(), target: place, read_only: false }];
        Some(Container { mounts, ..Container::new(self.image.clone()) })
    }

    fn launches(&self, key: WorkerKey) -> usize {
        launches(self.directory.path(), key)
    }

    fn epoch(&self) -> u64 {
        self.keeper.epoch()
    }

    fn break_backend(&mut self, broken: bool) -> bool {
        let number = self.kubeconfig.parent().map(|directory| directory.join("run/apiserver.pid"));
        let Some(number) = number.and_then(|file| std::fs::read_to_string(file).ok()) else { return false };
        let signal = if broken { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, number.trim()]).status();
        sent.is_ok_and(|sent| sent.success())
    }

    async fn lapse(&mut self) {
        self.keeper.lapse().await;
    }
}

impl OnPods {
    /// One node; none where no cluster is named.
    fn start() -> Option<OnPods> {
        let named = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
        let Some(kubeconfig) = named("MUSTER_TEST_KUBECONFIG").map(PathBuf::from) else {
            let why = "MUSTER_TEST_KUBECONFIG names no cluster; .ci/kubernetes starts one";
            let _ = writeln!(std::io::stderr().lock(), "skipped: Kubernetes: {why}");
            return None;
        };
        let image = named("MUSTER_TEST_IMAGE").and_then(|image| image.into_string().ok());
        let image = image.unwrap_or_else(|| "localhost/muster:test".to_owned());
        let namespace = format!("conformance-{}", std::process::id());
        printed(&kubeconfig, &["create", "namespace", &namespace]);
        // A pod is refused before its account and the account's secret are there.
        let account = ["get", "serviceaccount", "default", "-n", &namespace, "-o", "jsonpath={.secrets}"];
        printed(&kubeconfig, &account);
        let first = "jsonpath={.items[0].metadata.name}";
        let node = printed(&kubeconfig, &["get", "nodes", "-l", "!muster.test/declared", "-o", first]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("launches")).unwrap();
        let keeper = Keeper::start(&directory.path().join("lease"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Some(OnPods { kubeconfig, image, namespace, node, keeper, directory, port, agent: None })
    }

    fn spec(&self) -> NodeSpec {
        let name = |text: &str| Name::new(text).unwrap();
        let draft = NodeDraft {
            name: name(&format!("lab.{}", self.node)),
            region: name("r"),
            cluster: name("c"),
            block: name("b"),
            rack: name("k"),
            address: "127.0.0.1".into(),
            accelerators: None,
            cpu_milli: 64_000,
            memory_bytes: 64 << 30,
            labels: Default::default(),
            taints: Default::default(),
            pod: None,
            scratch_bytes: 0,
        };
        draft.check().unwrap()
    }

    /// No pod of ours is left.
    fn assert_clean(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let listed = kubectl(&self.kubeconfig, &["get", "pods", "-n", &self.namespace, "-o", "name"]);
            if listed.status.success() && listed.stdout.is_empty() {
                return;
            }
            let left = String::from_utf8_lossy(&listed.stdout).into_owned();
            assert!(Instant::now() < end, "pods are left: {left}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for OnPods {
    fn drop(&mut self) {
        self.break_backend(false);
        kubectl(&self.kubeconfig, &["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pods_conform() {
    let Some(mut subject) = OnPods::start() else { return };
    conforms(&mut subject).await;
    subject.assert_clean();
}
