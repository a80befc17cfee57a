//! The pending queue: whose gang is offered capacity next.
//!
//! Tenants meet in a tournament over their tree: at every level the child with the least weighted
//! dominant share goes first, and all keys on the way are computed again when a tenant was served. What a
//! tenant with others below it submits itself is one more child of it, with what it used itself. Tenants that
//! the policy does not name are one leaf together, so that another name gains nothing.
//!
//! Gangs for which their tenant has nominal quota left go before all that would borrow: a tenant that borrows
//! first has to give it back. Among them a tier is an order inside its tenant. Gangs that would borrow go by
//! tier first, for there a higher tier stops a lower one. Without quotas everybody borrows.
//!
//! The rank of a job, which comes from its nice value and from whether somebody has moved it to the front, decides which job its
//! tenant sends next. Whether the tenant goes before others is decided without it.
//!
//! Where the users of a tenant share what it gets, it sends the job of the user whose turn it is.

mod user_turns;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use muster_state::{GangClass, QueuePosition, State};
use muster_types::policy::{Policy, QueueOrder, WindowPurpose};
use muster_types::{JobId, JobSpec, LogTime, Name, PriorityTier};

use crate::estimate::waits_since;
use crate::headroom::{headroom, places_wanted};
use crate::tournament::{HeadKey, HeadTurn, Leaf, Tournament};
use user_turns::{Step, UserMarks, UserTurns, UsersKey};
pub use user_turns::{UserPlace, users_by_turn};

/// Requests that are stepped over in one lane of a pass, as a multiple of the depth: they cost little each,
/// and a queue can be very long.
const STEPS_PER_DEPTH: u32 = 4;

/// What a job costs that is passed over because of its user, in steps beyond its own: its user, what that has placed, and the
/// next of its class are looked up, and one user may have very many.
const STEPS_OF_USER: u64 = 8;

/// Jobs that are looked at for the one that keeps others from their turn.
const BLOCKERS_LOOKED_AT: u32 = 256;

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its tier.
    pub tier: PriorityTier,
    /// Whose job.
    pub tenant: Name,
    /// The job and its place in the order.
    pub turn: QueuePosition,
    /// What it asks for.
    pub class: GangClass,
    /// Whose job it is in the tenant, where the users of that share what it gets.
    pub user: Option<String>,
    /// Whether it has its turn because its tenant has nominal quota left for it: then it is offered no more
    /// than that.
    pub within_nominal: bool,
    /// Where it could go: requests with the same are counted together.
    places: u64,
}

/// Which gangs have their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    /// Those within nominal, of all tiers.
    WithinNominal,
    /// Of one tier, all that are left.
    Tier(PriorityTier),
    End,
}

/// The part of one leaf that is walked in order of turns: one tier, while those within nominal have their
/// turn or after that.
type Lane = (bool, PriorityTier, Leaf);

/// What requests that are found to wait are counted under: the stage, the tier, the tenant, the places, and whether
/// it is behind the front.
type Counter = (bool, PriorityTier, Option<Name>, u64, bool);

/// Where a pass has left off in lanes that are longer than one pass looks at: the next one goes on there,
/// behind the front, which every pass looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    lanes: BTreeMap<Lane, QueuePosition>,
    users: UserMarks,
}

/// Jobs of one tenant and tier that ask for the same.
type ClassKey = (PriorityTier, Name, GangClass);

/// The last job of a class that had a turn or was passed over, with the place of its submission group.
#[derive(Clone, Copy, Debug)]
struct ClassCursor {
    place: QueuePosition,
    job: JobId,
}

/// How far the walk along a lane has come.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// Stepped over since the depth was reached.
    skipped: u32,
    first_skipped: Option<QueuePosition>,
    /// Whether the front is done, and the walk goes on where an earlier pass left off.
    rotates: bool,
}

