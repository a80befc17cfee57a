//! What the tests of Kubernetes share: the cluster that the lane started, a namespace of one test in it, an agent for it, and
//! connections of workers to the test, which last as long as they run.

use muster_client::Client;
use muster_wire::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Cluster, PATIENCE, accelerators, eventually, free_address, job, say, signal, spawn};

/// Devices of each node that runs pods. No device is behind them: the scheduler counts them.
pub const DEVICES: u32 = 8;
/// Prefix of nodes in Muster.
const GROUP: &str = "pods";
/// An answer that takes longer does not come.
const REQUEST_LIMIT: &str = "--request-timeout=20s";

/// A namespace of one test. Dropping it deletes the namespace with all that is in it.
pub struct Lab {
    kubeconfig: PathBuf,
    image: String,
    namespace: String,
    /// Nodes with kubelets.
    pub nodes: Vec<String>,
}

impl Lab {
    /// The cluster that the environment names; none, and a line about it, where it names none.
    pub async fn open_or_skip(test: &str) -> Option<Lab> {
        let named = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
        let Some(kubeconfig) = named("MUSTER_TEST_KUBECONFIG") else {
            say(&format!(
                "skipped: {test}: MUSTER_TEST_KUBECONFIG names no cluster of Kubernetes; .ci/kubernetes starts one"
            ));
            return None;
        };
        let image = named("MUSTER_TEST_IMAGE").unwrap_or_else(|| "localhost/muster:test".into());
        let image = image.into_string().expect("the name of an image is text");
        let namespace = format!("muster-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let mut lab = Lab { kubeconfig: kubeconfig.into(), image, namespace, nodes: Vec::new() };
        lab.prepare().await;
        Some(lab)
    }

    async fn prepare(&mut self) {
        self.post("/api/v1/namespaces", &json!({ "metadata": { "name": self.namespace } })).await;
        // A pod is refused before its account and the account's secret are there.
        eventually("the namespace has no account", || async {
            let account = self.get(&self.path("serviceaccounts/default")).await?;
            account["secrets"].as_array().is_some_and(|all| !all.is_empty()).then_some(())
        })
        .await;
        let listed = self.get("/api/v1/nodes?labelSelector=!muster.test/declared").await;
        let listed = listed.expect("nodes can be listed");
        let names = listed["items"].as_array().into_iter().flatten().filter_map(|node| {
            let name = node["metadata"]["name"].as_str()?;
            Some(name.to_owned())
        });
        self.nodes = names.collect();
        for node in &self.nodes {
            self.label(node, "muster.test/pods=true").await;
            let path = format!("/api/v1/nodes/{node}/status");
            // Its kubelet may write at the same time.
            eventually("a node cannot be given devices", || async {
                let mut found = self.get(&path).await?;
                found["status"]["capacity"]["nvidia.com/gpu"] = DEVICES.to_string().into();
                found["status"]["allocatable"]["nvidia.com/gpu"] = DEVICES.to_string().into();
                self.write("replace", &path, &found).await
            })
            .await;
        }
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The image that every node has.
    pub fn image(&self) -> &str {
        &self.image
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of something in the namespace.
    pub fn path(&self, what: &str) -> String {
        format!("/api/v1/namespaces/{}/{what}", self.namespace)
    }

    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg(REQUEST_LIMIT).args(arguments);
        command
    }

    /// `kubectl` with this as its input.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::from(self.command(arguments));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("there is a kubectl");
        if let Some(mut to_child) = child.stdin.take() {
            // A command that does not read its input may be gone.
            let _ = tokio::io::AsyncWriteExt::write_all(&mut to_child, input.as_bytes()).await;
        }
        child.wait_with_output().await.expect("a command can be waited for")
    }

    /// What is at a path, when there is something.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let told = self.kubectl(&["get", "--raw", path], "").await;
        if told.status.success() { serde_json::from_slice(&told.stdout).ok() } else { None }
    }

    async fn write(&self, verb: &str, path: &str, what: &Value) -> Option<()> {
        let told = self.kubectl(&[verb, "--raw", path, "-f", "-"], &what.to_string()).await;
        told.status.success().then_some(())
    }

