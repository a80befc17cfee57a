//! A file that is named on the command line, and the arguments behind it.

use muster_console::{Console, Failure};

use crate::options;

/// What a file is called in messages.
pub fn called(file: &str) -> &str {
    if file == "-" { "stdin" } else { file }
}

/// What stands behind a file on the command line: the arguments of a script.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// In the order of the command line; empty where there are none.
    pub words: &'a [String],
    /// The option of the command that a word is nearest to.
    pub nearest: fn(&str) -> Option<String>,
}

impl Arguments<'_> {
    /// Those of a file that no arguments may follow.
    pub const NONE: Arguments<'static> = Arguments { words: &[], nearest: |_| None };

    /// Says that a script gets a word that looks like a misspelt option of the command.
    pub fn note_misspelt(&self, console: &Console) {
        if let Some(note) = options::passed_on(self.words, self.nearest) {
            console.progress(&note);
        }
    }

    /// Why a file of this kind, which is no script, cannot be read with them.
    pub fn refused(&self, file: &str, kind: &str) -> Failure {
        let words = self.words.join(" ");
        let failure = Failure::usage(format!("{file} is a {kind}, which takes no arguments: {words}"));
        match self.words.first().filter(|word| word.starts_with('-')) {
            Some(word) => failure.with_next(options::unknown(word, (self.nearest)(word))),
            None => failure.with_next(
                "only a script (#!) takes arguments; name one file, in which several jobs have a line `---` between them",
            ),
        }
    }
}
