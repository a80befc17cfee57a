//! Histories and logs broken on purpose, one way for each rule.

use muster_drill::history::{
    Call, Consistency, JobPhase, Observation, Operation, Outcome, Query, Torn, WatchChange,
};
use muster_drill::judge::{LogRound, Rule};
use muster_journal::{Decision, Estimate, NodeLostCause, RequestKey, Round, WorkerSlot, encode_round};
use muster_types::policy::{PolicyDraft, PurchaseKind, Quota, QuotaGrant, TenantPolicy};
use muster_types::{
    BookingClearing, BookingShape, BookingSpec, BookingTimes, CapacityFallback, CapacityRules, DeviceSet,
    FleetHold, FleetPart, HoldTarget, HolderId, JobDraft, JobId, LogIndex, LogTime, Name, NodeId,
    OverlapRule, PurchaseSet, RequestId, Requester, Schedule, ScheduleKey, ScheduleRun, ScheduleTemplate,
    TokenGrant, TokenId, TokenRole,
};

use std::collections::BTreeSet;

use crate::support::{self, Sample, seen};

/// Breaks a sample; none where this one has no place for it.
type Breach = fn(&mut Sample) -> Option<()>;

pub const BREACHES: &[(&str, Rule, Breach)] = &[
    ("an acknowledged submission is not in the log", Rule::AcknowledgementLost, lost),
    ("a submission is told another position", Rule::WrongRecord, other_position),
    ("a submission is told other jobs", Rule::WrongRecord, other_jobs),
    ("a request is carried out twice", Rule::DoneTwice, twice),
    ("the log has a request that nobody made", Rule::RequestOfNobody, nobody),
    ("a device is given to two gangs", Rule::LeasedTwice, leased_twice),
    ("a gang is placed on a node that is lost", Rule::LeaseWithoutSession, lost_node),
    ("a gang is placed beyond its tenant's quota", Rule::QuotaExceeded, over_quota),
    ("a gang is placed that its owner holds", Rule::StartedHeld, started_held),
    ("a gang is placed in a region that is held", Rule::StartedHeld, started_in_held_region),
    ("a gang is placed during the maintenance of a region", Rule::BookingBroken, started_in_maintenance),
    ("a gang is placed that is cancelled", Rule::StartedCancelled, started_cancelled),
    ("a gang is placed with fewer workers than it needs", Rule::SizeImpossible, too_small),
    ("a gang is placed on nodes that were not bought as it asks for", Rule::PurchaseBroken, other_purchase),
    ("a fallback opens too early", Rule::PurchaseBroken, fallback_early),
    ("a gang is placed on nodes that others have booked", Rule::BookingBroken, booked_by_others),
    ("a window of a booking opens too early", Rule::BookingBroken, opened_early),
    ("a gang is placed on a grant that is over", Rule::GrantOutlived, grant_outlived),
    ("a moment of a schedule is carried out twice", Rule::ScheduleMoment, moment_twice),
    ("a schedule makes a job by a token that was revoked", Rule::TokenOutlived, token_outlived),
    ("the guard refuses a record of the leader in force", Rule::RecordRefused, refused_by_guard),
    ("linearizable reads are silent for too long", Rule::ReadsLate, reads_late),
    ("submissions stay slow while the fault lasts", Rule::SubmissionsSlow, slow),
    ("a gang is interrupted that was to go on", Rule::GangTouched, gang_touched),
    ("no replica warns", Rule::WarningMissing, unwarned),
    ("a watch shows nothing more", Rule::WatchStalled, stalled),
    ("a minority acknowledges a change", Rule::MinorityDecided, minority),
    ("a minority denies that there is a job", Rule::MinorityDecided, denying_minority),
    ("an answer makes no sense", Rule::ContentDiffers, malformed),
    ("a survivor has forgotten every job", Rule::SurvivorsSilent, forgetful),
    ("a process ended by itself", Rule::DrillIncomplete, troubled),
    ("what was refused is in the log", Rule::DoneThoughRefused, refused),
    ("a later change stands before an earlier one", Rule::OrderBroken, reordered),
    ("log time stands still", Rule::LogTimeStands, time_stands),
    ("a linearizable read is answered from an old state", Rule::StaleLinearizableRead, stale_read),
    ("a linearizable read does not find a job", Rule::StaleLinearizableRead, not_found),
    ("a bounded read is older than its bound", Rule::StaleBoundedRead, beyond_bound),
    ("an answer is older than it says", Rule::StalenessUntrue, untrue),
    ("a session sees less than it saw", Rule::SessionWentBack, session),
    ("an answer is from behind the log's end", Rule::AnswerFromNowhere, nowhere),
    ("a job is shown in another phase", Rule::ContentDiffers, other_phase),
    ("a page is of another prefix", Rule::ContentDiffers, other_page),
    ("a digest is of another prefix", Rule::ContentDiffers, other_digest),
    ("a watch leaves a change out", Rule::WatchDiffers, gap),
    ("a watch shows a change twice", Rule::WatchDiffers, watched_twice),
    ("a watch shows two changes in another order", Rule::WatchDiffers, watched_swapped),
    ("a watch begins without a job", Rule::WatchDiffers, watched_present),
    ("two attempts of a gang run at the same time", Rule::Overlap, overlap),
    ("a worker runs under a token that nobody gave", Rule::RanUnplaced, unplaced),
    ("a replica has another state", Rule::ReplicaDiffers, replica),
    ("a replica is not seen behind the fault", Rule::ReplicasApart, replica_unseen),
    ("a round of the log is gone", Rule::AcknowledgementLost, round_gone),
    ("a round of the log is damaged", Rule::Log, round_damaged),
    ("a leader recorded another digest", Rule::Log, diverged),
    ("no linearizable read was made", Rule::NotChecked, no_reads),
    ("the last line of a history is torn", Rule::History, torn),
    ("a history is given twice", Rule::History, repeated),
    ("a submission behind the fault is never answered", Rule::SubmissionFailed, unanswered),
    ("submissions are silent for too long", Rule::SubmissionsLate, silent),
    ("reads on a survivor stop", Rule::SurvivorsSilent, survivor_silent),
    ("leadership comes back to where it was", Rule::Leadership, same_leader),
    ("a gang waits for too long", Rule::GangsLate, gang_late),
];

