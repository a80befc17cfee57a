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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run::RunArgs, submit::SubmitArgs};

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
