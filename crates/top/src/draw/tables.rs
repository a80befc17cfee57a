//! The table of each tab.

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::{Canvas, Clock};
use crate::model::{Feed, Model};
use crate::rows::{QueueRow, QuotaRow, ReplicaRow};
use crate::text::{age, cells, devices};
use crate::view::{FleetRow, PoolSum, Tab, View};

/// Cells of a bar.
const BAR_WIDTH: usize = 12;
/// Devices of a node that are drawn one by one.
const STRIP_MAX: u64 = 16;
/// Names of nodes in a cell.
const NODES_SHOWN: usize = 3;
/// Jobs of the front of the queue in one line.
const FRONT_SHOWN: usize = 3;

/// A column: its title, and its width; the last one has what is left.
type Column = (&'static str, u16);

/// A row: its cells, and which of them names a state.
struct Row {
    cells: Vec<String>,
    state: Option<usize>,
}

/// Rows of the tab.
pub(crate) fn row_count(model: &Model, view: &View) -> usize {
    view.keys(model).len()
}

pub(super) fn draw(model: &Model, view: &View, clock: Clock, area: Rect, canvas: &mut Canvas<'_>) {
    let keys = view.keys(model);
    let height = usize::from(area.height.saturating_sub(2));
    let selected = view.selected_at(&keys);
    // The selected row is always among those that are drawn.
    let from = if selected < height { 0 } else { selected + 1 - height };
    let window = (from, height);
    let (note, columns, rows) = match view.tab {
        Tab::Jobs => jobs(model, view, clock, window, area.width),
        Tab::Queues => queues(model, view, window),
        Tab::Fleet => fleet(model, view, window),
        Tab::Replicas => replicas(model, window),
        Tab::Events => events(model, view, window),
    };
    canvas.text(area.x, area.y, &note, area.width, Style::new());
    if rows.is_empty() {
        canvas.text(area.x, area.y + 1, empty(model, view), area.width, Style::new());
        return;
    }
    let titles: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let strong = canvas.theme.strong();
    line(&columns, &titles, |_| strong, (area, area.y + 1), canvas);
    for (place, row) in rows.iter().enumerate() {
        let y = area.y + 2 + u16::try_from(place).unwrap_or(u16::MAX);
        let theme = canvas.theme;
        let style = |column: usize| match row.state {
            Some(state) if state == column => theme.state(row.cells.get(column).map_or("", String::as_str)),
            _ => Style::new(),
        };
        line(&columns, &row.cells, style, (area, y), canvas);
        if from + place == selected {
            canvas.line_style(area, y, theme.selected());
        }
    }
}

/// Why there is no row.
fn empty(model: &Model, view: &View) -> &'static str {
    let feed = match view.tab {
        Tab::Jobs | Tab::Events => Feed::Jobs,
        Tab::Queues => Feed::Queues,
        Tab::Fleet => Feed::Nodes,
        Tab::Replicas => Feed::Replicas,
    };
    match model.feed(feed).is_complete {
        true => "nothing matches; Esc clears the filters",
        false => "not received yet",
    }
}

fn line(
    columns: &[Column],
    texts: &[String],
    style: impl Fn(usize) -> Style,
    (area, y): (Rect, u16),
    canvas: &mut Canvas<'_>,
) {
    let mut x = area.x;
    for (column, ((_, width), text)) in columns.iter().zip(texts).enumerate() {
        let left = area.right().saturating_sub(x);
        let is_last = column + 1 == columns.len();
        let own = if is_last { left } else { (*width).min(left) };
        canvas.text(x, y, text, own, style(column));
        x = x.saturating_add(own).saturating_add(1);
        if x >= area.right() {
            break;
        }
    }
}

type Table = (String, Vec<Column>, Vec<Row>);

