//! What bookings mean for gangs, and which nodes a booking gets.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use muster_planner::{Closure, ClosureCause};
use muster_state::booking::{devices_of, suits};
use muster_state::{FleetHoldRow, Phase, Side, State};
use muster_types::policy::QuotaGrant;
use muster_types::token::user_of;
use muster_types::{
    Booking, BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, HoldTarget, JobId,
    JobSpec, LogTime, Name, NodeSpec, Refusal, RefusalCode, Violation, limits,
};

/// Behind every time.
const NEVER: LogTime = LogTime(u64::MAX);

/// Nodes that bookings close to a job, and when. The guard of a placement looks at less: only at bookings that are open.
pub(crate) fn closures<'a>(state: &'a State, spec: &'a JobSpec, now: LogTime) -> Vec<Closure<'a>> {
    let mut found = held(state, spec);
    if state.booking_count() == 0 && spec.booking.is_none() {
        return found;
    }
    let policy = &state.policy().policy;
    let soon = now.plus_ms(1);
    for (name, booking) in state.bookings() {
        let window = booking.current();
        if booking.spec.admits(policy, name, spec) {
            continue;
        }
        let closed_from = |window| booking.spec.closed_from(window, spec.run_time_limit_ms);
        let until = booking.closed_until(closed_from);
        let (from, until) = match booking.is_open {
            // Until its end is recorded, and not by the clock alone.
            true => (LogTime(0), until.max(soon)),
            false => (closed_from(window), until),
        };
        let cause = match booking.spec.is_maintenance() {
            true => ClosureCause::Maintenance(name),
            false => ClosureCause::Booking(name),
        };
        let (nodes, part) = (&booking.nodes, booking.spec.part());
        found.push(Closure { cause, from, until, nodes, part, is_outside: false });
    }
    let Some(name) = &spec.booking else { return found };
    let named = state.booking(name).filter(|booking| booking.spec.may_be_named_by(policy, spec));
    let nodes = named.map_or(&[][..], |booking| booking.nodes.as_slice());
    let cause = ClosureCause::Booking(name);
    let own = |from, until, is_outside| Closure { cause, from, until, nodes, part: None, is_outside };
    found.push(own(LogTime(0), NEVER, true));
    if let Some(booking) = named {
        let window = booking.current();
        if !booking.is_open {
            // Its jobs begin once it is recorded that the window has begun.
            found.push(own(LogTime(0), window.from.max(soon), false));
        }
        found.push(own(window.until, NEVER, false));
    }
    found
}

/// What operators hold until further notice, where it concerns a job. It lasts until its end is recorded, and not by the clock alone.
fn held<'a>(state: &'a State, spec: &JobSpec) -> Vec<Closure<'a>> {
    let against = state.fleet_holds().filter(|(target, _)| state.is_held_by(target, &spec.tenant));
    let closure = |(target, row): (&'a HoldTarget, &'a FleetHoldRow)| Closure {
        cause: ClosureCause::Hold(target, &row.hold.reason),
        from: LogTime(0),
        until: NEVER,
        nodes: &[],
        part: Some(target.part()),
        is_outside: false,
    };
    against.map(closure).collect()
}

