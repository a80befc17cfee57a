//! `muster dev`: a cluster in the foreground, used from other terminals, with nothing left when it ends.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::Mutex;

/// Longest wait for anything that should take seconds; generous, because machines are shared.
const PATIENCE: Duration = Duration::from_secs(120);
/// One cluster at a time.
static HEAVY: Mutex<()> = Mutex::const_new(());

/// How a command ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Living processes whose command line or environment names the directory, except this one.
fn marked(directory: &Path) -> Vec<i32> {
    let mark = directory.as_os_str().as_encoded_bytes();
    let holds = |pid: i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids =
        entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    let others = pids.filter(|pid| *pid != std::process::id() as i32);
    others.filter(|pid| holds(*pid, "cmdline") || holds(*pid, "environ")).collect()
}

/// A directory of a test; what still runs in it when the test ends is killed.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for pid in marked(self.path()) {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// One user's terminals: commands with the user's state directory, and no endpoint.
struct Terminal {
    scratch: Scratch,
}

impl Terminal {
    fn new() -> Terminal {
        let scratch = Scratch(tempfile::Builder::new().prefix("muster-test-").tempdir().unwrap());
        std::fs::create_dir_all(scratch.path().join("project")).unwrap();
        Terminal { scratch }
    }

    fn project(&self) -> PathBuf {
        self.scratch.path().join("project").canonicalize().unwrap()
    }

