//! Parts of a bundle in one file: a directory in a compressed archive, with a manifest of what is in it.
//!
//! **Invariant:** a part and the whole have bounds. A part is cut between two rows; its own last or first row states it, and
//! the manifest does too.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_console::{Exit, Failure, SCHEMA, time};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The directory that every part is in.
const DIRECTORY: &str = "muster-debug";
/// Bytes of one part.
pub(super) const PART_BYTES_MAX: usize = 4 << 20;
/// Bytes of all parts.
const BUNDLE_BYTES_MAX: usize = 64 << 20;
/// Characters of a reason.
const ERROR_CHARS_MAX: usize = 300;
/// Bytes that are kept for the brackets of a list and for the row that states what was left out.
const MARK_BYTES: usize = 200;

/// A part, or why it is missing.
#[derive(Debug)]
pub(super) struct Part {
    /// Below the directory.
    pub(super) path: String,
    /// Who was asked.
    pub(super) source: String,
    pub(super) content: Result<Content, String>,
}

impl Part {
    /// A part that is one document.
    pub(super) fn new(
        path: impl Into<String>,
        source: impl Into<String>,
        content: Result<Vec<u8>, String>,
    ) -> Part {
        Part::of(path, source, content.map(Content::Whole))
    }

    pub(super) fn of(
        path: impl Into<String>,
        source: impl Into<String>,
        content: Result<Content, String>,
    ) -> Part {
        Part { path: path.into(), source: source.into(), content }
    }
}

/// What a part holds.
#[derive(Debug)]
pub(super) enum Content {
    /// One document: all of it, or nothing.
    Whole(Vec<u8>),
    /// Rows, of which some may be left out.
    Rows(Form, Rows),
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A JSON list, of which the first rows are kept.
    List,
    /// Lines of JSON, of which the last ones are kept.
    Records,
    /// Lines of text, of which the first ones are kept.
    Text,
}

/// Rows without what stands between them.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Vec<u8>>,
    /// Whether there are rows that are not among these.
    pub(super) has_more: bool,
}

impl Rows {
    /// The lines of a text; where it was cut, without the line that it was cut in.
    pub(super) fn of_text(text: &[u8], is_cut: bool) -> Rows {
        let mut rows: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        // Behind the last line end there is nothing, or the beginning of a line.
        if is_cut || rows.last().is_some_and(Vec::is_empty) {
            rows.pop();
        }
        Rows { rows, has_more: is_cut }
    }

    /// Drops the rows that do not fit into a number of bytes, from the end or from the beginning; how many.
    fn shorten(&mut self, limit: usize, keeps_last: bool) -> usize {
        let mut left = limit.saturating_sub(MARK_BYTES);
        // Behind each row there are a comma and a line end.
        let mut fits = |row: &&Vec<u8>| {
            let rest = left.checked_sub(row.len() + 2);
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let all = self.rows.len();
        if keeps_last {
            let kept = self.rows.iter().rev().take_while(&mut fits).count();
            self.rows.drain(..all - kept);
        } else {
            let kept = self.rows.iter().take_while(&mut fits).count();
            self.rows.truncate(kept);
        }
        all - self.rows.len()
    }
}

/// The sentence for rows that are not there.
fn missing_rows(left_out: usize, has_more: bool) -> Option<String> {
    match (left_out, has_more) {
        (0, false) => None,
        (0, true) => Some("there are more rows than these".to_owned()),
        (count, false) => Some(format!("{count} rows do not fit in here")),
        (count, true) => Some(format!("{count} rows do not fit in here, and there are more than these")),
    }
}

impl Content {
    /// The bytes, and what is not in them.
    fn within(self, limit: usize) -> Result<(Vec<u8>, Option<String>), String> {
        let (form, mut rows) = match self {
            Content::Whole(bytes) if bytes.len() <= limit => return Ok((bytes, None)),
            Content::Whole(bytes) => {
                return Err(format!("it has {} bytes, and {limit} are left", bytes.len()));
            }
            Content::Rows(form, rows) => (form, rows),
        };
        if limit < MARK_BYTES {
            return Err(format!("only {limit} bytes are left"));
        }
        let keeps_last = form == Form::Records;
        let left_out = rows.shorten(limit, keeps_last);
        let missing = missing_rows(left_out, rows.has_more);
        let mut lines = rows.rows;
        if let Some(missing) = &missing {
            let mark = match form {
                Form::Text => format!("# cut: {missing}"),
                Form::List | Form::Records => format!("{{\"cut\":\"{missing}\"}}"),
            };
            let place = if keeps_last { 0 } else { lines.len() };
            lines.insert(place, mark.into_bytes());
        }
        let (before, between, behind): (&[u8], &[u8], &[u8]) = match form {
            Form::List => (b"[\n", b",\n", b"\n]\n"),
            Form::Records | Form::Text => (b"", b"\n", b"\n"),
        };
        if lines.is_empty() {
            let bytes = if form == Form::List { b"[]\n".to_vec() } else { Vec::new() };
            return Ok((bytes, missing));
        }
        let mut bytes = before.to_vec();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                bytes.extend_from_slice(between);
            }
            bytes.extend_from_slice(line);
        }
        bytes.extend_from_slice(behind);
        Ok((bytes, missing))
    }
}

