//! A generator of histories: random commands through the decider, over leader changes that lose rounds and let them
//! arrive late.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_decider::{
    BookingOrder, BootstrapConfig, Command, ControlOrder, DrainOrder, FleetHoldOrder, JobSelection,
    ModifyOrder, OverridesOrder, QuotaAnswerOrder, QuotaOrder, RepairOrder, Speculation, ThrottleOrder,
    handle, schedule, settle_all, tick,
};
use muster_journal::{FORMAT_MAX, FORMAT_MIN, RankUpdate, Round};
use muster_planner::Budget;
use muster_state::{Phase, QuotaGrantStatus, State};
use muster_types::health::{Finding, HealthReport, Observation, RepairEnd};
use muster_types::policy::{
    CountedResource, OnLimit, Order, PolicyDraft, Price, QueueOrder, QueuePreemption, Quota, QuotaGrant,
    SpendBudget, TenantPolicy, UserShares, Window, WindowPurpose, WindowScope,
};
use muster_types::{
    AcceleratorChoice, Affinity, AffinityLevel, AffinityRule, AffinityTarget, ArrayId, ArraySpec,
    BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, Control, Dependency,
    DependencyRule, DependencyScope, DeviceAmount, DeviceSet, ExitStatus, FailureClass, FieldChange,
    FleetHold, FleetPart, GroupSize, HoldTarget, JobContract, JobDraft, JobId, JobMetadata, JobSpec, Level,
    LogIndex, LogTime, Name, NodeId, NodeOverridesChange, NodeRequirements, NodeSpec, PriorityTier,
    RequestId, Requester, Segment, Spread, Submission, TaskGroup,
};

use crate::random::Random;
use crate::support::{
    BOOTSTRAP, accelerators, carried, check, group, holder, job_draft, leadership, name, node_draft, request,
    rows, with_all_rights,
};

/// A leader that random things are asked of, and replicas that apply what it decides.
pub struct Model {
    pub random: Random,
    /// For what operators ask of the fleet, of arrays and of quotas.
    random_of_operators: Random,
    /// How many requests operators have sent; each has its number as its id.
    orders: u128,
    pub speculation: Speculation,
    /// Applies rounds as they commit.
    pub replica: State,
    /// Follows; now and then it is replaced by a restored snapshot of itself.
    follower: State,
    in_flight: Vec<Round>,
    now: LogTime,
    pub requests: u128,
    term: u64,
    bootstrap: BootstrapConfig,
    /// What the format is raised to.
    format: u16,
    /// Names of decisions that were made.
    pub made: BTreeSet<&'static str>,
    /// Every round in the order in which replicas see it.
    pub log: Vec<Round>,
}

