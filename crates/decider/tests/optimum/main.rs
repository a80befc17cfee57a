//! How far the pass over the line stays behind the best that was possible, on fleets small enough to
//! know the best.
//!
//! `cargo test -p muster-decider --test optimum -- --nocapture` prints what was measured. An instance is
//! one cluster of 3 to 6 hosts with 4 or 8 devices, partly taken, and 6 to 12 gangs that wait; CPU and
//! memory are never short, and a share (in fleets of up to four hosts) is a quarter or half of a device.
//! One pass under the default policy is held against three optima, all counted in devices given to the
//! gangs that waited; what ran before would flatter the figures and is counted in one that is only printed:
//!
//! 1. *Of the order.* The gangs are offered capacity in the order of the line, each once, and one that
//!    fits has to be placed. What is left to the planner is where, and the optimum is over every choice of
//!    places: [`exhaustive`] follows all of them. It also has the choices that happen to leave no space for
//!    a small gang and so keep it for a larger one behind it.
//! 2. *Of the strict order.* A gang is let in when it can be placed together with all that were let in
//!    before it, wherever those are, by the integer program in [`program`]: the places are chosen in
//!    hindsight, the order never suffers. More than this counts as all of it.
//! 3. *Of any choice.* The gangs are chosen as well, all or nothing each, by the same program. The
//!    scheduler does not try to reach it: to serve small and short work first shortens the wait, and a
//!    gang that fits is not passed over for a larger one. It is printed to show what that order costs in
//!    devices at one moment.
//!
//! The goal is 98 % of the optimum of the order on average and 90 % at worst. **It is not reached**: 94.07 %
//! and 51.02 % were measured, and 95.10 % and 51.02 % of the strict order, over instances of which the
//! optimum is reached in 106 and 120 of 150 (84.72 % and 34.78 % of any choice, reached in 30). An optimum
//! knows who comes behind; a gang is given its places once, without a look at the gangs after it. On so few
//! hosts one large gang behind is much of what is free, and it is lost when its hosts were cut into by a
//! gang that could have stood elsewhere. The test holds what is reached, so that it gets no worse; raise
//! the constants with the planner.
//!
//! The search and the program know nothing of each other. Where gangs may be passed over the search has to
//! come to the optimum of the program (compared where few fleets are to be searched), and the scheduler's
//! own outcome has to be among those that the search finds in the order: a mistake in either would show.
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod exhaustive;
mod instance;
mod program;

use instance::Instance;

const SEEDS: u64 = 150;

/// Fleets that may be left up to which the two oracles are compared.
const FLEETS_MAX: usize = 4_000;

/// Per ten thousand of an optimum.
const WHOLE: u64 = 10_000;

/// What holds of the planner on average and at worst; the goal is 9,800 and 9,000.
const OF_ORDER_MIN: (u64, u64) = (9_400, 5_100);
const OF_STRICT_ORDER_MIN: (u64, u64) = (9_500, 5_100);

/// Parts of an optimum, by seed.
#[derive(Default)]
struct Figure {
    parts: Vec<(u64, u64)>,
}

impl Figure {
    fn add(&mut self, seed: u64, reached: u64, optimum: u64) {
        let part = (reached * WHOLE).checked_div(optimum).unwrap_or(WHOLE);
        // What is more than an optimum of the strict order is not set off against what is less elsewhere.
        self.parts.push((part.min(WHOLE), seed));
    }

    fn mean(&self) -> u64 {
        self.parts.iter().map(|(part, _)| part).sum::<u64>() / self.parts.len() as u64
    }

    fn worst(&self) -> (u64, u64) {
        *self.parts.iter().min().unwrap()
    }

    fn assert_at_least(&self, (mean, worst): (u64, u64)) {
        assert!(self.mean() >= mean, "{} of {WHOLE} on average, below {mean}", self.mean());
        let (part, seed) = self.worst();
        assert!(part >= worst, "seed {seed}: {part} of {WHOLE}, below {worst}");
    }

    fn print(&self, title: &str) {
        let (worst, seed) = self.worst();
        let reached = self.parts.iter().filter(|(part, _)| *part == WHOLE).count();
        let percent = |part: u64| format!("{}.{:02} %", part / 100, part % 100);
        println!(
            "{title}: mean {}, worst {} (seed {seed}), reached by {reached} of {}",
            percent(self.mean()),
            percent(worst),
            self.parts.len()
        );
    }
}

#[test]
fn places_are_chosen_nearly_as_well_as_possible() {
    let (mut of_order, mut of_strict_order) = (Figure::default(), Figure::default());
    let (mut of_any_choice, mut in_use) = (Figure::default(), Figure::default());
    let (mut gangs, mut placed, mut compared) = (0, 0, 0);
    for seed in 0..SEEDS {
        let instance = Instance::new(seed);
        let outcome = instance.schedule();
        gangs += instance.gangs.len();
        placed += outcome.placed.len();
        let in_order: Vec<_> = outcome.order.iter().map(|gang| instance.gangs[*gang]).collect();
        let ends = exhaustive::in_order(instance.free(), &in_order);
        if !ends.contains(&outcome.free) {
            println!(
                "{seed} free {:?}\norder {:?}\nplaced {:?}\nleft {:?}\n gangs {:?} ends {:?}",
                instance.free(),
                outcome.order,
                outcome.placed,
                outcome.free,
                instance
                    .gangs
                    .iter()
                    .map(|g| (g.workers, g.worker_quarters, g.run_ms / 60000))
                    .collect::<Vec<_>>(),
                ends
            );
        }
        assert!(ends.contains(&outcome.free), "seed {seed}: a gang that fitted was passed over");
        let given =
            |end: &exhaustive::Fleet| exhaustive::quarters(&instance.free()) - exhaustive::quarters(end);
        let best_in_order = ends.iter().map(given).max().unwrap();
        of_order.add(seed, given(&outcome.free), best_in_order);
        let running: u64 = instance.hosts.iter().map(|host| u64::from(host.taken) * instance::QUARTERS).sum();
        in_use.add(seed, running + given(&outcome.free), running + best_in_order);
        of_strict_order.add(seed, given(&outcome.free), program::strict(&instance, &in_order));
        let best = program::optimum(&instance);
        let found = exhaustive::any_choice(instance.free(), &instance.gangs, FLEETS_MAX);
        if let Some(found) = found {
            compared += 1;
            assert_eq!(found.iter().map(given).max().unwrap(), best, "seed {seed}: the oracles differ");
        }
        assert!(best_in_order <= best, "seed {seed}: an order gives more than any choice");
        of_any_choice.add(seed, given(&outcome.free), best);
    }
    println!(
        "{SEEDS} fleets, {gangs} gangs, {placed} placed; optimum found twice in {compared}; devices given, \
          as part of the optimum"
    );
    of_order.print("of the order");
    of_strict_order.print("of the strict order");
    in_use.print("of the order, with what ran before");
    of_any_choice.print("of any choice");
    assert!(compared > SEEDS / 3, "the oracles were compared {compared} times");
    // Nothing would be compared if everything fitted, or nothing did.
    assert!(placed > gangs / 5 && placed < gangs * 4 / 5, "{placed} of {gangs} gangs were placed");
    of_order.assert_at_least(OF_ORDER_MIN);
    of_strict_order.assert_at_least(OF_STRICT_ORDER_MIN);
}

#[test]
fn same_seed_same_instance_and_same_outcome() {
    let run = |seed| {
        let outcome = Instance::new(seed).schedule();
        (outcome.order, outcome.placed, outcome.free)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
