//! What `muster login` keeps: the token of an issuer, next to the configuration file, for the replicas that it was got for.
//!
//! **Invariant:** the file is readable by its owner alone, and one that others can read is refused; nothing prints a token.
//! **Invariant:** a refresh token is shown to its issuer by one command at a time, which has read it under the lock and writes what it got under the
//! lock: an issuer that takes each of them once would end the sign-in of two that show the same.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_files::Manner;
use muster_oidc::{Login, LoginError, Tokens, unverified_expiry_s};
use muster_transport::Bearer;
use serde::{Deserialize, Serialize};

use super::config;
use super::failure::{Exit, Failure};
use super::local;

/// The file, next to that of the configuration.
const FILE: &str = "login.json";
/// The lock of the file, which has another name: the file is a new one after every change.
const LOCK: &str = "login.lock";
/// How long another command may take to replace the sign-in; an issuer has 15 s to answer.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to get the lock. A command that waits can be interrupted.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Tokens of issuers have some KiB.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Authorities of a cluster are a few.
const AUTHORITIES_BYTES_MAX: u64 = 1 << 20;
/// A token that ends sooner than this is replaced before it is used.
const REFRESH_BEFORE_S: u64 = 60;

/// Where a person has signed in, and for which replicas.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The replicas, as they were named.
    pub endpoints: Vec<String>,
    /// The authorities of the cluster.
    pub ca: PathBuf,
    /// The issuer.
    pub issuer: String,
    /// The client that the issuer knows.
    pub client_id: String,
    /// Authorities of the issuer's certificate; none for those of the system.
    pub issuer_ca: Option<PathBuf>,
    /// Whether the token for services is shown, and not that for the client.
    pub uses_access_token: bool,
    /// Where the issuer gives tokens.
    pub token_url: String,
}

/// A sign-in as it is kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct StoredLogin {
    #[serde(flatten)]
    site: Site,
    token: String,
    refresh_token: Option<String>,
    /// In seconds since the Unix epoch; none where nobody says it.
    expires_s: Option<u64>,
}

impl std::ops::Deref for StoredLogin {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

/// Why signing in failed, as a command ends with it.
#[must_use]
pub fn failed(error: &LoginError) -> Failure {
    let exit = match error {
        LoginError::Fetch(_) => Exit::Unavailable,
        LoginError::Refused { .. } => Exit::Denied,
        LoginError::TimedOut => Exit::Timeout,
        LoginError::Answer(_) | LoginError::NoDeviceFlow => Exit::Failed,
    };
    Failure::of_error(exit, error)
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn path() -> Option<PathBuf> {
    config::path().map(|path| path.with_file_name(FILE))
}

fn no_path() -> Failure {
    Failure::usage("neither XDG_CONFIG_HOME nor HOME names a directory to keep the sign-in in")
}

/// Waits until no other command changes the sign-in, and keeps others from it until the result is dropped. None on a file system without
/// locks, as those of some clusters are: there is no protection there.
async fn lock(path: &Path) -> Result<Option<File>, Failure> {
    let path = path.with_file_name(LOCK);
    let wrong = |error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(wrong)?;
    }
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(wrong)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_WAIT_MAX => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(TryLockError::WouldBlock) => {
                let text = format!("another command has held {} for a minute", path.display());
                return Err(Failure::new(Exit::Timeout, text).with_next("run the command again"));
            }
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
    }
}

impl StoredLogin {
    /// What an issuer gave for some replicas.
    ///
    /// # Errors
    /// When it has no token that replicas take.
    pub fn new(site: Site, tokens: Tokens) -> Result<StoredLogin, Failure> {
        let refresh_token = tokens.refresh_token.clone();
        let mut login = StoredLogin { site, token: String::new(), refresh_token, expires_s: None };
        login.take(tokens)?;
        Ok(login)
    }

    fn take(&mut self, tokens: Tokens) -> Result<(), Failure> {
        let token = if self.site.uses_access_token { Some(tokens.access_token) } else { tokens.id_token };
        let Some(token) = token else {
            let text = "the issuer gave no id_token";
            return Err(Failure::new(Exit::Failed, text).with_next(
                "ask for the scope openid with --scope, or show its access token with --access-token",
            ));
        };
        Bearer::parse(&token).map_err(|_| {
            let text = "the issuer gave a token that is not signed, or longer than 8 KiB";
            Failure::new(Exit::Failed, text)
                .with_next("replicas take signed tokens (JWT) alone; see ops/guide/sign-in.md")
        })?;
        let said = unverified_expiry_s(&token);
        self.expires_s = said.or_else(|| tokens.expires_in_s.map(|s| now_s().saturating_add(s)));
        self.token = token;
        // An issuer that gives no new one leaves the present one good.
        if tokens.refresh_token.is_some() {
            self.refresh_token = tokens.refresh_token;
        }
        Ok(())
    }

