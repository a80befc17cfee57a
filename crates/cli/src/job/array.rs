//! `muster job array …`: arrays as wholes.

use clap::{Args, Subcommand};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment, one_line};
use muster_types::PriorityTier;
use muster_wire::closed::{phase_word, word};
use muster_wire::v1;
use serde::Serialize;

use crate::find::{Find, Found, find, newest_arrays, one_job};
use crate::job::age::age;
use crate::job::list::{ACTIVE, Phase};
use crate::job::resubmit::{self, ResubmitArgs};
use crate::reading::ReadArgs;

/// Commands about arrays.
#[derive(Subcommand)]
pub enum ArrayCommand {
    /// List arrays, newest first, with how far their members have come
    #[command(after_help = "\
Examples:
  muster job array list                               arrays that have not ended
  muster job array list --all --mine                  and those that have, of the ones that you submitted
  muster job array list --phase failed                arrays of which a member has failed")]
    List(ListArgs),
    /// Show one array: its members by phase, and what the next ones wait for
    #[command(after_help = "\
Examples:
  muster job array show array-3f0
  muster job array show job-3f0          the array that this job is in
  muster job array show array-3f0 -o json | jq -r '.states[] | select(.phase == \"failed\") | .indices'")]
    Show {
        /// Its id or name, or the id of one of its members
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Submit members of an array again that failed or were cancelled, as a new array with their indices
    #[command(after_help = "\
Examples:
  muster job array resubmit array-3f0 --failed
  muster job array resubmit array-3f0 --failed --cancelled --dry-run

The new array has the labels, the throttle and the spec of the old one, and waits for no other job. Members in more than 256
ranges of indices become several arrays, each with the throttle. While other members have not ended it needs --yes: one of
them may fail too.")]
    Resubmit(ResubmitArgs),
}

/// Options of `muster job array list`.
#[derive(Args)]
pub struct ListArgs {
    /// Arrays that have ended too
    #[arg(short, long, conflicts_with = "phase")]
    all: bool,
    /// Only arrays with a member in one of these phases; repeat it or separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PHASE")]
    phase: Vec<Phase>,
    /// Only arrays that you submitted, by the certificate that you use
    #[arg(long, conflicts_with = "creator")]
    mine: bool,
    /// Only arrays that this principal submitted, such as tenant/vision/ada
    #[arg(long, value_name = "PRINCIPAL")]
    creator: Option<String>,
    /// At most N, the newest [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only names that start so
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Only arrays whose labels match, as for `muster job list`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    #[command(flatten)]
    read: ReadArgs,
}

/// Content of `Array`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Array {
    id: String,
    name: String,
    tenant: String,
    creator: String,
    size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    throttle: Option<u32>,
    /// As a job file has it; none where only their number was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<String>,
    first_job_id: String,
    counts: Counts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    states: Vec<State>,
    held: bool,
    /// Who cancelled members that were not created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cancelled_by: Vec<String>,
    /// How often the last place among these went to another.
    #[serde(skip_serializing_if = "is_zero")]
    cancelled_by_left_out: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
}

/// Members by what has become of them.
#[derive(Serialize)]
struct Counts {
    uncreated: u32,
    pending: u32,
    active: u32,
    succeeded: u32,
    failed: u32,
    cancelled: u32,
}

/// Members in one phase.
#[derive(Serialize)]
struct State {
    phase: &'static str,
    created: bool,
    count: u32,
    indices: String,
    complete: bool,
}

impl From<v1::Array> for Array {
    fn from(array: v1::Array) -> Array {
        let counts = array.counts.unwrap_or_default();
        let members = array.array.unwrap_or_default();
        let state = |state: v1::ArrayState| State {
            phase: phase_word(state.phase()),
            created: state.created,
            count: state.count,
            indices: state.indices,
            complete: state.complete,
        };
        Array {
            id: array.id,
            name: array.name,
            tenant: array.tenant,
            creator: array.creator,
            size: array.size,
            throttle: members.throttle,
            members: Some(muster_manifest::quantity::show_array(&members)),
            first_job_id: array.first_job_id,
            counts: Counts {
                uncreated: counts.uncreated,
                pending: counts.pending,
                active: counts.active,
                succeeded: counts.succeeded,
                failed: counts.failed,
                cancelled: counts.cancelled,
            },
            states: array.states.into_iter().map(state).collect(),
            held: array.hold.is_some(),
            cancelled_by: array.cancelled_by,
            cancelled_by_left_out: array.cancelled_by_left_out,
            reason: array.reason,
            message: array.message,
            create_time: moment(array.create_time),
            end_time: moment(array.end_time),
        }
    }
}

/// An array as a list has it: with the number of its members, and without their indices.
fn listed(array: v1::Array) -> Array {
    Array { members: None, ..Array::from(array) }
}

pub async fn run(global: &Global, console: &Console, command: ArrayCommand) -> Result<Exit, Failure> {
    match command {
        ArrayCommand::List(args) => {
            let client = args.read.client(global).await?;
            list(&client, console, args).await
        }
        ArrayCommand::Show { id, read } => {
            let client = read.client(global).await?;
            let array_id = array_of(&client, &id).await?;
            show(&client, console, array_id, &read).await
        }
        ArrayCommand::Resubmit(args) => {
            let client = global.client().await?;
            resubmit::run(&client, console, args).await
        }
    }
}

