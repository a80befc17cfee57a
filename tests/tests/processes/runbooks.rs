//! The pages in `ops/runbooks` are carried out, step by step, on real replicas: what an operator reads at
//! night has been done before.
//!
//! A page says in comments what the test lays out (`<!-- test … -->`) and which fault it brings about
//! (`<!-- fault … -->`); everything else is what an operator sees. Blocks: `sh step` runs once, `sh look` is
//! repeated until it shows what it should, `sh start` is a server that goes on; `expect` behind one holds
//! what has to be in its output, line by line; `exit=N` says with which code it ends.

use muster_wire::v1;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

use crate::rebuild::{Disk, damage, falsify, fill};
use crate::support::{
    Agents, Cluster, LOOK_AGAIN, Network, PATIENCE, accelerators, heavy, job, muster, say, wait_for_job,
};

const SECTIONS: [&str; 4] = ["## When", "## What you see", "## Steps", "## Undo"];
/// Bytes a size-limited disk has at first, and when it is called full.
const ROOMY: &str = "8g";
const FULL: &str = "600m";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/runbooks")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Runs once.
    Step,
    /// Repeated until it shows what it should.
    Look,
    /// A server that goes on.
    Start,
    /// Brought about by the test.
    Fault,
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    line: usize,
    exit: i32,
    text: String,
    expected: Vec<String>,
}

#[derive(Debug, Default)]
struct Setup {
    replicas: usize,
    spares: usize,
    jobs: usize,
    disks: bool,
    /// A proxy before every replica, so that they can be cut off.
    proxies: bool,
    /// Hosts with an agent, and their regions.
    agents: Vec<(String, String)>,
    /// Hosts on which a gang runs when the fault comes, one on each of these.
    gangs: Vec<String>,
    settings: String,
}

#[derive(Debug)]
struct Page {
    setup: Setup,
    blocks: Vec<Block>,
}

fn setup(words: &str) -> Setup {
    let mut setup = Setup::default();
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word:?} is not key=value"));
        let number = || value.parse::<usize>().unwrap_or_else(|_| panic!("{word:?} is not a number"));
        match key {
            "replicas" => setup.replicas = number(),
            "spares" => setup.spares = number(),
            "jobs" => setup.jobs = number(),
            "disks" => setup.disks = value == "yes",
            "proxies" => setup.proxies = value == "yes",
            "agents" => {
                let of = |host: &str| host.split_once(':').map(|(name, region)| (name.into(), region.into()));
                setup.agents = value.split(',').filter_map(of).collect();
            }
            "gangs" => setup.gangs = value.split(',').map(ToOwned::to_owned).collect(),
            "format_max" => setup.settings = format!("[upgrade]\nformat_max = {}\n", number()),
            _ => panic!("nobody knows what {key:?} is"),
        }
    }
    assert!(setup.replicas > 0, "the page says how many replicas there are");
    setup
}

/// Reads a page; panics with the line that is wrong.
fn parse(text: &str) -> Page {
    let mut page = Page { setup: Setup::default(), blocks: Vec::new() };
    let mut lines = text.lines().enumerate();
    while let Some((line, words)) = lines.next() {
        if let Some(words) = words.strip_prefix("<!-- test ").and_then(|rest| rest.strip_suffix(" -->")) {
            page.setup = setup(words);
        } else if let Some(words) =
            words.strip_prefix("<!-- fault ").and_then(|rest| rest.strip_suffix(" -->"))
        {
            let text = words.to_owned();
            page.blocks.push(Block { kind: Kind::Fault, line, exit: 0, text, expected: Vec::new() });
        } else if let Some(info) = words.trim_start().strip_prefix("```") {
            let body: Vec<&str> =
                lines.by_ref().map(|(_, l)| l.trim_start()).take_while(|l| *l != "```").collect();
            let mut info = info.split_whitespace();
            match (info.next(), info.next()) {
                (Some("sh"), Some(kind)) => {
                    let kind = match kind {
                        "step" => Kind::Step,
                        "look" => Kind::Look,
                        "start" => Kind::Start,
                        other => panic!("line {line}: nobody knows what to do with `sh {other}`"),
                    };
                    let exit = info.next().and_then(|word| word.strip_prefix("exit=")?.parse().ok());
                    let text = body.join("\n");
                    page.blocks.push(Block {
                        kind,
                        line,
                        exit: exit.unwrap_or(0),
                        text,
                        expected: Vec::new(),
                    });
                }
                (Some("expect"), None) => {
                    let last =
                        page.blocks.last_mut().unwrap_or_else(|| panic!("line {line}: of which block?"));
                    last.expected.extend(body.into_iter().map(ToOwned::to_owned));
                }
                (Some("sh"), None) | (None, _) => panic!("line {line}: a block nobody carries out or checks"),
                // Files and the like, to be read.
                _ => {}
            }
        }
    }
    page
}

