//! Plain words: what documents and names do not use, how long documents are, and that every crate has one.
//!
//! `words.txt` lists the words. Documents have none of them. Rust sources had many when the list was made; their counts
//! per crate are in `words-counts.txt` and may only fall.
#![allow(
    clippy::unwrap_used,
    reason = "a panic here is the report; the lint knows test functions but not their helpers"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const CRATE_README_LINES_MAX: usize = 60;
const ARCHITECTURE_LINES_MAX: usize = 200;
const GLOSSARY_ENTRIES_MAX: usize = 60;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// A term that is right and has a banned word within it.
    Term,
    Type,
    Module,
}

/// One line of the list.
#[derive(Debug)]
struct Entry {
    kind: Kind,
    /// The first of its forms; its name in the counts.
    name: String,
    /// Each form as its words, in lower case for text.
    forms: Vec<Vec<String>>,
    instead: String,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Entry>,
    exempt: Vec<String>,
}

impl List {
    fn parse(text: &str) -> List {
        let mut list = List::default();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [kind, forms, instead] = cells[..] else { panic!("not three cells: {line}") };
            let kind = match kind {
                "text" => Kind::Text,
                "term" => Kind::Term,
                "type" => Kind::Type,
                "module" => Kind::Module,
                "exempt" => {
                    list.exempt.push(forms.to_owned());
                    continue;
                }
                other => panic!("{other:?} is not a kind of word"),
            };
            let all: Vec<&str> = forms.split(',').map(str::trim).collect();
            let words = |form: &&str| form.split(' ').map(str::to_owned).collect();
            list.entries.push(Entry {
                kind,
                name: all[0].to_owned(),
                forms: all.iter().map(words).collect(),
                instead: instead.to_owned(),
            });
        }
        list
    }

    fn read() -> List {
        List::parse(&fs::read_to_string(root().join("tests/tests/words.txt")).unwrap())
    }

    fn is_exempt(&self, path: &str) -> bool {
        self.exempt.iter().any(|exempt| path == exempt || path.starts_with(&format!("{exempt}/")))
    }

    /// The banned words that occur in the text, each as often as it does. Where forms overlap the longer one counts, and
    /// a term that is right is passed over with the words within it.
    fn found(&self, text: &str) -> Vec<&Entry> {
        let words: Vec<String> = words(text).map(str::to_lowercase).collect();
        let entries = self.entries.iter().filter(|entry| matches!(entry.kind, Kind::Text | Kind::Term));
        let mut first: BTreeMap<&str, Vec<(&[String], &Entry)>> = BTreeMap::new();
        for entry in entries {
            for form in &entry.forms {
                first.entry(form[0].as_str()).or_default().push((form, entry));
            }
        }
        let mut found = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let fitting = first.get(words[at].as_str()).into_iter().flatten();
            let fitting = fitting.filter(|(form, _)| words[at..].starts_with(form));
            match fitting.max_by_key(|(form, _)| form.len()) {
                Some((form, entry)) => {
                    found.extend((entry.kind == Kind::Text).then_some(*entry));
                    at += form.len();
                }
                None => at += 1,
            }
        }
        found
    }

    /// The entry that bans this name, exactly as it is.
    fn named(&self, kind: Kind, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.kind == kind && entry.name == name)
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\'')).filter(|word| !word.is_empty())
}

/// A document without its code blocks, `code`, links and comments, line by line.
fn prose(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            lines.push(String::new());
            continue;
        }
        let is_hidden = is_code || line.trim_start().starts_with("<!--") || line.starts_with("    ");
        let line = if is_hidden { "" } else { line };
        // Every second part lies between backticks, and a link's address between `](` and `)`.
        let plain: Vec<&str> = line.split('`').step_by(2).collect();
        let plain = plain.join(" _ ");
        let mut parts = plain.split("](");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shown.push(' ');
            shown.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
        }
        lines.push(shown);
    }
    lines
}

/// What people read of a Rust source: its comments and strings, and the names of its types and modules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Source {
    text: String,
    types: Vec<String>,
    modules: Vec<String>,
}

impl Source {
    fn parse(text: &str) -> Source {
        let mut source = Source::default();
        let mut code = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (kept, length) = token(rest);
            match kept {
                Token::Text(range) => {
                    source.text.push_str(&rest[range]);
                    source.text.push('\n');
                    code.push(' ');
                }
                Token::Code => code.push_str(&rest[..length]),
            }
            rest = &rest[length..];
        }
        let mut before = "";
        for word in words(&code) {
            match before {
                "struct" | "enum" | "trait" | "type" => source.types.push(word.to_owned()),
                "mod" => source.modules.push(word.to_owned()),
                _ => {}
            }
            before = word;
        }
        source
    }
}

