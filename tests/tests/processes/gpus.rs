//! What becomes of work when its GPUs fail: replicas, agents and the driver's library, each for real but the devices,
//! which a library with NVML's names plays.

use muster_client::Client;
use muster_types::health::HealthAction;
use muster_wire::closed::word;
use muster_wire::v1::{self, JobPhase};
use std::path::{Path, PathBuf};

use crate::support::{Agents, Cluster, accelerators, eventually, heavy, is_finished, job, wait_for_job};

/// Of a driver that cannot say what it asks for: the table alone decides.
const GOOD: &str = "gpu name=NVIDIA_H100_80GB_HBM3 nvlink";
const LOST: &str = "gpu name=NVIDIA_H100_80GB_HBM3 lost";

/// The library of one host: where it is, and what it plays.
struct Library {
    path: PathBuf,
    xids: String,
    sequence: u32,
}

impl Library {
    /// It is next to the tests, as cargo has built it.
    fn copy_to(directory: &Path) -> Library {
        let own = std::env::current_exe().expect("a test knows its program");
        let built = own.parent().expect("a program is in a directory").join("libmuster_fake_nvml.so");
        std::fs::create_dir_all(directory).expect("a directory can be made");
        let path = directory.join("libnvidia-ml.so");
        std::fs::copy(&built, &path).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        Library { path, xids: String::new(), sequence: 0 }
    }

    /// Put in place at once: nobody reads half a script.
    fn play(&self, lines: &[&str]) {
        let text = format!("driver 570.86.15\n{}\n{}", lines.join("\n"), self.xids);
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).expect("writing a script");
        std::fs::rename(&new, self.path.with_extension("script")).expect("putting a script in place");
    }

    fn xid(&mut self, device: u32, code: u32) {
        self.sequence += 1;
        self.xids.push_str(&format!("xid {} {device} {code}\n", self.sequence));
    }

    /// The agent's settings, with a repair that says what it was asked for.
    fn settings(&self, repaired: &Path) -> String {
        let script = format!(
            "echo $MUSTER_REPAIR_ACTION $MUSTER_REPAIR_DEVICES >> {}",
            repaired.to_str().expect("the test's directory is text")
        );
        format!(
            "health = {{ nvml = {{ file = {:?} }}, kernel_log = \"off\", poll_interval = \"20ms\", hang = \"1s500ms\", \
             slowdown_window = \"200ms\", repair_command = [\"/bin/sh\", \"-c\", {script:?}] }}\n",
            self.path
        )
    }
}

async fn node(client: &Client, name: &str) -> v1::Node {
    let request = v1::GetNodeRequest { node: name.to_owned(), read: None };
    client.get_node(request).await.expect("a node that is there").node.expect("it is described")
}

fn wrong(node: &v1::Node) -> Vec<String> {
    let conditions = node.restriction.iter().flat_map(|restriction| &restriction.conditions);
    let place = |device: Option<u32>| device.map_or(String::new(), |device| format!("@{device}"));
    let action = |number| word::<HealthAction>(number);
    conditions.map(|c| format!("{}{}={}", c.finding, place(c.device), action(c.action))).collect()
}

/// Waits until exactly this is known to be wrong with a node.
async fn has(client: &Client, name: &str, conditions: &[&str]) -> v1::Node {
    eventually(&format!("{name} has not become {conditions:?}"), || async {
        let node = node(client, name).await;
        (wrong(&node) == conditions).then_some(node)
    })
    .await
}

/// A gang of one worker with `devices`, whose first attempt stays until it is told to stop, and the second succeeds.
fn stays(name: &str, devices: u32, evidence: &Path) -> v1::Job {
    let said = evidence.join(name);
    let text = format!(
        "echo $MUSTER_ATTEMPT $MUSTER_NODE >> {said:?}; [ $MUSTER_ATTEMPT = 1 ] && exec sleep 600; exit 0"
    );
    let mut wanted = job(name, &["/bin/sh", "-c", &text]);
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", devices));
    wanted
}

async fn submit(client: &Client, wanted: v1::Job) -> String {
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0)
}

async fn runs(client: &Client, id: &str) -> v1::Job {
    wait_for_job(client, id, |job| job.phase() == JobPhase::Running).await
}

