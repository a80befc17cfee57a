//! The program of the release before this one, built from the history.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Asks for tests that need it: building it takes minutes.
pub const LANE: &str = "MUSTER_UPGRADE_LANE";
/// What is built of it.
const PROGRAMS: [&str; 3] = ["muster", "muster-agent", "muster-shim"];

/// Runs a command to its end; what it printed, or why it did not succeed.
fn ran(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {}", output.status, said.lines().last().unwrap_or_default()))
}

fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git
}

/// Which commit it is: the newest tag before this commit, else what the file next to the tests names.
fn commit(root: &Path) -> Result<String, String> {
    let tags = ["tag", "--list", "v*", "--sort=-v:refname", "--merged", "HEAD", "--no-contains", "HEAD"];
    let tags = ran(git(root).args(tags))?;
    let named = match tags.lines().next() {
        Some(tag) => tag.to_owned(),
        None => {
            let text = std::fs::read_to_string(root.join("tests/previous-release"));
            let text = text.map_err(|error| format!("tests/previous-release cannot be read: {error}"))?;
            let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
            line.ok_or("tests/previous-release names no commit")?.to_owned()
        }
    };
    ran(git(root).args(["rev-parse", "--verify", "--quiet"]).arg(format!("{named}^{{commit}}")))
        .map_err(|_| format!("the history here has no {named}"))
}

/// A release from before `muster.v1beta1` was never published, and speaks to no other: nothing can be upgraded from it.
fn speaks_this_protocol(root: &Path, commit: &str) -> Result<(), String> {
    let directory = format!("{commit}:proto/muster/v1beta1");
    let found = ran(git(root).args(["cat-file", "-e", &directory]));
    found.map(drop).map_err(|_| format!("the release before, {commit}, has no package muster.v1beta1"))
}

/// The first golden log, which no release changes.
const GOLDEN: &str = "tests/golden/v1/digests.txt";

/// A commit with another golden log of the first format has formats that were never released, and that this program does
/// not read: no cluster of it can be upgraded.
fn has_these_formats(root: &Path, commit: &str) -> Result<(), String> {
    let golden = std::fs::read_to_string(root.join(GOLDEN)).map_err(|error| format!("{GOLDEN}: {error}"))?;
    let theirs = ran(git(root).args(["show", &format!("{commit}:{GOLDEN}")])).unwrap_or_default();
    if theirs.trim() == golden.trim() {
        return Ok(());
    }
    Err(format!(
        "the release before, {commit}, has record formats that were never released, and this program does not read \
         them; tests/previous-release must name a commit with the same {GOLDEN}"
    ))
}

/// Builds the program of a commit, unless that was done before; where it is.
fn build(root: &Path, target: &Path, commit: &str) -> Result<PathBuf, String> {
    let home = target.join("previous").join(commit);
    let program = home.join("muster");
    if program.is_file() {
        return Ok(program);
    }
    let source = home.join("source");
    std::fs::create_dir_all(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let archive = home.join("source.tar");
    ran(git(root).args(["archive", "--output"]).arg(&archive).arg(commit))?;
    ran(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = home.join("build");
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "-p", "muster", "--target-dir"]).arg(&built).current_dir(&source);
    // Nobody looks at it with a debugger, and it is several times larger with what they need.
    ran(command.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    for name in PROGRAMS.into_iter().rev() {
        let from = built.join("debug").join(name);
        if from.is_file() {
            // The program itself is the last: once it is there, nothing is built again.
            std::fs::copy(&from, home.join(name)).map_err(|error| format!("{}: {error}", from.display()))?;
        }
    }
    // What it was made from is in the history. A separate directory for each commit, because cargo would take what
    // it built of one for that of another: files of an older commit are not newer than what was built.
    let _ = std::fs::remove_dir_all(&source);
    let _ = std::fs::remove_dir_all(&built);
    let _ = std::fs::remove_file(&archive);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{commit} builds no program called muster")),
    }
}

/// The `muster` program of the release before.
///
/// # Errors
/// Why the tests of two releases cannot be carried out here, as a sentence.
pub fn previous_release() -> Result<PathBuf, String> {
    if std::env::var(LANE).as_deref() != Ok("1") {
        return Err(format!("{LANE}=1 runs them; they build the release before, which takes minutes"));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the tests lie in no repository")?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // target/<profile>/deps/<this test>
    let target = own.ancestors().nth(3).ok_or("the tests were not built by cargo")?;
    let commit = commit(root)?;
    speaks_this_protocol(root, &commit)?;
    has_these_formats(root, &commit)?;
    // From here on a failure is one of the test: the history has the release, so it has to build.
    Ok(build(root, target, &commit).unwrap_or_else(|why| panic!("the release before cannot be built: {why}")))
}
