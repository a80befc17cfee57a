//! `muster open`: the address of a web page on a replica that answers, and a browser that shows it.

use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use muster_client::Endpoints;
use muster_console::{Console, Document, Exit, Failure, Global, WEB_UNKNOWN, WebArgs};
use muster_wire::address::encoded;
use serde::Serialize;

use crate::complete;
use crate::find::{Find, Found, find};

/// How long one replica may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a program that opens a browser may take until it is left alone.
const OPENER_MAX: Duration = Duration::from_secs(3);
/// Bytes of a page that are read: its status says all.
const PAGE_BYTES_MAX: usize = 0;

/// Options of `muster open`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster open                             opens the first page
  muster open job-3f0                     opens the page of a job, which may also be named by its name
  muster open sweep                       opens the list of the jobs of an array
  muster open node host-17                opens the page of a node
  muster open queue vision                opens the tenant's row among the queues
  muster open booking demo                opens the row of a booking; also: schedule NAME, replica ID
  muster open events                      opens a list; the others are fleet, timeline, queues, nodes, cluster and jobs
  muster open plan                        opens the form that plans a job before it is submitted
  muster open job-3f0 --at 481516         opens the page as it was behind this record of the log
  muster open job-3f0 --print             prints the address and opens nothing
  muster open fleet --web replica-1:7601,replica-2:7601

The address goes to stdout. A browser is opened with xdg-open, open or wslview where there is a display. Replicas do
not tell where their pages are: name them with --web, with MUSTER_WEB, or with `web = [\"host:port\"]` in the
configuration file. A running `muster dev` is found without that. The first replica that answers is taken.")]
pub struct OpenArgs {
    /// A job or an array by its id or name, or one of: node, queue, booking, schedule, replica, jobs, nodes, queues, fleet,
    /// timeline, events, cluster, plan, holds, drills
    #[arg(value_name = "JOB|PAGE", add = ArgValueCompleter::new(complete::pages))]
    what: Option<String>,
    /// What is meant after `node`, `queue` (a tenant), `booking`, `schedule` or `replica`
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(complete::nodes_and_tenants))]
    name: Option<String>,
    /// Print the address, and open nothing
    #[arg(long)]
    print: bool,
    /// The page as it was: behind a log index, or at an RFC 3339 time
    #[arg(long, value_name = "INDEX|TIME", value_parser = moment)]
    at: Option<String>,
    #[command(flatten)]
    web: WebArgs,
}

/// Content of `WebPage`.
#[derive(Serialize)]
struct WebPage {
    url: String,
}

/// A page, as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Path(String),
    /// The job has to be found first.
    Job(String),
}

pub async fn run(global: &Global, console: &Console, args: OpenArgs) -> Result<Exit, Failure> {
    let target = target(args.what.as_deref(), args.name.as_deref())?;
    let Some(web) = global.web(&args.web)? else {
        return Err(Failure::usage("it is not known where the web pages are").with_next(WEB_UNKNOWN));
    };
    let path = match target {
        Target::Path(path) => path,
        Target::Job(text) => path_of(&find(&global.client().await?, &text, Find::Newest).await?)?,
    };
    let path = match &args.at {
        Some(moment) => as_of(&path, moment)?,
        None => path,
    };
    let url = first_that_answers(&web, &path).await?;
    if console.is_structured() {
        console.object(&Document::new("WebPage", None::<u64>, WebPage { url: url.clone() }))?;
    } else {
        console.line(&url)?;
    }
    if !args.print {
        open(console, &url).await;
    }
    Ok(Exit::Ok)
}

/// A moment as an address has it, checked.
fn moment(text: &str) -> Result<String, String> {
    crate::reading::moment(text).map(|_| text.to_owned())
}

/// The page of what was found: an array is the list of its jobs.
fn path_of(found: &Found) -> Result<String, Failure> {
    match found {
        Found::Job(id) => Ok(format!("/jobs/{}", encoded(id))),
        Found::Array(id) => Ok(format!("/jobs?array={}", encoded(id))),
        Found::Members(ids) => match ids.as_slice() {
            [id] => Ok(format!("/jobs/{}", encoded(id))),
            _ => Err(Failure::usage("several jobs of an array are named; name one of them, or the array")),
        },
    }
}

