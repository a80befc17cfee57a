//! A cluster continues: from a backup, and from the one replica that is left.

use muster_types::RefusalCode;
use muster_wire::v1::{self, JobPhase};
use std::path::{Path, PathBuf};

use crate::support::{
    Agents, Cluster, Ran, all_jobs, eventually, heavy, job, run_to_end, say, wait_for_job, work,
};

fn text(path: &Path) -> &str {
    path.to_str().expect("the test's directory is text")
}

async fn verify(file: &Path) -> Ran {
    run_to_end(&["backup", "verify", text(file)], "").await
}

impl Cluster {
    /// Something to lose; how many jobs there are then.
    async fn fill(&self, count: usize) -> usize {
        let client = self.client();
        let specs = (0..count).map(|number| job(&format!("kept-{number}"), &["true"])).collect();
        let request = v1::SubmitJobsRequest { jobs: specs, ..Default::default() };
        client.submit_jobs(request).await.expect("jobs that fit are accepted");
        all_jobs(&client).await.len()
    }

    /// Waits until the cluster has begun a generation.
    async fn generation(&self, at: usize, wanted: u32) {
        eventually(&format!("generation {wanted} does not begin"), || async {
            let status = self.status_of(at).await.ok()?;
            (status.cluster_generation == wanted).then_some(())
        })
        .await;
    }
}

/// A segment of the archive every moment, so that history is there within a test.
const EAGER: &str = "\n[archive]\nsegment_age = \"200ms\"\n";
/// Generations in a history through two generations; the records before the cluster's founding are of none.
const GENERATIONS: [u32; 3] = [0, 1, 2];

impl Cluster {
    /// Waits until the archive of a replica reaches so far.
    async fn archived(&self, at: usize, log_index: u64) {
        eventually("the archive does not get that far", || async {
            let status = self.client_of(at).get_archive_status().await.ok()?;
            (status.last_log_index >= log_index).then_some(())
        })
        .await;
    }

    /// Where a replica is in the log.
    async fn position(&self, at: usize) -> u64 {
        eventually("it has no position", || async {
            self.status_of(at).await.ok()?.freshness.map(|fresh| fresh.log_index)
        })
        .await
    }

    /// Reads every record that a replica has, from the first one on; the generations they are of.
    async fn whole_history(&self, at: usize) -> Vec<u32> {
        let end = self.position(at).await;
        let request = v1::ReadDecisionsRequest { from_index: 1, to_index: end, ..Default::default() };
        let mut reader = self.client_of(at).read_decisions(request);
        let (mut next, mut generations) = (1, Vec::new());
        while let Some(item) = reader.next().await.expect("history can be read") {
            if let muster_client::LogItem::Record(record) = item {
                assert_eq!(record.log_index, next, "a record is missing");
                next += 1;
                generations.push(record.generation);
            }
        }
        assert_eq!(next, end + 1);
        assert!(generations.is_sorted());
        generations.dedup();
        generations
    }

    /// The archive of a replica that does not run is whole.
    async fn assert_archive_is_whole(&self, at: usize) {
        let archive = self.replicas[at].data().join("archive");
        let ran = run_to_end(&["log", "verify", "--archive", text(&archive)], "").await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
    }
}

