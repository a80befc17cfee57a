//! The most devices that gangs can be given, as an integer program.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};

use crate::instance::{Gang, Instance, QUARTERS};

/// Quarters of devices that the best choice of gangs is given.
pub fn optimum(instance: &Instance) -> u64 {
    solve(instance, &instance.gangs, false).expect("to place none is a solution")
}

/// Quarters of devices that are given when each gang of the order is let in that can be placed together
/// with all that were let in before it, wherever those are.
pub fn strict(instance: &Instance, order: &[Gang]) -> u64 {
    let mut let_in: Vec<Gang> = Vec::new();
    for gang in order {
        let_in.push(*gang);
        if solve(instance, &let_in, true).is_none() {
            let_in.pop();
        }
    }
    let_in.iter().map(Gang::quarters).sum()
}

/// The most quarters that can be given to these gangs, to all of them or to any; none when they do not fit.
///
/// One variable says whether a gang is placed, one for each host how many of its workers are there, and
/// one how many devices of the host are shared. Shares are quarters and halves, each a divisor of the
/// next, so workers that fit into the shared devices of a host by their sum also fit one by one.
fn solve(instance: &Instance, gangs: &[Gang], all: bool) -> Option<u64> {
    let idle: Vec<i32> = instance.hosts.iter().map(|host| i32::from(host.devices - host.taken)).collect();
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    // Terms of what a host's workers take of its whole and of its shared devices.
    let mut whole: Vec<Vec<(Variable, f64)>> = Vec::new();
    let mut shared: Vec<Vec<(Variable, f64)>> = Vec::new();
    for idle in &idle {
        let devices = problem.add_integer_var(0.0, (0, *idle));
        whole.push(vec![(devices, 1.0)]);
        shared.push(vec![(devices, -(QUARTERS as f64))]);
    }
    for gang in gangs {
        let is_placed = problem.add_integer_var(gang.quarters() as f64, (i32::from(all), 1));
        let mut workers = vec![(is_placed, -f64::from(gang.workers))];
        for host in 0..idle.len() {
            let there = problem.add_integer_var(0.0, (0, i32::try_from(gang.workers).unwrap()));
            workers.push((there, 1.0));
            if gang.worker_quarters < QUARTERS {
                shared[host].push((there, gang.worker_quarters as f64));
            } else {
                whole[host].push((there, (gang.worker_quarters / QUARTERS) as f64));
            }
        }
        problem.add_constraint(workers.as_slice(), ComparisonOp::Eq, 0.0);
    }
    for ((idle, whole), shared) in idle.iter().zip(&whole).zip(&shared) {
        problem.add_constraint(whole.as_slice(), ComparisonOp::Le, f64::from(*idle));
        problem.add_constraint(shared.as_slice(), ComparisonOp::Le, 0.0);
    }
    match problem.solve() {
        Ok(outcome) => Some(outcome.into_solution().unwrap().objective().round() as u64),
        Err(Error::Infeasible) => None,
        Err(other) => panic!("the program was not solved: {other}"),
    }
}
