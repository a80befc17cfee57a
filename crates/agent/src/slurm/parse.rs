//! What Slurm's commands print, as values.
//!
//! Only the text formats that did not change between versions are read: `scontrol -o show node|partition`
//! and `squeue -O` with a separator that this agent chooses.
//!
//! **Invariant:** a line that is not understood is left out, never guessed at; nothing here panics on any
//! text.

use std::collections::BTreeMap;

/// GRES of one name and type on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gres {
    /// Empty when Slurm gives it none.
    pub(super) kind: String,
    pub(super) count: u16,
}

/// One of Slurm's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmNode {
    pub(super) name: String,
    pub(super) address: String,
    /// As printed, flags included.
    pub(super) state: String,
    pub(super) cpus: u64,
    pub(super) cpus_allocated: u64,
    pub(super) memory_mib: u64,
    pub(super) memory_allocated_mib: u64,
    /// Of the disk for temporary files; 0 where Slurm is told of none.
    pub(super) tmp_disk_mib: u64,
    /// GRES `gpu` by type.
    pub(super) gpus: Vec<Gres>,
    /// The same, held by any job.
    pub(super) gpus_used: Vec<Gres>,
    pub(super) partitions: Vec<String>,
}

impl SlurmNode {
    /// Whether Slurm would start something there, as far as its state says.
    pub(super) fn is_usable(&self) -> bool {
        let (base, flags) = self.state.split_once('+').unwrap_or((&self.state, ""));
        let good_flags = ["CLOUD", "PLANNED", "POWERED_DOWN", "POWERING_UP", "DYNAMIC_NORM", "COMPLETING"];
        matches!(base, "IDLE" | "MIXED" | "ALLOCATED")
            && flags.split('+').all(|flag| flag.is_empty() || good_flags.contains(&flag))
    }
}

/// One of Slurm's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) name: String,
    pub(super) is_default: bool,
    pub(super) is_up: bool,
    /// As Slurm writes it, which `sbatch --time` takes.
    pub(super) time_max: String,
}

/// One of our batch jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmJob {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) state: String,
    pub(super) reason: String,
    /// As `wait` gives it: code in the second byte, signal in the first.
    pub(super) wait_status: u32,
    pub(super) nodes: String,
}

impl SlurmJob {
    /// Whether it is pending.
    pub(super) fn is_pending(&self) -> bool {
        self.state == "PENDING"
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        matches!(
            self.state.as_str(),
            "COMPLETED"
                | "FAILED"
                | "CANCELLED"
                | "TIMEOUT"
                | "NODE_FAIL"
                | "PREEMPTED"
                | "BOOT_FAIL"
                | "DEADLINE"
                | "OUT_OF_MEMORY"
                | "REVOKED"
        )
    }

    /// Whether it holds its node.
    pub(super) fn holds_node(&self) -> bool {
        !self.is_pending() && !self.is_over()
    }

    /// Whether it waits for something that nobody will bring about, because of what it asks for: Slurm took
    /// it, and refuses it all the same.
    pub(super) fn is_refused(&self) -> bool {
        const REASONS: [&str; 8] = [
            "PartitionConfig",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "BadConstraints",
            "DependencyNeverSatisfied",
            "InvalidAccount",
            "InvalidQOS",
            "AccountNotAllowed",
        ];
        let about_whom = ["Job's account", "Job's QOS", "Job's group"];
        self.is_pending()
            && (REASONS.contains(&self.reason.as_str())
                || about_whom.iter().any(|text| self.reason.starts_with(text)))
    }

    /// Whether it waits for a node or partition that is out of use, or for somebody to let it go.
    pub(super) fn waits_in_vain(&self) -> bool {
        const REASONS: [&str; 4] = ["PartitionDown", "PartitionInactive", "JobHeldAdmin", "JobHeldUser"];
        let about_nodes =
            ["Nodes_required_for_job_are_DOWN", "Nodes required for job are DOWN", "ReqNodeNotAvail"];
        self.is_pending()
            && (REASONS.contains(&self.reason.as_str())
                || about_nodes.iter().any(|text| self.reason.starts_with(text)))
    }
}

/// The fields of [`jobs`], for `squeue -O`. A job's name and comment are the user's: they come last.
pub(super) const JOB_FIELDS: &str = "JobID:|,State:|,exit_code:|,NodeList:|,Reason:|,Comment:|,Name:|";

/// What `squeue -h -O` printed with [`JOB_FIELDS`].
pub(super) fn jobs(text: &str) -> Vec<SlurmJob> {
    text.lines().filter_map(job).collect()
}

