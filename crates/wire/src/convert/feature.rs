//! What the ends of an agent's session take.

use muster_types::{Feature, Features};

use crate::agent::SessionFeature;

/// Those of a message that are known here; others are of a later release.
#[must_use]
pub fn features_from_proto(takes: &[i32]) -> Features {
    let known = takes.iter().filter_map(|number| SessionFeature::try_from(*number).ok());
    known
        .filter_map(|feature| match feature {
            SessionFeature::Unspecified => None,
            SessionFeature::Health => Some(Feature::Health),
            SessionFeature::Notes => Some(Feature::Notes),
            SessionFeature::Preflight => Some(Feature::Preflight),
            SessionFeature::ForeignLoad => Some(Feature::ForeignLoad),
            SessionFeature::Exec => Some(Feature::Exec),
            SessionFeature::PortForward => Some(Feature::PortForward),
            SessionFeature::Readiness => Some(Feature::Readiness),
            SessionFeature::Images => Some(Feature::Images),
        })
        .collect()
}

/// As numbers of a message.
#[must_use]
pub fn features_to_proto(features: Features) -> Vec<i32> {
    let number = |feature| match feature {
        Feature::Health => SessionFeature::Health,
        Feature::Notes => SessionFeature::Notes,
        Feature::Preflight => SessionFeature::Preflight,
        Feature::ForeignLoad => SessionFeature::ForeignLoad,
        Feature::Exec => SessionFeature::Exec,
        Feature::PortForward => SessionFeature::PortForward,
        Feature::Readiness => SessionFeature::Readiness,
        Feature::Images => SessionFeature::Images,
    };
    features.iter().map(|feature| number(feature) as i32).collect()
}
