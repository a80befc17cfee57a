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
    let (answers, receiver) = tokio::sync::mpsc::channel(8);
    tokio::spawn(async move {
        let begun = [
            Message::Started(v1::ExecStarted::default()),
            Message::Stdout(format!("rank {} {}\n", start.rank, start.command.join(" ")).into_bytes()),
            Message::Stderr(b"careful\n".to_vec()),
        ];
        for message in begun {
            say(&answers, message).await;
        }
        while let Ok(Some(request)) = requests.message().await {
            match request.message {
                Some(Said::Input(bytes)) => say(&answers, Message::Stdout(bytes)).await,
                Some(Said::InputEnd(_)) => break,
                _ => {}
            }
        }
        say(&answers, Message::End(v1::ExecEnd { end: Some(v1::exec_end::End::ExitCode(7)) })).await;
    });
    Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
}

type Answer = Result<v1::ExecWorkerResponse, Status>;

/// A caller that has left is none that hears it.
async fn say(answers: &tokio::sync::mpsc::Sender<Answer>, message: Message) {
    let _ = answers.send(Ok(v1::ExecWorkerResponse { message: Some(message) })).await;
}
