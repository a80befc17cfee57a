//! A job whose split is left to the parallelism planner: its size and layout are chosen when it is submitted.
//!
//! Every number of workers that the file permits is one alternative, with the planner's fastest layout for it. The
//! cluster is asked for each when it would start. What is submitted has the one that ends first, and every larger one that
//! is faster, as sizes of an elastic gang: the leader takes the largest that is free when it places the gang, and the
//! worker's agent gives it the layout of that size. A job that saves its work may start with its smallest size, for it
//! grows later.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muster_client::Client;
use muster_console::{Console, Exit, Failure, Grid, time};
use muster_manifest::{Manifest, ModelSource, Parallel, Problem};
use muster_parallel::accelerator::{self, Links};
use muster_parallel::ranks::{self, Order};
use muster_parallel::search::{Candidate, Question, device_counts, usual_program};
use muster_parallel::{
    Accelerator, CONFIG_BYTES_MAX, Calibration, Model, PlanError, Training, parse_config, programs,
};
use muster_types::SIZES_VARIABLE;
use muster_types::limits::{GANG_WORKERS_MAX, JOB_TEXT_BYTES_MAX, RUN_TIME_LIMIT_MS_MAX, TEXT_BYTES_MAX};
use muster_wire::time::{duration, unix_ms};
use muster_wire::v1::{self, accelerator_request::Amount};

use super::read;
use crate::job_files::{located, now_ms, refused};

/// Most alternatives of a job: the cluster is asked for each.
const ALTERNATIVES_MAX: usize = 32;
/// Most chips of a slice that is planned.
const CHIPS_MAX: u64 = 1 << 20;

/// One size that a job may have.
struct Alternative {
    message: v1::Job,
    kind: &'static str,
    candidate: Candidate,
    /// What its layout sets in the environment of its workers.
    variables: Vec<(String, String)>,
}

/// When an alternative would start and end, in milliseconds since the Unix epoch; none if nothing is known.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Forecast {
    starts_now: bool,
    start_ms: Option<u64>,
    end_ms: Option<u64>,
}

/// Puts in place of each job that leaves its split to the planner the alternative that ends first, with the larger ones
/// that it may have as well.
pub async fn choose(
    client: &Client,
    console: &Console,
    file: &str,
    manifests: &mut [Manifest],
) -> Result<(), Failure> {
    for index in 0..manifests.len() {
        let Some(parallel) = manifests[index].parallel.clone() else { continue };
        let alternatives = alternatives(file, &manifests[index], &parallel)?;
        // One moment for all: those that start now start together.
        let now_ms = now_ms();
        let mut forecasts = Vec::new();
        for alternative in &alternatives {
            let request = v1::PlanJobRequest { job: Some(alternative.message.clone()), read: None };
            let answer = client.plan_job(request).await;
            let answer = answer.map_err(|error| refused(error, file, manifests, Some(index)))?;
            let step_us = alternative.candidate.step.step_time_us;
            forecasts.push(forecast(
                &answer.explanation.unwrap_or_default(),
                step_us,
                parallel.steps,
                now_ms,
            ));
        }
        let keys = alternatives.iter().zip(&forecasts);
        let keys = keys.map(|(a, forecast)| (*forecast, a.candidate.step.step_time_us, a.candidate.devices));
        let chosen = best(&keys.collect::<Vec<_>>());
        let sizes = sizes(&manifests[index].message, &alternatives, chosen);
        show(console, &manifests[index].message.name, &alternatives, &forecasts, (chosen, &sizes));
        manifests[index].message = combined(&manifests[index].message, &alternatives, &sizes);
        manifests[index].check().map_err(|error| wrong(file, &error.0))?;
    }
    Ok(())
}

fn wrong(file: &str, problems: &[Problem]) -> Failure {
    Failure::usage("the job file is not valid")
        .with_details(problems.iter().map(|problem| located(file, problem)))
        .with_next("correct the file; `muster parallel plan` shows what the planner makes of a model")
}

