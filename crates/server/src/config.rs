//! The server's configuration file.

mod audit;
mod notifications;
mod oidc;

pub use audit::AuditConfig;

use crate::former_keys::FORMER_KEYS;
use muster_api::ApiConfig;
use muster_archive::Bounds;
use muster_consensus::{LeaderPolicy, ReplicaNode, SnapshotPolicy, Timing};
use muster_engine::Retention;
use muster_notify::NotifySettings;
use muster_oidc::IssuerSettings;
use muster_traces::{TracesFile, TracesSettings};
use muster_transport::{Scheme, TlsFiles};
use muster_types::config_value::{bytes, bytes_per_second, plain_mistake, span_ms};
use muster_types::former_key::WrittenKeys;
use muster_types::quantity::ByteCount;
use muster_types::{ClusterId, LogFormat, Name, Parameters, ReplicaId, Span, Violation};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use audit::{AuditFile, audit};
use notifications::{NotificationsFile, notifications};
use oidc::{IssuerFile, issuers};

/// Replicas of one cluster: three or five, and spare ones for a change of membership.
const MEMBERS_MAX: usize = 9;
/// Bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A cluster without a leader for longer than this is broken whatever the distances.
const ELECTION_TIMEOUT_MS_MAX: u64 = 600_000;

/// Smaller bounds would make a snapshot, or a pause of an upload, of every few entries.
const SNAPSHOT_BYTES_MIN: u64 = 1 << 20;
const SNAPSHOT_AGE_MS_MIN: u64 = 1_000;
/// Age at which a segment of the archive is closed, and its bounds.
const SEGMENT_AGE_MS_DEFAULT: u64 = 600_000;
const SEGMENT_AGE_MS_MIN: u64 = 100;
const SEGMENT_AGE_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// The least that an archive may be bounded to: some segments, and a second.
const LOCAL_BYTES_MIN: u64 = 1 << 20;
const LOCAL_AGE_MS_MIN: u64 = 1_000;

/// Why a configuration was refused. Names file, key and reason.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("reading {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML of the expected shape; the text names line and key.
    #[error("{path}: {detail}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Line, key and reason.
        detail: String,
    },
    /// A value breaks a rule.
    #[error("{path}: {key}: {reason}")]
    Value {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: String,
        /// What is wrong and what would be right.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster_id: String,
    replica_id: u64,
    data_dir: PathBuf,
    client_listen: SocketAddr,
    peer_listen: SocketAddr,
    http_listen: Option<SocketAddr>,
    #[serde(default)]
    members: Vec<MemberFile>,
    #[serde(default)]
    timing: Option<TimingFile>,
    #[serde(default)]
    parameters: ParametersFile,
    #[serde(default)]
    snapshots: SnapshotsFile,
    #[serde(default)]
    leader: LeaderFile,
    #[serde(default)]
    archive: ArchiveFile,
    #[serde(default)]
    recovery: RecoveryFile,
    #[serde(default)]
    upgrade: UpgradeFile,
    tls: Option<TlsFiles>,
    /// Whether clients may show a bearer token in the place of a certificate.
    #[serde(default)]
    tokens: bool,
    /// Whose tokens are taken in addition to those of the cluster.
    #[serde(default)]
    oidc: Vec<IssuerFile>,
    #[serde(default)]
    limits: LimitsFile,
    #[serde(default)]
    notifications: NotificationsFile,
    #[serde(default)]
    audit: AuditFile,
    #[serde(default)]
    traces: TracesFile,
    /// Read before the log begins, and checked here.
    #[serde(default)]
    log_format: LogFormat,
}

/// What one caller, and all together, may take of a replica. Each is 1 or more.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    #[serde(default, rename = "message_size_max", with = "bytes")]
    message_bytes_max: Option<u64>,
    calls_max: Option<u32>,
    streams_max: Option<u32>,
    tenant_calls_max: Option<u32>,
    tenant_streams_max: Option<u32>,
    agent_sessions_max: Option<u32>,
    agent_uploads_max: Option<u32>,
    group_sessions_max: Option<u32>,
    group_uploads_max: Option<u32>,
    plaintext_max: Option<u32>,
    #[serde(default, rename = "message_memory_max", with = "bytes")]
    message_room_bytes: Option<u64>,
    #[serde(default, rename = "message_memory_per_tenant_max", with = "bytes")]
    message_room_each_bytes: Option<u64>,
    #[serde(default, rename = "message_timeout", with = "span_ms")]
    message_timeout_ms: Option<u64>,
    #[serde(default, rename = "drill_refusal_max", with = "span_ms")]
    drill_refusal_max_ms: Option<u64>,
    connections_max: Option<u32>,
    connections_per_principal_max: Option<u32>,
    connections_per_group_max: Option<u32>,
    handshakes_max: Option<u32>,
    handshakes_per_address_max: Option<u32>,
    #[serde(default, rename = "handshake_timeout", with = "span_ms")]
    handshake_timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecoveryFile {
    #[serde(default)]
    rebuild: Rebuild,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpgradeFile {
    format_max: Option<u16>,
    #[serde(default)]
    auto: bool,
}

/// Whether a replica whose data is damaged is rebuilt from its peers without being told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rebuild {
    /// It is. What is damaged is kept as evidence, and the replica does not vote before it has rejoined the cluster.
    #[default]
    Auto,
    /// Only with `--rebuild`.
    Manual,
}

