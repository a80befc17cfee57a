//! What was acknowledged is there, however all replicas die.

use muster_client::Client;
use muster_wire::v1;
use parking_lot::Mutex;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{Agents, Cluster, all_jobs, eventually, heavy, job, say};

const ROUNDS: u32 = 20;
const CLIENTS: u32 = 4;

/// One mutation a client has sent at least once.
#[derive(Clone)]
struct Request {
    names: Vec<String>,
    /// The ids of the answer; none while the outcome is in doubt.
    ids: Option<Vec<String>>,
}

/// What all clients together have sent and were told, by request id.
#[derive(Clone)]
struct Ledger {
    requests: Arc<Mutex<BTreeMap<String, Request>>>,
    acknowledged: watch::Sender<u64>,
    /// The last position of the log that an answer named.
    log_index: Arc<AtomicU64>,
}

impl Ledger {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<String, Request>) -> T) -> T {
        look(&mut self.requests.lock())
    }

    /// Sends a request, for the first time or again; the ids it was answered with.
    async fn send(&self, client: &Client, request_id: &str) -> Vec<String> {
        let names = self.with(|all| all[request_id].names.clone());
        let request_id = request_id.to_owned();
        // Singles and batches are two calls with one promise.
        let ids = if let [name] = names.as_slice() {
            let wanted = Some(job(name, &["true"]));
            let request = v1::SubmitJobRequest { request_id, job: wanted, validate_only: false };
            client.submit_job(request).await.map(|answer| answer.job_ids)
        } else {
            let specs = names.iter().map(|name| job(name, &["true"])).collect();
            let request = v1::SubmitJobsRequest { request_id, jobs: specs, ..Default::default() };
            client.submit_jobs(request).await.map(|answer| answer.job_ids)
        };
        let ids = ids.unwrap_or_else(|error| panic!("submitting {names:?}: {error:?}"));
        self.log_index.fetch_max(client.seen_log_index(), Ordering::AcqRel);
        assert_eq!(ids.len(), names.len(), "one id for each of {names:?}");
        ids
    }

    /// One client: a request, its answer, the next request.
    async fn submit_for_ever(self, client: Client, who: String) {
        for number in 0u64.. {
            let size = if rand::rng().random_bool(0.5) { 1 } else { rand::rng().random_range(2..=12) };
            let names = (0..size).map(|place| format!("{who}-{number}-{place}")).collect();
            let request_id = uuid::Uuid::new_v4().to_string();
            // Written down before it is sent: from here on it may be in the log.
            self.with(|all| all.insert(request_id.clone(), Request { names, ids: None }));
            let ids = self.send(&client, &request_id).await;
            self.settle(&request_id, ids);
            self.acknowledged.send_modify(|count| *count += 1);
        }
    }

    /// Notes an answer; a second one has to be the same.
    fn settle(&self, request_id: &str, ids: Vec<String>) {
        self.with(|all| {
            let request = all.get_mut(request_id).expect("only what is in the ledger is sent");
            match &request.ids {
                Some(before) => assert_eq!(*before, ids, "{request_id} was answered otherwise before"),
                None => request.ids = Some(ids),
            }
        });
    }
}

