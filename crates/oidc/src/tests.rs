//! Tokens that are accepted, and every reason for which one is not.

use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::test_issuer::{TestIssuer, encoded, serve, unsigned};
use crate::{
    Algorithm, FetchRules, IssuerSettings, Issuers, JWT_BYTES_MAX, KeySource, Login, LoginError, Rule,
    SignIn, SignInRefusal, is_jwt,
};
use muster_types::Name;

const ISSUER: &str = "https://login.example";
const NOW_MS: u64 = 1_800_000_000_000;
const NOW_S: u64 = NOW_MS / 1_000;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn settings() -> IssuerSettings {
    let rule = |group: Option<&str>, role: &str, tenant: Option<&str>| Rule {
        group: group.map(str::to_owned),
        role: name(role),
        tenant: tenant.map(name),
    };
    IssuerSettings {
        name: name("corp"),
        url: ISSUER.to_owned(),
        audience: "muster".to_owned(),
        keys: KeySource::Described,
        algorithms: Algorithm::ALL.into_iter().collect(),
        clock_skew: Duration::from_secs(30),
        lifetime_max: Duration::from_secs(24 * 3_600),
        user_claim: "email".to_owned(),
        user_suffix: "@example.org".to_owned(),
        groups_claim: "groups".to_owned(),
        rules: vec![
            rule(Some("ops"), "operator", None),
            rule(Some("ML Vision"), "submitter", Some("vision")),
        ],
        refresh: Duration::from_secs(300),
        refetch_gap: Duration::from_millis(50),
        keys_kept: Duration::from_secs(3_600),
        fetch: FetchRules {
            allow_http: true,
            allowed_hosts: BTreeSet::from(["127.0.0.1".to_owned()]),
            timeout: Duration::from_secs(5),
        },
        ca_file: None,
    }
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": "muster", "sub": "7", "email": "ada@example.org",
        "groups": ["everybody", "ML Vision"], "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 600,
    })
}

/// Those claims, with others in their place; null takes one away.
fn with(more: Value) -> Value {
    let mut claims = claims();
    for (name, value) in more.as_object().into_iter().flatten() {
        match value {
            Value::Null => _ = claims.as_object_mut().map(|claims| claims.remove(name)),
            value => claims[name.as_str()] = value.clone(),
        }
    }
    claims
}

struct World {
    key: TestIssuer,
    issuers: Issuers,
}

impl World {
    fn under(settings: IssuerSettings) -> World {
        let (key, issuers) = (TestIssuer::new("k1"), Issuers::new(vec![settings]));
        issuers.set_keys(0, &key.key_set());
        World { key, issuers }
    }

    fn new() -> World {
        World::under(settings())
    }

    fn judge(&self, claims: &Value) -> Result<SignIn, SignInRefusal> {
        self.issuers.judge(&self.key.sign(claims), NOW_MS)
    }
}

#[test]
fn a_token_says_who_has_signed_in_and_the_first_rule_what_they_may() {
    let world = World::new();
    let signed_in = world.judge(&claims()).expect("it is accepted");
    assert_eq!((&*signed_in.issuer, &*signed_in.user, &*signed_in.role), ("corp", "ada", "submitter"));
    assert_eq!(signed_in.tenant, Some(name("vision")));
    assert_eq!(signed_in.expires_ms, NOW_MS + 630_000);
    let both = world.judge(&with(json!({ "groups": ["ML Vision", "ops"] }))).expect("it is accepted");
    assert_eq!(&*both.role, "operator", "the order of the rules counts");
    let single = world.judge(&with(json!({ "groups": "ops", "aud": ["other", "muster"] })));
    assert_eq!(&*single.expect("it is accepted").role, "operator");
}

#[test]
fn every_reason_has_its_name() {
    let names: BTreeSet<&str> = SignInRefusal::ALL.into_iter().map(SignInRefusal::name).collect();
    assert_eq!(names.len(), SignInRefusal::ALL.len());
    assert!(SignInRefusal::ALL.into_iter().all(|refusal| !refusal.text().ends_with('.')));
}

