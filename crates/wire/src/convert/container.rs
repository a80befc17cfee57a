//! Images of workers.

use muster_types::fleet::checked_name;
use muster_types::{Container, Mount, Violation, limits};

use super::{Found, below, bound, one_of};
use crate::closed::number;
use crate::v1;

/// The image that a message names; its command is read elsewhere.
pub(super) fn container_from_proto(at: &str, message: v1::ContainerRuntime, found: &mut Found) -> Container {
    let v1::ContainerRuntime { image, command: _, user, pull, mut mounts, shared_memory_bytes, credentials } =
        message;
    if !user.is_empty() {
        let rule = "must be empty: a worker runs as its tenant's user of the host";
        found.push(Violation::new(below(at, "user"), rule));
    }
    bound(&below(at, "mounts"), &mut mounts, limits::CONTAINER_MOUNTS_MAX, found);
    let mount = |message: v1::ContainerMount| Mount {
        source: message.source,
        target: message.target,
        read_only: message.read_only,
    };
    Container {
        image,
        pull: one_of(at, "pull", pull, found),
        mounts: mounts.into_iter().map(mount).collect(),
        shared_memory_bytes,
        credentials: (!credentials.is_empty())
            .then(|| found.take(checked_name(&below(at, "credentials"), &credentials)))
            .flatten(),
    }
}

/// The same for an agent, which takes no order that breaks a rule.
///
/// # Errors
/// The first rule that it breaks.
pub fn launched_container(at: &str, message: v1::ContainerRuntime) -> Result<Container, Violation> {
    let mut found = Found::default();
    let container = container_from_proto(at, message, &mut found);
    let mut violations = found.into_violations();
    container.check(at, &mut violations);
    match violations.into_iter().next() {
        Some(violation) => Err(violation),
        None => Ok(container),
    }
}

/// A message without a command.
#[must_use]
pub fn container_to_proto(container: &Container) -> v1::ContainerRuntime {
    let mount = |mount: &Mount| v1::ContainerMount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        read_only: mount.read_only,
    };
    v1::ContainerRuntime {
        image: container.image.clone(),
        command: Vec::new(),
        user: String::new(),
        pull: number(container.pull),
        mounts: container.mounts.iter().map(mount).collect(),
        shared_memory_bytes: container.shared_memory_bytes,
        credentials: container.credentials.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}
