//! Spans of this process for a collector of traces.
//!
//! A call may be a part of a trace that its caller began: [`header`] reads where, by W3C Trace Context. What this process does
//! for it becomes spans of that trace, where a collector is configured. Spans that have ended wait in a bounded queue, and one
//! task sends them as OTLP over HTTP.
//!
//! **Invariant:** without a configured collector a span costs one load of an atomic pointer.
//! **Invariant:** nobody waits for the collector; what does not fit into the queue is dropped and counted.
//! **Invariant:** no span has a command, a variable of an environment, a label or an annotation.
#![deny(missing_docs)]

mod export;
pub mod header;
pub mod names;
mod otlp;
mod settings;
mod tracer;

pub use export::export;
pub use settings::{SampleRatio, TracesError, TracesFile, TracesSettings};
pub use tracer::{Ended, Queue, Side, Span, Tracer, Value, dropped, install, tracer};
