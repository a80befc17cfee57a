//! A job runs once at a time, whatever happens to agents, and what becomes of it is told truly.

use muster_client::Client;
use muster_example::intervals::{self, Interval};
use muster_wire::v1::{self, JobPhase};
use std::path::Path;

use crate::support::{
    Agents, Cluster, eventually, follow_until, heavy, is_finished, say, wait_for_job, work,
};

async fn submit(client: &Client, wanted: v1::Job) -> String {
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0)
}

fn is_running(job: &v1::Job) -> bool {
    job.phase() == JobPhase::Running
}

fn node_of(job: &v1::Job) -> String {
    let placement = job.status().placement.as_ref().expect("a running job is placed");
    placement.workers[0].node_name.clone()
}

async fn output(client: &Client, request: v1::ReadLogsRequest) -> String {
    let mut stream = client.read_logs(request).await.expect("output can be read");
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.expect("output comes to its end") {
        bytes.extend_from_slice(&piece.data);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// When the processes of one job ran, by start.
fn intervals_of(directory: &Path, id: &str) -> Vec<Interval> {
    let mut own: Vec<Interval> = intervals::read(directory).expect("evidence can be read");
    own.retain(|interval| interval.job == id);
    own.sort_by_key(|interval| interval.start);
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_once() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1", "h2"]).await;
    let client = cluster.client();
    let evidence = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&evidence).unwrap();

    // An agent is killed and comes back: the job below it goes on, and its end is reported.
    let id = submit(&client, work("goes-on", &evidence, 3_000, 0, (1, 1))).await;
    let running = wait_for_job(&client, &id, is_running).await;
    let host = node_of(&running);
    agents.kill(&host).await;
    agents.start_agent(&host);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 1, 0),
        "{ended:#?}"
    );
    let ran = intervals_of(&evidence, &id);
    assert!(matches!(ran.as_slice(), [only] if only.stopped), "restarted or cut short: {ran:#?}");
    let goes_on = id;

    // The same, but the worker ends while there is no agent: its end is not lost with it.
    let id = submit(&client, work("ends-alone", &evidence, 500, 0, (1, 1))).await;
    let host = node_of(&wait_for_job(&client, &id, is_running).await);
    agents.kill(&host).await;
    eventually("the worker did not end without its agent", || async {
        intervals_of(&evidence, &id).first().filter(|interval| interval.stopped).map(|_| ())
    })
    .await;
    agents.start_agent(&host);
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 1), "{ended:#?}");

    // An agent stands still for longer than its lease: the gang runs elsewhere, and never twice at once.
    let id = submit(&client, work("moves", &evidence, 6_000, 0, (2, 2))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    let frozen = node_of(&first);
    agents.freeze(&frozen);
    let again =
        wait_for_job(&client, &id, |job| is_running(job) && job.status().attempt > first.status().attempt)
            .await;
    let elsewhere = node_of(&again);
    assert_ne!(elsewhere, frozen, "placed on a lost node");
    agents.thaw(&frozen);
    agents.wait_status(&frozen, v1::NodeStatus::Up).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );
    assert_eq!(node_of(&ended), elsewhere);
    let ran = intervals_of(&evidence, &id);
    assert_eq!(ran.len(), 4, "two workers in two attempts: {ran:#?}");

    // A running job is cancelled: its worker has ended when that is reported.
    let id = submit(&client, work("cancelled", &evidence, 600_000, 0, (1, 1))).await;
    wait_for_job(&client, &id, is_running).await;
    // Its process is there; it also has to have come so far as to write down that it is.
    eventually("the worker did not begin", || async {
        (!intervals_of(&evidence, &id).is_empty()).then_some(())
    })
    .await;
    client.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    let seen = follow_until(&client, &id, is_finished).await;
    let ended = seen.last().unwrap();
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Cancelled, 1), "{seen:#?}");
    let before = intervals_of(&evidence, &id);
    assert!(matches!(before.as_slice(), [only] if only.stopped), "{before:#?}");

    // A failing job is tried again as often as it may, and no more.
    let mut wanted = work("fails", &evidence, 50, 3, (1, 1));
    wanted.spec_mut().retry_mut().max_failures = 2;
    let id = submit(&client, wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Failed, 3), "{ended:#?}");
    assert_eq!(ended.status().message, "rank 0: exit code 3 (failure 3, retries allowed: 2)");
    assert_eq!(intervals_of(&evidence, &id).len(), 3);

    // Output, through a replica that does not lead: what is kept, and as it comes.
    let follower = cluster.client_of(cluster.follower().await);
    let kept = v1::ReadLogsRequest { job_id: goes_on.clone(), ..Default::default() };
    let text = output(&follower, kept).await;
    assert_eq!(
        text,
        format!("job {goes_on} attempt 1 rank 0 of 1: working for 3000 ms\ndone\n"),
        "of the job whose agent was killed"
    );
    let previous = v1::ReadLogsRequest { job_id: id.clone(), previous: true, ..Default::default() };
    let text = output(&follower, previous).await;
    assert!(text.contains(&format!("job {id} attempt 2 ")), "{text:?}");
    let id = submit(&client, work("followed", &evidence, 1_000, 0, (1, 1))).await;
    wait_for_job(&client, &id, is_running).await;
    let following = v1::ReadLogsRequest {
        job_id: id,
        follow: true,
        stream: v1::OutputStream::Stdout.into(),
        ..Default::default()
    };
    let text = output(&follower, following).await;
    assert!(text.contains("working for 1000 ms") && text.ends_with("done\n"), "{text:?}");

    let all = intervals::read(&evidence).unwrap();
    let report = intervals::check(&all);
    assert!(report.overlaps.is_empty(), "{report}");
    cluster.assert_digests_agree().await;
    say(&format!("jobs run once: {report}"));
}
