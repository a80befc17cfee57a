//! A command line that cannot be read, in words for people.

use std::io::Write as _;
use std::process::ExitCode;

/// What Rust says of a text that is no number, and what people are told.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "must be a whole number"),
    ("cannot parse integer from empty string", "must be a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
];

/// Says what is wrong, or prints the help that was asked for, and how the program ends.
pub fn refused(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    match in_words(&text) {
        Some(words) => {
            let _ = write!(std::io::stderr().lock(), "{words}");
            ExitCode::from(2)
        }
        None => error.exit(),
    }
}

/// The text without Rust's words; none where it has none of them.
fn in_words(text: &str) -> Option<String> {
    // They stand at the end of a line, behind what the user wrote, which is left as it is.
    let lines = text.split_inclusive('\n').map(|line| {
        let (words, end) = line.strip_suffix('\n').map_or((line, ""), |words| (words, "\n"));
        let found = NUMBERS.iter().find_map(|(rust, plain)| Some((words.strip_suffix(*rust)?, *plain)));
        found.map_or_else(|| line.to_owned(), |(before, plain)| format!("{before}{plain}{end}"))
    });
    let told: String = lines.collect();
    (told != text).then_some(told)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::in_words;

    fn told(words: &[&str]) -> Option<String> {
        let parsed = crate::Arguments::try_parse_from(words).err()?;
        in_words(&parsed.render().to_string())
    }

    #[test]
    fn a_text_that_is_no_number_is_refused_in_plain_words() {
        for (text, expected) in [
            ("x", "'x' for '<INDEX>': must be a whole number"),
            ("", "'' for '<INDEX>': must be a whole number"),
            ("99999999999999999999", "'99999999999999999999' for '<INDEX>': the number is too large"),
        ] {
            let told = told(&["muster", "log", "show", text]).unwrap_or_default();
            assert!(told.contains(expected), "{told}");
        }
        assert_eq!(told(&["muster", "log", "shwo"]), None);
    }
}
