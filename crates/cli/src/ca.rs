//! `muster ca …`: the cluster's own authority.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use muster_console::{Console, Document, Exit, Failure, Global, Grid, moment};
use muster_transport::{
    Authority, AuthorityReport, CertificateReport, Host, PeerName, PermittedHosts, Role, describe,
};
use muster_types::ClusterId;
use muster_wire::admin;
use muster_wire::time::timestamp;
use serde::Serialize;

use crate::consent::DryRun;

/// Commands about certificates. Most need no cluster, only the authority's directory.
#[derive(Subcommand)]
pub enum CaCommand {
    /// Make the authority of a cluster
    #[command(after_help = "\
Example:
  muster ca init ./authority --cluster-id 6d757374657200000000000000000001
  muster ca init ./authority --cluster-id … --host muster.example.org --host 10.0.0.0/24

With --host certificates of replicas may name hosts, so that a browser accepts them (see the guide to the web pages).
The authority is good for those hosts alone: a browser that trusts it takes no other site from who has its key.
The directory holds the authority's private key: keep it off the replicas, and keep a copy.")]
    Init(InitArgs),
    /// Issue a certificate: tls.crt, tls.key and ca.crt in a directory
    #[command(after_help = "\
Examples:
  muster ca issue ./authority replica 1 --out /etc/muster/tls
  muster ca issue ./authority replica 1 --host r1.muster.example.org --host 10.0.0.5 --out /etc/muster/tls
  muster ca issue ./authority agent gpu-a --out ./gpu-a
  muster ca issue ./authority agent-group slurm-a --out ./slurm-a
  muster ca issue ./authority client ada --tenant vision --out ~/.config/muster/tls
  muster ca issue ./authority client dashboard --read-only --out ./dashboard
  muster ca issue ./authority client gateway --all-tenants --out ./gateway
  muster ca issue ./authority admin root --out ./root --days 7

A running process takes over files that were replaced (--force) by itself, within seconds.")]
    Issue(IssueArgs),
    /// Replace the authority in three steps, without an interruption
    #[command(after_help = "\
Steps:
  1. muster ca rotate ./authority prepare   a new authority, trusted as well as the old one;
                                            copy bundle.crt to every process as its ca
  2. muster ca rotate ./authority switch    the new one issues;
                                            issue every process a new certificate (issue --force)
  3. muster ca rotate ./authority finish    the old one is dropped, its key deleted;
                                            copy bundle.crt to every process once more

Take the next step only when every process has what the last one asked for.")]
    Rotate(RotateArgs),
    /// Make certificates invalid before they end, at every replica; needs the cluster
    #[command(after_help = "\
Examples:
  muster ca revoke ./gpu-a/tls.crt                                     a certificate that is at hand
  muster ca revoke --serial 0a4f…                                      by its number, as `muster ca show` prints it
  muster ca revoke --authority ./authority --name agent/gpu-a          all that were issued to a name

Connections with it end within seconds, and no others are made. Issue another one for each holder that is to go on;
agents and clients that hold a revoked replica's certificate for good are told by `muster ca rotate` alone.")]
    Revoke(RevokeArgs),
    /// List certificates that are revoked and have not ended; needs the cluster
    #[command(after_help = "\
Examples:
  muster ca revoked")]
    Revoked,
    /// Show an authority's directory, or any certificate: whom it names, and when it ends
    #[command(after_help = "\
Examples:
  muster ca show ./authority
  muster ca show /etc/muster/tls/tls.crt -o json")]
    Show {
        /// Directory of an authority, or a file
        path: PathBuf,
    },
}

#[derive(Args)]
pub struct InitArgs {
    /// Directory of the authority; made when it is not there
    dir: PathBuf,
    /// As in the replicas' configuration
    #[arg(long, value_name = "32 HEX DIGITS")]
    cluster_id: String,
    /// Hosts that certificates of replicas may name: a DNS name with all below it, an address or a network; repeatable
    #[arg(long = "host", value_name = "NAME|ADDRESS[/BITS]")]
    hosts: Vec<PermittedHosts>,
    /// How long the authority lasts
    #[arg(long, default_value_t = 3_650)]
    days: u32,
}

