//! The jobs of one request, by the specs that they came from.

use alloc::format;
use alloc::string::{String, ToString};
use muster_types::Submission;

/// What a request calls its jobs, and so how the path of a field in it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPath {
    /// A list, `jobs[2]`.
    List,
    /// One job, `job`.
    Single,
}

impl JobPath {
    /// The path of the job at a place of the request.
    pub(crate) fn at(self, place: usize) -> String {
        match self {
            JobPath::List => format!("jobs[{place}]"),
            JobPath::Single => "job".to_string(),
        }
    }
}

/// The specs of the request that these jobs came from, each with its place there: the members of an array came from one,
/// and its first member stands for all. The first job begins one wherever it stands in its array.
pub(crate) fn distinct_specs(jobs: &[Submission]) -> impl Iterator<Item = (usize, &Submission)> {
    let first = jobs.iter().enumerate().filter(|(at, job)| *at == 0 || begins_a_spec(job));
    first.map(|(_, job)| job).enumerate()
}

/// The place in the request of the spec that a job came from.
pub(crate) fn job_index(jobs: &[Submission], job: usize) -> usize {
    jobs.iter().take(job.saturating_add(1)).skip(1).filter(|job| begins_a_spec(job)).count()
}

fn begins_a_spec(job: &Submission) -> bool {
    job.array.is_none_or(|array| array.index == 0)
}
