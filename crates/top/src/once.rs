//! One frame for pipes and files.

use std::time::{Duration, Instant};

use muster_console::{Console, Document, Exit, Failure, Items};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde::Serialize;

use crate::draw::{self, Canvas, Clock, Theme};
use crate::feed::Feeds;
use crate::model::{Feed, Model};
use crate::rows::JobRow;
use crate::screen::{since, unix_ms};
use crate::view::{FleetRow, Tab, View};

/// How long the present may take to come, where the command line does not state it.
const PRESENT_WITHIN: Duration = Duration::from_secs(10);
/// How long explanations may take.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(3);
/// Width where the output is no terminal.
const WIDTH: u16 = 200;
/// Rows of one frame as text; `-o json` has all.
const ROWS_MAX: usize = 2_000;

/// Content of the document for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Frame<'a> {
    tab: &'static str,
    /// How old it may be; left out when that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    warnings: &'a [String],
    /// Whether rows were left out because there are too many.
    cut: bool,
    #[serde(flatten)]
    rows: Rows<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Rows<'a> {
    Jobs(Items<JobItem<'a>>),
    Queues(Items<QueueItem<'a>>),
    Fleet(Items<&'a crate::rows::NodeRow>),
    Replicas(Items<&'a crate::rows::ReplicaRow>),
    Events(Items<&'a crate::rows::EventRow>),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobItem<'a> {
    #[serde(flatten)]
    job: &'a JobRow,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_before: Option<u64>,
    nodes: Vec<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueItem<'a> {
    #[serde(flatten)]
    queue: &'a crate::rows::QueueRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_job: Option<&'a str>,
}

/// Receives the present, and prints it.
pub(crate) async fn run(
    console: &Console,
    mut feeds: Feeds,
    view: View,
    theme: Theme,
    within: Option<Duration>,
) -> Result<Exit, Failure> {
    let begun = Instant::now();
    let mut model = Model::default();
    let limit = within.unwrap_or(PRESENT_WITHIN);
    let present = receive(&mut feeds, &mut model, begun, is_settled);
    let is_whole = tokio::time::timeout(limit, present).await.is_ok();
    if !model.has_heard() {
        return Err(nothing_answers(&model, limit));
    }
    let wanted = view.to_explain(&model, since(begun));
    if is_whole && !wanted.is_empty() {
        feeds.to_explain.send_replace(wanted);
        let explained = explain(&mut feeds, &mut model, &view, begun);
        // Those that are not explained in time are shown without.
        let _ = tokio::time::timeout(EXPLAINED_WITHIN.min(limit), explained).await;
    }
    if !is_whole {
        console.progress("not all of it was received in time; --timeout allows more");
    }
    let clock = Clock { unix_ms: unix_ms(), monotonic_ms: since(begun) };
    if console.is_structured() {
        console.object(&document(&model, &view, clock))?;
    } else {
        let width = console.terminal_width().unwrap_or(WIDTH);
        console.bytes(text(&model, &view, clock, width, theme).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// Whether each feed has brought the present, or says why it cannot.
fn is_settled(model: &Model) -> bool {
    let is_settled = |feed| {
        let state = model.feed(feed);
        state.is_complete || !state.error.is_empty()
    };
    model.is_complete() || (model.has_heard() && Feed::ALL.into_iter().all(is_settled))
}

async fn receive(feeds: &mut Feeds, model: &mut Model, begun: Instant, is_enough: impl Fn(&Model) -> bool) {
    while !is_enough(model) {
        let Some(update) = feeds.updates.recv().await else { return };
        model.apply(update, since(begun));
    }
}

/// Until no job of the view lacks its explanation.
async fn explain(feeds: &mut Feeds, model: &mut Model, view: &View, begun: Instant) {
    loop {
        let wanted = view.to_explain(model, since(begun));
        if wanted.is_empty() {
            return;
        }
        feeds.to_explain.send_replace(wanted);
        let Some(update) = feeds.updates.recv().await else { return };
        model.apply(update, since(begun));
    }
}

fn nothing_answers(model: &Model, limit: Duration) -> Failure {
    let errors = Feed::ALL.into_iter().filter_map(|feed| {
        let error = model.feed(feed).error;
        (!error.is_empty()).then(|| format!("{}: {error}", feed.word()))
    });
    Failure::new(Exit::Unavailable, format!("no replica answered within {} s", limit.as_secs()))
        .with_details(errors)
        .with_next("`muster cluster status` shows which replicas are up")
}

fn document<'a>(model: &'a Model, view: &View, clock: Clock) -> Document<Frame<'a>> {
    let rows = match view.tab {
        Tab::Jobs => {
            let item = |job: &'a JobRow| JobItem {
                job,
                why: model.why(job),
                requests_before: model.position(job),
                nodes: model.nodes_of(&job.id),
            };
            Rows::Jobs(Items { items: view.jobs(model).into_iter().map(item).collect() })
        }
        Tab::Queues => {
            let item = |(_, queue): (usize, &'a crate::rows::QueueRow)| QueueItem {
                queue,
                next_job: model.next_of(&queue.tenant).map(|job| job.id.as_str()),
            };
            Rows::Queues(Items { items: view.queues(model).into_iter().map(item).collect() })
        }
        Tab::Fleet => {
            let mut unfolded = view.clone();
            unfolded.unfold(model);
            let node = |row: FleetRow<'a>| match row {
                FleetRow::Node(node) => Some(node),
                FleetRow::Region { .. } | FleetRow::Cluster { .. } => None,
            };
            Rows::Fleet(Items { items: unfolded.fleet(model).into_iter().filter_map(node).collect() })
        }
        Tab::Replicas => Rows::Replicas(Items { items: model.cluster.replicas.iter().collect() }),
        Tab::Events => Rows::Events(Items { items: view.events(model) }),
    };
    let frame = Frame {
        tab: view.tab.word(),
        age_ms: model.age_ms(clock.monotonic_ms),
        leader: model.leader().map(|leader| leader.id),
        warnings: &model.cluster.warnings,
        cut: model.is_cut(),
        rows,
    };
    Document::new("Top", Some(model.log_index), frame)
}

/// The frame as lines of text, without the selection.
pub(crate) fn text(model: &Model, view: &View, clock: Clock, width: u16, theme: Theme) -> String {
    let rows = draw::row_count(model, view).clamp(1, ROWS_MAX);
    let height = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(draw::FRAME_LINES);
    let height = height.max(draw::HEIGHT_MIN);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw::frame(model, view, clock, area, &mut Canvas { buffer: &mut buffer, theme });
    let lines = lines(&buffer);
    // The last line names keys.
    let shown = lines.len().saturating_sub(1);
    lines.into_iter().take(shown).map(|line| line + "\n").collect()
}

/// The cells of a buffer as lines.
pub(crate) fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let mut text = String::new();
        let mut skipped = 0;
        for cell in cells {
            // The cell behind a wide character is covered by it.
            if skipped > 0 {
                skipped -= 1;
                continue;
            }
            text.push_str(cell.symbol());
            skipped = ratatui::text::Span::raw(cell.symbol()).width().saturating_sub(1);
        }
        text.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}
