//! Where other jobs are, as far as a job has to be with them or away from them.
//!
//! An entry of a job speaks of jobs of its tenant and of those below it that hold devices, and of jobs that are over where an
//! entry names them by an id. Of those that it selects by labels at most [`limits::AFFINITY_JOBS_MAX`] are looked at, in the
//! order of tenant and id. A job that asks to be together with jobs that it would itself be one of may start as the first of
//! them.
//!
//! Jobs that have to be apart from others keep these away while they hold devices or have some promised: what an entry forbids
//! holds whichever of the two starts first. What an entry asks for holds when a job starts, and nobody is stopped because of it.
//!
//! **Invariant:** what is looked at for one entry is bounded, and counted.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use muster_planner::AffinityTerm;
use muster_state::{JobRow, Phase, State};
use muster_types::{
    Affinity, AffinityDomain, AffinityLevel, AffinityRule, AffinityTarget, ArrayId, JobId, JobSpec,
    LabelSelector, LogTime, Name, NodeDraft, NodeId, limits,
};

/// Workers of the jobs of one entry that are looked at: members of an array that are over may have had any number together.
const WORKERS_MAX: u64 = 200_000;
/// This number of workers takes about as long as one job: of each worker only the number of its node is looked at.
const WORKERS_PER_LOOK: u64 = 16;

/// What the entries of a job come to in a state.
#[derive(Debug, Default)]
pub(crate) struct Resolved<'a> {
    /// What the planner has to heed.
    pub(crate) terms: Vec<AffinityTerm<'a>>,
    /// Tenants and jobs that were looked at, and entries of those that keep this one away.
    pub(crate) looked_at: u64,
    /// The first entry that no place can meet, because nothing runs that it is about.
    pub(crate) waits_for: Option<&'a Affinity>,
    /// Whether it would be otherwise for a job that asks for the same and has other labels, or that no other job names.
    pub(crate) depends_on_labels: bool,
}

/// The jobs that an entry selects, and where they are.
#[derive(Default)]
struct Others {
    nodes: BTreeSet<NodeId>,
    jobs: u64,
    looked_at: u64,
    tenants: u64,
    workers: u64,
    is_cut: bool,
    /// The time at which those do not count that are being stopped; none where they do.
    behind_stops: Option<LogTime>,
}

/// What jobs keep another one away from, on one level.
#[derive(Default)]
struct KeptBy {
    /// The first of them that is of the same tenant: jobs of those above it are none of its business.
    first: Option<JobId>,
    nodes: BTreeSet<NodeId>,
}

/// The words behind an entry where not every job was looked at that it may be about.
const CUT: &str = " (of the first that were looked at)";

/// What the entries of a job come to, and those of jobs that keep it away.
pub(crate) fn resolve<'a>(state: &'a State, job: JobId, spec: &'a JobSpec) -> Resolved<'a> {
    resolve_at(state, (job, spec), None)
}

/// The same as if the jobs were over that are being stopped at this time, but for those that should have been over long ago.
pub(crate) fn resolve_behind_stops<'a>(
    state: &'a State,
    job: JobId,
    spec: &'a JobSpec,
    now: LogTime,
) -> Resolved<'a> {
    resolve_at(state, (job, spec), Some(now))
}

fn resolve_at<'a>(
    state: &'a State,
    (job, spec): (JobId, &'a JobSpec),
    behind_stops: Option<LogTime>,
) -> Resolved<'a> {
    let mut resolved = Resolved::default();
    if spec.affinity.is_empty() && !state.has_apart() {
        return resolved;
    }
    let none = BTreeMap::new();
    let labels = state.metadata(job).map_or(&none, |metadata| &metadata.labels);
    for entry in &spec.affinity {
        let others = others(state, (job, spec), entry, behind_stops);
        resolved.looked_at += others.looked_at + others.tenants + others.workers / WORKERS_PER_LOOK;
        if others.jobs == 0 && entry.rule == AffinityRule::Together && entry.is_required() {
            if entry.selector().is_some_and(|selector| selector.matches(labels)) {
                // The first of its kind.
                resolved.depends_on_labels = true;
                continue;
            }
            resolved.waits_for.get_or_insert(entry);
            // One of those that it is about may start as the first.
            resolved.depends_on_labels |= matches!(entry.target, AffinityTarget::Labels(_));
        }
        let cut = if others.is_cut { CUT } else { "" };
        resolved.terms.push(AffinityTerm {
            text: format!("{entry}{cut}"),
            level: entry.level,
            rule: entry.rule,
            weight: entry.weight,
            domains: domains_at(state, &others.nodes, entry.level),
        });
    }
    kept_away(state, (job, spec), (labels, behind_stops), limits::AFFINITY_JOBS_MAX, &mut resolved);
    resolved
}

