//! Shares of a device, on real agents: jobs that together use no more than there is run concurrently on one
//! device, and nobody shares a device that somebody has alone.

use muster_client::Client;
use muster_wire::v1::{self, JobPhase};
use std::path::Path;

use crate::support::{
    Agents, Cluster, accelerators, eventually, heavy, is_finished, job, muster, submit, wait_for_job,
};

/// Names of devices that the workers of a running job were given, with their host.
async fn devices(client: &Client, id: &str) -> Vec<(String, Vec<u32>)> {
    let job = wait_for_job(client, id, |job| job.phase() == JobPhase::Running || is_finished(job)).await;
    assert_eq!(job.phase(), JobPhase::Running, "{job:#?}");
    let request = v1::GetJobRequest { job_id: id.to_owned(), read: None };
    let job = client.get_job(request).await.expect("it is kept").job.expect("with all of it");
    let placement = job.status().placement.as_ref().expect("a running job is placed");
    placement.workers.iter().map(|worker| (worker.node_name.clone(), worker.devices.clone())).collect()
}

fn share(milli: u32) -> Option<v1::AcceleratorRequest> {
    let amount = v1::accelerator_request::Amount::ShareMilli(milli);
    Some(v1::AcceleratorRequest { choices: Vec::new(), amount: Some(amount) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_shares_of_a_device_run_beside_each_other() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a"]).await;
    let client = cluster.client();

    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/examples/share.yaml");
    let text = std::fs::read_to_string(example).expect("the example is there");
    let text = text.replace("[muster,", &format!("[{},", muster().display()));
    let manifest = cluster.scratch.path().join("share.yaml");
    std::fs::write(&manifest, text).expect("a file can be written");
    let manifest = manifest.to_str().expect("the test's directory is text");
    for _ in 0..2 {
        cluster.operated(&["submit", manifest]).await;
    }
    let jobs = eventually("two jobs are not there", || async {
        let request = v1::ListJobsRequest { page_size: 10, ..Default::default() };
        let jobs = client.list_jobs(request).await.ok()?.jobs;
        (jobs.len() == 2).then_some(jobs)
    })
    .await;
    let first = devices(&client, &jobs[0].id).await;
    assert_eq!(devices(&client, &jobs[1].id).await, first, "shares are packed on one device");

    // A gang of two shares, which is told how much it has, on the rest of that device.
    let mut wanted = job(
        "both",
        &["sh", "-c", "echo has $MUSTER_DEVICE_SHARE_MILLI $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; sleep 600"],
    );
    wanted.spec_mut().groups[0].workers = 2;
    wanted.spec_mut().groups[0].resources_mut().accelerators = share(250);
    let gang = submit(&client, wanted).await;
    assert_eq!(devices(&client, &gang).await, [first[0].clone(), first[0].clone()]);
    let request = v1::ReadLogsRequest { job_id: gang.clone(), follow: true, ..Default::default() };
    let mut logs = client.read_logs(request).await.expect("output can be read");
    let said = logs.next().await.expect("output comes").expect("a line");
    assert_eq!(String::from_utf8_lossy(&said.data), "has 250 25\n");
    drop(logs);

    // Whole devices are nobody else's: three are left.
    let mut wanted = job("whole", &["sleep", "600"]);
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 3));
    let whole = submit(&client, wanted).await;
    let (_, held) = devices(&client, &whole).await.remove(0);
    assert!(!held.contains(&first[0].1[0]), "{held:?} and {first:?}");
    // A share fits again where one has ended.
    client
        .cancel_job(v1::CancelJobRequest { job_id: gang.clone(), ..Default::default() })
        .await
        .expect("cancelled");
    wait_for_job(&client, &gang, is_finished).await;
    let mut wanted = job("again", &["sleep", "600"]);
    wanted.spec_mut().groups[0].resources_mut().accelerators = share(500);
    let again = submit(&client, wanted).await;
    assert_eq!(devices(&client, &again).await, first);

    drop(agents);
    cluster.assert_digests_agree().await;
}
