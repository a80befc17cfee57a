//! The timeline as a picture: steps, leaderships, and what was answered, over one axis of seconds from the fault.

use std::fmt::Write as _;

use super::Page;
use super::text;
use super::timeline::{Bin, Timeline};

const WIDTH: i64 = 960;
const LEFT: i64 = 150;
const RIGHT: i64 = 16;
const LANE: i64 = 18;
const CHART: i64 = 84;
const GAP: i64 = 14;
/// Most steps that each get a separate lane.
const STEPS_SHOWN_MAX: usize = 12;
const STEP_CHARS_MAX: usize = 60;

struct Axis {
    from_ms: i64,
    to_ms: i64,
}

impl Axis {
    fn of(timeline: &Timeline) -> Axis {
        let from_ms = timeline.bins.first().map_or(0, |bin| bin.from_ms);
        let to_ms = timeline.bins.last().map_or(1, |bin| bin.from_ms + timeline.bin_ms as i64);
        Axis { from_ms, to_ms: to_ms.max(from_ms + 1) }
    }

    /// Where a time stands, inside the picture.
    fn x(&self, ms: i64) -> i64 {
        let ms = ms.clamp(self.from_ms, self.to_ms);
        LEFT + (ms - self.from_ms) * (WIDTH - LEFT - RIGHT) / (self.to_ms - self.from_ms)
    }

    /// Seconds between two marks, so that there are about ten.
    fn step_s(&self) -> i64 {
        let length_s = (self.to_ms - self.from_ms) / 1_000;
        [1, 2, 5, 10, 20, 30, 60, 120, 300, 600]
            .into_iter()
            .find(|step| length_s / step <= 12)
            .unwrap_or(1_200)
    }
}

/// What is drawn of each bin: its name, its class, how many.
type Chart = (&'static str, &'static str, fn(&Bin) -> u32);

/// The picture as SVG; its colours are those of the page around it.
pub(super) fn svg(page: &Page<'_>) -> String {
    let timeline = &page.timeline;
    let axis = Axis::of(timeline);
    let steps = page.run.steps.len().min(STEPS_SHOWN_MAX) as i64;
    let charts: [Chart; 4] = [
        ("submissions", "acknowledged", |bin| bin.acknowledged),
        ("given up or refused", "failed", |bin| bin.failed),
        ("linearizable reads", "linearizable", |bin| bin.linearizable),
        ("other reads", "other", |bin| bin.other_reads),
    ];
    let top = 8;
    let charts_top = top + (steps + 1) * LANE + 2 * GAP;
    let height = charts_top + charts.len() as i64 * (CHART / 2 + GAP) + CHART / 2 + 30;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"What happened when, in seconds from the fault\">\n"
    );
    if let Some((from_ms, to_ms)) = timeline.silence {
        let (from, to) = (axis.x(from_ms), axis.x(to_ms));
        let width = (to - from).max(1);
        let silent = text::milliseconds(to_ms.abs_diff(from_ms));
        let _ = writeln!(
            svg,
            "<rect class=\"silence\" x=\"{from}\" y=\"{top}\" width=\"{width}\" height=\"{}\"><title>no submission acknowledged for {silent}</title></rect>",
            height - top - 22
        );
    }
    marks(&mut svg, &axis, top, height);
    lanes(&mut svg, page, &axis, top);
    terms(&mut svg, timeline, &axis, top + steps * LANE + GAP);
    let mut y = charts_top;
    for (place, (name, class, of)) in charts.into_iter().enumerate() {
        let tall = if place == 0 { CHART } else { CHART / 2 };
        chart(&mut svg, timeline, &axis, y, tall, name, class, of);
        y += tall + GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn label(svg: &mut String, y: i64, words: &str) {
    let _ = writeln!(svg, "<text class=\"label\" x=\"{}\" y=\"{y}\">{}</text>", LEFT - 8, text::html(words));
}

fn marks(svg: &mut String, axis: &Axis, top: i64, height: i64) {
    let step_s = axis.step_s();
    let first = axis.from_ms.div_euclid(1_000 * step_s) + 1;
    let last = axis.to_ms.div_euclid(1_000 * step_s);
    for mark in first..=last {
        let second = mark * step_s;
        let x = axis.x(second * 1_000);
        let class = if second == 0 { "fault" } else { "mark" };
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{}\"/><text class=\"tick\" x=\"{x}\" y=\"{}\">{second} s</text>",
            height - 22,
            height - 8
        );
    }
}

fn lanes(svg: &mut String, page: &Page<'_>, axis: &Axis, top: i64) {
    for (lane, step) in page.run.steps.iter().take(STEPS_SHOWN_MAX).enumerate() {
        let y = top + lane as i64 * LANE;
        let from = axis.x(page.run.since_fault_ms(step.at_us));
        let to = step.until_us.map_or(from, |until_us| axis.x(page.run.since_fault_ms(until_us)));
        let width = (to - from).max(4);
        let short: String = step.text.chars().take(STEP_CHARS_MAX).collect();
        label(svg, y + 13, &step.verb);
        let _ = writeln!(
            svg,
            "<rect class=\"step\" x=\"{from}\" y=\"{}\" width=\"{width}\" height=\"{}\" rx=\"2\"><title>{}</title></rect>",
            y + 2,
            LANE - 4,
            text::html(&step.text)
        );
        // To the right of the bar's start where that fits, else to the left.
        let (x, class) = if from < WIDTH / 2 { (from + 6, "note") } else { (from - 6, "note end") };
        let _ =
            writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{}</text>", y + 13, text::html(&short));
    }
}

fn terms(svg: &mut String, timeline: &Timeline, axis: &Axis, y: i64) {
    label(svg, y + 13, "leader");
    for (place, term) in timeline.terms.iter().enumerate() {
        let from = axis.x(term.from_ms);
        let to = timeline.terms.get(place + 1).map_or(axis.x(axis.to_ms), |next| axis.x(next.from_ms));
        let (width, class) = ((to - from).max(1), if place % 2 == 0 { "term" } else { "term odd" });
        let words = format!("r{}, term {}", term.replica, term.term);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{from}\" y=\"{}\" width=\"{width}\" height=\"{}\"><title>{words}</title></rect>",
            y + 2,
            LANE - 4
        );
        if width > 70 {
            let _ = writeln!(svg, "<text class=\"on\" x=\"{}\" y=\"{}\">{words}</text>", from + 6, y + 13);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "one call; a struct would only name its lines twice")]
fn chart(
    svg: &mut String,
    timeline: &Timeline,
    axis: &Axis,
    y: i64,
    tall: i64,
    name: &str,
    class: &str,
    of: fn(&Bin) -> u32,
) {
    let bottom = y + tall;
    let most = i64::from(timeline.bins.iter().map(of).max().unwrap_or(0));
    let per_s = most * 1_000 / (timeline.bin_ms as i64).max(1);
    label(svg, y + tall / 2, name);
    label(svg, y + tall / 2 + 13, &format!("up to {per_s}/s"));
    let _ = writeln!(
        svg,
        "<line class=\"base\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{}\" y2=\"{bottom}\"/>",
        WIDTH - RIGHT
    );
    let mut path = format!("M{LEFT} {bottom}");
    for bin in &timeline.bins {
        let height = i64::from(of(bin)) * tall / most.max(1);
        let (from, to) = (axis.x(bin.from_ms), axis.x(bin.from_ms + timeline.bin_ms as i64));
        let _ = write!(path, "L{from} {0}L{to} {0}", bottom - height);
    }
    let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}L{} {bottom}Z\"/>", axis.x(axis.to_ms));
}
