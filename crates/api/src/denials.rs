//! Calls that were denied, on their way to what records them.
//!
//! **Invariant:** nobody waits here: a call that finds the queue full is counted and not told. No secret is in what is told.

use muster_transport::{PeerInfo, Principal};
use muster_wire::status::Refused;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use tokio::sync::mpsc;
use tonic::codegen::http;
use tonic::{Code, Status};

/// Denied calls that wait to be recorded.
const WAITING_MAX: usize = 4_096;
/// Bytes of a sentence that is told.
const REASON_BYTES_MAX: usize = 256;

/// A call that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedCall {
    /// When, by this replica's clock.
    pub at: SystemTime,
    /// Who called, as far as that was accepted: the holder of a certificate or of a token.
    pub caller: Principal,
    /// From where.
    pub address: IpAddr,
    /// Which call, as in `muster.v1beta1.JobService/CancelJob`.
    pub call: &'static str,
    /// The stable code, or that of gRPC where there is none.
    pub code: &'static str,
    /// The sentence that the caller got, cut to 256 bytes.
    pub reason: String,
}

/// Where denied calls are told; by default nowhere. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub struct Denials(Option<(mpsc::Sender<DeniedCall>, Arc<AtomicU64>)>);

/// The other end of the queue.
#[derive(Debug)]
pub struct DeniedCalls {
    queue: mpsc::Receiver<DeniedCall>,
    dropped: Arc<AtomicU64>,
}

impl Denials {
    /// A bounded queue of denied calls.
    #[must_use]
    pub fn queue() -> (Denials, DeniedCalls) {
        let (sender, queue) = mpsc::channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        (Denials(Some((sender, Arc::clone(&dropped)))), DeniedCalls { queue, dropped })
    }

    /// Tells of a call that was answered with this status, if that denies it.
    pub(crate) fn note(&self, peer: &PeerInfo, caller: Principal, path: &'static str, status: &Status) {
        let Some((queue, dropped)) = &self.0 else { return };
        let Some(code) = denied(status.code()) else { return };
        let Ok(place) = queue.try_reserve() else {
            dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        place.send(DeniedCall {
            at: SystemTime::now(),
            caller,
            address: peer.address.ip(),
            call: path.trim_start_matches('/'),
            code: Refused::from_status(status).code.map_or(code, |refusal| refusal.name()),
            reason: cut(status.message()),
        });
    }

    /// The same of an answer that is a refusal alone: it has its status among the headers.
    pub(crate) fn note_answer(
        &self,
        peer: &PeerInfo,
        caller: Principal,
        path: &'static str,
        headers: &http::HeaderMap,
    ) {
        // Nearly every answer is none.
        let is_refusal = self.0.is_some() && headers.contains_key("grpc-status");
        if let Some(status) = is_refusal.then(|| Status::from_header_map(headers)).flatten() {
            self.note(peer, caller, path, &status);
        }
    }
}

impl DeniedCalls {
    /// The next one; none once nobody can tell of any more.
    pub async fn next(&mut self) -> Option<DeniedCall> {
        self.queue.recv().await
    }

    /// One that waits; none where none does.
    pub fn waiting(&mut self) -> Option<DeniedCall> {
        self.queue.try_recv().ok()
    }

    /// How many found the queue full since this was last asked.
    pub fn take_dropped(&mut self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// The name of a status that denies a call.
fn denied(code: Code) -> Option<&'static str> {
    match code {
        Code::PermissionDenied => Some("PERMISSION_DENIED"),
        Code::Unauthenticated => Some("UNAUTHENTICATED"),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::{Refusal, RefusalCode};
    use muster_wire::status::to_status;

    const PATH: &str = "/muster.v1beta1.JobService/CancelJob";

    fn peer() -> PeerInfo {
        PeerInfo { address: ([192, 0, 2, 7], 4_711).into(), principal: Principal::Anonymous }
    }

    fn status(code: RefusalCode, text: &str) -> Status {
        to_status(&Refusal::new(code, text))
    }

    #[tokio::test]
    async fn denied_calls_are_told_and_others_are_not() {
        let (denials, mut calls) = Denials::queue();
        denials.note(&peer(), Principal::Anonymous, PATH, &status(RefusalCode::JobNotFound, "there is none"));
        denials.note(&peer(), Principal::Anonymous, PATH, &status(RefusalCode::Unauthenticated, "who is it"));
        denials.note(&peer(), Principal::Anonymous, PATH, &Status::permission_denied("no"));
        let first = calls.next().await.expect("it is there");
        assert_eq!((first.call, first.code), ("muster.v1beta1.JobService/CancelJob", "UNAUTHENTICATED"));
        assert_eq!((first.address.to_string().as_str(), first.reason.as_str()), ("192.0.2.7", "who is it"));
        assert_eq!(calls.waiting().map(|call| call.code), Some("PERMISSION_DENIED"));
        assert_eq!(calls.waiting(), None);
    }

    #[tokio::test]
    async fn an_answer_is_read_by_its_headers() {
        let (denials, mut calls) = Denials::queue();
        let answer = |status: Status| status.into_http::<tonic::body::Body>();
        let refused = answer(status(RefusalCode::PermissionDenied, "not yours"));
        denials.note_answer(&peer(), Principal::Plaintext, PATH, refused.headers());
        denials.note_answer(&peer(), Principal::Plaintext, PATH, &http::HeaderMap::new());
        assert_eq!(calls.waiting().map(|call| call.reason), Some("not yours".to_owned()));
        assert_eq!(calls.waiting(), None);
    }

    #[tokio::test]
    async fn a_flood_is_bounded_and_counted_and_long_texts_are_cut() {
        let (denials, mut calls) = Denials::queue();
        let long = status(RefusalCode::PermissionDenied, &"é".repeat(1_000));
        for _ in 0..WAITING_MAX + 10 {
            denials.note(&peer(), Principal::Anonymous, PATH, &long);
        }
        assert_eq!((calls.take_dropped(), calls.take_dropped()), (10, 0));
        assert_eq!(calls.waiting().map(|call| call.reason.len()), Some(REASON_BYTES_MAX));
        Denials::default().note(&peer(), Principal::Anonymous, PATH, &long);
    }
}
