//! Which cluster is meant: flags, then the environment, then the configuration file, then the running `muster dev`.

use std::path::{Path, PathBuf};

use muster_client::Endpoints;
use muster_transport::{Bearer, Security, Tls, TlsFiles};
use muster_types::bucket::{BucketConfig, BucketName};
use serde::Deserialize;

use super::failure::Failure;
use super::local;

/// Nobody's configuration is larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    endpoints: Vec<String>,
    #[serde(default)]
    tls: Option<TlsFiles>,
    /// Where the web pages of replicas are.
    #[serde(default)]
    web: Vec<String>,
    /// Where this machine has the store of files of jobs: a directory, or `s3://bucket/prefix`.
    #[serde(default)]
    store: Option<PathBuf>,
    /// How a store is reached that is a bucket.
    #[serde(default)]
    s3: BucketConfig,
}

/// Authorities, certificate and key, as given by flags or the environment.
type GivenFiles<'a> = (&'a Option<PathBuf>, &'a Option<PathBuf>, &'a Option<PathBuf>);

/// What a cluster with certificates is reached with.
enum Credentials {
    Own(TlsFiles),
    /// Its authorities alone, with a token.
    Authority(PathBuf),
}

/// The token of a file, or of the environment where no file is named; none where neither has one.
pub fn token(file: Option<&Path>) -> Result<Option<Bearer>, Failure> {
    let wrong = |error: muster_transport::TokenError| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        Failure::usage(error.to_string()).with_details(cause)
    };
    if let Some(file) = file {
        return Bearer::read(file).map(Some).map_err(wrong);
    }
    match std::env::var_os("MUSTER_TOKEN").filter(|text| !text.is_empty()) {
        Some(text) => {
            let text = text.to_str().unwrap_or_default().trim();
            Bearer::parse(text).map(Some).map_err(|error| Failure::usage(format!("MUSTER_TOKEN: {error}")))
        }
        None => Ok(None),
    }
}

/// The replicas to talk to. `given` comes from the command line or, through it, the environment.
pub fn endpoints(
    given: &[String],
    files: GivenFiles<'_>,
    token: Option<&Bearer>,
) -> Result<Endpoints, Failure> {
    let found = found(given, files, token.is_some())?;
    Ok(match token {
        Some(token) => found.with_bearer(token),
        None => found,
    })
}

fn found(given: &[String], files: GivenFiles<'_>, has_token: bool) -> Result<Endpoints, Failure> {
    let path = path();
    let named = given.iter().any(|text| !text.trim().is_empty());
    let flags = given_files(files, has_token)?;
    // With everything given there is nothing to be looked up.
    let configured = match &path {
        Some(path) if !(named && flags.is_some()) => read(path)?,
        _ => ConfigFile::default(),
    };
    let security = security(flags.or(configured.tls.map(Credentials::Own)))?;
    let configured = configured.endpoints;
    if named {
        return parse(given, "--endpoint or MUSTER_ENDPOINTS", security);
    }
    if configured.is_empty() {
        if let (Security::Plaintext, Some(running)) = (&security, local::running()) {
            return parse(&running, "the running `muster dev`", security);
        }
        let place = path.map_or_else(|| "a configuration file".to_owned(), |p| p.display().to_string());
        return Err(Failure::usage("no endpoint given").with_next(format!(
            "name a replica: --endpoint HOST:PORT, MUSTER_ENDPOINTS, or `endpoints = [\"HOST:PORT\"]` in {place}; \
             `muster dev` starts a cluster on this machine"
        )));
    }
    let place = path.map(|p| p.display().to_string()).unwrap_or_default();
    parse(&configured, &place, security)
}

/// Authorities, certificate and key of the command line or the environment: all of them or none. With a token authorities
/// are enough.
fn given_files(files: GivenFiles<'_>, has_token: bool) -> Result<Option<Credentials>, Failure> {
    match files {
        (Some(ca), Some(cert), Some(key)) => {
            Ok(Some(Credentials::Own(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() })))
        }
        (Some(ca), None, None) if has_token => Ok(Some(Credentials::Authority(ca.clone()))),
        (None, None, None) => Ok(None),
        _ => {
            let text = "--ca, --cert and --key (MUSTER_CA, MUSTER_CERT, MUSTER_KEY) are given together or not at all; --ca \
                        alone goes with a token";
            Err(Failure::usage(text))
        }
    }
}

/// The replicas that are meant: of the command line or the environment, else of the configuration file; none where neither names one.
pub fn named(given: &[String]) -> Result<Vec<String>, Failure> {
    let texts = |texts: &[String]| -> Vec<String> {
        let trimmed = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
        trimmed.filter(|text| !text.is_empty()).map(str::to_owned).collect()
    };
    let given = texts(given);
    if !given.is_empty() {
        return Ok(given);
    }
    path().map_or(Ok(Vec::new()), |path| read(&path).map(|file| texts(&file.endpoints)))
}

/// The authorities of the cluster in the configuration file.
pub fn authority() -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path() else { return Ok(None) };
    Ok(read(&path)?.tls.map(|files| files.ca))
}

/// The replicas of a cluster that a token of an issuer is for.
pub fn signed_in(endpoints: &[String], ca: &Path, bearer: &Bearer) -> Result<Endpoints, Failure> {
    let security = security(Some(Credentials::Authority(ca.to_path_buf())))?;
    Ok(parse(endpoints, "the endpoints of the sign-in", security)?.with_bearer(bearer))
}

