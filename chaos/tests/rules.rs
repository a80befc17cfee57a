//! What becomes of packets, without a network: the same rules, seed and packets decide the same.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not these"
)]

use muster_chaos::net::{
    Delivery, Engine, HostSet, Link, LinkChange, PacketRatio, Rule, RuleError, Site, three_regions,
};
use std::time::Duration;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn engine(seed: u64) -> Engine {
    let sites = [("a1", "A"), ("a2", "A"), ("b1", "B"), ("c1", "C")];
    Engine::new(sites.map(|(name, region)| Site { name: name.into(), region: region.into() }).to_vec(), seed)
}

fn rules(text: &[&str]) -> Vec<Rule> {
    text.iter().map(|line| line.parse().unwrap()).collect()
}

fn arrival(engine: &mut Engine, now: Duration, from: usize, to: usize) -> Option<Duration> {
    engine.decide(now, from, to, 1000)[0].map(|delivery| delivery.at)
}

#[test]
fn what_is_written_is_read() {
    for text in [
        "cut a1 region:B",
        "mend * a1",
        "flap a1 * up=300ms down=200ms",
        "link region:A region:B delay=15ms jitter=300us loss=5% duplicate=0.1% reorder=1% corrupt=0.0001% rate=10000.000kbit queue=65536",
        "link * * rate=none",
        "heal",
    ] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    let change = |text: &str| text.parse::<Rule>().unwrap();
    assert_eq!(change("link a b rate=10mbit"), change("link a b rate=10000kbit"));
    assert_eq!(change("link a b delay=0.3ms"), change("link a b delay=300us"));
    for (text, reason) in [
        ("", "is no rule"),
        ("cut a1", "is no rule"),
        ("cut a1 b1 c1", "is no rule"),
        ("link a1 b1", "is no rule"),
        ("cut zone:A b1", "is no rule"),
        ("flap a b up=0s down=1s", "is no rule"),
        ("link a1 b1 delay=15", "is no time"),
        ("link a1 b1 delay=2000000s", "is no time"),
        ("link a1 b1 loss=101%", "is no share"),
        ("link a1 b1 loss=0.5", "is no share"),
        ("link a1 b1 loss=0.00001%", "is no share"),
        ("link a1 b1 rate=0kbit", "is no property"),
        ("link a1 b1 weight=3", "is no property"),
    ] {
        let error = text.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn regions_are_as_far_apart_as_said() {
    let mut engine = engine(1);
    engine.apply(Duration::ZERO, &three_regions()).unwrap();
    let delays = [(0, 1, 300), (0, 2, 15_000), (2, 0, 15_000), (2, 3, 40_000), (3, 0, 70_000)];
    for (from, to, us) in delays {
        assert_eq!(engine.link(from, to).delay, Duration::from_micros(us));
        assert_eq!(arrival(&mut engine, ms(5), from, to), Some(ms(5) + Duration::from_micros(us)));
    }
}

#[test]
fn a_cut_has_a_direction_and_an_end() {
    let mut engine = engine(1);
    assert_eq!(engine.apply(ms(0), &rules(&["cut region:A b1"])), Ok(2));
    assert_eq!(arrival(&mut engine, ms(1), 0, 2), None);
    assert_eq!(arrival(&mut engine, ms(1), 2, 0), Some(ms(1)));
    assert_eq!(engine.stats(0, 2).cut, 1);
    assert_eq!(engine.apply(ms(2), &rules(&["mend a1 *"])), Ok(3));
    assert_eq!(arrival(&mut engine, ms(2), 0, 2), Some(ms(2)));
    assert_eq!(arrival(&mut engine, ms(2), 1, 2), None);
    engine.apply(ms(3), &[Rule::Heal]).unwrap();
    assert_eq!(arrival(&mut engine, ms(3), 1, 2), Some(ms(3)));
}

#[test]
fn a_mistake_changes_nothing() {
    let mut engine = engine(1);
    let wrong = engine.apply(ms(0), &rules(&["cut a1 *", "cut a1 region:X"]));
    let nobody = RuleError::NoPair { from: HostSet::Host("a1".into()), to: HostSet::Region("X".into()) };
    assert_eq!(wrong, Err(nobody));
    assert!(arrival(&mut engine, ms(0), 0, 2).is_some());
}

#[test]
fn healing_goes_back_to_what_was_built() {
    let mut engine = engine(1);
    engine.apply(ms(0), &three_regions()).unwrap();
    engine.keep_as_built();
    let built = engine.link(0, 2);
    engine.apply(ms(0), &rules(&["link * * delay=3s loss=100%", "cut * *"])).unwrap();
    assert_eq!(engine.link(0, 2).loss, PacketRatio::ALL);
    engine.apply(ms(0), &[Rule::Heal]).unwrap();
    assert_eq!(engine.link(0, 2), built);
    assert_eq!(arrival(&mut engine, ms(0), 0, 2), Some(ms(15)));
}

#[test]
fn a_flapping_link_is_up_and_down_in_turn() {
    let mut engine = engine(1);
    engine.apply(ms(1000), &rules(&["flap a1 b1 up=300ms down=200ms"])).unwrap();
    for (at, is_up) in [(1000, true), (1299, true), (1300, false), (1499, false), (1500, true), (1800, false)]
    {
        assert_eq!(arrival(&mut engine, ms(at), 0, 2).is_some(), is_up, "at {at} ms");
    }
    engine.apply(ms(1900), &rules(&["mend a1 b1"])).unwrap();
    assert!(arrival(&mut engine, ms(1900), 0, 2).is_some());
}

#[test]
fn order_stays_with_jitter_and_goes_with_reorder() {
    let mut engine = engine(3);
    engine
        .apply(ms(0), &rules(&["link a1 b1 delay=15ms jitter=5ms", "link b1 a1 delay=15ms reorder=50%"]))
        .unwrap();
    let mut last = Duration::ZERO;
    let mut spread = (Duration::MAX, Duration::ZERO);
    for at in 0..2000 {
        let arrives = arrival(&mut engine, ms(at), 0, 2).unwrap();
        assert!(arrives >= last && arrives >= ms(at + 10) && arrives <= ms(at + 20));
        spread = (spread.0.min(arrives - ms(at)), spread.1.max(arrives - ms(at)));
        last = arrives;
    }
    assert!(spread.0 < ms(13) && spread.1 > ms(17), "{spread:?}");
    let arrivals: Vec<_> = (0..100).map(|at| arrival(&mut engine, ms(at), 2, 0).unwrap()).collect();
    assert!(!arrivals.is_sorted());
    assert_eq!(
        engine.stats(2, 0).reordered as usize,
        arrivals.iter().enumerate().filter(|(at, time)| **time < ms(*at as u64 + 15)).count()
    );
}

#[test]
fn a_rate_makes_packets_wait_and_then_drops_them() {
    let mut engine = engine(1);
    // A kilobyte a millisecond, and ten of them may wait.
    engine.apply(ms(0), &rules(&["link a1 b1 rate=8mbit queue=10000"])).unwrap();
    let arrivals: Vec<_> = (0..20).map(|_| arrival(&mut engine, ms(0), 0, 2)).collect();
    for (at, time) in arrivals.iter().enumerate().take(11) {
        assert_eq!(*time, Some(ms(at as u64 + 1)));
    }
    assert!(arrivals[11..].iter().all(Option::is_none));
    assert_eq!(engine.stats(0, 2).overflowed, 9);
    assert_eq!(arrival(&mut engine, ms(5), 0, 2), Some(ms(12)));
}

fn fates(seed: u64, disturbed: bool) -> Vec<[Option<Delivery>; 2]> {
    let mut engine = engine(seed);
    let change = LinkChange {
        delay: Some(ms(15)),
        jitter: Some(ms(2)),
        loss: Some(PacketRatio::percent(5)),
        duplicate: Some(PacketRatio::percent(5)),
        reorder: Some(PacketRatio::percent(5)),
        corrupt: Some(PacketRatio::millionths(50_000)),
        ..LinkChange::default()
    };
    engine.apply(ms(0), &[Rule::Link { from: HostSet::Everyone, to: HostSet::Everyone, change }]).unwrap();
    (0..5000)
        .map(|at| {
            if disturbed {
                engine.decide(ms(at), 2, 0, 700);
            }
            engine.decide(ms(at), 0, 2, 100 + at as usize % 1400)
        })
        .collect()
}

#[test]
fn the_same_seed_decides_the_same() {
    let decided = fates(42, false);
    assert_eq!(decided, fates(42, false));
    assert_eq!(decided, fates(42, true), "what other links carry changes nothing");
    assert_ne!(decided, fates(43, false));
    let count =
        |is_such: fn(&[Option<Delivery>; 2]) -> bool| decided.iter().filter(|fate| is_such(fate)).count();
    let shares = [
        count(|fate| fate[0].is_none()),
        count(|fate| fate[1].is_some()),
        count(|fate| fate[0].is_some_and(|delivery| delivery.turned_bit.is_some())),
    ];
    assert!(shares.iter().all(|share| (180..330).contains(share)), "{shares:?}");
    assert!(decided.iter().enumerate().all(|(at, fate)| {
        let bits = 8 * (100 + at as u64 % 1400);
        fate.iter().flatten().all(|delivery| delivery.turned_bit.is_none_or(|bit| bit < bits))
    }));
}

#[test]
fn every_packet_is_accounted_for() {
    let mut engine = engine(9);
    let all =
        rules(&["link a1 b1 loss=10% duplicate=10% rate=1mbit queue=20000", "flap a1 b1 up=70ms down=30ms"]);
    engine.apply(ms(0), &all).unwrap();
    let copies: usize = (0..2000).map(|at| engine.decide(ms(at), 0, 2, 500).iter().flatten().count()).sum();
    let stats = engine.stats(0, 2);
    assert_eq!(stats.packets, 2000);
    assert_eq!(stats.bytes, 1_000_000);
    assert_eq!(stats.forwarded as usize, copies);
    assert!(stats.cut > 0 && stats.lost > 0 && stats.overflowed > 0 && stats.duplicated > 0, "{stats:?}");
    assert_eq!(stats.packets, stats.forwarded - stats.duplicated + stats.cut + stats.lost + stats.overflowed);
    assert_eq!(Link::default().queue_bytes, 1 << 20);
}