/// What the planner refuses, by its stable code.
fn refuse(file: &str, manifest: &Manifest, field: &str, error: &PlanError) -> Failure {
    let problem = manifest.problem(field, format!("{}: {error}", error.code()));
    if !matches!(error, PlanError::FitsNowhere { .. }) {
        return wrong(file, &[problem]);
    }
    Failure::new(Exit::Conflict, "the model fits on none of the sizes that the job permits")
        .with_details([located(file, &problem)])
        .with_next("permit more workers, or make one of the changes named above")
}

/// The sizes that the file permits, each with its fastest layout.
fn alternatives(file: &str, manifest: &Manifest, parallel: &Parallel) -> Result<Vec<Alternative>, Failure> {
    check_variables(file, manifest)?;
    let model = model(file, manifest, parallel)?;
    let shape = Shape::of(manifest, parallel).map_err(|problem| wrong(file, &[problem]))?;
    let mut found = Vec::new();
    let mut misfit = None;
    for choice in &shape.choices {
        let kind = accelerator::find(&choice.r#type)
            .map_err(|error| refuse(file, manifest, "spec.accelerators", &error))?;
        let question = question(&model, parallel, &kind, &shape);
        question.check().map_err(|error| refuse(file, manifest, "spec.parallel", &error))?;
        let before = found.len();
        for (workers, devices) in shape.sizes() {
            if let Some(candidate) = question.fastest_on(devices) {
                let variables = variables(&question, &candidate)
                    .map_err(|error| refuse(file, manifest, "spec.parallel", &error))?;
                let message = message(&manifest.message, choice, workers, &candidate, parallel, &variables);
                found.push(Alternative { message, kind: kind.name, candidate, variables });
            }
        }
        if found.len() == before && misfit.is_none() {
            misfit = Some(nothing_fits(&question, &shape));
        }
    }
    if let (true, Some(error)) = (found.is_empty(), misfit) {
        return Err(refuse(file, manifest, "spec.parallel", &error));
    }
    // The largest are worth most; more are not asked for.
    found.sort_by_key(|alternative| Reverse(alternative.candidate.devices));
    found.truncate(ALTERNATIVES_MAX);
    found.reverse();
    Ok(found)
}

fn model(file: &str, manifest: &Manifest, parallel: &Parallel) -> Result<Model, Failure> {
    let text = match &parallel.model {
        ModelSource::Inline(text) => text.clone(),
        ModelSource::File(path) => {
            read(&relative_to(file, path), CONFIG_BYTES_MAX as u64).map_err(|error| {
                error.with_next(
                    "spec.parallel.model is the path of a config.json from the directory of the job file",
                )
            })?
        }
    };
    parse_config(&text).map_err(|error| refuse(file, manifest, "spec.parallel.model", &error))
}

/// A path from the directory of the job file; from the current one for stdin.
fn relative_to(file: &str, path: &str) -> PathBuf {
    let directory = if file == "-" { None } else { Path::new(file).parent() };
    directory.unwrap_or(Path::new("")).join(path)
}

/// The other sizes may do though these do not: the planner's own account of why, where it has one.
fn nothing_fits(question: &Question, shape: &Shape) -> PlanError {
    question.plan().err().unwrap_or_else(|| {
        let sizes: Vec<String> = shape.sizes().iter().map(|(_, devices)| devices.to_string()).collect();
        let (kind, sizes) = (question.accelerator.name, sizes.join(", "));
        PlanError::FitsNowhere {
            text: format!("no layout fits on {sizes} devices of {kind}; fewer workers do"),
        }
    })
}

/// The workers that a job permits.
struct Shape {
    choices: Vec<v1::AcceleratorChoice>,
    /// Devices of a worker; none for a slice, whose shape settles it.
    each: Option<u64>,
    fewest: u64,
    most: u64,
    /// Of a job's slices.
    chips: u64,
}

impl Shape {
    fn of(manifest: &Manifest, parallel: &Parallel) -> Result<Shape, Problem> {
        let bad = |field: &str, text: String| Err(manifest.problem(field, text));
        let [group] = manifest.message.spec().groups.as_slice() else {
            return bad(
                "spec.parallel",
                "plans a job of one group; write the group directly in spec".to_owned(),
            );
        };
        let request = group.resources().accelerators.as_ref();
        let choices = request.map(|request| request.choices.clone()).unwrap_or_default();
        if choices.is_empty() {
            let text = "must name the types, like h100:8, where parallel is given: a layout is for a type";
            return bad("spec.accelerators", text.to_owned());
        }
        let (fewest, most) =
            (u64::from(parallel.workers_min.max(1)), u64::from(group.workers.clamp(1, GANG_WORKERS_MAX)));
        if let Some(slice) = &group.slice {
            let lengths = slice.shape.split('x').map(|length| length.trim().parse::<u64>().ok());
            let chips =
                lengths.chain([Some(u64::from(slice.count.max(1)))]).try_fold(1_u64, |product, length| {
                    product.checked_mul(length?).filter(|chips| (1..=CHIPS_MAX).contains(chips))
                });
            return match chips {
                Some(chips) => Ok(Shape { choices, each: None, fewest: 1, most: 1, chips }),
                None => bad("spec.slice", format!("must be a shape like 4x4x8, got {:?}", slice.shape)),
            };
        }
        let each = match request.and_then(|request| request.amount.as_ref()) {
            Some(Amount::Count(count)) if *count > 0 => u64::from(*count),
            _ => {
                let text = "must be whole devices, like h100:8, where parallel is given";
                return bad("spec.accelerators", text.to_owned());
            }
        };
        if fewest > most {
            return bad("spec.minWorkers", format!("must be at most workers, which is {most}, got {fewest}"));
        }
        Ok(Shape { choices, each: Some(each), fewest, most, chips: 0 })
    }

    /// Numbers of workers and of devices: powers of two, and the most.
    fn sizes(&self) -> Vec<(u64, u64)> {
        let Some(each) = self.each else { return vec![(0, self.chips)] };
        let counts = device_counts(self.most).into_iter().chain([self.fewest]);
        let mut counts: Vec<u64> = counts.filter(|workers| *workers >= self.fewest).collect();
        counts.sort_unstable();
        counts.dedup();
        counts.into_iter().map(|workers| (workers, workers.saturating_mul(each))).collect()
    }
}

/// What the planner is asked: tensor parallel groups stay inside a worker, and where a worker is a part of a host, nothing
/// is taken for granted of where the next one is.
fn question(model: &Model, parallel: &Parallel, kind: &Accelerator, shape: &Shape) -> Question {
    let mut accelerator = *kind;
    let mut fixed = parallel.fixed;
    if let (Some(each), Links::Switched { domain, bandwidth_gbs }) = (shape.each, kind.links) {
        fixed.worker_devices = Some(each);
        if domain <= kind.host_devices {
            accelerator.links = Links::Switched { domain: domain.min(each), bandwidth_gbs };
        }
        accelerator.host_devices = kind.host_devices.min(each);
    }
    Question {
        model: model.clone(),
        training: Training {
            batch: parallel.batch,
            sequence: parallel.sequence,
            precision: parallel.precision,
            program: usual_program(kind),
        },
        accelerator,
        calibration: Calibration::of(kind),
        devices_max: shape.sizes().iter().map(|(_, devices)| *devices).max().unwrap_or(1),
        fixed,
    }
}

/// The job at one of its sizes, with the layout in its workers' environment.
fn message(
    job: &v1::Job,
    choice: &v1::AcceleratorChoice,
    workers: u64,
    candidate: &Candidate,
    parallel: &Parallel,
    variables: &[(String, String)],
) -> v1::Job {
    let mut message = job.clone();
    let asked = message.spec_mut();
    if let Some(group) = asked.groups.first_mut() {
        group.workers = u32::try_from(workers).unwrap_or(GANG_WORKERS_MAX);
        group.min_workers = 0;
        if let Some(accelerators) = &mut group.resources_mut().accelerators {
            accelerators.choices = vec![choice.clone()];
        }
        for (name, value) in variables {
            // What the file sets for NCCL counts for more.
            if group.environment.iter().all(|known| known.name != *name) {
                group.set_variable(name, value);
            }
        }
    }
    if parallel.steps > 0 && asked.expected_run.is_none() {
        let run_ms = run_ms(candidate.step.step_time_us, parallel.steps).clamp(1, RUN_TIME_LIMIT_MS_MAX);
        asked.expected_run = Some(duration(run_ms));
    }
    message
}

/// The launcher whose gangs change their size without a new placement: the layout would stay behind.
const RESIZED_IN_PLACE: v1::LaunchForm = v1::LaunchForm::TorchrunElastic;

/// The sizes that a job is submitted with, the smallest first: the chosen one, or for a job that goes on from what it saved
/// the smallest of that type, and every larger one that is faster.
fn sizes(job: &v1::Job, alternatives: &[Alternative], chosen: usize) -> Vec<usize> {
    let asked = job.spec();
    let is_resized = asked.launch() == RESIZED_IN_PLACE;
    let is_slice = asked.groups.iter().any(|group| group.slice.is_some());
    let has_spares = asked.spare_workers > 0;
    let Some(best) = alternatives.get(chosen).filter(|_| !is_resized && !is_slice && !has_spares) else {
        return vec![chosen];
    };
    let checkpoint = asked.checkpoint.as_ref();
    let saves = checkpoint.is_some_and(|rules| !rules.directory.is_empty() || !rules.dataset.is_empty());
    let outermost = |rule: &v1::TopologyRule| {
        rule.segments.first().map_or(rule.segment_workers, |segment| segment.workers)
    };
    let segment = asked.topology.as_ref().map_or(0, outermost).max(1);
    let workers = |at: &usize| alternatives[*at].workers();
    let fits = |at: &usize| {
        let other = &alternatives[*at];
        other.kind == best.kind
            && (saves || workers(at) >= best.workers())
            && workers(at).is_multiple_of(segment)
    };
    let mut ordered: Vec<usize> = (0..alternatives.len()).filter(fits).collect();
    ordered.sort_by_key(workers);
    let mut sizes: Vec<usize> = Vec::new();
    for at in ordered {
        let step_us = |at: usize| alternatives[at].candidate.step.step_time_us;
        // More workers that are not faster are no use, but the chosen ones are kept.
        if sizes.last().is_none_or(|last| step_us(at) < step_us(*last)) || at == chosen {
            sizes.push(at);
        }
    }
    if sizes.is_empty() {
        sizes.push(chosen);
    }
    while sizes.len() > 1 && !holds(job, alternatives, &sizes) {
        // The ends are what it can do with least and at best; the one next to the smallest is missed least.
        sizes.remove(usize::from(sizes.len() > 2));
    }
    sizes
}

/// Whether the layouts of all these sizes fit into the text of one job.
fn holds(job: &v1::Job, alternatives: &[Alternative], sizes: &[usize]) -> bool {
    let combined = combined(job, alternatives, sizes);
    let Some(group) = combined.spec().groups.first() else { return true };
    let variables = group.environment.iter().map(|variable| (&variable.name, group.variable(&variable.name)));
    let lengths: Vec<(usize, usize)> =
        variables.map(|(name, value)| (name.len(), value.map_or(0, str::len))).collect();
    let words = group.command().iter().map(String::len).sum::<usize>();
    lengths.iter().map(|(name, value)| name + value).sum::<usize>() + words <= JOB_TEXT_BYTES_MAX
        && lengths.iter().all(|(_, value)| *value <= TEXT_BYTES_MAX)
}

/// One job with these sizes: with several of them an elastic gang that lists them, with a layout for each.
fn combined(job: &v1::Job, alternatives: &[Alternative], sizes: &[usize]) -> v1::Job {
    let [smallest, .., largest] = sizes else {
        return sizes.first().map_or_else(|| job.clone(), |only| alternatives[*only].message.clone());
    };
    let mut message = alternatives[*smallest].message.clone();
    let own = job.spec().groups.first().map(|group| group.environment.clone()).unwrap_or_default();
    if let Some(group) = message.spec_mut().groups.first_mut() {
        group.min_workers = group.workers;
        group.workers = alternatives[*largest].workers();
        group.environment = own;
        let listed: Vec<String> = sizes.iter().map(|at| alternatives[*at].workers().to_string()).collect();
        group.set_variable(SIZES_VARIABLE, listed.join(","));
        for at in sizes {
            let layout: BTreeMap<&str, &str> = alternatives[*at]
                .variables
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            let text = serde_json::to_string(&layout).unwrap_or_default();
            group.set_variable(format!("PARALLEL_LAYOUT_{}", alternatives[*at].workers()), text);
        }
    }
    message
}

impl Alternative {
    fn workers(&self) -> u32 {
        self.message.spec().groups.first().map_or(0, |group| group.workers)
    }
}

/// Sizes, the order of ranks, and the arguments of each program.
fn variables(question: &Question, candidate: &Candidate) -> Result<Vec<(String, String)>, PlanError> {
    let Question { model, training, accelerator, .. } = question;
    let layout = &candidate.layout;
    let hosts = ranks::imagined(accelerator, layout.devices());
    let ranks = ranks::map(model, layout, training, accelerator, &hosts)?;
    let mut arguments = programs::arguments(model, layout, training);
    if ranks.order == Order::PipelineFirst {
        arguments.megatron.push("--use-tp-pp-dp-mapping".to_owned());
    }
    let mut variables = arguments.environment.clone();
    variables.push(("PARALLEL_ORDER".to_owned(), ranks.order.name().to_owned()));
    variables.extend(arguments.variables());
    // A worker of a whole host has every rail; of a part, which of them is not known before it is placed.
    let whole = accelerator::find(accelerator.name)?.host_devices == accelerator.host_devices;
    variables.extend(ranks.environment.into_iter().filter(|_| whole));
    Ok(variables)
}

/// A file that sets what the planner sets would tell the program two things.
fn check_variables(file: &str, manifest: &Manifest) -> Result<(), Failure> {
    let groups = manifest.message.spec().groups.iter();
    let names = groups.flat_map(|group| group.environment.iter().map(|variable| &variable.name));
    let mut names: Vec<&String> = names.filter(|name| name.starts_with("PARALLEL_")).collect();
    names.sort_unstable();
    let advice = "is set by the planner; leave it out, or give the size under spec.parallel";
    let problem = |name: &&String| manifest.problem(&format!("spec.environment.{name}"), advice);
    let problems: Vec<Problem> = names.iter().map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(wrong(file, &problems)) }
}

