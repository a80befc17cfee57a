//! `muster quota …`: more quota for some time.

use clap::{Args, Subcommand};
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid, Items, moment};
use muster_manifest::quantity;
use muster_types::RequestId;
use muster_types::policy::QUOTA_MILLI_MAX;
use muster_wire::closed::word;
use muster_wire::time::timestamp;
use muster_wire::v1;
use serde::Serialize;

use crate::job_files::now_ms;
use crate::reading::ReadArgs;

/// Commands about quota for some time.
#[derive(Subcommand)]
pub enum QuotaCommand {
    /// Ask for more quota for a tenant, or show what it would displace
    #[command(after_help = "\
Examples:
  muster quota request research h100:8 --until +14d --reason 'the deadline of the review'
  muster quota request research h100:8 --until 2026-12-11T18:00:00Z --reason 'the review' --dry-run
  muster quota request research h100:0.5 --region eu --until +2h --reason 'a demonstration'

The request changes nothing until an operator, or the administrator of a tenant above, approves it: `muster quota approve`. --dry-run
shows what is free, which tenants borrow devices that could be taken back then, and which of their jobs could be stopped.")]
    Request(RequestArgs),
    /// Approve a request: from now on it adds to the tenant's quota, until its end
    #[command(after_help = "\
Examples:
  muster quota list                              shows the numbers
  muster quota approve 4711 --reason 'agreed in the planning meeting'

An administrator of a tenant (a token of the role tenant-admin) approves for the tenants below it, and gives what its own tenant has.
What does not fit is refused with the numbers.")]
    Approve(AnswerArgs),
    /// Deny a request, or end a grant before its time
    #[command(after_help = "\
Examples:
  muster quota deny 4711 --reason 'the devices are promised to vision this month'")]
    Deny(AnswerArgs),
    /// Grant quota that nobody has asked for here
    #[command(after_help = "\
Examples:
  muster quota grant research h100:16 --until +30d --reason 'the new cluster is idle'
  muster quota grant research h100:16 --until +30d --reason 'the new cluster is idle' --dry-run")]
    Grant(RequestArgs),
    /// List requests that nobody has answered, and grants in force
    #[command(after_help = "\
Examples:
  muster quota list
  muster quota list --tenant research -o wide
  muster quota list -o json | jq '.items[] | select(.status == \"requested\")'

DISPLACES is what a request would take from those who borrow, were it approved now.")]
    List(ListArgs),
    /// List requests and grants, also those that are over: who answered, when and why
    #[command(after_help = "\
Examples:
  muster quota history --tenant research

Of each tenant the last 64 that are over are remembered. `muster audit` has all of them, from the log.")]
    History(ListArgs),
}

/// What is asked for or granted.
#[derive(Args)]
pub struct RequestArgs {
    /// The tenant
    tenant: String,
    /// The type of accelerator, and how many devices: `h100:8`, `h100:0.5`
    #[arg(value_name = "TYPE:DEVICES", value_parser = amount)]
    amount: Amount,
    /// Until when: a time like 2027-01-31T18:00:00Z, or +14d for two weeks from now
    #[arg(long, value_name = "TIME", value_parser = until)]
    until: u64,
    /// Why, on one line
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// The region [default: all regions together]
    #[arg(long, value_name = "REGION", default_value = "", hide_default_value = true)]
    region: String,
    /// Only check, and show what it would displace
    #[arg(long)]
    dry_run: bool,
    /// Name the request, so that repeating the command repeats the answer and not the effect
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
}

/// Which request, and why.
#[derive(Args)]
pub struct AnswerArgs {
    /// The number of the request or grant
    #[arg(value_parser = number_of_one)]
    id: u64,
    /// Why, on one line
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Name the request, so that repeating the command repeats the answer and not the effect
    #[arg(long, value_name = "UUID")]
    request_id: Option<RequestId>,
}

/// Which to list.
#[derive(Args)]
pub struct ListArgs {
    /// Only those of this tenant
    #[arg(long, value_name = "TENANT", default_value = "", hide_default_value = true)]
    tenant: String,
    #[command(flatten)]
    read: ReadArgs,
}

/// A type of accelerator, and thousandths of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Amount {
    kind: String,
    milli: u64,
}

