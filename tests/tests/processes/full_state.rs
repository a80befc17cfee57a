//! A cluster that holds as many jobs as it may: nothing more comes in, everything else goes on, and jobs that are over give way to new ones.

use muster_client::{CallError, Client};
use muster_types::RefusalCode;
use muster_wire::time::timestamp;
use muster_wire::v1::{self, JobPhase};

use crate::support::{Agents, Cluster, all_jobs, eventually, heavy, is_finished, job, wait_for_job};

/// The least that a cluster may be founded with.
const HELD_MAX: usize = 1_000;
const SETTINGS: &str = "jobs_held_max = 1000\n";
/// A time that does not come while the test runs.
const FAR: u64 = 32_503_680_000_000;

fn waiting(name: &str) -> v1::Job {
    v1::Job {
        spec: Some(v1::JobSpec { not_before: Some(timestamp(FAR)), ..job(name, &["true"]).spec().clone() }),
        ..job(name, &["true"])
    }
}

async fn submit_all(
    client: &Client,
    request_id: &str,
    specs: Vec<v1::Job>,
) -> Result<Vec<String>, CallError> {
    let request =
        v1::SubmitJobsRequest { request_id: request_id.to_owned(), jobs: specs, ..Default::default() };
    Ok(client.submit_jobs(request).await?.job_ids)
}

fn code(error: &CallError) -> Option<RefusalCode> {
    error.refused().and_then(|refused| refused.code)
}

/// The names of all jobs, sorted.
async fn names(client: &Client) -> Vec<String> {
    let mut names: Vec<String> = all_jobs(client).await.into_iter().map(|job| job.name).collect();
    names.sort_unstable();
    names
}

async fn status_of(client: &Client, job_id: &str) -> Result<v1::GetJobResponse, CallError> {
    client.get_job(v1::GetJobRequest { job_id: job_id.to_owned(), ..Default::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_state_refuses_jobs_and_serves_everything_else() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start_with(3, 0, SETTINGS).await;
    let agents = Agents::start(&cluster, &["h1"]).await;
    agents.wait_status("h1", v1::NodeStatus::Up).await;
    let client = cluster.client();

    // One that runs until it is told to end, and as many that wait as there is space for.
    let go = cluster.scratch.path().join("go");
    let script = format!("until test -e {}; do sleep 0.1; done", go.display());
    let running = submit_all(&client, "", vec![job("runs", &["sh", "-c", &script])]).await;
    let running = running.expect("there is space for it").remove(0);
    wait_for_job(&client, &running, |job| job.phase() == JobPhase::Running).await;
    let batch: Vec<v1::Job> = (1..HELD_MAX).map(|number| waiting(&format!("waits-{number}"))).collect();
    let request_id = "00000000-0000-4000-8000-000000000001";
    let accepted =
        submit_all(&client, request_id, batch.clone()).await.expect("there is just space for them");
    let held = names(&client).await;
    assert_eq!(held.len(), HELD_MAX);

    // The status warns that finished jobs are forgotten before their time, with the numbers.
    let warned = eventually("no warning that history is cut short", || async {
        let status = client.get_status(v1::GetStatusRequest::default()).await.ok()?;
        status.warnings.into_iter().find(|warning| warning.code == "RETENTION_CUT")
    })
    .await;
    assert!(warned.message.contains("1000 of at most 1000 jobs"), "{warned:?}");

    // Nothing more: refused with the limit, at every replica, and nothing of it is there.
    for at in 0..3 {
        let one = cluster.client_of(at);
        let refused = submit_all(&one, "", vec![waiting("too-many")]).await.expect_err("there is no space");
        assert_eq!(code(&refused), Some(RefusalCode::StateFull), "{refused}");
        let metadata = &refused.refused().expect("it is a refusal").metadata;
        let said = |key: &str| metadata.get(key).map(String::as_str);
        assert_eq!((said("limit"), said("held_max")), (Some("jobs_held_max"), Some("1000")), "{metadata:?}");
        assert!(refused.refused().is_some_and(|refused| refused.retry_after.is_some()), "{refused:?}");
    }
    assert_eq!(names(&client).await, held);

    // Reads are served by every replica, a repeated request gets its first answer, and work goes on to its end.
    for (at, job_id) in accepted.iter().enumerate().take(3) {
        let one = cluster.client_of(at);
        let got = status_of(&one, job_id).await.expect("reads are served").job.expect("it is there");
        assert_eq!(got.phase(), JobPhase::Pending);
        let explain = v1::ExplainJobRequest { job_id: job_id.clone(), ..Default::default() };
        one.explain_job(explain).await.expect("explanations are served");
    }
    assert_eq!(submit_all(&client, request_id, batch).await.expect("it was accepted"), accepted);
    std::fs::write(&go, "").expect("a file can be made");
    let ended = wait_for_job(&client, &running, is_finished).await;
    assert_eq!(ended.phase(), JobPhase::Succeeded, "{ended:#?}");

    // Jobs that are over give way to as many new ones, and are forgotten; not to one more.
    let cancelled = &accepted[..9];
    for id in cancelled {
        client
            .cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() })
            .await
            .expect("jobs can be cancelled");
    }
    let too_many = (0..11).map(|number| waiting(&format!("new-{number}"))).collect();
    let refused = submit_all(&client, "", too_many).await.expect_err("ten are over");
    assert_eq!(code(&refused), Some(RefusalCode::StateFull), "{refused}");
    let ten: Vec<v1::Job> = (0..10).map(|number| waiting(&format!("new-{number}"))).collect();
    // What ended in this very moment may go in the next.
    let taken = eventually("ten jobs that are over do not give way", || async {
        match submit_all(&client, "00000000-0000-4000-8000-000000000002", ten.clone()).await {
            Ok(taken) => Some(taken),
            Err(refused) if code(&refused) == Some(RefusalCode::StateFull) => None,
            Err(other) => panic!("{other}"),
        }
    })
    .await;
    assert_eq!(taken.len(), 10);
    assert_eq!(names(&client).await.len(), HELD_MAX);
    for id in cancelled.iter().chain([&running]) {
        let gone = status_of(&client, id).await.expect_err("it gave way");
        assert_eq!(code(&gone), Some(RefusalCode::JobNotFound), "{gone}");
    }
    cluster.assert_digests_agree().await;
}
