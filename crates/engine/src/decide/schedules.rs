//! Schedules whose moments have come, and those whose next moment is not known: what the leader asks of the decider about them.

use muster_decider::Command;
use muster_state::{ScheduleRow, State};
use muster_types::{LogTime, NextRun, ScheduleKey};

use crate::calendar::Calendar;

/// Schedules that one round looks after: finding moments takes a fraction of a millisecond each.
const PER_ROUND: usize = 64;
/// The longest time between two looks while there are schedules: a command that was undone is given again then.
const LOOK_MS: u64 = 10_000;

/// The schedules that need a command at a log time, and when to look again; never, where there is no schedule.
pub(super) fn due(
    state: &State,
    now: LogTime,
    is_left_out: impl Fn(&ScheduleKey) -> bool,
) -> (Vec<ScheduleKey>, LogTime) {
    if state.schedule_count() == 0 {
        return (Vec::new(), LogTime(u64::MAX));
    }
    let look = now.plus_ms(LOOK_MS).min(state.next_schedule_after(now).unwrap_or(LogTime(u64::MAX)));
    let mut keys = Vec::new();
    // What is late goes first, the moment that came first before all.
    let found = state.schedules_due(now).chain(state.schedules_unplanned());
    for (key, _) in found.filter(|(key, _)| !is_left_out(key)) {
        if keys.len() >= PER_ROUND {
            return (keys, now);
        }
        keys.push(key.clone());
    }
    (keys, look)
}

/// The command that such a schedule needs, and its next moment; none where it needs none any more.
pub(super) fn command_for(
    state: &State,
    key: &ScheduleKey,
    now: LogTime,
) -> Option<(Command, Option<LogTime>)> {
    let row = state.schedule(key).filter(|row| row.suspension.is_none())?;
    match row.next {
        NextRun::At(first) if first > now => None,
        NextRun::At(first) => Some(asked(key, row, Some(first), now)),
        NextRun::Unknown => Some(asked(key, row, None, now)),
    }
}

/// The command that carries out a moment of this schedule that has come; none where none has.
pub(super) fn due_of(state: &State, key: &ScheduleKey, now: LogTime) -> Option<Command> {
    let row = state.schedule(key).filter(|row| row.suspension.is_none())?;
    match row.next {
        NextRun::At(first) if first <= now => Some(asked(key, row, Some(first), now).0),
        _ => None,
    }
}

