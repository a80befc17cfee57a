//! Working with jobs from a terminal: their output as they write it, whatever happens to replicas and
//! agents; commands that stay with a job; scripts; waiting.

use muster_client::Client;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::{self, JobPhase};
use nix::sys::signal::Signal;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{
    Agents, Cluster, PATIENCE, heavy, is_finished, job, muster, signal, submit, wait_for_job,
};

/// Lines that a worker writes to each of its streams.
const LINES: usize = 300;

fn is_running(job: &v1::Job) -> bool {
    job.phase() == JobPhase::Running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_followed_over_the_loss_of_replicas_and_agents() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let text = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i + 1)); sleep 0.02; done"
    );
    let id = submit(&client, job("writes", &["sh", "-c", &text])).await;
    wait_for_job(&client, &id, is_running).await;
    // By way of every replica at once.
    let followers: Vec<_> = (0..3)
        .map(|at| {
            // Begins with that one, and goes on with any.
            let client = cluster.client_from(at);
            let request = v1::ReadLogsRequest { job_id: id.clone(), follow: true, ..Default::default() };
            tokio::spawn(async move {
                let mut logs = client.read_logs(request).await.expect("output can be read");
                let (mut out, mut err) = (Vec::new(), Vec::new());
                while let Some(piece) = logs.next().await.expect("output goes on") {
                    assert_eq!(piece.dropped_bytes, 0);
                    if piece.stream() == v1::OutputStream::Stdout { &mut out } else { &mut err }
                        .extend(piece.data);
                }
                (String::from_utf8(out).expect("text"), String::from_utf8(err).expect("text"))
            })
        })
        .collect();
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    cluster.leader().await;
    agents.kill("h1").await;
    agents.start_agent("h1");
    let lines = |name: &str| (0..LINES).map(|i| format!("{name} {i}\n")).collect::<String>();
    for follower in followers {
        let seen = tokio::time::timeout(PATIENCE, follower).await.expect("it ends").expect("it read all");
        assert_eq!(seen, (lines("out"), lines("err")));
    }
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");

    // The previous attempt has separate output, and a position names its attempt.
    let again = r#"echo attempt; [ "$MUSTER_ATTEMPT" = 2 ] && echo second"#;
    let mut wanted = job("again", &["sh", "-c", again]);
    wanted.spec_mut().retry_mut().max_failures = 1;
    let id = submit(&client, wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 2), "{ended:#?}");
    for (args, expected) in [
        (&["--previous"][..], "attempt\n"),
        (&[], "attempt\nsecond\n"),
        (&["--tail", "1"], "second\n"),
        (&["--tail-bytes", "7"], "second\n"),
    ] {
        let out = cluster.operated(&[&["job", "logs", id.as_str()], args].concat()).await;
        assert_eq!(out, expected, "{args:?}");
    }
    let refused = cluster.operate(&["job", "logs", &id, "--rank", "1"]).await;
    refused.assert_refused(2, &["has no rank 1"]);
    cluster.start_all();
    cluster.assert_digests_agree().await;
}

/// A reader of a worker that has written nothing learns at once that its node sends what will come: however long that
/// takes, the read does not end before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_a_worker_that_is_silent_at_first_is_complete() {
    let _heavy = heavy().await;
    let cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let gate = cluster.scratch.path().join("gate");
    let text = format!("while [ ! -e {} ]; do sleep 0.1; done; echo done", gate.display());
    let client = cluster.client();
    let id = submit(&client, job("silent", &["sh", "-c", &text])).await;
    wait_for_job(&client, &id, is_running).await;
    let leader = cluster.leader().await;
    let mut jobs = JobServiceClient::connect(cluster.replicas[leader].endpoint()).await.expect("it serves");
    let request = v1::ReadLogsRequest { job_id: id.clone(), follow: true, ..Default::default() };
    let mut logs = jobs.read_logs(request).await.expect("output can be read").into_inner();
    let first = tokio::time::timeout(PATIENCE, logs.message()).await.expect("the node answers");
    let first = first.expect("it is read").expect("the output has not ended");
    assert!(first.data.is_empty() && first.position == 0, "{first:?}");
    std::fs::write(&gate, "").expect("the directory can be written to");
    let mut out = Vec::new();
    while let Some(piece) = logs.message().await.expect("it goes on") {
        out.extend(piece.data);
    }
    assert_eq!(out, b"done\n");
    let shown = cluster.operated(&["logs", "silent", "--tail", "1"]).await;
    assert_eq!(shown, "done\n");
}

/// `muster run` in the background, with what it writes.
struct Attached {
    child: Child,
    out: BufReader<tokio::process::ChildStdout>,
    err: BufReader<tokio::process::ChildStderr>,
}

impl Attached {
    fn start(cluster: &Cluster, args: &[&str]) -> Attached {
        let mut child = Command::new(muster())
            .arg("--endpoint")
            .arg(cluster.endpoints().join(","))
            .args(["run", "--cpu", "100m", "--memory", "64Mi"])
            .args(args)
            .env("MUSTER_DIE_WITH_PARENT", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("muster can be started");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let err = BufReader::new(child.stderr.take().expect("piped"));
        Attached { child, out, err }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.out.read_line(&mut line)).await;
        read.expect("a line comes").expect("it is text");
        line
    }