/// Pending jobs in the order in which they are offered capacity. Of jobs that ask for the same only the
/// first is offered, and the next steps up when that one was placed: a deep queue costs per request that
/// differs. The queue keeps its position between two calls, while the state goes on changing.
#[derive(Clone, Debug)]
pub struct Line {
    /// When the walk began.
    now: LogTime,
    fair_share: bool,
    stage: Stage,
    tournament: Tournament,
    /// The next of every tenant and tier that has its turn.
    heads: BTreeMap<Leaf, BTreeMap<HeadKey, GangClass>>,
    /// Of the tenants whose users share what they get, whose turn it is.
    users: BTreeMap<UsersKey, UserTurns>,
    /// Requests that have been found to wait: the rest of their class gets the same answer.
    waiting: BTreeSet<ClassKey>,
    /// Classes of which some job was passed over because its user has as many jobs placed as it may. The first of such a
    /// class stays where it is, so that those of other users are stepped to one by one.
    passed: BTreeMap<ClassKey, ClassCursor>,
    /// Requests of a tenant for the same places that may be found to wait in one pass; none for no limit.
    depth: Option<u32>,
    walks: BTreeMap<Lane, Walk>,
    /// Found to wait: at the front, and behind it.
    counts: BTreeMap<Counter, u32>,
    /// Where the pass before left off, and where this one does.
    left_off: Marks,
    leaves_off: Marks,
    /// Places stepped over since somebody asked.
    steps: u64,
    /// Whether some pending job had no turn.
    is_cut: bool,
    /// Tenants in strict order of which a job waits that nobody of them may go past: they have no other turn in this pass.
    blocked: BTreeSet<Name>,
    /// The same where that job has its turn in a later stage: they have no other turn in this one.
    blocked_in_stage: BTreeSet<Name>,
}

impl Line {
    /// The line from its front to its end.
    #[must_use]
    pub fn form(state: &State, now: LogTime) -> Line {
        Line::new(state, now, None, Marks::default())
    }

    /// The queue of one pass, in which `depth` different requests of a tenant for the same places are found
    /// to wait at the front, and as many more from where the previous pass left off. With a depth of one
    /// nobody passes the first that waits.
    #[must_use]
    pub fn of_pass(state: &State, now: LogTime, depth: u32, left_off: Marks) -> Line {
        Line::new(state, now, Some(depth.max(1)), left_off)
    }

    fn new(state: &State, now: LogTime, depth: Option<u32>, left_off: Marks) -> Line {
        let mut line = Line {
            now,
            fair_share: state.policy().policy.order.fair_share,
            stage: Stage::Begin,
            tournament: Tournament::new(now, state.capacity()),
            heads: BTreeMap::new(),
            users: BTreeMap::new(),
            waiting: BTreeSet::new(),
            passed: BTreeMap::new(),
            depth,
            walks: BTreeMap::new(),
            counts: BTreeMap::new(),
            left_off,
            leaves_off: Marks::default(),
            steps: 0,
            is_cut: false,
            blocked: BTreeSet::new(),
            blocked_in_stage: BTreeSet::new(),
        };
        line.next_stage(state);
        line
    }

    /// Where the next pass goes on, once this one is over.
    #[must_use]
    pub fn into_marks(self) -> Marks {
        self.leaves_off
    }

    /// Whether somebody had no turn because the pass was deep enough without.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Places in the line that were stepped over since the last call: work to be paid for.
    pub fn take_steps(&mut self) -> u64 {
        core::mem::take(&mut self.steps)
    }
}

impl Line {
    /// Takes the first out of the line.
    pub fn take_next(&mut self, state: &State) -> Option<Candidate> {
        self.take_within(state, u64::MAX)
    }

    /// The same where no more than `steps_max` requests are stepped over since the last [`Line::take_steps`]: none, and the
    /// walk is cut, once they are used up.
    pub fn take_within(&mut self, state: &State, steps_max: u64) -> Option<Candidate> {
        let next = self.take_some(state, steps_max);
        self.is_cut |= next.is_none() && !self.is_over();
        next
    }

