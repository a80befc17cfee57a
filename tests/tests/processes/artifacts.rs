//! Files of workers that come back: what was kept, what was not and why, also of a worker that is stopped.

use muster_wire::v1::{self, JobPhase};
use std::path::Path;

use crate::support::{Agents, Cluster, eventually, is_finished, job, submit, wait_for_job};

fn wanted(name: &str, script: &str, paths: &[&str], required: bool) -> v1::Job {
    let mut wanted = job(name, &["sh", "-c", script]);
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    wanted.spec_mut().artifacts = Some(v1::ArtifactRules { paths, required });
    wanted
}

fn kept(job: &v1::Job) -> v1::WorkerArtifacts {
    let history = job.status().history.as_ref().expect("something is known of its attempts");
    history.artifacts.first().expect("of its worker").clone()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_worker_come_back() {
    let mut cluster = Cluster::start(1).await;
    let scratch = cluster.scratch.path().to_owned();
    let store = scratch.join("store");
    std::fs::create_dir(&store).expect("a directory");
    std::fs::write(store.join("muster-store"), "muster store 1\n").expect("a store");
    std::fs::create_dir(store.join("objects")).expect("a directory");
    let (endpoints, files) = (cluster.shown_endpoints(), format!("files = {{ store = {store:?} }}\n"));
    let _agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| files.clone()).await;
    let client = cluster.client();

    let script = "mkdir -p out/deep; echo 1 > out/a.csv; echo 2 > out/deep/b; echo 3 > note; ln -s /etc/passwd out/link";
    let id = submit(&client, wanted("whole", script, &["out", "note"], true)).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");
    let found = kept(&ended);
    assert_eq!((found.files, found.bytes, found.left_out, found.fault.as_str()), (3, 6, 1, ""));
    let listed = cluster.operated(&["artifacts", "list", &id]).await;
    assert!(listed.contains(&found.digest), "{listed}");
    let back = scratch.join("back");
    let (at, of) = (back.to_str().expect("text"), store.to_str().expect("text"));
    cluster.operated(&["artifacts", "get", &id, "--rank", "0", "-d", at, "--store", of]).await;
    assert_eq!((read(&back.join("out/a.csv")), read(&back.join("out/deep/b"))), ("1\n".into(), "2\n".into()));
    assert!(back.join("out/link").symlink_metadata().is_err(), "a link is none of its files");

    // What is not there fails nobody unless it has to be there.
    let id = submit(&client, wanted("partly", "echo 1 > a", &["a", "absent"], false)).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    let found = kept(&ended);
    assert_eq!((ended.phase(), found.files), (JobPhase::Succeeded, 1));
    assert_eq!((found.fault.as_str(), found.fault_path), ("NOT_FOUND", 1));
    let id = submit(&client, wanted("required", "echo 1 > a", &["a", "absent"], true)).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), kept(&ended).files), (JobPhase::Failed, 1), "{ended:#?}");

    // A worker that is stopped has its grace for them.
    let ready = scratch.join("ready");
    let script = format!("echo 1 > a; : > {}; while :; do sleep 0.1; done", ready.display());
    let id = submit(&client, wanted("stopped", &script, &["a"], false)).await;
    eventually("its file is there", || async { ready.exists().then_some(()) }).await;
    cluster.operated(&["cancel", &id]).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), kept(&ended).files), (JobPhase::Cancelled, 1), "{ended:#?}");

    let mut wrong = wanted("wrong", "true", &["../a"], false);
    wrong.spec_mut().artifacts.as_mut().expect("it has some").paths.push(String::new());
    let request = v1::SubmitJobRequest { job: Some(wrong), ..Default::default() };
    let error = client.submit_job(request).await.expect_err("they lead out");
    let fields: Vec<_> =
        error.refused().expect("a server refuses it").violations.iter().map(|v| &v.field).collect();
    assert_eq!(fields, ["job.spec.artifacts.paths[0]", "job.spec.artifacts.paths[1]"]);
    cluster.assert_digests_agree().await;
}
