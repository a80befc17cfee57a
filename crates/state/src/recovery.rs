//! The contracts of jobs, and what became of their attempts.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use muster_journal::{Decision, WorkerSlot};
use muster_types::{Artifacts, FencingToken, JobContract, JobId, LogTime, Name, NodeId, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::{Failure, Phase, RankArtifacts, RecoveryRow, Saved, Straggler};
use crate::state::State;

impl State {
    /// The contract of a job; `None` for the default one.
    #[must_use]
    pub fn contract(&self, job: JobId) -> Option<&Arc<JobContract>> {
        self.contracts.get(&job)
    }

    /// What became of a job's attempts; none when nothing has.
    #[must_use]
    pub fn recovery(&self, job: JobId) -> Option<&RecoveryRow> {
        self.recoveries.get(&job)
    }

    /// How long the workers of a job may take to stop, before they are killed.
    #[must_use]
    pub fn stop_grace_ms(&self, job: JobId) -> u64 {
        let Some(spec) = self.specs.get(&job) else { return 0 };
        self.contract(job).map_or(spec.stop_grace_ms, |contract| contract.stop_grace_ms(spec))
    }

    /// Whether a job loses only what came after its last checkpoint when it is stopped: it has a directory or a data
    /// set for its checkpoints, or it has saved its work before.
    #[must_use]
    pub fn saves_its_work(&self, job: JobId) -> bool {
        let has_directory = self.specs.get(&job).is_some_and(|spec| spec.is_checkpointed());
        let has_place = self.contract(job).is_some_and(|contract| contract.checkpoint.place.is_some());
        has_directory || has_place || self.recovery(job).is_some_and(|row| row.saved.is_some())
    }

    /// Whether a job's checkpoints can be read in a region: always where it does not say where they are. The data set
    /// that it names may have lost its copy there, or be gone from the policy.
    #[must_use]
    pub fn reads_checkpoints_in(&self, job: JobId, region: &Name) -> bool {
        let Some(place) = self.contract(job).and_then(|contract| contract.checkpoint.place.as_ref()) else {
            return true;
        };
        let dataset = self.policy.policy.datasets.get(place);
        dataset.is_some_and(|dataset| dataset.regions.contains(region))
    }

    /// A gang is placed only where its checkpoints can be read.
    pub(crate) fn check_checkpoints(&self, job: JobId, workers: &[WorkerSlot]) -> Result<(), GuardError> {
        for slot in workers {
            let row = self.nodes.get(&slot.node).ok_or(GuardError::NodeUnknown)?;
            require(self.reads_checkpoints_in(job, &row.spec.region), GuardError::CheckpointsOutOfReach)?;
        }
        Ok(())
    }

    /// Until when a job that failed is not placed again.
    pub(crate) fn retry_wait(&self, job: JobId) -> Option<LogTime> {
        self.recoveries.get(&job)?.wait_until
    }

    pub(crate) fn check_contracts(&self, contracts: &[(JobId, Arc<JobContract>)]) -> Result<(), GuardError> {
        require(!contracts.is_empty() && contracts.len() <= limits::BATCH_JOBS_MAX, GuardError::Limit)?;
        require(contracts.is_sorted_by(|a, b| a.0 < b.0), GuardError::Limit)?;
        for (job, contract) in contracts {
            let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
            let spec = self.specs.get(job).ok_or(GuardError::JobUnknown)?;
            require(row.phase == Phase::Pending && row.attempt == 0, GuardError::JobPhase)?;
            require(!contract.is_default() && !self.contracts.contains(job), GuardError::NothingToDo)?;
            require(contract.violations(spec).is_empty(), GuardError::Limit)?;
            let alone = [(&**spec, contract.spares, self.creator(*job))];
            require(self.above_job_limit(alone).is_none(), GuardError::TenantLimit)?;
        }
        Ok(())
    }

    pub(crate) fn fold_contracts(&mut self, contracts: &[(JobId, Arc<JobContract>)]) -> Vec<Effect> {
        for (job, contract) in contracts {
            self.contracts.insert(*job, Arc::clone(contract));
        }
        contracts.iter().map(|(job, _)| Effect::JobChanged(*job)).collect()
    }

    /// Said once of an attempt, when nothing of it runs any more.
    pub(crate) fn check_failed(&self, decision: &Decision) -> Result<(), GuardError> {
        let Decision::AttemptFailed { job, token, rank, node, detail, avoid, .. } = decision else {
            return Err(GuardError::JobPhase);
        };
        let row = self.jobs.get(job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        require(matches!(row.phase, Phase::Stopping(_)), GuardError::JobPhase)?;
        require(placement.live == 0, GuardError::WorkersRemain)?;
        require(placement.token == *token, GuardError::TokenNotCurrent)?;
        require(detail.len() <= limits::DETAIL_BYTES_MAX, GuardError::Limit)?;
        require(rank.is_none_or(|rank| (rank as usize) < placement.slots.len()), GuardError::RankNotCurrent)?;
        let is_on = |node: &NodeId| placement.slots.iter().any(|slot| slot.node == *node);
        require(node.as_ref().is_none_or(is_on), GuardError::NodeUnknown)?;
        require(avoid.is_none() || node.is_some(), GuardError::NodeUnknown)?;
        let last = self.recoveries.get(job).and_then(|row| row.last.as_ref());
        require(last.is_none_or(|last| last.token != *token), GuardError::NothingToDo)
    }

    pub(crate) fn fold_failed(&mut self, decision: &Decision) -> Vec<Effect> {
        let Decision::AttemptFailed { job, token, class, rank, node, detail, streak, wait_until, avoid } =
            decision
        else {
            return Vec::new();
        };
        let now = self.meta.log_time;
        let attempt = self.jobs.get(job).expect("the guard has seen the job").attempt;
        let mut row = self.recoveries.get(job).cloned().unwrap_or_default();
        *row.counts.entry(*class).or_default() += 1;
        row.streak = *streak;
        row.wait_until = *wait_until;
        if let (Some(node), Some(until)) = (node, avoid) {
            row.avoid(*node, *until, now);
        }
        row.last = Some(Failure {
            class: *class,
            rank: *rank,
            node: *node,
            detail: detail.clone(),
            at: now,
            attempt,
            token: *token,
        });
        self.recoveries.insert(*job, row);
        if let Some(node) = node.filter(|_| class.is_of_node()) {
            self.note_fault(node);
        }
        self.change_job(*job, |_| {});
        vec![Effect::JobChanged(*job)]
    }

    /// Faults of a node that jobs met, oldest first; the last [`limits::NODE_FAULTS_KEPT`].
    #[must_use]
    pub fn faults_of(&self, node: NodeId) -> &[LogTime] {
        self.node_faults.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Nodes on which jobs met a fault, with the times.
    pub fn node_faults(&self) -> impl Iterator<Item = (NodeId, &[LogTime])> {
        self.node_faults.iter().map(|(node, times)| (*node, times.as_slice()))
    }

    fn note_fault(&mut self, node: NodeId) {
        if !self.nodes.contains(&node) {
            return;
        }
        let mut times = self.faults_of(node).to_vec();
        let now = self.meta.log_time;
        if times.last().is_some_and(|last| now.since_ms(*last) < limits::NODE_FAULT_APART_MS) {
            return;
        }
        times.push(now);
        let excess = times.len().saturating_sub(limits::NODE_FAULTS_KEPT);
        times.drain(..excess);
        self.node_faults.insert(node, times);
    }

    /// A rank is slow, or it was and is not any more.
    pub(crate) fn check_straggler(
        &self,
        job: JobId,
        token: FencingToken,
        rank: u32,
        slow_milli: Option<u32>,
    ) -> Result<(), GuardError> {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        require(row.phase == Phase::Running, GuardError::JobPhase)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        require((rank as usize) < placement.slots.len(), GuardError::RankNotCurrent)?;
        let known = self.recoveries.get(&job).map(|row| &row.stragglers);
        let is_known = known.is_some_and(|known| known.contains_key(&rank));
        let has_room = is_known || known.is_none_or(|known| known.len() < limits::STRAGGLERS_MAX);
        require(if slow_milli.is_some() { has_room } else { is_known }, GuardError::NothingToDo)
    }

    pub(crate) fn fold_straggler(&mut self, job: JobId, rank: u32, slow_milli: Option<u32>) -> Vec<Effect> {
        let now = self.meta.log_time;
        let mut row = self.recoveries.get(&job).cloned().unwrap_or_default();
        match slow_milli {
            Some(slow_milli) => {
                let since = row.stragglers.get(&rank).map_or(now, |known| known.since);
                row.stragglers.insert(rank, Straggler { slow_milli, since });
            }
            None => _ = row.stragglers.remove(&rank),
        }
        self.recoveries.insert(job, row);
        self.change_job(job, |_| {});
        vec![Effect::JobChanged(job)]
    }

    pub(crate) fn check_artifacts(
        &self,
        job: JobId,
        token: FencingToken,
        rank: u32,
        artifacts: &Artifacts,
    ) -> Result<(), GuardError> {
        let row = self.jobs.get(&job).ok_or(GuardError::JobUnknown)?;
        let placement = row.placement.as_deref().ok_or(GuardError::JobPhase)?;
        require(placement.token == token, GuardError::TokenNotCurrent)?;
        let state = placement.ranks.get(rank as usize);
        require(state.is_some_and(|state| !state.is_over()), GuardError::RankNotCurrent)?;
        let rules = self.agreed(job).and_then(|contract| contract.artifacts.as_ref());
        let rules = rules.ok_or(GuardError::NothingToDo)?;
        let is_named = artifacts.fault.is_none_or(|(_, path)| (path as usize) < rules.paths.len());
        require(is_named && rank < limits::ARTIFACT_WORKERS_MAX, GuardError::Limit)?;
        let known = self.recoveries.get(&job).and_then(|row| row.artifacts.get(&rank));
        let is_known = known.is_some_and(|known| known.token == token && known.artifacts == *artifacts);
        require(!is_known, GuardError::NothingToDo)
    }

    pub(crate) fn fold_artifacts(
        &mut self,
        job: JobId,
        token: FencingToken,
        rank: u32,
        artifacts: Artifacts,
    ) -> Vec<Effect> {
        let mut row = self.recoveries.get(&job).cloned().unwrap_or_default();
        row.artifacts.insert(rank, RankArtifacts { token, artifacts });
        self.recoveries.insert(job, row);
        self.change_job(job, |_| {});
        vec![Effect::JobChanged(job)]
    }

    /// Another placement has other ranks.
    pub(crate) fn forget_stragglers(&mut self, job: JobId) {
        if self.recoveries.get(&job).is_some_and(|row| !row.stragglers.is_empty()) {
            let mut row = self.recoveries.get(&job).cloned().unwrap_or_default();
            row.stragglers.clear();
            self.recoveries.insert(job, row);
        }
    }

    /// The rows of a job in other tables are removed with it.
    pub(crate) fn forget_recovery(&mut self, job: JobId) {
        self.contracts.remove(&job);
        self.recoveries.remove(&job);
    }

    /// Remembers that a job has saved its work.
    pub(crate) fn note_saved(&mut self, job: JobId) {
        let attempt = self.jobs.get(&job).expect("the guard has seen the job").attempt;
        let mut row = self.recoveries.get(&job).cloned().unwrap_or_default();
        row.saved = Some(Saved { at: self.meta.log_time, attempt });
        self.recoveries.insert(job, row);
    }
}
