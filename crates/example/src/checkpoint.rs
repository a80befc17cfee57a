//! Checkpoints of a training run: whole or not there, checked before they are believed.
//!
//! A file is written under a temporary name, synced, renamed, and then the directory is synced: a crash
//! at any point leaves the previous checkpoint in place. The newest two are kept, so that damage to the
//! newest costs one interval and not the run.

use crate::error::Error;
use crate::frame::{Builder, Fields, FrameError};
use crate::model::WEIGHTS_MAX;
use crate::process::complain;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"MEXCKPT1";
const KEPT: usize = 2;
/// The longest description of a configuration.
pub(crate) const CONFIG_LEN_MAX: usize = 512;
/// Magic, config with its length, step, count, weights, checksum.
const FILE_LEN_MAX: usize = 8 + 4 + CONFIG_LEN_MAX + 8 + 4 + 8 * WEIGHTS_MAX + 4;

/// What a run resumes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checkpoint {
    /// How many steps are done.
    pub(crate) step: u64,
    pub(crate) weights: Vec<f64>,
}

/// The checkpoints of one run.
pub(crate) struct Checkpoints {
    directory: PathBuf,
    /// Everything that decides the numbers, in words; another run's checkpoint has another text.
    config: String,
}

impl Checkpoints {
    /// Makes the directory where it is missing, and clears away what a crash left half written.
    pub(crate) fn open(directory: &Path, config: &str) -> Result<Checkpoints, Error> {
        assert!(config.len() <= CONFIG_LEN_MAX, "a config text is short");
        fs::create_dir_all(directory).map_err(Error::file(directory, "create the directory"))?;
        let store = Checkpoints { directory: directory.to_owned(), config: config.to_owned() };
        for name in store.names()? {
            if name.starts_with(".step-") && name.ends_with(".part") {
                let path = directory.join(&name);
                fs::remove_file(&path).map_err(Error::file(path, "remove"))?;
            }
        }
        Ok(store)
    }

    /// The newest checkpoint that is whole.
    pub(crate) fn newest(&self) -> Result<Option<Checkpoint>, Error> {
        for step in self.steps()? {
            let path = self.path(step);
            match self.load(&path, step)? {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(damage) => complain(&format!(
                    "{} is damaged ({damage}); falling back to the one before it",
                    path.display()
                )),
            }
        }
        Ok(None)
    }

    /// The outer error ends the run; the inner one is damage to this file.
    fn load(&self, path: &Path, step: u64) -> Result<Result<Checkpoint, FrameError>, Error> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_LEN_MAX as u64 + 1).read_to_end(&mut bytes))
            .map_err(Error::file(path, "read"))?;
        let (config, checkpoint) = match decode(&bytes) {
            Ok(decoded) => decoded,
            Err(damage) => return Ok(Err(damage)),
        };
        if checkpoint.step != step {
            return Ok(Err(FrameError::Malformed(format!("it holds step {}", checkpoint.step))));
        }
        if config != self.config {
            return Err(Error::Config(format!(
                "{} belongs to another run: it was made with {config}, and this is {}; give \
                 --checkpoint-dir an empty directory or start with the same arguments",
                path.display(),
                self.config
            )));
        }
        Ok(Ok(checkpoint))
    }

    /// Returns once the checkpoint would survive a power cut.
    pub(crate) fn save(&self, step: u64, weights: &[f64]) -> Result<PathBuf, Error> {
        let path = self.path(step);
        let part = self.directory.join(format!(".step-{step:012}.part"));
        let bytes = encode(&self.config, step, weights);
        let mut file = File::create(&part).map_err(Error::file(&part, "create"))?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(Error::file(&part, "write"))?;
        fs::rename(&part, &path).map_err(Error::file(&path, "rename the new checkpoint to"))?;
        // Without this the rename itself may be lost.
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(Error::file(&self.directory, "sync the directory"))?;
        for old in self.steps()?.into_iter().skip(KEPT) {
            let old = self.path(old);
            fs::remove_file(&old).map_err(Error::file(old, "remove"))?;
        }
        Ok(path)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.directory.join(format!("step-{step:012}.ckpt"))
    }

    /// The steps that have a file, newest first.
    fn steps(&self) -> Result<Vec<u64>, Error> {
        let mut steps: Vec<u64> = self
            .names()?
            .iter()
            .filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".ckpt"))
            .filter(|digits| digits.len() == 12)
            .filter_map(|digits| digits.parse().ok())
            .collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let listed = fs::read_dir(&self.directory).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        });
        listed.map_err(Error::file(&self.directory, "list"))
    }
}

