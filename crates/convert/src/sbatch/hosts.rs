//! Lists of hosts as Slurm writes them: `h1,rack[1-3,07]-n[0-1]`.

use muster_types::Name;
use muster_types::limits::NODES_NAMED_MAX;

use crate::finding::shown;

/// The names of a list, each once and in its order, or the sentence of what is wrong.
pub fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for part in parts(text) {
        for name in of_part(part)? {
            if Name::new(&name).is_none() {
                let name = shown(&name);
                return Err(format!(
                    "nodes have names of lower-case letters, digits, '-', '_' and '.', and not {name:?}"
                ));
            }
            if !names.contains(&name) {
                names.push(name);
            }
            if names.len() > NODES_NAMED_MAX {
                return Err(too_many());
            }
        }
    }
    if names.is_empty() { Err("must name a node".to_owned()) } else { Ok(names) }
}

fn too_many() -> String {
    format!("a job names at most {NODES_NAMED_MAX} nodes; give them a label, and select them by it")
}

/// Parts between commas, but for those in brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i64;
    text.split(move |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

/// The names of one part: every combination of what its brackets list.
fn of_part(part: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("must be names of nodes like h1,rack[1-3,07], got {:?}", shown(part));
    let mut names = vec![String::new()];
    let mut rest = part;
    while let Some((before, behind)) = rest.split_once('[') {
        let (listed, after) = behind.split_once(']').ok_or_else(wrong)?;
        let numbers = numbers(listed).ok_or_else(wrong)?;
        if names.len().saturating_mul(numbers.len()) > NODES_NAMED_MAX {
            return Err(too_many());
        }
        let with = |name: &String| -> Vec<String> {
            numbers.iter().map(|number| format!("{name}{before}{number}")).collect()
        };
        names = names.iter().flat_map(with).collect();
        rest = after;
    }
    if rest.contains(']') {
        return Err(wrong());
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// `1-3,07`: numbers with the zeros that they have. One more than may be named is enough to refuse them.
fn numbers(text: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let width = first.len();
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        let left = (NODES_NAMED_MAX + 1).saturating_sub(numbers.len());
        numbers.extend((first..=last).take(left).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded() {
        for (text, names) in [
            ("h1", "h1"),
            ("h1,h2, h1", "h1 h2"),
            ("h[1-3]", "h1 h2 h3"),
            ("h[08-10,1],login", "h08 h09 h10 h1 login"),
            ("r[1-2]-n[0-1]", "r1-n0 r1-n1 r2-n0 r2-n1"),
            ("h[1-2].example", "h1.example h2.example"),
        ] {
            assert_eq!(expand(text).map(|names| names.join(" ")), Ok(names.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            ",",
            "h[1",
            "h1]",
            "h[]",
            "h[a]",
            "h[3-1]",
            "h[1-]",
            "H1",
            "./nodes",
            "h[1-2000]",
            "h[0-99][0-99]",
        ] {
            assert!(expand(text).is_err(), "{text}");
        }
        assert!(expand(&format!("h[1-{}]", "9".repeat(40))).is_err());
        assert!(expand("h[0-999999999999999999]").is_err());
    }
}
