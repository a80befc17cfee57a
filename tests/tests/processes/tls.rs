//! A cluster with certificates: made by the real `muster ca`, rotated under load, closed to everyone whose
//! certificate does not say what they claim to be.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_client::{Client, Endpoints, Options};
use muster_transport::{Expect, Security, Tls, TlsFiles};
use muster_types::{RefusalCode, ReplicaId};
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::raft::v1 as raft;
use muster_wire::raft::v1::raft_service_client::RaftServiceClient;
use muster_wire::status::Refused;
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{
    Cluster, PATIENCE, eventually, heavy, is_finished, job, node, registration, run_to_end, spawn,
    wait_for_job,
};

fn text(path: &Path) -> &str {
    path.to_str().expect("the test's directory is text")
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles { ca: directory.join("ca.crt"), cert: directory.join("tls.crt"), key: directory.join("tls.key") }
}

/// An authority's directory, and the directories of those that it has certified.
struct Certified {
    authority: PathBuf,
    members: PathBuf,
}

impl Certified {
    async fn init(scratch: &Path, name: &str, cluster: &str) -> Certified {
        let certified =
            Certified { authority: scratch.join(name), members: scratch.join(format!("{name}-members")) };
        ca(&["init", text(&certified.authority), "--cluster-id", cluster]).await;
        certified
    }

    fn directory(&self, kind: &str, which: &str) -> PathBuf {
        self.members.join(format!("{kind}-{which}"))
    }

    async fn issue(&self, kind: &str, which: &str) -> PathBuf {
        let out = self.directory(kind, which);
        let whose: &[&str] = if kind == "client" { &["--all-tenants"] } else { &[] };
        let words = ["issue", text(&self.authority), kind, which, "--out", text(&out), "--force"];
        ca(&[&words, whose].concat()).await;
        out
    }

    fn tls(&self, kind: &str, which: &str) -> Tls {
        Tls::load(files(&self.directory(kind, which))).expect("what was issued can be used")
    }

    fn security(&self, kind: &str, which: &str) -> Security {
        Security::Tls(self.tls(kind, which))
    }

    /// Gives everyone the bundle of the authority, as an operator does.
    fn distribute(&self) {
        for entry in std::fs::read_dir(&self.members).expect("there are members").flatten() {
            let waiting = entry.path().join("ca.new");
            std::fs::copy(self.authority.join("bundle.crt"), &waiting).expect("a copy can be made");
            std::fs::rename(&waiting, entry.path().join("ca.crt")).expect("it takes its place");
        }
    }
}

async fn ca(args: &[&str]) -> String {
    let ran = run_to_end(&[&["ca"], args].concat(), "").await;
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:#?}");
    ran.out
}

fn secured(config: &str, directory: &Path) -> String {
    let own = files(directory);
    let tls = format!("\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n", own.ca, own.cert, own.key);
    format!("{}{tls}", config.replace("http://", "https://"))
}

async fn channel(
    address: &str,
    security: &Security,
    expect: Expect,
) -> Result<Channel, tonic::transport::Error> {
    let whole = security.address(address).expect("an address without a scheme");
    let endpoint = Endpoint::from_shared(whole).expect("an address").connect_timeout(Duration::from_secs(5));
    endpoint.connect_with_connector(security.connector(expect)).await
}

fn client(endpoints: &[String], security: Security) -> Client {
    let endpoints = Endpoints::parse_with(endpoints, security).expect("addresses").spread();
    let options =
        Options { deadline: PATIENCE, attempt_timeout: Duration::from_secs(4), ..Options::STANDARD };
    Client::lazy(endpoints, options)
}

fn submission(name: &str) -> v1::SubmitJobRequest {
    v1::SubmitJobRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        job: Some(job(name, &["/bin/true"])),
        ..Default::default()
    }
}

#[track_caller]
fn assert_denied(status: &tonic::Status) {
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(Refused::from_status(status).code, Some(RefusalCode::PermissionDenied), "{status:?}");
}

