//! apptainer by its command line, for hosts that have it and no podman: as on clusters for high-performance computing.
//!
//! It fetches an image as one file (SIF) and unpacks that into a directory. As podman, it never runs anything here: the shim gives
//! the directory to the worker, in namespaces that end with the shim. So a worker shares neither `/home` nor the environment of the
//! host, which apptainer would show it by default.
//!
//! What it fetches is in the directory of images: `<digest of the reference>.sif`, and next to it a `.json` with the identity of
//! the file and what the image says of its programs. Its cache is not used: nothing would ever go from there. Every command that
//! fetches or unpacks has a directory for what it leaves when it is killed.

use super::podman::{Answer, FIND_MAX, fault_of, is_id, of_registry, run};
use super::pulls;
use super::{FoundImage, ImageConfig, ImageError, Runtime};
use crate::disk::{durable, tree};
use crate::offload::blocking;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// Where files of images are, below the directory of all images.
const FILES: &str = ".sif";
/// How the names of directories begin that one command works in; each has a number.
const WORK: &str = "work_";
/// Bytes of what is noted of a file.
const NOTE_BYTES_MAX: u64 = 1 << 20;
/// Objects of a file that are looked at for the image's configuration.
const OBJECTS_MAX: usize = 8;
/// How often an image that is being unpacked is measured.
const MEASURE: Duration = Duration::from_secs(1);
/// Bytes that are read of a file at a time.
const PIECE_BYTES: usize = 1 << 20;
/// How often what an image has may be on the disk while it is fetched: as it came, unpacked, and as the one file.
const PULL_COPIES: u64 = 3;

/// apptainer on this host.
#[derive(Clone, Debug)]
pub(crate) struct Apptainer {
    program: String,
    version: String,
    directory: PathBuf,
    /// Numbers of the directories that commands work in now.
    working: Arc<Mutex<BTreeSet<u64>>>,
}

/// A directory that one command works in. It goes with the next look for such ones after this is dropped.
struct Work {
    number: u64,
    path: PathBuf,
    working: Arc<Mutex<BTreeSet<u64>>>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.working.lock().remove(&self.number);
    }
}

/// What is noted of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    reference: String,
    id: String,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    working_dir: Option<String>,
}

impl Apptainer {
    /// Looks for apptainer. `directory` is that of all images.
    pub(super) async fn look(program: &str, directory: PathBuf) -> Result<Apptainer, String> {
        let asked = async {
            let mut command = Command::new(program);
            command.arg("--version").stdin(Stdio::null());
            run(command).await
        };
        let answered = tokio::time::timeout(FIND_MAX, asked).await;
        let answer = answered.map_err(|_| "apptainer does not answer".to_owned())??;
        // `apptainer version 1.3.4`, with the package behind a dash on some systems.
        let said = String::from_utf8_lossy(&answer.said);
        let version = said.split_whitespace().next_back().unwrap_or_default().to_owned();
        let form = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'_');
        let is_version = !version.is_empty() && version.len() <= 64 && version.bytes().all(form);
        if answer.code != Some(0) || !is_version {
            return Err(format!("apptainer does not tell its version: {}", answer.complaint));
        }
        let (program, directory) = (program.to_owned(), directory.join(FILES));
        Ok(Apptainer { program, version, directory, working: Arc::default() })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// The same for one that fetches or unpacks: it fills neither the home directory of the agent's user, nor a small `/tmp`.
    fn command_in(&self, work: &Work, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("APPTAINER_CACHEDIR", &work.path).env("APPTAINER_TMPDIR", &work.path);
        command
    }

    /// A directory for one command, which is empty: what one of that number has left goes first.
    async fn work(&self) -> Result<Work, ImageError> {
        let number = {
            let mut working = self.working.lock();
            let number = (0u64..).find(|number| !working.contains(number)).unwrap_or(u64::MAX);
            working.insert(number);
            number
        };
        let path = self.directory.join(format!("{WORK}{number}"));
        let work = Work { number, path, working: Arc::clone(&self.working) };
        let path = work.path.clone();
        let made = blocking(move || -> io::Result<()> {
            tree::remove(&path)?;
            DirBuilder::new().recursive(true).mode(0o700).create(path)
        });
        made.await.map_err(|error| ImageError::unusable(format!("make a directory for images: {error}")))?;
        Ok(work)
    }

