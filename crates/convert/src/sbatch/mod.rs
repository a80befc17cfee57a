//! Scripts with the directives of Slurm's `sbatch`.
//!
//! `sbatch` runs a script once, on the first node, and `srun` in it starts the tasks. A script here runs once in every worker, and
//! a worker is a task. So `srun` is a function that runs its command once: the same processes with the same ranks.

mod amounts;
mod directives;
mod hosts;
mod programs;
mod size;

use std::collections::BTreeMap;

use muster_types::{ArrayId, ArraySpec, JobId, Name};
use serde_json::{Value, json};

use crate::Options;
use crate::draft::{Draft, Group, Rules, STOP_GRACE_S_MAX, name_of};
use crate::finding::{FindingKind, Findings, shown};
use crate::metadata::{no_tier, tier_of};
use directives::{Directive, Directives};

/// The sentence for features.
const CONSTRAINT: &str =
    "a feature is a label of nodes: `--where LABEL`, or `nodes.expressions` in the converted document";
/// The command of a job has a script up to this size.
const LINE_ENDS: &str = "\r\n";

/// Whether a script has directives for `sbatch`.
pub fn has_directives(script: &str) -> bool {
    script.starts_with("#!") && has_lines(script)
}

/// Whether lines of a text are like directives for `sbatch`.
pub fn has_lines(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(directives::DIRECTIVE))
}

/// Converts a script.
pub fn convert(script: &str, options: &Options, findings: &Findings, honoured: &mut Vec<String>) -> Draft {
    let directives = directives::read(script, findings);
    let file = options.name.as_deref().unwrap_or("sbatch");
    let mut draft = Draft { name: name(&directives, file), failures_max: Some(0), ..Draft::default() };
    let size = size::size(&directives);
    let mut group = Group {
        workers: Some(size.tasks).filter(|tasks| *tasks > 1),
        min_workers: size.tasks_min,
        needs: size::needs(&directives, size, options),
        ..Group::default()
    };
    who(&directives, options, &mut draft);
    order(&directives, &mut draft);
    if group.needs.accelerators.is_none() {
        alone(&directives, size, &mut draft);
    }
    scratch(&directives, size, &mut draft);
    when(&directives, &mut draft);
    if let Some(directive) = directives.take("array") {
        match array(&directive.value) {
            Ok(array) => draft.array = Some(array),
            Err(why) => directives.refuse(directive, why),
        }
    }
    if let Some(directive) = directives.take("dependency") {
        dependencies(&directives, directive, &mut draft.after);
    }
    ends(&directives, &mut draft);
    environment(&directives, &mut group, &mut draft.rules);
    places(&directives, &mut draft);
    named_nodes(&directives, size, &mut draft);
    if script.contains(LINE_ENDS) {
        directives.say_at(
            "line 1",
            FindingKind::Refused,
            "lines end with carriage returns, which the interpreter would take for text",
        );
    }
    if size.tasks > 1 {
        directives.say_at(
            "script",
            FindingKind::Approximated,
            "it runs once in every worker, where sbatch runs it on the first node alone; commands outside of `srun` are run by all",
        );
    }
    let script = programs::prepare(script, findings);
    match muster_manifest::script_command(&script, &draft.name, &options.arguments) {
        Ok(command) => group.command = command,
        Err(problem) => directives.say_at("line 1", FindingKind::Refused, problem.description),
    }
    draft.groups.push(group);
    directives.report_unread(&advice, honoured);
    draft
}

fn name(directives: &Directives<'_>, file: &str) -> String {
    if let Some(directive) = directives.take("job-name") {
        let name = name_of(&directive.value);
        match &name {
            None => directives.refuse(directive, "must be a name with a letter or a digit"),
            Some(name) if *name != directive.value => {
                directives.approximate(
                    directive,
                    format!("names have lower-case letters, digits, '-', '_' and '.': {name}"),
                );
            }
            Some(_) => {}
        }
        if let Some(name) = name {
            return name;
        }
    }
    let last = file.rsplit('/').next().unwrap_or_default();
    name_of(last.split('.').next().unwrap_or_default()).unwrap_or_else(|| "script".to_owned())
}

