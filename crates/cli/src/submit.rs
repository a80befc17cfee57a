//! `muster submit`.

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Global, local};
use muster_manifest::{Manifest, Overrides};
use muster_types::{PriorityTier, RequestId};
use muster_wire::v1;

use crate::job::array;
use crate::job::follow::{self, Subject};
use crate::job_files::{name_own_tenant, read_manifests_with, refused};
use crate::parallel::auto;
use crate::view::Submission;

/// Options of `muster submit`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster submit train.yaml
  muster submit train.yaml --name try-2 --tier batch --region eu-north --wait
  muster submit train.yaml --label team=vision --annotation ticket=1234
  muster submit train.sh --epochs 3       a script; what follows is for it
  generate-jobs | muster submit - --request-id $(uuidgen)
  ID=$(muster submit train.yaml) && muster job logs $ID -f

The ids of the jobs go to stdout, one per line; an array of more than 1,000 jobs is shown by its own id. Several YAML documents in one file are submitted all or
none. The same --request-id never submits twice, however often it is used.

A script begins with #! and says in lines like `#MUSTER workers: 4` before its first command what a job
file says under `spec`; `#MUSTER name: …`, `tenant: …` and `labels: {team: vision}` besides. It travels with the
job.")]
pub struct SubmitArgs {
    /// Job file (YAML) or script, or - for stdin
    file: String,
    /// Arguments of the script
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
    #[command(flatten)]
    metadata: MetadataArgs,
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
}

/// Members of an array that are shown one by one.
const ARRAY_SHOWN_MAX: usize = 1_000;

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

/// `KEY=VALUE`; what keys and values may be is judged with the rest of the job.
fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("a key and a value have `=` between them, like team=vision")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub async fn run(global: &Global, console: &Console, args: SubmitArgs) -> Result<Exit, Failure> {
    let overrides = Overrides {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        tier: args.tier,
        regions: args.region.clone(),
        labels: args.metadata.label.clone(),
        annotations: args.metadata.annotation.clone(),
    };
    let mut manifests = read_manifests_with(&args.file, &args.arguments, &overrides)?;
    if global.is_local() {
        manifests.iter_mut().for_each(|manifest| local::localize(&mut manifest.message));
    }
    let request_id = args.request_id.unwrap_or_else(|| RequestId(uuid::Uuid::new_v4().as_u128()));
    let client = global.client().await?;
    name_own_tenant(&client, &mut manifests);
    auto::choose(&client, console, &args.file, &mut manifests).await?;
    let submission = if args.validate_only {
        validate(&client, &args.file, &manifests).await?
    } else {
        submit(&client, &args.file, &manifests, request_id).await?
    };
    let job_ids = submission.job_ids;
    let shown = shown_ids(&manifests, &job_ids);
    if console.is_structured() && !args.watch {
        let content = Submission {
            job_ids: job_ids.clone(),
            request_id: request_id.to_string(),
            validate_only: args.validate_only,
        };
        console.object(&Document::new("Submission", Some(submission.log_index), content))?;
    } else if !args.watch || !console.is_structured() {
        shown.iter().try_for_each(|id| console.line(id))?;
    }
    if args.validate_only {
        console.progress(&format!("{} is valid; nothing was submitted", args.file));
        return Ok(Exit::Ok);
    }
    console.progress(&format!("submitted {} at log index {}", count(job_ids.len()), submission.log_index));
    if !args.wait && !args.watch {
        return Ok(Exit::Ok);
    }
    let (arrays, jobs): (Vec<String>, Vec<String>) = shown.into_iter().partition(|id| array::is_array_id(id));
    if args.watch && !arrays.is_empty() {
        let most = ARRAY_SHOWN_MAX;
        return Err(Failure::usage(format!(
            "an array of more than {most} members cannot be watched job by job"
        ))
        .with_next(format!("muster job wait {}", arrays.join(" "))));
    }
    let mut exit = Exit::Ok;
    for id in arrays {
        let ended = array::wait(&client, console, &id, global.timeout).await?;
        exit = if ended == Exit::Ok { exit } else { ended };
    }
    if jobs.is_empty() {
        return Ok(exit);
    }
    let subject = Subject { limit: global.timeout, ..Subject::of(jobs) };
    let ended = wait(&client, console, subject, args.watch).await?;
    Ok(if exit == Exit::Ok { ended } else { exit })
}

async fn wait(client: &Client, console: &Console, subject: Subject, print: bool) -> Result<Exit, Failure> {
    let show = |item: &_, synced| if print { follow::print(console, item, synced) } else { Ok(()) };
    let (exit, jobs) = follow::follow(client, console, subject, show).await?;
    for job in jobs.values().filter(|_| !print) {
        let phase = crate::view::phase_word(job.phase());
        console.progress(format!("{} {phase} {}", job.id, job.status().message).trim_end());
    }
    Ok(exit)
}

/// The ids that people are shown: those of jobs, and in place of those of a large array's members the array's.
fn shown_ids(manifests: &[Manifest], job_ids: &[String]) -> Vec<String> {
    let mut shown = Vec::new();
    let mut rest = job_ids;
    for manifest in manifests {
        let size = manifest.message.spec().array.as_ref().map_or(1, array_size).max(1);
        let (own, behind) = rest.split_at(size.min(rest.len()));
        match own.first() {
            Some(first) if size > ARRAY_SHOWN_MAX => shown.push(first.replacen("job-", "array-", 1)),
            _ => shown.extend_from_slice(own),
        }
        rest = behind;
    }
    shown.extend_from_slice(rest);
    shown
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

async fn submit(
    client: &Client,
    file: &str,
    manifests: &[Manifest],
    request_id: RequestId,
) -> Result<Submitted, Failure> {
    let request_id = request_id.to_string();
    if let [manifest] = manifests {
        let spec = Some(manifest.message.clone());
        let request = v1::SubmitJobRequest { request_id, job: spec, validate_only: false };
        let answer = client.submit_job(request).await.map_err(|e| refused(e, file, manifests, None))?;
        return Ok(Submitted::new(answer.job_ids, answer.freshness));
    }
    let specs = manifests.iter().map(|m| m.message.clone()).collect();
    let request = v1::SubmitJobsRequest { request_id, jobs: specs };
    let answer = client.submit_jobs(request).await.map_err(|e| refused(e, file, manifests, None))?;
    Ok(Submitted::new(answer.job_ids, answer.freshness))
}

/// A batch has no dry run of its own: each of its jobs is asked about.
async fn validate(client: &Client, file: &str, manifests: &[Manifest]) -> Result<Submitted, Failure> {
    let mut log_index = 0;
    for (index, manifest) in manifests.iter().enumerate() {
        let spec = Some(manifest.message.clone());
        let request = v1::SubmitJobRequest { request_id: String::new(), job: spec, validate_only: true };
        let answer =
            client.submit_job(request).await.map_err(|e| refused(e, file, manifests, Some(index)))?;
        log_index = answer.freshness.map_or(0, |f| f.log_index);
    }
    Ok(Submitted { job_ids: Vec::new(), log_index })
}
