//! The policy for people. Its settings are read from the policy file that `-o yaml` prints, by their names there.

use std::collections::BTreeMap;

use muster_console::Grid;
use muster_manifest::{Entry, Fields};

/// Settings in lines: a title, what it says, and what it says where the policy has none of it.
const SETTINGS: [(&str, &str, &str); 8] = [
    ("version", "{metadata.version}, set {metadata.setTime}", "{metadata.version}, as every cluster begins"),
    (
        "order",
        "{spec.order.by}, fair share {spec.order.fairShare}, usage halves every {spec.order.usageHalfLife}, ageing \
         {spec.order.ageing}",
        "",
    ),
    (
        "backfill",
        "{spec.backfill.reservations} reservations, {spec.backfill.depth} jobs deep, reserved after \
         {spec.backfill.reserveAfter} and {spec.backfill.reserveAfterRuns} runs",
        "",
    ),
    (
        "preemption",
        "{spec.preemption.enabled}, reclaim {spec.preemption.reclaimBorrowed}, after {spec.preemption.minimumRun}, at most \
         {spec.preemption.victims} victims, not again for {spec.preemption.backoff}",
        "",
    ),
    (
        "overdue",
        "starts after {spec.preemption.startingTimeout}, stops after {spec.preemption.stoppingTimeout}, owners of \
         reservations end overrunners: {spec.backfill.endOverrunners}",
        "",
    ),
    ("defragment", "{spec.preemption.defragment}, after {spec.preemption.defragmentWait}", ""),
    ("weights", "{spec.weights}", ""),
    ("isolation", "nodes must isolate workers by {spec.isolation.require}", "not required"),
];

