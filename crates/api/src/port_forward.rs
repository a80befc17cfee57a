//! Connections to ports of workers, from the side of who asks. The rest of their way is that of commands next to workers.

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use muster_engine::{ExecInput, ExecOutput, ExecPurpose};
use muster_types::{FencingToken, Violation};
use muster_wire::convert::{fencing_token_from_proto, fencing_token_to_proto, job_id};
use muster_wire::status::to_status;
use muster_wire::v1;
use muster_wire::v1::job_service_client::JobServiceClient;
use muster_wire::v1::{forward_port_request, forward_port_response};
use tonic::{Request, Status, Streaming};

use crate::exec::{Execs, Kind, START_MAX, Worker, broken, for_caller};
use crate::forward::{Caller, ONWARD_BYTES_MAX, Remote, Route, Router};
use crate::onward_stream;
use crate::pieces::{piece_from_proto, piece_to_proto};
use crate::read::invalid;
use crate::refusals::late;

/// The answers to who asks.
pub(crate) type ToCaller = BoxStream<'static, Result<v1::ForwardPortResponse, Status>>;

/// Connections to a port.
struct OfPort;

impl Kind for OfPort {
    type Request = v1::ForwardPortRequest;
    type Response = v1::ForwardPortResponse;
    const OUTLIVES_REQUESTS: bool = false;

    fn input(request: v1::ForwardPortRequest) -> Result<ExecInput, Vec<Violation>> {
        match request.message {
            Some(forward_port_request::Message::Piece(piece)) => {
                piece_from_proto(piece).map(ExecInput::Piece)
            }
            Some(forward_port_request::Message::Start(_)) => {
                Err(vec![Violation::new("message", "it is started once")])
            }
            None => Err(vec![Violation::new("message", "must be one of start, piece")]),
        }
    }

    fn answer(output: ExecOutput, token: FencingToken) -> Option<v1::ForwardPortResponse> {
        use forward_port_response::Message;
        let message = match output {
            ExecOutput::Started => {
                Message::Started(v1::ForwardPortStarted { token: Some(fencing_token_to_proto(token)) })
            }
            ExecOutput::Piece(piece) => Message::Piece(piece_to_proto(piece)),
            ExecOutput::Stdout(_)
            | ExecOutput::Stderr(_)
            | ExecOutput::Exited(_)
            | ExecOutput::Signaled(_) => return None,
        };
        Some(v1::ForwardPortResponse { message: Some(message) })
    }
}

/// What is asked for, checked.
fn asked(start: &v1::ForwardPortStart) -> Result<(Worker, u16), Vec<Violation>> {
    let mut violations = Vec::new();
    let job = job_id("start.job_id", &start.job_id).map_err(|v| violations.push(v)).ok();
    let token = start
        .token
        .as_ref()
        .map(|token| fencing_token_from_proto("start.token", Some(token)))
        .transpose()
        .map_err(|v| violations.push(v))
        .ok();
    let port = u16::try_from(start.port).ok().filter(|port| *port != 0);
    if port.is_none() {
        violations.push(Violation::limit("start.port", start.port.into(), 1, u16::MAX.into()));
    }
    match (job, token, port) {
        (Some(job), Some(token), Some(port)) => Ok((Worker { job, token, rank: start.rank }, port)),
        _ => Err(violations),
    }
}

/// Opens a relay for who connects to a port.
pub(crate) async fn open(
    execs: &Execs,
    router: &Router,
    request: Request<Streaming<v1::ForwardPortRequest>>,
) -> Result<ToCaller, Status> {
    let caller = router.caller(&request);
    let mut requests = request.into_inner();
    let Ok(first) = tokio::time::timeout(START_MAX, requests.message()).await else {
        return Err(late("the first message must come within 10 s, and be start"));
    };
    let Some(v1::ForwardPortRequest { message: Some(forward_port_request::Message::Start(start)) }) = first?
    else {
        return Err(invalid(vec![Violation::new("message", "the first message must be start")]));
    };
    let place = execs.place(caller.account())?;
    let answers = match router.route(caller).await? {
        Route::Remote(leader) => pass_on(router.clone(), leader, caller, start, requests).await?,
        Route::Local => {
            let (worker, port) = asked(&start).map_err(invalid)?;
            let purpose = (ExecPurpose::Port(port), ExecInput::Port(port));
            execs.begin_here::<OfPort>(router, caller, worker, purpose, requests).await?
        }
    };
    // The place is taken until the last connection ends.
    let held = answers.inspect(move |_| {
        let _ = &place;
    });
    Ok(held.boxed())
}

/// Connects the caller's stream with one to the leader.
async fn pass_on(
    router: Router,
    Remote { channel, leader }: Remote,
    caller: Caller,
    start: v1::ForwardPortStart,
    requests: Streaming<v1::ForwardPortRequest>,
) -> Result<ToCaller, Status> {
    let first = v1::ForwardPortRequest { message: Some(forward_port_request::Message::Start(start)) };
    let (onward, broken_off) = onward_stream::request(Some(first), requests, caller);
    let mut to_leader = JobServiceClient::new(channel).max_decoding_message_size(ONWARD_BYTES_MAX);
    let answers = tokio::select! {
        opened = to_leader.forward_port(onward) => {
            opened.map_err(|status| for_caller(&broken_off, status))?.into_inner()
        }
        () = router.superseded(leader) => {
            return Err(to_status(&broken("another replica leads by now; connect again")));
        }
    };
    let superseded = async move { router.superseded(leader).await };
    let answers = answers.map_err(move |status| for_caller(&broken_off, status));
    let cut = to_status(&broken("another replica leads by now; connect again"));
    Ok(onward_stream::until_superseded(answers, superseded, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(port: u32) -> v1::ForwardPortStart {
        v1::ForwardPortStart { job_id: "job-1".to_owned(), port, ..Default::default() }
    }

    #[test]
    fn what_is_asked_for_is_checked_whole() {
        assert_eq!(asked(&start(65_535)).map(|(_, port)| port), Ok(65_535));
        for port in [0, 65_536, u32::MAX] {
            let violations = asked(&start(port)).expect_err("it is no port");
            assert!(violations.iter().any(|violation| violation.field == "start.port"), "{port}");
        }
        let strange = v1::ForwardPortStart { job_id: "no".to_owned(), ..start(0) };
        assert_eq!(asked(&strange).expect_err("nothing is right").len(), 2);
    }

    #[test]
    fn a_caller_says_one_kind_of_thing() {
        let said = |message| OfPort::input(v1::ForwardPortRequest { message });
        assert!(said(None).is_err());
        assert!(said(Some(forward_port_request::Message::Start(start(1)))).is_err(), "once is enough");
        let open = v1::forwarded_piece::Content::Open(v1::ForwardedOpen {});
        let piece = v1::ForwardedPiece { connection: 1, content: Some(open) };
        assert!(said(Some(forward_port_request::Message::Piece(piece))).is_ok());
        assert!(OfPort::answer(ExecOutput::Exited(0), FencingToken::default()).is_none());
    }
}
