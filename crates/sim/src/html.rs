//! A report as one page that needs nothing else: no script, no font, no address.
//!
//! Light and dark follow the reader's system. Every chart has a title and a sentence for those who do not
//! see it, and the numbers behind it stand in a table or in the marks' own titles.

use std::fmt::Write as _;

use crate::queue::{Missing, RegionUse, Report};
use crate::summary::Quantiles;

/// Size of a chart in its own units.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
/// Space for the labels of the axes.
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 16.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--line:#d5dae0;--paper:#fff;--mark:#2563a8}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa5b1;--line:#39424c;--paper:#14181d;--mark:#6fb1f0}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}p.soft{color:var(--soft)}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}\
th,td{padding:.25rem .8rem .25rem 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}caption{text-align:left;color:var(--soft)}\
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}\
.axis{stroke:var(--line);stroke-width:1}.mark{fill:var(--mark)}.curve{fill:none;stroke:var(--mark);stroke-width:2}\
.area{fill:var(--mark);fill-opacity:.15}.whisker{stroke:var(--mark);stroke-width:2}.middle{stroke:var(--paper);stroke-width:3}";

/// Tenants of one table.
const TENANTS_MAX: usize = 50;

/// The page of a report, or of several of one trace under different policies.
#[must_use]
pub fn page(reports: &[Report]) -> String {
    let mut body = String::new();
    let policies: Vec<String> = reports.iter().map(|report| escape(&report.policy)).collect();
    let title = format!("Replay under {}", policies.join(" and "));
    if reports.len() > 1 {
        side_by_side(&mut body, reports);
    }
    for (report, policy) in reports.iter().zip(&policies) {
        if reports.len() > 1 {
            put(&mut body, format_args!("<h2>Under {policy}</h2>\n"));
        }
        summary(&mut body, report);
        if report.tenants.len() > 1 {
            section(&mut body, "Tenants", &tenants(report));
        }
        section(&mut body, "Queue length", &queue_length(report));
        section(&mut body, "Waits by size of the gang", &waits_by_size(report));
        section(&mut body, "Distribution of waits", &distribution(report));
        section(&mut body, "Utilisation by region and day", &heat_map(&report.regions));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n",
    )
}

