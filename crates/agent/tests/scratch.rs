//! Scratch directories: a worker finds its own where its job asks for it, and ends when it writes more than that.

// A panic is a test's report, in its helpers too.
#![allow(clippy::unwrap_used)]

mod support;

use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1;
use muster_wire::v1::exit_status::Kind;
use support::*;

const JOB: &str = "job-9";

fn order(token: u64, scratch_bytes: u64, script: &str) -> Response {
    let mut order = start(JOB, token, &[script], &[]);
    order.scratch_bytes = scratch_bytes;
    Response::Start(order)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_the_scratch_that_its_job_asks_for_and_no_more() {
    let mut leader = Leader::start(Manner::patient()).await;
    let mut host = Host::new(&leader);
    host.scratch = Some("1Gi");
    let _agent = host.agent();
    assert_eq!(leader.registered().await.node.unwrap().scratch_bytes, 1 << 30);

    let finds = "test \"$TMPDIR\" = \"$MUSTER_SCRATCH\" && echo x > \"$MUSTER_SCRATCH/a\" && exit 3";
    leader.send(order(7, 1 << 20, finds));
    assert_eq!(leader.exit_of(7, 0).await, Kind::Code(3));

    let writes = "head -c 1000000 /dev/zero > \"$MUSTER_SCRATCH/a\"; sleep 600";
    leader.send(order(8, 1 << 16, writes));
    assert_eq!(leader.exit_of(8, 0).await, Kind::OutOfScratch(v1::OutOfScratch {}));
    let output = std::fs::read(host.task(JOB, 8, 0).join("output")).unwrap_or_default();
    let text = String::from_utf8_lossy(&output).into_owned();
    assert!(text.contains("files in its scratch directory"), "{text}");

    leader.send(order(9, 0, "test -z \"$MUSTER_SCRATCH\" && exit 4"));
    assert_eq!(leader.exit_of(9, 0).await, Kind::Code(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_scratch_starts_no_worker_that_asks_for_it() {
    let mut leader = Leader::start(Manner::patient()).await;
    let host = Host::new(&leader);
    let _agent = host.agent();
    assert_eq!(leader.registered().await.node.unwrap().scratch_bytes, 0);
    leader.send(order(7, 1 << 20, "exit 0"));
    let Kind::LaunchFailed(why) = leader.exit_of(7, 0).await else { panic!("it was launched") };
    assert!(why.contains("scratch_dir"), "{why}");
}