/// The web pages of replicas: of the command line or the environment, else of the configuration file, else of the running
/// `muster dev` where it is the cluster. None where nothing names them: replicas do not tell their addresses, and no port is
/// guessed.
pub fn web(
    given: &[String],
    endpoints: &[String],
    files: GivenFiles<'_>,
) -> Result<Option<Endpoints>, Failure> {
    // The pages ask for a certificate, and tell that a client that has authorities alone.
    let flags = given_files(files, true)?;
    let path = path();
    let configured = match &path {
        Some(path) => read(path)?,
        None => ConfigFile::default(),
    };
    let is_dev = flags.is_none() && is_local(endpoints);
    let security = security(flags.or(configured.tls.map(Credentials::Own)))?;
    if given.iter().any(|text| !text.trim().is_empty()) {
        return parse(given, "--web or MUSTER_WEB", security).map(Some);
    }
    if is_dev {
        let running = local::running_web();
        return if running.is_empty() {
            Ok(None)
        } else {
            parse(&running, "the running `muster dev`", security).map(Some)
        };
    }
    // Those of the file are of the cluster of the file.
    let is_of_file =
        endpoints.iter().all(|text| text.trim().is_empty() || configured.endpoints.contains(text));
    if configured.web.is_empty() || !is_of_file {
        return Ok(None);
    }
    let place = path.map(|path| path.display().to_string()).unwrap_or_default();
    parse(&configured.web, &place, security).map(Some)
}

/// Where the configuration file says that the store of files of jobs is; none where it does not say.
pub fn store() -> Result<Option<PathBuf>, Failure> {
    let Some(path) = path() else { return Ok(None) };
    match read(&path)?.store {
        Some(store) if !store.is_absolute() && !is_bucket(&store) => Err(Failure::usage(format!(
            "{}: store = {store:?} must be an absolute path, or s3:// and a bucket",
            path.display()
        ))),
        store => Ok(store),
    }
}

fn is_bucket(store: &Path) -> bool {
    store.to_str().is_some_and(BucketName::is_meant)
}

/// How the configuration file says that a bucket is reached.
pub fn bucket() -> Result<BucketConfig, Failure> {
    let Some(path) = path() else { return Ok(BucketConfig::default()) };
    let config = read(&path)?.s3;
    match config.violation() {
        Some((key, rule)) => Err(Failure::usage(format!("{}: s3.{key} {rule}", path.display()))),
        None => Ok(config),
    }
}

/// Whether the cluster that [`endpoints`] finds is the running `muster dev`, whose hosts are this machine.
pub fn is_local(given: &[String]) -> bool {
    let Some(running) = local::running() else { return false };
    let plain = |text: &str| text.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let running: Vec<String> = running.iter().map(|text| plain(text)).collect();
    let named: Vec<String> = given.iter().map(|text| plain(text)).filter(|text| !text.is_empty()).collect();
    if !named.is_empty() {
        return named.iter().all(|endpoint| running.contains(endpoint));
    }
    path()
        .and_then(|path| read(&path).ok())
        .is_none_or(|file| file.endpoints.is_empty() && file.tls.is_none())
}

/// Plaintext without certificates.
fn security(credentials: Option<Credentials>) -> Result<Security, Failure> {
    let loaded = match credentials {
        None => return Ok(Security::Plaintext),
        Some(Credentials::Own(files)) => Tls::load(files),
        Some(Credentials::Authority(ca)) => Tls::load_authority(ca),
    };
    match loaded {
        Ok(tls) => Ok(Security::Tls(tls)),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            Err(Failure::usage(error.to_string()).with_details(cause))
        }
    }
}

fn parse(texts: &[String], place: &str, security: Security) -> Result<Endpoints, Failure> {
    Endpoints::parse_with(texts, security).map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// `$XDG_CONFIG_HOME/muster/config.toml`, or below `~/.config`.
pub(crate) fn path() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join("muster").join("config.toml"))
}

fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let failed = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(failed("is larger than 1 MiB".into())),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ConfigFile::default()),
        Err(error) => return Err(failed(error.to_string())),
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    toml::from_str(&text).map_err(|e| failed(e.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_their_mistakes_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        assert!(read(&path).unwrap().endpoints.is_empty());
        std::fs::write(&path, "endpoints = [\"a:1\", \"b:2\"]\n").unwrap();
        assert_eq!(read(&path).unwrap().endpoints, ["a:1", "b:2"]);
        std::fs::write(&path, "[tls]\nca = \"a\"\ncert = \"c\"\nkey = \"k\"\n").unwrap();
        assert_eq!(read(&path).unwrap().tls.unwrap().cert, Path::new("c"));
        std::fs::write(&path, "endpoints = [\"a:1\"]\nweb = [\"a:2\"]\n").unwrap();
        assert_eq!(read(&path).unwrap().web, ["a:2"]);
        let files = (&Some(path.clone()), &None, &None);
        assert!(matches!(given_files(files, true), Ok(Some(Credentials::Authority(_)))));
        assert!(given_files(files, false).is_err(), "authorities alone say nobody's name");
        for wrong in ["endpoint = [\"a:1\"]\n", "endpoints = 1\n", "[", "\u{0}", "[tls]\nca = \"a\"\n"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(&path).is_err(), "{wrong:?}");
        }
    }
}
