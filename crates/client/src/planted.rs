//! The rule that a special build breaks on purpose; programs that link the client have nothing of it.

#[cfg(feature = "planted-bugs")]
pub(crate) fn repeats_under_a_new_id() -> bool {
    muster_planted::breaks(muster_planted::Rule::RetryUnderNewId)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn repeats_under_a_new_id() -> bool {
    false
}
