//! `muster probe`: the network between nodes, as a matrix.

use clap::Args;
use muster_client::Client;
use muster_console::{Console, Document, Exit, Failure, Format, Global};
use muster_types::probe;
use muster_wire::{admin, v1};
use serde::Serialize;

const PAGE_SIZE: u32 = 1_000;

/// Options of `muster probe`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  muster probe host-1 host-2 host-3
  muster probe --job job-3f0
  muster probe --cluster eu-west-1 -o json

Measures every pair both ways and a ring all-reduce over all nodes. It takes some seconds and a part of the
bandwidth of what runs there. Rows send, columns receive; * marks what is slow. The exit code is 1 when
something is.")]
pub struct ProbeArgs {
    /// Names or ids of nodes, 2 to 256
    #[arg(required_unless_present_any = ["job", "cluster"])]
    nodes: Vec<String>,
    /// The nodes that this job runs on
    #[arg(long, value_name = "ID", conflicts_with_all = ["nodes", "cluster"])]
    job: Option<String>,
    /// The nodes of this fleet cluster that are up
    #[arg(long, value_name = "NAME", conflicts_with = "nodes")]
    cluster: Option<String>,
}

/// The shape of `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    nodes: Vec<String>,
    links: Vec<Link>,
    rings: Vec<Ring>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    from: String,
    to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ring {
    node: String,
    bytes: u64,
    duration_us: u64,
    correct: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_node: Option<String>,
    at_fault: bool,
    text: String,
}

/// Probes, and prints what came of it.
pub async fn run(global: &Global, console: &Console, args: ProbeArgs) -> Result<Exit, Failure> {
    let client = global.client().await?;
    let nodes = chosen(&client, args).await?;
    console.progress(&format!("measuring the network between {} nodes", nodes.len()));
    let answer = client.probe_nodes(admin::ProbeNodesRequest { nodes }).await?;
    let exit = if answer.findings.is_empty() { Exit::Ok } else { Exit::Failed };
    match console.format {
        Format::Json | Format::Yaml => {
            console.object(&Document::new("Probe", None::<u64>, shaped(&answer)))?;
        }
        Format::Name => {
            for finding in &answer.findings {
                console.line(&finding.node_name)?;
            }
        }
        Format::Table | Format::Wide | Format::Html | Format::Csv => print(console, &answer)?,
    }
    Ok(exit)
}

