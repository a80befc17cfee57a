//! Jobs without a job file: scripts with directives, and command lines.
//!
//! A script says in lines `#MUSTER key: value` what a job file says under `spec`, and also `name`, `tenant`, `labels` and
//! `annotations`; the last two in one line each, like `labels: {team: vision}`. Its text travels with the job, so the
//! nodes need not have it.
//!
//! **Invariant:** pure. A directive that would be overlooked (behind the first command, misspelt) is an
//! error, never a comment.

use muster_types::limits::{JOB_TEXT_BYTES_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use serde::de::DeserializeOwned;

use super::reader::{Reader, structure, with_rules};
use super::shape::{Metadata, Spec};
use super::{Form, Manifest, ManifestError, PROBLEMS_MAX, Problem, text};

const DIRECTIVE: &str = "#MUSTER";
/// Bytes of a script: what a job may hold of text, less what is reserved for its environment and arguments.
const SCRIPT_BYTES_MAX: usize = JOB_TEXT_BYTES_MAX - 4 * 1_024;

/// Puts the script together from its parts, in a file that is gone before the script begins, and becomes
/// its interpreter. Its arguments: interpreter, the interpreter's argument, number of parts, parts,
/// arguments of the script.
const START: &str = r#"i=$1 a=$2 n=$3; shift 3
f=$(mktemp "${TMPDIR:-/tmp}/muster-script.XXXXXX") || exit 126
while [ "$n" -gt 0 ]; do printf %s "$1"; shift; n=$((n - 1)); done > "$f" || { rm -f "$f"; exit 126; }
exec 3< "$f"; rm -f "$f"
if [ -n "$a" ]; then exec "$i" "$a" /dev/fd/3 "$@"; fi
exec "$i" /dev/fd/3 "$@""#;

/// Whether this is a script rather than a job file.
pub fn is_script(bytes: &[u8]) -> bool {
    bytes.starts_with(b"#!")
}

/// Reads a script. `name` is what the job is called when no directive says; `now_ms` is what times like
/// `+2h` count from.
pub fn parse_script(
    bytes: &[u8],
    name: &str,
    arguments: &[String],
    now_ms: u64,
) -> Result<Manifest, ManifestError> {
    let script = text(bytes)?;
    let mut problems = Vec::new();
    let directives = directives(script, &mut problems);
    problems.extend(too_long(script));
    let command = match command(script, name, arguments) {
        Ok(command) => command,
        Err(problem) => {
            problems.push(problem);
            Vec::new()
        }
    };
    if !problems.is_empty() {
        problems.truncate(PROBLEMS_MAX);
        return Err(ManifestError(problems));
    }
    build(&directives, command, name, Form::Script, now_ms)
}

/// A job from options of a command line: `spec` are keys and values of a job file, as JSON; `metadata`
/// likewise.
pub fn from_options(
    metadata: &[(&str, serde_json::Value)],
    spec: &[(&str, serde_json::Value)],
    command: Vec<String>,
    now_ms: u64,
) -> Result<Manifest, ManifestError> {
    let lines = |pairs: &[(&str, serde_json::Value)]| {
        let lines: String = pairs.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
        Some(lines).filter(|text| !text.is_empty())
    };
    let name = command.first().cloned().unwrap_or_default();
    let directives = Directives { metadata: lines(metadata), spec: lines(spec) };
    build(&directives, command, &name, Form::Options, now_ms)
}

/// YAML mappings whose lines are those of the script; none without a line.
#[derive(Default)]
struct Directives {
    metadata: Option<String>,
    spec: Option<String>,
}

fn directives(script: &str, problems: &mut Vec<Problem>) -> Directives {
    let mut found = Directives::default();
    let mut commands = false;
    let (mut metadata, mut spec) = (String::new(), String::new());
    for (index, line) in script.lines().enumerate() {
        let mut problem = |description: &str| {
            problems.push(Problem {
                line: Some(index as u64 + 1),
                field: DIRECTIVE.to_owned(),
                description: description.to_owned(),
            });
        };
        if let Some(rest) = line.strip_prefix(DIRECTIVE) {
            if commands {
                problem("comes after the first command, where directives are not looked for; move it up");
            } else if let Some(said) = rest.strip_prefix(' ') {
                let of_job =
                    ["name:", "tenant:", "labels:", "annotations:"].iter().any(|key| said.starts_with(key));
                let (text, said_there) =
                    if of_job { (&mut metadata, &mut found.metadata) } else { (&mut spec, &mut found.spec) };
                text.push_str(said);
                said_there.get_or_insert_default();
            } else if !rest.is_empty() {
                problem("must be followed by a space and `key: value`, as in a job file");
            }
        } else if line.trim_start().to_ascii_uppercase().starts_with(DIRECTIVE) && !commands {
            problem("must stand at the beginning of its line, in capitals");
        } else {
            commands |= !line.trim().is_empty() && !line.trim_start().starts_with('#');
        }
        metadata.push('\n');
        spec.push('\n');
    }
    Directives { metadata: found.metadata.map(|_| metadata), spec: found.spec.map(|_| spec) }
}

/// The words that run a script which the node does not have; `name` is what it takes for its own.
pub fn script_command(script: &str, name: &str, arguments: &[String]) -> Result<Vec<String>, Problem> {
    match too_long(script) {
        Some(problem) => Err(problem),
        None => command(script, name, arguments),
    }
}

fn too_long(script: &str) -> Option<Problem> {
    let advice = format!(
        "the script has {} bytes, of at most {SCRIPT_BYTES_MAX} that travel with a job; put it where the nodes can read it \
         and run it by its path",
        script.len()
    );
    let problem = Problem { line: None, field: String::new(), description: advice };
    Some(problem).filter(|_| script.len() > SCRIPT_BYTES_MAX)
}

fn command(script: &str, name: &str, arguments: &[String]) -> Result<Vec<String>, Problem> {
    let first = script.lines().next().unwrap_or_default();
    let shebang = first.strip_prefix("#!").unwrap_or_default().trim();
    let (interpreter, argument) = shebang.split_once([' ', '\t']).unwrap_or((shebang, ""));
    if !interpreter.starts_with('/') {
        let description = "must name an interpreter by its absolute path, like #!/bin/bash".to_owned();
        return Err(Problem { line: Some(1), field: "#!".to_owned(), description });
    }
    let parts = parts(script);
    let mut words = vec!["/bin/sh".to_owned(), "-c".to_owned(), START.to_owned(), name.to_owned()];
    words.extend([interpreter.to_owned(), argument.trim().to_owned(), parts.len().to_string()]);
    words.extend(parts);
    words.extend(arguments.iter().cloned());
    Ok(words)
}

/// The text in words that a command may have.
fn parts(mut text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        parts.push(text[..end].to_owned());
        text = &text[end..];
    }
    parts
}

