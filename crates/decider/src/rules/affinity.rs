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
use muster_journal::CapacityHold;
use muster_planner::{AffinityTerm, Opening};
use muster_policy::expected_end;
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
    /// Whether some were not looked at that this entry may be about.
    is_cut: bool,
    /// Whether it would be otherwise for a job that asks for the same and has other labels, or that no other job names.
    pub(crate) depends_on_labels: bool,
    /// Whether another job names this one, or its array: then it is otherwise for one with the same labels.
    pub(crate) depends_on_id: bool,
    /// Jobs in whose domains of a level it must not be; those that are over, or only have capacity promised, are not listed.
    keepers: Vec<(AffinityLevel, JobId)>,
}

/// A part of the fleet that is closed to a job because of others.
#[derive(Debug)]
pub(crate) struct KeptPart<'a> {
    level: AffinityLevel,
    domain: AffinityDomain<'a>,
    /// Where it is one host.
    pub(crate) host: Option<NodeId>,
    /// The others, as far as they were looked at: it is open once none of them is there.
    pub(crate) jobs: BTreeSet<JobId>,
}

impl KeptPart<'_> {
    /// Whether a node lies in it.
    pub(crate) fn has(&self, node: &NodeDraft) -> bool {
        self.level.domain(node) == self.domain
    }
}

/// The jobs that an entry selects, and where they are.
#[derive(Default)]
struct Others {
    nodes: BTreeSet<NodeId>,
    jobs: u64,
    /// Those that are there and that the entry has to be apart from.
    keepers: Vec<JobId>,
    looked_at: u64,
    tenants: u64,
    workers: u64,
    is_cut: bool,
    /// Jobs that are looked at, at most.
    jobs_max: u64,
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
    resolve_at(state, (job, spec), None, limits::AFFINITY_JOBS_MAX)
}

/// The same as if the jobs were over that are being stopped at this time, but for those that should have been over long ago.
pub(crate) fn resolve_behind_stops<'a>(
    state: &'a State,
    job: JobId,
    spec: &'a JobSpec,
    now: LogTime,
) -> Resolved<'a> {
    resolve_at(state, (job, spec), Some(now), limits::AFFINITY_JOBS_MAX)
}

fn resolve_at<'a>(
    state: &'a State,
    (job, spec): (JobId, &'a JobSpec),
    behind_stops: Option<LogTime>,
    jobs_max: usize,
) -> Resolved<'a> {
    let mut resolved = Resolved::default();
    if spec.affinity.is_empty() && !state.has_apart() {
        return resolved;
    }
    let none = BTreeMap::new();
    let labels = state.metadata(job).map_or(&none, |metadata| &metadata.labels);
    for entry in &spec.affinity {
        let others = others(state, (job, spec), entry, (behind_stops, jobs_max as u64));
        resolved.looked_at += others.looked_at + others.tenants + others.workers / WORKERS_PER_LOOK;
        if others.jobs == 0 && entry.rule == AffinityRule::Together && entry.is_required() {
            // Where not all were looked at, one of its kind may run: it would be another first one, elsewhere.
            if !others.is_cut && entry.selector().is_some_and(|selector| selector.matches(labels)) {
                // The first of its kind.
                resolved.depends_on_labels = true;
                continue;
            }
            if resolved.waits_for.is_none() {
                (resolved.waits_for, resolved.is_cut) = (Some(entry), others.is_cut);
            }
            // One of those that it is about may start as the first.
            resolved.depends_on_labels |= matches!(entry.target, AffinityTarget::Labels(_));
        }
        resolved.keepers.extend(others.keepers.iter().map(|keeper| (entry.level, *keeper)));
        let cut = if others.is_cut { CUT } else { "" };
        resolved.terms.push(AffinityTerm {
            text: format!("{entry}{cut}"),
            level: entry.level,
            rule: entry.rule,
            weight: entry.weight,
            domains: domains_at(state, &others.nodes, entry.level),
        });
    }
    kept_away(state, (job, spec), (labels, behind_stops), jobs_max, &mut resolved);
    resolved
}

/// Whether other jobs may close any part of the fleet to a job.
pub(crate) fn may_be_kept_away(state: &State, spec: &JobSpec) -> bool {
    let is_apart = |entry: &Affinity| entry.is_required() && entry.rule == AffinityRule::Apart;
    state.has_apart() || spec.affinity.iter().any(is_apart)
}

