//! One object on its way into a bucket: in one request, or in parts where it is large.
//!
//! Of a large object the parts that have arrived are remembered by their digests, so an attempt after an interruption sends the others.
//! A part counts as sent only where it has the same bytes again.

use super::{Bucket, Opened, UNFINISHED_MAX, failure};
use crate::store::BlobError;
use muster_files::{Existing, Lasting, Manner, WholeFile};
use muster_types::BlobDigest;
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{ObjectStore as _, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::io::{self, Read as _, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Bytes of one part. A server takes no smaller one than 5 MiB, but for the last, and no more than 10,000.
pub(super) const PART_BYTES: usize = 8 << 20;
const PARTS_MAX: usize = 10_000;
/// After this number of attempts that add nothing the object is begun again: the server may have forgotten what it had.
const VAIN_MAX: u8 = 3;
/// Bytes of the file about one unfinished object.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// An object some of whose parts the server has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unfinished {
    /// As the server calls it.
    id: String,
    /// What has arrived, from the first part on without a gap.
    parts: Vec<Part>,
    /// Attempts in succession that added nothing.
    vain: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    /// Of its bytes.
    digest: BlobDigest,
    /// As the server calls it.
    tag: String,
}

/// A part on its way.
struct SentPart {
    digest: BlobDigest,
    answer: Receiver<object_store::Result<PartId>>,
}

/// What an object is written to.
pub(super) struct Upload<'a> {
    bucket: &'a Bucket,
    opened: Arc<Opened>,
    path: Path,
    digest: BlobDigest,
    waiting: Vec<u8>,
    /// Once it has more than one part.
    unfinished: Option<Unfinished>,
    /// How many parts are complete, the one on its way among them.
    count: usize,
    on_its_way: Option<SentPart>,
    /// Whether a part of this attempt has arrived.
    has_added: bool,
    /// A part is missing, so no later one may follow: what is written to this may be written to once more when it is dropped.
    is_broken: bool,
}

impl<'a> Upload<'a> {
    pub(super) fn begin(bucket: &'a Bucket, opened: Arc<Opened>, digest: BlobDigest) -> Upload<'a> {
        let path = bucket.path_of(&digest);
        Upload {
            bucket,
            opened,
            path,
            digest,
            waiting: Vec::new(),
            unfinished: None,
            count: 0,
            on_its_way: None,
            has_added: false,
            is_broken: false,
        }
    }

    /// All was written: the object appears.
    pub(super) fn finish(mut self) -> Result<(), BlobError> {
        if self.unfinished.is_none() {
            let (opened, path) = (Arc::clone(&self.opened), self.path.clone());
            let payload = PutPayload::from(std::mem::take(&mut self.waiting));
            let store = opened.store.clone();
            let put = async move { store.put_opts(&path, payload, PutOptions::default()).await };
            return opened.wait(put)?.map(|_| ()).map_err(|error| failure(&self.digest, &error));
        }
        let finished = self.finish_parts();
        if finished.is_err() {
            self.remember();
        }
        finished
    }

    fn finish_parts(&mut self) -> Result<(), BlobError> {
        if !self.waiting.is_empty() {
            self.part()?;
        }
        self.arrived()?;
        // Whatever becomes of it: what the server does not accept as the parts of an object must not be offered again.
        let Some(unfinished) = self.unfinished.take() else { return Ok(()) };
        self.bucket.forget(&self.digest);
        let named = unfinished.parts.iter().take(self.count);
        let parts: Vec<PartId> = named.map(|part| PartId { content_id: part.tag.clone() }).collect();
        let (store, path, id) = (self.opened.store.clone(), self.path.clone(), unfinished.id);
        let completed = self.opened.wait(async move { store.complete_multipart(&path, &id, parts).await })?;
        completed.map(|_| ()).map_err(|error| self.refused(&error))
    }

    /// It does not become an object. What has arrived is kept where another attempt may be made.
    pub(super) fn give_up(mut self, is_to_go_on: bool) {
        // What arrives while this is given up counts as well.
        let _ = self.arrived();
        if is_to_go_on {
            self.remember();
            return;
        }
        self.bucket.forget(&self.digest);
        if let Some(Unfinished { id, .. }) = self.unfinished.take() {
            let (store, path) = (self.opened.store.clone(), self.path.clone());
            // A bucket's rule for unfinished objects removes what this leaves.
            let _ = self.opened.wait(async move { store.abort_multipart(&path, &id).await });
        }
    }

    /// Keeps what has arrived for the next attempt.
    fn remember(&mut self) {
        let Some(mut unfinished) = self.unfinished.take() else { return };
        unfinished.vain = if self.has_added { 0 } else { unfinished.vain.saturating_add(1) };
        if unfinished.vain >= VAIN_MAX {
            self.bucket.forget(&self.digest);
        } else {
            self.bucket.remember(&self.digest, unfinished);
        }
    }

    /// The server does not go on with this object: the next attempt starts from nothing.
    fn refused(&mut self, error: &object_store::Error) -> BlobError {
        if matches!(error, object_store::Error::NotFound { .. }) {
            self.bucket.forget(&self.digest);
            self.unfinished = None;
            let text = "the server has forgotten the parts of an object, which are sent again".to_owned();
            return BlobError::Unreachable(text);
        }
        failure(&self.digest, error)
    }

    /// Waits for the part that is on its way.
    fn arrived(&mut self) -> Result<(), BlobError> {
        let Some(SentPart { digest, answer }) = self.on_its_way.take() else { return Ok(()) };
        self.is_broken = true;
        let answered = answer.recv().map_err(|_| Opened::gone())?;
        let tag = answered.map_err(|error| self.refused(&error))?.content_id;
        (self.is_broken, self.has_added) = (false, true);
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.parts.push(Part { digest, tag });
            self.bucket.record(&self.digest, unfinished);
        }
        Ok(())
    }

