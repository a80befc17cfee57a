//! What would become of a job before it is submitted: a form, and the answer.

use maud::{Markup, html};
use muster_manifest::quantity;
use muster_types::{PriorityTier, Violation, limits};
use muster_wire::closed::{ClosedSet as _, number, of_word, words};
use muster_wire::{convert, process, v1};

use crate::filters::{Wrong, choice, field};
use crate::frame::{Frame, Section, document};
use crate::job::details;
use crate::text;

/// Characters of a job file: an address has no space for more once they are encoded.
const FILE_CHARS_MAX: usize = 4_000;
/// Characters of the other fields.
const FIELD_CHARS_MAX: usize = 256;
/// Nodes of a plan that are named.
const NODES_MAX: usize = 64;
/// Milliseconds of the hour that a price is for.
const HOUR_MS: u128 = 3_600_000;

/// The form as it was filled in; what is empty takes the default of a job file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanQuery {
    /// Types and a count for each worker, as in `h100:8`; empty for none.
    pub accelerators: String,
    /// The number of workers.
    pub workers: String,
    /// CPUs of each worker.
    pub cpu: String,
    /// Memory of each worker.
    pub memory: String,
    /// The priority tier.
    pub tier: String,
    /// The tenant.
    pub tenant: String,
    /// Regions, with commas between them; empty for all.
    pub regions: String,
    /// How long it may run.
    pub limit: String,
    /// A job file in the place of all of that.
    pub file: String,
}

impl PlanQuery {
    /// Names of the parameters, in the order of [`PlanQuery::of`].
    pub const PARAMETERS: [&'static str; 9] =
        ["accelerators", "workers", "cpu", "memory", "tier", "tenant", "regions", "limit", "file"];

    /// The form by its parameters.
    #[must_use]
    pub fn of(values: [String; 9]) -> PlanQuery {
        let [accelerators, workers, cpu, memory, tier, tenant, regions, limit, file] = values;
        PlanQuery { accelerators, workers, cpu, memory, tier, tenant, regions, limit, file }
    }

    /// Whether nothing was filled in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == PlanQuery::default()
    }

    fn has_fields(&self) -> bool {
        let without_file = PlanQuery { file: String::new(), ..self.clone() };
        !without_file.is_empty()
    }

    /// The job that it describes. `now_ms` is what times like `+2h` of a job file count from.
    ///
    /// # Errors
    /// The fields of the form that are wrong, with what would be right.
    pub fn job(&self, now_ms: u64) -> Result<v1::Job, Vec<(String, String)>> {
        if self.file.trim().is_empty() { self.job_of_fields() } else { self.job_of_file(now_ms) }
    }

    fn job_of_file(&self, now_ms: u64) -> Result<v1::Job, Vec<(String, String)>> {
        let wrong = |text: String| vec![("file".to_owned(), text)];
        if self.has_fields() {
            return Err(wrong("must be left out where the other fields are filled in".to_owned()));
        }
        if self.file.chars().count() > FILE_CHARS_MAX {
            let text =
                format!("must have at most {FILE_CHARS_MAX} characters; use `muster plan` for longer ones");
            return Err(wrong(text));
        }
        let read = muster_manifest::parse(self.file.as_bytes(), now_ms);
        let mut found = read.map_err(|error| {
            let problems = error.0.iter();
            problems.map(|problem| ("file".to_owned(), problem.to_string())).collect::<Vec<_>>()
        })?;
        match (found.pop(), found.len()) {
            (Some(one), 0) => Ok(one.message),
            (_, others) => Err(wrong(format!("must hold one job, and holds {}", others + 1))),
        }
    }

