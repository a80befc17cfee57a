//! Pieces of connections to ports of workers, from messages and to them.

use bytes::Bytes;
use muster_engine::{ForwardedContent, ForwardedPiece};
use muster_types::{Violation, limits};
use muster_wire::v1;
use muster_wire::v1::forwarded_piece::Content;

/// Bytes of data of one piece.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// The piece that a message has.
pub(crate) fn piece_from_proto(piece: v1::ForwardedPiece) -> Result<ForwardedPiece, Vec<Violation>> {
    let v1::ForwardedPiece { connection, content } = piece;
    let content = match content {
        Some(Content::Open(_)) => ForwardedContent::Open,
        Some(Content::Data(bytes)) if bytes.is_empty() || bytes.len() > PIECE_BYTES_MAX => {
            let (length, most) = (bytes.len() as u64, PIECE_BYTES_MAX as u64);
            return Err(vec![Violation::limit("piece.data", length, 1, most)]);
        }
        Some(Content::Data(bytes)) => ForwardedContent::Data(Bytes::from(bytes)),
        Some(Content::End(_)) => ForwardedContent::End,
        Some(Content::Closed(reason)) => {
            ForwardedContent::Closed(reason.chars().take(limits::TEXT_BYTES_MAX / 4).collect())
        }
        Some(Content::Taken(bytes)) => ForwardedContent::Taken(bytes),
        None => {
            let text = "must have one of open, data, end, closed, taken";
            return Err(vec![Violation::new("piece.content", text)]);
        }
    };
    Ok(ForwardedPiece { connection, content })
}

/// The message of a piece.
pub(crate) fn piece_to_proto(piece: ForwardedPiece) -> v1::ForwardedPiece {
    let ForwardedPiece { connection, content } = piece;
    let content = match content {
        ForwardedContent::Open => Content::Open(v1::ForwardedOpen {}),
        ForwardedContent::Data(bytes) => Content::Data(bytes.into()),
        ForwardedContent::End => Content::End(v1::ForwardedEnd {}),
        ForwardedContent::Closed(reason) => Content::Closed(reason),
        ForwardedContent::Taken(bytes) => Content::Taken(bytes),
    };
    v1::ForwardedPiece { connection, content: Some(content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_comes_back_and_what_is_none_is_refused() {
        let contents = [
            Content::Open(v1::ForwardedOpen {}),
            Content::Data(vec![0; PIECE_BYTES_MAX]),
            Content::End(v1::ForwardedEnd {}),
            Content::Closed("no".to_owned()),
            Content::Taken(7),
        ];
        for content in contents {
            let piece = v1::ForwardedPiece { connection: 3, content: Some(content) };
            assert_eq!(piece_from_proto(piece.clone()).map(piece_to_proto), Ok(piece));
        }
        for content in [None, Some(Content::Data(vec![])), Some(Content::Data(vec![0; PIECE_BYTES_MAX + 1]))]
        {
            assert!(piece_from_proto(v1::ForwardedPiece { connection: 3, content }).is_err());
        }
    }
}
