//! The invariant, over random histories: at every moment everything is charged once.

use std::collections::BTreeMap;

use muster_decider::{Command, OverridesOrder, handle};
use muster_journal::Round;
use muster_ledger::{Activity, Detail, IdleCause, JobTotals, Ledger, View, WaitReason, Window};
use muster_state::{NodeStatus, Phase, State};
use muster_types::policy::PurchaseKind;
use muster_types::{
    DeviceSet, ForeignLoad, JobId, Leadership, LogIndex, LogTime, Name, NodeId, NodeOverridesChange,
    RequestId, Requester,
};

use crate::model::Model;
use crate::random::Random;

/// Seeds that are always played.
const SEEDS: u64 = 12;
/// Seeds within which the histories have to reach what they are there for.
const SEEDS_MAX: u64 = 80 * 4;
const STEPS: u64 = 250;

/// A command that says how a node was bought.
fn bought(request: RequestId, node: NodeId, purchase: PurchaseKind) -> Command {
    let set_labels = BTreeMap::from([(Name::literal("purchase"), purchase.to_string())]);
    let change = NodeOverridesChange { set_labels, ..NodeOverridesChange::default() };
    Command::SetNodeOverrides(Box::new(OverridesOrder { request, by: Requester::default(), node, change }))
}

/// A history that the scheduler made, with foreign load and purchases of nodes among what it was asked.
fn history(seed: u64) -> Vec<Round> {
    let mut model = Model::new(seed);
    let mut random = Random::new(seed ^ 0xf0e1);
    for step in 0..STEPS {
        model.step();
        let state = model.speculation.state();
        if random.once_in(20) && state.nodes_registered() > 0 {
            let node = NodeId(random.below(u64::from(state.nodes_registered())) as u32);
            let purchase = PurchaseKind::ALL[random.below(4) as usize];
            // Ids that the model does not use.
            let request = RequestId(u128::MAX - u128::from(step));
            let _ = handle(&mut model.speculation, &bought(request, node, purchase));
        }
        let state = model.speculation.state();
        if random.once_in(12) && state.nodes_registered() > 0 {
            let node = NodeId(random.below(u64::from(state.nodes_registered())) as u32);
            let Some(row) = state.node(node) else { continue };
            let (incarnation, all) = (row.incarnation, DeviceSet::first(row.spec.device_count()));
            let devices = DeviceSet(random.next() & random.next() & all.0);
            let load = ForeignLoad { closed: random.once_in(5), devices, ..ForeignLoad::default() };
            let _ = handle(&mut model.speculation, &Command::ReportForeignLoad { node, incarnation, load });
        }
    }
    model.commit_all();
    model.log
}

type Sums<K> = BTreeMap<K, u128>;

/// What the state alone says, counted the slow way: by looking at every node and job between all records.
#[derive(Default)]
struct Count {
    capacity: Sums<(Name, Name)>,
    /// By type, region, tenant, and how the job was.
    held: Sums<(Name, Name, Name, &'static str)>,
    blocked: u128,
    pending: u128,
    starting: u128,
    /// What jobs asked for that could start.
    asked: u128,
}

impl Count {
    fn pass(&mut self, state: &State, ms: u64) {
        let ms = u128::from(ms);
        if ms == 0 {
            return;
        }
        let place = |node: NodeId| {
            let spec = &state.node(node).unwrap().spec;
            (spec.accelerators.as_ref().unwrap().kind.clone(), spec.region.clone())
        };
        for (id, row) in state.nodes().iter().filter(|(_, row)| row.spec.device_count() > 0) {
            let all = u128::from(row.spec.device_count()) * 1_000;
            *self.capacity.entry(place(*id)).or_default() += all * ms;
            let is_out = state.restriction(*id).is_some_and(|row| row.restricted().blocked);
            if row.status == NodeStatus::Lost || row.cordoned || is_out {
                self.blocked += u128::from(row.free.device_milli()) * ms;
            }
        }
        for (id, row) in state.jobs().iter() {
            let how = match row.phase {
                Phase::Starting => "starting",
                Phase::Running => "running",
                Phase::Stopping(_) => "stopping",
                Phase::Pending | Phase::Finished(_) => continue,
            };
            self.starting += if row.phase == Phase::Starting { ms } else { 0 };
            let spec = state.spec(*id).unwrap();
            let placement = row.placement.as_ref().unwrap();
            let live = placement.slots.iter().zip(&placement.ranks).enumerate();
            let live = live.filter(|(_, (_, state))| !state.is_over());
            let workers = placement.slots.len();
            let group = |rank: usize| spec.group_of(rank as u32, workers).unwrap().0;
            let live = live.map(|(rank, (slot, _))| (group(rank), slot, how));
            let spares = state.spares(*id).iter().map(|slot| (&spec.groups[0], slot, "spare"));
            for (group, slot, how) in live.chain(spares) {
                let milli = u128::from(group.request.device_milli());
                if milli > 0 {
                    let (kind, region) = place(slot.node);
                    *self.held.entry((kind, region, spec.tenant.clone(), how)).or_default() += milli * ms;
                }
            }
        }
        self.pending += state.pending_count() as u128 * ms;
        self.asked += asked(state) * ms;
    }
}

/// Thousandths of devices that jobs ask for which could start and have none.
fn asked(state: &State) -> u128 {
    let jobs = state.jobs().iter().filter(|(_, row)| row.phase == Phase::Pending);
    let jobs = jobs.filter(|(_, row)| row.promise.is_some() || (!row.held && row.released));
    let of_jobs: u128 = jobs.map(|(id, _)| u128::from(state.spec(*id).unwrap().device_milli())).sum();
    let arrays = state.arrays().iter().filter(|(id, row)| {
        let counted = row.unfinished().saturating_sub(state.array_load(**id).held);
        let is_throttled = row.template.array.throttle.is_some_and(|most| counted >= most);
        row.hold.is_none() && row.released && !is_throttled
    });
    let of_array =
        arrays.map(|(_, row)| u128::from(row.uncreated) * u128::from(row.template.spec.device_milli()));
    of_jobs + of_array.sum::<u128>()
}

fn by_pool<'a>(rows: impl Iterator<Item = (&'a Name, &'a Name, u128)>) -> Sums<(Name, Name)> {
    let mut sums = Sums::new();
    for (kind, region, milli_ms) in rows {
        *sums.entry((kind.clone(), region.clone())).or_default() += milli_ms;
    }
    sums
}

