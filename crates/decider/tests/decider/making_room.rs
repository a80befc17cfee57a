//! Which gangs are preempted, against every set of gangs that could be: on fleets so small that all of them can be tried.

use std::collections::{BTreeMap, BTreeSet};

use muster_decider::{Answer, Command, Speculation, handle, schedule, tick};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_state::{NodeRow, Phase, State};
use muster_types::policy::{PolicyDraft, Price};
use muster_types::tpu::{PodPosition, SliceRequest, SliceShape};
use muster_types::{
    AcceleratorChoice, AcceleratorRequest, DeviceAmount, ExitStatus, JobDraft, JobId, JobSpec, Level,
    LogTime, NodeDraft, NodeId, NodeSpec, PriorityTier, Submission,
};

use crate::random::Random;
use crate::support::{
    accelerators, founded, group, holder, job_draft, name, node_draft, request, with_all_rights,
};

const SEEDS: u64 = 36;
const MINUTE_MS: u64 = 60_000;
const MINIMUM_RUN_MS: u64 = 2 * MINUTE_MS;
const BACKOFF_MS: u64 = 10 * MINUTE_MS;
const RESTART_MS: u64 = 60_000;
const VISITS: u64 = 100_000;
const PRICES: [(&str, u64); 2] = [("h100", 3), ("b200", 5)];

/// A small fleet under its leader, and a model of what the policy did to whom.
struct World {
    random: Random,
    speculation: Speculation,
    replica: State,
    now: LogTime,
    requests: u128,
    /// When policy stopped a job last, and how often it did.
    stopped: BTreeMap<JobId, (LogTime, u32)>,
    /// What the last pass spent.
    visits: u64,
}

/// What a set of gangs costs: by rank, worst first. In the back-off, then by tier.
type Cost = ([u128; 4], usize);

impl World {
    fn new(seed: u64, hosts: u64) -> World {
        let mut world = World::empty(seed);
        for host in 0..hosts {
            let (kind, _) = PRICES[world.random.below(2) as usize];
            let devices = if world.random.once_in(3) { 4 } else { 8 };
            world.register(node_draft(&format!("n{host}"), "eu", "c1", Some(accelerators(kind, devices))));
        }
        world
    }

    fn empty(seed: u64) -> World {
        let (speculation, replica) = founded();
        let now = speculation.now();
        let random = Random::new(seed);
        World { random, speculation, replica, now, requests: 1_000, stopped: BTreeMap::new(), visits: 0 }
    }

    fn register(&mut self, node: NodeDraft) {
        let spec = node.check().unwrap();
        self.carry_out(&Command::Register { spec, holder: holder(1), other_session_is_over: true });
    }

    /// Fills the fleet with gangs of the lowest tier, one for each host; those on some nodes have saved their
    /// work a moment ago, the others run for ten hours.
    fn fill_hosts(&mut self, kind: &str, devices: u16, has_saved: impl Fn(&NodeDraft) -> bool) {
        self.set_policy(true);
        let hosts = self.replica.nodes().len();
        for _ in 0..hosts {
            let mut draft = job_draft("low", vec![group("main", 1, Some(accelerators(kind, devices)))]);
            draft.tier = PriorityTier::Free;
            draft.expected_run_ms = Some(100 * 60 * MINUTE_MS);
            self.submit(draft.check().unwrap()).unwrap();
        }
        let stopping = self.schedule();
        self.settle(&stopping);
        assert_eq!(self.replica.active_count(), hosts);
        self.pass_time(600 * MINUTE_MS);
        for job in self.replica.active().collect::<Vec<_>>() {
            let placement = self.replica.job(job).unwrap().placement.clone().unwrap();
            if has_saved(&self.replica.node(placement.slots[0].node).unwrap().spec) {
                self.carry_out(&Command::CommitCheckpoint { job, token: placement.token, step: None });
            }
        }
        self.pass_time(MINUTE_MS);
    }

    /// The hosts of everybody who stops for this gang.
    fn hosts_freed_for(&mut self, draft: JobDraft) -> Vec<NodeSpec> {
        let draft = JobDraft { tier: PriorityTier::Production, ..draft };
        self.submit(draft.check().unwrap()).unwrap();
        let stopping = self.schedule();
        let mut hosts = Vec::new();
        for job in &stopping {
            let placement = self.replica.job(*job).unwrap().placement.clone().unwrap();
            hosts.extend(
                placement.slots.iter().map(|slot| (*self.replica.node(slot.node).unwrap().spec).clone()),
            );
        }
        hosts
    }

