//! Which changes of the voters keep the quorum.

use crate::error::MembershipError;
use crate::status::Member;
use muster_types::ReplicaId;
use std::collections::{BTreeMap, BTreeSet};

/// Entries a learner may lack to count as caught up.
pub const VOTER_LAG_ENTRIES_MAX: u64 = 1_000;

/// Whether those of `voters` that answer are a quorum of them.
pub(super) fn check_quorum(
    voters: &BTreeSet<ReplicaId>,
    answers: &BTreeSet<ReplicaId>,
) -> Result<(), MembershipError> {
    let (healthy, silent): (Vec<ReplicaId>, Vec<ReplicaId>) =
        voters.iter().copied().partition(|voter| answers.contains(voter));
    let needed = voters.len() / 2 + 1;
    if healthy.len() >= needed {
        return Ok(());
    }
    let voters = voters.iter().copied().collect();
    Err(MembershipError::WouldLoseQuorum { voters, healthy: healthy.len(), needed, silent })
}

pub(super) fn warnings(voters: &BTreeSet<ReplicaId>, answers: &BTreeSet<ReplicaId>) -> Vec<String> {
    let mut warnings = Vec::new();
    let count = voters.len();
    let needed = count / 2 + 1;
    if count < 3 {
        warnings.push(format!("with {count} voters no replica may fail"));
    } else if count.is_multiple_of(2) {
        warnings.push(format!("{count} voters tolerate no more failures than {}", count - 1));
    }
    let healthy = voters.intersection(answers).count();
    if healthy < needed {
        warnings.push(format!("only {healthy} of {needed} voters needed for a decision answer"));
    } else if healthy == needed && count >= 3 {
        warnings.push("if one more replica fails, nothing can be decided".to_owned());
    }
    warnings
}

pub(super) fn voters_of(members: &BTreeMap<ReplicaId, Member>) -> BTreeSet<ReplicaId> {
    members.values().filter(|member| member.votes).map(|member| member.replica).collect()
}

pub(super) fn caught_up(member: &Member) -> Result<(), MembershipError> {
    // One that never answered lacks everything.
    let lag_entries =
        if member.matched_index.is_some() { member.lag_entries.unwrap_or(u64::MAX) } else { u64::MAX };
    if lag_entries <= VOTER_LAG_ENTRIES_MAX {
        return Ok(());
    }
    let lag_entries = lag_entries.min(member.lag_entries.unwrap_or(u64::MAX));
    Err(MembershipError::NotCaughtUp {
        replica: member.replica,
        lag_entries,
        lag_entries_max: VOTER_LAG_ENTRIES_MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u64]) -> BTreeSet<ReplicaId> {
        ids.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn the_voters_that_answer_have_to_be_a_quorum() {
        assert!(check_quorum(&ids(&[1, 2, 3]), &ids(&[1, 2])).is_ok());
        let refused = check_quorum(&ids(&[1, 3]), &ids(&[1, 2]));
        let Err(MembershipError::WouldLoseQuorum { healthy, needed, silent, .. }) = refused else {
            panic!("it must be refused: {refused:?}")
        };
        assert_eq!((healthy, needed, silent), (1, 2, vec![ReplicaId(3)]));
        assert!(check_quorum(&ids(&[1]), &ids(&[1])).is_ok());
        assert!(check_quorum(&ids(&[1, 2, 3, 4, 5]), &ids(&[1, 2, 6])).is_err(), "others do not count");
    }

    #[test]
    fn what_an_operator_should_know_is_said() {
        assert!(warnings(&ids(&[1, 2, 3]), &ids(&[1, 2, 3])).is_empty());
        assert!(warnings(&ids(&[1, 2]), &ids(&[1, 2]))[0].contains("no replica may fail"));
        assert!(warnings(&ids(&[1, 2, 3, 4]), &ids(&[1, 2, 3, 4]))[0].contains("no more failures than 3"));
        assert!(warnings(&ids(&[1, 2, 3]), &ids(&[1, 2]))[0].contains("one more replica fails"));
        assert!(warnings(&ids(&[1, 2, 3]), &ids(&[1]))[0].contains("only 1 of 2"));
    }
}