fn encode(config: &str, step: u64, weights: &[f64]) -> Vec<u8> {
    let mut start = Builder::default();
    start.0.extend(MAGIC);
    let built = start
        .text(config)
        .u64(step)
        // At most WEIGHTS_MAX, checked with the arguments.
        .u32(weights.len() as u32)
        .f64s(weights);
    let checksum = crc32fast::hash(&built.0);
    built.u32(checksum).0
}

fn decode(bytes: &[u8]) -> Result<(String, Checkpoint), FrameError> {
    let malformed = |what: &str| Err(FrameError::Malformed(what.into()));
    if bytes.len() > FILE_LEN_MAX {
        return malformed("it is longer than any checkpoint");
    }
    let Some((content, checksum)) = bytes.split_last_chunk::<4>() else {
        return malformed("it is shorter than any checkpoint");
    };
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return malformed("its checksum is wrong");
    }
    let mut fields = Fields::new(content);
    if fields.bytes(MAGIC.len())? != MAGIC {
        return malformed("it is not a checkpoint of this program");
    }
    let config = fields.text(CONFIG_LEN_MAX)?;
    let step = fields.u64()?;
    let count = fields.u32()? as usize;
    let weights = fields.f64s(count)?;
    fields.end()?;
    Ok((config, Checkpoint { step, weights }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(directory: &Path) -> Checkpoints {
        Checkpoints::open(directory, "seed=1").unwrap()
    }

    #[test]
    fn the_newest_two_are_kept_and_the_newest_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let saved = store(directory.path());
        assert_eq!(saved.newest().unwrap(), None);
        for step in [10, 20, 30] {
            saved.save(step, &[step as f64, -0.0]).unwrap();
        }
        assert_eq!(saved.steps().unwrap(), [30, 20]);
        let newest = saved.newest().unwrap().unwrap();
        assert_eq!((newest.step, newest.weights), (30, vec![30.0, -0.0]));
    }

    #[test]
    fn any_damage_falls_back_to_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let saved = store(directory.path());
        saved.save(1, &[1.0]).unwrap();
        let path = saved.save(2, &[2.0]).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            assert!(decode(&whole[..at]).is_err(), "cut at {at}");
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(decode(&damaged).is_err(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(saved.newest().unwrap().unwrap().step, 1);
        // A whole file under another step's name is damage too.
        fs::write(&path, fs::read(saved.path(1)).unwrap()).unwrap();
        assert_eq!(saved.newest().unwrap().unwrap().step, 1);
        fs::write(&path, &whole).unwrap();
        assert_eq!(saved.newest().unwrap().unwrap().step, 2);
    }

    #[test]
    fn another_run_is_refused_by_both_names() {
        let directory = tempfile::tempdir().unwrap();
        store(directory.path()).save(1, &[1.0]).unwrap();
        let other = Checkpoints::open(directory.path(), "seed=2").unwrap();
        let message = other.newest().unwrap_err().to_string();
        assert!(message.contains("seed=1") && message.contains("seed=2"));
    }

    #[test]
    fn what_a_crash_left_is_cleared_and_what_is_not_ours_stays() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join(".step-000000000009.part");
        let other = directory.path().join("step-notes.ckpt");
        fs::write(&part, b"half").unwrap();
        fs::write(&other, b"mine").unwrap();
        assert_eq!(store(directory.path()).newest().unwrap(), None);
        assert!(!part.exists() && other.exists());
    }
}