    fn carry_out(&mut self, command: &Command) -> Answer {
        let answer = handle(&mut self.speculation, command).unwrap();
        self.commit();
        answer
    }

    /// What was decided is so: other tests hold speculation against its replicas.
    fn commit(&mut self) {
        let _ = self.speculation.take_round();
        self.replica = self.speculation.state().clone();
    }

    fn next_request(&mut self) -> muster_types::RequestId {
        self.requests += 1;
        request(self.requests)
    }

    fn set_policy(&mut self, enabled: bool) {
        let mut draft = with_all_rights(PolicyDraft::default());
        draft.preemption.enabled = enabled;
        draft.preemption.defragment = false;
        draft.backfill.reservations_max = 0;
        draft.preemption.minimum_run_ms = MINIMUM_RUN_MS;
        draft.preemption.backoff_ms = BACKOFF_MS;
        for (kind, price) in PRICES {
            draft.prices.push(Price::new(name(kind), None, price));
        }
        let policy = Box::new(draft.check().unwrap());
        let request = self.next_request();
        self.carry_out(&Command::SetPolicy {
            request,
            by: muster_types::Requester::default(),
            policy,
            expected_version: None,
        });
    }

    fn spec(&mut self, workers: u32, devices: u16, tier: PriorityTier) -> JobSpec {
        let choice = |kind| AcceleratorChoice { kind: name(kind), throughput_milli: 1_000 };
        let choices = PRICES.iter().map(|(kind, _)| choice(kind)).collect();
        let mut group = group("main", workers, None);
        group.request.accelerators =
            Some(AcceleratorRequest { choices, amount: DeviceAmount::Whole(devices) });
        let mut draft = job_draft("job", vec![group]);
        draft.tier = tier;
        draft.expected_run_ms = Some(100 * 60 * MINUTE_MS);
        draft.stop_grace_ms = [0, 5_000, 30_000, 10 * MINUTE_MS][self.random.below(4) as usize];
        draft.check().unwrap()
    }

    /// None when no state of the fleet could hold it.
    fn submit(&mut self, spec: JobSpec) -> Option<JobId> {
        let request = self.next_request();
        let jobs = Submission::plain([spec]);
        let answer = handle(&mut self.speculation, &Command::submit(request, jobs)).ok()?;
        self.commit();
        let Answer::Submitted { jobs, .. } = answer else { panic!("a submission is answered as one") };
        Some(jobs[0])
    }

    fn pass_time(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.speculation.set_now(self.now);
        tick(&mut self.speculation);
        self.commit();
    }

    /// One pass; everybody who was told to stop stops, and everybody who was placed runs.
    fn schedule(&mut self) -> BTreeSet<JobId> {
        let mut budget = Budget::new(VISITS);
        schedule(&mut self.speculation, &mut budget);
        self.visits = VISITS - budget.left();
        self.commit();
        let rows = self.replica.jobs().iter();
        let stopping: BTreeSet<JobId> =
            rows.filter(|(_, row)| matches!(row.phase, Phase::Stopping(_))).map(|(id, _)| *id).collect();
        stopping
    }

    fn settle(&mut self, stopping: &BTreeSet<JobId>) {
        for job in stopping {
            let times = self.stopped.get(job).map_or(0, |(_, times)| *times);
            self.stopped.insert(*job, (self.now, times + 1));
            self.report(*job, &RankUpdate::Exited(ExitStatus::Signal(15)));
        }
        let starting: Vec<JobId> = self.replica.active().collect();
        for job in starting {
            if self.replica.job(job).unwrap().phase == Phase::Starting {
                self.report(job, &RankUpdate::Running);
            }
        }
    }

    fn report(&mut self, job: JobId, update: &RankUpdate) {
        let placement = self.replica.job(job).unwrap().placement.clone().unwrap();
        let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
        for (rank, slot) in placement.slots.iter().enumerate() {
            by_node.entry((slot.node, slot.incarnation)).or_default().push((rank as u32, update.clone()));
        }
        for ((node, incarnation), updates) in by_node {
            let token = placement.token;
            self.carry_out(&Command::Report { node, incarnation, job, token, updates });
        }
    }

