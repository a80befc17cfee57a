//! Calls that are recorded outside of the log, on their way to what records them: those that were denied, and those of
//! operators that leave no record in the log.
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

/// Calls that wait to be recorded.
const WAITING_MAX: usize = 4_096;
/// Of these, for calls that were accepted alone: a flood of denied ones must not hide what operators do.
const FOR_ACCEPTED: usize = 256;
/// Bytes of a sentence that is told.
const REASON_BYTES_MAX: usize = 256;

/// Calls of operators that leave no record in the log: the others say there who asked.
const UNLOGGED: [&str; 10] = [
    "/muster.admin.v1beta1.ClusterAdminService/AddReplica",
    "/muster.admin.v1beta1.ClusterAdminService/ChangeVoters",
    "/muster.admin.v1beta1.ClusterAdminService/CreateBackup",
    "/muster.admin.v1beta1.ClusterAdminService/PromoteReplica",
    "/muster.admin.v1beta1.ClusterAdminService/RemoveReplica",
    "/muster.admin.v1beta1.ClusterAdminService/ReplaceReplica",
    "/muster.admin.v1beta1.ClusterAdminService/TransferLeadership",
    "/muster.admin.v1beta1.DrillService/AnnounceDrill",
    "/muster.admin.v1beta1.DrillService/EndDrill",
    "/muster.admin.v1beta1.DrillService/RefuseTraffic",
];

/// A call that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// When, by this replica's clock.
    pub at: SystemTime,
    /// Who called, as far as that was accepted: the holder of a certificate or of a token.
    pub caller: Principal,
    /// From where.
    pub address: IpAddr,
    /// Which call, as in `muster.v1beta1.JobService/CancelJob`, or which page, as in `GET /jobs/{id}`.
    pub call: &'static str,
    /// The stable code of the refusal, or that of gRPC where there is none; `OK` for one that was accepted.
    pub code: &'static str,
    /// The sentence that the caller got, cut to 256 bytes; empty for one that was accepted.
    pub reason: String,
}

impl RecordedCall {
    /// The code of a call that was accepted.
    pub const ACCEPTED: &'static str = "OK";
}

/// Where calls are told that are to be recorded; by default nowhere. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub struct CallRecorder(Option<(mpsc::Sender<RecordedCall>, Arc<AtomicU64>)>);

/// Where the parts of one stream that are denied are told; among the extensions of its request.
#[derive(Clone)]
pub(crate) struct StreamRecorder {
    recorder: CallRecorder,
    peer: PeerInfo,
    caller: Principal,
    path: &'static str,
}

impl StreamRecorder {
    /// Tells of a part that was answered with this status, if that denies it.
    pub(crate) fn note(&self, status: &Status) {
        self.recorder.note(&self.peer, self.caller, self.path, status);
    }
}

/// The other end of the queue.
#[derive(Debug)]
pub struct RecordedCalls {
    queue: mpsc::Receiver<RecordedCall>,
    dropped: Arc<AtomicU64>,
}

