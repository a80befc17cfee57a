//! The cluster's authority and everybody's certificates, made by the commands that an operator uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use muster_transport::{Security, Tls, TlsFiles};

use super::plan::{Plan, Purpose};

/// Directories with `tls.crt`, `tls.key` and `ca.crt`.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// An authority, and a certificate for every host of the plan.
    ///
    /// # Errors
    /// When `muster ca` does not do it.
    pub fn issue(program: &Path, dir: &Path, cluster_id: &str, plan: &Plan) -> Result<Certificates> {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let authority = dir.join("authority");
        let run = |words: &[&str]| -> Result<()> {
            let ran = Command::new(program).args(words).output().context("running muster ca")?;
            ensure!(ran.status.success(), "muster {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
            Ok(())
        };
        let authority = authority.to_str().context("the directory of a drill is text")?;
        run(&["ca", "init", authority, "--cluster-id", cluster_id])?;
        let made = Certificates { dir: dir.to_path_buf() };
        for host in &plan.hosts {
            let (kind, name) = match &host.purpose {
                Purpose::Replica { id, .. } => ("replica", id.to_string()),
                Purpose::Agent(name) => ("agent", name.clone()),
                Purpose::Clients => ("client", host.name.clone()),
                Purpose::Operator => ("admin", host.name.clone()),
            };
            let out = made.of(&host.name);
            let out = out.to_str().context("the directory of a drill is text")?;
            let whose: &[&str] = if kind == "client" { &["--all-tenants"] } else { &[] };
            run(&[&["ca", "issue", authority, kind, &name, "--out", out], whose].concat())?;
        }
        Ok(made)
    }

    /// The certificate of a host.
    #[must_use]
    pub fn of(&self, host: &str) -> PathBuf {
        self.dir.join(host)
    }

    /// What a host shows to the others.
    ///
    /// # Errors
    /// When its files do not go together.
    pub fn security(&self, host: &str) -> Result<Security> {
        let directory = self.of(host);
        let files = TlsFiles {
            ca: directory.join("ca.crt"),
            cert: directory.join("tls.crt"),
            key: directory.join("tls.key"),
        };
        Ok(Security::Tls(Tls::load(files).with_context(|| format!("the certificate of {host}"))?))
    }

    /// Variables that make `muster` commands speak for a host.
    #[must_use]
    pub fn environment(&self, host: &str) -> [(&'static str, PathBuf); 3] {
        let directory = self.of(host);
        [
            ("MUSTER_CA", directory.join("ca.crt")),
            ("MUSTER_CERT", directory.join("tls.crt")),
            ("MUSTER_KEY", directory.join("tls.key")),
        ]
    }
}