    /// Gangs of all sizes and low tiers until hardly anything is free; they began at different times, and some
    /// have saved their work since.
    fn fill(&mut self, workers_max: u64, tiers: &[PriorityTier]) {
        self.set_policy(false);
        for _ in 0..40 {
            let (workers, devices) = match self.random.below(6) {
                0 if workers_max > 1 => (2, 2),
                0 | 1 => (1, 4),
                2 => (1, 2),
                _ => (1, 1),
            };
            let tier = tiers[self.random.below(tiers.len() as u64) as usize];
            let spec = self.spec(workers, devices, tier);
            let Some(job) = self.submit(spec) else { continue };
            let stopping = self.schedule();
            self.settle(&stopping);
            if self.replica.job(job).unwrap().phase == Phase::Pending {
                let request = self.next_request();
                self.carry_out(&Command::cancel(request, job));
            }
            let passed = self.random.below(30) * MINUTE_MS;
            self.pass_time(passed);
            if self.random.once_in(4)
                && let running = self.replica.active().collect::<Vec<_>>()
                && let Some(job) = self.random.pick(&running)
            {
                let token = self.replica.job(job).unwrap().placement.as_ref().unwrap().token;
                self.carry_out(&Command::CommitCheckpoint { job, token, step: None });
            }
        }
        self.set_policy(true);
    }

    /// Whether policy may stop a job for one of the tier production, by the rules as people read them.
    fn may_stop(&self, job: JobId) -> bool {
        let (row, spec) = (self.replica.job(job).unwrap(), self.replica.spec(job).unwrap());
        row.phase == Phase::Running
            && spec.tier < PriorityTier::Production
            && row.started_at.is_some_and(|at| self.now.since_ms(at) >= MINIMUM_RUN_MS)
    }

    fn is_backing_off(&self, job: JobId) -> bool {
        self.stopped
            .get(&job)
            .is_some_and(|(at, times)| self.now.since_ms(*at) < BACKOFF_MS << (times - 1).min(6))
    }

    fn cost(&self, jobs: &BTreeSet<JobId>) -> Cost {
        let mut amounts = [0; 4];
        for job in jobs {
            let (row, spec) = (self.replica.job(*job).unwrap(), self.replica.spec(*job).unwrap());
            let placement = row.placement.as_ref().unwrap();
            let node = self.replica.node(placement.slots[0].node).unwrap();
            let kind = node.spec.accelerators.as_ref().unwrap().kind.to_string();
            let price = PRICES.iter().find(|(of, _)| *of == kind).unwrap().1;
            let since = row.checkpointed_at.or(row.started_at).unwrap();
            let ms = self.now.since_ms(since) + spec.stop_grace_ms + RESTART_MS;
            let rank = match spec.tier {
                _ if self.is_backing_off(*job) => 0,
                PriorityTier::Standard => 1,
                PriorityTier::Batch => 2,
                _ => 3,
            };
            amounts[rank] += u128::from(spec.device_milli()) * u128::from(ms) * u128::from(price);
        }
        (amounts, jobs.len())
    }

    /// Devices that would be free on a host without these gangs.
    fn free_without(&self, node: (&NodeId, &NodeRow), jobs: &BTreeSet<JobId>) -> u32 {
        let mut free = u32::from(node.1.free.devices.count());
        for job in jobs {
            let placement = self.replica.job(*job).unwrap().placement.as_ref().unwrap();
            let there = placement.slots.iter().filter(|slot| slot.node == *node.0);
            free += there.map(|slot| u32::from(slot.devices.count())).sum::<u32>();
        }
        free
    }

    /// Whether this number of workers with this number of devices each fit on hosts of one type without these gangs.
    fn fits(&self, workers: u32, devices: u32, one_host: bool, jobs: &BTreeSet<JobId>) -> bool {
        PRICES.iter().any(|(kind, _)| {
            let hosts = self
                .replica
                .nodes()
                .iter()
                .filter(|(_, row)| row.spec.accelerators.as_ref().is_some_and(|a| a.kind == name(kind)));
            let fitting: Vec<u32> = hosts.map(|node| self.free_without(node, jobs) / devices).collect();
            if one_host {
                fitting.iter().any(|count| *count >= workers)
            } else {
                fitting.iter().sum::<u32>() >= workers
            }
        })
    }