/// What is asked about a schedule, and its next moment. `first` is the moment that has come; none where the next one is not known.
fn asked(
    key: &ScheduleKey,
    row: &ScheduleRow,
    first: Option<LogTime>,
    now: LogTime,
) -> (Command, Option<LogTime>) {
    let calendar = Calendar::new(&row.schedule.cron, &row.schedule.zone);
    let next = calendar.as_ref().and_then(|calendar| calendar.after(now));
    let (schedule, set_index) = (key.clone(), row.set_index);
    let command = match first {
        None => Command::PlanSchedule { schedule, set_index, next },
        Some(first) => {
            // Of several that were missed the last.
            let last = calendar.and_then(|calendar| calendar.last_within(first, now));
            Command::FireSchedule { schedule, set_index, due: last.unwrap_or(first), next }
        }
    };
    (command, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{host, job, name};
    use muster_decider::{BootstrapConfig, ScheduleOrder, Speculation, handle};
    use muster_types::{
        ClusterId, HolderId, Leadership, OverlapRule, Parameters, ReplicaId, RequestId, Requester, Schedule,
        ScheduleKey, ScheduleTemplate,
    };

    const HOUR_MS: u64 = 3_600_000;

    /// A cluster with schedules of these names, which are due every hour.
    fn cluster(names: &[String], zone: &str) -> Speculation {
        let leadership = Leadership { term: 1, replica: ReplicaId(1) };
        let founding = BootstrapConfig::new(ClusterId(1), Parameters::DEFAULT);
        let mut speculation = Speculation::begin(State::default(), leadership, LogTime(1), founding);
        let register =
            Command::Register { spec: host("h1"), holder: HolderId(1), other_session_is_over: false };
        handle(&mut speculation, &register).expect("a host comes");
        for (number, text) in names.iter().enumerate() {
            let schedule = Schedule {
                key: ScheduleKey { tenant: name("lab"), name: name(text) },
                cron: "0 * * * *".parse().expect("an expression"),
                zone: zone.to_owned(),
                template: ScheduleTemplate::of(job(text, 1).into()).expect("a job"),
                overlap: OverlapRule::Allow,
                starting_deadline_ms: 60_000,
                runs_max: 5,
            };
            let order = ScheduleOrder {
                request: RequestId(number as u128),
                by: Requester::named("admin/ops".to_owned(), true),
                acts_for: None,
                role: None,
                schedule,
                is_new: true,
            };
            handle(&mut speculation, &Command::SetSchedule(Box::new(order))).expect("it is taken");
        }
        speculation
    }

    /// The round ends, and the next one is at this time.
    fn pass_to(speculation: &mut Speculation, now: LogTime) {
        drop(speculation.take_round());
        speculation.set_now(now);
    }

    /// The commands that are due, and when to look again, as the leader finds them.
    fn commands_due(state: &State, now: LogTime) -> (Vec<Command>, LogTime) {
        let (keys, mut look) = due(state, now, |_| false);
        let mut commands = Vec::new();
        for key in &keys {
            let (command, next) = command_for(state, key, now).expect("it needs one");
            look = look.min(next.unwrap_or(look));
            commands.push(command);
        }
        (commands, look)
    }

    fn carry_out(speculation: &mut Speculation) -> (usize, LogTime) {
        let (commands, look) = commands_due(speculation.state(), speculation.now());
        for command in &commands {
            handle(speculation, command).expect("it is carried out");
        }
        (commands.len(), look)
    }

    #[test]
    fn nothing_is_looked_at_where_there_is_no_schedule() {
        let speculation = cluster(&[], "UTC");
        let (commands, look) = commands_due(speculation.state(), speculation.now());
        assert!(commands.is_empty());
        assert_eq!(look, LogTime(u64::MAX));
    }

    #[test]
    fn a_moment_is_found_and_then_waited_for() {
        let mut speculation = cluster(&["nightly".to_owned()], "UTC");
        pass_to(&mut speculation, LogTime(HOUR_MS - 5_000));
        assert_eq!(carry_out(&mut speculation), (1, LogTime(HOUR_MS)), "at the moment itself");
        assert_eq!(carry_out(&mut speculation), (0, LogTime(HOUR_MS)));
        pass_to(&mut speculation, LogTime(HOUR_MS));
        assert_eq!(carry_out(&mut speculation), (1, LogTime(HOUR_MS + LOOK_MS)));
        let row = speculation.state().schedules().next().expect("it is there").1;
        assert_eq!((row.submitted, row.next), (1, NextRun::At(LogTime(2 * HOUR_MS))));
        // Hours later the last of those that were missed is asked for.
        pass_to(&mut speculation, LogTime(9 * HOUR_MS + 1));
        let (commands, _) = commands_due(speculation.state(), speculation.now());
        let [Command::FireSchedule { due, next, .. }] = commands.as_slice() else { panic!("{commands:?}") };
        assert_eq!((*due, *next), (LogTime(9 * HOUR_MS), Some(LogTime(10 * HOUR_MS))));
    }

    #[test]
    fn a_moment_that_has_come_is_found_before_its_schedule_is_changed() {
        let mut speculation = cluster(&["nightly".to_owned()], "UTC");
        let key = ScheduleKey { tenant: name("lab"), name: name("nightly") };
        pass_to(&mut speculation, LogTime(HOUR_MS - 5_000));
        assert!(due_of(speculation.state(), &key, speculation.now()).is_none(), "its moment is not known");
        carry_out(&mut speculation);
        assert!(due_of(speculation.state(), &key, speculation.now()).is_none(), "its moment has not come");
        pass_to(&mut speculation, LogTime(3 * HOUR_MS + 1));
        let asked = due_of(speculation.state(), &key, speculation.now());
        let Some(Command::FireSchedule { due, next, .. }) = &asked else { panic!("{asked:?}") };
        assert_eq!((*due, *next), (LogTime(3 * HOUR_MS), Some(LogTime(4 * HOUR_MS))));
        let other = ScheduleKey { name: name("other"), ..key };
        assert!(due_of(speculation.state(), &other, speculation.now()).is_none());
    }

    #[test]
    fn a_zone_that_is_not_known_suspends() {
        let mut speculation = cluster(&["nightly".to_owned()], "Europe/Nowhere");
        assert_eq!(carry_out(&mut speculation).0, 1);
        let row = speculation.state().schedules().next().expect("it is there").1;
        assert!(row.suspension.as_ref().is_some_and(|suspension| suspension.reason.contains("zone")));
        assert_eq!(carry_out(&mut speculation).0, 0);
    }

    /// What is due by a look at every schedule.
    fn due_by_search(state: &State, now: LogTime) -> std::collections::BTreeSet<ScheduleKey> {
        let active = state.schedules().filter(|(_, row)| row.suspension.is_none());
        let due = active.filter(|(_, row)| !matches!(row.next, NextRun::At(time) if time > now));
        due.map(|(key, _)| key.clone()).collect()
    }

    #[test]
    fn the_order_by_moments_finds_what_a_look_at_every_schedule_finds() {
        let names: Vec<String> = (0..9).map(|number| format!("s{number}")).collect();
        let mut speculation = cluster(&names, "UTC");
        let mut now = LogTime(HOUR_MS / 2);
        for step in 0..40u64 {
            pass_to(&mut speculation, now);
            let state = speculation.state();
            let (commands, look) = commands_due(state, now);
            let named: std::collections::BTreeSet<ScheduleKey> = commands
                .iter()
                .map(|command| match command {
                    Command::PlanSchedule { schedule, .. } | Command::FireSchedule { schedule, .. } => {
                        schedule.clone()
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(named, due_by_search(state, now), "step {step}");
            let later = state.schedules().filter(|(_, row)| row.suspension.is_none());
            let later = later.filter_map(|(_, row)| match row.next {
                NextRun::At(time) if time > now => Some(time),
                _ => None,
            });
            assert_eq!(state.next_schedule_after(now), later.min(), "step {step}");
            assert!(look <= now.plus_ms(LOOK_MS));
            // Only some are carried out, so that late ones, planned ones and unknown ones are there together.
            let some = usize::try_from(step).expect("few steps") % 4;
            for command in commands.iter().take(some) {
                handle(&mut speculation, command).expect("it is carried out");
            }
            speculation.state().verify().expect("every invariant");
            now = now.plus_ms(HOUR_MS / 7 * (step % 5));
        }
    }

    #[test]
    fn one_round_looks_after_so_many_and_the_next_after_the_others() {
        let names: Vec<String> = (0..PER_ROUND + 3).map(|number| format!("s{number}")).collect();
        let mut speculation = cluster(&names, "Europe/Berlin");
        assert_eq!(carry_out(&mut speculation), (PER_ROUND, speculation.now()));
        assert_eq!(carry_out(&mut speculation).0, 3);
        assert_eq!(carry_out(&mut speculation).0, 0);
    }

    #[test]
    fn schedules_that_are_left_out_take_no_place_of_a_round() {
        let names: Vec<String> = (0..PER_ROUND + 3).map(|number| format!("s{number:02}")).collect();
        let speculation = cluster(&names, "UTC");
        let (state, now) = (speculation.state(), speculation.now());
        let (keys, look) = due(state, now, |key| key.name.as_str() < "s60");
        assert_eq!(keys.len(), PER_ROUND + 3 - 60);
        assert_eq!(look, now.plus_ms(LOOK_MS));
    }
}