/// Uses a token; whether it is the current one.
async fn use_token(cluster: &Cluster, job_id: &str, token: v1::FencingToken) -> Option<RefusalCode> {
    let request = v1::CommitCheckpointRequest { job_id: job_id.to_owned(), token: Some(token) };
    let answer = cluster.client().commit_checkpoint(request).await;
    answer.err().map(|error| error.refused().and_then(|refused| refused.code).expect("a refusal has a code"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_checked_and_restored_into_a_new_generation() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 1, EAGER).await;
    let jobs = cluster.fill(20).await;
    let file = cluster.scratch.path().join("a.backup");
    // From any replica: one that follows.
    let follower = cluster.follower().await;
    let seen = cluster.client().seen_log_index();
    cluster.caught_up(follower, seen).await;
    let from = cluster.replicas[follower].endpoint();
    let ran = run_to_end(&["--endpoint", &from, "backup", "create", "--out", text(&file)], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let again = run_to_end(&["--endpoint", &from, "backup", "create", "--out", text(&file)], "").await;
    again.assert_refused(5, &["exists already"]);
    let ran = verify(&file).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.out.contains(&format!("verified: {jobs} jobs")), "{}", ran.out);

    // One byte of it turned over, anywhere: nobody takes it.
    let genuine = std::fs::read(&file).unwrap();
    let bad = cluster.scratch.path().join("bad.backup");
    let config = cluster.replicas[3].config();
    for at in [0, 9, 40, genuine.len() / 2, genuine.len() - 1] {
        let mut bytes = genuine.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&bad, bytes).unwrap();
        let ran = verify(&bad).await;
        assert!(matches!(ran.code, Some(1 | 2)) && ran.out.is_empty(), "byte {at}: {ran:#?}");
        let ran =
            run_to_end(&["backup", "restore", "--from", text(&bad), "--config", text(&config)], "").await;
        assert_ne!(ran.code, Some(0), "byte {at}: {ran:#?}");
        assert!(!cluster.replicas[3].data().join("IDENTITY").exists(), "a directory was made of damage");
    }

    // What comes behind the backup is in an archive, and lost all the same.
    cluster.fill(5).await;
    let lost = cluster.position(cluster.leader().await).await;
    cluster.caught_up(follower, lost).await;
    cluster.archived(follower, lost).await;

    // Everything is lost. The fourth begins again, alone, with what was saved.
    cluster.kill_all_at_once().await;
    let archive = cluster.replicas[follower].data().join("archive");
    let restore = ["backup", "restore", "--from", text(&file), "--config", text(&config), "--archive"];
    let nowhere = run_to_end(&[&restore[..], &["/nowhere"]].concat(), "").await;
    nowhere.assert_refused(3, &["/nowhere cannot be opened"]);
    let empty = cluster.scratch.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    run_to_end(&[&restore[..], &[text(&empty)]].concat(), "")
        .await
        .assert_refused(3, &["no segment of a log"]);
    let restore = [&restore[..], &[text(&archive)]].concat();
    let ran = run_to_end(&restore, "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let again = run_to_end(&restore, "").await;
    again.assert_refused(5, &["holds no replica"]);
    cluster.start_replica(3);
    cluster.generation(3, 2).await;
    let client = cluster.client_of(3);
    assert_eq!(all_jobs(&client).await.len(), jobs);
    let request = v1::SubmitJobRequest { job: Some(job("after", &["true"])), ..Default::default() };
    client.submit_job(request).await.expect("it takes work");
    // History from the first record on, through both generations, in the archive as well.
    let seen = client.seen_log_index();
    cluster.archived(3, seen).await;
    assert_eq!(cluster.whole_history(3).await, GENERATIONS);
    cluster.stop(3).await;
    cluster.assert_archive_is_whole(3).await;
    cluster.start_replica(3);
    cluster.caught_up(3, seen).await;
    assert_eq!(cluster.whole_history(3).await, GENERATIONS, "after a restart");
    cluster.assert_digests_agree().await;
    say(&format!("backup and restore: {jobs} jobs, {} bytes", genuine.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_survivor_goes_on_and_those_of_before_are_refused() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 0, EAGER).await;
    let jobs = cluster.fill(10).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let evidence: PathBuf = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&evidence).unwrap();
    let request =
        v1::SubmitJobRequest { job: Some(work("held", &evidence, 600_000, 0, (1, 1))), ..Default::default() };
    let id = cluster.client().submit_job(request).await.expect("it fits").job_ids.remove(0);
    let running = wait_for_job(&cluster.client(), &id, |job| job.phase() == JobPhase::Running).await;
    let old =
        running.status().placement.as_ref().and_then(|placement| placement.token).expect("it is placed");
    assert_eq!((old.generation, use_token(&cluster, &id, old).await), (1, None));

    // Two are lost for good; what one has is taken, all of it.
    let survivor = cluster.follower().await;
    let digest_before = {
        let seen = cluster.client().seen_log_index();
        cluster.caught_up(survivor, seen).await;
        all_jobs(&cluster.client_of(survivor)).await.len()
    };
    cluster.kill_all_at_once().await;
    let config = cluster.replicas[survivor].config();
    let recover = ["server", "recover", "--config", text(&config)];
    let looked = run_to_end(&recover, "").await;
    assert_eq!(looked.code, Some(0), "{looked:#?}");
    assert!(looked.out.contains("nothing was changed"), "{}", looked.out);
    let ran = run_to_end(&[&recover[..], &["--lost-majority"]].concat(), "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.out.contains("only voter of generation 2"), "{}", ran.out);
    assert!(ran.out.contains("the archive of the log is moved, through log index"), "{}", ran.out);
    let kept = cluster.replicas[survivor].home.join("data.generation-1");
    assert!(kept.join("IDENTITY").exists(), "the previous data directory is gone");

    cluster.start_replica(survivor);
    cluster.generation(survivor, 2).await;
    assert_eq!(all_jobs(&cluster.client_of(survivor)).await.len(), digest_before);
    assert!(digest_before > jobs);
    assert_eq!(use_token(&cluster, &id, old).await, Some(RefusalCode::Fenced), "a previous token is good");
    // The agent has come back by itself, and the work goes on under a newer token.
    let again = wait_for_job(&cluster.client_of(survivor), &id, |job| {
        job.phase() == JobPhase::Running
            && job.status().placement.as_ref().is_some_and(|p| p.token.is_some_and(|t| t.generation == 2))
    })
    .await;
    let new = again.status().placement.as_ref().and_then(|placement| placement.token).expect("it is placed");
    assert!((new.generation, new.log_index) > (old.generation, old.log_index));

    // What was decided before is known here, down to the first record.
    assert_eq!(cluster.whole_history(survivor).await, GENERATIONS);

    // A previous replica comes back with its disk: it is of another generation.
    let other = (0..3).find(|at| *at != survivor).unwrap();
    cluster.start_replica(other);
    eventually("the previous replica is not refused", || async {
        cluster.log_of(other).contains("generation").then_some(())
    })
    .await;
    let status = cluster.status_of(survivor).await.expect("it serves");
    assert_eq!(status.replicas.len(), 1, "{status:#?}");
    cluster.kill(other).await;

    // With an empty directory it is welcome.
    std::fs::remove_dir_all(cluster.replicas[other].data()).unwrap();
    cluster.start_replica_with(other, &["--join"]);
    let number = cluster.replicas[other].id.to_string();
    let address = cluster.address_of(other);
    let address: Vec<&str> = address.iter().map(String::as_str).collect();
    cluster.operated(&[&["cluster", "add", &number], address.as_slice()].concat()).await;
    cluster.assert_digests_agree().await;
    say("one survivor: generation 2, old tokens and old replicas refused");
}
