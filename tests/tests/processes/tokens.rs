//! Bearer tokens in a cluster with certificates: made by an operator, used through every replica by clients without a
//! certificate, refused once they are revoked or have expired, and good across the loss of the leader.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::{CallError, Client, Endpoints, Options};
use muster_transport::{Authority, Expect, Role, Security, ShortName, Tls, TlsFiles, TokenSecret};
use muster_types::{RefusalCode, ReplicaId, TokenRole};
use muster_wire::convert::token_role_to_proto;
use muster_wire::status::Refused;
use muster_wire::time::duration;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::{admin, v1};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{Cluster, PATIENCE, eventually, heavy, job, run_to_end};

fn short(text: &str) -> ShortName {
    ShortName::new(text).unwrap()
}

/// A cluster that takes tokens, with `vision` (`video` below it) and `speech`.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) ca: PathBuf,
}

impl Site {
    async fn start() -> Site {
        Site::start_with("").await
    }

    /// The same with more lines at the end of each configuration.
    pub(crate) async fn start_with(more: &str) -> Site {
        let mut cluster = Cluster::lay_out(3);
        let scratch = cluster.scratch.path().to_path_buf();
        let authority = Authority::init(&scratch.join("authority"), cluster.id, 20).unwrap();
        let files = |role: Role| {
            let out = scratch.join(role.to_string().replace('/', "-"));
            let issued = authority.issue(role, 20, &out, false).unwrap();
            TlsFiles { ca: issued.ca, cert: issued.cert, key: issued.key }
        };
        for at in 0..cluster.replicas.len() {
            let own = files(Role::Replica(ReplicaId(cluster.replicas[at].id)));
            let tls = format!("\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n", own.ca, own.cert, own.key);
            let config = cluster.config_of(at).replace("http://", "https://");
            std::fs::write(cluster.replicas[at].config(), format!("tokens = true\n{config}{tls}{more}"))
                .unwrap();
        }
        let root = files(Role::Admin(short("root")));
        let ca = root.ca.clone();
        cluster.start_secured(&Security::Tls(Tls::load(root).unwrap()));
        cluster.leader().await;
        let tenants = [("vision", ""), ("video", "vision"), ("speech", "")].map(|(name, parent)| {
            (name.to_owned(), v1::TenantPolicy { parent: parent.to_owned(), ..Default::default() })
        });
        let policy = v1::Policy { tenants: tenants.into(), ..Default::default() };
        let set = v1::SetPolicyRequest { policy: Some(policy), ..Default::default() };
        cluster.client().set_policy(set).await.expect("an operator may");
        Site { cluster, ca }
    }

    pub(crate) fn security(&self) -> Security {
        Security::Tls(Tls::load_authority(self.ca.clone()).unwrap())
    }

    /// A client without a certificate, of some replicas.
    fn with(&self, secret: &TokenSecret, of: &[usize]) -> Client {
        let addresses: Vec<String> =
            of.iter().map(|at| self.cluster.replicas[*at].client.to_string()).collect();
        let endpoints = Endpoints::parse_with(&addresses, self.security()).unwrap().with_token(secret);
        let options =
            Options { deadline: PATIENCE, attempt_timeout: Duration::from_secs(4), ..Options::STANDARD };
        Client::lazy(endpoints, options)
    }

    async fn channel(&self, at: usize) -> Channel {
        let security = self.security();
        let address = security.address(&self.cluster.replicas[at].client.to_string()).unwrap();
        let endpoint = Endpoint::from_shared(address).unwrap();
        endpoint.connect_with_connector(security.connector(Expect::AnyReplica)).await.expect("it may connect")
    }

    /// What a replica answers to these `authorization`s.
    async fn answer(&self, at: usize, authorizations: &[&str]) -> Result<(), tonic::Status> {
        let mut request = tonic::Request::new(v1::ListJobsRequest::default());
        for text in authorizations {
            request.metadata_mut().append("authorization", text.parse().unwrap());
        }
        JobServiceClient::new(self.channel(at).await).list_jobs(request).await.map(drop)
    }
}