    /// The file of a reference, and the note on it.
    fn paths(&self, reference: &str) -> (PathBuf, PathBuf) {
        let digest = hex(&Sha256::digest(reference.as_bytes()));
        let of = |end: &str| self.directory.join(format!("{digest}.{end}"));
        (of("sif"), of("json"))
    }

    /// What the image in a file says of its programs: one of the objects in it is the configuration that the registry has of it.
    async fn config_of(&self, file: &Path) -> Result<ImageConfig, ImageError> {
        let path = file.to_string_lossy().into_owned();
        let listed = run(self.command(&["sif", "list", &path])).await.map_err(ImageError::unusable)?;
        if listed.code != Some(0) {
            return Err(ImageError::unusable(listed.complaint));
        }
        for object in json_objects(&String::from_utf8_lossy(&listed.said)) {
            let dumped = run(self.command(&["sif", "dump", &object, &path])).await;
            let dumped = dumped.map_err(ImageError::unusable)?;
            if let Some(config) = (dumped.code == Some(0)).then(|| config_in(&dumped.said)).flatten() {
                return Ok(config);
            }
        }
        // An image that says nothing; the job has to give a command then.
        Ok(ImageConfig::default())
    }

    /// The noted files.
    fn notes(&self) -> Vec<(PathBuf, Note)> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let notes = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        notes.filter_map(|path| Some((path.clone(), read_note(&path)?))).collect()
    }
}

fn read_note(path: &Path) -> Option<Note> {
    let bytes = durable::read_bounded(path, NOTE_BYTES_MAX).ok()?;
    let note: Note = serde_json::from_slice(&bytes).ok()?;
    is_id(&note.id).then_some(note)
}

impl Runtime for Apptainer {
    async fn find(&self, reference: &str) -> Result<Option<FoundImage>, ImageError> {
        let (file, noted) = self.paths(reference);
        let found = blocking(move || read_note(&noted).filter(|_| file.is_file())).await;
        Ok(found.filter(|note| note.reference == reference).map(|note| {
            let Note { id, entrypoint, cmd, env, working_dir, .. } = note;
            FoundImage { id, config: ImageConfig { entrypoint, cmd, env, working_dir } }
        }))
    }

    async fn pull(
        &self,
        reference: &str,
        credentials: Option<&Path>,
        _: &Path,
        bytes_max: u64,
    ) -> Result<(), ImageError> {
        // Two tenants may fetch the same image at the same time.
        let work = self.work().await?;
        let (file, noted) = self.paths(reference);
        let part = work.path.join("image.sif");
        let mut pulling = self.command_in(&work, &["pull", "--force", "--disable-cache"]);
        if let Some(file) = credentials {
            pulling.arg("--authfile").arg(file);
        }
        pulling.arg(&part).arg(of_registry(reference));
        let (filled, most) = (work.path.clone(), bytes_max.saturating_mul(PULL_COPIES));
        let pulled = pulls::while_small(run(pulling), move || tree::size(&filled).bytes > most).await;
        let Some(pulled) = pulled else { return Err(pulls::too_large(bytes_max)) };
        let Answer { code, complaint, .. } = pulled.map_err(ImageError::unusable)?;
        if code != Some(0) {
            return Err(ImageError::new(fault_of(&complaint), complaint));
        }
        let config = self.config_of(&part).await?;
        let reference = reference.to_owned();
        let kept = blocking(move || -> io::Result<()> {
            let id = identity(&part)?;
            let ImageConfig { entrypoint, cmd, env, working_dir } = config;
            let note = Note { reference, id, entrypoint, cmd, env, working_dir };
            // The note goes last: without it the file counts as not there.
            let _ = fs::remove_file(&noted);
            fs::rename(&part, &file)?;
            let noting = part.with_extension("json");
            fs::write(&noting, serde_json::to_vec(&note)?)?;
            fs::rename(&noting, &noted)
        });
        kept.await.map_err(|error| ImageError::unusable(format!("keep the image: {error}")))
    }

