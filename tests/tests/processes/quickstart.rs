//! `muster quickstart` keeps its promises, and leaves nothing behind.

use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{PATIENCE, Scratch, heavy, marked, muster, say, signal};

/// Of a whole run: its own bounds are tighter.
const LIMIT: Duration = Duration::from_secs(200);

fn quickstart(scratch: &Scratch) -> Child {
    let dir = scratch.path().join("demo");
    Command::new(muster())
        .args(["quickstart", "--json", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program can be started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quickstart_keeps_its_promises() {
    let _heavy = heavy().await;
    let scratch = Scratch::new();
    let run = tokio::time::timeout(LIMIT, quickstart(&scratch).wait_with_output()).await;
    let output = run.expect("it comes to an end").unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().last().unwrap_or_default();
    let summary: serde_json::Value = serde_json::from_str(line).unwrap();
    assert!(summary["acknowledged"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(summary["finished"], summary["acknowledged"], "{line}");
    assert_eq!((&summary["lost"], &summary["overlaps"]), (&0.into(), &0.into()), "{line}");
    assert!(summary["preemption"]["jobs"].as_u64().unwrap() > 0, "{line}");
    assert!(summary["resumed_jobs"].as_u64().unwrap() > 0, "{line}");
    assert_eq!((&summary["losses_agree"], &summary["digests_agree"]), (&true.into(), &true.into()), "{line}");
    assert!(marked(scratch.path()).is_empty(), "processes are left");
    say(&format!("quickstart: {line}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_quickstart_leaves_nothing() {
    let _heavy = heavy().await;
    let scratch = Scratch::new();
    let mut child = quickstart(&scratch);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = String::new();
    let runs = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            told.push_str(&line);
            told.push('\n');
            if line.contains("training runs in") {
                return true;
            }
        }
        false
    };
    assert!(matches!(tokio::time::timeout(PATIENCE, runs).await, Ok(true)), "{told}");
    // 3 replicas, 12 agents, 12 shims and 12 workers of training; some of the array may have ended.
    let running = marked(scratch.path()).len();
    assert!(running >= 3 + 12 + 12 + 12, "{running} processes");
    signal(&child, Signal::SIGINT);
    let rest = async { while let Ok(Some(_)) = lines.next_line().await {} };
    let (status, ()) =
        tokio::time::timeout(PATIENCE, async { tokio::join!(child.wait(), rest) }).await.unwrap();
    assert_eq!(status.unwrap().code(), Some(130));
    assert!(marked(scratch.path()).is_empty(), "processes are left");
    say(&format!("interrupted quickstart: {running} processes, none left"));
}
