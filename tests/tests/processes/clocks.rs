//! Wall clocks that are set while everything runs: an hour ahead and an hour back, of an agent and of the leader.
//!
//! The program reads its time of day through libfaketime, which reads what time it is to be from a file again at every
//! call; clocks since boot are the machine's own, as they are when an operator or NTP sets the time.

use muster_client::Client;
use muster_wire::time::unix_ms;
use muster_wire::v1::{self, JobPhase};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Agents, Cluster, eventually, heavy, is_finished, job, say, submit, wait_for_job};

const HOUR_MS: u64 = 3_600_000;

/// The time of day of some processes.
struct WallClock {
    file: PathBuf,
    words: Vec<String>,
}

impl WallClock {
    /// None where the library is not to be had.
    fn new(directory: &Path, name: &str) -> Option<WallClock> {
        let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
            .iter()
            .map(|directory| Path::new(directory).join("faketime/libfaketimeMT.so.1"))
            .find(|path| path.exists())?;
        let file = directory.join(format!("clock-{name}"));
        let words = vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            // One process at a time reads it: nothing is to be left in shared memory by one that is killed.
            "FAKETIME_DISABLE_SHM=1".to_owned(),
            // Times of files are the kernel's.
            "NO_FAKE_STAT=1".to_owned(),
        ];
        let clock = WallClock { file, words };
        clock.set("+0");
        Some(clock)
    }

    /// Puts it so far ahead of the machine's, at once.
    fn set(&self, ahead: &str) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{ahead}\n")).expect("writing a clock");
        std::fs::rename(&new, &self.file).expect("putting a clock in place");
    }

    fn wrapper(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the machine's clock is past 1970");
    u64::try_from(now.as_millis()).expect("a time of this age")
}

async fn get(client: &Client, id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: id.to_owned(), ..Default::default() };
    client.get_job(request).await.expect("a job that is there").job.expect("it is described")
}

/// Lets a job of another host's kind run for longer than a lease: with that the time passes that would show a lease lost.
async fn longer_than_a_lease(client: &Client) {
    let id = submit(client, job("clock", &["/bin/sleep", "6"])).await;
    let ended = wait_for_job(client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stand_while_wall_clocks_are_set() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    let directory = cluster.scratch.path().to_owned();
    let clocks: Option<Vec<WallClock>> =
        ["1", "2", "3", "agent"].iter().map(|name| WallClock::new(&directory, name)).collect();
    let Some(clocks) = clocks else {
        return say("skipped: libfaketime is not installed");
    };
    for (at, clock) in clocks.iter().take(3).enumerate() {
        cluster.start_replica_below(&clock.wrapper(), at, &["--bootstrap"]);
    }
    cluster.leader().await;
    let client = cluster.client();
    let mut agents = Agents::start(&cluster, &["a"]).await;
    agents.kill("a").await;
    agents.start_agent_below(&clocks[3].wrapper(), "a");
    agents.wait_status("a", v1::NodeStatus::Up).await;

    // A worker that stays, and says what notice it is given.
    let told = directory.join("told");
    let text =
        format!("trap 'cat $MUSTER_NOTICE_FILE > {told:?}; exit 0' TERM; while true; do sleep 0.05; done");
    let id = submit(&client, job("stays", &["/bin/sh", "-c", &text])).await;
    wait_for_job(&client, &id, |job| job.phase() == JobPhase::Running).await;
    let node = |name: &str| v1::GetNodeRequest { node: name.to_owned(), read: None };
    let before = client.get_node(node("a")).await.unwrap().node.unwrap();

    for (at, ahead) in ["+3600", "-3600", "+3600"].into_iter().enumerate() {
        clocks[3].set(ahead);
        longer_than_a_lease(&client).await;
        let leader = cluster.leader().await;
        clocks[leader].set(ahead);
        let begun_ms = now_ms();
        longer_than_a_lease(&client).await;
        if at == 0 {
            // The clock of one replica alone is not believed, though it leads: the log goes on with the time that it had.
            let later = submit(&client, job("later", &["/bin/true"])).await;
            let later = wait_for_job(&client, &later, is_finished).await;
            assert!(unix_ms(later.status().create_time) < Some(begun_ms + HOUR_MS / 2), "{later:#?}");
        }
        let now = client.get_node(node("a")).await.unwrap().node.unwrap();
        assert_eq!((now.status(), now.incarnation), (v1::NodeStatus::Up, before.incarnation), "{ahead}");
        let kept = get(&client, &id).await;
        assert_eq!((kept.phase(), kept.status().attempt), (JobPhase::Running, 1), "{ahead}: {kept:#?}");
    }

    // The agent's clock is an hour ahead as well, and the time it gives is what it was given.
    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    wait_for_job(&client, &id, is_finished).await;
    let notice =
        eventually("the worker said nothing", || async { std::fs::read_to_string(&told).ok() }).await;
    let notice: serde_json::Value = serde_json::from_str(&notice).unwrap();
    let deadline_ms = notice["deadline_unix_ms"].as_u64().unwrap();
    assert!(deadline_ms > now_ms() + HOUR_MS - 60_000, "{notice}");
    assert_eq!(notice["reason"], "cancelled");
    cluster.assert_digests_agree().await;
}
