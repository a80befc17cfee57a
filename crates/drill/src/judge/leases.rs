//! Who holds which devices, counted from the records alone.
//!
//! The replay takes the guard and the fold of the product at their word, so that a mistake in both agrees with itself. This
//! counts again, in the plainest way and from decisions only: which worker has which device, which session a node is in,
//! and what each tenant uses of its quotas.
//!
//! **Invariant:** nothing here asks a [`State`](muster_state::State), and each sum is made again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_journal::{Decision, RankUpdate, StopCause, WorkerSlot};
use muster_types::policy::{GrantedPolicy, Policy, Quota, QuotaGrant};
use muster_types::{DeviceSet, JobId, JobSpec, LogIndex, LogTime, Name, NodeId, NodeSpec};

use super::controls::{self, Controls, Start};
use super::{Checked, Findings, Rule};

/// Thousandths of one device.
const WHOLE_MILLI: u64 = 1_000;
/// Devices that a set can name.
const DEVICES_MAX: u16 = 64;

/// What one worker, or a spare for one, has of a host.
struct Held {
    devices: DeviceSet,
    /// Of each of these devices, in thousandths.
    milli_of_each: u64,
    cpu_milli: u64,
    memory_bytes: u64,
    scratch_bytes: u64,
}

struct Host {
    spec: NodeSpec,
    incarnation: u32,
    is_up: bool,
    held: BTreeMap<(JobId, usize), Held>,
}

/// A job that was placed, or that capacity is promised to.
#[derive(Default)]
struct Gang {
    slots: Vec<WorkerSlot>,
    /// Its quota is given back, though its workers may still stop.
    has_made_room: bool,
    promise: Option<Vec<WorkerSlot>>,
}

impl Gang {
    /// What it is charged for.
    fn charged(&self) -> &[WorkerSlot] {
        match &self.promise {
            Some(promised) => promised,
            None if self.has_made_room => &[],
            None => &self.slots,
        }
    }
}

/// The books of the judge.
#[derive(Default)]
pub(super) struct Leases {
    hosts: BTreeMap<NodeId, Host>,
    names: BTreeMap<Name, NodeId>,
    registered: u32,
    specs: HashMap<JobId, Arc<JobSpec>>,
    /// When jobs were submitted, by the first of each record or array.
    submitted: BTreeMap<JobId, LogTime>,
    /// Nodes of which operators have changed labels: what they have now is theirs to say.
    overridden: BTreeSet<NodeId>,
    /// What the members of arrays are made from, by the first, with how many there are.
    arrays: BTreeMap<JobId, (u32, Arc<JobSpec>)>,
    /// Of the cluster.
    generation: u32,
    /// How far positions in ids run ahead of those in the log.
    ahead: u64,
    gangs: BTreeMap<JobId, Gang>,
    /// The policy in force, with what is granted.
    policy: Policy,
    /// As it was set.
    stated: Policy,
    /// Requests for quota and grants, by their records, with whether they are in force.
    grants: BTreeMap<u64, (QuotaGrant, bool)>,
    /// Holds, bookings, schedules and tokens.
    controls: Controls,
    /// Of the record that is being applied.
    decision: Option<Decision>,
}

/// Grants that count now.
fn in_force(grants: &BTreeMap<u64, (QuotaGrant, bool)>) -> impl Iterator<Item = (u64, &QuotaGrant)> {
    grants.iter().filter(|(_, (_, is_in_force))| *is_in_force).map(|(id, (grant, _))| (*id, grant))
}

impl Leases {
    /// A record that is about to be applied.
    pub(super) fn before(&mut self, decision: &Decision) {
        let concerns = matches!(
            decision,
            Decision::ClusterCreated { .. }
                | Decision::JobsSubmitted { .. }
                | Decision::ArraysSubmitted { .. }
                | Decision::NodeRegistered { .. }
                | Decision::NodeForgotten { .. }
                | Decision::NodeOverridesSet { .. }
                | Decision::NodeLost { .. }
                | Decision::ClusterRecovered { .. }
                | Decision::PolicySet { .. }
                | Decision::QuotaRequested { .. }
                | Decision::QuotaAnswered { .. }
                | Decision::QuotaGranted { .. }
                | Decision::QuotaGrantsEnded { .. }
                | Decision::GangPlaced { .. }
                | Decision::Rearranged { .. }
                | Decision::PromiseDropped { .. }
                | Decision::SparesTaken { .. }
                | Decision::WorkersReported { .. }
                | Decision::GangStopRequested { .. }
                | Decision::JobRequeued { .. }
                | Decision::JobModified { .. }
                | Decision::FallbackOpened { .. }
                | Decision::JobFinished { .. }
        );
        self.decision = (concerns || controls::concerns(decision)).then(|| decision.clone());
    }