/// Whether one of the closures of a job covers a node. The index of nodes tells which of them may.
pub(crate) fn covers(state: &State, closures: &[Closure<'_>], node: &NodeSpec) -> bool {
    let there = state.bookings_of_node(&node.name);
    closures
        .iter()
        .filter(|closure| {
            let booking = closure.cause.booking().filter(|_| closure.is_by_name());
            booking.is_none_or(|booking| there.binary_search(booking).is_ok())
        })
        .any(|closure| closure.covers(node))
}

/// Whether nobody holds a job's tenant, and it names no booking or one that is open to it. To all others nothing is open whatever is
/// free: no place is looked for, nothing is kept for them, and nobody waits behind them.
pub(crate) fn is_open_to(state: &State, spec: &JobSpec) -> bool {
    if state.tenant_hold(&spec.tenant).is_some() {
        return false;
    }
    let Some(name) = &spec.booking else { return true };
    let policy = &state.policy().policy;
    state.booking(name).is_some_and(|booking| booking.is_open && booking.spec.may_be_named_by(policy, spec))
}

/// Why a job waits that names a booking which is not open to it.
pub(crate) fn why_it_waits(state: &State, spec: &JobSpec) -> Option<String> {
    let name = spec.booking.as_ref()?;
    let Some(booking) = state.booking(name) else {
        return Some(format!(
            "it names booking {name}, which is over or was deleted; cancel it, or book again under that name"
        ));
    };
    if !booking.spec.may_be_named_by(&state.policy().policy, spec) {
        return Some(match &booking.spec.tenant {
            Some(owner) => format!(
                "it names booking {name}, which is for other jobs of tenant {owner} or for another tenant"
            ),
            None => format!("it names booking {name}, which is for maintenance"),
        });
    }
    let from = booking.current().from;
    let rule = booking.spec.times.listed.as_ref().map(|listed| format!(" ({})", listed.rule));
    let rule = rule.unwrap_or_default();
    (!booking.is_open).then(|| format!("it names booking {name}, whose next window begins at {from}{rule}"))
}

/// Why a job may not be submitted that names a booking, by who submits it.
pub(crate) fn why_not_named(state: &State, spec: &JobSpec, creator: &str) -> Option<String> {
    let name = spec.booking.as_ref()?;
    let Some(booking) = state.booking(name) else {
        return Some(format!("there is no booking {name}; `muster booking list` lists those that there are"));
    };
    let Some(owner) = &booking.spec.tenant else {
        return Some(format!("booking {name} is for maintenance: no job may name it"));
    };
    if !booking.spec.may_be_named_by(&state.policy().policy, spec) {
        return Some(match booking.spec.jobs.is_empty() {
            true => format!("booking {name} is for jobs of tenant {owner} and of those below it"),
            false => format!("booking {name} is for jobs of tenant {owner} that have one of the names in it"),
        });
    }
    let is_user = booking.spec.user.as_ref().is_none_or(|user| user_of(creator) == user);
    (!is_user).then(|| format!("booking {name} is for one user of tenant {owner}"))
}

/// Whether a gang has to go from a booking's nodes while a window of it is open.
pub(crate) fn must_go(state: &State, name: &Name, booking: &Booking, job: JobId) -> bool {
    let (Some(row), Some(spec)) = (state.job(job), state.spec(job)) else { return false };
    matches!(row.phase, Phase::Starting | Phase::Running)
        && booking.spec.clearing.stops_others()
        && !booking.spec.admits(&state.policy().policy, name, spec)
}

/// The nodes that a booking gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Their names, in ascending order.
    pub(crate) nodes: Vec<Name>,
    /// Whether they are all that was asked for.
    pub(crate) is_whole: bool,
}

/// A node that a booking may have.
struct Candidate<'a> {
    /// Whether the booking has it not yet.
    is_new: bool,
    /// Gangs of others there, and those that capacity there is promised to.
    others: usize,
    name: &'a Name,
    devices: u64,
}

