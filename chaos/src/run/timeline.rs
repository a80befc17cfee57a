//! A scenario's steps in the order in which things are done and undone.

use muster_drill::scenario::{Action, Step};
use std::time::Duration;

/// What happens to one of a drill's steps at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// The step begins; a flapping link is cut for the first time.
    Begin,
    /// A flapping link is whole for a while.
    Up,
    /// A flapping link is cut once more.
    Down,
    /// What the step did is undone.
    End,
}

/// A phase of one step and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// From the start of the fault.
    pub at: Duration,
    /// Place of the step in the scenario.
    pub step: usize,
    /// What is done.
    pub phase: StepPhase,
}

/// Everything that is due, in order; at one moment in the order of the file, ends before beginnings.
#[must_use]
pub fn timeline(steps: &[Step<Action>]) -> Vec<Due> {
    let mut all = Vec::new();
    for (step, what) in steps.iter().enumerate() {
        let at = |ms: u64| Duration::from_millis(what.at_ms + ms);
        all.push(Due { at: at(0), step, phase: StepPhase::Begin });
        if let Action::Flap { down_ms, up_ms, for_ms, .. } = what.action {
            let mut from = down_ms;
            while from < for_ms {
                all.push(Due { at: at(from), step, phase: StepPhase::Up });
                if from + up_ms < for_ms {
                    all.push(Due { at: at(from + up_ms), step, phase: StepPhase::Down });
                }
                // Both are checked to be above 0 when the file is read; 1 keeps this loop finite whatever they are.
                from += (up_ms + down_ms).max(1);
            }
        }
        if let Some(for_ms) = what.action.for_ms() {
            all.push(Due { at: at(for_ms), step, phase: StepPhase::End });
        }
    }
    all.sort_by_key(|due| (due.at, due.phase != StepPhase::End, due.step));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_drill::scenario::{Pair, Selection, Selector};

    fn pair() -> Pair {
        let side = |selector| Selection(vec![selector]);
        Pair { from: side(Selector::Leader), to: side(Selector::Peers), both: true }
    }

    fn told(steps: &[Step<Action>]) -> Vec<(u64, usize, StepPhase)> {
        timeline(steps).iter().map(|due| (due.at.as_millis() as u64, due.step, due.phase)).collect()
    }

    #[test]
    fn what_lasts_is_undone_and_ends_come_first() {
        let cut = |at_ms, for_ms| Step { at_ms, action: Action::Cut { pair: pair(), for_ms }, line: 1 };
        let steps = [cut(0, Some(500)), cut(500, None)];
        assert_eq!(
            told(&steps),
            [(0, 0, StepPhase::Begin), (500, 0, StepPhase::End), (500, 1, StepPhase::Begin)]
        );
    }

    #[test]
    fn a_flapping_link_ends_whole() {
        let action = Action::Flap { pair: pair(), down_ms: 200, up_ms: 300, for_ms: 1_000 };
        let steps = [Step { at_ms: 100, action, line: 1 }];
        let expected = [
            (100, 0, StepPhase::Begin),
            (300, 0, StepPhase::Up),
            (600, 0, StepPhase::Down),
            (800, 0, StepPhase::Up),
            (1_100, 0, StepPhase::End),
        ];
        assert_eq!(told(&steps), expected);
    }
}
