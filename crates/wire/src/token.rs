//! Page tokens and resume tokens: a place in a list or in the log, as text a client keeps for us.
//!
//! A token is opaque so that what it means can change; the version byte in it is how. It carries the
//! identity of its cluster, because a place in one log means nothing in another, and a checksum,
//! because tokens are copied by hand. Neither is a secret or a proof: a forged token only asks for
//! another place to start reading from.
//!
//! **Invariant:** a token is accepted only by the cluster, the kind of call and the filter it was made
//! for; every text yields a token or a typed error.

use muster_types::{ClusterId, LogIndex};

/// Longest text of a token.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Longest key of a page token: the id or name of a row.
const KEY_BYTES_MAX: usize = 128;

const VERSION: u8 = 1;
const KIND_PAGE: u8 = b'p';
const KIND_RESUME: u8 = b'r';

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not one of ours, cut off, or mistyped.
    #[error("the token is damaged or was not made by Muster")]
    ReadToken,
    /// Made by a newer version.
    #[error("the token has version {version}; this server reads version {VERSION}")]
    ReadVersion {
        /// Of the token.
        version: u8,
    },
    /// Made by another cluster.
    #[error("the token was made by another cluster")]
    MatchCluster,
    /// A page token where a resume token belongs, a token of another list, or the reverse.
    #[error("the token was made for another call")]
    MatchCall,
    /// The filters of the request changed since.
    #[error("the token was made for other filters; repeat the filters of the first request")]
    MatchFilter,
}

/// Which list a page token goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `ListArrays`.
    Arrays,
    /// `ListJobs`.
    Jobs,
    /// `ListNodes`.
    Nodes,
    /// `ListTenants`.
    Queues,
}

impl List {
    fn to_byte(self) -> u8 {
        match self {
            List::Arrays => b'a',
            List::Jobs => b'j',
            List::Nodes => b'n',
            List::Queues => b'q',
        }
    }
}

/// A short fingerprint of the filters of a request, the same in every process. Order matters; parts
/// are kept apart.
#[must_use]
pub fn filter_digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    // FNV-1a: a token needs to notice a changed filter, not to withstand someone who wants it not to.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut step = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for part in parts {
        (part.len() as u64).to_le_bytes().into_iter().chain(part.bytes()).for_each(&mut step);
    }
    hash
}

/// Where the next page of a list begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToken {
    /// The last row of the page before: its id or name.
    pub after: String,
    /// The oldest state that one of the pages so far shows.
    pub log_index: LogIndex,
}

impl PageToken {
    /// As text.
    ///
    /// # Panics
    /// When `after` is longer than an id or name can be.
    #[must_use]
    pub fn encode(&self, cluster: ClusterId, list: List, filter: u64) -> String {
        assert!(self.after.len() <= KEY_BYTES_MAX, "a row's key is an id or a name");
        let mut body = Writer::new(KIND_PAGE, cluster);
        body.bytes.push(list.to_byte());
        body.u64(filter);
        body.u64(self.log_index.0);
        body.bytes.extend_from_slice(self.after.as_bytes());
        body.finish()
    }

    /// From text.
    ///
    /// # Errors
    /// When it was not made by this cluster for this list and filter.
    pub fn decode(text: &str, cluster: ClusterId, list: List, filter: u64) -> Result<PageToken, TokenError> {
        let bytes = open(text, KIND_PAGE, cluster)?;
        let mut body = Reader(&bytes);
        if body.u8()? != list.to_byte() {
            return Err(TokenError::MatchCall);
        }
        if body.u64()? != filter {
            return Err(TokenError::MatchFilter);
        }
        let log_index = LogIndex(body.u64()?);
        let after = std::str::from_utf8(body.0).map_err(|_| TokenError::ReadToken)?;
        if after.len() > KEY_BYTES_MAX {
            return Err(TokenError::ReadToken);
        }
        Ok(PageToken { after: after.to_owned(), log_index })
    }
}

/// The event a watch goes on behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// Generation of the cluster: after a rebuild from a backup the same index may name another record.
    pub generation: u32,
    /// The last record of which anything was delivered.
    pub log_index: LogIndex,
    /// How many of its events were delivered; `u32::MAX` for all of them.
    pub events: u32,
}

impl ResumeToken {
    /// Behind everything of a record.
    #[must_use]
    pub fn behind(generation: u32, log_index: LogIndex) -> ResumeToken {
        ResumeToken { generation, log_index, events: u32::MAX }
    }

    /// As text.
    #[must_use]
    pub fn encode(&self, cluster: ClusterId, filter: u64) -> String {
        let mut body = Writer::new(KIND_RESUME, cluster);
        body.u64(filter);
        body.u32(self.generation);
        body.u64(self.log_index.0);
        body.u32(self.events);
        body.finish()
    }

    /// From text.
    ///
    /// # Errors
    /// When it was not made by this cluster for a watch with this filter.
    pub fn decode(text: &str, cluster: ClusterId, filter: u64) -> Result<ResumeToken, TokenError> {
        let bytes = open(text, KIND_RESUME, cluster)?;
        let mut body = Reader(&bytes);
        if body.u64()? != filter {
            return Err(TokenError::MatchFilter);
        }
        let token =
            ResumeToken { generation: body.u32()?, log_index: LogIndex(body.u64()?), events: body.u32()? };
        if body.0.is_empty() { Ok(token) } else { Err(TokenError::ReadToken) }
    }
}

