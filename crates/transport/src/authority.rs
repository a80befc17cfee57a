//! The cluster's own authority: a directory with its keys, which belongs on no replica.
//!
//! `authority.json` says which generation issues and which are trusted; it is written last and whole, so
//! every step happens or does not. `bundle.crt` is made from it and repaired whenever the directory is opened.
//!
//! Rotation takes three steps, and between them everybody trusts both authorities:
//! 1. *prepare*: a new authority is made; its bundle goes to every process.
//! 2. *switch*: the new one issues; every process gets a new leaf.
//! 3. *finish*: the old one is dropped; the bundle goes to every process once more.
//!
//! **Invariant:** a private key is written with mode 0600 and never over another without being asked to.

use crate::error::AuthorityError;
use crate::files::{read_bounded, write_whole};
use crate::host::{Host, PermittedHosts, constraints};
use crate::name::{PeerName, Role};
use crate::security::unix_now;
use crate::verify::facts;
use muster_types::{CertificateSerial, ClusterId};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest validity of an authority.
const AUTHORITY_DAYS_MAX: u32 = 3_653;
/// Longest validity of a leaf: a theft is not noticed.
const LEAF_DAYS_MAX: u32 = 825;
/// Clocks of machines differ a little; a certificate is good from a little before it was made.
const BACKDATED_S: i64 = 600;
const DAY_S: i64 = 24 * 3_600;

/// What is where in the directory.
const STATE: &str = "authority.json";
const BUNDLE: &str = "bundle.crt";
/// What was issued, a line each.
const ISSUED: &str = "issued.jsonl";

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedLine {
    /// Its holder, `spiffe://…`.
    pub name: String,
    /// Its serial number, by which it can be revoked.
    pub serial: String,
    /// Unix seconds of its end.
    pub not_after_s: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    cluster_id: String,
    /// The generation that issues.
    issues: u32,
    /// Those that are trusted, oldest first.
    trusted: Vec<u32>,
    /// Hosts that certificates of replicas may name; none for every one, in authorities that were made before there was a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<String>>,
    /// The same of an authority that is prepared and does not issue yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_hosts: Option<Vec<String>>,
}

/// An authority's directory.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    cluster: ClusterId,
    state: State,
}

/// How an authority stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityReport {
    /// The cluster it signs for.
    pub cluster_id: String,
    /// What every process is to be given as `ca`.
    pub bundle: PathBuf,
    /// Each trusted authority, oldest first.
    pub authorities: Vec<CertificateReport>,
    /// The step of a rotation that comes next.
    pub next: String,
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateReport {
    /// Where it lies.
    pub path: PathBuf,
    /// Its holder, `spiffe://…`.
    pub name: String,
    /// Its serial number, by which it can be revoked.
    pub serial: String,
    /// Whether it signs others at present.
    pub issues: bool,
    /// Unix seconds of its end.
    pub not_after_s: i64,
    /// Whole days until then; negative when it is over.
    pub days_left: i64,
}

/// What was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Whom it names.
    pub name: PeerName,
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities, as they are trusted at present.
    pub ca: PathBuf,
}

/// In the certificates of all replicas of a cluster, and of nobody else: what clients ask for that verify host
/// names and know nothing of ours.
const REPLICA_HOST: &str = "replica.muster.internal";

fn make(error: rcgen::Error) -> AuthorityError {
    AuthorityError::Make { detail: error.to_string() }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthorityError {
    let path = path.to_path_buf();
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists => AuthorityError::Exists { path },
        _ => AuthorityError::File { action, path, source },
    }
}

fn params(uri: &str, common_name: &str, days: u32) -> Result<CertificateParams, AuthorityError> {
    let now = unix_now();
    let date = |seconds| {
        OffsetDateTime::from_unix_timestamp(seconds)
            .map_err(|error| AuthorityError::Make { detail: error.to_string() })
    };
    let mut params = CertificateParams::default();
    params.not_before = date(now - BACKDATED_S)?;
    params.not_after = date(now + i64::from(days) * DAY_S)?;
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(uri).map_err(make)?)];
    Ok(params)
}

fn days_within(days: u32, days_max: u32) -> Result<(), AuthorityError> {
    if (1..=days_max).contains(&days) { Ok(()) } else { Err(AuthorityError::Days { days, days_max }) }
}

