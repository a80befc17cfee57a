//! The books of the judge by themselves: what the product does and does not record is not held against it.

use muster_drill::judge::LogBooks;
use muster_journal::{
    CapacityHold, Decision, Estimate, NodeLostCause, RearrangeCause, RequestKey, Stop, SubmittedPart,
    WorkerSlot,
};
use muster_types::policy::{CountedResource, PolicyDraft, Quota, QuotaGrant, TenantPolicy};
use muster_types::{
    ArrayId, ArraySpec, ClusterId, Control, DeviceSet, FencingToken, HolderId, JobId, LogIndex, LogTime,
    Name, NodeId, Parameters, RequestId, Requester,
};
use std::sync::Arc;

use crate::support::{h100, job, node};

/// When every grant is over.
const UNTIL_MS: u64 = 1_000_000;

/// A log that is written one record at a time.
#[derive(Default)]
struct Log {
    books: LogBooks,
    generation: u32,
    last: u64,
    /// Log time in addition to a millisecond for each record.
    passed_ms: u64,
}

impl Log {
    /// One with this number of hosts, each with eight devices.
    fn of_hosts(hosts: u32) -> Log {
        let mut log = Log { generation: 1, ..Log::default() };
        let parameters = Parameters::DEFAULT;
        log.is_sound(Decision::ClusterCreated { cluster: ClusterId(1), generation: 1, parameters });
        log.register(hosts, 0);
        log
    }

    /// Begins a session of each of this number of hosts.
    fn register(&mut self, hosts: u32, holder: u128) {
        for host in 0..hosts {
            let (spec, holder) = (node(&format!("n{host}"), "eu"), HolderId(holder + u128::from(host)));
            self.is_sound(Decision::NodeRegistered { spec, holder });
        }
    }

    /// What a record breaks.
    fn record(&mut self, decision: Decision) -> Vec<String> {
        self.last += 1;
        self.books.record(LogIndex(self.last), LogTime(self.last + self.passed_ms), &decision, true)
    }

    fn is_sound(&mut self, decision: Decision) {
        assert_eq!(self.record(decision), Vec::<String>::new());
    }

    fn key(&self) -> RequestKey {
        RequestKey { id: RequestId(u128::from(self.last) + 1), fingerprint: 1 }
    }

    /// Sets a policy of these tenants: each with the one above it, its nominal quota, and nothing to borrow.
    fn set_policy(&mut self, tenants: &[(&'static str, Option<&'static str>, u64)]) {
        let tenant = |&(name, parent, devices): &(&'static str, Option<&'static str>, u64)| {
            let quota = Quota {
                kind: Name::literal("h100"),
                region: None,
                nominal_milli: devices * 1_000,
                borrowing_limit_milli: Some(0),
                lending_limit_milli: None,
            };
            let parent = parent.map(Name::literal);
            let settings = TenantPolicy { parent, quotas: vec![quota], ..TenantPolicy::default() };
            (Name::literal(name), settings)
        };
        let draft = PolicyDraft { tenants: tenants.iter().map(tenant).collect(), ..PolicyDraft::default() };
        let policy = Box::new(draft.check().expect("a policy"));
        let (request, by) = (self.key(), Requester::default());
        self.is_sound(Decision::PolicySet { request, by, policy });
    }

    fn grant(&mut self, tenant: &'static str, devices: u64) {
        let (request, by, grant) = (self.key(), Requester::default(), of_quota(tenant, devices));
        self.is_sound(Decision::QuotaGranted { request, by, giver: None, grant });
    }

    /// Submits a job of one worker.
    fn submit(&mut self, tenant: &str, devices: u16) -> JobId {
        let name = format!("j{}", self.last);
        let (request, by) = (self.key(), Requester::default());
        let specs = vec![Arc::new(job(&name, tenant, Some(h100(devices))))];
        self.is_sound(Decision::JobsSubmitted { request, by, specs, estimates: vec![Estimate::default()] });
        JobId::derive_in(self.generation, LogIndex(self.last), 0)
    }

    /// Submits an array of jobs of one worker.
    fn submit_array(&mut self, size: u32) -> ArrayId {
        let array = SubmittedPart {
            spec: Arc::new(job("sweep", "lab", Some(h100(1)))),
            contract: None,
            metadata: None,
            array: Some(ArraySpec::of_size(size)),
            estimate: Estimate::default(),
        };
        let (request, by) = (self.key(), Requester::default());
        self.is_sound(Decision::ArraysSubmitted { request, by, parts: vec![array] });
        ArrayId(JobId::derive_in(self.generation, LogIndex(self.last), 0).0)
    }

    /// Holds or releases an array.
    fn control(&mut self, control: Control, array: ArrayId, is_operator: bool) {
        let (request, by) = (self.key(), Requester::named("lab/ada".into(), is_operator));
        let (arrays, jobs) = (vec![array], Vec::new());
        self.is_sound(Decision::ArraysControlled { request, by, control, arrays, jobs });
    }