/// Holds a view against what was counted.
fn compare(view: &View, count: &Count) {
    let used = by_pool(view.usage.iter().map(|row| (&row.kind, &row.region, row.milli_ms)));
    let capacity = by_pool(view.capacity.iter().map(|row| (&row.kind, &row.region, row.milli_ms)));
    assert_eq!(used, capacity, "the activities add up to the capacity of each type and region");
    assert_eq!(capacity, count.capacity, "capacity is what the nodes had");
    let mut difference: BTreeMap<(&Name, &Name, Option<PurchaseKind>), i128> = BTreeMap::new();
    for row in &view.usage {
        *difference.entry((&row.kind, &row.region, row.purchase)).or_default() += row.milli_ms as i128;
    }
    for row in &view.capacity {
        *difference.entry((&row.kind, &row.region, row.purchase)).or_default() -= row.milli_ms as i128;
    }
    assert!(difference.values().all(|difference| *difference == 0), "and of each purchase: {difference:?}");
    let fleet = |sums: &Sums<(Name, Name)>| sums.values().sum::<u128>();
    assert_eq!(fleet(&used), fleet(&count.capacity));
    let mut held = Sums::new();
    let mut blocked = 0;
    for row in &view.usage {
        let how = match row.activity {
            Activity::Kept | Activity::Lost(_) | Activity::Provisional => "running",
            Activity::Starting => "starting",
            Activity::Checkpointing | Activity::Stopping => "stopping",
            Activity::Spare => "spare",
            Activity::Idle(cause) => {
                assert_eq!(row.tenant.is_some(), cause == IdleCause::Reserved, "{row:?}");
                let of_node = [
                    IdleCause::NodeLost,
                    IdleCause::Repair,
                    IdleCause::Quarantine,
                    IdleCause::Drain,
                    IdleCause::Cordon,
                ];
                blocked += if of_node.contains(&cause) { row.milli_ms } else { 0 };
                continue;
            }
        };
        let tenant = row.tenant.clone().expect("what is held has an owner");
        *held.entry((row.kind.clone(), row.region.clone(), tenant, how)).or_default() += row.milli_ms;
    }
    assert_eq!(held, count.held, "what jobs hold is theirs, in the state they are in");
    assert!(blocked <= count.blocked, "no node is called blocked that is not");
    let (starting, waiting): (Vec<_>, Vec<_>) =
        view.waits.iter().partition(|row| row.reason == WaitReason::Starting);
    assert_eq!(starting.iter().map(|row| row.job_ms).sum::<u128>(), count.starting);
    assert_eq!(waiting.iter().map(|row| row.job_ms).sum::<u128>(), count.pending);
    let demand: u128 = view.demand.iter().map(|row| row.milli_ms).sum();
    assert_eq!(demand, count.asked, "what jobs that could start asked for");
}

