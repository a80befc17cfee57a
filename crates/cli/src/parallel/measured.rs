//! Steps that were measured: in a file, or by jobs of the cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use muster_client::Client;
use muster_console::{Console, Failure};
use muster_parallel::calibration::Observation;
use muster_parallel::search::Question;
use muster_parallel::{Layout, PlanError, Precision, Recompute, Sharding, Training};
use muster_wire::time::span_ms;
use muster_wire::v1;
use serde::Deserialize;

use super::{coded, read};
use crate::find::{self, Find};
use crate::told::TOLD_EVERY;

/// Largest file of measured steps, in bytes.
const STEPS_BYTES_MAX: u64 = 1 << 20;
/// Most measured steps of one calibration.
const STEPS_MAX: usize = 1000;
/// How much of the end of a worker's output is read.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// First steps of an output that do not count where there are more: they compile and warm up.
const WARM_UP: usize = 2;

/// One measured step, as its file says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredStep {
    step_time_s: f64,
    #[serde(default = "one")]
    tensor: u64,
    #[serde(default = "one")]
    pipeline: u64,
    #[serde(default = "one")]
    data: u64,
    #[serde(default = "one")]
    context: u64,
    #[serde(default = "one")]
    expert: u64,
    #[serde(default = "one")]
    micro_batch: u64,
    #[serde(default = "one")]
    interleave: u64,
    recompute: Option<Recompute>,
    sharding: Option<Sharding>,
    precision: Option<Precision>,
    batch: Option<u64>,
    sequence: Option<u64>,
}

fn one() -> u64 {
    1
}

/// The steps of a file.
pub fn of_file(path: &Path, question: &Question) -> Result<Vec<Observation>, Failure> {
    let text = read(path, STEPS_BYTES_MAX)?;
    let steps: Vec<MeasuredStep> = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    if steps.len() > STEPS_MAX {
        return Err(Failure::usage(format!("{} has more than {STEPS_MAX} steps", path.display())));
    }
    let mut observations = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let name = format!("{}: step {}", path.display(), at + 1);
        let observation = observation(&name, step, question)
            .map_err(|error| Failure::usage(format!("{name}: {}", coded(&error))))?;
        observations.push(observation);
    }
    Ok(observations)
}

fn observation(name: &str, step: &MeasuredStep, question: &Question) -> Result<Observation, PlanError> {
    let training = Training {
        batch: step.batch.unwrap_or(question.training.batch),
        sequence: step.sequence.unwrap_or(question.training.sequence),
        precision: step.precision.unwrap_or(question.training.precision),
        ..question.training
    };
    training.check()?;
    let layout = Layout {
        tensor: step.tensor,
        pipeline: step.pipeline,
        data: step.data,
        context: step.context,
        expert: step.expert,
        micro_batch: step.micro_batch,
        interleave: step.interleave,
        recompute: step.recompute.unwrap_or(Recompute::None),
        sequence_parallel: step.tensor > 1,
        sharding: step.sharding.unwrap_or(Sharding::Optimizer),
    };
    layout.check(&question.model, &training, &question.accelerator)?;
    Ok(Observation {
        name: name.to_owned(),
        model: question.model.clone(),
        layouts: vec![layout],
        training,
        accelerator: question.accelerator,
        step_time_us: step.step_time_s * 1e6,
    })
}

/// A step of each of these jobs.
pub async fn of_jobs(
    client: &Client,
    jobs: &[String],
    question: &Question,
    console: &Console,
) -> Result<Vec<Observation>, Failure> {
    let (mut observations, mut told_at) = (Vec::new(), Instant::now());
    for name in jobs {
        if told_at.elapsed() >= TOLD_EVERY {
            told_at = Instant::now();
            console.progress(&format!("measured: {} of {} jobs", observations.len(), jobs.len()));
        }
        let id = find::resolve(client, name, Find::Newest).await?;
        let request = v1::GetJobRequest { job_id: id.clone(), read: None };
        let job = client.get_job(request).await?.job.unwrap_or_default();
        let said = if *name == id { id.clone() } else { format!("{name} ({id})") };
        let refused = |text: String| Failure::usage(format!("{said}: {text}"));
        let mut step = layout_of(&job, question).map_err(refused)?;
        step.step_time_s = step_time_s(client, &job).await?.ok_or_else(|| {
            refused(
                "its first and last worker have printed no step time, and its checkpoint rules name none"
                    .to_owned(),
            )
            .with_next("print a line with step_time_s=SECONDS for each step")
        })?;
        let observation = observation(&said, &step, question).map_err(|error| refused(coded(&error)))?;
        observations.push(observation);
    }
    Ok(observations)
}

/// Workers that a job has or had.
fn workers_of(job: &v1::Job) -> usize {
    let placed = job.status().placement.as_ref().map_or(0, |placement| placement.workers.len());
    if placed > 0 { placed } else { job.status().worker_count as usize }
}

