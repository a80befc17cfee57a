//! The help, and all that is known of one row.

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::{Canvas, Clock};
use crate::model::Model;
use crate::text::{age, devices};
use crate::view::{Tab, View};

/// Names of nodes that are listed.
const NODES_SHOWN: usize = 64;

const HELP: &str = "\
Tab, ←, →, 1-5   another tab
↑ ↓ PgUp PgDn    select a row; Home and End: the first, the last
Enter            all that is known of the row; Enter or Esc goes back
/                only rows with this in their name or id
t                only this tenant, by the beginning of its name
f                only jobs that are pending, active or ended
s, r             another order of jobs; reverse it
space            fold a cluster of the fleet, or unfold it
Esc              clear the filters
?                this help
q, Ctrl-C        quit

Queues: # used within the quota, - not used, + borrowed.
Fleet: # busy, . free, x unusable: at fault, or on a node that takes no work.
The first line says as of which index of the log this is, and how old.";

pub(super) fn help(area: Rect, canvas: &mut Canvas<'_>) {
    wrapped(HELP, area, canvas);
}

fn wrapped(text: &str, area: Rect, canvas: &mut Canvas<'_>) {
    let paragraph = Paragraph::new(text).style(Style::new()).wrap(Wrap { trim: false });
    paragraph.render(area.intersection(canvas.buffer.area), canvas.buffer);
}

pub(super) fn row(model: &Model, view: &View, clock: Clock, area: Rect, canvas: &mut Canvas<'_>) {
    let key = view.selection(model).unwrap_or_default();
    let lines = match view.tab {
        Tab::Jobs => job(model, &key, clock),
        Tab::Queues => queue(model, &key),
        Tab::Fleet => node(model, &key),
        Tab::Replicas => replica(model, &key),
        Tab::Events => event(model, view, &key),
    };
    let lines = if lines.is_empty() { vec!["nothing more is known of this row".to_owned()] } else { lines };
    wrapped(&lines.join("\n"), area, canvas);
}

fn job(model: &Model, id: &str, clock: Clock) -> Vec<String> {
    let Some(job) = model.jobs.get(id) else { return Vec::new() };
    let nodes = model.nodes_of(id);
    let mut lines = vec![
        format!("job      {} {}", job.id, job.name),
        format!("tenant   {}, tier {}", job.tenant, job.tier),
        format!(
            "state    {}, attempt {}, {} old",
            job.state.word(),
            job.attempt,
            age(job.created_ms, clock.unix_ms)
        ),
        format!("asks for {} workers, {} devices", job.workers, job.devices),
    ];
    let why = model.why(job);
    if !why.is_empty() {
        lines.push(format!("why      {why}"));
    }
    if let Some(before) = model.position(job) {
        lines.push(format!("queue    {before} requests go before it"));
    }
    if !job.place.is_empty() {
        lines.push(format!("place    {}", job.place));
    }
    if !nodes.is_empty() {
        let shown: Vec<&str> = nodes.iter().take(NODES_SHOWN).copied().collect();
        lines.push(format!("nodes    {} of {}: {}", shown.len(), nodes.len(), shown.join(", ")));
    }
    lines.extend([String::new(), format!("more: muster job explain {}", job.id)]);
    lines
}

fn queue(model: &Model, tenant: &str) -> Vec<String> {
    let Some(queue) = model.queues.get(tenant) else { return Vec::new() };
    let parent = if queue.parent.is_empty() { "none" } else { queue.parent.as_str() };
    let mut lines = vec![
        format!("tenant   {}, below {parent}", queue.tenant),
        format!("waiting  {} jobs, of which {} may not start yet", queue.pending_jobs, queue.gated_jobs),
        format!("holding  {} jobs with {} devices", queue.active_jobs, devices(queue.active_devices_milli)),
    ];
    for quota in &queue.quotas {
        let place = if quota.region.is_empty() { "all regions" } else { quota.region.as_str() };
        let nominal = quota
            .nominal_milli
            .map_or("no quota".to_owned(), |nominal| format!("{} nominal", devices(nominal)));
        lines.push(format!(
            "quota    {} in {place}: {} used, {nominal}, {} borrowed",
            quota.kind,
            devices(quota.used_milli),
            devices(quota.borrowed_milli())
        ));
    }
    if let Some(job) = model.next_of(tenant) {
        lines.push(format!("next     {} {}: {}", job.id, job.name, model.why(job)));
    }
    lines
}

fn node(model: &Model, id: &str) -> Vec<String> {
    let Some(node) = model.nodes.get(id) else { return Vec::new() };
    vec![
        format!("node     {} ({})", node.name, node.id),
        format!("place    {}/{}", node.region, node.cluster),
        format!("state    {}", node.state),
        format!(
            "devices  {} {}: {} busy, {} free, {} unusable",
            node.devices, node.kind, node.busy, node.free, node.unusable
        ),
        format!("jobs     {}", node.job_ids.join(", ")),
        String::new(),
        format!("more: muster node show {}", node.name),
    ]
}

fn replica(model: &Model, id: &str) -> Vec<String> {
    let found = model.cluster.replicas.iter().find(|replica| replica.id.to_string() == id);
    let Some(replica) = found else { return Vec::new() };
    let shown = |value: Option<u64>| value.map_or("not known".to_owned(), |value| value.to_string());
    let mut lines = vec![
        format!("replica  {} in {}, {}", replica.id, replica.region, replica.endpoint),
        format!("role     {}, {}", replica.role, if replica.voter { "votes" } else { "no vote" }),
        format!("term     {}", shown(replica.term)),
        format!("log      last {}, applied {}", shown(replica.last_index), shown(replica.applied_index)),
        format!("lag      {} entries", shown(replica.lag_entries)),
    ];
    if !replica.error.is_empty() {
        lines.push(format!("error    {}", replica.error));
    }
    lines.extend(model.cluster.warnings.iter().map(|warning| format!("warning  {warning}")));
    lines
}

fn event(model: &Model, view: &View, key: &str) -> Vec<String> {
    let events = view.events(model);
    let found = events.iter().find(|event| format!("{} {}", event.log_index, event.id) == key);
    let Some(event) = found else { return Vec::new() };
    vec![
        format!("index    {}", event.log_index),
        format!("subject  {} {}", event.id, event.name),
        format!("owner    {}", event.owner),
        format!("state    {}", event.state),
        format!("text     {}", event.text),
        String::new(),
        format!("more: muster log show {}", event.log_index),
    ]
}