/// The rows of one view without those of an earlier one.
fn rows_since(later: &View, earlier: &View) -> BTreeMap<String, i128> {
    let mut rows: BTreeMap<String, i128> = BTreeMap::new();
    for (view, sign) in [(later, 1), (earlier, -1)] {
        for row in &view.usage {
            let place = (&row.kind, &row.region, row.purchase);
            let key = format!("{:?}", (row.day, &row.tenant, row.tier, place, row.activity));
            *rows.entry(key).or_default() += sign * row.milli_ms as i128;
        }
        for row in &view.waits {
            let key = format!("{:?}", (row.day, &row.tenant, row.tier, &row.kind, &row.region, row.reason));
            *rows.entry(key).or_default() += sign * row.job_ms as i128;
        }
        for row in &view.demand {
            let key = format!("asked {:?}", (row.day, &row.tenant, row.tier, &row.kind, &row.region));
            *rows.entry(key).or_default() += sign * row.milli_ms as i128;
        }
        for row in &view.capacity {
            *rows.entry(format!("{:?}", (row.day, &row.kind, &row.region, row.purchase))).or_default() +=
                sign * row.milli_ms as i128;
        }
    }
    rows.retain(|_, sum| *sum != 0);
    rows
}

struct Play {
    state: State,
    ledger: Ledger,
    ended: BTreeMap<JobId, JobTotals>,
}

impl Play {
    fn begin(state: State, window: Window) -> Play {
        let ledger = Ledger::begin(&state, window);
        Play { state, ledger, ended: BTreeMap::new() }
    }

    fn fold(&mut self, round: &Round) {
        for totals in self.ledger.fold_round(&mut self.state, round).unwrap() {
            assert!(self.ended.insert(totals.job, totals).is_none(), "a job ends once");
        }
    }

    fn view(&self) -> View {
        self.ledger.view(self.ledger.log_time())
    }
}

/// Everything that holds at a moment between two records.
fn check_moment(play: &Play, count: &Count, random: &mut Random) {
    let now = play.view();
    compare(&now, count);
    // What would be charged from here on, without another record, is what a ledger charges that begins here: nothing that
    // a record has changed was passed over.
    let at = play.ledger.log_time();
    let later = LogTime(at.0 + 1 + random.below(3 * 86_400_000));
    let fresh = Ledger::begin(&play.state, Window { from: at, until: None });
    let charged = rows_since(&play.ledger.view(later), &now);
    let expected = rows_since(&fresh.view(later), &View::default());
    assert_eq!(charged, expected, "at {}", play.ledger.log_index());
}

/// What jobs were told at their end, and what they have so far, adds up to what their tenants are charged for.
fn check_totals(play: &Play) {
    let mut of_jobs: Sums<Activity> = Sums::new();
    let running = play.state.jobs().iter().filter_map(|(id, _)| play.ledger.totals(*id));
    for totals in play.ended.values().cloned().chain(running) {
        for (activity, milli_ms) in totals.used {
            *of_jobs.entry(activity).or_default() += milli_ms;
        }
    }
    let mut charged: Sums<Activity> = Sums::new();
    let view = play.view();
    for row in view.usage.iter().filter(|row| !matches!(row.activity, Activity::Idle(_))) {
        *charged.entry(row.activity).or_default() += row.milli_ms;
    }
    assert_eq!(of_jobs, charged);
}

fn play_all(seed: u64, seen: &mut Sums<String>) {
    let rounds = history(seed);
    let mut random = Random::new(seed);
    let mut play = Play::begin(State::default(), Window::default());
    let mut count = Count::default();
    for round in &rounds {
        let leadership = Leadership { term: round.term, replica: round.replica };
        for (ordinal, decision) in round.decisions.iter().enumerate() {
            let index = LogIndex(round.first_index.0 + ordinal as u64);
            let before = play.state.clone();
            let ended =
                play.ledger.fold(&mut play.state, leadership, index, round.log_time, decision).unwrap();
            play.ended.extend(ended.into_iter().map(|totals| (totals.job, totals)));
            count.pass(&before, play.state.log_time().since_ms(before.log_time()));
            if random.once_in(9) {
                check_moment(&play, &count, &mut random);
            }
        }
    }
    check_moment(&play, &count, &mut random);
    check_totals(&play);
    let view = play.view();
    for row in &view.usage {
        *seen.entry(row.activity.to_string()).or_default() += 1;
    }
    for row in &view.waits {
        *seen.entry(row.reason.to_string()).or_default() += 1;
    }
    check_detail(&rounds, &play, &mut random);
    check_halves(&rounds, &play, &mut random);
    check_snapshot_start(&rounds, &mut random);
}