    /// The same for a walk that the next call goes on with: none once the steps are used up, and it is not cut by that.
    pub fn take_some(&mut self, state: &State, steps_max: u64) -> Option<Candidate> {
        loop {
            let Some(leaf) = self.tournament.first() else {
                if self.stage == Stage::End {
                    return None;
                }
                self.next_stage(state);
                continue;
            };
            if self.steps >= steps_max {
                return None;
            }
            let heads = self.heads.get_mut(&leaf).expect("a leaf in the tournament has heads");
            let ((Reverse(tier), HeadTurn(turn), tenant), class) =
                heads.pop_first().expect("it has one at least");
            let user = Line::sharing_user(state, &tenant, turn.job);
            let mut candidate =
                Candidate { tier, tenant, turn, class, user, within_nominal: false, places: 0 };
            if self.has_turn(state, &mut candidate, &leaf) {
                return Some(candidate);
            }
            self.steps += 1;
        }
    }

    /// Whether nobody is left who has a turn.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::End
    }

    /// Whether a head that was taken out has its turn; if not, the next one has stepped up.
    fn has_turn(&mut self, state: &State, candidate: &mut Candidate, leaf: &Leaf) -> bool {
        let is_waiting = self.waiting.contains(&self.request_of(state, candidate));
        // It may have been cancelled or placed since it stepped up.
        let in_line = state.job(candidate.turn.job).is_some_and(|row| row.is_in_line());
        let spec = state.spec(candidate.turn.job).filter(|_| in_line && !is_waiting);
        let is_within = self.stage == Stage::WithinNominal;
        let due =
            |spec: &&alloc::sync::Arc<JobSpec>| !is_within || headroom(state, spec).is_offered_nominal();
        if is_within && self.blocks(state, candidate) && spec.as_ref().is_some_and(|spec| !due(spec)) {
            self.block_stage(state, candidate);
        }
        let Some(spec) = spec.filter(due) else {
            let lane = (is_within, candidate.tier, leaf.clone());
            let walk = self.walks.entry(lane.clone()).or_default();
            // Steps of those who are not due are bounded like all others.
            walk.skipped += u32::from(is_within);
            if self.depth.is_some_and(|depth| walk.skipped > depth.saturating_mul(STEPS_PER_DEPTH)) {
                walk.first_skipped.get_or_insert(candidate.turn);
                self.note_skipped(candidate);
                self.turn_the_lane(state, &lane, candidate);
            } else {
                self.step_over(state, candidate);
            }
            return false;
        };
        let job = candidate.turn.job;
        if is_barred(state, job, self.now) {
            self.pass_over(state, candidate);
            return false;
        }
        candidate.within_nominal = is_within;
        candidate.places = if self.depth.is_some_and(|depth| depth > 1) { places_wanted(spec) } else { 0 };
        self.is_deep_enough(state, candidate, leaf)
    }

    /// The candidate's user has as many jobs placed as it may, or nothing left of a budget, or the candidate itself asks for more
    /// than a limit allows: those behind it that ask for the same do not wait for it.
    fn pass_over(&mut self, state: &State, candidate: &Candidate) {
        let job = candidate.turn.job;
        let is_user = || state.is_user_at_limit(job) || state.spent_user_budget(job, self.now).is_some();
        if candidate.user.is_some() && is_user() {
            // Those of the lane that ask for the same are all of this user.
            self.steps += STEPS_OF_USER;
        } else {
            self.note_passed(candidate);
        }
        self.step_over(state, candidate);
    }

    fn note_passed(&mut self, candidate: &Candidate) {
        self.steps += STEPS_OF_USER;
        if let Some(user) = &candidate.user {
            return self.note_passed_of_user(candidate, user);
        }
        let alike = (candidate.tier, candidate.tenant.clone(), candidate.class);
        let last = ClassCursor { place: candidate.turn, job: candidate.turn.job };
        self.passed.entry(alike).or_insert(last);
    }

    /// Where others of a class were passed over, the next of it joins the pending queue behind the candidate.
    fn join_alike(&mut self, state: &State, leaf: &Leaf, candidate: &Candidate) {
        if self.passed.is_empty() || self.is_blocked(&candidate.tenant) {
            return;
        }
        let alike = (candidate.tier, candidate.tenant.clone(), candidate.class);
        let is_waiting = self.waiting.contains(&self.request_of(state, candidate));
        let Some(last) = self.passed.get_mut(&alike).filter(|_| !is_waiting) else { return };
        let of = (candidate.tier, &candidate.tenant, candidate.class);
        let Some((place, job)) = state.next_alike(of, last.place, last.job) else { return };
        *last = ClassCursor { place, job };
        let turn = QueuePosition { job, ..place };
        let heads = self.heads.entry(leaf.clone()).or_default();
        heads.insert((Reverse(candidate.tier), HeadTurn(turn), candidate.tenant.clone()), candidate.class);
    }

    /// The candidate was not served after all: it is the first again.
    pub fn put_back(&mut self, state: &State, candidate: Candidate) {
        let leaf = self.leaf_of(state, &candidate.tenant);
        let key = (Reverse(candidate.tier), HeadTurn(candidate.turn), candidate.tenant);
        self.heads.entry(leaf.clone()).or_default().insert(key, candidate.class);
        self.enter(state, &leaf);
    }

    /// The candidate was placed: the next of its tenant steps up, with the shares that all above have now.
    pub fn placed(&mut self, state: &State, candidate: &Candidate) {
        let leaf = self.leaf_of(state, &candidate.tenant);
        self.tournament.served(state, &leaf);
        if let Some(leaf) = self.step(state, candidate, Step::Served) {
            self.enter(state, &leaf);
        }
    }

    /// The candidate's user has no accelerator time left by now: those of other users that ask for the same do not wait for it.
    pub fn user_at_limit(&mut self, state: &State, candidate: &Candidate) {
        if candidate.user.is_none() {
            self.note_passed(candidate);
        }
        self.step_up(state, candidate);
    }

    /// The candidate waits, and so does everyone of its tenant who asks for the same.
    pub fn waits(&mut self, state: &State, candidate: &Candidate) {
        let request = self.request_of(state, candidate);
        self.waiting.insert(request);
        self.count(state, candidate);
        if self.blocks(state, candidate) {
            self.blocked.insert(candidate.tenant.clone());
            self.drop_heads_of(state, &candidate.tenant);
        }
        self.step_up(state, candidate);
    }

    /// The candidate may not start whatever is free, and so may nobody of its tenant who asks for the same. In strict order
    /// others pass it.
    pub fn passed_over(&mut self, state: &State, candidate: &Candidate) {
        let request = self.request_of(state, candidate);
        self.waiting.insert(request);
        if self.depth != Some(1) {
            self.count(state, candidate);
        }
        self.step_up(state, candidate);
    }

    /// The candidate waits, and it would be otherwise with other labels: those of its tenant that ask for the same do not wait
    /// for it. In strict order everybody does, unless it may not start whatever is free.
    pub fn waits_alone(&mut self, state: &State, candidate: &Candidate, whatever_is_free: bool) {
        if !whatever_is_free && (self.depth == Some(1) || self.blocks(state, candidate)) {
            return self.waits(state, candidate);
        }
        if self.depth != Some(1) {
            self.count(state, candidate);
        }
        self.note_passed(candidate);
        self.step_up(state, candidate);
    }

    /// The candidate's tenant has as many jobs placed as it may, or no accelerator time left: it has no other turn in this tier. Tenants in whose common
    /// name it asks for capacity do not wait for it.
    pub fn at_limit(&mut self, state: &State, candidate: &Candidate) {
        // In strict order nobody passes it.
        if self.depth == Some(1) {
            self.count(state, candidate);
        }
        let leaf = self.leaf_of(state, &candidate.tenant);
        if let Some(leaf) = self.go_on(state, candidate, leaf) {
            self.enter(state, &leaf);
        }
    }

    /// The candidate does not fit within nominal: it has another turn among those that borrow.
    pub fn borrows(&mut self, state: &State, candidate: &Candidate) {
        // In strict order its turn is still to come.
        if self.depth != Some(1) {
            self.count(state, candidate);
        }
        self.block_stage(state, candidate);
        self.step_up(state, candidate);
    }

    /// Whether a gang in its place would have had its turn before the candidate. `user` is whose it is, where the users of its
    /// tenant share what that gets: among those, it has its turn no later than its like of any user.
    #[must_use]
    pub fn is_behind(
        candidate: &Candidate,
        (spec, user): (&JobSpec, Option<&str>),
        turn: QueuePosition,
        within_nominal: bool,
    ) -> bool {
        let of_tenant = candidate.tenant == spec.tenant;
        if let Some(user) = user.filter(|_| of_tenant && candidate.within_nominal == within_nominal) {
            let is_like = candidate.class == GangClass::of(spec);
            let is_later = candidate.user.as_deref() == Some(user) && candidate.turn >= turn;
            return candidate.tier < spec.tier || (candidate.tier == spec.tier && (is_like || is_later));
        }
        match (candidate.within_nominal, within_nominal) {
            (true, false) => false,
            (false, true) => true,
            (true, true) => {
                of_tenant && (Reverse(candidate.tier), candidate.turn) >= (Reverse(spec.tier), turn)
            }
            (false, false) => {
                candidate.tier < spec.tier
                    || (of_tenant && candidate.tier == spec.tier && candidate.turn >= turn)
            }
        }
    }
}

