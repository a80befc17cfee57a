//! Bearer tokens, without their secrets.

use muster_types::fleet::checked_name;
use muster_types::token::lifetime_violation;
use muster_types::{Token, TokenGrant, TokenId, TokenRole, Violation, limits};

use super::{Found, below};
use crate::admin;
use crate::time::{duration_from_proto, log_time};

/// A token that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// Its id, of the client's making.
    pub id: TokenId,
    /// What it is made of.
    pub grant: TokenGrant,
    /// How long it is accepted, in milliseconds.
    pub lifetime_ms: u64,
}

/// Reads which token is to be made.
///
/// # Errors
/// Lists every field that breaks a rule.
pub fn token_from_proto(message: &admin::CreateTokenRequest) -> Result<TokenRequest, Vec<Violation>> {
    let token = message.token.clone().unwrap_or_default();
    let mut found = Found::default();
    let at = |field: &str| below("token", field);
    let id: Option<TokenId> =
        found.take(token.id.parse().map_err(|violation: Violation| violation.under("token")));
    let name = found.take(checked_name(&at("name"), &token.name));
    let user = found.take(checked_name(&at("user"), &token.user));
    let tenant = match token.tenant.as_str() {
        "" => None,
        text => found.take(checked_name(&at("tenant"), text)),
    };
    let unknown = || {
        let names: Vec<&str> = TokenRole::ALL.into_iter().map(TokenRole::name).collect();
        Violation::new(at("role"), format!("must be one of {}", names.join(", ")))
    };
    let role = found.take(TokenRole::from_name(&token.role).ok_or_else(unknown));
    let lifetime = message.lifetime.map_or(Ok(limits::TOKEN_LIFETIME_MS_DEFAULT), |lifetime| {
        let ms = duration_from_proto("lifetime", lifetime)?;
        lifetime_violation(ms).map_or(Ok(ms), Err)
    });
    let lifetime_ms = found.take(lifetime);
    let secret = <[u8; 32]>::try_from(message.secret_sha256.as_slice());
    let secret = found.take(secret.map_err(|_| Violation::new("secret_sha256", "must be 32 bytes")));
    let made = match (id, name, user, role, secret, lifetime_ms) {
        (Some(id), Some(name), Some(user), Some(role), Some(secret_sha256), Some(lifetime_ms)) => {
            let grant = TokenGrant { name, user, role, tenant, secret_sha256 };
            Some(TokenRequest { id, grant, lifetime_ms })
        }
        _ => None,
    };
    // A tenant that is wrong would also count as one that is missing.
    if let Some(request) = made.as_ref().filter(|_| found.is_empty()) {
        found.extend(
            request.grant.violations().into_iter().map(|violation| violation.under("token")).collect(),
        );
    }
    match made {
        Some(request) if found.is_empty() => Ok(request),
        _ => Err(found.into_violations()),
    }
}

/// The message of a token.
#[must_use]
pub fn token_to_proto(id: TokenId, token: &Token) -> admin::Token {
    let grant = &token.grant;
    admin::Token {
        id: id.to_string(),
        name: grant.name.to_string(),
        user: grant.user.to_string(),
        role: grant.role.name().to_owned(),
        tenant: grant.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        create_time: log_time(token.created),
        expire_time: log_time(token.expires),
    }
}
