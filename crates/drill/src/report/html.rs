//! A page for a browser.

use std::fmt::Write as _;

use super::{Page, looked_at, picture, text};
use crate::judge::{Delays, Interruption, Rule};

/// Rows of the ledger that are shown.
const INTERRUPTIONS_SHOWN_MAX: usize = 200;

const STYLE: &str = "
:root{color-scheme:light dark;--back:#fff;--front:#1b1f24;--soft:#57606a;--line:#d0d7de;--panel:#f6f8fa;--good:#1a7f37;--bad:#cf222e;
--step:#bf8700;--term:#0969da;--odd:#8250df;--acknowledged:#1a7f37;--failed:#cf222e;--linearizable:#0969da;--other:#6e7781;--silence:#ffebe9}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--front:#e6edf3;--soft:#8d96a0;--line:#30363d;--panel:#161b22;--good:#3fb950;--bad:#f85149;
--step:#d29922;--term:#2f81f7;--odd:#a371f7;--acknowledged:#3fb950;--failed:#f85149;--linearizable:#2f81f7;--other:#8d96a0;--silence:#3c1618}}
body{margin:0 auto;max-width:60rem;padding:1.5rem;background:var(--back);color:var(--front);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.soft{color:var(--soft)}.verdict{display:inline-block;padding:.15rem .7rem;border-radius:1rem;color:var(--back);font-weight:600}
.good{background:var(--good)}.bad{background:var(--bad)}td.met{color:var(--good)}td.missed{color:var(--bad);font-weight:600}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
.wide{overflow-x:auto}figure{margin:1rem 0;padding:.6rem;background:var(--panel);border:1px solid var(--line);border-radius:6px;overflow-x:auto}
svg{display:block;width:100%;min-width:40rem;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--front)}svg .label{text-anchor:end}
svg .tick{text-anchor:middle;fill:var(--soft)}svg .mark{stroke:var(--line)}svg .fault{stroke:var(--bad);stroke-dasharray:3 2}svg .base{stroke:var(--line)}
svg .step{fill:var(--step);opacity:.45}svg .end{text-anchor:end}svg .term{fill:var(--term)}svg .odd{fill:var(--odd)}svg .on{fill:#fff}
svg .silence{fill:var(--silence)}svg .acknowledged{fill:var(--acknowledged)}svg .failed{fill:var(--failed)}svg .linearizable{fill:var(--linearizable)}svg .other{fill:var(--other)}
ul.findings{padding-left:1.2rem}ul.findings ul{color:var(--soft);font-size:13px;word-break:break-word}code{font:13px ui-monospace,monospace}
";

/// The whole page.
pub(super) fn page(page: &Page<'_>) -> String {
    let (run, verdict) = (page.run, page.verdict);
    let mut out = String::with_capacity(64 << 10);
    let title = text::html(page.title);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    );
    let (class, word) = if verdict.held { ("good", "held") } else { ("bad", "broken") };
    let _ = writeln!(out, "<h1>{title} <span class=\"verdict {class}\">{word}</span></h1>");
    let _ = writeln!(
        out,
        "<p class=\"soft\">Drill <code>{}</code>, run {}, seed {}, Muster {}, {}. Runbook: <code>{}</code></p>\n<p>{}</p>",
        text::html(&run.scenario),
        run.number,
        run.seed,
        text::html(&run.version),
        text::html(&run.place),
        text::html(page.runbook),
        text::html(page.story)
    );
    findings(&mut out, page);
    let _ = writeln!(
        out,
        "<h2>What happened when</h2>\n<figure>{}<figcaption class=\"soft\">Seconds from the fault. Shaded: the longest time without an acknowledged submission. Terms by the leaders' own clocks.</figcaption></figure>",
        picture::svg(page)
    );
    figures(&mut out, page);
    delays(&mut out, page);
    ledger(&mut out, page);
    done(&mut out, page);
    out.push_str("</body>\n</html>\n");
    out
}

fn findings(out: &mut String, page: &Page<'_>) {
    let findings = &page.verdict.findings;
    if findings.is_empty() {
        let rules = Rule::ALL.len();
        let _ = writeln!(
            out,
            "<p>None of {rules} rules was broken; below is how much they were held against.</p>"
        );
        return;
    }
    out.push_str("<h2>What was found</h2>\n<ul class=\"findings\">\n");
    for (rule, breaches) in &findings.0 {
        let _ = writeln!(
            out,
            "<li><code>{rule}</code> {} time(s).{}<ul>",
            breaches.count,
            text::html(rule.says())
        );
        for finding in &breaches.first {
            let _ = write!(out, "<li>{}", text::html(&finding.text));
            for line in &finding.evidence {
                let _ = write!(out, "<br>{}", text::html(line));
            }
            out.push_str("</li>\n");
        }
        out.push_str("</ul></li>\n");
    }
    out.push_str("</ul>\n");
}

fn figures(out: &mut String, page: &Page<'_>) {
    out.push_str("<h2>Figures</h2>\n<div class=\"wide\"><table><tr><th>what</th><th class=\"n\">measured</th><th class=\"n\">bar</th></tr>\n");
    for figure in page.figures() {
        let class = match figure.is_met {
            Some(true) => "n met",
            Some(false) => "n missed",
            None => "n",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"{class}\">{}</td><td class=\"n\">{}</td></tr>",
            text::html(&figure.name),
            figure.value,
            figure.bar
        );
    }
    out.push_str("</table></div>\n");
}

fn delays(out: &mut String, page: &Page<'_>) {
    out.push_str("<h2>Delays</h2>\n<p class=\"soft\">Answered of made, p50, p99 and slowest, by clients that no step cut off.</p>\n<div class=\"wide\"><table><tr><th>kind</th><th>before the fault</th><th>while it lasted</th><th>behind it</th></tr>\n");
    let cell = |delays: &Delays| {
        let Delays { made, answered, p50_us, p99_us, max_us } = *delays;
        let [p50, p99, max] = [p50_us, p99_us, max_us].map(text::microseconds);
        if made == 0 { "none".to_owned() } else { format!("{answered} of {made}<br>{p50}, {p99}, {max}") }
    };
    for (kind, figures) in &page.verdict.figures.kinds {
        let [before, during, after] = [&figures.before, &figures.during, &figures.after].map(cell);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{before}</td><td>{during}</td><td>{after}</td></tr>",
            kind.words()
        );
    }
    out.push_str("</table></div>\n");
}

