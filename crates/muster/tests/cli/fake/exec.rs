//! A program next to a worker, which says what it was started with and then gives its input back.

use muster_wire::v1;
use std::pin::Pin;
use tonic::{Response, Status, Streaming};
use v1::exec_worker_request::Message as Said;
use v1::exec_worker_response::Message;

type Answers = Pin<Box<dyn futures::Stream<Item = Result<v1::ExecWorkerResponse, Status>> + Send>>;

pub(super) async fn play(
    find: impl Fn(&str) -> Result<v1::Job, Status>,
    mut requests: Streaming<v1::ExecWorkerRequest>,
) -> Result<Response<Answers>, Status> {
    let Some(v1::ExecWorkerRequest { message: Some(Said::Start(start)) }) = requests.message().await? else {
        return Err(Status::invalid_argument("the first message must be start"));
    };
    find(&start.job_id)?;
    let mut said = vec![
        Message::Started(v1::ExecStarted::default()),
        Message::Stdout(format!("rank {} {}\n", start.rank, start.command.join(" ")).into_bytes()),
        Message::Stderr(b"careful\n".to_vec()),
    ];
    while let Some(request) = requests.message().await? {
        match request.message {
            Some(Said::Input(bytes)) => said.push(Message::Stdout(bytes)),
            Some(Said::InputEnd(_)) => break,
            _ => {}
        }
    }
    said.push(Message::End(v1::ExecEnd { end: Some(v1::exec_end::End::ExitCode(7)) }));
    let said = said.into_iter().map(|message| Ok(v1::ExecWorkerResponse { message: Some(message) }));
    Ok(Response::new(Box::pin(futures::stream::iter(said))))
}
