//! A replica that lost what it had, or whose state is not the cluster's, is noticed, does no harm, and comes
//! back.

use muster_journal::{Decision, FORMAT_MAX, decode_round};
use muster_state::State;
use muster_store::{
    EntryPayload, FoundingId, Identity, OpenMode, ReplicaStore, SnapshotMeta, StoreOptions, StoredMembership,
};
use muster_types::{Leadership, LogIndex, RefusalCode, ReplicaId};
use muster_wire::v1;
use std::convert::Infallible;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{Cluster, Load, eventually, heavy, job, run_to_end, say};

pub async fn fill(cluster: &Cluster, count: usize) {
    let client = cluster.client();
    for number in 0..count {
        let wanted = Some(job(&format!("kept-{number}"), &["true"]));
        let request = v1::SubmitJobRequest { job: wanted, ..Default::default() };
        client.submit_job(request).await.expect("a job that fits is accepted");
    }
}

/// Turns bytes over all through what a replica keeps in one of its directories.
pub fn damage(directory: &Path) {
    let mut damaged = 0;
    for file in std::fs::read_dir(directory).expect("the directory is there").flatten() {
        let genuine = std::fs::read(file.path()).expect("it can be read");
        let Some(used) = genuine.iter().rposition(|byte| *byte != 0) else { continue };
        let file = std::fs::OpenOptions::new().write(true).open(file.path()).expect("it can be opened");
        for at in (used / 3..used).step_by(64) {
            file.write_all_at(&[!genuine[at]], at as u64).expect("it can be written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there was nothing to damage in {}", directory.display());
}

fn evidence_in(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("damaged-")))
        .collect()
}

