//! The session that the guide shows is what its recorder gives today.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

use crate::support::{heavy, muster, say};

const LIMIT: Duration = Duration::from_secs(120);

/// The commands of a session, each with the lines of its output that are the same in every run: those without a digit
/// or a temporary directory. Numbers, ids, times and addresses differ, and what an explanation predicts differs with them.
fn commands(session: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
    for line in session.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push((command.to_owned(), BTreeSet::new()));
        } else if let Some((command, lines)) = found.last_mut() {
            let is_table_head = line.contains("  ") && !line.contains(char::is_lowercase);
            let is_fixed = if command.contains("explain") { is_table_head } else { !line.is_empty() };
            let varies = line.contains("/tmp/") || line.contains(|c: char| c.is_ascii_digit());
            if is_fixed && !varies {
                // Columns are as wide as what is in them.
                lines.insert(line.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_shows_what_a_first_session_shows() {
    // The session has a script of a researcher's.
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        say("skipped: the session of the guide (there is no python3)");
        return;
    }
    let _heavy = heavy().await;
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").join("ops/guide");
    let mut recorder = Command::new(guide.join("record"));
    let run = recorder.arg(muster()).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(LIMIT, run).await.expect("it comes to an end").expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let recorded = commands(&String::from_utf8_lossy(&output.stdout));
    let shown = std::fs::read_to_string(guide.join("session.txt")).expect("the guide has it");
    let shown = commands(&shown);
    assert!(shown.len() > 8, "{shown:?}");
    assert!(
        recorded == shown,
        "ops/guide/session.txt is of another program: `ops/guide/record PROGRAM > ops/guide/session.txt` records it again\n\
         recorded:\n{recorded:#?}\nshown:\n{shown:#?}"
    );
}
