//! Others that are measured next to Muster, in the same run, with the same generator where they have an API
//! that it can speak.

pub(crate) mod etcd;
pub(crate) mod slurm;

use std::path::PathBuf;

/// Whom to measure next to Muster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Peer {
    /// Three members of etcd
    Etcd,
    /// One controller of Slurm
    Slurm,
}

/// Where a program is; none when it is not installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}
