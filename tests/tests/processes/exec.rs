//! Commands next to workers, through a replica that does not lead: what they read, write and return, where they run, and what ends
//! them.

use muster_client::{Client, Exec};
use muster_types::RefusalCode;
use muster_wire::v1::exec_end::End;
use muster_wire::v1::exec_worker_response::Message;
use muster_wire::v1::{self, JobPhase};
use std::path::Path;
use std::time::Duration;

use crate::support::{
    Agents, Cluster, PATIENCE, eventually, heavy, is_finished, job, say, submit, wait_for_job,
};

fn start(id: &str, command: &[&str]) -> v1::ExecStart {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    v1::ExecStart { job_id: id.to_owned(), command, ..Default::default() }
}

/// What a command wrote to both streams, and how it ended; none where its end is not known.
async fn rest(mut exec: Exec) -> (String, String, Option<End>) {
    let (mut out, mut err, mut end) = (Vec::new(), Vec::new(), None);
    let reading = async {
        while let Ok(Some(message)) = exec.next().await {
            match message {
                Message::Started(started) => assert!(started.token.is_some(), "it names the attempt"),
                Message::Stdout(piece) => out.extend(piece),
                Message::Stderr(piece) => err.extend(piece),
                Message::End(ended) => end = ended.end,
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("a command that ends is seen to end");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(out), text(err), end)
}

async fn ran(client: &Client, id: &str, command: &[&str]) -> (String, String, Option<End>) {
    let mut exec = client.exec_worker(start(id, command)).await.expect("the worker runs");
    let input = exec.take_input().expect("it was not taken");
    input.end().await;
    rest(exec).await
}

async fn refusal(client: &Client, start: v1::ExecStart) -> RefusalCode {
    let error = client.exec_worker(start).await.err().expect("it is refused");
    error.refused().and_then(|refused| refused.code).unwrap_or_else(|| panic!("{error:?}"))
}

/// Whether this host can run commands next to workers; what it lacks is printed.
async fn is_possible(client: &Client, id: &str) -> bool {
    let mut exec = client.exec_worker(start(id, &["true"])).await.expect("the worker runs");
    loop {
        match exec.next().await {
            Ok(Some(Message::End(_)) | None) => return true,
            Ok(Some(_)) => {}
            Err(error) => {
                let text = format!("{error:?}");
                assert!(text.contains("neither process namespaces nor control groups"), "{text}");
                say(
                    "skipped: commands next to workers: there are neither process namespaces nor control groups",
                );
                return false;
            }
        }
    }
}

/// A job that waits until it is cancelled, with a file in its directory, and has begun to.
async fn waiting(client: &Client, name: &str, ready: &Path) -> String {
    let text = format!("echo mine > own; : > {}; while :; do sleep 0.1; done", ready.display());
    let id = submit(client, job(name, &["sh", "-c", &text])).await;
    wait_for_job(client, &id, |job| job.phase() == JobPhase::Running).await;
    eventually("the worker's program has begun", || async { ready.exists().then_some(()) }).await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_where_its_worker_does() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client_from(cluster.follower().await);
    let ready = cluster.scratch.path().join("ready");
    let id = waiting(&client, "waits", &ready).await;
    if !is_possible(&client, &id).await {
        return;
    }

    let (out, err, end) = ran(&client, &id, &["sh", "-c", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!((out.as_str(), err.as_str(), end), ("out\n", "err\n", Some(End::ExitCode(7))));
    let (_, _, end) = ran(&client, &id, &["sh", "-c", "kill -TERM $$"]).await;
    assert_eq!(end, Some(End::Signal(15)));
    let (_, err, end) = ran(&client, &id, &["/nowhere/program"]).await;
    assert!(err.contains("/nowhere/program") && end == Some(End::ExitCode(127)), "{err:?} {end:?}");

    // Its directory, environment and processes are the worker's.
    let (out, ..) = ran(&client, &id, &["sh", "-c", "cat own; echo $MUSTER_RANK $MUSTER_JOB_ID"]).await;
    assert_eq!(out, format!("mine\n0 {id}\n"));
    let (seen, ..) = ran(&client, &id, &["readlink", "/proc/self/ns/pid"]).await;
    let own = std::fs::read_link("/proc/self/ns/pid").expect("there is a /proc");
    let is_isolated = seen.trim() != own.to_string_lossy();
    let (numbers, ..) = ran(&client, &id, &["sh", "-c", "ls /proc | grep -c '^[0-9]'"]).await;
    if is_isolated {
        let seen: usize = numbers.trim().parse().expect("a number");
        assert!(seen < 20, "it sees the worker's processes alone, not {seen}");
    }
    let mut with_variable = start(&id, &["sh", "-c", "echo $LEVEL"]);
    with_variable.environment = [("LEVEL".to_owned(), "debug".to_owned())].into();
    let exec = client.exec_worker(with_variable).await.expect("the worker runs");
    assert_eq!(rest(exec).await.0, "debug\n");

    // A terminal has a size, which can change, and a command that is its session's.
    let mut with_terminal =
        start(&id, &["sh", "-c", "stty size; read line; stty size; tty -s && echo it is one"]);
    with_terminal.terminal = Some(v1::ExecTerminal { rows: 31, columns: 97 });
    let mut exec = client.exec_worker(with_terminal).await.expect("the worker runs");
    let input = exec.take_input().expect("it was not taken");
    assert!(input.resize(v1::ExecTerminal { rows: 12, columns: 34 }).await);
    assert!(input.send(b"go on\n".to_vec()).await);
    let (out, err, end) = rest(exec).await;
    assert!(out.contains("12 34") && out.contains("it is one") && err.is_empty(), "{out:?} {err:?}");
    assert_eq!(end, Some(End::ExitCode(0)));
    let mut at_once = start(&id, &["stty", "size"]);
    at_once.terminal = Some(v1::ExecTerminal { rows: 31, columns: 97 });
    let exec = client.exec_worker(at_once).await.expect("the worker runs");
    assert_eq!(rest(exec).await.0.trim(), "31 97");

    // Input goes in up to its end, more than any queue holds.
    let mut exec = client.exec_worker(start(&id, &["wc", "-c"])).await.expect("the worker runs");
    let input = exec.take_input().expect("it was not taken");
    let feeding = tokio::spawn(async move {
        for _ in 0..64 {
            assert!(input.send(vec![b'x'; 32 << 10]).await);
        }
        input.end().await;
    });
    let (out, _, end) = rest(exec).await;
    assert_eq!((out.trim(), end), ("2097152", Some(End::ExitCode(0))));
    feeding.await.expect("all of it was taken");

    // A signal arrives, and who goes ends the command.
    let mut exec = client.exec_worker(start(&id, &["sleep", "600"])).await.expect("the worker runs");
    assert!(matches!(exec.next().await, Ok(Some(Message::Started(_)))));
    exec.take_input().expect("it was not taken").signal(2).await;
    assert_eq!(rest(exec).await.2, Some(End::Signal(2)));
    let beats = cluster.scratch.path().join("beats");
    let text = format!("while :; do date +%N > {}; sleep 0.05; done", beats.display());
    let mut exec = client.exec_worker(start(&id, &["sh", "-c", &text])).await.expect("the worker runs");
    assert!(matches!(exec.next().await, Ok(Some(Message::Started(_)))));
    eventually("it beats", || async { beats.exists().then_some(()) }).await;
    drop(exec);
    assert_stands_still(&beats).await;

    assert_cut_input_has_no_end(&client, &id, cluster.scratch.path()).await;

    // One that nobody reads waits; it takes nothing from others, and ends with its reader.
    let unread = client.exec_worker(start(&id, &["yes"])).await.expect("the worker runs");
    assert_eq!(ran(&client, &id, &["echo", "still here"]).await.0, "still here\n");
    drop(unread);

    let shown = cluster.operated(&["exec", &id, "--", "echo", "by hand"]).await;
    assert_eq!(shown, "by hand\n");
    let log =
        cluster.operated(&["log", "tail", "-n", "1000", "--decision", "exec_opened", "-o", "json"]).await;
    assert!(log.contains("exec_opened") && log.contains("echo by hand"), "it is in the log: {log}");
    cluster.assert_digests_agree().await;
}

/// Who goes has not ended the input of the command: what reads all of it does not go on.
async fn assert_cut_input_has_no_end(client: &Client, id: &str, scratch: &Path) {
    let [half, whole, beats] = ["half", "whole", "reads"].map(|name| scratch.join(name));
    let text = format!(
        "exec 3<&0; (cat <&3 > {}; : > {}) & while :; do date +%N > {}; sleep 0.05; done",
        half.display(),
        whole.display(),
        beats.display()
    );
    let mut exec = client.exec_worker(start(id, &["sh", "-c", &text])).await.expect("the worker runs");
    let input = exec.take_input().expect("it was not taken");
    assert!(input.send(b"half of it".to_vec()).await);
    let is_read = || std::fs::read(&half).is_ok_and(|read| !read.is_empty());
    eventually("it is read", || async { (is_read() && beats.exists()).then_some(()) }).await;
    drop(exec);
    drop(input);
    assert_stands_still(&beats).await;
    assert!(!whole.exists(), "the end of its input has not come");
}

/// Waits until a file that is written all the time is not written any more.
async fn assert_stands_still(path: &Path) {
    eventually("nothing is written any more", || async {
        let before = std::fs::read(path).ok();
        tokio::time::sleep(Duration::from_millis(500)).await;
        (std::fs::read(path).ok() == before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_ends_with_its_worker_and_none_begins_without_one() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client_from(cluster.follower().await);
    let ready = cluster.scratch.path().join("ready");
    let id = waiting(&client, "ends", &ready).await;
    if !is_possible(&client, &id).await {
        return;
    }
    let beats = cluster.scratch.path().join("beats");
    // It goes into the background with another session.
    let text = format!("setsid sh -c 'while :; do date +%N > {}; sleep 0.05; done' & wait", beats.display());
    let mut exec = client.exec_worker(start(&id, &["sh", "-c", &text])).await.expect("the worker runs");
    assert!(matches!(exec.next().await, Ok(Some(Message::Started(_)))));
    eventually("it beats", || async { beats.exists().then_some(()) }).await;
    cluster.operated(&["cancel", &id]).await;
    let ended = rest(exec).await.2;
    assert!(matches!(ended, None | Some(End::Signal(_))), "{ended:?}");
    wait_for_job(&client, &id, is_finished).await;
    let last = std::fs::read(&beats).ok();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(std::fs::read(&beats).ok(), last, "the end of a worker is recorded when nothing of it runs");

    assert_eq!(refusal(&client, start(&id, &["true"])).await, RefusalCode::JobFinished);
    assert_eq!(refusal(&client, start("job-1", &["true"])).await, RefusalCode::JobNotFound);
    let wide = job("wide", &["sleep", "600"]);
    let wide = submit(&client, wide).await;
    wait_for_job(&client, &wide, |job| job.phase() == JobPhase::Running).await;
    let rank = v1::ExecStart { rank: 1, ..start(&wide, &["true"]) };
    assert_eq!(refusal(&client, rank).await, RefusalCode::InvalidField);
    assert_eq!(refusal(&client, start(&wide, &[])).await, RefusalCode::InvalidField);
    let huge = "x".repeat(70 << 10);
    assert_eq!(refusal(&client, start(&wide, &["echo", &huge])).await, RefusalCode::InvalidField);
    let token = Some(v1::FencingToken { generation: 1, log_index: 1 });
    let of_another = v1::ExecStart { token, ..start(&wide, &["true"]) };
    assert_eq!(refusal(&client, of_another).await, RefusalCode::Fenced);

    // The node's agent is gone: nobody waits for long, and the worker is not harmed.
    agents.kill("h1").await;
    let error = async {
        match client.exec_worker(start(&wide, &["true"])).await {
            Ok(exec) => rest(exec).await.2.is_none(),
            Err(error) => {
                error.refused().is_some_and(|refused| refused.code == Some(RefusalCode::ExecUnavailable))
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, error).await.expect("it is told"), "nothing was run");
    agents.start_agent("h1");
    eventually("the agent is back", || async {
        let exec = client.exec_worker(start(&wide, &["true"])).await.ok()?;
        (rest(exec).await.2 == Some(End::ExitCode(0))).then_some(())
    })
    .await;
    cluster.operated(&["cancel", &wide]).await;
    wait_for_job(&client, &wide, is_finished).await;
    cluster.assert_digests_agree().await;
}

/// Everything that is written until the text is in it.
async fn written_up_to(exec: &mut Exec, text: &str) -> String {
    let mut out = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&out).contains(text) {
            match exec.next().await {
                Ok(Some(Message::Stdout(piece))) => out.extend(piece),
                Ok(Some(Message::End(end))) => panic!("it ended: {end:?}"),
                Ok(Some(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("it is written");
    String::from_utf8_lossy(&out).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_type_to_a_worker_that_has_a_terminal() {
    let _heavy = heavy().await;
    let cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client_from(cluster.follower().await);
    let program = "tty -s && echo begins; while read line; do echo \"read: $line\"; stty size; done";
    let mut asked = job("terminal", &["sh", "-c", program]);
    asked.spec_mut().terminal = true;
    let id = submit(&client, asked).await;
    wait_for_job(&client, &id, |job| job.phase() == JobPhase::Running).await;
    let attach = |rows, columns| v1::ExecStart {
        job_id: id.clone(),
        attach: true,
        terminal: Some(v1::ExecTerminal { rows, columns }),
        ..Default::default()
    };
    let mut one = client.exec_worker(attach(31, 97)).await.expect("the worker runs");
    written_up_to(&mut one, "begins").await;
    let typing = one.take_input().expect("it was not taken");
    assert!(typing.send(b"hello\n".to_vec()).await);
    written_up_to(&mut one, "31 97").await;
    // Another one is attached as well; the first one leaves, and the worker goes on.
    let mut two = client.exec_worker(attach(12, 34)).await.expect("the worker runs");
    let also_typing = two.take_input().expect("it was not taken");
    assert!(also_typing.send(b"again\n".to_vec()).await);
    written_up_to(&mut two, "12 34").await;
    assert!(written_up_to(&mut one, "12 34").await.contains("read: again"), "who is attached sees all");
    drop((one, typing));
    assert!(also_typing.send(b"on\n\x04".to_vec()).await);
    let (out, err, end) = rest(two).await;
    assert!(out.contains("read: on") && err.is_empty(), "{out:?} {err:?}");
    assert_eq!(end, Some(End::ExitCode(0)), "the end of what it reads is the end of the worker");

    let plain = submit(&client, job("plain", &["sleep", "600"])).await;
    wait_for_job(&client, &plain, |job| job.phase() == JobPhase::Running).await;
    let mut refused = client
        .exec_worker(v1::ExecStart { job_id: plain, ..attach(24, 80) })
        .await
        .expect("it is asked of the agent");
    let why = loop {
        match refused.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it is refused"),
            Err(error) => break format!("{error:?}"),
        }
    };
    assert!(why.contains("has no terminal"), "{why}");
}
