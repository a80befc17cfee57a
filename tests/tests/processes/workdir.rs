//! Files of a directory that travel with a job: through the store into the worker's own directory, or a refusal that says why.

use muster_client::Client;
use muster_wire::v1::{self, JobPhase};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::support::{Agents, Cluster, Ran, is_finished, job, run_to_end, submit, wait_for_job};

fn text(path: &Path) -> &str {
    path.to_str().expect("the test's directory is text")
}

/// Runs a script of the directory in the cluster, with its files.
async fn run(endpoint: &str, directory: &Path, store: &Path) -> Ran {
    let (directory, store) = (text(directory), text(store));
    let before = ["--endpoint", endpoint, "run", "--name", "shipped", "--cpu", "100m", "--memory", "16Mi"];
    let files = ["--workdir", directory, "--store", store, "--", "sh", "train.sh"];
    run_to_end(&[&before[..], &files[..]].concat(), "").await
}

/// Submits a job with these files; why it failed.
async fn failure(client: &Client, digest: &str) -> String {
    let mut wanted = job("refused", &["true"]);
    wanted.spec_mut().workdir = Some(v1::Workdir { digest: digest.to_owned() });
    let id = submit(client, wanted).await;
    let ended = wait_for_job(client, &id, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Failed, "{ended:#?}");
    ended.status().message.clone()
}

fn lay_out(directory: &Path) {
    std::fs::create_dir_all(directory.join("data")).expect("a directory");
    let files = [
        (
            "train.sh",
            "cat data/in link; test -x tool && echo tool; test -e secret && echo SECRET; echo x > out",
        ),
        ("data/in", "forty-two\n"),
        ("tool", "#!/bin/sh\n"),
        ("secret", "hunter2"),
        (".musterignore", "secret\n"),
    ];
    for (path, content) in files {
        std::fs::write(directory.join(path), content).expect("a file");
    }
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.join("tool"), executable).expect("own file");
    symlink("data/in", directory.join("link")).expect("a link");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_a_directory_travel_with_the_job() {
    let mut cluster = Cluster::start(1).await;
    let scratch = cluster.scratch.path().to_owned();
    let [store, directory] = ["store", "project"].map(|name| scratch.join(name));
    std::fs::create_dir(&store).expect("a directory");
    lay_out(&directory);
    let (endpoints, files) = (cluster.shown_endpoints(), format!("files = {{ store = {store:?} }}\n"));
    let _agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| files.clone()).await;
    let (client, endpoint) = (cluster.client(), endpoints.join(","));

    let ran = run(&endpoint, &directory, &store).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(ran.out, "forty-two\nforty-two\ntool\n", "{ran:#?}");
    assert!(!directory.join("out").exists(), "the worker has its own files");
    let sent: Vec<_> = ran.err.split_whitespace().filter(|word| word.starts_with("sha256:")).collect();
    let digest = sent.first().expect("the digest is printed").trim_end_matches(':').to_owned();
    // Again: nothing is sent, and the worker does not find what the first one has written.
    let again = run(&endpoint, &directory, &store).await;
    assert_eq!((again.code, again.out), (Some(0), ran.out));
    assert!(again.err.contains(&digest) && again.err.contains("the store has all of them"), "{}", again.err);

    refused_before_anything_is_sent(&endpoint, &directory, &store).await;

    let absent = format!("sha256:{}", "0".repeat(64));
    let why = failure(&client, &absent).await;
    assert!(why.contains("FILES_NOT_FOUND") && why.contains(&absent), "{why}");
    let digits = digest.trim_start_matches("sha256:");
    let (first, _) = digits.split_at(2);
    let object = store.join("objects").join(first).join(digits);
    std::fs::write(&object, "not what it was").expect("an object of the store");
    let why = failure(&client, &digest).await;
    assert!(why.contains("FILES_DIGEST_MISMATCH"), "{why}");
    let mut wrong = job("wrong", &["true"]);
    wrong.spec_mut().workdir = Some(v1::Workdir { digest: "latest".to_owned() });
    let request = v1::SubmitJobRequest { job: Some(wrong), ..Default::default() };
    let error = client.submit_job(request).await.expect_err("it is no digest");
    let fields: Vec<_> =
        error.refused().expect("a server refuses it").violations.iter().map(|v| &v.field).collect();
    assert_eq!(fields, ["job.spec.workdir.digest"]);
    cluster.assert_digests_agree().await;
}

async fn refused_before_anything_is_sent(endpoint: &str, directory: &Path, store: &Path) {
    let not_a_store = run(endpoint, directory, directory).await;
    not_a_store.assert_refused(2, &["--store", "is not a store"]);
    let absent = run(endpoint, &directory.join("absent"), store).await;
    absent.assert_refused(2, &["--workdir", "absent"]);
    symlink("/etc/passwd", directory.join("out-of-it")).expect("a link");
    run(endpoint, directory, store).await.assert_refused(2, &["out-of-it", ".musterignore"]);
    std::fs::remove_file(directory.join("out-of-it")).expect("own link");
}
