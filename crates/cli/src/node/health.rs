//! `muster node drain`, `quarantine`, `repair`, `health` and their opposites.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid};
use muster_manifest::duration_ms;
use muster_types::health::{HealthAction, XidRule};
use muster_wire::closed::{ClosedSet, number_or_zero, of_word, word, words};
use muster_wire::time::{duration, span_ms};
use muster_wire::v1;
use serde::Serialize;

use super::Changed;
use super::which::WhichNodes;
use crate::complete;
use crate::consent::{self, Consent};
use crate::reading::ReadArgs;
use crate::view;

/// Commands about what keeps work away from nodes.
#[derive(Subcommand)]
pub enum HealthCommand {
    /// Empty nodes: work moves elsewhere, and what is still there at the deadline is stopped
    #[command(after_help = "\
Examples:
  muster node drain host-17 --deadline 30m --reason \"a fan is replaced\"
  muster node drain host-17                   as long as it takes
  muster node drain --region eu-north --deadline 30m --dry-run
  muster node drain -l rack=r7 --deadline 30m

Gangs that have saved their work move as soon as there is capacity; the others end by themselves or at the deadline.
A node is empty when its status is `drained`.")]
    Drain {
        #[command(flatten)]
        which: WhichNodes,
        /// When what is still there is stopped: 90s, 30m, 12h [default: never]
        #[arg(long, value_name = "DURATION", value_parser = span)]
        deadline: Option<u64>,
        /// Why, in one sentence: shown with the nodes, and to those whose jobs wait for them
        #[arg(long, value_name = "TEXT", value_parser = super::reason_text)]
        reason: Option<String>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Put drained nodes back
    #[command(after_help = "\
Examples:
  muster node undrain host-17
  muster node undrain -l pool=research")]
    Undrain(WhichNodes),
    /// Keep nodes away from new work; what runs on them goes on
    #[command(
        after_help = "Examples:\n  muster node quarantine host-17 --reason \"jobs fail here and nowhere else\""
    )]
    Quarantine {
        /// Their names or ids
        #[arg(required = true, add = ArgValueCompleter::new(complete::nodes))]
        nodes: Vec<String>,
        /// One sentence
        #[arg(long)]
        reason: String,
    },
    /// Let nodes back that were in quarantine
    #[command(after_help = "\
Examples:
  muster node release host-17 host-18")]
    Release {
        /// Their names or ids
        #[arg(required = true, add = ArgValueCompleter::new(complete::nodes))]
        nodes: Vec<String>,
    },
    /// Repair a node: empty it, have its agent do the work, put it back
    #[command(after_help = "\
Examples:
  muster node repair host-17
  muster node repair host-17 --action reset-gpu --device 3
  muster node repair host-17 --done
  muster node repair host-17 --failed \"no spare\"

The agent runs `health.repair_command` of its configuration once the node is empty; without one a person does the
work and says --done. With --done everything known against the node is over, but for what its agent still sees.")]
    Repair(RepairArgs),
    /// Show what is known of a node's health
    #[command(after_help = "\
Examples:
  muster node health host-17")]
    Health {
        /// Its name or id
        #[arg(add = ArgValueCompleter::new(complete::nodes))]
        node: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show or set what is made of XIDs and other findings
    #[command(subcommand)]
    HealthPolicy(PolicyCommand),
}

/// Options of `muster node repair`.
#[derive(Args)]
pub struct RepairArgs {
    /// Its name or id
    node: String,
    /// What is to be done [default: what the gravest of its conditions asks for]
    #[arg(long, value_parser = repair_action)]
    action: Option<HealthAction>,
    /// A device concerned, by its number; may be repeated [default: those that are not to be used]
    #[arg(long, value_name = "N")]
    device: Vec<u32>,
    /// When what is still there is stopped [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    deadline: Option<u64>,
    /// It is repaired
    #[arg(long, conflicts_with_all = ["failed", "action", "device", "deadline"])]
    done: bool,
    /// It could not be repaired, with a sentence
    #[arg(long, value_name = "WHY", conflicts_with_all = ["action", "device", "deadline"])]
    failed: Option<String>,
}

/// Commands about the health policy.
#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Show the policy in force
    #[command(after_help = "\
