//! A bucket of an object store that speaks S3's protocol, as a store of objects.
//!
//! Objects have the names that they have in a directory, so one may be copied to the other with any tool. The protocol is that of the
//! crate `object_store`: signatures, attempts after failures, lists. Connections are Muster's own.
//!
//! What blocks on a thread here waits for a runtime of the bucket: a store is used on threads for such work.
//!
//! **Invariant:** an object appears whole or not at all; nothing here believes what the bucket returns, who reads it checks the digest.

mod credentials;
mod service;
mod upload;

use self::credentials::Keys;
use self::service::Service;
use self::upload::{Unfinished, Upload};
use crate::store::{BlobError, BlobStore};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use muster_fetch::{FetchRules, Streamer};
use muster_transport::PublicTls;
use muster_types::BlobDigest;
use muster_types::bucket::{BUCKET_SCHEME, BucketConfig, BucketName};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{BackoffConfig, GetOptions, ObjectStore as _, RetryConfig};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

/// Between two pieces of an answer, and for one part to be taken.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often and how long one request is made again. Who uses the store tries again as well.
const ATTEMPTS_MAX: usize = 4;
const ATTEMPTS_TIME_MAX: Duration = Duration::from_secs(30);
/// An object that was written longer ago is written again when it is needed: that is how its use is recorded, since a bucket has no time
/// of change that can be set.
const REWRITE_AFTER: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Unfinished objects that are remembered.
const UNFINISHED_MAX: usize = 64;
/// Characters of what a server says.
const SAID_MAX: usize = 300;
/// And of the code that a server gives an error, within that.
const CODE_MAX: usize = 64;
/// The directory of the objects, as in a store that is one.
const OBJECTS: &str = "objects";

/// A store in a bucket.
#[derive(Clone)]
pub struct Bucket {
    shared: Arc<Shared>,
}

struct Shared {
    name: BucketName,
    config: BucketConfig,
    /// Where it is on record what the server has of unfinished objects; none for in memory alone.
    records: Option<PathBuf>,
    opened: Mutex<Option<Arc<Opened>>>,
    unfinished: Mutex<BTreeMap<BlobDigest, Unfinished>>,
}

/// What a look for old objects has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Objects that were used longer ago than the age that was named.
    pub objects: u64,
    /// Their bytes as the bucket has them.
    pub bytes: u64,
    /// Objects that stay.
    pub kept: u64,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({self})")
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BucketName { bucket, prefix } = &self.shared.name;
        let between = if prefix.is_empty() { "" } else { "/" };
        write!(f, "{BUCKET_SCHEME}{bucket}{between}{prefix}")
    }
}

/// The client, and where its requests are made.
struct Opened {
    store: AmazonS3,
    runtime: Option<Runtime>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The last user may be on a runtime itself, which must not wait for this one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Opened {
    /// Begins with some work; the answer comes when it is done.
    fn begin<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Receiver<T> {
        let (done, answer) = sync_channel(1);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                // Who does not wait for it any more needs no answer.
                let _ = done.send(work.await);
            });
        }
        answer
    }

    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, BlobError> {
        self.begin(work).recv().map_err(|_| Opened::gone())
    }

    fn gone() -> BlobError {
        BlobError::Unreachable("the work with the bucket was broken off".to_owned())
    }
}

/// What a server says, without the document around it: that may have the id of a key in it.
fn said(error: &object_store::Error) -> String {
    let all = error.to_string();
    let code = all.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let before = all.split('<').next().unwrap_or_default().trim_end();
    let Some((code, _)) = code else { return before.chars().take(SAID_MAX).collect() };
    // A long address of an object is cut rather than the code behind it, which says what is wrong.
    let code: String = code.chars().take(CODE_MAX).collect();
    let before: String = before.chars().take(SAID_MAX - CODE_MAX - 1).collect();
    format!("{before} {code}")
}

