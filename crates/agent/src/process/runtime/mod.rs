//! Images: what pulls and unpacks them, and what an image says of the programs in it.
//!
//! No runtime runs a worker here. It fetches an image and unpacks it into a directory, once for all workers that have it;
//! the shim then makes that directory the root of the worker, in the namespaces that it holds anyway. So there is no
//! daemon and no monitor between a worker and its shim, and the end of the shim is the end of everything in the image.
//!
//! **Invariant:** an image is unpacked whole or not at all, and none is removed while a worker has it.

mod ahead;
mod apptainer;
mod credentials;
mod podman;
mod pulls;
mod store;

pub(crate) use ahead::{ImageLink, ImageReports, Stages, serve};
pub(crate) use store::{ImageStore, Prepared, ROOT, hold};

use apptainer::Apptainer;
use credentials::Credentials;
use podman::Podman;

use crate::process::cdi::{DeviceSpecification, Edits};
use crate::process::isolation::Namespaces;
use muster_types::config_value::{bytes, span_ms};
use muster_types::container::{NO_RUNTIME, RUNTIME_LABEL, VERSION_LABEL};
use muster_types::{Container, DeviceSet, StartStage, Violation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of what is kept of a program's complaint.
const COMPLAINT_BYTES_MAX: usize = 512;
/// Variables of an image, and bytes of them together.
const VARIABLES_MAX: usize = 1_024;
const VARIABLES_BYTES_MAX: usize = 256 << 10;
/// Words of an image's command, and bytes of them together.
const COMMAND_WORDS_MAX: usize = 1_024;
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Files of the host that every image may show.
const FILES_MAX: usize = 64;
/// The longest and shortest time for one image.
const PULL_MS: (u64, u64) = (1_000, 24 * 3_600_000);

/// Whether images are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeMode {
    /// By podman where it is installed, else by apptainer, where workers have namespaces.
    #[default]
    Auto,
    /// By podman.
    Podman,
    /// By apptainer.
    Apptainer,
    /// Never.
    Off,
}

/// What an operator says of images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImagesConfig {
    /// Whether images are offered.
    pub runtime: RuntimeMode,
    /// Where unpacked images are; `images` in the state directory when not said. On a file system that can be below an
    /// overlay.
    pub directory: Option<PathBuf>,
    /// Bytes that unpacked images may take: of more, those go that no worker has, the longest unused first. An image that is
    /// larger is not unpacked.
    #[serde(rename = "size_max", with = "bytes")]
    pub bytes_max: u64,
    /// Milliseconds that the pull and the unpacking of one image may take, attempts after failures included.
    #[serde(rename = "pull_timeout", with = "span_ms")]
    pub pull_timeout_ms: u64,
    /// Files and directories of the host that every worker with an image finds at the same path and can only read: libraries
    /// of drivers, for example.
    pub files: Vec<PathBuf>,
}

impl Default for ImagesConfig {
    fn default() -> ImagesConfig {
        ImagesConfig {
            runtime: RuntimeMode::Auto,
            directory: None,
            bytes_max: 64 << 30,
            pull_timeout_ms: 15 * 60_000,
            files: Vec::new(),
        }
    }
}

impl ImagesConfig {
    /// The first key that breaks its rule, and the rule.
    #[must_use]
    pub fn violation(&self) -> Option<(&'static str, String)> {
        if self.directory.as_deref().is_some_and(|directory| !can_be_below_an_overlay(directory)) {
            return Some((
                "images.directory",
                "must be an absolute path without ',', ':' and '\\'".to_owned(),
            ));
        }
        let (min, max) = PULL_MS;
        if !(min..=max).contains(&self.pull_timeout_ms) {
            let violation = Violation::span("images.pull_timeout", self.pull_timeout_ms, min, max);
            return Some(("images.pull_timeout", violation.description));
        }
        let of_system = |path: &Path| ["/proc", "/sys", "/dev"].iter().any(|system| path.starts_with(system));
        let is_bad = |path: &PathBuf| !path.is_absolute() || of_system(path) || path.parent().is_none();
        if self.files.len() > FILES_MAX || self.files.iter().any(is_bad) {
            let rule = format!("must be at most {FILES_MAX} absolute paths, not in /proc, /sys or /dev");
            return Some(("images.files", rule));
        }
        None
    }
}