fn acknowledged(sample: &mut Sample) -> impl Iterator<Item = &mut Operation> {
    let submitted = |operation: &&mut Operation| {
        matches!(operation.call, Call::Submit { .. })
            && matches!(operation.outcome, Outcome::Acknowledged { .. })
    };
    sample.history.operations.iter_mut().filter(submitted)
}

fn answered(sample: &mut Sample, wanted: impl Fn(&Query, &Consistency) -> bool) -> Option<&mut Operation> {
    // From the end: much was shown before it.
    sample.history.operations.iter_mut().rev().find(|operation| {
        let is_answered = matches!(operation.outcome, Outcome::Answered { .. });
        matches!(&operation.call, Call::Read { query, consistency, .. } if is_answered && wanted(query, consistency))
    })
}

fn lost(sample: &mut Sample) -> Option<()> {
    let operation = acknowledged(sample).nth(3)?;
    if let Call::Submit { request, .. } = &mut operation.call {
        *request = RequestId(0xdead);
    }
    Some(())
}

fn other_position(sample: &mut Sample) -> Option<()> {
    let operation = acknowledged(sample).nth(2)?;
    if let Outcome::Acknowledged { log_index, .. } = &mut operation.outcome {
        *log_index += 1;
    }
    Some(())
}

fn other_jobs(sample: &mut Sample) -> Option<()> {
    let operation = acknowledged(sample).nth(2)?;
    if let Outcome::Acknowledged { jobs, .. } = &mut operation.outcome {
        jobs.push(JobId(7));
    }
    Some(())
}

/// Adds a round behind the last one.
fn append(sample: &mut Sample, decisions: Vec<Decision>) {
    append_rounds(sample, vec![(0, decisions)]);
}

/// Adds rounds behind the last one, each a number of milliseconds after it.
fn append_rounds(sample: &mut Sample, rounds: Vec<(u64, Vec<Decision>)>) {
    let mut archived = sample.rounds.last().expect("a log has rounds").round.clone();
    let (_, state) = sample.past.last().expect("a log has states").clone();
    let leadership = state.leadership().expect("somebody leads");
    let mut basis_index = state.log_index();
    for (after_ms, decisions) in rounds {
        let records = decisions.len() as u64;
        let round = Round {
            format: muster_journal::FORMAT_MIN,
            term: leadership.term,
            replica: leadership.replica,
            first_index: basis_index.next(),
            basis_index,
            log_time: state.log_time().plus_ms(after_ms),
            decisions,
        };
        basis_index = LogIndex(basis_index.0 + records);
        archived.raft_index += 1;
        archived.payload = encode_round(&round).into();
        sample.rounds.push(LogRound::whole(archived.clone()));
    }
}

fn twice(sample: &mut Sample) -> Option<()> {
    let request = acknowledged(sample).nth(1)?.request()?;
    let spec = sample.past.last()?.1.jobs().iter().map(|(id, _)| *id).next()?;
    let spec = sample.past.last()?.1.spec(spec)?.clone();
    let (requests_before, jobs_before) = (LogTime(u64::MAX), LogTime(0));
    let request = RequestKey { id: request, fingerprint: 1 };
    // Forgotten, and so taken again.
    append(
        sample,
        vec![
            Decision::HistoryPruned { requests_before, jobs_before },
            Decision::JobsSubmitted {
                request,
                by: muster_types::Requester::default(),
                specs: vec![spec],
                estimates: vec![Estimate::default()],
            },
        ],
    );
    Some(())
}