fn amount(text: &str) -> Result<Amount, String> {
    let expected = || format!("must be a type and a number of devices like h100:8, got {text:?}");
    let (kind, number) = text.split_once(':').ok_or_else(expected)?;
    let milli = quantity::milli(number).map_err(|error| error.to_string())?;
    if kind.is_empty() || milli == 0 {
        return Err(expected());
    }
    if milli > QUOTA_MILLI_MAX {
        return Err(format!("must be at most {} devices, got {text:?}", devices(QUOTA_MILLI_MAX)));
    }
    Ok(Amount { kind: kind.to_owned(), milli })
}

fn number_of_one(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("must be the number of a request or grant, as `muster quota list` shows it, got {text:?}")
    })
}

fn until(text: &str) -> Result<u64, String> {
    quantity::time_ms(text, now_ms()).map_err(|error| error.to_string())
}

/// Carries out a command about quota.
pub async fn run(global: &Global, console: &Console, command: QuotaCommand) -> Result<Exit, Failure> {
    match command {
        QuotaCommand::Request(args) => request(global, console, args).await,
        QuotaCommand::Grant(args) => grant(global, console, args).await,
        QuotaCommand::Approve(args) => answer(global, console, args, true).await,
        QuotaCommand::Deny(args) => answer(global, console, args, false).await,
        QuotaCommand::List(args) => list(global, console, &args, false).await,
        QuotaCommand::History(args) => list(global, console, &args, true).await,
    }
}

fn named(request_id: Option<RequestId>) -> String {
    request_id.map(|id| id.to_string()).unwrap_or_default()
}

fn asked(args: RequestArgs) -> (String, v1::QuotaGrant, bool) {
    let grant = v1::QuotaGrant {
        tenant: args.tenant,
        r#type: args.amount.kind,
        region: args.region,
        amount_milli: args.amount.milli,
        end_time: Some(timestamp(args.until)),
        reason: args.reason,
        ..Default::default()
    };
    (named(args.request_id), grant, args.dry_run)
}

async fn request(global: &Global, console: &Console, args: RequestArgs) -> Result<Exit, Failure> {
    let (request_id, grant, validate_only) = asked(args);
    let request = v1::RequestQuotaRequest { request_id, grant: Some(grant.clone()), validate_only };
    let answer = global.client().await?.request_quota(request).await?;
    let grant = answer.grant.unwrap_or(grant);
    let done = match validate_only {
        true => {
            "it would be recorded; an operator, or an administrator of a tenant above, answers it".to_owned()
        }
        false => format!("request {} is recorded; `muster quota list` shows what becomes of it", grant.id),
    };
    tell(console, grant, answer.freshness, &done)
}

async fn grant(global: &Global, console: &Console, args: RequestArgs) -> Result<Exit, Failure> {
    let (request_id, grant, validate_only) = asked(args);
    let request = v1::GrantQuotaRequest { request_id, grant: Some(grant.clone()), validate_only };
    let answer = global.client().await?.grant_quota(request).await?;
    let grant = answer.grant.unwrap_or(grant);
    let done = match validate_only {
        true => "it could be granted".to_owned(),
        false => format!("grant {} is in force; `muster quota deny {} …` ends it early", grant.id, grant.id),
    };
    tell(console, grant, answer.freshness, &done)
}

async fn answer(
    global: &Global,
    console: &Console,
    args: AnswerArgs,
    approve: bool,
) -> Result<Exit, Failure> {
    let AnswerArgs { id, reason, request_id } = args;
    let request =
        v1::AnswerQuotaRequest { request_id: named(request_id), id, approve: Some(approve), reason };
    let answer = global.client().await?.answer_quota(request).await?;
    let grant = answer.grant.unwrap_or_else(|| v1::QuotaGrant { id, ..Default::default() });
    let done = format!("request {id} is {}", status(&grant));
    tell(console, grant, answer.freshness, &done)
}

fn status(grant: &v1::QuotaGrant) -> &'static str {
    word::<v1::QuotaGrantStatus>(grant.status)
}

