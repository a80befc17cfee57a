//! Rights and limits of tenants.

use alloc::format;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::{OnLimit, POLICY_DURATION_MS_MAX, Policy, QUOTA_MILLI_MAX, SpendBudget, USAGE_HALF_LIFE_MS_MIN};
use crate::capacity::PurchaseSet;
use crate::job::PriorityTier;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// The tenant that every tenant is below which the policy does not name. A policy may list a tenant of this
/// name, to give all of them together a weight, quotas and rights; otherwise it has the default weight, no
/// quota and the least rights.
pub const UNLISTED_TENANT: &str = "unlisted";

/// The largest limit of a tenant on memory: 1 EiB.
pub const LIMITED_MEMORY_BYTES_MAX: u64 = 1 << 60;

/// Which jobs of a tenant may say that policy must not stop them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NonPreemptible {
    /// None: such a job is refused at submission.
    #[default]
    Never,
    /// All, but such a job starts only within the tenant's nominal quota: what it holds cannot be taken back.
    WithinNominal,
    /// All, also where they borrow what others are promised.
    Always,
}

impl NonPreemptible {
    /// Every value, the least first.
    pub const ALL: [NonPreemptible; 3] =
        [NonPreemptible::Never, NonPreemptible::WithinNominal, NonPreemptible::Always];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NonPreemptible::Never => "never",
            NonPreemptible::WithinNominal => "within_nominal",
            NonPreemptible::Always => "always",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<NonPreemptible> {
        NonPreemptible::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

/// What a policy says of a tenant's rights. A right that is not stated is that of the nearest tenant above that
/// states it, and the least where none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRights {
    /// The highest tier that the tenant's jobs may name.
    pub tier_max: Option<PriorityTier>,
    /// Which jobs may say that they must not be stopped.
    pub non_preemptible: Option<NonPreemptible>,
    /// Whether a deadline moves a job ahead of the tenant's others as it draws near.
    pub deadlines: Option<bool>,
    /// Whether an administrator of the tenant may book nodes. What is booked is kept free also when nobody uses it, so that
    /// others wait for it as they do not wait for lent quota.
    pub bookings: Option<bool>,
    /// The only purchases of nodes that its jobs may ask for; empty where none are stated.
    pub purchases: PurchaseSet,
    /// Whether its jobs may have negative nice values.
    pub negative_nice: Option<bool>,
}

impl TenantRights {
    /// Every right, stated.
    pub const ALL: TenantRights = TenantRights {
        tier_max: Some(PriorityTier::Critical),
        non_preemptible: Some(NonPreemptible::Always),
        deadlines: Some(true),
        bookings: Some(true),
        purchases: PurchaseSet::ALL,
        negative_nice: Some(true),
    };
}

/// How much a tenant may have at a time, other than devices. A limit that is not stated is that of the
/// nearest tenant above that states it, and none where none does. Each tenant has it for itself: what is
/// counted are its own jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// Jobs that wait. A submission after which more of them would wait is refused.
    pub pending_jobs: Option<u32>,
    /// Jobs that are not over: those that wait, and those that run.
    pub unfinished_jobs: Option<u32>,
    /// Jobs that are placed. One that would be more waits, whatever is free.
    pub running_jobs: Option<u32>,
    /// Submissions in a minute, as many at once as in a minute; a cancellation counts where the job is being cancelled
    /// already. Each leaves a request id behind. The leader counts them, so that a change of leader begins a new minute.
    /// Tenants that the policy does not name are counted together.
    pub requests_per_minute: Option<u32>,
    /// How much each of the tenant's users may have.
    pub user: UserLimits,
    /// What one job may ask for.
    pub job: JobLimits,
    /// How long its jobs may be charged for accelerators in each window of time; its jobs wait once that is used. Tenants that
    /// the policy does not name are counted together.
    pub accelerator_hours: Option<AcceleratorBudget>,
    /// Thousandths of CPUs that the jobs of the tenant and of everyone below it may be charged for together; a job that would
    /// take more waits. Unlike the others it is not that of a tenant above, which holds in addition.
    pub cpu_milli: Option<u64>,
    /// The same of memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// How much its jobs may be charged for by the prices of the policy in each window of time; its jobs wait once that is
    /// used. Tenants that the policy does not name are counted together.
    pub spend: Option<SpendBudget>,
    /// What becomes of work that meets a limit when it is submitted.
    pub on_limit: Option<OnLimit>,
}

/// How much accelerator time may be used in each window of log time. Windows follow one another from the Unix epoch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorBudget {
    /// Hours of one accelerator.
    pub hours: u32,
    /// The length of a window, in milliseconds.
    pub window_ms: u64,
}