fn grant(
    secret: &TokenSecret,
    name: &str,
    role: &str,
    tenant: &str,
    lifetime_ms: u64,
) -> admin::CreateTokenRequest {
    let token = admin::Token {
        id: secret.id().to_string(),
        name: name.to_owned(),
        user: "ada".to_owned(),
        // A number that no version knows stands for a name that is no role.
        role: TokenRole::from_name(role).map_or(99, |role| token_role_to_proto(role).into()),
        tenant: tenant.to_owned(),
        ..Default::default()
    };
    admin::CreateTokenRequest {
        token: Some(token),
        lifetime: Some(duration(lifetime_ms)),
        secret_sha256: secret.sha256().to_vec(),
        ..Default::default()
    }
}

const DAY_MS: u64 = 24 * 3_600 * 1_000;

async fn made(by: &Client, name: &str, role: &str, tenant: &str) -> TokenSecret {
    let secret = TokenSecret::generate().unwrap();
    by.create_token(grant(&secret, name, role, tenant, DAY_MS)).await.expect("it may");
    secret
}

pub(crate) fn code<T>(answer: Result<T, CallError>) -> Option<RefusalCode> {
    answer.err().and_then(|error| error.refused().and_then(|refused| refused.code))
}

pub(crate) fn submission(name: &str, tenant: &str) -> v1::SubmitJobRequest {
    let job = v1::Job { tenant: tenant.to_owned(), ..job(name, &["/bin/true"]) };
    v1::SubmitJobRequest { job: Some(job), validate_only: true, ..Default::default() }
}

/// Refused with the one reason, and with the one sentence.
fn assert_not_accepted(answer: Result<(), tonic::Status>, what: &str) -> String {
    let status = answer.expect_err(what);
    assert_eq!(status.code(), Code::Unauthenticated, "{what}: {status:?}");
    assert_eq!(Refused::from_status(&status).code, Some(RefusalCode::Unauthenticated), "{what}");
    status.message().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_made_used_and_revoked() {
    let _heavy = heavy().await;
    let mut site = Site::start().await;
    let root = site.cluster.client();
    let all = [0, 1, 2];
    let ada = made(&root, "ci", "submitter", "vision").await;

    // Through every replica; one that has not applied the record yet refuses it.
    for at in all {
        let client = site.with(&ada, &[at]);
        eventually("the token is not taken", || async {
            client.list_jobs(v1::ListJobsRequest::default()).await.ok()
        })
        .await;
        // No host is there, so that a job that may be submitted is refused for what it asks.
        let never = Some(RefusalCode::NeverFits);
        assert_eq!(code(client.submit_job(submission("own", "vision")).await), never);
        assert_eq!(code(client.submit_job(submission("below", "video")).await), never);
        let denied = Some(RefusalCode::PermissionDenied);
        assert_eq!(code(client.submit_job(submission("foreign", "speech")).await), denied);
        assert_eq!(code(client.list_tokens().await), denied, "a submitter makes no tokens");
    }

    forged(&site, &ada).await;
    by_a_tenants_administrator(&site, &root).await;

    // It goes on with another leader.
    let leader = site.cluster.leader().await;
    site.cluster.kill(leader).await;
    let left: Vec<usize> = all.into_iter().filter(|at| *at != leader).collect();
    let across = site.with(&ada, &left);
    across.list_jobs(v1::ListJobsRequest::default()).await.expect("it is in the log");
    site.cluster.start_replica(leader);
    site.cluster.leader().await;

    // A watch is open when the token is revoked; it ends, and no replica takes the token any more.
    let mut request = tonic::Request::new(v1::WatchJobsRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {}", ada.reveal()).parse().unwrap());
    let mut jobs = JobServiceClient::new(site.channel(left[0]).await);
    let mut watch = jobs.watch_jobs(request).await.expect("it is accepted").into_inner();
    root.revoke_token(admin::RevokeTokenRequest { id: ada.id().to_string(), ..Default::default() })
        .await
        .expect("an operator may");
    let bearer = format!("Bearer {}", ada.reveal());
    for at in all {
        eventually("a revoked token is still accepted", || async {
            site.answer(at, &[&bearer]).await.err().filter(|status| status.code() == Code::Unauthenticated)
        })
        .await;
    }
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Err(status) = watch.message().await {
                return status;
            }
        }
    });
    assert_eq!(ended.await.expect("the watch ends").code(), Code::Unauthenticated);
    let again = admin::RevokeTokenRequest { id: ada.id().to_string(), ..Default::default() };
    assert_eq!(code(root.revoke_token(again).await), Some(RefusalCode::TokenNotFound));

    from_the_command_line(&site).await;
    site.cluster.assert_digests_agree().await;
}

