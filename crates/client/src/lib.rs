//! Leader discovery, retries with request ids, watch resumption.