    /// It has this position. One that the guard refused is held against the books too, as what a leader decided, and
    /// changes nothing.
    pub(super) fn after(
        &mut self,
        (index, log_time): (u64, LogTime),
        was_taken: bool,
        checked: &mut Checked,
        findings: &mut Findings,
    ) {
        let Some(decision) = self.decision.take() else { return };
        self.check((index, log_time), &decision, checked, findings);
        if was_taken {
            self.controls.take(index, log_time, &decision);
            self.take((index, log_time), decision);
        }
        self.controls.note_overdue(in_force(&self.grants), log_time);
    }

    fn check(
        &mut self,
        (index, log_time): (u64, LogTime),
        decision: &Decision,
        checked: &mut Checked,
        findings: &mut Findings,
    ) {
        for (rule, text) in self.controls.broken_by(decision, log_time) {
            findings.say(rule, || format!("record {index} {text}"));
        }
        match decision {
            Decision::GangPlaced { job, workers } => {
                checked.leases += workers.len() as u64;
                let mut found = self.broken_by(*job, workers);
                found.extend(self.spec(*job).into_iter().flat_map(|spec| self.against_spec(spec, workers)));
                let hosts = workers.iter().filter_map(|slot| self.hosts.get(&slot.node));
                let nodes = hosts.map(|host| &host.spec).collect();
                let start = Start { job: *job, spec: self.spec(*job).map(|spec| &**spec), workers, nodes };
                // What was promised to it was charged then, with the grants of that time.
                let is_charged = self.gangs.get(job).is_some_and(|gang| gang.promise.is_some());
                let grants = in_force(&self.grants).filter(|_| !is_charged);
                found.extend(self.controls.broken_by_start(&start, &self.stated, grants, log_time));
                let over = if is_charged { None } else { self.exceeded_by(&[], &[(*job, workers)]) };
                let hosts = if is_charged { None } else { self.hosts_exceeded_by(&[], &[(*job, workers)]) };
                let over = over.into_iter().chain(self.licences_exceeded_by(&[*job])).chain(hosts);
                for (rule, text) in found.into_iter().chain(over.map(|text| (Rule::QuotaExceeded, text))) {
                    findings.say(rule, || format!("record {index} places {job}: {text}"));
                }
            }
            Decision::Rearranged { stops, promises } => {
                let stopped: Vec<JobId> = stops.iter().map(|stop| stop.job).collect();
                let promised: Vec<(JobId, &[WorkerSlot])> =
                    promises.iter().map(|promise| (promise.job, &promise.workers[..])).collect();
                let jobs: Vec<JobId> = promised.iter().map(|(job, _)| *job).collect();
                let over = self.exceeded_by(&stopped, &promised);
                let hosts = self.hosts_exceeded_by(&stopped, &promised);
                for text in over.into_iter().chain(self.licences_exceeded_by(&jobs)).chain(hosts) {
                    findings.say(Rule::QuotaExceeded, || format!("record {index} promises capacity: {text}"));
                }
            }
            Decision::FallbackOpened { job } => {
                if let Some(due) = self.fallback_due(*job).filter(|due| log_time < *due) {
                    findings.say(Rule::PurchaseBroken, || {
                        format!("record {index} opens the fallback of {job} at {log_time}, before {due}")
                    });
                }
            }
            Decision::NodeRegistered { spec, .. } => {
                let host = self.names.get(&spec.name).and_then(|node| self.hosts.get(node));
                if let Some((job, _)) = host.and_then(|host| host.held.keys().next()) {
                    let text = format!("a session of {} begins while {job} holds devices there", spec.name);
                    findings.say(Rule::LeaseWithoutSession, || format!("record {index}: {text}"));
                }
            }
            _ => {}
        }
    }