/// What is no token is refused with one reason and one sentence, which does not tell whether there is such a token.
async fn forged(site: &Site, good: &TokenSecret) {
    let other = TokenSecret::generate().unwrap();
    let text = good.reveal();
    // The id is right, the secret is another's.
    let forged = format!("{}{}", &text[..24], &other.reveal()[24..]);
    let bearer = |secret: &str| format!("Bearer {secret}");
    let cases = [
        ("forged", vec![bearer(&forged)]),
        ("unknown", vec![bearer(other.reveal())]),
        ("truncated", vec![bearer(&text[..text.len() - 1])]),
        ("too long", vec![bearer(&format!("{text}0"))]),
        ("far too long", vec![bearer(&"a".repeat(4_000))]),
        ("another scheme", vec![format!("Basic {text}")]),
        ("no scheme", vec![text.to_owned()]),
        ("two of them", vec![bearer(text), bearer(text)]),
        ("empty", vec![String::new()]),
    ];
    let mut sentences = std::collections::BTreeSet::new();
    for (what, authorizations) in &cases {
        let authorizations: Vec<&str> = authorizations.iter().map(String::as_str).collect();
        sentences.insert(assert_not_accepted(site.answer(0, &authorizations).await, what));
    }
    assert_eq!(sentences.len(), 1, "nobody learns which tokens exist: {sentences:?}");
    assert_not_accepted(site.answer(0, &[]).await, "neither a certificate nor a token");
}

/// Tokens of one tenant and those below it, and none that makes tokens.
async fn by_a_tenants_administrator(site: &Site, root: &Client) {
    let boss = made(root, "boss", "tenant-admin", "vision").await;
    let boss = site.with(&boss, &[0, 1, 2]);
    eventually("the token is not taken", || async { boss.list_tokens().await.ok() }).await;
    let below = made(&boss, "below", "submitter", "video").await;
    let denied = Some(RefusalCode::PermissionDenied);
    for (role, tenant) in [("submitter", "speech"), ("viewer", ""), ("tenant-admin", "vision"), ("admin", "")]
    {
        let secret = TokenSecret::generate().unwrap();
        let request = grant(&secret, "more", role, tenant, DAY_MS);
        assert_eq!(code(boss.create_token(request).await), denied, "{role} {tenant}");
    }
    // Of another tenant's token it is not told that it exists.
    let foreign = made(root, "foreign", "submitter", "speech").await;
    let listed = boss.list_tokens().await.expect("it may").tokens;
    let names: Vec<&str> = listed.iter().map(|token| token.name.as_str()).collect();
    assert!(names.contains(&"below") && !names.contains(&"foreign"), "{names:?}");
    let by_boss = &boss;
    let revoke = |secret: &TokenSecret| {
        let request = admin::RevokeTokenRequest { id: secret.id().to_string(), ..Default::default() };
        async move { code(by_boss.revoke_token(request).await) }
    };
    assert_eq!(revoke(&foreign).await, Some(RefusalCode::TokenNotFound));
    assert_eq!(revoke(&below).await, None);

    // What an operator may not ask for either.
    let field = Some(RefusalCode::InvalidField);
    for (role, tenant, lifetime_ms) in [
        ("submitter", "", DAY_MS),
        ("admin", "vision", DAY_MS),
        ("root", "", DAY_MS),
        ("submitter", "nobody", DAY_MS),
        ("viewer", "", 1_000),
        ("viewer", "", 367 * DAY_MS),
    ] {
        let secret = TokenSecret::generate().unwrap();
        let request = grant(&secret, "wrong", role, tenant, lifetime_ms);
        assert_eq!(code(root.create_token(request).await), field, "{role} {tenant} {lifetime_ms}");
    }
    let secret = TokenSecret::generate().unwrap();
    let twice = grant(&secret, "boss", "submitter", "vision", DAY_MS);
    assert_eq!(code(root.create_token(twice).await), Some(RefusalCode::TokenExists));
    let mut short = grant(&secret, "short", "viewer", "", DAY_MS);
    short.secret_sha256.pop();
    assert_eq!(code(root.create_token(short).await), field);

    // The policy lists the tenant no more.
    let lost = made(root, "lost", "submitter", "speech").await;
    let bearer = format!("Bearer {}", lost.reveal());
    eventually("the token is not taken", || async { site.answer(0, &[&bearer]).await.ok() }).await;
    let tenants = [("vision", ""), ("video", "vision")].map(|(name, parent)| {
        (name.to_owned(), v1::TenantPolicy { parent: parent.to_owned(), ..Default::default() })
    });
    let policy = v1::Policy { tenants: tenants.into(), ..Default::default() };
    let set = v1::SetPolicyRequest { policy: Some(policy), ..Default::default() };
    root.set_policy(set).await.expect("an operator may");
    eventually("the token of a removed tenant is still accepted", || async {
        site.answer(0, &[&bearer]).await.err().filter(|status| status.code() == Code::Unauthenticated)
    })
    .await;
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the test's directory is text")
}

