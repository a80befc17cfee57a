//! How the cluster stands, as a drill needs to know it: replicas, warnings, drills, nodes and gangs.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_client::{AttemptError, CallError, Client, Options, Read, ReplicaDrills};
use muster_types::RefusalCode;
use muster_wire::time::span_ms;
use muster_wire::{admin, v1};

/// Replicas that are asked at most; a cluster has three or five.
const REPLICAS_MAX: usize = 64;
/// A replica that takes longer to say how it stands is not well enough for a drill.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Entries a voter may lack and be called caught up.
pub const LAG_ENTRIES_MAX: u64 = 1_000;
const PAGE_SIZE: u32 = 1_000;

/// One replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStatus {
    pub id: u64,
    pub region: String,
    pub endpoint: String,
    pub voter: bool,
    /// Why it does not say how it stands; none when it does.
    pub silent: Option<String>,
    /// How far it has applied the log, and the digest of its state there.
    pub state: Option<(u64, String)>,
    /// What keeps it from being well, in words; none when nothing does.
    pub ailing: Option<String>,
    /// The drill it holds.
    pub drill: Option<admin::Drill>,
    /// That the caller may do nothing about drills there, in the replica's words.
    pub denied: Option<String>,
    /// How long it may be made silent, in milliseconds; none where it did not say.
    pub refuse_max_ms: Option<u64>,
}

/// A gang that holds accelerators or other devices.
#[derive(Clone, Debug)]
pub struct Gang {
    pub region: String,
    pub accelerators: u64,
    /// Whether its work was ever saved.
    pub is_saved: bool,
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    pub name: String,
    pub region: String,
    pub is_cordoned: bool,
    /// Why it is kept away from work, where somebody has given a reason.
    pub quarantine: Option<String>,
}

/// Something that the cluster warns of.
#[derive(Clone, Debug)]
pub struct Warning {
    pub code: String,
    pub text: String,
    pub replica: u64,
}

/// The cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct ClusterSnapshot {
    pub log_index: u64,
    /// The leader that most voters name.
    pub leader: Option<u64>,
    pub replicas: Vec<ReplicaStatus>,
    pub warnings: Vec<Warning>,
    pub change_running: String,
    pub nodes: Vec<NodeStatus>,
    pub gangs: Vec<Gang>,
}

impl ClusterSnapshot {
    pub fn replica(&self, id: u64) -> Option<&ReplicaStatus> {
        self.replicas.iter().find(|replica| replica.id == id)
    }

    /// Regions with replicas or nodes.
    pub fn regions(&self) -> BTreeSet<&str> {
        let replicas = self.replicas.iter().map(|replica| replica.region.as_str());
        replicas.chain(self.nodes.iter().map(|node| node.region.as_str())).collect()
    }
}

