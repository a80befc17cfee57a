//! Changes of membership while the cluster serves, and what keeps them from doing harm.
//!
//! **Invariant:** one change at a time.
//! **Invariant:** without `force`, no change is made after which the voters that answer would not
//! be a quorum; a learner votes only once it has almost everything.
//! **Invariant:** a change that was begun goes on when its caller goes away; what may wait for
//! ever, a learner catching up, does not.

use crate::consensus::Consensus;
use crate::environment::{Environment, Raft};
use crate::error::MembershipError;
use crate::status::Member;
use muster_store::ReplicaNode;
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use openraft::type_config::TypeConfigExt as _;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Entries a learner may lack to count as caught up.
pub const VOTER_LAG_ENTRIES_MAX: u64 = 1_000;
/// Members of one cluster, learners included.
pub const MEMBERS_MAX: usize = 16;
/// A change that is not committed for this long is reported as unknown.
const COMMIT_WAIT_MIN: Duration = Duration::from_secs(10);

/// How a change of the voters is to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeOptions {
    /// Make it even if the voters that answer would not be a quorum.
    pub force: bool,
    /// Replicas that lose their vote keep following as learners.
    pub keep_as_learners: bool,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The entry that completed it.
    pub raft_index: u64,
    /// Who votes from here on.
    pub voters: BTreeSet<ReplicaId>,
    /// Who follows without a vote.
    pub learners: BTreeSet<ReplicaId>,
    /// What an operator should know about the result.
    pub warnings: Vec<String>,
}

/// A replica was taken in anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddedMember {
    /// The entry that added it again; it may not vote before it has it.
    pub raft_index: u64,
    /// Whether it voted before.
    pub voted: bool,
}

/// Where a change stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// A learner is being added.
    AddingLearner,
    /// A learner catches up.
    CatchingUp {
        /// Which.
        replica: ReplicaId,
        /// Entries it lacks; `None` before it answered.
        lag_entries: Option<u64>,
    },
    /// The voters change, in one step or through both sets together.
    ChangingVoters,
    /// A member is being removed or described anew.
    ChangingMembers,
}

/// A change that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeProgress {
    /// What was asked for.
    pub operation: String,
    /// Where it stands.
    pub step: ChangeStep,
}

/// The one change that may be made at a time.
pub(crate) struct ChangeLock {
    running: Mutex<Option<String>>,
    progress: watch::Sender<Option<ChangeProgress>>,
    /// Replicas that lost their vote here because they were taken in anew, and have it not back yet: one
    /// that did not hear of it asks once more, and is no voter by then. Lost with the leadership; the replica
    /// itself has asked before whether it voted, and tells the next leader.
    owed: Mutex<BTreeSet<ReplicaId>>,
}

impl ChangeLock {
    pub(crate) fn new() -> ChangeLock {
        ChangeLock { running: Mutex::new(None), progress: watch::Sender::new(None), owed: Mutex::default() }
    }

    fn owed(&self) -> std::sync::MutexGuard<'_, BTreeSet<ReplicaId>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this replica's vote is to be given back.
    pub(crate) fn owes_a_vote(&self, id: ReplicaId) -> bool {
        self.owed().contains(&id)
    }

    fn begin(&self, operation: String) -> Result<ChangePermit<'_>, MembershipError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            return Err(MembershipError::Busy { running: running.clone() });
        }
        *running = Some(operation.clone());
        Ok(ChangePermit { changing: self, operation })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Held while a change is made.
struct ChangePermit<'c> {
    changing: &'c ChangeLock,
    operation: String,
}

impl ChangePermit<'_> {
    fn at(&self, step: ChangeStep) {
        let progress = ChangeProgress { operation: self.operation.clone(), step };
        self.changing.progress.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&progress);
            if changed {
                *current = Some(progress);
            }
            changed
        });
    }
}

impl Drop for ChangePermit<'_> {
    fn drop(&mut self) {
        *self.changing.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changing.progress.send_replace(None);
    }
}