/// Why an image cannot be had: a stable word, and what was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageError {
    fault: ImageFault,
    said: String,
}

/// The words. They begin the text of a launch that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageFault {
    /// Its registry has no such image, or does not show it.
    NotFound,
    /// What the registry sent is not what the digest names.
    DigestMismatch,
    /// Its registry does not answer; worth another attempt.
    Unreachable,
    /// The job says `never`, and the host does not have it.
    NotHere,
    /// The host has no such credentials for its tenant.
    NoCredentials,
    /// Neither pulled nor unpacked within the time.
    TimedOut,
    /// It cannot be used: no program, no runtime, no space.
    Unusable,
}

impl ImageFault {
    fn word(self) -> &'static str {
        match self {
            ImageFault::NotFound => "IMAGE_NOT_FOUND",
            ImageFault::DigestMismatch => "IMAGE_DIGEST_MISMATCH",
            ImageFault::Unreachable => "IMAGE_REGISTRY_UNREACHABLE",
            ImageFault::NotHere => "IMAGE_NOT_ON_NODE",
            ImageFault::NoCredentials => "IMAGE_NO_CREDENTIALS",
            ImageFault::TimedOut => "IMAGE_TIMED_OUT",
            ImageFault::Unusable => "IMAGE_UNUSABLE",
        }
    }
}

impl ImageError {
    pub(crate) fn new(fault: ImageFault, said: impl Into<String>) -> ImageError {
        let said: String = said.into();
        // The end of what a program says has the reason.
        let skip = said.chars().count().saturating_sub(COMPLAINT_BYTES_MAX);
        // A registry says what it likes, and people read it in terminals.
        let plain = said.chars().skip(skip).map(|char| if char.is_control() { ' ' } else { char });
        ImageError { fault, said: plain.collect::<String>().trim().to_owned() }
    }

    pub(crate) fn unusable(said: impl Into<String>) -> ImageError {
        ImageError::new(ImageFault::Unusable, said)
    }

    pub(crate) fn fault(&self) -> ImageFault {
        self.fault
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fault.word(), self.said)
    }
}

/// What an image says of the programs in it, as the OCI image configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub(crate) entrypoint: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) cmd: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) env: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) working_dir: Option<String>,
}

impl ImageConfig {
    /// Program and arguments of a worker: the job's in the place of the image's.
    ///
    /// # Errors
    /// When neither names a program.
    pub(crate) fn command(&self, of_job: &[String]) -> Result<Vec<String>, ImageError> {
        if !of_job.is_empty() {
            return Ok(of_job.to_vec());
        }
        let parts = self.entrypoint.iter().chain(&self.cmd).flatten();
        let command: Vec<String> = parts.cloned().collect();
        if command.first().is_none_or(String::is_empty) {
            return Err(ImageError::unusable("the image names no program; the job has to give a command"));
        }
        let bytes: usize = command.iter().map(String::len).sum();
        if command.len() > COMMAND_WORDS_MAX || bytes > COMMAND_BYTES_MAX {
            return Err(ImageError::unusable(format!(
                "the image's command has more than {COMMAND_WORDS_MAX} words, or more than {COMMAND_BYTES_MAX} bytes"
            )));
        }
        Ok(command)
    }

