//! `muster submit`.

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, local};
use muster_manifest::{Manifest, NodeTests, Overrides};
use muster_types::{PriorityTier, RequestId};
use muster_wire::v1;

use crate::foreign::ForeignArgs;
use crate::ids_on_stderr::or_on_stderr;
use crate::job::follow::{self, WaitCondition};
use crate::job::wait::{self, Awaited, FOLLOWED_MAX};
use crate::job_files::{Arguments, called, name_own_tenant, read_manifests_with, refused};
use crate::options;
use crate::parallel::auto;
use crate::view::Submission;
use crate::workdir::WorkdirArgs;

/// Options of `muster submit`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster submit train.yaml
  muster submit train.yaml --name try-2 --tier batch --region eu-north --wait
  muster submit train.yaml --label team=vision --annotation ticket=1234
  muster submit sweep.yaml --array 4,9,12-20%5
  muster submit train.yaml --hold         starts after `muster job release ID`
  muster submit train.yaml --exclude h7,h8 --where 'zone in (a,b),memory-gib>512'
  muster submit train.yaml --workdir . --store /mnt/shared/muster      with the files of this directory
  muster submit train.sh --epochs 3       a script with arguments
  muster submit train.sh --name x -- --name y     the first name is the job's, the second is for the script
  muster submit job.yaml --dry-run        a Job of Kubernetes as a job document; nothing is submitted
  generate-jobs | muster submit - --request-id $(uuidgen)
  ID=$(muster submit train.yaml) && muster job logs $ID -f

The ids of the jobs go to stdout, one per line. Where they are more than 1,000, each array is one line, with its own id.
Several YAML documents in one file are submitted all or none; a job of the file may wait for another one of it by its name (`after: [prepare]`). The same --request-id never submits twice, however often it is used.

A script begins with #! and says in lines like `#MUSTER workers: 4` before its first command what a job
file says under `spec`, and also `#MUSTER name: …`, `tenant: …` and `labels: {team: vision}`. It travels with the
job. Options of this command count before and directly behind the script; from the first word that is none of them, and behind --,
all is for the script.

Files for other schedulers are taken as they are: a Job, JobSet, PyTorchJob, MPIJob, RayJob or LeaderWorkerSet of
Kubernetes, and a script with #SBATCH lines. Each field that is not honoured is named on stderr.")]
pub struct SubmitArgs {
    /// Job file (YAML), script, or a file for another scheduler; - for stdin
    #[arg(required_unless_present = "named_file")]
    file: Option<String>,
    /// The same, as an option
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with = "file")]
    named_file: Option<String>,
    /// Arguments of the script: all from the first word on that is no option of this command, or behind --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
    /// Instead of the file's metadata.name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Instead of the file's metadata.tenant; without either, that of the certificate
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Instead of the file's tier: free, batch, standard, production or critical
    #[arg(long, value_name = "TIER", value_parser = muster_manifest::tier)]
    tier: Option<PriorityTier>,
    /// Instead of the file's regions; repeat it or separate several by commas
    #[arg(long, value_name = "REGION", value_delimiter = ',')]
    region: Vec<String>,
    /// Instead of the file's array: 100, or indices like 0-99:5,200; %N lets N members be unfinished at a time
    #[arg(long, value_name = "ARRAY", value_parser = muster_manifest::array)]
    array: Option<v1::JobArray>,
    /// Instead of the file's nice value: from -100 to 100, the lower goes first among the jobs of its tenant and tier
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = muster_manifest::nice)]
    nice: Option<i32>,
    /// Submit it held: it starts once `muster job release` has released it
    #[arg(long, conflicts_with_all = ["wait", "watch"])]
    hold: bool,
    #[command(flatten)]
    metadata: MetadataArgs,
    #[command(flatten)]
    nodes: NodeArgs,
    #[command(flatten)]
    files: WorkdirArgs,
    /// A UUID for this submission; made up when there is none
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
    /// Return when the jobs have ended; exit code 1 unless all succeeded
    #[arg(long, conflicts_with = "watch")]
    wait: bool,
    /// Like --wait, and print each change
    #[arg(long)]
    watch: bool,
    /// Check only: nothing is submitted
    #[arg(long, conflicts_with_all = ["wait", "watch"])]
    validate_only: bool,
    /// Print the job documents that would be submitted, and submit nothing; needs no cluster
    #[arg(long, conflicts_with_all = ["wait", "watch", "validate_only"])]
    dry_run: bool,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// Options for what jobs carry.
#[derive(Args)]
pub struct MetadataArgs {
    /// A label to select the jobs by, in addition to the file's; repeat it
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// A text that is kept with the jobs and not read, in addition to the file's; repeat it
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub annotation: Vec<(String, String)>,
}

