//! Pages of the past: which moment an address asks for, and the answer of the state of that moment.
//!
//! **Invariant:** a page of the past takes a turn at the past, as a call does, and holds it until it is made.
//! **Invariant:** a page at a record of the log is made once for a browser: it is tagged by the record, its reader and its address.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use muster_page::TimeTravel;
use muster_types::{Consistency, LogIndex, LogTime, PastPoint, RefusalCode};
use muster_wire::status::Refused;
use muster_wire::time::timestamp;
use muster_wire::v1;
use tokio::time::Instant;
use tonic::Status;

use super::query::with_moment;
use super::{HTML_TYPE, Origin, Problem, Reader, Scene, Web, tag_with, tagged};
use crate::read::Fresh;
use crate::shares::Account;

/// Present time is part of a tag in this unit: a page leads a step further once there is one.
const TAG_TIME_MS: u64 = 3_600_000;

/// What a page of a state is asked for.
pub(super) struct PageRequest {
    reader: Reader,
    headers: HeaderMap,
    path: String,
    /// With its query, as it was sent.
    address: String,
    parameters: Vec<(String, String)>,
    /// The moment of the past; none for the present.
    pub(super) at: Option<PastPoint>,
}

impl PageRequest {
    /// The request with the values of the parameters that its page has next to `at`.
    pub(super) fn of<const N: usize>(
        reader: Reader,
        request: &Request,
        known: [&str; N],
    ) -> Result<(PageRequest, [String; N]), Problem> {
        let uri = request.uri();
        let (values, at) = with_moment(uri, known)?;
        let at = at.map(|text| point("at", &text)).transpose()?;
        // The token of a page is of a list as it was; at another moment the list begins again.
        let given = known.iter().zip(&values).filter(|(name, value)| **name != "page" && !value.is_empty());
        let asked = PageRequest {
            reader,
            headers: request.headers().clone(),
            path: uri.path().to_owned(),
            address: uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            parameters: given.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            at,
        };
        Ok((asked, values))
    }

    /// For whom what it needs is counted.
    pub(super) fn account(&self) -> Account {
        self.reader.account()
    }

    /// How its page leads to other moments.
    pub(super) fn travel(&self) -> TimeTravel {
        TimeTravel {
            path: self.path.clone(),
            parameters: self.parameters.clone(),
            is_past: self.at.is_some(),
            has_later: false,
        }
    }
}

/// A log index or a time that an address names.
fn point(field: &str, text: &str) -> Result<PastPoint, Problem> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let index = text.parse::<u64>().ok().filter(|index| *index > 0);
        let point = index.map(|index| PastPoint::Index(LogIndex(index)));
        return point.ok_or_else(|| Problem::field(field, "must be a log index from 1 on"));
    }
    time(field, text).map(PastPoint::Time)
}

/// A time that an address names.
pub(super) fn time(field: &str, text: &str) -> Result<LogTime, Problem> {
    let ms = muster_page::moment_ms(text);
    ms.map(LogTime).map_err(|why| Problem::field(field, why))
}

impl Web {
    /// Answers with a page of the state that is asked for.
    pub(super) async fn read(
        &self,
        asked: PageRequest,
        bytes: usize,
        make: impl FnOnce(&Scene) -> Result<String, Problem> + Send + 'static,
    ) -> Result<Response, Problem> {
        self.read_as(asked, HTML_TYPE, bytes, make).await
    }

    /// The same with another media type.
    pub(super) async fn read_as(
        &self,
        asked: PageRequest,
        media_type: &'static str,
        bytes: usize,
        make: impl FnOnce(&Scene) -> Result<String, Problem> + Send + 'static,
    ) -> Result<Response, Problem> {
        let tag = self.past_tag(&asked);
        if let Some(known) = tag.as_deref().and_then(|tag| tagged(&asked.headers, tag, media_type)) {
            return Ok(known);
        }
        let past = match asked.at {
            Some(at) => Some(self.past(asked.reader, at).await?),
            None => None,
        };
        let origin = Origin { reader: asked.reader, travel: Some(asked.travel()), past };
        let mut response = self.made(origin, bytes, make).await?;
        match tag {
            Some(tag) => tag_with(&mut response, &tag, media_type),
            None => {
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            }
        }
        Ok(response)
    }

    /// The state of a moment of the past, in its reader's turn at that.
    pub(super) async fn past(&self, reader: Reader, at: PastPoint) -> Result<Fresh, Problem> {
        self.try_past(reader, at).await.map_err(|status| self.no_past(status))
    }

    /// The same with the refusal as it is.
    pub(super) async fn try_past(&self, reader: Reader, at: PastPoint) -> Result<Fresh, Status> {
        use v1::past_state::Moment;
        let moment = match at {
            PastPoint::Index(index) => Moment::LogIndex(index.0),
            PastPoint::Time(time) => Moment::Time(timestamp(time.0)),
        };
        let state = v1::read_options::State::Past(v1::PastState { moment: Some(moment) });
        let options = v1::ReadOptions { state: Some(state), ..Default::default() };
        // Time is left to make the page, and to say that the state was not made.
        let deadline = Instant::now() + self.timeouts.page * 3 / 4;
        self.router.fresh(reader.account(), (Some(&options), Consistency::Any), deadline).await
    }

    /// Why there is no page of a moment, with what there is.
    pub(super) fn no_past(&self, status: Status) -> Problem {
        let refused = Refused::from_status(&status);
        if refused.code != Some(RefusalCode::ResumeTokenCompacted) {
            return status.into();
        }
        let kept = match self.engine().log_range() {
            Ok((first, last)) => {
                format!(
                    "This replica has the records from {first} to {last}; the earliest page is at={first}."
                )
            }
            Err(_) => "This replica has no record of the past.".to_owned(),
        };
        let sentence = format!("{}. {kept}", refused.message.trim_end_matches('.'));
        Problem::new(StatusCode::NOT_FOUND, "That past is not kept here", sentence)
    }

    /// The tag of a page at a record of the log: what is made of it by this release for this reader stays the same. A record of
    /// an earlier generation of the cluster may have had the same number.
    fn past_tag(&self, asked: &PageRequest) -> Option<String> {
        let Some(PastPoint::Index(index)) = asked.at else { return None };
        let view = self.engine().view();
        let (cluster, generation) = (view.cluster()?.cluster, view.generation());
        let hour = view.log_time().0 / TAG_TIME_MS;
        let info = self.engine().info();
        let PageRequest { reader, address, .. } = asked;
        let of = format!("{} {} {} {address}", info.replica, info.region, reader.0);
        let (of, release) = (crc32fast::hash(of.as_bytes()), env!("CARGO_PKG_VERSION"));
        Some(format!("\"past-{cluster}-{generation}-{index}-{hour}-{of:08x}-{release}\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_indexes_or_times() {
        let read = |text: &str| point("at", text).map_err(|problem| problem.fields[0].0.clone());
        assert_eq!(read("77"), Ok(PastPoint::Index(LogIndex(77))));
        assert_eq!(read("2023-11-14T22:13:20Z"), Ok(PastPoint::Time(LogTime(1_700_000_000_000))));
        for text in ["", "0", "-1", "18446744073709551616", "1e3", "+2h", "yesterday", "<script>", "\u{661}"]
        {
            assert_eq!(read(text), Err("at".to_owned()), "{text}");
        }
    }
}