fn jobs(model: &Model, view: &View, clock: Clock, (from, count): (usize, usize), width: u16) -> Table {
    let all = view.jobs(model);
    let pending = all.iter().filter(|job| job.state == crate::rows::Phase::Pending).count();
    let direction = if view.is_reversed { " reversed" } else { "" };
    let mut note = format!(
        "{} jobs, {pending} pending; state {}, sort {}{direction}",
        all.len(),
        view.state.word(),
        view.order.word()
    );
    for (what, text) in [("tenant", &view.tenant), ("name", &view.text)] {
        if !text.is_empty() {
            note.push_str(&format!(", {what} {text}…"));
        }
    }
    // A narrow screen goes without tier and nodes, which the details show.
    let is_wide = width >= 110;
    let mut columns: Vec<Column> = vec![
        ("ID", 10),
        ("NAME", if is_wide { 24 } else { 14 }),
        ("TENANT", if is_wide { 14 } else { 9 }),
        ("STATE", 9),
    ];
    if is_wide {
        columns.push(("TIER", 10));
    }
    columns.extend([("AGE", 4), ("DEV", 5)]);
    if is_wide {
        columns.push(("NODES", 24));
    }
    columns.push(("WHY, OR WHERE", 0));
    let row = |job: &&crate::rows::JobRow| {
        let nodes = model.nodes_of(&job.id);
        let why = model.why(job);
        let last = if why.is_empty() { job.place.clone() } else { why };
        let mut cells =
            vec![job.id.clone(), job.name.clone(), job.tenant.clone(), job.state.word().to_owned()];
        if is_wide {
            cells.push(job.tier.clone());
        }
        cells.extend([age(job.created_ms, clock.unix_ms), job.devices.to_string()]);
        if is_wide {
            cells.push(some_of(&nodes));
        } else if job.state != crate::rows::Phase::Pending && !nodes.is_empty() {
            cells.push(format!("{} {last}", some_of(&nodes)));
            return Row { cells, state: Some(3) };
        }
        cells.push(last);
        Row { cells, state: Some(3) }
    };
    let rows = all.iter().skip(from).take(count).map(row).collect();
    (note, columns, rows)
}

/// The first names, and how many more there are.
fn some_of(names: &[&str]) -> String {
    let shown = names.iter().take(NODES_SHOWN).copied().collect::<Vec<_>>().join(",");
    match names.len().saturating_sub(NODES_SHOWN) {
        0 => shown,
        more => format!("{shown} +{more}"),
    }
}

fn queues(model: &Model, view: &View, (from, count): (usize, usize)) -> Table {
    let front = model.front();
    let next: Vec<String> = front
        .iter()
        .take(FRONT_SHOWN)
        .map(|(before, job)| format!("{} ({}), {before} before it", job.name, job.tenant))
        .collect();
    let note = match next.is_empty() {
        true => "next: no position in the queue is known yet".to_owned(),
        false => format!("next: {}", next.join("; ")),
    };
    let columns = vec![
        ("TENANT", 18),
        ("WAIT", 9),
        ("RUN", 5),
        ("SHARE", 7),
        ("NEXT", 14),
        ("QUOTA: # USED, - FREE, + BORROWED", 0),
    ];
    let row = |(depth, queue): &(usize, &QueueRow)| {
        let indent = "  ".repeat(*depth);
        let gated = if queue.gated_jobs > 0 { format!("({})", queue.gated_jobs) } else { String::new() };
        let quotas: Vec<String> = queue.quotas.iter().map(bar).collect();
        let next = model.next_of(&queue.tenant).map_or(String::new(), |job| job.name.clone());
        let cells = vec![
            format!("{indent}{}", queue.tenant),
            format!("{}{gated}", queue.pending_jobs),
            queue.active_jobs.to_string(),
            format!("{}%", muster_manifest::quantity::show_scaled(queue.share_billionths / 100_000, 2)),
            next,
            quotas.join("  "),
        ];
        Row { cells, state: None }
    };
    let rows = view.queues(model).iter().skip(from).take(count).map(row).collect();
    (note, columns, rows)
}

/// A quota as a bar with its numbers: `h100 [####--------] 4/12`.
fn bar(quota: &QuotaRow) -> String {
    let place = if quota.region.is_empty() { String::new() } else { format!("@{}", quota.region) };
    let used = devices(quota.used_milli);
    let Some(nominal) = quota.nominal_milli else {
        return format!("{}{place} {used}, no quota", quota.kind);
    };
    let borrowed = quota.borrowed_milli();
    let whole = nominal.max(quota.used_milli);
    let extra = cells(borrowed, whole, BAR_WIDTH);
    let within = cells(quota.used_milli.min(nominal), whole, BAR_WIDTH - extra);
    let bar =
        format!("{}{}{}", "#".repeat(within), "+".repeat(extra), "-".repeat(BAR_WIDTH - within - extra));
    let numbers = match borrowed {
        0 => String::new(),
        borrowed => format!(", {} borrowed", devices(borrowed)),
    };
    format!("{}{place} [{bar}] {used}/{}{numbers}", quota.kind, devices(nominal))
}

