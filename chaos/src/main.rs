//! Drills over real processes.

fn main() {}