fn nobody(sample: &mut Sample) -> Option<()> {
    // As a client makes one that repeats a request under a new id: the history has the first id alone.
    let ids: Vec<RequestId> = acknowledged(sample).filter_map(|operation| operation.request()).collect();
    let middle = *ids.get(ids.len() / 2)?;
    sample.history.operations.retain(|operation| operation.request() != Some(middle));
    Some(())
}

fn refused_by_guard(sample: &mut Sample) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let running = |job: &JobId| state.job(*job).is_some_and(|row| row.placement.is_some());
    let job = state.jobs().iter().map(|(job, _)| *job).find(running)?;
    append(sample, vec![Decision::GangPlaced { job, workers: Vec::new() }]);
    Some(())
}

/// Another job like one that runs, and where it is to run, behind some other decisions.
fn placed_again(
    sample: &mut Sample,
    mut before: Vec<Decision>,
    change: impl Fn(&mut WorkerSlot),
) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let runs = |job: &JobId| state.job(*job).is_some_and(|row| row.placement.is_some());
    let job = state.jobs().iter().map(|(job, _)| *job).find(runs)?;
    let mut workers = state.job(job)?.placement.as_ref()?.slots.clone();
    workers.iter_mut().for_each(change);
    let place = state.log_index().0 + 1 + before.len() as u64;
    let request = RequestKey { id: RequestId(0xfeed), fingerprint: 1 };
    let specs = vec![state.spec(job)?.clone()];
    before.push(Decision::JobsSubmitted {
        request,
        by: muster_types::Requester::default(),
        specs,
        estimates: vec![Estimate::default()],
    });
    before.push(Decision::GangPlaced { job: JobId::derive(LogIndex(place), 0), workers });
    append(sample, before);
    Some(())
}

fn leased_twice(sample: &mut Sample) -> Option<()> {
    placed_again(sample, Vec::new(), |_| {})
}

fn lost_node(sample: &mut Sample) -> Option<()> {
    placed_again(sample, Vec::new(), |slot| slot.node = NodeId(0))
}

/// A node is forgotten, comes back under its name as another node, and a gang is placed there: nothing is broken.
pub fn node_came_back(sample: &mut Sample, request: Option<RequestKey>) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let (node, incarnation) = (NodeId(state.nodes_registered()), 1);
    let registered =
        |holder| Decision::NodeRegistered { spec: support::node("again", "a"), holder: HolderId(holder) };
    let before = vec![
        registered(70),
        Decision::NodeLost { node, incarnation, cause: NodeLostCause::LeaseExpired },
        Decision::NodeForgotten { request, by: muster_types::Requester::default(), node },
        registered(71),
    ];
    placed_again(sample, before, |slot| {
        (slot.node, slot.incarnation) = (NodeId(node.0 + 1), 1);
    })
}

/// There are free devices, and its tenant may have one only.
fn over_quota(sample: &mut Sample) -> Option<()> {
    let quota = Quota {
        kind: Name::literal("h100"),
        region: None,
        nominal_milli: 1_000,
        borrowing_limit_milli: Some(0),
        lending_limit_milli: None,
    };
    let tenant = TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() };
    let tenants = [(Name::literal("lab"), tenant)].into();
    let policy = PolicyDraft { tenants, ..PolicyDraft::default() }.check().ok()?;
    let request = RequestKey { id: RequestId(0xbeef), fingerprint: 1 };
    let set =
        Decision::PolicySet { request, by: muster_types::Requester::default(), policy: Box::new(policy) };
    placed_again(sample, vec![set], |slot| slot.devices = DeviceSet(0xf0))
}

/// The id of a request that no client made.
fn key(number: u128) -> RequestKey {
    RequestKey { id: RequestId(0xc0ff_ee00 + number), fingerprint: 1 }
}

/// Another job like one that runs, what is recorded about it, and then its placement on free devices.
fn placed_behind(sample: &mut Sample, between: impl Fn(JobId) -> Vec<Decision>) -> Option<()> {
    placed_otherwise(sample, |_| {}, between)
}

/// The same with a job that asks for something else.
fn placed_otherwise(
    sample: &mut Sample,
    change: impl Fn(&mut JobDraft),
    between: impl Fn(JobId) -> Vec<Decision>,
) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let runs = |job: &JobId| state.job(*job).is_some_and(|row| row.placement.is_some());
    let running = state.jobs().iter().map(|(job, _)| *job).find(runs)?;
    let mut workers = state.job(running)?.placement.as_ref()?.slots.clone();
    workers.iter_mut().for_each(|slot| slot.devices = DeviceSet(0xf0));
    let job = JobId::derive(state.log_index().next(), 0);
    let mut draft = JobDraft::clone(state.spec(running)?);
    change(&mut draft);
    let mut decisions = vec![Decision::JobsSubmitted {
        request: key(0),
        by: Requester::default(),
        specs: vec![draft.check().ok()?.into()],
        estimates: vec![Estimate::default()],
    }];
    decisions.extend(between(job));
    decisions.push(Decision::GangPlaced { job, workers });
    append(sample, decisions);
    Some(())
}

