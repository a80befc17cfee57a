//! Where output goes, and in which form.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use comfy_table::{Cell as TableCell, Color, ContentArrangement, Table, presets};
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
    /// A page with pictures: `parallel plan` and reports have one
    Html,
    /// A header and one line for each row, for spreadsheets: reports have it
    Csv,
}

/// Stdout and stderr with what the user wants of them.
pub struct Console {
    /// The form of the output.
    pub format: Format,
    colour: bool,
    quiet: bool,
    /// Whether nothing has been written so far.
    silent: Cell<bool>,
}

impl Console {
    /// A console for these options.
    pub fn new(format: Format, no_color: bool, quiet: bool) -> Console {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Console {
            format,
            colour: wanted && !no_color && !is_dumb && io::stdout().is_terminal(),
            quiet,
            silent: Cell::new(true),
        }
    }

    /// The same console with another form of output.
    pub fn with_format(&self, format: Format) -> Console {
        Console { format, colour: self.colour, quiet: self.quiet, silent: self.silent.clone() }
    }

    /// Whether the output is for programs.
    pub fn is_structured(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    /// Whether more columns are wanted.
    pub fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Whether nothing has been written so far.
    pub fn has_been_silent(&self) -> bool {
        self.silent.get()
    }

    /// Whether the output may have colours.
    pub fn has_colour(&self) -> bool {
        self.colour
    }

    /// Columns of the terminal that stdout is; none for a pipe or a file.
    pub fn terminal_width(&self) -> Option<u16> {
        terminal_width()
    }

    /// Bytes of data, flushed.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.silent.set(false);
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

    /// A table: one line a row. On a terminal it is as wide as that, and what does not fit ends with `…`; with
    /// `-o wide`, and for pipes, it is as wide as its cells.
    pub fn table(&self, grid: &Grid) -> Result<(), Failure> {
        let width = (!self.is_wide()).then(terminal_width).flatten();
        self.bytes(grid.render(self.colour, width).as_bytes())
    }

    /// A table that lists what there is, with a word on stderr where there is nothing: a header alone could be a mistake.
    pub fn list(&self, grid: &Grid, when_none: &str) -> Result<(), Failure> {
        if grid.rows.is_empty() {
            self.progress(when_none);
        }
        self.table(grid)
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

    /// Writes a failure to stderr; the exit code.
    pub fn report(&self, failure: &Failure) -> ExitCode {
        if !failure.headline().is_empty() {
            self.error(&format!("error: {}", one_line(failure.headline())));
            for detail in failure.details() {
                self.error(&format!("  {}", one_line(detail)));
            }
            if let Some(next) = failure.next() {
                self.error(&format!("next: {next}"));
            }
        }
        failure.exit().code()
    }

    /// What is shown in any case.
    pub fn error(&self, line: &str) {
        self.silent.set(false);
        // Nobody is left to tell when stderr is gone.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// Columns of the terminal that stdout is; none for a pipe or a file.
fn terminal_width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    Table::new().width().filter(|width| *width > 0)
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
    /// Columns that a narrow terminal goes without, the first one first.
    optional: Vec<&'static str>,
}

/// What a table leaves to its last column at least, before it goes without others.
const LAST_COLUMN_WIDTH_MIN: usize = 28;
/// Longest cell of another column on a terminal.
const CELL_WIDTH_MAX: usize = 32;
/// Blanks between columns.
const GAP: usize = 2;

impl Grid {
    /// A table without rows.
    pub fn new(header: Vec<&'static str>) -> Grid {
        let state = header.iter().position(|title| matches!(*title, "PHASE" | "STATUS" | "ROLE" | "STATE"));
        Grid { header, rows: Vec::new(), state, optional: Vec::new() }
    }

    /// Columns that a narrow terminal goes without, the first one first.
    pub fn optional(mut self, titles: &[&'static str]) -> Grid {
        self.optional = titles.to_vec();
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        // An empty cell would shift the fields of a reader that splits at blanks.
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { one_line(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// As a part of a longer text: without colours, as wide as its cells.
    pub fn plain(&self) -> String {
        self.render(false, None)
    }

    /// The columns that are shown, and how wide each may be, in a terminal of this width.
    fn layout(&self, width: Option<u16>) -> Vec<(usize, Option<usize>)> {
        let mut columns: Vec<usize> = (0..self.header.len()).collect();
        let Some(width) = width.map(usize::from) else {
            return columns.into_iter().map(|column| (column, None)).collect();
        };
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            let title = self.header.get(column).map_or(0, |title| title.len());
            cells.chain([title]).max().unwrap_or(0)
        };
        let last = self.header.len().saturating_sub(1);
        let taken = |columns: &[usize]| -> usize {
            let others = columns.iter().filter(|column| **column != last);
            others.map(|column| widest(*column).min(CELL_WIDTH_MAX) + GAP).sum()
        };
        let wanted = widest(last).min(LAST_COLUMN_WIDTH_MIN);
        for title in &self.optional {
            if taken(&columns) + wanted <= width {
                break;
            }
            columns.retain(|column| self.header.get(*column) != Some(title));
        }
        let rest = width.saturating_sub(taken(&columns)).max(wanted.min(8));
        let limit = |column: usize| if column == last { rest } else { CELL_WIDTH_MAX };
        columns.into_iter().map(|column| (column, Some(limit(column)))).collect()
    }

    /// One line a row. Cells that are too long for a terminal are cut.
    fn render(&self, colour: bool, width: Option<u16>) -> String {
        let layout = self.layout(width);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.force_no_tty();
        if colour {
            table.enforce_styling();
        }
        let cells = |row: &[String], is_header: bool| -> Vec<TableCell> {
            let cell = |&(column, limit): &(usize, Option<usize>)| {
                let text = row.get(column).map_or("", String::as_str);
                let shown = limit.map_or_else(|| text.to_owned(), |limit| cut(text, limit));
                match self.state {
                    Some(state) if state == column && !is_header => coloured(&shown),
                    _ => TableCell::new(shown),
                }
            };
            layout.iter().map(cell).collect()
        };
        let header: Vec<String> = self.header.iter().map(|title| (*title).to_owned()).collect();
        table.set_header(cells(&header, true));
        for row in &self.rows {
            table.add_row(cells(row, false));
        }
        let last = layout.len().saturating_sub(1);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index == last { 0 } else { GAP as u16 }));
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// Text of at most this many characters; what is cut off is shown by `…`.
fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
            // Not inside a word, unless most of the text would go with it.
            let whole =
                kept.rfind(' ').filter(|at| *at * 2 > kept.len() && !text[kept.len()..].starts_with(' '));
            let kept = whole.map_or(kept.as_str(), |at| &kept[..at]);
            format!("{kept}…")
        }
    }
}

fn coloured(text: &str) -> TableCell {
    let cell = TableCell::new(text);
    match text {
        "running" | "succeeded" | "up" | "leader" => cell.fg(Color::Green),
        "failed" | "lost" | "unreachable" => cell.fg(Color::Red),
        "pending" | "starting" | "stopping" | "cordoned" | "candidate" => cell.fg(Color::Yellow),
        _ => cell,
    }
}

/// Text of others on our terminal: no control characters, no line breaks, and nothing that cannot be seen and changes the
/// order in which a terminal shows the rest of the line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_invisible(c) { ' ' } else { c }).collect()
}

/// Marks of direction, separators of lines and paragraphs, and characters without width.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
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
            grid.render(false, None),
            "ID       PHASE    WORKERS  REASON\n\
             job-1    running  4        -\n\
             job-abc  pending  16       WAITING [2J here\n"
        );
        assert!(grid.render(true, None).contains("\u{1b}["));
    }

    #[test]
    fn text_of_others_cannot_turn_a_line_around() {
        assert_eq!(one_line("a\u{202e}b\u{2066}c\u{200b}d\u{feff}e\rf"), "a b c d e f");
        assert_eq!(one_line("äöü 日本 שלום"), "äöü 日本 שלום");
    }

    #[test]
    fn on_a_terminal_a_row_is_one_line_that_fits() {
        let mut grid = Grid::new(vec!["ID", "NAME", "TIER", "PHASE", "REASON"]).optional(&["TIER"]);
        let why = "WAITING_FOR_CAPACITY: 4 workers with 8 devices each wait for devices that others hold"
            .to_owned();
        for n in 1..=3 {
            let name = "a-name-that-is-much-longer-than-anybody-should-have-to-read".to_owned();
            grid.row(vec![format!("job-{n}"), name, "standard".into(), "pending".into(), why.clone()]);
        }
        for width in [40u16, 80, 120, 200] {
            let shown = grid.render(false, Some(width));
            assert_eq!(shown.lines().count(), 4, "{shown}");
            let longest = shown.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            // A terminal narrower than the columns that cannot be left out is the only one that breaks lines.
            assert!(longest <= usize::from(width).max(62), "{width}: {shown}");
        }
        let narrow = grid.render(false, Some(80));
        assert!(!narrow.contains("TIER") && narrow.contains('…'), "{narrow}");
        assert!(grid.render(false, Some(200)).contains("that others hold"));
    }
}