enum Token {
    /// A comment or a string: where its content is.
    Text(std::ops::Range<usize>),
    Code,
}

/// What the source begins with, and how many bytes that is.
fn token(rest: &str) -> (Token, usize) {
    if rest.starts_with("//") {
        let end = rest.find('\n').unwrap_or(rest.len());
        return (Token::Text(2..end), end);
    }
    if rest.starts_with("/*") {
        let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
        return (Token::Text(2..end), end);
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let marks = raw.len() - raw.trim_start_matches('#').len();
        if raw[marks..].starts_with('"') {
            let (begin, close) = (marks + 2, format!("\"{}", "#".repeat(marks)));
            let end = rest[begin..].find(&close).map_or(rest.len(), |end| begin + end);
            return (Token::Text(begin..end), (end + close.len()).min(rest.len()));
        }
    }
    if rest.starts_with('"') {
        let end = string_end(rest);
        return (Token::Text(1..end), (end + 1).min(rest.len()));
    }
    // A quote as a character is no string; nor does the `r` of a name begin one.
    for quoted in ["'\"'", "'\\\"'", "'\\''"] {
        if rest.starts_with(quoted) {
            return (Token::Code, quoted.len());
        }
    }
    let name = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    (Token::Code, name.max(rest.chars().next().map_or(1, char::len_utf8)))
}

/// Where the string that the source begins with ends: the place of its closing quote.
fn string_end(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    rest.len()
}

/// The files with this ending below a directory, in the order of their paths, as paths below the root.
fn files_below(directory: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root().join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink()
                || name.starts_with('.')
                || ["target", "found", "shared"].contains(&name.as_str())
            {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                found.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// By crate and word, how often it occurs; words that do not occur are left away.
type Counts = BTreeMap<(String, String), usize>;

fn count(list: &List, krate: &str, text: &str, counts: &mut Counts) {
    let source = Source::parse(text);
    let mut note = |word: String| *counts.entry((krate.to_owned(), word)).or_default() += 1;
    for entry in list.found(&source.text) {
        note(entry.name.clone());
    }
    for (kind, names) in [(Kind::Type, &source.types), (Kind::Module, &source.modules)] {
        for entry in names.iter().filter_map(|name| list.named(kind, name)) {
            note(format!("{} {}", if kind == Kind::Type { "type" } else { "module" }, entry.name));
        }
    }
}

fn actual_counts(list: &List) -> Counts {
    let mut counts = Counts::new();
    for directory in ["crates", "chaos", "benches", "tests"] {
        // What the list itself says is no use of it.
        for path in files_below(directory, "rs").into_iter().filter(|path| path != "tests/tests/words.rs") {
            let krate =
                path.split('/').take(if directory == "crates" { 2 } else { 1 }).collect::<Vec<_>>().join("/");
            count(list, &krate, &fs::read_to_string(root().join(&path)).unwrap(), &mut counts);
        }
    }
    counts
}

fn written(counts: &Counts) -> String {
    let mut text = String::from(
        "# How often each word of words.txt occurs in the sources of each crate. The counts may only fall.\n\
         #   UPDATE_EXPECT=1 cargo test -p muster-tests --test words\n",
    );
    for ((krate, word), count) in counts {
        writeln!(text, "{krate} | {word} | {count}").unwrap();
    }
    text
}

fn read_counts(text: &str) -> Counts {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let cells = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| ((cells[0].to_owned(), cells[1].to_owned()), cells[2].parse().unwrap())).collect()
}

/// The counts that rose, and those that fell, each as a line.
fn compare(expected: &Counts, actual: &Counts) -> (Vec<String>, Vec<String>) {
    let (mut risen, mut fallen) = (Vec::new(), Vec::new());
    let keys: std::collections::BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
    for key in keys {
        let count = |counts: &Counts| counts.get(key).copied().unwrap_or(0);
        let (before, now) = (count(expected), count(actual));
        let line = format!("{}: {:?} occurs {now} times, {before} are recorded", key.0, key.1);
        if now > before {
            risen.push(line);
        } else if now < before {
            fallen.push(line);
        }
    }
    (risen, fallen)
}

#[test]
fn documents_use_plain_words() {
    let list = List::read();
    let mut wrong = Vec::new();
    for path in files_below("", "md").into_iter().filter(|path| !list.is_exempt(path)) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (line, number) in prose(&text).iter().zip(1..) {
            for entry in list.found(line) {
                wrong.push(format!("{path}:{number}: {:?}; say {}", entry.name, entry.instead));
            }
        }
    }
    assert!(wrong.is_empty(), "{} words of words.txt in documents:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn sources_use_fewer_of_the_banned_words_and_never_more() {
    let list = List::read();
    let path = root().join("tests/tests/words-counts.txt");
    let actual = actual_counts(&list);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, written(&actual)).unwrap();
        return;
    }
    let (risen, fallen) = compare(&read_counts(&fs::read_to_string(&path).unwrap_or_default()), &actual);
    for line in &fallen {
        eprintln!("lower the recorded count (UPDATE_EXPECT=1): {line}");
    }
    assert!(
        risen.is_empty(),
        "new uses of words that tests/tests/words.txt replaces; say it with the words of the right column:\n{}",
        risen.join("\n")
    );
}