impl AcceleratorBudget {
    /// In thousandths of an accelerator times milliseconds.
    #[must_use]
    pub fn milli_ms(self) -> u128 {
        u128::from(self.hours) * 3_600_000 * 1_000
    }

    /// When the window begins in which a moment is.
    #[must_use]
    pub fn window_start(self, now: LogTime) -> LogTime {
        LogTime(now.0 - now.0 % self.window_ms.max(1))
    }

    /// When the window behind that one begins.
    #[must_use]
    pub fn renews_at(self, now: LogTime) -> LogTime {
        self.window_start(now).plus_ms(self.window_ms.max(1))
    }

    fn check(self, at: &str, found: &mut Vec<Violation>) {
        if self.hours == 0 {
            found.push(Violation::new(format!("{at}.most"), "must be at least 1 hour"));
        }
        let (min, max) = (USAGE_HALF_LIFE_MS_MIN, POLICY_DURATION_MS_MAX);
        if !(min..=max).contains(&self.window_ms) {
            found.push(Violation::span(&format!("{at}.window"), self.window_ms, min, max));
        }
    }
}

impl TenantLimits {
    /// No limit is stated.
    pub const NONE: TenantLimits = TenantLimits {
        pending_jobs: None,
        unfinished_jobs: None,
        running_jobs: None,
        requests_per_minute: None,
        user: UserLimits {
            pending_jobs: None,
            unfinished_jobs: None,
            running_jobs: None,
            accelerator_hours: None,
            submissions_per_minute: None,
            spend: None,
            devices: None,
        },
        job: JobLimits {
            devices_max: None,
            workers_max: None,
            run_time_max_ms: None,
            run_time_default_ms: None,
            artifacts_bytes_max: None,
        },
        accelerator_hours: None,
        cpu_milli: None,
        memory_bytes: None,
        spend: None,
        on_limit: None,
    };

    /// Every rule that its budgets break, by field.
    pub(super) fn check_budgets(self, at: &str, found: &mut Vec<Violation>) {
        let budgets = [
            (format!("{at}.accelerator_hours"), self.accelerator_hours),
            (format!("{at}.user.accelerator_hours"), self.user.accelerator_hours),
        ];
        for (at, budget) in budgets {
            budget.inspect(|budget| budget.check(&at, found));
        }
        let amounts = [
            ("cpu_milli", self.cpu_milli, QUOTA_MILLI_MAX),
            ("memory_bytes", self.memory_bytes, LIMITED_MEMORY_BYTES_MAX),
        ];
        for (field, amount, max) in amounts {
            if let Some(amount) = amount.filter(|amount| *amount > max) {
                found.push(Violation::limit(&format!("{at}.{field}"), amount, 0, max));
            }
        }
        let spends = [(format!("{at}.spend"), self.spend), (format!("{at}.user.spend"), self.user.spend)];
        for (at, budget) in spends {
            budget.inspect(|budget| budget.check(&at, found));
        }
    }
}

/// How many jobs of one tenant a user may have at a time. A user is who submitted the job, as its certificate says;
/// those that nobody knows are one user together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserLimits {
    /// Jobs that wait.
    pub pending_jobs: Option<u32>,
    /// Jobs that are not over.
    pub unfinished_jobs: Option<u32>,
    /// Jobs that are placed. One that would be more waits, whatever is free, and nobody waits behind it.
    pub running_jobs: Option<u32>,
    /// How long its jobs may be charged for accelerators in each window of time; its jobs wait once that is used, and
    /// nobody waits behind them.
    pub accelerator_hours: Option<AcceleratorBudget>,
    /// Submissions in a minute, as many at once as in a minute. The leader counts them, so that a change of leader begins a
    /// new minute. They also count for the tenant.
    pub submissions_per_minute: Option<u32>,
    /// How much its jobs may be charged for by the prices of the policy in each window of time; its jobs wait once that is
    /// used, and nobody waits behind them.
    pub spend: Option<SpendBudget>,
    /// Devices that its placed jobs hold together. A job that would make it more waits, whatever is free, and nobody waits behind
    /// it; an elastic job counts with all that it asks for.
    pub devices: Option<u32>,
}

/// What one job of a tenant may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobLimits {
    /// Most devices of all its workers together, elastic groups at their largest. A part of a device counts as one.
    pub devices_max: Option<u32>,
    /// Most workers of its gang, with its spare workers, elastic groups at their largest. It also bounds jobs without devices.
    pub workers_max: Option<u32>,
    /// Longest run time limit, in milliseconds.
    pub run_time_max_ms: Option<u64>,
    /// The run time limit of a job that names none, in milliseconds; where this is absent, the longest.
    pub run_time_default_ms: Option<u64>,
    /// Most bytes of the files that are kept of one of its workers; no more than its agent keeps. With 0 none are.
    pub artifacts_bytes_max: Option<u64>,
}