    async fn unpack(&self, id: &str, into: &Path, _: &Path, bytes_max: u64) -> Result<(), ImageError> {
        let (own, wanted) = (self.clone(), id.to_owned());
        let file = blocking(move || {
            let found = own.notes().into_iter().find(|(_, note)| note.id == wanted);
            found.map(|(noted, _)| noted.with_extension("sif"))
        });
        let file = file.await.ok_or_else(|| ImageError::unusable("its file is gone"))?;
        let work = self.work().await?;
        let mut building = self.command_in(&work, &["build", "--sandbox", "--force"]);
        building.arg(into).arg(&file);
        // It unpacks into a directory next to that, which gets its name at the end.
        let places = [into.parent().unwrap_or(into).to_owned(), work.path.clone()];
        let built = async {
            let answer = run(building).await.map_err(ImageError::unusable)?;
            match answer.code {
                Some(0) => Ok(()),
                _ => Err(ImageError::unusable(format!("unpack the image: {}", answer.complaint))),
            }
        };
        let is_larger = async {
            loop {
                tokio::time::sleep(MEASURE).await;
                let places = places.clone();
                let sizes = move || places.map(|place| tree::size(&place).bytes);
                if blocking(sizes).await.into_iter().fold(0, u64::saturating_add) > bytes_max {
                    return;
                }
            }
        };
        let larger = || {
            let said =
                format!("its files are more than the {bytes_max} bytes of images.size_max of this host");
            Err(ImageError::unusable(said))
        };
        tokio::select! {
            built = built => built?,
            // The program is killed with its future.
            () = is_larger => return larger(),
        }
        let measured = into.to_owned();
        if blocking(move || tree::size(&measured)).await.bytes > bytes_max {
            return larger();
        }
        Ok(())
    }

    async fn tidy(&self, _: &Path) {
        // A file that was not noted is written over by the next pull of it; what commands have left that were killed goes here.
        let (directory, working) = (self.directory.clone(), Arc::clone(&self.working));
        let left = blocking(move || -> io::Result<()> {
            let Ok(entries) = fs::read_dir(&directory) else { return Ok(()) };
            for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
                let number = name.strip_prefix(WORK).and_then(|number| number.parse::<u64>().ok());
                let Some(number) = number else { continue };
                // No command begins in a directory that is being removed.
                if working.lock().insert(number) {
                    let left = Work { number, path: directory.join(&name), working: Arc::clone(&working) };
                    tree::remove(&left.path)?;
                }
            }
            Ok(())
        });
        if let Err(error) = left.await {
            tracing::warn!(%error, "what fetching an image has left stays for now");
        }
    }

    async fn remove(&self, image: &str) {
        let (own, image) = (self.clone(), image.to_owned());
        let removed = blocking(move || -> io::Result<()> {
            for (noted, note) in own.notes() {
                if note.id == image || note.reference == image {
                    fs::remove_file(&noted)?;
                    fs::remove_file(noted.with_extension("sif"))?;
                }
            }
            Ok(())
        });
        if let Err(error) = removed.await {
            tracing::info!(%error, "the file of an image is not removed");
        }
    }
}

/// What identifies the content of a file.
fn identity(path: &Path) -> io::Result<String> {
    let (mut file, mut digest) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0u8; PIECE_BYTES];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(piece.get(..read).unwrap_or_default());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The numbers of the objects in a file that are JSON, from a list like `2 |1 |NONE |4096-4500 |JSON.Generic`.
fn json_objects(list: &str) -> Vec<String> {
    let lines = list.lines().filter(|line| line.contains("JSON"));
    let number = |line: &str| Some(line.split('|').next()?.trim().to_owned());
    let numbers = lines.filter_map(number);
    let is_number = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.filter(is_number).take(OBJECTS_MAX).collect()
}