impl Line {
    fn next_stage(&mut self, state: &State) {
        let tiers = PriorityTier::ALL;
        self.stage = match self.stage {
            Stage::Begin if state.has_quotas() => Stage::WithinNominal,
            Stage::Begin | Stage::WithinNominal => Stage::Tier(tiers[tiers.len() - 1]),
            Stage::Tier(tier) => {
                tiers.into_iter().rev().find(|lower| *lower < tier).map_or(Stage::End, Stage::Tier)
            }
            Stage::End => Stage::End,
        };
        self.heads.clear();
        self.passed.clear();
        self.walks.clear();
        self.users.clear();
        self.blocked_in_stage.clear();
        let served: Vec<PriorityTier> = match self.stage {
            Stage::WithinNominal => tiers.to_vec(),
            Stage::Tier(tier) => alloc::vec![tier],
            Stage::Begin | Stage::End => Vec::new(),
        };
        for tier in served {
            let tenants: Vec<Name> = state.tenants_in_line(tier).map(|(name, _)| name.clone()).collect();
            for tenant in tenants {
                let leaf = self.leaf_of(state, &tenant);
                if !self.seat_users(state, &leaf, tier, &tenant) {
                    self.join(state, &leaf, tier, tenant, None);
                }
            }
        }
        self.heads.retain(|_, heads| !heads.is_empty());
        let first = |(leaf, heads): (&'_ Leaf, &'_ BTreeMap<HeadKey, GangClass>)| {
            heads.first_key_value().map(|(key, _)| (leaf.clone(), key.clone()))
        };
        let leaves: Vec<(Leaf, HeadKey)> = self.heads.iter().filter_map(first).collect();
        self.tournament.seat(state, leaves.iter().map(|(leaf, head)| (leaf, head)));
    }

