//! `muster booking create|list|show|delete`: nodes that are set aside over windows of time, for a tenant or for maintenance.

use clap::{Args, Subcommand};
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment, span};
use muster_manifest::quantity;
use muster_types::{BookingClearing, Weekdays, limits};
use muster_wire::closed::{number, of_word, word};
use muster_wire::time::{duration, timestamp};
use muster_wire::v1;
use serde::Serialize;

use crate::consent::DryRun;
use crate::job_files::now_ms;
use crate::region::nodes_of;

/// Commands about bookings.
#[derive(Subcommand)]
pub enum BookingCommand {
    /// Set nodes aside for a tenant or for maintenance, or say with --dry-run what that would cost others
    #[command(after_help = "\
Examples:
  muster booking create demo --tenant research --devices 16 --type h100 --start 2027-03-01T09:00:00+01:00 --for 4h --dry-run
  muster booking create demo --tenant research --devices 16 --type h100 --start 2027-03-01T09:00:00+01:00 --for 4h --notice 2h
  muster booking create nightly --tenant vision --hosts 2 --type h100 --start 2027-03-01T22:00:00Z --for 6h --every 1d --times 30
  muster booking create office --tenant vision --hosts 2 --type h100 --every mon-fri --at 09:00 --zone Europe/Berlin --for 8h --times 20
  muster booking create lab --tenant vision --node h1,h2 --for 8h --others stop --shared --reason 'repair of the model'
  muster booking create upgrade --maintenance --region eu-1 --every sun --at 02:00 --zone Europe/Berlin --for 4h --times 26 --notice 2h

Nodes are whole hosts of one cluster; the leader chooses them, and chooses again when one is lost. A job uses them during a window if it
names the booking (booking: NAME in its file), or with --shared if it is of the tenant. A start has an offset from UTC, and windows with
--every 1d repeat after whole days of 24 hours: summer time moves none. With --every mon-fri, --at and --zone they begin at a local time;
a time that is skipped when clocks are set forward is the first moment after the gap, and one that comes twice is the first.
During --notice nothing is placed there whose run-time limit passes the start.
--others decides about work that is still there then: finish lets it run to its end, stop and fill stop it with its grace, and fill lets
jobs without a limit begin there until the start. An administrator of a tenant books where the policy gives that right (rights.bookings),
names --type, stays within the nominal quota, and lets others finish.
With --maintenance nothing at all runs there in a window: name nodes, or a region, a cluster or both, with the nodes that join later.
What is still there is stopped, and bookings of tenants have their nodes again behind it. Operators alone may ask for it; the windows
of a policy (muster policy) are for what happens once.")]
    Create(Box<CreateArgs>),
    /// List the bookings that are not over
    #[command(after_help = "\
Examples:
  muster booking list
  muster booking list -o json | jq -r '.items[] | select(.open).name'")]
    List,
    /// Show one booking: its owner, its windows and its nodes
    #[command(after_help = "\
Examples:
  muster booking show demo
  muster booking show demo -o json | jq -r '.nodes[]'")]
    Show {
        /// Its name
        name: String,
    },
    /// Give a booking up: its nodes are open to everybody again, and what runs there goes on
    #[command(after_help = "\
Examples:
  muster booking delete demo --dry-run
  muster booking delete demo")]
    Delete {
        /// Its name
        name: String,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// What to book.
#[derive(Args)]
pub struct CreateArgs {
    /// What to call it: jobs name it so
    name: String,
    /// Whose jobs may use the nodes: this tenant's, and those of the tenants below it
    #[arg(long, value_name = "TENANT", required_unless_present = "maintenance")]
    tenant: Option<String>,
    /// Let nothing run there during a window: for operators
    #[arg(long, conflicts_with_all = ["tenant", "user", "jobs", "shared", "hosts", "devices", "kind", "labels"])]
    maintenance: bool,
    /// The user whose jobs alone may name it, as `muster job show` names creators
    #[arg(long = "for-user", value_name = "USER")]
    user: Option<String>,
    /// A name of jobs that alone may name it; several with commas, or several times
    #[arg(long = "job", value_name = "NAME", value_delimiter = ',')]
    jobs: Vec<String>,
    /// Let every job of the tenant use the nodes, also one that does not name the booking
    #[arg(long, conflicts_with_all = ["user", "jobs"])]
    shared: bool,
    /// These nodes, whatever becomes of them; several with commas, or several times
    #[arg(long = "node", value_name = "NODE", value_delimiter = ',', conflicts_with_all = ["hosts", "devices", "kind", "region", "in_cluster", "labels"], required_unless_present_any = ["hosts", "devices", "maintenance"])]
    nodes: Vec<String>,
    /// This number of hosts, which the leader chooses
    #[arg(long, value_name = "COUNT", conflicts_with = "devices")]
    hosts: Option<u32>,
    /// Hosts with exactly this number of devices together
    #[arg(long, value_name = "COUNT", requires = "kind")]
    devices: Option<u32>,
    /// The type of accelerator of the hosts
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// The region of the hosts
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// The cluster of the hosts
    #[arg(long = "in-cluster", value_name = "CLUSTER")]
    in_cluster: Option<String>,
    /// A label that each host has; several with commas, or several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,
    /// The first moment: a time with an offset from UTC, or +2h for two hours from now [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    start: Option<u64>,
    /// How long each window is, from 1m to 30d
    #[arg(long = "for", value_name = "DURATION", value_parser = duration_ms)]
    length_ms: u64,
    /// From the start of one window to that of the next, whole days up to 28d; or days of the week such as mon-fri, sat,sun or daily,
    /// with --at and --zone
    #[arg(long, value_name = "DAYS", value_parser = every, requires = "times")]
    every: Option<Recurrence>,
    /// The local time at which windows begin, as in 09:00
    #[arg(long, value_name = "HH:MM", requires = "every")]
    at: Option<String>,
    /// The time zone of --at, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "at")]
    zone: Option<String>,
    /// How many windows there are, up to 366; with --every
    #[arg(
        long,
        value_name = "COUNT",
        requires = "every",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::BOOKING_WINDOWS_MAX))
    )]
    times: Option<u32>,
    /// How long ahead of each window the nodes are cleared, up to 30d
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    notice: Option<u64>,
    /// How others' work on the nodes is treated: finish, stop or fill [default: finish, and stop for maintenance]
    #[arg(long, value_name = "HOW", value_parser = others)]
    others: Option<BookingClearing>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Say what it would cost others, and change nothing
    #[arg(long)]
    dry_run: bool,
}

