//! The lines of a script that `sbatch` reads.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::finding::{FindingKind, Findings, shown};

/// What a line of `sbatch` begins with.
pub const DIRECTIVE: &str = "#SBATCH";

/// Whether an option has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    /// Only behind `=`, or in the same word as the letter.
    Optional,
    Required,
}

/// One option of a directive.
#[derive(Debug)]
pub struct Directive {
    /// Its long name, without dashes.
    pub name: String,
    /// Its value; empty for none.
    pub value: String,
    /// Where it is: `line 4: --gres`.
    pub path: String,
    is_read: Cell<bool>,
}

/// The options of a script.
pub struct Directives<'a> {
    list: Vec<Directive>,
    findings: &'a Findings,
}

/// Options with a letter, `-` for none. In the order of the manual page.
const OPTIONS: &[(&str, char, Value)] = {
    use Value::{None as Flag, Optional as May, Required as Must};
    &[
        ("account", 'A', Must),
        ("acctg-freq", '-', Must),
        ("array", 'a', Must),
        ("batch", '-', Must),
        ("bb", '-', Must),
        ("bbf", '-', Must),
        ("begin", 'b', Must),
        ("chdir", 'D', Must),
        ("cluster-constraint", '-', Must),
        ("clusters", 'M', Must),
        ("comment", '-', Must),
        ("constraint", 'C', Must),
        ("container", '-', Must),
        ("container-id", '-', Must),
        ("contiguous", '-', Flag),
        ("core-spec", 'S', Must),
        ("cores-per-socket", '-', Must),
        ("cpu-freq", '-', Must),
        ("cpus-per-gpu", '-', Must),
        ("cpus-per-task", 'c', Must),
        ("deadline", '-', Must),
        ("delay-boot", '-', Must),
        ("dependency", 'd', Must),
        ("distribution", 'm', Must),
        ("error", 'e', Must),
        ("exclude", 'x', Must),
        ("exclusive", '-', May),
        ("export", '-', Must),
        ("export-file", '-', Must),
        ("extra", '-', Must),
        ("extra-node-info", 'B', Must),
        ("get-user-env", '-', May),
        ("gid", '-', Must),
        ("gpu-bind", '-', Must),
        ("gpu-freq", '-', Must),
        ("gpus", 'G', Must),
        ("gpus-per-node", '-', Must),
        ("gpus-per-socket", '-', Must),
        ("gpus-per-task", '-', Must),
        ("gres", '-', Must),
        ("gres-flags", '-', Must),
        ("hint", '-', Must),
        ("hold", 'H', Flag),
        ("ignore-pbs", '-', Flag),
        ("input", 'i', Must),
        ("job-name", 'J', Must),
        ("kill-on-invalid-dep", '-', Must),
        ("licenses", 'L', Must),
        ("mail-type", '-', Must),
        ("mail-user", '-', Must),
        ("mcs-label", '-', Must),
        ("mem", '-', Must),
        ("mem-bind", '-', Must),
        ("mem-per-cpu", '-', Must),
        ("mem-per-gpu", '-', Must),
        ("mincpus", '-', Must),
        ("network", '-', Must),
        ("nice", '-', May),
        ("no-kill", 'k', May),
        ("no-requeue", '-', Flag),
        ("nodefile", 'F', Must),
        ("nodelist", 'w', Must),
        ("nodes", 'N', Must),
        ("ntasks", 'n', Must),
        ("ntasks-per-core", '-', Must),
        ("ntasks-per-gpu", '-', Must),
        ("ntasks-per-node", '-', Must),
        ("ntasks-per-socket", '-', Must),
        ("open-mode", '-', Must),
        ("output", 'o', Must),
        ("overcommit", 'O', Flag),
        ("oversubscribe", 's', Flag),
        ("parsable", '-', Flag),
        ("partition", 'p', Must),
        ("power", '-', Must),
        ("prefer", '-', Must),
        ("priority", '-', Must),
        ("profile", '-', Must),
        ("propagate", '-', May),
        ("qos", 'q', Must),
        ("quiet", 'Q', Flag),
        ("reboot", '-', Flag),
        ("requeue", '-', Flag),
        ("reservation", '-', Must),
        ("resv-ports", '-', May),
        ("segment", '-', Must),
        ("signal", '-', Must),
        ("sockets-per-node", '-', Must),
        ("spread-job", '-', Flag),
        ("stepmgr", '-', Flag),
        ("switches", '-', Must),
        ("test-only", '-', Flag),
        ("thread-spec", '-', Must),
        ("threads-per-core", '-', Must),
        ("time", 't', Must),
        ("time-min", '-', Must),
        ("tmp", '-', Must),
        ("tres-bind", '-', Must),
        ("tres-per-task", '-', Must),
        ("uid", '-', Must),
        ("use-min-nodes", '-', Flag),
        ("verbose", 'v', Flag),
        ("wait", 'W', Flag),
        ("wait-all-nodes", '-', Must),
        ("wckey", '-', Must),
    ]
};

