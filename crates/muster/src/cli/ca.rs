//! `muster ca …`: the cluster's own authority.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use muster_transport::{Authority, AuthorityError, AuthorityReport, CertificateReport, Role, describe};
use muster_types::ClusterId;

use super::console::{Console, Grid};
use super::failure::{Exit, Failure};

/// Commands about certificates. They need no cluster, only the authority's folder.
#[derive(Subcommand)]
pub enum CaCommand {
    /// Make the authority of a cluster
    #[command(after_help = "\
Example:
  muster ca init ./authority --cluster-id 6d757374657200000000000000000001

The folder holds the authority's private key: keep it off the replicas, and keep a copy.")]
    Init(InitArgs),
    /// Issue a certificate: tls.crt, tls.key and ca.crt in a folder
    #[command(after_help = "\
Examples:
  muster ca issue ./authority replica 1 --out /etc/muster/tls
  muster ca issue ./authority agent gpu-a --out ./gpu-a
  muster ca issue ./authority client ada --out ~/.config/muster/tls
  muster ca issue ./authority client bob --tenant vision --out ./bob
  muster ca issue ./authority admin root --out ./root --days 7

A running process takes over files that were replaced (--force) by itself, within seconds.")]
    Issue(IssueArgs),
    /// Replace the authority in three steps, without an interruption
    #[command(after_help = "\
Steps:
  1. muster ca rotate ./authority prepare   a new authority, trusted beside the old one;
                                            copy bundle.crt to every process as its ca
  2. muster ca rotate ./authority switch    the new one issues;
                                            issue every process a new certificate (issue --force)
  3. muster ca rotate ./authority finish    the old one is dropped, its key deleted;
                                            copy bundle.crt to every process once more

Take the next step only when every process has what the last one asked for.")]
    Rotate(RotateArgs),
    /// Show an authority's folder, or any certificate: whom it names, and when it ends
    #[command(after_help = "\
Examples:
  muster ca show ./authority
  muster ca show /etc/muster/tls/tls.crt -o json")]
    Show {
        /// Folder of an authority, or a file
        path: PathBuf,
    },
}

#[derive(Args)]
pub struct InitArgs {
    /// Folder of the authority; made when it is not there
    dir: PathBuf,
    /// As in the replicas' configuration
    #[arg(long, value_name = "32 HEX DIGITS")]
    cluster_id: String,
    /// How long the authority lasts
    #[arg(long, default_value_t = 3_650)]
    days: u32,
}

/// Whom a certificate can be for.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A scheduler server, by its replica_id
    Replica,
    /// The agent of a node, by the node's name
    Agent,
    /// A user, who submits and reads
    Client,
    /// An operator, who may everything
    Admin,
}

#[derive(Args)]
pub struct IssueArgs {
    /// Folder of the authority
    dir: PathBuf,
    /// Whom it is for
    kind: Kind,
    /// Which one: a replica's number, a node's or a user's name
    name: String,
    /// Of a client: it submits, cancels and reads output only for this tenant and those below it
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Folder for tls.crt, tls.key and ca.crt
    #[arg(long)]
    out: PathBuf,
    /// How long it lasts
    #[arg(long, default_value_t = 90)]
    days: u32,
    /// Replace a certificate that is there
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    /// A new authority, trusted beside the old one
    Prepare,
    /// The new authority issues
    Switch,
    /// The old authority is dropped
    Finish,
}

#[derive(Args)]
pub struct RotateArgs {
    /// Folder of the authority
    dir: PathBuf,
    /// Which step
    step: Step,
    /// How long the new authority lasts
    #[arg(long, default_value_t = 3_650)]
    days: u32,
}

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Failure {
        let exit = match &error {
            AuthorityError::Exists { .. }
            | AuthorityError::AuthorityExists { .. }
            | AuthorityError::Step { .. } => Exit::Conflict,
            AuthorityError::Days { .. } => Exit::Usage,
            AuthorityError::NoAuthority { .. } => Exit::NotFound,
            AuthorityError::File { .. } | AuthorityError::Content { .. } | AuthorityError::Make { .. } => {
                Exit::Failed
            }
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        Failure::new(exit, error.to_string()).with_details(cause)
    }
}

pub fn run(console: &Console, command: CaCommand) -> Result<Exit, Failure> {
    match command {
        CaCommand::Init(args) => {
            let cluster: ClusterId = args.cluster_id.parse().map_err(|error| {
                Failure::usage(format!("--cluster-id: {error}, got {:?}", args.cluster_id))
            })?;
            report(console, &Authority::init(&args.dir, cluster, args.days)?.report()?)?;
        }
        CaCommand::Issue(args) => issue(console, &args)?,
        CaCommand::Rotate(args) => {
            let mut authority = Authority::open(&args.dir)?;
            match args.step {
                Step::Prepare => authority.prepare(args.days)?,
                Step::Switch => authority.switch()?,
                Step::Finish => authority.finish()?,
            }
            report(console, &authority.report()?)?;
        }
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

fn issue(console: &Console, args: &IssueArgs) -> Result<(), Failure> {
    let kind = match args.kind {
        Kind::Replica => "replica",
        Kind::Agent => "agent",
        Kind::Client => "client",
        Kind::Admin => "admin",
    };
    let role = match (&args.tenant, args.kind) {
        (None, _) => Role::parse(kind, &args.name),
        (Some(tenant), Kind::Client) => Role::parse("tenant", &format!("{tenant}/{}", args.name)),
        (Some(_), _) => {
            return Err(Failure::usage(format!(
                "--tenant goes with a client, not with a certificate of kind {kind}"
            )));
        }
    };
    let role = role.map_err(|error| Failure::usage(error.to_string()))?;
    let issued = Authority::open(&args.dir)?.issue(role, args.days, &args.out, args.force)?;
    let certificate = describe(&issued.cert)?;
    if console.is_structured() {
        return console.object(&certificate);
    }
    console.line(&format!("{} for {} days:", issued.name, args.days))?;
    console.line(&format!("[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}", issued.ca, issued.cert, issued.key))
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
    let mut grid = Grid::new(vec!["NAME", "ISSUES", "DAYS-LEFT", "FILE"]);
    for certificate in certificates {
        grid.row(vec![
            certificate.name.clone(),
            if certificate.issues { "yes" } else { "no" }.to_owned(),
            certificate.days_left.to_string(),
            certificate.path.display().to_string(),
        ]);
    }
    console.table(&grid)
}