    /// Makes something.
    pub async fn post(&self, path: &str, what: &Value) {
        let told = self.kubectl(&["create", "--raw", path, "-f", "-"], &what.to_string()).await;
        assert!(told.status.success(), "{path}: {}", String::from_utf8_lossy(&told.stderr));
    }

    /// `KEY=VALUE`, or `KEY-` to take it away.
    pub async fn label(&self, node: &str, label: &str) {
        let told = self.kubectl(&["label", "--overwrite", "node", node, label], "").await;
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    }

    /// The pods of agents in the namespace.
    pub async fn pods(&self) -> Option<Vec<Value>> {
        let listed = self.get(&self.path("pods?labelSelector=muster.dev/agent")).await?;
        Some(listed["items"].as_array()?.clone())
    }

    /// Pods and secrets of jobs are gone.
    pub async fn nothing_left(&self) {
        eventually("something of a job is left in the namespace", || async {
            let secrets = self.get(&self.path("secrets")).await?;
            let mut secrets = secrets["items"].as_array()?.iter();
            let ours = |secret: &Value| {
                secret["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("muster-"))
            };
            (self.pods().await?.is_empty() && !secrets.any(ours)).then_some(())
        })
        .await;
    }

    /// Pods are removed as a kubelet does it in the end, or somebody who forces it.
    pub async fn remove_at_once(&self, names: &[&str]) {
        let force = ["--namespace", &self.namespace, "--grace-period=0", "--force", "--ignore-not-found"];
        self.kubectl(&[&["delete", "pods"], names, &force].concat(), "").await;
    }

    /// A pod of somebody else.
    pub fn foreign(&self, name: &str, node: &str, devices: u32) -> Value {
        let amount = json!({ "cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": devices.to_string() });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name },
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "hostNetwork": true,
                "nodeSelector": { "kubernetes.io/hostname": node },
                "containers": [{
                    "name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/sleep", "1000000"],
                    "resources": { "requests": amount, "limits": amount },
                }],
            },
        })
    }

    /// Nodes without kubelets: pods are bound to them, and never begin.
    pub async fn declare(&self, names: &[String]) {
        for name in names {
            let labels = json!({
                "kubernetes.io/hostname": name, "muster.test/declared": "true", "muster.test/in": self.namespace,
            });
            self.post(
                "/api/v1/nodes",
                &json!({ "metadata": { "name": name, "labels": labels }, "spec": {} }),
            )
            .await;
            let path = format!("/api/v1/nodes/{name}/status");
            let amounts = json!({ "cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": DEVICES.to_string() });
            eventually("a node cannot be declared", || async {
                let mut node = self.get(&path).await?;
                node["status"]["capacity"] = amounts.clone();
                node["status"]["allocatable"] = amounts.clone();
                node["status"]["addresses"] = json!([{ "type": "InternalIP", "address": "127.0.0.1" }]);
                node["status"]["conditions"] = json!([
                    { "type": "Ready", "status": "True", "reason": "Declared", "message": "by a test" }
                ]);
                self.write("replace", &path, &node).await
            })
            .await;
        }
    }

    /// Makes all of these at once, each with its kind in it.
    pub async fn create(&self, items: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let told = self.kubectl(&["create", "-f", "-"], &list.to_string()).await;
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    }

    /// Selects what `declare` made.
    pub fn declared(&self) -> String {
        format!("muster.test/in={}", self.namespace)
    }

    /// The process of a part of the cluster, where the lane started it.
    pub fn part(&self, name: &str) -> Option<Pid> {
        let file = self.kubeconfig.parent()?.join("run").join(format!("{name}.pid"));
        let number = std::fs::read_to_string(file).ok()?;
        Some(Pid::from_raw(number.trim().parse().ok()?))
    }

    /// A process of a node of the lane, by a word of its command line next to the lane's directory.
    pub fn process_of_node(&self, word: &str) -> Option<Pid> {
        let directory = self.kubeconfig.parent()?.to_str()?;
        std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line);
            (line.contains(word) && line.contains(directory)).then_some(Pid::from_raw(number))
        })
    }

    /// Ends a node as a power cut does, and starts it again.
    pub async fn restart(&self, node: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/cluster");
        let directory = self.kubeconfig.parent().expect("a file is in a directory");
        let number = node.rsplit('-').next().expect("a node has a number");
        let mut command = Command::new(script);
        command.arg("restart").arg(directory).arg(number).stdin(Stdio::null()).stdout(Stdio::null());
        let ended = command.status().await.expect("the script of the cluster can be run");
        assert!(ended.success(), "{node} does not start again: {ended}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let declared = self.declared();
        let all: [&[&str]; 3] = [
            &[
                "delete",
                "pods",
                "--all",
                "--namespace",
                &self.namespace,
                "--grace-period=0",
                "--force",
                "--wait=false",
            ],
            &["delete", "namespace", &self.namespace, "--wait=false"],
            &["delete", "nodes", "--selector", &declared, "--wait=false"],
        ];
        for arguments in all {
            let _ = self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// A part of the cluster that stands still, and goes on when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn stop(part: Pid) -> Stopped {
        kill(part, Signal::SIGSTOP).expect("the part runs");
        Stopped(part)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// An agent for the nodes of the cluster.
pub struct PodAgent {
    home: PathBuf,
    child: Option<Child>,
}

impl PodAgent {
    /// Lays one out for the nodes that the selector finds; nothing runs.
    pub fn lay_out(cluster: &Cluster, lab: &Lab, home: &str, selector: &str, kubeconfig: &Path) -> PodAgent {
        let home = cluster.scratch.path().join(home);
        std::fs::create_dir_all(&home).expect("a directory can be made");
        let listen = free_address([127, 0, 0, 1].into());
        let mut text = format!(
            "state_dir = {:?}\nendpoints = {:?}\n\n[kubernetes]\nname = {GROUP:?}\nregion = \"region-1\"\ncluster = \"pods\"\n",
            home.join("state"),
            cluster.shown_endpoints(),
        );
        let _ = write!(
            text,
            "namespace = {:?}\nkubeconfig = {kubeconfig:?}\nnode_selector = {selector:?}\nlisten = \"{listen}\"\n\
             advertise = \"{listen}\"\nshim_image = {:?}\ndefault_image = {:?}\n\
             accelerators = {{ \"nvidia.com/gpu\" = \"h100\" }}\nhost_paths = {{ {:?} = [] }}\n",
            lab.namespace,
            lab.image,
            lab.image,
            shown_in(cluster.scratch.path()),
        );
        std::fs::write(home.join("agent.toml"), text).expect("writing a config");
        PodAgent { home, child: None }
    }

    /// One that runs, for the nodes that run pods.
    pub async fn start_for(cluster: &Cluster, client: &Client, lab: &Lab) -> PodAgent {
        let mut agent = PodAgent::lay_out(cluster, lab, "agent", "muster.test/pods=true", lab.kubeconfig());
        agent.start();
        nodes_up(client, lab.nodes.len()).await;
        agent
    }

    /// The same, with more lines at the head of its configuration.
    pub async fn start_with(cluster: &Cluster, client: &Client, lab: &Lab, settings: &str) -> PodAgent {
        let mut agent = PodAgent::lay_out(cluster, lab, "agent", "muster.test/pods=true", lab.kubeconfig());
        agent.configure(|text| format!("{settings}{text}"));
        agent.start();
        nodes_up(client, lab.nodes.len()).await;
        agent
    }

    /// Changes its configuration, before it is started.
    pub fn configure(&self, change: impl FnOnce(String) -> String) {
        let config = self.home.join("agent.toml");
        let text = std::fs::read_to_string(&config).expect("it was laid out");
        std::fs::write(&config, change(text)).expect("writing a config");
    }

    pub fn start(&mut self) {
        let config = self.home.join("agent.toml");
        let config = config.to_str().expect("a temporary path is text");
        assert!(self.child.is_none(), "it runs already");
        self.child = Some(spawn(&self.home, &["agent", "--config", config]));
    }

    pub fn signal(&self, what: Signal) {
        signal(self.child.as_ref().expect("it runs"), what);
    }

    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let mut child = self.child.take().expect("it runs");
        child.wait().await.expect("a child can be waited for");
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_some()))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }
}

