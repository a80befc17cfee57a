//! Pages that are denied, as they are recorded with denied calls.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use muster_monitoring::Peer;
use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;

use crate::recorded::CallRecorder;

/// What is recorded as the call: the addresses of the listener, with a word in the place of what differs. So there are few, and
/// nothing that a caller has made up is in the record.
pub(crate) const PAGES: [&str; 17] = [
    "GET /",
    "GET /jobs",
    "GET /jobs/{id}",
    "GET /jobs/{id}/output",
    "GET /cluster",
    "GET /queues",
    "GET /nodes",
    "GET /nodes/{name}",
    "GET /fleet",
    "GET /fleet/map",
    "GET /timeline",
    "GET /plan",
    "GET /events",
    "GET /events/stream",
    "GET /metrics",
    "GET /livez",
    "GET /readyz",
];
/// A file of the pages, or an address that nothing is at.
const OTHER: &str = "GET (another address)";

/// What the reader of a page was told that is denied; among the extensions of a response.
#[derive(Clone, Debug)]
pub(super) struct Reason(pub(super) String);

/// Tells of a page that is denied.
pub(crate) async fn note_denied(
    State(recorder): State<CallRecorder>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.info);
    let page = page_of(request.uri().path());
    let mut response = next.run(request).await;
    if response.status() != StatusCode::FORBIDDEN {
        return response;
    }
    let reason = response.extensions_mut().remove::<Reason>();
    let reason = reason.map_or_else(|| "the caller may not read this page".to_owned(), |reason| reason.0);
    if let Some(peer) = peer {
        let refusal = Refusal::new(RefusalCode::PermissionDenied, reason);
        recorder.note(&peer, peer.principal, page, &to_status(&refusal));
    }
    response
}

fn page_of(path: &str) -> &'static str {
    let is_at = |page: &&str| is_like(page.trim_start_matches("GET "), path);
    PAGES.iter().copied().find(is_at).unwrap_or(OTHER)
}

/// Whether a path has these parts, where those in braces may be anything.
fn is_like(page: &str, path: &str) -> bool {
    let (mut wanted, mut parts) = (page.split('/'), path.split('/'));
    loop {
        match (wanted.next(), parts.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted == part || wanted.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_page_has_a_word_in_records() {
        let behind = include_str!("mod.rs").split(".route(\"").skip(1);
        let routes: Vec<&str> = behind.filter_map(|rest| rest.split('"').next()).collect();
        assert!(routes.contains(&"/jobs/{id}"), "the addresses were found: {routes:?}");
        for path in routes {
            assert!(PAGES.contains(&format!("GET {path}").as_str()), "{path} is not in the list");
        }
    }

    #[test]
    fn a_record_has_nothing_that_a_reader_made_up() {
        for (path, page) in [
            ("/", "GET /"),
            ("/jobs", "GET /jobs"),
            ("/jobs/job-7", "GET /jobs/{id}"),
            ("/jobs/job-7/output", "GET /jobs/{id}/output"),
            ("/nodes/%3Cb%3E", "GET /nodes/{name}"),
            ("/jobs/a/b/c", OTHER),
            ("/fleet/map", "GET /fleet/map"),
            ("", OTHER),
            ("/jobs/", "GET /jobs/{id}"),
            ("/nothing", OTHER),
        ] {
            assert_eq!(page_of(path), page, "{path}");
        }
    }
}
