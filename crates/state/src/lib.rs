//! The replicated state machine: guard, fold, derived indexes, invariants, digest, snapshot sections.
