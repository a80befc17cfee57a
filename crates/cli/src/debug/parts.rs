//! What a bundle collects, and from whom.
//!
//! **Invariant:** a part that fails or is late costs no other part.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_client::{AttemptError, Client, Endpoints, LogItem, Options};
use muster_console::{moment, span, with_causes};
use muster_wire::closed::{phase_word, word};
use muster_wire::{admin, v1};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::package::{Content, Form, PART_BYTES_MAX, Part, Rows};
use super::redacted::{Decision, Job, Member, Node, without_receiver_paths};
use crate::view::Health;

/// Patience with one question to one replica.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// More replicas than that are a broken answer.
const REPLICAS_MAX: usize = 64;
/// Jobs, nodes and queues that are listed.
const JOBS_MAX: usize = 5_000;
const NODES_MAX: usize = 5_000;
const QUEUES_MAX: usize = 5_000;
/// Changes that are listed.
const EVENTS_MAX: usize = 200;
/// What a replica gives of a list at most at once.
const PAGE_SIZE: u32 = 1_000;

/// The parts, as `--list` shows them. `N` is the id of a replica, or the place of an address in `--web`.
pub(super) const PLAN: &[(&str, &str)] = &[
    ("manifest.json", "every part with its source, size and sha256; what is missing or cut, with the reason"),
    ("client.json", "version of this program, and which cluster it was told to ask"),
    ("replicas/N/version.json", "version, formats and features of each replica that answers"),
    ("replicas/N/status.json", "its role, positions in the log, digest of the state, disk and warnings"),
    ("replicas/N/drill.json", "a drill that runs there"),
    ("replicas/N/archive.json", "how far its archive of the log reaches, and gaps in it"),
    ("web/N/metrics.txt", "/metrics, where --web or the configuration names the address"),
    ("members.json", "members of the cluster with their addresses, votes and lag"),
    ("policy.json", "the policy in force; of addresses of receivers only scheme and host"),
    ("health-policy.json", "what is made of findings on nodes"),
    ("admission.json", "how nodes are admitted, and how many rules and approvals there are"),
    ("queues.json", "each tenant's pending and active jobs, shares and quotas"),
    (
        "nodes.json",
        "nodes with their place, devices and what keeps work away from them; no labels, taints or addresses",
    ),
    ("jobs.json", "jobs that have not ended, by id; no names, labels, commands, environments or messages"),
    ("events.json", "which jobs and nodes changed last"),
    ("decisions.jsonl", "the newest decisions of the log; of their fields only numbers, ids and counts"),
];

/// Collects the parts.
pub(super) struct Collector {
    client: Client,
    web: Option<Arc<Endpoints>>,
    decisions: u32,
    end: Instant,
}

fn bytes(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec_pretty(value).map_err(|error| error.to_string())
}

impl Collector {
    pub(super) fn new(
        client: Client,
        web: Option<Endpoints>,
        decisions: u32,
        deadline: Duration,
    ) -> Collector {
        let attempt = ATTEMPT_MAX.min(deadline);
        let options = Options { deadline: attempt, attempt_timeout: attempt, ..client.options().clone() };
        Collector {
            client: client.with_options(options),
            web: web.map(Arc::new),
            decisions,
            end: Instant::now() + deadline,
        }
    }

    /// Every part, those that failed with their reason.
    pub(super) async fn collect(&self, version: &str) -> Vec<Part> {
        let mut parts = vec![self.own(version)];
        let (replicas, web, shared) = tokio::join!(self.replicas(), self.pages(), self.shared());
        parts.extend(replicas);
        parts.extend(web);
        parts.extend(shared);
        parts
    }

    /// What a question comes to, until the time is over.
    async fn in_time<T>(&self, question: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        match tokio::time::timeout_at(self.end, question).await {
            Ok(answer) => answer,
            Err(_) => Err("the time was over before it was answered; --deadline allows more".to_owned()),
        }
    }

