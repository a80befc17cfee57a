//! Configurations of replicas and agents, as an operator would write them.

use std::fmt::Write as _;
use std::path::Path;

use super::plan::{CLIENT_PORT, DEVICES_PER_HOST, HostPlan, PEER_PORT};

/// A host that cannot reach a leader stops its work after this long. Longer than any change of leaders has to
/// take, so that only what is really cut off loses its work; short, so that a drill sees it move.
pub const LEASE_TTL_MS: u64 = 5_000;
/// The leader gives the capacity away this much later.
pub const LEASE_MARGIN_MS: u64 = 1_500;
/// How often agents are heard.
const AGENT_HEARTBEAT_MS: u64 = 1_000;
/// Records between two digests in the log.
const DIGEST_INTERVAL_RECORDS: u64 = 200;
/// Small enough that snapshots and purges happen during drills.
const SNAPSHOT_EVERY_ENTRIES: u64 = 4_000;

/// Where a replica's clients connect.
#[must_use]
pub fn client_endpoint(host: &HostPlan) -> String {
    format!("https://{}:{CLIENT_PORT}", host.address)
}

/// Where other replicas connect to it.
#[must_use]
pub fn peer_endpoint(host: &HostPlan) -> String {
    format!("https://{}:{PEER_PORT}", host.address)
}

/// What the configuration of one replica is made of.
pub struct ReplicaConfig<'a> {
    /// 32 hexadecimal digits.
    pub cluster_id: &'a str,
    /// Which one.
    pub id: u64,
    /// Where it runs.
    pub host: &'a HostPlan,
    /// The first members, and this one.
    pub members: &'a [(u64, &'a HostPlan)],
    /// Its data.
    pub data: &'a Path,
    /// Its certificate.
    pub tls: &'a Path,
    /// It stands for a release that reads formats up to this one.
    pub format_max: Option<u16>,
}

/// `server.toml` of one replica.
#[must_use]
pub fn replica(config: &ReplicaConfig<'_>) -> String {
    let address = config.host.address;
    let mut text = format!(
        "cluster_id = \"{}\"\nreplica_id = {}\ndata_dir = {:?}\nclient_listen = \"{address}:{CLIENT_PORT}\"\npeer_listen = \"{address}:{PEER_PORT}\"\n\n",
        config.cluster_id, config.id, config.data
    );
    let wide = wide_timing();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "[timing]\nheartbeat_interval = \"{}ms\"\nelection_timeout_min = \"{}ms\"\nelection_timeout_max = \"{}ms\"\n\n",
        wide.0, wide.1, wide.2
    );
    let _ = write!(
        text,
        "[parameters]\nlease_ttl = \"{LEASE_TTL_MS}ms\"\nlease_margin = \"{LEASE_MARGIN_MS}ms\"\nheartbeat_interval = \"{AGENT_HEARTBEAT_MS}ms\"\ndigest_interval_records = {DIGEST_INTERVAL_RECORDS}\n\n"
    );
    let _ = write!(text, "[snapshots]\nevery_entries = {SNAPSHOT_EVERY_ENTRIES}\n\n");
    text.push_str(&tls(config.tls));
    if let Some(format_max) = config.format_max {
        let _ = write!(text, "[upgrade]\nformat_max = {format_max}\n\n");
    }
    for (id, host) in config.members {
        let _ = write!(
            text,
            "[[members]]\nid = {id}\nregion = {:?}\npeer_endpoint = \"{}\"\nclient_endpoint = \"{}\"\n\n",
            host.region,
            peer_endpoint(host),
            client_endpoint(host)
        );
    }
    text
}

/// `Timing::WIDE` of `muster-consensus`: what its documentation says for round trips up to 150 ms, and what
/// ops/examples/server.toml shows. Written out, as an operator has to.
fn wide_timing() -> (u64, u64, u64) {
    (200, 450, 750)
}

fn tls(directory: &Path) -> String {
    let file = |name: &str| directory.join(name);
    format!("[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n\n", file("ca.crt"), file("tls.crt"), file("tls.key"))
}

/// `agent.toml` of one node.
#[must_use]
pub fn agent(host: &HostPlan, home: &Path, endpoints: &[String], tls_directory: &Path) -> String {
    let mut text = format!(
        "state_dir = {:?}\nboot_id_path = {:?}\nendpoints = {endpoints:?}\nprobe_listen = \"{}:0\"\n\n",
        home.join("state"),
        home.join("boot_id"),
        host.address
    );
    text.push_str(&tls(tls_directory));
    let _ = write!(
        text,
        "[node]\nname = {:?}\nregion = {:?}\ncluster = \"{}-1\"\nrack = \"rack-0\"\naddress = \"{}\"\ncpu = 64\nmemory = \"256Gi\"\naccelerators = {{ type = \"h100\", count = {DEVICES_PER_HOST} }}\n",
        host.name, host.region, host.region, host.address
    );
    text
}
