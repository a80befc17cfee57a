//! What the user looks at: tab, filters, order and selection, and what keys change of them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::model::Model;
use crate::rows::{EventRow, JobRow, NodeRow, Phase, QueueRow};

/// Characters of a filter.
const FILTER_CHARS_MAX: usize = 80;
/// Rows that a key for a page moves by.
const PAGE_ROWS: isize = 10;
/// Levels of tenants that are followed: more than a policy may have.
const DEPTH_MAX: usize = 16;
/// Jobs that are explained at a time.
const EXPLAINED_AT_ONCE: usize = 24;
/// Clusters above this number of nodes are folded at first.
const UNFOLDED_NODES_MAX: usize = 200;

/// A part of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tab {
    /// Jobs, and why each waits
    #[default]
    Jobs,
    /// Tenants with their quotas, and whose job is next
    Queues,
    /// Regions, clusters and nodes with their accelerators
    Fleet,
    /// Replicas of the scheduler
    Replicas,
    /// What changed last
    Events,
}

impl Tab {
    pub(crate) const ALL: [Tab; 5] = [Tab::Jobs, Tab::Queues, Tab::Fleet, Tab::Replicas, Tab::Events];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Tab::Jobs => "jobs",
            Tab::Queues => "queues",
            Tab::Fleet => "fleet",
            Tab::Replicas => "replicas",
            Tab::Events => "events",
        }
    }

    pub(crate) fn number(self) -> usize {
        Tab::ALL.iter().position(|tab| *tab == self).unwrap_or(0)
    }

    fn moved(self, by: usize) -> Tab {
        Tab::ALL[(self.number() + by) % Tab::ALL.len()]
    }
}

/// Which jobs are listed, by what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StateFilter {
    /// All that are kept
    #[default]
    All,
    /// Those that wait
    Pending,
    /// Those that hold devices
    Active,
    /// Those that have ended since the view began
    Ended,
}

impl StateFilter {
    pub(crate) fn word(self) -> &'static str {
        match self {
            StateFilter::All => "all",
            StateFilter::Pending => "pending",
            StateFilter::Active => "active",
            StateFilter::Ended => "ended",
        }
    }

    fn next(self) -> StateFilter {
        match self {
            StateFilter::All => StateFilter::Pending,
            StateFilter::Pending => StateFilter::Active,
            StateFilter::Active => StateFilter::Ended,
            StateFilter::Ended => StateFilter::All,
        }
    }

    fn passes(self, phase: Phase) -> bool {
        match self {
            StateFilter::All => true,
            StateFilter::Pending => phase == Phase::Pending,
            StateFilter::Active => phase != Phase::Pending && !phase.has_ended(),
            StateFilter::Ended => phase.has_ended(),
        }
    }
}

/// Order of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum JobOrder {
    /// Newest first
    #[default]
    Age,
    /// By name
    Name,
    /// By tenant
    Tenant,
    /// Waiting, active, ended
    State,
    /// Most devices first
    Devices,
    /// By position in the pending queue, where that is known
    Queue,
}

impl JobOrder {
    const ALL: [JobOrder; 6] = [
        JobOrder::Age,
        JobOrder::Name,
        JobOrder::Tenant,
        JobOrder::State,
        JobOrder::Devices,
        JobOrder::Queue,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            JobOrder::Age => "age",
            JobOrder::Name => "name",
            JobOrder::Tenant => "tenant",
            JobOrder::State => "state",
            JobOrder::Devices => "devices",
            JobOrder::Queue => "queue",
        }
    }

    fn next(self) -> JobOrder {
        let at = JobOrder::ALL.iter().position(|order| *order == self).unwrap_or(0);
        JobOrder::ALL[(at + 1) % JobOrder::ALL.len()]
    }

    fn compare(self, model: &Model, a: &JobRow, b: &JobRow) -> Ordering {
        let newest = || b.created_ms.cmp(&a.created_ms).then_with(|| b.id.cmp(&a.id));
        match self {
            JobOrder::Age => newest(),
            JobOrder::Name => a.name.cmp(&b.name).then_with(newest),
            JobOrder::Tenant => a.tenant.cmp(&b.tenant).then_with(newest),
            JobOrder::State => a.state.cmp(&b.state).then_with(newest),
            JobOrder::Devices => b.devices.cmp(&a.devices).then_with(newest),
            JobOrder::Queue => {
                let key = |job: &JobRow| (model.position(job).unwrap_or(u64::MAX), job.state, job.created_ms);
                key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
            }
        }
    }
}

