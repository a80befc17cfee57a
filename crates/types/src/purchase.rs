//! How nodes were bought.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;

/// The label of a node that states how it was bought.
const PURCHASE_LABEL: &str = "purchase";

/// How a node was bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PurchaseKind {
    /// It is the operator's own.
    Owned,
    /// It is rented by the hour.
    OnDemand,
    /// It is rented by the hour, and its owner may take it back.
    Spot,
    /// It is rented for a long time.
    Reserved,
}

impl PurchaseKind {
    /// Every value.
    pub const ALL: [PurchaseKind; 4] =
        [PurchaseKind::Owned, PurchaseKind::OnDemand, PurchaseKind::Spot, PurchaseKind::Reserved];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PurchaseKind::Owned => "owned",
            PurchaseKind::OnDemand => "on_demand",
            PurchaseKind::Spot => "spot",
            PurchaseKind::Reserved => "reserved",
        }
    }

    /// The value that a person named.
    #[must_use]
    pub fn parse(text: &str) -> Option<PurchaseKind> {
        PurchaseKind::ALL.into_iter().find(|value| value.as_str() == text)
    }

    /// How a node was bought, by its label `purchase`; none for a node without it, or with another word in it.
    #[must_use]
    pub fn of_node(node: &NodeDraft) -> Option<PurchaseKind> {
        let stated = node.labels.iter().find(|(label, _)| label.as_str() == PURCHASE_LABEL);
        stated.and_then(|(_, value)| PurchaseKind::parse(value))
    }
}

impl fmt::Display for PurchaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