/// Chooses nodes in one cluster that no other booking has during these windows: those that the booking has already, then
/// those with the fewest gangs of others. With `stays` it stays in the cluster where it has most nodes, even if they are fewer
/// than it asks for.
pub(crate) fn choose(
    state: &State,
    own: &Name,
    spec: &BookingSpec,
    times: &BookingTimes,
    (kept, stays): (&[Name], bool),
) -> Choice {
    let amount = match &spec.shape {
        BookingShape::Nodes(nodes) => return Choice { nodes: nodes.clone(), is_whole: true },
        // It has every node there, and lists none.
        BookingShape::Part(_) => return Choice { nodes: Vec::new(), is_whole: true },
        BookingShape::Chosen { amount, .. } => *amount,
    };
    let others = state.bookings().filter(|(name, other)| *name != own && !other.spec.is_maintenance());
    let others = others.filter(|(_, other)| other.left().meets(times).is_some());
    let taken: BTreeSet<&Name> = others.flat_map(|(_, other)| &other.nodes).collect();
    let policy = &state.policy().policy;
    let is_foreign = |job: &JobId| state.spec(*job).is_some_and(|job| !spec.admits(policy, own, job));
    let mut clusters: BTreeMap<(&Name, &Name), Vec<Candidate<'_>>> = BTreeMap::new();
    for (name, id) in state.nodes_by_name() {
        let Some(row) = state.node(id) else { continue };
        if !row.is_placeable() || taken.contains(name) || !suits(&spec.shape, &row.spec) {
            continue;
        }
        let candidate = Candidate {
            is_new: kept.binary_search(name).is_err(),
            others: state.gangs_on(id).chain(state.promised_on(id)).filter(&is_foreign).count(),
            name,
            devices: devices_of(&row.spec),
        };
        clusters.entry((&row.spec.region, &row.spec.cluster)).or_default().push(candidate);
    }
    let picked = clusters.into_values().map(|candidates| pick(candidates, amount));
    let best = picked.min_by_key(|picked| {
        let lacks = (!picked.is_whole, Reverse(picked.kept));
        let rank = if stays { (false, lacks.1, lacks.0) } else { (lacks.0, lacks.1, false) };
        (rank, Reverse(picked.amount), picked.others)
    });
    best.map_or_else(Choice::default, |picked| Choice { nodes: picked.nodes, is_whole: picked.is_whole })
}

/// What one cluster has for a booking.
struct ClusterOffer {
    nodes: Vec<Name>,
    is_whole: bool,
    /// Of its nodes, those that the booking has already.
    kept: usize,
    /// Hosts or devices, as the booking counts.
    amount: u64,
    others: usize,
}

fn pick(mut candidates: Vec<Candidate<'_>>, amount: BookingAmount) -> ClusterOffer {
    candidates.sort_unstable_by_key(|one| (one.is_new, one.others, one.name));
    let picked = take(&candidates, amount);
    if picked.is_whole || matches!(amount, BookingAmount::Hosts(_)) {
        return picked;
    }
    // Small hosts among the first can leave a rest that no host has: the largest first leave none where one would do.
    candidates.sort_by_key(|one| (one.is_new, Reverse(one.devices)));
    let largest_first = take(&candidates, amount);
    if largest_first.is_whole { largest_first } else { picked }
}