/// What it means for an object that a request has failed.
fn failure(digest: &BlobDigest, error: &object_store::Error) -> BlobError {
    match error {
        // Without the bucket it is not known whether there was such an object.
        object_store::Error::NotFound { .. } if !error.to_string().contains("NoSuchBucket") => {
            BlobError::NotFound(*digest)
        }
        _ => BlobError::Unreachable(said(error)),
    }
}

fn age_of(last_modified_s: i64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(u64::try_from(last_modified_s).unwrap_or(0)))
}

impl Shared {
    /// The URL that requests begin with, and the name of its host.
    fn endpoint(&self) -> Result<(String, String), String> {
        let BucketConfig { endpoint, region, path_style, .. } = &self.config;
        let base = endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let (scheme, host) = base.split_once("://").unwrap_or(("https", base.as_str()));
        // As it is signed: a header of another form would be none that the signature is of.
        let host = host.trim_end_matches('/').to_ascii_lowercase();
        let usual_port = if scheme == "https" { ":443" } else { ":80" };
        let host = host.strip_suffix(usual_port).unwrap_or(&host);
        let authority = if *path_style { host.to_owned() } else { format!("{}.{host}", self.name.bucket) };
        let parsed: http::uri::Authority =
            authority.parse().map_err(|_| "endpoint must be https://HOST[:PORT]".to_owned())?;
        let name = parsed.host().trim_matches(['[', ']']).to_ascii_lowercase();
        Ok((format!("{scheme}://{authority}"), name))
    }

    fn open(&self) -> Result<Opened, String> {
        if let Some((key, rule)) = self.config.violation() {
            return Err(format!("{key} {rule}"));
        }
        let keys = Keys::of(self.config.credentials_file.as_deref());
        // Now, so that it is told at once which are missing.
        keys.read()?;
        let (endpoint, host) = self.endpoint()?;
        let rules = FetchRules {
            allow_http: self.config.allow_http,
            allowed_hosts: BTreeSet::from([host]),
            timeout: SILENCE_MAX,
        };
        let authorities = self.config.ca_file.as_deref().map(std::path::Path::new);
        let tls = PublicTls::load(authorities).map_err(|error| error.to_string());
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: ATTEMPTS_MAX,
            retry_timeout: ATTEMPTS_TIME_MAX,
        };
        let store = AmazonS3Builder::new()
            .with_bucket_name(self.name.bucket.as_str())
            .with_region(self.config.region.as_str())
            .with_endpoint(endpoint)
            .with_virtual_hosted_style_request(!self.config.path_style)
            .with_allow_http(self.config.allow_http)
            .with_credentials(Arc::new(keys))
            .with_retry(retry)
            .with_http_connector(Service { streamer: Streamer::new(rules, Arc::new(tls)) })
            .build()
            .map_err(|error| said(&error))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("bucket")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Opened { store, runtime: Some(runtime) })
    }
}

impl Bucket {
    /// The bucket of this name, which is looked for when it is used first.
    #[must_use]
    pub fn at(name: BucketName, config: BucketConfig) -> Bucket {
        Bucket::with_records(name, config, None)
    }

    /// The same with a directory in which it is on record what the bucket has of large objects that were not finished. So a program that is
    /// run again sends the rest of them.
    #[must_use]
    pub fn with_records(name: BucketName, config: BucketConfig, records: Option<PathBuf>) -> Bucket {
        let (opened, unfinished) = (Mutex::new(None), Mutex::new(BTreeMap::new()));
        Bucket { shared: Arc::new(Shared { name, config, records, opened, unfinished }) }
    }

    fn opened(&self) -> Result<Arc<Opened>, BlobError> {
        let mut opened = self.shared.opened.lock();
        if let Some(known) = opened.as_ref() {
            return Ok(Arc::clone(known));
        }
        let made = self.shared.open().map_err(|why| BlobError::Unreachable(format!("{self}: {why}")))?;
        let made = Arc::new(made);
        *opened = Some(Arc::clone(&made));
        Ok(made)
    }

