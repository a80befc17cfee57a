//! A drill as data: what is done to a cluster, what was seen of it, and what that proves.
