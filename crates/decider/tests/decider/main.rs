//! Tests of the decision step together with the state machine it decides for.
//!
//! `script` reads `testdata/*.txt`, which is written to be read as the specification of the lifecycle of
//! a job and of a node. `random_commands` drives random commands, `hostile` feeds the state machine records no
//! honest leader makes, `golden` replays the logs of released formats.
// A test may read its files and look at a clock; the crate it tests may not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]
// Helpers of tests may unwrap too: a panic there is the report.
#![allow(clippy::unwrap_used)]

mod affinity;
mod array_attacks;
mod arrays;
mod bookings;
mod bounds;
mod capacity;
mod changed_hosts;
mod demand;
mod fairness;
mod fleet_holds;
mod golden;
mod guard;
mod hostile;
mod ids;
mod images;
mod licences;
mod limits;
mod limits_met;
mod making_room;
mod model;
mod named;
mod network;
mod passes;
mod queue_choices;
mod quotas;
mod random;
mod random_commands;
mod readiness;
mod reclaim;
mod redaction;
mod schedules;
mod script;
mod sizes;
mod snapshot;
mod spares;
mod starts;
mod support;
mod tokens;
mod traced;
mod user_shares;
mod warnings;
mod worker_features;