/// Half of the identity is enough to tell two clusters apart.
fn tag(cluster: ClusterId) -> u64 {
    (cluster.0 >> 64) as u64 ^ cluster.0 as u64
}

/// Builds `version kind tag body checksum`, as hexadecimal digits.
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(kind: u8, cluster: ClusterId) -> Writer {
        let mut writer = Writer { bytes: vec![VERSION, kind] };
        writer.u64(tag(cluster));
        writer
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    fn finish(mut self) -> String {
        let checksum = crc32fast::hash(&self.bytes);
        self.u32(checksum);
        let mut text = String::with_capacity(self.bytes.len() * 2);
        for byte in self.bytes {
            for digit in [byte >> 4, byte & 0xf] {
                text.push(char::from_digit(digit.into(), 16).expect("half a byte is one digit"));
            }
        }
        text
    }
}

/// Checks everything that comes before the body and after it; returns the body.
fn open(text: &str, kind: u8, cluster: ClusterId) -> Result<Vec<u8>, TokenError> {
    let mut bytes = from_hex(text).ok_or(TokenError::ReadToken)?;
    let body_end = bytes.len().checked_sub(4).ok_or(TokenError::ReadToken)?;
    let checksum = Reader(&bytes[body_end..]).u32()?;
    bytes.truncate(body_end);
    if crc32fast::hash(&bytes) != checksum {
        return Err(TokenError::ReadToken);
    }
    let mut head = Reader(&bytes);
    let version = head.u8()?;
    if version != VERSION {
        return Err(TokenError::ReadVersion { version });
    }
    if head.u8()? != kind {
        return Err(TokenError::MatchCall);
    }
    if head.u64()? != tag(cluster) {
        return Err(TokenError::MatchCluster);
    }
    Ok(head.0.to_vec())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() > TOKEN_BYTES_MAX || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes().chunks_exact(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

/// Takes fixed-size numbers off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], TokenError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(TokenError::ReadToken)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, TokenError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, TokenError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, TokenError> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

    proptest! {
        #[test]
        fn page_tokens_return(after in "[a-z0-9.-]{0,63}", index: u64, filter: u64) {
            let token = PageToken { after, log_index: LogIndex(index) };
            let text = token.encode(CLUSTER, List::Jobs, filter);
            prop_assert!(text.len() <= TOKEN_BYTES_MAX);
            prop_assert_eq!(PageToken::decode(&text, CLUSTER, List::Jobs, filter), Ok(token));
            prop_assert_eq!(
                PageToken::decode(&text, CLUSTER, List::Nodes, filter),
                Err(TokenError::MatchCall)
            );
            prop_assert_eq!(
                PageToken::decode(&text, CLUSTER, List::Jobs, filter ^ 1),
                Err(TokenError::MatchFilter)
            );
            prop_assert_eq!(
                PageToken::decode(&text, ClusterId(CLUSTER.0 ^ 1), List::Jobs, filter),
                Err(TokenError::MatchCluster)
            );
            prop_assert_eq!(ResumeToken::decode(&text, CLUSTER, filter), Err(TokenError::MatchCall));
        }

        #[test]
        fn resume_tokens_return(generation: u32, index: u64, events: u32, filter: u64) {
            let token = ResumeToken { generation, log_index: LogIndex(index), events };
            let text = token.encode(CLUSTER, filter);
            prop_assert_eq!(ResumeToken::decode(&text, CLUSTER, filter), Ok(token));
            prop_assert_eq!(
                PageToken::decode(&text, CLUSTER, List::Jobs, filter),
                Err(TokenError::MatchCall)
            );
        }

        #[test]
        fn one_changed_digit_is_noticed(index: u64, at in 0usize..60, digit in "[0-9a-f]") {
            let text = ResumeToken::behind(1, LogIndex(index)).encode(CLUSTER, 7);
            let at = at % text.len();
            let mut other = text.clone();
            other.replace_range(at..=at, &digit);
            prop_assume!(other != text);
            prop_assert_eq!(ResumeToken::decode(&other, CLUSTER, 7), Err(TokenError::ReadToken));
        }

        #[test]
        fn no_text_panics(text: String, hex in "([0-9a-fA-F]{2}){0,80}") {
            for text in [text, hex] {
                let _ = PageToken::decode(&text, CLUSTER, List::Jobs, 0);
                let _ = ResumeToken::decode(&text, CLUSTER, 0);
            }
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut writer = Writer::new(KIND_RESUME, CLUSTER);
        writer.bytes[0] = 9;
        assert_eq!(
            ResumeToken::decode(&writer.finish(), CLUSTER, 0),
            Err(TokenError::ReadVersion { version: 9 })
        );
    }

    #[test]
    fn filters_are_kept_apart() {
        assert_ne!(filter_digest(["ab", "c"]), filter_digest(["a", "bc"]));
        assert_ne!(filter_digest(["", "a"]), filter_digest(["a", ""]));
    }
}
