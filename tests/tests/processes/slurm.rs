//! A real Slurm cluster as capacity of a real Muster cluster: placed by one, started by the other.

use muster_client::Client;
use muster_example::intervals;
use muster_wire::v1::{self, JobPhase};
use nix::sys::signal::Signal;
use std::path::Path;
use tokio::process::Child;

use crate::anywhere;
use crate::support::{
    Cluster, eventually, heavy, is_finished, job, muster, say, signal, spawn, submit, wait_for_job, work,
};
use lab::{Lab, Shape, start_or_skip};

#[path = "../../../crates/agent/tests/support/lab.rs"]
mod lab;

fn is_running(job: &v1::Job) -> bool {
    job.phase() == JobPhase::Running
}

/// Lays out an agent for the cluster of the lab.
fn lay_out(cluster: &Cluster, lab: &Lab, home: &Path) {
    std::fs::create_dir_all(home.join("runners")).expect("the home is ours");
    let text = format!(
        "state_dir = {:?}\nendpoints = {:?}\n\n[slurm]\nname = \"lab\"\nregion = \"region-1\"\ncluster = \"lab\"\n\
         listen = \"127.0.0.1:{}\"\npoll_interval = \"300ms\"\nrunner_directory = {:?}\n\
         environment = {{ SLURM_CONF = {:?} }}\n",
        home.join("state"),
        cluster.shown_endpoints(),
        lab::free_port(),
        home.join("runners"),
        lab.conf(),
    );
    std::fs::write(home.join("agent.toml"), text).expect("the home is ours");
}

fn start(home: &Path) -> Child {
    let config = home.join("agent.toml");
    spawn(home, &["agent", "--config", config.to_str().expect("a temporary path is text")])
}

async fn nodes_up(client: &Client, count: usize) -> Vec<v1::Node> {
    eventually("the nodes of Slurm are not up", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let own = nodes.into_iter().filter(|node| {
            let name = node.description.as_ref().map_or("", |d| d.name.as_str());
            name.starts_with("lab.") && node.status() == v1::NodeStatus::Up
        });
        let own: Vec<v1::Node> = own.collect();
        (own.len() == count).then_some(own)
    })
    .await
}