fn run_ms(step_us: f64, steps: u64) -> u64 {
    // A float beyond the range becomes its end.
    (step_us * steps as f64 / 1e3).ceil() as u64
}

/// When a job would start and end, by what the cluster answers.
fn forecast(explanation: &v1::Explanation, step_us: f64, steps: u64, now_ms: u64) -> Forecast {
    let starts_now = explanation.placement.is_some();
    let start_ms = if starts_now {
        Some(now_ms)
    } else {
        explanation.start.as_ref().and_then(|start| unix_ms(start.p50))
    };
    let run_ms = run_ms(step_us, steps);
    let end_ms = start_ms.filter(|_| steps > 0).map(|start| start.saturating_add(run_ms));
    Forecast { starts_now, start_ms, end_ms }
}

/// The alternative that ends first; where the file does not state how many steps there are, the one that starts first
/// and of those the fastest. Where nothing is known of any start, the smallest: it is the likeliest to get its devices.
fn best(alternatives: &[(Forecast, f64, u64)]) -> usize {
    let unknown = |at: &Option<u64>| at.unwrap_or(u64::MAX);
    let key = |(forecast, step_us, devices): &(Forecast, f64, u64)| match forecast.start_ms {
        Some(start) => (unknown(&forecast.end_ms.or(Some(start))), start, *step_us, *devices),
        None => (u64::MAX, u64::MAX, 0.0, *devices),
    };
    let keys = alternatives.iter().map(key).enumerate();
    let first = keys
        .min_by(|(_, a), (_, b)| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3)));
    first.map_or(0, |(index, _)| index)
}

