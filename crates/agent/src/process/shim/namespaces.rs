//! Namespaces that a process makes for itself.

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// An error of the system as a sentence.
pub(super) fn failed(what: &'static str) -> impl FnOnce(Errno) -> String {
    move |error| format!("{what}: {error}")
}

/// Makes a user namespace, and whatever else `flags` says, with one user and one group: what they are called inside,
/// and what they are outside.
pub(super) fn enter_user_namespace(
    flags: CloneFlags,
    uid: (u32, u32),
    gid: (u32, u32),
) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWUSER | flags).map_err(failed("make a user namespace"))?;
    let write = |file: &str, text: &str| {
        std::fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| format!("write {file} of a user namespace: {e}"))
    };
    write("setgroups", "deny")?;
    write("uid_map", &format!("{} {} 1", uid.0, uid.1))?;
    write("gid_map", &format!("{} {} 1", gid.0, gid.1))
}
