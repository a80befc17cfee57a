//! A plan as one page that needs nothing else: the layout on hosts and devices, memory by stage, a step in time.

use std::fmt::Write as _;

use crate::report::Report;
use crate::search::Candidate;

const WIDTH: f64 = 900.0;
/// Hosts of the picture.
const HOSTS_SHOWN: usize = 64;
/// Stages of a chart.
const STAGES_SHOWN: usize = 32;
/// Colours of parts, the same in both schemes: fixed hues of like lightness.
const HUES: [u32; 13] = [210, 30, 120, 275, 0, 60, 180, 330, 90, 240, 45, 150, 300];

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--line:#d5dae0;--paper:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa5b1;--line:#39424c;--paper:#14181d}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}.soft{color:var(--soft)}\
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}\
th,td{padding:.25rem .55rem .25rem 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}.wide{overflow-x:auto}.wide svg{min-width:44rem}svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font-size:11px}\
pre{overflow-x:auto;border:1px solid var(--line);padding:.6rem}\
.key span{display:inline-block;white-space:nowrap;margin-right:1em}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}";

/// Text that may stand anywhere in a page.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all text");
}

fn colour(index: usize) -> String {
    format!("hsl({} 55% 55%)", HUES[index % HUES.len()])
}

/// Colour of one of any number of stages.
fn stage_colour(stage: u64, stages: u64) -> String {
    format!("hsl({} 50% 60%)", stage * 330 / stages.max(1))
}

fn key(body: &mut String, names: &[&str]) {
    body.push_str("<p class=\"key\">");
    for (index, name) in names.iter().enumerate() {
        put(
            body,
            format_args!("<span><i style=\"background:{}\"></i>{}</span> ", colour(index), escape(name)),
        );
    }
    body.push_str("</p>\n");
}

/// The page of a report.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut body = String::new();
    let title = format!(
        "{} of {:.1} billion parameters on {}",
        escape(&report.architecture),
        report.parameters.total as f64 / 1e9,
        escape(report.accelerator)
    );
    if let Some(first) = report.plan.candidates.first() {
        summary(&mut body, report, first);
        body.push_str("<h2>Layouts</h2>\n");
        table(&mut body, &report.plan.candidates);
        body.push_str("<h2>The fastest layout for each number of devices</h2>\n");
        table(&mut body, &report.plan.by_devices);
        picture(&mut body, report, first);
        memory(&mut body, report, first);
        timeline(&mut body, first);
    }
    arguments(&mut body, report);
    terms(&mut body, report);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn summary(body: &mut String, report: &Report, first: &Candidate) {
    put(
        body,
        format_args!(
            "<p>{} devices: a step of {} sequences of {} tokens is predicted to take {:.2} s: {:.0} tokens/s, {:.1} % of \
             the peak.",
            first.devices,
            report.training.batch,
            report.training.sequence,
            first.step.step_time_us / 1e6,
            first.tokens_per_s,
            first.utilisation * 100.0
        ),
    );
    if first.energy_j_per_token > 0.0 {
        put(body, format_args!(" At full power {:.3} J a token.", first.energy_j_per_token));
    }
    if let Some(price) = report.usd_per_million_tokens {
        put(body, format_args!(" {price:.2} $ for a million tokens."));
    }
    body.push_str("</p>\n");
}

fn table(body: &mut String, candidates: &[Candidate]) {
    body.push_str("<table>\n<tr>");
    for column in [
        "Devices",
        "tensor",
        "pipeline",
        "data",
        "context",
        "expert",
        "micro-batch",
        "interleave",
        "recompute",
        "sharding",
        "GiB",
        "step s",
        "MFU %",
        "tokens/s",
    ] {
        put(body, format_args!("<th scope=\"col\">{column}</th>"));
    }
    body.push_str("</tr>\n");
    for candidate in candidates {
        let layout = &candidate.layout;
        put(
            body,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:?}</td>\
                 <td>{:?}</td><td>{:.1}</td><td>{:.2}</td><td>{:.1}</td><td>{:.0}</td></tr>\n",
                candidate.devices,
                layout.tensor,
                layout.pipeline,
                layout.data,
                layout.context,
                layout.expert,
                layout.micro_batch,
                layout.interleave,
                layout.recompute,
                layout.sharding,
                candidate.memory.total_bytes() / (1_u64 << 30) as f64,
                candidate.step.step_time_us / 1e6,
                candidate.utilisation * 100.0,
                candidate.tokens_per_s
            ),
        );
    }
    body.push_str("</table>\n");
}

