//! What a worker finds, says and is told: checkpoints in the log, notices, steps, and where it goes on.

use muster_wire::time::duration;
use muster_wire::v1::{self, JobPhase};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::net::TcpListener;

use crate::support::{
    Agents, Cluster, eventually, heavy, is_finished, job, muster, output, say, submit, wait_for_job,
};

/// A job of one shell script, which finds the program as `$MUSTER`.
fn script(name: &str, text: &str, checkpoints: &Path) -> v1::Job {
    let mut wanted = job(name, &["/bin/sh", "-c", text]);
    let program = muster().to_str().expect("the program's path is text").to_owned();
    wanted.spec_mut().groups[0].set_variable("PROGRAM".to_owned(), program);
    wanted.spec_mut().checkpoint_mut().directory =
        checkpoints.to_str().expect("the test's directory is text").to_owned();
    wanted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_that_it_saved_and_goes_on_from_there() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a"]).await;
    let client = cluster.client();
    let checkpoints = cluster.scratch.path().join("checkpoints");
    std::fs::create_dir(&checkpoints).unwrap();

    // The first attempt saves and fails; the second finds that there is something to go on from.
    let text = r#"echo "resume $MUSTER_RESUME"
        "$PROGRAM" ctl step --number 1 --duration-ms 5 || exit 2
        if [ "$MUSTER_RESUME" = 0 ]; then "$PROGRAM" ctl checkpoint-committed --step 7 && exit 9; exit 3; fi
        echo "from attempt $MUSTER_CHECKPOINT_ATTEMPT""#;
    let mut wanted = script("resumes", text, &checkpoints);
    wanted.spec_mut().retry_mut().max_failures = 1;
    let id = submit(&client, wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    let told = output(&client, &id).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 1),
        "{told}\n{ended:#?}"
    );
    assert!(told.contains("resume 1") && told.contains("from attempt 1"), "{told}");

    // Outside of a job there is nobody to speak for; a worker of an older attempt is refused.
    let lone = tokio::process::Command::new(muster())
        .args(["ctl", "checkpoint-committed"])
        .env_remove("MUSTER_JOB_ID")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert_eq!(lone.status.code(), Some(2), "{}", String::from_utf8_lossy(&lone.stderr));
    let id = submit(
        &client,
        script(
            "stale",
            r#"MUSTER_FENCING_TOKEN=1.1 "$PROGRAM" ctl checkpoint-committed; echo code $?"#,
            &checkpoints,
        ),
    )
    .await;
    wait_for_job(&client, &id, is_finished).await;
    let told = output(&client, &id).await;
    assert!(told.contains("code 5") && told.contains("does not run on this node"), "{told}");

    drop(agents);
    cluster.assert_digests_agree().await;
}

/// Takes one call at `PORT`, also while it is told to end, and leaves it in the file `CALL`.
const LISTENER: &str = r#"
import os, signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(os.environ["PORT"])))
server.listen()
call = os.environ["CALL"]
open(call + ".listens", "w").close()
caller, _ = server.accept()
told = b""
while not told.endswith(b"}\n"):
    told += caller.recv(4096)
caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
with open(call + ".new", "wb") as file:
    file.write(told)