/// The same page as it was at a moment.
fn as_of(path: &str, moment: &str) -> Result<String, Failure> {
    let (page, row) =
        path.split_once('#').map_or((path, String::new()), |(page, row)| (page, format!("#{row}")));
    if matches!(page, "/timeline" | "/cluster" | "/plan") {
        let text = format!("{page} is no page that --at goes with");
        return Err(Failure::usage(text).with_next(
            "it goes with the first page, jobs, queues, nodes, fleet and events; the timeline has its range in a form",
        ));
    }
    let joint = if page.contains('?') { '&' } else { '?' };
    Ok(format!("{page}{joint}at={}{row}", encoded(moment)))
}

fn target(what: Option<&str>, name: Option<&str>) -> Result<Target, Failure> {
    let path = |path: &str| Ok(Target::Path(path.to_owned()));
    match (what, name) {
        (None, _) => path("/"),
        (Some("node"), Some(name)) => Ok(Target::Path(format!("/nodes/{}", encoded(name)))),
        (Some("queue"), Some(tenant)) => Ok(Target::Path(format!("/queues#tenant-{}", encoded(tenant)))),
        (Some("booking"), Some(name)) => Ok(Target::Path(format!("/queues#booking-{}", encoded(name)))),
        (Some("schedule"), Some(name)) => Ok(Target::Path(format!("/queues#schedule-{}", encoded(name)))),
        (Some("replica"), Some(id)) => Ok(Target::Path(format!("/cluster#replica-{}", encoded(id)))),
        (Some("job"), Some(job)) => Ok(Target::Job(job.to_owned())),
        (Some(word), Some(name)) => {
            let text = format!("{word:?} is no kind of page that {name:?} could be one of");
            Err(Failure::usage(text).with_next(
                "muster open node NAME, queue TENANT, booking NAME, schedule NAME, replica ID, or JOB",
            ))
        }
        (Some("node" | "nodes"), None) => path("/nodes"),
        (Some("queue" | "queues"), None) => path("/queues"),
        (Some("job" | "jobs"), None) => path("/jobs"),
        (Some("fleet"), None) => path("/fleet"),
        (Some("timeline"), None) => path("/timeline"),
        (Some("events"), None) => path("/events"),
        (Some("plan"), None) => path("/plan"),
        (Some("cluster"), None) => path("/cluster"),
        (Some("booking" | "bookings"), None) => path("/queues#bookings"),
        (Some("schedule" | "schedules"), None) => path("/queues#schedules"),
        (Some("hold" | "holds"), None) => path("/queues#holds"),
        (Some("replica" | "replicas"), None) => path("/cluster#replicas"),
        (Some("drill" | "drills"), None) => path("/cluster#drills"),
        (Some(job), None) => Ok(Target::Job(job.to_owned())),
    }
}

/// The page on the first replica that has it.
async fn first_that_answers(web: &Endpoints, path: &str) -> Result<String, Failure> {
    let mut problems = Vec::new();
    let mut is_unknown = false;
    // What stands behind a `#` is for the browser alone.
    let asked = path.split('#').next().unwrap_or(path);
    for address in web.iter() {
        let answer = web.http_get(address, asked, PAGE_BYTES_MAX, ANSWER_MAX).await;
        match answer.map(|answer| (answer.code, answer.content_type)) {
            Ok((200..=299, kind)) if kind.starts_with("text/html") => return Ok(format!("{address}{path}")),
            // The listener for clients takes every path, and says in its answer that it knows no such call.
            Ok((200..=299, _)) => problems.push(format!("{address}: it answers, and not with a web page")),
            // Another replica may be ahead of this one.
            Ok((404, _)) if is_of_one_thing(asked) => is_unknown = true,
            Ok((code, _)) => problems.push(format!("{address}: it answers with {code}{}", meaning(code))),
            Err(why) => problems.push(format!("{address}: {why}")),
        }
    }
    if is_unknown {
        let text = format!("there is no page {asked}: no replica that answers knows of it");
        return Err(Failure::new(Exit::NotFound, text)
            .with_details(problems)
            .with_next("`muster job list --all` and `muster node list` show what there is"));
    }
    Err(Failure::new(Exit::Unavailable, "no replica shows this page").with_details(problems).with_next(
        "check --web: it names `http_listen` of server.toml, not the address for clients; \
         `muster cluster status` shows which replicas are up",
    ))
}

/// Whether the path is of one job or node, which a replica may not have.
fn is_of_one_thing(path: &str) -> bool {
    path.starts_with("/jobs/") || path.starts_with("/nodes/")
}

fn meaning(code: u16) -> &'static str {
    match code {
        400 => ": it does not take what is asked, such as a moment that has not come",
        401 | 403 => ": your certificate may not read the pages",
        404 => ": there is no such page, or its moment is not kept",
        421 => ": without certificates it is asked for by an IP address or as localhost",
        503 => ": it has no state to show now",
        _ => "",
    }
}