    fn objects(&self) -> String {
        let prefix = &self.shared.name.prefix;
        if prefix.is_empty() { OBJECTS.to_owned() } else { format!("{prefix}/{OBJECTS}") }
    }

    fn path_of(&self, digest: &BlobDigest) -> Path {
        let digits = digest.digits();
        let (first, _) = digits.split_at(2);
        Path::from(format!("{}/{first}/{digits}", self.objects()))
    }

    /// Counts the objects that were used longer ago than this, and removes them unless it is only to be counted. Nothing but objects of
    /// the store is looked at.
    ///
    /// # Errors
    /// When the bucket cannot be listed, or does not remove one.
    pub fn expire(&self, older_than: Duration, is_only_counted: bool) -> Result<Expired, BlobError> {
        let opened = self.opened()?;
        let (store, below) = (opened.store.clone(), Path::from(self.objects()));
        let done = opened.wait(async move {
            let mut found = Expired::default();
            let mut old: Vec<Path> = Vec::new();
            let mut listed = store.list(Some(&below));
            while let Some(object) = listed.next().await {
                let object = object?;
                let name = object.location.filename().unwrap_or_default();
                if BlobDigest::parse(&format!("sha256:{name}")).is_err() {
                    continue;
                }
                if age_of(object.last_modified.timestamp()) <= older_than {
                    found.kept = found.kept.saturating_add(1);
                    continue;
                }
                found.objects = found.objects.saturating_add(1);
                found.bytes = found.bytes.saturating_add(object.size);
                old.push(object.location);
            }
            if !is_only_counted {
                let mut removed = store.delete_stream(stream::iter(old.into_iter().map(Ok)).boxed());
                while let Some(one) = removed.next().await {
                    one?;
                }
            }
            Ok::<Expired, object_store::Error>(found)
        })?;
        done.map_err(|error| BlobError::Unreachable(said(&error)))
    }
}

impl BlobStore for Bucket {
    fn has(&self, digest: &BlobDigest) -> Result<bool, BlobError> {
        let opened = self.opened()?;
        let (store, path) = (opened.store.clone(), self.path_of(digest));
        let head = GetOptions { head: true, ..GetOptions::default() };
        match opened.wait(async move { store.get_opts(&path, head).await.map(|found| found.meta) })? {
            Ok(found) => Ok(age_of(found.last_modified.timestamp()) <= REWRITE_AFTER),
            Err(error) => match failure(digest, &error) {
                BlobError::NotFound(_) => Ok(false),
                other => Err(other),
            },
        }
    }

    fn put(
        &self,
        digest: &BlobDigest,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<(), BlobError>,
    ) -> Result<(), BlobError> {
        let mut upload = Upload::begin(self, self.opened()?, *digest);
        match write(&mut upload) {
            Ok(()) => upload.finish(),
            Err(error) => {
                upload.give_up(matches!(error, BlobError::Unreachable(_)));
                Err(error)
            }
        }
    }

    fn open(&self, digest: &BlobDigest) -> Result<Box<dyn Read>, BlobError> {
        let opened = self.opened()?;
        let (store, path) = (opened.store.clone(), self.path_of(digest));
        let found = opened.wait(async move { store.get_opts(&path, GetOptions::default()).await })?;
        let found = found.map_err(|error| failure(digest, &error))?;
        Ok(Box::new(Object { opened, coming: Some(found.into_stream()), piece: Bytes::new() }))
    }
}

/// An object as it comes.
struct Object {
    opened: Arc<Opened>,
    /// None at its end.
    coming: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    piece: Bytes,
}

