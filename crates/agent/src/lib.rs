//! The node's side: sessions, fencing, device discovery, executors, launch contracts.
