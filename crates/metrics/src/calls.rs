//! Calls of clients and agents, counted when they end.

use prometheus_client::encoding::EncodeLabelSet;

/// What a call is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// `Service/Method` of the protocol, or `other`.
    pub method: &'static str,
    /// The gRPC code, as its specification spells it.
    pub code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MethodLabel {
    pub method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub reason: &'static str,
}