    /// The least that any set of these gangs costs without whom it fits.
    fn cheapest(&self, workers: u32, devices: u32, one_host: bool, asked: &[JobId]) -> Option<Cost> {
        assert!(asked.len() <= 16, "{} gangs are too many to try all sets", asked.len());
        let sets = (0_u32..1 << asked.len()).map(|bits| {
            let is_in = |(at, _): &(usize, &JobId)| bits >> at & 1 == 1;
            asked.iter().enumerate().filter(is_in).map(|(_, job)| *job).collect::<BTreeSet<_>>()
        });
        let fitting = sets.filter(|set| self.fits(workers, devices, one_host, set));
        fitting.map(|set| self.cost(&set)).min()
    }

    /// The same on each host alone, where there may be more gangs in all.
    fn cheapest_on_a_host(&self, workers: u32, devices: u32, asked: &[JobId]) -> Option<Cost> {
        let nodes = self.replica.nodes().iter();
        let on_host = nodes.filter_map(|(node, _)| {
            let there: Vec<JobId> = self.replica.gangs_on(*node).filter(|job| asked.contains(job)).collect();
            self.cheapest(workers, devices, true, &there)
        });
        on_host.min()
    }

    fn assert_minimal(&self, seed: u64, workers: u32, devices: u32, one_host: bool, set: &BTreeSet<JobId>) {
        for job in set {
            let mut others = set.clone();
            others.remove(job);
            let fits = self.fits(workers, devices, one_host, &others);
            assert!(!fits, "seed {seed}: {job} stops for nothing, of {set:?}");
        }
    }
}

/// A gang that has to be in one rack, or one block, gets the rack or block where least is lost, and nobody
/// elsewhere stops.
#[test]
fn a_domain_is_freed_as_a_whole() {
    for (level, hosts) in [(Level::Rack, 3), (Level::Block, 5)] {
        let mut world = World::empty(1);
        for host in 0..24 {
            let mut node = node_draft(&format!("n{host}"), "eu", "c1", Some(accelerators("h100", 8)));
            (node.block, node.rack) = (name(&format!("b{}", host / 12)), name(&format!("r{}", host / 4)));
            world.register(node);
        }
        // Two racks of the second block have saved their work, and one host of each rack of the first.
        world.fill_hosts("h100", 8, |node| {
            node.rack == name("r4")
                || node.rack == name("r5")
                || ["n0", "n4", "n8"].contains(&node.name.as_str())
        });
        let mut draft = job_draft("near", vec![group("main", hosts, Some(accelerators("h100", 8)))]);
        draft.topology.required = Some(level);
        let freed = world.hosts_freed_for(draft);
        assert_eq!(freed.len(), hosts as usize);
        let racks: BTreeSet<_> = freed.iter().map(|node| node.rack.to_string()).collect();
        assert!(racks.iter().all(|rack| ["r4", "r5"].contains(&rack.as_str())), "{racks:?}");
        assert!(level == Level::Block || racks.len() == 1, "{racks:?}");
    }
}