async fn list(client: &Client, console: &Console, args: ListArgs) -> Result<Exit, Failure> {
    let phases = match args.phase.as_slice() {
        [] if args.all => &[],
        [] => ACTIVE.as_slice(),
        named => named,
    };
    let filter = v1::JobFilter {
        phases: phases.iter().map(|phase| phase.to_message()).collect(),
        tenant: args.tenant.unwrap_or_default(),
        name_prefix: args.name.unwrap_or_default(),
        label_selector: args.selector.unwrap_or_default(),
        creator: args.creator.unwrap_or_default(),
        mine: args.mine,
        ..Default::default()
    };
    let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
    let (arrays, freshness) = newest_arrays(client, filter, limit).await?;
    let items: Vec<Array> = arrays.into_iter().map(listed).collect();
    let is_empty = items.is_empty();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("ArrayList", freshness, Items { items }))?;
        }
        Format::Name => items.iter().try_for_each(|array| console.line(&array.id))?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            console.table(&table(&items))?;
            if is_empty && !args.all && args.phase.is_empty() {
                console.progress("no array waits or runs; --all shows those that have ended");
            }
        }
    }
    args.read.tell_age(console, freshness.as_ref());
    Ok(Exit::Ok)
}

/// The array that is meant: by its id or name, or by a job of it.
pub async fn array_of(client: &Client, text: &str) -> Result<String, Failure> {
    let job_id = match find(client, text, Find::Newest).await? {
        Found::Array(id) => return Ok(id),
        found => one_job(text, found)?,
    };
    let job = client.get_job(v1::GetJobRequest { job_id: job_id.clone(), read: None }).await?.job;
    let array = job.and_then(|job| job.array).map(|array| array.array_id);
    array.ok_or_else(|| {
        Failure::usage(format!("{job_id} is no member of an array"))
            .with_next("muster job array list --all shows arrays")
    })
}

/// One array in whichever form was asked for.
pub async fn show(
    client: &Client,
    console: &Console,
    array_id: String,
    read: &ReadArgs,
) -> Result<Exit, Failure> {
    let answer = client.get_array(v1::GetArrayRequest { array_id, read: None }).await?;
    print(console, answer.array.unwrap_or_default(), answer.freshness)?;
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

/// Prints an array as it was answered.
fn print(console: &Console, message: v1::Array, freshness: Option<v1::Freshness>) -> Result<(), Failure> {
    let tier = word::<PriorityTier>(message.tier);
    let array = Array::from(message);
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("Array", freshness, array)),
        Format::Name => console.line(&array.id),
        Format::Table | Format::Wide | Format::Html | Format::Csv => describe(console, &array, tier),
    }
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn describe(console: &Console, array: &Array, tier: &str) -> Result<(), Failure> {
    let why = match (array.reason.as_str(), array.message.as_str()) {
        ("", _) => String::new(),
        (code, text) => format!("{code}: {text}"),
    };
    let mut cancelled_by = array.cancelled_by.join(", ");
    if array.cancelled_by_left_out > 0 {
        cancelled_by.push_str(" and others");
    }
    let pairs = [
        ("id", array.id.clone()),
        ("name", array.name.clone()),
        ("tenant", array.tenant.clone()),
        ("creator", array.creator.clone()),
        ("tier", tier.to_owned()),
        ("members", format!("{} ({})", array.size, array.members.as_deref().unwrap_or_default())),
        ("first job", array.first_job_id.clone()),
        ("next", why),
        ("cancelled by", cancelled_by),
        ("submitted", array.create_time.clone().unwrap_or_default()),
        ("finished", array.end_time.clone().unwrap_or_default()),
    ];
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let said = pairs.iter().filter(|(_, value)| !value.is_empty());
    let lines: String = said.map(|(name, value)| format!("{name:width$}  {}\n", one_line(value))).collect();
    console.bytes(lines.as_bytes())?;
    console.line("")?;
    let mut grid = Grid::new(vec!["PHASE", "MEMBERS", "INDICES"]);
    for state in &array.states {
        let phase = if state.created { state.phase.to_owned() } else { "not created".to_owned() };
        let more = if state.complete { "" } else { ",..." };
        grid.row(vec![phase, state.count.to_string(), format!("{}{more}", state.indices)]);
    }
    console.table(&grid)
}

/// Prints an array that a change answered with, which has it as a list does.
pub fn print_changed(
    console: &Console,
    message: v1::Array,
    freshness: Option<v1::Freshness>,
) -> Result<(), Failure> {
    let array = listed(message);
    match console.format {
        Format::Json | Format::Yaml => console.object(&Document::new("Array", freshness, array)),
        Format::Name => console.line(&array.id),
        Format::Table | Format::Wide | Format::Html | Format::Csv => console.table(&table(&[array])),
    }
}

fn table(arrays: &[Array]) -> Grid {
    let mut grid = Grid::new(vec![
        "ID",
        "NAME",
        "TENANT",
        "MEMBERS",
        "WAIT",
        "ACTIVE",
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
        "AGE",
        "REASON",
    ])
    .optional(&["CANCELLED", "TENANT", "SUCCEEDED"]);
    for array in arrays {
        let Counts { uncreated, pending, active, succeeded, failed, cancelled } = &array.counts;
        let numbers = [array.size, uncreated + pending, *active, *succeeded, *failed, *cancelled];
        let mut cells = vec![array.id.clone(), array.name.clone(), array.tenant.clone()];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.push(age(array.create_time.as_deref()));
        cells.push(array.reason.clone());
        grid.row(cells);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_members_is_not_shown_as_their_indices() {
        // The array has 0-95:5,200; a list has how many that are.
        let members = v1::JobArray { size: 21, throttle: Some(4), ..v1::JobArray::default() };
        let answered = v1::Array { size: 21, array: Some(members), ..v1::Array::default() };
        let array = listed(answered);
        assert_eq!((array.size, array.throttle, array.members), (21, Some(4), None));
    }
}
