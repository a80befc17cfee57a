//! Bearer tokens of people and programs: what the replicated state knows of one.
//!
//! The secret itself is never here: the client that made the token kept it, and the state has its SHA-256 alone.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// What stands between a principal and the id of the token that spoke for it, in the name of who submitted or asked.
const BY_TOKEN: &str = "+token/";

/// The name of who submitted or asked, without the token or the issuer that spoke for it: limits of one user count what all
/// tokens of that user, its sign-ins and its certificate did together.
#[must_use]
pub fn user_of(creator: &str) -> &str {
    // No name has this sign.
    creator.split_once('+').map_or(creator, |(user, _)| user)
}

/// The token that spoke for who submitted or asked; none where it was none.
#[must_use]
pub fn token_of(creator: &str) -> Option<TokenId> {
    creator.split_once(BY_TOKEN).and_then(|(_, text)| text.parse::<TokenId>().ok())
}

/// Whether it is this token that spoke for who submitted or asked.
#[must_use]
pub fn is_by_token(creator: &str, id: TokenId) -> bool {
    token_of(creator) == Some(id)
}

/// Names a token. It is public: it says which row of the state a secret is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for TokenId {
    type Err = Violation;

    /// Sixteen lower-case hexadecimal digits, and nothing else: one spelling for each.
    fn from_str(text: &str) -> Result<TokenId, Violation> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let wrong = || {
            Violation::new("id", "must be 16 lower-case hexadecimal digits, as `muster token list` prints")
        };
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(wrong());
        }
        u64::from_str_radix(text, 16).map(TokenId).map_err(|_| wrong())
    }
}

/// What the holder of a token may do. The set is closed; the permission table of `api` says what each may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TokenRole {
    /// Looks and changes nothing. With a tenant it sees the jobs of that tenant whole.
    Viewer,
    /// Submits, cancels and reads output for its tenant and those below it.
    Submitter,
    /// The same, and makes and revokes tokens of viewers and submitters for its tenant and those below it.
    TenantAdmin,
    /// Operates nodes, and acts for every tenant.
    Operator,
    /// Runs drills: looks, makes replicas silent, moves the leadership, keeps nodes apart, and submits and cancels jobs.
    Drill,
    /// Everything that a certificate of kind `admin` may.
    Admin,
}

impl TokenRole {
    /// Every one.
    pub const ALL: [TokenRole; 6] = [
        TokenRole::Viewer,
        TokenRole::Submitter,
        TokenRole::TenantAdmin,
        TokenRole::Operator,
        TokenRole::Drill,
        TokenRole::Admin,
    ];

    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TokenRole::Viewer => "viewer",
            TokenRole::Submitter => "submitter",
            TokenRole::TenantAdmin => "tenant-admin",
            TokenRole::Operator => "operator",
            TokenRole::Drill => "drill",
            TokenRole::Admin => "admin",
        }
    }

    /// By its stable name.
    #[must_use]
    pub fn from_name(text: &str) -> Option<TokenRole> {
        TokenRole::ALL.into_iter().find(|role| role.name() == text)
    }

    /// What a token of this role has to say of a tenant: true for one, false for none, `None` where both are possible.
    #[must_use]
    pub fn needs_tenant(self) -> Option<bool> {
        match self {
            TokenRole::Viewer => None,
            TokenRole::Submitter | TokenRole::TenantAdmin => Some(true),
            TokenRole::Operator | TokenRole::Drill | TokenRole::Admin => Some(false),
        }
    }

    /// Whether who administers a tenant makes and revokes tokens of this role for it: none that could make more, or keep other
    /// administrators out.
    #[must_use]
    pub fn is_made_by_tenants(self) -> bool {
        match self {
            TokenRole::Viewer | TokenRole::Submitter => true,
            TokenRole::TenantAdmin | TokenRole::Operator | TokenRole::Drill | TokenRole::Admin => false,
        }
    }
}

