//! Who gets a connection, and for how long.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_transport::{
    AcceptLimits, Authority, Expect, Host, PeerName, PermittedHosts, Principal, Role, Security, ShortName,
    Tls, TlsFiles,
};
use muster_types::{ClusterId, ReplicaId};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt as _;
use tonic::codegen::Service as _;
use tonic::transport::server::Connected as _;

const CLUSTER: ClusterId = ClusterId(0xabc);

async fn guarded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing happened: {what}"),
    }
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles { ca: directory.join("ca.crt"), cert: directory.join("tls.crt"), key: directory.join("tls.key") }
}

struct World {
    directory: TempDir,
    authority: Authority,
}

impl World {
    fn new(cluster: ClusterId) -> World {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::init(&directory.path().join("authority"), cluster, 10).unwrap();
        World { directory, authority }
    }

    fn issue(&self, role: Role) -> PathBuf {
        let out = self.directory.path().join(role.to_string().replace('/', "-"));
        self.authority.issue(role, 5, &out, true).unwrap();
        out
    }

    /// Where the certificate lies that was issued last.
    fn issued(&self, role: Role) -> PathBuf {
        self.directory.path().join(role.to_string().replace('/', "-")).join("tls.crt")
    }

    fn tls(&self, role: Role) -> Tls {
        Tls::load(files(&self.issue(role))).unwrap()
    }

    fn distribute(&self, directory: &Path) {
        std::fs::copy(self.authority.bundle(), directory.join("ca.crt")).unwrap();
    }
}

fn replica(id: u64) -> Role {
    Role::Replica(ReplicaId(id))
}

fn client() -> Role {
    Role::Client(ShortName::new("ada").unwrap())
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn dial(
    security: &Security,
    expect: Expect,
    to: SocketAddr,
) -> std::io::Result<impl Unpin + hyper_util_io::Io> {
    let uri = security.address(&to.to_string()).unwrap().parse().unwrap();
    let connection = guarded("a connection", security.connector(expect).call(uri)).await?;
    Ok(connection.into_inner())
}

mod hyper_util_io {
    pub trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite {}
    impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite> Io for T {}
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let world = World::new(CLUSTER);
    let (listener, address) = listen().await;
    let server = world.tls(replica(1));
    let mut incoming = Security::Tls(server).accept(listener, AcceptLimits::DEFAULT);
    let caller = Security::Tls(world.tls(client()));
    for expect in [Expect::AnyReplica, Expect::Replica(ReplicaId(1))] {
        let mut there = dial(&caller, expect, address).await.unwrap();
        let mut here = guarded("it arrives", incoming.next()).await.unwrap().unwrap();
        assert_eq!(
            here.connect_info().principal,
            Principal::Named(PeerName { cluster: CLUSTER, role: client() })
        );
        there.write_all(b"hello").await.unwrap();
        there.flush().await.unwrap();
        let mut bytes = [0; 5];
        guarded("bytes", here.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"hello");
    }
    let wrong = dial(&caller, Expect::Replica(ReplicaId(2)), address).await.err().unwrap();
    assert!(
        wrong.to_string().contains("replica/1") || format!("{wrong:?}").contains("WrongName"),
        "{wrong:?}"
    );
}

/// A handshake with anything at all; whether a byte came back before the end.
async fn stranger(
    address: SocketAddr,
    trust: &Path,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> std::io::Result<usize> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(trust).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting));
    let config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("any").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let mut bytes = [0; 1];
    stream.read(&mut bytes).await
}

/// Takes any server for the right one: the refusals below are the listener's alone.
#[derive(Debug)]
struct Trusting;

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

fn identity(directory: &Path) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let files = files(directory);
    let chain = CertificateDer::pem_file_iter(&files.cert).unwrap().map(Result::unwrap).collect();
    Some((chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()))
}

