//! What the commands of a client share: where the cluster is, how answers are printed, and how a command ends.
//!
//! Promises to scripts: data goes to stdout and nothing else does; progress and errors go to stderr. The exit code says how a
//! command ended; see [`Exit`].

pub mod config;
mod console;
mod document;
mod failure;
pub mod local;
pub mod login;
mod options;

pub use console::{Console, Format, Grid, one_line};
pub use document::{Document, Items, Position, SCHEMA, moment, span, time};
pub use failure::{Exit, Failure, causes, with_causes};
pub use options::{Global, WEB_UNKNOWN, WebArgs, timeout};
