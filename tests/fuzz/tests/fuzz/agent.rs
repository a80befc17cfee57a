//! What an agent reads: orders of the leader, words of workers, frames of runners, what Slurm prints, and its own files.

use muster_agent::decoders;
use muster_agent::fencing::Fences;
use muster_types::{FencingToken, JobId, LogIndex};
use muster_wire::{agent, v1};
use prost::Message as _;

fn nothing(_: &mut Vec<u8>) {}

fn token() -> Option<v1::FencingToken> {
    Some(v1::FencingToken { generation: 1, log_index: 40 })
}

fn order(message: agent::session_response::Message) -> Vec<u8> {
    agent::SessionResponse { message: Some(message) }.encode_to_vec()
}

#[test]
fn no_order_of_a_leader_makes_an_agent_panic() {
    use agent::session_response::Message;
    let worker = agent::WorkerLaunch {
        command: vec!["true".into()],
        devices: vec![0, 1],
        cpu_milli: 100,
        memory_bytes: 1 << 20,
        ..Default::default()
    };
    let place = agent::RankPlace { node_name: "h".into(), address: "127.0.0.1".into(), devices: 2 };
    let start = agent::StartOrder {
        job_id: "job-7".into(),
        token: token(),
        job_name: "j".into(),
        tenant: "t".into(),
        attempt: 1,
        rank_map: vec![place],
        workers: vec![worker],
        rendezvous_port: 61_440,
        stop_grace_ms: 1_000,
        region: "r".into(),
        cluster: "c".into(),
        notice: Some(v1::NoticeRules { http_port: 80, http_path: "/stop".into() }),
        ..Default::default()
    };
    let peers = vec![agent::ProbePeer { address: "10.0.0.1".into(), port: 7_000 }; 2];
    let run = agent::ProbeRun {
        probe_id: 3,
        key: vec![7; 16],
        peers,
        pair_bytes: 1 << 20,
        pair_ms: 100,
        ring_bytes: 1 << 20,
        budget_ms: 1_000,
        ..Default::default()
    };
    let probe = agent::PreflightOrder { step: Some(agent::preflight_order::Step::Run(run)) };
    let stop =
        agent::StopOrder { job_id: "job-7".into(), token: token(), grace_ms: 5, reason: "preempted".into() };
    let seeds =
        [order(Message::Start(start)), order(Message::PreflightOrder(probe)), order(Message::Stop(stop))];
    for seed in &seeds {
        let message = agent::SessionResponse::decode(&seed[..]).unwrap().message.unwrap();
        assert!(decoders::order(message), "a real order is taken");
    }
    muster_fuzz::run("agent-order", &seeds, nothing, |input| {
        let Ok(response) = agent::SessionResponse::decode(input) else { return false };
        response.message.is_some_and(decoders::order)
    });
}

#[test]
fn no_line_of_a_worker_makes_an_agent_panic() {
    let who = r#""job_id":"job-1","fencing_token":"1.7","rank":2"#;
    let step = format!("{{{who},\"step\":{{\"number\":9,\"duration_ms\":5}}}}\n");
    let saved = format!("{{{who},\"checkpoint_committed\":{{\"step\":12}}}}\n");
    let seeds = [step.into_bytes(), saved.into_bytes()];
    muster_fuzz::run("agent-socket", &seeds, nothing, decoders::worker_line);
}

#[test]
fn no_frame_of_a_runner_makes_an_agent_panic() {
    let seeds = [decoders::slurm_frame_sample(), b"\x00{\"Stop\":{\"rank\":1,\"grace_ms\":5}}".to_vec()];
    muster_fuzz::run("agent-slurm-frame", &seeds, nothing, decoders::slurm_frame);
}

#[test]
fn nothing_that_slurm_prints_makes_an_agent_panic() {
    let node = "NodeName=n1 CPUAlloc=10 CPUTot=16 Gres=gpu:h100:4(S:0-1) GresUsed=gpu:h100:3(IDX:0-2) \
        RealMemory=1000 AllocMem=600 State=MIXED+DRAIN Partitions=p,q\n";
    let seeds = [node, "PartitionName=p State=UP Nodes=n[1-3]\n", "17\n", "17;cluster\n"]
        .map(|text| text.as_bytes().to_vec());
    muster_fuzz::run("agent-slurm-text", &seeds, nothing, |input| {
        decoders::slurm_text(&String::from_utf8_lossy(input))
    });
}

#[test]
fn no_object_of_kubernetes_makes_an_agent_panic() {
    let node = br#"{"metadata":{"name":"n1","labels":{"nvidia.com/gpu.product":"NVIDIA-H100-80GB-HBM3","topology.kubernetes.io/zone":"Z/1"}},
        "spec":{"taints":[{"key":"k","effect":"NoSchedule"}]},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],
        "conditions":[{"type":"Ready","status":"True"}],"allocatable":{"cpu":"95500m","memory":"1.5Gi","nvidia.com/gpu":"8"}}}"#;
    let pod = br#"{"metadata":{"name":"p","namespace":"w","uid":"u","labels":{"muster.dev/agent":"a"}},"spec":{"nodeName":"n1",
        "containers":[{"name":"workers","resources":{"requests":{"cpu":"1e3","memory":"12Mi"}}}]},"status":{"phase":"Failed","reason":"Evicted",
        "containerStatuses":[{"name":"workers","image":"","imageID":"","ready":false,"restartCount":0,
        "state":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]}}"#;
    muster_fuzz::run(
        "agent-kubernetes",
        &[node.to_vec(), pod.to_vec()],
        nothing,
        decoders::kubernetes_object,
    );
}

/// Makes lengths and checksums of fencing records hold again, as far as there are whole ones.
fn repair_fences(input: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(head) = input.get(at..at + 12) {
        let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let end = (at + 12).saturating_add(length).min(input.len());
        let length = ((end - at - 12) as u32).to_le_bytes();
        let body = crc32fast::hash(&input[at + 12..end]).to_le_bytes();
        input[at..at + 4].copy_from_slice(&length);
        input[at + 4..at + 8].copy_from_slice(&body);
        let sum = crc32fast::hash(&input[at..at + 8]).to_le_bytes();
        input[at + 8..at + 12].copy_from_slice(&sum);
        if end == at + 12 {
            // A record of nothing: what is behind it is read as another.
            input.drain(at..end);
            continue;
        }
        at = end;
    }
}

#[test]
fn no_bytes_of_the_fencing_log_make_an_agent_panic() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().join("real");
    let mut fences = Fences::open(&real, 16).unwrap();
    for job in 1..4 {
        let token = FencingToken { generation: 1, log_index: LogIndex(40 + job) };
        fences.raise(JobId(job), token, [0, 1].into()).unwrap();
    }
    drop(fences);
    let mut seed = std::fs::read(real.join("log")).unwrap();
    let end = seed.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    seed.truncate(end);
    let jobs = directory.path().join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    muster_fuzz::run("agent-fences", &[seed], repair_fences, |input| {
        std::fs::write(jobs.join("log"), input).unwrap();
        Fences::open(&jobs, 16).is_ok()
    });
}

#[test]
fn no_bytes_of_a_transcript_make_an_agent_panic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    decoders::write_transcript(&path, &[b"one line\n", &[7; 300], b"and another\n"]).unwrap();
    let seed = std::fs::read(&path).unwrap();
    muster_fuzz::run("agent-transcript", &[seed], nothing, |input| {
        std::fs::write(&path, input).unwrap();
        decoders::transcript(&path)
    });
}