    fn spec(&self, job: JobId) -> Option<&Arc<JobSpec>> {
        let of_array = || {
            let (first, (count, spec)) = self.arrays.range(..=job).next_back()?;
            (job.0 - first.0 < u64::from(*count)).then_some(spec)
        };
        self.specs.get(&job).or_else(of_array)
    }

    /// Before when a job does not take its fallback; none where it has none that is closed.
    fn fallback_due(&self, job: JobId) -> Option<LogTime> {
        let spec = self.spec(job)?;
        let fallback = spec.capacity.as_deref()?.closed_fallback()?;
        let (_, submitted) = self.submitted.range(..=job).next_back()?;
        Some((*submitted).max(spec.not_before.unwrap_or_default()).plus_ms(fallback.after_ms))
    }

    /// What workers in these places break of what the job asks for.
    fn against_spec(&self, spec: &JobSpec, workers: &[WorkerSlot]) -> Vec<(Rule, String)> {
        let mut found = Vec::new();
        // Behind the last of them are its spares.
        let size = u32::try_from(workers.len()).unwrap_or(u32::MAX).min(spec.worker_count());
        if !spec.may_have(size) {
            found.push((Rule::SizeImpossible, format!("{size} workers are no size that it has")));
        }
        let Some(asked) = spec.capacity.as_deref() else { return found };
        let known = workers.iter().filter(|slot| !self.overridden.contains(&slot.node));
        let mut hosts = known.filter_map(|slot| self.hosts.get(&slot.node));
        if let Some(host) = hosts.find(|host| !asked.allows(&host.spec)) {
            let text = format!("{} was not bought as it asks for", host.spec.name);
            found.push((Rule::PurchaseBroken, text));
        }
        found
    }

    /// The id of the first job that a record submits.
    fn first_of(&self, index: u64) -> JobId {
        JobId::derive_in(self.generation, LogIndex(index + self.ahead), 0)
    }

    /// What the worker in this place of a gang of this size takes.
    fn wanted(&self, job: JobId, (place, workers): (usize, usize), devices: DeviceSet) -> Option<Held> {
        let group = self.spec(job)?.group_of_slot(u32::try_from(place).ok()?, workers)?;
        let request = &group.request;
        let count = u64::from(devices.count());
        Some(Held {
            devices,
            milli_of_each: request.device_milli().checked_div(count).unwrap_or(0),
            cpu_milli: request.cpu_milli,
            memory_bytes: request.memory_bytes,
            scratch_bytes: request.scratch_bytes,
        })
    }

    /// Which rules workers in these places break, apart from quotas.
    fn broken_by(&self, job: JobId, workers: &[WorkerSlot]) -> Vec<(Rule, String)> {
        let mut found = Vec::new();
        let mut new: BTreeMap<NodeId, Vec<Held>> = BTreeMap::new();
        for (place, slot) in workers.iter().enumerate() {
            let Some(host) = self.hosts.get(&slot.node) else {
                found.push((Rule::LeaseWithoutSession, format!("{} is no node", slot.node)));
                continue;
            };
            if !host.is_up || host.incarnation != slot.incarnation {
                let name = &host.spec.name;
                let text = format!("session {} of {name} is over", slot.incarnation);
                found.push((Rule::LeaseWithoutSession, text));
            }
            new.entry(slot.node).or_default().extend(self.wanted(job, (place, workers.len()), slot.devices));
        }
        for (node, new) in new {
            let Some(host) = self.hosts.get(&node) else { continue };
            found.extend(host.overcommitted(&new).map(|text| (Rule::LeasedTwice, text)));
        }
        found
    }

    /// Thousandths of devices that each tenant is charged for, by type and region.
    fn uses(&self, without: &[JobId], with: &[(JobId, &[WorkerSlot])]) -> BTreeMap<(Name, Name, Name), u64> {
        let mut uses = BTreeMap::new();
        let standing = self.gangs.iter().map(|(job, gang)| (*job, gang.charged()));
        let standing = standing.filter(|(job, _)| !without.contains(job));
        for (job, slots) in standing.chain(with.iter().copied()) {
            let Some(spec) = self.spec(job) else { continue };
            for (place, slot) in slots.iter().enumerate() {
                let place = u32::try_from(place).ok();
                let group = place.and_then(|place| spec.group_of_slot(place, slots.len()));
                let milli = group.map_or(0, |group| group.request.device_milli());
                let Some(host) = self.hosts.get(&slot.node).filter(|_| milli > 0) else { continue };
                let Some(has) = &host.spec.accelerators else { continue };
                let of = (spec.tenant.clone(), has.kind.clone(), host.spec.region.clone());
                *uses.entry(of).or_default() += milli;
            }
        }
        uses
    }