/// Whether a job is being stopped, and is expected to be over soon; never without a time.
fn is_leaving(state: &State, job: JobId, now: Option<LogTime>) -> bool {
    let allowed_ms = state.policy().policy.preemption.stopping_deadline_ms;
    now.zip(state.stopped_by(job)).is_some_and(|(now, killed)| now < killed.plus_ms(allowed_ms))
}

/// Jobs that hold devices, or to which some are promised, and that have to be apart from this one; at most
/// `jobs_max` of each tenant.
fn kept_away<'a>(
    state: &'a State,
    (job, spec): (JobId, &JobSpec),
    (labels, behind_stops): (&BTreeMap<String, String>, Option<LogTime>),
    jobs_max: usize,
    resolved: &mut Resolved<'a>,
) {
    let policy = &state.policy().policy;
    let mut by_level: BTreeMap<AffinityLevel, KeptBy> = BTreeMap::new();
    // Jobs that serve the same have the same selector: each is read once.
    let mut known: BTreeMap<&str, bool> = BTreeMap::new();
    // Some job was not looked at, which may keep this one away as well.
    let mut is_cut = false;
    for tenant in policy.ancestry(&spec.tenant) {
        let others = state.apart_of(tenant).filter(|other| *other != job);
        for (looked_through, other) in others.enumerate() {
            if looked_through >= jobs_max {
                is_cut = true;
                break;
            }
            resolved.looked_at += 1;
            let Some((row, theirs)) = state.job(other).zip(state.spec(other)) else { continue };
            // Each entry may have another selector, which is read and compared.
            resolved.looked_at += theirs.affinity.len() as u64;
            let entries = theirs.affinity.iter().filter(|entry| entry.is_required());
            for entry in entries.filter(|entry| entry.rule == AffinityRule::Apart) {
                let is_meant = match &entry.target {
                    AffinityTarget::Labels(text) => *known
                        .entry(text.as_str())
                        .or_insert_with(|| entry.selector().is_some_and(|selector| selector.matches(labels))),
                    target => names(target, job, spec),
                };
                if is_meant {
                    let kept = by_level.entry(entry.level).or_default();
                    kept.first = kept.first.or(Some(other).filter(|_| theirs.tenant == spec.tenant));
                    let mut workers = 0u64;
                    if holds(state, other) && !is_leaving(state, other, behind_stops) {
                        kept.nodes.extend(nodes_of(state, other, row).inspect(|_| workers += 1));
                    }
                    kept.nodes.extend(promised_nodes(row).inspect(|_| workers += 1));
                    resolved.looked_at += workers / WORKERS_PER_LOOK;
                }
            }
        }
    }
    for (level, KeptBy { first, nodes }) in by_level {
        let domains = domains_at(state, &nodes, level);
        // Jobs that serve the same ask for it themselves.
        let is_asked = resolved.terms.iter().any(|term| {
            let is_alike = term.is_required() && term.rule == AffinityRule::Apart && term.level == level;
            is_alike && domains.is_subset(&term.domains)
        });
        if is_asked || domains.is_empty() {
            continue;
        }
        // By its labels, or by its id.
        resolved.depends_on_labels = true;
        let cut = if is_cut { CUT } else { "" };
        let text = match first {
            Some(first) => {
                format!("in no {level} of {first} or another job that has to be apart from it{cut}")
            }
            None => format!("in no {level} of jobs above its tenant that have to be apart from it{cut}"),
        };
        resolved.terms.push(AffinityTerm { text, level, rule: AffinityRule::Apart, weight: None, domains });
    }
}

/// Whether the target of another job's entry names a job, or an array that it is in.
fn names(target: &AffinityTarget, job: JobId, spec: &JobSpec) -> bool {
    match target {
        AffinityTarget::Job(other) => *other == job,
        AffinityTarget::Array(array) => {
            let first = spec.array.and_then(|member| job.0.checked_sub(u64::from(member.ordinal)));
            first == Some(array.0)
        }
        AffinityTarget::Named(_) | AffinityTarget::Labels(_) => false,
    }
}

