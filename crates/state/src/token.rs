//! Bearer tokens: which there are, and until when each is accepted.
//!
//! Replicas agree on expiry by log time. What lets a caller in takes the later of that and its own clock, because log time
//! stands still while nothing is recorded. Tokens that have expired stay until the next record about a token: they are
//! refused all the same.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::RequestKey;
use muster_types::token::{is_by_token, lifetime_violation};
use muster_types::{LogTime, Name, Requester, Token, TokenGrant, TokenId, limits};

use crate::effect::Effect;
use crate::guard_error::{GuardError, require};
use crate::rows::RequestAnswer;
use crate::state::State;

impl State {
    /// A token, also one that has expired a short time ago.
    #[must_use]
    pub fn token(&self, id: TokenId) -> Option<&Token> {
        self.tokens.get(&id)
    }

    /// A token that is accepted at a time, and whose tenant and role the policy still lists. What log time has passed has expired,
    /// whatever the time that is given.
    #[must_use]
    pub fn live_token(&self, id: TokenId, now: LogTime) -> Option<&Token> {
        let now = now.max(self.meta.log_time);
        let token = self.tokens.get(&id).filter(|token| token.is_live(now))?;
        let is_listed = |tenant: &Name| self.policy.policy.tenants.contains_key(tenant);
        let is_whole = token.grant.tenant.as_ref().is_none_or(is_listed) && self.knows_role(&token.grant);
        is_whole.then_some(token)
    }

    /// Whether the policy defines the role of a token, where it has one of the policy's, as a part of the same built-in role.
    #[must_use]
    pub fn knows_role(&self, grant: &TokenGrant) -> bool {
        let policy = &self.policy.policy;
        grant.own_role.as_ref().is_none_or(|own| policy.own_role(own, grant.role).is_some())
    }

    /// All tokens by id, also those that have expired a short time ago.
    pub fn tokens(&self) -> impl Iterator<Item = (TokenId, &Token)> {
        self.tokens.iter().map(|(id, token)| (*id, token))
    }

    /// The live token of this name among those of a tenant, or among those without one.
    #[must_use]
    pub fn token_named(&self, tenant: Option<&Name>, name: &Name) -> Option<TokenId> {
        self.live_tokens_of(tenant).find(|(_, token)| token.grant.name == *name).map(|(id, _)| id)
    }

    /// How many live tokens there are of a tenant, or without one.
    #[must_use]
    pub fn token_count_of(&self, tenant: Option<&Name>) -> usize {
        self.live_tokens_of(tenant).count()
    }

    /// How many live tokens there are.
    #[must_use]
    pub fn live_token_count(&self) -> usize {
        self.tokens().filter(|(_, token)| token.is_live(self.meta.log_time)).count()
    }

    fn live_tokens_of<'a>(&'a self, tenant: Option<&'a Name>) -> impl Iterator<Item = (TokenId, &'a Token)> {
        let now = self.meta.log_time;
        self.tokens().filter(move |(_, token)| token.grant.tenant.as_ref() == tenant && token.is_live(now))
    }

    /// Whether who is bound to a tenant makes such tokens: of viewers and submitters, for it and those below it.
    #[must_use]
    pub fn may_make_token(&self, own: &Name, grant: &TokenGrant) -> bool {
        let policy = &self.policy.policy;
        let is_within = |tenant: &Name| policy.ancestry(tenant).any(|above| above == own);
        grant.role.is_made_by_tenants() && grant.tenant.as_ref().is_some_and(is_within)
    }

    /// Whether who is bound to a tenant revokes this token: one that it could have made, or the one that it shows. `by` is its
    /// name, as it is recorded.
    #[must_use]
    pub fn may_revoke_token(&self, own: &Name, by: &str, id: TokenId, grant: &TokenGrant) -> bool {
        is_by_token(by, id) || self.may_make_token(own, grant)
    }

    /// What has expired counts for no bound. The log time here is that of the record before, so what expires in between
    /// still counts.
    pub(crate) fn check_token_created(
        &self,
        (request, by): (RequestKey, &Requester),
        id: TokenId,
        grant: &TokenGrant,
        lifetime_ms: u64,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid() && grant.violations().is_empty(), GuardError::Limit)?;
        require(lifetime_violation(lifetime_ms).is_none(), GuardError::Limit)?;
        require(!self.tokens.contains(&id), GuardError::TokenExists)?;
        let tenant = grant.tenant.as_ref();
        require(self.token_named(tenant, &grant.name).is_none(), GuardError::TokenExists)?;
        require(self.token_count_of(tenant) < limits::TENANT_TOKENS_MAX, GuardError::Limit)?;
        require(self.live_token_count() < limits::TOKENS_MAX, GuardError::Limit)
    }

    pub(crate) fn check_token_revoked(
        &self,
        request: RequestKey,
        by: &Requester,
        id: TokenId,
    ) -> Result<(), GuardError> {
        require(!self.requests.contains(&request.id), GuardError::RequestRepeated)?;
        require(by.is_valid(), GuardError::Limit)?;
        require(self.tokens.contains(&id), GuardError::NothingToDo)
    }

    pub(crate) fn fold_token_created(
        &mut self,
        request: RequestKey,
        id: TokenId,
        grant: &TokenGrant,
        lifetime_ms: u64,
    ) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        self.prune_tokens();
        let created = self.meta.log_time;
        let token = Token { grant: grant.clone(), created, expires: created.plus_ms(lifetime_ms) };
        self.tokens.insert(id, token);
        Vec::new()
    }

    pub(crate) fn fold_token_revoked(&mut self, request: RequestKey, id: TokenId) -> Vec<Effect> {
        self.remember(request, RequestAnswer::Done);
        self.tokens.remove(&id);
        self.prune_tokens();
        Vec::new()
    }

    /// Nobody is let in with them in any case.
    fn prune_tokens(&mut self) {
        let now = self.meta.log_time;
        let expired: Vec<TokenId> =
            self.tokens().filter(|(_, token)| !token.is_live(now)).map(|(id, _)| id).collect();
        for id in expired {
            self.tokens.remove(&id);
        }
    }

    /// Whether every row keeps its rules, as far as the row alone tells.
    pub(crate) fn check_token_rows(&self) -> Result<(), String> {
        for (id, token) in self.tokens() {
            let lifetime_ms = token.expires.since_ms(token.created);
            let is_sound =
                token.grant.violations().is_empty() && lifetime_ms <= limits::TOKEN_LIFETIME_MS_MAX;
            if !is_sound {
                return Err(format!("token {id} has a row that it may not have"));
            }
        }
        Ok(())
    }
}
