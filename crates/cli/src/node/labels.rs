//! `muster node label` and `muster node taint`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global, Grid};
use muster_types::LabelSelector;
use muster_wire::v1;

use super::{Changed, DryRun, PAGE_SIZE, print_nodes};
use crate::complete;
use crate::view;

/// The only effect of a taint: jobs that do not tolerate it are not placed there, and what runs stays.
const NO_SCHEDULE: &str = "NoSchedule";

/// Commands about labels and taints of nodes.
#[derive(Subcommand)]
pub enum LabelCommand {
    /// Set labels of nodes, or take back what operators had set
    #[command(after_help = "\
Examples:
  muster node label host-17 pool=research
  muster node label host-17 host-18 pool=research zone=b
  muster node label host-17 pool-                     takes back what operators had set
  muster node label -l pool=research stage=new --dry-run

A label that is set replaces the one with the same key in the configuration of the node's agent, and stays when the
agent registers again. With `key-` the agent's label counts again, if it has one. Running jobs stay where they are.")]
    Label(LabelArgs),
    /// Keep jobs away from nodes unless they tolerate a taint, or take taints back
    #[command(after_help = "\
Examples:
  muster node taint host-17 bring-up:NoSchedule
  muster node taint host-17 bring-up-                 takes back what operators had set
  muster node taint -l pool=research reserved:NoSchedule --dry-run

A taint is a key without a value. Jobs with the key in `tolerations` are still placed there; running jobs stay where
they are. Taints of the node's agent stay.")]
    Taint(LabelArgs),
}

