//! Which members an array has.

use muster_types::array::ranges_of;
use muster_types::{ArraySpec, IndexRange};
use proptest::prelude::*;

fn indices(array: &ArraySpec) -> Vec<u32> {
    (0..array.size()).map(|ordinal| array.index_of(ordinal).expect("a member has an index")).collect()
}

#[test]
fn texts_are_read_and_shown() {
    for (text, shown, size) in [
        ("20", "20", 20),
        ("0-19", "20", 20),
        ("0-99%10", "100%10", 100),
        ("0-99:5,200,300-310", "0-95:5,200,300-310", 32),
        ("200,0-9", "0-9,200", 11),
        ("7-7", "7-7", 1),
        ("8-10:3,20", "8,20", 2),
        ("0-2:9", "1", 1),
        ("0-0", "1", 1),
        ("1,3%2", "1,3%2", 2),
        (" 5 %2", "5%2", 5),
    ] {
        let array = ArraySpec::parse(text).unwrap();
        assert!(array.violations().is_empty(), "{text}: {:?}", array.violations());
        assert_eq!((array.to_string().as_str(), array.size()), (shown, size), "{text}");
        assert_eq!(ArraySpec::parse(shown).unwrap(), array);
    }
    for text in [
        "",
        "-",
        "1-",
        "a",
        "1,,2",
        "5-1",
        "1-5:0",
        "1-5:",
        "%3",
        "5%",
        "5%x",
        "0x10",
        "99999999999",
        "1-2-3",
    ] {
        assert!(ArraySpec::parse(text).is_err(), "{text}");
    }
    for text in ["0", "100001", "1,1", "0-10,5", "0-4000001", "5%0", "5%100001", "0-9:2,1-9:2"] {
        assert!(!ArraySpec::parse(text).unwrap().violations().is_empty(), "{text}");
    }
}

#[test]
fn a_throttle_is_not_taken_for_the_number_of_members() {
    let found = ArraySpec::parse("1-5%0").unwrap().violations();
    assert_eq!((found.len(), found[0].field.as_str()), (1, "array.throttle"));
    assert!(found[0].description.starts_with("the number of members that may be unfinished"), "{found:?}");
}

#[test]
fn the_span_of_an_array_has_the_longest_step_that_meets_all_indices() {
    for (text, first, last, step) in [
        ("100", 0, 99, 1),
        ("7-7", 7, 7, 1),
        ("10-30:10", 10, 30, 10),
        ("0-8:4,10", 0, 10, 2),
        ("1,4,9", 1, 9, 1),
        ("3,9", 3, 9, 6),
    ] {
        let span = ArraySpec::parse(text).unwrap().span();
        assert_eq!(span, Some(IndexRange { first, last, step }), "{text}");
    }
    assert_eq!(ArraySpec::of_size(0).span(), None);
}

proptest! {
    #[test]
    fn a_span_meets_every_index_and_no_longer_step_does(numbers in prop::collection::btree_set(0u32..500, 2..20)) {
        let array = ArraySpec { ranges: ranges_of(numbers.iter().copied()), throttle: None };
        let span = array.span().unwrap();
        prop_assert_eq!((Some(&span.first), Some(&span.last)), (numbers.first(), numbers.last()));
        let meets = |step: u32| numbers.iter().all(|number| (number - span.first).is_multiple_of(step));
        prop_assert_eq!((1..=500).rev().find(|step| meets(*step)), Some(span.step));
    }

    #[test]
    fn ordinals_and_indices_are_each_others_inverse(numbers in prop::collection::btree_set(0u32..500, 1..60)) {
        let ranges = ranges_of(numbers.iter().copied());
        let array = ArraySpec { ranges, throttle: None };
        prop_assert_eq!(array.violations(), vec![]);
        prop_assert_eq!(indices(&array), numbers.iter().copied().collect::<Vec<_>>());
        for index in 0..500 {
            let ordinal = array.ordinal_of(index);
            prop_assert_eq!(ordinal.is_some(), numbers.contains(&index));
            prop_assert_eq!(ordinal.and_then(|ordinal| array.index_of(ordinal)), ordinal.map(|_| index));
        }
        prop_assert_eq!(array.index_of(array.size()), None);
        prop_assert_eq!(ArraySpec::parse(&format!("{},{}", array.indices_text(), 600)).unwrap().size(), array.size() + 1);
    }

    #[test]
    fn indices_are_the_same_however_they_are_written(
        numbers in prop::collection::btree_set(0u32..60, 1..40),
        other in prop::collection::btree_set(0u32..60, 1..40),
        cut in 0usize..40,
    ) {
        let of = |ranges| ArraySpec { ranges, throttle: None };
        let array = of(ranges_of(numbers.iter().copied()));
        let single = |number: &u32| IndexRange { first: *number, last: *number, step: 1 };
        prop_assert!(array.has_indices_of(&of(numbers.iter().map(single).collect())));
        let mut parts = ranges_of(numbers.iter().copied().take(cut));
        parts.extend(ranges_of(numbers.iter().copied().skip(cut)));
        prop_assert!(of(parts).has_indices_of(&array));
        let others = of(ranges_of(other.iter().copied()));
        prop_assert_eq!(array.has_indices_of(&others), numbers == other);
    }

    #[test]
    fn no_list_of_ranges_causes_a_panic(list in prop::collection::vec(any::<(u32, u32, u32)>(), 0..5), n: u32) {
        let ranges = list.into_iter().map(|(first, last, step)| IndexRange { first, last, step }).collect();
        let array = ArraySpec { ranges, throttle: Some(n) };
        let _ = (array.violations(), array.size(), array.to_string(), array.is_counted(), array.has_indices_of(&ArraySpec::of_size(n)));
    }

    #[test]
    fn no_text_causes_a_panic(text in "[0-9,:%-]{0,20}") {
        let _ = ArraySpec::parse(&text).map(|array| array.violations());
    }
}
