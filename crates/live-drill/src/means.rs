//! What a drill does to a cluster, and how all of it is undone.
//!
//! **Invariant:** whatever is done carries the drill's mark where it is done, so that `muster drill stop` finds it from
//! any machine: the replicas know the drill by its id, a cordoned node has it in the reason of its quarantine, and a
//! probe has it in its name.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_client::{AttemptError, CallError, Client, Read, ReplicaDrills};
use muster_types::RefusalCode;
use muster_wire::time::duration;
use muster_wire::{admin, v1};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::cluster_snapshot::{NodeStatus, nodes, why};

/// A replica forgets a drill that it has not heard of for so long.
pub const HOLD: Duration = Duration::from_secs(5);
/// Between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// What happened to renewals, on its way to who waits for it.
const NEWS_MAX: usize = 256;
/// Jobs on one page.
const PAGE_SIZE: u32 = 1_000;
/// Nodes and jobs that are put right at a time.
const AT_ONCE: usize = 16;

/// Before everything that a drill says of itself.
const MARK: &str = "drill ";
/// Names of probes begin with it.
const PROBE: &str = "drill-probe-";

/// What the reason of a quarantine says that a drill has set.
pub fn mark(id: &str, name: &str) -> String {
    format!("{MARK}{id}: {name} keeps new work away; `muster drill stop` ends it")
}

/// The drill that set a quarantine, if one did.
pub fn marked_by(reason: &str) -> Option<&str> {
    let id = reason.strip_prefix(MARK)?.split(':').next()?;
    id.starts_with("d-").then_some(id)
}

/// The name of a drill's probes.
pub fn probe_name(id: &str) -> String {
    format!("{PROBE}{id}")
}

/// What is in force for a drill now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    pub silent: BTreeSet<u64>,
    pub cordoned: BTreeSet<String>,
}

/// Who runs which drill.
#[derive(Clone, Debug)]
pub struct Identity {
    pub id: String,
    pub name: String,
    pub started_by: String,
}

impl Identity {
    fn announcement(&self, in_force: &InForce) -> admin::AnnounceDrillRequest {
        admin::AnnounceDrillRequest {
            drill_id: self.id.clone(),
            name: self.name.clone(),
            started_by: self.started_by.clone(),
            hold: Some(duration(u64::try_from(HOLD.as_millis()).unwrap_or(u64::MAX))),
            silent_replica_ids: in_force.silent.iter().copied().collect(),
            cordoned_regions: in_force.cordoned.iter().cloned().collect(),
        }
    }
}

/// What one renewal at one replica came to.
pub enum News {
    /// It holds the drill; whether it refuses traffic.
    Held { replica: u64, refuses: bool },
    /// It has ended the drill, or holds another.
    Over { replica: u64, why: String },
    /// It did not answer.
    Unanswered,
}