Examples:
  muster node health-policy show")]
    Show {
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Change lines of it
    #[command(after_help = "\
Examples:
  muster node health-policy set xid-94=inspect slowdown=ignore
  muster node health-policy set xid-13=default reboots-max=3

Actions: ignore, restart-app, cordon, reset-gpu, reboot-node, inspect; for XIDs as-driver-says, and default for no
separate line. Settings: xid-unlisted, trust-driver, reboots-max, reset-takes-group, maintenance-lead.
Refused when somebody else changed it meanwhile. What was concluded before stands until a node's next report.")]
    Set {
        /// Findings or settings and what they are to be
        #[arg(required = true, value_name = "NAME=VALUE")]
        changes: Vec<String>,
    },
}

fn repair_action(text: &str) -> Result<HealthAction, String> {
    let known = [HealthAction::ResetGpu, HealthAction::RebootNode, HealthAction::Inspect];
    let action = HealthAction::of_name(text).filter(|action| known.contains(action));
    action.ok_or_else(|| "must be one of reset-gpu, reboot-node, inspect".to_owned())
}

/// The number of a word; the set is closed.
fn closed<T: ClosedSet>(word: &str) -> Result<i32, String> {
    of_word::<T>(word).map(T::number).ok_or_else(|| format!("must be one of {}", words::<T>()))
}

fn span(text: &str) -> Result<u64, String> {
    duration_ms(text).map_err(|error| error.to_string())
}

pub async fn run(global: &Global, console: &Console, command: HealthCommand) -> Result<Exit, Failure> {
    match command {
        HealthCommand::Drain { which, deadline, reason, consent } => {
            let client = global.client().await?;
            let is_looked_up = consent.is_dry_run() && which.is_named();
            let nodes = which.names(&client).await?;
            if is_looked_up {
                // Otherwise the drain itself refuses a name that there is not.
                for node in &nodes {
                    client.get_node(v1::GetNodeRequest { node: node.clone(), read: None }).await?;
                }
            }
            if !consent::to_drain(consent, &client, console, &nodes).await? {
                return Ok(Exit::Ok);
            }
            drain(&client, console, nodes, (deadline, reason.unwrap_or_default())).await
        }
        HealthCommand::Undrain(which) => cancel_drain(&global.client().await?, console, which).await,
        HealthCommand::Quarantine { nodes, reason } => {
            quarantine(&global.client().await?, console, nodes, reason).await
        }
        HealthCommand::Release { nodes } => release(&global.client().await?, console, nodes).await,
        HealthCommand::Repair(args) => repair(&global.client().await?, console, args).await,
        HealthCommand::Health { node, read } => {
            health(&read.client(global).await?, console, node, &read).await
        }
        HealthCommand::HealthPolicy(PolicyCommand::Show { read }) => {
            show_policy(&read.client(global).await?, console, &read).await
        }
        HealthCommand::HealthPolicy(PolicyCommand::Set { changes }) => {
            set_policy(&global.client().await?, console, &changes).await
        }
    }
}