/// The configuration of an image, where an object is one: it has at least one of its fields.
fn config_in(object: &[u8]) -> Option<ImageConfig> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(object).ok()?;
    let is_config =
        ["Entrypoint", "Cmd", "Env", "WorkingDir"].iter().any(|field| fields.contains_key(*field));
    is_config.then(|| serde_json::from_slice(object).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::ImageFault;
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A program that answers as apptainer does, and writes down what it was asked for.
    fn fake(directory: &Path) -> String {
        let path = directory.join("apptainer");
        let script = r#"#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/asked"
case "$1 $2" in
    "--version ") echo "apptainer version 1.3.4" ;;
    "pull --force")
        shift 3
        echo cached > "$APPTAINER_TMPDIR/bundle"
        if [ "$1" = --authfile ]; then shift 2; fi
        case "$2" in
            *none*) echo "FATAL: manifest unknown" >&2; exit 255 ;;
            *large*) head -c 4194304 /dev/zero > "$APPTAINER_TMPDIR/blob"; exec sleep 600 ;;
        esac
        echo "image" > "$1" ;;
    "sif list") printf '%s\n' 'ID   |GROUP|LINK|TYPE' '1 |1 |NONE |Def.FILE' '2 |1 |NONE |JSON.Generic' '3 |1 |NONE |JSON.Generic' ;;
    "sif dump")
        if [ "$3" = 2 ]; then echo '{"data": {}}'
        else echo '{"Env": ["A=b"], "Entrypoint": ["/bin/run"], "WorkingDir": "/app"}'; fi ;;
    "build --sandbox") mkdir -p "$4/bin" && echo program > "$4/bin/run" ;;
    *) exit 2 ;;
esac
"#;
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    #[tokio::test]
    async fn an_image_is_fetched_as_a_file_and_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let images = directory.path().join("images");
        let apptainer = Apptainer::look(&fake(directory.path()), images.clone()).await.unwrap();
        assert_eq!(apptainer.version(), "1.3.4");
        let (reference, unknown) = ("registry.example.org/a:1", "registry.example.org/none:1");
        assert_eq!(apptainer.find(reference).await.unwrap(), None);
        let missing = apptainer.pull(unknown, None, &images, 1 << 20).await.unwrap_err();
        // It would go on for as long as the registry likes.
        let large = apptainer.pull("registry.example.org/large:1", None, &images, 1 << 20).await.unwrap_err();
        assert!(large.to_string().contains("images.size_max"), "{large}");
        assert_eq!(missing.fault(), ImageFault::NotFound);
        assert_eq!(apptainer.find(unknown).await.unwrap(), None);
        let credentials = directory.path().join("auth");
        apptainer.pull(reference, Some(&credentials), &images, 1 << 20).await.unwrap();
        let found = apptainer.find(reference).await.unwrap().unwrap();
        assert!(is_id(&found.id));
        assert_eq!(found.config.command(&[]).unwrap(), ["/bin/run"]);
        assert_eq!(found.config.working_directory(), Some("/app".into()));
        let asked = fs::read_to_string(directory.path().join("asked")).unwrap();
        assert!(asked.contains(&format!("--authfile {}", credentials.display())), "{asked}");
        assert!(asked.contains("docker://registry.example.org/a:1"), "{asked}");
        assert!(asked.contains("pull --force --disable-cache "), "{asked}");
        let left = || fs::read_dir(images.join(FILES)).unwrap().flatten().map(|entry| entry.file_name());
        let works = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(WORK);
        assert!(left().any(|name| works(&name)), "as after a command that was killed");
        let at_work = apptainer.work().await.unwrap();
        fs::create_dir(images.join(FILES).join(format!("{WORK}7"))).unwrap();
        apptainer.tidy(&images).await;
        let stays = at_work.path.file_name().unwrap().to_owned();
        assert_eq!(left().filter(works).collect::<Vec<_>>(), [stays], "only what is in use stays");
        drop(at_work);
        apptainer.tidy(&images).await;
        assert_eq!(left().filter(works).count(), 0);
        assert!(!asked.lines().any(|line| line.starts_with("exec") || line.starts_with("run")), "{asked}");
        let into = directory.path().join("rootfs");
        fs::create_dir(&into).unwrap();
        apptainer.unpack(&found.id, &into, &images, 1 << 30).await.unwrap();
        assert!(into.join("bin/run").is_file());
        let large = apptainer.unpack(&found.id, &into, &images, 1).await.unwrap_err();
        assert_eq!(large.fault(), ImageFault::Unusable);
        apptainer.remove(&found.id).await;
        assert_eq!(apptainer.find(reference).await.unwrap(), None);
        assert!(apptainer.unpack(&found.id, &into, &images, 1 << 30).await.is_err());
    }

    #[tokio::test]
    async fn a_host_without_it_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("apptainer").display().to_string();
        assert!(Apptainer::look(&absent, directory.path().to_owned()).await.is_err());
    }
}
