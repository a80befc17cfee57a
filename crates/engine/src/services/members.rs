//! Changes of the cluster itself: its members, its leader, its record format.
//!
//! Every call is safe to repeat: one that finds its work done changes nothing. What may wait for ever,
//! a replica that catches up, is waited for by the caller, who repeats the call; so nothing is lost
//! when the leader changes meanwhile.
//!
//! **Invariant:** the record format is raised only when every member has lately said that it reads it.
//! **Invariant:** no replica is given a vote that does not read the format in force.

use muster_consensus::{ChangeOptions, Changed, Member, MembershipError, PeerReport, ReplicaNode, Role};
use muster_decider::Command;
use muster_types::{LogIndex, Refusal, RefusalCode, ReplicaId, Requester};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::Engine;

/// What a replica said of itself counts for this long.
const REPORT_AGE_MAX: Duration = Duration::from_secs(10);
/// Members named in one refusal.
const NAMED_MAX: usize = 16;

/// Replicas as people write them.
fn list(replicas: impl IntoIterator<Item = ReplicaId>) -> String {
    let names: Vec<String> = replicas.into_iter().take(NAMED_MAX).map(|id| id.to_string()).collect();
    names.join(", ")
}

/// The refusal that says why a change was not made.
pub(super) fn refusal_of(error: &MembershipError) -> Refusal {
    let text = error.to_string();
    match error {
        MembershipError::NotLeader(_) => Refusal::new(RefusalCode::NotLeader, text),
        MembershipError::Unknown { .. } => Refusal::new(RefusalCode::OutcomeUnknown, text),
        MembershipError::Shutdown => {
            Refusal::new(RefusalCode::ReplicaStopping, "this replica stops; another one will lead")
        }
        MembershipError::Busy { running } => {
            Refusal::new(RefusalCode::MembershipBusy, text).with("running", running)
        }
        MembershipError::NotMember { replica } => unknown(*replica),
        MembershipError::NotCaughtUp { replica, lag_entries, lag_entries_max } => {
            not_caught_up(*replica, Some(*lag_entries).filter(|lag| *lag < u64::MAX), *lag_entries_max)
        }
        MembershipError::WouldLoseQuorum { voters, healthy, needed, silent } => {
            let text = format!(
                "of the voters {} only {healthy} answer, and {needed} are needed for any decision; silent: {}",
                list(voters.iter().copied()),
                list(silent.iter().copied())
            );
            Refusal::new(RefusalCode::WouldLoseQuorum, text)
                .with("healthy", healthy)
                .with("needed", needed)
                .with("silent", list(silent.iter().copied()))
        }
        MembershipError::AlreadyMember { .. } | MembershipError::Refused { .. } => {
            Refusal::new(RefusalCode::MembershipRefused, text)
        }
    }
}

fn unknown(replica: ReplicaId) -> Refusal {
    Refusal::new(RefusalCode::ReplicaUnknown, format!("{replica} is not a member of the cluster"))
}

fn not_caught_up(replica: ReplicaId, lag_entries: Option<u64>, lag_entries_max: u64) -> Refusal {
    match lag_entries {
        Some(lag) => {
            let text =
                format!("{replica} lacks {lag} entries of the log; a voter may lack {lag_entries_max}");
            Refusal::new(RefusalCode::ReplicaNotCaughtUp, text).with("lag_entries", lag)
        }
        None => Refusal::new(
            RefusalCode::ReplicaNotCaughtUp,
            format!("{replica} has not answered the leader so far; does it run?"),
        ),
    }
}

fn refused(text: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::MembershipRefused, text)
}

impl Engine {
    fn members(&self) -> BTreeMap<ReplicaId, Member> {
        self.consensus().members().into_iter().map(|member| (member.replica, member)).collect()
    }

    /// Members with their votes as they are: nothing was to be done.
    fn unchanged(&self) -> Changed {
        let members = self.members();
        let of = |votes| {
            let some = members.values().filter(|member| member.votes == votes);
            some.map(|member| member.replica).collect::<BTreeSet<_>>()
        };
        Changed { raft_index: 0, voters: of(true), learners: of(false), warnings: Vec::new() }
    }

    fn check_leads(&self) -> Result<(), Refusal> {
        if self.is_leader() {
            return Ok(());
        }
        Err(Refusal::new(RefusalCode::NotLeader, "this replica does not lead"))
    }

    /// The members, between two changes: within one, a replica that rejoins is not a member for a moment.
    fn settled_members(&self) -> Result<BTreeMap<ReplicaId, Member>, Refusal> {
        self.check_leads()?;
        if let Some(running) = self.consensus().change_progress().borrow().as_ref() {
            return Err(refusal_of(&MembershipError::Busy { running: running.operation.clone() }));
        }
        Ok(self.members())
    }

