//! The ground of everything: a seed is a run, and the clock, the disk and the network keep to their rules.

use muster_world::disk::{Disk, RESERVE_BYTES};
use muster_world::network::Network;
use muster_world::runtime::{
    RunDigest, below, chance, digest, event, freeze, kill, local_ns, now_ns, reset, run, set_rate, sleep_ms,
    sleep_true_ns, spawn_on, take_trace, thaw, timeout,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Tasks that talk over channels, sleep and draw.
fn scramble(seed: u64) -> (RunDigest, Vec<String>) {
    reset(seed, true);
    run(async {
        let (sender, mut receiver) = mpsc::channel::<u64>(4);
        let (tick, _) = watch::channel(0u64);
        for host in 1..=5u32 {
            let (sender, mut ticks) = (sender.clone(), tick.subscribe());
            spawn_on(host, async move {
                for _ in 0..40 {
                    if chance(300) {
                        let _ = timeout(Duration::from_millis(below(9)), ticks.changed()).await;
                    } else {
                        sleep_ms(below(7)).await;
                    }
                    let _ = sender.send(u64::from(host) * 1_000 + below(1_000)).await;
                }
            });
        }
        drop(sender);
        while let Some(value) = receiver.recv().await {
            event("got", format_args!("{value}"));
            tick.send_modify(|tick| *tick += 1);
        }
    })
    .expect("it ends");
    (digest(), take_trace())
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    for seed in 0..20 {
        assert_eq!(scramble(seed), scramble(seed), "seed {seed}");
    }
    assert_ne!(scramble(1), scramble(2));
}

#[test]
fn clocks_of_hosts_run_apart_and_never_fire_early() {
    reset(7, false);
    run(async {
        set_rate(1, 250_000);
        set_rate(2, -250_000);
        let begun = now_ns();
        let wait = |host| {
            spawn_on(host, async move {
                let due = local_ns() + 1_000_000_000;
                sleep_ms(1_000).await;
                assert!(local_ns() >= due, "early by its own clock");
                now_ns() - begun
            })
        };
        let (fast, slow, right) = (wait(1), wait(2), wait(3));
        let ms = |result: Result<u64, _>| result.expect("it ran") / 1_000_000;
        assert_eq!((ms(fast.await), ms(right.await), ms(slow.await)), (800, 1_000, 1_333));
    })
    .expect("it ends");
}

#[test]
fn a_frozen_host_stands_still_and_a_killed_one_is_gone() {
    reset(3, false);
    run(async {
        let count = Arc::new(Mutex::new(0));
        let counting = Arc::clone(&count);
        spawn_on(1, async move {
            loop {
                sleep_ms(10).await;
                *counting.lock() += 1;
            }
        });
        let counted = || *count.lock();
        sleep_ms(105).await;
        assert_eq!(counted(), 10);
        freeze(1);
        sleep_ms(500).await;
        assert_eq!(counted(), 10);
        thaw(1);
        sleep_ms(100).await;
        assert!((18..=20).contains(&counted()), "{}", counted());
        kill(1);
        let last = counted();
        sleep_ms(500).await;
        assert_eq!(counted(), last);
        assert_eq!(Arc::strong_count(&count), 1, "what it held is dropped");
    })
    .expect("it ends");
}

#[test]
fn what_was_synced_survives_a_power_cut_and_the_rest_may_not() {
    let mut torn = 0;
    for seed in 0..200 {
        reset(seed, false);
        run(async move {
            let disk = Disk::default();
            disk.append(&[1; 100]);
            disk.sync().await.expect("it is well");
            disk.append(&[2; 100]);
            disk.cut_power();
            let log = disk.log();
            assert!(log.len() >= 100 && log[..100].iter().all(|byte| *byte == 1), "synced is there");
            log.len()
        })
        .map(|len| torn += usize::from(len > 100 && len < 200))
        .expect("it ends");
    }
    assert!(torn > 100, "torn tails come about: {torn}");
    reset(1, false);
    run(async {
        let disk = Disk::default();
        disk.append(&[1; 10]);
        disk.sync().await.expect("it is well");
        disk.set_full(true);
        assert!(disk.free_bytes() < RESERVE_BYTES && disk.is_full() == (disk.free_bytes() == 0));
        assert!(disk.replace("file", vec![1]).await.is_err());
        disk.set_full(false);
        disk.append(&[2; 10]);
        disk.fail_next_sync();
        assert!(disk.sync().await.is_err());
        assert_eq!(disk.log(), vec![1; 10], "a failed sync has lost what was unsynced");
        disk.set_slow(100);
        let begun = now_ns();
        disk.sync().await.expect("slow but well");
        assert!(now_ns() - begun >= 60_000_000);
        assert!(disk.flip_bit());
        assert_ne!(disk.log(), vec![1; 10]);
    })
    .expect("it ends");
}

#[test]
fn a_cut_is_for_one_direction_and_loss_and_delay_are_what_was_asked_for() {
    reset(5, false);
    run(async {
        let mut network = Network::default();
        (1..=3).for_each(|host| network.place(host, host as usize - 1));
        network.cut(1, 2);
        assert!(network.leg(1, 2).is_none() && network.leg(2, 1).is_some() && network.leg(1, 3).is_some());
        let leg = network.leg(2, 1).expect("nothing is lost");
        assert!((15_000_000..=140_000_000).contains(&leg));
        network.loss_permille = 300;
        let lost = (0..2_000).filter(|_| network.leg(3, 1).is_none()).count();
        assert!((500..700).contains(&lost), "{lost}");
        network.heal();
        assert!((0..100).all(|_| network.leg(1, 2).is_some() && !network.comes_twice()));
        sleep_true_ns(1).await;
    })
    .expect("it ends");
}
