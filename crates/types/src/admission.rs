//! Who may take part in the cluster: which nodes are admitted, and which certificates are not good any more.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

use crate::fleet::{Accelerators, NodeSpec};
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::time::LogTime;

/// What is asked of a node that registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AdmissionMode {
    /// Every node is admitted as it describes itself, unless it was approved as something else or rejected.
    #[default]
    Open,
    /// A node is admitted as it describes itself when it comes for the first time. From then on it stays in its region
    /// and cluster, with devices of its type and no more of them, until an operator approves something else.
    Pinned,
    /// A node is admitted that an operator has approved, that a rule admits, or that is known as what it says.
    Approve,
}

impl AdmissionMode {
    /// Every mode.
    pub const ALL: [AdmissionMode; 3] = [AdmissionMode::Open, AdmissionMode::Pinned, AdmissionMode::Approve];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AdmissionMode::Open => "open",
            AdmissionMode::Pinned => "pinned",
            AdmissionMode::Approve => "approve",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<AdmissionMode> {
        AdmissionMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What a node may say of itself. What is left out is not asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBounds {
    /// Where it is.
    pub region: Option<Name>,
    /// The fleet cluster there.
    pub cluster: Option<Name>,
    /// Types of devices, with the most that it may have of each; a node has devices of one type. Empty for none.
    /// Types ascending, each once.
    pub devices: Option<Vec<Accelerators>>,
}

impl NodeBounds {
    /// Those that a node keeps which stays where it is, with what it has or less.
    #[must_use]
    pub fn of(spec: &NodeSpec) -> NodeBounds {
        NodeBounds {
            region: Some(spec.region.clone()),
            cluster: Some(spec.cluster.clone()),
            devices: Some(spec.accelerators.iter().cloned().collect()),
        }
    }

    /// What a description says beyond them, as one sentence for people; none when it keeps them.
    #[must_use]
    pub fn breach(&self, spec: &NodeSpec) -> Option<String> {
        if let Some(region) = self.region.as_ref().filter(|region| **region != spec.region) {
            return Some(format!("it says region {}, and {region} is admitted", spec.region));
        }
        if let Some(cluster) = self.cluster.as_ref().filter(|cluster| **cluster != spec.cluster) {
            return Some(format!("it says cluster {}, and {cluster} is admitted", spec.cluster));
        }
        let (Some(most), Some(has)) = (&self.devices, &spec.accelerators) else { return None };
        if most.iter().any(|most| most.kind == has.kind && has.count <= most.count) {
            return None;
        }
        let most: Vec<String> = most.iter().map(ToString::to_string).collect();
        let most = if most.is_empty() { String::from("none") } else { most.join(", ") };
        Some(format!("it says devices {has}, and {most} is admitted"))
    }

    fn check(&self, at: &str, found: &mut Vec<Violation>) {
        let Some(devices) = &self.devices else { return };
        if devices.len() > limits::ACCELERATOR_CHOICES_MAX {
            let max = limits::ACCELERATOR_CHOICES_MAX as u64;
            found.push(Violation::limit(&format!("{at}.devices"), devices.len() as u64, 0, max));
        }
        if !devices.is_sorted_by(|a, b| a.kind < b.kind) {
            found.push(Violation::new(format!("{at}.devices"), "must name each type once, in their order"));
        }
        let max = limits::HOST_DEVICES_MAX;
        for device in devices.iter().filter(|device| device.count == 0 || device.count > max) {
            found.push(Violation::limit(&format!("{at}.devices"), device.count.into(), 1, max.into()));
        }
    }
}

impl fmt::Display for NodeBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any =
            |name: &Option<Name>| name.as_ref().map_or_else(|| String::from("any"), ToString::to_string);
        write!(f, "region {}, cluster {}, devices ", any(&self.region), any(&self.cluster))?;
        match &self.devices {
            None => f.write_str("any"),
            Some(devices) if devices.is_empty() => f.write_str("none"),
            Some(devices) => {
                for (place, device) in devices.iter().enumerate() {
                    write!(f, "{}{device}", if place > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

/// Nodes that are admitted by their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionRule {
    /// A name in which each `*` stands for any text, the empty one too.
    pub pattern: String,
    /// What such a node may say of itself.
    pub bounds: NodeBounds,
}

impl AdmissionRule {
    /// Whether it speaks of nodes of this name.
    #[must_use]
    pub fn covers(&self, name: &Name) -> bool {
        let mut parts = self.pattern.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.as_str().strip_prefix(first) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            // The earliest place leaves most for the parts behind it.
            match rest.find(part) {
                Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }
}

/// Which nodes are admitted without being named one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAdmission {
    /// What is asked of a node that no rule names.
    pub mode: AdmissionMode,
    /// A node whose name a rule covers has to keep the bounds of one that does.
    pub rules: Vec<AdmissionRule>,
}

impl NodeAdmission {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.rules.len() > limits::ADMISSION_RULES_MAX {
            let max = limits::ADMISSION_RULES_MAX as u64;
            found.push(Violation::limit("rules", self.rules.len() as u64, 0, max));
        }
        for (place, rule) in self.rules.iter().take(limits::ADMISSION_RULES_MAX).enumerate() {
            let at = format!("rules[{place}]");
            let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.*".contains(&b);
            let pattern = rule.pattern.as_bytes();
            if pattern.is_empty()
                || pattern.len() > limits::NAME_BYTES_MAX
                || !pattern.iter().copied().all(letter)
            {
                let text = "must be 1 to 63 lower-case letters, digits, '-', '_', '.' or '*'";
                found.push(Violation::new(format!("{at}.pattern"), text));
            }
            rule.bounds.check(&at, &mut found);
        }
        found
    }
}

/// What an operator has said of a node by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    /// It is admitted within these bounds, whatever mode and rules say.
    Approved(NodeBounds),
    /// It is not admitted.
    Rejected,
}

impl Approval {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if let Approval::Approved(bounds) = self {
            bounds.check("bounds", &mut found);
        }
        found
    }
}

/// The serial number of a certificate, at most 20 bytes as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CertificateSerial {
    high: u32,
    low: u128,
}

impl CertificateSerial {
    /// Below all others; of no certificate.
    pub const ZERO: CertificateSerial = CertificateSerial { high: 0, low: 0 };

