//! Values of a worker's environment that stand in a file of this host, and not in the job.
//!
//! A variable whose value is `muster-secret://NAME` gets what the file `<secrets_dir>/<tenant>/NAME` holds, without the
//! line's end behind it. So the value is in no record of the log, no archive and no answer; only in the directory of the
//! worker on this host, which is the agent's alone.
//!
//! **Invariant:** a job gets secrets of its tenant and of no other; no message holds a value.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use muster_types::{NAME_RULE, Name};

/// What a value begins with that stands in a file.
const SCHEME: &str = "muster-secret://";
/// Bytes of a secret.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Whether anything here is to be filled in.
pub(crate) fn are_asked_for(environment: &BTreeMap<String, String>) -> bool {
    environment.values().any(|value| value.starts_with(SCHEME))
}

/// Fills in what stands in files.
///
/// # Errors
/// Why a value cannot be had, for the job's owner.
pub(crate) fn fill(
    environment: &mut BTreeMap<String, String>,
    dir: Option<&Path>,
    tenant: &str,
) -> Result<(), String> {
    for (variable, value) in environment {
        let Some(name) = value.strip_prefix(SCHEME) else { continue };
        let filled = read(dir, tenant, name);
        *value = filled.map_err(|why| format!("{variable} asks for secret {name:?}: {why}"))?;
    }
    Ok(())
}

/// The content of a secret of a tenant.
///
/// # Errors
/// Why it cannot be had, without any of it.
pub(crate) fn read(dir: Option<&Path>, tenant: &str, name: &str) -> Result<String, String> {
    let dir = dir
        .ok_or("this host has no secrets; `secrets_dir` of its agent's configuration says where they are")?;
    // Neither leads out of the tenant's directory.
    if Name::new(tenant).is_none() || Name::new(name).is_none() {
        return Err(format!("a secret's name is {NAME_RULE}"));
    }
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("tenant {tenant} has none of this name on this host"),
        kind => format!("it cannot be read on this host: {kind}"),
    };
    let path = dir.join(tenant).join(name);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err("it is no file on this host".to_owned());
    }
    if about.permissions().mode() & 0o007 != 0 {
        return Err(
            "its file on this host is open to everybody; an operator has to `chmod 600` it".to_owned()
        );
    }
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(format!("it has more than {SECRET_BYTES_MAX} bytes"));
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let text = text.ok_or("it is no text, which a variable has to be")?;
    Ok(text
        .strip_suffix('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .unwrap_or(&text)
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(dir: Option<&Path>, tenant: &str, value: &str) -> Result<String, String> {
        let mut environment = BTreeMap::from([("KEY".to_owned(), value.to_owned())]);
        fill(&mut environment, dir, tenant).map(|()| environment.remove("KEY").expect("it is there"))
    }

    fn put(path: &Path, text: impl AsRef<[u8]>, mode: u32) {
        std::fs::write(path, text).expect("a file can be written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode can be set");
    }

    #[test]
    fn a_job_gets_secrets_of_its_own_tenant_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        for tenant in ["speech", "vision"] {
            std::fs::create_dir(dir.join(tenant)).expect("a directory can be made");
        }
        put(&dir.join("speech/token"), "hunter2\n", 0o600);
        put(&dir.join("speech/open"), "hunter2", 0o604);
        put(&dir.join("speech/zero"), [1, 0, 2], 0o600);
        put(&dir.join("speech/large"), vec![b'x'; (64 << 10) + 1], 0o600);
        std::os::unix::fs::symlink(dir.join("speech/token"), dir.join("vision/stolen")).expect("a link");
        let get = |tenant: &str, value: &str| filled(Some(dir), tenant, value);
        assert_eq!(get("speech", "muster-secret://token"), Ok("hunter2".to_owned()));
        assert_eq!(get("speech", "a plain value"), Ok("a plain value".to_owned()));
        for (tenant, name) in [
            ("vision", "token"),
            ("vision", "stolen"),
            ("vision", "../speech/token"),
            ("vision", ""),
            ("..", "speech"),
            ("speech", "/etc/passwd"),
            ("speech", "none"),
            ("speech", "open"),
            ("speech", "zero"),
            ("speech", "large"),
        ] {
            let why = get(tenant, &format!("muster-secret://{name}")).expect_err(name);
            assert!(why.contains("KEY") && !why.contains("hunter2"), "{tenant} {name}: {why}");
        }
        assert!(
            filled(None, "speech", "muster-secret://token").is_err_and(|why| why.contains("secrets_dir"))
        );
    }
}