    /// What the variables of a worker begin with: those of the node, and over them the image's. Those that launch forms and
    /// the job set go over both.
    ///
    /// # Errors
    /// When the image has too many.
    pub(crate) fn environment(
        &self,
        of_node: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, ImageError> {
        let own = self.env.as_deref().unwrap_or_default();
        let bytes: usize = own.iter().map(String::len).sum();
        if own.len() > VARIABLES_MAX || bytes > VARIABLES_BYTES_MAX {
            return Err(ImageError::unusable(format!(
                "the image has more than {VARIABLES_MAX} variables, or more than {VARIABLES_BYTES_MAX} bytes of them"
            )));
        }
        let mut variables = of_node.clone();
        // A directory and a user of the host.
        for of_host in ["TMPDIR", "USER", "LOGNAME"] {
            variables.remove(of_host);
        }
        let named = own.iter().filter_map(|variable| variable.split_once('='));
        // What a job may not set an image may not either; and it names no secrets of the tenant.
        let taken = named.filter(|(name, value)| {
            !name.is_empty() && !name.starts_with("MUSTER_") && !value.starts_with("muster-secret://")
        });
        variables.extend(taken.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Ok(variables)
    }

    /// Where a worker starts that does not say; none where the image does not say either.
    pub(crate) fn working_directory(&self) -> Option<PathBuf> {
        self.working_dir.as_ref().map(PathBuf::from).filter(|directory| directory.is_absolute())
    }
}

/// An image that the host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundImage {
    /// What identifies its content: 64 hexadecimal digits.
    pub(crate) id: String,
    /// What it says of its programs.
    pub(crate) config: ImageConfig,
}

/// What fetches and unpacks images.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// The image of this reference, where the host has it.
    fn find(&self, reference: &str) -> impl Future<Output = Result<Option<FoundImage>, ImageError>> + Send;

    /// Fetches it, with the credentials in a file or, without one, those that the host has itself, unless it fills more than
    /// `bytes_max`. `owner` is the directory of all images.
    fn pull(
        &self,
        reference: &str,
        credentials: Option<&Path>,
        owner: &Path,
        bytes_max: u64,
    ) -> impl Future<Output = Result<(), ImageError>> + Send;

    /// Unpacks it into a directory that is there and empty, unless its files are more than `bytes_max`. `owner` is the
    /// directory of all images.
    fn unpack(
        &self,
        id: &str,
        into: &Path,
        owner: &Path,
        bytes_max: u64,
    ) -> impl Future<Output = Result<(), ImageError>> + Send;

    /// Removes what unpackings for this owner have left that were given up.
    fn tidy(&self, owner: &Path) -> impl Future<Output = ()> + Send;

    /// Gives the space of an image back, by its id or a reference. One that something else uses stays.
    fn remove(&self, image: &str) -> impl Future<Output = ()> + Send;
}

/// A runtime that was found on this host.
#[derive(Clone, Debug)]
pub(crate) enum FoundRuntime {
    Podman(Podman),
    Apptainer(Apptainer),
}

impl FoundRuntime {
    fn name(&self) -> &'static str {
        match self {
            FoundRuntime::Podman(_) => "podman",
            FoundRuntime::Apptainer(_) => "apptainer",
        }
    }

    fn version(&self) -> &str {
        match self {
            FoundRuntime::Podman(podman) => podman.version(),
            FoundRuntime::Apptainer(apptainer) => apptainer.version(),
        }
    }
}

impl Runtime for FoundRuntime {
    async fn find(&self, reference: &str) -> Result<Option<FoundImage>, ImageError> {
        match self {
            FoundRuntime::Podman(podman) => podman.find(reference).await,
            FoundRuntime::Apptainer(apptainer) => apptainer.find(reference).await,
        }
    }

    async fn pull(
        &self,
        reference: &str,
        credentials: Option<&Path>,
        owner: &Path,
        bytes_max: u64,
    ) -> Result<(), ImageError> {
        match self {
            FoundRuntime::Podman(podman) => podman.pull(reference, credentials, owner, bytes_max).await,
            FoundRuntime::Apptainer(apptainer) => {
                apptainer.pull(reference, credentials, owner, bytes_max).await
            }
        }
    }

    async fn unpack(&self, id: &str, into: &Path, owner: &Path, bytes_max: u64) -> Result<(), ImageError> {
        match self {
            FoundRuntime::Podman(podman) => podman.unpack(id, into, owner, bytes_max).await,
            FoundRuntime::Apptainer(apptainer) => apptainer.unpack(id, into, owner, bytes_max).await,
        }
    }

