//! The jobs of one request.

use alloc::format;
use alloc::string::{String, ToString};

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