/// The programs that open an address in a browser here, the best one first; none without a display.
fn openers(variable: impl Fn(&str) -> bool) -> &'static [&'static str] {
    if cfg!(target_os = "macos") {
        &["open"]
    } else if variable("WSL_DISTRO_NAME") {
        &["wslview", "xdg-open"]
    } else if variable("DISPLAY") || variable("WAYLAND_DISPLAY") {
        &["xdg-open"]
    } else {
        &[]
    }
}

/// Opens a browser, and says why not where it cannot: the address has been printed.
async fn open(console: &Console, url: &str) {
    let openers = openers(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if openers.is_empty() {
        console.progress("there is no display here: open the address in a browser yourself");
        return;
    }
    for opener in openers {
        let mut command = tokio::process::Command::new(opener);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { continue };
        match tokio::time::timeout(OPENER_MAX, child.wait()).await {
            // One that still runs is the browser itself.
            Err(_) => return,
            Ok(Ok(status)) if status.success() => return,
            Ok(_) => {}
        }
    }
    console
        .progress(&format!("{} could not open a browser: open the address yourself", openers.join(" and ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_by_words_and_everything_else_is_a_job() {
        let path = |what, name| match target(what, name) {
            Ok(Target::Path(path)) => path,
            Ok(Target::Job(job)) => format!("job {job}"),
            Err(failure) => failure.headline().to_owned(),
        };
        assert_eq!(path(None, None), "/");
        assert_eq!(path(Some("node"), Some("a/../b")), "/nodes/a%2F..%2Fb");
        assert_eq!(path(Some("queue"), Some("vision")), "/queues#tenant-vision");
        assert_eq!(path(Some("queue"), None), "/queues");
        assert_eq!(path(Some("fleet"), None), "/fleet");
        assert_eq!(path(Some("timeline"), None), "/timeline");
        assert_eq!(path(Some("plan"), None), "/plan");
        assert_eq!(path(Some("cluster"), None), "/cluster");
        assert_eq!(path(Some("job-3f0"), None), "job job-3f0");
        assert_eq!(path(Some("job"), Some("train")), "job train");
        assert_eq!(path(Some("booking"), Some("demo")), "/queues#booking-demo");
        assert_eq!(path(Some("schedule"), Some("nightly")), "/queues#schedule-nightly");
        assert_eq!(path(Some("replica"), Some("2")), "/cluster#replica-2");
        assert_eq!(path(Some("drills"), None), "/cluster#drills");
        assert!(path(Some("fleet"), Some("x")).contains("no kind of page"));
    }

    #[test]
    fn an_array_is_the_list_of_its_jobs() {
        let path = |found: Found| path_of(&found).unwrap_or_else(|failure| failure.headline().to_owned());
        assert_eq!(path(Found::Job("job-3f0".to_owned())), "/jobs/job-3f0");
        assert_eq!(path(Found::Array("array-3f0".to_owned())), "/jobs?array=array-3f0");
        assert_eq!(path(Found::Members(vec!["job-1".to_owned()])), "/jobs/job-1");
        assert!(path(Found::Members(vec!["job-1".to_owned(), "job-2".to_owned()])).contains("several"));
    }

    #[test]
    fn a_page_of_the_past_has_its_moment_in_the_address() {
        let at = |path: &str, moment: &str| {
            as_of(path, moment).unwrap_or_else(|failure| failure.headline().to_owned())
        };
        assert_eq!(at("/", "7"), "/?at=7");
        assert_eq!(at("/jobs?array=array-3f0", "7"), "/jobs?array=array-3f0&at=7");
        assert_eq!(at("/queues#tenant-vision", "7"), "/queues?at=7#tenant-vision");
        let time = "2026-11-22T08:30:00+01:00";
        assert_eq!(at("/fleet", time), "/fleet?at=2026-11-22T08%3A30%3A00%2B01%3A00");
        assert!(at("/cluster#drills", "7").contains("no page that --at goes with"));
        assert_eq!(moment("7"), Ok("7".to_owned()));
        assert!(moment("yesterday").is_err() && moment("0").is_err());
    }

    #[test]
    fn a_browser_is_opened_only_where_there_is_a_display() {
        assert!(openers(|_| false).is_empty() || cfg!(target_os = "macos"));
        assert_eq!(openers(|name| name == "WAYLAND_DISPLAY").len(), 1);
        assert_eq!(openers(|name| name == "WSL_DISTRO_NAME").first(), Some(&"wslview"));
    }
}