/// Takes of these in their order as many as fit into what is asked for.
fn take(candidates: &[Candidate<'_>], amount: BookingAmount) -> ClusterOffer {
    let (wanted, is_counted_in_devices) = match amount {
        BookingAmount::Hosts(hosts) => (u64::from(hosts), false),
        BookingAmount::Devices(devices) => (u64::from(devices), true),
    };
    let mut picked = ClusterOffer { nodes: Vec::new(), is_whole: false, kept: 0, amount: 0, others: 0 };
    for candidate in candidates {
        let more = if is_counted_in_devices { candidate.devices } else { 1 };
        let fits = more > 0 && picked.amount + more <= wanted;
        if !fits || picked.nodes.len() == limits::BOOKING_NODES_MAX {
            continue;
        }
        picked.amount += more;
        picked.kept += usize::from(!candidate.is_new);
        picked.others += candidate.others;
        picked.nodes.push(candidate.name.clone());
    }
    picked.nodes.sort_unstable();
    picked.is_whole = picked.amount == wanted;
    picked
}

/// What somebody asks to book, with its nodes.
#[derive(Clone, Debug)]
pub(crate) struct CheckedBooking {
    pub(crate) spec: BookingSpec,
    pub(crate) nodes: Vec<Name>,
}

/// Checks what somebody asks to book, and chooses its nodes. A start of 0 is now. `acts_for` is the tenant that the requester is
/// bound to; none where it acts for the cluster's operators.
///
/// # Errors
/// The refusal.
pub(crate) fn prepare(
    state: &State,
    now: LogTime,
    acts_for: Option<&Name>,
    name: &Name,
    asked: &BookingSpec,
) -> Result<CheckedBooking, Refusal> {
    let mut spec = asked.clone();
    if spec.times.start == LogTime(0) {
        spec.times.start = now;
    }
    check_fields(state, now, &spec)?;
    check_reach(state, acts_for, &spec)?;
    if state.booking(name).is_some() {
        let text = format!("there is a booking {name} already; delete it, or choose another name");
        return Err(Refusal::new(RefusalCode::BookingExists, text).with("booking", name));
    }
    check_count(state, &spec)?;
    let choice = choose(state, name, &spec, &spec.times, (&[][..], false));
    if let BookingShape::Nodes(nodes) = &spec.shape {
        check_named_nodes(state, name, &spec, nodes)?;
    }
    if !choice.is_whole {
        return Err(does_not_fit(state, name, &spec, &choice));
    }
    check_quota(state, acts_for, &choice.nodes)?;
    check_promised(state, now, (acts_for, name), &spec, &choice.nodes)?;
    if acts_for.is_some() {
        spec.shape = in_region_of(state, spec.shape, &choice.nodes);
    }
    Ok(CheckedBooking { spec, nodes: choice.nodes })
}

/// Who is bound to a tenant takes no capacity that is promised to others now: gangs were stopped for it.
fn check_promised(
    state: &State,
    now: LogTime,
    (acts_for, name): (Option<&Name>, &Name),
    spec: &BookingSpec,
    nodes: &[Name],
) -> Result<(), Refusal> {
    let (Some(own), Some(first)) = (acts_for, spec.times.window(0)) else { return Ok(()) };
    let policy = &state.policy().policy;
    let is_taken = |job: JobId| {
        let job = state.spec(job).filter(|job| !spec.admits(policy, name, job));
        job.is_some_and(|job| spec.closed_from(first, job.run_time_limit_ms) <= now)
    };
    let promised = nodes.iter().find(|node| {
        let id = state.node_named(node);
        id.is_some_and(|id| state.promised_on(id).any(is_taken))
    });
    let Some(node) = promised else { return Ok(()) };
    let text = format!(
        "capacity on {node} is promised to a job of others now; who acts for tenant {own} books other nodes, or from later on"
    );
    Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", own))
}

/// The same in the region of these nodes alone: they were compared with the quota there, and those that take the place of lost
/// ones are not compared again.
fn in_region_of(state: &State, shape: BookingShape, nodes: &[Name]) -> BookingShape {
    let first = nodes.first().and_then(|node| state.node(state.node_named(node)?));
    match (shape, first) {
        (BookingShape::Chosen { amount, kind, region: _, cluster, labels }, Some(row)) => {
            BookingShape::Chosen { amount, kind, region: Some(row.spec.region.clone()), cluster, labels }
        }
        (shape, _) => shape,
    }
}

fn check_fields(state: &State, now: LogTime, spec: &BookingSpec) -> Result<(), Refusal> {
    let mut violations = spec.violations();
    if violations.is_empty() {
        let first_is_over = spec.times.next_at(now) != Some(0);
        if first_is_over {
            let text = format!("the first window would be over already; log time is {now}");
            violations.push(Violation::new("start_time", text));
        }
        if !spec.times.is_whole() {
            violations.push(Violation::new("rule", "is asked for without the moments of its windows"));
        }
        let last = now.plus_ms(limits::BOOKING_HORIZON_MS);
        if spec.times.end() > last {
            let text =
                format!("the last window must be over by {last}, would be over at {}", spec.times.end());
            violations.push(Violation::new("windows", text));
        }
    }
    let owner = spec.tenant.as_ref();
    if let Some(owner) = owner.filter(|owner| !state.policy().policy.tenants.contains_key(*owner)) {
        let text = format!("the policy lists no tenant {owner}; add it with `muster policy set`");
        violations.push(Violation::new("tenant", text));
    }
    if violations.is_empty() {
        return Ok(());
    }
    Err(Refusal::fields(violations.into_iter().map(|violation| violation.under("spec")).collect()))
}

/// Who is bound to a tenant books for it and those below it, and stops nobody else's work by that.
fn check_reach(state: &State, acts_for: Option<&Name>, spec: &BookingSpec) -> Result<(), Refusal> {
    let Some(own) = acts_for else { return Ok(()) };
    let denied = |text: String| Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", own));
    let Some(owner) = &spec.tenant else {
        return denied(format!("maintenance is for operators, and not for who acts for tenant {own}"));
    };
    if !state.policy().policy.ancestry(owner).any(|above| above == own) {
        return denied(format!(
            "who acts for tenant {own} books for it and those below it, and for no others"
        ));
    }
    if !state.policy().policy.rights(own).bookings {
        return denied(format!(
            "tenant {own} may not book nodes by itself: an operator may, and the policy can give that right \
             (`rights.bookings`)"
        ));
    }
    if spec.clearing != BookingClearing::Finish {
        return denied(format!(
            "who acts for tenant {own} stops no work of others: others have to be left to finish"
        ));
    }
    if matches!(spec.shape, BookingShape::Chosen { kind: None, .. }) {
        let text = format!("must be named by who acts for tenant {own}: quota is for one type");
        return Err(Refusal::fields(alloc::vec![Violation::new("spec.shape.accelerator", text)]));
    }
    Ok(())
}

fn check_count(state: &State, spec: &BookingSpec) -> Result<(), Refusal> {
    let of_tenant = state.booking_count_of(spec.tenant.as_ref());
    let (held, limit, max) = if of_tenant >= limits::TENANT_BOOKINGS_MAX {
        (of_tenant, "tenant_bookings_max", limits::TENANT_BOOKINGS_MAX)
    } else if state.booking_count() >= limits::BOOKINGS_MAX {
        (state.booking_count(), "bookings_max", limits::BOOKINGS_MAX)
    } else if state.booked_nodes_max() + spec.shape.nodes_max() > limits::BOOKED_NODES_MAX {
        (state.booked_nodes_max(), "booked_nodes_max", limits::BOOKED_NODES_MAX)
    } else {
        return Ok(());
    };
    let text = format!("bookings would be beyond {limit}, which is {max}; {held} are in use: delete one");
    let refusal = Refusal::new(RefusalCode::StateFull, text).with("limit", limit).with("held", held);
    let refusal = refusal.with("held_max", max);
    Err(match &spec.tenant {
        Some(owner) => refusal.with("tenant", owner),
        None => refusal,
    })
}

fn check_named_nodes(state: &State, own: &Name, spec: &BookingSpec, nodes: &[Name]) -> Result<(), Refusal> {
    if let Some(unknown) = nodes.iter().find(|node| state.node_named(node).is_none()) {
        let text = format!("there is no node {unknown}");
        return Err(Refusal::new(RefusalCode::NodeNotFound, text).with("node", unknown));
    }
    let other = state.overlapping_booking(own, &spec.times, nodes);
    // Tenants may have booked the nodes: these are theirs again behind the maintenance.
    let Some(other) = other.filter(|_| !spec.is_maintenance()) else { return Ok(()) };
    let text = format!("booking {other} has some of these nodes at the same time");
    Err(Refusal::new(RefusalCode::BookingDoesNotFit, text).with("booking", other))
}

/// Names the booking that is in the way, if there is one.
fn does_not_fit(state: &State, own: &Name, spec: &BookingSpec, choice: &Choice) -> Refusal {
    let wanted = match &spec.shape {
        BookingShape::Chosen { amount: BookingAmount::Devices(devices), .. } => {
            format!("{devices} devices on whole hosts")
        }
        shape => format!("{} hosts", shape.nodes_max()),
    };
    let node_of = |node: &Name| state.node_named(node).and_then(|id| state.node(id));
    let suiting =
        |node: &Name| node_of(node).is_some_and(|row| row.is_placeable() && suits(&spec.shape, &row.spec));
    let in_the_way = state.bookings().find(|(name, other)| {
        *name != own
            && !other.spec.is_maintenance()
            && other.left().meets(&spec.times).is_some()
            && other.nodes.iter().any(&suiting)
    });
    let found = choice.nodes.len();
    let also =
        in_the_way.map(|(other, _)| format!("; booking {other} has some that would do")).unwrap_or_default();
    let text = format!(
        "no cluster has {wanted} in service that nobody has booked then; one has {found} hosts{also}"
    );
    let refusal = Refusal::new(RefusalCode::BookingDoesNotFit, text).with("found", found);
    match in_the_way {
        Some((other, _)) => refusal.with("booking", other),
        None => refusal,
    }
}

/// Thousandths of devices of a tenant's nominal quota that are granted for some time: the booking may be for later.
/// Without a region, in every region.
fn granted_milli(state: &State, own: &Name, kind: &Name, region: Option<&Name>) -> u64 {
    let policy = &state.policy().policy;
    let is_there = |granted: &Name| region.is_none_or(|region| granted == region);
    let is_it = |grant: &&QuotaGrant| grant.kind == *kind && grant.region.as_ref().is_none_or(is_there);
    let in_force = || state.grants_in_force().map(|(_, row)| &row.grant).filter(is_it);
    let of_own: u64 = in_force().filter(|grant| grant.tenant == *own).map(|grant| grant.amount_milli).sum();
    let quotas = policy.tenants.get(own).map_or(&[][..], |tenant| &tenant.quotas[..]);
    if of_own > 0 || quotas.iter().any(|quota| quota.kind == *kind) {
        return of_own;
    }
    // A tenant that states none has what those below it have.
    let is_below = |grant: &&QuotaGrant| policy.ancestry(&grant.tenant).any(|above| above == own);
    in_force().filter(is_below).map(|grant| grant.amount_milli).sum()
}

/// All that a tenant and those below it have booked is within its nominal quota, whenever the windows are; and so it is of each
/// tenant above it, whose quota they share. A quota for all regions is for all of them together.
fn check_quota(state: &State, acts_for: Option<&Name>, nodes: &[Name]) -> Result<(), Refusal> {
    let Some(own) = acts_for else { return Ok(()) };
    let denied = |text: String| Err(Refusal::new(RefusalCode::PermissionDenied, text).with("tenant", own));
    let row_of = |node: &Name| state.node_named(node).and_then(|id| state.node(id));
    if nodes.iter().any(|node| row_of(node).is_some_and(|row| row.spec.accelerators.is_none())) {
        return denied(format!(
            "who acts for tenant {own} books hosts with accelerators alone: others are under no quota"
        ));
    }
    let usage = state.quota_usage();
    for above in state.policy().policy.ancestry(own) {
        for ((kind, region), milli) in booked_milli(state, above, nodes) {
            let nominal = match region {
                Some(region) if above == own => Some(usage.nominal_milli(own, kind, region)),
                _ => usage.nominal_of(&Side::Subtree(above.clone()), kind, region),
            };
            let granted = granted_milli(state, above, kind, region);
            let nominal = nominal.map(|nominal| nominal.saturating_sub(granted));
            let Some(nominal) = nominal.filter(|nominal| milli > *nominal) else { continue };
            let place = region.map_or("all regions", Name::as_str);
            return denied(format!(
                "tenant {above} would have {} devices of type {kind} in {place} booked, and has a nominal quota of {} \
                 without what is granted for some time; an operator may book more",
                milli / 1_000,
                nominal / 1_000
            ));
        }
    }
    Ok(())
}

/// More is booked than a tenant is promised: its quota has shrunk since, or operators have booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookingExcess {
    /// Whose quota it is: the owner's, or that of a tenant above it.
    pub tenant: Name,
    /// Of this type of accelerator.
    pub kind: Name,
    /// In this region; none in all of them together.
    pub region: Option<Name>,
    /// What the tenant and those below it have booked, in thousandths of devices.
    pub booked_milli: u64,
    /// Its nominal quota without what is granted for some time.
    pub nominal_milli: u64,
}

