//! A real Kubernetes as capacity of a real Muster cluster: placed by one, bound and run by the other.
//!
//! They run where `MUSTER_TEST_KUBECONFIG` names a cluster on this machine (`.ci/kubernetes` starts one with two nodes), and say
//! that they are skipped otherwise. Workers keep a connection to the test for as long as they run, so that
//! their beginnings and ends are seen and not told.

mod cut_off;
mod faults;
mod inside;
mod lab;
mod mounts;
mod same;
mod scale;
mod standstill;

use muster_client::Client;
use muster_wire::v1::{self, FailureClass, JobPhase};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{Cluster, eventually, heavy, is_finished, job, output, say, submit, wait_for_job};
use lab::{DEVICES, LONG, Lab, PodAgent, Stopped, Witness, holds_for, in_muster, nodes_up};

/// Until it is told to stop.
const HOLD: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A job of one worker, with memory in which a container can be started.
fn plain(name: &str, command: &[&str]) -> v1::Job {
    let mut wanted = job(name, command);
    wanted.spec_mut().groups[0].resources_mut().memory_bytes = 64 << 20;
    wanted
}

fn is_running(job: &v1::Job) -> bool {
    job.phase() == JobPhase::Running
}

async fn free_on(client: &Client, node: &str, wanted: u32) -> v1::Node {
    let name = in_muster(node);
    eventually("what others hold is not seen", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let found = nodes.into_iter().find(|n| n.description.as_ref().is_some_and(|d| d.name == name))?;
        (found.free_devices == wanted).then_some(found)
    })
    .await
}

fn failure_of(job: &v1::Job) -> Option<FailureClass> {
    let history = job.status().history.as_ref()?;
    Some(history.last_failure.as_ref()?.failure_class())
}

