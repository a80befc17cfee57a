//! What answers take of memory until they are written to the connection.
//!
//! A caller that asks and takes nothing leaves its answers here: in the messages that were made for it, and in what the
//! connection has taken over and cannot write. The first is bounded where answers are made (`Router::memory`), the
//! second here, by the bytes themselves: they know when they are let go of.
//!
//! **Invariant:** of an account that has as much unwritten as it may nothing more is taken, whatever it has asked for; the
//! others notice nothing of it. Nothing is kept of an account that has nothing unwritten.

use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;

use crate::shares::Account;
use crate::turns::QueuePermit;

/// Bytes of one account that may be unwritten, with one frame more.
const UNWRITTEN_EACH_MAX: usize = 16 << 20;
/// Of all accounts together; one that has nothing unwritten may begin all the same.
const UNWRITTEN_MAX: usize = 128 << 20;

/// Memory that an answer has until it is written: among the extensions of a response.
#[derive(Clone, Debug)]
pub(crate) struct AnswerMemory {
    _turn: Arc<QueuePermit>,
}

impl AnswerMemory {
    pub(crate) fn of(turn: QueuePermit) -> AnswerMemory {
        AnswerMemory { _turn: Arc::new(turn) }
    }
}

#[derive(Debug, Default)]
struct Unwritten {
    bytes: usize,
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    each: HashMap<Account, Unwritten>,
}

/// What every account has unwritten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Held>>);

impl Ledger {
    fn lock(&self) -> parking_lot::MutexGuard<'_, Held> {
        self.0.lock()
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.lock().all
    }

    /// Whether more may be taken of the account's answers; who may not is woken once something was written.
    fn poll_memory(&self, account: Account, context: &Context<'_>) -> Poll<()> {
        let mut held = self.lock();
        let all = held.all;
        let Some(own) = held.each.get_mut(&account) else { return Poll::Ready(()) };
        if account.is_unbounded() || (own.bytes < UNWRITTEN_EACH_MAX && all < UNWRITTEN_MAX) {
            return Poll::Ready(());
        }
        if !own.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            own.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn enter(&self, account: Account, bytes: usize) {
        let mut held = self.lock();
        held.all += bytes;
        held.each.entry(account).or_default().bytes += bytes;
    }

    fn leave(&self, account: Account, bytes: usize) {
        let mut held = self.lock();
        held.all -= bytes;
        let Some(own) = held.each.get_mut(&account) else { return };
        own.bytes -= bytes;
        let waiting = std::mem::take(&mut own.waiting);
        if own.bytes == 0 {
            held.each.remove(&account);
        }
        drop(held);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Bytes that are counted until they are let go of, and what goes with them.
struct Counted<P> {
    bytes: Bytes,
    ledger: Ledger,
    account: Account,
    _kept: Arc<P>,
}

impl<P> AsRef<[u8]> for Counted<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<P> Drop for Counted<P> {
    fn drop(&mut self) {
        self.ledger.leave(self.account, self.bytes.len());
    }
}

/// An answer that is counted until it is written; what is kept with it is let go of after that.
pub(crate) struct Metered<P> {
    inner: Body,
    ledger: Ledger,
    account: Account,
    kept: Arc<P>,
}

impl<P: Send + Sync + 'static> Metered<P> {
    pub(crate) fn new(inner: Body, ledger: Ledger, account: Account, kept: P) -> Metered<P> {
        Metered { inner, ledger, account, kept: Arc::new(kept) }
    }
}

impl<P: Send + Sync + 'static> http_body::Body for Metered<P> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ledger.poll_memory(self.account, context).is_pending() {
            return Poll::Pending;
        }
        let polled = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(polled.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| {
                    self.ledger.enter(self.account, bytes.len());
                    let (ledger, account, _kept) =
                        (self.ledger.clone(), self.account, Arc::clone(&self.kept));
                    Bytes::from_owner(Counted { bytes, ledger, account, _kept })
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http_body::Body as _;
    use http_body_util::{BodyExt as _, Full};
    use muster_transport::ShortName;

    fn account(name: &str) -> Account {
        Account::Tenant(ShortName::new(name).expect("a name"))
    }

    fn answer(ledger: &Ledger, name: &str, bytes: usize, kept: &Arc<()>) -> Metered<Arc<()>> {
        let body = Full::new(Bytes::from(vec![7; bytes])).map_err(|never| match never {});
        Metered::new(Body::new(body), ledger.clone(), account(name), Arc::clone(kept))
    }

    #[test]
    fn nothing_more_is_taken_of_who_has_too_much_unwritten_and_others_go_on() {
        let (ledger, kept) = (Ledger::default(), Arc::new(()));
        let mut first = answer(&ledger, "loud", UNWRITTEN_EACH_MAX, &kept);
        let taken = first.frame().now_or_never().flatten().expect("there is a frame").expect("it is whole");
        drop(first);
        assert_eq!(Arc::strong_count(&kept), 2, "what goes with the answer is kept until it is written");
        let mut second = answer(&ledger, "loud", 1, &kept);
        let mut waits = Box::pin(second.frame());
        assert!(waits.as_mut().now_or_never().is_none(), "as much as it may have");
        let mut other = answer(&ledger, "quiet", 5, &kept);
        assert!(!other.is_end_stream());
        let others =
            other.frame().now_or_never().flatten().expect("it has nothing yet").expect("it is whole");
        drop(taken);
        assert!(waits.now_or_never().flatten().is_some(), "it was written");
        drop((others, second, other));
        assert_eq!(Arc::strong_count(&kept), 1);
        let held = ledger.lock();
        assert!(held.each.is_empty() && held.all == 0, "nothing is kept: {held:?}");
    }
}
