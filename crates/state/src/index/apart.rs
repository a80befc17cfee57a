//! Jobs that keep others away, by what they keep away: who asks whether it is kept away reads each kind once, however many
//! jobs have an entry of it.

use alloc::sync::Arc;
use muster_types::{Affinity, AffinityLevel, AffinityRule, AffinityTarget, JobId, JobSpec};

use super::Indexes;

/// Which jobs are kept away, and from what: entries that ask for the same are of one kind.
pub type ApartKind = (AffinityLevel, Arc<AffinityTarget>);

/// Whether an entry keeps the jobs that it selects away from where the job is that has it.
pub(crate) fn keeps_away(entry: &Affinity) -> bool {
    entry.rule == AffinityRule::Apart && entry.is_required()
}

impl Indexes {
    /// A job keeps others away from now on, or does not any more; nothing changes where that is so already.
    pub(crate) fn set_apart(&mut self, job: JobId, spec: &JobSpec, keeps: bool) {
        if !spec.affinity.iter().any(keeps_away) {
            return;
        }
        let mut kinds = self.apart.take(&spec.tenant).unwrap_or_default();
        for entry in spec.affinity.iter().filter(|entry| keeps_away(entry)) {
            let kind: ApartKind = (entry.level, Arc::new(entry.target.clone()));
            let mut jobs = kinds.take(&kind).unwrap_or_default();
            super::toggle(&mut jobs, job, keeps);
            if !jobs.is_empty() {
                kinds.insert(kind, jobs);
            }
        }
        if !kinds.is_empty() {
            self.apart.insert(spec.tenant.clone(), kinds);
        }
    }
}
