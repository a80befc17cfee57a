//! Which cluster is meant: flags, then the environment, then the configuration file.

use std::path::{Path, PathBuf};

use muster_client::Endpoints;
use serde::Deserialize;

use super::failure::Failure;

/// Nobody's configuration is larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    endpoints: Vec<String>,
}

/// The replicas to talk to. `given` comes from the command line or, through it, the environment.
pub fn endpoints(given: &[String]) -> Result<Endpoints, Failure> {
    if given.iter().any(|text| !text.trim().is_empty()) {
        return parse(given, "--endpoint or MUSTER_ENDPOINTS");
    }
    let path = path();
    let configured = match &path {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    if configured.is_empty() {
        let place = path.map_or_else(|| "a configuration file".to_owned(), |p| p.display().to_string());
        return Err(Failure::usage("no endpoint given").with_next(format!(
            "name a replica: --endpoint HOST:PORT, MUSTER_ENDPOINTS, or `endpoints = [\"HOST:PORT\"]` in {place}"
        )));
    }
    let place = path.map(|p| p.display().to_string()).unwrap_or_default();
    parse(&configured, &place)
}

fn parse(texts: &[String], place: &str) -> Result<Endpoints, Failure> {
    Endpoints::parse(texts).map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// `$XDG_CONFIG_HOME/muster/config.toml`, or below `~/.config`.
fn path() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join("muster").join("config.toml"))
}

fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let failed = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(failed("is larger than 1 MiB".into())),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error.to_string())),
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let file: ConfigFile = toml::from_str(&text).map_err(|e| failed(e.message().to_owned()))?;
    Ok(file.endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_their_mistakes_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        assert!(read(&path).unwrap().is_empty());
        std::fs::write(&path, "endpoints = [\"a:1\", \"b:2\"]\n").unwrap();
        assert_eq!(read(&path).unwrap(), ["a:1", "b:2"]);
        for wrong in ["endpoint = [\"a:1\"]\n", "endpoints = 1\n", "[", "\u{0}"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(&path).is_err(), "{wrong:?}");
        }
    }
}
