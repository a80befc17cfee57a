//! How many workers a script has, and what each needs.

use crate::Options;
use crate::accelerator;
use crate::draft::Needs;
use crate::finding::{FindingKind, shown};

use super::amounts;
use super::directives::{Directive, Directives};

/// How many workers: one for each task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// All of them.
    pub tasks: u32,
    /// The fewest, of a job with a range of nodes.
    pub tasks_min: Option<u32>,
    /// Of one node.
    pub per_node: u32,
}

/// Reads the numbers of nodes and tasks.
pub fn size(directives: &Directives<'_>) -> Size {
    let nodes = nodes(directives);
    let (least, most) = nodes.unwrap_or((1, 1));
    let tasks = directives.count("ntasks");
    let per_node = directives.count("ntasks-per-node");
    let of_node = per_node.unwrap_or_else(|| tasks.map_or(1, |tasks| tasks.div_ceil(most)));
    let size = match tasks {
        Some(tasks) => Size { tasks, tasks_min: None, per_node: of_node.min(tasks) },
        None => {
            let of = |nodes: u32| nodes.saturating_mul(of_node);
            Size { tasks: of(most), tasks_min: Some(of(least)).filter(|_| least < most), per_node: of_node }
        }
    };
    if size.per_node > 1 {
        let name = if per_node.is_some() { "ntasks-per-node" } else { "ntasks" };
        if let Some(directive) = directives.take(name) {
            let sentence = match nodes.is_none() && per_node.is_none() {
                true => "no number of nodes is given: what is asked for a node is divided among all tasks",
                false => "a task is a worker, and the placement decides which workers share a node",
            };
            directives.approximate(directive, sentence);
        }
    }
    if let (Some(_), Some(directive)) = (size.tasks_min, directives.take("nodes")) {
        directives.approximate(
            directive,
            "the gang may also change its size while it runs: it stops, and goes on from its checkpoint",
        );
    }
    size
}

/// The fewest and the most nodes.
fn nodes(directives: &Directives<'_>) -> Option<(u32, u32)> {
    let directive = directives.take("nodes")?;
    let count = |text: &str| {
        let count = muster_types::quantity::whole(text)?;
        u32::try_from(count).ok().filter(|count| *count > 0)
    };
    let range = match directive.value.split_once('-') {
        Some((least, most)) => count(least).zip(count(most)).filter(|(least, most)| least <= most),
        None => count(&directive.value).map(|count| (count, count)),
    };
    if range.is_none() {
        let text = shown(&directive.value);
        directives.refuse(
            directive,
            format!("must be a number of nodes, or the fewest and the most like 2-4, got {text:?}"),
        );
    }
    range
}

/// What each worker needs.
pub fn needs(directives: &Directives<'_>, size: Size, options: &Options) -> Needs {
    let devices = devices(directives, size, options);
    let per_worker = devices.as_ref().map_or(0, |devices| devices.milli.div_ceil(1_000));
    let cpus = directives.count("cpus-per-task").map(u64::from);
    let cpus =
        cpus.or_else(|| directives.count("cpus-per-gpu").map(|cpus| u64::from(cpus) * per_worker.max(1)));
    Needs {
        cpu_milli: cpus.map(|cpus| cpus.saturating_mul(1_000)),
        memory_bytes: memory(directives, size, cpus.unwrap_or(1), per_worker),
        accelerators: devices.map(|devices| devices.text()),
    }
}

fn memory(directives: &Directives<'_>, size: Size, cpus: u64, devices: u64) -> Option<u64> {
    let of = |name: &str, times: u64, parts: u64| {
        let directive = directives.take(name)?;
        let Some(bytes) = amounts::bytes(&directive.value) else {
            directives
                .refuse(directive, format!("must be memory like 64G, got {:?}", shown(&directive.value)));
            return None;
        };
        if bytes == 0 {
            directives.drop(
                directive,
                "a worker is promised as much memory as its job asks for; write how much that is",
            );
            return None;
        }
        Some(bytes.saturating_mul(times).div_ceil(parts))
    };
    let of_node = of("mem", 1, u64::from(size.per_node));
    of_node.or_else(|| of("mem-per-cpu", cpus, 1)).or_else(|| of("mem-per-gpu", devices.max(1), 1))
}

/// Accelerators of a worker.
struct Devices {
    kind: Option<String>,
    /// Thousandths of a device.
    milli: u64,
}