/// Tenant, tier and annotations.
fn who(directives: &Directives<'_>, options: &Options, draft: &mut Draft) {
    if let Some(directive) = directives.take("account") {
        match Name::new(&directive.value.to_ascii_lowercase()) {
            Some(name) => draft.tenant = name.to_string(),
            None => directives
                .refuse(directive, format!("a tenant's name cannot be {:?}", shown(&directive.value))),
        }
    }
    if let Some(directive) = directives.take("qos") {
        match tier_of(&directive.value, options) {
            Some(tier) => draft.rules.tier = Some(tier),
            None => directives.drop(directive, no_tier(&directive.value)),
        }
    }
    if let Some(directive) = directives.take("comment") {
        if directive.value.chars().any(char::is_control) {
            directives.drop(directive, "annotations are texts without control characters");
        } else {
            draft.annotations.insert("comment".to_owned(), directive.value.clone());
        }
    }
}

/// Its place among the jobs of its tenant.
fn order(directives: &Directives<'_>, draft: &mut Draft) {
    let Some(directive) = directives.take("nice") else { return };
    let most = i64::from(muster_types::limits::NICE_MAX);
    let asked = if directive.value.is_empty() { Some(most) } else { directive.value.parse::<i64>().ok() };
    let Some(asked) = asked else {
        return directives.refuse(directive, format!("must be a number, got {:?}", shown(&directive.value)));
    };
    let nice = asked.clamp(-most, most);
    if nice != asked {
        directives.approximate(directive, format!("nice values are from -{most} to {most}: {nice}"));
    }
    draft.rules.nice = i32::try_from(nice).ok().filter(|nice| *nice != 0);
}

/// Whole hosts for a job without accelerators.
fn alone(directives: &Directives<'_>, size: size::Size, draft: &mut Draft) {
    let Some(directive) = directives.take("exclusive") else { return };
    if directive.value.is_empty() && size.per_node > 1 {
        // As many hosts as tasks would be many times what the script asks for.
        directives.drop(
            directive,
            "a task is a worker, and each would have a host to itself; ask for one worker a node with `exclusive: true`, which starts \
             the tasks of its node",
        );
    } else if directive.value.is_empty() {
        draft.rules.exclusive = Some(true);
        directives.approximate(directive, "each worker has a host without accelerators to itself");
    } else {
        directives.drop(directive, "hosts are kept from all other jobs, or from none");
    }
}

/// Scratch of each worker, from what each node has to have.
fn scratch(directives: &Directives<'_>, size: size::Size, draft: &mut Draft) {
    let Some(directive) = directives.take("tmp") else { return };
    let Some(bytes) = amounts::bytes(&directive.value) else {
        let rule = format!("must be a size like 200G, got {:?}", shown(&directive.value));
        return directives.refuse(directive, rule);
    };
    draft.rules.scratch_bytes =
        Some(bytes.div_ceil(u64::from(size.per_node.max(1)))).filter(|bytes| *bytes > 0);
    let text = "each worker has its part of it as a directory that MUSTER_SCRATCH names, and no other job has that part";
    directives.approximate(directive, text);
}

/// Limits and moments.
fn when(directives: &Directives<'_>, draft: &mut Draft) {
    if let Some(directive) = directives.take("time") {
        match amounts::limit_s(&directive.value) {
            Some(seconds) => draft.rules.run_time_limit_s = Some(seconds).filter(|seconds| *seconds > 0),
            None => {
                directives.refuse(
                    directive,
                    format!("must be a time like 2-12:00:00, got {:?}", shown(&directive.value)),
                );
            }
        }
    }
    let moment = |name: &str| {
        let directive = directives.take(name)?;
        let moment = amounts::moment(&directive.value);
        match &moment {
            Some(moment) if moment.ends_with('Z') => {
                directives.approximate(directive, "the time is taken for one of UTC")
            }
            Some(_) => {}
            None => directives.refuse(
                directive,
                format!(
                    "must be a date like 2027-01-31T18:00:00, or now+2hours, got {:?}",
                    shown(&directive.value)
                ),
            ),
        }
        moment
    };
    draft.not_before = moment("begin").filter(|moment| moment != "+0");
    draft.deadline = moment("deadline");
    if let Some(directive) = directives.take("signal") {
        signal(directives, directive, draft);
    }
}

