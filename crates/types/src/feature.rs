//! What the two ends of an agent's session can take, in addition to what every release takes.
//!
//! Agents and replicas are upgraded one by one, in any order: neither may send what the other would end the
//! session for, since the session carries the lease.

use core::fmt;

/// One kind of exchange within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Reports of the host's health, and repairs.
    Health,
    /// What workers say of themselves.
    Notes,
    /// Probes of the network, by hand and before a start.
    Preflight,
    /// What others hold of the node.
    ForeignLoad,
    /// Commands next to workers.
    Exec,
    /// Connections to ports of workers.
    PortForward,
    /// Workers that say that they are ready.
    Readiness,
    /// Images that the host holds, how far the images of workers are, and images to fetch ahead.
    Images,
}

impl Feature {
    /// Every one.
    pub const ALL: [Feature; 8] = [
        Feature::Health,
        Feature::Notes,
        Feature::Preflight,
        Feature::ForeignLoad,
        Feature::Exec,
        Feature::PortForward,
        Feature::Readiness,
        Feature::Images,
    ];
}

/// A set of features.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(u32);

impl Features {
    /// What a peer that says nothing takes.
    pub const NONE: Features = Features(0);

    /// All that this release knows.
    #[must_use]
    pub fn all() -> Features {
        Feature::ALL.into_iter().collect()
    }

    /// What the release before features were named took, all of it at once.
    #[must_use]
    pub fn before_names() -> Features {
        [Feature::Health, Feature::Notes, Feature::Preflight, Feature::ForeignLoad].into_iter().collect()
    }

    /// Whether it is among them.
    #[must_use]
    pub fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u32) != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those there are.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Features {
        Features(features.into_iter().fold(0, |set, feature| set | 1 << feature as u32))
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_made_of() {
        let some: Features = [Feature::Notes, Feature::ForeignLoad].into_iter().collect();
        assert!(some.has(Feature::Notes) && !some.has(Feature::Health) && !some.is_empty());
        assert_eq!(some.iter().collect::<Features>(), some);
        assert!(Features::NONE.is_empty() && Features::NONE.iter().next().is_none());
        assert_eq!(Features::all().iter().count(), Feature::ALL.len());
    }
}
