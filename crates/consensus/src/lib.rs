//! openraft wiring: network over tonic, leadership watch, fenced propose pipeline, membership.
