//! Why there is no plan, and what to do about it.

use std::error::Error;
use std::fmt;

use crate::architectures::{ARCHITECTURES, FIELDS_OF_LLAMA};

/// A question that has no answer. Its text names the field or the limit, and what would help.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanError {
    /// The description is not JSON, or not an object.
    NotAConfig(String),
    /// The description names no architecture.
    NoArchitecture,
    /// The description names an architecture that is not known.
    UnknownArchitecture(String),
    /// A field that is needed is not there.
    MissingField {
        /// The name, and others under which it would have been found.
        field: String,
        /// What it says.
        meaning: &'static str,
    },
    /// A field has a value that makes no sense.
    BadField {
        /// The name.
        field: String,
        /// What it is.
        value: String,
        /// What it has to be.
        expected: String,
    },
    /// An option of the question makes no sense.
    BadOption {
        /// The name.
        option: &'static str,
        /// What it is.
        value: String,
        /// What it has to be.
        expected: String,
    },
    /// No such accelerator.
    UnknownAccelerator {
        /// The name that was given.
        name: String,
        /// Those that are known.
        known: Vec<&'static str>,
    },
    /// A layout breaks a rule.
    IllegalLayout(String),
    /// Nothing fits into the memory of that many accelerators.
    FitsNowhere {
        /// What is missing, and the changes that help, the cheapest first.
        text: String,
    },
    /// Two measured steps cannot both be true.
    Contradiction(String),
    /// No steps were measured.
    NoMeasurements,
}

impl PlanError {
    /// Stable code of its kind, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            PlanError::NotAConfig(_) => "NOT_A_CONFIG",
            PlanError::NoArchitecture => "NO_ARCHITECTURE",
            PlanError::UnknownArchitecture(_) => "UNKNOWN_ARCHITECTURE",
            PlanError::MissingField { .. } => "MISSING_FIELD",
            PlanError::BadField { .. } => "BAD_FIELD",
            PlanError::BadOption { .. } => "BAD_OPTION",
            PlanError::UnknownAccelerator { .. } => "UNKNOWN_ACCELERATOR",
            PlanError::IllegalLayout(_) => "ILLEGAL_LAYOUT",
            PlanError::FitsNowhere { .. } => "FITS_NOWHERE",
            PlanError::Contradiction(_) => "CONTRADICTING_STEPS",
            PlanError::NoMeasurements => "NO_STEPS",
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::NotAConfig(text) => {
                write!(
                    out,
                    "the model's description is not a JSON object: {text}; give the config.json of a model"
                )
            }
            PlanError::NoArchitecture => write!(
                out,
                "the model's description names no architecture: model_type is missing; add it, for instance \
                 \"model_type\": \"llama\"; known are {}",
                ARCHITECTURES.join(", ")
            ),
            PlanError::UnknownArchitecture(name) => write!(
                out,
                "architecture {name:?} is not known; known are {}. If the model has the matrices of one of these, \
                 set model_type to it and give its sizes: {}",
                ARCHITECTURES.join(", "),
                FIELDS_OF_LLAMA.join(", ")
            ),
            PlanError::MissingField { field, meaning } => {
                write!(out, "{field} is missing in the model's description: {meaning}; add it")
            }
            PlanError::BadField { field, value, expected } => {
                write!(out, "{field} is {value} in the model's description; it has to be {expected}")
            }
            PlanError::BadOption { option, value, expected } => {
                write!(out, "{option} is {value}; it has to be {expected}")
            }
            PlanError::UnknownAccelerator { name, known } => {
                write!(out, "accelerator {name:?} is not known; known are {}", known.join(", "))
            }
            PlanError::IllegalLayout(text)
            | PlanError::FitsNowhere { text }
            | PlanError::Contradiction(text) => out.write_str(text),
            PlanError::NoMeasurements => out
                .write_str("no step was measured; a calibration needs at least one line with a step's time"),
        }
    }
}

impl Error for PlanError {}
