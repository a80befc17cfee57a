//! What a container asks of its host.

use muster_types::quantity;

use super::draft::Needs;
use super::field::Field;
use super::finding::shown;
use super::selection::Selection;

const DEVICES: [&str; 3] = ["nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"];

/// What containers ask of the disk.
const SCRATCH: &str = "ephemeral-storage";

/// Bytes of the disk that a container asks for: what its worker has as its scratch directory.
pub fn scratch_bytes(resources: &Field<'_>) -> Option<u64> {
    let (asked, most) = (resources.at(["requests", SCRATCH]), resources.at(["limits", SCRATCH]));
    let bytes = amount(&most, memory_bytes).or(amount(&asked, memory_bytes)).filter(|bytes| *bytes > 0)?;
    let field = if most.is_given() { &most } else { &asked };
    field.approximate(
        "is the size of one directory, which MUSTER_SCRATCH and TMPDIR name; output is not counted",
    );
    Some(bytes)
}

/// Reads requests and limits of a container.
pub fn read(resources: &Field<'_>, selection: &Selection) -> Needs {
    let (requests, limits) = (resources.get("requests"), resources.get("limits"));
    let mut needs = Needs::default();
    let (asked, most) = (requests.get("cpu"), limits.get("cpu"));
    let (asked_milli, most_milli) = (amount(&asked, cpu_milli), amount(&most, cpu_milli));
    needs.cpu_milli = asked_milli.or(most_milli).map(|milli| milli.max(1));
    if let (Some(milli), Some(most_milli)) = (asked_milli, most_milli)
        && milli != most_milli
    {
        most.approximate("a worker is promised what it requests; whether it gets more is its host's setting (`cpu` of the agent)");
    }
    let (asked, most) = (requests.get("memory"), limits.get("memory"));
    let (asked_bytes, most_bytes) = (amount(&asked, memory_bytes), amount(&most, memory_bytes));
    needs.memory_bytes = most_bytes.or(asked_bytes);
    if let (Some(bytes), Some(most_bytes)) = (asked_bytes, most_bytes)
        && bytes != most_bytes
    {
        asked.approximate("memory is promised and limited by one number, which is that of `limits`");
    }
    needs.accelerators = accelerators(&requests, &limits, selection);
    others(&requests, &limits);
    needs
}

fn accelerators(requests: &Field<'_>, limits: &Field<'_>, selection: &Selection) -> Option<String> {
    let mut found = None;
    for name in DEVICES {
        let (asked, most) = (requests.get(name), limits.get(name));
        let field = if most.is_given() { &most } else { &asked };
        let count = field.count().filter(|count| *count > 0);
        if asked.is_given() && most.is_given() && asked.scalar() != most.scalar() {
            asked.refuse("must be the same as in `limits`");
        }
        let Some(count) = count else { continue };
        if found.is_some() {
            field.refuse("a worker has accelerators of one kind");
            continue;
        }
        if selection.types.is_empty() {
            field.approximate(
                "no selector names the product, so any type of accelerator will do; `--accelerator TYPE` names one",
            );
            found = Some(format!("any:{count}"));
        } else {
            found = Some(format!("{}:{count}", selection.types.join("|")));
        }
    }
    found
}

fn others(requests: &Field<'_>, limits: &Field<'_>) {
    for (name, field) in requests.entries().into_iter().chain(limits.entries()) {
        if ["cpu", "memory", SCRATCH].contains(&name) || DEVICES.contains(&name) {
            continue;
        }
        field.drop(match name {
            _ if name.starts_with("nvidia.com/mig-") => {
                "parts of a device are asked for as a share: `accelerators: TYPE:0.25`"
            }
            _ => "workers ask for accelerators, CPUs and memory, and nothing else is counted",
        });
    }
}

fn amount(field: &Field<'_>, read: fn(&str) -> Option<u64>) -> Option<u64> {
    let text = field.scalar()?;
    let amount = read(text);
    if amount.is_none() {
        field.refuse(format!("must be a quantity, got {:?}", shown(text)));
    }
    amount
}

fn cpu_milli(text: &str) -> Option<u64> {
    quantity::cpu_milli(text)
}

/// Bytes, also with the units of Kubernetes that job documents do not have.
fn memory_bytes(text: &str) -> Option<u64> {
    let larger = |unit: &str, scale: u64| quantity::scaled(text.strip_suffix(unit)?, scale);
    if text.ends_with('B') {
        return None;
    }
    if let Some(milli) = text.strip_suffix('m').and_then(quantity::whole) {
        return Some(milli.div_ceil(1_000));
    }
    quantity::bytes(text).or_else(|| larger("Pi", 1 << 50)).or_else(|| larger("P", 10_u64.pow(15)))
}
