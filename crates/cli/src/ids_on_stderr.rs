//! Ids of what was made, where standard output cannot be written.

use muster_console::{Console, Failure};

/// Whether the ids were written. The jobs exist all the same, so that their ids go to stderr where stdout takes nothing.
pub fn or_on_stderr(console: &Console, ids: &[String], written: Result<(), Failure>) -> Result<(), Failure> {
    written.inspect_err(|_| ids.iter().for_each(|id| console.error(&format!("submitted {id}"))))
}
