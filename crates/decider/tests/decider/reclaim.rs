//! A large gang takes capacity back from very many small ones.

use muster_decider::{Answer, Command, Speculation, handle, schedule};
use muster_journal::{Decision, RankUpdate};
use muster_planner::Budget;
use muster_types::policy::{PolicyDraft, Quota, TenantPolicy, VICTIMS_USUAL};
use muster_types::{JobDraft, PriorityTier, Submission, limits};

use crate::support::{accelerators, founded, group, holder, job_draft, name, node_spec, request};

/// Jobs of one device on this number of hosts are more than most policies let one gang stop for its tier.
const HOSTS: u32 = 150;
const DEVICES: u16 = 8;
/// Those of one pass of a leader.
const VISITS: u64 = 200_000;

struct World {
    speculation: Speculation,
    requests: u128,
}

impl World {
    /// A fleet under a policy.
    fn new(policy: PolicyDraft) -> World {
        let (speculation, _) = founded();
        let mut world = World { speculation, requests: 0 };
        let policy = Box::new(policy.check().unwrap());
        let request = world.request();
        world.carry_out(&Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        });
        for n in 0..HOSTS {
            let spec = node_spec(&format!("n{n:03}"), "eu", "c1", Some(accelerators("h100", DEVICES)));
            world.carry_out(&Command::Register { spec, holder: holder(1), other_session_is_over: false });
        }
        world
    }

    fn request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    fn carry_out(&mut self, command: &Command) -> Answer {
        let answer = handle(&mut self.speculation, command).unwrap();
        self.speculation.take_round();
        answer
    }

    fn submit(&mut self, drafts: Vec<JobDraft>) {
        for drafts in drafts.chunks(limits::BATCH_JOBS_MAX) {
            let specs = drafts.iter().map(|draft| draft.clone().check().unwrap());
            let jobs = Submission::plain(specs);
            let request = self.request();
            self.carry_out(&Command::submit(request, jobs));
        }
    }

    /// What passes decide until nobody is to be looked at again.
    fn decide(&mut self) -> Vec<Decision> {
        let mut found = Vec::new();
        while self.speculation.wants_schedule() {
            schedule(&mut self.speculation, &mut Budget::new(VISITS));
            found.extend(self.speculation.take_round().into_iter().flat_map(|round| round.decisions));
        }
        found
    }
}

/// How many stop for a gang that needs the whole fleet, which a guest has filled with jobs of one device.
fn stopped_for_all_of_the_fleet(policy: PolicyDraft, tier: PriorityTier) -> usize {
    let mut world = World::new(policy);
    let guests = u32::from(DEVICES) * HOSTS;
    let lent = (0..guests).map(|_| {
        let mut draft = job_draft("lent", vec![group("main", 1, Some(accelerators("h100", 1)))]);
        draft.tenant = name("guest");
        draft
    });
    world.submit(lent.collect());
    for decision in world.decide() {
        let Decision::GangPlaced { job, workers } = decision else { continue };
        let token = world.speculation.state().job(job).unwrap().placement.as_ref().unwrap().token;
        let (node, incarnation) = (workers[0].node, workers[0].incarnation);
        let updates = vec![(0, RankUpdate::Running)];
        world.carry_out(&Command::Report { node, incarnation, job, token, updates });
    }
    assert_eq!(world.speculation.state().active_count(), guests as usize, "the fleet is full of guests");
    let minimum_run_ms = world.speculation.state().policy().policy.preemption.minimum_run_ms;
    let now = world.speculation.now().plus_ms(minimum_run_ms + 1);
    world.speculation.set_now(now);
    let mut own = job_draft("own", vec![group("main", HOSTS, Some(accelerators("h100", DEVICES)))]);
    (own.tenant, own.tier) = (name("owner"), tier);
    world.submit(vec![own]);
    let stops = world.decide().into_iter().map(|decision| match decision {
        Decision::Rearranged { stops, .. } => stops.len(),
        _ => 0,
    });
    stops.sum()
}

const ALL: usize = HOSTS as usize * DEVICES as usize;

#[test]
fn what_is_promised_comes_back_from_however_many_borrow_it() {
    let mut policy = PolicyDraft::default();
    policy.preemption.victims_max = 64;
    let quota = Quota {
        kind: name("h100"),
        region: None,
        nominal_milli: ALL as u64 * 1_000,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    };
    policy.tenants.insert(name("owner"), TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() });
    policy.tenants.insert(name("guest"), TenantPolicy::default());
    assert_eq!(stopped_for_all_of_the_fleet(policy, PriorityTier::Standard), ALL);
}

#[test]
fn a_higher_tier_has_as_many_stopped_as_the_policy_lets_it() {
    let mut policy = crate::support::with_all_rights(PolicyDraft::default());
    policy.preemption.victims_max = VICTIMS_USUAL - 1;
    assert_eq!(stopped_for_all_of_the_fleet(policy, PriorityTier::Production), 0);
}

/// Each of its devices may be held by another job, so a gang of more devices than the usual number of victims
/// would wait for good behind small jobs of a lower tier.
#[test]
fn a_higher_tier_has_a_job_stopped_for_each_device_where_the_policy_does_not_say() {
    let policy = crate::support::with_all_rights(PolicyDraft::default());
    assert_eq!(policy.preemption.victims_max, VICTIMS_USUAL);
    const { assert!(ALL > VICTIMS_USUAL as usize) };
    assert_eq!(stopped_for_all_of_the_fleet(policy, PriorityTier::Production), ALL);
}
