//! Bearer tokens: bounds, reach and expiry.

use muster_decider::{Answer, BootstrapConfig, Command, Speculation, TokenOrder, handle};
use muster_journal::{Decision, RequestKey};
use muster_state::{GuardError, State};
use muster_types::policy::{OwnRole, PolicyDraft, TenantPolicy, Verb};
use muster_types::{
    LogTime, Parameters, Refusal, RefusalCode, Requester, TokenGrant, TokenId, TokenRole, limits,
};

use std::collections::BTreeSet;

use crate::support::{BOOTSTRAP, commit, founded_as, name, request};

const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// `vision` with `video` below it, and `speech`.
fn cluster() -> (Speculation, State) {
    cluster_as(BOOTSTRAP)
}

/// The same with other parameters.
fn cluster_as(bootstrap: BootstrapConfig) -> (Speculation, State) {
    let (mut speculation, mut state) = founded_as(bootstrap);
    let mut draft = PolicyDraft::default();
    for (tenant, parent) in [("vision", None), ("video", Some("vision")), ("speech", None)] {
        let parent = parent.map(name);
        draft.tenants.insert(name(tenant), TenantPolicy { parent, ..TenantPolicy::default() });
    }
    let policy = Box::new(draft.check().unwrap());
    let command = Command::SetPolicy {
        request: request(u128::MAX),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    commit(&mut speculation, &mut state);
    (speculation, state)
}

fn order(n: u64, role: TokenRole, tenant: Option<&str>) -> TokenOrder {
    let grant = TokenGrant {
        name: name(&format!("t{n}")),
        user: name("ada"),
        role,
        tenant: tenant.map(name),
        secret_sha256: [7; 32],
        own_role: None,
    };
    TokenOrder {
        request: request(u128::from(n)),
        by: Requester::default(),
        acts_for: None,
        token: TokenId(n),
        grant,
        lifetime_ms: DAY_MS,
    }
}

fn create(speculation: &mut Speculation, order: TokenOrder) -> Result<Answer, Refusal> {
    handle(speculation, &Command::CreateToken(Box::new(order)))
}

fn revoke(
    speculation: &mut Speculation,
    n: u128,
    acts_for: Option<&str>,
    token: u64,
) -> Result<Answer, Refusal> {
    let command = Command::RevokeToken {
        request: request(n),
        by: Requester::default(),
        acts_for: acts_for.map(name),
        token: TokenId(token),
    };
    handle(speculation, &command)
}

fn code(answer: Result<Answer, Refusal>) -> Option<RefusalCode> {
    answer.err().map(|refusal| refusal.code)
}

#[test]
fn a_token_is_accepted_until_it_expires_or_is_revoked() {
    let (mut speculation, mut state) = cluster();
    let made = order(1, TokenRole::Submitter, Some("vision"));
    let at = create(&mut speculation, made.clone()).unwrap();
    assert_eq!(create(&mut speculation, made.clone()).unwrap(), at, "repeating it changes nothing");
    let other = TokenOrder { token: TokenId(9), ..made };
    assert_eq!(code(create(&mut speculation, other)), Some(RefusalCode::RequestIdReused));
    create(&mut speculation, order(2, TokenRole::Viewer, None)).unwrap();
    commit(&mut speculation, &mut state);
    let token = state.token(TokenId(1)).unwrap().clone();
    assert_eq!(token.expires, token.created.plus_ms(DAY_MS));
    let is_live = |state: &State, now: LogTime| state.live_token(TokenId(1), now).is_some();
    assert!(is_live(&state, LogTime(0)) && is_live(&state, token.expires.minus_ms(1)));
    assert!(!is_live(&state, token.expires), "at the very moment");
    assert!(state.live_token(TokenId(3), LogTime(0)).is_none());

    assert_eq!(code(revoke(&mut speculation, 10, None, 3)), Some(RefusalCode::TokenNotFound));
    let at = revoke(&mut speculation, 11, None, 1).unwrap();
    assert_eq!(revoke(&mut speculation, 11, None, 1).unwrap(), at, "repeating it changes nothing");
    assert_eq!(code(revoke(&mut speculation, 12, None, 1)), Some(RefusalCode::TokenNotFound));
    commit(&mut speculation, &mut state);
    assert!(!is_live(&state, LogTime(0)) && state.live_token(TokenId(2), LogTime(0)).is_some());
    // Its name is free again.
    let again =
        TokenOrder { token: TokenId(4), request: request(13), ..order(1, TokenRole::Viewer, Some("vision")) };
    create(&mut speculation, again).unwrap();
}

#[test]
fn a_token_whose_tenant_is_gone_is_refused() {
    let (mut speculation, mut state) = cluster();
    create(&mut speculation, order(1, TokenRole::Submitter, Some("speech"))).unwrap();
    create(&mut speculation, order(2, TokenRole::Viewer, None)).unwrap();
    commit(&mut speculation, &mut state);
    assert!(state.live_token(TokenId(1), LogTime(0)).is_some());
    let policy = Box::new(PolicyDraft::default().check().unwrap());
    let command = Command::SetPolicy {
        request: request(50),
        by: muster_types::Requester::default(),
        policy,
        expected_version: None,
    };
    handle(&mut speculation, &command).unwrap();
    commit(&mut speculation, &mut state);
    assert!(state.live_token(TokenId(1), LogTime(0)).is_none());
    assert!(state.live_token(TokenId(2), LogTime(0)).is_some());
}

#[test]
fn bad_tokens_are_refused_and_change_nothing() {
    let (mut speculation, mut state) = cluster();
    create(&mut speculation, order(1, TokenRole::Submitter, Some("vision"))).unwrap();
    commit(&mut speculation, &mut state);
    let before = state.rows_digest();
    let named = |n, text: &str, tenant| {
        let mut order = order(n, TokenRole::Viewer, tenant);
        order.grant.name = name(text);
        order
    };
    let lasting = |n, lifetime_ms| TokenOrder { lifetime_ms, ..order(n, TokenRole::Viewer, None) };
    let field = RefusalCode::InvalidField;
    for (order, expected) in [
        (order(2, TokenRole::Submitter, None), field),
        (order(3, TokenRole::Admin, Some("vision")), field),
        (order(4, TokenRole::Submitter, Some("nobody")), field),
        (lasting(5, limits::TOKEN_LIFETIME_MS_MIN - 1), field),
        (lasting(6, limits::TOKEN_LIFETIME_MS_MAX + 1), field),
        (named(7, "t1", Some("vision")), RefusalCode::TokenExists),
        (TokenOrder { request: request(8), ..named(1, "other", None) }, RefusalCode::TokenExists),
    ] {
        let shown = format!("{order:?}");
        assert_eq!(code(create(&mut speculation, order)), Some(expected), "{shown}");
    }
    commit(&mut speculation, &mut state);
    assert_eq!(state.rows_digest(), before);
    // The same name is another token's in another tenant.
    create(&mut speculation, named(9, "t1", Some("speech"))).unwrap();
}

#[test]
fn who_is_bound_to_a_tenant_makes_and_revokes_tokens_below_it() {
    let (mut speculation, _) = cluster();
    let by_vision = |order: TokenOrder| TokenOrder { acts_for: Some(name("vision")), ..order };
    let denied = Some(RefusalCode::PermissionDenied);
    for (n, role, tenant, expected) in [
        (1, TokenRole::Submitter, Some("vision"), None),
        (2, TokenRole::Viewer, Some("video"), None),
        (3, TokenRole::Submitter, Some("speech"), denied),
        (4, TokenRole::Viewer, None, denied),
        (5, TokenRole::TenantAdmin, Some("vision"), denied),
        (6, TokenRole::Operator, None, denied),
        (7, TokenRole::Admin, None, denied),
    ] {
        assert_eq!(
            code(create(&mut speculation, by_vision(order(n, role, tenant)))),
            expected,
            "{role} {tenant:?}"
        );
    }
    create(&mut speculation, order(8, TokenRole::Submitter, Some("speech"))).unwrap();
    create(&mut speculation, order(9, TokenRole::Admin, None)).unwrap();
    let unknown = Some(RefusalCode::TokenNotFound);
    for (n, token, expected) in [(20, 8, unknown), (21, 9, unknown), (22, 10, unknown), (23, 2, None)] {
        assert_eq!(code(revoke(&mut speculation, n, Some("vision"), token)), expected, "{token}");
    }
}

/// Who has stolen the token of one administrator of a tenant cannot keep the others out.
#[test]
fn who_is_bound_to_a_tenant_revokes_no_administrator_but_itself() {
    let (mut speculation, _) = cluster();
    for (n, tenant) in [(1, "vision"), (2, "vision"), (3, "video")] {
        create(&mut speculation, order(n, TokenRole::TenantAdmin, Some(tenant))).unwrap();
    }
    for (n, token) in [(20, 2), (21, 3)] {
        let refused = code(revoke(&mut speculation, n, Some("vision"), token));
        assert_eq!(refused, Some(RefusalCode::TokenNotFound), "{token}");
    }
    let who = format!("tenant/vision/ada+token/{}", TokenId(1));
    let own = Command::RevokeToken {
        request: request(22),
        by: Requester::named(who, false),
        acts_for: Some(name("vision")),
        token: TokenId(1),
    };
    handle(&mut speculation, &own).unwrap();
    revoke(&mut speculation, 23, None, 2).unwrap();
}

/// Each request is remembered by its id: a tenant does not fill the table of them with tokens that it makes and revokes.
#[test]
fn tokens_are_not_made_and_revoked_without_end() {
    let parameters = Parameters { requests_held_max: 1_000, ..Parameters::DEFAULT };
    let (mut speculation, mut state) = cluster_as(BootstrapConfig { parameters, ..BOOTSTRAP });
    let mut refused = None;
    for n in 1..1_000 {
        let made =
            TokenOrder { acts_for: Some(name("vision")), ..order(n, TokenRole::Viewer, Some("video")) };
        if let Err(refusal) = create(&mut speculation, made) {
            refused = Some(refusal);
            break;
        }
        revoke(&mut speculation, u128::from(10_000 + n), Some("vision"), n).unwrap();
        if n % 100 == 0 {
            commit(&mut speculation, &mut state);
        }
    }
    let refused = refused.expect("it is refused in time");
    assert_eq!(refused.code, RefusalCode::StateFull, "{refused:?}");
    assert!(refused.metadata.contains(&("limit", "requests_held_share".to_owned())), "{refused:?}");
    assert!(refused.metadata.contains(&("tenant", "vision".to_owned())), "{refused:?}");
    commit(&mut speculation, &mut state);
    assert!(state.requests_count() < 1_000);
    // An operator is not held up, and nobody is who takes a token back.
    create(&mut speculation, order(5_000, TokenRole::Viewer, Some("vision"))).unwrap();
    revoke(&mut speculation, 50_000, Some("vision"), 5_000).unwrap();
}

#[test]
fn a_tenant_has_no_more_tokens_than_it_may() {
    let (mut speculation, mut state) = cluster();
    let max = limits::TENANT_TOKENS_MAX as u64;
    for n in 0..max {
        create(&mut speculation, order(n, TokenRole::Viewer, Some("vision"))).unwrap();
    }
    let more = create(&mut speculation, order(max, TokenRole::Viewer, Some("vision"))).unwrap_err();
    assert_eq!(more.code, RefusalCode::StateFull, "{more}");
    create(&mut speculation, order(max + 1, TokenRole::Viewer, Some("video"))).unwrap();
    revoke(&mut speculation, 1_000, None, 0).unwrap();
    create(&mut speculation, order(max + 2, TokenRole::Viewer, Some("vision"))).unwrap();
    commit(&mut speculation, &mut state);
    assert_eq!(state.tokens().count() as u64, max + 1);
}

/// Every replica refuses what no honest leader records.
#[test]
fn the_guard_refuses_what_breaks_a_rule() {
    let (mut speculation, mut state) = cluster();
    create(&mut speculation, order(1, TokenRole::Viewer, None)).unwrap();
    commit(&mut speculation, &mut state);
    let key = |n| RequestKey { id: request(n), fingerprint: 1 };
    let created = |n: u128, by: &Requester, order: TokenOrder| Decision::TokenCreated {
        request: key(n),
        by: by.clone(),
        token: order.token,
        grant: Box::new(order.grant),
        lifetime_ms: order.lifetime_ms,
    };
    let nobody = Requester::default();
    let wrong = Requester::named("a b".into(), false);
    let revoked = |n, token| Decision::TokenRevoked {
        request: key(n),
        by: Requester::default(),
        token: TokenId(token),
    };
    let short = TokenOrder { lifetime_ms: 1, ..order(9, TokenRole::Viewer, None) };
    for (expected, decision) in [
        (GuardError::RequestRepeated, created(1, &nobody, order(9, TokenRole::Viewer, None))),
        (GuardError::Limit, created(99, &wrong, order(9, TokenRole::Viewer, None))),
        (GuardError::Limit, created(99, &nobody, order(9, TokenRole::Submitter, None))),
        (GuardError::Limit, created(99, &nobody, short)),
        (GuardError::TokenExists, created(99, &nobody, order(1, TokenRole::Viewer, Some("vision")))),
        (GuardError::RequestRepeated, revoked(1, 1)),
        (GuardError::NothingToDo, revoked(99, 2)),
    ] {
        assert_eq!(state.check(&decision), Err(expected), "{decision:?}");
    }
}

/// Puts the policy of `cluster` in force once more, with these roles.
fn set_roles(
    speculation: &mut Speculation,
    n: u128,
    roles: &[(&str, TokenRole, &[Verb])],
) -> Result<Answer, Refusal> {
    let mut draft = PolicyDraft::clone(&speculation.state().policy().policy);
    draft.roles = roles
        .iter()
        .map(|(text, part_of, verbs)| {
            let verbs = verbs.iter().copied().collect();
            (name(text), OwnRole { part_of: *part_of, verbs, regions: BTreeSet::new() })
        })
        .collect();
    let command = Command::SetPolicy {
        request: request(n),
        by: Requester::default(),
        policy: Box::new(draft.check().unwrap()),
        expected_version: None,
    };
    handle(speculation, &command)
}

#[test]
fn a_token_has_a_role_of_the_policy_for_as_long_as_the_policy_defines_it() {
    let (mut speculation, mut state) = cluster();
    let own = |n, role, tenant, text: &str| {
        let mut order = order(n, role, tenant);
        order.grant.own_role = Some(name(text));
        order
    };
    let field = Some(RefusalCode::InvalidField);
    let submits: &[Verb] = &[Verb::Read, Verb::Submit];
    // Nobody has defined it, it is a part of another role, or it is no role of the policy.
    assert_eq!(code(create(&mut speculation, own(1, TokenRole::Viewer, None, "ci"))), field);
    set_roles(&mut speculation, 100, &[("ci", TokenRole::Submitter, submits)]).unwrap();
    assert_eq!(code(create(&mut speculation, own(2, TokenRole::Viewer, None, "ci"))), field);
    assert_eq!(code(create(&mut speculation, own(3, TokenRole::Admin, None, "ci"))), field);
    let made = own(4, TokenRole::Submitter, Some("vision"), "ci");
    create(&mut speculation, made).unwrap();
    // Who administers the tenant may grant a part of what it may grant, and of nothing else.
    let boss =
        TokenOrder { acts_for: Some(name("vision")), ..own(5, TokenRole::Submitter, Some("video"), "ci") };
    create(&mut speculation, boss).unwrap();
    set_roles(
        &mut speculation,
        101,
        &[("ci", TokenRole::Submitter, submits), ("on-call", TokenRole::Operator, &[Verb::Cordon])],
    )
    .unwrap();
    let beyond =
        TokenOrder { acts_for: Some(name("vision")), ..own(6, TokenRole::Operator, None, "on-call") };
    assert_eq!(code(create(&mut speculation, beyond)), Some(RefusalCode::PermissionDenied));
    commit(&mut speculation, &mut state);
    let before = state.rows_digest();

    // In use: it is neither removed nor made a part of another role, and nothing changes.
    assert_eq!(code(set_roles(&mut speculation, 102, &[])), field);
    assert_eq!(code(set_roles(&mut speculation, 103, &[("ci", TokenRole::Operator, submits)])), field);
    commit(&mut speculation, &mut state);
    assert_eq!(state.rows_digest(), before);
    assert!(state.live_token(TokenId(4), LogTime(0)).is_some());
    // What it may can change, and it can go when no token has it.
    set_roles(&mut speculation, 104, &[("ci", TokenRole::Submitter, &[Verb::Read])]).unwrap();
    for (n, token) in [(105, 4), (106, 5)] {
        revoke(&mut speculation, n, None, token).unwrap();
    }
    set_roles(&mut speculation, 107, &[]).unwrap();
}
