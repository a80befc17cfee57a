//! Hosts, the wire between them, and what is left when they are gone.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not these"
)]

use libtest_mimic::{Arguments, Trial};
use muster_chaos::net::{HostSpec, Network, three_regions};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

fn main() {
    if let Err(unable) = muster_chaos::room::enter() {
        println!("skipped: {unable}");
        return;
    }
    let trials = vec![Trial::test("round_trips", || {
        round_trips();
        Ok(())
    })];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn network() -> Network {
    let hosts = [("a1", "A"), ("a2", "A"), ("b1", "B"), ("b2", "B"), ("c1", "C")];
    let hosts = hosts.map(|(name, region)| HostSpec::new(name, region));
    Network::build(&hosts, &three_regions(), 1).unwrap()
}

/// Answers every datagram.
fn echo(network: &Network, host: &str) -> SocketAddr {
    let host = network.host(host).unwrap();
    let address = SocketAddr::from((host.address(), 0));
    let socket = host.block_on(async move { UdpSocket::bind(address).await.unwrap() });
    let bound = socket.local_addr().unwrap();
    host.spawn(async move {
        let mut buffer = [0; 2000];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..bytes], from).await;
        }
    });
    bound
}

fn round_trip(network: &Network, from: &str, to: SocketAddr) -> Duration {
    let host = network.host(from).unwrap();
    let address = SocketAddr::from((host.address(), 0));
    host.block_on(async move {
        let socket = UdpSocket::bind(address).await.unwrap();
        socket.connect(to).await.unwrap();
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            socket.send(b"there and back").await.unwrap();
            let mut buffer = [0; 100];
            socket.recv(&mut buffer).await.unwrap();
            best = best.min(began.elapsed());
        }
        best
    })
}

fn round_trips() {
    let network = network();
    for (from, to, least) in [("a1", "a2", 0.6), ("a1", "b1", 30.0), ("b1", "c1", 80.0), ("a1", "c1", 140.0)]
    {
        let took = round_trip(&network, from, echo(&network, to)).as_secs_f64() * 1000.0;
        println!("{from} to {to}: {took:.2} ms");
        assert!(took >= least && took < least + 20.0, "{from} to {to}: {took:.2} ms");
    }
}
