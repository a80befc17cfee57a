//! `muster plan` and `muster job explain`: why, where and when, with numbers.

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, moment, one_line, time};
use muster_manifest::quantity::{show_about, show_scaled};
use muster_manifest::{Decimal, Overrides};
use muster_types::PriorityTier;
use muster_types::policy::Guarantee;
use muster_wire::closed::word;
use muster_wire::time::{Timestamp, span_ms, unix_ms};
use muster_wire::v1;
use serde::Serialize;

use crate::job_files::{name_own_tenant, now_ms, read_manifests, refused};
use crate::parallel::auto;
use crate::reading::ReadArgs;
use crate::view::Estimate;
use crate::view::recovery::{self, Advice, AttemptHistory};

/// What a terminal shows without breaking lines itself.
const WIDTH: usize = 80;
/// Rows of one list that people are shown; programs get all of them.
const ROWS_MAX: usize = 16;

/// Options of `muster plan`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster plan train.yaml
  muster plan train.yaml --tier batch --region eu-north
  generate-job | muster plan - --json

Nothing is submitted and nothing is changed. Of a file with several jobs each is planned as if it came
alone; of an array, its first job. Exit code 0 whether it would start or not: what is asked for is the
explanation.")]
pub struct PlanArgs {
    /// Job file (YAML), or - for stdin
    file: String,
    /// Instead of the file's metadata.tenant; without either, that of the certificate
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Instead of the file's tier: free, batch, standard, production or critical
    #[arg(long, value_name = "TIER", value_parser = muster_manifest::tier)]
    tier: Option<PriorityTier>,
    /// Instead of the file's regions; repeat it or separate several by commas
    #[arg(long, value_name = "REGION", value_delimiter = ',')]
    region: Vec<String>,
    /// The same as -o json
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// Content of `Explanation`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    /// The job's id, or the name of one that is only planned.
    job: String,
    reason: String,
    message: String,
    policy_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_position: Option<Line>,
    clusters: Vec<Cluster>,
    quotas: Vec<Quota>,
    blocking_jobs: Vec<BlockingJob>,
    borrowers: Vec<Borrower>,
    /// within_nominal, borrowing or unpromised; left out for a job that holds nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    standing: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<Start>,
    remedies: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<Estimate>,
    /// Whether the replica knows which nodes are kept for others, and which starts have slipped: the leader does.
    knows_reservations: bool,
    #[serde(flatten)]
    known: Known,
}

/// What else is known of a job: what became of its attempts, and how often to save its work.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<AttemptHistory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint_advice: Option<Advice>,
}

