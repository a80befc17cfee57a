//! Every command of the page for people who come from Slurm, as it stands there.

use std::path::{Path, PathBuf};

use crate::support::{Agents, Cluster, eventually, heavy};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// The words of a command, as a shell takes them apart: quotes keep them together.
fn words(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = command.trim();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('\'') {
            Some(quoted) => quoted.split_once('\'').expect("a quote ends"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        found.push(word.to_owned());
        rest = behind.trim_start();
    }
    found
}

/// The second cell of each row, and what it has between backticks.
fn commands(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| in Slurm"));
    let cells = rows.map(|row| row.split(" | ").nth(1).unwrap_or_else(|| panic!("{row}")).to_owned());
    cells.map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

/// What people type who use Slurm every week.
const WEEKLY: [&str; 39] = [
    "srun ",
    "sbatch -N",
    "sbatch --array",
    "--dependency",
    "--exclude",
    "--nodelist",
    "--constraint",
    "--spread-job",
    "--segment",
    "--reservation",
    "--test-only",
    "-A vision",
    "squeue`",
    "squeue --me",
    "squeue -A",
    "squeue --start",
    "scancel",
    "scontrol show job",
    "scontrol hold",
    "scontrol release",
    "scontrol requeue",
    "scontrol suspend",
    "TimeLimit=",
    "StartTime=",
    "NumNodes=",
    "Account=",
    "Features=",
    "scontrol show node",
    "state=drain",
    "create reservation",
    "show reservation",
    "sinfo",
    "sacct -",
    "sacctmgr",
    "sacctmgr add user",
    "GrpJobs=0",
    "sreport",
    "sshare",
    "scrontab",
];

#[test]
fn what_people_of_slurm_type_every_week_is_on_the_page() {
    let page = std::fs::read_to_string(root().join("ops/guide/slurm.md")).expect("the guide has it");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let asked: Vec<&str> = rows.filter_map(|row| row.split(" | ").next()).collect();
    for wanted in WEEKLY {
        assert!(asked.iter().any(|cell| cell.contains(wanted)), "no row of the page is about {wanted}");
    }
}

/// Commands of which the page shows the help: what they do depends on the host, and other tests carry them out.
const SHOWN_BY_HELP: [&str; 4] = [
    "muster exec train --help",
    "muster port-forward train --help",
    "muster node repair h2 --help",
    "muster token create --help",
];

#[test]
fn all_commands_but_these_do_what_their_row_is_about() {
    let page = std::fs::read_to_string(root().join("ops/guide/slurm.md")).expect("the guide has it");
    let shown: Vec<String> =
        commands(&page).into_iter().filter(|command| command.contains("--help")).collect();
    assert_eq!(shown, SHOWN_BY_HELP);
}

/// Each is repeated until it succeeds, as by somebody who is a moment early: a job does not run at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coming_from_slurm() {
    let _heavy = heavy().await;
    let page = std::fs::read_to_string(root().join("ops/guide/slurm.md")).expect("the guide has it");
    let commands = commands(&page);
    assert!(commands.len() > 70, "{commands:?}");
    let cluster = Cluster::start(3).await;
    let _agents = Agents::start(&cluster, &["h1", "h2"]).await;
    for command in commands {
        let words = words(command.strip_prefix("muster ").unwrap_or_else(|| panic!("{command}")));
        let words: Vec<String> = words
            .into_iter()
            .map(|word| match word.strip_prefix("ops/examples/") {
                Some(_) => root().join(&word).to_string_lossy().into_owned(),
                None => word,
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // It ends as it was told to, and that is no success.
        let expected = if command.contains("job wait") { Some(1) } else { Some(0) };
        eventually(&format!("`{command}` does not succeed"), || async {
            let ran = cluster.operate(&words).await;
            // Some example files ask for more than these two hosts have. What is submitted has to be taken.
            let is_looked_at = command.contains("--validate-only") || command.starts_with("muster plan ");
            let is_too_big = is_looked_at && ran.err.contains("NEVER_FITS");
            let is_done = ran.code == expected || is_too_big;
            if !is_done {
                println!("{command}: {ran:#?}");
            }
            is_done.then_some(())
        })
        .await;
    }
}
