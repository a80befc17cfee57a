//! The training run: the loop that ties data, model, gang and checkpoints together.

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::collective::{Gang, Verdict};
use crate::dataset::{Shape, Shard};
use crate::error::Error;
use crate::intervals::Recorder;
use crate::model::{self, WEIGHTS_MAX, descend};
use crate::process::{Exit, StopSignal, complain, say};
use crate::rank_map::RankMap;
use crate::rendezvous;
use muster_worker::Worker;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const STEPS_MAX: u64 = 1_000_000_000;
const SAMPLES_MAX: u64 = 1 << 24;
/// Over all ranks; 512 MiB of numbers.
const INPUTS_MAX: u64 = 1 << 26;
/// What a run stands still at most to have a checkpoint known.
const COMMIT_MAX: Duration = Duration::from_secs(3);
const WAIT_MAX_S: u64 = 24 * 3600;

/// Train a small model over all ranks of a gang, with checkpoints and resume.
///
/// Softmax regression over a generated data set. Who a process is comes from RANK, WORLD_SIZE, MASTER_ADDR
/// and MASTER_PORT, as with torchrun, and from MUSTER_JOB_ID, MUSTER_ATTEMPT and MUSTER_FENCING_TOKEN
/// where they are set. Gradients are summed in rank order and checkpoints hold every bit, so the final
/// loss of a run that was killed and resumed equals that of one that never was, to the last bit, as long
/// as the number of ranks stays the same.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
On SIGTERM to any rank, all ranks finish the step, rank 0 writes a checkpoint, and all exit with code 143.

Exit codes:
  0    all steps are done
  1    failed, for example because another rank died; another attempt resumes from the last checkpoint
  2    an argument, a variable or the checkpoint directory cannot be used
  143  preempted; another attempt resumes from the step it stopped at

Examples:
  One rank by hand:
    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 muster example train --steps 50
  Long enough to be preempted and resumed:
    muster example train --steps 600 --step-ms 500 --checkpoint-every 20 --checkpoint-dir /ckpt/run-1")]
pub struct TrainArgs {
    /// How many steps to train in all, over all attempts
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX))]
    pub steps: u64,
    /// The least time a step takes, in milliseconds; makes a run long enough to be watched
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub step_ms: u64,
    /// How many samples the data set has
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=SAMPLES_MAX))]
    pub samples: u64,
    /// How many features a sample has
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub features: u32,
    /// How many classes there are to tell apart
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub classes: u32,
    /// How far a step goes along the mean gradient
    #[arg(long, value_name = "RATE", default_value_t = 0.5, value_parser = positive)]
    pub learning_rate: f64,
    /// What the data set is generated from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Checkpoint after this many steps
    #[arg(long, value_name = "STEPS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX))]
    pub checkpoint_every: u64,
    /// Where rank 0 keeps the checkpoints; without it there are none, and another attempt starts from the beginning
    #[arg(long, value_name = "DIR", env = "MUSTER_CHECKPOINT_DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Where to write down from when to when this process ran; without it nothing is written
    #[arg(long, value_name = "DIR", env = "MUSTER_INTERVAL_DIR")]
    pub interval_dir: Option<PathBuf>,
    /// How long the ranks may take to find one another, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=WAIT_MAX_S))]
    pub rendezvous_timeout_s: u64,
    /// How long a rank may be silent within a step before it counts as lost, in seconds beyond --step-ms
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=WAIT_MAX_S))]
    pub step_timeout_s: u64,
    /// Print the loss after this many steps
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX))]
    pub log_every: u64,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("must be a number above 0".into()),
    }
}

impl TrainArgs {
    fn shape(&self) -> Result<Shape, Error> {
        let weights = u64::from(self.features) * u64::from(self.classes);
        if weights > WEIGHTS_MAX as u64 {
            return Err(Error::Config(format!(
                "--features times --classes may be {WEIGHTS_MAX} at most, not {weights}"
            )));
        }
        let inputs = u64::from(self.features) * self.samples;
        if inputs > INPUTS_MAX {
            return Err(Error::Config(format!(
                "--features times --samples may be {INPUTS_MAX} at most, not {inputs}"
            )));
        }
        Ok(Shape {
            seed: self.seed,
            samples: self.samples,
            features: self.features as usize,
            classes: self.classes as usize,
        })
    }

