//! Why a token of an issuer is not accepted, and why an issuer is not understood.

use muster_fetch::{FetchError, StatusCode};

/// Why a token is not accepted. Names are stable. None of them tells more than who holds the token could find out from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignInRefusal {
    /// Longer than a token may be.
    TooLarge,
    /// Not of the form.
    Malformed,
    /// A name stands in its header or its claims more than once.
    RepeatedClaim,
    /// Not signed, or signed in a way that the configuration does not allow.
    Algorithm,
    /// Of an issuer that the configuration does not list.
    Issuer,
    /// Signed with a key that the issuer does not publish: not yet, or not any more.
    KeyUnknown,
    /// The keys of its issuer are not known: they could not be read for too long.
    KeysUnavailable,
    /// The signature is not by the key that it names.
    Signature,
    /// For somebody else.
    Audience,
    /// Past its end.
    Expired,
    /// Before its beginning.
    NotYetValid,
    /// Without an end, or with one that is too far away.
    Lifetime,
    /// The claim with the user's name is missing, is no name, or is an email that the issuer has not verified.
    User,
    /// No rule is for one of its groups.
    NoRule,
    /// The rule for it names a role that the policy does not define, or one that does not go with its tenant.
    Role,
    /// The rule for it names a tenant that the policy does not list.
    Tenant,
}

impl SignInRefusal {
    /// Every one.
    pub const ALL: [SignInRefusal; 16] = [
        SignInRefusal::TooLarge,
        SignInRefusal::Malformed,
        SignInRefusal::RepeatedClaim,
        SignInRefusal::Algorithm,
        SignInRefusal::Issuer,
        SignInRefusal::KeyUnknown,
        SignInRefusal::KeysUnavailable,
        SignInRefusal::Signature,
        SignInRefusal::Audience,
        SignInRefusal::Expired,
        SignInRefusal::NotYetValid,
        SignInRefusal::Lifetime,
        SignInRefusal::User,
        SignInRefusal::NoRule,
        SignInRefusal::Role,
        SignInRefusal::Tenant,
    ];

    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SignInRefusal::TooLarge => "TOKEN_TOO_LARGE",
            SignInRefusal::Malformed => "TOKEN_MALFORMED",
            SignInRefusal::RepeatedClaim => "TOKEN_REPEATED_CLAIM",
            SignInRefusal::Algorithm => "TOKEN_ALGORITHM",
            SignInRefusal::Issuer => "TOKEN_ISSUER",
            SignInRefusal::KeyUnknown => "TOKEN_KEY_UNKNOWN",
            SignInRefusal::KeysUnavailable => "TOKEN_KEYS_UNAVAILABLE",
            SignInRefusal::Signature => "TOKEN_SIGNATURE",
            SignInRefusal::Audience => "TOKEN_AUDIENCE",
            SignInRefusal::Expired => "TOKEN_EXPIRED",
            SignInRefusal::NotYetValid => "TOKEN_NOT_YET_VALID",
            SignInRefusal::Lifetime => "TOKEN_LIFETIME",
            SignInRefusal::User => "TOKEN_USER",
            SignInRefusal::NoRule => "TOKEN_NO_RULE",
            SignInRefusal::Role => "TOKEN_ROLE",
            SignInRefusal::Tenant => "TOKEN_TENANT",
        }
    }

    /// One sentence without a full stop, with what to do next.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            SignInRefusal::TooLarge => "it is longer than 8 KiB; ask the issuer for fewer claims",
            SignInRefusal::Malformed => "it is no signed token; `muster login` gets one",
            SignInRefusal::RepeatedClaim => "one of its claims stands there twice",
            SignInRefusal::Algorithm => "it is not signed in a way that the replica allows",
            SignInRefusal::Issuer => "the replica does not list its issuer",
            SignInRefusal::KeyUnknown => {
                "its issuer does not publish the key that signed it; sign in once more, or wait until \
                                          the replica has read the keys again"
            }
            SignInRefusal::KeysUnavailable => {
                "the replica cannot read the keys of its issuer; try another replica, or later"
            }
            SignInRefusal::Signature => "its signature is wrong",
            SignInRefusal::Audience => {
                "it is for somebody else: its `aud` is not the audience of this cluster"
            }
            SignInRefusal::Expired => "it has expired; sign in once more with `muster login`",
            SignInRefusal::NotYetValid => "it is not valid yet; check the clocks",
            SignInRefusal::Lifetime => "it has no end, or one that is further away than the replica allows",
            SignInRefusal::User => {
                "it has no name of the user, one that is no name here, or an email that nobody has verified"
            }
            SignInRefusal::NoRule => "no rule of the replica is for one of its groups; ask an operator",
            SignInRefusal::Role => {
                "the rule for it names a role that the policy does not define; ask an operator"
            }
            SignInRefusal::Tenant => {
                "the rule for it names a tenant that the policy does not list; ask an operator"
            }
        }
    }
}

/// Why the keys of an issuer could not be read. No text of it has an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("it answered {}", .0.as_u16())]
    Status(StatusCode),
    #[error("it answered more than is read")]
    TooLong,
    #[error("its key set is unusable: {0}")]
    KeySet(#[from] crate::keys::KeySetError),
    #[error("its description at /.well-known/openid-configuration names no `jwks_uri`, or another issuer")]
    Description,
    #[error("the file with its keys cannot be read: {0}")]
    File(#[source] std::io::Error),
}

/// Why signing in failed. No text of it has a code or a token.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The issuer could not be asked.
    #[error("the issuer cannot be reached: {0}")]
    Fetch(#[from] FetchError),
    /// What it answered is not of the form.
    #[error("the issuer answered what is not of the form: {0}")]
    Answer(&'static str),
    /// It has no device flow.
    #[error("the issuer has no device flow: its description names no `device_authorization_endpoint`")]
    NoDeviceFlow,
    /// It refused.
    #[error("the issuer refused: {code}")]
    Refused {
        /// As it says, of letters and `_` alone.
        code: String,
    },
    /// Nobody confirmed in time.
    #[error("nobody confirmed the code in time")]
    TimedOut,
}
