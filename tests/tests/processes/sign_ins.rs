//! Sign-ins by an issuer next to real replicas: with the device flow of the command line, through every replica, while the issuer is
//! away, and until its key is withdrawn.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::{Client, Endpoints, Options};
use muster_oidc::test_issuer::{TestIssuer, serve};
use muster_transport::Bearer;
use muster_types::RefusalCode;
use muster_wire::v1;
use parking_lot::Mutex;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{PATIENCE, Ran, eventually, heavy, muster, run_program_to_end};
use crate::tokens::{Site, code, submission};

/// What the issuer has at present.
struct Issuer {
    url: String,
    key: TestIssuer,
    /// None while it is away.
    key_set: Option<String>,
    polls: u32,
}

fn token(issuer: &Issuer, key: &TestIssuer, group: &str) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    key.sign(&json!({
        "iss": issuer.url, "aud": "muster-cli", "preferred_username": "ada", "groups": [group], "iat": now_s, "exp": now_s + 600,
    }))
}

/// An issuer with a description, keys and the device flow; a code is confirmed by the second question.
async fn issuer() -> Arc<Mutex<Issuer>> {
    let key = TestIssuer::new("k1");
    let key_set = Some(key.key_set());
    let issuer = Arc::new(Mutex::new(Issuer { url: String::new(), key, key_set, polls: 0 }));
    let served = Arc::clone(&issuer);
    let (url, _) = serve(move |path, body| {
        let mut issuer = served.lock();
        let url = issuer.url.clone();
        let Some(keys) = issuer.key_set.clone() else { return (503, String::new()) };
        match path {
            "/.well-known/openid-configuration" => {
                let description = json!({
                    "issuer": url, "jwks_uri": format!("{url}/keys"), "token_endpoint": format!("{url}/token"),
                    "device_authorization_endpoint": format!("{url}/device"),
                });
                (200, description.to_string())
            }
            "/keys" => (200, keys),
            "/device" => {
                let code = json!({
                    "device_code": "d", "user_code": "WDJB-MJHT", "verification_uri": format!("{url}/go"),
                    "expires_in": 60, "interval": 1,
                });
                (200, code.to_string())
            }
            "/token" if body.contains("device_code=d") => {
                issuer.polls += 1;
                if issuer.polls < 2 {
                    return (400, json!({ "error": "authorization_pending" }).to_string());
                }
                let id_token = token(&issuer, &issuer.key, "ml");
                (200, json!({ "access_token": "opaque", "id_token": id_token }).to_string())
            }
            _ => (404, "{}".to_owned()),
        }
    })
    .await;
    issuer.lock().url = url;
    issuer
}

fn settings(url: &str) -> String {
    format!(
        "\n[[oidc]]\nname = \"corp\"\nissuer = \"{url}\"\naudience = \"muster-cli\"\nallow_http = true\n\
         allowed_hosts = [\"127.0.0.1\"]\nrefetch_gap = \"1s\"\n\n\
         [[oidc.rules]]\ngroup = \"ml\"\nrole = \"submitter\"\ntenant = \"vision\"\n"
    )
}

fn with(site: &Site, token: &str, at: usize) -> Client {
    let addresses = [site.cluster.replicas[at].client.to_string()];
    let bearer = Bearer::parse(token).unwrap();
    let endpoints = Endpoints::parse_with(&addresses, site.security()).unwrap().with_bearer(&bearer);
    let options =
        Options { deadline: PATIENCE, attempt_timeout: Duration::from_secs(4), ..Options::STANDARD };
    Client::lazy(endpoints, options)
}