    /// Everything that decides the numbers of a run, but for how long it goes on.
    fn config(&self) -> String {
        format!(
            "seed={} samples={} features={} classes={} learning-rate={}",
            self.seed, self.samples, self.features, self.classes, self.learning_rate
        )
    }
}

/// Runs one rank to its end; reports errors on stderr.
pub fn train(args: TrainArgs) -> Exit {
    Exit::of(run(&args))
}

fn run(args: &TrainArgs) -> Result<Exit, Error> {
    let stop = StopSignal::install()?;
    let map = RankMap::from_env()?;
    let shape = args.shape()?;
    // Held to the end of this function: the evidence covers everything that this rank does.
    let _recorder =
        args.interval_dir.as_deref().map(|directory| Recorder::start(directory, &map)).transpose()?;
    let weights = shape.features * shape.classes;
    // Before the rendezvous: a directory that cannot be used ends the attempt at once, not after a wait.
    let (checkpoints, start) = open_checkpoints(args, &map, weights)?;
    say(&format!(
        "job {} attempt {} rank {} of {}: meeting at {}:{}",
        map.job, map.attempt, map.rank, map.world_size, map.master_addr, map.master_port
    ));
    let patience = Duration::from_secs(args.rendezvous_timeout_s);
    let links = rendezvous::join(&map, &args.config(), patience, &stop)?;
    let mut gang = Gang::new(links, map.rank, weights);
    let start = gang.share_start(start)?;
    gang.set_patience(Duration::from_secs(args.step_timeout_s) + Duration::from_millis(args.step_ms))?;
    say(&match start.step {
        0 => "starting at step 0".to_owned(),
        step => format!("resumed from step {step}"),
    });
    let shard = shape.generate(shape.range_of(map.rank, map.world_size));
    Run { args, shape, shard, gang, checkpoints, stop, talks: map.rank == 0, worker: Worker::from_env() }
        .run(start)
}

/// Rank 0 decides where all start; the others learn it from rank 0.
fn open_checkpoints(
    args: &TrainArgs,
    map: &RankMap,
    weights: usize,
) -> Result<(Option<Checkpoints>, Option<Checkpoint>), Error> {
    if map.rank != 0 {
        return Ok((None, None));
    }
    let from_nothing = Checkpoint { step: 0, weights: vec![0.0; weights] };
    let Some(directory) = &args.checkpoint_dir else {
        complain("no --checkpoint-dir: nothing of this attempt can be resumed");
        return Ok((None, Some(from_nothing)));
    };
    let checkpoints = Checkpoints::open(directory, &args.config())?;
    let start = checkpoints.newest()?.unwrap_or(from_nothing);
    if start.step > args.steps || start.weights.len() != weights {
        return Err(Error::Config(format!(
            "the newest checkpoint in {} is of step {} with {} weights; this run ends at --steps {} \
             and has {weights}",
            directory.display(),
            start.step,
            start.weights.len(),
            args.steps
        )));
    }
    Ok((Some(checkpoints), Some(start)))
}

struct Run<'a> {
    args: &'a TrainArgs,
    shape: Shape,
    shard: Shard,
    gang: Gang,
    /// Rank 0's alone.
    checkpoints: Option<Checkpoints>,
    stop: StopSignal,
    /// Rank 0 speaks for all of them while the steps go by.
    talks: bool,
    /// Who this is to the agent of the host; none outside of Muster.
    worker: Option<Worker>,
}