/// Everyone who is not who they would have to be; nothing of it changes anything.
async fn impostors(cluster: &Cluster, certified: &Certified, leader: usize) {
    let address = cluster.replicas[leader].client.to_string();
    let of_client = client(std::slice::from_ref(&address), certified.security("client", "ada"));
    let index = |status: v1::GetStatusResponse| status.freshness.map_or(0, |fresh| fresh.log_index);
    let before = of_client.get_status(v1::GetStatusRequest::default()).await.expect("a client may look");

    // Plaintext.
    let plain = channel(&address, &Security::Plaintext, Expect::AnyReplica).await;
    if let Ok(channel) = plain {
        let refused = JobServiceClient::new(channel).submit_job(submission("plain")).await;
        let status = refused.expect_err("the connection is cut");
        assert_eq!(Refused::from_status(&status).code, None, "the connection is cut, not answered");
    }

    // Another authority, of this cluster by its own account, and one of another cluster.
    for (name, id) in [("forger", cluster.id.to_string()), ("stranger", "0".repeat(31) + "1")] {
        let other = Certified::init(cluster.scratch.path(), name, &id).await;
        let directory = other.issue("client", "ada").await;
        // Even one that knows whom to trust is not trusted.
        std::fs::copy(certified.authority.join("bundle.crt"), directory.join("ca.crt")).unwrap();
        let error = Tls::load(files(&directory))
            .map(drop)
            .expect_err("it sees for itself that it will not be accepted");
        assert!(error.to_string().contains("not accepted"), "{error}");
        other.issue("client", "ada").await;
        let security = other.security("client", "ada");
        let refused = channel(&address, &security, Expect::AnyReplica).await;
        assert!(refused.is_err(), "{name} took the replica for one of its cluster");
    }

    // An agent's certificate: its own node, and nothing else.
    let agent = certified.security("agent", "h1");
    let channel_of = |security: Security| {
        let address = address.clone();
        async move { channel(&address, &security, Expect::AnyReplica).await.expect("a member connects") }
    };
    let stolen = channel_of(agent).await;
    assert_denied(&JobServiceClient::new(stolen.clone()).submit_job(submission("stolen")).await.unwrap_err());
    let messages = tokio_stream::StreamExt::chain(
        tokio_stream::once(registration(node("h2"), &format!("{:032x}", 7))),
        tokio_stream::pending(),
    );
    let refused = NodeServiceClient::new(stolen).session(messages).await.map(drop).unwrap_err();
    assert_denied(&refused);

    // A client's: no session, no policy, and no word among the replicas, in whoever's name.
    let of_ada = channel_of(certified.security("client", "ada")).await;
    let messages = tokio_stream::once(registration(node("h1"), &format!("{:032x}", 7)));
    assert_denied(&NodeServiceClient::new(of_ada.clone()).session(messages).await.map(drop).unwrap_err());
    let mut request = tonic::Request::new(v1::CordonNodeRequest::default());
    let root = format!("spiffe://{}/admin/root", cluster.id);
    request.metadata_mut().insert("muster-principal", root.parse().unwrap());
    request.metadata_mut().insert("muster-forwarded", "1".parse().unwrap());
    let mut fleet = v1::fleet_service_client::FleetServiceClient::new(of_ada);
    assert_denied(&fleet.cordon_node(request).await.unwrap_err());

    let target = ReplicaId(cluster.replicas[leader].id);
    let peer_address = cluster.replicas[leader].peer.to_string();
    let other = cluster.replicas.iter().find(|files| files.id != target.0).expect("there are others").id;
    for security in
        [certified.security("client", "ada"), certified.security("replica", &target.0.to_string())]
    {
        let channel =
            channel(&peer_address, &security, Expect::Replica(target)).await.expect("a member connects");
        let vote = raft::VoteRequest {
            peer: Some(raft::Peer {
                cluster_id: cluster.id.to_string(),
                source: other,
                target: target.0,
                generation: 1,
                founding: None,
            }),
            vote: Some(raft::BallotVote { term: 1 << 40, replica: other, committed: false }),
            ..Default::default()
        };
        let refused = RaftServiceClient::new(channel).vote(vote).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    }
    // And a replica that is not the one that was called is not believed.
    let wrong =
        channel(&peer_address, &certified.security("replica", "1"), Expect::Replica(ReplicaId(9))).await;
    assert!(wrong.is_err(), "another replica was taken for r9");

    let after = of_client.get_status(v1::GetStatusRequest::default()).await.expect("a client may look");
    assert_eq!(after.term, before.term, "somebody was believed");
    assert_eq!(index(after), index(before), "somebody was obeyed");
}

