//! A rolling upgrade from the release before, with its own programs: replicas, agents and clients.

use muster_client::{Client, Read};
use muster_example::intervals;
use muster_wire::time::{duration, timestamp};
use muster_wire::v1::{self, JobPhase};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{
    Agents, Cluster, Load, accelerators, all_jobs, eventually, heavy, is_finished, job, previous_release,
    run_program_to_end, say, wait_for_job, work,
};

/// The newest record format of this release.
const NEWEST: u32 = muster_journal::FORMAT_MAX as u32;
/// Between two submissions: the jobs run, on a machine that runs replicas and agents too.
const PERIOD: Duration = Duration::from_millis(400);
/// How long a gang runs that sees the whole upgrade.
const LONG_MS: u64 = 30_000;
/// So much later than the test is over.
const NOT_BEFORE: Duration = Duration::from_secs(24 * 3_600);
const HOSTS: [&str; 2] = ["h1", "h2"];

/// The command line of the release before, submitting all the time.
struct OlderClient {
    stop: watch::Sender<bool>,
    ids: JoinHandle<Vec<String>>,
}

impl OlderClient {
    fn start(program: &Path, cluster: &Cluster) -> OlderClient {
        let (stop, mut stopped) = watch::channel(false);
        let (program, endpoints) = (program.to_owned(), cluster.endpoints().join(","));
        let file = cluster.scratch.path().join("older.yaml");
        let text = "apiVersion: muster.dev/v1\nkind: Job\nmetadata:\n  name: older\nspec:\n  command: [\"true\"]\n  cpu: 100m\n  memory: 1Mi\n";
        std::fs::write(&file, text).expect("writing a job file");
        let ids = tokio::spawn(async move {
            let mut ids = Vec::new();
            let file = file.to_str().expect("the test's directory is text");
            while !*stopped.borrow() {
                let name = format!("older-{}", ids.len());
                let words = ["--endpoint", &endpoints, "--quiet", "submit", file, "--name", &name];
                let ran = run_program_to_end(&program, &words, "").await;
                assert_eq!(ran.code, Some(0), "the command of the release before: {ran:#?}");
                ids.push(ran.out.trim().to_owned());
                tokio::select! {
                    () = tokio::time::sleep(PERIOD) => {}
                    _ = stopped.changed() => {}
                }
            }
            ids
        });
        OlderClient { stop, ids }
    }

    /// Ends it; the jobs that were acknowledged.
    async fn finish(self) -> Vec<String> {
        self.stop.send_replace(true);
        self.ids.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }
}

/// What a submission can say in every part of its message, as both releases know it.
fn full(name: &str) -> v1::Job {
    let mut wanted = job(name, &["sleep", "0"]);
    wanted.spec_mut().tier = v1::Tier::Batch.into();
    wanted.spec_mut().regions = vec!["region-1".to_owned()];
    wanted.spec_mut().run_time_limit = Some(duration(60_000));
    wanted.spec_mut().stop_grace = Some(duration(1_234));
    wanted.spec_mut().checkpoint_mut().directory = "/checkpoints".to_owned();
    wanted.spec_mut().working_directory = "/work".to_owned();
    let host = v1::LabelValues { values: vec!["h1".to_owned()] };
    wanted.spec_mut().node_selector.insert("host".to_owned(), host);
    // Nothing of it ever runs.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is behind 1970");
    wanted.spec_mut().not_before = Some(timestamp((now + NOT_BEFORE).as_secs() * 1_000));
    wanted.spec_mut().tolerations = vec!["spot".to_owned()];
    wanted.spec_mut().expected_run = Some(duration(40_000));
    let limits = vec![v1::RetryLimit { failure_class: v1::FailureClass::NodeFault.into(), retries: 7 }];
    wanted.spec_mut().retry = Some(v1::RetryPolicy {
        max_failures: 2,
        limits,
        backoff: Some(duration(77)),
        max_backoff: Some(duration(7_777)),
        avoid: Some(duration(77_777)),
    });
    wanted.spec_mut().checkpoint_mut().save = Some(duration(500));
    wanted.spec_mut().launch = v1::LaunchForm::Torchrun.into();
    wanted.spec_mut().spare_workers = 1;
    wanted.spec_mut().preflight = v1::Preflight::Off.into();
    if let Some(group) = wanted.spec_mut().groups.first_mut() {
        group.workers = 2;
        group.set_variable("KEY", "value");
        group.resources_mut().accelerators = Some(accelerators("h100", 1));
    }
    wanted
}

async fn submitted(client: &Client, wanted: v1::Job) -> String {
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    let answer = client.submit_job(request).await.expect("it is taken");
    answer.job_ids.into_iter().next().expect("a job has an id")
}

async fn spec_of(client: &Client, id: &str) -> v1::JobSpec {
    let request = v1::GetJobRequest { job_id: id.to_owned(), read: None };
    let job = client.get_job(request).await.expect("it is there").job.expect("a job is returned");
    job.spec.expect("a job has a spec")
}

