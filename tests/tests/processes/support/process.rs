//! Processes of the one binary, and the directory that bounds their lifetime.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::PATIENCE;

/// Servers and agents started with it end when the thread that started them does.
const DIE_WITH_PARENT: &str = "MUSTER_DIE_WITH_PARENT";
/// Lines of a process's log that are shown when its test fails.
const LOG_LINES_SHOWN: usize = 12;

/// The `muster` program of the same build as this test.
pub fn muster() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(find_program)
}

fn find_program() -> PathBuf {
    built("muster", &["-p", "muster", "--features", "test-format"])
}

/// The example `job` of the client, of the same build as this test.
pub fn example_job() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("examples/job", &["-p", "muster-client", "--example", "job"]))
}

/// A program of the build that this test is of; `what` makes it.
fn built(program: &str, what: &[&str]) -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    // target/<profile>/deps/<this test>; the programs are two levels up from here.
    let directory = own.ancestors().nth(2).expect("a test lies in deps, below a profile's directory");
    let program = directory.join(program);
    if program.is_file() {
        return program;
    }
    // `cargo test --workspace` builds it; a run of this package alone does not.
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = std::process::Command::new(cargo);
    build.args(["build", "--locked", "--profile", profile]).args(what);
    if let Some(target) = directory.parent() {
        build.arg("--target-dir").arg(target);
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(
        program.is_file(),
        "{} is not there and could not be built ({built:?}); run `cargo build --profile {profile} {}` first",
        program.display(),
        what.join(" ")
    );
    program
}

/// A test's directory. Dropping it kills every process that names it and removes it.
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    /// A new one.
    pub fn new() -> Scratch {
        let directory = tempfile::Builder::new().prefix("muster-test-").tempdir();
        Scratch { directory: directory.expect("a temporary directory can be made") }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Kills every process that names the directory.
    pub fn kill_all(&self) {
        // Each pass kills all it sees, so what is left can only have been started during the pass.
        for _ in 0..100 {
            let found = marked(self.path());
            if found.is_empty() {
                return;
            }
            for pid in found {
                // It may have ended by itself.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    fn logs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten().flatten();
        let mut logs: Vec<PathBuf> = entries.map(|e| e.path().join("log")).filter(|p| p.is_file()).collect();
        logs.sort();
        logs
    }

    /// No process wrote of a panic into its log.
    pub fn assert_no_panics(&self) {
        for path in self.logs() {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
                panic!("{}: {line}", path.display());
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.kill_all();
        if !std::thread::panicking() {
            return;
        }
        for path in self.logs() {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- the end of {}", path.display());
            for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
                eprintln!("{line}");
            }
        }
    }
}

/// Living processes whose command line or environment names the directory.
pub fn marked(directory: &Path) -> Vec<i32> {
    let mark = directory.as_os_str().as_encoded_bytes();
    let own = std::process::id() as i32;
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()));
    let holds = |pid: i32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    pids.filter(|pid| *pid != own && (holds(*pid, "cmdline") || holds(*pid, "environ"))).collect()
}

/// Starts `muster` in the background with its log in `home`.
///
/// Call it from the test's own thread: the kernel ties the lifetime of the process to the thread that started
/// it, and threads of a runtime come and go.
pub fn spawn(home: &Path, args: &[&str]) -> Child {
    spawn_below(&[], home, args)
}

/// The same below another command, which is given the program and its arguments.
pub fn spawn_below(wrapper: &[&str], home: &Path, args: &[&str]) -> Child {
    spawn_program(muster(), wrapper, home, args)
}

/// The same of another build of the program.
pub fn spawn_program(program: &Path, wrapper: &[&str], home: &Path, args: &[&str]) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(home.join("log"));
    let log = log.expect("a log can be opened");
    let program = program.to_str().expect("the program's path is text");
    let words = [wrapper, &[program], args].concat();
    Command::new(words[0])
        .args(&words[1..])
        .env(DIE_WITH_PARENT, "1")
        .env_remove("MUSTER_ENDPOINTS")
        // The consensus library tells of every vote; its warnings are enough to see what went wrong.
        .env("MUSTER_LOG", "info,openraft=warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("starting muster {args:?}: {error}"))
}

/// Sends a signal; the process must not have been waited for.
pub fn signal(child: &Child, what: Signal) {
    let pid = child.id().expect("the process has not been waited for");
    kill(Pid::from_raw(pid as i32), what).unwrap_or_else(|error| panic!("{what} for {pid}: {error}"));
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// It ended with this code, said all of these parts on standard error, and gave out nothing as data.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {:?}", self.err);
        }
        assert!(self.out.is_empty() && !self.err.contains("panicked"), "{self:#?}");
    }
}

/// Runs a command of `muster` to its end. One that does not end is killed, and the test fails.
pub async fn run_to_end(args: &[&str], stdin: &str) -> Ran {
    run_program_to_end(muster(), args, stdin).await
}

/// The same of another build of the program.
pub async fn run_program_to_end(program: &Path, args: &[&str], stdin: &str) -> Ran {
    let mut child = Command::new(program)
        .args(args)
        .env(DIE_WITH_PARENT, "1")
        .env_remove("MUSTER_ENDPOINTS")
        .env_remove("MUSTER_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("starting muster {args:?}: {error}"));
    if let Some(mut to_child) = child.stdin.take() {
        // A command that refuses its arguments may be gone before it reads.
        let _ = to_child.write_all(stdin.as_bytes()).await;
    }
    let output = match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
        Ok(output) => output.unwrap_or_else(|error| panic!("waiting for muster {args:?}: {error}")),
        Err(_) => panic!("muster {args:?} did not end within {} s", PATIENCE.as_secs()),
    };
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