fn build(
    directives: &Directives,
    command: Vec<String>,
    name: &str,
    form: Form,
    now_ms: u64,
) -> Result<Manifest, ManifestError> {
    let shown = |problems: Vec<Problem>| ManifestError(problems.into_iter().map(|p| form.show(p)).collect());
    let metadata: Metadata = mapping(directives.metadata.as_deref()).map_err(|p| shown(vec![p]))?;
    let spec: Spec = mapping(directives.spec.as_deref()).map_err(|p| shown(vec![p]))?;
    let mut problems = Vec::new();
    let mut reader = Reader::new(&mut problems, now_ms);
    if let Some(command) = &spec.command {
        reader.problem(
            Some(command.referenced),
            "spec.command",
            "must be left out: the script is the command",
        );
    }
    let (mut message, shorthand, parallel) = reader.spec(metadata, spec);
    let (lines, unknown_words) = (reader.lines, reader.unknown_words);
    if message.name.is_empty() {
        message.name = name_of(name);
    }
    for group in message.spec_mut().groups.iter_mut().filter(|group| group.command().is_empty()) {
        group.command_mut().clone_from(&command);
    }
    let manifest = Manifest { message, shorthand, parallel, form, lines, first_line: 1 };
    // What is checked is shown in the words of the form already.
    let read = problems.len();
    let mut problems = with_rules(problems, unknown_words, || manifest.check());
    let checked = problems.split_off(read.min(problems.len()));
    let problems: Vec<Problem> = shown(problems).0.into_iter().chain(checked).collect();
    if problems.is_empty() { Ok(manifest) } else { Err(ManifestError(problems)) }
}

fn mapping<T: DeserializeOwned + Default>(text: Option<&str>) -> Result<T, Problem> {
    match text {
        Some(text) => serde_saphyr::from_str(text).map_err(|error| structure(&error)),
        None => Ok(T::default()),
    }
}

