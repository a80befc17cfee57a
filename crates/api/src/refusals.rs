//! Refusals that several services give, as the statuses that callers get.
//!
//! **Invariant:** every status of this crate is made from a refusal, so that it has a reason: no other way of making one is used
//! outside tests.

use muster_types::{Refusal, RefusalCode};
use muster_wire::status::to_status;
use tonic::Status;

/// A message, or the first one of a stream, that did not come in time: nothing was done.
pub(crate) fn late(text: impl Into<String>) -> Status {
    to_status(&Refusal::new(RefusalCode::RequestTimeout, text))
}

/// Something that was to be made here and has failed: nothing was changed.
pub(crate) fn failed(text: &str) -> Status {
    to_status(&Refusal::new(RefusalCode::Internal, text))
}

/// A stream that changes nothing, at a replica that stops.
pub(crate) fn stopping() -> Status {
    to_status(&Refusal::new(RefusalCode::ReplicaStopping, "this replica stops"))
}

/// A stream of an agent that nobody here takes part in any more.
pub(crate) fn over(text: &str) -> Status {
    to_status(&Refusal::new(RefusalCode::Fenced, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_wire::status::Refused;
    use std::path::{Path, PathBuf};

    /// What makes a status of text alone.
    const MAKERS: [&str; 22] = [
        "new",
        "ok",
        "cancelled",
        "unknown",
        "invalid_argument",
        "deadline_exceeded",
        "not_found",
        "already_exists",
        "permission_denied",
        "resource_exhausted",
        "failed_precondition",
        "aborted",
        "out_of_range",
        "unimplemented",
        "internal",
        "unavailable",
        "data_loss",
        "unauthenticated",
        "from_error",
        "with_details",
        "with_metadata",
        "with_details_and_metadata",
    ];

    fn sources(directory: &Path, all: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                sources(&path, all);
            } else if name.ends_with(".rs") && name != "tests.rs" && !name.ends_with("_tests.rs") {
                all.push(path);
            }
        }
    }

    /// The lines, counted from 1, in which a status is made of text, up to the unit tests of a file.
    fn bare(source: &str) -> Vec<usize> {
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().enumerate();
        let makes = |line: &str| {
            let mut named = line.match_indices("Status::").map(|(at, found)| (at, &line[at + found.len()..]));
            named.any(|(at, rest)| {
                let is_whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                is_whole && MAKERS.contains(&name)
            })
        };
        lines
            .filter(|(_, line)| !line.trim_start().starts_with("//") && makes(line))
            .map(|(at, _)| at + 1)
            .collect()
    }

    #[test]
    fn no_status_is_made_without_a_reason() {
        let mut all = Vec::new();
        sources(&PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut all);
        assert!(all.len() > 60, "the sources are found: {}", all.len());
        let mut found = Vec::new();
        for path in all {
            let source = std::fs::read_to_string(&path).expect("it can be read");
            found.extend(bare(&source).into_iter().map(|line| format!("{}:{line}", path.display())));
        }
        assert!(found.is_empty(), "statuses without ErrorInfo:\n{}", found.join("\n"));
    }

    #[test]
    fn a_status_of_text_alone_is_noticed() {
        let source = "// Status::internal(\nlet a = tonic::Status::internal(\"a\");\nlet b = .map_err(Status::unknown);\n\
            let c = NodeStatus::new();\nlet d = Status::code;\n#[cfg(test)]\nmod tests {\nStatus::aborted(\"e\")\n}\n";
        assert_eq!(bare(source), [2, 3]);
    }

    #[test]
    fn what_nothing_was_done_for_has_its_reason() {
        let reason = |status: Status| Refused::from_status(&status).code;
        assert_eq!(reason(late("it did not come")), Some(RefusalCode::RequestTimeout));
        assert_eq!(reason(failed("it broke")), Some(RefusalCode::Internal));
        assert_eq!(reason(stopping()), Some(RefusalCode::ReplicaStopping));
        assert_eq!(reason(over("it ended")), Some(RefusalCode::Fenced));
        assert_eq!(late("it did not come").code(), tonic::Code::DeadlineExceeded);
    }
}
