//! Messages that many receivers get with the same content, each with a few fields that differ: the content is
//! encoded once.
//!
//! A message on the wire is a sequence of fields, and two encoded parts one behind the other are one
//! message with the fields of both. So what is alike for everybody is encoded on its own and put behind
//! each receiver's fields as it is.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// A message that can be sent in parts.
pub trait Part: Message + Default + 'static {
    /// As it is on the wire, to be shared.
    fn to_shared(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

impl<M: Message + Default + 'static> Part for M {}

/// A message of which a part is encoded already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared<M> {
    own: M,
    rest: Bytes,
}

impl<M> Shared<M> {
    /// Fields of one receiver's own, and the encoded fields that everybody gets.
    #[must_use]
    pub fn new(own: M, rest: Bytes) -> Shared<M> {
        Shared { own, rest }
    }
}

impl<M> From<M> for Shared<M> {
    /// A message that nobody else gets.
    fn from(own: M) -> Shared<M> {
        Shared { own, rest: Bytes::new() }
    }
}

/// Bytes of a message on the wire.
#[must_use]
pub fn encoded_len(message: &impl Message) -> usize {
    message.encoded_len()
}

impl<M: Message> Message for Shared<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.own.encode_raw(buf);
        buf.put_slice(&self.rest);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.own.merge_field(tag, wire_type, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.own.encoded_len() + self.rest.len()
    }

    fn clear(&mut self) {
        self.own.clear();
        self.rest = Bytes::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn both_parts_arrive_as_one_message() {
        let status = v1::JobStatus { attempt: 3, ..Default::default() };
        let job = v1::Job { id: "job-1".to_owned(), status: Some(status), ..Default::default() };
        let event = Some(v1::watch_jobs_response::Event::Changed(job));
        let all = v1::WatchJobsResponse { log_index: 7, event: event.clone(), ..Default::default() };
        let own = v1::WatchJobsResponse { resume_token: "here".to_owned(), ..Default::default() };
        let message = Shared::new(own, all.to_shared());
        let sent = message.encode_to_vec();
        assert_eq!(sent.len(), message.encoded_len());
        let arrived = v1::WatchJobsResponse::decode(sent.as_slice()).expect("it is a message");
        assert_eq!(arrived, v1::WatchJobsResponse { resume_token: "here".to_owned(), log_index: 7, event });
        let alone = Shared::from(arrived.clone());
        assert_eq!(alone.encode_to_vec(), arrived.encode_to_vec());
    }
}