struct Run<'a> {
    name: &'a str,
    cluster: Cluster,
    network: Option<Network>,
    agents: Option<Agents>,
    disks: Vec<Disk>,
    more_path: String,
}

struct Output {
    code: Option<i32>,
    text: String,
}

impl Run<'_> {
    /// What the page's variables stand for by now.
    fn variables(&self) -> Vec<(String, String)> {
        let mut all = vec![
            ("MUSTER_ENDPOINTS".to_owned(), self.cluster.endpoints().join(",")),
            ("WORK".to_owned(), self.cluster.scratch.path().display().to_string()),
        ];
        for (at, files) in self.cluster.replicas.iter().enumerate() {
            let id = files.id;
            let pid = self.cluster.pid(at).map(|pid| pid.to_string()).unwrap_or_default();
            all.push((format!("CONFIG_{id}"), files.config().display().to_string()));
            all.push((format!("DATA_{id}"), files.data().display().to_string()));
            all.push((format!("PEER_{id}"), format!("http://{}", files.peer)));
            all.push((format!("CLIENT_{id}"), files.endpoint()));
            all.push((format!("REGION_{id}"), files.region()));
            all.push((format!("PID_{id}"), pid));
        }
        for name in self.agents.iter().flat_map(Agents::names) {
            let config = self.cluster.scratch.path().join(format!("agent-{name}/agent.toml"));
            all.push((format!("AGENT_{name}"), config.display().to_string()));
        }
        all
    }

    async fn shell(&self, block: &Block) -> Output {
        let mut command = Command::new("sh");
        command.args(["-eu", "-c", &block.text]).current_dir(self.cluster.scratch.path());
        command.env("PATH", &self.more_path).env_remove("MUSTER_LOG").env("MUSTER_DIE_WITH_PARENT", "1");
        command.envs(self.variables()).stdin(Stdio::null()).kill_on_drop(true);
        let ran = tokio::time::timeout(PATIENCE, command.output()).await;
        let ran = ran.unwrap_or_else(|_| panic!("{}: line {}: it does not end", self.name, block.line));
        let ran = ran.unwrap_or_else(|error| panic!("{}: line {}: {error}", self.name, block.line));
        let text = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Output { code: ran.status.code(), text: text.concat() }
    }

    /// The replica a `sh start` is of, and what follows its configuration.
    fn server_of(&self, block: &Block) -> (usize, Vec<String>) {
        let wrong = format!("{}: line {}: not `muster server --config $CONFIG_N …`", self.name, block.line);
        let rest = block.text.trim().strip_prefix("muster server --config $CONFIG_").expect(&wrong);
        let mut words = rest.split_whitespace();
        let id: u64 = words.next().and_then(|id| id.parse().ok()).expect(&wrong);
        let place = self.cluster.replicas.iter().position(|files| files.id == id).expect(&wrong);
        (place, words.map(ToOwned::to_owned).collect())
    }

    /// Only replicas of one group hear each other; `|` stands between groups, `all` for each alone.
    fn part(&self, groups: &str) {
        let network = self.network.as_ref().expect("the page asks for proxies");
        let name = |id: &str| format!("replica-{id}");
        let groups: Vec<Vec<String>> = match groups {
            "all" => self.cluster.replicas.iter().map(|files| vec![name(&files.id.to_string())]).collect(),
            groups => groups.split('|').map(|g| g.split(',').map(name).collect()).collect(),
        };
        network.part(&groups.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }

    /// Everything in a region at once: its replicas, and its hosts with all that runs there.
    async fn lose_region(&mut self, region: &str) {
        for at in 0..self.cluster.replicas.len() {
            if self.cluster.replicas[at].region() == region && self.cluster.runs(at) {
                self.cluster.kill(at).await;
            }
        }
        let agents = self.agents.as_mut().expect("the page asks for agents");
        for name in agents.in_region(region) {
            agents.crash(&name, "second").await;
        }
    }

    async fn fault(&mut self, words: &str) {
        match words.split_once(' ').unwrap_or((words, "")) {
            ("heal", "") => return self.network.as_ref().expect("the page asks for proxies").heal(),
            ("part", groups) => return self.part(groups),
            ("power-cut", "") => return self.cluster.kill_all_at_once().await,
            ("lose", region) => return self.lose_region(region).await,
            _ => {}
        }
        let (what, id) = words.split_once(' ').unwrap_or_else(|| panic!("{words:?} names no replica"));
        let id: u64 = id.parse().unwrap_or_else(|_| panic!("{words:?} names no replica"));
        let at = self.cluster.replicas.iter().position(|files| files.id == id).expect("it is laid out");
        match what {
            "kill" => self.cluster.kill(at).await,
            "pause" => self.cluster.signal(at, nix::sys::signal::Signal::SIGSTOP),
            "damage" => {
                self.cluster.stop(at).await;
                damage(&self.cluster.replicas[at].data().join("log"));
            }
            "falsify" => {
                self.cluster.stop(at).await;
                falsify(&self.cluster, at).await;
                self.cluster.start_replica(at);
                for _ in 0..40 {
                    fill(&self.cluster, 10).await;
                    if self.cluster.replicas[at].data().join("DIVERGED").exists() {
                        break;
                    }
                }
                self.cluster.ended(at).await;
            }
            "fill" => self.disks[at].resize(FULL),
            "free" => self.disks[at].resize(ROOMY),
            "lead" => {
                let id = id.to_string();
                self.cluster.operated(&["cluster", "transfer", "--to", &id]).await;
            }
            other => panic!("nobody knows how to bring {other:?} about"),
        }
    }

    async fn carry_out(&mut self, block: &Block) {
        let place = format!("{}.md, line {}: {}", self.name, block.line + 1, block.text);
        let holds = |output: &Output| {
            output.code == Some(block.exit)
                && block.expected.iter().all(|line| output.text.contains(line.as_str()))
        };
        match block.kind {
            Kind::Fault => self.fault(&block.text).await,
            Kind::Start if block.text.trim().starts_with("muster agent") => {
                let name = block.text.trim().strip_prefix("muster agent --config $AGENT_");
                let name = name.unwrap_or_else(|| panic!("{place}\nnot `muster agent --config $AGENT_NAME`"));
                self.agents.as_mut().expect("the page asks for agents").start_agent(name);
            }
            Kind::Start => {
                let (at, more) = self.server_of(block);
                if self.cluster.runs(at) {
                    // A step before has ended it.
                    self.cluster.ended(at).await;
                }
                let more: Vec<&str> = more.iter().map(String::as_str).collect();
                self.cluster.start_replica_with(at, &more);
            }
            Kind::Step => {
                let output = self.shell(block).await;
                assert!(holds(&output), "{place}\nended with {:?}:\n{}", output.code, output.text);
            }
            Kind::Look => {
                let end = tokio::time::Instant::now() + PATIENCE;
                loop {
                    let output = self.shell(block).await;
                    if holds(&output) {
                        break;
                    }
                    let in_time = tokio::time::Instant::now() < end;
                    assert!(in_time, "{place}\nstill ends with {:?}:\n{}", output.code, output.text);
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }
}

/// A gang that runs on this host until somebody stops it, and may go on anywhere.
async fn run_gang(cluster: &Cluster, hosts: &[(String, String)], host: &str) {
    let client = cluster.client();
    let others: Vec<&str> =
        hosts.iter().map(|(name, _)| name.as_str()).filter(|name| *name != host).collect();
    for other in &others {
        cluster.operated(&["node", "cordon", other]).await;
    }
    let mut wanted = job(&format!("gang-on-{host}"), &["/bin/sleep", "3600"]);
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 4));
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    let id = client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0);
    wait_for_job(&client, &id, |job| job.phase() == v1::JobPhase::Running).await;
    for other in &others {
        cluster.operated(&["node", "uncordon", other]).await;
    }
}