/// A slice of whole cubes gets the cubes of one pod where least is lost; a smaller one a box in one cube, or a
/// rectangle of a grid.
#[test]
fn cubes_and_rectangles_are_freed_as_a_whole() {
    let pods = |world: &mut World, kind: &str, cubes: u16, host: [u8; 3], bounds: [u8; 3]| {
        for pod in ["p1", "p2"] {
            for cube in 0..cubes {
                let along = |axis: usize| (0..bounds[axis]).step_by(host[axis].into());
                for (x, y, z) in
                    along(0).flat_map(|x| along(1).flat_map(move |y| along(2).map(move |z| (x, y, z))))
                {
                    let host = format!("{pod}-{cube}-{x}-{y}-{z}");
                    let mut node = node_draft(&host, "eu", "c1", Some(accelerators(kind, 4)));
                    node.pod = Some(PodPosition { pod: name(pod), cube, at: [x, y, z] });
                    world.register(node);
                }
            }
        }
    };
    let slice = |kind: &str, shape: &str, workers: u32| {
        let mut group = group("main", workers, Some(accelerators(kind, 4)));
        group.slice = Some(SliceRequest { shape: SliceShape::parse(shape).unwrap(), count: 1 });
        job_draft("slice", vec![group])
    };
    // Cubes 1 and 2 of the second pod have saved their work, and half of each cube of the first.
    let mut world = World::empty(2);
    pods(&mut world, "v5p", 3, [2, 2, 1], [4, 4, 4]);
    world.fill_hosts("v5p", 4, |node| {
        let place = node.pod.as_ref().unwrap();
        if place.pod == name("p2") { place.cube > 0 } else { place.at[2] < 2 }
    });
    let freed = world.hosts_freed_for(slice("v5p", "4x4x8", 32));
    let cubes: BTreeSet<_> = freed
        .iter()
        .map(|node| (node.pod.clone().unwrap().pod.to_string(), node.pod.clone().unwrap().cube))
        .collect();
    assert_eq!((freed.len(), cubes), (32, BTreeSet::from([("p2".to_owned(), 1), ("p2".to_owned(), 2)])));

    // One rectangle of 4x4 chips, that is of two by two hosts, has saved its work, and every other host of the
    // rest in a checkerboard.
    let mut world = World::empty(3);
    pods(&mut world, "v5e", 1, [2, 2, 1], [8, 8, 1]);
    world.fill_hosts("v5e", 4, |node| {
        let place = node.pod.as_ref().unwrap();
        let [x, y] = [place.at[0] / 2, place.at[1] / 2];
        let is_chosen = place.pod == name("p2") && (1..3).contains(&x) && (1..3).contains(&y);
        is_chosen || (x + y) % 2 == 0
    });
    let freed = world.hosts_freed_for(slice("v5e", "4x4", 4));
    let places: BTreeSet<_> = freed.iter().map(|node| node.pod.clone().unwrap().at).collect();
    assert_eq!(places, BTreeSet::from([[2, 2, 0], [2, 4, 0], [4, 2, 0], [4, 4, 0]]));
}

/// A search that ended in nothing is not made again as a whole by every pass: only hosts on which something has
/// changed are looked at, and as soon as one of them can be freed it is.
#[test]
fn a_vain_search_is_remembered() {
    let mut world = World::empty(4);
    world.set_policy(true);
    for host in 0..40 {
        world.register(node_draft(&format!("n{host}"), "eu", "c1", Some(accelerators("h100", 8))));
    }
    // On each host one that must not be stopped and seven that may be.
    for _ in 0..40 {
        for place in 0..8 {
            let mut draft = world.spec(1, 1, PriorityTier::Free).into_draft();
            draft.preemptible = place > 0;
            world.submit(draft.check().unwrap()).unwrap();
        }
        let stopping = world.schedule();
        world.settle(&stopping);
    }
    assert_eq!(world.replica.active_count(), 320);
    world.pass_time(10 * MINUTE_MS);
    let spec = world.spec(1, 8, PriorityTier::Production);
    let claimant = world.submit(spec).unwrap();
    assert!(world.schedule().is_empty());
    let whole = world.visits;
    assert!(whole > 40, "{whole} visits");
    // Others end, here and there, with nothing to follow them.
    let fixed = |world: &World, job: &JobId| !world.replica.spec(*job).unwrap().preemptible;
    let others: Vec<JobId> = world.replica.active().filter(|job| !fixed(&world, job)).step_by(50).collect();
    for job in &others {
        world.report(*job, &RankUpdate::Exited(ExitStatus::Code(0)));
        assert!(world.schedule().is_empty());
        assert!(world.visits < whole / 4, "{} visits, and {whole} for all hosts", world.visits);
    }
    let last = world.replica.active().filter(|job| fixed(&world, job)).last().unwrap();
    let node = world.replica.job(last).unwrap().placement.as_ref().unwrap().slots[0].node;
    world.report(last, &RankUpdate::Exited(ExitStatus::Code(0)));
    let stopping = world.schedule();
    assert!(!stopping.is_empty() && world.visits < whole / 2, "{} visits", world.visits);
    assert!(stopping.iter().all(|job| world.replica.gangs_on(node).any(|there| there == *job)));
    world.settle(&stopping);
    assert_eq!(world.replica.job(claimant).unwrap().phase, Phase::Running);
}

const LOW: &[PriorityTier] = &[PriorityTier::Free, PriorityTier::Batch, PriorityTier::Standard];

