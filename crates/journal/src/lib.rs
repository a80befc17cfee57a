//! The replicated record: header, decision enum, its checksummed codec, upcasts from every released format.
