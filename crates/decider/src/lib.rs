//! The leader's decision step: (state, command or tick, log time) to records or a rejection.