/// Where each attempt of a job ran, as its worker wrote it down.
fn places(evidence: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(evidence.join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_leaves_failing_gpus_and_the_host_comes_back_repaired() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let evidence = cluster.scratch.path().join("evidence");
    std::fs::create_dir(&evidence).unwrap();
    let mut library = Library::copy_to(&cluster.scratch.path().join("nvml-g1"));
    let good = [GOOD; 4];
    library.play(&good);
    let repaired = evidence.join("repaired");
    let endpoints = cluster.shown_endpoints();
    let settings = library.settings(&repaired);
    let mut sick =
        Agents::start_with(&cluster, &["g1"], |_| endpoints.clone(), |_, _| settings.clone()).await;
    let id = submit(&client, stays("moves", 4, &evidence)).await;
    runs(&client, &id).await;
    let _other = Agents::start(&cluster, &["g2"]).await;

    // A storm of what means nothing, and in it one that means a reset.
    for _ in 0..200 {
        library.xid(1, 43);
    }
    library.xid(2, 95);
    library.play(&good);
    let sick_node = has(&client, "g1", &["xid-95@2=reset-gpu"]).await;
    let restriction = sick_node.restriction.expect("something is wrong with it");
    assert!(restriction.recent.len() <= 8, "a storm is some lines: {:#?}", restriction.recent);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );
    assert_eq!(places(&evidence, "moves"), ["1 g1", "2 g2"]);

    // Repaired, by the agent's own command, and as good as before.
    cluster.operated(&["node", "repair", "g1"]).await;
    let back = has(&client, "g1", &[]).await;
    let restriction = back.restriction.unwrap_or_default();
    assert!(restriction.repair.is_none() && restriction.drain.is_none(), "{restriction:#?}");
    let asked = std::fs::read_to_string(&repaired).unwrap();
    assert!(asked.starts_with("reset-gpu") && asked.contains('2'), "{asked}");
    let pinned = |name, devices| {
        let mut wanted = stays(name, devices, &evidence);
        wanted
            .spec_mut()
            .node_selector
            .insert("host".to_owned(), v1::LabelValues { values: vec!["g1".to_owned()] });
        wanted
    };
    let stayed = submit(&client, pinned("stays", 2)).await;
    runs(&client, &stayed).await;
    eventually("the job does not run on the repaired host", || async {
        (places(&evidence, "stays") == ["1 g1"]).then_some(())
    })
    .await;

    // The library hangs: nothing new comes, what runs goes on, and so do the heartbeats, for longer than a lease.
    library.play(&[GOOD, GOOD, GOOD, GOOD, "hang"]);
    let hung = has(&client, "g1", &["monitor-hung=cordon"]).await;
    let free = submit(&client, job("elsewhere", &["/bin/sleep", "7"])).await;
    let ended = wait_for_job(&client, &free, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let still = node(&client, "g1").await;
    assert_eq!((still.status(), still.incarnation), (v1::NodeStatus::Up, hung.incarnation), "{still:#?}");
    let kept = client.get_job(v1::GetJobRequest { job_id: stayed.clone(), ..Default::default() }).await;
    let kept = kept.unwrap().job.unwrap();
    assert_eq!((kept.phase(), kept.status().attempt), (JobPhase::Running, 1), "{kept:#?}");
    library.play(&good);
    has(&client, "g1", &[]).await;

    // One falls off the bus: the host is to be rebooted, and all that runs there stops.
    library.xid(0, 79);
    library.play(&[LOST, GOOD, GOOD, GOOD]);
    has(&client, "g1", &["xid-79@0=reboot-node", "device-lost@0=reboot-node"]).await;
    wait_for_job(&client, &stayed, |job| job.phase() == JobPhase::Pending).await;
    library.xids.clear();
    library.play(&good);
    sick.crash("g1", "second").await;
    sick.start_agent("g1");
    sick.wait_status("g1", v1::NodeStatus::Up).await;
    has(&client, "g1", &[]).await;
    // It may go nowhere else, so it goes back there, and comes to its end.
    let ended = wait_for_job(&client, &stayed, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );
    assert_eq!(places(&evidence, "stays"), ["1 g1", "2 g1"]);
    drop(sick);
    cluster.assert_digests_agree().await;
}