os.rename(call + ".new", call)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_to_stop_is_told_in_three_ways() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a"]).await;
    let client = cluster.client();
    let ready = cluster.scratch.path().join("ready");
    // The call goes only to a port where the worker itself listens, so its program has to.
    let python = tokio::process::Command::new("python3").arg("--version").stdin(Stdio::null()).output().await;
    let listens = python.is_ok_and(|said| said.status.success());
    if !listens {
        say("skipped: the notice by HTTP: there is no python3 for the worker to listen with");
    }
    let port = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap().port();
    let call = cluster.scratch.path().join("call");

    let text = r#"trap 'echo "notice $("$PROGRAM" ctl notice)"; "$PROGRAM" ctl checkpoint-committed --step 3 && echo saved; exit 0' TERM
        "$PROGRAM" ctl notice; echo "before $?"
        if [ -n "$LISTENER" ]; then
            python3 -c "$LISTENER" &
            while [ ! -e "$CALL.listens" ]; do sleep 0.05; done
        fi
        echo yes > "$READY"
        while true; do sleep 0.05; done"#;
    let mut wanted = script("told", text, cluster.scratch.path());
    wanted.spec_mut().groups[0].set_variable("READY".to_owned(), ready.to_str().unwrap().to_owned());
    wanted.spec_mut().groups[0].set_variable("CALL".to_owned(), call.to_str().unwrap().to_owned());
    wanted.spec_mut().groups[0].set_variable("PORT".to_owned(), port.to_string());
    let listener = if listens { LISTENER } else { "" };
    wanted.spec_mut().groups[0].set_variable("LISTENER".to_owned(), listener.to_owned());
    wanted.spec_mut().stop_grace = Some(duration(1_000));
    wanted.spec_mut().notice =
        Some(v1::NoticeRules { http_port: port.into(), http_path: "/stop".to_owned() });
    // Two steps and a save are longer than the grace that the job asks for.
    let checkpoint = wanted.spec_mut().checkpoint_mut();
    (checkpoint.step, checkpoint.save) = (Some(duration(2_000)), Some(duration(11_000)));
    let id = submit(&client, wanted).await;
    eventually("the worker did not begin", || async { ready.exists().then_some(()) }).await;
    let request = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
    client.cancel_job(request).await.unwrap();
    let ended = wait_for_job(&client, &id, is_finished).await;
    let told = output(&client, &id).await;
    assert_eq!(ended.phase(), JobPhase::Cancelled, "{told}");
    for line in
        ["before 3", r#"notice {"deadlineUnixMs""#, r#""graceMs":15000"#, r#""reason":"cancelled""#, "saved"]
    {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(ended.status().last_checkpoint.is_some(), "saved while it was stopping: {ended:#?}");
    if listens {
        let call = eventually("nobody called", || async { std::fs::read_to_string(&call).ok() }).await;
        assert!(call.starts_with("POST /stop HTTP/1.1\r\n") && call.contains("\"grace_ms\":15000"), "{call}");
        assert!(call.contains("\"reason\":\"cancelled\""), "{call}");
    }

    drop(agents);
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_helper_speaks_to_a_real_agent() {
    let python = PathBuf::from("python3");
    let there = tokio::process::Command::new(&python).arg("--version").stdin(Stdio::null()).output().await;
    if !there.is_ok_and(|told| told.status.success()) {
        return say("skipped: the Python helper: there is no python3");
    }
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a"]).await;
    let client = cluster.client();
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/worker/python");
    let text = "from muster_worker import Worker, Refused\nimport dataclasses\n\
        worker = Worker.from_env()\nworker.step(1, 0.5)\nworker.checkpoint_committed(4)\n\
        try:\n    dataclasses.replace(worker, fencing_token='1.1').checkpoint_committed(5)\n\
        except Refused as why:\n    print('refused', why)\n\
        print('resumes', worker.resumes, 'notice', worker.notice())\n\
        Worker.from_env({}).checkpoint_committed(1)\n";
    let mut wanted = job("python", &["python3", "-c", text]);
    let directory = helper.to_str().expect("the repository's path is text").to_owned();
    wanted.spec_mut().groups[0].set_variable("PYTHONPATH".to_owned(), directory);
    wanted.spec_mut().groups[0].set_variable("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned());
    let id = submit(&client, wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    let told = output(&client, &id).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{told}");
    assert!(told.contains("refused") && told.contains("resumes False notice None"), "{told}");
    assert!(ended.status().last_checkpoint.is_some(), "{ended:#?}");
    drop(agents);
    cluster.assert_digests_agree().await;
}