    /// The next line of progress with this in it.
    async fn said(&mut self, text: &str) -> String {
        let search = async {
            loop {
                let mut line = String::new();
                let read = self.err.read_line(&mut line).await.expect("it is text");
                assert!(read > 0, "it ended without saying {text:?}");
                if line.contains(text) {
                    return line;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search).await.unwrap_or_else(|_| panic!("{text:?} was never said"))
    }

    /// Exit code, and the rest of both streams.
    async fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        let rest = async {
            let (read_out, read_err) =
                tokio::join!(self.out.read_to_string(&mut out), self.err.read_to_string(&mut err));
            assert!(read_out.is_ok() && read_err.is_ok());
            self.child.wait().await.expect("a child can be waited for").code()
        };
        let code = tokio::time::timeout(PATIENCE, rest).await.expect("it ends");
        (code, out, err)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_stay_with_their_jobs() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1", "h2"]).await;
    let client = cluster.client();

    // Output where it belongs, and the job's own exit code.
    let failing = Attached::start(&cluster, &["--", "sh", "-c", "echo out; echo wrong >&2; exit 7"]);
    let (code, out, err) = failing.end().await;
    assert_eq!((code, out.as_str()), (Some(7), "out\n"), "{err}");
    assert!(err.contains("wrong\n") && err.contains("exit code 7"), "{err}");
    let killed = Attached::start(&cluster, &["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.end().await.0, Some(137));
    let several =
        Attached::start(&cluster, &["--workers", "3", "-e", "WHO=me", "--", "sh", "-c", "echo $WHO $RANK"]);
    let (code, out, err) = several.end().await;
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["0: me 0", "1: me 1", "2: me 2"]), "{err}");

    // One Ctrl-C leaves the job, two cancel it.
    let stay = ["--name", "stays", "--", "sh", "-c", "echo begun; sleep 600"];
    let mut left = Attached::start(&cluster, &stay);
    assert_eq!(left.line().await, "begun\n");
    signal(&left.child, Signal::SIGINT);
    let said = left.said("detaching").await;
    assert_eq!(left.end().await.0, Some(130));
    let id = said.split_whitespace().nth(2).expect("an id").to_owned();
    let still =
        client.get_job(v1::GetJobRequest { job_id: id.clone(), read: None }).await.expect("it is there");
    assert_eq!(still.job.expect("with all of it").phase(), JobPhase::Running);
    let mut cancelled = Attached::start(&cluster, &stay);
    assert_eq!(cancelled.line().await, "begun\n");
    signal(&cancelled.child, Signal::SIGINT);
    cancelled.said("detaching").await;
    signal(&cancelled.child, Signal::SIGINT);
    let (code, _, err) = cancelled.end().await;
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("cancelled"), "{err}");

    waits(&cluster, &client, &id).await;
    scripts(&cluster, &client).await;
    cluster.assert_digests_agree().await;
}

/// Of a job that runs.
async fn waits(cluster: &Cluster, client: &Client, id: &str) {
    cluster.operated(&["job", "wait", id, "--for=running", "--timeout", "20s"]).await;
    let early = cluster.operate(&["job", "wait", id, "--for=checkpointed", "--timeout", "300ms"]).await;
    assert_eq!(early.code, Some(7), "{early:#?}");
    let job = client.get_job(v1::GetJobRequest { job_id: id.to_owned(), read: None }).await.expect("there");
    let token = job.job.and_then(|job| job.status().placement.as_ref()?.token);
    let saved = v1::CommitCheckpointRequest { job_id: id.to_owned(), token };
    client.commit_checkpoint(saved).await.expect("its own token");
    cluster.operated(&["job", "wait", id, "--for=checkpointed", "--timeout", "20s"]).await;
    cluster.operated(&["job", "cancel", id]).await;
    for (what, code) in [("succeeded", 1), ("finished", 1), ("running", 1)] {
        let ran = cluster.operate(&["job", "wait", id, "--for", what, "--timeout", "20s"]).await;
        assert_eq!(ran.code, Some(code), "{what}: {ran:#?}");
    }
    // One that fails ends the wait for success, whatever the others do.
    let short = submit(client, self::job("fails", &["false"])).await;
    let long = submit(client, self::job("goes-on", &["sleep", "600"])).await;
    let ran = cluster.operate(&["job", "wait", &short, &long, "--for=succeeded", "--timeout", "30s"]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    cluster.operated(&["job", "cancel", &long]).await;
}

async fn scripts(cluster: &Cluster, client: &Client) {
    let path = cluster.scratch.path().join("Train Me.sh");
    let text = "#!/bin/bash\n# Says who it is.\n#MUSTER workers: 2\n#MUSTER cpu: 100m\n#MUSTER memory: 64Mi\n\
                #MUSTER environment:\n#MUSTER   COLOUR: blue\nset -u\necho \"$RANK of $WORLD_SIZE: $1 $COLOUR\"\n";
    std::fs::write(&path, text).expect("a script can be written");
    let path = path.to_str().expect("text");
    let id = cluster.operated(&["submit", path, "an argument"]).await.trim().to_owned();
    let ended = wait_for_job(client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.name.as_str()), (JobPhase::Succeeded, "train-me"), "{ended:#?}");
    let out = cluster.operated(&["job", "logs", &id, "--rank", "1"]).await;
    assert_eq!(out, "1 of 2: an argument blue\n");

    std::fs::write(path, text.replace("workers: 2", "wrokers: 2")).expect("a script can be written");
    let ran = cluster.operate(&["submit", path]).await;
    ran.assert_refused(2, &["Train Me.sh:3: wrokers: unknown field; did you mean workers?"]);
    std::fs::write(path, text.replace("set -u", "set -u\n#MUSTER tier: batch")).expect("written");
    cluster
        .operate(&["submit", path])
        .await
        .assert_refused(2, &[":9: #MUSTER: comes after the first command"]);
    let wrong = cluster.operate(&["run", "--cpu", "lots", "--", "true"]).await;
    wrong.assert_refused(2, &["muster run: --cpu: "]);
    cluster.operate(&["run"]).await.assert_refused(2, &["there is no command to run"]);
    // A script that is to be run, together with other options.
    let ran = cluster.operate(&["run", "--file", path, "--workers", "2"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
}
