use std::collections::BTreeMap;

use muster_journal::{canonical, from_canonical};
use muster_state::usage::{Capacity, Rate, SHARE_ONE, TenantUsage};
use muster_types::{LogTime, Name};
use proptest::prelude::*;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
/// A moment in 2026.
const NOW: u64 = 1_790_000_000_000;

fn h100() -> Name {
    Name::literal("h100")
}

fn devices(kind: &Name, device_milli: u64) -> Rate<'_> {
    Rate { kind: Some(kind), device_milli, ..Rate::default() }
}

/// Decayed use of one type at `t` of uses `(from, until, milli)`, by the definition.
fn defined(uses: &[(u64, u64, u64)], t: u64, half_life_ms: u64) -> f64 {
    let tau = half_life_ms as f64 / std::f64::consts::LN_2;
    let weight = |at: u64| (-((t - at) as f64) / tau).exp();
    let of = |&(from, until, milli): &(u64, u64, u64)| {
        let until = until.min(t);
        if from >= until { 0.0 } else { milli as f64 * tau * (weight(until) - weight(from)) }
    };
    uses.iter().map(of).sum()
}

/// The row that these uses lead to, looked at again at each of `looks`.
fn counted(uses: &[(u64, u64, u64)], looks: &[u64], until: u64, half_life_ms: u64) -> TenantUsage {
    let kind = h100();
    // Ends before beginnings, so that the rate never passes what it should be.
    let mut events: Vec<(u64, u8, u64)> = looks.iter().map(|&at| (at, 2, 0)).collect();
    for &(from, end, milli) in uses {
        events.push((from, 1, milli));
        events.push((end, 0, milli));
    }
    events.sort_unstable();
    let mut row = TenantUsage::new(LogTime(NOW), half_life_ms);
    for (at, what, milli) in events.into_iter().filter(|event| event.0 <= until) {
        match what {
            0 => row.stop(LogTime(at), devices(&kind, milli)),
            1 => row.start(LogTime(at), devices(&kind, milli)),
            _ => row.advance(LogTime(at), half_life_ms),
        }
    }
    row.advance(LogTime(until), half_life_ms);
    row
}

fn uses() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let one = (0u64..30 * DAY_MS, 1u64..10 * DAY_MS, 1u64..100_000_000)
        .prop_map(|(from, length, milli)| (NOW + from, NOW + from + length, milli));
    prop::collection::vec(one, 0..8)
}

fn half_life() -> impl Strategy<Value = u64> {
    prop_oneof![MINUTE_MS..3 * MINUTE_MS, MINUTE_MS..DAY_MS, Just(7 * DAY_MS), DAY_MS..366 * DAY_MS]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn looking_changes_nothing(
        uses in uses(),
        looks in prop::collection::vec(NOW..NOW + 60 * DAY_MS, 0..20),
        half_life_ms in half_life(),
    ) {
        let until = NOW + 60 * DAY_MS;
        prop_assert_eq!(
            counted(&uses, &looks, until, half_life_ms),
            counted(&uses, &[], until, half_life_ms)
        );
    }

    #[test]
    fn decayed_use_is_the_integral(uses in uses(), after in 0..50 * DAY_MS, half_life_ms in half_life()) {
        let until = NOW + after;
        let row = counted(&uses, &[], until, half_life_ms);
        let exact = defined(&uses, until, half_life_ms);
        let found = row.decayed_milli_ms(&h100(), LogTime(until)) as f64;
        // What the text of the module promises, and a unit for what is rounded away.
        prop_assert!((found - exact).abs() <= exact * 3e-5 + 1.0, "{} is not {}", found, exact);
        // The same from a row that was last changed long before.
        let (past, ahead) = (NOW + after / 2, LogTime(until));
        let early: Vec<_> = uses.iter().copied().filter(|use_| use_.1 <= past).collect();
        let row = counted(&early, &[], past, half_life_ms);
        let found = row.decayed_milli_ms(&h100(), ahead) as f64;
        let exact = defined(&early, until, half_life_ms);
        prop_assert!((found - exact).abs() <= exact * 3e-5 + 1.0, "{} is not {}", found, exact);
    }

    #[test]
    fn what_ended_only_falls_and_what_runs_alone_only_grows(
        milli in 1u64..1_000_000_000,
        steps in prop::collection::vec(0u64..40_000_000, 1..60),
        half_life_ms in half_life(),
    ) {
        let kind = h100();
        let mut row = TenantUsage::new(LogTime(NOW), half_life_ms);
        row.start(LogTime(NOW), devices(&kind, milli));
        let mut now = NOW;
        let mut last = 0;
        for step in &steps {
            now += step;
            row.advance(LogTime(now), half_life_ms);
            let use_ = row.decayed_milli_ms(&kind, LogTime(now));
            // Close to saturation the lines between the steps of the table, 1.5e-5 too high, can show.
            prop_assert!(use_ + use_ / 40_000 >= last, "{} after {}", use_, last);
            last = use_;
        }
        row.stop(LogTime(now), devices(&kind, milli));
        let mut last = row.decayed_milli_ms(&kind, LogTime(now));
        for step in &steps {
            now += step;
            let use_ = row.decayed_milli_ms(&kind, LogTime(now));
            prop_assert!(use_ <= last, "{} after {}", use_, last);
            last = use_;
        }
    }

    #[test]
    fn another_half_life_keeps_what_is_counted(
        uses in uses(),
        after in 0..60 * DAY_MS,
        before_ms in half_life(),
        then_ms in half_life(),
    ) {
        let now = LogTime(NOW + after);
        let mut row = counted(&uses, &[], now.0, before_ms);
        let before = row.decayed_milli_ms(&h100(), now) as f64;
        row.advance(now, then_ms);
        let then = row.decayed_milli_ms(&h100(), now) as f64;
        prop_assert!((before - then).abs() <= before * 5e-5 + 1.0, "{} became {}", before, then);
        let mut direct = row.clone();
        row.advance(now.plus_ms(after / 3), then_ms);
        row.advance(now.plus_ms(after), then_ms);
        direct.advance(now.plus_ms(after), then_ms);
        prop_assert_eq!(row, direct);
    }

    #[test]
    fn the_share_is_what_the_formula_says(
        uses in uses(),
        after in 0..50 * DAY_MS,
        half_life_ms in half_life(),
        capacity in 1_000u64..1_000_000_000,
        weight_milli in 1u32..1_000_000,
    ) {
        let until = NOW + after;
        let row = counted(&uses, &[], until, half_life_ms);
        let decayed = defined(&uses, until, half_life_ms);
        let running = row.running_milli(&h100()) as f64;
        let part = (decayed * std::f64::consts::LN_2 / half_life_ms as f64 + running) / (2.0 * capacity as f64);
        let exact = part * SHARE_ONE as f64 * 1_000.0 / f64::from(weight_milli);
        let there_is = Capacity { device_milli: [(h100(), capacity)].into(), ..Capacity::default() };
        let found = row.share(LogTime(until), &there_is, weight_milli) as f64;
        let rounding = 2.0 * 1_000.0 / f64::from(weight_milli) + 2.0;
        prop_assert!((found - exact).abs() <= exact * 3.1e-5 + rounding, "{} is not {}", found, exact);
    }

    #[test]
    fn a_row_survives_its_bytes(uses in uses(), after in 0..50 * DAY_MS, half_life_ms in half_life()) {
        let row = counted(&uses, &[], NOW + after, half_life_ms);
        prop_assert_eq!(from_canonical::<TenantUsage>(&canonical(&row)), Some(row));
    }
}

