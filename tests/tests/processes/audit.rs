//! Who did what, told by the log, and which calls were denied, told by the files of replicas; in a cluster with certificates and
//! tokens.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::{Client, Endpoints, Options};
use muster_transport::{Authority, Role, Security, ShortName, Tls, TlsFiles, TokenSecret};
use muster_types::{RefusalCode, ReplicaId, TokenRole};
use muster_wire::convert::token_role_to_proto;
use muster_wire::time::duration;
use muster_wire::{admin, v1};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Cluster, PATIENCE, eventually, heavy, run_to_end};

fn short(text: &str) -> ShortName {
    ShortName::new(text).unwrap()
}

struct Site {
    cluster: Cluster,
    authority: Authority,
}

impl Site {
    async fn start() -> Site {
        let mut cluster = Cluster::lay_out_with(3, 0, "[audit]\ninterval = \"1s\"\n");
        let authority = Authority::init(&cluster.scratch.path().join("authority"), cluster.id, 20).unwrap();
        for at in 0..cluster.replicas.len() {
            let id = ReplicaId(cluster.replicas[at].id);
            let own = files(&cluster, &authority, Role::Replica(id));
            let tls = format!("\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n", own.ca, own.cert, own.key);
            let config = cluster.config_of(at).replace("http://", "https://");
            std::fs::write(cluster.replicas[at].config(), format!("tokens = true\n{config}{tls}")).unwrap();
        }
        let root = files(&cluster, &authority, Role::Admin(short("root")));
        cluster.start_secured(&Security::Tls(Tls::load(root).unwrap()));
        cluster.leader().await;
        Site { cluster, authority }
    }

    fn files(&self, role: Role) -> TlsFiles {
        files(&self.cluster, &self.authority, role)
    }

    /// A client of one replica, with the certificate of a role or with a token.
    fn client(&self, at: usize, role: Role, token: Option<&TokenSecret>) -> Client {
        let files = self.files(role);
        let tls = match token {
            Some(_) => Tls::load_authority(files.ca),
            None => Tls::load(files),
        };
        let addresses = [self.cluster.replicas[at].client.to_string()];
        let endpoints = Endpoints::parse_with(&addresses, Security::Tls(tls.unwrap())).unwrap();
        let endpoints = match token {
            Some(secret) => endpoints.with_token(secret),
            None => endpoints,
        };
        let options =
            Options { deadline: PATIENCE, attempt_timeout: Duration::from_secs(4), ..Options::STANDARD };
        Client::lazy(endpoints, options)
    }