/// `[B:]USR1@120`: a signal, so long before the end.
fn signal(directives: &Directives<'_>, directive: &Directive, draft: &mut Draft) {
    let (flags, text) = directive.value.split_once(':').unwrap_or(("", directive.value.as_str()));
    let (signal, seconds) = text.split_once('@').unwrap_or((text, "60"));
    let is_signal = !signal.is_empty() && flags.chars().all(|flag| "BRbr".contains(flag));
    let Some(seconds) = muster_types::quantity::whole(seconds).filter(|_| is_signal) else {
        directives.refuse(
            directive,
            format!("must be a signal and seconds like USR1@120, got {:?}", shown(&directive.value)),
        );
        return;
    };
    let grace_s = seconds.clamp(1, STOP_GRACE_S_MAX);
    draft.rules.stop_grace_s = Some(grace_s);
    let mut sentence = format!(
        "a worker that is stopped, at its time limit or before, gets SIGTERM and {grace_s} s later SIGKILL (`stopGrace`); nothing is sent before the limit"
    );
    if !["TERM", "SIGTERM", "15"].contains(&signal.to_ascii_uppercase().as_str()) {
        sentence += &format!(", and {} is not sent", shown(signal));
    }
    if grace_s < seconds {
        sentence += &format!("; a worker has at most {STOP_GRACE_S_MAX} s to stop");
    }
    directives.approximate(directive, sentence);
}

/// Indices of an array. A number by itself is one index in Slurm. Else the sentence of what is wrong.
fn array(text: &str) -> Result<String, String> {
    let (members, throttle) =
        text.split_once('%').map_or((text, None), |(members, throttle)| (members, Some(throttle)));
    if throttle.and_then(muster_types::quantity::whole) == Some(0) {
        return Err("with %0 no member would run; leave it out where all may run at once".to_owned());
    }
    let is_one = !members.is_empty() && members.bytes().all(|b| b.is_ascii_digit());
    let members = if is_one { format!("{members}-{members}") } else { members.to_owned() };
    let array = throttle.map_or(members.clone(), |throttle| format!("{members}%{throttle}"));
    match ArraySpec::parse(&array) {
        Ok(_) => Ok(array),
        Err(_) => Err(format!("must be indices like 0-99:5,200%4, got {:?}", shown(text))),
    }
}

/// `afterok:job-3f0,afterany:array-3f0`: ids are those of Muster.
fn dependencies(directives: &Directives<'_>, directive: &Directive, after: &mut Vec<Value>) {
    if directive.value.contains('?') {
        directives
            .refuse(directive, "a job waits for all that it names; for one of several (`?`) it cannot wait");
        return;
    }
    for part in directive.value.split(',').filter(|part| !part.is_empty()) {
        let (rule, ids) = part.split_once(':').unwrap_or((part, ""));
        let when = match rule {
            "afterok" | "aftercorr" => "succeeded",
            "afterany" => "finished",
            "singleton" => {
                directives
                    .drop(directive, "jobs of one name do not wait for each other; name what it waits for");
                continue;
            }
            _ => {
                let rule = shown(rule);
                directives.refuse(directive, format!("jobs wait until others have succeeded (afterok) or ended (afterany), and not for {rule}"));
                continue;
            }
        };
        for id in ids.split(':') {
            match dependency(id, when, rule == "aftercorr") {
                Some(dependency) => after.push(dependency),
                None => directives.refuse(
                    directive,
                    format!(
                        "{:?} is no job of Muster: ids are like job-3f0, and of an array array-3f0",
                        shown(id)
                    ),
                ),
            }
        }
    }
}