fn too_small(sample: &mut Sample) -> Option<()> {
    let larger = |draft: &mut JobDraft| {
        draft.groups[0].workers += 1;
        draft.groups[0].workers_min = draft.groups[0].workers;
    };
    placed_otherwise(sample, larger, |_| Vec::new())
}

/// No node of the sample says how it was bought.
fn spot(draft: &mut JobDraft) {
    let set = |kind: PurchaseKind| -> PurchaseSet { [kind].into_iter().collect() };
    let purchases = set(PurchaseKind::OnDemand);
    let fallback = CapacityFallback { purchases, after_ms: 3_600_000, is_open: false };
    draft.capacity = Some(Box::new(CapacityRules {
        purchases: set(PurchaseKind::Spot),
        fallback: Some(fallback),
        interruptions_milli_max: None,
    }));
}

fn other_purchase(sample: &mut Sample) -> Option<()> {
    placed_otherwise(sample, spot, |_| Vec::new())
}

fn fallback_early(sample: &mut Sample) -> Option<()> {
    placed_otherwise(sample, spot, |job| vec![Decision::FallbackOpened { job }])
}

fn started_held(sample: &mut Sample) -> Option<()> {
    let by = Requester::named("tenant/lab/ada".into(), false);
    placed_behind(sample, |job| {
        vec![Decision::JobHoldSet { request: key(1), by: by.clone(), jobs: vec![job], held: true }]
    })
}

/// Every region that nodes of the sample are in.
fn regions(sample: &Sample) -> Option<BTreeSet<Name>> {
    let (_, state) = sample.past.last()?;
    Some(state.nodes().iter().map(|(_, row)| row.spec.region.clone()).collect())
}

fn started_in_held_region(sample: &mut Sample) -> Option<()> {
    let hold = FleetHold { reason: "a flood".to_owned(), until: None, stops_work: false };
    let held = |(number, region): (usize, Name)| Decision::FleetHoldSet {
        request: key(10 + number as u128),
        by: Requester::default(),
        target: HoldTarget::Part(FleetPart { region: Some(region), cluster: None }),
        hold: Some(Box::new(hold.clone())),
    };
    let holds: Vec<Decision> = regions(sample)?.into_iter().enumerate().map(held).collect();
    placed_behind(sample, |_| holds.clone())
}

fn started_in_maintenance(sample: &mut Sample) -> Option<()> {
    let now = sample.past.last()?.1.log_time();
    let opened = |(number, region): (usize, Name)| {
        let Decision::BookingCreated { by, spec, .. } = booking(Vec::new(), now) else {
            panic!("it makes a booking")
        };
        let shape = BookingShape::Part(FleetPart { region: Some(region.clone()), cluster: None });
        let clearing = BookingClearing::Stop;
        let spec = BookingSpec::clone(&spec);
        let spec = Box::new(BookingSpec { tenant: None, is_shared: false, shape, clearing, ..spec });
        let (request, nodes) = (key(10 + number as u128), Vec::new());
        let created = Decision::BookingCreated { request, by, name: region.clone(), spec, nodes };
        [created, Decision::BookingOpened { name: region }]
    };
    let all: Vec<Decision> = regions(sample)?.into_iter().enumerate().flat_map(opened).collect();
    placed_behind(sample, |_| all.clone())
}

fn started_cancelled(sample: &mut Sample) -> Option<()> {
    placed_behind(sample, |job| {
        vec![Decision::JobCancelRequested { request: key(1), by: Requester::default(), jobs: vec![job] }]
    })
}

/// A booking of these nodes for a tenant that has no gang, for an hour.
fn booking(nodes: Vec<Name>, start: LogTime) -> Decision {
    let spec = BookingSpec {
        tenant: Some(Name::literal("elsewhere")),
        user: None,
        jobs: Vec::new(),
        is_shared: true,
        shape: BookingShape::Nodes(nodes.clone()),
        times: BookingTimes::once(start, 3_600_000),
        notice_ms: 0,
        clearing: BookingClearing::Finish,
        reason: String::new(),
    };
    let (request, by, name) = (key(2), Requester::default(), Name::literal("exam"));
    Decision::BookingCreated { request, by, name, spec: Box::new(spec), nodes }
}

fn booked_by_others(sample: &mut Sample) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let (nodes, now) = (state.nodes_by_name().map(|(name, _)| name.clone()).collect(), state.log_time());
    let booked = booking(nodes, now);
    placed_behind(sample, |_| vec![booked.clone(), Decision::BookingOpened { name: Name::literal("exam") }])
}

