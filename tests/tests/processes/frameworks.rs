//! Programs of real frameworks, unmodified, as gangs over four agents.
//!
//! They run where `MUSTER_FRAMEWORKS` names a Python that has the frameworks (`.ci/frameworks` makes one), and say
//! what they skip otherwise: the frameworks are gigabytes, and no part of Muster.

use muster_client::{Client, WatchItem};
use muster_types::LaunchForm;
use muster_wire::closed::{number_or_zero, of_word};
use muster_wire::v1;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

use crate::support::{Agents, Cluster, heavy, is_finished, job, say};

/// Of one job: Ray alone takes half a minute to stand on a machine that does something else.
const LIMIT: Duration = Duration::from_secs(400);

/// The Python of the lane, when it is asked for and has the module.
async fn python(module: &str) -> Option<PathBuf> {
    let Some(python) = std::env::var_os("MUSTER_FRAMEWORKS").filter(|text| !text.is_empty()) else {
        say(&format!("skipped: {module}: MUSTER_FRAMEWORKS names no Python; .ci/frameworks makes one"));
        return None;
    };
    let python = PathBuf::from(python);
    let mut import = Command::new(&python);
    import.args(["-c", &format!("import {module}")]).stdin(Stdio::null()).kill_on_drop(true);
    match import.output().await {
        Ok(told) if told.status.success() => Some(python),
        Ok(told) => {
            let why = String::from_utf8_lossy(&told.stderr);
            say(&format!("skipped: {module}: {}", why.lines().last().unwrap_or("it cannot be imported")));
            None
        }
        Err(error) => {
            say(&format!("skipped: {module}: {} does not run: {error}", python.display()));
            None
        }
    }
}

fn program(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frameworks").join(name);
    path.to_str().expect("the repository's path is text").to_owned()
}

