//! What workers ask of accelerators, and where they have to be with respect to each other.

use muster_types::tpu::{SHAPE_RULE, SliceRequest, SliceShape};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, DeviceAmount, Segment, Spread, TopologyRule, Violation,
    fleet::checked_name, limits,
};

use super::{Found, below, bound, shown};
use crate::closed::{given_from_proto, number, number_or_zero, value_from_proto};
use crate::v1;
use v1::accelerator_request::Amount;

const THROUGHPUT_MILLI_DEFAULT: u32 = 1_000;
/// Chips of the hosts of a slice when nobody says otherwise: every generation has hosts of four.
const SLICE_HOST_CHIPS_DEFAULT: u16 = 4;

/// Accelerators of a worker, by a group that forms no slice. `at` is the path of the message itself.
///
/// # Errors
/// Lists every field that breaks a rule of the form; [`AcceleratorRequest::check`] knows the others.
pub fn accelerator_request_from_proto(
    at: &str,
    message: &v1::AcceleratorRequest,
) -> Result<AcceleratorRequest, Vec<Violation>> {
    let mut found = Found::default();
    let mut checked = Vec::new();
    let request = accelerators(at, message.clone(), None, &mut found);
    request.check(&mut checked);
    found.extend(checked.into_iter().map(|violation| violation.under(at)).collect());
    if found.is_empty() { Ok(request) } else { Err(found.into_violations()) }
}

/// As a message; nothing of it is left to a default.
#[must_use]
pub fn accelerator_request_to_proto(value: &AcceleratorRequest) -> v1::AcceleratorRequest {
    let choices = value.choices.iter().map(|choice| v1::AcceleratorChoice {
        r#type: choice.kind.to_string(),
        throughput_milli: choice.throughput_milli,
    });
    let amount = match value.amount {
        DeviceAmount::Whole(count) => Amount::Count(count.into()),
        DeviceAmount::Share(milli) => Amount::ShareMilli(milli.into()),
    };
    v1::AcceleratorRequest { choices: choices.collect(), amount: Some(amount) }
}

/// A request with stand-ins for what is wrong. Without an amount it is `chips`, which a slice asks for.
pub(super) fn accelerators(
    at: &str,
    message: v1::AcceleratorRequest,
    chips: Option<u16>,
    found: &mut Found,
) -> AcceleratorRequest {
    let mut messages = message.choices;
    bound(&below(at, "choices"), &mut messages, limits::ACCELERATOR_CHOICES_MAX, found);
    let mut choices = Vec::with_capacity(messages.len());
    for (index, choice) in messages.into_iter().enumerate() {
        choices.extend(accelerator_choice(&below(at, &format!("choices[{index}]")), &choice, found));
    }
    let devices = |field: &str, value: u32, max: u16, found: &mut Found| {
        let in_bounds = u16::try_from(value).ok().filter(|value| (1..=max).contains(value));
        if in_bounds.is_none() {
            found.push(Violation::limit(&below(at, field), value.into(), 1, max.into()));
        }
        in_bounds.unwrap_or(1)
    };
    let amount = match (message.amount, chips) {
        (Some(Amount::Count(count)), _) => {
            DeviceAmount::Whole(devices("count", count, limits::HOST_DEVICES_MAX, found))
        }
        (Some(Amount::ShareMilli(milli)), _) => {
            DeviceAmount::Share(devices("share_milli", milli, 999, found))
        }
        (None, Some(chips)) => DeviceAmount::Whole(chips),
        (None, None) => {
            found.push(Violation::new(below(at, "count"), "must be given, or share_milli"));
            DeviceAmount::Whole(1)
        }
    };
    AcceleratorRequest { choices, amount }
}