/// Runs a command with a configuration directory apart from that of this user.
async fn run(home: &Path, words: &[&str]) -> Ran {
    let home = format!("XDG_CONFIG_HOME={}", home.display());
    let program = muster().to_str().expect("its path is text");
    run_program_to_end(Path::new("/usr/bin/env"), &[&[home.as_str(), program][..], words].concat(), "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_signs_in_and_every_replica_knows_them() {
    let _heavy = heavy().await;
    let issuer = issuer().await;
    let url = issuer.lock().url.clone();
    let mut site = Site::start_with(&settings(&url)).await;
    from_the_command_line(&site, &url).await;

    // Through every replica; one that follows passes the call on.
    let own = {
        let issuer = issuer.lock();
        token(&issuer, &issuer.key, "ml")
    };
    for at in 0..3 {
        let client = with(&site, &own, at);
        eventually("the keys are not read", || async {
            client.list_jobs(v1::ListJobsRequest::default()).await.ok()
        })
        .await;
        // No host is there, so that a job that may be submitted is refused for what it asks.
        assert_eq!(code(client.submit_job(submission("own", "video")).await), Some(RefusalCode::NeverFits));
        let foreign = client.submit_job(submission("foreign", "speech")).await;
        assert_eq!(code(foreign), Some(RefusalCode::PermissionDenied));
    }

    // While the issuer is away its last keys serve; a token of a key that nobody knows has them asked for.
    let next = TestIssuer::new("k2");
    let (of_next, present) = {
        let mut issuer = issuer.lock();
        (token(&issuer, &next, "ml"), issuer.key_set.take())
    };
    let list = async |token: &str, at: usize| {
        code(with(&site, token, at).list_jobs(v1::ListJobsRequest::default()).await)
    };
    let refused = Some(RefusalCode::Unauthenticated);
    for at in 0..3 {
        assert_eq!(list(&of_next, at).await, refused);
        assert_eq!(list(&own, at).await, None);
    }
    // It comes back with another key alone: what the other one signed is refused.
    assert!(present.is_some());
    issuer.lock().key_set = Some(next.key_set());
    for at in 0..3 {
        eventually("the new key is not read", || async { list(&of_next, at).await.is_none().then_some(()) })
            .await;
        assert_eq!(list(&own, at).await, refused);
    }
    for at in 0..3 {
        let log = site.cluster.log_of(at);
        assert!(!log.contains(&own[own.len() - 40..]) && !log.contains(&of_next[of_next.len() - 40..]));
    }
    site.cluster.assert_digests_agree().await;
}

/// `muster login`, `whoami` and `logout`: the token is kept for its owner alone, and for these replicas alone.
async fn from_the_command_line(site: &Site, url: &str) {
    let home = site.cluster.scratch.path().join("home");
    let endpoint = site.cluster.replicas[0].client.to_string();
    let ca = site.ca.to_str().unwrap();
    let named = ["--endpoint", &endpoint, "--ca", ca];
    let login = [&named[..], &["login", "--issuer", url, "--client-id", "muster-cli"]].concat();
    let ran = run(&home, &login).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.out.contains("WDJB-MJHT") && ran.out.contains("/go"), "{ran:#?}");
    let file = home.join("muster/login.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let token = kept["token"].as_str().unwrap();
    assert!(!ran.out.contains(token) && !ran.err.contains(token), "it is shown to nobody");

    // Nothing has to be named any more.
    let who = eventually("the sign-in is not taken", || async {
        let ran = run(&home, &["whoami"]).await;
        (ran.code == Some(0)).then_some(ran)
    })
    .await;
    assert!(
        who.out.contains("tenant/vision/ada+oidc/corp") && who.out.contains("token:submitter"),
        "{who:#?}"
    );
    // It goes to no other replicas.
    let other = run(&home, &["--endpoint", "127.0.0.1:1", "--timeout", "2s", "whoami"]).await;
    assert_ne!(other.code, Some(0), "{other:#?}");
    let ran = run(&home, &["logout"]).await;
    assert!(ran.code == Some(0) && !file.exists(), "{ran:#?}");
    let ran = run(&home, &[&named[..], &["whoami"]].concat()).await;
    assert_ne!(ran.code, Some(0), "{ran:#?}");
}