impl Cluster {
    /// Waits until a replica is a voter like every other again.
    async fn votes_again(&self, at: usize) {
        let id = self.replicas[at].id;
        eventually(&format!("replica {at} does not vote again"), || async {
            let own = self.status_of(at).await.ok()?;
            let votes = own.replicas.iter().any(|replica| replica.id == id && replica.voter);
            let is_back = own.health.as_ref().is_some_and(|health| !health.rejoining);
            (votes && is_back && own.role() == v1::ReplicaRole::Follower).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_replica_rebuilds_itself_and_never_votes_meanwhile() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 0, "").await;
    fill(&cluster, 20).await;
    let (damaged, leader) = (cluster.follower().await, cluster.leader().await);
    let other = (0..3).find(|at| *at != damaged && *at != leader).unwrap();
    for at in 0..3 {
        cluster.stop(at).await;
    }
    let data = cluster.replicas[damaged].data();
    damage(&data.join("log"));

    // With it the other one would be a majority. It must not become one: what this replica has promised
    // is unknown to it.
    cluster.start_replica(other);
    cluster.start_replica(damaged);
    eventually("the damage is not noticed", || async {
        let log = cluster.log_of(damaged);
        (log.contains("damaged") && log.contains("has not rejoined yet")).then_some(())
    })
    .await;
    assert_eq!(evidence_in(&data).len(), 1, "the damaged content is kept");
    // The other one has asked for its vote by now, and did not get it.
    eventually("nobody asks for its vote", || async {
        cluster.log_of(other).contains("it does not vote before it has rejoined").then_some(())
    })
    .await;
    let status = eventually("it does not serve", || async { cluster.status_of(damaged).await.ok() }).await;
    assert!(status.health.is_some_and(|health| health.rejoining));
    for at in [other, damaged] {
        let status = eventually("it does not serve", || async { cluster.status_of(at).await.ok() }).await;
        assert_ne!(
            status.role(),
            v1::ReplicaRole::Leader,
            "it was elected with a vote that nobody may give: {status:?}"
        );
    }

    // With the third there is a majority of those who know what they promised.
    cluster.start_replica(leader);
    cluster.leader().await;
    cluster.votes_again(damaged).await;
    fill(&cluster, 3).await;
    cluster.assert_digests_agree().await;
    // From here on it is a voter like every other.
    let now = cluster.leader().await;
    if now != damaged {
        cluster.kill(now).await;
        cluster.leader().await;
        fill(&cluster, 3).await;
        cluster.start_replica(now);
    }
    cluster.assert_digests_agree().await;
    say("a damaged replica: noticed, kept as evidence, rebuilt by itself, a voter again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_disk_comes_back_with_one_command() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 0, "[recovery]\nrebuild = \"manual\"\n").await;
    let mut load = Load::start(&cluster);
    load.progress().await;
    let lost = cluster.follower().await;
    let config = cluster.replicas[lost].config();
    let config = config.to_str().unwrap();
    let data = cluster.replicas[lost].data();
    cluster.kill(lost).await;
    // Damaged, and it was not told to repair that.
    damage(&data.join("log"));
    let ran = run_to_end(&["server", "--config", config], "").await;
    ran.assert_refused(1, &["damaged", "--rebuild"]);
    let look = ["server", "--config", config, "--rebuild", "--dry-run"];
    let told = run_to_end(&look, "").await;
    assert!(told.code == Some(0) && told.out.contains("is damaged"), "{told:#?}");
    assert!(evidence_in(&data).is_empty(), "it was emptied without being told to");
    // Gone altogether.
    std::fs::remove_dir_all(&data).unwrap();
    let ran = run_to_end(&["server", "--config", config], "").await;
    ran.assert_refused(1, &["holds no replica", "--rebuild"]);
    let told = run_to_end(&look, "").await;
    assert!(told.code == Some(0) && told.out.contains("holds no replica") && !data.exists(), "{told:#?}");
    cluster.start_replica_with(lost, &["--rebuild"]);
    cluster.votes_again(lost).await;
    load.progress().await;
    // An intact directory is left as it is, whatever the service's command line says.
    cluster.stop(lost).await;
    let told = run_to_end(&look, "").await;
    assert!(told.code == Some(0) && told.out.contains("is intact"), "{told:#?}");
    cluster.start_replica_with(lost, &["--rebuild"]);
    cluster.votes_again(lost).await;
    assert!(evidence_in(&data).is_empty(), "an intact directory was emptied");
    load.finish().await;
    cluster.assert_digests_agree().await;
}

/// Gives a stopped replica the state it would have if what it was asked for had been something else.
pub async fn falsify(cluster: &Cluster, at: usize) {
    let files = &cluster.replicas[at];
    let identity = Identity { cluster_id: cluster.id, replica_id: ReplicaId(files.id), generation: 1 };
    let options = StoreOptions::production();
    let store = ReplicaStore::open(&files.data(), identity, OpenMode::Existing, options.clone());
    let store = store.expect("a stopped replica can be opened");
    let mut state = State::default();
    let mut membership = StoredMembership::default();
    let (mut last, mut falsified) = (None, false);
    let end = store.log.last().expect("it has a log").index() + 1;
    let mut next = 0;
    while next < end {
        for entry in store.log.read(next, end, 1 << 20).await.expect("the log can be read") {
            next = entry.log_id.index() + 1;
            last = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(found) => membership = StoredMembership::new(last, found),
                EntryPayload::Normal(payload) => {
                    let mut round = decode_round(&payload.0, FORMAT_MAX).expect("the log holds rounds");
                    let leadership = Leadership { term: round.term, replica: round.replica };
                    for (ordinal, decision) in round.decisions.iter_mut().enumerate() {
                        if let Decision::JobsSubmitted { request, .. } = decision {
                            request.fingerprint ^= 1;
                            falsified = true;
                        }
                        let index = LogIndex(round.first_index.0 + ordinal as u64);
                        state.apply(leadership, index, round.log_time, decision);
                    }
                }
            }
        }
    }
    assert!(falsified, "there was nothing to falsify");
    store.log.close().await;
    drop(store);
    std::fs::remove_dir_all(files.data()).expect("the directory can be removed");
    let meta = SnapshotMeta { last_log_id: last, last_membership: membership };
    let chunks = state.snapshot().map(|chunk| Ok::<_, Infallible>(chunk.into()));
    let made = ReplicaStore::create_from(&files.data(), identity, FoundingId::Unknown, meta, chunks, options);
    let made = made.expect("a directory can be made");
    made.log.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_diverged_replica_stops_keeps_its_evidence_and_is_rebuilt() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 0, "").await;
    fill(&cluster, 5).await;
    let wrong = cluster.follower().await;
    cluster.stop(wrong).await;
    falsify(&cluster, wrong).await;
    cluster.start_replica(wrong);
    // The log carries the digest of the true state every fifty records.
    let ended = async {
        let mut number = 0;
        loop {
            fill(&cluster, 10).await;
            number += 10;
            let mark = cluster.replicas[wrong].data().join("DIVERGED");
            if mark.exists() || number > 400 {
                return mark.exists();
            }
        }
    };
    assert!(ended.await, "nobody noticed");
    let status = cluster.ended(wrong).await;
    assert!(!status.success(), "it has to say that it stopped");
    let data = cluster.replicas[wrong].data();
    let mark = std::fs::read_to_string(data.join("DIVERGED")).unwrap();
    for part in ["log_index", "expected_digest", "actual_digest"] {
        assert!(mark.contains(part), "{mark}");
    }
    let state = data.join("diverged.backup");
    let ran = run_to_end(&["backup", "verify", state.to_str().unwrap()], "").await;
    assert_eq!(ran.code, Some(0), "its state is kept: {ran:#?}");