    /// Sends what waits as the next part, while more is written. One that the server has is not sent.
    fn part(&mut self) -> Result<(), BlobError> {
        if self.count >= PARTS_MAX {
            let max = (PART_BYTES as u64).saturating_mul(PARTS_MAX as u64);
            return Err(BlobError::TooLarge { digest: self.digest, max });
        }
        if self.is_broken {
            return Err(BlobError::Unreachable("a part of the object did not arrive".to_owned()));
        }
        self.arrived()?;
        let unfinished = match self.unfinished.take() {
            Some(unfinished) => unfinished,
            None => self.started().inspect_err(|_| self.is_broken = true)?,
        };
        let unfinished = self.unfinished.insert(unfinished);
        let bytes = std::mem::take(&mut self.waiting);
        let digest = BlobDigest::new(Sha256::digest(&bytes).into());
        let number = self.count;
        self.count += 1;
        if unfinished.parts.get(number).is_some_and(|part| part.digest == digest) {
            return Ok(());
        }
        unfinished.parts.truncate(number);
        let (store, path, id) = (self.opened.store.clone(), self.path.clone(), unfinished.id.clone());
        let put = async move { store.put_part(&path, &id, number, PutPayload::from(bytes)).await };
        self.on_its_way = Some(SentPart { digest, answer: self.opened.begin(put) });
        Ok(())
    }

    /// The object as an attempt before has left it, or a new one.
    fn started(&self) -> Result<Unfinished, BlobError> {
        if let Some(unfinished) = self.bucket.remembered(&self.digest) {
            return Ok(unfinished);
        }
        let (store, path) = (self.opened.store.clone(), self.path.clone());
        let started = self.opened.wait(async move { store.create_multipart(&path).await })?;
        let id = started.map_err(|error| failure(&self.digest, &error))?;
        Ok(Unfinished { id, parts: Vec::new(), vain: 0 })
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting.len() >= PART_BYTES {
            self.part().map_err(io::Error::other)?;
        }
        let count = bytes.len().min(PART_BYTES - self.waiting.len());
        self.waiting.extend_from_slice(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where it is on record what a server has of an object.
fn record_of(bucket: &Bucket, digest: &BlobDigest) -> Option<PathBuf> {
    let directory = bucket.shared.records.as_ref()?;
    // Another bucket has other parts.
    let place = format!("{:?} {:?}", bucket.shared.config.endpoint, bucket.shared.name);
    let place: [u8; 32] = Sha256::digest(place.as_bytes()).into();
    let place = BlobDigest::new(place).digits();
    Some(directory.join(format!("{}-{}", place.get(..16).unwrap_or_default(), digest.digits())))
}

impl Bucket {
    /// What is known of an object that was not finished. Of several attempts at the same time one goes on with it.
    fn remembered(&self, digest: &BlobDigest) -> Option<Unfinished> {
        if let Some(known) = self.shared.unfinished.lock().remove(digest) {
            return Some(known);
        }
        let file = std::fs::File::open(record_of(self, digest)?).ok()?;
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps it for the next attempt of this process, and on record for one of another.
    fn remember(&self, digest: &BlobDigest, unfinished: Unfinished) {
        self.record(digest, &unfinished);
        let mut all = self.shared.unfinished.lock();
        if all.len() >= UNFINISHED_MAX && !all.contains_key(digest) {
            all.pop_first();
        }
        all.insert(*digest, unfinished);
    }

    /// Without the record an attempt after this process sends all of it: so an error is none.
    fn record(&self, digest: &BlobDigest, unfinished: &Unfinished) {
        let Some(path) = record_of(self, digest) else { return };
        let Ok(text) = serde_json::to_vec(unfinished) else { return };
        if let Some(directory) = path.parent() {
            let _ = std::fs::create_dir_all(directory);
        }
        let manner = Manner { mode: 0o600, lasting: Lasting::Processes, existing: Existing::Replaced };
        let _ = WholeFile::begin(&path, manner).and_then(|mut file| {
            file.write_all(&text)?;
            file.finish()
        });
    }

    fn forget(&self, digest: &BlobDigest) {
        self.shared.unfinished.lock().remove(digest);
        if let Some(path) = record_of(self, digest) {
            let _ = std::fs::remove_file(path);
        }
    }
}