impl JobLimits {
    /// These, and those of `above` where nothing is stated.
    #[must_use]
    pub(super) fn or(self, above: JobLimits) -> JobLimits {
        JobLimits {
            devices_max: self.devices_max.or(above.devices_max),
            workers_max: self.workers_max.or(above.workers_max),
            run_time_max_ms: self.run_time_max_ms.or(above.run_time_max_ms),
            run_time_default_ms: self.run_time_default_ms.or(above.run_time_default_ms),
            artifacts_bytes_max: self.artifacts_bytes_max.or(above.artifacts_bytes_max),
        }
    }

    /// These within others: the lower of both, and the own default run time where there is one.
    #[must_use]
    pub(super) fn within(self, others: JobLimits) -> JobLimits {
        JobLimits {
            devices_max: lower(self.devices_max, others.devices_max),
            workers_max: lower(self.workers_max, others.workers_max),
            run_time_max_ms: lower(self.run_time_max_ms, others.run_time_max_ms),
            run_time_default_ms: self.run_time_default_ms.or(others.run_time_default_ms),
            artifacts_bytes_max: lower(self.artifacts_bytes_max, others.artifacts_bytes_max),
        }
    }

    /// The run time limit of a job that names none; none where such a job may run for as long as it likes.
    #[must_use]
    pub fn run_time_unless_named_ms(self) -> Option<u64> {
        match (self.run_time_default_ms, self.run_time_max_ms) {
            (Some(default), Some(max)) => Some(default.min(max)),
            (default, max) => default.or(max),
        }
    }

    /// Every rule that they break, by field.
    pub(super) fn check(self, at: &str, found: &mut Vec<Violation>) {
        let spans = [("max_run_time", self.run_time_max_ms), ("default_run_time", self.run_time_default_ms)];
        for (field, span) in spans {
            if let Some(ms) = span.filter(|ms| !(1..=POLICY_DURATION_MS_MAX).contains(ms)) {
                let text = format!("must be above zero and at most 366 days, got {ms} ms");
                found.push(Violation::new(format!("{at}.{field}"), text));
            }
        }
        if let (Some(default), Some(max)) = (self.run_time_default_ms, self.run_time_max_ms)
            && default > max
        {
            found.push(Violation::new(
                format!("{at}.default_run_time"),
                "must not be longer than the longest",
            ));
        }
    }
}

/// The lower of two limits; none limits nothing.
fn lower<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The rights of a tenant, once the tree has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The highest tier that its jobs may name.
    pub tier_max: PriorityTier,
    /// Which of its jobs may say that they must not be stopped.
    pub non_preemptible: NonPreemptible,
    /// Whether a deadline moves a job ahead of the tenant's others.
    pub deadlines: bool,
    /// Whether an administrator of the tenant may book nodes.
    pub bookings: bool,
    /// The purchases of nodes that its jobs may ask for.
    pub purchases: PurchaseSet,
    /// Whether its jobs may have negative nice values.
    pub negative_nice: bool,
}

impl Rights {
    /// What everybody may do.
    pub const LEAST: Rights = Rights {
        tier_max: PriorityTier::Standard,
        non_preemptible: NonPreemptible::Never,
        deadlines: false,
        bookings: false,
        purchases: PurchaseSet::ALL,
        negative_nice: false,
    };

    /// Everything.
    pub const ALL: Rights = Rights {
        tier_max: PriorityTier::Critical,
        non_preemptible: NonPreemptible::Always,
        deadlines: true,
        bookings: true,
        purchases: PurchaseSet::ALL,
        negative_nice: true,
    };
}

impl Policy {
    /// How much a tenant may have at a time.
    #[must_use]
    pub fn limits(&self, tenant: &Name) -> TenantLimits {
        let stated = || self.ancestry(tenant).filter_map(|name| self.tenants.get(name)).map(|t| t.limits);
        TenantLimits {
            pending_jobs: stated().find_map(|limits| limits.pending_jobs),
            unfinished_jobs: stated().find_map(|limits| limits.unfinished_jobs),
            running_jobs: stated().find_map(|limits| limits.running_jobs),
            requests_per_minute: stated().find_map(|limits| limits.requests_per_minute),
            user: UserLimits {
                pending_jobs: stated().find_map(|limits| limits.user.pending_jobs),
                unfinished_jobs: stated().find_map(|limits| limits.user.unfinished_jobs),
                running_jobs: self.user_running_jobs(tenant),
                accelerator_hours: self.user_budget(tenant),
                submissions_per_minute: stated().find_map(|limits| limits.user.submissions_per_minute),
                spend: self.user_spend(tenant),
                devices: self.user_devices(tenant),
            },
            job: stated().fold(JobLimits::default(), |nearer, limits| nearer.or(limits.job)),
            accelerator_hours: self.budget(tenant),
            cpu_milli: self.tenants.get(tenant).and_then(|stated| stated.limits.cpu_milli),
            memory_bytes: self.tenants.get(tenant).and_then(|stated| stated.limits.memory_bytes),
            spend: self.spend(tenant),
            on_limit: self.on_limit(tenant),
        }
    }