#[test]
fn every_crate_has_a_short_readme_and_the_map_is_short() {
    let mut wrong = Vec::new();
    let mut lines_of = |path: String, most: usize| match fs::read_to_string(root().join(&path)) {
        Ok(text) if text.lines().count() <= most => {}
        Ok(text) => wrong.push(format!("{path} has {} lines; {most} are the most", text.lines().count())),
        Err(error) => wrong.push(format!("{path}: {error}")),
    };
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if path.join("Cargo.toml").is_file() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            lines_of(format!("crates/{name}/README.md"), CRATE_README_LINES_MAX);
        }
    }
    lines_of("crates/ARCHITECTURE.md".to_owned(), ARCHITECTURE_LINES_MAX);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let glossary = fs::read_to_string(root().join("ops/guide/glossary.md")).unwrap();
    // Behind the two lines of the head.
    let entries = glossary.lines().filter(|line| line.starts_with('|')).count() - 2;
    assert!(entries <= GLOSSARY_ENTRIES_MAX, "{entries} terms; {GLOSSARY_ENTRIES_MAX} are the most");
}

/// Relative links of documents lead to files that exist.
#[test]
fn links_of_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for path in files_below("", "md") {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for target in text.split("](").skip(1).filter_map(|part| part.split_once(')')).map(|(link, _)| link) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            checked += 1;
            if !root().join(&path).parent().unwrap().join(target).exists() {
                wrong.push(format!("{path}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(checked > 40, "{checked} links");
}

#[test]
fn the_checks_themselves_can_fail() {
    let list = List::parse(
        "# comment\ntext | folder, folders | directory\ntext | room | capacity\n\
         text | make room, makes room | preempt\ntype | Said | Report\nmodule | ground | environment\n\
         exempt | a/b | why\n",
    );
    let names =
        |text: &str| -> Vec<String> { list.found(text).iter().map(|entry| entry.name.clone()).collect() };
    assert_eq!(names("Two Folders, and a folder: makes room!"), ["folder", "folder", "make room"]);
    assert_eq!(names("roomy classrooms of a portfolio"), [""; 0]);
    assert!(list.is_exempt("a/b") && list.is_exempt("a/b/c.md") && !list.is_exempt("a/bc.md"));

    let page = "A `folder` is [a folder](folder.md).\n```\nmkdir folder\n```\n<!-- folder -->\nA folder.\n";
    let found: Vec<usize> = prose(page).iter().map(|line| list.found(line).len()).collect();
    assert_eq!(found, [1, 0, 0, 0, 0, 1]);

    let source = Source::parse(
        "// one folder\n/// two \"folders\"\npub mod ground;\nstruct Said<'a> { folder: &'a str }\n\
         const A: &str = \"a folder \\\" room\";\nconst B: char = '\"';\nconst C: &str = r#\"raw \"room\"\"#;\n/* room */\n",
    );
    assert_eq!((source.types, source.modules), (vec!["Said".to_owned()], vec!["ground".to_owned()]));
    assert_eq!(names(&source.text), ["folder", "folder", "folder", "room", "room", "room"]);

    let mut counts = Counts::new();
    count(&list, "crates/a", "// a folder\nenum Said {}\n", &mut counts);
    let expected = read_counts("# head\ncrates/a | folder | 1\ncrates/a | type Said | 1\n");
    assert_eq!(counts, expected);
    assert_eq!(read_counts(&written(&counts)), counts);
    assert_eq!(compare(&expected, &counts), (vec![], vec![]));
    count(&list, "crates/a", "// another folder\n", &mut counts);
    let (risen, fallen) = compare(&expected, &counts);
    assert_eq!((risen.len(), fallen.len()), (1, 0));
    assert!(risen[0].contains("crates/a: \"folder\" occurs 2 times, 1 are recorded"), "{}", risen[0]);
    assert_eq!(compare(&counts, &expected).1.len(), 1);
}
