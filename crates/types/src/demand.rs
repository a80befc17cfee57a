//! What a worker asks of a host's accelerators.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::Accelerators;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;

/// Throughput of the type a job was written for; other types are measured against it.
pub const THROUGHPUT_MILLI: u32 = 1_000;

/// A type a worker can use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AcceleratorChoice {
    /// For example `h100`.
    pub kind: Name,
    /// Work it does in a time, in thousandths of [`THROUGHPUT_MILLI`]: 500 takes twice as long.
    pub throughput_milli: u32,
}

/// How much of the devices of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceAmount {
    /// This many whole devices, which nobody else uses.
    Whole(u16),
    /// This many thousandths of one device, which others may share; 1 to 999.
    Share(u16),
}

impl DeviceAmount {
    /// Thousandths of devices.
    #[must_use]
    pub fn milli(self) -> u64 {
        match self {
            DeviceAmount::Whole(count) => u64::from(count) * 1_000,
            DeviceAmount::Share(milli) => u64::from(milli),
        }
    }

    /// Devices touched.
    #[must_use]
    pub fn devices(self) -> u16 {
        match self {
            DeviceAmount::Whole(count) => count,
            DeviceAmount::Share(_) => 1,
        }
    }
}

/// Accelerators of a worker: an amount, of one of several types. All workers of a group get the
/// same type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AcceleratorRequest {
    /// The types it can use; empty for whatever there is.
    pub choices: Vec<AcceleratorChoice>,
    /// How much of one host.
    pub amount: DeviceAmount,
}

impl AcceleratorRequest {
    /// Throughput on a type, in thousandths; none when it cannot use it.
    #[must_use]
    pub fn throughput_milli(&self, kind: &Name) -> Option<u32> {
        if self.choices.is_empty() {
            return Some(THROUGHPUT_MILLI);
        }
        self.choices.iter().find(|choice| choice.kind == *kind).map(|choice| choice.throughput_milli)
    }

    /// Whether it can use a type.
    #[must_use]
    pub fn accepts(&self, kind: &Name) -> bool {
        self.throughput_milli(kind).is_some()
    }

    /// Adds every rule that is broken.
    pub fn check(&self, found: &mut Vec<Violation>) {
        let max = limits::ACCELERATOR_CHOICES_MAX;
        if self.choices.len() > max {
            found.push(Violation::limit("choices", self.choices.len() as u64, 0, max as u64));
        }
        let kinds: BTreeSet<&Name> = self.choices.iter().map(|choice| &choice.kind).collect();
        if kinds.len() != self.choices.len() {
            found.push(Violation::new("choices", "must not name a type twice"));
        }
        for choice in &self.choices {
            let (weight, max) = (choice.throughput_milli, limits::THROUGHPUT_MILLI_MAX);
            if weight == 0 || weight > max {
                let field = alloc::format!("choices.{}.throughput_milli", choice.kind);
                found.push(Violation::limit(&field, weight.into(), 1, max.into()));
            }
        }
        match self.amount {
            DeviceAmount::Whole(count) if count == 0 || count > limits::HOST_DEVICES_MAX => {
                found.push(Violation::limit("count", count.into(), 1, limits::HOST_DEVICES_MAX.into()));
            }
            DeviceAmount::Share(milli) if milli == 0 || milli > 999 => {
                found.push(Violation::limit("share_milli", milli.into(), 1, 999));
            }
            DeviceAmount::Whole(_) | DeviceAmount::Share(_) => {}
        }
    }
}

impl From<Accelerators> for AcceleratorRequest {
    /// This many whole devices of exactly this type.
    fn from(accelerators: Accelerators) -> AcceleratorRequest {
        let choice = AcceleratorChoice { kind: accelerators.kind, throughput_milli: THROUGHPUT_MILLI };
        AcceleratorRequest { choices: alloc::vec![choice], amount: DeviceAmount::Whole(accelerators.count) }
    }
}

impl fmt::Display for AcceleratorRequest {
    /// As users write it: `h100:8`, `h100|a100:1`, `any:0.25`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.choices.iter().map(|choice| choice.kind.to_string()).collect();
        let kinds = if kinds.is_empty() { String::from("any") } else { kinds.join("|") };
        match self.amount {
            DeviceAmount::Whole(count) => write!(f, "{kinds}:{count}"),
            DeviceAmount::Share(milli) => {
                let digits = alloc::format!("{milli:03}");
                write!(f, "{kinds}:0.{}", digits.trim_end_matches('0'))
            }
        }
    }
}
