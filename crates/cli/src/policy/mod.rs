//! `muster policy …`.

mod display;

use clap::Subcommand;
use muster_client::{CallError, Client};
use muster_console::{Console, Exit, Failure, Format, Global};
use muster_manifest::{PolicyFile, Problem, parse_policy, parse_policy_parts, policy_file};
use muster_types::{RequestId, Violation};
use muster_wire::{FieldMask, v1};
use serde::Serialize;

use self::display::{settings, tables};
use crate::job_files::{self, called, located, now_ms};
use crate::reading::ReadArgs;

/// Commands about the policy.
#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Show the policy in force
    #[command(after_help = "\
Examples:
  muster policy show
  muster policy show -o yaml > policy.yaml     a file that `muster policy set` takes back

The file carries the version it was made from: set refuses it when somebody else was faster.")]
    Show {
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Check a policy file without asking a cluster
    #[command(after_help = "Examples:\n  muster policy check ops/examples/policy.yaml")]
    Check {
        /// Policy file (YAML), or - for stdin
        file: String,
    },
    /// Set the policy: all of it, or with --only parts of it
    #[command(after_help = "\
Examples:
  muster policy set policy.yaml --dry-run
  muster policy set policy.yaml --expect-version 812
  muster policy set prices.yaml --only prices
  muster policy set vision.yaml --only tenants.vision,datasets.images

What the file leaves out has its default. With --only, the other parts stay as they are in force at that moment,
whatever the file says of them and whichever version it was made from; an entry of tenants, datasets or
spareHostsPerRack that is named and not in the file is removed.

The new version, a log index, goes to stdout. In force for every decision behind it. What the policy would mean on
this fleet and for the jobs that wait goes to stderr as warnings, before it is set: types that no node has, more guaranteed
than there is, tenants that can use nothing, tenants and tiers that it would starve. With -o json or -o yaml all of it goes
to stdout, once the policy is set. A warning keeps no policy from being set; with --dry-run nothing is.

`muster whatif --from TIME --to TIME --policy FILE` replays what happened under the file before it is set, and warns of each
tenant and tier whose jobs it would starve. A trace does as well: `muster sim queue --policy FILE`.")]
    Set {
        /// Policy file (YAML), or - for stdin
        file: String,
        /// Only these parts, such as prices or tenants.NAME
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        only: Vec<String>,
        /// Refuse unless this is the version in force; instead of the file's metadata.version
        #[arg(long, value_name = "N")]
        expect_version: Option<u64>,
        /// A UUID for this change; made up when there is none
        #[arg(long, value_name = "UUID")]
        request_id: Option<RequestId>,
        /// Only let the cluster check it: nothing is set
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn run(global: &Global, console: &Console, command: PolicyCommand) -> Result<Exit, Failure> {
    match command {
        PolicyCommand::Show { read } => show(global, console, &read).await,
        PolicyCommand::Check { file } => {
            read_policy(&file)?;
            console.progress(&format!("{} is valid", called(&file)));
            Ok(Exit::Ok)
        }
        PolicyCommand::Set { file, only, expect_version, request_id, dry_run } => {
            let policy = if only.is_empty() { read_policy(&file)? } else { policy_parts(&file)? };
            let request_id = request_id.map(|id| id.to_string()).unwrap_or_default();
            let change = Change { file, policy, only, expect_version, request_id, dry_run };
            set(global, console, &change).await
        }
    }
}

/// What `muster policy set` was told.
struct Change {
    file: String,
    policy: PolicyFile,
    /// Parts of the policy; empty for all of it.
    only: Vec<String>,
    expect_version: Option<u64>,
    request_id: String,
    dry_run: bool,
}

impl Change {
    /// Sets it, or lets the cluster check it alone.
    async fn send(&self, client: &Client, validate_only: bool) -> Result<v1::SetPolicyResponse, CallError> {
        let (request_id, policy) = (self.request_id.clone(), Some(self.policy.message.clone()));
        if self.only.is_empty() {
            let expected_version = self.expect_version.or(self.policy.version);
            let request = v1::SetPolicyRequest { request_id, policy, expected_version, validate_only };
            return client.set_policy(request).await;
        }
        // Parts are named as in the file; the message has two names that differ.
        let path = |part: &String| {
            let part = part.replacen("spareHostsPerRack", "spare_hosts_per_rack", 1);
            part.replacen("interruptionRates", "interruption_rates", 1)
        };
        let request = v1::UpdatePolicyRequest {
            request_id,
            policy,
            update_mask: Some(FieldMask { paths: self.only.iter().map(path).collect() }),
            expected_version: self.expect_version,
            validate_only,
        };
        let v1::UpdatePolicyResponse { version, freshness, warnings, warnings_left_out } =
            client.update_policy(request).await?;
        Ok(v1::SetPolicyResponse { version, freshness, warnings, warnings_left_out })
    }

    /// What was set, for a sentence.
    fn subject(&self) -> String {
        match self.only.as_slice() {
            [] => format!("the policy of {}", called(&self.file)),
            parts => format!("{} of {}", parts.join(", "), called(&self.file)),
        }
    }
}

async fn show(global: &Global, console: &Console, read: &ReadArgs) -> Result<Exit, Failure> {
    let answer = read.client(global).await?.get_policy(v1::GetPolicyRequest::default()).await?;
    match console.format {
        Format::Json | Format::Yaml => console.object(&policy_file(&answer))?,
        Format::Name => console.line(&answer.version.to_string())?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let file = policy_file(&answer);
            let pairs = settings(&file);
            let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, value) in pairs {
                console.line(&format!("{name:width$}  {value}"))?;
            }
            for table in tables(&file) {
                console.line("")?;
                console.table(&table)?;
            }
        }
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

async fn set(global: &Global, console: &Console, change: &Change) -> Result<Exit, Failure> {
    let Change { file, policy, dry_run, .. } = change;
    let client = global.client().await?;
    // People are told what it would starve before it is set. What is refused here is refused below as well, with its reason, unless it
    // was made already and is asked for again: then it is answered below.
    let told = if *dry_run || console.is_structured() {
        Vec::new()
    } else {
        match change.send(&client, true).await {
            Ok(checked) => warnings(policy, &checked),
            Err(CallError::Refused { .. }) => Vec::new(),
            Err(error) => return Err(Failure::from(error)),
        }
    };
    tell(console, file, &told);
    let answer = match change.send(&client, *dry_run).await {
        Ok(answer) => answer,
        Err(CallError::Refused { refused, .. }) => {
            let explain = |violation| located(file, &policy.explain(violation));
            return Err(Failure::refused_with(&refused, refused.violations.iter().map(explain).collect()));
        }
        Err(error) => return Err(Failure::from(error)),
    };
    let warnings = warnings(policy, &answer);
    if console.is_structured() {
        return shown(console, &answer, *dry_run, warnings);
    }
    tell(console, file, &untold(warnings, &told));
    if answer.warnings_left_out > 0 {
        console.error(&format!("warning: and {} more", answer.warnings_left_out));
    }
    if *dry_run {
        let version = answer.version;
        console.progress(&format!(
            "{} can be set; nothing was, version {version} is in force",
            change.subject()
        ));
        return Ok(Exit::Ok);
    }
    console.line(&answer.version.to_string())?;
    let are = if change.only.len() > 1 { "are" } else { "is" };
    console.progress(&format!("{} {are} in force from log index {} on", change.subject(), answer.version));
    Ok(Exit::Ok)
}

/// Says each on a line of standard error.
fn tell(console: &Console, file: &str, warnings: &[Warning]) {
    for warning in warnings {
        let problem = Problem {
            line: warning.line,
            field: warning.field.clone(),
            description: format!("{} ({})", warning.message, warning.code),
        };
        console.error(&format!("warning: {}", located(file, &problem)));
    }
}

/// Those that were not told before the policy was set.
fn untold(warnings: Vec<Warning>, told: &[Warning]) -> Vec<Warning> {
    warnings.into_iter().filter(|warning| !told.contains(warning)).collect()
}

/// One thing that an operator should know of a policy, in the words of its file.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Warning {
    code: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    message: String,
}

/// What became of a policy, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetAnswer {
    version: u64,
    dry_run: bool,
    warnings: Vec<Warning>,
    warnings_left_out: u32,
}