fn opened_early(sample: &mut Sample) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let nodes = state.nodes_by_name().map(|(name, _)| name.clone()).collect();
    let booked = booking(nodes, state.log_time().plus_ms(60_000));
    append(sample, vec![booked, Decision::BookingOpened { name: Name::literal("exam") }]);
    Some(())
}

/// Nobody records that it is over, though time goes on.
fn grant_outlived(sample: &mut Sample) -> Option<()> {
    let (_, state) = sample.past.last()?;
    let runs = |job: &JobId| state.job(*job).is_some_and(|row| row.placement.is_some());
    let running = state.jobs().iter().map(|(job, _)| *job).find(runs)?;
    let mut workers = state.job(running)?.placement.as_ref()?.slots.clone();
    workers.iter_mut().for_each(|slot| slot.devices = DeviceSet(0xf0));
    let spec = state.spec(running)?.clone();
    let quota = Quota {
        kind: Name::literal("h100"),
        region: None,
        nominal_milli: 64_000,
        borrowing_limit_milli: Some(0),
        lending_limit_milli: None,
    };
    let tenant = TenantPolicy { quotas: vec![quota], ..TenantPolicy::default() };
    let policy = PolicyDraft { tenants: [(spec.tenant.clone(), tenant)].into(), ..PolicyDraft::default() };
    let set = Decision::PolicySet {
        request: key(3),
        by: Requester::default(),
        policy: Box::new(policy.check().ok()?),
    };
    let grant = QuotaGrant {
        tenant: spec.tenant.clone(),
        kind: Name::literal("h100"),
        region: None,
        amount_milli: 1_000,
        until: state.log_time().plus_ms(1_000),
        reason: "a deadline".into(),
    };
    let grant = Decision::QuotaGranted {
        request: key(4),
        by: Requester::default(),
        giver: None,
        grant: Box::new(grant),
    };
    let submitted = Decision::JobsSubmitted {
        request: key(5),
        by: Requester::default(),
        specs: vec![spec],
        estimates: vec![Estimate::default()],
    };
    let job = JobId::derive(LogIndex(state.log_index().0 + 3), 0);
    let placed = Decision::GangPlaced { job, workers };
    append_rounds(sample, vec![(0, vec![set, grant]), (2_000, vec![submitted]), (60_000, vec![placed])]);
    Some(())
}

/// A schedule of somebody that is due now.
fn schedule(sample: &Sample, by: &str) -> Option<(ScheduleKey, LogTime, Vec<Decision>)> {
    let (_, state) = sample.past.last()?;
    let job = state.jobs().iter().map(|(job, _)| *job).next()?;
    let spec = state.spec(job)?;
    let schedule = ScheduleKey { tenant: spec.tenant.clone(), name: Name::literal("nightly") };
    let asked = Schedule {
        key: schedule.clone(),
        cron: "0 2 * * *".parse().ok()?,
        zone: "UTC".into(),
        template: ScheduleTemplate::of(muster_types::JobSpec::clone(spec).into()).ok()?,
        overlap: OverlapRule::Allow,
        starting_deadline_ms: 60_000,
        runs_max: 5,
    };
    let set = Decision::ScheduleSet {
        request: key(6),
        by: Requester::named(by.into(), true),
        acts_for: None,
        role: None,
        schedule: Box::new(asked),
        is_new: true,
    };
    let due = state.log_time();
    let planned = Decision::SchedulePlanned { schedule: schedule.clone(), next: due };
    Some((schedule, due, vec![set, planned]))
}

fn moment_twice(sample: &mut Sample) -> Option<()> {
    let (schedule, due, mut decisions) = schedule(sample, "admin/root")?;
    let skipped = ScheduleRun::Skipped("its run before is not over".into());
    let ran = Decision::ScheduleRan { schedule, due: Some(due), next: None, run: skipped };
    decisions.extend([ran.clone(), ran]);
    append(sample, decisions);
    Some(())
}

fn token_outlived(sample: &mut Sample) -> Option<()> {
    let token = TokenId(0xfade);
    let grant = TokenGrant {
        name: Name::literal("night"),
        user: Name::literal("ops"),
        role: TokenRole::Operator,
        tenant: None,
        secret_sha256: [7; 32],
        own_role: None,
    };
    let created = Decision::TokenCreated {
        request: key(7),
        by: Requester::default(),
        token,
        grant: Box::new(grant),
        lifetime_ms: 3_600_000,
    };
    let (schedule, due, mut decisions) = schedule(sample, &format!("all-tenants/ops+token/{token}"))?;
    let job = sample.past.last()?.1.jobs().iter().map(|(job, _)| *job).next()?;
    decisions.insert(0, created);
    decisions.push(Decision::TokenRevoked { request: key(8), by: Requester::default(), token });
    let run = ScheduleRun::Submitted(job);
    decisions.push(Decision::ScheduleRan { schedule, due: Some(due), next: None, run });
    append(sample, decisions);
    Some(())
}