/// What was chosen from, for a person.
fn show(
    console: &Console,
    job: &str,
    alternatives: &[Alternative],
    forecasts: &[Forecast],
    (chosen, sizes): (usize, &[usize]),
) {
    let mut grid = Grid::new(vec![
        "", "TYPE", "DEVICES", "TENSOR", "PIPELINE", "DATA", "CONTEXT", "EXPERT", "STEP S", "START", "END",
    ]);
    let moment = |at: Option<u64>| at.and_then(time).unwrap_or_else(|| "-".to_owned());
    for (index, (alternative, forecast)) in alternatives.iter().zip(forecasts).enumerate() {
        let layout = &alternative.candidate.layout;
        grid.row(vec![
            match index == chosen {
                true => "chosen".to_owned(),
                false if sizes.contains(&index) => "allowed".to_owned(),
                false => String::new(),
            },
            alternative.kind.to_owned(),
            alternative.candidate.devices.to_string(),
            layout.tensor.to_string(),
            layout.pipeline.to_string(),
            layout.data.to_string(),
            layout.context.to_string(),
            layout.expert.to_string(),
            format!("{:.2}", alternative.candidate.step.step_time_us / 1e6),
            if forecast.starts_now { "now".to_owned() } else { moment(forecast.start_ms) },
            moment(forecast.end_ms),
        ]);
    }
    console.progress(&format!(
        "{job}: sizes that the planner offers, and when the cluster expects to start each"
    ));
    for line in grid.plain().lines() {
        console.progress(line);
    }
}

