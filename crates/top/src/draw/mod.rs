//! A frame: model, view and time in, cells out. No IO and no clock.

mod details;
mod tables;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::model::{Feed, Model};
use crate::view::{Input, Tab, View};

pub(crate) use tables::row_count;

/// Smallest screen that a frame is drawn on.
const WIDTH_MIN: u16 = 40;
pub(crate) const HEIGHT_MIN: u16 = 8;
/// Lines around the rows of a table: status, tabs, titles, and the last line.
pub(crate) const FRAME_LINES: u16 = 5;

/// The two clocks of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Since the Unix epoch, for ages of jobs.
    pub(crate) unix_ms: u64,
    /// Monotonic, for how long ago something was heard.
    pub(crate) monotonic_ms: u64,
}

/// How things are marked. What a colour marks, text and weight mark too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) has_colour: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn problem(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For a word that names a state.
    fn state(self, word: &str) -> Style {
        match word {
            "running" | "succeeded" | "up" | "leader" => self.colour(Color::Green),
            "failed" | "lost" | "unreachable" | "stopped" => self.colour(Color::Red),
            "pending" | "starting" | "stopping" | "cordoned" | "draining" | "quarantined" | "repair"
            | "out-of-service" | "candidate" | "unconfirmed" => self.colour(Color::Yellow),
            _ => Style::new(),
        }
    }
}

/// Where and how to draw.
pub(crate) struct Canvas<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) theme: Theme,
}

impl Canvas<'_> {
    /// One line of text in a number of cells; one that is cut ends with `…`. Where it ends.
    pub(crate) fn text(&mut self, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
        let area = self.buffer.area;
        if y >= area.bottom() || x >= area.right() || width == 0 {
            return x;
        }
        let width = width.min(area.right() - x);
        if Span::raw(text).width() <= usize::from(width) {
            return self.buffer.set_stringn(x, y, text, usize::from(width), style).0;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(width - 1), style);
        self.buffer.set_stringn(end, y, "…", 1, style).0
    }

    /// Fills a line.
    fn line_style(&mut self, area: Rect, y: u16, style: Style) {
        if y < area.bottom() {
            self.buffer.set_style(Rect { y, height: 1, ..area }, style);
        }
    }
}

/// Draws a frame.
pub(crate) fn frame(model: &Model, view: &View, clock: Clock, area: Rect, canvas: &mut Canvas<'_>) {
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("too small: {WIDTH_MIN}x{HEIGHT_MIN} cells are needed");
        canvas.text(area.x, area.y, &text, area.width, Style::new());
        return;
    }
    status_line(model, clock, area, canvas);
    tab_line(view, area, canvas);
    let body = Rect { y: area.y + 2, height: area.height - 3, ..area };
    if view.shows_help {
        details::help(body, canvas);
    } else if view.shows_detail {
        details::row(model, view, clock, body, canvas);
    } else {
        tables::draw(model, view, clock, body, canvas);
    }
    last_line(model, view, area, canvas);
}

/// As of when this is, and who leads.
fn status_line(model: &Model, clock: Clock, area: Rect, canvas: &mut Canvas<'_>) {
    let (text, is_well) = status_text(model, clock);
    let style = if is_well { canvas.theme.strong() } else { canvas.theme.problem() };
    canvas.text(area.x, area.y, &text, area.width, style);
}

fn status_text(model: &Model, clock: Clock) -> (String, bool) {
    if let Some(silence) = model.silence_ms(clock.monotonic_ms) {
        let seconds = silence / 1_000;
        let error = Feed::ALL.into_iter().map(|feed| model.feed(feed).error).find(|error| !error.is_empty());
        let why = error.map(|error| format!(": {error}")).unwrap_or_default();
        let what = match model.has_heard() {
            true => format!("NOTHING ANSWERS for {seconds} s; shown as of index {}{why}", model.log_index),
            false => format!("NOTHING ANSWERS for {seconds} s{why}"),
        };
        return (what, false);
    }
    if !model.has_heard() {
        return ("asking the cluster …".to_owned(), true);
    }
    let age = match model.age_ms(clock.monotonic_ms) {
        Some(ms) => format!("{} s old", ms / 1_000),
        None => "age not known".to_owned(),
    };
    let replicas = &model.cluster.replicas;
    let reached = replicas.iter().filter(|replica| replica.is_reached()).count();
    let leader = model.leader().map_or("NO LEADER".to_owned(), |leader| format!("leader {}", leader.id));
    let answers = format!("{reached} of {} replicas answer", replicas.len());
    let cut = if model.is_cut() { "; TOO MANY ROWS, some are left out" } else { "" };
    let is_well = model.leader().is_some() && reached == replicas.len() && !model.is_cut();
    (format!("as of index {}, {age}; {leader}; {answers}{cut}", model.log_index), is_well)
}

/// The tabs; the one that is shown is in brackets, so that it needs no colour.
fn tab_line(view: &View, area: Rect, canvas: &mut Canvas<'_>) {
    let mut x = area.x;
    for tab in Tab::ALL {
        let is_shown = tab == view.tab;
        let text = match is_shown {
            true => format!("[{} {}]", tab.number() + 1, tab.word()),
            false => format!(" {} {} ", tab.number() + 1, tab.word()),
        };
        let style = if is_shown { canvas.theme.selected() } else { Style::new() };
        let width = area.right().saturating_sub(x);
        x = canvas.text(x, area.y + 1, &text, width, style);
    }
}

/// What is typed, what is wrong, or which keys there are.
fn last_line(model: &Model, view: &View, area: Rect, canvas: &mut Canvas<'_>) {
    let y = area.bottom() - 1;
    let (text, style) = match view.input {
        Some(Input::Text) => (
            format!("part of a name or id: {}▏ (Enter keeps it, Esc clears it)", view.text),
            canvas.theme.strong(),
        ),
        Some(Input::Tenant) => {
            (format!("tenant: {}▏ (Enter keeps it, Esc clears it)", view.tenant), canvas.theme.strong())
        }
        None => match problem(model) {
            Some(problem) => (problem, canvas.theme.problem()),
            None => (
                "? help  q quit  Tab next  ↑↓ select  Enter details  / name  t tenant  f state  s sort"
                    .to_owned(),
                Style::new(),
            ),
        },
    };
    canvas.line_style(area, y, Style::new());
    canvas.text(area.x, y, &text, area.width, style);
}

/// The first thing that should be looked at.
fn problem(model: &Model) -> Option<String> {
    for feed in Feed::ALL {
        let state = model.feed(feed);
        if !state.error.is_empty() {
            return Some(format!("! {}: {}", feed.word(), state.error));
        }
    }
    let warnings = &model.cluster.warnings;
    let more = match warnings.len() {
        0 => return None,
        1 => String::new(),
        count => format!(" (and {} more: muster cluster status)", count - 1),
    };
    Some(format!("! {}{more}", warnings[0]))
}

#[cfg(test)]
#[path = "../draw_tests.rs"]
mod tests;