fn reads_late(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.linearizable_read_again.as_mut()?.worst_ms = 100;
    Some(())
}

fn slow(sample: &mut Sample) -> Option<()> {
    use muster_drill::scenario::SettledLatency;
    sample.scenario.expect.submissions_settle = Some(SettledLatency { within_ms: 900, p50_ms: 0 });
    Some(())
}

fn gang_touched(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.gangs_untouched = true;
    Some(())
}

fn unwarned(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.warnings.push("NO_LEADER".into());
    Some(())
}

/// Clients go on for a quarter of a minute, and one watch shows nothing of it.
pub fn stalled(sample: &mut Sample) -> Option<()> {
    for operation in &mut sample.history.operations {
        if operation.invoked_us < sample.run.fault_us {
            continue;
        }
        operation.invoked_us += 15_000_000;
        operation.completed_us += 15_000_000;
    }
    let seen = sample.history.watch_events.iter().rposition(|event| event.watch == 1)?;
    let last =
        sample.history.operations.iter().filter(|operation| operation.completed_us < sample.run.fault_us);
    let shown = last.filter_map(Operation::log_index).max()?.0;
    sample.history.watch_events.retain(|event| event.watch != 1 || event.log_index < shown);
    // Where nothing was acknowledged behind what it still shows, or nobody goes on, it has stalled for nobody.
    let left = sample.history.watch_events.iter().filter(|event| event.watch == 1);
    let left = left.map(|event| event.log_index).max().unwrap_or(0);
    let mut before = sample.history.operations.iter().filter(|operation| {
        operation.completed_us < sample.run.fault_us
            && matches!(operation.outcome, Outcome::Acknowledged { log_index, .. } if log_index > left)
    });
    let goes_on =
        sample.history.operations.iter().any(|operation| operation.invoked_us > sample.run.fault_us);
    (seen > 0 && goes_on && before.next().is_some()).then_some(())
}

/// The cluster is recovered at the end of the fault; something was acknowledged before that.
fn minority(sample: &mut Sample) -> Option<()> {
    sample.run.recovered_us = sample.run.heal_us;
    sample.run.steps.truncate(1);
    Some(())
}

/// The one that is left acknowledges nothing and shows nothing, and says of every linearizable read that there is no such job.
fn denying_minority(sample: &mut Sample) -> Option<()> {
    minority(sample)?;
    let run = &sample.run;
    let recovered_us = run.recovered_us?;
    let before = run.steps.iter().map(|step| step.at_us).filter(|at_us| *at_us < recovered_us);
    // Behind the answers that were on their way when the majority went.
    let meanwhile = before.max().unwrap_or(run.fault_us) + 500_000..recovered_us;
    let mut denied = None;
    for operation in &mut sample.history.operations {
        if !meanwhile.contains(&operation.completed_us) {
            continue;
        }
        match operation.call {
            Call::Read { consistency: Consistency::Linearizable, .. } => {
                operation.outcome = Outcome::Refused { code: "JOB_NOT_FOUND".into() };
                denied = Some(());
            }
            Call::Read { .. } => {}
            Call::Submit { .. } | Call::Cancel { .. } => operation.outcome = Outcome::TimedOut,
        }
    }
    denied
}

fn malformed(sample: &mut Sample) -> Option<()> {
    let operation = answered(sample, |_, consistency| *consistency == Consistency::Any)?;
    operation.outcome = Outcome::Malformed { what: "a digest that is no number".into() };
    Some(())
}

/// From the fault on replica 3 does not find what was acknowledged a quarter of a minute before.
fn forgetful(sample: &mut Sample) -> Option<()> {
    let fault_us = sample.run.fault_us;
    let job = acknowledged(sample).find_map(|operation| match &mut operation.outcome {
        Outcome::Acknowledged { jobs, .. } => jobs.first().copied(),
        _ => None,
    })?;
    let later_us = 15_000_000;
    for operation in &mut sample.history.operations {
        if operation.invoked_us >= fault_us {
            (operation.invoked_us, operation.completed_us) =
                (operation.invoked_us + later_us, operation.completed_us + later_us);
        }
        let of_third = operation.replica == Some(3) && operation.invoked_us >= fault_us;
        if of_third && matches!(operation.call, Call::Read { consistency: Consistency::Any, .. }) {
            let (consistency, min_log_index) = (Consistency::Any, 0);
            operation.call = Call::Read { query: Query::Job { job }, consistency, min_log_index };
            operation.outcome = Outcome::Refused { code: "JOB_NOT_FOUND".into() };
        }
    }
    let run = &mut sample.run;
    (run.fault_us, run.end_us) = (run.fault_us + later_us, run.end_us + later_us);
    run.heal_us = run.heal_us.map(|at| at + later_us);
    Some(())
}

