//! How far the pod of a share is known, as it is on disk.

use serde::{Deserialize, Serialize};

/// How far the pod is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// To be made. `tried`: an earlier attempt may have been taken.
    Wanted {
        /// Whether the server was asked before.
        tried: bool,
    },
    /// The server has made the pod with this uid, and its secret.
    Created {
        /// What it is known by, whatever its name.
        uid: String,
    },
}
