//! What a replica says in the metadata of a request that it passes on.

/// On a request that another replica passed on: carried out here or refused, never passed on again.
pub(crate) const FORWARDED: &str = "muster-forwarded";
/// What a request requires, by names of features between commas.
pub(crate) const REQUIRED_FEATURES: &str = muster_wire::features::REQUIRED_FEATURES;
/// For whom it was passed on; believed of replicas alone.
pub(crate) const ON_BEHALF: &str = "muster-principal";
/// From where that caller called the replica that took the call, as an IP address; believed of replicas alone.
pub(crate) const CLIENT_ADDRESS: &str = "muster-client-address";