/// Whether those of `voters` that answer are a quorum of them.
fn check_quorum(voters: &BTreeSet<ReplicaId>, answers: &BTreeSet<ReplicaId>) -> Result<(), MembershipError> {
    let (healthy, silent): (Vec<ReplicaId>, Vec<ReplicaId>) =
        voters.iter().copied().partition(|voter| answers.contains(voter));
    let needed = voters.len() / 2 + 1;
    if healthy.len() >= needed {
        return Ok(());
    }
    let voters = voters.iter().copied().collect();
    Err(MembershipError::WouldLoseQuorum { voters, healthy: healthy.len(), needed, silent })
}

fn warnings(voters: &BTreeSet<ReplicaId>, answers: &BTreeSet<ReplicaId>) -> Vec<String> {
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

type ChangeResult<E> = Result<ClientWriteResponse<E>, RaftError<E, ClientWriteError<E>>>;

impl<E: Environment> Consensus<E> {
    /// Where a running change stands, as it goes on; `None` while none is made.
    #[must_use]
    pub fn change_progress(&self) -> watch::Receiver<Option<ChangeProgress>> {
        self.inner.changing.progress.subscribe()
    }

    /// All members, in the order of their ids, with what is known of them.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.status().members
    }

    /// The leader's view of the members; an error elsewhere.
    fn members_as_leader(&self) -> Result<BTreeMap<ReplicaId, Member>, MembershipError> {
        if self.leadership().borrow().mine.is_none() {
            return Err(self.not_leader().into());
        }
        let members: BTreeMap<ReplicaId, Member> =
            self.members().into_iter().map(|member| (member.replica, member)).collect();
        // One that was taken out while it did not lead, and was elected before it knew: the protocol takes no change
        // of a leader without a vote.
        if !members.get(&self.inner.config.replica_id).is_some_and(|own| own.votes) {
            let detail = "this replica leads only until its own removal is committed; ask again in a moment";
            return Err(MembershipError::Refused { detail: detail.to_owned() });
        }
        Ok(members)
    }

    /// Members that answered within two leases, this one included.
    fn answering(&self, members: &BTreeMap<ReplicaId, Member>) -> BTreeSet<ReplicaId> {
        let own = self.inner.config.replica_id;
        let silent_ms_max = (self.inner.config.timing.lease() * 2).as_millis().max(1_000);
        let answers = |member: &&Member| {
            member.replica == own || member.silent_ms.is_some_and(|ms| u128::from(ms) <= silent_ms_max)
        };
        members.values().filter(answers).map(|member| member.replica).collect()
    }

    fn guard(
        &self,
        members: &BTreeMap<ReplicaId, Member>,
        voters: &BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<(), MembershipError> {
        if voters.is_empty() {
            return Err(MembershipError::Refused { detail: "nobody would vote".to_owned() });
        }
        if let Some(stranger) = voters.iter().find(|voter| !members.contains_key(voter)) {
            return Err(MembershipError::NotMember { replica: *stranger });
        }
        for voter in voters {
            if let Some(member) = members.get(voter).filter(|member| !member.votes) {
                caught_up(member)?;
            }
        }
        match check_quorum(voters, &self.answering(members)) {
            Err(error) if options.force => {
                tracing::warn!(%error, "a change of the voters is forced");
                Ok(())
            }
            checked => checked,
        }
    }

    /// Runs one change to its end, whatever becomes of the caller.
    async fn commit<F>(
        &self,
        change: impl FnOnce(Raft<E>) -> F + Send + 'static,
    ) -> Result<u64, MembershipError>
    where
        F: Future<Output = ChangeResult<E>> + Send,
    {
        let raft = self.inner.raft.clone();
        let running = E::spawn(async move { change(raft).await });
        let wait = COMMIT_WAIT_MIN.max(self.inner.config.timing.lease() * 10);
        match E::timeout(wait, running).await {
            Ok(Ok(changed)) => {
                let index = changed.map_err(|error| self.membership_error(error))?.log_id.index();
                self.known(index, wait).await?;
                Ok(index)
            }
            Ok(Err(_)) => Err(MembershipError::Shutdown),
            Err(_) => Err(MembershipError::Unknown { detail: "it is not committed yet".to_owned() }),
        }
    }

    /// Waits until [`Consensus::members`] shows a change: the protocol answers before its metrics show it, and the next
    /// step of the same change asks for the members.
    async fn known(&self, index: u64, wait: Duration) -> Result<(), MembershipError> {
        let shows = move |metrics: &RaftMetrics<E>| {
            metrics.membership_config.log_id().as_ref().is_some_and(|at| at.index() >= index)
        };
        let shown = self.inner.raft.wait(Some(wait)).metrics(shows, "the members after a change").await;
        shown.map(drop).map_err(|error| MembershipError::Unknown { detail: error.to_string() })
    }

    async fn change(
        &self,
        changes: ChangeMembers<u64, ReplicaNode>,
        keep_as_learners: bool,
    ) -> Result<u64, MembershipError> {
        self.commit(move |raft| async move { raft.change_membership(changes, keep_as_learners).await }).await
    }

    fn changed(&self, raft_index: u64) -> Changed {
        let metrics = self.inner.raft.metrics();
        let (voters, learners) = {
            let metrics = metrics.borrow_watched();
            let membership = &metrics.membership_config;
            (
                membership.voter_ids().map(ReplicaId).collect(),
                membership.membership().learner_ids().map(ReplicaId).collect(),
            )
        };
        let members = self.members().into_iter().map(|member| (member.replica, member)).collect();
        let warnings = warnings(&voters, &self.answering(&members));
        Changed { raft_index, voters, learners, warnings }
    }

    /// Adds a replica that follows without a vote. It is a member when this returns; see
    /// [`Consensus::wait_caught_up`].
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or it is a member elsewhere.
    pub async fn add_learner(&self, id: ReplicaId, node: ReplicaNode) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin(format!("adding {id}"))?;
        let raft_index = self.add(&turn, id, node).await?;
        Ok(self.changed(raft_index))
    }

    async fn add(
        &self,
        turn: &ChangePermit<'_>,
        id: ReplicaId,
        node: ReplicaNode,
    ) -> Result<u64, MembershipError> {
        let members = self.members_as_leader()?;
        match members.get(&id) {
            Some(member) if member.node == node && !member.votes => {}
            Some(member) => {
                let peer_endpoint = member.node.peer_endpoint.clone();
                return Err(MembershipError::AlreadyMember { replica: id, peer_endpoint });
            }
            None if members.len() >= MEMBERS_MAX => {
                let detail = format!("a cluster has at most {MEMBERS_MAX} members");
                return Err(MembershipError::Refused { detail });
            }
            None => {}
        }
        turn.at(ChangeStep::AddingLearner);
        self.commit(move |raft| async move { raft.add_learner(id.0, node, false).await }).await
    }

    /// Waits until a member has almost everything; progress is in [`Consensus::change_progress`]
    /// where a change waits, and in [`Consensus::members`].
    ///
    /// # Errors
    /// When this replica does not lead, stops leading, or the member is removed.
    pub async fn wait_caught_up(&self, id: ReplicaId) -> Result<(), MembershipError> {
        self.catch_up(None, id).await
    }

    async fn catch_up(&self, turn: Option<&ChangePermit<'_>>, id: ReplicaId) -> Result<(), MembershipError> {
        let mut metrics = self.inner.raft.metrics();
        loop {
            let (leads, lag_entries) = {
                let metrics = metrics.borrow_watched();
                if metrics.membership_config.get_node(&id.0).is_none() {
                    return Err(MembershipError::NotMember { replica: id });
                }
                let leads = metrics.state == ServerState::Leader && metrics.running_state.is_ok();
                (leads, lag_of(&metrics, id))
            };
            if !leads {
                return Err(self.not_leader().into());
            }
            if lag_entries.is_some_and(|lag| lag <= VOTER_LAG_ENTRIES_MAX) {
                return Ok(());
            }
            if let Some(turn) = turn {
                turn.at(ChangeStep::CatchingUp { replica: id, lag_entries });
            }
            if metrics.changed().await.is_err() {
                return Err(MembershipError::Shutdown);
            }
        }
    }

    /// Gives a learner that has caught up a vote.
    ///
    /// # Errors
    /// [`MembershipError::NotCaughtUp`] with its lag, or a refusal of [`Consensus::change_voters`].
    pub async fn promote(&self, id: ReplicaId) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin(format!("giving {id} a vote"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        caught_up(member)?;
        let mut voters = voters_of(&members);
        voters.insert(id);
        self.guard(&members, &voters, ChangeOptions::default())?;
        turn.at(ChangeStep::ChangingVoters);
        let raft_index = self.change(ChangeMembers::AddVoterIds([id.0].into()), false).await?;
        self.inner.changing.owed().remove(&id);
        Ok(self.changed(raft_index))
    }

    /// Removes a voter or a learner. A leader that removes itself hands over when it is done.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn remove(&self, id: ReplicaId, options: ChangeOptions) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin(format!("removing {id}"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        let raft_index = if member.votes {
            let mut voters = voters_of(&members);
            voters.remove(&id);
            self.guard(&members, &voters, options)?;
            turn.at(ChangeStep::ChangingVoters);
            self.change(ChangeMembers::RemoveVoters([id.0].into()), options.keep_as_learners).await?
        } else {
            turn.at(ChangeStep::ChangingMembers);
            self.change(ChangeMembers::RemoveNodes([id.0].into()), true).await?
        };
        Ok(self.changed(raft_index))
    }

    /// Makes exactly `voters` vote; each has to be a member that has caught up.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn change_voters(
        &self,
        voters: BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin("changing the voters".to_owned())?;
        let members = self.members_as_leader()?;
        self.guard(&members, &voters, options)?;
        turn.at(ChangeStep::ChangingVoters);
        let voters = voters.into_iter().map(|id| id.0).collect();
        let changes = ChangeMembers::ReplaceAllVoters(voters);
        let raft_index = self.change(changes, options.keep_as_learners).await?;
        Ok(self.changed(raft_index))
    }

    /// Puts a new replica in the place of one that is gone: adds it, waits until it has caught up,
    /// and changes the voters once. Asked again after an interruption, it goes on.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub async fn replace(
        &self,
        gone: ReplicaId,
        id: ReplicaId,
        node: ReplicaNode,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin(format!("putting {id} in the place of {gone}"))?;
        let members = self.members_as_leader()?;
        let old = members.get(&gone).ok_or(MembershipError::NotMember { replica: gone })?;
        if gone == id || !old.votes {
            let detail = format!("{gone} is to be replaced by another replica, and has to be a voter");
            return Err(MembershipError::Refused { detail });
        }
        self.add(&turn, id, node).await?;
        self.catch_up(Some(&turn), id).await?;
        let members = self.members_as_leader()?;
        let mut voters = voters_of(&members);
        voters.remove(&gone);
        voters.insert(id);
        self.guard(&members, &voters, options)?;
        turn.at(ChangeStep::ChangingVoters);
        let voters = voters.into_iter().map(|id| id.0).collect();
        let changes = ChangeMembers::ReplaceAllVoters(voters);
        let raft_index = self.change(changes, options.keep_as_learners).await?;
        Ok(self.changed(raft_index))
    }

    /// Says anew where a member lives; connections follow.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or there is no such member.
    pub async fn update_member(&self, id: ReplicaId, node: ReplicaNode) -> Result<Changed, MembershipError> {
        let turn = self.inner.changing.begin(format!("describing {id} anew"))?;
        if !self.members_as_leader()?.contains_key(&id) {
            return Err(MembershipError::NotMember { replica: id });
        }
        turn.at(ChangeStep::ChangingMembers);
        // Peers name whom they mean to reach, so a wrong address is refused, not believed.
        let raft_index = self.change(ChangeMembers::SetNodes([(id.0, node)].into()), true).await?;
        Ok(self.changed(raft_index))
    }

    /// Takes a replica in anew whose storage lost what it had promised: removes it, so that nothing
    /// of its earlier life counts any more, and adds it again as a learner. It may neither vote nor
    /// acknowledge before it knows the returned entry.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, it is not a member, or the other
    /// voters are not a quorum, with it and without it.
    pub async fn readmit(&self, id: ReplicaId) -> Result<ReaddedMember, MembershipError> {
        let turn = self.inner.changing.begin(format!("taking {id} in anew"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        if id == self.inner.config.replica_id {
            return Err(MembershipError::Refused { detail: "it leads".to_owned() });
        }
        let (votes, node) = (member.votes, member.node.clone());
        let voted = votes || self.inner.changing.owes_a_vote(id);
        if votes {
            // It acknowledges nothing: the others have to decide alone, before and after.
            let voters = voters_of(&members);
            let mut answers = self.answering(&members);
            answers.remove(&id);
            check_quorum(&voters, &answers)?;
            check_quorum(&voters.difference(&[id].into()).copied().collect(), &answers)?;
            turn.at(ChangeStep::ChangingVoters);
            self.inner.changing.owed().insert(id);
            self.change(ChangeMembers::RemoveVoters([id.0].into()), false).await?;
        } else {
            turn.at(ChangeStep::ChangingMembers);
            self.change(ChangeMembers::RemoveNodes([id.0].into()), true).await?;
        }
        let raft_index = self.add(&turn, id, node).await?;
        tracing::info!(replica = %id, raft_index, "a replica that lost its storage is taken in anew");
        Ok(ReaddedMember { raft_index, voted })
    }

    pub(crate) fn membership_error(&self, error: RaftError<E, ClientWriteError<E>>) -> MembershipError {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => self.not_leader().into(),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(lost)) => {
                MembershipError::Unknown { detail: lost.to_string() }
            }
            RaftError::APIError(other) => MembershipError::Refused { detail: other.to_string() },
            RaftError::Fatal(_) => MembershipError::Shutdown,
        }
    }
}

