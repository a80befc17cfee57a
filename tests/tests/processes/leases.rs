//! Leases that hold: what is cut off, asleep, rebooted or behind stops, or never starts, before the survivors
//! run the same gang again. The judge is outside of the scheduler: the workers write down when they ran.

use muster_client::Client;
use muster_example::intervals::{self, Interval};
use muster_wire::agent;
use muster_wire::agent::node_service_client::NodeServiceClient;
use muster_wire::agent::session_request::Message as Request;
use muster_wire::agent::session_response::Message as Response;
use muster_wire::v1::{self, JobPhase, NodeStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::support::{
    Agents, Between, Cluster, Network, eventually, heavy, is_finished, node, registration, say, submit,
    wait_for_job, work,
};

/// Accelerators of a worker that takes a whole host.
const WHOLE_HOST: u32 = 4;

fn is_running(job: &v1::Job) -> bool {
    job.phase() == JobPhase::Running
}

/// The nodes of a placed job, by rank.
fn nodes_of(job: &v1::Job) -> Vec<String> {
    let placement = job.status().placement.as_ref().expect("a running job is placed");
    placement.workers.iter().map(|worker| worker.node_name.clone()).collect()
}

fn evidence(cluster: &Cluster) -> PathBuf {
    let directory = cluster.scratch.path().join("intervals");
    std::fs::create_dir(&directory).expect("a directory can be made");
    directory
}

/// Waits until every worker of the job has begun to write down that it runs.
async fn begun(directory: &Path, id: &str, workers: usize) {
    eventually("the workers did not begin", || async {
        (intervals_of(directory, id).len() >= workers).then_some(())
    })
    .await;
}

fn intervals_of(directory: &Path, id: &str) -> Vec<Interval> {
    let mut own: Vec<Interval> = intervals::read(directory).expect("evidence can be read");
    own.retain(|interval| interval.job == id);
    own.sort_by_key(|interval| interval.start);
    own
}

/// Of one job in two attempts: from the last sign of the first to the first of the second.
fn pause_between(directory: &Path, id: &str, workers: usize) -> Duration {
    let ran = intervals_of(directory, id);
    assert_eq!(ran.len(), 2 * workers, "two attempts: {ran:#?}");
    let (first, second) = ran.split_at(workers);
    assert!(first.iter().all(|one| one.attempt == first[0].attempt), "{ran:#?}");
    let end = first.iter().map(|one| one.end).max().expect("an attempt has workers");
    let start = second[0].start;
    assert!(end < start, "both attempts ran at once: {ran:#?}");
    Duration::from_nanos(start - end)
}

fn assert_never_twice(directory: &Path, what: &str) {
    let report = intervals::check(&intervals::read(directory).expect("evidence can be read"));
    assert!(report.overlaps.is_empty(), "{report}");
    say(&format!("{what}: {report}"));
}

async fn incarnation_of(client: &Client, name: &str) -> u32 {
    let request = v1::GetNodeRequest { node: name.to_owned(), read: None };
    let node = client.get_node(request).await.expect("the node is known").node;
    node.expect("an answer has the node").incarnation
}

/// An agent that does nothing but heartbeats, and remembers which of them were acknowledged.
struct Witness {
    beats: mpsc::Sender<agent::SessionRequest>,
    answers: tonic::Streaming<agent::SessionResponse>,
    sent: Vec<Instant>,
}

impl Witness {
    async fn register(endpoint: &str) -> Witness {
        let (beats, stream) = mpsc::channel(64);
        let mut nodes = NodeServiceClient::connect(endpoint.to_owned()).await.expect("a replica listens");
        beats.send(registration(node("witness"), &format!("{:032x}", 77))).await.expect("the stream is here");
        let answers = nodes.session(ReceiverStream::new(stream)).await.expect("a session opens");
        let mut witness = Witness { beats, answers: answers.into_inner(), sent: Vec::new() };
        let first = witness.answers.message().await.expect("an answer");
        assert!(matches!(first.and_then(|m| m.message), Some(Response::Registered(_))));
        witness
    }

    async fn beat(&mut self) {
        self.sent.push(Instant::now());
        let beat = agent::Heartbeat { sequence: self.sent.len() as u64 };
        let message = agent::SessionRequest { message: Some(Request::Heartbeat(beat)) };
        // Where the session has ended there is nothing left to be acknowledged.
        let _ = self.beats.try_send(message);
    }

    /// Beats for a while; when those were sent that were acknowledged meanwhile.
    async fn acknowledged_within(&mut self, span: Duration) -> Vec<Instant> {
        let end = tokio::time::Instant::now() + span;
        let mut interval = tokio::time::interval(Duration::from_millis(50));
        let mut acknowledged = Vec::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return acknowledged,
                _ = interval.tick() => self.beat().await,
                answer = self.answers.message() => match answer {
                    Ok(Some(agent::SessionResponse { message: Some(Response::HeartbeatAck(ack)) })) => {
                        acknowledged.push(self.sent[ack.sequence as usize - 1]);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return acknowledged,
                },
            }
        }
    }
}

