//! Series that are read when somebody asks: their values, and how they are written.

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::Error;

use crate::facts::ProcessFacts;
use crate::families::{self, Family, Kind};

/// Series of one family: label values and the value, where it is known.
pub(crate) struct Rows<'a> {
    family: Family,
    rows: Vec<(Vec<&'a str>, f64)>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(family: Family) -> Rows<'a> {
        Rows { family, rows: Vec::new() }
    }

    pub(crate) fn one(family: Family, value: Option<f64>) -> Rows<'a> {
        Rows { family, rows: value.into_iter().map(|value| (Vec::new(), value)).collect() }
    }

    pub(crate) fn row<const N: usize>(&mut self, labels: [&'a str; N], value: f64) {
        self.rows.push((labels.to_vec(), value));
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let Family { name, kind, labels, help } = self.family;
        let shown = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Info => MetricType::Info,
            Kind::Gauge | Kind::Histogram => MetricType::Gauge,
        };
        let mut series = encoder.encode_descriptor(name, help, None, shown)?;
        for (values, value) in &self.rows {
            let pairs: Vec<(&str, &str)> = labels.iter().copied().zip(values.iter().copied()).collect();
            if kind == Kind::Info {
                series.encode_info(&pairs)?;
            } else if pairs.is_empty() {
                encode_value(kind, *value, &mut series)?;
            } else {
                encode_value(kind, *value, &mut series.encode_family(&pairs)?)?;
            }
        }
        Ok(())
    }
}

fn encode_value(kind: Kind, value: f64, encoder: &mut MetricEncoder<'_>) -> Result<(), Error> {
    match kind {
        Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the text format has floating point values; 2^53 is exact enough"
)]
pub(crate) fn count(value: u64) -> f64 {
    value as f64
}

pub(crate) fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Thousandths as units.
pub(crate) fn units(milli: u64) -> f64 {
    count(milli) / 1_000.0
}

/// Billionths as units.
pub(crate) fn billionths(nano: u64) -> f64 {
    count(nano) / 1_000_000_000.0
}

/// Millionths as units.
pub(crate) fn millionths(micro: u64) -> f64 {
    count(micro) / 1_000_000.0
}

pub(crate) fn days(value: i64) -> f64 {
    value as f64
}

/// What every process says of itself.
pub(crate) fn process(facts: ProcessFacts) -> Vec<Rows<'static>> {
    vec![
        Rows::one(families::RESIDENT, facts.resident_bytes.map(count)),
        Rows::one(families::CPU, facts.cpu_ms.map(units)),
        Rows::one(families::DESCRIPTORS, facts.open_descriptors.map(count)),
        Rows::one(families::SPANS_DROPPED, Some(count(facts.trace_spans_dropped))),
    ]
}

/// Everything that is registered, in the text format.
pub(crate) fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    if encode(&mut text, registry).is_err() {
        text.clear();
    }
    text
}
