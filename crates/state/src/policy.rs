//! The policy in the state: guard and fold of the records that set it, and the times that its rules ask about.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::{RearrangeCause, RequestKey, StopCause};
use muster_types::job::TaskGroup;
use muster_types::policy::{JobLimits, NonPreemptible, OnLimit, Policy, Rights};
use muster_types::token::user_of;
use muster_types::{CapacityRules, JobId, JobSpec, LogIndex, LogTime, Name, PriorityTier, PurchaseSet};

use crate::effect::Effect;
use crate::index::{UserKey, UserLoad};
use crate::rows::{JobTimes, Phase, PolicyDigest, RequestAnswer};
use crate::state::State;

/// What a tenant lacks for one of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRight {
    /// To name the job's tier.
    Tier {
        /// The highest that it may name.
        most: PriorityTier,
    },
    /// To say that policy must not stop it.
    NonPreemptible,
    /// To ask for nodes that were bought in some ways.
    Purchases {
        /// What it may ask for.
        allowed: PurchaseSet,
        /// What it asks for beyond that, also by asking for any nodes.
        missing: PurchaseSet,
    },
    /// To have a negative nice value.
    NegativeNice,
}

impl MissingRight {
    /// What a job needs beyond these rights.
    #[must_use]
    pub fn of(rights: Rights, spec: &JobSpec) -> Option<MissingRight> {
        if spec.tier > rights.tier_max {
            return Some(MissingRight::Tier { most: rights.tier_max });
        }
        let is_refused = !spec.preemptible && rights.non_preemptible == NonPreemptible::Never;
        if is_refused {
            return Some(MissingRight::NonPreemptible);
        }
        if spec.nice < 0 && !rights.negative_nice {
            return Some(MissingRight::NegativeNice);
        }
        let asked = spec.capacity.as_deref().map_or(PurchaseSet::ALL, CapacityRules::ever);
        let missing = asked.without(rights.purchases);
        (!missing.is_empty()).then_some(MissingRight::Purchases { allowed: rights.purchases, missing })
    }
}

/// What one job asks for beyond what the policy lets a job of its tenant and tier ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAboveLimit {
    /// Devices of all its workers.
    Devices {
        /// How many it may ask for.
        most: u32,
        /// How many it asks for.
        asked: u64,
    },
    /// Workers.
    Workers {
        /// How many it may ask for.
        most: u32,
        /// How many it asks for.
        asked: u64,
    },
    /// Time.
    RunTime {
        /// The longest run time limit that it may name, in milliseconds.
        most_ms: u64,
        /// The one that it names; none for a job without one.
        asked_ms: Option<u64>,
    },
}

impl JobAboveLimit {
    /// What a job with that many spare workers asks for beyond these limits. A job has spares only where it has one group.
    pub fn of(limits: JobLimits, spec: &JobSpec, spares: u32) -> impl Iterator<Item = JobAboveLimit> + use<> {
        let devices = |group: &TaskGroup| {
            (u64::from(group.workers) + u64::from(spares)) * u64::from(group.request.device_count())
        };
        let asked: u64 = spec.groups.iter().map(devices).sum();
        let of_devices = limits
            .devices_max
            .filter(|most| asked > u64::from(*most))
            .map(|most| JobAboveLimit::Devices { most, asked });
        let workers = |group: &TaskGroup| u64::from(group.workers) + u64::from(spares);
        let asked: u64 = spec.groups.iter().map(workers).sum();
        let of_workers = limits
            .workers_max
            .filter(|most| asked > u64::from(*most))
            .map(|most| JobAboveLimit::Workers { most, asked });
        let asked_ms = spec.run_time_limit_ms;
        let of_run_time = limits
            .run_time_max_ms
            .filter(|most_ms| asked_ms.is_none_or(|asked| asked > *most_ms))
            .map(|most_ms| JobAboveLimit::RunTime { most_ms, asked_ms });
        of_devices.into_iter().chain(of_workers).chain(of_run_time)
    }

    /// Whether these limits have the one that it is above.
    #[must_use]
    pub fn is_above_one_of(self, limits: JobLimits) -> bool {
        match self {
            JobAboveLimit::Devices { most, .. } => limits.devices_max == Some(most),
            JobAboveLimit::Workers { most, .. } => limits.workers_max == Some(most),
            JobAboveLimit::RunTime { most_ms, .. } => limits.run_time_max_ms == Some(most_ms),
        }
    }
}