/// The parts of the fleet from which others keep a job away while they run, or that it keeps out of itself because of them, and
/// how much was looked at. A part lies in others where these are closed as a whole: it is open once all of these are.
pub(crate) fn kept_parts<'a>(state: &'a State, job: JobId, spec: &JobSpec) -> (Vec<KeptPart<'a>>, u64) {
    let resolved = resolve(state, job, spec);
    let mut looked_at = resolved.looked_at;
    let mut by_domain: BTreeMap<(AffinityLevel, AffinityDomain<'a>), (Option<NodeId>, BTreeSet<JobId>)> =
        BTreeMap::new();
    for (level, keeper) in resolved.keepers {
        let Some(row) = state.job(keeper) else { continue };
        let mut workers = 0u64;
        for id in nodes_of(state, keeper, row) {
            workers += 1;
            let Some(node) = state.node(id) else { continue };
            let (host, jobs) = by_domain.entry((level, level.domain(&node.spec))).or_default();
            *host = Some(id).filter(|_| level == AffinityLevel::Host);
            jobs.insert(keeper);
        }
        looked_at += 1 + workers / WORKERS_PER_LOOK;
    }
    let mut parts = Vec::with_capacity(by_domain.len());
    for ((level, domain), (host, inside)) in &by_domain {
        let mut jobs = inside.clone();
        for outer in OUTER_LEVELS.into_iter().filter(|outer| outer < level) {
            if let Some((_, whole)) = by_domain.get(&(outer, part_of(domain, outer))) {
                jobs.extend(whole);
            }
        }
        parts.push(KeptPart { level: *level, domain: *domain, host: *host, jobs });
    }
    (parts, looked_at)
}

/// When the domains are expected to be open again that others close to a job, as far as that is known, in ascending order; and how
/// much was looked at.
pub(crate) fn openings<'a>(
    state: &'a State,
    job: JobId,
    spec: &JobSpec,
    now: LogTime,
) -> (Vec<Opening<'a>>, u64) {
    if !may_be_kept_away(state, spec) {
        return (Vec::new(), 0);
    }
    let resolved = resolve(state, job, spec);
    let mut looked_at = resolved.looked_at;
    let mut known: BTreeMap<(AffinityLevel, AffinityDomain<'a>), Option<LogTime>> = BTreeMap::new();
    for (level, keeper) in resolved.keepers {
        let (Some(row), Some(theirs)) = (state.job(keeper), state.spec(keeper)) else { continue };
        let stopped = state.stopped_by(keeper).map(|at| at.max(now.plus_ms(STOPPED_LATE_MS)));
        let end = stopped.or_else(|| expected_end(row, theirs, now));
        let mut workers = 0u64;
        for id in nodes_of(state, keeper, row) {
            workers += 1;
            let Some(node) = state.node(id) else { continue };
            let at = known.entry((level, level.domain(&node.spec))).or_insert(Some(now));
            *at = at.zip(end).map(|(at, end)| at.max(end));
        }
        looked_at += 1 + workers / WORKERS_PER_LOOK;
    }
    (known.into_iter().filter_map(|(domain, at)| Some((domain, at?))).collect(), looked_at)
}

/// How long a gang is expected to last that should have stopped by now.
pub(crate) const STOPPED_LATE_MS: u64 = 1_000;

/// Levels that others lie in.
const OUTER_LEVELS: [AffinityLevel; 4] =
    [AffinityLevel::Region, AffinityLevel::Cluster, AffinityLevel::Block, AffinityLevel::Rack];

/// The domain of an outer level in which a domain lies.
fn part_of<'a>(domain: &AffinityDomain<'a>, level: AffinityLevel) -> AffinityDomain<'a> {
    let (region, cluster, block, rack, host) = *domain;
    match level {
        AffinityLevel::Region => (region, None, None, None, None),
        AffinityLevel::Cluster => (region, cluster, None, None, None),
        AffinityLevel::Block => (region, cluster, block, None, None),
        AffinityLevel::Rack => (region, cluster, block, rack, None),
        AffinityLevel::Host => (region, cluster, block, rack, host),
    }
}

/// Whether a job is being stopped, and is expected to be over soon; never without a time.
fn is_leaving(state: &State, job: JobId, now: Option<LogTime>) -> bool {
    let allowed_ms = state.policy().policy.preemption.stopping_deadline_ms;
    now.zip(state.stopped_by(job)).is_some_and(|(now, killed)| now < killed.plus_ms(allowed_ms))
}