impl fmt::Display for TokenRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a token is made of, apart from its id and its times.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenGrant {
    /// What people call it; one of its tenant's tokens, or of those without a tenant, has it.
    pub name: Name,
    /// Who holds it: a person, or a program.
    pub user: Name,
    /// What its holder may do.
    pub role: TokenRole,
    /// The tenant that it acts for, with those below it; none where the role acts for none or for all.
    pub tenant: Option<Name>,
    /// SHA-256 of the whole secret.
    pub secret_sha256: [u8; 32],
    /// The role of the policy that it has, which is a part of `role`; none for all of `role`.
    pub own_role: Option<Name>,
}

impl TokenGrant {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        match (self.role.needs_tenant(), &self.tenant) {
            (Some(true), None) => {
                found
                    .push(Violation::new("tenant", "must be given for the roles submitter and tenant-admin"));
            }
            (Some(false), Some(_)) => {
                found.push(Violation::new(
                    "tenant",
                    "must be left out for the roles operator, drill and admin",
                ));
            }
            _ => {}
        }
        if self.own_role.is_some() && self.role == TokenRole::Admin {
            found.push(Violation::new("own_role", "must be left out for the role admin"));
        }
        found
    }
}

/// The rule that a lifetime in milliseconds breaks.
#[must_use]
pub fn lifetime_violation(ms: u64) -> Option<Violation> {
    let (min, max) = (limits::TOKEN_LIFETIME_MS_MIN, limits::TOKEN_LIFETIME_MS_MAX);
    (!(min..=max).contains(&ms)).then(|| Violation::span("lifetime", ms, min, max))
}

/// A token as the state has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// What it was made of.
    pub grant: TokenGrant,
    /// When, by log time.
    pub created: LogTime,
    /// From this log time on it is refused.
    pub expires: LogTime,
}

impl Token {
    /// Whether it is accepted at a log time.
    #[must_use]
    pub fn is_live(&self, now: LogTime) -> bool {
        now < self.expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn an_id_has_one_spelling() {
        for id in [0, 1, 0xdead_beef, u64::MAX] {
            assert_eq!(TokenId(id).to_string().parse(), Ok(TokenId(id)));
        }
        for text in [
            "",
            "0",
            "00000000DEADBEEF",
            "+00000000deadbee",
            "00000000deadbeef0",
            " 0000000deadbeef",
            "0000000ödeadbee",
        ] {
            assert!(text.parse::<TokenId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_creator_names_its_token() {
        let by = "tenant/vision/ada+token/0000000000000007";
        assert!(is_by_token(by, TokenId(7)) && !is_by_token(by, TokenId(8)));
        assert_eq!(user_of(by), "tenant/vision/ada");
        for none in
            ["", "tenant/vision/ada", "+token/7", "0000000000000007", "x+token/0000000000000007+token/"]
        {
            assert!(!is_by_token(none, TokenId(7)), "{none}");
        }
    }

    #[test]
    fn a_role_has_a_tenant_or_none() {
        let name = |text: &str| Name::new(text).expect("a name");
        for role in TokenRole::ALL {
            assert_eq!(TokenRole::from_name(role.name()), Some(role));
            for tenant in [None, Some(name("vision"))] {
                let is_right = role.needs_tenant().is_none_or(|needed| needed == tenant.is_some());
                let grant = TokenGrant {
                    name: name("ci"),
                    user: name("ada"),
                    role,
                    tenant,
                    secret_sha256: [0; 32],
                    own_role: None,
                };
                assert_eq!(grant.violations().is_empty(), is_right, "{grant:?}");
            }
        }
        assert_eq!(TokenRole::from_name("root"), None);
    }

    #[test]
    fn a_lifetime_has_bounds() {
        let (min, max) = (limits::TOKEN_LIFETIME_MS_MIN, limits::TOKEN_LIFETIME_MS_MAX);
        for (ms, is_good) in [(0, false), (min - 1, false), (min, true), (max, true), (max + 1, false)] {
            assert_eq!(lifetime_violation(ms).is_none(), is_good, "{ms}");
        }
    }

    #[test]
    fn a_user_is_counted_without_its_tokens() {
        assert_eq!(user_of("tenant/vision/ada"), "tenant/vision/ada");
        assert_eq!(user_of(&format!("tenant/vision/ada+token/{}", TokenId(7))), "tenant/vision/ada");
        assert_eq!(user_of("tenant/vision/ada+oidc/corp"), "tenant/vision/ada");
        assert_eq!(user_of(""), "");
    }
}