    async fn tidy(&self, owner: &Path) {
        match self {
            FoundRuntime::Podman(podman) => podman.tidy(owner).await,
            FoundRuntime::Apptainer(apptainer) => apptainer.tidy(owner).await,
        }
    }

    async fn remove(&self, image: &str) {
        match self {
            FoundRuntime::Podman(podman) => podman.remove(image).await,
            FoundRuntime::Apptainer(apptainer) => apptainer.remove(image).await,
        }
    }
}

/// The images of a host that has a container runtime.
#[derive(Debug)]
pub struct Images {
    store: ImageStore<FoundRuntime>,
    files: Vec<PathBuf>,
    /// What the accelerators of the host need in an image, where a specification says it.
    devices: Option<DeviceSpecification>,
    stages: Stages,
}

impl Images {
    /// Those of `config`, below `usual` where it names no directory. Credentials of registries are among the secrets of tenants.
    ///
    /// # Errors
    /// When their directory cannot be used.
    pub(crate) fn open(
        config: &ImagesConfig,
        usual: PathBuf,
        runtime: FoundRuntime,
        secrets_dir: Option<PathBuf>,
    ) -> std::io::Result<(Images, ImageReports)> {
        let directory = config.directory.clone().unwrap_or(usual);
        let time = Duration::from_millis(config.pull_timeout_ms);
        let credentials = Credentials::new(secrets_dir, directory.clone());
        let store = ImageStore::open(runtime, credentials, directory, config.bytes_max, time)?;
        let (stages, reports) = Stages::new();
        Ok((Images { store, files: config.files.clone(), devices: None, stages }, reports))
    }

    /// The same with what accelerators need in an image.
    pub(crate) fn with_devices(self, devices: Option<DeviceSpecification>) -> Images {
        Images { devices, ..self }
    }

    /// What a worker with these devices needs of the host in its image.
    pub(crate) fn edits(&self, devices: DeviceSet) -> Edits {
        self.devices.as_ref().map(|specification| specification.edits(devices)).unwrap_or_default()
    }

    /// Has an image of a job in a directory, which is there as long as the answer is held. `reached` is told what is done for it.
    pub(crate) async fn prepare(
        &self,
        tenant: &str,
        container: &Container,
        reached: &(dyn Fn(StartStage) + Sync),
    ) -> Result<Prepared, ImageError> {
        self.store.prepare(tenant, container, reached).await
    }

    /// Has an image unpacked that workers will need later, once no worker waits for any.
    pub(crate) async fn prepare_ahead(&self, tenant: &str, container: &Container) -> Result<(), ImageError> {
        self.store.prepare_ahead(tenant, container).await
    }

    /// References of the images that are unpacked, those that were asked for last first.
    pub(crate) async fn held(&self) -> Vec<String> {
        self.store.held().await
    }

    /// Where it is told what workers wait for.
    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    /// What every worker with an image sees of the host.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }
}

/// Whether a path can be told to an overlay, whose options are separated by commas, and its directories by colons.
fn can_be_below_an_overlay(path: &Path) -> bool {
    path.is_absolute() && path.to_str().is_some_and(|text| !text.contains([',', ':', '\\', '\0']))
}

/// What this host prepares images with, where it can. Below `state` are the directories of workers, and those of images where
/// `config` names none.
pub(crate) async fn find(
    config: &ImagesConfig,
    namespaces: Namespaces,
    state: &Path,
) -> Option<FoundRuntime> {
    if config.runtime == RuntimeMode::Off {
        return None;
    }
    if namespaces == Namespaces::Host {
        tracing::info!("workers have no separate namespaces, so none has the root directory of an image");
        return None;
    }
    if !can_be_below_an_overlay(state) {
        tracing::warn!(state = %state.display(), "no images: the path of the state directory has a ',', ':' or '\\'");
        return None;
    }
    let mut why = Vec::new();
    if config.runtime != RuntimeMode::Apptainer {
        match Podman::look().await {
            Ok(podman) => return Some(FoundRuntime::Podman(podman)),
            Err(lacking) => why.push(lacking),
        }
    }
    if config.runtime != RuntimeMode::Podman {
        let directory = config.directory.clone().unwrap_or_else(|| state.join("images"));
        match Apptainer::look("apptainer", directory).await {
            Ok(apptainer) => return Some(FoundRuntime::Apptainer(apptainer)),
            Err(lacking) => why.push(lacking),
        }
    }
    tracing::info!(why = why.join("; "), "no container runtime: jobs with an image are not placed here");
    None
}

