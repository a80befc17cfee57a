//! Messages on their way in: how much memory they may take before they are whole, and how long that may last.
//!
//! The length of a message stands before it, and the memory for it is set aside when that was read. So a caller that
//! begins many large messages and finishes none would hold memory for as long as it keeps its connection alive.
//!
//! **Invariant:** a message is read on only while its length is covered by the caller's share; a call that waits for
//! the rest of a message ends in time.
//! **Invariant:** a stream that its caller reset does not look as if it had ended.

use http_body::{Frame, SizeHint};
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::{Code, Status};

use crate::original::{Original, PREFIX_BYTES};
use crate::refusals::late;
use crate::shares::{Account, Pool, PoolPermit};

/// Permits that are held until the call is answered: what a whole message was made into takes as much.
pub(crate) type HeldPermits = Arc<Mutex<Vec<PoolPermit>>>;

/// What a body is read under.
pub(crate) struct Terms {
    pub(crate) pool: Pool,
    pub(crate) account: Account,
    /// Bytes that any message may have: what is longer is refused behind this anyway.
    pub(crate) message_bytes_max: u64,
    /// For the rest of a message.
    pub(crate) timeout: Duration,
    /// Whether it has one message, which is waited for from the beginning.
    pub(crate) is_single: bool,
    /// Where permits go that are held until the answer; none gives them back with each message.
    pub(crate) taken: Option<HeldPermits>,
    /// Where the message itself is kept, if it may have to be passed on.
    pub(crate) original: Option<Original>,
    pub(crate) retry_after_ms: u64,
}

/// A body that is read under terms.
pub(crate) struct Assembled {
    inner: Body,
    terms: Terms,
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    /// Of the message that is being read.
    missing: u64,
    share: Option<PoolPermit>,
    /// Runs while a message is waited for.
    waits: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
}

impl Assembled {
    pub(crate) fn new(inner: Body, terms: Terms) -> Assembled {
        let waits = terms.is_single.then(|| Box::pin(tokio::time::sleep(terms.timeout)));
        Assembled {
            inner,
            terms,
            prefix: [0; PREFIX_BYTES],
            prefix_len: 0,
            missing: 0,
            share: None,
            waits,
            has_ended: false,
        }
    }

    fn begin_waiting(&mut self) {
        if self.waits.is_none() {
            self.waits = Some(Box::pin(tokio::time::sleep_until(Instant::now() + self.terms.timeout)));
        }
    }

    /// A message is whole.
    fn complete(&mut self) {
        self.waits = None;
        let share = self.share.take();
        if let (Some(taken), Some(share)) = (&self.terms.taken, share) {
            taken.lock().push(share);
        }
    }

    /// Follows the messages in some bytes.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        if let Some(original) = &self.terms.original {
            original.push(bytes);
        }
        while !bytes.is_empty() {
            if self.missing > 0 {
                let read = usize::try_from(self.missing).unwrap_or(usize::MAX).min(bytes.len());
                self.missing -= read as u64;
                bytes = bytes.get(read..).unwrap_or_default();
                if self.missing == 0 {
                    self.complete();
                }
                continue;
            }
            let read = (PREFIX_BYTES - self.prefix_len).min(bytes.len());
            let (prefix, rest) = bytes.split_at(read);
            if let Some(place) = self.prefix.get_mut(self.prefix_len..self.prefix_len + read) {
                place.copy_from_slice(prefix);
            }
            self.prefix_len += read;
            bytes = rest;
            self.begin_waiting();
            if self.prefix_len == PREFIX_BYTES {
                self.prefix_len = 0;
                self.begin_message()?;
            }
        }
        Ok(())
    }

    fn begin_message(&mut self) -> Result<(), Status> {
        let [_, a, b, c, d] = self.prefix;
        let length = u64::from(u32::from_be_bytes([a, b, c, d]));
        let covered = length.min(self.terms.message_bytes_max);
        let share = self.terms.pool.enter(self.terms.account, covered).ok_or_else(|| self.too_much())?;
        self.share = Some(share);
        self.missing = length;
        if length == 0 {
            self.complete();
        }
        Ok(())
    }

    fn too_much(&self) -> Status {
        let account = self.terms.account;
        let text = format!(
            "{account} sends as much at once as it may, in messages that are not whole or not answered yet; try again, or \
             send less at a time"
        );
        let refusal = Refusal::new(RefusalCode::Overloaded, text);
        to_status(&refusal.with("retry_after_ms", self.terms.retry_after_ms).with("account", account))
    }

    fn too_slow(&self) -> Status {
        let seconds = self.terms.timeout.as_secs();
        late(format!("a message that was begun was not whole within {seconds} s"))
    }
}