/// A certificate of the world's own authority with something changed.
fn changed(
    world: &World,
    change: impl FnOnce(&mut rcgen::CertificateParams),
) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let authority = world.directory.path().join("authority");
    let key = std::fs::read_to_string(authority.join("ca-1.key")).unwrap();
    let certificate = std::fs::read_to_string(authority.join("ca-1.crt")).unwrap();
    let key = rcgen::KeyPair::from_pem(&key).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&certificate, key).unwrap();
    let mut params = rcgen::CertificateParams::default();
    let name = format!("spiffe://{CLUSTER}/client/ada");
    params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().unwrap())];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let own = rcgen::KeyPair::generate().unwrap();
    let leaf = params.signed_by(&own, &issuer).unwrap();
    Some((vec![leaf.der().clone()], PrivateKeyDer::try_from(own.serialize_der()).unwrap()))
}

#[tokio::test]
async fn strangers_get_no_connection() {
    let world = World::new(CLUSTER);
    let (listener, address) = listen().await;
    let mut incoming = Security::Tls(world.tls(replica(1))).accept(listener, AcceptLimits::DEFAULT);
    let bundle = world.authority.bundle();
    let uri = |text: &str| rcgen::SanType::URI(text.try_into().unwrap());
    let forger = World::new(CLUSTER);
    let strangers = [
        ("no certificate", None),
        ("another authority of the same cluster's name", identity(&forger.issue(client()))),
        ("expired", changed(&world, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))),
        ("not yet valid", changed(&world, |params| params.not_before = rcgen::date_time_ymd(2090, 1, 1))),
        (
            "not for clients",
            changed(&world, |params| {
                params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
            }),
        ),
        ("no name", changed(&world, |params| params.subject_alt_names.clear())),
        (
            "a host's name",
            changed(&world, |params| {
                params.subject_alt_names = vec![rcgen::SanType::DnsName("localhost".try_into().unwrap())];
            }),
        ),
        (
            "another cluster",
            changed(&world, |params| {
                params.subject_alt_names = vec![uri(&format!("spiffe://{}/client/ada", ClusterId(1)))];
            }),
        ),
        (
            "two names",
            changed(&world, |params| {
                let other = uri(&format!("spiffe://{CLUSTER}/admin/ada"));
                params.subject_alt_names.push(other);
            }),
        ),
        (
            "no kind of ours",
            changed(&world, |params| {
                params.subject_alt_names = vec![uri(&format!("spiffe://{CLUSTER}/root/ada"))];
            }),
        ),
    ];
    for (what, own) in strangers {
        let answered = guarded(what, stranger(address, &bundle, own)).await;
        assert!(matches!(answered, Err(_) | Ok(0)), "{what}: {answered:?}");
    }
    // No TLS at all.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    let _ = guarded("the end", plain.read_to_end(&mut bytes)).await;
    // The first that arrives is the one that is good.
    let good = changed(&world, |_| ());
    let member = tokio::spawn(async move { stranger(address, &bundle, good).await });
    let arrived = guarded("a member", incoming.next()).await.unwrap().unwrap();
    assert_eq!(arrived.connect_info().principal.to_string(), "client/ada");
    drop(arrived);
    let _ = guarded("its end", member).await;
}

