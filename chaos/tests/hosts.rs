//! Hosts, the wire between them, and what is left when they are gone.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not these"
)]

use libtest_mimic::{Arguments, Trial};
use muster_chaos::net::{
    BuildError, Host, HostSet, HostSpec, LinkStats, Network, Process, Rule, three_regions,
};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Started by a test, to be killed.
const HARNESS: &str = "--harness-to-be-killed";

fn main() {
    // What asks for a separate sandbox must not be in one already.
    let left_behind = Trial::test("nothing_is_left_when_the_harness_is_killed", || {
        nothing_is_left_when_the_harness_is_killed();
        Ok(())
    });
    if let Err(unsupported) = muster_chaos::sandbox::enter() {
        println!("skipped: {unsupported}");
        return;
    }
    if std::env::args().any(|argument| argument == HARNESS) {
        return be_killed();
    }
    if let Err(BuildError::Unsupported(unsupported)) = Network::build(&[HostSpec::new("a1", "A")], &[], 1) {
        println!("skipped: {unsupported}");
        return;
    }
    let trials: [(&str, fn()); 10] = [
        ("round_trips_are_as_long_as_asked", round_trips_are_as_long_as_asked),
        ("a_cut_is_silent_and_has_a_direction", a_cut_is_silent_and_has_a_direction),
        ("a_connection_outlives_a_cut", a_connection_outlives_a_cut),
        ("packets_are_lost_and_doubled_as_often_as_asked", packets_are_lost_and_doubled_as_often_as_asked),
        ("packets_overtake", packets_overtake),
        ("corrupted_packets_do_not_reach_programs", corrupted_packets_do_not_reach_programs),
        ("a_rate_is_kept", a_rate_is_kept),
        ("a_batch_with_a_mistake_changes_nothing", a_batch_with_a_mistake_changes_nothing),
        ("processes_live_on_their_host", processes_live_on_their_host),
        ("nothing_is_left_of_a_network", nothing_is_left_of_a_network),
    ];
    let trials = trials.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let trials = trials.chain([left_behind]).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn network() -> Network {
    let hosts = [("a1", "A"), ("a2", "A"), ("b1", "B"), ("b2", "B"), ("c1", "C")];
    let hosts = hosts.map(|(name, region)| HostSpec::new(name, region));
    Network::build(&hosts, &three_regions(), 1).unwrap()
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn stats(network: &Network, from: &str, to: &str) -> LinkStats {
    let links = network.stats().unwrap().links;
    links.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or_default()
}

fn bound(host: &Host) -> UdpSocket {
    let address = SocketAddr::from((host.address(), 0));
    host.block_on(async move { UdpSocket::bind(address).await.unwrap() })
}

/// Answers every datagram.
fn echo(network: &Network, host: &str) -> SocketAddr {
    let host = network.host(host).unwrap();
    let socket = bound(host);
    let address = socket.local_addr().unwrap();
    host.spawn(async move {
        let mut buffer = [0; 2000];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..bytes], from).await;
        }
    });
    address
}

/// The shortest of some round trips; `None` if one is not answered within a second.
fn round_trip(network: &Network, from: &str, to: SocketAddr) -> Option<Duration> {
    let host = network.host(from).unwrap();
    let socket = bound(host);
    host.block_on(async move {
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            socket.send_to(b"there and back", to).await.unwrap();
            let mut buffer = [0; 100];
            tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await.ok()?.unwrap();
            best = best.min(began.elapsed());
        }
        Some(best)
    })
}