fn job(line: &str) -> Option<SlurmJob> {
    let mut fields = line.splitn(6, '|');
    let id = fields.next()?.trim().parse().ok()?;
    let state = fields.next()?.trim().to_owned();
    let wait_status = fields.next()?.trim().parse().ok()?;
    let nodes = fields.next()?.trim().to_owned();
    let reason = fields.next()?.trim().to_owned();
    // Our comments and names have no separator in them; in others' rows it does not matter.
    let (comment, name) = fields.next()?.split_once('|')?;
    let name = name.strip_suffix('|').unwrap_or(name);
    Some(SlurmJob {
        id,
        name: name.trim().to_owned(),
        comment: comment.trim().to_owned(),
        state,
        reason,
        wait_status,
        nodes,
    })
}

/// `Key=Value` words of one line; of a key that comes twice the first, as free text comes last.
fn words(line: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    for word in line.split_ascii_whitespace() {
        if let Some((key, value)) = word.split_once('=') {
            found.entry(key).or_insert(value);
        }
    }
    found
}

/// What `scontrol show node -d -o` printed.
pub(super) fn nodes(text: &str) -> Vec<SlurmNode> {
    text.lines().filter_map(node).collect()
}

fn node(line: &str) -> Option<SlurmNode> {
    let words = words(line);
    let number = |key: &str| words.get(key).and_then(|text| text.parse::<u64>().ok());
    let list = |key: &str| words.get(key).copied().filter(|text| *text != "(null)").unwrap_or("");
    let name = (*words.get("NodeName")?).to_owned();
    Some(SlurmNode {
        address: words.get("NodeAddr").copied().unwrap_or(&name).to_owned(),
        state: (*words.get("State")?).to_owned(),
        // What jobs can have: less than CPUTot where cores are kept for the system.
        cpus: number("CPUEfctv").or(number("CPUTot"))?,
        cpus_allocated: number("CPUAlloc")?,
        memory_mib: number("RealMemory")?,
        memory_allocated_mib: number("AllocMem").unwrap_or(0),
        tmp_disk_mib: number("TmpDisk").unwrap_or(0),
        gpus: gpus(list("Gres")),
        gpus_used: gpus(list("GresUsed")),
        partitions: list("Partitions").split(',').filter(|p| !p.is_empty()).map(str::to_owned).collect(),
        name,
    })
}

/// `gpu:h100:4(S:0-1),gpu:2,craynetwork:1`.
fn gpus(text: &str) -> Vec<Gres> {
    let mut depth = 0usize;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    let mut found: Vec<Gres> = Vec::new();
    for part in parts {
        let plain = part.split_once('(').map_or(part, |(plain, _)| plain);
        let mut fields = plain.split(':');
        if fields.next() != Some("gpu") {
            continue;
        }
        let (kind, count) = match (fields.next(), fields.next()) {
            (Some(kind), Some(count)) => (kind, count),
            (Some(count), None) => ("", count),
            _ => continue,
        };
        let Ok(count) = count.parse() else { continue };
        match found.iter_mut().find(|gres| gres.kind == kind) {
            Some(gres) => gres.count = gres.count.saturating_add(count),
            None => found.push(Gres { kind: kind.to_owned(), count }),
        }
    }
    found
}

/// What `scontrol show partition -o` printed.
pub(super) fn partitions(text: &str) -> Vec<Partition> {
    let partition = |line: &str| {
        let words = words(line);
        Some(Partition {
            name: (*words.get("PartitionName")?).to_owned(),
            is_default: words.get("Default") == Some(&"YES"),
            is_up: words.get("State") == Some(&"UP"),
            time_max: words.get("MaxTime").copied().unwrap_or("UNLIMITED").to_owned(),
        })
    };
    text.lines().filter_map(partition).collect()
}