/// One row for each tenant of any of the reports, one group of columns for each policy.
fn side_by_side(body: &mut String, reports: &[Report]) {
    body.push_str("<section>\n<h2>Policies side by side</h2>\n<table>\n<tr><th scope=\"col\">Mean wait, longest wait, refused</th>");
    for report in reports {
        put(body, format_args!("<th scope=\"col\">{}</th>", escape(&report.policy)));
    }
    body.push_str("</tr>\n<tr><th scope=\"row\">everybody</th>");
    for report in reports {
        let refused: u64 = report.refused.iter().map(|reason| reason.jobs.count).sum();
        put(
            body,
            format_args!(
                "<td>{:.0} s, {:.0} s, {refused}</td>",
                report.queueing.avg_s, report.queueing.max_s
            ),
        );
    }
    body.push_str("</tr>\n");
    for row in crate::comparison::side_by_side(reports).into_iter().take(TENANTS_MAX) {
        put(body, format_args!("<tr><th scope=\"row\">{}</th>", escape(row.tenant)));
        for tenant in row.reports {
            let text = tenant.map_or("-".to_owned(), |tenant| {
                format!("{:.0} s, {:.0} s, {}", tenant.queueing.avg_s, tenant.queueing.max_s, tenant.refused)
            });
            put(body, format_args!("<td>{text}</td>"));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table>\n</section>\n");
}

fn tenants(report: &Report) -> String {
    let mut table = String::from(
        "<table>\n<caption>Waits in seconds; device-hours within nominal quotas and borrowed; times stopped by \
         policy and device-hours lost by that.</caption>\n<tr>",
    );
    let columns = [
        "Tenant", "jobs", "mean", "p50", "p90", "max", "within", "borrowed", "stopped", "lost", "refused",
        "waiting",
    ];
    for column in columns {
        put(&mut table, format_args!("<th scope=\"col\">{column}</th>"));
    }
    table.push_str("</tr>\n");
    for tenant in report.tenants.iter().take(TENANTS_MAX) {
        let waits = &tenant.queueing;
        put(
            &mut table,
            format_args!(
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td>\
                 <td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>\n",
                escape(&tenant.tenant),
                tenant.jobs,
                waits.avg_s,
                waits.p50_s,
                waits.p90_s,
                waits.max_s,
                tenant.device_hours_within_nominal,
                tenant.device_hours_borrowed,
                tenant.stopped_by_policy,
                tenant.device_hours_lost,
                tenant.refused,
                tenant.unfinished,
            ),
        );
    }
    table.push_str("</table>\n");
    if report.tenants.len() > TENANTS_MAX {
        put(
            &mut table,
            format_args!(
                "<p class=\"soft\">{} more tenants are not shown.</p>\n",
                report.tenants.len() - TENANTS_MAX
            ),
        );
    }
    table
}

fn section(body: &mut String, title: &str, content: &str) {
    put(body, format_args!("<section>\n<h2>{title}</h2>\n{content}</section>\n"));
}

/// Appends; a string takes whatever is written to it.
fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all text");
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

fn summary(body: &mut String, report: &Report) {
    let home = if report.home_only { "each job in its home cluster" } else { "the fleet as one pool" };
    put(
        body,
        format_args!(
            "<p>{} jobs on {} nodes with {} devices, {home}; {} ran to their end.</p>\n",
            report.jobs, report.nodes, report.devices, report.finished
        ),
    );
    let rows = [
        ("Utilisation", format!("{:.1} %", report.utilisation * 100.0)),
        ("Device-hours held", format!("{:.0}", report.device_hours_held)),
        ("Device-hours lost", format!("{:.0}", report.device_hours_lost)),
        ("Preemptions", report.preemptions.to_string()),
        ("Moves", report.moves.to_string()),
        ("Evictions", report.evictions.to_string()),
        ("Stops for windows", report.window_stops.to_string()),
        ("Decisions", report.decisions.to_string()),
        ("Decisions per second", format!("{:.0}", report.decisions_per_s)),
    ];
    body.push_str("<table>\n<caption>In short</caption>\n");
    for (name, value) in rows {
        put(body, format_args!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>\n"));
    }
    body.push_str("</table>\n");
    let missing = [
        ("could never run", &report.never_fit),
        ("were left out", &report.without_duration),
        ("still waited at the end", &report.unfinished),
    ];
    for (what, missing) in missing {
        missing_jobs(body, what, missing);
    }
    missing_jobs(body, "were ended at their deadline", &report.late);
    for reason in &report.refused {
        missing_jobs(body, &format!("were refused by the policy, {}", reason.code), &reason.jobs);
    }
    for note in &report.notes {
        put(body, format_args!("<p>Note: {}</p>\n", escape(note)));
    }
    body.push_str(
        "<table>\n<caption>Seconds. Queueing is from submission to the start of the run that the job ended \
         by, completion to its end; percentiles are the nearest rank.</caption>\n<tr><th scope=\"col\"></th>\
         <th scope=\"col\">jobs</th><th scope=\"col\">mean</th><th scope=\"col\">p50</th>\
         <th scope=\"col\">p90</th><th scope=\"col\">p99</th><th scope=\"col\">max</th></tr>\n",
    );
    quantile_row(body, "Completion", &report.completion);
    quantile_row(body, "Queueing", &report.queueing);
    for class in &report.queueing_by_size {
        quantile_row(body, &format!("Queueing, {} devices", class.devices), &class.waits);
    }
    body.push_str("</table>\n");
}

fn missing_jobs(body: &mut String, what: &str, missing: &Missing) {
    if missing.count == 0 {
        return;
    }
    put(body, format_args!("<p>{} jobs {what}, among them:</p>\n<ul>\n", missing.count));
    for example in &missing.examples {
        put(body, format_args!("<li>{}: {}</li>\n", escape(&example.job), escape(&example.reason)));
    }
    body.push_str("</ul>\n");
}

fn quantile_row(body: &mut String, name: &str, of: &Quantiles) {
    put(
        body,
        format_args!(
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td>\
             <td>{:.0}</td><td>{:.0}</td></tr>\n",
            of.count, of.avg_s, of.p50_s, of.p90_s, of.p99_s, of.max_s
        ),
    );
}

/// Begins a chart with what it says in words.
fn chart(title: &str, says: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}. {says}\">\n<title>{title}</title>\n"
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    put(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escape(words)),
    );
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    put(
        svg,
        format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ),
    );
}