/// Shows one request or grant: what it would displace to data, the rest to people.
fn tell(
    console: &Console,
    grant: v1::QuotaGrant,
    freshness: Option<v1::Freshness>,
    done: &str,
) -> Result<Exit, Failure> {
    if console.is_structured() {
        console.object(&Document::new("QuotaGrant", freshness, QuotaGrantView::of(grant)))?;
        return Ok(Exit::Ok);
    }
    if let Some(impact) = &grant.impact {
        for line in impact_lines(&grant, impact) {
            console.line(&line)?;
        }
    }
    console.progress(done);
    Ok(Exit::Ok)
}

/// What a grant would displace, for people.
fn impact_lines(grant: &v1::QuotaGrant, impact: &v1::QuotaImpact) -> Vec<String> {
    let place = if grant.region.is_empty() { "all regions" } else { &grant.region };
    let mut lines = vec![format!(
        "{} of {} {} devices in {place} are free; {} would be guaranteed to all tenants together",
        devices(impact.free_milli),
        devices(impact.capacity_milli),
        grant.r#type,
        devices(impact.guaranteed_milli)
    )];
    if impact.jobs == 0 {
        lines.push("no running job could be stopped for it".to_owned());
        return lines;
    }
    lines.push(format!(
        "{} would have to come from those who borrow; {} running jobs could be stopped for it",
        devices(impact.displaced_milli),
        impact.jobs
    ));
    for borrower in &impact.borrowers {
        let (held, jobs) = (devices(borrower.devices_milli), borrower.jobs);
        lines.push(format!("  {} borrows {held} in {jobs} jobs", borrower.tenant));
    }
    let shown = impact.job_ids.len() as u64;
    let more = if impact.jobs > shown { format!(" and {} more", impact.jobs - shown) } else { String::new() };
    lines.push(format!("  {}{more}", impact.job_ids.join(", ")));
    if impact.is_cut {
        lines.push("  not every job of the cluster was looked at".to_owned());
    }
    lines
}