/// A column: its title, what it says of an entry, and what it says where the entry has none of it.
type Column = (&'static str, &'static str, &'static str);

/// A table of a list: where that is in the file, what an entry must have to be a row, and its columns.
type List = (&'static str, &'static str, &'static [Column]);

const LISTS: [List; 21] = [
    (
        "spec.tenants",
        "{rights}",
        &[
            ("TENANT", "{@}", ""),
            ("TIERS UP TO", "{rights.tierMax}", ""),
            ("NON-PREEMPTIBLE", "{rights.nonPreemptible}", ""),
            ("DEADLINES", "{rights.deadlines}", ""),
            ("BOOKINGS", "{rights.bookings}", ""),
            ("PURCHASES", "{rights.purchases}", ""),
            ("NEGATIVE NICE", "{rights.negativeNice}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits}",
        &[
            ("TENANT", "{@}", ""),
            ("PENDING JOBS UP TO", "{limits.pendingJobs}", ""),
            ("UNFINISHED JOBS UP TO", "{limits.unfinishedJobs}", ""),
            ("RUNNING JOBS UP TO", "{limits.runningJobs}", ""),
            ("REQUESTS A MINUTE", "{limits.requestsPerMinute}", ""),
            ("AT A LIMIT", "{limits.onLimit}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.cpu}",
        &[("TENANT AND ALL BELOW IT", "{@}", ""), ("CPUS UP TO", "{limits.cpu}", "")],
    ),
    (
        "spec.tenants",
        "{limits.memory}",
        &[("TENANT AND ALL BELOW IT", "{@}", ""), ("MEMORY UP TO", "{limits.memory}", "")],
    ),
    (
        "spec.tenants",
        "{limits.user}",
        &[
            ("TENANT", "{@}", ""),
            ("PENDING JOBS OF A USER UP TO", "{limits.user.pendingJobs}", ""),
            ("UNFINISHED JOBS OF A USER UP TO", "{limits.user.unfinishedJobs}", ""),
            ("RUNNING JOBS OF A USER UP TO", "{limits.user.runningJobs}", ""),
            ("SUBMISSIONS OF A USER A MINUTE", "{limits.user.submissionsPerMinute}", ""),
            ("DEVICES OF A USER UP TO", "{limits.user.devices}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.job}",
        &[
            ("TENANT", "{@}", ""),
            ("DEVICES OF A JOB UP TO", "{limits.job.maxDevices}", ""),
            ("WORKERS OF A JOB UP TO", "{limits.job.maxWorkers}", ""),
            ("RUN TIME UP TO", "{limits.job.maxRunTime}", ""),
            ("RUN TIME BY DEFAULT", "{limits.job.defaultRunTime}", ""),
            ("ARTIFACTS OF A WORKER UP TO", "{limits.job.maxArtifacts}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.acceleratorHours}",
        &[
            ("TENANT", "{@}", ""),
            ("ACCELERATOR-HOURS UP TO", "{limits.acceleratorHours.most}", ""),
            ("IN EVERY", "{limits.acceleratorHours.window}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.user.acceleratorHours}",
        &[
            ("TENANT", "{@}", ""),
            ("ACCELERATOR-HOURS OF A USER UP TO", "{limits.user.acceleratorHours.most}", ""),
            ("IN EVERY", "{limits.user.acceleratorHours.window}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{queue}",
        &[
            ("TENANT", "{@}", ""),
            ("ORDER", "{queue.order}", ""),
            ("BLOCKS FOR", "{queue.blockFor}", ""),
            ("PREEMPTION", "{queue.preemption}", ""),
            ("NODES", "{queue.nodes}", ""),
            ("ISOLATED", "{queue.isolated}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.spend}",
        &[
            ("TENANT", "{@}", ""),
            ("DOLLARS UP TO", "${limits.spend.most}", ""),
            ("IN EVERY", "{limits.spend.window}", ""),
        ],
    ),
    (
        "spec.tenants",
        "{limits.user.spend}",
        &[
            ("TENANT", "{@}", ""),
            ("DOLLARS OF A USER UP TO", "${limits.user.spend.most}", ""),
            ("IN EVERY", "{limits.user.spend.window}", ""),
        ],
    ),
    (
        "spec.prices",
        "",
        &[
            ("TYPE", "{type}", ""),
            ("REGION", "{region}", "all"),
            ("PURCHASE", "{purchase}", "all"),
            ("FROM", "{startTime}", ""),
            ("UNTIL", "{endTime}", ""),
            ("DEVICE-HOUR", "${perDeviceHour}", "by parts"),
        ],
    ),
    (
        "spec.prices",
        "{owned.perDevice}",
        &[
            ("TYPE", "{type}", ""),
            ("REGION", "{region}", "all"),
            ("FROM", "{startTime}", ""),
            ("DEVICE", "${owned.perDevice}", ""),
            ("MONTHS", "{owned.months}", ""),
            ("WATTS", "{owned.watts}", ""),
            ("PUE", "{owned.pue}", ""),
            ("KWH", "${owned.perKwh}", ""),
        ],
    ),
    ("spec.datasets", "", &[("DATA SET", "{@}", ""), ("SIZE", "{size}", ""), ("REGIONS", "{regions}", "")]),
    (
        "spec.transfers",
        "",
        &[
            ("FROM", "{from}", "all"),
            ("TO", "{to}", "all"),
            ("GIB", "${perGib}", ""),
            ("SPEED", "{bytesPerSecond}/s", ""),
        ],
    ),
    ("spec.spareHostsPerRack", "", &[("TYPE", "{@}", ""), ("SPARE HOSTS PER RACK", "{}", "")]),
    (
        "spec.windows",
        "",
        &[
            ("WINDOW", "{name}", ""),
            ("FROM", "{startTime}", ""),
            ("UNTIL", "{endTime}", ""),
            ("PURPOSE", "for {reservedFor}", "maintenance"),
            ("SCOPE", "{scope}", ""),
        ],
    ),
    (
        "spec.notifications",
        "",
        &[
            ("RECEIVER", "{name}", ""),
            ("TENANT", "{tenant}", "all"),
            ("EVENTS", "{events}", ""),
            ("BODY", "{body}", ""),
            ("JOBS MAY NAME IT", "{forJobs}", "false"),
            ("URL", "{url}", "in a file"),
        ],
    ),
    (
        "spec.interruptionRates",
        "",
        &[
            ("PURCHASE", "{purchase}", ""),
            ("REGION", "{region}", "all"),
            ("INTERRUPTIONS A NODE AND DAY", "{perDay}", ""),
        ],
    ),
    (
        "spec.resources",
        "",
        &[("LICENCE", "{name}", ""), ("COUNT", "{count}", ""), ("REGION", "{region}", "all")],
    ),
    (
        "spec.roles",
        "",
        &[
            ("ROLE", "{@}", ""),
            ("PART OF", "{partOf}", ""),
            ("VERBS", "{verbs}", ""),
            ("REGIONS", "{regions}", "all"),
        ],
    ),
];

/// Columns of a tenant's quota, next to its name and weight.
const QUOTA: [Column; 5] = [
    ("TYPE", "{type}", ""),
    ("REGION", "{region}", "all"),
    ("NOMINAL", "{nominal}", ""),
    ("BORROWS", "{borrowingLimit}", "any"),
    ("LENDS", "{lendingLimit}", "all"),
];

/// Settings with their titles.
pub fn settings(file: &Fields) -> Vec<(&'static str, String)> {
    let line = |(title, text, otherwise): (&'static str, &str, &str)| {
        let said = file.fill(text).or_else(|| file.fill(otherwise)).filter(|said| !said.is_empty());
        said.map(|said| (title, said))
    };
    SETTINGS.into_iter().filter_map(line).collect()
}

/// Everything that is a list, as tables with their names; empty ones are left out.
pub fn tables(file: &Fields) -> Vec<Grid> {
    let mut tables = Vec::new();
    let mut add = |header: Vec<&'static str>, rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        let mut grid = Grid::new(header);
        rows.into_iter().for_each(|row| grid.row(row));
        tables.push(grid);
    };
    let titles = |columns: &[Column]| columns.iter().map(|(title, _, _)| *title).collect::<Vec<_>>();
    add([vec!["TENANT", "WEIGHT"], titles(&QUOTA)].concat(), tenant_rows(&file.entries("spec.tenants")));
    for (list, needs, columns) in LISTS {
        let entries = file.entries(list).into_iter().filter(|entry| entry.fill(needs).is_some());
        add(titles(columns), entries.map(|entry| row(&entry, columns)).collect());
    }
    tables
}

fn row(entry: &Entry<'_>, columns: &[Column]) -> Vec<String> {
    let cell = |(_, text, otherwise): &Column| entry.fill(text).unwrap_or_else(|| (*otherwise).to_owned());
    columns.iter().map(cell).collect()
}

/// The tree, tenants below their parents; a row for each quota.
fn tenant_rows(tenants: &[Entry<'_>]) -> Vec<Vec<String>> {
    let mut below: BTreeMap<String, Vec<&Entry<'_>>> = BTreeMap::new();
    for tenant in tenants {
        below.entry(tenant.fill("{parent}").unwrap_or_default()).or_default().push(tenant);
    }
    let mut rows = Vec::new();
    let mut seen = 0;
    // Last in, first out: pushed in reverse, so that siblings come by name.
    let mut stack: Vec<(usize, &Entry<'_>)> = Vec::new();
    let push = |stack: &mut Vec<_>, depth: usize, parent: &str| {
        stack.extend(below.get(parent).into_iter().flatten().rev().map(|tenant| (depth, *tenant)));
    };
    push(&mut stack, 0, "");
    while let Some((depth, tenant)) = stack.pop() {
        let shown = format!("{}{}", "  ".repeat(depth), tenant.name());
        let first = [shown, tenant.fill("{weight}").unwrap_or_default()];
        let quotas = tenant.entries("quotas");
        if quotas.is_empty() {
            rows.push([first.as_slice(), &QUOTA.map(|_| String::new())].concat());
        }
        rows.extend(quotas.iter().map(|quota| [first.as_slice(), &row(quota, &QUOTA)].concat()));
        // A policy that a server accepted has no cycles; of another, every tenant is shown once at most.
        seen += 1;
        if seen <= tenants.len() {
            push(&mut stack, depth + 1, tenant.name());
        }
    }
    rows
}
