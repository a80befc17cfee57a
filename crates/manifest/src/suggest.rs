//! "Did you mean …": the known name that is nearest to an unknown one.

/// What people bring from other systems, where no spelling distance leads.
const SYNONYMS: [(&str, &str); 21] = [
    ("gpus", "accelerators"),
    ("gpu", "accelerators"),
    ("tpus", "accelerators"),
    ("devices", "accelerators"),
    ("replicas", "workers"),
    ("nodes", "workers"),
    ("timeLimit", "runTimeLimit"),
    ("time", "runTimeLimit"),
    ("args", "command"),
    ("priority", "tier"),
    ("dependencies", "after"),
    ("dependsOn", "after"),
    ("walltime", "expectedRun"),
    ("constraint", "nodeSelector"),
    ("workersMin", "minWorkers"),
    ("failureRetries", "retry"),
    ("checkpointDirectory", "checkpoint"),
    ("spares", "spareWorkers"),
    ("readinessProbe", "readiness"),
    ("quota", "quotas"),
    ("maxBorrow", "borrowingLimit"),
];

/// Longer texts are no misspellings of ours; and the distance costs their product.
const NAME_BYTES_MAX: usize = 64;

/// The nearest of `known`, when one is near.
pub fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return None;
    }
    let plain = fold(text);
    if let Some((_, name)) = SYNONYMS.iter().find(|(other, _)| fold(other) == plain)
        && let Some(found) = known.iter().find(|k| *k == name)
    {
        return Some(found);
    }
    // An abbreviation of at least three letters: `env`, `mem`.
    if plain.len() >= 3
        && let Some(found) = known.iter().find(|k| fold(k).starts_with(&plain))
    {
        return Some(found);
    }
    let near = known.iter().map(|k| (distance(&plain, &fold(k)), *k)).min()?;
    // Up to a third of the letters may be wrong, at most three of them.
    (near.0 <= (plain.chars().count() / 3).clamp(1, 3)).then_some(near.1)
}

/// `run_time_limit`, `run-time-limit` and `runTimeLimit` are the same slip of the hand.
fn fold(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// Levenshtein's.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 7] =
        ["workers", "command", "environment", "accelerators", "memory", "runTimeLimit", "tier"];

    #[test]
    fn finds_what_was_meant() {
        for (text, meant) in [
            ("worker", "workers"),
            ("comand", "command"),
            ("env", "environment"),
            ("gpus", "accelerators"),
            ("acelerators", "accelerators"),
            ("run_time_limit", "runTimeLimit"),
            ("timeLimit", "runTimeLimit"),
            ("Memory", "memory"),
        ] {
            assert_eq!(nearest(text, &KNOWN), Some(meant), "{text}");
        }
        for text in ["", "image", "x", &"w".repeat(10_000)] {
            assert_eq!(nearest(text, &KNOWN), None, "{text}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
