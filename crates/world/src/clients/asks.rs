//! What else clients ask for, whatever comes of it: throttles, commands next to workers, quota, bookings, schedules and tokens;
//! now and then of things that are not there, for tenants that they do not act for, and with old versions.
//!
//! Bookings are of one of the two clusters, so that every job has a place in the other.

use super::{BOUND_TENANT, Client, FREE_TENANT, GUEST_TENANT, ask, grants_to_bound, requests};
use crate::agent::KIND;
use crate::follower::SCHEDULE_OWNER;
use crate::runtime::{below, chance, pick, random, sleep_ms};
use crate::site::lock;
use muster_decider::{
    BookingOrder, Command, QuotaAnswerOrder, QuotaOrder, ScheduleAction, ScheduleControl, ScheduleOrder,
    ThrottleOrder, TokenOrder,
};
use muster_state::{QuotaGrantStatus, RankState, State};
use muster_types::policy::QuotaGrant;
use muster_types::{
    ArrayId, BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, FencingToken,
    FleetPart, JobId, LogIndex, LogTime, Name, OverlapRule, RefusalCode, Requester, Schedule, ScheduleKey,
    ScheduleTemplate, TokenGrant, TokenId, TokenRole,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The cluster whose nodes may be booked.
const BOOKED_CLUSTER: &str = "eu-1";
/// Attempts at one of them.
const TRIES: usize = 6;
/// Looks for bookings and schedules that are left, at the end.
const LAST_LOOKS: usize = 20;
/// The shortest booking and token that there may be.
const MINUTE_MS: u64 = 60_000;
const SECOND_MS: u64 = 1_000;

pub(super) fn state_of(client: &Client) -> Option<Arc<State>> {
    client.cluster.leader().map(|leader| leader.view.state())
}

/// Asks for something.
pub(super) async fn ask_for_something(client: &Client) {
    let Some(command) = state_of(client).and_then(|state| something(client, &state)) else { return };
    send(client, command, TRIES).await;
}

/// A refusal is as good as an answer; that the product does not know itself is neither.
async fn send(client: &Client, command: Command, tries: usize) {
    if let Some(Err(refusal)) = ask(&client.cluster, client.host, tries, |_| command.clone()).await
        && refusal.code == RefusalCode::Internal
    {
        client.cluster.site.checks.fail(format!("{command:?} was refused: {refusal}"));
    }
}

/// Deletes every booking and every schedule.
pub(super) async fn give_up_all(client: &Client) {
    for _ in 0..LAST_LOOKS {
        let Some(state) = state_of(client) else {
            sleep_ms(500).await;
            continue;
        };
        if state.booking_count() == 0 && state.schedule_count() == 0 {
            return;
        }
        let by = requester(true);
        let names: Vec<Name> = state.bookings().map(|(name, _)| name.clone()).collect();
        let schedules: Vec<ScheduleKey> = state.schedules().map(|(key, _)| key.clone()).collect();
        for name in names {
            let (request, by) = (client.new_request(), by.clone());
            send(client, Command::DeleteBooking { request, by, acts_for: None, name }, TRIES).await;
        }
        for schedule in schedules {
            let delete = control_of(client, by.clone(), schedule, ScheduleAction::Delete);
            send(client, delete, TRIES).await;
        }
        sleep_ms(100).await;
    }
}

fn requester(is_operator: bool) -> Requester {
    let name = if is_operator { "admin/ops" } else { "tenant/free/ada" };
    Requester::named(name.to_owned(), is_operator)
}

/// Mostly nobody's in particular; else the tenant's own, and now and then another's.
fn bound_to() -> Option<Name> {
    match below(10) {
        0..=5 => None,
        6..=8 => Some(Name::literal(FREE_TENANT)),
        _ => Some(Name::literal(BOUND_TENANT)),
    }
}

fn something(client: &Client, state: &State) -> Option<Command> {
    let now = state.log_time();
    Some(match below(18) {
        0 => throttle(client, state)?,
        1 | 2 => next_to_a_worker(state)?,
        3 | 4 => Command::RequestQuota(Box::new(quota(client, now))),
        5 | 6 => answer(client, state)?,
        7 => Command::GrantQuota(Box::new(quota(client, now))),
        8 | 9 => Command::CreateBooking(Box::new(booking(client, now))),
        10 => delete_booking(client, state),
        11 | 12 => Command::SetSchedule(Box::new(schedule(client, state)?)),
        13 | 14 => control_schedule(client, state),
        15 | 16 => Command::CreateToken(Box::new(token(client))),
        _ => revoke_token(client, state),
    })
}

/// Mostly of an array that has members which a throttle keeps back.
fn throttle(client: &Client, state: &State) -> Option<Command> {
    let kept_back = state.arrays().iter().filter(|(_, row)| row.uncreated > 0);
    let kept_back: Vec<ArrayId> = kept_back.map(|(array, _)| *array).collect();
    let recent = lock(&client.recent).arrays.clone();
    let array = pick(&kept_back).filter(|_| chance(800)).or_else(|| pick(&recent))?;
    Some(Command::SetThrottle(Box::new(ThrottleOrder {
        request: client.request_of_control(),
        by: requester(chance(300)),
        acts_for: None,
        array,
        throttle: chance(700).then(|| 1 + below(3) as u32),
    })))
}

/// A worker that runs, now and then under a token that is not its own.
fn next_to_a_worker(state: &State) -> Option<Command> {
    let running = |job: JobId| {
        let placement = state.job(job)?.placement.as_ref()?;
        let rank = placement.ranks.iter().position(|rank| *rank == RankState::Running)?;
        Some((job, placement.token, u32::try_from(rank).ok()?))
    };
    let all: Vec<(JobId, FencingToken, u32)> = state.active().filter_map(running).collect();
    let (job, token, rank) = pick(&all)?;
    let token = if chance(100) { FencingToken::default() } else { token };
    let by = requester(chance(500));
    Some(match chance(500) {
        true => Command::OpenExec { by, job, token, rank, command: "nvidia-smi".to_owned() },
        false => Command::OpenPortForward { by, job, token, rank, port: 6_006 },
    })
}

/// Quota for some seconds, now and then for a time that is over or for a tenant that nobody lists.
fn quota(client: &Client, now: LogTime) -> QuotaOrder {
    let mut tenants = vec![FREE_TENANT, FREE_TENANT, GUEST_TENANT, "nobody"];
    if grants_to_bound(&client.cluster.site.settings) {
        tenants.extend([BOUND_TENANT, BOUND_TENANT]);
    }
    let tenant = Name::literal(pick(&tenants).unwrap_or(FREE_TENANT));
    let until = if chance(60) { LogTime(1) } else { now.plus_ms(SECOND_MS + below(20 * SECOND_MS)) };
    let amount_milli = (1 + below(4)) * 1_000;
    let (kind, reason) = (Name::literal(KIND), "a deadline".to_owned());
    QuotaOrder {
        request: client.request_of_control(),
        by: requester(chance(500)),
        acts_for: bound_to(),
        grant: QuotaGrant { tenant, kind, region: None, amount_milli, until, reason },
    }
}

fn answer(client: &Client, state: &State) -> Option<Command> {
    let is_open =
        |status: QuotaGrantStatus| matches!(status, QuotaGrantStatus::Requested | QuotaGrantStatus::Granted);
    let all: Vec<LogIndex> =
        state.quota_grants().filter(|(_, row)| is_open(row.status)).map(|(id, _)| id).collect();
    let id = if chance(50) { LogIndex(1) } else { pick(&all)? };
    Some(Command::AnswerQuota(Box::new(QuotaAnswerOrder {
        request: client.request_of_control(),
        by: requester(true),
        acts_for: None,
        id,
        approved: chance(700),
        reason: "as agreed".to_owned(),
    })))
}

/// For a tenant, now and then again a day later; or for maintenance of a node or of the cluster.
fn booking(client: &Client, now: LogTime) -> BookingOrder {
    let is_maintenance = chance(200);
    let tenants = [FREE_TENANT, FREE_TENANT, BOUND_TENANT, GUEST_TENANT];
    let chosen = BookingShape::Chosen {
        amount: if chance(700) { BookingAmount::Hosts(1) } else { BookingAmount::Devices(4) },
        kind: Some(Name::literal(KIND)),
        region: None,
        cluster: Some(Name::literal(BOOKED_CLUSTER)),
        labels: BTreeMap::new(),
    };
    let named = BookingShape::Nodes(vec![Name::literal(if chance(900) { "m2" } else { "nowhere" })]);
    let part = FleetPart { region: None, cluster: Some(Name::literal(BOOKED_CLUSTER)) };
    let whole = if is_maintenance { BookingShape::Part(part) } else { chosen };
    let start = pick(&[LogTime(0), now.plus_ms(2 * SECOND_MS), now.plus_ms(6 * SECOND_MS)]);
    let clearing = match is_maintenance {
        true => BookingClearing::Stop,
        false => pick(&BookingClearing::ALL).unwrap_or_default(),
    };
    let acts_for = bound_to();
    BookingOrder {
        request: client.request_of_control(),
        by: requester(acts_for.is_none()),
        acts_for,
        name: Name::literal(if chance(500) { "exam" } else { "course" }),
        spec: BookingSpec {
            tenant: (!is_maintenance).then(|| Name::literal(pick(&tenants).unwrap_or(FREE_TENANT))),
            user: None,
            jobs: Vec::new(),
            is_shared: !is_maintenance && chance(600),
            shape: if chance(700) { whole } else { named },
            times: BookingTimes::once(start.unwrap_or(now), MINUTE_MS).every(1, 1 + below(2) as u16),
            notice_ms: below(4 * SECOND_MS),
            clearing,
            reason: String::new(),
        },
    }
}

fn delete_booking(client: &Client, state: &State) -> Command {
    let all: Vec<Name> = state.bookings().map(|(name, _)| name.clone()).collect();
    let name = pick(&all).unwrap_or(Name::literal("exam"));
    let request = client.request_of_control();
    Command::DeleteBooking { request, by: requester(true), acts_for: bound_to(), name }
}

/// The owner of schedules, perhaps by a token that may end before them.
fn owner(state: &State) -> Requester {
    let free = Name::literal(FREE_TENANT);
    let submits =
        |grant: &TokenGrant| grant.role == TokenRole::Submitter && grant.tenant.as_ref() == Some(&free);
    let tokens: Vec<TokenId> =
        state.tokens().filter(|(_, token)| submits(&token.grant)).map(|(id, _)| id).collect();
    let name = match pick(&tokens).filter(|_| chance(500)) {
        Some(token) => format!("{SCHEDULE_OWNER}+token/{token}"),
        None => SCHEDULE_OWNER.to_owned(),
    };
    Requester::named(name, false)
}

/// Every minute; now and then in a zone that there is not.
fn schedule(client: &Client, state: &State) -> Option<ScheduleOrder> {
    let name = if chance(500) { "nightly" } else { "hourly" };
    let key = ScheduleKey { tenant: Name::literal(FREE_TENANT), name: Name::literal(name) };
    let is_new = state.schedule(&key).is_none() != chance(60);
    let acts_for = chance(500).then(|| Name::literal(FREE_TENANT));
    let schedule = Schedule {
        key,
        cron: "* * * * *".parse().ok()?,
        zone: if chance(950) { "UTC" } else { "Mars/Base" }.to_owned(),
        template: ScheduleTemplate::of(requests::small(&format!("s-{name}"))).ok()?,
        overlap: pick(&OverlapRule::ALL).unwrap_or_default(),
        starting_deadline_ms: MINUTE_MS,
        runs_max: 5,
    };
    Some(ScheduleOrder {
        request: client.request_of_control(),
        by: owner(state),
        acts_for,
        role: None,
        schedule,
        is_new,
    })
}

fn control_schedule(client: &Client, state: &State) -> Command {
    let all: Vec<ScheduleKey> = state.schedules().map(|(key, _)| key.clone()).collect();
    let missing = ScheduleKey { tenant: Name::literal(BOUND_TENANT), name: Name::literal("nightly") };
    let action = match below(8) {
        0 | 1 => ScheduleAction::Delete,
        2 | 3 => ScheduleAction::Suspend { reason: "the data moves".to_owned() },
        4 | 5 => ScheduleAction::Resume,
        _ => ScheduleAction::Run,
    };
    // What is made for a run is made in the name of who asks for it.
    let is_owner = action == ScheduleAction::Run || chance(500);
    let by = if is_owner { owner(state) } else { requester(true) };
    control_of(client, by, pick(&all).unwrap_or(missing), action)
}

fn control_of(client: &Client, by: Requester, schedule: ScheduleKey, action: ScheduleAction) -> Command {
    let request = client.new_request();
    Command::ControlSchedule(Box::new(ScheduleControl { request, by, acts_for: None, schedule, action }))
}

fn token(client: &Client) -> TokenOrder {
    let submitter = (TokenRole::Submitter, Some(Name::literal(FREE_TENANT)));
    let roles = [
        submitter.clone(),
        submitter,
        (TokenRole::Viewer, Some(Name::literal(GUEST_TENANT))),
        (TokenRole::Operator, None),
        (TokenRole::TenantAdmin, None),
    ];
    let (role, tenant) = pick(&roles).unwrap_or((TokenRole::Operator, None));
    TokenOrder {
        request: client.request_of_control(),
        by: requester(chance(500)),
        acts_for: bound_to(),
        token: TokenId(random()),
        grant: TokenGrant {
            name: Name::literal(pick(&["laptop", "robot", "notebook"]).unwrap_or("laptop")),
            user: Name::literal("ada"),
            role,
            tenant,
            secret_sha256: [7; 32],
            own_role: None,
        },
        lifetime_ms: if chance(950) { MINUTE_MS } else { 1 },
    }
}

fn revoke_token(client: &Client, state: &State) -> Command {
    let all: Vec<TokenId> = state.tokens().map(|(id, _)| id).collect();
    let token = pick(&all).unwrap_or(TokenId(1));
    let request = client.request_of_control();
    Command::RevokeToken { request, by: requester(true), acts_for: bound_to(), token }
}
