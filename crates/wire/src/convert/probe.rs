//! What a probe of the network measured.

use muster_types::probe::{Finding, Link, LinkOutcome, Ring};
use muster_types::{Violation, limits};

use super::below;
use crate::{admin, v1};

/// Links that one node may speak of: both directions to every other of the largest probe.
pub const PROBE_LINKS_MAX: usize = 2_048;

/// The links that an agent measured. `at` is the path of the field.
///
/// # Errors
/// When there are too many, or a text is too long. The load of the hosts is not taken from them.
pub fn probe_links_from_proto(at: &str, messages: &[v1::ProbeLink]) -> Result<Vec<Link>, Vec<Violation>> {
    if messages.len() > PROBE_LINKS_MAX {
        return Err(vec![Violation::limit(at, messages.len() as u64, 0, PROBE_LINKS_MAX as u64)]);
    }
    let mut links = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate() {
        if message.failure.len() > limits::TEXT_BYTES_MAX {
            let field = below(&format!("{at}[{place}]"), "failure");
            let (size, max) = (message.failure.len() as u64, limits::TEXT_BYTES_MAX as u64);
            return Err(vec![Violation::limit(&field, size, 0, max)]);
        }
        let outcome = if message.failure.is_empty() {
            LinkOutcome::Measured { rate: message.bytes_per_s, round_trip_us: message.round_trip_us }
        } else {
            LinkOutcome::Failed(message.failure.clone())
        };
        links.push(Link { from: message.from, to: message.to, outcome, load_milli: 0 });
    }
    Ok(links)
}

/// As a message.
#[must_use]
pub fn probe_link_to_proto(link: &Link) -> v1::ProbeLink {
    let (bytes_per_s, round_trip_us, failure) = match &link.outcome {
        LinkOutcome::Measured { rate, round_trip_us } => (*rate, *round_trip_us, String::new()),
        LinkOutcome::Failed(why) => (0, 0, why.clone()),
    };
    let load_milli = link.load_milli.into();
    v1::ProbeLink { from: link.from, to: link.to, bytes_per_s, round_trip_us, failure, load_milli }
}

/// The ring as one node saw it.
#[must_use]
pub fn probe_ring_from_proto(message: &v1::ProbeRing) -> Ring {
    let v1::ProbeRing { host, bytes, duration_us, correct } = *message;
    Ring { host, bytes, duration_us, correct }
}

/// As a message.
#[must_use]
pub fn probe_ring_to_proto(ring: &Ring) -> v1::ProbeRing {
    let Ring { host, bytes, duration_us, correct } = *ring;
    v1::ProbeRing { host, bytes, duration_us, correct }
}

/// As a message, for nodes with these names.
#[must_use]
pub fn probe_finding_to_proto(finding: &Finding, names: &[String]) -> admin::ProbeFinding {
    let name = |host: u32| names.get(host as usize).cloned().unwrap_or_default();
    admin::ProbeFinding {
        node_name: name(finding.host),
        other_node_name: finding.other.map(name).unwrap_or_default(),
        message: finding.text.clone(),
        at_fault: finding.is_blamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_come_back_and_too_much_is_refused() {
        let links = [
            Link {
                from: 1,
                to: 2,
                outcome: LinkOutcome::Measured { rate: 7, round_trip_us: 8 },
                load_milli: 0,
            },
            Link { from: 2, to: 1, outcome: LinkOutcome::Failed("no route".into()), load_milli: 0 },
        ];
        let messages: Vec<v1::ProbeLink> = links.iter().map(probe_link_to_proto).collect();
        assert_eq!(probe_links_from_proto("links", &messages).unwrap(), links);
        let many = vec![messages[0].clone(); PROBE_LINKS_MAX + 1];
        assert_eq!(probe_links_from_proto("links", &many).unwrap_err()[0].field, "links");
        let long = v1::ProbeLink { failure: "x".repeat(limits::TEXT_BYTES_MAX + 1), ..Default::default() };
        assert_eq!(probe_links_from_proto("links", &[long]).unwrap_err()[0].field, "links[0].failure");
    }
}
