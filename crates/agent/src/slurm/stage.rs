//! How far the batch job of a share is known, as it is on disk.

use serde::{Deserialize, Serialize};

/// How far the batch job is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// To be submitted. `tried`: an earlier attempt may have been taken.
    Wanted { tried: bool },
    /// Slurm acknowledged this id.
    Submitted { id: u32 },
}