#[track_caller]
fn assert_first_attempt(ended: &v1::Job) {
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gangs_run_as_pods_to_their_ends() {
    let Some(lab) = Lab::open_or_skip("pods of gangs").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let agent = PodAgent::start_for(&cluster, &client, &lab).await;
    for node in nodes_up(&client, lab.nodes.len()).await {
        let description = node.description.as_ref().expect("a node is described");
        let accelerators = description.accelerators.as_ref().expect("it has devices");
        assert_eq!((accelerators.r#type.as_str(), accelerators.count), ("h100", DEVICES), "{description:?}");
    }

    // More workers than one node holds, all of which run at one time.
    let workers = 2 * lab.nodes.len() as u32;
    let submitted = Instant::now();
    let id = submit(&client, witness.job("gang", "sleep 3", (workers, DEVICES / 2))).await;
    witness.living(&id, workers as usize).await;
    say(&format!(
        "a gang of {workers} workers runs {} ms after its submission",
        submitted.elapsed().as_millis()
    ));
    let pods = lab.pods().await.expect("pods can be listed");
    let on: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    assert_eq!((pods.len(), on.len()), (lab.nodes.len(), lab.nodes.len()), "{on:?}");
    assert_first_attempt(&wait_for_job(&client, &id, is_finished).await);

    // Codes, output, and what ends otherwise.
    let id = submit(&client, witness.job("fails", "exit 3", (1, 1))).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), failure_of(&ended)), (JobPhase::Failed, Some(FailureClass::Application)));
    assert!(ended.status().message.contains("exit code 3"), "{}", ended.status().message);
    let id =
        submit(&client, plain("speaks", &["/bin/sh", "-c", "echo rank $MUSTER_RANK on $MUSTER_NODE"])).await;
    wait_for_job(&client, &id, is_finished).await;
    let said = output(&client, &id).await;
    assert!(said.starts_with("rank 0 on pods."), "{said:?}");
    let id = submit(&client, plain("missing", &["/no/such/program"])).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(failure_of(&ended), Some(FailureClass::LaunchFailed), "{ended:#?}");
    let mut greedy = witness.job("greedy", "tail /dev/zero", (1, 1));
    greedy.spec_mut().retry_mut().max_failures = 0;
    let id = submit(&client, greedy).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(failure_of(&ended), Some(FailureClass::OutOfMemory), "{ended:#?}");

    lab.nothing_left().await;
    witness.assert_once();
    agent.signal(Signal::SIGTERM);
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_cancelled_job_end_within_its_grace() {
    let Some(lab) = Lab::open_or_skip("cancelled pods").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let _agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let grace = Duration::from_secs(4);
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    for (name, script, least) in [("polite", HOLD, Duration::ZERO), ("stubborn", stubborn, grace)] {
        let mut wanted = witness.job(name, script, (2, DEVICES));
        wanted.spec_mut().stop_grace = Some(muster_wire::time::duration(grace.as_millis() as u64));
        let id = submit(&client, wanted).await;
        witness.living(&id, 2).await;
        wait_for_job(&client, &id, is_running).await;
        let asked = Instant::now();
        client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
        let took = witness.all_ended(&id).await.duration_since(asked);
        let ended = wait_for_job(&client, &id, is_finished).await;
        assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
        // The grace begins when the agent hears of it.
        assert!(took >= least && took < grace + Duration::from_secs(3), "{name}: {took:?}");
        lab.nothing_left().await;
        say(&format!(
            "{name} workers end {} ms after the cancellation, their pods are gone after {} ms",
            took.as_millis(),
            asked.elapsed().as_millis()
        ));
    }
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_finds_its_pods_again() {
    let Some(lab) = Lab::open_or_skip("pods of an agent that is killed").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let mut agent = PodAgent::start_for(&cluster, &client, &lab).await;

    // While it makes pods, a moment later each time.
    let mut all = Vec::new();
    for turn in 0..4 {
        let id = submit(&client, witness.job("begun", "sleep 2", (1, 1))).await;
        tokio::time::sleep(Duration::from_millis(150 * turn)).await;
        agent.kill().await;
        agent.start();
        all.push(id);
    }
    for id in &all {
        let ended = wait_for_job(&client, id, is_finished).await;
        assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    }

    // While workers run, and while one ends.
    let long = submit(&client, witness.job("long", "sleep 8", (1, 1))).await;
    let short = submit(&client, witness.job("short", "sleep 2", (1, 1))).await;
    witness.living(&long, 1).await;
    witness.living(&short, 1).await;
    wait_for_job(&client, &long, is_running).await;
    wait_for_job(&client, &short, is_running).await;
    agent.kill().await;
    agent.start();
    for id in [&long, &short] {
        assert_first_attempt(&wait_for_job(&client, id, is_finished).await);
    }

    // It stands still for longer than its lease: what runs in pods stops by itself before anything is started again.
    let id = submit(&client, witness.job("again", "sleep 6", (1, 1))).await;
    witness.living(&id, 1).await;
    wait_for_job(&client, &id, is_running).await;
    agent.signal(Signal::SIGSTOP);
    witness.all_ended(&id).await;
    wait_for_job(&client, &id, |job| !is_running(job)).await;
    agent.signal(Signal::SIGCONT);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 2), "{ended:#?}");

    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_runs_changes_while_the_api_server_is_away() {
    const AWAY: Duration = Duration::from_secs(60);
    let Some(lab) = Lab::open_or_skip("an API server that is away").await else { return };
    let Some(server) = lab.part("apiserver") else {
        say("skipped: an API server that is away (it was not started by .ci/kubernetes)");
        return;
    };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let _agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let held = submit(&client, witness.job("held", HOLD, (1, 1))).await;
    let ends = submit(&client, witness.job("ends", "sleep 10", (1, 1))).await;
    for id in [&held, &ends] {
        witness.living(id, 1).await;
        wait_for_job(&client, id, is_running).await;
    }
    let stopped = Stopped::stop(server);
    let waits = submit(&client, witness.job("waits", "sleep 1", (1, 1))).await;
    let cancelled = submit(&client, witness.job("cancelled", HOLD, (1, 1))).await;
    holds_for(AWAY / 2, "a worker ended", || {
        witness.intervals(&held).iter().all(|interval| interval.ended.is_none())
    })
    .await;
    client
        .cancel_job(v1::CancelJobRequest { job_id: cancelled.clone(), ..Default::default() })
        .await
        .unwrap();
    holds_for(AWAY / 2, "a worker ended", || {
        witness.intervals(&held).iter().all(|interval| interval.ended.is_none())
    })
    .await;
    assert_eq!(witness.intervals(&waits).len(), 0, "nobody could have started it");
    drop(stopped);

    assert_first_attempt(&wait_for_job(&client, &ends, is_finished).await);
    let ended = wait_for_job(&client, &waits, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let ended = wait_for_job(&client, &cancelled, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    let still = wait_for_job(&client, &held, |_| true).await;
    assert_eq!((still.phase(), still.status().attempt), (JobPhase::Running, 1), "{still:#?}");
    client.cancel_job(v1::CancelJobRequest { job_id: held.clone(), ..Default::default() }).await.unwrap();
    wait_for_job(&client, &held, is_finished).await;
    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_outlive_the_leader_that_placed_them() {
    let Some(lab) = Lab::open_or_skip("pods and a leader that is killed").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let _agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let workers = lab.nodes.len() as u32;
    let id = submit(&client, witness.job("gang", "sleep 10", (workers, DEVICES))).await;
    witness.living(&id, workers as usize).await;
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    let next = submit(&client, witness.job("next", "sleep 1", (workers, DEVICES))).await;
    cluster.start_replica(leader);
    for id in [&id, &next] {
        assert_first_attempt(&wait_for_job(&client, id, is_finished).await);
    }
    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_loses_power_fails_its_jobs_and_comes_back() {
    let Some(lab) = Lab::open_or_skip("a node that loses power").await else { return };
    if lab.part("node-1").is_none() {
        say("skipped: a node that loses power (it was not started by .ci/kubernetes)");
        return;
    }
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let _agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let id = submit(&client, witness.job("held", "sleep 10", (1, DEVICES))).await;
    witness.living(&id, 1).await;
    wait_for_job(&client, &id, is_running).await;
    let pods = lab.pods().await.expect("pods can be listed");
    let node = pods[0]["spec"]["nodeName"].as_str().expect("the pod is bound");
    lab.restart(node).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 2), "{ended:#?}");
    let failure = failure_of(&ended);
    assert!(
        matches!(failure, Some(FailureClass::BackendLost | FailureClass::NodeFault | FailureClass::Lost)),
        "{failure:?}: {ended:#?}"
    );
    // The node takes what fills it.
    let workers = lab.nodes.len() as u32;
    let id = submit(&client, witness.job("whole", "sleep 1", (workers, DEVICES))).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_for_the_same_nodes_is_refused() {
    let Some(lab) = Lab::open_or_skip("two agents of one cluster").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let id = submit(&client, witness.job("held", "sleep 8", (1, DEVICES))).await;
    witness.living(&id, 1).await;
    let mut second =
        PodAgent::lay_out(&cluster, &lab, "agent-second", "muster.test/pods=true", lab.kubeconfig());
    second.start();
    let why = eventually("the second agent is not told that it may not", || async {
        let log = second.log();
        let line = log.lines().find(|line| line.contains("NODE_HELD") || line.contains("another agent"))?;
        Some(line.to_owned())
    })
    .await;
    say(&format!("the second agent says: {why}"));
    let next = submit(&client, witness.job("next", "sleep 1", (1, DEVICES))).await;
    for id in [&id, &next] {
        assert_first_attempt(&wait_for_job(&client, id, is_finished).await);
    }
    assert!(!agent.log().contains("NODE_HELD"), "the first agent goes on as before");
    say(&format!("the second agent {}", if second.has_ended() { "has ended" } else { "goes on trying" }));
    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_pods_are_bound_to_sixteen_nodes() {
    const NODES: usize = 16;
    const PODS: usize = 64;
    let Some(lab) = Lab::open_or_skip("many pods").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let names: Vec<String> = (0..NODES).map(|at| format!("declared-{at}")).collect();
    lab.declare(&names).await;
    let mut agent = PodAgent::lay_out(&cluster, &lab, "agent", &lab.declared(), lab.kubeconfig());
    agent.start();
    nodes_up(&client, NODES).await;

    let devices = DEVICES / (PODS / NODES) as u32;
    let (begun, mut all) = (Instant::now(), Vec::new());
    for _ in 0..PODS {
        let mut wanted = job("many", &["/bin/true"]);
        wanted.spec_mut().groups[0].resources_mut().accelerators =
            Some(crate::support::accelerators("h100", devices));
        all.push(submit(&client, wanted).await);
    }
    let submitted = begun.elapsed();
    let pods = eventually("pods are not there, or not bound", || async {
        let pods = lab.pods().await?;
        let bound = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
        (bound == PODS).then_some(pods)
    })
    .await;
    say(&format!(
        "{PODS} jobs are submitted in {} ms, and their pods are bound to {NODES} nodes after {} ms, to be at most 3000 ms",
        submitted.as_millis(),
        begun.elapsed().as_millis()
    ));
    let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), PODS, "{names:?}");
    for node in nodes_up(&client, NODES).await {
        let name = &node.description.as_ref().expect("a node is described").name;
        let here =
            pods.iter().filter(|pod| pod["spec"]["nodeName"].as_str().is_some_and(|n| in_muster(n) == *name));
        assert_eq!((here.count(), node.free_devices), (PODS / NODES, 0), "{name}");
    }
    // Each is where it was planned, for the scheduler had no choice.
    for pod in &pods {
        let planned = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
        assert_eq!(&pod["spec"]["nodeName"], planned, "{}", pod["metadata"]["name"]);
    }

    // Nobody begins them, and nobody ends them either: there is no kubelet. That is played here.
    for id in &all {
        let request = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
        client.cancel_job(request).await.expect("a job can be cancelled");
    }
    let end = tokio::time::Instant::now() + LONG;
    loop {
        let pods = lab.pods().await.unwrap_or_default();
        let ending = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_string());
        let ending: Vec<&str> = ending.filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        if pods.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{} pods are left, {} end", pods.len(), ending.len());
        if !ending.is_empty() {
            lab.remove_at_once(&ending).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for id in &all {
        let ended = wait_for_job(&client, id, is_finished).await;
        assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    }
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_pods_of_others_hold_is_not_free() {
    let Some(lab) = Lab::open_or_skip("pods of others").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let _agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let node = lab.nodes[0].as_str();
    lab.post(&lab.path("pods"), &lab.foreign("foreign", node, 3)).await;
    let seen = free_on(&client, node, DEVICES - 3).await;
    let load = seen.foreign_load.expect("the reason is reported");
    assert_eq!((load.devices.len(), load.closed), (3, false), "{load:?}");
    assert!(load.cpu_milli >= 500, "{load:?}");

    // What fits next to it runs, and what does not waits until it is gone.
    let workers = lab.nodes.len() as u32;
    let next_to_it = submit(&client, witness.job("next-to-it", "sleep 1", (workers, DEVICES - 3))).await;
    assert_first_attempt(&wait_for_job(&client, &next_to_it, is_finished).await);
    let whole = submit(&client, witness.job("whole", "sleep 1", (workers, DEVICES))).await;
    let waits = || witness.intervals(&whole).is_empty();
    holds_for(Duration::from_secs(3), "it was started next to what it has no place for", waits).await;
    lab.remove_at_once(&["foreign"]).await;
    assert_first_attempt(&wait_for_job(&client, &whole, is_finished).await);

    // A node that is closed to pods is closed to jobs.
    lab.kubectl(&["cordon", node], "").await;
    eventually("a node that is cordoned is not closed", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let name = in_muster(node);
        let mut own = nodes.into_iter().filter(|n| n.description.as_ref().is_some_and(|d| d.name == name));
        own.any(|node| node.foreign_load.is_some_and(|load| load.closed)).then_some(())
    })
    .await;
    lab.kubectl(&["uncordon", node], "").await;
    free_on(&client, node, DEVICES).await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_nobody_asked_for_are_deleted() {
    let Some(lab) = Lab::open_or_skip("pods of earlier tokens").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, witness) = (cluster.client(), Witness::start().await);
    let mut agent = PodAgent::start_for(&cluster, &client, &lab).await;
    let id = submit(&client, witness.job("held", HOLD, (1, 1))).await;
    witness.living(&id, 1).await;
    let pods = lab.pods().await.expect("pods can be listed");
    let [pod] = pods.as_slice() else { panic!("one pod: {pods:#?}") };

    // One as an agent before it could have left it, of an attempt before this one; and one of another agent.
    let labels = &pod["metadata"]["labels"];
    let older = |name: &str, agent: &Value| {
        let mut stray = lab.foreign(name, &lab.nodes[0], 1);
        stray["metadata"]["labels"] = labels.clone();
        stray["metadata"]["labels"]["muster.dev/agent"] = agent.clone();
        stray["metadata"]["labels"]["muster.dev/token"] = "1.1".into();
        stray
    };
    let name = pod["metadata"]["name"].as_str().expect("a pod has a name");
    let token = labels["muster.dev/token"].as_str().expect("a token is text");
    let stray = name.replace(&token.replace('.', "-"), "1-1");
    assert_ne!(stray, name);
    lab.post(&lab.path("pods"), &older(&stray, &labels["muster.dev/agent"])).await;
    lab.post(&lab.path("pods"), &older("of-another", &Value::from("0".repeat(32)))).await;
    let gone = || async {
        let pods = lab.pods().await?;
        let names: Vec<&str> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        (!names.contains(&stray.as_str()) && names.contains(&name) && names.contains(&"of-another"))
            .then_some(())
    };
    eventually("a pod of an earlier token is left", gone).await;

    // The same of one that is there when the agent starts.
    agent.kill().await;
    lab.post(&lab.path("pods"), &older(&stray, &labels["muster.dev/agent"])).await;
    agent.start();
    eventually("a pod of an earlier token is left by an agent that starts", gone).await;
    assert_eq!(witness.intervals(&id).len(), 1);

    // Somebody deletes a pod that was asked for.
    let delete = ["delete", "pod", name, "--namespace", lab.namespace(), "--grace-period=1", "--wait=false"];
    lab.kubectl(&delete, "").await;
    eventually("the job is not placed again", || async { (witness.intervals(&id).len() == 2).then_some(()) })
        .await;
    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    lab.remove_at_once(&["of-another"]).await;
    lab.nothing_left().await;
    witness.assert_once();
    cluster.assert_digests_agree().await;
}