    /// Until when its token is good, in seconds since the Unix epoch; none where nobody says it.
    #[must_use]
    pub fn expires_s(&self) -> Option<u64> {
        self.expires_s
    }

    /// Whether it can be replaced without a person.
    #[must_use]
    pub fn can_refresh(&self) -> bool {
        self.refresh_token.is_some()
    }

    /// The token to show. One that is about to end is replaced first, where the issuer gave the means.
    ///
    /// # Errors
    /// When the issuer refuses, or cannot be asked while the present token has ended.
    pub async fn bearer(self) -> Result<Bearer, Failure> {
        self.bearer_at(path().as_deref()).await
    }

    /// How long the token is good; none where nobody says it.
    fn left_s(&self) -> Option<u64> {
        self.expires_s.map(|end| end.saturating_sub(now_s()))
    }

    fn ends_soon(&self) -> bool {
        self.left_s().is_some_and(|left| left < REFRESH_BEFORE_S)
    }

    async fn bearer_at(mut self, path: Option<&Path>) -> Result<Bearer, Failure> {
        let left_s = self.left_s();
        if self.ends_soon() {
            match self.refresh(path).await {
                Ok(()) => {}
                // The present token is good for a few seconds more.
                Err(_) if left_s.is_some_and(|left| left > 0) => {}
                Err(failure) => return Err(failure),
            }
        }
        Bearer::parse(&self.token).map_err(|error| Failure::usage(format!("{FILE}: {error}")))
    }

    /// Takes what another command has got meanwhile, else gets a new token and writes it.
    async fn refresh(&mut self, path: Option<&Path>) -> Result<(), Failure> {
        let next = "sign in once more with `muster login`";
        let ended = || Failure::new(Exit::Denied, "the sign-in has ended").with_next(next);
        if self.refresh_token.is_none() {
            return Err(ended());
        }
        let path = path.ok_or_else(no_path)?;
        let _lock = lock(path).await?;
        let Some(current) = read(path)? else {
            return Err(Failure::new(Exit::Denied, "the sign-in was removed meanwhile").with_next(next));
        };
        // Its token is not for the replicas that this command asks.
        if current.site != self.site {
            let text = "another sign-in has taken the place of this one";
            return Err(Failure::new(Exit::Failed, text).with_next("run the command again"));
        }
        *self = current;
        if !self.ends_soon() {
            return Ok(());
        }
        let refresh_token = self.refresh_token.clone().ok_or_else(ended)?;
        let site = &self.site;
        let mut login = Login::new(&site.issuer, &site.client_id, site.issuer_ca.as_deref()).await;
        let tokens = login.refresh(&site.token_url, &refresh_token).await;
        self.take(tokens.map_err(|error| failed(&error).with_next(next))?)?;
        self.write(path)
    }

    /// Writes it next to the configuration file, for its owner alone; gives its place.
    ///
    /// # Errors
    /// When there is no such place, it cannot be written, or another command does not finish its change.
    pub async fn keep(&self) -> Result<PathBuf, Failure> {
        let path = path().ok_or_else(no_path)?;
        let _lock = lock(&path).await?;
        self.write(&path)?;
        Ok(path)
    }

    /// Writes it, by the one who has the lock.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let wrong =
            |error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))?;
        muster_files::write_whole(path, &text, Manner::PRIVATE).map_err(wrong)
    }
}

/// The sign-in that is kept; none where there is none.
///
/// # Errors
/// When its file can be read by others, or is damaged.
pub fn kept() -> Result<Option<StoredLogin>, Failure> {
    path().map_or(Ok(None), |path| read(&path))
}

fn read(path: &Path) -> Result<Option<StoredLogin>, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        let text = format!("others than its owner can read it (mode {mode:o})");
        return Err(wrong(text).with_next("run `muster logout`, and sign in once more"));
    }
    let bytes = muster_files::read_bounded(path, FILE_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    // The text of the error would show a part of the file.
    serde_json::from_slice(&bytes).map(Some).map_err(|_| {
        wrong("it is no sign-in of this program".to_owned())
            .with_next("run `muster logout`, and sign in once more")
    })
}