/// Labels of the node: what prepares images, and its version. They go before what an operator says.
pub(crate) fn facts(runtime: Option<&FoundRuntime>) -> Vec<(String, String)> {
    let name = runtime.map_or(NO_RUNTIME, FoundRuntime::name);
    let version = runtime.map(|runtime| (VERSION_LABEL.to_owned(), runtime.version().to_owned()));
    [(RUNTIME_LABEL.to_owned(), name.to_owned())].into_iter().chain(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_command_of_a_job_takes_the_place_of_the_image_s() {
        let image = ImageConfig {
            entrypoint: Some(words(&["/bin/run", "-v"])),
            cmd: Some(words(&["serve"])),
            ..ImageConfig::default()
        };
        assert_eq!(image.command(&[]).unwrap(), ["/bin/run", "-v", "serve"]);
        assert_eq!(image.command(&words(&["python"])).unwrap(), ["python"]);
        let only = ImageConfig { cmd: Some(words(&["serve"])), ..ImageConfig::default() };
        assert_eq!(only.command(&[]).unwrap(), ["serve"]);
        let (many, long) = (vec!["x".to_owned(); 2_000], vec!["x".repeat(65 << 10)]);
        for cmd in [None, Some(words(&[""])), Some(many), Some(long)] {
            let bad = ImageConfig { cmd, ..ImageConfig::default() };
            assert_eq!(bad.command(&[]).unwrap_err().fault(), ImageFault::Unusable);
        }
    }

    #[test]
    fn what_a_registry_says_moves_no_cursor() {
        let error = ImageError::new(ImageFault::NotFound, format!("{}\u{1b}[2J\r\nbye\n", "x".repeat(600)));
        assert!(error.to_string().ends_with("x [2J  bye"), "{error}");
        assert!(error.to_string().len() < 600);
    }

    #[test]
    fn variables_of_an_image_go_over_those_of_the_node() {
        let node: BTreeMap<String, String> =
            [("PATH", "/bin"), ("HOME", "/"), ("TMPDIR", "/scratch"), ("USER", "root")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
        let env =
            words(&["PATH=/opt/bin:/bin", "A=b=c", "MUSTER_RANK=7", "=x", "none", "K=muster-secret://key"]);
        let image = ImageConfig { env: Some(env), ..ImageConfig::default() };
        let merged = image.environment(&node).unwrap();
        let expected: BTreeMap<String, String> = [("PATH", "/opt/bin:/bin"), ("HOME", "/"), ("A", "b=c")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(merged, expected);
        let long = ImageConfig { env: Some(vec!["x".repeat(300 << 10)]), ..ImageConfig::default() };
        assert_eq!(long.environment(&node).unwrap_err().fault(), ImageFault::Unusable);
        let relative = ImageConfig { working_dir: Some("app".to_owned()), ..ImageConfig::default() };
        assert_eq!((relative.working_directory(), image.working_directory()), (None, None));
    }

    #[test]
    fn keys_that_cannot_be_meant_are_named() {
        let usual = ImagesConfig::default();
        assert_eq!(usual.violation(), None);
        let key = |config: ImagesConfig| config.violation().map(|(key, _)| key);
        let directory = Some(PathBuf::from("/var/lib/a:b"));
        assert_eq!(key(ImagesConfig { directory, ..usual.clone() }), Some("images.directory"));
        assert_eq!(key(ImagesConfig { pull_timeout_ms: 0, ..usual.clone() }), Some("images.pull_timeout"));
        for file in ["lib", "/", "/proc/self"] {
            let files = vec![PathBuf::from(file)];
            assert_eq!(key(ImagesConfig { files, ..usual.clone() }), Some("images.files"), "{file}");
        }
    }
}