/// What is in a bundle.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    /// The program that made it.
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    pub(super) parts: Vec<Entry>,
}

/// The manifest as a document.
#[derive(Serialize)]
struct ManifestFile<'a> {
    schema: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

/// One part.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) path: String,
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    /// Left out unless a part of it was.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// What was left out of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<String>,
    /// Why it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// Lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Packs the parts behind a manifest of them.
pub(super) fn pack(parts: Vec<Part>, version: &str, now_ms: u64) -> Result<(Vec<u8>, Manifest), Failure> {
    let mut left = BUNDLE_BYTES_MAX;
    let mut entries = Vec::new();
    let mut files = Vec::new();
    for part in parts {
        let mut entry = Entry {
            path: part.path.clone(),
            source: part.source,
            bytes: None,
            sha256: None,
            cut: false,
            left_out: None,
            error: None,
        };
        match part.content.and_then(|content| content.within(PART_BYTES_MAX.min(left))) {
            Ok((content, left_out)) => {
                left = left.saturating_sub(content.len());
                (entry.cut, entry.left_out) = (left_out.is_some(), left_out);
                entry.bytes = Some(content.len() as u64);
                entry.sha256 = Some(hex(&Sha256::digest(&content)));
                files.push((part.path, content));
            }
            Err(why) => entry.error = Some(why.chars().take(ERROR_CHARS_MAX).collect()),
        }
        entries.push(entry);
    }
    let manifest = Manifest { version: version.to_owned(), created: time(now_ms), parts: entries };
    let file = ManifestFile { schema: SCHEMA, kind: "DebugBundleManifest", manifest: &manifest };
    let text = serde_json::to_vec_pretty(&file).map_err(|error| failed(&error))?;
    files.insert(0, ("manifest.json".to_owned(), text));
    Ok((archive(&files, now_ms / 1_000)?, manifest))
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("the bundle could not be made: {error}"))
}

fn archive(files: &[(String, Vec<u8>)], time_s: u64) -> Result<Vec<u8>, Failure> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time_s);
        let path = format!("{DIRECTORY}/{path}");
        archive.append_data(&mut header, path, content.as_slice()).map_err(|error| failed(&error))?;
    }
    let compressed = archive.into_inner().and_then(GzEncoder::finish);
    compressed.map_err(|error| failed(&error))
}