/// A gang of four, each of which fills its node.
fn gang(launch: &str, command: &[&str], environment: &[(&str, &str)]) -> v1::Job {
    let mut wanted = job(launch, command);
    let group = &mut wanted.spec_mut().groups[0];
    group.workers = 4;
    // More than half of a node's CPUs.
    group.resources = Some(v1::Resources { cpu_milli: 9_000, memory_bytes: 1 << 30, ..Default::default() });
    let settings = [
        // Where a machine has no accelerator, and where its test has loopback addresses only.
        ("JAX_PLATFORMS", "cpu"),
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    let all = settings.iter().chain(environment);
    group.environment = all.copied().map(v1::EnvVar::from).collect();
    wanted.spec_mut().launch = number_or_zero(of_word::<LaunchForm>(launch));
    wanted
}

/// Runs a gang to its end; its output, by rank.
async fn run(wanted: v1::Job) -> Vec<String> {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a", "b", "c", "d"]).await;
    let client = cluster.client();
    let workers = wanted.spec().groups[0].workers;
    let request = v1::SubmitJobRequest { job: Some(wanted), ..Default::default() };
    let id = client.submit_job(request).await.expect("a gang that fits is accepted").job_ids.remove(0);
    let ended = tokio::time::timeout(LIMIT, end_of(&client, &id)).await;
    let mut output = Vec::new();
    for rank in 0..workers {
        let request = v1::ReadLogsRequest { job_id: id.clone(), rank, ..Default::default() };
        output.push(output_of(&client, request).await);
    }
    let succeeded = matches!(&ended, Ok(job) if job.phase() == v1::JobPhase::Succeeded);
    assert!(succeeded, "{ended:#?}\n{}", output.join("\n----\n"));
    drop(agents);
    cluster.assert_digests_agree().await;
    output
}

async fn end_of(client: &Client, id: &str) -> v1::Job {
    let request = v1::WatchJobsRequest {
        filter: Some(v1::JobFilter { job_ids: vec![id.to_owned()], ..Default::default() }),
        ..Default::default()
    };
    let mut watch = client.watch_jobs(request);
    loop {
        let item = watch.next().await.unwrap_or_else(|error| panic!("watching {id}: {error:?}"));
        if let WatchItem::Changed { job, .. } = item
            && is_finished(&job)
        {
            return *job;
        }
    }
}

async fn output_of(client: &Client, request: v1::ReadLogsRequest) -> String {
    let Ok(mut stream) = client.read_logs(request).await else { return String::new() };
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = stream.next().await {
        bytes.extend_from_slice(&piece.data);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Every rank of four has the sum of 1 to 4, in the output of that rank's worker.
fn assert_sums(name: &str, output: &[String]) {
    for (rank, told) in output.iter().enumerate() {
        let line = format!("{name} rank {rank} of 4 sum 10");
        assert!(told.contains(&line), "rank {rank}: {told}");
    }
    say(&format!("{name}: 4 ranks over 4 agents, sum 10"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jax_finds_its_gang_by_itself() {
    let Some(python) = python("jax").await else { return };
    let python = python.to_str().expect("a path of text");
    assert_sums("jax", &run(gang("environment", &[python, &program("jax_sum.py")], &[])).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torchrun_keeps_the_ranks_of_the_placement() {
    let Some(python) = python("torch").await else { return };
    let python = python.to_str().expect("a path of text");
    let output = run(gang("torchrun", &[python, &program("torch_sum.py")], &[])).await;
    assert_sums("torch", &output);
    for (rank, told) in output.iter().enumerate() {
        assert!(told.contains(&format!("group {rank} local 0")), "rank {rank}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torchrun_finds_its_own_ranks_when_it_is_elastic() {
    let Some(python) = python("torch").await else { return };
    let python = python.to_str().expect("a path of text");
    let output = run(gang("torchrun_elastic", &[python, &program("torch_sum.py")], &[])).await.concat();
    for rank in 0..4 {
        assert!(output.contains(&format!("torch rank {rank} of 4 sum 10")), "rank {rank}: {output}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deepspeed_trains_over_the_gang() {
    let Some(python) = python("deepspeed").await else { return };
    // On processors it builds its collectives when they are first used, with the tools of the environment.
    let tools = python.parent().expect("a program is in a directory");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", tools.display());
    let python = python.to_str().expect("a path of text");
    let cpu = [("DS_ACCELERATOR", "cpu"), ("PATH", &path)];
    let mut wanted = gang("deepspeed", &[python, &program("deepspeed_train.py")], &cpu);
    // Its launcher is two processes in addition to the program, and each of the three brings all of torch.
    wanted.spec_mut().groups[0].resources_mut().memory_bytes = 3 << 30;
    let output = run(wanted).await;
    assert_sums("deepspeed", &output);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ray_is_a_cluster_of_the_gang() {
    let Some(python) = python("ray").await else { return };
    let python = python.to_str().expect("a path of text");
    let output = run(gang("ray", &[python, &program("ray_sum.py")], &[])).await;
    // Nine whole CPUs of each of four workers.
    assert!(output[0].contains("ray nodes 4 cpus 36 sum 30"), "{}", output[0]);
    say("ray: 4 nodes over 4 agents");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mpi_program_runs_in_one_worker_that_has_no_launch_form() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let built = directory.path().join("mpi_sum");
    let mut compile = Command::new("mpicc");
    compile.arg(program("mpi_sum.c")).arg("-o").arg(&built).stdin(Stdio::null()).kill_on_drop(true);
    match compile.output().await {
        Ok(told) if told.status.success() => {}
        Ok(told) => panic!("mpicc: {}", String::from_utf8_lossy(&told.stderr)),
        Err(error) => return say(&format!("skipped: Open MPI: mpicc does not run: {error}")),
    }
    let built = built.to_str().expect("a path of text");
    // Not started by mpirun, as every `import mpi4py` is; and by one that finds the variables of Slurm.
    let script = format!("{built} && mpirun --oversubscribe -np 2 {built}");
    let mut wanted = gang("environment", &["sh", "-c", &script], &[]);
    wanted.spec_mut().groups[0].workers = 1;
    let output = run(wanted).await;
    for line in ["mpi rank 0 of 1 sum 1", "mpi rank 0 of 2 sum 3", "mpi rank 1 of 2 sum 3"] {
        assert!(output[0].contains(line), "{line}: {}", output[0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mpirun_starts_its_daemons_through_the_gang() {
    if std::env::var_os("MUSTER_FRAMEWORKS").is_none_or(|text| text.is_empty()) {
        return say("skipped: Open MPI: MUSTER_FRAMEWORKS is not set");
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let built = directory.path().join("mpi_sum");
    let mut compile = Command::new("mpicc");
    compile.arg(program("mpi_sum.c")).arg("-o").arg(&built).stdin(Stdio::null()).kill_on_drop(true);
    match compile.output().await {
        Ok(told) if told.status.success() => {}
        Ok(told) => panic!("mpicc: {}", String::from_utf8_lossy(&told.stderr)),
        Err(error) => return say(&format!("skipped: Open MPI: mpicc does not run: {error}")),
    }
    let output = run(gang("mpi", &[built.to_str().expect("a path of text")], &[])).await;
    // What the processes print comes out where mpirun runs.
    for rank in 0..4 {
        assert!(output[0].contains(&format!("mpi rank {rank} of 4 sum 10")), "{}", output[0]);
    }
    say("mpi: 4 ranks over 4 agents, sum 10");
}
