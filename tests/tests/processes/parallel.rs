//! A job whose split is left to the parallelism planner is placed in one of its sizes, and its workers get the layout.

use muster_client::Read;
use muster_wire::time::duration;
use muster_wire::v1::{self, JobPhase};
use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{
    Agents, Cluster, accelerators, eventually, heavy, is_finished, job, output_of_rank, submit, wait_for_job,
};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256}"#;

/// Devices of a host, and so of a worker.
const DEVICES: u64 = 4;

/// Every worker prints what it was given, and for each device its rank and its positions in the order that Megatron calls
/// `tp-cp-ep-dp-pp`.
const PROGRAM: &str = r#"echo "sizes $PARALLEL_TENSOR $PARALLEL_PIPELINE $PARALLEL_DATA $PARALLEL_CONTEXT $PARALLEL_EXPERT"
    echo "micro $PARALLEL_MICRO_BATCH order $PARALLEL_ORDER megatron $PARALLEL_MEGATRON"
    echo "titan $PARALLEL_TORCHTITAN"; echo "maxtext $PARALLEL_MAXTEXT"; echo "deepspeed $PARALLEL_DEEPSPEED"
    local=0
    for device in $(echo "$MUSTER_DEVICES" | tr , ' '); do
        rank=$((MUSTER_RANK * 4 + local)); local=$((local + 1))
        echo "rank $rank tensor $((rank % PARALLEL_TENSOR)) worker $MUSTER_RANK of $MUSTER_WORLD_SIZE node $MUSTER_NODE"
    done"#;

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("a file can be written");
    path.to_str().expect("the test's path is text").to_owned()
}

fn manifest(name: &str, parallel: &str) -> String {
    let command = serde_json::json!(["/bin/sh", "-c", PROGRAM]);
    format!(
        "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  workers: 4\n  accelerators: h100:4\n  \
         cpu: 100m\n  memory: 1Mi\n  parallel: {parallel}\n  command: {command}\n"
    )
}

/// A gang that holds hosts until it is cancelled, and for how long it is expected to hold them.
async fn occupy(client: &muster_client::Client, hosts: u32, expected_run_ms: u64) -> String {
    let mut wanted = job("holds", &["/bin/sleep", "600"]);
    wanted.spec_mut().groups[0].workers = hosts;
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", DEVICES as u32));
    wanted.spec_mut().expected_run = Some(duration(expected_run_ms));
    wanted.spec_mut().stop_grace = Some(duration(100));
    let id = submit(client, wanted).await;
    wait_for_job(client, &id, |job| job.phase() == JobPhase::Running).await;
    id
}