fn brief(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// What keeps a replica from being well.
fn ailing(seen: &v1::Replica) -> Option<String> {
    let health = seen.health.as_ref();
    if let Some(lag) = seen.lag_entries.filter(|lag| *lag > LAG_ENTRIES_MAX) {
        return Some(format!("it lacks {lag} entries of the log"));
    }
    let health = health?;
    if health.rejoining {
        return Some("it lost its storage and is rejoining".to_owned());
    }
    if health.space() != v1::StorageSpace::Enough {
        return Some("its disk has little free space left".to_owned());
    }
    span_ms(health.flush_stall).map(|ms| format!("its disk has been flushing for {ms} ms"))
}

/// Replicas, warnings and drills. Asks every replica itself, at the same time.
pub async fn replicas(client: &Client) -> Result<ClusterSnapshot, CallError> {
    let options = Options { attempt_timeout: ANSWER_MAX, ..client.options().clone() };
    let client = client.with_options(options);
    let first = client.get_status(v1::GetStatusRequest::default()).await?;
    let mut asking = tokio::task::JoinSet::new();
    for member in first.replicas.iter().take(REPLICAS_MAX).cloned() {
        let client = client.clone();
        asking.spawn(async move {
            let drills = client.drills_of(&member.client_endpoint);
            let status = client.get_status_of(&member.client_endpoint);
            let (status, drill) = tokio::join!(status, drills.get_drill(admin::GetDrillRequest {}));
            (member, status, drill)
        });
    }
    let mut snapshot = ClusterSnapshot { change_running: first.change_running, ..ClusterSnapshot::default() };
    let mut answers = Vec::new();
    while let Some(asked) = asking.join_next().await {
        // A task ends otherwise only by a panic, which has been reported.
        let Ok((member, status, drill)) = asked else { continue };
        let (drill, refuse_max_ms, denied) = match drill {
            Ok(answer) => (answer.drill, Some(span_ms(answer.max_refusal).unwrap_or(0)), None),
            Err(error) => (None, None, is_denied(&error).then(|| why(&error))),
        };
        snapshot.replicas.push(ReplicaStatus {
            id: member.id,
            region: member.region,
            endpoint: member.client_endpoint,
            voter: member.voter,
            silent: status.as_ref().err().map(|error| brief(error)),
            state: status.as_ref().ok().and_then(state_of),
            ailing: None,
            drill,
            denied,
            refuse_max_ms,
        });
        answers.extend(status.ok());
    }
    snapshot.replicas.sort_by_key(|replica| replica.id);
    take_answers(&mut snapshot, answers);
    Ok(snapshot)
}

fn state_of(status: &v1::GetStatusResponse) -> Option<(u64, String)> {
    Some((status.freshness?.log_index, status.state_digest.clone()))
}

/// Puts together what the replicas said; the leader knows most.
fn take_answers(snapshot: &mut ClusterSnapshot, mut answers: Vec<v1::GetStatusResponse>) {
    answers.sort_by_key(|answer| answer.role() != v1::ReplicaRole::Leader);
    let named = answers.iter().filter_map(|answer| Some(answer.freshness?.leader_id)).filter(|id| *id > 0);
    let mut votes = std::collections::BTreeMap::new();
    for id in named {
        *votes.entry(id).or_insert(0) += 1;
    }
    let voters = snapshot.replicas.iter().filter(|replica| replica.voter).count();
    let most = votes.into_iter().max_by_key(|(_, count)| *count);
    snapshot.leader = most.filter(|(_, count)| *count * 2 > voters).map(|(id, _)| id);
    for answer in answers {
        snapshot.log_index = snapshot.log_index.max(answer.freshness.map_or(0, |f| f.log_index));
        let by_leader = answer.role() == v1::ReplicaRole::Leader;
        for seen in answer.replicas.iter().filter(|_| by_leader) {
            if let Some(replica) = snapshot.replicas.iter_mut().find(|replica| replica.id == seen.id) {
                replica.ailing = ailing(seen);
            }
        }
        for warning in answer.warnings {
            let known = |w: &Warning| w.code == warning.code && w.replica == warning.replica_id;
            if !snapshot.warnings.iter().any(known) {
                let v1::ClusterWarning { code, message: text, replica_id } = warning;
                snapshot.warnings.push(Warning { code, text, replica: replica_id });
            }
        }
    }
}

/// The same with nodes and gangs.
pub async fn all(client: &Client) -> Result<ClusterSnapshot, CallError> {
    let mut snapshot = replicas(client).await?;
    snapshot.nodes = nodes(client).await?;
    snapshot.gangs = gangs(client).await?;
    Ok(snapshot)
}

/// Every node.
pub async fn nodes(client: &Client) -> Result<Vec<NodeStatus>, CallError> {
    let mut nodes = Vec::new();
    let mut request = v1::ListNodesRequest {
        page_size: PAGE_SIZE,
        read: Read::linearizable().into(),
        ..Default::default()
    };
    loop {
        let page = client.list_nodes(request.clone()).await?;
        nodes.extend(page.nodes.into_iter().map(|node| {
            let description = node.description.unwrap_or_default();
            let quarantine = node.restriction.and_then(|restriction| restriction.quarantine);
            NodeStatus {
                name: description.name,
                region: description.region,
                is_cordoned: node.cordoned,
                quarantine: quarantine.map(|quarantine| quarantine.reason),
            }
        }));
        if page.next_page_token.is_empty() {
            return Ok(nodes);
        }
        request.page_token = page.next_page_token;
    }
}

async fn gangs(client: &Client) -> Result<Vec<Gang>, CallError> {
    let mut gangs = Vec::new();
    let phases = [v1::JobPhase::Starting, v1::JobPhase::Running, v1::JobPhase::Stopping];
    let mut request = v1::ListJobsRequest {
        page_size: PAGE_SIZE,
        read: Read::linearizable().into(),
        filter: Some(v1::JobFilter {
            phases: phases.into_iter().map(Into::into).collect(),
            ..Default::default()
        }),
        ..Default::default()
    };
    loop {
        let page = client.list_jobs(request.clone()).await?;
        gangs.extend(page.jobs.into_iter().map(|job| {
            let status = job.status.unwrap_or_default();
            let region = status.placement.map(|placement| placement.region).unwrap_or_default();
            Gang { region, accelerators: status.device_count, is_saved: status.last_checkpoint.is_some() }
        }));
        if page.next_page_token.is_empty() {
            return Ok(gangs);
        }
        request.page_token = page.next_page_token;
    }
}

/// The drill services of all replicas, by id.
pub fn drill_services(client: &Client, snapshot: &ClusterSnapshot) -> Vec<(u64, ReplicaDrills)> {
    let options = Options { attempt_timeout: ANSWER_MAX, ..client.options().clone() };
    let client = client.with_options(options);
    snapshot.replicas.iter().map(|replica| (replica.id, client.drills_of(&replica.endpoint))).collect()
}

/// Whether the caller's certificate does not permit it.
pub fn is_denied(error: &AttemptError) -> bool {
    matches!(error, AttemptError::Answer { refused, .. } if refused.code == Some(RefusalCode::PermissionDenied))
}

/// What a failed call to one replica was, for a person.
pub fn why(error: &AttemptError) -> String {
    match error {
        AttemptError::Answer { refused, .. } => refused.to_string(),
        other => brief(other),
    }
}
