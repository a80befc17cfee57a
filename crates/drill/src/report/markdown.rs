//! A page as Markdown.

use std::fmt::Write as _;

use super::{Page, looked_at, text};

/// Rows of the ledger that are shown.
const INTERRUPTIONS_SHOWN_MAX: usize = 50;

/// The whole page.
pub(super) fn page(page: &Page<'_>) -> String {
    let (run, verdict) = (page.run, page.verdict);
    let mut out = String::new();
    let word = if verdict.held { "held" } else { "broken" };
    let _ = write!(
        out,
        "# {}: {word}\n\nDrill {}, run {}, seed {}, Muster {}, {}. Runbook: {}\n\n{}\n",
        text::markdown(page.title),
        text::markdown(&run.scenario),
        run.number,
        run.seed,
        text::markdown(&run.version),
        text::markdown(&run.place),
        text::markdown(page.runbook),
        text::markdown(page.story)
    );
    if !verdict.findings.is_empty() {
        out.push_str("\n## What was found\n\n");
        for (rule, breaches) in &verdict.findings.0 {
            let _ = writeln!(out, "- **{rule}**, {} time(s).{}", breaches.count, text::markdown(rule.says()));
            for finding in &breaches.first {
                let _ = writeln!(out, "  - {}", text::markdown(&finding.text));
                for line in &finding.evidence {
                    let _ = writeln!(out, "    - {}", text::markdown(line));
                }
            }
        }
    }
    out.push_str("\n## Figures\n\n| what | measured | bar | |\n|---|---:|---:|---|\n");
    for figure in page.figures() {
        let met = match figure.is_met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "",
        };
        let _ = writeln!(out, "| {} | {} | {} | {met} |", figure.name, figure.value, figure.bar);
    }
    out.push_str("\n## Delays\n\nAnswered of made: p50, p99, slowest.\n\n| kind | before the fault | while it lasted | behind it |\n|---|---|---|---|\n");
    for (kind, figures) in &verdict.figures.kinds {
        let cells = [figures.before, figures.during, figures.after].map(|delays| {
            let [p50, p99, max] = [delays.p50_us, delays.p99_us, delays.max_us].map(text::microseconds);
            format!("{} of {}: {p50}, {p99}, {max}", delays.answered, delays.made)
        });
        let _ = writeln!(out, "| {} | {} |", kind.words(), cells.join(" | "));
    }
    ledger(&mut out, page);
    out.push_str("\n## What was done\n\n| from the fault | step | what |\n|---:|---|---|\n");
    for step in &run.steps {
        let at_ms = step.at_us.saturating_sub(run.fault_us) / 1_000;
        let (verb, words) = (text::markdown(&step.verb), text::markdown(&step.text));
        let _ = writeln!(out, "| {} | {verb} | {words} |", text::milliseconds(at_ms));
    }
    for skipped in &run.skipped {
        let _ = writeln!(out, "| | skipped | {} |", text::markdown(skipped));
    }
    out.push_str("\n## What was looked at\n\n| what | how many |\n|---|---:|\n");
    for (name, count) in looked_at(verdict) {
        let _ = writeln!(out, "| {name} | {count} |");
    }
    out
}

fn ledger(out: &mut String, page: &Page<'_>) {
    let ledger = &page.verdict.ledger;
    let _ = write!(
        out,
        "\n## What it cost the gangs\n\n{} ran when the fault began; {} interrupted, {} ran again; {} of accelerator time lost.\n",
        page.verdict.gangs_at_fault,
        ledger.total.interruptions,
        ledger.total.running_again,
        text::accelerator_time(ledger.total.accelerator_ms)
    );
    if ledger.interruptions.is_empty() {
        return;
    }
    out.push_str("\n| gang | tenant | why | from | to | accelerators | to do again | idle | lost |\n|---|---|---|---|---|---:|---:|---:|---:|\n");
    for interruption in ledger.interruptions.iter().take(INTERRUPTIONS_SHOWN_MAX) {
        let to = interruption.region_after.as_deref().unwrap_or(if interruption.ended {
            "ended"
        } else {
            "not yet"
        });
        let _ = writeln!(
            out,
            "| {} ({}) | {} | {} | {} | {} | {} | {} | {} | {} |",
            text::markdown(&interruption.name),
            interruption.job,
            text::markdown(&interruption.tenant),
            text::markdown(&interruption.cause),
            text::markdown(&interruption.region),
            text::markdown(to),
            interruption.accelerators,
            text::milliseconds(interruption.redone_ms),
            text::milliseconds(interruption.idle_ms),
            text::accelerator_time(interruption.lost_accelerator_ms)
        );
    }
    if let Some(more) = ledger.interruptions.len().checked_sub(INTERRUPTIONS_SHOWN_MAX + 1) {
        let _ = writeln!(out, "\nand {} more", more + 1);
    }
}
