use std::collections::BTreeSet;

use muster_types::DeviceSet;
use proptest::prelude::*;

fn numbers(set: DeviceSet) -> BTreeSet<u16> {
    set.iter().collect()
}

proptest! {
    #[test]
    fn a_device_set_is_a_set(a: u64, b: u64) {
        let (x, y) = (DeviceSet(a), DeviceSet(b));
        let (p, q) = (numbers(x), numbers(y));
        prop_assert_eq!(usize::from(x.count()), p.len());
        prop_assert_eq!(x.is_empty(), p.is_empty());
        prop_assert_eq!(x.contains(y), q.is_subset(&p));
        prop_assert_eq!(x.is_disjoint(y), p.is_disjoint(&q));
        prop_assert_eq!(numbers(x.union(y)), &p | &q);
        prop_assert_eq!(numbers(x.difference(y)), &p - &q);
        prop_assert_eq!(format!("{x:?}"), format!("{p:?}"));
    }

    #[test]
    fn the_lowest_are_the_lowest(bits: u64, count in 0u16..70) {
        let set = DeviceSet(bits);
        let expected: BTreeSet<u16> = numbers(set).into_iter().take(count.into()).collect();
        match set.lowest(count) {
            Some(lowest) => prop_assert_eq!(numbers(lowest), expected),
            None => prop_assert!(set.count() < count),
        }
    }

    #[test]
    fn the_first_are_the_first(count in 0u16..=64) {
        prop_assert_eq!(numbers(DeviceSet::first(count)), (0..count).collect::<BTreeSet<_>>());
    }
}

#[test]
#[should_panic(expected = "at most 64")]
fn no_host_has_more_than_a_word_of_devices() {
    let _ = DeviceSet::first(65);
}
