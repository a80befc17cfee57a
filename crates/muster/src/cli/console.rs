//! Where output goes, and in which form.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;

use super::failure::{Exit, Failure};

/// Forms of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns for people
    Table,
    /// More columns
    Wide,
    /// One JSON document (one per line when following)
    Json,
    /// One YAML document (several when following)
    Yaml,
    /// Ids or names only, one per line
    Name,
}

/// Stdout and stderr with what the user wants of them.
pub struct Console {
    pub format: Format,
    colour: bool,
    quiet: bool,
}

impl Console {
    pub fn new(format: Format, no_color: bool, quiet: bool) -> Console {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Console { format, colour: wanted && !no_color && io::stdout().is_terminal(), quiet }
    }

    /// The same console with another form of output.
    pub fn with_format(&self, format: Format) -> Console {
        Console { format, colour: self.colour, quiet: self.quiet }
    }

    /// Whether the output is for programs.
    pub fn is_structured(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    pub fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// What others said on their stderr, as it is.
    pub fn error_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stderr().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// A line of data.
    pub fn line(&self, line: &str) -> Result<(), Failure> {
        self.bytes(format!("{line}\n").as_bytes())
    }

    /// One object as JSON or YAML.
    pub fn object(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = match self.format {
            Format::Yaml => yaml(value)?,
            _ => serde_json::to_string_pretty(value).map_err(unserialisable)? + "\n",
        };
        self.bytes(text.as_bytes())
    }

    /// One of many objects: JSON lines, or YAML documents.
    pub fn event(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = match self.format {
            Format::Yaml => format!("---\n{}", yaml(value)?),
            _ => serde_json::to_string(value).map_err(unserialisable)? + "\n",
        };
        self.bytes(text.as_bytes())
    }

    pub fn table(&self, grid: &Grid) -> Result<(), Failure> {
        self.bytes(grid.render(self.colour).as_bytes())
    }

    /// Progress, unless it is unwanted.
    pub fn progress(&self, line: &str) {
        if !self.quiet {
            self.error(line);
        }
    }

    /// Whether progress may be drawn over itself.
    pub fn shows_bars(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// What is said in any case.
    pub fn error(&self, line: &str) {
        // Nobody is left to tell when stderr is gone.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

fn yaml(value: &impl Serialize) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(unserialisable)
}

fn unserialisable(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("the answer could not be written: {error}"))
}

/// A table without lines around its cells: easy on the eye, and on `awk`.
pub struct Grid {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// The column whose words are coloured by what they mean.
    state: Option<usize>,
}

impl Grid {
    pub fn new(header: Vec<&'static str>) -> Grid {
        let state = header.iter().position(|title| matches!(*title, "PHASE" | "STATUS" | "ROLE" | "STATE"));
        Grid { header, rows: Vec::new(), state }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        // An empty cell would shift the fields of whoever splits at blanks.
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { one_line(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// As a part of a longer text: without colours and unwrapped.
    pub fn plain(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.header.get(column).map_or(0, |title| title.len())]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let padded: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            padded.join("  ").trim_end().to_owned() + "\n"
        };
        let rows = self.rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
        [line(self.header.clone())].into_iter().chain(rows).collect()
    }

    /// Only the last column is ever wrapped: the others hold ids and numbers that people copy.
    fn render(&self, colour: bool) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if io::stdout().is_terminal() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        } else {
            table.force_no_tty();
        }
        if colour {
            table.enforce_styling();
        }
        table.set_header(self.header.iter().map(Cell::new).collect::<Vec<_>>());
        for row in &self.rows {
            let cell = |(column, text): (usize, &String)| match self.state {
                Some(state) if state == column => coloured(text),
                _ => Cell::new(text),
            };
            table.add_row(row.iter().enumerate().map(cell).collect::<Vec<_>>());
        }
        let last = self.header.len().saturating_sub(1);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index == last { 0 } else { 2 }));
            if index < last {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

fn coloured(text: &str) -> Cell {
    let cell = Cell::new(text);
    match text {
        "running" | "succeeded" | "up" | "leader" => cell.fg(Color::Green),
        "failed" | "lost" | "unreachable" => cell.fg(Color::Red),
        "pending" | "starting" | "stopping" | "cordoned" | "candidate" => cell.fg(Color::Yellow),
        _ => cell,
    }
}

/// Text of others on our terminal: no control characters, no line breaks.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_keep_their_fields() {
        let mut grid = Grid::new(vec!["ID", "PHASE", "WORKERS", "REASON"]);
        grid.row(vec!["job-1".into(), "running".into(), "4".into(), String::new()]);
        grid.row(vec!["job-abc".into(), "pending".into(), "16".into(), "WAITING\u{1b}[2J\nhere".into()]);
        assert_eq!(
            grid.render(false),
            "ID       PHASE    WORKERS  REASON\n\
             job-1    running  4        -\n\
             job-abc  pending  16       WAITING [2J here\n"
        );
        assert!(grid.render(true).contains("\u{1b}["));
    }
}