/// What pods may show of their node.
pub fn shown_in(scratch: &Path) -> PathBuf {
    scratch.join("shown")
}

/// Names of nodes of Kubernetes in Muster.
pub fn in_muster(node: &str) -> String {
    format!("{GROUP}.{node}")
}

/// Waits until an agent has this number of nodes.
pub async fn nodes_up(client: &Client, count: usize) -> Vec<v1::Node> {
    eventually("the nodes of Kubernetes are not up", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let own = nodes.into_iter().filter(|node| {
            let name = node.description.as_ref().map_or("", |d| d.name.as_str());
            name.starts_with("pods.") && node.status() == v1::NodeStatus::Up
        });
        let own: Vec<v1::Node> = own.collect();
        (own.len() == count).then_some(own)
    })
    .await
}

/// When one worker ran: from its connection to its end.
#[derive(Clone, Debug)]
pub struct Interval {
    pub job: String,
    pub token: String,
    pub rank: u32,
    pub begun: Instant,
    pub ended: Option<Instant>,
}

/// Workers connect to it; the connection ends with the last of a worker's processes.
pub struct Witness {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Interval>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Witness {
    pub async fn start() -> Witness {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(follow(stream, Arc::clone(&all)));
            }
        });
        Witness { address, seen, accepting }
    }

    /// Workers with some devices each that carry this script out below a connection to here.
    pub fn job(&self, name: &str, script: &str, shape: (u32, u32)) -> v1::Job {
        let (workers, devices) = shape;
        let port = self.address.port().to_string();
        let text = format!("echo $MUSTER_JOB_ID $MUSTER_FENCING_TOKEN $MUSTER_RANK; {script}");
        let mut wanted = job(name, &["/bin/nc", "127.0.0.1", &port, "-e", "/bin/sh", "-c", &text]);
        let group = &mut wanted.spec_mut().groups[0];
        group.workers = workers;
        let resources = group.resources_mut();
        resources.memory_bytes = 64 << 20;
        resources.accelerators = Some(accelerators("h100", devices));
        wanted
    }

    /// When workers of a job ran
    pub fn intervals(&self, job: &str) -> Vec<Interval> {
        self.seen.lock().iter().filter(|interval| interval.job == job).cloned().collect()
    }

    /// This number of workers of a job run.
    pub async fn living(&self, job: &str, count: usize) {
        eventually("workers have not begun", || async {
            (self.intervals(job).iter().filter(|interval| interval.ended.is_none()).count() == count)
                .then_some(())
        })
        .await;
    }

    /// No worker of a job runs; when the last of them ended.
    pub async fn all_ended(&self, job: &str) -> Instant {
        eventually("workers go on", || async {
            let ends: Option<Vec<Instant>> =
                self.intervals(job).iter().map(|interval| interval.ended).collect();
            ends?.into_iter().max()
        })
        .await
    }

    /// No token began twice on a rank, and no two attempts of a rank ran at a time.
    #[track_caller]
    pub fn assert_once(&self) {
        let seen = self.seen.lock();
        let mut tokens = BTreeSet::new();
        let mut ranks = BTreeMap::<_, Vec<&Interval>>::new();
        for interval in seen.iter() {
            assert!(
                tokens.insert((&interval.job, &interval.token, interval.rank)),
                "began twice: {interval:?}"
            );
            ranks.entry((&interval.job, interval.rank)).or_default().push(interval);
        }
        for intervals in ranks.values() {
            for pair in intervals.windows(2) {
                let before = pair[0].ended.is_some_and(|end| end <= pair[1].begun);
                assert!(before, "two attempts at a time: {pair:#?}");
            }
        }
    }
}

async fn follow(stream: tokio::net::TcpStream, all: Arc<Mutex<Vec<Interval>>>) {
    let begun = Instant::now();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let [job, token, rank] = words[..] else { return };
    let interval = Interval {
        job: job.to_owned(),
        token: token.to_owned(),
        rank: rank.parse().expect("a rank is a number"),
        begun,
        ended: None,
    };
    let place = {
        let mut all = all.lock();
        all.push(interval);
        all.len() - 1
    };
    let mut rest = [0; 256];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    all.lock()[place].ended = Some(Instant::now());
}

/// Looks at something for as long, and panics when it does not hold.
pub async fn holds_for(how_long: Duration, what: &str, look: impl Fn() -> bool) {
    let end = tokio::time::Instant::now() + how_long;
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    while tokio::time::Instant::now() < end {
        assert!(look(), "{what}");
        looks.tick().await;
    }
}

/// Time for what takes longer than anything else here.
pub const LONG: Duration = Duration::from_secs(3 * PATIENCE.as_secs());