impl Model {
    pub fn new(seed: u64) -> Model {
        let speculation = Speculation::begin(State::default(), leadership(1, 1), LogTime(1_000), BOOTSTRAP);
        Model {
            random: Random::new(seed),
            random_of_operators: Random::new(seed ^ 0x0a5c),
            orders: 0,
            speculation,
            replica: State::default(),
            follower: State::default(),
            in_flight: Vec::new(),
            now: LogTime(1_000),
            requests: 0,
            term: 1,
            bootstrap: BOOTSTRAP,
            // In every other run nobody ever knows more than the first format.
            format: if seed.is_multiple_of(2) { FORMAT_MAX } else { FORMAT_MIN },
            made: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    /// The last lease from before a recovery has run out, under the present leader.
    pub fn finish_recovery(&mut self) {
        if self.speculation.is_recovering() {
            let generation = self.bootstrap.generation;
            handle(&mut self.speculation, &Command::Recover { generation }).expect("it is due");
        }
    }

    pub fn step(&mut self) {
        if self.random.once_in(4) {
            self.finish_recovery();
        }
        match self.random.below(100) {
            0..15 => self.submit(),
            15..25 => self.register(),
            25..29 => self.lose_node(),
            29..34 => self.cancel(),
            34..36 => self.cordon(),
            36..42 => self.restrict(),
            42..70 => self.report(),
            70..82 => self.schedule(),
            82..87 => self.tick(),
            87..96 => self.commit_some(),
            96 if self.random.once_in(6) => self.recover(),
            96 => self.change_leader(),
            97 if self.random.once_in(3) => self.book(),
            97 => self.set_policy(),
            98 => self.checkpoint(),
            _ if self.random.once_in(3) => self.forget(),
            _ => self.speculation.push_digest_if_due(),
        }
        if self.random_of_operators.once_in(16)
            && let Some(command) = self.order()
        {
            // It may have no place, or come at the wrong time.
            let _ = handle(&mut self.speculation, &command);
        }
        if self.random.once_in(3) {
            self.take();
        }
    }

    /// Throttles, holds of the fleet and of tenants, quota for some time, what jobs carry, and maintenance of a region.
    fn order(&mut self) -> Option<Command> {
        self.orders += 1;
        let request = request((1 << 100) | self.orders);
        let by = Requester::named("admin/ops".to_owned(), true);
        let (state, now, random) = (self.speculation.state(), self.now, &mut self.random_of_operators);
        let region = name(["eu", "us"][random.below(2) as usize]);
        let tenant = name(["a", "b", "c"][random.below(3) as usize]);
        let soon = now.plus_ms(1 + random.below(30_000));
        // Nothing is placed where somebody holds all of it: most of a history is not under a hold.
        let briefly = now.plus_ms(1 + random.below(3_000));
        Some(match random.below(12) {
            0 | 1 => {
                let arrays = state.arrays().iter().filter(|(_, row)| row.uncreated > 0);
                let array = random.pick(&arrays.map(|(id, _)| *id).collect::<Vec<ArrayId>>())?;
                let throttle = (!random.once_in(4)).then(|| 1 + random.below(4) as u32);
                Command::SetThrottle(Box::new(ThrottleOrder { request, by, acts_for: None, array, throttle }))
            }
            2..5 => {
                let part = FleetPart { region: Some(region), cluster: None };
                let target = match random.once_in(2) {
                    true => HoldTarget::Part(part),
                    false => HoldTarget::Tenant(tenant),
                };
                let stops_work = matches!(target, HoldTarget::Part(_)) && random.once_in(3);
                let until = (!random.once_in(12)).then_some(briefly);
                let hold = FleetHold { reason: "a new switch".to_owned(), until, stops_work };
                let hold = state.fleet_hold(&target).is_none().then_some(hold);
                Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold }))
            }
            kind @ 5..7 => {
                let grant = QuotaGrant {
                    tenant,
                    kind: name("h100"),
                    region: None,
                    amount_milli: (1 + random.below(8)) * 1_000,
                    until: soon,
                    reason: "a deadline".to_owned(),
                };
                let order = Box::new(QuotaOrder { request, by, acts_for: None, grant });
                if kind == 5 { Command::RequestQuota(order) } else { Command::GrantQuota(order) }
            }
            7 | 8 => {
                let live = state.quota_grants().filter(|(_, row)| {
                    matches!(row.status, QuotaGrantStatus::Requested | QuotaGrantStatus::Granted)
                });
                let id = random.pick(&live.map(|(id, _)| id).collect::<Vec<LogIndex>>())?;
                let (approved, reason) = (!random.once_in(3), "as agreed".to_owned());
                let order = QuotaAnswerOrder { request, by, acts_for: None, id, approved, reason };
                Command::AnswerQuota(Box::new(order))
            }
            9 | 10 => {
                let jobs = state.jobs().iter().map(|(id, _)| *id);
                let job = random.pick(&jobs.collect::<Vec<JobId>>())?;
                let team = ["a", "b"][random.below(2) as usize].to_owned();
                // Other jobs want to be with those of a team, or apart from them.
                let change = match random.below(4) {
                    0 => FieldChange::NodeSelector(Default::default()),
                    1 => FieldChange::Annotations([("note".to_owned(), team)].into()),
                    _ => FieldChange::Labels([("team".to_owned(), team)].into()),
                };
                let (expected, changes) = (None, vec![change]);
                Command::Modify(Box::new(ModifyOrder { request, by, acts_for: None, job, expected, changes }))
            }
            _ => maintenance((request, by), state, now, region),
        })
    }

    fn take(&mut self) {
        if let Some(round) = self.speculation.take_round() {
            self.made.extend(round.decisions.iter().map(|decision| decision.name()));
            self.in_flight.push(round);
            self.now = self.now.plus_ms(self.random.below(1_000));
            self.speculation.set_now(self.now);
        }
    }

    fn commit_some(&mut self) {
        let count = self.random.below(self.in_flight.len() as u64 + 1) as usize;
        for round in self.in_flight.drain(..count).collect::<Vec<_>>() {
            self.apply(&round);
        }
    }

    pub fn commit_all(&mut self) {
        self.take();
        for round in core::mem::take(&mut self.in_flight) {
            self.apply(&round);
        }
        assert_eq!(self.replica.rows_digest(), self.speculation.state().rows_digest());
        assert_eq!(self.replica.log_index(), self.speculation.last_index());
    }

    /// A round of the current leadership: all of it is accepted, and both replicas stay the same.
    fn apply(&mut self, round: &Round) {
        self.log.push(round.clone());
        for applied in self.replica.apply_round(round) {
            assert_eq!(applied.rejection, None);
            let diverged = |e: &muster_state::Effect| matches!(e, muster_state::Effect::Diverged { .. });
            assert!(!applied.effects.iter().any(diverged), "a digest in the log was not met");
        }
        self.follower.apply_round(&carried(round));
        self.compare();
        assert_eq!(self.replica.rejected(), 0);
        check(&self.replica);
        if self.random.once_in(8) {
            let chunks: Vec<Vec<u8>> = self.follower.snapshot().collect();
            self.follower = State::restore(&chunks).expect("an own snapshot restores");
            self.compare();
        }
    }

    fn compare(&self) {
        assert_eq!(self.replica.digest(), self.follower.digest(), "at {}", self.replica.log_index());
    }

    /// Another replica wins: a prefix of what was in flight commits, the rest arrives behind the new
    /// leader's first round and must change nothing.
    fn change_leader(&mut self) {
        self.take();
        self.commit_some();
        let late = core::mem::take(&mut self.in_flight);
        // Two replicas can lead in one term: then the second has the greater id.
        let old = self.speculation.leadership();
        let next = if old.replica.0 < 3 && self.random.once_in(2) {
            leadership(self.term, old.replica.0 + 1)
        } else {
            self.term += 1 + self.random.below(2);
            leadership(self.term, 1 + self.random.below(2))
        };
        // Clocks of replicas differ; log time must not go back.
        let clock = self.now.minus_ms(self.random.below(10_000));
        self.speculation = Speculation::begin(self.replica.clone(), next, clock, self.bootstrap);
        settle_all(&mut self.speculation);
        let first = self.speculation.take_round().expect("a leadership begins with a round");
        self.apply(&first);
        for round in late {
            let before = (rows(&self.replica), self.replica.log_index(), self.replica.log_time());
            let stale = self.replica.stale();
            self.log.push(round.clone());
            for applied in self.replica.apply_round(&round) {
                assert!(applied.log_index.is_none() && applied.effects.is_empty());
            }
            self.follower.apply_round(&carried(&round));
            self.compare();
            let after = (rows(&self.replica), self.replica.log_index(), self.replica.log_time());
            assert_eq!(before, after, "a late round changed something");
            assert_eq!(self.replica.stale(), stale + round.decisions.len() as u64);
        }
    }

    fn request(&mut self) -> muster_types::RequestId {
        // Now and then one that was used before, for the same or another purpose.
        if self.requests > 0 && self.random.once_in(8) {
            return request(1 + u128::from(self.random.below(self.requests as u64)));
        }
        self.requests += 1;
        request(self.requests)
    }

    fn spec(&mut self) -> JobSpec {
        let wants = match self.random.below(5) {
            0 => None,
            1 => Some(accelerators("a100", 1 + self.random.below(4) as u16)),
            _ => Some(accelerators("h100", 1 + self.random.below(8) as u16)),
        };
        let mut groups = vec![group("main", 1 + self.random.below(5) as u32, wants)];
        if self.random.once_in(5) {
            let mut second = group("second", 1 + self.random.below(3) as u32, None);
            second.request.cpu_milli = 1_000 * (1 + self.random.below(40));
            groups.push(second);
        }
        groups[0].request.cpu_milli = 1_000 * (1 + self.random.below(12));
        self.vary_devices(&mut groups[0]);
        if self.random.once_in(4) {
            let scratch_bytes = (1 + self.random.below(60)) << 30;
            groups.iter_mut().for_each(|group| group.request.scratch_bytes = scratch_bytes);
        }
        let mut draft = job_draft("job", groups);
        self.vary(&mut draft);
        draft.tier = PriorityTier::ALL[self.random.below(5) as usize];
        draft.failure_retries_max = self.random.below(3) as u32;
        if self.random.once_in(3) {
            draft.run_time_limit_ms = Some(1 + self.random.below(60_000));
        }
        if self.random.once_in(4) {
            draft.regions = vec![name(["eu", "us"][self.random.below(2) as usize])];
        }
        // Not at random, so that the commands of a seed stay what they are.
        let count = 1 + u32::from(self.requests.is_multiple_of(2));
        let counted = self.speculation.state().policy().policy.resource_count(&name("matlab"));
        if self.requests.is_multiple_of(5) && counted >= u64::from(count) {
            draft.licences = [(name("matlab"), count)].into();
        }
        draft.check().expect("a job")
    }

    /// Shares of devices, and choices of types.
    fn vary_devices(&mut self, group: &mut TaskGroup) {
        let Some(request) = &mut group.request.accelerators else { return };
        match self.random.below(5) {
            0 => request.amount = DeviceAmount::Share(1 + self.random.below(999) as u16),
            1 => request.choices.clear(),
            2 => {
                request.choices.push(AcceleratorChoice { kind: name("v100"), throughput_milli: 2_000 });
            }
            _ => {}
        }
    }

    /// What else a job may say.
    fn vary(&mut self, draft: &mut JobDraft) {
        draft.tenant = name(["a", "b", "c", "d"][self.random.below(4) as usize]);
        draft.preemptible = !self.random.once_in(5);
        if self.random.once_in(2) {
            draft.checkpoint_directory = Some("/checkpoints".into());
        }
        if draft.groups.len() == 1 && self.random.once_in(4) {
            draft.groups[0].workers_min = 1 + self.random.below(draft.groups[0].workers.into()) as u32;
        }
        if draft.groups.len() > 1 && self.random.once_in(3) {
            for group in &mut draft.groups {
                group.workers_min = 1 + self.random.below(group.workers.into()) as u32;
            }
        }
        if self.random.once_in(6) {
            draft.topology.required = Some(Level::ALL[self.random.below(3) as usize]);
        } else if self.random.once_in(6) {
            let level = Level::ALL[self.random.below(3) as usize];
            draft.topology.spread = Some(Spread { level, workers_max: 1 + self.random.below(3) as u32 });
        } else if self.random.once_in(6) {
            draft.topology.balanced = true;
        } else if let [only] = draft.groups.as_slice()
            && only.workers.is_multiple_of(2)
            && self.random.once_in(6)
        {
            draft.topology.segments = vec![Segment { level: Level::Host, workers: 2 }];
        }
        let jobs: Vec<JobId> = self.speculation.state().jobs().iter().map(|(id, _)| *id).collect();
        if !jobs.is_empty() && self.random.once_in(8) {
            let job = jobs[self.random.below(jobs.len() as u64) as usize];
            let rules = [DependencyRule::Succeeded, DependencyRule::Finished];
            draft.dependencies = vec![Dependency::new(job, rules[self.random.below(2) as usize])];
        }
        let arrays: Vec<ArrayId> = self.speculation.state().arrays().iter().map(|(id, _)| *id).collect();
        if !arrays.is_empty() && self.random.once_in(8) {
            let job = JobId(arrays[self.random.below(arrays.len() as u64) as usize].0);
            let rules = [DependencyRule::Succeeded, DependencyRule::Finished];
            let scopes = [DependencyScope::Array, DependencyScope::Member];
            draft.dependencies = vec![Dependency {
                job,
                rule: rules[self.random.below(2) as usize],
                scope: scopes[self.random.below(2) as usize],
            }];
        }
        if self.random.once_in(8) {
            draft.affinity = vec![self.affinity(&jobs)];
        }
        if self.random.once_in(12) {
            draft.not_before = Some(self.now.plus_ms(self.random.below(20_000)));
        }
        if self.random.once_in(8) {
            draft.deadline = Some(self.now.plus_ms(20_000 + self.random.below(200_000)));
        }
        if self.random.once_in(3) {
            draft.expected_run_ms = Some(1 + self.random.below(100_000));
        }
    }

    /// With other jobs or away from them, required or not; some are of tenants that the job may not name.
    fn affinity(&mut self, jobs: &[JobId]) -> Affinity {
        let levels =
            [AffinityLevel::Region, AffinityLevel::Cluster, AffinityLevel::Rack, AffinityLevel::Host];
        let team = ["a", "b"][self.random.below(2) as usize];
        let target = match self.random.pick(jobs).filter(|_| self.random.once_in(2)) {
            Some(job) => AffinityTarget::Job(job),
            None => AffinityTarget::Labels(format!("team={team}")),
        };
        Affinity {
            target,
            level: levels[self.random.below(4) as usize],
            rule: if self.random.once_in(3) { AffinityRule::Together } else { AffinityRule::Apart },
            weight: self.random.once_in(3).then(|| 1 + self.random.below(100) as u8),
        }
    }

    /// Quotas, limits and rules at random; times are short so that all of them come about.
    /// Books hosts or devices for a tenant that the policy lists, or gives a booking up.
    fn book(&mut self) {
        let (request, by) = (self.request(), Requester::default());
        let name = name(["book-a", "book-b", "book-c"][self.random.below(3) as usize]);
        let state = self.speculation.state();
        if state.booking(&name).is_some() {
            let delete = Command::DeleteBooking { request, by, acts_for: None, name };
            let _ = handle(&mut self.speculation, &delete);
            return;
        }
        let tenants: Vec<Name> = state.policy().policy.tenants.keys().cloned().collect();
        let Some(tenant) = tenants.get(self.random.below(tenants.len().max(1) as u64) as usize) else {
            return;
        };
        let amount = match self.random.below(2) {
            0 => BookingAmount::Hosts(1 + self.random.below(3) as u32),
            _ => BookingAmount::Devices(8 * (1 + self.random.below(2) as u32)),
        };
        let shape = BookingShape::Chosen {
            amount,
            kind: Some(Name::literal("h100")),
            region: None,
            cluster: None,
            labels: Default::default(),
        };
        let windows = 1 + self.random.below(3) as u16;
        let spec = BookingSpec {
            tenant: Some(tenant.clone()),
            user: None,
            jobs: Vec::new(),
            is_shared: self.random.once_in(2),
            shape,
            times: BookingTimes::once(
                self.now.plus_ms(self.random.below(60_000)),
                60_000 + self.random.below(3_600_000),
            )
            .every(1, windows),
            notice_ms: self.random.below(60_000),
            clearing: BookingClearing::ALL[self.random.below(3) as usize],
            reason: String::new(),
        };
        let order = BookingOrder { request, by, acts_for: None, name, spec };
        // There may be too few hosts.
        let _ = handle(&mut self.speculation, &Command::CreateBooking(Box::new(order)));
    }

    fn set_policy(&mut self) {
        let mut draft = PolicyDraft::default();
        draft.preemption.minimum_run_ms = self.random.below(3_000);
        draft.preemption.defragment_wait_ms = self.random.below(5_000);
        draft.backfill.reserve_after_ms = self.random.below(3_000);
        draft.backfill.reservations_max = self.random.below(4) as u32;
        draft.order.fair_share = self.random.once_in(2);
        if self.random.once_in(2) {
            draft.order.order = Order::Submission;
        }
        if self.random.once_in(2) {
            let mut quota = |nominal: u64| Quota {
                kind: name("h100"),
                region: None,
                nominal_milli: nominal * 1_000,
                borrowing_limit_milli: self.random.once_in(2).then(|| self.random.below(16) * 1_000),
                lending_limit_milli: self.random.once_in(3).then(|| self.random.below(nominal + 1) * 1_000),
            };
            let tenant = |parent: Option<&str>, quotas| TenantPolicy {
                parent: parent.map(name),
                quotas,
                ..TenantPolicy::default()
            };
            draft.tenants.insert(name("top"), tenant(None, vec![quota(32)]));
            draft.tenants.insert(name("a"), tenant(Some("top"), vec![quota(16)]));
            draft.tenants.insert(name("b"), tenant(Some("top"), vec![quota(8)]));
            draft.tenants.insert(name("c"), tenant(None, vec![]));
        }
        if self.random.once_in(4) {
            let scope = WindowScope { region: Some(name("eu")), ..WindowScope::default() };
            let from = self.now.plus_ms(self.random.below(10_000));
            let until = from.plus_ms(1 + self.random.below(10_000));
            let purpose = match self.random.below(2) {
                0 => WindowPurpose::Maintenance,
                _ => WindowPurpose::ReservedFor { tenant: name("b") },
            };
            draft.windows.push(Window { name: name("w"), from, until, scope, purpose });
        }
        let count = [0, 1, 3, 8][(self.requests % 4) as usize];
        draft.resources.push(CountedResource { name: name("matlab"), count, region: None });
        if self.random.once_in(3) {
            self.choose_queues(&mut draft);
        }
        let draft = if self.random.once_in(4) { draft } else { with_all_rights(draft) };
        let policy = Box::new(draft.check().expect("a policy"));
        let request = self.request();
        let _ = handle(
            &mut self.speculation,
            &Command::SetPolicy {
                request,
                by: muster_types::Requester::default(),
                policy,
                expected_version: None,
            },
        );
    }

    /// Choices of queues, and limits that are soon met.
    fn choose_queues(&mut self, draft: &mut PolicyDraft) {
        draft.prices.push(Price::new(name("h100"), None, 3_600_000_000));
        for tenant in ["a", "b", "c"] {
            let row = draft.tenants.entry(name(tenant)).or_default();
            row.queue.order = self.random.once_in(2).then_some(QueueOrder::Strict);
            row.users = row.queue.order.is_none().then(UserShares::default);
            row.queue.preemption = match self.random.below(3) {
                0 => Some(QueuePreemption::None),
                1 => Some(QueuePreemption::FairShare),
                _ => None,
            };
            if self.random.once_in(4) {
                let only = (0..3).map(|_| name(&format!("n{}", self.random.below(8)))).collect();
                row.queue.nodes = Some(NodeRequirements { only, ..NodeRequirements::default() });
                row.queue.isolated = Some(self.random.once_in(2));
            }
            let spend = SpendBudget { dollars: 1 + self.random.below(3) as u32, window_ms: 60_000 };
            row.limits.spend = self.random.once_in(3).then_some(spend);
            row.limits.user.spend = self.random.once_in(3).then_some(spend);
            row.limits.user.devices = self.random.once_in(3).then_some(4);
            row.limits.on_limit = self.random.once_in(3).then_some(OnLimit::Hold);
        }
    }

    fn checkpoint(&mut self) {
        let state = self.speculation.state();
        let active: Vec<JobId> = state.active().collect();
        if active.is_empty() {
            return;
        }
        let job = active[self.random.below(active.len() as u64) as usize];
        let token = state.job(job).and_then(|row| row.placement.as_ref()).expect("a placed job").token;
        let _ = handle(&mut self.speculation, &Command::CommitCheckpoint { job, token, step: None });
        self.straggler();
        self.straggler();
    }

    fn submit(&mut self) {
        let count = 1 + self.random.below(3);
        let specs: Vec<_> = (0..count).map(|_| self.spec()).collect();
        let jobs = specs
            .into_iter()
            .map(|spec| {
                let (contract, metadata) = (self.contract(&spec), self.metadata());
                let array = self.array(&spec);
                Submission {
                    metadata,
                    array,
                    held: self.random.once_in(12),
                    ..Submission::new(spec, contract)
                }
            })
            .collect();
        let request = self.request();
        let _ = handle(&mut self.speculation, &Command::submit(request, jobs));
    }

    /// An array now and then; the same indices as those of one that it waits for.
    fn array(&mut self, spec: &JobSpec) -> Option<ArraySpec> {
        let by_member = spec.dependencies.iter().find(|on| on.is_of_members());
        if let Some(on) = by_member {
            let other = self.speculation.state().array(ArrayId(on.job.0));
            return other.map(|row| row.template.array.clone());
        }
        if !self.random.once_in(4) {
            return None;
        }
        let text = ["3", "12", "2-20:3,40", "0-5,9"][self.random.below(4) as usize];
        let mut array = ArraySpec::parse(text).expect("an array");
        array.throttle = self.random.once_in(2).then(|| 1 + self.random.below(4) as u32);
        Some(array)
    }

    fn metadata(&mut self) -> Option<Arc<JobMetadata>> {
        if self.random.once_in(2) {
            return None;
        }
        let creator = ["tenant/a/ada", "tenant/a/eve", "tenant/b/ada"][(self.requests % 3) as usize];
        let mut metadata = JobMetadata { creator: creator.into(), ..JobMetadata::default() };
        if !self.random.once_in(20) {
            metadata.labels.insert("team".into(), ["a", "b"][self.random.below(2) as usize].into());
            metadata.annotations.insert("note".into(), "of nobody's interest".into());
        }
        Some(Arc::new(metadata))
    }

    /// Refused where the job's form does not allow for it.
    fn contract(&mut self, spec: &JobSpec) -> JobContract {
        let mut contract = JobContract::default();
        if self.random.once_in(3) {
            return contract;
        }
        let is_one_group = spec.groups.len() == 1 && spec.groups[0].slice.is_none();
        if is_one_group || self.random.once_in(20) {
            contract.spares = 1 + self.random.below(3) as u32;
        }
        contract.retry.backoff_ms = self.random.once_in(2).then(|| self.random.below(3_000));
        contract.retry.avoid_ms = self.random.once_in(2).then(|| self.random.below(20_000));
        if self.random.once_in(3) {
            let class = FailureClass::ALL[self.random.below(9) as usize];
            contract.retry.limits.insert(class, self.random.below(3) as u32);
        }
        contract
    }

    fn straggler(&mut self) {
        let state = self.speculation.state();
        let runs = |job: &JobId| state.job(*job).is_some_and(|row| row.phase == Phase::Running);
        let running: Vec<JobId> = state.active().filter(runs).collect();
        let Some(job) = self.random.pick(&running) else { return };
        let state = self.speculation.state();
        let token = state.job(job).and_then(|row| row.placement.as_ref()).expect("a placed job").token;
        let slow_milli = self.random.once_in(2).then_some(1_700);
        let rank = self.random.below(3) as u32;
        let command = Command::NoteStraggler { job, token, rank, slow_milli };
        handle(&mut self.speculation, &command).expect("what a rank does is never refused");
    }

    fn host(&mut self) -> NodeSpec {
        let n = self.random.below(8);
        let (region, cluster) = [("eu", "c1"), ("eu", "c2"), ("us", "c1")][(n % 3) as usize];
        let has = match n {
            7 => None,
            6 => Some(accelerators("a100", 4)),
            _ => Some(accelerators("h100", 8)),
        };
        let mut draft = node_draft(&format!("n{n}"), region, cluster, has);
        draft.scratch_bytes = if n.is_multiple_of(2) { 100 << 30 } else { 0 };
        // Rarely another size or another place under the same name.
        if self.random.once_in(6) {
            draft.accelerators = Some(accelerators("h100", 1 + self.random.below(8) as u16));
            draft.cpu_milli = 1_000 * (1 + self.random.below(64));
            draft.scratch_bytes = self.random.below(100) << 30;
        }
        if self.random.once_in(10) {
            draft.cluster = name("c3");
        }
        draft.check().expect("a node")
    }

    fn register(&mut self) {
        let spec = self.host();
        let command = Command::Register {
            spec,
            holder: holder(1 + u128::from(self.random.below(5) / 4)),
            other_session_is_over: self.random.once_in(2),
        };
        let _ = handle(&mut self.speculation, &command);
    }

    fn any_node(&mut self) -> Option<NodeId> {
        let nodes: Vec<NodeId> = self.speculation.state().nodes().iter().map(|(id, _)| *id).collect();
        self.random.pick(&nodes)
    }

    fn any_job(&mut self) -> Option<JobId> {
        let jobs: Vec<JobId> = self.speculation.state().jobs().iter().map(|(id, _)| *id).collect();
        self.random.pick(&jobs)
    }

    fn lose_node(&mut self) {
        let Some(node) = self.any_node() else { return };
        let row = self.speculation.state().node(node).expect("a node");
        let incarnation = row.incarnation - u32::from(self.random.once_in(4));
        handle(&mut self.speculation, &Command::SessionOver { node, incarnation })
            .expect("the end of a session is never refused");
    }

    /// Forgetting a node, in a format that can say it or not yet.
    fn forget(&mut self) {
        if self.random.once_in(3) {
            let format = self.format;
            handle(
                &mut self.speculation,
                &Command::RaiseFormat { by: muster_types::Requester::default(), format },
            )
            .expect("a known format");
        }
        let Some(node) = self.any_node() else { return };
        let answer = handle(
            &mut self.speculation,
            &Command::ForgetNode { request: None, by: muster_types::Requester::default(), node },
        );
        if answer.is_ok() {
            assert!(self.speculation.state().node(node).is_none(), "what is forgotten is gone");
        }
    }

    /// The cluster is rebuilt from what the replica has: everything in flight is lost, and a generation begins
    /// in which nothing of the previous one is held.
    fn recover(&mut self) {
        if self.replica.cluster().is_none() {
            return;
        }
        self.take();
        self.commit_some();
        self.in_flight.clear();
        let generation = self.replica.generation() + 1;
        self.bootstrap = BootstrapConfig { generation, ..BOOTSTRAP };
        self.term += 1;
        let next = leadership(self.term, 1);
        self.speculation = Speculation::begin(self.replica.clone(), next, self.now, self.bootstrap);
        settle_all(&mut self.speculation);
        self.submit();
        self.register();
        self.schedule();
        let begun = self.speculation.take_round().expect("a leadership begins with a round");
        assert!(begun.decisions.len() <= 2, "nothing but the beginning: {:?}", begun.decisions);
        self.apply(&begun);
        handle(&mut self.speculation, &Command::Recover { generation }).expect("it is due");
        assert_eq!(self.speculation.state().nodes_up(), 0);
        self.take();
    }

    fn cancel(&mut self) {
        let Some(job) = self.any_job() else { return };
        let request = self.request();
        let _ = handle(&mut self.speculation, &Command::cancel(request, job));
        // More often than jobs are cancelled something else is asked of them.
        for _ in 0..3 {
            self.control();
        }
    }

    /// What people ask of jobs: mostly of those that it can be asked of, for they are few.
    fn control(&mut self) {
        let Some(job) = self.any_job() else { return };
        let by = Requester::named("x".to_owned(), self.random.once_in(3));
        let request = self.request();
        if self.random.once_in(3) {
            let soon = self.now.plus_ms(self.random.below(20_000));
            let changes = vec![match self.random.below(11) {
                6 => FieldChange::Nice(self.random.below(201) as u8 as i8),
                7 => FieldChange::Front(None),
                8 => FieldChange::Groups(vec![GroupSize {
                    group: None,
                    workers: 1 + self.random.below(4) as u32,
                    workers_min: self.random.once_in(3).then_some(1),
                }]),
                9 => FieldChange::Tenant(name(["a", "b", "c", "d"][self.random.below(4) as usize])),
                0 => FieldChange::Tier(PriorityTier::ALL[self.random.below(5) as usize]),
                1 => FieldChange::RunTimeLimit(self.random.once_in(2).then(|| self.random.below(60_000))),
                2 => FieldChange::NotBefore(self.random.once_in(2).then_some(soon)),
                3 => FieldChange::Deadline(self.random.once_in(2).then(|| soon.plus_ms(60_000))),
                4 => FieldChange::Regions(vec![name(["eu", "us"][self.random.below(2) as usize])]),
                5 => FieldChange::Nodes(self.random.once_in(2).then(|| {
                    let exclude = [name(["n1", "n2"][self.random.below(2) as usize])].into();
                    Box::new(NodeRequirements { exclude, ..NodeRequirements::default() })
                })),
                _ => FieldChange::ExpectedRun(Some(1 + self.random.below(100_000))),
            }];
            let order = ModifyOrder { acts_for: None, request, by, job, expected: None, changes };
            let _ = handle(&mut self.speculation, &Command::Modify(Box::new(order)));
            return;
        }
        let control = Control::ALL[1 + self.random.below(4) as usize];
        let jobs = (0..4).filter_map(|_| self.any_job()).chain([job]).collect();
        let arrays = self.speculation.state().arrays().iter().map(|(id, _)| *id);
        let arrays: Vec<ArrayId> = arrays.filter(|id| (id.0 + request.0 as u64).is_multiple_of(5)).collect();
        let selection = JobSelection { is_found: true, arrays, ..JobSelection::named(jobs) };
        let order = ControlOrder { acts_for: None, request, by, control, selection };
        let _ = handle(&mut self.speculation, &Command::Control(Box::new(order)));
    }

    fn cordon(&mut self) {
        let state = self.speculation.state();
        // Nodes with promised capacity are few; what becomes of the promise then must be exercised.
        let row = state.promised().next().and_then(|job| state.job(job));
        let promised = row.and_then(|row| Some(row.promise.as_ref()?.slots.first()?.node));
        let promised = promised.filter(|_| self.random.once_in(4));
        let Some(node) = promised.or_else(|| self.any_node()) else { return };
        let request = self.request();
        let cordoned = promised.is_some() || self.random.once_in(2);
        // A taint keeps jobs away as a cordon does, and ends what was promised there.
        let command = match self.random.once_in(3) {
            true => tainted(request, node, cordoned),
            false => {
                let reason = (cordoned && self.random.once_in(2)).then(|| "power work".to_owned());
                Command::SetCordon { request, by: muster_types::Requester::default(), node, cordoned, reason }
            }
        };
        let _ = handle(&mut self.speculation, &command);
    }

    /// Health, drains, quarantine and repairs of nodes; the format is raised on the way, now and then.
    fn restrict(&mut self) {
        let Some(node) = self.any_node() else { return };
        if self.random.once_in(10) {
            let format = self.format;
            let _ = handle(
                &mut self.speculation,
                &Command::RaiseFormat { by: muster_types::Requester::default(), format },
            );
            return;
        }
        let request = self.request();
        let command = match self.random.below(7) {
            0..3 => self.health(node),
            6 => Command::NoteSoundNetwork { nodes: vec![node, NodeId(self.random.below(9) as u32)] },
            3 => {
                let deadline_ms = self.random.once_in(2).then(|| self.random.below(30_000));
                let begin = DrainOrder::Begin { deadline_ms };
                let order = if self.random.once_in(2) { begin } else { DrainOrder::End };
                let reason = None;
                Command::SetDrain { request, by: muster_types::Requester::default(), node, order, reason }
            }
            4 => {
                let reason = self.random.once_in(3).then(|| "fails too often".to_owned());
                Command::SetQuarantine { request, by: muster_types::Requester::default(), node, reason }
            }
            _ => {
                let deadline_ms = Some(self.random.below(20_000));
                let begin = RepairOrder::Begin { action: None, devices: DeviceSet::EMPTY, deadline_ms };
                let order = match self.random.below(4) {
                    0 => begin,
                    1 => RepairOrder::Failed { detail: "no spare".into() },
                    _ => RepairOrder::Done,
                };
                Command::SetRepair { request, by: muster_types::Requester::default(), node, order }
            }
        };
        let _ = handle(&mut self.speculation, &command);
    }

    fn health(&mut self, node: NodeId) -> Command {
        let incarnation = self.speculation.state().node(node).map_or(1, |row| row.incarnation);
        let mut report = HealthReport { boot: self.random.below(4), ..HealthReport::default() };
        for _ in 0..self.random.below(3) {
            let device = self.random.once_in(5).then_some(0).or(Some(self.random.below(8) as u16));
            let code = [13, 43, 74, 79, 95][self.random.below(5) as usize];
            report.events.push(Observation::of(Finding::Xid(code), device));
        }
        if self.random.once_in(3) {
            let finding = Finding::KINDS[self.random.below(7) as usize];
            report.findings.push(Observation::of(finding, None));
        }
        if self.random.once_in(6) {
            let now = self.speculation.now();
            report.maintenance_at = Some(now.plus_ms(self.random.below(1_200_000)));
        }
        if self.random.once_in(6) {
            report.reset = DeviceSet(self.random.next() & 0xff);
            report.repair = Some(RepairEnd::Done);
        }
        Command::ReportHealth { node, incarnation, report: Box::new(report) }
    }

    /// A node says something of a job that is placed, mostly true things.
    fn report(&mut self) {
        let active: Vec<JobId> = self.speculation.state().active().collect();
        // Few jobs have spares: what becomes of those is not left to chance alone.
        let state = self.speculation.state();
        let spared: Vec<JobId> =
            active.iter().copied().filter(|job| !state.spares(*job).is_empty()).collect();
        let fails_with_spares = !spared.is_empty() && self.random.once_in(2);
        let job = match fails_with_spares {
            true => self.random.pick(&spared),
            false if self.random.once_in(12) => self.any_job(),
            false => self.random.pick(&active),
        };
        let Some(job) = job else { return };
        let Some(placement) = self.speculation.state().job(job).and_then(|row| row.placement.clone()) else {
            return;
        };
        let slot = placement.slots[self.random.below(placement.slots.len() as u64) as usize];
        let kind = if fails_with_spares { 9 } else { self.random.below(10) };
        let mut updates = Vec::new();
        for rank in 0..placement.slots.len() as u32 + 1 {
            if self.random.once_in(8) {
                continue;
            }
            updates.push((rank, self.update(kind)));
            if self.random.once_in(10) {
                updates.insert(0, (rank, self.update(kind)));
            }
        }
        let mut token = placement.token;
        if self.random.once_in(15) {
            token.log_index.0 -= 1;
        }
        let incarnation = slot.incarnation - u32::from(self.random.once_in(15));
        let command = Command::Report { node: slot.node, incarnation, job, token, updates };
        let _ = handle(&mut self.speculation, &command);
    }

    fn update(&mut self, kind: u64) -> RankUpdate {
        match kind {
            0..5 => RankUpdate::Running,
            5..8 => RankUpdate::Exited(ExitStatus::Code(i32::from(self.random.once_in(6)))),
            _ => RankUpdate::Exited(match self.random.below(10) {
                0 => ExitStatus::Code(0),
                1 => ExitStatus::Signal(9),
                2 => ExitStatus::LeaseExpired,
                3 => ExitStatus::LaunchFailed("é".repeat(self.random.below(600) as usize)),
                4 => ExitStatus::Vanished,
                5 => ExitStatus::OutOfMemory,
                6 => ExitStatus::NodeFault("é".repeat(self.random.below(600) as usize)),
                7 => ExitStatus::BackendLost("gone".into()),
                8 => ExitStatus::PreflightFailed("é".repeat(self.random.below(600) as usize)),
                _ => ExitStatus::NotStarted,
            }),
        }
    }

    fn schedule(&mut self) {
        let visits = if self.random.once_in(3) { self.random.below(12) } else { 100_000 };
        schedule(&mut self.speculation, &mut Budget::new(visits));
    }

    fn tick(&mut self) {
        self.take();
        let ahead = match self.random.below(10) {
            0 => 8 * 24 * 3_600_000,
            1 => 25 * 3_600_000,
            _ => self.random.below(60_000),
        };
        self.now = self.now.plus_ms(ahead);
        self.speculation.set_now(self.now);
        tick(&mut self.speculation);
        // In so long a time somebody has looked at the nodes that were taken out of service for their workers.
        if ahead >= 3_600_000 {
            let state = self.speculation.state();
            let held = state.restrictions().filter(|(_, row)| row.quarantine.is_some()).map(|(node, _)| node);
            for node in held.collect::<Vec<NodeId>>() {
                let request = self.request();
                let command = Command::SetQuarantine {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    reason: None,
                };
                let _ = handle(&mut self.speculation, &command);
            }
            let nodes = self.speculation.state().nodes().iter();
            let set = nodes.filter(|(_, row)| row.overrides.is_some()).map(|(node, _)| *node);
            for node in set.collect::<Vec<NodeId>>() {
                let request = self.request();
                let _ = handle(&mut self.speculation, &tainted(request, node, false));
            }
        }
    }
}

