//! Golden files: one for each form and kind of host. `UPDATE_EXPECT=1` rewrites them.

use super::*;
use crate::rules::{GroupSize, Placement, Slices};
use muster_types::job::ArrayMember;
use muster_types::tpu::SliceShape;
use muster_types::{DeviceSet, FencingToken, IndexRange, JobId, LogIndex};
use std::time::Duration;

fn place(node: &str, address: &str, devices: u16) -> RankPlace {
    RankPlace { node_name: node.into(), address: address.into(), devices }
}

fn worker(rank: u32, devices: u64, kind: &str) -> Launch {
    Launch {
        rank,
        group: "train".into(),
        command: vec!["python3".into(), "train.py".into()],
        environment: BTreeMap::new(),
        devices: DeviceSet(devices),
        accelerator_type: kind.into(),
        cpu_milli: 8_000,
        memory_bytes: 64 << 30,
        device_milli: crate::rules::DEVICE_MILLI,
        container: None,
    }
}

fn placement(rank_map: Vec<RankPlace>, workers: Vec<Launch>) -> Placement {
    Placement {
        job: JobId(5 * 1024),
        token: FencingToken { generation: 1, log_index: LogIndex(4_101) },
        job_name: "llama".into(),
        tenant: "research".into(),
        attempt: 3,
        rank_map,
        workers,
        rendezvous_port: 61_445,
        stop_grace: Duration::from_secs(30),
        checkpoint_directory: "/ckpt/job-500".into(),
        working_directory: String::new(),
        workdir: None,
        artifacts: None,
        artifacts_bytes_max: None,
        ulimits: muster_types::Ulimits::default(),
        host: muster_types::HostRules::default(),
        terminal: false,
        scratch_bytes: 0,
        trace_parent: None,
        array: None,
        array_indices: None,
        region: "eu-west".into(),
        cluster: "eu-west-a".into(),
        preflight: false,
        form: Form::Environment,
        world_size_min: 0,
        groups: Vec::new(),
        slices: Vec::new(),
        notice: None,
        checkpoint: crate::rules::Checkpoint::default(),
        gang_secret: "5ec2e7".into(),
    }
}

/// The contract of one rank as text: its command where the form changes it, and its environment.
fn text(placement: &Placement, rank: u32, node: &str, node_accelerator: &str) -> String {
    let base = BTreeMap::from([
        ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ("HOME".to_owned(), "/root".to_owned()),
    ]);
    let launcher = ["/usr/bin/muster", "shim", "launch"].map(str::to_owned);
    let here = NodeContext {
        node,
        node_accelerator,
        base: &base,
        rank_map_path: Path::new("/state/task/rank_map.json"),
        hostfile_path: Path::new("/state/task/hostfile"),
        rank_hostfile_path: Path::new("/state/task/hostfile.ranks"),
        notice_path: Path::new("/state/task/notice.json"),
        agent_socket: Some(Path::new("/state/agent.sock")),
        hides_devices: false,
        launcher: &launcher,
    };
    let worker = placement.workers.iter().find(|w| w.rank == rank).expect("the rank is here");
    let mut text = String::new();
    for word in command(placement, worker, &here) {
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("$ {word}\n"));
    }
    for (key, value) in environment(placement, worker, &here) {
        let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{key}={value}\n"));
    }
    text
}

fn check(file: &str, placement: &Placement, rank: u32, node: &str, node_accelerator: &str) {
    golden(file, &text(placement, rank, node, node_accelerator));
}

fn golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{file} differs; UPDATE_EXPECT=1 rewrites it");
}

#[test]
fn eight_gpus_two_hosts_one_device_each() {
    let mut map = vec![place("gpu-a", "10.0.0.1", 1); 4];
    map.extend(vec![place("gpu-b", "10.0.0.2", 1); 4]);
    // Local devices are not in rank order: the visible list is.
    let devices = [1 << 5, 1 << 4, 1 << 7, 1 << 6];
    let workers = (4..8).zip(devices).map(|(rank, set)| worker(rank, set, "h100")).collect();
    let placement = placement(map, workers);
    check("environment_one_device_each.txt", &placement, 6, "gpu-b", "h100");
    golden("rank_map.json", &rank_map_json(&placement));
    golden("hostfile", &by_address(&placement));
    golden("hostfile.ranks", &by_rank(&placement));
}