    /// The first limit of a quota that is broken once these jobs are stopped and those are charged.
    fn exceeded_by(&self, stopped: &[JobId], new: &[(JobId, &[WorkerSlot])]) -> Option<String> {
        if self.policy.tenants.values().all(|tenant| tenant.quotas.is_empty()) {
            return None;
        }
        let (before, after) = (self.uses(stopped, &[]), self.uses(stopped, new));
        let mut flavours: BTreeSet<(Name, Option<Name>)> = BTreeSet::new();
        for (of, milli) in &after {
            if before.get(of) != Some(milli) {
                flavours.insert((of.1.clone(), Some(of.2.clone())));
                flavours.insert((of.1.clone(), None));
            }
        }
        for (kind, region) in flavours {
            for (tenant, settings) in &self.policy.tenants {
                let is_it = |quota: &&Quota| quota.kind == kind && quota.region == region;
                let quota = settings.quotas.iter().find(is_it);
                let Some(quota) = quota else { continue };
                let Some(beyond) = quota.borrowing_limit_milli else { continue };
                let committed = |uses| self.committed(uses, tenant, &kind, region.as_ref());
                let (had, has) = (committed(&before), committed(&after));
                let most = quota.nominal_milli.saturating_add(beyond);
                if has > had && has > most {
                    return Some(format!(
                        "tenant {tenant} then has {has} thousandths of {kind}, and may have {most}"
                    ));
                }
            }
        }
        None
    }

    /// Thousandths of CPUs and bytes of memory that a tenant and everyone below it are charged for.
    fn host_uses(&self, tenant: &Name, without: &[JobId], with: &[(JobId, &[WorkerSlot])]) -> (u64, u64) {
        let standing = self.gangs.iter().map(|(job, gang)| (*job, gang.charged()));
        let standing = standing.filter(|(job, _)| !without.contains(job));
        let mut sums = (0, 0);
        for (job, slots) in standing.chain(with.iter().copied()) {
            let Some(spec) = self.spec(job).filter(|_| !slots.is_empty()) else { continue };
            if !self.policy.ancestry(&spec.tenant).any(|above| above == tenant) {
                continue;
            }
            for place in 0..slots.len() {
                let group =
                    u32::try_from(place).ok().and_then(|place| spec.group_of_slot(place, slots.len()));
                let Some(group) = group else { continue };
                sums.0 += group.request.cpu_milli;
                sums.1 += group.request.memory_bytes;
            }
        }
        sums
    }

    /// The first limit on CPUs or memory that is broken once these jobs are stopped and those are charged.
    fn hosts_exceeded_by(&self, stopped: &[JobId], new: &[(JobId, &[WorkerSlot])]) -> Option<String> {
        let limited = self.policy.tenants.iter().filter(|(_, settings)| {
            settings.limits.cpu_milli.is_some() || settings.limits.memory_bytes.is_some()
        });
        for (tenant, settings) in limited {
            let (had, has) = (self.host_uses(tenant, &[], &[]), self.host_uses(tenant, stopped, new));
            let limits = [
                ("thousandths of CPUs", settings.limits.cpu_milli, had.0, has.0),
                ("bytes of memory", settings.limits.memory_bytes, had.1, has.1),
            ];
            for (what, most, had, has) in limits {
                if let Some(most) = most.filter(|most| has > had && has > *most) {
                    return Some(format!("tenant {tenant} then has {has} {what}, and may have {most}"));
                }
            }
        }
        None
    }