/// Older names of options.
const RENAMED: [(&str, &str); 3] =
    [("tasks-per-node", "ntasks-per-node"), ("workdir", "chdir"), ("share", "oversubscribe")];

/// What an option of a directive is by its name.
enum Known {
    Option(&'static str, Value),
    /// The beginning of the names of several.
    Several(Vec<&'static str>),
    No,
}

/// Whether a line of a script is more than a comment: `sbatch` reads no directives behind the first such line.
pub fn is_command(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

/// Reads the directives of a script.
pub fn read<'a>(script: &str, findings: &'a Findings) -> Directives<'a> {
    let mut list = Vec::new();
    let mut has_begun = false;
    for (number, line) in (1..).zip(script.lines()) {
        let path = |option: &str| format!("line {number}: {option}");
        if let Some(rest) =
            line.strip_prefix(DIRECTIVE).filter(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        {
            let words = words(rest);
            if has_begun {
                let sentence = "sbatch itself does not read it: directives come before the first command";
                findings.add(&path(DIRECTIVE), FindingKind::NotHonoured, sentence);
            } else if words.iter().any(|word| word == "hetjob" || word == "packjob") {
                let sentence = "parts of a job that ask for different things are `groups` of a job document";
                findings.add(&path("hetjob"), FindingKind::Refused, sentence);
            } else {
                options(&words, &path, &mut list, findings);
            }
        } else {
            has_begun |= is_command(line);
        }
    }
    Directives { list, findings }
}

/// The words of a directive as `sbatch` takes them apart: quotes and backslashes hold, and `#` begins a comment.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_word) = (Vec::new(), String::new(), None, false);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => (quote, is_word) = (Some(letter), true),
            (None | Some('"'), '\\') => {
                word.extend(letters.next());
                is_word = true;
            }
            (None, '#') if !is_word => break,
            (None, letter) if letter.is_whitespace() => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            (_, letter) => {
                word.push(letter);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

fn options(words: &[String], path: &dyn Fn(&str) -> String, list: &mut Vec<Directive>, findings: &Findings) {
    let mut words: VecDeque<String> = words.iter().cloned().collect();
    while let Some(word) = words.pop_front() {
        let (found, value) = known(&word);
        let shown_word = shown(word.split('=').next().unwrap_or_default());
        let (name, kind) = match found {
            Known::Option(name, kind) => (name, kind),
            Known::Several(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
                let sentence = format!("write the option in full, for it may be {}", names.join(", "));
                findings.add(&path(&shown_word), FindingKind::Refused, sentence);
                continue;
            }
            Known::No => {
                let sentence = "sbatch has no such option";
                findings.add(&path(&shown_word), FindingKind::NotHonoured, sentence);
                continue;
            }
        };
        let value = match (kind, value) {
            (Value::Required, None) => match words.pop_front() {
                Some(value) => value,
                None => {
                    findings.add(&path(&shown_word), FindingKind::Refused, "must have a value");
                    continue;
                }
            },
            (Value::None, Some(_)) if word.starts_with("--") => {
                findings.add(&path(&shown_word), FindingKind::Refused, "takes no value");
                continue;
            }
            // Letters of options without a value may stand in one word.
            (Value::None, Some(letters)) => {
                words.push_front(format!("-{letters}"));
                String::new()
            }
            (_, value) => value.unwrap_or_default().to_owned(),
        };
        list.push(Directive {
            name: name.to_owned(),
            value,
            path: path(&shown_option(&word)),
            is_read: Cell::new(false),
        });
    }
}

/// The option without its value.
fn shown_option(word: &str) -> String {
    match word.strip_prefix("--") {
        Some(_) => shown(word.split('=').next().unwrap_or_default()),
        None => word.chars().take(2).collect(),
    }
}

/// The option that a word names, and its value where that is in the same word.
fn known(word: &str) -> (Known, Option<&str>) {
    if let Some(option) = word.strip_prefix("--") {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        return (long(name), value);
    }
    let mut letters = word.chars();
    let (Some('-'), Some(letter)) = (letters.next(), letters.next()) else { return (Known::No, None) };
    let option = OPTIONS.iter().find(|(_, known, _)| *known == letter && letter != '-');
    let rest = letters.as_str();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let option = option.map_or(Known::No, |(name, _, kind)| Known::Option(name, *kind));
    (option, Some(rest).filter(|rest| !rest.is_empty()))
}

/// The option of this long name, or of which this is the beginning: `sbatch` takes a name as soon as no other begins so.
fn long(name: &str) -> Known {
    let exact = |name: &str| OPTIONS.iter().find(|(known, _, _)| *known == name);
    let new = RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| *new);
    if let Some((name, _, kind)) = exact(new) {
        return Known::Option(name, *kind);
    }
    let own = OPTIONS.iter().map(|(known, _, _)| (*known, *known));
    let like = own.chain(RENAMED).filter(|(written, _)| !name.is_empty() && written.starts_with(name));
    let mut names: Vec<&'static str> = like.map(|(_, means)| means).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        return Known::Several(names);
    }
    let only = names.first().and_then(|name| exact(name));
    only.map_or(Known::No, |(name, _, kind)| Known::Option(name, *kind))
}

impl<'a> Directives<'a> {
    /// The option that counts: the last of that name.
    pub fn take(&self, name: &str) -> Option<&Directive> {
        let mut last: Option<&Directive> = None;
        for directive in self.list.iter().filter(|directive| directive.name == name) {
            if let Some(before) = last {
                self.say(
                    before,
                    FindingKind::Approximated,
                    "a later line says it again, and that one counts",
                );
            }
            directive.is_read.set(true);
            last = Some(directive);
        }
        last
    }

