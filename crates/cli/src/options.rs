//! Words that begin with a dash where a command takes any word, and are none of its options.

use clap::{Arg, Args, Command};

/// The option of a command that an unknown word is nearest to, with its dashes.
pub fn nearest<A: Args>(word: &str) -> Option<String> {
    let word = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let command = A::augment_args(Command::new("command"));
    let known: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    muster_manifest::suggest::nearest(word, &known).map(|name| format!("--{name}"))
}

/// What to do about a word that is no option, with the option that it is nearest to.
pub fn unknown(word: &str, nearest: Option<String>) -> String {
    let word = word.split('=').next().unwrap_or_default();
    match nearest {
        Some(option) => format!("{word} is no option here; did you mean {option}? --help lists them all"),
        None => format!(
            "{word} is no option here; --help lists them, and `muster schema job` has what else a job file may say"
        ),
    }
}

/// The note where the arguments of a script begin with what looks like a misspelt option of the command. It may be one that the
/// script has, so that it is no mistake; the same word as an option was written behind `--` on purpose.
pub fn passed_on(words: &[String], nearest: fn(&str) -> Option<String>) -> Option<String> {
    let word = words.first().filter(|word| word.starts_with("--"))?.split('=').next()?;
    let option = nearest(word).filter(|option| option.as_str() != word)?;
    Some(format!(
        "note: {word} and what follows go to the script; if you meant {option}, write it before the file and cancel this job"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run::RunArgs, submit::SubmitArgs};

    #[test]
    fn a_misspelt_option_that_a_script_gets_is_told() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            passed_on(&words, nearest::<RunArgs>)
        };
        assert!(
            of(&["--detahc"])
                .is_some_and(|note| note.contains("--detahc and what follows") && note.contains("--detach"))
        );
        assert!(of(&["--tiem-limit=4h", "x"]).is_some_and(|note| note.contains("if you meant --time-limit")));
        for words in [&["--detach"] as &[&str], &["--epochs", "3"], &["data", "--detahc"], &["-d"], &[]] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }

    #[test]
    fn an_unknown_option_leads_to_the_one_that_was_meant() {
        assert_eq!(nearest::<RunArgs>("--tiem-limit=4h").as_deref(), Some("--time-limit"));
        assert_eq!(nearest::<RunArgs>("--acelerators").as_deref(), Some("--accelerators"));
        assert_eq!(nearest::<SubmitArgs>("--wath").as_deref(), Some("--watch"));
        assert_eq!(nearest::<SubmitArgs>("--").as_deref(), None);
        assert_eq!(nearest::<RunArgs>("-x").as_deref(), None);
    }

    #[test]
    fn what_is_near_nothing_leads_to_help() {
        assert!(unknown("--after=job-1", None).starts_with("--after is no option here; --help"));
        assert!(unknown("--wath", Some("--watch".to_owned())).contains("did you mean --watch?"));
    }
}