/// Devices of the size that was chosen, in the table of a plan.
fn chosen(table: &str) -> Option<u64> {
    let line = table.lines().find(|line| line.starts_with("chosen "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

/// The sizes that all workers of a job printed, and what they printed.
async fn ended(client: &muster_client::Client, id: &str) -> ([u64; 5], String) {
    let job = wait_for_job(client, id, is_finished).await;
    let mut told = String::new();
    let workers = job.status().placement.as_ref().map_or(0, |placement| placement.workers.len());
    for rank in 0..workers as u32 {
        told.push_str(&output_of_rank(client, id, rank).await);
    }
    assert_eq!(job.phase(), JobPhase::Succeeded, "{told}");
    let sizes: BTreeSet<&str> = told.lines().filter_map(|line| line.strip_prefix("sizes ")).collect();
    assert_eq!(sizes.len(), 1, "workers disagree about the layout: {told}");
    let numbers: Vec<u64> =
        sizes.iter().flat_map(|line| line.split(' ')).map(|word| word.parse().expect(word)).collect();
    (numbers.try_into().expect("five sizes"), told)
}

/// Each rank is there once, and tensor parallel groups stay inside a worker, which is inside a node.
fn assert_ranks(told: &str, [tensor, pipeline, data, context, _]: [u64; 5], workers: u64) {
    assert_eq!(tensor * pipeline * data * context, workers * DEVICES, "{told}");
    assert!(DEVICES.is_multiple_of(tensor), "{told}");
    let mut ranks: Vec<u64> = told
        .lines()
        .filter_map(|line| line.strip_prefix("rank "))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let rank: u64 = words[0].parse().expect("a rank");
            assert_eq!(words[2].parse(), Ok(rank % tensor), "{line}");
            assert_eq!((words[4].parse(), words[6].parse()), (Ok(rank / DEVICES), Ok(workers)), "{line}");
            rank
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..workers * DEVICES).collect::<Vec<u64>>(), "{told}");
    let nodes: BTreeSet<&str> = told.lines().filter_map(|line| line.split(" node ").nth(1)).collect();
    assert_eq!(nodes.len() as u64, workers, "a worker fills a node: {told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_gets_the_size_that_ends_first_and_its_workers_the_layout() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a", "b", "c", "d"]).await;
    let client = cluster.client();
    let directory = cluster.scratch.path().join("files");
    std::fs::create_dir(&directory).unwrap();
    write(&directory, "config.json", CONFIG);

    // All is free: the largest is the fastest and starts now. The model is found next to the job file.
    let file = write(&directory, "auto.yaml", &manifest("auto", "auto"));
    let shown = cluster.operate(&["plan", &file]).await;
    assert!(shown.code == Some(0) && chosen(&shown.err) == Some(16), "{shown:#?}");
    let ran = cluster.operate(&["submit", &file]).await;
    assert!(ran.code == Some(0) && chosen(&ran.err) == Some(16), "{ran:#?}");
    let (sizes, told) = ended(&client, ran.out.trim()).await;
    assert_ranks(&told, sizes, 4);
    for part in [
        "order tp-cp-ep-",
        &format!("--tensor-model-parallel-size {}", sizes[0]),
        "titan --parallelism.data_parallel_replicate_degree=",
        "maxtext ici_",
        "deepspeed {\"",
        "--global-batch-size 1024",
    ] {
        assert!(told.contains(part), "{part:?}: {told}");
    }

    // Two hosts are held for long: a small run is over sooner on the other two.
    let holder = occupy(&client, 2, 3_600_000).await;
    let small = "{model: config.json, batch: 64, sequence: 2048, steps: 2, recompute: full}";
    let file = write(&directory, "small.yaml", &manifest("small", small));
    let ran = cluster.operate(&["submit", &file]).await;
    assert!(ran.code == Some(0) && chosen(&ran.err) == Some(8), "{ran:#?}");
    let (sizes, told) = ended(&client, ran.out.trim()).await;
    assert_ranks(&told, sizes, 2);
    assert!(
        told.contains("--recompute-granularity full") && told.contains("--global-batch-size 64"),
        "{told}"
    );

    // A run of a million steps is over sooner if it waits for them.
    let long = "{model: config.json, batch: 64, sequence: 2048, steps: 1000000}";
    let file = write(&directory, "long.yaml", &manifest("long", long));
    let ran = cluster.operate(&["submit", &file]).await;
    assert!(ran.code == Some(0) && chosen(&ran.err) == Some(16), "{ran:#?}");
    let id = ran.out.trim().to_owned();
    let pending = client.get_job(v1::GetJobRequest { job_id: id.clone(), read: None }).await.unwrap();
    let pending = pending.job.unwrap();
    assert_eq!((pending.phase(), pending.status().worker_count), (JobPhase::Pending, 4), "{pending:#?}");
    client.cancel_job(v1::CancelJobRequest { job_id: holder, ..Default::default() }).await.unwrap();
    let (sizes, told) = ended(&client, &id).await;
    assert_ranks(&told, sizes, 4);

    // Not fewer than the file permits, though they were free.
    let holder = occupy(&client, 2, 3_600_000).await;
    let text = manifest("most", small).replace("  workers: 4\n", "  workers: 4\n  minWorkers: 3\n");
    let file = write(&directory, "most.yaml", &text);
    let ran = cluster.operate(&["plan", &file]).await;
    let is_offered = ran.err.lines().any(|line| line.contains(" h100  8 "));
    assert!(ran.code == Some(0) && !is_offered && chosen(&ran.err).is_some(), "{ran:#?}");
    client.cancel_job(v1::CancelJobRequest { job_id: holder, ..Default::default() }).await.unwrap();
    refusals(&cluster, &directory).await;
    eventually("a host is still held", || async {
        let nodes = client.list_jobs(v1::ListJobsRequest::default()).await.unwrap().jobs;
        nodes.iter().all(is_finished).then_some(())
    })
    .await;
    drop(agents);
    cluster.assert_digests_agree().await;
}