    /// The next of the candidate's tenant and tier steps up.
    fn step_up(&mut self, state: &State, candidate: &Candidate) {
        if let Some(leaf) = self.step(state, candidate, Step::Waits) {
            self.enter(state, &leaf);
        }
    }

    /// The same for one that had no turn: while its leaf has others, the leaf stays where it is.
    fn step_over(&mut self, state: &State, candidate: &Candidate) {
        if let Some(leaf) = self.step(state, candidate, Step::Waits)
            && self.heads.get(&leaf).is_none_or(BTreeMap::is_empty)
        {
            self.enter(state, &leaf);
        }
    }

    /// The next joins the leaf; the leaf, unless it is in its place already.
    fn step(&mut self, state: &State, candidate: &Candidate, step: Step) -> Option<Leaf> {
        let leaf = self.leaf_of(state, &candidate.tenant);
        if let Some(user) = &candidate.user {
            self.step_user(state, &leaf, (candidate, user.as_str()), step);
            return self.go_on(state, candidate, leaf);
        }
        self.join(state, &leaf, candidate.tier, candidate.tenant.clone(), Some(candidate.turn));
        self.join_alike(state, &leaf, candidate);
        self.go_on(state, candidate, leaf)
    }

    /// The leaf of a candidate that had its turn, unless nothing of its lane is left and it goes on elsewhere.
    fn go_on(&mut self, state: &State, candidate: &Candidate, leaf: Leaf) -> Option<Leaf> {
        let lane = (self.stage == Stage::WithinNominal, candidate.tier, leaf);
        let walk = self.walks.get(&lane).copied().unwrap_or_default();
        if walk.first_skipped.is_some() && !walk.rotates && !self.has_heads(&lane) {
            self.turn_the_lane(state, &lane, candidate);
            return None;
        }
        Some(lane.2)
    }

