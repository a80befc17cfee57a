//! Who may take part: admitted nodes and revoked certificates, in one table.

use muster_types::{Approval, CertificateSerial, LogIndex, LogTime, Name, NodeAdmission, Revocation};
use serde::{Deserialize, Serialize};

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum DoorKey {
    /// Which nodes are admitted.
    Admission,
    /// A node by its name.
    Node(Name),
    /// A revoked certificate.
    Certificate(CertificateSerial),
}

/// The row for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DoorRow {
    Admission(AdmissionRow),
    Node(Approval),
    Certificate(Revocation),
}

/// Which nodes are admitted, as an operator has said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionRow {
    /// The record that set it.
    pub version: LogIndex,
    /// When.
    pub set_at: LogTime,
    /// All of it.
    pub admission: NodeAdmission,
}