async fn drain(
    client: &Client,
    console: &Console,
    names: Vec<String>,
    (stop_after_ms, reason): (Option<u64>, String),
) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in names {
        let (stop_after, reason) = (stop_after_ms.map(duration), reason.clone());
        let request = v1::DrainNodeRequest { request_id: String::new(), node, stop_after, reason };
        let answer = client.drain_node(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn cancel_drain(client: &Client, console: &Console, which: WhichNodes) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in which.names(client).await? {
        let request = v1::CancelNodeDrainRequest { node, ..Default::default() };
        let answer = client.cancel_node_drain(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn quarantine(
    client: &Client,
    console: &Console,
    names: Vec<String>,
    reason: String,
) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in names {
        let request = v1::QuarantineNodeRequest { request_id: String::new(), node, reason: reason.clone() };
        let answer = client.quarantine_node(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn release(client: &Client, console: &Console, names: Vec<String>) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    for node in names {
        let request = v1::ReleaseNodeRequest { node, ..Default::default() };
        let answer = client.release_node(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn repair(client: &Client, console: &Console, args: RepairArgs) -> Result<Exit, Failure> {
    let mut changed = Changed::default();
    let request_id = String::new();
    let node = args.node;
    let ended = match (args.done, args.failed) {
        (true, _) => Some((v1::RepairOutcome::Done, String::new())),
        (false, Some(why)) => Some((v1::RepairOutcome::Failed, why)),
        (false, None) => None,
    };
    if let Some((outcome, message)) = ended {
        let outcome = outcome.into();
        let request = v1::FinishNodeRepairRequest { request_id, node, outcome, message };
        let answer = client.finish_node_repair(request).await?;
        changed.note(answer.node, answer.freshness);
    } else {
        let request = v1::BeginNodeRepairRequest {
            request_id,
            node,
            action: number_or_zero(args.action),
            devices: args.device,
            stop_after: args.deadline.map(duration),
        };
        let answer = client.begin_node_repair(request).await?;
        changed.note(answer.node, answer.freshness);
    }
    changed.print(console)
}

async fn health(client: &Client, console: &Console, node: String, read: &ReadArgs) -> Result<Exit, Failure> {
    let answer = client.get_node(v1::GetNodeRequest { node, read: None }).await?;
    let node = view::Node::from(answer.node.unwrap_or_default());
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("NodeHealth", answer.freshness, node.restriction))?;
        }
        Format::Name => console.line(&node.name)?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => tell(console, &node)?,
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

fn tell(console: &Console, node: &view::Node) -> Result<(), Failure> {
    let Some(restriction) = &node.restriction else {
        return console.line(&format!("{}: nothing is known against it", node.name));
    };
    let status = if restriction.is_felt() { node.state } else { "in service" };
    console.line(&format!("{}: {status}, {} jobs", node.name, node.job_ids.len()))?;
    let since = |at: &Option<String>| at.clone().unwrap_or_default();
    if let Some(drain) = &restriction.drain {
        let deadline = drain.stop_time.as_ref().map_or("no deadline".to_owned(), |at| format!("until {at}"));
        console.line(&format!("drained since {} ({}), {deadline}", since(&drain.start_time), drain.cause))?;
    }
    if let Some(quarantine) = &restriction.quarantine {
        console.line(&format!(
            "quarantined since {}: {}",
            since(&quarantine.start_time),
            quarantine.reason
        ))?;
    }
    if let Some(repair) = &restriction.repair {
        let detail = if repair.message.is_empty() { String::new() } else { format!(": {}", repair.message) };
        let line =
            format!("repair {} since {}: {}{detail}", repair.action, since(&repair.start_time), repair.phase);
        console.line(&line)?;
    }
    if let Some(at) = &restriction.maintenance_time {
        console.line(&format!("its provider takes it away at {at}"))?;
    }
    if !restriction.unusable_devices.is_empty() {
        let numbers: Vec<String> = restriction.unusable_devices.iter().map(u32::to_string).collect();
        console.line(&format!("devices not to be used: {}", numbers.join(", ")))?;
    }
    for (title, list) in [("WRONG", &restriction.conditions), ("HAPPENED", &restriction.recent)] {
        if list.is_empty() {
            continue;
        }
        console.line("")?;
        let mut grid = Grid::new(vec![title, "DEVICE", "ACTION", "SINCE", "COUNT", "DETAIL"]);
        for condition in list {
            grid.row(vec![
                condition.finding.clone(),
                condition.device.map(|device| device.to_string()).unwrap_or_default(),
                condition.action.clone(),
                since(&condition.start_time),
                condition.count.to_string(),
                condition.message.clone(),
            ]);
        }
        console.table(&grid)?;
    }
    Ok(())
}

/// Content of `HealthPolicy`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    version: u64,
    settings: std::collections::BTreeMap<&'static str, String>,
    findings: std::collections::BTreeMap<String, String>,
    xids: std::collections::BTreeMap<u32, String>,
}

impl Policy {
    fn of(version: u64, policy: v1::HealthPolicy) -> Policy {
        let flag = |value: Option<bool>| value.unwrap_or_default().to_string();
        let lead_ms = span_ms(policy.maintenance_lead).unwrap_or_default();
        let settings = [
            ("xid-unlisted", word::<XidRule>(policy.xid_unlisted).to_owned()),
            ("trust-driver", flag(policy.trust_driver)),
            ("reboots-max", policy.max_reboots.unwrap_or_default().to_string()),
            ("reset-takes-group", flag(policy.reset_takes_group)),
            ("maintenance-lead", format!("{}s", lead_ms / 1_000)),
        ];
        Policy {
            version,
            settings: settings.into(),
            findings: policy
                .findings
                .into_iter()
                .map(|(finding, action)| (finding, word::<HealthAction>(action).to_owned()))
                .collect(),
            xids: policy
                .xids
                .into_iter()
                .map(|(code, rule)| (code, word::<XidRule>(rule).to_owned()))
                .collect(),
        }
    }
}

async fn show_policy(client: &Client, console: &Console, read: &ReadArgs) -> Result<Exit, Failure> {
    let answer = client.get_health_policy(v1::GetHealthPolicyRequest::default()).await?;
    let policy = Policy::of(answer.version, answer.policy.unwrap_or_default());
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("HealthPolicy", answer.freshness, policy))?;
        }
        Format::Name => console.line(&policy.version.to_string())?,
        Format::Table | Format::Wide | Format::Html | Format::Csv => {
            let mut grid = Grid::new(vec!["NAME", "VALUE"]);
            grid.row(vec!["version".to_owned(), policy.version.to_string()]);
            policy.settings.into_iter().for_each(|(name, value)| grid.row(vec![name.to_owned(), value]));
            policy.findings.into_iter().for_each(|(finding, action)| grid.row(vec![finding, action]));
            policy.xids.into_iter().for_each(|(code, rule)| grid.row(vec![format!("xid-{code}"), rule]));
            console.table(&grid)?;
        }
    }
    read.tell_age(console, answer.freshness.as_ref());
    Ok(Exit::Ok)
}

async fn set_policy(client: &Client, console: &Console, changes: &[String]) -> Result<Exit, Failure> {
    let now = client.get_health_policy(v1::GetHealthPolicyRequest::default()).await?;
    let mut policy = now.policy.unwrap_or_default();
    for change in changes {
        apply(&mut policy, change).map_err(|why| Failure::usage(format!("{change}: {why}")))?;
    }
    let request = v1::SetHealthPolicyRequest {
        request_id: String::new(),
        policy: Some(policy),
        expected_version: Some(now.version),
        validate_only: false,
    };
    let answer = client.set_health_policy(request).await?;
    console.line(&answer.version.to_string())?;
    console.progress(&format!("the health policy is in force from log index {} on", answer.version));
    Ok(Exit::Ok)
}

/// One change; what the names of findings may be, the cluster knows.
fn apply(policy: &mut v1::HealthPolicy, change: &str) -> Result<(), String> {
    let (name, value) = change.split_once('=').ok_or("must be NAME=VALUE")?;
    let flag = || value.parse::<bool>().map_err(|_| "must be true or false");
    match name {
        "xid-unlisted" => policy.xid_unlisted = closed::<XidRule>(value)?,
        "trust-driver" => policy.trust_driver = Some(flag()?),
        "reset-takes-group" => policy.reset_takes_group = Some(flag()?),
        "reboots-max" => policy.max_reboots = Some(value.parse().map_err(|_| "must be a number")?),
        "maintenance-lead" => policy.maintenance_lead = Some(duration(span(value)?)),
        _ => match (name.strip_prefix("xid-"), value) {
            (Some(code), value) => {
                let code: u32 = code.parse().map_err(|_| "an XID is a number")?;
                if value == "default" {
                    policy.xids.remove(&code);
                } else {
                    policy.xids.insert(code, closed::<XidRule>(value)?);
                }
            }
            (None, value) => {
                policy.findings.insert(name.to_owned(), closed::<HealthAction>(value)?);
            }
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_policy() {
        let mut policy = v1::HealthPolicy::default();
        for change in ["xid-79=inspect", "slowdown=ignore", "trust-driver=false", "maintenance-lead=5m"] {
            apply(&mut policy, change).unwrap();
        }
        assert_eq!(policy.xids[&79], i32::from(v1::XidAction::Inspect));
        assert_eq!(policy.findings["slowdown"], i32::from(v1::HealthAction::Ignore));
        assert_eq!((policy.trust_driver, policy.maintenance_lead), (Some(false), Some(duration(300_000))));
        apply(&mut policy, "xid-79=default").unwrap();
        assert!(policy.xids.is_empty());
        for bad in ["slowdown", "xid-a=ignore", "reboots-max=many", "trust-driver=yes", "maintenance-lead=5"]
        {
            assert!(apply(&mut policy, bad).is_err(), "{bad}");
        }
    }
}