fn picture(body: &mut String, report: &Report, first: &Candidate) {
    body.push_str("<h2>The layout on hosts and devices</h2>\n");
    put(
        body,
        format_args!(
            "<p class=\"soft\">A box is a device; its colour is its stage, its numbers are its positions in the data and \
             tensor parallel groups. Ranks are numbered {}.</p>\n",
            report.ranks.order.name()
        ),
    );
    let mut hosts: Vec<RanksOfHost<'_>> = Vec::new();
    let mut by_name: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for rank in &report.ranks.ranks {
        let at = *by_name.entry(&rank.host).or_insert_with(|| {
            hosts.push((&rank.host, Vec::new()));
            hosts.len() - 1
        });
        hosts[at].1.push(rank);
    }
    let total = hosts.len();
    let hosts = shown_hosts(hosts, first.layout.pipeline);
    let shown = hosts.len();
    let columns = 4;
    let (cell, gap, line) = (26.0, 10.0, 46.0);
    let height = shown.div_ceil(columns) as f64 * line + 4.0;
    put(
        body,
        format_args!(
            "<div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"devices by host\">\n"
        ),
    );
    for (at, (name, ranks)) in hosts.iter().enumerate() {
        let x = (at % columns) as f64 * (8.0 * cell + gap);
        let y = (at / columns) as f64 * line;
        put(body, format_args!("<text x=\"{x}\" y=\"{:.1}\">{}</text>\n", y + 11.0, escape(name)));
        for (index, rank) in ranks.iter().take(8).enumerate() {
            let left = x + index as f64 * cell;
            put(
                body,
                format_args!(
                    "<rect x=\"{left}\" y=\"{:.1}\" width=\"{}\" height=\"24\" fill=\"{}\"><title>rank {}: {} device {}, \
                     stage {}, data {}, context {}, tensor {}</title></rect>\
                     <text x=\"{:.1}\" y=\"{:.1}\" style=\"font-size:8px;fill:#000\">{}.{}</text>\n",
                    y + 15.0,
                    cell - 2.0,
                    stage_colour(rank.pipeline, first.layout.pipeline),
                    rank.rank,
                    escape(&rank.host),
                    rank.device,
                    rank.pipeline,
                    rank.data,
                    rank.context,
                    rank.tensor,
                    left + 2.0,
                    y + 30.0,
                    rank.data,
                    rank.tensor
                ),
            );
        }
    }
    body.push_str("</svg></div>\n");
    if total > shown {
        put(
            body,
            format_args!(
                "<p class=\"soft\">{} more hosts, of the same stages, are not shown.</p>\n",
                total - shown
            ),
        );
    }
}

/// Hosts with the ranks on each.
type RanksOfHost<'a> = (&'a str, Vec<&'a crate::ranks::Rank>);

/// The hosts that fit into a picture: of many, as many of each stage.
fn shown_hosts(hosts: Vec<RanksOfHost<'_>>, stages: u64) -> Vec<RanksOfHost<'_>> {
    if hosts.len() <= HOSTS_SHOWN {
        return hosts;
    }
    let each = (HOSTS_SHOWN / usize::try_from(stages).unwrap_or(usize::MAX).max(1)).max(1);
    let mut taken: std::collections::BTreeMap<u64, usize> = std::collections::BTreeMap::new();
    let mut has_room = |(_, ranks): &RanksOfHost<'_>| {
        let stage = ranks.first().map_or(0, |rank| rank.pipeline);
        let taken = taken.entry(stage).or_default();
        *taken += 1;
        *taken <= each
    };
    hosts.into_iter().filter(|host| has_room(host)).take(HOSTS_SHOWN).collect()
}

fn memory(body: &mut String, report: &Report, first: &Candidate) {
    body.push_str("<h2>Memory of a device by stage</h2>\n");
    let gib = (1_u64 << 30) as f64;
    let names: Vec<&str> = first.memory.parts().iter().map(|(name, _)| *name).collect();
    key(body, &names);
    let shown = report.stages.len().min(STAGES_SHOWN);
    let height = shown as f64 * 20.0 + 24.0;
    let span = WIDTH - 170.0;
    let most = report.memory_bytes as f64;
    put(
        body,
        format_args!(
            "<div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"memory by stage\">\n"
        ),
    );
    for (stage, memory) in report.stages.iter().take(shown).enumerate() {
        let y = stage as f64 * 20.0;
        put(body, format_args!("<text x=\"0\" y=\"{:.1}\">stage {stage}</text>\n", y + 13.0));
        let mut x = 70.0;
        for (index, (name, bytes)) in memory.parts().iter().enumerate() {
            let width = bytes / most * span;
            put(
                body,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"16\" fill=\"{}\"><title>{name}: {:.2} GiB\
                     </title></rect>\n",
                    colour(index),
                    bytes / gib
                ),
            );
            x += width;
        }
        put(
            body,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\">{:.1} GiB</text>\n",
                WIDTH - 90.0,
                y + 13.0,
                memory.total_bytes() / gib
            ),
        );
    }
    let end = 70.0 + span;
    put(
        body,
        format_args!(
            "<line x1=\"{end}\" x2=\"{end}\" y1=\"0\" y2=\"{:.1}\" stroke=\"currentColor\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">device: {:.0} GiB</text>\n</svg></div>\n",
            shown as f64 * 20.0,
            end - 90.0,
            height - 4.0,
            most / gib
        ),
    );
    if report.stages.len() > shown {
        put(
            body,
            format_args!(
                "<p class=\"soft\">{} more stages are not shown.</p>\n",
                report.stages.len() - shown
            ),
        );
    }
}