#[test]
fn use_halves_with_each_half_life_to_1e_4_at_every_point_between() {
    let kind = h100();
    for half_life_ms in [MINUTE_MS, MINUTE_MS + 1, DAY_MS, 7 * DAY_MS, 366 * DAY_MS] {
        let mut row = TenantUsage::new(LogTime(NOW), half_life_ms);
        row.start(LogTime(NOW), devices(&kind, 1_000_000_000));
        let start = LogTime(NOW + half_life_ms);
        row.stop(start, devices(&kind, 1_000_000_000));
        let first = row.decayed_milli_ms(&kind, start) as f64;
        for part in 0..=1_000 {
            let ms = half_life_ms * part / 100;
            let exact = first * (-(ms as f64) / half_life_ms as f64).exp2();
            let found = row.decayed_milli_ms(&kind, start.plus_ms(ms)) as f64;
            assert!((found / exact - 1.0).abs() < 1e-4, "{half_life_ms} {ms}: {found} is not {exact}");
        }
    }
}

#[test]
fn who_has_held_everything_for_ever_has_one() {
    let (kind, half_life_ms) = (h100(), DAY_MS);
    let everything =
        Rate { kind: Some(&kind), device_milli: 8_000, cpu_milli: 96_000, memory_bytes: 1 << 40 };
    let half = Rate { device_milli: 4_000, cpu_milli: 12_000, memory_bytes: 1 << 37, ..everything };
    let capacity =
        Capacity { device_milli: [(h100(), 8_000)].into(), cpu_milli: 96_000, memory_bytes: 1 << 40 };
    let mut all = TenantUsage::new(LogTime(0), half_life_ms);
    all.start(LogTime(0), everything);
    let mut some = TenantUsage::new(LogTime(0), half_life_ms);
    some.start(LogTime(0), half);
    let now = LogTime(NOW);
    let near = |found: u64, expected: u64| found.abs_diff(expected) < expected / 50_000;
    // At once, half of it is already foreseen.
    assert_eq!(all.share(LogTime(0), &capacity, 1_000), SHARE_ONE / 2);
    assert!(near(all.share(now, &capacity, 1_000), SHARE_ONE));
    // The dominant resource counts: devices here, memory where that is scarce.
    assert!(near(some.share(now, &capacity, 1_000), SHARE_ONE / 2));
    let scarce = Capacity { memory_bytes: 1 << 37, ..capacity.clone() };
    assert!(near(some.share(now, &scarce, 1_000), SHARE_ONE));
    // Twice the weight, half the share; what the fleet does not have cannot be compared.
    assert!(near(all.share(now, &capacity, 2_000), SHARE_ONE / 2));
    assert_eq!(all.share(now, &capacity, 0), all.share(now, &capacity, 1_000), "no weight divides nothing");
    assert_eq!(all.share(now, &Capacity::default(), 1_000), 0);
}

