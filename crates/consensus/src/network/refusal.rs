//! Why a peer is refused as such, in a form the other side can tell apart.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

const KEY: &str = "muster-refusal";

/// Why a peer is refused as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// It is of another cluster or means another replica.
    Stranger,
    /// It speaks in another's name.
    Impostor,
    /// The caller has a generation from before the cluster was rebuilt.
    OldGeneration,
    /// The receiver has a generation from before the cluster was rebuilt.
    NewerGeneration,
    /// Both are of the same cluster by name, and of different foundings of it.
    OtherFounding,
    /// The receiver waits for its cluster to be founded.
    Unfounded,
    /// The receiver lost its storage and has not rejoined yet.
    Rejoining,
}

impl Refusal {
    const ALL: [Refusal; 7] = [
        Refusal::Stranger,
        Refusal::Impostor,
        Refusal::OldGeneration,
        Refusal::NewerGeneration,
        Refusal::OtherFounding,
        Refusal::Unfounded,
        Refusal::Rejoining,
    ];

    fn name(self) -> &'static str {
        match self {
            Refusal::Stranger => "stranger",
            Refusal::Impostor => "impostor",
            Refusal::OldGeneration => "old-generation",
            Refusal::NewerGeneration => "newer-generation",
            Refusal::OtherFounding => "other-founding",
            Refusal::Unfounded => "unfounded",
            Refusal::Rejoining => "rejoining",
        }
    }

    /// As an answer: `PERMISSION_DENIED` for an impostor, `FAILED_PRECONDITION` for the others, with its name in the
    /// metadata.
    pub(crate) fn status(self, text: impl Into<String>) -> Status {
        let code = if self == Refusal::Impostor { Code::PermissionDenied } else { Code::FailedPrecondition };
        let mut status = Status::new(code, text);
        status.metadata_mut().insert(KEY, MetadataValue::from_static(self.name()));
        status
    }

    /// What an answer says.
    pub(crate) fn of(status: &Status) -> Option<Refusal> {
        let name = status.metadata().get(KEY)?;
        Refusal::ALL.into_iter().find(|refusal| name == refusal.name())
    }
}