    /// From its bytes, most significant first; none beyond 20 of them, without leading zeros.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<CertificateSerial> {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let digits = bytes.get(zeros..).unwrap_or_default();
        if digits.is_empty() || digits.len() > 20 {
            return None;
        }
        let (mut high, mut low) = (0_u128, 0_u128);
        for byte in digits {
            high = (high << 8) | (low >> 120);
            low = (low << 8) | u128::from(*byte);
        }
        Some(CertificateSerial { high: u32::try_from(high).ok()?, low })
    }
}

impl fmt::Display for CertificateSerial {
    /// Forty hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:032x}", self.high, self.low)
    }
}

impl fmt::Debug for CertificateSerial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CertificateSerial {
    type Err = Violation;

    /// Up to forty hexadecimal digits; colons between them are left out.
    fn from_str(text: &str) -> Result<CertificateSerial, Violation> {
        let wrong = || Violation::new("serial", "must be 1 to 40 hexadecimal digits, as in `muster ca show`");
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        if digits.is_empty() || digits.len() > 40 {
            return Err(wrong());
        }
        let mut nibbles = Vec::with_capacity(40);
        nibbles.resize(40 - digits.len(), 0_u8);
        for digit in digits {
            let value = char::from(digit).to_digit(16).ok_or_else(wrong)?;
            nibbles.push(u8::try_from(value).map_err(|_| wrong())?);
        }
        let bytes: Vec<u8> =
            nibbles.chunks(2).map(|pair| pair.iter().fold(0, |sum, n| (sum << 4) | n)).collect();
        CertificateSerial::from_bytes(&bytes).ok_or_else(wrong)
    }
}

/// A certificate that is not good any more, although it has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Whom it names, for people.
    pub holder: String,
    /// When it ends by itself: it is remembered until then.
    pub until: LogTime,
}

impl Revocation {
    /// Every rule that it breaks.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let max = limits::REVOCATION_TEXT_BYTES_MAX;
        if self.holder.len() > max {
            return alloc::vec![Violation::new("holder", format!("must be at most {max} bytes"))];
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn a_pattern_covers_names() {
        let covers = |pattern: &str, text: &str| {
            AdmissionRule { pattern: pattern.into(), bounds: NodeBounds::default() }.covers(&name(text))
        };
        for (pattern, text) in [
            ("*", "h1"),
            ("h1", "h1"),
            ("h*", "h1"),
            ("h*", "h"),
            ("*1", "h1"),
            ("eu-*.gpu-*", "eu-1.gpu-7"),
            ("a*b*a", "aba"),
            ("a**a", "aa"),
        ] {
            assert!(covers(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("h1", "h10"),
            ("h1", "xh1"),
            ("h*", "g1"),
            ("*1", "h12"),
            ("a*a", "a"),
            ("eu-*.gpu-*", "eu-1.cpu-7"),
        ] {
            assert!(!covers(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn serials_go_there_and_back() {
        for bytes in [&[1_u8][..], &[0x7f; 20], &[0, 0xff, 0x10], &[0xab; 17]] {
            let serial = CertificateSerial::from_bytes(bytes).expect("it is one");
            assert_eq!(serial.to_string().parse::<CertificateSerial>(), Ok(serial));
        }
        assert_eq!(
            CertificateSerial::from_bytes(&[1; 20]).map(|serial| serial.to_string()),
            Some("01".repeat(20))
        );
        assert_eq!("0A:0b".parse(), CertificateSerial::from_bytes(&[10, 11]).ok_or(Violation::new("", "")));
        for text in ["", ":", "0", "x", &"1".repeat(41), "-1"] {
            assert!(text.parse::<CertificateSerial>().is_err(), "{text:?}");
        }
        assert!(CertificateSerial::from_bytes(&[1; 21]).is_none());
    }
}
