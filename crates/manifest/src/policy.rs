//! Policy files: YAML in, a `Policy` message out.
//!
//! `apiVersion: muster.dev/v1`, `kind: Policy`. Devices, weights and dollars are written as such and sent
//! as thousandths and millionths. `muster policy show -o yaml` prints what is read here; its
//! `metadata.version` then is what `muster policy set` expects to replace.

mod document;
mod form;

use std::collections::BTreeMap;

use muster_types::Violation;
use muster_wire::{convert, v1};
use serde::Deserialize;
use serde_saphyr::Spanned;

use self::document::{Spec, name_in_file};
use self::form::Group;
use super::reader::{API_VERSION, Reader, unreadable, with_rules};
use super::shape::Text;
use super::show::{Content, Fields, moment};
use super::{ManifestError, PROBLEMS_MAX, Problem, line_of, quantity, text};

const KIND: &str = "Policy";

/// The policy of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyFile {
    /// What is sent.
    pub message: v1::Policy,
    /// The version it was made from, when the file states it.
    pub version: Option<u64>,
    lines: BTreeMap<String, u64>,
    first_line: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    api_version: Option<Text>,
    kind: Option<Text>,
    metadata: Option<Metadata>,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Metadata {
    version: Option<Text>,
    set_time: Option<Text>,
}

/// Reads a policy file. `now_ms` is what times like `+2h` count from, since the Unix epoch.
pub fn parse_policy(bytes: &[u8], now_ms: u64) -> Result<PolicyFile, ManifestError> {
    parse(bytes, now_ms, PolicyFile::check)
}

/// Reads a policy file of which only parts are to be put in force: what its settings refer to may be known to the cluster alone,
/// so that each is checked by itself.
pub fn parse_policy_parts(bytes: &[u8], now_ms: u64) -> Result<PolicyFile, ManifestError> {
    parse(bytes, now_ms, |_| Ok(()))
}

fn parse(
    bytes: &[u8],
    now_ms: u64,
    rules: impl FnOnce(&PolicyFile) -> Result<(), ManifestError>,
) -> Result<PolicyFile, ManifestError> {
    let text = text(bytes)?;
    let documents: Vec<Spanned<Document>> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError(vec![unreadable(text, KIND, &error)]))?;
    let mut documents = documents.into_iter();
    let (Some(document), None) = (documents.next(), documents.next()) else {
        return Err(ManifestError::whole("the file must hold one document, of kind: Policy"));
    };
    let mut problems = Vec::new();
    let mut reader = Reader::new(&mut problems, now_ms);
    let first_line = document.referenced.line();
    let (message, version) = reader.policy_document(document.value);
    let (lines, unknown_words) = (reader.lines, reader.unknown_words);
    let file = PolicyFile { message, version, lines, first_line };
    let problems = with_rules(problems, unknown_words, || rules(&file));
    if problems.is_empty() { Ok(file) } else { Err(ManifestError(problems)) }
}

impl Reader<'_> {
    fn policy_document(&mut self, document: Document) -> (v1::Policy, Option<u64>) {
        self.constant("apiVersion", document.api_version, API_VERSION);
        self.constant("kind", document.kind, KIND);
        let metadata = document.metadata.unwrap_or_default();
        let version = self.value("metadata.version", metadata.version, quantity::index);
        // Only shown, never set.
        let _ = self.text("metadata.setTime", metadata.set_time);
        let Some(spec) = document.spec else {
            self.problem(None, "spec", "must be given; {} is a policy of nothing but defaults");
            return (v1::Policy::default(), version);
        };
        (spec.read(self, "spec"), version)
    }
}

impl PolicyFile {
    /// Every rule the server would refuse this policy for, in the file's words.
    pub fn check(&self) -> Result<(), ManifestError> {
        match convert::policy_from_proto("policy", Some(self.message.clone())) {
            Ok(_) => Ok(()),
            Err(found) => {
                Err(ManifestError(found.iter().take(PROBLEMS_MAX).map(|v| self.explain(v)).collect()))
            }
        }
    }

    /// The path of a whole entry with a name of the user's: the name may be that of a setting, which is called
    /// something else in the file.
    fn entry(&self, path: &str) -> Option<String> {
        let policy = &self.message;
        let under = |group: &str| path.strip_prefix("policy.")?.strip_prefix(group)?.strip_prefix('.');
        if let Some(name) = under("tenants").filter(|name| policy.tenants.contains_key(*name)) {
            return Some(format!("spec.tenants.{name}"));
        }
        if let Some(name) = under("datasets").filter(|name| policy.datasets.contains_key(*name)) {
            return Some(format!("spec.datasets.{name}"));
        }
        if let Some(name) = under("roles").filter(|name| policy.roles.contains_key(*name)) {
            return Some(format!("spec.roles.{name}"));
        }
        let name = under("spare_hosts_per_rack")?;
        policy.spare_hosts_per_rack.contains_key(name).then(|| format!("spec.spareHostsPerRack.{name}"))
    }

    /// A violation in the message, as a problem of the file. The path starts with `policy`.
    pub fn explain(&self, violation: &Violation) -> Problem {
        let (field, unit) = match self.entry(&violation.field) {
            Some(field) => (field, ""),
            None => in_file(&violation.field),
        };
        let line = line_of(&field, &self.lines, self.first_line);
        Problem { line, field, description: format!("{}{unit}", violation.description) }
    }
}

/// A path in the message as one in the file, and what its numbers count when the file writes another unit.
fn in_file(path: &str) -> (String, &'static str) {
    let Some(rest) = path.strip_prefix("policy") else { return (path.to_owned(), "") };
    let path = format!("spec{rest}").replacen("spec.spare_hosts_per_rack", "spec.spareHostsPerRack", 1);
    let path = path.replacen("spec.interruption_rates", "spec.interruptionRates", 1);
    // In the file the name of a test is its operator, and has its values.
    if path.contains(".queue.nodes.expressions[") {
        let test = path.trim_end_matches(".values").trim_end_matches(".operator");
        return (test.to_owned(), "");
    }
    let Some((parent, last)) = path.rsplit_once('.') else { return (path, "") };
    // Directly in `spec` are only groups of settings, whose names are the same.
    let renamed = if parent == "spec" { None } else { name_in_file(last) };
    match renamed {
        Some((name, unit)) => (format!("{parent}.{name}"), unit),
        None => (path, ""),
    }
}

/// A policy in force as a policy file: what is shown can be set again. The time when it was set is not read back.
pub fn policy_file(answer: &v1::GetPolicyResponse) -> Fields {
    let mut metadata = Fields::default();
    metadata.say("version", answer.version);
    metadata.say("setTime", moment(answer.set_time));
    let mut file = Fields::default();
    file.say("apiVersion", API_VERSION);
    file.say("kind", KIND);
    file.put("metadata", Some(Content::Fields(metadata)));
    file.put("spec", answer.policy.as_ref().map(|policy| Content::Fields(Spec::show(policy))));
    file
}
