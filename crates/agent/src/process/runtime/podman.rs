//! podman by its command line: it needs no daemon, and keeps what it pulls where an operator can see it and add to it
//! (`podman pull`, `podman load`). It never runs anything here.

use super::pulls::{self, Layers, Pulls};
use super::{FoundImage, ImageConfig, ImageError, ImageFault, Runtime};
use serde::Deserialize;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::process::{Child, Command};

/// What a look for podman may take.
pub(super) const FIND_MAX: Duration = Duration::from_secs(20);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are kept of the end of a complaint.
const COMPLAINT_BYTES_KEPT: usize = 4 << 10;

/// podman on this host.
#[derive(Clone, Debug)]
pub(crate) struct Podman {
    version: String,
    pulls: Pulls,
}

/// What a program answered.
pub(super) struct Answer {
    pub(super) code: Option<i32>,
    pub(super) said: Vec<u8>,
    pub(super) complaint: String,
}

/// As `podman image inspect` prints it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    config: Option<ImageConfig>,
}

impl Podman {
    /// Looks for podman, and for the tar that unpacks what it exports.
    pub(super) async fn look() -> Result<Podman, String> {
        let looked = async {
            let answer = run(podman(&["version", "--format", "{{.Client.Version}}"])).await?;
            let version = String::from_utf8_lossy(&answer.said).trim().to_owned();
            let form = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
            if answer.code != Some(0)
                || version.is_empty()
                || version.len() > 64
                || !version.bytes().all(form)
            {
                return Err(format!("podman does not tell its version: {}", answer.complaint));
            }
            let mut tar = Command::new("tar");
            tar.arg("--version").stdin(Stdio::null());
            match run(tar).await {
                Ok(Answer { code: Some(0), .. }) => Ok(Podman { version, pulls: Pulls::default() }),
                _ => Err("there is no tar".to_owned()),
            }
        };
        tokio::time::timeout(FIND_MAX, looked).await.map_err(|_| "podman does not answer".to_owned())?
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

impl Runtime for Podman {
    async fn find(&self, reference: &str) -> Result<Option<FoundImage>, ImageError> {
        // One call where it is there: a worker waits for that. Only `exists` tells by its code that an image is not there.
        let answer =
            run(podman(&["image", "inspect", "--", reference])).await.map_err(ImageError::unusable)?;
        if answer.code == Some(0) {
            return inspected(&answer.said).map(Some);
        }
        let known = run(podman(&["image", "exists", "--", reference])).await.map_err(ImageError::unusable)?;
        match known.code {
            Some(1) => Ok(None),
            Some(0) => Err(ImageError::unusable(answer.complaint)),
            _ => Err(ImageError::unusable(known.complaint)),
        }
    }

    async fn pull(
        &self,
        reference: &str,
        credentials: Option<&Path>,
        owner: &Path,
        bytes_max: u64,
    ) -> Result<(), ImageError> {
        let from = of_registry(reference);
        let pull = self.pulls.begin(owner).await?;
        let mut pulling = podman(&["pull", "--quiet"]);
        // What it fetches is there until it is a layer, and not in a place that others fill too.
        pulling.env("TMPDIR", &pull.directory);
        if let Some(file) = credentials {
            pulling.arg("--authfile").arg(file);
        }
        pulling.arg("--").arg(&from);
        let is_too_large = pull.watch(layers().await, bytes_max);
        let answer = pulls::while_small(run(pulling), is_too_large).await;
        pull.end().await;
        let Some(answer) = answer else { return Err(pulls::too_large(bytes_max)) };
        let answer = answer.map_err(ImageError::unusable)?;
        match answer.code {
            Some(0) => Ok(()),
            _ => Err(ImageError::new(fault_of(&answer.complaint), answer.complaint)),
        }
    }

    async fn unpack(&self, id: &str, into: &Path, owner: &Path, bytes_max: u64) -> Result<(), ImageError> {
        // The command is never run; an image without one could not be exported otherwise. An image can name any number of
        // volumes, which would stay behind.
        let label = label_of(owner);
        let kinds = ["create", "--pull=never", "--network=none", "--image-volume=ignore"];
        let create: Vec<&str> =
            kinds.into_iter().chain(["--label", label.as_str(), "--", id, "/none"]).collect();
        let created = run(podman(&create)).await.map_err(ImageError::unusable)?;
        let container = String::from_utf8_lossy(&created.said).trim().to_owned();
        if created.code != Some(0) || !is_id(&container) {
            return Err(ImageError::unusable(created.complaint));
        }
        let unpacked = export(&container, into, bytes_max).await;
        remove_container(&container).await;
        unpacked
    }

    async fn tidy(&self, owner: &Path) {
        self.pulls.tidy(owner).await;
        let filter = format!("label={}", label_of(owner));
        let list = ["ps", "--all", "--quiet", "--no-trunc", "--filter", filter.as_str()];
        let Ok(listed) = run(podman(&list)).await else { return };
        for container in String::from_utf8_lossy(&listed.said).lines().filter(|line| is_id(line)) {
            remove_container(container).await;
        }
    }

    async fn remove(&self, image: &str) {
        let removed = run(podman(&["rmi", "--", image])).await;
        if !removed.is_ok_and(|answer| answer.code == Some(0)) {
            tracing::info!(image, "podman does not remove an image");
        }
    }
}

/// What an image is pulled by: a registry always, for podman also takes `dir:`, `oci-archive:` and others, which are files of the
/// host. With a digest the tag says nothing, and podman refuses both together where the kind of source is named.
pub(super) fn of_registry(reference: &str) -> String {
    let name = match reference.split_once('@') {
        Some((name, digest)) => {
            let tag = name.rfind(':').filter(|colon| name.rfind('/').is_some_and(|slash| slash < *colon));
            format!("{}@{digest}", tag.map_or(name, |colon| &name[..colon]))
        }
        None => reference.to_owned(),
    };
    format!("docker://{name}")
}

/// The layers of podman's storage; none where it does not tell where they are, and only what is fetched is watched then.
async fn layers() -> Option<Layers> {
    let form = "{{.Store.GraphRoot}}\n{{.Store.GraphDriverName}}";
    let answer =
        run(podman(&["info", "--format", form])).await.ok().filter(|answer| answer.code == Some(0))?;
    let said = String::from_utf8(answer.said).ok()?;
    let mut lines = said.lines().map(str::trim);
    let (root, driver) = (lines.next()?, lines.next()?);
    let is_driver = !driver.is_empty() && driver.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !root.starts_with('/') || !is_driver {
        return None;
    }
    Some(Layers::of(Path::new(root), driver).await)
}

/// What the containers of a directory of images are found by, though the agent that made them is gone.
fn label_of(owner: &Path) -> String {
    format!("muster.images={}", owner.display())
}

async fn remove_container(container: &str) {
    let removed = run(podman(&["rm", "--force", "--volumes", "--", container])).await;
    if !removed.is_ok_and(|answer| answer.code == Some(0)) {
        tracing::warn!(container, "what an image was exported from stays behind");
    }
}

/// Pipes the files of a container into a directory, `bytes_max` at most: an image of a few megabytes can have files of many
/// terabytes.
async fn export(container: &str, into: &Path, bytes_max: u64) -> Result<(), ImageError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| ImageError::unusable(format!("{what}: {error}"));
    let mut exporting = podman(&["export", "--", container]);
    let child = quiet(&mut exporting).stdout(Stdio::piped()).spawn();
    let mut exporting = child.map_err(|error| failed("start podman", &error))?;
    let files = exporting.stdout.take().ok_or_else(|| ImageError::unusable("podman without a pipe"))?;
    let mut tar = Command::new("tar");
    tar.args(TAR_ARGUMENTS).arg(into);
    let child = quiet(&mut tar).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut unpacking = child.map_err(|error| failed("start tar", &error))?;
    let pipe = unpacking.stdin.take().ok_or_else(|| ImageError::unusable("tar without a pipe"))?;
    let (is_whole, exported, unpacked) =
        tokio::join!(copy_up_to(bytes_max, files, pipe), finish(exporting), finish(unpacking));
    if !is_whole {
        return Err(ImageError::unusable(format!(
            "its files are more than the {bytes_max} bytes of images.size_max of this host"
        )));
    }
    let exported = exported.map_err(ImageError::unusable)?;
    let unpacked = unpacked.map_err(ImageError::unusable)?;
    match (exported.code, unpacked.code) {
        (Some(0), Some(0)) => Ok(()),
        (_, Some(0)) => Err(failed("export the image", &exported.complaint)),
        _ => Err(failed("unpack the image", &unpacked.complaint)),
    }
}

/// Up to the directory. Device files are left out: the host's are shown in their place. Directories of that name elsewhere in
/// the image are not meant.
const TAR_ARGUMENTS: [&str; 7] = [
    "--extract",
    "--file=-",
    "--preserve-permissions",
    "--numeric-owner",
    "--anchored",
    "--exclude=dev/*",
    "--directory",
];

/// Copies until one of both ends is closed, which closes the other one; false when there was more than `max`. What reader or
/// writer died of they say themselves.
async fn copy_up_to(max: u64, from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> bool {
    let mut from = from.take(max.saturating_add(1));
    let copied = tokio::io::copy(&mut from, &mut to).await;
    copied.is_err() || from.limit() > 0
}

fn podman(arguments: &[&str]) -> Command {
    let mut command = Command::new("podman");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a program to its end. It is killed when this is given up.
pub(super) async fn run(mut command: Command) -> Result<Answer, String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let child = quiet(&mut command).stdout(Stdio::piped()).spawn();
    finish(child.map_err(|error| format!("start {program}: {error}"))?).await
}

fn quiet(command: &mut Command) -> &mut Command {
    command.env("LC_ALL", "C").stderr(Stdio::piped()).kill_on_drop(true)
}

async fn finish(mut child: Child) -> Result<Answer, String> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let said = async {
        let mut said = Vec::new();
        if let Some(stdout) = stdout {
            // What is beyond is more than any answer; the program then ends for want of a reader.
            let read = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut said).await;
            read.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(said)
    };
    let complaint = async {
        match stderr {
            Some(stderr) => end_of(stderr).await,
            None => String::new(),
        }
    };
    let (said, complaint) = tokio::join!(said, complaint);
    let status = child.wait().await.map_err(|error| error.to_string())?;
    Ok(Answer { code: status.code(), said: said?, complaint })
}

/// The end of a text.
async fn end_of(mut from: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0u8; 4_096]);
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        kept.extend_from_slice(&buffer[..read]);
        let beyond = kept.len().saturating_sub(COMPLAINT_BYTES_KEPT);
        kept.drain(..beyond);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn inspected(said: &[u8]) -> Result<FoundImage, ImageError> {
    let images: Vec<Inspected> = serde_json::from_slice(said)
        .map_err(|error| ImageError::unusable(format!("podman does not describe the image: {error}")))?;
    let image = images.into_iter().next().filter(|image| is_id(&image.id));
    let image = image.ok_or_else(|| ImageError::unusable("podman does not say which image it is"))?;
    Ok(FoundImage { id: image.id, config: image.config.unwrap_or_default() })
}

