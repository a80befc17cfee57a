//! Deadlines: refused where they cannot be met, and kept.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use muster_journal::{Decision, Outcome, StopCause};
use muster_state::Phase;
use muster_types::demand::THROUGHPUT_MILLI;
use muster_types::{JobId, JobSpec, LogTime, Refusal, RefusalCode, Submission, TaskGroup, Violation};

use crate::job::end;
use crate::speculation::Speculation;

/// The format that can say that a deadline has passed.
const DEADLINES_FORMAT: u16 = 5;

/// Jobs ended for their deadline in one tick.
const ENDED_PER_TICK: usize = 1_000;

/// The end of a job that was not over by its deadline.
pub(crate) fn finished_late(job: JobId) -> Decision {
    let detail = String::from("its deadline passed before it was over");
    Decision::JobFinished { job, outcome: Outcome::Failed { detail } }
}

/// The end of a job that waits although its deadline has passed; none when it may go on waiting.
pub(crate) fn of_waiting(speculation: &Speculation, job: JobId) -> Option<Decision> {
    let deadline = speculation.state().spec(job)?.deadline?;
    let is_late = deadline <= speculation.now() && speculation.format() >= DEADLINES_FORMAT;
    is_late.then(|| finished_late(job))
}

/// Ends jobs whose deadline has passed: those that wait at once, those that run once they have been stopped. One that
/// is being stopped for another reason ends when nothing of it runs any more.
pub(crate) fn end_late(speculation: &mut Speculation) {
    if speculation.format() < DEADLINES_FORMAT {
        return;
    }
    let now = speculation.now();
    let due = speculation.state().deadlines().take_while(|(deadline, _)| *deadline <= now);
    let late: Vec<JobId> = due.map(|(_, job)| job).take(ENDED_PER_TICK).collect();
    for job in late {
        let row = speculation.state().job(job).expect("an indexed job has a row");
        let runs = matches!(row.phase, Phase::Starting | Phase::Running);
        let decision = match row.placement.as_ref().filter(|_| runs) {
            Some(placement) => {
                Decision::GangStopRequested { job, token: placement.token, cause: StopCause::Deadline }
            }
            None => finished_late(job),
        };
        end(speculation, job, decision);
    }
}

/// Refuses jobs that could not be over by their deadline even if they began at once, by what their owner expects. What
/// was learned of others like them is not held against them.
pub(crate) fn check(specs: &[Submission], now: LogTime) -> Result<(), Refusal> {
    for (place, spec) in specs.iter().enumerate() {
        let Some(deadline) = spec.deadline else { continue };
        let earliest = earliest_end(spec, now);
        if now < deadline && earliest <= deadline {
            continue;
        }
        let field = format!("specs[{place}].deadline");
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
            .with("spec_index", place)
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