    /// Adds a replica that follows without a vote.
    ///
    /// # Errors
    /// See [`RefusalCode`]: not leading, busy, or a member elsewhere.
    pub async fn add_replica(&self, id: ReplicaId, node: ReplicaNode) -> Result<Changed, Refusal> {
        if self.settled_members()?.get(&id).is_some_and(|member| member.node == node) {
            return Ok(self.unchanged());
        }
        self.consensus().add_learner(id, node).await.map_err(|error| refusal_of(&error))
    }

    /// Gives a learner that has caught up a vote.
    ///
    /// # Errors
    /// Not caught up, does not read the format in force, would lose the quorum, busy, unknown.
    pub async fn promote_replica(&self, id: ReplicaId) -> Result<Changed, Refusal> {
        let members = self.settled_members()?;
        let member = members.get(&id).ok_or_else(|| unknown(id))?;
        if member.votes {
            return Ok(self.unchanged());
        }
        self.check_reads_format(id)?;
        self.consensus().promote(id).await.map_err(|error| refusal_of(&error))
    }

    /// Removes a voter or a learner.
    ///
    /// # Errors
    /// Would lose the quorum, busy, unknown.
    pub async fn remove_replica(&self, id: ReplicaId, options: ChangeOptions) -> Result<Changed, Refusal> {
        let members = self.settled_members()?;
        let member = members.get(&id).ok_or_else(|| unknown(id))?;
        if !member.votes && options.keep_as_learners {
            return Ok(self.unchanged());
        }
        self.consensus().remove(id, options).await.map_err(|error| refusal_of(&error))
    }

    /// Goes on with putting a new replica in the place of one that is gone; done when it answers `Ok`.
    /// With one and the same id, sets the addresses of that replica from now on.
    ///
    /// # Errors
    /// Not caught up: repeat the call. Else like the others.
    pub async fn replace_replica(
        &self,
        gone: ReplicaId,
        id: ReplicaId,
        node: ReplicaNode,
        options: ChangeOptions,
    ) -> Result<Changed, Refusal> {
        let members = self.settled_members()?;
        if gone == id {
            return match members.get(&id) {
                None => Err(unknown(id)),
                Some(member) if member.node == node => Ok(self.unchanged()),
                Some(_) => self.consensus().update_member(id, node).await.map_err(|error| refusal_of(&error)),
            };
        }
        let replacement = members.get(&id);
        let Some(old) = members.get(&gone) else {
            // Done by an earlier call, whose answer was lost.
            let is_done = replacement.is_some_and(|member| member.votes && member.node == node);
            return if is_done { Ok(self.unchanged()) } else { Err(unknown(gone)) };
        };
        if !old.votes {
            // The voters were changed by a call that was interrupted, and a later leader has finished that part of it.
            if replacement.is_some_and(|member| member.votes && member.node == node) {
                return match options.keep_as_learners {
                    true => Ok(self.unchanged()),
                    false => self.consensus().remove(gone, options).await.map_err(|error| refusal_of(&error)),
                };
            }
            return Err(refused(format!("{gone} has no vote to hand on; add {id}, and remove {gone}")));
        }
        match replacement {
            Some(member) if member.node == node => {}
            _ => {
                let added = self.consensus().add_learner(id, node).await;
                added.map_err(|error| refusal_of(&error))?;
            }
        }
        self.check_reads_format(id)?;
        // Others may have changed the voters meanwhile: only one of them goes.
        let members = self.settled_members()?;
        let voters = members.values().filter(|member| member.votes && member.replica != gone);
        let voters = voters.map(|member| member.replica).chain([id]).collect();
        self.consensus().change_voters(voters, options).await.map_err(|error| refusal_of(&error))
    }

    /// Makes exactly `voters` vote.
    ///
    /// # Errors
    /// Like the others.
    pub async fn change_voters(
        &self,
        voters: BTreeSet<ReplicaId>,
        options: ChangeOptions,
    ) -> Result<Changed, Refusal> {
        let members = self.settled_members()?;
        let now: BTreeSet<ReplicaId> = self.unchanged().voters;
        if now == voters {
            return Ok(self.unchanged());
        }
        for voter in &voters {
            let member = members.get(voter).ok_or_else(|| unknown(*voter))?;
            if !member.votes {
                self.check_reads_format(*voter)?;
            }
        }
        self.consensus().change_voters(voters, options).await.map_err(|error| refusal_of(&error))
    }

