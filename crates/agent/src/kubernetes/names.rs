//! Names and labels of what this agent makes in a Kubernetes cluster.
//!
//! **Invariant:** a name follows from the placement and the agent alone, so that what is made twice meets itself.

use crate::rules::Placement;
use muster_types::Name;

/// The container of a pod that brings the runner.
pub(super) const SHIM_CONTAINER: &str = "shim";
/// The container that is the runner, with the workers below it.
pub(super) const WORKERS_CONTAINER: &str = "workers";
/// The key in a pod's secret under which its ticket is.
pub(super) const TICKET_KEY: &str = "ticket";

/// Labels of pods and secrets.
pub(super) mod label {
    /// Which agent has made it.
    pub(crate) const AGENT: &str = "muster.dev/agent";
    /// The job.
    pub(crate) const JOB: &str = "muster.dev/job";
    /// The token of the placement.
    pub(crate) const TOKEN: &str = "muster.dev/token";
    /// How often the job has been placed.
    pub(crate) const ATTEMPT: &str = "muster.dev/attempt";
    /// The first rank of the gang on that node.
    pub(crate) const RANK: &str = "muster.dev/rank";
}

/// Of a pod and its secret: the agent, the job, the token and the first rank on that node.
pub(super) fn pod_name(scope: &str, placement: &Placement) -> String {
    let agent = scope.get(..8).unwrap_or(scope);
    let token = placement.token.to_string().replace('.', "-");
    let rank = placement.ranks().min().unwrap_or(0);
    format!("muster-{agent}-{}-{token}-{rank}", placement.job)
}

/// The value of a label as a name: in small letters, with `-` for what no name has, and its end where it is too long, because
/// the beginnings of such values are alike.
pub(super) fn place_name(text: &str) -> Option<Name> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c.to_ascii_lowercase() } else { '-' }
    };
    let text: String = text.chars().map(plain).collect();
    let start = text.len().saturating_sub(63);
    Name::new(text[start..].trim_matches(|c: char| !c.is_ascii_alphanumeric()))
}