    /// What it breaks that a job begins there.
    fn place(&mut self, job: JobId, workers: Vec<WorkerSlot>) -> Vec<String> {
        self.record(Decision::GangPlaced { job, workers })
    }
}

fn of_quota(tenant: &'static str, devices: u64) -> Box<QuotaGrant> {
    Box::new(QuotaGrant {
        tenant: Name::literal(tenant),
        kind: Name::literal("h100"),
        region: None,
        amount_milli: devices * 1_000,
        until: LogTime(UNTIL_MS),
        reason: "a deadline".into(),
    })
}

/// Devices of a host in its first session.
fn slot(host: u32, devices: u64) -> WorkerSlot {
    WorkerSlot { node: NodeId(host), incarnation: 1, devices: DeviceSet(devices) }
}

fn is_beyond_quota(found: &[String]) -> bool {
    found.iter().any(|text| text.starts_with("QUOTA_EXCEEDED"))
}

/// Licences are held by gangs as a whole, from their placement to their end.
#[test]
fn no_more_licences_are_held_than_there_are() {
    let mut log = Log::of_hosts(1);
    let resource = CountedResource { name: Name::literal("matlab"), count: 2, region: None };
    let policy = PolicyDraft { resources: vec![resource], ..PolicyDraft::default() };
    let policy = Box::new(policy.check().expect("a policy"));
    let (request, by) = (log.key(), Requester::default());
    log.is_sound(Decision::PolicySet { request, by, policy });
    let submit = |log: &mut Log| {
        let mut draft = job(&format!("j{}", log.last), "lab", Some(h100(1))).into_draft();
        draft.licences = [(Name::literal("matlab"), 2)].into();
        let (request, by) = (log.key(), Requester::default());
        let specs = vec![Arc::new(draft.check().expect("a job"))];
        log.is_sound(Decision::JobsSubmitted { request, by, specs, estimates: vec![Estimate::default()] });
        JobId::derive_in(log.generation, LogIndex(log.last), 0)
    };
    let (first, second) = (submit(&mut log), submit(&mut log));
    assert_eq!(log.place(first, vec![slot(0, 0b1)]), Vec::<String>::new());
    let found = log.books.record(
        LogIndex(log.last + 1),
        LogTime(log.last + 1),
        &Decision::GangPlaced { job: second, workers: vec![slot(0, 0b10)] },
        false,
    );
    assert!(is_beyond_quota(&found), "{found:?}");
    log.last += 1;
    log.is_sound(Decision::JobFinished { job: first, outcome: muster_journal::Outcome::Cancelled });
    assert_eq!(log.place(second, vec![slot(0, 0b10)]), Vec::<String>::new());
}

/// No record names a grant that ends because a policy leaves nothing for it. Those that it leaves in force count all the same.
#[test]
fn a_grant_that_a_policy_ends_takes_no_other_with_it() {
    let mut log = Log::of_hosts(1);
    log.set_policy(&[("lab", None, 4), ("team", Some("lab"), 2), ("shop", None, 1)]);
    log.grant("team", 2);
    log.grant("shop", 2);
    log.set_policy(&[("lab", None, 2), ("team", Some("lab"), 2), ("shop", None, 1)]);
    let within = log.submit("shop", 2);
    assert_eq!(log.place(within, vec![slot(0, 0b11)]), Vec::<String>::new());
    let beyond = log.submit("shop", 2);
    let found = log.place(beyond, vec![slot(0, 0b1100)]);
    assert!(is_beyond_quota(&found), "{found:?}");
}

/// A grant that has ended is over also when the policy is again as it was.
#[test]
fn a_grant_that_a_policy_has_ended_does_not_come_back() {
    let mut log = Log::of_hosts(1);
    let before = [("lab", None, 4), ("team", Some("lab"), 2)];
    log.set_policy(&before);
    log.grant("team", 2);
    log.set_policy(&[("lab", None, 2), ("team", Some("lab"), 2)]);
    log.set_policy(&before);
    let beyond = log.submit("team", 4);
    let found = log.place(beyond, vec![slot(0, 0b1111)]);
    assert!(is_beyond_quota(&found), "{found:?}");
}