/// Compares what the cluster has with what clients were told; the number of jobs in doubt that are there.
fn compare(ledger: &Ledger, jobs: &[v1::Job]) -> usize {
    let mut by_id: BTreeMap<&str, &str> = BTreeMap::new();
    for job in jobs {
        assert!(by_id.insert(&job.id, &job.name).is_none(), "{} is listed twice", job.id);
    }
    let names: BTreeSet<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names.len(), jobs.len(), "a request was carried out twice");
    ledger.with(|all| {
        let mut acknowledged = 0;
        let mut in_doubt = 0;
        for (request_id, request) in all.iter() {
            match &request.ids {
                Some(ids) => {
                    for (id, name) in ids.iter().zip(&request.names) {
                        let found = by_id.get(id.as_str());
                        assert_eq!(
                            found,
                            Some(&name.as_str()),
                            "{request_id}: acknowledged {id} {name} is lost"
                        );
                    }
                    acknowledged += ids.len();
                }
                None => {
                    let there = request.names.iter().filter(|name| names.contains(name.as_str())).count();
                    assert!(
                        there == 0 || there == request.names.len(),
                        "a part of the batch {request_id} is there"
                    );
                    in_doubt += there;
                }
            }
        }
        assert_eq!(jobs.len(), acknowledged + in_doubt, "there are jobs that nobody submitted");
        in_doubt
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_survives_kill_of_all() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    // A fleet to fit into, so that nothing is refused; cordoned, so that the log holds submissions only.
    let mut agents = Agents::start(&cluster, &["h1"]).await;
    let client = cluster.client();
    let cordon = v1::CordonNodeRequest { node: "h1".to_owned(), ..Default::default() };
    client.cordon_node(cordon).await.unwrap();
    agents.kill("h1").await;

    let ledger =
        Ledger { requests: Arc::default(), acknowledged: watch::Sender::new(0), log_index: Arc::default() };
    let mut found_in_doubt = 0;
    let mut left_in_doubt = 0;
    for round in 0..ROUNDS {
        let mut acknowledged = ledger.acknowledged.subscribe();
        let kill_at = *acknowledged.borrow_and_update() + rand::rng().random_range(1..=40);
        let mut clients = JoinSet::new();
        for who in 0..CLIENTS {
            clients.spawn(ledger.clone().submit_for_ever(cluster.client(), format!("r{round}-c{who}")));
        }
        tokio::select! {
            reached = acknowledged.wait_for(|count| *count >= kill_at) => drop(reached.unwrap()),
            ended = clients.join_next() => panic!("a client ended: {ended:?}"),
        }
        cluster.kill_all_at_once().await;
        // What was on its way stays in doubt until it is sent again below.
        clients.shutdown().await;

        if round % 3 == 2 {
            // Once more while they come back: what was on disk is still being read and votes are out.
            cluster.start_all();
            eventually("no replica came back", || async { cluster.status_of(round as usize % 3).await.ok() })
                .await;
            cluster.kill_all_at_once().await;
        }
        cluster.restart_all().await;
        // Another client reads what those were told; any replica may answer, once it knows as much.
        client.observe_log_index(ledger.log_index.load(Ordering::Acquire));
        let jobs = all_jobs(&client).await;
        found_in_doubt += compare(&ledger, &jobs);
        let (in_doubt, this_round): (Vec<String>, Vec<String>) = ledger.with(|all| {
            let of_round = format!("r{round}-");
            let own = all.iter().filter(|(_, request)| request.names[0].starts_with(&of_round));
            let (open, settled): (Vec<_>, Vec<_>) = own.partition(|(_, request)| request.ids.is_none());
            let ids = |list: Vec<(&String, &Request)>| list.into_iter().map(|(id, _)| id.clone()).collect();
            (ids(open), ids(settled))
        });
        left_in_doubt += in_doubt.len();
        for request_id in this_round.iter().chain(&in_doubt) {
            ledger.settle(request_id, ledger.send(&client, request_id).await);
        }
        assert_eq!(compare(&ledger, &all_jobs(&client).await), 0);
    }
    // Everything once more, also of the first rounds.
    let every: Vec<String> = ledger.with(|all| all.keys().cloned().collect());
    for request_id in &every {
        ledger.settle(request_id, ledger.send(&client, request_id).await);
    }
    let jobs = all_jobs(&client).await;
    assert_eq!(compare(&ledger, &jobs), 0);
    cluster.assert_digests_agree().await;
    let acknowledged = *ledger.acknowledged.borrow();
    assert!(acknowledged >= ROUNDS.into(), "{acknowledged}");
    say(&format!(
        "kill of all: {ROUNDS} rounds, {acknowledged} requests acknowledged ({} jobs), {left_in_doubt} left in doubt ({found_in_doubt} jobs of them were there), 0 lost, 0 twice",
        jobs.len()
    ));
}