#[cfg(test)]
mod tests {
    use muster_wire::time::timestamp;

    use super::*;

    const NOW_MS: u64 = 1_000_000;

    fn starting_at(start_ms: Option<u64>) -> v1::Explanation {
        v1::Explanation {
            start: start_ms.map(|ms| v1::StartEstimate { p50: Some(timestamp(ms)), ..Default::default() }),
            ..Default::default()
        }
    }

    fn now() -> v1::Explanation {
        v1::Explanation { placement: Some(v1::PlannedPlacement::default()), ..starting_at(Some(NOW_MS + 7)) }
    }

    /// The index that is chosen of (answer, seconds of a step, devices).
    fn chosen(steps: u64, alternatives: &[(v1::Explanation, f64, u64)]) -> usize {
        let all = alternatives.iter().map(|(explanation, step_s, devices)| {
            (forecast(explanation, step_s * 1e6, steps, NOW_MS), step_s * 1e6, *devices)
        });
        best(&all.collect::<Vec<_>>())
    }

    #[test]
    fn what_ends_first_is_chosen() {
        let later = || starting_at(Some(NOW_MS + 60_000));
        // A minute of waiting is more than ten steps are worth, and less than a hundred thousand.
        assert_eq!(chosen(10, &[(now(), 2.0, 8), (later(), 1.0, 16)]), 0);
        assert_eq!(chosen(100_000, &[(now(), 2.0, 8), (later(), 1.0, 16)]), 1);
        assert_eq!(chosen(10, &[(now(), 2.0, 8), (now(), 1.0, 16)]), 1);
        // Nothing is known of the larger one.
        assert_eq!(chosen(1_000_000, &[(now(), 2.0, 8), (starting_at(None), 1.0, 16)]), 0);
    }

    #[test]
    fn without_a_number_of_steps_what_starts_first_is_chosen_and_then_the_fastest() {
        let later = || starting_at(Some(NOW_MS + 1));
        assert_eq!(chosen(0, &[(now(), 2.0, 8), (now(), 1.0, 16), (later(), 0.5, 32)]), 1);
        assert_eq!(chosen(0, &[(starting_at(None), 1.0, 16), (starting_at(None), 2.0, 8)]), 1);
    }

    #[test]
    fn astronomical_runs_end_at_the_end_of_time() {
        let found = forecast(&now(), f64::MAX, u64::MAX, NOW_MS);
        assert_eq!(found.end_ms, Some(u64::MAX));
    }
}
