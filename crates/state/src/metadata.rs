//! Labels, annotations and creators of jobs.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeBounds;
use muster_journal::hash;
use muster_types::{JobId, JobMetadata, MetadataBits, Name, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::index::{Described, JobIndexKeys};
use crate::rows::Phase;
use crate::state::State;
use crate::table::{Derived, Table};
use crate::verify::BrokenInvariant;

type Run = (JobId, u32, Arc<JobMetadata>);

/// The bits lie next to each other in the table, and the texts do not: a walk that looks for a label reads few of them.
impl Derived<JobId, Arc<JobMetadata>> for MetadataBits {
    fn of(metadata: &Arc<JobMetadata>) -> MetadataBits {
        MetadataBits::carried_by(metadata)
    }

    fn refresh(&mut self, metadata: &Arc<JobMetadata>) {
        *self = MetadataBits::carried_by(metadata);
    }

    fn hash(&self, id: &JobId, metadata: &Arc<JobMetadata>) -> u64 {
        hash(&(id, metadata))
    }
}

impl State {
    /// The labels, annotations and creator of a job; `None` when it has none of them.
    #[must_use]
    pub fn metadata(&self, job: JobId) -> Option<&Arc<JobMetadata>> {
        self.metadata.get(&job)
    }

    /// The rows of all jobs that have labels, annotations or a creator.
    #[must_use]
    pub fn all_metadata(&self) -> &Table<JobId, Arc<JobMetadata>, MetadataBits> {
        &self.metadata
    }

    /// Jobs of a range that have labels, annotations or a creator, in order of submission: with them where they have all of these
    /// bits, and without where they cannot be what is looked for.
    pub fn carriers(
        &self,
        range: impl RangeBounds<JobId>,
        needed: MetadataBits,
    ) -> impl DoubleEndedIterator<Item = (JobId, Option<&Arc<JobMetadata>>)> {
        let rows = self.metadata.range_with_facts(range);
        rows.map(move |(id, metadata, bits)| (*id, bits.has_all(needed).then_some(metadata)))
    }

    /// Said once of a job, before anything becomes of it.
    pub(crate) fn check_metadata(&self, runs: &[Run]) -> Result<(), GuardError> {
        require(!runs.is_empty(), GuardError::Limit)?;
        let (mut jobs, mut end) = (0_u64, 0_u64);
        for (first, count, metadata) in runs {
            jobs = jobs.saturating_add(u64::from(*count));
            require(*count > 0 && jobs <= limits::BATCH_JOBS_MAX as u64, GuardError::Limit)?;
            require(first.0 >= end, GuardError::Limit)?;
            end = first.0.checked_add(u64::from(*count)).ok_or(GuardError::Limit)?;
            require(!metadata.is_default(), GuardError::NothingToDo)?;
            require(metadata.violations().is_empty(), GuardError::Limit)?;
            for job in (first.0..end).map(JobId) {
                let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
                require(row.phase == Phase::Pending && row.attempt == 0, GuardError::JobPhase)?;
                require(!self.metadata.contains(&job), GuardError::NothingToDo)?;
            }
        }
        if self.policy.policy.has_user_limits() {
            for (first, count, metadata) in runs {
                let specs = (0..u64::from(*count)).filter_map(|n| {
                    let job = JobId(first.0 + n);
                    let spares = self.contract(job).map_or(0, |contract| contract.spares);
                    Some((&**self.spec(job)?, spares, metadata.creator.as_str()))
                });
                require(self.above_job_limit(specs).is_none(), GuardError::TenantLimit)?;
            }
        }
        if !self.policy.policy.has_limits() {
            return Ok(());
        }
        require(self.exceeded_user_limit(self.new_to_users(runs)).is_none(), GuardError::TenantLimit)
    }

    /// The jobs that users have from these runs on: until now they are counted as nobody's, and those that stay nobody's are
    /// counted already. The jobs of a run may be of several tenants.
    fn new_to_users(&self, runs: &[Run]) -> Vec<(Name, String, u64)> {
        let mut new: Vec<(Name, String, u64)> = Vec::new();
        for (first, count, metadata) in runs.iter().filter(|(_, _, metadata)| !metadata.creator.is_empty()) {
            let tenants = (0..u64::from(*count)).filter_map(|n| self.specs.get(&JobId(first.0 + n)));
            for tenant in tenants.map(|spec| &spec.tenant) {
                match new.last_mut() {
                    Some((of, user, jobs)) if of == tenant && *user == metadata.creator => *jobs += 1,
                    _ => new.push((tenant.clone(), metadata.creator.clone(), 1)),
                }
            }
        }
        new
    }

    /// A row says something, of a job that is there.
    pub(crate) fn verify_metadata(&self) -> Result<(), BrokenInvariant> {
        for (job, metadata) in self.metadata.iter() {
            if metadata.is_default() || !self.jobs.contains(job) {
                return Err(BrokenInvariant(format!("{job} has a row of metadata without a meaning")));
            }
        }
        Ok(())
    }

    pub(crate) fn fold_metadata(&mut self, runs: &[Run]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (first, count, metadata) in runs {
            for job in (0..u64::from(*count)).map(|n| JobId(first.0 + n)) {
                self.set_metadata(job, Arc::clone(metadata));
                effects.push(Effect::JobChanged(job));
            }
        }
        effects
    }

    /// A job that is counted as nobody's is its creator's from now on.
    fn set_metadata(&mut self, job: JobId, metadata: Arc<JobMetadata>) {
        let before = self.described(job).expect("the guard has seen the job");
        let row = self.jobs.get(&job).expect("the guard has seen the job");
        let keys = JobIndexKeys::of(row, &before, self.burst_turn(job, row), self.retry_wait(job));
        let after = Described { metadata: Some(Arc::clone(&metadata)), ..before.clone() };
        self.indexes.shift_user(&before, &keys, &JobIndexKeys::default());
        self.indexes.shift_user(&after, &JobIndexKeys::default(), &keys);
        self.indexes.change_user_of_line(job, &before, &after, &keys);
        // What is promised to it is the creator's as well.
        let charge = row.charge().map(|(_, charge)| charge.clone());
        self.count_user(job, &before.spec.tenant, charge.as_ref(), None);
        self.metadata.insert(job, metadata);
        self.count_user(job, &before.spec.tenant, None, charge.as_ref());
    }
}
