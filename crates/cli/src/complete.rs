//! Completion of ids and names in shells: the cluster is asked while the user types.
//!
//! **Invariant:** a key press waits no longer than [`LIMIT`] and shows no error; without an answer nothing is offered.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use muster_client::{Client, Options};
use muster_console::config;
use muster_wire::closed::phase_word;
use muster_wire::v1;

/// Longest wait of a key press.
const LIMIT: Duration = Duration::from_millis(900);
/// Candidates that a person still reads.
const CANDIDATES_MAX: u32 = 200;
/// Every job id begins so.
const JOB_ID: &str = "job-";
/// In the environment of a call by a shell's script: the name of that shell.
pub const VARIABLE: &str = "COMPLETE";

/// The script that has a shell ask this program.
pub fn script(shell: Shell) -> std::io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let name = shell.to_string();
    let shells = Shells::builtins();
    match shells.completer(&name) {
        Some(completer) => {
            completer.write_registration(VARIABLE, "muster", "muster", "muster", &mut script)?
        }
        None => writeln!(script, "# {name} is not supported")?,
    }
    Ok(script)
}

/// Jobs: ids while the word is empty or begins like one, else names.
pub fn jobs(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = current.to_str() else { return Vec::new() };
    let is_id = word.is_empty() || word.starts_with(JOB_ID) || JOB_ID.starts_with(word);
    let name_prefix = if is_id { String::new() } else { word.to_owned() };
    let request = v1::ListJobsRequest {
        page_size: CANDIDATES_MAX,
        filter: Some(v1::JobFilter { name_prefix, ..Default::default() }),
        ..Default::default()
    };
    let found =
        ask(async |client| client.list_jobs(request).await.ok()).map_or_else(Vec::new, |page| page.jobs);
    let about = |job: &v1::Job, other: &str| format!("{other} {}", phase_word(job.phase()));
    let pairs: BTreeMap<String, String> = if is_id {
        found.iter().map(|job| (job.id.clone(), about(job, &job.name))).collect()
    } else {
        found.iter().map(|job| (job.name.clone(), about(job, &job.id))).collect()
    };
    candidates(word, pairs)
}

/// Nodes, by name.
pub fn nodes(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = current.to_str() else { return Vec::new() };
    let request = v1::ListNodesRequest { page_size: 1_000, ..Default::default() };
    let found =
        ask(async |client| client.list_nodes(request).await.ok()).map_or_else(Vec::new, |page| page.nodes);
    let pairs = found.into_iter().filter_map(|node| {
        let about = node.status().as_str_name().trim_start_matches("NODE_STATUS_").to_lowercase();
        Some((node.description?.name, about))
    });
    candidates(word, pairs.collect())
}

/// Nodes and tenants: what stands behind `muster open node` and `muster open queue`.
pub fn nodes_and_tenants(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = current.to_str() else { return Vec::new() };
    let request = v1::ListTenantsRequest { page_size: 1_000, ..Default::default() };
    let found = ask(async |client| client.list_tenants(request).await.ok());
    let tenants = found.map_or_else(Vec::new, |page| page.tenants);
    let pairs = tenants.into_iter().map(|tenant| (tenant.tenant, "tenant".to_owned()));
    let mut all = nodes(current);
    all.extend(candidates(word, pairs.collect()));
    all
}

/// Kinds of web pages, and jobs.
pub fn pages(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = current.to_str() else { return Vec::new() };
    let kinds = [
        "booking", "cluster", "drills", "events", "fleet", "holds", "jobs", "node", "nodes", "plan", "queue",
        "queues", "replica", "schedule", "timeline",
    ];
    let mut all = candidates(word, kinds.map(|kind| (kind.to_owned(), "page".to_owned())).into());
    all.extend(jobs(current));
    all
}

fn candidates(word: &str, pairs: BTreeMap<String, String>) -> Vec<CompletionCandidate> {
    let fitting = pairs.into_iter().filter(|(value, _)| value.starts_with(word));
    let fitting = fitting.take(CANDIDATES_MAX as usize);
    fitting.map(|(value, about)| CompletionCandidate::new(value).help(Some(about.into()))).collect()
}

/// What the cluster of the environment answers in time. Options on the command line that is being completed are not
/// known here.
fn ask<T>(question: impl AsyncFnOnce(Client) -> Option<T>) -> Option<T> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let given = std::env::var("MUSTER_ENDPOINTS").unwrap_or_default();
    let given: Vec<String> =
        given.split(',').filter(|text| !text.trim().is_empty()).map(str::to_owned).collect();
    let files = (&variable("MUSTER_CA"), &variable("MUSTER_CERT"), &variable("MUSTER_KEY"));
    let token = config::token(variable("MUSTER_TOKEN_FILE").as_deref()).ok()?;
    let endpoints = config::endpoints(&given, files, token.as_ref()).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let options = Options { deadline: LIMIT, attempt_timeout: LIMIT, ..Options::STANDARD };
        let client = Client::lazy(endpoints, options);
        tokio::time::timeout(LIMIT, question(client)).await.ok().flatten()
    })
}