/// A job's name from that of a file: without directories and ending, of the letters that a name may have.
fn name_of(file: &str) -> String {
    let last = file.rsplit('/').next().unwrap_or_default();
    let stem = last.split_once('.').map_or(last, |(stem, _)| stem);
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = stem.chars().map(letter).take(NAME_BYTES_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "script".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SCRIPT: &str = "#!/bin/bash\n# trains\n#MUSTER name: try\n#MUSTER tenant: vision\n#MUSTER workers: 4\n\
        #MUSTER environment:\n#MUSTER   A: \"1\"\n\n#MUSTER accelerators: h100:8\necho $1\n";

    fn parse(script: &str) -> Result<Manifest, ManifestError> {
        parse_script(script.as_bytes(), "dir/My job.v2.sh", &["x y".to_owned()], 0)
    }

    fn problems(script: &str) -> Vec<String> {
        parse(script).unwrap_err().0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn directives_say_what_a_file_says() {
        let manifest = parse(SCRIPT).unwrap();
        manifest.check().unwrap();
        let job = &manifest.message;
        assert_eq!((job.name.as_str(), job.tenant.as_str()), ("try", "vision"));
        let group = &job.spec().groups[0];
        assert_eq!((group.workers, group.variable("A")), (4, Some("1")));
        assert_eq!(group.resources().accelerators.as_ref().unwrap().choices[0].r#type, "h100");
        assert_eq!(parse("#!/bin/sh\ntrue\n").unwrap().message.name, "my-job");
    }

    #[test]
    fn mistakes_are_named_by_line_in_the_words_of_a_directive() {
        let wrong = "#!/bin/sh\n#MUSTER name: fine\n#\n#MUSTER cpu: lots\n#MUSTER memory: 0\n";
        let found = problems(wrong);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("line 4: cpu: "), "{found:?}");
        assert!(found[1].starts_with("line 5: memory: "), "{found:?}");
        let unknown = problems("#!/bin/sh\n\n#MUSTER wrokers: 4\n");
        assert!(unknown[0].starts_with("line 3: wrokers: ") && unknown[0].contains("workers"), "{unknown:?}");
        for (script, expected) in [
            ("#!/bin/sh\necho\n#MUSTER cpu: 1\n", "line 3: #MUSTER: comes after the first command"),
            ("#!/bin/sh\n#MUSTERcpu: 1\n", "line 2: #MUSTER: must be followed by a space"),
            ("#!/bin/sh\n #MUSTER cpu: 1\n", "line 2: #MUSTER: must stand at the beginning"),
            ("#!/bin/sh\n#muster cpu: 1\n", "line 2: #MUSTER: must stand at the beginning"),
            ("#!/bin/sh\n#MUSTER command: [x]\n", "line 2: command: must be left out"),
            ("#!bash\n", "line 1: #!: must name an interpreter"),
            ("#!\n", "line 1: #!: must name an interpreter"),
        ] {
            let found = problems(script);
            assert!(found[0].starts_with(expected), "{script:?}: {found:?}");
        }
        let found = problems("#!/bin/sh\n#MUSTER workers: 0\n#MUSTER tier: royal\n");
        assert!(
            found[0].starts_with("line 3: tier: ") && found[1].starts_with("line 2: workers: "),
            "{found:?}"
        );
        let large = problems(&format!("#!/bin/sh\n{}", "x".repeat(SCRIPT_BYTES_MAX)));
        assert!(large[0].contains("put it where the nodes can read it"), "{large:?}");
    }

    #[test]
    fn the_script_runs_as_it_was_written() {
        let padding = "# é padding beyond one word of a command\n".repeat(200);
        let script = format!(
            "#!/bin/bash -e\n#MUSTER cpu: 1\n{padding}echo \"$1|$2\"\nexec 4<&0; read -r line; echo \"$line\"\nfalse\n"
        );
        let arguments = ["x y".to_owned(), "'\"$HOME".to_owned()];
        let manifest = parse_script(script.as_bytes(), "job.sh", &arguments, 0).unwrap();
        manifest.check().unwrap();
        let words = manifest.message.spec().groups[0].command();
        assert!(words.iter().all(|word| word.len() <= TEXT_BYTES_MAX));
        let directory = tempfile::tempdir().unwrap();
        let input = directory.path().join("input");
        std::fs::write(&input, "from outside\n").unwrap();
        let ran = Command::new(&words[0])
            .args(&words[1..])
            .env("TMPDIR", directory.path())
            .stdin(std::fs::File::open(&input).unwrap())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "x y|'\"$HOME\nfrom outside\n", "{ran:?}");
        assert_eq!(ran.status.code(), Some(1), "-e of the interpreter's line holds");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left of it");
    }

    #[test]
    fn options_are_judged_like_a_file() {
        let json = |text: &str| serde_json::Value::String(text.to_owned());
        let spec = [("workers", json("2")), ("cpu", json("500m")), ("regions", serde_json::json!(["eu"]))];
        let command = vec!["/usr/bin/train.py".to_owned(), "--fast".to_owned()];
        let manifest = from_options(&[], &spec, command.clone(), 0).unwrap();
        manifest.check().unwrap();
        assert_eq!(manifest.message.name, "train");
        assert_eq!(manifest.message.spec().groups[0].command(), command);
        assert_eq!(
            (
                manifest.message.spec().groups[0].resources().cpu_milli,
                manifest.message.spec().regions[0].as_str()
            ),
            (500, "eu")
        );
        let wrong = from_options(&[], &[("runTimeLimit", json("soon"))], command, 0).unwrap_err();
        let shown = wrong.0[0].to_string();
        assert!(shown.starts_with("--time-limit: "), "{shown}");
    }
}