impl Devices {
    /// Whether both can be meant: as many, and of one type where both name one.
    fn is_like(&self, other: &Devices) -> bool {
        let is_same = self.kind.is_none() || other.kind.is_none() || self.kind == other.kind;
        self.milli == other.milli && is_same
    }

    fn text(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or("any");
        if self.milli.is_multiple_of(1_000) {
            return format!("{kind}:{}", self.milli / 1_000);
        }
        format!("{kind}:0.{:03}", self.milli).trim_end_matches('0').to_owned()
    }
}

fn devices(directives: &Directives<'_>, size: Size, options: &Options) -> Option<Devices> {
    let per_node = u64::from(size.per_node);
    let ways = [
        ("gpus-per-task", 1),
        ("gpus-per-node", per_node),
        ("gres", per_node),
        ("gpus", u64::from(size.tasks)),
    ];
    let mut first: Option<(&Directive, Devices)> = None;
    for (name, workers) in ways {
        let Some(directive) = directives.take(name) else { continue };
        let Some((kind, count)) = amount(directives, directive) else { continue };
        let milli = u64::from(count) * 1_000;
        let is_shared = milli < 1_000 * workers;
        if !milli.is_multiple_of(if is_shared { workers } else { 1_000 * workers }) {
            directives
                .refuse(directive, format!("{count} devices are not to be divided among {workers} workers"));
            continue;
        }
        let devices = Devices { kind, milli: milli / workers };
        let Some((before, known)) = &mut first else {
            first = Some((directive, devices));
            continue;
        };
        if !known.is_like(&devices) {
            let (other, known, devices) = (&before.name, known.text(), devices.text());
            directives.refuse(
                directive,
                format!(
                    "it comes to {devices} for a worker, and --{other} to {known}; leave one of them out"
                ),
            );
            continue;
        }
        known.kind = known.kind.take().or(devices.kind);
        directives
            .approximate(directive, "another option says how many devices a worker has, and that one counts");
    }
    let (directive, mut devices) = first.filter(|(_, devices)| devices.milli > 0)?;
    if devices.milli < 1_000 {
        directives.approximate(directive, "workers that share a device have shares of it, which are counted");
    }
    devices.kind = devices.kind.or_else(|| of_constraint(directives)).or_else(|| options.accelerator.clone());
    if devices.kind.is_none() {
        directives.approximate(
            directive,
            "it names no type, so any type of accelerator will do; `--accelerator TYPE` names one",
        );
    }
    Some(devices)
}

/// Type and count of an option; of `gres` only what is about GPUs.
fn amount(directives: &Directives<'_>, directive: &Directive) -> Option<(Option<String>, u32)> {
    let is_gres = directive.name == "gres";
    let mut found = None;
    for part in directive.value.split(',').filter(|part| !part.is_empty()) {
        let of_gpus = part.strip_prefix("gres/").unwrap_or(part).strip_prefix("gpu");
        let text = match (is_gres, of_gpus) {
            (false, _) => part,
            (true, Some("")) => "",
            (true, Some(rest)) if rest.starts_with(':') => &rest[1..],
            (true, _) => {
                let sentence = "accelerators are counted, and no other kind of resource is";
                directives.say_at(
                    &format!("{}={}", directive.path, shown(part)),
                    FindingKind::NotHonoured,
                    sentence,
                );
                continue;
            }
        };
        let devices = amounts::devices(text);
        let Some((kind, count)) = devices.filter(|_| found.is_none()) else {
            directives.refuse(
                directive,
                format!("must be one type and a count, like h100:8, got {:?}", shown(part)),
            );
            return None;
        };
        let kind = match kind.map(|kind| (kind, accelerator::of_product(kind))) {
            None => None,
            Some((_, Some(kind))) => Some(kind),
            Some((kind, None)) => {
                directives.refuse(
                    directive,
                    format!("no type of accelerator is known by the name {:?}", shown(kind)),
                );
                return None;
            }
        };
        found = Some((kind, count));
    }
    found
}

/// A feature that is the type of an accelerator: how many sites name theirs.
fn of_constraint(directives: &Directives<'_>) -> Option<String> {
    let directive = directives.take("constraint")?;
    let is_one = directive.value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let kind = is_one.then(|| accelerator::of_product(&directive.value)).flatten();
    match &kind {
        Some(kind) => directives
            .approximate(directive, format!("the feature is taken for the type of accelerators: {kind}")),
        None => directives.drop(directive, super::CONSTRAINT),
    }
    kind
}