impl Run<'_> {
    fn run(mut self, start: Checkpoint) -> Result<Exit, Error> {
        let mut weights = start.weights;
        for done in start.step..self.args.steps {
            let began = Instant::now();
            let verdict = self.sum(done, &weights)?;
            descend(&mut weights, &verdict.sum.weights, self.args.learning_rate, self.shape.samples);
            let step = done + 1;
            let last = step == self.args.steps;
            if self.talks && (step.is_multiple_of(self.args.log_every) || last) {
                say(&format!("step {step} loss {:e}", self.mean(verdict.sum.loss)));
            }
            if let Some(worker) = &self.worker {
                worker.step(step, began.elapsed());
            }
            if last || verdict.stop || step.is_multiple_of(self.args.checkpoint_every) {
                self.save(step, &weights)?;
            }
            if verdict.stop && !last {
                self.gang.part()?;
                say(&format!("preempted after step {step}"));
                return Ok(Exit::Preempted);
            }
            self.stop.pass_time_until(began + Duration::from_millis(self.args.step_ms));
        }
        // The loss that the steps above printed was that of the weights before each of them.
        let verdict = self.sum(self.args.steps, &weights)?;
        self.gang.part()?;
        let loss = self.mean(verdict.sum.loss);
        say(&format!("final loss {loss:e} bits {:016x}", loss.to_bits()));
        Ok(Exit::Done)
    }

    fn sum(&mut self, step: u64, weights: &[f64]) -> Result<Verdict, Error> {
        let own = model::gradient(weights, self.shape.features, &self.shard);
        let verdict = self.gang.sum(step, own, self.stop.is_raised())?;
        if verdict.sum.loss.is_finite() { Ok(verdict) } else { Err(Error::Diverged { step }) }
    }

    fn mean(&self, loss: f64) -> f64 {
        loss / self.shape.samples as f64
    }

    fn save(&self, step: u64, weights: &[f64]) -> Result<(), Error> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(());
        };
        let path = checkpoints.save(step, weights)?;
        say(&format!("checkpoint of step {step} saved to {}", path.display()));
        if let Some(worker) = &self.worker {
            // The file is what a resume goes by: a cluster that does not know of it only prices a stop too high.
            match worker.checkpoint_committed_within(step, COMMIT_MAX) {
                Ok(()) => say(&format!("checkpoint of step {step} is known to the cluster")),
                Err(error) => complain(&format!("the cluster does not know of the checkpoint: {error}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: TrainArgs,
    }

    fn parse(line: &str) -> Result<TrainArgs, String> {
        let words = std::iter::once("train").chain(line.split_whitespace());
        Program::try_parse_from(words).map(|program| program.args).map_err(|e| e.to_string())
    }

    #[test]
    fn the_defaults_are_within_their_bounds() {
        let args = parse("").unwrap();
        assert_eq!(args.shape().unwrap().features, 16);
        assert_eq!(args.config(), "seed=1 samples=4096 features=16 classes=8 learning-rate=0.5");
    }

    #[test]
    fn the_longest_config_fits_its_bound() {
        let args = parse(&format!(
            "--seed {} --samples {SAMPLES_MAX} --learning-rate {:e}",
            u64::MAX,
            f64::MIN_POSITIVE
        ));
        assert!(args.unwrap().config().len() <= crate::checkpoint::CONFIG_LEN_MAX);
    }

    #[test]
    fn arguments_out_of_bounds_are_refused_by_name() {
        for (line, name) in [
            ("--steps 0", "--steps"),
            ("--samples 0", "--samples"),
            ("--features 0", "--features"),
            ("--classes 1", "--classes"),
            ("--learning-rate nan", "--learning-rate"),
            ("--learning-rate=-1", "--learning-rate"),
            ("--checkpoint-every 0", "--checkpoint-every"),
            ("--rendezvous-timeout-s 0", "--rendezvous-timeout-s"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(name), "{line}: {message}");
        }
        let wide = parse("--features 65536 --classes 4096").unwrap();
        assert!(wide.shape().unwrap_err().to_string().contains("--classes"));
        let large = parse("--features 65536 --samples 16777216").unwrap();
        assert!(large.shape().unwrap_err().to_string().contains("--samples"));
    }
}