fn troubled(sample: &mut Sample) -> Option<()> {
    sample.troubles.push("the process on a-r1 ended by itself: exit status 101".into());
    Some(())
}

fn refused(sample: &mut Sample) -> Option<()> {
    let operations = &mut sample.history.operations;
    let alone = |operation: &Operation| {
        let request = operation.request();
        operations.iter().filter(|other| other.request() == request).count() == 1
    };
    let place = operations.iter().position(|operation| {
        matches!(operation.outcome, Outcome::Acknowledged { .. })
            && matches!(operation.call, Call::Submit { .. })
            && alone(operation)
    })?;
    operations[place].outcome = Outcome::Refused { code: "OVERLOADED".into() };
    Some(())
}

fn reordered(sample: &mut Sample) -> Option<()> {
    let end_us = sample.run.end_us;
    let operation = acknowledged(sample).next()?;
    (operation.invoked_us, operation.completed_us) = (end_us - 2, end_us - 1);
    Some(())
}

/// Answers a read from the state of an earlier position, truly in everything else.
fn from_the_past(
    sample: &mut Sample,
    wanted: impl Fn(&Query, &Consistency) -> bool,
    staleness: Option<u64>,
) -> Option<()> {
    let old = sample.past.iter().find(|(at_us, _)| *at_us > 1_500_000)?.1.clone();
    let operation = answered(sample, wanted)?;
    let Call::Read { query, min_log_index, .. } = &mut operation.call else { return None };
    *min_log_index = 0;
    let seen = seen(&old, query)?;
    operation.outcome = Outcome::Answered { log_index: old.log_index().0, staleness_ms: staleness, seen };
    Some(())
}

fn stale_read(sample: &mut Sample) -> Option<()> {
    let wanted = |query: &Query, consistency: &Consistency| {
        !matches!(query, Query::Job { .. }) && *consistency == Consistency::Linearizable
    };
    from_the_past(sample, wanted, None)
}

fn beyond_bound(sample: &mut Sample) -> Option<()> {
    let wanted = |query: &Query, consistency: &Consistency| {
        !matches!(query, Query::Job { .. }) && matches!(consistency, Consistency::Bounded { .. })
    };
    from_the_past(sample, wanted, None)
}

fn untrue(sample: &mut Sample) -> Option<()> {
    let wanted = |query: &Query, consistency: &Consistency| {
        !matches!(query, Query::Job { .. }) && *consistency == Consistency::Any
    };
    from_the_past(sample, wanted, Some(100))
}

fn not_found(sample: &mut Sample) -> Option<()> {
    let wanted = |query: &Query, consistency: &Consistency| {
        *query != Query::Status && *consistency == Consistency::Linearizable
    };
    let first = acknowledged(sample).find_map(|operation| match &operation.outcome {
        Outcome::Acknowledged { jobs, .. } => jobs.first().copied(),
        _ => None,
    })?;
    let operation = answered(sample, wanted)?;
    let (consistency, min_log_index) = (Consistency::Linearizable, 0);
    operation.call = Call::Read { query: Query::Job { job: first }, consistency, min_log_index };
    operation.outcome = Outcome::Refused { code: "JOB_NOT_FOUND".into() };
    Some(())
}

fn session(sample: &mut Sample) -> Option<()> {
    let operation = answered(sample, |_, _| true)?;
    let own = operation.log_index()?.0;
    if let Call::Read { min_log_index, .. } = &mut operation.call {
        *min_log_index = own + 1;
    }
    Some(())
}

fn nowhere(sample: &mut Sample) -> Option<()> {
    if let Outcome::Answered { log_index, .. } = &mut answered(sample, |_, _| true)?.outcome {
        *log_index += 10_000;
    }
    Some(())
}

fn other_phase(sample: &mut Sample) -> Option<()> {
    let operation = answered(sample, |query, _| matches!(query, Query::Job { .. }))?;
    if let Outcome::Answered { seen: Observation::Job(seen), .. } = &mut operation.outcome {
        seen.phase = if seen.phase == JobPhase::Running { JobPhase::Pending } else { JobPhase::Running };
    }
    Some(())
}

fn other_page(sample: &mut Sample) -> Option<()> {
    let operation = answered(sample, |query, _| matches!(query, Query::Jobs { .. }))?;
    if let Outcome::Answered { seen: Observation::Jobs { digest, .. }, .. } = &mut operation.outcome {
        *digest ^= 1;
    }
    Some(())
}

fn other_digest(sample: &mut Sample) -> Option<()> {
    let operation = answered(sample, |query, _| *query == Query::Status)?;
    if let Outcome::Answered { log_index, .. } = &mut operation.outcome {
        *log_index -= 1;
    }
    Some(())
}