/// The layout of a job that was submitted with one, with no time yet.
fn layout_of(job: &v1::Job, question: &Question) -> Result<MeasuredStep, String> {
    if job.redacted {
        return Err("its environment is shown to its own tenant alone".to_owned());
    }
    let groups = job.spec().groups.as_slice();
    let [group] = groups else { return Err("it has more than one group".to_owned()) };
    let request = group.resources().accelerators.as_ref();
    let choices = request.map(|request| request.choices.as_slice()).unwrap_or_default();
    if !matches!(choices, [only] if only.r#type == question.accelerator.name) {
        return Err(format!("it does not ask for {} alone", question.accelerator.name));
    }
    let workers = workers_of(job);
    let planned = group.variable(&format!("PARALLEL_LAYOUT_{workers}"));
    let planned: BTreeMap<String, String> =
        planned.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let text = |name: &str| planned.get(name).map(String::as_str).or_else(|| group.variable(name));
    let size = |name: &str| -> Result<u64, String> {
        let value =
            text(name).ok_or_else(|| format!("it was submitted without a layout: {name} is not set"))?;
        value.parse().map_err(|_| format!("{name} is no size: {value:.40}"))
    };
    fn word<T: serde::de::DeserializeOwned>(value: Option<&str>) -> Option<T> {
        serde_json::from_value(serde_json::Value::String(value?.to_owned())).ok()
    }
    Ok(MeasuredStep {
        step_time_s: 0.0,
        tensor: size("PARALLEL_TENSOR")?,
        pipeline: size("PARALLEL_PIPELINE")?,
        data: size("PARALLEL_DATA")?,
        context: size("PARALLEL_CONTEXT")?,
        expert: size("PARALLEL_EXPERT")?,
        micro_batch: size("PARALLEL_MICRO_BATCH")?,
        interleave: size("PARALLEL_INTERLEAVE")?,
        recompute: word::<Recompute>(text("PARALLEL_RECOMPUTE")),
        sharding: word::<Sharding>(text("PARALLEL_SHARDING")),
        precision: word::<Precision>(text("PARALLEL_PRECISION")),
        batch: Some(size("PARALLEL_BATCH")?),
        sequence: Some(size("PARALLEL_SEQUENCE")?),
    })
}

/// The median of the steps that the last worker has printed, or else the first; or what the job states of its steps.
async fn step_time_s(client: &Client, job: &v1::Job) -> Result<Option<f64>, Failure> {
    let last = u32::try_from(workers_of(job).saturating_sub(1)).unwrap_or(0);
    for rank in [last, 0] {
        let request = v1::ReadLogsRequest {
            job_id: job.id.clone(),
            rank,
            tail_bytes: OUTPUT_BYTES_MAX,
            ..Default::default()
        };
        // Output that is gone says nothing, and the other worker may have some.
        let Ok(mut logs) = client.read_logs(request).await else { continue };
        let mut output: Vec<u8> = Vec::new();
        while let Ok(Some(piece)) = logs.next().await {
            output.extend_from_slice(&piece.data);
        }
        if let Some(median) = median(&printed(&String::from_utf8_lossy(&output))) {
            return Ok(Some(median));
        }
    }
    let checkpoint = job.spec().checkpoint.as_ref();
    let stated = checkpoint.and_then(|rules| span_ms(rules.step)).unwrap_or(0);
    Ok((stated > 0).then_some(stated as f64 / 1e3))
}

/// Step times, in seconds, as programs print them: Megatron-LM, MaxText, and `step_time_s=`.
fn printed(output: &str) -> Vec<f64> {
    let number = |text: &str| -> Option<f64> {
        let text = text.trim_start();
        let end = text.find(|c: char| !(c.is_ascii_digit() || ".eE+-".contains(c))).unwrap_or(text.len());
        text[..end].parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)
    };
    let forms = [("elapsed time per iteration (ms):", 1e-3), ("step_time_s=", 1.0), ("step_time_s:", 1.0)];
    let of_line = |line: &str| {
        let named = forms.iter().find_map(|(name, unit)| Some(number(line.split_once(name)?.1)? * unit));
        let completed = || number(line.split_once("completed step:")?.1.split_once("seconds:")?.1);
        named.or_else(completed)
    };
    output.lines().filter_map(of_line).collect()
}

fn median(steps: &[f64]) -> Option<f64> {
    let counted = if steps.len() > 2 * WARM_UP { &steps[WARM_UP..] } else { steps };
    let mut sorted = counted.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_programs_print_them() {
        let output = "\
 [2026-11-24 10:00:00] iteration        1/     100 | consumed samples: 8 | elapsed time per iteration (ms): 4310.5 | lr: 1\n\
completed step: 14, seconds: 54.803, TFLOP/s/device: 392.454, Tokens/s/device: 149.482, loss: 0.297\n\
step_time_s=0.25\nmy step_time_s: 1e-3 s\nstep_time_s=nan\nstep_time_s=-1\nseconds: 7\nstep_time_s=\n";
        assert_eq!(printed(output), [4.3105, 54.803, 0.25, 0.001]);
    }

    #[test]
    fn the_first_of_many_steps_do_not_count() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[90.0, 1.0]), Some(90.0));
        assert_eq!(median(&[90.0, 60.0, 1.0, 3.0, 2.0]), Some(2.0));
    }
}