    /// Hands the leadership over: to `to`, or to the voter that lacks least; only if `away_from` leads,
    /// where one is named. Who is to lead then.
    ///
    /// # Errors
    /// When the other one did not take over, or does not vote.
    pub async fn transfer_leadership(
        &self,
        to: Option<ReplicaId>,
        away_from: Option<ReplicaId>,
    ) -> Result<ReplicaId, Refusal> {
        self.check_leads()?;
        let own = self.info().replica;
        if to == Some(own) || away_from.is_some_and(|id| id != own) {
            return Ok(own);
        }
        let status = self.consensus().status();
        if status.role != Role::Leader {
            return Err(Refusal::new(RefusalCode::NotLeader, "this replica does not lead"));
        }
        let mut voters = status.members.iter().filter(|member| member.votes && member.replica != own);
        let next = match to {
            Some(to) => {
                let known = status.members.iter().any(|member| member.replica == to);
                let voter = voters.find(|member| member.replica == to);
                match voter {
                    Some(voter) => voter,
                    None if known => return Err(refused(format!("{to} has no vote, so it cannot lead"))),
                    None => return Err(unknown(to)),
                }
            }
            None => voters
                .max_by_key(|member| (member.matched_index, std::cmp::Reverse(member.silent_ms)))
                .ok_or_else(|| refused(format!("{own} is the only voter")))?,
        };
        let to = next.replica;
        self.consensus().transfer_leadership(to).await.map_err(|error| refusal_of(&error))?;
        Ok(to)
    }

    /// What a member said of itself lately.
    fn report(&self, id: ReplicaId) -> Option<PeerReport> {
        let reports = self.consensus().peer_reports();
        let report = reports.borrow().get(&id).cloned();
        report.filter(|report| report.age() <= REPORT_AGE_MAX)
    }

    /// Refuses a replica that is known not to read the format in force: it would stop before the next
    /// record, and its vote would be one that never answers.
    fn check_reads_format(&self, id: ReplicaId) -> Result<(), Refusal> {
        let format = u32::from(self.view().format());
        match self.report(id) {
            Some(report) if report.format_max >= format => Ok(()),
            Some(report) => {
                let text = format!(
                    "{id} reads record formats up to {}, and {format} is in force; upgrade it first",
                    report.format_max
                );
                Err(Refusal::new(RefusalCode::FormatNotReady, text).with("replicas", id))
            }
            None => Err(not_caught_up(id, None, muster_consensus::VOTER_LAG_ENTRIES_MAX)),
        }
    }

    /// The highest format that every member has lately said it reads, and the members that keep it from
    /// being `wanted`.
    fn formats(&self, wanted: Option<u32>) -> (u32, Vec<ReplicaId>) {
        let mut highest = u32::MAX;
        let mut behind = Vec::new();
        for id in self.members().into_keys() {
            let reads = self.report(id).map(|report| report.format_max);
            highest = highest.min(reads.unwrap_or(0));
            if reads < Some(wanted.unwrap_or(1)) {
                behind.push(id);
            }
        }
        (highest, behind)
    }

    /// Raises the record format to `wanted`, or to the highest that every member reads, for somebody who is recorded. The
    /// format in force afterwards, and where the log is.
    ///
    /// # Errors
    /// Some member does not read it, or has not reported that it does lately.
    pub async fn raise_format(&self, wanted: Option<u16>, by: Requester) -> Result<(u16, LogIndex), Refusal> {
        self.check_leads()?;
        let view = self.view();
        if wanted.is_some_and(|wanted| wanted <= view.format()) {
            return Ok((view.format(), view.log_index()));
        }
        let (highest, behind) = self.formats(wanted.map(u32::from));
        if !behind.is_empty() {
            let format = wanted.map_or("a format".to_owned(), |format| format!("record format {format}"));
            let text =
                format!("these replicas have not said that they read {format}: {}", list(behind.clone()));
            return Err(Refusal::new(RefusalCode::FormatNotReady, text).with("replicas", list(behind)));
        }
        let highest = u16::try_from(highest).unwrap_or(u16::MAX).min(muster_journal::FORMAT_MAX);
        let format = wanted.unwrap_or(highest);
        if format <= view.format() {
            return Ok((view.format(), view.log_index()));
        }
        let answer = self.execute(Command::RaiseFormat { by, format }).await?;
        tracing::info!(format, log_index = %answer.at(), "the record format is raised");
        Ok((self.view().format(), answer.at()))
    }

    /// Raises the format whenever every member reads a higher one, for as long as this replica runs.
    pub async fn raise_format_when_ready(self, look_every: Duration) {
        let mut ticks = tokio::time::interval(look_every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stopping() => return,
                _ = ticks.tick() => {}
            }
            let (highest, _) = self.formats(None);
            if !self.is_leader() || highest <= u32::from(self.view().format()) {
                continue;
            }
            if let Err(refusal) = self.raise_format(None, Requester::default()).await {
                tracing::debug!(%refusal, "the record format is not raised yet");
            }
        }
    }
}