/// A job that saves its work lists its sizes: it is placed in the largest of them that is free and never in between, and its
/// workers get the layout of that size. What it measured calibrates a plan, and steps of jobs that contradict one another
/// are refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_takes_the_largest_listed_size_that_is_free_and_plans_learn_from_jobs() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let agents = Agents::start(&cluster, &["a", "b", "c", "d"]).await;
    let client = cluster.client();
    let directory = cluster.scratch.path().join("files");
    let saved = cluster.scratch.path().join("saved");
    std::fs::create_dir(&directory).unwrap();
    std::fs::create_dir(&saved).unwrap();
    let config = write(&directory, "config.json", CONFIG);
    let text = |name: &str, seconds: u32| {
        let text = manifest(name, "{model: config.json, steps: 20}");
        let text = text.replace(
            "  cpu: 100m\n",
            &format!("  cpu: 100m\n  checkpoint: {{directory: {}}}\n", saved.display()),
        );
        text.replace(
            "titan $PARALLEL_TORCHTITAN",
            &format!("titan $PARALLEL_TORCHTITAN\\\"; echo \\\"step_time_s={seconds}"),
        )
    };

    // One host of four is held: three would fit, and two are a listed size.
    let holder = occupy(&client, 1, 3_600_000).await;
    let file = write(&directory, "saves.yaml", &text("saves", 40));
    let ran = cluster.operate(&["submit", &file]).await;
    assert!(ran.code == Some(0) && ran.err.lines().any(|line| line.starts_with("allowed ")), "{ran:#?}");
    let id = ran.out.trim().to_owned();
    let (sizes, told) = ended(&client, &id).await;
    assert_ranks(&told, sizes, 2);
    let job = client.get_job(v1::GetJobRequest { job_id: id, read: None }).await.unwrap().job.unwrap();
    let group = job.spec.unwrap().groups.remove(0);
    assert_eq!((group.min_workers, group.workers), (1, 4));
    assert_eq!(group.variable("PARALLEL_SIZES"), Some("1,2,4"));
    assert!(!told.contains("PARALLEL_LAYOUT"), "{told}");

    let plan = ["parallel", "plan", &config, "--accelerators", "h100", "--max", "16"];
    let learned = cluster.operate(&[&plan[..], &["--calibrate-from", "saves"]].concat()).await;
    assert!(learned.code == Some(0) && learned.out.contains("measured"), "{learned:#?}");
    let file = write(&directory, "slow.yaml", &text("slow", 90));
    let ran = cluster.operate(&["submit", &file]).await;
    assert!(ran.code == Some(0), "{ran:#?}");
    let (sizes, told) = ended(&client, ran.out.trim()).await;
    assert_ranks(&told, sizes, 2);
    let both = [&plan[..], &["--calibrate-from", "saves", "--calibrate-from", "slow"]].concat();
    cluster
        .operate(&both)
        .await
        .assert_refused(2, &["saves (job-", "slow (job-", "are the same step", "next: "]);
    let other =
        ["parallel", "plan", &config, "--accelerators", "a100", "--max", "16", "--calibrate-from", "saves"];
    cluster.operate(&other).await.assert_refused(2, &["it does not ask for a100 alone"]);
    let unplanned = [&plan[..], &["--calibrate-from", &holder]].concat();
    cluster
        .operate(&unplanned)
        .await
        .assert_refused(2, &["it was submitted without a layout: PARALLEL_TENSOR"]);
    client.cancel_job(v1::CancelJobRequest { job_id: holder, ..Default::default() }).await.unwrap();
    eventually("a host is still held", || async {
        let jobs = client.list_jobs(v1::ListJobsRequest::default()).await.unwrap().jobs;
        jobs.iter().all(is_finished).then_some(())
    })
    .await;
    drop(agents);
    cluster.assert_digests_agree().await;
}