#[test]
fn a_share_of_a_device_is_seen_as_that_device() {
    let map = vec![place("gpu-a", "10.0.0.1", 1); 2];
    let mut workers = vec![worker(0, 1 << 5, "h100"), worker(1, 1 << 5, "h100")];
    for worker in &mut workers {
        worker.device_milli = 255;
    }
    let placement = placement(map, workers);
    check("environment_share_of_a_device.txt", &placement, 1, "gpu-a", "h100");
}

#[test]
fn one_process_per_host_with_all_its_devices() {
    let map = vec![place("gpu-a", "fd00::1", 8), place("gpu-b", "fd00::2", 8)];
    let mut placement = placement(map, vec![worker(0, 0xff, "mi300x")]);
    placement.notice = Some(crate::rules::HttpNotice { port: 8_700, path: "/preempt".into() });
    placement.checkpoint = crate::rules::Checkpoint {
        place: "run-checkpoints".into(),
        interval_ms: 600_000,
        saved_at_ms: 1_790_000_000_000,
        saved_attempt: 2,
    };
    check("environment_whole_host_amd_ipv6.txt", &placement, 0, "gpu-a", "mi300x");
}

#[test]
fn tpu_chips_are_always_the_workers_own() {
    let map = vec![place("tpu-0", "10.1.0.1", 1); 2];
    let placement = placement(map, vec![worker(0, 1, "v5e"), worker(1, 2, "v5e")]);
    check("environment_tpu_one_chip_each.txt", &placement, 1, "tpu-0", "v5e");
}

#[test]
fn two_slices_over_the_data_centre_network() {
    let map = (0..8).map(|n| place(&format!("tpu-{n}"), &format!("10.1.0.{n}"), 4)).collect();
    let mut placement = placement(map, vec![worker(6, 0xf, "v5p")]);
    let shape = SliceShape::parse("2x2x4").unwrap();
    placement.slices = vec![Slices { first_rank: 0, hosts: 4, count: 2, shape }];
    check("environment_multislice.txt", &placement, 6, "tpu-6", "v5p");
}

#[test]
fn an_array_job_without_devices_on_a_gpu_host_with_variables_of_the_user() {
    let mut launch = worker(0, 0, "");
    launch.environment = BTreeMap::from([
        ("MUSTER_RANK".to_owned(), "99".to_owned()),
        ("CUDA_VISIBLE_DEVICES".to_owned(), "0".to_owned()),
        ("MASTER_PORT".to_owned(), "1234".to_owned()),
        ("NCCL_DEBUG".to_owned(), "INFO".to_owned()),
        ("PATH".to_owned(), "/opt/bin".to_owned()),
    ]);
    let mut placement = placement(vec![place("gpu-a", "10.0.0.1", 0)], vec![launch]);
    placement.array = Some(ArrayMember { index: 8, ordinal: 4, size: 100 });
    placement.array_indices = Some(IndexRange { first: 0, last: 198, step: 2 });
    placement.job = JobId(5 * 1024 + 4);
    placement.checkpoint_directory.clear();
    check("environment_array_user_variables.txt", &placement, 0, "gpu-a", "a100");
}

/// Two hosts of four devices, rank 1 here.
fn two_hosts(form: Form, command: &[&str]) -> Placement {
    let map = vec![place("gpu-a", "10.0.0.1", 4), place("gpu-b", "10.0.0.2", 4)];
    let mut launch = worker(1, 0xf0, "h100");
    launch.command = command.iter().map(|word| (*word).to_owned()).collect();
    let mut placement = placement(map, vec![launch]);
    placement.form = form;
    placement
}

#[test]
fn the_forms_that_wrap_the_command() {
    let program = ["./train", "--steps", "10"];
    check("torchrun.txt", &two_hosts(Form::Torchrun, &program), 1, "gpu-b", "h100");
    let mut elastic = two_hosts(Form::TorchrunElastic, &program);
    elastic.world_size_min = 1;
    check("torchrun_elastic.txt", &elastic, 1, "gpu-b", "h100");
    check("deepspeed.txt", &two_hosts(Form::DeepSpeed, &program), 1, "gpu-b", "h100");
    check("mpi.txt", &two_hosts(Form::Mpi, &program), 1, "gpu-b", "h100");
    check("ray.txt", &two_hosts(Form::Ray, &program), 1, "gpu-b", "h100");
}