    fn own(&self, version: &str) -> Part {
        let endpoints: Vec<&str> = self.client.endpoints().iter().collect();
        let web: Vec<&str> = self.web.iter().flat_map(|web| web.iter()).collect();
        let certificates = self.client.endpoints().security().days_left();
        let content = json!({
            "version": version,
            "endpoints": endpoints,
            "web": web,
            "certificateDaysLeft": certificates,
            "deadlineMs": u64::try_from(self.client.options().deadline.as_millis()).unwrap_or(u64::MAX),
            "note": "replicas do not tell their configuration: add server.toml without its keys where it matters",
        });
        Part::new("client.json", "this program", bytes(&content))
    }

    /// What each replica says of itself, all of them at the same time.
    async fn replicas(&self) -> Vec<Part> {
        let first = self.in_time(async {
            self.client.get_status(v1::GetStatusRequest::default()).await.map_err(|error| with_causes(&error))
        });
        let first = match first.await {
            Ok(first) => first,
            Err(why) => return vec![Part::new("members.json", "any replica", Err(why))],
        };
        let members: Vec<Member> = first.replicas.iter().take(REPLICAS_MAX).map(Member::of).collect();
        let source =
            format!("replica {}", first.freshness.as_ref().map_or(0, |freshness| freshness.replica_id));
        let mut parts = vec![Part::new("members.json", source, bytes(&members))];
        let mut asking = JoinSet::new();
        for replica in first.replicas.iter().take(REPLICAS_MAX) {
            let (client, id, address) = (self.client.clone(), replica.id, replica.client_endpoint.clone());
            let end = self.end;
            asking.spawn(async move { replica_parts(client, id, address, end).await });
        }
        let mut all = Vec::new();
        while let Some(answered) = asking.join_next().await {
            all.extend(answered.unwrap_or_default());
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        parts.extend(all);
        parts
    }

    /// `/metrics` of each address that is known.
    async fn pages(&self) -> Vec<Part> {
        let Some(web) = &self.web else {
            let why = "no address of /metrics is known: --web, MUSTER_WEB or `web` in the configuration file name them";
            return vec![Part::new("web/1/metrics.txt", "nobody", Err(why.to_owned()))];
        };
        let mut asking = JoinSet::new();
        for (place, address) in web.iter().enumerate() {
            let (web, address) = (Arc::clone(web), address.to_owned());
            let left = self.end.saturating_duration_since(Instant::now()).min(ATTEMPT_MAX);
            asking.spawn(async move {
                let asked = web.http_get(&address, "/metrics", PART_BYTES_MAX, left).await;
                let content = match asked {
                    Ok(answer) if answer.code == 200 => {
                        let lines = Rows::of_text(&answer.body, answer.is_cut);
                        Ok(Content::Rows(Form::Text, lines))
                    }
                    Ok(answer) => Err(format!("it answers with {}", answer.code)),
                    Err(why) => Err(why),
                };
                Part::of(format!("web/{}/metrics.txt", place + 1), address, content)
            });
        }
        let mut parts = asking.join_all().await;
        parts.sort_by(|a, b| a.path.cmp(&b.path));
        parts
    }

    /// What any replica says of the cluster.
    async fn shared(&self) -> Vec<Part> {
        let (policy, health, admission) = tokio::join!(self.policy(), self.health_policy(), self.admission());
        let (queues, nodes, jobs, decisions) =
            tokio::join!(self.queues(), self.nodes(), self.jobs(), self.decisions());
        let events = events(nodes.as_ref(), jobs.as_ref());
        let part = |path: &str, content: Result<Vec<u8>, String>| Part::new(path, "any replica", content);
        let listed = |path: &str, content: Result<Content, String>| Part::of(path, "any replica", content);
        vec![
            part("policy.json", policy),
            part("health-policy.json", health),
            part("admission.json", admission),
            listed("queues.json", written(queues, |queue| crate::view::Queue::from(queue.clone()))),
            listed("nodes.json", written(nodes, Node::of)),
            listed("jobs.json", written(jobs, Job::of)),
            listed("events.json", events),
            listed("decisions.jsonl", decisions),
        ]
    }

    async fn policy(&self) -> Result<Vec<u8>, String> {
        let asked = async {
            self.client.get_policy(v1::GetPolicyRequest::default()).await.map_err(|error| with_causes(&error))
        };
        let answer = without_receiver_paths(self.in_time(asked).await?);
        bytes(&muster_manifest::policy_file(&answer))
    }

    async fn health_policy(&self) -> Result<Vec<u8>, String> {
        let asked = async {
            let request = v1::GetHealthPolicyRequest::default();
            self.client.get_health_policy(request).await.map_err(|error| with_causes(&error))
        };
        let answer = self.in_time(asked).await?;
        let policy = answer.policy.unwrap_or_default();
        let findings: serde_json::Map<String, Value> = policy
            .findings
            .iter()
            .map(|(finding, action)| {
                let action =
                    v1::HealthAction::try_from(*action).map_or("unknown", |action| action.as_str_name());
                (finding.clone(), Value::from(action))
            })
            .collect();
        bytes(&json!({
            "version": answer.version,
            "setTime": moment(answer.set_time),
            "trustDriver": policy.trust_driver,
            "maxReboots": policy.max_reboots,
            "resetTakesGroup": policy.reset_takes_group,
            "maintenanceLead": span(policy.maintenance_lead),
            "xids": policy.xids.len(),
            "findings": findings,
        }))
    }

    async fn admission(&self) -> Result<Vec<u8>, String> {
        let asked = async {
            let request = v1::GetNodeAdmissionRequest::default();
            self.client.get_node_admission(request).await.map_err(|error| with_causes(&error))
        };
        let answer = self.in_time(asked).await?;
        bytes(&json!({
            "mode": answer.mode().as_str_name(),
            "isSet": answer.is_set,
            "version": answer.version,
            "setTime": moment(answer.set_time),
            "rules": answer.rules.len(),
            "approvals": answer.approvals.len(),
            "moreApprovals": answer.has_more,
        }))
    }

    /// Queues, and whether there are more.
    async fn queues(&self) -> Result<(Vec<v1::TenantUsage>, bool), String> {
        let asked = async {
            let mut request = v1::ListTenantsRequest { page_size: PAGE_SIZE, ..Default::default() };
            let mut queues = Vec::new();
            loop {
                let page = self.client.list_tenants(request.clone()).await;
                let page = page.map_err(|error| with_causes(&error))?;
                queues.extend(page.tenants);
                let is_last = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
                if is_last || queues.len() >= QUEUES_MAX {
                    let is_cut = !is_last || queues.len() > QUEUES_MAX;
                    queues.truncate(QUEUES_MAX);
                    return Ok((queues, is_cut));
                }
                request.page_token = page.next_page_token;
            }
        };
        self.in_time(asked).await
    }

    /// Nodes, and whether there are more.
    async fn nodes(&self) -> Result<(Vec<v1::Node>, bool), String> {
        let mut pages =
            self.client.node_pages(v1::ListNodesRequest { page_size: PAGE_SIZE, ..Default::default() });
        let asked = async {
            let mut nodes = Vec::new();
            while let Some(page) = pages.next().await.map_err(|error| with_causes(&error))? {
                nodes.extend(page.items);
                if nodes.len() > NODES_MAX {
                    nodes.truncate(NODES_MAX);
                    return Ok((nodes, true));
                }
            }
            Ok((nodes, false))
        };
        self.in_time(asked).await
    }

    /// Jobs that have not ended, newest first, and whether there are more.
    async fn jobs(&self) -> Result<(Vec<v1::Job>, bool), String> {
        use v1::JobPhase::{Pending, Running, Starting, Stopping};
        let phases = [Pending, Starting, Running, Stopping].map(i32::from).to_vec();
        let filter = v1::JobFilter { phases, ..Default::default() };
        let request =
            v1::ListJobsRequest { page_size: PAGE_SIZE, filter: Some(filter), ..Default::default() };
        let mut pages = self.client.job_pages(request);
        let asked = async {
            let mut jobs = Vec::new();
            while let Some(page) = pages.next().await.map_err(|error| with_causes(&error))? {
                jobs.extend(page.items);
                if jobs.len() > JOBS_MAX {
                    jobs.truncate(JOBS_MAX);
                    return Ok((jobs, true));
                }
            }
            Ok((jobs, false))
        };
        self.in_time(asked).await
    }

    /// The newest decisions, one a line.
    async fn decisions(&self) -> Result<Content, String> {
        let count = u64::from(self.decisions);
        let asked = async {
            let status = self.client.get_status(v1::GetStatusRequest::default()).await;
            let newest = status
                .map_err(|error| with_causes(&error))?
                .freshness
                .map_or(0, |freshness| freshness.log_index);
            if newest == 0 || count == 0 {
                return Ok(Content::Rows(Form::Records, Rows::default()));
            }
            let from_index = newest.saturating_sub(count - 1).max(1);
            let request = v1::ReadDecisionsRequest { from_index, to_index: newest, ..Default::default() };
            let mut reader = self.client.read_decisions(request);
            let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
            let mut size = 0;
            let mut has_more = false;
            while let Some(item) = reader.next().await.map_err(|error| with_causes(&error))? {
                let LogItem::Record(record) = item else { continue };
                let line = serde_json::to_vec(&Decision::of(&record)).map_err(|error| error.to_string())?;
                size += line.len();
                lines.push_back(line);
                // Of too many the newest are kept.
                while size > PART_BYTES_MAX {
                    size -= lines.pop_front().map_or(size, |line| line.len());
                    has_more = true;
                }
            }
            Ok(Content::Rows(Form::Records, Rows { rows: lines.into(), has_more }))
        };
        self.in_time(asked).await
    }
}

/// A list as JSON, each row with the fields that may be said.
fn written<T, R: Serialize>(
    listed: Result<(Vec<T>, bool), String>,
    row: impl Fn(&T) -> R,
) -> Result<Content, String> {
    let (items, has_more) = listed?;
    let line = |item: &T| serde_json::to_vec(&row(item)).map_err(|error| error.to_string());
    let rows = items.iter().map(line).collect::<Result<Vec<_>, _>>()?;
    Ok(Content::Rows(Form::List, Rows { rows, has_more }))
}

/// One change of a job or a node.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    log_index: u64,
    subject: &'static str,
    id: String,
    state: String,
}