/// A point of a chart from shares of its axes.
fn at(x: f64, y: f64) -> (f64, f64) {
    (LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - BOTTOM - TOP))
}

fn horizontal_grid(svg: &mut String, labels: &[(f64, String)]) {
    for (share, label) in labels {
        let (from, to) = (at(0.0, *share), at(1.0, *share));
        line(svg, "axis", from, to);
        text(svg, from.0 - 8.0, from.1 + 4.0, "end", label);
    }
}

fn queue_length(report: &Report) -> String {
    let lengths = &report.queue_lengths;
    let longest = lengths.iter().map(|point| point.waiting_max).max().unwrap_or(0);
    let says = format!("At most {longest} jobs waited at once.");
    let mut svg = chart("Jobs waiting over time", &says, HEIGHT);
    let share = |count: u64| if longest == 0 { 0.0 } else { count as f64 / longest as f64 };
    let ticks = [0.0, 0.5, 1.0].map(|part| (part, format!("{:.0}", longest as f64 * part)));
    horizontal_grid(&mut svg, &ticks);
    let end_s = lengths.last().map_or(1, |point| point.from_s).max(1) as f64;
    let mut path = String::new();
    for point in lengths {
        let (x, y) = at(point.from_s as f64 / end_s, share(point.waiting_max));
        // A stretch has one length: steps, not slopes.
        let step = if path.is_empty() { format!("M{x:.1} {y:.1}") } else { format!("H{x:.1}V{y:.1}") };
        path.push_str(&step);
    }
    if !path.is_empty() {
        let ((x0, y0), (x1, _)) = (at(0.0, 0.0), at(1.0, 0.0));
        put(&mut svg, format_args!("<path class=\"area\" d=\"{path}H{x1:.1}V{y0:.1}H{x0:.1}Z\"/>\n"));
        put(&mut svg, format_args!("<path class=\"curve\" d=\"{path}\"/>\n"));
    }
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (x, y) = at(part, 0.0);
        text(&mut svg, x, y + 18.0, "middle", &format!("day {:.1}", end_s * part / 86_400.0));
    }
    format!("{svg}</svg>\n<p class=\"soft\">The longest queue of each stretch of time. {says}</p>\n")
}

/// Waits lie between nothing and weeks: an axis of logarithms, with zero on it.
struct Waits {
    max_s: f64,
}

impl Waits {
    fn share(&self, seconds: f64) -> f64 {
        if self.max_s <= 0.0 { 0.0 } else { seconds.ln_1p() / self.max_s.ln_1p() }
    }

    fn ticks(&self) -> Vec<(f64, &'static str)> {
        let all = [
            (0.0, "0"),
            (10.0, "10 s"),
            (60.0, "1 min"),
            (600.0, "10 min"),
            (3_600.0, "1 h"),
            (21_600.0, "6 h"),
            (86_400.0, "1 d"),
            (604_800.0, "1 wk"),
            (2_592_000.0, "30 d"),
        ];
        all.into_iter().filter(|(s, _)| *s <= self.max_s).map(|(s, label)| (self.share(s), label)).collect()
    }
}

fn waits_by_size(report: &Report) -> String {
    const ROW: f64 = 30.0;
    let boxes = &report.drawing.boxes;
    let scale = Waits { max_s: report.queueing.max_s };
    let height = TOP + ROW * boxes.len() as f64 + BOTTOM;
    let mut svg = chart("Waits by devices of the gang", "The numbers are in the table above.", height);
    let x_of = |seconds: f64| at(scale.share(seconds), 0.0).0;
    let floor = height - BOTTOM;
    for (share, label) in scale.ticks() {
        let (x, _) = at(share, 0.0);
        line(&mut svg, "axis", (x, TOP), (x, floor));
        text(&mut svg, x, floor + 18.0, "middle", label);
    }
    for (row, spread) in boxes.iter().enumerate() {
        let y = TOP + ROW * (row as f64 + 0.5);
        let [low, middle, high] = spread.quartiles_s;
        text(&mut svg, LEFT - 8.0, y + 4.0, "end", &spread.devices);
        put(
            &mut svg,
            format_args!(
                "<g><title>{} devices: {} jobs; p25 {low} s, p50 {middle} s, p75 {high} s, p90 {} s, max {} s</title>\n",
                spread.devices, spread.count, spread.p90_s, spread.max_s
            ),
        );
        line(&mut svg, "whisker", (x_of(high), y), (x_of(spread.p90_s), y));
        // Something to see where half of the jobs do not wait at all.
        let width = (x_of(high) - x_of(low)).max(2.0);
        put(
            &mut svg,
            format_args!(
                "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\"/>\n",
                x_of(low),
                y - 8.0
            ),
        );
        line(&mut svg, "middle", (x_of(middle), y - 8.0), (x_of(middle), y + 8.0));
        put(
            &mut svg,
            format_args!(
                "<circle class=\"mark\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\"/>\n</g>\n",
                x_of(spread.max_s)
            ),
        );
    }
    format!(
        "{svg}</svg>\n<p class=\"soft\">Bar: the middle half, with the median in it; line: up to the 90th \
         percentile; dot: the longest. Times are on a logarithmic axis.</p>\n"
    )
}

