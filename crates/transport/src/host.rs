//! Hosts that certificates of replicas name next to their role, for clients that verify host names: browsers above all.
//!
//! **Invariant:** an authority signs no host outside of what it was made for; that is in its own certificate, so that clients
//! which trust it hold others to it who have its key.

use rcgen::string::Ia5String;
use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints, SanType};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Bytes of a DNS name, and of one of its labels.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A host by which a replica is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A DNS name, in lower case.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// Hosts that an authority may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermittedHosts {
    /// A DNS name and every name below it.
    Domain(String),
    /// Addresses with the same first bits.
    Network(IpAddr, u8),
}

/// Why a text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError;

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a DNS name or an IP address")
    }
}

impl std::error::Error for HostError {}

fn dns_name(text: &str) -> Result<String, HostError> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= LABEL_BYTES_MAX
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    // What ends in a number is an address to every client.
    let is_name = text.len() <= NAME_BYTES_MAX
        && text.split('.').all(is_label)
        && !text.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if is_name { Ok(text.to_ascii_lowercase()) } else { Err(HostError) }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        match text.parse() {
            Ok(address) => Ok(Host::Address(address)),
            Err(_) => dns_name(text).map(Host::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(address) => address.fmt(f),
        }
    }
}

impl Host {
    pub(crate) fn alternative(&self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Host::Name(name) => SanType::DnsName(Ia5String::try_from(name.as_str())?),
            Host::Address(address) => SanType::IpAddress(*address),
        })
    }
}

impl FromStr for PermittedHosts {
    type Err = HostError;

    fn from_str(text: &str) -> Result<PermittedHosts, HostError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PermittedHosts::Network(address, bits(address)));
        }
        let Some((address, length)) = text.split_once('/') else {
            return dns_name(text).map(PermittedHosts::Domain);
        };
        let address: IpAddr = address.parse().map_err(|_| HostError)?;
        let length = length.parse().ok().filter(|length| *length <= bits(address)).ok_or(HostError)?;
        Ok(PermittedHosts::Network(address, length))
    }
}

impl fmt::Display for PermittedHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PermittedHosts::Domain(name) => f.write_str(name),
            PermittedHosts::Network(address, length) if *length == bits(*address) => address.fmt(f),
            PermittedHosts::Network(address, length) => write!(f, "{address}/{length}"),
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn first_bits(address: IpAddr, length: u8) -> (bool, u128) {
    let (number, all) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32_u32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let dropped = all.saturating_sub(length.into());
    (address.is_ipv4(), number.checked_shr(dropped).unwrap_or(0))
}

impl PermittedHosts {
    /// Whether a host is one of them.
    #[must_use]
    pub fn include(&self, host: &Host) -> bool {
        match (self, host) {
            (PermittedHosts::Domain(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (PermittedHosts::Network(address, length), Host::Address(host)) => {
                first_bits(*address, *length) == first_bits(*host, *length)
            }
            _ => false,
        }
    }

    fn subtree(&self) -> GeneralSubtree {
        match self {
            PermittedHosts::Domain(domain) => GeneralSubtree::DnsName(domain.clone()),
            PermittedHosts::Network(address, length) => {
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*address, *length))
            }
        }
    }
}

/// What an authority's certificate says of hosts: these and the one that every replica has. Where no addresses are permitted,
/// all are excluded: a list without a kind of names says nothing of that kind.
pub(crate) fn constraints(own: &str, permitted: &[PermittedHosts]) -> NameConstraints {
    let mut subtrees = vec![GeneralSubtree::DnsName(own.to_owned())];
    subtrees.extend(permitted.iter().map(PermittedHosts::subtree));
    let has = |is_ipv4: bool| {
        permitted
            .iter()
            .any(|hosts| matches!(hosts, PermittedHosts::Network(address, _) if address.is_ipv4() == is_ipv4))
    };
    let (has_ipv4, has_ipv6) = (has(true), has(false));
    let mut excluded = Vec::new();
    if !has_ipv4 {
        excluded
            .push(GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(Ipv4Addr::UNSPECIFIED.into(), 0)));
    }
    if !has_ipv6 {
        excluded
            .push(GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(Ipv6Addr::UNSPECIFIED.into(), 0)));
    }
    NameConstraints { permitted_subtrees: subtrees, excluded_subtrees: excluded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for text in ["replica-1.example.org", "localhost", "10.0.0.5", "fd00::1"] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), text);
            assert_eq!(text.parse::<PermittedHosts>().unwrap().to_string(), text);
        }
        for text in
            ["", ".", "a..b", "-a", "a b", "*.example.org", "10.0.0.256", "10.0.0.5:7601", "a_b", "http://a"]
        {
            assert_eq!(text.parse::<Host>(), Err(HostError), "{text}");
            assert_eq!(text.parse::<PermittedHosts>(), Err(HostError), "{text}");
        }
        assert_eq!("Replica.Example".parse::<Host>().unwrap().to_string(), "replica.example");
        assert_eq!("10.0.0.0/33".parse::<PermittedHosts>(), Err(HostError));
        assert_eq!("10.0.0.0/8".parse::<PermittedHosts>().unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_permitted_includes_what_is_below_it_and_nothing_else() {
        let includes = |permitted: &str, host: &str| {
            permitted.parse::<PermittedHosts>().unwrap().include(&host.parse().unwrap())
        };
        assert!(includes("example.org", "example.org") && includes("example.org", "a.b.example.org"));
        assert!(!includes("example.org", "notexample.org") && !includes("example.org", "10.0.0.1"));
        assert!(includes("10.0.0.0/8", "10.9.9.9") && !includes("10.0.0.0/8", "11.0.0.1"));
        assert!(includes("10.0.0.5", "10.0.0.5") && !includes("10.0.0.5", "10.0.0.4"));
        assert!(includes("0.0.0.0/0", "1.2.3.4") && !includes("0.0.0.0/0", "::1"));
        assert!(includes("fd00::/8", "fd12::1") && !includes("fd00::/8", "fe80::1"));
    }
}