async fn nothing_left(lab: &Lab) {
    eventually("Slurm still has jobs of ours", || async {
        lab.jobs().iter().all(|job| !job.contains("muster-")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_runs_on_slurm_as_on_hosts() {
    let Some(lab) = start_or_skip(Shape::default()) else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, home) = (cluster.client(), cluster.scratch.path().join("agent-slurm"));
    lay_out(&cluster, &lab, &home);
    let config = home.join("agent.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, anywhere::lay_out(cluster.scratch.path()) + &text).unwrap();
    let agent = start(&home);
    nodes_up(&client, 2).await;
    anywhere::run(&cluster, "slurm", |text| text).await;

    // Next to a worker, over a connection that its runner has opened.
    let id = submit(&client, job("holds", &["/bin/sh", "-c", "sleep 600"])).await;
    wait_for_job(&client, &id, is_running).await;
    anywhere::runs_next_to(&cluster, &id).await;
    cluster.operated(&["cancel", &id]).await;
    wait_for_job(&client, &id, is_finished).await;
    nothing_left(&lab).await;
    signal(&agent, Signal::SIGTERM);
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slurm_cluster_runs_what_is_placed_on_it() {
    let Some(lab) = start_or_skip(Shape::default()) else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let home = cluster.scratch.path().join("agent-slurm");
    lay_out(&cluster, &lab, &home);
    let evidence = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&evidence).unwrap();
    let mut agent = start(&home);
    let nodes = nodes_up(&client, 2).await;
    for node in &nodes {
        let description = node.description.as_ref().unwrap();
        let accelerators = description.accelerators.as_ref().unwrap();
        assert_eq!((accelerators.r#type.as_str(), accelerators.count), ("h100", 4), "{description:?}");
        assert_eq!(description.labels.get("slurm-partition.main").map(String::as_str), Some("true"));
    }

    // What somebody else holds is not free.
    let foreign = lab.foreign(&["-w", "n1", "--gres=gpu:h100:3", "-c", "8"]);
    let free_on = |name: &'static str, wanted: u32| {
        let client = &client;
        eventually("what others hold is not seen", move || async move {
            let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
            let found = nodes.into_iter().find(|n| n.description.as_ref().is_some_and(|d| d.name == name))?;
            (found.free_devices == wanted).then_some(found)
        })
    };
    let seen = free_on("lab.n1", 1).await;
    let load = seen.foreign_load.expect("the reason is reported");
    assert_eq!((load.devices.len(), load.cpu_milli, load.closed), (3, 8_000, false), "{load:?}");
    let concurrent = submit(&client, work("concurrent", &evidence, 200, 0, (1, 4))).await;
    let ended = wait_for_job(&client, &concurrent, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    lab.slurm("scancel", &[&foreign]);
    lab.slurm("scontrol", &["update", "NodeName=n2", "State=DRAIN", "Reason=test"]);
    eventually("a drained node is not closed", || async {
        let nodes = client.list_nodes(v1::ListNodesRequest::default()).await.ok()?.nodes;
        let mut own =
            nodes.into_iter().filter(|n| n.description.as_ref().is_some_and(|d| d.name == "lab.n2"));
        own.any(|node| node.foreign_load.is_some_and(|load| load.closed)).then_some(())
    })
    .await;
    lab.slurm("scontrol", &["update", "NodeName=n2", "State=RESUME"]);
    free_on("lab.n1", 4).await;

    // A gang over both nodes, and a job whose agent is killed meanwhile.
    let gang = submit(&client, work("gang", &evidence, 1_000, 0, (2, 4))).await;
    let ended = wait_for_job(&client, &gang, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");
    let id = submit(&client, work("goes-on", &evidence, 3_000, 0, (1, 1))).await;
    wait_for_job(&client, &id, is_running).await;
    signal(&agent, Signal::SIGKILL);
    agent.wait().await.unwrap();
    agent = start(&home);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");

    // A worker says that its work is saved, also while the agent is away: the answer comes when it is back. The next
    // attempt goes on from there.
    let checkpoints = cluster.scratch.path().join("checkpoints");
    std::fs::create_dir(&checkpoints).unwrap();
    let text = r#""$PROGRAM" ctl step --number 1 --duration-ms 5 || exit 2
        if [ "$MUSTER_RESUME" = 1 ]; then test "$MUSTER_CHECKPOINT_ATTEMPT" = 1; exit; fi
        touch "$AT/begun"; until test -e "$AT/away"; do sleep 0.05; done
        MUSTER_FENCING_TOKEN=1.1 "$PROGRAM" ctl checkpoint-committed && exit 5
        "$PROGRAM" ctl checkpoint-committed --step 7 && exit 9; exit 3"#;
    let mut wanted = work("saves", &evidence, 0, 0, (1, 1));
    let group = &mut wanted.spec_mut().groups[0];
    *group.command_mut() = ["/bin/sh", "-c", text].map(str::to_owned).to_vec();
    group.set_variable("PROGRAM", muster().to_str().expect("it is text"));
    group.set_variable("AT", checkpoints.to_str().expect("it is text"));
    wanted.spec_mut().checkpoint_mut().directory = checkpoints.to_str().expect("it is text").to_owned();
    wanted.spec_mut().retry_mut().max_failures = 1;
    let id = submit(&client, wanted).await;
    eventually("the worker has not begun", || async { checkpoints.join("begun").exists().then_some(()) })
        .await;
    signal(&agent, Signal::SIGKILL);
    agent.wait().await.unwrap();
    std::fs::write(checkpoints.join("away"), "").unwrap();
    agent = start(&home);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 1),
        "code 9 says saved, 3 that it was refused: {ended:#?}"
    );

    // A code is the job's own, and a cancellation reaches into Slurm.
    let id = submit(&client, work("fails", &evidence, 50, 3, (1, 2))).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Failed, "{ended:#?}");
    assert!(ended.status().message.contains("exit code 3"), "{}", ended.status().message);
    let id = submit(&client, work("cancelled", &evidence, 600_000, 0, (1, 1))).await;
    wait_for_job(&client, &id, is_running).await;
    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");
    nothing_left(&lab).await;

    // The agent stands still for longer than its lease: what runs in Slurm stops by itself before
    // anything is started again.
    let id = submit(&client, work("again", &evidence, 5_000, 0, (1, 1))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    signal(&agent, Signal::SIGSTOP);
    wait_for_job(&client, &id, |job| !is_running(job)).await;
    eventually("the worker goes on without a lease", || async {
        let all = intervals::read(&evidence).ok()?;
        all.iter().any(|interval| interval.job == id && interval.stopped).then_some(())
    })
    .await;
    signal(&agent, Signal::SIGCONT);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt),
        (JobPhase::Succeeded, first.status().attempt + 1),
        "{ended:#?}"
    );
    nothing_left(&lab).await;

    let report = intervals::check(&intervals::read(&evidence).unwrap());
    assert!(report.overlaps.is_empty(), "{report}");
    signal(&agent, Signal::SIGTERM);
    agent.wait().await.unwrap();
    cluster.assert_digests_agree().await;
    say(&format!("jobs in Slurm run once: {report}"));
}
