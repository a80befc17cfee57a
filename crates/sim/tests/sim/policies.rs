//! Replays under a whole policy: tenants, quotas, rights, deadlines and windows.

use muster_sim::queue::{Options, Report};
use muster_sim::{EPOCH_MS, ReplayPolicy, html, stopped, trace};
use muster_types::policy::{
    NonPreemptible, PolicyDraft, Quota, TenantPolicy, TenantRights, Window, WindowPurpose, WindowScope,
};
use muster_types::{LogTime, Name, PriorityTier};

use crate::support::{Files, nodes, replay};

const HEADER: &str = "job_id,submit_s,duration_s,accel_type,replicas,accel_milli,cpu_milli,mem_mib,tenant,tier,preemptible,deadline_s";

/// Jobs: `id submit duration devices tenant`, and `tier=…`, `preemptible=…`, `deadline=…` where they matter.
fn jobs(rows: &[&str]) -> String {
    let mut text = format!("{HEADER}\n");
    for row in rows {
        let cells: Vec<&str> = row.split(' ').collect();
        let [id, submit, duration, devices, tenant] = cells[..5] else { panic!("{row}") };
        let said = |key: &str| {
            let with = |cell: &&str| {
                cell.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')).map(str::to_owned)
            };
            cells.iter().find_map(with).unwrap_or_default()
        };
        let (tier, preemptible, deadline) = (said("tier"), said("preemptible"), said("deadline"));
        text += &format!(
            "{id},{submit},{duration},A100,1,{devices}000,,,{tenant},{tier},{preemptible},{deadline}\n"
        );
    }
    text
}

fn name(text: &str) -> Name {
    Name::literal(Box::leak(text.to_owned().into_boxed_str()))
}

fn tenant(nominal: u64, rights: TenantRights) -> TenantPolicy {
    let quota = Quota {
        kind: name("a100"),
        region: None,
        nominal_milli: nominal * 1_000,
        borrowing_limit_milli: None,
        lending_limit_milli: None,
    };
    TenantPolicy { quotas: vec![quota], rights, ..TenantPolicy::default() }
}

fn policy(tenants: &[(&str, u64, TenantRights)]) -> PolicyDraft {
    let listed =
        |(text, nominal, rights): &(&str, u64, TenantRights)| (name(text), tenant(*nominal, *rights));
    PolicyDraft { tenants: tenants.iter().map(listed).collect(), ..PolicyDraft::default() }
}

fn under(draft: PolicyDraft) -> Options {
    let policy = Box::new(draft.check().unwrap());
    Options::under(ReplayPolicy::Whole { label: "policy.yaml".to_owned(), policy })
}

fn run(node_rows: &[&str], job_rows: &[&str], draft: PolicyDraft) -> Report {
    replay(&Files::new(&[("nodes.csv", &nodes(node_rows)), ("jobs.csv", &jobs(job_rows))]), under(draft))
}

const NONE: TenantRights = TenantRights {
    tier_max: None,
    non_preemptible: None,
    deadlines: None,
    bookings: None,
    purchases: muster_types::PurchaseSet::EMPTY,
    negative_nice: None,
};

#[test]
fn an_owner_takes_back_what_a_guest_borrows() {
    let draft = policy(&[("owner", 4, NONE), ("guest", 0, NONE)]);
    let report = run(&["n1 c1 A100 4"], &["borrows 0 36000 4 Guest", "own 600 3600 4 owner"], draft);
    assert_eq!((report.policy.as_str(), report.finished, report.preemptions), ("policy.yaml", 2, 1));
    let [guest, owner] = &report.tenants[..] else { panic!("{:?}", report.tenants) };
    assert_eq!((guest.tenant.as_str(), guest.listed, guest.jobs, guest.finished), ("guest", true, 1, 1));
    assert_eq!((guest.stopped_by_policy, guest.device_hours_lost), (1, 0.667));
    // Ten minutes that were lost, and ten hours.
    assert_eq!((guest.device_hours_within_nominal, guest.device_hours_borrowed), (0.0, 40.667));
    assert_eq!(guest.queueing.max_s, 4_200.0);
    assert_eq!((owner.tenant.as_str(), owner.queueing.max_s, owner.stopped_by_policy), ("owner", 0.0, 0));
    assert_eq!((owner.device_hours_within_nominal, owner.device_hours_borrowed), (4.0, 0.0));
}