/// With more kept apart the same is charged, and each period has what a window of its length has.
fn check_detail(rounds: &[Round], whole: &Play, random: &mut Random) {
    let (first, last) = (rounds[0].log_time, whole.ledger.log_time());
    let length = last.since_ms(first).max(1);
    let mut cuts: Vec<LogTime> = (0..3).map(|_| first.plus_ms(1 + random.below(length))).collect();
    let mut play = Play::begin(State::default(), Window::default());
    let detail = Detail { cuts: cuts.clone(), jobs: true };
    play.ledger = Ledger::begin_with(&play.state, Window::default(), detail);
    rounds.iter().for_each(|round| play.fold(round));
    let (view, plain) = (play.view(), whole.view());
    assert_eq!(rows_since(&view, &View::default()), rows_since(&plain, &View::default()));
    assert_eq!(play.ended, whole.ended);
    let bytes = play.ledger.save();
    assert_eq!(Ledger::load(&bytes).unwrap().save(), bytes);
    cuts.sort_unstable();
    cuts.dedup();
    let ends: Vec<Option<LogTime>> = cuts.iter().copied().map(Some).chain([None]).collect();
    for (period, until) in ends.into_iter().enumerate() {
        let from = period.checked_sub(1).map_or(LogTime(0), |before| cuts[before]);
        let mut part = Play::begin(State::default(), Window { from, until });
        rounds.iter().for_each(|round| part.fold(round));
        let sum = |view: &View| view.usage.iter().map(|row| row.milli_ms).sum::<u128>();
        let of_period = view.usage.iter().filter(|row| row.period == period as u32);
        assert_eq!(of_period.map(|row| row.milli_ms).sum::<u128>(), sum(&part.view()));
    }
}

/// Folded in two halves, with a ledger that was saved between them, it is the same ledger.
fn check_halves(rounds: &[Round], whole: &Play, random: &mut Random) {
    let half = random.below(rounds.len() as u64) as usize;
    let mut play = Play::begin(State::default(), Window::default());
    for round in &rounds[..half] {
        play.fold(round);
    }
    let bytes = play.ledger.save();
    play.ledger = Ledger::load(&bytes).unwrap();
    assert_eq!(play.ledger.save(), bytes);
    let chunks: Vec<Vec<u8>> = play.state.snapshot().collect();
    play.state = State::restore(&chunks).unwrap();
    for round in &rounds[half..] {
        play.fold(round);
    }
    assert_eq!(play.ledger.save(), whole.ledger.save(), "the same log gives the same ledger");
    assert_eq!(play.ended, whole.ended);
}

/// From a state in the middle of the log on, the ledger agrees with that of the whole log.
fn check_snapshot_start(rounds: &[Round], random: &mut Random) {
    let start = random.below(rounds.len() as u64) as usize;
    let mut state = State::default();
    for round in &rounds[..start] {
        state.apply_round(round);
    }
    let window = Window { from: state.log_time(), until: None };
    let mut part = Play::begin(state, window);
    let mut whole = Play::begin(State::default(), window);
    for round in &rounds[..start] {
        whole.fold(round);
    }
    let before: Vec<JobId> = whole.ended.keys().copied().collect();
    for round in &rounds[start..] {
        part.fold(round);
        whole.fold(round);
        if random.once_in(10) {
            assert_eq!(part.view(), whole.view());
        }
    }
    assert_eq!(part.view(), whole.view());
    whole.ended.retain(|job, _| !before.contains(job));
    assert_eq!(part.ended, whole.ended);
}

/// States and reasons that the histories have to reach. `activities` shows those that are rarer.
const REACHED: [&str; 26] = [
    "kept",
    "lost.node_lost",
    "lost.application",
    "lost.cancelled",
    "lost.requeued",
    "starting",
    "stopping",
    "checkpointing",
    "spare",
    "idle.node_lost",
    "idle.fault",
    "idle.repair",
    "idle.quarantine",
    "idle.drain",
    "idle.cordon",
    "idle.foreign",
    "idle.reserved",
    "idle.demand_unplaced",
    "idle.no_demand",
    "held",
    "not_before",
    "backoff",
    "dependencies",
    "throttled",
    "waiting",
    "assembling",
];

#[test]
fn everything_is_charged_once_at_every_moment_of_random_histories() {
    let mut seen = Sums::new();
    for seed in 0..SEEDS_MAX {
        if seed >= SEEDS && REACHED.iter().all(|what| seen.contains_key(*what)) {
            break;
        }
        let result = std::panic::catch_unwind(|| {
            let mut seen = Sums::new();
            play_all(seed, &mut seen);
            seen
        });
        match result {
            Ok(of_seed) => {
                for (what, rows) in of_seed {
                    *seen.entry(what).or_default() += rows;
                }
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    for what in REACHED {
        assert!(seen.contains_key(what), "{what} never came about: {seen:?}");
    }
}