fn distribution(report: &Report) -> String {
    let scale = Waits { max_s: report.queueing.max_s };
    let points = &report.drawing.distribution;
    let at_once = points.iter().rev().find(|(wait_s, _)| *wait_s <= 0.0).map_or(0.0, |(_, percent)| *percent);
    let says = format!("About {at_once:.0} percent of the jobs did not wait.");
    let mut svg = chart("Percent of jobs that waited at most so long", &says, HEIGHT);
    let ticks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| (part, format!("{:.0} %", part * 100.0)));
    horizontal_grid(&mut svg, &ticks);
    for (share, label) in scale.ticks() {
        let (x, y) = at(share, 0.0);
        text(&mut svg, x, y + 18.0, "middle", label);
    }
    let place = |(wait_s, percent): &(f64, f64)| {
        let (x, y) = at(scale.share(*wait_s), percent / 100.0);
        format!("{x:.1},{y:.1}")
    };
    let places: Vec<String> = points.iter().map(place).collect();
    put(&mut svg, format_args!("<polyline class=\"curve\" points=\"{}\"/>\n", places.join(" ")));
    format!("{svg}</svg>\n<p class=\"soft\">{says} Times are on a logarithmic axis.</p>\n")
}

fn heat_map(regions: &[RegionUse]) -> String {
    const ROW: f64 = 24.0;
    const NAMES: f64 = 130.0;
    let days = regions.iter().map(|region| region.by_day_percent.len()).max().unwrap_or(0);
    if days == 0 {
        return "<p>There was no work.</p>\n".to_owned();
    }
    let height = ROW * regions.len() as f64 + BOTTOM;
    let cell = (WIDTH - NAMES) / days as f64;
    let mut svg = chart("Utilisation by region and day", "Darker is fuller.", height);
    for (row, region) in regions.iter().enumerate() {
        let y = ROW * row as f64;
        text(&mut svg, NAMES - 8.0, y + 16.0, "end", &region.region);
        for (day, percent) in region.by_day_percent.iter().enumerate() {
            let Some(percent) = percent else { continue };
            let (x, opacity) = (NAMES + cell * day as f64, percent / 100.0);
            put(
                &mut svg,
                format_args!(
                    "<rect class=\"mark\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                     fill-opacity=\"{opacity:.3}\"><title>{}, day {day}: {percent:.1} %</title></rect>\n",
                    (cell - 1.0).max(cell * 0.8),
                    ROW - 2.0,
                    escape(&region.region),
                ),
            );
        }
    }
    for day in (0..days).step_by(days.div_ceil(15)) {
        text(&mut svg, NAMES + cell * (day as f64 + 0.5), height - 14.0, "middle", &day.to_string());
    }
    let mut table = String::from(
        "<table>\n<tr><th scope=\"col\">Region</th><th scope=\"col\">devices</th><th scope=\"col\">utilisation</th></tr>\n",
    );
    for region in regions {
        put(
            &mut table,
            format_args!(
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{:.1} %</td></tr>\n",
                escape(&region.region),
                region.devices,
                region.utilisation * 100.0
            ),
        );
    }
    format!("{svg}</svg>\n<p class=\"soft\">Days of the trace; darker is fuller.</p>\n{table}</table>\n")
}