impl fmt::Display for BookingExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.region.as_ref().map_or("all regions", Name::as_str);
        write!(
            f,
            "tenant {} and those below it have {} devices of type {} in {place} booked, and its nominal quota is {}",
            self.tenant,
            self.booked_milli / 1_000,
            self.kind,
            self.nominal_milli / 1_000
        )
    }
}

/// Where more is booked than the policy in force promises. It is for people: what was booked stays.
#[derive(Clone, Debug, Default)]
pub struct BookingExcesses(BTreeMap<Name, Vec<BookingExcess>>);

impl BookingExcesses {
    /// By what is booked and promised now. A tenant without a stated quota is looked at where it has booked by itself, as it was then.
    #[must_use]
    pub fn of(state: &State) -> BookingExcesses {
        let policy = &state.policy().policy;
        let owners = || state.bookings().filter_map(|(_, booking)| booking.spec.tenant.as_ref());
        let tenants: BTreeSet<&Name> = owners().flat_map(|owner| policy.ancestry(owner)).collect();
        let usage = state.quota_usage();
        let mut found = BTreeMap::new();
        for tenant in tenants {
            let is_by_itself = state
                .bookings()
                .any(|(_, one)| one.spec.tenant.as_ref() == Some(tenant) && !one.by.is_operator);
            let mut excesses = Vec::new();
            for ((kind, region), booked_milli) in booked_milli(state, tenant, &[]) {
                let stated = usage.nominal_of(&Side::Subtree(tenant.clone()), kind, region);
                let least = region.filter(|_| is_by_itself && stated.is_none());
                let nominal = stated.or_else(|| least.map(|at| usage.nominal_milli(tenant, kind, at)));
                let Some(nominal) = nominal else { continue };
                let nominal_milli = nominal.saturating_sub(granted_milli(state, tenant, kind, region));
                if booked_milli <= nominal_milli {
                    continue;
                }
                let (tenant, kind, region) = (tenant.clone(), kind.clone(), region.cloned());
                excesses.push(BookingExcess { tenant, kind, region, booked_milli, nominal_milli });
            }
            if !excesses.is_empty() {
                found.insert(tenant.clone(), excesses);
            }
        }
        BookingExcesses(found)
    }

