//! Applied state plus the leader's own records in flight.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use muster_journal::{Decision, EncodedDecisions, FORMAT_MAX, RankUpdate, Round};
use muster_planner::Valuation;
use muster_policy::Refresh;
use muster_state::{Applied, CheckedDecision, Phase, RequestAnswer, State};
use muster_types::{
    AdmissionMode, ArrayId, ClusterId, Control, Dependency, JobId, Leadership, LogIndex, LogTime, Name,
    NodeId, Parameters, PriorityTier, QueueKey, Refusal, Requester,
};

use crate::future::KeptReservations;
use crate::memory::booking_looks::BookingLooks;
use crate::memory::pass::UnfinishedPass;
use crate::memory::ready_members::ReadyMembers;
use crate::memory::requests::Requests;
use crate::memory::rotation::PassMemory;
use crate::memory::searches::{Searches, have_lapsed};
use crate::memory::starts::Starts;
use crate::memory::sweep::Sweep;
use crate::round::{EncodedRound, sealed};
use crate::rules::images::HeldImages;
use crate::rules::planned::Unheard;

/// What a leader brings along that is not in the log: what the first one of a new cluster writes, and what
/// its replica knows of the cluster's generation and of formats.
#[derive(Clone, Copy, Debug)]
pub struct BootstrapConfig {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// The generation that the replica's data directory belongs to. Above the log's while the cluster is being
    /// recovered.
    pub generation: u32,
    /// The parameters of a new cluster.
    pub parameters: Parameters,
    /// The highest record format that this binary knows.
    pub format_max: u16,
    /// The record format that a new cluster is put into at once, for its founders are of one release; none
    /// leaves it at the lowest until it is raised.
    pub new_cluster_format: Option<u16>,
    /// What is asked of nodes that register while no operator has set it.
    pub admission: AdmissionMode,
}

impl BootstrapConfig {
    /// A cluster in its first generation, led by a binary that is not held back.
    #[must_use]
    pub const fn new(cluster: ClusterId, parameters: Parameters) -> BootstrapConfig {
        BootstrapConfig {
            cluster,
            generation: 1,
            parameters,
            format_max: FORMAT_MAX,
            new_cluster_format: None,
            admission: AdmissionMode::Open,
        }
    }
}

/// How long log time has followed the leader's monotonic clock without a step.
///
/// The wall clock of one replica can be wrong by days. What is forgotten by age is forgotten for good, so ages are
/// believed only after they have been borne out by a monotonic clock for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// Log time before the last step: that of the applied state where the leadership began.
    pub since: LogTime,
    /// Milliseconds since then on the monotonic clock.
    pub for_ms: u64,
}

impl Steady {
    /// How long it takes until ages are believed: as long as a request id is remembered whatever the pressure.
    pub const LEAST_MS: u64 = Parameters::REQUEST_RETENTION_MIN_MS;
}

/// When a node opened sessions at this leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTimes {
    /// The first.
    pub(crate) first: LogTime,
    /// The last: what its agent had to say before, it repeats from then on.
    pub(crate) last: LogTime,
}