/// Sends numbered datagrams and answers those that arrived, in their order, until nothing has come for a second.
fn arrived(network: &Network, from: &str, to: &str, count: u32) -> Vec<u32> {
    let (sender, receiver) = (network.host(from).unwrap(), network.host(to).unwrap());
    let (sending, receiving) = (bound(sender), bound(receiver));
    let address = receiving.local_addr().unwrap();
    let sent = sender.spawn(async move {
        for number in 0..count {
            sending.send_to(&number.to_le_bytes(), address).await.unwrap();
            // Sending all at once would overrun the socket's buffer, which is not what is asked here.
            if number % 20 == 19 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let got = receiver.block_on(async move {
        let mut got = Vec::new();
        let mut number = [0; 4];
        while let Ok(received) =
            tokio::time::timeout(Duration::from_secs(1), receiving.recv(&mut number)).await
        {
            received.unwrap();
            got.push(u32::from_le_bytes(number));
        }
        got
    });
    sender.block_on(async move { sent.await.unwrap() });
    got
}

fn round_trips_are_as_long_as_asked() {
    let network = network();
    for (from, to, least) in [("a1", "a2", 0.6), ("a1", "b1", 30.0), ("b1", "c1", 80.0), ("a1", "c1", 140.0)]
    {
        let took = round_trip(&network, from, echo(&network, to)).unwrap().as_secs_f64() * 1000.0;
        assert!(took >= least && took < least + 50.0, "{from} to {to}: {took:.2} ms");
    }
}

fn a_cut_is_silent_and_has_a_direction() {
    let network = network();
    let (in_a, in_b) = (echo(&network, "a1"), echo(&network, "b1"));
    let applied = network.apply(&[rule("cut a1 region:B")]).unwrap();
    assert_eq!(applied.pairs, 2);
    // The question does not arrive in one direction, the answer not in the other.
    assert_eq!(round_trip(&network, "a1", in_b), None);
    assert_eq!(round_trip(&network, "b1", in_a), None);
    assert!(round_trip(&network, "a2", in_b).is_some(), "nobody else is concerned");
    assert!(stats(&network, "a1", "b1").cut >= 2);
    let (a1, everywhere) = (HostSet::Host("a1".to_owned()), HostSet::Everyone);
    assert!(network.cut_packets(&a1, &everywhere).unwrap() >= 2);
    assert_eq!(network.cut_packets(&everywhere, &a1).unwrap(), 0);
    network.heal().unwrap();
    assert!(round_trip(&network, "a1", in_b).is_some());
}

fn a_connection_outlives_a_cut() {
    let network = network();
    let (a1, b1) = (network.host("a1").unwrap(), network.host("b1").unwrap());
    let address = SocketAddr::from((b1.address(), 0));
    let listener = b1.block_on(async move { TcpListener::bind(address).await.unwrap() });
    let address = listener.local_addr().unwrap();
    b1.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let _ = tokio::io::copy(&mut reading, &mut writing).await;
    });
    let mut stream = a1.block_on(async move { TcpStream::connect(address).await.unwrap() });
    network.apply(&Rule::cut_both(&HostSet::Host("a1".to_owned()), &HostSet::Everyone)).unwrap();
    let asked = a1.block_on(async move {
        stream.write_all(b"kept").await.unwrap();
        let answered = tokio::time::timeout(Duration::from_millis(500), stream.readable()).await;
        assert!(answered.is_err(), "neither an answer nor a reset comes through a cut");
        stream
    });
    network.heal().unwrap();
    let mut stream = asked;
    a1.block_on(async move {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"kept");
    });
}

fn packets_are_lost_and_doubled_as_often_as_asked() {
    let network = network();
    network.apply(&[rule("link a1 a2 loss=10% duplicate=20%")]).unwrap();
    let got = arrived(&network, "a1", "a2", 2000);
    let mut different = got.clone();
    different.sort_unstable();
    different.dedup();
    let link = stats(&network, "a1", "a2");
    assert!((100..300).contains(&link.lost), "{link:?}");
    assert!((250..500).contains(&link.duplicated), "{link:?}");
    assert_eq!(different.len() as u64, 2000 - link.lost);
    assert_eq!(got.len() as u64, link.forwarded);
}

fn packets_overtake() {
    let network = network();
    let got = arrived(&network, "a1", "b1", 200);
    assert!(got.is_sorted() && got.len() == 200, "a link keeps the order by itself");
    network.apply(&[rule("link a1 b1 reorder=10%")]).unwrap();
    let got = arrived(&network, "a1", "b1", 500);
    assert!(!got.is_sorted() && got.len() == 500);
    assert!(stats(&network, "a1", "b1").reordered > 20);
}

fn corrupted_packets_do_not_reach_programs() {
    let network = network();
    network.apply(&[rule("link a1 a2 corrupt=20%")]).unwrap();
    let got = arrived(&network, "a1", "a2", 1000);
    let link = stats(&network, "a1", "a2");
    assert!((120..300).contains(&link.corrupted), "{link:?}");
    // Checksums find every turned bit.
    assert!(got.is_sorted() && got.iter().all(|number| *number < 1000));
    assert!(got.len() as u64 <= 1000 - link.corrupted + 20, "{} of {link:?}", got.len());
}

fn a_rate_is_kept() {
    let network = network();
    network.apply(&[rule("link a1 a2 rate=8mbit")]).unwrap();
    let (a1, a2) = (network.host("a1").unwrap(), network.host("a2").unwrap());
    let address = SocketAddr::from((a2.address(), 0));
    let listener = a2.block_on(async move { TcpListener::bind(address).await.unwrap() });
    let address = listener.local_addr().unwrap();
    const BYTES: usize = 1_000_000;
    a1.spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&vec![7; BYTES]).await.unwrap();
    });
    let took = a2.block_on(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let began = Instant::now();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), BYTES);
        began.elapsed()
    });
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(5), "a megabyte took {took:?}");
}

