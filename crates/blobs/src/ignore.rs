//! Which files are not sent: patterns as `.gitignore` has them.
//!
//! One pattern on a line. Empty lines and lines that begin with `#` say nothing. `!` before a pattern takes back what an earlier
//! one said. `/` at the end means directories alone; `/` elsewhere ties the pattern to the directory of its file, and without
//! one it holds at every depth. `*` and `?` stand for anything within a name, `[a-c]` and `[!a-c]` for one letter, `**` for
//! any number of directories, and `\` makes a letter stand for itself. The last pattern that matches decides. In a directory
//! that is left out nothing is looked at, so nothing in it can be taken back.
//!
//! Each directory may have both files; `.musterignore` goes over `.gitignore`, and a deeper directory over a higher one.

/// The files, in the order in which they are read.
pub(crate) const FILES: [&str; 2] = [".gitignore", ".musterignore"];
/// Bytes of one of them.
pub(crate) const BYTES_MAX: u64 = 64 << 10;

/// One pattern.
#[derive(Debug)]
struct Pattern {
    /// Whether it takes back.
    keeps: bool,
    /// Whether it is about directories alone.
    directories: bool,
    names: Vec<NamePattern>,
}

/// A part of a pattern between two `/`.
#[derive(Debug)]
enum NamePattern {
    /// Any number of directories.
    Directories,
    Name(Vec<Letter>),
}

/// A part of the pattern of a name.
#[derive(Debug)]
enum Letter {
    /// Any number of letters.
    Any,
    /// One letter.
    One,
    Is(char),
    In {
        not: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Letter {
    fn takes(&self, letter: char) -> bool {
        match self {
            Letter::Any => false,
            Letter::One => true,
            Letter::Is(own) => *own == letter,
            Letter::In { not, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter)) != *not
            }
        }
    }
}

/// The patterns of one directory.
#[derive(Debug, Default)]
pub(crate) struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Adds those of a file, which go over the earlier ones.
    pub(crate) fn add(&mut self, text: &str) {
        self.0.extend(text.lines().filter_map(Pattern::parse));
    }

    /// Whether a path of this directory is left out; none where no pattern matches it.
    pub(crate) fn leaves_out(&self, path: &str, is_directory: bool) -> Option<bool> {
        let names: Vec<&str> = path.split('/').collect();
        let mut from_last = self.0.iter().rev().filter(|pattern| is_directory || !pattern.directories);
        from_last.find(|pattern| pattern.matches(&names)).map(|pattern| !pattern.keeps)
    }
}