type Listed<'a, T> = Result<&'a (Vec<T>, bool), &'a String>;

/// The rows that changed last, newest first.
fn events(nodes: Listed<'_, v1::Node>, jobs: Listed<'_, v1::Job>) -> Result<Content, String> {
    let (nodes, jobs) = match (nodes, jobs) {
        (Err(why), Err(_)) => return Err(why.clone()),
        (nodes, jobs) => (
            nodes.map_or(&[][..], |(nodes, _)| nodes.as_slice()),
            jobs.map_or(&[][..], |(jobs, _)| jobs.as_slice()),
        ),
    };
    let of_node = |node: &v1::Node| Event {
        log_index: node.changed_at_index,
        subject: "node",
        id: node.id.clone(),
        state: node.status().as_str_name().to_owned(),
    };
    let of_job = |job: &v1::Job| Event {
        log_index: job.status().changed_at_index,
        subject: "job",
        id: job.id.clone(),
        state: phase_word(job.phase()).to_owned(),
    };
    let mut events: Vec<Event> = nodes.iter().map(of_node).chain(jobs.iter().map(of_job)).collect();
    events.sort_by(|a, b| b.log_index.cmp(&a.log_index).then_with(|| a.id.cmp(&b.id)));
    events.truncate(EVENTS_MAX);
    written(Ok((events, false)), Event::clone)
}

