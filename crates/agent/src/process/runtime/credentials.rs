//! Credentials of registries, which stand in a file of this host and not in the job.
//!
//! A job names a secret of its tenant, as a variable does. What the secret holds is handed to the program that pulls in a file
//! that only the agent's user can read, and that is there no longer than the pull.
//!
//! **Invariant:** a job gets credentials of its tenant and of no other; no message and no argument holds a value.

use super::{ImageError, ImageFault};
use crate::offload::blocking;
use crate::process::secrets;
use muster_types::Container;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names of such files begin.
const FILES: &str = ".auth_";

/// Where credentials are, and where their files are put.
#[derive(Debug)]
pub(crate) struct Credentials {
    secrets_dir: Option<PathBuf>,
    directory: PathBuf,
    files: AtomicU64,
}

/// Credentials in the form of `podman login --authfile`, as long as this is there.
#[derive(Debug)]
pub(crate) struct AuthFile(PathBuf);

impl AuthFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for AuthFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a file with credentials stays behind");
        }
    }
}

impl Credentials {
    /// Those of tenants below `secrets_dir`; their files are put into a directory that is the agent's alone.
    pub(crate) fn new(secrets_dir: Option<PathBuf>, directory: PathBuf) -> Credentials {
        Credentials { secrets_dir, directory, files: AtomicU64::new(0) }
    }

    /// Removes what an agent before this one has left.
    pub(crate) fn remove_left(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(FILES)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The credentials that a job names for its image; none where it names none.
    ///
    /// # Errors
    /// When the host has no such secret of the tenant, or it is no such file.
    pub(crate) async fn file_of(
        &self,
        tenant: &str,
        container: &Container,
    ) -> Result<Option<AuthFile>, ImageError> {
        let Some(name) = &container.credentials else { return Ok(None) };
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("{FILES}{number}"));
        let (dir, tenant, name) = (self.secrets_dir.clone(), tenant.to_owned(), name.to_string());
        blocking(move || put(dir.as_deref(), &tenant, &name, path)).await.map(Some)
    }
}

fn put(dir: Option<&Path>, tenant: &str, name: &str, path: PathBuf) -> Result<AuthFile, ImageError> {
    let lacking = |why: &str| {
        let said = format!("container.credentials asks for secret {name:?}: {why}");
        ImageError::new(ImageFault::NoCredentials, said)
    };
    let text = secrets::read(dir, tenant, name).map_err(|why| lacking(&why))?;
    if !is_auth_file(&text) {
        return Err(lacking("it has to be what `podman login --authfile` writes: {\"auths\": {…}}"));
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.map_err(|error| lacking(&format!("make a file for it: {error}")))?;
    let made = AuthFile(path);
    file.write_all(text.as_bytes()).map_err(|error| lacking(&format!("write a file for it: {error}")))?;
    Ok(made)
}

/// Whether a text has the form that podman and apptainer read.
fn is_auth_file(text: &str) -> bool {
    let read: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(text);
    read.is_ok_and(|fields| fields.get("auths").is_some_and(serde_json::Value::is_object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::Name;
    use std::os::unix::fs::PermissionsExt as _;

    #[tokio::test]
    async fn credentials_are_in_a_file_of_the_agent_for_as_long_as_the_pull() {
        let directory = tempfile::tempdir().unwrap();
        let (secrets, own) = (directory.path().join("secrets"), directory.path().join("images"));
        fs::create_dir_all(secrets.join("speech")).unwrap();
        fs::create_dir(&own).unwrap();
        let text = r#"{"auths": {"registry.example.org": {"auth": "dTpodW50ZXIy"}}}"#;
        for (name, text) in [("registry", text), ("plain", "u:hunter2")] {
            let path = secrets.join("speech").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let credentials = Credentials::new(Some(secrets), own.clone());
        let of = |name: &str| Container {
            credentials: Name::new(name),
            ..Container::new("registry.example.org/a:1".to_owned())
        };
        let file = credentials.file_of("speech", &of("registry")).await.unwrap().unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        drop(file);
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
        assert!(credentials.file_of("speech", &of("")).await.unwrap().is_none(), "it names none");
        for (tenant, name) in [("speech", "plain"), ("speech", "none"), ("vision", "registry")] {
            let error = credentials.file_of(tenant, &of(name)).await.unwrap_err();
            assert_eq!(error.fault(), ImageFault::NoCredentials, "{tenant} {name}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        fs::write(own.join(".auth_7"), text).unwrap();
        credentials.remove_left().unwrap();
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
    }
}