/// Maintenance of a region from now on and again the next day, or its end.
fn maintenance((request, by): (RequestId, Requester), state: &State, now: LogTime, region: Name) -> Command {
    let name = name("upgrade");
    if state.booking(&name).is_some() {
        return Command::DeleteBooking { request, by, acts_for: None, name };
    }
    let spec = BookingSpec {
        tenant: None,
        user: None,
        jobs: Vec::new(),
        is_shared: false,
        shape: BookingShape::Part(FleetPart { region: Some(region), cluster: None }),
        times: BookingTimes::once(now, 5_000).every(1, 2),
        notice_ms: 0,
        clearing: BookingClearing::Stop,
        reason: "a new switch".to_owned(),
    };
    Command::CreateBooking(Box::new(BookingOrder { request, by, acts_for: None, name, spec }))
}

/// An operator sets a taint that no job tolerates, or takes it back.
fn tainted(request: RequestId, node: NodeId, is_set: bool) -> Command {
    let key = [name("set-aside")].into();
    let change = match is_set {
        true => NodeOverridesChange { set_taints: key, ..NodeOverridesChange::default() },
        false => NodeOverridesChange { remove_taints: key, ..NodeOverridesChange::default() },
    };
    Command::SetNodeOverrides(Box::new(OverridesOrder { request, by: Requester::default(), node, change }))
}
