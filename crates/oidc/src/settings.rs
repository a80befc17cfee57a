//! What the configuration of a replica says of an issuer.

use muster_fetch::FetchRules;
use muster_types::Name;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::keys::Algorithm;

/// Issuers of one configuration.
pub const ISSUERS_MAX: usize = 8;
/// Rules of one issuer.
pub const RULES_MAX: usize = 256;

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file of the replica.
    File(PathBuf),
    /// At an address.
    Url(String),
    /// Where the issuer's description says.
    Described,
}

/// Who may what: a group of the issuer, and what its members may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The group; none for everybody whom the issuer knows.
    pub group: Option<String>,
    /// A built-in role, or one of the policy.
    pub role: Name,
    /// The tenant that they act for, with those below it.
    pub tenant: Option<Name>,
}

/// One issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerSettings {
    /// What records and people call it.
    pub name: Name,
    /// Its `iss`, exactly.
    pub url: String,
    /// For whom its tokens have to be: one of their `aud`.
    pub audience: String,
    /// Where its keys are.
    pub keys: KeySource,
    /// How its tokens may be signed.
    pub algorithms: BTreeSet<Algorithm>,
    /// How far its clock may be from that of the replica.
    pub clock_skew: Duration,
    /// How far the end of a token may be away: a token cannot be taken back.
    pub lifetime_max: Duration,
    /// The claim with the user's name.
    pub user_claim: String,
    /// What the name has to end with there, and what is taken off; may be empty.
    pub user_suffix: String,
    /// The claim with the groups.
    pub groups_claim: String,
    /// The first rule for one of its groups is the one that counts.
    pub rules: Vec<Rule>,
    /// How often its keys are read.
    pub refresh: Duration,
    /// How soon they are read again because a token names a key that is not there.
    pub refetch_gap: Duration,
    /// How long the last keys serve while they cannot be read again.
    pub keys_kept: Duration,
    /// Which addresses may be asked.
    pub fetch: FetchRules,
    /// A PEM file of the authorities that its certificate is of; none for those of the system.
    pub ca_file: Option<PathBuf>,
}