/// What kept an image from being pulled, by what podman and registries say. What nobody knows is a fault of the image.
pub(super) fn fault_of(complaint: &str) -> ImageFault {
    let said = complaint.to_ascii_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| said.contains(text));
    if says(&["does not match", "digest mismatch", "digest did not match"]) {
        ImageFault::DigestMismatch
    } else if says(&[
        "manifest unknown",
        "name unknown",
        "not found",
        "no such image",
        "denied",
        "unauthorized",
    ]) {
        ImageFault::NotFound
    } else if says(&[
        "connection refused",
        "connection reset",
        "no such host",
        "no route to host",
        "network is unreachable",
        "timeout",
        "timed out",
        "temporary failure",
        "server misbehaving",
        "toomanyrequests",
        "too many requests",
        "unexpected http status: 5",
        "unexpected status code 5",
        "service unavailable",
        "bad gateway",
        "eof",
    ]) {
        ImageFault::Unreachable
    } else {
        ImageFault::Unusable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_prints_is_read_and_nothing_else() {
        let id = "5357778371b26f7439e81e9c5598c12a84a888c6e437e92e143cba0d0a64524a";
        let text = format!(
            r#"[{{"Id": "{id}", "Digest": "sha256:00", "Config": {{"Env": ["A=b"], "Entrypoint": ["/bin/sh", "-c"], "WorkingDir": "/etc"}}, "Size": 7}}]"#
        );
        let found = inspected(text.as_bytes()).unwrap();
        assert_eq!(found.id, id);
        assert_eq!(found.config.entrypoint.as_deref().unwrap(), ["/bin/sh", "-c"]);
        assert_eq!(found.config.working_directory(), Some("/etc".into()));
        let bare = format!(r#"[{{"Id": "{id}"}}]"#);
        assert_eq!(inspected(bare.as_bytes()).unwrap().config, ImageConfig::default());
        for bad in ["", "[]", "{}", r#"[{"Id": "../../etc"}]"#, r#"[{"Id": 7}]"#] {
            assert_eq!(inspected(bad.as_bytes()).unwrap_err().fault(), ImageFault::Unusable, "{bad}");
        }
    }

    #[test]
    fn an_image_comes_from_a_registry_whatever_its_name_looks_like() {
        for (reference, source) in [
            ("localhost:5000/a:1", "docker://localhost:5000/a:1"),
            ("dir:5/a:1", "docker://dir:5/a:1"),
            ("host.example:5000/a@sha256:00", "docker://host.example:5000/a@sha256:00"),
            ("host.example:5000/a/b:1@sha256:00", "docker://host.example:5000/a/b@sha256:00"),
        ] {
            assert_eq!(of_registry(reference), source);
        }
    }

    #[tokio::test]
    async fn no_more_is_unpacked_than_may_be() {
        for (max, is_whole) in [(0, false), (6, false), (7, true), (u64::MAX, true)] {
            let mut copied = Vec::new();
            assert_eq!(copy_up_to(max, &b"sixteen"[..], &mut copied).await, is_whole, "{max}");
            assert!(copied.len() <= 7);
        }
        assert!(copy_up_to(0, &b""[..], &mut Vec::new()).await);
    }

    #[test]
    fn only_the_first_dev_of_an_image_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let (from, into) = (directory.path().join("from"), directory.path().join("into"));
        for path in ["dev", "lib/dev"] {
            std::fs::create_dir_all(from.join(path)).unwrap();
            std::fs::write(from.join(path).join("file"), "x").unwrap();
        }
        std::fs::create_dir(&into).unwrap();
        let archive = directory.path().join("files.tar");
        let tar = || std::process::Command::new("tar");
        let made = tar().arg("-cf").arg(&archive).arg("-C").arg(&from).args(["dev", "lib"]).status();
        assert!(made.unwrap().success());
        let files = std::fs::File::open(&archive).unwrap();
        assert!(tar().args(TAR_ARGUMENTS).arg(&into).stdin(files).status().unwrap().success());
        assert!(into.join("lib/dev/file").exists() && !into.join("dev/file").exists());
    }

    #[test]
    fn complaints_have_a_word() {
        for (said, fault) in [
            (
                "Error: initializing source docker://localhost/x:1: pinging container registry localhost: Get \
              \"https://localhost/v2/\": dial tcp 127.0.0.1:443: connect: connection refused",
                ImageFault::Unreachable,
            ),
            ("dial tcp: lookup registry.example.org: no such host", ImageFault::Unreachable),
            ("lookup registry.example.org on 10.0.0.2:53: server misbehaving", ImageFault::Unreachable),
            ("received unexpected HTTP status: 429 Too Many Requests", ImageFault::Unreachable),
            ("too many requests to registry", ImageFault::Unreachable),
            ("unexpected status code 502 Bad Gateway", ImageFault::Unreachable),
            ("reading manifest 2 in registry.example.org/x: manifest unknown", ImageFault::NotFound),
            ("requested access to the resource is denied", ImageFault::NotFound),
            ("Manifest does not match provided manifest digest sha256:00", ImageFault::DigestMismatch),
            ("writing blob: no space left on device", ImageFault::Unusable),
            ("", ImageFault::Unusable),
        ] {
            assert_eq!(fault_of(said), fault, "{said}");
        }
    }
}
