//! The keys that requests to a bucket are signed with.
//!
//! **Invariant:** they come from the file that the operator names or from the environment, and from no service on the network: no host
//! can decide by its metadata where the files of jobs go. They are in no error and in no line of the log.

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes of such a file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// What the environment has, and the file in small letters.
const NAMES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// Where keys are read.
pub(super) struct Keys {
    /// None for the environment.
    file: Option<PathBuf>,
    /// As they were when the file was last changed.
    known: Mutex<Option<(Option<SystemTime>, Arc<AwsCredential>)>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Keys {
    pub(super) fn of(file: Option<&str>) -> Keys {
        Keys { file: file.map(PathBuf::from), known: Mutex::new(None) }
    }

    /// The present ones. A file that was replaced is read again.
    pub(super) fn read(&self) -> Result<Arc<AwsCredential>, String> {
        let changed = match &self.file {
            Some(path) => {
                let found = std::fs::metadata(path).map_err(|error| unread(path, &error))?;
                found.modified().ok()
            }
            None => None,
        };
        let mut known = self.known.lock();
        if let Some((seen, keys)) = known.as_ref()
            && *seen == changed
        {
            return Ok(Arc::clone(keys));
        }
        let keys = Arc::new(match &self.file {
            Some(path) => of_file(path)?,
            None => of_environment()?,
        });
        *known = Some((changed, Arc::clone(&keys)));
        Ok(keys)
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.read().map_err(|why| object_store::Error::Generic { store: "S3", source: why.into() })
    }
}

fn unread(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn of_environment() -> Result<AwsCredential, String> {
    let value = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let [key_id, secret_key, token] = NAMES.map(value);
    made(key_id, secret_key, token).ok_or_else(|| {
        let [key_id, secret_key, _] = NAMES;
        format!("there are no keys for the bucket: set {key_id} and {secret_key}, or name a credentials_file")
    })
}

fn of_file(path: &Path) -> Result<AwsCredential, String> {
    let mut text = String::new();
    let opened = File::open(path).map_err(|error| unread(path, &error))?;
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| unread(path, &error))?;
    in_text(&text).ok_or_else(|| {
        format!(
            "{} has no lines aws_access_key_id = … and aws_secret_access_key = … of plain characters",
            path.display()
        )
    })
}

/// The keys in a text as the files of other clients of S3 have them: those of the first section that has some, for a token of
/// another one would be refused with them. The names of sections and other lines say nothing.
fn in_text(text: &str) -> Option<AwsCredential> {
    let lines: Vec<&str> = text.lines().collect();
    lines.split(|line| line.trim_start().starts_with('[')).find_map(in_section)
}

fn in_section(lines: &[&str]) -> Option<AwsCredential> {
    let value = |name: &str| {
        let mut lines = lines.iter().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let [key_id, secret_key, token] = NAMES.map(value);
    made(key_id, secret_key, token)
}

fn made(key_id: Option<String>, secret_key: Option<String>, token: Option<String>) -> Option<AwsCredential> {
    // The client puts them into headers as they are.
    let is_plain = |text: &String| text.bytes().all(|byte| byte.is_ascii_graphic());
    let (key_id, secret_key) = (key_id.filter(is_plain)?, secret_key.filter(is_plain)?);
    if token.as_ref().is_some_and(|token| !is_plain(token)) {
        return None;
    }
    Some(AwsCredential { key_id, secret_key, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_a_file_and_again_when_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let keys = Keys::of(path.to_str());
        assert!(keys.read().unwrap_err().contains("keys"), "there is no file");
        std::fs::write(&path, "[default]\naws_access_key_id = one\naws_secret_access_key=s=1\n").unwrap();
        let first = keys.read().unwrap();
        assert_eq!(
            (first.key_id.as_str(), first.secret_key.as_str(), first.token.as_deref()),
            ("one", "s=1", None)
        );
        let text = "AWS_ACCESS_KEY_ID=two\nAWS_SECRET_ACCESS_KEY=hunter2\nAWS_SESSION_TOKEN = three\n";
        std::fs::write(&path, text).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let second = keys.read().unwrap();
        assert_eq!((second.key_id.as_str(), second.token.as_deref()), ("two", Some("three")));
        assert!(!format!("{keys:?} {second:?}").contains("hunter2"));
        let profiles = "[default]\naws_access_key_id = one\naws_secret_access_key = s\n\n[session]\n\
                        aws_access_key_id = two\naws_secret_access_key = t\naws_session_token = u\n";
        let first = in_text(profiles).unwrap();
        assert_eq!(
            (first.key_id.as_str(), first.token.as_deref()),
            ("one", None),
            "the token is that of other keys"
        );
        let later = in_text(&format!("[empty]\nregion = x\n{}", &profiles["[default]".len()..])).unwrap();
        assert_eq!(later.key_id, "one");
        let odd = "aws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c\u{1}d\n";
        assert!(in_text(odd).is_none(), "no header can have that");
        std::fs::write(&path, "aws_access_key_id = hunter3\n").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let why = keys.read().unwrap_err();
        assert!(why.contains("aws_secret_access_key") && !why.contains("hunter3"), "{why}");
    }
}
