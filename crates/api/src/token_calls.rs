//! Bearer tokens: the calls about them, apart from their service.

use muster_decider::{Command, TokenOrder};
use muster_engine::Engine;
use muster_types::{Token, TokenId, limits};
use muster_wire::admin;
use muster_wire::convert::{TokenRequest, request_id, token_from_proto, token_to_proto};
use muster_wire::status::to_status;
use tonic::Status;

use crate::controls::requester;
use crate::forward::Caller;
use crate::read::{freshness, invalid};

/// About what the longest list of tokens takes in memory.
pub(crate) const LIST_BYTES_MAX: usize = limits::TOKENS_MAX * 400;

/// The command that makes a token.
pub(crate) fn create_command(
    caller: &Caller,
    message: &admin::CreateTokenRequest,
) -> Result<Command, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    match (request_id("request_id", &message.request_id), token_from_proto(message)) {
        (Ok(request), Ok(TokenRequest { id, grant, lifetime_ms })) => {
            let by = requester(caller);
            let order = TokenOrder { request, by, acts_for, token: id, grant, lifetime_ms };
            Ok(Command::CreateToken(Box::new(order)))
        }
        (request, token) => {
            let mut violations: Vec<_> = request.err().into_iter().collect();
            violations.extend(token.err().unwrap_or_default());
            Err(invalid(violations))
        }
    }
}

/// The token that a message asked for, as the state has it now.
pub(crate) fn created(engine: &Engine, message: &admin::CreateTokenRequest) -> Option<admin::Token> {
    let id: TokenId = message.token.as_ref()?.id.parse().ok()?;
    engine.view().token(id).map(|token| token_to_proto(id, token))
}

/// The command that revokes a token.
pub(crate) fn revoke_command(
    caller: &Caller,
    message: &admin::RevokeTokenRequest,
) -> Result<Command, Status> {
    let acts_for = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    match (request_id("request_id", &message.request_id), message.id.parse::<TokenId>()) {
        (Ok(request), Ok(token)) => {
            Ok(Command::RevokeToken { request, by: requester(caller), acts_for, token })
        }
        (request, token) => {
            let violations = request.err().into_iter().chain(token.err());
            Err(invalid(violations.collect()))
        }
    }
}

/// The tokens that a caller may revoke.
pub(crate) fn listed(engine: &Engine, caller: &Caller) -> Result<admin::ListTokensResponse, Status> {
    let own = caller.acts_for().map_err(|refusal| to_status(&refusal))?;
    let view = engine.reading();
    let by = caller.creator();
    let is_reached = |id: TokenId, token: &Token| {
        own.as_ref().is_none_or(|own| view.may_revoke_token(own, &by, id, &token.grant))
    };
    let reached = view.tokens().filter(|(id, token)| is_reached(*id, token));
    let tokens = reached.map(|(id, token)| token_to_proto(id, token));
    Ok(admin::ListTokensResponse { tokens: tokens.collect(), freshness: Some(freshness(engine, &view)) })
}
