//! Reads on every replica of a real cluster: what was acknowledged is seen, what cannot be proved is refused.

use muster_client::{Client, Options, Read};
use muster_types::RefusalCode;
use muster_wire::time::span_ms;
use muster_wire::v1;
use nix::sys::signal::Signal;
use std::time::Duration;

use crate::support::{Agents, Cluster, PATIENCE, eventually, heavy, job, run_to_end, say};

/// Longer than a replica's own lease, and than the pace at which it measures its freshness.
const BOUND: Duration = Duration::from_millis(1_500);

/// A client of one replica that is told no as soon as the replica says it.
fn impatient(cluster: &Cluster, at: usize) -> Client {
    let client = cluster.client_of(at);
    client.with_options(Options {
        deadline: Duration::from_secs(5),
        read_your_writes: false,
        ..client.options().clone()
    })
}

async fn submit(client: &Client, name: &str) -> String {
    let request = v1::SubmitJobRequest { job: Some(job(name, &["true"])), ..Default::default() };
    let answer =
        client.submit_job(request).await.unwrap_or_else(|error| panic!("submitting {name}: {error:?}"));
    answer.job_ids[0].clone()
}

fn get(id: &str, read: Read) -> v1::GetJobRequest {
    v1::GetJobRequest { job_id: id.to_owned(), read: read.into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_seen_by_linearizable_reads_everywhere_at_once() {
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let writer = cluster.client();
    for round in 0..10 {
        let id = submit(&writer, &format!("seen-{round}")).await;
        for at in 0..3 {
            // A client that has seen nothing: only the read's own consistency helps it.
            let reader = impatient(&cluster, at);
            let answer = reader.get_job(get(&id, Read::linearizable())).await;
            let answer = answer.unwrap_or_else(|error| panic!("replica {at} misses {id}: {error:?}"));
            let freshness = answer.freshness.expect("it says how fresh it is");
            assert_eq!(freshness.replica_id, cluster.replicas[at].id);
            assert!(freshness.staleness.is_some(), "{freshness:?}");
        }
    }
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_while_replicas_stand_still() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1"]).await;
    let id = submit(&cluster.client(), "kept").await;
    let leader = cluster.leader().await;
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    for at in &others {
        cluster.caught_up(*at, 1).await;
        impatient(&cluster, *at).get_job(get(&id, Read::linearizable())).await.expect("a leader leads");
    }

    // The leader stops dead: linearizable reads elsewhere are held until there is another.
    cluster.signal(leader, Signal::SIGSTOP);
    for at in &others {
        let reader = cluster.client_of(*at);
        reader.get_job(get(&id, Read::linearizable())).await.expect("the next leader confirms it");
    }

    // One alone: it answers, says how old that is, and claims nothing more.
    let next = cluster.leader_among(&others).await;
    let alone = others.into_iter().find(|at| *at != next).expect("three replicas");
    cluster.signal(next, Signal::SIGSTOP);
    let reader = impatient(&cluster, alone);
    let refused = eventually("it still claims to be fresh", || async {
        let answer = reader.get_job(get(&id, Read::bounded(BOUND))).await;
        answer.err().and_then(|error| error.refused().cloned())
    })
    .await;
    assert_eq!(refused.code, Some(RefusalCode::TooStale), "{refused:?}");
    let told: u64 = refused.metadata["staleness_ms"].parse().expect("a number");
    assert!(u128::from(told) > BOUND.as_millis(), "{refused:?}");
    let any = reader.get_job(get(&id, Read::any())).await.expect("whatever it has");
    let staleness = any.freshness.and_then(|f| span_ms(f.staleness)).expect("it heard of a leader before");
    assert!(staleness >= told, "staleness grows: {staleness} after {told}");
    let error = reader.get_job(get(&id, Read::linearizable())).await.expect_err("nobody confirms it");
    let refused =
        error.refused().unwrap_or_else(|| panic!("refused with its reason, not silence: {error:?}"));
    assert_eq!(refused.code, Some(RefusalCode::ReadUnconfirmed));
    let endpoint = cluster.replicas[alone].endpoint();
    let ran = run_to_end(&["--endpoint", &endpoint, "job", "show", &id], "").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("behind"), "people are told that it is old: {ran:?}");

    cluster.signal(leader, Signal::SIGCONT);
    cluster.signal(next, Signal::SIGCONT);
    for at in 0..3 {
        let reader = cluster.client_of(at);
        let healed = eventually("a replica does not come back", || async {
            reader.get_job(get(&id, Read::linearizable())).await.ok()
        })
        .await;
        assert!(healed.job.is_some());
        reader.get_job(get(&id, Read::bounded(PATIENCE))).await.expect("it is fresh again");
    }
    cluster.assert_digests_agree().await;
    say(&format!("alone, a replica told of {told} ms of staleness and refused more"));
}
