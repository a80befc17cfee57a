use std::collections::{BTreeMap, BTreeSet};

use muster_types::{Accelerators, DeviceSet, Name, NodeDraft, NodeSpec};
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

fn host_in(rack: &str) -> NodeSpec {
    let name = |text: &str| Name::new(text).unwrap();
    let draft = NodeDraft {
        name: name("n1"),
        region: name("eu"),
        cluster: name("c1"),
        block: name("b1"),
        rack: name(rack),
        address: "n1".into(),
        accelerators: Some(Accelerators { kind: name("h100"), count: 8 }),
        cpu_milli: 64_000,
        memory_bytes: 1 << 40,
        scratch_bytes: 0,
        labels: BTreeMap::new(),
        taints: BTreeSet::new(),
        pod: None,
    };
    draft.check().unwrap()
}

#[test]
fn hosts_share_the_names_that_are_equal() {
    let (known, mut other) = (host_in("r1"), host_in("r2"));
    let place = |name: &Name| name.as_str().as_ptr();
    assert_ne!(place(&other.region), place(&known.region));
    let names = [&known.region, &known.cluster, &known.block, &known.rack];
    other.share_names(|name| names.iter().find(|known| **known == name).copied().cloned());
    assert_eq!(other, host_in("r2"));
    assert_eq!((place(&other.region), place(&other.block)), (place(&known.region), place(&known.block)));
    // One that is not equal is not taken.
    other.share_names(|_| Some(known.rack.clone()));
    assert_eq!(other, host_in("r2"));
}