/// Version, status, drill and archive of one replica.
async fn replica_parts(client: Client, id: u64, address: String, end: Instant) -> Vec<Part> {
    let source = format!("replica {id} at {address}");
    let path = |name: &str| format!("replicas/{id}/{name}.json");
    if address.is_empty() {
        let why = Err("no address of it for clients is known".to_owned());
        return vec![Part::new(path("status"), source, why)];
    }
    let drills = client.drills_of(&address);
    let asked = async {
        tokio::join!(
            client.get_server_info_of(&address),
            client.get_status_of(&address),
            drills.get_drill(admin::GetDrillRequest {}),
            client.get_archive_status_of(&address),
        )
    };
    let Ok((version, status, drill, archive)) = tokio::time::timeout_at(end, asked).await else {
        let why = Err("the time was over before it was answered; --deadline allows more".to_owned());
        return vec![Part::new(path("status"), source, why)];
    };
    let part = |name: &str, content: Result<Value, AttemptError>| {
        let content = content.map_err(|error| with_causes(&error)).and_then(|content| bytes(&content));
        Part::new(path(name), source.clone(), content)
    };
    vec![
        part("version", version.map(|info| version_value(&info))),
        part("status", status.map(status_value)),
        part("drill", drill.map(|answer| drill_value(&answer))),
        part("archive", archive.map(|answer| archive_value(&answer))),
    ]
}