/// The state the leader decides on.
///
/// **Invariant:** it is the state that every replica will have once the rounds taken from it are
/// applied; nothing else may be proposed under this leadership.
#[derive(Clone, Debug)]
pub struct Speculation {
    state: State,
    leadership: Leadership,
    bootstrap: BootstrapConfig,
    now: LogTime,
    /// Of the round being made: what was in force where it began.
    format: u16,
    first_index: LogIndex,
    basis_index: LogIndex,
    decisions: Vec<Decision>,
    /// The bytes of these decisions.
    encoded: EncodedDecisions,
    last_digest: LogIndex,
    wants_schedule: bool,
    /// When the last pass over the queue began.
    last_pass: LogTime,
    /// A pass over the queue that ran out of budget, to be gone on with.
    pass: Option<UnfinishedPass>,
    /// Searches for gangs to preempt.
    searches: Searches,
    /// Reservations as the last pass over the queue left them.
    kept_reservations: KeptReservations,
    /// What passes leave for each other.
    memory: PassMemory,
    /// Jobs whose next step is still to be decided, because the round was full.
    unsettled: BTreeSet<JobId>,
    /// The same of arrays.
    unsettled_arrays: BTreeSet<ArrayId>,
    /// Arrays that may have too few members waiting.
    unfilled: BTreeSet<ArrayId>,
    /// Members of arrays that are ready before their turn.
    ready_members: ReadyMembers,
    /// Whether arrays have too few members waiting because the state holds as many jobs as it may.
    lacks_room: bool,
    /// Where renewing the turns of waiting jobs goes on; none when they are what the policy makes them.
    stale_turns: Option<JobId>,
    /// Which pending submission groups to look at again, and when.
    refresh: Refresh,
    /// What free devices are worth, by what was asked for so far.
    valuation: RefCell<Valuation>,
    /// How far the hosts of open windows have been looked at.
    sweep: Sweep,
    /// The last job whose fallback a tick has looked at, where it could not look at all of them.
    fallback_place: Option<(LogTime, JobId)>,
    /// The earliest fallback that a tick looked at before it was due.
    fallback_due: Option<LogTime>,
    /// When bookings were last looked at.
    booking_looks: BookingLooks,
    /// How far jobs whose time has come have been looked at.
    starts: Starts,
    unheard: Unheard,
    /// Which hosts hold which images, as their agents say.
    images: Arc<HeldImages>,
    /// How long log time has been steady; none where log time is the only clock.
    steady: Option<Steady>,
    /// Nodes of which a record of this leadership says that they opened a session.
    heard: BTreeMap<NodeId, SessionTimes>,
    /// How many requests each tenant has made of late.
    requests: Requests,
}

impl Speculation {
    /// Begins a leadership on the applied state. A new cluster begins in the lowest format, whatever its founder
    /// knows: that the other replicas know more is only known once they have reported it, and then
    /// `FormatRaised` is one record.
    /// The caller has passed the barrier: everything of
    /// earlier leaderships is applied. The first round opens with the leadership, and with the
    /// cluster itself when there is none. A leadership that has begun already (a leader restarted
    /// without an election) goes on without a second beginning.
    ///
    /// # Panics
    /// When the state has seen a newer leadership: then the barrier cannot have been passed.
    #[must_use]
    pub fn begin(
        state: State,
        leadership: Leadership,
        now: LogTime,
        bootstrap: BootstrapConfig,
    ) -> Speculation {
        let mut speculation = Speculation {
            leadership,
            bootstrap,
            now: now.max(state.log_time()),
            format: state.format(),
            first_index: state.log_index().next(),
            basis_index: state.log_index(),
            decisions: Vec::new(),
            encoded: EncodedDecisions::default(),
            last_digest: LogIndex::ZERO,
            wants_schedule: true,
            last_pass: LogTime(0),
            pass: None,
            searches: Searches::default(),
            kept_reservations: KeptReservations::default(),
            memory: PassMemory::default(),
            unsettled: BTreeSet::new(),
            unsettled_arrays: BTreeSet::new(),
            unfilled: BTreeSet::new(),
            ready_members: ReadyMembers::default(),
            lacks_room: false,
            stale_turns: None,
            refresh: Refresh::of(&state, now.max(state.log_time())),
            valuation: RefCell::default(),
            sweep: Sweep::default(),
            fallback_place: None,
            fallback_due: None,
            booking_looks: BookingLooks::default(),
            starts: Starts::default(),
            unheard: Unheard::default(),
            images: Arc::default(),
            steady: None,
            heard: BTreeMap::new(),
            requests: Requests::default(),
            state,
        };
        if speculation.state.leadership() != Some(leadership) {
            speculation.push(Decision::LeaderStarted);
        }
        if speculation.state.cluster().is_none() {
            speculation.push(Decision::ClusterCreated {
                cluster: bootstrap.cluster,
                generation: bootstrap.generation,
                parameters: bootstrap.parameters,
            });
            // A founder of an older release stops right behind this record, before anything was entrusted to it.
            if let Some(format) =
                bootstrap.new_cluster_format.filter(|format| *format > speculation.state.format())
            {
                speculation.push(Decision::FormatRaised { by: Requester::default(), format });
            }
        }
        speculation.push_digest();
        speculation
    }