/// A submission that one replica passes on to a leader of another release is what it would be there at once.
async fn nothing_is_dropped_on_the_way(cluster: &Cluster, follower: usize, leader: usize) {
    let name = format!("full-{follower}-{leader}");
    let wanted = full(&name);
    let there = submitted(&cluster.client_of(leader), wanted.clone()).await;
    let passed_on = submitted(&cluster.client_of(follower), wanted).await;
    let client = cluster.client().reading(Read::linearizable());
    let (there, passed_on) = (spec_of(&client, &there).await, spec_of(&client, &passed_on).await);
    assert_eq!(there, passed_on, "replica {follower} passed on another submission to {leader}");
    let group = passed_on.groups.first().expect("it has a group");
    assert_eq!(group.variable("KEY"), Some("value"), "{passed_on:#?}");
}

async fn lead(cluster: &Cluster, at: usize) {
    let id = cluster.replicas[at].id.to_string();
    eventually(&format!("replica {at} does not take over"), || async {
        let ran = cluster.operate(&["cluster", "transfer", "--to", &id]).await;
        (ran.code == Some(0) && cluster.leader().await == at).then_some(())
    })
    .await;
}

async fn succeeded_at_once(client: &Client, id: &str) {
    let ended = wait_for_job(client, id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 1, 0),
        "{ended:#?}"
    );
}

/// Upgrades one replica after the other, and changes the leader at each step: to the new release, and back to
/// the old one as long as there is one.
async fn upgrade_replicas(cluster: &mut Cluster, load: &mut Load) {
    for at in 0..3 {
        cluster.stop(at).await;
        load.progress().await;
        cluster.set_program(at, None);
        cluster.start_replica(at);
        let seen = cluster.client().seen_log_index();
        cluster.caught_up(at, seen).await;
        load.progress().await;
        lead(cluster, at).await;
        load.progress().await;
        if let Some(old) = (at + 1..3).next() {
            nothing_is_dropped_on_the_way(cluster, old, at).await;
            lead(cluster, old).await;
            load.progress().await;
            nothing_is_dropped_on_the_way(cluster, at, old).await;
        }
    }
}

async fn raise_the_format(cluster: &Cluster) {
    let raised = format!("record format {NEWEST} is in force\n");
    eventually("the format is not raised", || async {
        let ran = cluster.operate(&["cluster", "upgrade"]).await;
        (ran.code == Some(0) && ran.out == raised).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_before_takes_part_in_a_rolling_upgrade_to_this_one() {
    let previous: PathBuf = match previous_release() {
        Ok(previous) => previous,
        Err(why) => return say(&format!("skipped: an upgrade from the release before: {why}")),
    };
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    for at in 0..3 {
        cluster.set_program(at, Some(&previous));
        cluster.start_replica_first(at);
    }
    cluster.leader().await;
    let mut agents = Agents::start_of(&previous, &cluster, &HOSTS).await;
    let directory = cluster.scratch.path().join("evidence");
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    let client = cluster.client();
    let through = submitted(&client, work("through", &directory, LONG_MS, 0, (2, 1))).await;
    wait_for_job(&client, &through, |job| job.phase() == JobPhase::Running).await;
    let mut load = Load::start_every(PERIOD, &cluster);
    let older = OlderClient::start(&previous, &cluster);
    load.progress().await;

    upgrade_replicas(&mut cluster, &mut load).await;
    raise_the_format(&cluster).await;
    load.progress().await;
    // Agents of the release before go on under the new format, and give way to new ones below their workers.
    let after = submitted(&client, work("after", &directory, LONG_MS / 2, 0, (2, 1))).await;
    wait_for_job(&client, &after, |job| job.phase() == JobPhase::Running).await;
    agents.set_program(None);
    for host in HOSTS {
        agents.kill(host).await;
        agents.start_agent(host);
        agents.wait_status(host, v1::NodeStatus::Up).await;
        load.progress().await;
    }
    let shared = submitted(&client, work("new", &directory, 10, 0, (2, 1))).await;
    for id in [&through, &after, &shared] {
        succeeded_at_once(&client, id).await;
    }

    let ids = older.finish().await;
    let acknowledged = load.finish().await;
    let there = all_jobs(&cluster.client().reading(Read::linearizable())).await;
    let there: BTreeSet<&str> = there.iter().map(|job| job.id.as_str()).collect();
    for id in &ids {
        assert!(there.contains(id.as_str()), "{id} was acknowledged to a client of the release before");
    }
    let report = intervals::check(&intervals::read(&directory).expect("evidence can be read"));
    assert!(report.overlaps.is_empty(), "{report}");
    cluster.assert_digests_agree().await;
    say(&format!(
        "two releases: {acknowledged} submissions of this one and {} of the one before acknowledged, none lost",
        ids.len()
    ));
}