    /// What `muster audit` prints to the holder of a certificate: an object a line.
    async fn audit(&self, role: Role, words: &[&str]) -> Vec<Value> {
        let files = self.files(role);
        let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let (ca, cert, key) = (text(&files.ca), text(&files.cert), text(&files.key));
        let endpoints = self.cluster.endpoints().join(",").replace("http://", "https://");
        let place = ["--endpoint", endpoints.as_str(), "-o", "json"];
        let own = ["--ca", ca.as_str(), "--cert", cert.as_str(), "--key", key.as_str(), "audit"];
        let ran = run_to_end(&[&place[..], &own[..], words].concat(), "").await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn files(cluster: &Cluster, authority: &Authority, role: Role) -> TlsFiles {
    let out = cluster.scratch.path().join(format!("certificate-{}", role.to_string().replace('/', "-")));
    if !out.exists() {
        authority.issue(role, 20, &out, false).unwrap();
    }
    TlsFiles { ca: out.join("ca.crt"), cert: out.join("tls.crt"), key: out.join("tls.key") }
}

async fn made(by: &Client, name: &str, role: TokenRole) -> TokenSecret {
    let secret = TokenSecret::generate().unwrap();
    let token = admin::Token {
        id: secret.id().to_string(),
        name: name.to_owned(),
        user: "ada".to_owned(),
        role: token_role_to_proto(role).into(),
        tenant: "vision".to_owned(),
        ..Default::default()
    };
    let request = admin::CreateTokenRequest {
        token: Some(token),
        lifetime: Some(duration(3_600_000)),
        secret_sha256: secret.sha256().to_vec(),
        ..Default::default()
    };
    by.create_token(request).await.expect("it may");
    secret
}

fn shown(record: &Value) -> (String, String, String) {
    let text = |key: &str| record[key].as_str().unwrap().to_owned();
    (text("who"), text("credential"), text("what"))
}

fn row(who: &str, credential: &str, what: &str) -> (String, String, String) {
    (who.to_owned(), credential.to_owned(), what.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_a_tenant_and_a_stranger_are_told_apart() {
    let _turn = heavy().await;
    let mut site = Site::start().await;
    let (root, eve) =
        (Role::Admin(short("root")), Role::TenantClient { tenant: short("speech"), user: short("eve") });
    let tenants = ["vision", "speech"].map(|name| (name.to_owned(), v1::TenantPolicy::default()));
    let policy = v1::Policy { tenants: tenants.into(), ..Default::default() };
    let set = v1::SetPolicyRequest { policy: Some(policy.clone()), ..Default::default() };
    site.cluster.client().set_policy(set).await.expect("an operator may");
    let owner = made(&site.cluster.client(), "owner", TokenRole::TenantAdmin).await;
    // Through every replica, so that followers pass calls on.
    for at in 0..3 {
        let ada = site.client(at, root, Some(&owner));
        eventually("the token is not taken", || async { ada.list_tokens().await.ok() }).await;
        made(&ada, &format!("ci-{at}"), TokenRole::Submitter).await;
    }
    let stranger = site.client(0, eve, None);
    for _ in 0..5 {
        let cordon = v1::CordonNodeRequest { node: "h1".to_owned(), ..Default::default() };
        let denied = stranger.cordon_node(cordon).await.expect_err("it is for operators");
        let code = denied.refused().and_then(|refused| refused.code);
        assert_eq!(code, Some(RefusalCode::PermissionDenied));
    }

    // The log says who did what, and nothing of what was denied.
    let all = || async { Some(site.audit(root, &[]).await).filter(|records| records.len() >= 5) };
    let records = eventually("a record is missing", all).await;
    let newest = records.last().and_then(|record| record["logIndex"].as_u64()).unwrap();
    for at in 0..3 {
        site.cluster.caught_up(at, newest).await;
    }
    let by_ada = row("tenant/vision/ada", "token", "token_created");
    let expected = [
        row("admin/root", "certificate", "policy_set"),
        row("admin/root", "certificate", "token_created"),
        by_ada.clone(),
        by_ada.clone(),
        by_ada.clone(),
    ];
    assert_eq!(records.iter().map(shown).collect::<Vec<_>>(), expected);
    assert!(records.iter().all(|record| record["requestId"].as_str().is_some_and(|id| !id.is_empty())));
    assert_eq!(records[2]["token"].as_str(), Some(owner.id().to_string().as_str()));
    let ours = site.audit(root, &["--who", "ada"]).await;
    assert_eq!(ours.iter().map(shown).collect::<Vec<_>>(), [by_ada.clone(), by_ada.clone(), by_ada]);
    assert_eq!(site.audit(root, &["--what", "policy_set"]).await.len(), 1);
    assert_eq!(site.audit(root, &["--tenant", "vision"]).await.len(), 4);
    assert!(site.audit(root, &["--tenant", "speech"]).await.is_empty());
    assert!(site.audit(root, &["--to", "2020-01-01T00:00:00Z"]).await.is_empty());
    assert_eq!(site.audit(root, &["--from", "2020-01-01T00:00:00Z"]).await.len(), 5);
    // A tenant's user learns that something was done, and not by which operator.
    let seen = site.audit(eve, &[]).await;
    assert!(seen.len() == 5 && seen.iter().all(|record| record["who"] == "redacted"), "{seen:?}");

    // The replica that was called says what it denied: a line or two, however often it was tried.
    let path = site.cluster.replicas[0].data().join("audit.log");
    let file = path.to_str().unwrap().to_owned();
    let denied = eventually("what was denied is recorded", || async {
        let text = std::fs::read_to_string(&path).ok()?;
        // The last line may be on its way.
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of_eve =
            |line: &Value| line["caller"] == "tenant/speech/eve" && line["code"] == "PERMISSION_DENIED";
        let lines: Vec<Value> = lines.into_iter().filter(of_eve).collect();
        let count: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        (count >= 5).then_some(lines)
    })
    .await;
    assert_eq!(denied.iter().filter_map(|line| line["count"].as_u64()).sum::<u64>(), 5, "{denied:?}");
    assert!(denied.len() <= 5 && denied.iter().all(|line| line["replica"] == 1), "{denied:?}");
    assert!(denied.iter().all(|line| line["call"] == "muster.v1beta1.FleetService/CordonNode"), "{denied:?}");
    assert_eq!(site.audit(root, &["--denied", &file, "--who", "eve"]).await.len(), denied.len());
    assert!(site.audit(root, &["--denied", &file, "--who", "ada"]).await.is_empty());
    // Every replica is asked where no file is named.
    let everywhere =
        site.audit(root, &["--denied", "--principal", "eve", "--reason", "PERMISSION_DENIED"]).await;
    assert_eq!(everywhere.len(), denied.len(), "{everywhere:?}");
    assert!(everywhere.iter().all(|line| line["replica"] == 1), "{everywhere:?}");
    site.cluster.assert_digests_agree().await;
}