/// Jobs that hold devices, or to which some are promised, and that have to be apart from this one; at most
/// `jobs_max` of each tenant, and as many kinds of entries. Jobs that serve the same have entries of the same kind, which is
/// read once.
fn kept_away<'a>(
    state: &'a State,
    (job, spec): (JobId, &JobSpec),
    (labels, behind_stops): (&BTreeMap<String, String>, Option<LogTime>),
    jobs_max: usize,
    resolved: &mut Resolved<'a>,
) {
    let policy = &state.policy().policy;
    let mut by_level: BTreeMap<AffinityLevel, KeptBy> = BTreeMap::new();
    // The same selector may stand in entries of several levels.
    let mut known: BTreeMap<&str, bool> = BTreeMap::new();
    // Some job was not looked at, which may keep this one away as well.
    let mut is_cut = false;
    for tenant in policy.ancestry(&spec.tenant) {
        let (mut jobs_left, mut kinds_left) = (jobs_max, jobs_max);
        'tenant: for ((level, target), jobs) in state.apart_of(tenant) {
            if kinds_left == 0 {
                is_cut = true;
                break;
            }
            kinds_left -= 1;
            resolved.looked_at += 1;
            let is_meant = match &**target {
                AffinityTarget::Labels(text) => *known.entry(text.as_str()).or_insert_with(|| {
                    LabelSelector::parse(text).is_ok_and(|selector| selector.matches(labels))
                }),
                target => names(target, job, spec),
            };
            if !is_meant {
                continue;
            }
            let is_named = !matches!(&**target, AffinityTarget::Labels(_));
            for other in jobs.iter().copied().filter(|other| *other != job) {
                if jobs_left == 0 {
                    is_cut = true;
                    break 'tenant;
                }
                jobs_left -= 1;
                resolved.looked_at += 1;
                let Some(row) = state.job(other) else { continue };
                let kept = by_level.entry(*level).or_default();
                if *tenant == spec.tenant {
                    kept.first = Some(kept.first.map_or(other, |first| first.min(other)));
                }
                let mut workers = 0u64;
                if holds(state, other) && !is_leaving(state, other, behind_stops) {
                    resolved.keepers.push((*level, other));
                    kept.nodes.extend(nodes_of(state, other, row).inspect(|_| workers += 1));
                }
                kept.nodes.extend(promised_nodes(row).inspect(|_| workers += 1));
                resolved.looked_at += workers / WORKERS_PER_LOOK;
                resolved.depends_on_id |= is_named;
            }
        }
    }
    for (level, kept) in by_level {
        keep_away(state, (level, kept), is_cut, resolved);
    }
}

