//! What days of a busy cluster leave behind is removed again: the example `year`, for a few days of it.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../../examples/year/cluster.rs"]
mod cluster;

use cluster::{Rows, Year, nodes_for};
use muster_state::HISTORY_ROWS_MAX;
use muster_types::Parameters;

const JOBS_A_DAY: u64 = 100;
const DAYS: usize = 6;
const DAY_MS: u64 = 24 * 3_600_000;

#[test]
fn rows_stay_bounded_while_the_days_go_by() {
    // Everything is kept for one day, so that a few days are many times as long.
    let parameters = Parameters {
        job_retention_ms: DAY_MS,
        request_retention_ms: DAY_MS,
        node_retention_ms: DAY_MS,
        ..Parameters::DEFAULT
    };
    let mut year = Year::new(JOBS_A_DAY, parameters);
    let mut days: Vec<Rows> = Vec::new();
    for _ in 0..DAYS {
        year.day();
        days.push(year.rows());
    }
    assert_eq!((year.jobs, year.refused), (DAYS as u64 * JOBS_A_DAY, 0));
    assert!(year.finished > (DAYS as u64 - 1) * JOBS_A_DAY, "{} of them are over", year.finished);
    let (warm, late) = (days[DAYS / 2 - 1], days[DAYS - 1]);
    // Without a removal they would be twice as many.
    assert!(late.retained() * 10 <= warm.retained() * 13, "{days:?}");
    assert!(late.jobs < 2 * JOBS_A_DAY && late.requests < 2 * JOBS_A_DAY, "{days:?}");
    assert!(late.nodes <= nodes_for(JOBS_A_DAY) + 3, "{days:?}");
    assert!(late.history <= HISTORY_ROWS_MAX as u64, "{days:?}");
}