#[test]
fn claims_that_are_wrong_are_refused_each_for_its_reason() {
    use SignInRefusal::*;
    let world = World::new();
    let cases = [
        (json!({ "iss": "https://login.example/" }), Issuer),
        (json!({ "iss": null }), Issuer),
        (json!({ "iss": 7 }), Issuer),
        (json!({ "aud": "other" }), Audience),
        (json!({ "aud": ["other"] }), Audience),
        (json!({ "aud": null }), Audience),
        (json!({ "exp": NOW_S - 30 }), Expired),
        (json!({ "exp": 0 }), Expired),
        (json!({ "exp": null }), Lifetime),
        (json!({ "exp": "tomorrow" }), Lifetime),
        (json!({ "exp": -1 }), Lifetime),
        (json!({ "exp": NOW_S + 25 * 3_600 }), Lifetime),
        (json!({ "exp": 1e300 }), Lifetime),
        (json!({ "nbf": NOW_S + 31 }), NotYetValid),
        (json!({ "iat": NOW_S + 31 }), NotYetValid),
        (json!({ "nbf": "now" }), NotYetValid),
        (json!({ "email": null }), User),
        (json!({ "email": "ada@elsewhere.org" }), User),
        (json!({ "email": "Ada@example.org" }), User),
        (json!({ "email": "a/b@example.org" }), User),
        (json!({ "email": "@example.org" }), User),
        (json!({ "email": ["ada@example.org"] }), User),
        (json!({ "groups": null }), NoRule),
        (json!({ "groups": ["ml vision"] }), NoRule),
        (json!({ "groups": [["ops"]] }), NoRule),
        (json!({ "groups": { "ops": true } }), NoRule),
    ];
    for (change, expected) in cases {
        assert_eq!(world.judge(&with(change.clone())).err(), Some(expected), "{change}");
    }
    // Within the clock's error.
    for change in
        [json!({ "exp": NOW_S - 29 }), json!({ "nbf": NOW_S + 30 }), json!({ "exp": (NOW_S as f64) + 0.5 })]
    {
        world.judge(&with(change.clone())).unwrap_or_else(|refusal| panic!("{change}: {refusal:?}"));
    }
    assert_eq!(world.issuers.remembered_count(), 3, "what is refused is not remembered");
}

#[test]
fn what_is_not_signed_by_a_key_of_the_issuer_is_refused() {
    use SignInRefusal::*;
    let world = World::new();
    let text = claims().to_string();
    let header = |algorithm: &str| json!({ "alg": algorithm, "kid": "k1" }).to_string();
    let judge = |token: &str| world.issuers.judge(token, NOW_MS).err();
    // Without a signature, and with one that everybody can make who has the public key.
    for algorithm in ["none", "None", "HS256", "RS512", "PS256", ""] {
        let signed = unsigned(&header(algorithm), &text);
        assert_eq!(judge(&format!("{signed}.")), Some(Algorithm), "{algorithm}");
        let mac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, world.key.key_set().as_bytes());
        let tag = ring::hmac::sign(&mac, signed.as_bytes());
        assert_eq!(judge(&format!("{signed}.{}", encoded(tag.as_ref()))), Some(Algorithm), "{algorithm}");
    }
    // The key is none of the algorithm that the token names.
    assert_eq!(judge(&world.key.sign_text(&header("RS256"), &text)), Some(KeyUnknown));
    let good = world.key.sign(&claims());
    let (signed, signature) = good.rsplit_once('.').expect("three parts");
    assert_eq!(judge(&format!("{signed}.")), Some(Signature));
    assert_eq!(judge(&format!("{signed}.{}", encoded(&[0; 64]))), Some(Signature));
    let other = unsigned(&header("EdDSA"), &with(json!({ "groups": ["ops"] })).to_string());
    assert_eq!(judge(&format!("{other}.{signature}")), Some(Signature), "of another token");
    let forged = TestIssuer::new("k1");
    assert_eq!(judge(&forged.sign(&claims())), Some(Signature), "another key of the same name");
    // A key that a token brings with it is nobody's, and what it names is not asked.
    for id in ["k1", "../k1", "https://evil.example/keys#k1"] {
        let brought = json!({
            "alg": "EdDSA", "kid": id, "jwk": forged.key(), "jku": "https://evil.example/keys",
            "x5u": "https://evil.example/certificate", "x5c": ["AA"],
        });
        let expected = if id == "k1" { Signature } else { KeyUnknown };
        assert_eq!(judge(&forged.sign_text(&brought.to_string(), &text)), Some(expected), "{id}");
    }
    let unknown = TestIssuer::new("k2");
    assert_eq!(judge(&unknown.sign(&claims())), Some(KeyUnknown));
    let nameless = world.key.sign_text(&json!({ "alg": "EdDSA" }).to_string(), &text);
    assert_eq!(judge(&nameless), Some(KeyUnknown));
    // An algorithm that the configuration does not list.
    let few = IssuerSettings { algorithms: [crate::Algorithm::Rs256].into(), ..settings() };
    assert_eq!(World::under(few).judge(&claims()).err(), Some(Algorithm));
}