    /// One of the limits of a tenant that tenants above state for those below them, as [`Policy::limits`] has it. Submissions and turns
    /// ask for one or two, often, and all of them cost many times as much.
    #[must_use]
    pub fn limit<T>(&self, tenant: &Name, of: impl Fn(&TenantLimits) -> Option<T>) -> Option<T> {
        if !self.queues.has_limits {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| of(&tenant.limits))
    }

    /// Submissions with jobs of a tier that a tenant may make in a minute; none for no limit.
    #[must_use]
    pub fn tier_submissions(&self, tenant: &Name, tier: PriorityTier) -> Option<u32> {
        if !self.queues.has_tier_submissions {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.tier_submissions.get(&tier).copied())
    }

    /// How much accelerator time the jobs of a tenant may use in a window; none for no limit.
    #[must_use]
    pub fn budget(&self, tenant: &Name) -> Option<AcceleratorBudget> {
        if !self.queues.has_budget {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.accelerator_hours)
    }

    /// The same for each user of a tenant.
    #[must_use]
    pub fn user_budget(&self, tenant: &Name) -> Option<AcceleratorBudget> {
        if !self.queues.has_user_budget {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.user.accelerator_hours)
    }

    /// How many jobs of a tenant each of its users may have placed; none for no limit. It is asked for every job that has its
    /// turn, and so without the other limits.
    #[must_use]
    pub fn user_running_jobs(&self, tenant: &Name) -> Option<u32> {
        if !self.queues.has_user_running_jobs {
            return None;
        }
        let mut stated = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        stated.find_map(|tenant| tenant.limits.user.running_jobs)
    }

    /// Whether some tenant states how many CPUs or how much memory it may have.
    #[must_use]
    pub fn has_host_limits(&self) -> bool {
        self.queues.has_host_limits
    }

    /// Whether some tenant states any limit, apart from those of one tier.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        self.queues.has_limits
    }

    /// What one job of a tenant may ask for in a tier. What is stated nearer to the tenant goes before what is stated
    /// above it, and at one tenant what it states of the tier before what it states of all of them.
    #[must_use]
    pub fn job_limits(&self, tenant: &Name, tier: PriorityTier) -> JobLimits {
        if !self.queues.has_job_limits {
            return JobLimits::default();
        }
        let above = self.ancestry(tenant).filter_map(|name| self.tenants.get(name));
        above.fold(JobLimits::default(), |nearer, tenant| {
            let of_tier = tenant.tier_limits.get(&tier).copied().unwrap_or_default();
            nearer.or(of_tier).or(tenant.limits.job)
        })
    }

    /// What a tenant's jobs may ask for, and its administrators.
    #[must_use]
    pub fn rights(&self, tenant: &Name) -> Rights {
        if !self.queues.has_rights {
            return Rights::LEAST;
        }
        // One walk, since every submission asks for it several times.
        let mut stated = TenantRights::default();
        for tenant in self.ancestry(tenant).filter_map(|name| self.tenants.get(name)) {
            let TenantRights { tier_max, non_preemptible, deadlines, bookings, purchases, negative_nice } =
                tenant.rights;
            stated = TenantRights {
                tier_max: stated.tier_max.or(tier_max),
                non_preemptible: stated.non_preemptible.or(non_preemptible),
                deadlines: stated.deadlines.or(deadlines),
                bookings: stated.bookings.or(bookings),
                purchases: if stated.purchases.is_empty() { purchases } else { stated.purchases },
                negative_nice: stated.negative_nice.or(negative_nice),
            };
        }
        let least = Rights::LEAST;
        Rights {
            tier_max: stated.tier_max.unwrap_or(least.tier_max),
            non_preemptible: stated.non_preemptible.unwrap_or(least.non_preemptible),
            deadlines: stated.deadlines.unwrap_or(least.deadlines),
            bookings: stated.bookings.unwrap_or(least.bookings),
            purchases: if stated.purchases.is_empty() { least.purchases } else { stated.purchases },
            negative_nice: stated.negative_nice.unwrap_or(least.negative_nice),
        }
    }
}
