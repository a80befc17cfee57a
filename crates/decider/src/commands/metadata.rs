//! Labels, annotations and creators of jobs that are submitted.

use alloc::sync::Arc;
use alloc::vec::Vec;
use muster_journal::{Decision, canonical};
use muster_types::{JobId, JobMetadata, Refusal, Submission};

use crate::commands::answer::VIOLATIONS_MAX;
use crate::rules::requested::JobPath;
use crate::speculation::Speculation;

/// Labels and annotations must be right.
pub(super) fn check_metadata(specs: &[Submission], path: JobPath) -> Result<(), Refusal> {
    let mut found = Vec::new();
    for (place, job) in specs.iter().enumerate() {
        let Some(metadata) = &job.metadata else { continue };
        let violations = metadata.violations();
        if violations.is_empty() {
            continue;
        }
        let at = path.at(place);
        found.extend(violations.into_iter().map(|violation| violation.under(&at)));
        if found.len() >= VIOLATIONS_MAX {
            break;
        }
    }
    if !found.is_empty() {
        found.truncate(VIOLATIONS_MAX);
        return Err(Refusal::fields(found));
    }
    Ok(())
}

/// What labels and annotations add to a request's fingerprint: nothing when there are none. The creator does not count:
/// a request that is repeated over another connection is the same request.
pub(super) fn metadata_name(submitted: &[Submission]) -> Vec<u8> {
    let has_texts = |said: &Arc<JobMetadata>| !(said.labels.is_empty() && said.annotations.is_empty());
    if !submitted.iter().filter_map(|job| job.metadata.as_ref()).any(has_texts) {
        return Vec::new();
    }
    let runs: Vec<_> = submitted
        .chunk_by(|a, b| a.metadata == b.metadata)
        .map(|run| {
            let texts = run.first().and_then(|job| job.metadata.as_ref()).filter(|texts| has_texts(texts));
            (run.len() as u64, texts.map(|texts| (&texts.labels, &texts.annotations)))
        })
        .collect();
    canonical(&("metadata", runs))
}

/// Right behind the jobs, in the same round: neighbours that have the same are one run.
pub(super) fn set_metadata(speculation: &mut Speculation, jobs: &[JobId], submitted: &[Submission]) {
    let mut runs: Vec<(JobId, u32, Arc<JobMetadata>)> = Vec::new();
    for (job, submission) in jobs.iter().zip(submitted) {
        let Some(metadata) = submission.metadata.as_ref().filter(|metadata| !metadata.is_default()) else {
            continue;
        };
        match runs.last_mut() {
            Some((first, count, last)) if first.0 + u64::from(*count) == job.0 && *last == *metadata => {
                *count += 1;
            }
            _ => runs.push((*job, 1, Arc::clone(metadata))),
        }
    }
    if !runs.is_empty() {
        speculation.push(Decision::JobMetadataSet { runs });
    }
}