    fn job_of_fields(&self) -> Result<v1::Job, Vec<(String, String)>> {
        let mut wrong: Vec<(String, String)> = Vec::new();
        let mut refuse = |field: &str, text: String| wrong.push((field.to_owned(), text));
        let mut group = v1::TaskGroup {
            name: "main".to_owned(),
            runtime: process(vec!["true".to_owned()]),
            ..Default::default()
        };
        group.workers = match self.workers.trim() {
            "" => 1,
            text => quantity::count(text).unwrap_or_else(|why| {
                refuse("workers", why.to_string());
                1
            }),
        };
        match accelerators(&self.accelerators) {
            Ok(asked) => group.resources_mut().accelerators = asked,
            Err(why) => refuse("accelerators", why),
        }
        if !self.cpu.trim().is_empty() {
            match quantity::cpu_milli(self.cpu.trim()) {
                Ok(milli) => group.resources_mut().cpu_milli = milli,
                Err(why) => refuse("cpu", why.to_string()),
            }
        }
        if !self.memory.trim().is_empty() {
            match quantity::memory_bytes(self.memory.trim()) {
                Ok(bytes) => group.resources_mut().memory_bytes = bytes,
                Err(why) => refuse("memory", why.to_string()),
            }
        }
        let mut spec = v1::JobSpec { groups: vec![group], ..Default::default() };
        match of_word::<PriorityTier>(&self.tier) {
            Some(tier) => spec.tier = number(tier),
            None if self.tier.is_empty() => {}
            None => refuse("tier", format!("must be one of {}", words::<PriorityTier>())),
        }
        if !self.limit.trim().is_empty() {
            match quantity::duration_ms(self.limit.trim()) {
                Ok(ms) => spec.run_time_limit = Some(muster_wire::time::duration(ms)),
                Err(why) => refuse("limit", why.to_string()),
            }
        }
        let regions = self.regions.split(',').map(str::trim).filter(|region| !region.is_empty());
        spec.regions = regions.map(ToOwned::to_owned).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let tenant = self.tenant.trim().to_owned();
        let job = v1::Job { name: "plan".to_owned(), tenant, spec: Some(spec), ..Default::default() };
        match convert::submissions_from_proto("job", Some(job.clone())) {
            Ok(_) => Ok(job),
            Err(found) => Err(found.iter().map(of_form).collect()),
        }
    }
}

/// What each worker is to have; none for no accelerator.
fn accelerators(text: &str) -> Result<Option<v1::AcceleratorRequest>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let (kinds, amount) = text.split_once(':').unwrap_or((text, ""));
    let amount = quantity::devices(amount.trim())
        .map_err(|_| "must be a type and a count, like h100:4, h100|a100:1 or any:0.25".to_owned())?;
    let choice = |kind: &str| v1::AcceleratorChoice { r#type: kind.trim().to_owned(), ..Default::default() };
    let choices = kinds.split('|').filter(|_| kinds.trim() != "any").map(choice).collect();
    Ok(Some(v1::AcceleratorRequest { choices, amount: Some(amount) }))
}

/// The field of the form that stands for one of the message.
fn of_form(violation: &Violation) -> (String, String) {
    let has = |part: &str| violation.field.contains(part);
    let fields = [
        ("accelerators", "accelerators"),
        ("workers", "workers"),
        ("cpu", "cpu"),
        ("memory", "memory"),
        ("tier", "tier"),
        ("tenant", "tenant"),
        ("regions", "regions"),
        ("run_time_limit", "limit"),
    ];
    match fields.into_iter().find(|(part, _)| has(part)) {
        Some((_, field)) => (field.to_owned(), violation.description.clone()),
        None => (violation.field.clone(), violation.description.clone()),
    }
}

/// What a plan would cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedCost {
    /// Millionths of a dollar for one device and one hour.
    pub micro_dollars_per_device_hour: u64,
    /// Devices that it would hold.
    pub devices: u64,
    /// How long it is expected to hold them, in milliseconds.
    pub run_ms: u64,
}

impl PlannedCost {
    /// All of it in millionths of a dollar.
    fn total(self) -> u64 {
        let of_hours = u128::from(self.micro_dollars_per_device_hour)
            .saturating_mul(u128::from(self.devices))
            .saturating_mul(u128::from(self.run_ms));
        u64::try_from(of_hours / HOUR_MS).unwrap_or(u64::MAX)
    }
}

/// What would become of a job.
#[derive(Clone, Debug, Default)]
pub struct PlannedJob {
    /// Why a submission of it would be refused; none where it would be taken.
    pub refusal: Option<String>,
    /// What `PlanJob` answers.
    pub explanation: v1::Explanation,
    /// The record that the answer is of.
    pub log_index: u64,
    /// None where the policy states no price for it, or where it fits nowhere.
    pub cost: Option<PlannedCost>,
}

/// The page. `wrong` are fields that cannot be read.
#[must_use]
pub fn plan(
    frame: &Frame,
    query: &PlanQuery,
    planned: Option<&PlannedJob>,
    wrong: &[(String, String)],
) -> String {
    let others: Vec<&(String, String)> =
        wrong.iter().filter(|(field, _)| !PlanQuery::PARAMETERS.contains(&field.as_str())).collect();
    let body = html! {
        p { "Shows what would become of a job if it were submitted now. Nothing is submitted and nothing is reserved." }
        @if !others.is_empty() {
            ul.problems { @for (field, text) in others { li { code { (field) } " " (text) } } }
        }
        (form(query, wrong))
        @if let Some(planned) = planned { (text::section("answer", "What would become of it", answer(planned))) }
    };
    document(Some(frame), Some(Section::Plan), "Plan", body)
}