fn version_value(info: &v1::GetServerInfoResponse) -> Value {
    json!({
        "version": info.version,
        "apiVersions": info.api_versions,
        "features": info.features,
        "recordFormat": info.record_format,
        "maxRecordFormat": info.max_record_format,
        "replica": info.replica_id,
        "region": info.region,
        "clusterId": info.cluster_id,
        "generation": info.generation,
    })
}

fn status_value(status: v1::GetStatusResponse) -> Value {
    let warnings: Vec<Value> = status
        .warnings
        .iter()
        .map(|warning| json!({ "code": warning.code, "message": warning.message, "replica": warning.replica_id }))
        .collect();
    let freshness = status.freshness.unwrap_or_default();
    json!({
        "clusterId": status.cluster_id,
        "clusterGeneration": status.cluster_generation,
        "role": word::<v1::ReplicaRole>(status.role),
        "term": status.term,
        "logIndex": freshness.log_index,
        "leader": freshness.leader_id,
        "staleness": span(freshness.staleness),
        "logTime": moment(freshness.log_time),
        "stateDigest": status.state_digest,
        "raftLastIndex": status.raft_last_index,
        "raftCommittedIndex": status.raft_committed_index,
        "raftAppliedIndex": status.raft_applied_index,
        "raftSnapshotIndex": status.raft_snapshot_index,
        "recordsRejected": status.records_rejected,
        "recordFormat": status.record_format,
        "jobsPending": status.jobs_pending,
        "jobsActive": status.jobs_active,
        "jobsFinished": status.jobs_finished,
        "nodesUp": status.nodes_up,
        "nodesLost": status.nodes_lost,
        "changeRunning": status.change_running,
        "health": status.health.map(Health::from),
        "warnings": warnings,
    })
}

fn drill_value(answer: &admin::GetDrillResponse) -> Value {
    let drill = answer.drill.as_ref().map(|drill| {
        json!({
            "id": drill.id,
            "name": drill.name,
            "silentReplicas": drill.silent_replica_ids,
            "cordonedRegions": drill.cordoned_regions,
            "held": span(drill.held),
            "refusedFor": span(drill.refused_for),
            "refused": drill.refused().map(|traffic| traffic.as_str_name()).collect::<Vec<_>>(),
        })
    });
    json!({ "drill": drill, "maxRefusal": span(answer.max_refusal) })
}

/// Without its directories and where it is offloaded to.
fn archive_value(answer: &admin::GetArchiveStatusResponse) -> Value {
    let gaps: Vec<Value> =
        answer.gaps.iter().map(|gap| json!({ "from": gap.from_index, "to": gap.to_index })).collect();
    json!({
        "enabled": answer.enabled,
        "firstLogIndex": answer.first_log_index,
        "lastLogIndex": answer.last_log_index,
        "lastLogTime": moment(answer.last_log_time),
        "segments": answer.segments,
        "segmentBytes": answer.segment_bytes,
        "bases": answer.bases,
        "baseBytes": answer.base_bytes,
        "gaps": gaps,
        "fails": !answer.failure_message.is_empty(),
        "oldestLogIndex": answer.oldest_log_index,
        "newestLogIndex": answer.newest_log_index,
        "offloadedThroughIndex": answer.offloaded_through_index,
        "offloadFails": !answer.offload_failure_message.is_empty(),
    })
}