impl Read for Object {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let Some(mut coming) = self.coming.take() else { return Ok(0) };
            let next = self.opened.wait(async move {
                let piece = coming.next().await;
                (coming, piece)
            });
            let (coming, piece) = next.map_err(io::Error::other)?;
            match piece {
                // Where it broke off is not its end: this must not look like a damaged object.
                Some(piece) => self.piece = piece.map_err(|error| io::Error::other(said(&error)))?,
                None => return Ok(0),
            }
            self.coming = Some(coming);
        }
        let count = into.len().min(self.piece.len());
        let piece = self.piece.split_to(count);
        into.iter_mut().zip(piece.iter()).for_each(|(to, from)| *to = *from);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(text: &str, config: BucketConfig) -> Bucket {
        Bucket::at(BucketName::parse(text).unwrap(), config)
    }

    #[test]
    fn objects_have_the_names_that_they_have_in_a_directory() {
        let digest = BlobDigest::new([0xab; 32]);
        let digits = digest.digits();
        let whole = bucket("s3://files", BucketConfig::default());
        assert_eq!(whole.path_of(&digest).to_string(), format!("objects/ab/{digits}"));
        let below = bucket("s3://files/eu/prod/", BucketConfig::default());
        assert_eq!(below.path_of(&digest).to_string(), format!("eu/prod/objects/ab/{digits}"));
        assert_eq!(below.to_string(), "s3://files/eu/prod");
    }

    #[test]
    fn requests_go_to_the_endpoint_with_the_bucket_in_the_path_or_in_the_name() {
        let endpoint = |config: BucketConfig| bucket("s3://files", config).shared.endpoint().unwrap();
        let text = |url: &str, host: &str| (url.to_owned(), host.to_owned());
        let usual = BucketConfig::default();
        let of_region = text("https://s3.us-east-1.amazonaws.com", "s3.us-east-1.amazonaws.com");
        assert_eq!(endpoint(usual.clone()), of_region);
        let named = text("https://files.s3.us-east-1.amazonaws.com", "files.s3.us-east-1.amazonaws.com");
        assert_eq!(endpoint(BucketConfig { path_style: false, ..usual.clone() }), named);
        let usual_port = Some("https://MinIO.example:443".to_owned());
        let named = text("https://minio.example", "minio.example");
        assert_eq!(endpoint(BucketConfig { endpoint: usual_port, ..usual.clone() }), named);
        let own = Some("https://[::1]:9000/".to_owned());
        assert_eq!(endpoint(BucketConfig { endpoint: own, ..usual }), text("https://[::1]:9000", "::1"));
    }

    #[test]
    fn a_bucket_without_keys_says_what_is_missing() {
        let config = BucketConfig {
            credentials_file: Some("/nonexistent/keys".to_owned()),
            ..BucketConfig::default()
        };
        let why = bucket("s3://files", config).has(&BlobDigest::new([1; 32])).unwrap_err();
        assert!(
            matches!(why, BlobError::Unreachable(_)) && why.to_string().contains("/nonexistent/keys"),
            "{why}"
        );
    }

    #[test]
    fn what_a_server_says_is_told_without_its_document() {
        let body = "403 Forbidden: <?xml?><Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        let error = object_store::Error::Generic { store: "S3", source: body.into() };
        let text = said(&error);
        assert!(text.contains("403 Forbidden") && text.contains("SignatureDoesNotMatch"), "{text}");
        assert!(!text.contains("AKIA"), "{text}");
        let long = format!("404 of {}: <Code>NoSuchBucket</Code>", "a".repeat(2 * SAID_MAX));
        let text = said(&object_store::Error::Generic { store: "S3", source: long.into() });
        assert!(text.ends_with(" NoSuchBucket") && text.len() <= SAID_MAX, "{text}");
        let digest = BlobDigest::new([1; 32]);
        let missing =
            |body: &str| object_store::Error::NotFound { path: "a".to_owned(), source: body.into() };
        assert!(matches!(failure(&digest, &missing("404: <Code>NoSuchKey</Code>")), BlobError::NotFound(_)));
        let no_bucket = failure(&digest, &missing("404: <Code>NoSuchBucket</Code>"));
        assert!(matches!(no_bucket, BlobError::Unreachable(_)), "nothing is known of its objects");
    }
}