/// A drill that every replica holds until this is dropped.
pub struct Hold {
    pub identity: Identity,
    services: Vec<(u64, ReplicaDrills)>,
    in_force: watch::Sender<InForce>,
    renewing: JoinHandle<()>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Hold {
    /// Announces a drill to every replica and goes on renewing it.
    ///
    /// # Errors
    /// When one of them does not take it; those that did have forgotten it then.
    pub async fn begin(
        identity: Identity,
        services: Vec<(u64, ReplicaDrills)>,
    ) -> Result<(Hold, mpsc::Receiver<News>), (u64, AttemptError)> {
        let (in_force, watched) = watch::channel(InForce::default());
        let request = identity.announcement(&InForce::default());
        for (id, service) in &services {
            if let Err(error) = service.announce_drill(request.clone()).await {
                end_at(&services, &identity.id).await;
                return Err((*id, error));
            }
        }
        let (news, heard) = mpsc::channel(NEWS_MAX);
        let renewing = tokio::spawn(renew(identity.clone(), services.clone(), watched, news));
        Ok((Hold { identity, services, in_force, renewing }, heard))
    }

    /// What is in force now.
    pub fn in_force(&self) -> InForce {
        self.in_force.borrow().clone()
    }

    fn service(&self, replica: u64) -> Option<&ReplicaDrills> {
        self.services.iter().find(|(id, _)| *id == replica).map(|(_, service)| service)
    }

    /// Makes replicas silent.
    ///
    /// # Errors
    /// When one of them refuses or does not answer; others may be silent then.
    pub async fn silence(&self, replicas: &BTreeSet<u64>, for_ms: u64) -> Result<(), String> {
        let mut silent = self.in_force().silent;
        silent.extend(replicas);
        let mut asking = JoinSet::new();
        for id in replicas {
            let Some(service) = self.service(*id).cloned() else {
                return Err(format!("replica {id} is no member"));
            };
            let traffic = [admin::Traffic::PeersIn, admin::Traffic::PeersOut, admin::Traffic::Clients];
            let request = admin::RefuseTrafficRequest {
                drill_id: self.identity.id.clone(),
                traffic: traffic.into_iter().map(Into::into).collect(),
                duration: Some(duration(for_ms)),
                silent_replica_ids: silent.iter().copied().collect(),
            };
            let id = *id;
            asking.spawn(async move { (id, service.refuse_traffic(request).await) });
        }
        self.in_force.send_modify(|in_force| in_force.silent = silent);
        let mut failed = Ok(());
        while let Some(asked) = asking.join_next().await {
            if let Ok((id, Err(error))) = asked {
                failed = Err(format!("replica {id} was not made silent: {}", why(&error)));
            }
        }
        failed
    }

    /// Says that replicas take traffic again: their time is over.
    pub fn heard_again(&self, replicas: &BTreeSet<u64>) {
        self.in_force.send_modify(|in_force| in_force.silent.retain(|id| !replicas.contains(id)));
    }

    /// Keeps nodes away from work.
    ///
    /// # Errors
    /// When one could not be marked; others are.
    pub async fn cordon(&self, client: &Client, region: &str, names: &[String]) -> Result<(), CallError> {
        self.in_force.send_modify(|in_force| {
            in_force.cordoned.insert(region.to_owned());
        });
        let reason = mark(&self.identity.id, &self.identity.name);
        set_quarantines(client, names.to_vec(), Some(reason)).await
    }

    /// Puts the nodes of a region back that this drill keeps away from work.
    ///
    /// # Errors
    /// When one could not be put back.
    pub async fn uncordon(&self, client: &Client, region: &str) -> Result<usize, CallError> {
        let put_back = release(client, |node, id| node.region == region && id == self.identity.id).await?;
        self.in_force.send_modify(|in_force| {
            in_force.cordoned.remove(region);
        });
        Ok(put_back)
    }

    /// Ends the drill at every replica; those that could not be told, with why. They forget it by themselves.
    pub async fn end(self) -> Vec<(u64, String)> {
        self.renewing.abort();
        end_at(&self.services, &self.identity.id).await
    }
}

async fn renew(
    identity: Identity,
    services: Vec<(u64, ReplicaDrills)>,
    in_force: watch::Receiver<InForce>,
    news: mpsc::Sender<News>,
) {
    let mut asking = JoinSet::new();
    // Each at its own pace: one that does not answer holds up no other.
    for (replica, service) in services {
        let (identity, mut in_force, news) = (identity.clone(), in_force.clone(), news.clone());
        asking.spawn(async move {
            let mut ticks = tokio::time::interval(RENEW_EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                // What changes is told at once.
                tokio::select! {
                    _ = ticks.tick() => {}
                    Ok(()) = in_force.changed() => {}
                }
                let request = identity.announcement(&in_force.borrow_and_update().clone());
                let heard = match service.announce_drill(request).await {
                    Ok(answer) => {
                        let refuses = answer.drill.is_some_and(|drill| !drill.refused.is_empty());
                        News::Held { replica, refuses }
                    }
                    Err(error) => match over(&error) {
                        Some(why) => News::Over { replica, why },
                        None => News::Unanswered,
                    },
                };
                if news.send(heard).await.is_err() {
                    return;
                }
            }
        });
    }
    asking.join_all().await;
}

/// Why a replica will not renew the drill any more, where that is what it said.
fn over(error: &AttemptError) -> Option<String> {
    let AttemptError::Answer { refused, .. } = error else { return None };
    let is_over = matches!(refused.code, Some(RefusalCode::DrillOver | RefusalCode::DrillRunning));
    is_over.then(|| refused.to_string())
}

/// Ends a drill at replicas, whichever runs where the id is empty; those that could not be told.
pub async fn end_at(services: &[(u64, ReplicaDrills)], id: &str) -> Vec<(u64, String)> {
    let mut asking = JoinSet::new();
    for (replica, service) in services.iter().cloned() {
        let request = admin::EndDrillRequest { drill_id: id.to_owned() };
        asking.spawn(async move { (replica, service.end_drill(request).await) });
    }
    let mut untold = Vec::new();
    while let Some(asked) = asking.join_next().await {
        if let Ok((replica, Err(error))) = asked {
            untold.push((replica, why(&error)));
        }
    }
    untold
}

/// With a reason it begins, without one it ends.
async fn set_quarantine(client: Client, node: String, reason: Option<String>) -> Result<(), CallError> {
    let request_id = String::new();
    match reason {
        Some(reason) => {
            client.quarantine_node(v1::QuarantineNodeRequest { request_id, node, reason }).await.map(drop)
        }
        None => client.release_node(v1::ReleaseNodeRequest { request_id, node }).await.map(drop),
    }
}

async fn set_quarantines(
    client: &Client,
    names: Vec<String>,
    reason: Option<String>,
) -> Result<(), CallError> {
    let mut names = names.into_iter();
    let mut setting = JoinSet::new();
    loop {
        while setting.len() < AT_ONCE {
            let Some(node) = names.next() else { break };
            setting.spawn(set_quarantine(client.clone(), node, reason.clone()));
        }
        match setting.join_next().await {
            Some(Ok(set)) => set?,
            // A task ends otherwise only by a panic, which has been reported.
            Some(Err(_)) => {}
            None => return Ok(()),
        }
    }
}

/// Puts nodes back that a drill keeps away from work; how many.
///
/// # Errors
/// When one could not be put back.
pub async fn release(client: &Client, which: impl Fn(&NodeStatus, &str) -> bool) -> Result<usize, CallError> {
    let marked = nodes(client).await?.into_iter().filter(|node| {
        let by = node.quarantine.as_deref().and_then(marked_by);
        by.is_some_and(|id| which(node, id))
    });
    let names: Vec<String> = marked.map(|node| node.name).collect();
    let count = names.len();
    set_quarantines(client, names, None).await?;
    Ok(count)
}

/// Cancels probes that wait, of one drill or of all; how many.
///
/// # Errors
/// When they cannot be listed or cancelled.
pub async fn cancel_probes(client: &Client, id: Option<&str>) -> Result<usize, CallError> {
    let mut request = v1::ListJobsRequest {
        page_size: PAGE_SIZE,
        read: Read::linearizable().into(),
        filter: Some(v1::JobFilter {
            phases: vec![v1::JobPhase::Pending.into()],
            name_prefix: id.map_or_else(|| format!("{PROBE}d-"), probe_name),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut ids = Vec::new();
    loop {
        let page = client.list_jobs(request.clone()).await?;
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let count = ids.len();
    for job_id in ids {
        let request = v1::CancelJobRequest { request_id: String::new(), job_id };
        match client.cancel_job(request).await {
            Ok(_) => {}
            // Cancelled by who submitted it, meanwhile.
            Err(error) if error.refused().is_some_and(|r| r.code == Some(RefusalCode::JobFinished)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_knows_its_own_marks() {
        assert_eq!(
            marked_by(&mark("d-20261122t090000z-ab12", "region-cordoned")),
            Some("d-20261122t090000z-ab12")
        );
        for other in ["", "drill", "drill: no", "drill bits worn out", "jobs fail here", "drill x: y"] {
            assert_eq!(marked_by(other), None, "{other:?}");
        }
        assert!(muster_types::Name::new(&probe_name("d-20261122t090000z-ab12")).is_some());
    }
}