fn others(
    state: &State,
    (job, spec): (JobId, &JobSpec),
    entry: &Affinity,
    behind_stops: Option<LogTime>,
) -> Others {
    let mut found = Others { behind_stops, ..Others::default() };
    match &entry.target {
        AffinityTarget::Job(other) => {
            found.looked_at += 1;
            if is_within(state, &spec.tenant, *other) {
                found.add(state, *other, entry, true);
            }
        }
        AffinityTarget::Array(ArrayId(first)) => {
            let size = state.array(ArrayId(*first)).map_or(0, |array| array.template.array.size());
            let last = JobId(first.saturating_add(u64::from(size)).saturating_sub(1));
            found.look_through(state, (job, spec), (JobId(*first), last), entry, None);
            // Where those of its members were that are over, while none runs.
            if found.jobs == 0 && is_within(state, &spec.tenant, JobId(*first)) {
                let members = state.jobs().range(JobId(*first)..=last).map(|(member, _)| *member);
                for member in members.filter(|member| *member != job).take(limits::AFFINITY_JOBS_MAX) {
                    found.looked_at += 1;
                    found.add(state, member, entry, true);
                }
            }
        }
        AffinityTarget::Named(_) => {}
        AffinityTarget::Labels(_) => {
            let selector = entry.selector();
            found.look_through(state, (job, spec), (JobId(0), JobId(u64::MAX)), entry, selector.as_ref());
        }
    }
    if entry.rule == AffinityRule::Apart {
        found.look_at_promised(state, (job, spec), entry);
    }
    found
}

impl Resolved<'_> {
    /// Whether a worker on a node would not meet what is required.
    pub(crate) fn excludes(&self, node: &NodeDraft) -> bool {
        self.terms.iter().any(|term| term.is_required() && term.excludes(node))
    }
}

impl Others {
    /// Looks at the jobs of a tenant and of those below it that hold devices, have an id of a range, and are selected.
    fn look_through(
        &mut self,
        state: &State,
        (job, spec): (JobId, &JobSpec),
        (first, last): (JobId, JobId),
        entry: &Affinity,
        selector: Option<&LabelSelector>,
    ) {
        let policy = &state.policy().policy;
        for tenant in state.active_tenants() {
            self.tenants += 1;
            if !policy.ancestry(tenant).any(|above| *above == spec.tenant) {
                continue;
            }
            for other in state.active_of(tenant, first..=last).filter(|other| *other != job) {
                if self.looked_at >= limits::AFFINITY_JOBS_MAX as u64 || self.workers >= WORKERS_MAX {
                    self.is_cut = true;
                    return;
                }
                self.looked_at += 1;
                let is_selected = selector.is_none_or(|selector| {
                    state.metadata(other).is_some_and(|metadata| selector.matches(&metadata.labels))
                });
                if is_selected {
                    self.add(state, other, entry, false);
                }
            }
        }
    }

    /// Looks at jobs to which capacity is promised. Who has to be apart from them does not go to where they will be: of two that
    /// others are stopped for, one would have them stopped for nothing.
    fn look_at_promised(&mut self, state: &State, (job, spec): (JobId, &JobSpec), entry: &Affinity) {
        let selector = entry.selector();
        for other in state.promised().filter(|other| *other != job) {
            if self.looked_at >= limits::AFFINITY_JOBS_MAX as u64 || self.workers >= WORKERS_MAX {
                self.is_cut = true;
                return;
            }
            self.looked_at += 1;
            let Some((row, theirs)) = state.job(other).zip(state.spec(other)) else { continue };
            let is_meant = match &entry.target {
                AffinityTarget::Labels(_) => selector.as_ref().is_some_and(|selector| {
                    state.metadata(other).is_some_and(|metadata| selector.matches(&metadata.labels))
                }),
                target => names(target, other, theirs),
            };
            if is_meant && is_within(state, &spec.tenant, other) {
                self.add_nodes(state, promised_nodes(row));
            }
        }
    }

