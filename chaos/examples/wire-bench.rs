//! What the wire carries, what it adds, and what it costs: `cargo run --release -p muster-chaos --example wire-bench`.

use muster_chaos::net::{Host, HostSpec, Network, three_regions};
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

const FLOOD: Duration = Duration::from_secs(5);
const LOAD: Duration = Duration::from_secs(10);
/// Pairs of five replicas, and datagrams a second from each to each: heartbeats, entries and their answers under
/// the load of a drill are fewer.
const LOAD_PACKETS_PER_S: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(unsupported) = muster_chaos::sandbox::enter() {
        println!("skipped: {unsupported}");
        return Ok(());
    }
    let specs = [("a1", "A"), ("a2", "A"), ("b1", "B"), ("b2", "B"), ("c1", "C")];
    let specs = specs.map(|(name, region)| HostSpec::new(name, region));
    latency(&Network::build(&specs, &[], 1)?, "without a delay", "b1")?;
    latency(&Network::build(&specs, &three_regions(), 1)?, "A to B, 30 ms asked", "b1")?;
    flood(&Network::build(&specs, &[], 1)?, 200)?;
    flood(&Network::build(&specs, &[], 1)?, 1400)?;
    load(&Network::build(&specs, &three_regions(), 1)?)?;
    Ok(())
}

fn host<'a>(network: &'a Network, name: &str) -> &'a Host {
    network.host(name).expect("the hosts are named above")
}

fn bound(host: &Host) -> std::io::Result<UdpSocket> {
    let address = SocketAddr::from((host.address(), 0));
    host.block_on(async move { UdpSocket::bind(address).await })
}

fn latency(network: &Network, what: &str, to: &str) -> Result<(), Box<dyn Error>> {
    let (asking, answering) = (bound(host(network, "a1"))?, bound(host(network, to))?);
    let address = answering.local_addr()?;
    host(network, to).spawn(async move {
        let mut buffer = [0; 2000];
        while let Ok((bytes, from)) = answering.recv_from(&mut buffer).await {
            let _ = answering.send_to(&buffer[..bytes], from).await;
        }
    });
    let mut took = host(network, "a1").block_on(async move {
        let mut took = Vec::new();
        for _ in 0..300 {
            let began = Instant::now();
            asking.send_to(&[0; 100], address).await?;
            asking.recv(&mut [0; 200]).await?;
            took.push(began.elapsed());
        }
        std::io::Result::Ok(took)
    })?;
    took.sort_unstable();
    let (median, high) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("round trip {what}: least {:?}, median {median:?}, 99 of 100 within {high:?}", took[0]);
    Ok(())
}

fn flood(network: &Network, bytes: usize) -> Result<(), Box<dyn Error>> {
    let (sending, receiving) = (bound(host(network, "a1"))?, bound(host(network, "b1"))?);
    let address = receiving.local_addr()?;
    host(network, "a1").spawn(async move {
        let began = Instant::now();
        while began.elapsed() < FLOOD {
            for _ in 0..64 {
                let _ = sending.send_to(&vec![0; bytes], address).await;
            }
            tokio::task::yield_now().await;
        }
    });
    let got = host(network, "b1").block_on(async move {
        let (mut got, began, mut buffer) = (0_u64, Instant::now(), [0; 2000]);
        while began.elapsed() < FLOOD {
            let received =
                tokio::time::timeout(Duration::from_millis(200), receiving.recv(&mut buffer)).await;
            got += u64::from(received.is_ok_and(|received| received.is_ok()));
        }
        got
    });
    let stats = network.stats()?;
    let carried: u64 = stats.links.values().map(|link| link.forwarded).sum();
    println!(
        "flood of {bytes} byte datagrams: {} carried a second, {} received, the wire busy {:.0} % of a core",
        carried / FLOOD.as_secs(),
        got / FLOOD.as_secs(),
        100.0 * stats.busy.as_secs_f64() / FLOOD.as_secs_f64(),
    );
    Ok(())
}

/// Every host sends to every other at a steady pace.
fn load(network: &Network) -> Result<(), Box<dyn Error>> {
    let mut addresses = Vec::new();
    for host in network.hosts() {
        let socket = bound(host)?;
        addresses.push(socket.local_addr()?);
        host.spawn(async move { while socket.recv(&mut [0; 2000]).await.is_ok() {} });
    }
    for host in network.hosts() {
        let (sending, addresses) = (bound(host)?, addresses.clone());
        host.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_nanos(1_000_000_000 / LOAD_PACKETS_PER_S));
            loop {
                tick.tick().await;
                for address in &addresses {
                    let _ = sending.send_to(&[0; 400], address).await;
                }
            }
        });
    }
    let before = network.stats()?;
    std::thread::sleep(LOAD);
    let after = network.stats()?;
    let packets =
        |stats: &muster_chaos::net::WireStats| stats.links.values().map(|link| link.packets).sum::<u64>();
    println!(
        "five hosts: {} packets a second, the wire busy {:.1} % of a core, a packet at most {:?} late",
        (packets(&after) - packets(&before)) / LOAD.as_secs(),
        100.0 * (after.busy - before.busy).as_secs_f64() / LOAD.as_secs_f64(),
        after.latest,
    );
    Ok(())
}