fn devices(milli: u64) -> String {
    quantity::show_scaled(milli, 3)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaGrantView {
    #[serde(skip_serializing_if = "is_zero")]
    id: u64,
    tenant: String,
    r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    devices_milli: u64,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    created_by: String,
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    answered_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    answered_for_tenant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    answered: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    answer_reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impact: Option<QuotaImpactView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaImpactView {
    capacity_milli: u64,
    free_milli: u64,
    guaranteed_milli: u64,
    displaced_milli: u64,
    borrowers: Vec<BorrowerView>,
    jobs: u64,
    job_ids: Vec<String>,
    is_cut: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BorrowerView {
    tenant: String,
    devices_milli: u64,
    jobs: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl QuotaGrantView {
    fn of(grant: v1::QuotaGrant) -> QuotaGrantView {
        let status = status(&grant);
        let borrower = |borrower: v1::QuotaBorrower| BorrowerView {
            tenant: borrower.tenant,
            devices_milli: borrower.devices_milli,
            jobs: borrower.jobs,
        };
        let impact = grant.impact.map(|impact| QuotaImpactView {
            capacity_milli: impact.capacity_milli,
            free_milli: impact.free_milli,
            guaranteed_milli: impact.guaranteed_milli,
            displaced_milli: impact.displaced_milli,
            borrowers: impact.borrowers.into_iter().map(borrower).collect(),
            jobs: impact.jobs,
            job_ids: impact.job_ids,
            is_cut: impact.is_cut,
        });
        QuotaGrantView {
            id: grant.id,
            tenant: grant.tenant,
            r#type: grant.r#type,
            region: grant.region,
            devices_milli: grant.amount_milli,
            status,
            created: moment(grant.create_time),
            until: moment(grant.end_time),
            created_by: grant.created_by,
            reason: grant.reason,
            answered_by: grant.answered_by,
            answered_for_tenant: grant.answered_for_tenant,
            answered: moment(grant.answer_time),
            answer_reason: grant.answer_reason,
            over: moment(grant.over_time),
            end: Some(word::<v1::QuotaGrantEnd>(grant.end)).filter(|_| grant.end != 0),
            impact,
        }
    }
}

async fn list(
    global: &Global,
    console: &Console,
    args: &ListArgs,
    include_over: bool,
) -> Result<Exit, Failure> {
    let client = args.read.client(global).await?;
    let request = v1::ListQuotaGrantsRequest { read: None, tenant: args.tenant.clone(), include_over };
    let answer = client.list_quota_grants(request).await?;
    let items: Vec<QuotaGrantView> = answer.grants.into_iter().map(QuotaGrantView::of).collect();
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("QuotaGrantList", answer.freshness, Items { items }))?;
        }
        Format::Name => {
            let lines: String = items.iter().map(|item| format!("{}\n", item.id)).collect();
            console.bytes(lines.as_bytes())?;
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let grid = table(&items, include_over, console.is_wide());
            console
                .list(&grid, "there are no requests or grants of quota; `muster quota request` makes one")?;
        }
    }
    if answer.left_out > 0 {
        console.progress(&format!("{} earlier ones are left out; name a --tenant", answer.left_out));
    }
    args.read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

fn table(items: &[QuotaGrantView], is_history: bool, is_wide: bool) -> Grid {
    let mut header = vec!["ID", "TENANT", "TYPE", "DEVICES", "STATUS", "UNTIL"];
    header.push(if is_history { "ANSWERED-BY" } else { "DISPLACES" });
    header.push("REASON");
    if is_wide || is_history {
        header.push("ANSWER");
    }
    let mut grid = Grid::new(header).optional(&["ANSWERED-BY", "DISPLACES", "UNTIL"]);
    for item in items {
        let place = if item.region.is_empty() { String::new() } else { format!("@{}", item.region) };
        let status = match item.end {
            Some(end) => format!("{} ({})", item.status, end.replace('_', " ")),
            None => item.status.to_owned(),
        };
        let displaces = item.impact.as_ref().map_or_else(
            || "-".to_owned(),
            |impact| format!("{} of {} jobs", devices(impact.displaced_milli), impact.jobs),
        );
        let mut row = vec![
            item.id.to_string(),
            item.tenant.clone(),
            format!("{}{place}", item.r#type),
            devices(item.devices_milli),
            status,
            item.until.clone().unwrap_or_default(),
        ];
        row.push(if is_history { dash(&item.answered_by) } else { displaces });
        row.push(item.reason.clone());
        if is_wide || is_history {
            row.push(dash(&item.answer_reason));
        }
        grid.row(row);
    }
    grid
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_a_type_and_devices() {
        let of = |kind: &str, milli| Ok(Amount { kind: kind.to_owned(), milli });
        assert_eq!(amount("h100:8"), of("h100", 8_000));
        assert_eq!(amount("h100:0.5"), of("h100", 500));
        for wrong in
            ["", "h100", "h100:", ":8", "h100:0", "h100:-1", "h100:0.0001", "h100:99999999999999999999"]
        {
            assert!(amount(wrong).is_err(), "{wrong:?}");
        }
        let above = amount("h100:1000000001").expect_err("it is above the bound");
        assert!(above.starts_with("must be at most 1000000000 devices"), "{above}");
    }

    #[test]
    fn a_request_is_named_by_its_number() {
        assert_eq!(number_of_one("127"), Ok(127));
        for wrong in ["", "nosuch", "-1", "99999999999999999999"] {
            let refused = number_of_one(wrong).expect_err("it is no number of a request");
            assert!(refused.contains("muster quota list"), "{refused}");
        }
    }

    #[test]
    fn what_a_grant_displaces_is_told_in_devices() {
        let grant = v1::QuotaGrant { r#type: "h100".to_owned(), ..Default::default() };
        let borrower = v1::QuotaBorrower { tenant: "vision".to_owned(), devices_milli: 8_000, jobs: 2 };
        let impact = v1::QuotaImpact {
            capacity_milli: 64_000,
            free_milli: 500,
            guaranteed_milli: 60_000,
            displaced_milli: 7_500,
            borrowers: vec![borrower],
            job_ids: vec!["job-1".to_owned()],
            jobs: 2,
            is_cut: false,
        };
        let lines = impact_lines(&grant, &impact);
        assert_eq!(
            lines[0],
            "0.5 of 64 h100 devices in all regions are free; 60 would be guaranteed to all tenants together"
        );
        assert_eq!(lines[2], "  vision borrows 8 in 2 jobs");
        assert_eq!(lines[3], "  job-1 and 1 more");
        let none = impact_lines(&grant, &v1::QuotaImpact::default());
        assert_eq!(none[1], "no running job could be stopped for it");
    }
}