/// Whom a certificate can be for.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A scheduler server, by its replica_id
    Replica,
    /// The agent of one node, by the node's name
    Agent,
    /// The agent of a Slurm cluster: it speaks for every node NAME.<node>
    AgentGroup,
    /// A user or a program of one: of a tenant, of all of them, or for looking alone
    Client,
    /// An operator, who has all permissions
    Admin,
}

#[derive(Args)]
pub struct IssueArgs {
    /// Directory of the authority
    dir: PathBuf,
    /// Whom it is for
    kind: Kind,
    /// Which one: a replica's number, a node's or a user's name
    name: String,
    /// Of a client: it submits, cancels and reads output only for this tenant and those below it
    #[arg(long, value_name = "TENANT", conflicts_with_all = ["all_tenants", "read_only"])]
    tenant: Option<String>,
    /// Of a client: it submits, cancels and reads output for every tenant, and sees every job's environment
    #[arg(long, conflicts_with = "read_only")]
    all_tenants: bool,
    /// Of a client: it sees what jobs, nodes and queues there are, and changes nothing
    #[arg(long)]
    read_only: bool,
    /// Of a replica: a DNS name or an address by which browsers open its pages; repeatable
    #[arg(long = "host", value_name = "NAME|ADDRESS")]
    hosts: Vec<Host>,
    /// Directory for tls.crt, tls.key and ca.crt
    #[arg(long)]
    out: PathBuf,
    /// How long it lasts
    #[arg(long, default_value_t = 90)]
    days: u32,
    /// Replace a certificate that is there
    #[arg(long)]
    force: bool,
    /// Say what would be written and replaced, and issue nothing. The authority is opened as for every command, which
    /// completes a step of a rotation that was interrupted
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct RevokeArgs {
    /// The certificate's file
    #[arg(value_name = "FILE", conflicts_with_all = ["serial", "name"])]
    file: Option<PathBuf>,
    /// Its serial number
    #[arg(long, value_name = "HEX DIGITS", conflicts_with = "name")]
    serial: Option<String>,
    /// Everything that was issued to this name: agent/gpu-a, tenant/vision/bob
    #[arg(long, value_name = "KIND/NAME", requires = "authority")]
    name: Option<String>,
    /// Directory of the authority, which knows what it has issued
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    /// A new authority, trusted as well as the old one
    Prepare,
    /// The new authority issues
    Switch,
    /// The old authority is dropped
    Finish,
}

#[derive(Args)]
pub struct RotateArgs {
    /// Directory of the authority
    dir: PathBuf,
    /// Which step
    step: Step,
    /// Of the new authority: hosts that certificates of replicas may name, next to those of the present one; repeatable
    #[arg(long = "host", value_name = "NAME|ADDRESS[/BITS]")]
    hosts: Vec<PermittedHosts>,
    /// How long the new authority lasts
    #[arg(long, default_value_t = 3_650)]
    days: u32,
    /// Say what the step would change, and take none. The authority is opened as for every command, which completes a
    /// step that was interrupted
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(global: &Global, console: &Console, command: CaCommand) -> Result<Exit, Failure> {
    match command {
        CaCommand::Init(args) => {
            let cluster: ClusterId = args.cluster_id.parse().map_err(|error| {
                Failure::usage(format!("--cluster-id: {error}, got {:?}", args.cluster_id))
            })?;
            report(console, &Authority::init_for(&args.dir, cluster, args.days, &args.hosts)?.report()?)?;
        }
        CaCommand::Issue(args) => issue(console, &args)?,
        CaCommand::Rotate(args) => {
            let mut authority = Authority::open(&args.dir)?;
            match args.step {
                Step::Switch | Step::Finish if !args.hosts.is_empty() => {
                    return Err(Failure::usage("--host goes with the step prepare"));
                }
                _ if args.dry_run => {
                    would_rotate(console, &authority, &args)?;
                    return Ok(Exit::Ok);
                }
                Step::Prepare => authority.prepare_for(args.days, &args.hosts)?,
                Step::Switch => authority.switch()?,
                Step::Finish => authority.finish()?,
            }
            report(console, &authority.report()?)?;
        }
        CaCommand::Revoke(args) => revoke(global, console, &args).await?,
        CaCommand::Revoked => revoked(global, console).await?,
        CaCommand::Show { path } if path.is_dir() => report(console, &Authority::open(&path)?.report()?)?,
        CaCommand::Show { path } => {
            let certificate = describe(&path)?;
            if console.is_structured() {
                console.object(&certificate)?;
            } else {
                table(console, &[certificate])?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Says what a step of a rotation would change.
fn would_rotate(console: &Console, authority: &Authority, args: &RotateArgs) -> Result<(), Failure> {
    let effect = match args.step {
        Step::Prepare => {
            let next = authority.would_prepare(args.days)?;
            format!("authority {next} would be made, and trusted as well as the present one")
        }
        Step::Switch => {
            let next = authority.would_switch()?;
            format!("authority {next} would issue; the old one would stay trusted")
        }
        Step::Finish => {
            let (old, new) = authority.would_finish()?;
            format!(
                "authority {old} would be dropped and its key deleted: where the bundle is, only certificates of \
                 authority {new} would be accepted"
            )
        }
    };
    if console.is_structured() {
        return console.object(&DryRun::of(authority.report()?));
    }
    console.line(&effect)?;
    console.progress("nothing was changed");
    Ok(())
}

/// The certificate that `muster ca issue --dry-run` was asked about.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WouldIssue {
    name: String,
    cert: PathBuf,
    replaced: bool,
}

fn issue(console: &Console, args: &IssueArgs) -> Result<(), Failure> {
    let kind = match args.kind {
        Kind::Replica => "replica",
        Kind::Agent => "agent",
        Kind::AgentGroup => "agent-group",
        Kind::Client => "client",
        Kind::Admin => "admin",
    };
    let role = match (args.kind, &args.tenant, args.all_tenants, args.read_only) {
        (Kind::Client, Some(tenant), ..) => Role::parse("tenant", &format!("{tenant}/{}", args.name)),
        (Kind::Client, None, true, _) => Role::parse("all-tenants", &args.name),
        (Kind::Client, None, false, true) => Role::parse("client", &args.name),
        (Kind::Client, None, false, false) => {
            return Err(Failure::usage(
                "say what the client may do: --tenant TENANT for one tenant and those below it, --all-tenants, or \
                 --read-only",
            ));
        }
        (_, None, false, false) => Role::parse(kind, &args.name),
        _ => {
            return Err(Failure::usage(format!(
                "--tenant, --all-tenants and --read-only go with a client, not with a certificate of kind {kind}"
            )));
        }
    };
    let role = role.map_err(|error| Failure::usage(error.to_string()))?;
    let authority = Authority::open(&args.dir)?;
    if args.dry_run {
        let would = authority.would_issue(role, args.days, &args.out, args.force, &args.hosts)?;
        let replaced = would.cert.exists() || would.key.exists();
        if console.is_structured() {
            let (name, cert) = (would.name.to_string(), would.cert);
            return console.object(&DryRun::of(WouldIssue { name, cert, replaced }));
        }
        let becomes = if replaced { "replaced" } else { "written" };
        console.line(&format!(
            "{} and its key would be {becomes}: {} for {} days",
            would.cert.display(),
            would.name,
            args.days
        ))?;
        console.progress("nothing was issued");
        return Ok(());
    }
    let issued = authority.issue_for(role, args.days, &args.out, args.force, &args.hosts)?;
    let certificate = describe(&issued.cert)?;
    if console.is_structured() {
        return console.object(&certificate);
    }
    console.line(&format!("{} for {} days:", issued.name, args.days))?;
    console.line(&format!("[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}", issued.ca, issued.cert, issued.key))
}

/// How long a revoked certificate is remembered of which only the number is known: as long as any lasts.
const REMEMBERED_S: i64 = 825 * 24 * 3_600;

fn unix_now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn certificate(serial: String, holder: String, not_after_s: i64) -> admin::RevokedCertificate {
    let not_after_ms = u64::try_from(not_after_s.saturating_mul(1_000)).unwrap_or(0);
    admin::RevokedCertificate { serial, holder, expire_time: Some(timestamp(not_after_ms)) }
}

/// The name without its cluster, as people say it.
fn holder(name: &str) -> String {
    name.parse::<PeerName>().map_or_else(|_| name.to_owned(), |name| name.role.to_string())
}

async fn revoke(global: &Global, console: &Console, args: &RevokeArgs) -> Result<(), Failure> {
    let certificates = match (&args.file, &args.serial, &args.name, &args.authority) {
        (Some(path), ..) => {
            let report = describe(path)?;
            vec![certificate(report.serial, holder(&report.name), report.not_after_s)]
        }
        (None, Some(serial), ..) => {
            vec![certificate(serial.clone(), String::new(), unix_now() + REMEMBERED_S)]
        }
        (None, None, Some(name), Some(dir)) => {
            let (kind, which) = name.split_once('/').unwrap_or((name, ""));
            let role = Role::parse(kind, which).map_err(|error| Failure::usage(error.to_string()))?;
            let authority = Authority::open(dir)?;
            let lines = authority.issued_to(PeerName { cluster: authority.cluster(), role })?;
            if lines.is_empty() {
                let text = format!("{} has issued nothing to {name} that has not ended", dir.display());
                return Err(Failure::new(Exit::NotFound, text));
            }
            lines
                .into_iter()
                .map(|line| certificate(line.serial, holder(&line.name), line.not_after_s))
                .collect()
        }
        _ => return Err(Failure::usage("say which: a file, --serial, or --name with --authority")),
    };
    if args.dry_run {
        console.progress("nothing was revoked; these would be");
        return print_revoked(console, certificates, true);
    }
    let client = global.client().await?;
    for certificate in &certificates {
        let request = admin::RevokeCertificateRequest {
            request_id: String::new(),
            certificate: Some(certificate.clone()),
        };
        client.revoke_certificate(request).await?;
    }
    print_revoked(console, certificates, false)
}

async fn revoked(global: &Global, console: &Console) -> Result<(), Failure> {
    let answer = global.client().await?.list_revoked_certificates().await?;
    print_revoked(console, answer.certificates, false)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RevokedView {
    serial: String,
    holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
}

/// `dry_run` is there where nothing of it was done.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RevokedList {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    items: Vec<RevokedView>,
}

fn print_revoked(
    console: &Console,
    certificates: Vec<admin::RevokedCertificate>,
    dry_run: bool,
) -> Result<(), Failure> {
    let rows: Vec<RevokedView> = certificates
        .into_iter()
        .map(|row| RevokedView { serial: row.serial, holder: row.holder, not_after: moment(row.expire_time) })
        .collect();
    if console.is_structured() {
        return console.object(&Document::new(
            "RevokedCertificateList",
            None::<u64>,
            RevokedList { dry_run, items: rows },
        ));
    }
    let mut grid = Grid::new(vec!["SERIAL", "HOLDER", "ENDS"]);
    for row in rows {
        grid.row(vec![row.serial, row.holder, row.not_after.unwrap_or_default()]);
    }
    console.table(&grid)
}

fn report(console: &Console, report: &AuthorityReport) -> Result<(), Failure> {
    if console.is_structured() {
        return console.object(report);
    }
    console.line(&format!(
        "authority of cluster {}; bundle: {}",
        report.cluster_id,
        report.bundle.display()
    ))?;
    table(console, &report.authorities)?;
    console.line(&format!("next: {}", report.next))
}

fn table(console: &Console, certificates: &[CertificateReport]) -> Result<(), Failure> {
    let mut grid = Grid::new(vec!["NAME", "ISSUES", "DAYS-LEFT", "SERIAL", "FILE"]);
    for certificate in certificates {
        grid.row(vec![
            certificate.name.clone(),
            if certificate.issues { "yes" } else { "no" }.to_owned(),
            certificate.days_left.to_string(),
            certificate.serial.clone(),
            certificate.path.display().to_string(),
        ]);
    }
    console.table(&grid)
}
