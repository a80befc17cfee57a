//! Members by their indices.

use muster_types::ArraySpec;
use muster_types::array::indices;

use super::{neither, ordinals};

fn found(array: &str, wanted: &str) -> Result<Vec<u32>, String> {
    ordinals(&ArraySpec::parse(array).unwrap_or_else(|error| panic!("{error}")), &indices(wanted)?)
}

#[test]
fn members_are_counted_in_the_order_of_their_indices() {
    assert_eq!(found("10", "7"), Ok(vec![7]));
    assert_eq!(found("7-7", "7"), Ok(vec![0]));
    assert_eq!(found("0-99:5,200,300-310", "10,200,309-310"), Ok(vec![2, 20, 30, 31]));
    assert_eq!(found("0-99:5,200", "0-20,200"), Ok(vec![0, 1, 2, 3, 4, 20]));
    assert_eq!(found("10", "1-3,2-4:2"), Ok(vec![1, 2, 3, 4]), "each once");
}

#[test]
fn an_index_that_no_member_has_is_named() {
    assert_eq!(found("0-99:5", "5,7"), Err("the array has no member with the index 7".to_owned()));
    assert!(found("10", "8-9,20-30").is_err_and(|error| error.ends_with("20-30")));
    for wrong in ["", "x", "3-1", "1-5:0", "7%2"] {
        assert!(found("10", wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_can_be_no_name_leads_to_ids_and_brackets() {
    for wrong in ["", "array-zz[1-", "array-3f0_[1-5]", "\u{1f600}"] {
        let failure = neither(wrong);
        assert_eq!(
            failure.headline(),
            format!("{wrong:?} is neither an id, like job-3f0 or array-3f0, nor a name")
        );
        assert!(failure.next().is_some_and(|next| next.ends_with("'array-3f0[1-5,7]'")), "{wrong}");
    }
}