#[test]
fn the_minimum_run_of_a_borrower_ends_although_nothing_else_happens() {
    let draft = policy(&[("owner", 4, NONE), ("guest", 0, NONE)]);
    let report = run(&["n1 c1 A100 4"], &["borrows 0 36000 4 guest", "own 60 3600 4 owner"], draft);
    let owner = report.tenants.iter().find(|tenant| tenant.tenant == "owner").unwrap();
    // The minimum run is two minutes; a replay looks again at least every half minute at first.
    assert!((60.0..=150.0).contains(&owner.queueing.max_s), "{owner:?}");
}

#[test]
fn what_the_policy_refuses_is_counted_by_reason() {
    let rights = TenantRights { tier_max: Some(PriorityTier::Production), ..NONE };
    let draft = policy(&[("owner", 4, rights), ("guest", 0, NONE)]);
    let rows = [
        "may 0 100 1 owner tier=production",
        "high 0 100 1 guest tier=production",
        "highest 0 100 1 owner tier=critical",
        "fixed 0 100 1 guest preemptible=false",
        "hopeless 0 100 1 guest deadline=60",
        "large 0 100 60 guest",
    ];
    let report = run(&["n1 c1 A100 4"], &rows, draft);
    let refused: Vec<(&str, u64)> =
        report.refused.iter().map(|reason| (reason.code.as_str(), reason.jobs.count)).collect();
    assert_eq!(refused, [("DEADLINE_UNMEETABLE", 1), ("RIGHT_MISSING", 3)]);
    assert!(
        report.refused[1].jobs.examples[0].reason.contains("tierMax: production"),
        "{:?}",
        report.refused
    );
    assert_eq!((report.never_fit.count, report.finished), (1, 1));
    let by_tenant: Vec<(&str, u64)> =
        report.tenants.iter().map(|tenant| (tenant.tenant.as_str(), tenant.refused)).collect();
    assert_eq!(by_tenant, [("owner", 1), ("guest", 3)]);
}

#[test]
fn a_job_that_its_quota_can_never_hold_is_named_with_that_reason() {
    let mut draft = policy(&[("small", 1, NONE)]);
    for tenant in draft.tenants.values_mut() {
        tenant.quotas[0].borrowing_limit_milli = Some(0);
    }
    let report = run(&["n1 c1 A100 4"], &["two 0 100 2 small", "one 0 100 1 small"], draft);
    assert_eq!((report.finished, report.unfinished.count), (1, 1));
    assert_eq!(report.unfinished_by_reason.len(), 1);
    let reason = &report.unfinished_by_reason[0];
    assert_eq!((reason.code.as_str(), reason.jobs.examples[0].job.as_str()), ("QUOTA_EXCEEDED", "two"));
    assert_eq!(report.tenants[0].unfinished, 1);
}

#[test]
fn deadlines_end_jobs_and_are_counted() {
    let draft = policy(&[("owner", 4, TenantRights { deadlines: Some(true), ..NONE })]);
    let rows = ["first 0 1000 4 owner", "late 0 500 4 owner deadline=600"];
    let report = run(&["n1 c1 A100 4"], &rows, draft);
    // The shorter goes first by default; the other way round nobody would be late.
    assert_eq!((report.finished, report.late.count), (2, 0));
    let draft = policy(&[("owner", 4, NONE)]);
    let rows = ["first 0 1000 4 owner", "late 10 500 4 owner deadline=600"];
    let report = run(&["n1 c1 A100 4"], &rows, draft);
    assert_eq!((report.finished, report.late.count), (1, 1));
    assert_eq!(report.late.examples[0].job, "late");
}

#[test]
fn windows_open_and_close_at_their_times_of_the_trace() {
    let at = |hours: u64| LogTime(EPOCH_MS + hours * 3_600_000);
    let window = Window {
        name: name("upkeep"),
        from: at(1),
        until: at(3),
        scope: WindowScope { node: Some(name("n1")), ..WindowScope::default() },
        purpose: WindowPurpose::Maintenance,
    };
    let draft = PolicyDraft { windows: vec![window.clone()], ..PolicyDraft::default() };
    // It does not end before the window, so it waits until that is over, although nothing else happens.
    let report = run(&["n1 c1 A100 4"], &["long 0 7200 4 a", "short 0 1800 4 a"], draft.clone());
    assert_eq!((report.finished, report.window_stops, report.queueing.max_s), (2, 0, 10_800.0));
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    // A trace that begins when the window is long over.
    let files =
        Files::new(&[("nodes.csv", &nodes(&["n1 c1 A100 4"])), ("jobs.csv", &jobs(&["long 0 7200 4 a"]))]);
    let later = Options { start_ms: at(24).0, ..under(draft) };
    let report = replay(&files, later);
    assert_eq!(report.queueing.max_s, 0.0);
    assert!(report.notes[0].contains("WINDOW_OVER"), "{:?}", report.notes);
    assert!(
        report.notes[1].contains("never open") && report.notes[1].contains("upkeep"),
        "{:?}",
        report.notes
    );
}

