//! Which jobs a list or a watch is of, by what jobs carry.

use muster_types::metadata::ANONYMOUS;
use muster_types::{JobMetadata, LabelSelector, Violation, limits};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

use crate::read::invalid;

/// The labels and the creator that jobs must have.
#[derive(Debug, Default)]
pub(crate) struct MetadataFilter {
    selector: LabelSelector,
    /// The creator that a job must have; empty when every creator is selected.
    creator: String,
}

impl MetadataFilter {
    /// # Errors
    /// When the selector cannot be read; the refusal says at which character.
    pub(crate) fn new(label_selector: &str, creator: &str) -> Result<MetadataFilter, Status> {
        let mut violations = Vec::new();
        let selector = LabelSelector::parse(label_selector).unwrap_or_else(|error| {
            violations.push(Violation::new("label_selector", error.to_string()));
            LabelSelector::default()
        });
        if creator.len() > limits::CREATOR_BYTES_MAX {
            let max = limits::CREATOR_BYTES_MAX;
            violations.push(Violation::new("creator", format!("must be at most {max} bytes")));
        }
        if !violations.is_empty() {
            return Err(invalid(violations));
        }
        Ok(MetadataFilter { selector, creator: creator.to_owned() })
    }

    /// Whether it passes every job.
    pub(crate) fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.creator.is_empty()
    }

    /// Whether a job that has neither labels nor a known creator cannot pass.
    pub(crate) fn needs_metadata(&self) -> bool {
        self.selector.needs_labels() || !(self.creator.is_empty() || self.creator == ANONYMOUS)
    }

    pub(crate) fn passes(&self, metadata: Option<&Arc<JobMetadata>>) -> bool {
        if self.is_empty() {
            return true;
        }
        let Some(metadata) = metadata else {
            let no_labels = BTreeMap::new();
            return (self.creator.is_empty() || self.creator == ANONYMOUS)
                && self.selector.matches(&no_labels);
        };
        (self.creator.is_empty() || self.creator == metadata.creator())
            && self.selector.matches(&metadata.labels)
    }

    /// What it adds to the filter that a token belongs to: nothing when it is empty, so that earlier tokens stay
    /// good.
    pub(crate) fn parts(&self) -> Vec<String> {
        if self.is_empty() {
            return Vec::new();
        }
        vec!["labels".to_owned(), self.selector.to_string(), self.creator.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn metadata(labels: &[(&str, &str)], creator: &str) -> Option<Arc<JobMetadata>> {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Some(Arc::new(JobMetadata { labels, creator: creator.to_owned(), ..JobMetadata::default() }))
    }

    #[test]
    fn a_job_without_metadata_is_anonymous_and_has_no_labels() {
        let passes = |selector: &str, creator: &str, metadata: Option<Arc<JobMetadata>>| {
            let filter = MetadataFilter::new(selector, creator).expect("a filter");
            if metadata.is_none() {
                assert!(!(filter.needs_metadata() && filter.passes(None)), "{selector} {creator}");
            }
            filter.passes(metadata.as_ref())
        };
        let ada = || metadata(&[("team", "a")], "tenant/vision/ada");
        for (selector, creator, of_none, of_ada) in [
            ("", "", true, true),
            ("team", "", false, true),
            ("!team", "", true, false),
            ("team!=a", "", true, false),
            ("", "anonymous", true, false),
            ("", "tenant/vision/ada", false, true),
            ("!team", "tenant/vision/ada", false, false),
            ("team=a", "anonymous", false, false),
        ] {
            assert_eq!(passes(selector, creator, None), of_none, "{selector} {creator}");
            assert_eq!(passes(selector, creator, ada()), of_ada, "{selector} {creator}");
        }
        assert!(MetadataFilter::new("", &"x".repeat(161)).is_err());
    }

    /// `cargo test --release -p muster-api selectors -- --ignored --nocapture`: how long a selector takes that walks through
    /// a million rows and matches one of them.
    #[test]
    #[ignore = "a measurement"]
    fn selectors_over_a_million_rows() {
        let mut rows: muster_state::Map<u64, Option<Arc<JobMetadata>>> = muster_state::Map::default();
        for n in 0..1_000_000 {
            let (team, run) = (format!("team-{}", n % 50), format!("run-{n}"));
            let labels =
                [("team", team.as_str()), ("run", run.as_str()), ("stage", "train"), ("debug", "no")];
            rows.insert(n, metadata(&labels, "tenant/vision/ada"));
        }
        for (selector, creator) in [
            ("run=run-7", ""),
            ("team=team-7,run=run-7", ""),
            ("run in (run-7,run-8,run-9),stage=train,!x", ""),
            ("", "tenant/vision/bob"),
        ] {
            let filter = MetadataFilter::new(selector, creator).expect("a filter");
            let begun = Instant::now();
            let passing = rows.iter().filter(|(_, metadata)| filter.passes(metadata.as_ref())).count();
            eprintln!("{selector:?} {creator:?}: {passing} in {:?}", begun.elapsed());
        }
    }
}