/// What is being typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Text,
    Tenant,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    None,
    Quit,
}

/// A row of the fleet.
#[derive(Debug)]
pub(crate) enum FleetRow<'a> {
    Region { region: &'a str, sum: PoolSum },
    Cluster { key: String, cluster: &'a str, sum: PoolSum, is_folded: bool },
    Node(&'a NodeRow),
}

/// Devices of some nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSum {
    pub(crate) nodes: u64,
    pub(crate) devices: u64,
    pub(crate) busy: u64,
    pub(crate) free: u64,
    pub(crate) unusable: u64,
}

impl PoolSum {
    fn add(&mut self, node: &NodeRow) {
        self.nodes += 1;
        self.devices += node.devices;
        self.busy += node.busy;
        self.free += node.free;
        self.unusable += node.unusable;
    }
}

/// The view.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) tab: Tab,
    /// Part of an id or a name.
    pub(crate) text: String,
    pub(crate) tenant: String,
    pub(crate) state: StateFilter,
    pub(crate) order: JobOrder,
    pub(crate) is_reversed: bool,
    pub(crate) input: Option<Input>,
    pub(crate) shows_help: bool,
    pub(crate) shows_detail: bool,
    /// The selected row of each tab, by its key.
    pub(crate) selected: [Option<String>; Tab::ALL.len()],
    /// Clusters whose fold was changed from what it is at first.
    pub(crate) folds: BTreeSet<String>,
}

