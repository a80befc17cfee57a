//! What a job has on hosts, it has in pods: secrets, files of a directory, files that come back, commands and ports.

use muster_types::RefusalCode;
use nix::sys::signal::Signal;

use super::lab::{Lab, PodAgent};
use super::{HOLD, is_running, plain};
use crate::support::{Cluster, heavy, is_finished, submit, wait_for_job};
use crate::{anywhere, ports};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_runs_in_pods_as_on_hosts() {
    let Some(lab) = Lab::open_or_skip("secrets and files of pods").await else { return };
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (client, scratch) = (cluster.client(), cluster.scratch.path().to_owned());
    let settings = anywhere::lay_out(&scratch);
    let agent = PodAgent::start_with(&cluster, &client, &lab, &settings).await;
    anywhere::run(&cluster, "kubernetes", |text| text).await;
    let image = lab.image().to_owned();
    anywhere::run(&cluster, "container", |text| text.replace("registry.example.org/team/train:1", &image))
        .await;

    // Files of a directory, more than one piece of them.
    let (project, store) = (scratch.join("project"), anywhere::store_in(&scratch));
    std::fs::create_dir_all(project.join("data")).expect("a directory");
    let noise: Vec<u8> =
        (0..1_000_000_u32).map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(project.join("data/noise"), &noise).expect("a file");
    std::fs::write(project.join("train.sh"), "wc -c < data/noise\nsha256sum < data/noise\n").expect("a file");
    let (from, store) = (project.to_str().expect("text"), store.to_str().expect("text"));
    let before = ["run", "--name", "shipped", "--cpu", "100m", "--memory", "64Mi", "--workdir", from];
    let ran =
        cluster.operated(&[&before[..], &["--store", store, "--", "/bin/sh", "train.sh"][..]].concat()).await;
    let mut here = tokio::process::Command::new("sh");
    here.args(["-c", "wc -c < data/noise; sha256sum < data/noise"]).current_dir(&project);
    let here = here.output().await.expect("a shell is here");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&ran), words(&String::from_utf8_lossy(&here.stdout)));

    // A command, and a port on which nobody listens: both are looked for by the runner in the pod.
    let id = submit(&client, plain("holds", &["/bin/sh", "-c", HOLD])).await;
    wait_for_job(&client, &id, is_running).await;
    anywhere::runs_next_to(&cluster, &id).await;
    let (code, why) = ports::refusal(&client, ports::start(&id, 9)).await;
    assert_eq!(code, Some(RefusalCode::ExecUnavailable));
    assert!(why.contains("no process of the worker listens on port 9"), "{why}");
    cluster.operated(&["cancel", &id]).await;
    wait_for_job(&client, &id, is_finished).await;

    lab.nothing_left().await;
    agent.signal(Signal::SIGTERM);
    cluster.assert_digests_agree().await;
}