    // It does not start as it is; the cluster goes on without it.
    let config = cluster.replicas[wrong].config();
    let ran = run_to_end(&["server", "--config", config.to_str().unwrap()], "").await;
    ran.assert_refused(1, &["has diverged at log index", "--rebuild"]);
    fill(&cluster, 2).await;
    cluster.start_replica_with(wrong, &["--rebuild"]);
    cluster.votes_again(wrong).await;
    let kept = evidence_in(&data);
    assert!(kept.len() == 1 && kept[0].join("DIVERGED").exists() && kept[0].join("log").exists(), "{kept:?}");
    assert!(!data.join("DIVERGED").exists());
    cluster.assert_digests_agree().await;
}

/// A separate disk for a replica, that can be made larger and smaller without anything being written.
pub struct Disk {
    directory: PathBuf,
}

impl Disk {
    pub fn mount(directory: &Path) -> Option<Disk> {
        std::fs::create_dir_all(directory).ok()?;
        let disk = Disk { directory: directory.to_path_buf() };
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=8g", "none"]).arg(directory).output();
        mounted.is_ok_and(|ran| ran.status.success()).then_some(disk)
    }

    pub fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let resized = Command::new("mount").args(["-o", &options]).arg(&self.directory).output();
        assert!(
            resized.is_ok_and(|ran| ran.status.success()),
            "{} cannot be resized",
            self.directory.display()
        );
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still have a file of it.
        let _ = Command::new("umount").arg("-l").arg(&self.directory).output();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_costs_the_leadership_then_new_work_and_nothing_else() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    let disks: Vec<Disk> = (0..3).filter_map(|at| Disk::mount(&cluster.replicas[at].data())).collect();
    if disks.len() < 3 {
        say(
            "SKIPPED a_full_disk_costs_the_leadership_then_new_work_and_nothing_else: this user cannot mount a tmpfs",
        );
        return;
    }
    cluster.found().await;
    // Such a disk is none: said at the start, and by the leader of every replica.
    eventually("storage in memory is not warned of", || async {
        let status = cluster.operated(&["cluster", "status"]).await;
        let said = |id: u64| status.contains(&format!("the data directory of r{id} is in memory"));
        (1..=3).all(said).then_some(())
    })
    .await;
    for replica in &cluster.replicas {
        let log = std::fs::read_to_string(replica.home.join("log")).unwrap_or_default();
        assert!(log.contains("STORAGE_VOLATILE"), "{log}");
    }
    let mut load = Load::start(&cluster);
    load.progress().await;

    // The leader's disk: another one leads, and nobody is refused.
    let leader = cluster.leader().await;
    disks[leader].resize("600m");
    eventually("the leadership stays with the full disk", || async {
        let next = cluster.leader().await;
        (next != leader).then_some(())
    })
    .await;
    load.progress().await;
    load.finish().await;

    // All of them: new work is refused, and what is there can be read.
    disks.iter().for_each(|disk| disk.resize("600m"));
    let options =
        muster_client::Options { deadline: Duration::from_secs(3), ..muster_client::Options::STANDARD };
    let hasty = cluster.client().with_options(options);
    eventually("new work is not refused", || async {
        let request = v1::SubmitJobRequest { job: Some(job("too-much", &["true"])), ..Default::default() };
        let error = hasty.submit_job(request).await.err()?;
        let refused = error.refused()?;
        let is_full = refused.code == Some(RefusalCode::StorageFull);
        assert!(!is_full || refused.retry_after.is_some(), "a hint when to try again: {refused:?}");
        is_full.then_some(())
    })
    .await;
    let status = cluster.operated(&["cluster", "status"]).await;
    assert!(status.contains("warning: the data disk of r"), "{status}");

    // Free space again: no restart, no lost work.
    disks.iter().for_each(|disk| disk.resize("8g"));
    fill(&cluster, 3).await;
    cluster.assert_digests_agree().await;
    cluster.kill_all_at_once().await;
}

/// `--bootstrap` that stays in a unit file must not give a lost disk its vote back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_disk_was_replaced_is_not_founded_beside_the_others() {
    let mut cluster = Cluster::start_with(3, 0, "").await;
    fill(&cluster, 5).await;
    cluster.kill(0).await;
    let data = cluster.replicas[0].data();
    std::fs::remove_dir_all(&data).unwrap();
    let config = cluster.replicas[0].config();
    let ran = run_to_end(&["server", "--config", config.to_str().unwrap(), "--bootstrap"], "").await;
    ran.assert_refused(1, &["has this cluster already", "--rebuild"]);
    // As it is, with what the refused start left behind, it still promises nothing; and the advice helps.
    cluster.start_replica_with(0, &["--rebuild"]);
    cluster.votes_again(0).await;
    cluster.assert_digests_agree().await;
    cluster.assert_alive();
}
