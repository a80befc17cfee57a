//! Another clock for one process, by libfaketime: it must be started with it, and the clock can be set while it runs.

use super::FaultError;
use super::tools::Tool;
use crate::unsupported::Unsupported;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// Which clocks are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockScope {
    /// The time of day alone, as somebody who sets it wrong does.
    Wall,
    /// All clocks, and with them timers and sleeps, as an oscillator that is too fast or too slow does. The library
    /// shows the time of day in place of the time since the machine's start, so this is nothing for an agent,
    /// whose leases count on the latter.
    All,
}

/// The clock of one process.
#[derive(Clone, Debug)]
pub struct Clock {
    library: PathBuf,
    setting: PathBuf,
    scope: ClockScope,
}

impl Clock {
    /// A clock that goes right so far; its setting is kept in a file of that path.
    pub fn new(setting: &Path, scope: ClockScope) -> Result<Clock, FaultError> {
        let library =
            Tool::Faketime.find().map_err(|unsupported: Unsupported| FaultError::Unsupported(unsupported))?;
        let clock = Clock { library, setting: setting.to_owned(), scope };
        clock.right()?;
        Ok(clock)
    }

    /// Has a process that is about to be started use this clock. It must be linked against the system's C
    /// library: one that brings its own keeps the machine's clock.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FAKETIME_TIMESTAMP_FILE", &self.setting);
        // Read at every look at the clock, so that a new setting counts at once.
        command.env("FAKETIME_NO_CACHE", "1");
        // Nothing is shared between processes but the file.
        command.env("FAKETIME_DISABLE_SHM", "1");
        if self.scope == ClockScope::Wall {
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// From now on it is ahead by so much.
    pub fn ahead(&self, by: Duration) -> Result<(), FaultError> {
        self.set(&format!("+{}.{:09}", by.as_secs(), by.subsec_nanos()))
    }

    /// From now on it is behind by so much.
    pub fn behind(&self, by: Duration) -> Result<(), FaultError> {
        self.set(&format!("-{}.{:09}", by.as_secs(), by.subsec_nanos()))
    }

    /// It runs at `thousandths` thousandths of its speed, counted from the start of the process: the clock of a process
    /// that runs already jumps to where it would be by now.
    pub fn rate(&self, thousandths: u32) -> Result<(), FaultError> {
        self.set(&format!("+0 x{}.{:03}", thousandths / 1000, thousandths % 1000))
    }

    /// It goes right again.
    pub fn right(&self) -> Result<(), FaultError> {
        self.set("+0")
    }

    /// A reader sees the old setting or the new one, never a part.
    fn set(&self, text: &str) -> Result<(), FaultError> {
        let new = self.setting.with_extension("new");
        std::fs::write(&new, format!("{text}\n")).map_err(FaultError::on_path("writing", &new))?;
        std::fs::rename(&new, &self.setting).map_err(FaultError::on_path("renaming", &new))
    }
}
