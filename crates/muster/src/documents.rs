//! Every command that the documents show is one that this program takes, and every job file one that it reads.

use std::path::{Path, PathBuf};

use clap::Parser as _;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README and the pages of the guide.
fn pages() -> Vec<PathBuf> {
    let guide = std::fs::read_dir(root().join("ops/guide")).expect("there is a guide").flatten();
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut pages: Vec<PathBuf> = guide.map(|entry| entry.path()).filter(is_page).collect();
    pages.push(root().join("README.md"));
    assert!(pages.len() > 4, "{pages:?}");
    pages
}

/// The blocks of code in a page, each with its language.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| part.split_once('\n')).collect()
}

/// As a shell splits a line: what is between single quotes is one word, or part of one.
fn split(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_part = false;
    for (at, piece) in command.split('\'').enumerate() {
        if at % 2 == 0 {
            words.extend(piece.split_whitespace().map(str::to_owned));
            is_part = !piece.is_empty() && !piece.ends_with(' ');
            continue;
        }
        match words.last_mut().filter(|_| is_part) {
            Some(word) => word.push_str(piece),
            None => words.push(piece.to_owned()),
        }
    }
    words
}

/// The words of a command line without comments, or none for what is no command of ours.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let command = line.split(" #").next().unwrap_or_default();
    // What the shell does with the output is no word of the command.
    let command = command.split(" > ").next().unwrap_or_default();
    let command = command.split(" >> ").next().unwrap_or_default();
    let command = command.split(" | ").next().unwrap_or_default().trim();
    let command = command.replace(['[', ']'], "");
    let mut words = split(&command);
    (words.first().is_some_and(|first| first == "muster")).then(|| {
        // `show|set`: the first of several.
        for word in &mut words {
            *word = word.split('|').next().unwrap_or_default().to_owned();
        }
        words
    })
}

#[test]
fn commands_of_the_documents_are_commands() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        for (_, block) in blocks(&text) {
            for words in block.lines().filter_map(words) {
                checked += 1;
                let parsed = crate::Arguments::try_parse_from(&words);
                if let Ok(crate::Arguments { command: crate::Command::Unknown(_), .. }) = parsed {
                    panic!("{}: {}: there is no such command", page.display(), words.join(" "));
                }
                if let Err(error) = parsed {
                    use clap::error::ErrorKind::{DisplayHelp, MissingRequiredArgument, MissingSubcommand};
                    // A line that names a command without its arguments names it all the same.
                    let is_named = [DisplayHelp, MissingRequiredArgument, MissingSubcommand];
                    let is_help = is_named.contains(&error.kind())
                        || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
                    assert!(is_help, "{}: {}: {error}", page.display(), words.join(" "));
                }
            }
        }
    }
    assert!(checked > 30, "{checked} commands");
}

/// Names of commands that take something away which is not simply put back.
const DESTRUCTIVE: &[&str] = &[
    "cancel", "delete", "drain", "expire", "forget", "remove", "replace", "requeue", "resubmit", "revoke",
    "rotate",
];
/// Verbs with which the descriptions of others begin.
const DESTRUCTIVE_VERBS: &[&str] = &["Cancel", "Delete", "Drop", "Forget", "Remove", "Revoke", "Stop"];
/// Options that let a command take something away.
const DESTRUCTIVE_OPTIONS: &[&str] = &["drain", "force", "rebuild", "yes"];
/// What these commands take away is made again with one command.
const NOT_DESTRUCTIVE: &[&str] = &["muster drill stop", "muster logout"];

/// The destructive commands below this one, and whether each has a dry run.
fn destructive(command: &clap::Command, path: &str, found: &mut Vec<(String, bool)>) {
    let has = |name: &str| command.get_arguments().any(|argument| argument.get_long() == Some(name));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let verb = about.split_whitespace().next().unwrap_or_default();
    let is_leaf = command.get_subcommands().next().is_none();
    let is_named = is_leaf
        && (DESTRUCTIVE.contains(&command.get_name())
            || DESTRUCTIVE_VERBS.contains(&verb)
            || command.get_all_aliases().any(|alias| DESTRUCTIVE.contains(&alias)));
    let is_destructive = is_named || DESTRUCTIVE_OPTIONS.iter().any(|option| has(option));
    if is_destructive && !NOT_DESTRUCTIVE.contains(&path) {
        found.push((path.to_owned(), has("dry-run")));
    }
    for inner in command.get_subcommands() {
        destructive(inner, &format!("{path} {}", inner.get_name()), found);
    }
}

#[test]
fn each_destructive_command_has_a_dry_run() {
    let mut found = Vec::new();
    destructive(&<crate::Arguments as clap::CommandFactory>::command(), "muster", &mut found);
    let without: Vec<&String> = found.iter().filter(|(_, has)| !has).map(|(path, _)| path).collect();
    assert!(without.is_empty(), "without --dry-run: {without:?}");
    for known in [
        "muster booking delete",
        "muster ca rotate",
        "muster cluster remove",
        "muster job cancel",
        "muster node forget",
        "muster region hold",
        "muster schedule delete",
        "muster server",
        "muster token revoke",
    ] {
        assert!(found.iter().any(|(path, _)| path == known), "{known} is among them: {found:?}");
    }
}

/// The commands below this one whose help shows no command line.
fn without_examples(command: &clap::Command, path: &str, found: &mut Vec<String>) {
    let shown = [command.get_after_help(), command.get_after_long_help()];
    let has_example = shown.into_iter().flatten().any(|text| text.to_string().contains("muster "));
    if command.get_subcommands().next().is_none() && !has_example {
        found.push(path.to_owned());
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        without_examples(inner, &format!("{path} {}", inner.get_name()), found);
    }
}

#[test]
fn help_of_each_command_has_an_example() {
    let mut found = Vec::new();
    without_examples(&<crate::Arguments as clap::CommandFactory>::command(), "muster", &mut found);
    assert!(found.is_empty(), "without an example: {found:?}");
}

#[test]
fn job_files_of_the_documents_are_job_files() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        for (language, block) in blocks(&text) {
            if language.trim() == "yaml" && block.contains("kind: Job") {
                checked += 1;
                let read = muster_manifest::parse(block.as_bytes(), 0);
                assert!(read.is_ok(), "{}: {:?}", page.display(), read.err());
            }
        }
    }
    assert!(checked > 0, "no job file is shown");
}