/// A limit of a tenant that some submitted jobs would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    /// Whose.
    pub tenant: Name,
    /// Which of its users has it, where it is one of a user; empty for those that nobody knows.
    pub user: Option<String>,
    /// Its name in a policy.
    pub limit: &'static str,
    /// How many jobs the tenant or the user may have.
    pub most: u32,
    /// How many it has.
    pub held: u64,
}

impl State {
    /// The id of the `ordinal`-th job that the record at `index` submits, where that is the next record or the last one and
    /// no array is a part of it. No other generation of the cluster gives it, so that what a recovery lost is never taken
    /// for what came after it.
    ///
    /// # Panics
    /// When the ordinal is out of bounds: the guard has checked the batch before.
    #[must_use]
    pub fn job_id(&self, index: LogIndex, ordinal: usize) -> JobId {
        JobId::derive_in(self.generation(), LogIndex(index.0 + self.meta.ids_ahead), ordinal)
    }

    /// The first of some submitted jobs that asks for more than the policy lets its tenant, by its place among them,
    /// and what it asks for.
    #[must_use]
    pub fn missing_right<'a>(
        &self,
        specs: impl IntoIterator<Item = &'a JobSpec>,
    ) -> Option<(usize, MissingRight)> {
        let policy = &self.policy.policy;
        // The members of an array stand side by side: the tree is asked once for all of them.
        let mut known: Option<(&Name, Rights)> = None;
        for (place, spec) in specs.into_iter().enumerate() {
            let rights = match known {
                Some((tenant, rights)) if *tenant == spec.tenant => rights,
                _ => policy.rights(&spec.tenant),
            };
            known = Some((&spec.tenant, rights));
            if let Some(missing) = MissingRight::of(rights, spec) {
                return Some((place, missing));
            }
        }
        None
    }

    /// The first of some jobs that asks for more than the policy lets one job ask for, by its place among them. With each is how
    /// many spare workers it has, and its creator; empty for one that nobody knows yet.
    #[must_use]
    pub fn above_job_limit<'a>(
        &self,
        jobs: impl IntoIterator<Item = (&'a JobSpec, u32, &'a str)>,
    ) -> Option<(usize, JobAboveLimit)> {
        let policy = &self.policy.policy;
        // Where they are held they are taken: see `held_by_job_limit`.
        let limits_of = |spec: &JobSpec, creator: &str| match policy.on_limit(&spec.tenant) {
            Some(OnLimit::Hold) => JobLimits::default(),
            Some(OnLimit::Refuse) | None => policy.job_limits_of_user(&spec.tenant, spec.tier, creator),
        };
        let mut known: Option<((&Name, PriorityTier, &str), JobLimits)> = None;
        for (place, (spec, spares, creator)) in jobs.into_iter().enumerate() {
            let kind = (&spec.tenant, spec.tier, creator);
            let limits = match known {
                Some((last, limits)) if last == kind => limits,
                _ => limits_of(spec, creator),
            };
            known = Some((kind, limits));
            if let Some(above) = JobAboveLimit::of(limits, spec, spares).next() {
                return Some((place, above));
            }
        }
        None
    }

    /// What a changed job asks for beyond what the policy lets one job ask for. What it asks for no more of than before stays
    /// allowed where the tenant and the tier do: the policy may have been lowered since. With it are its spare workers and its creator.
    #[must_use]
    pub fn raised_above_job_limit(
        &self,
        before: &JobSpec,
        after: &JobSpec,
        (spares, creator): (u32, &str),
    ) -> Option<JobAboveLimit> {
        if self.policy.policy.on_limit(&after.tenant) == Some(OnLimit::Hold) {
            return None;
        }
        let limits = self.policy.policy.job_limits_of_user(&after.tenant, after.tier, creator);
        let is_raised = |above: &JobAboveLimit| {
            let is_longer = match (before.run_time_limit_ms, after.run_time_limit_ms) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(before_ms), Some(after_ms)) => after_ms > before_ms,
            };
            let is_elsewhere = before.tier != after.tier || before.tenant != after.tenant;
            let is_larger = after.worker_count() > before.worker_count();
            let is_more = match above {
                JobAboveLimit::RunTime { .. } => is_longer,
                JobAboveLimit::Devices { .. } | JobAboveLimit::Workers { .. } => is_larger,
            };
            is_elsewhere || is_more
        };
        JobAboveLimit::of(limits, after, spares).find(is_raised)
    }

    /// What a waiting job asks for beyond what the policy lets one job ask for, where its tenant has such jobs wait.
    #[must_use]
    pub fn held_by_job_limit(&self, job: JobId) -> Option<JobAboveLimit> {
        if !self.policy.policy.has_limits() {
            return None;
        }
        let spec = self.spec(job)?;
        if self.policy.policy.on_limit(&spec.tenant) != Some(OnLimit::Hold) {
            return None;
        }
        let spares = self.contract(job).map_or(0, |contract| contract.spares);
        let limits = self.policy.policy.job_limits_of_user(&spec.tenant, spec.tier, self.creator(job));
        JobAboveLimit::of(limits, spec, spares).next()
    }

    /// The first limit of a user that these jobs would break together, given as runs of a tenant, a user and how many.
    pub fn exceeded_user_limit(
        &self,
        runs: impl IntoIterator<Item = (Name, String, u64)>,
    ) -> Option<ExceededLimit> {
        let policy = &self.policy.policy;
        let limits = |tenant: &Name| {
            let pending = policy.limit(tenant, |limits| limits.user.pending_jobs);
            (pending, policy.limit(tenant, |limits| limits.user.unfinished_jobs))
        };
        let mut new: BTreeMap<UserKey, u64> = BTreeMap::new();
        for (tenant, user, count) in runs {
            // Few policies limit users, and this is asked for each submission, on every replica.
            if limits(&tenant) == (None, None) {
                continue;
            }
            *new.entry((tenant, String::from(user_of(&user)))).or_default() += count;
        }
        new.into_iter().find_map(|(key, new)| {
            let (pending, unfinished) = limits(&key.0);
            let load = self.indexes.users.get(&key).copied().unwrap_or_default();
            let checked = [
                ("user.pendingJobs", pending, load.pending_jobs),
                ("user.unfinishedJobs", unfinished, load.unfinished_jobs),
            ];
            checked.into_iter().find_map(|(limit, most, held)| {
                let most = most.filter(|most| held + new > u64::from(*most))?;
                Some(ExceededLimit { tenant: key.0.clone(), user: Some(key.1.clone()), limit, most, held })
            })
        })
    }

    /// Jobs of one user of a tenant that are not over.
    #[must_use]
    pub fn user_load(&self, tenant: &Name, user: &str) -> UserLoad {
        self.indexes.users.get(&(tenant.clone(), String::from(user_of(user)))).copied().unwrap_or_default()
    }

    /// The first limit of a tenant that these jobs would break together. With each is how many there are like it.
    #[must_use]
    pub fn exceeded_limit<'a>(
        &self,
        specs: impl IntoIterator<Item = (&'a JobSpec, u64)>,
    ) -> Option<ExceededLimit> {
        let policy = &self.policy.policy;
        if !policy.has_limits() {
            return None;
        }
        let mut new: BTreeMap<&Name, u64> = BTreeMap::new();
        for (spec, count) in specs {
            *new.entry(&spec.tenant).or_default() += count;
        }
        new.into_iter().find_map(|(tenant, new)| {
            let load = self.queue(tenant).map(|queue| queue.load).unwrap_or_default();
            let pending = policy.limit(tenant, |limits| limits.pending_jobs);
            let unfinished = policy.limit(tenant, |limits| limits.unfinished_jobs);
            let checked = [
                ("pendingJobs", pending, load.pending_jobs),
                ("unfinishedJobs", unfinished, load.pending_jobs + load.active_jobs),
            ];
            checked.into_iter().find_map(|(limit, most, held)| {
                let most = most.filter(|most| held + new > u64::from(*most))?;
                Some(ExceededLimit { tenant: tenant.clone(), user: None, limit, most, held })
            })
        })
    }

    /// How many jobs of a tenant may be placed at a time and how many are, where it has as many as it may; a job with
    /// promised capacity counts.
    #[must_use]
    pub fn running_limit_reached(&self, tenant: &Name) -> Option<(u32, u64)> {
        let most = self.policy.policy.limit(tenant, |limits| limits.running_jobs)?;
        let is_its_own = |job: &JobId| self.spec(*job).is_some_and(|spec| spec.tenant == *tenant);
        let promised = self.promised_and_waiting().filter(is_its_own).count() as u64;
        let placed = self.indexes.loads.get(tenant).map_or(0, |load| load.active_jobs) + promised;
        (placed >= u64::from(most)).then_some((most, placed))
    }

    /// Who submitted a job, or a member of an array that is not created; empty for those that nobody knows.
    #[must_use]
    pub fn creator(&self, job: JobId) -> &str {
        self.carried(job).map_or("", |metadata| metadata.creator.as_str())
    }

    /// How many jobs of its tenant the user of a job may have placed at a time and how many are, where that is as many as it
    /// may; a job with promised capacity counts.
    #[must_use]
    pub fn user_running_limit_reached(&self, job: JobId) -> Option<(u32, u64)> {
        let tenant = &self.spec(job)?.tenant;
        self.running_limit_of_user_reached(tenant, self.creator(job))
    }

    /// The same of a user of a tenant.
    #[must_use]
    pub fn running_limit_of_user_reached(&self, tenant: &Name, user: &str) -> Option<(u32, u64)> {
        let most = self.policy.policy.user_running_jobs(tenant)?;
        let user = user_of(user);
        let is_theirs = |other: &JobId| {
            self.spec(*other).is_some_and(|spec| spec.tenant == *tenant)
                && user_of(self.creator(*other)) == user
        };
        let promised = self.promised_and_waiting().filter(is_theirs).count() as u64;
        let placed = self.user_load(tenant, user).active_jobs + promised;
        (placed >= u64::from(most)).then_some((most, placed))
    }

    /// Whether [`State::user_running_limit_reached`] finds the limit reached. For users with as many jobs running as they may this
    /// looks at no promise: it is asked for every job of a long queue.
    #[must_use]
    pub fn is_user_at_limit(&self, job: JobId) -> bool {
        if !self.policy.policy.has_limits() {
            return false;
        }
        let Some(tenant) = self.spec(job).map(|spec| &spec.tenant) else { return false };
        let Some(most) = self.policy.policy.user_running_jobs(tenant) else { return false };
        let active = self.user_load(tenant, self.creator(job)).active_jobs;
        active >= u64::from(most) || self.user_running_limit_reached(job).is_some()
    }

    /// How many devices the user of a tenant may have placed at a time and how many it has, where more of them are not within
    /// that, in thousandths; devices that are promised to it count.
    #[must_use]
    pub fn user_devices_exceeded(&self, tenant: &Name, user: &str, more_milli: u64) -> Option<(u32, u64)> {
        let most = self.policy.policy.user_devices(tenant)?;
        let user = user_of(user);
        let is_theirs = |other: &JobId| {
            self.spec(*other).is_some_and(|spec| spec.tenant == *tenant)
                && user_of(self.creator(*other)) == user
        };
        let charge_of = |other: JobId| self.job(other).and_then(|row| row.charge()).map(|(_, charge)| charge);
        let promised = self.promised_and_waiting().filter(is_theirs).filter_map(charge_of);
        let promised = promised.flat_map(|charge| charge.devices_milli.iter().map(|(_, milli)| *milli));
        let held = promised.fold(self.user_load(tenant, user).active_milli, u64::saturating_add);
        (held.saturating_add(more_milli) > u64::from(most) * 1_000).then_some((most, held))
    }

    /// The same for a waiting job with all that it asks for. One without devices is within every limit.
    #[must_use]
    pub fn user_device_limit_reached(&self, job: JobId) -> Option<(u32, u64)> {
        let spec = self.spec(job)?;
        let asked_milli = spec.device_milli();
        if asked_milli == 0 {
            return None;
        }
        self.user_devices_exceeded(&spec.tenant, self.creator(job), asked_milli)
    }

    /// Whether a waiting job may not start whatever is free, because of what it asks for next to a limit: it is above what one
    /// job may ask for, or its user would hold more devices than it may.
    #[must_use]
    pub fn is_held_by_limit(&self, job: JobId) -> bool {
        self.held_by_job_limit(job).is_some() || self.is_user_at_device_limit(job)
    }

    /// Whether [`State::user_device_limit_reached`] finds the limit reached. For users whose placed devices alone leave too little
    /// this looks at no promise: it is asked for every job of a long queue.
    fn is_user_at_device_limit(&self, job: JobId) -> bool {
        if !self.policy.policy.has_limits() {
            return false;
        }
        let Some(spec) = self.spec(job) else { return false };
        let Some(most) = self.policy.policy.user_devices(&spec.tenant) else { return false };
        let asked_milli = spec.device_milli();
        let active_milli = self.user_load(&spec.tenant, self.creator(job)).active_milli;
        let has_too_many = active_milli.saturating_add(asked_milli) > u64::from(most) * 1_000;
        asked_milli > 0 && (has_too_many || self.user_device_limit_reached(job).is_some())
    }

    /// Jobs that capacity is promised to and that hold none: one that is being moved or resized is counted as placed already.
    fn promised_and_waiting(&self) -> impl Iterator<Item = JobId> {
        let waits = move |job: &JobId| self.jobs.get(job).is_some_and(|row| row.phase == Phase::Pending);
        self.promised().filter(waits)
    }

    /// The policy is another one from now on.
    pub(crate) fn note_policy(&mut self) {
        self.policy_digest = PolicyDigest::of(&self.policy);
    }

    /// The version is the record's own index. What is in use counts against the new policy from now on.
    pub(crate) fn fold_policy(&mut self, request: RequestKey, policy: &Policy) -> Vec<Effect> {
        self.remember(request, RequestAnswer::PolicySet);
        let before = Arc::clone(&self.policy.policy);
        self.policy.version = self.meta.log_index;
        self.policy.set_at = self.meta.log_time;
        self.policy.policy = Arc::new(policy.clone());
        self.note_policy();
        self.keep_receivers();
        self.keep_grants_under(&before);
        let mut indexes = self.indexes.clone();
        self.count_quotas(&mut indexes);
        if before.has_user_shares() || policy.has_user_shares() {
            self.line_up_users(&mut indexes);
        }
        self.indexes = indexes;
        self.rehome_usage();
        self.recount_users();
        self.recount_budgets();
        self.recount_spends(&before);
        vec![Effect::PolicyChanged]
    }

    /// The workers of a gang were told to stop.
    pub(crate) fn note_stopping(&mut self, job: JobId) {
        let now = self.meta.log_time;
        self.change_times(job, |times| times.stopping_since = Some(now));
    }

    /// Nothing of a gang that was being stopped runs any more. To be called while its row still says why it stopped.
    pub(crate) fn note_stopped(&mut self, job: JobId) {
        let now = self.meta.log_time;
        let cause = self.jobs.get(&job).map(|row| row.phase.clone());
        let preempted =
            matches!(cause, Some(Phase::Stopping(StopCause::Rearranged(RearrangeCause::Preempted { .. }))));
        self.change_times(job, |times| {
            times.stopping_since = None;
            if preempted {
                times.preempted_at = Some(now);
            }
        });
    }

    /// By when the workers of a gang that is being stopped should have been killed: once its grace is over.
    pub(crate) fn kill_time(&self, job: JobId, times: &JobTimes) -> Option<LogTime> {
        Some(times.stopping_since?.plus_ms(self.stop_grace_ms(job)))
    }

    /// By when nothing of a gang that is being stopped should run any more; none for others.
    #[must_use]
    pub fn stopped_by(&self, job: JobId) -> Option<LogTime> {
        let is_stopping = matches!(self.job(job)?.phase, Phase::Stopping(_));
        is_stopping.then(|| self.kill_time(job, &self.times(job))).flatten()
    }

    pub(crate) fn change_times(&mut self, job: JobId, change: impl FnOnce(&mut JobTimes)) {
        let before = self.times(job);
        let mut times = before;
        change(&mut times);
        if before.stopping_since != times.stopping_since {
            self.kill_time(job, &before).inspect(|at| _ = self.indexes.killed_by.remove(&(*at, job)));
            self.kill_time(job, &times).inspect(|at| self.indexes.killed_by.insert((*at, job)));
        }
        if times.is_blank() {
            self.times.remove(&job);
        } else if times != before {
            self.times.insert(job, times);
        }
    }
}
