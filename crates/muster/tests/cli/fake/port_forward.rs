//! A worker that listens on port 6006 and gives back what it is sent.

use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use muster_wire::v1;
use std::pin::Pin;
use tonic::{Response, Status, Streaming};
use v1::forward_port_request::Message as Said;
use v1::forward_port_response::Message;
use v1::forwarded_piece::Content;

type Answers = Pin<Box<dyn futures::Stream<Item = Result<v1::ForwardPortResponse, Status>> + Send>>;

pub(super) async fn play(
    find: impl Fn(&str) -> Result<v1::Job, Status>,
    mut requests: Streaming<v1::ForwardPortRequest>,
) -> Result<Response<Answers>, Status> {
    let Some(v1::ForwardPortRequest { message: Some(Said::Start(start)) }) = requests.message().await? else {
        return Err(Status::invalid_argument("the first message must be start"));
    };
    find(&start.job_id)?;
    if start.port != 6_006 {
        let text = format!("no process of the worker listens on port {}; they listen on 6006", start.port);
        return Err(to_status(&Refusal::new(RefusalCode::ExecUnavailable, text)));
    }
    let (answers, receiver) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        let started = Message::Started(v1::ForwardPortStarted::default());
        let _ = answers.send(Ok(v1::ForwardPortResponse { message: Some(started) })).await;
        while let Ok(Some(v1::ForwardPortRequest { message: Some(Said::Piece(piece)) })) =
            requests.message().await
        {
            let connection = piece.connection;
            let contents = match piece.content {
                Some(Content::Data(bytes)) => {
                    vec![Content::Taken(bytes.len() as u32), Content::Data(bytes)]
                }
                Some(Content::End(end)) => vec![Content::End(end)],
                _ => vec![],
            };
            for content in contents {
                let piece = v1::ForwardedPiece { connection, content: Some(content) };
                let message = Some(Message::Piece(piece));
                // A caller that has left is none that hears it.
                let _ = answers.send(Ok(v1::ForwardPortResponse { message })).await;
            }
        }
    });
    Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
}