/// Options for which nodes jobs may be on.
#[derive(Args)]
pub struct NodeArgs {
    /// A test of the labels of nodes, like 'zone in (a,b),!slow,memory-gib>512', in addition to the file's; repeat it
    #[arg(long = "where", value_name = "TESTS", value_parser = muster_manifest::node_tests)]
    pub node_tests: Vec<NodeTests>,
    /// The only nodes, instead of the file's; repeat it or separate several by commas
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Nodes that are avoided, in addition to the file's; repeat it or separate several by commas
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// The booking on whose nodes alone the jobs run, instead of the file's: `muster booking list`
    #[arg(long, value_name = "NAME")]
    pub booking: Option<String>,
}

impl NodeArgs {
    /// With what they say over what the file says.
    pub fn over(&self, overrides: Overrides) -> Overrides {
        Overrides {
            node_tests: self.node_tests.clone(),
            only: self.only.clone(),
            exclude: self.exclude.clone(),
            booking: self.booking.clone(),
            ..overrides
        }
    }
}

/// `KEY=VALUE`; what keys and values may be is judged with the rest of the job.
fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("a key and a value have `=` between them, like team=vision")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub async fn run(global: &Global, console: &Console, args: SubmitArgs) -> Result<Exit, Failure> {
    let file = args.file.as_ref().or(args.named_file.as_ref()).cloned().unwrap_or_default();
    let overrides = Overrides {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        tier: args.tier,
        regions: args.region.clone(),
        labels: args.metadata.label.clone(),
        annotations: args.metadata.annotation.clone(),
        array: args.array.clone(),
        ..Overrides::default()
    };
    let overrides = args.nodes.over(overrides);
    let arguments = Arguments { words: &args.arguments, nearest: options::nearest::<SubmitArgs> };
    let mut manifests = read_manifests_with(console, &file, arguments, &overrides, &args.foreign)?;
    if args.array.is_some() && manifests.len() > 1 {
        return Err(Failure::usage(format!("--array is for one job, and {file} holds several")));
    }
    if args.name.is_some() && manifests.len() > 1 {
        return Err(Failure::usage(format!("--name is for one job, and {file} holds several")));
    }
    for manifest in &mut manifests {
        manifest.message.hold = args.hold;
        if let Some(nice) = args.nice {
            manifest.message.spec_mut().nice = nice;
        }
    }
    let workdir = args.files.apply(global, console, &mut manifests)?;
    if args.dry_run {
        if args.hold {
            console.progress("note: a job file does not hold its job: submit what is printed with --hold");
        }
        return print_documents(console, &file, &manifests);
    }
    let jobs_asked: usize = manifests.iter().map(jobs_of).sum();
    if args.watch && jobs_asked > FOLLOWED_MAX {
        let text =
            format!("these are {jobs_asked} jobs, and at most {FOLLOWED_MAX} can be watched one by one");
        return Err(
            Failure::usage(text).with_next("submit them with --wait, which waits for arrays as wholes")
        );
    }
    if global.is_local() {
        manifests.iter_mut().for_each(|manifest| local::localize(&mut manifest.message));
    }
    if let Some(workdir) = workdir.filter(|_| !args.validate_only) {
        workdir.send(console)?;
    }
    let request_id = args.request_id.unwrap_or_else(|| RequestId(uuid::Uuid::new_v4().as_u128()));
    let client = global.client().await?;
    name_own_tenant(&client, &mut manifests);
    auto::choose(&client, console, &file, &mut manifests).await?;
    let submission = submit(&client, &file, &manifests, (request_id, args.validate_only)).await?;
    let job_ids = submission.job_ids;
    let shown = shown_ids(&manifests, &job_ids);
    let written = if console.is_structured() && !args.watch {
        let content = Submission {
            job_ids: job_ids.clone(),
            request_id: request_id.to_string(),
            validate_only: args.validate_only,
        };
        console.object(&Document::new("Submission", Some(submission.log_index), content))
    } else if !args.watch || !console.is_structured() {
        shown.iter().try_for_each(|id| console.line(id))
    } else {
        Ok(())
    };
    or_on_stderr(console, &shown, written)?;
    if args.validate_only {
        console.progress(&format!("{} is valid; nothing was submitted", called(&file)));
        return Ok(Exit::Ok);
    }
    console.progress(&format!("submitted {} at log index {}", count(job_ids.len()), submission.log_index));
    if !args.wait && !args.watch {
        return Ok(Exit::Ok);
    }
    let (arrays, jobs) = if args.watch { (Vec::new(), job_ids) } else { by_array(&manifests, &job_ids) };
    let awaited = Awaited { arrays, jobs, until: WaitCondition::Finished, limit: global.timeout };
    wait(&client, console, awaited, args.watch).await
}

/// Prints jobs as job files that can be submitted.
fn print_documents(console: &Console, file: &str, manifests: &[Manifest]) -> Result<Exit, Failure> {
    if manifests.iter().any(|manifest| manifest.parallel.is_some()) {
        return Err(Failure::usage(format!(
            "{file} leaves a split to the parallelism planner, which asks the cluster"
        ))
        .with_next(format!("muster plan {file}")));
    }
    let console = if console.is_structured() { console } else { &console.with_format(Format::Yaml) };
    let shown = |manifest: &Manifest| muster_manifest::job_file(&manifest.message, serde_json::Value::Null);
    match manifests {
        [only] => console.object(&shown(only))?,
        several => several.iter().try_for_each(|manifest| console.event(&shown(manifest)))?,
    }
    Ok(Exit::Ok)
}

