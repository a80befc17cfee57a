//! Programs of the system that some faults need.

use crate::unsupported::{Means, Unsupported};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program or library that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Watches and changes system calls.
    Strace,
    /// Gives a process another clock.
    Faketime,
}

impl Tool {
    /// Everything that faults use and that can be installed.
    pub const ALL: [Tool; 2] = [Tool::Strace, Tool::Faketime];

    fn package(self) -> &'static str {
        match self {
            Tool::Strace => "strace",
            Tool::Faketime => "libfaketime",
        }
    }

    fn means(self) -> Means {
        match self {
            Tool::Strace => Means::Strace,
            Tool::Faketime => Means::Faketime,
        }
    }

    /// Where it is.
    pub fn find(self) -> Result<PathBuf, Unsupported> {
        let found = match self {
            Tool::Strace => program("strace"),
            // For programs with several threads.
            Tool::Faketime => library("faketime/libfaketimeMT.so.1"),
        };
        let missing =
            || Unsupported::because(self.means(), format!("package {} is not installed", self.package()));
        found.ok_or_else(missing)
    }
}

/// Whether a program can be found.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|directory| directory.join(name)).find(|path| path.is_file())
}

fn library(name: &str) -> Option<PathBuf> {
    let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [machine.as_str(), "/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

/// Installs what is missing of these, on Debian and as root. Elsewhere, or without a network, answers what is still
/// missing and why.
pub fn install_missing(tools: &[Tool]) -> Vec<Unsupported> {
    let missing =
        |tools: &[Tool]| tools.iter().copied().filter(|tool| tool.find().is_err()).collect::<Vec<_>>();
    let wanted = missing(tools);
    if !wanted.is_empty() && nix::unistd::geteuid().is_root() && program("apt-get").is_some() {
        let install = || {
            let mut command = Command::new("apt-get");
            command.args(["install", "-y", "--no-install-recommends"]);
            command.args(wanted.iter().map(|tool| tool.package())).env("DEBIAN_FRONTEND", "noninteractive");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !install() {
            // The lists of packages may be old, or not there at all.
            let update =
                Command::new("apt-get").arg("update").stdout(Stdio::null()).stderr(Stdio::null()).status();
            let _ = update.is_ok_and(|status| status.success()) && install();
        }
    }
    wanted.into_iter().filter_map(|tool| tool.find().err()).collect()
}
