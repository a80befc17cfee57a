//! Calls of clients and agents, counted when they end.

use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use std::fmt::Error;

/// What a call is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallLabels {
    /// `Service/Method` of the protocol, or `other`.
    pub method: &'static str,
    /// The gRPC code, as its specification spells it.
    pub code: &'static str,
    /// `unmet` where the call asked for a state of an age or a position that the replica did not have; else empty.
    pub bound: &'static str,
}

impl EncodeLabelSet for CallLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), Error> {
        let CallLabels { method, code, bound } = *self;
        encode_given(&[("method", method), ("code", code), ("bound", bound)], encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MethodLabel {
    pub method: &'static str,
}

impl EncodeLabelSet for MethodLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), Error> {
        encode_given(&[("method", self.method)], encoder)
    }
}

/// What a refusal is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefusalLabels {
    /// The stable name of its code.
    pub reason: &'static str,
    /// The limit that is reached, of a `STATE_FULL`; else empty.
    pub limit: &'static str,
}

impl EncodeLabelSet for RefusalLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), Error> {
        encode_given(&[("reason", self.reason), ("limit", self.limit)], encoder)
    }
}

/// Prometheus takes a label without a value for one that is not there, so none is written.
fn encode_given(
    labels: &[(&'static str, &'static str)],
    encoder: &mut LabelSetEncoder<'_>,
) -> Result<(), Error> {
    let mut given = labels.iter().filter(|(_, value)| !value.is_empty());
    given.try_for_each(|label| EncodeLabel::encode(label, encoder.encode_label()))
}

/// The series of calls that are there from the beginning: a rate over a series that begins with its first event misses that
/// event, which may be the one that an objective is about.
#[derive(Clone, Copy, Debug)]
pub struct CallSeries<'a> {
    /// Methods, each with all of the codes.
    pub methods: &'a [&'static str],
    /// The codes that say that a call was answered, or that the service failed.
    pub codes: &'a [&'static str],
    /// Methods whose durations are there as well.
    pub timed: &'a [&'static str],
    /// Every refusal.
    pub refusals: &'a [RefusalLabels],
}