/// Removes the sign-in that is kept; whether there was one.
///
/// # Errors
/// When it cannot be removed, or another command does not finish its change.
pub async fn forget() -> Result<bool, Failure> {
    match path().filter(|path| path.exists()) {
        Some(path) => forget_at(&path).await,
        None => Ok(false),
    }
}

async fn forget_at(path: &Path) -> Result<bool, Failure> {
    // A command that replaces it at this moment would bring it back.
    let _lock = lock(path).await?;
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::new(Exit::Failed, format!("{}: {error}", path.display()))),
    }
}

/// The sign-in for the replicas that are meant, and these. Where nothing names a replica and no `muster dev` runs, it says itself which they
/// are. A token goes to no other replicas than those that it was got for, and not to those of another cluster at the same address: `ca`
/// are the authorities of the command line or the environment.
///
/// # Errors
/// When its file can be read by others, or is damaged, and when other authorities are named than it was got with.
pub fn kept_for(given: &[String], ca: Option<&Path>) -> Result<Option<(StoredLogin, Vec<String>)>, Failure> {
    let Some(path) = path().filter(|path| path.exists()) else { return Ok(None) };
    let named = config::named(given)?;
    if named.is_empty() && local::running().is_some() {
        return Ok(None);
    }
    let Some(login) = read(&path)? else { return Ok(None) };
    let Some(endpoints) = chosen(&login, named) else { return Ok(None) };
    if let Some(other) = ca.filter(|ca| !are_same_authorities(ca, &login.ca)) {
        let text = format!(
            "the sign-in was got with the authorities {}, and {} has others",
            login.ca.display(),
            other.display()
        );
        return Err(Failure::usage(text)
            .with_next("leave --ca and MUSTER_CA out, or sign in once more with `muster login`"));
    }
    Ok(Some((login, endpoints)))
}

/// Whether a file of authorities is the one that was kept, or has the same content.
fn are_same_authorities(given: &Path, known: &Path) -> bool {
    let content = |path: &Path| muster_files::read_bounded(path, AUTHORITIES_BYTES_MAX).ok();
    std::path::absolute(given).is_ok_and(|given| given == known)
        || content(given).is_some_and(|given| content(known) == Some(given))
}