/// The nodes that were asked for, by whatever they were named.
async fn chosen(client: &Client, args: ProbeArgs) -> Result<Vec<String>, Failure> {
    let mut nodes = args.nodes;
    if let Some(job_id) = args.job {
        let job = client.get_job(v1::GetJobRequest { job_id, ..Default::default() }).await?.job;
        let placement =
            job.and_then(|job| job.status).and_then(|status| status.placement).unwrap_or_default();
        nodes = placement.workers.into_iter().map(|worker| worker.node_name).collect();
    }
    if let Some(cluster) = args.cluster {
        let mut request = v1::ListNodesRequest { page_size: PAGE_SIZE, ..Default::default() };
        loop {
            let page = client.list_nodes(request.clone()).await?;
            let here = page.nodes.into_iter().filter(|node| node.status() == v1::NodeStatus::Up);
            let here = here.filter_map(|node| node.description).filter(|node| node.cluster == cluster);
            nodes.extend(here.map(|node| node.name));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
    }
    nodes.sort();
    nodes.dedup();
    if nodes.len() < 2 {
        return Err(too_few(&nodes));
    }
    Ok(nodes)
}

/// Why nothing is measured. A single word may have been meant as the name of a command, which this one has none of.
fn too_few(nodes: &[String]) -> Failure {
    let which = match nodes {
        [node] => format!("there is one, {node}"),
        _ => "there is none".to_owned(),
    };
    Failure::usage(format!("a probe needs two nodes or more; {which}")).with_next(
        "name nodes, a job with --job or a fleet cluster with --cluster; results are shown once and not kept, so that there is no \
         history of them",
    )
}

fn name(answer: &admin::ProbeNodesResponse, place: u32) -> String {
    answer.node_names.get(place as usize).cloned().unwrap_or_default()
}

fn shaped(answer: &admin::ProbeNodesResponse) -> Probe {
    let link = |link: &v1::ProbeLink| {
        let measured = link.failure.is_empty();
        Link {
            from: name(answer, link.from),
            to: name(answer, link.to),
            bytes_per_second: measured.then_some(link.bytes_per_s),
            round_trip_us: measured.then_some(link.round_trip_us),
            failure: (!measured).then(|| link.failure.clone()),
        }
    };
    let ring = |ring: &v1::ProbeRing| Ring {
        node: name(answer, ring.host),
        bytes: ring.bytes,
        duration_us: ring.duration_us,
        correct: ring.correct,
    };
    let finding = |finding: &admin::ProbeFinding| Finding {
        node: finding.node_name.clone(),
        other_node: (!finding.other_node_name.is_empty()).then(|| finding.other_node_name.clone()),
        at_fault: finding.at_fault,
        text: finding.message.clone(),
    };
    Probe {
        nodes: answer.node_names.clone(),
        links: answer.links.iter().map(link).collect(),
        rings: answer.rings.iter().map(ring).collect(),
        findings: answer.findings.iter().map(finding).collect(),
    }
}

/// The matrix, the ring, and what is wrong.
fn print(console: &Console, answer: &admin::ProbeNodesResponse) -> Result<(), Failure> {
    let mut text = matrix(answer);
    text.push_str("MB/s; rows send, columns receive; * is slow\n");
    let trips: Vec<u64> =
        answer.links.iter().filter(|link| link.failure.is_empty()).map(|link| link.round_trip_us).collect();
    if let (Some(least), Some(most)) = (trips.iter().min(), trips.iter().max()) {
        text.push_str(&format!("round trips: {least} to {most} us\n"));
    }
    let slowest = answer.rings.iter().max_by_key(|ring| ring.duration_us);
    match slowest {
        Some(ring) => {
            let nodes = answer.node_names.len() as u64;
            // Each sends 2·(n−1)/n of the bytes: what the slowest link has to carry.
            let sent = 2 * ring.bytes * (nodes - 1) / nodes;
            text.push_str(&format!(
                "ring all-reduce of {} KiB: {:.2} ms, {} MB/s a link{}\n",
                ring.bytes >> 10,
                ring.duration_us as f64 / 1_000.0,
                sent / ring.duration_us.max(1),
                if answer.rings.iter().all(|ring| ring.correct) { "" } else { ", with wrong sums" }
            ));
        }
        None => text.push_str("ring all-reduce: it did not come to its end\n"),
    }
    for finding in &answer.findings {
        let text_of = match (finding.at_fault, finding.other_node_name.as_str()) {
            (true, _) => format!("do without {}: {}\n", finding.node_name, finding.message),
            (false, "") => format!("suspected: {}: {}\n", finding.node_name, finding.message),
            (false, other) => {
                let (one, text) = (&finding.node_name, &finding.message);
                format!(
                    "{text}; whether it is {one}, {other} or what is between them, nobody else confirms\n"
                )
            }
        };
        text.push_str(&text_of);
    }
    console.bytes(text.as_bytes())
}

fn measured(link: &v1::ProbeLink) -> probe::Link {
    let outcome = if link.failure.is_empty() {
        let (rate, round_trip_us) = (link.bytes_per_s, link.round_trip_us);
        probe::LinkOutcome::Measured { rate, round_trip_us }
    } else {
        probe::LinkOutcome::Failed(link.failure.clone())
    };
    probe::Link { from: link.from, to: link.to, outcome, load_milli: 0 }
}

/// Rows of senders; what was not measured is a dash.
fn matrix(answer: &admin::ProbeNodesResponse) -> String {
    let count = answer.node_names.len();
    let links: Vec<probe::Link> = answer.links.iter().map(measured).collect();
    let median = probe::median_rate(&links).unwrap_or(0);
    let bar = |link: &v1::ProbeLink| {
        let load = u16::try_from(link.load_milli).unwrap_or(u16::MAX);
        probe::bar(median, load).max(probe::RATE_FLOOR_BYTES_PER_S)
    };
    let mut cells = vec![vec![String::from("-"); count]; count];
    for link in &answer.links {
        let cell = cells.get_mut(link.from as usize).and_then(|row| row.get_mut(link.to as usize));
        if let Some(cell) = cell {
            *cell = match (link.failure.is_empty(), link.bytes_per_s < bar(link)) {
                (false, _) => "fails*".to_owned(),
                (true, true) => format!("{}*", link.bytes_per_s / 1_000_000),
                (true, false) => (link.bytes_per_s / 1_000_000).to_string(),
            };
        }
    }
    let widest = answer.node_names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut line = |first: &str, rest: &mut dyn Iterator<Item = &str>| {
        text.push_str(&format!("{first:widest$}"));
        for cell in rest {
            text.push_str(&format!("  {cell:>width$}", width = widest.max(6)));
        }
        text.push('\n');
    };
    line("", &mut answer.node_names.iter().map(String::as_str));
    for (name, row) in answer.node_names.iter().zip(&cells) {
        line(name, &mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_no_two_nodes() {
        let failure = too_few(&["history".to_owned()]);
        assert_eq!(
            (failure.exit(), failure.headline()),
            (Exit::Usage, "a probe needs two nodes or more; there is one, history")
        );
        assert!(failure.next().is_some_and(|next| next.contains("not kept")));
    }

    #[test]
    fn the_matrix_marks_what_is_slow_and_what_fails() {
        let link = |from, to, bytes_per_s, failure: &str| v1::ProbeLink {
            from,
            to,
            bytes_per_s,
            round_trip_us: 50,
            failure: failure.into(),
            load_milli: 0,
        };
        let answer = admin::ProbeNodesResponse {
            node_names: vec!["a".into(), "b".into(), "c".into()],
            links: vec![
                link(0, 1, 1_200_000_000, ""),
                link(1, 0, 1_100_000_000, ""),
                link(0, 2, 20_000_000, ""),
                link(2, 0, 0, "refused"),
            ],
            ..Default::default()
        };
        assert_eq!(
            matrix(&answer),
            "        a       b       c\na       -    1200     20*\nb    1100       -       -\nc  fails*       -       -\n"
        );
    }
}