/// Options of both.
#[derive(Args)]
pub struct LabelArgs {
    /// Names or ids of nodes, and what to change: KEY=VALUE or KEY:NoSchedule sets, KEY- takes back
    #[arg(required = true, value_name = "NODE|CHANGE", add = ArgValueCompleter::new(complete::nodes))]
    words: Vec<String>,
    /// Nodes whose labels match, in place of names: pool=research, zone in (a,b), !spot; several by commas
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<LabelSelector>,
    /// Check it, say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A selector of nodes by their labels.
pub(super) fn selector(text: &str) -> Result<LabelSelector, String> {
    LabelSelector::parse(text).map_err(|error| error.to_string())
}

/// Whether a node with these labels is selected.
pub(super) fn is_selected(selector: &LabelSelector, node: &v1::Node) -> bool {
    let labels = node.description.iter().flat_map(|described| &described.labels);
    let labels: BTreeMap<String, String> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    selector.matches(&labels)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Labels,
    Taints,
}

pub async fn run(global: &Global, console: &Console, command: LabelCommand) -> Result<Exit, Failure> {
    let (subject, args) = match command {
        LabelCommand::Label(args) => (Subject::Labels, args),
        LabelCommand::Taint(args) => (Subject::Taints, args),
    };
    let LabelArgs { words, selector, dry_run } = args;
    let (changes, names): (Vec<String>, Vec<String>) = words.into_iter().partition(|word| is_change(word));
    let mut request = v1::SetNodeLabelsRequest { validate_only: dry_run, ..Default::default() };
    for change in &changes {
        match subject {
            Subject::Labels => read_label(change, &mut request)?,
            Subject::Taints => read_taint(change, &mut request)?,
        }
    }
    if changes.is_empty() {
        let form = match subject {
            Subject::Labels => "KEY=VALUE or KEY-",
            Subject::Taints => "KEY:NoSchedule or KEY-",
        };
        return Err(Failure::usage(format!("say what to change: {form}")));
    }
    if names.is_empty() == selector.is_none() {
        return Err(Failure::usage("say which nodes: either by their names or with --selector"));
    }
    let client = global.client().await?;
    let names = match &selector {
        Some(selector) => selected(&client, None, Some(selector)).await?,
        None => names,
    };
    if names.is_empty() {
        console.progress("no node matches the selector");
    }
    let (mut changed, mut failed) = (Changed::default(), None);
    for node in names {
        match client.set_node_labels(v1::SetNodeLabelsRequest { node, ..request.clone() }).await {
            Ok(answer) => changed.note(answer.node, answer.freshness),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if dry_run {
        console.progress("nothing was changed; it would be so");
    }
    // Those before the one that failed are changed: they are printed first.
    if failed.is_none() || !changed.nodes.is_empty() {
        print(console, changed, subject, dry_run)?;
    }
    failed.map_or(Ok(Exit::Ok), |error| Err(error.into()))
}

/// Whether a word is a change: no name or id of a node has these characters there.
fn is_change(word: &str) -> bool {
    word.contains(['=', ':']) || word.ends_with('-')
}

fn read_label(word: &str, request: &mut v1::SetNodeLabelsRequest) -> Result<(), Failure> {
    if let Some((key, value)) = word.split_once('=') {
        return match request.set_labels.insert(key.to_owned(), value.to_owned()) {
            None => Ok(()),
            Some(_) => Err(Failure::usage(format!("{key} is set twice"))),
        };
    }
    match word.strip_suffix('-') {
        Some(key) if !key.contains(':') => request.remove_labels.push(key.to_owned()),
        _ => return Err(Failure::usage(format!("{word}: a change of a label is KEY=VALUE or KEY-"))),
    }
    Ok(())
}

fn read_taint(word: &str, request: &mut v1::SetNodeLabelsRequest) -> Result<(), Failure> {
    let (text, is_removed) = word.strip_suffix('-').map_or((word, false), |text| (text, true));
    let (key, effect) = text.split_once(':').map_or((text, None), |(key, effect)| (key, Some(effect)));
    if let Some((key, _)) = key.split_once('=') {
        let text = format!("{word}: a taint is a key without a value: {key}:{NO_SCHEDULE}");
        return Err(Failure::usage(text));
    }
    match effect {
        Some(effect) if effect != NO_SCHEDULE => {
            let text =
                format!("{word}: {NO_SCHEDULE} is the only effect; to empty a node use `muster node drain`");
            return Err(Failure::usage(text));
        }
        None if !is_removed => {
            return Err(Failure::usage(format!("{word}: a change of a taint is KEY:{NO_SCHEDULE} or KEY-")));
        }
        _ => {}
    }
    match is_removed {
        true => request.remove_taints.push(key.to_owned()),
        false => request.set_taints.push(key.to_owned()),
    }
    Ok(())
}

/// Names of all nodes of a region, or of all regions, whose labels match.
pub(super) async fn selected(
    client: &Client,
    region: Option<&str>,
    selector: Option<&LabelSelector>,
) -> Result<Vec<String>, Failure> {
    let region = region.unwrap_or_default().to_owned();
    let mut request = v1::ListNodesRequest { page_size: PAGE_SIZE, region, ..Default::default() };
    let mut names = Vec::new();
    loop {
        let page = client.list_nodes(request.clone()).await?;
        let is_wanted = |node: &v1::Node| selector.is_none_or(|selector| is_selected(selector, node));
        let nodes = page.nodes.into_iter().filter(is_wanted);
        names.extend(nodes.filter_map(|node| node.description).map(|described| described.name));
        if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
            return Ok(names);
        }
        request.page_token = page.next_page_token;
    }
}

fn print(console: &Console, changed: Changed, subject: Subject, dry_run: bool) -> Result<(), Failure> {
    match console.format {
        Format::Json | Format::Yaml if dry_run => {
            let rows = DryRun { dry_run: true, items: changed.nodes };
            console.object(&Document::new("NodeList", changed.log_index, rows))
        }
        Format::Table | Format::Wide => {
            let mut grid = match subject {
                Subject::Labels => Grid::new(vec!["NODE", "LABEL", "VALUE", "SET-BY"]),
                Subject::Taints => Grid::new(vec!["NODE", "TAINT", "SET-BY"]),
            };
            for node in &changed.nodes {
                let rows = match subject {
                    Subject::Labels => label_rows(node),
                    Subject::Taints => taint_rows(node),
                };
                for mut cells in rows {
                    cells.insert(0, node.name.clone());
                    grid.row(cells);
                }
            }
            console.table(&grid)
        }
        _ => print_nodes(console, changed.log_index, changed.nodes),
    }
}

/// A row for each label: its key, its value, and who set it.
fn label_rows(node: &view::Node) -> Vec<Vec<String>> {
    let set_by = |key: &String| match &node.overrides {
        Some(set) if set.labels.contains_key(key) => "operator",
        _ => "agent",
    };
    node.labels.iter().map(|(key, value)| vec![key.clone(), value.clone(), set_by(key).to_owned()]).collect()
}

/// A row for each taint: its key, and who set it.
fn taint_rows(node: &view::Node) -> Vec<Vec<String>> {
    let set_by = |key: &String| match &node.overrides {
        Some(set) if set.taints.contains(key) => "operator",
        _ => "agent",
    };
    node.taints.iter().map(|key| vec![key.clone(), set_by(key).to_owned()]).collect()
}

/// Tables of the labels and taints of one node, for `muster node show`; nothing for a node without any.
pub(super) fn show(console: &Console, node: &view::Node) -> Result<(), Failure> {
    let tables =
        [(vec!["LABEL", "VALUE", "SET-BY"], label_rows(node)), (vec!["TAINT", "SET-BY"], taint_rows(node))];
    for (header, rows) in tables.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        console.line("")?;
        let mut grid = Grid::new(header);
        rows.into_iter().for_each(|cells| grid.row(cells));
        console.table(&grid)?;
    }
    if let Some(set) = &node.overrides {
        let by = if set.changed_by.is_empty() { "an operator" } else { set.changed_by.as_str() };
        let at = set.change_time.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        console.line(&format!("What operators have set was last changed by {by}{at}."))?;
    }
    Ok(())
}

/// What operators have set, in one cell: `pool=research, bring-up:NoSchedule`.
pub(super) fn in_short(node: &view::Node) -> String {
    let Some(set) = &node.overrides else { return String::new() };
    let labels = set.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let taints = set.taints.iter().map(|key| format!("{key}:{NO_SCHEDULE}"));
    labels.chain(taints).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(subject: Subject, words: &[&str]) -> Result<v1::SetNodeLabelsRequest, Failure> {
        let mut request = v1::SetNodeLabelsRequest::default();
        for word in words {
            match subject {
                Subject::Labels => read_label(word, &mut request)?,
                Subject::Taints => read_taint(word, &mut request)?,
            }
        }
        Ok(request)
    }

    #[test]
    fn changes_are_told_from_nodes_and_read() {
        assert!(["a=b", "a=", "a-", "a:NoSchedule"].into_iter().all(is_change));
        assert!(!["host-1", "node-3", "a.b_c"].into_iter().any(is_change));
        let labels = request(Subject::Labels, &["a=b=c", "d=", "e-"]).unwrap();
        assert_eq!((labels.set_labels["a"].as_str(), labels.set_labels["d"].as_str()), ("b=c", ""));
        assert_eq!(labels.remove_labels, ["e"]);
        let taints = request(Subject::Taints, &["a:NoSchedule", "b-", "c:NoSchedule-"]).unwrap();
        assert_eq!(
            (taints.set_taints, taints.remove_taints),
            (vec!["a".to_owned()], vec!["b".into(), "c".into()])
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for word in ["a:b-", "a"] {
            assert!(request(Subject::Labels, &[word]).is_err(), "{word}");
        }
        assert!(request(Subject::Labels, &["a=1", "a=2"]).is_err());
        for word in ["a", "a:NoExecute", "a=b:NoSchedule", "a=b", "a:"] {
            assert!(request(Subject::Taints, &[word]).is_err(), "{word}");
        }
    }
}