fn voters_of(members: &BTreeMap<ReplicaId, Member>) -> BTreeSet<ReplicaId> {
    members.values().filter(|member| member.votes).map(|member| member.replica).collect()
}

fn caught_up(member: &Member) -> Result<(), MembershipError> {
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

/// What a member lacks; `None` before it answered.
fn lag_of<E: Environment>(metrics: &RaftMetrics<E>, id: ReplicaId) -> Option<u64> {
    let last = metrics.last_log_index?;
    if id.0 == metrics.id {
        return Some(0);
    }
    let matched = metrics.replication.as_ref()?.get(&id.0)?.as_ref()?.index();
    Some(last.saturating_sub(matched))
}

/// A leader that dies between the two steps of a change leaves both sets of voters in force: every
/// decision then needs both. Whoever leads next takes the second step.
pub(crate) async fn finish_changes<E: Environment>(consensus: Consensus<E>) {
    let mut view = consensus.leadership();
    let pause = consensus.inner.config.timing.lease() * 4;
    let mut stop = consensus.stopped();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(Option::is_some) => return,
            () = E::sleep(pause) => {}
        }
        let left_over = || {
            let metrics = consensus.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.membership().get_joint_config().len() > 1
                && metrics.membership_config.log_id() == metrics.committed_membership_config.log_id()
        };
        if view.borrow_and_update().mine.is_none() || !consensus.inner.changing.is_idle() || !left_over() {
            continue;
        }
        let Ok(turn) = consensus.inner.changing.begin("finishing an interrupted change".to_owned()) else {
            continue;
        };
        turn.at(ChangeStep::ChangingVoters);
        match consensus.change(ChangeMembers::AddVoterIds(BTreeSet::new()), false).await {
            Ok(raft_index) => tracing::info!(raft_index, "an interrupted change of the voters is finished"),
            Err(error) => tracing::warn!(%error, "an interrupted change of the voters is not finished yet"),
        }
    }
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

    #[test]
    fn one_change_at_a_time() {
        let changing = ChangeLock::new();
        let turn = changing.begin("one".to_owned()).expect("nothing runs yet");
        turn.at(ChangeStep::AddingLearner);
        assert!(changing.progress.borrow().is_some());
        let refused = changing.begin("two".to_owned());
        assert!(matches!(refused, Err(MembershipError::Busy { running }) if running == "one"));
        drop(turn);
        assert!(changing.progress.borrow().is_none());
        assert!(changing.begin("two".to_owned()).is_ok());
    }
}
