//! Searches for gangs to preempt: which were in vain, what has changed since, and which request is next.
//!
//! A search looks at every host that could take a gang, so a pass makes few of them, and none twice for nothing:
//!
//! - A pass makes a limited number of searches that end in nothing: some for the first in the queue, most for requests that had none since
//!   everybody had one. Of both, one tenant's are a part.
//! - Where one ended in nothing it is not made again as a whole for a while: a gang that needs one host looks only at
//!   the hosts on which something changed since, and one that needs several waits.
//!
//! Kept by the leader alone and in no record: a new leader begins without, and everybody has a turn again.
//!
//! **Invariant:** a request that had a search in this round has no other as one of the next before every request that
//! a pass had to leave out has had one; then the next round begins.

use alloc::collections::{BTreeMap, BTreeSet};
use muster_journal::{Decision, RankUpdate};
use muster_planner::needs_one_host;
use muster_policy::asker;
use muster_state::{GangClass, QuotaGrantStatus, State};
use muster_types::{JobId, JobSpec, LogIndex, LogTime, Name, NodeId, PriorityTier};

/// After this time a search covers all hosts again: some gangs may be stopped only because time has passed.
const SEARCH_AGAIN_MS: u64 = 10_000;

/// Requests that are remembered; with more, all are forgotten.
const CLAIMS_MAX: usize = 1 << 16;

/// Changed hosts beyond which everything is looked at.
const CHANGED_MAX: usize = 64;

/// Fruitless searches in one pass: for the first in the queue, and for those that had none yet in this round.
const TRIES_FIRST_MAX: u32 = 4;
const TRIES_NEXT_MAX: u32 = 12;

/// One tenant gets at most one part in this number of either kind.
const TENANTS_WITH_TRIES: u32 = 2;

/// Whose request: with those of the same tier that ask for the same in the name of the same tenant.
pub(crate) type Claim = (PriorityTier, Name, GangClass);

/// What a search has to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All hosts.
    Everywhere,
    /// These alone: the others could not be freed a moment ago.
    Only(BTreeSet<NodeId>),
    /// Nothing has changed that it could be freed by.
    Nowhere,
}

/// A search that ended in nothing.
#[derive(Clone, Copy, Debug)]
struct InVain {
    /// Up to which change.
    version: u64,
    /// When everything was looked at last.
    at: LogTime,
    /// In which round that was.
    round: u64,
}