#[tokio::test]
async fn who_says_nothing_is_given_up_and_takes_nobodys_place() {
    let world = World::new(CLUSTER);
    let (listener, address) = listen().await;
    let limits = AcceptLimits {
        handshake_timeout: Duration::from_millis(300),
        handshakes_per_address_max: 2,
        ..AcceptLimits::DEFAULT
    };
    let mut incoming = Security::Tls(world.tls(replica(1))).accept(listener, limits);
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for stream in &mut silent {
        let mut byte = [0; 1];
        let end = guarded("it is given up", stream.read(&mut byte)).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    let caller = Security::Tls(world.tls(client()));
    let _there = dial(&caller, Expect::AnyReplica, address).await.unwrap();
    guarded("a member", incoming.next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn new_files_are_taken_over_and_broken_ones_are_not() {
    let world = World::new(CLUSTER);
    let directory = world.issue(client());
    let tls = Tls::load(files(&directory)).unwrap();
    assert_eq!((tls.epoch(), tls.reload().unwrap()), (1, false));
    let (before, days) = (std::fs::read(directory.join("tls.crt")).unwrap(), tls.days_left());
    let is_of_the_first = |days: Option<i64>| days.is_some_and(|days| (3..=5).contains(&days));
    assert!(is_of_the_first(days), "{days:?}");

    for broken in [&b""[..], b"not a certificate", &before[..before.len() / 2]] {
        std::fs::write(directory.join("tls.crt"), broken).unwrap();
        assert!(tls.reload().is_err());
    }
    // A certificate without its key, and one that the authorities do not know.
    world.authority.issue(client(), 30, &directory, true).unwrap();
    std::fs::write(directory.join("tls.crt"), &before).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("does not go with"), "{error}");
    World::new(CLUSTER).authority.issue(client(), 30, &directory, true).unwrap();
    world.distribute(&directory);
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("not accepted by the authorities"), "{error}");
    // Somebody else's.
    world.authority.issue(Role::Admin(ShortName::new("ada").unwrap()), 30, &directory, true).unwrap();
    let error = tls.reload().unwrap_err();
    assert!(error.to_string().contains("admin/ada"), "{error}");
    // A key that everybody can read.
    world.authority.issue(client(), 30, &directory, true).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(directory.join("tls.key"), open).unwrap();
    assert!(tls.reload().unwrap_err().to_string().contains("chmod 600"));
    assert!(tls.epoch() == 1 && is_of_the_first(tls.days_left()), "what was in force stays");

    world.authority.issue(client(), 30, &directory, true).unwrap();
    assert!(tls.reload().unwrap());
    assert_eq!(tls.epoch(), 2);
}

#[tokio::test]
async fn a_dropped_authority_ends_what_it_held_open() {
    let mut world = World::new(CLUSTER);
    let (server_files, client_files) = (world.issue(replica(1)), world.issue(client()));
    let (server, caller) =
        (Tls::load(files(&server_files)).unwrap(), Tls::load(files(&client_files)).unwrap());
    let (listener, address) = listen().await;
    let mut incoming = Security::Tls(server.clone()).accept(listener, AcceptLimits::DEFAULT);
    let security = Security::Tls(caller.clone());
    let _old = dial(&security, Expect::AnyReplica, address).await.unwrap();
    let mut old_here = guarded("it arrives", incoming.next()).await.unwrap().unwrap();

    world.authority.prepare(10).unwrap();
    world.distribute(&server_files);
    world.distribute(&client_files);
    assert!(server.reload().unwrap() && caller.reload().unwrap());
    world.authority.switch().unwrap();
    world.authority.issue(replica(1), 5, &server_files, true).unwrap();
    world.authority.issue(client(), 5, &client_files, true).unwrap();
    assert!(server.reload().unwrap() && caller.reload().unwrap());
    let _new = dial(&security, Expect::AnyReplica, address).await.unwrap();
    let mut new_here = guarded("it arrives", incoming.next()).await.unwrap().unwrap();

    world.authority.finish().unwrap();
    world.distribute(&server_files);
    assert!(server.reload().unwrap());
    let mut byte = [0; 1];
    let ended = guarded("the old one ends", old_here.read(&mut byte)).await.unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionAborted);
    let still = tokio::time::timeout(Duration::from_millis(50), new_here.read(&mut byte)).await;
    assert!(still.is_err(), "the new one ended as well: {still:?}");
}