    /// The tenant's next behind a turn joins the line.
    fn join(
        &mut self,
        state: &State,
        leaf: &Leaf,
        tier: PriorityTier,
        tenant: Name,
        mut behind: Option<QueuePosition>,
    ) {
        if self.is_blocked(&tenant) {
            return;
        }
        let asks = asker(&state.policy().policy, &tenant).clone();
        while let Some((turn, class)) = state.head_behind(tier, &tenant, behind) {
            if self.waiting.contains(&(tier, asks.clone(), class)) {
                behind = Some(turn);
                continue;
            }
            let heads = match self.heads.get_mut(leaf) {
                Some(heads) => heads,
                None => self.heads.entry(leaf.clone()).or_default(),
            };
            heads.insert((Reverse(tier), HeadTurn(turn), tenant), class);
            return;
        }
    }

    /// The leaf goes where its head belongs now.
    fn enter(&mut self, state: &State, leaf: &Leaf) {
        let head = self.heads.get(leaf).and_then(|heads| heads.first_key_value()).map(|(key, _)| key.clone());
        self.tournament.change(state, leaf, head.as_ref());
    }

    fn leaf_of(&self, state: &State, tenant: &Name) -> Leaf {
        self.fair_share.then(|| account(&state.policy().policy, tenant).clone())
    }

    fn request_of(&self, state: &State, candidate: &Candidate) -> ClassKey {
        let asks = asker(&state.policy().policy, &candidate.tenant);
        (candidate.tier, asks.clone(), candidate.class)
    }
}

/// Tenants whose jobs do not go past one another.
impl Line {
    /// Whether nobody of its tenant may go past the candidate, should it wait. A queue that is only looked at is walked to its end.
    fn blocks(&self, state: &State, candidate: &Candidate) -> bool {
        let has_strict = self.depth.is_some() && state.policy().policy.has_strict_order();
        has_strict && blocks_until(state, candidate.turn.job).is_some_and(|until| self.now < until)
    }

    /// The candidate has its turn in a later stage: in strict order nobody of its tenant has one before it, unless it may not
    /// start whatever is free.
    fn block_stage(&mut self, state: &State, candidate: &Candidate) {
        let job = candidate.turn.job;
        if !self.blocks(state, candidate) || is_barred(state, job, self.now) {
            return;
        }
        self.blocked_in_stage.insert(candidate.tenant.clone());
        self.drop_heads_of(state, &candidate.tenant);
    }

    fn is_blocked(&self, tenant: &Name) -> bool {
        self.blocked.contains(tenant) || self.blocked_in_stage.contains(tenant)
    }

    fn drop_heads_of(&mut self, state: &State, tenant: &Name) {
        let leaf = self.leaf_of(state, tenant);
        if let Some(heads) = self.heads.get_mut(&leaf) {
            heads.retain(|(.., of), _| of != tenant);
        }
    }
}