/// Places of changes of the first watch behind its beginning.
fn watched(sample: &Sample) -> Vec<usize> {
    let events = &sample.history.watch_events;
    let sync = events.iter().position(|event| event.change == WatchChange::SyncEnd).unwrap_or(0);
    let changes = events.iter().enumerate().skip(sync + 1);
    let of_first = changes.take_while(|(_, event)| event.watch == 1);
    of_first.filter(|(_, event)| event.change != WatchChange::Bookmark).map(|(place, _)| place).collect()
}

fn gap(sample: &mut Sample) -> Option<()> {
    let places = watched(sample);
    sample.history.watch_events.remove(places[places.len() / 2]);
    Some(())
}

fn watched_twice(sample: &mut Sample) -> Option<()> {
    let places = watched(sample);
    let place = places[places.len() / 2];
    let again = sample.history.watch_events[place].clone();
    sample.history.watch_events.insert(place, again);
    Some(())
}

fn watched_swapped(sample: &mut Sample) -> Option<()> {
    let places = watched(sample);
    sample.history.watch_events.swap(places[3], places[4]);
    Some(())
}

fn watched_present(sample: &mut Sample) -> Option<()> {
    let events = &mut sample.history.watch_events;
    let second = events.iter().position(|event| event.watch == 2)?;
    if events[second].change == WatchChange::SyncEnd {
        return None;
    }
    events.remove(second);
    Some(())
}

fn overlap(sample: &mut Sample) -> Option<()> {
    sample.intervals[0].end_ns = sample.intervals[1].start_ns + 1;
    Some(())
}

fn unplaced(sample: &mut Sample) -> Option<()> {
    sample.intervals[1].attempt = format!("1.{}", LogIndex(3));
    Some(())
}

fn replica(sample: &mut Sample) -> Option<()> {
    sample.run.states[1].digest ^= 1;
    Some(())
}

fn replica_unseen(sample: &mut Sample) -> Option<()> {
    sample.run.states.remove(1);
    Some(())
}

fn time_stands(sample: &mut Sample) -> Option<()> {
    // By the clock of the harness everything behind the fault takes twenty times as long as the log says.
    let from_us = sample.run.fault_us;
    let stretched = |at_us: u64| if at_us <= from_us { at_us } else { from_us + (at_us - from_us) * 20 };
    for operation in &mut sample.history.operations {
        operation.invoked_us = stretched(operation.invoked_us);
        operation.completed_us = stretched(operation.completed_us);
    }
    Some(())
}

fn round_gone(sample: &mut Sample) -> Option<()> {
    let at = sample.rounds.len() / 2;
    sample.rounds.remove(at);
    Some(())
}

fn round_damaged(sample: &mut Sample) -> Option<()> {
    let at = sample.rounds.len() / 2;
    let mut bytes = sample.rounds[at].round.payload.to_vec();
    *bytes.last_mut()? ^= 1;
    sample.rounds[at].round.payload = bytes.into();
    Some(())
}

fn diverged(sample: &mut Sample) -> Option<()> {
    append(sample, vec![Decision::DigestRecorded { digest: 7 }]);
    Some(())
}

fn no_reads(sample: &mut Sample) -> Option<()> {
    sample.history.operations.retain(|operation| {
        !matches!(operation.call, Call::Read { consistency: Consistency::Linearizable, .. })
    });
    Some(())
}

fn torn(sample: &mut Sample) -> Option<()> {
    sample.history.torn.push(Torn { file: "client-1.jsonl".into(), line: 7, bytes: 3 });
    Some(())
}

fn repeated(sample: &mut Sample) -> Option<()> {
    let first = sample.history.operations[0].clone();
    sample.history.operations.push(first);
    Some(())
}

fn unanswered(sample: &mut Sample) -> Option<()> {
    let fault_us = sample.run.fault_us;
    let operation = acknowledged(sample).find(|operation| operation.invoked_us > fault_us)?;
    operation.outcome = Outcome::TimedOut;
    Some(())
}

fn silent(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.submission_again.as_mut()?.worst_ms = 700;
    Some(())
}

fn survivor_silent(sample: &mut Sample) -> Option<()> {
    let fault_us = sample.run.fault_us;
    sample.history.operations.retain(|operation| {
        let in_gap = (fault_us + 500_000..fault_us + 2_000_000).contains(&operation.invoked_us);
        !(operation.replica == Some(2) && in_gap)
    });
    Some(())
}

fn same_leader(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.leadership = Some(muster_drill::scenario::Leadership::Stays);
    Some(())
}

fn gang_late(sample: &mut Sample) -> Option<()> {
    sample.scenario.expect.gangs_elsewhere_after_lease_ms = Some(1);
    Some(())
}