    /// The speculative state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The leadership this speculates under.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// Whether the cluster is being recovered: this replica's data directory is of a generation that the log has not
    /// begun. Nothing is decided but [`Command::Recover`](crate::Command::Recover), which is due once every
    /// lease of the previous generation has run out.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.bootstrap.generation > self.state.generation()
    }

    /// The generation of this replica's data directory.
    pub(crate) fn generation(&self) -> u32 {
        self.bootstrap.generation
    }

    /// What is asked of nodes that register while no operator has set it.
    pub(crate) fn usual_admission(&self) -> AdmissionMode {
        self.bootstrap.admission
    }

    /// The highest format that this binary knows.
    pub(crate) fn format_max(&self) -> u16 {
        self.bootstrap.format_max
    }

    /// Whether the round being made can say this. A format raised in a round is that of the next.
    pub(crate) fn can_say(&self, decision: &Decision) -> bool {
        decision.since_format() <= self.format
    }

    /// Log time of the round being made.
    #[must_use]
    pub fn now(&self) -> LogTime {
        self.now
    }

    /// Continues with the applied state in place of the one it has, where both are the same: then their rows are in
    /// memory once. Rows that were changed under this leadership are there twice otherwise. Returns whether it does.
    pub fn adopt(&mut self, applied: &State) -> bool {
        let is_same = self.decisions.is_empty()
            && applied.log_index() == self.state.log_index()
            && applied.leadership() == self.state.leadership()
            && applied.rows_digest() == self.state.rows_digest();
        if is_same {
            self.state = applied.clone();
        }
        is_same
    }

    /// A node opens its session at this leader; whether that was not said before under this leadership.
    pub(crate) fn hears(&mut self, node: NodeId) -> bool {
        let now = self.now;
        match self.heard.entry(node) {
            Entry::Vacant(place) => {
                place.insert(SessionTimes { first: now, last: now });
                true
            }
            Entry::Occupied(mut place) => {
                place.get_mut().last = now;
                false
            }
        }
    }

    /// When a node opened sessions at this leader; none where it has yet to open one.
    pub(crate) fn sessions_of(&self, node: NodeId) -> Option<SessionTimes> {
        self.heard.get(&node).copied()
    }

    /// Moves time on; never back. Only between rounds: one round has one time.
    pub fn set_now(&mut self, now: LogTime) {
        if self.decisions.is_empty() {
            self.now = self.now.max(now);
        }
    }

    /// Sets how long log time has followed a monotonic clock without a step. A leader that never calls this (one under
    /// a virtual clock) has its log time believed at once.
    pub fn set_steady(&mut self, steady: Steady) {
        self.steady = Some(steady);
    }

    /// Whether something may be forgotten because of its age alone.
    pub(crate) fn believes_ages(&self) -> bool {
        self.steady.is_none_or(|steady| steady.for_ms >= Steady::LEAST_MS)
    }

    /// The latest time that is borne out by a monotonic clock. Never after [`Speculation::now`].
    pub(crate) fn proved_now(&self) -> LogTime {
        match self.steady.filter(|_| !self.believes_ages()) {
            Some(steady) => self.now.min(steady.since.plus_ms(steady.for_ms)),
            None => self.now,
        }
    }

    /// Adds a decision to the round being made; its position.
    ///
    /// # Panics
    /// When the guard refuses it: the decider proposes only what it has checked, so that is a bug,
    /// and it must stop this leader rather than reach the log.
    pub fn push(&mut self, decision: Decision) -> LogIndex {
        assert!(self.can_say(&decision), "{} is not said in format {}", decision.name(), self.format);
        let index = self.state.log_index().next();
        let applied = self.state.apply(self.leadership, index, self.now, &decision);
        self.take_in(index, decision, &applied)
    }

    /// The same for a decision that [`State::check_next`] let through, so that the guard need not look a second time.
    ///
    /// # Panics
    /// Like [`Speculation::push`].
    pub fn push_checked(&mut self, checked: CheckedDecision) -> LogIndex {
        let decision = checked.decision();
        assert!(self.can_say(decision), "{} is not said in format {}", decision.name(), self.format);
        let index = self.state.log_index().next();
        let applied = self.state.apply_checked(self.leadership, index, self.now, &checked);
        self.take_in(index, checked.into_decision(), &applied)
    }

    /// A decision that was applied is part of the round.
    fn take_in(&mut self, index: LogIndex, decision: Decision, applied: &Applied) -> LogIndex {
        assert!(
            applied.rejection.is_none(),
            "the guard refused the leader's own {} at {index}: {:?}",
            decision.name(),
            applied.rejection
        );
        self.wants_schedule |= changes_capacity_or_demand(&self.state, &decision);
        self.searches.note(&self.state, &decision);
        self.note_turns(index, &decision);
        self.note_arrays(&decision);
        self.encoded.push(&decision);
        self.decisions.push(decision);
        index
    }

    /// Arrays that may need more members after a decision.
    fn note_arrays(&mut self, decision: &Decision) {
        let of_job = |state: &State, job: JobId| {
            let member = state.spec(job)?.array?;
            Some(ArrayId::of_member(job, member.ordinal))
        };
        match decision {
            Decision::ArraysSubmitted { request, .. } => {
                // Its parts follow one another, and no later one has been submitted.
                let answer = self.state.request(request.id).map(|row| &row.answer);
                if let Some(RequestAnswer::Submitted { first, .. }) = answer {
                    let new = self.state.arrays().range(ArrayId(first.0)..).map(|(id, _)| *id);
                    let new: Vec<ArrayId> = new.collect();
                    self.unsettled_arrays.extend(&new);
                    for array in &new {
                        self.look_for_ready_members(*array);
                    }
                    self.unfilled.extend(new);
                }
            }
            Decision::ArrayMembersCreated { array, .. } | Decision::ArrayMembersFailed { array, .. } => {
                self.forget_if_created(*array);
            }
            Decision::JobCancelRequested { jobs, .. } => self.forget_arrays_of(jobs),
            Decision::ArrayReleased { array } | Decision::ArrayThrottleSet { array, .. } => {
                self.unfilled.insert(*array);
            }
            Decision::ArraysControlled { arrays, control, jobs, .. } => {
                if *control == Control::Release {
                    self.unfilled.extend(arrays);
                }
                arrays.iter().for_each(|array| self.forget_if_created(*array));
                self.forget_arrays_of(jobs);
                self.unfilled.extend(jobs.iter().filter_map(|job| of_job(&self.state, *job)));
            }
            // A member that is held once it waits again counts for no bound any more.
            Decision::GangPlaced { job, .. }
            | Decision::JobRequeued { job, .. }
            | Decision::JobFinished { job, .. } => {
                self.unfilled.extend(of_job(&self.state, *job));
            }
            // One of the jobs may have been a member that was not created, which it is then.
            Decision::JobHoldSet { jobs, .. } => {
                self.forget_arrays_of(jobs);
                self.unfilled.extend(jobs.iter().filter_map(|job| of_job(&self.state, *job)));
            }
            // What has capacity promised, or may not start yet, leaves the queue to the next members.
            Decision::Rearranged { promises, .. } => {
                let waits = |job: &JobId| self.state.job(*job).is_some_and(|row| row.phase == Phase::Pending);
                let waiting = promises.iter().map(|promise| promise.job).filter(waits);
                self.unfilled.extend(waiting.filter_map(|job| of_job(&self.state, job)));
            }
            Decision::JobModified { job, .. } => self.unfilled.extend(of_job(&self.state, *job)),
            Decision::HistoryPruned { .. } if self.lacks_room => self.leave_all_unfilled(),
            _ => {}
        }
    }

    /// Members of an array may be ready before their turn: it waits for others member by member.
    pub(crate) fn look_for_ready_members(&mut self, array: ArrayId) {
        let row = self.state.array(array).filter(|row| row.uncreated > 0);
        if row.is_some_and(|row| row.template.spec.dependencies.iter().any(Dependency::is_of_members)) {
            self.ready_members.look_from(array, 0);
            self.unfilled.insert(array);
        }
    }

    /// Members of others are over that a member of an array may have waited for.
    pub(crate) fn note_if_ready(&mut self, array: ArrayId, ordinal: u32) {
        if self.state.is_ready_member(array, ordinal) {
            self.ready_members.note(array, ordinal);
            self.unfilled.insert(array);
        }
    }

    /// Looks for members that are ready before their turn, as many as one tick may look at.
    pub(crate) fn find_ready_members(&mut self, looks: u32) {
        let found = self.ready_members.look(&self.state, looks);
        self.unfilled.extend(found);
    }

    /// Looks for more of one array once those that were known are jobs, while looks are left: with those that are found it goes on at
    /// once, and not with the next tick.
    pub(crate) fn find_ready_members_of(&mut self, array: ArrayId, left: &mut u32) {
        if self.ready_members.look_at(&self.state, array, left) {
            self.unfilled.insert(array);
        }
    }

    /// The first members of an array that are known to be ready, up to a number.
    pub(crate) fn take_ready_members(&mut self, array: ArrayId, most: u32) -> Vec<u32> {
        self.ready_members.take(&self.state, array, most)
    }

    fn forget_if_created(&mut self, array: ArrayId) {
        if self.state.array(array).is_none_or(|row| row.uncreated == 0) {
            self.ready_members.forget(array);
        }
    }

    /// These jobs may have been the last members of their arrays that were left to be created.
    fn forget_arrays_of(&mut self, jobs: &[JobId]) {
        for job in jobs {
            if let Some((array, _)) = self.state.array_of(*job) {
                self.forget_if_created(array);
            }
        }
    }

    /// What a decision means for the turns of those who wait.
    fn note_turns(&mut self, index: LogIndex, decision: &Decision) {
        match decision {
            Decision::JobsSubmitted { specs, .. } => {
                for ordinal in 0..specs.len() {
                    self.refresh.note(&self.state, self.state.job_id(index, ordinal));
                }
            }
            Decision::WorkersReported { job, .. }
            | Decision::GangPlaced { job, .. }
            | Decision::JobRequeued { job, .. }
            | Decision::JobReleased { job }
            | Decision::PromiseDropped { job }
            | Decision::JobModified { job, .. }
            | Decision::FallbackOpened { job }
            | Decision::JobFinished { job, .. } => self.refresh.note(&self.state, *job),
            // Members of one array are of one submission group, and the first that waits stands for all.
            Decision::ArrayMembersCreated { array, .. } => {
                let first = self
                    .state
                    .array(*array)
                    .and_then(|row| self.state.first_in_line(row.submission_group(*array)));
                first.inspect(|job| self.refresh.note(&self.state, *job));
            }
            Decision::ArraysSubmitted { request, .. } => {
                let answer = self.state.request(request.id).map(|row| &row.answer);
                if let Some(RequestAnswer::Submitted { first, .. }) = answer {
                    // None of the members is a job yet.
                    let new = self.state.jobs().range(*first..).map(|(job, _)| *job);
                    new.for_each(|job| self.refresh.note(&self.state, job));
                }
            }
            Decision::JobHoldSet { jobs, .. } | Decision::ArraysControlled { jobs, .. } => {
                jobs.iter().for_each(|job| self.refresh.note(&self.state, *job));
            }
            _ => {}
        }
    }

    /// Adds the state's digest to the round being made.
    pub(crate) fn push_digest(&mut self) {
        let digest = self.state.rows_digest();
        self.last_digest = self.push(Decision::DigestRecorded { digest });
    }

    /// Adds a digest when the last one is far enough back.
    pub fn push_digest_if_due(&mut self) {
        let interval = self.state.parameters().digest_interval_records;
        if self.state.log_index().0 >= self.last_digest.0 + interval {
            self.push_digest();
        }
    }

    /// Bytes of the decisions of the round being made.
    #[must_use]
    pub fn round_bytes(&self) -> usize {
        self.encoded.byte_count()
    }

    /// Whether something has changed that could let a waiting gang start, or work was left over
    /// from a full round.
    #[must_use]
    pub fn wants_schedule(&self) -> bool {
        let has_work = self.wants_schedule
            || self.pass.is_some()
            || !self.unsettled.is_empty()
            || !self.unsettled_arrays.is_empty()
            || !self.unfilled.is_empty()
            || self.stale_turns.is_some();
        has_work && !self.is_recovering()
    }

    /// Asks for a pass over the queue.
    pub fn want_schedule(&mut self) {
        self.wants_schedule = true;
    }

    /// Says which nodes are silent now: their leases stand, so they are not lost, but gangs had better not begin
    /// there as long as there are others. A hint that is in no record: what is decided with it is.
    pub fn set_silent(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.unheard.silent = Arc::new(nodes.into_iter().collect());
    }

    /// Says which nodes, silent ones all of them, can start nothing before they are heard of again: their agents have
    /// no lease by their own count. The caller asks for a pass when one of them is heard of; a loss brings one by
    /// itself.
    pub fn set_lapsed(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.unheard.lapsed = Arc::new(nodes.into_iter().collect());
    }

    /// Says which hosts hold which images. A hint that is in no record, as that of silent nodes.
    pub fn set_images(&mut self, images: Arc<HeldImages>) {
        self.images = images;
    }

    pub(crate) fn images(&self) -> &HeldImages {
        &self.images
    }

    pub(crate) fn unheard(&self) -> &Unheard {
        &self.unheard
    }

    /// When the last pass over the queue began.
    pub(crate) fn last_pass(&self) -> LogTime {
        self.last_pass
    }

    /// The pass to go on with, or a new one; changes from here on want another.
    pub(crate) fn take_pass(&mut self) -> UnfinishedPass {
        match self.pass.take() {
            Some(pass) if pass.is_under(self.state.effective_policy()) => return pass,
            // Another policy is another order: from the front.
            Some(pass) => (self.memory, self.kept_reservations) = pass.into_memory(),
            None => {}
        }
        self.wants_schedule = false;
        self.last_pass = self.now;
        let memory = core::mem::take(&mut self.memory);
        let kept = core::mem::take(&mut self.kept_reservations);
        UnfinishedPass::begin(&self.state, self.now, memory, kept)
    }

    /// What the last complete pass kept for later; nothing while a pass is interrupted.
    #[must_use]
    pub fn kept_reservations(&self) -> &KeptReservations {
        &self.kept_reservations
    }

    pub(crate) fn keep_reservations(&mut self, kept: KeptReservations) {
        self.kept_reservations = kept;
    }

    pub(crate) fn keep_pass(&mut self, pass: UnfinishedPass) {
        self.pass = Some(pass);
    }

    /// Counts one request of these tenants, for each of them.
    ///
    /// # Errors
    /// Those of [`Requests::take`]. Nothing is counted then.
    pub(crate) fn count_request<'a>(
        &mut self,
        tenants: impl IntoIterator<Item = &'a Name>,
    ) -> Result<(), Refusal> {
        self.requests.take(&self.state, self.now, tenants)
    }

    /// Counts one submission of these users, for each of them and for each of their tenants.
    ///
    /// # Errors
    /// Those of [`Requests::take_submission`]. Nothing is counted then.
    pub(crate) fn count_submission<'a>(
        &mut self,
        users: &BTreeSet<(&'a Name, &'a str)>,
        tiers: &BTreeSet<(&'a Name, PriorityTier)>,
    ) -> Result<(), Refusal> {
        self.requests.take_submission(&self.state, self.now, users, tiers)
    }

    /// The last job whose fallback a tick has looked at, where it could not look at all of them.
    pub(crate) fn fallback_place(&self) -> Option<(LogTime, JobId)> {
        self.fallback_place
    }

    pub(crate) fn set_fallback_place(&mut self, place: Option<(LogTime, JobId)>) {
        self.fallback_place = place;
    }

    /// The earliest fallback that a tick looked at before it was due.
    pub(crate) fn fallback_due(&self) -> Option<LogTime> {
        self.fallback_due
    }

    pub(crate) fn set_fallback_due(&mut self, due: Option<LogTime>) {
        self.fallback_due = due;
    }

    /// When the next job takes what it names as a fallback, as far as that is known behind a tick of a time.
    #[must_use]
    pub fn next_fallback(&self, looked_at: LogTime) -> Option<LogTime> {
        let mut behind = self.state.closed_fallbacks_behind((looked_at, JobId(u64::MAX)));
        let late = self.fallback_due.filter(|at| *at > looked_at);
        behind.next().map(|(at, _)| at).into_iter().chain(late).min()
    }

    /// How far the hosts of open windows have been looked at.
    pub(crate) fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    pub(crate) fn set_sweep(&mut self, sweep: Sweep) {
        self.sweep = sweep;
    }

    /// When bookings were last looked at.
    pub(crate) fn booking_looks(&self) -> BookingLooks {
        self.booking_looks
    }

    pub(crate) fn set_booking_looks(&mut self, looks: BookingLooks) {
        self.booking_looks = looks;
    }

    /// How far jobs whose time has come have been looked at.
    pub(crate) fn starts(&self) -> Starts {
        self.starts
    }

    pub(crate) fn set_starts(&mut self, starts: Starts) {
        self.starts = starts;
    }

    /// Whether there are jobs or arrays whose time had come by the last tick, or members that may be ready before their turn, and that
    /// it did not look at, because it had done as much as one tick may: the next tick goes on with them, and should follow soon. A tick that only looks at
    /// jobs which wait for others writes no record, so that its records do not show this.
    #[must_use]
    pub fn has_more_due(&self) -> bool {
        self.starts.is_cut || self.ready_members.is_cut()
    }

    /// Searches for gangs to preempt.
    pub(crate) fn searches(&self) -> &Searches {
        &self.searches
    }

    pub(crate) fn searches_mut(&mut self) -> &mut Searches {
        &mut self.searches
    }

    /// A pass is over; this is for the next.
    pub(crate) fn keep_memory(&mut self, memory: PassMemory) {
        self.memory = memory;
    }

    /// What free devices are worth.
    pub(crate) fn valuation(&self) -> &RefCell<Valuation> {
        &self.valuation
    }

    /// Learns again what free devices are worth when it is time.
    pub(crate) fn refresh_valuation(&mut self) {
        let demand = self.state.demand();
        if self.valuation.get_mut().is_stale(demand) {
            self.valuation = RefCell::new(Valuation::learn(demand));
        }
    }

    /// Jobs whose next step is to be decided when a round has space.
    pub(crate) fn leave_unsettled(&mut self, jobs: impl IntoIterator<Item = JobId>) {
        self.unsettled.extend(jobs);
    }

    /// Arrays whose next step is left to a round that is not full.
    pub(crate) fn leave_arrays_unsettled(&mut self, arrays: impl IntoIterator<Item = ArrayId>) {
        self.unsettled_arrays.extend(arrays);
    }

    pub(crate) fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty() || !self.unsettled_arrays.is_empty()
    }

    pub(crate) fn next_unsettled_array(&mut self) -> Option<ArrayId> {
        self.unsettled_arrays.pop_first()
    }

    /// Every array that may have more members is looked at.
    pub(crate) fn leave_all_unfilled(&mut self) {
        self.lacks_room = false;
        self.unfilled.extend(self.state.open_arrays());
    }

    /// Arrays that were left without rows are looked at again: jobs of their tenant, or of others, may be over since.
    pub(crate) fn retry_without_room(&mut self) {
        if self.lacks_room {
            self.leave_all_unfilled();
        }
    }

    /// An array has too few members waiting, and is looked at again soon.
    pub(crate) fn leave_unfilled(&mut self, array: ArrayId) {
        self.unfilled.insert(array);
    }

    /// Arrays have too few members waiting, and are looked at again when history has been dropped.
    pub(crate) fn leave_without_room(&mut self) {
        self.lacks_room = true;
    }

    pub(crate) fn has_unfilled(&self) -> bool {
        !self.unfilled.is_empty()
    }

    /// The next array that may have too few members waiting.
    pub(crate) fn next_unfilled(&mut self) -> Option<ArrayId> {
        self.unfilled.pop_first()
    }

    pub(crate) fn next_unsettled(&mut self) -> Option<JobId> {
        self.unsettled.pop_first()
    }

    /// The order has changed: waiting jobs need new turns.
    pub(crate) fn leave_turns_stale(&mut self) {
        self.stale_turns = Some(JobId(0));
        self.refresh = Refresh::of(&self.state, self.now);
    }

    /// Submission groups whose turn is to change by what was learned while they wait.
    pub(crate) fn changed_turns(&mut self) -> Vec<(JobId, QueueKey)> {
        self.refresh.due(&self.state, self.now)
    }

    /// The first job whose turn is still to be renewed.
    pub(crate) fn stale_turns(&self) -> Option<JobId> {
        self.stale_turns
    }

    pub(crate) fn set_stale_turns(&mut self, from: Option<JobId>) {
        self.stale_turns = from;
    }

    /// Position of the last record decided.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.state.log_index()
    }

    /// The round made so far, to be proposed; none when it is empty.
    pub fn take_round(&mut self) -> Option<Round> {
        if self.decisions.is_empty() {
            return None;
        }
        let round = Round {
            format: self.format,
            term: self.leadership.term,
            replica: self.leadership.replica,
            first_index: self.first_index,
            basis_index: self.basis_index,
            log_time: self.now,
            decisions: core::mem::take(&mut self.decisions),
        };
        self.first_index = self.state.log_index().next();
        self.basis_index = self.state.log_index();
        self.format = self.state.format();
        self.encoded = EncodedDecisions::default();
        Some(round)
    }

    /// The same with its bytes, as several rounds where it is larger than one should be; empty when nothing was decided.
    pub fn take_encoded(&mut self) -> Vec<EncodedRound> {
        let encoded = core::mem::take(&mut self.encoded);
        self.take_round().map_or_else(Vec::new, |round| sealed(round, &encoded))
    }
}