/// Whether a job may not start whatever is free, because of a limit of its user or of what it asks for.
fn is_barred(state: &State, job: JobId, now: LogTime) -> bool {
    state.is_user_at_limit(job) || state.is_held_by_limit(job) || state.spent_user_budget(job, now).is_some()
}

/// Until when a job blocks those of its tenant behind it while it waits for capacity; none where its tenant is not in strict order.
fn blocks_until(state: &State, job: JobId) -> Option<LogTime> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    let policy = &state.policy().policy;
    if policy.queue_order(&spec.tenant) != QueueOrder::Strict {
        return None;
    }
    Some(waits_since(spec, row.submitted_at).plus_ms(policy.block_for_ms(&spec.tenant)))
}

/// The job that keeps another of its tenant from its turn in strict order, and until when at most; none where nobody does. No more
/// than the first jobs of the tenant are looked at.
#[must_use]
pub fn blocked_by(state: &State, job: JobId, now: LogTime) -> Option<(JobId, LogTime)> {
    let (row, spec) = (state.job(job)?, state.spec(job)?);
    if state.policy().policy.queue_order(&spec.tenant) != QueueOrder::Strict {
        return None;
    }
    let own = QueuePosition { rank: spec.rank(), turn: row.estimate.turn, job };
    let mut looked_at = 0;
    for tier in PriorityTier::ALL.into_iter().rev().filter(|tier| *tier >= spec.tier) {
        let mut behind = None;
        while let Some((turn, _)) = state.head_behind(tier, &spec.tenant, behind) {
            if turn.job == job || (tier == spec.tier && turn >= own) || looked_at == BLOCKERS_LOOKED_AT {
                break;
            }
            looked_at += 1;
            behind = Some(turn);
            let until = blocks_until(state, turn.job).filter(|until| now < *until);
            if let Some(until) = until.filter(|_| !is_barred(state, turn.job, now)) {
                return Some((turn.job, until));
            }
        }
    }
    None
}

/// How deep a pass goes.
impl Line {
    /// Whether the candidate has its turn in this pass, as deep as that goes; if not, the next one has stepped
    /// up.
    fn is_deep_enough(&mut self, state: &State, candidate: &Candidate, leaf: &Leaf) -> bool {
        let Some(depth) = self.depth else { return true };
        if self.counts.get(&self.counter(state, candidate, false)).is_none_or(|count| *count < depth) {
            return true;
        }
        let lane = (self.stage == Stage::WithinNominal, candidate.tier, leaf.clone());
        let walk = self.walks.entry(lane.clone()).or_default();
        self.is_cut = true;
        if walk.rotates {
            if self.counts.get(&self.counter(state, candidate, true)).is_none_or(|count| *count < depth) {
                return true;
            }
            self.leave_off(state, &lane, candidate);
            return false;
        }
        if depth == 1 {
            // Strict order: nobody passes.
            self.leave(state, &lane);
            return false;
        }
        walk.first_skipped.get_or_insert(candidate.turn);
        walk.skipped += 1;
        let is_done = walk.skipped > depth.saturating_mul(STEPS_PER_DEPTH);
        self.note_skipped(candidate);
        if is_done {
            self.turn_the_lane(state, &lane, candidate);
        } else {
            self.step_over(state, candidate);
        }
        false
    }

    /// The front of a lane is done: it goes on where the pass before left off, else with the first that was
    /// stepped over. Who has had a turn in this pass has no other.
    fn turn_the_lane(&mut self, state: &State, lane: &Lane, candidate: &Candidate) {
        let walk = self.walks.entry(lane.clone()).or_default();
        if core::mem::replace(&mut walk.rotates, true) {
            // It has come round to where nothing is left to skip.
            self.leave_off(state, lane, candidate);
            return;
        }
        walk.skipped = 0;
        let first = walk.first_skipped.unwrap_or(candidate.turn);
        let left_off = self.left_off.lanes.get(lane).copied().filter(|turn| *turn > first);
        for (attempt, from) in left_off.into_iter().chain([first]).enumerate() {
            self.drop_heads_but_passed(lane);
            let of_leaf = |name: &&Name| self.leaf_of(state, name) == lane.2;
            let tenants: Vec<Name> =
                state.tenants_in_line(lane.1).map(|(name, _)| name).filter(of_leaf).cloned().collect();
            for tenant in tenants {
                if !self.rotate_users(state, (&lane.2, lane.1, &tenant), attempt == 0) {
                    self.join(state, &lane.2, lane.1, tenant, before(from));
                }
            }
            if self.has_heads(lane) {
                break;
            }
        }
        self.enter(state, &lane.2);
    }

