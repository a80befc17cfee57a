//! Names of traces as names of Muster.

use std::collections::{BTreeSet, HashMap};

use muster_types::Name;
use muster_types::limits::NAME_BYTES_MAX;

/// Gives each text one name and no two texts the same: traces write in capitals and with signs that names
/// do not have. What a text becomes depends on the texts before it only where two would become the same.
#[derive(Debug, Default)]
pub(crate) struct Names {
    of: HashMap<String, Name>,
    taken: HashMap<Name, u32>,
    known: BTreeSet<Name>,
}

impl Names {
    /// The same, but a text that reads like one of these names means it: `A100` is a policy's `a100`.
    pub(crate) fn with_known(known: BTreeSet<Name>) -> Names {
        Names { known, ..Names::default() }
    }

    /// The name of a text; an empty text is `unknown`.
    pub(crate) fn of(&mut self, text: &str) -> Name {
        if let Some(name) = self.of.get(text) {
            return name.clone();
        }
        let first = plain(text, NAME_BYTES_MAX);
        if self.known.contains(&first) && !text.is_empty() {
            self.of.insert(text.to_owned(), first.clone());
            return first;
        }
        let mut name = first.clone();
        while let Some(uses) = self.taken.get_mut(&name) {
            *uses += 1;
            let ending = format!("-{uses}");
            let begin = plain(text, NAME_BYTES_MAX - ending.len());
            name = Name::new(&format!("{begin}{ending}")).expect("a name with digits behind it is a name");
        }
        self.taken.insert(name.clone(), 1);
        self.of.insert(text.to_owned(), name.clone());
        name
    }
}

/// The nearest name to a text, which others may have as well.
fn plain(text: &str, bytes_max: usize) -> Name {
    let inner = |c: char| match c.to_ascii_lowercase() {
        lower @ ('a'..='z' | '0'..='9' | '-' | '_' | '.') => lower,
        _ => '-',
    };
    let mut form: String = text.chars().map(inner).take(bytes_max).collect();
    while form.ends_with(['-', '_', '.']) {
        form.pop();
    }
    let form = form.trim_start_matches(['-', '_', '.']);
    Name::new(form).unwrap_or_else(|| Name::literal("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_like_a_known_name_means_it() {
        let mut names = Names::with_known(BTreeSet::from([Name::literal("a100"), Name::literal("vision")]));
        let cases =
            [("A100", "a100"), ("a100", "a100"), ("Vision", "vision"), ("H100", "h100"), ("h100", "h100-2")];
        for (text, expected) in cases {
            assert_eq!(names.of(text).as_str(), expected, "{text}");
        }
    }

    #[test]
    fn every_text_has_a_name_of_its_own() {
        let mut names = Names::default();
        let long = "x".repeat(80);
        let cases = [
            ("A100", "a100".to_owned()),
            ("a100", "a100-2".to_owned()),
            ("A100", "a100".to_owned()),
            ("", "unknown".to_owned()),
            ("__", "unknown-2".to_owned()),
            ("team A/b ", "team-a-b".to_owned()),
            (&long, "x".repeat(63)),
            (&format!("{long}y"), format!("{}-2", "x".repeat(61))),
        ];
        for (text, expected) in cases {
            assert_eq!(names.of(text).as_str(), expected, "{text}");
        }
    }
}