fn a_batch_with_a_mistake_changes_nothing() {
    let network = network();
    let in_b = echo(&network, "b1");
    let error = network.apply(&[rule("cut a1 b1"), rule("cut a1 region:D")]).unwrap_err();
    assert_eq!(error.to_string(), "no packet goes from a1 to region:D: there are no such hosts");
    assert!(round_trip(&network, "a1", in_b).is_some());
}

fn sh(script: &str) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command
}

fn launch(host: &Host, script: &str) -> Process {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(host.launch(sh(script))).unwrap()
}

fn processes_live_on_their_host() {
    let network = network();
    let (a1, a2) = (network.host("a1").unwrap(), network.host("a2").unwrap());
    // The second outlives the one that started it, in a separate session.
    let process = launch(a1, "setsid sleep 1000 & sleep 1000");
    assert!(eventually(|| a1.processes().len() == 3));
    assert!(a1.processes().contains(&process.pid()) && a2.processes().is_empty());
    assert_eq!(process.exit_status(), None);
    assert_eq!(a1.kill_all(), 3);
    assert!(a1.processes().is_empty());
    let watched = process.clone();
    let status = a1.block_on(async move { watched.ended().await.unwrap() });
    assert_eq!(status.code(), None, "it was killed");
    assert!(process.signal(nix::sys::signal::Signal::SIGTERM).is_err());
    // The host is still one.
    let again = launch(a1, "exit 3");
    assert_eq!(a1.block_on(async move { again.ended().await.unwrap() }).code(), Some(3));
}

fn nothing_is_left_of_a_network() {
    let namespace = |path: String| std::fs::metadata(path).ok().map(|namespace| namespace.ino());
    let network = network();
    let process = launch(network.host("c1").unwrap(), "setsid sleep 1000 & sleep 1000");
    let of_process = format!("/proc/{}/ns/net", process.pid());
    let of_host = namespace(of_process.clone()).unwrap();
    let is_in_use = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut namespaces =
            threads.filter_map(|thread| namespace(format!("{}/ns/net", thread.path().display())));
        namespaces.any(|namespace| namespace == of_host)
    };
    assert!(is_in_use(), "the host's own thread is there");
    drop(network);
    assert_eq!(namespace(of_process), None);
    assert!(!is_in_use());
}

/// A harness with a process that outlives its starter, and a mount.
fn be_killed() {
    let network = network();
    let scratch = std::env::temp_dir();
    let _disk = muster_chaos::faults::Disk::memory(&scratch.join(marker()), 1 << 20).unwrap();
    let _process = launch(network.host("a1").unwrap(), &format!("setsid sleep {0} & sleep {0}", marker()));
    println!("ready");
    std::thread::park();
}

/// Tells what this test left from what others do: a number that only it sleeps for.
fn marker() -> String {
    std::env::args().find_map(|argument| Some(argument.strip_prefix("--marker=")?.to_owned())).unwrap()
}

/// Whether it becomes true within half a minute.
fn eventually(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if began.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::yield_now();
    }
}

fn processes_with(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

fn nothing_is_left_when_the_harness_is_killed() {
    let marker = format!("{}.{}", 900_000 + std::process::id() % 1000, std::process::id());
    let directory = std::env::temp_dir().join(&marker);
    let mut door = Command::new(std::env::current_exe().unwrap());
    door.arg0("a-harness").args([HARNESS, &format!("--marker={marker}")]);
    let mut door = door.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(door.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    if line.starts_with("skipped") {
        println!("{line}");
        door.wait().unwrap();
        return;
    }
    assert_eq!(line, "ready\n");
    // Door, first process and harness carry it too. A process has no command line for an instant while it becomes
    // another program: one count of all of them is enough, and a second one may find fewer.
    assert!(eventually(|| processes_with(&marker) >= 6));
    assert!(
        std::fs::read_dir(&directory).unwrap().next().is_none(),
        "what is mounted there is not ours to see"
    );
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&marker));
    door.kill().unwrap();
    door.wait().unwrap();
    // Its output ends when the last process that could write there is gone.
    while said.read_line(&mut line).unwrap() > 0 {}
    assert!(eventually(|| processes_with(&marker) == 0));
    std::fs::remove_dir(&directory).unwrap();
}
