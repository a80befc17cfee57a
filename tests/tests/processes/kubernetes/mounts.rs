//! What pods show of their node: what the agent's operator allows, and nothing that a link in it leads to.

use muster_wire::v1::{self, FailureClass, JobPhase};
use std::path::Path;

use super::lab::{Lab, PodAgent, shown_in};
use super::{failure_of, plain};
use crate::support::{Cluster, eventually, heavy, is_finished, output, submit, wait_for_job};

/// A job that shows a path of its node and prints a file in it.
fn seeing(lab: &Lab, name: &str, source: &Path) -> v1::Job {
    let mut wanted = plain(name, &[]);
    let mount = v1::ContainerMount {
        source: source.display().to_string(),
        target: "/seen".to_owned(),
        read_only: true,
    };
    let container = v1::ContainerRuntime {
        image: lab.image().to_owned(),
        command: ["/bin/cat", "/seen/file"].map(str::to_owned).into(),
        mounts: vec![mount],
        ..Default::default()
    };
    wanted.spec_mut().groups[0].runtime = Some(v1::task_group::Runtime::Container(container));
    wanted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_show_what_is_allowed_and_follow_no_link_out_of_it() {
    let Some(lab) = Lab::open_or_skip("what pods show of their node").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let (shown, hidden) = (shown_in(cluster.scratch.path()), cluster.scratch.path().join("hidden"));
    for directory in [shown.join("part"), hidden.clone()] {
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("file"), "of the node\n").expect("a file");
    }
    std::os::unix::fs::symlink(&hidden, shown.join("link")).expect("a link");
    let agent = PodAgent::start_for(&cluster, &client, &lab).await;

    let id = submit(&client, seeing(&lab, "allowed", &shown.join("part"))).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    assert_eq!(output(&client, &id).await, "of the node\n");

    let id = submit(&client, seeing(&lab, "hidden", &hidden)).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(failure_of(&ended), Some(FailureClass::LaunchFailed), "{ended:#?}");
    let why = &ended.status().message;
    assert!(why.contains("kubernetes.host_paths"), "{why}");

    // The kubelet finds the link, and makes no container.
    let id = submit(&client, seeing(&lab, "link", &shown.join("link"))).await;
    eventually("nothing keeps the container from starting", || async {
        let pods = lab.pods().await?;
        let waiting = &pods.first()?["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"].as_str()?.starts_with("CreateContainer").then_some(())
    })
    .await;
    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{ended:#?}");

    lab.nothing_left().await;
    drop(agent);
    cluster.assert_digests_agree().await;
}