/// The id that `sbatch --parsable` printed: `ID` or `ID;cluster`.
pub(super) fn submitted(text: &str) -> Option<u32> {
    text.lines().rev().find_map(|line| line.split(';').next()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=16  CPUAlloc=2 CPUEfctv=14 CPUTot=16 CPULoad=2.46 \
        AvailableFeatures=(null) Gres=gpu:h100:4(S:0-1),craynetwork:4 GresDrain=N/A \
        GresUsed=gpu:h100:2(IDX:0,2),craynetwork:0 NodeAddr=10.0.0.1 NodeHostName=vm Port=36818 \
        OS=Linux 6.18.44 #1 SMP  RealMemory=64000 AllocMem=1000 State=MIXED+DRAIN Partitions=p,short  \
        CfgTRES=cpu=16,mem=62.50G,billing=16 AllocTRES=  Reason=State=IDLE is what I want [root@x]";

    #[test]
    fn a_node_with_all_its_traps() {
        let found = nodes(&format!("{NODE}\nnonsense\n\nNodeName=n2 State=IDLE\n"));
        let [node] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((node.name.as_str(), node.address.as_str()), ("n1", "10.0.0.1"));
        assert_eq!((node.cpus, node.cpus_allocated), (14, 2));
        assert_eq!((node.memory_mib, node.memory_allocated_mib), (64_000, 1_000));
        assert_eq!(node.gpus, [Gres { kind: "h100".into(), count: 4 }]);
        assert_eq!(node.gpus_used, [Gres { kind: "h100".into(), count: 2 }]);
        assert_eq!(node.partitions, ["p", "short"]);
        assert_eq!(node.state, "MIXED+DRAIN");
        assert!(!node.is_usable());
        assert_eq!(node.tmp_disk_mib, 0);
        assert_eq!(nodes(&format!("{NODE} TmpDisk=2000000"))[0].tmp_disk_mib, 2_000_000);
    }

    #[test]
    fn usable_is_what_slurm_would_start_on() {
        let usable = |state: &str| {
            let node = SlurmNode { state: state.into(), ..nodes(NODE).remove(0) };
            node.is_usable()
        };
        for state in ["IDLE", "MIXED", "ALLOCATED", "IDLE+CLOUD+POWERED_DOWN", "MIXED+PLANNED"] {
            assert!(usable(state), "{state}");
        }
        let unusable = [
            "DOWN",
            "DOWN*",
            "IDLE*",
            "IDLE+DRAIN",
            "MIXED+MAINT",
            "UNKNOWN",
            "IDLE+NOT_RESPONDING",
            "",
            "FAIL",
        ];
        for state in unusable {
            assert!(!usable(state), "{state}");
        }
    }

    #[test]
    fn gpus_in_every_form() {
        let of = |text: &str| gpus(text).into_iter().map(|g| (g.kind, g.count)).collect::<Vec<_>>();
        assert_eq!(of("gpu:4"), [(String::new(), 4)]);
        assert_eq!(of("gpu:a100:2,gpu:h100:6(S:0-1)"), [("a100".into(), 2), ("h100".into(), 6)]);
        assert_eq!(of("gpu:h100:2(S:0),gpu:h100:2(S:1)"), [("h100".into(), 4)]);
        for nothing in
            ["", "(null)", "gpu", "gpu:h100", "gpu:h100:x", "gpu:99999999", "shard:8", "((((", ")))"]
        {
            assert_eq!(of(nothing), [], "{nothing}");
        }
    }

    #[test]
    fn jobs_with_and_without_what_others_put_into_their_names() {
        let text = "1|RUNNING|0|n1|None|muster:a/b|muster-x|\n\
                    7|FAILED|1280|n1|NonZeroExitCode|muster:a/c|muster-y|\n\
                    8|PENDING|0||Resources||a|b|\nrubbish\nx|PENDING|0|||||\n";
        let found = jobs(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!((found[0].id, found[0].name.as_str()), (1, "muster-x"));
        assert_eq!(found[0].comment, "muster:a/b");
        assert!(found[0].holds_node() && !found[0].is_over());
        assert_eq!(found[1].wait_status, 1_280);
        assert!(found[1].is_over());
        assert!(found[2].is_pending() && !found[2].waits_in_vain());
    }

    #[test]
    fn some_reasons_never_end() {
        let of = |reason: &str| jobs(&format!("1|PENDING|0||{reason}|c|n|")).remove(0);
        assert!(of("PartitionConfig").is_refused() && !of("Priority").is_refused());
        assert!(
            of("Job's account not known, so it can't use this partition (closed allows nobody)").is_refused()
        );
        let waits = |reason: &str| of(reason).waits_in_vain();
        assert!(waits("JobHeldAdmin") && waits("ReqNodeNotAvail, UnavailableNodes:n1"));
        assert!(waits(
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
        ));
        assert!(!waits("Priority") && !waits("Resources") && !waits("Dependency") && !waits("None"));
    }

    #[test]
    fn partitions_and_ids() {
        let text = "PartitionName=p AllowGroups=ALL Default=YES MaxTime=UNLIMITED State=UP TotalCPUs=32\n\
                    PartitionName=short Default=NO MaxTime=01:30:00 State=DRAIN\n";
        let found = partitions(text);
        assert_eq!(found.len(), 2);
        assert!(found[0].is_default && found[0].is_up && !found[1].is_up);
        assert_eq!(found[1].time_max, "01:30:00");
        assert_eq!(submitted("17\n"), Some(17));
        assert_eq!(submitted("sbatch: a warning\n18;cluster\n"), Some(18));
        assert_eq!(submitted(""), None);
        assert_eq!(submitted("4294967296"), None);
    }
}