    /// The first counted resource of which more would be held than there is, once these jobs have a place. Those that have one
    /// take no more.
    fn licences_exceeded_by(&self, jobs: &[JobId]) -> Option<String> {
        let has_place = |gang: &Gang| !gang.slots.is_empty() || gang.promise.is_some();
        let is_new = |job: &&JobId| !self.gangs.get(*job).is_some_and(has_place);
        let new: BTreeSet<JobId> = jobs.iter().filter(is_new).copied().collect();
        let mut asked: BTreeMap<&Name, u64> = BTreeMap::new();
        for spec in new.iter().filter_map(|job| self.spec(*job)) {
            for (name, count) in &spec.licences {
                *asked.entry(name).or_default() += u64::from(*count);
            }
        }
        let standing = self.gangs.iter().filter(|(_, gang)| has_place(gang));
        let standing: Vec<&Arc<JobSpec>> = match asked.is_empty() {
            true => Vec::new(),
            false => standing.filter_map(|(job, _)| self.spec(*job)).collect(),
        };
        asked.into_iter().find_map(|(name, more)| {
            let held = standing.iter().filter_map(|spec| spec.licences.get(name));
            let has = more + held.map(|count| u64::from(*count)).sum::<u64>();
            let most = self.stated.resource_count(name);
            (has > most).then(|| format!("{has} of licence {name} are then held, and there are {most}"))
        })
    }

    /// What a tenant uses itself, and for each tenant directly below it what that one uses or keeps, whichever is more.
    fn committed(
        &self,
        uses: &BTreeMap<(Name, Name, Name), u64>,
        tenant: &Name,
        kind: &Name,
        region: Option<&Name>,
    ) -> u64 {
        let is_here = |at: &Name| region.is_none_or(|region| region == at);
        let own = uses.iter().filter(|((who, of, at), _)| who == tenant && of == kind && is_here(at));
        let own: u64 = own.map(|(_, milli)| milli).sum();
        let mut children: BTreeSet<&Name> = self
            .policy
            .tenants
            .iter()
            .filter(|(_, below)| below.parent.as_ref() == Some(tenant))
            .map(|(name, _)| name)
            .collect();
        // Those that the policy does not name are below one of it.
        let strangers =
            uses.keys().map(|(who, ..)| who).filter(|who| self.policy.parent(who) == Some(tenant));
        children.extend(strangers);
        let below = children.into_iter().map(|child| {
            let settings = self.policy.tenants.get(child);
            let quotas = settings.map_or(&[][..], |settings| &settings.quotas[..]);
            let quota = quotas.iter().find(|quota| quota.kind == *kind && quota.region.as_ref() == region);
            let kept = quota.map_or(0, |quota| {
                quota.lending_limit_milli.map_or(0, |lent| quota.nominal_milli.saturating_sub(lent))
            });
            self.committed(uses, child, kind, region).max(kept)
        });
        own + below.sum::<u64>()
    }

    /// Limits count from the nominal quota, and that grows by what is granted. What cannot be added to the policy any more has
    /// ended, which no record names: of the grants on one level of the tree the latest.
    fn add_grants(&mut self) {
        let mut granted = GrantedPolicy::of(&self.stated);
        let in_order = self.stated.in_order(in_force(&self.grants), |(_, grant)| *grant);
        let ended = in_order.into_iter().filter(|(_, grant)| granted.add(grant).is_err()).map(|(id, _)| id);
        let ended: Vec<u64> = ended.collect();
        for id in ended {
            self.grants.remove(&id);
        }
        let mut draft = self.stated.clone().into_draft();
        for (grant, _) in self.grants.values().filter(|(_, is_in_force)| *is_in_force) {
            let Some(tenant) = draft.tenants.get_mut(&grant.tenant) else { continue };
            let is_it = |quota: &&mut Quota| quota.kind == grant.kind && quota.region == grant.region;
            if let Some(quota) = tenant.quotas.iter_mut().find(is_it) {
                quota.nominal_milli = quota.nominal_milli.saturating_add(grant.amount_milli);
            }
        }
        self.policy = draft.check().unwrap_or_else(|_| self.stated.clone());
    }

