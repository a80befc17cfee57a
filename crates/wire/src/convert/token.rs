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

/// The value of a role in messages.
#[must_use]
pub fn token_role_to_proto(role: TokenRole) -> admin::TokenRole {
    match role {
        TokenRole::Viewer => admin::TokenRole::Viewer,
        TokenRole::Submitter => admin::TokenRole::Submitter,
        TokenRole::TenantAdmin => admin::TokenRole::TenantAdmin,
        TokenRole::Operator => admin::TokenRole::Operator,
        TokenRole::Drill => admin::TokenRole::Drill,
        TokenRole::Admin => admin::TokenRole::Admin,
    }
}

/// The role behind a number; none for zero, and for one that this version does not know.
#[must_use]
pub fn token_role_from_proto(number: i32) -> Option<TokenRole> {
    TokenRole::ALL.into_iter().find(|role| i32::from(token_role_to_proto(*role)) == number)
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
    let own_role = match token.own_role.as_str() {
        "" => None,
        text => found.take(checked_name(&at("own_role"), text)),
    };
    let unknown = || Violation::new(at("role"), "must be one of the roles of tokens");
    let role = found.take(token_role_from_proto(token.role).ok_or_else(unknown));
    let lifetime = message.lifetime.map_or(Ok(limits::TOKEN_LIFETIME_MS_DEFAULT), |lifetime| {
        let ms = duration_from_proto("lifetime", lifetime)?;
        lifetime_violation(ms).map_or(Ok(ms), Err)
    });
    let lifetime_ms = found.take(lifetime);
    let secret = <[u8; 32]>::try_from(message.secret_sha256.as_slice());
    let secret = found.take(secret.map_err(|_| Violation::new("secret_sha256", "must be 32 bytes")));
    let made = match (id, name, user, role, secret, lifetime_ms) {
        (Some(id), Some(name), Some(user), Some(role), Some(secret_sha256), Some(lifetime_ms)) => {
            let grant = TokenGrant { name, user, role, tenant, secret_sha256, own_role };
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
        role: token_role_to_proto(grant.role).into(),
        tenant: grant.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        create_time: log_time(token.created),
        expire_time: log_time(token.expires),
        own_role: grant.own_role.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::LogTime;

    fn asked() -> admin::CreateTokenRequest {
        let token = admin::Token {
            id: TokenId(7).to_string(),
            name: "ci".to_owned(),
            user: "ada".to_owned(),
            role: admin::TokenRole::Submitter.into(),
            tenant: "vision".to_owned(),
            ..Default::default()
        };
        admin::CreateTokenRequest { token: Some(token), secret_sha256: vec![7; 32], ..Default::default() }
    }

    #[test]
    fn a_token_goes_there_and_back() {
        let read = token_from_proto(&asked()).expect("it is whole");
        assert_eq!(read.lifetime_ms, limits::TOKEN_LIFETIME_MS_DEFAULT);
        let kept = Token { grant: read.grant, created: LogTime(1), expires: LogTime(2) };
        let shown = token_to_proto(read.id, &kept);
        let given = admin::Token { create_time: None, expire_time: None, ..shown };
        assert_eq!(Some(given), asked().token);
        for role in TokenRole::ALL {
            assert_eq!(token_role_from_proto(token_role_to_proto(role).into()), Some(role));
        }
    }

    #[test]
    fn every_wrong_field_is_named() {
        type Change = fn(&mut admin::CreateTokenRequest, &mut admin::Token);
        let cases: [(&str, Change); 10] = [
            ("token.id", |_, token| token.id = "7".to_owned()),
            ("token.name", |_, token| token.name = "No".to_owned()),
            ("token.user", |_, token| token.user.clear()),
            ("token.role", |_, token| token.role = 0),
            ("token.role", |_, token| token.role = 99),
            ("token.tenant", |_, token| token.tenant.clear()),
            ("token.tenant", |_, token| token.tenant = "a b".to_owned()),
            ("token.own_role", |_, token| token.own_role = "a b".to_owned()),
            ("lifetime", |request, _| request.lifetime = Some(crate::time::duration(1))),
            ("secret_sha256", |request, _| request.secret_sha256.push(0)),
        ];
        for (field, change) in cases {
            let mut request = asked();
            let mut token = request.token.take().unwrap_or_default();
            change(&mut request, &mut token);
            request.token = Some(token);
            let violations = token_from_proto(&request).expect_err(field);
            let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
            assert_eq!(fields, [field]);
        }
        assert!(token_from_proto(&admin::CreateTokenRequest::default()).is_err());
    }
}