fn warnings(policy: &PolicyFile, answer: &v1::SetPolicyResponse) -> Vec<Warning> {
    let warning = |warning: &v1::PolicyWarning| {
        let (code, message) = (warning.code.clone(), warning.message.clone());
        if warning.field.is_empty() {
            return Warning { code, field: String::new(), line: None, message };
        }
        let place = policy.explain(&Violation::new(&warning.field, ""));
        Warning { code, field: place.field, line: place.line, message }
    };
    answer.warnings.iter().map(warning).collect()
}

fn shown(
    console: &Console,
    answer: &v1::SetPolicyResponse,
    dry_run: bool,
    warnings: Vec<Warning>,
) -> Result<Exit, Failure> {
    let (version, warnings_left_out) = (answer.version, answer.warnings_left_out);
    console.object(&SetAnswer { version, dry_run, warnings, warnings_left_out })?;
    Ok(Exit::Ok)
}

/// The policy of a file, checked as the server would.
fn read_policy(file: &str) -> Result<PolicyFile, Failure> {
    let policy = parse_policy(&job_files::read(file)?, now_ms()).map_err(|error| wrong(file, &error.0))?;
    policy.check().map_err(|error| wrong(file, &error.0))?;
    Ok(policy)
}

/// The policy of a file, each setting checked by itself: parts of it may refer to what only the cluster has.
fn policy_parts(file: &str) -> Result<PolicyFile, Failure> {
    parse_policy_parts(&job_files::read(file)?, now_ms()).map_err(|error| wrong(file, &error.0))
}

fn wrong(file: &str, problems: &[Problem]) -> Failure {
    Failure::usage("the policy file is not valid")
        .with_details(problems.iter().map(|problem| located(file, problem)))
        .with_next("correct the file; `muster policy check FILE` checks it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_was_told_before_the_policy_was_set_is_not_told_again() {
        let warning = |code: &str, message: &str| Warning {
            code: code.to_owned(),
            field: "tenants.vision".to_owned(),
            line: Some(3),
            message: message.to_owned(),
        };
        let told = [warning("TENANT_STARVED", "3 wait"), warning("TIER_STARVED", "1 waits")];
        let answered = vec![warning("TENANT_STARVED", "4 wait"), warning("TIER_STARVED", "1 waits")];
        assert_eq!(untold(answered, &told), [warning("TENANT_STARVED", "4 wait")], "it has changed");
        assert_eq!(untold(vec![warning("TIER_STARVED", "1 waits")], &told), []);
    }
}