/// Whether all of these were requests for quota that nobody answered: nobody has more or less now. Anybody may make them.
pub(crate) fn have_lapsed(state: &State, ids: &[LogIndex]) -> bool {
    let has_lapsed = |id: &LogIndex| {
        state.quota_grant(*id).is_some_and(|row| matches!(row.status, QuotaGrantStatus::Lapsed { .. }))
    };
    ids.iter().all(has_lapsed)
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searches {
    /// Rises with every change that may let a gang fit somewhere, or another be preempted for it.
    version: u64,
    /// The version at which a change was last not of single hosts.
    general: u64,
    /// The last change of each host.
    changed: BTreeMap<NodeId, u64>,
    /// The same by version.
    by_version: BTreeMap<u64, NodeId>,
    /// Rises when nobody was left without a search.
    round: u64,
    in_vain: BTreeMap<Claim, InVain>,
}

impl Searches {
    /// Whose request a job's is, as it is planned.
    pub(crate) fn claim(state: &State, spec: &JobSpec) -> Claim {
        let asks = asker(&state.policy().policy, &spec.tenant).clone();
        (spec.tier, asks, GangClass::of(spec))
    }

    /// The same of a job that other jobs keep away, or let start, because of its labels: what is found in vain for it may be
    /// there for its like.
    pub(crate) fn claim_by_labels(state: &State, (job, spec): (JobId, &JobSpec)) -> Claim {
        let (tier, asks, class) = Searches::claim(state, spec);
        let none = BTreeMap::new();
        let labels = state.metadata(job).map_or(&none, |metadata| &metadata.labels);
        (tier, asks, class.with_labels(labels))
    }

    /// What a decision changes for gangs that wait for capacity. `state` is the one behind it.
    pub(crate) fn note(&mut self, state: &State, decision: &Decision) {
        match decision {
            Decision::WorkersReported { node, updates, .. } => {
                if updates.iter().any(|(_, update)| matches!(update, RankUpdate::Exited(_))) {
                    self.change(*node);
                }
            }
            Decision::NodeLost { node, .. }
            | Decision::NodeCordonSet { node, .. }
            | Decision::NodeHealthChanged { node, .. }
            | Decision::ForeignLoadSet { node, .. }
            | Decision::NodeDrainSet { node, .. }
            | Decision::NodeQuarantineSet { node, .. }
            | Decision::NodeRepairSet { node, .. }
            | Decision::NodeOverridesSet { node, .. } => self.change(*node),
            // What they held was reported host by host; their quota was not.
            Decision::JobFinished { .. } | Decision::JobRequeued { .. } => {
                if state.has_quotas() {
                    self.change_all();
                }
            }
            Decision::QuotaGrantsEnded { ids } if have_lapsed(state, ids) => {}
            // These free no capacity, and a gang that was placed may not be stopped at once.
            Decision::JobsSubmitted { .. }
            | Decision::ArraysSubmitted { .. }
            | Decision::ArrayMembersCreated { .. }
            | Decision::ArrayReleased { .. }
            | Decision::ArrayMembersFailed { .. }
            | Decision::ArraysControlled { .. }
            | Decision::ArrayThrottleSet { .. }
            | Decision::TokenCreated { .. }
            | Decision::TokenRevoked { .. }
            | Decision::ExecOpened { .. }
            | Decision::QuotaRequested { .. }
            | Decision::PortForwardOpened { .. }
            | Decision::ArtifactsKept { .. }
            | Decision::ScheduleSet { .. }
            | Decision::ScheduleDeleted { .. }
            | Decision::ScheduleSuspensionSet { .. }
            | Decision::SchedulePlanned { .. }
            | Decision::ScheduleRan { .. }
            | Decision::JobContractsSet { .. }
            | Decision::JobMetadataSet { .. }
            | Decision::GangPlaced { .. }
            | Decision::CheckpointCommitted { .. }
            | Decision::TurnsChanged { .. }
            | Decision::FallbackOpened { .. }
            | Decision::DigestRecorded { .. }
            | Decision::HistoryPruned { .. }
            | Decision::JobCancelRequested { .. }
            | Decision::JobHoldSet { .. }
            | Decision::JobRequeueRequested { .. }
            | Decision::GangStopRequested { .. }
            | Decision::AttemptFailed { .. }
            | Decision::StragglerNoted { .. }
            | Decision::JobReleased { .. }
            | Decision::NotificationsDelivered { .. }
            | Decision::Rearranged { .. } => {}
            _ => self.change_all(),
        }
    }

    fn change(&mut self, node: NodeId) {
        self.version += 1;
        if let Some(before) = self.changed.insert(node, self.version) {
            self.by_version.remove(&before);
        }
        self.by_version.insert(self.version, node);
    }

    fn change_all(&mut self) {
        self.version += 1;
        self.general = self.version;
        self.changed.clear();
        self.by_version.clear();
    }

    /// What a search for capacity for a request has to look at.
    pub(crate) fn look(&self, claim: &Claim, spec: &JobSpec, now: LogTime) -> Look {
        let Some(known) = self.in_vain.get(claim) else { return Look::Everywhere };
        if self.general > known.version || now.since_ms(known.at) >= SEARCH_AGAIN_MS {
            return Look::Everywhere;
        }
        if !needs_one_host(spec) {
            return Look::Nowhere;
        }
        let since = self.by_version.range(known.version + 1..).map(|(_, node)| *node);
        let nodes: BTreeSet<NodeId> = since.take(CHANGED_MAX + 1).collect();
        match nodes.len() {
            0 => Look::Nowhere,
            count if count > CHANGED_MAX => Look::Everywhere,
            _ => Look::Only(nodes),
        }
    }

    /// A search ended in nothing.
    pub(crate) fn remember(&mut self, claim: Claim, look: &Look, now: LogTime) {
        if self.in_vain.len() >= CLAIMS_MAX && !self.in_vain.contains_key(&claim) {
            self.in_vain.clear();
        }
        let (version, round) = (self.version, self.round);
        let known = self.in_vain.entry(claim).or_insert(InVain { version, at: now, round });
        known.version = version;
        if *look == Look::Everywhere {
            (known.at, known.round) = (now, round);
        }
    }

    fn had_one(&self, claim: &Claim) -> bool {
        self.in_vain.get(claim).is_some_and(|known| known.round == self.round)
    }

    /// A pass is over: once nobody was left without a search, all may have another.
    pub(crate) fn end_pass(&mut self, tries: &Tries) {
        if !tries.left_out {
            self.round += 1;
        }
    }
}

/// Which part of a pass's searches one belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TryKind {
    First,
    Next,
}

impl TryKind {
    fn most(self) -> u32 {
        match self {
            TryKind::First => TRIES_FIRST_MAX,
            TryKind::Next => TRIES_NEXT_MAX,
        }
    }
}

/// Fruitless searches of one pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries {
    made: BTreeMap<TryKind, u32>,
    made_by: BTreeMap<(TryKind, Name), u32>,
    /// Whether somebody had none.
    left_out: bool,
}

impl Tries {
    /// Whether others are looked at for a request in this pass.
    pub(crate) fn may_try(&mut self, searches: &Searches, claim: &Claim) -> Option<TryKind> {
        let next = (!searches.had_one(claim)).then_some(TryKind::Next);
        let kinds = next.into_iter().chain([TryKind::First]);
        let found = kinds.into_iter().find(|kind| {
            let made = self.made.get(kind).copied().unwrap_or(0);
            let by_tenant = self.made_by.get(&(*kind, claim.1.clone())).copied().unwrap_or(0);
            made < kind.most() && by_tenant < kind.most() / TENANTS_WITH_TRIES
        });
        self.left_out |= found.is_none() && next.is_some();
        found
    }

    /// A search was in vain.
    pub(crate) fn count(&mut self, claim: &Claim, kind: TryKind) {
        *self.made.entry(kind).or_default() += 1;
        *self.made_by.entry((kind, claim.1.clone())).or_default() += 1;
    }
}