/// The words of a wrapped command, without the options.
fn words(form: Form, command: &[&str]) -> Vec<String> {
    let text = text(&two_hosts(form, command), 1, "gpu-b", "h100");
    let words = text.lines().filter_map(|line| line.strip_prefix("$ "));
    words.filter(|word| !word.contains('=')).map(str::to_owned).collect()
}

#[test]
fn the_launcher_comes_from_where_the_command_does() {
    let of_environment = ["/venv/bin/python3.12", "-u", "train.py"];
    assert_eq!(
        words(Form::Torchrun, &of_environment),
        [&["/venv/bin/python3.12", "-m", "torch.distributed.run", "--no-python"][..], &of_environment[..]]
            .concat()
    );
    assert_eq!(
        words(Form::DeepSpeed, &of_environment)[..3],
        ["/venv/bin/python3.12", "-m", "deepspeed.launcher.runner"]
    );
    // A launcher that the user wrote keeps the user's options, behind ours.
    assert_eq!(
        words(Form::Torchrun, &["/opt/bin/torchrun", "--tee", "3", "train.py"]),
        ["/opt/bin/torchrun", "--tee", "3", "train.py"]
    );
}

#[test]
fn workers_of_several_groups_know_how_many_each_has() {
    let mut placement = two_hosts(Form::Environment, &["./train"]);
    let size = |(name, workers): (&str, u32)| GroupSize { name: name.into(), workers };
    placement.groups = [("trainers", 1), ("readers", 1)].map(size).into();
    let told = text(&placement, 1, "gpu-b", "h100");
    assert!(told.contains("MUSTER_GROUP_SIZES=trainers=1,readers=1\n"), "{told}");
    placement.groups.truncate(1);
    assert!(!text(&placement, 1, "gpu-b", "h100").contains("MUSTER_GROUP_SIZES"));
}

#[test]
fn a_login_shell_executes_the_words_as_they_are() {
    let program = ["./train", "a b", "$HOME"];
    let mut placement = two_hosts(Form::Environment, &program);
    placement.host.shell = muster_types::CommandShell::Login;
    let told = text(&placement, 1, "gpu-b", "h100");
    let words: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(words, ["/bin/bash", "-l", "-c", "exec \"$@\"", "muster-login", "./train", "a b", "$HOME"]);
    // What brings a framework together is in it as well.
    placement.form = Form::Torchrun;
    assert!(text(&placement, 1, "gpu-b", "h100").contains("$ muster-login\n$ torchrun\n"));
}

#[test]
fn a_worker_without_devices_is_one_process() {
    let mut cpu = two_hosts(Form::Torchrun, &["./train"]);
    cpu.workers[0].devices = DeviceSet::EMPTY;
    cpu.rank_map.iter_mut().for_each(|place| place.devices = 0);
    let told = text(&cpu, 1, "gpu-b", "");
    assert!(told.contains("$ --nproc-per-node=1\n"), "{told}");
    assert_eq!(by_rank(&cpu), "rank-0 slots=1\nrank-1 slots=1\n");
}

#[test]
fn a_script_of_sbatch_finds_the_directory_that_it_starts_in() {
    let mut placement = two_hosts(Form::Environment, &["./train"]);
    let told = |placement: &Placement| {
        submit_directory(placement, &placement.workers[0], Path::new("/tasks/7/work"))
    };
    assert_eq!(told(&placement), Some(("SLURM_SUBMIT_DIR".to_owned(), "/tasks/7/work".to_owned())));
    placement.workers[0].environment.insert("SLURM_SUBMIT_DIR".to_owned(), "/shared".to_owned());
    assert_eq!(told(&placement), None, "the job's own");
    assert_eq!(told(&two_hosts(Form::Mpi, &["./train"])), None);
}

#[test]
fn the_slurm_job_id_gives_jax_the_rendezvous_port() {
    let placement = placement(vec![place("a", "10.0.0.1", 1)], vec![worker(0, 1, "h100")]);
    let port = placement.token.log_index.0 % 4_096 + 61_440;
    assert_eq!(port, u64::from(placement.rendezvous_port));
}

#[test]
fn uneven_nodes_are_counted_as_slurm_counts_them() {
    let map = ["a", "a", "b", "b", "c"].map(|n| place(n, n, 0)).to_vec();
    let layout = Layout::of(&map);
    assert_eq!(forms::tasks_per_node(&layout), "2(x2),1");
    assert_eq!(layout.local("b", 3), Local { rank: 1, world_size: 2, node_rank: 1 });
}

