//! Tests of the whole system. There is nothing to link: what the tests share is `tests/processes/support`,
//! because only tests may depend on everything.
