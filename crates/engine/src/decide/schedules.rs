//! Schedules whose moments have come, and those whose next moment is not known: what the leader asks of the decider about them.

use muster_decider::Command;
use muster_state::State;
use muster_types::{LogTime, NextRun};

use crate::calendar::Calendar;

/// Schedules that one round looks after: finding moments takes a fraction of a millisecond each.
const PER_ROUND: usize = 64;
/// The longest time between two looks while there are schedules: a command that was undone is given again then.
const LOOK_MS: u64 = 10_000;

/// The commands that are due at a log time, and when to look again; never, where there is no schedule.
pub(super) fn due(state: &State, now: LogTime) -> (Vec<Command>, LogTime) {
    if state.schedule_count() == 0 {
        return (Vec::new(), LogTime(u64::MAX));
    }
    let mut look = now.plus_ms(LOOK_MS);
    let mut commands = Vec::new();
    for (key, row) in state.schedules().filter(|(_, row)| row.suspension.is_none()) {
        let first = match row.next {
            NextRun::At(time) if time > now => {
                look = look.min(time);
                continue;
            }
            NextRun::At(time) => Some(time),
            NextRun::Unknown => None,
        };
        if commands.len() >= PER_ROUND {
            return (commands, now);
        }
        let calendar = Calendar::new(&row.schedule.cron, &row.schedule.zone);
        let next = calendar.as_ref().and_then(|calendar| calendar.after(now));
        look = look.min(next.unwrap_or(look));
        let (schedule, set_index) = (key.clone(), row.set_index);
        commands.push(match first {
            None => Command::PlanSchedule { schedule, set_index, next },
            Some(first) => {
                // Of several that were missed the last.
                let last = calendar.and_then(|calendar| calendar.last_within(first, now));
                Command::FireSchedule { schedule, set_index, due: last.unwrap_or(first), next }
            }
        });
    }
    (commands, look)
}
