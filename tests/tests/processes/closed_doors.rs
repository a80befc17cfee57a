//! Every call that there is, by the descriptors, at both doors of a real replica: nobody without a certificate
//! of this cluster is answered, and nobody with one beyond what its kind may.
//!
//! The descriptors say what there is, not the table of who may call what: a call that somebody adds and forgets
//! there fails here.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use hyper_util::rt::TokioIo;
use muster_client::LogItem;
use muster_transport::{Authority, PeerName, Principal, Role, Security, ShortName, Tls, TlsFiles};
use muster_types::{RefusalCode, ReplicaId};
use muster_wire::status::Refused;
use muster_wire::v1;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::support::{Cluster, PATIENCE, heavy, say};

/// The package of what replicas say to one another.
const PEER_PACKAGE: &str = "/muster.raft.";
/// A call that every member may make, and that answers an empty message.
const HARMLESS: &str = "/muster.v1beta1.ClusterService/GetServerInfo";

/// Every call of every service that a replica could serve.
fn described() -> BTreeSet<String> {
    let sets = [
        muster_wire::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut paths = BTreeSet::new();
    for bytes in sets {
        let set = FileDescriptorSet::decode(bytes).expect("descriptors are whole");
        for file in &set.file {
            for service in &file.service {
                let methods = service.method.iter();
                paths.extend(
                    methods.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())),
                );
            }
        }
    }
    paths
}

/// How somebody connects.
#[derive(Clone)]
enum Credentials {
    Plaintext,
    /// TLS, with a certificate or without.
    Tls(Arc<rustls::ClientConfig>),
}

type Identity = Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>;

fn shown(identity: Identity) -> Credentials {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting));
    let mut config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Credentials::Tls(Arc::new(config))
}

/// Takes any server for the right one: the refusals here are the replica's alone.
#[derive(Debug)]
struct Trusting;

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
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

/// Bytes in the clear or not.
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

impl From<Io> for Box<dyn Stream> {
    fn from(io: Io) -> Box<dyn Stream> {
        match io {
            Io::Plain(stream) => Box::new(stream),
            Io::Tls(stream) => stream,
        }
    }
}

/// Makes connections to one address, as somebody.
struct Stranger {
    address: SocketAddr,
    shown: Credentials,
}

impl Service<Uri> for Stranger {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (address, shown) = (self.address, self.shown.clone());
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let io = match shown {
                Credentials::Plaintext => Io::Plain(stream),
                Credentials::Tls(config) => {
                    let name = ServerName::try_from("muster").map_err(io::Error::other)?;
                    Io::Tls(Box::new(TlsConnector::from(config).connect(name, stream).await?))
                }
            };
            Ok(TokioIo::new(io.into()))
        })
    }
}

/// Any call with an empty message, up to the beginning of its answer.
async fn call(channel: Channel, path: &str) -> Result<(), Status> {
    let calling = async {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let path = PathAndQuery::try_from(path).expect("a path");
        grpc.server_streaming(Request::new(()), path, codec).await.map(drop)
    };
    match tokio::time::timeout(PATIENCE, calling).await {
        Ok(answer) => answer,
        Err(_) => panic!("{path}: neither an answer nor an end"),
    }
}

/// The same on a separate connection.
async fn knock(address: SocketAddr, shown: &Credentials, path: &str) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let connector = Stranger { address, shown: shown.clone() };
    let connecting = endpoint.connect_with_connector(connector);
    match tokio::time::timeout(PATIENCE, connecting).await {
        Ok(Ok(channel)) => call(channel, path).await,
        Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
        Err(_) => panic!("{path}: neither a connection nor an end"),
    }
}

struct Site {
    cluster: Cluster,
    authority: Authority,
    directory: PathBuf,
}

fn short(name: &str) -> ShortName {
    ShortName::new(name).expect("a name")
}

fn identity(directory: &Path) -> Identity {
    let chain =
        CertificateDer::pem_file_iter(directory.join("tls.crt")).unwrap().map(Result::unwrap).collect();
    Some((chain, PrivateKeyDer::from_pem_file(directory.join("tls.key")).unwrap()))
}

impl Site {
    /// One replica, alone and so its own leader, with certificates.
    async fn open() -> Site {
        let mut cluster = Cluster::lay_out(1);
        let directory = cluster.scratch.path().join("certificates");
        let authority = Authority::init(&directory.join("authority"), cluster.id, 30).expect("it is made");
        let tls = |directory: &Path| TlsFiles {
            ca: directory.join("ca.crt"),
            cert: directory.join("tls.crt"),
            key: directory.join("tls.key"),
        };
        let own = directory.join("own");
        authority.issue(Role::Replica(ReplicaId(1)), 20, &own, false).expect("it is issued");
        let admin = directory.join("operator");
        authority.issue(Role::Admin(short("root")), 20, &admin, false).expect("it is issued");
        let files = tls(&own);
        let config = cluster.config_of(0).replace("http://", "https://");
        let config =
            format!("{config}\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n", files.ca, files.cert, files.key);
        std::fs::write(cluster.replicas[0].config(), config).unwrap();
        cluster.start_secured(&Security::Tls(Tls::load(tls(&admin)).expect("it can be used")));
        cluster.leader().await;
        Site { cluster, authority, directory }
    }

    fn issued(&self, authority: &Authority, name: &str, role: Role) -> Credentials {
        let out = self.directory.join(name);
        authority.issue(role, 5, &out, true).expect("it is issued");
        shown(identity(&out))
    }

