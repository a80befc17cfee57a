//! A recorded month through the scheduler, and a question about it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::trace::{JobEntry, Jobs, SubmitOrder};

/// Hosts of eight devices.
const HOSTS: usize = 200;
/// What the two replays are held to, where nothing else runs on the machine.
const SECONDS: f64 = 15.0;

fn submit(world: &mut World, entry: &JobEntry) -> JobId {
    let count = u16::try_from(entry.accel_milli / 1_000).unwrap();
    let accelerators = Accelerators { kind: Name::literal("h100"), count };
    let request = WorkerRequest {
        accelerators: Some(AcceleratorRequest::from(accelerators)),
        cpu_milli: 1_000,
        memory_bytes: 1 << 30,
        exclusive: false,
        scratch_bytes: 0,
    };
    let command = vec!["train".to_owned()];
    let group = TaskGroup::new(Name::literal("main"), entry.replicas, command, request);
    let tenant = if entry.queue.is_empty() { "all" } else { entry.queue.as_str() };
    let draft = JobDraft {
        expected_run_ms: entry.duration_s.map(|seconds| seconds.max(1) * 1_000),
        ..JobDraft::new(Name::literal("job"), Name::new(tenant).unwrap(), vec![group])
    };
    let submission = Submission::new(draft.check().unwrap(), JobContract::default());
    let (request, jobs) = (world.request(), Arc::from([submission]));
    match world.ask(&Command::submit(request, jobs)) {
        Answer::Submitted { jobs, .. } => jobs[0],
        other => panic!("{other:?}"),
    }
}

/// Each node of a gang reports its ranks.
fn report(world: &mut World, job: JobId, update: &RankUpdate) {
    let placement = world.applied.job(job).unwrap().placement.clone().unwrap();
    let mut by_node: BTreeMap<(NodeId, u32), Vec<(u32, RankUpdate)>> = BTreeMap::new();
    for (rank, slot) in (0..).zip(&placement.slots) {
        by_node.entry((slot.node, slot.incarnation)).or_default().push((rank, update.clone()));
    }
    let token = placement.token;
    for ((node, incarnation), updates) in by_node {
        world.ask(&Command::Report { node, incarnation, job, token, updates });
    }
}

/// What these jobs come to until the last of them is submitted.
fn record(jobs: &[JobEntry]) -> Recording {
    let at = |second: u64| LogTime(BEGIN + second * 1_000);
    let end_s = jobs.last().map_or(0, |job| job.submit_s);
    let range = Range { from: at(0), to: at(end_s) };
    let mut world = World::new(&["h100"; HOSTS], plain());
    world.recorder = Some(Recorder::begin(&world.applied, range));
    let mut run_s: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut ends: BTreeSet<(u64, JobId)> = BTreeSet::new();
    let mut next = jobs.iter().peekable();
    loop {
        let submission = next.peek().map(|job| job.submit_s);
        let now = ends.first().map(|(at, _)| *at).into_iter().chain(submission).min();
        let Some(now_s) = now.filter(|at| *at <= end_s) else { break };
        world.speculation.set_now(at(now_s));
        while let Some((_, job)) = ends.first().copied().filter(|(at, _)| *at <= now_s) {
            ends.pop_first();
            report(&mut world, job, &RankUpdate::Exited(ExitStatus::Code(0)));
        }
        tick(&mut world.speculation);
        world.commit();
        while let Some(entry) = next.next_if(|job| job.submit_s <= now_s) {
            let id = submit(&mut world, entry);
            run_s.insert(id, entry.duration_s.unwrap_or_default().max(1));
        }
        while world.speculation.wants_schedule() {
            schedule(&mut world.speculation, &mut Budget::new(200_000));
            world.commit();
            for job in std::mem::take(&mut world.placed) {
                ends.insert((now_s + run_s[&job], job));
                report(&mut world, job, &RankUpdate::Running);
            }
        }
    }
    let mut recorder = world.recorder.take().unwrap();
    recorder.end_range(&world.applied);
    recorder.finish(&world.applied).unwrap()
}

/// `cargo test --release -p muster-sim month -- --nocapture`, with `MUSTER_TRACES` set, prints how long it takes.
#[test]
fn a_month_is_replayed_under_a_change() {
    let Some(directory) = env::var_os("MUSTER_TRACES").map(PathBuf::from) else {
        println!("skipped: MUSTER_TRACES is not set");
        return;
    };
    let file = directory.join("itp2021").join("jobs_dev.csv.gz");
    // Debug builds check far more and take their time.
    let count = if cfg!(debug_assertions) { 1_000 } else { usize::MAX };
    let jobs = Jobs::open(&file, SubmitOrder::Ascending).unwrap().take(count);
    let jobs: Vec<JobEntry> = jobs.collect::<Result<_, _>>().unwrap();
    let recording = record(&jobs);
    let begun = Instant::now();
    let before = unchanged(&recording);
    let after = replay(&recording, &more("64xh100@eu/train"));
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{} jobs replayed without and with 64 more accelerators in {took:.1} s, to be at most {SECONDS} s; p90 of waits {} and {} ms",
        jobs.len(),
        before.waits.p90_ms,
        after.waits.p90_ms
    );
    assert_eq!(recording.record.submitted, jobs.len() as u64);
    assert_eq!((before.submitted, after.submitted), (jobs.len() as u64, jobs.len() as u64));
    assert_eq!((before.refused, before.inputs_without_effect), (0, 0));
    assert!(after.types[0].capacity_seconds > before.types[0].capacity_seconds);
}