    /// A finding about an option.
    pub fn say(&self, directive: &Directive, kind: FindingKind, sentence: impl Into<String>) {
        directive.is_read.set(true);
        self.findings.add(&directive.path, kind, sentence);
    }

    /// A finding about the script.
    pub fn say_at(&self, path: &str, kind: FindingKind, sentence: impl Into<String>) {
        self.findings.add(path, kind, sentence);
    }

    /// Says that an option cannot be what it is.
    pub fn refuse(&self, directive: &Directive, sentence: impl Into<String>) {
        self.say(directive, FindingKind::Refused, sentence);
    }

    /// Says that the job document has something close to it.
    pub fn approximate(&self, directive: &Directive, sentence: impl Into<String>) {
        self.say(directive, FindingKind::Approximated, sentence);
    }

    /// Says that nothing of it is in the job document.
    pub fn drop(&self, directive: &Directive, sentence: impl Into<String>) {
        self.say(directive, FindingKind::NotHonoured, sentence);
    }

    /// A count above zero.
    pub fn count(&self, name: &str) -> Option<u32> {
        let directive = self.take(name)?;
        let count =
            muster_types::quantity::whole(&directive.value).and_then(|count| u32::try_from(count).ok());
        let count = count.filter(|count| *count > 0);
        if count.is_none() {
            self.refuse(directive, format!("must be a number above zero, got {:?}", shown(&directive.value)));
        }
        count
    }

    /// Reports what nobody has read; the paths of what was.
    pub fn report_unread(&self, advice: &dyn Fn(&str) -> &'static str, honoured: &mut Vec<String>) {
        for directive in &self.list {
            if directive.is_read.get() {
                honoured.push(directive.path.clone());
            } else {
                self.drop(directive, advice(&directive.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(script: &str) -> Vec<String> {
        let findings = Findings::default();
        let directives = read(script, &findings);
        let of = |d: &Directive| format!("{} {}={}", d.path, d.name, d.value);
        let mut lines: Vec<String> = directives.list.iter().map(of).collect();
        lines.extend(findings.into_list().iter().map(ToString::to_string));
        lines
    }

    #[test]
    fn options_have_long_and_short_forms() {
        let script = "#!/bin/sh\n#SBATCH -N4 -n 8 --mem=1G --time 10 # and --gres=no\n#SBATCH --job-name=\"a b\" -J 'c d'\n\
            #SBATCH --exclusive -p=x --tasks-per-node=2\n##SBATCH --hold\n#SBATCHx\n";
        assert_eq!(
            list(script),
            [
                "line 2: -N nodes=4",
                "line 2: -n ntasks=8",
                "line 2: --mem mem=1G",
                "line 2: --time time=10",
                "line 3: --job-name job-name=a b",
                "line 3: -J job-name=c d",
                "line 4: --exclusive exclusive=",
                "line 4: -p partition=x",
                "line 4: --tasks-per-node ntasks-per-node=2",
            ]
        );
    }

    #[test]
    fn long_options_may_be_shortened_as_long_as_one_is_meant() {
        let script =
            "#!/bin/sh\n#SBATCH --part=gpu --tim 5 --mem=1G --tasks=2\n#SBATCH --hold=yes -HQ -s --\n";
        assert_eq!(
            list(script),
            [
                "line 2: --part partition=gpu",
                "line 2: --mem mem=1G",
                "line 2: --tasks ntasks-per-node=2",
                "line 3: -H hold=",
                "line 3: -Q quiet=",
                "line 3: -s oversubscribe=",
                "line 2: --tim: refused: write the option in full, for it may be --time, --time-min",
                "line 3: --hold: refused: takes no value",
                "line 2: 5: not honoured: sbatch has no such option",
                "line 3: --: not honoured: sbatch has no such option",
            ]
        );
    }

    #[test]
    fn what_sbatch_does_not_read_is_named() {
        let script = "#!/bin/sh\n#SBATCH --nodse=2 --mem\n#SBATCH hetjob\n\ntrue\n#SBATCH -N 2\n";
        assert_eq!(
            list(script),
            [
                "line 2: --mem: refused: must have a value",
                "line 3: hetjob: refused: parts of a job that ask for different things are `groups` of a job document",
                "line 2: --nodse: not honoured: sbatch has no such option",
                "line 6: #SBATCH: not honoured: sbatch itself does not read it: directives come before the first command",
            ]
        );
    }
}