impl Known {
    fn tree(&self) -> String {
        let mut tree = Tree(String::new());
        if let Some(history) = &self.history {
            tree.line(0, "attempts");
            for (name, text) in recovery::lines(history) {
                tree.line(1, &format!("{name}: {text}"));
            }
        }
        if let Some(advice) = &self.checkpoint_advice {
            tree.line(0, "checkpoints");
            for line in recovery::advice_lines(advice) {
                tree.line(1, &line);
            }
        }
        tree.0
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Placement {
    region: String,
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    accelerator_type: String,
    nodes: Vec<NodeWorkers>,
    score: Vec<Score>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeWorkers {
    node: String,
    node_id: String,
    workers: u32,
    devices: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Score {
    name: String,
    weight: u32,
    /// Thousandths of the best there is.
    value_milli: u32,
    points: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    requests_before: u64,
    or_more: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    region: String,
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    accelerator_type: String,
    nodes: Nodes,
    free_devices: u64,
    total_devices: u64,
    workers_that_fit: u32,
    could_hold: bool,
    could_hold_placeable: bool,
    reserved_devices: u64,
    largest_domain_workers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota_room: Option<Decimal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    score: Vec<Score>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unmet: Vec<UnmetCondition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    out_of_service_reasons: Vec<String>,
}

/// A condition on nodes, and how many nodes do not meet it.
#[derive(Serialize)]
struct UnmetCondition {
    condition: String,
    nodes: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Nodes {
    registered: u32,
    not_up: u32,
    cordoned: u32,
    wrong_labels: u32,
    wrong_purchase: u32,
    tainted: u32,
    not_isolated: u32,
    too_small: u32,
    blocked_by_window: u32,
    kept_away: u32,
    reserved: u32,
    full: u32,
    fit: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Quota {
    r#type: String,
    region: String,
    wanted: Decimal,
    room: Decimal,
    short: Decimal,
    /// Whose limit it is; left out for the devices of the fleet.
    #[serde(skip_serializing_if = "String::is_empty")]
    tenant: String,
    /// nominal, borrowing, parent_capacity or lent_reserve.
    limited_by: String,
    /// Left out for all regions together.
    #[serde(skip_serializing_if = "String::is_empty")]
    limit_region: String,
    used: Decimal,
    kept: Decimal,
    limit: Decimal,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockingJob {
    job: String,
    name: String,
    workers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<String>,
    /// Whether that is later than was expected at first.
    slipped: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Borrower {
    tenant: String,
    r#type: String,
    region: String,
    devices: Decimal,
    jobs: u64,
    largest_job: String,
    /// What keeps the devices from coming back now; left out where they can be taken back.
    #[serde(skip_serializing_if = "String::is_empty")]
    hindrance: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_time: Option<String>,
}

impl From<v1::Borrower> for Borrower {
    fn from(message: v1::Borrower) -> Borrower {
        Borrower {
            tenant: message.tenant,
            r#type: message.accelerator_type,
            region: message.region,
            devices: Decimal::milli(message.devices_milli),
            jobs: message.jobs,
            largest_job: message.largest_job_id,
            hindrance: message.hindrance,
            available_time: moment(message.available_time),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Start {
    #[serde(skip_serializing_if = "Option::is_none")]
    p10: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p90: Option<String>,
    basis: String,
}

impl Explanation {
    fn new(job: String, message: v1::Explanation) -> Explanation {
        let blocker = |b: v1::BlockingJob| BlockingJob {
            job: b.job_id,
            name: b.name,
            workers: b.workers,
            start_time: moment(b.start_time),
            slipped: b.has_slipped,
        };
        Explanation {
            job,
            reason: message.reason,
            message: message.message,
            policy_version: message.policy_version,
            placement: message.placement.map(placement_view),
            queue_position: message
                .queue_position
                .map(|line| Line { requests_before: line.requests_before, or_more: line.or_more }),
            clusters: message.clusters.into_iter().map(cluster_view).collect(),
            quotas: message.quotas.into_iter().map(quota_view).collect(),
            blocking_jobs: message.blocking_jobs.into_iter().map(blocker).collect(),
            borrowers: message.borrowers.into_iter().map(Borrower::from).collect(),
            standing: word::<v1::QuotaStanding>(message.standing).to_owned(),
            start: message.start.map(|start| Start {
                p10: moment(start.p10),
                p50: moment(start.p50),
                p90: moment(start.p90),
                basis: start.basis,
            }),
            remedies: message.remedies.into_iter().map(|remedy| remedy.message).collect(),
            estimate: message.estimate.map(Estimate::from),
            knows_reservations: message.knows_reservations,
            known: Known::default(),
        }
    }
}

fn placement_view(message: v1::PlannedPlacement) -> Placement {
    let node = |node: v1::NodeWorkers| NodeWorkers {
        node: node.node_name,
        node_id: node.node_id,
        workers: node.workers,
        devices: node.devices,
    };
    Placement {
        region: message.region,
        cluster: message.cluster,
        accelerator_type: message.accelerator_type,
        nodes: message.nodes.into_iter().map(node).collect(),
        score: score_view(message.score),
    }
}

fn score_view(parts: Vec<v1::ScorePart>) -> Vec<Score> {
    let part = |part: v1::ScorePart| Score {
        name: part.name,
        weight: part.weight,
        value_milli: part.value_milli,
        points: part.points,
    };
    parts.into_iter().map(part).collect()
}

fn cluster_view(message: v1::ClusterFit) -> Cluster {
    let nodes = message.nodes.unwrap_or_default();
    Cluster {
        region: message.region,
        cluster: message.cluster,
        accelerator_type: message.accelerator_type,
        nodes: Nodes {
            registered: nodes.registered,
            not_up: nodes.not_up,
            cordoned: nodes.cordoned,
            wrong_labels: nodes.wrong_labels,
            wrong_purchase: nodes.wrong_purchase,
            tainted: nodes.tainted,
            not_isolated: nodes.not_isolated,
            too_small: nodes.too_small,
            blocked_by_window: nodes.blocked_by_window,
            kept_away: nodes.kept_away,
            reserved: nodes.reserved,
            full: nodes.full,
            fit: nodes.fit,
        },
        free_devices: message.free_devices,
        total_devices: message.total_devices,
        workers_that_fit: message.workers_that_fit,
        could_hold: message.could_hold,
        could_hold_placeable: message.could_hold_placeable,
        reserved_devices: message.reserved_devices,
        largest_domain_workers: message.largest_domain_workers,
        quota_room: message.quota_room_milli.map(Decimal::milli),
        score: score_view(message.score),
        unmet: message.unmet.into_iter().map(unmet_view).collect(),
        out_of_service_reasons: message.out_of_service_reasons,
    }
}

fn unmet_view(message: v1::UnmetCondition) -> UnmetCondition {
    UnmetCondition { condition: message.condition, nodes: message.nodes }
}

fn quota_view(message: v1::QuotaReport) -> Quota {
    Quota {
        r#type: message.r#type,
        region: message.region,
        wanted: Decimal::milli(message.wanted_milli),
        room: Decimal::milli(message.room_milli),
        short: Decimal::milli(message.short_milli),
        tenant: message.tenant,
        limited_by: word::<v1::QuotaLimit>(message.limit).to_owned(),
        limit_region: message.limit_region,
        used: Decimal::milli(message.used_milli),
        kept: Decimal::milli(message.kept_milli),
        limit: Decimal::milli(message.limit_milli),
    }
}

pub async fn plan(global: &Global, console: &Console, args: PlanArgs) -> Result<Exit, Failure> {
    let overrides =
        Overrides { tenant: args.tenant, tier: args.tier, regions: args.region, ..Overrides::default() };
    let mut manifests = read_manifests(console, &args.file, &overrides)?;
    let client = args.read.client(global).await?;
    name_own_tenant(&client, &mut manifests);
    auto::choose(&client, console, &args.file, &mut manifests).await?;
    let console = if args.json { &console.with_format(Format::Json) } else { console };
    for (index, manifest) in manifests.iter().enumerate() {
        let request = v1::PlanJobRequest { job: Some(manifest.message.clone()), read: None };
        let answer = client.plan_job(request).await;
        let answer = answer.map_err(|e| refused(e, &args.file, &manifests, Some(index)))?;
        if index > 0 && !console.is_structured() {
            console.line("")?;
        }
        let name = manifest.message.name.clone();
        let explanation = answer.explanation.unwrap_or_default();
        let who = Who { freshness: answer.freshness, is_past: args.read.is_past() };
        print(console, name, who, (explanation, Known::default()), manifests.len() > 1)?;
        args.read.tell_age(console, answer.freshness.as_ref());
    }
    Ok(Exit::Ok)
}

pub async fn explain(
    client: &Client,
    console: &Console,
    job_id: String,
    read: &ReadArgs,
) -> Result<Exit, Failure> {
    let request = v1::ExplainJobRequest { job_id: job_id.clone(), read: None };
    let answer = client.explain_job(request).await?;
    let known = Known {
        history: answer.history.map(AttemptHistory::from),
        checkpoint_advice: answer.checkpoint_advice.map(Advice::from),
    };
    let explanation = answer.explanation.unwrap_or_default();
    let who = Who { freshness: answer.freshness, is_past: read.is_past() };
    print(console, job_id, who, (explanation, known), false)?;
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

/// Who answered, and of when.
struct Who {
    freshness: Option<v1::Freshness>,
    is_past: bool,
}

fn print(
    console: &Console,
    job: String,
    who: Who,
    (message, known): (v1::Explanation, Known),
    is_one_of_many: bool,
) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml => {
            let explanation = Explanation { known, ..Explanation::new(job, message) };
            let document = Document::new("Explanation", who.freshness, explanation);
            if is_one_of_many { console.event(&document) } else { console.object(&document) }
        }
        Format::Name => console.line(&message.reason),
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let mut text = tree(&job, &message, &who, now_ms());
            text.push_str(&known.tree());
            console.bytes(text.as_bytes())
        }
    }
}

/// Lines of at most [`WIDTH`] characters; what is longer goes on below itself.
struct Tree(String);

impl Tree {
    fn line(&mut self, depth: usize, text: &str) {
        let indent = "  ".repeat(depth);
        let mut line = indent.clone();
        let mut is_empty = true;
        for word in one_line(text).split(' ') {
            let longer = line.chars().count() + 1 + word.chars().count();
            if !is_empty && longer > WIDTH {
                self.push(&line);
                line = format!("{indent}    ");
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.push(&line);
    }

    fn push(&mut self, line: &str) {
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }

    /// The first of many, and how many more there are.
    fn each<T>(&mut self, depth: usize, items: &[T], mut show: impl FnMut(&mut Tree, &T)) {
        items.iter().take(ROWS_MAX).for_each(|item| show(self, item));
        if items.len() > ROWS_MAX {
            self.line(depth, &format!("and {} more; -o json shows all of them", items.len() - ROWS_MAX));
        }
    }
}

/// The explanation as an indented tree.
fn tree(job: &str, explanation: &v1::Explanation, who: &Who, now_ms: u64) -> String {
    let mut tree = Tree(String::new());
    tree.line(0, &format!("{job}: {}", explanation.reason));
    tree.line(1, &explanation.message);
    if let Some(line) = &explanation.queue_position {
        let text = match (line.requests_before, line.or_more) {
            (0, _) => "first in the pending queue".to_owned(),
            (before, false) => format!("{before} different requests are before it in the pending queue"),
            (before, true) => {
                format!("{before} or more different requests are before it in the pending queue")
            }
        };
        tree.line(1, &text);
    }
    if let Some(estimate) = &explanation.estimate {
        let about = |span| show_about(span_ms(span).unwrap_or_default());
        let (likely, high) = (about(estimate.run_time), about(estimate.run_time_p90));
        tree.line(1, &format!("expected to run {likely} (p90 {high})"));
    }
    match explanation.standing() {
        v1::QuotaStanding::WithinNominal => {
            tree.line(1, "within nominal quota: other tenants cannot take back what it holds")
        }
        v1::QuotaStanding::Borrowing => {
            tree.line(1, "borrowing: those who are promised what it holds may take it back")
        }
        _ => {}
    }
    tree.line(1, &format!("by policy version {}", explanation.policy_version));
    if let Some(placement) = &explanation.placement {
        placement_lines(&mut tree, placement);
    }
    if let Some(start) = &explanation.start {
        start_lines(&mut tree, start, now_ms);
    }
    if !explanation.blocking_jobs.is_empty() {
        tree.line(0, "capacity is reserved for");
        tree.each(1, &explanation.blocking_jobs, |tree, blocker| {
            let at = match start_of(blocker.start_time, now_ms) {
                Some(at) => format!("starts {at}"),
                None => "start not known".to_owned(),
            };
            let slipped = if blocker.has_slipped { ", its start has slipped" } else { "" };
            let text =
                format!("{} {}, {} workers, {at}{slipped}", blocker.job_id, blocker.name, blocker.workers);
            tree.line(1, &text);
        });
    }
    if let Some(text) = unknown_reservations(explanation, who) {
        tree.line(0, &text);
    }
    if !explanation.borrowers.is_empty() {
        tree.line(0, "borrowed from its tenant");
        tree.each(1, &explanation.borrowers, |tree, borrower| tree.line(1, &borrower_line(borrower)));
    }
    if !explanation.quotas.is_empty() {
        tree.line(0, "quota");
        tree.each(1, &explanation.quotas, |tree, quota| tree.line(1, &quota_line(quota)));
    }
    if !explanation.clusters.is_empty() {
        cluster_lines(&mut tree, &explanation.clusters);
    }
    if !explanation.remedies.is_empty() {
        tree.line(0, "would help");
        tree.each(1, &explanation.remedies, |tree, remedy| tree.line(1, &format!("- {}", remedy.message)));
    }
    tree.0
}

/// What an answer of another replica than the leader leaves out, of a job in the pending queue.
fn unknown_reservations(explanation: &v1::Explanation, who: &Who) -> Option<String> {
    if explanation.knows_reservations || explanation.queue_position.is_none() {
        return None;
    }
    if who.is_past {
        return Some(
            "which nodes were reserved then, and which starts had slipped, is in no record".to_owned(),
        );
    }
    let freshness = who.freshness?;
    let (replica, leader) = (freshness.replica_id, freshness.leader_id);
    let knows = match leader {
        0 => "only the leader knows, and there is none now".to_owned(),
        _ if leader == replica => "it knows after its first complete pass".to_owned(),
        _ => format!("only the leader knows, replica {leader}"),
    };
    Some(format!(
        "which nodes are reserved, and which starts have slipped, replica {replica} cannot tell: {knows}"
    ))
}

fn placement_lines(tree: &mut Tree, placement: &v1::PlannedPlacement) {
    let kind = match placement.accelerator_type.as_str() {
        "" => String::new(),
        kind => format!(" on {kind}"),
    };
    tree.line(0, &format!("place: {} / {}{kind}", placement.region, placement.cluster));
    tree.each(1, &placement.nodes, |tree, node| {
        tree.line(1, &format!("{}: {} workers, {} devices", node.node_name, node.workers, node.devices));
    });
    if !placement.score.is_empty() {
        tree.line(1, &score_line(&placement.score));
    }
}

/// What is multiplied and what comes of it.
fn score_line(parts: &[v1::ScorePart]) -> String {
    let total: i64 = parts.iter().fold(0, |sum, part| sum.saturating_add(part.points));
    let shown: Vec<String> =
        parts.iter().map(|part| format!("{} {} x {}", part.name, part.weight, part.value_milli)).collect();
    format!("score {total}: {}", shown.join(", "))
}

fn start_lines(tree: &mut Tree, start: &v1::StartEstimate, now_ms: u64) {
    tree.line(0, "start");
    let said = [("p10", start.p10), ("p50", start.p50), ("p90", start.p90)];
    for (words, at) in said {
        if let Some(at) = start_of(at, now_ms) {
            tree.line(1, &format!("{words}  {at}"));
        }
    }
    if !start.basis.is_empty() {
        tree.line(1, &start.basis);
    }
}

/// A moment and how far it is.
pub(super) fn start_of(at: Option<Timestamp>, now_ms: u64) -> Option<String> {
    let ms = unix_ms(at)?;
    // Nobody plans by milliseconds.
    let at = time(ms / 1_000 * 1_000)?;
    Some(match ms.checked_sub(now_ms) {
        Some(left) if left >= 1_000 => format!("{at} (in {})", show_about(left)),
        _ => format!("{at} (now)"),
    })
}

fn borrower_line(borrower: &v1::Borrower) -> String {
    let plural = if borrower.jobs == 1 { "job" } else { "jobs" };
    let hindrance = match borrower.hindrance_message.as_str() {
        "" => "they can be taken back",
        detail => detail,
    };
    format!(
        "{}: {} devices of {} in {}, in {} {plural} such as {}; {hindrance}",
        borrower.tenant,
        show_scaled(borrower.devices_milli, 3),
        borrower.accelerator_type,
        borrower.region,
        borrower.jobs,
        borrower.largest_job_id,
    )
}

fn quota_line(quota: &v1::QuotaReport) -> String {
    let number = |milli: u64| show_scaled(milli, 3);
    let limit = match quota.limit() {
        v1::QuotaLimit::Nominal => "nominal quota",
        v1::QuotaLimit::Borrowing => "nominal quota and borrowing limit",
        v1::QuotaLimit::ParentCapacity => "capacity",
        v1::QuotaLimit::LentReserve => "capacity without what is not lent",
        v1::QuotaLimit::Unspecified => "a limit",
    };
    let whose = if quota.tenant.is_empty() { "the fleet" } else { quota.tenant.as_str() };
    let counted =
        if quota.limit_region.is_empty() { "over all regions" } else { quota.limit_region.as_str() };
    let kept = match quota.kept_milli {
        0 => String::new(),
        kept => format!(", {} kept", number(kept)),
    };
    format!(
        "{} in {}: wants {}, {} left, {} short: {limit} of {whose} ({counted}) is {}, {} used{kept}",
        quota.r#type,
        quota.region,
        number(quota.wanted_milli),
        number(quota.room_milli),
        number(quota.short_milli),
        number(quota.limit_milli),
        number(quota.used_milli),
    )
}

fn cluster_lines(tree: &mut Tree, clusters: &[v1::ClusterFit]) {
    tree.0.push('\n');
    let mut grid = Grid::new(vec!["CLUSTER", "TYPE", "FREE", "OF", "KEPT", "FIT", "DOMAIN", "HOLDS"]);
    for report in clusters.iter().take(ROWS_MAX) {
        grid.row(vec![
            format!("{}/{}", report.region, report.cluster),
            report.accelerator_type.clone(),
            report.free_devices.to_string(),
            report.total_devices.to_string(),
            report.reserved_devices.to_string(),
            report.workers_that_fit.to_string(),
            report.largest_domain_workers.to_string(),
            match (report.could_hold_placeable, report.could_hold) {
                (true, _) => "yes",
                (false, true) => "if up",
                (false, false) => "no",
            }
            .to_owned(),
        ]);
    }
    tree.0.push_str(&grid.plain());
    tree.each(0, clusters, |tree, report| {
        let nodes = report.nodes.unwrap_or_default();
        let lacking: Vec<&str> = report.lacking_isolation.iter().map(|n| word::<Guarantee>(*n)).collect();
        let lacking = lacking.join(", ");
        let not_isolated = format!("without the isolation that policy requires ({lacking})");
        let counts = [
            ("fit", nodes.fit),
            ("full", nodes.full),
            ("not up", nodes.not_up),
            ("cordoned", nodes.cordoned),
            ("without the labels or names", nodes.wrong_labels),
            ("bought in another way, or taken away more often", nodes.wrong_purchase),
            ("tainted", nodes.tainted),
            (&not_isolated, nodes.not_isolated),
            ("too small", nodes.too_small),
            ("in a window", nodes.blocked_by_window),
            ("where other jobs are or are not", nodes.kept_away),
            ("kept for gangs before it", nodes.reserved),
        ];
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(words, count)| format!("{count} {words}")).collect();
        let (name, registered) = (format!("{}/{}", report.region, report.cluster), nodes.registered);
        tree.line(1, &format!("{name}: {registered} nodes: {}", counts.join(", ")));
        let unmet = report.unmet.iter().filter(|unmet| unmet.nodes > 0);
        let unmet: Vec<String> =
            unmet.map(|unmet| format!("{} by {}", unmet.condition, unmet.nodes)).collect();
        if !unmet.is_empty() {
            tree.line(2, &format!("conditions that nodes do not meet: {}", unmet.join("; ")));
        }
        if !report.out_of_service_reasons.is_empty() {
            let reasons = report.out_of_service_reasons.join("; ");
            tree.line(2, &format!("why operators took nodes out of service: {reasons}"));
        }
        if !report.score.is_empty() {
            tree.line(2, &score_line(&report.score));
        }
    });
    tree.line(1, "FREE, OF and KEPT are devices; FIT and DOMAIN workers, in all and in the largest domain; HOLDS: empty, it would hold the gang");
    tree.0.push('\n');
}