/// Each kind of bad input is refused by its field with what to do, and nothing is submitted.
async fn refusals(cluster: &Cluster, directory: &Path) {
    // Others submit here: what they were told is to be seen.
    let client = cluster.client().reading(Read::linearizable());
    let before = crate::support::all_jobs(&client).await.len();
    write(directory, "mystery.json", r#"{"model_type": "mystery"}"#);
    write(directory, "cut.json", "{");
    let auto = |parallel: &str| manifest("bad", parallel);
    let huge = "{model: {model_type: llama, hidden_size: 16384, num_hidden_layers: 126, num_attention_heads: 128, \
                num_key_value_heads: 8, intermediate_size: 53248, vocab_size: 128256}}";
    let cases = [
        (auto("always"), 2, "spec.parallel: must be auto, or a mapping"),
        (auto("{batch: 0}"), 2, "spec.parallel.batch: must be above zero"),
        (auto("{sequense: 8}"), 2, "did you mean sequence?"),
        (auto("{precision: int3}"), 2, "spec.parallel.precision: must be one of bf16"),
        (auto("{model: nowhere.json}"), 2, "nowhere.json: No such file"),
        (auto("{model: mystery.json}"), 2, "spec.parallel.model: UNKNOWN_ARCHITECTURE: "),
        (auto("{model: cut.json}"), 2, "spec.parallel.model: NOT_A_CONFIG: "),
        (auto("{model: {model_type: llama}}"), 2, "spec.parallel.model: MISSING_FIELD: hidden_size"),
        (auto("{tensor: 3}"), 2, "spec.parallel: ILLEGAL_LAYOUT: tensor parallel size 3"),
        (auto("{tensor: 8}"), 2, "does not divide the 4 devices of a worker"),
        (auto("{pipeline: 31}"), 2, "ILLEGAL_LAYOUT: 32 layers do not divide over 31 stages"),
        (auto(huge), 5, "spec.parallel: FITS_NOWHERE: no layout fits on up to 16 h100"),
        (auto("auto").replace("h100:4", "any:4"), 2, "spec.accelerators: must name the types"),
        (auto("auto").replace("h100:4", "h100:0.5"), 2, "spec.accelerators: must be whole devices"),
        (auto("auto").replace("h100:4", "h900:4"), 2, "spec.accelerators: UNKNOWN_ACCELERATOR: "),
        (auto("auto").replace("  accelerators: h100:4\n", ""), 2, "spec.accelerators: must name the types"),
        (
            auto("auto").replace("  workers: 4\n", "  workers: 4\n  minWorkers: 5\n"),
            2,
            "spec.minWorkers: must be at most workers, which is 4, got 5",
        ),
        (
            auto("auto").replace("  cpu: 100m\n", "  cpu: 100m\n  environment: {PARALLEL_TENSOR: \"2\"}\n"),
            2,
            "spec.environment.PARALLEL_TENSOR: is set by the planner",
        ),
    ];
    for (text, code, expected) in cases {
        let file = write(directory, "bad.yaml", &text);
        cluster.operate(&["submit", &file]).await.assert_refused(code, &[expected, "next: "]);
    }
    let grouped = "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: bad}\nspec:\n  parallel: auto\n  groups:\n  \
                   - {name: one, command: [x], accelerators: h100:4}\n";
    let file = write(directory, "bad.yaml", grouped);
    cluster.operate(&["submit", &file]).await.assert_refused(2, &["spec.parallel: plans a job of one group"]);
    assert_eq!(crate::support::all_jobs(&client).await.len(), before, "nothing is submitted");
}
