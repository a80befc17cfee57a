//! History is never lost: everything from the first record on, whatever became of the log.

use muster_client::{LogItem, Read};
use muster_wire::v1;
use serde_json::Value;
use std::time::Duration;

use crate::support::{Cluster, eventually, heavy, job, node, register, run_to_end};

/// Snapshots and segments every moment, so that the log is purged within a test.
const EAGER: &str =
    "\n[snapshots]\nevery_entries = 20\nkept_entries = 5\n\n[archive]\nsegment_age = \"200ms\"\n";
const REPLICAS: usize = 3;

fn cluster() -> Cluster {
    let cluster = Cluster::lay_out(REPLICAS);
    for at in 0..REPLICAS {
        // Before the members, which are separate tables.
        let config = cluster.config_of(at).replacen("\n[[members]]", &format!("{EAGER}\n[[members]]"), 1);
        std::fs::write(cluster.replicas[at].config(), config).expect("writing a config");
    }
    cluster
}

/// Waits for a leader, and makes a node known that jobs could run on; no agent is behind it.
async fn start(cluster: &Cluster) {
    let leader = cluster.leader().await;
    register(&cluster.replicas[leader].endpoint(), node("host-1")).await.expect("it is registered");
}

async fn submit(cluster: &Cluster, count: usize, what: &str) -> u64 {
    let client = cluster.client();
    for number in 0..count {
        let wanted = Some(job(&format!("{what}-{number}"), &["true"]));
        let request = v1::SubmitJobRequest { job: wanted, ..Default::default() };
        client.submit_job(request).await.expect("it is taken");
    }
    client.seen_log_index()
}

async fn purged(cluster: &Cluster, at: usize) {
    eventually("the log was not purged", || async {
        let status = cluster.client_of(at).get_archive_status().await.ok()?;
        let raft = cluster.status_of(at).await.ok()?;
        (status.segments > 1 && raft.raft_snapshot_index > 20).then_some(())
    })
    .await;
}