fn ledger(out: &mut String, page: &Page<'_>) {
    let ledger = &page.verdict.ledger;
    let _ = writeln!(
        out,
        "<h2>What it cost the gangs</h2>\n<p>{} ran when the fault began; {} interrupted, {} ran again; {} of accelerator time lost.</p>",
        page.verdict.gangs_at_fault,
        ledger.total.interruptions,
        ledger.total.running_again,
        text::accelerator_time(ledger.total.accelerator_ms)
    );
    if ledger.interruptions.is_empty() {
        return;
    }
    out.push_str("<div class=\"wide\"><table><tr><th>tenant or region</th><th class=\"n\">interrupted</th><th class=\"n\">ran again</th><th class=\"n\">lost</th></tr>\n");
    for (name, loss) in ledger.by_tenant.iter().chain(&ledger.by_region) {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            text::html(name),
            loss.interruptions,
            loss.running_again,
            text::accelerator_time(loss.accelerator_ms)
        );
    }
    out.push_str("</table></div>\n<div class=\"wide\"><table><tr><th>gang</th><th>why</th><th>from, to</th><th class=\"n\">accelerators</th><th class=\"n\">to do again</th><th class=\"n\">idle</th><th class=\"n\">lost</th></tr>\n");
    for interruption in ledger.interruptions.iter().take(INTERRUPTIONS_SHOWN_MAX) {
        row(out, interruption);
    }
    out.push_str("</table></div>\n");
    if let Some(more) = ledger.interruptions.len().checked_sub(INTERRUPTIONS_SHOWN_MAX + 1) {
        let _ = writeln!(out, "<p class=\"soft\">and {} more</p>", more + 1);
    }
}

fn row(out: &mut String, interruption: &Interruption) {
    let to = match (&interruption.region_after, interruption.ended) {
        (Some(region), _) => text::html(region),
        (None, true) => "ended".to_owned(),
        (None, false) => "not yet".to_owned(),
    };
    let _ = writeln!(
        out,
        "<tr><td>{} <span class=\"soft\">{}</span></td><td>{}</td><td>{}, {to}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
        text::html(&interruption.name),
        interruption.job,
        text::html(&interruption.cause),
        text::html(&interruption.region),
        interruption.accelerators,
        text::milliseconds(interruption.redone_ms),
        text::milliseconds(interruption.idle_ms),
        text::accelerator_time(interruption.lost_accelerator_ms)
    );
}

fn done(out: &mut String, page: &Page<'_>) {
    out.push_str("<h2>What was done</h2>\n<div class=\"wide\"><table><tr><th class=\"n\">from the fault</th><th>step</th><th>what</th></tr>\n");
    for step in &page.run.steps {
        let at_ms = step.at_us.saturating_sub(page.run.fault_us) / 1_000;
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td></tr>",
            text::milliseconds(at_ms),
            text::html(&step.verb),
            text::html(&step.text)
        );
    }
    for skipped in &page.run.skipped {
        let _ =
            writeln!(out, "<tr><td class=\"n\"></td><td>skipped</td><td>{}</td></tr>", text::html(skipped));
    }
    out.push_str("</table></div>\n<h2>What was looked at</h2>\n<div class=\"wide\"><table>\n");
    for (name, count) in looked_at(page.verdict) {
        let _ = writeln!(out, "<tr><td>{name}</td><td class=\"n\">{count}</td></tr>");
    }
    out.push_str("</table></div>\n");
}