    /// Counts a job and where it is. One that is being stopped is there, and nobody goes to where it is.
    fn add(&mut self, state: &State, job: JobId, entry: &Affinity, also_over: bool) {
        let Some(row) = state.job(job) else { return };
        let is_there = match row.phase {
            Phase::Starting | Phase::Running => holds(state, job),
            Phase::Stopping(_) => {
                let stays = entry.rule == AffinityRule::Apart && !is_leaving(state, job, self.behind_stops);
                stays && holds(state, job)
            }
            // Where it was last something may be left of it, as its files.
            Phase::Finished(_) => also_over && entry.rule == AffinityRule::Together,
            Phase::Pending => false,
        };
        if !is_there {
            return;
        }
        self.add_nodes(state, nodes_of(state, job, row));
        // One whose nodes are all gone is nowhere.
        self.jobs += u64::from(!self.nodes.is_empty());
    }

    fn add_nodes(&mut self, state: &State, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            if self.workers >= WORKERS_MAX {
                self.is_cut = true;
                break;
            }
            self.workers += 1;
            if !self.nodes.contains(&node) && state.node(node).is_some() {
                self.nodes.insert(node);
            }
        }
    }
}

/// Whether a job holds devices in this state, which may be one that is thought out.
fn holds(state: &State, job: JobId) -> bool {
    state.spec(job).is_some_and(|spec| state.active_of(&spec.tenant, job..=job).next().is_some())
}

/// Whether a job is one of a tenant or of one below it.
fn is_within(state: &State, tenant: &Name, job: JobId) -> bool {
    let policy = &state.policy().policy;
    state.tenant_of(job).is_some_and(|of| policy.ancestry(of).any(|above| above == tenant))
}

/// The domains of a level in which these nodes lie.
fn domains_at<'a>(
    state: &'a State,
    nodes: &BTreeSet<NodeId>,
    level: AffinityLevel,
) -> BTreeSet<AffinityDomain<'a>> {
    nodes.iter().filter_map(|node| Some(level.domain(&state.node(*node)?.spec))).collect()
}

/// The nodes of the workers of a job, or of those that it had last; each as often as it has workers there.
fn nodes_of<'a>(state: &'a State, job: JobId, row: &'a JobRow) -> impl Iterator<Item = NodeId> + use<'a> {
    let placement = row.placement.as_ref().or(row.previous.as_ref());
    let slots = placement.map_or(&[][..], |placement| &placement.slots[..]);
    let spares = if row.placement.is_some() { state.spares(job) } else { &[] };
    slots.iter().chain(spares).map(|slot| slot.node)
}

/// The nodes of the workers that a job will have to which capacity is promised.
fn promised_nodes(row: &JobRow) -> impl Iterator<Item = NodeId> + '_ {
    row.promise.iter().flat_map(|promise| promise.slots.iter().map(|slot| slot.node))
}

/// Why a job waits for another one to run, whatever is free.
pub(crate) fn why_it_waits(state: &State, job: JobId, spec: &JobSpec) -> Option<String> {
    let resolved = resolve(state, job, spec);
    let entry = resolved.waits_for?;
    // What will not come about is no reason to go on waiting.
    let leave_out = "cancel the job, and submit it without that entry";
    let text = match &entry.target {
        AffinityTarget::Job(other) if is_within(state, &spec.tenant, *other) => {
            match state.job(*other).map(|row| &row.phase) {
                Some(Phase::Finished(_)) => format!(
                    "it has to be {entry}, and {other} is over and was on no node that is still there; {leave_out}"
                ),
                _ => format!("it has to be {entry}, and {other} is nowhere now; it starts once that runs"),
            }
        }
        AffinityTarget::Job(other) => {
            format!("it has to be {entry}, and {other} is not there any more; {leave_out}")
        }
        AffinityTarget::Array(array) => match state.array(*array) {
            Some(row) if row.finished_at.is_none() => {
                format!("it has to be {entry}, and no member of {array} has run yet; it starts once one does")
            }
            _ => format!(
                "it has to be {entry}, and {array} is over and was on no node that is still there; {leave_out}"
            ),
        },
        AffinityTarget::Named(_) | AffinityTarget::Labels(_) => {
            format!("it has to be {entry}, and none runs now that its tenant has; it starts once one does")
        }
    };
    Some(text)
}