/// Calls without a pause, through every replica, by a client that keeps its certificates fresh.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(endpoints: &[String], tls: &Tls) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = endpoints.iter().map(|endpoint| {
            let client = client(std::slice::from_ref(endpoint), Security::Tls(tls.clone()));
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                while !stop.load(Ordering::Acquire) {
                    let submitted = client.submit_job(submission("load")).await.expect("no call fails");
                    let job_id = submitted.job_ids[0].clone();
                    let cancel = v1::CancelJobRequest { job_id, ..Default::default() };
                    client.cancel_job(cancel).await.expect("no call fails");
                    client.get_status(v1::GetStatusRequest::default()).await.expect("no call fails");
                    done.fetch_add(1, Ordering::AcqRel);
                }
            })
        });
        let tasks = tasks.collect();
        Load { stop, done, tasks }
    }

    /// Waits until it has come so much further.
    async fn goes_on(&self, by: u64) {
        let wanted = self.done.load(Ordering::Acquire) + by;
        eventually("the load stands still", || async {
            let failed = self.tasks.iter().any(tokio::task::JoinHandle::is_finished);
            assert!(!failed, "a call failed");
            (self.done.load(Ordering::Acquire) >= wanted).then_some(())
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Release);
        for task in self.tasks {
            tokio::time::timeout(PATIENCE, task).await.expect("it ends").expect("no call failed");
        }
    }
}

/// How often a process has told of new certificates.
fn reloads(home: &Path) -> usize {
    let log = std::fs::read_to_string(home.join("log")).unwrap_or_default();
    log.matches("new certificates are in force").count()
}