    /// What the cluster's own authority has signed, and is over.
    fn expired(&self) -> Credentials {
        let authority = self.directory.join("authority");
        let read = |name| std::fs::read_to_string(authority.join(name)).unwrap();
        let key = rcgen::KeyPair::from_pem(&read("ca-1.key")).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca-1.crt"), key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        let name = PeerName { cluster: self.cluster.id, role: Role::Admin(short("root")) }.to_string();
        params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().unwrap())];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let own = rcgen::KeyPair::generate().unwrap();
        let leaf = params.signed_by(&own, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
        shown(Some((vec![leaf.der().clone()], key)))
    }

    fn doors(&self) -> [(&'static str, SocketAddr); 2] {
        let replica = &self.cluster.replicas[0];
        [("the clients' door", replica.client), ("the replicas' door", replica.peer)]
    }

    /// The decisions in the log, by name, but for those that a leader makes by itself: it may be elected again at any time.
    async fn decided(&self) -> Vec<String> {
        let request = v1::ReadDecisionsRequest { from_index: 1, ..Default::default() };
        let mut reader = self.cluster.client_of(0).read_decisions(request);
        let mut decided = Vec::new();
        while let Some(item) = reader.next().await.expect("an operator may look") {
            if let LogItem::Record(record) = item
                && !matches!(record.decision.as_str(), "leader_started" | "digest_recorded")
            {
                decided.push(record.decision);
            }
        }
        assert!(!decided.is_empty(), "the log begins with the cluster");
        decided
    }

    /// One channel as a member.
    async fn member(&self, address: SocketAddr, role: Role) -> Result<Channel, tonic::transport::Error> {
        let shown = self.issued(&self.authority, "member", role);
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        endpoint.connect_with_connector(Stranger { address, shown }).await
    }
}

/// Nothing that a replica says in answer to a call: the connection ends.
fn assert_unanswered(answer: &Result<(), Status>, what: &str) {
    let status = answer.as_ref().expect_err(what);
    let unanswered =
        matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled)
            && Refused::from_status(status).code.is_none();
    assert!(unanswered, "{what}: {status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_answered_without_the_certificate_for_it() {
    let _heavy = heavy().await;
    let site = Site::open().await;
    let paths = described();
    assert!(paths.iter().any(|path| path.starts_with(PEER_PACKAGE)) && paths.contains(HARMLESS));
    let before = site.decided().await;
    let forger = Authority::init(&site.directory.join("forger"), site.cluster.id, 30).expect("it is made");
    let strangers = [
        ("no certificate", shown(None)),
        ("plaintext", Credentials::Plaintext),
        ("another authority's", site.issued(&forger, "forged", Role::Admin(short("root")))),
        (
            "another authority's, of a replica",
            site.issued(&forger, "forged-replica", Role::Replica(ReplicaId(1))),
        ),
        ("one that has run out", site.expired()),
    ];
    // A member that has the right is answered over the same path: the path does not cause the refusals below.
    let admin = site.issued(&site.authority, "admin", Role::Admin(short("root")));
    knock(site.cluster.replicas[0].client, &admin, HARMLESS).await.expect("a member is answered");
    let mut refused = 0;
    for (door, address) in site.doors() {
        for (who, shown) in &strangers {
            for path in &paths {
                let answer = knock(address, shown, path).await;
                assert_unanswered(&answer, &format!("{who} at {door}: {path}"));
                refused += 1;
            }
        }
    }
    assert_eq!(site.decided().await, before, "somebody was obeyed");
    say(&format!("{} calls at two doors, {refused} tries of strangers, none answered", paths.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_opens_what_its_kind_may_and_nothing_else() {
    let _heavy = heavy().await;
    let site = Site::open().await;
    let paths = described();
    let before = site.decided().await;
    let roles = [
        Role::Agent(short("h1")),
        Role::AgentGroup(short("slurm-a")),
        Role::Client(short("ada")),
        Role::AllTenants(short("ada")),
        Role::TenantClient { tenant: short("vision"), user: short("ada") },
        Role::Admin(short("root")),
        Role::Replica(ReplicaId(1)),
        // Of this cluster by its certificate, and a member of nothing.
        Role::Replica(ReplicaId(9)),
    ];
    let replica = &site.cluster.replicas[0];
    let denied = |answer: &Result<(), Status>| {
        let status = answer.as_ref().err();
        status.and_then(|status| Refused::from_status(status).code) == Some(RefusalCode::PermissionDenied)
    };
    for role in roles {
        let principal = Principal::Named(PeerName { cluster: site.cluster.id, role });
        let channel = site.member(replica.client, role).await.expect("a member connects");
        for path in &paths {
            if path.starts_with(PEER_PACKAGE) {
                let answer = call(channel.clone(), path).await;
                let code = answer.as_ref().expect_err("replicas speak at another door").code();
                assert!(
                    matches!(code, Code::Unimplemented | Code::PermissionDenied),
                    "{role} {path}: {answer:?}"
                );
                continue;
            }
            let may = muster_api::may_call(path, &principal);
            let may = may.unwrap_or_else(|| panic!("{path} is described, and no line says who may call it"));
            if !may {
                let answer = call(channel.clone(), path).await;
                assert!(denied(&answer), "{role} {path}: {answer:?}");
            }
        }
        let channel = site.member(replica.peer, role).await.expect("a member connects");
        for path in &paths {
            let status = call(channel.clone(), path).await.expect_err("an empty message is nobody's");
            let expected = match role {
                // It names no sender; `tls.rs` says what becomes of one in whose name others speak.
                Role::Replica(_) if path.starts_with(PEER_PACKAGE) => Code::InvalidArgument,
                _ if path.starts_with(PEER_PACKAGE) => Code::PermissionDenied,
                _ => Code::Unimplemented,
            };
            assert_eq!(status.code(), expected, "{role} among replicas: {path}: {status:?}");
        }
    }
    assert_eq!(site.decided().await, before, "somebody was obeyed");
}