/// `muster token`, with a token of an administrator in a file; and one that expires.
async fn from_the_command_line(site: &Site) {
    let root = site.cluster.client();
    let secret = made(&root, "by-hand", "admin", "").await;
    let file = site.cluster.scratch.path().join("by-hand.token");
    std::fs::write(&file, secret.reveal()).unwrap();
    let set = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, permissions).unwrap();
    };
    let endpoint = site.cluster.replicas[0].client.to_string();
    let own = ["--endpoint", &endpoint, "--ca", text(&site.ca), "--token-file", text(&file)];
    let run = async |words: &[&str]| run_to_end(&[&own[..], words].concat(), "").await;
    set(0o644);
    run(&["token", "list"]).await.assert_refused(2, &["open to everybody"]);
    set(0o600);
    eventually("the token is not taken", || async {
        (run(&["token", "list"]).await.code == Some(0)).then_some(())
    })
    .await;
    let ran = run(&["token", "create", "brief", "--role", "viewer", "--for", "1m"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let brief = TokenSecret::parse(ran.out.trim()).expect("the secret is the only data");
    let ran = run(&["token", "list"]).await;
    assert!(ran.out.contains("brief") && !ran.out.contains(brief.reveal()), "{ran:#?}");
    run(&["token", "create", "brief", "--role", "viewer"]).await.assert_refused(5, &["MS-8008"]);
    run(&["token", "create", "x", "--role", "root"]).await.assert_refused(2, &["root"]);
    run(&["token", "revoke", "nobody"]).await.assert_refused(3, &["nobody"]);
    let ran = run(&["token", "create", "gone", "--role", "viewer"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let ran = run(&["token", "revoke", "gone", "--dry-run"]).await;
    assert!(ran.code == Some(0) && ran.out.contains("would be refused by every replica: viewer"), "{ran:#?}");
    let ran = run(&["token", "list"]).await;
    assert!(ran.out.contains("gone"), "a dry run revokes nothing: {ran:#?}");
    let ran = run(&["token", "revoke", "gone"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");

    // Expired: no record comes in between, and it is refused all the same.
    let bearer = format!("Bearer {}", brief.reveal());
    eventually("the token is not taken", || async { site.answer(0, &[&bearer]).await.ok() }).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    for at in 0..3 {
        assert_not_accepted(site.answer(at, &[&bearer]).await, "expired");
    }

    // No log has a secret.
    for at in 0..3 {
        let log = site.cluster.log_of(at);
        assert!(!log.contains(&secret.reveal()[24..]) && !log.contains(&brief.reveal()[24..]));
    }
}
