//! Spans of this process for a collector of traces.
//!
//! A call may be a part of a trace that its caller began: [`header`] reads where, by W3C Trace Context. What this process does
//! for it becomes spans of that trace, where a collector is configured. Spans that have ended go to the SDK of OpenTelemetry: they
//! wait in its bounded queue, and its thread has them sent as OTLP over HTTP.
//!
//! **Invariant:** without a configured collector a span costs one load of an atomic pointer.
//! **Invariant:** nobody waits for the collector; what does not fit into the queue is dropped and counted.
//! **Invariant:** no span has a command, a variable of an environment, a label or an annotation.
#![deny(missing_docs)]

mod export;
pub mod header;
pub mod names;
mod settings;
mod tracer;

pub use export::dropped;
pub use settings::{SampleRatio, TracesError, TracesFile, TracesSettings};
pub use tracer::{Side, Span, Tracer, Value, begin, end, tracer};
