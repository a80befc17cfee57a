//! Hosts and the wide-area network between them, on one machine.
//!
//! Every host is a network namespace with one TUN device and one address; nothing of it has a name in the
//! system, so nothing is left when the harness ends. One thread, the wire, carries packets from device to device
//! by rules for ordered pairs of hosts: the kernel's own emulation of networks is not everywhere.

mod engine;
mod host;
mod process;
mod rules;
mod wire;

pub use engine::{Delivery, Engine, LinkStats, Site};
pub use host::{Host, HostSpec};
pub use process::{Process, ProcessError};
pub use rules::{
    HostSet, Link, LinkChange, PacketRatio, QUEUE_BYTES, Rule, RuleError, regions, three_regions,
};
pub use wire::{WireError, WireStats};

use crate::unsupported::Unsupported;
use std::collections::BTreeMap;
use std::time::Instant;
use wire::Wire;

/// Regions that can be told apart by an address, and hosts within one.
pub const REGIONS_MAX: usize = 200;
/// Hosts of one region.
pub const REGION_HOSTS_MAX: usize = 200;

/// Hosts and the wire between them. Dropping it ends every process on them.
pub struct Network {
    hosts: Vec<Host>,
    // Ends before the hosts: their devices are its own.
    wire: Wire,
}

/// When a batch of rules came into force, and on how much.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// From here on every packet meets the new rules.
    pub at: Instant,
    /// Ordered pairs of hosts that the rules speak of.
    pub pairs: usize,
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// This machine cannot have one.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Names twice, none, or too many of them.
    #[error("hosts: {0}")]
    Hosts(String),
    /// The rules that it begins with are none.
    #[error("rules of the new network")]
    Rules(#[source] RuleError),
    /// The wire could not be started.
    #[error("starting the wire")]
    Wire(#[source] WireError),
}

impl Network {
    /// Hosts whose links have the properties that `links` gives them; healing goes back to these. Decisions about
    /// packets follow from the seed.
    pub fn build(specs: &[HostSpec], links: &[Rule], seed: u64) -> Result<Network, BuildError> {
        let addresses = host::addresses(specs).map_err(BuildError::Hosts)?;
        let sites = specs.iter().map(|spec| Site { name: spec.name.clone(), region: spec.region.clone() });
        let mut engine = Engine::new(sites.collect(), seed);
        engine.apply(std::time::Duration::ZERO, links).map_err(BuildError::Rules)?;
        engine.keep_as_built();
        let mut hosts = Vec::with_capacity(specs.len());
        let mut ends = Vec::with_capacity(specs.len());
        for (spec, address) in specs.iter().zip(addresses) {
            let (host, device) = Host::start(spec, address)?;
            hosts.push(host);
            ends.push(wire::End { address, device });
        }
        let wire = Wire::start(ends, engine).map_err(BuildError::Wire)?;
        Ok(Network { hosts, wire })
    }

    /// All hosts, in the order in which they were given.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name() == name)
    }

    /// The hosts of a region.
    pub fn in_region<'a>(&'a self, region: &'a str) -> impl Iterator<Item = &'a Host> {
        self.hosts.iter().filter(move |host| host.region() == region)
    }

    /// Brings all of these into force between two packets, or none of them.
    pub fn apply(&self, rules: &[Rule]) -> Result<Applied, WireError> {
        self.wire.apply(rules.to_vec())
    }

    /// Every cut ends, and links are as they were built.
    pub fn heal(&self) -> Result<Applied, WireError> {
        self.apply(&[Rule::Heal])
    }

    /// What every link that carried anything did so far, by sender and receiver, and what else the wire saw.
    pub fn stats(&self) -> Result<WireStats, WireError> {
        self.wire.stats()
    }

    /// What was dropped by cuts between these two places since the network was built: evidence that a cut
    /// met traffic.
    pub fn cut_packets(&self, from: &HostSet, to: &HostSet) -> Result<u64, WireError> {
        let regions: BTreeMap<&str, &str> = self.hosts.iter().map(|h| (h.name(), h.region())).collect();
        let is_in = |name: &str, place: &HostSet| match place {
            HostSet::Everyone => true,
            HostSet::Region(region) => regions.get(name) == Some(&region.as_str()),
            HostSet::Host(host) => host == name,
        };
        let links = self.stats()?.links.into_iter();
        Ok(links.filter(|((a, b), _)| is_in(a, from) && is_in(b, to)).map(|(_, link)| link.cut).sum())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.wire.stop();
        for host in &mut self.hosts {
            host.stop();
        }
    }
}
