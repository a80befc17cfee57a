//! Bits of what jobs carry: jobs that cannot carry what is looked for are passed over by them, without a look at their texts.

use crate::metadata::JobMetadata;
use crate::token::user_of;
use crate::trace::mix;

/// A few bits of labels and a creator. What carries a label has all bits of that label. What has all of them may carry other labels
/// instead, so that it is still to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataBits(u64);

impl MetadataBits {
    /// Those of everything that jobs with this metadata are selected by.
    #[must_use]
    pub fn carried_by(metadata: &JobMetadata) -> MetadataBits {
        let creator = metadata.creator();
        let by = MetadataBits::of_creator(creator).and(MetadataBits::of_creator(user_of(creator)));
        metadata.labels.iter().fold(by, |bits, (key, value)| {
            bits.and(MetadataBits::of_key(key)).and(MetadataBits::of_label(key, value))
        })
    }

    /// Those of a label with this key, whatever its value.
    #[must_use]
    pub fn of_key(key: &str) -> MetadataBits {
        MetadataBits(bit(mixed(1, key, "")))
    }

    /// Those of a label with this value.
    #[must_use]
    pub fn of_label(key: &str, value: &str) -> MetadataBits {
        two_bits(mixed(2, key, value))
    }

    /// Those of who submitted a job, and of the user that it submitted the job for.
    #[must_use]
    pub fn of_creator(creator: &str) -> MetadataBits {
        two_bits(mixed(3, creator, ""))
    }

    /// The bits of both: what has all of them has the bits of each.
    #[must_use]
    pub fn and(self, others: MetadataBits) -> MetadataBits {
        MetadataBits(self.0 | others.0)
    }

    /// Whether all of these are among them.
    #[must_use]
    pub fn has_all(self, needed: MetadataBits) -> bool {
        self.0 & needed.0 == needed.0
    }
}

fn two_bits(hash: u64) -> MetadataBits {
    MetadataBits(bit(hash) | bit(hash >> 6))
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

/// FNV-1a of two texts of a kind, with its bits spread: texts that differ in one character have other bits.
fn mixed(kind: u64, first: &str, second: &str) -> u64 {
    // No text has this byte: one that ends earlier is not taken for another.
    let end = [0xff];
    let bytes = first.bytes().chain(end).chain(second.bytes());
    mix(bytes.fold(0xcbf2_9ce4_8422_2325 ^ kind, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::LabelSelector;
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::String;

    fn metadata(labels: &[(&str, String)], creator: &str) -> JobMetadata {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        JobMetadata { labels, creator: creator.to_owned(), ..JobMetadata::default() }
    }

    #[test]
    fn what_matches_has_the_bits_and_most_of_what_does_not_lacks_some() {
        let selectors =
            ["team=t7", "team", "run in (r3)", "run in (r3,r9),team", "team=t7,!debug", "stage!=x", ""];
        for text in selectors {
            let selector = LabelSelector::parse(text).unwrap();
            let mut others = 0;
            for n in 0..1_000 {
                let labels = [("team", format!("t{}", n % 10)), ("run", format!("r{n}"))];
                let carried = metadata(&labels, "tenant/vision/ada");
                let may = MetadataBits::carried_by(&carried).has_all(selector.needed_bits());
                let matches = selector.matches(&carried.labels);
                assert!(may || !matches, "{text} {n}");
                others += u32::from(may && !matches);
            }
            // A selector for one value reads a small part of what it does not select.
            assert!(others < 250 || !["team=t7", "run in (r3)"].contains(&text), "{text}: {others}");
        }
    }

    #[test]
    fn a_creator_is_known_by_its_name_and_by_the_user_that_it_speaks_for() {
        let token = "tenant/vision/ada+token/1";
        let carried = MetadataBits::carried_by(&metadata(&[], token));
        assert!(carried.has_all(MetadataBits::of_creator(token)));
        assert!(carried.has_all(MetadataBits::of_creator("tenant/vision/ada")));
        let nobody = MetadataBits::carried_by(&metadata(&[], ""));
        assert!(nobody.has_all(MetadataBits::of_creator(crate::metadata::ANONYMOUS)));
        assert!(!MetadataBits::default().has_all(MetadataBits::of_key("team")));
    }
}