    /// Nobody else of the lane has a turn in this pass, and the next one goes on here.
    fn leave_off(&mut self, state: &State, lane: &Lane, candidate: &Candidate) {
        self.leaves_off.lanes.insert(lane.clone(), candidate.turn);
        self.mark_users(state, lane, candidate);
        self.leave(state, lane);
    }

    /// Nobody else of the lane has a turn in this pass.
    fn leave(&mut self, state: &State, lane: &Lane) {
        self.drop_heads(lane);
        self.enter(state, &lane.2);
    }

    fn drop_heads(&mut self, (_, tier, leaf): &Lane) {
        if let Some(heads) = self.heads.get_mut(leaf) {
            heads.retain(|(of, ..), _| of.0 != *tier);
        }
    }

    /// The same without those behind others that were passed over: their class begins before the place where the walk goes on.
    fn drop_heads_but_passed(&mut self, (_, tier, leaf): &Lane) {
        let passed = &self.passed;
        if let Some(heads) = self.heads.get_mut(leaf) {
            heads.retain(|(of, _, tenant), class| {
                of.0 != *tier || passed.contains_key(&(of.0, tenant.clone(), *class))
            });
        }
    }

    fn has_heads(&self, (_, tier, leaf): &Lane) -> bool {
        self.heads.get(leaf).is_some_and(|heads| heads.keys().any(|(of, ..)| of.0 == *tier))
    }

    fn count(&mut self, state: &State, candidate: &Candidate) {
        let Some(depth) = self.depth else { return };
        let front = self.counter(state, candidate, false);
        let count = self.counts.entry(front).or_default();
        if *count < depth {
            *count += 1;
        } else {
            let behind = self.counter(state, candidate, true);
            *self.counts.entry(behind).or_default() += 1;
        }
    }

    /// What a candidate is counted under; with a depth of one everybody under the same.
    fn counter(&self, state: &State, candidate: &Candidate, behind: bool) -> Counter {
        if self.depth == Some(1) {
            return (false, PriorityTier::ALL[0], None, 0, false);
        }
        let asks = asker(&state.policy().policy, &candidate.tenant).clone();
        (self.stage == Stage::WithinNominal, candidate.tier, Some(asks), candidate.places, behind)
    }
}

/// In whose name a tenant's work is ordered and counted: its own if the policy names it, else that of all it does
/// not name.
fn account<'a>(policy: &'a Policy, tenant: &'a Name) -> &'a Name {
    if policy.tenants.contains_key(tenant) { tenant } else { policy.parent(tenant).unwrap_or(tenant) }
}

/// In whose name a tenant asks for capacity: its own if the policy names it or sets capacity aside for it, else that of
/// all tenants that the policy does not name.
#[must_use]
pub fn asker<'a>(policy: &'a Policy, tenant: &'a Name) -> &'a Name {
    let is_own = |purpose: &WindowPurpose| matches!(purpose, WindowPurpose::ReservedFor { tenant: owner } if owner == tenant);
    if policy.windows.iter().any(|window| is_own(&window.purpose)) { tenant } else { account(policy, tenant) }
}

/// The last turn before another; none when it is the first of all.
fn before(turn: QueuePosition) -> Option<QueuePosition> {
    match turn.job.0.checked_sub(1) {
        Some(job) => Some(QueuePosition { job: JobId(job), ..turn }),
        None => Some(QueuePosition { turn: turn.turn.before()?, job: JobId(u64::MAX), ..turn }),
    }
}