impl Authority {
    /// Makes the authority of a cluster in a new directory.
    ///
    /// # Errors
    /// When there is one already, or a file cannot be written.
    pub fn init(dir: &Path, cluster: ClusterId, days: u32) -> Result<Authority, AuthorityError> {
        Authority::init_for(dir, cluster, days, &[])
    }

    /// The same for replicas on these hosts: its certificate says that it is good for no others.
    ///
    /// # Errors
    /// As [`Authority::init`].
    pub fn init_for(
        dir: &Path,
        cluster: ClusterId,
        days: u32,
        hosts: &[PermittedHosts],
    ) -> Result<Authority, AuthorityError> {
        days_within(days, AUTHORITY_DAYS_MAX)?;
        if dir.join(STATE).exists() {
            return Err(AuthorityError::AuthorityExists { dir: dir.to_path_buf() });
        }
        std::fs::create_dir_all(dir).map_err(file("making", dir))?;
        let hosts = Some(hosts.iter().map(ToString::to_string).collect());
        let state =
            State { cluster_id: cluster.to_string(), issues: 1, trusted: vec![1], hosts, next_hosts: None };
        let authority = Authority { dir: dir.to_path_buf(), cluster, state };
        authority.make_generation(1, days, authority.hosts()?.as_deref())?;
        let path = authority.dir.join(STATE);
        write_whole(&path, &authority.encoded()?, 0o644, false).map_err(file("writing", &path))?;
        authority.write_bundle()?;
        Ok(authority)
    }