    fn command(&self, directory: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        command.args(args).current_dir(directory).env_remove("MUSTER_ENDPOINTS");
        command.env("HOME", self.scratch.path()).env("XDG_STATE_HOME", self.scratch.path().join("state"));
        command.env("XDG_CONFIG_HOME", self.scratch.path().join("config")).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(&self.project(), args).output();
        let output = tokio::time::timeout(PATIENCE, output).await.expect("it ends").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Starts `muster dev` and waits until it is ready.
    async fn dev(&self, args: &[&str]) -> Dev {
        let mut child = self.command(self.scratch.path(), &[&["dev"], args].concat()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut dev = Dev { child, lines, told: String::new() };
        dev.until("Ctrl-C stops everything").await;
        dev
    }
}

struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    told: String,
}

impl Dev {
    /// Reads on until a line has `what` in it.
    async fn until(&mut self, what: &str) {
        let (lines, told) = (&mut self.lines, &mut self.told);
        let reading = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                told.push_str(&line);
                told.push('\n');
                if line.contains(what) {
                    return true;
                }
            }
            false
        };
        let found = tokio::time::timeout(PATIENCE, reading).await;
        assert!(matches!(found, Ok(true)), "no {what:?} in:\n{}", self.told);
    }

    /// Ctrl-C; the exit code, and all that was told.
    async fn interrupt(mut self) -> (Option<i32>, String) {
        kill(Pid::from_raw(self.child.id().unwrap() as i32), Signal::SIGINT).unwrap();
        let (lines, told) = (&mut self.lines, &mut self.told);
        let rest = async {
            while let Ok(Some(line)) = lines.next_line().await {
                told.push_str(&line);
                told.push('\n');
            }
        };
        let (status, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(self.child.wait(), rest) }).await.unwrap();
        (status.unwrap().code(), self.told)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_this_directory_runs_without_any_configuration() {
    let _heavy = HEAVY.lock().await;
    let terminal = Terminal::new();
    let project = terminal.project();
    std::fs::write(project.join("train.sh"), "echo training in $PWD with $(cat data.txt)\n").unwrap();
    std::fs::write(project.join("data.txt"), "three samples\n").unwrap();

    let none = terminal.run(&["job", "list"]).await;
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.err.contains("muster dev"), "the refusal leads to it: {}", none.err);

    let dir = terminal.scratch.path().join("cluster");
    let dir = dir.to_str().unwrap();
    let dev = terminal.dev(&["--dir", dir]).await;
    assert!(dev.told.contains("one replica and 2 hosts with 8 declared h100 each"), "{}", dev.told);
    let ran = terminal.run(&["run", "--", "sh", "train.sh"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out, format!("training in {} with three samples\n", project.display()));
    std::fs::write(
        project.join("job.yaml"),
        "apiVersion: muster.dev/v1\nkind: Job\nmetadata: {name: of-a-file}\n\
         spec: {workers: 2, accelerators: 'h100:8', command: [sh, train.sh]}\n",
    )
    .unwrap();
    let submitted = terminal.run(&["submit", "job.yaml", "--wait"]).await;
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    // A schedule makes jobs of the same file, here because it is asked to.
    let made = [
        "schedule",
        "create",
        "nightly",
        "-f",
        "job.yaml",
        "--cron",
        "0 6 29 2 *",
        "--zone",
        "Europe/Berlin",
    ];
    let made = terminal.run(&made).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.err.contains("schedule nightly"), "{made:?}");
    let of_schedule = terminal.run(&["schedule", "run", "nightly"]).await;
    assert_eq!(of_schedule.code, Some(0), "{of_schedule:?}");
    let ended = terminal.run(&["job", "wait", of_schedule.out.trim()]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let shown = terminal.run(&["schedule", "show", "nightly", "-o", "json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    let schedule = shown.to_string();
    assert!(schedule.contains(of_schedule.out.trim()) && schedule.contains("Europe/Berlin"), "{schedule}");
    let listed = terminal.run(&["schedule", "list"]).await;
    let row = listed.out.lines().find(|line| line.contains("nightly")).unwrap_or_default();
    assert!(row.contains("0 6 29 2 *") && row.contains("-02-29T05:00:00"), "{listed:?}");
    assert_eq!(terminal.run(&["schedule", "list", "-o", "name"]).await.out, "nightly\n");
    let deleted = terminal.run(&["schedule", "delete", "nightly"]).await;
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    // The list states why a job waits.
    let whole = ["--workers", "2", "--accelerators", "h100:8", "--", "sleep", "600"];
    for name in ["first", "second"] {
        let ran = terminal.run(&[&["run", "--detach", "--name", name], &whole[..]].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let list = terminal.run(&["job", "list"]).await;
    let row = list.out.lines().find(|line| line.contains("second")).unwrap_or_default();
    assert!(row.contains("WAITING_FOR_CAPACITY") && row.contains("0 of 2 workers fit"), "{list:?}");
    let (code, told) = dev.interrupt().await;
    assert_eq!(code, Some(0), "{told}");
    assert!(marked(terminal.scratch.path()).is_empty(), "processes are left");
    let gone = terminal.run(&["job", "list"]).await;
    assert_eq!(gone.code, Some(2), "nothing is announced any more: {gone:?}");

    // The directory holds the cluster: what was submitted is still known.
    let dev = terminal.dev(&["--dir", dir]).await;
    let known = terminal.run(&["job", "show", submitted.out.trim()]).await;
    assert_eq!(known.code, Some(0), "{known:?}");
    let other = terminal.run(&["dev", "--dir", dir]).await;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.err.contains("another `muster dev` runs in"), "{}", other.err);
    let (code, told) = dev.interrupt().await;
    assert_eq!(code, Some(0), "{told}");
    let reshaped = terminal.run(&["dev", "--dir", dir, "--replicas", "3"]).await;
    assert_eq!(reshaped.code, Some(1), "{reshaped:?}");
    assert!(reshaped.err.contains("holds a cluster of one replica"), "{}", reshaped.err);
    assert!(marked(terminal.scratch.path()).is_empty(), "processes are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_go_on_when_one_is_killed_and_it_is_reported() {
    let _heavy = HEAVY.lock().await;
    let terminal = Terminal::new();
    let dir = terminal.scratch.path().join("cluster");
    let mut dev = terminal.dev(&["--replicas", "3", "--hosts", "3", "--dir", dir.to_str().unwrap()]).await;
    let home = dir.canonicalize().unwrap().join("regions/eu-west/replica/");
    let replica = marked(&home);
    assert_eq!(replica.len(), 1, "{replica:?}");
    kill(Pid::from_raw(replica[0]), Signal::SIGKILL).unwrap();
    dev.until("replica 2 has ended").await;
    let ran = terminal.run(&["run", "--", "echo", "still here"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "still here\n"), "{ran:?}");
    let (code, told) = dev.interrupt().await;
    assert_eq!(code, Some(0), "{told}");
    assert!(marked(terminal.scratch.path()).is_empty(), "processes are left");
}