fn dependency(id: &str, when: &str, by_member: bool) -> Option<Value> {
    if id.parse::<ArrayId>().is_ok() {
        return Some(match by_member {
            true => json!({ "array": id, "when": when, "byMember": true }),
            false => json!({ "array": id, "when": when }),
        });
    }
    (id.parse::<JobId>().is_ok() && !by_member).then(|| json!({ "job": id, "when": when }))
}

/// What becomes of a job whose node is lost.
fn ends(directives: &Directives<'_>, draft: &mut Draft) {
    if let Some(directive) = directives.take("requeue") {
        directives.approximate(directive, "a job whose nodes are lost or drained is always tried again");
    }
    if let Some(directive) = directives.take("no-requeue") {
        for class in ["node_fault", "lost", "backend_lost", "preempted", "evicted"] {
            draft.retry_limits.insert(class, 0);
        }
        directives.approximate(
            directive,
            "an attempt that ends before its work is done is the last, whatever ended it",
        );
    }
}

fn environment(directives: &Directives<'_>, group: &mut Group, rules: &mut Rules) {
    if let Some(directive) = directives.take("get-user-env") {
        rules.shell = Some("login");
        let sentence = "a login shell of the worker's user on its host runs the command";
        directives.approximate(directive, sentence);
    }
    let Some(directive) = directives.take("export") else { return };
    for part in directive.value.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, value)) => {
                group.environment.insert(name.to_owned(), value.to_owned());
            }
            None if part.eq_ignore_ascii_case("none") || part.eq_ignore_ascii_case("nil") => {}
            None => {
                let path = format!("{}={}", directive.path, shown(part));
                let sentence = "the environment of the command that submits does not go with the job; name each variable with its value";
                directives.say_at(&path, FindingKind::NotHonoured, sentence);
            }
        }
    }
}

fn places(directives: &Directives<'_>, draft: &mut Draft) {
    if let Some(directive) = directives.take("chdir") {
        if directive.value.starts_with('/') {
            draft.rules.working_directory = Some(directive.value.clone());
        } else {
            directives.refuse(directive, "must be an absolute path, which the nodes have");
        }
    }
    if let Some(directive) = directives.take("partition") {
        let labels: Option<Vec<Name>> = directive
            .value
            .split(',')
            .map(|partition| Name::new(&format!("slurm-partition.{}", partition.to_ascii_lowercase())))
            .collect();
        match labels.as_deref() {
            Some([label]) => directives.drop(
                directive,
                format!("nodes are not divided into partitions; those of a Slurm cluster below have the label `{label}`, which `nodeSelector` takes"),
            ),
            _ => directives.drop(directive, "nodes are not divided into partitions; `nodeSelector` and `--region` choose among them"),
        }
    }
    if let Some(directive) = directives.take("reservation") {
        match Name::new(&directive.value.to_ascii_lowercase()) {
            Some(name) => draft.rules.booking = Some(name.to_string()),
            None => directives.drop(
                directive,
                "a job names one booking, by a name of letters, digits, '-', '_' and '.': `booking`",
            ),
        }
    }
    if let Some(directive) = directives.take("licenses") {
        match licences(&directive.value) {
            Some(licences) => draft.rules.licences = licences,
            None => directives.drop(
                directive,
                "a job asks for all of a list of names with counts, like ansys:2,matlab: `licences`",
            ),
        }
    }
    if let Some(directive) = directives.take("switches") {
        if directive.value.split('@').next() == Some("1") {
            draft.rules.preferred = Some("rack");
            directives.approximate(directive, "all workers are in one rack if that can be had");
        } else {
            directives.drop(directive, "`topology` takes one domain: block, rack or host");
        }
    }
}