#[test]
fn the_steps_of_a_rotation_come_in_order_and_keys_stay_closed() {
    let mut world = World::new(CLUSTER);
    let dir = world.directory.path().join("authority");
    assert!(world.authority.switch().is_err() && world.authority.finish().is_err());
    world.authority.prepare(10).unwrap();
    assert!(world.authority.prepare(10).is_err() && world.authority.finish().is_err());
    // As after a crash between the state and the bundle.
    std::fs::write(world.authority.bundle(), "torn").unwrap();
    world.authority = Authority::open(&dir).unwrap();
    let bundle = std::fs::read_to_string(world.authority.bundle()).unwrap();
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(world.authority.would_switch().unwrap(), 2);
    assert!(world.authority.would_prepare(10).is_err() && world.authority.would_finish().is_err());
    world.authority.switch().unwrap();
    assert!(world.authority.switch().is_err());
    assert_eq!(world.authority.would_finish().unwrap(), (1, 2));
    assert!(dir.join("ca-1.key").exists(), "what would be is no step");
    world.authority.finish().unwrap();
    assert!(!dir.join("ca-1.key").exists());
    let report = Authority::open(&dir).unwrap().report().unwrap();
    assert_eq!(report.authorities.len(), 1);
    assert!(report.authorities[0].issues && report.authorities[0].path.ends_with("ca-2.crt"));

    let out = world.directory.path().join("leaf");
    world.authority.issue(client(), 5, &out, false).unwrap();
    let before = std::fs::read(out.join("tls.key")).unwrap();
    let refused = world.authority.issue(client(), 5, &out, false).unwrap_err();
    assert!(refused.to_string().contains("--force"), "{refused}");
    assert_eq!(std::fs::read(out.join("tls.key")).unwrap(), before);
    for key in [out.join("tls.key"), dir.join("ca-2.key")] {
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&key).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "{}", key.display());
    }
    assert!(Authority::init(&dir, CLUSTER, 10).is_err());
    assert!(world.authority.issue(client(), 0, &out, true).is_err());
    assert!(Authority::open(world.directory.path()).is_err());
}

#[tokio::test]
async fn a_revoked_certificate_ends_its_connections_and_makes_no_others() {
    let world = World::new(CLUSTER);
    let (listener, address) = listen().await;
    let server = Security::Tls(world.tls(replica(1)));
    let mut incoming = server.accept(listener, AcceptLimits::DEFAULT);
    let stolen = Security::Tls(world.tls(client()));
    let other = Security::Tls(world.tls(Role::Admin(ShortName::new("root").unwrap())));
    let mut with_stolen = dial(&stolen, Expect::AnyReplica, address).await.unwrap();
    let mut of_stolen = guarded("it arrives", incoming.next()).await.unwrap().unwrap();
    let mut with_other = dial(&other, Expect::AnyReplica, address).await.unwrap();
    let mut of_other = guarded("it arrives", incoming.next()).await.unwrap().unwrap();
    let report = muster_transport::describe(&world.issued(client())).unwrap();
    server.revoke([report.serial.parse().unwrap()].into());
    let ended = guarded("its end", of_stolen.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionAborted);
    drop(of_stolen);
    assert_eq!(guarded("its end", with_stolen.read(&mut [0; 1])).await.unwrap_or(0), 0);
    // The other goes on.
    with_other.write_all(b"hello").await.unwrap();
    with_other.flush().await.unwrap();
    let mut bytes = [0; 5];
    guarded("bytes", of_other.read_exact(&mut bytes)).await.unwrap();
    // The client is refused behind its own handshake, so that it hears of it when it reads.
    if let Ok(mut refused) = dial(&stolen, Expect::AnyReplica, address).await {
        assert_eq!(guarded("its end", refused.read(&mut [0; 1])).await.unwrap_or(0), 0);
    }
    // One that is issued instead is as good as any.
    let again = Security::Tls(world.tls(client()));
    let _there = dial(&again, Expect::AnyReplica, address).await.unwrap();
    guarded("it arrives", incoming.next()).await.unwrap().unwrap();
}

#[test]
fn certificates_of_replicas_alone_name_the_host_that_other_clients_verify() {
    let world = World::new(CLUSTER);
    let host = b"replica.muster.internal";
    let ada = || ShortName::new("ada").unwrap();
    for (role, has_it) in [
        (Role::Replica(ReplicaId(1)), true),
        (Role::Agent(ada()), false),
        (Role::Client(ada()), false),
        (Role::Admin(ada()), false),
    ] {
        let certificate = CertificateDer::from_pem_file(world.issue(role).join("tls.crt")).unwrap();
        assert_eq!(certificate.windows(host.len()).any(|part| part == host), has_it, "{role}");
    }
}

