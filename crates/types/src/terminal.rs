//! Terminals of people, as programs elsewhere are told of them.

use serde::{Deserialize, Serialize};

/// How large a terminal is, in characters. Each number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

impl TerminalSize {
    /// A size, when both numbers are within their bounds.
    #[must_use]
    pub fn new(rows: u32, columns: u32) -> Option<TerminalSize> {
        let within = |number: u32| u16::try_from(number).ok().filter(|number| *number > 0);
        Some(TerminalSize { rows: within(rows)?, columns: within(columns)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_lines_and_characters() {
        assert_eq!(TerminalSize::new(24, 80), Some(TerminalSize { rows: 24, columns: 80 }));
        for (rows, columns) in [(0, 80), (24, 0), (65_536, 80), (24, u32::MAX)] {
            assert_eq!(TerminalSize::new(rows, columns), None);
        }
    }
}
