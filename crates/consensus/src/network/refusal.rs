//! Why a peer is refused as such, in a form the other side can tell apart.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

const KEY: &str = "muster-refusal";

/// Why a peer is refused as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// It is of another cluster or means another replica.
    Stranger,
    /// It is of a time before the cluster was rebuilt.
    OldGeneration,
    /// The receiver is of a time before the cluster was rebuilt.
    NewerGeneration,
    /// The receiver lost its storage and was not taken in anew yet.
    Rejoining,
}

impl Refusal {
    const ALL: [Refusal; 4] =
        [Refusal::Stranger, Refusal::OldGeneration, Refusal::NewerGeneration, Refusal::Rejoining];

    fn name(self) -> &'static str {
        match self {
            Refusal::Stranger => "stranger",
            Refusal::OldGeneration => "old-generation",
            Refusal::NewerGeneration => "newer-generation",
            Refusal::Rejoining => "rejoining",
        }
    }

    /// As an answer; every refusal has the code `FAILED_PRECONDITION` and its name beside it.
    pub(crate) fn status(self, text: impl Into<String>) -> Status {
        let mut status = Status::new(Code::FailedPrecondition, text);
        status.metadata_mut().insert(KEY, MetadataValue::from_static(self.name()));
        status
    }

    /// What an answer says.
    pub(crate) fn of(status: &Status) -> Option<Refusal> {
        let name = status.metadata().get(KEY)?;
        Refusal::ALL.into_iter().find(|refusal| name == refusal.name())
    }
}