impl View {
    /// Acts on a key.
    pub(crate) fn key(&mut self, model: &Model, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'C')) { Action::Quit } else { Action::None };
        }
        if let Some(input) = self.input {
            self.typed(input, key.code);
            return Action::None;
        }
        if self.shows_help || self.shows_detail {
            if matches!(key.code, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('?' | 'q')) {
                (self.shows_help, self.shows_detail) = (false, false);
            }
            return Action::None;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Enter => self.shows_detail = self.selection(model).is_some(),
            KeyCode::Esc => (self.text, self.tenant, self.state) = Default::default(),
            KeyCode::Char('/') => self.input = Some(Input::Text),
            KeyCode::Char('t') => self.input = Some(Input::Tenant),
            KeyCode::Char('f') => self.state = self.state.next(),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(' ') => self.fold(model),
            code => self.moves(model, code),
        }
        Action::None
    }

    fn moves(&mut self, model: &Model, code: KeyCode) {
        match code {
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.tab = self.tab.moved(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => {
                self.tab = self.tab.moved(Tab::ALL.len() - 1);
            }
            KeyCode::Char(digit @ '1'..='5') => {
                let at = digit as usize - '1' as usize;
                self.tab = Tab::ALL[at];
            }
            KeyCode::Down | KeyCode::Char('j') => self.select_by(model, 1),
            KeyCode::Up | KeyCode::Char('k') => self.select_by(model, -1),
            KeyCode::PageDown => self.select_by(model, PAGE_ROWS),
            KeyCode::PageUp => self.select_by(model, -PAGE_ROWS),
            KeyCode::Home | KeyCode::Char('g') => self.select_by(model, isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.select_by(model, isize::MAX),
            _ => {}
        }
    }

    fn typed(&mut self, input: Input, code: KeyCode) {
        let text = match input {
            Input::Text => &mut self.text,
            Input::Tenant => &mut self.tenant,
        };
        match code {
            KeyCode::Enter => self.input = None,
            KeyCode::Esc => {
                text.clear();
                self.input = None;
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) if !c.is_control() && text.chars().count() < FILTER_CHARS_MAX => text.push(c),
            _ => {}
        }
    }

    fn fold(&mut self, model: &Model) {
        let Some(key) = self.selection(model).filter(|_| self.tab == Tab::Fleet) else { return };
        // On a node its cluster is meant.
        let key = match model.nodes.get(&key) {
            Some(node) => cluster_key(node),
            None => key,
        };
        if !self.folds.remove(&key) {
            self.folds.insert(key.clone());
        }
        self.selected[Tab::Fleet.number()] = Some(key);
    }

    /// Unfolds every cluster.
    pub(crate) fn unfold(&mut self, model: &Model) {
        let fleet = self.fleet(model);
        let folded = fleet.iter().filter_map(|row| match row {
            FleetRow::Cluster { key, is_folded: true, .. } => Some(key.clone()),
            _ => None,
        });
        for key in folded.collect::<Vec<_>>() {
            if !self.folds.remove(&key) {
                self.folds.insert(key);
            }
        }
    }

    fn select_by(&mut self, model: &Model, by: isize) {
        let keys = self.keys(model);
        let Some(last) = keys.len().checked_sub(1) else { return };
        let at = self.selected_at(&keys).saturating_add_signed(by).min(last);
        self.selected[self.tab.number()] = keys.into_iter().nth(at);
    }

    /// The place of the selected row; the first one where it is gone.
    pub(crate) fn selected_at(&self, keys: &[String]) -> usize {
        let selected = self.selected[self.tab.number()].as_ref();
        selected.and_then(|key| keys.iter().position(|known| known == key)).unwrap_or(0)
    }

    /// The key of the selected row.
    pub(crate) fn selection(&self, model: &Model) -> Option<String> {
        let keys = self.keys(model);
        let at = self.selected_at(&keys);
        keys.into_iter().nth(at)
    }

    /// Keys of the rows of the tab.
    pub(crate) fn keys(&self, model: &Model) -> Vec<String> {
        match self.tab {
            Tab::Jobs => self.jobs(model).into_iter().map(|job| job.id.clone()).collect(),
            Tab::Queues => self.queues(model).into_iter().map(|(_, queue)| queue.tenant.clone()).collect(),
            Tab::Fleet => self.fleet(model).iter().map(FleetRow::key).collect(),
            Tab::Replicas => model.cluster.replicas.iter().map(|replica| replica.id.to_string()).collect(),
            Tab::Events => self.events(model).into_iter().map(event_key).collect(),
        }
    }

    fn matches(&self, texts: [&str; 2]) -> bool {
        self.text.is_empty() || texts.into_iter().any(|text| text.contains(&self.text))
    }

    fn is_of_tenant(&self, tenant: &str) -> bool {
        tenant.starts_with(&self.tenant)
    }

    /// The jobs that pass the filters, in order.
    pub(crate) fn jobs<'a>(&self, model: &'a Model) -> Vec<&'a JobRow> {
        let passes = |job: &&JobRow| {
            self.state.passes(job.state)
                && self.is_of_tenant(&job.tenant)
                && self.matches([&job.id, &job.name])
        };
        let mut jobs: Vec<&JobRow> = model.jobs.values().filter(passes).collect();
        jobs.sort_by(|a, b| self.order.compare(model, a, b));
        if self.is_reversed {
            jobs.reverse();
        }
        jobs
    }

    /// The tenants in the order of the tree, each with its depth.
    pub(crate) fn queues<'a>(&self, model: &'a Model) -> Vec<(usize, &'a QueueRow)> {
        let mut below: BTreeMap<&str, Vec<&QueueRow>> = BTreeMap::new();
        for queue in model.queues.values().rev() {
            // One whose parent is not known stands at the top.
            let is_child = model.queues.contains_key(&queue.parent);
            below.entry(if is_child { &queue.parent } else { "" }).or_default().push(queue);
        }
        let children = |parent: &str| below.get(parent).into_iter().flatten().copied();
        let mut rows = Vec::new();
        let mut stack: Vec<(usize, &QueueRow)> = children("").map(|queue| (0, queue)).collect();
        while let Some((depth, queue)) = stack.pop() {
            if self.is_of_tenant(&queue.tenant) && self.matches([&queue.tenant, ""]) {
                rows.push((depth, queue));
            }
            if depth < DEPTH_MAX && !queue.tenant.is_empty() {
                stack.extend(children(&queue.tenant).map(|child| (depth + 1, child)));
            }
        }
        rows
    }

    /// Regions, their clusters, and the nodes of those that are not folded.
    pub(crate) fn fleet<'a>(&self, model: &'a Model) -> Vec<FleetRow<'a>> {
        let mut nodes: Vec<&NodeRow> = model.nodes.values().collect();
        nodes.retain(|node| self.matches([&node.name, &node.cluster]));
        nodes.sort_by_key(|node| (&node.region, &node.cluster, &node.name, &node.id));
        let mut rows = Vec::new();
        for region in nodes.chunk_by(|a, b| a.region == b.region) {
            rows.push(FleetRow::Region { region: &region[0].region, sum: sum(region) });
            for cluster in region.chunk_by(|a, b| a.cluster == b.cluster) {
                let key = cluster_key(cluster[0]);
                let is_large = cluster.len() > UNFOLDED_NODES_MAX && self.text.is_empty();
                let is_folded = is_large != self.folds.contains(&key);
                rows.push(FleetRow::Cluster {
                    key,
                    cluster: &cluster[0].cluster,
                    sum: sum(cluster),
                    is_folded,
                });
                if !is_folded {
                    rows.extend(cluster.iter().copied().map(FleetRow::Node));
                }
            }
        }
        rows
    }

    /// The events that pass the filters, newest first. One of a node is a tenant's where a job of the tenant holds a part of
    /// the node.
    pub(crate) fn events<'a>(&self, model: &'a Model) -> Vec<&'a EventRow> {
        let is_of_tenant = |event: &EventRow| {
            self.tenant.is_empty() || event.tenants.iter().any(|tenant| self.is_of_tenant(tenant))
        };
        let passes = |event: &&EventRow| is_of_tenant(event) && self.matches([&event.id, &event.name]);
        model.events.iter().filter(passes).collect()
    }

    /// Jobs whose reason to wait is to be asked for, the first ones first: those that are looked at.
    pub(crate) fn to_explain(&self, model: &Model, now_ms: u64) -> Vec<String> {
        let candidates: Vec<&JobRow> = match self.tab {
            Tab::Jobs => {
                let jobs = self.jobs(model);
                let keys: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
                let from = self.selected_at(&keys).saturating_sub(EXPLAINED_AT_ONCE / 2);
                let near = jobs.into_iter().skip(from);
                near.filter(|job| job.wants_explanation()).take(EXPLAINED_AT_ONCE).collect()
            }
            Tab::Queues => {
                let waiting = model.queues.values().filter(|queue| queue.pending_jobs > 0);
                waiting.take(EXPLAINED_AT_ONCE).filter_map(|queue| model.next_of(&queue.tenant)).collect()
            }
            Tab::Fleet | Tab::Replicas | Tab::Events => Vec::new(),
        };
        let lacking = candidates.into_iter().filter(|job| model.lacks_reason(job, now_ms));
        lacking.map(|job| job.id.clone()).collect()
    }
}

impl FleetRow<'_> {
    fn key(&self) -> String {
        match self {
            FleetRow::Region { region, .. } => format!("region {region}"),
            FleetRow::Cluster { key, .. } => key.clone(),
            FleetRow::Node(node) => node.id.clone(),
        }
    }
}

fn cluster_key(node: &NodeRow) -> String {
    format!("cluster {}/{}", node.region, node.cluster)
}

fn event_key(event: &EventRow) -> String {
    format!("{} {}", event.log_index, event.id)
}

fn sum(nodes: &[&NodeRow]) -> PoolSum {
    let mut sum = PoolSum::default();
    for node in nodes {
        sum.add(node);
    }
    sum
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