#[test]
fn what_is_no_token_is_refused() {
    use SignInRefusal::*;
    let world = World::new();
    let judge = |token: &str| world.issuers.judge(token, NOW_MS).err();
    let good = world.key.sign(&claims());
    assert!(is_jwt(&good));
    for wrong in
        ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", &good[1..], &format!("{good}="), &format!(" {good}")]
    {
        assert!(matches!(judge(wrong), Some(Malformed | Issuer)), "{wrong}: {:?}", judge(wrong));
    }
    for wrong in ["", "..", "a.b", "a.b.c.d", "a..c", "a.b.c=", "muster_0"] {
        assert!(!is_jwt(wrong), "{wrong}");
    }
    assert_eq!(judge(&"a".repeat(JWT_BYTES_MAX + 1)), Some(TooLarge));
    let long = with(json!({ "more": "x".repeat(JWT_BYTES_MAX) }));
    assert_eq!(judge(&world.key.sign(&long)), Some(TooLarge));
    // Twice in the header, in the claims, and within one of them.
    let header = r#"{"alg":"EdDSA","kid":"k1"}"#;
    let text = claims().to_string();
    let twice = text.replacen('{', r#"{"iss":"https://login.example","#, 1);
    assert_eq!(judge(&world.key.sign_text(header, &twice)), Some(RepeatedClaim));
    let inner = text.replacen('{', r#"{"a":{"b":1,"b":2},"#, 1);
    assert_eq!(judge(&world.key.sign_text(header, &inner)), Some(RepeatedClaim));
    let header = r#"{"alg":"EdDSA","alg":"none","kid":"k1"}"#;
    assert_eq!(judge(&world.key.sign_text(header, &text)), Some(RepeatedClaim));
    // A notice that a session has ended is no sign-in.
    let notice = with(
        json!({ "events": { "http://schemas.openid.net/event/backchannel-logout": {} }, "exp": NOW_S + 60 }),
    );
    assert_eq!(judge(&world.key.sign(&notice)), Some(Malformed));
    for header in [
        r#"{"alg":"EdDSA","kid":"k1","crit":["b64"],"b64":false}"#,
        r#"{"alg":"EdDSA","kid":"k1","typ":"logout+jwt"}"#,
        r#"["EdDSA"]"#,
    ] {
        assert_eq!(judge(&world.key.sign_text(header, &text)), Some(Malformed), "{header}");
    }
}

#[test]
fn a_key_that_is_withdrawn_ends_what_was_accepted_before() {
    let world = World::new();
    let token = world.key.sign(&claims());
    let judge = || world.issuers.judge(&token, NOW_MS);
    let signed_in = judge().expect("it is accepted");
    let (key, expires_ms) = world.issuers.key_of(signed_in.id).expect("it is remembered");
    assert_eq!(expires_ms, signed_in.expires_ms);
    assert!(world.issuers.is_accepted("corp", &key) && !world.issuers.is_accepted("other", &key));
    assert_eq!(
        world.issuers.judge(&token, NOW_MS + 630_000),
        Err(SignInRefusal::Expired),
        "also one that is remembered"
    );
    let next = TestIssuer::new("k2");
    world.issuers.set_keys(0, &json!({ "keys": [world.key.key(), next.key()] }).to_string());
    assert_eq!(judge(), Ok(signed_in), "another key next to it changes nothing");
    world.issuers.set_keys(0, &next.key_set());
    assert_eq!(judge(), Err(SignInRefusal::KeyUnknown));
    assert!(!world.issuers.is_accepted("corp", &key));
    world.issuers.judge(&next.sign(&claims()), NOW_MS).expect("the new key signs");
    world.issuers.set_keys(0, r#"{"keys":[]}"#);
    assert_eq!(judge(), Err(SignInRefusal::KeyUnknown));
}

#[test]
fn an_email_is_a_name_only_where_the_issuer_does_not_deny_that_it_is_the_holders() {
    let world = World::new();
    for said in [json!(false), json!("false"), json!("yes"), json!(1), json!({})] {
        let judged = world.judge(&with(json!({ "email_verified": said })));
        assert_eq!(judged.err(), Some(SignInRefusal::User), "{said}");
    }
    for said in [Value::Null, json!(true), json!("true")] {
        world.judge(&with(json!({ "email_verified": said }))).expect("it is accepted");
    }
    // It says nothing about other claims.
    let by_subject =
        IssuerSettings { user_claim: "sub".to_owned(), user_suffix: String::new(), ..settings() };
    World::under(by_subject).judge(&with(json!({ "email_verified": false }))).expect("it is accepted");
}

#[test]
fn a_key_that_takes_the_name_of_another_ends_what_that_one_signed() {
    let world = World::new();
    let token = world.key.sign(&claims());
    let signed_in = world.issuers.judge(&token, NOW_MS).expect("it is accepted");
    let (key, _) = world.issuers.key_of(signed_in.id).expect("it is remembered");
    let successor = TestIssuer::new("k1");
    world.issuers.set_keys(0, &successor.key_set());
    assert_eq!(world.issuers.judge(&token, NOW_MS), Err(SignInRefusal::KeyUnknown), "it was remembered");
    assert!(!world.issuers.is_accepted("corp", &key));
    world.issuers.judge(&successor.sign(&claims()), NOW_MS).expect("the successor signs");
    world.issuers.set_keys(0, &world.key.key_set());
    assert_eq!(world.issuers.judge(&token, NOW_MS), Ok(signed_in), "the first is published again");
}

#[test]
fn without_keys_nothing_is_accepted_and_old_keys_serve_for_a_while() {
    let key = TestIssuer::new("k1");
    let never = Issuers::new(vec![settings()]);
    assert_eq!(never.judge(&key.sign(&claims()), NOW_MS), Err(SignInRefusal::KeysUnavailable));
    let brief = Issuers::new(vec![IssuerSettings { keys_kept: Duration::ZERO, ..settings() }]);
    brief.set_keys(0, &key.key_set());
    assert_eq!(brief.judge(&key.sign(&claims()), NOW_MS), Err(SignInRefusal::KeysUnavailable));
    assert!(Issuers::new(Vec::new()).is_empty());
}

#[tokio::test]
async fn a_token_that_finds_no_keys_has_them_read_again_soon() {
    let issuers = Issuers::new(vec![settings()]);
    let token = TestIssuer::new("k1").sign(&claims());
    assert_eq!(issuers.judge(&token, NOW_MS), Err(SignInRefusal::KeysUnavailable));
    let issuer = issuers.all().next().expect("there is one");
    let wanted = tokio::time::timeout(Duration::from_secs(1), issuer.wanted.notified());
    assert!(wanted.await.is_ok(), "who reads the keys is told");
}

#[test]
fn what_is_remembered_is_bounded() {
    let world = World::new();
    for number in 0..4_200 {
        world.judge(&with(json!({ "jti": number }))).expect("it is accepted");
    }
    assert_eq!(world.issuers.remembered_count(), 4_096);
}

#[test]
fn signatures_of_the_other_algorithms() {
    let random = SystemRandom::new();
    let rsa = RsaKeyPair::from_pkcs8(include_bytes!("../testdata/rsa-2048.pkcs8")).expect("a key");
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
    let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
    let ec = ec.expect("a key");
    let components: ring::signature::RsaPublicKeyComponents<Vec<u8>> = rsa.public_key().into();
    let point = ec.public_key().as_ref();
    let (x, y) = (&point[1..33], &point[33..]);
    let issuers = Issuers::new(vec![settings()]);
    let keys = json!({ "keys": [
        { "kty": "RSA", "kid": "r", "n": encoded(&components.n), "e": encoded(&components.e) },
        { "kty": "EC", "crv": "P-256", "kid": "e", "x": encoded(x), "y": encoded(y) },
    ]});
    issuers.set_keys(0, &keys.to_string());
    let text = claims().to_string();
    let signed = unsigned(r#"{"alg":"RS256","kid":"r"}"#, &text);
    let mut signature = vec![0; rsa.public().modulus_len()];
    rsa.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).expect("it is signed");
    issuers.judge(&format!("{signed}.{}", encoded(&signature)), NOW_MS).expect("it is accepted");
    signature[7] ^= 1;
    let judged = issuers.judge(&format!("{signed}.{}", encoded(&signature)), NOW_MS);
    assert_eq!(judged, Err(SignInRefusal::Signature));
    let signed = unsigned(r#"{"alg":"ES256","kid":"e"}"#, &text);
    let signature = ec.sign(&random, signed.as_bytes()).expect("it is signed");
    issuers.judge(&format!("{signed}.{}", encoded(signature.as_ref())), NOW_MS).expect("it is accepted");
    let crossed = unsigned(r#"{"alg":"RS256","kid":"e"}"#, &text);
    let judged = issuers.judge(&format!("{crossed}.{}", encoded(signature.as_ref())), NOW_MS);
    assert_eq!(judged, Err(SignInRefusal::KeyUnknown));
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), so).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn keys_are_read_from_a_file_and_again_when_one_is_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys.json");
    let (first, second) = (TestIssuer::new("k1"), TestIssuer::new("k2"));
    std::fs::write(&path, first.key_set()).expect("written");
    let settings = IssuerSettings { keys: KeySource::File(path.clone()), ..settings() };
    let issuers = Issuers::new(vec![settings]);
    let reading = tokio::spawn(issuers.clone().keep_fresh());
    let is_accepted = |key: &TestIssuer| issuers.judge(&key.sign(&claims()), NOW_MS).is_ok();
    eventually("its keys are not read", || is_accepted(&first)).await;
    // The regular time is minutes away; each token of the new key asks for the keys once more.
    std::fs::write(&path, second.key_set()).expect("written");
    eventually("the new key is not read", || is_accepted(&second)).await;
    assert!(!is_accepted(&first), "it was withdrawn");
    // A damaged file takes nothing away.
    std::fs::write(&path, "{").expect("written");
    assert_eq!(
        issuers.judge(&first.sign(&claims()), NOW_MS),
        Err(SignInRefusal::KeyUnknown),
        "this asks for the keys once more"
    );
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(is_accepted(&second));
    reading.abort();
}

#[tokio::test]
async fn keys_are_found_by_the_description_of_the_issuer_and_not_asked_for_without_end() {
    let key = Arc::new(TestIssuer::new("k1"));
    let own = Arc::new(std::sync::OnceLock::<String>::new());
    let (served, said) = (Arc::clone(&key), Arc::clone(&own));
    let (url, mut requests) = serve(move |path, _| {
        let url = said.get().cloned().unwrap_or_default();
        match path {
            "/.well-known/openid-configuration" => {
                (200, json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }).to_string())
            }
            "/keys" => (200, served.key_set()),
            _ => (404, String::new()),
        }
    })
    .await;
    own.set(url.clone()).expect("once");
    let gap = Duration::from_millis(500);
    let issuers = Issuers::new(vec![IssuerSettings { url: url.clone(), refetch_gap: gap, ..settings() }]);
    let reading = tokio::spawn(issuers.clone().keep_fresh());
    let token = key.sign(&with(json!({ "iss": url })));
    eventually("its keys are not read", || issuers.judge(&token, NOW_MS).is_ok()).await;
    let stranger = TestIssuer::new("k9").sign(&with(json!({ "iss": url })));
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < gap * 3 {
        assert_eq!(issuers.judge(&stranger, NOW_MS), Err(SignInRefusal::KeyUnknown));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    reading.abort();
    let mut asked = 0;
    while let Ok(request) = requests.try_recv() {
        asked += usize::from(request.starts_with("/keys"));
    }
    assert!((1..=5).contains(&asked), "it was asked {asked} times");
}

#[tokio::test]
async fn an_issuer_that_is_another_or_on_an_address_that_is_not_allowed_gives_no_keys() {
    let (url, mut requests) =
        serve(|_, _| (200, json!({ "issuer": "https://other.example", "jwks_uri": "x" }).to_string())).await;
    let own = IssuerSettings { url: url.clone(), ..settings() };
    let rules = FetchRules { allowed_hosts: BTreeSet::new(), ..own.fetch.clone() };
    let inner = IssuerSettings { fetch: rules, ..own.clone() };
    let issuers = Issuers::new(vec![own, inner]);
    let reading = tokio::spawn(issuers.clone().keep_fresh());
    requests.recv().await.expect("the first is asked");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let token = TestIssuer::new("k1").sign(&with(json!({ "iss": url })));
    assert_eq!(issuers.judge(&token, NOW_MS), Err(SignInRefusal::KeysUnavailable));
    assert!(requests.try_recv().is_err(), "the second is not");
    reading.abort();
}

#[tokio::test]
async fn a_person_signs_in_with_a_code() {
    let own = Arc::new(std::sync::OnceLock::<String>::new());
    let polls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (said, counted) = (Arc::clone(&own), Arc::clone(&polls));
    let (url, _requests) = serve(move |path, body| {
        let url = said.get().cloned().unwrap_or_default();
        let refused = |code: &str| (400, json!({ "error": code }).to_string());
        match path {
            "/.well-known/openid-configuration" => (
                200,
                json!({
                    "issuer": url, "token_endpoint": format!("{url}/token"),
                    "device_authorization_endpoint": format!("{url}/device"),
                })
                .to_string(),
            ),
            "/device" if body == "client_id=muster-cli&scope=openid%20groups" => (
                200,
                json!({
                    "device_code": "d", "user_code": "WDJB-MJHT", "verification_uri": format!("{url}/go"),
                    "expires_in": 30, "interval": 1,
                })
                .to_string(),
            ),
            "/token" if body.contains("refresh_token=r1") => {
                (200, json!({ "access_token": "a2", "expires_in": 60 }).to_string())
            }
            "/token" if body.contains("device_code=d&") => {
                match counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                    0 => refused("authorization_pending"),
                    _ => {
                        let tokens = json!({ "access_token": "a1", "id_token": "i1", "refresh_token": "r1" });
                        (200, tokens.to_string())
                    }
                }
            }
            _ => refused("invalid_grant"),
        }
    })
    .await;
    own.set(url.clone()).expect("once");
    let mut login = Login::new(&url, "muster-cli", None).await;
    let provider = login.provider().await.expect("it describes itself");
    let code = login.begin(&provider, "openid groups").await.expect("it gives a code");
    assert_eq!((code.user_code.as_str(), code.verification_url), ("WDJB-MJHT", format!("{url}/go")));
    let code = login.begin(&provider, "openid groups").await.expect("it gives another");
    let tokens = login.wait(&provider, &code).await.expect("it is confirmed");
    assert_eq!((tokens.access_token.as_str(), tokens.id_token.as_deref()), ("a1", Some("i1")));
    assert_eq!(polls.load(std::sync::atomic::Ordering::Relaxed), 2);
    let again = login.refresh(&provider.token_url, "r1").await.expect("it gives new ones");
    assert_eq!((again.access_token.as_str(), again.expires_in_s), ("a2", Some(60)));
    let gone = login.refresh(&provider.token_url, "r0").await;
    assert!(matches!(gone, Err(LoginError::Refused { ref code }) if code == "invalid_grant"), "{gone:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No text is taken for a token that the issuer did not sign, and none panics.
    #[test]
    fn a_token_that_was_changed_anywhere_is_refused(place in 0..10_000_usize, byte in any::<u8>()) {
        let world = World::new();
        let good = world.key.sign(&claims());
        let mut bytes = good.clone().into_bytes();
        let place = place % bytes.len();
        bytes[place] = byte;
        let changed = String::from_utf8_lossy(&bytes).into_owned();
        prop_assume!(changed != good);
        prop_assert!(world.issuers.judge(&changed, NOW_MS).is_err(), "{changed}");
    }

    #[test]
    fn no_text_is_a_token_and_none_panics(
        text: String,
        header in "\\{\"alg\":\"(EdDSA|none|RS256)\",\"kid\":\"k1\"[,}:a-z\"]{0,9}",
        body in "[\\[\\]{}\",:a-z0-9.e-]{0,40}",
    ) {
        let world = World::new();
        prop_assert!(world.issuers.judge(&text, NOW_MS).is_err());
        let signed = world.key.sign_text(&header, &body);
        prop_assert!(world.issuers.judge(&signed, NOW_MS).is_err());
        let _ = crate::unverified_expiry_s(&signed);
        let _ = crate::keys::Keys::parse(body.as_bytes());
    }
}