fn changes_capacity_or_demand(state: &State, decision: &Decision) -> bool {
    match decision {
        Decision::QuotaGrantsEnded { ids } => !have_lapsed(state, ids),
        // What has started changes nothing for those who wait.
        Decision::WorkersReported { updates, .. } => {
            updates.iter().any(|(_, update)| matches!(update, RankUpdate::Exited(_)))
        }
        Decision::JobsSubmitted { .. }
        | Decision::ArraysSubmitted { .. }
        | Decision::ArrayMembersCreated { .. }
        | Decision::ArrayReleased { .. }
        | Decision::ArraysControlled { .. }
        | Decision::ArrayThrottleSet { .. }
        | Decision::NodeRegistered { .. }
        | Decision::NodeCordonSet { .. }
        | Decision::NodeHealthChanged { .. }
        | Decision::ForeignLoadSet { .. }
        | Decision::NodeDrainSet { .. }
        | Decision::NodeQuarantineSet { .. }
        | Decision::NodeRepairSet { .. }
        | Decision::NodeOverridesSet { .. }
        | Decision::NodeLost { .. }
        | Decision::JobRequeued { .. }
        | Decision::PolicySet { .. }
        | Decision::QuotaAnswered { .. }
        | Decision::QuotaGranted { .. }
        | Decision::PromiseDropped { .. }
        | Decision::JobReleased { .. }
        | Decision::JobHoldSet { .. }
        | Decision::JobModified { .. }
        | Decision::TurnsChanged { .. }
        | Decision::ClusterRecovered { .. }
        | Decision::BookingCreated { .. }
        | Decision::BookingDeleted { .. }
        | Decision::BookingOpened { .. }
        | Decision::BookingEnded { .. }
        | Decision::BookingMoved { .. }
        | Decision::FallbackOpened { .. }
        | Decision::FleetHoldSet { .. }
        | Decision::FleetHoldEnded { .. }
        | Decision::JobFinished { .. } => true,
        Decision::ClusterCreated { .. }
        | Decision::LeaderStarted
        | Decision::FormatRaised { .. }
        | Decision::NodeForgotten { .. }
        | Decision::HealthPolicySet { .. }
        | Decision::NodeAdmissionSet { .. }
        | Decision::NodeApprovalSet { .. }
        | Decision::CertificateRevoked { .. }
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
        | Decision::SessionResumed { .. }
        | Decision::AgentStarted { .. }
        | Decision::NotificationsDelivered { .. }
        | Decision::ArrayMembersFailed { .. }
        | Decision::JobCancelRequested { .. }
        | Decision::JobRequeueRequested { .. }
        | Decision::GangPlaced { .. }
        | Decision::GangStopRequested { .. }
        | Decision::Rearranged { .. }
        | Decision::CheckpointCommitted { .. }
        | Decision::JobContractsSet { .. }
        | Decision::JobMetadataSet { .. }
        | Decision::AttemptFailed { .. }
        | Decision::SparesTaken { .. }
        | Decision::StragglerNoted { .. }
        | Decision::HistoryPruned { .. }
        | Decision::DigestRecorded { .. } => false,
    }
}
