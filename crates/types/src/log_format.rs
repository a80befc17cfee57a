//! The form of a process's log lines.

use serde::{Deserialize, Serialize};

/// How a process writes its log lines, as `log_format` of its configuration has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, with the fields of the line by their names.
    Json,
}

impl LogFormat {
    /// The form that a user named.
    #[must_use]
    pub fn parse(text: &str) -> Option<LogFormat> {
        match text {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }
}
