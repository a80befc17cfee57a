//! What a job may ask of how its workers run that not every host can do, and the labels of the nodes that cannot.
//!
//! A node that says nothing can do it. So a job that asks goes to any node but those that have the label with `none`.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::{JobContract, Submission};
use crate::host_rules::CpuBinding;
use crate::job::JobSpec;
use crate::name::Name;
use crate::node_requirements::{LabelTest, NodeExpression, NodeRequirements};
use crate::reason::Violation;
use crate::schedule::ScheduleTemplate;

/// What workers may ask of their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerFeature {
    /// Processors that they are bound to.
    Binding,
    /// A size of `/dev/shm`.
    SharedMemory,
    /// A terminal that people attach to.
    Terminal,
}

/// The value of the label of a feature that a node lacks.
const LACKING: &str = "none";

impl WorkerFeature {
    /// Every feature.
    pub const ALL: [WorkerFeature; 3] =
        [WorkerFeature::Binding, WorkerFeature::SharedMemory, WorkerFeature::Terminal];

    /// The label of a node that lacks it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            WorkerFeature::Binding => "worker.binding",
            WorkerFeature::SharedMemory => "worker.shared-memory",
            WorkerFeature::Terminal => "worker.terminal",
        }
    }

    /// The label and the value that say that a node lacks it.
    #[must_use]
    pub fn lacking_fact(self) -> (&'static str, &'static str) {
        (self.label(), LACKING)
    }

    /// Whether a job asks for it.
    #[must_use]
    pub fn is_asked_by(self, contract: &JobContract) -> bool {
        match self {
            WorkerFeature::Binding => contract.host.binding != CpuBinding::None,
            WorkerFeature::SharedMemory => contract.host.shared_memory_bytes > 0,
            WorkerFeature::Terminal => contract.terminal,
        }
    }

    /// The condition on the nodes of a job that asks for it.
    fn condition(self) -> NodeExpression {
        let test = LabelTest::NotIn(BTreeSet::from([String::from(LACKING)]));
        NodeExpression { label: Name::literal(self.label()), test }
    }
}

/// What a job asks of its nodes with the conditions that keep it from those which lack what its contract asks of its workers.
#[must_use]
pub fn with_features(
    nodes: Option<&NodeRequirements>,
    contract: &JobContract,
) -> Option<Box<NodeRequirements>> {
    let mut required = nodes.cloned();
    for feature in WorkerFeature::ALL.into_iter().filter(|feature| feature.is_asked_by(contract)) {
        let (condition, required) = (feature.condition(), required.get_or_insert_with(Default::default));
        if !required.expressions.contains(&condition) {
            required.expressions.push(condition);
        }
    }
    required.map(Box::new)
}

impl Submission {
    /// Keeps jobs from nodes that lack what they ask of how their workers run. `path` is that of a job by its place.
    ///
    /// # Errors
    /// Every rule that a job breaks with these conditions on its nodes: there may be too many.
    pub fn require_features(
        jobs: &mut [Submission],
        path: impl Fn(usize) -> String,
    ) -> Result<(), Vec<Violation>> {
        let mut found = Vec::new();
        for (place, job) in jobs.iter_mut().enumerate() {
            if !WorkerFeature::ALL.iter().any(|feature| feature.is_asked_by(&job.contract)) {
                continue;
            }
            let nodes = with_features(job.spec.nodes.as_deref(), &job.contract);
            if nodes == job.spec.nodes {
                continue;
            }
            let mut draft = job.spec.clone().into_draft();
            draft.nodes = nodes;
            match draft.check() {
                Ok(spec) => job.spec = spec,
                Err(violations) => {
                    let at = format!("{}.spec", path(place));
                    found.extend(violations.into_iter().map(|violation| violation.under(&at)));
                }
            }
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }
}

impl ScheduleTemplate {
    /// The same for the jobs that are made of it. `at` is the path of its job.
    ///
    /// # Errors
    /// As [`Submission::require_features`].
    pub fn require_features(&mut self, at: &str) -> Result<(), Vec<Violation>> {
        let mut jobs = [Submission::new(JobSpec::clone(&self.spec), JobContract::clone(&self.contract))];
        Submission::require_features(&mut jobs, |_| String::from(at))?;
        let [job] = jobs;
        self.spec = Arc::new(job.spec);
        Ok(())
    }
}
