//! Drills over real processes.