fn chosen(login: &StoredLogin, named: Vec<String>) -> Option<Vec<String>> {
    if named.is_empty() {
        return Some(login.endpoints.clone());
    }
    named.iter().all(|endpoint| login.endpoints.contains(endpoint)).then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_oidc::test_issuer::serve;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::mpsc::UnboundedReceiver;
    use tokio::task::JoinSet;

    fn site(uses_access_token: bool) -> Site {
        Site {
            endpoints: vec!["a:1".to_owned(), "b:1".to_owned()],
            ca: PathBuf::from("/ca.crt"),
            issuer: "https://login.example".to_owned(),
            client_id: "muster".to_owned(),
            issuer_ca: None,
            uses_access_token,
            token_url: "https://login.example/token".to_owned(),
        }
    }

    fn tokens(id_token: Option<&str>, access_token: &str) -> Tokens {
        Tokens {
            id_token: id_token.map(str::to_owned),
            access_token: access_token.to_owned(),
            refresh_token: Some("r1".to_owned()),
            expires_in_s: Some(600),
        }
    }

    #[tokio::test]
    async fn the_token_that_is_asked_for_is_kept() {
        let login = StoredLogin::new(site(false), tokens(Some("a.b.c"), "opaque")).unwrap();
        assert!(login.can_refresh() && login.expires_s().is_some_and(|end| end > now_s()));
        assert_eq!(login.bearer().await.unwrap().reveal(), "a.b.c");
        let login = StoredLogin::new(site(true), tokens(None, "d.e.f")).unwrap();
        assert_eq!(login.bearer().await.unwrap().reveal(), "d.e.f");
        assert!(StoredLogin::new(site(false), tokens(None, "d.e.f")).is_err());
        assert!(StoredLogin::new(site(true), tokens(None, "opaque")).is_err());
    }

    /// A sign-in that has ended, in a file, at an issuer that takes every refresh token once and gives the next one.
    async fn ended(directory: &Path) -> (PathBuf, UnboundedReceiver<String>) {
        let last = AtomicU32::new(0);
        let (url, asked) = serve(move |_, body| {
            let before = last.load(Ordering::SeqCst);
            let given = before + 1;
            let is_last = body.contains(&format!("refresh_token=r{before}&"));
            if !is_last || last.compare_exchange(before, given, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                return (400, r#"{"error":"invalid_grant"}"#.to_owned());
            }
            let text = format!(
                r#"{{"access_token":"o","id_token":"a.b.t{given}","refresh_token":"r{given}","expires_in":600}}"#
            );
            (200, text)
        })
        .await;
        let site = Site { issuer: url.clone(), token_url: format!("{url}/token"), ..site(false) };
        let tokens = Tokens {
            refresh_token: Some("r0".to_owned()),
            expires_in_s: Some(0),
            ..tokens(Some("a.b.t0"), "o")
        };
        let path = directory.join(FILE);
        StoredLogin::new(site, tokens).unwrap().write(&path).unwrap();
        (path, asked)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn commands_at_the_same_time_show_a_refresh_token_once() {
        let directory = tempfile::tempdir().unwrap();
        let (path, mut asked) = ended(directory.path()).await;
        // Each has read the file before any of them asks.
        let logins: Vec<StoredLogin> = (0..8).map(|_| read(&path).unwrap().unwrap()).collect();
        let mut commands = JoinSet::new();
        for login in logins {
            let path = path.clone();
            commands.spawn(async move { login.bearer_at(Some(&path)).await });
        }
        while let Some(bearer) = commands.join_next().await {
            assert_eq!(bearer.unwrap().unwrap().reveal(), "a.b.t1");
        }
        assert!(asked.recv().await.is_some_and(|request| request.contains("refresh_token=r0")));
        assert!(asked.try_recv().is_err(), "the issuer is asked once");
        assert_eq!(read(&path).unwrap().unwrap().refresh_token.as_deref(), Some("r1"));
    }

    #[tokio::test]
    async fn a_command_brings_back_no_sign_in_that_was_removed_or_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (path, mut asked) = ended(directory.path()).await;
        let before = read(&path).unwrap().unwrap();
        let other = Site { endpoints: vec!["c:1".to_owned()], ..before.site.clone() };
        StoredLogin::new(other, tokens(Some("a.b.c"), "o")).unwrap().write(&path).unwrap();
        assert!(before.clone().bearer_at(Some(&path)).await.is_err(), "its token is for other replicas");
        assert!(forget_at(&path).await.unwrap() && !forget_at(&path).await.unwrap());
        assert!(before.bearer_at(Some(&path)).await.is_err());
        assert!(!path.exists() && asked.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_removal_waits_for_the_command_that_replaces_the_sign_in() {
        let directory = tempfile::tempdir().unwrap();
        let (path, _asked) = ended(directory.path()).await;
        let held = lock(&path).await.unwrap().expect("this file system has locks");
        let removal = tokio::spawn({
            let path = path.clone();
            async move { forget_at(&path).await }
        });
        tokio::task::yield_now().await;
        assert!(path.exists() && !removal.is_finished());
        drop(held);
        assert!(removal.await.unwrap().unwrap() && !path.exists());
    }

    #[test]
    fn a_token_goes_to_the_replicas_that_it_was_got_for() {
        let login = StoredLogin::new(site(false), tokens(Some("a.b.c"), "opaque")).unwrap();
        let named = |texts: &[&str]| chosen(&login, texts.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!(named(&[]).unwrap(), ["a:1", "b:1"]);
        assert_eq!(named(&["b:1"]).unwrap(), ["b:1"]);
        assert_eq!(named(&["b:1", "c:1"]), None);
    }

    #[test]
    fn a_token_goes_to_no_cluster_of_other_authorities() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let (known, copy, other) = (file("ca.crt", "one"), file("copy.crt", "one"), file("other.crt", "two"));
        assert!(are_same_authorities(&known, &known) && are_same_authorities(&copy, &known));
        assert!(!are_same_authorities(&other, &known));
        let absent = directory.path().join("absent.crt");
        assert!(!are_same_authorities(&absent, &known) && !are_same_authorities(&known, &absent));
        assert!(!are_same_authorities(&absent, &directory.path().join("none.crt")));
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_refused_without_being_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        assert!(read(&path).unwrap().is_none());
        let login = StoredLogin::new(site(false), tokens(Some("a.b.hunter2"), "opaque")).unwrap();
        let text = serde_json::to_vec(&login).unwrap();
        muster_files::write_whole(&path, &text, Manner::PRIVATE).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().issuer, "https://login.example");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&path).is_err());
        std::fs::write(&path, b"{\"token\":\"hunter2\"").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let Err(failure) = read(&path) else { panic!("it is damaged") };
        assert!(!format!("{failure:?}").contains("hunter2"));
    }
}