fn time(text: &str) -> Result<u64, String> {
    quantity::time_ms(text, now_ms()).map_err(|error| error.to_string())
}

fn duration_ms(text: &str) -> Result<u64, String> {
    quantity::duration_ms(text).map_err(|error| error.to_string())
}

fn days(text: &str) -> Result<u32, String> {
    let ms = duration_ms(text)?;
    let is_whole = ms > 0 && ms % muster_types::booking::DAY_MS == 0;
    let count = u32::try_from(ms / muster_types::booking::DAY_MS).ok().filter(|_| is_whole);
    count.ok_or_else(|| "must be whole days, such as 1d or 7d".to_owned())
}

/// When windows come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recurrence {
    /// After this number of days of 24 hours.
    Days(u32),
    /// On these days of the week.
    Weekdays(Weekdays),
}

fn every(text: &str) -> Result<Recurrence, String> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return days(text).map(Recurrence::Days);
    }
    let weekdays = text.parse::<Weekdays>().map(Recurrence::Weekdays);
    weekdays.map_err(|rule| format!("{rule}, or whole days such as `1d`"))
}

fn others(text: &str) -> Result<BookingClearing, String> {
    of_word(text).ok_or_else(|| "must be finish, stop or fill".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or_else(|| "must be KEY=VALUE".to_owned())?;
    Ok((key.to_owned(), value.to_owned()))
}

impl CreateArgs {
    fn spec(&self) -> v1::BookingSpec {
        let shape = v1::BookingShape {
            nodes: self.nodes.clone(),
            hosts: self.hosts.unwrap_or_default(),
            devices: self.devices.unwrap_or_default(),
            accelerator: self.kind.clone().unwrap_or_default(),
            region: self.region.clone().unwrap_or_default(),
            cluster: self.in_cluster.clone().unwrap_or_default(),
            labels: self.labels.iter().cloned().collect(),
        };
        v1::BookingSpec {
            tenant: self.tenant.clone().unwrap_or_default(),
            user: self.user.clone().unwrap_or_default(),
            jobs: self.jobs.clone(),
            shared: self.shared,
            shape: Some(shape),
            start_time: self.start.map(timestamp),
            length: Some(duration(self.length_ms)),
            every_days: match self.every {
                Some(Recurrence::Days(days)) => days,
                Some(Recurrence::Weekdays(_)) | None => 0,
            },
            windows: self.times.unwrap_or_default(),
            notice: self.notice.map(duration),
            clearing: number(self.clearing()),
            reason: self.reason.clone(),
            rule: self.rule(),
            maintenance: self.maintenance,
        }
    }

    fn clearing(&self) -> BookingClearing {
        let usual = if self.maintenance { BookingClearing::Stop } else { BookingClearing::Finish };
        self.others.unwrap_or(usual)
    }

    /// Days of the week go with a local time, and whole days without one; maintenance says where.
    fn check(&self) -> Result<(), Failure> {
        if self.maintenance && self.nodes.is_empty() && self.region.is_none() && self.in_cluster.is_none() {
            let text = "--maintenance goes with --node, --region or --in-cluster";
            return Err(Failure::usage(text).with_next("say what is to be empty, as in --region eu-1"));
        }
        let (text, next) = match (self.every, &self.at) {
            (Some(Recurrence::Weekdays(_)), None) => (
                "--every with days of the week goes with --at",
                "name the local time at which windows begin, as in --at 09:00 --zone Europe/Berlin",
            ),
            (Some(Recurrence::Days(_)), Some(_)) => (
                "--at goes with days of the week, and --every names days of 24 hours",
                "name days of the week, as in --every daily, or leave out --at",
            ),
            _ => return Ok(()),
        };
        Err(Failure::usage(text).with_next(next))
    }

    /// The rule of windows with a local time.
    fn rule(&self) -> Option<v1::BookingRule> {
        let Some(Recurrence::Weekdays(weekdays)) = self.every else { return None };
        let time = self.at.clone().unwrap_or_default();
        let zone = self.zone.clone().unwrap_or_else(|| "UTC".to_owned());
        Some(v1::BookingRule { weekdays: weekdays.to_string(), time, zone })
    }
}

/// Carries out a command about bookings.
pub async fn run(global: &Global, console: &Console, command: BookingCommand) -> Result<Exit, Failure> {
    if let BookingCommand::Create(args) = &command {
        args.check()?;
    }
    let client = global.client().await?;
    match command {
        BookingCommand::Create(args) if args.dry_run => plan(&client, console, &args).await?,
        BookingCommand::Create(args) => create(&client, console, &args).await?,
        BookingCommand::List => list(&client, console).await?,
        BookingCommand::Show { name } => show(&client, console, name).await?,
        BookingCommand::Delete { name, dry_run: true } => would_delete(&client, console, name).await?,
        BookingCommand::Delete { name, dry_run: false } => delete(&client, console, name).await?,
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BookingView {
    name: String,
    tenant: String,
    maintenance: bool,
    /// All nodes of this place, for maintenance.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<String>,
    shared: bool,
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_end: Option<String>,
    windows_left: u32,
    every_days: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
    others: &'static str,
    nodes: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    creator: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    above_quota: String,
}

impl From<v1::Booking> for BookingView {
    fn from(booking: v1::Booking) -> BookingView {
        let spec = booking.spec.unwrap_or_default();
        BookingView {
            name: booking.name,
            maintenance: spec.maintenance,
            place: spec.shape.as_ref().filter(|_| spec.maintenance && booking.nodes.is_empty()).map(place),
            tenant: spec.tenant,
            user: spec.user,
            jobs: spec.jobs,
            shared: spec.shared,
            open: booking.open,
            window_start: moment(booking.window_start_time),
            window_end: moment(booking.window_end_time),
            windows_left: booking.windows_left,
            every_days: spec.every_days,
            rule: spec.rule.map(RuleView::from),
            notice: span(spec.notice),
            others: word::<BookingClearing>(spec.clearing),
            nodes: booking.nodes,
            creator: booking.creator,
            reason: spec.reason,
            above_quota: booking.above_quota,
        }
    }
}

/// A region or a cluster in words.
fn place(shape: &v1::BookingShape) -> String {
    match (shape.region.as_str(), shape.cluster.as_str()) {
        (region, "") => format!("region {region}"),
        ("", cluster) => format!("cluster {cluster}"),
        (region, cluster) => format!("cluster {cluster} of region {region}"),
    }
}

impl BookingView {
    /// The nodes, or the place of which it has all.
    fn what(&self, apart: &str) -> String {
        self.place.as_ref().map_or_else(|| self.nodes.join(apart), |place| format!("all nodes of {place}"))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleView {
    weekdays: String,
    time: String,
    zone: String,
}

impl From<v1::BookingRule> for RuleView {
    fn from(rule: v1::BookingRule) -> RuleView {
        RuleView { weekdays: rule.weekdays, time: rule.time, zone: rule.zone }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Overrunning {
    job_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_end: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanView {
    nodes: Vec<String>,
    node_count: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    met_bookings: Vec<String>,
    others: &'static str,
    overrunning: Vec<Overrunning>,
    displaced_job_ids: Vec<String>,
    truncated: bool,
    knows_reservations: bool,
}

async fn plan(client: &Client, console: &Console, args: &CreateArgs) -> Result<(), Failure> {
    let request =
        v1::PlanBookingRequest { name: args.name.clone(), spec: Some(args.spec()), ..Default::default() };
    let answer = client.plan_booking(request).await?;
    let overrunning = answer
        .overrunning
        .into_iter()
        .map(|job| Overrunning { job_id: job.job_id, expected_end: moment(job.expected_end_time) });
    let view = PlanView {
        nodes: answer.nodes,
        node_count: answer.node_count,
        met_bookings: answer.met_bookings,
        others: word::<BookingClearing>(number(args.clearing())),
        overrunning: overrunning.collect(),
        displaced_job_ids: answer.displaced_job_ids,
        truncated: answer.truncated,
        knows_reservations: answer.knows_reservations,
    };
    if console.is_structured() {
        return console.object(&Document::new("BookingPlan", answer.freshness, view));
    }
    for line in plan_lines(&view) {
        console.line(&line)?;
    }
    Ok(())
}

fn plan_lines(view: &PlanView) -> Vec<String> {
    let mut lines = vec![match view.nodes.is_empty() {
        true => format!("nodes: {} now, and those that join later", view.node_count),
        false => format!("nodes: {}", view.nodes.join(" ")),
    }];
    for booking in &view.met_bookings {
        lines.push(format!("booking {booking} has some of them during a window"));
    }
    let fate =
        if view.others == "finish" { "would run into the window" } else { "would be stopped at the start" };
    if view.overrunning.is_empty() {
        lines.push("no job of others is expected to run there at the start".to_owned());
    }
    for job in &view.overrunning {
        let end = job.expected_end.as_deref().unwrap_or("unknown");
        lines.push(format!("{} {fate}: it is expected to end at {end}", job.job_id));
    }
    for job in &view.displaced_job_ids {
        lines.push(format!("{job} would lose the place that is kept for it"));
    }
    if view.truncated {
        lines.push("there are more".to_owned());
    }
    if !view.knows_reservations {
        lines.push(
            "which reservations there are is known to the leader alone, after a pass over the queue"
                .to_owned(),
        );
    }
    lines
}

async fn create(client: &Client, console: &Console, args: &CreateArgs) -> Result<(), Failure> {
    if args.maintenance && args.nodes.is_empty() {
        let [region, cluster] =
            [&args.region, &args.in_cluster].map(|name| name.as_deref().unwrap_or_default());
        if nodes_of(client, region, cluster).await?.is_empty() {
            console.progress("note: no node is there now; `muster node list` shows the names of places");
        }
    }
    let request = v1::CreateBookingRequest {
        request_id: String::new(),
        name: args.name.clone(),
        spec: Some(args.spec()),
    };
    let answer = client.create_booking(request).await?;
    let Some(booking) = answer.booking else {
        console.progress(&format!("booking {} was made, and is over", args.name));
        return Ok(());
    };
    let view = BookingView::from(booking);
    if console.is_structured() {
        return console.object(&Document::new("Booking", answer.freshness, view));
    }
    let from = view.window_start.as_deref().unwrap_or("unknown");
    console.progress(&format!("booking {} keeps {} from {from}", view.name, view.what(", ")));
    Ok(())
}

async fn list(client: &Client, console: &Console) -> Result<(), Failure> {
    let answer = client.list_bookings(v1::ListBookingsRequest::default()).await?;
    let items: Vec<BookingView> = answer.bookings.into_iter().map(BookingView::from).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("BookingList", answer.freshness, Items { items }))
        }
        Format::Name => {
            let lines: String = items.iter().map(|booking| format!("{}\n", booking.name)).collect();
            console.bytes(lines.as_bytes())
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let header = vec!["NAME", "TENANT", "STATE", "FROM", "UNTIL", "LEFT", "NODES", "OTHERS", "QUOTA"];
            let mut grid = Grid::new(header).optional(&["OTHERS", "LEFT", "UNTIL"]);
            for booking in items {
                let whose = if booking.maintenance { "(maintenance)".to_owned() } else { booking.tenant };
                let nodes = booking.place.unwrap_or_else(|| booking.nodes.len().to_string());
                grid.row(vec![
                    booking.name,
                    whose,
                    (if booking.open { "open" } else { "ahead" }).to_owned(),
                    booking.window_start.unwrap_or_default(),
                    booking.window_end.unwrap_or_default(),
                    booking.windows_left.to_string(),
                    nodes,
                    booking.others.to_owned(),
                    (if booking.above_quota.is_empty() { "-" } else { "above" }).to_owned(),
                ]);
            }
            console.list(&grid, "there are no bookings; `muster booking create` makes one")
        }
    }
}

async fn show(client: &Client, console: &Console, name: String) -> Result<(), Failure> {
    let answer = client.get_booking(v1::GetBookingRequest { name, ..Default::default() }).await?;
    let view = BookingView::from(answer.booking.unwrap_or_default());
    if console.is_structured() {
        return console.object(&Document::new("Booking", answer.freshness, view));
    }
    for (field, text) in shown(&view) {
        console.line(&format!("{field:<9} {text}"))?;
    }
    Ok(())
}

fn shown(view: &BookingView) -> Vec<(&'static str, String)> {
    let window = [&view.window_start, &view.window_end];
    let [from, until] = window.map(|moment| moment.clone().unwrap_or_default());
    let state = if view.open { "open" } else { "ahead" };
    let again = match (&view.rule, view.every_days) {
        (Some(RuleView { weekdays, time, zone }), _) => {
            format!(", {} left, {weekdays} at {time} in {zone}", view.windows_left)
        }
        (None, 0) => String::new(),
        (None, days) => format!(", {} left, every {days}d", view.windows_left),
    };
    let whose = match (view.shared, view.jobs.is_empty(), view.user.is_empty()) {
        _ if view.maintenance => "nobody: maintenance".to_owned(),
        (true, ..) => "every job of the tenant".to_owned(),
        (_, true, true) => "jobs of the tenant that name it".to_owned(),
        (_, false, _) => format!("jobs that name it, of these names: {}", view.jobs.join(", ")),
        (_, true, false) => format!("jobs of {} that name it", view.user),
    };
    let mut pairs = vec![
        ("name", view.name.clone()),
        ("tenant", if view.maintenance { "-".to_owned() } else { view.tenant.clone() }),
        ("open to", whose),
        ("window", format!("{from} to {until} ({state}{again})")),
        ("others", view.others.to_owned()),
        ("nodes", view.what(" ")),
    ];
    pairs.extend(view.notice.clone().map(|notice| ("notice", notice)));
    let texts = [("made by", &view.creator), ("reason", &view.reason), ("quota", &view.above_quota)];
    pairs.extend(
        texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.clone())),
    );
    pairs
}

/// Says what giving a booking up would change.
async fn would_delete(client: &Client, console: &Console, name: String) -> Result<(), Failure> {
    let answer = client.get_booking(v1::GetBookingRequest { name, ..Default::default() }).await?;
    let view = BookingView::from(answer.booking.unwrap_or_default());
    if console.is_structured() {
        return console.object(&Document::new("Booking", answer.freshness, DryRun::of(view)));
    }
    console.line(&given_up(&view))?;
    console.progress("nothing was deleted");
    Ok(())
}

fn given_up(view: &BookingView) -> String {
    let whose = if view.maintenance { "maintenance".to_owned() } else { format!("tenant {}", view.tenant) };
    let [from, until] =
        [&view.window_start, &view.window_end].map(|moment| moment.as_deref().unwrap_or("unknown"));
    let windows = match view.windows_left {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    format!(
        "booking {} of {whose} would be deleted: its window from {from} to {until}{windows}; {} would be open to \
         everybody, and what runs there would go on",
        view.name,
        view.what(" ")
    )
}

async fn delete(client: &Client, console: &Console, name: String) -> Result<(), Failure> {
    let request = v1::DeleteBookingRequest { request_id: String::new(), name: name.clone() };
    client.delete_booking(request).await?;
    console.progress(&format!("booking {name} is deleted; its nodes are open to everybody"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Options as a command line gives them.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CreateArgs,
    }

    #[test]
    fn a_local_time_goes_with_days_of_the_week_alone() {
        let usual = ["create", "day", "--tenant", "vision", "--hosts", "2", "--for", "8h", "--times", "20"];
        let checked = |more: &[&str]| {
            let line =
                Line::try_parse_from([&usual[..], more].concat()).map_err(|error| error.to_string())?;
            line.args.check().map_err(|failure| failure.headline().to_owned())?;
            Ok::<_, String>(line.args.rule().map(|rule| (rule.weekdays, rule.time, rule.zone)))
        };
        let rule = |zone: &str| Some(("mon-fri".to_owned(), "09:00".to_owned(), zone.to_owned()));
        assert_eq!(checked(&["--every", "mon-fri", "--at", "09:00"]), Ok(rule("UTC")));
        let zone = ["--every", "mon-fri", "--at", "09:00", "--zone", "Europe/Berlin"];
        assert_eq!(checked(&zone), Ok(rule("Europe/Berlin")));
        assert_eq!(checked(&["--every", "1d"]), Ok(None));
        for wrong in [&["--every", "mon-fri"][..], &["--every", "1d", "--at", "09:00"]] {
            let refused = checked(wrong).expect_err("one of them is missing or too much");
            assert!(refused.contains("--at"), "{refused}");
        }
        assert!(checked(&["--every", "mon-fri", "--zone", "UTC"]).is_err());
        assert!(checked(&["--at", "09:00"]).is_err());
    }

    #[test]
    fn a_booking_has_as_many_windows_as_there_may_be() {
        let is_taken = |times: &str| {
            let words =
                ["create", "day", "--tenant", "vision", "--hosts", "2", "--for", "8h", "--every", "1d"];
            Line::try_parse_from([&words[..], &["--times", times]].concat()).is_ok()
        };
        assert!(is_taken("1") && is_taken("366"));
        // Not cut to what a smaller number holds, which a refusal would then name.
        assert!(!is_taken("0") && !is_taken("367") && !is_taken("99999999"));
    }

    #[test]
    fn days_are_whole() {
        assert_eq!(days("7d"), Ok(7));
        for wrong in ["", "0d", "36h", "1h", "7"] {
            assert!(days(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn windows_come_again_after_days_or_on_days_of_the_week() {
        assert_eq!(every("2d"), Ok(Recurrence::Days(2)));
        assert_eq!(every("mon-fri").map(|every| matches!(every, Recurrence::Weekdays(_))), Ok(true));
        for wrong in ["", "36h", "monday", "mon-"] {
            assert!(every(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_a_booking_costs_is_said_by_what_it_does_to_others() {
        let job = Overrunning { job_id: "job-1".to_owned(), expected_end: None };
        let mut view = PlanView {
            nodes: vec!["h1".to_owned(), "h2".to_owned()],
            node_count: 2,
            met_bookings: Vec::new(),
            others: "finish",
            overrunning: vec![job],
            displaced_job_ids: vec!["job-2".to_owned()],
            truncated: false,
            knows_reservations: true,
        };
        assert_eq!(
            plan_lines(&view),
            [
                "nodes: h1 h2",
                "job-1 would run into the window: it is expected to end at unknown",
                "job-2 would lose the place that is kept for it",
            ]
        );
        (view.others, view.met_bookings) = ("stop", vec!["nightly".to_owned()]);
        let lines = plan_lines(&view);
        assert_eq!(lines[1], "booking nightly has some of them during a window");
        assert!(lines[2].starts_with("job-1 would be stopped at the start"), "{lines:?}");
        (view.nodes, view.node_count) = (Vec::new(), 40);
        assert_eq!(plan_lines(&view)[0], "nodes: 40 now, and those that join later");
    }

    #[test]
    fn a_dry_run_of_a_deletion_says_what_is_given_up() {
        let spec = v1::BookingSpec { tenant: "vision".to_owned(), ..Default::default() };
        let booking = v1::Booking {
            name: "demo".to_owned(),
            spec: Some(spec),
            window_start_time: Some(timestamp(1_700_000_000_000)),
            window_end_time: Some(timestamp(1_700_003_600_000)),
            windows_left: 3,
            nodes: vec!["h1".to_owned(), "h2".to_owned()],
            ..Default::default()
        };
        let text = given_up(&BookingView::from(booking));
        for part in ["demo of tenant vision", "2023-11-14T22:13:20", "and 2 more", "h1 h2 would be open"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn maintenance_says_where_and_stops_what_is_there() {
        let parsed = |more: &[&str]| {
            let usual = ["create", "upgrade", "--maintenance", "--for", "4h"];
            Line::try_parse_from([&usual[..], more].concat()).map(|line| line.args)
        };
        let region = parsed(&["--region", "eu-1"]).expect("it is whole");
        region.check().expect("it says where");
        let spec = region.spec();
        assert_eq!((spec.maintenance, spec.tenant.as_str()), (true, ""));
        assert_eq!(spec.clearing, number(BookingClearing::Stop));
        assert!(parsed(&[]).expect("words").check().is_err());
        for wrong in [&["--tenant", "lab"][..], &["--hosts", "2"], &["--shared"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