/// A tenant that moves within the tree loses what it was granted, and not what it has asked for.
#[test]
fn a_request_for_quota_is_granted_though_its_tenant_has_moved() {
    let mut log = Log::of_hosts(1);
    log.set_policy(&[("lab", None, 8), ("shop", None, 1)]);
    let (request, by) = (log.key(), Requester::default());
    log.is_sound(Decision::QuotaRequested { request, by, grant: of_quota("shop", 2) });
    let id = LogIndex(log.last);
    log.set_policy(&[("lab", None, 8), ("shop", Some("lab"), 1)]);
    let (request, by, reason) = (log.key(), Requester::default(), "as agreed".to_owned());
    log.is_sound(Decision::QuotaAnswered { request, by, id, giver: None, approved: true, reason });
    let within = log.submit("shop", 3);
    assert_eq!(log.place(within, vec![slot(0, 0b111)]), Vec::<String>::new());
    let beyond = log.submit("shop", 1);
    let found = log.place(beyond, vec![slot(0, 0b1000)]);
    assert!(is_beyond_quota(&found), "{found:?}");
}

/// What a gang goes on in has no spares on nodes that were lost meanwhile, and nobody is charged for these.
#[test]
fn a_spare_that_was_lost_is_not_charged_where_a_gang_goes_on() {
    let mut log = Log::of_hosts(4);
    log.set_policy(&[("lab", None, 3)]);
    let gang = log.submit("lab", 1);
    let found = log.place(gang, vec![slot(0, 1), slot(1, 1), slot(2, 1)]);
    assert_eq!(found, Vec::<String>::new());
    let token = FencingToken { generation: 1, log_index: LogIndex(log.last) };
    for host in [1, 0] {
        let (node, cause) = (NodeId(host), NodeLostCause::LeaseExpired);
        log.is_sound(Decision::NodeLost { node, incarnation: 1, cause });
    }
    log.is_sound(Decision::SparesTaken { job: gang, token, ranks: vec![(0, slot(2, 1))] });
    let other = log.submit("lab", 2);
    assert_eq!(log.place(other, vec![slot(3, 0b11)]), Vec::<String>::new());
    let beyond = log.submit("lab", 1);
    let found = log.place(beyond, vec![slot(3, 0b100)]);
    assert!(is_beyond_quota(&found), "{found:?}");
}

/// Ids of a generation begin at its records, however large the arrays were before it. Jobs of both are known.
#[test]
fn devices_are_counted_for_jobs_behind_a_recovery_as_for_those_before_it() {
    let mut log = Log::of_hosts(1);
    let first = log.submit("lab", 1);
    log.submit_array(5_000);
    log.is_sound(Decision::ClusterRecovered { generation: 2 });
    log.generation = 2;
    log.register(1, 7);
    let in_second_session = |devices| WorkerSlot { incarnation: 2, ..slot(0, devices) };
    let second = log.submit("lab", 2);
    assert_eq!(log.place(first, vec![in_second_session(0b1)]), Vec::<String>::new());
    assert_eq!(log.place(second, vec![in_second_session(0b110)]), Vec::<String>::new());
    let third = log.submit("lab", 1);
    let found = log.place(third, vec![in_second_session(0b10)]);
    assert!(found.iter().any(|text| text.starts_with("LEASED_TWICE")), "{found:?}");
}

/// Members that are not created have no hold each: that of their array keeps them from being jobs.
#[test]
fn members_of_an_array_are_not_created_while_anybody_holds_it() {
    let mut log = Log::of_hosts(1);
    let array = log.submit_array(10);
    let created = || Decision::ArrayMembersCreated { array, first: None, count: 1 };
    log.is_sound(created());
    log.control(Control::Hold, array, false);
    log.control(Control::Hold, array, true);
    log.control(Control::Release, array, true);
    let found = log.record(created());
    assert!(found.iter().any(|text| text.starts_with("STARTED_HELD")), "{found:?}");
    log.control(Control::Release, array, false);
    log.is_sound(created());
}

/// A leader that stood still takes what agents report before it looks for what time has brought about.
#[test]
fn a_gang_starts_in_what_was_promised_to_it_also_behind_the_end_of_a_grant() {
    let mut log = Log::of_hosts(1);
    log.set_policy(&[("lab", None, 4)]);
    log.grant("lab", 4);
    let (stopped, promised) = (log.submit("lab", 1), log.submit("lab", 1));
    assert_eq!(log.place(stopped, vec![slot(0, 0b1)]), Vec::<String>::new());
    let token = FencingToken { generation: 1, log_index: LogIndex(log.last) };
    let cause = RearrangeCause::Preempted { by: promised };
    let stops = vec![Stop { job: stopped, token, cause }];
    let promises = vec![CapacityHold { job: promised, workers: vec![slot(0, 0b10)] }];
    log.is_sound(Decision::Rearranged { stops, promises });
    log.passed_ms = UNTIL_MS;
    let other = log.submit("lab", 1);
    log.passed_ms += 6_000;
    assert_eq!(log.place(promised, vec![slot(0, 0b10)]), Vec::<String>::new());
    let found = log.place(other, vec![slot(0, 0b100)]);
    assert!(found.iter().any(|text| text.starts_with("GRANT_OUTLIVED")), "{found:?}");
}