/// What is kept on one level is closed to the job, unless it asks for that itself.
fn keep_away<'a>(
    state: &'a State,
    (level, KeptBy { first, nodes }): (AffinityLevel, KeptBy),
    is_cut: bool,
    resolved: &mut Resolved<'a>,
) {
    let domains = domains_at(state, &nodes, level);
    // Jobs that serve the same ask for it themselves.
    let is_asked = resolved.terms.iter().any(|term| {
        let is_alike = term.is_required() && term.rule == AffinityRule::Apart && term.level == level;
        is_alike && domains.is_subset(&term.domains)
    });
    if is_asked || domains.is_empty() {
        return;
    }
    // By its labels, or by its id.
    resolved.depends_on_labels = true;
    let cut = if is_cut { CUT } else { "" };
    let text = match first {
        Some(first) => format!("in no {level} of {first} or another job that has to be apart from it{cut}"),
        None => format!("in no {level} of jobs above its tenant that have to be apart from it{cut}"),
    };
    resolved.terms.push(AffinityTerm { text, level, rule: AffinityRule::Apart, weight: None, domains });
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
    (behind_stops, jobs_max): (Option<LogTime>, u64),
) -> Others {
    let mut found = Others { behind_stops, jobs_max, ..Others::default() };
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

    /// When a worker on a node is expected to meet what is required; none where nobody knows.
    pub(crate) fn opens_at(&self, node: &NodeDraft, openings: &[Opening<'_>]) -> Option<LogTime> {
        let mut opens = LogTime(0);
        for term in self.terms.iter().filter(|term| term.is_required() && term.excludes(node)) {
            opens = opens.max(term.opens_at(node, openings)?);
        }
        Some(opens)
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
                if self.looked_at >= self.jobs_max || self.workers >= WORKERS_MAX {
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
            if self.looked_at >= self.jobs_max || self.workers >= WORKERS_MAX {
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
        if entry.rule == AffinityRule::Apart && entry.is_required() {
            self.keepers.push(job);
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

/// Whether an entry of a job of a tenant is about another job, wherever that is.
fn is_about(state: &State, entry: &Affinity, tenant: &Name, other: JobId) -> bool {
    let Some(theirs) = state.spec(other) else { return false };
    let is_meant = match &entry.target {
        AffinityTarget::Labels(_) => entry.selector().is_some_and(|selector| {
            state.metadata(other).is_some_and(|metadata| selector.matches(&metadata.labels))
        }),
        target => names(target, other, theirs),
    };
    is_meant && is_within(state, tenant, other)
}

/// Entries that let a job start only where others are.
pub(crate) fn required_together(spec: &JobSpec) -> impl Iterator<Item = &Affinity> {
    spec.affinity.iter().filter(|entry| entry.is_required() && entry.rule == AffinityRule::Together)
}

/// Whether a job has to be together with another one.
pub(crate) fn is_with(state: &State, job: JobId, other: JobId) -> bool {
    let Some(spec) = state.spec(job) else { return false };
    required_together(spec).any(|entry| is_about(state, entry, &spec.tenant, other))
}

/// What makes a job go to where others will be that are planned already and that it has to be with.
pub(crate) fn near_planned<'a>(
    state: &'a State,
    spec: &JobSpec,
    planned: &[CapacityHold],
) -> Vec<AffinityTerm<'a>> {
    let mut terms = Vec::new();
    for entry in required_together(spec) {
        let others = planned.iter().filter(|other| is_about(state, entry, &spec.tenant, other.job));
        let nodes: BTreeSet<NodeId> =
            others.flat_map(|other| other.workers.iter().map(|slot| slot.node)).collect();
        if !nodes.is_empty() {
            terms.push(AffinityTerm {
                text: entry.to_string(),
                level: entry.level,
                rule: AffinityRule::Together,
                weight: None,
                domains: domains_at(state, &nodes, entry.level),
            });
        }
    }
    terms
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
        AffinityTarget::Named(_) | AffinityTarget::Labels(_) if resolved.is_cut => format!(
            "it has to be {entry}, and none of the first {} jobs of its tenant that hold devices is one, which are all that are looked at; it starts once one of these is, or once fewer hold devices",
            limits::AFFINITY_JOBS_MAX
        ),
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
            scratch_bytes: 0,
        };
        let spec = spec.check().expect("a host");
        let register = Command::Register { spec, holder: HolderId(1), other_session_is_over: false };
        handle(&mut speculation, &register).expect("it is new");
        speculation
    }

    fn submit(speculation: &mut Speculation, request: u128, app: &str, affinity: Vec<Affinity>) -> JobId {
        let asks = WorkerRequest {
            accelerators: Some(h100(1).into()),
            cpu_milli: 1_000,
            memory_bytes: 1 << 30,
            exclusive: false,
            scratch_bytes: 0,
        };
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
        let of_team = state.apart_of(&name("team")).map(|(_, jobs)| jobs.size());
        assert_eq!(of_team.collect::<Vec<_>>(), [2], "both hold devices, and ask for the same");
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

    #[test]
    fn many_jobs_that_keep_others_away_cost_one_look_at_what_they_ask_for() {
        let mut speculation = fleet();
        let entry = |text: &str| Affinity {
            target: AffinityTarget::Labels(text.to_string()),
            level: AffinityLevel::Host,
            rule: AffinityRule::Apart,
            weight: None,
        };
        for request in 2..10 {
            submit(&mut speculation, request, "batch", vec![entry("app=web"), entry("app=cache")]);
        }
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let plain = submit(&mut speculation, 20, "train", Vec::new());
        let web = submit(&mut speculation, 21, "web", Vec::new());
        let state = speculation.state();
        let of = |job| resolve(state, job, state.spec(job).expect("it was taken"));
        assert_eq!((of(plain).looked_at, of(plain).terms.len()), (2, 0));
        assert_eq!((of(web).looked_at, of(web).terms.len()), (2 + 8, 1));
    }

    #[test]
    fn a_job_is_not_the_first_of_its_kind_where_not_all_were_looked_at() {
        let mut speculation = fleet();
        let near = Affinity {
            target: AffinityTarget::Labels("app=web".to_string()),
            level: AffinityLevel::Host,
            rule: AffinityRule::Together,
            weight: None,
        };
        for request in 2..5 {
            submit(&mut speculation, request, "batch", Vec::new());
        }
        schedule(&mut speculation, &mut Budget::new(1_000_000));
        let web = submit(&mut speculation, 5, "web", vec![near]);
        let state = speculation.state();
        let spec = state.spec(web).expect("it was taken");
        let starts = |jobs_max| resolve_at(state, (web, spec), None, jobs_max).waits_for.is_none();
        assert!(starts(3), "all three were looked at, and none is one");
        assert!(!starts(2), "the third may be one");
    }
}