/// Nodes that are chosen or excluded by name.
fn named_nodes(directives: &Directives<'_>, size: size::Size, draft: &mut Draft) {
    let read = |option| {
        let directive = directives.take(option)?;
        match hosts::expand(&directive.value) {
            Ok(names) => Some((directive, names)),
            Err(sentence) => {
                directives.refuse(directive, sentence);
                None
            }
        }
    };
    if let Some((_, names)) = read("exclude") {
        draft.rules.exclude = names;
    }
    if let Some((directive, names)) = read("nodelist") {
        if let Some(both) = names.iter().find(|name| draft.rules.exclude.contains(name)) {
            directives.refuse(directive, format!("names {both}, which --exclude excludes"));
            return;
        }
        let least = size.tasks_min.unwrap_or(size.tasks).div_ceil(size.per_node.max(1));
        if (names.len() as u64) < u64::from(least) {
            directives.drop(
                directive,
                "sbatch adds other nodes where the list has too few, and `nodes.only` names all that a job may be on",
            );
            return;
        }
        draft.rules.only = names;
        directives.approximate(
            directive,
            "the job is on nodes of this list and on no others, and not on all of them where it needs fewer",
        );
    }
}

/// Names with counts; none for a list of which one is enough, for names of a server, and for a name that stands there twice.
fn licences(text: &str) -> Option<BTreeMap<String, u32>> {
    let mut licences = BTreeMap::new();
    for part in text.split(',') {
        let (name, count) = part.trim().split_once(':').unwrap_or((part.trim(), "1"));
        let count = count.parse::<u32>().ok().filter(|count| *count > 0)?;
        let name = Name::new(&name.to_ascii_lowercase())?.to_string();
        if licences.insert(name, count).is_some() {
            return None;
        }
    }
    Some(licences)
}

/// The sentence for an option that nothing reads.
fn advice(name: &str) -> &'static str {
    match name {
        "output" | "error" | "open-mode" => {
            "the output of every worker is kept on its node: `muster logs JOB-ID --rank N`"
        }
        "input" => "workers read nothing from their standard input",
        "mail-type" | "mail-user" => {
            "addresses are not taken over; `notify` of a job document names receivers that the policy allows, and `muster job wait JOB-ID` \
             returns when it has ended"
        }
        "exclusive" => "of nodes with accelerators, ask for all devices, CPUs and memory",
        "constraint" | "prefer" => CONSTRAINT,
        "nodefile" => "the file is not read; `--nodelist` names the nodes",
        "hold" => "the job starts when there is capacity; `muster submit --hold` submits it held",
        "priority" => "the order is decided by tiers and shares of tenants: `tier`",
        "export-file" => {
            "the environment of the command that submits does not go with the job; name each variable under --export"
        }
        "container" | "container-id" => {
            "the command runs as a process of its host; write `container: {image: …}` into the converted document"
        }
        "time-min" => "a limit is not made shorter so that the job starts earlier",
        "oversubscribe" | "overcommit" => {
            "nodes are shared anyhow, and devices and CPUs are promised to one worker at a time"
        }
        "wckey" => "work is accounted by tenants and labels",
        "ntasks-per-gpu" | "gpus-per-socket" | "ntasks-per-socket" | "ntasks-per-core" => {
            "workers are counted by --ntasks and --ntasks-per-node, and devices by --gpus-per-node, --gpus-per-task or --gres"
        }
        "cpus-per-gpu" | "mem-per-cpu" | "mem-per-gpu" => "another option says how much a worker has",
        "contiguous" | "segment" | "spread-job" | "distribution" => "use `topology` of a job document",
        "wait" => "`muster submit --wait` returns when the job has ended",
        "test-only" => "`muster plan` says when it would start",
        "clusters" | "cluster-constraint" => "regions are chosen by `--region`",
        "parsable" | "quiet" | "verbose" | "ignore-pbs" => "it is about what sbatch prints or reads",
        _ => "a job document has no such field",
    }
}

#[cfg(test)]
mod tests {
    use super::licences;

    #[test]
    fn licences_have_a_count_and_stand_there_once() {
        let read = |text: &str| licences(text).map(|found| found.into_iter().collect::<Vec<_>>());
        assert_eq!(read("ANSYS:2, matlab"), Some(vec![("ansys".to_owned(), 2), ("matlab".to_owned(), 1)]));
        for wrong in ["", "ansys:0", "ansys:x", "ansys:1|matlab:1", "ansys@lab:1", "ansys:1,matlab,ansys:2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
