//! Who asks for something, and how records have it.
//!
//! **Invariant:** what is not known of a requester takes no byte of a record: one byte states which of the rest is there. Records are
//! written for each submission, and few of them have a role.

use alloc::string::String;
use core::fmt;
use core::net::IpAddr;
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;
use crate::metadata::ANONYMOUS;
use crate::name::Name;

/// Who asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requester {
    /// As its certificate says, like a job's creator; empty when nobody knows.
    pub name: String,
    /// Whether it may act for the operators of the cluster.
    pub is_operator: bool,
    /// From where it called the replica that took the call; none where nobody knows. The log alone has it: what the state keeps of
    /// a requester is [`Requester::kept`].
    pub address: Option<IpAddr>,
    /// The role with which it asked, where a token or a sign-in gave it one: that of the policy, or the built-in one. None where a
    /// certificate says by its kind what its holder may do. The log alone has it, too.
    pub role: Option<Name>,
}

impl Requester {
    /// One of which neither the address nor a role is known.
    #[must_use]
    pub fn named(name: String, is_operator: bool) -> Requester {
        Requester { name, is_operator, address: None, role: None }
    }

    /// Whether its name can be that of a principal.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.name.len() <= limits::CREATOR_BYTES_MAX && self.name.bytes().all(|b| b.is_ascii_graphic())
    }

    /// Whether nobody knows who it is.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.name.is_empty() && !self.is_operator
    }

    /// What the state keeps of it: from where it called, and by which role, matters to nothing that is decided.
    #[must_use]
    pub fn kept(&self) -> Requester {
        Requester::named(self.name.clone(), self.is_operator)
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { ANONYMOUS } else { &self.name })
    }
}

/// In the byte behind the name: it may act for the operators.
const IS_OPERATOR: u8 = 1;
/// An address follows.
const HAS_ADDRESS: u8 = 2;
/// A role follows, behind the address.
const HAS_ROLE: u8 = 4;
/// The name, that byte, the address and the role.
const PARTS_MAX: usize = 4;

/// As people and programs read it.
#[derive(Serialize)]
#[serde(rename = "Requester")]
struct JsonRequester<'a> {
    name: &'a str,
    is_operator: bool,
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a Name>,
}

/// The same, as it is read back.
#[derive(Deserialize)]
#[serde(rename = "Requester")]
struct ReadBack {
    name: String,
    is_operator: bool,
    address: Option<IpAddr>,
    #[serde(default)]
    role: Option<Name>,
}

impl Serialize for Requester {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (name, role) = (self.name.as_str(), self.role.as_ref());
        if serializer.is_human_readable() {
            let shown = JsonRequester { name, is_operator: self.is_operator, address: self.address, role };
            return shown.serialize(serializer);
        }
        let bit = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = bit(self.is_operator, IS_OPERATOR)
            | bit(self.address.is_some(), HAS_ADDRESS)
            | bit(role.is_some(), HAS_ROLE);
        let parts_count = 2 + usize::from(self.address.is_some()) + usize::from(role.is_some());
        let mut parts = serializer.serialize_tuple(parts_count)?;
        parts.serialize_element(name)?;
        parts.serialize_element(&flags)?;
        if let Some(address) = &self.address {
            parts.serialize_element(address)?;
        }
        if let Some(role) = role {
            parts.serialize_element(role)?;
        }
        parts.end()
    }
}

impl<'de> Deserialize<'de> for Requester {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Requester, D::Error> {
        if deserializer.is_human_readable() {
            let ReadBack { name, is_operator, address, role } = ReadBack::deserialize(deserializer)?;
            return Ok(Requester { name, is_operator, address, role });
        }
        deserializer.deserialize_tuple(PARTS_MAX, PartsVisitor)
    }
}

struct PartsVisitor;

impl<'de> Visitor<'de> for PartsVisitor {
    type Value = Requester;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, a byte that states what follows, and that")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Requester, A::Error> {
        let name: String = next(&mut parts)?;
        let flags: u8 = next(&mut parts)?;
        // One spelling for each: a bit that means nothing is refused.
        if flags & !(IS_OPERATOR | HAS_ADDRESS | HAS_ROLE) != 0 {
            return Err(de::Error::custom("a requester has parts that are not known here"));
        }
        let address = if flags & HAS_ADDRESS == 0 { None } else { Some(next(&mut parts)?) };
        let role = if flags & HAS_ROLE == 0 { None } else { Some(next(&mut parts)?) };
        Ok(Requester { name, is_operator: flags & IS_OPERATOR != 0, address, role })
    }
}

/// The next part; it is an error that there is none.
fn next<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(parts: &mut A) -> Result<T, A::Error> {
    parts.next_element()?.ok_or_else(|| de::Error::custom("a requester lacks a part"))
}
