//! The persistent map and set against the standard ones, with clones that must not change.

use std::collections::BTreeMap;
use std::ops::Bound;

use muster_state::{Map, Set};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Change {
    Insert(u16, u32),
    Append(u32),
    Remove(u16),
    RemoveRange(u16, u16),
    Double(u16),
    Clone,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (any::<u16>(), any::<u32>()).prop_map(|(key, value)| Change::Insert(key % 2_000, value)),
        6 => any::<u32>().prop_map(Change::Append),
        4 => any::<u16>().prop_map(|key| Change::Remove(key % 2_000)),
        1 => (any::<u16>(), 0..200u16).prop_map(|(from, count)| Change::RemoveRange(from % 2_000, count)),
        2 => any::<u16>().prop_map(|key| Change::Double(key % 2_000)),
        1 => Just(Change::Clone),
    ]
}

fn same(map: &Map<u16, u32>, model: &BTreeMap<u16, u32>) {
    for key in (0..2_100).step_by(13).chain([u16::MAX]) {
        assert_eq!(map.first_from(&key, false), model.range(key..).next());
        let above = (Bound::Excluded(key), Bound::Unbounded);
        assert_eq!(map.first_from(&key, true), model.range(above).next());
    }
    assert_eq!(map.size(), model.len());
    assert_eq!(map.is_empty(), model.is_empty());
    assert!(map.iter().eq(model.iter()));
    assert!(map.iter().rev().eq(model.iter().rev()));
    assert_eq!((map.first(), map.last()), (model.first_key_value(), model.last_key_value()));
}

/// What one end has finished the other does not begin again, also where the end lies between two leaves.
#[test]
fn a_range_that_is_over_stays_over() {
    let mut set = Set::default();
    for member in 0..=255u8 {
        set.insert(member);
    }
    for end in 0..=255u8 {
        let mut range = set.range(..=end);
        assert!(range.by_ref().count() == usize::from(end) + 1 && range.next_back().is_none(), "{end}");
        let mut range = set.range(end..);
        assert!(range.by_ref().rev().count() == 256 - usize::from(end) && range.next().is_none(), "{end}");
    }
}

proptest! {
    #[test]
    fn it_is_the_standard_map(changes in prop::collection::vec(change(), 0..1_500)) {
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        let mut kept: Vec<(Map<u16, u32>, BTreeMap<u16, u32>)> = Vec::new();
        for change in changes {
            match change {
                Change::Insert(key, value) => {
                    map.insert(key, value);
                    model.insert(key, value);
                }
                Change::Append(value) => {
                    let key = model.last_key_value().map_or(0, |(key, _)| key + 1);
                    map.insert(key, value);
                    model.insert(key, value);
                }
                Change::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key).is_some()),
                Change::RemoveRange(from, count) => {
                    for key in from..from.saturating_add(count) {
                        assert_eq!(map.remove(&key), model.remove(&key).is_some());
                    }
                }
                Change::Double(key) => match (map.get_mut(&key), model.get_mut(&key)) {
                    (Some(ours), Some(theirs)) => {
                        *ours = ours.wrapping_mul(2);
                        *theirs = theirs.wrapping_mul(2);
                    }
                    (ours, theirs) => assert!(ours.is_none() && theirs.is_none()),
                },
                Change::Clone => kept.push((map.clone(), model.clone())),
            }
        }
        same(&map, &model);
        for (map, model) in &kept {
            same(map, model);
        }
        // The arrangement in nodes is not part of it.
        let mut again = Map::default();
        for (key, value) in model.iter().rev() {
            again.insert(*key, *value);
        }
        prop_assert_eq!(&again, &map);
        for key in model.keys() {
            prop_assert!(again.remove(key));
        }
        prop_assert!(again.is_empty() && again.first().is_none());
    }

    #[test]
    fn ranges_are_walked_from_both_ends(
        members: std::collections::BTreeSet<u8>,
        from in bound(),
        until in bound(),
        turns in prop::collection::vec(any::<bool>(), 0..300),
    ) {
        let mut set = Set::default();
        for member in &members {
            set.insert(*member);
        }
        let within = |member: &u8| {
            (match from { Bound::Included(b) => *member >= b, Bound::Excluded(b) => *member > b, Bound::Unbounded => true })
                && match until { Bound::Included(b) => *member <= b, Bound::Excluded(b) => *member < b, Bound::Unbounded => true }
        };
        let expected: Vec<u8> = members.iter().copied().filter(within).collect();
        let mut left = expected.iter();
        let mut range = set.range((from, until));
        for turn in turns {
            if turn {
                prop_assert_eq!(range.next(), left.next());
            } else {
                prop_assert_eq!(range.next_back(), left.next_back());
            }
        }
        for member in left {
            prop_assert_eq!(range.next(), Some(member));
        }
        prop_assert_eq!((range.next(), range.next_back()), (None, None));
        prop_assert!((0..=255u8).all(|n| set.contains(&n) == members.contains(&n)));
    }
}

fn bound() -> impl Strategy<Value = Bound<u8>> {
    prop_oneof![
        any::<u8>().prop_map(Bound::Included),
        any::<u8>().prop_map(Bound::Excluded),
        Just(Bound::Unbounded)
    ]
}