impl CallRecorder {
    /// A bounded queue of calls.
    #[must_use]
    pub fn queue() -> (CallRecorder, RecordedCalls) {
        let (sender, queue) = mpsc::channel(WAITING_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        (CallRecorder(Some((sender, Arc::clone(&dropped)))), RecordedCalls { queue, dropped })
    }

    /// Tells of a call that was answered with this status, if that denies it.
    pub(crate) fn note(&self, peer: &PeerInfo, caller: Principal, path: &'static str, status: &Status) {
        if let Some(code) = denied(status.code()) {
            let code = || Refused::from_status(status).code.map_or(code, |refusal| refusal.name());
            self.tell(peer, (caller, path), FOR_ACCEPTED, || (code(), cut(status.message())));
        }
    }

    /// The same for the parts of a stream.
    pub(crate) fn of_stream(&self, peer: PeerInfo, caller: Principal, path: &'static str) -> StreamRecorder {
        StreamRecorder { recorder: self.clone(), peer, caller, path }
    }

    /// What is told is made only where there is space for it in the queue, next to what is kept free for
    /// others.
    fn tell(
        &self,
        peer: &PeerInfo,
        (caller, path): (Principal, &'static str),
        kept_free: usize,
        answer: impl FnOnce() -> (&'static str, String),
    ) {
        let Some((queue, dropped)) = &self.0 else { return };
        let place = queue.try_reserve().ok().filter(|_| queue.capacity() >= kept_free);
        let Some(place) = place else {
            dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (code, reason) = answer();
        let (at, address, call) =
            (SystemTime::now(), peer.address.ip().to_canonical(), path.trim_start_matches('/'));
        place.send(RecordedCall { at, caller, address, call, code, reason });
    }

    /// The same of an answer by its headers: one that is a refusal alone has its status among them. Tells of calls that were
    /// accepted, too, where the log does not.
    pub(crate) fn note_answer(
        &self,
        peer: &PeerInfo,
        caller: Principal,
        path: &'static str,
        headers: &http::HeaderMap,
    ) {
        if self.0.is_none() {
            return;
        }
        // Nearly every answer is no refusal.
        let is_refusal = headers.contains_key("grpc-status");
        match is_refusal.then(|| Status::from_header_map(headers)).flatten() {
            Some(status) => self.note(peer, caller, path, &status),
            None if UNLOGGED.contains(&path) => {
                self.tell(peer, (caller, path), 0, || (RecordedCall::ACCEPTED, String::new()));
            }
            None => {}
        }
    }
}

impl RecordedCalls {
    /// The next one; none once nobody can tell of any more.
    pub async fn next(&mut self) -> Option<RecordedCall> {
        self.queue.recv().await
    }

    /// One that waits; none where none does.
    pub fn waiting(&mut self) -> Option<RecordedCall> {
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
        let (recorder, mut calls) = CallRecorder::queue();
        recorder.note(
            &peer(),
            Principal::Anonymous,
            PATH,
            &status(RefusalCode::JobNotFound, "there is none"),
        );
        recorder.note(
            &peer(),
            Principal::Anonymous,
            PATH,
            &status(RefusalCode::Unauthenticated, "who is it"),
        );
        recorder.note(&peer(), Principal::Anonymous, PATH, &Status::permission_denied("no"));
        let first = calls.next().await.expect("it is there");
        assert_eq!((first.call, first.code), ("muster.v1beta1.JobService/CancelJob", "UNAUTHENTICATED"));
        assert_eq!((first.address.to_string().as_str(), first.reason.as_str()), ("192.0.2.7", "who is it"));
        assert_eq!(calls.waiting().map(|call| call.code), Some("PERMISSION_DENIED"));
        assert_eq!(calls.waiting(), None);
    }

    #[test]
    fn every_call_that_the_log_does_not_tell_of_exists() {
        assert!(UNLOGGED.iter().all(|path| crate::access::rule_of(path).is_some()));
    }

    #[tokio::test]
    async fn an_answer_is_read_by_its_headers() {
        let (recorder, mut calls) = CallRecorder::queue();
        let answer = |status: Status| status.into_http::<tonic::body::Body>();
        let refused = answer(status(RefusalCode::PermissionDenied, "not yours"));
        recorder.note_answer(&peer(), Principal::Plaintext, PATH, refused.headers());
        recorder.note_answer(&peer(), Principal::Plaintext, PATH, &http::HeaderMap::new());
        recorder.note_answer(&peer(), Principal::Plaintext, UNLOGGED[0], &http::HeaderMap::new());
        let not_found = answer(status(RefusalCode::JobNotFound, "there is none"));
        recorder.note_answer(&peer(), Principal::Plaintext, UNLOGGED[0], not_found.headers());
        assert_eq!(calls.waiting().map(|call| call.reason), Some("not yours".to_owned()));
        assert_eq!(calls.waiting().map(|call| call.code), Some("OK"), "the log does not tell of it");
        assert_eq!(calls.waiting(), None);
    }

    #[tokio::test]
    async fn a_flood_is_bounded_and_counted_and_long_texts_are_cut() {
        let (recorder, mut calls) = CallRecorder::queue();
        let long = status(RefusalCode::PermissionDenied, &"é".repeat(1_000));
        for _ in 0..WAITING_MAX + 10 {
            recorder.note(&peer(), Principal::Anonymous, PATH, &long);
        }
        let dropped = FOR_ACCEPTED as u64 + 10;
        assert_eq!((calls.take_dropped(), calls.take_dropped()), (dropped, 0));
        // What an operator does is recorded all the same, as far as there is space kept free for it.
        for _ in 0..=FOR_ACCEPTED {
            recorder.note_answer(&peer(), Principal::Plaintext, UNLOGGED[0], &http::HeaderMap::new());
        }
        assert_eq!(calls.take_dropped(), 1);
        assert_eq!(calls.waiting().map(|call| call.reason.len()), Some(REASON_BYTES_MAX));
        CallRecorder::default().note(&peer(), Principal::Anonymous, PATH, &long);
    }
}