/// Agents and replicas as the network calls them.
fn names(hosts: &[&str], replicas: &[usize]) -> Vec<String> {
    let agents = hosts.iter().map(|host| format!("agent-{host}"));
    agents.chain(replicas.iter().map(|at| format!("replica-{}", at + 1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_stops_before_the_others_go_on() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::lay_out(3);
    let mut network = Network::new(cluster.scratch.path());
    cluster.put_behind(&mut network).await;
    for at in 0..3 {
        cluster.start_replica_first(at);
    }
    let leader = cluster.leader().await;
    let hosts = ["h1", "h2", "h3", "h4"];
    let agents = Agents::start(&cluster, &hosts).await;
    let directory = evidence(&cluster);
    let client = cluster.client();

    // The leader, cut off together with the agents of a gang that runs over two hosts.
    let id = submit(&client, work("cut-off", &directory, 5_000, 0, (2, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 2).await;
    let mut witness = Witness::register(&cluster.replicas[leader].endpoint()).await;
    assert!(
        !witness.acknowledged_within(Duration::from_millis(300)).await.is_empty(),
        "a leader acknowledges"
    );
    let (inside, outside): (Vec<&str>, Vec<&str>) =
        hosts.iter().partition(|host| nodes_of(&first).iter().any(|node| node == *host));
    assert_eq!(inside.len(), 2);
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    network.part(&[&names(&inside, &[leader]), &names(&outside, &others)]);
    let parted = Instant::now();
    // It may still believe that it leads, and its agents reach it; but no quorum speaks for it.
    let acknowledged = witness.acknowledged_within(Duration::from_secs(2)).await;
    assert!(
        acknowledged.iter().all(|sent| *sent <= parted),
        "a heartbeat was acknowledged that was sent after the leader was cut off"
    );
    let survivors = cluster.client_of(others[0]);
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    let again = wait_for_job(&survivors, &id, moved).await;
    let took = parted.elapsed();
    assert!(nodes_of(&again).iter().all(|node| outside.contains(&node.as_str())), "{again:#?}");
    begun(&directory, &id, 4).await;
    let pause = pause_between(&directory, &id, 2);
    say(&format!(
        "leader and gang cut off: the gang ran elsewhere after {took:?}, {pause:?} behind its stop"
    ));
    network.heal();
    for host in hosts {
        agents.wait_status(host, NodeStatus::Up).await;
    }
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );

    // An agent, cut off from everybody: its shims stop the worker though it is running and nobody tells it to.
    let id = submit(&client, work("alone", &directory, 5_000, 0, (1, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 1).await;
    let host = nodes_of(&first).remove(0);
    let rest: Vec<&str> = hosts.iter().copied().filter(|other| *other != host).collect();
    network.part(&[&names(&[&host], &[]), &names(&rest, &[0, 1, 2])]);
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    let again = wait_for_job(&client, &id, moved).await;
    assert_ne!(nodes_of(&again)[0], host, "placed on a lost node");
    begun(&directory, &id, 2).await;
    pause_between(&directory, &id, 1);
    network.heal();
    agents.wait_status(&host, NodeStatus::Up).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );

    assert_never_twice(&directory, "partitions");
    cluster.assert_digests_agree().await;
}

/// A shim's command line has `run` or `wait` behind the program's name or the word `shim`; its worker and the agent
/// have no such pair.
fn is_shim(pid: &i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    words.windows(2).any(|pair| pair[0].ends_with(b"shim") && matches!(pair[1], b"run" | b"wait"))
}

fn signal_all(pids: &[i32], what: Signal) {
    for pid in pids {
        // It may have ended meanwhile.
        let _ = kill(Pid::from_raw(*pid), what);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_slept_or_was_rebooted_takes_nothing_up_again() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1", "h2"]).await;
    let directory = evidence(&cluster);
    let client = cluster.client();

    // A whole host stands still for longer than its lease: agent, shim and worker. When it goes on, the
    // shim ends the worker before that runs again.
    let id = submit(&client, work("slept", &directory, 10_000, 0, (1, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 1).await;
    let host = nodes_of(&first).remove(0);
    // Shims that waited for other workers go, for the host is full.
    let asleep = eventually("an agent, a shim, a worker and the first process of its namespace", || async {
        let all = agents.processes(&host);
        (all.len() == 4).then_some(all)
    })
    .await;
    signal_all(&asleep, Signal::SIGSTOP);
    let (shims, rest): (Vec<i32>, Vec<i32>) = asleep.iter().partition(|pid| is_shim(pid));
    assert_eq!((shims.len(), rest.len()), (1, 3), "a shim, and three others");
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    wait_for_job(&client, &id, moved).await;
    begun(&directory, &id, 2).await;
    signal_all(&shims, Signal::SIGCONT);
    eventually("the shim did not end its worker", || async {
        let left = agents.processes(&host);
        (left.len() == 1 && rest.contains(&left[0])).then_some(())
    })
    .await;
    signal_all(&rest, Signal::SIGCONT);
    agents.wait_status(&host, NodeStatus::Up).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );
    pause_between(&directory, &id, 1);

    // A power cut: another boot is another holder of the node, and what ran before is nobody's any more.
    let id = submit(&client, work("rebooted", &directory, 3_000, 0, (1, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 1).await;
    let host = nodes_of(&first).remove(0);
    let before = incarnation_of(&client, &host).await;
    agents.crash(&host, "second").await;
    agents.start_agent(&host);
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    wait_for_job(&client, &id, moved).await;
    eventually("the node was not taken over", || async {
        (incarnation_of(&client, &host).await == before + 1).then_some(())
    })
    .await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!(
        (ended.phase(), ended.status().attempt, ended.status().failures),
        (JobPhase::Succeeded, 2, 0),
        "{ended:#?}"
    );
    pause_between(&directory, &id, 1);

    // The boot changes below running workers (a container that is moved, a state directory that is copied):
    // they end with the lease of their holder, before the next one may have the node.
    let id = submit(&client, work("another-holder", &directory, 5_000, 0, (1, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 1).await;
    let host = nodes_of(&first).remove(0);
    agents.kill(&host).await;
    std::fs::write(agents.home(&host).join("boot_id"), "third").unwrap();
    agents.start_agent(&host);
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    wait_for_job(&client, &id, moved).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Succeeded, 2), "{ended:#?}");
    pause_between(&directory, &id, 1);

    assert_never_twice(&directory, "sleep and reboots");
    cluster.assert_digests_agree().await;
}

/// Runs a command in a time namespace whose clocks since boot are a day ahead.
const A_DAY_AHEAD: [&str; 6] = ["unshare", "--time", "--fork", "--boottime", "86400", "--"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_jump_do_not_lengthen_a_lease() {
    let tried = std::process::Command::new(A_DAY_AHEAD[0]).args(&A_DAY_AHEAD[1..]).arg("true").output();
    if !tried.is_ok_and(|ran| ran.status.success()) {
        return say("skipped: time namespaces cannot be made here (they need root and Linux 5.6)");
    }
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    let mut agents = Agents::start(&cluster, &["h1", "h2"]).await;
    let directory = evidence(&cluster);
    let client = cluster.client();

    // The agent comes back on a clock that is a day ahead of its shim's. A deadline of the one means
    // nothing to the other: had the shim believed it, its worker would run for a day whatever happens.
    let id = submit(&client, work("jump", &directory, 600_000, 0, (1, WHOLE_HOST))).await;
    let first = wait_for_job(&client, &id, is_running).await;
    begun(&directory, &id, 1).await;
    let host = nodes_of(&first).remove(0);
    let other = if host == "h1" { "h2" } else { "h1" };
    agents.kill(&host).await;
    agents.start_agent_below(&A_DAY_AHEAD, &host);
    let moved = |job: &v1::Job| is_running(job) && job.status().attempt > first.status().attempt;
    let again = wait_for_job(&client, &id, moved).await;
    assert_eq!(nodes_of(&again), [other], "the host was not up again when its lease had run out");
    begun(&directory, &id, 2).await;
    pause_between(&directory, &id, 1);

    // On its new clock it serves like any other, leases and all.
    agents.wait_status(&host, NodeStatus::Up).await;
    let short = submit(&client, work("ahead", &directory, 200, 0, (1, WHOLE_HOST))).await;
    let ended = wait_for_job(&client, &short, is_finished).await;
    assert_eq!((ended.phase(), nodes_of(&ended)), (JobPhase::Succeeded, vec![host]), "{ended:#?}");
    assert_never_twice(&directory, "clocks");
    cluster.assert_digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_order_of_yesterday_is_not_carried_out() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(3).await;
    // Each agent reaches the cluster through something that can send it what it likes.
    let endpoint = cluster.replicas[cluster.follower().await].endpoint();
    let hosts = ["h1", "h2", "h3"];
    let mut between = std::collections::BTreeMap::new();
    for host in hosts {
        between.insert(host, Between::start(&endpoint).await);
    }
    let agents =
        Agents::start_with(&cluster, &hosts, |name| vec![between[name].endpoint()], |_, _| String::new())
            .await;
    let directory = evidence(&cluster);
    let client = cluster.client();

    let mut wanted = work("fails-once", &directory, 50, 3, (1, WHOLE_HOST));
    wanted.spec_mut().retry_mut().max_failures = 1;
    let id = submit(&client, wanted).await;
    let ended = wait_for_job(&client, &id, is_finished).await;
    assert_eq!((ended.phase(), ended.status().attempt), (JobPhase::Failed, 2), "{ended:#?}");
    let ran = intervals_of(&directory, &id).len();
    assert_eq!(ran, 2);
    let mut orders: Vec<agent::StartOrder> = between.values().flat_map(Between::starts).collect();
    orders.sort_by_key(|order| order.token.as_ref().map(|token| token.log_index));
    assert_eq!(orders.len(), 2, "one for each attempt");
    let yesterday = orders.swap_remove(0);

    // Who has seen this token or a newer one of the job says what it knows; who has not asks the leader.
    let mut refused = 0;
    for (host, one) in &between {
        one.inject(Response::Start(yesterday.clone()));
        let nothing = format!("nothing came of the old order at {host}");
        let answers = eventually(&nothing, || async { one.verdict_on(&yesterday) }).await;
        assert!(answers.iter().all(|current| !current), "{host}: an old order was confirmed");
        refused += answers.len();
        let token = yesterday.token.as_ref().expect("a start order has a token").log_index;
        let launched = agents.home(host).join(format!("state/tasks/{id}_1.{token}_0")).exists();
        assert_eq!(launched, one.starts().contains(&yesterday), "{host} launched an old order");
    }
    assert!(refused > 0, "no agent had to ask");
    assert_eq!(intervals_of(&directory, &id).len(), ran, "something ran again");
    assert_never_twice(&directory, "old orders");
    cluster.assert_digests_agree().await;
}
