//! The table of attacks: what was tried, and what stopped it.

use crate::support::say;

/// What an attack is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Escape,
    Read,
    Forge,
    Exhaust,
    Delete,
    Stop,
    Outlive,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Escape, Kind::Read, Kind::Forge, Kind::Exhaust, Kind::Delete, Kind::Stop, Kind::Outlive];

    fn word(self) -> &'static str {
        match self {
            Kind::Escape => "escape",
            Kind::Read => "read",
            Kind::Forge => "forge",
            Kind::Exhaust => "exhaust",
            Kind::Delete => "delete",
            Kind::Stop => "stop",
            Kind::Outlive => "outlive",
        }
    }
}

/// What became of one attempt: what stopped it, or what it reached.
pub(super) type Outcome = Result<String, String>;

enum Became {
    /// And the defence that was met.
    Failed(String),
    Succeeded(String),
    /// This machine lacks what it takes.
    Skipped(String),
}

struct Row {
    kind: Kind,
    name: String,
    /// By how many, each through every door.
    times: usize,
    became: Became,
}

/// Every attack by its name.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Notes one attempt. Of several with one name, the first that reached something is what is shown.
    pub(super) fn note(&mut self, kind: Kind, name: &str, outcome: Outcome) {
        let became = match outcome {
            Ok(defence) => Became::Failed(defence),
            Err(reached) => Became::Succeeded(reached),
        };
        match self.rows.iter_mut().find(|row| row.kind == kind && row.name == name) {
            Some(row) => {
                row.times += 1;
                if !matches!(row.became, Became::Succeeded(_)) {
                    row.became = became;
                }
            }
            None => self.rows.push(Row { kind, name: name.to_owned(), times: 1, became }),
        }
    }

    /// Notes one that cannot be made here.
    pub(super) fn skip(&mut self, kind: Kind, name: &str, why: &str) {
        let became = Became::Skipped(why.to_owned());
        self.rows.push(Row { kind, name: name.to_owned(), times: 0, became });
    }

    /// Those that were made, by name.
    pub(super) fn made(&self) -> usize {
        self.rows.iter().filter(|row| row.times > 0).count()
    }

    /// Prints the table; panics with what succeeded, if anything did.
    pub(super) fn conclude(mut self, of: &str) {
        self.rows.sort_by_key(|row| row.kind);
        for row in &self.rows {
            let outcome = match &row.became {
                Became::Failed(defence) => format!("failed: {defence}"),
                Became::Succeeded(reached) => format!("SUCCEEDED: {reached}"),
                Became::Skipped(why) => {
                    say(&format!("skipped: attack {:?}: {why}", row.name));
                    continue;
                }
            };
            let outcome: String = outcome.split_whitespace().collect::<Vec<_>>().join(" ");
            let outcome: String = outcome.chars().take(110).collect();
            say(&format!("| {:48} | {:7} | {outcome}", row.name, row.kind.word()));
        }
        let counts: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| {
                let made = self.rows.iter().filter(|row| row.kind == *kind && row.times > 0).count();
                format!("{made} {}", kind.word())
            })
            .collect();
        let attempts: usize = self.rows.iter().map(|row| row.times).sum();
        let broken: Vec<String> = self
            .rows
            .iter()
            .filter_map(|row| match &row.became {
                Became::Succeeded(reached) => Some(format!("{} {}: {reached}", row.kind.word(), row.name)),
                _ => None,
            })
            .collect();
        let skipped = self.rows.iter().filter(|row| row.times == 0).count();
        say(&format!(
            "{of}: {} attacks ({}), {attempts} attempts, {} succeeded, {skipped} could not be made here",
            self.made(),
            counts.join(", "),
            broken.len()
        ));
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