#[test]
fn a_spent_row_is_as_good_as_none() {
    let kind = h100();
    let rate = Rate { kind: Some(&kind), device_milli: 1_000, cpu_milli: 1, memory_bytes: 1 };
    let mut row = TenantUsage::new(LogTime(NOW), MINUTE_MS);
    assert!(row.is_spent());
    row.start(LogTime(NOW), rate);
    row.stop(LogTime(NOW), rate);
    assert!(row.is_spent(), "nothing was used in no time");
    row.start(LogTime(NOW), rate);
    assert!(!row.is_spent());
    row.stop(LogTime(NOW + 1), rate);
    assert!(!row.is_spent());
    row.advance(LogTime(NOW + DAY_MS), MINUTE_MS);
    assert!(row.is_spent());
    assert_eq!((row.running_milli(&kind), row.as_of()), (0, LogTime(NOW + DAY_MS)));
    // Time does not go back.
    row.advance(LogTime(NOW), MINUTE_MS);
    assert_eq!(row.as_of(), LogTime(NOW + DAY_MS));
}

#[test]
fn stopping_all_is_stopping_each() {
    let (kind, other) = (h100(), Name::literal("v5p"));
    let rates = [
        Rate { kind: Some(&kind), device_milli: 1_500, cpu_milli: 7, memory_bytes: 1 },
        Rate { kind: Some(&other), device_milli: 2_000, cpu_milli: 5, memory_bytes: 3 << 20 },
        Rate { kind: Some(&kind), device_milli: 500, cpu_milli: 1, memory_bytes: 1 },
    ];
    let mut each = TenantUsage::new(LogTime(NOW), DAY_MS);
    for (after, rate) in rates.into_iter().enumerate() {
        each.start(LogTime(NOW + after as u64), rate);
    }
    let mut all = each.clone();
    let end = LogTime(NOW + 3 * DAY_MS);
    all.stop_all(end);
    for rate in rates {
        each.stop(end, rate);
    }
    assert_eq!(all, each);
    assert_eq!(all.running_milli(&kind), 0);
    assert!(all.decayed_milli_ms(&kind, end) > 0 && !all.is_spent());
}

#[test]
fn bytes_that_no_use_leads_to_are_refused() {
    let kind = h100();
    let mut row = TenantUsage::new(LogTime(NOW), MINUTE_MS);
    row.start(LogTime(NOW), devices(&kind, 1_000));
    row.advance(LogTime(NOW + 1), MINUTE_MS);
    let bytes = canonical(&row);
    // A row is its time, its half-life, its meters by type, and two more of a large and a small number.
    type Meters = (u128, u64);
    type Parts = (u64, u64, BTreeMap<Name, Meters>, Meters, Meters);
    let parts: Parts = from_canonical(&bytes).unwrap();
    assert_eq!((parts.0, parts.1), (NOW + 1, MINUTE_MS));
    let read = |change: fn(&mut Parts)| {
        let mut changed = parts.clone();
        change(&mut changed);
        from_canonical::<TenantUsage>(&canonical(&changed))
    };
    assert_eq!(read(|_| ()), Some(row));
    assert_eq!(read(|parts| parts.1 = 0), None);
    assert_eq!(read(|parts| parts.1 = u64::MAX), None);
    assert_eq!(read(|parts| parts.3.0 = 1 << 116), None);
    let mut most = read(|parts| parts.3 = ((1 << 116) - 1, u64::MAX)).unwrap();
    most.advance(LogTime(u64::MAX), u64::MAX);
}

#[test]
fn no_number_is_too_large() {
    let kind = h100();
    let most =
        Rate { kind: Some(&kind), device_milli: u64::MAX, cpu_milli: u64::MAX, memory_bytes: u64::MAX };
    for half_life_ms in [0, u64::MAX] {
        let mut row = TenantUsage::new(LogTime(0), half_life_ms);
        row.start(LogTime(0), most);
        row.start(LogTime(0), most);
        assert_eq!(row.running_milli(&kind), u64::MAX);
        let one = Capacity { device_milli: BTreeMap::from([(h100(), 1)]), cpu_milli: 1, memory_bytes: 1 };
        for at in [1, NOW, u64::MAX] {
            row.advance(LogTime(at), half_life_ms);
            assert!(row.decayed_milli_ms(&kind, LogTime(u64::MAX)) > 0);
            assert_eq!(row.share(LogTime(at), &one, 1), u64::MAX);
        }
        row.advance(LogTime(u64::MAX), MINUTE_MS);
        row.stop(LogTime(u64::MAX), most);
        assert_eq!(row.running_milli(&kind), 0);
    }
}