/// For a gang on one host the set that stops is the cheapest there is, and nobody in it could be left out.
#[test]
fn one_host_is_freed_by_the_cheapest_set() {
    let (mut made, mut victims) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 3 + seed % 4);
        world.fill(2, LOW);
        let (workers, devices) = [(1, 8), (1, 4), (1, 2), (1, 1), (2, 2), (4, 2)][seed as usize % 6];
        let asked: Vec<JobId> = world.replica.active().filter(|job| world.may_stop(*job)).collect();
        let expected = world.cheapest_on_a_host(workers, u32::from(devices), &asked);
        let mut draft = world.spec(workers, devices, PriorityTier::Production).into_draft();
        draft.topology.required = (workers > 1).then_some(Level::Host);
        if world.submit(draft.check().unwrap()).is_none() {
            continue;
        }
        let stopping = world.schedule();
        let cost = world.cost(&stopping);
        assert_eq!(Some(cost), expected, "seed {seed}: {workers}x{devices}, stopped {stopping:?}");
        world.assert_minimal(seed, workers, u32::from(devices), true, &stopping);
        made += usize::from(!stopping.is_empty());
        victims += stopping.len();
    }
    assert!(made > SEEDS as usize / 2 && victims > made, "{victims} stopped in {made} worlds");
}

/// Over several hosts the set that stops is the cheapest there is as well, as long as so few gangs could do better that
/// their sets are searched.
#[test]
fn several_hosts_are_freed_by_the_cheapest_set() {
    let (mut made, mut dearer) = (0, Vec::new());
    for seed in 0..SEEDS {
        let mut world = World::new(1_000 + seed, 2);
        world.fill(2, &[PriorityTier::Free]);
        let (workers, devices) = [(2, 4), (3, 2), (4, 2), (2, 3)][seed as usize % 4];
        let asked: Vec<JobId> = world.replica.active().filter(|job| world.may_stop(*job)).collect();
        if asked.len() > 11 {
            continue;
        }
        let least = world.cheapest(workers, u32::from(devices), false, &asked);
        let spec = world.spec(workers, devices, PriorityTier::Production);
        if world.submit(spec).is_none() {
            continue;
        }
        let stopping = world.schedule();
        world.assert_minimal(seed, workers, u32::from(devices), false, &stopping);
        let Some(least) = least else {
            assert!(stopping.is_empty());
            continue;
        };
        let cost = world.cost(&stopping);
        if cost != least {
            let times = cost.0[3] as f64 / least.0[3] as f64;
            dearer.push(format!("seed {seed}: {workers}x{devices}, {times:.3} times the least"));
        }
        made += usize::from(!stopping.is_empty());
    }
    assert!(dearer.is_empty(), "{} of {made}:\n{}", dearer.len(), dearer.join("\n"));
    assert!(made > 18, "gangs were preempted in {made} worlds");
}

/// Nobody is stopped again within its back-off while others would do, however often capacity is asked for.
#[test]
fn nobody_is_stopped_again_and_again() {
    let (mut stops, mut again) = (0, 0);
    for seed in 0..12 {
        let mut world = World::new(2_000 + seed, 3);
        world.fill(1, &[PriorityTier::Free, PriorityTier::Batch]);
        for _ in 0..12 {
            let devices = [1, 2, 4][world.random.below(3) as usize];
            let asked: Vec<JobId> = world
                .replica
                .active()
                .filter(|job| world.may_stop(*job) && !world.is_backing_off(*job))
                .collect();
            let others = world.cheapest_on_a_host(1, u32::from(devices), &asked);
            let spec = world.spec(1, devices, PriorityTier::Production);
            let Some(claimant) = world.submit(spec) else { continue };
            let stopping = world.schedule();
            let backing_off = stopping.iter().filter(|job| world.is_backing_off(**job)).count();
            assert!(
                backing_off == 0 || others.is_none(),
                "seed {seed}: {stopping:?} although others would do"
            );
            stops += stopping.len();
            again += stopping.iter().filter(|job| world.stopped.contains_key(job)).count();
            world.settle(&stopping);
            let passed = (1 + world.random.below(4)) * MINUTE_MS;
            world.pass_time(passed);
            if world.replica.job(claimant).unwrap().phase == Phase::Running {
                world.report(claimant, &RankUpdate::Exited(ExitStatus::Code(0)));
            } else {
                let request = world.next_request();
                world.carry_out(&Command::cancel(request, claimant));
            }
            let stopping = world.schedule();
            world.settle(&stopping);
        }
    }
    assert!(stops > 60 && again > 5, "{stops} stops, {again} of them of jobs stopped before");
}
