//! Clients that submit all the time, whatever is done to the replicas meanwhile.

use muster_client::{Client, Read};
use muster_wire::v1;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Cluster, PATIENCE, job};

const CLIENTS: u32 = 2;
/// Between two submissions of one client.
const PERIOD: Duration = Duration::from_millis(40);
/// Answers that are progress.
const STRIDE: u64 = 10;

/// Clients at work. Every call has to succeed in the end: one that fails fails the test.
pub struct Load {
    answered: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    client: Client,
}

impl Load {
    /// Starts the clients. They know where every replica is, or will be.
    pub fn start(cluster: &Cluster) -> Load {
        Load::start_every(PERIOD, cluster)
    }

    /// The same with another time between two submissions of one client, where what they submit runs.
    pub fn start_every(period: Duration, cluster: &Cluster) -> Load {
        let answered = watch::Sender::new(0);
        let stop = watch::Sender::new(false);
        let mut clients = JoinSet::new();
        for who in 0..CLIENTS {
            clients.spawn(submit(cluster.client(), (who, period), answered.clone(), stop.subscribe()));
        }
        Load { answered, stop, clients, client: cluster.client() }
    }

    /// Waits for some more answers.
    pub async fn progress(&mut self) {
        let mut answered = self.answered.subscribe();
        let until = *answered.borrow_and_update() + STRIDE;
        let more = tokio::time::timeout(PATIENCE, answered.wait_for(|count| *count >= until));
        tokio::select! {
            more = more => assert!(more.is_ok(), "nothing was acknowledged any more"),
            Some(Err(failed)) = self.clients.join_next() => std::panic::resume_unwind(failed.into_panic()),
        }
    }

    /// Ends the clients; how many submissions were answered. All of them are in the cluster.
    pub async fn finish(mut self) -> u64 {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            if let Err(failed) = ended {
                std::panic::resume_unwind(failed.into_panic());
            }
        }
        let answered = *self.answered.borrow();
        // The replica that lists may be one that has just come back.
        let jobs = super::all_jobs(&self.client.reading(Read::linearizable())).await;
        let listed = jobs.iter().filter(|job| job.name.starts_with("load-")).count();
        assert_eq!(listed as u64, answered, "what was acknowledged and what is there differ");
        answered
    }
}

async fn submit(
    client: Client,
    (who, period): (u32, Duration),
    answered: watch::Sender<u64>,
    mut stop: watch::Receiver<bool>,
) {
    for number in 0u32.. {
        let name = format!("load-{who}-{number}");
        let request = v1::SubmitJobRequest { job: Some(job(&name, &["true"])), ..Default::default() };
        let answer = client.submit_job(request).await;
        answer.unwrap_or_else(|error| panic!("submitting {name}: {error:?}"));
        answered.send_modify(|count| *count += 1);
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