fn form(query: &PlanQuery, wrong: &Wrong) -> Markup {
    let mut tiers = vec![("", "the default")];
    tiers.extend(PriorityTier::ALL.iter().map(|tier| (tier.word(), tier.word())));
    let (name, long) = (limits::NAME_BYTES_MAX, FIELD_CHARS_MAX);
    let of_file: Vec<&str> =
        wrong.iter().filter(|(field, _)| field == "file").map(|(_, text)| text.as_str()).collect();
    let is_wrong = !of_file.is_empty();
    html! {
        form.filters action="/plan" method="get" aria-label="Job" {
            (field(wrong, ("accelerators", "Accelerators of a worker, as in h100:8"), &query.accelerators, long))
            (field(wrong, ("workers", "Workers"), &query.workers, 10))
            (field(wrong, ("cpu", "CPUs of a worker"), &query.cpu, 20))
            (field(wrong, ("memory", "Memory of a worker, as in 64Gi"), &query.memory, 20))
            (choice(wrong, ("tier", "Tier"), &tiers, &query.tier))
            (field(wrong, ("tenant", "Tenant"), &query.tenant, name))
            (field(wrong, ("regions", "Regions, with commas between them"), &query.regions, long))
            (field(wrong, ("limit", "Time limit, as in 2h"), &query.limit, 64))
            div.wide {
                label for="file" { "Or a job file, in the place of all fields above" }
                textarea #file name="file" rows="6" maxlength=(FILE_CHARS_MAX) spellcheck="false" autocomplete="off"
                    aria-invalid=[is_wrong.then_some("true")] aria-describedby=[is_wrong.then_some("file-error")] { (query.file) }
                @if is_wrong { div #file-error { @for text in of_file { p.error { (text) } } } }
                p.note { "The form makes an address: leave keys and passwords out of a job file here." }
            }
            div { button type="submit" { "Plan" } " " a href="/plan" { "Clear" } }
        }
    }
}

fn answer(planned: &PlannedJob) -> Markup {
    let explained = &planned.explanation;
    if let Some(why) = &planned.refusal {
        return html! { p { b { "A submission would be refused." } " " (text::of_people(why)) } };
    }
    html! {
        p {
            @match &explained.placement {
                Some(placement) => {
                    b { "It fits now" } ", in " (placement.region) "/" (placement.cluster) " on "
                    (text::count(placement.nodes.len() as u64, "node", "nodes")) ". "
                },
                None => { b { "It does not start now." } " " },
            }
            code { (explained.reason) } " " (text::of_people(&explained.message))
        }
        dl {
            @if let Some(position) = explained.queue_position {
                dt { "Requests before it" }
                dd { (position.requests_before) @if position.or_more { " or more" } }
            }
            @if let Some(start) = &explained.start {
                dt { "Expected start (UTC)" }
                dd {
                    "p50 " (text::moment(start.p50)) ", p10 " (text::moment(start.p10)) ", p90 " (text::moment(start.p90))
                    ". Basis: " (start.basis)
                }
            }
            @if let Some(estimate) = &explained.estimate {
                dt { "Expected run" }
                dd { (text::span(estimate.run_time)) ", p90 " (text::span(estimate.run_time_p90)) }
            }
            @if let Some(cost) = planned.cost {
                dt { "Expected cost" }
                dd {
                    "$" (quantity::show_scaled(cost.total(), 6)) " for " (text::count(cost.devices, "device", "devices"))
                    " at $" (quantity::show_scaled(cost.micro_dollars_per_device_hour, 6)) " an hour each, for the expected run"
                }
            }
            dt { "Planned as of log index" } dd { (planned.log_index) }
        }
        @if let Some(placement) = &explained.placement { (nodes(placement)) }
        (details(explained))
    }
}

fn nodes(placement: &v1::PlannedPlacement) -> Markup {
    html! {
        h3 { "Where its workers would be" }
        ul {
            @for node in placement.nodes.iter().take(NODES_MAX) {
                li {
                    (text::node_link(&node.node_name)) ": " (text::count(node.workers.into(), "worker", "workers")) ", "
                    (text::count(node.devices.into(), "device", "devices"))
                }
            }
        }
        @if placement.nodes.len() > NODES_MAX {
            p.note { (placement.nodes.len()) " nodes; the first " (NODES_MAX) " are listed." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(accelerators: &str, workers: &str) -> PlanQuery {
        PlanQuery {
            accelerators: accelerators.to_owned(),
            workers: workers.to_owned(),
            ..PlanQuery::default()
        }
    }

    #[test]
    fn fields_become_a_job() {
        let filled = PlanQuery {
            tier: "production".to_owned(),
            tenant: "vision".to_owned(),
            regions: "eu, us".to_owned(),
            limit: "2h".to_owned(),
            ..query("h100|a100:8", "4")
        };
        let job = filled.job(0).expect("it is a job");
        let spec = job.spec.expect("it has a spec");
        assert_eq!((job.tenant.as_str(), spec.groups[0].workers), ("vision", 4));
        assert_eq!(spec.regions, ["eu", "us"]);
        assert_eq!(spec.tier, number(PriorityTier::Production));
        let asked = spec.groups[0].resources().accelerators.clone().expect("it asks for some");
        assert_eq!(asked.choices.len(), 2);
        assert_eq!(asked.amount, Some(v1::accelerator_request::Amount::Count(8)));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        let fields = |query: PlanQuery| -> Vec<String> {
            let found = query.job(0).expect_err("it is refused");
            found.into_iter().map(|(field, _)| field).collect()
        };
        assert_eq!(fields(query("h100", "1")), ["accelerators"]);
        assert_eq!(fields(query("h100:1:2", "x")), ["workers", "accelerators"]);
        assert_eq!(fields(query("h100:65", "1")), ["accelerators"]);
        assert_eq!(fields(query("h100:1", "0")), ["workers"]);
        assert_eq!(fields(PlanQuery { tier: "gold".to_owned(), ..query("", "1") }), ["tier"]);
        assert_eq!(fields(PlanQuery { limit: "soon".to_owned(), ..query("h100:1", "") }), ["limit"]);
        assert_eq!(fields(PlanQuery { tenant: "<b>".to_owned(), ..query("h100:1", "") }), ["tenant"]);
        assert_eq!(fields(PlanQuery { file: "a: [".to_owned(), ..PlanQuery::default() }), ["file"]);
        assert_eq!(fields(PlanQuery { file: "a".repeat(5_000), ..PlanQuery::default() }), ["file"]);
        assert_eq!(fields(PlanQuery { file: "kind: Job".to_owned(), ..query("h100:1", "") }), ["file"]);
    }

    #[test]
    fn what_was_filled_in_is_text() {
        let bad = "</textarea><script>alert(1)</script>".to_owned();
        let filled = PlanQuery {
            file: bad.clone(),
            tenant: "\" onfocus=\"alert(1)".to_owned(),
            ..PlanQuery::default()
        };
        let wrong = [("file".to_owned(), bad.clone()), (bad.clone(), bad.clone())];
        let explanation = v1::Explanation { message: bad, ..Default::default() };
        let planned = PlannedJob { explanation, ..PlannedJob::default() };
        let page = plan(&Frame::default(), &filled, Some(&planned), &wrong);
        assert!(!page.contains("<script>alert") && !page.contains("\" onfocus"), "{page}");
        assert!(page.contains("aria-describedby=\"file-error\""), "{page}");
        assert!(page.contains("It does not start now"), "{page}");
    }

    #[test]
    fn costs_are_those_of_the_expected_run() {
        let cost = PlannedCost { micro_dollars_per_device_hour: 2_500_000, devices: 8, run_ms: 5_400_000 };
        assert_eq!(cost.total(), 30_000_000);
        let huge =
            PlannedCost { micro_dollars_per_device_hour: u64::MAX, devices: u64::MAX, run_ms: u64::MAX };
        assert_eq!(huge.total(), u64::MAX);
        let placement = Some(v1::PlannedPlacement { region: "eu".to_owned(), ..Default::default() });
        let explanation = v1::Explanation { placement, ..Default::default() };
        let planned = PlannedJob { explanation, cost: Some(cost), ..PlannedJob::default() };
        let page = plan(&Frame::default(), &PlanQuery::default(), Some(&planned), &[]);
        assert!(page.contains("$30 for 8 devices at $2.5 an hour each"), "{page}");
    }
}