fn accelerator_choice(
    at: &str,
    message: &v1::AcceleratorChoice,
    found: &mut Found,
) -> Option<AcceleratorChoice> {
    let kind = found.take(checked_name(&below(at, "type"), &message.r#type));
    let max = limits::THROUGHPUT_MILLI_MAX;
    let throughput_milli = match message.throughput_milli {
        0 => THROUGHPUT_MILLI_DEFAULT,
        value if value > max => {
            let field = below(at, "throughput_milli");
            found.push(Violation::limit(&field, value.into(), 1, max.into()));
            THROUGHPUT_MILLI_DEFAULT
        }
        value => value,
    };
    Some(AcceleratorChoice { kind: kind?, throughput_milli })
}

/// The slices of a group. Whether the generation offers the shape is the types' to say.
pub(super) fn slice(at: &str, message: &v1::SliceRequest, found: &mut Found) -> Option<SliceRequest> {
    let shape = SliceShape::parse(&message.shape).ok_or_else(|| {
        let got = shown(&message.shape);
        Violation::new(below(at, "shape"), format!("must be {SHAPE_RULE}, got {got}"))
    });
    let count = u16::try_from(message.count.max(1))
        .map_err(|_| Violation::limit(&below(at, "count"), message.count.into(), 1, u16::MAX.into()));
    let (shape, count) = (found.take(shape), found.take(count));
    Some(SliceRequest { shape: shape?, count: count? })
}

/// Chips of each worker of a slice when nobody says otherwise.
pub(super) fn slice_chips(slice: &SliceRequest) -> u16 {
    slice.chips_per_worker(SLICE_HOST_CHIPS_DEFAULT)
}

/// Workers of a group that does not say how many: one to each host of its slices. One when hosts of
/// that size form no such slice; the slice's own rule reports it then.
pub(super) fn slice_workers(slice: &SliceRequest, request: Option<&AcceleratorRequest>) -> u32 {
    let chips = match request.map(|request| request.amount) {
        // Fewer chips than a host has are all that a slice smaller than a host needs.
        Some(DeviceAmount::Whole(count)) if count != slice_chips(slice) => count,
        _ => SLICE_HOST_CHIPS_DEFAULT,
    };
    slice.workers(chips).unwrap_or(1)
}

/// As a message.
pub(super) fn slice_to_proto(value: &SliceRequest) -> v1::SliceRequest {
    v1::SliceRequest { shape: value.shape.to_string(), count: value.count.into() }
}

pub(super) fn topology(at: &str, message: Option<v1::TopologyRule>, found: &mut Found) -> TopologyRule {
    let Some(message) = message else { return TopologyRule::default() };
    let spread = message.spread.and_then(|spread| {
        let field = below(at, "spread.level");
        let level = given_from_proto(&field, spread.level);
        Some(Spread { level: found.take(level)?, workers_max: spread.max_workers })
    });
    let mut messages = message.segments;
    bound(&below(at, "segments"), &mut messages, limits::SEGMENTS_MAX, found);
    let mut segments = Vec::with_capacity(messages.len());
    for (place, segment) in messages.into_iter().enumerate() {
        let field = below(at, &format!("segments[{place}].level"));
        let level = found.take(given_from_proto(&field, segment.level));
        segments.extend(level.map(|level| Segment { level, workers: segment.workers }));
    }
    let mut level =
        |field: &str, number: i32| found.take(value_from_proto(&below(at, field), number)).flatten();
    TopologyRule {
        required: level("required", message.required),
        preferred: level("preferred", message.preferred),
        balanced: message.balanced,
        segment_workers: message.segment_workers,
        segments,
        spread,
    }
}

/// As a message; absent for no rule.
pub(super) fn topology_to_proto(value: &TopologyRule) -> Option<v1::TopologyRule> {
    if value.is_free() {
        return None;
    }
    Some(v1::TopologyRule {
        required: number_or_zero(value.required),
        preferred: number_or_zero(value.preferred),
        balanced: value.balanced,
        segment_workers: value.segment_workers,
        segments: value
            .segments
            .iter()
            .map(|segment| v1::Segment { level: number(segment.level), workers: segment.workers })
            .collect(),
        spread: value
            .spread
            .map(|spread| v1::Spread { level: number(spread.level), max_workers: spread.workers_max }),
    })
}