async fn export(endpoint: &str) -> Vec<Value> {
    let ran = run_to_end(&["--endpoint", endpoint, "log", "export"], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    ran.out.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn assert_whole(records: &[Value], at_least: u64) {
    for (place, record) in records.iter().enumerate() {
        assert_eq!(record["logIndex"], place as u64 + 1);
    }
    assert!(records.len() as u64 >= at_least, "{} of {at_least}", records.len());
}

/// A running cluster, and the index of a record: the log of no replica has it any more.
async fn with_purged_records() -> (Cluster, u64) {
    let mut cluster = cluster();
    for at in 0..REPLICAS {
        cluster.start_replica_first(at);
    }
    start(&cluster).await;
    let early = submit(&cluster, 60, "early").await;
    for at in 0..REPLICAS {
        cluster.caught_up(at, early).await;
        purged(&cluster, at).await;
    }
    (cluster, early)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_after_purges_and_restarts() {
    let _heavy = heavy().await;
    let (mut cluster, early) = with_purged_records().await;
    let early_digest = digest_at(&cluster, 0, early).await;
    cluster.kill_all_at_once().await;
    cluster.restart_all().await;
    let late = submit(&cluster, 60, "late").await;
    for at in 0..REPLICAS {
        cluster.caught_up(at, late).await;
        let records = export(&cluster.replicas[at].endpoint()).await;
        assert_whole(&records, late);
        let submitted = records.iter().filter(|record| record["decision"] == "jobs_submitted").count();
        assert_eq!(submitted, 120);
        assert_eq!(digest_at(&cluster, at, early).await, early_digest, "of the past, on replica {at}");
    }

    // The past, as everybody sees it.
    let client = cluster.client().reading(Read::at_log_index(early));
    let page = client.list_jobs(v1::ListJobsRequest { page_size: 1_000, ..Default::default() }).await;
    let page = page.expect("the past can be read");
    assert_eq!(page.freshness.map(|f| f.log_index), Some(early));
    assert!(page.jobs.iter().all(|job| job.name.starts_with("early")) && !page.jobs.is_empty());
    let listed = ["job", "list", "--at", &early.to_string(), "-o", "name"];
    let ran = run_to_end(&[&["--endpoint", &cluster.replicas[0].endpoint()], &listed[..]].concat(), "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(ran.out.lines().count(), page.jobs.len());

    reported(&cluster, late, (early, &early_digest)).await;

    // A copy of an archive says the same without a cluster.
    cluster.stop(0).await;
    let archive = cluster.replicas[0].data().join("archive");
    let archive = archive.to_str().expect("the test's directory is text");
    let ran = run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let at = early.to_string();
    let ran = run_to_end(&["log", "state", "--archive", archive, "--at", &at, "-o", "json"], "").await;
    let state: Value = serde_json::from_str(&ran.out).expect("it is JSON");
    assert_eq!(
        (state["logIndex"].as_u64(), state["stateDigest"].as_str()),
        (Some(early), Some(&*early_digest))
    );
    cluster.start_all();
    cluster.assert_digests_agree().await;
}

/// What a command answers as JSON, of the cluster of an endpoint.
async fn answer(endpoint: &str, words: &[&str]) -> Value {
    let ran = run_to_end(&[&["--endpoint", endpoint][..], words, &["-o", "json"][..]].concat(), "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    serde_json::from_str(&ran.out).expect("it is JSON")
}

/// Reports, bisection and capsules read what is archived and what is not yet.
async fn reported(cluster: &Cluster, late: u64, (early, early_digest): (u64, &str)) {
    let endpoint = cluster.replicas[0].endpoint();
    let usage = answer(&endpoint, &["report", "usage"]).await;
    assert_eq!((usage["firstLogIndex"].as_u64(), &usage["total"]), (Some(1), &usage["capacity"]));
    assert!(usage["lastLogIndex"].as_u64() >= Some(late), "{usage}");
    let data = cluster.replicas[0].data();
    let data = data.to_str().expect("the test's directory is text");
    let idle = answer(&endpoint, &["report", "idle", "--archive", data, "--tail"]).await;
    assert!(idle["lastLogIndex"].as_u64() >= Some(late), "{idle}");
    assert_eq!(idle["conservationError"], "0", "{idle}");
    let to = late.to_string();
    let waits = ["report", "waits", "--to", &to];
    let plain = answer(&endpoint, &waits).await;
    let divided = answer(&endpoint, &[&waits[..], &["--sample", "0s"]].concat()).await;
    assert_eq!(plain["total"], divided["total"], "{divided}");
    let told = answer(&endpoint, &["report", "predictions", "--sample", "0s"]).await;
    let count = |name: &str| told[name].as_u64().expect("it is a number");
    let known = count("unpredicted") + count("started") + count("never") + count("open");
    assert_eq!(count("asked"), known, "{told}");
    let jobs = answer(&endpoint, &["job", "list", "--all"]).await;
    let job = jobs["items"][0]["id"].as_str().expect("there are jobs");
    assert_eq!(answer(&endpoint, &["job", "when", job]).await["job"].as_str(), Some(job));
    let turns = answer(&endpoint, &["fairness", "verify"]).await;
    assert!(turns["turns"]["outOfTurn"].is_u64(), "{turns}");
    let check = format!("digest {early} {early_digest}");
    let whole = answer(&endpoint, &["log", "bisect", "--check", &check, "--archive", data]).await;
    assert_eq!((whole["holdsAt"].as_u64(), whole["failsAt"].as_u64()), (Some(early), None));
    let file = cluster.replicas[0].data().with_file_name("incident.capsule");
    let file = file.to_str().expect("the test's directory is text");
    let around = early.to_string();
    let capture = ["incident", "capture", "--around", &around, "--margin", "1h", "--out", file];
    let captured = answer(&endpoint, &capture).await;
    let replayed = answer(&endpoint, &["incident", "replay", file]).await;
    assert_eq!(captured["aroundLogIndex"].as_u64(), Some(early));
    assert_eq!(replayed["digestAfter"], captured["digestAfter"]);
    assert!(replayed["records"].as_array().is_some_and(|records| !records.is_empty()), "{replayed}");
}

/// The digest of the state at an index, as the status of a replica tells it.
async fn digest_at(cluster: &Cluster, at: usize, index: u64) -> String {
    eventually("no status of the past", || async {
        let client = cluster.client_of(at).reading(Read::at_log_index(index));
        Some(client.get_status(v1::GetStatusRequest::default()).await.ok()?.state_digest)
    })
    .await
}

/// A follower of the log goes on through another replica, exactly behind its last record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_survives_its_replica() {
    let _heavy = heavy().await;
    let mut cluster = cluster();
    for at in 0..REPLICAS {
        cluster.start_replica_first(at);
    }
    start(&cluster).await;
    let request = v1::ReadDecisionsRequest { from_index: 1, follow: true, ..Default::default() };
    let mut reader = cluster.client().read_decisions(request);
    let first = submit(&cluster, 20, "first").await;
    let mut seen: Vec<u64> = Vec::new();
    read_to(&mut reader, &mut seen, first).await;
    for at in 0..REPLICAS {
        cluster.kill(at).await;
        let more = submit(&cluster, 10, "more").await;
        read_to(&mut reader, &mut seen, more).await;
        cluster.start_replica(at);
        cluster.caught_up(at, more).await;
    }
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
    cluster.assert_digests_agree().await;
}

/// A change is compared with what the cluster does meanwhile, by a process next to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_compares_what_happens_while_it_follows() {
    let _heavy = heavy().await;
    let mut cluster = cluster();
    for at in 0..REPLICAS {
        cluster.start_replica_first(at);
    }
    start(&cluster).await;
    let endpoint = cluster.replicas[0].endpoint();
    let data = cluster.replicas[0].data();
    let data = data.to_str().expect("the test's directory is text");
    let mut ended = Vec::new();
    for source in [&[][..], &["--archive", data, "--tail"]] {
        let words = ["shadow", "--fleet=-host-1", "--for", "6s", "--every", "1h", "--json"];
        let words = [&["--endpoint", endpoint.as_str()][..], &words, source].concat();
        let mut following = std::pin::pin!(run_to_end(&words, ""));
        // A few jobs a second: each is replayed.
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        // What is submitted before it follows is not in its range.
        let ran = loop {
            tokio::select! {
                ran = &mut following => break ran,
                _ = pace.tick() => {
                    submit(&cluster, 1, "meanwhile").await;
                }
            }
        };
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        let last = ran.out.lines().last().expect("it has compared");
        let found: Value = serde_json::from_str(last).expect("a line is JSON");
        assert!(found["record"]["submitted"].as_u64() > Some(0), "{found}");
        assert_eq!(found["record"]["submitted"], found["unchanged"]["submitted"]);
        assert_eq!(found["change"][0], "fleet -host-1");
        let caveats = found["caveats"].as_array().expect("there are some");
        let says =
            |part: &str| caveats.iter().any(|caveat| caveat.as_str().is_some_and(|text| text.contains(part)));
        assert!(says("are compared") && says("behind"), "{found}");
        ended.push(found["logIndex"].clone());
    }
    assert!(ended[0].as_u64() < ended[1].as_u64(), "{ended:?}");
}

async fn read_to(reader: &mut muster_client::LogReader, seen: &mut Vec<u64>, to: u64) {
    let reading = async {
        while seen.last().is_none_or(|last| *last < to) {
            match reader.next().await.expect("the log can be read") {
                Some(LogItem::Record(record)) => seen.push(record.log_index),
                Some(_) => {}
                None => panic!("who follows comes to no end"),
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), reading).await;
    assert!(ended.is_ok(), "record {to} did not come; the last was {:?}", seen.last());
}

/// History that cannot be reached keeps no replica from serving. It is written on when it can be reached again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_serves_without_its_archive_and_goes_on_with_it() {
    let _heavy = heavy().await;
    let mut cluster = cluster();
    for at in 0..REPLICAS {
        cluster.start_replica_first(at);
    }
    start(&cluster).await;
    let early = submit(&cluster, 40, "early").await;
    for at in 0..REPLICAS {
        cluster.caught_up(at, early).await;
        purged(&cluster, at).await;
    }
    cluster.stop(0).await;
    let (archive, away) = (cluster.replicas[0].data().join("archive"), cluster.scratch.path().join("away"));
    std::fs::rename(&archive, &away).expect("the archive is moved");
    std::fs::write(&archive, b"no directory").expect("a file is put where it was");

    // It serves and is told to say why its history does not grow.
    cluster.start_replica(0);
    let late = submit(&cluster, 40, "late").await;
    cluster.caught_up(0, late).await;
    eventually("nobody is warned", || async {
        let status = cluster.status_of(0).await.ok()?;
        status.warnings.iter().any(|warning| warning.code == "ARCHIVE_FAILING").then_some(())
    })
    .await;
    let status = cluster.client_of(0).get_archive_status().await.expect("it answers");
    assert!(status.enabled && !status.failure_message.is_empty() && status.segments == 0, "{status:?}");
    let past = cluster.client_of(0).reading(Read::at_log_index(early));
    let refused = past.get_status(v1::GetStatusRequest::default()).await.expect_err("there is no past");
    let code = refused.refused().and_then(|refused| refused.code);
    assert_eq!(code, Some(muster_types::RefusalCode::ArchiveUnavailable), "{refused:?}");

    // The archive is back: what was decided meanwhile is put behind it, without a restart.
    std::fs::remove_file(&archive).expect("the file is taken away");
    std::fs::rename(&away, &archive).expect("the archive is moved back");
    let later = submit(&cluster, 5, "later").await;
    eventually("the archive does not go on", || async {
        let status = cluster.client_of(0).get_archive_status().await.ok()?;
        (status.failure_message.is_empty() && status.last_log_index >= later).then_some(())
    })
    .await;
    eventually("the warning stays", || async {
        let status = cluster.status_of(0).await.ok()?;
        status.warnings.iter().all(|warning| warning.code != "ARCHIVE_FAILING").then_some(())
    })
    .await;
    assert_whole(&export(&cluster.replicas[0].endpoint()).await, later);
    cluster.stop(0).await;
    let archive = archive.to_str().expect("the test's directory is text");
    let ran = run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
}

/// What does not stay in the archive is in another directory, and who asks for it is told where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_segments_are_moved_to_another_folder() {
    let _heavy = heavy().await;
    let mut cluster = cluster();
    let offload = cluster.scratch.path().join("offload");
    std::fs::create_dir(&offload).expect("a directory is made");
    let to = offload.to_str().expect("the test's directory is text").to_owned();
    let retention = format!("[archive]\noffload_dir = {to:?}\nlocal_age_max = \"1s\"\n");
    let config = cluster.config_of(0).replacen("\n[[members]]", &format!("{EAGER}\n[[members]]"), 1);
    std::fs::write(cluster.replicas[0].config(), config.replacen("[archive]\n", &retention, 1))
        .expect("written");
    for at in 0..REPLICAS {
        cluster.start_replica_first(at);
    }
    start(&cluster).await;
    // Work goes on, so that there are records that are newer by more than the bound.
    let through = eventually("nothing is moved", || async {
        submit(&cluster, 5, "some").await;
        let status = cluster.client_of(0).get_archive_status().await.ok()?;
        assert_eq!(status.offload_failure_message, "");
        (status.offloaded_through_index > 0).then_some(status.offloaded_through_index)
    })
    .await;
    let last = submit(&cluster, 5, "last").await;
    cluster.caught_up(0, last).await;
    let refused = run_to_end(&["--endpoint", &cluster.replicas[0].endpoint(), "log", "show", "1"], "").await;
    assert!(refused.code != Some(0) && refused.err.contains(&to), "{refused:#?}");
    let ran = run_to_end(&["--endpoint", &cluster.replicas[0].endpoint(), "log", "verify"], "").await;
    assert!(ran.code == Some(0) && ran.out.contains(&to), "{ran:#?}");
    assert_whole(&export(&cluster.replicas[1].endpoint()).await, through);

    cluster.stop(0).await;
    let archive = cluster.replicas[0].data().join("archive");
    let archive = archive.to_str().expect("the test's directory is text");
    let alone = run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert!(alone.code == Some(0) && alone.out.contains("were moved to"), "{alone:#?}");
    let both = ["log", "verify", "--archive", archive, "--archive", &to];
    let both = run_to_end(&both, "").await;
    assert!(both.code == Some(0) && !both.out.contains("were moved to"), "{both:#?}");
    cluster.start_replica(0);
    cluster.caught_up(0, last).await;
    cluster.assert_digests_agree().await;
}

/// Damage of history on a disk is reported, and the history is repaired without an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_segment_in_the_middle_is_named_and_fetched_from_another_replica() {
    let _heavy = heavy().await;
    let (mut cluster, _) = with_purged_records().await;
    // More than one segment that the log does not have any more.
    let archive = cluster.replicas[0].data().join("archive");
    let directory = archive.join("segments/0000000001");
    let segments = || {
        let files = std::fs::read_dir(&directory).expect("the archive has segments");
        let mut files: Vec<_> = files.map(|file| file.expect("it is listed").path()).collect();
        files.sort();
        files
    };
    let last = eventually("there are too few segments", || async {
        let last = submit(&cluster, 10, "more").await;
        (segments().len() > 4).then_some(last)
    })
    .await;
    let all = segments();
    let (damaged, gone) = (&all[0], &all[2]);
    let whole = [damaged, gone].map(|file| std::fs::read(file).expect("it can be read"));
    let mut bad = whole[0].clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(damaged, &bad).expect("it is damaged");
    std::fs::remove_file(gone).expect("it is removed");

    // The first reader that meets the damage is told which object it is.
    let endpoint = cluster.replicas[0].endpoint();
    let name = damaged.file_name().and_then(|name| name.to_str()).expect("a name is text");
    let ran = run_to_end(&["--endpoint", &endpoint, "log", "show", "1"], "").await;
    assert!(ran.code != Some(0) && ran.err.contains(name), "{ran:#?}");
    let at_gone: u64 =
        gone.file_name().and_then(|name| name.to_str()?.split('-').next()?.parse().ok()).unwrap_or(0);
    let ran = run_to_end(&["--endpoint", &endpoint, "log", "show", &at_gone.to_string()], "").await;
    assert!(ran.code != Some(0) || std::fs::read(gone).is_ok(), "{ran:#?}");
    eventually("it is not mended", || async {
        let now = [damaged, gone].map(|file| std::fs::read(file).unwrap_or_default());
        (now == whole).then_some(())
    })
    .await;
    let warned = eventually("nobody is warned", || async {
        let status = cluster.status_of(0).await.ok()?;
        status.warnings.into_iter().find(|warning| warning.code == "ARCHIVE_DAMAGED")
    })
    .await;
    assert!(warned.message.contains("rebuilt"), "{warned:?}");
    assert!(archive.join("damaged").is_dir(), "what was damaged is kept");
    assert_whole(&export(&endpoint).await, last);
    cluster.stop(0).await;
    let archive = archive.to_str().expect("the test's directory is text");
    let ran = run_to_end(&["log", "verify", "--archive", archive], "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
}
