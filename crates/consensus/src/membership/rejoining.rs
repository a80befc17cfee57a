//! How a leader lets a replica rejoin that lost its storage. `rejoin` has the other side and the reasons.

use super::quorum::{check_quorum, voters_of};
use super::{ChangeStep, Membership, ReaddedMember};
use crate::environment::{Environment, PeerError};
use crate::error::MembershipError;
use crate::messages::{FormerVote, RejoinGrant, RejoinRequest, RejoinStep};
use muster_store::{LeaderId, Vote};
use muster_types::ReplicaId;
use openraft::ChangeMembers;
use openraft::vote::RaftLeaderId;

impl<E: Environment> Membership<E> {
    /// Removes a replica whose storage lost what it had promised, so that its earlier acknowledgements no longer count,
    /// and adds it again as a learner. It may neither vote nor acknowledge before it knows the returned entry.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, it is not a member, or the other
    /// voters are not a quorum, with it and without it.
    async fn add_again(&self, id: ReplicaId) -> Result<ReaddedMember, MembershipError> {
        let permit = self.changes.begin(format!("letting {id} rejoin"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        if id == self.replica_id {
            return Err(MembershipError::Refused { detail: "it leads".to_owned() });
        }
        let (votes, node) = (member.votes, member.node.clone());
        let voted = votes || self.changes.owes_a_vote(id);
        if votes {
            // It acknowledges nothing: the others have to decide alone, before and after.
            let voters = voters_of(&members);
            let mut answers = self.answering(&members);
            answers.remove(&id);
            check_quorum(&voters, &answers)?;
            check_quorum(&voters.difference(&[id].into()).copied().collect(), &answers)?;
            permit.at(ChangeStep::ChangingVoters);
            self.changes.vote_removed(id);
            self.change(ChangeMembers::RemoveVoters([id.0].into()), false).await?;
        } else {
            permit.at(ChangeStep::ChangingMembers);
            self.change(ChangeMembers::RemoveNodes([id.0].into()), true).await?;
        }
        let raft_index = self.add(&permit, id, node).await?;
        tracing::info!(replica = %id, raft_index, "a replica that lost its storage is added again");
        Ok(ReaddedMember { raft_index, voted })
    }

    /// Lets a replica rejoin that lost its storage, or gives it its vote back, while this replica leads.
    ///
    /// # Errors
    /// When this replica does not lead, or the membership refuses. The error tells whether half of it may be done.
    pub(crate) async fn grant_rejoin(
        &self,
        source: ReplicaId,
        request: RejoinRequest,
    ) -> Result<RejoinGrant, PeerError> {
        let gone = |detail: &str| PeerError { detail: detail.to_owned(), may_have_begun: false };
        let Some(mine) = self.leadership.mine() else { return Err(gone("this replica does not lead")) };
        let readded = self.rejoin_step(source, request).await.map_err(|error| PeerError {
            detail: error.to_string(),
            // Perhaps by half: the caller reports that when it asks again.
            may_have_begun: matches!(
                error,
                MembershipError::Unknown { .. } | MembershipError::NotLeader(_) | MembershipError::Shutdown
            ),
        })?;
        // A grant of another leadership would carry the wrong vote.
        if !self.leadership.holds(mine) {
            return Err(gone("the leadership ended meanwhile"));
        }
        let vote = Vote { leader_id: LeaderId::new(mine.term, mine.replica.0), committed: true };
        Ok(RejoinGrant { from_index: readded.raft_index, vote, voted: readded.voted })
    }

    async fn rejoin_step(
        &self,
        source: ReplicaId,
        request: RejoinRequest,
    ) -> Result<ReaddedMember, MembershipError> {
        let told = request.voted == FormerVote::Known(true);
        match request.step {
            RejoinStep::AddAsLearner if request.voted == FormerVote::Queried => {
                let votes = self.members.all().iter().any(|member| member.replica == source && member.votes);
                let voted = votes || self.changes.owes_a_vote(source);
                Ok(ReaddedMember { raft_index: 0, voted })
            }
            RejoinStep::AddAsLearner => match self.add_again(source).await {
                // Its removal was committed under a leadership that ended before it added it again.
                Err(MembershipError::NotMember { .. }) if request.begun => {
                    let added = self.add_learner(source, request.node).await?;
                    let voted = told || self.changes.owes_a_vote(source);
                    Ok(ReaddedMember { raft_index: added.raft_index, voted })
                }
                // It voted when a leader first looked; only the rejoin has taken its vote since.
                added => added.map(|done| ReaddedMember { voted: done.voted || told, ..done }),
            },
            RejoinStep::RestoreVote => {
                let already =
                    self.members.all().iter().any(|member| member.replica == source && member.votes);
                let raft_index = if already { 0 } else { self.promote(source).await?.raft_index };
                Ok(ReaddedMember { raft_index, voted: true })
            }
        }
    }
}
