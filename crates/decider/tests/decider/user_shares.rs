//! What the users of a tenant have used, where they share what it gets, and whose turn it is.

use std::sync::Arc;

use muster_decider::{Answer, Command, Speculation, explain_job, handle, schedule, tick, users_of_queue};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_state::State;
use muster_types::policy::{Order, PolicyDraft, TenantPolicy, UserShares};
use muster_types::{
    ExitStatus, JobContract, JobDraft, JobId, JobMetadata, NodeId, Requester, Submission, limits,
};

use crate::support::{
    BOOTSTRAP, accelerators, check, commit, founded_as, group, holder, job_draft, name, node_spec, request,
    with_all_rights,
};

const ADA: &str = "tenant/lab/ada";
const EVE: &str = "tenant/lab/eve";
const HOUR_MS: u64 = 3_600_000;

struct World {
    speculation: Speculation,
    state: State,
    requests: u128,
    half_life_ms: u64,
}

impl World {
    /// One host with that many devices, and a tenant.
    fn new(devices: u16, users: Option<UserShares>) -> World {
        World::with_half_life(devices, users, HOUR_MS)
    }

    fn with_half_life(devices: u16, users: Option<UserShares>, half_life_ms: u64) -> World {
        let (speculation, state) = founded_as(BOOTSTRAP);
        let mut world = World { speculation, state, requests: 0, half_life_ms };
        let spec = node_spec("n0", "eu", "c1", Some(accelerators("h100", devices)));
        world.ask(&Command::Register { spec, holder: holder(1), other_session_is_over: false });
        world.set_users(users);
        world
    }

    fn ask(&mut self, command: &Command) -> Answer {
        let answer = handle(&mut self.speculation, command).expect("it is not refused");
        commit(&mut self.speculation, &mut self.state);
        answer
    }

    fn set_users(&mut self, users: Option<UserShares>) {
        let mut draft = PolicyDraft::default();
        draft.order.order = Order::Submission;
        draft.order.usage_half_life_ms = self.half_life_ms;
        draft.preemption.starting_deadline_ms = 300 * HOUR_MS;
        draft.backfill.reservations_max = 0;
        draft.tenants.insert(name("lab"), TenantPolicy { users, ..TenantPolicy::default() });
        self.requests += 1;
        let (request, by) = (request(self.requests), Requester::default());
        let policy = Box::new(with_all_rights(draft).check().expect("a policy"));
        self.ask(&Command::SetPolicy { request, by, policy, expected_version: None });
    }

    /// A job of one device.
    fn submit(&mut self, user: &str) -> JobId {
        self.requests += 1;
        let wants = Some(accelerators("h100", 1));
        let draft = job_draft(&format!("j{}", self.requests), vec![group("main", 1, wants)]);
        let draft = JobDraft { tenant: name("lab"), ..draft };
        let mut submission = Submission::new(draft.check().unwrap(), JobContract::default());
        let metadata = JobMetadata { creator: user.to_owned(), ..JobMetadata::default() };
        submission.metadata = Some(Arc::new(metadata));
        match self.ask(&Command::submit(request(self.requests), Arc::new([submission]))) {
            Answer::Submitted { jobs, .. } => jobs[0],
            other => panic!("{other:?}"),
        }
    }

    fn schedule(&mut self) {
        schedule(&mut self.speculation, &mut Budget::new(u64::MAX));
        commit(&mut self.speculation, &mut self.state);
        check(&self.state);
    }

    fn pass_time(&mut self, ms: u64) {
        let now = self.speculation.now().plus_ms(ms);
        self.speculation.set_now(now);
        tick(&mut self.speculation);
        commit(&mut self.speculation, &mut self.state);
    }

    fn end(&mut self, job: JobId) {
        let token = self.state.job(job).unwrap().placement.as_ref().expect("it is placed").token;
        let updates = vec![(0, RankUpdate::Running), (0, RankUpdate::Exited(ExitStatus::Code(0)))];
        self.ask(&Command::Report { node: NodeId(0), incarnation: 1, job, token, updates });
        check(&self.state);
    }

    fn is_placed(&self, job: JobId) -> bool {
        self.state.job(job).is_some_and(|row| row.placement.is_some())
    }

    /// Thousandths of devices in use by a user; none where nothing is counted.
    fn running(&self, user: &str) -> Option<u64> {
        self.state.user_usage(&name("lab"), user).map(|usage| usage.running_milli(&name("h100")))
    }
}