    /// The excess that a booking is a part of; that of its owner before those above.
    #[must_use]
    pub fn with(&self, state: &State, booking: &Booking) -> Option<&BookingExcess> {
        if self.0.is_empty() {
            return None;
        }
        let is_part = |excess: &&BookingExcess| {
            let specs = booking.nodes.iter().filter_map(|node| state.node(state.node_named(node)?));
            specs.into_iter().any(|row| {
                let has = row.spec.accelerators.as_ref();
                has.is_some_and(|has| has.kind == excess.kind)
                    && excess.region.as_ref().is_none_or(|region| row.spec.region == *region)
            })
        };
        let policy = &state.policy().policy;
        let owner = booking.spec.tenant.as_ref()?;
        policy.ancestry(owner).filter_map(|above| self.0.get(above)).flatten().find(is_part)
    }
}

/// Thousandths of devices that a tenant and those below it would have booked with these nodes, by type in each region and in
/// all. A node that several bookings have counts for each.
pub(crate) fn booked_milli<'a>(
    state: &'a State,
    tenant: &Name,
    nodes: &'a [Name],
) -> BTreeMap<(&'a Name, Option<&'a Name>), u64> {
    let policy = &state.policy().policy;
    let is_below = |booking: &Booking| {
        let owner = booking.spec.tenant.as_ref();
        owner.is_some_and(|owner| policy.ancestry(owner).any(|above| above == tenant))
    };
    let before =
        state.bookings().filter(|(_, booking)| is_below(booking)).flat_map(|(_, booking)| &booking.nodes);
    let mut booked: BTreeMap<(&Name, Option<&Name>), u64> = BTreeMap::new();
    for node in before.chain(nodes) {
        let Some(row) = state.node_named(node).and_then(|id| state.node(id)) else { continue };
        let Some(has) = &row.spec.accelerators else { continue };
        for region in [Some(&row.spec.region), None] {
            *booked.entry((&has.kind, region)).or_default() += u64::from(has.count) * 1_000;
        }
    }
    booked
}