/// What is wrong with entries that name jobs by their ids: each has to be there, and be of the tenant or of one below it. What
/// is of others is not found, so that nobody learns of it.
pub(crate) fn missing<'s>(state: &'s State, spec: &'s JobSpec) -> impl Iterator<Item = (usize, String)> + 's {
    spec.affinity.iter().enumerate().filter_map(move |(place, entry)| {
        let (other, shown) = match entry.target {
            AffinityTarget::Job(job) => (job, job.to_string()),
            AffinityTarget::Array(array) => {
                let is_known = state.array(array).is_some();
                if !is_known {
                    return Some((place, not_found(&array.to_string())));
                }
                (JobId(array.0), array.to_string())
            }
            AffinityTarget::Named(_) | AffinityTarget::Labels(_) => return None,
        };
        (!is_within(state, &spec.tenant, other)).then(|| (place, not_found(&shown)))
    })
}

fn not_found(shown: &str) -> String {
    format!(
        "there is no {shown} of the tenant or of one below it: it never was, or its history has been dropped"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec;
    use muster_planner::Budget;
    use muster_types::policy::{PolicyDraft, TenantPolicy, TenantRights};
    use muster_types::{
        Accelerators, ClusterId, HolderId, JobContract, JobDraft, JobMetadata, Leadership, LogTime,
        Parameters, ReplicaId, RequestId, Requester, Submission, TaskGroup, WorkerRequest,
    };

    use crate::{Answer, BootstrapConfig, Command, Speculation, handle, schedule};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn h100(count: u16) -> Accelerators {
        Accelerators { kind: name("h100"), count }
    }

    /// One host with eight devices, and a tenant.
    fn fleet() -> Speculation {
        let bootstrap = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), bootstrap);
        let mut policy = PolicyDraft::default();
        policy
            .tenants
            .insert(name("team"), TenantPolicy { rights: TenantRights::ALL, ..TenantPolicy::default() });
        let set = Command::SetPolicy {
            request: RequestId(1),
            by: Requester::default(),
            policy: Box::new(policy.check().expect("a policy")),
            expected_version: None,
        };
        handle(&mut speculation, &set).expect("it is taken");
        let spec = NodeDraft {
            name: name("n1"),
            region: name("eu"),
            cluster: name("c1"),
            block: name("b"),
            rack: name("r"),
            address: "n1".to_string(),
            accelerators: Some(h100(8)),
            cpu_milli: 64_000,
            memory_bytes: 1 << 38,
            labels: BTreeMap::new(),
            taints: BTreeSet::new(),
            pod: None,
        };
        let spec = spec.check().expect("a host");
        let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
        handle(&mut speculation, &register).expect("it is new");
        speculation
    }

    fn submit(speculation: &mut Speculation, request: u128, app: &str, affinity: Vec<Affinity>) -> JobId {
        let asks =
            WorkerRequest { accelerators: Some(h100(1).into()), cpu_milli: 1_000, memory_bytes: 1 << 30 };
        let group = TaskGroup::new(name("main"), 1, vec!["run".to_string()], asks);
        let mut draft = JobDraft::new(name("job"), name("team"), vec![group]);
        draft.affinity = affinity;
        let labels = [("app".to_string(), app.to_string())].into_iter().collect();
        let metadata = Some(Arc::new(JobMetadata { labels, ..JobMetadata::default() }));
        let spec = draft.check().expect("a job");
        let job = Submission { metadata, ..Submission::new(spec, JobContract::default()) };
        match handle(speculation, &Command::submit(RequestId(request), vec![job].into())) {
            Ok(Answer::Submitted { jobs, .. }) => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn jobs_that_were_not_looked_at_are_mentioned() {
        let mut speculation = fleet();
        let apart = Affinity {
            target: AffinityTarget::Labels("app=web".to_string()),
            level: AffinityLevel::Host,
            rule: AffinityRule::Apart,
            weight: None,
        };
        for request in 2..4 {
            submit(&mut speculation, request, "batch", vec![apart.clone()]);
        }
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let web = submit(&mut speculation, 4, "web", Vec::new());
        let state = speculation.state();
        assert_eq!(state.apart_of(&name("team")).count(), 2, "both hold devices");
        let spec = state.spec(web).expect("it was taken");
        let text = |jobs_max| {
            let labels = &state.metadata(web).expect("it has labels").labels;
            let mut resolved = Resolved::default();
            kept_away(state, (web, spec), (labels, None), jobs_max, &mut resolved);
            assert_eq!(resolved.terms.len(), 1);
            resolved.terms.remove(0).text
        };
        assert!(text(1).ends_with(CUT), "{}", text(1));
        assert!(!text(2).contains("first that were"), "{}", text(2));
    }
}