#[test]
fn a_quota_of_a_type_that_the_fleet_has_not_is_warned_of() {
    let mut draft = policy(&[("owner", 4, NONE)]);
    draft.tenants.get_mut(&name("owner")).unwrap().quotas[0].kind = name("h100");
    let report = run(&["n1 c1 A100 4"], &["a 0 10 1 owner"], draft);
    let field = "tenants.owner.quotas[0]: UNKNOWN_TYPE: no node has accelerators of type h100";
    assert!(report.notes[0].starts_with(field), "{:?}", report.notes);
}

#[test]
fn tenants_that_the_other_side_does_not_name_are_said() {
    let draft = policy(&[("owner", 4, NONE), ("nobody", 0, NONE)]);
    let report = run(&["n1 c1 A100 4"], &["a 0 10 1 owner", "b 0 10 1 stranger"], draft);
    assert_eq!(report.notes.len(), 3, "{:?}", report.notes);
    assert!(report.notes[0].starts_with("tenants.nobody: NOTHING_GUARANTEED: "), "{:?}", report.notes);
    assert!(report.notes[1].ends_with("(1): nobody"), "{:?}", report.notes);
    assert!(report.notes[2].ends_with("(1): stranger"), "{:?}", report.notes);
    let page = html::page(&[report]);
    assert!(page.contains("stranger") && page.contains("Tenants"), "{page}");
}

#[test]
fn two_policies_stand_side_by_side_on_one_page() {
    let jobs = ["borrows 0 36000 4 guest", "own 600 3600 4 owner"];
    let nodes = ["n1 c1 A100 4"];
    let one = run(&nodes, &jobs, policy(&[("owner", 4, NONE), ("guest", 0, NONE)]));
    let mut other = run(&nodes, &jobs, policy(&[("owner", 0, NONE), ("guest", 4, NONE)]));
    other.policy = "other.yaml".to_owned();
    let page = html::page(&[one, other]);
    for part in ["policy.yaml", "other.yaml", "Policies side by side"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_fleet_is_filled_as_far_as_the_policy_lets_each_tenant() {
    let rights = TenantRights { non_preemptible: Some(NonPreemptible::WithinNominal), ..NONE };
    let mut draft = policy(&[("owner", 2, rights), ("guest", 1, NONE)]);
    draft.tenants.get_mut(&name("guest")).unwrap().quotas[0].borrowing_limit_milli = Some(0);
    let rows = [
        "g1 0 1 1 guest",
        "g2 0 1 1 guest",
        "g3 0 1 1 guest tier=critical",
        "o1 0 1 2 owner preemptible=false",
    ];
    let files = Files::new(&[
        ("nodes.csv", &nodes(&["n1 c1 A100 4"])),
        ("jobs.csv", &jobs(&rows)),
        ("order.txt", "g1\ng2\ng3\no1\n"),
    ]);
    let nodes = trace::read_nodes(&files.path("nodes.csv")).unwrap();
    let jobs = trace::Jobs::read(&files.path("jobs.csv"), trace::SubmitOrder::Any).unwrap();
    let order = trace::Order::open(&files.path("order.txt"), &jobs).unwrap();
    let policy = under(draft).policy;
    let report = muster_sim::pack::pack(&nodes, &jobs, order, &policy, EPOCH_MS, &stopped).unwrap();
    assert_eq!((report.placed, report.unplaced.no_room), (2, 1));
    assert_eq!(report.unplaced.refused.get("RIGHT_MISSING"), Some(&1));
    assert_eq!(report.unplaced.no_room_by_reason.get("QUOTA_EXCEEDED"), Some(&1));
    let guest = &report.tenants[0];
    assert_eq!((guest.tenant.as_str(), guest.jobs, guest.placed, guest.refused), ("guest", 3, 1, 1));
    assert_eq!((guest.allocated_milli, guest.borrowed_milli), (1_000, 0));
}
