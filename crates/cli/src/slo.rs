//! `muster slo …`: alerts on error budgets, made from service level objectives.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_console::{Console, Exit, Failure};
use muster_metrics::{OBJECTIVE_BYTES_MAX, Objective, rules};

use crate::parallel;

/// The most objectives of one rule file.
const OBJECTIVES_MAX: usize = 100;

/// Commands about service level objectives.
#[derive(Subcommand)]
pub enum SloCommand {
    /// Print Prometheus rules for objectives: recorded ratios, and alerts on the speed at which error budgets are spent
    #[command(after_help = "\
Examples:
  muster slo rules ops/slo/*.yaml > ops/alerts/objectives.rules.yaml
  muster slo rules my-objective.yaml | promtool check rules /dev/stdin

An objective names the share of good events, a period, and two PromQL expressions over $window (bad and all), or one for
the share of bad time (badTime), which may look at the window every $step. Each becomes an alert that pages (2 % of the
budget spent in 1 h, or 5 % in 6 h) and one that opens a ticket (10 % in 1 d or in 3 d).")]
    Rules(RulesArgs),
}

/// Options of `muster slo rules`.
#[derive(Args)]
pub struct RulesArgs {
    /// Files of objectives, one in each; - is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn run(console: &Console, command: SloCommand) -> Result<Exit, Failure> {
    let SloCommand::Rules(args) = command;
    if args.files.len() > OBJECTIVES_MAX {
        return Err(Failure::usage(format!("at most {OBJECTIVES_MAX} objectives fit in one rule file")));
    }
    let mut objectives: Vec<Objective> = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let objective = Objective::parse(&parallel::read(file, OBJECTIVE_BYTES_MAX as u64)?)
            .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        if objectives.iter().any(|other| other.name() == objective.name()) {
            let name = objective.name();
            return Err(Failure::usage(format!("{}: there is another objective {name}", file.display())));
        }
        objectives.push(objective);
    }
    console.bytes(rules(&objectives).as_bytes())?;
    Ok(Exit::Ok)
}