/// Stages under one another: each waits for the first micro-batch, works, and waits while the last ones drain.
fn timeline(body: &mut String, first: &Candidate) {
    body.push_str("<h2>A step in time</h2>\n");
    let parts = first.step.parts();
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    key(body, &names);
    let stages = first.layout.pipeline as usize;
    let shown = stages.min(STAGES_SHOWN);
    let height = shown as f64 * 20.0 + 24.0;
    let span = WIDTH - 80.0;
    let total = first.step.step_time_us;
    let bubble = first.step.bubble_us;
    put(
        body,
        format_args!(
            "<div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"a step in time\">\n"
        ),
    );
    for stage in 0..shown {
        let y = stage as f64 * 20.0;
        put(body, format_args!("<text x=\"0\" y=\"{:.1}\">stage {stage}</text>\n", y + 13.0));
        let before = if stages > 1 { bubble * stage as f64 / (stages - 1) as f64 / 3.0 } else { 0.0 };
        let mut x = 70.0;
        let mut bar = |index: usize, name: &str, time: f64| {
            let width = time / total * span;
            put(
                body,
                format_args!(
                    "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"16\" fill=\"{}\"{}><title>{name}: {:.1} ms\
                     </title></rect>\n",
                    colour(index),
                    if name == "bubble" { " fill-opacity=\".25\"" } else { "" },
                    time / 1e3
                ),
            );
            x += width;
        };
        let at_bubble = names.iter().position(|name| *name == "bubble").unwrap_or(0);
        bar(at_bubble, "bubble", before);
        for (index, (name, time)) in parts.iter().enumerate().take(at_bubble) {
            bar(index, name, *time);
        }
        // A third of the bubble is before the first micro-batch reaches a stage, two thirds are its way back.
        bar(at_bubble, "bubble", bubble - before);
        for (index, (name, time)) in parts.iter().enumerate().skip(at_bubble + 1) {
            bar(index, name, *time);
        }
    }
    put(
        body,
        format_args!(
            "<text x=\"70\" y=\"{:.1}\">0 s</text><text x=\"{:.1}\" y=\"{:.1}\">{:.2} s</text>\n</svg></div>\n",
            height - 4.0,
            WIDTH - 60.0,
            height - 4.0,
            total / 1e6
        ),
    );
    body.push_str(
        "<table>\n<tr><th scope=\"col\">Part</th><th scope=\"col\">ms</th><th scope=\"col\">%</th></tr>\n",
    );
    for (name, time) in parts {
        put(
            body,
            format_args!(
                "<tr><td>{name}</td><td>{:.1}</td><td>{:.1}</td></tr>\n",
                time / 1e3,
                time / total * 100.0
            ),
        );
    }
    body.push_str("</table>\n");
    put(
        body,
        format_args!(
            "<p class=\"soft\">Parts are sums over all {} micro-batches, which alternate; communication that hides behind \
             computation is not shown.</p>\n",
            first.micro_batches
        ),
    );
}

fn arguments(body: &mut String, report: &Report) {
    body.push_str("<h2>For the program</h2>\n");
    let list = &report.arguments;
    for (name, text) in [
        ("Megatron-LM", list.megatron.join(" ")),
        ("torchtitan", list.torchtitan.join(" ")),
        ("MaxText", list.maxtext.join(" ")),
        ("DeepSpeed", list.deepspeed.clone()),
    ] {
        put(body, format_args!("<h3>{name}</h3>\n<pre>{}</pre>\n", escape(&text)));
    }
    body.push_str("<h3>Environment</h3>\n<pre>");
    for (name, value) in &list.environment {
        put(body, format_args!("{}={}\n", escape(name), escape(value)));
    }
    body.push_str("</pre>\n");
    for note in &list.notes {
        put(body, format_args!("<p class=\"soft\">{}</p>\n", escape(note)));
    }
}

fn terms(body: &mut String, report: &Report) {
    body.push_str("<h2>What this rests on</h2>\n<table>\n");
    for term in &report.terms {
        put(
            body,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escape(term.name),
                escape(&term.value),
                term.origin.name()
            ),
        );
    }
    body.push_str("</table>\n");
}