async fn carry_out(name: &str) {
    let _heavy = heavy().await;
    let path = directory().join(format!("{name}.md"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for section in SECTIONS {
        assert!(text.lines().any(|line| line == section), "{name}.md has no section {section:?}");
    }
    let page = parse(&text);
    let steps = page.blocks.iter().filter(|block| block.kind != Kind::Fault).count();
    assert!(steps > 0, "{name}.md has no step");
    let mut cluster = Cluster::lay_out_with(page.setup.replicas, page.setup.spares, &page.setup.settings);
    let mut disks = Vec::new();
    if page.setup.disks {
        let mounted = cluster.replicas.iter().map_while(|files| Disk::mount(&files.data()));
        disks = mounted.collect();
        if disks.len() < cluster.replicas.len() {
            say(&format!("SKIPPED the steps of {name}.md: this user cannot mount a tmpfs"));
            return;
        }
    }
    let mut network = None;
    if page.setup.proxies {
        let mut proxies = Network::new(cluster.scratch.path());
        cluster.put_behind(&mut proxies).await;
        network = Some(proxies);
    }
    cluster.found().await;
    fill(&cluster, page.setup.jobs).await;
    let mut agents = None;
    if !page.setup.agents.is_empty() {
        let hosts: Vec<(&str, &str)> =
            page.setup.agents.iter().map(|(n, r)| (n.as_str(), r.as_str())).collect();
        agents = Some(Agents::start_in(&cluster, &hosts).await);
    }
    for host in &page.setup.gangs {
        run_gang(&cluster, &page.setup.agents, host).await;
    }
    let tools = muster().parent().expect("a program lies in a directory").display().to_string();
    let more_path = format!("{tools}:{}", std::env::var("PATH").unwrap_or_default());
    let mut run = Run { name, cluster, network, agents, disks, more_path };
    for block in &page.blocks {
        run.carry_out(block).await;
    }
    run.cluster.scratch.assert_no_panics();
    // Before the disks are unmounted.
    run.cluster.scratch.kill_all();
    say(&format!("runbook {name}: {steps} steps carried out"));
}

macro_rules! pages {
    ($($test:ident = $page:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                carry_out($page).await;
            }
        )*

        #[test]
        fn every_page_is_carried_out() {
            let mut pages: Vec<String> = [$($page,)*].map(|page| format!("{page}.md")).into();
            pages.push("README.md".to_owned());
            pages.sort();
            let entries = std::fs::read_dir(directory()).expect("there are runbooks").flatten();
            let mut found: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
            found.sort();
            assert_eq!(found, pages);
        }
    };
}

pages! {
    add_replica = "add-replica";
    agent_trouble = "agent-trouble";
    backup_and_restore = "backup-and-restore";
    clock_skew = "clock-skew";
    damaged_replica = "damaged-replica";
    disaster_recovery = "disaster-recovery";
    failed_decision = "failed-decision";
    diverged_replica = "diverged-replica";
    full_disk = "full-disk";
    leader_lost = "leader-lost";
    log_and_archive = "log-and-archive";
    monitoring = "monitoring";
    network_loss = "network-loss";
    notifications_behind = "notifications-behind";
    partition = "partition";
    paused_host = "paused-host";
    power_cut = "power-cut";
    preferred_region = "preferred-region";
    region_lost = "region-lost";
    remove_replica = "remove-replica";
    replace_dead_replica = "replace-dead-replica";
    rolling_upgrade = "rolling-upgrade";
    rotate_certificates = "rotate-certificates";
    run_a_drill = "run-a-drill";
    slow_disk = "slow-disk";
    stolen_certificate = "stolen-certificate";
    three_to_five = "three-to-five";
    transfer_leadership = "transfer-leadership";
    waiting_jobs = "waiting-jobs";
}

#[test]
fn a_page_is_read_as_it_is_written() {
    let text = "<!-- test replicas=3 spares=1 -->\n```sh step exit=5\nmuster x\n```\n```expect\none\ntwo\n```\n\
                <!-- fault kill 3 -->\n   ```sh start\n   muster server --config $CONFIG_4 --join\n   ```\n";
    let page = parse(text);
    assert_eq!((page.setup.replicas, page.setup.spares), (3, 1));
    let kinds: Vec<_> = page.blocks.iter().map(|block| (block.kind, block.exit)).collect();
    assert_eq!(kinds, [(Kind::Step, 5), (Kind::Fault, 0), (Kind::Start, 0)]);
    assert_eq!(page.blocks[0].expected, ["one", "two"]);
    assert_eq!(page.blocks[2].text, "muster server --config $CONFIG_4 --join");
}