    fn take(&mut self, (index, log_time): (u64, LogTime), decision: Decision) {
        match decision {
            Decision::JobsSubmitted { specs, .. } => {
                let first = self.first_of(index).0;
                self.submitted.insert(JobId(first), log_time);
                self.specs.extend((first..).map(JobId).zip(specs));
            }
            Decision::ArraysSubmitted { parts, .. } => {
                let mut number = self.first_of(index).0;
                let mut jobs = 0;
                for part in parts {
                    let count = part.job_count();
                    self.submitted.insert(JobId(number), log_time);
                    match part.array {
                        Some(_) => _ = self.arrays.insert(JobId(number), (count, part.spec)),
                        None => _ = self.specs.insert(JobId(number), part.spec),
                    }
                    number += u64::from(count);
                    jobs += count;
                }
                self.ahead += JobId::positions_of(jobs) - 1;
            }
            Decision::NodeRegistered { spec, .. } => self.register(spec),
            Decision::NodeOverridesSet { node, .. } => _ = self.overridden.insert(node),
            Decision::NodeForgotten { node, .. } => {
                if let Some(host) = self.hosts.remove(&node) {
                    self.names.remove(&host.spec.name);
                }
            }
            Decision::NodeLost { node, .. } => self.end_session(node),
            Decision::ClusterCreated { generation, .. } => self.generation = generation,
            Decision::ClusterRecovered { generation } => {
                let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
                nodes.into_iter().for_each(|node| self.end_session(node));
                // Ids of a generation begin at its records.
                (self.generation, self.ahead) = (generation, 0);
            }
            Decision::PolicySet { policy, .. } => {
                let before = std::mem::replace(&mut self.stated, *policy);
                let after = &self.stated;
                // A request that nobody has answered outlives that its tenant moves within the tree.
                self.grants.retain(|_, (grant, is_in_force)| {
                    let tenant = &grant.tenant;
                    let stays = !*is_in_force || before.ancestry(tenant).eq(after.ancestry(tenant));
                    after.tenants.contains_key(tenant) && stays
                });
                self.add_grants();
            }
            Decision::QuotaRequested { grant, .. } => _ = self.grants.insert(index, (*grant, false)),
            Decision::QuotaGranted { grant, .. } => {
                self.grants.insert(index, (*grant, true));
                self.add_grants();
            }
            Decision::QuotaAnswered { id, approved: true, .. } => {
                self.grants.entry(id.0).and_modify(|(_, is_in_force)| *is_in_force = true);
                self.add_grants();
            }
            Decision::QuotaAnswered { id, approved: false, .. } => {
                self.grants.remove(&id.0);
                self.add_grants();
            }
            Decision::QuotaGrantsEnded { ids } => {
                ids.iter().for_each(|id| _ = self.grants.remove(&id.0));
                self.add_grants();
            }
            Decision::GangPlaced { job, workers } => self.place(job, workers),
            Decision::Rearranged { stops, promises } => {
                for stop in stops {
                    self.gangs.entry(stop.job).or_default().has_made_room = true;
                }
                for promise in promises {
                    self.gangs.entry(promise.job).or_default().promise = Some(promise.workers);
                }
            }
            Decision::PromiseDropped { job } => {
                self.gangs.entry(job).or_default().promise = None;
            }
            Decision::SparesTaken { job, ranks, .. } => self.take_spares(job, ranks),
            Decision::WorkersReported { node, job, updates, .. } => {
                let is_over = |update: &RankUpdate| matches!(update, RankUpdate::Exited(_));
                let Some(host) = self.hosts.get_mut(&node) else { return };
                for (rank, _) in updates.iter().filter(|(_, update)| is_over(update)) {
                    host.held.remove(&(job, *rank as usize));
                }
            }
            Decision::GangStopRequested { job, cause, .. } => {
                // Said for one gang, it is the same as in a list.
                let makes_room = matches!(cause, StopCause::Rearranged(_));
                self.gangs.entry(job).or_default().has_made_room |= makes_room;
            }
            Decision::JobRequeued { job, .. } => self.end_attempt(job, false),
            Decision::JobModified { job, changes, .. } => {
                let Some(spec) = self.spec(job).cloned() else { return };
                let mut draft = JobSpec::clone(&spec).into_draft();
                changes.iter().for_each(|change| change.change_draft(&mut draft));
                // What the guard took is a job.
                if let Ok(changed) = draft.check() {
                    self.specs.insert(job, Arc::new(changed));
                }
            }
            Decision::FallbackOpened { job } => {
                if let Some(opened) = self.spec(job).and_then(|spec| spec.with_open_fallback()) {
                    self.specs.insert(job, Arc::new(opened));
                }
            }
            Decision::JobFinished { job, .. } => {
                self.end_attempt(job, true);
                self.specs.remove(&job);
            }
            _ => {}
        }
    }