#[test]
fn families_by_name() {
    for name in ["v4", "v5p", "v5e", "v6e", "7x", "tpu7x", "v5litepod"] {
        assert_eq!(family(name), Family::Tpu, "{name}");
    }
    for name in ["a100", "h100", "h200", "b200", "gb200", "l40s", "t4", "v100", "rtx-6000"] {
        assert_eq!(family(name), Family::Nvidia, "{name}");
    }
    assert_eq!(family("mi300x"), Family::Amd);
    assert_eq!(family("trainium2"), Family::Other);
    assert_eq!(family(""), Family::Other);
}

/// Of the layouts that a job planned for its sizes, a worker gets the one for the size that it was placed in, and none of
/// the others.
#[test]
fn a_worker_gets_the_layout_of_the_size_that_was_placed() {
    let planned = |tensor: u32| {
        serde_json::json!({
            "PARALLEL_TENSOR": tensor.to_string(), "NCCL_CROSS_NIC": "0", "PATH": "/elsewhere", "MUSTER_RANK": "7",
            "PARALLEL_LAYOUT_9": "{}", "PARALLEL_x": "1", "PARALLEL_ZERO": "a\u{0}b",
        })
        .to_string()
    };
    let of = |workers: usize, layouts: &[(&str, String)]| {
        let mut launch = worker(0, 1, "h100");
        launch.environment.insert("PARALLEL_SIZES".into(), "1,2".into());
        launch.environment.extend(layouts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let map = vec![place("gpu-a", "10.0.0.1", 1); workers];
        let text = text(&placement(map, vec![launch]), 0, "gpu-a", "h100");
        let kept = |line: &&str| line.starts_with("PARALLEL_") || line.starts_with("NCCL_CROSS_NIC");
        text.lines().filter(kept).map(str::to_owned).collect::<Vec<_>>()
    };
    let layouts = [("PARALLEL_LAYOUT_1", planned(1)), ("PARALLEL_LAYOUT_2", planned(4))];
    let given = |tensor: &str| ["NCCL_CROSS_NIC=0", "PARALLEL_SIZES=1,2", tensor].map(str::to_owned).to_vec();
    assert_eq!(of(1, &layouts), given("PARALLEL_TENSOR=1"));
    assert_eq!(of(2, &layouts), given("PARALLEL_TENSOR=4"));
    assert_eq!(of(3, &layouts), ["PARALLEL_SIZES=1,2"]);
    // What the job sets by itself counts for more.
    let own = [("PARALLEL_LAYOUT_1", planned(1)), ("NCCL_CROSS_NIC", "1".to_owned())];
    assert_eq!(of(1, &own), ["NCCL_CROSS_NIC=1", "PARALLEL_SIZES=1,2", "PARALLEL_TENSOR=1"]);
    for broken in ["", "[]", "{\"PARALLEL_TENSOR\": 1}", "{"] {
        assert_eq!(of(1, &[("PARALLEL_LAYOUT_1", broken.to_owned())]), ["PARALLEL_SIZES=1,2"], "{broken}");
    }
}

#[test]
fn a_worker_goes_on_from_the_trace_of_its_job_unless_it_names_a_span_itself() {
    let mut placement = placement(vec![place("a", "10.0.0.1", 1)], vec![worker(0, 1, "h100")]);
    let said = |placement: &Placement| {
        let text = text(placement, 0, "a", "h100");
        text.lines().find_map(|line| line.strip_prefix("TRACEPARENT=").map(str::to_owned))
    };
    assert_eq!(said(&placement), None);
    let parent = muster_types::TraceParent::new([7; 16], [8; 8], 1).expect("it is good");
    placement.trace_parent = Some(parent);
    let first = said(&placement).expect("it is in the environment");
    let span = muster_types::TraceParent::parse(&first).expect("it is a parent");
    assert_eq!((span.trace_id(), span.is_sampled()), ([7; 16], true));
    assert_ne!(span, parent, "its launch is a span");
    placement.attempt += 1;
    assert_ne!(said(&placement), Some(first), "another attempt is another span");
    let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    placement.workers[0].environment.insert("TRACEPARENT".to_owned(), own.to_owned());
    assert_eq!(said(&placement).as_deref(), Some(own));
}
