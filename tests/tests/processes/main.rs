//! The promises of Muster, held against real processes: replicas, agents and commands of the one
//! binary, killed and stopped the way machines do it.
//!
//! Tests that need the machine's whole attention take [`support::heavy`] and run one after another; the
//! others run concurrently. Every test of a cluster ends with `assert_digests_agree`.

mod anywhere;
mod artifacts;
mod attacks;
mod audit;
mod backups;
mod bad_input;
mod bookings;
mod browser;
mod clocks;
mod closed_doors;
mod contracts;
mod copied_state;
mod drills;
mod durability;
mod example_job;
mod exec;
mod failover;
mod frameworks;
mod full_state;
mod gpus;
mod guide_session;
mod guide_slurm;
mod history;
mod host_images;
mod hostile_workers;
mod kubernetes;
mod leases;
mod log_lines;
mod lost_logs;
mod members;
mod monitoring;
mod notifications;
mod objects;
mod pages;
mod parallel;
mod planted;
mod ports;
mod probe;
mod quickstart;
mod quota;
mod reads;
mod rebuild;
mod reflection;
mod run_once;
mod runbooks;
mod server_refusals;
mod shares;
mod shell;
mod sign_ins;
mod slurm;
mod support;
mod tls;
mod tokens;
mod top;
mod traces;
mod two_releases;
mod upgrade;
mod watch;
mod workdir;
