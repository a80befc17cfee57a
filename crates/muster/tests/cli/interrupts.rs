//! Ctrl-C in commands that go on until somebody ends them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use muster_wire::v1::JobPhase;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command;
use crate::fake::Fake;

#[test]
fn what_is_ended_with_ctrl_c_ends_with_130() {
    let fake = Fake::start();
    fake.add("job-1", "stuck", JobPhase::Running);
    let commands: [(&[&str], &str); 4] = [
        (&["node", "watch", "--region", "eu"], ""),
        (&["queue", "watch"], ""),
        (&["cluster", "watch"], ""),
        (&["job", "logs", "job-1", "-f"], "job-1 goes on; follow its output with: muster job logs job-1 -f"),
    ];
    for (words, told) in commands {
        let mut command = command(&fake.endpoint, words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        // It listens for interrupts before it writes.
        out.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{words:?}");
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(130), "{words:?}: {err}");
        assert!(err.contains(told), "{words:?}: {err}");
    }
}
