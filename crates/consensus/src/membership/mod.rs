//! Changes of membership while the cluster serves, and what keeps them from doing harm.
//!
//! **Invariant:** one change at a time.
//! **Invariant:** without `force`, no change is made after which the voters that answer would not
//! be a quorum; a learner votes only once it has almost everything.
//! **Invariant:** a change that was begun goes on when its caller goes away; what may wait for
//! ever, a learner catching up, does not.

mod change_lock;
mod quorum;
mod rejoining;

use crate::config::{MEMBERS_MAX, Timing};
use crate::environment::{Environment, Raft};
use crate::error::MembershipError;
use crate::leader::LeadershipHandle;
use crate::status::{Member, Members};
use crate::stop::StopHandle;
use change_lock::{ChangeLock, ChangePermit};
use muster_store::ReplicaNode;
use muster_types::ReplicaId;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use openraft::type_config::TypeConfigExt as _;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use quorum::{caught_up, check_quorum, voters_of, warnings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub use quorum::VOTER_LAG_ENTRIES_MAX;

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

/// A replica that lost its storage was added again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaddedMember {
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
    /// A member is being removed, or its description changes.
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

type ChangeResult<E> = Result<ClientWriteResponse<E>, RaftError<E, ClientWriteError<E>>>;

/// Changes the members while this replica leads. Clones share the one change that may run.
pub(crate) struct Membership<E: Environment> {
    replica_id: ReplicaId,
    timing: Timing,
    raft: Raft<E>,
    leadership: LeadershipHandle,
    members: Members<E>,
    changes: Arc<ChangeLock>,
}

impl<E: Environment> Clone for Membership<E> {
    fn clone(&self) -> Self {
        Membership {
            replica_id: self.replica_id,
            timing: self.timing,
            raft: self.raft.clone(),
            leadership: self.leadership.clone(),
            members: self.members.clone(),
            changes: Arc::clone(&self.changes),
        }
    }
}

impl<E: Environment> Membership<E> {
    pub(crate) fn new(
        replica_id: ReplicaId,
        timing: Timing,
        raft: Raft<E>,
        leadership: LeadershipHandle,
        members: Members<E>,
    ) -> Membership<E> {
        Membership { replica_id, timing, raft, leadership, members, changes: Arc::new(ChangeLock::new()) }
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Option<ChangeProgress>> {
        self.changes.progress()
    }

    /// The leader's view of the members; an error elsewhere.
    fn members_as_leader(&self) -> Result<BTreeMap<ReplicaId, Member>, MembershipError> {
        if self.leadership.mine().is_none() {
            return Err(self.leadership.not_leader().into());
        }
        let members: BTreeMap<ReplicaId, Member> =
            self.members.all().into_iter().map(|member| (member.replica, member)).collect();
        // One that was taken out while it did not lead, and was elected before it knew: the protocol takes no change
        // of a leader without a vote.
        if !members.get(&self.replica_id).is_some_and(|own| own.votes) {
            let detail = "this replica leads only until its own removal is committed; ask again in a moment";
            return Err(MembershipError::Refused { detail: detail.to_owned() });
        }
        Ok(members)
    }

    /// Members that answered within two leases, this one included.
    fn answering(&self, members: &BTreeMap<ReplicaId, Member>) -> BTreeSet<ReplicaId> {
        let own = self.replica_id;
        let silent_ms_max = (self.timing.lease() * 2).as_millis().max(1_000);
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
        let raft = self.raft.clone();
        let running = E::spawn(async move { change(raft).await });
        let wait = COMMIT_WAIT_MIN.max(self.timing.lease() * 10);
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

    /// Waits until [`Members`] shows a change: the protocol answers before its metrics show it, and the next
    /// step of the same change asks for the members.
    async fn known(&self, index: u64, wait: Duration) -> Result<(), MembershipError> {
        let shows = move |metrics: &RaftMetrics<E>| {
            metrics.membership_config.log_id().as_ref().is_some_and(|at| at.index() >= index)
        };
        let shown = self.raft.wait(Some(wait)).metrics(shows, "the members after a change").await;
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
        let metrics = self.raft.metrics();
        let (voters, learners) = {
            let metrics = metrics.borrow_watched();
            let membership = &metrics.membership_config;
            (
                membership.voter_ids().map(ReplicaId).collect(),
                membership.membership().learner_ids().map(ReplicaId).collect(),
            )
        };
        let members = self.members.all().into_iter().map(|member| (member.replica, member)).collect();
        let warnings = warnings(&voters, &self.answering(&members));
        Changed { raft_index, voters, learners, warnings }
    }

    /// Adds a replica that follows without a vote. It is a member when this returns; see
    /// [`Membership::wait_caught_up`].
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or it is a member elsewhere.
    pub(crate) async fn add_learner(
        &self,
        id: ReplicaId,
        node: ReplicaNode,
    ) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin(format!("adding {id}"))?;
        let raft_index = self.add(&permit, id, node).await?;
        Ok(self.changed(raft_index))
    }

    async fn add(
        &self,
        permit: &ChangePermit<'_>,
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
        permit.at(ChangeStep::AddingLearner);
        self.commit(move |raft| async move { raft.add_learner(id.0, node, false).await }).await
    }

    /// Waits until a member has almost everything; progress is in [`Membership::progress`]
    /// where a change waits, and in [`Members`].
    ///
    /// # Errors
    /// When this replica does not lead, stops leading, or the member is removed.
    pub(crate) async fn wait_caught_up(&self, id: ReplicaId) -> Result<(), MembershipError> {
        self.catch_up(None, id).await
    }

    async fn catch_up(
        &self,
        permit: Option<&ChangePermit<'_>>,
        id: ReplicaId,
    ) -> Result<(), MembershipError> {
        let mut metrics = self.raft.metrics();
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
                return Err(self.leadership.not_leader().into());
            }
            if lag_entries.is_some_and(|lag| lag <= VOTER_LAG_ENTRIES_MAX) {
                return Ok(());
            }
            if let Some(permit) = permit {
                permit.at(ChangeStep::CatchingUp { replica: id, lag_entries });
            }
            if metrics.changed().await.is_err() {
                return Err(MembershipError::Shutdown);
            }
        }
    }

    /// Gives a learner that has caught up a vote.
    ///
    /// # Errors
    /// [`MembershipError::NotCaughtUp`] with its lag, or a refusal of [`Membership::change_voters`].
    pub(crate) async fn promote(&self, id: ReplicaId) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin(format!("giving {id} a vote"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        caught_up(member)?;
        let mut voters = voters_of(&members);
        voters.insert(id);
        self.guard(&members, &voters, ChangeOptions::default())?;
        permit.at(ChangeStep::ChangingVoters);
        let raft_index = self.change(ChangeMembers::AddVoterIds([id.0].into()), false).await?;
        self.changes.vote_restored(id);
        Ok(self.changed(raft_index))
    }

    /// Removes a voter or a learner. A leader that removes itself gives up leadership when it is done.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub(crate) async fn remove(
        &self,
        id: ReplicaId,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin(format!("removing {id}"))?;
        let members = self.members_as_leader()?;
        let member = members.get(&id).ok_or(MembershipError::NotMember { replica: id })?;
        let raft_index = if member.votes {
            let mut voters = voters_of(&members);
            voters.remove(&id);
            self.guard(&members, &voters, options)?;
            permit.at(ChangeStep::ChangingVoters);
            self.change(ChangeMembers::RemoveVoters([id.0].into()), options.keep_as_learners).await?
        } else {
            permit.at(ChangeStep::ChangingMembers);
            self.change(ChangeMembers::RemoveNodes([id.0].into()), true).await?
        };
        Ok(self.changed(raft_index))
    }

    /// Makes exactly `voters` vote; each has to be a member that has caught up.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub(crate) async fn change_voters(
        &self,
        voters: BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin("changing the voters".to_owned())?;
        let members = self.members_as_leader()?;
        self.set_voters(&permit, &members, voters, options).await
    }

    /// Makes these members the voters, unless the quorum would be lost.
    async fn set_voters(
        &self,
        permit: &ChangePermit<'_>,
        members: &BTreeMap<ReplicaId, Member>,
        voters: BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        self.guard(members, &voters, options)?;
        permit.at(ChangeStep::ChangingVoters);
        let voters = voters.into_iter().map(|id| id.0).collect();
        let changes = ChangeMembers::ReplaceAllVoters(voters);
        let raft_index = self.change(changes, options.keep_as_learners).await?;
        Ok(self.changed(raft_index))
    }

    /// Replaces a voter that is gone by a new replica: adds it, waits until it has caught up, and changes the voters
    /// once. Asked again after an interruption, it goes on.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or the quorum would be lost.
    pub(crate) async fn replace(
        &self,
        gone: ReplicaId,
        id: ReplicaId,
        node: ReplicaNode,
        options: ChangeOptions,
    ) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin(format!("putting {id} in the place of {gone}"))?;
        let members = self.members_as_leader()?;
        let old = members.get(&gone).ok_or(MembershipError::NotMember { replica: gone })?;
        if gone == id || !old.votes {
            let detail = format!("{gone} is to be replaced by another replica, and has to be a voter");
            return Err(MembershipError::Refused { detail });
        }
        self.add(&permit, id, node).await?;
        self.catch_up(Some(&permit), id).await?;
        let members = self.members_as_leader()?;
        let mut voters = voters_of(&members);
        voters.remove(&gone);
        voters.insert(id);
        self.set_voters(&permit, &members, voters, options).await
    }

    /// Changes the endpoints and the region of a member; connections follow.
    ///
    /// # Errors
    /// When this replica does not lead, another change runs, or there is no such member.
    pub(crate) async fn update_member(
        &self,
        id: ReplicaId,
        node: ReplicaNode,
    ) -> Result<Changed, MembershipError> {
        let permit = self.changes.begin(format!("updating {id}"))?;
        if !self.members_as_leader()?.contains_key(&id) {
            return Err(MembershipError::NotMember { replica: id });
        }
        permit.at(ChangeStep::ChangingMembers);
        // Peers name whom they mean to reach, so a wrong address is refused, not believed.
        let raft_index = self.change(ChangeMembers::SetNodes([(id.0, node)].into()), true).await?;
        Ok(self.changed(raft_index))
    }

    /// Finishes changes that were interrupted, until the replica stops. A leader that dies between the two steps of a
    /// change leaves both sets of voters in force, and every decision then needs both. The next leader takes the
    /// second step. Whether those without a vote were to stay as learners is not in the log, so they do: a replica that was to
    /// stay is not lost, and one that was to go is removed when the change is asked for again.
    pub(crate) async fn finish_changes(self, stop: StopHandle) {
        let pause = self.timing.lease() * 4;
        let mut stop = stop.subscribe();
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(Option::is_some) => return,
                () = E::sleep(pause) => {}
            }
            if self.leadership.mine().is_none() || !self.changes.is_idle() {
                continue;
            }
            let Some(leaving) = self.left_over() else { continue };
            let Ok(permit) = self.changes.begin("finishing an interrupted change".to_owned()) else {
                continue;
            };
            permit.at(ChangeStep::ChangingVoters);
            match self.change(ChangeMembers::AddVoterIds(BTreeSet::new()), true).await {
                Ok(raft_index) => tracing::info!(
                    raft_index,
                    learners = ?leaving,
                    "an interrupted change of the voters is finished; who has lost its vote by it follows as a learner"
                ),
                Err(error) => {
                    tracing::warn!(%error, "an interrupted change of the voters is not finished yet")
                }
            }
        }
    }

    /// Who loses its vote by a change that is committed by half; none where nothing is left over.
    fn left_over(&self) -> Option<BTreeSet<ReplicaId>> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let known = &metrics.membership_config;
        if known.log_id() != metrics.committed_membership_config.log_id() {
            return None;
        }
        let sets = known.membership().get_joint_config();
        let (to, from) = sets.split_last().filter(|(_, from)| !from.is_empty())?;
        let leaving = from.iter().flatten().filter(|id| !to.contains(*id));
        Some(leaving.copied().map(ReplicaId).collect())
    }

    fn membership_error(&self, error: RaftError<E, ClientWriteError<E>>) -> MembershipError {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => self.leadership.not_leader().into(),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(lost)) => {
                MembershipError::Unknown { detail: lost.to_string() }
            }
            RaftError::APIError(other) => MembershipError::Refused { detail: other.to_string() },
            RaftError::Fatal(_) => MembershipError::Shutdown,
        }
    }
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