/// Whether a client that goes by host names, as browsers do, takes the certificate in this directory for that of a host.
fn browser_accepts(directory: &Path, host: &str) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(directory.join("ca.crt")).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .unwrap();
    let certificate = CertificateDer::from_pem_file(directory.join("tls.crt")).unwrap();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let now = rustls::pki_types::UnixTime::now();
    use rustls::client::danger::ServerCertVerifier as _;
    verifier.verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
}

fn hosts(texts: &[&str]) -> Vec<Host> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn permitted(texts: &[&str]) -> Vec<PermittedHosts> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_browser_accepts_a_replica_by_the_hosts_that_it_was_issued_for() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("authority");
    let permits = permitted(&["muster.example.org", "127.0.0.0/8"]);
    let mut authority = Authority::init_for(&dir, CLUSTER, 10, &permits).unwrap();
    let out = directory.path().join("replica-1");
    let names = hosts(&["r1.muster.example.org", "127.0.0.1"]);
    authority.issue_for(replica(1), 5, &out, true, &names).unwrap();
    for host in ["r1.muster.example.org", "127.0.0.1", "replica.muster.internal"] {
        assert!(browser_accepts(&out, host), "{host}");
    }
    for host in ["r2.muster.example.org", "127.0.0.2", "bank.example"] {
        assert!(!browser_accepts(&out, host), "{host}");
    }
    // Members go by the role, as before.
    let (listener, address) = listen().await;
    let server = Security::Tls(Tls::load(files(&out)).unwrap());
    let mut incoming = server.accept(listener, AcceptLimits::DEFAULT);
    let ada = directory.path().join("ada");
    authority.issue(client(), 5, &ada, true).unwrap();
    let member = Security::Tls(Tls::load(files(&ada)).unwrap());
    let _there = dial(&member, Expect::Replica(ReplicaId(1)), address).await.unwrap();
    guarded("it arrives", incoming.next()).await.unwrap().unwrap();

    for host in ["bank.example", "10.0.0.1", "::1"] {
        let refused = authority.issue_for(replica(1), 5, &out, true, &hosts(&[host])).unwrap_err();
        assert!(refused.to_string().contains("was not made for"), "{refused}");
    }
    assert!(authority.issue_for(client(), 5, &out, true, &hosts(&["127.0.0.1"])).is_err());
    // A rotation adds hosts: the new authority is good for them, and the old one is not.
    authority.prepare_for(10, &permitted(&["fd00::1"])).unwrap();
    assert!(authority.issue_for(replica(1), 5, &out, true, &hosts(&["fd00::1"])).is_err());
    authority.switch().unwrap();
    authority.finish().unwrap();
    let mut both = names;
    both.extend(hosts(&["fd00::1"]));
    authority.issue_for(replica(1), 5, &out, true, &both).unwrap();
    assert!(browser_accepts(&out, "fd00::1") && browser_accepts(&out, "127.0.0.1"));
}

#[test]
fn who_has_an_authoritys_key_signs_no_other_site_for_those_who_trust_it() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("authority");
    let authority = Authority::init_for(&dir, CLUSTER, 10, &permitted(&["muster.example.org"])).unwrap();
    drop(authority);
    // What its directory states is changed, its certificate cannot be.
    let state = std::fs::read_to_string(dir.join("authority.json")).unwrap();
    std::fs::write(
        dir.join("authority.json"),
        state.replace("muster.example.org\"", "bank.example\", \"10.0.0.0/8\""),
    )
    .unwrap();
    let authority = Authority::open(&dir).unwrap();
    let out = directory.path().join("forged");
    for host in ["bank.example", "10.0.0.1"] {
        authority.issue_for(replica(1), 5, &out, true, &hosts(&[host])).unwrap();
        assert!(!browser_accepts(&out, host), "{host}");
    }
}
