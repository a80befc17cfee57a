//! A Slurm that is down, full, forgetful, or turns its jobs away: each becomes a stated end, nothing runs
//! twice, and nothing is left.

use crate::slurm::OnSlurm;
use crate::suite::{Behaviour, Bench, GRACE, Subject};
use muster_agent::executor::Executor;
use muster_agent::rules::Placement;
use muster_types::{DeviceSet, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

type OnBench<'a> = Bench<'a, OnSlurm>;

/// Shims of a runner that was killed end with its lease: until then the runners behind it leave its directory alone.
const RUNNERS_UNTIL_CLEAN: usize = 20;

/// One worker with devices that tells which it sees.
async fn start_with_devices(bench: &mut OnBench<'_>, devices: DeviceSet) -> Arc<Placement> {
    let mut placement = (*bench.placement(&[Behaviour::Exit(0)])).clone();
    let worker = &mut placement.workers[0];
    worker.devices = devices;
    worker.accelerator_type = "h100".to_owned();
    let file = bench.subject.directory.path().join("seen");
    worker.command[2] = format!("echo \"$CUDA_VISIBLE_DEVICES\" > '{}'", file.display());
    let placement = Arc::new(placement);
    bench.executor.start(Arc::clone(&placement), bench.subject.epoch()).await;
    placement
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn devices_are_those_that_slurm_gave() {
    let Some(mut subject) = OnSlurm::start() else { return };
    let mut bench = Bench::open(&mut subject).await;
    // Somebody else has the first two of four.
    let foreign = bench.subject.lab.foreign(&["--gres=gpu:h100:2"]);
    bench.subject.lab.wait_for("the other job to run", |lab| {
        lab.jobs().iter().any(|job| job.starts_with(&format!("{foreign} RUNNING")))
    });
    let gang = start_with_devices(&mut bench, DeviceSet(0b11)).await;
    assert_eq!(bench.end_of(gang.key(0)).await, ExitStatus::Code(0));
    let seen = std::fs::read_to_string(bench.subject.directory.path().join("seen")).unwrap();
    assert_eq!(seen.trim(), "2,3", "devices 0 and 1 were meant, and 2 and 3 given");
    bench.subject.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_cluster_gives_the_place_up_again() {
    let Some(mut subject) = OnSlurm::start() else { return };
    subject.change = |config| config.start_wait_ms = 3_000;
    let mut bench = Bench::open(&mut subject).await;
    let foreign = bench.subject.lab.foreign(&["--exclusive"]);
    bench.subject.lab.wait_for("the other job to run", |lab| {
        lab.jobs().iter().any(|job| job.starts_with(&format!("{foreign} RUNNING")))
    });
    let gang = bench.start(&[Behaviour::Exit(0)]).await;
    let end = bench.end_of(gang.key(0)).await;
    assert!(
        matches!(&end, ExitStatus::BackendLost(why) if why.contains("started nothing within 3 s")),
        "{end}"
    );
    bench.subject.lab.slurm("scancel", &[&foreign]);
    bench.subject.assert_clean();
    assert_eq!(bench.subject.launches(gang.key(0)), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_slurm_refuses_is_said_in_its_words() {
    let Some(mut subject) = OnSlurm::start() else { return };
    subject.change = |config| {
        config.partitions = vec!["closed".into()];
        config.account = Some("somebody".into());
    };
    let mut bench = Bench::open(&mut subject).await;
    let gang = bench.start(&[Behaviour::Exit(0), Behaviour::Exit(0)]).await;
    for rank in 0..2 {
        let end = bench.end_of(gang.key(rank)).await;
        let why = end.text().unwrap_or_default().to_owned();
        assert!(matches!(end, ExitStatus::LaunchFailed(_)), "{end}");
        assert!(why.contains("Slurm refuses") && why.contains("ccount"), "{why}");
    }
    // A program that is not there, and an agent that cannot be reached, are found by the batch job.
    bench.subject.change = |config| config.runner_command = vec!["/nonexistent/muster".into()];
    bench.restart().await;
    let gang = bench.start(&[Behaviour::Exit(0)]).await;
    let end = bench.end_of(gang.key(0)).await;
    assert!(matches!(&end, ExitStatus::LaunchFailed(why) if why.contains("runner_command")), "{end}");
    bench.subject.change = |config| {
        config.advertise = Some("127.0.0.1:9".into());
        config.runner_wait_ms = 1_000;
    };
    bench.restart().await;
    let gang = bench.start(&[Behaviour::Exit(0)]).await;
    let end = bench.end_of(gang.key(0)).await;
    assert!(matches!(&end, ExitStatus::LaunchFailed(why) if why.contains("slurm.advertise")), "{end}");
    bench.subject.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancellation_by_somebody_else_is_no_result_of_the_program() {
    let Some(mut subject) = OnSlurm::start() else { return };
    let mut bench = Bench::open(&mut subject).await;
    let gang = bench.start(&[Behaviour::Hold]).await;
    bench.runs(gang.key(0)).await;
    let job = bench.subject.lab.jobs();
    let id = job[0].split(' ').next().unwrap().to_owned();
    // Another batch job with the same script, as a second submission would be: its runner is turned away.
    let script = bench.subject.directory.path().join("script");
    let written =
        bench.subject.lab.slurm("scontrol", &["write", "batch_script", &id, script.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let second =
        bench.subject.lab.slurm("sbatch", &["--parsable", "-o", "/dev/null", script.to_str().unwrap()]);
    let second = String::from_utf8(second.stdout).unwrap().trim().to_owned();
    bench.subject.lab.wait_for("the second to be turned away", |lab| {
        let shown = lab.slurm("scontrol", &["-o", "show", "job", &second]).stdout;
        String::from_utf8_lossy(&shown).contains("ExitCode=70:0")
    });
    bench.subject.lab.slurm("scancel", &[&id]);
    let end = bench.end_of(gang.key(0)).await;
    assert!(matches!(&end, ExitStatus::BackendLost(why) if why.contains("told to end")), "{end}");
    assert_eq!(bench.subject.launches(gang.key(0)), 1);
    bench.subject.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_controller_that_forgets_costs_a_placement_and_never_runs_one_twice() {
    let Some(mut subject) = OnSlurm::start() else { return };
    let mut bench = Bench::open(&mut subject).await;
    // It comes back with what it had saved: what runs goes on.
    let gang = bench.start(&[Behaviour::Hold]).await;
    bench.runs(gang.key(0)).await;
    // Its state is saved within five seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    bench.subject.lab.kill_controller();
    bench.subject.lab.start_controller();
    bench.executor.stop(gang.key(0), GRACE.into()).await.unwrap();
    assert_eq!(bench.end_of(gang.key(0)).await, ExitStatus::Code(0));

    // It comes back with nothing: what waits is submitted again, what runs is given up.
    let running = bench.start(&[Behaviour::Hold]).await;
    bench.runs(running.key(0)).await;
    let waiting = start_waiting(&mut bench).await;
    bench.subject.lab.lose_state();
    let end = bench.end_of(running.key(0)).await;
    assert!(matches!(end, ExitStatus::BackendLost(_)), "{end}");
    assert_eq!(bench.end_of(waiting.key(0)).await, ExitStatus::Code(0));
    for gang in [&gang, &running, &waiting] {
        assert_eq!(bench.subject.launches(gang.key(0)), 1);
    }
    // Slurm sends SIGKILL to a runner that it does not know: what it leaves goes with the next on its node. It gives ids out a
    // second time, and may end a new batch job for an old one that had its id: that costs a placement as well.
    for _ in 0..RUNNERS_UNTIL_CLEAN {
        if bench.subject.runners_left() == 0 {
            break;
        }
        let next = bench.start(&[Behaviour::Exit(0)]).await;
        let end = bench.end_of(next.key(0)).await;
        assert!(matches!(end, ExitStatus::Code(0) | ExitStatus::BackendLost(_)), "{end}");
    }
    bench.subject.assert_clean();
}

/// A share that Slurm has acknowledged and cannot start: its CPUs are somebody else's.
async fn start_waiting(bench: &mut OnBench<'_>) -> Arc<Placement> {
    let foreign = bench.subject.lab.foreign(&["-c", "60"]);
    bench.subject.lab.wait_for("the other job to run", |lab| {
        lab.jobs().iter().any(|job| job.starts_with(&format!("{foreign} RUNNING")))
    });
    let mut placement = (*bench.placement(&[Behaviour::Exit(0)])).clone();
    placement.workers[0].cpu_milli = 32_000;
    let placement = Arc::new(placement);
    bench.executor.start(Arc::clone(&placement), bench.subject.epoch()).await;
    bench
        .subject
        .lab
        .wait_for("our job to wait", |lab| lab.jobs().iter().any(|job| job.contains(" PENDING muster-")));
    placement
}