async fn all_reloaded(homes: &[PathBuf], times: usize) {
    for home in homes {
        eventually(&format!("{} does not take over new certificates", home.display()), || async {
            (reloads(home) >= times).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_certificates() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    let scratch = cluster.scratch.path().to_path_buf();
    let certified = Certified::init(&scratch, "authority", &cluster.id.to_string()).await;
    let key = std::fs::metadata(certified.authority.join("ca-1.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777, 0o600);
    let again =
        run_to_end(&["ca", "init", text(&certified.authority), "--cluster-id", &cluster.id.to_string()], "")
            .await;
    again.assert_refused(5, &["holds an authority already"]);

    for at in 0..3 {
        let directory = certified.issue("replica", &(at + 1).to_string()).await;
        let config = secured(&cluster.config_of(at), &directory);
        std::fs::write(cluster.replicas[at].config(), config).unwrap();
    }
    for (kind, which) in [("agent", "h1"), ("client", "ada"), ("admin", "root")] {
        certified.issue(kind, which).await;
    }
    let endpoints: Vec<String> = cluster.replicas.iter().map(|files| files.client.to_string()).collect();
    let admin = certified.tls("admin", "root");
    cluster.start_secured(&Security::Tls(admin.clone()));
    let leader = cluster.leader().await;

    // An agent with its certificate; one with another's does not start.
    let home = scratch.join("agent-h1");
    std::fs::create_dir_all(&home).unwrap();
    let agent_config = |name: &str| {
        let [x, y] = cluster.block;
        let plain = format!(
            "state_dir = {:?}\nendpoints = {endpoints:?}\n\n[node]\nname = {name:?}\nregion = \"region-1\"\ncluster = \"region-1-a\"\naddress = \"127.{x}.{y}.16\"\ncpu = 16\nmemory = \"64Gi\"\n",
            home.join("state"),
        );
        let path = home.join(format!("{name}.toml"));
        std::fs::write(&path, secured(&plain, &certified.directory("agent", "h1"))).unwrap();
        path
    };
    let refused = run_to_end(&["agent", "--config", text(&agent_config("h2"))], "").await;
    refused.assert_refused(1, &["agent/h1", "agent/h2"]);
    let _agent = spawn(&home, &["agent", "--config", text(&agent_config("h1"))]);

    let tls = certified.tls("client", "ada");
    let fresh = tokio::spawn(tls.clone().keep_fresh());
    let ada = client(&endpoints, Security::Tls(tls.clone()));
    eventually("the node does not come up", || async {
        let request = v1::GetNodeRequest { node: "h1".to_owned(), ..Default::default() };
        let node = ada.get_node(request).await.ok()?.node?;
        (node.status() == v1::NodeStatus::Up).then_some(())
    })
    .await;
    let submitted = ada.submit_job(submission("runs")).await.expect("a client may submit");
    let ended = wait_for_job(&ada, &submitted.job_ids[0], is_finished).await;
    assert_eq!(ended.phase(), v1::JobPhase::Succeeded, "{ended:#?}");

    impostors(&cluster, &certified, leader).await;

    // The command line, with certificates and without.
    let own = files(&certified.directory("client", "ada"));
    let with = ["--ca", text(&own.ca), "--cert", text(&own.cert), "--key", text(&own.key)];
    let list = ["--endpoint", &endpoints.join(","), "cluster", "status", "-o", "json"];
    let ran = run_to_end(&[&with[..], &list[..]].concat(), "").await;
    assert!(ran.code == Some(0) && ran.out.contains("certificateDaysLeft"), "{ran:#?}");
    let plain = format!("http://{}", endpoints[0]);
    let ran = run_to_end(&[&with[..], &["--endpoint", &plain, "cluster", "status"]].concat(), "").await;
    ran.assert_refused(2, &["http is plaintext", "https://"]);
    let cordon = ["--endpoint", &endpoints.join(","), "node", "cordon", "h1"];
    run_to_end(&[&with[..], &cordon[..]].concat(), "")
        .await
        .assert_refused(4, &["MS-8001", "all-tenants/ada"]);
    for words in [["drill", "run", "replica-silent", "--dry-run"].as_slice(), &["drill", "stop"]] {
        let words = [&with[..], &list[..2], words].concat();
        run_to_end(&words, "").await.assert_refused(4, &["MS-8001", "all-tenants/ada"]);
    }

    // A job that names no tenant is of the one that its submitter's certificate acts for.
    let eve = certified.directory("client", "eve");
    let of_tenant = ["client", "eve", "--tenant", "vision", "--out", text(&eve)];
    ca(&[&["issue", text(&certified.authority)], &of_tenant[..]].concat()).await;
    let own = files(&eve);
    let eve = ["--ca", text(&own.ca), "--cert", text(&own.cert), "--key", text(&own.key)];
    let run = ["--endpoint", &endpoints.join(","), "run", "--detach", "--cpu", "100m", "--", "true"];
    let ran = run_to_end(&[&eve[..], &run[..]].concat(), "").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let get = v1::GetJobRequest { job_id: ran.out.trim().to_owned(), ..Default::default() };
    let job = cluster.client().get_job(get).await.expect("it was submitted").job.expect("it is there");
    assert_eq!(job.tenant, "vision");

    // The load is about calls, not about work.
    let cordon = v1::CordonNodeRequest { node: "h1".to_owned(), ..Default::default() };
    cluster.client().cordon_node(cordon).await.expect("an operator may");
    rotate_under_load(&cluster, &certified, &endpoints, &tls, &home).await;
    assert!(admin.reload().expect("it was issued again"));
    let uncordon = v1::UncordonNodeRequest { node: "h1".to_owned(), ..Default::default() };
    cluster.client().uncordon_node(uncordon).await.expect("an operator may");

    // What the old authority has signed opens nothing any more, and what it held open is closed.
    let submitted = ada.submit_job(submission("after")).await.expect("a client may submit");
    let ended = wait_for_job(&ada, &submitted.job_ids[0], is_finished).await;
    assert_eq!(ended.phase(), v1::JobPhase::Succeeded, "the agent goes on: {ended:#?}");
    fresh.abort();
    read_again_when_told(&cluster, &certified).await;
    cluster.assert_digests_agree().await;
}

/// SIGHUP: the files are read at once, and nothing else happens to the process.
async fn read_again_when_told(cluster: &Cluster, certified: &Certified) {
    let home = &cluster.replicas[0].home;
    let before = reloads(home);
    let told = || cluster.log_of(0).matches("certificates are read again").count();
    assert_eq!(told(), 0);
    // The same files as before: nothing to take over.
    cluster.signal(0, nix::sys::signal::Signal::SIGHUP);
    eventually("SIGHUP is not heard", || async { (told() == 1).then_some(()) }).await;
    certified.issue("replica", "1").await;
    cluster.signal(0, nix::sys::signal::Signal::SIGHUP);
    eventually("SIGHUP is not heard again", || async { (told() == 2).then_some(()) }).await;
    eventually("the new certificate is not in force", || async { (reloads(home) > before).then_some(()) })
        .await;
    cluster.status_of(0).await.expect("it serves with the new certificate");
}

/// A new authority, new certificates, no old authority, while calls go on through every replica.
async fn rotate_under_load(
    cluster: &Cluster,
    certified: &Certified,
    endpoints: &[String],
    tls: &Tls,
    agent: &Path,
) {
    let mut homes: Vec<PathBuf> = cluster.replicas.iter().map(|files| files.home.clone()).collect();
    homes.push(agent.to_path_buf());
    // A broken file in between changes nothing.
    let victim = certified.directory("replica", "1").join("tls.crt");
    let genuine = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    eventually("a broken certificate is not told of", || async {
        let log = std::fs::read_to_string(homes[0].join("log")).unwrap_or_default();
        log.contains("those before stay in force").then_some(())
    })
    .await;
    std::fs::write(&victim, &genuine).unwrap();

    // A connection that stays open through all of it, with the certificate it was made with.
    let old_files = cluster.scratch.path().join("old");
    std::fs::create_dir_all(&old_files).unwrap();
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::copy(certified.directory("client", "ada").join(name), old_files.join(name)).unwrap();
    }
    let old = Security::Tls(Tls::load(files(&old_files)).unwrap());
    let mut kept = JobServiceClient::new(
        channel(&endpoints[0], &old, Expect::AnyReplica).await.expect("it is good yet"),
    );
    kept.list_jobs(v1::ListJobsRequest::default()).await.expect("it is good yet");

    let load = Load::start(endpoints, tls);
    load.goes_on(20).await;
    let rotate = |step: &'static str| ca_step(&certified.authority, step);
    rotate("prepare").await;
    certified.distribute();
    all_reloaded(&homes, 1).await;
    load.goes_on(20).await;
    rotate("switch").await;
    for at in 1..=cluster.replicas.len() {
        certified.issue("replica", &at.to_string()).await;
    }
    for (kind, which) in [("agent", "h1"), ("client", "ada"), ("admin", "root")] {
        certified.issue(kind, which).await;
    }
    all_reloaded(&homes, 2).await;
    eventually("the client does not take over its certificate", || async {
        (tls.epoch() >= 3).then_some(())
    })
    .await;
    load.goes_on(20).await;
    rotate("finish").await;
    certified.distribute();
    all_reloaded(&homes, 3).await;
    load.goes_on(20).await;
    load.end().await;
    eventually("a connection of the old authority stays open", || {
        let mut kept = kept.clone();
        async move { kept.list_jobs(v1::ListJobsRequest::default()).await.is_err().then_some(()) }
    })
    .await;
}

async fn ca_step(authority: &Path, step: &str) {
    ca(&["rotate", text(authority), step]).await;
}
