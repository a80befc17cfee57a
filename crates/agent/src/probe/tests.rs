use super::*;
use muster_types::probe::findings;
use std::collections::BTreeSet;

const LIMITS: Limits = Limits {
    pair_bytes: 1 << 20,
    pair: Duration::from_millis(250),
    ring_bytes: 256 << 10,
    budget: Duration::from_secs(20),
};

#[test]
fn in_every_turn_each_meets_one_other_and_in_the_end_everybody() {
    for count in 2..=17u32 {
        let mut met = BTreeSet::new();
        for turn in 0..turns(count) {
            for own in 0..count {
                let Some(other) = partner(own, turn, count) else {
                    assert_eq!(count % 2, 1, "nobody rests where the count is even");
                    continue;
                };
                assert_eq!(
                    partner(other, turn, count),
                    Some(own),
                    "{own} and {other} of {count} in round {turn}"
                );
                met.insert((own, other));
            }
        }
        assert_eq!(met.len() as u32, count * (count - 1), "all of {count}");
    }
    assert_eq!(partner(0, 0, 1), None);
    assert_eq!(turns(4_000), limits::PROBE_TURNS_MAX);
}

/// Passes bytes on from one address to another, at most this many per second.
async fn throttled(target: u16, bytes_per_s: u64) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            let far = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            let ((mut a, mut b), (mut c, mut d)) = (near.into_split(), far.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut c, &mut b).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 4 << 10];
                while let Ok(read @ 1..) = a.read(&mut buffer).await {
                    tokio::time::sleep(Duration::from_secs_f64(read as f64 / bytes_per_s as f64)).await;
                    if d.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// A probe of `count` hosts of this process; `slow` is behind a narrow line for all others.
async fn probe(count: u32, slow: Option<u32>) -> Vec<Measured> {
    let mut listeners = Vec::new();
    let mut peers = Vec::new();
    for host in 0..count {
        let (listener, port) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = if slow == Some(host) { throttled(port, 1_000_000).await } else { port };
        listeners.push(listener);
        peers.push(("127.0.0.1".to_owned(), port));
    }
    let mut running = Vec::new();
    for (own, listener) in listeners.into_iter().enumerate() {
        let plan = Plan { key: 77, own: own as u32, peers: peers.clone(), limits: LIMITS };
        running.push(tokio::spawn(run(plan, listener)));
    }
    let mut measured = Vec::new();
    for host in running {
        measured.push(host.await.unwrap());
    }
    measured
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_link_is_measured_and_the_ring_adds_up() {
    for count in [2, 5] {
        let measured = probe(count, None).await;
        let links: Vec<Link> = measured.iter().flat_map(|host| host.links.clone()).collect();
        let pairs: BTreeSet<(u32, u32)> = links.iter().map(|link| (link.from, link.to)).collect();
        assert_eq!((links.len(), pairs.len()), (20.min(count * (count - 1)) as usize, links.len()));
        for link in &links {
            assert!(matches!(link.outcome, LinkOutcome::Measured { rate: 1.., .. }), "{link:?}");
        }
        for (host, one) in measured.iter().enumerate() {
            let ring = one.ring.expect("the ring came to its end");
            assert!(ring.correct && ring.host == host as u32 && ring.duration_us > 0, "{ring:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_behind_a_narrow_line_is_found() {
    // The others reach it, and it is always the one that is connected to: the last place.
    let measured = probe(4, Some(3)).await;
    let links: Vec<Link> = measured.into_iter().flat_map(|host| host.links).collect();
    let names: Vec<String> = (0..4).map(|n| format!("h{n}")).collect();
    let found = findings(&names, &links, &[]);
    assert_eq!(found.first().map(|first| first.host), Some(3), "{found:?} of {links:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_does_not_take_part_costs_its_own_links_and_no_more_than_the_budget() {
    let limits = Limits { budget: Duration::from_secs(3), pair: Duration::from_millis(20), ..LIMITS };
    let mut peers = Vec::new();
    let mut listeners = Vec::new();
    for _ in 0..3 {
        let (listener, port) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        listeners.push(listener);
        peers.push(("127.0.0.1".to_owned(), port));
    }
    // It listens, and says nothing.
    let _silent = listeners.pop();
    let begun = Instant::now();
    let running: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(own, listener)| {
            tokio::spawn(run(Plan { key: 1, own: own as u32, peers: peers.clone(), limits }, listener))
        })
        .collect();
    let mut links = Vec::new();
    for host in running {
        let measured = host.await.unwrap();
        assert_eq!(measured.ring, None, "a ring needs everybody");
        links.extend(measured.links);
    }
    assert!(begun.elapsed() < limits.budget + Duration::from_secs(2), "{:?}", begun.elapsed());
    let sound = |link: &&Link| matches!(link.outcome, LinkOutcome::Measured { .. });
    let sound: Vec<(u32, u32)> = links.iter().filter(sound).map(|link| (link.from, link.to)).collect();
    assert_eq!(sound, [(0, 1), (1, 0)], "{links:?}");
}

#[tokio::test]
async fn who_shows_no_key_is_not_let_in() {
    let (listener, port) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let limits = Limits { budget: Duration::from_secs(2), ..LIMITS };
    let peers = vec![("127.0.0.1".to_owned(), 1), ("127.0.0.1".to_owned(), port)];
    let host = tokio::spawn(run(Plan { key: 5, own: 1, peers: peers.clone(), limits }, listener));
    for hello in [&b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n"[..], &[0xff; HELLO_BYTES]] {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stranger.write_all(hello).await.unwrap();
        let mut answer = [0];
        // Closed, or reset because something was left unread.
        assert!(!matches!(stranger.read(&mut answer).await, Ok(1..)));
    }
    let measured = host.await.unwrap();
    assert_eq!(measured, Measured::default(), "the other host was never there");
}