#[test]
fn the_use_of_users_is_counted_while_the_policy_has_them_share() {
    let mut world = World::new(4, Some(UserShares::default()));
    let first = world.submit(ADA);
    // By another of its tokens it is the same user.
    world.submit("tenant/lab/ada+token/0000000000000007");
    world.submit(EVE);
    world.schedule();
    assert_eq!((world.running(ADA), world.running(EVE)), (Some(2_000), Some(1_000)));
    world.set_users(None);
    assert_eq!((world.running(ADA), world.running(EVE)), (None, None));
    check(&world.state);
    // What runs counts from the policy on that states shares again.
    world.set_users(Some(UserShares::default()));
    assert_eq!((world.running(ADA), world.running(EVE)), (Some(2_000), Some(1_000)));
    world.pass_time(HOUR_MS);
    world.end(first);
    assert_eq!(world.running(ADA), Some(1_000));
}

#[test]
fn what_a_user_has_used_is_forgotten_once_it_has_decayed_to_nothing() {
    let mut world = World::new(4, Some(UserShares::default()));
    let job = world.submit(ADA);
    world.schedule();
    world.pass_time(60_000);
    world.end(job);
    assert_eq!(world.running(ADA), Some(0));
    world.pass_time(HOUR_MS);
    assert_eq!(world.running(ADA), Some(0), "a half-life later it is less");
    for _ in 0..30 {
        world.pass_time(HOUR_MS);
    }
    assert_eq!(world.running(ADA), None, "the leader's tick forgets it");
    check(&world.state);
}

#[test]
fn the_users_that_are_remembered_are_bounded() {
    // Long enough that no use decays to zero during the test.
    let mut world = World::with_half_life(1, Some(UserShares::default()), 1_000 * HOUR_MS);
    for n in 0..limits::SHARING_USERS_MAX + 5 {
        let job = world.submit(&format!("tenant/lab/u{n}"));
        schedule(&mut world.speculation, &mut Budget::new(u64::MAX));
        commit(&mut world.speculation, &mut world.state);
        let token = world.state.job(job).unwrap().placement.as_ref().expect("it is placed").token;
        world.pass_time(60_000);
        let updates = vec![(0, RankUpdate::Running), (0, RankUpdate::Exited(ExitStatus::Code(0)))];
        world.ask(&Command::Report { node: NodeId(0), incarnation: 1, job, token, updates });
    }
    let known = world.state.users_with_usage(&name("lab")).count();
    assert_eq!(known, limits::SHARING_USERS_MAX);
    assert!(world.state.user_usage(&name("lab"), "tenant/lab/u0").is_none(), "the oldest went");
    check(&world.state);
}

#[test]
fn whose_turn_it_is_shows_in_the_queue_and_in_explanations() {
    let mut world = World::new(2, Some(UserShares::default()));
    let placed = world.submit(ADA);
    world.schedule();
    assert!(world.is_placed(placed));
    let (of_ada, of_eve) = (world.submit(ADA), world.submit(EVE));
    let last = world.submit(ADA);
    let turns = users_of_queue(&world.state, &name("lab"), world.state.log_time(), 8);
    let users: Vec<&str> = turns.iter().map(|(_, place)| place.user.as_str()).collect();
    assert_eq!(users, [EVE, ADA], "who has used nothing goes first");
    world.schedule();
    assert!(
        world.is_placed(of_eve) && !world.is_placed(of_ada),
        "though the job of the other was there before"
    );
    for waits in [of_ada, last] {
        let said =
            explain_job(&world.state, world.state.log_time(), waits, world.speculation.kept_reservations());
        let said = said.expect("it waits").sentence;
        assert!(said.contains("it is the turn of its user") && !said.contains(EVE), "{said}");
    }
}

#[test]
fn a_group_of_several_users_has_a_place_for_each() {
    let mut world = World::new(1, Some(UserShares::default()));
    let held = world.submit(ADA);
    world.schedule();
    let of_ada: Vec<JobId> = (0..5).map(|_| world.submit(ADA)).collect();
    let of_eve: Vec<JobId> = (0..2).map(|_| world.submit(EVE)).collect();
    check(&world.state);
    let group = world.state.burst_of(of_ada[0]);
    assert!(of_eve.iter().all(|job| world.state.burst_of(*job) == group), "they are of one submission group");
    world.pass_time(60_000);
    world.end(held);
    world.schedule();
    assert!(world.is_placed(of_eve[0]));
    world.pass_time(60_000);
    world.end(of_eve[0]);
    world.schedule();
    // Each has used as much by now, of which that of the first is longer ago.
    assert!(world.is_placed(of_ada[0]) && !world.is_placed(of_eve[1]));
    let chunks: Vec<Vec<u8>> = world.state.snapshot().collect();
    let restored = State::restore(&chunks).expect("a snapshot");
    check(&restored);
    assert_eq!(restored.digest(), world.state.digest());
}