async fn wait(client: &Client, console: &Console, awaited: Awaited, print: bool) -> Result<Exit, Failure> {
    let show = |item: &_, synced| if print { follow::print(console, item, synced) } else { Ok(()) };
    let (exit, jobs) = wait::wait(client, console, awaited, &show).await?;
    for job in jobs.values().filter(|_| !print) {
        let phase = muster_wire::closed::phase_word(job.phase());
        console.progress(format!("{} {phase} {}", job.id, job.status().message).trim_end());
    }
    Ok(exit)
}

/// Jobs that a document of the file comes to.
fn jobs_of(manifest: &Manifest) -> usize {
    manifest.message.spec().array.as_ref().map_or(1, array_size).max(1)
}

/// The ids of each document of the file, and which array they are of.
fn parts<'a>(manifests: &[Manifest], job_ids: &'a [String]) -> Vec<(Option<String>, &'a [String])> {
    let mut rest = job_ids;
    let of = |manifest: &Manifest| {
        let (own, behind) = rest.split_at(jobs_of(manifest).min(rest.len()));
        rest = behind;
        let first = own.first().filter(|_| manifest.message.spec().array.is_some());
        // An array has the number of its first job.
        (first.map(|first| first.replacen("job-", "array-", 1)), own)
    };
    manifests.iter().map(of).collect()
}

/// What was submitted: the ids of arrays, and those of single jobs.
fn by_array(manifests: &[Manifest], job_ids: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut arrays, mut jobs) = (Vec::new(), Vec::new());
    for (array, own) in parts(manifests, job_ids) {
        match array {
            Some(array) => arrays.push(array),
            None => jobs.extend_from_slice(own),
        }
    }
    (arrays, jobs)
}

/// The ids that people are shown, in the order of the file: those of jobs, and where these are too many, one for each array.
fn shown_ids(manifests: &[Manifest], job_ids: &[String]) -> Vec<String> {
    if job_ids.len() <= FOLLOWED_MAX {
        return job_ids.to_vec();
    }
    let shown =
        |(array, own): (Option<String>, &[String])| array.map_or_else(|| own.to_vec(), |array| vec![array]);
    parts(manifests, job_ids).into_iter().flat_map(shown).collect()
}

fn array_size(array: &v1::JobArray) -> usize {
    let of_indices = || muster_types::array::indices(&array.indices).ok();
    let size = if array.size > 0 {
        array.size
    } else {
        of_indices().map_or(1, |ranges| ranges.iter().map(muster_types::IndexRange::count).sum())
    };
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn count(jobs: usize) -> String {
    if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") }
}

/// What came of it.
struct Submitted {
    job_ids: Vec<String>,
    log_index: u64,
}

impl Submitted {
    fn new(job_ids: Vec<String>, freshness: Option<v1::Freshness>) -> Submitted {
        Submitted { job_ids, log_index: freshness.map_or(0, |f| f.log_index) }
    }
}

/// Submits the jobs of a file with one request, or has the cluster check them.
async fn submit(
    client: &Client,
    file: &str,
    manifests: &[Manifest],
    (request_id, validate_only): (RequestId, bool),
) -> Result<Submitted, Failure> {
    let request_id = if validate_only { String::new() } else { request_id.to_string() };
    if let [manifest] = manifests {
        let job = Some(manifest.message.clone());
        let request = v1::SubmitJobRequest { request_id, job, validate_only };
        let answer = client.submit_job(request).await.map_err(|e| refused(e, file, manifests, None))?;
        return Ok(Submitted::new(answer.job_ids, answer.freshness));
    }
    let jobs = manifests.iter().map(|m| m.message.clone()).collect();
    let request = v1::SubmitJobsRequest { request_id, jobs, validate_only };
    let answer = client.submit_jobs(request).await.map_err(|e| refused(e, file, manifests, None))?;
    Ok(Submitted::new(answer.job_ids, answer.freshness))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: SubmitArgs,
    }

    #[test]
    fn options_behind_a_script_count_until_the_first_word_that_is_for_it() {
        let of = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from([&["submit"], words].concat());
            let args = line.expect("the words are taken").args;
            (args.name, args.arguments)
        };
        let x = Some("x".to_owned());
        assert_eq!(of(&["e.sh", "--name", "x"]), (x.clone(), Vec::new()));
        assert_eq!(of(&["e.sh", "--epochs", "3", "--name", "y"]).0, None);
        assert_eq!(of(&["e.sh", "--epochs", "3", "--name", "y"]).1, ["--epochs", "3", "--name", "y"]);
        assert_eq!(
            of(&["e.sh", "--name", "x", "--", "--name", "y"]),
            (x, vec!["--name".to_owned(), "y".to_owned()])
        );
    }
}
