//! Deadlines: when one has passed, and when it cannot be met.

use alloc::format;
use alloc::string::String;
use muster_journal::{Decision, Outcome};
use muster_state::State;
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::{JobId, JobSpec, LogTime, Refusal, RefusalCode, Submission, TaskGroup, Violation};

use crate::rules::requested::JobPath;

/// Why a job has failed that was not over by its deadline.
pub(crate) const LATE: &str = "its deadline passed before it was over";

/// The end of a job that was not over by its deadline.
pub(crate) fn finished_late(job: JobId) -> Decision {
    let detail = String::from(LATE);
    Decision::JobFinished { job, outcome: Outcome::Failed { detail } }
}

/// The end of a job that waits although its deadline has passed; none when it may go on waiting.
pub(crate) fn of_waiting(state: &State, job: JobId, now: LogTime) -> Option<Decision> {
    let deadline = state.spec(job)?.deadline?;
    (deadline <= now).then(|| finished_late(job))
}

/// Refuses jobs that could not be over by their deadline even if they began at once, by what their owner expects. What
/// was learned of others like them is not held against them.
pub(crate) fn check(specs: &[Submission], path: JobPath, now: LogTime) -> Result<(), Refusal> {
    for (place, spec) in specs.iter().enumerate() {
        let Some(deadline) = spec.deadline else { continue };
        let earliest = earliest_end(spec, now);
        if now < deadline && earliest <= deadline {
            continue;
        }
        let field = format!("{}.spec.deadline", path.at(place));
        let text = if deadline <= now {
            format!("must be after the present time, {now}, got {deadline}; set a later deadline, or none")
        } else {
            format!(
                "must leave time for what the job is expected to run: it could be over at {earliest} at the \
                 earliest, and the deadline is {deadline}; set a later deadline, or a shorter expected run"
            )
        };
        let refusal = Refusal::fields(alloc::vec![Violation::new(field, text)]);
        return Err(Refusal { code: RefusalCode::DeadlineUnmeetable, ..refusal }
            .with("job_index", place)
            .with("deadline_ms", deadline.0)
            .with("earliest_ms", earliest.0));
    }
    Ok(())
}

/// When a job would be over that began as early as it may, on the fastest types that it accepts.
fn earliest_end(spec: &JobSpec, now: LogTime) -> LogTime {
    let begins = spec.not_before.map_or(now, |time| time.max(now));
    let Some(run_ms) = spec.expected_run_ms else { return begins };
    let fastest = |group: &TaskGroup| {
        let request = group.request.accelerators.as_ref()?;
        request.choices.iter().map(|choice| choice.throughput_milli).max()
    };
    // The group on the slowest type says when the gang ends.
    let throughput = spec.groups.iter().filter_map(fastest).min().unwrap_or(THROUGHPUT_MILLI).max(1);
    let run_ms = u128::from(run_ms) * u128::from(THROUGHPUT_MILLI) / u128::from(throughput);
    let run_ms = u64::try_from(run_ms).unwrap_or(u64::MAX);
    begins.plus_ms(run_ms.min(spec.run_time_limit_ms.unwrap_or(u64::MAX)))
}