    fn register(&mut self, spec: NodeSpec) {
        let known = self.names.get(&spec.name).copied();
        let node = known.unwrap_or(NodeId(self.registered));
        if known.is_none() {
            self.registered += 1;
            self.names.insert(spec.name.clone(), node);
        }
        let incarnation = self.hosts.get(&node).map_or(0, |host| host.incarnation) + 1;
        self.hosts.insert(node, Host { spec, incarnation, is_up: true, held: BTreeMap::new() });
    }

    fn end_session(&mut self, node: NodeId) {
        if let Some(host) = self.hosts.get_mut(&node) {
            host.is_up = false;
            host.held.clear();
        }
    }

    fn place(&mut self, job: JobId, workers: Vec<WorkerSlot>) {
        for (place, slot) in workers.iter().enumerate() {
            let held = self.wanted(job, (place, workers.len()), slot.devices);
            if let (Some(held), Some(host)) = (held, self.hosts.get_mut(&slot.node)) {
                host.held.insert((job, place), held);
            }
        }
        self.gangs.insert(job, Gang { slots: workers, has_made_room: false, promise: None });
    }

    /// The ranks that are named go on in its spares, and it is promised that place; what is left of the spares is let go
    /// until then.
    fn take_spares(&mut self, job: JobId, ranks: Vec<(u32, WorkerSlot)>) {
        let workers = self.spec(job).map_or(0, |spec| spec.worker_count() as usize);
        self.let_go(job, workers);
        let Some(gang) = self.gangs.get_mut(&job) else { return };
        let mut next = gang.slots.clone();
        let (gang_slots, spares) = next.split_at_mut(workers.min(gang.slots.len()));
        let is_there = |slot: &&WorkerSlot| {
            let host = self.hosts.get(&slot.node);
            host.is_some_and(|host| host.is_up && host.incarnation == slot.incarnation)
        };
        // One on a node that is lost has been charged, and is no spare any more.
        let mut spares: Vec<WorkerSlot> = spares.iter().filter(is_there).copied().collect();
        for (rank, slot) in ranks {
            if let Some(place) = spares.iter().position(|spare| *spare == slot) {
                spares.remove(place);
            }
            if let Some(old) = gang_slots.get_mut(rank as usize) {
                *old = slot;
            }
        }
        let mut promised = gang_slots.to_vec();
        promised.extend(spares);
        gang.promise = Some(promised);
    }

    /// Nothing of an attempt is charged any more. Workers that have not ended keep what they hold, so that what is given
    /// away too early is met.
    fn end_attempt(&mut self, job: JobId, is_over: bool) {
        let workers = self.spec(job).map_or(0, |spec| spec.worker_count() as usize);
        self.let_go(job, workers);
        if is_over {
            self.gangs.remove(&job);
        } else if let Some(gang) = self.gangs.get_mut(&job) {
            gang.slots.clear();
        }
    }

    /// Gives back the spares of a gang: what is behind its last worker.
    fn let_go(&mut self, job: JobId, workers: usize) {
        let slots = self.gangs.get(&job).map_or(&[][..], |gang| &gang.slots[..]);
        for (place, slot) in slots.iter().enumerate().skip(workers) {
            if let Some(host) = self.hosts.get_mut(&slot.node) {
                host.held.remove(&(job, place));
            }
        }
    }
}

impl Host {
    /// Which part of it would be given twice with these and what it has given.
    fn overcommitted(&self, new: &[Held]) -> Option<String> {
        let name = &self.spec.name;
        let all = || self.held.values().chain(new);
        for device in 0..DEVICES_MAX {
            let one = DeviceSet(1 << device);
            let milli: u64 =
                all().filter(|held| held.devices.contains(one)).map(|held| held.milli_of_each).sum();
            let most = if device < self.spec.device_count() { WHOLE_MILLI } else { 0 };
            if milli > most {
                return Some(format!("{milli} thousandths of device {device} of {name} are given"));
            }
        }
        let cpu: u64 = all().map(|held| held.cpu_milli).sum();
        let memory: u64 = all().map(|held| held.memory_bytes).sum();
        if cpu > self.spec.cpu_milli || memory > self.spec.memory_bytes {
            return Some(format!("{cpu} thousandths of CPUs and {memory} bytes of {name} are given"));
        }
        let scratch: u64 = all().map(|held| held.scratch_bytes).sum();
        if scratch > self.spec.scratch_bytes {
            return Some(format!("{scratch} bytes of scratch of {name} are given"));
        }
        None
    }
}