/// What happens when a replica's storage is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Whether it is rebuilt without being told to.
    pub rebuild: Rebuild,
}

/// How newer record formats come into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// This replica stands for a release that reads formats up to this one.
    pub format_max: Option<u16>,
    /// The leader raises the format by itself once every replica reads a newer one.
    pub raise_automatically: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberFile {
    id: u64,
    region: String,
    peer_endpoint: String,
    client_endpoint: String,
    election_rank: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimingFile {
    #[serde(rename = "heartbeat_interval", with = "span_ms")]
    heartbeat_interval_ms: u64,
    #[serde(rename = "election_timeout_min", with = "span_ms")]
    election_timeout_min_ms: u64,
    #[serde(rename = "election_timeout_max", with = "span_ms")]
    election_timeout_max_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParametersFile {
    #[serde(default, rename = "lease_ttl", with = "span_ms")]
    lease_ttl_ms: Option<u64>,
    #[serde(default, rename = "lease_margin", with = "span_ms")]
    lease_margin_ms: Option<u64>,
    #[serde(default, rename = "heartbeat_interval", with = "span_ms")]
    heartbeat_interval_ms: Option<u64>,
    #[serde(default, rename = "request_retention", with = "span_ms")]
    request_retention_ms: Option<u64>,
    #[serde(default, rename = "job_retention", with = "span_ms")]
    job_retention_ms: Option<u64>,
    #[serde(default, rename = "node_retention", with = "span_ms")]
    node_retention_ms: Option<u64>,
    jobs_held_max: Option<u64>,
    requests_held_max: Option<u64>,
    digest_interval_records: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotsFile {
    every_entries: Option<u64>,
    #[serde(default, rename = "every_size", with = "bytes")]
    every_bytes: Option<u64>,
    #[serde(default, rename = "every_time", with = "span_ms")]
    every_ms: Option<u64>,
    kept_entries: Option<u64>,
    #[serde(default, rename = "kept_size", with = "bytes")]
    kept_bytes: Option<u64>,
    #[serde(default, rename = "send_rate", with = "bytes_per_second")]
    send_bytes_per_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaderFile {
    #[serde(default)]
    preferred_regions: Vec<String>,
    #[serde(default, rename = "settle", with = "span_ms")]
    settle_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArchiveFile {
    enabled: Option<bool>,
    dir: Option<PathBuf>,
    #[serde(default, rename = "segment_age", with = "span_ms")]
    segment_age_ms: Option<u64>,
    offload_dir: Option<PathBuf>,
    #[serde(default, rename = "local_size_max", with = "bytes")]
    local_bytes_max: Option<u64>,
    #[serde(default, rename = "local_age_max", with = "span_ms")]
    local_age_ms_max: Option<u64>,
}

/// Where history is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// The directory.
    pub dir: PathBuf,
    /// A segment is closed at this age at the latest.
    pub segment_age: Duration,
    /// What stays in the directory, and where the rest goes; none for everything.
    pub retention: Option<Retention>,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// This replica.
    pub replica_id: ReplicaId,
    /// Its region.
    pub region: Name,
    /// Its directory.
    pub data_dir: PathBuf,
    /// Where clients and agents connect.
    pub client_listen: SocketAddr,
    /// Where replicas connect.
    pub peer_listen: SocketAddr,
    /// Where monitoring systems and probes connect; none for nowhere.
    pub http_listen: Option<SocketAddr>,
    /// The first membership.
    pub members: BTreeMap<ReplicaId, ReplicaNode>,
    /// Heartbeats and elections.
    pub timing: Timing,
    /// For a new cluster.
    pub parameters: Parameters,
    /// Snapshots.
    pub snapshots: SnapshotPolicy,
    /// Who should lead.
    pub leader: LeaderPolicy,
    /// Certificates; without them the replica speaks plaintext.
    pub tls: Option<TlsFiles>,
    /// Bounds of what clients and agents may take.
    pub api: ApiConfig,
    /// The archive of the log; none for no more history than the log has.
    pub archive: Option<ArchiveConfig>,
    /// What happens when storage is damaged.
    pub recovery: Recovery,
    /// How newer record formats come into force.
    pub upgrade: Upgrade,
    /// Deliveries to receivers of notifications.
    pub notifications: NotifySettings,
    /// Calls that are recorded outside of the log.
    pub audit: AuditConfig,
    /// Issuers whose tokens are taken, where tokens are.
    pub issuers: Vec<IssuerSettings>,
    /// Where spans are sent; none for nowhere.
    pub traces: Option<TracesSettings>,
    /// The form of log lines.
    pub log_format: LogFormat,
}

impl ServerConfig {
    /// The highest record format this replica reads.
    #[must_use]
    pub fn format_max(&self) -> u16 {
        self.upgrade.format_max.unwrap_or(muster_journal::FORMAT_MAX)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names file, key and reason.
    pub fn read(path: &Path) -> Result<ServerConfig, ConfigError> {
        let read_error = |source| ConfigError::Read { path: path.to_path_buf(), source };
        let size = std::fs::metadata(path).map_err(read_error)?.len();
        if size > FILE_BYTES_MAX {
            let detail = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
            return Err(ConfigError::Parse { path: path.to_path_buf(), detail });
        }
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        ServerConfig::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<ServerConfig, ConfigError> {
        let file = read_keys(path, text)?;
        let refuse = |key: &str, reason: String| ConfigError::Value {
            path: path.to_path_buf(),
            key: key.into(),
            reason,
        };
        let cluster_id: ClusterId = file
            .cluster_id
            .parse()
            .map_err(|e| refuse("cluster_id", format!("{e}, got {:?}", file.cluster_id)))?;
        if file.replica_id == 0 {
            return Err(refuse("replica_id", "must be 1 or more".into()));
        }
        let replica_id = ReplicaId(file.replica_id);
        let scheme = if file.tls.is_some() { Scheme::Https } else { Scheme::Http };
        let members = members(&file.members, scheme, &refuse)?;
        let mut api = api(&file.limits).map_err(|(key, reason)| refuse(&format!("limits.{key}"), reason))?;
        if file.tokens && file.tls.is_none() {
            return Err(refuse("tokens", "needs [tls]: a token is taken over TLS only".into()));
        }
        api.tokens = file.tokens;
        let own = members.get(&replica_id).ok_or_else(|| {
            let known: Vec<String> = members.keys().map(ToString::to_string).collect();
            refuse("members", format!("must name this replica, {replica_id}; names {}", known.join(", ")))
        })?;
        let region =
            Name::new(&own.region).ok_or_else(|| refuse("members.region", "is not a name".into()))?;
        if file.client_listen == file.peer_listen {
            return Err(refuse("peer_listen", "must differ from client_listen".into()));
        }
        let others = [("client_listen", file.client_listen), ("peer_listen", file.peer_listen)];
        if let Some((key, _)) = others.iter().find(|(_, address)| Some(*address) == file.http_listen) {
            return Err(refuse("http_listen", format!("must differ from {key}")));
        }
        let timing = file.timing.map_or(Timing::LOCAL, |t| Timing {
            heartbeat_interval_ms: t.heartbeat_interval_ms,
            election_timeout_min_ms: t.election_timeout_min_ms,
            election_timeout_max_ms: t.election_timeout_max_ms,
        });
        if let Some((key, reason)) = broken_timing(timing) {
            return Err(refuse(&format!("timing.{key}"), reason));
        }
        let parameters = parameters(&file.parameters);
        if let Some(violation) = parameters.violations().first() {
            return Err(refuse(&format!("parameters.{}", violation.field), violation.description.clone()));
        }
        let snapshots = snapshots(&file.snapshots, &refuse)?;
        let mut leader = leader(&file.leader, &members, &refuse)?;
        let ranked = file.members.iter().filter_map(|m| m.election_rank.map(|rank| (ReplicaId(m.id), rank)));
        leader.election_ranks = ranked.collect();
        let archive = archive(file.archive, &file.data_dir, &refuse)?;
        let (lowest, highest) = (muster_journal::FORMAT_MIN, muster_journal::FORMAT_MAX);
        if let Some(asked) = file.upgrade.format_max.filter(|asked| !(lowest..=highest).contains(asked)) {
            let rule = format!("must be between {lowest} and {highest}, got {asked}");
            return Err(refuse("upgrade.format_max", rule));
        }
        let upgrade = Upgrade { format_max: file.upgrade.format_max, raise_automatically: file.upgrade.auto };
        let notifications = notifications(file.notifications, &refuse)?;
        let audit = audit(&file.audit, &refuse)?;
        let issuers = issuers(file.oidc, &refuse)?;
        let traces = file.traces.check().map_err(|error| refuse(error.key, error.rule))?;
        Ok(ServerConfig {
            cluster_id,
            replica_id,
            region,
            data_dir: file.data_dir,
            client_listen: file.client_listen,
            http_listen: file.http_listen,
            peer_listen: file.peer_listen,
            members,
            timing,
            parameters,
            snapshots,
            leader,
            tls: file.tls,
            api,
            archive,
            recovery: Recovery { rebuild: file.recovery.rebuild },
            upgrade,
            notifications,
            audit,
            issuers,
            traces,
            log_format: file.log_format,
        })
    }
}

/// The file with the keys that exist. One of an earlier form is refused with the key that replaced it.
fn read_keys(path: &Path, text: &str) -> Result<File, ConfigError> {
    // What is no TOML is reported below.
    let written: WrittenKeys = toml::from_str(text).unwrap_or_default();
    if let Some((key, reason)) = written.former(&FORMER_KEYS) {
        return Err(ConfigError::Value { path: path.to_path_buf(), key: key.to_owned(), reason });
    }
    toml::from_str(text).map_err(|error| ConfigError::Parse {
        path: path.to_path_buf(),
        detail: plain_mistake(&error.to_string()),
    })
}

fn archive(
    file: ArchiveFile,
    data_dir: &Path,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<Option<ArchiveConfig>, ConfigError> {
    if file.enabled == Some(false) {
        return match file.dir {
            Some(_) => Err(refuse("archive.dir", "is given, but archive.enabled is false".into())),
            None => Ok(None),
        };
    }
    let age_ms = file.segment_age_ms.unwrap_or(SEGMENT_AGE_MS_DEFAULT);
    if !(SEGMENT_AGE_MS_MIN..=SEGMENT_AGE_MS_MAX).contains(&age_ms) {
        let broken = Violation::span("archive.segment_age", age_ms, SEGMENT_AGE_MS_MIN, SEGMENT_AGE_MS_MAX);
        return Err(refuse(&broken.field, broken.description));
    }
    let retention = retention(&file, refuse)?;
    let dir = file.dir.unwrap_or_else(|| data_dir.join("archive"));
    if let Some(to) = retention.as_ref().map(|retention| &retention.offload_dir)
        && (to.starts_with(&dir) || dir.starts_with(to))
    {
        let rule = format!("must be apart from the archive, {}, got {}", dir.display(), to.display());
        return Err(refuse("archive.offload_dir", rule));
    }
    Ok(Some(ArchiveConfig { dir, segment_age: Duration::from_millis(age_ms), retention }))
}

/// Which part of the archive stays on its own disk. Nothing is dropped that was not put elsewhere before.
fn retention(
    file: &ArchiveFile,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<Option<Retention>, ConfigError> {
    let bounds = Bounds { bytes_max: file.local_bytes_max, age_ms_max: file.local_age_ms_max };
    if let Some(bytes) = bounds.bytes_max.filter(|bytes| *bytes < LOCAL_BYTES_MIN) {
        let (least, size) = (ByteCount(LOCAL_BYTES_MIN), ByteCount(bytes));
        return Err(refuse("archive.local_size_max", format!("must be {least} or more, got {size}")));
    }
    if let Some(age_ms) = bounds.age_ms_max.filter(|age_ms| *age_ms < LOCAL_AGE_MS_MIN) {
        let (least, age) = (Span(LOCAL_AGE_MS_MIN), Span(age_ms));
        return Err(refuse("archive.local_age_max", format!("must be {least} or more, got {age}")));
    }
    let is_bounded = bounds.bytes_max.is_some() || bounds.age_ms_max.is_some();
    match (&file.offload_dir, is_bounded) {
        (None, false) => Ok(None),
        (Some(to), true) => Ok(Some(Retention { offload_dir: to.clone(), bounds })),
        (None, true) => {
            let rule =
                "must be given with local_size_max or local_age_max: what does not stay is put there first";
            Err(refuse("archive.offload_dir", rule.into()))
        }
        (Some(_), false) => {
            let rule = "needs local_size_max or local_age_max, which say what stays";
            Err(refuse("archive.offload_dir", rule.into()))
        }
    }
}

/// The first of the rules that elections need and that is broken: told here, before anything is written.
fn broken_timing(timing: Timing) -> Option<(&'static str, String)> {
    let (heartbeat, min, max) =
        (timing.heartbeat_interval_ms, timing.election_timeout_min_ms, timing.election_timeout_max_ms);
    if heartbeat == 0 {
        return Some(("heartbeat_interval", "must be 1ms or more".into()));
    }
    let (beats, least, most) = (Span(heartbeat), Span(min), Span(max));
    if min <= heartbeat {
        let rule = format!("must be above heartbeat_interval, {beats}, got {least}");
        return Some(("election_timeout_min", rule));
    }
    if max <= min || max > ELECTION_TIMEOUT_MS_MAX {
        let limit = Span(ELECTION_TIMEOUT_MS_MAX);
        let rule = format!("must be above election_timeout_min, {least}, and at most {limit}, got {most}");
        return Some(("election_timeout_max", rule));
    }
    None
}

fn members(
    list: &[MemberFile],
    scheme: Scheme,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<BTreeMap<ReplicaId, ReplicaNode>, ConfigError> {
    if list.is_empty() || list.len() > MEMBERS_MAX {
        return Err(refuse("members", format!("must have 1 to {MEMBERS_MAX} entries, has {}", list.len())));
    }
    let mut members = BTreeMap::new();
    for (place, member) in list.iter().enumerate() {
        let at = |field: &str| format!("members[{place}].{field}");
        if member.id == 0 {
            return Err(refuse(&at("id"), "must be 1 or more".into()));
        }
        if Name::new(&member.region).is_none() {
            return Err(refuse(&at("region"), format!("must be {}", muster_types::name::NAME_RULE)));
        }
        for (field, endpoint) in
            [("peer_endpoint", &member.peer_endpoint), ("client_endpoint", &member.client_endpoint)]
        {
            let whole = scheme.address(endpoint).map_err(|error| refuse(&at(field), error.to_string()))?;
            let bare = whole.split_once("://").map_or(whole.as_str(), |(_, rest)| rest);
            muster_client::Endpoints::parse(&[bare.to_owned()])
                .map_err(|error| refuse(&at(field), error.to_string()))?;
        }
        let node = ReplicaNode {
            region: member.region.clone(),
            peer_endpoint: member.peer_endpoint.clone(),
            client_endpoint: member.client_endpoint.clone(),
        };
        if members.insert(ReplicaId(member.id), node).is_some() {
            return Err(refuse(&at("id"), format!("{} is there twice", member.id)));
        }
    }
    Ok(members)
}

fn snapshots(
    file: &SnapshotsFile,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<SnapshotPolicy, ConfigError> {
    type Rendering = fn(u64) -> String;
    let usual = SnapshotPolicy::PRODUCTION;
    let count: Rendering = |value| value.to_string();
    let size: Rendering = |bytes| ByteCount(bytes).to_string();
    let rate: Rendering = |bytes| format!("{}/s", ByteCount(bytes));
    let span: Rendering = |ms| Span(ms).to_string();
    let checked =
        |key: &str, given: Option<u64>, least: u64, usual: Option<u64>, shown: Rendering| match given {
            Some(value) if value < least => {
                let rule = format!("must be {} or more, got {}", shown(least), shown(value));
                Err(refuse(&format!("snapshots.{key}"), rule))
            }
            given => Ok(given.or(usual)),
        };
    Ok(SnapshotPolicy {
        every_entries: checked("every_entries", file.every_entries, 1, usual.every_entries, count)?,
        every_bytes: checked("every_size", file.every_bytes, SNAPSHOT_BYTES_MIN, usual.every_bytes, size)?,
        every_ms: checked("every_time", file.every_ms, SNAPSHOT_AGE_MS_MIN, usual.every_ms, span)?,
        // Who says how often gets it so often.
        share_percent: usual
            .share_percent
            .filter(|_| file.every_entries.is_none() && file.every_bytes.is_none()),
        replay_entries_max: usual.replay_entries_max,
        replay_bytes_max: usual.replay_bytes_max,
        kept_entries: file.kept_entries.unwrap_or(usual.kept_entries),
        kept_bytes: file.kept_bytes.or(usual.kept_bytes),
        send_bytes_per_s: checked(
            "send_rate",
            file.send_bytes_per_s,
            SNAPSHOT_BYTES_MIN,
            usual.send_bytes_per_s,
            rate,
        )?,
    })
}

fn leader(
    file: &LeaderFile,
    members: &BTreeMap<ReplicaId, ReplicaNode>,
    refuse: &impl Fn(&str, String) -> ConfigError,
) -> Result<LeaderPolicy, ConfigError> {
    for (place, region) in file.preferred_regions.iter().enumerate() {
        let key = format!("leader.preferred_regions[{place}]");
        if file.preferred_regions[..place].contains(region) {
            return Err(refuse(&key, format!("{region:?} is there twice")));
        }
        // A typing error would silently be no preference.
        if !members.values().any(|member| member.region == *region) {
            return Err(refuse(&key, format!("no member stands in {region:?}")));
        }
    }
    let usual = LeaderPolicy::default();
    let settle_ms = file.settle_ms.unwrap_or(usual.settle_ms);
    if settle_ms == 0 {
        return Err(refuse("leader.settle", "must be 1ms or more".into()));
    }
    Ok(LeaderPolicy { preferred_regions: file.preferred_regions.clone(), settle_ms, ..usual })
}

/// The key and rule that are broken, or the bounds.
fn api(file: &LimitsFile) -> Result<ApiConfig, (&'static str, String)> {
    fn set<T: Copy + PartialOrd + std::fmt::Display>(
        key: &'static str,
        given: Option<T>,
        (min, max): (T, T),
        to: &mut T,
    ) -> Result<(), (&'static str, String)> {
        match given {
            Some(value) if value < min || value > max => {
                Err((key, format!("must be between {min} and {max}, got {value}")))
            }
            Some(value) => {
                *to = value;
                Ok(())
            }
            None => Ok(()),
        }
    }
    const MANY: (u32, u32) = (1, 1_000_000);
    let mut api = ApiConfig::DEFAULT;
    let mut message_bytes_max = api.message_bytes_max as u64;
    set_size("message_size_max", file.message_bytes_max, (64 << 10, 64 << 20), &mut message_bytes_max)?;
    api.message_bytes_max = usize::try_from(message_bytes_max).unwrap_or(usize::MAX);
    set("calls_max", file.calls_max, MANY, &mut api.calls.calls_max)?;
    set("streams_max", file.streams_max, MANY, &mut api.calls.streams_max)?;
    set("tenant_calls_max", file.tenant_calls_max, MANY, &mut api.calls.tenant_calls_max)?;
    set("tenant_streams_max", file.tenant_streams_max, MANY, &mut api.calls.tenant_streams_max)?;
    set("agent_sessions_max", file.agent_sessions_max, MANY, &mut api.calls.agent_sessions_max)?;
    set("agent_uploads_max", file.agent_uploads_max, MANY, &mut api.calls.agent_uploads_max)?;
    set("group_sessions_max", file.group_sessions_max, MANY, &mut api.calls.group_sessions_max)?;
    set("group_uploads_max", file.group_uploads_max, MANY, &mut api.calls.group_uploads_max)?;
    set("plaintext_max", file.plaintext_max, MANY, &mut api.calls.plaintext_max)?;
    let (bounds, all) = ((1 << 20, 1 << 40), &mut api.calls.message_room_bytes);
    set_size("message_memory_max", file.message_room_bytes, bounds, all)?;
    let each = &mut api.calls.message_room_each_bytes;
    set_size("message_memory_per_tenant_max", file.message_room_each_bytes, bounds, each)?;
    let timeout = &mut api.calls.message_timeout_ms;
    set_span("message_timeout", file.message_timeout_ms, (100, 600_000), timeout)?;
    let mut refusal_ms = u64::try_from(api.drill_refusal_max.as_millis()).unwrap_or(u64::MAX);
    set_span("drill_refusal_max", file.drill_refusal_max_ms, (0, 600_000), &mut refusal_ms)?;
    api.drill_refusal_max = Duration::from_millis(refusal_ms);
    let size = |given: Option<u32>| given.map(|value| value as usize);
    let many = (1, 1_000_000);
    let accept = &mut api.accept;
    set("connections_max", size(file.connections_max), many, &mut accept.connections_max)?;
    let each = size(file.connections_per_principal_max);
    set("connections_per_principal_max", each, many, &mut accept.connections_per_principal_max)?;
    let each = size(file.connections_per_group_max);
    set("connections_per_group_max", each, many, &mut accept.connections_per_group_max)?;
    set("handshakes_max", size(file.handshakes_max), many, &mut accept.handshakes_max)?;
    let each = size(file.handshakes_per_address_max);
    set("handshakes_per_address_max", each, many, &mut accept.handshakes_per_address_max)?;
    let mut timeout_ms = u64::try_from(accept.handshake_timeout.as_millis()).unwrap_or(u64::MAX);
    set_span("handshake_timeout", file.handshake_timeout_ms, (100, 60_000), &mut timeout_ms)?;
    accept.handshake_timeout = std::time::Duration::from_millis(timeout_ms);
    Ok(api)
}

/// A span of the limits, where one is given and within its bounds.
fn set_span(
    key: &'static str,
    given: Option<u64>,
    (min, max): (u64, u64),
    to: &mut u64,
) -> Result<(), (&'static str, String)> {
    set_quantity(key, given, (min, max), to, Violation::span)
}

/// The same for a number of bytes.
fn set_size(
    key: &'static str,
    given: Option<u64>,
    (min, max): (u64, u64),
    to: &mut u64,
) -> Result<(), (&'static str, String)> {
    set_quantity(key, given, (min, max), to, Violation::size)
}

fn set_quantity(
    key: &'static str,
    given: Option<u64>,
    (min, max): (u64, u64),
    to: &mut u64,
    violation: fn(&str, u64, u64, u64) -> Violation,
) -> Result<(), (&'static str, String)> {
    match given {
        Some(value) if value < min || value > max => Err((key, violation(key, value, min, max).description)),
        Some(value) => {
            *to = value;
            Ok(())
        }
        None => Ok(()),
    }
}

fn parameters(file: &ParametersFile) -> Parameters {
    let usual = Parameters::DEFAULT;
    Parameters {
        lease_ttl_ms: file.lease_ttl_ms.unwrap_or(usual.lease_ttl_ms),
        lease_margin_ms: file.lease_margin_ms.unwrap_or(usual.lease_margin_ms),
        heartbeat_interval_ms: file.heartbeat_interval_ms.unwrap_or(usual.heartbeat_interval_ms),
        request_retention_ms: file.request_retention_ms.unwrap_or(usual.request_retention_ms),
        job_retention_ms: file.job_retention_ms.unwrap_or(usual.job_retention_ms),
        node_retention_ms: file.node_retention_ms.unwrap_or(usual.node_retention_ms),
        jobs_held_max: file.jobs_held_max.unwrap_or(usual.jobs_held_max),
        requests_held_max: file.requests_held_max.unwrap_or(usual.requests_held_max),
        digest_interval_records: file.digest_interval_records.unwrap_or(usual.digest_interval_records),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
cluster_id = "00112233445566778899aabbccddeeff"
replica_id = 1
data_dir = "/tmp/r1"
client_listen = "127.0.0.1:7400"
peer_listen = "127.0.0.1:7500"

[[members]]
id = 1
region = "eu-west"
peer_endpoint = "http://127.0.0.1:7500"
client_endpoint = "http://127.0.0.1:7400"
"#;

    fn refusal(text: &str) -> String {
        ServerConfig::parse(Path::new("muster.toml"), text).expect_err("it must be refused").to_string()
    }

    #[test]
    fn a_complete_file_is_taken() {
        let config = ServerConfig::parse(Path::new("muster.toml"), GOOD).expect("it is complete");
        assert_eq!(config.region.as_str(), "eu-west");
        assert_eq!(config.parameters, Parameters::DEFAULT);
        let dir = config.archive.expect("history is kept unless that is switched off").dir;
        assert_eq!(dir, Path::new("/tmp/r1/archive"));
        assert_eq!((config.traces, config.log_format), (None, LogFormat::Text));
    }

    #[test]
    fn spans_are_sent_where_a_collector_is_named() {
        let with = |traces: &str| format!("log_format = \"json\"\n{GOOD}\n[traces]\n{traces}\n");
        let text = with("endpoint = \"http://collector:4318\"\nsample_ratio = \"1/2\"");
        let config = ServerConfig::parse(Path::new("muster.toml"), &text).expect("it is complete");
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.traces.expect("it is named").url, "http://collector:4318/v1/traces");
        let refused = refusal(&with("endpoint = \"collector\""));
        assert!(refused.starts_with("muster.toml: traces.endpoint: must be the address"), "{refused}");
        let refused = refusal(&with("endpoint = \"http://collector\"\nsample_ratio = \"0.5\""));
        assert!(refused.starts_with("muster.toml: traces.sample_ratio: must be 0, 1"), "{refused}");
    }

    #[test]
    fn snapshots_and_leaders_are_as_asked_for() {
        let asked = "[snapshots]\nevery_size = \"2MiB\"\nevery_time = \"1m\"\nkept_size = 0\nsend_rate = \"32MiB/s\"\n\
                     [leader]\npreferred_regions = [\"eu-west\"]\nsettle = \"5s\"\n";
        let config = ServerConfig::parse(Path::new("muster.toml"), &format!("{GOOD}\n{asked}"))
            .expect("it is complete");
        let expected = SnapshotPolicy {
            every_bytes: Some(2 << 20),
            every_ms: Some(60_000),
            kept_bytes: Some(0),
            send_bytes_per_s: Some(32 << 20),
            share_percent: None,
            ..SnapshotPolicy::PRODUCTION
        };
        assert_eq!(config.snapshots, expected);
        assert_eq!(config.leader.preferred_regions, ["eu-west"]);
        assert_eq!(config.leader.settle_ms, 5_000);
        let ranked = GOOD.replace("region = \"eu-west\"", "region = \"eu-west\"\nelection_rank = 4");
        let config = ServerConfig::parse(Path::new("muster.toml"), &ranked).expect("it is complete");
        assert_eq!(config.leader.election_ranks, [(ReplicaId(1), 4)].into());
    }

    #[test]
    fn refusals_name_file_key_and_reason() {
        let cases = [
            (
                GOOD.replace("cluster_id = \"00", "cluster_id = \"zz"),
                "muster.toml: cluster_id: expected 32 hex",
            ),
            (
                GOOD.replace("replica_id = 1", "replica_id = 7"),
                "muster.toml: members: must name this replica, r7",
            ),
            (GOOD.replace("replica_id = 1", "replica_id = 0"), "replica_id: must be 1 or more"),
            (GOOD.replace("data_dir", "data_folder"), "unknown field `data_folder`"),
            (GOOD.replace("replica_id = 1\n", ""), "missing field `replica_id`"),
            (GOOD.replace("127.0.0.1:7400\"\npeer", "nowhere\"\npeer"), "invalid socket address"),
            (GOOD.replace("region = \"eu-west\"", "region = \"EU West\""), "members[0].region: must be"),
            (GOOD.replace("http://127.0.0.1:7500", "https://x"), "members[0].peer_endpoint: "),
            (format!("{GOOD}\n[limits]\ncalls_max = 0\n"), "limits.calls_max: must be between 1 and 1000000"),
            (
                format!("{GOOD}\n[tls]\nca = \"a\"\ncert = \"c\"\nkey = \"k\"\n"),
                "members[0].peer_endpoint: http is plaintext, and certificates are configured",
            ),
            (GOOD.replace("replica_id = 1", "replica_id = 1\ntokens = true"), "tokens: needs [tls]"),
            (
                GOOD.replace("replica_id = 1", "replica_id = 1\ntokens = \"yes\""),
                "expected true or false; got the text",
            ),
            (
                GOOD.replace("http://127.0.0.1:7400", "https://127.0.0.1:7400"),
                "members[0].client_endpoint: https needs certificates",
            ),
            (
                format!("{GOOD}\n[archive]\nsegment_age = \"1ms\"\n"),
                "archive.segment_age: must be between 100ms and 7d, got 1ms",
            ),
            (format!("{GOOD}\n[archive]\nenabled = false\ndir = \"/x\"\n"), "archive.dir: is given"),
            (format!("{GOOD}\n[archive]\nlocal_size_max = 9999999\n"), "archive.offload_dir: must be given"),
            (
                format!("{GOOD}\n[archive]\noffload_dir = \"/x\"\n"),
                "archive.offload_dir: needs local_size_max",
            ),
            (
                format!("{GOOD}\n[archive]\noffload_dir = \"/x\"\nlocal_size_max = 1\n"),
                "archive.local_size_max: must be 1Mi or more, got 1",
            ),
            (
                format!("{GOOD}\n[archive]\ndir = \"/x\"\noffload_dir = \"/x/y\"\nlocal_age_max = \"5s\"\n"),
                "archive.offload_dir: must be apart",
            ),
            (
                format!("{GOOD}\n[parameters]\nlease_ttl = \"1ms\"\n"),
                "parameters.lease_ttl: must be between 500ms and 1h, got 1ms",
            ),
            (
                format!("{GOOD}\n[timing]\nheartbeat_interval = \"1ms\"\n"),
                "missing field `election_timeout_min`",
            ),
            (
                format!("{GOOD}\n[snapshots]\nevery_size = 5\n"),
                "snapshots.every_size: must be 1Mi or more, got 5",
            ),
            (
                format!("{GOOD}\n[snapshots]\nevery_time = \"5ms\"\n"),
                "snapshots.every_time: must be 1s or more",
            ),
            (
                format!("{GOOD}\n[snapshots]\nevery_entries = 0\n"),
                "snapshots.every_entries: must be 1 or more",
            ),
            (
                format!("{GOOD}\n[leader]\npreferred_regions = [\"eu-wset\"]\n"),
                "leader.preferred_regions[0]: no member stands in",
            ),
            (
                format!("{GOOD}\n[leader]\npreferred_regions = [\"eu-west\", \"eu-west\"]\n"),
                "leader.preferred_regions[1]: \"eu-west\" is there twice",
            ),
            (format!("{GOOD}\n[upgrade]\nformat_max = 0\n"), "upgrade.format_max: must be between 1 and"),
            (format!("{GOOD}\n[recovery]\nrebuild = \"maybe\"\n"), "unknown variant `maybe`"),
            (format!("{GOOD}\n[leader]\nsettle = 0\n"), "leader.settle: must be 1ms or more"),
            // A quantity without its unit, and of another kind.
            (
                format!("{GOOD}\n[leader]\nsettle = 5000\n"),
                "expected a duration like 90s, 2h or 1h30m (units: d, h, m, s, ms); got the number `5000`",
            ),
            (format!("{GOOD}\n[leader]\nsettle = 5000\n"), "settle = 5000"),
            (format!("{GOOD}\n[snapshots]\nevery_size = \"1h\"\n"), "got the text \"1h\""),
            (format!("{GOOD}\n[snapshots]\nsend_rate = \"64MiB\"\n"), "expected bytes a second like 64MiB/s"),
            (
                format!("{GOOD}\n[snapshots]\nsend_rate = \"1k/s\"\n"),
                "snapshots.send_rate: must be 1Mi/s or more, got 1000/s",
            ),
            (
                format!("{GOOD}\n[limits]\nmessage_size_max = \"1Ki\"\n"),
                "limits.message_size_max: must be between 64Ki and 64Mi, got 1Ki",
            ),
            (
                format!("{GOOD}\n[limits]\nmessage_memory_max = \"1k\"\n"),
                "limits.message_memory_max: must be between 1Mi and 1Ti, got 1000",
            ),
            (format!("{GOOD}\n[archive]\nsegment_age = \"9999999999d\"\n"), "got the text \"9999999999d\""),
            // No unit was ever in this key.
            (format!("{GOOD}\n[leader]\nsettle_s = 5\n"), "unknown field `settle_s`"),
            // A key of an earlier form, with its number or its text.
            (
                format!("{GOOD}\n[leader]\nsettle_ms = 5000\n"),
                "leader.settle_ms: is now `settle`, with the unit in the value: settle = \"5s\"; takes a duration like",
            ),
            (
                format!("{GOOD}\n[snapshots]\nevery_bytes = \"64MiB\"\n"),
                "snapshots.every_bytes: is now `every_size`, with the unit in the value: every_size = \"64MiB\"",
            ),
            (format!("leader.settle_ms = 5000\n{GOOD}"), "leader.settle_ms: is now `settle`"),
            (
                format!("{GOOD}\n[limits]\nhandshake_timeout = \"2m\"\n"),
                "limits.handshake_timeout: must be between 100ms and 1m, got 2m",
            ),
            (GOOD.replace("127.0.0.1:7500\"\n\n[[", "127.0.0.1:7400\"\n\n[["), "peer_listen: must differ"),
        ];
        for (text, expected) in cases {
            let said = refusal(&text);
            assert!(
                said.contains(expected) && said.starts_with("muster.toml: "),
                "{said:?} should say {expected:?}"
            );
        }
    }

    #[test]
    fn every_earlier_key_is_refused_with_one_that_is_read() {
        for former in FORMER_KEYS {
            let (table, was) = former.was().split_once('.').expect("each was in a table");
            let said = refusal(&format!("{GOOD}\n[{table}]\n{was} = 120000\n"));
            let expected = format!("muster.toml: {table}.{was}: is now `{}`", former.now());
            assert!(said.starts_with(&expected), "{said:?} should say {expected:?}");
            // What it says to write is a key: the list of those that are known has it, and not the earlier one.
            let known = refusal(&format!("{GOOD}\n[{table}]\nno_such_key = 1\n"));
            assert!(known.contains(&format!("`{}`", former.now())), "{known}");
            assert!(!known.contains(&format!("`{was}`")), "{known}");
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        for cut in 0..GOOD.len() {
            if GOOD.is_char_boundary(cut) {
                let _ = ServerConfig::parse(Path::new("muster.toml"), &GOOD[..cut]);
            }
        }
    }

    #[test]
    fn damaged_configurations_are_refused_with_their_key() {
        muster_fuzz::run(
            "server-config",
            &[GOOD.as_bytes().to_vec()],
            |_| {},
            |input| match ServerConfig::parse(Path::new("muster.toml"), &String::from_utf8_lossy(input)) {
                Ok(_) => true,
                Err(error) => {
                    assert!(error.to_string().starts_with("muster.toml: "), "{error}");
                    false
                }
            },
        );
    }
}