    /// Opens the directory of an authority.
    ///
    /// # Errors
    /// When there is none or its files are damaged.
    pub fn open(dir: &Path) -> Result<Authority, AuthorityError> {
        let path = dir.join(STATE);
        let bytes = read_bounded(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AuthorityError::NoAuthority { dir: dir.to_path_buf() },
            _ => file("reading", &path)(error),
        })?;
        let content = |detail: String| AuthorityError::Content { path: path.clone(), detail };
        let state: State = serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
        let cluster =
            state.cluster_id.parse().map_err(|_| content("cluster_id is no cluster's".to_owned()))?;
        let trusted = &state.trusted;
        if trusted.is_empty() || trusted.len() > 2 || !trusted.contains(&state.issues) || !trusted.is_sorted()
        {
            return Err(content("it is not a state that a rotation can be in".to_owned()));
        }
        let authority = Authority { dir: dir.to_path_buf(), cluster, state };
        // A step that was cut short between the state and the bundle is completed here.
        if read_bounded(&authority.bundle()).ok() != Some(authority.bundled()?) {
            authority.write_bundle()?;
        }
        Ok(authority)
    }

    /// The cluster it signs for.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// What every process is to be given as `ca`.
    #[must_use]
    pub fn bundle(&self) -> PathBuf {
        self.dir.join(BUNDLE)
    }

    fn certificate_path(&self, generation: u32) -> PathBuf {
        self.dir.join(format!("ca-{generation}.crt"))
    }

    fn key_path(&self, generation: u32) -> PathBuf {
        self.dir.join(format!("ca-{generation}.key"))
    }

    fn encoded(&self) -> Result<Vec<u8>, AuthorityError> {
        let text = serde_json::to_string_pretty(&self.state)
            .map_err(|error| AuthorityError::Make { detail: error.to_string() })?;
        Ok(format!("{text}\n").into_bytes())
    }

    /// Key and certificate of a generation that the state does not name yet: what an earlier attempt left
    /// of it has signed nothing.
    fn make_generation(
        &self,
        generation: u32,
        days: u32,
        hosts: Option<&[PermittedHosts]>,
    ) -> Result<(), AuthorityError> {
        let common_name = format!("Muster {} authority {generation}", self.cluster);
        let mut params = params(&format!("spiffe://{}", self.cluster), &common_name, days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = hosts.map(|hosts| constraints(REPLICA_HOST, hosts));
        let key = KeyPair::generate().map_err(make)?;
        let certificate = params.self_signed(&key).map_err(make)?;
        let path = self.key_path(generation);
        write_whole(&path, key.serialize_pem().as_bytes(), 0o600, true).map_err(file("writing", &path))?;
        let path = self.certificate_path(generation);
        write_whole(&path, certificate.pem().as_bytes(), 0o644, true).map_err(file("writing", &path))
    }

    /// Hosts that it may sign; none for every one.
    fn hosts(&self) -> Result<Option<Vec<PermittedHosts>>, AuthorityError> {
        let Some(hosts) = &self.state.hosts else { return Ok(None) };
        let parsed: Result<_, _> = hosts.iter().map(|host| host.parse()).collect();
        parsed.map(Some).map_err(|_| AuthorityError::Content {
            path: self.dir.join(STATE),
            detail: "hosts: each must be a DNS name, an IP address or a network".to_owned(),
        })
    }

    fn bundled(&self) -> Result<Vec<u8>, AuthorityError> {
        let mut all = Vec::new();
        for generation in &self.state.trusted {
            let path = self.certificate_path(*generation);
            all.extend(read_bounded(&path).map_err(file("reading", &path))?);
        }
        Ok(all)
    }

    fn write_bundle(&self) -> Result<(), AuthorityError> {
        let path = self.bundle();
        write_whole(&path, &self.bundled()?, 0o644, true).map_err(file("writing", &path))
    }

    fn commit(&mut self, state: State) -> Result<(), AuthorityError> {
        let next = Authority { dir: self.dir.clone(), cluster: self.cluster, state };
        let path = self.dir.join(STATE);
        write_whole(&path, &next.encoded()?, 0o644, true).map_err(file("writing", &path))?;
        next.write_bundle()?;
        *self = next;
        Ok(())
    }

    /// Signs a certificate for a member of the cluster and writes `tls.crt`, `tls.key` and `ca.crt` into
    /// `out`. Only replicas can be called with theirs.
    ///
    /// # Errors
    /// When one is there already and `replace` does not say that it may go, or writing fails.
    pub fn issue(&self, role: Role, days: u32, out: &Path, replace: bool) -> Result<Issued, AuthorityError> {
        self.issue_for(role, days, out, replace, &[])
    }

    /// Whom a certificate would name and where it would be written; what [`Authority::issue_for`] checks first.
    ///
    /// # Errors
    /// When it would be refused.
    pub fn would_issue(
        &self,
        role: Role,
        days: u32,
        out: &Path,
        replace: bool,
        hosts: &[Host],
    ) -> Result<Issued, AuthorityError> {
        days_within(days, LEAF_DAYS_MAX)?;
        self.check_hosts(role, hosts)?;
        let name = PeerName { cluster: self.cluster, role };
        let issued =
            Issued { name, cert: out.join("tls.crt"), key: out.join("tls.key"), ca: out.join("ca.crt") };
        for path in [&issued.cert, &issued.key] {
            if !replace && path.exists() {
                return Err(AuthorityError::Exists { path: path.clone() });
            }
        }
        Ok(issued)
    }

    /// [`Authority::issue`] with hosts by which a replica is asked for: browsers verify them. Members of the cluster go by the role alone.
    ///
    /// # Errors
    /// As [`Authority::issue`], and when the authority is not good for such a host or the role is no replica's.
    pub fn issue_for(
        &self,
        role: Role,
        days: u32,
        out: &Path,
        replace: bool,
        hosts: &[Host],
    ) -> Result<Issued, AuthorityError> {
        let issued = self.would_issue(role, days, out, replace, hosts)?;
        let name = &issued.name;
        let key_path = self.key_path(self.state.issues);
        let content =
            |path: &Path, detail: String| AuthorityError::Content { path: path.to_path_buf(), detail };
        let text = |path: &Path| {
            let bytes = read_bounded(path).map_err(file("reading", path))?;
            String::from_utf8(bytes).map_err(|_| content(path, "not a PEM file".to_owned()))
        };
        let signing = KeyPair::from_pem(&text(&key_path)?).map_err(|e| content(&key_path, e.to_string()))?;
        let authority = self.certificate_path(self.state.issues);
        let issuer = Issuer::from_ca_cert_pem(&text(&authority)?, signing)
            .map_err(|error| content(&authority, error.to_string()))?;
        let mut params = params(&name.to_string(), &role.to_string(), days)?;
        if matches!(role, Role::Replica(_)) {
            let host = Ia5String::try_from(REPLICA_HOST).map_err(make)?;
            params.subject_alt_names.push(SanType::DnsName(host));
        }
        for host in hosts {
            params.subject_alt_names.push(host.alternative().map_err(make)?);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match role {
            Role::Replica(_) => {
                vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
            }
            Role::Agent(_)
            | Role::AgentGroup(_)
            | Role::Client(_)
            | Role::AllTenants(_)
            | Role::Admin(_)
            | Role::TenantClient { .. } => {
                vec![ExtendedKeyUsagePurpose::ClientAuth]
            }
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(make)?;
        let certificate = params.signed_by(&key, &issuer).map_err(make)?;
        std::fs::create_dir_all(out).map_err(file("making", out))?;
        // The authorities first: a process that reads in between still finds its old leaf trusted.
        let write = |path: &Path, bytes: &[u8], mode, replace| {
            write_whole(path, bytes, mode, replace).map_err(file("writing", path))
        };
        write(&issued.ca, &self.bundled()?, 0o644, true)?;
        write(&issued.key, key.serialize_pem().as_bytes(), 0o600, replace)?;
        write(&issued.cert, certificate.pem().as_bytes(), 0o644, replace)?;
        self.remember(&describe(&issued.cert)?)?;
        Ok(issued)
    }

    fn check_hosts(&self, role: Role, hosts: &[Host]) -> Result<(), AuthorityError> {
        if !hosts.is_empty() && !matches!(role, Role::Replica(_)) {
            return Err(AuthorityError::Hosts {
                detail: "only certificates of replicas name hosts".to_owned(),
            });
        }
        let Some(permitted) = self.hosts()? else { return Ok(()) };
        match hosts.iter().find(|host| !permitted.iter().any(|hosts| hosts.include(host))) {
            None => Ok(()),
            Some(host) => Err(AuthorityError::Hosts {
                detail: format!(
                    "this authority was not made for {host}; begin a rotation to one that is with `muster ca rotate … prepare \
                     --host {host}`"
                ),
            }),
        }
    }

    /// Adds a line about a certificate that was issued: who has lost its files can still revoke it.
    fn remember(&self, report: &CertificateReport) -> Result<(), AuthorityError> {
        use std::io::Write as _;
        let line = IssuedLine {
            name: report.name.clone(),
            serial: report.serial.clone(),
            not_after_s: report.not_after_s,
        };
        let line = serde_json::to_string(&line)
            .map_err(|error| AuthorityError::Make { detail: error.to_string() })?;
        let path = self.dir.join(ISSUED);
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.map_err(file("writing", &path))
    }

    /// Certificates of a name that this authority has issued and that have not ended, the oldest first. Those that were
    /// issued before the authority kept a list are not in it.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn issued_to(&self, name: PeerName) -> Result<Vec<IssuedLine>, AuthorityError> {
        let path = self.dir.join(ISSUED);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(file("reading", &path))?,
        };
        let name = name.to_string();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<IssuedLine>(line).ok());
        Ok(lines.filter(|line| line.name == name && line.not_after_s > unix_now()).collect())
    }

    /// First step of a rotation: a new authority, trusted next to the present one, which goes on issuing.
    ///
    /// # Errors
    /// When a rotation is under way.
    pub fn prepare(&mut self, days: u32) -> Result<(), AuthorityError> {
        self.prepare_for(days, &[])
    }

    /// The same for replicas on these hosts too, next to those that the present authority is good for. They are issued for once
    /// the new authority issues.
    ///
    /// # Errors
    /// As [`Authority::prepare`].
    pub fn prepare_for(&mut self, days: u32, hosts: &[PermittedHosts]) -> Result<(), AuthorityError> {
        let next = self.would_prepare(days)?;
        let mut permitted = self.hosts()?.unwrap_or_default();
        permitted
            .extend(hosts.iter().filter(|hosts| !permitted.contains(hosts)).cloned().collect::<Vec<_>>());
        self.make_generation(next, days, Some(&permitted))?;
        let next_hosts = Some(permitted.iter().map(ToString::to_string).collect());
        self.commit(State { trusted: vec![self.state.issues, next], next_hosts, ..self.state.clone() })
    }

    /// The generation of the authority that the first step would make.
    ///
    /// # Errors
    /// As [`Authority::prepare`], before anything is written.
    pub fn would_prepare(&self, days: u32) -> Result<u32, AuthorityError> {
        days_within(days, AUTHORITY_DAYS_MAX)?;
        if self.state.trusted.len() != 1 {
            return Err(AuthorityError::Step {
                detail: "a rotation is under way; go on with `muster ca rotate switch`, then `finish`",
            });
        }
        self.state.issues.checked_add(1).ok_or(AuthorityError::Step {
            detail: "this authority has been rotated as often as it can be counted",
        })
    }

    /// Second step: the new authority issues. The old one stays trusted.
    ///
    /// # Errors
    /// When the first step was not taken, or this one was.
    pub fn switch(&mut self) -> Result<(), AuthorityError> {
        let issues = self.would_switch()?;
        let hosts = self.state.next_hosts.clone();
        self.commit(State { issues, hosts, next_hosts: None, ..self.state.clone() })
    }

    /// The generation of the authority that issues after the second step.
    ///
    /// # Errors
    /// As [`Authority::switch`], before anything is written.
    pub fn would_switch(&self) -> Result<u32, AuthorityError> {
        match self.state.trusted.as_slice() {
            [old, new] if *old == self.state.issues => Ok(*new),
            [_, _] => Err(AuthorityError::Step {
                detail: "the new authority issues already; when every process has a new certificate, `muster ca rotate finish`",
            }),
            _ => Err(AuthorityError::Step { detail: "begin with `muster ca rotate prepare`" }),
        }
    }

    /// Third step: the old authority is dropped, its key is deleted. What it has signed is cut off as soon
    /// as the processes have the bundle.
    ///
    /// # Errors
    /// When the steps before were not taken.
    pub fn finish(&mut self) -> Result<(), AuthorityError> {
        let (old, new) = self.would_finish()?;
        self.commit(State { trusted: vec![new], ..self.state.clone() })?;
        let path = self.key_path(old);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("removing", &path)(error)),
            _ => Ok(()),
        }
    }

    /// The generations of the authority that the third step would drop, and of the one that stays.
    ///
    /// # Errors
    /// As [`Authority::finish`], before anything is written.
    pub fn would_finish(&self) -> Result<(u32, u32), AuthorityError> {
        let [old, new] = self.state.trusted[..] else {
            return Err(AuthorityError::Step { detail: "no rotation is under way" });
        };
        if self.state.issues != new {
            return Err(AuthorityError::Step {
                detail: "the old authority still issues; `muster ca rotate switch` comes first",
            });
        }
        Ok((old, new))
    }

    /// How it stands.
    ///
    /// # Errors
    /// When a certificate cannot be read.
    pub fn report(&self) -> Result<AuthorityReport, AuthorityError> {
        let mut authorities = Vec::new();
        for generation in &self.state.trusted {
            let mut report = describe(&self.certificate_path(*generation))?;
            report.issues = *generation == self.state.issues;
            authorities.push(report);
        }
        let next = match self.state.trusted.as_slice() {
            [old, _] if *old == self.state.issues => {
                "give bundle.crt to every process as its ca, then `muster ca rotate switch`"
            }
            [_, _] => "issue every process a new certificate, then `muster ca rotate finish`",
            _ => "nothing; `muster ca rotate prepare` begins a rotation",
        };
        Ok(AuthorityReport {
            cluster_id: self.cluster.to_string(),
            bundle: self.bundle(),
            authorities,
            next: next.to_owned(),
        })
    }
}

/// What a file's first certificate says.
///
/// # Errors
/// When it holds none.
pub fn describe(path: &Path) -> Result<CertificateReport, AuthorityError> {
    let content =
        |detail: &str| AuthorityError::Content { path: path.to_path_buf(), detail: detail.to_owned() };
    let bytes = read_bounded(path).map_err(file("reading", path))?;
    let certificate =
        CertificateDer::from_pem_slice(&bytes).map_err(|_| content("no certificate in it; expected PEM"))?;
    let (_, parsed) =
        X509Certificate::from_der(certificate.as_ref()).map_err(|_| content("no certificate"))?;
    let name = match facts(&certificate) {
        Ok(facts) => facts.name.to_string(),
        Err(_) => parsed.subject().to_string(),
    };
    let not_after_s = parsed.validity().not_after.timestamp();
    let days_left = (not_after_s - unix_now()).div_euclid(DAY_S);
    let serial = CertificateSerial::from_bytes(parsed.raw_serial());
    let serial = serial.map(|serial| serial.to_string()).unwrap_or_default();
    Ok(CertificateReport { path: path.to_path_buf(), name, serial, issues: false, not_after_s, days_left })
}
