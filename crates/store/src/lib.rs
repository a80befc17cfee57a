//! Raft log, vote and snapshots on sled, and an in-memory twin; one conformance suite for both.