/// Makes the file, which must not exist and which only its owner may read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{} could not be written: {error}", path.display()))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // Half of a bundle is none.
        let _ = std::fs::remove_file(path);
        return Err(failed(error));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn unpack(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
        let mut files = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.push((path, content));
        }
        files
    }

    #[test]
    fn a_bundle_has_its_parts_their_sums_and_what_is_missing() {
        let text = Rows::of_text(&b"a line of text\n".repeat(PART_BYTES_MAX / 10), false);
        let parts = vec![
            Part::new("a/one.json", "replica 1", Ok(b"{}".to_vec())),
            Part::new("b.json", "replica 2", Err("no answer in time".to_owned())),
            Part::of("large.txt", "replica 1", Ok(Content::Rows(Form::Text, text))),
            Part::new("whole.json", "replica 1", Ok(vec![b'x'; PART_BYTES_MAX + 1])),
        ];
        let (bytes, manifest) = pack(parts, "1.2.3", 1_700_000_000_000).unwrap();
        let files = unpack(&bytes);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["muster-debug/manifest.json", "muster-debug/a/one.json", "muster-debug/large.txt"]
        );
        assert!(files[2].1.len() <= PART_BYTES_MAX && files[2].1.len() > PART_BYTES_MAX / 2);
        let text = String::from_utf8(files[2].1.clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (last, lines) = lines.split_last().unwrap();
        assert!(lines.iter().all(|line| *line == "a line of text"));
        assert!(last.starts_with("# cut: ") && last.ends_with(" rows do not fit in here"), "{last}");
        let written: serde_json::Value = serde_json::from_slice(&files[0].1).unwrap();
        assert_eq!(written["parts"][0]["sha256"], hex(&Sha256::digest(b"{}")));
        assert_eq!(written["parts"][1]["error"], "no answer in time");
        assert_eq!(written["parts"][2]["cut"], true);
        assert!(last.contains(written["parts"][2]["leftOut"].as_str().unwrap()), "{last}");
        assert!(written["parts"][3]["error"].as_str().unwrap().contains("bytes, and "));
        assert_eq!(manifest.parts.len(), 4);
    }

    #[test]
    fn all_parts_together_are_bounded() {
        let part = |n| Part::new(format!("{n}.txt"), "x", Ok(vec![0; PART_BYTES_MAX]));
        let (bytes, manifest) = pack((0..20).map(part).collect(), "1", 0).unwrap();
        let packed: u64 = manifest.parts.iter().filter_map(|part| part.bytes).sum();
        assert_eq!(packed, BUNDLE_BYTES_MAX as u64);
        assert!(bytes.len() < BUNDLE_BYTES_MAX);
    }

    #[test]
    fn a_list_is_cut_between_two_rows_and_says_so() {
        let rows = |count: usize, has_more| Rows {
            rows: (0..count).map(|n| format!("{{\"n\":{n}}}").into_bytes()).collect(),
            has_more,
        };
        let written = |form, rows, limit| {
            let (bytes, missing) = Content::Rows(form, rows).within(limit).unwrap();
            assert!(bytes.len() <= limit, "{} of {limit}", bytes.len());
            (String::from_utf8(bytes).unwrap(), missing)
        };
        let list = |text: &str| serde_json::from_str::<Vec<serde_json::Value>>(text).unwrap();
        let (text, missing) = written(Form::List, rows(3, false), 1_000);
        assert_eq!((list(&text).len(), missing), (3, None));
        let (text, missing) = written(Form::List, rows(100, false), 400);
        let items = list(&text);
        assert!(items.len() > 2 && items.len() < 100);
        assert_eq!(items[0]["n"], 0);
        assert_eq!(items.last().unwrap()["cut"].as_str(), missing.as_deref());
        let (text, missing) = written(Form::List, rows(0, true), 400);
        assert_eq!(list(&text)[0]["cut"].as_str(), missing.as_deref());
        assert_eq!(written(Form::List, rows(0, false), 400), ("[]\n".to_owned(), None));
        // Of records the newest count, which are the last ones.
        let (text, _) = written(Form::Records, rows(100, false), 400);
        assert!(text.starts_with("{\"cut\":") && text.ends_with("{\"n\":99}\n"), "{text}");
        let cut = Rows::of_text(b"one 1\ntwo 2\nthr", true);
        assert_eq!(written(Form::Text, cut, 400).0, "one 1\ntwo 2\n# cut: there are more rows than these\n");
        assert_eq!(written(Form::Text, Rows::of_text(b"a\nb", false), 400).0, "a\nb\n");
        assert!(Content::Rows(Form::List, rows(1, false)).within(10).is_err());
    }
}