fn fleet(model: &Model, view: &View, (from, count): (usize, usize)) -> Table {
    let all = view.fleet(model);
    let mut sum = PoolSum::default();
    for row in &all {
        if let FleetRow::Region { sum: own, .. } = row {
            sum.nodes += own.nodes;
            sum.devices += own.devices;
            sum.busy += own.busy;
            sum.free += own.free;
            sum.unusable += own.unusable;
        }
    }
    let note = format!(
        "{} nodes, {} devices: {} busy (#), {} free (.), {} unusable (x); space folds a cluster",
        sum.nodes, sum.devices, sum.busy, sum.free, sum.unusable
    );
    let columns =
        vec![("PLACE", 30), ("TYPE", 8), ("STATE", 14), ("BUSY", 6), ("FREE", 6), ("BAD", 5), ("DEVICES", 0)];
    let row = |row: &FleetRow<'_>| match row {
        FleetRow::Region { region, sum } => {
            sum_row(format!("{region}/"), format!("{} nodes", sum.nodes), sum)
        }
        FleetRow::Cluster { cluster, sum, is_folded, .. } => {
            let mark = if *is_folded { '+' } else { '-' };
            sum_row(format!(" {mark} {cluster}"), format!("{} nodes", sum.nodes), sum)
        }
        FleetRow::Node(node) => {
            let cells = vec![
                format!("     {}", node.name),
                node.kind.clone(),
                node.state.to_owned(),
                node.busy.to_string(),
                node.free.to_string(),
                node.unusable.to_string(),
                strip(node.busy, node.free, node.unusable),
            ];
            Row { cells, state: Some(2) }
        }
    };
    let rows = all.iter().skip(from).take(count).map(row).collect();
    (note, columns, rows)
}

fn sum_row(place: String, nodes: String, sum: &PoolSum) -> Row {
    let busy = cells(sum.busy, sum.devices, BAR_WIDTH);
    let bad = cells(sum.unusable, sum.devices, BAR_WIDTH - busy);
    let free = if sum.devices == 0 { 0 } else { BAR_WIDTH - busy - bad };
    let bar = format!("[{}{}{}]", "#".repeat(busy), ".".repeat(free), "x".repeat(bad));
    let cells = vec![
        place,
        String::new(),
        nodes,
        sum.busy.to_string(),
        sum.free.to_string(),
        sum.unusable.to_string(),
        bar,
    ];
    Row { cells, state: None }
}

/// Each device of a node as one character, or a bar where there are too many.
fn strip(busy: u64, free: u64, unusable: u64) -> String {
    let all = busy + free + unusable;
    if all > STRIP_MAX {
        let sum = PoolSum { nodes: 1, devices: all, busy, free, unusable };
        return sum_row(String::new(), String::new(), &sum).cells.pop().unwrap_or_default();
    }
    let part = |letter: &str, count: u64| letter.repeat(usize::try_from(count).unwrap_or(0));
    format!("{}{}{}", part("#", busy), part(".", free), part("x", unusable))
}

fn replicas(model: &Model, (from, count): (usize, usize)) -> Table {
    let all = &model.cluster.replicas;
    let reached = all.iter().filter(|replica| replica.is_reached()).count();
    let note = format!("cluster {}: {reached} of {} replicas answer", model.cluster.cluster_id, all.len());
    let columns = vec![
        ("ID", 4),
        ("REGION", 12),
        ("ROLE", 12),
        ("VOTES", 5),
        ("TERM", 6),
        ("LAST", 9),
        ("LAG", 6),
        ("SILENT", 7),
        ("REACHED, VERSION", 0),
    ];
    let shown = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let row = |replica: &ReplicaRow| {
        let last = match replica.is_reached() {
            true => format!("yes, {}", replica.version),
            false => format!("NO: {}", replica.error),
        };
        let cells = vec![
            replica.id.to_string(),
            replica.region.clone(),
            replica.role.clone(),
            if replica.voter { "yes" } else { "no" }.to_owned(),
            shown(replica.term),
            shown(replica.last_index),
            shown(replica.lag_entries),
            replica.silence_ms.map_or("-".to_owned(), |ms| format!("{ms}ms")),
            last,
        ];
        Row { cells, state: Some(2) }
    };
    let rows = all.iter().skip(from).take(count).map(row).collect();
    (note, columns, rows)
}

fn events(model: &Model, view: &View, (from, count): (usize, usize)) -> Table {
    let all = view.events(model);
    let note = format!("{} events, newest first; live", all.len());
    let columns =
        vec![("INDEX", 9), ("WHAT", 5), ("ID", 16), ("NAME", 14), ("OWNER", 10), ("STATE", 10), ("TEXT", 0)];
    let row = |event: &&crate::rows::EventRow| {
        let what = match event.subject {
            crate::rows::Subject::Job => "job",
            crate::rows::Subject::Node => "node",
        };
        let cells = vec![
            event.log_index.to_string(),
            what.to_owned(),
            event.id.clone(),
            event.name.clone(),
            event.owner.clone(),
            event.state.clone(),
            event.text.clone(),
        ];
        Row { cells, state: Some(5) }
    };
    let rows = all.iter().skip(from).take(count).map(row).collect();
    (note, columns, rows)
}