impl Pattern {
    /// None for a line that says nothing.
    fn parse(line: &str) -> Option<Pattern> {
        let mut text = line.trim_start_matches('\u{feff}').trim_end_matches('\r');
        // Spaces at the end say nothing, unless the last one is made to stand for itself.
        while let Some(shorter) = text.strip_suffix([' ', '\t']) {
            if shorter.ends_with('\\') {
                break;
            }
            text = shorter;
        }
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let (keeps, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        let (directories, text) = text.strip_suffix('/').map_or((false, text), |rest| (true, rest));
        let is_tied = text.contains('/');
        let text = text.strip_prefix('/').unwrap_or(text);
        if text.is_empty() {
            return None;
        }
        let own = text.split('/').map(|name| match name {
            "**" => NamePattern::Directories,
            name => NamePattern::Name(letters(name)),
        });
        let above = (!is_tied).then_some(NamePattern::Directories);
        Some(Pattern { keeps, directories, names: above.into_iter().chain(own).collect() })
    }

    /// Each part of the pattern is gone through once for each name of the path, however many `**` there are.
    fn matches(&self, path: &[&str]) -> bool {
        // Whether the parts so far match the first N names of the path, by N.
        let mut reached = vec![false; path.len() + 1];
        if let Some(nothing) = reached.first_mut() {
            *nothing = true;
        }
        for (place, part) in self.names.iter().enumerate() {
            let is_last = place + 1 == self.names.len();
            let mut next = vec![false; path.len() + 1];
            let mut any_before = false;
            for (count, now) in next.iter_mut().enumerate() {
                let here = reached.get(count).copied().unwrap_or_default();
                let before = count.checked_sub(1).and_then(|before| reached.get(before)).copied();
                any_before |= before.unwrap_or_default();
                *now = match part {
                    // At the end it stands for what is in a directory, and not for the directory.
                    NamePattern::Directories => any_before || (here && !is_last),
                    NamePattern::Name(letters) => {
                        let name = count.checked_sub(1).and_then(|last| path.get(last));
                        before.unwrap_or_default() && name.is_some_and(|name| is_match(letters, name))
                    }
                };
            }
            reached = next;
        }
        reached.last().copied().unwrap_or_default()
    }
}

fn letters(name: &str) -> Vec<Letter> {
    let mut found = Vec::new();
    let mut rest = name.chars();
    while let Some(letter) = rest.next() {
        found.push(match letter {
            '*' => Letter::Any,
            '?' => Letter::One,
            '\\' => Letter::Is(rest.next().unwrap_or('\\')),
            '[' => match set(rest.as_str()) {
                Some((set, behind)) => {
                    rest = behind.chars();
                    set
                }
                None => Letter::Is('['),
            },
            letter => Letter::Is(letter),
        });
    }
    found
}

/// What stands between `[` and `]`, and what is behind; none where there is no `]`.
fn set(text: &str) -> Option<(Letter, &str)> {
    let inner = text.strip_prefix(['!', '^']);
    let (not, inner) = inner.map_or((false, text), |rest| (true, rest));
    let mut letters = inner.char_indices();
    let mut ranges: Vec<(char, char)> = Vec::new();
    while let Some((at, letter)) = letters.next() {
        // As the first one it stands for itself.
        if letter == ']' && at > 0 {
            return Some((Letter::In { not, ranges }, inner.get(at + 1..)?));
        }
        let first = if letter == '\\' { letters.next()?.1 } else { letter };
        let mut ahead = letters.clone();
        let is_range = ahead.next().is_some_and(|(_, dash)| dash == '-');
        let last = ahead.next().map(|(_, last)| last).filter(|last| is_range && *last != ']');
        if last.is_some() {
            letters = ahead;
        }
        ranges.push((first, last.unwrap_or(first)));
    }
    None
}

/// Goes back to the last `*` alone, so it takes at most the product of the lengths.
fn is_match(pattern: &[Letter], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut next) = (0, 0);
    let mut last_any: Option<(usize, usize)> = None;
    while at < name.len() {
        match (pattern.get(next), name.get(at)) {
            (Some(Letter::Any), _) => {
                last_any = Some((next, at));
                next += 1;
            }
            (Some(part), Some(letter)) if part.takes(*letter) => {
                at += 1;
                next += 1;
            }
            _ => match &mut last_any {
                Some((any, taken)) => {
                    *taken += 1;
                    (next, at) = (*any + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(next).all(|part| matches!(part, Letter::Any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(patterns: &str, path: &str) -> bool {
        let mut of = Patterns::default();
        of.add(patterns);
        let (path, is_directory) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
        of.leaves_out(path, is_directory).unwrap_or(false)
    }

    #[test]
    fn patterns_are_those_of_git() {
        for (patterns, path, expected) in [
            ("*.pyc", "a/b/c.pyc", true),
            ("*.pyc", "c.py", false),
            ("build", "a/build/", true),
            ("build/", "a/build", false),
            ("build/", "a/build/", true),
            ("/build", "a/build/", false),
            ("/build", "build/", true),
            ("a/b", "x/a/b", false),
            ("a/b", "a/b", true),
            ("**/b", "x/y/b", true),
            ("**/b", "b", true),
            ("a/**", "a/b/c", true),
            ("a/**", "a/", false),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("data?", "data1", true),
            ("data?", "data", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[x", "[x", true),
            ("# x", "# x", false),
            ("\\# x", "# x", true),
            ("x  ", "x", true),
            ("x\\ ", "x ", true),
            ("*\n!keep", "keep", false),
            ("!keep\n*", "keep", true),
            ("", "a", false),
            ("/", "a/", false),
            ("*", "anything", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
        ] {
            assert_eq!(left_out(patterns, path), expected, "{patterns:?} {path:?}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let pattern = format!("{}b", "*a".repeat(200));
        assert!(!left_out(&pattern, &"a".repeat(250)));
        let pattern = format!("{}b", "**/a/".repeat(60));
        assert!(!left_out(&pattern, &vec!["a"; 64].join("/")));
    }
}