impl http_body::Body for Assembled {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = &mut *self;
        if body.has_ended {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut body.inner).poll_frame(context);
        let failed = match polled {
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref().map_or(Ok(()), |data| body.follow(data)) {
                Ok(()) => return Poll::Ready(Some(Ok(frame))),
                Err(status) => status,
            },
            // The framework takes this code, that of a usual reset, for the end of a stream.
            Poll::Ready(Some(Err(status))) if !body.terms.is_single && status.code() == Code::Cancelled => {
                late("the stream was reset, and has not ended")
            }
            Poll::Ready(other) => return Poll::Ready(other),
            Poll::Pending => {
                let is_late =
                    body.waits.as_mut().is_some_and(|waits| waits.as_mut().poll(context).is_ready());
                if !is_late {
                    return Poll::Pending;
                }
                body.too_slow()
            }
        };
        body.has_ended = true;
        body.share = None;
        Poll::Ready(Some(Err(failed)))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use muster_transport::Principal;

    fn terms(pool: &Pool, taken: Option<HeldPermits>) -> Terms {
        Terms {
            pool: pool.clone(),
            account: Account::of(&Principal::Plaintext),
            message_bytes_max: 1_000,
            timeout: Duration::from_millis(50),
            is_single: true,
            taken,
            original: None,
            retry_after_ms: 100,
        }
    }

    /// A body that gives these pieces, and then nothing, or its end.
    fn body(pieces: Vec<Vec<u8>>, ends: bool) -> Body {
        use futures::StreamExt as _;
        let pieces = futures::stream::iter(pieces);
        let frames = pieces.map(|piece| Ok::<_, Status>(Frame::data(Bytes::from(piece))));
        if ends {
            Body::new(http_body_util::StreamBody::new(frames))
        } else {
            Body::new(http_body_util::StreamBody::new(frames.chain(futures::stream::pending())))
        }
    }

    fn prefix(length: u32) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes()].concat()
    }

    async fn next(body: &mut Assembled) -> Option<Result<Frame<Bytes>, Status>> {
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    #[tokio::test]
    async fn a_message_is_covered_until_its_call_is_answered() {
        let pool = Pool::new(1_000, 1_000);
        let taken = HeldPermits::default();
        let pieces = vec![prefix(900)[..3].to_vec(), prefix(900)[3..].to_vec(), vec![1; 600], vec![1; 300]];
        let mut first = Assembled::new(body(pieces, true), terms(&pool, Some(Arc::clone(&taken))));
        while let Some(frame) = next(&mut first).await {
            frame.expect("it fits");
        }
        drop(first);
        let more = || Assembled::new(body(vec![prefix(200)], true), terms(&pool, None));
        let refused = next(&mut more()).await.expect("it is told").expect_err("it does not fit next to it");
        let told = muster_wire::status::Refused::from_status(&refused);
        assert_eq!(told.code, Some(RefusalCode::Overloaded), "{told}");
        taken.lock().clear();
        next(&mut more()).await.expect("it comes").expect("there is free memory again");
    }

    #[tokio::test]
    async fn a_message_that_is_never_whole_ends_its_call() {
        let pool = Pool::new(1_000, 1_000);
        let mut silent = Assembled::new(body(Vec::new(), false), terms(&pool, None));
        let status = next(&mut silent).await.expect("it is told").expect_err("nothing came");
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        let mut half = Assembled::new(body(vec![prefix(900), vec![0; 100]], false), terms(&pool, None));
        next(&mut half).await.expect("it comes").expect("the prefix");
        next(&mut half).await.expect("it comes").expect("a part");
        next(&mut half).await.expect("it is told").expect_err("the rest never came");
        assert!(next(&mut half).await.is_none());
        assert!(pool.enter(Account::of(&Principal::Plaintext), 1_000).is_some(), "its share is given back");
    }

    #[tokio::test]
    async fn a_stream_that_is_reset_has_not_ended() {
        use tonic::codec::Codec as _;
        let reset = |is_single| {
            let terms = Terms { is_single, ..terms(&Pool::new(1_000, 1_000), None) };
            let pieces = [Ok(Frame::data(Bytes::from(prefix(0)))), Err(Status::cancelled("reset"))];
            let frames = http_body_util::StreamBody::new(futures::stream::iter(pieces));
            let mut codec = tonic_prost::ProstCodec::<(), ()>::default();
            let body = Assembled::new(Body::new(frames), terms);
            tonic::Streaming::new_request(codec.decoder(), body, None, None)
        };
        let mut stream = reset(false);
        assert!(stream.message().await.expect("the first is whole").is_some());
        stream.message().await.expect_err("its end has not come");
        // Nobody is told anything of a call with one message that was not waited for.
        let mut single = reset(true);
        assert!(single.message().await.expect("it is whole").is_some());
        assert!(single.message().await.expect("nothing follows").is_none());
    }

    #[tokio::test]
    async fn a_stream_may_be_silent_between_messages() {
        let pool = Pool::new(1_000, 1_000);
        let pieces = vec![[prefix(2), vec![1, 2], prefix(0), prefix(1), vec![3]].concat()];
        let stream = Terms { is_single: false, ..terms(&pool, None) };
        let mut stream = Assembled::new(body(pieces, false), stream);
        next(&mut stream).await.expect("it comes").expect("three messages");
        let silent = tokio::time::timeout(Duration::from_millis(250), next(&mut stream)).await;
        assert!(silent.is_err(), "nobody waits for the rest of anything");
        assert!(pool.enter(Account::of(&Principal::Plaintext), 1_000).is_some());
    }
}
